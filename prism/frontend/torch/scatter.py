"""ATen's operators that write at places which a tensor holds; what they compute is in `prism.frontend.scatter`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from prism.frontend.scatter import Writes, both, count, hit, scattered
from prism.frontend.torch.values import Handler, Node, Result, TorchValue, converted, number
from prism.program import build
from prism.program.extents import Extent, is_static
from prism.program.fold import div, op
from prism.program.index import Axis, Index
from prism.program.lookup import from_end
from prism.program.nodes import Const, DType, Expr
from prism.program.views import axes_of, broadcast_index, broadcast_shapes, places_index, same_extent

_REDUCTIONS = {
    "sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min", "mean": "mean"
}  # fmt: skip
"""torch's names of how what is written meets what is there; a mean is a sum, divided."""


def _place(n: Node, v: TorchValue, at: Sequence[Index], extent: Extent, negative: bool) -> Expr:
    """The place that a value holds at an index, counted from the front."""
    known = v.elements
    if known is not None and is_static(extent):
        known = np.where((known < 0) & negative, known + int(extent), known)
        if known.size and (known.min() < 0 or known.max() >= int(extent)):
            raise n.unsupported(f"a place is not in a dimension of extent {extent}")
        if not any(i.terms for i in at):
            return Const(float(known[tuple(int(i.offset) for i in at)]))
        regular = places_index(known.astype(object), at)
        if regular is not None:
            return build.position(regular)
    place = v.at(at)
    return from_end(place, Axis("", extent)) if negative and n.bounds(place).low < 0 else place


def _number(n: Node) -> Callable[[Sequence[Index]], Expr]:
    """What is written, where it is a number, or a tensor of one element."""
    given = n["value"]
    element = given.at([Index.const(0)] * len(given.shape)) if isinstance(given, TorchValue) else number(given, ())
    kept = converted(n, element, n.dtype)
    return lambda at: kept


def _elements(n: Node, argument: str) -> Callable[[Sequence[Index]], Expr]:
    """What is written at a place of the indices, of a tensor: of a scalar, its only element."""
    source: TorchValue = n[argument]
    rank = len(source.shape)
    return lambda at: source.at(list(at)[:rank] if len(at) >= rank else [Index.const(0)] * rank)


def _meeting(n: Node, how: str, writes: Writes, *, itself: bool = True) -> Expr:
    """What is there together with what is written."""
    own = n["self"].under(n.axes)
    if how == "mean":
        total = _meeting(n, "add", writes, itself=itself)
        many = count(writes)
        if not n.dtype.is_float:
            raise n.unsupported("the mean of whole numbers is rounded")
        if itself:
            return div(total, op("add", many, Const(1.0)))
        return div(total, op("maximum", many, Const(1.0)))
    if itself or how == "set":
        return scattered(how, own, writes)
    neutral = {"add": Const(0.0), "mul": Const(1.0)}.get(how)
    if neutral is None:
        if not n.dtype.is_float:
            raise n.unsupported("an extreme of whole numbers leaves out what is there", "let it take part")
        neutral = Const(-np.inf if how == "max" else np.inf)
    return op("where", hit(writes), scattered(how, neutral, writes), own)


def _defined(n: Node, value: Expr) -> TorchValue:
    return n.define(converted(n, value, n.dtype))


def _along(n: Node, how: str, source: Callable[[Sequence[Index]], Expr], *, itself: bool = True) -> Result:
    """Writing along a dimension, for each element of a tensor of places."""
    x, places = n["self"], n["index"]
    if not x.shape:
        n.settled("dim")
        if not all(e == 1 for e in places.shape):
            raise n.unsupported("several places of a tensor of one element")
        writes = Writes((), (), lambda at: (), lambda at: source([Index.const(0)] * len(places.shape)))
        return _defined(n, _meeting(n, how, writes, itself=itself))
    d = n["dim"] % len(x.shape)
    if not places.shape:
        if len(x.shape) != 1:
            raise n.unsupported("one place for a tensor of several dimensions")
        writes = Writes(
            (), n.axes, lambda at: [_place(n, places, [], x.shape[0], negative=False)], lambda at: source([])
        )
        return _defined(n, _meeting(n, how, writes, itself=itself))
    if any(e == 0 for e in places.shape):
        return _defined(n, x.under(n.axes))
    bound = Axis(f"s{d}", places.shape[d])

    def whole(at: Sequence[Index]) -> list[Index]:
        return broadcast_index(places.shape, [at[0] if k == d else Index.axis(a) for k, a in enumerate(n.axes)])

    writes = Writes(
        (bound,),
        (n.axes[d],),
        lambda at: [_place(n, places, whole(at), x.shape[d], negative=False)],
        lambda at: source(whole(at)),
    )
    value = _meeting(n, how, writes, itself=itself)
    inside = [
        op("lt", build.position(n.axes[k]), build.size(e))
        for k, e in enumerate(places.shape)
        if k != d and not same_extent(e, x.shape[k])
    ]
    if inside:
        value = op("where", both(inside), value, x.under(n.axes))
    return _defined(n, value)


