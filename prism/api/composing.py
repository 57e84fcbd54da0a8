"""From a program to its choice, region by region, each in its share of the time, and what an earlier run kept of it."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from prism.api.choosing import (
    ESTIMATED_BASELINE,
    RoundsWorseError,
    Tools,
    bench_of,
    beside,
    by_model,
    choice_of_search,
    confirmed,
    nothing_better,
    right_of,
)
from prism.api.finalists import Finalist, emitted, finalists, formula_of
from prism.api.partitioned import (
    PartitionedSearch,
    bound,
    composed_choice,
    finer,
    gains,
    hurried,
    merged_checks,
    search_regions,
    unsearched,
)
from prism.api.records import Choice, Request
from prism.api.region_search import SearchResult, enough, run_search
from prism.api.second_opinion import merged
from prism.api.time_limit import (
    AGAIN,
    CROWDED,
    FINISHED,
    GOES_ON,
    LEAST_S,
    UNPROVED,
    here,
    regions_end,
    search_end,
    search_time,
)
from prism.cost.model import CostModel
from prism.egraph.worker import Worker
from prism.errors import NoImprovementError, VerificationError, of_one_part, of_part
from prism.events import CheckSummary, Evidence, Recorder
from prism.generate.partition import partition, unrepeated
from prism.instantiate.machine_load import others_now
from prism.instantiate.measure import Bench
from prism.instantiate.options import options_of
from prism.instantiate.study import Candidate, TuneResult
from prism.platforms.platform import Estimated
from prism.process.deadline import OutOfTimeError
from prism.program.region import Region
from prism.sgraph.nodes import SGraph
from prism.sgraph.show import key

WHOLE_CASES = 3
"""Cases of the numeric gate for a module of several regions, each of which has passed all of them by itself."""
AS_BEFORE, AT_LEAST = 1.25, 0.5
"""So many times what regions took that were tuned is enough for the next one; no less than this share of LEAST_S is."""
SHORT = "a search ended before all of it was proved"


def choice_of_program(request: Request, worker: Worker, tools: Tools) -> tuple[SearchResult, Choice]:
    """What an earlier run of the same request came to; where there was none, what this one does, which is kept."""
    recorder, results = tools.recorder, tools.results
    kept = _recalled(request, tools)
    if kept is not None:
        return kept
    worker.begin()
    tools.begin(request.program)
    before = len(recorder.warnings)
    with recorder.part("partition"):
        regions: Sequence[Region] = partition(request.program, device=request.device)
    if len(regions) > 1:
        recorder.finish("partition", f"{len(regions)} regions")
    known: dict[str, SearchResult] = {}
    with ExitStack() as own:
        bench, late = None, False
        if len(regions) == 1 and regions[0].loop is None:
            searched = threading.Event()
            bench = bench_of(request, tools, own, after=searched)
            try:
                alone = _region_searched(request, worker, tools)
            finally:
                searched.set()
            if alone is None:
                regions, late = finer(regions[0]), True
            else:
                known = {regions[0].canonical().key: alone}
        try:
            if known and enough(request.program, next(iter(known.values()))):
                (found,) = known.values()
                parts, done = _as_one(request, found, regions, tools, bench)
                found, choice = done or _composed(request, parts, worker, tools, {}, as_one=False)
            else:
                found, choice = _composed(request, regions, worker, tools, known, as_one=not late)
        except NoImprovementError as error:
            _warn_of_cut(tools)
            # Of what did not run at all another try may say something else.
            if type(error) is NoImprovementError and not error.in_part:
                results.keep_refusal(request, error, recorder.warnings[before:], _lasts(request, tools))
            raise
    _warn_of_cut(tools)
    results.keep_choice(request, found, choice, recorder.warnings[before:], _lasts(request, tools))
    return found, choice


def _lasts(request: Request, tools: Tools) -> float:
    """The most seconds for which a run comes to what this one came to.

    What had time enough is not compared with all baselines, nor checked on all cases, where the time was limited.
    """
    if tools.cut:
        return tools.time.given
    return FINISHED if request.baselines and tools.time.finite else math.inf


def _warn_of_cut(tools: Tools) -> None:
    if tools.cut:
        said = [f"{what} ({n} times)" if n > 1 else what for what, n in Counter(tools.cut).items()]
        ended, then = ("interrupted", GOES_ON) if tools.time.closing else ("the time ended", AGAIN)
        tools.recorder.warn(f"{ended}: {'; '.join(said)}; {then}")


def _as_one(
    request: Request, found: SearchResult, regions: Sequence[Region], tools: Tools, bench: Bench | None
) -> tuple[Sequence[Region], tuple[SearchResult, Choice] | None]:
    """What is chosen of a program that is one region; where nothing can be, its parts, as for any region.

    Raises:
        NoImprovementError: nothing that was found for one operator rounds as well as it.
    """
    try:
        return regions, (found, choice_of_search(request, found, tools, tools.folder, bench))
    except Exception as error:
        failed, parts = of_part(error), finer(regions[0])
        if len(parts) == 1 or tools.cut:
            raise
        tools.recorder.warn(f"{request.program.name} is kept as {len(parts)} parts: {failed.what}: {failed.why}")
        return parts, None


def _recalled(request: Request, tools: Tools) -> tuple[SearchResult, Choice] | None:
    """What an earlier run of the same request came to; None where there was none.

    Raises:
        NoImprovementError: it found nothing that is better.
    """
    start = tools.recorder.clock()
    kept = tools.results.choice(request, tools.time.given)
    if kept is None:
        return None
    for message in kept.warnings:
        tools.recorder.warn(message)
    refused = kept.error()
    if refused is not None:
        raise refused
    found, choice = kept.found(_model_of(request, tools))
    if request.baselines and choice.confirmation is not None and choice.confirmation.loads:
        choice = replace(choice, others_now=others_now())
    if request.baselines:
        said = f"{len(found.proved)} proved, {choice.tuned.compiled} compiled, {choice.checked.cases} cases"
        said += ", timed" if choice.confirmation is not None else ""
        tools.recorder.passed("stored", tools.recorder.clock() - start, f"of {kept.date}: {said} (--anew: again)")
    return found, choice


def _model_of(request: Request, tools: Tools) -> Callable[[SGraph], CostModel]:
    """The cost model of an sGraph of the request's program."""
    return lambda g: tools.platform.model(g, request.program.hints)


