"""A roofline-and-occupancy model: seconds of an sGraph under a configuration, estimated, never measured.

For each launch four times, in seconds:

    memory    bytes that miss L2 over DRAM bandwidth, or all bytes over L2 bandwidth; few programs reach only part of it
              (a buffer that an earlier launch has just stored is read from L2 if it stays there)
    compute   padded matrix work at the matrix units' rate for that tile, plus padded pointwise work on vector units,
              both as the busiest multiprocessor sees them
    latency   waves of programs, each a chain of loop trips that wait for memory as far as pipelining does not hide it
    launch    a constant

The largest of the first three bounds the launch; what is not overlapped of the others is added by how little runs at
once. Numbers and numpy arrays of tile sizes take the same path, so that a space is ranked in one go. The operator by
operator program is judged by the same constants (`baseline_estimate`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

from prism.cost.compiled_expr import value
from prism.cost.device import Device
from prism.cost.gpu import (
    L2_SHARE,
    VECTOR_EFFICIENCY,
    KernelModel,
    Times,
    common_dtype,
    launch_models,
    overlapped,
    transfer,
)
from prism.cost.library import Extents, call_times, library_times
from prism.cost.roofline import a_call
from prism.cost.streams import STREAMS, Demand, finished, placed
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.nodes import Definition, DType, Map, Program, Read, Reduce, ReduceKind, Steps, free_axes, walk
from prism.program.prefix import stepwise
from prism.program.products import work
from prism.sgraph.config import Config, Resources
from prism.sgraph.folding import FOLDED
from prism.sgraph.launches import apart, waits
from prism.sgraph.library import library_calls
from prism.sgraph.nodes import SGraph
from prism.sgraph.products import nominal_types
from prism.sgraph.resident import in_one_launch

Limiter: TypeAlias = Literal["memory", "compute", "latency", "launch"]
BASELINE_TILE = 1024
"""Elements that one program of a pointwise baseline kernel handles (guess)."""
BASELINE_WARPS = 4
"""Warps of such a program (guess)."""


@dataclass(frozen=True, slots=True)
class KernelEstimate:
    """One launch."""

    name: str  # the launch, or the operator's definition
    seconds: float  # in all
    limiter: Limiter  # what bounds it
    memory: float  # seconds of memory traffic
    compute: float  # seconds of work
    latency: float  # seconds of waiting
    launch: float  # seconds of launch overhead
    bytes: float  # bytes to and from DRAM


@dataclass(frozen=True, slots=True)
class Estimate:
    """All launches."""

    seconds: float  # the sum, or less where launches are on several streams; infinite when a kernel cannot run
    per_kernel: tuple[KernelEstimate, ...]  # launch by launch
    limiter: Limiter  # what bounds the longest of them


class LaunchTimes(Protocol):
    """The model of one launch, as spaces are ranked by it."""

    @property
    def name(self) -> str:
        """The launch's name."""

    def seconds(self, binding: Mapping[str, Any], warps: Any, stages: Any) -> Any:
        """Seconds under every assignment, symbols bound to numbers or arrays; infinite where it cannot run."""


class CostModel(Protocol):
    """The model of one sGraph on one device of any kind."""

    @property
    def launches(self) -> Sequence[LaunchTimes]:
        """Launch by launch."""

    def estimate(self, config: Config, resources: Sequence[Resources] | None = None) -> Estimate:
        """The estimate for one configuration, with what the compiler said of each launch where that is known."""

    def seconds(self, config: Config, resources: Sequence[Resources] = ()) -> float:
        """The estimated seconds alone; an `Estimator`."""


