"""The benchmark that compares what is printed with timing by hand: what it says, and (slow) one case end to end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import by_hand
from benchmarks.by_hand_cases import CASES, EXAMPLES
from examples.common import names


def report(*gains: float, faster: bool = True, between: tuple[float, float] | None = None) -> Mapping[str, Any]:
    span = between or (min(gains), max(gains))
    return {
        "baseline": "torch eager on 1 thread",
        "baseline_seconds": 2e-4,
        "best_seconds": 1e-4,
        "measurement": {"gains": list(gains), "others": 1.0, "between": list(span), "faster": faster},
    }


def hand(**lower: float) -> Mapping[str, Any]:
    samples = {name.replace("_", " "): [s, s, s] for name, s in lower.items()}
    core = {name: s for name, s in samples.items() if name.endswith(" 1")}
    return {"samples": samples, "core": core, "far": 0.0, "missing": {}}


@pytest.mark.parametrize(
    ("printed", "eager", "contradiction"),
    [
        (report(2.0, 2.1), 2e-4, 1.0),
        (report(2.0, 2.1), 1e-4, 2.0),
        (report(2.0, 2.1), 2.6e-4, 1.3),
        (report(1.5), 3e-4, 2.0),
        (report(1.2, 3.0), 2e-4, 1.0),
        (report(1.6, 1.7, between=(1.5, 2.0)), 1.5e-4, 1.0),
        (report(1.0, 1.01, between=(0.9, 1.1), faster=False), 1e-4, 1.0),
        (report(1.0, 1.01, between=(0.9, 1.0), faster=False), 1.5e-4, 1.5),
    ],
)
def test_both_directions_contradict_and_a_range_holds_what_is_in_it(
    printed: Mapping[str, Any], eager: float, contradiction: float
) -> None:
    found = by_hand.compared(printed, hand(prism_1=1e-4, prism_4=9e-4, torch_eager_1=eager, onnxruntime_4=1e-2))
    assert found["contradiction"] == pytest.approx(contradiction)
    assert found["baseline"][2] == "torch eager 1", "the best of all baselines, on any number of threads"
    assert found["by_hand_between"] == pytest.approx((eager / 1e-4, eager / 1e-4))
    said = by_hand.line("a case", found | {"seconds": 30.0})
    assert ("contradicted" in said) == (contradiction > by_hand.WITHIN)
    assert ("no faster" in said) != printed["measurement"]["faster"]


def test_cases_have_names_of_their_own_and_examples_exist() -> None:
    every = [*EXAMPLES, *(c.name for c in CASES)]
    assert len(set(every)) == len(every)
    assert set(EXAMPLES) <= set(names())
    assert {c.dtype for c in CASES} >= {"float32", "bfloat16"}
    for c in CASES[:1]:
        assert isinstance(c.fn(*c.inputs()), torch.Tensor)


def test_a_name_that_matches_nothing_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert by_hand.main(["nothing like it"]) == 2
    assert "no case is called nothing like it" in capsys.readouterr().err


@pytest.mark.slow
def test_a_case_from_end_to_end_with_one_core_busy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That it runs, and not what it finds: machines that test do other things."""
    out = tmp_path / "found.json"
    options = ["--busy", "1", "--seconds", "2", "--cache", str(tmp_path), "--json", str(out), "--option=--trials=1"]
    assert by_hand.main([*options, "softmax, bfloat16"]) == 0
    (found,) = json.loads(out.read_text()).values()
    said = capsys.readouterr().out
    assert "softmax" in said
    assert isinstance(found, str) or found["far"] < 0.1
