"""What a run with a time limit does with it: the shares of its parts, how it ends, and what it says then."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Real

from prism.errors import NoImprovementError, UsageError, other_kind
from prism.instantiate.machine_load import slowed
from prism.process.deadline import NEVER, Deadline, OutOfTimeError

SEARCHED, LEAST_SEARCHED = 0.4, 0.25
"""The share of the time which searches may take that have proved something, and the one that they have in any case."""
ALL_SEARCHED = 0.75
"""The share that all may take: without a region's there is nothing to put together."""
HARDEST = 0.3
"""The share of what is left for first proofs alone that one may take: of nine of a Mistral two take 0.8 and 1 CPU
seconds, the others 0.02 to 0.1 (measured)."""
UNPROVED = 0.5
"""The share that the search of one region may take without a proof, before its parts are searched."""
TRIED, LEAST_TRIED = 0.4, 0.25
"""The share of the time that is left which trials may take, and the one that they have in any case: checks and the
confirmation need the rest."""
PART_TRIED = 0.7
"""The share of a region's time which trials may take: it meets no baseline, and what is checked is compiled then."""
TUNED = 0.6
"""The share of the time that is left which all regions may take: composing and the confirmation need the rest,"""
TUNED_ONCE = 0.8
"""less of it where what is made meets its baseline but once."""
ENDING_S = 16.0
"""What composing, checking and timing a module of several regions is left of the time, if there is as much: seconds, of
8 to 12 that it takes for models of two layers on two cores (measured)."""
LEAST_S = 10.0
"""What a region takes until two trials and its checks are made, on two cores: seconds (measured). With less time the
cost model picks alone, and the regions that take longest come first. Where none was made in the time of one, as on a
machine that others use, the next has twice as much: few that are tuned are worth more than many that nearly are."""
CLOSING_S = 4.0
"""What the certificate and the folder are left of the time when contenders have met: seconds, of 2 to 3 that they take
(measured): what is measured and not written is lost."""
WRITING_S = 0.6
"""What the module is left where nothing has met yet, seconds, of 0.4 to 0.5 that it and the folder take of a processor
(measured): a certificate that is not derived in time is left out, and the folder is written when the time is over
(`grace`)."""
MEETING_S = 8.0
"""What checks and the first match with a baseline are left by trials, seconds: a time that met nothing is not told."""
SHORT_CASES = 6
"""Cases of the numeric gate where the time is limited, if there is time for as many."""
MATCH_S = 6.0
"""What the first match and the folder are left by them, seconds."""
FINISHED = sys.float_info.max
"""The limit, seconds, of runs that had time enough: any, but not none."""
CLOSED_S = 45.0
"""What a run that was interrupted takes, at most, to put together, check, time and write what it finished, seconds."""
CROWDED = 2.0
"""From how many times as long on, as without others, all regions have a first proof before any has more: two processes
a core besides a run's own."""
SLOWEST = 6.0
"""By what seconds that were measured while nothing else ran are multiplied on a machine that others use, at most."""
GRACE_S = 1.2
"""What it takes, beyond the time that is given, to end: seconds,"""
GRACE_SHARE = 0.06
"""or this share of the time, which a machine that others use takes to write what was measured."""
AGAIN = "the same command gives this again, and one with more time (--budget), or without a limit, goes on"
GOES_ON = "the same command goes on"
MORE_TIME = "run it again: what was finished is kept, and not done again; or give it more time (--budget, seconds=)"
LONGER = (
    "give it more time (--budget, seconds=): all that comes before a first match is kept, and as much time did not do "
    "for that by itself; or run it again when the machine has less to do"
)
"""What to do, after a run that went on from another which had come as far."""
LATE = (MORE_TIME, LONGER)
"""What errors of runs whose time ended say to do."""


def deadline(seconds: object) -> Deadline:
    """When so many seconds from now are over, as a user gives them; never for None; a moment is taken as it is.

    Raises:
        UsageError: they are no number, or not more than 0.
    """
    if not isinstance(seconds, Real | Deadline | None):
        raise other_kind("seconds", seconds, "a number of seconds")
    if isinstance(seconds, Real):
        seconds = float(seconds)
        if not seconds > 0:
            fix = "give more than 0, or leave it away where nothing is to end the run"
            raise UsageError(f"seconds is {seconds:g}", where="seconds", why="nothing is done in no time", fix=fix)
    return Deadline.after(seconds)


def here(seconds: float) -> float:
    """What takes so many seconds on a machine that nothing else uses takes on this one, as it has been used so far."""
    return seconds * min(slowed(), SLOWEST)


def grace(time: Deadline) -> Deadline:
    """The moment at which what is left to do when the time is over has to be done."""
    return time.moved(max(GRACE_S, GRACE_SHARE * time.given)) if time.finite else time


@dataclass(frozen=True, slots=True)
class SearchTime:
    """What searches may take."""

    until: Deadline  # when those end of which something is proved
    last: Deadline = NEVER  # when all do

    def proofs_alone(self) -> SearchTime:
        """The time for a first proof of each, and for nothing else."""
        return replace(self, until=self.until.part(0.0))

    def slice(self, regions: int, gain: float) -> SearchTime:
        """What the first of so many has, from which so large a part of all that may be gained comes.

        Where nothing is proved of it at its last moment, its parts have as much. Of first proofs alone few take long.
        """
        until = self.until.part(max(gain, 1 / (2 * regions)))
        least = 0.0 if self.until.left else HARDEST
        return SearchTime(until, max(until, self.last.part(max(least, 1 / (regions + 1)))))


ENDLESS = SearchTime(NEVER)


def search_time(time: Deadline) -> SearchTime:
    """What the searches of all regions of a program may take."""
    return SearchTime(_searched(time, ENDING_S), time.part(ALL_SEARCHED))


def search_end(time: Deadline) -> Deadline:
    """When the search of a program of one region ends."""
    return _searched(time, MEETING_S)


def _searched(time: Deadline, after_s: float) -> Deadline:
    """When searches end: what follows is left what it takes, trials included, if there is as much."""
    within = min(time.part(SEARCHED), time.moved(-1.5 * here(after_s)))
    return max(within, time.part(LEAST_SEARCHED))


def trials_end(time: Deadline, part: bool = False) -> Deadline:
    """When the trials of a program end, of the time for these and all that follows.

    What follows are checks and a first match with baselines, but for what becomes `part` of another module.
    """
    if time.closing:
        return time.part(0.0)
    if part:
        return time.part(PART_TRIED)
    # On a machine that others use what follows may need all of it, and what was not tried is seldom good.
    least = min(time.part(LEAST_TRIED), time.moved(-MEETING_S))
    within = min(time.part(TRIED), time.moved(-here(MEETING_S)))
    return max(within, least)


def regions_end(time: Deadline, matches: int) -> Deadline:
    """When all regions are tuned, of a module that meets its baselines so often, at most."""
    if time.closing:
        return time.part(0.0)
    return min(time.part(TUNED if matches > 1 else TUNED_ONCE), time.moved(-here(ENDING_S)))


@contextmanager
def ending(time: Deadline, before: str, where: str) -> Iterator[None]:
    """End what is done within soon after that time, by an error that says before what.

    Raises:
        NoImprovementError: it was ended.
    """
    try:
        with grace(time).limited():
            yield
    except OutOfTimeError:
        raise out_of_time(before, where) from None


def out_of_time(before: str, where: str, fix: str = MORE_TIME) -> NoImprovementError:
    """The error of a run whose time ended before something, with what to do."""
    return NoImprovementError(f"the time ended before {before}", where=where, fix=fix)
