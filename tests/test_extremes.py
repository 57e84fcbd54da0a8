"""Places of extremes: drawn with ties, infinities and what is not a number, in every type, against torch and onnx."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from backend_examples import BOUNDS
from cpu_batch import Case, run_batch
from frontend_onnx_models import check, node_model
from interpreting import InterpreterPool, InterpretJob
from sgraph_programs import task
from sgraph_simulator import simulate

from prism.backends.cpu.build import find_compiler
from prism.backends.triton.emit import emit_module
from prism.cost.constraints import RoleBounds
from prism.errors import IllegalIRError
from prism.frontend.onnx.reader import from_model
from prism.frontend.torch.reader import trace
from prism.generate.enumerate import generate
from prism.program.build import const, op, position, read, reduce
from prism.program.evaluate import evaluate
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.nodes import DType, ReduceKind, Tensor
from prism.sgraph.config import Config
from prism.sgraph.denote import denote
from prism.sgraph.nodes import (
    Accumulate,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Pointwise,
    Position,
    SGraph,
    Stmt,
    Store,
    TileReduce,
)
from prism.sgraph.value_bounds import shape

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


def at_once(g: SGraph) -> bool:
    """Whether a place is found in the pass that finds its extreme."""
    statements = [s for k in g.kernels for s in k.statements() if isinstance(s, Accumulate)]
    return any(s.kind is ReduceKind.MIN and s.shift is not None for s in statements)


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")
def test_kernels_find_the_same_places(tmp_path: Path) -> None:
    """In C++, of one tile and of several: the first or the last of many that are equal, and what is not a number."""
    x = drawn(np.random.default_rng(7), (5, 29))
    x[0], x[1, 3] = 2.0, np.nan
    want = [np.argmax(x, 1), np.argmin(x, 1), 28 - np.argmin(x[:, ::-1], 1)]
    cases, expected = [], []
    for name, last, places in (("ArgMax", 0, want[0]), ("ArgMin", 0, want[1]), ("ArgMin", 1, want[2])):
        attributes = {"axis": 1, "keepdims": 0, "select_last_index": last}
        program = from_model(node_model(name, [x], attributes, 13)[0], "m.onnx", None)
        made = [c.sgraph for c in generate(task(program), CUT).candidates]
        looped = [g for g in made if any(isinstance(s, Loop) for k in g.kernels for s in k.body)]
        assert any(len(g.kernels) == 1 for g in made)
        assert looped
        anew = [g for g in looped if at_once(g)]
        assert bool(anew) is not bool(last), "the first place is found in the pass that finds the extreme"
        chosen = [*made[:2], *looped[:3], *anew[:2]]
        cases += [Case(g, {s.name: 8 for s in g.symbols}, [x]) for g in chosen]
        expected += [places] * len(chosen)
    for (found,), places in zip(run_batch(cases, tmp_path), expected, strict=True):
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, places)


def test_triton_kernels_find_the_same_places_in_one_pass(interpreter: InterpreterPool, tmp_path: Path) -> None:
    x = drawn(np.random.default_rng(11), (5, 29))
    x[0], x[1, 3], x[1, 20], x[2] = 2.0, np.nan, np.nan, -np.inf
    jobs: list[InterpretJob] = []
    for place in (torch.argmax, torch.argmin):
        program = trace(functools.partial(place, dim=1), [torch.from_numpy(x)], name="f")
        g = next(c.sgraph for c in generate(task(program), CUT).candidates if at_once(c.sgraph))
        source = emit_module(g, formula="", configs={})
        path = tmp_path / f"{place.__name__}.py"
        path.write_text(source.text)
        four, one = (dict.fromkeys(source.kernels, n) for n in (4, 1))
        tuned = Config({s.name: 8 for s in g.symbols}, four, one)
        jobs.append(InterpretJob(path, source.entry, (x,), ("float32",), tuned))
    for result, places in zip(interpreter.run_many(jobs), (np.argmax(x, 1), np.argmin(x, 1)), strict=True):
        assert not result.error
        np.testing.assert_array_equal(result.outputs[0], places)


def extreme_place(mask: Sequence[Stmt], beyond: float = 32.0, shift: str | None = "m") -> SGraph:
    """The place of a maximum of x, by what `mask` says of x and the running maximum, in one pass."""
    i, k = Axis("i", 8), Axis("k", 32)
    body: tuple[Stmt, ...] = (
        Load("a", "x", (Index.axis(i), Index.axis(k))),
        TileReduce("p", ReduceKind.MAX, k, "a"),
        Accumulate("m", ReduceKind.MAX, "p"),
        *mask,
        Position("at", Index.axis(k)),
        Pointwise("w", "where", ("met", "at", beyond)),
        TileReduce("q", ReduceKind.MIN, k, "w"),
        Accumulate("place", ReduceKind.MIN, "q", shift),
    )
    roles = ((i, Grid(symbol("T_i"))), (k, LoopRole(symbol("T_k"))))
    kernel = Kernel("g", roles, (Loop(k, body), Store("y", (Index.axis(i),), "place")))
    return SGraph("g", (Tensor("x", (8, 32), DType.FLOAT32),), (), (Tensor("y", (8,), DType.INT64),), (kernel,))


EQUAL = (Pointwise("met", "eq", ("a", "m")),)


def test_a_place_that_begins_anew_denotes_that_of_the_final_extreme() -> None:
    i, k = Axis("i", 8), Axis("k", 32)
    x = read("x", i, k)
    wanted = reduce("min", k, op("where", op("eq", x, reduce("max", k, x)), position(k), const(32.0)))
    (found,) = denote(extreme_place(EQUAL)).outputs
    assert shape(found) == shape(wanted)
    values = np.random.default_rng(3).integers(0, 5, (8, 32)).astype(np.float64)
    for tile in (1, 4, 32):
        made = simulate(extreme_place(EQUAL), {"x": values}, {"T_i": 4, "T_k": tile})["y"]
        np.testing.assert_array_equal(made, np.argmax(values, 1))


@pytest.mark.parametrize(
    ("mask", "beyond", "shift"),
    [
        (EQUAL, 31.0, "m"),
        (EQUAL, 32.0, None),
        ((Pointwise("met", "le", ("a", "m")),), 32.0, "m"),
        ((Pointwise("b", "mul", ("a", 2.0)), Pointwise("met", "eq", ("b", "m"))), 32.0, "m"),
        ((Pointwise("e", "eq", ("a", "m")), Pointwise("met", "not", ("e",))), 32.0, "m"),
        (
            (Pointwise("e", "eq", ("a", "m")), Pointwise("s", "eq", ("a", 0.0)), Pointwise("met", "or", ("s", "e"))),
            32.0,
            "m",
        ),
    ],
    ids=["a place is as far", "kept", "less", "another value", "elsewhere", "places besides"],
)
def test_what_else_takes_a_running_extreme_has_no_denotation(
    mask: Sequence[Stmt], beyond: float, shift: str | None
) -> None:
    with pytest.raises(IllegalIRError):
        denote(extreme_place(mask, beyond, shift))
