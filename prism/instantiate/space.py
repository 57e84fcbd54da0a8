"""The search space of an sGraph: domains of its symbols, launch options, and the feasible points, best first.

Launches meet in a configuration only through symbols that they share (the parts of a split). For each assignment of
those, the launches are ranked on their own, all their feasible points at once, and the rankings are combined, so a
space of many launches costs no more than the sum of its parts. Kernels of one launch have the same warps and stages:
their points are joined on those, the best of each kernel's (`joined.py`). A launch that is a plain matrix product has
one point more, the vendor's library: in tables it is the point of no stages.

A second stage that its split can do (`prism.sgraph.folding`) is folded or not: a column that both launches have, so
that they agree. Where it is, the split's points are those at which the second stage with the split's tiles and warps
keeps within the limits, and the second stage has one point, of no stages.

Loads by tensor descriptors are no column: the model takes them for equal, so every second point would be a repetition.
The best few points have twins with them instead (`Space.described`).
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from prism.backends.tile import TileModule
from prism.backends.triton.emit import tile_module
from prism.backends.triton.tensor_descriptors import DESCRIPTORS, LaunchBoxes, boxes, fitting
from prism.cost.constraints import Footprint, checks, domains, footprint
from prism.cost.cpu import CpuKernelModel
from prism.cost.device import Device
from prism.cost.gpu import LIBRARY_STAGES, KernelModel, folding
from prism.cost.model import CostModel, Estimate, LaunchTimes
from prism.cost.persistent import PERSISTENT, persistable
from prism.instantiate.joined import MAX_POINTS, PointSpace, joined
from prism.sgraph.config import Config
from prism.sgraph.folding import FOLDED, Fold, folds
from prism.sgraph.nodes import Loop, SGraph
from prism.sgraph.products import LIBRARY, plain_products

Ints: TypeAlias = npt.NDArray[np.int64]

WARPS = (1, 2, 4, 8)
STAGES = (1, 2, 3, 4)
# Without a matrix product in the loop, pipelining is on or off.
PLAIN_STAGES = (1, 3)
DESCRIBED = 2
"""How many of the best points are tried with descriptors, too."""


class Space:
    """All feasible configurations of an sGraph on a device; of launches of several kernels, those that may be good.

    Args:
        sgraph: the family.
        device: whose limits hold.
        hints: a value for every symbol of the extents.

    Attributes:
        kernels: the points of each kernel.
        products: the launches that the vendor's library can compute.
        folds: the second stages that may be folded into their splits, where some point of the split has room for it.
        persistent: the launches that may be persistent, at any of their points: no column, see `persistence.py`.
        launches: the points of each launch.
        shared: what several launches agree on: symbols, and whether second stages are folded.
    """

    def __init__(self, sgraph: SGraph, device: Device, hints: Mapping[str, int]) -> None:
        self.sgraph = sgraph
        self.device = device
        self.hints = dict(hints)
        footprints = {k.name: footprint(k, sgraph) for k in sgraph.kernels}
        self._members: dict[str, tuple[PointSpace, ...]] = {}
        for launch in sgraph.launches:
            own = [footprints[k.name] for k in launch.kernels]
            stages = tuple(sorted({s for f in own for s in _stages(f, device)}))
            warps = WARPS if device.is_gpu else (1,)
            self._members[launch.name] = tuple(_kernel_space(f, warps, stages, device, self.hints) for f in own)
        # Where launches have no options, that the library computes one is no option either.
        products = plain_products(sgraph) if device.is_gpu else {}
        self.products = tuple(products)
        self.kernels = tuple(k for members in self._members.values() for k in members)
        self._footprints = footprints
        self._symbols = {s.name for s in sgraph.symbols}
        self._launch_kernel = {x.name: x.kernels[0].name for x in sgraph.launches}
        possible = folds(sgraph) if device.is_gpu else {}
        room = {
            n: self._room(f) for n, f in possible.items() if f.split not in self.products and n not in self.products
        }
        self.folds = {n: possible[n] for n, fits in room.items() if fits.any()}
        self.persistent = persistable(sgraph) if device.is_gpu else ()
        uses = Counter(n for members in self._members.values() for n in {n for k in members for n in k.names[:-2]})
        self.shared = tuple(sorted(n for n, count in uses.items() if count > 1))
        made = {name: self._launch_space(name) for name in self._members}
        for name, fold in self.folds.items():
            made[fold.split] = _with_second_stage(made[fold.split], folding(name), room[name])
            made[name] = _with_absence(made[name], folding(name), self.shared)
        self.shared = (*self.shared, *map(folding, self.folds))
        self.launches = tuple(made.values())

    @property
    def domains(self) -> dict[str, tuple[int, ...]]:
        """Every symbol's values, ascending; of a symbol that kernels share, those that all of them allow."""
        found: dict[str, tuple[int, ...]] = {}
        for k in self.kernels:
            for name, values in zip(k.names[:-2], k.values[:-2], strict=True):
                found[name] = tuple(v for v in found.get(name, values) if v in values)
        return found

    @property
    def size(self) -> int:
        """The number of feasible configurations."""
        return sum(_product(len(rows) for rows in per_kernel) for per_kernel in self._groups())

    def configs(self, limit: int | None = None) -> Iterator[Config]:
        """The feasible configurations in a fixed order, at most `limit`."""
        return itertools.islice(self._all(), limit)

    def feasible(self, config: Config) -> bool:
        """Whether the configuration is one of the space."""
        if not config.launches(LIBRARY) <= set(self.products) or not config.launches(FOLDED) <= set(self.folds):
            return False
        if config.launches(DESCRIPTORS) and not config.launches(DESCRIPTORS) <= self._descriptors(config):
            return False
        if not config.launches(PERSISTENT) <= set(self.persistent) & config.warps.keys():
            return False
        for name in config.launches(FOLDED):
            fold = self.folds[name]
            tiles = fold.bind(config.symbols)
            given = {n: np.array([v]) for n, v in config.symbols.items()}
            fits = self._fits(fold, given, np.array([config.warps.get(fold.split, 0)]))
            if any(config.symbols.get(n) != v for n, v in tiles.items()) or not fits.all():
                return False
        for name, members in self._members.items():
            if name in config.launches(LIBRARY) or name in config.launches(FOLDED):
                continue
            for k in members:
                row = [config.symbols.get(n, 0) for n in k.names[:-2]]
                absent = 0 if self.device.is_gpu else 1
                row += [config.warps.get(name, absent), config.stages.get(name, absent)]
                if not bool((k.points == np.array(row, dtype=np.int64)).all(axis=1).any()):
                    return False
        return True

    def points_ranked(self, model: CostModel, limit: int, minor: float = 0.0) -> list[tuple[Config, Estimate]]:
        """The `limit` configurations that the model likes best, fastest first; equal ones in the space's order.

        Args:
            model: of the sGraph.
            limit: how many.
            minor: launches that take less than this share of the best configuration's time are always at their best.
                Without it the best points of several launches mostly differ in what hardly counts.
        """
        if limit <= 0:
            return []
        seconds = [_seconds(m, k) for m, k in zip(model.launches, self.launches, strict=True)]
        limits = [limit] * len(seconds)
        if minor and len(seconds) > 1:
            for total, _, rows in self._least(seconds, [1] * len(seconds), 1):
                limits = [limit if s[row] >= minor * total else 1 for s, row in zip(seconds, rows, strict=True)]
        chosen = [self.config(rows) for _, _, rows in self._least(seconds, limits, limit)]
        return [(c, model.estimate(c)) for c in chosen]

    def _least(
        self, seconds: Sequence[npt.NDArray[np.float64]], limits: Sequence[int], limit: int
    ) -> list[tuple[float, int, tuple[int, ...]]]:
        """The `limit` least totals with their groups and rows, of so many of each launch's own best rows."""
        found: list[tuple[float, int, tuple[int, ...]]] = []
        for group, per_kernel in enumerate(self._groups()):
            ranked: list[list[tuple[float, int]]] = []
            for rows, s, many in zip(per_kernel, seconds, limits, strict=True):
                order = rows[np.argsort(s[rows], kind="stable")][:many]
                ranked.append([(float(s[r]), int(r)) for r in order if np.isfinite(s[r])])
            found += [(total, group, rows) for total, rows in _best_sums(ranked, limit)]
        found.sort()
        return found[:limit]

    def best(self, model: CostModel, limit: int) -> tuple[Config, ...]:
        """The configurations of `points_ranked` alone."""
        return tuple(c for c, _ in self.points_ranked(model, limit))

    def described(self, configs: Sequence[Config], many: int = DESCRIBED) -> tuple[Config, ...]:
        """The configurations, each of the first so many that can have descriptors followed by its twin with them.

        Nothing says yet what descriptors gain: the twin comes second, with the same estimate until it is compiled.
        """
        found: list[Config] = []
        for c in configs:
            found.append(c)
            names = self._descriptors(c) if many > 0 else frozenset()
            if names:
                found.append(c.having(descriptors=names))
                many -= 1
        return tuple(found)

    def _descriptors(self, config: Config) -> frozenset[str]:
        """The launches that can have descriptors under a configuration."""
        if not self.device.descriptors:
            return frozenset()
        module, held = self._boxes
        return fitting(module, held, config.symbols, self.hints) - config.launches(LIBRARY)

    @cached_property
    def _boxes(self) -> tuple[TileModule, Mapping[str, LaunchBoxes]]:
        module = tile_module(self.sgraph)
        return module, boxes(module)

    def _groups(self) -> Iterator[list[Ints]]:
        """For each assignment of the shared symbols: the feasible rows of every launch."""
        joint = {**self.domains, **{folding(n): (0, 1) for n in self.folds}}
        for values in itertools.product(*(joint[n] for n in self.shared)):
            per_kernel: list[Ints] = []
            for k in self.launches:
                mask = np.ones(len(k.points), dtype=bool)
                for name, v in zip(self.shared, values, strict=True):
                    if name in k.names:
                        mask &= k.column(name) == v
                per_kernel.append(np.flatnonzero(mask).astype(np.int64))
            if all(len(rows) for rows in per_kernel):
                yield per_kernel

    def _all(self) -> Iterator[Config]:
        for per_kernel in self._groups():
            for rows in itertools.product(*per_kernel):
                yield self.config(tuple(map(int, rows)))

    def config(self, rows: Sequence[int]) -> Config:
        """The configuration of one row of each launch's points."""
        symbols: dict[str, int] = {}
        warps: dict[str, int] = {}
        stages: dict[str, int] = {}
        library: set[str] = set()
        folded: set[str] = set()
        for name, k, r in zip(self._members, self.launches, rows, strict=True):
            row = dict(zip(k.names, k.points[r].tolist(), strict=True))
            symbols.update((n, v) for n, v in row.items() if n in self._symbols)
            if name in self.products and row["stages"] == LIBRARY_STAGES:
                library.add(name)
            elif name in self.folds and row[folding(name)]:
                folded.add(name)
            elif self.device.is_gpu:
                warps[name], stages[name] = row["warps"], row["stages"]
        for name in folded:
            symbols.update(self.folds[name].bind(symbols))
        return Config(symbols, warps, stages).having(library=library, folded=folded)

    def shared_values(self, config: Config) -> dict[str, int]:
        """The values of `shared` in a configuration."""
        flags = {folding(n): int(n in config.launches(FOLDED)) for n in self.folds}
        return {n: flags[n] if n in flags else config.symbols[n] for n in self.shared}

    def _room(self, fold: Fold) -> npt.NDArray[np.bool_]:
        """For each point of the split, whether the second stage with its tiles and warps keeps within the limits."""
        (space,) = self._members[fold.split]
        return self._fits(fold, space.binding(), space.column("warps"))

    def _fits(self, fold: Fold, binding: Mapping[str, Any], warps: Ints) -> npt.NDArray[np.bool_]:
        f = self._footprints[self._launch_kernel[fold.combine]]
        given = {**self.hints, **binding, **fold.bind(binding)}
        ok = np.ones(len(warps), dtype=bool)
        for _, held in checks(f, self.device, given, 1, warps):
            ok &= held
        return ok

    def _launch_space(self, name: str) -> PointSpace:
        """The points of a launch: of a lone kernel all of its."""
        members = self._members[name]
        if len(members) == 1:
            return _with_library(members[0], self.shared) if name in self.products else members[0]
        by_name = {k.name: k for k in self.sgraph.kernels}
        (launch,) = (x for x in self.sgraph.launches if x.name == name)
        model: type[KernelModel | CpuKernelModel] = KernelModel if self.device.is_gpu else CpuKernelModel
        models = [model(by_name[k.name], self.sgraph, self.device, self.hints) for k in launch.kernels]
        return joined(members, models, self.shared)


