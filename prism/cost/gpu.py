"""Roofline and occupancy of one launch: see `model.py`, which adds launches up.

A launch of several kernels is one whose programs differ: work, traffic and programs add up, what they all load comes
from DRAM once if L2 keeps it, and as many programs fit on a multiprocessor as of the largest kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from prism.cost.compiled_expr import value
from prism.cost.constraints import (
    Footprint,
    elements,
    footprint,
    held_bytes,
    live_elements,
    operand_registers,
    staged_bytes,
    tile_sizes,
)
from prism.cost.counts import LINE_BYTES, SECTOR_BYTES, Access, Dot, KernelCost, Monomial, kernel_cost
from prism.cost.device import KIB, Device
from prism.cost.persistent import PERSISTENT
from prism.cost.pipelining import pipelined_loads
from prism.cost.roofline import dealt, memory
from prism.cost.shared_memory import BANKS_BYTES, DESCRIPTORS, described, shared_memory
from prism.cost.trips import trips
from prism.errors import BackendError
from prism.program.index import Axis
from prism.program.nodes import DType
from prism.sgraph.config import Config, Resources
from prism.sgraph.folding import FOLDED, Fold, folds
from prism.sgraph.nodes import Contract, Grid, Kernel, Loop, SGraph, Split, Whole, value_axes
from prism.sgraph.products import LIBRARY, Nominal, is_dot, join, nominal_types, operands_type
from prism.sgraph.ranges import SECTION, growing, ordered

# Part of a tensor that a load touches: its name, and the names of the axes that the index mentions.
_Region: TypeAlias = "tuple[str, tuple[str, ...]]"

DRAM_EFFICIENCY = 0.85
"""What well-tuned kernels reach of the data sheet's bandwidth of memory, a share (reported)."""
DOT_EFFICIENCY = 0.75
"""The same of the matrix units' rate (reported)."""
FULL_PRECISION_EFFICIENCY = 0.2
"""What products of float32 reach of the vector units' rate, their operands in shared memory (measured on an H200:
the best of eight configurations for 2048 x 512 by 512 x 384, with a norm, 72.6 us; torch.compile's library 35.8)."""
RANGED_EFFICIENCY = 0.88
"""What programs of unequal length, as under a causal mask, reach of the rates that equal ones do, tiles on the diagonal
counted whole: of cuDNN's attention 518 of 609 TFLOP/s on an H100, 4096 queries, heads of 128 (reported: published with
FlashAttention-3). With it the tutorial of Triton is within 11 % of its 353 there."""
VECTOR_EFFICIENCY = 0.6
"""The same of the vector units' (guess)."""
SM_BANDWIDTH_SHARE = 1.8
"""How many times its even share of the bandwidth one multiprocessor alone can draw (reported)."""
L2_SHARE = 0.5
"""The share of L2 that a tensor may take to stay there between two uses, as other data passes through (guess)."""
FULL_DOT_REUSE = 96.0
"""2MN/(M+N), the reuse of an operand of an MxN tile, at which matrix units run at full rate (guess)."""
FULL_VECTOR_REUSE = 32.0
"""The same where the vector units compute it: slower against shared memory, they tile in registers (guess)."""
PRODUCT_ROWS, PRODUCT_COLUMNS = 16, 8
"""Of a result, what a warp's instruction computes (data sheet): warps beyond so many compute the same again."""
DOT_WARPS = 4
"""Warps that keep the matrix units of a multiprocessor busy (data sheet: one each)."""
VECTOR_WARPS = 8
"""Warps that keep its vector units busy: two a scheduler, each with a tile's independent elements (guess)."""
FIRST_CACHE_BYTES = 28 * KIB
"""What a multiprocessor's first cache has beside the most shared memory (data sheet: 256 KiB in all)."""
LIBRARY_STAGES = 0
"""In tables of points, so many stages are no kernel of prism's but a call of the library (by definition)."""
BASE_REGISTERS = 32
"""Registers of a thread besides the tiles' values: addresses, masks, counters (guess)."""
ADD_CYCLES = 1.0
"""Cycles from one addition at a place in L2 to the next one there, at the multiprocessors' clock (guess)."""
ARRIVAL_TRIPS = 1.0
"""Trips to memory that a program makes to count itself in (guess).

Its stores have to be out, then the count comes back: both to L2, about half of a trip to DRAM each.
"""