def _scatter(n: Node) -> Result:
    """A number, or the elements of a tensor of no less than as many."""
    how = n.get("reduce") or "set"
    if how != "set" and how not in _REDUCTIONS:
        raise n.unsupported(f"it reduces by {how}")
    kind = _REDUCTIONS.get(how, how)
    itself = bool(n.get("include_self", True))
    return _along(n, kind, _number(n) if n.has("value") else _elements(n, "src"), itself=itself)


def _slices(
    n: Node, how: str, source: Callable[[Sequence[Index]], Expr], *, itself: bool = True, negative: bool = False
) -> Result:
    """Writing slices of a dimension, one for each place of a list.

    `how` and `itself` are as for `_meeting`; the source is what is written, at an index for each dimension of that.
    With `negative`, negative places count from the end.
    """
    x, places = n["self"], n["index"]
    if not x.shape:
        n.settled("dim")
        writes = Writes((), (), lambda at: (), lambda at: source([]))
        return _defined(n, _meeting(n, how, writes, itself=itself))
    d = n["dim"] % len(x.shape)
    many = places.shape[0] if places.shape else 1
    bound = Axis(f"s{d}", many)

    def whole(at: Sequence[Index]) -> list[Index]:
        return [at[0] if k == d else Index.axis(a) for k, a in enumerate(n.axes)]

    writes = Writes(
        (bound,),
        (n.axes[d],),
        lambda at: [_place(n, places, broadcast_index(places.shape, at), x.shape[d], negative)],
        lambda at: source(whole(at)),
    )
    return _defined(n, _meeting(n, how, writes, itself=itself))


def _index_add(n: Node) -> Result:
    element, alpha = _elements(n, "source"), number(n.get("alpha", 1), ())
    return _slices(n, "add", lambda at: op("mul", alpha, element(at)))


def _index_reduce(n: Node) -> Result:
    kind = _REDUCTIONS[n["reduce"]]
    return _slices(n, kind, _elements(n, "source"), itself=bool(n.get("include_self", True)))


def _index_put(n: Node) -> Result:
    """Writing where a mask holds, or at places along some dimensions."""
    given: list[TorchValue | None] = n["indices"]
    named = [v for v in given if v is not None]
    if not named:
        raise n.unsupported("it writes everywhere", "return what is written")
    if any(v.dtype is DType.BOOL or v.dtype is DType.UINT8 for v in named):
        return _masked(n, given)
    x, values = n["self"], n["values"]
    chosen = [d for d, v in enumerate(given) if v is not None]
    shape = broadcast_shapes(*(v.shape for v in named), where=n.origin)
    bound = axes_of(shape, "s")
    adjacent = chosen == list(range(chosen[0], chosen[0] + len(chosen)))
    first = chosen[0] if adjacent else 0
    rest = [Index.axis(a) for d, a in enumerate(n.axes) if d not in chosen]

    def source(at: Sequence[Index]) -> Expr:
        return converted(n, values.at(broadcast_index(values.shape, [*rest[:first], *at, *rest[first:]])), n.dtype)

    writes = Writes(
        bound,
        tuple(n.axes[d] for d in chosen),
        lambda at: [
            _place(n, v, broadcast_index(v.shape, at), x.shape[d], negative=True)
            for d, v in zip(chosen, named, strict=True)
        ],
        source,
    )
    return _defined(n, _meeting(n, "add" if n["accumulate"] else "set", writes))


def _masked(n: Node, given: Sequence[TorchValue | None]) -> Result:
    """One value where a mask holds, or one for each place of the dimensions that the mask has not."""
    masks = [(d, v) for d, v in enumerate(given) if v is not None]
    values: TorchValue = n["values"]
    if len(masks) != 1 or masks[0][1].dtype is not DType.BOOL:
        raise n.unsupported("which element is written depends on data", "write it as torch.where of a condition")
    before, mask = masks[0]
    after = before + len(mask.shape)
    own, rest = n.axes[before:after], n.axes[after:]
    # one of the places that the mask holds at is a dimension between those before and those behind
    if any(e != 1 for e in values.shape[: max(len(values.shape) - len(rest), 0)]):
        raise n.unsupported("which value goes where depends on data", "write it as torch.where of a condition")
    held = n["self"].under(n.axes)
    written = values.under((*n.axes, *rest))
    if n["accumulate"]:
        written = op("add", held, written)
    return n.define(op("where", mask.under(own), converted(n, written, n.dtype), held))


HANDLERS: Mapping[str, Handler] = {
    "scatter": _scatter,
    "scatter_add": lambda n: _along(n, "add", _elements(n, "src")),
    "scatter_reduce": _scatter,
    "index_add": _index_add,
    "index_copy": lambda n: _slices(n, "set", _elements(n, "source")),
    "index_fill": lambda n: _slices(n, "set", _number(n), negative=True),
    "index_reduce": _index_reduce,
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
}
