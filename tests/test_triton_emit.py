"""Emission: the modules of hand-written sGraphs, run in Triton's interpreter against their closed forms."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import sgraph_samples as samples
from compiled_code import CodeOf
from interpreting import Interpreted, InterpreterPool, InterpretJob
from sgraph_samples import BF16, F16, F32, SAMPLES, Sample, at, sym

from prism.backends.protocol import Compiled, ModuleSource, arguments
from prism.backends.source import HOST, KERNEL, Writer
from prism.backends.triton.crosscompile import CompileJob
from prism.backends.triton.emit import emit_module
from prism.errors import BackendError, UnsupportedError
from prism.program.extents import cdiv, symbol
from prism.program.index import Axis, Index
from prism.program.nodes import DType, ReduceKind, Tensor
from prism.sgraph import spec
from prism.sgraph.config import Config
from prism.sgraph.nodes import Grid, Kernel, Load, Pointwise, SGraph, Store, TileReduce, Whole

# Against the largest output: rounding of the outputs, and of intermediate values to the storage type.
TOLERANCE = {F32: 2e-6, F16: 2e-3, BF16: 1.5e-2}


@dataclass(frozen=True)
class Case:
    sample: Sample
    dtype: DType
    inputs: list[np.ndarray]
    symbols: Mapping[str, int]
    name: str


def config(source: ModuleSource, symbols: Mapping[str, int]) -> Config:
    return Config(symbols, dict.fromkeys(source.kernels, 4), dict.fromkeys(source.kernels, 2))


def emit(sample: Sample, formula: str = "a formula") -> ModuleSource:
    return emit_module(sample.sgraph, formula=formula, configs={})


def job(
    folder: Path, sample: Sample, inputs: list[np.ndarray], symbols: Mapping[str, int], name: str = ""
) -> InterpretJob:
    source = emit(sample)
    path = folder / f"{name or sample.name}_{sample.sgraph.inputs[0].dtype.value}.py"
    path.write_text(source.text)
    dtypes = tuple(t.dtype.value for t in sample.sgraph.inputs)
    return InterpretJob(path, source.entry, tuple(inputs), dtypes, config(source, symbols))


def cases() -> list[Case]:
    made: list[Case] = []
    for dtype in (F32, F16, BF16):
        for build in SAMPLES:
            sample = build(dtype)
            for binding in sample.bindings:
                for n, symbols in enumerate(sample.symbols):
                    # Half precision differs in element types, which one assignment shows.
                    if dtype is F32 or n == 0:
                        inputs = sample.inputs(binding, seed=len(made))
                        made.append(
                            Case(sample, dtype, inputs, symbols, f"{build.__name__}-{dtype.value}-{n}-{len(made)}")
                        )
    return made


CASES = cases()


@pytest.fixture(scope="module")
def outcomes(
    interpreter: InterpreterPool, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[DType], dict[str, Interpreted]]:
    """What the cases of a type give, run together."""

    @cache
    def run(dtype: DType) -> dict[str, Interpreted]:
        folder = tmp_path_factory.mktemp("modules")
        chosen = [c for c in CASES if c.dtype is dtype]
        jobs = [job(folder, c.sample, c.inputs, c.symbols) for c in chosen]
        return {c.name: r for c, r in zip(chosen, interpreter.run_many(jobs), strict=True)}

    return run


@pytest.mark.parametrize("build", SAMPLES)
def test_the_samples_are_legal(build: object) -> None:
    assert callable(build)
    spec.check(build(F32).sgraph)


# float16 is rounded to in the same way as bfloat16.
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.slow) if c.dtype is F16 else c for c in CASES],
    ids=lambda c: c.name,
)
def test_a_sample_computes_its_closed_form(case: Case, outcomes: Callable[[DType], dict[str, Interpreted]]) -> None:
    result = outcomes(case.dtype)[case.name]
    assert not result.error
    expected = case.sample.reference(*(np.asarray(a, np.float64) for a in case.inputs))
    assert len(result.outputs) == len(expected)
    for got, want in zip(result.outputs, expected, strict=True):
        close(got, want, TOLERANCE[case.dtype])


def test_offsets_of_64_bits_compute_the_same(
    interpreter: InterpreterPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are where a tensor has more elements than 32 bits count; here it would have them from two on."""
    monkeypatch.setattr("prism.backends.lower_index.INT32_MAX", 1)
    chosen = [c for c in CASES if c.dtype is F32 and c.symbols == c.sample.symbols[0]]
    jobs = [job(tmp_path, c.sample, c.inputs, c.symbols) for c in chosen]
    assert any("tl.int64" in j.module.read_text() for j in jobs)
    for case, result in zip(chosen, interpreter.run_many(jobs), strict=True):
        assert not result.error, case.name
        expected = case.sample.reference(*(np.asarray(a, np.float64) for a in case.inputs))
        for got, want in zip(result.outputs, expected, strict=True):
            close(got, want, TOLERANCE[F32])


