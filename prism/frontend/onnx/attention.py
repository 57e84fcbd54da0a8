"""The ONNX function operators Attention and RotaryEmbedding, defined in index notation.

Attention is three definitions, one for each kernel of an operator-by-operator run: the masked scores, their softmax,
and its product with the values. A query that is left no key to attend to has a result of zeros, as the operator says;
that costs a test, which is left out where every query is known to have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from prism.frontend.onnx.graph import Graph, Node, OnnxValue, Translator, static_shape
from prism.frontend.onnx.reduce import rows
from prism.frontend.rows import softmax
from prism.program import build
from prism.program.evaluate import evaluate_expr
from prism.program.extents import Extent, add, is_static, mul
from prism.program.fold import as_index, op, sub
from prism.program.index import Axis, Index
from prism.program.lookup import looked_up
from prism.program.nodes import Const, DType, Expr, Map, Read, ReduceKind, walk
from prism.program.transform import substitute
from prism.program.views import Shape, axes_of, broadcast_shapes, compare_extents, same_extent

Angle: TypeAlias = Callable[[Index, Index, Index], Expr]
"""The sine or the cosine of a pair's angle: of a batch, a position and the pair."""
Operand: TypeAlias = "tuple[OnnxValue, Shape]"
"""Queries, keys or values, and their shape as [batch, heads, positions, size of a head]."""
_PARTS = ("Q", "K", "V")


