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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
class Running:
    """The accumulators.

    Attributes:
        base: what was seen first: an element, or the mean of a tile.
        mean: of what was seen, less the base.
        squares: about the mean.
        dims: of these.
        lanes: whether each lane along the axis merges on its own.
        counts: how many elements each lane saw, where that is not the same for all; None where it is.
    """

    base: str
    mean: str
    squares: str
    dims: tile.Dims
    lanes: bool
    counts: str | None


@dataclass(frozen=True, slots=True)
class Deviations:
    """Writes the statements.

    Attributes:
        layout: the dimensions of tiles.
        names: hands out names.
        indexing: masks and sizes of tiles.
        emit: takes the statements.
    """

    layout: Layout
    names: Names
    indexing: Indexing
    emit: Callable[[tile.Stmt], None]

    def start(self, axis: Axis, dims: tile.Dims, lanes: bool) -> Running:
        """The accumulators before a loop over the axis; `dims` has the axis' where lanes merge on their own."""
        base, mean, squares = (self._full(f"running_{name}", dims) for name in ("base", "mean", "squares"))
        uneven = lanes and self.layout.is_ragged(axis)
        counts = self._full("running_count", (self.layout.dim_of(axis).name,)) if uneven else None
        return Running(base, mean, squares, dims, lanes, counts)

    def merge(self, running: Running, value: str, own: tile.Dims, axis: Axis, span: Span) -> None:
        """Merge a tile of elements, which has dimensions of its own."""
        dims, whole = running.dims, self.layout.is_tiled(axis) and not running.lanes
        before = add(symbol(span.index), mul(-1, span.start))
        if running.lanes:
            before = floordiv(before, span.step)
        count = self._held(axis, span, before) if whole else 1
        elements, seen = self._number("count", count), self._number("seen", add(before, count))
        share = self._pointwise("share", "div", (elements, seen), ())
        weight = self._pointwise("weight", "mul", (share, self._number("before", before)), ())
        first = self.names.fresh("first")
        self.emit(tile.Pointwise(first, "le", (seen, elements), (), DType.BOOL))
        opening = self._pointwise("opening", "where", (first, 1.0, 0.0), ())
        later = self._pointwise("later", "where", (first, 0.0, share), ())
        apart = self._difference(value, running.base, dims, own)
        mask = self.indexing.mask.get(axis)
        second = squares = None
        if whole:
            apart, second, squares = self._tile(apart, own, axis, elements)
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

    def end(self, running: Running, axis: Axis, span: Span) -> tuple[str, tile.Dims]:
        """The sum of squares about the mean of all, after the loop, and its dimensions."""
        if not running.lanes:
            return running.squares, running.dims
        dims, dim = running.dims, self.layout.dim_of(axis).name
        kept = tuple(d for d in dims if d != dim)
        means = self._pointwise("mean", "add", (running.base, running.mean), dims)
        count: tile.Operand
        if running.counts is None:
            length = self.layout.sizes[axis]
            count = self._number("seen", cdiv(add(span.stop, mul(-1, span.start)), span.step))
            total = self._number("lanes", symbol(length) if isinstance(length, str) else length)
            sums = self._sum(means, dim)
        else:
            count = running.counts
            # A part of a split may have no elements.
            total = self._pointwise("seen", "maximum", (self._sum(running.counts, dim), 1.0), ())
            sums = self._sum(self._pointwise("scaled", "mul", (means, count), dims), dim)
        mean = self._pointwise("mean", "div", (sums, total), kept)
        apart = self._difference(running.base, mean, kept, dims)
        moved = self._pointwise("moved", "add", (apart, running.mean), dims)
        scaled = self._pointwise("scaled", "mul", (moved, count), dims)
        grown = self._pointwise("grown", "mul", (scaled, moved), dims)
        return self._sum(self._pointwise("grown", "add", (running.squares, grown), dims), dim), kept

    def whole(self, value: str, dims: tile.Dims, axis: Axis) -> tuple[str, tile.Dims]:
        """The sum of squares about the mean of a tile that holds all of the axis."""
        if not self.layout.is_tiled(axis):
            return self._difference(value, value, dims, dims), dims
        _, _, squares = self._tile(value, dims, axis, self._number("count", axis.extent))
        return squares, tuple(d for d in dims if d != self.layout.dim_of(axis).name)

    def _tile(self, value: str, dims: tile.Dims, axis: Axis, count: tile.Operand) -> tuple[str, str, str]:
        """The mean of a tile that has so many elements of the axis, in two terms, and the sum of squares about it."""
        dim, mask = self.layout.dim_of(axis).name, self.indexing.mask.get(axis)
        kept = tuple(d for d in dims if d != dim)
        sums = self._sum(value if mask is None else self._select(mask, value), dim)
        mean = self._pointwise("mean", "div", (sums, count), kept)
        moved = self._difference(value, mean, kept, dims)
        if mask is not None:
            moved = self._select(mask, moved)
        second = self._pointwise("second", "div", (self._sum(moved, dim), count), kept)
        return mean, second, self._sum(self._pointwise("squared", "mul", (moved, moved), dims), dim)

    def _held(self, axis: Axis, span: Span, before: Extent) -> Extent:
        """How many elements of the axis the tile of a loop holds."""
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
