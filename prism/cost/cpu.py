"""A roofline of CPUs: seconds of an sGraph under a configuration, estimated; it orders and seeds what is then timed.

For each launch, in seconds:

    memory    bytes of what the last-level cache does not hold over the memory's bandwidth, and all bytes that loads ask
              for over that of the caches; in a loop over calls, inputs stay cached if all tensors together do
    compute   multiply-adds of the vector units with what a product's panels are padded by, packing its operands,
              pointwise work, and a little for every statement of every program: a tile too small is all overhead
    launch    the parallel region

Programs are dealt to the cores, and the busiest core counts. Tiles that are live together and outgrow L1 or L2 cost
their traffic. Numbers and numpy arrays take the same path.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prism.cost.compiled_expr import value
from prism.cost.constraints import elements, footprint, least_elements, live_elements, tile_sizes
from prism.cost.counts import kernel_cost
from prism.cost.device import Device
from prism.cost.gpu import Times
from prism.cost.model import Estimate, KernelEstimate, by_call, kernel_estimate, sum_estimates
from prism.cost.roofline import dealt, memory
from prism.program.index import Axis
from prism.program.nodes import DType
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import Contract, Grid, Kernel, Load, LoopRole, Pointwise, SGraph, Store, Whole
from prism.sgraph.ranges import ordered
from prism.sgraph.resident import in_one_launch

PACKED_SHARE, UNPACKED_SHARE = 0.9, 0.6
"""What products reach of the vector units' peak whose factors are packed into panels, and of few rows, whose second
factor streams through as it is stored: shares (measured, with 512-bit vectors)."""
PACKING = 10.0
"""Multiply-adds in the time that packing an element of the second factor takes (measured, with 512-bit vectors)."""
POINTWISE_SHARE = 0.35
"""The same of pointwise chains with their conversions (guess)."""
STREAM_SHARE = 0.85
"""What a stream reaches of the bandwidths, a share (guess)."""
STATEMENT_S = 8e-9
"""A statement of a tile program, its loop and its masks, seconds (guess)."""
SHARED_ADD_S = 5e-9
"""An addition at a place where other programs may add, too, seconds of a core (measured on one thread: 64,000 took
0.33 ms in 512 KiB)."""
CACHE_PART = 0.6
"""The share of a cache that a launch's data may take to stay there (guess)."""
LINE = 64
"""A line of cache, bytes (data sheet)."""
RESTART = 128
"""Bytes that the hardware wastes wherever a stream starts anew (guess)."""
MOST_AGAIN = 4.0
"""How often the same bytes come from memory at most, as neighbours find the rest in the last-level cache (guess)."""
PANEL_ROWS = {16: 8, 8: 6}
"""Rows of a product that are computed together, by the lanes of a vector; of others 4. The second factor's panels have
two vectors of columns (by definition: `csrc/product.hpp` has them so)."""
UNPACKED_ROWS, FULL_ROWS = 32, 8
"""Rows up to which the second factor streams through, and from which loads no longer bound that (guess)."""
FLOAT32_PARTS, FLOAT16_PARTS = 3, 2
"""bfloat16 values that a value is the sum of where tiles multiply those (by definition: 24 and 11 bits by 8 each).
Packing each of them takes as long as packing an element (measured), half as much again for the second factor's."""
WINDOW_SHARE, WINDOW_NARROW_SHARE, WINDOW_DEPTH = 0.8, 0.45, 16
"""What products over windows reach of the vector units' peak, a share, and with fewer terms than so many at each tap
(measured, with 512-bit vectors)."""
PAIRED_ROWS = 9
"""Rows from which bfloat16 operands are packed in pairs, where an instruction multiplies pairs (measured)."""


def shared_work(device: Device, additions: Any) -> Any:
    """Multiply-adds in the time of so many additions where other programs may add; none on a GPU, whose L2 adds."""
    return 0.0 if device.is_gpu else additions * SHARED_ADD_S * device.multiply_adds_s / device.processors


