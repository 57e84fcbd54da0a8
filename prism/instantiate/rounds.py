"""Timing by interleaved rounds: every contender is called in turn, and judged by the lower quartile of its samples.

Other processes only ever make a call slower, and what stalls once (a parallel region whose thread has lost its core)
takes hundreds of times as long. A mean says how often that happened, a lower quartile what the call takes. Contenders
that have no chance leave after a few rounds, so that the others get more.

A scheduler gives a thread that has slept for some milliseconds a core at once, and then its share. On a machine that
does other things a short call is over by then and a long one is not: a kernel that takes a quarter of the baseline's
time seemed to take a tenth. So samples of one contest are about as long as each other, and longer than a slice. The
time for which a contender on one thread stood in the queue for a core is not counted. Results are let go, as a loop of
calls does: to hold them makes every call touch memory that is new to it.

How sure a gain is, is what it would have been had other rounds been drawn from those that were run (`between`): a few
hundred times, with replacement, rounds whole, as what slowed both sides in one of them slows both again. The middle
nine tenths of those gains are what is known. Where cores are taken, threads that wait for each other stall for tenths
of a second and then run as if none were. So at the low end a baseline that has two times is given the better one, and a
kernel the one that it has in half of its samples; at the high end a kernel is given its better one.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from prism.backends.interleave import interleave

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

    Of each match the samples of kernels and those of baselines; each side has at least one contender. The threads of
    those that are `stalling` may wait for each other where cores are taken.
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


SAMPLE_S = 2e-3
"""A sample should take about this long, seconds, so that the clock does not count."""
EQUAL_S = 5e-2
"""What a sample of a contest should take where cores are taken, seconds: calls in a loop, longer than a slice."""
QUIET_S = 1e-2
"""What it should take elsewhere, seconds."""
INCREDIBLE = 3.0
"""A gain above this is hard to believe."""
LONGER = 2
"""How many times as long is timed after a gain that is hard to believe."""
SHARE = 0.01
"""Of what rounds may take, what a sample of a contest takes at most, unless the slowest contender's call is longer."""
MAX_CALLS = 2000
LOOK_S = 2e-4
"""Between looks at the clock within a sample calls take about so long, seconds: they cost next to nothing then."""
NEARLY = 1.0 - 1e-6
"""A sample is long enough at this part of its length: sums of seconds are not exact."""
LEAST_ROUNDS = 3
LONG_S = 0.2
"""A call that takes longer needs no warming up, seconds."""
SETTLE_S = 4e-3
"""How long to wait before a contender's turn, seconds: threads of another runtime spin about as long."""
WARM_S = 5e-3
"""A turn begins with calls that are not counted, seconds: a processor that rested is slow. At least one is."""
FIRST_CALLS = 6
"""Calls that tell how long one takes, but for the first; fewer where they are long."""
ENDLESS_S = 2.0
"""A call that takes longer is made only once before the rounds, seconds: it costs too much to be sampled in vain."""
LASTING = 5
"""Samples of a turn on several threads where cores are taken: these stall for some tenths of a second, and then not."""
SHORTLY_LASTING = 2
"""So many at least where the least rounds would take longer than they may: a match that does not end tells nothing."""
ROUNDS_S = 6.0
"""What the rounds of a match should take, seconds; less where the time of a run ends soon."""
SCHEDULED = Path("/proc/thread-self/schedstat")
LEADING = 1.5
"""How many times the least time of a study's trials one may have taken to be timed again."""
HEATS = 4
"""Rounds that all run but those that are far behind; those that are near the best of their side run the others."""
FIRST_HEATS = 2
"""After so many those that are far behind leave, where no cores are taken: some of them take longer than all others."""
NEAR, NEAR_QUIET = 2.0, 1.3
"""How many times the best of its side a contender may have taken to go on: where cores are taken, or few heats were
run, and elsewhere."""
BLOCK = 8
"""Rounds, heats among them, after which it is asked whether more of them would tell anything."""
CLOSE = 0.15
"""They would not where the logarithm of the gain is known to this part of itself: 2 to a ninth, 7 to a third,"""
CLEAR = 1.1
"""and the gain is no closer to 1 than this, or its inverse."""
AGAIN = 3.0
"""How many times the best baseline a call of one may have taken, as it was made ready for a first contest, to be made
ready for the second, in which those meet that were near the best. It was called beside other work, so this is more than
`NEAR`; what is near after all is made ready when the second contest begins."""
HOPELESS = 8.0
"""How many times the best of its side a call may have taken to be sampled at all, where it is endless, or as slow on
every number of threads."""


def _nothing() -> None:
    pass


