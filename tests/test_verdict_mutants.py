"""Verdicts on functions that users write and twins of theirs, rewritten or with a mistake (verdict_mutants.py)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import verdict_mutants
from test_verdict_pairs import by_forms
from verdict_mutants import PROGRAMS, Pair, judge, pair, wrong
from verdict_pairs import asked

from prism.egraph.worker import Worker
from prism.program.verdict import Status, Verdict

PROVED = Verdict(Status.PROVED, "one normal form")


def test_pairs_are_not_proved_wrongly_by_normal_forms() -> None:
    proved = 0
    for p, both in verdict_mutants.gathered(range(66, 76)):
        verdict = by_forms(both)
        proved += bool(verdict)
        told = wrong(p, verdict, 30)
        assert not told, f"{p}\n{told}"
    assert proved > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8_000, 10_000, 200))
def test_thousands_of_verdicts_are_what_torch_says(seed: int) -> None:
    with Worker() as worker:
        for p, both in verdict_mutants.gathered(range(seed, seed + 200)):
            verdict = asked(both, worker)
            told = wrong(p, verdict)
            assert not told, f"{p}\n{verdict}\n{told}"


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ("x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.1)", "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))"),
        ("(x > 0).to(x.dtype)", "(x >= 0).to(x.dtype)"),
        ("torch.where(p, x, -inf).softmax(-1)", "torch.where(p, x, -1.0).softmax(-1)"),
        ("torch.where(p, x, y)", "torch.where(p, y, x)"),
        ("n // 2", "torch.div(n, 2, rounding_mode='trunc')"),
        ("(n + m).to(torch.int8)", "n.to(torch.int8) - m.to(torch.int8)"),
        ("x.amax(-1, keepdim=True)", "x.amax(0, keepdim=True).amax(-1, keepdim=True)"),
        ("x + y", "x + y + 1e-6"),
    ],
)
def test_the_judge_sees_mistakes(reference: str, candidate: str) -> None:
    p = Pair(0, torch.int32, reference, candidate, "by hand")
    assert judge(p).differ is not None
    assert wrong(p, PROVED)


def test_the_judge_excuses_rounding_and_what_is_undefined_in_the_reference() -> None:
    for reference, candidate in (("x", "x / 3 * 3"), ("torch.floor(x)", "torch.floor(x / 3 * 3)"), ("x / y * y", "x")):
        found = judge(Pair(0, torch.int32, reference, candidate, "by hand"))
        assert found.differ is None
        assert found.compared > 5


def test_pairs_are_of_every_kind_and_drawn_alike() -> None:
    drawn = [pair(seed) for seed in range(len(PROGRAMS))]
    assert list(map(str, drawn[:8])) == [str(pair(seed)) for seed in range(8)]
    assert {p.how for p in drawn if p is not None} == {"mistake", "rewritten", "both"}


def test_a_comparison_that_rounding_decides_is_no_bug_and_a_wrong_one_is_refuted() -> None:
    same = "(x >= x.amax(-1, keepdim=True) + y - y).to(x.dtype)"
    pairs = [
        Pair(0, torch.int32, f"(x {compared} x.amax(-1, keepdim=True)).to(x.dtype)", same, "by hand")
        for compared in (">=", ">")
    ]
    with Worker() as worker:
        verdicts = [asked(both, worker).status for both in verdict_mutants.matched(pairs).values()]
    assert verdicts == [Status.PROVED, Status.REFUTED]


def test_a_counterexample_is_of_the_inputs_types() -> None:
    p = Pair(0, torch.uint8, "torch.where(p, n // 2 + 3, n)", "torch.where(p, n // 2 + 2, n)", "by hand")
    with Worker() as worker:
        verdict = asked(verdict_mutants.matched([p])[0], worker)
    assert verdict.status is Status.REFUTED
    drawn = [np.asarray(v) for v in verdict.counterexample.values()]
    assert all((v == v.astype(np.uint8)).all() for v in drawn)
    assert not wrong(p, verdict)


def test_what_cancels_is_no_difference(worker: Worker) -> None:
    one, other = "torch.exp(x + y) * torch.exp(-y)", "torch.exp(x + y) * (torch.exp(-y) + y - y)"
    for more, less in (
        ("", ""),
        (" + torch.floor(x)", " - torch.ceil(-x)"),
        (" + torch.floor(x)", " - torch.ceil(-x) + 1e-9"),
    ):
        p = Pair(0, torch.int32, one + more, other + less, "by hand")
        verdict = asked(verdict_mutants.matched([p])[0], worker)
        assert verdict.status is (Status.REFUTED if "e-9" in less else Status.PROVED)
