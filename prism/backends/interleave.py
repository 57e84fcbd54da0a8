"""Timing in turns: round by round, so that a clock that drifts drifts for all contenders."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

LEAST_ROUNDS = 5
"""Rounds that are run whatever they take."""


def interleave(replays: Sequence[Callable[[], float]], repeats: int, until: float = math.inf) -> list[list[float]]:
    """Seconds of each replay: one round after the other, each round beginning with another contender.

    Args:
        replays: each replays a contender once and returns the seconds that a call took.
        repeats: rounds at most.
        until: `time.monotonic()` at which to stop; `LEAST_ROUNDS` are run whatever it is.

    Returns:
        for each contender, its samples.
    """
    samples: list[list[float]] = [[] for _ in replays]
    for round_ in range(repeats):
        if round_ >= LEAST_ROUNDS and time.monotonic() > until:
            break
        for n in range(len(replays)):
            place = (n + round_) % len(replays)
            samples[place].append(replays[place]())
    return samples
