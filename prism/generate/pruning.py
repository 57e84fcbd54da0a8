"""Pruning: what generation may leave out, each with its argument, its counter and its switch.

Costs are compared as vectors: bytes moved, work (vector multiply-adds, see `Device.matrix_operation`), launches, and
estimated seconds on the device, for which masked lanes count as well. All four add up over kernels, so replacing a
kernel by one that is no worse in each of them makes no sGraph worse. A family of kernels stands for all its feasible
assignments of tiles and parts; its *front* is the set of vectors that no other assignment of it beats.

`PRUNERS` lists those that lose nothing by bytes, work and launches (the seconds are compared besides, so that what is
best on the device is kept as well); `BOUNDS` those that are limits of the space and no arguments. Both count what they
removed under their name; a pruner can be switched off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np

from prism.cost.constraints import Footprint, feasible, footprint, tile_sizes
from prism.cost.counts import KernelCost, Polynomial, kernel_cost
from prism.cost.cpu import shared_work
from prism.cost.device import Device
from prism.cost.library import call_measures
from prism.cost.roofline import a_call, seconds
from prism.sgraph.library import LibraryCall, library_call
from prism.sgraph.nodes import Kernel, SGraph, Split, value_axes

T = TypeVar("T")
Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

# Bytes, work and seconds within this of another count as no worse: the last bits of sums.
SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Pruner:
    """Something that removes candidates."""

    name: str  # what its counter and its switch are called
    argument: str  # why nothing is lost; for a bound, what is


def _named(*found: Pruner) -> Mapping[str, Pruner]:
    return MappingProxyType({p.name: p for p in found})


PRUNERS = _named(
    Pruner(
        "commuted",
        "Two e-nodes of one e-class that differ by the order of the operands of a commutative operator cost the "
        "same under every assignment, whatever their operands are: one of them is kept.",
    ),
    Pruner(
        "leaf",
        "An e-class that holds a leaf (an input's element, a number, a position) is that leaf. An input's "
        "elements are free variables: any other expression that equals one for all inputs must read it, and do "
        "work besides.",
    ),
    Pruner(
        "operands",
        "An e-node whose operands are all among those of another e-node of the same e-class, with an operator "
        "that costs no more, replaces it in any form: the values that must be computed become a subset, nothing "
        "else changes.",
    ),
    Pruner(
        "product",
        "A sum of a product is a contraction of its factors wherever both depend on the summed axis. On vector "
        "units the contraction takes one multiply-add where product and sum take two operations, on matrix units "
        "a fraction; it reads the same operands, and a product that something else needs as well is still "
        "computed there. Where both factors come of reductions and the product is as large as one, it may be stored "
        "in the place of both, and both ways are kept. On tiles too short for a matrix unit it takes one element a "
        "program instead.",
    ),
    Pruner(
        "chain",
        "A value that only feeds a pointwise operator over the same axes, whose other operands are numbers, is "
        "not stored: storing that operator's result moves the same bytes, and its work is done once by the kernel "
        "that stores and not again in every tile that reads. Kept is a sum that goes where data say: what is made of "
        "it is not what a store adds.",
    ),
    Pruner(
        "once",
        "Where a form reduces nothing, a value that has all axes of the outputs and is read at one index is computed "
        "once an element in any kernel: to store it moves more, in a launch more, and no work is done less.",
    ),
    Pruner(
        "one-tile",
        "An output axis that is nowhere reduced and held whole in one tile is a grid axis whose tile covers it: "
        "the same loads, work and stores, and the grid's tile may also be shorter.",
    ),
    Pruner(
        "one-grid",
        "One element a program drops a dimension from the tiles. Where the axis is no row or column of a matrix "
        "product, that is a grid axis of tile 1 under every measure: loads, work and stores count elements.",
    ),
    Pruner(
        "idle-loop",
        "A loop over an output axis pays by what is computed once before it. A value that does not vary with the "
        "axis but varies in another loop is consumed by a reduction that varies with the axis, hence inside its "
        "loop, or by one that does not, which then is itself such a value. So where no value stands outside all "
        "loops and does not vary with the axis, the loop repeats everything, as the grid does, with fewer "
        "programs.",
    ),
    Pruner(
        "duplicate",
        "The same structure (kernels, roles, statements, buffers) was reached before, by another form or set of cuts.",
    ),
    Pruner(
        "dominated",
        "Every vector that this family reaches, at each of its feasible assignments and at every shape that is "
        "looked at, is matched or beaten in all four measures by some kept family for the same targets and the "
        "same stored operands. Kernels exchange whole tensors and share no symbols, so wherever this one stands, "
        "another does no worse.",
    ),
    Pruner(
        "worse",
        "The least bytes, work, launches and seconds of the whole sGraph, each on its own over all assignments, "
        "are matched or beaten at once by an assignment of a kept sGraph: no assignment of this one can be better "
        "in any.",
    ),
)

BOUNDS = _named(
    Pruner(
        "max_forms",
        "Forms beyond the bound, most work last; every skeleton of reductions comes before variants.",
    ),
    Pruner(
        "max_families",
        "Plans (a form with its cuts) that no round visits: those that look slowest once so many families of kernels "
        "were built.",
    ),
    Pruner(
        "max_cuts",
        "E-classes of a form that no round considers for materialisation together: the last round's first are.",
    ),
    Pruner(
        "max_ops",
        "A kernel that would hold more operators than the bound.",
    ),
    Pruner(
        "max_loops",
        "A kernel that would hold more loops than the bound.",
    ),
    Pruner(
        "rank",
        "Families of a kernel, combinations and sGraphs beyond the bounds' number, slowest first.",
    ),
    Pruner(
        "spares",
        "An sGraph beside which others do no worse by every measure, where its split is proved against a reference of "
        "its own only: that takes longer than all other proofs.",
    ),
)


@dataclass(frozen=True, slots=True)
class Reach:
    """What a family can do over its feasible assignments, shape point by shape point."""

    launches: int  # how many kernels it launches
    # For each shape point, rows of (bytes, work, seconds), one an assignment that no other beats.
    points: tuple[Array, ...]
    ideal: tuple[Array, ...]  # for each shape point, the least of each column
    # For each shape point, the rows with the least bytes, the least work and the least time.
    corners: tuple[tuple[Array, ...], ...]
    seconds: float  # the least estimated time at the first shape point

    def prepared(self) -> Reach:
        """Of kernels that run once, when the weights are there: what a call has of it."""
        rows, ideal = (tuple(map(a_call, each)) for each in (self.points, self.ideal))
        return Reach(0, rows, ideal, tuple(tuple(map(a_call, c)) for c in self.corners), a_call(self.seconds))

    def covered(self, others: Sequence[Reach]) -> bool:
        """Whether at each shape point every one of its vectors is matched or beaten by one of the others'."""
        rivals = [o for o in others if o.launches <= self.launches]
        if not rivals:
            return False
        for n, mine in enumerate(self.points):
            if not mine.shape[0]:
                continue
            theirs = np.concatenate([o.points[n] for o in rivals])
            # Most often one assignment beats the best of each column.
            if bool((theirs <= self.ideal[n] * (1 + SLACK)).all(axis=1).any()):
                continue
            matched = np.all(theirs[None] <= mine[:, None] * (1 + SLACK), axis=2)
            if not bool(np.all(np.any(matched, axis=1))):
                return False
        return True


