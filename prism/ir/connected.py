"""What hangs together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def connected(sets: Iterable[frozenset[T]]) -> list[frozenset[T]]:
    """The unions of those that have elements in common, directly or through others; empty ones are left out."""
    groups: list[frozenset[T]] = []
    for one in filter(None, sets):
        apart = [g for g in groups if g.isdisjoint(one)]
        groups = [*apart, one.union(*(g for g in groups if not g.isdisjoint(one)))]
    return groups