def _region_searched(request: Request, worker: Worker, tools: Tools) -> SearchResult | None:
    """What a search of the whole program finds, or found; None where it proved nothing in time, or failed.

    Raises:
        OutOfTimeError: nothing was proved of one operator.
    """
    found = tools.results.search(request.program, request.budget, tools.time.given)
    if found is not None:
        tools.recorder.finish("search", f"stored: {len(found.proved)} proved")
        _say_cut(found, tools)
        return found
    if tools.time.closing:
        raise OutOfTimeError
    before = len(tools.recorder.warnings)
    try:
        found = _searched_in_time(request, worker, tools)
    except OutOfTimeError:
        if request.program.operator_count == 1:
            raise
        tools.cut.append(SHORT)
        return None
    except Exception as error:
        if request.program.operator_count == 1:
            raise
        tools.recorder.warn(unsearched(request.program, error))
        return None
    _say_cut(found, tools)
    if len(tools.recorder.warnings) == before:
        tools.results.keep_search(request.program, request.budget, found, tools.time.given)
    return found


def _searched_in_time(request: Request, worker: Worker, tools: Tools) -> SearchResult:
    """A search of the whole program as one region, which has a part of the time.

    On a machine that others use a small one comes before it, as of regions; the rest then has less time to begin with.

    Raises:
        OutOfTimeError: nothing was proved by then.
    """
    program, device = request.program, request.device
    worker.ready()
    until, first = search_end(tools.time), None
    last = max(until, tools.time.part(UNPROVED))
    if tools.time.finite and (tools.hurried or here(1.0) >= CROWDED):
        with last.limited():
            first = run_search(program, device, hurried(request.budget), worker, Recorder(), tools.time.part(0.0))
    if first is None or not first.proved:
        with last.limited():
            return run_search(program, device, request.budget, worker, tools.recorder, until)
    first = replace(first, interrupted=True)
    if tools.hurried:
        return first
    try:
        with until.limited():
            found = run_search(program, device, request.budget, worker, tools.recorder, until)
    except OutOfTimeError:
        return first
    return first if found.interrupted and bound(found) > bound(first) else found


def _say_cut(found: SearchResult, tools: Tools) -> None:
    """Add to what was cut short that a search was."""
    if found.interrupted:
        left = ", before all were built" if found.generated.ended else ""
        tools.cut.append(f"{len(found.proved)} sGraphs were proved, of {len(found.generated.candidates)}{left}")


