"""Every clause of the numeric gate: kernels that are wrong in a way that rounding brings out, and the right ones."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from short_calls import cost_s

from prism.instantiate.gate.check import CheckReport, KernelRunner, check_module
from prism.instantiate.gate.draws import DISTINCT, DRAWS, draw_inputs, struck_sets
from prism.instantiate.gate.judge import judge
from prism.instantiate.gate.plan import plan_bindings, plan_cases, quick_config, spread_out
from prism.program import build
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.nodes import Definition, DType, Expr, Program, Reduce, ReduceKind, SymbolRange, Tensor
from prism.sgraph.config import Config
from prism.sgraph.nodes import (
    Accumulate,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Role,
    SGraph,
    Split,
    Store,
    TileReduce,
    Whole,
)

pytestmark = pytest.mark.usefixtures("small_gate")

F32 = DType.FLOAT32
M, D, N = symbol("seq"), 100, 16
i, k = Axis("i", M), Axis("k", D)
INF, NAN = float("inf"), float("nan")

HEAD = '''"""A row of x a program."""
import torch
import triton
import triton.language as tl

'''
LAUNCHES = """

def launches(x, y, *, config):
    yield kernel, (x.shape[0],), (x, y), dict(D=x.shape[1], T=config["symbols"]["T_d"], num_warps=4, num_stages=1)
"""
SOFTMAX = (
    HEAD
    + """
@triton.jit
def kernel(x, y, D: tl.constexpr, T: tl.constexpr):
    row = tl.program_id(0)
    m = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for start in range(0, LAST, T):
        offs = start + tl.arange(0, T)
        v = tl.load(x + row * D + offs, mask=offs < LAST, other=float("-inf")).to(tl.float32)
        new = NEW
        empty = new == float("-inf")
        shift = tl.where(empty, 0.0, new)
        FACTOR
        total = total * factor + tl.sum(tl.exp(v - shift), axis=0)
        m = new
    shift = tl.where(m == float("-inf"), 0.0, m)
    for start in range(0, D, T):
        offs = start + tl.arange(0, T)
        v = tl.load(x + row * D + offs, mask=offs < D, other=0.0).to(tl.float32)
        tl.store(y + row * D + offs, tl.exp(v - shift) / total, mask=offs < D)
"""
    + LAUNCHES
)
ONLINE = {
    "NEW": "tl.maximum(m, tl.max(v, axis=0))",
    "FACTOR": "factor = tl.exp(m - shift)",
    "LAST": "D",
}
VARIANCE = (
    HEAD
    + """
@triton.jit
def kernel(x, y, D: tl.constexpr, T: tl.constexpr):
    row = tl.program_id(0)
    total = tl.full((), 0.0, tl.float32)
    squares = tl.full((), 0.0, tl.float32)
    for start in range(0, D, T):
        offs = start + tl.arange(0, T)
        v = tl.load(x + row * D + offs, mask=offs < D, other=0.0).to(tl.float32)
        total += tl.sum(v, axis=0)
        squares += tl.sum(v * v, axis=0)
    mean = total / D
    var = squares / D - mean * mean
    TWO_PASS
    inv = 1.0 / tl.sqrt(var + 1e-5)
    for start in range(0, D, T):
        offs = start + tl.arange(0, T)
        v = tl.load(x + row * D + offs, mask=offs < D, other=0.0).to(tl.float32)
        tl.store(y + row * D + offs, (v - mean) * inv, mask=offs < D)
"""
    + LAUNCHES
)
TWO_PASS = """
    var = 0.0
    for start in range(0, D, T):
        offs = start + tl.arange(0, T)
        v = tl.load(x + row * D + offs, mask=offs < D, other=0.0).to(tl.float32)
        var += tl.sum(tl.where(offs < D, (v - mean) * (v - mean), 0.0), axis=0)
    var = var / D
"""
LATE_DIVISION = (
    HEAD
    + """
@triton.jit
def product(x, w, h, D: tl.constexpr, T: tl.constexpr):
    row = tl.program_id(0)
    n = tl.arange(0, 16)
    acc = tl.zeros((16,), tl.float32)
    for start in range(0, D, T):
        offs = start + tl.arange(0, T)
        v = tl.load(x + row * D + offs, mask=offs < D, other=0.0).to(tl.float32)
        part = tl.load(w + offs[:, None] * 16 + n[None, :], mask=offs[:, None] < D, other=0.0).to(tl.float32)
        acc += tl.sum(v[:, None] * part, axis=0)
    tl.store(h + row * 16 + n, acc)


