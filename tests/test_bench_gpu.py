"""The GPU suite: its cases, its harness with made-up timings and in Triton's interpreter, and the fit of the model."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stand_in_gpu
import torch
import triton_modules
from bench_reference import REFERENCES
from compiled_code import OLDEST, stated
from sgraph_small import matmul

import prism
from benchmarks import gpu, model
from benchmarks.gpu_check import structure
from benchmarks.gpu_plot import figure, page
from prism.backends.interleave import interleave
from prism.backends.loading import load_module
from prism.bench import functions
from prism.bench.baselines import int4_packed
from prism.bench.child import compile_ahead, draw, errors, flat, judge
from prism.bench.measure import CHILD, Plan, Run, better, device_environment, smoked
from prism.bench.prepare import describe, from_output, module_facts, own_case, spread, trace_case, write_manifest
from prism.bench.results import (
    ESTIMATED,
    INTERPRETED,
    MEASURED,
    estimated_row,
    geometric_mean,
    markdown,
    measured_row,
    option_speedups,
    quartiles,
    summary,
)
from prism.bench.suite import CASES, INT4_LINEAR, Case, reduced
from prism.cli import main
from prism.cost.device import device
from prism.cost.model import Model
from prism.errors import BackendError, UsageError
from prism.instantiate.rounds import LONGER
from prism.process.child import module_command
from prism.process.worker import EventWorker
from prism.sgraph.config import Config, Resources
from prism.sgraph.record import plain

WORKLOADS = {c.workload.name: c for c in CASES}


# The suite


def test_floors_are_those_of_the_table() -> None:
    stated = [c for c in CASES if c.stated_us is not None]
    assert len(stated) == 30
    for c in stated:
        assert c.stated_us is not None
        if c.note:
            assert c.floor_us < c.stated_us
        else:
            assert c.floor_us == pytest.approx(c.stated_us, rel=0.006, abs=0.07), c.name


def test_names_are_unique_and_published_shapes_are_apart() -> None:
    assert len({c.name for c in CASES}) == len(CASES)
    assert {c.group for c in CASES} == {"suite", "mirage", "prism-paper"}
    assert sum(c.group == "mirage" for c in CASES) == 8
    assert sum(c.group == "prism-paper" for c in CASES) == 15
    launches = [c.name for c in CASES if c.group == "suite" and not c.in_mean]
    assert launches == ["add+RMSNorm M64 h7168", "MLA decode B1 4k", "nGPT residual M64 h4096"]


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_functions_compute_what_they_say(name: str) -> None:
    small = reduced(WORKLOADS[name])
    inputs = draw(describe(small)["inputs"], "cpu")
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    found = [t.numpy() for t in flat(getattr(functions, name)(*wide))]
    expected = flat(REFERENCES[name](*(t.double().numpy() for t in inputs)))
    assert [list(f.shape) for f in found] == [list(a.shape) for a in small.outputs]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-9, atol=1e-9 * float(np.abs(e).max()))
    # In bfloat16, as it is timed: the gate's yardstick is finite, and no result is lost in rounding.
    for t, e in zip(flat(getattr(functions, name)(*inputs)), found, strict=True):
        rms, _ = errors(t, torch.from_numpy(e))
        assert rms < 0.1


def test_a_case_is_traced_at_its_own_extents() -> None:
    program = trace_case(next(c for c in CASES if c.name == "RMSNorm+QKV M64"))
    assert [t.shape for t in program.inputs] == [(64, 4096), (4096,), (6144, 4096)]


# Pure parts


def test_quartiles_and_means() -> None:
    assert quartiles([4.0]) == {"median": 4.0, "lower": 4.0, "upper": 4.0, "samples": 1}
    found = quartiles([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found["lower"], found["median"], found["upper"]) == (2.0, 3.0, 4.0)
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None
    with pytest.raises(ValueError, match="no samples"):
        quartiles([])


def test_spread() -> None:
    points = [Config({"n": n}, {}, {}) for n in range(101)]
    assert [c.symbols["n"] for c in spread(points, 4)] == [25, 50, 75, 100]
    assert spread(points[:1], 4) == []


def test_contenders_take_turns() -> None:
    order: list[str] = []

    def replay(name: str) -> Callable[[], float]:
        def once() -> float:
            order.append(name)
            return float(len(order))

        return once

    samples = interleave([replay("a"), replay("b"), replay("c")], 2)
    assert order == ["a", "b", "c", "b", "c", "a"]
    assert samples == [[1.0, 6.0], [2.0, 4.0], [3.0, 5.0]]
    assert len(interleave([replay("a")], 50, until=-math.inf)[0]) == 5


def test_results_are_judged_by_the_error_of_eager() -> None:
    exact = torch.randn(64, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    eager = exact.to(torch.bfloat16)
    assert judge(eager, exact, eager) <= 1
    assert judge((exact * 1.1).to(torch.bfloat16), exact, eager) > 1
    one_wrong = eager.clone()
    one_wrong[3, 5] += 1
    assert judge(one_wrong, exact, eager) > 1
    poisoned = eager.clone()
    poisoned[0, 0] = float("nan")
    assert judge(poisoned, exact, eager) > 1
    assert judge(eager[:1], exact, eager) > 1


def record(name: str = "GQA decode B8 4k", **changes: Any) -> dict[str, Any]:
    c = next(c for c in CASES if c.name == name)
    configs = [
        {"config": {"n": n}, "key": f"n={n}", "model_us": 40.0, "estimate_us": 40.0 + n, "resources": []}
        for n in range(3)
    ]
    candidate = {"module": "m.py", "sgraph": "sgraph g", "kernels": ["k"], "takes": [0], "configs": configs}
    return {**describe(c), "candidates": [candidate], "best": {"candidate": 0, "config": 0}, **changes}


def timed(us: float, error: float = 0.5) -> dict[str, Any]:
    return {"samples_us": [us * 0.99, us, us * 1.01], "error": error}


def test_a_row_compares_what_was_right() -> None:
    events = {
        "prism 0 0": timed(40.0),
        "prism 0 1": timed(35.0),
        "prism 0 2": timed(1.0, error=9.0),
        "eager": timed(200.0),
        "torch.compile": timed(70.0),
        "SDPA flash": timed(42.0),
        "SDPA efficient": timed(2.0, error=3.0),
    }
    row = measured_row(record(), events, {"trials": [], "failures": []})
    assert row["prism_us"] == 35.0
    assert row["config"] == {"n": 1}
    assert row["baselines"] == {"eager": 200.0, "torch.compile": 70.0, "SDPA flash": 42.0}
    assert (row["speedup"], row["best_baseline"]) == (pytest.approx(1.2), "SDPA flash")
    assert row["speedup_over_compilers"] == pytest.approx(2.0)
    assert row["share_of_floor"] == pytest.approx(31.24 / 35, rel=1e-3)
    assert set(row["wrong"]) == {"prism 0 2", "SDPA efficient"}
    assert row["chosen"] == "prism"
    keys = ("name", "shapes", "dtype", "floor_us", "prism_us", "baselines", "speedup", "share_of_floor", "sgraph")
    assert {*keys, "config"} <= row.keys()


def test_the_baseline_is_a_candidate_and_nothing_right_is_nothing() -> None:
    slower = measured_row(record(), {"prism 0 0": timed(50.0), "eager": timed(25.0)}, {"failures": []})
    assert (slower["speedup"], slower["chosen"]) == (0.5, "eager")
    nothing = measured_row(record(), {"eager": timed(25.0)}, {"failures": []})
    assert nothing["prism_us"] is None
    assert nothing["speedup"] is None


def test_the_summary_leaves_launches_and_estimates_out() -> None:
    def row(name: str, us: float) -> dict[str, Any]:
        events = {"prism 0 0": timed(us), "eager": timed(4 * us), "torch.compile": timed(2 * us)}
        return measured_row(record(name), events, {"failures": []})

    rows = [
        row("GQA decode B8 4k", 32.0),
        row("GQA decode B32 4k", 200.0),
        row("nGPT residual M64 h4096", 3.0),
        row("Mirage LoRA", 3.0),
        estimated_row(record("LoRA M16")),
    ]
    found = summary(rows)
    assert (found["measured"], found["in_mean"]) == (4, 2)
    assert found["left_out_without_torch_compile"] == []
    alone = measured_row(record("LoRA M16"), {"prism 0 0": timed(1.0), "eager": timed(90.0)}, {"failures": []})
    with_it = summary([*rows, alone])
    assert with_it["left_out_without_torch_compile"] == ["LoRA M16"]
    for mean in ("in_mean", "geometric_mean_over_compilers", "geometric_mean_over_best"):
        assert with_it[mean] == found[mean]
    assert found["geometric_mean_over_compilers"] == pytest.approx(2.0)
    assert found["memory_bound_below_0.85"] == ["GQA decode B32 4k"]
    table = markdown(rows)
    assert "launch; not in the mean" in table
    assert ESTIMATED in table
    traces = figure(rows, "t")["data"]
    assert [t["name"] for t in traces] == ["prism", "eager", "torch.compile", "floor"]
    assert "</script><" not in page(rows, "</script><b>").split("<body>")[1].replace("</script>\n", "")


def test_a_structure_does_not_know_its_extents() -> None:
    one = """sgraph a(q[8, 32, 128] bfloat16) -> y[8, 32] bfloat16
  buffer p[S_d128, 8] float32
  kernel k
    grid d8(1) d32(T_d32) | split d128(S_d128, T_d128)
    x1 = q[d8, d32 + 4*d8, d128]
    x2 = g[d128]
    v3 = 0.0078125 * x1"""
    other = """sgraph a(q[2, 4, 1000] bfloat16) -> y[2, 4] bfloat16
  kernel k
    grid d2(1) d4(T_d4) | split d1000(S_d1000, T_d1000)
    x1 = g[d1000]
    x2 = q[d2, 2*d2 + d4, d1000]
    v3 = 0.001 * x2"""
    assert structure(one) == structure(other)
    assert structure(one) != structure(other.replace("split", "loop"))
    assert structure(one) != structure(other.replace("v3 = 0.001 * x2", "v3 = 0.001 + x2"))


# The child and the parent


def scripted(*steps: str) -> EventWorker:
    """A child that answers each request by a line of Python."""
    code = "import sys, time, os\n" + "\n".join(f"sys.stdin.readline(); {s}; sys.stdout.flush()" for s in steps)
    return EventWorker([sys.executable, "-S", "-c", code], {"PATH": ""})


def test_silence_and_death_are_told_apart() -> None:
    event = """print('{"event": "begin"}')"""
    for step, why in (("time.sleep(60)", "hang"), ("os._exit(9)", "status 9"), ("os.abort()", "crash")):
        child = scripted(f"{event}; sys.stdout.flush(); {step}")
        found = list(child.ask({}, 0.3))
        child.close()
        assert [e["event"] for e in found] == ["begin", "lost"]
        assert why in found[-1]["why"]


def test_a_child_serves_several_requests() -> None:
    child = scripted(*["""print('{"event": "done"}')"""] * 2)
    assert [list(child.ask({}, 5)) for _ in range(2)] == [[{"event": "done"}]] * 2
    child.close()


class Scripted(EventWorker):
    """Stands in for the device: answers as a device would that hangs at one trial and crashes at one baseline."""

    def __init__(self, asked: list[Mapping[str, Any]]) -> None:
        super().__init__([], {})
        self.asked = asked

    def ask(self, request: Mapping[str, Any], silence_s: float, until: float | None = None) -> Iterator[dict[str, Any]]:
        self.asked.append(request)
        match request["op"]:
            case "describe":
                yield {"event": "device", "device": {"name": "made up", "target": "sm_90"}, "versions": {}}
            case "trials":
                for m in (0, 1, 2):
                    if [0, m] not in request["skip"]:
                        yield {"event": "begin", "trial": [0, m]}
                        if m == 1:
                            yield {"event": "lost", "why": "hang"}
                            return
                        yield {"event": "trial", "trial": [0, m], "us": 30.0 + m, "error": 0.4}
            case "confirm":
                for name in request["contenders"]:
                    yield {"event": "begin", "contender": name}
                    if name == "SDPA flash":
                        yield {"event": "lost", "why": "crash"}
                        return
                    if name == "SDPA cuDNN":
                        yield {"event": "failed", "contender": name, "why": "no kernel"}
                yield {"event": "begin", "contender": ""}
                for n, name in enumerate(request["contenders"]):
                    if name != "SDPA cuDNN":
                        yield {"event": "timed", "contender": name, **timed(40.0 + n)}
        yield {"event": "done"}


def manifest(folder: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps({"versions": {}, "cases": records}))
    return folder


def test_a_run_goes_on_without_what_hangs_and_can_be_resumed(tmp_path: Path) -> None:
    asked: list[Mapping[str, Any]] = []
    folder = manifest(tmp_path / "f", [record("Mirage LoRA"), record()])
    lines: list[str] = []

    def run(names: Sequence[str] = ()) -> Mapping[str, Any]:
        plan = Plan(compile_ahead_s=0.0, cache=tmp_path)
        return Run(folder, tmp_path / "r.json", plan, lines.append, lambda: Scripted(asked)).run(names)

    run(["GQA"])
    body = json.loads((tmp_path / "r.json").read_text())
    (row,) = body["cases"]
    assert [t["config"] for t in row["trials"]] == [0, 2]
    assert row["evidence"] == MEASURED
    assert (row["prism_us"], row["config"]) == (40.0, {"n": 0})
    assert set(row["baselines"]) == {
        "eager",
        "torch.compile",
        "SDPA efficient",
        "SDPA flash, packed",
        "SDPA cuDNN, packed",
    }
    failed = {f["contender"]: f["why"] for f in row["failures"]}
    assert failed == {"prism [0, 1]": "hang", "SDPA flash": "crash", "SDPA cuDNN": "no kernel"}
    assert [r["name"] for r in run()["cases"]] == ["GQA decode B8 4k", "Mirage LoRA"]
    assert sum(r["op"] == "describe" for r in asked) == 2
    assert any("of the floor" in line for line in lines)


@pytest.mark.parametrize(("again", "speedup"), [(60.0, 1.5), (900.0, 4.0)])
def test_a_gain_above_three_is_timed_again_for_longer_and_the_lesser_counts(
    again: float, speedup: float, tmp_path: Path
) -> None:
    asked: list[Mapping[str, Any]] = []
    baselines = iter((160.0, again))

    class Flattering(Scripted):
        def ask(
            self, request: Mapping[str, Any], silence_s: float, until: float | None = None
        ) -> Iterator[dict[str, Any]]:
            if request["op"] != "confirm":
                yield from super().ask(request, silence_s, until)
                return
            self.asked.append(request)
            us = next(baselines)
            for name in request["contenders"]:
                yield {"event": "timed", "contender": name, **timed(40.0 if name.startswith("prism") else us)}
            yield {"event": "done"}

    folder = manifest(tmp_path / "f", [record()])
    plan = Plan(compile_ahead_s=0.0, cache=tmp_path)
    made: list[Flattering] = []

    def child() -> Flattering:
        made.append(Flattering(asked))
        return made[-1]

    (row,) = Run(folder, tmp_path / "r.json", plan, lambda _: None, child).run()["cases"]
    confirmed = [(r["rounds"], r["seconds"]) for r in asked if r["op"] == "confirm"]
    assert confirmed == [(30, 3.0), (30 * LONGER, 3.0 * LONGER)]
    assert len(made) == 2, "in a process of its own"
    assert row["speedup"] == pytest.approx(speedup)
    assert row["speedups"] == pytest.approx([4.0, again / 40.0])


class Compiling(Scripted):
    """A device for which the configurations of some cases do not compile; at others the child dies."""

    broken: Sequence[str] = ()
    deadly: Sequence[tuple[str, int]] = ()

    def ask(self, request: Mapping[str, Any], silence_s: float, until: float | None = None) -> Iterator[dict[str, Any]]:
        if request["op"] != "compile" or "baseline" in request:
            yield from super().ask(request, silence_s, until)
            return
        self.asked.append(request)
        name = request["case"]["name"]
        for m in range(3):
            trial = [request["candidate"], m]
            if trial in request["skip"]:
                continue
            yield {"event": "begin", "trial": trial}
            if (name, m) in self.deadly:
                yield {"event": "lost", "why": "crash"}
                return
            if name in self.broken:
                yield {"event": "failed", "trial": trial, "why": "TypeError"}
            else:
                yield {"event": "compiled", "trial": trial}
        yield {"event": "done"}


def compiling(folder: Path, broken: Sequence[str] = (), deadly: Sequence[tuple[str, int]] = ()) -> tuple[Any, ...]:
    """(the run over sixteen cases, what is asked, what is said)."""
    asked: list[Mapping[str, Any]] = []
    lines: list[str] = []

    def child() -> Compiling:
        made = Compiling(asked)
        made.broken, made.deadly = broken, deadly
        return made

    names = [c.name for c in CASES][:16]
    manifest(folder / "f", [record(n) for n in names])
    plan = Plan(budget_s=1e6, compilers=3, baseline_compilers=1, cache=folder)
    return Run(folder / "f", folder / "r.json", plan, lines.append, child), asked, lines


def test_a_run_of_which_too_little_compiles_stops_at_once_and_says_why(tmp_path: Path) -> None:
    names = [c.name for c in CASES][:16]
    run, asked, _ = compiling(tmp_path, names)
    with pytest.raises(BackendError, match=r"of 48 configurations, . failed .*TypeError") as found:
        run.run()
    assert "too few configurations compile" in str(found.value)
    own = [r for r in asked if r["op"] == "compile" and "baseline" not in r]
    assert len(own) < 16, "the other modules were not tried"
    assert not any(r["op"] in ("trials", "confirm") for r in asked)
    assert json.loads((tmp_path / "r.json").read_text())["cases"] == []


def test_a_module_that_fails_is_no_success_and_one_that_dies_goes_on(tmp_path: Path) -> None:
    names = [c.name for c in CASES][:16]
    run, asked, lines = compiling(tmp_path, names[:1], [(names[3], 1)])
    body = run.run(names[:16])
    assert body["compiled_ahead"] == {"configurations": 48, "compiled": 44, "failed": {"TypeError": 3, "crash": 1}}
    said = "44 of 48 configurations, 4 failed (3 times: TypeError), 15 of 16 modules, 16 of 16 of torch.compile"
    assert said in lines[0]
    again = [r["skip"] for r in asked if r["op"] == "compile" and r["case"]["name"] == names[3] and "candidate" in r]
    assert again == [[], [[0, 0], [0, 1]]]


def test_a_child_that_cannot_start_is_no_silent_success(tmp_path: Path) -> None:
    class Absent(Scripted):
        def ask(
            self, request: Mapping[str, Any], silence_s: float, until: float | None = None
        ) -> Iterator[dict[str, Any]]:
            if request["op"] == "compile":
                yield {"event": "lost", "why": "No module named torch"}
            else:
                yield from super().ask(request, silence_s, until)

    manifest(tmp_path / "f", [record()])
    run = Run(tmp_path / "f", tmp_path / "r.json", Plan(cache=tmp_path), lambda _: None, lambda: Absent([]))
    with pytest.raises(BackendError, match=r"0 of 3 configurations, 3 failed .*No module named torch"):
        run.run()


def row_of(name: str, *timed_names: str, us: float = 40.0) -> dict[str, Any]:
    return measured_row(record(name), {n: timed(us) for n in timed_names}, {"trials": [], "failures": []})


def test_what_failed_is_tried_again_and_what_was_measured_is_not_lost(tmp_path: Path) -> None:
    whole = ("prism 0 0", "eager", "torch.compile")
    names = ["GQA decode B8 4k", "LoRA M16", "Mirage LoRA", "int8 GEMM M1"]
    rows = [row_of(names[0], *whole), row_of(names[1]), row_of(names[2], "prism 0 0", "eager"), {}]
    device = {"name": "made up"}
    earlier = tmp_path / "earlier.json"
    body = {"schema": "prism.bench.results/1", "device": device, "runs": [{"device": device}], "cases": rows[:3]}
    earlier.write_text(json.dumps(body))
    folder = manifest(tmp_path / "f", [record(n) for n in names])
    plan = Plan(compile_ahead_s=0.0, cache=tmp_path)
    # The folder that comes back is empty at each start.
    results = tmp_path / "out" / "r.json"

    def begun() -> Run:
        return Run(folder, results, plan, lambda _: None, lambda: Scripted([]), earlier=[earlier])

    # What is new comes first; what is whole is left alone.
    assert [c["name"] for c in begun().cases()] == ["int8 GEMM M1", "LoRA M16", "Mirage LoRA"]
    found = {r["name"]: r for r in begun().run()["cases"]}
    assert list(found) == names
    assert found[names[0]] == rows[0]
    assert [found[n]["tries"] for n in names[1:]] == [2, 2, 1]
    assert all("torch.compile" in found[n]["baselines"] for n in names)
    assert found[names[1]]["prism_us"] == 40.0
    assert len(json.loads(results.read_text())["runs"]) == 2
    assert begun().cases() == []


def optional(name: str, *options: Mapping[str, Any]) -> dict[str, Any]:
    """A case with a configuration for each of these options, and one without any."""
    one = record(name)
    for entry, option in zip(one["candidates"][0]["configs"], ({}, *options, {}, {}), strict=False):
        entry["config"] = {"symbols": {}, "warps": {}, "stages": {}, **option}
    return one


def test_smoke_takes_every_option_and_five_cases() -> None:
    cases = [
        optional("logsumexp M4096 V128256"),
        optional("GQA decode B8 4k", {"folded": ["c"]}, {"folded": ["c"], "descriptors": ["k"]}),
        optional("GQA decode B1 4k", {"folded": ["c"]}),
        optional("RMSNorm+QKV M1", {"persistent": {"k": 2}}),
        *(optional(n) for n in ("LoRA M16", "nGPT residual M64 h4096", "int8 GEMM M1", "softmax·V")),
    ]
    found = {c["name"]: places for c, places in smoked(cases)}
    assert found == {
        "GQA decode B8 4k": [[0, 2]],
        "RMSNorm+QKV M1": [[0, 1]],
        "nGPT residual M64 h4096": [[0, 0]],
        "int8 GEMM M1": [[0, 0]],
        "LoRA M16": [[0, 0]],
    }
    assert [c["name"] for c, _ in smoked(cases, ["logsumexp"])] == ["logsumexp M4096 V128256"]


def test_smoke_says_what_is_wrong(tmp_path: Path) -> None:
    class Wrong(Scripted):
        def ask(
            self, request: Mapping[str, Any], silence_s: float, until: float | None = None
        ) -> Iterator[dict[str, Any]]:
            if request["op"] != "smoke":
                yield from super().ask(request, silence_s, until)
                return
            name = request["case"]["name"]
            if name == "int8 GEMM M1":
                yield {"event": "lost", "why": "crash: illegal access"}
                return
            yield {"event": "trial", "trial": [0, 0], "error": 0.5 if name == "LoRA M16" else 40.0}
            yield {"event": "done"}

    folder = manifest(tmp_path / "f", [record(n) for n in ("LoRA M16", "int8 GEMM M1", "GQA decode B1 4k")])
    lines: list[str] = []
    wrong = Run(folder, tmp_path / "r.json", Plan(), lines.append, lambda: Wrong([])).smoke()
    assert wrong == [
        "GQA decode B1 4k: n=0: its error is 40 times what is allowed",
        "int8 GEMM M1: n=0: crash: illegal access",
    ]
    assert "LoRA M16: n=0: right" in lines


def test_options_are_compared_with_what_is_alike_but_for_them() -> None:
    def trial(key: str, us: float, error: float = 0.1) -> dict[str, Any]:
        return {"key": key, "measured_us": us, "error": error}

    rows = [
        {
            "name": "a",
            "evidence": MEASURED,
            "trials": [
                trial("T=1 warps.k=4", 10.0),
                trial("T=1 warps.k=4 persistent.k=2", 8.0),
                trial("T=2 warps.k=4 persistent.k=2", 1.0),
                trial("T=1 warps.k=4 descriptors.k", 20.0),
                trial("T=1 warps.k=4 descriptors.k persistent.k=2", 16.0),
            ],
        },
        {
            "name": "b",
            "evidence": MEASURED,
            "trials": [trial("T=1", 6.0), trial("T=1 descriptors.k", 3.0), trial("T=1 folded.c", 1.0, 9.0)],
        },
        {"name": "c", "evidence": INTERPRETED, "trials": [trial("T=1", 6.0), trial("T=1 descriptors.k", 3.0)]},
    ]
    assert option_speedups(rows) == {"persistent": {"a": 1.25}, "descriptors": {"a": 0.5, "b": 2.0}}


def test_a_row_that_tells_less_replaces_none() -> None:
    old, new = row_of("LoRA M16", "prism 0 0", "eager"), row_of("LoRA M16", "eager", "torch.compile")
    assert better(old, new) is old
    assert better(new, old) is old
    assert better(old, {**old}) is not old


def test_earlier_results_come_back_without_a_device_and_are_not_mixed(tmp_path: Path) -> None:
    class Gone(Scripted):
        def ask(
            self, request: Mapping[str, Any], silence_s: float, until: float | None = None
        ) -> Iterator[dict[str, Any]]:
            yield {"event": "done", "error": "no NVIDIA driver"}

    earlier, results = tmp_path / "e.json", tmp_path / "out" / "r.json"
    body = {"schema": "prism.bench.results/1", "device": {"name": "another"}, "cases": [row_of("LoRA M16", "eager")]}
    earlier.write_text(json.dumps(body))
    folder = manifest(tmp_path / "f", [record()])

    def run(child: type[Scripted]) -> None:
        Run(folder, results, Plan(cache=tmp_path), lambda _: None, lambda: child([]), earlier=[earlier]).run()

    with pytest.raises(BackendError, match="no NVIDIA driver"):
        run(Gone)
    assert [r["name"] for r in json.loads(results.read_text())["cases"]] == ["LoRA M16"]
    with pytest.raises(UsageError, match="they are of another, and this is made up"):
        run(Scripted)
    earlier.write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        run(Scripted)
    assert [r["name"] for r in json.loads(results.read_text())["cases"]] == ["LoRA M16"]


def test_known_configurations_are_not_tried_again_and_losses_come_first(tmp_path: Path) -> None:
    entries = record()["candidates"][0]["configs"]
    trials = [
        {"candidate": 0, "config": m, "key": entries[m]["key"], "measured_us": 9.0 - m, "error": 0.1} for m in (0, 2)
    ]
    stale = {**trials[0], "key": "another", "measured_us": 1.0}
    known = tmp_path / "configs.json"
    row = {**row_of("LoRA M16", "prism 0 0"), "trials": [*trials, stale]}
    known.write_text(json.dumps({"schema": "prism.bench.results/1", "cases": [row]}))
    told = record("LoRA M16", estimate_us=40.0, baseline_estimate_us=70.0)
    new = record("int8 GEMM M1", estimate_us=40.0, baseline_estimate_us=50.0)
    asked: list[Mapping[str, Any]] = []
    plan = Plan(compile_ahead_s=0.0, cache=tmp_path)
    folder = manifest(tmp_path / "f", [told, new])
    run = Run(folder, tmp_path / "r.json", plan, lambda _: None, lambda: Scripted(asked), known=known)
    assert [r["name"] for r in run.run()["cases"]] == ["int8 GEMM M1", "LoRA M16"]
    assert {r["case"]["name"] for r in asked if r["op"] == "trials"} == {"int8 GEMM M1"}
    confirmed = next(r for r in asked if r["op"] == "confirm" and r["case"]["name"] == "LoRA M16")
    assert confirmed["contenders"][:3] == ["prism 0 2", "prism 0 0", "eager"]


def test_the_measuring_side_needs_nothing_that_is_prisms() -> None:
    root = str(Path(gpu.__file__).resolve().parents[1])
    code = f"import sys; sys.path.insert(0, {root!r}); import benchmarks.gpu, prism.bench.measure, prism.bench.child"
    # Without site-packages: what is imported before torch and triton is the standard library's.
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


LAUNCHING = """
class Kernel:
    launchers = []

    def __init__(self, name):
        self.__name__ = name

    def warmup(self, *args, grid, **meta):
        if self.__name__ == "broken":
            raise TypeError("no such thing")
        return None if self.__name__ == "library" else self

    def _init_handles(self):
        Kernel.launchers.append(self.__name__)


