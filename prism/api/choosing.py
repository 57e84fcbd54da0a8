"""From what one search proved to one choice: emitted, tuned, checked, and compared with the baselines.

emit     one module per finalist, by the platform's backend
tune     Optuna over (which finalist, its symbols, its launches' options): timed on a device that is here, or estimated
check    the fastest against the float64 oracle; the next one when it fails
confirm  the fastest that pass meet the baselines, interleaved; or both are estimated by the same cost model
"""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from prism.api.finalists import Finalist, challengers, emitted, emitting, finalists, formula_of
from prism.api.partitioned import merged_checks
from prism.api.records import Choice, Request, not_timed
from prism.api.region_search import SearchResult
from prism.api.results import Results, results_of
from prism.api.time_limit import CLOSING_S, LEAST_S, MATCH_S, SHORT_CASES, WRITING_S, here, trials_end
from prism.errors import CompilerError, NoImprovementError, VerificationError, some
from prism.events import CheckSummary, Recorder
from prism.instantiate.cache import Cache, Store, version_of
from prism.instantiate.confirm import LEAST_MATCHES, challenged, confirm, installed, rematch
from prism.instantiate.confirm import NAMES as BASELINES
from prism.instantiate.gate.check import Drawn, KernelRunner, check_given, check_module
from prism.instantiate.gate.plan import Case, plan_cases
from prism.instantiate.lock import program_hash, versions
from prism.instantiate.machine_load import others_now, quiet
from prism.instantiate.measure import BASELINE, KERNEL, PROTOCOL, Bench, Contender, Measuring
from prism.instantiate.options import foreign
from prism.instantiate.study import LEADERS, Best, Candidate, Failure, TuneResult, leading, tune
from prism.platforms.estimating import Estimating
from prism.platforms.platform import Estimated, Platform, Timed
from prism.process.deadline import NEVER, Deadline, OutOfTimeError
from prism.process.memory import give_back
from prism.program.nodes import Program
from prism.report.units import on_threads
from prism.sgraph.show import key

ROUNDS = 3
"""How often others take their place when the numeric gate refuses all of them."""
ESTIMATED_BASELINE = "operator by operator"
"""What estimates are compared with."""
CONFIRMED = 3
"""Finalists that meet the baseline on a device that is here, where cores were taken as they met; else one."""
CLOSE = 1.25
"""How many times the time of the fastest a finalist may have taken to meet the baseline: by so much those that met in
interleaved rounds may change places in others, where cores are taken."""
ALTERNATIVES = 64
"""Configurations that the numeric gate is offered to be quick under."""
SHOWN = 4
"""Candidates that rounded worse, of which an error tells."""


class _NothingRunsError(NoImprovementError):
    """Nothing that was proved has a configuration that could be compiled and run; the model as it is still has."""


class UnmatchedError(OutOfTimeError):
    """The time ended within the first match: all that comes before is done, and kept."""


class RoundsWorseError(Exception):
    """All finalists that could be run round worse than the numeric gate allows, and compute what they are to compute.

    Attributes:
        failures: a line for each.
    """

    def __init__(self, failures: Sequence[str]) -> None:
        super().__init__(*failures)
        self.failures = tuple(failures)


@dataclass(frozen=True, slots=True)
class Tools:
    """What the regions of a run share."""

    platform: Platform  # what is tuned for
    estimating: Estimating | None  # the evaluator where nothing is timed
    runner: KernelRunner  # runs kernels for the numeric gate
    folder: Path  # for modules, gone at the end
    recorder: Recorder  # gets the stages
    store: Store  # measurements of earlier runs
    results: Results  # what earlier runs found
    studies: Path  # where the journals of studies are kept
    time: Deadline  # when all of it ends
    cut: list[str]  # what was cut short for that
    part: bool = False  # whether what is chosen becomes a part of another module, which is checked as one, too
    # Whether an earlier run with as much time ended with nothing: what that one finished is put together, and what is
    # missing is made, and nothing is made better.
    hurried: bool = False
    matched: bool = False  # whether that one had come to its first match

    def begin(self, program: Program) -> None:
        """Make sure that what compiles works, and start the children that import for seconds, during the search.

        Raises:
            CompilerError: it does not.
        """
        self.platform.preflight(program)
        if self.estimating is not None:
            self.estimating.begin()
        if self.platform.device.is_gpu:
            self.runner.begin()


