"""What runs without --run-slow, of cases that take the same path."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


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
