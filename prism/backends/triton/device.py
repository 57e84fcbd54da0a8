"""Which GPU is here, asked in a child process: a parent that never touches CUDA can outlive any kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from prism.cost.device import DEVICES, Device
from prism.process.child import child_environment, run_tool

_ASK = """
import json, torch
if torch.cuda.is_available() and torch.version.cuda:
    p = torch.cuda.get_device_properties(0)
    print(json.dumps({
        "name": p.name,
        "target": f"sm_{p.major}{p.minor}",
        "cache_bytes": int(getattr(p, "L2_cache_size", 0) or 0),
        "shared_limit_bytes": int(getattr(p, "shared_memory_per_block_optin", 0) or 0),
    }))
"""
_LIMIT_S = 60.0
_DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")


def describe_gpu() -> Device | None:
    """The first CUDA GPU, or None when there is none that torch can use.

    Takes microseconds where there is no driver, else the seconds that torch takes to import.
    """
    if not any(Path(p).exists() for p in _DRIVERS):
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
    return replace(
        known,
        name=said["name"],
        target=said["target"],
        cache_bytes=said["cache_bytes"] or known.cache_bytes,
        shared_limit_bytes=said["shared_limit_bytes"] or known.shared_limit_bytes,
    )
