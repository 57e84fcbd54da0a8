"""What the CPU at hand is: cores, caches, vector length, compiler; read at run time."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from prism.backends.cpu.support import find_compiler
from prism.process.child import run_tool

_CPU = Path("/sys/devices/system/cpu")
# Where the system does not tell: what nearly every processor of the last ten years has.
_L1, _L2, _L3 = 32 << 10, 512 << 10, 8 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """A CPU, as much of it as this process may use."""

    name: str  # of the processor
    cores: int  # that this process may run on
    l1_bytes: int  # first-level data cache of a core
    l2_bytes: int  # second-level cache of a core
    l3_bytes: int  # last-level cache that cores share
    vector_bits: int  # of the widest vector unit that compiled kernels use
    flags: tuple[str, ...]  # instruction sets, sorted
    compiler: str  # name and version of the C++ compiler; empty where there is none


def describe() -> Machine:
    """The machine at hand."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    info = _cpuinfo()
    flags = tuple(sorted(set((info.get("flags") or info.get("Features") or "").split())))
    caches = _caches(min(cores))
    return Machine(
        name=info.get("model name") or platform.processor() or platform.machine(),
        cores=len(cores),
        l1_bytes=caches.get(1, _L1),
        l2_bytes=caches.get(2, _L2),
        l3_bytes=caches.get(3, _L3),
        vector_bits=vector_bits(flags),
        flags=flags,
        compiler=_compiler(),
    )


def vector_bits(flags: tuple[str, ...]) -> int:
    """The vector length that csrc/core.hpp chooses on a processor with these flags."""
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(flags):
        return 512
    return 256 if "avx" in flags else 128


def _cpuinfo() -> Mapping[str, str]:
    """The first processor of /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in text.split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        found[key.strip()] = value.strip()
    return found


def _caches(core: int) -> Mapping[int, int]:
    """Bytes of the data caches that a core uses, by level."""
    found: dict[int, int] = {}
    for folder in sorted((_CPU / f"cpu{core}" / "cache").glob("index*")):
        try:
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            size = (folder / "size").read_text().strip()
            unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 1)
            found[int((folder / "level").read_text())] = int(size.rstrip("KMG")) * unit
        except (OSError, ValueError):
            continue
    return found


@lru_cache(maxsize=1)
def _compiler() -> str:
    path = find_compiler()
    if path is None:
        return ""
    try:
        said = run_tool([str(path), "--version"], 30).output
    except (OSError, subprocess.TimeoutExpired):
        return path.name
    first = said.splitlines()[0] if said else ""
    return f"{path.name} ({first})" if first else path.name
