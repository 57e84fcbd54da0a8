"""What search, tuning and output exchange with a backend: configurations, resources, emitted modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Config:
    """One assignment of an sGraph's symbols and of the options of its launches.

    A launch is called as its kernel, or where it is of several kernels as `SGraph.launches` says.

    Attributes:
        symbols: symbol name to value, for every symbol of the sGraph.
        warps: launch name to number of warps.
        stages: launch name to number of software-pipelining stages.
    """

    symbols: Mapping[str, int]
    warps: Mapping[str, int]
    stages: Mapping[str, int]

    def key(self) -> str:
        """A canonical text: equal for equal configurations."""
        parts = [f"{k}={v}" for k, v in sorted(self.symbols.items())]
        parts += [f"warps.{k}={v}" for k, v in sorted(self.warps.items())]
        parts += [f"stages.{k}={v}" for k, v in sorted(self.stages.items())]
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Resources:
    """What the compiler says of one launch under one configuration.

    Attributes:
        kernel: its name.
        shared: shared memory, bytes per block.
        registers: registers per thread; 0 when not known.
        spills: bytes of register spills per thread (stores plus loads).
        warps: warps per block.
    """

    kernel: str
    shared: int
    registers: int
    spills: int
    warps: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """The outcome of compiling every kernel of an sGraph for a target under one configuration.

    Attributes:
        resources: one entry a launch, in order; empty when it failed.
        error: why it failed, in one line; empty when it did not.
    """

    resources: tuple[Resources, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """An emitted module: self-contained Python source.

    Attributes:
        entry: the name of the launcher.
        text: the source.
        kernels: names of the launches in order.
        sgraph_key: canonical text hash of the sGraph that it implements.
    """

    entry: str
    text: str
    kernels: tuple[str, ...]
    sgraph_key: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
