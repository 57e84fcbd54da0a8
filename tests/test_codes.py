"""Codes in the bits of an integer are taken out by shifts and masks: what is written, and what comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from interpreting import InterpreterPool, InterpretJob
from sgraph_small import at, tile

from prism.backends.lower import lower
from prism.backends.passes.codes import coded
from prism.backends.tile import Pointwise as TilePointwise
from prism.backends.tile_spec import check_module
from prism.backends.triton.emit import emit_module
from prism.ir.kit import statements
from prism.program.index import Axis
from prism.program.nodes import DType, Tensor
from prism.sgraph import spec
from prism.sgraph.config import Config
from prism.sgraph.nodes import Grid, Kernel, Load, Pointwise, SGraph, Store

M, N = 5, 21
AM, AN = Axis("m", M), Axis("n", N)


def unpacking(dtype: DType, bits: int = 4, back: float | None = None, other: bool = False) -> SGraph:
    """high = floor(w / 2**bits) and low = w - 2**bits * high, or with another factor or another value in w's place."""
    factor = -float(1 << bits) if back is None else back
    body = (
        Load("w", "w", at(AM, AN)),
        *((Load("v", "v", at(AM, AN)),) if other else ()),
        Pointwise("s", "mul", ("w", 2.0**-bits)),
        Pointwise("h", "floor", ("s",)),
        Pointwise("t", "mul", (factor, "h")),
        Pointwise("l", "add", ("v" if other else "w", "t")),
        Store("high", at(AM, AN), "h"),
        Store("low", at(AM, AN), "l"),
    )
    inputs = (Tensor("w", (M, N), dtype), *((Tensor("v", (M, N), dtype),) if other else ()))
    outputs = tuple(Tensor(n, (M, N), DType.FLOAT32) for n in ("high", "low"))
    kernel = Kernel("codes", ((AM, Grid(tile("T_m"))), (AN, Grid(tile("T_n")))), body)
    return SGraph("unpack", inputs, (), outputs, (kernel,))


def operations(g: SGraph) -> list[str]:
    spec.check(g)
    (program,) = lower(g).programs
    return [s.op for s in statements(coded(program).body) if isinstance(s, TilePointwise)]


@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT8])
@pytest.mark.parametrize("bits", [1, 2, 4, 7])
def test_a_division_that_is_rounded_down_is_a_shift_and_what_it_leaves_a_mask(dtype: DType, bits: int) -> None:
    assert operations(unpacking(dtype, bits)) == ["shift", "bits"]


def test_what_is_no_code_stays() -> None:
    before = ["mul", "floor", "mul", "add"]
    assert operations(unpacking(DType.FLOAT32)) == before
    assert operations(unpacking(DType.INT32)) == before
    # 9 bits of 8.
    assert operations(unpacking(DType.UINT8, 9)) == before
    # What is left is not what was divided, or not by as much: only the division is one.
    half = ["shift", "mul", "add"]
    assert operations(unpacking(DType.UINT8, 4, back=-8.0)) == half
    assert operations(unpacking(DType.UINT8, 4, back=16.0)) == half
    assert operations(unpacking(DType.UINT8, 4, other=True)) == half


@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT8])
def test_every_code_comes_out_negative_ones_as_well(interpreter: InterpreterPool, tmp_path: Path, dtype: DType) -> None:
    bits = 4
    g = unpacking(dtype, bits)
    check_module(lower(g))
    source = emit_module(g, formula="", configs={})
    assert ">> 4)" in source.text
    assert "& 15)" in source.text
    path = tmp_path / "unpack.py"
    path.write_text(source.text)
    first = 0 if dtype is DType.UINT8 else -128
    config = Config({"T_m": 4, "T_n": 16}, {"codes": 4}, {"codes": 1})
    for start in range(first, first + 256, M * N):
        w = np.clip(np.arange(start, start + M * N), first, first + 255).reshape(M, N).astype(dtype.value)
        high, low = interpreter.run(InterpretJob(path, source.entry, (w,), (dtype.value,), config))
        np.testing.assert_array_equal(high, np.floor(w.astype(np.float64) / 16))
        np.testing.assert_array_equal(low, w.astype(np.float64) - 16 * np.floor(w.astype(np.float64) / 16))
