"""Small integers become floats by their bits, and codes of a byte are multiplied by neighbours: as numbers, as emitted,
as compiled."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from compiled_code import CodeOf
from interpreting import InterpreterPool, InterpretJob
from sgraph_small import SUM, at, tile

from prism.backends.lower import lower
from prism.backends.passes.codes import coded
from prism.backends.passes.small_integers import ranged, written
from prism.backends.tile import Cast
from prism.backends.tile_spec import check_module
from prism.backends.triton.emit import emit_module
from prism.ir.kit import statements
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Tensor
from prism.sgraph import spec
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
)

BF16, F16, F32 = DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32
FRACTION = {BF16: 7, F16: 10, F32: 23}
CONVERSION = re.compile(r"cvt\.rn\.(?:bf16|f16|f32)\.[su](?:8|16|32)\b")


# Numbers.


def floats(bits: np.ndarray, dtype: DType) -> torch.Tensor:
    """What bits mean as a float."""
    whole = torch.from_numpy(bits.astype(np.int32 if dtype.bytes == 4 else np.int16))
    return whole.view(getattr(torch, dtype.value))


@pytest.mark.parametrize("dtype", FRACTION)
def test_every_integer_of_every_range_that_fits_is_exact(dtype: DType) -> None:
    room = 1 << FRACTION[dtype]
    longest = min(room, 512)
    for least in (*range(-min(room, 300), 1), 1, 7, room - longest):
        among = least, min(least, 0) + longest - 1
        found = written(dtype, among)
        assert found is not None
        integers = np.arange(*among, dtype=np.int64)
        bits = integers + found.base - found.least
        if found.least == 0:
            np.testing.assert_array_equal(bits, integers | found.base)
        made = floats(bits, dtype) - torch.tensor(float(found.offset), dtype=getattr(torch, dtype.value))
        np.testing.assert_array_equal(made.double().numpy(), integers)
        assert not np.signbit(made.double().numpy()[integers == 0]).any()


@pytest.mark.parametrize("dtype", FRACTION)
def test_a_range_longer_than_the_fraction_is_refused(dtype: DType) -> None:
    room = 1 << FRACTION[dtype]
    for among in ((0, room), (-1, room - 1), (-room // 2, room // 2), (1, room)):
        assert written(dtype, among) is None
    assert written(dtype, (-room // 2, room // 2 - 1)) is not None


# What is emitted.

M, N, K = 5, 21, 40


def both_codes(
    m: Extent = M,
    n: Extent = N,
    k: Extent = K,
    dtype: DType = BF16,
    *,
    turned: bool = False,
    sums: bool = False,
    codes: DType = DType.UINT8,
    upper_first: bool = False,
) -> SGraph:
    """y[m,n] = sum_j x[m,2j]*low(w[n,j]) + x[m,2j+1]*high(w[n,j]); also s[m] = sum_j of x; `turned` is y[n,m].

    With `upper_first` it is the high code that even elements are multiplied by.
    """
    am, an, ak = Axis("m", m), Axis("n", n), Axis("k", k)
    even, odd = ((Index.axis(am), Index.axis(ak).scaled(2) + p) for p in (0, 1))
    loop: list[Stmt] = [
        Load("e", "x", even),
        Load("o", "x", odd),
        Load("w", "w", at(an, ak)),
        Pointwise("s", "mul", ("w", 0.0625)),
        Pointwise("h", "floor", ("s",)),
        Pointwise("t", "mul", (-16.0, "h")),
        Pointwise("l", "add", ("w", "t")),
        Contract("p", ak, "e" if upper_first else "o", "h"),
        Contract("q", ak, "o" if upper_first else "e", "l"),
        Pointwise("both", "add", ("p", "q")),
        Accumulate("acc", SUM, "both"),
    ]
    if sums:
        loop += [TileReduce("a", SUM, ak, "e"), TileReduce("b", SUM, ak, "o"), Pointwise("ab", "add", ("a", "b"))]
        loop += [Accumulate("total", SUM, "ab")]
    stored: list[Stmt] = [Loop(ak, tuple(loop)), Store("y", at(an, am) if turned else at(am, an), "acc")]
    outputs = [Tensor("y", (n, m) if turned else (m, n), F32)]
    if sums:
        stored, outputs = [*stored, Store("z", at(am), "total")], [*outputs, Tensor("z", (m,), F32)]
    rows, columns = (am, Grid(tile("T_m"))), (an, Grid(tile("T_n")))
    roles = (*((columns, rows) if turned else (rows, columns)), (ak, LoopRole(tile("T_k"))))
    inputs = (Tensor("x", (m, 2 * k), dtype), Tensor("w", (n, k), codes))
    return SGraph("both_codes", inputs, (), tuple(outputs), (Kernel("codes", roles, tuple(stored)),))


def config(**symbols: int) -> Config:
    return Config(symbols, {"codes": 4}, {"codes": 3})


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sums", [False, True])
def test_codes_are_multiplied_by_neighbours(
    interpreter: InterpreterPool, tmp_path: Path, dtype: DType, turned: bool, sums: bool
) -> None:
    g = both_codes(dtype=dtype, turned=turned, sums=sums)
    spec.check(g)
    check_module(lower(g))
    source = emit_module(g, formula="", configs={})
    assert source.text.count("tl.dot(") == 1
    # Both codes of a byte are converted as one word.
    assert source.text.count("bitcast=True") == 1
    assert source.text.count(">> 16") == 1
    assert ("tl.split(" in source.text) is sums
    path = tmp_path / "codes.py"
    path.write_text(source.text)
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 9, (M, 2 * K)).astype(np.float32)
    w = rng.integers(0, 256, (N, K)).astype(np.uint8)
    # 40 is no multiple of 16: the last tile's mask has every element twice, too.
    found = interpreter.run(
        InterpretJob(path, source.entry, (x, w), (dtype.value, "uint8"), config(T_m=16, T_n=16, T_k=16))
    )
    want = x[:, ::2] @ (w & 15).T.astype(np.float64) + x[:, 1::2] @ (w >> 4).T.astype(np.float64)
    np.testing.assert_array_equal(found[0], want.T if turned else want)
    if sums:
        np.testing.assert_array_equal(found[1], x.sum(1))


@pytest.mark.parametrize(("stored", "upper_first"), [(DType.UINT8, True), (DType.INT8, False), (DType.INT8, True)])
def test_whichever_code_comes_first_and_whatever_the_sign(
    interpreter: InterpreterPool, tmp_path: Path, stored: DType, upper_first: bool
) -> None:
    """Of signed bytes the upper code has a sign, which a word's mask would not keep: they are converted one by one."""
    g = both_codes(codes=stored, upper_first=upper_first)
    source = emit_module(g, formula="", configs={})
    assert source.text.count("bitcast=True") == (1 if stored is DType.UINT8 else 2)
    path = tmp_path / "codes.py"
    path.write_text(source.text)
    rng = np.random.default_rng(1)
    x = rng.integers(-8, 9, (M, 2 * K)).astype(np.float32)
    first = 0 if stored is DType.UINT8 else -128
    w = (np.arange(N * K) % 256 + first).reshape(N, K).astype(stored.value)
    job = InterpretJob(path, source.entry, (x, w), ("bfloat16", stored.value), config(T_m=16, T_n=32, T_k=16))
    (y,) = interpreter.run(job)
    high = w.astype(np.int64) >> 4
    codes = (w.astype(np.int64) & 15, high)
    even, odd = codes[::-1] if upper_first else codes
    np.testing.assert_array_equal(y, x[:, ::2] @ even.T + x[:, 1::2] @ odd.T)


