"""C++ for the CPU: what `prism.backends.protocol.Backend` asks for, by the modules in `prism.backends.cpu`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.backends.cpu.build import compile_module
from prism.backends.cpu.emit import emit_module
from prism.backends.cpu.running import bound_call
from prism.backends.loading import load_module
from prism.backends.protocol import Argument, Compiled, ModuleSource
from prism.program.nodes import SymbolRange
from prism.program.returned import Returned
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import SGraph


@dataclass(frozen=True, slots=True)
class CppBackend:
    """C++ with OpenMP, compiled by the system's compiler.

    Attributes:
        threads: that kernels run on.
    """

    threads: int

    @property
    def name(self) -> str:
        """As reports call it."""
        return "C++"

    def emit(
        self,
        sgraph: SGraph,
        *,
        formula: str = "",
        configs: Mapping[str, Sequence[Config]] | None = None,
        weights: bool = False,
        returned: Sequence[Returned] = (),
        ranges: Mapping[str, SymbolRange] | None = None,
    ) -> ModuleSource:
        """See Backend."""
        return emit_module(sgraph, formula=formula, configs=configs, weights=weights, returned=returned, ranges=ranges)

    def compile(self, module: Path, config: Config, arguments: Sequence[Argument], timeout_s: float) -> Compiled:
        """See Backend. The compiler is a process of its own; a compiled module takes all shapes.

        It says nothing of memory: `cpu_platform.working_sets` does, of the sGraph.
        """
        built = compile_module(module, config, timeout_s=timeout_s)
        if built.library is None:
            return Compiled(error=built.error or "the compiler made no library")
        return Compiled(tuple(Resources(name, 0, 0, 0, self.threads) for name in launches(module)))

    def run(self, module: Path, config: Config, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """See Backend."""
        self.call(module, config, inputs, outputs)()

    def time(
        self, module: Path, config: Config, inputs: Sequence[Any], outputs: Sequence[Any], repeats: int
    ) -> list[float]:
        """See Backend."""
        call = self.call(module, config, inputs, outputs)
        call()
        samples = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            samples.append(time.perf_counter() - start)
        return samples

    def call(
        self, module: Path, config: Config, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> Callable[[], Sequence[Any]]:
        """A function that runs the module once on these tensors and returns the outputs."""
        return bound_call(module, config, inputs, outputs, self.threads)


def launches(module: Path) -> list[str]:
    """The launches of an emitted module in order: its source includes that of each."""
    source = module.with_name(load_module(module, apart=True).SOURCE)
    lines = source.read_text(encoding="utf-8").splitlines()
    return [Path(line.split('"')[1]).stem for line in lines if line.startswith('#include "')]
