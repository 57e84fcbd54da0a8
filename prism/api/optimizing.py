"""Optimize: from a program to an output folder with the fastest proved and checked kernels.

cut      -> regions, where the program is too large for one search (partitioned.py); then each of them goes on alone
search   -> proved sGraphs, best bound first, each tested over finite fields beside the prover
rank     by the cost model over each family's feasible configurations; a few finalists go on
emit     one module per finalist, by the platform's backend
tune     Optuna over (which finalist, its symbols, its launches' options): timed on a device that is here, or estimated
check    the fastest against the float64 oracle; the next one when it fails
compare  with the operators one by one: torch, timed on the same device, or the same cost model
compose  the regions' winners to one sGraph and one module, checked and compared as a whole
write    the folder, whole or not at all
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from prism.api.finalists import Emit, Finalist, finalists
from prism.api.given_inputs import given_to
from prism.api.options import Options, check_dimensions
from prism.api.partitioned import PartitionedSearch, RegionSearch, composed_choice, finer, merged_checks, search_regions
from prism.api.proofs import ProvedSGraph
from prism.api.records import Choice, Request, artifacts, certificate_of, formulas
from prism.api.region_search import SearchBudget, SearchInterruptedError, SearchResult, enough, run_search
from prism.api.results import Results, results_of
from prism.api.rules import rule_paths
from prism.api.second_opinion import merged, recorded
from prism.api.trivial import check_gain
from prism.backends.protocol import ModuleSource, load_function, write_module
from prism.cost.constant_folding import fold_constants
from prism.egraph.worker import Worker
from prism.errors import (
    CompilerError,
    NoImprovementError,
    UnsupportedError,
    UsageError,
    VerificationError,
    refusing_depth,
    some,
)
from prism.events import Artifacts, CheckSummary, Evidence, Listener, Recorder, RunReport
from prism.folders import cache_or_spare
from prism.generate.partition import partition, unrepeated
from prism.instantiate.cache import Cache, Store, version_of
from prism.instantiate.confirm import NAMES as BASELINES
from prism.instantiate.confirm import Confirmation, confirm, installed
from prism.instantiate.gate.check import Drawn, KernelRunner, check_given, check_module
from prism.instantiate.gate.plan import plan_cases
from prism.instantiate.lock import program_hash, versions
from prism.instantiate.machine_load import CROWDED, Load, others_now
from prism.instantiate.measure import BASELINE, KERNEL, PROTOCOL, Bench, Contender, Measuring
from prism.instantiate.options import Offered, Option, foreign, options_of
from prism.instantiate.rematch import challenged, rematch
from prism.instantiate.study import LEADERS, Best, Candidate, Failure, TuneResult, leading, tune
from prism.platforms.choice import platform_of
from prism.platforms.estimating import Estimating
from prism.platforms.platform import Estimated, Platform, Timed
from prism.process.deadline import Deadline, OutOfTimeError
from prism.program.assumptions import Stated, check_examples, under
from prism.program.integers import Interval, interval, of_type, range_of
from prism.program.nodes import DType, Program
from prism.program.region import Region
from prism.program.returned import computed
from prism.report.folder import WEIGHTS_NAME, render_folder, write_folder
from prism.report.units import duration, evidence_note, on_threads, times_line
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph
from prism.sgraph.show import key

ROUNDS = 3
"""How often others take their place when the numeric gate refuses all of them."""
ESTIMATED_BASELINE = "operator by operator"
"""What estimates are compared with."""
CONFIRMED = 3
"""Finalists that meet the baseline on a device that is here."""
CLOSE = 1.25
"""How many times the time of the fastest a finalist may have taken to meet the baseline: by so much those that met in
interleaved rounds may change places in others."""
ALTERNATIVES = 64
"""Configurations that the numeric gate is offered to be quick under."""
SHOWN = 4
"""Candidates that rounded worse, of which an error tells."""
FLOAT32_WHOLE = 2.0**24
"""float32 holds all whole numbers up to this."""
SEARCHED = 0.4
"""The share of the time which the search of a program of one region may take."""
ALL_SEARCHED = 0.75
"""The share that the searches of all regions may take: without one of them there is nothing to put together."""
TRIED = 0.4
"""The share of the time that is left which trials may take: checks and the confirmation need the rest."""
TUNED = 0.6
"""The share of the time that is left which all regions may take: composing and the confirmation need the rest."""
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
SHORT_CASES = 6
"""Cases of the numeric gate where the time is limited."""
FINISHED = sys.float_info.max
"""The limit, seconds, of runs that had time enough: any, but not none."""
GRACE_S = 2.0
"""What it takes, beyond the time that is given, to end: seconds."""
WHOLE_CASES = 3
"""Cases of the numeric gate for a module of several regions, each of which has passed all of them by itself."""


@dataclass(frozen=True, slots=True, repr=False)
class OptimizeResult:
    """What a run ends in: called with the program's inputs, it runs the kernels.

    Attributes:
        report: as shown to the user.
        module: the emitted module's source.
        search: everything that was proved.
        out: the output folder; None when none was asked for.
        source: the module with the files that go beside it.
        weights: the program's, as the module reads them; None where it has none.
    """

    report: RunReport
    module: str
    search: SearchResult
    out: Path | None
    source: ModuleSource
    weights: bytes | None = None
    _function: list[Callable[..., Any]] = field(default_factory=list, init=False, compare=False)

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        """What the emitted module's function returns for these tensors; see its docstring for its options.

        Raises:
            ValueError: a tensor is not what the kernels are for.
        """
        return self._loaded()(*tensors, **options)

    def torch_op(self) -> Any:
        """The function as an operator of torch (`torch.ops.prism...`), one node to torch.compile and torch.export."""
        module = self._loaded().__globals__
        return module.get("as_torch_op", module["torch_op"])()

    def _loaded(self) -> Callable[..., Any]:
        if not self._function:
            beside = {} if self.weights is None else {WEIGHTS_NAME: self.weights}
            self._function.append(load_function(self.source, beside))
        return self._function[0]

    def __repr__(self) -> str:
        return f"<OptimizeResult of {self.report.name}: {self.report.evidence.value} {times_line(self.report)}>"

    def __str__(self) -> str:
        r = self.report
        told = [f"{r.name}: {times_line(r)}", evidence_note(r), r.sgraph_text.rstrip(), str(self.out or "")]
        return "\n".join(filter(None, told))


@dataclass(frozen=True, slots=True)
class _Tools:
    """What the regions of a run share.

    Attributes:
        platform: what is tuned for.
        estimating: the evaluator where nothing is timed.
        runner: runs kernels for the numeric gate.
        folder: for modules, gone at the end.
        recorder: gets the stages.
        store: measurements of earlier runs.
        results: what earlier runs found.
        studies: where the journals of studies are kept.
        time: when all of it ends.
        cut: what was cut short for that.
    """

    platform: Platform
    estimating: Estimating | None
    runner: KernelRunner
    folder: Path
    recorder: Recorder
    store: Store
    results: Results
    studies: Path
    time: Deadline
    cut: list[str]


def optimize(
    program: Program,
    *,
    target: str | None = None,
    out: Path | str | None = None,
    budget: SearchBudget | None = None,
    trials: int = 12,
    seed: int = 0,
    shapes: Mapping[str, int] | None = None,
    listener: Listener | None = None,
    rules: Sequence[Path | str] = (),
    only_better: bool = True,
    baselines: Sequence[str] | None = None,
    anew: bool = False,
    seconds: float | Deadline | None = None,
    inputs: Mapping[str, Any] | None = None,
    assume: Stated = (),
) -> OptimizeResult:
    """Search, prove, tune, check and write the kernels of a program.

    Args:
        program: from `load` or `trace`.
        target: `cuda` or `cpu` (timed on the GPU or the CPU that is here), or `sm_80`, `sm_89`, `sm_90`, `sm_100`
            (compiled for, times estimated). By default `cuda` where a GPU is found, else `cpu`; `sm_90` where there is
            no C++ compiler either.
        out: the output folder, made whole or not at all; none is written when None.
        budget: bounds of the search.
        trials: how many configurations are compiled (and timed).
        seed: of the study and the check's draws.
        shapes: values of symbolic dimensions to tune at; the emitted kernels take all values.
        listener: called with progress events.
        rules: rule files of your own, beside those that ship with prism; see docs/rules.md.
        only_better: whether kernels that do not beat what was given are an error; with False, which is for benchmarks,
            they are returned, and no folder may be asked for.
        baselines: what kernels are timed against on a device that is here, of `eager`, `compile` and `onnxruntime`:
            the best of those that are installed counts; all by default.
        anew: whether everything is timed again; by default what an earlier run of the same program stored is used.
        seconds: after which the run ends, with the best that is proved, checked and measured by then; a run that is
            given as many, or fewer, comes to the same at once, and one that is given more goes on. Only the main
            thread's runs can be ended at any point.
        inputs: arrays or tensors by the inputs' names: the kernels are checked on these, too, and symbolic dimensions
            that `shapes` does not name are tuned at their lengths.
        assume: what is so of the inputs, as for `trace`, besides what is stated there: the kernels are for such inputs
            alone. Their function checks its arguments where it is called with check_assumptions=True.

    Raises:
        CompilerError: the compiler of the target is missing, broken or hangs.
        UsageError: the target is unknown, a shape is not one of the program's, the folder cannot be written, or what is
            assumed is no statement of an input.
        RuleError: a rule file is not right, or one of its rules is wrong.
        UnsupportedError: the program holds something that cannot be searched.
        NoImprovementError: nothing that was proved is better than what was given: as fast, or as well rounded.
        VerificationError: kernels that were proved compute something else, more than rounding explains: a bug in prism,
            and nothing is written.
    """
    options = Options(
        target=target,
        budget=budget,
        trials=trials,
        seed=seed,
        shapes=shapes or {},
        listener=listener,
        rules=rules,
        only_better=only_better,
        baselines=baselines,
        anew=anew,
        time=Deadline.after(seconds),
        inputs=inputs,
    )
    folder = options.folder(out)
    made = produce(under(program, assume), options)
    artifacts = made.artifacts
    if folder is not None:
        artifacts = replace(artifacts, report=replace(artifacts.report, output=str(out)))
        folder = write_folder(folder, render_folder(artifacts))
    source = replace(made.module, text=artifacts.module)
    return OptimizeResult(artifacts.report, artifacts.module, made.search, folder, source, artifacts.weights)


@dataclass(frozen=True, slots=True)
class Produced:
    """What a run made, before any of it is written.

    Attributes:
        program: what was searched: without outputs that take no kernel.
        artifacts: what an output folder holds.
        search: everything that was proved.
        module: the emitted module.
    """

    program: Program
    artifacts: Artifacts
    search: SearchResult
    module: ModuleSource


FUSED = (
    "what was given is estimated operator by operator; as torch.compile fuses neighbours and calls its own attention, "
    "it is estimated at {}, and was not measured either"
)
STEP_BY_STEP = (
    "what was given is estimated with the steps of its loops operator by operator; torch's own recurrent layers "
    "(cuDNN), which run several steps at a time, are not in that estimate"
)
AGAIN = "the same command gives this again, and one with more time (--budget), or without a limit, goes on"
MORE_TIME = "run it again: what was finished is kept, and not done again; or give it more time (--budget)"


@contextmanager
def ending(time: Deadline, before: str, where: str) -> Iterator[None]:
    """End what is done within soon after that time, by an error that says before what.

    Raises:
        NoImprovementError: it was ended.
    """
    try:
        with time.moved(GRACE_S).limited():
            yield
    except OutOfTimeError:
        raise NoImprovementError(
            f"the time ended before {before}",
            where=where,
            fix=MORE_TIME,
        ) from None


def produce(program: Program, options: Options) -> Produced:
    """Everything that `optimize` does before it writes; errors are its own. It ends soon after the options' time."""
    baselines, time = options.baselines, options.time
    with ExitStack() as stack:
        stack.enter_context(ending(time, "anything was proved, checked and measured", program.name))
        if not time.left:
            raise OutOfTimeError
        if baselines is not None and not baselines and options.only_better:
            raise UsageError("nothing to compare with", where="baselines", fix=f"name one: {', '.join(BASELINES)}")
        for name in baselines or ():
            if name not in BASELINES:
                raise UsageError(
                    f"no baseline is called {name}", where="baselines", fix=f"there are {', '.join(BASELINES)}"
                )
        recorder = Recorder(options.listener)
        cache = stack.enter_context(cache_or_spare(recorder.warn))
        platform = platform_of(options.target, recorder.warn, cache)
        device = platform.device
        given: dict[str, np.ndarray] = {}
        at: dict[str, int] = {}
        if options.inputs is not None:
            given, at = given_to(program, options.inputs)
            check_examples({t.name: t.stated for t in program.inputs if t.stated is not None}, given)
        program = _at(program, {**at, **options.shapes})
        check_gain(program)
        program, returned = computed(program)
        program = fold_constants(program)
        check_gain(program)
        _supported(program)
        files = rule_paths(options.rules)
        bounds = options.budget or SearchBudget()
        compared = tuple(BASELINES) if baselines is None else tuple(baselines)
        request = Request(
            program,
            platform.target,
            device,
            platform.device_name,
            bounds,
            options.trials,
            options.seed,
            files,
            compared,
        )
        stack.enter_context(refusing_depth(program.name))
        worker = stack.enter_context(Worker(files, fp=request.budget.fp))
        tools = _tools(request, platform, recorder, stack, cache, options.anew, time)
        found, choice = _found(request, worker, tools)
        if options.only_better and not choice.better:
            raise NoImprovementError(
                "nothing beats what was given",
                where=program.name,
                why=_no_better(choice),
                fix="keep the model as it is, or tune at other shapes (--shape)"
                + ("; --anew times again" if _of_another_machine(choice) else ""),
            )
        _warn_of_load(choice, recorder)
        if isinstance(platform, Estimated):
            compiled = platform.compiled_seconds(program)
            if compiled < choice.baseline_seconds:
                recorder.warn(FUSED.format(duration(compiled)))
            if program.loops:
                recorder.warn(STEP_BY_STEP)
        if given:
            choice = _right_for(given, request, found, choice, tools)
        module = platform.backend.emit(
            choice.proved.sgraph,
            formula=_formula(found),
            configs={device.target: [choice.best.config]},
            weights=bool(program.weights),
            returned=returned if program.places is not None else (),
            ranges=program.ranges,
        )
        spare = time.moved(GRACE_S).part(0.75)
        derived = tools.results.certificate(
            request,
            key(choice.proved.sgraph),
            time.given,
            lambda: certificate_of(request, found, choice, recorder, worker, spare),
        )
        made = recorded(artifacts(request, found, choice, module, platform, recorder, derived), choice.opinion)
        return Produced(program, made, found, module)