SHARED_LOSS = 1.12
"""How many times as long a persistent launch takes that shares its multiprocessor with another program, which hides its
loads anyway (measured on an H200, with three and nine programs: 1.11 and 1.13)."""
BANDWIDTHS_MEET = 4.0
"""The time of both bandwidths is the root of the sum of so high powers of either's: near the larger, and 1.19 of it
where they are equal (measured there: products of a vector, and of 64 rows)."""
COPY_OVERLAP = 0.95
"""The share of what does not bound a persistent launch that runs beside what does, its copies being by descriptors: as
in a library. Triton's persistent products of 8192 x 8192 are published at 666 to 689 TFLOP/s (reported); with this they
are at 662 to 666."""


def transfer(device: Device, missed: Any, moved: Any, programs: Any, most: Callable[..., Any] = max) -> Any:
    """Seconds of a launch's traffic; `most` is `max`, or `np.maximum` for arrays.

    The cache's bandwidth is what is reached already: of it nothing is lost. A GPU's launches reach neither bandwidth in
    full where both are asked for. `missed` bytes reach memory, `moved` bytes L2. Few programs draw a part of the
    bandwidths only. `most` is `max`, or `np.maximum` for arrays.
    """
    least: Callable[..., Any] = min if most is max else np.minimum
    drawn = least(1.0, SM_BANDWIDTH_SHARE * least(programs, device.processors) / device.processors)
    if not device.is_gpu:
        return memory(device, missed / DRAM_EFFICIENCY, moved, drawn, most)
    slow = missed / (DRAM_EFFICIENCY * device.bandwidth_bytes_s)
    fast = moved / device.cache_bandwidth_bytes_s
    return (slow**BANDWIDTHS_MEET + fast**BANDWIDTHS_MEET) ** (1 / BANDWIDTHS_MEET) / drawn


def overlapped(trips: Any) -> Any:
    """The share of what does not bound a launch that runs beside what does, by a multiprocessor's trips at a time.

    One that does nothing else has half of it exposed (guess).
    """
    return 1 - 1 / (trips + 1)


