"""Products over windows: loops over taps in which one product is summed whose first factor is read at pixels plus taps.

A convolution is one, along however many axes, at any stride and dilation. All that its pixels see is copied once, where
what is outside of an image is 0, and the sum over taps and terms is one: `csrc/window.hpp`. A product of a model's
weight with pixels of many channels, as of a convolution by single points, is one of one tap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod

import sympy

from prism.backends import tile
from prism.backends.cpu.values import Product, Values, View
from prism.backends.tile import Stmt
from prism.ir.kit import defined, operands, statements
from prism.program.extents import Extent, add, at_most, is_static, mul
from prism.program.nodes import ReduceKind
from prism.program.windows import MOST_TAPS, Bound, NoWindow, Strides, WindowAxis, known, need, plain

MOST_AXES = 6
"""Its axes (by definition: `csrc/calls.hpp` has so many)."""
FEWEST = 16
"""Rows of a weight from which a product of one tap is one: of fewer, what is seen streams through and is not packed."""
WASTE = 2
"""Places that are computed for each pixel, above which windows do not pay: of a small image most taps are outside."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a window sees of a range of its terms: one load, of what is put side by side one of several."""

    seen: str  # it, as it is loaded
    offset: Extent  # where the first pixel's first tap of term 0 lies
    steps: tuple[Extent, ...]  # of each axis of the window, elements from place to place
    begin: int = 0  # the first term
    end: int | None = None  # the one behind the last; None for the axis' end


@dataclass(frozen=True, slots=True)
class Window:
    """A product over a window."""

    loops: tuple[tile.For, ...]  # over the taps, the outermost first; none for one tap
    product: Product  # what is summed; its lane may be that of an axis' taps
    acc: str  # the accumulator of the outermost loop, or the result
    pieces: tuple[Piece, ...]  # the first factor, and `weights`, as it is loaded, the second
    weights: str
    shared: tuple[str, ...]  # lanes of both factors and the result
    row: str  # the weights' own lane
    axes: tuple[WindowAxis, ...]  # the axes, those without pixels first, the others in the order of the result
    depth: str | None  # the summed lane, unless its elements are taps
    weights_offset: Extent  # where the weight of the first tap lies

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


