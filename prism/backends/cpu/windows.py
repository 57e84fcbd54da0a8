"""Products over windows: loops over taps in which one product is summed whose first factor is read at pixels plus taps.

A convolution is one, along however many axes, at any stride and dilation. All that its pixels see is copied once, where
what is outside of an image is 0, and the sum over taps and terms is one: `csrc/window.hpp`. A product of a model's
weight with pixels of many channels, as of a convolution by single points, is one of one tap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import gcd, prod
from typing import TypeVar

import sympy

from prism.backends import tile
from prism.backends.cpu.values import Product, Values, View
from prism.backends.tile import Stmt
from prism.ir.kit import defined, operands, statements
from prism.program.extents import Extent, add, at_most, is_static, mul
from prism.program.nodes import ReduceKind

MOST_TAPS = 256
"""Taps of a window, all axes together: their places are a list on the stack."""
MOST_AXES = 6
"""Its axes (by definition: `csrc/calls.hpp` has so many)."""
FEWEST = 16
"""Rows of a weight from which a product of one tap is one: of fewer, what is seen streams through and is not packed."""
WASTE = 2
"""Places that are computed for each pixel, above which windows do not pay: of a small image most taps are outside."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """An axis: pixel i under tap t is at place `first + i*stride + t*dilation`; what is not low <= place < high is 0.

    Attributes:
        lane: the pixels; None for one.
        tap: the index of the loop over the taps, or the product's lane; None for one.
        taps: how many there are at most.
        stride, dilation: in places.
        step: elements from place to place; of a window each piece has its own.
        first: the place of the first pixel under the first tap.
        low, high: the places that are inside; None where all are.
        weight: elements of the second factor from tap to tap.
    """

    lane: str | None
    tap: str | None
    taps: int
    stride: int
    dilation: int
    step: Extent
    first: Extent = 0
    low: Extent | None = None
    high: Extent | None = None
    weight: Extent = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """What a window sees of a range of its terms: one load, of what is put side by side one of several.

    Attributes:
        seen: it, as it is loaded.
        offset: where the first pixel's first tap of term 0 lies.
        steps: of each axis of the window, elements from place to place.
        begin: the first term.
        end: the one behind the last; None for the axis' end.
    """

    seen: str
    offset: Extent
    steps: tuple[Extent, ...]
    begin: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """A product over a window.

    Attributes:
        loops: over the taps, the outermost first; none for one tap.
        product: what is summed; its lane may be that of an axis' taps.
        acc: the accumulator of the outermost loop, or the result.
        pieces: the first factor, and `weights`, as it is loaded, the second.
        shared: lanes of both factors and the result.
        row: the weights' own lane.
        axes: the axes, those without pixels first, the others in the order of the result.
        depth: the summed lane, unless its elements are taps.
        weights_offset: where the weight of the first tap lies.
    """

    loops: tuple[tile.For, ...]
    product: Product
    acc: str
    pieces: tuple[Piece, ...]
    weights: str
    shared: tuple[str, ...]
    row: str
    axes: tuple[WindowAxis, ...]
    depth: str | None
    weights_offset: Extent

    @property
    def lanes(self) -> tuple[str, ...]:
        """The result's, in the order in which it is written."""
        return (*self.shared, self.row, *(a.lane for a in self.axes if a.lane is not None))

    @property
    def taps(self) -> int:
        """How many taps there are at most."""
        return prod(a.taps for a in self.axes)


@dataclass(frozen=True, slots=True)
class _Bound:
    """low <= index < high, where the index is affine in lanes and taps."""

    index: tile.Affine
    low: Extent | None
    high: Extent | None


class _NoWindow(Exception):
    """Why a loop is none."""


def _need(holds: bool) -> None:
    if not holds:
        raise _NoWindow


def _known(found: _T | None) -> _T:
    if found is None:
        raise _NoWindow
    return found