def launches(x, y, *, config):
    for name in config["kernels"]:
        yield Kernel(name), (1,), (x, y), {}
"""


def test_compiling_ahead_builds_what_launches_kernels(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(LAUNCHING)
    configs = [{"config": {"kernels": k}} for k in (["one", "two"], ["broken"], ["library"])]
    shape = {"shape": [2, 3], "dtype": "float32"}
    case = {
        "inputs": [shape],
        "outputs": [shape],
        "candidates": [{"module": "m.py", "takes": [0], "configs": [*configs, {"config": {}, "error": "known"}]}],
    }
    asked = {"case": case, "candidate": 0, "folder": str(tmp_path), "device": "cuda", "skip": [[0, 2]]}
    found = [e for e in compile_ahead(asked) if e["event"] != "begin"]
    assert [(e["event"], e["trial"]) for e in found] == [("compiled", [0, 0]), ("failed", [0, 1])]
    assert "no such thing" in found[1]["why"]
    assert load_module(path).Kernel.launchers == ["one", "two"]


def test_no_case_is_begun_when_time_is_up(tmp_path: Path) -> None:
    folder = manifest(tmp_path / "f", [record()])
    plan = Plan(budget_s=5.0, compile_ahead_s=0.0, cache=tmp_path)
    body = Run(folder, tmp_path / "r.json", plan, lambda _: None, lambda: Scripted([])).run()
    assert body["cases"] == []
    assert json.loads((tmp_path / "r.json").read_text())["device"]["name"] == "made up"


def own_record(folder: Path) -> dict[str, Any]:
    """A hand-written kernel as a prepared case: right under one configuration, none under another."""
    right = triton_modules.write(folder / "modules", "norm", triton_modules.rmsnorm())
    config = {"symbols": {"T_d": 64}, "warps": {"rmsnorm_kernel": 4}, "stages": {}}
    broken = {"symbols": {"T_d": 64}, "warps": {}, "stages": {}}
    shape = {"shape": [5, 136], "dtype": "float32", "scale": 1.0, "offset": 0.0}
    entries = [
        {"config": c, "key": f"{n}", "model_us": 1.0, "estimate_us": 1.0 + n} for n, c in enumerate((config, broken))
    ]
    return record(
        function="plain_norm",
        inputs=[{"name": "x", **shape}],
        outputs=[{"name": "y", **shape}],
        baselines=["liger"],
        candidates=[
            {
                "module": f"modules/{right.name}",
                "sgraph": "sgraph norm",
                "kernels": ["rmsnorm_kernel"],
                "takes": [0],
                "configs": entries,
            }
        ],
    )


def by_the_oldest(folder: Path, device: str) -> tuple[dict[str, str], bool]:
    """A child's environment with the oldest Triton, where there is one: a GPU's machine may have it; and whether so."""
    environment = device_environment(folder, device)
    oldest = os.environ.get(OLDEST)
    found = [str(Path(oldest).resolve())] if oldest else []
    environment["PYTHONPATH"] = os.pathsep.join([*found, environment["PYTHONPATH"]])
    return environment, bool(oldest)


def test_the_whole_path_runs_on_a_stand_in_for_a_gpu(tmp_path: Path) -> None:
    """As on a device: streams, graphs that are captured and replayed, copies that rotate, one process for all cases."""
    (tmp_path / "modules").mkdir()
    manifest(tmp_path, [own_record(tmp_path)])
    environment, _ = by_the_oldest(tmp_path, "cuda")
    plan = Plan(device="cuda", compilers=1, confirm_s=0.0, rounds=5, only=("eager", "torch.compile"), cache=tmp_path)
    lines: list[str] = []

    def run(results: str, plan: Plan, known: Path | None = None) -> Run:
        child = lambda: EventWorker(stand_in_gpu.child_command(), environment)  # noqa: E731
        return Run(tmp_path, tmp_path / results, plan, lines.append, child, known=known)

    assert run("smoke.json", plan).smoke() == []
    configs = run("configs.json", replace(plan, baselines=False)).run()
    assert configs["ceilings"].keys() == {"copy_bytes_s", "dot_flops"}
    assert (configs["device"]["name"], configs["device"]["target"]) == ("a stand-in for a GPU", "sm_90")
    ((trial,), (failure,)) = configs["cases"][0]["trials"], configs["cases"][0]["failures"]
    assert (trial["config"], trial["error"] <= 1) == (0, True)
    assert failure["contender"] == "prism [0, 1]"
    body = run("results.json", plan, tmp_path / "configs.json").run()
    (row,) = body["cases"]
    # What was timed is not timed again, and nothing of it was measured on a device.
    assert (row["wrong"], [f["why"] for f in row["failures"]]) == ({}, [])
    assert row["trials"] == configs["cases"][0]["trials"]
    assert (row["evidence"], body["summary"]["measured"]) == (INTERPRETED, 0)
    assert row["prism_us"] > 0
    assert row["error"] <= 1
    assert set(row["baselines"]) == {"eager", "torch.compile"}
    assert "1 of 2 configurations, 1 failed" in lines[1]


def test_a_replay_of_the_stand_in_computes_anew(tmp_path: Path) -> None:
    environment, _ = by_the_oldest(tmp_path, "cuda")
    code = f"""
