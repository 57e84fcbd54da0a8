"""Elements in their order, under both readers: sorts, the k largest, medians, as sums say them.

An element's rank is how many come before it: sum_j [x[j] before x[i]], where of two that are equal the first comes
first. The element of rank k is sum_r where(rank[r] == k, x[r], 0), as exactly one has it: no node of its own, so that
rules, kernels and the interpreter know it already. It takes n * n comparisons a row, which is why long rows are left.
Where it is not said which of equal elements comes first, that is an assumption, TIES_ASSUMED. What is not a number
counts as larger than all numbers, as it does in torch and in onnx's reference runtime.

The first place where x is the largest is min_k where(x[k] == max x, k, n); what is not a number counts as the extreme.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prism.program import build
from prism.program.extents import Extent, is_static, product
from prism.program.fold import op
from prism.program.index import Axis, row_major
from prism.program.nodes import Const, Expr, ReduceKind

TIES_ASSUMED = "of equal elements any may come first"
"""The assumption of places in an order, where it is not said which of equal elements comes first."""
UNSORTED_ASSUMED = "the k largest, or smallest, elements that need not be sorted may come sorted"
"""The assumption of those that torch leaves in no order."""

MOST = 128
"""The longest row that is ordered: a sort of n * log n steps is faster than n * n comparisons of a longer one."""
TOO_LONG = f"rows of more than {MOST} elements are faster sorted, and a sort is no formula of sums"


def short(extent: Extent) -> bool:
    """Whether a row is one that is ordered."""
    return is_static(extent) and 0 < int(extent) <= MOST


def rank(element: Callable[[Axis], Expr], own: Axis, *, largest: bool, floats: bool) -> Expr:
    """How many elements come before the one at an axis.

    The element is under an axis in the place of the dimension, `own` is the axis of the one that is ranked. `largest`
    is whether large ones come first, `floats` whether elements may be something else than numbers.
    """
    other = Axis(f"{own.name}_o", own.extent)
    here, there = element(own), element(other)
    larger, equal = op("lt", here, there), op("eq", here, there)
    smaller = op("lt", there, here)
    if floats:
        nan_here, nan_there = op("isnan", here), op("isnan", there)
        larger = op("or", larger, op("and", nan_there, op("not", nan_here)))
        smaller = op("or", smaller, op("and", nan_here, op("not", nan_there)))
        equal = op("or", equal, op("and", nan_here, nan_there))
    first = op("lt", build.position(other), build.position(own))
    before = op("or", larger if largest else smaller, op("and", equal, first))
    return build.reduce(ReduceKind.SUM, other, op("where", before, Const(1.0), Const(0.0)))


def of_rank(value: Callable[[Axis], Expr], rank: Callable[[Axis], Expr], wanted: Expr, bound: Axis) -> Expr:
    """What belongs to the element of a rank.

    The value that belongs to an element, and its rank, are under an axis in the place of the dimension; `wanted` is the
    rank that is meant, `bound` the axis that is searched.
    """
    chosen = op("where", op("eq", rank(bound), wanted), value(bound), Const(0.0))
    return build.reduce(ReduceKind.SUM, bound, chosen)


def place_of_extreme(
    kind: ReduceKind,
    element: Callable[[Sequence[Axis]], Expr],
    bound: Sequence[Axis],
    *,
    last: bool = False,
    floats: bool = True,
) -> Expr:
    """Which element is the extreme, counted through the bound axes, the last of them fastest.

    Args:
        kind: MAX or MIN.
        element: what is compared, under axes in the place of the bound ones.
        bound: the axes that are searched; none of them is empty.
        last: whether the last of several that are equal is meant, rather than the first.
        floats: whether elements may be something else than numbers.
    """
    count = product([a.extent for a in bound])
    if count == 1:
        return Const(0.0)
    inner = tuple(Axis(f"{a.name}_x", a.extent) for a in bound)
    here = element(bound)
    chosen: Expr = op("eq", here, build.reduce(kind, inner, element(inner)))
    if floats:
        chosen = op("or", chosen, op("isnan", here))
    place = build.position(row_major(bound))
    if last:
        return build.reduce(ReduceKind.MAX, tuple(bound), op("where", chosen, place, Const(-1.0)))
    return build.reduce(ReduceKind.MIN, tuple(bound), op("where", chosen, place, build.size(count)))
