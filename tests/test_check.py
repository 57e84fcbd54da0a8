"""The numeric gate accepts a right kernel and rejects wrong ones, each wrong in a way that has really been met."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import triton_modules
from short_calls import cost_s

from prism.backends.triton.check_worker import sample_programs
from prism.errors import VerificationError
from prism.instantiate.gate.check import KernelRunner, check_module
from prism.instantiate.gate.draws import DRAWS, draw_inputs
from prism.instantiate.gate.judge import judge
from prism.instantiate.gate.plan import interpretable, plan_bindings, plan_cases, plan_samples
from prism.process.deadline import Deadline, OutOfTimeError
from prism.program import build
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.nodes import Definition, DType, Program, ReduceKind, SymbolRange, Tensor
from prism.sgraph.config import Config
from prism.sgraph.nodes import Accumulate, Grid, Kernel, Load, Loop, LoopRole, SGraph, Store, TileReduce

M = symbol("seq")
D = 100
EPS = 1e-6
T = symbol("T_d")
SUM = ReduceKind.SUM
m, d = Axis("seq", M), Axis("d100", D)


def rmsnorm_program(dtype: DType) -> Program:
    """RMSNorm of [seq, 100]."""
    i, j = Axis("i", M), Axis("j", D)
    k = Axis("k", D)
    square = build.mul(build.read("x", i, k), build.read("x", i, k))
    norm = build.op("sqrt", build.add(build.mean(k, square), build.const(EPS)))
    y = Definition("y", (i, j), build.div(build.read("x", i, j), norm), dtype)
    return Program("rmsnorm", (Tensor("x", (M, D), dtype),), (y,), ("y",), {"seq": SymbolRange(1, 512, 64)})


def rmsnorm_sgraph(dtype: DType) -> SGraph:
    """The roles of the hand-written kernel: a program a row, two loops over d."""
    kernel = Kernel("rmsnorm_kernel", ((m, Grid(1)), (d, LoopRole(T))), (Store("y", (), 0.0),))
    return SGraph("rmsnorm", (Tensor("x", (M, D), dtype),), (), (Tensor("y", (M, D), dtype),), (kernel,))


def config(tile: int = 64) -> Config:
    return Config({"T_d": tile}, {"rmsnorm_kernel": 4}, {"rmsnorm_kernel": 2})


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])
def test_a_right_kernel_passes(runner: KernelRunner, tmp_path: Path, dtype: DType) -> None:
    module = triton_modules.write(tmp_path, "right", triton_modules.rmsnorm())
    report = check_module(rmsnorm_program(dtype), module, rmsnorm_sgraph(dtype), config(), runner=runner)
    assert report.passed, report.failures
    assert set(report.worst) == set(DRAWS)
    assert max(report.worst.values()) <= 1
    summary = report.summary()
    assert summary.runner == "Triton's interpreter"
    assert summary.cases == report.cases


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("dropped last element", triton_modules.rmsnorm(mask="offs < n - 1")),
        ("missing mask", triton_modules.rmsnorm(mask="offs < 1000")),
        ("wrong eps", triton_modules.rmsnorm(eps="1e-5")),
        ("n - 1 for n", triton_modules.rmsnorm().replace("tl.sum(acc, axis=0) / n", "tl.sum(acc, axis=0) / (n - 1)")),
        ("wrong sign", triton_modules.rmsnorm().replace("v * inv", "tl.abs(v) * inv")),
        (
            "last column not stored",
            triton_modules.rmsnorm().replace("v * inv, mask=offs < n", "v * inv, mask=offs < n - 1"),
        ),
        ("last row not stored", triton_modules.rmsnorm().replace("(x.shape[0],)", "(max(x.shape[0] - 1, 1),)")),
        (
            "stores beyond the end",
            triton_modules.rmsnorm().replace("v * inv, mask=offs < n", "v * inv, mask=offs < n + 1"),
        ),
    ],
)
def test_a_wrong_kernel_is_rejected(runner: KernelRunner, tmp_path: Path, fault: str, text: str) -> None:
    module = triton_modules.write(tmp_path, "wrong", text)
    dtype = DType.FLOAT32
    report = check_module(rmsnorm_program(dtype), module, rmsnorm_sgraph(dtype), config(), runner=runner)
    assert not report.passed, fault
    with pytest.raises(VerificationError):
        report.summary()


UNFIT = """
    if config["symbols"]["T_d"] != 64:
        from triton.runtime.errors import OutOfResources

        class Large:
            def __getitem__(self, grid):
                raise OutOfResources(799000, 232448, "shared memory")

        yield Large(), (1,), (), {}
        return