class Model:
    """The model of one sGraph on one device, for many configurations.

    `hints` has a value for every symbol of the extents.
    """

    def __init__(self, sgraph: SGraph, device: Device, hints: Mapping[str, int]) -> None:
        self.device = device
        sgraph = in_one_launch(sgraph)
        nominal = nominal_types(sgraph)
        self.kernels = tuple(KernelModel(k, sgraph, device, hints, nominal[k.name]) for k in sgraph.kernels)
        library = {n: call_times(c, hints, device) for n, c in library_calls(sgraph).items()}
        self.launches = launch_models(sgraph, self.kernels, library)
        self._sgraph = sgraph
        self._hints = hints

    def estimate(self, config: Config, resources: Sequence[Resources] | None = None) -> Estimate:
        """The estimate for one configuration.

        The configuration has a value for every symbol of the sGraph, warps and stages for every launch but library
        calls and second stages that are folded, which are no launches then. Resources are estimated where they are
        missing.
        """
        overhead = self.device.launch_overhead_s
        found = [kernel_estimate(name, t, overhead) for name, t in self.times(config, resources or ())]
        found = by_call(found, self._sgraph, self._hints)
        one_by_one = sum_estimates(found)
        if not config.launches(STREAMS) or not math.isfinite(one_by_one.seconds):
            return one_by_one
        after = waits(self._sgraph, config.launches(FOLDED))
        demands = self._demands(config, one_by_one)
        return replace(
            one_by_one, seconds=finished(after, demands, config.numbers(STREAMS), self.device.launch_overhead_s)
        )

    def times(self, config: Config, resources: Sequence[Resources]) -> list[tuple[str, Times]]:
        """Seconds by cause of every launch that there is, run once."""
        known, folded = {r.kernel: r for r in resources}, config.launches(FOLDED)
        return [(k.name, k.times_of(config, known.get(k.name))) for k in self.launches if k.name not in folded]

    def seconds(self, config: Config, resources: Sequence[Resources] = ()) -> float:
        """The estimated seconds alone; an `Estimator`."""
        return self.estimate(config, resources).seconds

    def on_streams(self, config: Config, resources: Sequence[Resources] | None = None) -> Config | None:
        """The configuration with launches on several streams, where independent ones gain by it; else None."""
        after = waits(self._sgraph, config.launches(FOLDED))
        one_by_one = self.estimate(config, resources)
        if not apart(after) or not math.isfinite(one_by_one.seconds):
            return None
        streams = placed(after, self._demands(config, one_by_one), self.device.launch_overhead_s)
        return config.having(streams=streams) if streams else None

    def occupancy(self, name: str, config: Config, resources: Resources | None = None) -> tuple[int, int]:
        """How many programs a launch of one kernel has, and how many of them a multiprocessor runs at a time."""
        (kernel,) = next(m.kernels for m in self.launches if m.name == name)
        env = {**kernel.hints, **config.symbols}
        part = kernel.part(env, config.warps[name], config.stages[name], resources)
        return int(part.programs), int(part.resident)

    def _demands(self, config: Config, one_by_one: Estimate) -> dict[str, Demand]:
        """What each launch takes alone, and its share of the device."""
        models = {m.name: m for m in self.launches}
        found: dict[str, Demand] = {}
        for k in one_by_one.per_kernel:
            seconds = max(k.seconds - k.launch, 0.0)
            asked = models[k.name].demand(config)
            found[k.name] = Demand(seconds, min(1.0, asked / seconds) if seconds > 0 else 0.0)
        return found


def kernel_estimate(name: str, t: Times, launch: float) -> KernelEstimate:
    """Times of one launch as an estimate; `launch` is what a launch takes anyway, seconds."""
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


def by_call(kernels: Sequence[KernelEstimate], sgraph: SGraph, hints: Mapping[str, int]) -> list[KernelEstimate]:
    """The estimates of launches, times how often a call runs them.

    Those of a loop's step run for all steps, each after the one before it, but for a launch that is all steps. What
    hangs on weights alone runs once for many calls.
    """
    times: dict[str, float] = {x.name: a_call(1) for x in sgraph.launches if x.kernels[0].name in sgraph.prepared}
    if sgraph.repeats:
        steps = {x.name: r for x in sgraph.launches if (r := sgraph.repeat(x)) is not None and not r.resident}
        times |= {name: value(r.trips, hints) for name, r in steps.items()}
    return [_times(k, times.get(k.name, 1)) for k in kernels]


