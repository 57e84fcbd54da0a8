"""Counterexamples to rules are shrunk: step by step, then by hypothesis."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism.cli import main
from prism.egraph.rules import Rule, load_rules
from prism.egraph.soundness import shrink
from prism.egraph.soundness.check import check_rule
from prism.errors import ExitCode

# What is wrong with each is hidden from a random draw by something that stepwise shrinking does not lead away from.
WRONG = {
    "(rewrite (Max k (Add a b)) (Add (Max k a) (Max k b))": "a[k] = [0., 1.]; b[k] = [1., 0.]; k < 2",
    "(rewrite (Sqrt (Add (Mul a a) (Mul b b))) (Add a b)": "a = 0.; b = -1.",
    "(rewrite (Sum k (Mul a b)) (Mul (Sum k a) (Sum k b))": "a = 1.; b = 1.",
}


def rule(folder: Path, text: str) -> Rule:
    path = folder / "wrong.egg"
    path.write_text(f';; exact: wrong\n{text} :ruleset expand :name "wrong")\n')
    return load_rules([path]).rules[0]


@pytest.mark.parametrize("text", WRONG)
def test_a_counterexample_is_as_simple_as_can_be(text: str, tmp_path: Path) -> None:
    found = check_rule(rule(tmp_path, text), draws=2000).counterexample
    assert WRONG[text] in found
    assert found == check_rule(rule(tmp_path, text), draws=2000).counterexample


def test_without_hypothesis_it_is_shrunk_greedily_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shrink, "available", lambda: False)
    rule(tmp_path, next(iter(WRONG)))
    assert main(["rules", "check", str(tmp_path / "wrong.egg")]) == ExitCode.VERIFICATION_FAILED
    assert "shrunk greedily: hypothesis is not installed" in capsys.readouterr().out


def test_the_draws_that_were_made_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "right.egg"
    path.write_text(';; exact: a\n(rewrite (Max2 a a) a :ruleset expand :name "right")\n')
    assert main(["rules", "check", str(path), "--draws", "3000"]) == ExitCode.DONE
    assert "(3,000 draws each; 1,500 exact ones where rational)" in capsys.readouterr().out
    assert check_rule(load_rules([path]).rules[0], draws=3000).agreed > 1500