def close(got: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    assert got.shape == want.shape
    assert (np.isnan(got) == np.isnan(want)).all()
    scale = np.nanmax(np.abs(want))
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale)


def test_an_infinite_row_does_not_reach_others(interpreter: InterpreterPool, tmp_path: Path) -> None:
    # In a ragged tile 0 * inf would be NaN: what is outside must be zero in both operands.
    sample = samples.rmsnorm_linear()
    x, g, w = sample.inputs({})
    x[3, 5] = np.inf
    w[70, 2] = np.nan
    (got,) = interpreter.run(job(tmp_path, sample, [x, g, w], sample.symbols[0]))
    assert np.isnan(got[3]).all()
    assert np.isnan(got[:, 2]).all()
    finite = np.isfinite(np.delete(np.delete(got, 3, 0), 2, 1))
    assert finite.all()


@pytest.mark.parametrize("m", [1, 3])
def test_rows_of_any_number_go_through_one_module(interpreter: InterpreterPool, tmp_path: Path, m: int) -> None:
    sample = samples.symbolic_matmul()
    inputs = sample.inputs({"M": m})
    (got,) = interpreter.run(job(tmp_path, sample, inputs, {"T_m": 4, "T_n": 32, "T_k": 16}))
    close(got, inputs[0].astype(float) @ inputs[1], 2e-6)


def test_an_axis_of_length_one_needs_no_matrix_product(interpreter: InterpreterPool, tmp_path: Path) -> None:
    sample = samples.matmul(m=1)
    inputs = sample.inputs({})
    (got,) = interpreter.run(job(tmp_path, sample, inputs, {"T_m": 1, "T_n": 8, "T_k": 16}, "vector"))
    close(got, inputs[0].astype(float) @ inputs[1], 2e-6)


def test_a_symbolic_axis_in_one_tile(interpreter: InterpreterPool, tmp_path: Path) -> None:
    wide = Axis("d", sym("D"))
    rows, tile = Axis("m", 3), symbol("T_m")
    body = (
        Load("x1", "x", at(rows, wide)),
        TileReduce("s", ReduceKind.MAX, wide, "x1"),
        Store("y", at(rows), "s"),
    )
    kernel = Kernel("top_kernel", ((rows, Grid(tile)), (wide, Whole())), body)
    sgraph = SGraph("top", (Tensor("x", (3, sym("D")), F32),), (), (Tensor("y", (3,), F32),), (kernel,))
    whole = Sample(sgraph, lambda x: (x.max(-1),), ({"D": 21},), ({"T_m": 2},))
    (x,) = whole.inputs({"D": 21})
    (got,) = interpreter.run(job(tmp_path, whole, [x - 5], {"T_m": 2}))
    np.testing.assert_array_equal(got, (x - 5).max(-1))


def test_names_that_python_reserves_or_forbids(interpreter: InterpreterPool, tmp_path: Path) -> None:
    n = Axis("n.part", 20)
    body = (
        Load("a", "in", at(n)),
        Load("b", "input.1", at(n)),
        Load("c", "tl", at(n)),
        samples.op("ab", "add", "a", "b"),
        samples.op("abc", "add", "ab", "c"),
        Store("torch", at(n), "abc"),
    )
    tensors = tuple(Tensor(name, (20,), F32) for name in ("in", "input.1", "tl"))
    kernel = Kernel("names_kernel", ((n, Grid(symbol("T_n.part"))),), body)
    sgraph = SGraph("names", tensors, (), (Tensor("torch", (20,), F32),), (kernel,))
    sample = Sample(sgraph, lambda a, b, c: (a + b + c,), ({},), ({"T_n.part": 8},))
    inputs = sample.inputs({})
    (got,) = interpreter.run(job(tmp_path, sample, inputs, {"T_n.part": 8}))
    close(got, inputs[0] + inputs[1] + inputs[2], 1e-6)


