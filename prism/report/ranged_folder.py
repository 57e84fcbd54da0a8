"""The output folder of kernels for ranges of shapes, and the lines that tell of it.

README.md            how to call the function, and what the other files are
<name>.py            the function: it asks the inputs' lengths, and calls the kernels of one of the folders; of a model
                     that goes in parts it is model.py, whose load() gives the function
cell_<n>/            kernels for a part of the ranges, an output folder like that of any program, or model in parts
model.onnx           the model that was given, for lengths outside of the ranges, where that was asked for, and those at
                     which no part of it is faster
original.py          what runs it, of a model that goes in parts
report.json          the run
prism.lock.json      the SHA-256 of every file here, and of the lock files of the folders
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import PurePosixPath

from rich.console import Console, Group
from rich.text import Text

from prism.contents import Content
from prism.events import CellReport, Evidence, RangedReport
from prism.report.folder import LOCK_NAME, REPORT_NAME, module_name, render_folders
from prism.report.records import RANGES_LOCK_SCHEMA, to_json
from prism.report.table import facts, plain_table
from prism.report.units import duration, files_table
from prism.report.usage import NEEDS, README_NAME, example, lines_to_type

MODEL = "model.onnx"
MODELS = "model.py"
"""The module of a model that goes in parts."""
COLUMNS = ("lengths", "tuned at", "by kernels", "before", "gain", "kernels in", "launches")


def render_ranged(report: RangedReport, files: Mapping[str, Content]) -> dict[str, Content]:
    """The files that tell of the others; the lock file is last."""
    return render_folders(RANGES_LOCK_SCHEMA, to_json(report), partial(_readme, report), files, report.versions)


def _module(report: RangedReport) -> str:
    """The file of the function."""
    return MODELS if report.parts else module_name(report.name)


def _columns(report: RangedReport) -> tuple[str, ...]:
    return (*COLUMNS[:-1], "islands") if report.parts else COLUMNS


def _call(report: RangedReport) -> tuple[list[str], str]:
    """Lines of Python before a call of the function, and the call."""
    place = ', device="cuda"' if report.backend == "Triton" else ""
    module, function = PurePosixPath(_module(report)).stem, report.name
    # A model's inputs may have names that Python takes for none.
    names = [f"x{n}" if report.parts else a.name for n, a in enumerate(report.arguments)]
    made = [f"{n} = {example(a, place)}" for n, a in zip(names, report.arguments, strict=True)]
    loaded = ["model = load()"] if report.parts else []
    before = ["import torch", f"from {module} import {'load' if report.parts else function}", *made, *loaded]
    return before, f"{'model' if report.parts else function}({', '.join(names)})"


def ranges_line(report: RangedReport) -> str:
    """The lengths that the kernels are for."""
    return ", ".join(f"{low} <= {name} <= {high}" for name, (low, high) in report.ranges.items())


def cell_speedup(cell: CellReport) -> str:
    """A cell's gain in words."""
    if cell.why:
        return "none of its own"
    if cell.between is not None:
        return f"{cell.between[0]:.2f}x to {cell.between[1]:.2f}x as fast"
    return f"{cell.baseline_seconds / cell.best_seconds:.2f}x as fast" if cell.best_seconds else "-"


def cell_rows(report: RangedReport) -> list[tuple[str, ...]]:
    """A row a cell, in the order of `COLUMNS`."""
    return [
        (
            c.where,
            ", ".join(f"{n}={v}" for n, v in c.at.items()),
            duration(c.best_seconds) if not c.why else "-",
            f"{duration(c.baseline_seconds)} ({c.baseline})" if not c.why else "-",
            cell_speedup(c),
            c.folder or "onnxruntime",
            str(c.kernels),
        )
        for c in report.cells
    ]


def _outside(report: RangedReport) -> str:
    """What happens at other lengths."""
    if report.outside:
        return f"Other lengths run in onnxruntime, by `{MODEL}`."
    if report.parts:
        return "Other lengths are refused."
    return "Other lengths are refused; `otherwise=` takes a function that is called with the same tensors instead."


def _readme(report: RangedReport, files: list[str]) -> str:
    """The folder's README. Holds no path of the machine."""
    before, call = _call(report)
    needs = "numpy, onnxruntime and a C++ compiler" if report.parts else NEEDS.get(report.backend, "torch")
    word = "measured" if report.evidence is Evidence.MEASURED else "estimated"
    lines = [
        f"# {report.name}",
        "",
        f"Kernels in {report.backend} for {report.target} ({report.device}), made and proved by prism, for "
        f"{ranges_line(report)}. Times are {word}.",
        "",
        f"| {' | '.join(_columns(report))} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(row)} |" for row in cell_rows(report)),
        "",
        f"All kernels compute the same at every length; which are fastest differs. {_outside(report)}",
        "",
        "## Call it",
        "",
        f"The modules need {needs}; they do not need prism. In this folder:",
        "",
        "```python",
        *before,
        f"result = {call}",
        "```",
        "",
        "## Check it",
        "",
        "Where prism is installed, in this folder: `prism verify .`, and for the derivation of a cell's kernels",
        "`prism explain` with the cell's folder.",
        "",
        *files_table({name: _purpose(name, _module(report)) for name in files}),
    ]
    return "\n".join(lines)


def print_ranged(report: RangedReport, console: Console) -> None:
    """Print the summary of a run."""
    console.print(
        Text.assemble((report.name, "bold"), f" for {report.target} ({report.device}), {ranges_line(report)}")
    )
    table = plain_table(*_columns(report), right=("by kernels", "launches", "islands"))
    for row in cell_rows(report):
        table.add_row(*map(Text, row))
    console.print(Group(table, facts(_outcome(report))))


def _outcome(report: RangedReport) -> Iterator[tuple[str, str]]:
    yield "times", report.evidence.value
    for c in report.cells:
        if c.why:
            said = f"takes the kernels in {c.folder}" if c.folder else "runs in onnxruntime"
            yield c.where, f"{said}: {c.why}"
    yield "elsewhere", _outside(report).replace("`", "")
    if report.output:
        yield "written to", report.output


def next_lines(report: RangedReport) -> tuple[tuple[str, str], ...]:
    """What to type after a run: by purpose, one line for a shell in the current folder."""
    before, call = _call(report)
    code = "; ".join((*before, f"print({call})"))
    explained = None if report.parts else next(c.folder for c in report.cells if c.folder)
    return lines_to_type(report.output, code, README_NAME, explained)


def _purpose(name: str, module: str) -> str:
    return {
        module: "the function",
        MODEL: "the model that was given, for lengths that no kernels are for",
        "original.py": "what runs the model that was given",
        REPORT_NAME: "the run, for programs",
        LOCK_NAME: "the SHA-256 of every file here, and of the lock files of the folders",
    }.get(name, "kernels for a part of the ranges, with their proof")
