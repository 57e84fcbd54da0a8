"""The summary of a run on the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console, ConsoleRenderable, Group
from rich.table import Table
from rich.text import Text

from prism.events import RunReport
from prism.report.units import (
    check_line,
    config_text,
    contender_rows,
    duration,
    evidence_note,
    funnel_rows,
    load_line,
    measured_line,
    number,
    prepared_note,
    size,
    times_line,
)

FORMULAS = 12
KERNELS = 24
"""How many a terminal shows; of models of a thousand, the report has the others."""


def summary(report: RunReport) -> ConsoleRenderable:
    """Stages, funnel, kernels, baseline against best, proof and check, as one rich renderable."""
    parts: list[ConsoleRenderable] = [_heading(report), _stages_and_funnel(report), _kernels(report)]
    parts += [*_contenders(report), _outcome(report)]
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


def _plain_table(*columns: str) -> Table:
    """The first column to the left, the others to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for n, column in enumerate(columns):
        table.add_column(column, justify="right" if n else "left", overflow="fold")
    return table


def _stages_and_funnel(report: RunReport) -> ConsoleRenderable:
    stages = _plain_table("stage", "time")
    for name, seconds in report.stages.items():
        stages.add_row(Text(name), duration(seconds))
    stages.add_row(Text("total", style="bold"), duration(sum(report.stages.values())))
    funnel = _plain_table("sGraphs", "count")
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
    for k in report.kernels[:KERNELS]:
        table.add_row(
            Text(k.name),
            Text(k.roles),
            Text(k.config),
            size(k.shared),
            str(k.registers) if k.registers else "-",
            size(k.spills),
            "once" if k.once else duration(k.seconds),
            Text(k.limiter or "-"),
        )
    return Group(table, *_more(len(report.kernels) - KERNELS, "kernels", report))


def _contenders(report: RunReport) -> list[ConsoleRenderable]:
    """What was timed against what; nothing where times are estimated."""
    if report.measurement is None:
        return []
    table = _plain_table("timed against each other", "lower quartile", "median", "upper quartile", "samples")
    for name, *numbers in contender_rows(report.measurement):
        table.add_row(Text(name), *numbers)
    return [table]


def _outcome(report: RunReport) -> ConsoleRenderable:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")

    def row(name: str, value: str) -> None:
        rows.add_row(name, Text(value))

    row(f"time ({report.evidence})", times_line(report))
    if report.measurement is not None:
        row("measured", measured_line(report.measurement))
        if load_line(report.measurement):
            row("load", load_line(report.measurement))
        for name, why in report.measurement.missing.items():
            row("not timed", f"{name}: {why}")
    row("kernels", f"{report.operator_count} → {report.kernel_count}")
    if note := prepared_note(report):
        row("weights", note)
    if report.shapes:
        row("at shapes", config_text(report.shapes))
    if report.rung:
        row("certificate", report.rung)
    row("proof", f"{report.verdict}: {report.reason}" if report.reason else report.verdict)
    if report.identity:
        row("second opinion", report.identity)
    row("check", check_line(report))
    row("search", f"{number(report.enodes)} e-nodes, peak memory {report.peak_mb:.0f} MiB, seed {report.seed}")
    row("evidence", evidence_note(report))
    if report.output:
        row("written to", report.output)
    return rows
