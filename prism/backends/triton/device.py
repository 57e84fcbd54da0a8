"""Which GPU is here, asked in a child process: a parent that never touches CUDA can outlive any kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from prism.backends.triton.crosscompile import worker_environment

_ASK = """
import json, torch
if torch.cuda.is_available() and torch.version.cuda:
    p = torch.cuda.get_device_properties(0)
    print(json.dumps({
        "name": p.name,
        "target": f"sm_{p.major}{p.minor}",
        "l2_bytes": int(getattr(p, "L2_cache_size", 0) or 0),
        "shared_limit_bytes": int(getattr(p, "shared_memory_per_block_optin", 0) or 0),
        "memory_bytes": int(p.total_memory),
    }))
"""
_LIMIT_S = 60.0
_DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")


@dataclass(frozen=True, slots=True)
class Gpu:
    """The first GPU of this machine.

    Attributes:
        name: the product.
        target: `sm_90` and the like.
        l2_bytes: L2 cache; 0 when not known.
        shared_limit_bytes: the most shared memory of one block; 0 when not known.
        memory_bytes: device memory.
    """

    name: str
    target: str
    l2_bytes: int
    shared_limit_bytes: int
    memory_bytes: int


def describe_gpu() -> Gpu | None:
    """The first CUDA GPU, or None when there is none that torch can use.

    Takes microseconds where there is no driver, else the seconds that torch takes to import.
    """
    if not any(Path(p).exists() for p in _DRIVERS):
        return None
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            env=worker_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return parse_gpu(done.stdout)


def parse_gpu(text: str) -> Gpu | None:
    """The child's answer as data; None when it said nothing."""
    lines = text.strip().splitlines()
    if not lines:
        return None
    try:
        return Gpu(**json.loads(lines[-1]))
    except (ValueError, TypeError):
        return None


def detect_gpu() -> str | None:
    """The compilation target of the GPU that is here, as `sm_90`, or None."""
    found = describe_gpu()
    return found.target if found else None
