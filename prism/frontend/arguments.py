"""The arguments of one call of an operator, which remember what was asked of them.

A handler that does not know an argument must not drop it. So the readers do not trust it to list what it knows: they
ask, when it is done, which arguments it never looked at, and refuse a call in which one of those says something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Given(Mapping[str, Any]):
    """Arguments by name; looking one up, or asking whether it is there, counts as knowing it."""

    __slots__ = ("_read", "_values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        self._read.add(str(name))
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def afresh(self) -> Given:
        """The same arguments, none of them looked at."""
        return Given(self._values)

    @property
    def unread(self) -> Mapping[str, Any]:
        """The arguments that nobody looked at."""
        return {name: value for name, value in self._values.items() if name not in self._read}
