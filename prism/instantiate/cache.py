"""A small persistent store of what is expensive to find out again: one JSON file an entry, in the user's cache folder.

A key is made of everything that the entry depends on, versions of packages included, so that an entry is never stale;
deleting the folder is always safe.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prism.folders import cache_root

LAYOUT = 1
"""Raise it when the meaning of stored entries changes."""


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

    Args:
        kind: what it holds; a folder of its own.
        root: the cache folder; the user's by default.
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

    Args:
        cache: where they are; nothing is stored when None.
        anew: whether what an earlier run stored is not to be used; it is replaced.

    Attributes:
        recalled: how many entries were found.
    """

    def __init__(self, cache: Cache | None = None, *, anew: bool = False) -> None:
        self._cache = cache
        self._anew = anew
        self.recalled = 0

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
