"""The form as written: every value computed by the operator that the model has for it, over the same operands.

What rounds badly is often what looks fastest, in all its variants. What the model itself computes, in its own order of
operations, rounds as the model does: sums in tiles, a sum of products as one product of matrices, pointwise operators
fused, and nothing moved past anything else. The generator keeps a place for it whatever its bounds leave out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from prism.generate.options import COMMUTATIVE, Choice
from prism.program.arrays import NumpyArrays
from prism.program.classes import EClasses, Payload
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, Size, walk

# The e-graph carries constants to 40 bits.
SAME = 2.0**-38

_Key: TypeAlias = "tuple[str, Payload, tuple[int, ...]]"


def written(
    classes: EClasses, exprs: Sequence[Expr], options: Mapping[int, Sequence[Choice]]
) -> dict[int, Choice] | None:
    """The choices, operands before results; None where the e-graph does not hold what was written.

    Of two operators that came to be one e-class the first, operands before results, computes it.

    Args:
        classes: the saturated e-graph.
        exprs: the outputs, as `classes.roots` hold them.
        options: of each e-class; of operands in either order the one that is there is taken.
    """
    reading = _Reading(classes, options)
    for e in exprs:
        for part in walk(e):
            if id(part) not in reading.found and not reading.take(part):
                return None
    if tuple(reading.found[id(e)] for e in exprs) != tuple(classes.roots):
        return None
    reachable = _reachable(reading.made, classes.roots)
    return {cls: _offered(choice, options.get(cls, ())) for cls, choice in reachable.items()}


@dataclass(slots=True)
class _Reading:
    """Finds expressions among e-nodes, bottom up.

    Attributes:
        classes: the saturated e-graph.
        options: of each e-class.
        found: an expression's e-class, by its identity.
        made: the choices so far.
    """

    classes: EClasses
    options: Mapping[int, Sequence[Choice]]
    found: dict[int, int] = field(default_factory=dict)
    made: dict[int, Choice] = field(default_factory=dict)
    _table: dict[_Key, int] = field(default_factory=dict)
    _numbers: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cls, nodes in self.classes.nodes.items():
            for n in nodes:
                if isinstance(n.payload, Const):
                    self._numbers[cls] = n.payload.value
                else:
                    self._table.setdefault((n.op, n.payload, n.children), cls)

    def take(self, e: Expr) -> bool:
        """Whether the e-graph holds the expression, whose operands have been taken."""
        kids = tuple([self.found[id(c)] for c in e.children])
        cls = self._class(e, kids)
        if cls is None:
            return False
        self.found[id(e)] = cls
        if cls not in self.made:
            choice = self._choice(e, cls, kids)
            if choice is None:
                return False
            self.made[cls] = choice
        return True

    def _class(self, e: Expr, kids: tuple[int, ...]) -> int | None:
        match e:
            case Const(value):
                return self._number(value)
            case Read() | Position() | Size():
                op = {Read: "read", Position: "position", Size: "size"}[type(e)]
                return self._table.get((op, e, ()))
            case Map("neg", _):
                minus = self._number(-1.0)
                return None if minus is None else self._of("mul", (minus, *kids))
            case Map(op, _):
                return self._of(op, kids)
            case Reduce(kind, axis, _):
                return self._table.get((kind.value, axis, kids))
        return None

    def _number(self, value: float) -> int | None:
        for cls, known in self._numbers.items():
            if known == value or abs(known - value) <= SAME * abs(value):
                return cls
        return None

    def _of(self, op: str, kids: tuple[int, ...]) -> int | None:
        cls = self._table.get((op, None, kids))
        if cls is not None:
            return cls
        # Numbers are folded, and what a product with 1, or a sum with 0, is stands for it.
        if all(k in self._numbers for k in kids):
            with np.errstate(all="ignore"):
                return self._number(float(NumpyArrays().pointwise(op, [self._numbers[k] for k in kids])))
        neutral = {"mul": 1.0, "add": 0.0}.get(op)
        for this, other in (kids, kids[::-1]) if len(kids) == 2 else ():
            if neutral is not None and self._numbers.get(other) == neutral:
                return this
        return None

    def _choice(self, e: Expr, cls: int, kids: tuple[int, ...]) -> Choice | None:
        match e:
            case Const():
                return Choice("const", Const(self._numbers[cls]), ())
            case Read() | Position() | Size():
                return Choice({Read: "read", Position: "position", Size: "size"}[type(e)], e, ())
            case Reduce(kind, axis, _):
                if axis not in self.classes.axes[kids[0]]:
                    return self._ready(cls)
                for fetched in self.options.get(cls, ()):
                    if fetched.op == "gather" and all(k in self.made for k in fetched.children):
                        return fetched
                inner = self.made[kids[0]]
                if kind is ReduceKind.SUM and inner.op == "mul":
                    a, b = sorted(inner.children)
                    if axis in self.classes.axes[a] and axis in self.classes.axes[b]:
                        return Choice("contract", axis, (a, b))
                return Choice(kind.value, axis, kids)
            case Map(op, _):
                if cls in self._numbers:
                    return Choice("const", Const(self._numbers[cls]), ())
                if op == "neg":
                    minus = self._number(-1.0)
                    assert minus is not None
                    self.made.setdefault(minus, Choice("const", Const(-1.0), ()))
                    return Choice("mul", None, (minus, *kids))
                return Choice(op, None, kids)
        return None

    def _ready(self, cls: int) -> Choice | None:
        """A sum of what does not depend on its axis, as the rules write it: of values that are known."""
        for n in self.classes.nodes[cls]:
            if n.domain or n.op in (kind.value for kind in ReduceKind):
                continue
            new = [k for k in n.children if k not in self.made]
            if all(len(self.classes.nodes[k]) == 1 and not self.classes.nodes[k][0].children for k in new):
                for k in new:
                    leaf = self.classes.nodes[k][0]
                    self.made[k] = Choice(leaf.op, leaf.payload, ())
                return Choice(n.op, n.payload, n.children)
        return None


def _offered(choice: Choice, options: Sequence[Choice]) -> Choice:
    """The option that is the choice, its operands in either order."""
    commutes = choice.op in COMMUTATIVE or choice.op == "contract"
    for o in options:
        alike = sorted(o.children) == sorted(choice.children) if commutes else o.children == choice.children
        if (o.op, o.payload) == (choice.op, choice.payload) and alike:
            return o
    return choice


def _reachable(made: Mapping[int, Choice], roots: Sequence[int]) -> dict[int, Choice]:
    """The choices that the roots need, operands before results."""
    reached: set[int] = set()
    stack = list(roots)
    while stack:
        cls = stack.pop()
        if cls not in reached:
            reached.add(cls)
            stack += made[cls].children
    return {cls: choice for cls, choice in made.items() if cls in reached}