# What a user sees of a module.


def test_a_module_is_readable_and_imports_torch_and_triton_alone() -> None:
    sample = samples.attention(BF16)
    tuned = Config({"T_i": 64, "T_j": 32}, {"attention_kernel": 8}, {"attention_kernel": 3})
    source = emit_module(sample.sgraph, formula='y = softmax("""q k""") \\ v', configs={"sm_90": [tuned]})
    tree = ast.parse(source.text)
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert imported - sys.stdlib_module_names == {"torch", "triton", "triton.language"}
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    assert max(map(len, source.text.splitlines())) <= 120
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert {"attention", "attention_kernel", "launches"} <= set(functions)
    assert "softmax" in (ast.get_docstring(functions["attention"]) or "")
    assert source.entry == "attention"
    assert source.kernels == ("attention_kernel",)
    configs = next(n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "CONFIGS")  # type: ignore[attr-defined]
    assert ast.literal_eval(configs) == {
        "sm_90": [
            {"symbols": {"T_i": 64, "T_j": 32}, "warps": {"attention_kernel": 8}, "stages": {"attention_kernel": 3}}
        ]
    }


def test_a_call_asks_nothing_of_triton_but_the_launch() -> None:
    """Triton's `cdiv` and `next_power_of_2` take microseconds on the host, each time."""
    made = (samples.symbolic_matmul(BF16), samples.split_k_matmul(BF16), samples.attention(BF16, seq=sym("seq")))
    for sample in made:
        text = emit_module(sample.sgraph, formula="", configs={}).text
        assert "triton.cdiv(" not in text
        assert "triton.next_power_of_2(" not in text


def test_emission_is_deterministic() -> None:
    for build in SAMPLES:
        assert emit(build(BF16)) == emit(build(BF16))


def test_masks_are_known_to_hold_where_tiles_divide() -> None:
    text = emit(samples.matmul()).text
    assert re.search(r"mask_k = \(offs_k < 72\) \| \(72 % T_k == 0\)", text)
    text = emit(samples.symbolic_matmul()).text
    assert re.search(r"mask_m = \(?offs_m < M\)?\n", text)


def test_a_call_without_a_configuration_takes_the_tuned_one(interpreter: InterpreterPool, tmp_path: Path) -> None:
    sample = samples.symbolic_pointwise()
    narrow = Config({"T_m": 1, "T_n": 16}, {"add_silu_kernel": 1}, {"add_silu_kernel": 1})
    source = emit_module(
        sample.sgraph,
        formula="f",
        configs={"sm_90": [narrow, narrow]},
    )
    text = source.text + "\n\ndef untuned(x, y, *, config=None):\n    return add_silu(x, y)\n"
    path = tmp_path / "tuned.py"
    path.write_text(text)
    inputs = sample.inputs({"M": 9})
    got = interpreter.run(InterpretJob(path, "untuned", tuple(inputs), ("float32", "float32"), narrow))
    close(got[0], sample.reference(*inputs)[0], 1e-6)


