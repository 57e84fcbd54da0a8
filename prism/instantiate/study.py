"""The study of one region on one device: which sGraph, with which tile sizes, warps and stages.

A trial is a point: an sGraph's index and a configuration of it. The trials of a study form one sequence that depends
on the candidates and the seed alone: first the best points of the cost model, then, in a space too large to sweep,
what Optuna's TPE proposes from the trials before, in batches that are compiled ahead together. The sequence ends with
the budget, or with a batch after which nothing has gained for a while. A journal on disk keeps it, so a study resumes
where it stopped and never tries a point twice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from prism.errors import UsageError
from prism.events import Evidence
from prism.instantiate.cache import digest
from prism.instantiate.proposals import Point, Proposer, quiet
from prism.process.deadline import NEVER, Deadline, OutOfTimeError
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import SGraph, Split

if TYPE_CHECKING:
    import optuna
    from optuna.storages.journal import JournalFileOpenLock

SWEEP = 64
"""Up to this many points, a space is swept in the cost model's order."""
SEEDS = 8
"""How many of the cost model's best points precede TPE."""
LEADERS = 5
"""How many sGraphs are sure of a first trial each before any gets a second one: all finalists."""
BATCH = 4
"""How many points are proposed, compiled and told together; constant, so that results are the same everywhere."""
HURRIED = 2
"""How many are compiled and timed together where the time is limited."""
DEFAULT_BUDGET = 12
"""Trials a region."""
TIED = 0.05
"""Estimates that differ by less than this share say nothing of which point is faster (guess)."""
PATIENCE = 4
"""A study ends when this part of its budget, one in so many trials, gained nothing in a row."""
GAIN = 0.05
"""What is faster by less than this share is no gain: so much do trials differ that are seconds apart (measured)."""
RESCUE = 48
"""How many more there are at most while none has fitted on the device."""

Estimator: TypeAlias = Callable[[Config, Sequence[Resources]], float]


class Failure(StrEnum):
    """Why a trial has no time."""

    COMPILE = "compile error"
    SHARED = "out of shared memory"
    RESOURCES = "out of registers or threads"
    CRASH = "crash"
    HANG = "hang"
    WRONG = "wrong result"
    ROUNDING = "rounds worse than torch"
    HOPELESS = "not worth timing"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proved sGraph, ready to be tuned."""

    key: str  # the sGraph's canonical key
    sgraph: SGraph
    module: Path  # its emitted module
    points: tuple[Config, ...]  # the feasible configurations
    # Seconds by the cost model for a configuration, with the compiler's resources when they are known (else an empty
    # sequence); infinite when it cannot run.
    estimate: Estimator


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial gave."""

    seconds: float | None  # the time of one call; None when it failed
    failure: Failure | None = None  # why it failed, or None
    detail: str = ""  # one line about the failure
    resources: tuple[Resources, ...] = ()  # what the compiler said, one entry a kernel


@dataclass(frozen=True, slots=True)
class Trial:
    """A point and what came of it."""

    point: Point
    outcome: Outcome


class Evaluator(Protocol):
    """Turns points into outcomes."""

    evidence: Evidence

    @property
    def basis(self) -> str:
        """What the outcomes depend on besides the points: device, target, versions of compiler and cost model."""

    def evaluate(self, points: Sequence[tuple[Candidate, Config]]) -> Iterator[Outcome]:
        """The outcomes, in the order of the points."""


@dataclass(frozen=True, slots=True)
class Best:
    """A candidate's best trial: seconds, and where they come from is the result's evidence."""

    candidate: int
    config: Config
    seconds: float
    resources: tuple[Resources, ...]


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What a study found."""

    evidence: Evidence  # whether the seconds are measured or estimated
    trials: tuple[Trial, ...]  # the trials that count, in order
    ranking: tuple[Best, ...]  # the best of each candidate that has any, fastest first
    failures: Mapping[str, int] = field(default_factory=dict)  # how many trials failed, by reason
    compiled: int = 0  # how many trials compiled
    deduplicated: int = 0  # how many proposals were of a point that had been tried already
    resumed: int = 0  # how many trials were in the journal before
    feasible: int = 0  # how many points there were in all
    swept: bool = False  # whether every point was tried
    settled: bool = False  # whether it ended because nothing left can be faster, or what was tried last was not

    @property
    def best(self) -> Best | None:
        """The fastest, or None when every trial failed."""
        return self.ranking[0] if self.ranking else None


class Journal(Protocol):
    """Where a study's trials are kept."""

    def load(self) -> Iterable[tuple[str, Outcome]]:
        """What was recorded: the point's key and the outcome, in order."""

    def append(self, key: str, point: Point, outcome: Outcome) -> None:
        """Record one trial."""


