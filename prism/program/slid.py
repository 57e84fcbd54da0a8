"""Sums along what a window slides over, where each of its taps sees all places.

    sum_i where(low <= i + t <= high, f(i + t), 0) = sum_j f(j),  j from low to high

for a t free of i, where i + t is each of these places once, whatever t is. So is the mean of a convolution whose image
is padded by as many places as the window has besides one, and that of a transposed convolution. What is summed then
does not hang on the tap any more, and is summed apart from the taps.
"""

from __future__ import annotations

from dataclasses import replace

from prism.program.build import op, size
from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Reduce, ReduceKind, free_axes, walk
from prism.program.ops import COMPARISONS
from prism.program.refinement import bounds, margin
from prism.program.transform import flat, indices, substitute


def along_places(e: Reduce) -> Expr | None:
    """The sum along the places that are seen, within what else is summed; None where it is no such sum."""
    return _within(e.axis, e.body) if e.kind is ReduceKind.SUM and is_static(e.axis.extent) else None


def _within(axis: Axis, body: Expr) -> Expr | None:
    """The sum of the body along the axis, put where the body hangs on the axis."""
    match body:
        case Reduce(ReduceKind.SUM, bound, inner) if bound != axis:
            found = _within(axis, inner)
            return None if found is None else replace(body, body=found)
        case Map("mul", (one, other)):
            if axis not in free_axes(other):
                found = _within(axis, one)
                return None if found is None else op("mul", found, other)
            found = None if axis in free_axes(one) else _within(axis, other)
            return None if found is None else op("mul", one, found)
        case Map("add", terms) if any(axis in free_axes(t) for t in terms):
            made = [_within(axis, t) if axis in free_axes(t) else op("mul", size(axis.extent), t) for t in terms]
            every = [m for m in made if m is not None]
            return op("add", *every) if len(every) == len(terms) else None
    return _of_all(axis, body)


def _of_all(axis: Axis, masked: Expr) -> Expr | None:
    """The sum of what is masked to places of a window along the axis, where all of them are seen."""
    elsewhere: list[Expr] = []
    shifts: set[Index] = set()
    low: list[int] = []
    high: list[int] = []
    while isinstance(masked, Map) and masked.op == "where" and Const(0.0) in masked.args[1:]:
        predicate, kept, other = masked.args
        holds = other == Const(0.0)
        for p in flat(predicate, "and") if holds else [predicate]:
            if axis not in free_axes(p):
                elsewhere.append(p if holds else op("not", p))
                continue
            # An index that is at least 0 where it is kept.
            least = margin(p) if isinstance(p, Map) and p.op in COMPARISONS and p.op != "eq" else None
            if least is None or not is_static(least.offset):
                return None
            if not holds:
                least = least.scaled(-1) + -1
            sign = dict(least.terms).get(axis)
            if sign not in (1, -1):
                return None
            shifts.add(_beside(axis, least.scaled(sign)))
            if sign == 1:
                low.append(-int(least.offset))
            else:
                high.append(int(least.offset))
        masked = kept if holds else other
    if not (low and high and len(shifts) == 1):
        return None
    (shift,) = shifts
    places = [i for e in walk(masked) for i in indices(e) if axis in i.axes()]
    if not shift.terms or not places or any(_beside(axis, i) != shift for i in places):
        return None
    first, last, ends = max(low), min(high), bounds(shift)
    # For every shift the axis has a place for the first and for the last that is seen.
    if ends is None or last <= first or first < ends[1] or last - ends[0] >= int(axis.extent):
        return None
    seen = Axis(f"{axis.name}.seen", last - first + 1)
    if seen in free_axes(masked):
        return None
    found: Expr = Reduce(ReduceKind.SUM, seen, substitute(masked, {axis: Index.axis(seen) + shift.scaled(-1) + first}))
    for p in elsewhere:
        found = op("where", p, found, Const(0.0))
    return found


def _beside(axis: Axis, index: Index) -> Index:
    """What an index has besides the axis once, up to a number."""
    return Index((index + Index.axis(axis).scaled(-1)).terms)