@pytest.mark.parametrize(
    ("shapes", "dtypes", "message"),
    [
        (((19, 72), (72, 25)), ("float32", "float32"), r"w must have the shape \(72, 24\), not \(72, 25\)"),
        (((19, 71), (72, 24)), ("float32", "float32"), r"x must have the shape \(\*, 72\), not \(19, 71\)"),
        (((72,), (72, 24)), ("float32", "float32"), r"x must have the shape \(\*, 72\), not \(72,\)"),
        (((19, 72), (72, 24)), ("float16", "float32"), "x must be torch.float32, not torch.float16"),
    ],
)
def test_wrong_arguments_are_refused(
    interpreter: InterpreterPool,
    tmp_path: Path,
    shapes: tuple[tuple[int, ...], ...],
    dtypes: tuple[str, ...],
    message: str,
) -> None:
    right = job(tmp_path, samples.symbolic_matmul(), [], {"T_m": 16, "T_n": 8, "T_k": 32})
    arrays = tuple(np.zeros(s, np.float32) for s in shapes)
    with pytest.raises(BackendError, match=message):
        interpreter.run(InterpretJob(right.module, right.entry, arrays, dtypes, right.config))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("x, w.requires_grad_()", "w requires a gradient, which these kernels do not compute"),
        ("x.to('meta'), w.to('meta')", "x has no memory that kernels can read"),
    ],
)
def test_what_kernels_cannot_take_is_refused(
    interpreter: InterpreterPool, tmp_path: Path, given: str, message: str
) -> None:
    """A gradient is not dropped in silence, and address 0 is not read."""
    sample = samples.matmul()
    path = tmp_path / "learning.py"
    learning = f"\n\ndef learning(x, w, *, config=None):\n    return matmul({given}, config=config)\n"
    source = emit_module(sample.sgraph, formula="f", configs={})
    path.write_text(source.text + learning)
    with pytest.raises(BackendError, match=message):
        interpreter.run(
            InterpretJob(
                path,
                "learning",
                tuple(sample.inputs({})),
                ("float32", "float32"),
                config(source, sample.symbols[0]),
            )
        )


def test_weights_beside_the_module_may_be_left_out(interpreter: InterpreterPool, tmp_path: Path) -> None:
    sample = samples.matmul()
    source = emit_module(sample.sgraph, formula="f", configs={}, weights=True)
    wrapper = (
        "\n\ndef bare(x, w, *, config=None):\n"
        "    torch.save({'w': w}, Path(__file__).with_name('weights.pt'))\n"
        "    return matmul(x, config=config)\n"
    )
    path = tmp_path / "weighted.py"
    path.write_text(source.text + wrapper)
    x, w = sample.inputs({})
    (got,) = interpreter.run(
        InterpretJob(path, "bare", (x, w), ("float32", "float32"), config(source, sample.symbols[0]))
    )
    close(got, x.astype(float) @ w, 2e-6)


def test_a_length_that_no_input_has_is_refused() -> None:
    n = Axis("n", sym("N") * sym("K"))
    kernel = Kernel("k_kernel", ((n, Grid(symbol("T_n"))),), (Load("a", "x", at(n)), Store("y", at(n), "a")))
    shape = (sym("N") * sym("K"),)
    sgraph = SGraph("unknown", (Tensor("x", shape, F32),), (), (Tensor("y", shape, F32),), (kernel,))
    with pytest.raises(UnsupportedError, match="cannot be told"):
        emit_module(sgraph, formula="f", configs={})


def test_a_length_is_told_from_a_multiple_of_it(interpreter: InterpreterPool, tmp_path: Path) -> None:
    n = Axis("n", sym("N"))
    odd = Load("a", "x", (Index(((n, 2),), 1),))
    kernel = Kernel("odd_kernel", ((n, Grid(symbol("T_n"))),), (odd, Store("y", at(n), "a")))
    sgraph = SGraph(
        "odd_elements", (Tensor("x", (2 * sym("N") + 1,), F32),), (), (Tensor("y", (sym("N"),), F32),), (kernel,)
    )
    sample = Sample(sgraph, lambda x: (x[1::2],), ({"N": 13},), ({"T_n": 8},))
    (x,) = sample.inputs({"N": 13})
    (got,) = interpreter.run(job(tmp_path, sample, [x], {"T_n": 8}))
    np.testing.assert_array_equal(got, x[1::2])