def byte_product(stored: DType, dtype: DType = BF16) -> SGraph:
    """y[m,n] = sum_k x[m,k]*w[n,k], bytes times floats."""
    am, an, ak = Axis("m", M), Axis("n", N), Axis("k", K)
    loop = (
        Load("a", "x", at(am, ak)),
        Load("b", "w", at(an, ak)),
        Contract("p", ak, "a", "b"),
        Accumulate("acc", SUM, "p"),
    )
    roles = ((am, Grid(tile("T_m"))), (an, Grid(tile("T_n"))), (ak, LoopRole(tile("T_k"))))
    kernel = Kernel("codes", roles, (Loop(ak, loop), Store("y", at(am, an), "acc")))
    inputs = (Tensor("x", (M, K), dtype), Tensor("w", (N, K), stored))
    return SGraph("bytes", inputs, (), (Tensor("y", (M, N), F32),), (kernel,))


def conversions(g: SGraph) -> list[tuple[DType, tuple[int, int] | None]]:
    """Of integers, to what and among which."""
    (program,) = lower(g).programs
    made = ranged(coded(program))
    return [(s.dtype, s.among) for s in statements(made.body) if isinstance(s, Cast) and s.dtype.is_float]


def test_a_conversion_of_a_conversion_is_one_where_the_type_has_room() -> None:
    assert conversions(both_codes()) == [(BF16, (0, 15))] * 2
    assert conversions(byte_product(DType.UINT8, F16)) == [(F16, (0, 255))]
    assert conversions(byte_product(DType.INT8, F16)) == [(F16, (-128, 127))]
    assert conversions(byte_product(DType.INT8, F32)) == [(F32, (-128, 127))]
    # 255 has eight bits: float32 has room, and rounding to bfloat16 loses nothing. Signed bytes are left to Triton.
    assert conversions(byte_product(DType.UINT8)) == [(F32, (0, 255)), (BF16, None)]
    assert conversions(byte_product(DType.INT8)) == []
    assert conversions(byte_product(F32)) == []


