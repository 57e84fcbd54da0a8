"""The search space of an sGraph: domains of its symbols, launch options, and the feasible points, best first.

Launches meet in a configuration only through symbols that they share (the parts of a split). For each assignment of
those, the launches are ranked on their own, all their feasible points at once, and the rankings are combined, so a
space of many launches costs no more than the sum of its parts. Kernels of one launch have the same warps and stages:
their points are joined on those, the best of each kernel's (`point_tables.py`).

What else a launch may be is said by its options (`options/`): points more in its table, or variants of the best points.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsInt, TypeAlias

import numpy as np
import numpy.typing as npt

from prism.cost.constraints import Footprint, checks, domains
from prism.cost.cpu import CpuKernelModel
from prism.cost.device import Device
from prism.cost.gpu import KernelModel
from prism.cost.model import CostModel, Estimate, LaunchTimes
from prism.cost.roofline import a_call
from prism.instantiate.options import OPTIONS, Family, Offered, Option, variants
from prism.instantiate.point_tables import MAX_POINTS, PointSpace, natural_join
from prism.sgraph.config import Config
from prism.sgraph.nodes import Loop, SGraph
from prism.sgraph.resident import in_one_launch, launched

Ints: TypeAlias = npt.NDArray[np.int64]

FEW = 64
"""Of so many assignments of shared symbols each is looked at by itself: a bound for all costs as much."""
VARIED = 2
"""How many of the best points are tried with what is offered to studies beside them, too."""


class Space:
    """All feasible configurations of an sGraph on a device; of launches of several kernels, those that may be good.

    Args:
        sgraph: the family.
        device: whose limits hold.
        hints: a value for every symbol of the extents.
        options: what launches may have.
        most: of a kernel's grid of points that is larger, every other value of the longest domains is left out.
    """

    def __init__(
        self,
        sgraph: SGraph,
        device: Device,
        hints: Mapping[str, int],
        options: Sequence[type[Option]] = OPTIONS,
        most: int = MAX_POINTS,
    ) -> None:
        self.sgraph = sgraph
        self.device = device
        self.hints = dict(hints)
        sgraph = in_one_launch(sgraph)
        family = Family(sgraph, device, self.hints)
        self.options = tuple(o(family) for o in options)  # what its launches may have
        self._members: dict[str, tuple[PointSpace, ...]] = {}
        for launch in sgraph.launches:
            own = [family.footprints[k.name] for k in launch.kernels]
            stages = tuple(sorted({s for f in own for s in stages_of(f, device)}))
            members = [_kernel_space(f, warps_of(device), stages, device, self.hints, most) for f in own]
            self._members[launch.name] = tuple(members)
        self.kernels = tuple(k for members in self._members.values() for k in members)  # the points of each kernel
        self._symbols = {s.name for s in sgraph.symbols}
        uses = Counter(n for members in self._members.values() for n in {n for k in members for n in k.names[:-2]})
        # What several launches agree on: symbols, and columns of options.
        self.shared = tuple(sorted(n for n, count in uses.items() if count > 1))
        tables = {name: self._launch_space(name) for name in self._members}
        for o in self.options:
            o.extend(tables, self.shared)
        self._columns = {name: (o.name, launch) for o in self.options for name, launch in o.columns.items()}
        self.shared = (*self.shared, *self._columns)
        self.launches = tuple(tables.values())  # the points of each launch

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
        return sum(math.prod(len(rows) for rows in per_kernel) for per_kernel in self._groups())

    def configs(self, limit: int | None = None) -> Iterator[Config]:
        """The feasible configurations in a fixed order, at most `limit`."""
        return itertools.islice(self._all(), limit)

    def feasible(self, config: Config) -> bool:
        """Whether the configuration is one of the space."""
        if not config.options.keys() <= {o.name for o in self.options}:
            return False
        if not all(o.feasible(config) for o in self.options):
            return False
        replaced = {launch for o in self.options if o.replaces for launch in config.launches(o.name)}
        for name, members in self._members.items():
            if name in replaced:
                continue
            for k in members:
                row = [config.symbols.get(n, 0) for n in k.names[:-2]]
                absent = 0 if self.device.is_gpu else 1
                row += [config.warps.get(name, absent), config.stages.get(name, absent)]
                if not bool((k.points == np.array(row, dtype=np.int64)).all(axis=1).any()):
                    return False
        return True

    def points_ranked(
        self, model: CostModel, limit: int, minor: float = 0.0, also: tuple[CostModel, float] | None = None
    ) -> list[tuple[Config, Estimate]]:
        """The `limit` configurations that the model likes best, fastest first; equal ones in the space's order.

        Args:
            model: of the sGraph.
            limit: how many.
            also: a model of it at other sizes, which counts by so much beside the first.
            minor: launches that take less than this share of the best configuration's time are always at their best.
                Without it the best points of several launches mostly differ in what hardly counts.
        """
        if limit <= 0:
            return []
        seconds = [_seconds(m, k) for m, k in zip(model.launches, self.launches, strict=True)]
        if also is not None:
            pairs = zip(seconds, also[0].launches, self.launches, strict=True)
            seconds = [s + also[1] * _seconds(m, k) for s, m, k in pairs]
        # What runs once for many calls is at its best as well: no trial of a call tells its points apart.
        once = [x.kernels[0].name in self.sgraph.prepared for x in launched(self.sgraph)]
        seconds = [a_call(s) if o else s for s, o in zip(seconds, once, strict=True)]
        limits = [1 if o else limit for o in once]
        if minor and len(seconds) > 1:
            for total, _, rows in self._least(seconds, [1] * len(seconds), 1):
                less = [s[row] < minor * total for s, row in zip(seconds, rows, strict=True)]
                limits = [1 if o or n else limit for o, n in zip(once, less, strict=True)]
        chosen = [self.config(rows) for _, _, rows in self._least(seconds, limits, limit)]
        return [(c, model.estimate(c)) for c in chosen]

    def _least(
        self, seconds: Sequence[npt.NDArray[np.float64]], limits: Sequence[int], limit: int
    ) -> list[tuple[float, int, tuple[int, ...]]]:
        """The `limit` least totals with their groups and rows, of so many of each launch's own best rows.

        A group is an assignment of the shared symbols, in their order. Where there are many, the least total of each
        comes first, of all at once: few have a total among the least ones.
        """
        joint = self._joint()
        shape = tuple(len(v) for v in joint.values())
        codes = [_codes(k, joint) for k in self.launches]
        least = np.zeros(math.prod(shape))
        if len(least) > FEW:
            totals = least.reshape(shape)
            for k, code, s in zip(self.launches, codes, seconds, strict=True):
                sizes = [len(values) if n in k.names else 1 for n, values in joint.items()]
                own = np.full(math.prod(sizes), np.inf)
                np.minimum.at(own, code[code >= 0], s[code >= 0])
                totals = totals + own.reshape(sizes)
            least = totals.ravel()
        found: list[tuple[float, int, tuple[int, ...]]] = []
        for group in np.argsort(least, kind="stable").tolist():
            if (len(found) == limit and least[group] > found[-1][0]) or least[group] == math.inf:
                break
            ranked: list[list[tuple[float, int]]] = []
            per_kernel = self._rows(joint, codes, np.unravel_index(group, shape))
            for rows, s, many in zip(per_kernel, seconds, limits, strict=True):
                order = rows[np.argsort(s[rows], kind="stable")][:many]
                ranked.append([(float(s[r]), int(r)) for r in order if np.isfinite(s[r])])
            found += [(total, group, rows) for total, rows in _best_sums(ranked, limit)]
            found.sort()
            del found[limit:]
        return found

    def best(self, model: CostModel, limit: int) -> tuple[Config, ...]:
        """The configurations of `points_ranked` alone."""
        return tuple(c for c, _ in self.points_ranked(model, limit))

    def varied(self, configs: Sequence[Config], model: CostModel, many: int = VARIED) -> tuple[Config, ...]:
        """The configurations, each of the first so many that have variants for studies followed by those.

        Nothing says yet what they gain: they come second, with the same estimate until they are compiled.
        """
        found: list[Config] = []
        for c in configs:
            made = variants(self.options, Offered.STUDY, c, model) if many > 0 else ()
            found += [c, *made]
            many -= bool(made)
        return tuple(found)

    def _joint(self) -> dict[str, tuple[int, ...]]:
        """The values, ascending, of each of the shared symbols."""
        joint = {**self.domains, **dict.fromkeys(self._columns, (0, 1))}
        return {n: joint[n] for n in self.shared}

    def _groups(self) -> Iterator[list[Ints]]:
        """For each assignment of the shared symbols: the feasible rows of every launch."""
        joint = self._joint()
        codes = [_codes(k, joint) for k in self.launches]
        for at in np.ndindex(*map(len, joint.values())):
            per_kernel = self._rows(joint, codes, at)
            if all(len(rows) for rows in per_kernel):
                yield per_kernel

    def _rows(
        self, joint: Mapping[str, tuple[int, ...]], codes: Sequence[Ints], at: Iterable[SupportsInt]
    ) -> list[Ints]:
        """The rows of every launch at one assignment of the shared symbols, said by the places of its values."""
        places = dict(zip(joint, map(int, at), strict=True))
        found: list[Ints] = []
        for k, code in zip(self.launches, codes, strict=True):
            mine = 0
            for n, place in places.items():
                mine = mine * len(joint[n]) + place if n in k.names else mine
            found.append(np.flatnonzero(code == mine))
        return found

    def _all(self) -> Iterator[Config]:
        for per_kernel in self._groups():
            for rows in itertools.product(*per_kernel):
                yield self.config(tuple(map(int, rows)))

    def config(self, rows: Sequence[int]) -> Config:
        """The configuration of one row of each launch's points."""
        symbols: dict[str, int] = {}
        warps: dict[str, int] = {}
        stages: dict[str, int] = {}
        options: dict[str, list[str]] = {}
        for name, k, r in zip(self._members, self.launches, rows, strict=True):
            row = dict(zip(k.names, k.points[r].tolist(), strict=True))
            symbols.update((n, v) for n, v in row.items() if n in self._symbols)
            chosen = [o for o in self.options if o.chosen(name, row)]
            for o in chosen:
                options.setdefault(o.name, []).append(name)
            if self.device.is_gpu and not any(o.replaces for o in chosen):
                warps[name], stages[name] = row["warps"], row["stages"]
        config = Config(symbols, warps, stages).having(**options)
        for o in self.options:
            config = o.bound(config)
        return config

    def _launch_space(self, name: str) -> PointSpace:
        """The points of a launch: of a lone kernel all of its."""
        members = self._members[name]
        if len(members) == 1:
            return members[0]
        by_name = {k.name: k for k in self.sgraph.kernels}
        (launch,) = (x for x in self.sgraph.launches if x.name == name)
        model: type[KernelModel | CpuKernelModel] = KernelModel if self.device.is_gpu else CpuKernelModel
        models = [model(by_name[k.name], self.sgraph, self.device, self.hints) for k in launch.kernels]
        return natural_join(members, models, self.shared)


