"""onnxruntime's fused attention, of the domain `com.microsoft`: what its kernels for CPUs compute, in index notation.

Masks of these operators are sums: a key that is masked has a large negative number added, so that a row of nothing but
masked keys is what a softmax makes of it. Keys after the query, where the operator is causal, count as -inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from prism.frontend.onnx.attention import (
    Scored,
    at_position,
    attend,
    default_scale,
    rotated_heads,
    rotation,
    soft_capped,
    with_cache,
)
from prism.frontend.onnx.graph import Graph, Node, OnnxValue, known_elements
from prism.program import build
from prism.program.extents import Extent, add, mul
from prism.program.fold import op, sub
from prism.program.index import Axis, Index
from prism.program.lookup import looked_up
from prism.program.nodes import Const, Expr, ReduceKind
from prism.program.views import axes_of, same_extent

Translator = Callable[[Graph, Node], Sequence["OnnxValue | None"]]
Element = Callable[[Index, Index, Index, Index], Expr]
"""What is at a batch, a head, a place, and a place in the head."""


def _attend(
    graph: Graph,
    node: Node,
    parts: Sequence[OnnxValue],
    scored: Scored,
    sink: Callable[[Index], Expr] | None = None,
) -> OnnxValue:
    """The first result of queries, keys and values; a scale of 0 says that it follows from the size of a head."""
    q, k, v = ((x, x.shape) for x in parts)
    scale = node.number("scale") or default_scale(node, q[1][3])
    return attend(graph, node, (q, k, v), scale, scored, sink=sink)[2]


def _projected(
    graph: Graph,
    node: Node,
    what: str,
    shape: tuple[Extent, Extent, Extent, Extent],
    element: Element,
    value: OnnxValue,
    *,
    view: bool,
) -> OnnxValue:
    """Queries, keys or values as a tensor [batch, head, place, place in the head]."""
    axes = axes_of(shape)
    batch, head, place, at = map(Index.axis, axes)
    expr = element(batch, head, place, at)
    return graph.define_tensor(f"{node.outputs[0]}_{what}", axes, expr, value.dtype, origin=node.label, view=view)


def _side_by_side(graph: Graph, x: OnnxValue, size: int, start: int = 0) -> Element:
    """Of [batch, place, column], heads of that size one behind another from a column on."""
    return lambda batch, head, place, at: graph.at(x, (batch, place, head.scaled(size) + at + start))


def _split(
    graph: Graph, node: Node, what: str, x: OnnxValue, heads: int, bias: OnnxValue | None = None, at: int = 0
) -> OnnxValue:
    """[batch, place, heads * size] by heads, with its part of a bias."""
    if x.rank != 3 or not isinstance(x.shape[2], int) or heads < 1 or x.shape[2] % heads:
        raise node.shape_error(f"{what} of shape {list(x.shape)} does not split into {heads} heads")
    size = x.shape[2] // heads
    plain = _side_by_side(graph, x, size)

    def element(batch: Index, head: Index, place: Index, inner: Index) -> Expr:
        found = plain(batch, head, place, inner)
        return found if bias is None else op("add", found, graph.at(bias, [head.scaled(size) + inner + at]))

    return _projected(graph, node, what, (x.shape[0], heads, x.shape[1], size), element, x, view=bias is None)


# Masks


def _causal(past: Extent, score: Expr, axes: Sequence[Axis]) -> Expr:
    """-inf for keys behind the query, which stands `past` places further on."""
    here = build.position(Index.axis(axes[2]) + Index.const(past))
    return op("where", op("le", build.position(Index.axis(axes[3])), here), score, Const(-math.inf))


def _padding(graph: Graph, node: Node, mask: OnnxValue, axes: Sequence[Axis]) -> Expr:
    """What is added to scores: 0, or the number for masked keys."""
    batch, _, i, j = map(Index.axis, axes)
    fill = Const(float(node.attributes.get("mask_filter_value") or -10000.0))
    many, total = axes[0].extent, axes[3].extent
    if mask.rank == 1:
        ends = same_extent(mask.shape[0], many)
        if not ends and not same_extent(mask.shape[0], mul(2, many)):
            raise node.unsupported(f"a mask of shape {list(mask.shape)} has no translation")
        kept = op("lt", build.position(j), graph.at(mask, [batch]))
        if not ends:
            kept = op("and", kept, op("le", graph.at(mask, [batch + Index.const(many)]), build.position(j)))
        return op("where", kept, Const(0.0), fill)
    index = [batch, j] if mask.rank == 2 else [batch, i, j]
    wide = [many, total] if mask.rank == 2 else [many, axes[2].extent, total]
    if mask.rank not in (2, 3) or not all(same_extent(a, b) for a, b in zip(mask.shape, wide, strict=True)):
        raise node.unsupported(f"a mask of shape {list(mask.shape)} has no translation")
    return op("where", op("lt", Const(0.0), graph.at(mask, index)), Const(0.0), fill)


def _bias_of_scores(graph: Graph, node: Node, bias: OnnxValue, axes: Sequence[Axis]) -> Expr:
    fits = bias.rank == 4 and all(
        e == 1 or same_extent(e, a.extent) for e, a in zip(bias.shape[:2], axes[:2], strict=True)
    )
    if not fits or not all(same_extent(e, a.extent) for e, a in zip(bias.shape[2:], axes[2:], strict=True)):
        raise node.shape_error(f"a bias of shape {list(bias.shape)} for {[str(a.extent) for a in axes]} scores")
    return graph.read(bias, axes)


def _masked(graph: Graph, node: Node, mask: OnnxValue | None, bias: OnnxValue | None, past: Extent) -> Scored:
    causal = node.flag("unidirectional")
    if causal and mask is not None and mask.rank == 3:
        raise node.unsupported("a mask for each query in a causal operator has no translation")

    def scored(axes: Sequence[Axis], score: Expr) -> Expr:
        if mask is not None:
            score = op("add", score, _padding(graph, node, mask, axes))
        if bias is not None:
            score = op("add", score, _bias_of_scores(graph, node, bias, axes))
        return _causal(past, score, axes) if causal else score

    return scored


# The operators


def _attention(graph: Graph, node: Node) -> Sequence[OnnxValue | None]:
    """Self-attention whose projections are one product with weights that lie side by side."""
    x, weight, bias, mask, past, scores = (node.optional(n) for n in (0, 1, 2, 3, 4, 5))
    assert x is not None
    assert weight is not None
    heads = node.integer("num_heads")
    if x.rank != 3 or weight.rank != 2 or not same_extent(x.shape[2], weight.shape[0]):
        raise node.shape_error(f"an input of shape {list(x.shape)} and weights of {list(weight.shape)}")
    wide = weight.shape[1]
    sizes = [int(n) for n in node.attributes.get("qkv_hidden_sizes") or ()]
    if not sizes and isinstance(wide, int):
        sizes = [wide // 3] * 3
    if len(sizes) != 3 or sum(sizes) != wide or heads < 1 or any(n % heads for n in sizes):
        raise node.shape_error(f"weights of shape {list(weight.shape)} do not make up heads of sizes {sizes}")
    axes = (Axis("b", x.shape[0]), Axis("s", x.shape[1]), Axis("n", wide))
    k = Axis("k", x.shape[2])
    total = build.reduce(ReduceKind.SUM, k, op("mul", graph.read(x, (*axes[:2], k)), graph.read(weight, (k, axes[2]))))
    if bias is not None:
        total = op("add", total, graph.at(bias, [Index.axis(axes[2])]))
    name = node.outputs[0]
    whole = graph.define_tensor(f"{name}_projected", axes, total, x.dtype, origin=node.label)
    parts = []
    for what, wide, start in zip("qkv", sizes, (0, sizes[0], sizes[0] + sizes[1]), strict=True):
        size = wide // heads
        shape = (x.shape[0], heads, x.shape[1], size)
        parts.append(_projected(graph, node, what, shape, _side_by_side(graph, whole, size, start), x, view=True))
    q, keys, values = parts
    before: Extent = 0
    present: OnnxValue | None = None
    if past is not None or node.wanted(1):
        if sizes[1] != sizes[2]:
            raise node.unsupported("a cache of keys and values of two sizes has no translation")
        if past is not None:
            if past.rank != 5 or past.shape[0] != 2:
                raise node.shape_error(f"a cache of shape {list(past.shape)}")
            before = past.shape[3]
        extent = add(before, x.shape[1])
        both = axes_of((2, x.shape[0], heads, extent, sizes[1] // heads))
        side, batch, head, place, at = map(Index.axis, both)
        now = place + Index.const(mul(-1, before))
        expr = op(
            "where",
            op("eq", build.position(side), Const(0.0)),
            graph.at(keys, (batch, head, now, at)),
            graph.at(values, (batch, head, now, at)),
        )
        if past is not None:
            old = graph.at(past, (side, batch, head, place, at))
            expr = op("where", op("lt", build.position(place), build.size(before)), old, expr)
        label = node.outputs[1] if node.wanted(1) else f"{name}_present"
        present = graph.define_tensor(label, both, expr, x.dtype, origin=node.label)
        keys, values = (_side(graph, node, present, n) for n in range(2))
    result = _attend(graph, node, [q, keys, values], _masked(graph, node, mask, scores, before))
    return [result, present if node.wanted(1) else None]


def _side(graph: Graph, node: Node, cache: OnnxValue, which: int) -> OnnxValue:
    def element(batch: Index, head: Index, place: Index, at: Index) -> Expr:
        return graph.at(cache, (Index.const(which), batch, head, place, at))

    _, b, h, s, d = cache.shape
    return _projected(graph, node, "kv"[which], (b, h, s, d), element, cache, view=True)


def _multi_head(graph: Graph, node: Node) -> Sequence[OnnxValue | None]:
    """Attention of queries, keys and values that are projected already."""
    query, key, value, bias = (node.optional(n) for n in range(4))
    mask, scores, old = node.optional(4), node.optional(5), [node.optional(6), node.optional(7)]
    heads = node.integer("num_heads")
    assert query is not None
    if (old[0] is None) != (old[1] is None):
        raise node.unsupported("half a cache has no translation")
    wide = query.shape[2] if query.rank == 3 else mul(query.shape[2], query.shape[-1])
    if query.rank == 5:
        q, *parts = (_packed(graph, node, "qkv"[n], query, n, 3, bias, n) for n in range(3))
    elif query.rank != 3 or key is None:
        raise node.shape_error(f"queries of shape {list(query.shape)}, without keys")
    else:
        q = _split(graph, node, "q", query, heads, bias, 0)
        if key.rank == 5:
            parts = [_packed(graph, node, "kv"[n], key, n, 2, bias, n + 1) for n in range(2)]
        elif value is None:
            raise node.shape_error("keys without values")
        else:
            parts = _keys_and_values(graph, node, key, value, heads, bias, wide)
    (keys, _), (values, _) = (
        with_cache(graph, node, (x, x.shape), before, output)
        for x, before, output in zip(parts, old, (1, 2), strict=True)
    )
    past = 0 if old[0] is None else old[0].shape[2]
    result = _attend(graph, node, [q, keys, values], _masked(graph, node, mask, scores, past))
    return [result, *([keys, values] if node.wanted(1) else [])]


def _packed(
    graph: Graph, node: Node, what: str, x: OnnxValue, which: int, many: int, bias: OnnxValue | None, part: int
) -> OnnxValue:
    """One of the tensors that lie side by side in [batch, place, head, which of them, place in the head].

    `x` has all of them, and it is number `which` of so many; the bias is of queries, keys and values, one after
    another, of which it is number `part`.
    """
    if x.rank != 5 or x.shape[3] != many:
        raise node.shape_error(f"{what} of shape {list(x.shape)} is not one of {many}")
    heads, size = x.shape[2], x.shape[4]

    def element(batch: Index, head: Index, place: Index, inner: Index) -> Expr:
        found = graph.at(x, (batch, place, head, Index.const(which), inner))
        if bias is None:
            return found
        start = Index.const(mul(part, mul(heads, size)))
        return op("add", found, graph.at(bias, [head.scaled(size) + inner + start]))

    return _projected(graph, node, what, (x.shape[0], heads, x.shape[1], size), element, x, view=bias is None)


def _keys_and_values(
    graph: Graph, node: Node, key: OnnxValue, value: OnnxValue, heads: int, bias: OnnxValue | None, wide: Extent
) -> list[OnnxValue]:
    """Both by heads, with their parts of a bias, which follow that of queries as wide as `wide`."""
    starts = [0, 0]
    if bias is not None:
        if key.rank != 3 or value.rank != 3 or not isinstance(wide, int) or not isinstance(key.shape[2], int):
            raise node.unsupported("a bias of keys that are cut into heads already has no translation")
        starts = [wide, wide + key.shape[2]]
    return [
        x if x.rank == 4 else _split(graph, node, what, x, heads, bias, start)
        for what, x, start in zip("kv", (key, value), starts, strict=True)
    ]


def _rotary(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """Pairs of a head's places rotated by angles that caches hold, at positions, or from one position on."""
    x, positions, cos, sin = (node.input(n) for n in range(4))
    factor = float(node.attributes.get("scale") or 1.0)
    if factor != 1.0:
        raise node.unsupported(f"a scale of {factor} has no translation")
    if x.rank not in (3, 4) or cos.rank != 2 or not isinstance(cos.shape[1], int):
        raise node.shape_error(f"an operand of shape {list(x.shape)} and caches of {list(cos.shape)}")
    rotated = node.integer("rotary_embedding_dim") or 2 * cos.shape[1]
    heads = node.integer("num_heads")
    hidden = x.shape[-1]
    if not isinstance(hidden, int) or rotated != 2 * cos.shape[1]:
        raise node.shape_error(f"caches of {cos.shape[1]} pairs for {rotated} places")
    size = hidden if x.rank == 4 else hidden // heads if heads else rotated
    if hidden % size or rotated > size:
        raise node.shape_error(f"{hidden} places are not heads of {size}")

    def angle(cache: OnnxValue, batch: Index, position: Index, at: Index) -> Expr:
        if positions.rank == 1:
            where = op("add", graph.at(positions, [Index.const(0)]), build.position(position))
        else:
            where = graph.at(positions, [Index.const(0) if positions.shape[0] == 1 else batch, position])
        return at_position(graph, cache, where, at)

    return [rotated_heads(graph, node, x, size, rotated, partial(angle, cos), partial(angle, sin))]


