"""The winners against the baselines: matches in processes of their own, of which the one that flatters least counts.

One match of interleaved rounds tells what is faster while the machine is as it is; another one, minutes or a process
later, may tell something else: threads of a baseline that wait for each other are fast in one process and slow in the
next. So it takes two matches at least, a loss too, which is told as a range; the second is of those that were near the
front in the first. It takes more where they do not agree on a win, and longer ones where the gain is too good to be
believed at once and the machine does other things. What is said in the end is the least gain of all of them, and the
range that it lies in: what the matches gave, and what their rounds, drawn again, would have given (`spread`). It is a
gain only where all of that range is above one.

Matches are stored by all that they depend on: the same command ends the same way, and says when what it says was
measured.
"""

from __future__ import annotations

import datetime
import importlib.util
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from prism.errors import UsageError
from prism.instantiate.cache import Store, digest
from prism.instantiate.machine_load import Load, quiet, slowed
from prism.instantiate.measure import BASELINE, KERNEL, Arena, Contender, Match, Measuring, Timed, identity
from prism.instantiate.proposals import Point
from prism.instantiate.rounds import (
    EQUAL_S,
    INCREDIBLE,
    LEADING,
    LONGER,
    NEAR,
    NEAR_QUIET,
    QUIET_S,
    ROUNDS_S,
    Taken,
    between,
    has_two_modes,
)
from prism.instantiate.study import Best, Candidate, Outcome, Trial, TuneResult, leading
from prism.process.deadline import NEVER, Deadline, OutOfTimeError
from prism.program.nodes import Program
from prism.sgraph.config import Config

ROUNDS = 16
"""Rounds of a match, after its heats."""
SHARES = 6.0
"""Rounds take no more than this part of what time is left: children that start, and a second match, take the rest, so
many times as long as the machine is slow for what others do on it."""
AGREE = 1.2
"""Matches agree whose gains are no further apart than this, as a ratio."""
FAR = 1.5
"""Matches that are won by more than this, and nothing else ran, need not agree by how much."""
MATCHES = 4
"""Matches at most, of what is told;"""
LEAST_MATCHES = 2
"""and at least, of a win or a loss alike."""
WITHIN = "within"
"""Of what is stored: the seconds that the run was given which cut it short."""
WORTH = 1.02
"""A range that begins below this is no gain: by so much two processes that run the same code may differ."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One contender in one match."""

    name: str  # the contender's
    side: str  # kernel or baseline
    threads: int  # that it ran on
    timed: Timed  # its measurement, or why there is none

    @property
    def contender(self) -> str:
        """Its name and its threads."""
        return f"{self.name} {self.threads}"

    @property
    def seconds(self) -> float:
        """The lower quartile; only of one that was timed."""
        assert self.timed.measurement is not None
        return self.timed.measurement.lower


@dataclass(frozen=True, slots=True)
class Result:
    """A match."""

    standings: tuple[Standing, ...]  # of the contenders, in order
    load: Load | None = None  # how busy the machine was; None where it is not known

    def best(self, side: str) -> Standing | None:
        """The fastest of a side by lower quartiles; None where none was timed."""
        timed = [s for s in self.standings if s.side == side and s.timed.measurement is not None]
        return min(timed, key=lambda s: s.seconds, default=None)

    def taken(self, side: str, name: str | None = None) -> Taken:
        """The samples of the contenders of a side, of all or of those of one name."""
        return {
            s.contender: s.timed.measurement.taken
            for s in self.standings
            if s.side == side and s.timed.measurement is not None and name in (None, s.name)
        }

    @property
    def ratio(self) -> float:
        """How many times as long the best baseline takes as the best kernel; 0 where one of them has no time."""
        kernel, baseline = self.best(KERNEL), self.best(BASELINE)
        return baseline.seconds / kernel.seconds if kernel is not None and baseline is not None else 0.0


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What the matches come to."""

    matches: tuple[Result, ...]  # in the order in which they were played
    # What the gain lies between, as far as the matches tell; zeros where one side has no time.
    between: tuple[float, float]
    date: str  # when, UTC
    stored: bool = False  # whether they were played in an earlier run

    @property
    def deciding(self) -> Result:
        """The match with the least gain."""
        return min(self.matches, key=lambda m: m.ratio)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The gain in each match."""
        return tuple(m.ratio for m in self.matches)

    @property
    def won(self) -> bool:
        """Whether the kernel is faster than the best baseline, beyond what may be noise."""
        return self.between[0] > WORTH

    @property
    def loads(self) -> tuple[Load, ...]:
        """How busy the machine was, match by match."""
        return tuple(m.load for m in self.matches if m.load is not None)


