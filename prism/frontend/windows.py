"""Operators over windows, under both readers: convolution, its transpose, pooling, and padding.

A window's element is a read at `stride*place + dilation*tap - before`; where that may lie beside the dimension it is
chosen by a predicate, which narrows the reduction. Nothing is padded that is not written out as a choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from prism.program import build
from prism.program.extents import Extent, add, at_most, mul, product
from prism.program.fold import div, op
from prism.program.formulas import power
from prism.program.index import Axis, Index
from prism.program.integers import range_of
from prism.program.nodes import Const, DType, Expr, ReduceKind, free_axes
from prism.program.transform import substitute
from prism.program.views import same_extent
from prism.program.windows import Window


class Operand(Protocol):
    """A tensor of either reader."""

    @property
    def shape(self) -> tuple[Extent, ...]:
        """Elements per dimension."""

    def at(self, index: Sequence[Index]) -> Expr:
        """The element at an index per dimension."""


def inside(index: Index, low: Extent, high: Extent) -> list[Expr]:
    """Predicates that say that an index is at least `low` and below `high`: those that are not known to hold."""
    ends = index.ends()
    conditions: list[Expr] = []
    if ends is None or not at_most(low, ends[0]):
        conditions.append(op("le", build.position(Index.const(low)), build.position(index)))
    if ends is None or not at_most(add(ends[1], 1), high):
        conditions.append(op("lt", build.position(index), build.position(Index.const(high))))
    return conditions


def chosen(conditions: Sequence[Expr], element: Expr, otherwise: Expr) -> Expr:
    """The element where all conditions hold."""
    for condition in conditions:
        element = op("where", condition, element, otherwise)
    return element


def convolution(x: Operand, w: Operand, axes: Sequence[Axis], windows: Sequence[Window], groups: int) -> Expr:
    """The sum over the taps and a group's channels of x[batch, channel, ...] * w[channel out, channel, tap, ...].

    Channels are summed innermost: as written, it is a product of matrices at each tap.

    Args:
        x: of the shape [batch, channels, ...].
        w: of the shape [channels out, channels / groups, taps, ...].
        axes: of the result: batch, channel out, places.
        windows: one for each spatial dimension.
        groups: how many groups channels make up, which have nothing to do with each other.
    """
    batch, channel, *places = axes
    inner = Axis("c", w.shape[1])
    taps = [Axis(f"k{d}", e) for d, e in enumerate(w.shape[2:])]
    source = _group(channel, groups).scaled(w.shape[1]) + Index.axis(inner)
    element = _element(x, [Index.axis(batch), source], windows, places, taps)
    weight = w.at([Index.axis(a) for a in (channel, inner, *taps)])
    return build.reduce(ReduceKind.SUM, (*taps, inner), op("mul", element, weight))


def weights_gradient(x: Operand, dy: Operand, axes: Sequence[Axis], windows: Sequence[Window], groups: int) -> Expr:
    """A convolution's weights' gradient: the sum over batch and places of x[batch, channel, ...] * dy[batch, ...].

    Args:
        x: what windows lie over, of the shape [batch, channels, ...].
        dy: of each window, of the shape [batch, channels out, ...].
        axes: of the weights: channels out, channels / groups, taps.
        windows: one for each spatial dimension, over that of x.
        groups: as in a convolution.
    """
    channel, inner, *taps = axes
    batch = Axis("b", x.shape[0])
    places = [Axis(f"p{d}", e) for d, e in enumerate(dy.shape[2:])]
    source = _group(channel, groups).scaled(inner.extent) + Index.axis(inner)
    element = _element(x, [Index.axis(batch), source], windows, places, taps)
    outer = dy.at([Index.axis(a) for a in (batch, channel, *places)])
    return build.reduce(ReduceKind.SUM, (batch, *places), op("mul", element, outer))


def _element(
    x: Operand, index: Sequence[Index], windows: Sequence[Window], places: Sequence[Axis], taps: Sequence[Axis]
) -> Expr:
    """What windows hold at their taps, where x is read at the index before the spatial dimensions; 0 in the padding."""
    within = [window.at(place, tap) for window, place, tap in zip(windows, places, taps, strict=True)]
    conditions = [c for i, window in zip(within, windows, strict=True) for c in inside(i, 0, window.extent)]
    return chosen(conditions, x.at([*index, *within]), Const(0.0))


def _group(channel: Axis, groups: int) -> Index:
    if groups == 1:
        return Index.const(0)
    assert isinstance(channel.extent, int)
    return Index.axis(channel).floordiv(channel.extent // groups)


def transposed_convolution(
    x: Operand, w: Operand, axes: Sequence[Axis], windows: Sequence[Window], groups: int
) -> Expr:
    """Each x[batch, channel, ...] times a window of weights, added up where windows lie on one another.

    Along a dimension, out[p] is the sum of x[q] * w[k] with stride*q + dilation*k = p + before. Where windows lie side
    by side that is one product; else the sum is over taps where the stride is 1, over places of x where the dilation
    is, and over both else. Of places of x those few that reach p are looked at where the stride divides what there are:
    from p // stride on, p % stride says which tap.

    Args:
        x: of the shape [batch, channels, ...].
        w: of the shape [channels, channels out / groups, taps, ...].
        axes: of the result: batch, channel out, places.
        windows: one for each spatial dimension, over that of the result; `extent` is that of x.
        groups: as in a convolution.
    """
    batch, channel, *places = axes
    each = x.shape[1]
    if groups > 1:
        assert isinstance(each, int)
        each //= groups
    inner = Axis("c", each)
    source = _group(channel, groups).scaled(each) + Index.axis(inner)
    output = Index.axis(channel) if groups == 1 else Index.axis(channel).mod(w.shape[1])
    # As in a convolution, it is a product of matrices at each place that is reached from; channel by channel none.
    found = reached(windows, places, products=each != 1)
    element = chosen(found.there, x.at([Index.axis(batch), source, *found.at]), Const(0.0))
    weight = chosen(found.tapped, w.at([source, output, *found.taps]), Const(0.0))
    term = chosen(found.holds, op("mul", element, weight), Const(0.0))
    return build.reduce(ReduceKind.SUM, (*found.bound, inner), term)


@dataclass(slots=True)
class Reached:
    """The windows that hold a place of what they lie over, and the tap of each that does: for all of the bound axes."""

    bound: list[Axis] = field(default_factory=list)
    at: list[Index] = field(default_factory=list)  # which window, along each dimension
    taps: list[Index] = field(default_factory=list)  # which of its taps
    there: list[Expr] = field(default_factory=list)  # what holds where there is such a window
    tapped: list[Expr] = field(default_factory=list)  # what holds where it has such a tap
    holds: list[Expr] = field(default_factory=list)  # what else holds where the tap lies on the place

    def sum(self, value: Expr) -> Expr:
        """The sum over those windows of a value of each."""
        return build.reduce(
            ReduceKind.SUM, tuple(self.bound), chosen([*self.there, *self.tapped, *self.holds], value, Const(0.0))
        )


def reached(windows: Sequence[Window], places: Sequence[Axis], products: bool = False) -> Reached:
    """The windows that hold places, along each dimension: `extent` of a window is how many there are of it.

    Where there is one for each tap, that holds of the place, or of what is read there where that is to be multiplied.
    """
    found = Reached()
    beside = found.there if products else found.holds
    for d, (window, place) in enumerate(zip(windows, places, strict=True)):
        shifted = Index.axis(place) + window.before
        tap, at = Axis(f"k{d}", window.taps), Axis(f"q{d}", window.extent)
        side_by_side = window.dilation == 1 and window.taps == window.stride and window.before == 0
        if side_by_side and same_extent(place.extent, mul(window.extent, window.stride)):
            found.at.append(Index.axis(place).floordiv(window.stride))
            found.taps.append(Index.axis(place).mod(window.stride))
            continue
        if window.stride == 1:
            found.bound.append(tap)
            found.at.append(shifted + Index.axis(tap).scaled(-window.dilation))
            beside += inside(found.at[-1], 0, window.extent)
            found.taps.append(Index.axis(tap))
            continue
        reaching = _reaching(window, place, f"q{d}")
        if reaching is not None:
            back, here, tap_here = reaching
            found.bound.append(back)
            found.at.append(here)
            found.there += inside(here, 0, window.extent)
            found.taps.append(tap_here)
            found.tapped += inside(tap_here, 0, window.taps)
            continue
        found.bound.append(at)
        found.at.append(Index.axis(at))
        rest = shifted + Index.axis(at).scaled(-window.stride)
        if window.dilation == 1:
            found.holds += inside(rest, 0, window.taps)
            found.taps.append(rest)
            continue
        found.bound.append(tap)
        found.taps.append(Index.axis(tap))
        last = Index.axis(at).scaled(window.stride) + Index.axis(tap).scaled(window.dilation)
        found.holds.append(op("eq", build.position(last), build.position(shifted)))
    return found


def _reaching(window: Window, place: Axis, name: str) -> tuple[Axis, Index, Index] | None:
    """An axis over the places of x that may reach p, which one that is, and the tap at which it does.

    It counts back from (p + before) // stride, and (p + before) % stride is the first tap. Of what `before` has besides
    strides, half a stride is carried by the half in which p is; of anything else each p looks at a place more than
    reach it, from p // stride on.

    None where the stride does not divide the places of the result, or these are no fewer than there are.
    """
    many, stride, taps, before = place.extent, window.stride, window.taps, window.before
    if window.dilation != 1 or not all(isinstance(n, int) for n in (many, taps, before)) or int(many) % stride:
        return None
    strides, rest = divmod(before, stride)
    start, first, least = Index.axis(place).floordiv(stride) + strides, Index.axis(place).mod(stride) + rest, 0
    if 2 * rest == stride:
        half = Index.axis(place).floordiv(rest).mod(2)
        start, first = start + half, Index.axis(place).mod(rest) + half.scaled(-rest) + rest
        rest = 0
    elif rest:
        least = -((stride - 1 + rest) // stride)
    reach = (taps - 1 - rest) // stride - least + 1
    if at_most(window.extent, reach):
        return None
    axis = Axis(name, reach)
    back = Index.axis(axis) + least
    return axis, start + back.scaled(-1), first + back.scaled(stride)


# Pooling


@dataclass(frozen=True, slots=True)
class Pool:
    """The elements that each place of a result pools."""

    element: Expr  # the operand's element at the places, and the bound axes
    at: tuple[Index, ...]  # where that lies, along each dimension that is pooled
    extents: tuple[Extent, ...]  # of these dimensions
    bound: tuple[Axis, ...]  # the axes that are reduced
    conditions: tuple[Expr, ...]  # what holds where the element is one of the dimension's own


def pool(x: Operand, axes: Sequence[Axis], windows: Sequence[Window]) -> Pool:
    """What windows over the last dimensions pool."""
    taps = [Axis(f"k{d}", window.taps) for d, window in enumerate(windows)]
    leading = axes[: len(axes) - len(windows)]
    index = [Index.axis(a) for a in leading]
    conditions: list[Expr] = []
    for window, place, tap in zip(windows, axes[len(leading) :], taps, strict=True):
        at = window.at(place, tap)
        conditions += inside(at, 0, window.extent)
        index.append(at)
    spatial = x.shape[len(leading) :]
    return Pool(x.at(index), tuple(index[len(leading) :]), spatial, tuple(taps), tuple(conditions))


def adaptive_pool(x: Operand, axes: Sequence[Axis], spatial: int) -> Pool:
    """What as many windows as the result has places pool: from floor(p*n/m) up to and without ceil((p + 1)*n/m)."""
    leading = axes[: len(axes) - spatial]
    places, extents = axes[len(leading) :], x.shape[len(leading) :]
    whole = [_quotient(n, p.extent) for n, p in zip(extents, places, strict=True)]
    index, bound, conditions = [Index.axis(a) for a in leading], [], []
    for d, (n, place, each) in enumerate(zip(extents, places, whole, strict=True)):
        if each is not None:
            bound.append(Axis(f"k{d}", each))
            index.append(Index.axis(place).scaled(each) + Index.axis(bound[-1]))
            continue
        bound.append(Axis(f"k{d}", n))
        index.append(Index.axis(bound[-1]))
        many = place.extent
        at, start = Index.axis(bound[-1]).scaled(many), Index.axis(place).scaled(n)
        # r > p*n/m - 1 is r >= floor(p*n/m)
        conditions.append(op("lt", build.position(start), build.position(at + Index.const(many))))
        conditions.append(op("lt", build.position(at), build.position(start + Index.const(n))))
    return Pool(x.at(index), tuple(index[len(leading) :]), extents, tuple(bound), tuple(conditions))


def _quotient(n: Extent, m: Extent) -> int | None:
    return n // m if isinstance(n, int) and isinstance(m, int) and m and n % m == 0 else None


def largest(pooled: Pool, dtype: DType) -> Expr:
    """The maximum of what is pooled; padding is less than anything."""
    least = Const(-math.inf) if dtype.is_float else Const(range_of(dtype).low)
    return build.reduce(ReduceKind.MAX, pooled.bound, chosen(pooled.conditions, pooled.element, least))


def place_of_largest(pooled: Pool, value: Expr) -> Expr:
    """Where what is pooled first is the maximum, which is given, or NaN: counted through the dimensions, row by row."""
    alike = op("or", op("eq", pooled.element, value), op("isnan", pooled.element))
    place = build.position(flat_place(pooled.at, pooled.extents))
    found = chosen([alike, *pooled.conditions], place, build.size(product(pooled.extents)))
    return build.reduce(ReduceKind.MIN, pooled.bound, found)


def flat_place(index: Sequence[Index], extents: Sequence[Extent]) -> Index:
    """Where an element lies, counted row by row."""
    found = Index.const(0)
    for i, extent in zip(index, extents, strict=True):
        found = found.scaled(extent) + i
    return found


def adaptively_reached(pooled: Pool, places: Sequence[Axis], windows: Sequence[Axis]) -> Reached:
    """The windows of an adaptive pool that hold places; the pool's are under the axes `windows`."""
    found = Reached()
    for at, place, window in zip(pooled.at, places, windows, strict=True):
        each = _quotient(place.extent, window.extent)
        if each is not None:
            found.at.append(Index.axis(place).floordiv(each))
            continue
        found.bound.append(window)
        found.at.append(Index.axis(window))
        held = {own: Index.axis(place) for own in at.axes()}
        about = {window, *held}
        found.there += [substitute(c, held) for c in pooled.conditions if free_axes(c) & about]
    return found