def _group_query(graph: Graph, node: Node) -> Sequence[OnnxValue | None]:
    """Causal attention of few heads of keys and values, with a cache, rotation, soft cap and a window.

    Where the cache of one sequence ends is known: at its extent. Of several `seqlens_k` says how many keys each has,
    less one: those of its cache that count, and the new ones behind them, with zeros up to the length of the longest.
    """
    query, key, value, old_k, old_v = (node.optional(n) for n in range(5))
    lengths, total = node.optional(5), node.optional(6)
    cos, sin, positions, bias, sinks = (node.optional(n) for n in range(7, 12))
    assert query is not None
    heads, shared = node.integer("num_heads"), node.integer("kv_num_heads")
    for name in ("k_quant_type", "v_quant_type"):
        if str(node.attributes.get(name, "NONE")) != "NONE":
            raise node.unsupported("a quantised cache has no translation")
    if query.rank != 3 or not isinstance(query.shape[2], int) or min(heads, shared) < 1:
        raise node.shape_error(f"queries of shape {list(query.shape)} for {heads} heads")
    past = _past(node, query, old_k, total)
    many, length = query.shape[:2]
    ends = _Ends(graph, past, length, lengths if past != 0 and many != 1 else None)
    if ends.lengths is not None and not node.flag("causal"):
        raise node.unsupported("attention to all keys of several sequences with caches has no translation")
    if key is None or value is None:  # lie behind the queries
        size = query.shape[2] // (heads + 2 * shared)
        cut = [(query, heads, 0), (query, shared, heads * size), (query, shared, (heads + shared) * size)]
    else:
        size = query.shape[2] // heads
        cut = [(query, heads, 0), (key, shared, 0), (value, shared, 0)]
    rotate = node.flag("do_rotary")
    interleaved = node.flag("rotary_interleaved")
    parts = []
    for what, (x, h, start) in zip("qkv", cut, strict=True):
        plain = _side_by_side(graph, x, size, start)

        def turned(batch: Index, head: Index, place: Index, at: Index, plain: Element = plain) -> Expr:
            assert cos is not None
            assert sin is not None
            position = ends.position(batch, place)
            if positions is not None:
                position = graph.at(positions, [Index.const(0) if positions.shape[0] == 1 else batch, place])
            pairs = int(cos.shape[1])

            def angle(pair: Index) -> tuple[Expr, Expr]:
                return at_position(graph, cos, position, pair), at_position(graph, sin, position, pair)

            return rotation(at, size, 2 * pairs, lambda k: plain(batch, head, place, k), angle, interleaved=interleaved)

        moved = rotate and what != "v"
        if moved and (cos is None or sin is None):
            raise node.shape_error("a rotation without the caches of its angles")
        shape = (many, h, length, size)
        parts.append(_projected(graph, node, what, shape, turned if moved else plain, x, view=not moved))
    q, k, v = parts
    keys, values = (
        ends.appended(node, x, before, output)
        if ends.lengths is not None and before is not None
        else with_cache(graph, node, (x, x.shape), None if past == 0 else before, output)[0]
        for x, before, output in zip((k, v), (old_k, old_v), (1, 2), strict=True)
    )
    window, cap = node.integer("local_window_size"), node.number("softcap")
    smooth = node.integer("smooth_softmax") > 0

    def scored(axes: Sequence[Axis], score: Expr) -> Expr:
        score = soft_capped(score, cap)
        if bias is not None:
            score = op("add", score, _bias_of_scores(graph, node, bias, axes))
        here, key = ends.position(Index.axis(axes[0]), Index.axis(axes[2])), build.position(Index.axis(axes[3]))
        if node.flag("causal"):
            score = op("where", op("le", key, here), score, Const(-math.inf))
        if window > 0:
            near = op("le", op("add", here, Const(1.0 - window)), key)
            score = op("where", near, score, Const(-math.inf))
        return score

    sink: Callable[[Index], Expr] | None = None
    if sinks is not None:
        given = sinks
        sink = lambda head: graph.at(given, [head])  # noqa: E731
    elif smooth:
        sink = lambda head: Const(0.0)  # noqa: E731
    if lengths is not None and lengths.rank > 2:
        raise node.shape_error(f"lengths of shape {list(lengths.shape)}")
    result = _attend(graph, node, [q, keys, values], scored, sink)
    return [result, *([keys, values] if node.wanted(1) else [])]