def _heads(node: Node, value: OnnxValue, count: int | None, part: str) -> Shape:
    """The operand's shape as [batch, heads, positions, size of a head]."""
    if value.rank == 4:
        return value.shape
    if value.rank != 3 or count is None or count < 1:
        raise node.shape_error(f"{part} needs 4 dimensions, or 3 and a number of heads")
    hidden = value.shape[2]
    if not isinstance(hidden, int) or hidden % count:
        raise node.shape_error(f"the last dimension of {part}, {hidden}, does not split into {count} heads")
    return (value.shape[0], count, value.shape[1], hidden // count)


def head_element(graph: Graph, value: OnnxValue, shape: Shape, at: tuple[Index, Index, Index, Index]) -> Expr:
    """One element of the operand by batch, head, position and place in the head."""
    batch, head, position, place = at
    if value.rank == 4:
        return graph.at(value, at)
    return graph.at(value, (batch, position, head.scaled(shape[3]) + place))


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of Attention: its operands, each with its shape as [batch, heads, positions, size of a head]."""

    graph: Graph
    node: Node
    q: Operand  # queries
    k: Operand  # keys, those of the cache before them
    v: Operand  # values, likewise
    past: Extent  # how many keys come from the cache
    mask: OnnxValue | None  # the attention mask, or None
    used: OnnxValue | None  # for each batch, how many keys are not padding, or None


def _attention(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    q, k, v = (node.input(place) for place in range(3))
    counts = [node.attributes.get(name) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    shapes = [_heads(node, x, c, part) for x, c, part in zip((q, k, v), counts, _PARTS, strict=True)]
    old = [node.optional(place) for place in (4, 5)]
    used = node.optional(6)
    if (old[0] is None) != (old[1] is None):
        raise node.shape_error("past_key and past_value are given together or not at all")
    if used is not None and old[0] is not None:
        raise node.shape_error("nonpad_kv_seqlen is for calls without past_key")
    if used is not None and (used.rank != 1 or not same_extent(used.shape[0], shapes[0][0])):
        raise node.shape_error(f"nonpad_kv_seqlen of shape {list(used.shape)} for a batch of {shapes[0][0]}")
    keys, values = (
        with_cache(graph, node, (x, shape), before, output)
        for x, shape, before, output in zip((k, v), shapes[1:], old, (1, 2), strict=True)
    )
    call = _Call(
        graph, node, (q, shapes[0]), keys, values, 0 if old[0] is None else old[0].shape[2], node.optional(3), used
    )
    mode, shown, cap = node.integer("qk_matmul_output_mode"), node.wanted(3), node.number("softcap")
    steps: dict[int, OnnxValue] = {}

    def step(wanted: int, name: str, axes: Sequence[Axis], value: Expr) -> Expr:
        if not shown or mode != wanted:
            return value
        steps[mode] = graph.define_tensor(f"{node.outputs[0]}_{name}", axes, value, q.dtype, origin=node.label)
        return graph.read(steps[mode], axes)

    def scored(axes: Sequence[Axis], product: Expr) -> Expr:
        score = step(1, "capped", axes, soft_capped(step(0, "products", axes, product), cap))
        if call.mask is not None and call.mask.dtype != DType.BOOL:
            score = op("add", score, _mask_element(call, axes))
        for inside in _attended(call, axes):
            score = op("where", inside, score, Const(-math.inf))
        return score

    scale = node.number("scale") if "scale" in node.attributes else default_scale(node, shapes[0][3])
    empty = cache(lambda: _may_be_empty(call))
    parts = call.q, keys, values
    scores, weights, result = attend(graph, node, parts, scale, scored, empty=empty, flat=q.rank == 3)
    results = [result, keys[0], values[0]]
    if shown:
        if mode not in range(4):
            raise node.unsupported(f"qk_matmul_output_mode {mode} is not one of 0 to 3")
        axes = axes_of(scores.shape)
        expr = graph.read(steps.get(mode, scores if mode < 3 else weights), axes)
        if mode == 3 and empty():
            expr = unless_empty(graph, scores, list(map(Index.axis, axes[:3])), expr)
        results.append(graph.define(node, axes, expr, q.dtype, view=mode < 3 or not empty(), output=3))
    return results


def with_cache(
    graph: Graph, node: Node, given: tuple[OnnxValue, Shape], before: OnnxValue | None, output: int
) -> tuple[OnnxValue, Shape]:
    """Keys or values after those of the cache, and their shape; a tensor of the program where they are a result."""
    value, shape = given
    if before is None and not node.wanted(output):
        return given
    start: Extent = 0
    if before is not None:
        what = f"a cache of shape {list(before.shape)} before {list(shape)}"
        if before.rank != 4:
            raise node.shape_error(what)
        node.agree(((before.shape[d], shape[d]) for d in (0, 1, 3)), what)
        start = before.shape[2]
    whole = (*shape[:2], add(start, shape[2]), shape[3])
    axes = axes_of(whole)
    batch, head, position, place = map(Index.axis, axes)
    expr = head_element(graph, value, shape, (batch, head, position + Index.const(mul(-1, start)), place))
    if before is not None:
        inside = op("lt", build.position(position), build.size(start))
        expr = op("where", inside, graph.at(before, (batch, head, position, place)), expr)
    return graph.define(node, axes, expr, value.dtype, view=before is None, output=output), whole


def unless_empty(graph: Graph, scores: OnnxValue, row: Sequence[Index], expr: Expr) -> Expr:
    """0 for a query that has no key to attend to, all of whose scores are masked, as the operator says."""
    j = Axis("e", scores.shape[3])
    highest = build.reduce(ReduceKind.MAX, j, graph.at(scores, (*row, Index.axis(j))))
    return op("where", op("eq", highest, Const(-math.inf)), Const(0.0), expr)


Scored: TypeAlias = Callable[[Sequence[Axis], Expr], Expr]
"""What becomes of a scaled product of a query and a key, under the axes (batch, head, query, key)."""


def attend(
    graph: Graph,
    node: Node,
    parts: tuple[Operand, Operand, Operand],
    scale: float,
    scored: Scored,
    *,
    sink: Callable[[Index], Expr] | None = None,
    empty: Callable[[], bool] = lambda: False,
    flat: bool = True,
) -> tuple[OnnxValue, OnnxValue, OnnxValue]:
    """The scores and their softmax, which are defined, and the first result: the softmax times the values.

    Args:
        graph: the program.
        node: the operator.
        parts: queries, keys and values; several heads of queries may share one of keys.
        scale: the factor of products.
        scored: what becomes of them.
        sink: by head, a score that has a share of the softmax and no value.
        empty: whether a query may have no key to attend to, for which the result is 0.
        flat: whether the result is [batch, query, heads * size], or [batch, head, query, size].
    """
    (q, q_shape), (k, k_shape), (v, v_shape) = parts
    agree = [(q_shape[0], k_shape[0]), (k_shape[0], v_shape[0]), (q_shape[3], k_shape[3])]
    agree += [(k_shape[1], v_shape[1]), (k_shape[2], v_shape[2])]
    node.agree(agree, f"Q {list(q_shape)}, K {list(k_shape)} and V {list(v_shape)} do not fit together")
    heads, shared, size = q_shape[1], k_shape[1], v_shape[3]
    if not isinstance(heads, int) or not isinstance(shared, int) or heads % shared:
        raise node.shape_error(f"{heads} query heads do not share {shared} key heads evenly")
    repeat, name = heads // shared, node.outputs[0]
    axes = axes_of((*q_shape[:3], k_shape[2]))
    batch, head, i, j = map(Index.axis, axes)
    d = Axis("d", q_shape[3])
    left = head_element(graph, q, q_shape, (batch, head, i, Index.axis(d)))
    right = head_element(graph, k, k_shape, (batch, head.floordiv(repeat), j, Index.axis(d)))
    products = op("mul", build.reduce(ReduceKind.SUM, d, op("mul", left, right)), Const(scale))
    scores = graph.define_tensor(f"{name}_scores", axes, scored(axes, products), q.dtype, origin=node.label)
    row = rows(graph, scores, axes, [3])
    shares = softmax(graph.read(scores, axes), row) if sink is None else _with_sink(graph, scores, axes, sink(head))
    weights = graph.define_tensor(f"{name}_softmax", axes, shares, q.dtype, origin=node.label)
    first, query, key = Axis("b", q_shape[0]), Axis("i", q_shape[2]), Axis("j", k_shape[2])
    result: tuple[Axis, ...]
    if flat:
        if not is_static(size):
            raise node.shape_error("the number and the size of the heads must be known")
        side = Axis("hd", mul(heads, size))
        result, of_head, place = (first, query, side), Index.axis(side).floordiv(size), Index.axis(side).mod(size)
    else:
        own, last = Axis("h", heads), Axis("d", size)
        result, of_head, place = (first, own, query, last), Index.axis(own), Index.axis(last)
    at = (Index.axis(first), of_head, Index.axis(query))
    share = graph.at(weights, (*at, Index.axis(key)))
    value = head_element(graph, v, v_shape, (at[0], of_head.floordiv(repeat), Index.axis(key), place))
    total = build.reduce(ReduceKind.SUM, key, op("mul", share, value))
    if empty():
        total = unless_empty(graph, scores, at, total)
    return scores, weights, graph.define(node, result, total, q.dtype)


def default_scale(node: Node, size: Extent) -> float:
    """What products are multiplied by where nothing is said: it follows from the size of a head."""
    if not is_static(size):
        raise node.unsupported("the default scale needs the size of a head", fix="set the attribute scale")
    return 1.0 / math.sqrt(int(size))


def _with_sink(graph: Graph, scores: OnnxValue, axes: Sequence[Axis], sink: Expr) -> Expr:
    """exp(s - m) / (sum exp(s - m) + exp(sink - m)), m the largest of the scores and the sink."""
    row = rows(graph, scores, axes, [3])
    bound, element = row("m")
    highest = op("maximum", build.reduce(ReduceKind.MAX, bound, element), sink)
    bound, element = row("s")
    total = build.reduce(ReduceKind.SUM, bound, op("exp", sub(element, highest)))
    total = op("add", total, op("exp", sub(sink, highest)))
    return op("mul", op("exp", sub(graph.read(scores, axes), highest)), op("recip", total))


def soft_capped(score: Expr, cap: float) -> Expr:
    """cap * tanh(score / cap), where there is a cap."""
    return op("mul", op("tanh", op("mul", score, Const(1.0 / cap))), Const(cap)) if cap > 0 else score


def _attended(call: _Call, axes: Sequence[Axis]) -> list[Expr]:
    """The conditions on batch, head, query and key, all of which hold where the query attends to the key."""
    graph, node = call.graph, call.node
    batch, _, i, j = map(Index.axis, axes)
    tests: list[Expr] = []
    if call.mask is not None and call.mask.dtype == DType.BOOL:
        tests.append(_mask_element(call, axes))
    # The key that stands where the query does: the queries come last.
    here = build.position(i + Index.const(call.past))
    if call.used is not None:
        used = graph.at(call.used, (batch,))
        tests.append(op("lt", build.position(j), used))
        here = op("add", build.position(i + Index.const(mul(-1, axes[2].extent))), used)
    bounds = [node.integer(name) if node.version >= 25 else -1 for name in ("left_window_size", "right_window_size")]
    if min(bounds) < -1:
        raise node.unsupported(f"a window of size {min(bounds)} is not known", fix="use -1 for none")
    if node.flag("is_causal"):
        tests.append(op("le", build.position(j), here))
    if bounds[0] >= 0:
        tests.append(op("le", sub(here, Const(float(bounds[0]))), build.position(j)))
    if bounds[1] >= 0:
        tests.append(op("le", build.position(j), op("add", here, Const(float(bounds[1])))))
    return tests


def _mask_element(call: _Call, axes: Sequence[Axis]) -> Expr:
    """The mask's element; where it is shorter than the keys, the rest of them is masked."""
    mask, node = call.mask, call.node
    assert mask is not None
    shape = tuple(a.extent for a in axes)
    total = axes[3].extent
    given = mask.shape[-1] if mask.rank else 1
    short = not same_extent(given, total)
    if short and given == 1:
        raise node.unsupported(
            "a mask of one key has no translation",
            why="whether it holds for all keys, or the others are masked, is not settled between runtimes",
            fix="pass the mask of all keys",
        )
    result = broadcast_shapes(shape[:3], mask.shape[:-1], where=node.where)
    what = f"the mask of shape {list(mask.shape)} does not broadcast to {list(shape)}"
    if mask.rank > 4:
        raise node.shape_error(what)
    node.agree(zip(result, shape[:3], strict=True), what)
    if short and compare_extents("lt", given, total) is not True:
        raise node.shape_error(what, differ=(given, total))
    element = call.graph.read(mask, axes)
    if not short:
        return element
    outside = Const(0.0 if mask.dtype == DType.BOOL else -math.inf)
    return op("where", op("lt", build.position(Index.axis(axes[3])), build.size(given)), element, outside)


_LARGEST_MASK = 1 << 22
"""The most elements of a mask that is worked out to see whether it leaves every query a key."""


def _may_be_empty(call: _Call) -> bool:
    """Whether some query may have no key to attend to, so that the operator makes a row of zeros of it."""
    graph = call.graph
    axes = axes_of((*call.q[1][:3], call.k[1][2]))
    tests = _attended(call, axes)
    if call.mask is not None and call.mask.dtype != DType.BOOL:
        tests.append(op("lt", Const(-math.inf), _mask_element(call, axes)))
    # Where the key at position 0, or the query's own, is attended to for certain, no row is empty.
    first, own = Index.const(0), Index.axis(axes[2]) + Index.const(call.past)
    candidates = [first, own] if same_extent(add(axes[2].extent, call.past), axes[3].extent) else [first]
    for key in candidates:
        if all(_holds(graph, substitute(test, {axes[3]: key})) for test in tests):
            return False
    inside: Expr = Const(1.0)
    for test in tests:
        inside = op("and", inside, test)
    shape = static_shape([a.extent for a in axes])
    reads = {e.tensor for e in walk(inside) if isinstance(e, Read)}
    if shape is None or math.prod(shape) > _LARGEST_MASK or not reads <= graph.weights.keys():
        return True
    known = evaluate_expr(inside, {name: graph.weights[name] for name in reads}, {}, tuple(axes))
    return not bool(np.all(np.any(known != 0, axis=3)))


def _holds(graph: Graph, test: Expr) -> bool:
    """Whether a condition on positions holds everywhere, as far as the bounds of its sides say."""
    match test:
        case Const(value):
            return value != 0
        case Map("and", (a, b)):
            return _holds(graph, a) and _holds(graph, b)
        case Map("or", (a, b)):
            return _holds(graph, a) or _holds(graph, b)
        case Map("le" | "lt" as name, (a, b)):
            below, above = as_index(a), as_index(b)
            if below is None or above is None:
                return False
            gap = graph.bounds(build.position(above + below.scaled(-1)))
            return gap.low >= (0 if name == "le" else 1)
    return False


def _rotary(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x, cos, sin = (node.input(place) for place in range(3))
    heads = node.integer("num_heads") or None
    shape = _heads(node, x, heads, "the operand")
    size = shape[3]
    if not isinstance(size, int):
        raise node.unsupported("the size of a head must be known")
    rotated = node.integer("rotary_embedding_dim") or size
    half = rotated // 2
    if rotated % 2 or rotated > size:
        raise node.shape_error(f"{rotated} of {size} places in a head cannot be rotated in pairs")

    of_cos, of_sin = (partial(_angle, graph, node, angles, shape, half) for angles in (cos, sin))
    return [rotated_heads(graph, node, x, size, rotated, of_cos, of_sin)]


def rotated_heads(graph: Graph, node: Node, x: OnnxValue, size: int, rotated: int, cos: Angle, sin: Angle) -> OnnxValue:
    """x, whose heads of `size` places lie side by side where it has 3 dimensions, with the first of them rotated."""
    axes = axes_of(x.shape)
    if x.rank == 4:
        batch, head, position, place = map(Index.axis, axes)
    else:
        batch, position, flat = map(Index.axis, axes)
        head, place = flat.floordiv(size), flat.mod(size)

    def element(at: Index) -> Expr:
        return graph.at(x, (batch, head, position, at) if x.rank == 4 else (batch, position, head.scaled(size) + at))

    def angle(at: Index) -> tuple[Expr, Expr]:
        return cos(batch, position, at), sin(batch, position, at)

    expr = rotation(place, size, rotated, element, angle, interleaved=node.flag("interleaved"))
    return graph.define(node, axes, expr, x.dtype)


def rotation(
    place: Index,
    size: int,
    rotated: int,
    element: Callable[[Index], Expr],
    angle: Callable[[Index], tuple[Expr, Expr]],
    *,
    interleaved: bool,
) -> Expr:
    """The element at a place of a head whose first places are rotated in pairs.

    Args:
        place: where in the head.
        size: of the head.
        rotated: how many places are.
        element: what is rotated, at a place.
        angle: cosine and sine of a pair's angle.
        interleaved: whether pairs lie side by side, rather than half of the rotated places apart.
    """
    half = rotated // 2

    def turned(first: Index, second: Index, at: Index) -> tuple[Expr, Expr]:
        """Both coordinates of the pair after the rotation."""
        (c, s), a, b = angle(at), element(first), element(second)
        return sub(op("mul", c, a), op("mul", s, b)), op("add", op("mul", s, a), op("mul", c, b))

    if interleaved:
        pair, parity = place.floordiv(2), place.mod(2)
        real, imaginary = turned(pair.scaled(2), pair.scaled(2) + 1, pair)
        expr = op("where", op("eq", build.position(parity), Const(0.0)), real, imaginary)
    else:
        lower, upper = place + half, place + -half
        real, _ = turned(place, lower, place)
        _, imaginary = turned(upper, place, upper)
        expr = op("where", op("lt", build.position(place), Const(float(half))), real, imaginary)
    if rotated < size:
        expr = op("where", op("lt", build.position(place), Const(float(rotated))), expr, element(place))
    return expr


def _angle(
    graph: Graph, node: Node, cache: OnnxValue, shape: Shape, half: int, batch: Index, position: Index, at: Index
) -> Expr:
    """What a cache holds of the angle of a batch, a position and a pair."""
    ids = node.optional(3)
    if ids is None:
        what = f"a cache of shape {list(cache.shape)} for {shape[2]} positions and {half} pairs"
        if cache.rank != 3 or cache.shape[2] != half:
            raise node.shape_error(what)
        node.agree([(cache.shape[1], shape[2])], what)
        if cache.shape[0] != 1:
            node.agree([(cache.shape[0], shape[0])], f"a cache of shape {list(cache.shape)} for a batch of {shape[0]}")
        return graph.at(cache, (Index.const(0) if cache.shape[0] == 1 else batch, position, at))
    if cache.rank != 2 or cache.shape[1] != half:
        raise node.shape_error(f"a cache of shape {list(cache.shape)} for {half} pairs")
    if ids.rank != 2:
        raise node.shape_error(f"position_ids of the shape {list(ids.shape)}")
    place = graph.at(ids, (Index.const(0) if ids.shape[0] == 1 else batch, position))
    return at_position(graph, cache, graph.place(place, Axis("r", cache.shape[0])), at)


def at_position(graph: Graph, cache: OnnxValue, place: Expr, at: Index) -> Expr:
    """What a cache holds of a position's pair; at a position that is known, a read."""
    index = as_index(place)
    if index is not None and index.within(cache.shape[0]):
        return graph.at(cache, (index, at))
    bound = Axis("r", cache.shape[0])
    return looked_up(bound, place, graph.at(cache, (Index.axis(bound), at)))


TRANSLATORS: Mapping[str, Translator] = MappingProxyType({"Attention": _attention, "RotaryEmbedding": _rotary})
