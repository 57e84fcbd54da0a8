"""Verdicts on random pairs of torch programs, against what torch itself makes of them (verdict_pairs.py)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import verdict_pairs
from verdict_pairs import Pair, Record, Term, const, judge, pair, run, wrong

from prism.egraph.prove.matching import Matched
from prism.egraph.prove.normal_form import Unfit, normal_form
from prism.egraph.worker import Worker
from prism.program.constants import readings
from prism.program.refinement import common_refinement
from prism.program.verdict import Status, Verdict

ALIKE = Verdict(Status.PROVED, "one normal form")


def by_forms(both: Matched) -> Verdict:
    """Proved where both have one normal form, whatever a refuter would find."""
    read = readings([f.expr for f in both.reference], [f.expr for f in both.candidate])
    try:
        same = all(
            normal_form(a) == normal_form(b) for a, b in zip(*common_refinement(read.left, read.right), strict=True)
        )
    except Unfit:
        same = False
    return ALIKE if same and not read.unclear else Verdict(Status.UNKNOWN)


def hunt(seeds: range) -> int:
    """How many pairs were proved, none of them wrongly."""
    proved = 0
    for p, both in verdict_pairs.gathered(seeds):
        verdict = by_forms(both)
        proved += bool(verdict)
        told = wrong(p, verdict)
        assert not told or "without an assumption" in told, f"{p}\n{told}"
    return proved


def test_pairs_are_not_proved_wrongly_by_normal_forms() -> None:
    assert hunt(range(1000, 1006)) > 0


@pytest.mark.slow
def test_thousands_of_pairs_are_not_proved_wrongly_by_normal_forms() -> None:
    assert sum(hunt(range(start, start + 100)) for start in range(2000, 6000, 100)) > 500


@pytest.mark.slow
def test_hundreds_of_verdicts_are_what_torch_says() -> None:
    with Worker() as worker:
        for start in range(6000, 6400, 100):
            for p, both in verdict_pairs.gathered(range(start, start + 100)):
                verdict = verdict_pairs.asked(both, worker)
                told = wrong(p, verdict)
                assert not told, f"{p}\n{verdict}\n{told}"


X, Y, P = verdict_pairs.X, verdict_pairs.Y, verdict_pairs.P
TOP = Term("amax", (Term("masked", (P, X)),), -1)
SAME = Term("mul", (const(2.0), X))


def made(reference: Term, candidate: Term) -> Pair:
    return Pair(0, torch.int8, reference, candidate, "by hand")


@pytest.mark.parametrize(
    "candidate",
    [
        Term("add", (SAME, Term("sub", (TOP, TOP)))),
        Term("add", (SAME, Term("mul", (const(0.0), TOP)))),
        Term("div", (Term("mul", (SAME, Y)), Y)),
        Term("exp", (Term("log", (SAME,)),)),
        Term("add", (SAME, const(1e-4))),
        Term("to", (Term("to", (SAME,), torch.int64),), torch.float64),
    ],
    ids=str,
)
def test_the_judge_sees_what_is_wrong(candidate: Term) -> None:
    assert judge(made(SAME, candidate)).differ is not None
    assert wrong(made(SAME, candidate), ALIKE)


def test_the_judge_excuses_rounding_and_what_is_undefined_in_the_reference() -> None:
    third = Term("div", (X, const(3.0)))
    assert judge(made(X, Term("mul", (third, const(3.0)))), 40).differ is None
    assert judge(made(Term("floor", (X,)), Term("floor", (Term("mul", (third, const(3.0))),))), 40).differ is None
    undefined = judge(made(Term("div", (X, Y)), Term("nan_to_num", (Term("div", (X, Y)),))), 40)
    assert undefined.differ is None
    assert undefined.at_all is not None


def test_a_refutation_of_what_is_equal_is_found_out() -> None:
    there = {"x": np.ones((3, 4))}
    told = wrong(made(X, Term("neg", (Term("neg", (X,)),))), Verdict(Status.REFUTED, counterexample=there))
    assert told.startswith("refuted")
    assert not wrong(made(X, Term("neg", (X,))), Verdict(Status.REFUTED, counterexample=there))


def test_pairs_are_deterministic_and_of_every_kind() -> None:
    drawn = [pair(seed) for seed in range(40)]
    assert [str(p) for p in drawn] == [str(pair(seed)) for seed in range(40)]
    kinds = {run(p.reference, verdict_pairs.SAMPLE, Record(instead=1)).dtype for p in drawn if p is not None}
    assert {torch.bool, torch.float64} < kinds
    assert {p.how for p in drawn if p is not None} == {"algebra", "damage"}


def test_a_negative_number_is_no_exponential_of_its_logarithm() -> None:
    two = const(-2.0)
    one, other = (Term("where", (Term("lt", (X, Y)), t, X)) for t in (two, Term("exp", (Term("log", (two,)),))))
    (both,) = verdict_pairs.matched([made(one, other)]).values()
    assert not by_forms(both)