def _times(k: KernelEstimate, many: float) -> KernelEstimate:
    if many == 1:
        return k
    parts = {name: getattr(k, name) * many for name in ("seconds", "memory", "compute", "latency", "launch", "bytes")}
    return replace(k, **parts)


def sum_estimates(kernels: Sequence[KernelEstimate]) -> Estimate:
    """The estimates of launches that run one after another."""
    longest = max(kernels, key=lambda k: k.seconds, default=None)
    return Estimate(math.fsum(k.seconds for k in kernels), tuple(kernels), longest.limiter if longest else "launch")


# The operator-by-operator program.


def baseline_estimate(program: Program, device: Device, hints: Mapping[str, int]) -> Estimate:
    """Seconds of the program with a kernel for every operator that is not a view, by the model's constants.

    Each kernel reads every distinct element of its operands once, from L2 where an earlier one wrote it and it stays
    there, and writes its result, in each step of a loop anew; matrix products take what a vendor's library is estimated
    to take. A vector that is added along a product's columns goes into the library's call, as torch.compile has it.
    """
    found = [launched([d], program, device, hints) for d in operators(program) if not isinstance(d.expr, Steps)]
    for loop in program.loops:
        step = baseline_estimate(loop.body, device, hints)
        found += [_times(k, value(loop.trips, hints)) for k in step.per_kernel]
    return sum_estimates(found)


def operators(program: Program) -> list[Definition]:
    """What is launched operator by operator: neither views, nor biases that a product's call adds."""
    biases = added_biases(program)
    return [d for d in program.definitions if not d.view and d.name not in biases]


def added_biases(program: Program) -> frozenset[str]:
    """The operators that add a vector along the columns of a matrix product which nothing else reads."""
    read = Counter(e.tensor for d in program.definitions for e in {*walk(d.expr)} if isinstance(e, Read))

    def is_bias(d: Definition, product: Read, vector: Read) -> bool:
        if product.tensor not in program.order or product.tensor in program.outputs or read[product.tensor] > 1:
            return False
        done = work(program.definition(product.tensor).expr)
        lone = len(done.products) == 1 and not done.others and not done.products[0].batch
        whole = list(product.index) == [Index.axis(a) for a in d.axes]
        return lone and whole and done.products[0].is_matrix and free_axes(vector) == {*d.axes[-1:]}

    found: set[str] = set()
    for d in program.definitions:
        match d.expr:
            case Map("add", (Read() as one, Read() as other)):
                found |= {d.name for p, v in ((one, other), (other, one)) if is_bias(d, p, v)}
    return frozenset(found)


def attentions(program: Program) -> dict[str, frozenset[str]]:
    """The operators that multiply a softmax of products with something, and what of that is before them.

    torch has fused kernels for them. `baseline_estimate` takes them one by one, as eager torch does where they are
    written out, and `prism.cost.compiled` takes them together.
    """
    found: dict[str, frozenset[str]] = {}
    for d in program.definitions:
        if len(work(d.expr).products) != 1:
            continue
        for start in dict.fromkeys(e.tensor for e in walk(d.expr) if isinstance(e, Read)):
            above, products, exponential, summed = [start], 0, False, False
            seen: set[str] = set()
            while above:
                name = above.pop()
                if name in seen or name not in program.order:
                    continue
                seen.add(name)
                expr = program.definition(name).expr
                products += len(work(expr).products)
                if work(expr).products:
                    continue
                parts = list(walk(expr))
                summed |= any(isinstance(e, Reduce) and e.kind is ReduceKind.SUM for e in parts)
                exponential |= any(isinstance(e, Map) and e.op == "exp" for e in parts)
                above += [e.tensor for e in parts if isinstance(e, Read)]
            if products == 1 and exponential and summed:
                found[d.name] = frozenset(seen)
                break
    return found


