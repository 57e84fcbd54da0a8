"""Reductions over short axes along which a choice is made: written out, element by element.

    sum_i x[2*j + i] * where(i < 1, low[j], high[j])     i in [0, 2)
    ->  x[2*j]*low[j] + x[2*j + 1]*high[j]

A value assembled from pieces by position is reduced as the reductions of its pieces. Where the pieces lie side by side
along a short axis, as codes in a byte do, no tile is of one piece alone: every program would compute each piece for all
positions and choose. Written out there is nothing to choose, and what the pieces have in common is computed once.

Reductions of something that a few elements are appended to or stand before, as an attention's sink, a column of ones:

    max_j where(j < n, s[j], z)                          j in [0, n + 1)
    ->  maximum(max_j s[j], z)                           j in [0, n)

The choice is gone from the loop, and what is appended is computed once. Where that holds reductions of its own (a class
token's scores), it stays in the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from prism.program import fold
from prism.program.build import position
from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Reduce, ReduceKind, walk
from prism.program.transform import rebuilt, substitute

LONGEST = 4
"""Of the axes that are written out; each element is a term of its own."""


def unrolled(expr: Expr) -> Expr:
    """The expression with reductions written out: over short axes that alone decide a choice, and appended elements."""

    def written(e: Expr) -> Expr:
        if not isinstance(e, Reduce):
            return e
        if _decides(e.axis, e.body):
            return _combined(e.kind, [_at(e.body, e.axis, n) for n in range(int(e.axis.extent))])
        ends = _ends(e.axis, e.body)
        if ends is None:
            return e
        first, last = ends
        rest = Axis(f"{e.axis.name}.{first}", last - first)
        inner = _decided(substitute(e.body, {e.axis: Index.axis(rest) + first}))
        few = [n for n in range(int(e.axis.extent)) if not first <= n < last]
        return _combined(e.kind, [Reduce(e.kind, rest, inner), *(_at(e.body, e.axis, n) for n in few)])

    return _decided(rebuilt([expr], written)[0])


def _combined(kind: ReduceKind, terms: Sequence[Expr]) -> Expr:
    return reduce(partial(fold.op, kind.op), terms)


def _ends(axis: Axis, body: Expr) -> tuple[int, int] | None:
    """The part of an axis besides a few elements that another operand of a choice is for; None where there are none.

    That operand holds no reduction, so that to write it out is next to nothing.
    """
    if not is_static(axis.extent):
        return None
    extent = int(axis.extent)
    for e in walk(body):
        match e:
            case Map("where", (Map("lt", (Position(index), Const(border))), below, above)) if index == Index.axis(axis):
                count = min(border, extent - border)
                few, first, last = (below, border, extent) if count == border else (above, 0, border)
                if not (0 < count <= LONGEST < extent - count) or border != int(border):
                    continue
                if not any(isinstance(x, Reduce) for x in walk(few)):
                    return int(first), int(last)
            case _:
                pass
    return None


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
    return _decided(substitute(body, {axis: Index.const(place)}))


def _decided(expr: Expr) -> Expr:
    """The expression with what is known of positions: numbers where they are, and comparisons that always hold."""
    done: dict[int, Expr] = {}
    for e in walk(expr):
        match e:
            case Map("lt", (Position(index), Const(border))) if index.terms and _always(index, border) is not None:
                done[id(e)] = Const(float(bool(_always(index, border))))
            case Map(name, args):
                made = tuple([done[id(a)] for a in args])
                done[id(e)] = e if all(x is y for x, y in zip(made, args, strict=True)) else fold.op(name, *made)
            case Position(index):
                done[id(e)] = position(index) if not index.terms else e
            case Reduce(kind, bound, inner):
                done[id(e)] = e if done[id(inner)] is inner else Reduce(kind, bound, done[id(inner)])
            case _:
                done[id(e)] = e
    return done[id(expr)]


def _always(index: Index, border: float) -> bool | None:
    """Whether a position is always below the border, or never; None where it depends."""
    ends = index.ends()
    if ends is None or not all(map(is_static, ends)):
        return None
    return True if int(ends[1]) < border else False if int(ends[0]) >= border else None
