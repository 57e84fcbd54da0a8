"""The ONNX function operators Attention and RotaryEmbedding, defined in index notation.

Attention is three definitions, one for each kernel of an operator-by-operator run: the masked scores, their softmax,
and its product with the values. A row of scores that a mask leaves nothing of is NaN, as softmax of it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from prism.frontend.onnx_algebra import apply, as_index, index_value, sub
from prism.frontend.onnx_graph import Graph, Node, Value
from prism.frontend.onnx_reduce import rows, softmax
from prism.frontend.views import Shape, axes_of, broadcast_shapes, same_extent
from prism.program import build
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.nodes import Const, DType, Expr, ReduceKind

Translator = Callable[[Graph, Node], Sequence[Value]]
_PARTS = ("Q", "K", "V")


def _heads(node: Node, value: Value, count: int | None, part: str) -> Shape:
    """The operand's shape as [batch, heads, positions, size of a head]."""
    if value.rank == 4:
        return value.shape
    if value.rank != 3 or count is None or count < 1:
        raise node.shape_error(f"{part} needs 4 dimensions, or 3 and a number of heads")
    hidden = value.shape[2]
    if not isinstance(hidden, int) or hidden % count:
        raise node.shape_error(f"the last dimension of {part}, {hidden}, does not split into {count} heads")
    return (value.shape[0], count, value.shape[1], hidden // count)


def _element(graph: Graph, value: Value, shape: Shape, at: tuple[Index, Index, Index, Index]) -> Expr:
    """One element of the operand by batch, head, position and place in the head."""
    batch, head, position, place = at
    if value.rank == 4:
        return graph.at(value, at)
    return graph.at(value, (batch, position, head.scaled(shape[3]) + place))


def _attention(graph: Graph, node: Node) -> Sequence[Value]:
    _refuse_caches(node)
    q, k, v = (node.input(place) for place in range(3))
    counts = [node.attributes.get(name) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    q_shape, k_shape, v_shape = (_heads(node, x, c, part) for x, c, part in zip((q, k, v), counts, _PARTS, strict=True))
    repeat = _repeat(node, q_shape, k_shape, v_shape)
    scores = _scores(graph, node, (q, q_shape), (k, k_shape), repeat)
    axes = axes_of(scores.shape)
    row = rows(graph, scores, axes, [3])
    weights = graph.define_tensor(
        f"{node.outputs[0]}_softmax", axes, softmax(graph.read(scores, axes), row), q.dtype, origin=node.label
    )
    batch, head, position, size = Axis("b", q_shape[0]), Axis("h", q_shape[1]), Axis("i", q_shape[2]), v_shape[3]
    j = Axis("j", k_shape[2])
    packed = q.rank == 3
    if packed:
        flat = Axis("hd", _product(node, q_shape[1], size))
        head_at, place = Index.axis(flat).floordiv(size), Index.axis(flat).mod(size)
        result: tuple[Axis, ...] = (batch, position, flat)
    else:
        last = Axis("d", size)
        head_at, place = Index.axis(head), Index.axis(last)
        result = (batch, head, position, last)
    one = graph.at(weights, (Index.axis(batch), head_at, Index.axis(position), Index.axis(j)))
    other = _element(graph, v, v_shape, (Index.axis(batch), head_at.floordiv(repeat), Index.axis(j), place))
    total = build.reduce(ReduceKind.SUM, j, apply("mul", one, other))
    return [graph.define(node, result, total, q.dtype)]


def _product(node: Node, a: Extent, b: Extent) -> int:
    if not isinstance(a, int) or not isinstance(b, int):
        raise node.shape_error("the number and the size of the heads must be known")
    return a * b


def _refuse_caches(node: Node) -> None:
    for place, what in ((4, "past_key"), (5, "past_value"), (6, "nonpad_kv_seqlen")):
        if node.optional(place) is not None:
            raise node.unsupported(f"the operand {what} of Attention is not supported", fix="pass whole K and V")
    for place, what in ((1, "present_key"), (2, "present_value"), (3, "qk_matmul_output")):
        if place < len(node.outputs) and node.outputs[place]:
            raise node.unsupported(f"the output {what} of Attention is not supported", fix="remove that output")


def _repeat(node: Node, q: Shape, k: Shape, v: Shape) -> int:
    """How many query heads share one head of keys and values."""
    agree = [(q[0], k[0]), (k[0], v[0]), (q[3], k[3]), (k[1], v[1]), (k[2], v[2])]
    if not all(same_extent(a, b) for a, b in agree):
        raise node.shape_error(f"Q {list(q)}, K {list(k)} and V {list(v)} do not fit together")
    if not isinstance(q[1], int) or not isinstance(k[1], int) or q[1] % k[1]:
        raise node.shape_error(f"{q[1]} query heads do not share {k[1]} key heads evenly")
    return q[1] // k[1]


def _scores(graph: Graph, node: Node, q: tuple[Value, Shape], k: tuple[Value, Shape], repeat: int) -> Value:
    (q_value, q_shape), (k_value, k_shape) = q, k
    axes = axes_of((*q_shape[:3], k_shape[2]))
    batch, head, i, j = map(Index.axis, axes)
    d = Axis("d", q_shape[3])
    left = _element(graph, q_value, q_shape, (batch, head, i, Index.axis(d)))
    right = _element(graph, k_value, k_shape, (batch, head.floordiv(repeat), j, Index.axis(d)))
    size = q_shape[3]
    if "scale" not in node.attributes and not isinstance(size, int):
        raise node.unsupported("the default scale needs the size of a head", fix="set the attribute scale")
    scale = node.number("scale", 1.0 / math.sqrt(size) if isinstance(size, int) else 1.0)
    expr = apply("mul", build.reduce(ReduceKind.SUM, d, apply("mul", left, right)), Const(scale))
    cap = node.number("softcap", 0.0)
    if cap > 0:
        expr = apply("mul", apply("tanh", apply("mul", expr, Const(1.0 / cap))), Const(cap))
    mask = node.optional(3)
    if mask is not None:
        expr = _masked(graph, node, expr, mask, axes)
    if node.integer("is_causal", 0):
        expr = apply("where", apply("le", index_value(j), index_value(i)), expr, Const(-math.inf))
    return graph.define_tensor(f"{node.outputs[0]}_scores", axes, expr, q_value.dtype, origin=node.label)


def _masked(graph: Graph, node: Node, scores: Expr, mask: Value, axes: Sequence[Axis]) -> Expr:
    shape = tuple(a.extent for a in axes)
    result = broadcast_shapes(shape, mask.shape, where=node.where)
    if mask.rank > 4 or not all(same_extent(a, b) for a, b in zip(result, shape, strict=True)):
        raise node.shape_error(f"the mask of shape {list(mask.shape)} does not broadcast to {list(shape)}")
    element = graph.read(mask, axes)
    if mask.dtype == DType.BOOL:
        return apply("where", element, scores, Const(-math.inf))
    return apply("add", scores, element)


def _rotary(graph: Graph, node: Node) -> Sequence[Value]:
    x, cos, sin = (node.input(place) for place in range(3))
    heads = node.integer("num_heads", 0) or None
    shape = _heads(node, x, heads, "the operand")
    size = shape[3]
    if not isinstance(size, int):
        raise node.unsupported("the size of a head must be known")
    rotated = node.integer("rotary_embedding_dim", 0) or size
    half = rotated // 2
    if rotated % 2 or rotated > size:
        raise node.shape_error(f"{rotated} of {size} places in a head cannot be rotated in pairs")
    axes = axes_of(x.shape)
    if x.rank == 4:
        batch, head, position, place = map(Index.axis, axes)
    else:
        batch, position, flat = map(Index.axis, axes)
        head, place = flat.floordiv(size), flat.mod(size)

    def element(at: Index) -> Expr:
        return _element(graph, x, shape, (batch, head, position, at))

    def angle(cache: Value, at: Index) -> Expr:
        return graph.at(cache, _angle_index(graph, node, cache, shape, half, batch, position, at))

    def turned(first: Index, second: Index, at: Index) -> tuple[Expr, Expr]:
        """Both coordinates of the pair after the rotation."""
        c, s, a, b = angle(cos, at), angle(sin, at), element(first), element(second)
        return sub(apply("mul", c, a), apply("mul", s, b)), apply("add", apply("mul", s, a), apply("mul", c, b))

    if node.integer("interleaved", 0):
        pair, parity = place.floordiv(2), place.mod(2)
        real, imaginary = turned(pair.scaled(2), pair.scaled(2) + 1, pair)
        expr = apply("where", apply("eq", index_value(parity), Const(0.0)), real, imaginary)
    else:
        lower, upper = place + half, place + -half
        real, _ = turned(place, lower, place)
        _, imaginary = turned(upper, place, upper)
        expr = apply("where", apply("lt", index_value(place), Const(float(half))), real, imaginary)
    if rotated < size:
        expr = apply("where", apply("lt", index_value(place), Const(float(rotated))), expr, element(place))
    return [graph.define(node, axes, expr, x.dtype)]


def _angle_index(
    graph: Graph, node: Node, cache: Value, shape: Shape, half: int, batch: Index, position: Index, at: Index
) -> tuple[Index, ...]:
    """Where a cache holds the angle of a batch, a position and a pair."""
    ids = node.optional(3)
    if ids is None:
        if cache.rank != 3 or cache.shape[2] != half or not same_extent(cache.shape[1], shape[2]):
            raise node.shape_error(f"a cache of shape {list(cache.shape)} for {shape[2]} positions and {half} pairs")
        if cache.shape[0] != 1 and not same_extent(cache.shape[0], shape[0]):
            raise node.shape_error(f"a cache of shape {list(cache.shape)} for a batch of {shape[0]}")
        return (Index.const(0) if cache.shape[0] == 1 else batch, position, at)
    if cache.rank != 2 or cache.shape[1] != half:
        raise node.shape_error(f"a cache of shape {list(cache.shape)} for {half} pairs")
    index = None
    if ids.rank == 2 and not ids.name:
        index = as_index(graph.at(ids, (Index.const(0) if ids.shape[0] == 1 else batch, position)))
    if index is None or not index.within(cache.shape[0]):
        raise node.unsupported(
            "position_ids that depend on data have no translation",
            why="the angles would be looked up at run time",
            fix="leave position_ids out and pass cos and sin by position",
        )
    return (index, at)


TRANSLATORS: Mapping[str, Translator] = MappingProxyType({"Attention": _attention, "RotaryEmbedding": _rotary})