def confirm(
    bench: Arena,
    kernels: Sequence[Contender],
    baselines: Sequence[Contender],
    *,
    store: Store,
    basis: str = "",
    until: Deadline = NEVER,
    first: Deadline | None = None,
    most: int = MATCHES,
) -> Confirmation:
    """Let the best kernels meet the baselines, or remember how they did.

    Args:
        bench: where they meet.
        kernels: the best ones, each on every number of threads.
        baselines: what is there to compare with; where there are none, the fastest kernel is looked for, in one match.
        store: of matches of earlier runs.
        basis: what measurements depend on besides the program and the contenders.
        until: when matches end; one that is under way then does not count. What it cuts short is stored for runs that
            are given no more time.
        first: when the first one ends, without which there is nothing to tell; by default as the others.
        most: matches at most.

    Raises:
        UsageError: no baseline can be timed.
        OutOfTimeError: the time ended within the first match.
    """
    limits = (ROUNDS, ROUNDS_S, LONGER, INCREDIBLE, AGREE, FAR, most, WORTH, EQUAL_S, QUIET_S)
    who = [identity(c) for c in (*baselines, *kernels)]
    key = digest("matches", basis, bench.program_key, bench.source_key if baselines else "", who, limits)
    entry = store.get(key)
    found = None if entry is None or until.given > entry.get(WITHIN, math.inf) else _stored(entry)
    if found is not None:
        return found
    matches, whole = _matches(bench, kernels, baselines, until, first or until, most)
    found = Confirmation(tuple(matches), gain_between(matches), now_text())
    store.put(key, msgspec.to_builtins(found) | ({} if whole else {WITHIN: until.given}))
    return found


def _matches(
    bench: Arena,
    kernels: Sequence[Contender],
    baselines: Sequence[Contender],
    until: Deadline,
    first_until: Deadline,
    most: int,
) -> tuple[list[Result], bool]:
    """The matches, and whether they are all that there would be without an end."""
    contenders = [*baselines, *kernels]
    rounds_s = min(ROUNDS_S, first_until.left / (SHARES * slowed()))
    with first_until.limited():
        first = _result(contenders, bench.contest(contenders, ROUNDS, rounds_s))
    kernel, baseline = first.best(KERNEL), first.best(BASELINE)
    if baselines and baseline is None:
        why = "; ".join(dict.fromkeys(f"{s.name}: {s.timed.detail}" for s in first.standings if s.side == BASELINE))
        raise UsageError(
            "no baseline can be timed",
            where="--baseline",
            why=why,
            fix="name another one, or leave it away",
        )
    if kernel is None or baseline is None:
        return [first], True
    # Of kernels the one that is chosen; of baselines those that may be the best next time.
    least = {KERNEL: kernel.seconds, BASELINE: baseline.seconds}
    timed = [s for s in first.standings if s.timed.measurement is not None]
    factor = NEAR if _doubtful(first) else NEAR_QUIET
    near = {(s.side, s.name, s.threads) for s in timed if s.seconds <= factor * least[s.side]}
    if first.load is not None and first.load.crowded:
        # Threads that stalled in this process may not do so in the next.
        names = {who[:2] for who in near}
        near |= {(s.side, s.name, s.threads) for s in timed if (s.side, s.name) in names}
    again = [
        c for c in contenders if (c.side, c.name, c.threads) in near and (c.side == BASELINE or c.name == kernel.name)
    ]
    found = [first]
    while len(found) < most and (len(found) < LEAST_MATCHES or not settled(found)):
        times = LONGER if _doubtful(first) and max(m.ratio for m in found) > INCREDIBLE else 1
        try:
            with until.limited():
                found.append(_result(again, bench.contest(again, times * ROUNDS, times * rounds_s)))
        except OutOfTimeError:
            return found, False
    return found, rounds_s == ROUNDS_S


