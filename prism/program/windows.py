"""Windows: what is read at pixels plus taps, as by convolutions and pools, told from places that are affine in both.

Of a tile program for its kernels (`prism.backends.cpu.windows`), of an expression for the interpreter, whose arrays may
have functions for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import TYPE_CHECKING, TypeVar

from prism.program.deferred import Deferred
from prism.program.extents import Extent, add, at_most, cdiv, mul, strides_of
from prism.program.index import Axis, FloorDiv, Index, Mod
from prism.program.nodes import Const, Expr, Map, Position, Read, Size

if TYPE_CHECKING:
    import sympy
else:
    sympy = Deferred("sympy")

MOST_TAPS = 256
"""Taps of a window, all axes together: in kernels, their places are a list on the stack."""

_T = TypeVar("_T")


class NoWindow(Exception):
    """What is looked at is none."""


def need(holds: bool) -> None:
    """Raises NoWindow where something does not hold."""
    if not holds:
        raise NoWindow


def known(found: _T | None) -> _T:
    """What is there; raises NoWindow where nothing is."""
    if found is None:
        raise NoWindow
    return found


@dataclass(frozen=True, slots=True)
class Window:
    """How windows lie along a dimension of a tensor."""

    extent: Extent  # of the dimension
    taps: Extent  # elements of a window
    stride: int = 1  # from a window to the next
    dilation: int = 1  # from an element of a window to the next
    before: int = 0  # places that are put before the dimension
    after: int = 0  # places that are put behind it

    @property
    def reach(self) -> Extent:
        """From the first element of a window to its last, both counted."""
        return add(mul(add(self.taps, -1), self.dilation), 1)

    @property
    def room(self) -> Extent:
        """How far a window can be moved within the dimension and what is put around it; negative where none fits."""
        return add(self.extent, add(mul(-1, self.reach), self.before + self.after))

    def count(self, *, ceil: bool = False) -> Extent:
        """How many windows there are; with `ceil` one more may end behind the padding that starts before it."""
        if not ceil:
            return cdiv(add(self.room, 1), self.stride)
        many = add(cdiv(self.room, self.stride), 1)
        if isinstance(many, int) and isinstance(self.extent, int):
            return many - ((many - 1) * self.stride >= self.extent + self.before)
        return many

    def at(self, place: Axis, tap: Axis) -> Index:
        """Where a window's element lies in the dimension; outside of it where it lies in the padding."""
        return Index.axis(place).scaled(self.stride) + Index.axis(tap).scaled(self.dilation) + (-self.before)

    def meets(self, places: Extent) -> bool:
        """Whether every window is known to have an element of the dimension."""
        near = self.dilation == 1 and at_most(self.before + 1, self.taps)
        if near and at_most(add(mul(add(places, -1), self.stride), 1 - self.before), self.extent):
            return True
        if not (isinstance(places, int) and isinstance(self.taps, int) and isinstance(self.extent, int)):
            return False
        starts = range(-self.before, places * self.stride - self.before, self.stride)
        within = range(self.extent)
        return all(any(s + t * self.dilation in within for t in range(self.taps)) for s in starts)


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """An axis: pixel i under tap t is at place `first + i*stride + t*dilation`; 0 unless low <= place < high."""

    lane: str | None  # the pixels; None for one
    tap: str | None  # the index of the loop over the taps, or the product's lane; None for one
    taps: int  # how many there are at most
    stride: int  # in places
    dilation: int  # in places
    step: Extent  # elements from place to place; of a window each piece has its own
    first: Extent = 0  # the place of the first pixel under the first tap
    low: Extent | None = None  # the places that are inside, up to `high`; None where all are
    high: Extent | None = None
    weight: Extent = 0  # elements of the second factor from tap to tap


@dataclass(frozen=True, slots=True)
class Bound:
    """low <= first + the sum of own[name] * name < high; None where there is no such end."""

    own: Mapping[str, Extent]
    first: Extent
    low: Extent | None
    high: Extent | None


