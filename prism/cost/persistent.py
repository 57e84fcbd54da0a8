"""Which launches may be persistent: as many programs as the device runs at a time, each of which takes tile after tile.

It is for launches that are bound by products in a loop, where starting programs and their first loads cost a share of
each tile: one kernel, with a matrix product in a loop. A split whose second stage may be folded into it, and that
second stage, are none: programs count themselves in tile by tile there. What is computed does not change, so it is a
choice of instantiation (`prism.instantiate.options.persistent`).
"""

from __future__ import annotations

from collections.abc import Sequence

from prism.cost.constraints import footprint
from prism.ir.kit import statements
from prism.sgraph.folding import folds
from prism.sgraph.nodes import Contract, Loop, SGraph, Stmt

PERSISTENT = "persistent"
"""What configurations call it; the number is the programs that a multiprocessor holds at a time."""
FLATTENED = "flattened"
"""What configurations call those whose loop over tiles is one with the loop in a tile: loads run ahead to the next."""


def persistable(sgraph: SGraph) -> tuple[str, ...]:
    """The names of the launches that may be persistent, in order."""
    counting = {name for combine, fold in folds(sgraph).items() for name in (combine, fold.split)}
    return tuple(
        x.name
        for x in sgraph.launches
        if len(x.kernels) == 1
        and x.name not in counting
        and _multiplies(x.kernels[0].body, False)
        and footprint(x.kernels[0], sgraph).dots
    )


def flattenable(sgraph: SGraph) -> tuple[str, ...]:
    """Of those that may be persistent, those with a single loop, as long in every tile."""
    kernels = {x.name: x.kernels[0] for x in sgraph.launches if x.name in persistable(sgraph)}
    loops = {name: [s for s in statements(k.body) if isinstance(s, Loop)] for name, k in kernels.items()}
    return tuple(name for name, found in loops.items() if len(found) == 1 and not found[0].skips)


def _multiplies(body: Sequence[Stmt], inside: bool) -> bool:
    """Whether a loop holds a product."""
    return any(_multiplies(s.body, True) if isinstance(s, Loop) else inside and isinstance(s, Contract) for s in body)
