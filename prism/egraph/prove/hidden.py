"""Numbers that masks hide by, as -1e9: masked where the bounds of what they hide say that it rounds to nothing.

Over the reals exp(-1e9) is not 0, so a mask by a number is not one by -inf. But where what is visible of a row is known
to be so far above what is hidden that its exponential, less the row's maximum, is below the least number of float64, no
type has it: it adds nothing to a sum of which the maximum's own is 1. So such a row's maximum, which is that of what is
visible, and its exponentials may be read with -inf. That is an assumption about rounding, and named; where the bounds
are not known, what has to be stated is said instead. Of rows that a mask may hide as a whole nothing is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prism.program.build import const
from prism.program.index import Index
from prism.program.nodes import Const, Expr, Map, Reduce, ReduceKind, free_axes, walk
from prism.program.ops import BOOLEAN
from prism.program.sign_analysis import Facts
from prism.program.transform import rebuilt, substitute

# Numbers that masks hide by: between these.
_LEAST = -1e3
_LARGEST = -1e300
# exp of less is below half of float64's least number.
NOTHING = -746.0
_LOW = Const(-math.inf)


@dataclass(frozen=True, slots=True)
class Hidden:
    """Expressions of two programs with -inf for what masks hide by a number."""

    left: tuple[Expr, ...]  # of one
    right: tuple[Expr, ...]  # of the other
    said: tuple[str, ...]  # what that assumes, or would
    sure: bool  # whether what is hidden is known to round to nothing


def without_numbers(left: Sequence[Expr], right: Sequence[Expr]) -> Hidden | None:
    """Both with the rows of which a number hides something read with -inf; None where there are none."""
    reader = _Reader()
    one, other = (tuple(rebuilt(side, reader.read)) for side in (left, right))
    return Hidden(one, other, tuple(reader.said), reader.sure) if reader.said else None


@dataclass(slots=True)
class _Reader:
    """Reads rows; see `without_numbers`."""

    sure: bool = True
    said: dict[str, None] = field(default_factory=dict)
    _facts: Facts = field(default_factory=Facts)

    def read(self, e: Expr) -> Expr:
        """A maximum, or an exponential less a maximum that was read, with -inf."""
        match e:
            case Reduce(ReduceKind.MAX, axis, body):
                hidden = self._outside(_with(body, _hide))
                if hidden == body or not self._facts.finite(made := Reduce(e.kind, axis, hidden)):
                    return e
                self._judge(body)
                return made
            case Map("exp", (Map("add", (a, Map("neg", (Reduce(ReduceKind.MAX, axis, body) as top,)))),)):
                element = self._outside(_with(a, _hide))
                ours = (substitute(body, {axis: Index.axis(x)}) for x in free_axes(a) if x.extent == axis.extent)
                if element != a and any(x == element for x in ours):
                    return Map("exp", (Map("add", (element, Map("neg", (top,)))),))
        return e

    def _outside(self, e: Expr) -> Expr:
        """A sum with a choice of -inf as a choice of -inf."""
        match e:
            case Map("add", args):
                a, b = map(self._outside, args)
                for one, other in ((a, b), (b, a)):
                    match one:
                        case Map("where", (p, x, y)) if _LOW in (x, y) and self._facts.finite(other):
                            sums = [v if v == _LOW else self._outside(Map("add", (v, other))) for v in (x, y)]
                            return Map("where", (p, *sums))
                return Map("add", (a, b))
            case Map("where", (p, x, y)):
                return Map("where", (p, self._outside(x), self._outside(y)))
        return e

    def _judge(self, body: Expr) -> None:
        """Whether what is hidden of a row is so far below what is visible."""
        numbers = [x for x in walk(body) if isinstance(x, Map) and _number(x) is not None]
        visible = self._facts.range(_with(body, _show))
        below = max(self._facts.range(_with(body, lambda x, one=n: _leave(x, one))).high for n in numbers)  # type: ignore[misc]
        least = min(c for n in numbers if (c := _number(n)) is not None)
        if below - visible.low <= NOTHING:
            self.said[
                f"what a mask of {least:g} hides counts as masked: beside what lies in"
                f" [{visible.low:g}, {visible.high:g}] its exponential rounds to 0"
            ] = None
        else:
            self.sure = False
            self.said[f"that what a mask of {least:g} hides lies more than {-NOTHING:g} below what is visible"] = None


def _number(e: Map) -> float | None:
    """The number by which a choice, or a product with a truth value, hides; None of others."""
    match e:
        case Map("where", (_, *sides)):
            found = [x.value for x in sides if isinstance(x, Const) and _LARGEST <= x.value <= _LEAST]
            return found[0] if len(found) == 1 else None
        case Map("mul", (p, Const(c))) | Map("mul", (Const(c), p)) if _LARGEST <= c <= _LEAST and _truth(p):
            return c
    return None


def _truth(e: Expr) -> tuple[Expr, bool] | None:
    """(a predicate, whether it or its negation is the value); None of what is not known to be 0 or 1."""
    match e:
        case Map("where", (p, Const(1.0), Const(0.0))):
            return p, True
        case Map("where", (p, Const(0.0), Const(1.0))):
            return p, False
        case Map("add", (Const(1.0), Map("neg", (a,)))) | Map("add", (Map("neg", (a,)), Const(1.0))):
            inner = _truth(a)
            return None if inner is None else (inner[0], not inner[1])
        case Map(op, _) if op in BOOLEAN:
            return e, True
    return None


def _parts(e: Map) -> tuple[Expr, Expr, Expr]:
    """(predicate, what there is where it holds, and where not) of what hides by a number."""
    match e:
        case Map("where", (p, a, b)):
            return p, a, b
        case Map("mul", (Const() as c, p)) | Map("mul", (p, c)):
            found = _truth(p)
            assert found is not None
            return (found[0], c, const(0.0)) if found[1] else (found[0], const(0.0), c)
    raise AssertionError(e)


def _with(e: Expr, change: Callable[[Map], Expr]) -> Expr:
    """The row's element with what hides by numbers changed: terms of its sums, and of their positive multiples."""
    match e:
        case Map() if _number(e) is not None:
            return change(e)
        case Map("add", (a, b)):
            return Map("add", (_with(a, change), _with(b, change)))
        case Map("mul", (Const(c) as k, a)) if c > 0:
            return Map("mul", (k, _with(a, change)))
        case Map("mul", (a, Const(c) as k)) if c > 0:
            return Map("mul", (_with(a, change), k))
        case Map("where", (p, a, b)):
            return Map("where", (p, _with(a, change), _with(b, change)))
    return e


def _hide(e: Map) -> Expr:
    p, a, b = _parts(e)
    number = _number(e)
    return Map("where", (p, *(_LOW if x == Const(number or 0.0) else _with(x, _hide) for x in (a, b))))


def _show(e: Map) -> Expr:
    _, a, b = _parts(e)
    return _with(b if a == Const(_number(e) or 0.0) else a, _show)


def _leave(e: Map, one: Map) -> Expr:
    """What hides as it hides, if it is that one; else what it shows."""
    return Const(_number(e) or 0.0) if e == one else _with(_show(e), lambda x: _leave(x, one))


__all__ = ["Hidden", "without_numbers"]
