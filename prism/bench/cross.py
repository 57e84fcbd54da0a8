"""The worker that compiles emitted modules for GPUs that are not there, AMD's too: resources, kernel by kernel.

As `prism.backends.triton.compile_worker`, which knows NVIDIA's targets alone: a driver that only names a target, and
Triton's own `warmup` with meta tensors of the real shapes. Run by `python -m`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from prism.backends.triton.crosscompile import load_module
from prism.process.serve import Answer, Request, serve

WORKER = "prism.bench.cross"
"""The module that `python -m` runs."""
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
"""What the suite is compiled for."""
SHARED_LIMIT_BYTES = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
"""Shared memory that one block may use, bytes."""

_AMD = {"registers": r"\.vgpr_count:\s+(\d+)", "spills": r"\.vgpr_spill_count:\s+(\d+)"}


class _NamedTarget:
    """The part of a Triton driver that compilation asks for."""

    def __init__(self, target: str) -> None:
        from triton.backends.compiler import GPUTarget

        amd = target.startswith("gfx")
        self._target = GPUTarget("hip", target, 64) if amd else GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
        # Triton keeps compiled kernels by device number: one number a target keeps targets apart.
        self._device = TARGETS.index(target) if target in TARGETS else len(TARGETS)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return self._device

    def get_current_stream(self, device: int) -> int:
        return 0


def amd_resources(name: str, kernel: Any) -> dict[str, int | str]:
    """The resources of a kernel compiled for an AMD GPU; `spills` in bytes a thread."""
    text = kernel.asm.get("amdgcn", "")
    found = {k: int(m[1]) if (m := re.search(pattern, text)) else 0 for k, pattern in _AMD.items()}
    return {
        "kernel": name,
        "shared": int(kernel.metadata.shared),
        "registers": found["registers"],
        "spills": 4 * found["spills"],
        "warps": int(kernel.metadata.num_warps),
    }


def compile_module(request: Request) -> Answer:
    """Compile every kernel that a module launches.

    The request holds `module`, `target`, `config` and `arguments`, the shapes and data types of inputs and outputs.
    """
    import torch
    from triton.runtime import driver

    from prism.backends.triton.resources import read_resources

    target = str(request["target"])
    capability = 0 if target.startswith("gfx") else int(target.removeprefix("sm_"))
    driver.set_active(_NamedTarget(target))
    module = load_module(Path(request["module"]))
    tensors = [
        torch.empty(tuple(shape), dtype=getattr(torch, dtype), device="meta") for shape, dtype in request["arguments"]
    ]
    found = []
    for kernel, _grid, args, meta in module.launches(*tensors, config=request["config"]):
        built = kernel.warmup(*args, grid=(1,), **meta)
        name = kernel.__name__
        # A library's product is compiled for no target.
        amd = target.startswith("gfx") and built is not None
        found.append(amd_resources(name, built) if amd else read_resources(name, built, capability))
    return {"resources": found}


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    serve(compile_module)