class Queue:
    """How long the thread that makes it has waited for a core, by the scheduler's account; zero where there is none.

    The file is the account: nanoseconds run, nanoseconds waited, and how often it ran.
    """

    def __init__(self, file: Path = SCHEDULED) -> None:
        self._file: int | None = None
        try:
            self._file = os.open(file, os.O_RDONLY)
            self()
        except (OSError, IndexError, ValueError):
            self.close()

    def __call__(self) -> float:
        """Seconds so far."""
        return 0.0 if self._file is None else int(os.pread(self._file, 64, 0).split()[1]) * 1e-9

    def close(self) -> None:
        """Forget the file."""
        if self._file is not None:
            os.close(self._file)
        self._file = None


@dataclass(slots=True, eq=False)
class Prepared:
    """A contender that has been called, and how many calls make a sample."""

    call: Callable[[], Sequence[Any]]  # calls it once
    settle_s: float = SETTLE_S  # how long to wait before its turn, seconds
    warm_s: float = WARM_S  # how long calls are not counted after that, seconds; at least one is not
    _: KW_ONLY
    rest_s: float = 0.0  # how long to wait after its turn, seconds: for threads of its own that go on spinning
    # What is to be done before its turn, beside the clock: sets a number of threads, say.
    ready: Callable[[], None] = _nothing
    # Seconds for which the calling thread has waited for a core, which are not counted: only of a contender that runs
    # on no other thread.
    waited: Callable[[], float] | None = None
    lasting: int = 1  # samples of a turn, one after the other
    clock: Callable[[], float] = time.perf_counter  # seconds from some fixed point
    sleep: Callable[[float], None] = time.sleep
    results: Sequence[Any] = field(default=(), init=False)
    call_s: float = field(default=math.inf, init=False)  # what a call takes, at least, seconds
    calls: int = field(default=1, init=False)  # of a sample
    _length_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.ready()
        for n in range(FIRST_CALLS):
            taken = self._timed(1)
            # The first call may compile, and touches memory that is new.
            self.call_s = taken if n < 2 else min(self.call_s, taken)
            if (n and taken > SAMPLE_S) or taken > ENDLESS_S:
                break
        self.lengthen(SAMPLE_S)

    def sample(self) -> float:
        """Seconds a call, over one sample."""
        return self.turn(1)[0]

    def once(self) -> float:
        """Seconds of the fastest call so far, after one more."""
        self.call_s = min(self.call_s, self._timed(1))
        return self.call_s

    def turn(self, samples: int | None = None) -> list[float]:
        """Seconds a call, over samples that follow each other: calls until each is as long as it should be.

        How many that takes is told by the clock, and not by what a call took before: threads that wait for each other
        may have stalled then, or stall now.
        """
        self.ready()
        self.sleep(self.settle_s)
        if self.call_s <= LONG_S:
            self._loop(self.warm_s)
        found = [taken / calls for taken, calls in (self._loop(self._length_s) for _ in range(samples or self.lasting))]
        self.sleep(self.rest_s)
        # It may have stalled whenever it was called before.
        self.call_s = min(self.call_s, *found)
        self.lengthen(self._length_s)
        return found

    def _loop(self, seconds: float) -> tuple[float, int]:
        """Seconds of calls that together take about so long, at least one and at most `MAX_CALLS`; and how many."""
        step = max(1, min(MAX_CALLS, int(min(seconds, LOOK_S) / max(self.call_s, 1e-9))))
        taken, calls = self._timed(step), step
        while taken < seconds * NEARLY and calls < MAX_CALLS:
            taken, calls = taken + self._timed(step), calls + step
        return taken, calls

    def _timed(self, calls: int) -> float:
        """Seconds of so many calls; the wait is looked up within them, so that it is never more than they took."""
        wait = self.waited or float
        start = self.clock()
        waited = wait()
        self.results = ()
        for _ in range(calls - 1):
            self.call()
        self.results = self.call()
        waited = wait() - waited
        return self.clock() - start - waited

    def lengthen(self, seconds: float) -> None:
        """Let a sample take about so long, at least; of calls that take next to nothing, no more than `MAX_CALLS`."""
        self._length_s = max(self._length_s, seconds)
        self.calls = max(1, min(MAX_CALLS, math.ceil(self._length_s * NEARLY / max(self.call_s, 1e-9))))

    @property
    def sample_s(self) -> float:
        """About how long a turn takes, seconds."""
        warm_s = 0.0 if self.call_s > LONG_S else max(self.warm_s, self.call_s)
        return self.settle_s + self.rest_s + warm_s + self.lasting * self.calls * self.call_s


def rounds(contenders: Sequence[Prepared], wanted: int, limit_s: float, least: int = LEAST_ROUNDS) -> int:
    """How many rounds to run: as many as are wanted, fewer where they would take longer than so many seconds."""
    each = sum(c.sample_s for c in contenders)
    return max(least, min(wanted, int(limit_s / max(each, 1e-9))))


