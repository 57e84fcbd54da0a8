"""Products of bytes in emitted C++: which they are, that they are exact beyond float32, what stays as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cpu_batch import load
from sgraph_samples import F32, SUM, at, sym

from prism.backends.cpu.build import find_compiler
from prism.backends.cpu.emit import emit_module
from prism.backends.protocol import write_module
from prism.cost.counts import kernel_cost
from prism.program.extents import Extent
from prism.program.index import Axis
from prism.program.nodes import DType, ReduceKind, Tensor
from prism.sgraph.config import Config
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
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

M, K, N = 9, 1100, 40
MAX = ReduceKind.MAX
UINT8, INT8, INT32 = DType.UINT8, DType.INT8, DType.INT32


def product(
    a: DType = UINT8, b: DType = INT8, out: DType = INT32, number: str = "scalar", k: Extent = K, scaled: bool = False
) -> SGraph:
    """y[m, n] = sum_k (a[m, k] - z) * b[k, n], z one number, one a row, or a constant; perhaps times a scale."""
    am, ak, an = Axis("m", M), Axis("k", k), Axis("n", N)
    zero: tuple[Stmt, ...] = ()
    if number != "constant":
        read = Load("z", "z", at(am) if number == "row" else ())
        zero = (read, Pointwise("zero", "mul", ("z", -1.0)))
    shifted = Pointwise("x", "add", ("a", "zero" if zero else -131.0))
    inner = (Load("a", "a", at(am, ak)), shifted, Load("b", "b", at(ak, an)), Contract("p", ak, "x", "b"))
    last: tuple[Stmt, ...] = (Store("y", at(am, an), "acc"),)
    if scaled:
        last = (Pointwise("s", "mul", ("acc", 0.5)), Store("y", at(am, an), "s"))
    body = (*zero, Loop(ak, (*inner, Accumulate("acc", SUM, "p"))), *last)
    roles = ((am, Grid(sym("T_m"))), (an, Grid(sym("T_n"))), (ak, LoopRole(sym("T_k"))))
    inputs = [Tensor("a", (M, k), a), Tensor("b", (k, N), b)]
    if zero:
        inputs.append(Tensor("z", (M,) if number == "row" else (), UINT8))
    return SGraph("bytes", tuple(inputs), (), (Tensor("y", (M, N), out),), (Kernel("k", roles, body),))


def quantised(divisor: str, k: int = 70, whole: bool = True) -> SGraph:
    """y[m, n] = 0.5 * sum_k q[m, k] * b[k, n], q = round(x / d) within int8, d of a row's largest."""
    am, ak, an = Axis("m", M), Axis("k", k), Axis("n", N)
    least = [Pointwise("d", "maximum", ("top", 1e-6))]
    apart = [Pointwise("none", "eq", ("top", 0.0)), Pointwise("least", "mul", ("top", 0.01))]
    apart.append(Pointwise("d", "where", ("none", 1.0, "least")))
    steps: dict[str, list[Pointwise]] = {
        "bounded": least,
        "apart": apart,
        "zero": [Pointwise("d", "mul", ("top", 0.01))],
    }
    read = Load("x", "x", at(am, ak))
    large = Pointwise("large", "abs", ("x",))
    share = Pointwise("share", "mul", ("x", "inverse"))
    level: tuple[Stmt, ...] = (
        Pointwise("level", "round", ("share",)),
        Pointwise("above", "maximum", ("level", -128.0)),
        Pointwise("q", "minimum", ("above", 127.0)),
        Load("b", "b", at(ak, an)),
    )
    divided = (*steps[divisor], Pointwise("inverse", "recip", ("d",)))
    last = (Pointwise("s", "mul", ("p", 0.5)), Store("y", at(am, an), "s"))
    body: tuple[Stmt, ...] = (read, large, TileReduce("top", MAX, ak, "large"), *divided, share, *level)
    body = (*body, Contract("p", ak, "q", "b"), *last)
    if not whole:
        first = Loop(ak, (read, large, TileReduce("most", MAX, ak, "large"), Accumulate("top", MAX, "most")))
        again = (replace(read, dst="again"), replace(share, args=("again", "inverse")), *level)
        second = Loop(ak, (*again, Contract("part", ak, "q", "b"), Accumulate("p", SUM, "part")))
        body = (first, *divided, second, *last)
    roles = ((am, Grid(sym("T_m"))), (an, Grid(sym("T_n"))), (ak, Whole() if whole else LoopRole(sym("T_k"))))
    inputs = (Tensor("x", (M, k), F32), Tensor("b", (k, N), INT8))
    return SGraph("quantised", inputs, (), (Tensor("y", (M, N), F32),), (Kernel("k", roles, body),))


