"""ONNX normalisations, each one definition with its eps and its 1/n: layer, RMS, group, instance, batch, Lp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from prism.frontend.onnx.dtypes import dtype_of
from prism.frontend.onnx.graph import Graph, Node, OnnxValue, Translator
from prism.frontend.onnx.reduce import rows
from prism.frontend.rows import affine, central, grouped, inverse_root, mean, normal, square
from prism.program import build
from prism.program.extents import Extent
from prism.program.fold import div, op, sub
from prism.program.formulas import power
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, ReduceKind
from prism.program.views import axes_of, same_extent


def fits(node: Node, parameter: OnnxValue, shape: Sequence[Extent], what: str) -> None:
    """Check that a parameter broadcasts one way, to the dimensions that it scales."""
    given = parameter.shape
    fits = len(given) <= len(shape) and all(
        g == 1 or same_extent(g, e) for g, e in zip(reversed(given), reversed(list(shape)), strict=False)
    )
    if not fits:
        raise node.shape_error(f"{what} of shape {list(given)} does not broadcast to {list(shape)}")


def _layer_norm(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x = node.input(0)
    reduced = list(range(node.axis("axis", x.rank), x.rank))
    stash = dtype_of(node.integer("stash_type"), node.where)  # that of the statistics
    results = [layer_norm(graph, node, x, node.input(1), node.optional(2), reduced)]
    kept = axes_of([1 if d in reduced else e for d, e in enumerate(x.shape)])
    if any(node.outputs[1:]):
        _, *statistics = normal(Const(0.0), rows(graph, x, kept, reduced), node.number("epsilon"))
        for n, value in enumerate(statistics[: len(node.outputs) - 1], 1):
            results.append(graph.define(node, kept, value, stash, output=n))
    return results


def layer_norm(
    graph: Graph, node: Node, x: OnnxValue, scale: OnnxValue, bias: OnnxValue | None, reduced: Sequence[int]
) -> OnnxValue:
    """The node's first result: x above its mean by its deviation, scaled and shifted; `epsilon` is the node's."""
    fits(node, scale, x.shape, "the scale")
    axes = axes_of(x.shape)
    if bias is not None:
        fits(node, bias, x.shape, "the bias")
    value, _, _ = normal(graph.read(x, axes), rows(graph, x, axes, reduced), node.number("epsilon"))
    shift = None if bias is None else graph.read(bias, axes)
    return graph.define(node, axes, affine(value, graph.read(scale, axes), shift), x.dtype)


def _rms_norm(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x = node.input(0)
    return [rms_norm(graph, node, x, node.input(1), node.axis("axis", x.rank))]


def rms_norm(graph: Graph, node: Node, x: OnnxValue, scale: OnnxValue, first: int) -> OnnxValue:
    """The node's first result: x / sqrt(mean x^2 + epsilon) * scale, over the dimensions from `first` on."""
    fits(node, scale, x.shape, "the scale")
    axes = axes_of(x.shape)
    squares = mean(rows(graph, x, axes, list(range(first, x.rank))), square)
    value = op("mul", graph.read(x, axes), inverse_root(squares, node.number("epsilon")))
    return graph.define(node, axes, op("mul", value, graph.read(scale, axes)), x.dtype)


def _over_channels(graph: Graph, node: Node, value: OnnxValue, channel: Axis) -> Expr:
    what = f"a parameter of shape {list(value.shape)} for {channel.extent} channels"
    if value.rank != 1:
        raise node.shape_error(what)
    node.agree([(value.shape[0], channel.extent)], what)
    return graph.at(value, [Index.axis(channel)])