def _stages(f: Footprint, device: Device) -> tuple[int, ...]:
    """Pipeline stages that a kernel may have; one where the device has no such option."""
    loops = any(isinstance(s, Loop) for s in f.kernel.body)
    return (STAGES if f.staged else PLAIN_STAGES if loops else (1,)) if device.is_gpu else (1,)


def _kernel_space(
    f: Footprint, warps: tuple[int, ...], stages: tuple[int, ...], device: Device, hints: Mapping[str, int]
) -> PointSpace:
    ranges = domains(f, hints, device.tiles)
    names = (*(d.symbol for d in ranges), "warps", "stages")
    values = _thinned([*(d.values for d in ranges), warps, stages])
    grid = np.meshgrid(*(np.array(v, dtype=np.int64) for v in values), indexing="ij")
    columns = [g.ravel() for g in grid]
    binding: dict[str, Any] = {**hints, **dict(zip(names[:-2], columns, strict=False))}
    mask = np.ones(len(columns[0]), dtype=bool)
    for _, ok in checks(f, device, binding, columns[-1], columns[-2]):
        mask &= ok
    return PointSpace(names, tuple(values), np.stack(columns, axis=1)[mask])


def _with_second_stage(space: PointSpace, flag: str, room: npt.NDArray[np.bool_]) -> PointSpace:
    """The split's points, and once more those that have room for the second stage, folded."""
    return _flagged(space, flag, np.concatenate([space.points, space.points[room]]), len(space.points))