def tune(
    candidates: Sequence[Candidate],
    evaluator: Evaluator,
    *,
    region: str,
    budget: int = DEFAULT_BUDGET,
    storage_dir: Path | None = None,
    seed: int = 0,
    anew: bool = False,
    on_trial: Callable[[int, int, float | None], None] | None = None,
    until: Deadline = NEVER,
    least: Callable[[Candidate, Config], float] | None = None,
) -> TuneResult:
    """Find the best configuration of each candidate and rank the candidates.

    Args:
        candidates: the proved sGraphs of one region.
        evaluator: compiles and estimates, or measures.
        region: a key of the region: equal for equal programs.
        budget: trials, those in the journal included.
        storage_dir: where the journal is kept; nothing is kept when None.
        seed: of TPE.
        anew: whether what the journal holds is forgotten first.
        on_trial: told the number of trials done and to do, and the least seconds of any, after each.
        until: when trials end; the one that is under way then does not count.
        least: what a trial of a point takes at least. Where it is given, a study ends, once every leading sGraph has
            had a trial, when nothing that is left can be faster than the best: the winner is that of all the trials.
            Where it is not, it ends after a batch when the last trials gained nothing (`PATIENCE`).

    Raises:
        UsageError: the budget is not positive.
    """
    if budget < 1:
        raise UsageError(f"a budget of {budget} trials", fix="give 1 or more")
    ordered = _ordered(candidates)
    proposer = Proposer([c.points for c in candidates], ordered, seed)
    by_key = {_key(candidates, p): p for p in ordered}
    goal = min(budget, len(ordered))
    sequential = len(ordered) <= max(SWEEP, budget)
    journal = _journal(
        candidates, evaluator, region, storage_dir, seed, "sweep" if sequential else "tpe", proposer, anew
    )
    known: list[Trial] = []
    for key, outcome in journal.load():
        if key in by_key and all(t.point != by_key[key] for t in known):
            known.append(Trial(by_key[key], outcome))
    before = len(known)
    repeats = 0
    leaders = min(LEADERS, len({p.candidate for p in ordered}))  # sGraphs that are sure of a first trial
    ends = _Idle(budget) if least is None else _Ends(by_key, candidates, min(leaders, goal), least)
    while ends.after(known) is None and (
        len(known) < goal
        or (
            # That the first ones did not fit says nothing of the others: go on until something has a time.
            goal < min(len(ordered), budget + RESCUE)
            and all(t.outcome.failure in (Failure.SHARED, Failure.RESOURCES) for t in known[:goal])
        )
    ):
        if len(known) >= goal:
            goal = min(goal + BATCH, len(ordered))
            continue
        done = len(known)
        if sequential or done < SEEDS:
            end = min(goal, done + BATCH) if sequential else min(goal, SEEDS)
            if least is not None and done < leaders:
                end = min(goal, leaders)
            seen = {_key(candidates, t.point) for t in known}
            fresh = [p for p in ordered if _key(candidates, p) not in seen][: end - done]
        else:
            # Proposed from whole batches alone, so that it does not matter where an earlier run was cut off.
            start = SEEDS + (done - SEEDS) // BATCH * BATCH
            history = [(t.point, t.outcome.seconds) for t in known[:start]]
            proposed, again = proposer.propose(history, BATCH, start)
            repeats += again
            seen = {_key(candidates, t.point) for t in known}
            fresh = [p for p in proposed if _key(candidates, p) not in seen][: goal - done]
            if not fresh:
                break
        if until.finite:
            fresh = fresh[:HURRIED]  # the same trials, fewer at a time: none counts before it is timed
        try:
            with until.limited():
                outcomes = evaluator.evaluate([(candidates[p.candidate], p.config) for p in fresh])
                for point, outcome in zip(fresh, outcomes, strict=True):
                    journal.append(_key(candidates, point), point, outcome)
                    known.append(Trial(point, outcome))
                    if on_trial is not None:
                        on_trial(len(known), goal, min(_seconds(known), default=None))
        except OutOfTimeError:
            break
    over = ends.after(known)
    counted = known[: min(goal, over or goal)]
    found = _result(counted, evaluator.evidence, len(ordered), repeats, min(before, len(counted)))
    return replace(found, settled=over is not None)


