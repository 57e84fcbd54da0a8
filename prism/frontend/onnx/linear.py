"""ONNX linear algebra: MatMul, Gemm, Einsum, each a sum of products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from prism.frontend.onnx.graph import Graph, Node, OnnxValue
from prism.program import build
from prism.program.extents import Extent
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, ReduceKind
from prism.program.views import axes_of, broadcast_shapes, same_extent


def _contracted(node: Node, a: Extent, b: Extent) -> Axis:
    node.agree([(a, b)], f"contracted dimensions of extents {a} and {b} differ")
    return Axis("k", a)


def _matmul(graph: Graph, node: Node) -> OnnxValue:
    a, b = node.input(0), node.input(1)
    if a.rank == 0 or b.rank == 0:
        raise node.shape_error("MatMul of a scalar")
    k = _contracted(node, a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0])
    batch = axes_of(broadcast_shapes(a.shape[:-2], b.shape[:-2], where=node.where), "b")
    m = (Axis("m", a.shape[-2]),) if a.rank > 1 else ()
    n = (Axis("n", b.shape[-1]),) if b.rank > 1 else ()
    left = graph.read(a, (*batch, *m, k))
    right = graph.read(b, (*batch, k, *n))
    total = build.reduce(ReduceKind.SUM, k, op("mul", left, right))
    return graph.define(node, (*batch, *m, *n), total, a.dtype)


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
    terms, result = _subscripts(node, operands)
    extents: dict[str, Extent] = {}
    for labels, v in zip(terms, operands, strict=True):
        for c, e in zip(labels, v.shape, strict=True):
            known = extents.get(c, 1)
            if known != 1 and e != 1:
                node.agree([(known, e)], f"dimension {c} has extents {known} and {e}")
            extents[c] = e if known == 1 else known
    axes = {c: Axis(c, e) for c, e in extents.items()}
    product: Expr | None = None
    for labels, v in zip(terms, operands, strict=True):
        index = [Index.const(0) if e == 1 else Index.axis(axes[c]) for c, e in zip(labels, v.shape, strict=True)]
        element = graph.at(v, index)
        product = element if product is None else op("mul", product, element)
    assert product is not None
    summed = tuple(axes[c] for c in dict.fromkeys(c for term in terms for c in term) if c not in result)
    return graph.define(
        node, [axes[c] for c in result], build.reduce(ReduceKind.SUM, summed, product), operands[0].dtype
    )


def _subscripts(node: Node, operands: Sequence[OnnxValue]) -> tuple[list[list[str]], list[str]]:
    """The labels of every operand's dimensions and of the result's; what an ellipsis stands for is labelled `e`."""
    equation = str(node.attributes["equation"]).replace(" ", "")
    left, arrow, right = equation.partition("->")
    texts = left.split(",")
    named = [text.replace("...", "") for text in texts]
    covered = [v.rank - len(n) for v, n in zip(operands, named, strict=False)]
    fits = all(c == 0 or (c > 0 and "..." in t) for c, t in zip(covered, texts, strict=False))
    if len(texts) != len(operands) or not fits or any("." in n for n in (*named, right.replace("...", ""))):
        raise node.shape_error(f"the equation {equation!r} does not fit the operands")
    most = max(covered)
    if most and arrow and "..." not in right:
        raise node.unsupported(f"the result of {equation!r} has no ellipsis", fix="sum what it stands for by a letter")

    def labels(text: str, many: int) -> list[str]:
        before, _, after = text.partition("...")
        return [*before, *(f"e{d}" for d in range(most - many, most) if "..." in text), *after]

    if not arrow:
        letters = [c for n in named for c in n]
        right = ("..." if most else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    result = labels(right, most)
    if len(set(result)) < len(result) or not set(result) <= {c for t in texts for c in labels(t, most)}:
        raise node.shape_error(f"the equation {equation!r} has no such result")
    return [labels(t, c) for t, c in zip(texts, covered, strict=True)], result


TRANSLATORS: Mapping[str, Callable[[Graph, Node], OnnxValue]] = MappingProxyType(
    {"MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum}
)
