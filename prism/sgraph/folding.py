"""Which second stages of splits can be done by the split's own programs, the last of each tile to arrive.

A split is two launches: programs that store what they found in their part, and a second stage that combines the parts.
The last program of a tile finds all parts of it stored, so it can go on as the second stage's program of that tile: one
launch less, for a count of arrivals in memory. What is computed does not change, so it is a choice of instantiation.

It is open to a second stage that

- is a launch of its own, as its split is, without a loop;
- is the only one that reads what the split stores, and reads else what is there before the split is launched;
- has the split's grid without the parts, axis by axis, so that a tile of one can be a tile of the other;
- reads of each part what the split stores: the same index of bare axes, in grid tiles or whole in both kernels.

What a program of the second stage reads is then stored by the programs of its tile alone, but for a partial result that
lacks a grid axis, which one program stores for all: there every program keeps one of its own
(`prism.backends.passes.folded_split`). Its tile is the split's; whether that fits its registers is for the space of
configurations to say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from prism.program.index import Axis
from prism.sgraph.config import Config
from prism.sgraph.nodes import Gather, Grid, Kernel, Launch, Load, Loop, SGraph, Split, Store, Tile, Whole, part_axis
from prism.sgraph.resident import launched

FOLDED = "folded"
"""What configurations call it, by the second stage's launch."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A second stage and the split that can do it."""

    split: str  # the split's launch
    combine: str  # the second stage's launch
    # The axes of both grids in order, with the split's tile and the second stage's.
    grid: tuple[tuple[Axis, Tile, Tile], ...]

    def bind(self, symbols: Mapping[str, Any]) -> dict[str, Any]:
        """The second stage's tiles where it is folded: by symbol, the split's."""
        return {
            own.name: symbols[tile.name] if isinstance(tile, sympy.Symbol) else tile
            for _, tile, own in self.grid
            if isinstance(own, sympy.Symbol)
        }


def folds(sgraph: SGraph) -> dict[str, Fold]:
    """The second stages that can be folded, by the name of their launch, in order."""
    launches = sgraph.launches
    # Where each tensor is there from, and the kernels that read it.
    since = {t.name: -1 for t in sgraph.inputs}
    stored = {t for k in sgraph.kernels for t in k.writes}
    since |= {w.tensor.name: -1 for r in sgraph.repeats for w in r.windows if w.tensor.name not in stored}
    readers: dict[str, set[str]] = {}
    for n, launch in enumerate(launches):
        for k in launch.kernels:
            for t in k.writes:
                since.setdefault(t, n)
            for t in k.reads:
                readers.setdefault(t, set()).add(k.name)
    lone = {x.name: (n, x.kernels[0]) for n, x in enumerate(launches) if len(x.kernels) == 1}
    found: dict[str, Fold] = {}
    for split, (place, first) in lone.items():
        partial = set(first.writes)
        reading = set().union(*(readers.get(t, ()) for t in partial))
        combine = next(iter(reading), "")
        if len(reading) != 1 or combine not in lone or not partial <= sgraph.handed_over:
            continue
        second = lone[combine][1]
        if not all(t in partial or since.get(t, place) < place for t in second.reads):
            continue
        grid = _grid(first, second, partial)
        if grid is not None:
            found[combine] = Fold(split, combine, grid)
    return dict(sorted(found.items(), key=lambda item: lone[item[0]][0]))


def chosen_folds(sgraph: SGraph, config: Config) -> dict[str, Fold]:
    """The folds that a configuration has, by the name of the second stage's launch, in order."""
    folded = config.launches(FOLDED)
    return {name: fold for name, fold in folds(sgraph).items() if name in folded} if folded else {}


def launches_under(sgraph: SGraph, config: Config) -> tuple[Launch, ...]:
    """The launches under a configuration: a second stage that is folded is none, as the programs of its split do it."""
    folded = config.launches(FOLDED)
    return tuple(x for x in launched(sgraph) if x.name not in folded)


def bound(sgraph: SGraph, symbols: Mapping[str, int], folded: Collection[str]) -> dict[str, int]:
    """The symbols' values as kernels see them: second stages that are folded have the tiles of their splits."""
    made = dict(symbols)
    if folded:
        for fold in folds(sgraph).values():
            if fold.combine in folded:
                made |= fold.bind(symbols)
    return made


def _grid(first: Kernel, second: Kernel, partial: Collection[str]) -> tuple[tuple[Axis, Tile, Tile], ...] | None:
    """The grid of the two, axis by axis; None where the second, the only reader, cannot be folded into the first."""
    splits = [(a, r) for a, r in first.roles if isinstance(r, Split)]
    if len(splits) != 1 or any(isinstance(s, Loop) for s in second.statements()):
        return None
    ((axis, role),) = splits
    part = part_axis(axis, role.parts)
    if dict(second.roles).get(part) != Whole():
        return None
    if any(isinstance(r, Split) for _, r in second.roles):
        return None
    grids = [[(a, r.tile) for a, r in k.roles if isinstance(r, Grid)] for k in (first, second)]
    if [a for a, _ in grids[0]] != [a for a, _ in grids[1]]:
        return None
    grid = tuple((a, tile, own) for (a, tile), (_, own) in zip(*grids, strict=True))
    symbols = [own for _, _, own in grid if isinstance(own, sympy.Symbol)]
    if len(set(symbols)) != len(symbols) or any(isinstance(own, int) and own != tile for _, tile, own in grid):
        return None
    return grid if all(_alike(name, part, first, second) for name in partial) else None


def _alike(tensor: str, part: Axis, first: Kernel, second: Kernel) -> bool:
    """Whether the second stage reads of the tensor what the split stores in the same tile."""
    stores = [s.index for s in first.statements() if isinstance(s, Store) and s.tensor == tensor]
    fetched = [s for s in second.statements() if isinstance(s, Load | Gather) and s.tensor == tensor]
    loads = [s.index for s in fetched]
    if len(stores) != 1 or any(isinstance(s, Gather) for s in fetched) or any(index != stores[0] for index in loads):
        return False
    axes = [i.as_axis() for i in stores[0]]
    if part not in axes or len(set(axes)) != len(axes):
        return False
    for axis in axes:
        if axis is None:
            return False
        if axis != part:
            one, other = dict(first.roles).get(axis), dict(second.roles).get(axis)
            if not (isinstance(one, Grid) and isinstance(other, Grid)) and not one == other == Whole():
                return False
    return True