def _kernel_space(
    f: Footprint, warps: tuple[int, ...], stages: tuple[int, ...], device: Device, hints: Mapping[str, int], most: int
) -> PointSpace:
    ranges = domains(f, hints, device.tiles)
    names = (*(d.symbol for d in ranges), "warps", "stages")
    values = _thinned([*(d.values for d in ranges), warps, stages], most)
    grid = np.meshgrid(*(np.array(v, dtype=np.int64) for v in values), indexing="ij")
    columns = [g.ravel() for g in grid]
    binding: dict[str, Any] = {**hints, **dict(zip(names[:-2], columns, strict=False))}
    mask = np.ones(len(columns[0]), dtype=bool)
    for _, ok in checks(f, device, binding, columns[-1], columns[-2]):
        mask &= ok
    return PointSpace(names, tuple(values), np.stack(columns, axis=1)[mask])


def _thinned(values: list[tuple[int, ...]], most: int) -> list[tuple[int, ...]]:
    """The domains, the longest first cut to every other value until their product is small enough."""
    found = list(values)
    while math.prod(len(v) for v in found) > most:
        longest = max(range(len(found)), key=lambda n: len(found[n]))
        found[longest] = found[longest][::-1][::2][::-1]
    return found


def _codes(k: PointSpace, joint: Mapping[str, tuple[int, ...]]) -> Ints:
    """Of each point which assignment it is of what its launch shares, counted in the order of these; -1 for none."""
    code = np.zeros(len(k.points), dtype=np.int64)
    there = np.ones(len(k.points), dtype=bool)
    for n, values in joint.items():
        if n in k.names:
            known, column = np.array(values, dtype=np.int64), k.column(n)
            place = np.searchsorted(known, column).clip(max=len(known) - 1)
            there &= known[place] == column
            code = code * len(known) + place
    return np.where(there, code, -1)


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


# Warps and pipeline stages: what every launch has that runs a kernel of prism's, where the device has such options.

WARPS = (1, 2, 4, 8)
STAGES = (1, 2, 3, 4)
PLAIN_STAGES = (1, 3)
"""Without a matrix product in the loop, pipelining is on or off."""


def warps_of(device: Device) -> tuple[int, ...]:
    """Warps that a kernel may have."""
    return WARPS if device.is_gpu else (1,)


def stages_of(f: Footprint, device: Device) -> tuple[int, ...]:
    """Pipeline stages that a kernel may have."""
    loops = any(isinstance(s, Loop) for s in f.kernel.body)
    return (STAGES if f.staged else PLAIN_STAGES if loops else (1,)) if device.is_gpu else (1,)