def front(rows: Array) -> Array:
    """The rows of (bytes, work, seconds) that no other row matches or beats in all, each once, fewest bytes first."""
    left = rows[np.lexsort(rows.T[::-1])]
    _, work, time = left.T
    # With what others match.
    more_work, more_time = work * (1 + SLACK), time * (1 + SLACK)
    kept: list[int] = []
    places = np.arange(left.shape[0])
    while places.shape[0]:
        # The fewest bytes, ties broken by the others: nothing that comes after it beats that.
        best = int(places[0])
        kept.append(best)
        places = places[(more_work[places] < work[best]) | (more_time[places] < time[best])]
    return left[kept]


def reach(
    kernels: Sequence[Kernel],
    sgraph: SGraph,
    device: Device,
    points: Sequence[Mapping[str, int]],
    calls: Sequence[LibraryCall | None] | None = None,
) -> Reach | str:
    """What the kernels, run one after another, can reach; or the name of the constraint that rules them out.

    Args:
        kernels: a kernel, or the two stages of a split.
        sgraph: declares the tensors that they touch.
        device: what they run on.
        points: values of the extents' symbols; a family must run at one of them.
        calls: what a library computes in place of each kernel, if known.
    """
    axes = [value_axes(k) for k in kernels]
    prints = [footprint(k, sgraph, a) for k, a in zip(kernels, axes, strict=True)]
    bindings: list[list[dict[str, Any]]] = []
    failed = "parts"
    for hints in points:
        mine: list[dict[str, Any]] = []
        for f in prints:
            found = feasible(f, sgraph, device, hints)
            if isinstance(found, str):
                failed = found
                break
            mine.append(found)
        bindings.append(mine)
    if not any(len(mine) == len(kernels) for mine in bindings):
        return failed
    costs = [kernel_cost(k, sgraph, a) for k, a in zip(kernels, axes, strict=True)]
    parts = [r.parts.name for k in kernels for _, r in k.roles if isinstance(r, Split)]
    if calls is None:
        calls = [library_call(k, sgraph) if device.library else None for k in kernels]
    fronts: list[Array] = []
    for hints, mine in zip(points, bindings, strict=True):
        tables: list[tuple[Array, Array | None]] = []
        for f, cost, call, binding in zip(prints, costs, calls, mine, strict=False):
            rows = _measures(f, cost, device, binding)
            if call is not None:
                rows = np.concatenate([rows, call_measures(call, hints, device, rows[:, 1].min())])
            shared = [np.asarray(binding[p]) for p in parts if p in binding]
            tables.append((rows, np.broadcast_to(shared[0], rows.shape[:1]) if shared else None))
        fronts.append(_together(tables) if len(tables) == len(kernels) else np.empty((0, 3)))
    if not any(f.shape[0] for f in fronts):
        return "parts"
    nowhere = np.full(3, np.inf)
    ideal = tuple(f.min(axis=0) if f.shape[0] else nowhere for f in fronts)
    corners = tuple(tuple(f[int(n)] for n in f.argmin(axis=0)) if f.shape[0] else (nowhere,) * 3 for f in fronts)
    return Reach(len(kernels), tuple(fronts), ideal, corners, float(ideal[0][2]))