def many(pooled: Pool) -> Expr:
    """How many elements are pooled that are not padding."""
    return _many(pooled.bound, pooled.conditions)


def average(pooled: Pool, divisor: Expr | None = None) -> Expr:
    """The sum of what is pooled, divided by a number, or by that of the elements that are not padding."""
    return div(total(pooled), many(pooled) if divisor is None else divisor)


def total(pooled: Pool) -> Expr:
    """The sum of what is pooled."""
    return build.reduce(ReduceKind.SUM, pooled.bound, chosen(pooled.conditions, pooled.element, Const(0.0)))


def with_padding(axes: Sequence[Axis], windows: Sequence[Window]) -> Expr:
    """How many elements each window has, padding among them; what lies behind the padding is none."""
    taps = [Axis(f"k{d}", window.taps) for d, window in enumerate(windows)]
    each = zip(windows, axes[len(axes) - len(windows) :], taps, strict=True)
    return _many(taps, [c for w, p, tap in each for c in inside(w.at(p, tap), -w.before, add(w.extent, w.after))])


def _many(bound: Sequence[Axis], conditions: Sequence[Expr]) -> Expr:
    """For how many values of the bound axes the conditions hold, each of which is about one of them, or none."""
    count: Expr = Const(1.0)
    for axis in bound:
        own = [c for c in conditions if axis in free_axes(c)]
        held = chosen(own, Const(1.0), Const(0.0))
        count = op("mul", count, build.reduce(ReduceKind.SUM, axis, held) if own else build.size(axis.extent))
    rest = [c for c in conditions if free_axes(c).isdisjoint(bound)]
    return op("mul", count, chosen(rest, Const(1.0), Const(0.0))) if rest else count