def _found(request: Request, worker: Worker, tools: _Tools) -> tuple[SearchResult, Choice]:
    """What an earlier run of the same request came to; where there was none, what this one does, which is kept."""
    recorder, results = tools.recorder, tools.results
    kept = _recalled(request, tools)
    if kept is not None:
        return kept
    tools.platform.preflight(request.program)
    before = len(recorder.warnings)
    with recorder.part("partition"):
        regions = partition(request.program, device=request.device)
    if len(regions) > 1:
        recorder.finish("partition", f"{len(regions)} regions")
    known: dict[str, SearchResult] = {}
    if len(regions) == 1 and regions[0].loop is None:
        known = {regions[0].canonical().key: _region_searched(request, worker, tools)}
    try:
        if known and enough(request.program, next(iter(known.values()))):
            (found,) = known.values()
            parts, done = _as_one(request, found, regions, tools)
            found, choice = done or _composed(request, parts, worker, tools, {}, as_one=False)
        else:
            found, choice = _composed(request, regions, worker, tools, known)
    except NoImprovementError as error:
        _warn_of_cut(tools)
        # Of what did not run at all another try may say something else.
        if type(error) is NoImprovementError:
            results.keep_refusal(request, error, recorder.warnings[before:], _lasts(request, tools))
        raise
    _warn_of_cut(tools)
    results.keep_choice(request, found, choice, recorder.warnings[before:], _lasts(request, tools))
    return found, choice


