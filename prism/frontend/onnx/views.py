"""ONNX operators that only move elements: reshapes, transposes, slices, joins, lookups at known places, triangles.

Each is index arithmetic; all but the joins and the triangles are views, which need no kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import sympy

from prism.frontend.onnx.dtypes import dtype_of
from prism.frontend.onnx.graph import Graph, Node, OnnxValue, Translator, known_elements, single, static_shape
from prism.program import build, fold
from prism.program.extents import Extent, add, at_most, cdiv, exact_quotient, is_static, mul, normal, product
from prism.program.fold import as_index, op
from prism.program.index import Axis, Index
from prism.program.lookup import looked_up
from prism.program.nodes import Const, DType, Expr, Read
from prism.program.views import (
    MAX_CHOICES,
    Elements,
    Shape,
    axes_of,
    broadcast_shapes,
    compare_extents,
    places_index,
    progressions,
    reshape_index,
    resolve_shape,
    same_extent,
    shape_text,
)


def _reshaped(graph: Graph, node: Node, value: OnnxValue, shape: Sequence[Extent]) -> OnnxValue:
    target = resolve_shape(value.shape, shape, node.where)
    return graph.view(node, value, target, lambda axes: reshape_index(value.shape, axes, node.where))


def _identity(graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    return graph.view(node, x, x.shape, lambda axes: [Index.axis(a) for a in axes])


def _dropout(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    training = node.optional(2)
    if training is not None:
        known = known_elements(training)
        if known is None or known.ravel()[0] != 0:
            raise node.unsupported(
                "Dropout in training mode is not supported", fix="export the model in inference mode"
            )
    node.optional(1)  # the ratio: of no matter in inference mode
    kept = _identity(graph, node)
    if not node.wanted(1):
        return [kept]
    # Everything is kept; what type the mask has changed twice.
    dtype = DType.BOOL if node.version >= 10 else kept.dtype
    return [kept, graph.define(node, axes_of(kept.shape), Const(1.0), dtype, output=1)]


def _transpose(graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    order = [int(d) for d in node.attributes.get("perm", range(x.rank - 1, -1, -1))]
    if sorted(order) != list(range(x.rank)):
        raise node.shape_error(f"{order} does not permute {x.rank} dimensions")

    def index(axes: tuple[Axis, ...]) -> list[Index]:
        return [Index.axis(axes[order.index(d)]) for d in range(x.rank)]

    return graph.view(node, x, tuple(x.shape[d] for d in order), index)


def _zeros_copy(graph: Graph, x: OnnxValue, requested: Sequence[Extent]) -> Extent | None:
    """See to it that sizes of a target, which may be 0 and copy a dimension then, are 0 in what comes out.

    One is that is so many times the dimension at its place. So is a lone one where the operand has as many elements as
    are asked for: it copies 0, or the numbers of elements differ.

    Returns:
        A size of which that cannot be said; None where it can be of all.
    """

    def some(e: Extent) -> bool:
        return is_static(e) or graph.require(add(e, -1))

    def copied(d: int, e: Extent) -> bool:
        quotient = exact_quotient(e, x.shape[d]) if d < x.rank and x.shape[d] != 0 else None
        return quotient is not None and at_most(1, quotient)

    left = [d for d, e in enumerate(requested) if not copied(d, e) and not some(e)]
    if not left:
        return None
    as_many = not {0, -1}.intersection(requested) and same_extent(product(x.shape), product(requested))
    lone = all(some(e) for d, e in enumerate(requested) if d != left[0])
    return None if as_many and lone else requested[left[0]]


def _reshape(graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    requested: list[Extent] = node.elements(1, "the target shape").ravel().tolist()
    if not node.flag("allowzero"):
        for d, e in enumerate(requested):
            if e == 0 and d >= x.rank:
                raise node.shape_error(f"dimension {d} of the target shape copies one that the operand does not have")
        unclear = _zeros_copy(graph, x, requested)
        if unclear is not None:
            raise node.unsupported(
                f"a target of {unclear} places may have none", why="0 copies a dimension", fix="export with allowzero=1"
            )
        requested = [x.shape[d] if e == 0 else e for d, e in enumerate(requested)]
    return _reshaped(graph, node, x, requested)


def _flatten(graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    axis = node.integer("axis")
    axis = x.rank if axis == x.rank else node.wrap(axis, x.rank)
    outer: Extent = 1
    inner: Extent = 1
    for d, e in enumerate(x.shape):
        outer, inner = (mul(outer, e), inner) if d < axis else (outer, mul(inner, e))
    return _reshaped(graph, node, x, (outer, inner))


def _squeeze(graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    axes = node.numbers("axes", 1, "the list of axes")
    if axes is None and static_shape(x.shape) is None:
        raise node.unsupported(
            "a Squeeze without axes of a symbolic shape has no translation",
            why="a dimension is dropped where it is 1, so that the rank depends on it",
            fix="name the axes",
        )
    dropped = [d for d, e in enumerate(x.shape) if e == 1] if axes is None else [node.wrap(a, x.rank) for a in axes]
    for d in dropped:
        if x.shape[d] != 1:
            raise node.shape_error(f"dimension {d} of extent {x.shape[d]} cannot be squeezed")
    kept = [d for d in range(x.rank) if d not in dropped]

    def index(result: tuple[Axis, ...]) -> list[Index]:
        return [Index.axis(result[kept.index(d)]) if d in kept else Index.const(0) for d in range(x.rank)]

    return graph.view(node, x, tuple(x.shape[d] for d in kept), index)


def _unsqueeze(graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    given = node.numbers("axes", 1, "the list of axes") or []
    rank = x.rank + len(given)
    new = {node.wrap(a, rank) for a in given}
    if len(new) != len(given):
        raise node.shape_error(f"axes {given} repeat one")
    kept = [d for d in range(rank) if d not in new]
    old = iter(x.shape)
    shape = tuple(1 if d in new else next(old) for d in range(rank))
    return graph.view(node, x, shape, lambda axes: [Index.axis(axes[d]) for d in kept])


def _expand(graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    shape = broadcast_shapes(x.shape, node.elements(1, "the target shape").ravel().tolist(), where=node.where)
    axes = axes_of(shape)
    return graph.define(node, axes, graph.read(x, axes), x.dtype, view=True)


def _tile(graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    repeats = node.elements(1, "the repeats").ravel().tolist()
    if len(repeats) != x.rank:
        raise node.shape_error(f"{len(repeats)} repeats for {x.rank} dimensions")

    def index(axes: tuple[Axis, ...]) -> list[Index]:
        return [
            Index.const(0) if e == 1 else Index.axis(a) if r == 1 else Index.axis(a).mod(e)
            for a, e, r in zip(axes, x.shape, repeats, strict=True)
        ]

    return graph.view(node, x, tuple(mul(e, r) for e, r in zip(x.shape, repeats, strict=True)), index)


def _slice(graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    starts, ends = (
        [] if found is None else found.ravel().tolist()
        for found in (
            node.listed("starts", 1, "the start of a slice"),
            node.listed("ends", 2, "the end of a slice"),
        )
    )
    given = node.numbers("axes", 3, "the list of axes")
    named = list(range(len(starts))) if given is None else given
    steps = node.integers(4, "the step of a slice") if node.optional(4) is not None else [1] * len(starts)
    if not len(starts) == len(ends) == len(named) == len(steps):
        raise node.shape_error("starts, ends, axes and steps differ in length")
    shape = list(x.shape)
    cuts: dict[int, tuple[Extent, int]] = {}
    for axis, start, end, step in zip(named, starts, ends, steps, strict=True):
        d = node.wrap(axis, x.rank)
        first, shape[d] = _cut(graph, node, x.shape[d], start, end, step)
        cuts[d] = (first, step)

    def index(axes: tuple[Axis, ...]) -> list[Index]:
        result = []
        for d, a in enumerate(axes):
            first, step = cuts.get(d, (0, 1))
            result.append(Index.axis(a).scaled(step) + Index.const(first))
        return result

    return graph.view(node, x, tuple(shape), index)


def _cut(graph: Graph, node: Node, extent: Extent, start: Extent, end: Extent, step: int) -> tuple[Extent, Extent]:
    """(first element, number of elements) of a slice of one dimension."""
    if step == 0:
        raise node.shape_error("the step of a slice is 0")
    if step < 0 and isinstance(end, int) and end >= _END:
        raise node.unsupported(
            "a backward slice that ends beyond the dimension has no translation",
            why="it is empty by the operator's text, and all there is to runtimes",
            fix="let it end at the least number of the type",
        )
    if step < 0 and isinstance(extent, int) and isinstance(start, int) and start < -extent:
        raise node.unsupported(
            "a backward slice that starts before the dimension has no translation",
            why="it starts at the first element by the operator's text, and is empty to onnx's own runtime",
            fix="let it start within the dimension",
        )
    if isinstance(extent, int) and isinstance(start, int) and isinstance(end, int):
        below = step < 0 and end < -extent
        chosen = range(extent)[slice(start, None if below else end, step)]
        return chosen.start, len(chosen)
    if step == -1 and start == -1 and isinstance(end, int) and end <= -_END:
        return add(extent, -1), extent
    if step < 1:
        raise node.unsupported("a backward slice of a symbolic dimension has no translation")
    first, last = (_bound(graph, node, extent, e) for e in (start, end))
    length = add(last, mul(-1, first))
    if not graph.require(length):
        raise node.unsupported(
            f"the slice {start}:{end} of a dimension of extent {extent} may be empty",
            why="its length is not known to be positive",
            fix="export with that dimension fixed",
        )
    return first, normal(cdiv(length, step))


_END = 2**31 - 1
"""From here on a bound of a slice means the dimension's end, and below its negative the beginning."""


