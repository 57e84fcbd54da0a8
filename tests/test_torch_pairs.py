"""Verdicts on pairs of torch functions that were written by hand (torch_pairs.py)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import verdict_mutants
from torch_pairs import RIGHT, WRONG, pair
from verdict_mutants import Pair, wrong
from verdict_pairs import asked

from prism.egraph.worker import Worker
from prism.program.verdict import Status


def statuses(lines: Sequence[str], worker: Worker) -> dict[str, Status]:
    """The verdicts, none of which torch contradicts."""
    found: dict[str, Status] = {}
    of: dict[str, list[tuple[str, Pair]]] = {}
    for line in lines:
        of.setdefault(str(pair(line).dtype), []).append((line, pair(line)))
    for group in of.values():
        matched = verdict_mutants.matched([p for _, p in group])
        assert len(matched) == len(group), "the reader refuses one"
        for n, both in matched.items():
            line, p = group[n]
            verdict = asked(both, worker)
            told = wrong(p, verdict)
            assert not told, f"{p}\n{verdict}\n{told}"
            found[line] = verdict.status
    return found


def check_wrong(lines: Sequence[str], worker: Worker) -> None:
    verdicts = statuses(lines, worker)
    assert not [line for line, status in verdicts.items() if status is Status.PROVED]
    assert sum(status is Status.REFUTED for status in verdicts.values()) >= 0.9 * len(lines)


def check_right(lines: Sequence[str], worker: Worker) -> None:
    verdicts = statuses(lines, worker)
    assert not [line for line, status in verdicts.items() if status is Status.REFUTED]
    assert sum(status is Status.PROVED for status in verdicts.values()) >= 0.6 * len(lines)


def test_wrong_ones_are_refuted_and_right_ones_proved(worker: Worker) -> None:
    check_wrong(WRONG[::19], worker)
    check_right(RIGHT[41::25], worker)


@pytest.mark.slow
def test_no_wrong_one_is_proved(worker: Worker) -> None:
    check_wrong(WRONG, worker)


@pytest.mark.slow
def test_no_right_one_is_refuted(worker: Worker) -> None:
    check_right(RIGHT, worker)


@pytest.mark.parametrize(
    "line", ["x.cumsum(-1)[:, -1] ## x.sum(-1)", "x.prod(-1) ## x[:, 0] * x[:, 1] * x[:, 2] * x[:, 3]"]
)
def test_single_elements_are_no_sample_of_their_axis(line: str, worker: Worker) -> None:
    assert statuses([line], worker) == {line: Status.PROVED}