def _lasts(request: Request, tools: _Tools) -> float:
    """The most seconds for which a run comes to what this one came to.

    What had time enough is not compared with all baselines, nor checked on all cases, where the time was limited.
    """
    if tools.cut:
        return tools.time.given
    return FINISHED if request.baselines and tools.time.finite else math.inf


def _warn_of_cut(tools: _Tools) -> None:
    if tools.cut:
        said = [f"{what} ({n} times)" if n > 1 else what for what, n in Counter(tools.cut).items()]
        tools.recorder.warn(f"the time ended: {'; '.join(said)}; {AGAIN}")


def _as_one(
    request: Request, found: SearchResult, regions: Sequence[Region], tools: _Tools
) -> tuple[Sequence[Region], tuple[SearchResult, Choice] | None]:
    """What is chosen of a program that is one region; where nothing can be, its parts, as for any region.

    Raises:
        NoImprovementError: nothing that was found for one operator rounds as well as it.
    """
    try:
        return regions, (found, _chosen(request, found, tools, tools.folder))
    except NoImprovementError as error:
        parts = finer(regions[0])
        if len(parts) == 1 or tools.cut:
            raise
        tools.recorder.warn(f"{request.program.name} is kept as {len(parts)} parts: {error.what}: {error.why}")
        return parts, None


