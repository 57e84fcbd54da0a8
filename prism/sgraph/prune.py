"""Pruning: which families of a kernel are worth combining into sGraphs. Removals are counted by the pruner's name.

    constraint names (shared, registers, dot_m, ...)
                no assignment of the symbols satisfies the kernel's constraints: it cannot run.
    schedule    no nest of loops has the roles, or the split is not one pass that everything else follows.
    duplicate   the same structure was reached before, by another form.
    dominated   another family for the same targets *reaches*, at one feasible assignment, no more bytes, work and
                launches, and as many programs (up to what fills the device), as this one's best of each over all its
                feasible assignments: whatever this one is used for, the other does no worse by that measure.
    rank        beyond the `per_kernel` best by estimated time. This one is a bound of the space, not an argument.

The measure is a roofline on the symbolic cost, evaluated over the whole power-of-two grid of feasible assignments at
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from prism.sgraph.constraints import Limits, checks, domains, first_unsatisfiable, footprint
from prism.sgraph.cost import DOT_WEIGHT, kernel_cost
from prism.sgraph.nodes import Kernel, SGraph

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rates:
    """What turns bytes and work into time, roughly.

    Attributes:
        bytes: memory bandwidth, bytes per second.
        work: vector multiply-adds per second (matrix work is weighed against it by DOT_WEIGHT).
        launch: seconds per launch.
        programs: how many programs fill the device.
    """

    bytes: float = 4.0e12
    work: float = 3.0e13
    launch: float = 2.0e-6
    programs: int = 132


@dataclass(frozen=True, slots=True)
class Reach:
    """What a family can do over its feasible assignments.

    Attributes:
        seconds: the least estimated time.
        best: least bytes, work and launches, and greatest number of programs, each on its own.
        at: bytes, work, launches and programs at the assignment with the least time.
    """

    seconds: float
    best: tuple[float, float, float, float]
    at: tuple[float, float, float, float]

    def dominates(self, other: Reach) -> bool:
        """Whether what this one reaches is at least as good, in every respect, as the other's best."""
        mine, theirs = self.at, other.best
        no_worse = all(a <= b for a, b in zip(mine[:3], theirs[:3], strict=True)) and mine[3] >= theirs[3]
        return no_worse and (mine[:3] != theirs[:3] or mine[3] > theirs[3])


def reach(
    kernels: Sequence[Kernel], sgraph: SGraph, limits: Limits, rates: Rates, hints: Mapping[str, int]
) -> Reach | str:
    """What the kernels, run one after another, can reach; or the name of the constraint that rules them out."""
    seconds = 0.0
    best = np.zeros(4)
    at = np.zeros(4)
    for kernel in kernels:
        f = footprint(kernel, sgraph)
        failed = first_unsatisfiable(f, sgraph, limits, hints)
        if failed is not None:
            return failed
        ranges = domains(f, hints)
        grids = np.ix_(*(np.array(d.values, dtype=np.float64) for d in ranges)) if ranges else ()
        binding: dict[str, Any] = {
            **hints,
            **{d.symbol: g.astype(np.int64) for d, g in zip(ranges, grids, strict=True)},
        }
        cost = kernel_cost(kernel, sgraph)
        feasible: Any = np.ones((1,) * max(1, len(ranges)), dtype=bool)
        for _, ok in checks(f, limits, binding):
            feasible = feasible & ok
        moved = np.asarray(cost.bytes_read.evaluate(binding) + cost.bytes_written.evaluate(binding), dtype=np.float64)
        work = np.asarray(
            cost.padded_flops.evaluate(binding), dtype=np.float64
        ) + DOT_WEIGHT * cost.padded_dot_flops.evaluate(binding)
        programs = np.minimum(np.asarray(cost.programs.evaluate(binding), dtype=np.float64), rates.programs)
        time = np.maximum(moved / rates.bytes, work / rates.work) * (rates.programs / programs) + rates.launch
        time, moved, work, programs, feasible = np.broadcast_arrays(time, moved, work, programs, feasible)
        where = np.flatnonzero(feasible)
        if where.size == 0:
            return "infeasible"
        least = where[int(np.argmin(time.ravel()[where]))]
        seconds += float(time.ravel()[least])
        at += (moved.ravel()[least], work.ravel()[least], 1, programs.ravel()[least])
        best += (moved.ravel()[where].min(), work.ravel()[where].min(), 1, programs.ravel()[where].max())
    return Reach(seconds, tuple(map(float, best)), tuple(map(float, at)))  # type: ignore[arg-type]


def keep(found: Sequence[tuple[T, Reach]], limit: int, pruned: Counter[str]) -> list[tuple[T, Reach]]:
    """The families that no other dominates, at most `limit`, least time first; the order of equals is kept."""
    ordered = sorted(enumerate(found), key=lambda t: (t[1][1].seconds, t[0]))
    kept: list[tuple[T, Reach]] = []
    for _, (family, mine) in ordered:
        if any(other.dominates(mine) for _, other in kept):
            pruned["dominated"] += 1
        else:
            kept.append((family, mine))
    pruned["rank"] += max(0, len(kept) - limit)
    if len(kept) <= limit:
        return kept
    # One of each that differs by the measure, before a second one that does not.
    seen: set[tuple[float, ...]] = set()
    first: list[tuple[T, Reach]] = []
    again: list[tuple[T, Reach]] = []
    for family, mine in kept:
        (again if mine.at in seen else first).append((family, mine))
        seen.add(mine.at)
    return sorted((first + again)[:limit], key=lambda t: t[1].seconds)
