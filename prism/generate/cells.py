"""Cells: parts of a box of shapes, each small enough for one choice of kernels, and the shape at which it is made.

An sGraph that wins over a wide range (prism/generate/dispatch.py) still wants other tiles at its ends: the lengths of a
cell differ by a factor of SPAN at most, as long as cells are few. Cells are disjoint and cover the box.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from prism.cost.shapes import Point, lattice, middle
from prism.generate.dispatch import Winner
from prism.program.extents import symbol
from prism.program.nodes import SymbolRange

SPAN = 16.0
"""The most by which lengths of one cell differ, as a factor (guess: four doublings of a tile)."""
CELLS = 8
"""Cells at most, but for more winners: each is tuned by itself."""
SAMPLES = 1024
"""Shapes of a box of several symbols that are looked at."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of the box."""

    # Where it is, over the symbols of the extents; of a box's shapes exactly one cell's holds at each.
    predicate: sympy.Basic
    text: str  # the same to read: `16 <= seq <= 255`
    at: Point  # the shape in its middle, by the logarithms


_PREDICATES = {
    kind.__name__: kind
    for kind in (sympy.And, sympy.Or, sympy.Not, sympy.Ge, sympy.Gt, sympy.Le, sympy.Lt, sympy.Eq, sympy.Ne)
}


def plain(predicate: sympy.Basic) -> object:
    """A predicate as tuples over extents, which can be kept."""
    if predicate in (sympy.true, sympy.false):
        return bool(predicate)
    name = type(predicate).__name__
    return (name, *map(plain, predicate.args)) if name in _PREDICATES else predicate


def predicate_of(said: Any) -> Any:
    """The predicate of what `plain` gives."""
    if isinstance(said, bool):
        return sympy.true if said else sympy.false
    return _PREDICATES[said[0]](*map(predicate_of, said[1:])) if isinstance(said, tuple) else said


def cells(winners: Sequence[Winner], ranges: Mapping[str, SymbolRange]) -> tuple[Cell, ...]:
    """The cells of a box, ascending for one symbol.

    Args:
        winners: of the box; where there are none, everything is one winner's.
        ranges: the symbols that vary, at least one, and over what.
    """
    names = sorted(ranges)
    return _along(names[0], winners, ranges[names[0]]) if len(names) == 1 else _across(names, winners, ranges)


def _along(name: str, winners: Sequence[Winner], r: SymbolRange) -> tuple[Cell, ...]:
    # Predicates change beside the numbers that they mention, and nowhere else.
    mentioned = {int(n) for w in winners for n in w.predicate.atoms(sympy.Integer)}
    starts = sorted({r.low, *(n for m in mentioned for n in (m, m + 1) if r.low < n <= r.high)})
    runs: list[tuple[int | None, int, int]] = []
    for low, following in zip(starts, [*starts[1:], r.high + 1], strict=True):
        who = next((n for n, w in enumerate(winners) if w.holds({name: low})), None)
        if runs and runs[-1][0] == who:
            low = runs.pop()[1]
        runs.append((who, low, following - 1))
    parts = [(low, high) for _, low, high in runs]
    while len(parts) < CELLS:
        widest = max(parts, key=lambda p: p[1] / p[0])
        if widest[1] <= SPAN * widest[0]:
            break
        half = middle(*widest)
        place = parts.index(widest)
        parts[place : place + 1] = [(widest[0], half), (half + 1, widest[1])]
    s = symbol(name)
    return tuple(
        Cell(
            sympy.And(sympy.Ge(s, low), sympy.Le(s, high)),
            f"{low} <= {name} <= {high}" if low < high else f"{name} == {low}",
            {name: middle(low, high)},
        )
        for low, high in parts
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of one winner's region: the bounds besides its own predicate, and the samples that are in it."""

    winner: Winner | None  # whose region; None where there is none
    # The least and the largest length by symbol, where they are not the box's.
    bounds: Mapping[str, tuple[int | None, int | None]]
    samples: tuple[Point, ...]  # shapes

    def ends(self, name: str) -> tuple[int, int]:
        """The least and the largest length among the samples."""
        values = [p[name] for p in self.samples]
        return min(values), max(values)

    def span(self, name: str) -> float:
        """By what factor the lengths differ."""
        low, high = self.ends(name)
        return high / low

    def halves(self, name: str) -> tuple[_Part, _Part]:
        """The two sides of the middle."""
        half = middle(*self.ends(name))
        low, high = self.bounds.get(name, (None, None))
        below = tuple(p for p in self.samples if p[name] <= half)
        above = tuple(p for p in self.samples if p[name] > half)
        return (
            _Part(self.winner, {**self.bounds, name: (low, half)}, below),
            _Part(self.winner, {**self.bounds, name: (half + 1, high)}, above),
        )

    def cell(self, names: Sequence[str]) -> Cell:
        """It, with the shape in its middle."""
        wanted = {n: middle(*self.ends(n)) for n in names}
        inside = self.winner is None or self.winner.holds(wanted)
        at = wanted if inside else min(self.samples, key=lambda p: apart(p, wanted))
        conditions: list[sympy.Basic] = []
        said: list[str] = []
        if self.winner is not None and self.winner.predicate != sympy.true:
            conditions.append(self.winner.predicate)
            said.append(f"({self.winner.text})" if " or " in self.winner.text else self.winner.text)
        for n, (low, high) in sorted(self.bounds.items()):
            conditions += [] if low is None else [sympy.Ge(symbol(n), low)]
            conditions += [] if high is None else [sympy.Le(symbol(n), high)]
            said.append(
                " <= ".join([*map(str, [low] if low is not None else []), n, *map(str, [high] if high else [])])
            )
        return Cell(sympy.And(*conditions), " and ".join(said) or "everywhere", {n: at[n] for n in names})


def _across(names: Sequence[str], winners: Sequence[Winner], ranges: Mapping[str, SymbolRange]) -> tuple[Cell, ...]:
    shapes = lattice(ranges, SAMPLES)
    parts = [_Part(w, {}, tuple(p for p in shapes if w.holds(p))) for w in winners] or [_Part(None, {}, shapes)]
    # A region that no sample is in is too small to be tuned for; what is last takes it.
    parts = [p for p in parts if p.samples]
    while len(parts) < CELLS:
        span, place, name = max((p.span(n), -k, n) for k, p in enumerate(parts) for n in names)
        if span <= SPAN:
            break
        parts[-place : 1 - place] = parts[-place].halves(name)
    return tuple(p.cell(names) for p in parts)


def apart(a: Point, b: Point) -> float:
    """How far two shapes are from each other, in logarithms."""
    return sum(math.log(a[n] / b[n]) ** 2 for n in b)