def _doubtful(match: Result) -> bool:
    """Whether a gain may be other processes' doing; where nothing else runs, it is what it seems."""
    return not quiet(match.load)


def agree(matches: Sequence[Result]) -> bool:
    """Whether the matches say the same but for noise."""
    ratios = [m.ratio for m in matches]
    return min(ratios) > 0 and max(ratios) <= AGREE * min(ratios)


def settled(matches: Sequence[Result]) -> bool:
    """Whether a further match would say nothing new: it is lost, or they agree that it is won, or that it is not.

    Matches against a baseline that stalls now and then do not agree, however many there are; those that are won by far
    need not, for the least is what is told, and the range.
    """
    low, high = gain_between(matches)
    lost = min(m.ratio for m in matches) <= WORTH  # the least is what is told, however many follow
    known = agree(matches) or has_two_modes(*_taken(matches)) or (low > FAR and not any(map(_doubtful, matches)))
    return lost or (known and (low > WORTH or high <= WORTH))


def gain_between(matches: Sequence[Result]) -> tuple[float, float]:
    """What the gain lies between: the matches' own gains, and those of all their rounds together, drawn again."""
    ratios = [m.ratio for m in matches]
    if min(ratios) <= 0.0:
        return 0.0, 0.0
    low, high = between(*_taken(matches))
    return min(low, *ratios), max(high, *ratios)


def _taken(matches: Sequence[Result]) -> tuple[list[tuple[Taken, Taken]], frozenset[str]]:
    """The samples of the matches, and whose threads may have waited for each other, since cores were taken."""
    kernel = matches[0].best(KERNEL)
    assert kernel is not None
    stalling = {
        s.contender for m in matches if m.load is not None and m.load.crowded for s in m.standings if s.threads > 1
    }
    # Of several kernels the one that was chosen in the first match.
    return [(m.taken(KERNEL, kernel.name), m.taken(BASELINE)) for m in matches], frozenset(stalling)


def _result(contenders: Sequence[Contender], match: Match) -> Result:
    standings = tuple(Standing(c.name, c.side, c.threads, t) for c, t in zip(contenders, match.timed, strict=True))
    return Result(standings, match.load)


def _stored(entry: Mapping[str, Any]) -> Confirmation | None:
    """Matches of an earlier run; None where the entry is damaged, which only costs the time to measure again."""
    try:
        return replace(msgspec.convert(entry, Confirmation), stored=True)
    except msgspec.ValidationError:
        return None


