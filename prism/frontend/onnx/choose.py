"""ONNX operators whose integer inputs choose among numbers or stand for them: losses and element lookups.

An element at a place that data give is a sum in which one term is not 0 (`prism.program.lookup`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from prism.frontend.onnx.graph import Graph, Node, OnnxValue, Translator, known_elements
from prism.frontend.onnx.reduce import rows
from prism.frontend.rows import log_softmax
from prism.program import build, integers
from prism.program.extents import add, is_static, mul
from prism.program.fold import as_extent, op
from prism.program.index import Axis, Index
from prism.program.lookup import looked_up
from prism.program.nodes import Const, Expr, ReduceKind
from prism.program.views import axes_of, same_extent


def _gather_elements(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x, places = node.input(0), node.input(1)
    axis = node.axis("axis", x.rank)
    if places.rank != x.rank:
        raise node.shape_error(f"indices of {places.rank} dimensions for data of {x.rank}")
    for d, (have, wanted) in enumerate(zip(x.shape, places.shape, strict=True)):
        if d != axis and not graph.require(add(have, mul(-1, wanted))):
            raise node.shape_error(f"indices of {wanted} places along dimension {d} of extent {have}")
    axes = axes_of(places.shape)
    bound = axes_of(x.shape, "r")[axis]
    element = graph.at(x, [Index.axis(bound if d == axis else a) for d, a in enumerate(axes)])
    if bound.extent == 1:
        return [graph.define(node, axes, element, x.dtype)]
    place = graph.place(graph.read(places, axes), bound)
    return [graph.define(node, axes, looked_up(bound, place, element), x.dtype)]


def _gather_nd(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """Slices at tuples of places: the last dimension of the indices has one for each of the dimensions looked up in."""
    x, places, batch = node.input(0), node.input(1), node.integer("batch_dims")
    if not (places.rank and 0 <= batch < min(x.rank, places.rank)) or not is_static(places.shape[-1]):
        raise node.shape_error(f"indices of {places.rank} dimensions for data of {x.rank}, {batch} of them batches")
    many = int(places.shape[-1])
    if not 1 <= many <= x.rank - batch:
        raise node.shape_error(f"places along {many} of {x.rank - batch} dimensions")
    if not all(same_extent(a, b) for a, b in zip(x.shape[:batch], places.shape[:batch], strict=True)):
        raise node.shape_error(f"batches of the shapes {list(x.shape[:batch])} and {list(places.shape[:batch])}")
    axes = axes_of((*places.shape[:-1], *x.shape[batch + many :]))
    own = [Index.axis(a) for a in axes[: places.rank - 1]]
    bound = axes_of(x.shape, "r")[batch : batch + many]
    along = [Index.const(0) if a.extent == 1 else Index.axis(a) for a in bound]
    element = graph.at(x, [*own[:batch], *along, *map(Index.axis, axes[places.rank - 1 :])])
    for n, axis in reversed(list(enumerate(bound))):
        if axis.extent != 1:
            element = looked_up(axis, graph.place(graph.at(places, [*own, Index.const(n)]), axis), element)
    return [graph.define(node, axes, element, x.dtype)]


def _reversed(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """Each sequence the other way round, as far as its length, which data give, says."""
    x, lengths = node.input(0), node.input(1)
    time, batch = node.axis("time_axis", x.rank), node.axis("batch_axis", x.rank)
    if lengths.rank != 1 or time == batch:
        raise node.shape_error(f"lengths of shape {list(lengths.shape)} of sequences along {time}, of {batch}")
    node.agree([(lengths.shape[0], x.shape[batch])], f"lengths of shape {list(lengths.shape)} for {list(x.shape)}")
    axes = axes_of(x.shape)
    bound = axes_of(x.shape, "r")[time]
    if bound.extent == 1:
        return [graph.define(node, axes, graph.read(x, axes), x.dtype)]
    length, here = graph.read(lengths, [axes[batch]]), build.position(axes[time])
    back = op("add", length, op("neg", op("add", here, Const(1.0))))
    place = op("where", op("lt", here, length), back, here)
    element = graph.at(x, [Index.axis(bound if d == time else a) for d, a in enumerate(axes)])
    return [graph.define(node, axes, looked_up(bound, place, element), x.dtype)]


def _one_hot(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """One of two values: the second at the place that an index gives along a new dimension, else the first."""
    places, values = node.input(0), node.input(2)
    deep = node.input(1)
    known = known_elements(deep) if not deep.dtype.is_float else None
    depth = known.ravel()[0] if known is not None and known.size == 1 else None
    if depth is None and deep.shape in ((), (1,)):
        depth = as_extent(graph.at(deep, [Index.const(0)] * deep.rank))
    if depth is None:
        raise node.unsupported("the depth is computed from data", fix="export the model with a constant one")
    if values.shape != (2,):
        raise node.shape_error(f"values of the shape {list(values.shape)}, of which there are two")
    dimension = node.axis("axis", places.rank + 1)
    axes = axes_of((*places.shape[:dimension], depth, *places.shape[dimension:]))
    own = axes[dimension]
    place = graph.read(places, [*axes[:dimension], *axes[dimension + 1 :]])
    if places.dtype.is_float:
        place, _ = integers.from_fraction(place, graph.bounds(places))
    place = graph.place(place, own)
    here = op("eq", build.position(own), place)
    off, on = (graph.at(values, [Index.const(n)]) for n in range(2))
    return [graph.define(node, axes, op("where", here, on, off), values.dtype)]


def _likelihood(graph: Graph, node: Node, log_probability: Callable[[Sequence[Axis], Axis], Expr]) -> OnnxValue:
    """-weight[label] * log_probability[label], 0 where the label is the ignored one, then the mean, sum or neither."""
    x, labels, weight = node.input(0), node.input(1), node.optional(2)
    if x.rank < 2 or labels.rank != x.rank - 1:
        raise node.shape_error(f"labels of {labels.rank} dimensions for scores of {x.rank}")
    told = zip(labels.shape, (x.shape[0], *x.shape[2:]), strict=True)
    if not all(same_extent(a, b) for a, b in told):
        raise node.shape_error(f"labels of the shape {list(labels.shape)} for scores of {list(x.shape)}")
    if weight is not None and tuple(weight.shape) != (x.shape[1],):
        raise node.shape_error(f"weights of the shape {list(weight.shape)} for {x.shape[1]} classes")
    ignored = node.attributes.get("ignore_index")
    how = str(node.attributes["reduction"])

    def terms(axes: Sequence[Axis]) -> tuple[Expr, Expr]:
        """(the loss of each label, what it weighs)."""
        classes = axes_of(x.shape, "c")[1]
        label = graph.read(labels, axes)
        element = log_probability(axes, classes)
        share: Expr = Const(1.0)
        if weight is not None:
            share = looked_up(classes, label, graph.at(weight, [Index.axis(classes)]))
        loss = op("neg", op("mul", share, looked_up(classes, label, element)))
        if ignored is not None:
            skipped = op("eq", label, Const(float(ignored)))
            loss = op("where", skipped, Const(0.0), loss)
            share = op("where", skipped, Const(0.0), share)
        return loss, share

    if how == "none":
        axes = axes_of(labels.shape)
        return graph.define(node, axes, terms(axes)[0], x.dtype)
    bound = axes_of(labels.shape, "l")
    loss, share = terms(bound)
    total = build.reduce(ReduceKind.SUM, bound, loss)
    if how == "mean":
        total = op("mul", total, op("recip", build.reduce(ReduceKind.SUM, bound, share)))
        if share == Const(1.0):
            total = build.mean(bound, loss)
    elif how != "sum":
        raise node.unsupported(f"reduction {how!r} is not one of mean, sum and none")
    return graph.define(node, (), total, x.dtype)


def _negative_log_likelihood(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x = node.input(0)

    def log_probability(axes: Sequence[Axis], classes: Axis) -> Expr:
        return graph.at(x, [Index.axis(a) for a in (axes[0], classes, *axes[1:])])

    return [_likelihood(graph, node, log_probability)]


def _cross_entropy(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x = node.input(0)

    def log_probability(axes: Sequence[Axis], classes: Axis) -> Expr:
        over = [axes[0], classes, *axes[1:]]
        return log_softmax(graph.at(x, [Index.axis(a) for a in over]), rows(graph, x, over, [1]))

    loss = _likelihood(graph, node, log_probability)
    if not any(node.outputs[1:]):
        return [loss]
    axes = axes_of(x.shape)
    logs = log_softmax(graph.read(x, axes), rows(graph, x, axes, [1]))
    return [loss, graph.define(node, axes, logs, x.dtype, output=1)]


TRANSLATORS: Mapping[str, Translator] = MappingProxyType(
    {
        "GatherElements": _gather_elements,
        "GatherND": _gather_nd,
        "OneHot": _one_hot,
        "ReverseSequence": _reversed,
        "NegativeLogLikelihoodLoss": _negative_log_likelihood,
        "SoftmaxCrossEntropyLoss": _cross_entropy,
    }
)
