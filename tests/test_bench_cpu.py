"""The CPU benchmark: its cases, what it makes of samples, and a child that times for real."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import cpu, cpu_child
from benchmarks.cpu_cases import CASES, Case
from benchmarks.cpu_report import figures, geometric_mean, plot, quartiles, summary, table, together
from prism.cost.device import multicore
from prism.errors import NoImprovementError
from prism.instantiate.rounds import LONGER
from prism.platforms.contenders import tensors_of
from prism.platforms.cpu import CpuPlatform

TARGET = CpuPlatform(multicore("A CPU, 2 cores", 2, 32, 1 << 15, 1 << 19, 1 << 23), "g++ (GCC) 12")
MIB = 1 << 20


def answer(kernel: float | None, error: float = 1e-7, **baselines: float) -> dict[str, Any]:
    """What the child says: seconds of each contender, three samples each."""
    found: dict[str, Any] = {
        "copy": {"seconds": [100e-6] * 3},
        "copy beyond the caches": {"seconds": [20e-3] * 3},
        "float32 product": {"seconds": [10e-3] * 3},
    }
    for name, seconds in baselines.items():
        found[name.replace("_", " ")] = {"seconds": [seconds, seconds, 1.1 * seconds], "rms_error": 1e-7}
    if kernel is not None:
        found["prism"] = {"seconds": [kernel, kernel, 1.1 * kernel], "rms_error": error}
    return found


def row(name: str, found: Mapping[str, Any], flops: float = 0.0) -> dict[str, Any]:
    made = {"name": name, "shapes": {"x": [2, 2]}, "dtype": "float32", "sgraph": "s", "config": {"T": 4}}
    return made | figures(found, flops, 4 * MIB, "float32")


def test_a_faster_kernel_is_chosen() -> None:
    r = row("a", answer(110e-6, torch_eager=500e-6, onnxruntime=220e-6))
    assert r["chosen"] == "kernel"
    assert r["best_baseline"] == "onnxruntime"
    assert r["prism_us"] == r["kernel_us"] == pytest.approx(110)
    assert r["speedup"] == pytest.approx(2.0)
    assert r["share_of_floor"] == pytest.approx(100 / 110, abs=1e-3)
    assert r["share_of_copy_bandwidth"] == pytest.approx(4 * MIB / 110e-6 / (512 * MIB / 20e-3), abs=1e-3)
    assert r["bound"] == "memory"
    assert r["copy_gb_s"] == pytest.approx(4 * MIB / 100e-6 / 1e9, rel=0.01)
    assert set(r) >= {"name", "shapes", "dtype", "floor_us", "prism_us", "baselines", "speedup", "sgraph", "config"}


def test_the_baseline_is_a_candidate() -> None:
    r = row("a", answer(900e-6, torch_eager=500e-6))
    assert (r["chosen"], r["speedup"], r["prism_us"]) == ("baseline", 1.0, pytest.approx(500))
    assert r["kernel_us"] == pytest.approx(900)
    assert r["kernel_speedup"] == pytest.approx(5 / 9, abs=1e-3)


def runs(*kernels: float, eager: float = 500e-6, spread: float = 0.0) -> tuple[list[Any], list[Any]]:
    """Rows and answers of several runs, samples spread by so much."""
    given, rng = [], random.Random(0)
    for kernel in kernels:
        found = answer(kernel, torch_eager=eager)
        for name, seconds in (("prism", kernel), ("torch eager", eager)):
            found[name]["seconds"] = [seconds * rng.lognormvariate(0.0, spread) for _ in range(24)]
        given.append(found)
    return [row("a", g) for g in given], given


def test_of_several_runs_the_least_gain_counts_and_noise_is_none() -> None:
    r = together(*runs(100e-6, 125e-6))
    assert (r["chosen"], r["kernel_speedup"], r["kernel_us"]) == ("kernel", 4.0, pytest.approx(125))
    assert r["kernel_speedups"] == [5.0, 4.0]
    assert r["kernel_speedup_between"][0] == pytest.approx(4.0)
    assert r["kernel_speedup_between"][1] >= 5.0
    noise = together(*runs(530e-6, 535e-6, spread=0.2))
    assert noise["kernel_speedup_between"][0] < 1.0 < noise["kernel_speedup_between"][1]
    assert (noise["chosen"], noise["speedup"]) == ("baseline", 1.0)
    assert noise["prism_us"] == noise["baselines"]["torch eager"]
    assert noise["share_of_floor"] == pytest.approx(noise["floor_us"] / noise["prism_us"], abs=2e-3)
    said = cpu.line(noise | {"others": 2.5, "crowded": True})
    assert "others kept 2.5 cores busy" in said
    assert f"({noise['kernel_speedup_between'][0]:.2f} to " in said
    quiet = together(*runs(480e-6, 485e-6))
    assert quiet["chosen"] == "kernel"
    none = together([row("a", answer(None, torch_eager=1e-3))] * 2, [answer(None, torch_eager=1e-3)] * 2)
    assert none["kernel_speedup_between"] is None
    assert cpu.line(none)


def test_a_gain_above_three_is_timed_again_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    load = {"cores": 2, "threads": 2, "others": 1.0, "average": 3.0}

    def told(job: cpu.Job, request: Mapping[str, Any], folder: Path, environment: Mapping[str, str]) -> Any:
        asked.append(request["repeats"])
        return {"contenders": runs(100e-6 * len(asked))[1][0], "load": load}

    def refused(*args: Any, **options: Any) -> Any:
        raise NoImprovementError("nothing was searched")

    monkeypatch.setattr(cpu, "timed", told)
    monkeypatch.setattr(cpu, "SETTLE_S", 0.0)
    monkeypatch.setattr("prism.api.optimize", refused)
    job = next(j for j in cpu.jobs() if j.model is None and j.dtype == "float32")
    found = cpu.measure(job, cpu.arguments(["--repeats", "5"]), TARGET)
    assert asked == [5, 5 * LONGER]
    assert found["kernel_speedups"] == [5.0, 2.5]
    assert found["kernel_speedup"] == 2.5
    assert (found["crowded"], found["others"]) == (True, 1.0)


def test_no_kernel_and_a_wrong_kernel_leave_the_baseline() -> None:
    none = row("a", answer(None, torch_eager=500e-6))
    assert (none["chosen"], none["kernel_us"], none["wrong"]) == ("baseline", None, False)
    wrong = row("a", answer(10e-6, error=math.inf, torch_eager=500e-6))
    assert (wrong["chosen"], wrong["speedup"], wrong["wrong"]) == ("baseline", 1.0, True)
    nan = row("a", answer(10e-6, error=math.nan, torch_eager=500e-6))
    assert nan["wrong"]


def test_another_type_may_be_the_best_baseline_of_any() -> None:
    given = answer(200e-6, torch_eager=500e-6)
    given["torch eager (float32)"] = {"seconds": [100e-6] * 3, "rms_error": 1e-7}
    r = row("a", given)
    assert (r["speedup"], r["speedup_any_type"], r["best_baseline"]) == (2.5, 0.5, "torch eager")


def test_the_floor_is_bytes_or_operations() -> None:
    r = row("a", answer(30e-3, torch_eager=31e-3), flops=4 * 1024**3)
    assert r["floor_us"] == pytest.approx(20e3)
    assert r["bound"] == "compute"


def test_what_fits_the_caches_is_not_bound_by_memory() -> None:
    found = answer(200e-6, torch_eager=500e-6)
    found["copy beyond the caches"] = {"seconds": [8e-3] * 3}
    of_bandwidth = round(9 / 200e-6 / (512 / 8e-3), 3)
    for size, bound, share in ((4 * MIB, "cache", 0.5), (9 * MIB, "memory", of_bandwidth)):
        r = figures(found, 0.0, size, "float32", 8 * MIB)
        assert r["bound"] == bound
        s = summary([{"name": "a", "dtype": "float32", **r}])
        assert s[f"{bound}_bound"] == {"cases": 1, "below_0.85_of_copy": [f"a float32: {share}"]}
        assert s["cache_bound" if bound == "memory" else "memory_bound"]["cases"] == 0
    assert figures(found, 4 * 1024**3, 4 * MIB, "float32", 8 * MIB)["bound"] == "compute"


def test_summary_table_and_plot() -> None:
    rows = [
        row("one", answer(100e-6, torch_eager=400e-6)),
        row("two & a half", answer(None, torch_eager=100e-6)),
        row("three", answer(200e-6, torch_eager=100e-6)),
    ]
    s = summary(rows)
    assert s["float32"]["geomean_speedup"] == pytest.approx(4 ** (1 / 3), abs=1e-3)
    assert s["float32"]["geomean_kernel_speedup"] == pytest.approx(math.sqrt(2), abs=1e-3)
    assert s["float32"]["baseline_chosen"] == 2
    assert s["memory_bound"]["below_0.85_of_copy"] == []
    report = {
        "machine": cpu.described(TARGET),
        "date": "2026-01-01",
        "versions": {"torch": "2"},
        "copy_beyond_caches_gb_s": 26.8,
        "summary": s,
        "cases": rows,
    }
    text = table(report)
    assert len([line for line in text.splitlines() if line.startswith("| ")]) == 1 + len(rows)
    assert "g++ (GCC) 12" in text
    drawing = plot(report)
    assert drawing.count("<rect") == len(rows)
    assert "two &amp; a half" in drawing
    assert geometric_mean([]) == 1.0
    assert quartiles([1e-6]) == [1.0, 1.0, 1.0]


def test_results_of_other_cases_are_kept(tmp_path: Path) -> None:
    args = cpu.arguments(["--json", "--trials", "3"])
    first, second, *_ = cpu.jobs()
    before = row(second.name, answer(100e-6, torch_eager=400e-6)) | {"dtype": second.dtype}
    path = cpu.write([before], TARGET, args, tmp_path)
    assert {p.suffix for p in tmp_path.iterdir()} == {".json", ".md", ".svg"}
    assert re.fullmatch(r"cpu-[a-z0-9-]+\.json", path.name)
    rows = [row(first.name, answer(50e-6, torch_eager=400e-6)), before | {"prism_us": 1.0}]
    cpu.write(rows, TARGET, args, tmp_path)
    report = json.loads(path.read_text())
    assert [(r["name"], r["dtype"]) for r in report["cases"]] == [(first.name, "float32"), (second.name, second.dtype)]
    assert report["cases"][1]["prism_us"] == 1.0
    assert report["evidence"] == "measured"
    assert {"schema", "device", "machine", "versions", "summary"} <= report.keys()


def test_results_that_were_timed_in_another_way_are_not_mixed_in(tmp_path: Path) -> None:
    args = cpu.arguments(["--json"])
    first, second, *_ = cpu.jobs()
    path = cpu.write(
        [row(second.name, answer(1e-4, torch_eager=4e-4)) | {"dtype": second.dtype}], TARGET, args, tmp_path
    )
    path.write_text(path.read_text().replace(cpu.SCHEMA, "prism.bench/1"))
    cpu.write([row(first.name, answer(1e-4, torch_eager=4e-4))], TARGET, args, tmp_path)
    assert [r["name"] for r in json.loads(path.read_text())["cases"]] == [first.name]


@pytest.mark.parametrize(
    "arguments", [["no such case"], ["softmax", "nosuch"], ["--list", "nosuch"], ["--dtype", "int8"]]
)
def test_a_name_that_matches_nothing_is_a_mistake(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cpu.main(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert arguments[-1] in err
    assert "--list" in err


def test_the_suite_is_what_was_asked_for() -> None:
    names = [c.name for c in CASES]
    assert len(set(names)) == len(names) >= 11
    assert {c.dtypes for c in CASES} == {("float32", "bfloat16")}
    listed = cpu.jobs()
    assert sum(j.model is not None for j in listed) == len(list((cpu.ROOT / "examples" / "models").glob("*.onnx")))


def small(case: Case) -> list[torch.Tensor]:
    """The case's inputs with every extent cut down, in float64."""
    return [torch.randn([min(n, 8 + n % 7) for n in s], dtype=torch.float64) for s in case.shapes]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_forms_of_a_case_are_the_same_function(case: Case) -> None:
    inputs = small(case)
    first, *others = (tensors_of(fn(*inputs)) for fn in case.forms.values())
    for other in others:
        for a, b in zip(first, other, strict=True):
            torch.testing.assert_close(a, b)
    assert [t.dim() for t in first] == [len(s) for s in case.outputs]


def test_the_child_times_and_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu_child, "DRAM_BYTES", MIB)
    monkeypatch.setattr(cpu_child, "MATMUL", 64)
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    case = Case("tiny", ((4, 64),), {"torch eager": torch.square, "wrong": torch.neg}, 0.0, ((4, 64),))
    monkeypatch.setattr(cpu_child, "CASES", (case,))
    request = {"case": "tiny", "model": "", "dtype": "bfloat16", "module": "", "bytes": 1024, "repeats": 3}
    said = cpu_child.run(request | {"inductor": False, "onnxruntime": False}, tmp_path)
    assert said["load"]["threads"] == torch.get_num_threads()
    found = said["contenders"]
    assert set(found) == {
        *("torch eager", "wrong", "torch eager (float32)", "wrong (float32)"),
        *("copy", "copy beyond the caches", "float32 product"),
    }
    assert all(len(a["seconds"]) >= 3 for a in found.values())
    assert found["torch eager (float32)"]["rms_error"] < found["torch eager"]["rms_error"] < 0.1
    assert found["wrong"]["rms_error"] > 1
    assert cpu_child.error_of([torch.tensor([math.nan])], [torch.ones(1, dtype=torch.float64)]) == math.inf
