"""What is computed of elements at places that data give: of those alone, where that is no more work than of all.

    sum_k where(k == place, relu(x[k]), 0)  ->  relu(sum_k where(k == place, x[k], 0))

Only what lies in memory can be looked up there (`prism.program.lookup`), and what is computed is not. Where reductions
make it and more places are wanted than there are, it is stored first (`prism.generate.partition`) and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from prism.program import build, fold
from prism.program.index import Axis, Index
from prism.program.integers import Interval, interval
from prism.program.lookup import looked_up, lookup, place_along
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, free_axes, walk
from prism.program.transform import rebuilt, substitute


def of_looked_up(expr: Expr, of: Callable[[str], Interval]) -> Expr:
    """The expression with what is computed and looked up computed of what is looked up, where that is not more work.

    `of` has the bounds of each tensor that it reads; what is no whole number is no place.
    """

    def moved(e: Expr) -> Expr:
        chosen = lookup(e)
        if chosen is None:
            return counted(e)
        if chosen.lies_in_memory:
            return e
        reduced = (r for r in walk(chosen.element) if isinstance(r, Reduce) and lookup(r) is None)
        if chosen.is_repeated and any(chosen.axis in free_axes(r) for r in reduced):
            return e
        made = _AtPlace(chosen.axis, chosen.place).of(chosen.element)
        if made is None:
            return e
        if _vanishes(chosen.element, chosen.axis):
            return of_looked_up(made, of)
        within = _within(chosen.axis, chosen.place, interval(chosen.place, of))
        return e if within is None else fold.op("where", within, of_looked_up(made, of), Const(0.0))

    def counted(e: Expr) -> Expr:
        """What is added up for one place of an axis and does not vary along it, as a label's gradient in its row."""
        match e:
            case Reduce(ReduceKind.SUM, axis, Map("where", (hit, value, Const(0.0)))) if axis not in free_axes(value):
                found = place_along(hit)
                if found is not None and found[0] == axis:
                    within = _within(axis, found[1], interval(found[1], of))
                    return e if within is None else fold.op("where", within, value, Const(0.0))
        return e

    return rebuilt([expr], moved)[0]


def _within(axis: Axis, place: Expr, bounds: Interval) -> Expr | None:
    """Whether the place is one of the axis's; None where it may lie between them."""
    if not bounds.whole:
        return None
    size = build.size(axis.extent)
    low = Const(1.0) if bounds.low >= 0 else fold.op("le", Const(0.0), place)
    high = Const(1.0) if isinstance(size, Const) and bounds.high < size.value else fold.op("lt", place, size)
    return fold.op("and", low, high)


@dataclass(slots=True)
class _AtPlace:
    """An expression at one place of an axis."""

    axis: Axis
    place: Expr  # a number
    # Done, by the identity of the node, which is kept.
    memo: dict[int, tuple[Expr, Expr | None]] = field(default_factory=dict)

    def of(self, e: Expr) -> Expr | None:
        """The expression there; None where it reads along the axis in another way than element by element."""
        if self.axis not in free_axes(e):
            return e
        if id(e) not in self.memo:
            self.memo[id(e)] = e, self._new(e)
        return self.memo[id(e)][1]

    def _new(self, e: Expr) -> Expr | None:
        match e:
            case Read(_, index):
                own = [i for i in index if self.axis in i.axes()]
                return looked_up(self.axis, self.place, e) if [i.terms for i in own] == [((self.axis, 1),)] else None
            case Position(index) if index.is_affine():
                times = next(c for a, c in index.terms if a == self.axis)
                rest = build.position(index.substitute({self.axis: Index.const(0)}))
                return fold.op("add", rest, fold.op("mul", build.size(times), self.place))
            case Map(op, args):
                made = [self.of(a) for a in args]
                return None if any(a is None for a in made) else fold.op(op, *(a for a in made if a is not None))
            case Reduce(kind, axis, body):
                if axis in free_axes(self.place):
                    own_axis = Axis(f"{axis.name}.own", axis.extent)
                    axis, body = own_axis, substitute(body, {axis: Index.axis(own_axis)})
                inner = self.of(body)
                return None if inner is None else Reduce(kind, axis, inner)
            case _:
                return None


def _vanishes(e: Expr, axis: Axis) -> bool:
    """Whether the expression is 0 where all that it reads along the axis is."""
    if axis not in free_axes(e):
        return e == Const(0.0)
    match e:
        case Read():
            return True
        case Map("mul", args):
            # Beside a factor that is 0 every other one has to be a number.
            nought = [_vanishes(a, axis) for a in args]
            return any(nought) and all(n or isinstance(a, Read | Const) for n, a in zip(nought, args, strict=True))
        case Map("add" | "maximum" | "minimum" | "neg" | "abs" | "sqrt" | "tanh", args):
            return all(_vanishes(a, axis) for a in args)
        case Map("where", (_, a, b)):
            return _vanishes(a, axis) and _vanishes(b, axis)
        case Reduce(ReduceKind.SUM | ReduceKind.MAX | ReduceKind.MIN, _, body):
            return _vanishes(body, axis)
        case _:
            return False
