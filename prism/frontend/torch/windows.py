"""ATen's operators over windows: what their arguments say; what they compute is in `prism.frontend.windows`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from prism.frontend import windows
from prism.frontend.rows import folded
from prism.frontend.torch.reduce import Reduction
from prism.frontend.torch.values import Handler, Node, Result, TorchValue, converted, number
from prism.frontend.windows import Margin, Pool, Reached
from prism.program import build
from prism.program.extents import Extent, add, product
from prism.program.fold import div, op, sub
from prism.program.index import Axis, Index
from prism.program.integers import Interval
from prism.program.nodes import Const, Expr, ReduceKind
from prism.program.transform import substitute
from prism.program.views import Shape, axes_of
from prism.program.windows import Window


def _each(values: int | Sequence[int], spatial: int) -> list[int]:
    """One number for each spatial dimension, where one may stand for all."""
    given = [values] if isinstance(values, int) else list(values)
    return given if len(given) == spatial else given * spatial


def _windows(shape: Shape, taps: Sequence[Extent], *numbers: int | Sequence[int]) -> list[Window]:
    """Windows along the last dimensions of a shape, by their strides, dilations and padding."""
    each = (_each(given, len(taps)) for given in numbers)
    spatial = zip(shape[len(shape) - len(taps) :], taps, *each, strict=True)
    return [Window(extent, tap, stride, dilation, pad, pad) for extent, tap, stride, dilation, pad in spatial]


def _lie(n: Node, over: TorchValue) -> list[Window]:
    """How a convolution's windows lie along the spatial dimensions of a tensor."""
    return _windows(over.shape, n["weight"].shape[2:], n["stride"], n["dilation"], n["padding"])


def _convolution(n: Node) -> Result:
    x, w = n["input"], n["weight"]
    lie = _lie(n, x)
    if n["transposed"]:  # what output_padding adds, the result's shape says
        n.settled("output_padding")
        value = windows.transposed_convolution(x, w, n.axes, lie, n["groups"])
    elif any(n["output_padding"]):
        raise n.unsupported("a convolution that is not transposed has no output padding")
    else:
        value = windows.convolution(x, w, n.axes, lie, n["groups"])
    if n["bias"] is not None:
        value = op("add", value, n["bias"].at([Index.axis(n.axes[1])]))
    return n.define(value)


def _convolution_backward(n: Node) -> Result:
    """The gradients of what is convolved, of the weights, and of the bias; those that are asked for."""
    dy, x, w, groups = n["grad_output"], n["input"], n["weight"], n["groups"]
    n.settled("bias_sizes", "output_padding", "output_mask")
    over, of = (dy, x) if n["transposed"] else (x, dy)
    back = windows.convolution if n["transposed"] else windows.transposed_convolution

    def made(result: int, shape: Shape, expr: Callable[[tuple[Axis, ...]], Expr]) -> TorchValue:
        # Of a result that is not asked for there is no shape.
        axes = axes_of(shape)
        return n.builder.define(f"{n.name}_{result}", axes, expr(axes), n.dtype, n.origin)

    sums = Reduction(dy, [0, *range(2, len(dy.shape))], keepdim=False)
    return n.results(
        lambda: made(0, x.shape, lambda axes: back(dy, w, axes, _lie(n, dy), groups)),
        lambda: made(1, w.shape, lambda axes: windows.weights_gradient(over, of, axes, _lie(n, over), groups)),
        lambda: made(2, dy.shape[1:2], lambda _: folded(ReduceKind.SUM, sums.row)),
        first=("weight",),
    )


def _lying(n: Node, over: TorchValue, spatial: int) -> list[Window]:
    """How a pool's windows lie along the last dimensions of a tensor; how many there are, a result's shape says."""
    taps = _each(n["kernel_size"], spatial)
    n.settled("ceil_mode")
    return _windows(over.shape, taps, n.get("stride") or taps, n.get("dilation", 1), n.get("padding", 0))


def _divisor(n: Node, pooled: Pool, axes: Sequence[Axis], lie: Sequence[Window]) -> Expr:
    """What an average pool's sums are divided by, under the axes of its result."""
    n.settled("count_include_pad")
    if n.get("divisor_override") is not None:
        return Const(float(n["divisor_override"]))
    return windows.with_padding(axes, lie) if n["count_include_pad"] else windows.many(pooled)


def _average_pool(spatial: int, n: Node) -> Result:
    lie = _lying(n, n["self"], spatial)
    pooled = windows.pool(n["self"], n.axes, lie)
    return n.define(windows.average(pooled, _divisor(n, pooled, n.axes, lie)))


def _max_pool(spatial: int, n: Node) -> Result:
    return _largest(n, windows.pool(n["self"], n.axes, _lying(n, n["self"], spatial)))


