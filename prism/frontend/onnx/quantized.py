"""ONNX operators of quantised numbers: over the reals, with the rounding and the saturation that they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from prism.frontend.onnx import linear, windows
from prism.frontend.onnx.dtypes import dtype_of
from prism.frontend.onnx.graph import Graph, Node, OnnxValue, Operand, Translator
from prism.program import build, integers
from prism.program.fold import op, sub
from prism.program.formulas import quotient
from prism.program.index import Axis, Index
from prism.program.nodes import Const, DType, Expr, ReduceKind
from prism.program.views import axes_of, same_extent


def _is_single(value: OnnxValue | None) -> bool:
    """Whether it is one number for the whole tensor, which may be written as a row of one."""
    return value is None or value.rank == 0 or value.shape == (1,)


def _blockwise(
    graph: Graph, node: Node, x: OnnxValue, scale: OnnxValue, zero: OnnxValue | None
) -> Callable[[Sequence[Axis], OnnxValue], Expr]:
    """How a scale or a zero point is read: one for the tensor, for each place along an axis, or for each block."""
    axis, block = 0, node.integer("block_size")
    if scale.array is not None and not np.isfinite(scale.array.astype(np.float64)).all():
        raise node.unsupported(
            "a scale that is not finite has no translation",
            why="which levels it gives is not defined",
            fix="calibrate it on finite numbers: a mask of -inf does not have a scale",
        )
    if _is_single(scale) and _is_single(zero):
        node.integer("axis")  # one scale for the tensor has no axis, whatever this says
    else:
        axis = node.axis("axis", x.rank)

    def parameter(axes: Sequence[Axis], value: OnnxValue) -> Expr:
        if _is_single(value):
            return graph.at(value, [Index.const(0)] * value.rank)
        if value.rank == 1 and not block:
            if not same_extent(value.shape[0], x.shape[axis]):
                raise node.shape_error(f"{value.shape[0]} scales for a dimension of {x.shape[axis]}")
            return graph.at(value, [Index.axis(axes[axis])])
        if value.rank != x.rank or not block:
            raise node.shape_error(f"scales of {value.rank} dimensions for a tensor of {x.rank}")
        return graph.at(
            value, [Index.axis(a).floordiv(block) if d == axis else Index.axis(a) for d, a in enumerate(axes)]
        )

    return parameter


def _dequantize(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """(q - zero) * scale."""
    q, scale, zero = node.input(0), node.input(1), node.optional(2)
    axes = axes_of(q.shape)
    parameter = _blockwise(graph, node, q, scale, zero)
    level = graph.read(q, axes)
    if zero is not None:
        level = sub(level, parameter(axes, zero))
    asked = node.integer("output_dtype")
    dtype = dtype_of(asked, node.where) if asked else scale.dtype if scale.dtype.is_float else DType.FLOAT32
    return [graph.define(node, axes, op("mul", level, parameter(axes, scale)), dtype)]


def _quantize(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """round(x / scale) + zero, half to even, within the type."""
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    axes = axes_of(x.shape)
    parameter = _blockwise(graph, node, x, scale, zero)
    asked = node.integer("output_dtype")
    dtype = zero.dtype if zero is not None else dtype_of(asked, node.where) if asked else DType.UINT8
    level = quotient(graph.read(x, axes), parameter(axes, scale))
    return [graph.define(node, axes, _saturated(level, dtype, parameter(axes, zero) if zero else None), dtype)]


def _dynamic_quantize(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """A tensor as bytes with the scale and the zero point that its own range asks for; of zeros the scale is 1."""
    x = node.input(0)
    own = integers.range_of(DType.UINT8)

    def extreme(kind: ReduceKind, name: str) -> Expr:
        axes = axes_of(x.shape, "r")
        found = graph.read(x, axes)
        for axis in reversed(axes):
            found = build.reduce(kind, axis, found)
        return op(name, found, Const(0.0))

    def named(what: str, value: Expr) -> Expr:
        label = f"{node.outputs[0]}_{what}"
        return graph.read(graph.define_tensor(label, (), value, x.dtype, origin=node.label), ())

    low = named("low", extreme(ReduceKind.MIN, "minimum"))
    span = named("span", sub(extreme(ReduceKind.MAX, "maximum"), low))
    # As onnxruntime has it, where the formula would divide zeros by zero; a span whose share is 0 is as good as none.
    share = quotient(span, Const(own.high))
    width = op("where", op("eq", share, Const(0.0)), Const(1.0), share)
    scale = graph.define(node, (), width, x.dtype, output=1)
    step = graph.read(scale, ())
    zero = graph.define(node, (), _saturated(op("neg", quotient(low, step)), DType.UINT8, None), DType.UINT8, output=2)
    axes = axes_of(x.shape)
    level = _saturated(quotient(graph.read(x, axes), step), DType.UINT8, graph.read(zero, ()))
    return [graph.define(node, axes, level, DType.UINT8), scale, zero]


def _refuse_overflow(graph: Graph, node: Node, total: Expr) -> None:
    """Refuse sums of products that may leave the int32 in which the operator adds them up."""
    bounds = graph.bounds(total)
    if not bounds.within(integers.range_of(DType.INT32)):
        raise node.unsupported(
            f"a sum of products may lie anywhere within {bounds}",
            why="what is beyond int32 is not defined",
            fix="store the bias in the model",
        )


def _saturated(x: Expr, dtype: DType, zero: Expr | None) -> Expr:
    own = integers.range_of(dtype)
    level = op("round", x)
    if zero is not None:
        level = op("add", level, zero)
    return op("minimum", op("maximum", level, Const(own.low)), Const(own.high))


def _scalar(graph: Graph, node: Node, value: OnnxValue, what: str) -> Expr:
    if not _is_single(value):
        raise node.unsupported(f"{what} of shape {list(value.shape)} has no translation", fix="use one for the tensor")
    return graph.at(value, [Index.const(0)] * value.rank)


def along(graph: Graph, node: Node, value: OnnxValue, axis: Axis | None, what: str) -> Expr:
    """One number for the tensor, or one for each place along an axis."""
    if value.rank == 1 and not _is_single(value) and axis is not None and same_extent(value.shape[0], axis.extent):
        return graph.at(value, [Index.axis(axis)])
    return _scalar(graph, node, value, what)


def _above(graph: Graph, node: Node, element: Expr, zero: OnnxValue | None, axis: Axis | None, what: str) -> Expr:
    return element if zero is None else sub(element, along(graph, node, zero, axis, what))


def product(
    graph: Graph, node: Node, a: OnnxValue, b: OnnxValue, zeros: Sequence[OnnxValue | None]
) -> tuple[tuple[Axis, ...], Axis | None, Axis | None, Expr]:
    """(the axes, the row's, the column's, the sum of products) of a matrix product of levels above their zeros."""

    def left(index: Sequence[Index]) -> Expr:
        row = index[-2].as_axis() if a.rank > 1 else None
        return _above(graph, node, graph.at(a, index), zeros[0], row, "a zero point")

    def right(index: Sequence[Index]) -> Expr:
        column = index[-1].as_axis() if b.rank > 1 else None
        return _above(graph, node, graph.at(b, index), zeros[1], column, "a zero point")

    axes, total = linear.product(node, Operand(a.shape, left), Operand(b.shape, right))
    column = axes[-1] if b.rank > 1 else None
    row = axes[-1 if column is None else -2] if a.rank > 1 else None
    return axes, row, column, total


def _matmul_integer(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    axes, _, _, total = product(graph, node, node.input(0), node.input(1), (node.optional(2), node.optional(3)))
    return [graph.define(node, axes, total, DType.INT32)]


def _qlinear_matmul(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (node.input(n) for n in range(8))
    axes, row, column, total = product(graph, node, a, b, (a_zero, b_zero))
    _refuse_overflow(graph, node, total)
    factor = op("mul", along(graph, node, a_scale, row, "a scale"), along(graph, node, b_scale, column, "a scale"))
    return [_rescaled(graph, node, axes, op("mul", total, factor), scale, zero)]


def _rescaled(
    graph: Graph, node: Node, axes: Sequence[Axis], value: Expr, scale: OnnxValue, zero: OnnxValue
) -> OnnxValue:
    """A value over the reals as levels of one scale, by the zero point, whose type they have."""
    level = quotient(value, _scalar(graph, node, scale, "a scale"))
    return graph.define(
        node, axes, _saturated(level, zero.dtype, _scalar(graph, node, zero, "a zero point")), zero.dtype
    )


def _levels(
    graph: Graph, node: Node, x: OnnxValue, w: OnnxValue, zeros: Sequence[OnnxValue | None]
) -> tuple[list[Axis], Expr]:
    """The axes and the element of a convolution of levels above their zeros."""

    def read(index: Sequence[Index]) -> Expr:
        return _above(graph, node, graph.at(x, index), zeros[0], None, "a zero point")

    def weight(index: Sequence[Index]) -> Expr:
        channel = index[0].as_axis()
        return _above(graph, node, graph.at(w, index), zeros[1], channel, "a zero point")

    return windows.convolution(graph, node, x, w, Operand(x.shape, read), Operand(w.shape, weight))


def _conv_integer(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    axes, total = _levels(graph, node, node.input(0), node.input(1), (node.optional(2), node.optional(3)))
    return [graph.define(node, axes, total, DType.INT32)]


def _qlinear_conv(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x, x_scale, x_zero, w, w_scale, w_zero, scale, zero = (node.input(n) for n in range(8))
    axes, total = _levels(graph, node, x, w, (x_zero, w_zero))
    bias = node.optional(8)
    if bias is not None:
        total = op("add", total, along(graph, node, bias, axes[1], "a bias"))
    _refuse_overflow(graph, node, total)
    factor = op("mul", _scalar(graph, node, x_scale, "a scale"), along(graph, node, w_scale, axes[1], "a scale"))
    return [_rescaled(graph, node, axes, op("mul", total, factor), scale, zero)]


TRANSLATORS: Mapping[str, Translator] = MappingProxyType(
    {
        "QuantizeLinear": _quantize,
        "DequantizeLinear": _dequantize,
        "DynamicQuantizeLinear": _dynamic_quantize,
        "MatMulInteger": _matmul_integer,
        "QLinearMatMul": _qlinear_matmul,
        "ConvInteger": _conv_integer,
        "QLinearConv": _qlinear_conv,
    }
)
