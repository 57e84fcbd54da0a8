"""The CPU that is here as a platform: C++ compiled by the system's compiler, every time measured."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from prism.backends.cpu.build import COMPILE_LIMIT_S, check_compiler, product_known, products_of
from prism.backends.cpu.emit import CPP
from prism.backends.cpu.kernel import TENSOR_TYPES
from prism.backends.cpu.machine import Machine, describe
from prism.backends.cpu.products import HELD
from prism.backends.cpu.support import FLAGS, TUNING, find_compiler
from prism.cost.constraints import footprint, live_elements, tile_sizes
from prism.cost.cpu import CpuModel
from prism.cost.device import BF16_PAIRS, BF16_TILES, INT8_QUADS, INT8_TILES, PARTS_TILES, Device, multicore
from prism.folders import make_room
from prism.instantiate.cache import Cache, Store, digest
from prism.instantiate.gate.check import KernelRunner
from prism.instantiate.gate.plan import Case
from prism.instantiate.measure import Bench, Measuring
from prism.instantiate.study import Candidate, Failure, Outcome
from prism.platforms.cpu_children import COMPARES, RUNS, WORKER, cpu_environment, fork_server, user_environment
from prism.platforms.platform import Timed
from prism.process.child import Fork, module_command
from prism.process.fork_server import ForkServer
from prism.process.worker import Background, Ending, Pool, Reply, Worker
from prism.program.nodes import DType, Program, Read, Reduce, walk
from prism.program.products import product_of
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import SGraph

NO_COMPILER = (
    "no C++ compiler was found: install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; "
    "macOS: xcode-select --install), or name it in CXX, to time kernels on this CPU"
)
GRACE_S = 10.0
"""What a worker may take beyond the compiler's own limit, seconds."""
PROTOCOL = "cpu protocol 14"
"""Raise it when what is timed changes, so that old times are not taken for new ones."""


@dataclass(frozen=True)
class CpuPlatform(Timed):
    """C++ on the CPU that is here."""

    device: Device  # its description
    compiler: str  # the compiler's name and version
    backend = CPP
    target: str = "cpu"
    cache: Path | None = None  # see Platform
    memory: str = "tiles"
    """Tiles that are live together."""
    worst: float = 6.0
    """A bad kernel takes seconds, and nothing else can be timed meanwhile."""
    pool: Pool | None = None  # children that compile, lent to all evaluators; each has its own when None
    # A child that times trials and runs the gate's cases, lent to all benches; each has its own when None.
    clock: Worker | None = None
    products: Products | None = None
    """What trials link, where `pool` compiles it."""
    forks: ForkServer | None = None
    """Starts the children that time, where they are lent; what lends them starts one when None."""
    background: Background = field(default_factory=Background)
    """The children that make baselines ready, which stand still during all benches' trials."""

    def model(self, sgraph: SGraph, hints: Mapping[str, int]) -> CpuModel:
        """See Platform."""
        return CpuModel(sgraph, self.device, hints)

    def runner(self) -> KernelRunner:
        """See Platform."""
        worker = self.clock or trial_worker(self.device.processors, self.cache)
        return KernelRunner("cpu", "compiled C++", worker, self._compiled_ahead, lent=self.clock is not None)

    def _compiled_ahead(
        self, module: Path, sgraph: SGraph, case: Case
    ) -> tuple[object, Callable[[], Future[Reply]]] | None:
        pool, request = self.pool, compile_request(module, case.config)
        return None if pool is None else (None, lambda: pool.submit(request, COMPILE_LIMIT_S + GRACE_S))

    def bench(self, program: Program, seed: int) -> Bench:
        """See Platform."""
        lent = self.clock is not None
        worker = self.clock or trial_worker(self.device.processors, self.cache)
        return Bench(
            program,
            self.device,
            program.hints,
            seed=seed,
            worker=worker,
            arena=self.arena,
            lent=lent,
            background=self.background,
        )

    @contextmanager
    def lending(self) -> Iterator[CpuPlatform]:
        """See Timed."""
        if self.clock is not None:
            yield self  # it does, for who has begun it
            return
        threads = self.device.processors
        pool = compile_pool(threads, self.cache)
        products = Products(pool, self.cache)
        with nullcontext(self.forks) if self.forks is not None else fork_server(self.cache) as forks:
            clock = trial_worker(threads, self.cache, partial(forks.start, modules=RUNS))
            try:
                yield replace(self, pool=pool, clock=clock, products=products, forks=forks)
            finally:
                pool.close()
                clock.close()

    def arena(self) -> Worker:
        """A fresh child that times as the user would: in the user's own environment."""
        fork = None if self.forks is None else partial(self.forks.start, modules=COMPARES)
        return Worker(module_command(WORKER), user_environment(self.cache), fork=fork)

    def thread_counts(self) -> tuple[int, ...]:
        """All cores, and one: what runs on all of them stalls where one is taken."""
        return tuple(dict.fromkeys((default_threads(self.device.processors), 1)))

    def preflight(self, program: Program) -> None:
        """See Platform; the compiler worked when the platform was made.

        Products that trials will link are compiled while the search takes one core.
        """
        if self.products is None:
            return
        terms = [e for d in program.definitions for e in walk(d.expr)]
        sums = (e for e in terms if isinstance(e, Reduce))
        if any(product_of(e.body, {e.axis}) for e in sums):
            types = {t.dtype for t in program.inputs if t.dtype.is_float}
            halves = {DType.BFLOAT16: "multiply_halves"}
            self.products.begin([HELD])
            self.products.begin(f"{halves.get(dtype, 'multiply')}-{TENSOR_TYPES[dtype]}" for dtype in types)
            if any(isinstance(e, Read) and any(len(i.axes()) > 1 for i in e.index) for e in terms):
                self.products.begin(f"multiply_window-{name}-{name}" for name in (TENSOR_TYPES[t] for t in types))

    def resources(self, sgraph: SGraph, config: Config, hints: Mapping[str, int]) -> tuple[Resources, ...]:
        """See Timed."""
        return working_sets(sgraph, config, hints, self.device.processors)

    def measuring(self, bench: Bench, store: Store) -> Measuring:
        """See Platform.

        Where others take processors, threads that wait for each other take whatever that does to them, up to a hundred
        times as long, and the fastest is the luckiest. One thread's waits for a processor are known, and not counted.
        """
        compiler = CpuCompiler(
            self.device.processors, self.compiler, bench.hints, pool=self.pool, cache=self.cache, products=self.products
        )
        crowded = bench.watch.load(default_threads(self.device.processors)).crowded
        return Measuring(bench, compiler, shared=True, store=store, threads=1 if crowded else 0)