def tools_of(
    request: Request,
    platform: Platform,
    recorder: Recorder,
    stack: ExitStack,
    cache: Path,
    anew: bool,
    time: Deadline,
) -> Tools:
    """They end with the stack; their processes start when they are first needed."""
    if isinstance(platform, Timed):
        platform = stack.enter_context(platform.lending())
    results = results_of(request, platform, cache, anew=anew, closing=time.closing)
    matched = results.unfinished(request, time.given)
    return Tools(
        platform,
        stack.enter_context(platform.estimating(request.program.hints)) if isinstance(platform, Estimated) else None,
        stack.enter_context(platform.runner()),
        Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prism-"))),
        recorder,
        Store(Cache("timings", cache), anew=anew),
        results,
        cache / "studies",
        time,
        [],
        hurried=matched is not None,
        matched=bool(matched),
    )


def bench_of(
    request: Request, tools: Tools, own: ExitStack, *, trials: bool = True, after: threading.Event | None = None
) -> Bench | None:
    """Where the program is timed, until the stack ends; None where nothing is timed.

    Its inputs are begun to be drawn, for `trials`, too, and what kernels will be compared with is begun to be made
    ready, which stands still for trials. `after` is as for `Arena.ahead`.
    """
    platform = tools.platform
    if not isinstance(platform, Timed):
        return None
    bench = own.enter_context(closing(platform.bench(request.program, request.seed)))
    bench.ahead(*_contests(request, platform, tools), trials, after)
    return bench


def _begin_contest(request: Request, bench: Bench | None, tools: Tools) -> None:
    """Begin to make ready what kernels will be compared with; they are checked meanwhile."""
    if bench is not None and isinstance(tools.platform, Timed):
        bench.begin(*_contests(request, tools.platform, tools))


def _contests(request: Request, platform: Timed, tools: Tools) -> tuple[Sequence[Contender], int]:
    """The baselines, and how many times they are met, at least."""
    contests = 1 if tools.time.finite else min(LEAST_MATCHES, request.matches)
    return _baselines(request, platform, tools)[0], contests


def choice_of_search(request: Request, found: SearchResult, tools: Tools, folder: Path, bench: Bench | None) -> Choice:
    """The best of what one search proved, tuned and checked; modules are written to the folder.

    `bench` is as `bench_of` has it.

    Raises:
        NoImprovementError: nothing was proved.
    """
    if not found.proved:
        raise NoImprovementError(
            "no implementation was proved",
            where=request.program.name,
            why=f"{found.unknown} candidates were left undecided" if found.unknown else "the search found none",
            fix="raise the search's bounds (--max-kernels, --enodes), or keep the model as it is",
        )
    wrong: VerificationError | None = None
    dead: _NothingRunsError | None = None
    rounding: list[str] = []
    tried: set[int] = set()
    # What is as written has a turn of its own where there are too few trials for every finalist to have one.
    for alone in (*(False for _ in range(ROUNDS)), *(True for _ in range(request.trials < LEADERS))):
        with tools.recorder.stage("emission") as detail:
            emit = emitting(folder, formula_of(found), tools.platform, "_alone" if alone else "")
            hints, guesses = request.program.hints, request.program.guesses
            made = finalists(found.proved, tools.platform, hints, emit, guesses=guesses, tried=tried, alone=alone)
            tried |= made.keys()
            detail.append(f"{len(made)} of {len(found.proved)} proved sGraphs")
        if not made:
            continue
        try:
            choice = _choose(request, list(made.values()), tools, bench)
        except VerificationError as error:
            wrong = wrong or error
        except RoundsWorseError as error:
            # What rounds badly is often what looks fastest, in all its variants.
            rounding += error.failures
        except _NothingRunsError as error:
            dead = dead or error
        else:
            return replace(choice, opinion=choice.proved.opinion)
    if wrong is not None:
        raise wrong
    if rounding:
        raise nothing_better(request.program.name, rounding)
    raise dead or _NothingRunsError(
        "no configuration fits the device",
        where=request.program.name,
        why=f"none of {len(found.proved)} proved sGraphs has one",
        fix="keep the model as it is, tune at smaller shapes (--shape), or for another device (--target)",
    )