def length(pooled: Pool, p: int) -> Expr:
    """The p-norm of what is pooled."""
    raised = power(pooled.element if p % 2 == 0 else op("abs", pooled.element), Const(float(p)))
    return power(total(replace(pooled, element=raised)), Const(1.0 / p))


# Padding


@dataclass(frozen=True, slots=True)
class Margin:
    """What is put around a dimension; negative numbers take away from it."""

    extent: Extent  # of the dimension
    before: Extent  # places before it
    after: Extent  # places behind it

    @property
    def total(self) -> Extent:
        """The dimension with what is around it."""
        return add(self.extent, add(self.before, self.after))


Place = tuple[Expr | None, Index]


def padded(
    x: Operand, axes: Sequence[Axis], margins: Sequence[Margin], choices: Callable[[Axis, Margin], list[Place]]
) -> Expr:
    """The element of a padded tensor, where padding repeats elements: a choice among pieces, dimension by dimension.

    Args:
        x: the tensor.
        axes: of the result.
        margins: one for each dimension.
        choices: (condition, index into the dimension) of each piece; the last stands where none before it does.
    """

    def of(d: int, index: list[Index]) -> Expr:
        if d == len(axes):
            return x.at(index)
        *conditional, (_, last) = choices(axes[d], margins[d])
        value = of(d + 1, [*index, last])
        for condition, at in reversed(conditional):
            assert condition is not None
            value = op("where", condition, of(d + 1, [*index, at]), value)
        return value

    return of(0, [])