@triton.jit
def division(x, h, y, D: tl.constexpr, T: tl.constexpr):
    row = tl.program_id(0)
    squares = tl.full((), 0.0, tl.float32)
    for start in range(0, D, T):
        offs = start + tl.arange(0, T)
        v = tl.load(x + row * D + offs, mask=offs < D, other=0.0).to(tl.float32)
        squares += tl.sum(v * v, axis=0)
    n = tl.arange(0, 16)
    inv = 1.0 / tl.sqrt(squares / D + 1e-5)
    tl.store(y + row * 16 + n, tl.load(h + row * 16 + n).to(tl.float32) * inv)


def launches(x, w, y, *, config):
    h = torch.empty(y.shape, dtype=torch.STAGED)
    meta = dict(D=x.shape[1], T=config["symbols"]["T_d"], num_warps=4, num_stages=1)
    yield product, (x.shape[0],), (x, w, h), meta
    yield division, (x.shape[0],), (x, h, y), meta
"""
)


def rows(name: str, expr: Expr, dtype: DType = F32) -> Program:
    """A program of [seq, 100]; the sequence is short."""
    y = Definition("y", (i, Axis("j", D)), expr, dtype)
    return Program(name, (Tensor("x", (M, D), dtype),), (y,), ("y",), {"seq": SymbolRange(1, 8, 4)})


def x_at(axis: Axis) -> Expr:
    return build.read("x", i, axis)


def softmax() -> Program:
    top = Reduce(ReduceKind.MAX, k, x_at(k))
    e, total = build.op("exp", build.sub(x_at(Axis("j", D)), top)), build.op("exp", build.sub(x_at(k), top))
    return rows("softmax", build.div(e, build.reduce("sum", k, total)))


def layernorm() -> Program:
    mean = build.mean(k, x_at(k))
    apart = build.sub(x_at(k), mean)
    norm = build.op("sqrt", build.add(build.mean(k, build.mul(apart, apart)), build.const(1e-5)))
    return rows("layernorm", build.div(build.sub(x_at(Axis("j", D)), mean), norm))


def rmsnorm_linear() -> Program:
    d = Axis("d", 1000)  # so many terms of 1e3 overflow float16
    x, n = build.read("x", i, d), Axis("n", N)
    norm = build.op("sqrt", build.add(build.mean(d, build.mul(x, x)), build.const(1e-5)))
    h = Definition("h", (i, d), build.div(x, norm), DType.FLOAT16)
    y = Definition("y", (i, n), build.reduce("sum", d, build.mul(build.read("h", i, d), build.read("w", d, n))), F32)
    inputs = (Tensor("x", (M, 1000), DType.FLOAT16), Tensor("w", (1000, N), DType.FLOAT16))
    y = Definition("y", y.axes, y.expr, DType.FLOAT16)
    return Program("rmsnorm_linear", inputs, (h, y), ("y",), {"seq": SymbolRange(1, 8, 4)})


def family(program: Program) -> SGraph:
    """The roles of a hand-written kernel: a program a row, a loop over the columns."""
    extent = program.inputs[0].shape[1]
    kernel = Kernel("kernel", ((i, Grid(1)), (Axis("d", extent), LoopRole(symbol("T_d")))), (Store("y", (), 0.0),))
    outputs = tuple(program.definition(n).tensor for n in program.outputs)
    return SGraph(program.name, program.inputs, (), outputs, (kernel,))


def check(runner: KernelRunner, folder: Path, program: Program, text: str) -> CheckReport:
    path = folder / "module.py"
    path.write_text(text)
    config = Config({"T_d": 32}, {"kernel": 4}, {"kernel": 1})
    return check_module(program, path, family(program), config, runner=runner)


def filled(text: str, **holes: str) -> str:
    for name, source in holes.items():
        text = text.replace(name, source)
    return text


@pytest.mark.parametrize(
    ("holes", "why"),
    [
        ({}, ""),
        ({"NEW": "0.0 * m", "FACTOR": "factor = 1.0"}, "nan|inf|error"),
        ({"NEW": "0.0", "FACTOR": "factor = 1.0"}, "large inputs.*(nan|finite)"),
        ({"FACTOR": "factor = 1.0"}, "error"),
        ({"LAST": "(D - 1)"}, "error"),
    ],
    ids=["online", "a shift that is not a number", "no maximum", "no rescale", "last element dropped"],
)
def test_softmax(runner: KernelRunner, tmp_path: Path, holes: dict[str, str], why: str) -> None:
    text = filled(SOFTMAX, **{**ONLINE, **holes})
    report = check(runner, tmp_path, softmax(), text)
    assert report.passed == (not why), report.failures
    if not why:
        assert set(report.worst) == set(DRAWS)
    else:
        assert re.search(why, report.failures[0]), report.failures


def test_a_variance_by_difference_fails_at_a_large_mean(runner: KernelRunner, tmp_path: Path) -> None:
    right = check(runner, tmp_path, layernorm(), filled(VARIANCE, TWO_PASS=TWO_PASS.strip()))
    assert right.passed, right.failures
    wrong = check(runner, tmp_path, layernorm(), filled(VARIANCE, TWO_PASS=""))
    assert "large mean" in wrong.failures[0]


def test_a_division_moved_past_a_float16_store_fails(runner: KernelRunner, tmp_path: Path) -> None:
    right = check(runner, tmp_path, rmsnorm_linear(), filled(LATE_DIVISION, STAGED="float32"))
    assert right.passed, right.failures
    wrong = check(runner, tmp_path, rmsnorm_linear(), filled(LATE_DIVISION, STAGED="float16"))
    assert "inf where eager's are finite" in wrong.failures[0]


def test_the_bounds_are_four_and_eight_times_eagers_error() -> None:
    rng = np.random.default_rng(0)
    exact, noise = rng.standard_normal((64, 64)), np.sign(rng.standard_normal((64, 64)))
    u = F32.roundoff
    scale = np.sqrt(np.mean(exact**2, axis=-1, keepdims=True))
    eager = exact + 1e-5 * scale * noise
    assert judge(exact + 3.9e-5 * scale * noise, exact, eager, F32)
    assert "RMS" in judge(exact + 4.1e-5 * scale * noise, exact, eager, F32).reason
    one = np.zeros_like(exact)
    one[5, 7] = 1
    assert judge(exact + 7.9e-5 * scale * one, exact, eager, F32)
    assert "maximal" in judge(exact + 8.1e-5 * scale * one, exact, eager, F32).reason
    # Where eager is exact: the unit roundoff, and four of them.
    assert judge(exact + 3.9 * u * scale * noise, exact, exact, F32)
    assert not judge(exact + 4.1 * u * scale * noise, exact, exact, F32)
    assert judge(exact + 31 * u * scale * one, exact, exact, F32)
    assert not judge(exact + 33 * u * scale * one, exact, exact, F32)


def test_what_is_finite_must_be_so_in_both() -> None:
    exact = np.array([1.0, 2.0])
    assert not judge(np.array([INF, 2.0]), exact, exact, F32)
    assert not judge(np.array([1.0, 2.0]), np.array([INF, 2.0]), np.array([INF, 2.0]), F32)
    assert not judge(np.array([NAN, 2.0]), np.array([INF, 2.0]), np.array([INF, 2.0]), F32), "a number went lost"
    assert judge(exact, exact, np.array([NAN, 2.0]), F32), "only eager overflowed"


def test_inputs_that_are_not_finite_leave_room_for_order_and_for_what_is_not_read() -> None:
    infinite, lost = np.array([INF, 1.0]), np.array([NAN, 1.0])
    read = np.array([NAN, 1.0])  # the oracle without the infinities: the first element depends on them
    assert judge(lost, infinite, infinite, F32, clean=[read]), "inf - inf in another order"
    assert not judge(np.array([2.0, 1.0]), lost, lost, F32, clean=[read])
    assert judge(np.array([-INF, 1.0]), infinite, infinite, F32, clean=[read]), (
        "the sign of a rounding error, times infinity"
    )
    assert not judge(np.array([-INF, 1.0]), infinite, infinite, F32), "but not where the inputs are finite"
    unread = np.array([3.0, 1.0])
    assert judge(lost, lost, lost, F32, clean=[unread]), "as eager does"
    assert judge(unread, lost, lost, F32, clean=[unread]), "a masked element was not read"
    assert not judge(np.array([3.1, 1.0]), lost, lost, F32, clean=[unread]), "but then the value must be right"


def test_draws_are_what_they_are_called() -> None:
    program = Program(
        "p", (Tensor("x", (6, 50), F32), Tensor("w", (50, 4), F32), Tensor("mask", (6, 4), DType.FLOAT16)), (), ()
    )

    def drawn(kind: str, n: int = 0) -> dict[str, np.ndarray]:
        struck = struck_sets(program, kind)[n]
        return {name: t.double().numpy() for name, t in draw_inputs(program, kind, {}, 3, struck).items()}

    assert abs(drawn("large mean")["x"].mean() / drawn("large mean")["x"].std() - 1e3) < 200
    assert abs(drawn("large mean")["w"].mean()) < 1
    assert drawn("large mean", 1)["w"].mean() > 900
    assert 300 < drawn("large")["x"].std() < 3000
    assert drawn("small")["w"].std() < 1e-2
    tiny = np.abs(drawn("subnormals")["x"])
    assert 0 < tiny.max() < 2.0**-126
    assert np.isneginf(drawn("masked row")["mask"]).all(axis=1).sum() == 1
    assert (drawn("equal rows")["w"] == drawn("equal rows")["w"][0]).all()
    zeros = drawn("zeros")
    assert all((z == 0).all() for z in zeros.values())
    assert np.signbit(zeros["x"]).any()
    assert not np.signbit(zeros["x"]).all()
    infinite = drawn("infinities")["x"]
    assert np.isposinf(infinite).sum() == np.isneginf(infinite).sum() == 1
    assert np.isnan(drawn("not a number")["w"]).sum() == 1
    columns = np.abs(drawn("outlier channel")["x"]).mean(axis=0)
    assert columns.max() > 20 * np.median(columns)
    assert (drawn("normal")["w"] == drawn("large mean")["w"]).all(), "the others are as ever"


@pytest.mark.parametrize("shape", [(700, 512), (8, DISTINCT), (300_000,)])
def test_numbers_of_large_draws_come_again_in_no_place_of_another_row(shape: tuple[int, ...]) -> None:
    program = Program("p", (Tensor("x", shape, F32),), (), ())
    x = draw_inputs(program, "normal", {}, 0)["x"].numpy().reshape(-1, shape[-1])
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    for distance in (1, 2, 32, 64, 128):
        if distance < len(x):
            assert (x[distance:] == x[:-distance]).mean() < 1e-3
        assert (x[:, distance:] == x[:, :-distance]).mean() < 1e-3


def test_the_quick_configuration_has_two_tiles_wherever_it_can() -> None:
    d, f = Axis("d", 1000), Axis("f", 64)
    tm, td, tf, s = symbol("T_m"), symbol("T_dd"), symbol("T_f"), symbol("S_d")
    roles = ((i, Grid(tm)), (f, Grid(tf)), (d, Split(s, td)))
    total = ReduceKind.SUM
    body = Loop(d, (Load("a", "x", (Index.axis(d),)), TileReduce("p", total, d, "a"), Accumulate("s", total, "p")))
    graph = SGraph("g", (), (), (), (Kernel("g_kernel", roles, (body, Store("y", (), "s"))),))
    program = rows("rows", x_at(k))
    start = Config({"T_m": 64, "T_dd": 16, "T_f": 4, "S_d": 8}, {}, {})
    other = Config({"T_m": 16, "T_dd": 32, "T_f": 16, "S_d": 4}, {}, {})
    quick = quick_config(program, graph, start, [other])
    assert quick.symbols == {"T_m": 16, "T_dd": 512, "T_f": 32, "S_d": 2}
    at = plan_bindings(program, graph, quick)[0]
    assert cost_s(graph, quick, at) < cost_s(graph, start, at) / 10
    # What unusual inputs do is looked at in few programs; loops and symbolic extents keep their tiles.
    assert spread_out(graph, quick, at).symbols == {**quick.symbols, "T_f": 64}
    cases = plan_cases(program, graph, start, [other])
    assert {c.draw for c in cases} == set(DRAWS)
    assert any(c.config == start for c in cases)


def test_each_symbolic_extent_has_its_own_quick_tile() -> None:
    """A long tile along the sequence makes no long batch: what both come to is computed in float64."""
    batch, seq = symbol("batch"), symbol("seq")
    b, s, t = Axis("b", batch), Axis("s", seq), Axis("t", seq)
    roles = ((b, Grid(symbol("T_b"))), (s, Grid(symbol("T_s"))), (t, LoopRole(symbol("T_t"))))
    graph = SGraph("g", (), (), (), (Kernel("g_kernel", roles, ()),))
    start = Config({"T_b": 2, "T_s": 128, "T_t": 64}, {}, {})
    lengths = {"batch": SymbolRange(1, 64, 4), "seq": SymbolRange(1, 4096, 128)}
    program = Program("p", (Tensor("x", (batch, seq), F32),), (), (), lengths)
    assert quick_config(program, graph, start).symbols == {"T_b": 2, "T_s": 128, "T_t": 128}


def test_what_programs_share_out_one_by_one_is_short_where_inputs_are_unusual() -> None:
    batch, seq = symbol("batch"), symbol("seq")
    b, s, t = Axis("b", batch), Axis("s", seq), Axis("t", seq)
    roles = ((s, Grid(symbol("T_s"))), (t, LoopRole(symbol("T_t"))))
    start = Config({"T_s": 16, "T_t": 16}, {}, {})
    lengths = {"batch": SymbolRange(1, 64, 4), "seq": SymbolRange(1, 4096, 128)}
    program = Program("p", (Tensor("x", (batch, seq), F32),), (), (), lengths)

    def drawn(of_batch: Role, unusual: bool, name: str) -> set[int]:
        graph = SGraph("g", (), (), (), (Kernel("g_kernel", ((b, of_batch), *roles), ()),))
        return {c.binding[name] for c in plan_cases(program, graph, start) if (c.draw != "normal") == unusual}

    assert drawn(Grid(1), False, "batch") == {1, 2, 3, 5}
    assert drawn(Grid(1), True, "batch") == {2}
    assert drawn(Grid(1), True, "seq") == {15, 17, 2}
    assert drawn(Whole(), True, "batch") == {1, 3, 5}