def contest(
    contenders: Sequence[Prepared],
    sides: Sequence[str],
    wanted: int,
    limit_s: float,
    code: Sequence[str] | None = None,
    crowded: bool = False,
) -> list[list[float]]:
    """Seconds of each contender: heats of all, then rounds of those that are near the best of their side.

    Where cores are taken, threads that wait for each other stall for tenths of a second, and then do not: all heats may
    have been of the one kind. So what is near on one number of threads stays on all of them.

    Args:
        contenders: what is timed.
        sides: of each contender, whom it is compared with: only the best of a side matters.
        wanted: rounds after the heats.
        limit_s: what these should take at most, seconds; `LEAST_ROUNDS` run whatever they take. Where it is less than
            `ROUNDS_S`, it is for heats and rounds together, and those heats alone run whatever they take.
        code: of each contender, what it has in common with those that are the same on other numbers of threads.
        crowded: whether others and the contenders want more cores than there are.

    Returns:
        for each contender, its samples: at least one.
    """
    samples: list[list[float]] = [[] for _ in contenders]
    near = frozenset(_near([c.call_s for c in contenders], sides, HOPELESS))
    alike = list(code) if code is not None else [str(n) for n in range(len(contenders))]

    def hopeless(n: int) -> bool:
        # One call tells little: it may have stalled. It decides where more of them take long, or where the same is slow
        # on every number of threads, as on one thread nothing waits for others.
        kin = [m for m, other in enumerate(alike) if other == alike[n]]
        return n not in near and (contenders[n].call_s > ENDLESS_S or (len(kin) > 1 and near.isdisjoint(kin)))

    running = [n for n in range(len(contenders)) if not hopeless(n)]
    short = limit_s < ROUNDS_S
    if short:
        _shorten([contenders[n] for n in running], limit_s)
    for n in set(range(len(contenders))) - set(running):
        samples[n].append(contenders[n].call_s)
    longest = max(contenders[n].call_s for n in near)
    for n in running:
        contenders[n].lengthen(min(max(longest, SHARE * limit_s), EQUAL_S if crowded else QUIET_S))

    def run(many: int) -> None:
        turns = [contenders[n].turn for n in running]
        for n, found in zip(running, interleave(turns, many), strict=True):
            samples[n] += itertools.chain.from_iterable(found)

    heats = rounds([contenders[n] for n in running], HEATS, limit_s)
    first = min(FIRST_HEATS, heats)
    ran, spent_s = 0, 0.0
    for upto, factor in ((heats, NEAR),) if crowded else ((first, NEAR), (heats, NEAR_QUIET)):
        spent_s += (upto - ran) * sum(contenders[n].sample_s for n in running)
        run(upto - ran)
        ran = upto
        # The least of its own, and not a quartile: of few samples most may have stalled. But one that was lucky
        # once, on all threads while others slept, is no measure for the rest.
        left = _near([min(s) for s in samples], sides, factor, [lower_quartile(sorted(s)) for s in samples])
        if code is not None and crowded:
            near_code = {code[n] for n in left}
            left = [n for n in running if code[n] in near_code]
        running = [n for n in running if n in left]
        # What a call takes is known better by now.
        for n in running:
            contenders[n].call_s = min(samples[n])
    # Of a short match heats are rounds, too.
    left_s, least = (limit_s - spent_s, 0) if short else (limit_s, LEAST_ROUNDS)
    last = heats + rounds([contenders[n] for n in running], wanted, left_s, least)
    while ran < last:
        many = min(last - ran, BLOCK - ran % BLOCK)
        run(many)
        ran += many
        if ran < last and not crowded and _known(samples, sides):
            break
    return samples


def _shorten(contenders: Sequence[Prepared], limit_s: float) -> None:
    """Let turns have fewer samples, so that the least heats take no longer, where that is enough."""
    several = [c for c in contenders if c.lasting > 1]
    others = sum(c.call_s for c in contenders if c.lasting == 1)
    each = sum(c.call_s for c in several)
    fit = int((limit_s / LEAST_ROUNDS - others) / max(each, 1e-9))
    for c in several:
        c.lasting = max(SHORTLY_LASTING, min(c.lasting, fit))


def _known(samples: Sequence[Sequence[float]], sides: Sequence[str]) -> bool:
    """Whether the gain of one of two sides is so clear, and rounds vary so little, that more would say no more."""
    names = sorted(set(sides))
    if len(names) != 2:
        return False
    one, other = (
        {str(n): s for n, (s, side) in enumerate(zip(samples, sides, strict=True)) if side == name} for name in names
    )
    low, high = between([(one, other)])
    far = min(abs(math.log(low)), abs(math.log(high)))
    return far >= math.log(CLEAR) and math.log(high / low) <= CLOSE * far


def _near(
    seconds: Sequence[float], sides: Sequence[str], factor: float, measures: Sequence[float] | None = None
) -> list[int]:
    """Places of those that took no more than `factor` times the least measure of their side (seconds, if none)."""
    least: dict[str, float] = {}
    for s, side in zip(measures or seconds, sides, strict=True):
        least[side] = min(s, least.get(side, math.inf))
    return [n for n, (s, side) in enumerate(zip(seconds, sides, strict=True)) if s <= factor * least[side]]
