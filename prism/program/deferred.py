"""A library that is loaded by whoever first asks something of it, and not by whoever may."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Deferred:
    """Stands for a module.

    Extents that are numbers, as nearly all are, need no sympy, and loading it is half of what it takes to start the
    e-graph worker.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(self._name), attribute)
        setattr(self, attribute, found)
        return found