def _past(node: Node, query: OnnxValue, cache: OnnxValue | None, total: OnnxValue | None) -> Extent:
    """The length of the cache, of which all of one sequence counts."""
    if cache is None or cache.shape[2] == 0:
        return 0
    known = None if total is None else known_elements(total)
    if known is None or known.size != 1:
        raise node.unsupported(
            "a cache of which data say how much of it counts has no translation",
            fix="export it with the lengths of the cache and of the whole fixed",
        )
    whole = add(cache.shape[2], query.shape[1])
    node.agree([(known.ravel()[0], whole)], f"{known.ravel()[0]} keys in all, and {whole} with those of the cache")
    return cache.shape[2]


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where the sequences of a batch end."""

    graph: Graph  # the program
    past: Extent  # the length of the cache
    length: Extent  # how many places are new
    # By sequence, how many keys it has, less one; None where that is all of the cache, and what is new.
    lengths: OnnxValue | None

    def before(self, batch: Index) -> Expr:
        """How many keys of the cache count."""
        if self.lengths is None:
            return build.size(self.past)
        at = [batch] + [Index.const(0)] * (self.lengths.rank - 1)
        return op("add", self.graph.at(self.lengths, at), build.size(add(1, mul(-1, self.length))))

    def position(self, batch: Index, place: Index) -> Expr:
        """Where a new place stands."""
        if self.lengths is None:
            return build.position(place + Index.const(self.past))
        return op("add", self.before(batch), build.position(place))

    def appended(self, node: Node, new: OnnxValue, old: OnnxValue, output: int) -> OnnxValue:
        """Keys or values with those of the cache before them, and zeros behind."""
        shape = (*new.shape[:2], add(self.past, self.length), new.shape[3])
        axes = axes_of(shape)
        batch, head, place, at = map(Index.axis, axes)
        bound = Axis("s", self.length)
        behind = sub(build.position(place), self.before(batch))
        element = self.graph.at(new, (batch, head, Index.axis(bound), at))
        here = element if bound.extent == 1 else looked_up(bound, behind, element)
        here = op("where", op("lt", behind, build.size(self.length)), here, Const(0.0))
        kept = self.graph.at(old, (batch, head, place, at))
        expr = op("where", op("lt", behind, Const(0.0)), kept, here)
        return self.graph.define(node, axes, expr, new.dtype, output=output)


TRANSLATORS: Mapping[str, Translator] = MappingProxyType(
    {
        "Attention": _attention,
        "GroupQueryAttention": _group_query,
        "MultiHeadAttention": _multi_head,
        "RotaryEmbedding": _rotary,
    }
)
DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"GroupQueryAttention": {"causal": 1, "local_window_size": -1, "smooth_softmax": -1}}
)
