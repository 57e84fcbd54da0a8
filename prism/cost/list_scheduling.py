"""Programs of unequal length dealt to processors, each taking the next when it is done: when the last is done.

Lengths are taken to lie evenly between the shortest and the longest. Programs of one length come in whole rounds.
Where they differ and the longest come first (`prism.sgraph.load_balance`), what is left at the end is as
short as they get. In any other order a long one may begin last, when the others are on average in the middle of theirs:
two thirds of what the longest does beyond the shortest are then done alone. tests/test_longest_first.py compares this
with schedules worked out program by program.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ALONE = 2.0 / 3.0
"""The part of what the longest program does beyond the shortest that is done alone at the end (guess)."""


def dealt(programs: Any, processors: Any, longest: Any, ordered: bool) -> Any:
    """The time until all are done, in lengths of an average program; numbers or arrays.

    Args:
        programs: how many there are.
        processors: how many work at a time.
        longest: the longest program's length, in lengths of an average one.
        ordered: whether the longest come first.
    """
    shortest = np.maximum(2.0 - longest, 0.0)
    rounds = programs / processors
    end = (np.ceil(rounds) - rounds) * shortest
    if not ordered:
        end = end + np.where(rounds > 1, (longest - shortest) * ALONE, 0.0)
    return np.maximum(rounds + end, longest)
