"""ONNX linear algebra: MatMul, Gemm, Einsum, each a sum of products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from prism.frontend.onnx_algebra import apply
from prism.frontend.onnx_graph import Graph, Node, Value
from prism.program import build
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, ReduceKind
from prism.program.views import axes_of, broadcast_shapes, same_extent


def _contracted(node: Node, a: Extent, b: Extent) -> Axis:
    if not same_extent(a, b):
        raise node.shape_error(f"contracted dimensions of extents {a} and {b} differ")
    return Axis("k", a)


def _matmul(graph: Graph, node: Node) -> Value:
    a, b = node.input(0), node.input(1)
    if a.rank == 0 or b.rank == 0:
        raise node.shape_error("MatMul of a scalar")
    k = _contracted(node, a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0])
    batch = axes_of(broadcast_shapes(a.shape[:-2], b.shape[:-2], where=node.where), "b")
    m = (Axis("m", a.shape[-2]),) if a.rank > 1 else ()
    n = (Axis("n", b.shape[-1]),) if b.rank > 1 else ()
    left = graph.read(a, (*batch, *m, k))
    right = graph.read(b, (*batch, k, *n))
    total = build.reduce(ReduceKind.SUM, k, apply("mul", left, right))
    return graph.define(node, (*batch, *m, *n), total, a.dtype)


def _gemm(graph: Graph, node: Node) -> Value:
    a, b, c = node.input(0), node.input(1), node.optional(2)
    if a.rank != 2 or b.rank != 2:
        raise node.shape_error("Gemm needs two matrices")
    turn_a, turn_b = bool(node.integer("transA")), bool(node.integer("transB"))
    m, ka = reversed(a.shape) if turn_a else a.shape
    kb, n = reversed(b.shape) if turn_b else b.shape
    k = _contracted(node, ka, kb)
    rows, columns = Axis("m", m), Axis("n", n)
    left = graph.read(a, (k, rows) if turn_a else (rows, k))
    right = graph.read(b, (columns, k) if turn_b else (k, columns))
    alpha, beta = node.number("alpha"), node.number("beta")
    expr = _scaled(alpha, build.reduce(ReduceKind.SUM, k, apply("mul", left, right)))
    if c is not None:
        axes = (rows, columns)
        result = broadcast_shapes((m, n), c.shape, where=node.where)
        if len(result) != 2 or not all(same_extent(e, x.extent) for e, x in zip(result, axes, strict=True)):
            raise node.shape_error(f"the bias of shape {list(c.shape)} does not broadcast to [{m}, {n}]")
        expr = apply("add", expr, _scaled(beta, graph.read(c, axes)))
    return graph.define(node, (rows, columns), expr, a.dtype)


def _scaled(factor: float, expr: Expr) -> Expr:
    return expr if factor == 1.0 else apply("mul", Const(factor), expr)


def _einsum(graph: Graph, node: Node) -> Value:
    equation = str(node.attributes["equation"]).replace(" ", "")
    if "." in equation:
        raise node.unsupported("an ellipsis in Einsum has no translation", fix="name every dimension")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    operands = [node.input(place) for place in range(len(node.inputs))]
    if len(terms) != len(operands) or any(len(t) != v.rank for t, v in zip(terms, operands, strict=False)):
        raise node.shape_error(f"the equation {equation!r} does not fit the operands")
    if not arrow:
        result = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    extents: dict[str, Extent] = {}
    for letters, v in zip(terms, operands, strict=True):
        for c, e in zip(letters, v.shape, strict=True):
            known = extents.get(c, 1)
            if known != 1 and e != 1 and not same_extent(known, e):
                raise node.shape_error(f"dimension {c} has extents {known} and {e}")
            extents[c] = e if known == 1 else known
    axes = {c: Axis(c, e) for c, e in extents.items()}
    product: Expr | None = None
    for letters, v in zip(terms, operands, strict=True):
        index = [Index.const(0) if e == 1 else Index.axis(axes[c]) for c, e in zip(letters, v.shape, strict=True)]
        element = graph.at(v, index)
        product = element if product is None else apply("mul", product, element)
    assert product is not None
    summed = tuple(axes[c] for c in dict.fromkeys(left.replace(",", "")) if c not in result)
    return graph.define(
        node, [axes[c] for c in result], build.reduce(ReduceKind.SUM, summed, product), operands[0].dtype
    )


TRANSLATORS: Mapping[str, Callable[[Graph, Node], Value]] = MappingProxyType(
    {"MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum}
)