def test_scalars_are_loaded_also_under_a_mask(tmp_path: Path, interpreter: InterpreterPool) -> None:
    """A tensor without dimensions, and elements of a vector one a program, some of them beyond its ends."""
    b, n = Axis("b", 5), Axis("n", 6)
    tensors = {"x": (5, 6), "z": (3,), "s": ()}
    inputs = tuple(Tensor(name, shape, F32) for name, shape in tensors.items())
    body = (
        Load("v1", "x", at(b, n)),
        Load("v2", "z", (Index.axis(b) + (-1),)),
        Load("v3", "s", ()),
        Pointwise("v4", "mul", ("v1", "v2")),
        Pointwise("v5", "add", ("v4", "v3")),
        Store("y", at(b, n), "v5"),
    )
    kernel = Kernel("k", ((b, Grid(1)), (n, Grid(sym("T_n")))), body)
    graph = SGraph("scalars", inputs, (), (Tensor("y", (5, 6), F32),), (kernel,))
    values = [np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in tensors.values()]
    source = emit_module(graph, formula="", configs={})
    assert "mask=" in source.text
    path = tmp_path / "scalars.py"
    path.write_text(source.text)
    x, z, scalar = values
    want = x * np.pad(z, 1)[:, None] + scalar
    for tile in (1, 4, 8):
        made = InterpretJob(path, source.entry, tuple(values), ("float32",) * 3, config(source, {"T_n": tile}))
        np.testing.assert_allclose(interpreter.run(made)[0], want, rtol=1e-6)


def test_a_comparison_of_scalars_is_joined_with_a_tile_of_truth_values(
    tmp_path: Path, interpreter: InterpreterPool
) -> None:
    b, n = Axis("b", 5), Axis("n", 6)
    tensors = {"x": (5, 6), "z": (5,), "s": ()}
    inputs = tuple(Tensor(name, shape, F32) for name, shape in tensors.items())
    body = (
        Load("v1", "x", at(b, n)),
        Load("v2", "z", (Index.axis(b),)),
        Load("v3", "s", ()),
        Pointwise("v4", "lt", ("v1", 0.0)),
        Pointwise("v5", "le", ("v3", "v2")),
        Pointwise("v6", "or", ("v4", "v5")),
        Store("y", at(b, n), "v6"),
    )
    kernel = Kernel("k", ((b, Grid(1)), (n, Grid(sym("T_n")))), body)
    graph = SGraph("joined", inputs, (), (Tensor("y", (5, 6), F32),), (kernel,))
    values = [np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in tensors.values()]
    source = emit_module(graph, formula="", configs={})
    path = tmp_path / "joined.py"
    path.write_text(source.text)
    x, z, scalar = values
    want = ((x < 0) | (scalar <= z)[:, None]).astype(np.float32)
    for tile in (1, 4):
        made = InterpretJob(path, source.entry, tuple(values), ("float32",) * 3, config(source, {"T_n": tile}))
        np.testing.assert_array_equal(interpreter.run(made)[0], want)


# The interpreter's process.


def mutilated(folder: Path, sample: Sample, old: str, new: str, timeout_s: float = 60.0) -> InterpretJob:
    right = job(folder, sample, sample.inputs(sample.bindings[0]), sample.symbols[0], "mutilated")
    text = right.module.read_text()
    assert old in text
    right.module.write_text(text.replace(old, new))
    return InterpretJob(right.module, right.entry, right.inputs, right.dtypes, right.config, timeout_s)


def test_leaving_a_tensor_is_an_error_and_no_crash(interpreter: InterpreterPool, tmp_path: Path) -> None:
    wrong = mutilated(tmp_path, samples.add_silu(), "(offs_m < 7)", "(offs_m < 7000)")
    with pytest.raises(BackendError, match="outside of every tensor"):
        interpreter.run(wrong)


def test_storing_twice_is_an_error(interpreter: InterpreterPool, tmp_path: Path) -> None:
    wrong = mutilated(tmp_path, samples.add_silu(), "offs_m = pid_m * T_m + ", "offs_m = ")
    with pytest.raises(BackendError, match="stored twice"):
        interpreter.run(wrong)


def test_what_nobody_stored_is_not_a_number(interpreter: InterpreterPool, tmp_path: Path) -> None:
    wrong = mutilated(tmp_path, samples.add_silu(), "(offs_m < 7)", "(offs_m < 6)")
    (got,) = interpreter.run(wrong)
    assert np.isnan(got[6]).all()
    assert np.isfinite(got[:6]).all()


def test_a_module_that_needs_prism_fails(interpreter: InterpreterPool, tmp_path: Path) -> None:
    wrong = mutilated(tmp_path, samples.add_silu(), "import torch\n", "import torch\nimport prism.errors\n")
    with pytest.raises(BackendError, match="prism"):
        interpreter.run(wrong)