def _bound(graph: Graph, node: Node, extent: Extent, bound: Extent) -> Extent:
    """A bound of a slice wrapped and clamped to the dimension."""
    if isinstance(bound, int) and bound >= _END:
        return extent
    if isinstance(bound, int) and bound <= -_END:
        return 0
    if compare_extents("lt", bound, 0):
        bound = add(bound, extent)
    if compare_extents("le", bound, extent) and graph.require(bound):
        return bound
    if compare_extents("le", extent, bound):
        return extent
    if isinstance(bound, sympy.Symbol) and isinstance(extent, int):
        # A longer slice would be cut short and no longer fit what it meets: the model means bound <= extent.
        graph.limit(bound.name, extent)
        return bound
    raise node.unsupported(
        f"the bound {bound} of a slice is not known to lie inside a dimension of extent {extent}",
        fix="export with that dimension fixed",
    )


def _split(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x = node.input(0)
    axis = node.axis("axis", x.rank)
    extent = x.shape[axis]
    given = node.listed("split", 1, "the sizes of a split")
    if given is not None:
        sizes = given.ravel().tolist()
    else:
        parts = int(node.attributes.get("num_outputs", len(node.outputs)))
        if parts != len(node.outputs):
            raise node.shape_error(f"{parts} parts are asked for and the node has {len(node.outputs)} outputs")
        sizes = _even_parts(node, extent, parts)
    total: Extent = 0
    for s in sizes:
        total = add(total, s)
    if len(sizes) != len(node.outputs):
        raise node.shape_error(f"{len(sizes)} parts are asked for and the node has {len(node.outputs)} outputs")
    node.agree([(total, extent)], f"parts {sizes} do not make up a dimension of extent {extent}")
    results, start = [], 0
    for n, s in enumerate(sizes):
        shape = tuple(s if d == axis else e for d, e in enumerate(x.shape))
        results.append(graph.view(node, x, shape, lambda axes, at=start: _shifted(axes, axis, at), output=n))  # type: ignore[misc]
        start = add(start, s)
    return results


def _even_parts(node: Node, extent: Extent, parts: int) -> list[Extent]:
    if parts < 1:
        raise node.shape_error(f"a dimension of extent {extent} cannot be split into {parts} parts")
    if isinstance(extent, int):
        each = -(-extent // parts)
        return [min(each, extent - each * n) for n in range(parts)]
    part = exact_quotient(extent, parts)
    if part is None:
        raise node.unsupported(f"a dimension of extent {extent} is not known to split into {parts} equal parts")
    return [part] * parts


def _shifted(axes: Sequence[Axis], dimension: int, start: Extent) -> list[Index]:
    return [Index.axis(a) + Index.const(start if d == dimension else 0) for d, a in enumerate(axes)]


def _concat(graph: Graph, node: Node) -> OnnxValue:
    parts = [node.input(place) for place in range(len(node.inputs))]
    rank = parts[0].rank
    axis = node.axis("axis", rank)
    total: Extent = 0
    starts: list[Extent] = []
    for part in parts:
        what = f"shapes {shape_text(parts[0].shape)} and {shape_text(part.shape)} cannot be joined along axis {axis}"
        if part.rank != rank:
            raise node.shape_error(what)
        beside = zip(part.shape, parts[0].shape, strict=True)
        node.agree((pair for d, pair in enumerate(beside) if d != axis), what)
        starts.append(total)
        total = add(total, part.shape[axis])
    axes = axes_of([total if d == axis else e for d, e in enumerate(parts[0].shape)])
    kept = [(p, s) for p, s in zip(parts, starts, strict=True) if p.shape[axis] != 0] or [(parts[0], 0)]

    def element(part: OnnxValue, start: Extent) -> Expr:
        return graph.at(part, _shifted(axes, axis, mul(-1, start)))

    def choose(place: int, before: Expr, after: Expr) -> Expr:
        inside = op("lt", build.position(Index.axis(axes[axis])), build.size(kept[place][1]))
        return op("where", inside, before, after)

    expr = build.balanced_select(len(kept), lambda place: element(*kept[place]), choose)
    return graph.define(node, axes, expr, parts[0].dtype, view=len(kept) == 1)


def _gather(graph: Graph, node: Node) -> OnnxValue:
    x, places = node.input(0), node.input(1)
    axis = node.axis("axis", x.rank)
    axes = axes_of((*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))
    found = chosen(graph, node, x, axis, places, axes)
    return graph.define(node, axes, found, x.dtype, view=isinstance(found, Read))


def chosen(graph: Graph, node: Node, x: OnnxValue, axis: int, places: OnnxValue, axes: Sequence[Axis]) -> Expr:
    """The element at a place that another tensor holds, along one dimension.

    `x` is looked up in; the places are integers, whose dimensions the result has in the place of that one.
    """
    over = axes[axis : axis + places.rank]

    def element(at: Index) -> Expr:
        before, after = axes[:axis], axes[axis + places.rank :]
        return graph.at(x, [*map(Index.axis, before), at, *map(Index.axis, after)])

    known = known_elements(places)
    wrapped = None if known is None else _wrapped(graph, node, known, x.shape[axis])
    indices = [*map(Index.axis, over)]
    regular = _positions(graph, x.shape[axis], places, over) if wrapped is None else places_index(wrapped, indices)
    if regular is not None:
        return element(regular)
    if wrapped is not None:
        pieces = progressions(wrapped, over)
        if pieces is not None:
            along, steps = pieces
            return fold.in_a_row([element(at) for _, at in steps], [start for start, _ in steps], along)
        if wrapped.size <= MAX_CHOICES:
            return fold.chosen(wrapped.shape, indices, lambda at: element(Index.const(wrapped[at])))
    bound = axes_of(x.shape, "r")[axis]
    if bound.extent == 1:
        return element(Index.const(0))
    place = graph.place(graph.read(places, over), bound)
    return looked_up(bound, place, element(Index.axis(bound)))


def _positions(graph: Graph, extent: Extent, places: OnnxValue, axes: Sequence[Axis]) -> Index | None:
    """The places as an index of their own axes, when they are positions."""
    if places.formula is None:
        return None
    index = as_index(graph.read(places, axes))
    low, top = (None, None) if index is None else (index.lower(), index.upper())
    if index is None or low is None or top is None or compare_extents("le", 0, low) is not True:
        return None
    if compare_extents("lt", top, extent) is not True:
        match index.terms:
            case ((Axis(extent=sympy.Symbol() as length), 1),) if isinstance(extent, int) and isinstance(
                index.offset, int
            ):
                graph.limit(length.name, extent - index.offset)
            case _:
                return None
    return index


def _wrapped(graph: Graph, node: Node, places: Elements, extent: Extent) -> Elements:
    result = np.empty(places.shape, dtype=object)
    for at in np.ndindex(places.shape):
        place = places[at]
        result[at] = found = add(place, extent) if compare_extents("lt", place, 0) else place
        if compare_extents("lt", found, 0) or compare_extents("le", extent, found):
            raise node.shape_error(f"index {place} is out of range for a dimension of extent {extent}")
        if not graph.require(found) or not graph.require(add(extent, mul(-1, add(found, 1)))):
            raise node.unsupported(
                f"the index {place} is not known to lie inside a dimension of extent {extent}",
                fix="export with that dimension fixed",
            )
    return result


def _blocks(node: Node, x: OnnxValue) -> int:
    block = node.integer("blocksize")
    if x.rank != 4 or block < 1:
        raise node.shape_error(f"blocks of {block} by {block} in {x.rank} dimensions")
    return block


def _depth_to_space(graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    block = _blocks(node, x)
    mode = str(node.attributes.get("mode", "DCR"))
    channels = exact_quotient(x.shape[1], block * block)
    if channels is None or mode not in ("DCR", "CRD"):
        raise node.shape_error(f"{x.shape[1]} channels in mode {mode} do not make up blocks of {block} by {block}")

    def index(axes: tuple[Axis, ...]) -> list[Index]:
        batch, channel, row, column = map(Index.axis, axes)
        inner = row.mod(block).scaled(block) + column.mod(block)
        source = inner.scaled(channels) + channel if mode == "DCR" else channel.scaled(block * block) + inner
        return [batch, source, row.floordiv(block), column.floordiv(block)]

    shape = (x.shape[0], channels, mul(x.shape[2], block), mul(x.shape[3], block))
    return graph.view(node, x, shape, index)


def _space_to_depth(graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    block = _blocks(node, x)
    mode = str(node.attributes.get("mode", "DCR"))
    high, wide = (exact_quotient(e, block) for e in x.shape[2:])
    channels = x.shape[1]
    if high is None or wide is None or mode not in ("DCR", "CRD"):
        raise node.shape_error(f"an image of {x.shape[2]} by {x.shape[3]} in mode {mode} has no blocks of {block}")

    def index(axes: tuple[Axis, ...]) -> list[Index]:
        batch, depth, row, column = map(Index.axis, axes)
        inner = depth.floordiv(channels) if mode == "DCR" else depth.mod(block * block)
        source = depth.mod(channels) if mode == "DCR" else depth.floordiv(block * block)
        rows, columns = inner.floordiv(block), inner.mod(block)
        return [batch, source, row.scaled(block) + rows, column.scaled(block) + columns]

    return graph.view(node, x, (x.shape[0], mul(channels, block * block), high, wide), index)


def _trilu(graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    if x.rank < 2:
        raise node.shape_error("Trilu needs two dimensions")
    shift = node.elements(1, "the diagonal").ravel()[0] if node.optional(1) is not None else 0
    axes = axes_of(x.shape)
    row = build.position(Index.axis(axes[-2]) + Index.const(shift))
    column = build.position(Index.axis(axes[-1]))
    inside = op("le", row, column) if node.flag("upper") else op("le", column, row)
    uniform = _uniform(x)
    element = graph.read(x, axes) if uniform is None else Const(uniform)
    return graph.define(node, axes, op("where", inside, element, Const(0.0)), x.dtype)


def _eye_like(graph: Graph, node: Node) -> OnnxValue:
    """1 on a diagonal, as many places above the main one as `k` says, and 0 elsewhere."""
    x = node.input(0)
    if x.rank != 2:
        raise node.shape_error(f"EyeLike needs two dimensions and has {x.rank}")
    dtype = dtype_of(node.integer("dtype"), node.where) if "dtype" in node.attributes else x.dtype
    axes = axes_of(x.shape)
    row = build.position(Index.axis(axes[0]) + node.integer("k"))
    here = op("eq", build.position(Index.axis(axes[1])), row)
    return graph.define(node, axes, op("where", here, Const(1.0), Const(0.0)), dtype)


def _uniform(x: OnnxValue) -> float | None:
    """The number that all elements of a constant array are."""
    if x.array is None or x.array.size == 0 or not np.all(x.array == x.array.flat[0]):
        return None
    return float(x.array.flat[0])


def _range(graph: Graph, node: Node) -> OnnxValue:
    start, limit, step = (_scalar(graph, node, place) for place in range(3))
    match start, limit, step:
        case Const(a), Const(b), Const(by) if node.input(0).dtype.is_float and by != 0:
            return _fractions(graph, node, a, b, by)
    indices = [as_index(e) for e in (start, limit, step)]
    if any(i is None or i.terms for i in indices):
        raise node.unsupported("a Range whose bounds depend on data has no translation")
    first, last, by = (i.offset for i in indices if i is not None)
    if not is_static(by) or int(by) == 0:
        raise node.unsupported(f"a Range with step {by} has no translation")
    length = cdiv(add(last, mul(-1, first)), by) if int(by) > 0 else cdiv(add(first, mul(-1, last)), -int(by))
    if is_static(length):
        length = max(int(length), 0)
    elif not graph.require(length):
        raise node.unsupported(f"the Range {first}:{last} may be empty", fix="export with that dimension fixed")
    axis = Axis("i0", length)
    value = build.position(Index.axis(axis).scaled(by) + Index.const(first))
    return graph.define(node, (axis,), value, node.input(0).dtype)


def _fractions(graph: Graph, node: Node, start: float, limit: float, step: float) -> OnnxValue:
    """A range of fractions; their number is refused where it hangs on how the quotient is rounded."""
    quotient = (limit - start) / step
    if quotient != round(quotient) and abs(quotient - round(quotient)) < _ROUNDED * max(1.0, abs(quotient)):
        raise node.unsupported(
            f"the number of elements of the Range {start:g}:{limit:g} by {step:g} depends on how it is rounded",
            fix="move the limit by half a step",
        )
    axis = Axis("i0", max(math.ceil(quotient), 0))
    value = op("add", Const(start), op("mul", Const(step), build.position(Index.axis(axis))))
    return graph.define(node, (axis,), value, node.input(0).dtype)


_ROUNDED = 1e-3
"""Below this a quotient may be rounded to the whole number that it is near, in one type or another."""


def _scalar(graph: Graph, node: Node, place: int) -> Expr:
    value = node.input(place)
    if value.rank and value.shape != (1,):
        raise node.shape_error(f"operand {place} is not a scalar")
    return graph.at(value, [Index.const(0)] * value.rank)


def _filled(graph: Graph, node: Node) -> OnnxValue:
    shape: Shape = tuple(node.elements(0, "the target shape").ravel().tolist())
    value: OnnxValue = node.attributes["value"]
    fill = graph.at(value, [Index.const(0)] * value.rank)
    return graph.define(node, axes_of(shape), fill, value.dtype)


TRANSLATORS: Mapping[str, Translator] = MappingProxyType(
    {
        "Identity": single(_identity),
        "Dropout": _dropout,
        "Transpose": single(_transpose),
        "Reshape": single(_reshape),
        "Flatten": single(_flatten),
        "Squeeze": single(_squeeze),
        "Unsqueeze": single(_unsqueeze),
        "Expand": single(_expand),
        "Tile": single(_tile),
        "Slice": single(_slice),
        "Split": _split,
        "Concat": single(_concat),
        "Gather": single(_gather),
        "DepthToSpace": single(_depth_to_space),
        "SpaceToDepth": single(_space_to_depth),
        "Trilu": single(_trilu),
        "EyeLike": single(_eye_like),
        "Range": single(_range),
        "ConstantOfShape": single(_filled),
    }
)
