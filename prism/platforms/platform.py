"""What is tuned for: a device that is here, where kernels are timed, or a described one, where times are estimated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import ClassVar, TypeAlias

from prism.backends.protocol import Backend
from prism.cost.device import Device
from prism.cost.model import CostModel
from prism.instantiate.cache import Store
from prism.instantiate.gate.check import KernelRunner
from prism.instantiate.measure import Bench, Measuring
from prism.platforms.estimating import Estimating
from prism.program.nodes import Program
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import SGraph


class _Target(ABC):
    """What both have: a device, and what kernels for it are printed, modelled and run by."""

    target: str  # what was asked for: `sm_90`, `cuda`, `cpu`
    device: Device  # the device as the search, the constraints and the partitioner see it
    backend: ClassVar[Backend]  # what prints kernels
    compiler: str  # the system's compiler that kernels depend on; empty where a package brings it
    memory: str  # what `Resources.shared` counts, in a word
    worst: float  # how many times the estimate of its family's best configuration another one may have to be tried
    timed: bool  # whether kernels are timed, or estimated
    cache: Path | None  # where compiled kernels are kept; the user's cache folder when None

    @property
    def device_name(self) -> str:
        """The device as reports call it."""
        return self.device.name

    @abstractmethod
    def model(self, sgraph: SGraph, hints: Mapping[str, int]) -> CostModel:
        """The cost model of one sGraph."""

    @abstractmethod
    def runner(self) -> AbstractContextManager[KernelRunner]:
        """Runs kernels for the numeric gate."""

    @abstractmethod
    def preflight(self, program: Program) -> None:
        """Make sure that what compiles works, before anything is searched; begin what every kernel of it will need.

        Raises:
            CompilerError: it does not.
        """


class Timed(_Target):
    """A device that is here."""

    timed = True

    @abstractmethod
    def bench(self, program: Program, seed: int) -> Bench:
        """Times the kernels of a program."""

    def lending(self) -> AbstractContextManager[Timed]:
        """The same, whose benches and evaluators share children that live as long as the block, where that is done."""
        return nullcontext(self)

    @abstractmethod
    def thread_counts(self) -> tuple[int, ...]:
        """On how many threads contenders are timed; 0 where that is not for the host to say."""

    def resources(self, sgraph: SGraph, config: Config, hints: Mapping[str, int]) -> tuple[Resources, ...] | None:
        """What a configuration's launches take, where that is known before they are compiled; else None."""
        return None

    @abstractmethod
    def measuring(self, bench: Bench, store: Store) -> AbstractContextManager[Measuring]:
        """The evaluator that times."""


class Estimated(_Target):
    """A device that is described."""

    timed = False

    @abstractmethod
    def estimating(self, hints: Mapping[str, int]) -> AbstractContextManager[Estimating]:
        """The evaluator that estimates."""

    @abstractmethod
    def baseline_seconds(self, program: Program) -> float:
        """What the operators take one by one, estimated."""

    @abstractmethod
    def compiled_seconds(self, program: Program) -> float:
        """What they take as torch.compile fuses them, estimated."""


Platform: TypeAlias = Timed | Estimated