def find_windows(v: Values, products: Mapping[str, Product]) -> dict[int, Window]:
    """The products over windows, by the position of the outermost loop, or of the product alone."""
    found: dict[int, Window] = {}

    def visit(body: Iterable[Stmt]) -> None:
        for s in body:
            if not isinstance(s, tile.For):
                continue
            try:
                found[v.places[id(s)]] = _Match(v, products).run(s)
            except NoWindow:
                visit(s.body)

    visit(v.program.body)
    for s in v.program.body:
        product = products.get(f"{defined(s)}@{v.places[id(s)]}")
        if product is not None:
            with suppress(NoWindow):
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
        need(not product.into and not product.added and product.dst not in v.accumulators)
        updates = (s for s in statements(v.program.body) if isinstance(s, tile.Update))
        need(all(v.resolve(s.src) != product.dst for s in updates))
        names = (product.lhs, product.rhs)
        weights = [n for n in names if n in v.views and v.tensor(v.views[n].tensor).weight]
        need(len(weights) == 1)
        (seen,) = (n for n in names if n not in weights)
        window = self._window(product.dst, product, seen, weights[0], {})
        rows = v.lanes[window.row].extent
        need(not isinstance(rows, int) or rows >= FEWEST)
        need(all(v.views[p.seen].strides[product.lane] != 1 for p in window.pieces))
        return window

    def run(self, outermost: tile.For) -> Window:
        """The loop over taps."""
        acc, product = self._nested(outermost)
        taps, bounds = self._taps(product.lane), tuple(self.bounds)
        try:
            return self._window(acc, product, product.lhs, product.rhs, taps)
        except NoWindow:
            self.bounds[:] = bounds
            return self._window(acc, product, product.rhs, product.lhs, taps)

    def _window(self, acc: str, product: Product, seen: str, weights: str, taps: Mapping[str, int]) -> Window:
        v = self.v
        weights = self._loaded(weights)
        by = v.views[weights]
        need(not by.masks and not by.places and v.tensor(by.tensor).dtype.is_float)
        start = {tile.symbol(s.index): 0 for s in self.loops}
        found: list[Window] = []
        for name, terms, bounds in self._pieces(seen, product.lane):
            begin, end = terms
            own = taps if end is None else {**taps, product.lane: end - begin}
            one = self._window_of(acc, product, name, weights, own, bounds)
            offset = plain(sympy.sympify(v.views[name].offset).subs(start))
            steps = tuple(a.step for a in one.axes)
            axes = tuple(replace(a, step=0) for a in one.axes)
            found.append(replace(one, axes=axes, pieces=(Piece(name, offset, steps, begin, end),)))
        need(all(replace(w, pieces=()) == replace(found[0], pieces=()) for w in found))
        need(len(found) == 1 or found[0].depth is not None)
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
        need(not view.places and v.tensor(view.tensor).dtype.is_float)
        mine, theirs = v.lanes_of(seen), v.lanes_of(weights)
        shared = tuple(n for n in mine if n in theirs and n != product.lane)
        rows = [n for n in theirs if n not in mine]
        pixels = [n for n in mine if n not in theirs]
        need(len(rows) == 1 and product.lane in mine and product.lane in theirs)
        need(set(view.strides) == set(mine) and set(by.strides) == set(theirs))
        axes, depth = self._axes(pixels, taps, product.lane, view, by, bounds)
        need(not taps or any(a.lane is not None and a.tap is not None for a in axes))
        need(0 < len(axes) <= MOST_AXES)
        need(prod(a.taps for a in axes) <= MOST_TAPS and self._pays(axes))
        start = {tile.symbol(s.index): 0 for s in self.loops}
        first = plain(sympy.sympify(by.offset).subs(start))
        return Window(tuple(self.loops), product, acc, (), weights, shared, rows[0], axes, depth, first)

    # The loops.

    def _nested(self, loop: tile.For) -> tuple[str, Product]:
        """The accumulator that a loop adds a product to, itself or by loops within; all else in it is for that."""
        v = self.v
        need(loop.step == 1)
        self.loops.append(loop)
        inner = [s for s in loop.body if isinstance(s, tile.For)]
        updates = [s for s in loop.body if isinstance(s, tile.Update)]
        allowed = tile.Scalar | tile.IndexValue | tile.InBounds | tile.Pointwise | tile.Select | tile.Cast | tile.For
        more = tile.Load | tile.Rearrange | tile.Dot | tile.Update | tile.Full
        need(all(isinstance(s, allowed | more) for s in loop.body))
        if inner:
            need(len(inner) == 1 and len(updates) == 1 and not any(isinstance(s, tile.Dot) for s in loop.body))
            acc, product = self._nested(inner[0])
            (update,) = updates
            need(update.kind is ReduceKind.SUM and v.resolve(update.src) == acc and update.acc != acc)
            start = known(next((s for s in loop.body if isinstance(s, tile.Full) and s.dst == acc), None))
            need(start.value == 0.0 and self._uses(acc) == 2)
            return update.acc, product
        dots = [s for s in loop.body if isinstance(s, tile.Dot)]
        need(len(dots) == 1 and not any(isinstance(s, tile.Full) for s in loop.body) and not dots[0].added)
        product = known(self.products.get(f"{dots[0].dst}@{v.places[id(dots[0])]}"))
        if product.into:
            need(not updates)
            return product.dst, product
        need(len(updates) == 1 and updates[0].kind is ReduceKind.SUM)
        need(self._kept_where(updates[0].src) == product.dst and self._uses(product.dst) == 1)
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
        need(name in self.v.views)
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
                need(v.lanes[lane].size is None and isinstance(extent, int))
                border, last = self._border(mask, lane), extent if end is None else end
                need(begin < border < last)
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
        need(len(self.bounds) == before + 1)
        bound = self.bounds.pop()
        own, first = self._split(*self.v.affine(bound.index))
        border = add(known(bound.high), mul(-1, plain(first)))
        need(own == {lane: 1} and bound.low is None and is_static(border))
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
        match known(v.values[name].stmt if name in v.values else None):
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
                raise NoWindow

    def _index(self, name: str) -> tile.Affine:
        name = self.v.resolve(name)
        s = self.v.values[name].stmt if name in self.v.values else None
        if isinstance(s, tile.IndexValue):
            return s.index
        need(isinstance(s, tile.Offsets) or (s is None and name in self.v.scalars))
        return tile.Affine(((name, 1),))

    # The axes.

    def _taps(self, lane: str) -> dict[str, int]:
        """How many elements each summed index has at most."""
        named = {tile.symbol(s.dst): s.value for s in statements(self.v.program.body) if isinstance(s, tile.Scalar)}
        found: dict[str, int] = {}
        for s in self.loops:
            start, stop = (sympy.sympify(named.get(x, x)) for x in (s.start, s.stop))
            low, high = (x.args if isinstance(x, f) else (x,) for x, f in ((start, sympy.Max), (stop, sympy.Min)))
            need(any(x.is_Integer and x >= 0 for x in low))
            found[s.index] = int(min(known([x for x in high if x.is_Integer] or None)))
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
            need(not rest.has(index) and not by.has(index))
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
        extents = {n: self.v.lanes[n].extent for n in pixels}
        inside = [Bound(*self._split(*self.v.affine(b.index)), b.low, b.high) for b in bounds]
        strides = Strides(pixels, taps, extents, along, weights)
        axes = strides.axes((*(s.index for s in self.loops), lane), inside, lane)
        return axes, None if any(a.tap == lane for a in axes) else lane

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


def within(windows: Mapping[int, Window]) -> Iterator[Stmt]:
    """All statements within the loops of windows."""
    for w in windows.values():
        yield from statements(w.loops[0].body if w.loops else ())