@pytest.mark.parametrize("stored", [DType.UINT8, DType.INT8])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_every_byte_is_exact_in_a_product(
    interpreter: InterpreterPool, tmp_path: Path, stored: DType, dtype: DType
) -> None:
    source = emit_module(byte_product(stored, dtype), formula="", configs={})
    path = tmp_path / "bytes.py"
    path.write_text(source.text)
    first = 0 if stored is DType.UINT8 else -128
    w = (np.arange(N * K) % 256 + first).reshape(N, K).astype(stored.value)
    x = np.eye(M, K, dtype=np.float32) * 2.0
    job = InterpretJob(path, source.entry, (x, w), (dtype.value, stored.value), config(T_m=16, T_n=32, T_k=16))
    (y,) = interpreter.run(job)
    np.testing.assert_array_equal(y, 2.0 * w[:, :M].T.astype(np.float64))


# What the compilers make of it.


def test_no_integer_is_converted_and_no_tile_goes_through_shared_memory_twice(
    code_of: CodeOf,
) -> None:
    g = both_codes(16, 4096, 2048, sums=True)
    for version in code_of.versions:
        (code,) = code_of(g, config(T_m=16, T_n=32, T_k=64), version=version)
        ptx, ttgir = code.ptx, code.ttgir
        assert not CONVERSION.findall(ptx)
        # What is subtracted is, from two codes at once.
        assert re.search(r"\b(add|sub|fma)(\.rn)?\.bf16x2", ptx)
        assert not re.search(r"\b(add|sub|fma)(\.rn)?\.bf16\b", ptx)
        loop = ttgir[ttgir.index("scf.for") : ttgir.rindex("scf.yield")]
        assert loop.count("tt.dot ") == 1
        assert loop.count("ttg.async_copy_global_to_local") == 2
        assert "ttg.convert_layout" not in loop
        assert "ttg.local_alloc" not in loop


def test_signed_bytes_are_not_converted_either(code_of: CodeOf) -> None:
    for stored, version in itertools.product((DType.INT8, DType.UINT8), code_of.versions):
        (code,) = code_of(byte_product(stored), config(T_m=16, T_n=32, T_k=32), version=version)
        assert not CONVERSION.findall(code.ptx), stored
