"""Operators that optimisers put in the place of standard ones: onnxruntime's fused ones, of the domain `com.microsoft`.

onnx has no schemas of them. What they mean is what onnxruntime's kernels for CPUs compute, which the tests compare them
with. Two are written into the standard domain: SimplifiedLayerNormalization, and LayerNormalization before version 17.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import onnx

from prism.frontend.onnx import contrib_attention, contrib_quantized, linear, norms, pointwise, quantized, views
from prism.frontend.onnx.graph import MAIN_DOMAINS, Graph, Node, OnnxValue, Operand, single
from prism.frontend.onnx.norms import fits
from prism.frontend.onnx.schemas import Signature
from prism.frontend.rows import inverse_root, square
from prism.program import build
from prism.program.extents import cdiv
from prism.program.fold import op, sub
from prism.program.formulas import UNARY, gelu, leaky_relu
from prism.program.index import Axis, Index
from prism.program.lookup import looked_up
from prism.program.nodes import Const, DType, Expr, ReduceKind
from prism.program.views import axes_of, same_extent

DOMAIN = "com.microsoft"
Translator = Callable[[Graph, Node], Sequence["OnnxValue | None"]]

_IN_MAIN = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})


def has(proto: onnx.NodeProto, opset: int) -> bool:
    """Whether the node is one of these operators, in a model of that operator set."""
    if proto.domain == DOMAIN:
        return proto.op_type in TRANSLATORS or has_body(proto)
    return proto.domain in MAIN_DOMAINS and proto.op_type in _IN_MAIN and not onnx.defs.has(proto.op_type, opset)


def has_body(proto: onnx.NodeProto) -> bool:
    """Whether the node is read as standard ones: see `contrib_quantized.body`."""
    return proto.domain == DOMAIN and proto.op_type in contrib_quantized.NAMES


def signature(op: str) -> Signature:
    """What such an operator's attributes are where a node does not say."""
    return Signature(1, (), MappingProxyType(dict(_DEFAULTS.get(op, {}))))


# Activations


