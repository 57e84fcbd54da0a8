"""What runs without --run-slow, of cases that take the same path."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_but(quick: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases as parameters of a test, all but the quick ones marked slow.

    Args:
        quick: the cases that run always: together they take every path that the others take.
        cases: all of them.
    """
    made = list(cases)
    unknown = [case for case in quick if case not in made]
    assert not unknown, f"no such cases: {unknown}"
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in made]
