"""What masks hide of loads: found, refused where something looks at it, counted, searched, loaded no more."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from compiled_code import CodeOf
from sgraph_samples import BF16, F32, SUM, at, masked_rows, op, sym
from tile_simulator import run_module
from torch import Tensor as Torch

import prism
from prism.api.region_search import SearchBudget, run_search
from prism.backends.lower import lower
from prism.cost.counts import kernel_cost
from prism.cost.device import device
from prism.egraph.worker import Worker
from prism.events import Recorder
from prism.program.evaluate import evaluate
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Program, Tensor
from prism.sgraph.config import Config
from prism.sgraph.hidden import hidden
from prism.sgraph.nodes import (
    Accumulate,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Position,
    SGraph,
    Stmt,
    Store,
    TileReduce,
    Whole,
)

N = 64
ROW, COLUMN = Axis("i", N), Axis("j", N)
i, j = Index.axis(ROW), Index.axis(COLUMN)


def seen(column: Axis = COLUMN) -> tuple[Stmt, ...]:
    return Position("pi", i), Position("pj", Index.axis(column)), op("seen", "le", "pj", "pi")


def rows(*body: Stmt, dtype: DType = F32, column: Axis = COLUMN) -> SGraph:
    """y[i, j] = out, from x[i, j] and v[j]."""
    n = int(column.extent)
    whole = (Load("x1", "x", at(ROW, column)), *seen(column), *body, Store("y", at(ROW, column), "out"))
    kernel = Kernel("rows_kernel", ((ROW, Grid(sym("T_i"))), (column, Whole())), whole)
    inputs = (Tensor("x", (N, n), dtype), Tensor("v", (n,), dtype))
    return SGraph("rows", inputs, (), (Tensor("y", (N, n), dtype),), (kernel,))


def found(*body: Stmt) -> dict[str, list[str]]:
    """By load: what holds where it is needed."""
    (kernel,) = rows(*body).kernels
    return {name: [" or ".join(f"{e} >= 0" for e in c) for c in cs] for name, cs in hidden(kernel).items()}


CAUSAL = ["i - 1*j >= 0"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((op("out", "where", "seen", "x1", 0.0),), CAUSAL),
        ((op("out", "where", "seen", 0.0, "x1"),), ["-1*i + j - 1 >= 0"]),
        ((op("no", "not", "seen"), op("out", "where", "no", 0.0, "x1")), CAUSAL),
        # Whatever is made of it first.
        ((op("r", "recip", "x1"), op("e", "exp", "r"), op("out", "where", "seen", "e", 0.0)), CAUSAL),
        # Both uses look at the same, or at more.
        (
            (op("a", "where", "seen", "x1", 0.0), op("b", "where", "seen", "x1", 1.0), op("out", "add", "a", "b")),
            CAUSAL,
        ),
        ((op("a", "where", "seen", "x1", 0.0), op("out", "add", "a", "x1")), []),
        ((op("a", "where", "seen", "x1", 0.0), op("out", "where", "seen", 1.0, "x1")), []),
        # A factor that is 0 there; not where something between them may be infinite.
        ((op("w", "where", "seen", 2.0, 0.0), op("out", "mul", "w", "x1")), CAUSAL),
        ((op("out", "mul", "seen", "x1"),), CAUSAL),
        ((op("w", "where", "seen", 2.0, 0.0), op("r", "recip", "x1"), op("out", "mul", "w", "r")), []),
        ((op("w", "where", "seen", 2.0, 1.0), op("out", "mul", "w", "x1")), []),
        # -inf is added.
        ((op("m", "where", "seen", 0.0, -np.inf), op("s", "add", "m", "x1"), op("out", "exp", "s")), CAUSAL),
        ((op("m", "where", "seen", 0.0, np.inf), op("s", "add", "m", "x1"), op("out", "exp", "s")), []),
        # A sum of all that is then chosen of: each element of it counts.
        ((TileReduce("t", SUM, COLUMN, "x1"), op("out", "where", "seen", "t", 0.0)), []),
        # A condition on rows alone is one on all that is summed up.
        (
            (
                TileReduce("t", SUM, COLUMN, "x1"),
                op("few", "lt", "pi", 9.0),
                op("u", "where", "few", "t", 0.0),
                op("out", "add", "u", "seen"),
            ),
            ["-1*i + 8 >= 0"],
        ),
        # Two conditions, and one of two.
        (
            (op("near", "lt", "pi", "far"), op("b", "and", "seen", "near"), op("out", "where", "b", "x1", 0.0)),
            ["-1*i + j + 4 >= 0", *CAUSAL],
        ),
        (
            (op("head", "lt", "pj", 9.0), op("b", "or", "seen", "head"), op("out", "where", "b", "x1", 0.0)),
            ["i - 1*j >= 0 or -1*j + 8 >= 0"],
        ),
        # What hides next to nothing.
        ((op("all", "lt", "pj", 63.0), op("out", "where", "all", "x1", 0.0)), []),
    ],
)
def test_what_is_needed(body: tuple[Stmt, ...], expected: list[str]) -> None:
    far = (Position("far", j + 5),)
    assert found(*far, *body).get("x1", []) == expected


def test_a_load_that_several_rows_share_is_needed_where_any_of_them_is() -> None:
    assert not found(Load("v1", "v", at(COLUMN)), op("a", "mul", "x1", "v1"), op("out", "where", "seen", "a", 0.0)).get(
        "v1"
    )


def test_a_loop_with_a_range_has_no_masks_besides() -> None:
    def looped(*conditions: Index) -> Kernel:
        body = (
            Load("x1", "x", at(ROW, COLUMN)),
            *seen(),
            op("s", "where", "seen", "x1", 0.0),
            TileReduce("t", SUM, COLUMN, "s"),
            Accumulate("total", SUM, "t"),
        )
        roles = ((ROW, Grid(sym("T_i"))), (COLUMN, LoopRole(sym("T_j"))))
        return Kernel("k", roles, (Loop(COLUMN, body, conditions), Store("y", at(ROW), "total")))

    assert list(hidden(looped())) == ["x1"]
    assert not hidden(looped(i + j.scaled(-1)))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("predicate", [("le", "pj", "pi"), ("lt", "pi", "pj"), ("lt", "pi", "far")])
def test_what_is_loaded_is_counted_by_lines(dtype: DType, predicate: tuple[str, str, str]) -> None:
    name, a, b = predicate
    g = rows(Position("far", j.scaled(2) + -7), op("p", name, a, b), op("out", "where", "p", "x1", 0.0), dtype=dtype)
    at_ = {"pi": lambda x, y: x, "pj": lambda x, y: y, "far": lambda x, y: 2 * y - 7}
    length = 64 // dtype.bytes
    lines = {
        (x, y // length)
        for x, y in itertools.product(range(N), range(N))
        if (at_[a](x, y) < at_[b](x, y)) or (name == "le" and at_[a](x, y) == at_[b](x, y))
    }
    (load,) = [x for x in kernel_cost(g.kernels[0], g).accesses if not x.store]
    for counted in (load.own, load.traffic):
        assert counted.evaluate({"T_i": 4}) == pytest.approx(64 * len(lines), rel=0.02)


def test_stores_write_what_the_mask_hides() -> None:
    g = masked_rows().sgraph
    cost = kernel_cost(g.kernels[0], g).evaluate({"T_i": 1})
    assert cost["bytes_written"] == 2 * 70 * 70 * 4
    assert cost["bytes_read"] < 0.65 * cost["bytes_written"]


def softmax(x: Torch, g: Torch) -> Torch:
    return later(x.masked_fill, -torch.inf).softmax(-1)


def gradient(p: Torch, g: Torch) -> Torch:
    p = later(p.masked_fill, 0.0)
    return later((p * (g - (g * p).sum(-1, keepdim=True))).masked_fill, 0.0)


def later(fill: Callable[[Torch, float], Torch], number: float) -> Torch:
    x: Torch = fill.__self__  # type: ignore[attr-defined]
    places = torch.arange(x.shape[-1], device=x.device)
    return fill(places[None, :] > places[:, None], number)


@pytest.mark.parametrize(("f", "read"), [(softmax, 1), (gradient, 2)], ids=lambda x: getattr(x, "__name__", ""))
def test_rows_under_a_mask_are_half_read(f: Callable[[Torch, Torch], Torch], read: int) -> None:
    def searched(n: int, worker: Worker) -> tuple[Program, SGraph]:
        given = tuple(torch.empty((2, n, n)) for _ in range(2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = prism.trace(f, given, check=False)
        found = run_search(program, device("sm_90"), SearchBudget(), worker, Recorder())
        return program, found.proved[0].sgraph

    with Worker() as worker:
        _, best = searched(1024, worker)
        program, small = searched(48, worker)
    (kernel,) = best.kernels
    ones = {s.name: 1 for s in best.symbols}
    assert kernel_cost(kernel, best).bytes_read.evaluate(ones) == pytest.approx(read * 4 * 2**20, rel=0.02)
    x, g = np.random.default_rng(2).standard_normal((2, 2, 48, 48)).astype(np.float32)
    given = dict(zip([t.name for t in program.inputs], (x, g), strict=False))
    binding = {s.name: 4 for s in small.symbols}
    (got,) = run_module(lower(small), list(given.values()), binding)[0].values()
    (wanted,) = evaluate(program, given).values()
    np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("version", ["installed", "oldest"])
def test_neighbours_are_still_loaded_together(version: str, code_of: CodeOf) -> None:
    # A mask for each element would make of a load of 16 bytes eight of 2.
    g = rows(op("out", "where", "seen", "x1", 0.0), dtype=BF16, column=Axis("j", 1024))
    (code,) = code_of(g, Config({"T_i": 1}, {"rows_kernel": 4}, {"rows_kernel": 1}), version=version)
    loads = re.findall(r"ld\.global\S*", code.ptx)
    assert loads
    assert all(".v4.b32" in x for x in loads), loads
