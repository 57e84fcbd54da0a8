"""ONNX's Resize, and Upsample before it: along each dimension a weighted sum of a few elements of the operand.

Which ones, and by what weights, follows from the lengths alone, so that both are constants: places are looked up, or
are index arithmetic where they are regular, as where each element is repeated. The formulas of coordinates are those of
the operator's text, in exact fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from prism.frontend.onnx.dtypes import constant
from prism.frontend.onnx.graph import Graph, Node, OnnxValue
from prism.frontend.onnx.views import chosen
from prism.program.extents import Extent, is_static, mul
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.nodes import Const, DType, Expr, Read
from prism.program.views import axes_of, same_extent

HALF = Fraction(1, 2)
_ROUNDED = Fraction(1, 1 << 12)
"""Below this a length that scales give is taken for a whole number that was rounded."""


def _coordinate(mode: str, given: Fraction | None, old: int, new: int) -> Callable[[int], Fraction] | None:
    """Where an element of the result lies in the operand; None for a mode that has no translation.

    Args:
        mode: how coordinates correspond.
        given: the scale, of float32, in which runtimes then divide by it; None where lengths are given.
        old: the operand's length.
        new: the result's.
    """
    scale = given or Fraction(new, old)

    def over(place: Fraction) -> Fraction:
        return place / scale if given is None else Fraction(float(np.float32(place) / np.float32(given)))

    match mode:
        case "asymmetric":
            return lambda i: over(Fraction(i))
        case "half_pixel":
            return lambda i: over(i + HALF) - HALF
        case "pytorch_half_pixel":
            return lambda i: over(i + HALF) - HALF if new > 1 else Fraction(0)
        case "half_pixel_symmetric":
            # Where the length is not a whole number of elements, what is cut off is so on both sides.
            offset = Fraction(old, 2) * (1 - new / (scale * old))
            return lambda i: offset + over(i + HALF) - HALF
        case "align_corners":
            return lambda i: i * Fraction(old - 1, new - 1) if new > 1 else Fraction(0)
    return None


_NEAREST: Mapping[str, Callable[[Fraction], int]] = MappingProxyType(
    {
        "round_prefer_floor": lambda x: math.ceil(x - HALF),
        "round_prefer_ceil": lambda x: math.floor(x + HALF),
        "floor": math.floor,
        "ceil": math.ceil,
    }
)

_CUBIC_REACH = 2
"""Elements to each side that a cubic goes through."""


def _cubic(distance: Fraction, a: Fraction) -> Fraction:
    """The weight of an element at a distance below 2, by Keys' cubic convolution."""
    d = abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a


def _taps(node: Node, at: Sequence[Fraction], old: int) -> list[tuple[list[int], list[Fraction]]]:
    """Of each of the elements that are added up: its place, and its weight, for every element of the result."""
    mode = str(node.attributes["mode"])
    if mode == "nearest":
        nearest = _NEAREST[str(node.attributes.get("nearest_mode", "floor"))]
        return [([min(max(nearest(x), 0), old - 1) for x in at], [Fraction(1)] * len(at))]
    below = [math.floor(x) for x in at]
    reach = 1 if mode == "linear" else _CUBIC_REACH
    offsets = range(1 - reach, 1 + reach)
    a = Fraction(node.number("cubic_coeff_a"))

    def weight(distance: Fraction) -> Fraction:
        return 1 - abs(distance) if mode == "linear" else _cubic(distance, a)

    weights = [[weight(x - (b + o)) for x, b in zip(at, below, strict=True)] for o in offsets]
    if mode == "cubic" and node.flag("exclude_outside"):
        for n, b in enumerate(below):
            inside = [0 <= b + o < old for o in offsets]
            total = sum((w[n] for w, i in zip(weights, inside, strict=True) if i), Fraction(0))
            for w, i in zip(weights, inside, strict=True):
                w[n] = w[n] / total if i else Fraction(0)
    return [([min(max(b + o, 0), old - 1) for b in below], w) for o, w in zip(offsets, weights, strict=True)]