class _Idle:
    """When a study is over before its budget is spent, where times are measured: nothing has gained for a while.

    What comes after the cost model's best points are guesses of another kind, and few of them. It is looked for after
    whole batches, and depends on the order of trials alone, so it does not matter where an earlier run was cut off.
    """

    def __init__(self, budget: int) -> None:
        self._patience = max(1, budget // PATIENCE)
        self._next = SEEDS
        self._found: int | None = None

    def after(self, known: Sequence[Trial]) -> int | None:
        """The number of trials after which it is over; None where these are not enough."""
        while self._found is None and self._next <= len(known):
            before = min(_seconds(known[: max(0, self._next - self._patience)]), default=math.inf)
            best = min(_seconds(known[: self._next]), default=math.inf)
            if before < math.inf and best > before * (1 - GAIN):
                self._found = self._next
            self._next += BATCH
        return self._found


@dataclass(slots=True)
class _Ends:
    """When a study is over before its budget is spent: its best is no slower than what is left can be.

    How many trials that takes depends on their order alone, so it does not matter where an earlier run was cut off.
    """

    points: Mapping[str, Point]  # all, by their keys
    candidates: Sequence[Candidate]  # whose points they are
    looked: int  # how many trials have been looked at; at first, how many there are in any case
    least: Callable[[Candidate, Config], float]  # what a trial takes at least
    _bounds: dict[str, float] = field(default_factory=dict)

    def after(self, known: Sequence[Trial]) -> int | None:
        """The number of trials after which it is over; None where these are not enough."""
        while self.looked <= len(known):
            if self._over(known[: self.looked]):
                return self.looked
            self.looked += 1
        return None

    def _over(self, known: Sequence[Trial]) -> bool:
        best = min(_seconds(known), default=math.inf)
        tried = {_key(self.candidates, t.point) for t in known}
        return best < math.inf and all(k in tried or best <= self._bound(k) for k in self.points)

    def _bound(self, key: str) -> float:
        if key not in self._bounds:
            point = self.points[key]
            self._bounds[key] = self.least(self.candidates[point.candidate], point.config)
        return self._bounds[key]


def _seconds(trials: Iterable[Trial]) -> Iterator[float]:
    return (t.outcome.seconds for t in trials if t.outcome.seconds is not None)


def _key(candidates: Sequence[Candidate], point: Point) -> str:
    return f"{candidates[point.candidate].key} {point.config.key()}"


def _ordered(candidates: Sequence[Candidate]) -> list[Point]:
    """Every point, best first by the model, but two kinds come before others: the best of each of the leading sGraphs.

    Then, of those that the model cannot tell from the best, one for each way to tile an sGraph and to load and launch
    it: that a loop has a stage or a split a part more is seldom what makes it slow.
    """
    scored: list[tuple[float, int, int]] = []
    for n, c in enumerate(candidates):
        for m, config in enumerate(c.points):
            seconds = c.estimate(config, ())
            scored.append((seconds if math.isfinite(seconds) else math.inf, n, m))
    scored.sort()
    leaders: dict[int, tuple[float, int, int]] = {}
    for s in scored:
        if len(leaders) == LEADERS:
            break
        leaders.setdefault(s[1], s)
    ways: dict[tuple[int, tuple[object, ...]], tuple[float, int, int]] = {}
    parts = [{r.parts.name for k in c.sgraph.kernels for _, r in k.roles if isinstance(r, Split)} for c in candidates]
    for s in scored:
        if s[0] > (1 + TIED) * scored[0][0]:
            break
        config = candidates[s[1]].points[s[2]]
        tiles = tuple((x, v) for x, v in sorted(config.symbols.items()) if x not in parts[s[1]])
        options = tuple((o, tuple(sorted(config.launches(o)))) for o in sorted(config.options))
        ways.setdefault((s[1], (tiles, options, *sorted(config.warps.items()))), s)
    ranked = dict.fromkeys([*leaders.values(), *ways.values(), *scored])
    return [Point(n, candidates[n].points[m]) for _, n, m in ranked]


def leading(found: Iterable[Best]) -> tuple[Best, ...]:
    """The fastest of each candidate, fastest first; of equal ones the first."""
    best: dict[int, Best] = {}
    for b in found:
        held = best.get(b.candidate)
        if held is None or b.seconds < held.seconds:
            best[b.candidate] = b
    return tuple(sorted(best.values(), key=lambda b: (b.seconds, b.candidate)))


def _result(trials: Sequence[Trial], evidence: Evidence, feasible: int, repeats: int, resumed: int) -> TuneResult:
    timed: list[Best] = []
    failures: dict[str, int] = {}
    compiled = 0
    for t in trials:
        o = t.outcome
        if o.failure is not None:
            failures[o.failure.value] = failures.get(o.failure.value, 0) + 1
        compiled += bool(o.resources)
        if o.seconds is not None:
            timed.append(Best(t.point.candidate, t.point.config, o.seconds, o.resources))
    return TuneResult(
        evidence=evidence,
        trials=tuple(trials),
        ranking=leading(timed),
        failures=failures,
        compiled=compiled,
        deduplicated=repeats,
        resumed=resumed,
        feasible=feasible,
        swept=len(trials) == feasible,
    )


class OptunaJournal:
    """The journal of one study: an Optuna study in a file, which Optuna's own tools can open.

    A file that was cut off or damaged, as a disk that was full leaves it, is as good as none.

    Args:
        folder: where journals are kept; made when it is missing.
        name: the study's name, which names everything that its outcomes depend on.
        proposer: knows the points as Optuna's parameters.
        anew: whether an earlier journal of that name is forgotten.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, name: str, proposer: Proposer, *, anew: bool = False) -> None:
        quiet()
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}.log"
        if anew:
            self._path.unlink(missing_ok=True)
        try:
            self._study = self._opened()
        except OSError:
            raise
        except Exception:  # whatever Optuna makes of bytes that are not its own
            self._path.unlink(missing_ok=True)
            self._study = self._opened()
        self._proposer = proposer
        self._full = False

    def _opened(self) -> optuna.Study:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        lock = _lock(self._path)
        if lock is not None:
            lock.acquire()
            try:
                _cut_to_lines(self._path)
            finally:
                lock.release()
        storage = JournalStorage(JournalFileBackend(str(self._path), lock_obj=lock))
        study = optuna.create_study(storage=storage, study_name=self._path.stem, load_if_exists=True)
        for t in study.get_trials(deepcopy=False):
            if "point" in t.user_attrs:
                msgspec.json.decode(t.user_attrs["outcome"], type=Outcome)
        return study

    def load(self) -> Iterable[tuple[str, Outcome]]:
        """What was recorded, in order."""
        for t in self._study.get_trials(deepcopy=False):
            if "point" in t.user_attrs:
                yield str(t.user_attrs["point"]), msgspec.json.decode(t.user_attrs["outcome"], type=Outcome)

    def append(self, key: str, point: Point, outcome: Outcome) -> None:
        """Record one trial; on a disk that is full, neither this one nor what follows."""
        if self._full:
            return
        text = msgspec.json.encode(outcome).decode()
        whole = 0
        try:
            whole = self._path.stat().st_size
            self._study.add_trial(self._proposer.frozen(point, outcome.seconds, {"point": key, "outcome": text}))
        except (OSError, ValueError):  # the latter where another run has left half a line meanwhile
            self._full = True
            with suppress(OSError):  # what follows half a line would not be read
                os.truncate(self._path, whole)


def _lock(path: Path) -> JournalFileOpenLock | None:
    """A lock of the system's on the journal itself; None, for Optuna's own, where there are none.

    Optuna's is a file beside it. A run that is killed would leave it there, and the next one wait half a minute.
    """
    try:
        import fcntl
    except ImportError:
        return None
    from optuna.storages.journal import JournalFileOpenLock

    class Lock(JournalFileOpenLock):
        """Held until it is released, or the process is gone."""

        _handle = -1

        def acquire(self) -> bool:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            return True

        def release(self) -> None:
            os.close(self._handle)

    return Lock(str(path))


def _cut_to_lines(path: Path) -> None:
    """Forget half a line at the end, as a run leaves it that is killed: the next line would be taken for its rest."""
    with path.open("r+b") as file:
        text = file.read()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            file.truncate(whole)


class _Forgotten:
    """A journal that keeps nothing."""

    def load(self) -> Iterable[tuple[str, Outcome]]:
        return ()

    def append(self, key: str, point: Point, outcome: Outcome) -> None:
        pass


def _journal(
    candidates: Sequence[Candidate],
    evaluator: Evaluator,
    region: str,
    storage_dir: Path | None,
    seed: int,
    strategy: str,
    proposer: Proposer,
    anew: bool,
) -> Journal:
    if storage_dir is None:
        return _Forgotten()
    texts = [[c.key, *sources_of(c.module), [p.key() for p in c.points]] for c in candidates]
    # An estimate is a function of its inputs, so these name the study; another seed or space is another study.
    name = digest(region, evaluator.evidence.value, evaluator.basis, seed, strategy, texts)[:32]
    try:
        return OptunaJournal(storage_dir, name, proposer, anew=anew)
    except OSError:  # it only costs time later
        return _Forgotten()


def sources_of(module: Path) -> list[str]:
    """The text of a module, and of the kernels that are beside it where it does not hold them."""
    if not module.is_file():
        return [""]
    return [p.read_text() for p in (module, *sorted(module.parent.glob("*.cpp")))]


def over_limit(resources: Sequence[Resources], shared_limit: int) -> str:
    """Why no such kernel can be launched: one line, or nothing. Triton itself only says so at the launch."""
    for r in resources:
        if r.shared > shared_limit:
            return f"{r.kernel} needs {r.shared} bytes of shared memory a block, {shared_limit} are there"
    return ""