def _group_norm(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x, scale, bias = node.input(0), node.input(1), node.input(2)
    groups, eps = node.integer("num_groups"), node.number("epsilon")
    channels = x.shape[1]
    if not isinstance(channels, int) or groups < 1 or channels % groups:
        raise node.shape_error(f"{channels} channels do not make up {groups} groups")
    return [_grouped(graph, node, x, channels // groups, eps, (scale, bias))]


def _instance_norm(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x = node.input(0)
    return [_grouped(graph, node, x, 1, node.number("epsilon"), (node.input(1), node.input(2)))]


def _grouped(
    graph: Graph, node: Node, x: OnnxValue, each: int, eps: float, parameters: tuple[OnnxValue, OnnxValue]
) -> OnnxValue:
    """Normalise x[n, c, ...] over each group of `each` channels and all that follows them."""
    axes = axes_of(x.shape)
    row = grouped(lambda index: graph.at(x, index), x.shape, axes, each)
    value, _, _ = normal(graph.read(x, axes), row, eps)
    scale, bias = (_parameter(graph, node, p, axes[1], each) for p in parameters)
    return graph.define(node, axes, affine(value, scale, bias), x.dtype)


def _parameter(graph: Graph, node: Node, value: OnnxValue, channel: Axis, each: int) -> Expr:
    if node.op == "GroupNormalization" and node.version < 21:  # one a group, not one a channel
        return graph.at(value, [Index.axis(channel).floordiv(each)])
    return _over_channels(graph, node, value, channel)


def _batch_norm(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """Normalised by given statistics, or in training by those of the batch, with which running ones are mixed."""
    x, eps, training = node.input(0), node.number("epsilon"), node.flag("training_mode")
    axes = axes_of(x.shape)
    channel = axes[1] if x.rank > 1 else Axis("c", 1)
    scale, bias, centre, variance = (_over_channels(graph, node, node.input(p), channel) for p in range(1, 5))
    results: list[OnnxValue] = []
    if training:
        if x.rank < 2:
            raise node.shape_error("a batch without channels")
        channels = Axis("c", x.shape[1])
        momentum = node.number("momentum")

        def of_batch(channel: Axis) -> tuple[Expr, Expr]:
            row = rows(graph, x, [channel] * x.rank, [d for d in range(x.rank) if d != 1])
            return mean(row), mean(central(row))

        centre, variance = of_batch(channel)
        for n, (place, now) in enumerate(zip((3, 4), of_batch(channels), strict=True), 1):
            kept = _over_channels(graph, node, node.input(place), channels)
            mixed = op("add", op("mul", Const(momentum), kept), op("mul", Const(1.0 - momentum), now))
            results.append(graph.define(node, (channels,), mixed, node.input(place).dtype, output=n))
    value = op("mul", sub(graph.read(x, axes), centre), inverse_root(variance, eps))
    return [graph.define(node, axes, affine(value, scale, bias), x.dtype), *results]


def _lp_norm(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x, p = node.input(0), node.integer("p")
    axes = axes_of(x.shape)
    bound, element = rows(graph, x, axes, [node.axis("axis", x.rank)])("r")
    if p == 1:
        length = build.reduce(ReduceKind.SUM, bound, op("abs", element))
    elif p == 2:
        length = op("sqrt", build.reduce(ReduceKind.SUM, bound, square(element)))
    else:
        raise node.unsupported(f"LpNormalization with p = {p} is not supported", fix="use p = 1 or p = 2")
    # All elements of length 0 are 0, and so is the result.
    safe = op("where", op("eq", length, Const(0.0)), Const(1.0), length)
    return [graph.define(node, axes, div(graph.read(x, axes), safe), x.dtype)]


def _local_response(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """x / (bias + alpha / size * the sum of squares over channels nearby) ** beta."""
    x, size = node.input(0), node.integer("size")
    if x.rank < 2 or size < 1:
        raise node.shape_error(f"{size} channels together of {x.rank} dimensions")
    axes = axes_of(x.shape)
    near, channels = Axis("w", size), x.shape[1]
    at = Index.axis(axes[1]) + Index.axis(near) + -((size - 1) // 2)
    inside = op("and", op("le", Const(0.0), build.position(at)), op("lt", build.position(at), build.size(channels)))
    element = square(graph.at(x, [at if d == 1 else Index.axis(a) for d, a in enumerate(axes)]))
    total = build.reduce(ReduceKind.SUM, near, op("where", inside, element, Const(0.0)))
    scaled = op("add", Const(node.number("bias")), op("mul", Const(node.number("alpha") / size), total))
    return [graph.define(node, axes, div(graph.read(x, axes), power(scaled, Const(node.number("beta")))), x.dtype)]


TRANSLATORS: Mapping[str, Translator] = MappingProxyType(
    {
        "LayerNormalization": _layer_norm,
        "RMSNormalization": _rms_norm,
        "GroupNormalization": _group_norm,
        "InstanceNormalization": _instance_norm,
        "BatchNormalization": _batch_norm,
        "LpNormalization": _lp_norm,
        "LRN": _local_response,
    }
)
