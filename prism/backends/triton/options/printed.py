"""What an emitted module has because launches may have an option: functions, names, how kernels and calls change.

An option is printed so that the configuration decides at the call: the same module runs with it and without it. What it
means and when it is tried, `prism.instantiate.options` says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from prism.backends.host import Signature
from prism.backends.source import Writer
from prism.backends.tile import Constant, TileLaunch, TileModule
from prism.backends.triton.emit_kernel import KernelEmitter, Tail
from prism.errors import BackendError
from prism.program.nodes import Tensor
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph


@dataclass(slots=True)
class Call:
    """How the host calls a launch, as source."""

    launch: TileLaunch  # which one
    tensors: Sequence[Tensor]  # that are passed to it
    lengths: Sequence[str]  # integers that are, known at launch
    constants: Sequence[Constant]  # known at compile time
    counts: list[str]  # how many programs there are, the terms of a sum
    pointers: list[str] = field(default_factory=list)  # arguments more, after the tensors
    last: list[str] = field(default_factory=list)  # arguments more, after the lengths
    keywords: list[str] = field(default_factory=list)  # keyword arguments more, after the constants
    tail: Tail | None = None  # how its kernel goes on, where it is a split's


class Printed:
    """An option in one emitted module; a subclass says what is particular about it.

    Without any `configs` it is for all.
    """

    option: ClassVar[str]  # its name in configurations
    refusal: ClassVar[str]  # why a launch cannot have it
    default: ClassVar[str] = "()"  # what the host reads of a configuration without it
    source: str = ""  # what is pasted into the module
    imports: str = ""  # the same, at its head
    names: Collection[str] = ()  # of functions and classes that it takes in the module
    captured: ClassVar[str] = ""  # what a graph of the launches is captured in, where that is not a graph alone

    def __init__(self, module: TileModule, sgraph: SGraph, configs: Sequence[Config]) -> None:
        self.module = module
        # Those that it is printed for; without any there is nothing of it in the module.
        self.launches: Collection[str] = self.possible(module, sgraph)
        self.chosen = {launch for c in configs for launch in c.launches(self.option)}
        unknown = sorted(self.chosen.difference(self.launches))
        if unknown:
            raise BackendError(self.refusal.format(unknown[0]), where=module.name)

    def possible(self, module: TileModule, sgraph: SGraph) -> Collection[str]:
        """The launches that may have it."""
        return [x.name for x in module.launches]

    def named(self, signature: Signature, taken: set[str]) -> None:
        """Name its functions, once tensors have their names; `taken` gets them."""
        self.signature, self.tensors = signature, signature.tensors

    def kernel(self, launch: TileLaunch, emitter: KernelEmitter) -> None:
        """Change how a program of the launch is written."""

    def wrap(self, launch: TileLaunch, writer: Writer, stages: str, parameters: Sequence[str]) -> None:
        """Write the kernel around what `kernel` has made a function.

        `stages` is the parameter with the pipeline stages, where some loop is told them; `parameters` are those for
        descriptors.
        """

    def decorate(self, writer: Writer) -> None:
        """Write what stands before the host's function `launches`."""

    def begin(self, writer: Writer, device: str) -> None:
        """Write what the host does before the first launch."""

    def instead(self, launch: str) -> Sequence[str] | None:
        """What the host yields in place of a launch that has it; nothing, or None where it goes on being launched."""
        return None

    def call(self, call: Call, writer: Writer) -> None:
        """Change how the host calls a launch, and write what it does just before."""

    def read(self) -> str:
        """The line of the host that reads the configuration."""
        return f'{self.option} = config.get("{self.option}", {self.default})'