def _recalled(request: Request, tools: _Tools) -> tuple[SearchResult, Choice] | None:
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
    found, choice = kept.found(lambda g: tools.platform.model(g, request.program.hints))
    if request.baselines and choice.confirmation is not None and choice.confirmation.loads:
        choice = replace(choice, others_now=others_now())
    if request.baselines:
        said = f"{len(found.proved)} proved, {choice.tuned.compiled} compiled, {choice.checked.cases} cases"
        said += ", timed" if choice.confirmation is not None else ""
        tools.recorder.passed("stored", tools.recorder.clock() - start, f"of {kept.date}: {said} (--anew: again)")
    return found, choice


def _region_searched(request: Request, worker: Worker, tools: _Tools) -> SearchResult:
    """What a search of the whole program as one region finds, or found."""
    found = tools.results.search(request.program, request.budget)
    if found is not None:
        tools.recorder.finish("search", f"stored: {len(found.proved)} proved")
        return found
    before = len(tools.recorder.warnings)
    with tools.time.part(SEARCHED).limited() as limit:
        try:
            found = run_search(request.program, request.device, request.budget, worker, tools.recorder)
        except SearchInterruptedError as error:
            if not limit.rung:
                raise
            found = error.result
    if limit.rung:
        tools.cut.append(f"{len(found.proved)} sGraphs were proved, of {len(found.generated.candidates)}")
    if len(tools.recorder.warnings) == before:
        tools.results.keep_search(request.program, request.budget, found)
    return found


def no_better(ours: float, theirs: float, baseline: str, found: Confirmation, others_now: float | None = None) -> str:
    """What both take, in one clause, and how that was measured.

    Args:
        ours: seconds.
        theirs: seconds of the baseline.
        baseline: what that is.
        found: how both were measured.
        others_now: where that is stored, how many cores others keep busy now.
    """
    when = f"stored, of {found.date}" if found.stored else f"timed anew, {found.date}"
    gains = ", ".join(f"{g:.2f}x" for g in found.ratios)
    low, high = found.between
    noise = f": with what these vary by, {low:.2f}x to {high:.2f}x" if high > 1.0 else ""
    said = [f"measured {gains}{noise}", when]
    crowded = _most_crowded(found) or found.deciding.load
    if crowded is not None:
        said.append(_busy(crowded))
    if others_now is not None:
        said.append(f"now they keep {others_now:.1f} busy")
    return f"the best takes {duration(ours)}, {baseline} {duration(theirs)} ({'; '.join(said)})"


def _no_better(choice: Choice) -> str:
    """What both take, in one clause, and how that is known."""
    ours, theirs, found = choice.best.seconds, choice.baseline_seconds, choice.confirmation
    if found is None:
        took = f"the best takes {duration(ours)}, {choice.baseline} {duration(theirs)}"
        return f"{took} ({choice.tuned.evidence.value})"
    return no_better(ours, theirs, choice.baseline, found, choice.others_now)


def _of_another_machine(choice: Choice) -> bool:
    """Whether timing again may say something else: what was measured is of another day, or of a machine in use."""
    found = choice.confirmation
    return found is not None and (found.stored or _most_crowded(found) is not None)


def _most_crowded(found: Confirmation) -> Load | None:
    """The load at the match where others and the contenders wanted most; None where there were cores enough."""
    return max((x for x in found.loads if x.crowded), key=lambda x: (x.threads, x.others or 0.0), default=None)


def _busy(load: Load) -> str:
    """What others did, in one clause."""
    cores = f"{load.cores} core{'s' * (load.cores != 1)}"
    if load.others is None:
        return f"the load average was {load.average:.1f} on {cores}"
    return f"other processes kept {load.others:.1f} of {cores} busy"


