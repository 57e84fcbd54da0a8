"""Hunts for wrong proofs: identities with one mistake in them are never proved, unless they are true all the same.

The prover is asked without the refuter before it, which would hide what it gets wrong. What it proves is evaluated in
float64, and over finite fields, where constants are exact; one that both find equal may be true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from formulas import prove_formulas
from identities_common import EQUAL, LARGE, SMALL, Sizes, formulas
from identities_true import TRUE
from identity_mutants import mutant

from prism.egraph.language import Budget
from prism.egraph.prove.normal_form import Unfit, normal_form
from prism.egraph.prove.refutation import Attempt, refute
from prism.egraph.worker import Worker
from prism.errors import PrismError
from prism.program.constants import readings
from prism.program.identity.testing import Outcome, compare
from prism.program.nodes import Formula
from prism.program.refinement import common_refinement

NAMES = sorted(TRUE)
FEW = Budget(enodes=1000)


def by_forms(a: Formula, b: Formula) -> bool:
    """Whether both have one normal form; milliseconds."""
    read = readings([a.expr], [b.expr])
    if read.unclear:
        return False
    try:
        return all(
            normal_form(x) == normal_form(y) for x, y in zip(*common_refinement(read.left, read.right), strict=True)
        )
    except (Unfit, PrismError):
        return False


def by_everything(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, budget: Budget | None = None
) -> Callable[[Formula, Formula], bool]:
    """Whether the whole prover says so, rules included; a second or more, and twenty within its own budget."""

    def proves(a: Formula, b: Formula) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr("prism.egraph.prove.equality.refute", lambda *_, **__: Attempt(None, 1))
            try:
                return bool(prove_formulas([a], [b], tensors=(), budget=budget, worker=worker))
            except PrismError:
                return False

    return proves


def hunt(seeds: range, sizes: tuple[Sizes, ...], proves: Callable[[Formula, Formula], bool]) -> Counter[bool]:
    """How many mutants were proved, and found equal by the oracles; what they find different is an error."""
    counts: Counter[bool] = Counter()
    for seed in seeds:
        rng = np.random.default_rng([9, seed])
        name, z = NAMES[int(rng.integers(len(NAMES)))], sizes[int(rng.integers(len(sizes)))]
        a, b = formulas(TRUE[name](z))
        wrong = replace(b, expr=mutant(b.expr, rng))
        if wrong.expr == b.expr:
            continue
        proved = proves(a, wrong)
        counts[proved] += 1
        if proved:
            told = different(a, wrong)
            assert not told, f"{name}, seed {seed}, {z}\n{a.expr}\n{wrong.expr}\n{told}"
    return counts


def different(a: Formula, b: Formula) -> str:
    """How the oracles tell two formulas apart; empty where they do not."""
    opinion = compare([a.expr], [b.expr])
    if opinion.outcome is Outcome.DISAGREE:
        return str(opinion)
    found = refute([a], [b], (), {}, seed=77).found
    return found.where if found is not None and found.finite else ""


def test_mutants_are_not_proved_by_normal_forms() -> None:
    counts = hunt(range(24), (SMALL, EQUAL, LARGE), by_forms)
    assert counts[False] > 15


def test_mutants_are_not_proved_by_rules(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = hunt(range(1, 4), (SMALL, EQUAL), by_everything(worker, monkeypatch, FEW))
    assert counts[False] > 1


@pytest.mark.slow
def test_thousands_of_mutants_are_not_proved_by_normal_forms() -> None:
    counts = hunt(range(1000, 5000), (SMALL, EQUAL, LARGE), by_forms)
    assert counts[False] > 2500


@pytest.mark.slow
def test_a_hundred_mutants_are_not_proved_by_rules(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = hunt(range(5000, 5120), (SMALL, EQUAL), by_everything(worker, monkeypatch))
    assert counts[False] > 80


def test_the_oracles_tell_mistakes_apart() -> None:
    """Were they blind, the hunt would find nothing."""
    told = 0
    for seed in range(12):
        rng = np.random.default_rng([5, seed])
        a, b = formulas(TRUE[NAMES[int(rng.integers(len(NAMES)))]](SMALL))
        told += bool(different(a, replace(b, expr=mutant(b.expr, rng))))
    assert told > 7