def _composed(
    request: Request,
    regions: Sequence[Region],
    worker: Worker,
    tools: Tools,
    known: dict[str, SearchResult],
    as_one: bool = True,
) -> tuple[SearchResult, Choice]:
    """The regions' winners as one, and their searches as one. A region need not beat anything by itself."""
    program, recorder, platform = request.program, tools.recorder, tools.platform
    with ExitStack() as own:
        bench = bench_of(request, tools, own, trials=False)
        with recorder.stage("search") as detail:
            time = search_time(tools.time)
            if tools.hurried:
                time = time.proofs_alone()
            with time.last.limited():
                searches = search_regions(
                    program,
                    regions,
                    request.device,
                    request.budget,
                    [worker],
                    recorder,
                    known,
                    tools.results,
                    as_one,
                    time,
                )
            tools.cut.extend(SHORT for r in searches.distinct.values() if r.result.interrupted)
            proved = sum(len(r.result.proved) for r in searches.distinct.values())
            detail.append(f"{searches}, {proved} proved")
        if bench is not None and not tools.hurried and regions_end(tools.time, request.matches).left:
            bench.ready()  # nothing else runs beside trials
        searches, choices = _each_chosen(request, searches, worker, tools)
        picks = [choices[r.canonical.key] for r in searches.regions]
        with recorder.stage("composition") as detail:
            whole = composed_choice(searches, picks, lambda g: platform.model(g, program.hints))
            sgraph, config = whole.proved.sgraph, whole.best.config
            found = searches.result(whole.proved)
            path = emitted(tools.folder / "whole", sgraph, formula_of(found), platform, [config], ())
            finalist = Finalist(
                whole.proved,
                Candidate(key(sgraph), sgraph, path, (config,), whole.model.seconds),
                whole.model,
                options_of(sgraph, request.device, program.hints),
            )
            try:
                right = right_of(request, [finalist], whole.tuned, tools, bench, 1, WHOLE_CASES)
            except RoundsWorseError as error:
                raise of_one_part(nothing_better(program.name, error.failures), program.name) from None
            except (NoImprovementError, VerificationError) as error:
                raise of_one_part(error, program.name) from error
            checked = merged_checks([right[0][1], *(c.checked for c in choices.values())])
            detail.append(f"{len(sgraph.kernels)} kernels, {right[0][1].cases} cases")
        right = beside([finalist], [(whole.best, checked)], platform.timed)
        opinion = merged(c.opinion for c in choices.values())
        whole = replace(whole, checked=checked, opinion=opinion)
        if isinstance(platform, Estimated):
            seconds = platform.baseline_seconds(program)
            return found, replace(whole, best=right[0][0], baseline_seconds=seconds, baseline=ESTIMATED_BASELINE)
        assert bench is not None
        return found, confirmed(request, bench, [finalist], right, tools, whole)


def _each_chosen(
    request: Request, searches: PartitionedSearch, worker: Worker, tools: Tools
) -> tuple[PartitionedSearch, dict[str, Choice]]:
    """What is chosen for every region, by its canonical key, and the regions that these are.

    A loop's step of which one launch may be all is chosen as that, and as a step where that fails.

    A region's failure is not the model's: where nothing that was found for one will do, as it rounds worse than what
    was given, computes something else or cannot be compiled, the region is cut into smaller ones, in the end the
    operators as they are written, and a warning says so.

    Raises:
        PrismError: nothing will do for one operator (`in_part`).
    """
    choices: dict[str, Choice] = {}
    until = tools.time.part(0.0) if tools.hurried else regions_end(tools.time, request.matches)
    short = took = 0.0
    while True:
        refused: set[str] = set()
        waiting = searches.waiting
        gained = gains(searches, request.device) if until.finite else dict.fromkeys(searches.distinct, 0.0)
        for key_ in gained:
            if key_ in choices:
                continue
            r = searches.distinct[key_]
            tools.recorder.count("regions tuned", len(choices), len(searches.distinct))
            place = tools.folder / f"region_{len(choices)}_{len(searches.regions)}_{len(refused)}_{len(waiting)}"
            place.mkdir()
            # Said of the region as the user knows it.
            where = f"{r.region.program.name} ({', '.join(r.region.outputs)})"
            own, of = replace(request, program=r.canonical.program, baselines=()), r.result
            all_steps = searches.through_steps(r) if key_ not in waiting else None
            if all_steps is not None:
                own, of = replace(own, program=all_steps.program), all_steps.result(r.result)
            try:
                left = [gained[k] for k in gained if k not in choices]
                part = max(gained[key_] / (sum(left) or 1.0), 1 / (2 * len(left)))
                which = f"region {len(choices) + 1} of {len(searches.distinct)}"
                with tools.recorder.within(2, which):
                    before = until.left
                    enough_s = max(AT_LEAST * here(LEAST_S), AS_BEFORE * took) if took else math.inf
                    least = max(min(here(LEAST_S), enough_s), 2.0 * short)
                    choice = _in_time(own, of, replace(tools, time=until, part=True), place, part, least)
                    if all_steps is not None:
                        choice = all_steps.of_step(choice, tools.platform.model)
                    choices[key_] = choice
                    if not until.finite:
                        continue
                    if choice.tuned.trials:
                        took = max(took, before - until.left)
                    else:
                        short = max(short, before - until.left)
            except Exception as error:
                failed = of_part(error)
                if all_steps is not None:
                    tools.recorder.warn(f"the steps of {where} are launches: {failed.what}: {failed.why}")
                    waiting |= {key_}
                    continue
                parts = finer(r.region)
                if len(parts) == 1:
                    raise of_one_part(failed, where) from error
                tools.recorder.warn(f"{where} is kept as {len(parts)} parts: {failed.what}: {failed.why}")
                refused.add(key_)
        if waiting != searches.waiting:
            searches = replace(searches, waiting=waiting)
            continue
        if not refused:
            return searches, choices
        regions = unrepeated(
            part for r in searches.regions for part in (finer(r.region) if r.canonical.key in refused else (r.region,))
        )
        known = {r.canonical.key: r.result for r in searches.regions}
        with tools.recorder.stage("search") as detail:
            searches = search_regions(
                searches.program,
                regions,
                request.device,
                request.budget,
                [worker],
                tools.recorder,
                known,
                tools.results,
                as_one=False,
                # Its parts are to have a proof, too, where it is known late that nothing will do for it.
                time=search_time(until) if until.left else search_time(tools.time).proofs_alone(),
            )
            detail.append(str(searches))
        searches = replace(searches, waiting=waiting)


