"""egglog, imported where nothing is known of a home folder, too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _some_home() -> Iterator[None]:
    """A cache folder by name, which nothing is written to.

    egglog imports black to print its own programs, and black asks for the user's cache folder as it is imported: an
    error where there is no HOME and the machine does not know the user, as in containers.
    """
    if os.path.isabs(os.path.expanduser("~")):
        yield
        return
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = tempfile.gettempdir()
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before


with _some_home():
    from egglog import bindings
    from egglog.bindings import EGraph

__all__ = ["EGraph", "bindings"]
