"""Triton on GPUs: on the one that is here, or compiled for one that is not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prism.backends.triton.backend import TritonBackend
from prism.backends.triton.crosscompile import worker_environment
from prism.backends.triton.device import check_assembler, check_c_compiler
from prism.backends.triton.timing import WORKER
from prism.cost.compiled import compiled_estimate
from prism.cost.device import Device
from prism.cost.model import Model, baseline_estimate
from prism.instantiate.cache import Store
from prism.instantiate.gate.check import KernelRunner
from prism.instantiate.measure import Bench, Measuring
from prism.platforms.estimating import Compiler, Estimating
from prism.platforms.platform import Estimated, Timed
from prism.process.child import module_command
from prism.process.worker import Pool, Worker
from prism.program.nodes import Program
from prism.sgraph.nodes import SGraph

CHECK_WORKER = "prism.backends.triton.check_worker"


def interpreter(cache: Path | None = None) -> KernelRunner:
    """Runs kernels in Triton's interpreter; `cache` as in Platform."""
    environment = worker_environment(cache) | {"TRITON_INTERPRET": "1"}
    return KernelRunner("interpreter", "Triton's interpreter", Worker(module_command(CHECK_WORKER), environment))


class _Gpu:
    """What Triton is to both."""

    device: Device
    compiler = ""
    memory = "shared"
    worst = math.inf
    """Whatever: a bad kernel costs a GPU next to nothing."""

    @property
    def backend(self) -> TritonBackend:
        """See Platform."""
        return TritonBackend(self.device.target)

    def model(self, sgraph: SGraph, hints: Mapping[str, int]) -> Model:
        """See Platform."""
        return Model(sgraph, self.device, hints)


@dataclass(frozen=True)
class PresentGpu(_Gpu, Timed):
    """The GPU that is here.

    Attributes:
        device: the GPU.
        cache: see Platform.
    """

    device: Device
    target: str = "cuda"
    cache: Path | None = None

    def runner(self) -> KernelRunner:
        """See Platform."""
        return KernelRunner("cuda", "cuda", Worker(module_command(CHECK_WORKER), worker_environment(self.cache)))

    def preflight(self, program: Program) -> None:
        """See Platform."""
        check_assembler(self.device.target)
        check_c_compiler()

    def bench(self, program: Program, seed: int) -> Bench:
        """See Platform."""
        worker = Worker(module_command(WORKER), worker_environment(self.cache))
        return Bench(program, self.device, program.hints, seed=seed, worker=worker)

    def thread_counts(self) -> tuple[int, ...]:
        """See Platform."""
        return (0,)

    def measuring(self, bench: Bench, store: Store) -> Measuring:
        """See Platform."""
        # The same Triton cache as the timing child's: it finds the kernels compiled.
        return Measuring(bench, Compiler(self.device.target, bench.hints, root=self.cache), store=store)


@dataclass(frozen=True)
class AbsentGpu(_Gpu, Estimated):
    """A GPU that is not here.

    Attributes:
        target: `sm_90` and the like.
        device: its description.
        cache: see Platform.
    """

    target: str
    device: Device
    cache: Path | None = None

    def runner(self) -> KernelRunner:
        """See Platform."""
        return interpreter(self.cache)

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