def _with_absence(space: PointSpace, flag: str, shared: Sequence[str]) -> PointSpace:
    """The second stage's points, and for every value of what others share one more: it is folded, and no launch."""
    rows = space.points[:0]
    if len(space.points):
        _, first = np.unique(space.columns([n for n in shared if n in space.names]), axis=0, return_index=True)
        rows = space.points[first]
        rows[:, -2:] = (space.points[:, -2].min(), LIBRARY_STAGES)
    absent = PointSpace(space.names, (*space.values[:-1], (LIBRARY_STAGES, *space.values[-1])), space.points)
    return _flagged(absent, flag, np.concatenate([space.points, rows]), len(space.points))


def _flagged(space: PointSpace, flag: str, points: Ints, plain: int) -> PointSpace:
    """The points with one column more: 0 in the first `plain`, 1 in the others."""
    chosen = (np.arange(len(points)) >= plain).astype(np.int64)[:, None]
    points = np.concatenate([points[:, :-2], chosen, points[:, -2:]], axis=1)
    values = (*space.values[:-2], (0, 1), *space.values[-2:])
    return PointSpace((*space.names[:-2], flag, *space.names[-2:]), values, points[np.lexsort(points.T[::-1])])


def _with_library(space: PointSpace, shared: Sequence[str]) -> PointSpace:
    """The points, and for every value of what other launches share one more: the library's, at the least tiles."""
    if not len(space.points):
        return space
    _, first = np.unique(space.columns([n for n in shared if n in space.names]), axis=0, return_index=True)
    rows = space.points[first]
    rows[:, -2:] = (space.points[:, -2].min(), LIBRARY_STAGES)
    points = np.concatenate([space.points, rows])
    values = (*space.values[:-1], (LIBRARY_STAGES, *space.values[-1]))
    return PointSpace(space.names, values, points[np.lexsort(points.T[::-1])])