class CpuKernelModel:
    """One kernel's facts, gathered once, and its times under any assignment.

    `hints` has a value for every symbol of the extents.
    """

    def __init__(
        self, kernel: Kernel, sgraph: SGraph, device: Device, hints: Mapping[str, int], kept: _Kept | None = None
    ) -> None:
        self.kernel = kernel
        self.device = device
        self.hints = dict(hints)
        self.cost = kernel_cost(kernel, sgraph)
        self.footprint = footprint(kernel, sgraph)
        self.statements = sum(1 for _ in kernel.statements())
        self.tensors = sgraph.tensors
        stores = (s for s in kernel.statements() if isinstance(s, Store) and s.index)
        self.stored_along = frozenset(a for s in stores for a in s.index[-1].axes())
        self.kept = kept or _kept(sgraph, device, hints)
        self._loops = tuple(a for a, role in kernel.roles if isinstance(role, LoopRole))
        self.taps = self._taps()

    def _taps(self) -> Mapping[Axis, Axis]:
        """By axis of a loop, or summed axis, whose elements are taps of a window: the axis of its pixels.

        None where a product's factor is more than loaded, or its terms are cut: the tile program's backend makes no
        window of it.
        """
        values = {s.dst: s for s in self.kernel.statements() if isinstance(s, Load | Pointwise)}

        def is_loaded(name: str) -> bool:
            s = values.get(name)
            if isinstance(s, Pointwise) and s.op == "where" and isinstance(s.args[1], str):
                return is_loaded(s.args[1])
            return isinstance(s, Load)

        products = [s for s in self.kernel.statements() if isinstance(s, Contract)]
        if not self.cost.dots or not all(is_loaded(n) for s in products for n in (s.lhs, s.rhs)):
            return {}
        summed = {*self._loops, *(d.depth for d in self.cost.dots)}
        pixels = {a for d in self.cost.dots for a in (*d.rows, *d.columns)} - summed
        places = (i.axes() for x in self.cost.accesses if not x.store for i in x.index)
        found = {a: p for axes in places for a in axes for p in axes if a in summed and p in pixels}
        # A loop over tiles of what is summed at each tap is none over taps, and its products are made one by one.
        return {} if any(d.depth in self._loops and d.depth not in found for d in self.cost.dots) else found

    def seconds(self, binding: Mapping[str, Any], warps: Any, stages: Any) -> Any:
        """Seconds of a launch of it alone; warps and stages are a GPU's and do not count."""
        return cpu_times((self,), binding).total(self.device.launch_overhead_s)

    def share(self, binding: Mapping[str, Any], warps: Any, stages: Any) -> Any:
        """Seconds that it adds to a launch that keeps all cores busy."""
        return cpu_times((self,), binding).total(0.0)

    def parts(self, env: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Programs, seconds of work on one core, and bytes: all, those that no cache holds, the distinct of these."""
        d = self.device
        tiles = tile_sizes(self.kernel, env)
        # Loops end where their axes do: nothing is computed beyond, as it is on a GPU.
        sizes = {a: np.minimum(size, value(a.extent, env)) for a, size in tiles.items()}
        programs = self.cost.programs.evaluate(env) * 1.0
        trips = self.cost.loop_trips.evaluate(env) * 1.0
        rate = d.multiply_adds_s / d.processors
        pointwise = self.cost.flops.evaluate(env) * 1.0
        again: Any = 1.0
        if self.taps:
            # All taps are one product, which sums them and knows what is outside; what it sees is read once.
            pointwise = pointwise - self.cost.looped_flops.evaluate(env)
            again, trips = self._trips(env), 0.0
        work = self._products(tiles, sizes, env) / rate + pointwise / (rate * POINTWISE_SHARE)
        live = live_elements(self.footprint, sizes) * 4.0
        # What is kept between the nests of a program is written and read again, from the cache that holds the tiles.
        spread = np.where(live > d.core.l1_bytes, 1.0 * pointwise / d.core.l2_bandwidth_bytes_s, 0.0)
        overhead = programs * (1 + trips) * self.statements * STATEMENT_S
        moved: Any = 0.0
        uncached: Any = 0.0
        distinct: dict[str, Any] = {}
        work = work + self.cost.shared_additions.evaluate(env) * SHARED_ADD_S
        for a, run in zip(self.cost.accesses, self._runs(sizes, env), strict=True):
            # Of a short run, the rest of its line comes along; where runs are short, the prefetcher starts anew.
            wasted = np.maximum(LINE / run, 1.0) + RESTART / run
            traffic = a.traffic.evaluate(env) * a.distinct(tiles, env) * wasted
            if not a.store and self._moves(a.index):
                traffic = traffic / again
            moved = moved + traffic
            if a.tensor in self.kept.cached:
                continue
            uncached = uncached + traffic
            once = np.minimum(np.minimum(a.own.evaluate(env) * 1.0, self.kept.whole[a.tensor]) * wasted, traffic)
            distinct[a.tensor] = np.maximum(distinct.get(a.tensor, 0.0), once)
        return programs, work + spread + overhead, moved, uncached, sum(distinct.values())

    def skew(self, env: Mapping[str, Any]) -> Any:
        """How many times what the average program does the longest one does, by its loop trips and its tile's size."""
        trips = self.cost.loop_trips.evaluate(env) * 1.0
        longest = self.cost.longest_trips.evaluate(env) * 1.0
        grid = (a for a, role in self.kernel.roles if isinstance(role, Grid))
        return np.where(trips > 0, longest / np.where(trips > 0, trips, 1.0), 1.0) / self._filled(
            grid, tile_sizes(self.kernel, env), env
        )

    @staticmethod
    def _filled(axes: Iterable[Axis], tiles: Mapping[Axis, Any], env: Mapping[str, Any]) -> Any:
        """The average tile's elements as a share of a whole one's: the last along an axis may be of fewer."""
        share: Any = 1.0
        for a in axes:
            extent = value(a.extent, env)
            share = share * (extent / (np.ceil(extent / tiles[a]) * np.minimum(tiles[a], extent)))
        return share

    def _runs(self, sizes: Mapping[Axis, Any], env: Mapping[str, Any]) -> list[Any]:
        """For each load and store, the bytes that it touches in a row: along its last index, or more where that is all.

        A tile that covers the whole of its last dimensions is one run over them.
        """
        if self.taps:  # the weights of taps that lie side by side are read together
            sizes = {**sizes, **{a: value(a.extent, env) for a in self._loops}}
        found: list[Any] = []
        for a in self.cost.accesses:
            declared = self.tensors[a.tensor]
            run: Any = declared.dtype.bytes * 1.0
            covered: Any = True
            beside = a.beside  # of the last dimension alone
            for index, extent in zip(reversed(a.index), reversed(declared.shape), strict=True):
                inside: Any = math.prod((sizes.get(axis, 1) * 1.0 for axis in index.axes()), start=1.0 * beside)
                beside = 1
                length = value(extent, env)
                run = run * np.where(covered, np.minimum(inside, length), 1.0)
                covered = np.logical_and(covered, inside >= length)
            found.append(run)
        return found

    def _products(self, tiles: Mapping[Axis, Any], sizes: Mapping[Axis, Any], env: Mapping[str, Any]) -> Any:
        """The matrix products' multiply-adds, with what is padded, packed and waited for, as if at the peak rate.

        `tiles` are the lengths of all axes in a tile; `sizes` the same, where the tile is longer than its axis that of
        the axis.
        """
        lanes = self.device.core.lanes
        panel_rows, panel_columns = PANEL_ROWS.get(lanes, 4), 2 * lanes
        filled = self._filled((a for a, role in self.kernel.roles if not isinstance(role, Whole)), tiles, env)
        total: Any = 0.0
        for dot in self.cost.dots:
            sides = (dot.rows, dot.columns)
            # The columns are those of the side along which results are stored.
            across = self.stored_along.isdisjoint(dot.columns) and not self.stored_along.isdisjoint(dot.rows)
            rows, columns = (elements(side, sizes) * 1.0 for side in (reversed(sides) if across else sides))
            depth = sizes[dot.depth] * 1.0
            padded = elements((*dot.rows, *dot.columns), tiles) * 1.0 * tiles[dot.depth]
            calls = dot.flops.evaluate(env) / (2.0 * padded) * filled
            if self.taps:
                pixels, weights = sides if not set(dot.rows).isdisjoint(self.taps.values()) else sides[::-1]
                total = total + calls / self._trips(env) * self._window(pixels, weights, dot.depth, sizes, env)
                continue
            speed = self.device.core.int8_speed if dot.of_bytes else self.kept.speed
            paired = np.logical_and(speed > 1.0, dot.of_bytes or rows >= PAIRED_ROWS)
            full, wide = _padded(rows, panel_rows), _padded(columns, panel_columns)
            packing = PACKING * np.where(paired, full + wide, wide) * depth
            packed = full * wide * depth / (PACKED_SHARE * np.where(paired, speed, 1.0)) + packing
            if self.device.core.parts_speed > 1.0 and self.kept.parts and not dot.of_bytes:
                faster = self.device.core.parts_speed * FLOAT32_PARTS / self.kept.parts
                apart = PACKING * self.kept.parts * (full + 1.5 * wide) * depth
                packed = np.minimum(packed, full * wide * depth / (PACKED_SHARE * faster) + apart)
            reached = UNPACKED_SHARE * np.minimum(1.0, rows / FULL_ROWS)
            unpacked = rows * _padded(columns, lanes) * depth / reached
            total = total + calls * np.where(np.logical_or(paired, rows > UNPACKED_ROWS), packed, unpacked)
        return total

    def _trips(self, env: Mapping[str, Any]) -> Any:
        """How often the loops over taps, and over what is summed beside them, go around."""
        return math.prod((value(a.extent, env) * 1.0 for a in self._loops), start=1.0)

    def _window(
        self,
        pixels: Iterable[Axis],
        weights: Sequence[Axis],
        depth: Axis,
        sizes: Mapping[Axis, Any],
        env: Mapping[str, Any],
    ) -> Any:
        """Multiply-adds of a product over a window, with copying what it sees and what is padded.

        All pixels are one row of places, with the borders between: `prism.backends.cpu.windows`.
        """
        more = {p: value(a.extent, env) - 1.0 for a, p in self.taps.items()}
        axes = list(pixels)
        seen = math.prod((sizes[a] + more.get(a, 0.0) for a in axes), start=1.0)
        places = math.prod((sizes[a] + (more.get(a, 0.0) if n else 0.0) for n, a in enumerate(axes)), start=1.0)
        rows = elements(weights, sizes) * 1.0
        taps = self._trips(env) * (sizes[depth] if depth in self.taps else 1.0)
        terms = 1.0 if depth in self.taps else sizes[depth] * 1.0
        lanes, share = self.device.core.lanes, np.where(terms < WINDOW_DEPTH, WINDOW_NARROW_SHARE, WINDOW_SHARE)
        copied = PACKING * terms * seen
        wide = _padded(places, 2 * lanes)
        vectors = _padded(rows, PANEL_ROWS.get(lanes, 4)) * wide * terms * taps / share + copied
        parts = self.kept.parts or 1
        faster = self.device.core.parts_speed * FLOAT32_PARTS / self.kept.parts if self.kept.parts else self.kept.speed
        if faster <= 1.0:
            return vectors
        tiled = _padded(rows, 2 * lanes) * wide * _padded(terms, 2 * lanes) * taps / (PACKED_SHARE * faster)
        whole = 2 * rows * terms >= _padded(rows, lanes) * _padded(terms, 2 * lanes)
        return np.where(whole, np.minimum(vectors, tiled + copied * (1 + parts)), vectors)

    def _moves(self, index: Sequence[Any]) -> bool:
        """Whether a place in memory is that of a pixel under a tap."""
        return any(a in self.taps and self.taps[a] in i.axes() for i in index for a in i.axes())


def _padded(n: Any, to: int) -> Any:
    return np.ceil(n / to) * to


def cpu_times(kernels: Sequence[CpuKernelModel], binding: Mapping[str, Any]) -> Times:
    """Seconds by cause of one launch of these kernels."""
    d = kernels[0].device
    env = {**kernels[0].hints, **binding}
    none: Any = 0.0
    programs = work = moved = uncached = distinct = none
    for k in kernels:
        p, w, m, s, o = k.parts(env)
        programs, work, moved, uncached, distinct = programs + p, work + w, moved + m, uncached + s, distinct + o
    active = np.minimum(programs, d.processors)
    skew = sum(k.cost.programs.evaluate(env) / programs * k.skew(env) for k in kernels)
    compute = work / programs * dealt(programs, d.processors, skew, all(ordered(k.kernel) for k in kernels))
    # One core alone draws no more than its own share of the memory's bandwidth.
    filled = active / d.processors
    # What is asked for again comes from memory again, unless the programs that run at the same time share it.
    again = np.minimum(np.maximum(distinct, uncached / np.maximum(active, 1.0)), MOST_AGAIN * distinct)
    traffic = memory(d, again, moved, STREAM_SHARE * filled, np.maximum)
    return Times(traffic, compute, 0.0 * traffic, 0.7, 0.0, np.ones_like(np.asarray(programs), dtype=bool), distinct)


@dataclass(frozen=True, slots=True)
class CpuLaunchModel:
    """The times of one launch under any assignment."""

    name: str  # of the launch
    kernels: Sequence[CpuKernelModel]  # what is launched

    def seconds(self, binding: Mapping[str, Any], warps: Any, stages: Any) -> Any:
        """Seconds of the launch; infinite nowhere."""
        return cpu_times(self.kernels, binding).total(self.kernels[0].device.launch_overhead_s)


class CpuModel:
    """The model of one sGraph on one CPU, for many configurations; a `CostModel`.

    `hints` has a value for every symbol of the extents.
    """

    def __init__(self, sgraph: SGraph, device: Device, hints: Mapping[str, int]) -> None:
        self.device = device
        sgraph = in_one_launch(sgraph)
        kept = _kept(sgraph, device, hints)
        self.kernels = tuple(CpuKernelModel(k, sgraph, device, hints, kept) for k in sgraph.kernels)
        left = iter(self.kernels)
        self.launches = tuple(CpuLaunchModel(x.name, [next(left) for _ in x.kernels]) for x in sgraph.launches)
        self._sgraph = sgraph
        self._hints = hints
        self._symbols = [sorted({s.name for k in x.kernels for s in k.kernel.symbols}) for x in self.launches]
        self._known: dict[tuple[int, ...], KernelEstimate] = {}

    def estimate(self, config: Config, resources: Sequence[Resources] | None = None) -> Estimate:
        """The estimate for one configuration; what the compiler says does not change it."""
        found = [self._launch(n, config) for n in range(len(self.launches))]
        return sum_estimates(by_call(found, self._sgraph, self._hints))

    def _launch(self, n: int, config: Config) -> KernelEstimate:
        """A launch's part, which many configurations have in common."""
        key = (n, *(config.symbols[s] for s in self._symbols[n]))
        if key not in self._known:
            launch = self.launches[n]
            times = cpu_times(launch.kernels, config.symbols)
            self._known[key] = kernel_estimate(launch.name, times, self.device.launch_overhead_s)
        return self._known[key]

    def seconds(self, config: Config, resources: Sequence[Resources] = ()) -> float:
        """The estimated seconds alone; an `Estimator`."""
        return self.estimate(config, resources).seconds


@dataclass(frozen=True, slots=True)
class _Kept:
    """What kernels of an sGraph find of its tensors in the caches."""

    whole: Mapping[str, Any]  # bytes of each tensor
    cached: frozenset[str]  # those that are still there when a kernel reads them
    speed: float  # of products, where operands may be packed as pairs of bfloat16; 1 where they may not
    parts: int  # bfloat16 values that an operand is the sum of; 0 where operands are packed as pairs


def _kept(sgraph: SGraph, device: Device, hints: Mapping[str, int]) -> _Kept:
    whole = {name: t.dtype.bytes * least_elements(t.shape, hints) for name, t in sgraph.tensors.items()}
    floats = {t.dtype for t in sgraph.inputs if t.dtype.is_float}
    room = CACHE_PART * device.cache_bytes
    given = {t.name for t in (*sgraph.inputs, *sgraph.outputs)}
    # A step's windows are part of what they are of.
    together = sum(whole.values()) - sum(whole[w.tensor.name] for r in sgraph.repeats for w in r.windows)
    # What a kernel leaves for the next one is still there, unless it is large itself.
    cached = frozenset(t for t, n in whole.items() if (together if t in given else 2 * n) <= room)
    pairs, halves = floats == {DType.BFLOAT16}, floats == {DType.FLOAT16}
    speed, parts = (device.core.bf16_speed, 0) if pairs else (1.0, FLOAT16_PARTS if halves else FLOAT32_PARTS)
    return _Kept(whole, cached, speed, parts)
