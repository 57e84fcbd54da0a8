"""The output folder of a model that goes in parts, and the lines that tell of it.

README.md            how to call the model, and what the other files are
model.py             `load()`: the model as a function, which needs numpy, onnxruntime and a C++ compiler
model.onnx           the model with each island a function of its own operators, for onnxruntime and for viewers
rest_<n>.onnx        what stays as it is between islands, which onnxruntime runs
island_<n>/          an island's kernels, an output folder like that of a model that is one program
together.cpp         one call for islands that follow each other, where there are such
island_<n>.weights.pt  the weights of an island that shares another's kernels
report.json          the run
prism.lock.json      the SHA-256 of every file here, and of the lock files of the folders
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from rich.console import Console, Group
from rich.text import Text

from prism.contents import Content
from prism.events import IslandReport, KeptReport, ModelReport
from prism.report.folder import LOCK_NAME, REPORT_NAME, render_folders
from prism.report.records import MODEL_LOCK_SCHEMA, to_json
from prism.report.table import contenders, facts, measured, plain_table, stages_table
from prism.report.units import duration, files_table
from prism.report.usage import README_NAME, lines_to_type

MODULE = "model.py"
STOCK = "model.onnx"
TOGETHER = "together.cpp"
_PURPOSES = {
    MODULE: "`load()`: the model as a function",
    STOCK: "the model with each island a function of its own operators, for onnxruntime and for viewers",
    TOGETHER: "the entry that runs all launches of islands that follow each other",
    REPORT_NAME: "the run, for programs",
    LOCK_NAME: "the SHA-256 of every file here, and of the lock files of the folders",
}
_SHOWN = 12


def render_model(report: ModelReport, files: Mapping[str, Content]) -> dict[str, Content]:
    """The files that tell of the others; the lock file is last."""
    return render_folders(MODEL_LOCK_SCHEMA, to_json(report), partial(_readme, report), files, report.versions)


def model_speedup(report: ModelReport) -> str:
    """The gain in words."""
    m = report.measurement
    low, high = (m.between if m is not None else None) or (0.0, 0.0)
    return f"{low:.2f}x to {high:.2f}x as fast"


def share_line(report: ModelReport) -> str:
    """How much of the model runs by kernels."""
    nodes = sum(i.nodes for i in report.chosen)
    many = len(report.chosen)
    return f"{nodes} of {report.nodes} nodes ({report.share:.0%}), in {many} island{'s' * (many != 1)}"


def _readme(report: ModelReport, files: list[str]) -> str:
    """The folder's README. Holds no path of the machine."""
    lines = [
        f"# {report.name}",
        "",
        f"A model of which {share_line(report)} run by C++ kernels that prism made and proved; the rest is run by "
        "onnxruntime.",
        f"Tuned for {report.device}: {duration(report.best_seconds)} instead of {duration(report.baseline_seconds)} "
        f"({report.baseline}), {model_speedup(report)}, measured"
        + (f" at {', '.join(f'{n}={v}' for n, v in report.sizes.items())}." if report.sizes else "."),
        "",
        "## Call it",
        "",
        "It needs numpy, onnxruntime and a C++ compiler; it does not need prism. In this folder:",
        "",
        "```python",
        "from model import load",
        "",
        "model = load()           # threads=1 for one thread",
        "results = model(...)     # the model's inputs, by place or by name: arrays of numpy or tensors of torch",
        "```",
        "",
        f"`{STOCK}` computes the same in onnxruntime alone, without the kernels.",
        "",
        "## Check it",
        "",
        "Where prism is installed, in this folder: `prism verify .`, and for the derivation of an island's kernels",
        "`prism explain` with the island's folder.",
        "",
        "## What runs by kernels, and what does not",
        "",
        *(f"- {line}" for line in island_lines(report.islands)),
        *(f"- {line}" for line in kept_lines(report.kept)),
        "",
        *files_table({name: _purpose(name) for name in files}),
    ]
    return "\n".join(lines)


def island_lines(islands: tuple[IslandReport, ...]) -> list[str]:
    """A line an island."""
    found = []
    for i in islands:
        ops = ", ".join(f"{op} x {n}" if n > 1 else op for op, n in i.operators.items())
        if len(i.operators) > _SHOWN:
            ops = ", ".join(list(i.operators)[:_SHOWN]) + f" and {len(i.operators) - _SHOWN} other operators"
        said = f"kernels of {i.same_as}" if i.same_as else f"kernels in {i.folder}" if i.folder else "may be optimised"
        if i.why:
            said = f"stays as it is: {i.why}"
        found.append(f"{i.name} ({i.nodes} node{'s' * (i.nodes != 1)}: {ops}): {said}")
    return found


def kept_lines(kept: tuple[KeptReport, ...]) -> list[str]:
    """A line for nodes that stay for the same reason."""
    return [f"{k.operator}, {k.nodes} node{'s' * (k.nodes != 1)} ({k.example}): stays as it is: {k.why}" for k in kept]


def print_model(report: ModelReport, console: Console) -> None:
    """Print the summary of a run."""
    console.print(Text.assemble((report.name, "bold"), f" for {report.target} ({report.device}), in parts"))
    console.print(stages_table(report.stages))
    table = plain_table(
        *("island", "nodes", "by kernels", "in onnxruntime", "what"), right=("nodes", "by kernels", "in onnxruntime")
    )
    for i in report.islands:
        what = i.why or (f"as {i.same_as}" if i.same_as else f"{i.verdict}, {i.rung}")
        times = ("-", "-") if i.why else (duration(i.best_seconds), duration(i.baseline_seconds))
        table.add_row(Text(i.name), str(i.nodes), *times, Text(what))
    console.print(Group(table, *contenders(report.measurement), facts(_outcome(report))))


def _outcome(report: ModelReport) -> Iterator[tuple[str, str]]:
    before = f"{duration(report.baseline_seconds)} ({report.baseline})"
    yield "time (measured)", f"{before} → {duration(report.best_seconds)}, {model_speedup(report)}"
    yield from measured(report.measurement)
    yield "by kernels", share_line(report)
    for stays in kept_lines(report.kept):
        yield "stays", stays
    if report.sizes:
        yield "at shapes", ", ".join(f"{n}={v}" for n, v in report.sizes.items())
    yield "check", report.check
    if report.output:
        yield "written to", report.output


def next_lines(report: ModelReport) -> tuple[tuple[str, str], ...]:
    """What to type after a run: by purpose, one line for a shell in the current folder."""
    return lines_to_type(report.output, "from model import load; model = load(); help(model)", README_NAME, None)


def _purpose(name: str) -> str:
    if name in _PURPOSES:
        return _PURPOSES[name]
    if name.endswith(".onnx"):
        return "operators that stay as they are, between islands"
    return "weights of an island that shares another's kernels" if name.endswith(".pt") else "an island's kernels"