def _biased(f: Callable[[Expr], Expr], graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """`f` of the operand, to which a bias is added where one is given."""
    x, bias = node.input(0), node.optional(1)
    given = [x] if bias is None else [x, bias]
    if bias is not None:
        fits(node, bias, x.shape, "the bias")
    return [graph.pointwise(node, given, lambda *parts: f(_sum(parts)))]


def _sum(parts: Sequence[Expr]) -> Expr:
    """The sum of the parts, the first first."""
    total = parts[0]
    for part in parts[1:]:
        total = op("add", total, part)
    return total


def _split_gelu(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """After a bias, the first half of the last dimension times the gelu of the second."""
    x, bias = node.input(0), node.input(1)
    fits(node, bias, x.shape, "the bias")
    last = x.shape[-1]
    if not isinstance(last, int) or last % 2:
        raise node.shape_error(f"a dimension of {last} has no halves")
    axes = axes_of((*x.shape[:-1], last // 2))
    before = [Index.axis(a) for a in axes[:-1]]

    def element(at: Index) -> Expr:
        return op("add", graph.at(x, [*before, at]), graph.at(bias, [at]))

    here = Index.axis(axes[-1])
    gate = gelu(element(here + last // 2))
    return [graph.define(node, axes, op("mul", element(here), gate), x.dtype)]


# Normalisations


def _simplified_layer_norm(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x = node.input(0)
    node.integer("stash_type")  # the precision of a step
    return [norms.rms_norm(graph, node, x, node.input(1), node.axis("axis", x.rank))]


def _with_skip(graph: Graph, node: Node, bias: int) -> tuple[OnnxValue, list[OnnxValue | None]]:
    """(input + skip + bias, what of the four results there is beside the first)."""
    x, skip, also = node.input(0), node.input(1), node.optional(bias)
    fits(node, skip, x.shape, "the skip")
    given = [x, skip]
    if also is not None:
        fits(node, also, x.shape, "the bias")
        given.append(also)
    axes = axes_of(x.shape)
    total = _sum([graph.read(v, axes) for v in given])
    label = node.outputs[3] if node.wanted(3) else f"{node.outputs[0]}_sum"
    summed = graph.define_tensor(label, axes, total, x.dtype, origin=node.label)
    return summed, [None, None, summed] if node.wanted(3) else []


def _skip_layer_norm(graph: Graph, node: Node) -> Sequence[OnnxValue | None]:
    _refuse_statistics(node)
    summed, also = _with_skip(graph, node, 4)
    return [norms.layer_norm(graph, node, summed, node.input(2), node.optional(3), [summed.rank - 1]), *also]


def _skip_simplified_layer_norm(graph: Graph, node: Node) -> Sequence[OnnxValue | None]:
    _refuse_statistics(node)
    summed, also = _with_skip(graph, node, 3)
    return [norms.rms_norm(graph, node, summed, node.input(2), summed.rank - 1), *also]


def _refuse_statistics(node: Node) -> None:
    for place in (1, 2):
        if node.wanted(place):
            raise node.unsupported(f"the result {place} is not supported", fix="remove that output")


def _embed_layer_norm(graph: Graph, node: Node) -> Sequence[OnnxValue | None]:
    """The sum of words', positions' and segments' embeddings, normalised; and how many words are not masked."""
    words, segments = node.input(0), node.optional(1)
    tables = [node.input(2), node.input(3), node.optional(4)]
    mask, positions = node.optional(7), node.optional(8)
    if words.rank != 2 or any(t is not None and t.rank != 2 for t in tables):
        raise node.shape_error("words are numbers by batch and place, and embeddings rows of tables")
    hidden = node.input(2).shape[1]
    axes = axes_of((*words.shape, hidden))
    batch, place, column = map(Index.axis, axes)

    def row(table: OnnxValue, at: Expr) -> Expr:
        bound = Axis("r", table.shape[0])
        return looked_up(bound, graph.place(at, bound), graph.at(table, [Index.axis(bound), column]))

    parts = [row(node.input(2), graph.at(words, [batch, place]))]
    if positions is None:
        parts.append(graph.at(node.input(3), [place, column]))
    else:
        of = Index.const(0) if positions.shape[0] == 1 else batch
        parts.append(row(node.input(3), graph.at(positions, [of, place])))
    if segments is not None:
        if tables[2] is None:
            raise node.shape_error("segments without embeddings of segments")
        parts.append(row(tables[2], graph.at(segments, [batch, place])))
    dtype = node.input(2).dtype
    label = node.outputs[2] if node.wanted(2) else f"{node.outputs[0]}_sum"
    summed = graph.define_tensor(label, axes, _sum(parts), dtype, origin=node.label)
    normal = norms.layer_norm(graph, node, summed, node.input(5), node.input(6), [2])
    counted: OnnxValue | None = None
    node.integer("mask_index_type")
    if node.wanted(1):
        (over,) = axes_of(words.shape[:1])
        total: Expr = Const(0.0)
        if mask is not None:
            s = Axis("s", words.shape[1])
            kept = op("eq", graph.at(mask, [Index.axis(over), Index.axis(s)]), Const(1.0))
            total = build.reduce(ReduceKind.SUM, s, op("where", kept, Const(1.0), Const(0.0)))
        counted = graph.define(node, (over,), total, DType.INT32, output=1)
    return [normal, counted, summed if node.wanted(2) else None]


def _gated_rms_norm(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """Groups of the last dimension as long as the scale, normalised, scaled, and times the gate's activation."""
    x, scale, gate = node.input(0), node.input(1), node.input(2)
    name = str(node.attributes["activation"])
    if name not in ("silu", "swish", "sigmoid") or scale.rank != 1:
        raise node.unsupported(f"the activation {name!r} of scales of {scale.rank} dimensions is not known")
    each, axes = scale.shape[0], axes_of(x.shape)
    before, last = [Index.axis(a) for a in axes[:-1]], Index.axis(axes[-1])
    if not isinstance(each, int) or not isinstance(x.shape[-1], int) or x.shape[-1] % each:
        raise node.shape_error(f"a dimension of {x.shape[-1]} has no groups of {each}")
    bound = Axis("r", each)
    group = graph.at(x, [*before, last.floordiv(each).scaled(each) + Index.axis(bound)])
    squares = build.mean(bound, square(group))
    normal = op("mul", graph.read(x, axes), inverse_root(squares, node.number("epsilon")))
    scaled = op("mul", normal, graph.at(scale, [last.mod(each)]))
    opened = graph.read(gate, axes)
    soft = op("sigmoid", opened)
    return [
        graph.define(node, axes, op("mul", scaled, soft if name == "sigmoid" else op("mul", opened, soft)), x.dtype)
    ]


# Products


def _fused_matmul(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """alpha * A B, of matrices that may lie transposed, and before their batch."""
    given = [node.input(0), node.input(1)]
    flags = [(node.flag(f"trans{x}"), node.flag(f"transBatch{x}")) for x in "AB"]
    if min(v.rank for v in given) < 1 or any(v.rank < 2 and any(f) for v, f in zip(given, flags, strict=True)):
        raise node.shape_error("a product of scalars, or of a vector that is transposed")
    a, b = (_turned(graph, v, _order(v.rank, *f)) for v, f in zip(given, flags, strict=True))
    axes, total = linear.product(node, a, b)
    alpha = node.number("alpha")
    if alpha != 1.0:
        total = op("mul", Const(alpha), total)
    return [graph.define(node, axes, total, given[0].dtype)]


def _turned(graph: Graph, value: OnnxValue, order: Sequence[int]) -> Operand:
    """An operand with its dimensions in another order."""
    shape = tuple(value.shape[d] for d in order)
    return Operand(shape, lambda index: graph.at(value, [index[order.index(d)] for d in range(value.rank)]))


def _order(rank: int, transposed: bool, batch_last: bool) -> list[int]:
    """The dimensions of an operand as a batch of matrices has them."""
    order = list(range(rank))
    if batch_last and rank > 2:  # it lies as rows, batch, columns
        order = [*range(1, rank - 1), 0, rank - 1]
    if transposed and rank > 1:
        order[-2:] = order[:-3:-1]
    return order


def _fused_gemm(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    name = str(node.attributes.get("activation", ""))
    slope = node.number("activation_alpha")
    node.number("activation_beta")
    node.number("activation_gamma")
    shapes: dict[str, Callable[[Expr], Expr]] = {
        "": lambda x: x,
        **{name: UNARY[name.lower()] for name in ("Relu", "Sigmoid", "Tanh")},
        "LeakyRelu": lambda x: leaky_relu(x, slope),
    }
    if name not in shapes:
        raise node.unsupported(f"the activation {name!r} has no translation")
    axes, expr = linear.gemm(graph, node)
    return [graph.define(node, axes, shapes[name](expr), node.input(0).dtype)]


def _matmul_integer_to_float(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """The product of levels above their zeros, times both scales, and a bias."""
    a, b, a_scale, b_scale = (node.input(n) for n in range(4))
    zeros, bias = (node.optional(4), node.optional(5)), node.optional(6)
    axes, row, column, total = quantized.product(graph, node, a, b, zeros)
    scale = op(
        "mul",
        quantized.along(graph, node, a_scale, row, "a scale"),
        quantized.along(graph, node, b_scale, column, "a scale"),
    )
    result = op("mul", total, scale)
    if bias is not None:
        result = op("add", result, graph.read(bias, axes))
    return [graph.define(node, axes, result, a_scale.dtype)]


def _matmul_n_bits(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """A times a matrix whose rows are stored in blocks, each with a scale and a zero, of a few bits a number."""
    a, b, scales = (node.input(n) for n in range(3))
    zeros, bias = node.optional(3), node.optional(5)
    columns, deep, bits, block = (node.integer(n) for n in ("N", "K", "bits", "block_size"))
    node.integer("accuracy_level")  # how precise a step is
    node.integer("weight_prepacked")
    if node.attributes.get("weight_prepacked"):
        raise node.unsupported("weights that are packed for one device have no translation")
    if bits not in (1, 2, 4, 8) or block < 8 or a.rank < 1:
        raise node.unsupported(f"numbers of {bits} bits in blocks of {block} have no translation")
    blocks = -(-deep // block)
    if not same_extent(a.shape[-1], deep) or b.shape != (columns, blocks, block * bits // 8):
        raise node.shape_error(f"A {list(a.shape)} and B {list(b.shape)} are not of {deep} by {columns}")
    n, k = Axis("n", columns), Axis("k", deep)
    at, row = Index.axis(k), Index.axis(n)
    outer = axes_of(a.shape[:-1], "b")

    def of_block(value: OnnxValue, place: Index) -> Expr:
        if value.rank == 1:
            return graph.at(value, [row.scaled(blocks) + place])
        return graph.at(value, [row, place])

    here = at.floordiv(block)
    zero: Expr = Const(float(1 << (bits - 1)))
    if zeros is not None and zeros.dtype is DType.UINT8:
        if zeros.rank == 1:
            begins = row.scaled(cdiv(blocks * bits, 8))
            zero = _number(lambda byte: graph.at(zeros, [begins + byte]), here, bits)
        else:
            zero = _number(lambda byte: graph.at(zeros, [row, byte]), here, bits)
    elif zeros is not None:
        zero = of_block(zeros, here)
    level = _number(lambda byte: graph.at(b, [row, here, byte]), at.mod(block), bits)
    weight = op("mul", sub(level, zero), of_block(scales, here))
    total = build.reduce(ReduceKind.SUM, k, op("mul", graph.read(a, (*outer, k)), weight))
    if bias is not None:
        total = op("add", total, graph.at(bias, [row]))
    return [graph.define(node, (*outer, n), total, a.dtype)]


def _number(at: Callable[[Index], Expr], where: Index, bits: int) -> Expr:
    """The number at a place of a row of bytes, each of which holds several, low bits first."""
    each, size = 8 // bits, float(1 << bits)
    byte, place = at(where.floordiv(each)), build.position(where.mod(each))

    def shifted(n: int) -> Expr:
        return byte if n == 0 else op("floor", op("mul", byte, Const(2.0 ** -(bits * n))))

    def number(n: int) -> Expr:
        return sub(shifted(n), op("mul", Const(size), shifted(n + 1))) if n + 1 < each else shifted(n)

    expr = number(each - 1)
    for n in reversed(range(each - 1)):
        expr = op("where", op("eq", place, Const(float(n))), number(n), expr)
    return expr


def _gather_block_quantized(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """Rows of a table of a few bits a number, of which each block has a scale and a zero."""
    data, places, scales, zeros = node.input(0), node.input(1), node.input(2), node.optional(3)
    bits, block = node.integer("bits"), node.integer("block_size")
    gather, along = node.integer("gather_axis"), node.integer("quantize_axis")
    if data.dtype is not DType.UINT8 or bits not in (2, 4, 8) or data.rank != 2 or gather != 0 or along % 2 != 1:
        raise node.unsupported("a quantised table that is not of rows of bytes has no translation")
    each, wide = 8 // bits, data.shape[1]
    if not isinstance(wide, int) or block < 1:
        raise node.unsupported("a table of rows of symbolic length has no translation")
    axes = axes_of((*places.shape, wide * each))
    column, bound = Index.axis(axes[-1]), Axis("r", data.shape[0])
    row = Index.axis(bound)

    def number(packed: OnnxValue, place: Index) -> Expr:
        return _number(lambda byte: graph.at(packed, [row, byte]), place, bits)

    here = column.floordiv(block)
    zero = Const(float(1 << (bits - 1))) if zeros is None else number(zeros, here)
    element = op("mul", sub(number(data, column), zero), graph.at(scales, [row, here]))
    place = graph.place(graph.read(places, axes[: places.rank]), bound)
    return [graph.define(node, axes, looked_up(bound, place, element), scales.dtype)]


TRANSLATORS: Mapping[str, Translator] = MappingProxyType(
    {
        "BiasAdd": lambda graph, node: [
            graph.pointwise(node, [node.input(n) for n in range(3)], lambda *parts: _sum(parts))
        ],
        "BiasGelu": partial(_biased, gelu),
        "BiasSplitGelu": _split_gelu,
        "DequantizeLinear": quantized.TRANSLATORS["DequantizeLinear"],
        "EmbedLayerNormalization": _embed_layer_norm,
        "FastGelu": partial(_biased, lambda x: gelu(x, "tanh")),
        "FusedGemm": _fused_gemm,
        "FusedMatMul": _fused_matmul,
        "GatedRMSNorm": _gated_rms_norm,
        "GatherBlockQuantized": _gather_block_quantized,
        "Gelu": partial(_biased, gelu),
        "LayerNormalization": norms.TRANSLATORS["LayerNormalization"],
        "MatMulIntegerToFloat": _matmul_integer_to_float,
        "MatMulNBits": _matmul_n_bits,
        "QuantizeLinear": quantized.TRANSLATORS["QuantizeLinear"],
        "QuickGelu": single(pointwise.TRANSLATORS["Swish"]),
        "SimplifiedLayerNormalization": _simplified_layer_norm,
        "SkipLayerNormalization": _skip_layer_norm,
        "SkipSimplifiedLayerNormalization": _skip_simplified_layer_norm,
        "TransposeMatMul": _fused_matmul,
        "Trilu": views.TRANSLATORS["Trilu"],
        **contrib_attention.TRANSLATORS,
    }
)

_SKIP = {"epsilon": 1e-12}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "DequantizeLinear": {"axis": 1},
    "EmbedLayerNormalization": _SKIP,
    "FusedGemm": {"alpha": 1.0, "beta": 1.0},
    "FusedMatMul": {"alpha": 1.0},
    "GatedRMSNorm": {"activation": "silu", "epsilon": 1e-5},
    "GatherBlockQuantized": {"bits": 4, "block_size": 128, "quantize_axis": 1},
    "LayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
    "MatMulNBits": {"bits": 4},
    "QuantizeLinear": {"axis": 1},
    "QuickGelu": {"alpha": 1.702},
    "SimplifiedLayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
    "SkipLayerNormalization": _SKIP,
    "SkipSimplifiedLayerNormalization": _SKIP,
    "TransposeMatMul": {"alpha": 1.0},
    "Trilu": {"upper": 1},
    **contrib_attention.DEFAULTS,
}
"""What attributes are where a node does not say, as onnxruntime's schemas have it; numbers that are missing are 0."""
