"""What a command prints on stdout: the summary, the verdict, or their JSON."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from prism.errors import UsageError
from prism.events import ModelReport, RangedReport, RunReport
from prism.report import model_folder, ranged_folder
from prism.report.folder import module_name
from prism.report.records import to_json
from prism.report.table import print_summary
from prism.report.units import number
from prism.report.usage import next_lines

if TYPE_CHECKING:
    from prism.program.verdict import Verdict

_LOG_WIDTH = 120  # columns when stdout is no terminal: a table folded at 80 is hard to read in a log
_SHOWN = 16  # elements of a counterexample's array that are shown in text


def print_report(report: RunReport, *, folder: Path, as_json: bool) -> None:
    """Print the summary of a run, or its JSON."""
    report = replace(report, output=str(folder))
    _print(report, partial(print_summary, report), partial(next_lines, report, module_name(report.name)), as_json)


def print_model_report(report: ModelReport, *, folder: Path, as_json: bool) -> None:
    """Print the summary of a run of a model in parts, or its JSON."""
    report = replace(report, output=str(folder))
    _print(report, partial(model_folder.print_model, report), partial(model_folder.next_lines, report), as_json)


def print_ranged_report(report: RangedReport, *, folder: Path, as_json: bool) -> None:
    """Print the summary of a run over ranges of shapes, or its JSON."""
    report = replace(report, output=str(folder))
    _print(report, partial(ranged_folder.print_ranged, report), partial(ranged_folder.next_lines, report), as_json)


def _print(
    report: RunReport | ModelReport | RangedReport,
    summary: Callable[[Console], None],
    following: Callable[[], Sequence[tuple[str, str]]],
    as_json: bool,
) -> None:
    """Print a report's JSON, or its summary and the lines to type next, each with its purpose."""
    if sys.stdout is None:
        return
    if as_json:
        write_line(to_json(report).decode().rstrip("\n"))
        return
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _LOG_WIDTH, highlight=False, emoji=False)
    _guarded(lambda: summary(console))
    # Lines to copy are not folded, or a terminal would break them.
    write_line("\n".join(["next", *(f"  {purpose:8} {line}" for purpose, line in following())]))


def print_verdict(verdict: Verdict, *, as_json: bool) -> None:
    """Print a verdict, with the inputs that differ when it is `refuted`."""
    if as_json:
        body = {
            "schema": "prism.verdict/1",
            "status": verdict.status.value,
            "reason": verdict.reason,
            "counterexample": {name: _plain(_nested(value)) for name, value in verdict.counterexample.items()},
            "enodes": verdict.enodes,
            "iterations": verdict.iterations,
            "rules": list(verdict.rules),
            "weights": list(verdict.weights),
            "assumptions": list(verdict.assumptions),
        }
        write_line(msgspec.json.format(msgspec.json.encode(body), indent=2).decode())
        return
    lines = [str(verdict)]
    if verdict:
        lines.append("for all inputs that are finite numbers; what overflows or rounds is another matter")
    if verdict.counterexample:
        lines.append("they differ at")
        lines += [f"  {name} = {_short(value)}" for name, value in verdict.counterexample.items()]
    if verdict.enodes:
        named = ", ".join(verdict.rules) or "none"
        lines.append(f"{number(verdict.enodes)} e-nodes, {verdict.iterations} iterations, rules: {named}")
    write_line("\n".join(lines))


def write_line(text: str) -> None:
    """Print on stdout. A reader that has closed the pipe has what it wanted: that is no failure."""
    _guarded(lambda: print(text))


def _guarded(write: Callable[[], None]) -> None:
    if sys.stdout is None:
        return  # it was closed before the command began: nobody wants to read it
    try:
        write()
        sys.stdout.flush()
    except OSError as error:
        # Python flushes stdout once more at exit; give it somewhere to go.
        with suppress(OSError, ValueError):  # no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            why = error.strerror or str(error)
            raise UsageError("the result cannot be printed", where="standard output", why=why) from error


def _nested(value: object) -> Any:
    """An array as nested lists; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _plain(value: Any) -> Any:
    """JSON has no infinities and no NaN: they become text."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _short(value: Any) -> str:
    """An array in one line: all of a small one, the shape and the first elements of a large one."""
    flat: list[Any] = []

    def collect(v: Any) -> None:
        if isinstance(v, list):
            for item in v:
                collect(item)
        else:
            flat.append(v)

    nested = _nested(value)
    collect(nested)
    if len(flat) <= _SHOWN:
        return str(nested)
    head = ", ".join(f"{v:.6g}" for v in flat[:_SHOWN])
    return f"[{head}, ...] shape {tuple(getattr(value, 'shape', (len(flat),)))}"
