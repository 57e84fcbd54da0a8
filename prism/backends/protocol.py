"""What search, tuning and output ask of a backend: data first, then the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prism.sgraph.nodes import SGraph


@dataclass(frozen=True, slots=True)
class Config:
    """One assignment of an sGraph's symbols and of the launch options of its kernels.

    Attributes:
        symbols: symbol name to value, for every symbol of the sGraph.
        warps: kernel name to number of warps.
        stages: kernel name to number of software-pipelining stages.
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
    """What the compiler says of one kernel under one configuration.

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
        resources: one entry a kernel, in launch order; empty when it failed.
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
        kernels: names of the kernels in launch order.
        sgraph_key: canonical text hash of the sGraph that it implements.
    """

    entry: str
    text: str
    kernels: tuple[str, ...]
    sgraph_key: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)


class Backend(Protocol):
    """A way to turn sGraphs into code that runs."""

    name: str

    def emit(self, sgraph: SGraph, *, formula: str, configs: Mapping[str, Sequence[Config]]) -> ModuleSource:
        """Source for the sGraph; `configs` are the tuned configurations by target name."""
        ...

    def compile(self, module: Path, target: str, config: Config, shapes: Mapping[str, int]) -> Compiled:
        """Compile every kernel of an emitted module; `shapes` binds the symbols of the extents."""
        ...
