"""Triton as a backend: what `prism.backends.protocol.Backend` asks for, by the modules beside this one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.backends.loading import load_module
from prism.backends.protocol import Argument, Compiled, ModuleSource
from prism.backends.triton.crosscompile import CompileJob, compile_once
from prism.backends.triton.emit import emit_module
from prism.program.nodes import SymbolRange
from prism.program.returned import Returned
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph


@dataclass(frozen=True, slots=True)
class TritonBackend:
    """Triton for one compilation target. `run` and `time` take tensors on its GPU, or on the CPU in the interpreter.

    Attributes:
        target: `sm_90` and the like.
    """

    target: str

    @property
    def name(self) -> str:
        """As reports call it."""
        return "Triton"

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
        return emit_module(
            sgraph, formula=formula, configs=configs or {}, weights=weights, returned=returned, ranges=ranges
        )

    def compile(self, module: Path, config: Config, arguments: Sequence[Argument], timeout_s: float) -> Compiled:
        """See Backend; in a process of its own, which takes seconds to start: the tuner keeps a pool of them."""
        return compile_once(CompileJob(module, self.target, config, tuple(arguments)), timeout_s)

    def run(self, module: Path, config: Config, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """See Backend."""
        for kernel, grid, args, meta in load_module(module).launches(*inputs, *outputs, config=config.encode()):
            kernel[tuple(grid)](*args, **meta)
        if any(t.is_cuda for t in outputs):
            import torch

            torch.cuda.synchronize()

    def time(
        self, module: Path, config: Config, inputs: Sequence[Any], outputs: Sequence[Any], repeats: int
    ) -> list[float]:
        """See Backend; by events around single calls, launch included. The tuner's worker uses graphs (`timing`).

        Of tensors on the CPU it is the interpreter's time, which says nothing of a GPU.
        """
        import torch

        if not any(t.is_cuda for t in outputs):
            return self._interpreted(module, config, inputs, outputs, repeats)
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.run(module, config, inputs, outputs)
        samples = []
        for _ in range(repeats):
            start.record()
            self.run(module, config, inputs, outputs)
            end.record()
            end.synchronize()
            samples.append(float(start.elapsed_time(end)) * 1e-3)
        return samples

    def _interpreted(
        self, module: Path, config: Config, inputs: Sequence[Any], outputs: Sequence[Any], repeats: int
    ) -> list[float]:
        self.run(module, config, inputs, outputs)
        samples = []
        for _ in range(repeats):
            start = time.perf_counter()
            self.run(module, config, inputs, outputs)
            samples.append(time.perf_counter() - start)
        return samples
