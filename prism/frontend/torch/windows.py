"""ATen's operators over windows: what their arguments say; what they compute is in `prism.frontend.windows`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from prism.frontend import windows
from prism.frontend.rows import folded
from prism.frontend.torch.reduce import Reduction
from prism.frontend.torch.values import Handler, Node, Result, TorchValue, converted, number
from prism.frontend.windows import Margin, Pool
from prism.program.extents import Extent
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, ReduceKind
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


def _pool(n: Node, spatial: int) -> tuple[list[Window], Pool]:
    """The windows of a pool over the last dimensions; how many there are, the result's shape says."""
    x: TorchValue = n["self"]
    taps = _each(n["kernel_size"], spatial)
    lie = _windows(x.shape, taps, n.get("stride") or taps, n.get("dilation", 1), n.get("padding", 0))
    n.settled("ceil_mode")
    return lie, windows.pool(x, n.axes, lie)


def _average_pool(spatial: int, n: Node) -> Result:
    lie, pooled = _pool(n, spatial)
    divisor: Expr | None = None
    if n.get("divisor_override") is not None:
        divisor = Const(float(n["divisor_override"]))
    if n["count_include_pad"] and divisor is None:
        divisor = windows.with_padding(n.axes, lie)
    return n.define(windows.average(pooled, divisor))


def _max_pool(spatial: int, n: Node) -> Result:
    """The maxima; of the operators that tell where they lie, too, that is not translated."""
    _, pooled = _pool(n, spatial)
    return _alone(n, n.define(windows.largest(pooled, n.dtype)))


def _alone(n: Node, value: TorchValue) -> Result:
    return value if len(n.shapes) == 1 else (value, None)


def _adaptive(spatial: int, n: Node, combine: Callable[[Pool], Expr]) -> Result:
    n.settled("output_size")
    x: TorchValue = n["self"]
    return _alone(n, n.define(combine(windows.adaptive_pool(x, n.axes, spatial))))


def _adaptive_average(spatial: int, n: Node) -> Result:
    return _adaptive(spatial, n, windows.average)


def _adaptive_max(spatial: int, n: Node) -> Result:
    return _adaptive(spatial, n, lambda pooled: windows.largest(pooled, n.dtype))


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
    "avg_pool1d": partial(_average_pool, 1),
    "avg_pool2d": partial(_average_pool, 2),
    "avg_pool3d": partial(_average_pool, 3),
    "max_pool1d": partial(_max_pool, 1),
    "max_pool2d": partial(_max_pool, 2),
    "max_pool3d": partial(_max_pool, 3),
    "max_pool2d_with_indices": partial(_max_pool, 2),
    "max_pool3d_with_indices": partial(_max_pool, 3),
    "adaptive_avg_pool1d": partial(_adaptive_average, 1),
    "_adaptive_avg_pool2d": partial(_adaptive_average, 2),
    "adaptive_avg_pool2d": partial(_adaptive_average, 2),
    "_adaptive_avg_pool3d": partial(_adaptive_average, 3),
    "adaptive_avg_pool3d": partial(_adaptive_average, 3),
    "adaptive_max_pool1d": partial(_adaptive_max, 1),
    "adaptive_max_pool2d": partial(_adaptive_max, 2),
    "adaptive_max_pool3d": partial(_adaptive_max, 3),
    "constant_pad_nd": _pad,
}