def _warn_of_load(choice: Choice, recorder: Recorder) -> None:
    """Say so where others wanted the cores that kernels were timed on, or want more or fewer of them now."""
    found = choice.confirmation
    if found is None:
        return
    crowded, then, now = _most_crowded(found), found.deciding.load, choice.others_now
    if then is not None and then.others is not None and now is not None and abs(now - then.others) >= CROWDED:
        recorder.warn(
            f"the times are stored, of {found.date}, when {_busy(then)}; now they keep {now:.1f}: timed now, they and "
            "the gain may be others (--anew times again)"
        )
    elif crowded is not None:
        recorder.warn(
            f"{_busy(crowded)} while contenders were timed on up to {crowded.threads} "
            f"thread{'s' * (crowded.threads != 1)}: more than there are cores for; on an idle machine times are "
            "others, and the gain may be (--anew times again)"
        )


def _tools(
    request: Request,
    platform: Platform,
    recorder: Recorder,
    stack: ExitStack,
    cache: Path,
    anew: bool,
    time: Deadline,
) -> _Tools:
    """They end with the stack; their processes start when they are first needed."""
    if isinstance(platform, Timed):
        platform = stack.enter_context(platform.lending())
    return _Tools(
        platform,
        stack.enter_context(platform.estimating(request.program.hints)) if isinstance(platform, Estimated) else None,
        stack.enter_context(platform.runner()),
        Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prism-"))),
        recorder,
        Store(Cache("timings", cache), anew=anew),
        results_of(request, platform, cache, anew=anew),
        cache / "studies",
        time,
        [],
    )


def _chosen(request: Request, found: SearchResult, tools: _Tools, folder: Path) -> Choice:
    """The best of what one search proved, tuned and checked; modules are written to the folder.

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
            emit = _emitting(folder, _formula(found), tools.platform, "_alone" if alone else "")
            made = finalists(found.proved, tools.platform, request.program.hints, emit, tried=tried, alone=alone)
            tried |= made.keys()
            detail.append(f"{len(made)} of {len(found.proved)} proved sGraphs")
        if not made:
            continue
        try:
            choice = _choose(request, list(made.values()), tools)
        except VerificationError as error:
            wrong = wrong or error
        except _RoundsWorseError as error:
            # What rounds badly is often what looks fastest, in all its variants.
            rounding += error.failures
        except _NothingRunsError as error:
            dead = dead or error
        else:
            return replace(choice, opinion=choice.proved.opinion)
    if wrong is not None:
        raise wrong
    if rounding:
        raise _nothing_better(request.program.name, rounding)
    raise dead or _NothingRunsError(
        "no configuration fits the device",
        where=request.program.name,
        why=f"none of {len(found.proved)} proved sGraphs has one",
        fix="keep the model as it is, tune at smaller shapes (--shape), or for another device (--target)",
    )


class _NothingRunsError(NoImprovementError):
    """Nothing that was proved has a configuration that could be compiled and run; the model as it is still has."""


class _RoundsWorseError(Exception):
    """All finalists that could be run round worse than the numeric gate allows, and compute what they are to compute.

    Attributes:
        failures: a line for each.
    """

    def __init__(self, failures: Sequence[str]) -> None:
        super().__init__(*failures)
        self.failures = tuple(failures)


def _nothing_better(name: str, failures: Sequence[str]) -> NoImprovementError:
    shown = "; ".join(dict.fromkeys(failures[:SHOWN]))
    more = f"; and {len(failures) - SHOWN} more" if len(failures) > SHOWN else ""
    return NoImprovementError(
        "nothing that was proved rounds as well as what was given",
        where=name,
        why=f"{len(failures)} {'candidate' if len(failures) == 1 else 'candidates'} failed the numeric gate by "
        f"rounding alone: {shown}{more}",
        fix="keep the model as it is, or leave rounding alone (--fp exact)",
    )


def _composed(
    request: Request,
    regions: Sequence[Region],
    worker: Worker,
    tools: _Tools,
    known: dict[str, SearchResult],
    as_one: bool = True,
) -> tuple[SearchResult, Choice]:
    """The regions' winners as one, and their searches as one. A region need not beat anything by itself."""
    program, recorder = request.program, tools.recorder
    with recorder.stage("search") as detail:
        with tools.time.part(ALL_SEARCHED).limited():
            searches = search_regions(
                program, regions, request.device, request.budget, [worker], recorder, known, tools.results, as_one
            )
        proved = sum(len(r.result.proved) for r in searches.distinct.values())
        detail.append(f"{len(searches.regions)} regions, {len(searches.distinct)} of them different, {proved} proved")
    searches, choices = _each_chosen(request, searches, worker, tools)
    picks = [choices[r.canonical.key] for r in searches.regions]
    platform = tools.platform
    with ExitStack() as own:
        bench = None
        if isinstance(platform, Timed):
            bench = own.enter_context(closing(platform.bench(program, request.seed)))
            bench.begin(_baselines(request, platform, tools)[0])
        with recorder.stage("composition") as detail:
            whole = composed_choice(searches, picks, lambda g: platform.model(g, program.hints))
            sgraph, config = whole.proved.sgraph, whole.best.config
            found = searches.result(whole.proved)
            path = _emitted(tools.folder / "whole", sgraph, _formula(found), platform, [config], ())
            finalist = Finalist(
                whole.proved,
                Candidate(key(sgraph), sgraph, path, (config,), whole.model.seconds),
                whole.model,
                options_of(sgraph, request.device, program.hints),
            )
            try:
                right = _right(request, [finalist], whole.tuned, tools, 1, WHOLE_CASES)
            except _RoundsWorseError as error:
                raise _nothing_better(program.name, error.failures) from None
            checked = merged_checks([right[0][1], *(c.checked for c in choices.values())])
            detail.append(f"{len(sgraph.kernels)} kernels, {right[0][1].cases} cases")
        right = _beside([finalist], [(whole.best, checked)], platform.timed)
        opinion = merged(c.opinion for c in choices.values())
        whole = replace(whole, checked=checked, opinion=opinion)
        if isinstance(platform, Estimated):
            seconds = platform.baseline_seconds(program)
            return found, replace(whole, best=right[0][0], baseline_seconds=seconds, baseline=ESTIMATED_BASELINE)
        assert bench is not None
        return found, _confirmed(request, bench, [finalist], right, tools, whole)


