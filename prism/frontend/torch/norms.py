"""ATen's normalisations: layer, RMS, batch and group."""

from __future__ import annotations

from collections.abc import Mapping

from prism.frontend.rows import affine, central, count, folded, grouped, inverse_root, mean, normal, square
from prism.frontend.torch.reduce import Reduction
from prism.frontend.torch.values import Handler, Node, Result, TorchValue
from prism.program import build
from prism.program.fold import div, op, sub
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, ReduceKind
from prism.program.transform import substitute
from prism.program.views import axes_of


def _scaled(n: Node, value: Expr, rank: int) -> Expr:
    """value * weight + bias, those that are given, over the last `rank` axes."""
    weight, bias = n.get("weight"), n.get("bias")
    over = n.axes[len(n.axes) - rank :]
    return affine(value, *(None if p is None else p.under(over) for p in (weight, bias)))


def _of_channel(n: Node, value: Expr, channel: Index) -> Expr:
    """The value times the channel's weight plus its bias, where there are such."""
    return affine(value, *(None if p is None else p.at([channel]) for p in (n["weight"], n["bias"])))


def _rms_norm(n: Node) -> Result:
    x: TorchValue = n["input"]
    rank = len(n["normalized_shape"])
    r = Reduction(x, range(len(x.shape) - rank, len(x.shape)), keepdim=True)
    eps = n["eps"]
    if eps is None:
        # torch's own default: the epsilon of the type that it computes in, which is float32 for half precision
        eps = 2.0**-52 if x.dtype.value == "float64" else 2.0**-23
    inverse = inverse_root(mean(r.row, square), eps)
    value = _scaled(n, op("mul", x.under(n.axes), inverse), rank)
    return n.results(lambda: n.define(value), lambda: n.define(inverse, r.axes, result=1), first=("weight",))


def _layer_norm(n: Node) -> Result:
    x: TorchValue = n["input"]
    rank = len(n["normalized_shape"])
    r = Reduction(x, range(len(x.shape) - rank, len(x.shape)), keepdim=True)
    value, average, inverse = normal(x.under(n.axes), r.row, n["eps"])
    return n.results(
        lambda: n.define(_scaled(n, value, rank)),
        lambda: n.define(average, r.axes, result=1),
        lambda: n.define(inverse, r.axes, result=2),
        first=("weight", "bias"),
    )


def _trained_batch_norm(n: Node) -> Result:
    """Normalised by what the batch's own elements are, those of each channel together."""
    x: TorchValue = n["input"]
    old: list[TorchValue | None] = [n.get("running_mean"), n.get("running_var")]
    if not n["training"]:
        raise n.unsupported("it is not in training", "call .eval() on the module before tracing it")
    if n.operator.startswith("aten._native_batch_norm_legit.default") and any(old):
        raise n.unsupported("it keeps running statistics", "call .eval() on the module before tracing it")
    momentum = n["momentum"]
    dims = [d for d in range(len(x.shape)) if d != 1]
    value, _, _ = normal(x.under(n.axes), Reduction(x, dims, keepdim=True).row, n["eps"])
    by = Reduction(x, dims, keepdim=False)

    def moved(place: int, statistic: Expr) -> TorchValue:
        """The running statistic, which goes a little towards the batch's."""
        before = old[place]
        assert before is not None
        kept = op("mul", Const(1.0 - momentum), before.under(by.axes))
        return n.define(op("add", kept, op("mul", Const(momentum), statistic)), by.axes, result=3 + place)

    squares = central(by.row)
    # Running variances are those of samples.
    sampled = div(folded(ReduceKind.SUM, squares), op("add", count(by.row), Const(-1.0)))
    return n.results(
        lambda: n.define(_of_channel(n, value, Index.axis(n.axes[1]))),
        lambda: n.define(mean(by.row), by.axes, result=1),
        lambda: n.define(inverse_root(mean(squares), n["eps"]), by.axes, result=2),
        lambda: moved(0, mean(by.row)),
        lambda: moved(1, sampled),
        first=("weight", "bias"),
    )


def _batch_norm(n: Node) -> Result:
    """By running statistics, as in eval mode: one mean and variance a channel."""
    x: TorchValue = n["input"]
    n.settled("momentum")  # which running statistics are updated by, in training
    channel = Index.axis(n.axes[1])
    centred = sub(x.under(n.axes), n["running_mean"].at([channel]))
    scaled = op("mul", centred, inverse_root(n["running_var"].at([channel]), n["eps"]))
    nothing = (Axis("i0", 0),)  # of statistics there are none to save
    return n.results(
        lambda: n.define(_of_channel(n, scaled, channel)),
        lambda: n.define(Const(0.0), nothing, result=1),
        lambda: n.define(Const(0.0), nothing, result=2),
    )


def _group_norm(n: Node) -> Result:
    """Over the channels of a group and all places."""
    x: TorchValue = n["input"]
    n.settled("N", "C", "HxW")
    batch, channel, *_ = n.axes
    channels, groups = x.shape[1], n["group"]
    if not isinstance(channels, int):
        raise n.unsupported("the number of channels is symbolic")
    each = channels // groups
    value, average, inverse = normal(x.under(n.axes), grouped(x.at, x.shape, n.axes, each), n["eps"])

    def statistic(expr: Expr, result: int) -> TorchValue:
        """One of each group, as it is saved: over the batch and the groups."""
        over = (batch, Axis("i1", groups))
        return n.define(substitute(expr, {channel: Index.axis(over[1]).scaled(each)}), over, result=result)

    return n.results(
        lambda: n.define(_of_channel(n, value, Index.axis(channel))),
        lambda: statistic(average, 1),
        lambda: statistic(inverse, 2),
        first=("weight", "bias"),
    )


def _weight_norm_backward(n: Node) -> Result:
    """The gradients of v and of g in g * v / |v|, norms over all dimensions but one."""
    v, dw, norms, rank = n["saved_v"], n["grad_w"], n["saved_norms"], len(n["saved_v"].shape)
    others = [k for k in range(rank) if k != n["dim"] % rank]
    r, own = Reduction(v, others, keepdim=True), axes_of(v.shape)
    product = op("mul", r.element, Reduction(dw, others, keepdim=True).element)
    both, norm = build.reduce(ReduceKind.SUM, r.bound, product), norms.under(own)
    along = div(op("mul", v.under(own), both), op("mul", norm, norm))
    return n.results(
        lambda: n.define(op("mul", div(n["saved_g"].under(own), norm), sub(dw.under(own), along)), own),
        lambda: n.define(div(both, norms.under(r.axes)), r.axes, result=1),
        first=("saved_g",),
    )


HANDLERS: Mapping[str, Handler] = {
    "_weight_norm_interface_backward": _weight_norm_backward,
    "rms_norm": _rms_norm,
    "_fused_rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "native_layer_norm": _layer_norm,
    "_native_batch_norm_legit": _trained_batch_norm,
    "_native_batch_norm_legit_functional": _trained_batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "native_group_norm": _group_norm,
}