def in_integers(g: SGraph) -> bool:
    return any("multiply_bytes(\n" in text for text in emit_module(g).extra.values())


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")
@pytest.mark.parametrize("number", ["scalar", "constant"])
@pytest.mark.parametrize("types", [(UINT8, INT8), (INT8, UINT8)])
def test_sums_of_products_of_bytes_are_exact_beyond_what_float32_holds(
    number: str, types: tuple[DType, DType], tmp_path: Path
) -> None:
    g = product(*types, number=number)
    assert in_integers(g)
    source = emit_module(g, configs={"cpu": [Config({"T_m": 16, "T_n": 32, "T_k": 512}, {}, {})]})
    module = load(write_module(source, tmp_path / f"{source.entry}.py"), f"bytes_{number}_{types[0]}")
    rng = np.random.default_rng(0)
    ends = [np.iinfo(t.value) for t in types]
    a, b = (rng.integers(e.max - 3, e.max + 1, s).astype(e.dtype) for e, s in zip(ends, ((M, K), (K, N)), strict=True))
    z = np.uint8(131 if number == "constant" else 3)
    y = getattr(module, source.entry)(a, b, *([np.array(z)] if number == "scalar" else []))
    exact = (a.astype(np.int64) - int(z)) @ b.astype(np.int64)
    assert number == "constant" or np.abs(exact).max() > 2**24
    assert np.array_equal(y, exact)


def test_other_products_stay_in_float32() -> None:
    """Of sums that may leave int32, or are of unknown length, of numbers that differ by row, and of floats."""
    assert in_integers(product(out=F32, scaled=True))
    assert not in_integers(product(k=80_000))
    assert not in_integers(product(k=sym("K")))
    assert not in_integers(product(number="row"))
    assert not in_integers(product(b=F32, out=F32))


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")
@pytest.mark.parametrize("divisor", ["bounded", "apart", "zero"])
@pytest.mark.parametrize("tile", [70, 32])
def test_bytes_may_be_computed_and_are_nan_where_they_are_no_numbers(divisor: str, tile: int, tmp_path: Path) -> None:
    """0/0 is NaN, which no byte is: of a row of zeros, or where a hundredth of what is subnormal is 0 in float32."""
    g = quantised(divisor, whole=tile == 70)
    assert in_integers(g)
    source = emit_module(g, configs={"cpu": [Config({"T_m": 4, "T_n": 16, "T_k": tile}, {}, {})]})
    module = load(write_module(source, tmp_path / f"{source.entry}.py"), f"quantised_{divisor}_{tile}")
    rng = np.random.default_rng(0)
    x, b = rng.standard_normal((M, 70)).astype(np.float32), rng.integers(-128, 128, (70, N)).astype(np.int8)
    x[3:7] = 0.0
    x[4, 8], x[5, 8], x[6, 0], x[8, 60] = 1e-44, 1e-41, np.inf, np.nan
    top = np.abs(x).max(1, keepdims=True)
    part = top * np.float32(0.01)
    d = {"bounded": np.maximum(top, np.float32(1e-6)), "apart": np.where(top == 0, 1, part), "zero": part}[divisor]
    with np.errstate(all="ignore"):
        q = np.clip(np.round(x / d), -128, 127).astype(np.float64)
    expected = (0.5 * (q @ b.astype(np.float64))).astype(np.float32)
    missing = [3] * (divisor == "zero") + [4] * (divisor != "bounded") + [6, 8]
    assert [*np.flatnonzero(np.isnan(expected).all(1))] == missing
    assert np.array_equal(getattr(module, source.entry)(x, b), expected, equal_nan=True)


def test_the_model_knows_them() -> None:
    def of_bytes(g: SGraph) -> bool:
        (dot,) = kernel_cost(g.kernels[0], g).dots
        return dot.of_bytes

    assert of_bytes(product())
    assert of_bytes(quantised("apart"))
    assert not of_bytes(product(number="row"))
    assert not of_bytes(product(b=F32, out=F32))
