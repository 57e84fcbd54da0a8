"""A roofline-and-occupancy model: seconds of an sGraph under a configuration, estimated, never measured.

For each kernel four times, in seconds:

    memory    bytes that miss L2 over DRAM bandwidth, or all bytes over L2 bandwidth; few programs reach only part of it
    compute   padded matrix work at the matrix units' rate for that tile, plus padded pointwise work on vector units,
              both as the busiest multiprocessor sees them
    latency   waves of programs, each a chain of loop trips that wait for memory as far as pipelining does not hide it
    launch    a constant

The largest of the first three bounds the kernel; what is not overlapped of the others is added by how little runs at
once. Numbers and numpy arrays of tile sizes take the same path, so that a space is ranked in one go. The operator by
operator program is judged by the same constants (`baseline_estimate`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from prism.backends.protocol import Config, Resources
from prism.instantiate.devices import Device
from prism.program.extents import Extent
from prism.program.index import Axis
from prism.program.nodes import Definition, DType, Expr, Map, Program, Read, Reduce, ReduceKind, free_axes, walk
from prism.program.ops import OPS
from prism.sgraph.compiled_expr import value
from prism.sgraph.constraints import (
    Footprint,
    elements,
    footprint,
    live_elements,
    operand_registers,
    staged_bytes,
    tile_sizes,
)
from prism.sgraph.cost import Access, KernelCost, kernel_cost
from prism.sgraph.nodes import Contract, Grid, Kernel, Load, SGraph, Split

Limiter: TypeAlias = Literal["memory", "compute", "latency", "launch"]
Estimator: TypeAlias = Callable[[Config, Sequence[Resources]], float]

# What well-tuned kernels reach of the data sheet's rates.
DRAM_EFFICIENCY = 0.85
DOT_EFFICIENCY = 0.75
VECTOR_EFFICIENCY = 0.6
# One multiprocessor alone can draw this many times its even share of the bandwidth.
SM_BANDWIDTH_SHARE = 1.8
# Bytes of a tensor that stay in L2 between two uses: half of it, as other data passes through.
L2_SHARE = 0.5
# 2MN/(M+N), the reuse of an operand of an MxN tile, at which matrix units run at full rate.
FULL_DOT_REUSE = 96.0
# The same where the vector units compute the product: they are slower against shared memory, and tile in registers.
FULL_VECTOR_REUSE = 32.0
# Warps that keep the matrix units, and the vector units, of a multiprocessor busy.
DOT_WARPS = 4
VECTOR_WARPS = 12
# Registers of a thread besides the tiles' values: addresses, masks, counters.
BASE_REGISTERS = 32
# Elements that one program of a pointwise baseline kernel handles.
BASELINE_TILE = 1024


@dataclass(frozen=True, slots=True)
class KernelEstimate:
    """One launch.

    Attributes:
        name: the kernel, or the operator's definition.
        seconds: in all.
        limiter: what bounds it.
        memory: seconds of memory traffic.
        compute: seconds of work.
        latency: seconds of waiting.
        launch: seconds of launch overhead.
        bytes: bytes to and from DRAM.
    """

    name: str
    seconds: float
    limiter: Limiter
    memory: float
    compute: float
    latency: float
    launch: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """All launches.

    Attributes:
        seconds: the sum; infinite when a kernel cannot run.
        per_kernel: launch by launch.
        limiter: what bounds the longest of them.
    """

    seconds: float
    per_kernel: tuple[KernelEstimate, ...]
    limiter: Limiter


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds by cause, as floats or arrays."""

    memory: Any
    compute: Any
    latency: Any
    overlap: Any
    spill: Any
    fits: Any
    bytes: Any

    def total(self, launch: float) -> Any:
        parts = (self.memory, self.compute, self.latency)
        bound = np.maximum(np.maximum(parts[0], parts[1]), parts[2])
        exposed = (parts[0] + parts[1] + parts[2] - bound) * (1.0 - self.overlap)
        return np.where(self.fits, bound + exposed + self.spill + launch, np.inf)