def folding(combine: str) -> str:
    """What a table of points calls whether a second stage is folded into its split, 1 or 0."""
    return f"folded.{combine}"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds by cause, as floats or arrays."""

    memory: Any
    compute: Any
    latency: Any
    overlap: Any
    spill: Any
    fits: Any
    bytes: Any

    def total(self, launch: float) -> Any:
        """Seconds in all; infinite where no block fits. `launch` is what a launch takes anyway."""
        parts = (self.memory, self.compute, self.latency)
        bound = np.maximum(np.maximum(parts[0], parts[1]), parts[2])
        exposed = (parts[0] + parts[1] + parts[2] - bound) * (1.0 - self.overlap)
        return np.where(self.fits, bound + exposed + self.spill + launch, np.inf)


@dataclass(frozen=True, slots=True)
class _Part:
    """What one kernel is for the multiprocessors, by itself: numbers or arrays."""

    sizes: Mapping[Axis, Any]  # the length of every axis in a tile
    resident: Any  # how many of its programs fit on a multiprocessor
    fits: Any  # whether one does
    programs: Any  # how many there are
    useful: Any  # warps that have elements of their own
    dot_seconds: Any  # of its matrix work on all multiprocessors, were they busy
    vector_seconds: Any  # of its pointwise work likewise
    shared_seconds: Any  # of reading shared memory in two layouts likewise
    barrier_seconds: Any  # of barriers likewise, one program at a time
    chain: Any  # how often a program waits for memory, one trip after another; on average, where loops have ranges
    longest_chain: Any  # how often the longest one does
    skew: Any  # how many times the average program's work the longest one has
    ordered: bool  # whether the longest come first, where they differ
    hidden: Any  # trips that pipelining overlaps
    spill: Any  # seconds of spilled values' traffic

    def compute(self, active: Any) -> Any:
        """Seconds of its work on all multiprocessors, with so many programs at a time on each.

        Groups of warps that have nothing to do with each other keep different units busy: while one multiplies, another
        takes exponentials. What is not the busiest unit's work is left over only where all groups are at it.
        """
        dots = self.dot_seconds / np.minimum(1.0, active * self.useful / DOT_WARPS)
        vectors = self.vector_seconds / np.minimum(1.0, active * self.useful / VECTOR_WARPS)
        longest = np.maximum(np.maximum(dots, vectors), self.shared_seconds)
        groups = active * np.maximum(self.useful / DOT_WARPS, 1.0)
        beside = dots + vectors + self.shared_seconds - longest + self.barrier_seconds
        return longest + beside / groups


@dataclass(slots=True)
class _Seen:
    """What a launch has loaded."""

    at_once: Any = True  # whether all of its programs run at a time
    # With how much each was of its tensor that none before had, by part of a tensor.
    loads: dict[_Region, list[tuple[Access, Any]]] = field(default_factory=dict)
    bytes: Any = 0.0  # that came from DRAM
    # Whether the last kernel to load a part loads each of its elements once.
    streamed: dict[_Region, Any] = field(default_factory=dict)


class KernelModel:
    """One kernel's facts, gathered once, and its times under any assignment.

    `hints` has a value for every symbol of the extents; `nominal` are its values' nominal types, where they are known
    already.
    """

    def __init__(
        self,
        kernel: Kernel,
        sgraph: SGraph,
        device: Device,
        hints: Mapping[str, int],
        nominal: Nominal | None = None,
    ) -> None:
        self.kernel = kernel
        self.device = device
        self.hints = dict(hints)
        self.cost: KernelCost = kernel_cost(kernel, sgraph)
        self.footprint: Footprint = footprint(kernel, sgraph)
        self.pipelined = pipelined_loads(self.footprint)
        self.shared_memory = shared_memory(self.footprint)
        self.trips = trips(self.footprint)
        self.dtype = _dot_dtype(kernel, nominal or nominal_types(sgraph)[kernel.name])
        self.tensors = sgraph.tensors
        self.handed_over = sgraph.handed_over
        # Programs are numbered with the last grid axis fastest; a split's parts are last.
        self.grid: list[tuple[Axis, Any]] = [(a, r) for a, r in kernel.roles if isinstance(r, Grid)]
        self.splits: list[tuple[Axis, Split]] = [(a, r) for a, r in kernel.roles if isinstance(r, Split)]
        self.growing = growing(kernel)
        self.ranged = any(isinstance(s, Loop) and s.skips for s in kernel.statements())

    def seconds(self, binding: Mapping[str, Any], warps: Any, stages: Any, resources: Resources | None = None) -> Any:
        """Seconds of a launch; infinite where no block fits on a multiprocessor.

        The binding's values, warps and stages are numbers or integer arrays; `resources` are what the compiler said,
        for a single assignment.
        """
        return self.times(binding, warps, stages, resources).total(self.device.launch_overhead_s)

    def times(self, binding: Mapping[str, Any], warps: Any, stages: Any, resources: Resources | None = None) -> Times:
        """Seconds by cause; see `seconds`. Where the device has descriptors, tiles that want them are loaded so."""
        return _times((self,), binding, warps, stages, resources, by_descriptors=self.device.descriptors)

    def share(self, binding: Mapping[str, Any], warps: Any, stages: Any) -> Any:
        """Seconds that it adds to a launch that keeps all multiprocessors busy; infinite where no block fits."""
        env = {**self.hints, **binding}
        p = self.part(env, warps, stages, None, self.device.descriptors)
        dram, moved = self.traffic(env, p.sizes, p.resident, _Seen())
        busy = transfer(self.device, dram, moved, self.device.processors, np.maximum)
        seconds = np.maximum(busy, p.compute(p.resident)) + p.spill
        return np.where(p.fits, seconds, np.inf)

    def part(
        self,
        env: Mapping[str, Any],
        warps: Any,
        stages: Any,
        resources: Resources | None,
        by_descriptors: Any = False,
    ) -> _Part:
        """Its share of a launch; `env` also binds the symbols of the extents."""
        d, m = self.device, self.device.multiprocessor
        sizes = tile_sizes(self.kernel, env)
        live = live_elements(self.footprint, sizes)
        if self.footprint.full_precision:
            # Both operands of a product outside the matrix units are in registers while it runs.
            held: Any = 0.0
            for dims in self.footprint.dots:
                held = np.maximum(held, np.sqrt(operand_registers(*dims, sizes, warps * 32)))
            live = live + held * warps * 32
        shared: Any = staged_bytes(self.footprint, sizes) * stages + self.pipelined.buffer_bytes(sizes, stages)
        shared = shared + held_bytes(self.footprint, sizes, d)
        registers = live / (warps * 32) + BASE_REGISTERS
        # Every value over the limit is stored once and loaded once, four bytes each.
        spills = np.maximum(registers - m.registers_per_thread, 0) * 8
        if resources is not None:
            shared = resources.shared
            registers = resources.registers or registers
            spills = resources.spills
        registers = np.minimum(registers, m.registers_per_thread)
        resident = np.minimum(m.registers / (registers * 32 * warps), m.warps / warps)
        resident = np.minimum(resident, m.shared_bytes / np.maximum(shared + 1024, 1))
        resident = np.floor(np.minimum(resident, m.blocks))
        fits = (resident >= 1) & (shared <= d.shared_limit_bytes)
        programs = self.cost.programs.evaluate(env) * 1.0
        # Warps without elements of their own do not help.
        useful = np.minimum(warps, np.maximum(1, live / (2 * 32)))
        reached = RANGED_EFFICIENCY if self.ranged else 1.0
        efficiency = FULL_PRECISION_EFFICIENCY if self.dtype is DType.FLOAT32 else DOT_EFFICIENCY
        dot_rate = d.dot_flops(self.dtype) * efficiency * reached
        dot_seconds: Any = 0.0
        for dot in self.cost.dots:
            dot_seconds = dot_seconds + dot.flops.evaluate(env) / (dot_rate * self._utilisation(dot, sizes, warps))
        work = self.cost.padded_flops.evaluate(env) - self.cost.idle_selections.evaluate(env)
        work = work - sum(m.evaluate(env) for m in self.added_in_place)
        # Once outside of loops, then loop by loop.
        each = [1.0, *(m.evaluate(env) * 1.0 for m in self.cost.loop_trips.terms)]
        each_longest = [1.0, *(m.evaluate(env) * 1.0 for m in self.cost.longest_trips.terms)]
        trips, longest = sum(each[1:]), sum(each_longest[1:])
        results: Any = 0.0
        longest_results: Any = 0.0
        for own, n, most in zip(self.trips, each, each_longest, strict=True):
            work = work + own.conversions(sizes) * n * programs
            waited = own.waited_cycles(sizes) / (m.hertz * d.memory_latency_s)
            results, longest_results = results + waited * n, longest_results + waited * most
        overlapping = stages if self.footprint.staged else stages - 1
        hidden = self.pipelined.hidden(sizes, warps, overlapping)
        waiting = self.pipelined.waiting(sizes, warps, overlapping, env)
        shared_seconds, barrier_seconds = self.shared_memory.seconds(
            d, sizes, warps, programs * trips / d.processors, by_descriptors
        )
        # A multiprocessor's own cache has what is little, or L2 a share for each.
        spilled = spills * 32 * warps
        rate = np.where(spilled <= FIRST_CACHE_BYTES, BANKS_BYTES * m.hertz, d.cache_bandwidth_bytes_s / d.processors)
        return _Part(
            sizes=sizes,
            resident=np.maximum(resident, 1),
            fits=fits,
            programs=programs,
            useful=useful,
            dot_seconds=dot_seconds,
            vector_seconds=work / (d.multiply_adds_s * VECTOR_EFFICIENCY * reached),
            shared_seconds=shared_seconds,
            barrier_seconds=barrier_seconds,
            chain=2 + trips * waiting + results,
            longest_chain=2 + longest * waiting + longest_results,
            skew=np.where(trips > 0, longest / np.where(trips > 0, trips, 1.0), 1.0),
            ordered=ordered(self.kernel),
            hidden=hidden,
            spill=spilled * np.ceil(programs / d.processors) * np.maximum(trips, 1) / rate,
        )

    @property
    def added_in_place(self) -> list[Monomial]:
        """The multiply-adds of its pointwise work that matrix units do as they multiply, into the accumulator."""
        if not self.dtype.is_half:
            return []
        return [m for product, m in self.cost.padded_additions.items() if product in self.footprint.in_place]

    def traffic(self, env: Mapping[str, Any], sizes: Mapping[Axis, Any], resident: Any, seen: _Seen) -> tuple[Any, Any]:
        """Bytes that reach DRAM, and bytes that reach L2.

        `sizes` are the lengths of all axes in a tile, `resident` the programs on a multiprocessor. `seen` is what the
        launch has loaded already; what this kernel loads is added.
        """
        gone = seen.bytes
        streamed: dict[_Region, Any] = {}
        d = self.device
        order = [(axis, -(-value(axis.extent, env) // sizes[axis])) for axis, _ in self.grid]
        order += [(axis, env[role.parts.name]) for axis, role in self.splits]
        programs: Any = math.prod((n for _, n in order), start=1.0)
        wave = np.minimum(programs, d.processors * resident)
        covered = self._covered(order, wave)
        at_once: dict[Axis, Any] = {axis: True for axis, role in self.kernel.roles if isinstance(role, Whole)}
        at_once = at_once | {axis: n >= dict(order)[axis] for axis, n in covered}
        dram: Any = 0.0
        moved: Any = 0.0
        loaded: list[Access] = []
        trip, trips = self._reached(env, sizes, dict(covered))
        for a in self.cost.accesses:
            traffic = a.traffic.evaluate(env) * 1.0
            # Of windows that overlap in a tile the multiprocessor's own cache has what comes again.
            unit = LINE_BYTES if a.store and not a.adds else SECTOR_BYTES
            moved = moved + traffic * a.distinct(sizes, env) * a.sectors(sizes, env, unit)
            key = (a.tensor, tuple(sorted(x.name for x in a.axes)))
            once = np.minimum(a.own.evaluate(env) * 1.0, self._whole(a, env))
            if a.store:
                # What is added to stays in L2 until the last addition, where there is room.
                stays = np.logical_and(a.adds, once <= L2_SHARE * d.cache_bytes)
                dram = dram + np.where(stays, once, traffic)
                continue
            # Programs that run together read a tile from DRAM once.
            distinct: Any = 1.0
            for axis, places in covered:
                if axis in a.axes:
                    distinct = distinct * places
            held: Any = self.tensors[a.tensor].dtype.bytes * 1.0
            for axis in a.axes:
                held = held * trips.get(axis, 1)
            overlapping = a.distinct(trips, env)
            kept = held * overlapping <= L2_SHARE * d.cache_bytes
            overlapping = np.where(kept, overlapping, a.distinct(trip, env))
            by_waves = traffic * overlapping * distinct / wave
            from_dram = np.where(once <= L2_SHARE * d.cache_bytes, once, np.maximum(once, by_waves))
            from_dram = np.minimum(from_dram, traffic)
            if a.tensor in self.handed_over:
                # An earlier launch has just stored it.
                from_dram = np.where(once <= L2_SHARE * d.cache_bytes, 0.0, from_dram)
            # What several loads of one launch read comes from DRAM once if it stays in L2, also under other names of
            # axes: other parts of a tensor, as the halves of a row, do not, as far as there are any.
            previous = seen.loads.setdefault(key, [])
            here = any(a.renames(b) for b in loaded)
            before = bool(previous) or here
            # Programs of another kernel come when all before have read what they do; what those read again stays.
            passed = np.logical_and(not here, seen.streamed.get(key, False))
            kept = np.where(np.logical_and(passed, np.logical_not(seen.at_once)), np.maximum(once, gone), once)
            again: Any = np.where(kept <= L2_SHARE * d.cache_bytes, 0.0, 1.0) if before else 1.0
            # What is a constant away is loaded by the same trip, of programs that run together if they have all places.
            for axes in (a.shifted(b) for b in loaded):
                together: Any = axes is not None
                for axis in axes or ():
                    together = np.logical_and(together, at_once.get(axis, False))
                again = np.where(together, 0.0, again)
            fresh: Any = 0.0 if before else once
            if previous:
                left = self._whole(a, env) - sum(own for _, own in previous)
                fresh = min(a.apart(b, env) for b, _ in previous) * once
                fresh = np.minimum(fresh, np.maximum(left, 0.0))
            # Nor is what another load of the trip has, as that of a window around it.
            for beyond in (a.beyond(b, trip, at_once, env) for b in loaded):
                again, fresh = np.minimum(again, beyond), np.minimum(fresh, beyond * once)
            loaded.append(a)
            previous.append((a, fresh))
            streamed[key] = np.logical_and(streamed.get(key, True), traffic < 2 * once)
            read = np.maximum(from_dram * again, np.minimum(from_dram, fresh))
            seen.bytes, dram = seen.bytes + read, dram + read
        seen.streamed |= streamed
        return dram, moved

    def queue(self, env: Mapping[str, Any]) -> Any:
        """Seconds of additions that wait for others at the same place, were all places met as often."""
        longest: Any = 0.0
        for a in self.cost.accesses:
            if a.adds and a.store:
                each = a.terms.evaluate(env) * a.element / self._whole(a, env)
                longest = np.maximum(longest, each * ADD_CYCLES / self.device.multiprocessor.hertz)
        return longest

    def _covered(self, order: Sequence[tuple[Axis, Any]], wave: Any) -> list[tuple[Axis, Any]]:
        """How many places along each axis the first programs have, the last axis fastest but for sections."""
        # A section's other places change first, then the axis that it counts down.
        down = [(axis, n) for axis, n in order if axis in self.growing][:1]
        left: Any = np.minimum(wave, np.ceil(SECTION / down[0][1])) if down else wave
        taken: Any = 1.0
        found: list[tuple[Axis, Any]] = []
        for axis, n in reversed([x for x in order if not down or x[0] != down[0][0]]):
            covered = np.minimum(left, n)
            left = np.ceil(left / covered)
            taken = taken * covered
            found.append((axis, covered))
        return found + [(axis, np.minimum(n, np.ceil(wave / taken))) for axis, n in down]

    def _reached(
        self, env: Mapping[str, Any], sizes: Mapping[Axis, Any], covered: Mapping[Axis, Any]
    ) -> tuple[dict[Axis, Any], dict[Axis, Any]]:
        """How many places of each axis the programs that run together have: in one trip, and over all trips."""
        trip: dict[Axis, Any] = {}
        trips: dict[Axis, Any] = {}
        for axis, role in self.kernel.roles:
            extent = value(axis.extent, env)
            trip[axis] = np.minimum(extent, sizes[axis] * (covered[axis] if isinstance(role, Grid) else 1))
            trips[axis] = trip[axis] if isinstance(role, Grid) else extent
        return trip, trips

    def _whole(self, a: Access, env: Mapping[str, Any]) -> Any:
        """Bytes of the tensor that a load reads."""
        whole: Any = self.tensors[a.tensor].dtype.bytes * 1.0
        for extent in self.tensors[a.tensor].shape:
            whole = whole * value(extent, env)
        return whole

    def _utilisation(self, dot: Dot, sizes: Mapping[Axis, Any], warps: Any) -> Any:
        """The part of the matrix units' rate that a product of these tiles reaches."""
        rows, columns, depth = (elements(side, sizes) for side in (dot.rows, dot.columns, (dot.depth,)))
        apart = np.maximum(rows / PRODUCT_ROWS, 1.0) * np.maximum(columns / PRODUCT_COLUMNS, 1.0)
        # Below the units' own sizes lanes idle.
        idle = (rows / np.maximum(rows, 16)) * (columns / np.maximum(columns, 8)) * (depth / np.maximum(depth, 16))
        rows, columns = np.maximum(rows, 16), np.maximum(columns, 16)
        reuse = 2 * rows * columns / (rows + columns)
        enough = FULL_VECTOR_REUSE if self.dtype is DType.FLOAT32 else FULL_DOT_REUSE
        again = 1.0 if self.dtype is DType.FLOAT32 else np.maximum(1.0, warps / apart)
        return idle * np.minimum(1.0, reuse / enough) / again


