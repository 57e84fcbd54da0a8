"""ONNX operators that say where an element stands among others: the places of extremes, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from prism.frontend import order
from prism.frontend.onnx.graph import Graph, Node, OnnxValue, Translator
from prism.frontend.onnx.reduce import rows
from prism.frontend.order import place_of_extreme
from prism.program import build
from prism.program.extents import is_static
from prism.program.fold import op
from prism.program.index import Axis, Index, row_major
from prism.program.integers import Interval
from prism.program.nodes import Const, DType, Expr, ReduceKind
from prism.program.views import axes_of


def _place(
    graph: Graph, x: OnnxValue, axes: Sequence[Axis], dimension: int, kind: ReduceKind, *, last: bool = False
) -> Expr:
    """The place of the extreme along a dimension, under the result's axes in all others."""
    bound = axes_of(x.shape, "r")[dimension]

    def element(at: Sequence[Axis]) -> Expr:
        index = [Index.axis(at[0] if d == dimension else a) for d, a in enumerate(axes)]
        return graph.at(x, index)

    return place_of_extreme(kind, element, (bound,), last=last, floats=x.dtype.is_float)


def _searched(node: Node, x: OnnxValue, dimension: int) -> None:
    if x.shape[dimension] == 0:
        raise node.shape_error(f"dimension {dimension} has no elements, and so none that is an extreme")


def _within(graph: Graph, x: OnnxValue, dimension: int) -> Interval:
    """Bounds of places along the dimension."""
    return graph.bounds(build.position(Index.axis(axes_of(x.shape)[dimension])))


def _place_of(kind: ReduceKind, graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x = node.input(0)
    dimension = node.axis("axis", x.rank)
    _searched(node, x, dimension)
    kept = axes_of([1 if d == dimension else e for d, e in enumerate(x.shape)])
    expr = _place(graph, x, kept, dimension, kind, last=node.flag("select_last_index"))
    axes = kept if node.flag("keepdims") else [a for d, a in enumerate(kept) if d != dimension]
    return [graph.define(node, axes, expr, DType.INT64, bounds=_within(graph, x, dimension))]


def _top(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """The largest or the smallest elements and their places."""
    x = node.input(0)
    many = int(node.integer("k")) if node.version < 10 else node.integers(1, "the number of elements")[0]
    dimension = node.axis("axis", x.rank)
    _searched(node, x, dimension)
    largest = node.version < 11 or node.flag("largest")
    if many != 1:
        return _ordered(graph, node, x, dimension, many, largest=largest)
    kind = ReduceKind.MAX if largest else ReduceKind.MIN
    node.integer("sorted")  # one is
    axes = axes_of([1 if d == dimension else e for d, e in enumerate(x.shape)])
    bound, element = rows(graph, x, axes, [dimension])("r")
    results = [graph.define(node, axes, build.reduce(kind, bound, element), x.dtype)]
    if node.wanted(1):
        place = _place(graph, x, axes, dimension, kind)
        results.append(graph.define(node, axes, place, DType.INT64, output=1, bounds=_within(graph, x, dimension)))
    return results


def _ordered(
    graph: Graph, node: Node, x: OnnxValue, dimension: int, many: int, *, largest: bool
) -> Sequence[OnnxValue]:
    """The first elements of a row in its order, and their places."""
    extent = x.shape[dimension]
    if many < 1 or (is_static(extent) and many > int(extent)):
        raise node.shape_error(f"{many} of {extent} elements are asked for")
    which = f"the {many} {'largest' if largest else 'smallest'}"
    axes = axes_of([many if d == dimension else e for d, e in enumerate(x.shape)])
    made = [([a.extent for a in axes], dtype) for dtype in (x.dtype, DType.INT64)]
    if node.version >= 11 and not node.flag("sorted"):
        what = f"{which} elements in no order have no translation"
        raise node.unsupported(what, why="which is first is not said", results=made)
    if not order.short(extent):
        raise node.unsupported(f"{which} of {extent} elements have no translation", why=order.TOO_LONG, results=made)

    def under(value: OnnxValue, axes: Sequence[Axis]) -> Callable[[Axis], Expr]:
        return lambda at: graph.at(value, [Index.axis(at if d == dimension else a) for d, a in enumerate(axes)])

    own = axes_of(x.shape)
    expr = order.rank(under(x, own), own[dimension], largest=largest, floats=x.dtype.is_float)
    within = _within(graph, x, dimension)
    label = next(filter(None, node.outputs), node.label)
    ranks = graph.define_tensor(f"{label}_rank", own, expr, DType.INT64, origin=node.label, bounds=within)
    bound = Axis("r", extent)
    wanted = build.position(Index.axis(axes[dimension]))

    def chosen(value: Callable[[Axis], Expr]) -> Expr:
        return order.of_rank(value, under(ranks, axes), wanted, bound)

    value = under(x, axes)
    results = [graph.define(node, axes, chosen(value), x.dtype, bounds=graph.bounds(value(bound)))]
    if node.wanted(1):
        results.append(graph.define(node, axes, chosen(build.position), DType.INT64, output=1, bounds=within))
    return results


def _hardmax(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """1 at the first largest element, 0 at all others."""
    x = node.input(0)
    axes, searched = axes_of(x.shape), node.axes_behind(x.rank)
    for d in searched:
        _searched(node, x, d)

    def element(at: Sequence[Axis]) -> Expr:
        index = [Index.axis(at[searched.index(d)] if d in searched else a) for d, a in enumerate(axes)]
        return graph.at(x, index)

    bound = [axes_of(x.shape, "r")[d] for d in searched]
    place = place_of_extreme(ReduceKind.MAX, element, bound, floats=x.dtype.is_float)
    own = row_major([axes[d] for d in searched])
    chosen = op("where", op("eq", build.position(own), place), Const(1.0), Const(0.0))
    return [graph.define(node, axes, chosen, x.dtype)]


TRANSLATORS: Mapping[str, Translator] = MappingProxyType(
    {
        "ArgMax": partial(_place_of, ReduceKind.MAX),
        "ArgMin": partial(_place_of, ReduceKind.MIN),
        "Hardmax": _hardmax,
        "TopK": _top,
    }
)