"""


def test_a_configuration_that_does_not_fit_says_nothing_of_a_kernel(runner: KernelRunner, tmp_path: Path) -> None:
    head = "def launches(x, y, *, config):\n"
    text = triton_modules.rmsnorm()
    assert head in text
    dtype = DType.FLOAT32
    given = rmsnorm_program(dtype), rmsnorm_sgraph(dtype)
    for source, passes in ((text, True), (triton_modules.rmsnorm(eps="1e-5"), False)):
        module = triton_modules.write(tmp_path, f"unfit{passes}", source.replace(head, head + UNFIT))
        for tile, ran in ((64, True), (32, False)):
            report = check_module(given[0], module, given[1], config(tile), runner=Whole(runner), limit=4)
            assert report.passed == (passes and ran), report.failures
            assert ran or "out of resource" in report.failures[0]


class Whole:
    """A runner as on a device: whole launches, of which some do not fit."""

    name, sampling, bounded, width = "device", False, True, 1

    def __init__(self, runner: KernelRunner) -> None:
        self.run, self.forget, self.interrupt = runner.run, runner.forget, runner.interrupt


def test_a_crash_and_an_exception_are_failures_and_the_runner_goes_on(runner: KernelRunner, tmp_path: Path) -> None:
    dtype = DType.FLOAT32
    args = rmsnorm_program(dtype), rmsnorm_sgraph(dtype), config()
    for name, text, word in (("dying", triton_modules.DYING, "crash"), ("broken", triton_modules.BROKEN, "power of 2")):
        module = triton_modules.write(tmp_path, name, text)
        report = check_module(args[0], module, args[1], args[2], runner=runner)
        assert not report.passed
        assert word in report.failures[0]
    right = triton_modules.write(tmp_path, "right", triton_modules.rmsnorm())
    assert check_module(args[0], right, args[1], args[2], runner=runner).passed


def test_what_is_right_is_worked_out_no_further_than_it_is_wanted(
    runner: KernelRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between definitions it is looked at, so that the end of a run's time does not wait for the oracle."""
    program, sgraph = rmsnorm_program(DType.FLOAT32), rmsnorm_sgraph(DType.FLOAT32)
    module = triton_modules.write(tmp_path, "right", triton_modules.rmsnorm())
    ended: list[str] = []

    def endless(program: Program, inputs: object, xp: object, seen: Callable[[str, object], None]) -> None:
        try:
            while True:
                seen("y", None)
                time.sleep(0.01)
        finally:
            ended.append("oracle")

    monkeypatch.setattr("prism.program.evaluate.evaluate", endless)
    with pytest.raises(OutOfTimeError), Deadline.after(0.2).limited():
        check_module(program, module, sgraph, config(), runner=runner)
    assert ended == ["oracle"]


