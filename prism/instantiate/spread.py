"""How sure a gain is: what it would have been, had other rounds been drawn from those that were run.

Lower quartiles of a few dozen samples are not numbers to the last digit, and on a machine that does other things some
contenders have two: one for when they find all cores free, one for when they do not. So rounds are drawn again, with
replacement, a few hundred times, and what the middle nine tenths of those gains lie between is what is known. Rounds
are drawn whole: what slowed both sides in one of them slows both again.

Where cores are taken, threads that wait for each other stall for tenths of a second and then run as if none were, and
whoever times them again may find them either way. So at the low end a baseline that has two times is given the better
one, and a kernel the one that it has in half of its samples; at the high end a kernel is given its better one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

DRAWS = 200
"""How often rounds are drawn again."""
OUTSIDE = 0.05
"""The part of the draws that may lie below what is said, and that may lie above."""
SELDOM = 0.1
"""The part of its rounds in which a better mode has to be seen."""
MODES = 1.2
"""Samples further apart than this, as a ratio, are of two modes, and not of noise."""

Taken: TypeAlias = Mapping[str, Sequence[float]]
"""Seconds by contender, one sample a round; of contenders that left early, those of the first rounds."""


def lower_quartile(ordered: Sequence[float]) -> float:
    """Of samples in order, as `statistics.quantiles` has it with the method `inclusive`."""
    place, part = divmod(len(ordered) - 1, 4)
    low = ordered[place]
    return low if not part else low + (ordered[place + 1] - low) * part / 4


def between(matches: Sequence[tuple[Taken, Taken]], stalling: Collection[str] = ()) -> tuple[float, float]:
    """What the gain of the best kernel over the best baseline lies between, of all rounds of these matches together.

    Args:
        matches: of each match the samples of kernels and those of baselines; each side has at least one contender.
        stalling: those whose threads may wait for each other where cores are taken.
    """
    # The same samples say the same, in every run.
    rng = random.Random(0)
    gains = sorted(_drawn(matches, rng) for _ in range(DRAWS))
    outside = int(OUTSIDE * DRAWS)
    least = _least(matches, 1, stalling, better_mode) / _least(matches, 0, stalling, usual_mode)
    most = _least(matches, 1, (), lower_quartile) / _least(matches, 0, stalling, better_mode)
    return min(gains[outside], least), max(gains[-1 - outside], most)


def has_two_modes(matches: Sequence[tuple[Taken, Taken]], stalling: Collection[str]) -> bool:
    """Whether one side's best has two modes, so that matches will not agree on the gain."""
    kernel, baseline = (_least(matches, side, (), lower_quartile) for side in (0, 1))
    return _least(matches, 1, stalling, better_mode) < baseline or _least(matches, 0, stalling, usual_mode) > kernel


def better_mode(ordered: Sequence[float]) -> float:
    """Of samples in order: what the better one of two modes takes; the lower quartile where there is one mode."""
    quartile, seldom = lower_quartile(ordered), ordered[int(SELDOM * len(ordered))]
    return seldom if quartile > MODES * seldom else quartile


def usual_mode(ordered: Sequence[float]) -> float:
    """Of samples in order: what the one of two modes takes that half of them have; the lower quartile of one mode."""
    quartile, usual = lower_quartile(ordered), ordered[len(ordered) // 2]
    return usual if usual > MODES * quartile else quartile


def _least(
    matches: Sequence[tuple[Taken, Taken]],
    side: int,
    stalling: Collection[str],
    measure: Callable[[Sequence[float]], float],
) -> float:
    """The least measure of a side's contenders over all matches' samples; quartiles of those that do not stall."""
    held: dict[str, list[float]] = {}
    for match in matches:
        for name, samples in match[side].items():
            held.setdefault(name, []).extend(samples)
    return min((measure if name in stalling else lower_quartile)(sorted(s)) for name, s in held.items())


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
