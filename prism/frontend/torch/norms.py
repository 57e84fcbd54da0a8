"""ATen's normalizations over other dimensions than the last ones: batch and group."""

from __future__ import annotations

from collections.abc import Mapping

from prism.frontend.torch.values import Handler, Node, Result, TorchValue
from prism.program import build
from prism.program.extents import Extent
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr
from prism.program.transform import substitute


def _inverse_root(variance: Expr, eps: float) -> Expr:
    return op("recip", op("sqrt", op("add", variance, Const(float(eps)))))


def _affine(n: Node, value: Expr, channel: Index) -> Expr:
    """The value times the channel's weight plus its bias, where there are such."""
    if n["weight"] is not None:
        value = op("mul", value, n["weight"].at([channel]))
    if n["bias"] is not None:
        value = op("add", value, n["bias"].at([channel]))
    return value


def _batch_norm(n: Node) -> Result:
    """By running statistics, as in eval mode: one mean and variance a channel."""
    x: TorchValue = n["input"]
    n.settled("momentum")  # which running statistics are updated by, in training
    channel = Index.axis(n.axes[1])
    centred = build.sub(x.under(n.axes), n["running_mean"].at([channel]))
    scaled = op("mul", centred, _inverse_root(n["running_var"].at([channel]), n["eps"]))
    return (n.define(_affine(n, scaled, channel)), None, None)  # of statistics there are none to save


def _group_norm(n: Node) -> Result:
    """Over the channels of a group and all places."""
    x: TorchValue = n["input"]
    n.settled("N", "C", "HxW")
    batch, channel, *places = n.axes
    channels, groups = x.shape[1], n["group"]
    if not isinstance(channels, int):
        raise n.unsupported("the number of channels is symbolic")
    each = channels // groups
    group = Index.axis(channel).floordiv(each)

    def bound(mark: str) -> tuple[Axis, ...]:
        extents: list[Extent] = [each, *x.shape[2:]]
        return tuple(Axis(f"{mark}{d}", e) for d, e in enumerate(extents))

    def at(axes: tuple[Axis, ...]) -> Expr:
        first, *rest = axes
        return x.at([Index.axis(batch), group.scaled(each) + Index.axis(first), *map(Index.axis, rest)])

    inner, outer = bound("c"), bound("g")
    average = build.mean(inner, at(inner))
    apart = build.sub(at(outer), average)
    inverse = _inverse_root(build.mean(outer, op("mul", apart, apart)), n["eps"])
    value = op("mul", build.sub(x.at([Index.axis(a) for a in (batch, channel, *places)]), average), inverse)

    def statistic(expr: Expr, result: int) -> TorchValue:
        """One of each group, as it is saved: over the batch and the groups."""
        over = (batch, Axis("i1", groups))
        return n.define(substitute(expr, {channel: Index.axis(over[1]).scaled(each)}), over, result=result)

    return n.results(
        lambda: n.define(_affine(n, value, Index.axis(channel))),
        lambda: statistic(average, 1),
        lambda: statistic(inverse, 2),
    )


HANDLERS: Mapping[str, Handler] = {
    "_native_batch_norm_legit_no_training": _batch_norm,
    "native_group_norm": _group_norm,
}
