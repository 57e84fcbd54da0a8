"""Whether a GPU may be here, by its driver's files."""

from __future__ import annotations

from pathlib import Path

_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")


def has_driver() -> bool:
    """Whether there is a driver for NVIDIA's GPUs; takes microseconds."""
    return any(Path(p).exists() for p in _FILES)
