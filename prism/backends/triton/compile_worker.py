"""The compile worker: a process that compiles emitted modules for a GPU that is not there, AMD's too.

It makes a driver active that only names a target, then compiles each kernel by Triton's own `warmup` with meta tensors
of the real shapes: the specialisation is the one that a launch would get. Run by `python -m`, never imported by the
parent. Shared memory is in Triton's metadata; registers and the stack are read from the cubin by the bundled
`cuobjdump`, and a kernel with a stack is assembled once more with `ptxas -v`, which tells spills from local arrays.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from prism.backends.loading import load_module
from prism.backends.triton.named_target import compile_for
from prism.process.child import run_tool
from prism.process.serve import Answer, Request, serve

_USAGE = re.compile(r"REG:(\d+)\s+STACK:(\d+)")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_AMD_REGISTERS = re.compile(r"\.vgpr_count:\s+(\d+)")
_AMD_SPILLS = re.compile(r"\.vgpr_spill_count:\s+(\d+)")
_TOOL_LIMIT_S = 60


def bundled(*names: str) -> Path | None:
    """The first of these CUDA tools that this Triton's wheel brings along, or None."""
    import triton

    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    return next((folder / n for n in names if (folder / n).is_file()), None)


def assembler(capability: int) -> Path | None:
    """The ptxas that Triton itself uses for the capability: 3.9 has one of its own from Blackwell on."""
    try:
        from triton.backends.nvidia.compiler import get_ptxas

        return Path(get_ptxas(capability).path)
    except Exception:  # a private function, spelled differently in other versions
        return bundled("ptxas-blackwell", "ptxas") if capability >= 90 else bundled("ptxas", "ptxas-blackwell")


def parse_usage(text: str) -> tuple[int, int]:
    """(registers, stack bytes) per thread from cuobjdump's resource usage; (0, 0) when it says nothing."""
    found = _USAGE.search(text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def parse_spills(text: str) -> int:
    """Bytes of spill stores and loads per thread, summed over the functions in ptxas' report."""
    return sum(int(stores) + int(loads) for stores, loads in _SPILLS.findall(text))


def read_resources(name: str, kernel: Any, target: str) -> dict[str, int | str]:
    """The resources of a compiled Triton kernel.

    `kernel` is Triton's CompiledKernel; None for a launch that a library computes, of which nothing is known.
    """
    if kernel is None:
        return {"kernel": name, "shared": 0, "registers": 0, "spills": 0, "warps": 0}
    registers, spills = 0, 0
    if target.startswith("gfx"):
        text = kernel.asm.get("amdgcn", "")
        registers, spills = (int(m[1]) if (m := p.search(text)) else 0 for p in (_AMD_REGISTERS, _AMD_SPILLS))
        spills *= 4
    cubin = kernel.asm.get("cubin")
    with tempfile.TemporaryDirectory(prefix="prism-") as folder:
        tool = bundled("cuobjdump")
        if cubin and tool:
            file = Path(folder) / "kernel.cubin"
            file.write_bytes(cubin)
            registers, stack = parse_usage(_run([str(tool), "--dump-resource-usage", str(file)]))
            if stack > 0:
                spills = _spills(kernel.asm.get("ptx", ""), int(target.removeprefix("sm_")), Path(folder))
    return {
        "kernel": name,
        "shared": int(kernel.metadata.shared),
        "registers": registers,
        "spills": spills,
        "warps": int(kernel.metadata.num_warps),
    }


def _spills(ptx: str, capability: int, folder: Path) -> int:
    tool = assembler(capability)
    if tool is None or not ptx:
        return 0
    file = folder / "kernel.ptx"
    file.write_text(ptx)
    named = re.search(r"^\.target\s+(sm_\w+)", ptx, re.MULTILINE)
    architecture = named[1] if named else f"sm_{capability}"
    return parse_spills(
        _run([str(tool), "-v", f"--gpu-name={architecture}", str(file), "-o", str(folder / "again.cubin")])
    )


def _run(command: list[str]) -> str:
    return run_tool(command, _TOOL_LIMIT_S).output


def compile_module(request: Request) -> Answer:
    """Compile every kernel that the module launches for the request's arguments; see `crosscompile.request`.

    The target may be one of AMD's, as `gfx942`.
    """
    import torch

    target = str(request["target"])
    compile_for(target)
    module = load_module(Path(request["module"]))
    tensors = [
        torch.empty(tuple(shape), dtype=getattr(torch, dtype), device="meta") for shape, dtype in request["arguments"]
    ]
    found: dict[str, Any] = {}
    for kernel, _grid, args, meta in module.launches(*tensors, config=request["config"]):
        if kernel.__name__ not in found:  # once for all steps of a loop
            built = kernel.warmup(*args, grid=(1,), **meta)
            if request.get("here") and built is not None:
                compile_launcher(built)
            found[kernel.__name__] = read_resources(kernel.__name__, built, target)
    return {"resources": list(found.values())}


def begin() -> Answer:
    """Import what every compilation needs."""
    import torch  # noqa: F401
    import triton.compiler
    import triton.language  # noqa: F401

    return {}


def compile_launcher(built: Any) -> None:
    """Compile the C code that launches a kernel: up to Triton 3.6 there is some a signature, later ones have one."""
    from triton.backends.nvidia import driver

    if hasattr(driver, "make_launcher"):
        driver.CudaLauncher(built.src, built.metadata)


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    serve(compile_module, begin)
