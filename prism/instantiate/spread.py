"""How sure a gain is: what it would have been, had other rounds been drawn from those that were run.

Lower quartiles of a few dozen samples are not numbers to the last digit, and on a machine that does other things some
contenders have two: one for when they find all cores free, one for when they do not. So rounds are drawn again, with
replacement, a few hundred times, and what the middle nine tenths of those gains lie between is what is known. Rounds
are drawn whole: what slowed both sides in one of them slows both again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeAlias

DRAWS = 200
"""How often rounds are drawn again."""
OUTSIDE = 0.05
"""The part of the draws that may lie below what is said, and that may lie above."""

Taken: TypeAlias = Mapping[str, Sequence[float]]
"""Seconds by contender, one sample a round; of contenders that left early, those of the first rounds."""


def lower_quartile(ordered: Sequence[float]) -> float:
    """Of samples in order, as `statistics.quantiles` has it with the method `inclusive`."""
    place, part = divmod(len(ordered) - 1, 4)
    low = ordered[place]
    return low if not part else low + (ordered[place + 1] - low) * part / 4


def between(matches: Sequence[tuple[Taken, Taken]]) -> tuple[float, float]:
    """What the gain of the best kernel over the best baseline lies between, of all rounds of these matches together.

    Args:
        matches: of each match the samples of kernels and those of baselines; each side has at least one contender.
    """
    # The same samples say the same, in every run.
    rng = random.Random(0)
    gains = sorted(_drawn(matches, rng) for _ in range(DRAWS))
    outside = int(OUTSIDE * DRAWS)
    return gains[outside], gains[-1 - outside]


def _drawn(matches: Sequence[tuple[Taken, Taken]], rng: random.Random) -> float:
    """The gain in rounds that are drawn again, of each match as many as it has."""
    sides: tuple[dict[str, list[float]], ...] = ({}, {})
    for match in matches:
        count = max(len(samples) for side in match for samples in side.values())
        places = rng.choices(range(count), k=count)
        for side, held in zip(match, sides, strict=True):
            for name, samples in side.items():
                # What left early has few rounds to be drawn from.
                few = len(samples)
                held.setdefault(name, []).extend(samples[p % few] for p in places[:few])
    kernel, baseline = (min(lower_quartile(sorted(s)) for s in side.values()) for side in sides)
    return baseline / kernel