def _measures(f: Footprint, cost: KernelCost, device: Device, binding: Mapping[str, Any]) -> Array:
    """A row of (bytes, work, seconds) for each assignment."""
    shared: dict[int, Any] = {}

    def at(polynomial: Polynomial) -> Any:
        return polynomial.evaluate(binding, shared)

    moved = at(cost.bytes_read) + at(cost.bytes_written)
    work = at(cost.padded_flops) + device.matrix_operation * at(cost.padded_dot_flops)
    flops = at(cost.flops) + device.matrix_operation * at(cost.dot_flops)
    sectors = cost.beside(tile_sizes(f.kernel, binding), binding) if device.is_gpu else ()
    beside = sum(at(Polynomial((traffic,))) * more for traffic, more in sectors)
    work = work + shared_work(device, at(cost.shared_additions))
    programs = at(cost.programs)
    columns = np.broadcast_arrays(moved, flops, seconds(device, moved + beside, work, programs))
    return np.stack([np.asarray(c, dtype=np.float64).reshape(-1) for c in columns], axis=1)


def _together(tables: Sequence[tuple[Array, Array | None]]) -> Array:
    """The front of kernels run one after another, which agree on the number of parts where they share it."""
    if len(tables) == 1:
        return front(tables[0][0])
    split = [t for t in tables if t[1] is not None]
    if not split:
        total = front(tables[0][0])
        for rows, _ in tables[1:]:
            total = front((total[:, None] + front(rows)[None]).reshape(-1, 3))
        return total
    values = sorted(set.intersection(*({int(v) for v in np.unique(p)} for _, p in split if p is not None)))
    found: list[Array] = []
    alone = [front(rows) if shared is None else rows for rows, shared in tables]
    for number in values:
        total = np.zeros((1, 3))
        for (_, shared), rows in zip(tables, alone, strict=True):
            mine = rows if shared is None else front(rows[shared == number])
            total = (total[:, None] + mine[None]).reshape(-1, 3)
        found.append(front(total))
    return front(np.concatenate(found)) if found else np.zeros((0, 3))


def keep(
    found: Sequence[tuple[T, Reach]], limit: int, spares: int, switched: frozenset[str], pruned: Counter[str]
) -> list[tuple[T, Reach, bool]]:
    """The families that the others do not cover and a few more, least time first, with whether they are covered.

    Args:
        found: families for the same targets.
        limit: how many are kept.
        spares: how many covered ones are kept beside, least time first: the measures are not the device.
        switched: names of pruners that are off.
        pruned: where removals are counted.
    """
    ordered = [found[n] for n in sorted(range(len(found)), key=lambda n: (found[n][1].seconds, n))]
    kept: list[tuple[T, Reach]]
    spare: list[tuple[T, Reach]]
    if "dominated" in switched:
        kept, spare = list(ordered), []
    else:
        kept, spare = [], []
        for family, mine in ordered:
            if mine.covered([r for _, r in kept]):
                spare.append((family, mine))
            else:
                kept.append((family, mine))
        pruned["dominated"] += max(0, len(spare) - spares)
    pruned["rank"] += max(0, len(kept) - limit)
    both = [*((f, r, False) for f, r in kept[:limit]), *((f, r, True) for f, r in spare[:spares])]
    return sorted(both, key=lambda t: t[1].seconds)