@pytest.mark.slow  # as that of every worker: test_crosscompile.py
def test_a_crash_is_an_error_and_the_next_job_runs(tmp_path: Path) -> None:
    with InterpreterPool() as own:
        dying = mutilated(tmp_path, samples.add_silu(), "import torch\n", "import torch\nimport os\nos._exit(3)\n")
        right = job(tmp_path, samples.add_silu(F16), samples.add_silu(F16).inputs({}), {"T_m": 4, "T_n": 16})
        first, second = own.run_many([dying, right])
    assert "status 3" in first.error
    assert not second.error


def test_a_hang_is_an_error(tmp_path: Path) -> None:
    hung = mutilated(tmp_path, samples.add_silu(), "import torch\n", "import time\ntime.sleep(60)\n", timeout_s=0.5)
    with InterpreterPool(start_limit_s=0.0) as own, pytest.raises(BackendError, match="hang"):
        own.run(hung)


# The compiler.


@pytest.mark.parametrize("build", [pytest.param(samples.attention, marks=pytest.mark.slow), samples.split_k_matmul])
def test_a_module_compiles_for_a_gpu(
    compile_job: Callable[[CompileJob], Compiled], build: object, tmp_path: Path
) -> None:
    assert callable(build)
    sample = build(BF16)
    right = job(tmp_path, sample, [], sample.symbols[0])
    done = compile_job(CompileJob(right.module, "sm_90", right.config, arguments(sample.sgraph, {})))
    assert not done.error
    assert [r.kernel for r in done.resources] == [k.name for k in sample.sgraph.kernels]
    assert all(r.spills == 0 for r in done.resources)


@pytest.mark.parametrize(("rows", "wide"), [(2**18, False), (2**20, True)])
def test_what_has_more_elements_than_32_bits_count_has_offsets_of_64(code_of: CodeOf, rows: int, wide: bool) -> None:
    m, n = Axis("m", rows), Axis("n", 4096)
    body = (Load("a", "x", at(m, n)), Store("y", at(m, n), "a"))
    kernel = Kernel("copy_kernel", ((m, Grid(sym("T_m"))), (n, Grid(sym("T_n")))), body)
    x, y = (Tensor(name, (rows, 4096), F32) for name in "xy")
    config = Config({"T_m": 4, "T_n": 128}, {"copy_kernel": 4}, {"copy_kernel": 1})
    (code,) = code_of(SGraph("copy", (x,), (), (y,), (kernel,)), config)
    # How many elements come before a row.
    assert bool(re.search(r"shl\.b32\s+\S+, \S+, 12;", code.ptx)) is not wide


# The writer.


def test_integer_expressions_read_as_python() -> None:
    n, t = symbol("N"), symbol("T")
    assert KERNEL.text(cdiv(cdiv(n, t), 4)) == "tl.cdiv(tl.cdiv(N, T), 4)"
    assert KERNEL.text(2 * n + 1) == "2 * N + 1"
    assert KERNEL.factor(n + 1) == "(N + 1)"
    assert HOST.text(n / 2) == "N // 2"
    assert KERNEL.text(n * n) == "N * N"
    for expression in (cdiv(n, t) * t - n, 3 * (n + 1) - 2 * t, n * (t + 1)):
        values = {"N": 37, "T": 8, "triton": type("triton", (), {"cdiv": staticmethod(lambda a, b: -(-a // b))})}
        text = HOST.text(expression)
        assert eval(text, values) == int(expression.subs({n: 37, t: 8})), text


def test_a_long_call_gets_one_argument_a_line() -> None:
    w = Writer()
    w.assign("x", f"tl.load({'a' * 60}, mask=f(b, c), other={'d' * 60}).to(tl.float32)")
    assert w.text.splitlines()[0] == "x = tl.load("
    assert w.text.splitlines()[2] == "    mask=f(b, c),"
    assert w.text.splitlines()[-1] == ").to(tl.float32)"


def test_no_value_takes_the_name_of_a_helper() -> None:
    from prism.backends.tile import HELPERS
    from prism.backends.triton import emit_helpers

    texts = [t for name, t in vars(emit_helpers).items() if name.isupper() and isinstance(t, str)]
    assert {m for t in texts for m in re.findall(r"^def (\w+)\(", t, re.MULTILINE)} == HELPERS
