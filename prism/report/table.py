"""The summary of a run on the terminal."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from rich import box
from rich.console import Console, ConsoleRenderable, Group
from rich.table import Table
from rich.text import Text

from prism.events import MeasurementReport, RunReport
from prism.report.units import (
    CONTENDERS,
    check_line,
    config_text,
    contender_rows,
    duration,
    evidence_note,
    funnel_rows,
    kernel_rows,
    load_line,
    measured_line,
    number,
    prepared_note,
    times_line,
)

FORMULAS = 12
KERNELS = 24
"""How many a terminal shows; of models of a thousand, the report has the others."""


def summary(report: RunReport) -> ConsoleRenderable:
    """Stages, funnel, kernels, baseline against best, proof and check, as one rich renderable."""
    parts: list[ConsoleRenderable] = [_heading(report), _stages_and_funnel(report), _kernels(report)]
    parts += [*contenders(report.measurement), facts(_outcome(report))]
    parts += [Text(f"warning: {w}", style="yellow") for w in report.warnings]
    return Group(*parts)


def print_summary(report: RunReport, console: Console) -> None:
    """Print the summary."""
    console.print(summary(report))


def _heading(report: RunReport) -> ConsoleRenderable:
    lines = [Text.assemble((report.name, "bold"), f" for {report.target} ({report.device})")]
    lines += [Text(f"  {output} = {formula}") for output, formula in list(report.formulas.items())[:FORMULAS]]
    return Group(*lines, *_more(len(report.formulas) - FORMULAS, "formulas", report))


def _more(left: int, what: str, report: RunReport) -> list[Text]:
    """What is not shown, and where it is."""
    where = f": {report.output}/report.html has all" if report.output else ""
    return [Text(f"  and {number(left)} more {what}{where}")] if left > 0 else []


def plain_table(*columns: str, right: Container[str] | None = None) -> Table:
    """A table with these columns to the right; without a word all but the first."""
    right = columns[1:] if right is None else right
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def facts(said: Iterable[tuple[str, str]]) -> Table:
    """What is said, by name, one a line."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, value in said:
        rows.add_row(name, Text(value))
    return rows


def stages_table(stages: Mapping[str, float]) -> Table:
    """How long each took."""
    table = plain_table("stage", "time")
    for name, seconds in stages.items():
        table.add_row(Text(name), duration(seconds))
    return table


def _stages_and_funnel(report: RunReport) -> ConsoleRenderable:
    stages = stages_table(report.stages)
    stages.add_row(Text("total", style="bold"), duration(sum(report.stages.values())))
    funnel = plain_table("sGraphs", "count")
    for name, count in funnel_rows(report):
        funnel.add_row(Text(name), number(count))
    side_by_side = Table.grid(padding=(0, 4))
    side_by_side.add_row(stages, funnel)
    return side_by_side


def _kernels(report: RunReport) -> ConsoleRenderable:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("kernel", "axes", "config"):
        table.add_column(column, overflow="fold")
    for column in (report.memory, "regs", "spills", f"time\n({report.evidence})"):
        table.add_column(column, justify="right", no_wrap=True)  # the word must stand in full on any terminal
    table.add_column("bound by")
    for row in kernel_rows(report)[:KERNELS]:
        table.add_row(*map(Text, row))
    return Group(table, *_more(len(report.kernels) - KERNELS, "kernels", report))


def contenders(measurement: MeasurementReport | None) -> list[ConsoleRenderable]:
    """What was timed against what; nothing where times are estimated."""
    if measurement is None:
        return []
    table = plain_table(*CONTENDERS)
    for name, *numbers in contender_rows(measurement):
        table.add_row(Text(name), *numbers)
    return [table]


def measured(measurement: MeasurementReport | None) -> Iterator[tuple[str, str]]:
    """How times were measured, and on how busy a machine."""
    if measurement is not None:
        yield "measured", measured_line(measurement)
        if load_line(measurement):
            yield "load", load_line(measurement)


def _outcome(report: RunReport) -> Iterator[tuple[str, str]]:
    yield f"time ({report.evidence})", times_line(report)
    yield from measured(report.measurement)
    if report.measurement is not None:
        for name, why in report.measurement.missing.items():
            yield "not timed", f"{name}: {why}"
    yield "kernels", f"{report.operator_count} → {report.kernel_count}"
    if note := prepared_note(report):
        yield "weights", note
    if report.shapes:
        yield "at shapes", config_text(report.shapes)
    if report.rung:
        yield "certificate", report.rung
    yield "proof", f"{report.verdict}: {report.reason}" if report.reason else report.verdict
    if report.identity:
        yield "second opinion", report.identity
    yield "check", check_line(report)
    yield "search", f"{number(report.enodes)} e-nodes, peak memory {report.peak_mb:.0f} MiB, seed {report.seed}"
    yield "evidence", evidence_note(report)
    if report.output:
        yield "written to", report.output