def _dot_dtype(kernel: Kernel, nominal: Nominal) -> DType:
    """The type in which the kernel's matrix products are computed: their operands', float32 if they mix.

    A contraction that is no product of matrices, as of a row's scale with a row, is none of them.
    """
    contracts = [s for s in kernel.statements() if isinstance(s, Contract)]
    axes = value_axes(kernel) if contracts else {}
    products = [s for s in contracts if is_dot(kernel, s, axes)]
    operands = [v for s in products or contracts for v in (s.lhs, s.rhs)]
    if not operands:
        return join([*nominal.values()]) or DType.FLOAT32
    return operands_type(kernel, nominal, operands) or DType.FLOAT32


def common_dtype(dtypes: Sequence[DType]) -> DType:
    """The floating-point type of all, float32 if they mix."""
    found = {t for t in dtypes if t.is_float}
    return found.pop() if len(found) == 1 else DType.FLOAT32


def _times(
    kernels: Sequence[KernelModel],
    binding: Mapping[str, Any],
    warps: Any,
    stages: Any,
    resources: Resources | None,
    then: KernelModel | None = None,
    by_descriptors: Any = False,
) -> Times:
    """Seconds by cause of one launch of these kernels; those of what its programs go on with are not counted."""
    d = kernels[0].device
    env = {**kernels[0].hints, **binding}
    parts = [k.part(env, warps, stages, resources, by_descriptors) for k in kernels]
    # Registers and shared memory are allotted for the largest of the bodies.
    resident, fits, programs = parts[0].resident, parts[0].fits, parts[0].programs
    for p in parts[1:]:
        resident, fits, programs = np.minimum(resident, p.resident), fits & p.fits, programs + p.programs
    if then is not None:
        p = then.part(env, warps, 1, resources)
        resident, fits = np.minimum(resident, p.resident), fits & p.fits
    busiest = np.ceil(programs / d.processors)
    active = np.minimum(resident, busiest)

    none: Any = 0.0
    dram = moved = work = longest = skew = chain = longest_chain = overlap = spill = queue = none
    seen = _Seen(programs <= d.processors * resident)
    for k, p in zip(kernels, parts, strict=True):
        from_dram, from_l2 = k.traffic(env, p.sizes, resident, seen)
        queue = np.maximum(queue, k.queue(env))
        dram, moved = dram + from_dram, moved + from_l2
        compute = p.compute(active)
        work = work + compute
        longest = np.maximum(longest, compute / p.programs * p.skew)
        # Weighed by how many programs are of this kernel.
        skew = skew + p.skew * (p.programs / programs)
        chain = chain + p.chain * (p.programs / programs)
        longest_chain = np.maximum(longest_chain, p.longest_chain)
        overlap = overlap + overlapped(active * p.hidden) * (p.programs / programs)
        spill = spill + p.spill
    # Kernels of one launch come one after another, so that the long programs of one meet the short ones of the next.
    in_order = all(p.ordered for p in parts)
    # The multiprocessor that is done last, and at least the longest program of any kernel.
    compute = np.maximum(work / programs * dealt(programs, d.processors, skew, in_order), longest) * d.processors
    if then is not None:
        chain, longest_chain = chain + ARRIVAL_TRIPS, longest_chain + ARRIVAL_TRIPS
    waits = dealt(programs, d.processors * resident, longest_chain / chain, in_order and len(parts) == 1)
    latency = np.maximum(d.memory_latency_s * chain * waits, queue)
    return Times(transfer(d, dram, moved, programs, np.maximum), compute, latency, overlap, spill, fits, dram)


