"""Contents of files, large ones in pieces that lie where they were made."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO, Any, TypeAlias

from prism.errors import ModelError

LINKED = 1 << 20
"""Bytes from which on a file that is there with the same bytes is linked, instead of written once more."""
_AT_ONCE = 1 << 17
"""Bytes that are compared at once: what stays in a cache."""


def check_readable(model: Path) -> int:
    """How many bytes a model's file has. Raises ModelError: it is missing, is no file, or may not be read."""
    try:
        why = "" if model.is_file() else "it is not a regular file"
        size = model.stat().st_size
        if not why and not os.access(model, os.R_OK):
            why = os.strerror(errno.EACCES)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
    if why:
        raise ModelError("the model cannot be read", where=str(model), why=why, fix="check the path")
    return size


class Mapped(mmap.mmap):
    """A file that is read as it lies in memory; parts of it are copied from it."""

    descriptor: int = -1  # of the file, open as long as it is mapped

    @classmethod
    def of(cls, path: Path) -> Mapped:
        """All of a file, none of it read. Raises OSError; ValueError: it is empty."""
        with path.open("rb") as file:
            made = cls(file.fileno(), 0, access=mmap.ACCESS_READ)
            made.descriptor = os.dup(file.fileno())
        return made

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class Pieces:
    """The bytes of a file that is too large to be held twice, one piece after another.

    They are made once, by whoever asks first.
    """

    def __init__(self, make: Callable[[], Iterable[bytes | memoryview]]) -> None:
        self._make = make
        self._made: Future[tuple[tuple[memoryview, ...], str]] | None = None

    def begin(self) -> None:
        """Make and hash them in a thread of its own: neither needs the interpreter while it goes through numbers."""
        if self._made is None:
            self._made = Future()
            Thread(target=self._run, args=(self._made,), name="prism-pieces", daemon=True).start()

    def __iter__(self) -> Iterator[memoryview]:
        return iter(self._found()[0])

    def __len__(self) -> int:
        return sum(p.nbytes for p in self)

    def __bytes__(self) -> bytes:
        return b"".join(self)

    def sha256(self) -> str:
        """The SHA-256 of all bytes, in hexadecimal."""
        return self._found()[1]

    def _found(self) -> tuple[tuple[memoryview, ...], str]:
        if self._made is None:
            self._made = Future()
            self._run(self._made)
        return self._made.result()

    def _run(self, made: Future[tuple[tuple[memoryview, ...], str]]) -> None:
        try:
            pieces = tuple(memoryview(p) for p in self._make())
            found = hashlib.sha256()
            for p in pieces:
                found.update(p)
            made.set_result((pieces, found.hexdigest()))
        except BaseException as error:  # which whoever asks gets
            made.set_exception(error)


Content: TypeAlias = bytes | Pieces
"""What a file holds."""


def sha256(content: Content) -> str:
    """The SHA-256, in hexadecimal."""
    return content.sha256() if isinstance(content, Pieces) else hashlib.sha256(content).hexdigest()


def pieces(content: Content) -> Iterable[bytes | memoryview]:
    """The bytes, in order."""
    return content if isinstance(content, Pieces) else (content,)


def put(path: Path, content: Content, *, new: bool = False) -> None:
    """Write a file; a new one stays when this returns, whatever happens to the machine.

    Raises:
        FileExistsError: it is to be new, and is there.
    """
    with path.open("xb" if new else "wb") as file:
        for piece in pieces(content):
            if not _copied(piece, file):
                file.write(piece)
        if new:
            file.flush()
            os.fsync(file.fileno())


def _copied(piece: bytes | memoryview, file: IO[bytes]) -> bool:
    """Whether the system has copied a piece from the mapped file that it lies in, which takes a fifth of writing it."""
    copy, size = getattr(os, "copy_file_range", None), len(piece)
    source = _source(piece) if isinstance(piece, memoryview) and size >= LINKED else None
    if copy is None or source is None:
        return False
    mapped, begin = source
    file.flush()
    at, done = file.tell(), 0
    with suppress(OSError):  # between file systems that cannot, or of a kernel that does not
        while done < size and (more := copy(mapped.descriptor, file.fileno(), size - done, begin + done, at + done)):
            done += more
    file.seek(at + done if done == size else at)
    return done == size


def _source(piece: memoryview) -> tuple[Mapped, int] | None:
    """The mapped file that a piece lies in, and where it begins there; None where it lies elsewhere."""
    import numpy as np

    of: Any = piece.obj
    while isinstance(of, np.ndarray):
        of = of.base
    of = of.obj if isinstance(of, memoryview) else of
    if not isinstance(of, Mapped):
        return None
    first, own = (np.frombuffer(x, np.uint8).__array_interface__["data"][0] for x in (of, piece))
    return (of, own - first) if 0 <= own - first <= len(of) - piece.nbytes else None


def is_there(path: Path, content: Content) -> bool:
    """Whether a large content is what a regular file holds, byte by byte."""
    size = len(content)
    if size < LINKED or path.is_symlink():
        return False
    with suppress(OSError), path.open("rb") as file:
        if path.stat().st_size != size:
            return False
        for piece in pieces(content):
            for begin in range(0, len(piece), _AT_ONCE):
                part = bytes(piece[begin : begin + _AT_ONCE])
                if file.read(len(part)) != part:
                    return False
        return True
    return False
