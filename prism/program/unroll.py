"""Reductions over short axes along which a choice is made: written out, element by element.

    sum_i x[2*j + i] * where(i < 1, low[j], high[j])     i in [0, 2)
    ->  x[2*j]*low[j] + x[2*j + 1]*high[j]

A value assembled from pieces by position is reduced as the reductions of its pieces. Where the pieces lie side by side
along a short axis, as codes in a byte do, no tile is of one piece alone: every program would compute each piece for all
positions and choose. Written out there is nothing to choose, and what the pieces have in common is computed once.
"""

from __future__ import annotations

from functools import partial, reduce

from prism.program import fold
from prism.program.build import position
from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Reduce, ReduceKind, walk
from prism.program.transform import rebuilt, substitute

LONGEST = 4
"""Of the axes that are written out; each element is a term of its own."""

_COMBINE = {
    ReduceKind.SUM: "add",
    ReduceKind.PROD: "mul",
    ReduceKind.MAX: "maximum",
    ReduceKind.MIN: "minimum",
}


def unrolled(expr: Expr) -> Expr:
    """The expression with every reduction written out whose short axis alone decides a choice in its body."""

    def written(e: Expr) -> Expr:
        if not isinstance(e, Reduce) or not _decides(e.axis, e.body):
            return e
        terms = [_at(e.body, e.axis, n) for n in range(int(e.axis.extent))]
        return reduce(partial(fold.op, _COMBINE[e.kind]), terms)

    return rebuilt([expr], written)[0]


def _decides(axis: Axis, body: Expr) -> bool:
    """Whether the axis is short, and the predicate of some choice in the body depends on nothing else."""
    if not is_static(axis.extent) or int(axis.extent) > LONGEST:
        return False
    return any(isinstance(e, Map) and e.op == "where" and _only(axis, e.args[0]) for e in walk(body))


def _only(axis: Axis, predicate: Expr) -> bool:
    """Whether the predicate is made of numbers and positions along this axis."""
    nodes = list(walk(predicate))
    if not all(isinstance(e, Map | Position | Const) for e in nodes):
        return False
    positions = [e for e in nodes if isinstance(e, Position)]
    return any(e.index.terms for e in positions) and all(set(e.index.axes()) <= {axis} for e in positions)


def _at(body: Expr, axis: Axis, place: int) -> Expr:
    """The body at one place of the axis; what that decides is decided."""
    at = substitute(body, {axis: Index.const(place)})
    done: dict[int, Expr] = {}
    for e in walk(at):
        match e:
            case Map(name, args):
                made = tuple([done[id(a)] for a in args])
                done[id(e)] = e if all(x is y for x, y in zip(made, args, strict=True)) else fold.op(name, *made)
            case Position(index):
                done[id(e)] = position(index) if not index.terms else e
            case Reduce(kind, bound, inner):
                done[id(e)] = e if done[id(inner)] is inner else Reduce(kind, bound, done[id(inner)])
            case _:
                done[id(e)] = e
    return done[id(at)]