def now_text() -> str:
    """This minute, UTC."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


# The baselines that are installed: what a user of the same model would run instead of prism's kernels.

NAMES: Mapping[str, str] = MappingProxyType(
    {"eager": "torch eager", "compile": "torch.compile", "onnxruntime": "onnxruntime"}
)
"""What an option calls a baseline, and what a report does."""
_KINDS: Mapping[str, str] = MappingProxyType({"compile": "compiled"})


def installed(
    program: Program, target: str, wanted: Sequence[str], threads: Sequence[int]
) -> tuple[list[Contender], dict[str, str]]:
    """The baselines to time, each on every number of threads, and why others are not among them.

    The program in torch's calls has those of every step of a loop, one after the other: to write them down takes longer
    than a run may, and they take a hundred times as long as the runtime whose file it is.
    """
    found: list[Contender] = []
    missing: dict[str, str] = {}
    stock = "onnxruntime" in wanted and not why_not_stock(program, target)
    for option in wanted:
        why = why_not_stock(program, target) if option == "onnxruntime" else ""
        if option == "eager" and stock and program.loops:
            why = "it calls every step of a loop by itself, and onnxruntime runs the file"
        if why:
            missing[NAMES[option]] = why
            continue
        found += [Contender(NAMES[option], kind=_KINDS.get(option, option), threads=n) for n in threads]
    return found, missing


def usual(program: Program, target: str) -> tuple[str, ...]:
    """What options call the baselines of a run that names none: all, but what nobody runs a model's file by.

    Where onnxruntime runs the file that a program is from, it is what kernels have to beat, beside torch's libraries.
    What torch's compiler makes of the calls that stand for the file's operators takes longer to make than all else.
    """
    return tuple(name for name in NAMES if name != "compile" or why_not_stock(program, target))


def why_not_stock(program: Program, target: str) -> str:
    """Why onnxruntime does not run the program; empty where it may."""
    if target != "cpu":
        return "it is timed on CPUs only"
    if not isinstance(program.source, Path):
        return "the program is not from an ONNX file"
    if importlib.util.find_spec("onnxruntime") is None:
        return "it is not installed"
    return ""


LEADERS = 6
"""Trials that are timed again, at most."""
REPEATS = 8
"""Samples of each."""


def rematch(found: TuneResult, candidates: Sequence[Candidate], measuring: Measuring) -> TuneResult:
    """The result with its ranking by a second timing of the leaders, in turn; the others come after them.

    A study times each point by itself, on a machine whose clocks and neighbours change: the least of many noisy times
    is more luck than merit. The seconds of what was found are measured, the trials by `measuring`.
    """
    leaders = _leaders(found.trials)
    if len(leaders) < 2:
        return found
    contenders = []
    for n, t in enumerate(leaders):
        c = candidates[t.point.candidate]
        contenders.append(Contender(str(n), c.module, c.sgraph, t.point.config, threads=measuring.threads))
    again = leading(
        Best(t.point.candidate, t.point.config, measuring.rank(timed.measurement), t.outcome.resources)
        for t, timed in zip(leaders, measuring.meet(contenders, REPEATS), strict=True)
        if timed.measurement is not None
    )
    met = {b.candidate for b in again}
    return replace(found, ranking=(*again, *(b for b in found.ranking if b.candidate not in met)))


def challenged(
    found: TuneResult,
    candidates: Sequence[Candidate],
    evaluate: Callable[[Sequence[tuple[Candidate, Config]]], Iterable[Outcome]],
    points: Sequence[Point],
) -> TuneResult:
    """The result with variants of the fastest candidates' best points as trials besides.

    `evaluate` turns points into outcomes as it did for the trials; the points are the variants, which are in no space.
    """
    outcomes = evaluate([(candidates[p.candidate], p.config) for p in points])
    trials = [Trial(p, o) for p, o in zip(points, outcomes, strict=True)]
    timed = [
        Best(t.point.candidate, t.point.config, t.outcome.seconds, t.outcome.resources)
        for t in trials
        if t.outcome.seconds is not None
    ]
    return replace(
        found,
        trials=(*found.trials, *trials),
        ranking=leading([*found.ranking, *timed]),
        compiled=found.compiled + sum(bool(t.outcome.resources) for t in trials),
    )


def _leaders(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that may be the fastest, in order, each point once."""
    timed = sorted(
        (t for t in trials if t.outcome.seconds is not None),
        key=lambda t: (t.outcome.seconds, t.point.candidate, t.point.config.key()),
    )
    limit = LEADING * (timed[0].outcome.seconds or 0.0) if timed else 0.0
    return [t for t in timed if (t.outcome.seconds or 0.0) <= limit][:LEADERS]