def _choose(request: Request, chosen: list[Finalist], tools: Tools, bench: Bench | None) -> Choice:
    """Tune the finalists, check the fastest, compare with the baseline."""
    platform, recorder = tools.platform, tools.recorder
    tuned = _tuned(request, chosen, bench, tools)
    with recorder.stage("check") as detail:
        # A region meets no baseline by itself: the fastest of those that met each other is taken.
        several = bench is not None and not quiet(bench.load) and bool(request.baselines) and not tools.time.finite
        limit = SHORT_CASES if tools.time.finite else None
        right = right_of(request, chosen, tuned, tools, bench, CONFIRMED if several else 1, limit)
        detail.append(f"{right[0][1].cases} cases")
    right = beside(chosen, right, platform.timed)
    best, checked = right[0]
    winner = chosen[best.candidate]
    choice = Choice(winner.proved, best, winner.model, tuned, checked, 0.0, ESTIMATED_BASELINE)
    if isinstance(platform, Estimated):
        return replace(choice, baseline_seconds=platform.baseline_seconds(request.program))
    assert bench is not None
    return confirmed(request, bench, chosen, right, tools, choice)


def _tuned(request: Request, chosen: list[Finalist], bench: Bench | None, tools: Tools) -> TuneResult:
    """The study of the finalists."""
    with ExitStack() as own:
        evaluator: Estimating | Measuring
        if isinstance(tools.platform, Timed):
            assert bench is not None
            evaluator = own.enter_context(tools.platform.measuring(bench, tools.store))
        else:
            assert tools.estimating is not None
            evaluator = tools.estimating
        guessed = by_model(chosen, tools.platform, request.program.hints)
        until = tools.time.part(0.0) if tools.hurried and guessed else trials_end(tools.time, tools.part)
        with tools.recorder.stage("tuning") as detail:
            while True:
                tuned = tune(
                    [f.candidate for f in chosen],
                    evaluator,
                    region=program_hash(request.program),
                    budget=request.trials,
                    storage_dir=tools.studies,
                    seed=request.seed,
                    anew=tools.store.anew and bench is not None,
                    on_trial=partial(tools.recorder.count, "trials"),
                    until=until,
                    least=evaluator.least if isinstance(evaluator, Estimating) else None,
                )
                ranking = tuned.ranking or guessed
                # What was begun meanwhile is nearly done; other finalists would begin anew.
                if tuned.trials or not tuned.feasible or ranking or not here(LEAST_S) < tools.time.left < math.inf:
                    break
            goal = min(request.trials, tuned.feasible)
            whole = tuned.settled or len(tuned.trials) >= goal
            if not whole:
                tools.cut.append(f"{len(tuned.trials)} of {goal} trials were made")
                tuned = replace(tuned, ranking=ranking)
            if isinstance(evaluator, Measuring) and whole:
                tuned = challenged(
                    tuned,
                    [f.candidate for f in chosen],
                    evaluator.remembered,
                    challengers(tuned.ranking, chosen),
                )
                tuned = rematch(tuned, [f.candidate for f in chosen], evaluator)
            alone = " on 1 thread" if isinstance(evaluator, Measuring) and evaluator.threads == 1 else ""
            detail.append(f"{tuned.compiled} compiled, {tuned.evidence.value}{alone}")
            if tuned.resumed:
                detail.append(f"{tuned.resumed} of {len(tuned.trials)} stored")
    return tuned