def _largest(n: Node, pooled: Pool) -> Result:
    """The maxima; and where they lie, of the operators that tell it."""
    values = n.define(windows.largest(pooled, n.dtype))
    if len(n.shapes) == 1:
        return values
    many = product(pooled.extents)
    within = Interval(0.0, max(n.bounds(build.size(many)).high - 1.0, 0.0), whole=True)
    first = windows.place_of_largest(pooled, values.under(n.axes))
    return n.results(lambda: values, lambda: n.define(first, result=1, bounds=within))


def _adaptive(spatial: int, combine: Callable[[Node, Pool], Result], n: Node) -> Result:
    n.settled("output_size")
    return combine(n, windows.adaptive_pool(n["self"], n.axes, spatial))


def _average(n: Node, pooled: Pool) -> Result:
    return n.define(windows.average(pooled))


# Gradients of pools: a place gets of each window that holds it what that gives each, or what it gives its largest.


def _window_axes(dy: TorchValue, axes: Sequence[Axis], spatial: int) -> list[Axis]:
    """Axes of the windows of a tensor, whose leading dimensions have these axes."""
    leading = len(axes) - spatial
    return [*axes[:leading], *(Axis(f"q{d}", e) for d, e in enumerate(dy.shape[leading:]))]


def _average_pool_backward(spatial: int, n: Node) -> Result:
    x, dy = n["self"], n["grad_output"]
    over = _window_axes(dy, n.axes, spatial)
    lie = _lying(n, x, spatial)
    divisor = _divisor(n, windows.pool(x, over, lie), over, lie)
    return _spread(n, over, windows.reached(_lying(n, dy, spatial), n.axes[-spatial:]), divisor)


def _adaptive_average_backward(spatial: int, n: Node) -> Result:
    over = _window_axes(n["grad_output"], n.axes, spatial)
    pooled = windows.adaptive_pool(n["self"], over, spatial)
    return _spread(n, over, _adaptively_reached(n, pooled, over), windows.many(pooled))


def _adaptively_reached(n: Node, pooled: Pool, over: Sequence[Axis]) -> Reached:
    spatial = len(pooled.at)
    return windows.adaptively_reached(pooled, n.axes[-spatial:], over[-spatial:])


def _spread(n: Node, over: Sequence[Axis], found: Reached, divisor: Expr) -> Result:
    """The sum over windows, which have the axes `over`, of their gradients divided by a number of each."""
    at = dict(zip(over[len(over) - len(found.at) :], found.at, strict=True))
    dy = n["grad_output"].at([at.get(a, Index.axis(a)) for a in over])
    return n.define(found.sum(div(dy, substitute(divisor, at))))


def _max_pool_backward(spatial: int, n: Node) -> Result:
    n.settled("self")  # the places say what it is looked at for
    lie = _lying(n, n["grad_output"], spatial)
    return _sent_back(n, windows.reached(lie, n.axes[-spatial:]), spatial)


def _adaptive_max_backward(spatial: int, n: Node) -> Result:
    over = _window_axes(n["grad_output"], n.axes, spatial)
    found = _adaptively_reached(n, windows.adaptive_pool(n["self"], over, spatial), over)
    return _sent_back(n, found, spatial)


def _sent_back(n: Node, found: Reached, spatial: int) -> Result:
    """The sum over windows of the gradients of those whose largest lies at the place."""
    places = n.axes[len(n.axes) - spatial :]
    index = [*map(Index.axis, n.axes[: len(n.axes) - spatial]), *found.at]
    here = build.position(windows.flat_place([Index.axis(a) for a in places], [a.extent for a in places]))
    mine = op("eq", n["indices"].at(index), here)
    return n.define(found.sum(op("where", mine, n["grad_output"].at(index), Const(0.0))))


# Gradients of interpolation: an element gets those of the places of the result that it has a share in.


def _times(n: Node, spatial: int) -> list[int]:
    """How many places there are for each of what was interpolated, along each dimension: whole numbers alone."""
    n.settled("output_size", "input_size")
    given = n.get("scales", [n.get(f"scales_{d}") for d in "dhw"[3 - spatial :]])
    larger = n["grad_output"].shape[-spatial:]
    found = []
    for m, e, scale in zip(larger, n.shape[-spatial:], given if spatial > 1 else [given], strict=True):
        times = m // e if isinstance(m, int) and isinstance(e, int) and e else 0
        if not times or m != times * e or scale not in (None, times):
            raise n.unsupported("the gradient of an interpolation to other than a multiple of a size is not translated")
        found.append(times)
    return found


def _nearest_backward(spatial: int, n: Node) -> Result:
    dy = n["grad_output"]
    lie = [Window(m, s, s, 1, 0, 0) for m, s in zip(dy.shape[-spatial:], _times(n, spatial), strict=True)]
    return n.define(windows.total(windows.pool(dy, n.axes, lie)))


