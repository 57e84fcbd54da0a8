"""How far from exact results kernels may be; it imports nothing, as the benchmarks' child asks for it, too."""

from __future__ import annotations

RMS_FACTOR = 4.0
"""By how much a kernel's RMS error may be larger than eager's, or than the unit roundoff where that is more."""
MAX_FACTOR = 8.0
"""The same of the maximal error, and of 4 unit roundoffs."""


def ratios(rms: float, largest: float, their_rms: float, their_largest: float, roundoff: float) -> tuple[float, float]:
    """The RMS error and the maximal one, each as a multiple of what is allowed; eager's are `their` own."""
    return rms / (RMS_FACTOR * max(their_rms, roundoff)), largest / (MAX_FACTOR * max(their_largest, 4 * roundoff))
