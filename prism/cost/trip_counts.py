"""How many tiles of a loop with a range are visited, summed over the programs in closed form.

For a bound c*j <= u(p), with u the largest value of the rest of the condition over the tiles of program p, the visited
tiles of T elements are clamp(floor(u(p)/(c*T)) + 1, 0, ceil(N/T)); those that a bound from below skips are alike. Along
one axis u is linear in p, so the sum over p is one of floors of an arithmetic progression, between the two points where
the clamp sets in. It is exact where the step of the progression and c*T divide one another, as powers of two do;
otherwise the last, incomplete period counts with its average. Where a bound follows several tiled axes, the longest one
is summed and the others stand at their middle. Of several bounds of one side, of which one has to hold, one varies and
the others are the same in all programs: where the clamp sets in. A gap between a bound from above and one from below
counts likewise, as if all of it were within the others; programs that visit all tiles count by their share, as if they
were any of them.

A loop over the axis is counted by its share of all tiles, averaged over the programs. Under a causal mask over a square
that is about a half.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import sympy

from prism.cost.compiled_expr import value
from prism.program.extents import Extent, add, at_most, is_static, mul
from prism.program.index import Axis, Index
from prism.sgraph.hidden import Condition
from prism.sgraph.nodes import Tile, sides
from prism.sgraph.ranges import sign


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient * axis, the axis in tiles of `tile`; `above` where the coefficient is not negative."""

    coefficient: Extent
    above: bool
    extent: Extent
    tile: Tile


@dataclass(frozen=True, slots=True)
class Bound:
    """slope*j + the terms + offset >= 0, the longest term first."""

    slope: int
    terms: tuple[Term, ...]
    offset: Extent