@dataclass(slots=True, eq=False)
class CpuCompiler:
    """Compiles points ahead in worker processes, as many at a time as there are cores.

    All points of a batch are compiled before the first one is handed out, so that no compiler runs beside a kernel that
    is being timed.
    """

    threads: int  # that kernels run on
    compiler: str  # the compiler's name and version
    hints: Mapping[str, int]  # a value for every symbol of the extents
    limit_s: float = COMPILE_LIMIT_S  # seconds a compilation may take
    pool: Pool | None = None  # the worker processes, which then are not ended with it; its own when None
    cache: Path | None = None  # see Platform, for a pool of its own
    products: Products | None = None  # those, where `pool` is lent; its own when None
    _pool: Pool = field(init=False)
    _products: Products = field(init=False)

    def __post_init__(self) -> None:
        self._pool = self.pool or compile_pool(self.threads, self.cache)
        self._products = self.products or Products(self._pool, self.cache)

    @property
    def basis(self) -> str:
        """What the compiler's word depends on."""
        return f"{PROTOCOL} {self.compiler} {self.threads} threads at {sorted(self.hints.items())}"

    def compile(self, points: Sequence[tuple[Candidate, Config]]) -> Iterator[Outcome]:
        """For each point, in order, its resources, or its failure; `seconds` is None in all of them."""
        requests = [compile_request(c.module, config, self.limit_s) for c, config in points]
        self._products.make({name for module in {c.module for c, _ in points} for name in products_of(module)})
        replies = list(self._pool.map(requests, self.limit_s + GRACE_S))
        return iter([self._outcome(c, config, r) for (c, config), r in zip(points, replies, strict=True)])

    def _outcome(self, c: Candidate, config: Config, reply: Reply) -> Outcome:
        if reply.ending is not Ending.ANSWERED:
            return Outcome(None, Failure(reply.ending.value), reply.detail)
        if reply.answer.get("error"):
            make_room(Path(tempfile.gettempdir()))  # of compilers it is not known why they failed
            return Outcome(None, Failure.COMPILE, str(reply.answer["error"]))
        return Outcome(None, resources=working_sets(c.sgraph, config, self.hints, self.threads))

    def close(self) -> None:
        """Kill the workers, if they are its own."""
        if self.pool is None:
            self._pool.close()


