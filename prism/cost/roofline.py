"""Time from counts: the roofline that plans, families and sGraphs are ranked by before their tiles are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from prism.cost.device import Device

TILE = 128
"""A tile's length along an axis where tiles are not known yet, elements (guess)."""
LIBRARY_TILE = 64
"""The least tile of a library's product that runs at full rate: shorter results leave processors idle (guess)."""
LIBRARY_DEPTH = 256
"""The least part of its depth for which a library shares a product among programs (guess)."""


def seconds(device: Device, moved: Any, work: Any, programs: Any) -> Any:
    """The time of one launch: the larger of traffic and work, at the share of the device that the programs fill.

    Args:
        device: what it runs on.
        moved: bytes, a number or an array.
        work: vector multiply-adds, those of matrix units weighed by `Device.matrix_operation`.
        programs: how many are launched.
    """
    filled = np.minimum(np.asarray(programs, dtype=np.float64), device.processors)
    least = np.maximum(np.asarray(moved) / device.bandwidth_bytes_s, np.asarray(work) / device.multiply_adds_s)
    return least * (device.processors / filled) + device.launch_overhead_s
