"""The search space of an sGraph: domains of its symbols, launch options, and the feasible points, best first.

Launches meet in a configuration only through symbols that they share (the parts of a split). For each assignment of
those, the launches are ranked on their own, all their feasible points at once, and the rankings are combined, so a
space of many launches costs no more than the sum of its parts. Kernels of one launch have the same warps and stages:
their points are joined on those, the best of each kernel's (`joined.py`). A launch that is a plain matrix product has
one point more, the vendor's library: in tables it is the point of no stages.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from prism.backends.protocol import Config
from prism.instantiate.devices import Device
from prism.instantiate.joined import MAX_POINTS, KernelTimes, PointSpace, joined
from prism.instantiate.launch_model import LIBRARY_STAGES, KernelModel
from prism.instantiate.model import CostModel, Estimate, LaunchTimes
from prism.sgraph.constraints import Footprint, Limits, checks, domains, footprint, tile_bounds
from prism.sgraph.nodes import Kernel, Loop, SGraph
from prism.sgraph.plain_product import plain_products

Ints: TypeAlias = npt.NDArray[np.int64]

WARPS = (1, 2, 4, 8)
STAGES = (1, 2, 3, 4)
# Without a matrix product in the loop, pipelining is on or off.
PLAIN_STAGES = (1, 3)


class Options(Protocol):
    """What a launch has besides tile sizes, and how kernels are ranked where several are launched together."""

    @property
    def warps(self) -> tuple[int, ...]:
        """Values of warps; none where launches have no options."""
        ...

    def stages(self, f: Footprint) -> tuple[int, ...]:
        """Pipeline stages that a kernel may have."""
        ...

    def kernel_model(self, kernel: Kernel, sgraph: SGraph, hints: Mapping[str, int]) -> KernelTimes:
        """The model of one kernel."""
        ...


class GpuOptions:
    """Warps and pipeline stages.

    Args:
        device: whose model ranks.
    """

    warps = WARPS

    def __init__(self, device: Device) -> None:
        self.device = device

    def stages(self, f: Footprint) -> tuple[int, ...]:
        """See Options."""
        loops = any(isinstance(s, Loop) for s in f.kernel.body)
        return STAGES if f.staged else PLAIN_STAGES if loops else (1,)

    def kernel_model(self, kernel: Kernel, sgraph: SGraph, hints: Mapping[str, int]) -> KernelModel:
        """See Options."""
        return KernelModel(kernel, sgraph, self.device, hints)


class Space:
    """All feasible configurations of an sGraph on a device; of launches of several kernels, those that may be good.

    Args:
        sgraph: the family.
        device: whose limits hold.
        hints: a value for every symbol of the extents.
        options: what launches have besides tile sizes; a GPU's, when the device is one.

    Attributes:
        kernels: the points of each kernel.
        products: the launches that the vendor's library can compute.
        launches: the points of each launch.
        shared: symbols of several launches.
    """

    def __init__(
        self, sgraph: SGraph, device: Limits, hints: Mapping[str, int], options: Options | None = None
    ) -> None:
        if options is None:
            assert isinstance(device, Device)
            options = GpuOptions(device)
        self.options: Options = options
        self.sgraph = sgraph
        self.device = device
        self.hints = dict(hints)
        footprints = {k.name: footprint(k, sgraph) for k in sgraph.kernels}
        self._members: dict[str, tuple[PointSpace, ...]] = {}
        for launch in sgraph.launches:
            own = [footprints[k.name] for k in launch.kernels]
            stages = tuple(sorted({s for f in own for s in options.stages(f)}))
            warps = options.warps or (1,)
            self._members[launch.name] = tuple(_kernel_space(f, warps, stages, device, self.hints) for f in own)
        # Where launches have no options, that the library computes one is no option either.
        products = plain_products(sgraph) if options.warps else {}
        self.products = tuple(products)
        self.kernels = tuple(k for members in self._members.values() for k in members)
        uses = Counter(n for members in self._members.values() for n in {n for k in members for n in k.names[:-2]})
        self.shared = tuple(sorted(n for n, count in uses.items() if count > 1))
        self.launches = tuple(self._launch_space(name) for name in self._members)

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
        if not config.library <= set(self.products):
            return False
        for name, members in self._members.items():
            if name in config.library:
                continue
            for k in members:
                row = [config.symbols.get(n, 0) for n in k.names[:-2]]
                absent = 0 if self.options.warps else 1
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

    def _groups(self) -> Iterator[list[Ints]]:
        """For each assignment of the shared symbols: the feasible rows of every launch."""
        joint = self.domains
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
        for name, k, r in zip(self._members, self.launches, rows, strict=True):
            row = k.points[r].tolist()
            symbols.update(zip(k.names[:-2], row, strict=False))
            if name in self.products and row[-1] == LIBRARY_STAGES:
                library.add(name)
            elif self.options.warps:
                warps[name], stages[name] = row[-2], row[-1]
        return Config(symbols, warps, stages, frozenset(library))

    def _launch_space(self, name: str) -> PointSpace:
        """The points of a launch: of a lone kernel all of its."""
        members = self._members[name]
        if len(members) == 1:
            return _with_library(members[0], self.shared) if name in self.products else members[0]
        by_name = {k.name: k for k in self.sgraph.kernels}
        (launch,) = (x for x in self.sgraph.launches if x.name == name)
        models = [self.options.kernel_model(by_name[k.name], self.sgraph, self.hints) for k in launch.kernels]
        return joined(members, models, self.shared)


def _kernel_space(
    f: Footprint, warps: tuple[int, ...], stages: tuple[int, ...], device: Limits, hints: Mapping[str, int]
) -> PointSpace:
    ranges = domains(f, hints, tile_bounds(device))
    names = (*(d.symbol for d in ranges), "warps", "stages")
    values = _thinned([*(d.values for d in ranges), warps, stages])
    grid = np.meshgrid(*(np.array(v, dtype=np.int64) for v in values), indexing="ij")
    columns = [g.ravel() for g in grid]
    binding: dict[str, Any] = {**hints, **dict(zip(names[:-2], columns, strict=False))}
    mask = np.ones(len(columns[0]), dtype=bool)
    for _, ok in checks(f, device, binding, columns[-1], columns[-2]):
        mask &= ok
    return PointSpace(names, tuple(values), np.stack(columns, axis=1)[mask])


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