def _region_chosen(request: Request, found: SearchResult, tools: Tools, place: Path) -> Choice:
    """What is chosen of a region's search, or was by an earlier run."""
    kept = _recalled(request, tools)
    if kept is not None:
        tools.recorder.count("regions stored", 1)
        return kept[1]
    before, short = len(tools.recorder.warnings), len(tools.cut)
    try:
        with ExitStack() as own:
            choice = choice_of_search(request, found, tools, place, bench_of(request, tools, own))
    except NoImprovementError as error:
        whole = len(tools.cut) == short and not found.interrupted
        if whole and type(error) is NoImprovementError and not error.in_part:
            tools.results.keep_refusal(request, error, tools.recorder.warnings[before:])
        raise
    if len(tools.cut) == short:
        given = tools.time.given if found.interrupted else math.inf
        tools.results.keep_choice(request, found, choice, tools.recorder.warnings[before:], given)
    return choice


def _in_time(request: Request, found: SearchResult, tools: Tools, place: Path, part: float, least: float) -> Choice:
    """What is chosen of a region's search within its share of the time.

    Where that is too short, it is the best by the cost model alone, checked with the whole, and measured with it. The
    time of `tools` is that of all regions that are left, `part` the region's share of it, and `least` the seconds that
    one should have.

    Raises:
        OutOfTimeError: the device does not say what a kernel takes before it is compiled.
    """
    if not tools.time.finite or not found.proved:  # of which no time makes anything: it says why
        return _region_chosen(request, found, tools, place)
    left = tools.time.left
    share = max(left * part, least)
    try:
        if share > left:
            kept = _recalled(request, tools)
            if kept is not None:
                return kept[1]
            raise OutOfTimeError
        own = replace(tools, time=tools.time.part(share / left))
        with own.time.limited():
            return _region_chosen(request, found, own, place)
    except OutOfTimeError:
        tools.cut.append("a region is tuned by the cost model alone")
    return tools.results.estimated(
        request, found, _model_of(request, tools), lambda: _estimated(request, found, tools, place)
    )


def _estimated(request: Request, found: SearchResult, tools: Tools, place: Path) -> Choice:
    """The best of a region's search by the cost model alone.

    Raises:
        OutOfTimeError: the device does not say what a kernel takes before it is compiled.
    """
    platform, hints = tools.platform, request.program.hints
    spare = place / "estimated"
    spare.mkdir()
    made = finalists(found.proved, platform, hints, lambda *_: spare, guesses=request.program.guesses)
    chosen = list(made.values())
    for best in by_model(chosen, platform, hints):
        # Of what the model compares one is written: what cannot be is told of its region, and not of the whole.
        written = chosen[best.candidate].candidate
        emitted(spare / "kernels", written.sgraph, formula_of(found), platform, written.points, ())
        tuned = TuneResult(Evidence.MEASURED, (), (best,))  # as all of the whole are, which this is measured with
        checked = CheckSummary(tools.runner.name, 0, {})
        finalist = chosen[best.candidate]
        proved = finalist.proved
        return Choice(proved, best, finalist.model, tuned, checked, 0.0, ESTIMATED_BASELINE, proved.opinion)
    raise OutOfTimeError
