"""The report: JSON that comes back as it went, a table and a page that say what the run did and nothing else."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import artifacts, report
from rich.console import Console

from prism.api.records import labelled
from prism.errors import UsageError, some
from prism.events import (
    Count,
    Event,
    Evidence,
    KernelReport,
    LockRecord,
    ProofRecord,
    Recorder,
    RunReport,
    StageFinished,
    StageStarted,
    Warned,
)
from prism.report.html import render_html
from prism.report.records import from_json, recorded_files, to_json
from prism.report.table import print_summary
from prism.report.units import duration, funnel_rows, size, speedup


def table(made: RunReport, width: int = 120) -> str:
    out = StringIO()
    print_summary(made, Console(file=out, width=width))
    return out.getvalue()


def test_what_a_proof_assumes_is_in_the_report_and_in_the_module() -> None:
    clause = "max_j[where(m[i, j], s[i, j], -inf)] > -inf: the mask keeps an element of every row"
    made = replace(report(), reason=f"one e-class, assuming {clause}", assumptions=(clause,))
    assert html.escape(clause) in render_html(made)
    assert clause in table(made, 400)
    assert from_json(to_json(made), RunReport, where="report").assumptions == (clause,)
    module = '"""sample.\n\nThe sGraph that it implements:\n"""\n'
    assert f"For inputs that are finite numbers, assuming\n- {clause}\n" in labelled(module, made)
    assert "assuming" not in labelled(module, report())


class _Balance(HTMLParser):
    """Fails on an element that is not closed in order."""

    void = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("record", [report(), artifacts().proof, artifacts().lock], ids=lambda r: type(r).__name__)
def test_json_round_trip(record: Any) -> None:
    data = to_json(record)
    assert (
        json.loads(data)["schema"]
        == "prism." + type(record).__name__.lower().removesuffix("record").replace("runreport", "report") + "/1"
    )
    assert from_json(data, type(record)) == record
    assert to_json(from_json(data, type(record))) == data


def test_report_json_has_the_speedup() -> None:
    assert json.loads(to_json(report()))["speedup"] == pytest.approx(1.85)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x00\xff", "not a prism.report/1 record"),
        (b"[1]", "not a JSON object"),
        (b'{"schema": "prism.report/99"}', "prism.report/99"),
        (b'{"schema": "prism.report/1", "name": 3}', "damaged"),
    ],
)
def test_json_of_another_kind_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        from_json(data, RunReport, where="report.json")
    assert caught.value.one_line().startswith("report.json: ")


def test_a_lock_names_its_files() -> None:
    data = to_json(artifacts().lock, files={"a.py": "00"})
    assert recorded_files(data) == {"a.py": "00"}
    assert from_json(data, LockRecord) == artifacts().lock
    with pytest.raises(UsageError):
        recorded_files(to_json(artifacts().proof, files={"a.py": "00"}))
    with pytest.raises(UsageError):
        from_json(data, ProofRecord)


@pytest.mark.parametrize("evidence", list(Evidence))
def test_only_the_true_word_for_the_evidence_is_used(evidence: Evidence) -> None:
    other = next(e for e in Evidence if e is not evidence)
    for text in (table(report(evidence)), render_html(report(evidence), artifacts().proof)):
        assert evidence.value in text
        assert other.value not in text


def test_table_says_what_the_run_did() -> None:
    text = table(report())
    for expected in (
        "sum_k[(x[m, k]*w[k, n])]",
        "4,321",
        "pruned: shared memory",
        "4,000",
        "48 KiB",
        "T_m=64 T_k=32 warps=4",
        "memory",
        "37.0 µs operator by operator → 20.0 µs, 1.85x as fast",
        "7 → 2",
        "proved: merged after 5 iterations",
        "12 cases",
        "worst error 0.73",
        "seq=1024",
        "warning: the model has an unused input",
    ):
        assert expected in text


def test_a_table_of_a_thousand_kernels_is_short() -> None:
    """What a terminal does not show is in the report."""
    r = report()
    many = tuple(replace(r.kernels[0], name=f"kernel_{n}") for n in range(1000))
    formulas = {f"y{n}": "x" for n in range(1000)}
    shown = table(replace(r, kernels=many, formulas=formulas, output="out"))
    assert "kernel_23" in shown
    assert "kernel_24" not in shown
    assert "and 976 more kernels: out/report.html has all" in shown
    assert "and 988 more formulas" in shown
    assert table(replace(r, kernels=many[:24])).count("kernel_") == 24


def test_a_message_names_a_few() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some(map(str, range(7))) == "0, 1, 2, 3, 4, 5, 6"
    assert some(map(str, range(1006))) == "0, 1, 2, 3, 4, 5 and 1,000 more"


def test_table_keeps_brackets_that_look_like_markup() -> None:
    text = table(report(formulas={"y": "[red]x[i][/red]"}, warnings=("[bold]w[/x]",)))
    assert "[red]x[i][/red]" in text
    assert "[bold]w[/x]" in text


def test_no_gain_is_not_called_one() -> None:
    assert speedup(report(best_seconds=37e-6)) == "no faster"
    assert speedup(report(best_seconds=38e-6)) == "no faster"


def test_unknown_registers_are_not_shown_as_zero() -> None:
    row = next(line for line in table(report()).splitlines() if line.strip().startswith("k1"))
    assert row.split()[-5:] == ["-", "16", "B", "5.00", "µs"] or "-  16 B" in re.sub(r"\s{2,}", "  ", row)


def test_funnel_ends_with_the_evidence() -> None:
    rows = funnel_rows(report(Evidence.MEASURED))
    assert rows[0] == ("generated", 4321)
    assert rows[-1] == ("measured", 17)
    assert ("unknown", 2) in rows
    assert "refuted" not in dict(rows)


def test_html_is_whole_small_and_needs_no_network() -> None:
    page = render_html(report(), artifacts().proof)
    parser = _Balance()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert len(page) < 60_000
    names = {name for name, _ in parser.attributes}
    assert not names & {"src", "href", "onload", "onclick"}
    assert "<script" not in page
    assert "http:" not in page
    assert "https:" not in page
    assert "url(" not in page
    for expected in ("digraph { a -&gt; b }", "sgraph sample", "linear.egg", "ab" * 32, "pruned: lower bound"):
        assert expected in page


NASTY = "</pre><script>alert('x')</script>&\"<b>"


def test_html_escapes_everything_that_comes_from_a_model() -> None:
    kernel = KernelReport(NASTY, NASTY, NASTY, 1, 1, 1, 1e-6, NASTY)
    made = report(
        name=NASTY,
        formulas={NASTY: NASTY},
        target=NASTY,
        device=NASTY,
        baseline=NASTY,
        kernels=(kernel,),
        stages={NASTY: 1.0},
        sgraph_text=NASTY,
        sgraph_dot=NASTY,
        verdict=NASTY,
        reason=NASTY,
        rules=(NASTY,),
        config={NASTY: 1},
        shapes={NASTY: 1},
        versions={NASTY: NASTY},
        warnings=(NASTY,),
    )
    page = render_html(made, artifacts().proof)
    parser = _Balance()
    parser.feed(page)
    assert "<script" not in page
    assert "alert('" not in page
    assert NASTY not in page
    assert parser.open == []


def test_an_empty_run_still_renders() -> None:
    made = report(stages={}, kernels=(), formulas={}, rules=(), warnings=(), config={}, best_seconds=float("nan"))
    assert "proved" in table(made)
    assert "proved" in render_html(made)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 ns"),
        (8.4e-7, "840 ns"),
        (9.999e-7, "1.00 µs"),
        (1.25e-3, "1.25 ms"),
        (0.99999, "1.00 s"),
        (99.96, "100 s"),
        (float("inf"), "-"),
        (float("nan"), "-"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(min_value=1e-9, max_value=1e4))
def test_duration_is_right_to_three_digits(seconds: float) -> None:
    value, unit = duration(seconds).split()
    scale = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert float(value) * scale == pytest.approx(seconds, rel=6e-3)
    assert unit == "s" or float(value) < 1000


def test_size() -> None:
    assert [size(n) for n in (0, 1023, 49152, 1536, 1 << 20)] == ["0 B", "1023 B", "48 KiB", "1.5 KiB", "1 MiB"]


def test_recorder_times_stages_and_passes_events_on() -> None:
    seen: list[Event] = []
    recorder = Recorder(seen.append)
    with recorder.stage("saturation") as detail:
        recorder.count("e-nodes", 10, 20)
        detail.append("10 e-nodes")
    with recorder.stage("saturation"):
        recorder.warn("slow")
        recorder.warn("slow")
    assert [type(e) for e in seen] == [StageStarted, Count, StageFinished, StageStarted, Warned, StageFinished]
    finished = [e for e in seen if isinstance(e, StageFinished)]
    assert finished[0].detail == "10 e-nodes"
    assert recorder.seconds["saturation"] == pytest.approx(sum(e.seconds for e in finished))
    assert recorder.warnings == ["slow"]


def test_a_stage_that_fails_does_not_finish() -> None:
    seen: list[Event] = []
    recorder = Recorder(seen.append)
    with pytest.raises(ValueError, match="stop"), recorder.stage("proof"):
        raise ValueError("stop")
    assert seen == [StageStarted("proof")]
    assert "proof" in recorder.seconds