def _by_model(chosen: Sequence[Finalist], platform: Platform, hints: Mapping[str, int]) -> tuple[Best, ...]:
    """The finalists' best points by the cost model, fastest first, where it is known what they take."""
    found: list[Best] = []
    for n, f in enumerate(chosen if isinstance(platform, Timed) else ()):
        config = f.candidate.points[0]
        taken = platform.resources(f.candidate.sgraph, config, hints) if isinstance(platform, Timed) else None
        if taken is not None:
            found.append(Best(n, config, f.model.seconds(config, taken), taken))
    return leading(found)


def _each_chosen(
    request: Request, searches: PartitionedSearch, worker: Worker, tools: _Tools
) -> tuple[PartitionedSearch, dict[str, Choice]]:
    """What is chosen for every region, by its canonical key, and the regions that these are.

    A region's failure is not the model's: where all that was found for one rounds worse than what was given, or cannot
    be compiled, it is cut into smaller ones, in the end the operators as they are written, and a warning says so.

    Raises:
        NoImprovementError: nothing that was found for one operator rounds as well as it, or nothing was found.
        VerificationError: kernels that were proved compute something else.
    """
    choices: dict[str, Choice] = {}
    until = min(tools.time.part(TUNED), tools.time.moved(-ENDING_S), key=lambda d: d.end)
    short = 0.0
    while True:
        refused: set[str] = set()
        for key_, r in _longest_first(searches) if until.finite else searches.distinct.items():
            if key_ in choices:
                continue
            tools.recorder.count("regions tuned", len(choices), len(searches.distinct))
            place = tools.folder / f"region_{len(choices)}_{len(searches.regions)}_{len(refused)}"
            place.mkdir()
            # Said of the region as the user knows it.
            where = f"{r.region.program.name} ({', '.join(r.region.outputs)})"
            try:
                own = replace(request, program=r.canonical.program, baselines=())
                left = len(searches.distinct) - len(choices)
                which = f"region {len(choices) + 1} of {len(searches.distinct)}"
                with tools.recorder.within(1, which):
                    before = until.left
                    least = max(LEAST_S, 2.0 * short)
                    choices[key_] = _in_time(own, r.result, replace(tools, time=until), place, left, least)
                    if until.finite and not choices[key_].tuned.trials:
                        short = max(short, before - until.left)
            except (NoImprovementError, VerificationError, CompilerError) as error:
                wrong = isinstance(error, VerificationError)
                parts = (r.region,) if wrong else finer(r.region)
                if len(parts) == 1:
                    raise type(error)(error.what, where=where, why=error.why, fix=error.fix) from error
                tools.recorder.warn(f"{where} is kept as {len(parts)} parts: {error.what}: {error.why}")
                refused.add(key_)
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
            )
            detail.append(f"{len(searches.regions)} regions, {len(searches.distinct)} of them different")


def _longest_first(searches: PartitionedSearch) -> list[tuple[str, RegionSearch]]:
    """The different regions by the estimated time of all that are equal, those of which nothing was found first."""
    many = Counter(r.canonical.key for r in searches.regions)

    def seconds(key_: str, proved: Sequence[ProvedSGraph]) -> float:
        return many[key_] * proved[0].seconds if proved else math.inf

    return sorted(searches.distinct.items(), key=lambda x: -seconds(x[0], x[1].result.proved))


def _region_chosen(request: Request, found: SearchResult, tools: _Tools, place: Path) -> Choice:
    """What is chosen of a region's search, or was by an earlier run."""
    kept = _recalled(request, tools)
    if kept is not None:
        tools.recorder.count("regions stored", 1)
        return kept[1]
    before, short = len(tools.recorder.warnings), len(tools.cut)
    try:
        choice = _chosen(request, found, tools, place)
    except NoImprovementError as error:
        if type(error) is NoImprovementError and len(tools.cut) == short:
            tools.results.keep_refusal(request, error, tools.recorder.warnings[before:])
        raise
    if len(tools.cut) == short:
        tools.results.keep_choice(request, found, choice, tools.recorder.warnings[before:])
    return choice