@dataclass(frozen=True, slots=True)
class Strides:
    """What pixels and taps are called, and where they lie."""

    pixels: Sequence[str]  # names of what is seen at, in the order of the result
    taps: Mapping[str, int]  # how many elements each summed name has at most, where that is known
    extents: Mapping[str, Extent]  # of the pixels
    seen: Mapping[str, Extent]  # by name, elements of what is seen from one to the next
    weights: Mapping[str, Extent]  # the same of the second factor

    def axes(self, summed: Sequence[str], bounds: Sequence[Bound], depth: str | None) -> tuple[WindowAxis, ...]:
        """The axes, those without pixels first.

        `bounds` are what of the places is inside; of the names that are summed over, `depth` need not be in an axis.
        """
        found: list[WindowAxis] = []
        for b in bounds:
            here = [n for n in b.own if n in self.pixels]
            over = [n for n in b.own if n in summed]
            need(0 < len(b.own) == len(here) + len(over) and len(here) <= 1 and len(over) <= 1)
            p, t = (next(iter(x), None) for x in (here, over))
            axis = replace(self._axis(p, t, b.own), first=b.first, low=b.low, high=b.high)
            same = next((a for a in found if {a.lane, a.tap} - {None} & {p, t} - {None}), None)
            if same is None:
                found.append(axis)
                continue
            need((same.lane, same.tap, same.stride, same.dilation) == (p, t, axis.stride, axis.dilation))
            found[found.index(same)] = replace(
                same,
                low=_both(sympy.Max, same.low, _moved(axis.low, same.first, b.first)),
                high=_both(sympy.Min, same.high, _moved(axis.high, same.first, b.first)),
            )
        taken = {n for a in found for n in (a.lane, a.tap)}
        for t in [n for n in summed if n not in taken and n in self.seen]:
            near = [n for n in self.pixels if n not in taken and self._near(t, n)]
            if not near:
                if t != depth:
                    found.append(self._axis(None, t, {t: 1}))
                continue
            p = min(near, key=lambda n: max(self.seen[t], self.seen[n]))
            common = gcd(int(self.seen[t]), int(self.seen[p]))
            found.append(self._axis(p, t, {n: self.seen[n] // common for n in (t, p)}))
            taken |= {p, t}
        found += [self._axis(p, None, {p: 1}) for p in self.pixels if p not in taken]
        need({*summed} - {depth} <= {a.tap for a in found})
        return tuple(sorted(found, key=lambda a: -1 if a.lane is None else self.pixels.index(a.lane)))

    def _near(self, tap: str, lane: str) -> bool:
        """Whether neighbouring pixels along an axis see some of the same."""
        extent, step, stride = self.extents[lane], self.seen[tap], self.seen[lane]
        if not all(isinstance(x, int | sympy.Integer) and x > 0 for x in (step, stride, extent)):
            return False
        return bool(stride <= step * (self.taps.get(tap, 1) - 1) and step < stride * extent)

    def _axis(self, lane: str | None, tap: str | None, own: Mapping[str, Extent]) -> WindowAxis:
        """An axis whose places are `own` of its lane and tap."""
        steps = {sympy.sympify(self.seen.get(n, 0)) / own[n] for n in (lane, tap) if n is not None}
        need(len(steps) == 1)
        (step,) = steps
        need(step != 0 and sympy.denom(sympy.together(step)) == 1)
        stride, dilation = (1 if n is None else own[n] for n in (lane, tap))
        need(all(isinstance(x, int | sympy.Integer) and x > 0 for x in (stride, dilation)))
        count = 1 if tap is None else known(self.taps.get(tap))
        by = self.weights.get(tap, 0) if tap is not None else 0
        return WindowAxis(lane, tap, count, int(stride), int(dilation), plain(step), weight=plain(by))


def plain(e: Extent) -> Extent:
    """The extent expanded; a number where it is one."""
    if isinstance(e, int):
        return e
    e = sympy.expand(e)
    return int(e) if e.is_Integer else e


def _moved(bound: Extent | None, first: Extent, other: Extent) -> Extent | None:
    """A bound of places that are counted from elsewhere."""
    return None if bound is None else plain(add(bound, add(first, mul(-1, other))))


def _both(choose: type, one: Extent | None, other: Extent | None) -> Extent | None:
    if one is None or other is None:
        return other if one is None else one
    return plain(choose(one, other))


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of an index: low <= index < high; None where there is no such end."""

    index: Index
    low: Extent | None
    high: Extent | None


def seen(e: Expr, otherwise: float) -> tuple[Read, tuple[Asked, ...]]:
    """The element that is read where all conditions hold, where `otherwise` is taken, and these. Raises NoWindow."""
    asked: list[Asked] = []

    def ask(condition: Expr) -> None:
        match condition:
            case Map("and", (one, other)):
                ask(one)
                ask(other)
            case Map("lt" | "le" as op, (Position(index), Size(n) | Const(n))):
                asked.append(Asked(index, None, add(_whole(n), int(op == "le"))))
            case Map("lt" | "le" as op, (Size(n) | Const(n), Position(index))):
                asked.append(Asked(index, add(_whole(n), int(op == "lt")), None))
            case _:
                raise NoWindow

    while isinstance(e, Map) and e.op == "where":
        condition, e, other = e.args
        need(other == Const(otherwise))
        ask(condition)
    if not isinstance(e, Read):
        raise NoWindow
    return e, tuple(asked)


def _whole(n: Extent | float) -> Extent:
    if isinstance(n, float):
        need(n.is_integer())
        return int(n)
    return n


@dataclass(frozen=True, slots=True)
class Sight:
    """A reduction over the taps of windows in numbers, where all extents are known.

    Axes are told by digits: an axis of which indices take quotients and remainders, as one of channels in groups, is
    two of these. `batch` are of what is seen alone, `shared` of both factors, `rows` of the second alone, `depth` are
    summed and no taps.
    """

    digits: Mapping[Axis, tuple[str, ...]]  # of each axis, the first one first
    sizes: Mapping[str, int]  # how many values each digit has
    offset: int  # where the first pixel's first tap lies, in elements of the tensor; where nothing is, outside of it
    steps: Mapping[str, int]  # elements from a digit's value to the next
    batch: tuple[str, ...]
    shared: tuple[str, ...]
    rows: tuple[str, ...]
    depth: tuple[str, ...]
    axes: tuple[WindowAxis, ...]  # those along which windows lie

    @property
    def windows(self) -> tuple[Window, ...]:
        """How windows lie along what there is of each axis."""
        found = []
        for a in self.axes:
            low, high = self._there(a)
            before, after = low - int(a.first), self._end(a) - high
            found.append(Window(high - low, a.taps, a.stride, a.dilation, before, after))
        return tuple(found)

    @property
    def view(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """What is seen: where it begins, and the size and step of batch, shared, depth, and places, in this order."""
        names = (*self.batch, *self.shared, *self.depth)
        begin = self.offset + sum((self._there(a)[0] - int(a.first)) * int(a.step) for a in self.axes)
        sizes = (*(self.sizes[n] for n in names), *(int(w.extent) for w in self.windows))
        return begin, sizes, (*(self.steps[n] for n in names), *(int(a.step) for a in self.axes))

    def pixels(self, axis: WindowAxis) -> int:
        """How many there are along an axis."""
        return 1 if axis.lane is None else self.sizes[axis.lane]

    def _end(self, a: WindowAxis) -> int:
        return int(a.first) + a.stride * (self.pixels(a) - 1) + a.dilation * (a.taps - 1) + 1

    def _there(self, a: WindowAxis) -> tuple[int, int]:
        low, high = a.first if a.low is None else a.low, self._end(a) if a.high is None else a.high
        low, high = max(int(low), int(a.first)), min(int(high), self._end(a))
        need(low < high)
        return low, high


def sight(
    read: Read,
    asked: Sequence[Asked],
    shape: Sequence[int],
    bound: Sequence[Axis],
    weights: Sequence[Axis],
    valued: Callable[[Extent], int],
    zero: bool,
) -> Sight:
    """How windows lie over a tensor.

    Args:
        read: what is seen.
        asked: where; beside it is what is read beside the tensor.
        shape: the tensor's.
        bound: what is reduced over.
        weights: the axes of the second factor.
        valued: the number that an extent is.
        zero: whether what is beside all is 0, as it is beside a tensor.

    Raises:
        NoWindow: there is no axis of pixels and taps.
    """
    indices = [*read.index, *(a.index for a in asked)]
    digits, sizes, units = _digits(indices, (*bound, *weights), valued)

    def own(index: Index) -> dict[str, int]:
        found: dict[str, int] = {}
        for atom, coefficient in index.terms:
            by = valued(coefficient)
            match atom:
                case Axis():
                    parts = [(n, units[n]) for n in digits[atom]]
                case FloorDiv(inner, _):
                    parts = [(digits[_alone(inner)][0], 1)]
                case Mod(inner, _):
                    parts = [(digits[_alone(inner)][1], 1)]
            for name, unit in parts:
                found[name] = found.get(name, 0) + by * unit
        return {n: c for n, c in found.items() if c}

    steps: dict[str, int] = {}
    offset = 0
    beside: list[Bound] = []
    for index, extent, stride in zip(read.index, shape, strides_of(tuple(shape)), strict=True):
        along, first = own(index), valued(index.offset)
        for name, by in along.items():
            steps[name] = steps.get(name, 0) + by * int(stride)
        offset += first * int(stride)
        ends = [sum(f(0, c * (sizes[n] - 1)) for n, c in along.items()) + first for f in (min, max)]
        within = 0 if ends[0] < 0 else None, extent if ends[1] >= extent else None
        if within != (None, None):
            beside.append(_reduced(along, first, *within))
    summed = sorted((n for a in bound for n in digits[a] if sizes[n] > 1), key=lambda n: steps.get(n, 0))
    theirs = [n for a in weights for n in digits[a]]
    mine = sorted(steps, key=lambda n: -steps[n])
    free = [n for n in mine if n not in summed]
    pixels = [n for n in free if n not in theirs]
    bounds = [
        _reduced(own(a.index), valued(a.index.offset), *(None if e is None else valued(e) for e in (a.low, a.high)))
        for a in asked
    ]
    need(all(n > 0 for n in (*shape, *sizes.values())) and all(s > 0 for s in steps.values()))
    strides = Strides(pixels, sizes, sizes, steps, {})
    axes = strides.axes(summed, [*bounds, *beside] if zero else bounds, None)
    need(zero or not beside or axes == strides.axes(summed, [*bounds, *beside], None))
    windows = tuple(a for a in axes if (a.lane and a.tap) or (a.low, a.high) != (None, None))
    need(any(a.lane and a.tap for a in windows) and prod(a.taps for a in windows) <= MOST_TAPS)
    told = {n for a in windows for n in (a.lane, a.tap)}
    return Sight(
        digits,
        sizes,
        offset,
        steps,
        batch=tuple(n for n in pixels if n not in told),
        shared=tuple(n for n in free if n in theirs),
        rows=tuple(n for n in theirs if n not in steps),
        depth=tuple(n for n in mine if n in summed and n not in told),
        axes=windows,
    )


def _reduced(own: Mapping[str, int], first: int, low: int | None, high: int | None) -> Bound:
    """A bound of places without those between, where all coefficients have a common factor."""
    by = gcd(*own.values()) or 1
    low, high = (None if end is None else -((first - end) // by) for end in (low, high))
    return Bound({n: c // by for n, c in own.items()}, 0, low, high)


def _alone(index: Index) -> Axis:
    """The axis that an index is. Raises NoWindow."""
    (axis, *more) = index.axes() or (None,)
    need(axis is not None and not more and index == Index.axis(axis))
    return known(axis)


def _digits(
    indices: Sequence[Index], more: Sequence[Axis], valued: Callable[[Extent], int]
) -> tuple[dict[Axis, tuple[str, ...]], dict[str, int], dict[str, int]]:
    """The digits of all axes, and of each how many values it has and what one of it counts."""
    divisors: dict[Axis, int] = {}
    for index in indices:
        for atom, _ in index.terms:
            if not isinstance(atom, Axis):
                axis, divisor = _alone(atom.value), valued(atom.divisor)
                need(divisors.setdefault(axis, divisor) == divisor > 0 == valued(axis.extent) % divisor)
    digits: dict[Axis, tuple[str, ...]] = {}
    sizes: dict[str, int] = {}
    units: dict[str, int] = {}
    for axis in dict.fromkeys((*(a for i in indices for a in sorted(i.axes(), key=str)), *more)):
        size = valued(axis.extent)
        parts = [(size, 1)] if axis not in divisors else [(size // divisors[axis], divisors[axis]), (divisors[axis], 1)]
        digits[axis] = tuple(str(len(sizes) + n) for n in range(len(parts)))
        for name, (count, unit) in zip(digits[axis], parts, strict=True):
            sizes[name], units[name] = count, unit
    return digits, sizes, units
