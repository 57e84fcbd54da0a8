"""A platform: a device, the backend that kernels for it are printed by, and how they are tuned, run and timed there.

`platform_of` chooses one by target; whatever uses it need not know which it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from prism.backends.protocol import Backend
from prism.backends.triton.backend import TritonBackend
from prism.backends.triton.device import describe_gpu
from prism.backends.triton.preflight import check_assembler, check_c_compiler
from prism.cost.device import Device, device
from prism.cost.model import CostModel, Model, baseline_estimate
from prism.errors import UsageError
from prism.instantiate.cache import Store
from prism.instantiate.estimating import Estimating
from prism.instantiate.gate.check import KernelRunner
from prism.instantiate.measure import Bench, Measuring
from prism.program.nodes import Program
from prism.sgraph.nodes import SGraph

ESTIMATED = "sm_90"
"""What is compiled for, and estimated, where nothing is there to time on."""


class Platform(Protocol):
    """What is tuned for."""

    @property
    def target(self) -> str:
        """What was asked for: `sm_90`, `cuda`, `cpu`."""
        ...

    @property
    def device(self) -> Device:
        """The device as the search, the constraints and the partitioner see it."""
        ...

    @property
    def device_name(self) -> str:
        """The device as reports call it."""
        ...

    @property
    def backend(self) -> Backend:
        """What prints kernels."""
        ...

    @property
    def compiler(self) -> str:
        """The system's compiler that kernels depend on; empty where a package brings it."""
        ...

    @property
    def memory(self) -> str:
        """What `Resources.shared` counts, in a word."""
        ...

    @property
    def timed(self) -> bool:
        """Whether kernels are timed, or estimated."""
        ...

    @property
    def worst(self) -> float:
        """How many times the estimate of its family's best configuration another one may have to be tried."""
        ...

    def model(self, sgraph: SGraph, hints: Mapping[str, int]) -> CostModel:
        """The cost model of one sGraph."""
        ...

    def runner(self) -> AbstractContextManager[KernelRunner]:
        """Runs kernels for the numeric gate."""
        ...

    def bench(self, program: Program, seed: int) -> Bench:
        """Times the kernels of a program; only where `timed`."""
        ...

    def thread_counts(self) -> tuple[int, ...]:
        """On how many threads contenders are timed; 0 where that is not for the host to say."""
        ...

    def preflight(self) -> None:
        """Make sure that what compiles works, before anything is searched.

        Raises:
            CompilerError: it does not.
        """
        ...

    def measuring(self, bench: Bench, store: Store) -> AbstractContextManager[Measuring]:
        """The evaluator that times; only where `timed`."""
        ...

    def estimating(self, hints: Mapping[str, int]) -> AbstractContextManager[Estimating]:
        """The evaluator that estimates; only where not `timed`."""
        ...

    def baseline_seconds(self, program: Program) -> float:
        """What the operators take one by one, estimated; only where not `timed`."""
        ...


@dataclass(frozen=True, slots=True)
class TritonPlatform:
    """Triton, on the GPU that is here or compiled for one that is not.

    Attributes:
        target: `cuda`, or `sm_90` and the like.
        device: the GPU.
        timed: whether it is here; else times are estimated.
    """

    target: str
    device: Device
    timed: bool = False

    @property
    def device_name(self) -> str:
        """See Platform."""
        return self.device.name

    @property
    def backend(self) -> TritonBackend:
        """See Platform."""
        return TritonBackend(self.device.target)

    @property
    def compiler(self) -> str:
        """Triton brings its own."""
        return ""

    @property
    def memory(self) -> str:
        """See Platform."""
        return "shared"

    @property
    def worst(self) -> float:
        """Whatever: a bad kernel costs a GPU next to nothing."""
        return math.inf

    def model(self, sgraph: SGraph, hints: Mapping[str, int]) -> Model:
        """See Platform."""
        return Model(sgraph, self.device, hints)

    def runner(self) -> KernelRunner:
        """See Platform."""
        return KernelRunner("cuda" if self.timed else "interpreter")

    def bench(self, program: Program, seed: int) -> Bench:
        """See Platform."""
        return Bench(program, self.device, program.hints, seed=seed)

    def thread_counts(self) -> tuple[int, ...]:
        """See Platform."""
        return (0,)

    def preflight(self) -> None:
        """See Platform."""
        check_assembler(self.device.target)
        if self.timed:
            check_c_compiler()

    def measuring(self, bench: Bench, store: Store) -> Measuring:
        """See Platform."""
        return Measuring(bench, store=store)

    def estimating(self, hints: Mapping[str, int]) -> Estimating:
        """See Platform."""
        d = self.device
        return Estimating(d.target, d.name, d.shared_limit_bytes, hints)

    def baseline_seconds(self, program: Program) -> float:
        """See Platform."""
        return baseline_estimate(program, self.device, program.hints).seconds


def platform_of(target: str | None, warn: Callable[[str], None]) -> Platform:
    """The platform of a target; by default the GPU that is here, else the CPU, else an estimate for a GPU.

    Args:
        target: `cuda`, `cpu`, `sm_90` and the like; None for the default.
        warn: told what the user should know of the choice.

    Raises:
        UsageError: the target is unknown, or it is `cuda` and there is no GPU.
    """
    if target in (None, "cuda"):
        gpu = describe_gpu()
        if gpu is not None:
            device(gpu.target)  # no others can be compiled for
            return TritonPlatform("cuda", gpu, timed=True)
        if target == "cuda":
            fix = f"time on the CPU with --target cpu, or name a GPU to compile for: --target {ESTIMATED}"
            raise UsageError("no GPU was found", where="--target cuda", fix=fix)
    if target in (None, "cpu"):
        from prism.instantiate.cpu_platform import NO_COMPILER, cpu_platform

        found = cpu_platform()
        if found is not None:
            return found
        warn(f"{NO_COMPILER}; times are estimated for {ESTIMATED} instead")
        target = ESTIMATED
    return TritonPlatform(target or ESTIMATED, device(target or ESTIMATED))
