"""benchmarks/search.py: its figures add up, its JSON has the agreed keys, and its workloads are what they say."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest
import torch

from benchmarks import search
from benchmarks.search import Row, ablation, growth, main, measure, slope, table
from benchmarks.workloads import TRACED, Workload, workloads
from prism.api import SearchBudget
from prism.generate.pruning import PRUNERS
from prism.program.nodes import Program

KEYS = [
    "name",
    "import_s",
    "saturation_s",
    "generation_s",
    "proof_s",
    "enodes",
    "generated",
    "pruned",
    "proved",
    "unknown",
    "peak_mb",
]


def row(**changes: Any) -> Row:
    given: dict[str, Any] = {
        "name": "w",
        "import_s": 0.1,
        "saturation_s": 0.1,
        "generation_s": 0.2,
        "proof_s": 0.3,
        "enodes": 10,
        "generated": 100,
        "pruned": {"dominated": 4},
        "proved": 5,
        "unknown": 0,
        "peak_mb": 200.0,
        "start_s": 0.5,
        "partition_s": 0.0,
        "total_s": 0.6,
        "first_s": 0.7,
        "operators": 4,
        "kernels": 1,
        "regions": 1,
        "searched": 1,
        "best_s": 1e-6,
        "soonest_s": 0.4,
    }
    return Row(**given | changes)


def test_a_search_is_measured() -> None:
    budget = SearchBudget(max_forms=2, max_sgraphs=4)
    (r,) = measure(Workload("mul_silu"), 1, [budget])
    assert (r.name, r.operators, r.kernels, r.regions, r.searched) == ("mul_silu", 3, 1, 1, 1)
    assert r.proved >= 1
    assert r.generated >= r.proved
    assert r.saturation_s + r.generation_s + r.proof_s <= r.total_s
    assert min(r.import_s, r.start_s, r.saturation_s, r.generation_s, r.proof_s, r.best_s) > 0
    assert 0 < r.soonest_s <= r.total_s
    assert r.peak_mb > 50  # of this whole process, whatever other tests it has run


def test_what_takes_longer_than_it_should_is_named() -> None:
    rows = [row(name="a", start_s=0.1, soonest_s=0.2), row(name="b", start_s=0.5, soonest_s=0.3)]
    assert search.beyond(rows) == (
        "the worker starts: 0.50 s at most; 0.4 s or more: b 0.50\nthe first proof: 0.30 s at most"
    )
    late = search.beyond([*rows, row(name="c", soonest_s=math.nan), row(name="d", soonest_s=0.9)])
    assert "d 0.90" in late
    assert "c nan" in late, "nothing was proved"


def test_json_has_the_agreed_keys_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(search, "apart", lambda w, repeat, budgets: [row(name=w.name)])
    assert main(["--json", "LoRA", "lora"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["name"] for line in lines] == ["LoRA", "lora"]
    for line in lines:
        assert list(line)[: len(KEYS)] == KEYS
        assert line == asdict(row(name=line["name"]))


def test_too_much_memory_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(search, "apart", lambda w, repeat, budgets: [row(peak_mb=1500.0) for _ in budgets])
    assert main(["LoRA"]) == 1
    assert "1500 MiB" in capsys.readouterr().err
    assert main(["--growth", "LoRA"]) == 1


def test_every_pruner_is_switched_off_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[frozenset[str]] = []

    def slower(w: Workload, repeat: int, budgets: Sequence[SearchBudget]) -> list[Row]:
        seen.extend(b.off for b in budgets)
        return [row(total_s=1.2, generated=300) if b.off else row() for b in budgets]

    monkeypatch.setattr(search, "apart", slower)
    text = ablation([Workload("lora")], 1, SearchBudget())
    assert seen == [frozenset(), frozenset(), *(frozenset({name}) for name in PRUNERS)]
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(PRUNERS)
    assert all(line.split()[1:5] == ["1.200", "2.00", "300", "3.00"] for line in lines[2:])


def test_growth_fits_the_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        search,
        "apart",
        lambda w, repeat, budgets: [row(total_s=0.01 * 1.5**b.max_ops, peak_mb=100.0 + b.max_ops) for b in budgets],
    )
    text, peak = growth(Workload("lora"), 1, SearchBudget())
    assert [line.split()[0] for line in text.splitlines()[2:-1]] == [str(n) for n in range(4, 13)]
    assert f"factor of 1.500 an operator (slope of log time {math.log(1.5):+.4f}); at most 112 MiB" in text
    assert peak == 112.0


def test_the_slope_of_noise_is_that_of_least_squares() -> None:
    assert slope([0, 1, 2], [1.0, math.exp(3), math.exp(2)]) == pytest.approx(1.0)


def test_columns_line_up() -> None:
    assert table([["a", "bb"], ["ccc", "d"]]) == "a    bb\nccc   d"


@pytest.mark.parametrize("line", [["nonsense"], ["--repeat", "0"]])
def test_wrong_usage(line: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(line)
    assert stop.value.code == 2


def test_workloads_have_different_names() -> None:
    names = [w.name for w in workloads()]
    assert len(set(names)) == len(names) >= 15


@pytest.mark.parametrize("workload", TRACED, ids=lambda w: w.name)
def test_workloads_compute_what_they_say(workload: Workload) -> None:
    program = workload.program()
    assert isinstance(program, Program)
    assert len(program.inputs) == len(workload.shapes)
    assert program.operator_count > 1
    small = [tuple(min(n, 6) for n in s) for s in workload.shapes]
    torch.manual_seed(0)
    arguments = [torch.randn(s, dtype=torch.float64) for s in small]
    assert workload.fn is not None
    torch.testing.assert_close(workload.fn(*arguments), EXPECTED[workload.name](*arguments), rtol=1e-5, atol=1e-6)


def _rms(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), eps=1e-6)


def _gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(torch.einsum("mk,kn->mn", x, gate)) * torch.einsum("mk,kn->mn", x, up)


def _ngpt(h: torch.Tensor, block: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    normalize = torch.nn.functional.normalize
    return normalize(h + alpha * (normalize(block, dim=-1) - h), dim=-1)


_attend = torch.nn.functional.scaled_dot_product_attention

# The same by torch's own functions.
EXPECTED: dict[str, Any] = {
    "RMSNorm+Linear": lambda x, w: _rms(x) @ w,
    "SwiGLU": _gated,
    "attention": _attend,
    "QK-norm-attention": lambda q, k, v: _attend(_rms(q), _rms(k), v),
    "RMSNorm+gated-Linears": lambda x, gate, up: _gated(_rms(x), gate, up),
    "LoRA": lambda x, w, a, b: x @ (w + a @ b),
    "nGPT-residual": _ngpt,
}