class Products:
    """Matrix products that sources link, compiled beside whatever else is done; what is there already is found at once.

    What the cache has is not begun.
    """

    def __init__(self, pool: Pool, cache: Path | None) -> None:
        self._pool = pool
        self._cache = cache
        self._begun: dict[str, Future[Reply]] = {}

    def begin(self, names: Iterable[str]) -> None:
        """Begin to compile those that were not begun, as `product_source` names them."""
        for name in sorted(set(names) - self._begun.keys()):
            if self._cache is not None and product_known(name, self._cache / "cpp"):
                continue
            request = {"product": name, "limit_s": COMPILE_LIMIT_S}
            self._begun[name] = self._pool.submit(request, COMPILE_LIMIT_S + GRACE_S)

    def make(self, names: Iterable[str]) -> None:
        """Have them compiled, so that no two sources compile the same; of one that cannot be, each source says so."""
        wanted = set(names)
        self.begin(wanted)
        wait([self._begun[name] for name in wanted & self._begun.keys()])


def compile_request(module: Path, config: Config, limit_s: float = COMPILE_LIMIT_S) -> dict[str, object]:
    """What a worker is asked, so that a module is compiled for a configuration."""
    return {"compile": str(module), "config": config.encode(), "limit_s": limit_s}


def compile_pool(threads: int, cache: Path | None = None) -> Pool:
    """The worker processes that compile: as many as there are cores. They start when they are first needed."""
    return Pool(module_command(WORKER), cpu_environment(threads, cache=cache), max(1, threads))


def trial_worker(threads: int, cache: Path | None = None, fork: Fork | None = None) -> Worker:
    """A child that runs modules which are compiled as those of `compile_pool` are: trials, and those of the gate."""
    return Worker(module_command(WORKER), cpu_environment(threads, cache=cache), fork=fork)


def working_sets(sgraph: SGraph, config: Config, hints: Mapping[str, int], threads: int) -> tuple[Resources, ...]:
    """For each launch the bytes of the tiles that one of its programs holds at a time, and its threads."""
    found = []
    for launch in sgraph.launches:
        most = 0
        for kernel in launch.kernels:
            sizes = tile_sizes(kernel, {**hints, **config.symbols})
            most = max(most, 4 * int(live_elements(footprint(kernel, sgraph), sizes)))
        found.append(Resources(launch.name, most, 0, 0, threads))
    return tuple(found)


def default_threads(cores: int) -> int:
    """The threads that an emitted module and torch take where they are told nothing."""
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return max(1, min(int(given), cores)) if given.isdecimal() and int(given) else cores


def cpu_device(machine: Machine) -> Device:
    """The machine as the search and the model see it."""
    vector = max(16, machine.vector_bits // 8)
    cores = max(1, machine.cores)
    # Kernels are searched for, ranked and timed with as many threads as they will have.
    threads = default_threads(cores)
    told = f", {threads} {'thread' if threads == 1 else 'threads'}" * (threads < cores)
    return multicore(
        f"{machine.name}, {cores} {'core' if cores == 1 else 'cores'}{told}, {8 * vector}-bit vectors",
        threads,
        vector,
        machine.l1_bytes or 32 << 10,
        machine.l2_bytes or 512 << 10,
        max(machine.l3_bytes, machine.l2_bytes) or 8 << 20,
        *_speeds(frozenset(machine.flags)),
    )


def multiplies_tiles(machine: Machine) -> bool:
    """Whether products of float32 go by tiles: convolutions of many channels are faster than onnxruntime's then."""
    return _speeds(frozenset(machine.flags))[2] > 1.0


def _speeds(flags: frozenset[str]) -> tuple[float, float, float]:
    """What is used of the instructions for bfloat16 and for bytes, as `halves.hpp`, `bytes.hpp` and `parts.hpp` say."""
    pairs = 1.0 if "avx512_bf16" not in flags else BF16_TILES if "amx_bf16" in flags else BF16_PAIRS
    quads = INT8_QUADS if {"avx512_vnni", "avx_vnni"} & flags else 1.0
    return pairs, INT8_TILES if "amx_int8" in flags else quads, PARTS_TILES if pairs == BF16_TILES else 1.0


def _check(cache: Path | None) -> None:
    """Make sure that the compiler works, if there is one; that it did is known of a file that is as it was.

    Raises:
        CompilerError: it does not.
    """
    found = find_compiler()
    if cache is None or found is None:
        check_compiler()
        return
    file, known = found.resolve().stat(), Cache("compilers", cache)
    key = digest(str(found), file.st_ino, file.st_size, file.st_mtime_ns, FLAGS, TUNING, os.uname())
    if known.get(key) is None:
        check_compiler()
        known.put(key, {"compiler": str(found)})


def cpu_platform(cache: Path | None = None) -> CpuPlatform | None:
    """The CPU that is here; None where there is no C++ compiler. `cache` as in Platform.

    Raises:
        CompilerError: there is one and it does not work.
    """
    if os.name != "posix":
        return None
    _check(cache)
    machine = describe()
    return CpuPlatform(cpu_device(machine), machine.compiler, cache=cache) if machine.compiler else None
