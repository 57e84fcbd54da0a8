"""The C++ backend computes what sGraphs mean: hand-written, generated and random ones, in all types.

The examples are in test_backends.py.

Kernels are compiled by the dozen, because a run of the compiler costs half a second whatever it compiles.
"""

from __future__ import annotations

import ctypes
import math
import random
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sgraph_samples as samples
import torch
from cpu_batch import Array, Case, numpy_type, run_batch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from program_random import programs
from sgraph_programs import ALL, K, M, N, program, task
from sgraph_samples import BF16, F16, F32, SAMPLES, Sample

import prism
from prism.backends.cpu.products import support
from prism.backends.cpu.support import CompilerError, compile_source, find_compiler
from prism.cost.constraints import RoleBounds
from prism.errors import UnsupportedError
from prism.generate.enumerate import Bounds, generate
from prism.program.build import add, const, mul, op, read, reduce
from prism.program.evaluate import evaluate
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Expr, Position, Program, ReduceKind, Tensor
from prism.sgraph.nodes import (
    Accumulate,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Pointwise,
    SGraph,
    Stmt,
    Store,
    TileReduce,
    Whole,
)

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")

# Against the largest output: rounding of the outputs, and of intermediate buffers to the storage type.
TOLERANCE = {F32: 3e-6, F16: 2e-3, BF16: 1.5e-2}
WIDE = Bounds(
    max_families=2000,
    per_kernel=40,
    per_plan=60,
    max_sgraphs=400,
    off=frozenset({"dominated", "worse"}),
    roles=RoleBounds(short=0),
)
SIZES = (1, 2, 3, 4, 5, 8, 16, 32)


def close(got: Sequence[Array], want: Sequence[Array], tolerance: float, what: str) -> None:
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        found = np.asarray(g, np.float64)
        assert found.shape == w.shape, what
        np.testing.assert_array_equal(np.isnan(found), np.isnan(w), err_msg=what)
        finite = np.isfinite(w)
        np.testing.assert_array_equal(found[~finite & ~np.isnan(w)], w[~finite & ~np.isnan(w)], err_msg=what)
        scale = np.abs(w[finite]).max(initial=1e-30)
        np.testing.assert_allclose(found[finite], w[finite], rtol=0, atol=tolerance * scale, err_msg=what)


def sample_cases(dtype: DType) -> list[tuple[Sample, Case]]:
    """Every hand-written sGraph at its own sizes of tiles and lengths, and at odd ones."""
    made: list[tuple[Sample, Case]] = []
    sizes = random.Random(dtype.value)
    for build in SAMPLES:
        sample = build(dtype)
        for n, binding in enumerate(sample.bindings):
            odd = {name: sizes.choice(SIZES) for name in sample.symbols[0]}
            # Half precision differs in element types, which one assignment shows.
            for symbols in (*sample.symbols, odd) if dtype is F32 and n == 0 else (odd if n else sample.symbols[0],):
                made.append((sample, Case(sample.sgraph, symbols, sample.inputs(binding, seed=len(made)))))
    return made


@pytest.mark.parametrize(
    "dtype", [F32, *(pytest.param(t, marks=pytest.mark.slow) for t in (F16, BF16))], ids=lambda d: d.value
)
def test_hand_written_sgraphs_compute_their_closed_forms(dtype: DType, tmp_path: Path) -> None:
    cases = sample_cases(dtype)
    assert len(cases) >= len(SAMPLES)
    for (sample, case), got in zip(cases, run_batch([c for _, c in cases], tmp_path), strict=True):
        stored = [
            np.asarray(a).astype(numpy_type(t.dtype)) for a, t in zip(case.inputs, case.sgraph.inputs, strict=True)
        ]
        want = sample.reference(*(np.asarray(a, np.float64) for a in stored))
        close(got, want, TOLERANCE[dtype], f"{sample.name} {dict(case.symbols)}")


def as_float32(p: Program) -> Program:
    return replace(
        p,
        inputs=tuple(replace(t, dtype=F32) for t in p.inputs),
        definitions=tuple(replace(d, dtype=F32) for d in p.definitions),
    )


def generated(p: Program, count: int, choose: random.Random) -> list[Case]:
    """Some of the sGraphs of a program, at random sizes of tiles and numbers of parts."""
    found: list[SGraph] = [c.sgraph for c in generate(task(p), WIDE).candidates]
    values = np.random.default_rng(choose.randrange(1 << 30))
    inputs = {t.name: values.standard_normal([int(e) for e in t.shape]).astype(np.float32) for t in p.inputs}
    chosen = choose.sample(found, min(count, len(found)))
    return [
        Case(g, {s.name: choose.choice(SIZES) for s in g.symbols}, [inputs[t.name] for t in g.inputs]) for g in chosen
    ]


