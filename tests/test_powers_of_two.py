"""Logarithms and exponentials to the base 2 are exact at powers of two, which the scales of blocks are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_batch import load
from interpreting import InterpreterPool, InterpretJob
from sgraph_samples import F32, at, sym

from prism.api import prove
from prism.backends.cpu.build import find_compiler
from prism.backends.cpu.emit import emit_module
from prism.backends.protocol import write_module
from prism.backends.triton.emit import emit_module as emit_triton
from prism.program.index import Axis
from prism.program.nodes import Tensor
from prism.program.verdict import Status
from prism.sgraph.config import Config
from prism.sgraph.nodes import Grid, Kernel, Load, Pointwise, SGraph, Store

N = 512
LN_2 = 0.6931471805599453


def powers() -> SGraph:
    """y[n] = 2^floor(log2 x), z[n] = log2 x."""
    an = Axis("n", N)
    body = (
        Load("x", "x", at(an)),
        Pointwise("l", "log2", ("x",)),
        Store("z", at(an), "l"),
        Pointwise("e", "floor", ("l",)),
        Pointwise("p", "mul", (LN_2, "e")),
        Pointwise("w", "exp", ("p",)),
        Store("y", at(an), "w"),
    )
    made = (Tensor("y", (N,), F32), Tensor("z", (N,), F32))
    return SGraph("powers", (Tensor("x", (N,), F32),), (), made, (Kernel("k", ((an, Grid(sym("T_n"))),), body),))


def drawn() -> np.ndarray:
    """Powers of two, subnormal ones too, and numbers between them that lie well above."""
    whole = np.exp2(np.arange(-140.0, 116.0))
    return np.concatenate([whole, whole * np.random.default_rng(0).uniform(1.001, 1.999, whole.size)]).astype(
        np.float32
    )


def check(y: np.ndarray, z: np.ndarray) -> None:
    x = drawn().astype(np.float64)
    assert np.array_equal(y, np.exp2(np.floor(np.log2(x))))
    assert np.array_equal(z[:256], np.arange(-140.0, 116.0))
    assert np.allclose(z, np.log2(x), rtol=2e-7, atol=1e-7)


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")
def test_in_cxx(tmp_path: Path) -> None:
    source = emit_module(powers(), configs={"cpu": [Config({"T_n": 64}, {}, {})]})
    module = load(write_module(source, tmp_path / f"{source.entry}.py"), "powers_of_two")
    check(*getattr(module, source.entry)(drawn()))


def test_in_triton(interpreter: InterpreterPool, tmp_path: Path) -> None:
    source = emit_triton(powers(), formula="", configs={})
    path = tmp_path / "powers.py"
    path.write_text(source.text)
    config = Config({"T_n": 64}, {"k": 4}, {"k": 2})
    check(*interpreter.run(InterpretJob(path, source.entry, (drawn(),), ("float32",), config)))


LOG_2 = torch.log2
PAIRS = {
    "by log": (lambda x: LOG_2(x * x + 1), lambda x: torch.log(x * x + 1) / LN_2, Status.PROVED),
    "back": (lambda x: torch.exp2(LOG_2(x * x + 1)), lambda x: x * x + 1, Status.PROVED),
    "sum": (lambda x: LOG_2(x * x + 1) + LOG_2(x * x + 2), lambda x: LOG_2((x * x + 1) * (x * x + 2)), Status.PROVED),
    "other base": (lambda x: LOG_2(x * x + 1), lambda x: torch.log(x * x + 1), Status.REFUTED),
    "rounded": (lambda x: LOG_2(x * x + 1).floor(), lambda x: (LOG_2(x * x + 1) + 0.5).floor(), Status.REFUTED),
}


@pytest.mark.parametrize("name", PAIRS)
def test_laws(name: str) -> None:
    left, right, expected = PAIRS[name]
    assert prove(left, right, [torch.ones(4, 3)]).status is expected
