"""Places of extremes: drawn with ties, infinities and what is not a number, in every type, against torch and onnx."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from backend_examples import BOUNDS
from cpu_batch import Case, run_batch
from frontend_onnx_models import check, node_model
from sgraph_programs import task

from prism.backends.cpu.build import find_compiler
from prism.cost.constraints import RoleBounds
from prism.frontend.onnx.reader import from_model
from prism.frontend.torch.reader import trace
from prism.generate.enumerate import generate
from prism.program.evaluate import evaluate
from prism.sgraph.nodes import Loop

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
)


CUT = replace(BOUNDS, off=frozenset({"dominated", "worse"}), roles=RoleBounds(short=0))
"""Bounds within which short rows are cut, too."""


def drawn(rng: np.random.Generator, shape: tuple[int, ...], *, floats: bool = True) -> np.ndarray:
    """Numbers of which many are equal, some infinite, and some none."""
    x = rng.integers(0, 4, shape).astype(np.float32)
    if floats:
        for value in (np.nan, np.inf, -np.inf):
            x[rng.random(shape) < rng.choice([0.0, 0.15])] = value
    return x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_torchs_places_are_of_the_first_extreme(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(5)
    for turn in range(8):
        shape = tuple(int(n) for n in rng.integers(1, 6, rng.integers(1, 4)))
        d, keep = int(rng.integers(-len(shape), len(shape))), bool(rng.integers(0, 2))
        x = torch.from_numpy(drawn(rng, shape, floats=dtype.is_floating_point)).to(dtype)

        def f(x: torch.Tensor, d: int = d, keep: bool = keep) -> tuple[torch.Tensor, ...]:
            return (x.argmax(d, keep), x.argmin(d, keep), x.argmax(), *x.max(d, keep), *x.min(d, keep))

        program = trace(f, [x])
        results = evaluate(program, {program.inputs[0].name: x.double().numpy()})
        for name, want in zip(program.outputs, f(x), strict=True):
            np.testing.assert_array_equal(results[name], want.double().numpy(), err_msg=f"{turn} {x} {d}")


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_onnxs_places_are_of_the_first_extreme_or_the_last(op: str) -> None:
    rng = np.random.default_rng(6)
    for turn in range(12):
        shape = tuple(int(n) for n in rng.integers(1, 6, rng.integers(1, 4)))
        x = drawn(rng, shape)
        attributes = {
            "axis": int(rng.integers(-len(shape), len(shape))),
            "keepdims": int(rng.integers(0, 2)),
            "select_last_index": turn % 2,
        }
        check(*node_model(op, [x], attributes, 13))


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")
def test_kernels_find_the_same_places(tmp_path: Path) -> None:
    """In C++, of one tile and of several: the first or the last of many that are equal, and what is not a number."""
    x = drawn(np.random.default_rng(7), (5, 29))
    x[0], x[1, 3] = 2.0, np.nan
    want = [np.argmax(x, 1), 28 - np.argmin(x[:, ::-1], 1)]
    cases, expected = [], []
    for op, last, places in (("ArgMax", 0, want[0]), ("ArgMin", 1, want[1])):
        attributes = {"axis": 1, "keepdims": 0, "select_last_index": last}
        program = from_model(node_model(op, [x], attributes, 13)[0], "m.onnx", None)
        made = [c.sgraph for c in generate(task(program), CUT).candidates]
        looped = [g for g in made if any(isinstance(s, Loop) for k in g.kernels for s in k.body)]
        assert any(len(g.kernels) == 1 for g in made)
        assert looped
        chosen = [*made[:2], *looped[:3]]
        cases += [Case(g, {s.name: 8 for s in g.symbols}, [x]) for g in chosen]
        expected += [places] * len(chosen)
    for (found,), places in zip(run_batch(cases, tmp_path), expected, strict=True):
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, places)