def _linear_backward(spatial: int, n: Node) -> Result:
    """Place q of s times as many lies at (q + 1/2)/s - 1/2 of what was interpolated, or at its border."""
    dy: TorchValue = n["grad_output"]
    weight: Expr = Const(1.0)
    if n["align_corners"]:
        raise n.unsupported("the gradient of an interpolation between corners is not translated")
    times = _times(n, spatial)
    lie = [Window(m, 2 * s, s, 1, s // 2, s // 2) for m, s in zip(dy.shape[-spatial:], times, strict=True)]
    pooled = windows.pool(dy, n.axes, lie)
    for at, place, s in zip(pooled.at, n.axes[-spatial:], times, strict=True):
        between = op("add", op("mul", op("add", build.position(at), Const(0.5)), Const(1.0 / s)), Const(-0.5))
        last = build.position(Index.const(add(place.extent, -1)))
        off = sub(op("maximum", op("minimum", between, last), Const(0.0)), build.position(place))
        weight = op("mul", weight, op("maximum", sub(Const(1.0), op("abs", off)), Const(0.0)))
    return n.define(windows.total(replace(pooled, element=op("mul", pooled.element, weight))))


def _edges_backward(spatial: int, n: Node) -> Result:
    """The gradient of padding by what stands at the border: that gets what is behind it, too."""
    dy: TorchValue = n["grad_output"]
    pads: list[int] = n["padding"]
    n.settled("self")
    if min(pads) < 0:
        raise n.unsupported("the gradient of padding that takes away is not translated")

    def of(d: int, index: list[Index]) -> Expr:
        if d == len(n.axes):
            return dy.at(index)
        axis, behind = n.axes[d], 2 * (len(n.axes) - 1 - d)
        if behind >= len(pads):
            return of(d + 1, [*index, Index.axis(axis)])
        before, after = pads[behind], pads[behind + 1]
        value = of(d + 1, [*index, Index.axis(axis) + before])
        last = add(axis.extent, -1)
        for many, border, start in ((before, 0, 0), (after, last, add(axis.extent, before))):
            if many:
                k = Axis(f"k{behind}{'b' if start else 'a'}", many)
                rest = build.reduce(ReduceKind.SUM, k, of(d + 1, [*index, Index.axis(k) + start]))
                here = op("eq", build.position(axis), build.position(Index.const(border)))
                value = op("add", value, op("where", here, rest, Const(0.0)))
        return value

    return n.define(of(0, []))


def _pad(n: Node) -> Result:
    x: TorchValue = n["self"]
    pads: list[int] = n["pad"]
    margins = [Margin(e, 0, 0) for e in x.shape]
    for pair in range(len(pads) // 2):
        d = len(x.shape) - 1 - pair
        margins[d] = Margin(x.shape[d], pads[2 * pair], pads[2 * pair + 1])
    fill = converted(n, number(n.get("value") or 0, n.axes), n.dtype)
    return n.define(windows.filled(x, n.axes, margins, fill))


HANDLERS: Mapping[str, Handler] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "constant_pad_nd": _pad,
    **{f"avg_pool{d}d": partial(_average_pool, d) for d in (1, 2, 3)},
    **{f"max_pool{d}d": partial(_max_pool, d) for d in (1, 2, 3)},
    **{f"max_pool{d}d_with_indices": partial(_max_pool, d) for d in (2, 3)},
    **{f"adaptive_avg_pool{d}d": partial(_adaptive, d, _average) for d in (1, 2, 3)},
    **{f"_adaptive_avg_pool{d}d": partial(_adaptive, d, _average) for d in (2, 3)},
    **{f"adaptive_max_pool{d}d": partial(_adaptive, d, _largest) for d in (1, 2, 3)},
    **{f"avg_pool{d}d_backward": partial(_average_pool_backward, d) for d in (2, 3)},
    **{f"max_pool{d}d_with_indices_backward": partial(_max_pool_backward, d) for d in (2, 3)},
    **{f"_adaptive_avg_pool{d}d_backward": partial(_adaptive_average_backward, d) for d in (2, 3)},
    **{f"adaptive_max_pool{d}d_backward": partial(_adaptive_max_backward, d) for d in (2, 3)},
    **{f"upsample_nearest{d}d_backward": partial(_nearest_backward, d) for d in (1, 2, 3)},
    **{f"_upsample_nearest_exact{d}d_backward": partial(_nearest_backward, d) for d in (1, 2, 3)},
    "upsample_linear1d_backward": partial(_linear_backward, 1),
    "upsample_bilinear2d_backward": partial(_linear_backward, 2),
    "upsample_trilinear3d_backward": partial(_linear_backward, 3),
    **{f"replication_pad{d}d_backward": partial(_edges_backward, d) for d in (1, 2, 3)},
}
