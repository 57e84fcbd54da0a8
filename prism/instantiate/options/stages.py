"""Warps and pipeline stages: what every launch has that runs a kernel of prism's, where the device has such options."""

from __future__ import annotations

from prism.cost.constraints import Footprint
from prism.cost.device import Device
from prism.sgraph.nodes import Loop

WARPS = (1, 2, 4, 8)
STAGES = (1, 2, 3, 4)
PLAIN_STAGES = (1, 3)
"""Without a matrix product in the loop, pipelining is on or off."""


def warps_of(device: Device) -> tuple[int, ...]:
    """Warps that a kernel may have."""
    return WARPS if device.is_gpu else (1,)


def stages_of(f: Footprint, device: Device) -> tuple[int, ...]:
    """Pipeline stages that a kernel may have."""
    loops = any(isinstance(s, Loop) for s in f.kernel.body)
    return (STAGES if f.staged else PLAIN_STAGES if loops else (1,)) if device.is_gpu else (1,)
