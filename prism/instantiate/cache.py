"""A small persistent store of what is expensive to find out again: one JSON file an entry, in the user's cache folder.

A key is made of everything that the entry depends on, versions of packages included, so that an entry is never stale;
deleting the folder is always safe. What the folder holds is counted, cleared, and taken to another place as a whole.

Pickles hold data alone: prism's frozen dataclasses and enumerations, extents, and Python's own. Folders are copied, and
a pickle of any kind may run anything; so nothing else is ever looked up, and a file that was cut off or changed is told
by its hash. sympy's classes are not looked up either, since most of them evaluate the text that they are given: extents
go as text, which `prism.program.extents` reads.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.metadata
import io
import json
import os
import pickle
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import sympy

from prism.errors import UsageError
from prism.folders import cache_root
from prism.program.extents import ExtentError, from_text

LAYOUT = 1
"""Raise it when the meaning of stored entries changes."""


@cache
def version_of(package: str) -> str:
    """The installed version of a package, without importing it; empty when it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def digest(*parts: object) -> str:
    """A hash of the parts: JSON-like data, equal for equal data whatever the order of its keys."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """A dictionary on disk from digests to JSON objects. Several processes may use it at once.

    What it holds has a folder of its own in the cache folder, the user's by default.
    """

    def __init__(self, kind: str, root: Path | None = None) -> None:
        self._folder = (root or cache_root()) / f"{kind}-{LAYOUT}"

    def get(self, key: str) -> dict[str, Any] | None:
        """The entry, or None when there is none that can be read."""
        try:
            entry = json.loads(self._path(key).read_text())
        except (OSError, ValueError):
            return None
        return entry if isinstance(entry, dict) else None

    def put(self, key: str, entry: Mapping[str, Any]) -> None:
        """Store an entry, whole or not at all. A folder that cannot be written only costs time later."""
        write_whole(self._path(key), json.dumps(entry, sort_keys=True).encode())

    def get_bytes(self, key: str) -> bytes | None:
        """An entry that is no JSON; None where there is none that can be read."""
        try:
            return self._path(key, "bin").read_bytes()
        except OSError:
            return None

    def put_bytes(self, key: str, entry: bytes) -> None:
        """Store an entry that is no JSON, as `put` does."""
        write_whole(self._path(key, "bin"), entry)

    def _path(self, key: str, kind: str = "json") -> Path:
        return self._folder / key[:2] / f"{key}.{kind}"


def write_whole(path: Path, data: bytes) -> bool:
    """Write a file, whole or not at all: whether it could be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError:
        return False
    return True


class Store:
    """Measurements that an earlier run of the same command took, so that it ends the same way.

    Nothing is stored without a cache; with `anew` what an earlier run stored is not used, and is replaced.
    """

    def __init__(self, cache: Cache | None = None, *, anew: bool = False) -> None:
        self._cache = cache
        self._anew = anew
        self.recalled = 0  # how many entries were found

    @property
    def anew(self) -> bool:
        """Whether stored measurements are not to be used."""
        return self._anew

    def get(self, key: str) -> dict[str, Any] | None:
        """The entry, or None where it is to be measured."""
        found = None if self._cache is None or self._anew else self._cache.get(key)
        self.recalled += found is not None
        return found

    def put(self, key: str, entry: Mapping[str, Any]) -> None:
        """Store an entry."""
        if self._cache is not None:
            self._cache.put(key, entry)


KINDS: Mapping[str, str] = MappingProxyType(
    {
        "searches": "searches, with what they proved",
        "choices": "what was tuned, checked and confirmed",
        "certificates": "derivations of proofs",
        "comparisons": "of programs, and of models in parts, with what they were made of",
        "modules": "modules that were emitted",
        "compilers": "compilers that work",
        "timings": "measurements",
        "studies": "trials of studies",
        "ended": "marks of models whose runs ended",
        "compiled": "what compilers said of kernels for GPUs",
        "cpp": "C++ kernels, compiled",
        "triton": "Triton's own: compiled kernels",
        "inductor": "torch.compile's own: compiled baselines",
    }
)
"""What the folders of the cache hold; any may be deleted at any time."""
_TAKEN = re.compile(
    r"(searches|choices|certificates|comparisons|timings|compiled)-\d{1,4}/[0-9a-f]{2}/[0-9a-f]{64}\.(json|bin)"
    r"|studies/[0-9a-f]{32}\.log"
)
"""Files that an archive holds: those that are named by all that they depend on, and no compiler's own."""
_PIECE = 1 << 20
"""Bytes that are read at once of an archive."""
_LARGEST = 1 << 28
"""Bytes of a file that is taken from an archive, at most."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a folder of the cache holds."""

    kind: str  # one of `KINDS`
    entries: int  # files
    size: int  # their bytes


def holdings(root: Path) -> list[Holding]:
    """What the cache holds, kind by kind."""
    return [Holding(kind, len(sizes), sum(sizes)) for kind in KINDS for sizes in [_sizes(root, kind)]]


def clear(root: Path) -> list[Holding]:
    """Delete what the cache holds; what is no part of it stays. What was held is returned."""
    before = holdings(root)
    for kind in KINDS:
        for folder in _folders(root, kind):
            shutil.rmtree(folder, ignore_errors=True)
    return before


