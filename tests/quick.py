"""What runs without --run-slow, of cases that take the same path."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

RUN_SLOW = "PRISM_TESTS_RUN_SLOW"
"""Set in the environment when --run-slow is given: modules are imported when options are known."""


def run_slow() -> bool:
    """Whether slow tests run, too."""
    return RUN_SLOW in os.environ


def examples(few: int, many: int) -> int:
    """How many random cases a test draws: few of them, unless with --run-slow."""
    return many if run_slow() else few


def slow_but(quick: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases as parameters of a test, all but the quick ones marked slow.

    Args:
        quick: the cases that run always: together they take every path that the others take.
        cases: all of them; a tuple is of several parameters.
    """
    made = list(cases)
    unknown = [case for case in quick if case not in made]
    assert not unknown, f"no such cases: {unknown}"
    slow = pytest.mark.slow
    return [
        c if c in quick else pytest.param(*c, marks=slow) if isinstance(c, tuple) else pytest.param(c, marks=slow)
        for c in made
    ]


class RunPython(Protocol):
    """The fixture `run_python`."""

    def __call__(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        limit_s: float = 120,
    ) -> str:
        """What the child prints."""
