"""What masks hide of loads: found, refused where something looks at it, counted, searched, loaded no more."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from compiled_code import CodeOf
from cpu_batch import Case, run_batch
from interpreting import InterpreterPool, InterpretJob
from sgraph_samples import BF16, F32, SUM, at, masked_rows, op, sym
from sgraph_simulator import simulate
from tile_simulator import run_module
from torch import Tensor as Torch

import prism
from prism.api.region_search import SearchBudget, run_search
from prism.backends.lower import lower
from prism.backends.triton.emit import emit_module
from prism.cost.counts import kernel_cost
from prism.cost.device import device
from prism.egraph.worker import Worker
from prism.errors import IllegalIRError
from prism.events import Recorder
from prism.program.evaluate import evaluate
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Program, Tensor
from prism.sgraph import spec
from prism.sgraph.config import Config
from prism.sgraph.denote import denote
from prism.sgraph.hidden import hidden, without_unneeded
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
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


# What loops leave out as a whole.

DEPTH = Axis("a", 32)


def scores(*mask: Stmt, also: tuple[Stmt, ...] = ()) -> SGraph:
    """y[i, j] = what is seen of sum_a q[i, a] k[j, a], a loop over a."""
    body = (
        Load("q1", "q", at(ROW, DEPTH)),
        Load("k1", "k", at(COLUMN, DEPTH)),
        Contract("part", DEPTH, "q1", "k1"),
        Accumulate("qk", SUM, "part"),
    )
    mask = mask or (*seen(), op("out", "where", "seen", "qk", -1.0))
    roles = ((ROW, Grid(sym("T_i"))), (COLUMN, Grid(sym("T_j"))), (DEPTH, LoopRole(sym("T_a"))))
    kernel = Kernel("scores_kernel", roles, (Loop(DEPTH, body), *mask, *also, Store("y", at(ROW, COLUMN), "out")))
    inputs = (Tensor("q", (N, 32), F32), Tensor("k", (N, 32), F32))
    return SGraph("scores", inputs, (), (Tensor("y", (N, N), F32),), (kernel,))


def shorter(g: SGraph) -> SGraph:
    return replace(g, kernels=tuple(map(without_unneeded, g.kernels)))


def ranges_of(g: SGraph) -> list[tuple[str, ...]]:
    return [tuple(s.bounds) for k in g.kernels for s in k.statements() if isinstance(s, Loop) and s.skips]


def test_a_program_that_a_mask_hides_computes_nothing(tmp_path: Path) -> None:
    g = shorter(scores())
    assert ranges_of(g) == [("i - 1*j >= 0",)]
    spec.check(g)
    assert denote(g) == denote(scores())
    assert shorter(g) == g
    rng = np.random.default_rng(2)
    drawn = {t.name: rng.standard_normal([int(e) for e in t.shape]).astype(np.float32) for t in g.inputs}
    expected = np.where(np.tril(np.ones((N, N), bool)), drawn["q"].astype(float) @ drawn["k"].T, -1.0)
    binding = {"T_i": 8, "T_j": 16, "T_a": 16}
    visits: dict[str, list[int]] = {}
    np.testing.assert_allclose(simulate(g, drawn, binding, visits)["y"], expected, rtol=1e-6, atol=1e-6)
    seen_tiles, all_of_them = visits["a"]
    assert seen_tiles == 2 * sum(-(-8 * (n + 1) // 16) for n in range(8))
    cost = kernel_cost(g.kernels[0], g).evaluate(binding)
    assert cost["loop_trips"] * cost["programs"] == pytest.approx(seen_tiles, rel=0.1)
    assert cost["dot_flops"] == pytest.approx(
        kernel_cost(scores().kernels[0], g).evaluate(binding)["dot_flops"] * seen_tiles / all_of_them, rel=0.1
    )
    ((got,),) = run_batch([Case(g, binding, list(drawn.values()))], tmp_path)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("ranged", [True, False])
def test_what_a_loop_around_it_asks_for_no_loop_asks_again(ranged: bool) -> None:
    """Scores are accumulated within a loop that visits the places before one's own: their half is not halved again."""
    (kernel,) = scores().kernels
    depth, *mask = kernel.body[:-2]
    assert isinstance(depth, Loop)
    body = (depth, *mask, op("shown", "where", "seen", "qk", 0.0), TileReduce("row", SUM, COLUMN, "shown"))
    before = (i + j.scaled(-1),) if ranged else ()
    rows = Loop(COLUMN, (*body, Accumulate("rows", SUM, "row")), before)
    roles = tuple((a, LoopRole(sym("T_j")) if a == COLUMN else role) for a, role in kernel.roles)
    kernel = replace(kernel, roles=roles, body=(rows, Store("y", at(ROW), "rows")))
    g = replace(scores(), outputs=(Tensor("y", (N,), F32),), kernels=(kernel,))
    assert ranges_of(shorter(g)) == [("j <= i",) if ranged else ("i - 1*j >= 0",)]
    assert denote(shorter(g)) == denote(g)
    binding = {"T_i": 8, "T_j": 8, "T_a": 16}
    visited, every = (kernel_cost(x.kernels[0], x).evaluate(binding)["dot_flops"] for x in (shorter(g), scores()))
    assert visited == pytest.approx(every / 2, rel=0.3)