def _resize(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x = node.input(0)
    if node.version >= 11:
        node.optional(1)  # the region that tf_crop_and_resize, which has no translation, looks at
    how = str(node.attributes.get("coordinate_transformation_mode", "asymmetric"))
    if str(node.attributes["mode"]) not in ("nearest", "linear", "cubic"):
        raise node.unsupported(f"the mode {node.attributes['mode']} is not known")
    if node.flag("antialias"):
        raise node.unsupported("Resize with antialias has no translation", fix="export it without")
    if str(node.attributes.get("keep_aspect_ratio_policy", "stretch")) != "stretch":
        raise node.unsupported("Resize that keeps the aspect ratio has no translation", fix="give the sizes themselves")
    for name in ("extrapolation_value", "nearest_mode", "cubic_coeff_a", "exclude_outside"):
        node.attributes.get(name)  # of other modes than the one that is meant
    lengths = _lengths(node, x)
    shape = [lengths[d][0] if d in lengths else e for d, e in enumerate(x.shape)]
    value = x
    for dimension, (length, scale) in lengths.items():
        old = value.shape[dimension]
        if same_extent(length, old) and scale in (None, 1):
            continue
        if not is_static(old) or not is_static(length):
            raise node.unsupported(
                f"a dimension of {old} elements that becomes one of {length} has no translation",
                why="which elements are added up depends on its length",
                fix="export with that dimension fixed",
                results=[(shape, x.dtype)],
            )
        if node.version < 11 and node.attributes["mode"] == "nearest" and scale is not None and scale.denominator != 1:
            raise node.unsupported(
                f"version {node.version} of {node.op} by {float(scale):g} has no translation",
                why="which element is the nearest was not said then",
                fix="convert the model with onnx.version_converter or export it again",
            )
        before, after = int(old), int(length)
        if before == 0 or after == 0:
            raise node.shape_error(f"a dimension of {before} elements becomes one of {after}")
        if node.attributes["mode"] == "cubic" and scale is not None and scale.numerator & (scale.numerator - 1):
            raise node.unsupported(
                f"a cubic resize by {float(scale):g} has no translation",
                why="its weights depend on how coordinates are rounded, which runtimes do in float32",
                fix="export with sizes in place of scales",
            )
        if how == "align_corners" and scale is not None and abs(scale * before - after) > _ROUNDED:
            raise node.unsupported(
                f"the corners of a dimension of {float(scale * before):g} elements have no translation",
                why="runtimes take its length rounded down, or as it is",
                fix="export with sizes in place of scales",
            )
        coordinate = _coordinate(how, scale, before, after)
        if coordinate is None:
            raise node.unsupported(f"the coordinates {how} have no translation", fix="export with half_pixel")
        taps = _taps(node, [coordinate(i) for i in range(after)], before)
        value = _along(graph, node, value, dimension, after, taps)
    if value is x:
        axes = axes_of(x.shape)
        value = graph.define(node, axes, graph.at(x, [Index.axis(a) for a in axes]), x.dtype, view=True)
    return [value]


def _lengths(node: Node, x: OnnxValue) -> dict[int, tuple[Extent, Fraction | None]]:
    """By dimension, how many elements the result has, and the scale where that is what is given."""
    given = [int(a) for a in node.attributes.get("axes") or range(x.rank)]
    dimensions = [node.wrap(a, x.rank) for a in given]
    if node.version < 11:
        scales = node.attributes.get("scales", node.optional(1))
        scales, sizes = scales if isinstance(scales, OnnxValue) else _numbers(scales), None
    else:
        scales, sizes = node.optional(2), node.optional(3)
    if sizes is not None and sizes.shape != (0,):
        known = node.elements(3, "the sizes of a Resize").ravel().tolist()
        if len(known) != len(dimensions):
            raise node.shape_error(f"{len(known)} sizes for {len(dimensions)} dimensions")
        return {d: (e, None) for d, e in zip(dimensions, known, strict=True)}
    if scales is None or scales.array is None:
        raise node.unsupported(
            "the scales of a Resize are computed from data", fix="export the model with fixed scales"
        )
    if scales.array.size != len(dimensions):
        raise node.shape_error(f"{scales.array.size} scales for {len(dimensions)} dimensions")
    found: dict[int, tuple[Extent, Fraction | None]] = {}
    for d, s in zip(dimensions, scales.array.ravel(), strict=True):
        extent, scale = x.shape[d], Fraction(float(s))
        if scale.denominator == 1:
            found[d] = (mul(extent, int(scale)), scale)
            continue
        if not is_static(extent):
            raise node.unsupported(f"a dimension of {extent} elements times {float(scale):g} has no translation")
        length = math.floor(int(extent) * scale)
        if length != int(np.float32(s) * np.float32(int(extent))):
            raise node.unsupported(
                f"how many elements {extent} times {float(scale):g} are depends on how it is rounded",
                fix="export with sizes in place of scales",
            )
        found[d] = (length, scale)
    return found


def _numbers(given: Sequence[float] | None) -> OnnxValue | None:
    """Scales that an attribute has."""
    return None if given is None else constant(np.array(given, np.float32), DType.FLOAT32, "scales")


def _along(
    graph: Graph,
    node: Node,
    x: OnnxValue,
    dimension: int,
    length: int,
    taps: Sequence[tuple[Sequence[int], Sequence[Fraction]]],
) -> OnnxValue:
    """The weighted sum along one dimension."""
    axes = axes_of([length if d == dimension else e for d, e in enumerate(x.shape)])

    def element(places: Sequence[int]) -> Expr:
        held = constant(np.array(places, np.int64), DType.INT64, f"{node.outputs[0]}_places")
        return chosen(graph, node, x, dimension, held, axes)

    def factor(weights: Sequence[Fraction], axis: Axis) -> Expr:
        if len(set(weights)) == 1:
            return Const(float(weights[0]))
        held = constant(np.array(weights, np.float32), DType.FLOAT32, f"{node.outputs[0]}_weights")
        return graph.at(held, [Index.axis(axis)])

    total: Expr | None = None
    for places, weights in taps:
        part = op("mul", factor(weights, axes[dimension]), element(places)) if len(taps) > 1 else element(places)
        total = part if total is None else op("add", total, part)
    assert total is not None
    return graph.define(node, axes, total, x.dtype, view=isinstance(total, Read))


TRANSLATORS: Mapping[str, Callable[[Graph, Node], Sequence[OnnxValue]]] = MappingProxyType(
    {"Resize": _resize, "Upsample": _resize}
)
