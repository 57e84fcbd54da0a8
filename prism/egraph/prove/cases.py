"""Proof by cases: of two values that are compared, or of which the larger is taken, one is not less than the other.

What does not depend on which is right in both cases: max(x, y) + log(1 + exp(min(x, y) - max(x, y))) is one expression
where y <= x and another where x <= y, and both are log(exp x + exp y).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prism.program.build import const
from prism.program.nodes import Const, Expr, Map, Reduce, free_axes, walk
from prism.program.transform import rebuilt

# Nodes of the two expressions together beyond which cases, which multiply the work, are not told apart.
MAX_NODES = 600


@dataclass(frozen=True, slots=True)
class Case:
    """That `less` is not more than `more`; is less, where it is strict."""

    less: Expr
    more: Expr
    strict: bool

    def of(self, exprs: Sequence[Expr]) -> list[Expr]:
        """The expressions where it is so."""
        return rebuilt(exprs, self._known)

    def _known(self, e: Expr) -> Expr:
        match e:
            case Map("maximum", (a, b)) if {a, b} == {self.less, self.more}:
                return self.more
            case Map("minimum", (a, b)) if {a, b} == {self.less, self.more}:
                return self.less
            case Map("le", (self.less, self.more)):
                return const(1.0)
            case Map("lt", (self.more, self.less)):
                return const(0.0)
            case Map("lt", (self.less, self.more)) if self.strict:
                return const(1.0)
            case Map("le", (self.more, self.less)) if self.strict:
                return const(0.0)
            case Map("eq", (a, b)) if self.strict and {a, b} == {self.less, self.more}:
                return const(0.0)
        return e


def cases(a: Expr, b: Expr) -> tuple[Case, Case] | None:
    """Two cases of which one holds everywhere, by the smallest comparison in two expressions; None without any.

    Only values that no reduction binds are compared: a case is one of the whole expression.
    """
    nodes = dict.fromkeys((*walk(a), *walk(b)))
    if len(nodes) > MAX_NODES:
        return None
    bound = {e.axis for e in nodes if isinstance(e, Reduce)}
    found = [
        e
        for e in nodes
        if isinstance(e, Map)
        and e.op in ("maximum", "minimum", "le", "lt")
        and free_axes(e).isdisjoint(bound)
        and not any(isinstance(x, Const) and x.value in _INFINITE for x in e.args)
    ]
    if not found:
        return None
    first = min(found, key=lambda e: (len(str(e)), str(e)))
    x, y = first.args
    return Case(x, y, first.op == "lt"), Case(y, x, first.op != "lt")


_INFINITE = (float("inf"), float("-inf"))