def test_emitted_programs_that_a_mask_hides_visit_nothing(interpreter: InterpreterPool, tmp_path: Path) -> None:
    g = shorter(scores())
    rng = np.random.default_rng(4)
    drawn = [rng.standard_normal([int(e) for e in t.shape]).astype(np.float32) for t in g.inputs]
    # What is hidden is not read: programs above the diagonal would meet it.
    drawn[1][48:] = np.nan
    source = emit_module(g, formula="f", configs={})
    module = tmp_path / "scores.py"
    module.write_text(source.text)
    binding = {"T_i": 16, "T_j": 16, "T_a": 16}
    config = Config(binding, dict.fromkeys(source.kernels, 4), dict.fromkeys(source.kernels, 2))
    (result,) = interpreter.run_many([InterpretJob(module, source.entry, tuple(drawn), ("float32",) * 2, config)])
    assert not result.error
    visible = np.tril(np.ones((N, N), bool))
    visible[:, 48:] = False
    wanted = np.where(visible, drawn[0].astype(float) @ np.nan_to_num(drawn[1]).T, -1.0)
    np.testing.assert_allclose(result.outputs[0][:48], wanted[:48], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "g",
    [
        # Something looks at all of it; nothing is hidden; next to nothing is.
        scores(*seen(), op("s", "where", "seen", "qk", 0.0), op("out", "add", "s", "qk")),
        scores(op("out", "add", "qk", 1.0)),
        scores(Position("pi", i + 60), Position("pj", j), op("seen", "le", "pj", "pi"),
               op("out", "where", "seen", "qk", 0.0)),
        # It is hidden from a product alone: 0 times infinity is no 0.
        scores(*seen(), op("s", "where", "seen", 1.0, 0.0), op("out", "mul", "s", "qk")),
    ],
)  # fmt: skip
def test_what_is_looked_at_is_computed(g: SGraph) -> None:
    assert ranges_of(shorter(g)) == []


def test_a_loop_that_leaves_out_what_is_looked_at_has_no_denotation() -> None:
    g = scores(*seen(), op("s", "where", "seen", "qk", 0.0), op("out", "add", "s", "qk"))
    (kernel,) = g.kernels
    loop, *rest = kernel.body
    assert isinstance(loop, Loop)
    for range_ in ((i + j.scaled(-1),), (j + i.scaled(-1),)):
        wrong = replace(g, kernels=(replace(kernel, body=(replace(loop, range=range_), *rest)),))
        with pytest.raises(IllegalIRError, match="not known to be looked at"):
            denote(wrong)


def test_masked_scores_are_found_with_half_the_work(worker: Worker) -> None:
    def masked(q: Torch, k: Torch) -> Torch:
        hidden_ = torch.ones(2048, 2048, dtype=torch.bool, device=q.device).triu(1)
        return (q @ k.T).relu().masked_fill(hidden_, -math.inf)

    q = torch.empty(2048, 512, dtype=torch.float16, device="meta")
    program = prism.trace(masked, (q, q))
    best = run_search(program, device("sm_90"), SearchBudget(), worker, Recorder()).proved[0]
    assert any(s.all_or_none for k in best.sgraph.kernels for s in k.statements() if isinstance(s, Loop))
