"""Even and odd elements are loaded together: as emitted, in the interpreter, as compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from compiled_code import VERSIONS, CodeOf
from interpreting import InterpreterPool, InterpretJob
from sgraph_small import F32, SUM, at, tile

from prism.backends.triton.emit import emit_module
from prism.program.index import Axis, Index
from prism.program.nodes import Tensor
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
)

M, N, K = 5, 12, 37


def halves(first: int, second: int, stride: int = 2, looped: bool = True, k: int = K, more: int = 2) -> SGraph:
    """y[m,n] = sum_k x[m, 2k+first]*w[n,k] - sum_k x[m, 2k+second]*w[n,k], or without the sum y[m,k] of x alone."""
    am, an, ak = Axis("m", M), Axis("n", N), Axis("k", k)
    step = Index.axis(ak).scaled(stride)
    a, b = (Load(v, "x", (Index.axis(am), step + n)) for v, n in (("a", first), ("b", second)))
    x = Tensor("x", (M, stride * k + more), F32)
    if not looped:
        body: tuple[Stmt, ...] = (a, b, Pointwise("c", "mul", ("b", 2.0)), Pointwise("y", "add", ("a", "c")))
        kernel = Kernel(
            "half", ((am, Grid(tile("T_m"))), (ak, Grid(tile("T_k")))), (*body, Store("y", at(am, ak), "y"))
        )
        return SGraph("halves", (x,), (), (Tensor("y", (M, k), F32),), (kernel,))
    inner: tuple[Stmt, ...] = (
        a,
        Load("w", "w", at(an, ak)),
        Contract("p", ak, "a", "w"),
        b,
        Contract("q", ak, "b", "w"),
        Accumulate("s", SUM, "p"),
        Accumulate("t", SUM, "q"),
    )
    last = (Pointwise("u", "mul", ("t", -1.0)), Pointwise("v", "add", ("s", "u")), Store("y", at(am, an), "v"))
    roles = ((am, Grid(tile("T_m"))), (an, Grid(tile("T_n"))), (ak, LoopRole(tile("T_k"))))
    kernel = Kernel("half", roles, (Loop(ak, inner), *last))
    return SGraph("halves", (x, Tensor("w", (N, k), F32)), (), (Tensor("y", (M, N), F32),), (kernel,))


def run(interpreter: InterpreterPool, folder: Path, g: SGraph, *inputs: np.ndarray) -> np.ndarray:
    spec.check(g)
    source = emit_module(g, formula="", configs={})
    path = folder / "halves.py"
    path.write_text(source.text)
    symbols = {"T_m": 4, "T_n": 16, "T_k": 16}
    config = Config({s.name: symbols[s.name] for s in g.symbols}, {"half": 4}, {"half": 2})
    (y,) = interpreter.run(InterpretJob(path, source.entry, inputs, tuple(t.dtype.value for t in g.inputs), config))
    return y


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (1, 2)])
def test_even_and_odd_elements_are_loaded_together(
    interpreter: InterpreterPool, tmp_path: Path, first: int, second: int
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((M, 2 * K + 2)).astype(np.float32)
    w = rng.standard_normal((N, K)).astype(np.float32)
    a, b = x[:, first::2][:, :K], x[:, second::2][:, :K]
    g = halves(first, second)
    assert emit_module(g, formula="", configs={}).text.count("tl.split(") == 1
    np.testing.assert_allclose(run(interpreter, tmp_path, g, x, w), (a - b) @ w.T, rtol=1e-4, atol=1e-4)
    # Masks of ragged tiles hold for both of a pair.
    g = halves(first, second, looped=False)
    assert emit_module(g, formula="", configs={}).text.count("tl.split(") == 1
    np.testing.assert_allclose(run(interpreter, tmp_path, g, x), a + 2 * b, rtol=1e-6)


@pytest.mark.parametrize(("first", "second", "stride"), [(0, 1, 1), (0, 2, 2), (0, 1, 3), (1, 1, 2)])
def test_other_neighbours_are_not(first: int, second: int, stride: int) -> None:
    g = halves(first, second, stride)
    spec.check(g)
    assert "tl.split(" not in emit_module(g, formula="", configs={}).text


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("looped", [False, True])
def test_a_thread_has_as_many_bytes_of_pairs_as_of_anything(code_of: CodeOf, version: str, looped: bool) -> None:
    g = halves(0, 1, looped=looped, k=256, more=4)
    symbols = {"T_m": 1, "T_n": 16, "T_k": 256}
    config = Config({s.name: symbols[s.name] for s in g.symbols}, {"half": 4}, {"half": 2})
    (code,) = code_of(g, config, version=version)
    found = [x for x in code.ptx.splitlines() if "ld.global" in x or "cp.async.c" in x]
    assert found
    assert all("v4.b32" in x or "0x10" in x for x in found), found