def by_model(chosen: Sequence[Finalist], platform: Platform, hints: Mapping[str, int]) -> tuple[Best, ...]:
    """The finalists' best points by the cost model, fastest first, where it is known what they take."""
    found: list[Best] = []
    for n, f in enumerate(chosen if isinstance(platform, Timed) else ()):
        config = f.candidate.points[0]
        taken = platform.resources(f.candidate.sgraph, config, hints) if isinstance(platform, Timed) else None
        if taken is not None:
            found.append(Best(n, config, f.model.seconds(config, taken), taken))
    return leading(found)


def right_of(
    request: Request,
    chosen: list[Finalist],
    tuned: TuneResult,
    tools: Tools,
    bench: Bench | None,
    wanted: int,
    limit: int | None = None,
) -> list[tuple[Best, CheckSummary]]:
    """The fastest of the finalists that pass the numeric gate, at most `wanted`: one, and others that are close to it.

    `limit` as for `check_module`, `bench` as `bench_of` has it.

    Raises:
        VerificationError: none passes, and one computes something else than its sGraph.
        _NothingRunsError: nothing could be run, or nothing ended in time.
        RoundsWorseError: none passes, by rounding alone.
    """
    tools.runner.forget()
    try:
        return _right_of(request, chosen, tuned, tools, bench, wanted, limit)
    finally:  # draws, and what is right for them in float64, take several times what the weights do
        tools.runner.forget()
        give_back()


def _right_of(
    request: Request,
    chosen: list[Finalist],
    tuned: TuneResult,
    tools: Tools,
    bench: Bench | None,
    wanted: int,
    limit: int | None,
) -> list[tuple[Best, CheckSummary]]:
    failures: list[str] = []
    rounding: list[str] = []
    late: list[str] = []
    passed: list[tuple[Best, CheckSummary]] = []
    drawn = Drawn(request.program)
    until = NEVER if tools.part else tools.time.moved(-here(MATCH_S))
    waiting = [*tuned.ranking]
    close = [b for b in waiting if b.seconds <= CLOSE * waiting[0].seconds]
    for best in close[:wanted]:
        c = chosen[best.candidate].candidate
        cases = _cases(request, c, best, tools, limit)
        if tools.results.gate(request, _called(c, best), cases, tools.time.given) is None:
            tools.runner.ahead(c.module, c.sgraph, cases)
    _begin_contest(request, bench, tools)  # while that is compiled
    if bench is not None:
        bench.tell(drawn)
    for best in waiting:
        if passed and best not in close:
            continue
        c = chosen[best.candidate].candidate
        cases = _cases(request, c, best, tools, limit)
        report = tools.results.gate(request, _called(c, best), cases, tools.time.given)
        if report is None:
            report = check_module(
                request.program,
                c.module,
                c.sgraph,
                best.config,
                seed=request.seed,
                runner=tools.runner,
                alternatives=c.points[:ALTERNATIVES],
                limit=limit,
                drawn=drawn,
                until=until,
            )
            tools.results.keep_gate(request, _called(c, best), cases, tools.time.given, report)
        if report.passed:
            tools.cut.extend([f"{report.left} cases of the numeric gate were not run"] if report.left else [])
            passed.append((best, report.summary()))
            if len(passed) == wanted:
                return passed
        else:
            named = f"{some(k.name for k in c.sgraph.kernels)}: {report.failures[0]}"
            (late if report.late else rounding if report.rounding else failures).append(named)
            tools.recorder.warn(f"a proved sGraph failed the numeric gate and was dropped: {report.failures[0]}")
            if foreign(best.config):
                waiting += _without_library(best.candidate, tuned)
    if passed:
        return passed
    timed = {best.candidate for best in tuned.ranking}
    for t in tuned.trials:
        # In the timed runs, too, results are judged; what failed there has no time and is not in the ranking.
        n, o = t.point.candidate, t.outcome
        if n not in timed and o.failure in (Failure.WRONG, Failure.ROUNDING):
            timed.add(n)
            named = f"{some(k.name for k in chosen[n].candidate.sgraph.kernels)}: {o.detail}"
            (rounding if o.failure is Failure.ROUNDING else failures).append(named)
    if rounding and not failures:
        raise RoundsWorseError(rounding)
    if not failures and (late or (tuned.failures and set(tuned.failures) <= {Failure.HANG.value})):
        raise _NothingRunsError(
            "nothing that was proved ended in time",
            where=request.program.name,
            why=(late or [t.outcome.detail for t in tuned.trials if t.outcome.detail] or ["every trial hung"])[0],
            fix="run it again when the machine has less to do, or tune at smaller shapes (--shape)",
        )
    counts = ", ".join(f"{n} times {reason}" for reason, n in sorted(tuned.failures.items()))
    counts += "".join(f": {d}" for d in [t.outcome.detail for t in tuned.trials if t.outcome.detail][:1])
    if not failures and set(tuned.failures) == {Failure.COMPILE.value}:
        raise CompilerError(
            "no kernel could be compiled",
            where=f"{request.program.name}, target {request.target}",
            why=counts,
            fix="see whether the compiler works for other programs, has memory and disk space; report it if it does",
        )
    if not failures:
        raise _NothingRunsError(
            "no configuration could be compiled and run",
            where=request.program.name,
            why=counts,
            fix=_what_ran_badly({Failure(name) for name in tuned.failures}),
        )
    raise VerificationError(
        "no proved kernel passed the numeric gate",
        where=request.program.name,
        why=failures[0],
        fix="report it with the model: this is a bug in prism",
    )


