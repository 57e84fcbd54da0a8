"""Lowering of squared deviations: counts, means and sums of squares about them, merged as a loop goes.

Of n elements with mean a and sum of squares p about it, and of m others with b and q (Chan, Golub & LeVeque, 1979)

    mean                     a + (b - a) * m/(n + m)
    sum of squares about it  p + q + (b - a)^2 * n*m/(n + m)

Either each lane along the axis merges what it sees on its own, an element at a time, so that nothing is exchanged
between threads before the loop has ended, and then the lanes are merged; or each tile is merged as a whole. What is the
first has nothing to be merged with: its mean is the mean. It is kept apart, as the base, and the mean of all as what is
to be added to it: a difference from the base is exact where elements are near each other, and what is left rounds by
their spread and not by their size (Chan, Golub & LeVeque, 1983: the data shifted by one of them, and the corrected
two-pass algorithm, by which the mean of a tile has a second term).

The parts of a split are merged as a whole, each by the count that it has: 0 where it has no element, and then its mean
is 0 and of no weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import sympy

from prism.backends import tile
from prism.backends.lower_index import Indexing, Names, cdiv, floordiv
from prism.backends.lower_layout import Layout
from prism.backends.tile import symbol
from prism.program.extents import Extent, add, is_static, mul
from prism.program.index import Axis
from prism.program.nodes import DType, ReduceKind

F32 = DType.FLOAT32


@dataclass(frozen=True, slots=True)
class Span:
    """A loop over an axis: the name of its index, and where it starts, stops and how far it steps."""

    index: str
    start: Extent
    stop: Extent
    step: Extent


@dataclass(frozen=True, slots=True)
class Moments:
    """A statistic, or elements: then there are no squares, and each is its own mean."""

    mean: str  # of the elements
    squares: str | None  # the sum of squares about it
    dims: tile.Dims  # of these
    count: Extent | str = 1  # how many elements there are; of what parts make up it is a value
    rest: str | None = None  # what is to be added to the mean, which is rounded


@dataclass(frozen=True, slots=True)
class Running:
    """The accumulators."""

    base: str  # what was seen first: an element, or the mean of a tile
    mean: str  # of what was seen, less the base
    squares: str  # about the mean
    dims: tile.Dims  # of these
    lanes: bool  # whether each lane along the axis merges on its own
    counts: str | None  # how many elements each lane saw, where that is not the same for all; None where it is


@dataclass(frozen=True, slots=True)
class Deviations:
    """Writes the statements."""

    layout: Layout  # the dimensions of tiles
    names: Names  # hands out names
    indexing: Indexing  # masks and sizes of tiles
    emit: Callable[[tile.Stmt], None]  # takes the statements

    def start(self, axis: Axis, dims: tile.Dims, lanes: bool) -> Running:
        """The accumulators before a loop over the axis; `dims` has the axis' where lanes merge on their own."""
        base, mean, squares = (self._full(f"running_{name}", dims) for name in ("base", "mean", "squares"))
        ragged = lanes and self.layout.is_ragged(axis)
        counts = self._full("running_count", (self.layout.dim_of(axis).name,)) if ragged else None
        return Running(base, mean, squares, dims, lanes, counts)

    def merge(self, running: Running, given: Moments, axis: Axis, span: Span) -> None:
        """Merge a tile of elements or statistics."""
        dims, whole = running.dims, self.layout.is_tiled(axis) and not running.lanes
        before = add(symbol(span.index), mul(-1, span.start))
        if running.lanes:
            before = floordiv(before, span.step)
        count = self._held(axis, span, before) if whole else 1
        elements, seen = self._number("count", count), self._number("seen", add(before, count))
        share = self._pointwise("share", "div", (elements, seen), ())
        weight = self._pointwise("weight", "mul", (share, self._number("before", before)), ())
        weight = self._times(weight, given.count, ())
        first = self.names.fresh("first")
        self.emit(tile.Pointwise(first, "le", (seen, elements), (), DType.BOOL))
        opening = self._pointwise("opening", "where", (first, 1.0, 0.0), ())
        later = self._pointwise("later", "where", (first, 0.0, share), ())
        apart = self._difference(given.mean, running.base, dims, given.dims)
        mask = self.indexing.mask.get(axis)
        second, squares = given.rest, given.squares
        if whole:
            apart, second, squares = self._tile(replace(given, mean=apart), axis, elements)
        elif second is not None and squares is not None and mask is not None:
            apart, second, squares = (self._select(mask, v) for v in (apart, second, squares))
        moved = self._difference(apart, running.mean, dims, dims)
        if second is not None:
            moved = self._pointwise("moved", "add", (moved, second), dims)
        if mask is not None and not whole:
            moved = self._select(mask, moved)
        # In this order 0 elements before leave 0, however large the square would be.
        scaled = self._pointwise("scaled", "mul", (moved, weight), dims)
        grown = self._pointwise("grown", "mul", (scaled, moved), dims)
        if squares is not None:
            grown = self._pointwise("grown", "add", (grown, squares), dims)
        self.emit(tile.Update(running.squares, ReduceKind.SUM, grown))
        if running.counts is not None and mask is not None:
            one = self.names.fresh("inside")
            self.emit(tile.Cast(one, mask, F32))
            self.emit(tile.Update(running.counts, ReduceKind.SUM, one))
        step = self._pointwise("step", "mul", (moved, later), dims)
        if second is not None:
            rest = self._pointwise("rest", "mul", (second, opening), dims)
            step = self._pointwise("step", "add", (step, rest), dims)
        base = self._pointwise("step", "mul", (moved if second is None else apart, opening), dims)
        self.emit(tile.Update(running.mean, ReduceKind.SUM, step))
        self.emit(tile.Update(running.base, ReduceKind.SUM, base))

    def end(self, running: Running, held: Extent | str, axis: Axis, span: Span, part: bool) -> Moments:
        """The statistic over the axis, or the program's part of it, after the loop.

        `held` elements were merged for each place; a `part` may be empty.
        """
        dims, places = running.dims, axis.extent
        if part:
            name = self.names.fresh(f"places_{axis.name}")
            self.emit(tile.Scalar(name, sympy.Max(add(span.stop, mul(-1, span.start)), 0)))
            places = symbol(name)
        count = self._many(held, places)
        if not running.lanes:
            return Moments(running.base, running.squares, dims, count, running.mean)
        means = self._pointwise("mean", "add", (running.base, running.mean), dims)
        dim = self.layout.dim_of(axis).name
        kept = tuple(d for d in dims if d != dim)
        each: tile.Operand
        if running.counts is None:
            length = self.layout.sizes[axis]
            each = self._number("seen", cdiv(add(span.stop, mul(-1, span.start)), span.step))
            total = self._number("lanes", symbol(length) if isinstance(length, str) else length)
            sums = self._sum(means, dim)
        else:
            each = running.counts
            # A part of a split may have no elements.
            total = self._pointwise("seen", "maximum", (self._sum(running.counts, dim), 1.0), ())
            sums = self._sum(self._pointwise("scaled", "mul", (means, each), dims), dim)
        mean = self._pointwise("mean", "div", (sums, total), kept)
        apart = self._difference(running.base, mean, kept, dims)
        moved = self._pointwise("moved", "add", (apart, running.mean), dims)
        scaled = self._pointwise("scaled", "mul", (moved, each), dims)
        rest = self._pointwise("second", "div", (self._sum(scaled, dim), total), kept)
        scaled = self._times(scaled, held, dims)
        grown = self._pointwise("grown", "mul", (scaled, moved), dims)
        squares = self._sum(self._pointwise("grown", "add", (running.squares, grown), dims), dim)
        return Moments(mean, squares, kept, count, rest)

    def whole(self, given: Moments, axis: Axis) -> Moments:
        """The statistic of a tile that holds all of the axis."""
        count = self._many(given.count, axis.extent)
        if not self.layout.is_tiled(axis):
            nothing = self._difference(given.mean, given.mean, given.dims, given.dims)
            return replace(given, squares=given.squares or nothing, count=count)
        mean, second, squares = self._tile(given, axis, self._number("count", axis.extent))
        kept = tuple(d for d in given.dims if d != self.layout.dim_of(axis).name)
        return Moments(mean, squares, kept, count, second)

    def parts(self, given: Moments, count: str, axis: Axis) -> Moments:
        """The statistic of all parts along the axis, whose moments are 0 outside of it."""
        if not self.layout.is_tiled(axis):
            return replace(given, count=count)
        assert given.rest is not None
        assert given.squares is not None
        dims, dim = given.dims, self.layout.dim_of(axis).name
        kept = tuple(d for d in dims if d != dim)
        total = self._sum(count, dim)
        means = self._pointwise("mean", "add", (given.mean, given.rest), dims)
        sums = self._sum(self._pointwise("scaled", "mul", (means, count), dims), dim)
        mean = self._pointwise("mean", "div", (sums, total), kept)
        apart = self._difference(given.mean, mean, kept, dims)
        moved = self._pointwise("moved", "add", (apart, given.rest), dims)
        sums = self._sum(self._pointwise("scaled", "mul", (moved, count), dims), dim)
        second = self._pointwise("second", "div", (sums, total), kept)
        moved = self._difference(moved, second, kept, dims)
        scaled = self._pointwise("scaled", "mul", (moved, count), dims)
        grown = self._pointwise("grown", "mul", (scaled, moved), dims)
        squares = self._sum(self._pointwise("grown", "add", (given.squares, grown), dims), dim)
        return Moments(mean, squares, kept, total, second)

    def number(self, count: Extent | str) -> tile.Operand:
        """A count, as a number."""
        return count if isinstance(count, str) else self._number("count", count)

    def _tile(self, given: Moments, axis: Axis, count: tile.Operand) -> tuple[str, str, str]:
        """The mean of a tile that has so many places of the axis, in two terms, and the sum of squares about it."""
        dims, dim, mask = given.dims, self.layout.dim_of(axis).name, self.indexing.mask.get(axis)
        kept = tuple(d for d in dims if d != dim)
        means = given.mean
        if given.rest is not None:
            means = self._pointwise("mean", "add", (means, given.rest), dims)
        sums = self._sum(means if mask is None else self._select(mask, means), dim)
        mean = self._pointwise("mean", "div", (sums, count), kept)
        moved = self._difference(given.mean, mean, kept, dims)
        if given.rest is not None:
            moved = self._pointwise("moved", "add", (moved, given.rest), dims)
        if mask is not None:
            moved = self._select(mask, moved)
        second = self._pointwise("second", "div", (self._sum(moved, dim), count), kept)
        squared = self._times(self._pointwise("squared", "mul", (moved, moved), dims), given.count, dims)
        if given.squares is not None:
            inside = given.squares if mask is None else self._select(mask, given.squares)
            squared = self._pointwise("squared", "add", (squared, inside), dims)
        return mean, second, self._sum(squared, dim)

    def _times(self, value: str, count: Extent | str, dims: tile.Dims) -> str:
        return value if count == 1 else self._pointwise("scaled", "mul", (value, self.number(count)), dims)

    def _many(self, held: Extent | str, places: Extent) -> Extent | str:
        """So many elements at each of so many places."""
        if isinstance(held, str):
            return self._pointwise("count", "mul", (held, self._number("count", places)), ())
        return mul(held, places)

    def _held(self, axis: Axis, span: Span, before: Extent) -> Extent:
        """How many places of the axis the tile of a loop holds."""
        if not self.layout.is_ragged(axis):
            return span.step
        stop = sympy.Min(add(symbol(span.index), span.step), span.stop)
        return add(stop, mul(-1, add(before, span.start)))

    # Statements.

    def _full(self, base: str, dims: tile.Dims) -> str:
        name = self.names.fresh(base)
        self.emit(tile.Full(name, 0.0, dims, F32))
        return name

    def _number(self, base: str, value: Extent) -> tile.Operand:
        if is_static(value):
            return float(int(value))
        whole, name = self.names.fresh(base), self.names.fresh(base)
        self.emit(tile.IndexValue(whole, tile.Affine((), value), ()))
        self.emit(tile.Cast(name, whole, F32))
        return name

    def _pointwise(self, base: str, op: str, args: tuple[tile.Operand, ...], dims: tile.Dims) -> str:
        name = self.names.fresh(base)
        self.emit(tile.Pointwise(name, op, args, dims, F32))
        return name

    def _difference(self, a: str, b: str, own: tile.Dims, dims: tile.Dims) -> str:
        """a - b, where b has dimensions of its own."""
        negated = self._pointwise("negated", "neg", (b,), own)
        return self._pointwise("moved", "add", (a, negated), dims)

    def _select(self, mask: str, value: str) -> str:
        name = self.names.fresh(f"{value}_inside")
        self.emit(tile.Select(name, mask, value, 0.0))
        return name

    def _sum(self, value: str, dim: str) -> str:
        name = self.names.fresh(f"sum_{dim}")
        self.emit(tile.Reduce(name, ReduceKind.SUM, value, dim))
        return name
