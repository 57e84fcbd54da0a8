"""ONNX reductions and what is made of them: means, norms of vectors, softmax, log-sum-exp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from prism.frontend.onnx.graph import Graph, Node, OnnxValue
from prism.frontend.onnx.pointwise import Translator
from prism.frontend.rows import Row, cumulative, folded, log_softmax, log_sum_exp, mean, softmax, square
from prism.program import integers
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.nodes import Const, DType, Expr, Reduce, ReduceKind
from prism.program.prefix import Recurrence
from prism.program.views import axes_of


def rows(graph: Graph, value: OnnxValue, axes: Sequence[Axis], reduced: Sequence[int]) -> Row:
    """The operand with the reduced dimensions under bound axes and the others under the result's."""

    def body(prefix: str) -> tuple[tuple[Axis, ...], Expr]:
        bound = axes_of(value.shape, prefix)
        index = [Index.axis(bound[d] if d in reduced else axes[d]) for d in range(value.rank)]
        return tuple(bound[d] for d in sorted(reduced)), graph.at(value, index)

    return body


def _softmax(f: Callable[[Expr, Row], Expr], graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    axes = axes_of(x.shape)
    row = rows(graph, x, axes, node.axes_behind(x.rank))
    return graph.define(node, axes, f(graph.read(x, axes), row), x.dtype)


def _axes(node: Node, rank: int) -> list[int] | None:
    """The dimensions to reduce, None when the node does nothing."""
    given = node.numbers("axes", 1, "the list of axes")
    noop = node.flag("noop_with_empty_axes")
    if not given:
        return None if noop else list(range(rank))
    return sorted({node.wrap(a, rank) for a in given})


def _reduce_log_sum_exp(graph: Graph, node: Node) -> OnnxValue:
    return _reduction(partial(log_sum_exp, may_be_infinite=graph.may_be_infinite))(graph, node)


def _reduction(f: Callable[[Row], Expr], alone: Callable[[Expr], Expr] = lambda x: x) -> Translator:
    """A translator of a reduction; `alone` is what it does to an element when it reduces nothing."""

    def translate(graph: Graph, node: Node) -> OnnxValue:
        x = node.input(0)
        reduced, keep = _axes(node, x.rank), node.flag("keepdims")
        if reduced is None:
            return graph.pointwise(node, [x], alone)
        kept = axes_of([1 if d in reduced else e for d, e in enumerate(x.shape)])
        expr = f(rows(graph, x, kept, reduced))
        if not x.dtype.is_float and any(x.shape[d] == 0 for d in reduced):
            expr = _of_nothing(expr, x.dtype)
        return graph.define(node, [a for d, a in enumerate(kept) if keep or d not in reduced], expr, x.dtype)

    return translate


def _of_nothing(expr: Expr, dtype: DType) -> Expr:
    """The reduction of no integers: a maximum of none is the least that the type holds, a minimum the greatest."""
    match expr:
        case Reduce(ReduceKind.MAX, _, _):
            return Const(integers.range_of(dtype).low)
        case Reduce(ReduceKind.MIN, _, _):
            return Const(integers.range_of(dtype).high)
    return expr


def _cumulative(kind: ReduceKind, graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    axis = node.wrap(node.integers(1, "the axis")[0], x.rank)
    axes = axes_of(x.shape)
    how = Recurrence(kind, before=node.flag("exclusive"), back=node.flag("reverse"))
    return graph.define(node, axes, cumulative(how, rows(graph, x, axes, [axis]), axes[axis]), x.dtype)


TRANSLATORS: Mapping[str, Translator] = MappingProxyType(
    {
        "Softmax": partial(_softmax, softmax),
        "LogSoftmax": partial(_softmax, log_softmax),
        "ReduceSum": _reduction(partial(folded, ReduceKind.SUM)),
        "ReduceMax": _reduction(partial(folded, ReduceKind.MAX)),
        "ReduceMin": _reduction(partial(folded, ReduceKind.MIN)),
        "ReduceProd": _reduction(partial(folded, ReduceKind.PROD)),
        "ReduceMean": _reduction(mean),
        "ReduceSumSquare": _reduction(lambda row: folded(ReduceKind.SUM, row, square), square),
        "ReduceL1": _reduction(lambda row: folded(ReduceKind.SUM, row, partial(op, "abs")), partial(op, "abs")),
        "ReduceL2": _reduction(lambda row: op("sqrt", folded(ReduceKind.SUM, row, square)), partial(op, "abs")),
        "ReduceLogSum": _reduction(lambda row: op("log", folded(ReduceKind.SUM, row)), partial(op, "log")),
        "ReduceLogSumExp": _reduce_log_sum_exp,
        "CumSum": partial(_cumulative, ReduceKind.SUM),
        "CumProd": partial(_cumulative, ReduceKind.PROD),
    }
)
