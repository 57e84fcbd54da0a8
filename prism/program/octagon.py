"""Arrays of two values whose places are told by positions: causal and banded masks, identities, windows, blocks.

One of the values stands exactly where sums and differences of two positions, and positions themselves, lie between
bounds: an octagon (Mine, "The octagon abstract domain", 2006). The bounds are the least and the largest found there, so
they are the only candidates; whether they hold nowhere else is looked at in every element.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prism.program import build, fold
from prism.program.index import Index
from prism.program.nodes import Const, Expr

# Arrays with more elements stay arrays: looking at them takes longer than it may be worth.
MAX_ELEMENTS = 1 << 24
# One of fewer elements is of two values by chance, and reading it costs nothing.
MIN_ELEMENTS = 16
_MAX_BOUNDS = 6
_MAX_DIMENSIONS = 4
_SAMPLE = 1024
_CORNER = 16


@dataclass(frozen=True, slots=True)
class Bound:
    """low <= sum of sign * position <= high; None where nothing is said.

    Attributes:
        terms: (dimension, 1 or -1), one or two.
        low, high: the least and the largest sum.
    """

    terms: tuple[tuple[int, int], ...]
    low: int | None
    high: int | None

    def at(self, index: Sequence[Index]) -> Expr:
        """Whether the element at an index per dimension is within."""
        total = Index.const(0)
        for d, sign in self.terms:
            total = total + index[d].scaled(sign)
        place = build.position(total)
        if self.low == self.high and self.low is not None:
            return fold.op("eq", place, Const(float(self.low)))
        parts = []
        if self.low is not None:
            parts.append(fold.op("le", Const(float(self.low)), place))
        if self.high is not None:
            parts.append(fold.op("le", place, Const(float(self.high))))
        return functools.reduce(lambda a, b: fold.op("and", a, b), parts)


@dataclass(frozen=True, slots=True)
class Octagon:
    """An array that is `inside` where all bounds hold and `outside` elsewhere."""

    bounds: tuple[Bound, ...]
    inside: float
    outside: float
    boolean: bool = False

    def at(self, index: Sequence[Index]) -> Expr:
        """The element at an index per dimension."""
        within = functools.reduce(lambda a, b: fold.op("and", a, b), [b.at(index) for b in self.bounds])
        if self.boolean:
            return within if self.inside else fold.op("not", within)
        return fold.op("where", within, Const(self.inside), Const(self.outside))


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
    found = [
        Octagon(bounds, inside, outside, array.dtype == np.bool_)
        for where, inside, outside in ((at, float(second), float(first)), (~at, float(first), float(second)))
        if (bounds := _bounds(where, dimensions)) is not None
    ]
    return min(found, key=lambda o: (len(o.bounds), o.outside)) if found else None


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


def _bounds(where: npt.NDArray[np.bool_], dimensions: Sequence[int]) -> tuple[Bound, ...] | None:
    """The fewest of the bounds that hold at all these places and nowhere else; None where others do."""
    shape = where.shape
    corner = where[tuple(slice(_CORNER) for _ in shape)]
    if corner.size < where.size and corner.any() and not corner.all() and _bounds(corner, dimensions) is None:
        return None  # a part of an octagon is one
    grid = _grid(shape)
    # Those that are tried first to be left out are the ones that say least to a reader.
    pairs = list(itertools.combinations(dimensions, 2))
    kinds = (
        [((d, 1), (e, 1)) for d, e in pairs] + [((d, 1), (e, -1)) for d, e in pairs] + [((d, 1),) for d in dimensions]
    )
    kept: list[Bound] = []
    for terms in kinds:
        sums = np.broadcast_to(_sum(grid, terms), shape)
        ends = [sum(f(0, (shape[d] - 1) * sign) for d, sign in terms) for f in (min, max)]
        low = int(np.min(sums, where=where, initial=ends[1]))
        high = int(np.max(sums, where=where, initial=ends[0]))
        if low == high and low not in ends:
            kept.append(Bound(terms, low, high))
            continue
        if low > ends[0]:
            kept.append(Bound(terms, low, None))
        if high < ends[1]:
            kept.append(Bound(terms, None, high))
    if not kept or not _same(kept, where):
        return None
    for bound in list(kept):
        fewer = [b for b in kept if b is not bound]
        if fewer and _same(fewer, where):
            kept = fewer
    return tuple(kept) if len(kept) <= _MAX_BOUNDS else None


def _same(bounds: Sequence[Bound], where: npt.NDArray[np.bool_]) -> bool:
    """Whether the places within all bounds are those."""
    grid = _grid(where.shape)
    within: npt.NDArray[np.bool_] = np.ones((), bool)
    for b in bounds:
        sums = _sum(grid, b.terms)
        if b.low is not None:
            within = within & (sums >= b.low)
        if b.high is not None:
            within = within & (sums <= b.high)
    return bool((within == where).all())


def _grid(shape: tuple[int, ...]) -> list[npt.NDArray[np.int32]]:
    """The position along each dimension, to be broadcast."""
    ranks = range(len(shape))
    return [np.arange(n, dtype=np.int32).reshape([-1 if e == d else 1 for e in ranks]) for d, n in enumerate(shape)]


def _sum(grid: Sequence[npt.NDArray[np.int32]], terms: Sequence[tuple[int, int]]) -> npt.NDArray[np.int32]:
    return functools.reduce(np.add, [grid[d] * np.int32(sign) for d, sign in terms])


__all__ = ["Bound", "Octagon", "octagon"]