def launched(
    definitions: Sequence[Definition],
    program: Program,
    device: Device,
    hints: Mapping[str, int],
    written: Set[str] | None = None,
) -> KernelEstimate:
    """Seconds of one launch that computes these operators, in order; what they hand to each other is not moved.

    It is called by the last of the operators; `written` are those that are written, all by default.
    """

    def product(extents: Sequence[Extent]) -> float:
        return float(math.prod(value(e, hints) for e in extents))

    def over(axes: frozenset[Axis]) -> float:
        return product([a.extent for a in axes])

    done = [work(d.expr) for d in definitions]
    products: list[tuple[int, int, int, int]] = []
    pointwise = sum(cost * over(axes) for w in done for cost, axes in w.others)
    for p in (p for w in done for p in w.products):
        if p.is_matrix and (len(definitions) == 1 or min(over(p.rows), over(p.columns)) > 1):
            products.append((int(over(p.batch)), int(over(p.rows)), int(over(p.columns)), int(over(p.depth))))
        else:
            pointwise += 2 * over(p.axes)
    reads = [e for d in definitions for e in walk(stepwise(d.expr)) if isinstance(e, Read)]
    touched: dict[str, float] = {}
    dtypes: list[DType] = []
    inside = {d.name for d in definitions}
    for e in reads:
        above = stored_above(e.tensor, program)
        if above and above <= inside:
            continue
        declared = program.tensor(e.tensor)
        once = min(over(free_axes(e)), product(declared.shape)) * declared.dtype.bytes
        touched[e.tensor] = max(touched.get(e.tensor, 0.0), once)
        if declared.dtype.is_float:
            dtypes.append(declared.dtype)
    sizes = {d.name: product([a.extent for a in d.axes]) for d in definitions}
    outside = inside if written is None else written
    moved = sum(touched.values()) + sum(sizes[d.name] * d.dtype.bytes for d in definitions if d.name in outside)
    stored = (n for t, n in touched.items() if stored_above(t, program))
    kept = sum(n for n in stored if n <= L2_SHARE * device.cache_bytes)
    # The parallel work of a reduction is split among programs, so the larger side counts.
    largest = max([*sizes.values(), *(over(free_axes(e)) for e in reads)])
    programs = max(1.0, math.ceil(largest / BASELINE_TILE))
    dtype = common_dtype(dtypes)
    busy = min(1.0, programs / device.processors)
    memory = transfer(device, moved - kept, moved, programs)
    compute = pointwise / (device.multiply_adds_s * VECTOR_EFFICIENCY * busy)
    # What is exposed is judged as of kernels of prism's own: the same launch takes the same time on either side.
    resident = device.multiprocessor.warps // BASELINE_WARPS if device.is_gpu else 1
    overlap = overlapped(min(math.ceil(programs / device.processors), resident))
    latency, spill = 2 * device.memory_latency_s, 0.0
    for t in (library_times(Extents(*p, dtype.bytes), dtype, device) for p in products):
        # As a library call of an sGraph is judged, so that the same call takes the same time on either side.
        memory, latency = max(memory, t.memory), max(latency, t.latency)
        compute, overlap, spill = compute + t.compute, t.overlap, spill + t.spill
    times = Times(memory, compute, latency, overlap, spill, True, moved - kept)
    return kernel_estimate(definitions[-1].name, times, device.launch_overhead_s)


def stored_above(name: str, program: Program) -> frozenset[str]:
    """The operators whose results a tensor is, or is a view of: none for an input."""
    waiting, found = [name], set[str]()
    while waiting:
        tensor = waiting.pop()
        if tensor not in program.order:
            continue
        d = program.definition(tensor)
        if d.view:
            waiting += [e.tensor for e in walk(d.expr) if isinstance(e, Read)]
        else:
            found.add(tensor)
    return frozenset(found)
