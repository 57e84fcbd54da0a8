"""ONNX operators that write at places which an operand holds; what they compute is in `prism.frontend.scatter`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from prism.frontend.onnx.graph import Graph, Node, OnnxValue, Translator, known_elements
from prism.frontend.scatter import KINDS, Writes, both, scattered
from prism.program import build
from prism.program.extents import Extent, add, is_static, mul
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.integers import floor_remainder
from prism.program.lookup import looked_up
from prism.program.nodes import Const, Expr
from prism.program.views import axes_of, broadcast_index, places_index, same_extent


def _how(node: Node) -> str:
    """How what is written meets what is there."""
    found = str(node.attributes.get("reduction", "none"))
    if found == "none":
        return "set"
    if found not in KINDS:
        raise node.unsupported(f"the reduction {found!r} is none of {', '.join(KINDS)}")
    return found


def _place(graph: Graph, node: Node, places: OnnxValue, at: Sequence[Index], extent: Extent) -> Expr:
    """The place along a dimension that an operand holds at an index, counted from the front."""
    known = _whole(places) if is_static(extent) else None
    if known is None:
        return graph.place(graph.at(places, at), Axis("", extent))
    if not any(i.terms for i in at):
        place = int(known[tuple(int(i.offset) for i in at)])
        if not -int(extent) <= place < int(extent):
            raise node.shape_error(f"place {place} is out of range for a dimension of extent {extent}")
        return Const(float(place % int(extent)))
    chosen = known[tuple(slice(None) if i.terms else int(i.offset) for i in at)]
    regular = places_index(
        np.where(chosen < 0, chosen + int(extent), chosen).astype(object), [i for i in at if i.terms]
    )
    return graph.place(graph.at(places, at), Axis("", extent)) if regular is None else build.position(regular)


_FOLLOWED = 1 << 14
"""Places beyond which constant ones are not looked at for what positions tell of them."""


def _whole(places: OnnxValue) -> np.ndarray | None:
    """Places that are known numbers."""
    if places.array is not None and places.array.size <= _FOLLOWED:
        return places.array
    known = known_elements(places)
    return known.astype(np.int64) if known is not None and all(map(is_static, known.ravel())) else None


def _scatter_elements(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """Elements of a dimension, for each one that is written a place."""
    x, places, updates = node.input(0), node.input(1), node.input(2)
    d = node.axis("axis", x.rank)
    if not places.rank == updates.rank == x.rank:
        raise node.shape_error(f"indices of {places.rank} dimensions for data of {x.rank}")
    node.agree(zip(places.shape, updates.shape, strict=True), "indices and updates of unlike shapes")
    for k, (have, wanted) in enumerate(zip(x.shape, places.shape, strict=True)):
        if k != d and not graph.require(add(have, mul(-1, wanted))):
            raise node.shape_error(f"indices of {wanted} places along dimension {k} of extent {have}")
    axes = axes_of(x.shape)
    own = graph.read(x, axes)

    def whole(at: Sequence[Index]) -> list[Index]:
        return broadcast_index(places.shape, [at[0] if k == d else Index.axis(a) for k, a in enumerate(axes)])

    writes = Writes(
        (Axis(f"s{d}", places.shape[d]),),
        (axes[d],),
        lambda at: [_place(graph, node, places, whole(at), x.shape[d])],
        lambda at: graph.at(updates, whole(at)),
    )
    how = _how(node)
    if any(e == 0 for e in places.shape):
        return [graph.define(node, axes, own, x.dtype)]
    value = scattered(how, own, writes)
    inside = [
        op("lt", build.position(Index.axis(axes[k])), build.size(e))
        for k, e in enumerate(places.shape)
        if k != d and not same_extent(e, x.shape[k])
    ]
    if inside:
        value = op("where", both(inside), value, own)
    return [graph.define(node, axes, value, x.dtype)]


def _scatter_nd(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """Slices at tuples of places: the last dimension of the indices has one for each that is written along."""
    x, places, updates = node.input(0), node.input(1), node.input(2)
    if not places.rank or not is_static(places.shape[-1]) or not 1 <= int(places.shape[-1]) <= x.rank:
        raise node.shape_error(f"places along {places.shape[-1:]} of {x.rank} dimensions")
    many = int(places.shape[-1])
    wanted = (*places.shape[:-1], *x.shape[many:])
    if updates.rank != len(wanted):
        raise node.shape_error(f"updates of {updates.rank} dimensions, where {len(wanted)} are written")
    node.agree(zip(updates.shape, wanted, strict=True), f"updates of the shape {list(updates.shape)}")
    axes = axes_of(x.shape)
    rest = [Index.axis(a) for a in axes[many:]]
    writes = Writes(
        axes_of(places.shape[:-1], "s"),
        axes[:many],
        lambda at: [
            _place(graph, node, places, [*broadcast_index(places.shape[:-1], at), Index.const(k)], x.shape[k])
            for k in range(many)
        ],
        lambda at: graph.at(updates, broadcast_index(updates.shape, [*at, *rest])),
    )
    return [graph.define(node, axes, scattered(_how(node), graph.read(x, axes), writes), x.dtype)]


def _tensor_scatter(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """A cache with new elements from a place on that each sequence has; round and round, if asked."""
    cache, update, starts = node.input(0), node.input(1), node.optional(2)
    d, mode = node.axis("axis", cache.rank), str(node.attributes.get("mode", "linear"))
    if update.rank != cache.rank or d == 0 or mode not in ("linear", "circular"):
        raise node.shape_error(f"an update of {update.rank} dimensions along {d} of {cache.rank}, {mode}")
    beside = (pair for k, pair in enumerate(zip(update.shape, cache.shape, strict=True)) if k != d)
    node.agree(beside, f"an update of the shape {list(update.shape)} for a cache of {list(cache.shape)}")
    axes = axes_of(cache.shape)
    own, extent, bound = graph.read(cache, axes), cache.shape[d], Axis("s", update.shape[d])
    place = build.position(Index.axis(axes[d]))
    if starts is not None:
        start = graph.at(starts, broadcast_index(starts.shape, [Index.axis(axes[0])]))
        place = op("add", place, op("neg", start))
    if mode == "circular":
        place = floor_remainder(place, build.size(extent))
    element = graph.at(update, [Index.axis(bound) if k == d else Index.axis(a) for k, a in enumerate(axes)])
    inside = op("lt", place, build.size(bound.extent))
    if starts is not None and mode == "linear":
        inside = op("and", op("le", Const(0.0), place), inside)
    written = element if bound.extent == 1 else looked_up(bound, place, element)
    return [graph.define(node, axes, op("where", inside, written, own), cache.dtype)]


TRANSLATORS: Mapping[str, Translator] = MappingProxyType(
    {
        "Scatter": _scatter_elements,
        "ScatterElements": _scatter_elements,
        "ScatterND": _scatter_nd,
        "TensorScatter": _tensor_scatter,
    }
)
