"""Arrays of two values whose places are told by positions: causal and banded masks, identities, windows, blocks.

One of the values stands exactly where sums and differences of two positions, and positions themselves, lie between
bounds: an octagon (Mine, "The octagon abstract domain", 2006). The bounds are the least and the largest found there, so
they are the only candidates; whether they hold nowhere else is looked at in every element.

Two things more are looked for in a larger mask: bounds of how many blocks two positions are apart, with blocks that end
where rows or columns of the mask do, and a remainder that differences or positions leave. What such bounds let in
beside the mask's places may itself be told so: a window and the first places are a triangle without another one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from prism.program import build, fold
from prism.program.index import Index
from prism.program.integers import floor_quotient, floor_remainder
from prism.program.nodes import Const, Expr

# Arrays with more elements stay arrays: looking at them takes longer than it may be worth.
MAX_ELEMENTS = 1 << 24
# One of fewer elements is of two values by chance, and reading it costs nothing.
MIN_ELEMENTS = 16
# Of fewer elements only an octagon is looked for, as whatever else they are may be chance.
_MIN_FURTHER = 256
_MAX_BOUNDS = 6
_MAX_DIMENSIONS = 4
_SAMPLE = 1024
_CORNER = 16
_SOME_ROWS = 61
_DEPTH = 3
"""How often places are left out of what is left out."""

Mask: TypeAlias = "npt.NDArray[np.bool_]"
Positions: TypeAlias = "npt.NDArray[np.signedinteger[Any]]"


@dataclass(frozen=True, slots=True)
class Bound:
    """low <= sum of sign * floor(position / size) <= high; None where nothing is said."""

    terms: tuple[tuple[int, int], ...]  # (dimension, 1 or -1), one or two
    low: int | None  # the least sum
    high: int | None  # the largest sum
    size: int = 1  # of the blocks that positions are counted in

    def at(self, index: Sequence[Index]) -> Expr:
        """Whether the element at an index per dimension is within."""
        places = [_blocks(index[d], self.size) for d, _ in self.terms]
        if self.size > 1 and self.low == self.high == 0:
            return fold.op("eq", *places)
        place = fold.sub(*places) if self.size > 1 else build.position(_total(self.terms, index))
        if self.low == self.high and self.low is not None:
            return fold.op("eq", place, Const(float(self.low)))
        parts = []
        if self.low is not None:
            parts.append(fold.op("le", Const(float(self.low)), place))
        if self.high is not None:
            parts.append(fold.op("le", place, Const(float(self.high))))
        return _all(parts)

    def places(self, grid: Sequence[Positions]) -> Mask:
        """Where it holds, to be broadcast; the grid is the position along each dimension."""
        sums = _sum([g // self.size for g in grid] if self.size > 1 else grid, self.terms)
        within: Mask = np.ones((), bool)
        if self.low is not None:
            within = within & (sums >= self.low)
        if self.high is not None:
            within = within & (sums <= self.high)
        return within


@dataclass(frozen=True, slots=True)
class Remainder:
    """What the sum of sign * position leaves, divided by a whole number."""

    terms: tuple[tuple[int, int], ...]
    divisor: int
    rest: int

    def at(self, index: Sequence[Index]) -> Expr:
        """Whether the element at an index per dimension leaves it."""
        place = build.position(_total(self.terms, index))
        return fold.op("eq", floor_remainder(place, Const(float(self.divisor))), Const(float(self.rest)))

    def places(self, grid: Sequence[Positions]) -> Mask:
        """Where it holds, as for bounds."""
        return np.asarray(_sum(grid, self.terms) % self.divisor == self.rest)


@dataclass(frozen=True, slots=True)
class Places:
    """Where all bounds hold, without some places that are told likewise."""

    bounds: tuple[Bound | Remainder, ...]
    without: tuple[Places, ...] = ()

    def at(self, index: Sequence[Index], wanted: bool = True) -> Expr:
        """Whether the element at an index per dimension is one of them; or whether it is none."""
        bounds = [b.at(index) for b in self.bounds]
        inside = bounds if wanted else [fold.op("not", b) for b in bounds]
        return _all([*inside, *(w.at(index, not wanted) for w in self.without)], "and" if wanted else "or")

    def __len__(self) -> int:
        return len(self.bounds) + sum(len(w) for w in self.without)


@dataclass(frozen=True, slots=True)
class Octagon:
    """An array that is `inside` at its places and `outside` elsewhere."""

    places: Places
    inside: float
    outside: float
    boolean: bool = False

    def at(self, index: Sequence[Index]) -> Expr:
        """The element at an index per dimension."""
        if self.boolean:
            return self.places.at(index, bool(self.inside))
        return fold.op("where", self.places.at(index), Const(self.inside), Const(self.outside))


def octagon(array: npt.NDArray[np.generic]) -> Octagon | None:
    """The array as bounds on positions, where it is of two values and one of them lies within such bounds."""
    if not MIN_ELEMENTS <= array.size <= MAX_ELEMENTS or array.dtype.kind not in "fiub":
        return None
    values = _two(array)
    if values is None:
        return None
    first, second = values
    dimensions = [d for d in range(array.ndim) if array.shape[d] > 1]
    at = array == second
    for d in list(dimensions):
        head = at.take([0], axis=d)
        if (at == head).all():
            at = head
            dimensions.remove(d)
    if len(dimensions) > _MAX_DIMENSIONS:
        return None
    sides = ((at, float(second), float(first)), (~at, float(first), float(second)))
    for told in (_octagon, _told) if len(dimensions) == 2 and at.size >= _MIN_FURTHER else (_octagon,):
        found = [
            Octagon(places, inside, outside, array.dtype == np.bool_)
            for where, inside, outside in sides
            if (places := _of_corners(where, dimensions, told)) is not None and len(places) <= _MAX_BOUNDS
        ]
        if found:
            return min(found, key=lambda o: (len(o.places), o.outside))
    return None


def _two(array: npt.NDArray[np.generic]) -> tuple[np.generic, np.generic] | None:
    """The two values of an array that has two."""
    flat = array.reshape(-1)
    few = np.unique(flat[:: max(1, flat.size // _SAMPLE)][: 2 * _SAMPLE])
    if few.size > 2 or (array.dtype.kind == "f" and np.isnan(few).any()):
        return None
    first = flat[0]
    rest = flat != first
    if not rest.any():
        return None
    second = flat[int(rest.argmax())]
    return (first, second) if bool(((flat == second) == rest).all()) else None


_Teller: TypeAlias = "Callable[[Mask, Sequence[int]], Places | None]"


def _of_corners(where: Mask, dimensions: Sequence[int], told: _Teller) -> Places | None:
    """What tells the places; None at once where nothing tells those of a corner: a part of what is told is told."""
    size = _CORNER
    while size < max(where.shape):
        corner = where[tuple(slice(size) for _ in where.shape)]
        if corner.any() and not corner.all() and told(corner, dimensions) is None:
            return None
        size *= 4
    return told(where, dimensions)


def _octagon(where: Mask, dimensions: Sequence[int]) -> Places | None:
    """The fewest of the bounds that hold at all these places and nowhere else; None where others do."""
    around = _Around(where, _grid(where.shape), list(_octagonal(where, dimensions)))
    return around.places() if around.bounds and not around.others().any() else None


def _told(where: Mask, dimensions: Sequence[int], depth: int = _DEPTH) -> Places | None:
    """Of a matrix: bounds, also of blocks and remainders, without what they let in, if that is told."""
    around = _Around(where, _grid(where.shape), list(_octagonal(where, dimensions)))
    if around.bounds and not around.others().any():
        return around.places()
    around.bounds.extend([*_blockwise(where, dimensions), *_remaining(where, dimensions)])
    others = around.others()
    if not others.any():
        return around.places()
    if depth == 0 or (others | where).all():
        # Outside of a band is two triangles.
        i, j = (around.grid[d] for d in dimensions)
        parts = [_told(p, dimensions, 0) for p in (others & (i > j), others & (i < j)) if p.any()] if depth else []
        diagonal = bool((others & (i == j)).any())
        return None if len(parts) < 2 or None in parts or diagonal else around.places([p for p in parts if p])
    rest = _told(others, dimensions, depth - 1)
    return None if rest is None else around.places([rest])


@dataclass(frozen=True, slots=True)
class _Around:
    """Bounds that hold at some places of an array."""

    where: Mask  # the places
    grid: list[Positions]  # the position along each dimension, to be broadcast
    bounds: list[Bound | Remainder]  # the bounds, those first that are left out first where others are enough
    known: dict[Bound | Remainder, Mask] = field(default_factory=dict)  # where bounds hold that were looked at

    def others(self) -> Mask:
        """Where they hold besides."""
        return self._within(self.bounds) & ~self.where

    def places(self, without: Sequence[Places] = ()) -> Places:
        """The places, by the bounds without what is told; as few of either as are enough."""
        every = Places(tuple(self.bounds), tuple(without))
        # What is needed is needed for some of the rows, as a rule.
        rows = max(range(self.where.ndim), key=lambda d: self.where.shape[d])
        some = np.unique(np.linspace(0, self.where.shape[rows] - 1, _SOME_ROWS).astype(np.intp))
        grid = [g.take(some, d) if d == rows else g for d, g in enumerate(self.grid)]
        fewest = _Around(self.where.take(some, rows), grid, self.bounds)._fewest(every)
        return fewest if self._is(fewest) else self._fewest(every)

    def _fewest(self, every: Places) -> Places:
        kept, left = every.bounds, every.without
        for n in range(len(left)):
            for bound in left[n].bounds:
                fewer = Places(tuple(b for b in left[n].bounds if b is not bound), left[n].without)
                changed = (*left[:n], fewer, *left[n + 1 :])
                if fewer.bounds and self._is(Places(kept, changed)):
                    left = changed
        for bound in kept:
            rest = tuple(b for b in kept if b is not bound)
            if (rest or left) and self._is(Places(rest, left)):
                kept = rest
        return Places(kept, left)

    def _is(self, places: Places) -> bool:
        return bool((self._of(places) == self.where).all())

    def _of(self, places: Places) -> Mask:
        within = self._within(places.bounds)
        return functools.reduce(lambda left, w: np.asarray(left & ~self._of(w)), places.without, within)

    def _within(self, bounds: Sequence[Bound | Remainder]) -> Mask:
        self.known.update((b, b.places(self.grid)) for b in bounds if b not in self.known)
        return functools.reduce(np.logical_and, (self.known[b] for b in bounds), np.ones((), bool))


def _octagonal(where: Mask, dimensions: Sequence[int]) -> Iterator[Bound]:
    """The bounds of sums and differences that hold at all places and not everywhere."""
    shape, grid = where.shape, _grid(where.shape)
    # Those that are tried first to be left out are the ones that say least to a reader.
    pairs = list(itertools.combinations(dimensions, 2))
    kinds = (
        [((d, 1), (e, 1)) for d, e in pairs] + [((d, 1), (e, -1)) for d, e in pairs] + [((d, 1),) for d in dimensions]
    )
    # Sums are least and largest at the ends of a line of places along the last dimension that they change along.
    last = max(dimensions)
    some = where.any(last, keepdims=True)
    first = where.argmax(last, keepdims=True).astype(grid[last].dtype)
    after = (shape[last] - 1 - np.flip(where, last).argmax(last, keepdims=True)).astype(grid[last].dtype)
    for terms in kinds:
        ends = [sum(f(0, (shape[d] - 1) * sign) for d, sign in terms) for f in (min, max)]
        at_ends = [_sum([e if d == last else g for d, g in enumerate(grid)], terms) for e in (first, after)]
        low = min(int(np.min(np.broadcast_to(x, some.shape), where=some, initial=ends[1])) for x in at_ends)
        high = max(int(np.max(np.broadcast_to(x, some.shape), where=some, initial=ends[0])) for x in at_ends)
        yield from _bounds(terms, low, high, ends)


def _bounds(
    terms: tuple[tuple[int, int], ...], low: int, high: int, ends: Sequence[int], size: int = 1
) -> Iterator[Bound]:
    """What of a least and a largest sum says something, where sums have these ends."""
    if low == high and low not in ends:
        yield Bound(terms, low, high, size)
        return
    if low > ends[0]:
        yield Bound(terms, low, None, size)
    if high < ends[1]:
        yield Bound(terms, None, high, size)


def _blockwise(where: Mask, dimensions: Sequence[int]) -> Iterator[Bound]:
    """Bounds of how many blocks two positions are apart, for blocks at whose ends rows or columns of places end."""
    d, e = dimensions
    shape = (where.shape[d], where.shape[e])
    matrix = where.reshape(shape)
    rows = np.flatnonzero(matrix.any(1))
    first, after = _row_ends(matrix)
    ends = ((x, n) for m, n in ((matrix, shape[1]), (np.ascontiguousarray(matrix.T), shape[0])) for x in _row_ends(m))
    sizes = {int(np.gcd.reduce(x[x < n])) for x, n in ends}
    for size in sorted(s for s in sizes if 1 < s < max(shape)):
        low = int((rows // size - (after - 1) // size).min())
        high = int((rows // size - first // size).max())
        if low == high == 0:
            yield Bound(((d, 1), (e, -1)), 0, 0, size)
        else:
            yield from _bounds(((d, 1), (e, -1)), low, high, (-((shape[1] - 1) // size), (shape[0] - 1) // size), size)


def _row_ends(matrix: Mask) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the places of each row begin, and the end of the last, of rows that have some."""
    some = matrix[matrix.any(1)]
    return some.argmax(1), matrix.shape[1] - some[:, ::-1].argmax(1)


