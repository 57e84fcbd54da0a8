"""Measurements that an earlier run of the same command took, so that it ends the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prism.instantiate.cache import Cache


class Store:
    """Stored measurements, by all that they depend on.

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