import sys; sys.path.insert(0, {str(Path(stand_in_gpu.__file__).parent)!r})
import stand_in_gpu; stand_in_gpu.install()
import torch
from prism.backends.triton.replay import GraphReplay, poison
made = [[torch.arange(4.0, device="cuda") + n, torch.empty(4, device="cuda")] for n in range(3)]
def launch(n):
    return [torch.exp(made[n][0]), torch.add(made[n][0], 1, out=made[n][1])]
p = GraphReplay(launch, 3)
p.capture(6)
poison(p.outputs)
assert not p.outputs[0].isfinite().any()
assert p.replay() > 0 and p.calls == 6
assert torch.equal(p.outputs[0], torch.exp(torch.arange(4.0) + 2)), p.outputs
assert torch.equal(p.outputs[1], torch.arange(4.0) + 3), p.outputs
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_whole_path_runs_in_the_interpreter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "modules").mkdir()
    one = own_record(tmp_path)
    manifest(tmp_path, [one])
    plan = Plan(
        device="interpreter", compile_ahead_s=0.0, confirm_s=0.0, rounds=5, only=("eager", "liger"), cache=tmp_path
    )
    environment, oldest = by_the_oldest(tmp_path, "interpreter")

    def child() -> EventWorker:
        return EventWorker(module_command(CHILD), environment)

    said: list[str] = []
    lines: list[str] = []
    assert Run(tmp_path, tmp_path / "smoke.json", plan, said.append, child).smoke() == []
    assert said == ["GQA decode B8 4k: 0: right"]
    body = Run(tmp_path, tmp_path / "results.json", plan, lines.append, child).run()
    (row,) = body["cases"]
    # It says of itself that nothing was measured, and counts for nothing.
    assert row["evidence"] == INTERPRETED
    assert any(INTERPRETED in text for text in lines)
    assert (body["summary"]["measured"], body["summary"]["geometric_mean_over_best"]) == (0, None)
    assert not oldest or body["versions"]["triton"] == stated()
    assert row["prism_us"] > 0
    assert row["error"] <= 1
    assert set(row["baselines"]) == {"eager"}
    assert row["quartiles"]["eager"]["samples"] == 5
    failed = {f["contender"] for f in row["failures"]}
    assert failed == {"prism [0, 1]", "liger"}
    assert gpu.main(["report", str(tmp_path / "results.json")]) == 0
    (printed,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("| GQA decode B8 4k |")]
    assert INTERPRETED in printed
    assert f"{row['prism_us']:.2f}" not in printed
    assert (tmp_path / "results.html").exists()