def filled(x: Operand, axes: Sequence[Axis], margins: Sequence[Margin], fill: Expr) -> Expr:
    """The element of a tensor around which one number stands."""
    index = [Index.axis(a) + Index.const(mul(-1, m.before)) for a, m in zip(axes, margins, strict=True)]
    conditions = [c for i, m in zip(index, margins, strict=True) for c in inside(i, 0, m.extent)]
    return chosen(conditions, x.at(index), fill)


def reflected(axis: Axis, margin: Margin) -> list[Place]:
    """Around the dimension stands its mirror image, without the element at the mirror."""
    inner = Index.axis(axis) + Index.const(mul(-1, margin.before))
    last = add(margin.extent, -1)
    mirrored = inner.scaled(-1)
    return _around(axis, margin, mirrored, inner, mirrored + Index.const(mul(2, last)))


def repeated(axis: Axis, margin: Margin) -> list[Place]:
    """Around the dimension stand its first and its last element."""
    inner = Index.axis(axis) + Index.const(mul(-1, margin.before))
    return _around(axis, margin, Index.const(0), inner, Index.const(add(margin.extent, -1)))


def wrapped(axis: Axis, margin: Margin) -> list[Place]:
    """Around the dimension stands the dimension itself."""
    inner = Index.axis(axis) + Index.const(mul(-1, margin.before))
    n = Index.const(margin.extent)
    return _around(axis, margin, inner + n, inner, inner + n.scaled(-1))


def _around(axis: Axis, margin: Margin, low: Index, inner: Index, high: Index) -> list[Place]:
    def places() -> Iterator[Place]:
        place = build.position(axis)
        if not at_most(margin.before, 0):
            yield op("lt", place, build.position(Index.const(margin.before))), low
        if at_most(margin.after, 0):
            yield None, inner
            return
        yield op("lt", place, build.position(Index.const(add(margin.extent, margin.before)))), inner
        yield None, high

    return list(places())
