"""Which GPU is here, and whether the tools that Triton compiles with work, before anything is searched.

The GPU is asked for in a child process: a parent that never touches CUDA can outlive any kernel. Triton calls NVIDIA's
assembler, its own or the one that TRITON_PTXAS_PATH names, and on a GPU a C compiler for the code that launches
kernels. One that is broken or hangs would fail every trial, minutes later.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from prism.cost.device import DEVICES, Device
from prism.errors import CompilerError
from prism.process.child import child_environment, run_tool
from prism.process.gpu_driver import has_driver

_ASK = """
import ctypes, json, torch

def driver(attribute):
    try:
        found = ctypes.c_int(0)
        failed = ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute(ctypes.byref(found), attribute, 0)
    except (OSError, AttributeError):
        return 0
    return 0 if failed else found.value

if torch.cuda.is_available() and torch.version.cuda:
    p = torch.cuda.get_device_properties(0)
    print(json.dumps({
        "name": p.name,
        "target": f"sm_{p.major}{p.minor}",
        "cache_bytes": int(getattr(p, "L2_cache_size", 0) or 0),
        "shared_limit_bytes": int(getattr(p, "shared_memory_per_block_optin", 0) or 0),
        "processors": int(p.multi_processor_count),
        "memory_khz": driver(36),
        "memory_bits": driver(37),
    }))
"""
_LIMIT_S = 60.0


def describe_gpu() -> Device | None:
    """The first CUDA GPU, or None when there is none that torch can use.

    Takes microseconds where there is no driver, else the seconds that torch takes to import.
    """
    if not has_driver():
        return None
    try:
        done = run_tool([sys.executable, "-P", "-c", _ASK], _LIMIT_S, child_environment(TRITON_INTERPRET=None))
    except subprocess.TimeoutExpired:
        return None
    return parse_gpu(done.output)


def parse_gpu(text: str) -> Device | None:
    """The child's answer as a device; None when it said nothing.

    What the child does not know is as the described device of its target has it, or an H200 where none is.
    """
    said = next((json.loads(line) for line in text.splitlines() if line.startswith("{")), None)
    if said is None:
        return None
    known = DEVICES.get(said["target"], DEVICES["sm_90"])
    # Two transfers a cycle, of the bus's width.
    memory = 2e3 * said.get("memory_khz", 0) * said.get("memory_bits", 0) / 8
    return replace(
        known.of_size(said.get("processors") or known.processors, memory),
        name=said["name"],
        target=said["target"],
        cache_bytes=said["cache_bytes"] or known.cache_bytes,
        shared_limit_bytes=said["shared_limit_bytes"] or known.shared_limit_bytes,
    )


PROBE = """.version 7.0
.target sm_80
.address_size 64
.visible .entry prism_probe() { ret; }
"""
PROBE_LIMIT_S = 30.0
"""What assembling a kernel that does nothing may take, seconds."""
OWN_FROM = 100
"""The capability from which Triton looks for an assembler of another name first."""


def check_assembler(target: str, timeout_s: float = PROBE_LIMIT_S) -> None:
    """Assemble a kernel that does nothing.

    `timeout_s` is for each of the two things that it is asked for.

    Raises:
        CompilerError: Triton is not installed, or its assembler does not do so.
    """
    tool, variable = _assembler(int(target.removeprefix("sm_")))
    with tempfile.TemporaryDirectory(prefix="prism-probe-") as folder:
        source, result = Path(folder) / "probe.ptx", Path(folder) / "probe.cubin"
        source.write_text(PROBE, encoding="utf-8")
        commands = [[str(tool), "--version"], [str(tool), f"--gpu-name={target}", str(source), "-o", str(result)]]
        why = ""
        for command in commands:
            try:
                ended = run_tool(command, timeout_s)
                why = str(ended) if ended.code else ""
            except subprocess.TimeoutExpired:
                why = f"it took more than {timeout_s:g} s for a kernel that does nothing"
            except OSError as error:
                why = f"it cannot be started: {error.strerror or error}"
            if why:
                break
        else:
            if not result.is_file() or result.read_bytes()[:4] != b"\x7fELF":
                why = "what it made is no GPU code"
    if why:
        raise CompilerError(
            "Triton's assembler does not work",
            where=str(tool),
            why=f"{why} (the command was {' '.join(Path(c).name for c in command)})",
            fix=f"unset {variable} or set it to another ptxas, install triton again, or tune for --target cpu",
        )


def check_c_compiler() -> None:
    """Whether there is a C compiler for what launches kernels on a GPU. Raises CompilerError: there is none."""
    named = os.environ.get("CC")
    if not any(shutil.which(c) for c in ([named] if named else ("gcc", "clang", "cc"))):
        raise CompilerError(
            "no C compiler was found",
            where=f"CC={named}" if named else "PATH",
            why="Triton compiles what launches its kernels",
            fix="install gcc or clang, or set CC to one",
        )


def _assembler(capability: int) -> tuple[Path, str]:
    """The program that Triton would call, and the variable that names another."""
    names = ("ptxas-blackwell", "ptxas") if capability >= OWN_FROM else ("ptxas",)
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        raise CompilerError(
            "Triton is not installed", why="kernels for GPUs are compiled by it", fix="pip install triton"
        )
    folder = Path(found.origin).parent / "backends" / "nvidia" / "bin"
    for name in names:
        variable = f"TRITON_{name.replace('-', '_').upper()}_PATH"
        given = os.environ.get(variable)
        if given:
            return Path(given), variable
        if (folder / name).is_file():
            return folder / name, variable
    return folder / "ptxas", "TRITON_PTXAS_PATH"