def find_windows(v: Values, products: Mapping[str, Product]) -> dict[int, Window]:
    """The products over windows, by the position of the outermost loop, or of the product alone."""
    found: dict[int, Window] = {}

    def visit(body: Iterable[Stmt]) -> None:
        for s in body:
            if not isinstance(s, tile.For):
                continue
            try:
                found[v.places[id(s)]] = _Match(v, products).run(s)
            except _NoWindow:
                visit(s.body)

    visit(v.program.body)
    for s in v.program.body:
        product = products.get(f"{defined(s)}@{v.places[id(s)]}")
        if product is not None:
            with suppress(_NoWindow):
                found[v.places[id(s)]] = _Match(v, products).alone(product)
    return found


@dataclass(slots=True)
class _Match:
    """Whether a loop is a window, and which."""

    v: Values
    products: Mapping[str, Product]
    loops: list[tile.For] = field(default_factory=list)
    bounds: list[_Bound] = field(default_factory=list)

    def alone(self, product: Product) -> Window:
        """A product of one tap: its pixels are in rows, each k of them apart, and the other factor is a weight."""
        v = self.v
        _need(not product.into and not product.added and product.dst not in v.accumulators)
        updates = (s for s in statements(v.program.body) if isinstance(s, tile.Update))
        _need(all(v.resolve(s.src) != product.dst for s in updates))
        names = (product.lhs, product.rhs)
        weights = [n for n in names if n in v.views and v.tensor(v.views[n].tensor).weight]
        _need(len(weights) == 1)
        (seen,) = (n for n in names if n not in weights)
        window = self._window(product.dst, product, seen, weights[0], {})
        rows = v.lanes[window.row].extent
        _need(not isinstance(rows, int) or rows >= FEWEST)
        _need(all(v.views[p.seen].strides[product.lane] != 1 for p in window.pieces))
        return window

    def run(self, outermost: tile.For) -> Window:
        """The loop over taps."""
        acc, product = self._nested(outermost)
        taps, bounds = self._taps(product.lane), tuple(self.bounds)
        try:
            return self._window(acc, product, product.lhs, product.rhs, taps)
        except _NoWindow:
            self.bounds[:] = bounds
            return self._window(acc, product, product.rhs, product.lhs, taps)

    def _window(self, acc: str, product: Product, seen: str, weights: str, taps: Mapping[str, int]) -> Window:
        v = self.v
        weights = self._loaded(weights)
        by = v.views[weights]
        _need(not by.masks and not by.places and v.tensor(by.tensor).dtype.is_float)
        start = {tile.symbol(s.index): 0 for s in self.loops}
        found: list[Window] = []
        for name, terms, bounds in self._pieces(seen, product.lane):
            begin, end = terms
            own = taps if end is None else {**taps, product.lane: end - begin}
            one = self._window_of(acc, product, name, weights, own, bounds)
            offset = _plain(sympy.sympify(v.views[name].offset).subs(start))
            steps = tuple(a.step for a in one.axes)
            axes = tuple(replace(a, step=0) for a in one.axes)
            found.append(replace(one, axes=axes, pieces=(Piece(name, offset, steps, begin, end),)))
        _need(all(replace(w, pieces=()) == replace(found[0], pieces=()) for w in found))
        _need(len(found) == 1 or found[0].depth is not None)
        return replace(found[0], pieces=tuple(p for w in found for p in w.pieces))

    def _window_of(
        self,
        acc: str,
        product: Product,
        seen: str,
        weights: str,
        taps: Mapping[str, int],
        bounds: Sequence[_Bound],
    ) -> Window:
        """The window of one load; what else is its first factor's is left out."""
        v = self.v
        view, by = v.views[seen], v.views[weights]
        _need(not view.places and v.tensor(view.tensor).dtype.is_float)
        mine, theirs = v.lanes_of(seen), v.lanes_of(weights)
        shared = tuple(n for n in mine if n in theirs and n != product.lane)
        rows = [n for n in theirs if n not in mine]
        pixels = [n for n in mine if n not in theirs]
        _need(len(rows) == 1 and product.lane in mine and product.lane in theirs)
        _need(set(view.strides) == set(mine) and set(by.strides) == set(theirs))
        axes, depth = self._axes(pixels, taps, product.lane, view, by, bounds)
        _need(not taps or any(a.lane is not None and a.tap is not None for a in axes))
        _need(0 < len(axes) <= MOST_AXES)
        _need(prod(a.taps for a in axes) <= MOST_TAPS and self._pays(axes))
        start = {tile.symbol(s.index): 0 for s in self.loops}
        first = _plain(sympy.sympify(by.offset).subs(start))
        return Window(tuple(self.loops), product, acc, (), weights, shared, rows[0], axes, depth, first)

    # The loops.

    def _nested(self, loop: tile.For) -> tuple[str, Product]:
        """The accumulator that a loop adds a product to, itself or by loops within; all else in it is for that."""
        v = self.v
        _need(loop.step == 1)
        self.loops.append(loop)
        inner = [s for s in loop.body if isinstance(s, tile.For)]
        updates = [s for s in loop.body if isinstance(s, tile.Update)]
        allowed = tile.Scalar | tile.IndexValue | tile.InBounds | tile.Pointwise | tile.Select | tile.Cast | tile.For
        more = tile.Load | tile.Rearrange | tile.Dot | tile.Update | tile.Full
        _need(all(isinstance(s, allowed | more) for s in loop.body))
        if inner:
            _need(len(inner) == 1 and len(updates) == 1 and not any(isinstance(s, tile.Dot) for s in loop.body))
            acc, product = self._nested(inner[0])
            (update,) = updates
            _need(update.kind is ReduceKind.SUM and v.resolve(update.src) == acc and update.acc != acc)
            start = _known(next((s for s in loop.body if isinstance(s, tile.Full) and s.dst == acc), None))
            _need(start.value == 0.0 and self._uses(acc) == 2)
            return update.acc, product
        dots = [s for s in loop.body if isinstance(s, tile.Dot)]
        _need(len(dots) == 1 and not any(isinstance(s, tile.Full) for s in loop.body) and not dots[0].added)
        product = _known(self.products.get(f"{dots[0].dst}@{v.places[id(dots[0])]}"))
        if product.into:
            _need(not updates)
            return product.dst, product
        _need(len(updates) == 1 and updates[0].kind is ReduceKind.SUM)
        _need(self._kept_where(updates[0].src) == product.dst and self._uses(product.dst) == 1)
        return updates[0].acc, product

    def _uses(self, name: str) -> int:
        """How often a value is read, by whatever name, or updated."""
        v = self.v
        own = [s for s in statements(v.program.body) if defined(s) is None or v.resolve(defined(s) or "") == defined(s)]
        return sum(v.resolve(n) == name for s in own for n in operands(s))

    def _kept_where(self, name: str) -> str:
        """What a value is before all else than what lies within bounds became 0."""
        v = self.v
        name = v.resolve(name)
        s = v.values[name].stmt if name in v.values else None
        match s:
            case tile.Select(_, mask, src, 0.0):
                self._bound(mask)
            case tile.Pointwise(_, "where", (str(mask), str(src), 0.0)):
                self._bound(mask)
            case _:
                return name
        return self._kept_where(src)

    def _loaded(self, name: str) -> str:
        name = self._kept_where(name)
        _need(name in self.v.views)
        for mask in self.v.views[name].masks:
            self._bound(mask)
        return name

    def _pieces(
        self, name: str, lane: str, begin: int = 0, end: int | None = None
    ) -> Iterator[tuple[str, tuple[int, int | None], tuple[_Bound, ...]]]:
        """What is loaded for each range of terms, and its bounds: several of what is put side by side."""
        v, before = self.v, len(self.bounds)
        name = self._kept_where(name)
        match v.values[name].stmt if name in v.values else None:
            case tile.Pointwise(_, "where", (str(mask), str(below), str(above))):
                # The lane is all of the axis, not a tile of it.
                extent = v.lanes[lane].extent
                _need(v.lanes[lane].size is None and isinstance(extent, int))
                border, last = self._border(mask, lane), extent if end is None else end
                _need(begin < border < last)
                yield from self._pieces(below, lane, begin, border)
                yield from self._pieces(above, lane, border, last)
            case _:
                loaded = self._loaded(name)
                bounds = tuple(b for b in self.bounds if not self._follows(b, lane, begin, end))
                yield loaded, (begin, end), bounds
        del self.bounds[before:]

    def _border(self, mask: str, lane: str) -> int:
        """The first element of a lane at which a mask that holds before it, and hangs on nothing else, does not."""
        before = len(self.bounds)
        self._bound(mask)
        _need(len(self.bounds) == before + 1)
        bound = self.bounds.pop()
        own, first = self._split(*self.v.affine(bound.index))
        border = add(_known(bound.high), mul(-1, _plain(first)))
        _need(own == {lane: 1} and bound.low is None and is_static(border))
        return int(border)

    def _follows(self, bound: _Bound, lane: str, begin: int, end: int | None) -> bool:
        """Whether a bound of terms alone holds for all of some."""
        own, first = self._split(*self.v.affine(bound.index))
        if end is None or own != {lane: 1}:
            return False
        above = bound.low is None or at_most(add(bound.low, mul(-1, first)), begin)
        return above and (bound.high is None or at_most(add(end, first), bound.high))

    def _bound(self, mask: str) -> None:
        """Takes down what a mask asks for."""
        v = self.v
        if v.holds(mask):
            return
        name = v.resolve(mask)
        match _known(v.values[name].stmt if name in v.values else None):
            case tile.InBounds(_, index, high, low):
                self.bounds.append(_Bound(index, low, high))
            case tile.Pointwise(_, "and", (str(one), str(other))):
                self._bound(one)
                self._bound(other)
            case tile.Pointwise(_, "lt" | "le" as op, (str(index), int(number))):
                self.bounds.append(_Bound(self._index(index), None, number + (op == "le")))
            case tile.Pointwise(_, "lt" | "le" as op, (int(number), str(index))):
                self.bounds.append(_Bound(self._index(index), number + (op == "lt"), None))
            case _:
                raise _NoWindow

    def _index(self, name: str) -> tile.Affine:
        name = self.v.resolve(name)
        s = self.v.values[name].stmt if name in self.v.values else None
        if isinstance(s, tile.IndexValue):
            return s.index
        _need(isinstance(s, tile.Offsets) or (s is None and name in self.v.scalars))
        return tile.Affine(((name, 1),))

    # The axes.

    def _taps(self, lane: str) -> dict[str, int]:
        """How many elements each summed index has at most."""
        named = {tile.symbol(s.dst): s.value for s in statements(self.v.program.body) if isinstance(s, tile.Scalar)}
        found: dict[str, int] = {}
        for s in self.loops:
            start, stop = (sympy.sympify(named.get(x, x)) for x in (s.start, s.stop))
            low, high = (x.args if isinstance(x, f) else (x,) for x, f in ((start, sympy.Max), (stop, sympy.Min)))
            _need(any(x.is_Integer and x >= 0 for x in low))
            found[s.index] = int(min(_known([x for x in high if x.is_Integer] or None)))
        extent = self.v.lanes[lane].extent
        if self.v.lanes[lane].size is None and isinstance(extent, int):
            found[lane] = extent
        return found

    def _split(self, offset: Extent, strides: Mapping[str, Extent]) -> tuple[dict[str, Extent], Extent]:
        """An affine index as coefficients of lanes and loops, and what is left."""
        along: dict[str, Extent] = dict(strides)
        rest = sympy.sympify(offset)
        for s in self.loops:
            index = tile.symbol(s.index)
            by = sympy.diff(rest, index)
            rest = sympy.expand(rest - by * index)
            _need(not rest.has(index) and not by.has(index))
            if by != 0:
                along[s.index] = by
        return along, rest

    def _axes(
        self,
        pixels: Sequence[str],
        taps: Mapping[str, int],
        lane: str,
        view: View,
        by: View,
        bounds: Sequence[_Bound],
    ) -> tuple[tuple[WindowAxis, ...], str | None]:
        along, _ = self._split(view.offset, view.strides)
        weights, _ = self._split(by.offset, by.strides)
        summed = {*(s.index for s in self.loops), lane}
        found: list[WindowAxis] = []
        for b in bounds:
            own, first = self._split(*self.v.affine(b.index))
            here = [n for n in own if n in pixels]
            over = [n for n in own if n in summed]
            _need(0 < len(own) == len(here) + len(over) and len(here) <= 1 and len(over) <= 1)
            p, t = (next(iter(x), None) for x in (here, over))
            axis = self._axis(p, t, own, along, weights, taps)
            axis = replace(axis, first=first, low=b.low, high=b.high)
            same = next((a for a in found if {a.lane, a.tap} - {None} & {p, t} - {None}), None)
            if same is None:
                found.append(axis)
                continue
            _need((same.lane, same.tap, same.stride, same.dilation) == (p, t, axis.stride, axis.dilation))
            found[found.index(same)] = replace(
                same,
                low=_both(sympy.Max, same.low, _moved(axis.low, same.first, first)),
                high=_both(sympy.Min, same.high, _moved(axis.high, same.first, first)),
            )
        taken = {n for a in found for n in (a.lane, a.tap)}
        for t in [n for n in (*(s.index for s in self.loops), lane) if n not in taken and n in along]:
            near = [n for n in pixels if n not in taken and self._near(along[t], taps.get(t, 1), along[n], n)]
            if not near:
                if t != lane:
                    found.append(self._axis(None, t, {t: 1}, along, weights, taps))
                continue
            p = min(near, key=lambda n: max(along[t], along[n]))
            common = gcd(int(along[t]), int(along[p]))
            own = {t: along[t] // common, p: along[p] // common}
            found.append(self._axis(p, t, own, along, weights, taps))
            taken |= {p, t}
        found += [self._axis(p, None, {p: 1}, along, weights, taps) for p in pixels if p not in taken]
        _need(summed - {lane} <= {a.tap for a in found})
        ordered = sorted(found, key=lambda a: -1 if a.lane is None else pixels.index(a.lane))
        return tuple(ordered), None if any(a.tap == lane for a in found) else lane

    def _near(self, tap: Extent, taps: int, stride: Extent, lane: str) -> bool:
        """Whether neighbouring pixels along an axis see some of the same."""
        extent = self.v.lanes[lane].extent
        if not all(isinstance(x, int | sympy.Integer) and x > 0 for x in (tap, stride, extent)):
            return False
        return bool(stride <= tap * (taps - 1) and tap < stride * extent)

    def _axis(
        self,
        lane: str | None,
        tap: str | None,
        own: Mapping[str, Extent],
        along: Mapping[str, Extent],
        weights: Mapping[str, Extent],
        taps: Mapping[str, int],
    ) -> WindowAxis:
        """An axis whose places are `own` of its lane and tap, and elements `along` of them."""
        steps = {sympy.sympify(along.get(n, 0)) / own[n] for n in (lane, tap) if n is not None}
        _need(len(steps) == 1)
        (step,) = steps
        _need(step != 0 and sympy.denom(sympy.together(step)) == 1)
        stride, dilation = (1 if n is None else own[n] for n in (lane, tap))
        _need(all(isinstance(x, int | sympy.Integer) and x > 0 for x in (stride, dilation)))
        count = 1 if tap is None else _known(taps.get(tap))
        by = weights.get(tap, 0) if tap is not None else 0
        return WindowAxis(lane, tap, count, int(stride), int(dilation), _plain(step), weight=_plain(by))

    def _pays(self, axes: Sequence[WindowAxis]) -> bool:
        """Whether few places are computed that are no pixels, of an axis as long as it is."""
        total = 1.0
        for a in axes:
            if a.lane is None:
                continue
            extent = self.v.lanes[a.lane].extent
            more = a.dilation * (a.taps - 1) / a.stride
            total *= 1 + more / extent if isinstance(extent, int) else 1
        return total <= WASTE


def _plain(e: Extent) -> Extent:
    e = sympy.expand(sympy.sympify(e))
    return int(e) if e.is_Integer else e


def _moved(bound: Extent | None, first: Extent, other: Extent) -> Extent | None:
    """A bound of places that are counted from elsewhere."""
    return None if bound is None else _plain(add(bound, add(first, mul(-1, other))))


def _both(choose: type, one: Extent | None, other: Extent | None) -> Extent | None:
    if one is None or other is None:
        return other if one is None else one
    return _plain(choose(one, other))


def within(windows: Mapping[int, Window]) -> Iterator[Stmt]:
    """All statements within the loops of windows."""
    for w in windows.values():
        yield from statements(w.loops[0].body if w.loops else ())