# The cost model


def synthetic(truth: model.Scales, noise: float = 0.0) -> dict[str, Any]:
    """Results of a device on which the model is right but for its constants."""
    rng = random.Random(5)
    cases = []
    for c in range(8):
        trials = []
        for n in range(12):
            launches = [
                {
                    "memory": rng.uniform(1, 60) if c % 2 else rng.uniform(1, 6),
                    "compute": rng.uniform(1, 6) if c % 2 else rng.uniform(1, 60),
                    "latency": rng.uniform(1, 20),
                    "spill": 0.0,
                    "overlap": rng.uniform(0.3, 0.9),
                }
                for _ in range(1 + c % 3)
            ]
            parts = [model.Launch(**x) for x in launches]
            trials.append(
                {
                    "candidate": 0,
                    "key": f"n={n}",
                    "error": 0.1,
                    "estimate_us": model.Scales().predict(parts),
                    "measured_us": truth.predict(parts) * math.exp(rng.gauss(0, noise)),
                    "times_us": launches,
                }
            )
        trials.append({**trials[0], "key": "wrong", "error": 5.0, "measured_us": 1.0})
        cases.append({"name": f"case {c}", "trials": trials})
    return {"device": {"name": "made up", "target": "sm_90"}, "cases": cases}


def test_rank_correlation() -> None:
    assert model.ranks([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]
    assert model.spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1.0)
    assert model.spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    # By hand: 1 - 6 * sum d^2 / (n (n^2 - 1)) with d = 1, 1, 1, 1, 0.
    assert model.spearman([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(1 - 6 * 4 / 120)
    assert math.isnan(model.spearman([1, 1], [1, 2]))


def test_the_pick_is_judged_by_what_it_takes() -> None:
    found = [model.Point("a", str(n), p, m) for n, (p, m) in enumerate([(1, 3), (2, 2), (3, 4), (4, 5)])]
    j = model.judge(found)
    assert [*j.by_case["a"], j.slowdown, j.worst_slowdown] == pytest.approx([0.8, 1.5, 1.5, 1.5])


def test_the_fit_finds_the_constants_and_helps_on_what_it_has_not_seen() -> None:
    truth = model.Scales(1.4, 2.5, 0.5, 3.0)
    found = model.points(synthetic(truth, noise=0.02))
    assert len(found) == 96
    seen, held = model.split(found)
    assert (len(seen), len(held)) == (64, 32)
    scales = model.fit(seen)
    for field in ("memory", "compute", "latency"):
        assert getattr(scales, field) == pytest.approx(getattr(truth, field), rel=0.15)
    before, after = model.judge(held), model.judge(model.predicted(held, scales))
    assert after.log_error < 0.06 < before.log_error
    assert after.rho > max(before.rho, 0.95)


def test_what_nothing_tells_stays_as_it_was() -> None:
    only_memory = (model.Launch(50.0, 0.0, 0.0, 0.0, 1.0),)
    found = [model.Point("a", str(n), 52.0, 102.0, only_memory) for n in range(6)]
    scales = model.fit(found)
    assert scales.memory == pytest.approx(2.0, rel=0.1)
    assert [scales.compute, scales.latency] == pytest.approx([1.0, 1.0], abs=1e-3)


def test_the_command_writes_constants_that_a_device_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:

    (tmp_path / "r.json").write_text(json.dumps(synthetic(model.Scales(2.0, 1.0, 1.0, 4.0))))
    assert model.main(["fit", str(tmp_path / "r.json"), "--out", str(tmp_path / "m.json")]) == 0
    assert "held out, fitted" in capsys.readouterr().out
    made = json.loads((tmp_path / "m.json").read_text())
    fitted = replace(device(made["target"]), **made["constants"])
    assert fitted.bandwidth_bytes_s == pytest.approx(device("sm_90").bandwidth_bytes_s / 2, rel=0.1)
    (tmp_path / "e.json").write_text(json.dumps({"cases": []}))
    assert model.main(["judge", str(tmp_path / "e.json")]) == 1


def test_what_was_measured_is_estimated_again_by_the_present_model() -> None:
    g = matmul()
    config = Config({"T_m": 16, "T_n": 16, "T_k": 32}, {"matmul": 4}, {"matmul": 3})
    said = [Resources("matmul", 4096, 64, 0, 4)]
    entry = {"config": config.encode(), "key": config.key(), "resources": [asdict(r) for r in said]}
    trial = {"candidate": 0, "key": config.key(), "error": 0.1, "estimate_us": 1.0, "measured_us": 9.0}
    row = {"name": "mine", "target": "sm_90", "trials": [trial]}
    body = json.loads(
        json.dumps({"cases": [{**row, "candidates": [{"record": json.dumps(plain(g)), "configs": [entry]}]}]})
    )
    (found,) = model.again(body)
    assert (found.case, found.measured) == ("mine", 9.0)
    assert found.predicted == 1e6 * Model(g, device("sm_90"), {}).seconds(config, said)
    # Earlier results, and kernels of an output folder, hold no sGraphs.
    assert not model.again({"cases": [row]})


def test_the_model_is_as_good_as_it_was_at_what_an_h100_measured() -> None:
    body = json.loads((gpu.RESULTS / "nvidia-h100-collection.json").read_text("utf-8"))
    judged = model.judge(model.again(body))
    assert (judged.cases, judged.points) == (21, 126)
    assert judged.rho > 0.5
    assert judged.slowdown < 1.12


# The command


def test_without_a_gpu_the_command_prints_estimates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prism.backends.triton.device.describe_gpu", lambda: None)
    assert main(["bench", "--case", "nGPT", "--out", str(tmp_path / "b"), "--trials", "2", "--json"]) == 0
    out = capsys.readouterr().out
    body = json.loads(out)
    (row,) = body["cases"]
    assert row["evidence"] == body["evidence"] == ESTIMATED
    assert row["prism_us"] is None
    assert row["estimate_us"] > row["floor_us"]
    assert row["resources"]["sm_90"][0]["registers"] > 0
    assert main(["bench", "--kernels", "x"]) == 2
    assert main(["bench", "--case", "no such case", "--out", str(tmp_path / "b")]) == 2


def test_a_case_of_ones_own_counts_bytes_of_any_type() -> None:
    given = torch.zeros(4, dtype=torch.int64), torch.ones(8, dtype=torch.bool), torch.rand(9, 8)
    rows = prism.trace(lambda i, kept, w: torch.where(kept, w[i], 0.0), given)
    assert own_case(rows).bytes == 4 * 8 + 8 + 9 * 8 * 4 + 4 * 8 * 4


def test_kernels_of_an_output_folder_become_a_case(tmp_path: Path) -> None:
    one: Case = next(c for c in CASES if c.name == "nGPT residual M64 h4096")
    program = trace_case(one)
    assert own_case(program).bytes == one.bytes
    source = (
        'CONFIGS = {"sm_90": [{"symbols": {"T": 1}, "warps": {"k": 4}, "stages": {"k": 1}}]}\n'
        "def launches(block, h, alpha, y, *, config):\n    yield\n"
    )
    assert module_facts(source)[1] == ["block", "h", "alpha", "y"]
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="no Triton module"):
        from_output({}, program, tmp_path / "out", tmp_path)
    (tmp_path / "out" / "m.py").write_text(source)
    made = from_output(describe(own_case(program)), program, tmp_path / "out", tmp_path)
    (candidate,) = made["candidates"]
    assert candidate["takes"] == [1, 0, 2]
    assert candidate["configs"][0]["config"] == {"symbols": {"T": 1}, "warps": {"k": 4}, "stages": {"k": 1}}
    assert (tmp_path / candidate["module"]).read_text() == source
    (tmp_path / "out" / "m.py").write_text(source.replace("block", "other"))
    with pytest.raises(UsageError, match="another model"):
        from_output(describe(own_case(program)), program, tmp_path / "out", tmp_path)


def test_a_manifest_keeps_what_was_checked_before(tmp_path: Path) -> None:
    first, second = ({"name": name, "check": f"{name}, small"} for name in ("a", "b"))
    checks = {c["check"]: {"passed": True} for c in (first, second)}
    write_manifest(tmp_path, [first], {first["check"]: checks[first["check"]], "nobody's": {}})
    write_manifest(tmp_path, [second], {}, {"a": first})
    path = write_manifest(tmp_path, [second], {second["check"]: checks[second["check"]]}, {"a": first, "b": {}})
    body = json.loads(path.read_text("utf-8"))
    assert body["cases"] == [second, first]
    assert body["checks"] == checks


# What is committed


def test_the_committed_estimates_are_complete_and_marked() -> None:
    body = json.loads((gpu.RESULTS / "gpu-suite-estimates.json").read_text())
    assert body["evidence"] == ESTIMATED
    assert [r["name"] for r in body["cases"]] == [c.name for c in CASES]
    for row, c in zip(body["cases"], CASES, strict=True):
        assert row["evidence"] == ESTIMATED
        assert row["prism_us"] is None
        assert row["speedup"] is None
        assert row["floor_us"] == pytest.approx(c.floor_us)
        # What the operators take one by one is a plan, too.
        assert row["estimate_us"] <= row["baseline_estimate_us"], c.name
        # Published shapes are compiled for the device of the estimates alone.
        everywhere = {"sm_80", "sm_90", "sm_100", "gfx942"}
        assert set(row["resources"]) == (everywhere if c.group == "suite" else {"sm_90"})
    text = (Path(gpu.__file__).parent.parent / "docs" / "benchmarks.md").read_text()
    assert markdown(body["cases"]) in text


def test_the_page_shows_what_was_measured() -> None:
    text = (Path(gpu.__file__).parent.parent / "docs" / "benchmarks.md").read_text()
    body = json.loads((gpu.RESULTS / "nvidia-h200.json").read_text())
    rows = body["cases"]
    order = [c.name for c in CASES]
    assert [r["name"] for r in rows] == sorted((r["name"] for r in rows), key=order.index)
    assert {r["evidence"] for r in rows} == {MEASURED}
    assert body["device"]["name"] == "NVIDIA H200"
    assert markdown(rows) in text
    assert summary(rows) == body["summary"]
    for goal in ("best", "compilers"):
        assert f"{body['summary'][f'geometric_mean_over_{goal}']:.2f}" in text


def test_torchs_int4_product_is_given_the_codes_scales_and_offsets_that_it_takes() -> None:
    """By torch's product for CPUs, which takes codes one by one: on a GPU it packs what is asked of it here."""
    (case,) = (c for c in CASES if c.name == "int4 g128 GEMM M1")
    assert case.workload.baselines == ("_weight_int4pack_mm",)
    n, k, g = 64, 256, 128
    sizes = {"m": 16, "k": k, "n": n, "g": g}
    given = draw(describe(Case("c", "suite", INT4_LINEAR, sizes))["inputs"], "cpu")
    x, w, scale, zero = given
    codes, scales = int4_packed(w, scale, zero)
    assert (codes.shape, codes.dtype, scales.shape) == ((n, k // 2), torch.uint8, (k // g, n, 2))
    # A byte's first code is in its upper half.
    whole = torch.stack((codes >> 4, codes & 15), -1).reshape(n, k)
    assert torch.equal(whole, torch.stack((w & 15, w >> 4), -1).reshape(n, k))
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole.to(torch.int32), 2)
    found = torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, g, scales)
    exact = functions.int4_linear(*(t if t.dtype == torch.uint8 else t.double() for t in given))
    # The offset's own rounding is within what is allowed.
    assert judge(found, exact, functions.int4_linear(*given)) < 1
