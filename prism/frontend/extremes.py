"""The place of the largest or the smallest element, under both readers, as sums and extremes say it.

The first place where x is the largest is min_k where(x[k] == max x, k, n): no node of its own, so that rules, kernels
and the interpreter know it already. An element that is not a number counts as the extreme, as it does in torch and in
onnx's reference runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prism.program import build
from prism.program.extents import Extent, mul
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, ReduceKind
from prism.program.views import product


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
    place = build.position(_counted(bound))
    if last:
        return build.reduce(ReduceKind.MAX, tuple(bound), op("where", chosen, place, Const(-1.0)))
    return build.reduce(ReduceKind.MIN, tuple(bound), op("where", chosen, place, build.size(count)))


def _counted(axes: Sequence[Axis]) -> Index:
    """The place of an element among those of all axes, row by row."""
    place = Index.const(0)
    stride: Extent = 1
    for a in reversed(axes):
        place = place + Index.axis(a).scaled(stride)
        stride = mul(stride, a.extent)
    return place
