"""Kernels for a range of shapes: several choices, each for a cell of the range, and a module that picks among them.

search    -> proved sGraphs over the whole range, and which of them wins where by estimate (prism/generate/dispatch.py)
cut       -> cells: what one of them wins, no wider than one choice of tiles is for (prism/generate/cells.py)
optimise  each cell's middle as any program: all kernels take every length, so a cell's are right outside of it, too
assemble  a folder: the cells' folders, and a module that asks the inputs' lengths

A cell in which nothing is faster than what was given, or compiles, runs that, in onnxruntime, as lengths of nothing do.
Of what is from no ONNX file it takes the kernels of the nearest cell that has some, or what the caller says
(`otherwise`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from prism.api.given_inputs import check_sizes, given_to
from prism.api.optimizing import Produced, produce
from prism.api.options import Options, RangedOptions, by_keywords, check_ranges
from prism.api.region_search import SearchBudget, SearchResult
from prism.api.results import cells_of
from prism.api.searching import search
from prism.api.time_limit import LATE, MORE_TIME
from prism.backends.loading import load_module
from prism.backends.ranged import Original, Way, ranged_text
from prism.contents import Content, put
from prism.cost.constant_folding import fold_constants
from prism.cost.shapes import middle
from prism.errors import CompilerError, NoImprovementError, PrismError, UsageError
from prism.events import CellReport, ModelReport, RangedReport, Recorder, RunReport
from prism.frontend.onnx.reader import for_runtimes
from prism.generate.cells import Cell, apart, cells
from prism.instantiate.confirm import usual, why_not_stock
from prism.instantiate.lock import versions
from prism.platforms.choice import meant, platform_of
from prism.process.deadline import OutOfTimeError
from prism.program.assumptions import under
from prism.program.nodes import Program
from prism.program.returned import computed
from prism.report.folder import module_name, render_folder, write_folder
from prism.report.ranged_folder import MODEL, render_ranged
from prism.report.units import chosen_threads, times_line

if TYPE_CHECKING:
    import sympy

Asked = TypeVar("Asked", bound=Options)
Made = TypeVar("Made")

SEARCHED = 0.2
"""The share of the time that the search over the whole range may take."""
NOTHING = "kernels are for lengths from 1 on"


@dataclass(frozen=True, slots=True, repr=False)
class RangedResult:
    """What a run ends in: called with the program's inputs, it runs the kernels for their lengths.

    Attributes:
        report: as shown to the user.
        module: the source of the module that picks.
        searches: what was proved for each cell that has kernels of its own.
        out: the output folder; None when none was asked for.
        files: the folder's, by name.
    """

    report: RangedReport
    module: str
    searches: tuple[SearchResult, ...]
    out: Path | None
    files: Mapping[str, Content]
    _loaded: list[Callable[..., Any]] = field(default_factory=list, init=False, compare=False)
    _place: list[tempfile.TemporaryDirectory[str]] = field(default_factory=list, init=False, compare=False)

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        """What the module's function returns for these tensors; see its docstring for its options.

        Raises:
            ValueError: a tensor is not what the kernels are for, or a length is outside of the range.
        """
        return self._function()(*tensors, **options)

    def torch_op(self) -> Any:
        """The function as an operator of torch (`torch.ops.prism...`), one node to torch.compile and torch.export."""
        module = self._function().__globals__
        return module.get("as_torch_op", module["torch_op"])()

    def _function(self) -> Callable[..., Any]:
        if not self._loaded:
            self._place.append(tempfile.TemporaryDirectory(prefix="prism-loaded-"))
            root = Path(self._place[0].name)
            for name, data in self.files.items():
                (root / name).parent.mkdir(exist_ok=True)
                put(root / name, data)
            module = load_module(root / module_name(self.report.name), apart=True)
            self._loaded.append(getattr(module, self.report.name))
        return self._loaded[0]

    def __repr__(self) -> str:
        made = len({c.folder for c in self.report.cells})
        return f"<RangedResult of {self.report.name}: {len(self.report.cells)} cells, {made} with kernels of their own>"


@by_keywords(RangedOptions)
def optimize_ranges(program: Program, ranges: Mapping[str, tuple[int, int]], options: RangedOptions) -> RangedResult:
    """Search, prove, tune, check and write kernels for a range of lengths, each part of it with its own choice.

    Trials are of each cell, and every cell's kernels are checked on inputs that are given.

    Args:
        program: from `load` or `trace`, with symbolic dimensions.
        ranges: the least and the largest length by symbolic dimension, for at least one.
        options: each by its name.

    Raises:
        UsageError: a range is none, or not within the program's; or as for `optimize`.
        UnsupportedError: a length does not follow from the inputs' shapes; or as for `optimize`.
        NoImprovementError: nothing is better than what was given, in any cell.
        VerificationError: as for `optimize`.
    """
    folder = options.folder()
    program = under(program, options.assume)
    if options.inputs is not None:
        check_sizes(given_to(program, options.inputs)[1], options.at)
    check_ranges(ranges, program.ranges, options.shapes or ())
    for name in options.empty:
        fix = f"give another value, or read the model with empty=[{name!r}]"
        raise UsageError(f"{name}=0 is out of range", where="--shape", fix=fix)
    original = _original(program, options)
    empty = [n for n, (low, high) in ranges.items() if low == 0 < high] if original is not None else []
    program = over(program, from_one(ranges, empty), options.at)
    recorder = Recorder(options.listener)
    with recorder.stage("cells") as detail:
        varying = {n: program.ranges[n] for n in ranges if program.ranges[n].low < program.ranges[n].high}
        found = _cells(program, varying, options, recorder) if varying else ()
        found = found or (_one(program, ranges),)
        detail.append(f"{len(found)}: {', '.join(c.text for c in found)}")

    def kernels(at: RangedOptions) -> Produced:
        one = produce(program, at, options.only_better)
        for message in one.artifacts.report.warnings:
            recorder.warn(message)
        return one

    made = cell_by_cell(found, options, recorder, kernels, lambda one: times_line(one.artifacts.report))
    return _assembled(program, ranges, found, made, recorder, options, folder, original)


def cell_by_cell(
    found: Sequence[Cell], asked: Asked, recorder: Recorder, make: Callable[[Asked], Made], told: Callable[[Made], str]
) -> list[Made | PrismError]:
    """What is made at each cell's middle, in its share of the time; the error where nothing is faster, or compiles.

    `told` is what the stage says of it.

    Raises:
        NoImprovementError: no cell has kernels.
        CompilerError: no cell has, as none could be compiled in one of them.
        PrismError: no cell has, as nothing will do for an operator in one of them (`in_part`).
    """
    made: list[Made | PrismError] = []
    for n, cell in enumerate(found):
        which = f"cell {n + 1} of {len(found)}"
        with recorder.stage(f"cell {n + 1}") as detail, recorder.within(0, f"{which} ({cell.text})"):
            try:
                time = asked.time.part(1 / (len(found) - n))
                one = make(replace(asked, shapes={**(asked.shapes or {}), **cell.at}, seconds=time))
            except PrismError as error:
                if not (error.in_part or isinstance(error, NoImprovementError | CompilerError)):
                    raise
                made.append(error)
                detail.append(f"{cell.text}: {error.what}")
            else:
                made.append(one)
                detail.append(f"{cell.text}: {told(one)}")
    errors = [m for m in made if isinstance(m, PrismError)]
    if len(errors) == len(made):
        # What went wrong says more than that nothing is faster.
        raise next((e for e in errors if e.in_part or isinstance(e, CompilerError)), None) or _nothing(found, errors)
    return made


def cell_report(cell: Cell, folder: str, kernels: int, rung: str, of: RunReport | ModelReport) -> CellReport:
    """What is said of a cell with kernels of its own, or a model, in a folder."""
    return CellReport(
        where=cell.text,
        at=dict(cell.at),
        folder=folder,
        kernels=kernels,
        rung=rung,
        best_seconds=of.best_seconds,
        baseline_seconds=of.baseline_seconds,
        baseline=of.baseline,
        between=of.measurement.between if of.measurement is not None else None,
    )


def from_one(ranges: Mapping[str, tuple[int, int]], empty: Collection[str]) -> dict[str, tuple[int, int]]:
    """The ranges without lengths of nothing, for which there are no kernels."""
    return {n: (max(low, 1) if n in empty else low, high) for n, (low, high) in ranges.items()}


def nothing_in(ranges: Mapping[str, tuple[int, int]]) -> list[tuple[sympy.Basic, str, dict[str, int]]]:
    """Where a length is 0: predicate, text, and the length, for each that may be."""
    import sympy

    return [
        (sympy.Eq(sympy.Symbol(n, integer=True), 0), f"{n} == 0", {n: 0})
        for n, (low, high) in sorted(ranges.items())
        if low == 0 < high
    ]


def over(program: Program, ranges: Mapping[str, tuple[int, int]], values: Collection[str] = ()) -> Program:
    """The program for these lengths alone; dimensions with a value have no range.

    Raises:
        UsageError: it has no such symbolic dimension, or none of such lengths.
    """
    held = dict(program.ranges)
    check_ranges(ranges, held, values)
    for name, (low, high) in ranges.items():
        r = held[name]
        if not r.low <= low <= high or (high > r.high and not r.open):
            most = "" if r.open else f" to {r.high}"
            raise UsageError(
                f"{name}={low}..{high} is no range of it", where="--shape", fix=f"give one from {r.low}{most}"
            )
        hint = r.hint if low <= r.hint <= high else middle(low, high)
        held[name] = replace(r, low=low, high=high, hint=hint, open=False, guessed=False)
    return program.over(held)


def _one(program: Program, ranges: Mapping[str, tuple[int, int]]) -> Cell:
    """The only cell of ranges of one length."""
    import sympy

    return Cell(sympy.true, "everywhere", {n: program.ranges[n].hint for n in ranges})


def _cells(program: Program, varying: Mapping[str, Any], options: Options, recorder: Recorder) -> tuple[Cell, ...]:
    """The cells of the ranges, by what wins where by estimate; none where the time ends before that is known."""
    held = {
        n: r if n in varying else replace(r, low=at, high=at, hint=at)
        for n, r in program.ranges.items()
        for at in [options.at.get(n, r.hint)]
    }
    program, target = fold_constants(computed(program)[0]), meant(options.target)
    budget = options.budget or SearchBudget()

    def searched() -> tuple[Cell, ...] | None:
        with search(program, target=target, budget=budget, rules=options.rules) as found:
            try:
                with options.time.part(SEARCHED).limited():
                    found.run()
            except OutOfTimeError:
                return None
            table = found.winners(held)
        return cells(table, varying)

    asked = (
        sorted(held.items()),
        sorted(varying),
        target,
        repr(platform_of(target, recorder.warn).device),
        budget.as_dict(),
    )
    return cells_of(program, asked, options.rules, options.time.given, searched)


def _assembled(
    program: Program,
    ranges: Mapping[str, tuple[int, int]],
    found: Sequence[Cell],
    made: Sequence[Produced | PrismError],
    recorder: Recorder,
    options: RangedOptions,
    folder: Path | None,
    original: Path | None,
) -> RangedResult:
    """The folder's files and the report; `original` is what runs where kernels are no faster."""
    own = [n for n, m in enumerate(made) if isinstance(m, Produced)]
    names: dict[str, str] = {}
    files: dict[str, Content] = {}
    ways: list[Way] = []
    reports: list[CellReport] = []
    for n, cell in enumerate(found):
        taken = n if n in own else min(own, key=lambda m: (apart(found[m].at, cell.at), m))
        kernels, mine = made[taken], made[n]
        assert isinstance(kernels, Produced)
        inner = names.get(kernels.artifacts.module)
        if inner is None:
            inner = names[kernels.artifacts.module] = f"cell_{len(names)}"
            files |= {f"{inner}/{name}": data for name, data in render_folder(kernels.artifacts).items()}
        r = kernels.artifacts.report
        fewer = chosen_threads(r.measurement) if r.measurement is not None else 0
        file = f"{inner}/{module_name(program.name)}"
        threads = {"threads": fewer} if fewer else {}
        ways.append(Way(cell.predicate, cell.text, file, threads, given=isinstance(mine, PrismError)))
        if isinstance(mine, PrismError):
            said = f"{mine.what}: {mine.why}"
            inner, many, rung = ("", 0, "") if original is not None else (inner, r.kernel_count, r.rung)
            reports.append(CellReport(cell.text, dict(cell.at), inner, many, rung, why=said))
        else:
            reports.append(cell_report(cell, inner, r.kernel_count, r.rung, r))
    none = nothing_in(ranges)
    ways = [*(Way(predicate, said, ways[own[0]].file, given=True) for predicate, said, _ in none), *ways]
    reports = [*(CellReport(said, at, "", 0, "", why=NOTHING) for _, said, at in none), *reports]
    first = next(m for m in made if isinstance(m, Produced))
    about = first.artifacts.report
    model = None
    path = options.original or (original if any(w.given for w in ways) else None)
    if path is not None:
        files[MODEL], passed = for_runtimes(path)
        if len(passed) != len(program.arguments):
            raise UsageError("the original model has other inputs", where=str(path), fix="give the program's own file")
        names = dict(zip((t.name for t in program.arguments), passed, strict=True))
        model = Original(MODEL, tuple(names.get(t.name, "") for t in first.program.inputs))
    report = RangedReport(
        name=about.name,
        target=about.target,
        device=about.device,
        evidence=about.evidence,
        backend=about.backend,
        ranges={n: ranges[n] for n in sorted(ranges)},
        cells=tuple(reports),
        arguments=about.arguments,
        stages=dict(recorder.seconds),
        seed=about.seed,
        versions=versions(),
        outside=options.original is not None,
        warnings=tuple(recorder.warnings),
        output=str(options.out or ""),
    )
    text = ranged_text(
        first.module,
        first.program.inputs,
        bool(first.program.weights),
        len(program.outputs),
        ranges,
        ways,
        model,
        options.original is not None,
    )
    files[module_name(program.name)] = text.encode()
    files |= render_ranged(report, files)
    if folder is not None:
        folder = write_folder(folder, files)
    searches = tuple(made[n].search for n in own)  # type: ignore[union-attr]
    return RangedResult(report, text, searches, folder, files)


def _original(program: Program, options: RangedOptions) -> Path | None:
    """The file that runs where kernels are no faster: the program's, where onnxruntime is among the baselines."""
    target = meant(options.target)
    asked = usual(program, target) if options.baselines is None else options.baselines
    runs = "onnxruntime" in asked and not why_not_stock(program, target)
    return program.source if runs and isinstance(program.source, Path) else None


def _nothing(found: Sequence[Cell], errors: Sequence[PrismError]) -> NoImprovementError:
    said = (f"{c.text}: {e.what}{f' ({e.why})' if e.why else ''}" for c, e in zip(found, errors, strict=True))
    ended = any(e.fix in LATE for e in errors)
    return NoImprovementError(
        "nothing beats what was given, at any length",
        where=errors[0].where,
        why="; ".join(said),
        fix=MORE_TIME if ended else "keep the model as it is, or give another range (--shape)",
    )