class KernelModel:
    """One kernel's facts, gathered once, and its times under any assignment.

    Args:
        kernel: the kernel.
        sgraph: declares its tensors.
        device: what it runs on.
        hints: a value for every symbol of the extents.
    """

    def __init__(self, kernel: Kernel, sgraph: SGraph, device: Device, hints: Mapping[str, int]) -> None:
        self.kernel = kernel
        self.device = device
        self.hints = dict(hints)
        self.cost: KernelCost = kernel_cost(kernel, sgraph)
        self.footprint: Footprint = footprint(kernel, sgraph)
        self.dtype = _dot_dtype(kernel, sgraph)
        self.numel = {t.name: t.shape for t in (*sgraph.inputs, *sgraph.buffers, *sgraph.outputs)}
        self.width = {t.name: t.dtype.bytes for t in (*sgraph.inputs, *sgraph.buffers, *sgraph.outputs)}
        # Programs are numbered with the last grid axis fastest; a split's parts are last.
        self.grid: list[tuple[Axis, Any]] = [(a, r) for a, r in kernel.roles if isinstance(r, Grid)]
        self.splits: list[tuple[Axis, Split]] = [(a, r) for a, r in kernel.roles if isinstance(r, Split)]

    def seconds(self, binding: Mapping[str, Any], warps: Any, stages: Any, resources: Resources | None = None) -> Any:
        """Seconds of a launch; infinite where no block fits on a multiprocessor.

        Args:
            binding: symbol name (tiles, parts) to int or integer array.
            warps: warps per block, int or array.
            stages: pipeline stages, int or array.
            resources: what the compiler said, for a single assignment.
        """
        return self.times(binding, warps, stages, resources).total(self.device.launch_overhead_s)

    def times(self, binding: Mapping[str, Any], warps: Any, stages: Any, resources: Resources | None = None) -> _Times:
        """Seconds by cause; see `seconds`."""
        d = self.device
        env = {**self.hints, **binding}
        sizes = tile_sizes(self.kernel, env)
        live = live_elements(self.footprint, sizes)
        if self.footprint.full_precision:
            # Both operands of a product outside the matrix units are in registers while it runs.
            held: Any = 0.0
            for m, n, k in self.footprint.dots:
                held = np.maximum(held, np.sqrt(operand_registers(m, n, k, sizes, warps * 32)))
            live = live + held * warps * 32
        shared: Any = staged_bytes(self.footprint, sizes) * stages
        registers = live / (warps * 32) + BASE_REGISTERS
        # Every value over the limit is stored once and loaded once, four bytes each.
        spills = np.maximum(registers - d.registers_per_thread, 0) * 8
        if resources is not None:
            shared = resources.shared
            registers = resources.registers or registers
            spills = resources.spills
        registers = np.minimum(registers, d.registers_per_thread)
        resident = np.minimum(d.registers_per_sm / (registers * 32 * warps), d.warps_per_sm / warps)
        resident = np.minimum(resident, d.shared_per_sm_bytes / np.maximum(shared + 1024, 1))
        resident = np.floor(np.minimum(resident, d.blocks_per_sm))
        fits = (resident >= 1) & (shared <= d.shared_limit_bytes)
        resident = np.maximum(resident, 1)

        programs = self.cost.programs.evaluate(env) * 1.0
        busiest = np.ceil(programs / d.sms)
        active = np.minimum(resident, busiest)
        # How much longer the busiest multiprocessor runs than all of them would on average.
        imbalance = busiest * d.sms / programs

        dram, moved = self._traffic(env, sizes, resident)
        reached = np.minimum(1.0, SM_BANDWIDTH_SHARE * np.minimum(programs, d.sms) / d.sms)
        memory = dram / (d.bandwidth_bytes_s * DRAM_EFFICIENCY * reached)
        memory = np.maximum(memory, moved / (d.l2_bandwidth_bytes_s * DRAM_EFFICIENCY * reached))

        dot_rate = d.dot_flops(self.dtype) * DOT_EFFICIENCY * self._dot_utilisation(sizes)
        # Warps without elements of their own do not help.
        useful = np.minimum(warps, np.maximum(1, live / (2 * 32)))
        dot_rate = dot_rate * np.minimum(1.0, active * useful / DOT_WARPS)
        vector_rate = d.fp32_flops / 2 * VECTOR_EFFICIENCY * np.minimum(1.0, active * useful / VECTOR_WARPS)
        compute = (
            self.cost.padded_dot_flops.evaluate(env) / dot_rate + self.cost.padded_flops.evaluate(env) / vector_rate
        )
        compute = compute * imbalance

        trips = self.cost.loop_trips.evaluate(env) * 1.0
        hidden = stages if self.footprint.staged else 1
        waves = np.ceil(programs / (d.sms * resident))
        latency = waves * d.memory_latency_s * (2 + trips / hidden)

        spill = spills * 32 * warps * programs * np.maximum(trips, 1) / d.l2_bandwidth_bytes_s
        overlap = 1 - 1 / (active * np.maximum(hidden, 1) + 1)
        return _Times(memory, compute, latency, overlap, spill, fits, dram)

    def _traffic(self, env: Mapping[str, Any], sizes: Mapping[Axis, Any], resident: Any) -> tuple[Any, Any]:
        """Bytes that reach DRAM, and bytes that reach L2."""
        d = self.device
        order: list[tuple[Axis, Any]] = []
        for axis, _ in self.grid:
            order.append((axis, -(-value(axis.extent, env) // sizes[axis])))
        for axis, role in self.splits:
            order.append((axis, env[role.parts.name]))
        programs: Any = 1.0
        for _, n in order:
            programs = programs * n
        wave = np.minimum(programs, d.sms * resident)
        dram: Any = 0.0
        moved: Any = 0.0
        seen: dict[tuple[str, tuple[str, ...]], Any] = {}
        for a in self.cost.accesses:
            traffic = a.traffic.evaluate(env) * 1.0
            moved = moved + traffic
            key = (a.tensor, tuple(sorted(x.name for x in a.axes)))
            if a.store:
                dram = dram + traffic
                continue
            once = self._once(a, env)
            # Programs that run together read a tile from DRAM once.
            left: Any = wave
            distinct: Any = 1.0
            for axis, n in reversed(order):
                covered = np.minimum(left, n)
                left = np.ceil(left / covered)
                if axis in a.axes:
                    distinct = distinct * covered
            by_waves = traffic * distinct / wave
            from_dram = np.where(once <= L2_SHARE * d.l2_bytes, once, np.maximum(once, by_waves))
            from_dram = np.minimum(from_dram, traffic)
            # A tensor that is read by several loads of one kernel comes from DRAM once if it stays in L2.
            previous = seen.get(key)
            again = 0.0 if previous is None else np.where(once <= L2_SHARE * d.l2_bytes, 0.0, 1.0)
            seen[key] = from_dram
            dram = dram + (from_dram if previous is None else from_dram * again)
        return dram, moved

    def _once(self, a: Access, env: Mapping[str, Any]) -> Any:
        """Bytes of the distinct elements that a load touches."""
        whole: Any = self.width[a.tensor] * 1.0
        for extent in self.numel[a.tensor]:
            whole = whole * value(extent, env)
        return np.minimum(a.own.evaluate(env) * 1.0, whole)

    def _dot_utilisation(self, sizes: Mapping[Axis, Any]) -> Any:
        """The part of the matrix units' rate that the smallest matrix product of the kernel reaches."""
        worst: Any = 1.0
        enough = FULL_VECTOR_REUSE if self.dtype is DType.FLOAT32 else FULL_DOT_REUSE
        for m, n, k in self.footprint.dots:
            # Below the units' own sizes lanes idle.
            rows, columns, depth = elements(m, sizes), elements(n, sizes), elements((k,), sizes)
            idle = (rows / np.maximum(rows, 16)) * (columns / np.maximum(columns, 8)) * (depth / np.maximum(depth, 16))
            rows, columns = np.maximum(rows, 16), np.maximum(columns, 16)
            reuse = 2 * rows * columns / (rows + columns)
            worst = np.minimum(worst, idle * np.minimum(1.0, reuse / enough))
        return worst


def _dot_dtype(kernel: Kernel, sgraph: SGraph) -> DType:
    """The type in which the kernel's matrix products are computed: that of the loaded operands, float32 if they mix."""
    loaded = {s.dst: sgraph.tensor(s.tensor).dtype for s in kernel.statements() if isinstance(s, Load)}
    operands = {v for s in kernel.statements() if isinstance(s, Contract) for v in (s.lhs, s.rhs)}
    return _joined([t for v, t in loaded.items() if v in operands] or list(loaded.values()))


def _joined(dtypes: Sequence[DType]) -> DType:
    found = {t for t in dtypes if t.is_float}
    return found.pop() if len(found) == 1 else DType.FLOAT32


class Model:
    """The model of one sGraph on one device, for many configurations.

    Args:
        sgraph: the family.
        device: what it runs on.
        hints: a value for every symbol of the extents.
    """

    def __init__(self, sgraph: SGraph, device: Device, hints: Mapping[str, int]) -> None:
        self.device = device
        self.kernels = tuple(KernelModel(k, sgraph, device, hints) for k in sgraph.kernels)

    def estimate(self, config: Config, resources: Sequence[Resources] | None = None) -> Estimate:
        """The estimate for one configuration.

        Args:
            config: a value for every symbol of the sGraph, warps and stages for every kernel.
            resources: what the compiler said of each kernel; estimated where it is missing.
        """
        known = {r.kernel: r for r in resources or ()}
        found: list[KernelEstimate] = []
        for k in self.kernels:
            name = k.kernel.name
            times = k.times(config.symbols, config.warps[name], config.stages[name], known.get(name))
            found.append(_kernel_estimate(name, times, self.device.launch_overhead_s))
        return _sum(found)

    def seconds(self, config: Config, resources: Sequence[Resources] = ()) -> float:
        """The estimated seconds alone; an `Estimator`."""
        return self.estimate(config, resources).seconds


def estimate(
    sgraph: SGraph,
    config: Config,
    device: Device,
    hints: Mapping[str, int],
    resources: Sequence[Resources] | None = None,
) -> Estimate:
    """Seconds of an sGraph under a configuration; use `Model` for many configurations of one sGraph.

    Args:
        sgraph: the family.
        config: a value for every symbol, warps and stages for every kernel.
        device: what it runs on.
        hints: a value for every symbol of the extents.
        resources: what the compiler said of each kernel; estimated where it is missing.
    """
    return Model(sgraph, device, hints).estimate(config, resources)


def _kernel_estimate(name: str, t: _Times, launch: float) -> KernelEstimate:
    parts: dict[Limiter, float] = {
        "memory": float(t.memory),
        "compute": float(t.compute),
        "latency": float(t.latency),
        "launch": launch,
    }
    limiter = max(parts, key=lambda p: parts[p])
    seconds = float(t.total(launch))
    return KernelEstimate(
        name, seconds, limiter, parts["memory"], parts["compute"], parts["latency"], launch, float(t.bytes)
    )


def _sum(kernels: Sequence[KernelEstimate]) -> Estimate:
    longest = max(kernels, key=lambda k: k.seconds, default=None)
    return Estimate(math.fsum(k.seconds for k in kernels), tuple(kernels), longest.limiter if longest else "launch")


# The operator-by-operator program.


def baseline_estimate(program: Program, device: Device, hints: Mapping[str, int]) -> Estimate:
    """Seconds of the program with a kernel for every operator that is not a view, by the model's constants.

    Each kernel reads every distinct element of its operands once and writes its result; matrix products run at the
    matrix units' full rate, as vendor libraries nearly do.

    Args:
        program: the program.
        device: what it runs on.
        hints: a value for every symbol of the extents.
    """
    return _sum([_operator(d, program, device, hints) for d in program.definitions if not d.view])


def _operator(definition: Definition, program: Program, device: Device, hints: Mapping[str, int]) -> KernelEstimate:
    def product(extents: Sequence[Extent]) -> float:
        n = 1.0
        for e in extents:
            n *= value(e, hints)
        return n

    def over(axes: frozenset[Axis]) -> float:
        return product([a.extent for a in axes])

    touched: dict[str, float] = {}
    dot = 0.0
    pointwise = 0.0
    contracted: set[int] = set()
    dtypes: list[DType] = []
    own_axes: dict[int, frozenset[Axis]] = {}

    def axes_of(e: Expr) -> frozenset[Axis]:
        known = own_axes.get(id(e))
        if known is None:
            known = own_axes[id(e)] = free_axes(e)
        return known

    nodes = list(walk(definition.expr))
    for e in reversed(nodes):
        # The innermost sums of a chain of them share one body; the outermost is seen first.
        if isinstance(e, Reduce) and id(e) not in contracted:
            bound, body, chain = {e.axis}, e.body, [e]
            while isinstance(body, Reduce) and body.kind is e.kind is ReduceKind.SUM:
                bound.add(body.axis)
                chain.append(body)
                body = body.body
            if e.kind is ReduceKind.SUM and _is_contraction(body, bound, axes_of):
                dot += 2 * over(axes_of(body))
                contracted.update(id(c) for c in (*chain, body))
    for e in nodes:
        match e:
            case Read(tensor, _):
                declared = program.tensor(tensor)
                read = min(over(axes_of(e)), product(declared.shape)) * declared.dtype.bytes
                touched[tensor] = max(touched.get(tensor, 0.0), read)
                if declared.dtype.is_float:
                    dtypes.append(declared.dtype)
            case Map(op, _) if id(e) not in contracted:
                pointwise += OPS[op].flops * over(axes_of(e))
            case Reduce(_, _, body) if id(e) not in contracted:
                pointwise += over(axes_of(body))
            case _:
                pass
    written = product([a.extent for a in definition.axes])
    moved = sum(touched.values()) + written * definition.dtype.bytes
    # The parallel work of a reduction is split among programs, so the larger side counts.
    largest = max([written, *(over(axes_of(e)) for e in nodes if isinstance(e, Read))])
    programs = max(1.0, math.ceil(largest / BASELINE_TILE))
    reached = min(1.0, SM_BANDWIDTH_SHARE * min(programs, device.sms) / device.sms)
    dtype = _joined(dtypes)
    busy = min(1.0, programs / device.sms)
    memory = moved / (device.bandwidth_bytes_s * DRAM_EFFICIENCY * reached)
    compute = dot / (device.dot_flops(dtype) * DOT_EFFICIENCY * busy)
    compute += pointwise / (device.fp32_flops / 2 * VECTOR_EFFICIENCY * busy)
    times = _Times(memory, compute, 2 * device.memory_latency_s, 1.0, 0.0, True, moved)
    return _kernel_estimate(definition.name, times, device.launch_overhead_s)


def _is_contraction(body: Expr, bound: set[Axis], axes_of: Callable[[Expr], frozenset[Axis]]) -> bool:
    """Whether a sum over `bound` of `body` is a matrix product: either factor has an axis of its own."""
    if not (isinstance(body, Map) and body.op == "mul"):
        return False
    lhs, rhs = (axes_of(a) for a in body.args)
    return bool(bound & lhs & rhs) and bool(lhs - rhs - bound) and bool(rhs - lhs - bound)
