"""Where prism keeps things on the user's machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from prism.errors import UsageError

ROOM = 1 << 20
"""Bytes that must fit into a folder before a run counts on it."""
NOT_KEPT = "nothing of this run is kept"
"""The note on what interrupts a run that has no cache."""


def cache_root() -> Path:
    """Where prism keeps what it may compute again: PRISM_CACHE_DIR, else the user's cache folder.

    Raises:
        UsageError: there is neither.
    """
    chosen = os.environ.get("PRISM_CACHE_DIR")
    if chosen:
        return Path(chosen).absolute()
    try:
        return Path(platformdirs.user_cache_dir("prism")).absolute()
    except RuntimeError:  # no HOME, and a user whom the machine does not know, as in containers
        raise UsageError(
            "there is no folder to store measurements in",
            where="cache",
            why="the user has no home folder",
            fix="name one in PRISM_CACHE_DIR, or set HOME",
        ) from None


@contextmanager
def cache_or_spare(warn: Callable[[str], None]) -> Iterator[Path]:
    """The cache folder; where it cannot be written, an empty one that is gone at the end, and a warning.

    What interrupts a run without a cache has the note `NOT_KEPT`.

    A cache saves time and lets a run repeat what an earlier one measured: a run can do without, so it does.

    Raises:
        OSError: the machine has no room for temporary files either.
    """
    try:
        root = cache_root()
        make_room(root)
    except (UsageError, OSError) as error:
        why = error.why if isinstance(error, UsageError) else f"{root}: {error.strerror or error}"
        warn(f"measurements and compiled kernels are not stored: {why}; name a folder in PRISM_CACHE_DIR")
        with tempfile.TemporaryDirectory(prefix="prism-cache-") as spare:
            make_room(Path(spare))
            try:
                yield Path(spare)
            except KeyboardInterrupt as interrupt:
                interrupt.add_note(NOT_KEPT)
                raise
        return
    yield root


def make_room(folder: Path, room: int = ROOM) -> None:
    """Make the folder, and make sure that so many bytes can be written into it; they are gone again.

    Raises:
        OSError: they cannot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        left = room
        while left > 0:
            left -= file.write(bytes(left))
