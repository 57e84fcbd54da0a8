"""Optimize: from a program to an output folder with the fastest proved and checked kernels.

cut      -> regions, where the program is too large for one search (partitioned.py); then each of them goes on alone
search   -> proved sGraphs, best bound first, each tested over finite fields beside the prover (region_search.py)
choose   a region's sGraphs -> one that is tuned, checked and compared (finalists.py, choosing.py)
compose  the regions' winners to one sGraph and one module, checked and compared as a whole (composing.py)
write    the folder, whole or not at all

Where the time is limited, time_limit.py says what each step may take of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from prism.api.choosing import UnmatchedError, right_for, tools_of
from prism.api.comparing import of_another_machine, warn_of_load, why_no_better
from prism.api.composing import choice_of_program
from prism.api.finalists import formula_of
from prism.api.given_inputs import check_sizes, given_to
from prism.api.options import Options, ProgramOptions, by_keywords, check_dimensions
from prism.api.records import Request, artifacts, certificate_of, conditions
from prism.api.region_search import SearchBudget, SearchResult
from prism.api.second_opinion import recorded
from prism.api.time_limit import LONGER, MORE_TIME, ending, grace, out_of_time
from prism.api.trivial import check_gain
from prism.api.user_rules import rule_paths
from prism.backends.protocol import ModuleSource, load_function
from prism.backends.weights import weights_file
from prism.contents import Content
from prism.cost.constant_folding import fold_constants
from prism.errors import NoImprovementError, UnsupportedError, UsageError, refusing_depth
from prism.events import Artifacts, Recorder, RunReport
from prism.folders import cache_or_spare
from prism.instantiate.confirm import MATCHES, usual
from prism.instantiate.confirm import NAMES as BASELINES
from prism.platforms.begun import Begun
from prism.platforms.choice import platform_of
from prism.platforms.platform import Estimated, Platform
from prism.process.deadline import OutOfTimeError
from prism.program.assumptions import check_examples, under
from prism.program.integers import Interval, interval, of_type, range_of
from prism.program.nodes import DType, Program, Tensor
from prism.program.returned import computed
from prism.report.folder import WEIGHTS_NAME, render_folder, write_folder
from prism.report.units import duration, evidence_note, times_line
from prism.sgraph import record as sgraph_file
from prism.sgraph.show import key

BEFORE = "anything was proved, checked and measured"
"""What a run whose time ended did not come to."""
FLOAT32_WHOLE = 2.0**24
"""float32 holds all whole numbers up to this."""


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
    weights: Content | None = None
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


@by_keywords(ProgramOptions)
def optimize(program: Program, options: ProgramOptions) -> OptimizeResult:
    """Search, prove, tune, check and write the kernels of a program.

    Args:
        program: from `load` or `trace`.
        options: each by its name.

    Raises:
        CompilerError: the compiler of the target is missing, broken or hangs.
        UsageError: the target is unknown, a shape is not one of the program's, the folder cannot be written, or what is
            assumed is no statement of an input.
        RuleError: a rule file is not right, or one of its rules is wrong.
        UnsupportedError: the program holds something that cannot be searched.
        NoImprovementError: nothing that was proved is better than what was given: as fast, or as well rounded.
        VerificationError: kernels that were proved compute something else, more than rounding explains: a bug in prism,
            and nothing is written.

    The last two, and CompilerError, are also raised where nothing will do for one operator of several
    (`error.in_part`): nothing is written, and parts of the program without it may be optimized.
    """
    folder = options.folder()
    program = under(program, options.assume)
    if options.inputs is not None:
        check_sizes(given_to(program, options.inputs)[1], options.at)
    made = produce(program, options, options.only_better)
    artifacts = made.artifacts
    if folder is not None:
        artifacts = replace(artifacts, report=replace(artifacts.report, output=str(options.out)))
        folder = write_folder(folder, render_folder(artifacts))
    source = replace(made.module, text=artifacts.module)
    return OptimizeResult(artifacts.report, artifacts.module, made.search, folder, source, artifacts.weights)


@dataclass(frozen=True, slots=True)
class Produced:
    """What a run made, before any of it is written."""

    program: Program  # what was searched: without outputs that take no kernel
    artifacts: Artifacts  # what an output folder holds
    search: SearchResult  # everything that was proved
    module: ModuleSource  # the emitted module


FUSED = (
    "what was given is estimated operator by operator; as torch.compile fuses neighbours and calls its own attention, "
    "it is estimated at {}, and was not measured either"
)


STEP_BY_STEP = (
    "what was given is estimated with the steps of its loops operator by operator; torch's own recurrent layers "
    "(cuDNN), which run several steps at a time, are not in that estimate"
)


def produce(
    program: Program,
    options: Options,
    only_better: bool = True,
    matches: int = MATCHES,
    platform: Platform | None = None,
) -> Produced:
    """Everything that `optimize` does before it writes; errors are its own. It ends soon after the options' time.

    The best kernels meet the baselines `matches` times at most; `platform` is there where the caller has it, with
    children that others use as well.
    """
    baselines, time = options.baselines, options.time
    with ExitStack() as stack:
        stack.enter_context(ending(time, BEFORE, program.name))
        if not time.left:
            raise OutOfTimeError
        if baselines is not None and not baselines and only_better:
            raise UsageError("nothing to compare with", where="baselines", fix=f"name one: {', '.join(BASELINES)}")
        recorder = Recorder(options.listener)
        cache = stack.enter_context(cache_or_spare(recorder.warn))
        platform = platform or platform_of(options.target, recorder.warn, cache, options.begun)
        device = platform.device
        given: dict[str, np.ndarray] = {}
        at: dict[str, int] = {}
        if options.inputs is not None:
            given, at = given_to(program, options.inputs)
            check_examples({t.name: t.stated for t in program.inputs if t.stated is not None}, given)
        program = _at(program, {**at, **(options.shapes or {})})
        check_gain(program)
        program, returned = computed(program)
        program = fold_constants(program)
        check_gain(program)
        check_supported(program)
        weights = weights_file(program)
        files = rule_paths(options.rules)
        bounds = options.budget or SearchBudget()
        compared = usual(program, platform.target) if baselines is None else tuple(baselines)
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
            matches,
        )
        stack.enter_context(refusing_depth(program.name))
        worker = stack.enter_context((options.begun or Begun()).prover(files, request.budget.fp))
        tools = tools_of(request, platform, recorder, stack, cache, options.anew, time)
        try:
            with time.limited():  # what is chosen later than that would not be written in time
                found, choice = choice_of_program(request, worker, tools)
        except OutOfTimeError as error:
            matched = isinstance(error, UnmatchedError)
            tools.results.keep_unfinished(request, time.given, matched)
            raise out_of_time(BEFORE, program.name, LONGER if matched and tools.matched else MORE_TIME) from None
        if weights is not None:
            weights.begin()
        if only_better and not choice.better:
            raise NoImprovementError(
                "nothing beats what was given",
                where=program.name,
                why=why_no_better(choice),
                fix="keep the model as it is, or tune at other shapes (--shape)"
                + ("; --anew times again" if of_another_machine(choice) else ""),
            )
        warn_of_load(choice, recorder)
        if isinstance(platform, Estimated):
            compiled = platform.compiled_seconds(program)
            if compiled < choice.baseline_seconds:
                recorder.warn(FUSED.format(duration(compiled)))
            if program.loops:
                recorder.warn(STEP_BY_STEP)
        if given:
            choice = right_for(given, request, found, choice, tools)
        written = sgraph_file.written(choice.proved.sgraph)
        of = tools.results.of_choice(request, choice, written)
        module = tools.results.module(
            request,
            of,
            returned,
            lambda: platform.backend.emit(
                choice.proved.sgraph,
                formula=formula_of(found),
                configs={device.target: [choice.best.config]},
                weights=bool(program.weights),
                returned=returned if program.places is not None else (),
                ranges=program.ranges,
            ),
        )
        spare, identity = grace(time).part(0.75), key(choice.proved.sgraph)
        derived = tools.results.certificate(
            request,
            identity,
            time.given,
            lambda: certificate_of(request, found, choice, recorder, worker, spare),
        )
        where = tools.results.conditions(of, lambda: conditions(request, choice))
        made = artifacts(
            request, found, choice, module, platform, recorder, derived, where, (identity, written), weights
        )
        made = recorded(made, choice.opinion)
        return Produced(program, made, found, module)


def check_supported(program: Program) -> None:
    """Refuse a program for whose data types no kernels can be emitted.

    Raises:
        UnsupportedError: an input or an output is in float64, or an output of whole numbers may be too large.
    """
    for t in program.inputs:
        if t.dtype is DType.FLOAT64:
            raise _in_float64(t)
    for error in refused_outputs(program).values():
        raise error


def refused_outputs(program: Program) -> dict[str, UnsupportedError]:
    """The outputs that kernels do not give, and why."""
    bounds: dict[str, Interval] = {t.name: of_type(t.dtype) for t in program.inputs}
    for d in program.definitions:
        found = interval(d.expr, bounds.__getitem__, program.ranges)
        bounds[d.name] = found if found.within(range_of(d.dtype)) else of_type(d.dtype)
    refused: dict[str, UnsupportedError] = {}
    for t in map(program.tensor, program.outputs):
        if t.dtype is DType.FLOAT64:
            refused[t.name] = _in_float64(t)
        elif not t.dtype.is_float and bounds[t.name].largest > FLOAT32_WHOLE:
            refused[t.name] = UnsupportedError(
                f"an output of type {t.dtype.value} that may be large",
                where=f"output {t.name}",
                why="kernels compute in float32, which holds all whole numbers up to 2^24",
                fix="cut the model before this output",
            )
    return refused


def _in_float64(t: Tensor) -> UnsupportedError:
    return UnsupportedError(
        "kernels in float64 are not emitted",
        where=f"tensor {t.name}",
        why="kernels compute in float32",
        fix="convert the model to float32, float16 or bfloat16",
    )


def _at(program: Program, shapes: Mapping[str, int]) -> Program:
    """The program, with the given values as those that costs are quoted at."""
    ranges = dict(program.ranges)
    check_dimensions(shapes, ranges)
    for name, value in shapes.items():
        r = ranges[name]
        if value < r.low or (value > r.high and not r.open):
            most = f"from {r.low} on" if r.open else f"from {r.low} to {r.high}"
            read = f", or read the model with empty=[{name!r}]" if not value and program.source is not None else ""
            raise UsageError(f"{name}={value} is out of range", where="--shape", fix=f"give a value {most}{read}")
        ranges[name] = replace(r, hint=value, high=max(value, r.high), guessed=False)
    return program.over(ranges)