def _cases(request: Request, c: Candidate, best: Best, tools: Tools, limit: int | None) -> Sequence[Case]:
    """What the numeric gate runs of a candidate; `limit` as for `check_module`."""
    offered, bounded = c.points[:ALTERNATIVES], tools.runner.bounded
    return plan_cases(request.program, c.sgraph, best.config, offered, request.seed, bounded=bounded)[:limit]


def _called(c: Candidate, best: Best) -> str:
    """What is kept of a check is kept of this."""
    return f"{key(c.sgraph)} {best.config.key()}"


def _without_library(candidate: int, tuned: TuneResult) -> list[Best]:
    """The candidate's best trial in which all kernels are its own, if there is one."""
    own = [
        Best(candidate, t.point.config, t.outcome.seconds, t.outcome.resources)
        for t in tuned.trials
        if t.point.candidate == candidate and t.outcome.seconds is not None and not foreign(t.point.config)
    ]
    return sorted(own, key=lambda b: b.seconds)[:1]


def _what_ran_badly(failures: AbstractSet[Failure]) -> str:
    """What to do where nothing could be run, by why it could not."""
    if Failure.HANG in failures:
        return "keep the model as it is; or try again while the machine is idle, or at smaller shapes (--shape)"
    if failures <= {Failure.SHARED, Failure.RESOURCES}:
        return "keep the model as it is, tune at smaller shapes (--shape), or for another device (--target)"
    return (
        "keep the model as it is; see whether the machine had memory and disk space for it, and try smaller shapes "
        "(--shape); if it had, report it with the model"
    )


def nothing_better(name: str, failures: Sequence[str]) -> NoImprovementError:
    """What to say where all that was proved rounds worse; `failures` has a line for each."""
    shown = "; ".join(dict.fromkeys(failures[:SHOWN]))
    more = f"; and {len(failures) - SHOWN} more" if len(failures) > SHOWN else ""
    return NoImprovementError(
        "nothing that was proved rounds as well as what was given",
        where=name,
        why=f"{len(failures)} {'candidate' if len(failures) == 1 else 'candidates'} failed the numeric gate by "
        f"rounding alone: {shown}{more}",
        fix="keep the model as it is, or leave rounding alone (--fp exact)",
    )