def _in_time(request: Request, found: SearchResult, tools: _Tools, place: Path, regions: int, least: float) -> Choice:
    """What is chosen of a region's search within its share of the time.

    Where that is too short, it is the best by the cost model alone, checked with the whole, and measured with it.

    Args:
        request: of the region.
        found: its search.
        tools: their time is that of all regions that are left.
        place: for modules.
        regions: how many are left.
        least: the seconds that one should have.

    Raises:
        OutOfTimeError: the device does not say what a kernel takes before it is compiled.
    """
    if not tools.time.finite:
        return _region_chosen(request, found, tools, place)
    left = tools.time.left
    share = max(left / regions, least)
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
    platform, hints = tools.platform, request.program.hints
    spare = place / "estimated"
    spare.mkdir()
    made = finalists(found.proved, platform, hints, _emitting(spare, _formula(found), platform, ""))
    chosen = list(made.values())
    for best in _by_model(chosen, platform, hints):
        tuned = TuneResult(Evidence.MEASURED, (), (best,))  # as all of the whole are, which this is measured with
        checked = CheckSummary(tools.runner.name, 0, {})
        finalist = chosen[best.candidate]
        proved = finalist.proved
        return Choice(proved, best, finalist.model, tuned, checked, 0.0, ESTIMATED_BASELINE, proved.opinion)
    raise OutOfTimeError


def _supported(program: Program) -> None:
    """Refuse a program for whose data types no kernels can be emitted."""
    for t in (*program.inputs, *(program.tensor(n) for n in program.outputs)):
        if t.dtype is DType.FLOAT64:
            raise UnsupportedError(
                "kernels in float64 are not emitted",
                where=f"tensor {t.name}",
                why="kernels compute in float32",
                fix="convert the model to float32, float16 or bfloat16",
            )
    bounds: dict[str, Interval] = {t.name: of_type(t.dtype) for t in program.inputs}
    for d in program.definitions:
        found = interval(d.expr, bounds.__getitem__, program.ranges)
        bounds[d.name] = found if found.within(range_of(d.dtype)) else of_type(d.dtype)
    for name in program.outputs:
        if not program.tensor(name).dtype.is_float and bounds[name].largest > FLOAT32_WHOLE:
            raise UnsupportedError(
                f"an output of type {program.tensor(name).dtype.value} that may be large",
                where=f"output {name}",
                why="kernels compute in float32, which holds all whole numbers up to 2^24",
                fix="cut the model before this output",
            )


def _at(program: Program, shapes: Mapping[str, int]) -> Program:
    """The program, with the given values as those that costs are quoted at."""
    ranges = dict(program.ranges)
    check_dimensions(shapes, ranges)
    for name, value in shapes.items():
        if not ranges[name].low <= value <= ranges[name].high:
            raise UsageError(
                f"{name}={value} is out of range",
                where="--shape",
                fix=f"give a value from {ranges[name].low} to {ranges[name].high}",
            )
        ranges[name] = replace(ranges[name], hint=value)
    return replace(program, ranges=ranges)


def _formula(found: SearchResult) -> str:
    return "\n".join(formulas(found).values())


def _emitting(folder: Path, formula: str, platform: Platform, suffix: str) -> Emit:
    """Writes the modules of finalists, each to a folder of its own."""

    def emit(n: int, sgraph: SGraph, points: Sequence[Config], options: Sequence[Option]) -> Path:
        return _emitted(folder / f"candidate_{n}{suffix}", sgraph, formula, platform, points, options)

    return emit


def _emitted(
    folder: Path,
    sgraph: SGraph,
    formula: str,
    platform: Platform,
    points: Sequence[Config],
    options: Sequence[Option],
) -> Path:
    """The sGraph's module, written to a folder of its own, as its points and their variants need it.

    What is a column of the space is in every module.
    """
    folder.mkdir()
    beside = {o.name for o in options if o.offered is not Offered.SPACE}
    forms = [c for c in points[1:] if not beside.isdisjoint(c.options)]
    for o in options if platform.timed else ():
        if o.offered in (Offered.STUDY, Offered.TIMING) and o.forms():
            forms.append(points[0].having(**{o.name: dict.fromkeys(o.forms(), 1) if o.numbered else o.forms()}))
    configs = {platform.device.target: [points[0], *forms]}
    return write_module(platform.backend.emit(sgraph, formula=formula, configs=configs), folder / "kernels.py")


def _choose(request: Request, chosen: list[Finalist], tools: _Tools) -> Choice:
    """Tune the finalists, check the fastest, compare with the baseline."""
    platform, recorder = tools.platform, tools.recorder
    with ExitStack() as own:
        bench = None
        if isinstance(platform, Timed):
            bench = own.enter_context(closing(platform.bench(request.program, request.seed)))
        tuned = _tuned(request, chosen, bench, tools)
        if bench is not None and isinstance(platform, Timed):
            bench.begin(_baselines(request, platform, tools)[0])
        with recorder.stage("check") as detail:
            # A region meets no baseline by itself: the fastest of those that met each other is taken.
            wanted = CONFIRMED if bench is not None and request.baselines and not tools.time.finite else 1
            right = _right(request, chosen, tuned, tools, wanted, SHORT_CASES if tools.time.finite else None)
            detail.append(f"{right[0][1].cases} cases")
        right = _beside(chosen, right, platform.timed)
        best, checked = right[0]
        winner = chosen[best.candidate]
        choice = Choice(winner.proved, best, winner.model, tuned, checked, 0.0, ESTIMATED_BASELINE)
        if isinstance(platform, Estimated):
            return replace(choice, baseline_seconds=platform.baseline_seconds(request.program))
        assert bench is not None
        return _confirmed(request, bench, chosen, right, tools, choice)