def export(root: Path, file: Path) -> int:
    """Write what earlier runs found to an archive; how many entries it holds.

    Raises:
        UsageError: the file cannot be written.
    """
    names = sorted(n for n in _names(root) if _TAKEN.fullmatch(n))
    count = 0
    try:
        handle, made = tempfile.mkstemp(dir=file.absolute().parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz", compresslevel=1) as archive:
                for name in names:
                    try:
                        data = (root / name).read_bytes()
                    except OSError:  # another run has just replaced it, or cleared the cache
                        continue
                    entry = tarfile.TarInfo(name)
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
                    count += 1
            os.replace(made, file)
        except BaseException:
            with suppress(OSError):
                os.unlink(made)
            raise
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError("the archive cannot be written", where=str(file), why=why, fix="name another file") from None
    return count


def take(root: Path, file: Path) -> tuple[int, int]:
    """Take in what an archive of `export` holds and the cache does not; how many were taken, and how many it has.

    Raises:
        UsageError: the file cannot be read, is damaged or no such archive, or the cache cannot be written: of a file
            that is not what it was when it was written nothing is taken.
    """
    taken = known = 0
    try:
        # Its sum is at its end, and tarfile takes a damaged head for the end of the archive.
        with gzip.open(file) as whole:
            while whole.read(_PIECE):
                pass
        with tarfile.open(file, "r:gz") as archive:
            entries = archive.getmembers()
            for entry in entries:
                if not entry.isfile() or not _TAKEN.fullmatch(entry.name) or entry.size > _LARGEST:
                    raise UsageError(
                        "the archive holds what prism does not write",
                        where=f"{file}, {entry.name!r}",
                        fix="take an archive that prism cache export made",
                    )
            for entry in entries:
                path = root / entry.name
                if path.exists():
                    known += 1
                    continue
                data = archive.extractfile(entry)
                assert data is not None
                if not write_whole(path, data.read()):
                    fix = "make room, or name a folder that can be written in PRISM_CACHE_DIR"
                    raise UsageError("the cache cannot be written", where=str(root), fix=fix)
                taken += 1
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise UsageError(
            "the archive cannot be read",
            where=str(file),
            why=getattr(error, "strerror", None) or str(error),
            fix="check the path, and that it was copied whole",
        ) from None
    return taken, known


def _names(root: Path) -> Iterator[str]:
    for kind in KINDS:
        for folder in _folders(root, kind):
            for path in folder.rglob("*"):
                if path.is_file():
                    yield path.relative_to(root).as_posix()


def _sizes(root: Path, kind: str) -> list[int]:
    found: list[int] = []
    for folder in _folders(root, kind):
        for path in folder.rglob("*"):
            with suppress(OSError):
                if path.is_file():
                    found.append(path.stat().st_size)
    return found


def _folders(root: Path, kind: str) -> list[Path]:
    """The folders of a kind: its own name, or with a number for the layout of its entries."""
    pattern = re.compile(rf"{kind}(-\d{{1,4}})?")
    try:
        return sorted(p for p in root.iterdir() if pattern.fullmatch(p.name) and p.is_dir() and not p.is_symlink())
    except OSError:
        return []


_HASH = hashlib.sha256
_OTHERS = frozenset(
    {
        ("builtins", "frozenset"),
        ("builtins", "set"),
        ("builtins", "complex"),
        ("collections", "OrderedDict"),
        ("fractions", "Fraction"),
        ("pathlib", "PosixPath"),
        ("pathlib", "WindowsPath"),
    }
)


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self._texts: dict[sympy.Basic, str] = {}

    def persistent_id(self, value: Any) -> str | None:
        if not isinstance(value, sympy.Basic):
            return None
        if value not in self._texts:
            text = str(value)
            if sympy.sympify(from_text(text)) != value:
                raise pickle.PicklingError(f"{text} is no extent")
            self._texts[value] = text
        return self._texts[value]


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._extents: dict[str, sympy.Basic] = {}

    def persistent_load(self, text: Any) -> sympy.Basic:
        if text not in self._extents:
            self._extents[text] = sympy.sympify(from_text(text))
        return self._extents[text]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _OTHERS:
            return super().find_class(module, name)
        if module.partition(".")[0] == "prism" and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__.startswith("prism.") and _is_data(found):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no data")


def _is_data(kind: type) -> bool:
    return is_dataclass(kind) or issubclass(kind, Enum)


def dumps(value: object) -> bytes:
    """The value as bytes, which say whether they are whole.

    Raises:
        pickle.PicklingError: it holds what is neither data nor an extent.
    """
    file = io.BytesIO()
    try:
        _Writer(file).dump(value)
    except ExtentError as error:
        raise pickle.PicklingError(str(error)) from error
    data = zlib.compress(file.getvalue(), 1)
    return _HASH(data).digest() + data


def loads(data: bytes) -> object | None:
    """What `dumps` was given; None where the bytes are damaged, or hold something else than data."""
    length = _HASH().digest_size
    if _HASH(data[length:]).digest() != data[:length]:
        return None
    try:
        found: object = _Reader(io.BytesIO(zlib.decompress(data[length:]))).load()
    except Exception:  # whatever unpickling makes of what another version wrote
        return None
    return found
