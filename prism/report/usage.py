"""What to do with an output folder: the lines to type next, and the folder's README."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from prism.events import Argument, Evidence, RunReport
from prism.report.units import chosen_threads, duration, evidence_note, files_table, prepared_note, speedup

README_NAME = "README.md"
NEEDS = {
    "Triton": "torch and triton, and the GPU that the kernels are for",
    "C++": "numpy or torch, and a C++ compiler",
}
"""What an emitted module needs, by backend."""


def module_of(report: RunReport, module: str) -> tuple[str, str]:
    """The module's name, as it is imported, and the name of its function."""
    return PurePosixPath(module).stem, report.name


def example_call(report: RunReport, module: str) -> tuple[str, ...]:
    """Lines of Python that import the module and call it on random arguments of the right shapes and types."""
    name, function = module_of(report, module)
    place = ', device="cuda"' if report.backend == "Triton" else ""
    # An argument, or the function, may be called as what these lines call: it has another name in them.
    names = {a.name: a.name for a in report.arguments}
    own = {"torch", "print"}
    imported = function if function not in own else f"{function}_"
    for called in (own | {imported}) & names.keys():
        names[called] = next(n for k in range(1, len(names) + 3) if (n := called + "_" * k) not in {*names, imported})
    made = [f"{names[a.name]} = {example(a, place)}" for a in report.arguments]
    fewer = chosen_threads(report.measurement) if report.measurement is not None else 0
    # Without a word of it, all processors are taken; that was timed, too, and took longer.
    given = [*names.values()] + ([f"threads={fewer}"] if fewer else [])
    call = f"{imported}({', '.join(given)})"
    # The result has a name that no argument has.
    taken = {*names.values(), imported}
    result = next(n for n in ("y", "out", "result", *(f"y{i}" for i in range(len(taken) + 1))) if n not in taken)
    known = f"{function} as {imported}" if imported != function else function
    return ("import torch", f"from {name} import {known}", *made, f"{result} = {call}")


def example(a: Argument, place: str) -> str:
    """An expression of torch for one argument."""
    shape = ", ".join(map(str, a.shape)) if a.shape else "()"
    match a.dtype:
        case "bool":
            return f"torch.rand({shape}{place}) < 0.5"
        case "int64" | "int32" | "int16" | "int8" | "uint8":
            size = f"({shape}{',' if len(a.shape) == 1 else ''})" if a.shape else "()"
            low = 0 if a.between is None or a.mask else math.ceil(a.between[0])
            high = 1 if a.between is None or a.mask else max(low, math.floor(a.between[1]))
            return f"torch.randint({low}, {high + 1}, {size}, dtype=torch.{a.dtype}{place})"
        case _ if a.mask:
            return f"(torch.rand({shape}{place}) < 0.5).to(torch.{a.dtype})"
        case _ if a.between is not None:
            first, last = a.between
            return f"{first!r} + {last - first!r}*torch.rand({shape}, dtype=torch.{a.dtype}{place})"
        case _:
            return f"torch.randn({shape}, dtype=torch.{a.dtype}{place})"


def next_lines(report: RunReport, module: str) -> tuple[tuple[str, str], ...]:
    """What to type after a run: by purpose, one line for a shell in the current folder."""
    *before, call = example_call(report, module)
    code = "; ".join((*before, f"print({call.partition(' = ')[2]})"))
    return lines_to_type(report.output, code, "report.html", "")


def lines_to_type(output: str, code: str, read: str, explained: str | None) -> tuple[tuple[str, str], ...]:
    """By purpose, a line for a shell in the current folder: what calls what is in a folder, reads, checks, explains it.

    `code` is Python that calls it, in the folder; `read` is the file that tells of it. What has one derivation is
    `explained`: the name of a folder in it, `""` for itself, or None.
    """
    folder = shown(output)
    lines = {
        "call": f"PYTHONPATH={shlex.quote(folder)} python -c {shlex.quote(code)}",
        "read": str(PurePosixPath(folder) / read),
        "verify": f"prism verify {shlex.quote(folder)}",
    }
    if explained is not None:
        lines["explain"] = f"prism explain {shlex.quote(str(PurePosixPath(folder) / explained))}"
    return tuple(lines.items())


def shown(output: str) -> str:
    """The folder as a user in the current folder would name it."""
    inside = os.path.relpath(output)
    return output if inside.startswith("..") else inside


def readme(report: RunReport, module: str, files: Sequence[str]) -> str:
    """The folder's README: what it is, how it is called, what is in it. Holds no path of the machine."""
    needs = NEEDS.get(report.backend, "torch")
    word = "measured" if report.evidence is Evidence.MEASURED else "estimated"
    lines = [
        f"# {report.name}",
        "",
        f"Kernels in {report.backend} for {report.target} ({report.device}), made and proved by prism.",
        f"{_many(report.operator_count, 'operator')} became {_many(report.kernel_count, 'launch', 'launches')}: "
        f"{duration(report.best_seconds)} instead of {duration(report.baseline_seconds)} ({report.baseline}), "
        f"{speedup(report)}, {word}. {evidence_note(report)}",
        *filter(None, [prepared_note(report)]),
        "",
        "## Call it",
        "",
        f"The module needs {needs}; it does not need prism. In this folder:",
        "",
        "```python",
        *example_call(report, module),
        "```",
        "",
        "`torch_op()` of the module makes it an operator of torch, one node to `torch.compile` and `torch.export`.",
        "",
        "## Check it",
        "",
        "Where prism is installed, in this folder:",
        "",
        "```sh",
        "prism verify .     # certificates, hashes and versions, checked again",
        "prism explain .    # the derivation from the model to its kernels, as mathematics",
        "```",
        "",
        *files_table({name: _purpose(name, module) for name in sorted(files)}),
    ]
    return "\n".join(lines)


def _many(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


_PURPOSES = {
    "weights.pt": "the model's weights, which the module reads",
    "proof.json": "how the choice was proved",
    "derivation.json": "the proof, step by step",
    "replay.json": "the two sides of the proof, to be proved again",
    "prism.lock.json": "what it takes to make the choice again, and the SHA-256 of every file here",
    "report.json": "the run, for programs",
    "report.html": "the run, for people",
    "sgraph.txt": "the chosen sGraph, its tile sizes unbound",
    "sgraph.dot": "the same as a drawing (Graphviz)",
    "sgraph.json": "the same for programs",
    "program.txt": "the model in index notation",
    "direct-call.cpp": "calls of the kernels without Python's interpreter between",
}


def _purpose(name: str, module: str) -> str:
    if name == module:
        return "the module"
    if name in _PURPOSES or not name.endswith(".cpp"):
        return _PURPOSES.get(name, "a file that the module needs")
    if "-" in name:  # no identifier of C++
        return "a matrix product, which launches call"
    return "all launches in order" if Path(name).stem == Path(module).stem else "a launch"