def _tuned(request: Request, chosen: list[Finalist], bench: Bench | None, tools: _Tools) -> TuneResult:
    """The study of the finalists."""
    with ExitStack() as own:
        evaluator: Estimating | Measuring
        if isinstance(tools.platform, Timed):
            assert bench is not None
            evaluator = own.enter_context(tools.platform.measuring(bench, tools.store))
        else:
            assert tools.estimating is not None
            evaluator = tools.estimating
        with tools.recorder.stage("tuning") as detail:
            tuned = tune(
                [f.candidate for f in chosen],
                evaluator,
                region=program_hash(request.program),
                budget=request.trials,
                storage_dir=tools.studies,
                seed=request.seed,
                anew=tools.store.anew and bench is not None,
                on_trial=lambda done, total, best: tools.recorder.count("trials", done, total, best),
                until=tools.time.part(TRIED),
                least=evaluator.least if isinstance(evaluator, Estimating) else None,
            )
            goal = min(request.trials, tuned.feasible)
            if len(tuned.trials) < goal and not tuned.settled:
                tools.cut.append(f"{len(tuned.trials)} of {goal} trials were made")
            if not tuned.ranking and len(tuned.trials) < goal:
                ranking = _by_model(chosen, tools.platform, request.program.hints)
                tuned = replace(tuned, ranking=ranking)
            if isinstance(evaluator, Measuring) and len(tuned.trials) == goal:
                tuned = challenged(
                    tuned,
                    [f.candidate for f in chosen],
                    evaluator.remembered,
                    lambda b: chosen[b.candidate].variants(Offered.TIMING, b),
                )
                tuned = rematch(tuned, [f.candidate for f in chosen], evaluator)
            detail.append(f"{tuned.compiled} compiled, {tuned.evidence.value}")
            if tuned.resumed:
                detail.append(f"{tuned.resumed} of {len(tuned.trials)} stored")
    return tuned


def _right(
    request: Request,
    chosen: list[Finalist],
    tuned: TuneResult,
    tools: _Tools,
    wanted: int,
    limit: int | None = None,
) -> list[tuple[Best, CheckSummary]]:
    """The fastest of the finalists that pass the numeric gate, at most `wanted`: one, and others that are close to it.

    `limit` as for `check_module`.

    Raises:
        VerificationError: none passes, and one computes something else than its sGraph.
        _NothingRunsError: nothing could be run, or nothing ended in time.
        _RoundsWorseError: none passes, by rounding alone.
    """
    failures: list[str] = []
    rounding: list[str] = []
    late: list[str] = []
    passed: list[tuple[Best, CheckSummary]] = []
    tools.runner.forget()
    drawn = Drawn(request.program)
    waiting = [*tuned.ranking]
    close = [b for b in waiting if b.seconds <= CLOSE * waiting[0].seconds]
    for best in close[:wanted]:
        c = chosen[best.candidate].candidate
        cases = plan_cases(request.program, c.sgraph, best.config, c.points[:ALTERNATIVES], request.seed)[:limit]
        tools.runner.ahead(c.module, {case.config.key(): case.config for case in cases}.values())
    for best in waiting:
        if passed and best not in close:
            continue
        c = chosen[best.candidate].candidate
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
        )
        if report.passed:
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
        raise _RoundsWorseError(rounding)
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


def _right_for(
    given: Mapping[str, np.ndarray], request: Request, found: SearchResult, choice: Choice, tools: _Tools
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
        path = _emitted(tools.folder / "given", sgraph, _formula(found), tools.platform, [config], ())
        report = check_given(program, path, sgraph, config, own, runner=tools.runner)
        if report.rounding:
            raise _nothing_better(program.name, report.failures)
        return report.summary()

    with tools.recorder.stage("inputs given") as detail:
        summary = tools.results.checked(request, f"{key(sgraph)} {config.key()}", own, check)
        detail += ["stored"] if stored else []
        detail.append(f"error {max(summary.worst.values(), default=0.0):.2g} of what is allowed")
    return replace(choice, checked=merged_checks([choice.checked, summary]))


def _beside(
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


def _baselines(request: Request, platform: Timed, tools: _Tools) -> tuple[list[Contender], dict[str, str]]:
    """What kernels are compared with, and why others are not."""
    wanted = tuple(b for b in request.baselines if b != "compile" or not tools.time.finite)
    found, missing = installed(request.program, platform.target, wanted, platform.thread_counts())
    if wanted != request.baselines:
        missing = {**missing, BASELINES["compile"]: "it compiles for longer than a run with a time limit may take"}
    return found, missing


def _confirmed(
    request: Request,
    bench: Bench,
    chosen: list[Finalist],
    right: list[tuple[Best, CheckSummary]],
    tools: _Tools,
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
        until = tools.time.moved(-CLOSING_S)
        outcome = confirm(bench, kernels, found, store=tools.store, basis=basis, until=until)
        detail.append(f"stored, of {outcome.date}" if outcome.stored else "timed anew")
    busy = others_now() if outcome.stored and outcome.loads else None
    ours, theirs = outcome.deciding.best(KERNEL), outcome.deciding.best(BASELINE)
    if ours is not None:
        best, checked = right[int(ours.name)]
        winner = chosen[best.candidate]
        best = replace(best, seconds=ours.seconds)
        choice = replace(choice, proved=winner.proved, best=best, model=winner.model, checked=checked)
    for s in outcome.matches[0].standings:
        if s.side == BASELINE and s.timed.measurement is None:
            tools.recorder.warn(f"{on_threads(s.name, s.threads)} is not compared with: {s.timed.detail}")
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
