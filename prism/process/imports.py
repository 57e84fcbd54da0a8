"""Imports without the collector of garbage, in processes that are prism's own: the command, and its children."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Let what is imported meanwhile be collected neither now nor later: all of it stays.

    The collector would go through all that there is each time it has grown by a quarter, and later with all else. It
    is the process's: what a user's own process imports is collected as the user has it.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