def _thinned(values: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The domains, the longest first cut to every other value until their product is small enough."""
    found = list(values)
    while _product(len(v) for v in found) > MAX_POINTS:
        longest = max(range(len(found)), key=lambda n: len(found[n]))
        found[longest] = found[longest][::-1][::2][::-1]
    return found


def _seconds(model: LaunchTimes, space: PointSpace) -> npt.NDArray[np.float64]:
    seconds = model.seconds(space.binding(), space.column("warps"), space.column("stages"))
    return np.broadcast_to(np.asarray(seconds, dtype=np.float64), (len(space.points),))


def _best_sums(ranked: Sequence[Sequence[tuple[float, int]]], limit: int) -> list[tuple[float, tuple[int, ...]]]:
    """The `limit` least sums of one entry of each ascending list, with their rows, ascending."""
    if not all(ranked):
        return []

    def entry(place: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        return sum(r[p][0] for r, p in zip(ranked, place, strict=True)), place

    start = (0,) * len(ranked)
    heap = [entry(start)]
    seen = {start}
    found: list[tuple[float, tuple[int, ...]]] = []
    while heap and len(found) < limit:
        total, place = heapq.heappop(heap)
        found.append((total, tuple(r[p][1] for r, p in zip(ranked, place, strict=True))))
        for n in range(len(ranked)):
            further = (*place[:n], place[n] + 1, *place[n + 1 :])
            if further[n] < len(ranked[n]) and further not in seen:
                seen.add(further)
                heapq.heappush(heap, entry(further))
    return found


def _product(numbers: Any) -> int:
    n = 1
    for x in numbers:
        n *= int(x)
    return n
