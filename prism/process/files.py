"""What tells a file from others: its content, hashed once a process, and ahead of who asks for it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock, Thread

_ONE_AT_A_TIME = Lock()


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal. It is not read again while the file system says it is the same.

    Raises:
        OSError: it cannot be read.
    """
    with _ONE_AT_A_TIME:  # who asks while it is hashed waits for that
        now = path.stat()
        return _digest(path.resolve(), now.st_ino, now.st_size, now.st_mtime_ns)


def hash_ahead(path: Path) -> Thread:
    """Hash a file while this thread does something else: neither reading nor hashing holds the interpreter."""

    def hashed() -> None:
        with suppress(OSError):  # told by who asks for it
            digest_of_file(path)

    thread = Thread(target=hashed, name="prism-digest", daemon=True)
    thread.start()
    return thread


@lru_cache(maxsize=256)
def _digest(path: Path, *_stamp: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