def _remaining(where: Mask, dimensions: Sequence[int]) -> Iterator[Remainder]:
    """The remainders that differences of positions, or positions, of all places leave."""
    d, e = dimensions
    matrix = where.reshape(where.shape[d], where.shape[e])
    columns = matrix.shape[1]
    found: list[tuple[tuple[tuple[int, int], ...], npt.NDArray[np.int64]]] = []
    if not (matrix[:, 1:] & matrix[:, :-1]).any():
        i, j = np.nonzero(matrix)
        found += [
            (((d, 1), (e, -1)), np.flatnonzero(np.bincount(i - j + columns)) - columns),
            (((e, 1),), np.flatnonzero(matrix.any(0))),
        ]
    if not (matrix[1:] & matrix[:-1]).any():
        found.append((((d, 1),), np.flatnonzero(matrix.any(1))))
    for terms, sums in found:
        divisor = int(np.gcd.reduce(np.diff(sums))) if sums.size > 2 else 1
        if divisor > 1:
            yield Remainder(terms, divisor, int(sums[0]) % divisor)


def _grid(shape: tuple[int, ...]) -> list[Positions]:
    """The position along each dimension, to be broadcast, in a type that their sums fit in."""
    ranks = range(len(shape))
    dtype: type[np.signedinteger[Any]] = np.int16 if sum(shape) < np.iinfo(np.int16).max else np.int32
    return [np.arange(n, dtype=dtype).reshape([-1 if e == d else 1 for e in ranks]) for d, n in enumerate(shape)]


def _sum(grid: Sequence[Positions], terms: Sequence[tuple[int, int]]) -> Positions:
    return functools.reduce(np.add, [grid[d] if sign > 0 else -grid[d] for d, sign in terms])


def _total(terms: Sequence[tuple[int, int]], index: Sequence[Index]) -> Index:
    return functools.reduce(lambda total, t: total + index[t[0]].scaled(t[1]), terms, Index.const(0))


def _blocks(index: Index, size: int) -> Expr:
    place = build.position(index)
    return place if size == 1 else floor_quotient(place, Const(float(size)))


def _all(parts: Sequence[Expr], connective: str = "and") -> Expr:
    return functools.reduce(partial(fold.op, connective), parts)


__all__ = ["Bound", "Octagon", "Places", "Remainder", "octagon"]