def check_generated(made: Sequence[tuple[Program, Case]], folder: Path) -> None:
    for (p, case), got in zip(made, run_batch([c for _, c in made], folder), strict=True):
        inputs = {t.name: a for t, a in zip(case.sgraph.inputs, case.inputs, strict=True)}
        expected = evaluate(p, inputs)
        want = [expected[t.name] for t in case.sgraph.outputs]
        close(got, want, 2e-5, f"{p.name} {dict(case.symbols)}")


# test_backends.py runs others of the same kind, with both backends.
@pytest.mark.slow
def test_generated_sgraphs_compute_their_programs(tmp_path: Path) -> None:
    choose = random.Random(0)
    made = [(make(), c) for make in ALL for c in generated(make(), 2, choose)]
    assert len(made) >= 12
    assert any(len(c.sgraph.kernels) > 1 for _, c in made)
    check_generated(made, tmp_path)


def test_products_of_each_head_lie_as_they_are_read(tmp_path: Path) -> None:
    """Sums of products in which a lane of both factors comes last in the result."""
    functions: list[tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = [
        (lambda q, w: torch.relu(torch.einsum("hd,hdn->nh", q, w)), ((4, 16), (4, 16, 32))),
        (lambda q, w: torch.relu((q * w).sum(1).mT).sum(-1), ((2, 16, 1), (2, 16, 64))),
        (lambda x, w: 2 * (x.view(2, 16)[:, :, None] * w.view(2, 16, 64)).sum(1).sum(0), ((32,), (32, 64))),
        (lambda q, w: torch.einsum("mhd,hdn->mnh", q, w), ((6, 4, 16), (4, 16, 32))),
        (lambda q, w: torch.einsum("mhd,nhd->mnh", q, w).softmax(-1), ((6, 4, 16), (9, 4, 16))),
        # Stored side by side, as before a projection: what is within a head comes first in the sum of the index.
        (lambda p, v: (p.exp() @ v).transpose(1, 2).reshape(3, 64), ((3, 4, 1, 20), (3, 4, 20, 16))),
        (lambda p, v: (p.softmax(-1) @ v).transpose(1, 2).reshape(3, 5, 64), ((3, 4, 5, 20), (3, 4, 20, 16))),
    ]
    choose = random.Random(5)
    programs = [prism.trace(f, [torch.randn(s) for s in shapes], check=False) for f, shapes in functions]
    check_generated([(p, case) for p in programs for case in generated(p, 4, choose)], tmp_path)


def random_programs(count: int, seed: int) -> list[Program]:
    found: list[Program] = []

    @seeded(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(programs())
    def collect(p: Program) -> None:
        found.append(as_float32(p))

    collect()
    return found


def random_cases(count: int, each: int, seed: int) -> list[tuple[Program, Case]]:
    choose = random.Random(seed)
    made: list[tuple[Program, Case]] = []
    for p in random_programs(count, seed):
        try:
            made += [(p, c) for c in generated(p, each, choose)]
        except UnsupportedError:  # reshapes that no tile can follow
            continue
    return made


@pytest.mark.slow
def test_random_programs(tmp_path: Path) -> None:
    made = random_cases(14, 1, 0)
    assert len(made) >= 8
    check_generated(made, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_random_programs(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    made = random_cases(60, 2, seed)
    made += [(make(), c) for make in ALL for c in generated(make(), 20, choose)]
    check_generated(made, tmp_path)


# What is not finite.


def test_what_is_not_finite_stays_in_its_rows_and_columns(tmp_path: Path) -> None:
    made: list[tuple[list[Array], Case]] = []
    for symbols in ({"T_m": 4, "T_n": 8, "T_d": 16}, {"T_m": 20, "T_n": 24, "T_d": 5}):
        sample = samples.rmsnorm_linear()
        x, g, w = (np.array(a) for a in sample.inputs({}))
        x[3, 5], w[70, 2] = np.inf, np.nan
        made.append(([x, g, w], Case(sample.sgraph, symbols, [x, g, w])))
    for (got,) in run_batch([c for _, c in made], tmp_path):
        assert np.isnan(got[3]).all()
        assert np.isnan(got[:, 2]).all()
        assert np.isfinite(np.delete(np.delete(got, 3, 0), 2, 1)).all()


def test_not_a_number_passes_every_reduction_and_masked_rows_are_as_eager_has_them(tmp_path: Path) -> None:
    sample = samples.moments()
    cases = []
    for symbols in sample.symbols:
        (x,) = (np.array(a) for a in sample.inputs({}))
        x[1, 7], x[2, 3], x[4, 0] = np.nan, np.inf, -np.inf
        x[3, 12], x[4, 40] = -np.nan, np.inf
        x[5] = -np.inf
        cases.append(Case(sample.sgraph, symbols, [x]))
    for case, got in zip(cases, run_batch(cases, tmp_path), strict=True):
        with np.errstate(all="ignore"):
            want = sample.reference(*(np.asarray(a, np.float64) for a in case.inputs))
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(np.isnan(g), np.isnan(w))
            np.testing.assert_array_equal(np.isinf(g), np.isinf(w))
        for g, w in zip(got[1:3], want[1:3], strict=True):
            np.testing.assert_array_equal(g, w)


# The support code by itself.

UNARY: dict[str, Callable[..., Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "tanh": np.tanh,
    "atan": np.arctan,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "sigmoid": lambda a: 1.0 / (1.0 + np.exp(-a)),
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "round": np.round,
    "sqrt": np.sqrt,
    "sign": lambda a: np.where(np.isnan(a), 0.0, np.sign(a)),
}


@pytest.fixture(scope="module", params=["native", "portable"])
def functions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The functions over arrays, in this machine's vectors, and in those of any machine."""
    folder = tmp_path_factory.mktemp("functions")
    text = support("core", "math") + "using namespace prism;\n"
    for name in UNARY:
        text += (
            f'extern "C" void m_{name}(float* x, int64_t n) {{\n'
            f"    for (int64_t i = 0; i < n; i += VL) v_store(x + i, v_{name}(v_load(x + i)));\n}}\n"
        )
    for kind in ("bf16", "f16"):
        text += (
            f'extern "C" void to_{kind}(float* x, void* y, int64_t n) {{\n'
            f"    for (int64_t i = 0; i < n; i += VL) v_store(({kind}*)y + i, v_load(x + i));\n}}\n"
            f'extern "C" void from_{kind}(float* x, const void* y, int64_t n) {{\n'
            f"    for (int64_t i = 0; i < n; i += VL) v_store(x + i, v_load((const {kind}*)y + i));\n}}\n"
        )
    if request.param == "portable":
        undefined = ("__AVX512F__", "__AVX__", "__F16C__")
        text = "".join(f"#undef {name}\n" for name in undefined) + text
    main = folder / "functions.cpp"
    main.write_text(text)
    return ctypes.CDLL(str(compile_source(main, {}, level="-O1")[0]))


def call(function: Callable[..., None], *arrays: Array) -> None:
    function(*(ctypes.c_void_p(a.ctypes.data) for a in arrays), ctypes.c_int64(arrays[0].size))


@pytest.mark.parametrize("name", UNARY)
def test_functions_are_right_to_two_units_in_the_last_place(functions: ctypes.CDLL, name: str) -> None:
    rng = np.random.default_rng(0)
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -0.5, 8388609.0]
    odd += [-149.0, -149.5, -150.0, -150.5, -151.0, -103.97, -103.98, -103.99]
    large = [3e38, -3e38, 1e30] if name not in ("sin", "cos") else [1e4, 1e5]
    ordinary = [scale * rng.standard_normal(4000) for scale in (1.0, 100.0, 1e-3)]
    x = np.concatenate(
        [*ordinary, np.linspace(-110, 100, 4000), 1e-40 * rng.standard_normal(100), odd, large], dtype=np.float32,
        casting="unsafe",
    )  # fmt: skip
    if name == "sigmoid":
        x = x[~(x < -85)]  # the result would be subnormal, and 1 / (1 + inf) is 0
    x = np.resize(x, -(-x.size // 16) * 16)
    got = x.copy()
    call(getattr(functions, f"m_{name}"), got)
    with np.errstate(all="ignore"):
        want = UNARY[name](x.astype(np.float64))
        rounded = want.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(rounded))
    finite = np.isfinite(rounded)
    ulps = np.abs(got[finite] - want[finite]) / np.spacing(np.abs(rounded[finite])).astype(np.float64)
    assert ulps.max() < 2.0, (x[finite][ulps.argmax()], ulps.max())


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_half_precision_is_rounded_as_numpy_does(functions: ctypes.CDLL, kind: str) -> None:
    dtype = numpy_type(BF16 if kind == "bf16" else F16)
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = np.empty(1 << 16, np.float32)
    call(getattr(functions, f"from_{kind}"), wide, bits)
    np.testing.assert_array_equal(wide, bits.view(dtype).astype(np.float32))
    rng = np.random.default_rng(1)
    anything = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = np.array([65504, 65519, 65520, 65536, 2**-24, 2**-25, 1.1 * 2**-25, 6e-5, 6.1e-5, 2**-14] * 16, np.float32)
    x = np.concatenate([anything, rng.standard_normal(1 << 12).astype(np.float32), edges])
    made = np.empty(x.size, np.uint16)
    call(getattr(functions, f"to_{kind}"), x, made)
    with np.errstate(all="ignore"):
        want = x.astype(dtype).astype(np.float32)
    got = made.view(dtype).astype(np.float32)
    # A processor's own rounding to bfloat16 makes zeros of subnormal numbers, and of nothing else.
    flushed = (got == 0) & (np.abs(x) < 2**-126) & (np.signbit(got) == np.signbit(x)) & (kind == "bf16")
    np.testing.assert_array_equal(got[~flushed], want[~flushed])


def test_long_sums_of_one_sign_stay_precise(tmp_path: Path) -> None:
    """Terms are not added one after another: 4096 of them would lose a dozen units in the last place."""
    rng = np.random.default_rng(2)
    cases = [
        Case(
            samples.matmul(m=m, k=4096, n=16).sgraph,
            {"T_m": m, "T_n": 16, "T_k": 4096},
            [rng.uniform(0.5, 1.5, s).astype(np.float32) for s in ((m, 4096), (4096, 16))],
        )
        for m in (1, 4, 9)
    ]
    for case, (got,) in zip(cases, run_batch(cases, tmp_path), strict=True):
        x, w = (np.asarray(a, np.float64) for a in case.inputs)
        error = np.sqrt((((got - x @ w) / (x @ w)) ** 2).mean())
        assert error < 3e-7


def summed(gone: Axis, kept: Axis, place: tuple[Axis, ...], op: str, tiled: bool) -> SGraph:
    """y[kept] = the sum of a function of x along an axis, in one tile or in a loop."""
    tile, total = samples.sym("T_gone"), "a" if tiled else "s"
    body: tuple[Stmt, ...] = (
        Load("x1", "x", samples.at(*place)),
        Pointwise("x2", op, ("x1",)),
        TileReduce("s", ReduceKind.SUM, gone, "x2"),
    )
    if tiled:
        body = (Loop(gone, (*body, Accumulate("a", ReduceKind.SUM, "s"))),)
    roles = ((kept, Grid(samples.sym("T_kept"))), (gone, LoopRole(tile) if tiled else Whole()))
    shape = tuple(a.extent for a in place)
    return SGraph(
        "g",
        (Tensor("x", shape, F32),),
        (),
        (Tensor("y", (kept.extent,), F32),),
        (Kernel("k", roles, (*body, Store("y", samples.at(kept), total))),),
    )


@pytest.mark.parametrize("op", ["abs", "exp"])
def test_sums_of_equal_numbers_stay_precise(op: str, tmp_path: Path) -> None:
    """Each addition of one number to many of its like rounds the same way, and what one after another lose adds up."""
    gone, kept = Axis("i", 20_000), Axis("j", 40)
    value = np.random.default_rng(2).uniform(0.5, 1.5, 40).astype(np.float32)
    cases = [
        Case(
            summed(gone, kept, place, op, tile is not None),
            {"T_kept": 20} | ({} if tile is None else {"T_gone": tile}),
            [np.broadcast_to(value if place[0] is gone else value[:, None], [int(str(a.extent)) for a in place])],
        )
        for place in ((gone, kept), (kept, gone))
        for tile in (None, 4, 64, 4096)
    ]
    for case, (got,) in zip(cases, run_batch(cases, tmp_path), strict=True):
        want = 20_000 * np.asarray(value if op == "abs" else np.exp(value.astype(np.float64)), np.float64)
        assert np.sqrt(((got / want - 1) ** 2).mean()) < 5e-7, case.symbols


def test_a_long_sum_that_is_infinite_or_not_a_number_stays_so(tmp_path: Path) -> None:
    gone, kept = Axis("i", 5000), Axis("j", 4)
    x = np.ones((5000, 4), np.float32)
    x[70, 0], x[4000, 1], x[4001, 1], x[9, 2] = np.inf, np.inf, -np.inf, np.nan
    graphs = [
        (summed(gone, kept, place, "neg", tiled), x if place[0] is gone else np.ascontiguousarray(x.T))
        for place in ((gone, kept), (kept, gone))
        for tiled in (False, True)
    ]
    cases = [Case(g, {"T_kept": 4, "T_gone": 8} if len(g.symbols) > 1 else {"T_kept": 4}, [y]) for g, y in graphs]
    for (got,) in run_batch(cases, tmp_path):
        np.testing.assert_array_equal(got, [-np.inf, np.nan, np.nan, -5000])


@pytest.mark.parametrize("dtype", [F16, pytest.param(BF16, marks=pytest.mark.slow)], ids=lambda d: d.value)
def test_half_precision_stores_what_is_no_floating_point_number(dtype: DType, tmp_path: Path) -> None:
    """Comparisons, sums of truth values and integers are converted, where a store or a product drops the rounding."""
    x, w = read("x", M, K), read("w", K, N)
    product = reduce("sum", K, mul(x, w))
    positive = op("lt", const(0.0), product)
    odd = op("eq", Position(Index.axis(N)), const(3.0))
    outputs: dict[str, tuple[tuple[Axis, ...], Expr]] = {
        "compared": ((M, N), positive),
        "counted": ((M, N), add(positive, odd)),
        "placed": ((M, N), op("where", positive, Position(Index.axis(N)), const(-1.0))),
        "multiplied": ((M, N), reduce("sum", K, mul(op("lt", const(0.0), x), w))),
    }
    plain = program("truths", {"x": (6, 24), "w": (24, 10)}, outputs)
    p = replace(
        plain,
        inputs=tuple(replace(t, dtype=dtype) for t in plain.inputs),
        definitions=tuple(replace(d, dtype=dtype) for d in plain.definitions),
    )
    made = generated(p, 6, random.Random(1))
    stored = [[np.asarray(a).astype(numpy_type(dtype)) for a in c.inputs] for c in made]
    for case, inputs, got in zip(made, stored, run_batch(made, tmp_path), strict=True):
        named = {t.name: np.asarray(a, np.float64) for t, a in zip(case.sgraph.inputs, inputs, strict=True)}
        expected = evaluate(p, named)
        close(got, [expected[t.name] for t in case.sgraph.outputs], TOLERANCE[dtype], f"{dict(case.symbols)}")


def test_a_compiler_that_optimises_too_long_is_asked_to_optimise_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    run = subprocess.run

    def slow(command: Sequence[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        level = next(word for word in command if word.startswith("-O"))
        asked.append(level)
        if level == "-O3" or stuck:
            raise subprocess.TimeoutExpired(command, settings["timeout"])
        return run(command, **settings)

    monkeypatch.setattr("prism.backends.cpu.support.subprocess.run", slow)
    main = tmp_path / "kernel.cpp"
    main.write_text('extern "C" int answer() { return 42; }\n')
    stuck = False
    library, known = compile_source(main, {})
    assert (ctypes.CDLL(str(library)).answer(), known, asked) == (42, False, ["-O3", "-O1"])
    main.write_text('extern "C" int answer() { return 43; }\n')
    stuck = True
    with pytest.raises(CompilerError, match=r"took more than 120 s for kernel\.cpp"):
        compile_source(main, {})


def test_a_compiler_is_held_to_seconds_of_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work that has the machine takes none of them: what waits longer than they are still optimises."""
    script, told, main = tmp_path / "c++", tmp_path / "told", tmp_path / "kernel.cpp"
    busy = "while :; do :; done"
    script.write_text(f'#!/bin/sh\necho "$1" >> "{told}"\n[ "$1" = -O3 ] && {busy}\nexec "{find_compiler()}" "$@"\n')
    script.chmod(0o755)
    main.write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setenv("CXX", str(script))
    limits: list[float] = []
    run = subprocess.run

    def timed(command: Sequence[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        limits.append(settings.pop("timeout"))
        return run(command, **settings)

    monkeypatch.setattr("prism.backends.cpu.support.subprocess.run", timed)
    library, _ = compile_source(main, {}, timeout_s=4.0)
    assert (ctypes.CDLL(str(library)).answer(), told.read_text().split()) == (42, ["-O3", "-O1"])
    assert min(limits) >= 3.0
