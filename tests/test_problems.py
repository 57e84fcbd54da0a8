"""benchmarks/problems.py: what prism reads of single operators, fused sequences and nets."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from benchmarks import problems
from benchmarks.problems import Problem, main, result


def named(name: str) -> Problem:
    (found,) = [p for p in problems.problems() if p.name == name]
    return found


def test_there_are_hundreds_of_problems_of_three_levels() -> None:
    found = list(problems.problems())
    counted = Counter(p.level for p in found)
    assert (counted[1] >= 100, counted[2], counted[3]) == (True, 100, 49 + 1)
    assert len({(p.level, p.name) for p in found}) == len(found)


def test_a_net_with_an_operator_that_is_not_read_goes_through_around_it() -> None:
    def picked(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.relu(x).take_along_dim(x.topk(2, -1).indices, -1))

    found = result(Problem(3, "picked", lambda: picked, lambda: [torch.randn(4, 256)]), None)
    assert found.kind == "in parts"
    assert 0 < found.inside == found.operators - 1
    assert "topk" in found.why


def test_what_computes_something_else_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that forgets what it computed when it is called again."""
    called = Counter[str]()

    def counting(x: torch.Tensor) -> torch.Tensor:
        called["times"] += 1
        return torch.sort(x).values + called["times"]

    odd = Problem(1, "odd", lambda: counting, lambda: [torch.randn(4)])
    assert result(odd, None).kind == "failed"


def test_the_table_counts_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--level", "1", "--only", "tall and skinny"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "level 1: 1 problems, 1 whole"
    with pytest.raises(SystemExit):
        main(["--only", "no such thing"])
    assert "no problem's name holds 'no such thing'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("level", ["1", "2", "3"])
def test_every_problem_goes_through(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    failed = main(["--level", level])
    shown = capsys.readouterr().out
    assert not failed, shown
    assert "in parts" not in shown.splitlines()[-1], shown
