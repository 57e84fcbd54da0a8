"""Timing in turns: round by round, so that a clock that drifts drifts for all contenders."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

LEAST_ROUNDS = 5
"""Rounds that are run whatever they take."""


T = TypeVar("T")


def interleave(replays: Sequence[Callable[[], T]], repeats: int, until: float = math.inf) -> list[list[T]]:
    """Samples of each replay: one round after the other, each round beginning with another contender.

    Args:
        replays: each replays a contender once and returns the sample: the seconds that a call took.
        repeats: rounds at most.
        until: `time.monotonic()` at which to stop; `LEAST_ROUNDS` are run whatever it is.

    Returns:
        for each contender, its samples.
    """
    samples: list[list[T]] = [[] for _ in replays]
    for round_ in range(repeats):
        if round_ >= LEAST_ROUNDS and time.monotonic() > until:
            break
        for n in range(len(replays)):
            place = (n + round_) % len(replays)
            samples[place].append(replays[place]())
    return samples