@dataclass(slots=True, eq=False)
class LaunchModel:
    """The times of one launch under any assignment."""

    name: str  # of the launch
    kernels: Sequence[KernelModel]  # what is launched
    library: Times | None = None  # what the vendor's library takes for it; None where it has nothing for it
    fold: Fold | None = None  # the fold that it is part of, as the split or as the second stage
    combine: KernelModel | None = None  # the second stage's model, where the launch is its split
    _symbols: tuple[str, ...] = field(init=False)
    _launches: tuple[str, ...] = field(init=False)
    _known: dict[tuple[Any, ...], Times] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        members = [*self.kernels, *([self.combine] if self.combine is not None else [])]
        self._symbols = tuple(dict.fromkeys(s.name for k in members for s in k.kernel.symbols))
        self._launches = (self.name, self.fold.split, self.fold.combine) if self.fold is not None else (self.name,)

    def seconds(self, binding: Mapping[str, Any], warps: Any, stages: Any, resources: Resources | None = None) -> Any:
        """Seconds of the launch; see `KernelModel.seconds`. LIBRARY_STAGES stages are a library call.

        The binding may say by `folding` that a second stage is folded: its own launch takes no time then; and by
        `described` that the launch loads by descriptors.
        """
        overhead = self.kernels[0].device.launch_overhead_s
        alone = self.times(binding, warps, np.maximum(stages, 1), resources).total(overhead)
        if self.library is not None:
            return np.where(np.equal(stages, LIBRARY_STAGES), self.library.total(overhead), alone)
        chosen = None if self.fold is None else binding.get(folding(self.fold.combine))
        if chosen is None:
            return alone
        within: Any = 0.0 if self.combine is None else self.folded_times(binding, warps, stages).total(overhead)
        return np.where(np.equal(chosen, 1), within, alone)

    def times_of(self, config: Config, resources: Resources | None = None) -> Times:
        """Seconds by cause under a configuration; worked out once for all that are the same to this launch.

        Raises:
            BackendError: the configuration says library of a launch that the library has nothing for.
        """
        key = (self._own(config), config.warps.get(self.name), config.stages.get(self.name), resources)
        if key not in self._known:
            self._known[key] = self._times_of(config, resources)
        return self._known[key]

    def _own(self, config: Config) -> tuple[Any, ...]:
        """What of a configuration's symbols and options is about it."""
        options = (
            (o, n, chosen[n])
            for o in config.options
            for chosen in [config.numbers(o)]
            for n in self._launches
            if n in chosen
        )
        return (*(config.symbols.get(n) for n in self._symbols), *options)

    def _times_of(self, config: Config, resources: Resources | None) -> Times:
        if self.fold is not None and self.combine is not None and self.fold.combine in config.launches(FOLDED):
            binding = self._binding(config)
            return self.folded_times(binding, config.warps[self.name], config.stages[self.name], resources)
        if self.name not in config.launches(LIBRARY):
            binding = self._binding(config)
            times = self.times(binding, config.warps[self.name], config.stages[self.name], resources)
            held = config.numbers(PERSISTENT).get(self.name, 0)
            if held > 1:
                return replace(times, memory=SHARED_LOSS * times.memory, compute=SHARED_LOSS * times.compute)
            ahead = held == 1 and self.name in config.launches(DESCRIPTORS)
            return replace(times, overlap=np.maximum(times.overlap, COPY_OVERLAP)) if ahead else times
        if self.library is None:
            raise BackendError("no library computes this launch", where=self.name, fix="leave it out of the library's")
        return self.library

    def demand(self, config: Config) -> float:
        """Seconds that the launch adds to one that keeps the device busy; of a library's call, all that it takes.

        A second stage that is folded into it counts with it.
        """
        if self.name in config.launches(LIBRARY):
            return float(self.times_of(config).total(0.0))
        warps, stages = config.warps[self.name], config.stages[self.name]
        own = sum(float(k.share(config.symbols, warps, stages)) for k in self.kernels)
        if self.fold is None or self.combine is None or self.fold.combine not in config.launches(FOLDED):
            return own
        inside = {**config.symbols, **self.fold.bind(config.symbols)}
        return own + float(self.combine.share(inside, warps, 1))

    def times(self, binding: Mapping[str, Any], warps: Any, stages: Any, resources: Resources | None = None) -> Times:
        """Seconds by cause. Resources are those of the launch: which of the kernels spills, they do not say."""
        by_descriptors = binding.get(described(self.name), False)
        return _times(self.kernels, binding, warps, stages, resources, by_descriptors=by_descriptors)

    def _binding(self, config: Config) -> dict[str, Any]:
        """A value for each of its symbols, and for what tables of points say besides."""
        own = {n: config.symbols[n] for n in self._symbols if n in config.symbols}
        return own | {described(self.name): self.name in config.launches(DESCRIPTORS)}

    def folded_times(
        self, binding: Mapping[str, Any], warps: Any, stages: Any, resources: Resources | None = None
    ) -> Times:
        """Seconds by cause of a split whose programs do the second stage, tile by tile.

        Programs count themselves in. Those of the last tiles combine when nothing else is left to do: after all other
        work comes what a launch of the second stage would take with the split's tiles and warps, without the launch.

        Raises:
            BackendError: the launch is no split that a second stage can be folded into.
        """
        if self.fold is None or self.combine is None:
            raise BackendError("no second stage can be folded into this launch", where=self.name)
        inside = {**binding, **self.fold.bind(binding)}
        by_descriptors = binding.get(described(self.name), False)
        main = _times(self.kernels, inside, warps, stages, resources, self.combine, by_descriptors)
        # What the compiler said is of the whole: its spills count once.
        last = self.combine.times(inside, warps, 1)
        tail = np.where(last.fits, last.total(0.0), 0.0)
        return replace(main, spill=main.spill + tail, fits=main.fits & last.fits, bytes=main.bytes + last.bytes)


def launch_models(
    sgraph: SGraph, kernels: Sequence[KernelModel], library: Mapping[str, Times]
) -> tuple[LaunchModel, ...]:
    """The models of an sGraph's launches, from those of its kernels in order, and the library's times by launch."""
    left = iter(kernels)
    own = {x.name: [next(left) for _ in x.kernels] for x in sgraph.launches}
    found = folds(sgraph)
    splits = {f.split: f for f in found.values()}
    made: list[LaunchModel] = []
    for name, members in own.items():
        into = splits.get(name)
        combine = None if into is None else own[into.combine][0]
        made.append(LaunchModel(name, members, library.get(name), into or found.get(name), combine))
    return tuple(made)
