"""At NaN, infinities and zeros with a minus, programs and kernels have the values that torch has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
import torch
from cpu_batch import Array, Case
from sgraph_samples import at, op, sym
from test_backends import NEEDS_COMPILER, Expected, Runs
from torch.nn import functional as F

import prism
from prism.backends.cpu.support import find_compiler
from prism.program.arrays import NumpyArrays
from prism.program.evaluate import evaluate
from prism.program.formulas import UNARY
from prism.program.index import Axis
from prism.program.nodes import DType, Tensor
from prism.program.ops import OPS
from prism.sgraph.nodes import Grid, Kernel, Load, SGraph, Stmt, Store

Function: TypeAlias = Callable[..., torch.Tensor]
INF = float("inf")
VALUES = (float("nan"), INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 2.5, -3.0, 20.0, -20.0)
LEFT, RIGHT = (np.array(a).ravel() for a in np.meshgrid(VALUES, VALUES, indexing="ij"))


def one(name: str) -> Function:
    found: Function = F.logsigmoid if name == "log_sigmoid" else getattr(torch, name, None) or getattr(F, name)
    return found


def infinite(y: torch.Tensor) -> torch.Tensor:
    """Some of it, of finite numbers."""
    return torch.where(y > 10, INF, torch.where(y < -10, -INF, y))


TWO = ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "fmax", "fmin", "atan2", "copysign", "xlogy"]
TWO += ["heaviside", "lt", "le", "gt", "ge", "eq", "ne"]
FINITE: Mapping[str, Function] = {
    name: lambda x, y, name=name: getattr(torch, name)(x, infinite(y))
    for name in ("fmod", "remainder", "floor_divide", "logaddexp")
}
"""What takes inputs for finite numbers: given those, it has to be right of infinities that a program makes of them."""


def differences(functions: Mapping[str, Function], *inputs: Array) -> list[str]:
    """What torch and the program of all the functions have different values of."""
    given = [torch.tensor(a) for a in inputs]

    def every(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(f(*args) for f in functions.values())

    p = prism.trace(every, tuple(torch.full_like(t, 0.5) for t in given), check=False)
    with np.errstate(all="ignore"):
        found = evaluate(p, {t.name: a for t, a in zip(p.inputs, inputs, strict=True)})
    wrong = []
    for name, output, want in zip(functions, p.outputs, every(*given), strict=True):
        got, right = np.asarray(found[output], np.float64), want.numpy().astype(np.float64)
        same = np.isclose(got, right, rtol=1e-9, atol=1e-12, equal_nan=True)
        wrong += [f"{name}{tuple(a[n] for a in inputs)}: {got[n]}, not {right[n]}" for n in np.flatnonzero(~same)]
    return wrong


def test_functions_of_one_number() -> None:
    assert not differences({name: one(name) for name in UNARY}, np.array(VALUES))


def test_functions_of_two_numbers() -> None:
    weights = {f"lerp {w}": lambda x, y, w=w: torch.lerp(x, y, w) for w in (0.0, 0.3, 0.5, 0.7, 1.0)}
    assert not differences({name: getattr(torch, name) for name in TWO} | weights, LEFT, RIGHT)


def test_infinities_that_a_program_makes() -> None:
    finite = np.isfinite(LEFT) & np.isfinite(RIGHT)
    assert not differences(FINITE, LEFT[finite], RIGHT[finite])


@pytest.fixture(scope="module", params=["sm_90", "cpu"], ids=["Triton", "C++"])
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    if request.param == "cpu" and find_compiler() is None:
        pytest.skip(NEEDS_COMPILER)
    made = Runs(request.param)
    yield made
    made.child.close()


def test_kernels(runs: Runs, tmp_path: Path) -> None:
    n = Axis("n", len(LEFT))
    names = [name for name in OPS if OPS[name].arity < 3 and name != "bitand"]
    body: list[Stmt] = [Load("left", "x", at(n)), Load("right", "y", at(n))]
    body += [op(f"v_{name}", name, *("left", "right")[: OPS[name].arity]) for name in names]
    # truth values are chosen by, as no kernel stores them as numbers
    body += [op(f"c_{name}", "where", f"v_{name}", 1.0, 0.0) for name in names if OPS[name].boolean]
    body += [Store(f"{name}_out", at(n), f"{'c' if OPS[name].boolean else 'v'}_{name}") for name in names]
    made = [Tensor(t, (n.extent,), DType.FLOAT32) for t in ("x", "y", *(f"{name}_out" for name in names))]
    kernel = Kernel("special_kernel", ((n, Grid(sym("T_n"))),), tuple(body))
    sgraph = SGraph("special", tuple(made[:2]), (), tuple(made[2:]), (kernel,))
    with np.errstate(all="ignore"):
        want = [NumpyArrays().pointwise(name, (LEFT, RIGHT)[: OPS[name].arity]) for name in names]
    runs.conform([Expected(Case(sgraph, {"T_n": 32}, [LEFT, RIGHT]), tuple(want), 1e-5, "special")], tmp_path)


def test_a_function_with_the_name_of_a_helper(runs: Runs, tmp_path: Path) -> None:
    n = Axis("n", len(VALUES))
    body = (Load("v", "x", at(n)), op("s", "sign", "v"), Store("y", at(n), "s"))
    tensors = [Tensor(t, (n.extent,), DType.FLOAT32) for t in "xy"]
    kernel = Kernel("sign_kernel", ((n, Grid(sym("T_n"))),), body)
    sgraph = SGraph("sign", (tensors[0],), (), (tensors[1],), (kernel,))
    want = torch.sign(torch.tensor(VALUES)).double().numpy()
    runs.conform([Expected(Case(sgraph, {"T_n": 16}, [np.array(VALUES)]), (want,), 0.0, "sign")], tmp_path)
