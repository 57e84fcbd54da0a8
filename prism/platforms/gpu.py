"""Triton on GPUs: on the one that is here, or compiled for one that is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from prism.backends.protocol import arguments
from prism.backends.triton.crosscompile import COMPILE_LIMIT_S, CompileJob, request, worker_environment
from prism.backends.triton.device import check_assembler, check_c_compiler
from prism.backends.triton.emit import TRITON
from prism.backends.triton.timing import WORKER
from prism.cost.compiled import compiled_estimate
from prism.cost.device import Device
from prism.cost.model import Model, baseline_estimate
from prism.folders import cache_root
from prism.instantiate.cache import Store
from prism.instantiate.gate.check import KernelRunner
from prism.instantiate.gate.plan import Case
from prism.instantiate.machine_load import usable_cores
from prism.instantiate.measure import Bench, Measuring
from prism.instantiate.study import LEADERS
from prism.platforms.estimating import Compiler, Estimating, compile_pool
from prism.platforms.platform import Estimated, Timed
from prism.process.child import module_command
from prism.process.worker import Pool, Reply, Worker
from prism.program.nodes import Program
from prism.sgraph.nodes import SGraph

CHECK_WORKER = "prism.backends.triton.check_worker"
MOST_COMPILERS = 16
"""Children that compile at a time, the most: each holds torch and Triton, half a gigabyte."""

BEGUN = LEADERS
"""Of these, those that import them while a search goes on: as many as there are first trials."""


MOST_INTERPRETERS = 8
"""Children that interpret at a time, the most."""


def interpreter(cache: Path | None = None, width: int = 1) -> KernelRunner:
    """Runs kernels in Triton's interpreter, so many cases at a time; `cache` as in Platform."""
    environment = worker_environment(cache) | {"TRITON_INTERPRET": "1"}
    pool = Pool(module_command(CHECK_WORKER), environment, width)
    return KernelRunner("interpreter", "Triton's interpreter", pool)


class _Gpu:
    """What Triton is to both."""

    device: Device
    backend = TRITON
    compiler = ""
    memory = "shared"
    worst = math.inf
    """Whatever: a bad kernel costs a GPU next to nothing."""

    def model(self, sgraph: SGraph, hints: Mapping[str, int]) -> Model:
        """See Platform."""
        return Model(sgraph, self.device, hints)


@dataclass(frozen=True)
class PresentGpu(_Gpu, Timed):
    """The GPU that is here."""

    device: Device  # the GPU
    target: str = "cuda"
    cache: Path | None = None  # see Platform
    # Children that compile, lent to evaluators and to the gate; each evaluator has its own when None.
    pool: Pool | None = None
    clock: Worker | None = None  # a child that times, lent to all benches; each has its own when None

    def runner(self) -> KernelRunner:
        """See Platform."""
        worker = Worker(module_command(CHECK_WORKER), worker_environment(self.cache))
        return KernelRunner("cuda", "cuda", worker, self._compiled_ahead)

    def _compiled_ahead(
        self, module: Path, sgraph: SGraph, case: Case
    ) -> tuple[object, Callable[[], Future[Reply]]] | None:
        pool = self.pool
        if pool is None:
            return None
        # Triton's kernels depend on which extents are multiples of 16, and which are 1: every case's are compiled.
        job = CompileJob(module, self.device.target, case.config, arguments(sgraph, case.binding), here=True)
        return job.arguments, lambda: pool.submit(request(job), COMPILE_LIMIT_S)

    @contextmanager
    def lending(self) -> Iterator[PresentGpu]:
        """See Timed."""
        with (
            compile_pool(self.cache or cache_root(), min(MOST_COMPILERS, len(usable_cores()))) as pool,
            closing(self._timing()) as clock,
        ):
            yield replace(self, pool=pool, clock=clock)

    def preflight(self, program: Program) -> None:
        """See Platform."""
        check_assembler(self.device.target)
        check_c_compiler()
        if self.pool is not None:
            self.pool.begin(BEGUN)
        if self.clock is not None:
            self.clock.begin()

    def bench(self, program: Program, seed: int) -> Bench:
        """See Platform."""
        worker, lent = self.clock or self._timing(), self.clock is not None
        hints = program.hints
        return Bench(
            program, self.device, hints, seed=seed, worker=worker, arena=self._timing, lent=lent, prepares=False
        )

    def _timing(self) -> Worker:
        return Worker(module_command(WORKER), worker_environment(self.cache))

    def thread_counts(self) -> tuple[int, ...]:
        """See Platform."""
        return (0,)

    def measuring(self, bench: Bench, store: Store) -> Measuring:
        """See Platform."""
        # The same Triton cache as the timing child's: it finds the kernels compiled.
        compiler = Compiler(self.device.target, bench.hints, root=self.cache, pool=self.pool, here=True)
        return Measuring(bench, compiler, store=store)


@dataclass(frozen=True)
class AbsentGpu(_Gpu, Estimated):
    """A GPU that is not here."""

    target: str  # `sm_90` and the like
    device: Device  # its description
    cache: Path | None = None  # see Platform

    def runner(self) -> KernelRunner:
        """See Platform."""
        # This process draws and judges meanwhile.
        return interpreter(self.cache, max(1, min(MOST_INTERPRETERS, len(usable_cores()) // 2)))

    def preflight(self, program: Program) -> None:
        """See Platform."""
        check_assembler(self.device.target)

    def estimating(self, hints: Mapping[str, int], pool: Pool | None = None) -> Estimating:
        """See Platform; the workers may be lent."""
        d = self.device
        return Estimating(Compiler(d.target, hints, root=self.cache, pool=pool), d.name, d.shared_limit_bytes)

    def baseline_seconds(self, program: Program) -> float:
        """See Platform."""
        return baseline_estimate(program, self.device, program.hints).seconds

    def compiled_seconds(self, program: Program) -> float:
        """See Platform."""
        return compiled_estimate(program, self.device, program.hints).seconds
