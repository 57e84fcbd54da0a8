"""What glibc's allocator does with memory that is freed."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress

_OPTIONS = {"MALLOC_MMAP_MAX_": -4, "MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2}
"""What the allocator looks at when it is loaded, and what malloc.h calls the same for `mallopt`."""
_MOST = 2**31 - 1
"""`mallopt` takes no more."""

KEEPING: Mapping[str, str] = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(_MOST),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""Let arrays that are freed make room for the next.

glibc gives the memory of each large one back, and the system clears it anew for the next, page by page: on virtual
machines that takes longer than what the gate computes. Not in children that time what a user runs: a baseline's outputs
cost there what they cost its user.
"""


def allocate_as(environment: Mapping[str, str]) -> None:
    """Let the allocator of this process do as it would have done, had it been loaded in this environment."""
    with suppress(OSError, AttributeError, ValueError):
        mallopt = ctypes.CDLL(None).mallopt
        for name, option in _OPTIONS.items():
            if name in environment:
                mallopt(option, min(int(environment[name]), _MOST))


def give_back() -> None:
    """Give the system what was freed and is kept, where nothing as large is allocated soon."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
