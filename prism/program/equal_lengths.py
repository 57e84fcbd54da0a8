"""Reductions along one dimension that differ by a few places, over equally many: then one loop has all of them.

Total variation sums `|x[i + 1, j] - x[i, j]|` over i in [0, h - 1) and `|x[i, j + 1] - x[i, j]|` over j in [0, w - 1).
No loop is over both [h - 1, w] and [h, w - 1], so each sum would read x. As

    sum_h sum_w where(i < h - 1, |x[i + 1, j] - x[i, j]|, 0)   and   sum_h sum_w where(j < w - 1, ..., 0)

they are over the same places. What a mask hides is not read. `as_short` takes the masks away again: it is part of what
an sGraph denotes, so that nothing has to be proved of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Formula, Map, Position, Read, Reduce, ReduceKind, walk
from prism.program.transform import canonical, rebuilt, substitute

FEW = 16
"""One in so many places, at most, may be added to an axis: they are masked work."""
_Place: TypeAlias = tuple[str, int]
"""A tensor and one of its dimensions."""


def of_equal_lengths(formulas: Sequence[Formula]) -> tuple[Formula, ...]:
    """The formulas with reductions over equally many places, where more of them read a tensor alike for that."""
    exprs = [f.expr for f in formulas]
    found = dict.fromkeys(e for x in exprs for e in walk(x) if isinstance(e, Reduce))
    longest: dict[_Place, int] = {}
    for e in found:
        for place in _along(e):
            longest[place] = max(longest.get(place, 0), int(e.axis.extent))
    if _parts(found, longest) == _parts(found, {}):
        return tuple(formulas)

    def change(e: Expr) -> Expr:
        others = [longest[p] for p in _along(e)] if isinstance(e, Reduce) else []
        if not isinstance(e, Reduce) or not others:
            return e
        extent = _extended(int(e.axis.extent), others)
        if extent == e.axis.extent:
            return e
        axis = Axis(f"{e.axis.name}.longer", extent)
        place = Index.axis(axis)
        within = Map("lt", (Position(place), Const(float(e.axis.extent))))
        return Reduce(e.kind, axis, _masked(e.kind, within, substitute(e.body, {e.axis: place})))

    return tuple(
        replace(f, expr=e if e is f.expr else canonical(e))
        for f, e in zip(formulas, rebuilt(exprs, change), strict=True)
    )


def as_short(expr: Expr) -> Expr:
    """The expression, in canonical axes, with each reduction over the first places alone that its mask leaves."""

    def change(e: Expr) -> Expr:
        if not (isinstance(e, Reduce) and is_static(e.axis.extent)):
            return e
        body, last = _unmasked(e.kind, e.axis, e.body)
        if not 0 < last < int(e.axis.extent):
            return e
        axis = Axis(f"{e.axis.name}.{last}", last)
        return Reduce(e.kind, axis, substitute(body, {e.axis: Index.axis(axis)}))

    (found,) = rebuilt([expr], change)
    return expr if found is expr else canonical(found)


def _unmasked(kind: ReduceKind, axis: Axis, body: Expr) -> tuple[Expr, float]:
    """What is reduced without a mask of its first places along the axis, and how many these are."""
    match body:
        case Reduce(inner, own, rest) if inner is kind and own != axis:
            found, last = _unmasked(kind, axis, rest)
            return (Reduce(kind, own, found), last) if found is not rest else (body, last)
        case Map("where", (Map("lt", (Position(index), Const(end))), value, Const(rest))) if rest == kind.identity:
            if index == Index.axis(axis):
                return value, math.ceil(end)
            found, last = _unmasked(kind, axis, value)
            return (Map("where", (body.args[0], found, body.args[2])), last) if found is not value else (body, last)
    return body, math.inf


def _masked(kind: ReduceKind, within: Expr, body: Expr) -> Expr:
    """What is reduced, only within; reductions of the same kind stay around it, as they are one loop nest."""
    match body:
        case Reduce(inner, axis, rest) if inner is kind:
            return Reduce(kind, axis, _masked(kind, within, rest))
    return Map("where", (within, body, Const(kind.identity)))


def _along(e: Reduce) -> Iterator[_Place]:
    """The dimensions along which a reduction of known length goes place by place."""
    for r in walk(e.body) if is_static(e.axis.extent) else ():
        if isinstance(r, Read):
            yield from ((r.tensor, n) for n, i in enumerate(r.index) if follows(i) == e.axis)


def follows(index: Index) -> Axis | None:
    """The axis that an index follows place by place; None where it is another one."""
    return Index(index.terms).as_axis()


def _extended(extent: int, others: Iterable[int]) -> int:
    """The length of an axis of this length, of those along the same dimensions the longest that is near it."""
    return max((n for n in others if 0 <= n - extent <= n // FEW), default=extent)


def _parts(reductions: Iterable[Reduce], longest: Mapping[_Place, int]) -> int:
    """How many different parts of tensors loop nests go over, their axes as long as `longest` allows."""
    found: set[tuple[object, ...]] = set()
    for e in reductions:
        for r in walk(e.body) if not isinstance(e.body, Reduce) else ():
            if isinstance(r, Read):
                lengths: list[object] = []
                for n, i in enumerate(r.index):
                    axis = follows(i)
                    extent = None if axis is None else axis.extent
                    if isinstance(extent, int) and (r.tensor, n) in longest:
                        extent = _extended(extent, [longest[r.tensor, n]])
                    lengths.append(extent)
                found.add((r.tensor, *lengths))
    return len(found)
