"""ONNX linear algebra: MatMul, Gemm, Einsum, each a sum of products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from prism.frontend.einsum import contraction, subscripts
from prism.frontend.onnx.graph import Graph, Node, OnnxValue, Operand
from prism.program import build
from prism.program.extents import Extent
from prism.program.fold import op
from prism.program.index import Axis
from prism.program.nodes import Const, Expr, ReduceKind
from prism.program.views import axes_of, broadcast_shapes, same_extent


def _contracted(node: Node, a: Extent, b: Extent) -> Axis:
    node.agree([(a, b)], f"contracted dimensions of extents {a} and {b} differ")
    return Axis("k", a)


def product(node: Node, a: Operand, b: Operand) -> tuple[tuple[Axis, ...], Expr]:
    """The axes and the element of a product of matrices, of stacks of them, or of vectors."""
    if not a.shape or not b.shape:
        raise node.shape_error(f"{node.op} of a scalar")
    k = _contracted(node, a.shape[-1], b.shape[-2] if len(b.shape) > 1 else b.shape[0])
    batch = axes_of(broadcast_shapes(a.shape[:-2], b.shape[:-2], where=node.where), "b")
    m = (Axis("m", a.shape[-2]),) if len(a.shape) > 1 else ()
    n = (Axis("n", b.shape[-1]),) if len(b.shape) > 1 else ()
    terms = op("mul", a.read((*batch, *m, k)), b.read((*batch, k, *n)))
    return (*batch, *m, *n), build.reduce(ReduceKind.SUM, k, terms)


def _matmul(graph: Graph, node: Node) -> OnnxValue:
    a, b = node.input(0), node.input(1)
    return graph.define(node, *product(node, graph.operand(a), graph.operand(b)), a.dtype)


def _gemm(graph: Graph, node: Node) -> OnnxValue:
    axes, expr = gemm(graph, node)
    return graph.define(node, axes, expr, node.input(0).dtype)


def gemm(graph: Graph, node: Node) -> tuple[tuple[Axis, Axis], Expr]:
    """The axes and the element of alpha * A B + beta * C."""
    a, b, c = node.input(0), node.input(1), node.optional(2)
    if a.rank != 2 or b.rank != 2:
        raise node.shape_error("Gemm needs two matrices")
    turn_a, turn_b = node.flag("transA"), node.flag("transB")
    m, ka = reversed(a.shape) if turn_a else a.shape
    kb, n = reversed(b.shape) if turn_b else b.shape
    k = _contracted(node, ka, kb)
    rows, columns = Axis("m", m), Axis("n", n)
    left = graph.read(a, (k, rows) if turn_a else (rows, k))
    right = graph.read(b, (columns, k) if turn_b else (k, columns))
    alpha, beta = node.number("alpha"), node.number("beta")
    expr = _scaled(alpha, build.reduce(ReduceKind.SUM, k, op("mul", left, right)))
    if c is not None:
        axes = (rows, columns)
        result = broadcast_shapes((m, n), c.shape, where=node.where)
        if len(result) != 2 or not all(same_extent(e, x.extent) for e, x in zip(result, axes, strict=True)):
            raise node.shape_error(f"the bias of shape {list(c.shape)} does not broadcast to [{m}, {n}]")
        if beta != 0.0:  # else it is not read, whatever it holds, as in BLAS
            expr = op("add", expr, _scaled(beta, graph.read(c, axes)))
    return (rows, columns), expr


def _scaled(factor: float, expr: Expr) -> Expr:
    return expr if factor == 1.0 else op("mul", Const(factor), expr)


def _einsum(graph: Graph, node: Node) -> OnnxValue:
    operands = [node.input(place) for place in range(len(node.inputs))]
    equation = str(node.attributes["equation"])
    try:
        terms, result = subscripts(equation, [v.rank for v in operands])
    except ValueError as error:
        raise node.shape_error(str(error)) from None
    if any(c.startswith("e") and len(c) > 1 and c not in result for labels in terms for c in labels):
        raise node.unsupported(f"the result of {equation!r} has no ellipsis", fix="sum what it stands for by a letter")
    known: dict[str, Extent] = {}
    for labels, v in zip(terms, operands, strict=True):
        for c, e in zip(labels, v.shape, strict=True):
            if e != 1:
                node.agree([(known.setdefault(c, e), e)], f"dimension {c} has extents {known[c]} and {e}")
    axes, expr = contraction(terms, result, [(v.shape, partial(graph.at, v)) for v in operands])
    return graph.define(node, axes, expr, operands[0].dtype)


TRANSLATORS: Mapping[str, Callable[[Graph, Node], OnnxValue]] = MappingProxyType(
    {"MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum}
)
