"""Whole models that go in parts, over ranges of lengths: one for each part of the ranges, and a module that picks.

cut       -> cells of the ranges, no wider than one choice of tiles is for (prism/generate/cells.py)
optimise  the model in parts at each cell's middle: kernels take every length, so a cell's are right outside of it, too
assemble  a folder: the cells' folders, the model as it was given, and a module that asks the inputs' lengths

A cell in which nothing is faster runs the model as it was given, in onnxruntime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sympy

from prism.api.options import ModelRangesOptions, by_keywords, check_ranges
from prism.api.ranged import NOTHING, cell_by_cell, cell_report, from_one, nothing_in
from prism.api.time_limit import ending
from prism.api.whole_models import Run, compared_with_stock, on_cpu, parts_of
from prism.backends.assembled import Step, assembled_text, ranged_model_text
from prism.contents import Content
from prism.cost.shapes import middle
from prism.errors import PrismError, UnsupportedError, UsageError
from prism.events import Argument, CellReport, Evidence, ModelReport, RangedReport, Recorder
from prism.frontend.onnx.islands import Cut
from prism.generate.cells import Cell, cells
from prism.instantiate.lock import versions
from prism.program.extents import evaluate
from prism.program.nodes import SymbolRange
from prism.report.folder import write_folder
from prism.report.model_folder import MODULE
from prism.report.ranged_folder import MODEL, render_ranged
from prism.report.units import duration

GIVEN = "original.py"
"""The module that runs the model as it was given."""


@dataclass(frozen=True, slots=True)
class ModelRanges:
    """What a run ends in.

    Attributes:
        report: as shown to the user.
        models: of each cell that is faster, what a run of the whole model at its middle says.
        out: the output folder; None when none was asked for.
    """

    report: RangedReport
    models: Mapping[str, ModelReport]
    out: Path | None


@by_keywords(ModelRangesOptions)
def optimize_model_ranges(
    path: Path | str, ranges: Mapping[str, tuple[int, int]], options: ModelRangesOptions
) -> ModelRanges:
    """Optimise what prism reads of an ONNX model for a range of lengths, each part of it with its own choice.

    Args:
        path: the file.
        ranges: the least and the largest length by symbolic dimension, for at least one.
        options: each by its name.

    Raises:
        UsageError: a range is none, or not of the model's; or as for `optimize_model`.
        UnsupportedError: a length is no dimension of an input; or as for `optimize_model`.
        NoImprovementError: nothing is faster than onnxruntime, in any cell.
        VerificationError: as for `optimize_model`.
    """
    path = Path(path)
    options = compared_with_stock(options)
    if options.inputs is not None:
        raise UsageError(
            "inputs are of one length",
            where="--inputs",
            why="a model that goes in parts is compared and timed at several",
            fix="leave it away, or give values in place of ranges (--shape)",
        )
    folder = options.folder()
    recorder = Recorder(options.listener)
    with ending(options.time, "the model was cut", str(path)):
        parts = parts_of(path, options.rules, recorder, options.empty)
    lengths = _lengths(parts, ranges, options.at, str(path))
    found = _cells(from_one(ranges, ranges))
    with on_cpu(path, parts, options, recorder) as (platform, cache):
        device = platform.device_name

        def model(at: ModelRangesOptions) -> tuple[ModelReport, dict[str, Content]]:
            own = Recorder(options.listener)
            try:
                with ending(at.time, "the model was compared and timed", str(path)):
                    return Run(path, parts, at, platform, own, cache).made()
            finally:
                for message in own.warnings:
                    recorder.warn(message)

        made = cell_by_cell(found, options, recorder, model, lambda one: _times(one[0]))
    report, files, models = _assembled(path, parts, ranges, lengths, found, made, recorder, device, options.original)
    if folder is not None:
        report = replace(report, output=str(options.out))
        folder = write_folder(folder, files)
    return ModelRanges(report, models, folder)


def _times(report: ModelReport) -> str:
    return f"{duration(report.baseline_seconds)} to {duration(report.best_seconds)}"


def _lengths(
    parts: Cut, ranges: Mapping[str, tuple[int, int]], shapes: Mapping[str, int], where: str
) -> dict[str, tuple[str, int]]:
    """Of each dimension with a range, an input that has it, and where in its shape it is."""
    found: dict[str, tuple[str, int]] = {}
    names: set[str] = set()
    for port in parts.inputs:
        for axis, extent in enumerate(port.shape or ()):
            if isinstance(extent, sympy.Expr):
                names |= {s.name for s in extent.free_symbols}
            if isinstance(extent, sympy.Symbol):
                found.setdefault(extent.name, (port.name, axis))
    check_ranges(ranges, names, shapes)
    for name, (low, high) in ranges.items():
        if not 0 <= low <= high or not high:
            raise UsageError(f"{name}={low}..{high} is no range of it", where="--shape", fix="give one from 0 or 1 on")
        if name not in found:
            raise UnsupportedError(
                f"the length {name} cannot be told from the inputs' shapes",
                where=where,
                fix="give an input a dimension of that length, or tune at one shape",
            )
    return {name: found[name] for name in ranges}


def _cells(ranges: Mapping[str, tuple[int, int]]) -> tuple[Cell, ...]:
    """The cells of the ranges, by their spans alone: islands do not agree on which kernels win where."""
    held = {n: SymbolRange(low, high, middle(low, high)) for n, (low, high) in ranges.items()}
    varying = {n: r for n, r in held.items() if r.low < r.high}
    fixed = {n: r.low for n, r in held.items() if n not in varying}
    if not varying:
        return (Cell(sympy.true, "everywhere", fixed),)
    return tuple(replace(c, at={**c.at, **fixed}) for c in cells((), varying))


def _assembled(
    path: Path,
    parts: Cut,
    ranges: Mapping[str, tuple[int, int]],
    lengths: Mapping[str, tuple[str, int]],
    found: Sequence[Cell],
    made: Sequence[tuple[ModelReport, dict[str, Content]] | PrismError],
    recorder: Recorder,
    device: str,
    original: bool,
) -> tuple[RangedReport, dict[str, Content], dict[str, ModelReport]]:
    """The report, the folder's files, and what was made for each cell's folder."""
    faster = [m for m in made if not isinstance(m, PrismError)]
    inputs, outputs = ([p.name for p in ports] for ports in (parts.inputs, parts.outputs))
    files: dict[str, Content] = {}
    models: dict[str, ModelReport] = {}
    ways: list[tuple[sympy.Basic, str, str]] = []
    reports: list[CellReport] = []
    for predicate, said, at in nothing_in(ranges):
        ways.append((predicate, said, GIVEN))
        reports.append(CellReport(said, at, "", 0, "", why=NOTHING))
    for cell, one in zip(found, made, strict=True):
        if isinstance(one, PrismError):
            ways.append((cell.predicate, cell.text, GIVEN))
            reports.append(CellReport(cell.text, dict(cell.at), "", 0, "", why=f"{one.what}: {one.why}"))
            continue
        report, own = one
        inner = f"cell_{len(models)}"
        models[inner] = report
        files |= {f"{inner}/{name}": data for name, data in own.items()}
        ways.append((cell.predicate, cell.text, f"{inner}/{MODULE}"))
        reports.append(cell_report(cell, inner, len(report.chosen), report.chosen[0].rung, report))
    if original or any(file == GIVEN for *_, file in ways):
        files[GIVEN] = assembled_text(path.stem, inputs, outputs, [Step(MODEL, tuple(inputs), tuple(outputs))]).encode()
        files[MODEL] = parts.with_functions(frozenset())
    text = ranged_model_text(path.stem, inputs, lengths, ranges, ways, GIVEN if original else "")
    files[MODULE] = text.encode()
    whole = RangedReport(
        name=path.stem,
        target="cpu",
        device=device,
        evidence=Evidence.MEASURED,
        backend="C++",
        ranges={n: ranges[n] for n in sorted(ranges)},
        cells=tuple(reports),
        arguments=_arguments(parts, faster[0][0]),
        stages=dict(recorder.seconds),
        seed=faster[0][0].seed,
        versions=versions(),
        outside=original,
        parts=True,
        warnings=tuple(recorder.warnings),
    )
    return whole, files | render_ranged(whole, files), models


def _arguments(parts: Cut, report: ModelReport) -> tuple[Argument, ...]:
    """The model's inputs at the sizes of the first cell."""
    at: dict[str, Any] = dict(report.sizes)
    return tuple(Argument(p.name, p.dtype, tuple(evaluate(e, at) for e in p.shape or ())) for p in parts.inputs)
