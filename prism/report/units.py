"""Numbers as people read them: durations, bytes, counts, ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping

from prism.events import Evidence, MeasurementReport, RunReport

DISAGREE = 1.2
"""Measurements disagree whose gains are further apart than this, as a ratio."""
NARROW = 1.1
"""A gain is one number while the range that it lies in is no wider than this, as a ratio."""
OURS = "prism"
"""The name of what was emitted, among contenders."""


def duration(seconds: float) -> str:
    """Three significant digits in the unit that fits: `1.25 ms`, `840 ns`; `-` for what is not a number."""
    if not math.isfinite(seconds):
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= 0.9995 * scale:
            return f"{_digits(seconds / scale)} {unit}"
    return f"{_digits(seconds / 1e-9)} ns"


def _digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def size(count: int) -> str:
    """Bytes: `0 B`, `48 KiB`, `1.5 MiB`."""
    for scale, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= scale:
            return f"{count / scale:.1f}".removesuffix(".0") + f" {unit}"
    return f"{count} B"


def number(count: int) -> str:
    """A count with separators: `8,452`."""
    return f"{count:,}"


def speedup(report: RunReport) -> str:
    """The gain in words: `1.85x as fast`, a range where it is not known better, or that there is none."""
    m = report.measurement
    if m is None:
        return "no faster" if report.best_seconds >= report.baseline_seconds else f"{report.speedup:.2f}x as fast"
    low, high = gain_range(m)
    span = f"{low:.2f}x to {high:.2f}x"
    if not m.faster:
        return "no faster" if high <= 1.0 else f"no faster: {span} is no more than noise"
    if max(m.gains) > DISAGREE * min(m.gains):
        return f"{span} as fast: measurements disagree"
    return f"{span} as fast" if high > NARROW * low else f"{report.speedup:.2f}x as fast"


def gain_range(m: MeasurementReport) -> tuple[float, float]:
    """What the gain lies between."""
    return m.between if m.between is not None else (min(m.gains), max(m.gains))


def on_threads(name: str, threads: int) -> str:
    """A contender's name with its threads: `torch eager on 1 thread`."""
    return name if not threads else f"{name} on {threads} thread{'s' * (threads != 1)}"


def chosen_threads(m: MeasurementReport) -> int:
    """The threads that what was emitted took least time on; 0 where those are all, which it takes by itself."""
    ours = [c.threads for c in m.contenders if c.name == OURS]
    chosen = next((c.threads for c in m.contenders if c.chosen and c.name == OURS), 0)
    return chosen if chosen < max((m.threads, *ours)) else 0


def times_line(report: RunReport) -> str:
    """Baseline and best, each by name, and the gain."""
    contenders = report.measurement.contenders if report.measurement is not None else ()
    ours = next((on_threads("", c.threads) for c in contenders if c.chosen and c.name == OURS), "")
    before, after = duration(report.baseline_seconds), duration(report.best_seconds)
    return f"{before} {report.baseline} → {after}{ours}, {speedup(report)}"


def kernel_rows(report: RunReport) -> list[tuple[str, ...]]:
    """Name, axes, configuration, memory, registers, spills, time and limiter of each kernel."""
    return [
        (
            k.name,
            k.roles,
            k.config,
            size(k.shared),
            str(k.registers) if k.registers else "-",
            size(k.spills),
            "once" if k.once else duration(k.seconds),
            k.limiter or "-",
        )
        for k in report.kernels
    ]


CONTENDERS = ("timed against each other", "lower quartile", "median", "upper quartile", "samples")
"""What `contender_rows` are."""


def contender_rows(m: MeasurementReport) -> list[tuple[str, str, str, str, str]]:
    """Name, lower quartile, median, upper quartile and samples of each contender, fastest first; `*` is chosen."""
    return [
        (
            on_threads(c.name, c.threads) + (" *" if c.chosen else ""),
            duration(c.lower),
            duration(c.median),
            duration(c.upper),
            str(c.samples),
        )
        for c in sorted(m.contenders, key=lambda c: (c.lower, c.name, c.threads))
    ]


def measured_line(m: MeasurementReport) -> str:
    """When, how often and with what result it was measured."""
    when = f"stored, of {m.date} (--anew measures again)" if m.stored else f"timed anew, {m.date}"
    gains = ", ".join(f"{g:.2f}x" for g in m.gains)
    times = f"{len(m.gains)} time{'s' * (len(m.gains) != 1)}"
    low, high = gain_range(m)
    return (
        f"{when}; {times}, by lower quartiles of interleaved rounds: {gains}; "
        f"with what these vary by, {low:.2f}x to {high:.2f}x"
    )


def load_line(m: MeasurementReport) -> str:
    """How busy others kept the machine meanwhile, and keep it now; empty where that is not known."""
    parts = []
    if m.others is not None:
        parts.append(f"other processes kept {m.others:.1f} of {m.cores} core{'s' * (m.cores != 1)} busy")
    if m.load_average is not None:
        parts.append(f"load average {m.load_average:.1f}")
    if m.others_now is not None:
        parts.append(f"{m.others_now:.1f} now")
    return ", ".join(parts)


def evidence_note(report: RunReport) -> str:
    """One sentence on what the times rest on."""
    if report.evidence is Evidence.MEASURED:
        how = f", kernels in {report.backend} compiled by {report.compiler}" if report.compiler else ""
        return f"Times are measured on {report.device}{how}."
    return (
        f"Times are estimated for {report.target} ({report.device}) by a roofline-and-occupancy model "
        "from the compiler's own resource counts; nothing ran on that device."
    )


def prepared_note(report: RunReport) -> str:
    """One sentence on what is computed before any call; nothing where nothing is."""
    count = sum(k.once for k in report.kernels)
    if not count:
        return ""
    many = "One more hangs" if count == 1 else f"{count} more hang"
    runs = "runs once and keeps" if count == 1 else "run once and keep"
    return f"{many} on the weights alone, {runs} {size(report.prepared_bytes)} beside them."


def config_text(values: Mapping[str, int]) -> str:
    """A configuration in one line: `T_m=64 T_k=32`."""
    return " ".join(f"{k}={v}" for k, v in values.items())


def funnel_rows(report: RunReport) -> list[tuple[str, int]]:
    """The funnel, station by station, with the last named by the report's evidence; empty refusals are left out."""
    f = report.funnel
    rows = [("generated", f.generated)]
    rows += [(f"pruned: {name}", n) for name, n in f.pruned.items()]
    rows.append(("proved", f.proved))
    rows += [(name, n) for name, n in (("refuted", f.refuted), ("unknown", f.unknown)) if n]
    rows.append((report.evidence.value, f.timed_or_estimated))
    return rows


def check_line(report: RunReport) -> str:
    """The numeric check in one line."""
    c = report.check
    worst = max(c.worst.values(), default=0.0)
    return f"{c.cases} cases against the float64 oracle in {c.runner}, worst error {worst:.2g} of what is allowed"


def files_table(purposes: Mapping[str, str]) -> list[str]:
    """The last section of a folder's page, in Markdown: what each of its files is."""
    rows = [f"| `{name}` | {purpose} |" for name, purpose in purposes.items()]
    return ["## What is here", "", "| file | what it is |", "|---|---|", *rows, ""]