@dataclass(frozen=True, slots=True)
class Visited:
    """The share of a loop's tiles that is visited, averaged over the programs; a factor of costs."""

    extent: Extent  # the extent of the loop's axis
    tile: Tile  # the loop's tile
    bounds: tuple[Bound, ...]  # of those of one sign of the slope one has to hold, and at most one has terms
    gap: tuple[Bound, ...] = ()  # of these one has to hold as well, and at most one has terms
    # Where one of these holds, which are written as bounds of a single tile, all tiles are visited.
    everywhere: tuple[Bound, ...] = ()
    # Whether it is the share of the program that visits most: of the first, the middle and the last.
    busiest: bool = False
    # Whether only tiles count on all of whose elements the conditions hold, in all of the program's tile.
    whole: bool = False

    @property
    def all_or_none(self) -> bool:
        """Whether programs visit all tiles or none."""
        return bool(self.everywhere) and not self.bounds and not self.gap

    def evaluate(self, binding: Mapping[str, Any]) -> Any:
        """The share under `binding` (symbol name to int or integer array)."""
        if self.busiest:
            return self._most(binding)
        t = _size(self.tile, binding)
        tiles = -(-value(self.extent, binding) // t)
        seen = 0.0 if self.all_or_none else self._mean(t, binding, tiles, whole=self.whole) / tiles
        for b in self.everywhere:
            line = _Line.of(b, 1, binding)
            seen = seen + (1.0 - seen) * (line.sum(1) / line.count)
        return seen

    def _mean(self, tile: Any, binding: Mapping[str, Any], limit: Any, least: bool = False, whole: bool = False) -> Any:
        """How many tiles are visited on average, but for programs that visit all."""

        def lines(bounds: Sequence[Bound]) -> list[tuple[Bound, _Line]]:
            return [(b, _Line.of(b, tile, binding, least, whole)) for b in bounds]

        below, skipped = _means(lines(self.bounds), limit)
        left = below - skipped
        if self.gap:
            left = left - _in_gap(lines(self.gap), limit)
        return _clamp(left, 0.0, None)

    def _most(self, binding: Mapping[str, Any]) -> Any:
        t = _size(self.tile, binding)
        tiles = -(-value(self.extent, binding) // t)

        def ends(bounds: Sequence[Bound], way: int, place: int) -> list[Any]:
            return [_Line.of(b, t, binding).part(place, tiles) for b in bounds if way * b.slope > 0]

        best: Any = 0
        for place in (0, 1, 2):
            below = reduce(_larger, ends(self.bounds, -1, place) or [tiles])
            seen = below - reduce(_smaller, ends(self.bounds, 1, place) or [0])
            if self.gap:
                behind = reduce(_smaller, ends(self.gap, 1, place))
                seen = seen - _clamp(behind - reduce(_larger, ends(self.gap, -1, place)), 0, None)
            seen = 0 if self.all_or_none else seen
            for b in self.everywhere:
                seen = _larger(seen, tiles * _Line.of(b, 1, binding).part(place, 1))
            best = _larger(best, seen)
        return best / tiles

    def lower(self, hints: Mapping[str, Any]) -> float:
        """The share of the elements on which the conditions hold, or less: what tiles of any size visit."""
        if self.all_or_none:
            return 0.0
        n = value(self.extent, hints)
        fine = replace(self, bounds=tuple(map(_unit, self.bounds)), gap=tuple(map(_unit, self.gap)))
        return float(fine._mean(1, hints, n, least=True)) / float(n)


def visited(
    axis: Axis, tile: Tile, conditions: Sequence[Index], tiles: Mapping[Axis, Tile], gap: Sequence[Index] = ()
) -> Visited:
    """The share for a loop over the axis in tiles of `tile`; `tiles` has those of the other axes."""

    def bound(condition: Index) -> Bound:
        others = [(a, c) for a, c in condition.terms if isinstance(a, Axis) and a != axis]
        terms = [Term(c, sign(c) > 0, a.extent, tiles[a]) for a, c in others]
        return Bound(condition.slope(axis) or -1, tuple(sorted(terms, key=_reach)), condition.offset)

    bounds = [bound(c) for c in conditions if c.slope(axis)]
    everywhere = [bound(c) for c in conditions if not c.slope(axis)]
    return Visited(axis.extent, tile, tuple(bounds), tuple(map(bound, gap)), tuple(everywhere))


def shown(conditions: Sequence[Condition], lines: tuple[Axis, int] | None) -> tuple[Visited, ...]:
    """The shares of a load that conditions leave, by axis; more than what is left where that is no product of bounds.

    All conditions hold of what is needed; `lines` are the axis along which memory is contiguous, and how many elements
    come at once.
    """
    along = dict([lines]) if lines is not None else {}
    bounds: dict[Axis, dict[bool, Index]] = {}
    for condition in conditions:
        if len(condition) == 1:
            (index,) = condition
            sloped = [a for a in (*along, *sorted(index.axes(), key=str)) if index.slope(a)]
            if sloped and index.is_affine() and all(sign(c) for _, c in index.terms):
                bounds.setdefault(sloped[0], {}).setdefault(index.slope(sloped[0]) > 0, index)
    made = []
    for axis, found in bounds.items():
        tiles = {a: along.get(a, 1) for i in found.values() for a in i.axes()}
        made.append(visited(axis, tiles[axis], tuple(found.values()), tiles))
    return tuple(made)


def _reach(t: Term) -> tuple[int, int]:
    reach = mul(t.coefficient, t.extent)
    return (1, -abs(int(reach))) if is_static(reach) else (0, 0)


def allowed(axis: Axis, conditions: Sequence[Index], gap: Sequence[Index] = ()) -> Extent:
    """How many elements of the axis the conditions allow for some program: what must be loaded at least."""
    if any(not c.slope(axis) for c in conditions):
        return axis.extent
    first, stop = _most(axis, conditions, 0, axis.extent)
    left = _max(add(stop, mul(-1, first)), 0)
    if not gap or any(c.axes() != {axis} for c in gap):
        return left
    # What no program sees; a gap that moves leaves nothing out everywhere.
    begin, end = (_most(axis, side, first, stop) for side in sides(gap, axis))
    return add(left, mul(-1, _max(add(_min(end[0], stop), mul(-1, begin[1])), 0)))


def _most(axis: Axis, conditions: Sequence[Index], first: Extent, stop: Extent) -> tuple[Extent, Extent]:
    """The first place from `first` on that the conditions allow for some program, and what ends below `stop`."""
    for side in sides(conditions, axis):
        ends: list[Extent] = []
        for condition in side:
            own = condition.slope(axis)
            high: Extent = condition.offset
            for a, c in condition.terms:
                if isinstance(a, Axis) and a != axis and sign(c) > 0:
                    high = add(high, mul(c, add(a.extent, -1)))
            ends.append(add(_floor(high, -own), 1) if own < 0 else mul(-1, _floor(high, own)))
        if side[0].slope(axis) < 0:
            end = reduce(_max, ends)
            stop = stop if at_most(stop, end) else _min(stop, end)
        else:
            begin = reduce(_min, ends)
            first = first if at_most(begin, first) else _max(first, begin)
    return first, stop


def _floor(a: Extent, b: int) -> Extent:
    if b == 1:
        return a
    return int(a) // b if is_static(a) else sympy.floor(sympy.sympify(a) / b)


def _min(a: Extent, b: Extent) -> Extent:
    return min(int(a), int(b)) if is_static(a) and is_static(b) else sympy.Min(a, b)


def _max(a: Extent, b: Extent) -> Extent:
    if at_most(b, a):
        return a
    return max(int(a), int(b)) if is_static(a) and is_static(b) else sympy.Max(a, b)


def _unit(bound: Bound) -> Bound:
    return Bound(bound.slope, tuple(Term(t.coefficient, t.above, t.extent, 1) for t in bound.terms), bound.offset)


def _means(lines: Sequence[tuple[Bound, _Line]], limit: Any) -> tuple[Any, Any]:
    """How many tiles come before the last that is visited, it included, and before the first, on average."""
    ends = [line.at(0, limit) for b, line in lines if b.slope < 0 and not b.terms]
    starts = [line.at(0, limit) for b, line in lines if b.slope > 0 and not b.terms]
    # What one bound allows in all programs, another adds to; what one skips in all, no other skips more than.
    below: Any = reduce(_larger, ends) if ends else limit if all(b.slope > 0 for b, _ in lines) else 0
    skipped: Any = reduce(_smaller, starts) if starts else 0 if all(b.slope < 0 for b, _ in lines) else limit
    for b, line in lines:
        if b.terms and b.slope < 0:
            more = replace(line, start=line.start - below * line.divisor)
            below = below + more.sum(limit - below) / line.count
        elif b.terms:
            skipped = line.sum(skipped) / line.count
    return below, skipped


def _in_gap(lines: Sequence[tuple[Bound, _Line]], limit: Any) -> Any:
    """How many tiles lie in the gap on average: from where the bounds from above end to the others' begin."""
    begin: Any = reduce(_larger, (line.at(0, limit) for b, line in lines if b.slope < 0 and not b.terms), 0)
    end: Any = reduce(_smaller, (line.at(0, limit) for b, line in lines if b.slope > 0 and not b.terms), limit)
    most = _clamp(end - begin, 0, None)
    for b, line in lines:
        if b.terms:
            beyond = replace(line, start=line.start - begin * line.divisor).sum(most) / line.count
            return beyond if b.slope > 0 else most - beyond
    return most


def _size(tile: Tile, binding: Mapping[str, Any]) -> Any:
    return tile if isinstance(tile, int) else binding[tile.name]


# Progressions, of ints or of integer arrays.


@dataclass(frozen=True, slots=True)
class _Line:
    """floor((start + step*p) / divisor) + 1 for p = 0..count-1, step >= 0."""

    start: Any
    step: Any
    divisor: Any
    count: Any

    @staticmethod
    def of(b: Bound, tile: Any, binding: Mapping[str, Any], least: bool = False, whole: bool = False) -> _Line:
        """The tiles that a bound allows (from above) or skips (from below), by the place along its longest axis.

        With `least`, the other axes stand where the bound allows least, not at their middle; with `whole`, what counts
        is where the bound allows all of a tile, not some of it.
        """
        u: Any = value(b.offset, binding)
        step: Any = 0
        count: Any = 1
        for n, t in enumerate(b.terms):
            c, size = value(t.coefficient, binding), _size(t.tile, binding)
            places = -(-value(t.extent, binding) // size)
            if t.above is not whole:
                u = u + c * (size - 1)
            if n == 0:
                step, count = c * size, places
            elif least:
                u = u + (0 if t.above else c * size * (places - 1))
            else:
                u = u + c * size * (places - 1) // 2
        rising = not b.terms or b.terms[0].above
        width = abs(b.slope)
        if b.slope > 0:
            # Skipped are the tiles that end too early, or begin so: width*(k*tile + tile - 1) + u < 0.
            u, step, rising = -1 - u - (0 if whole else width * (tile - 1)), -step, not rising
        elif whole:
            u = u - width * (tile - 1)
        if not rising:
            u, step = u + step * (count - 1), -step
        return _Line(u, step, width * tile, count)

    def at(self, place: Any, limit: Any) -> Any:
        """The term at a place, between 0 and the limit."""
        return _clamp((self.start + self.step * place) // self.divisor + 1, 0, limit)

    def part(self, place: int, limit: Any) -> Any:
        """The first term, the middle one or the last: of place 0, 1 or 2."""
        return self.at((self.count - 1) * place // 2, limit)

    def sum(self, limit: Any) -> Any:
        """The sum of all terms, each between 0 and the limit."""
        none = self._before(0)
        full = self._before((limit - 1) * self.divisor)
        n = _clamp(full - none, 0, None)
        start = self.start + self.step * none
        rounded = n * start + self.step * (n * (n - 1) // 2) - _remainders(start, self.step, self.divisor, n)
        return (self.count - none - n) * limit + n + rounded // self.divisor

    def _before(self, level: Any) -> Any:
        """How many places are below a level."""
        step = _clamp(self.step, 1, None)
        rising = _clamp(-((self.start - level) // step), 0, self.count)
        return _choose(self.step == 0, _choose(self.start < level, self.count, 0), rising)


def _remainders(start: Any, step: Any, divisor: Any, n: Any) -> Any:
    """sum of (start + step*p) mod divisor over p = 0..n-1."""
    g = _gcd(step, divisor)
    period = divisor // g
    whole, rest = n // period, n % period
    each = period * (divisor - g) // 2 + period * (start % g)
    # Within a period in which the step divides the divisor, the remainders rise by the step and fall once.
    first = start % divisor // g
    rising = _clamp(rest, 0, period - first)
    places = rising * first + rising * (rising - 1) // 2 + (rest - rising) * (rest - rising - 1) // 2
    exact = rest * (start % g) + g * places
    return whole * each + _choose(g == step, exact, rest * each // period)


def _larger(a: Any, b: Any) -> Any:
    return _clamp(a, b, None)


def _smaller(a: Any, b: Any) -> Any:
    """Of two that are not negative."""
    return _clamp(a, 0, b)


def _clamp(a: Any, low: Any, high: Any) -> Any:
    numbers = (int, float)
    if isinstance(a, numbers) and isinstance(low, numbers) and (high is None or isinstance(high, numbers)):
        return max(a, low) if high is None else min(max(a, low), high)
    import numpy

    at_least = numpy.maximum(a, low)
    return at_least if high is None else numpy.minimum(at_least, high)


def _choose(test: Any, a: Any, b: Any) -> Any:
    if isinstance(test, bool):
        return a if test else b
    import numpy

    return numpy.where(test, a, b)


def _gcd(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return math.gcd(a, b)
    import numpy

    return numpy.gcd(a, b)