def test_a_sample_of_programs_is_judged_on_what_it_wrote(
    runner: KernelRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prism.instantiate.gate.plan.CASE_TARGET_S", 0.01)
    dtype = DType.FLOAT32
    module = triton_modules.write(tmp_path, "right", triton_modules.rmsnorm())
    report = check_module(rmsnorm_program(dtype), module, rmsnorm_sgraph(dtype), config(128), runner=runner)
    assert report.passed, report.failures
    wrong = triton_modules.write(tmp_path, "wrong", triton_modules.rmsnorm(mask="offs < n - 1"))
    assert not check_module(rmsnorm_program(dtype), wrong, rmsnorm_sgraph(dtype), config(128), runner=runner).passed


def test_shapes_meet_tiles_in_every_way() -> None:
    tiled = Kernel("k", ((m, Grid(T)),), ())
    graph = SGraph("g", (), (), (), (tiled,))
    program = rmsnorm_program(DType.FLOAT32)
    found = {b["seq"] for b in plan_bindings(program, graph, config(16))}
    assert found == {16, 1, 17, 15, 19}
    assert plan_bindings(rmsnorm_program(DType.FLOAT32), graph, config(4096))[0] == {"seq": 200}
    draws = [c.draw for c in plan_cases(program, graph, config(64), [config(16)])]
    assert set(draws) == set(DRAWS)
    # The cheapest of the configurations, by programs, serves the adversarial draws.
    assert cost_s(graph, config(64), {"seq": 200}) < cost_s(graph, config(16), {"seq": 200})


def test_only_launches_that_nothing_reads_are_sampled() -> None:
    first = Kernel("first", ((m, Grid(1)),), (Store("b", (), 0.0),))
    second = Kernel("second", ((m, Grid(1)),), (Load("v", "b", ()), Store("y", (), "v")))
    graph = SGraph("g", (), (), (), (first, second))
    read, written = plan_samples(graph, config(), {"seq": 10_000})
    assert read is None
    assert written is not None
    ((tiles, programs),) = written
    assert tiles == (10_000,)
    assert programs < 1000


def test_launches_that_are_read_get_larger_tiles_where_they_take_too_long() -> None:
    k = Axis("k", 4096)
    tk = symbol("T_k")
    summed = Loop(k, (Load("a", "x", (Index.axis(k),)), TileReduce("p", SUM, k, "a"), Accumulate("s", SUM, "p")))
    first = Kernel("first", ((m, Grid(T)), (k, LoopRole(tk))), (summed, Store("b", (), "s")))
    second = Kernel("second", ((m, Grid(1)),), (Load("v", "b", ()), Store("y", (), "v")))
    graph = SGraph("g", (), (), (), (first, second))
    start = Config({"T_d": 16, "T_k": 32}, {}, {})
    assert interpretable(graph, start, {"seq": 16}) == start
    found = interpretable(graph, start, {"seq": 200})
    assert cost_s(graph, found, {"seq": 200}, sampled=True) <= 1.0 < cost_s(graph, start, {"seq": 200}, sampled=True)
    assert all(found.symbols[n] >= v for n, v in start.symbols.items())
    huge = interpretable(graph, start, {"seq": 1_000_000})
    assert huge.symbols["T_d"] * huge.symbols["T_k"] <= 1 << 20


def test_samples_hold_the_corners() -> None:
    assert sample_programs((2, 3), None) == list(range(6))
    chosen = sample_programs((10, 20), 6)
    assert len(set(chosen)) == 6
    assert {0, 199, 19, 180} <= set(chosen)
    assert sample_programs((7,), 2) == [0, 6]
    assert set(sample_programs((3, 4, 5), 8)) == {0, 4, 15, 19, 40, 44, 55, 59}


def test_masks_have_a_row_of_falses_and_weights_keep_their_values() -> None:
    weight = np.arange(6, dtype=np.float32)
    program = Program(
        "p",
        (Tensor("mask", (4, 6), DType.BOOL), Tensor("w", (6,), DType.FLOAT32), Tensor("x", (6,), DType.FLOAT32)),
        (),
        (),
        weights={"w": weight},
    )
    drawn = draw_inputs(program, "zeros", {}, 0)
    assert not drawn["mask"][0].any()
    assert drawn["mask"][-1].all()
    assert drawn["w"].tolist() == weight.tolist()
    assert not drawn["x"].any()


@pytest.mark.parametrize("kind", DRAWS)
def test_tensors_without_elements_are_drawn(kind: str) -> None:
    inputs = Tensor("x", (3, 4), DType.FLOAT32), Tensor("e", (0, 4), DType.FLOAT32), Tensor("m", (2, 0), DType.BOOL)
    program = Program("p", inputs, (), ())
    drawn = draw_inputs(program, kind, {}, 0)
    assert [tuple(t.shape) for t in drawn.values()] == [(3, 4), (0, 4), (2, 0)]


def test_the_gate_on_non_finite_values() -> None:
    nan, inf = float("nan"), float("inf")
    exact = np.array([1.0, 2.0, 7e4, nan])
    eager = np.array([1.0, inf, inf, nan])
    assert judge(np.array([1.0, 2.0, inf, nan]), exact, eager, DType.FLOAT16), "only eager overflowed"
    assert not judge(np.array([inf, 2.0, inf, nan]), exact, eager, DType.FLOAT16)
    assert not judge(np.array([1.0, 2.0, inf, 0.0]), exact, eager, DType.FLOAT16), (
        "a masked row that eager leaves undefined"
    )


def test_the_gate_allows_a_small_factor_of_eagers_error() -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal((8, 64))
    noise = rng.standard_normal((8, 64))
    eager = exact + 1e-6 * noise
    assert judge(exact + 3e-6 * noise, exact, eager, DType.FLOAT32).ratio == pytest.approx(0.75)
    assert not judge(exact + 5e-6 * noise, exact, eager, DType.FLOAT32)
    one = exact.copy()
    one[3, 5] += 1e-4
    assert "maximal" in judge(one, exact, eager, DType.FLOAT32).reason
    u = DType.FLOAT32.roundoff
    assert judge(exact * (1 + 2 * u), exact, exact, DType.FLOAT32), "the roundoff is allowed even where eager is exact"
    assert judge(np.array([1.0, 0.0]), np.array([1.0, 1.0]), np.array([1.0, 1.0]), DType.BOOL).reason
    held = np.zeros((8, 64), dtype=bool)
    assert not judge(exact, exact, exact, DType.FLOAT32, held)
    assert not judge(exact, exact, exact, DType.FLOAT32, held, False)