def right_for(
    given: Mapping[str, np.ndarray], request: Request, found: SearchResult, choice: Choice, tools: Tools
) -> Choice:
    """The choice with one more case of the numeric gate: the inputs that the user gave.

    Raises:
        VerificationError: the kernels compute something else for them.
        NoImprovementError: they round worse than the model does.
    """
    program, sgraph, config = request.program, choice.proved.sgraph, choice.best.config
    own = {t.name: given[t.name] for t in program.inputs if t.name in given}
    stored = True

    def check() -> CheckSummary:
        nonlocal stored
        stored = False
        path = emitted(tools.folder / "given", sgraph, formula_of(found), tools.platform, [config], ())
        report = check_given(program, path, sgraph, config, own, runner=tools.runner)
        if report.rounding:
            raise nothing_better(program.name, report.failures)
        return report.summary()

    with tools.recorder.stage("inputs given") as detail:
        summary = tools.results.checked(request, f"{key(sgraph)} {config.key()}", own, check)
        detail += ["stored"] if stored else []
        detail.append(f"error {max(summary.worst.values(), default=0.0):.2g} of what is allowed")
    return replace(choice, checked=merged_checks([choice.checked, summary]))


def beside(
    chosen: list[Finalist], right: list[tuple[Best, CheckSummary]], timed: bool
) -> list[tuple[Best, CheckSummary]]:
    """The same, with variants whose kernels are the same and by which the model expects a gain.

    Where there is a device to say, both ways are left to it. What is computed is the same, so the check holds for both.
    """
    found: list[tuple[Best, CheckSummary]] = []
    for best, checked in right:
        made = chosen[best.candidate].beside(best)
        if not made or timed:
            found.append((best, checked))
        found += [(b, checked) for b in made]
    return found


def _baselines(request: Request, platform: Timed, tools: Tools) -> tuple[list[Contender], dict[str, str]]:
    """What kernels are compared with, and why others are not."""
    wanted = tuple(b for b in request.baselines if b != "compile" or not tools.time.finite)
    found, missing = installed(request.program, platform.target, wanted, platform.thread_counts())
    if wanted != request.baselines:
        missing = {**missing, BASELINES["compile"]: "it compiles for longer than a run with a time limit may take"}
    return found, missing


def confirmed(
    request: Request,
    bench: Bench,
    chosen: list[Finalist],
    right: list[tuple[Best, CheckSummary]],
    tools: Tools,
    choice: Choice,
) -> Choice:
    """The choice by how the best finalists do against the baselines: the kernel's own time, and the best baseline's."""
    platform = tools.platform
    assert isinstance(platform, Timed)
    threads = platform.thread_counts()
    found, missing = _baselines(request, platform, tools)
    if not found and len(right) == 1:
        return choice
    kernels = []
    for n, (best, _) in enumerate(right):
        c = chosen[best.candidate].candidate
        kernels += [Contender(str(n), c.module, c.sgraph, best.config, threads=k) for k in threads]
    with tools.recorder.stage("confirmation") as detail:
        basis = (
            f"{platform.device_name} {platform.compiler} {versions()} {version_of('onnxruntime')} protocol {PROTOCOL}"
        )
        until, first = tools.time.moved(-here(CLOSING_S)), tools.time.moved(-here(WRITING_S))
        try:
            outcome = confirm(
                bench, kernels, found, store=tools.store, basis=basis, until=until, first=first, most=request.matches
            )
        except OutOfTimeError:
            raise UnmatchedError from None
        detail.append(f"stored, of {outcome.date}" if outcome.stored else "timed anew")
    busy = others_now() if outcome.stored and outcome.loads else None
    ours, theirs = outcome.deciding.best(KERNEL), outcome.deciding.best(BASELINE)
    if ours is not None:
        best, checked = right[int(ours.name)]
        winner = chosen[best.candidate]
        best = replace(best, seconds=ours.seconds)
        choice = replace(choice, proved=winner.proved, best=best, model=winner.model, checked=checked)
    for name, why in not_timed(outcome.matches[0].standings, but=Failure.HOPELESS).items():
        tools.recorder.warn(f"{name} is not compared with: {why}")
    if theirs is None:
        return choice
    return replace(
        choice,
        baseline_seconds=theirs.seconds,
        baseline=on_threads(theirs.name, theirs.threads),
        confirmation=outcome,
        missing=missing,
        others_now=busy,
    )
