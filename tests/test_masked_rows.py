"""Attention that is guarded against rows without a key: one kernel, proved, whose result there is 0.

Exporters write the guard after the softmax (Softmax, IsNaN, Where), torch as a comparison of the maximum with -inf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from cpu_batch import Case, run_batch
from onnx import TensorProto, helper, numpy_helper
from quick import slow_but
from tile_simulator import run_module
from torch.nn import functional as F

import prism
from prism.api.region_search import SearchBudget
from prism.backends.lower import lower
from prism.frontend.torch.reader import trace
from prism.program.evaluate import evaluate
from prism.program.nodes import Map, Program, Reduce, walk
from prism.sgraph.nodes import Accumulate, SGraph

S, D = 640, 8
LEAST = "exporter, least number"
ROWS = (0, 7, S - 1)
"""Rows that are guarded: no key is left, or the query is not finite."""


def by_exporter(folder: Path, mask: int, hidden: float = -np.inf) -> Program:
    """Softmax, IsNaN, Where, as torch exports attention for opset 18; of transformers with a number that hides."""
    least = np.isfinite(hidden)
    scores = "Where" if mask == TensorProto.BOOL and not least else "Add"
    operands = ["m", "s", "hidden"] if scores == "Where" else ["s", "added" if least else "m"]
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "t"], ["s"]),
        *([helper.make_node("Where", ["m", "zero", "hidden"], ["added"])] if least else []),
        helper.make_node(scores, operands, ["a"]),
        helper.make_node("Softmax", ["a"], ["p"], axis=-1),
        helper.make_node("IsNaN", ["p"], ["n"]),
        helper.make_node("Where", ["n", "zero", "p"], ["w"]),
        helper.make_node("MatMul", ["w", "v"], ["y"]),
    ]
    numbers = {"hidden": hidden, "zero": 0.0} if scores == "Where" or least else {"zero": 0.0}
    graph = helper.make_graph(
        nodes,
        "attention",
        [
            *(helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, S, D]) for n in "qkv"),
            helper.make_tensor_value_info("m", mask, [S, S]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, S, D])],
        [numpy_helper.from_array(np.asarray(x, np.float32), n) for n, x in numbers.items()],
    )
    path = folder / "attention.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return prism.load_onnx(path)


def by_torch(_: Path) -> Program:
    """Attention in torch, by its own decomposition."""
    q, k, v = (torch.randn(1, S, D) for _ in range(3))
    mask = torch.ones(S, S, dtype=torch.bool)
    return trace(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), (q, k, v, mask))


def _positions(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    places = torch.arange(n)
    return places[:, None], places


def _window_with_guard(x: torch.Tensor) -> torch.Tensor:
    """As a reference for windows has it: rows without a key are 0, and there are none."""
    row, column = _positions(x.shape[-1])
    hidden = (column > torch.minimum(row, torch.tensor(x.shape[-1]))) | (column < row - 3)
    return x.masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden.all(-1, keepdim=True), 0.0)


def _causal_logsumexp(x: torch.Tensor) -> torch.Tensor:
    row, column = _positions(x.shape[-1])
    return x.masked_fill(column > row, -torch.inf).logsumexp(-1)


def _with_a_sink(x: torch.Tensor) -> torch.Tensor:
    return torch.logaddexp(_causal_logsumexp(x), x[:, 0])


def _before_alone(x: torch.Tensor) -> torch.Tensor:
    """The first row has nothing."""
    row, column = _positions(x.shape[-1])
    return x.masked_fill(column >= row, -torch.inf).logsumexp(-1)


def _any_before(x: torch.Tensor) -> torch.Tensor:
    row, column = _positions(x.shape[-1])
    return torch.where((column < row).any(-1), x[0], 0.0)


@pytest.mark.parametrize(
    ("fn", "guarded"),
    [
        (_window_with_guard, False),
        (_causal_logsumexp, False),
        (_with_a_sink, False),
        (_before_alone, True),
        (_any_before, True),
        (lambda x: torch.where(x > 0, x, -torch.inf).logsumexp(-1), True),
    ],
)
def test_rows_of_which_places_leave_something_need_no_guard(fn: Callable[..., torch.Tensor], guarded: bool) -> None:
    x = torch.randn(8, 8)
    program = trace(fn, (x,), check=False)
    chosen = [e.args[0] for d in program.definitions for e in walk(d.expr) if isinstance(e, Map) and e.op == "where"]
    assert any(isinstance(e, Reduce) for c in chosen for e in walk(c)) == guarded
    (value,) = evaluate(program, {t.name: x.double().numpy() for t in program.inputs}).values()
    np.testing.assert_allclose(value, fn(x.double()).numpy(), rtol=1e-12)


FORMS: Mapping[str, Callable[[Path], Program]] = {
    "exporter, boolean mask": lambda folder: by_exporter(folder, TensorProto.BOOL),
    "exporter, additive mask": lambda folder: by_exporter(folder, TensorProto.FLOAT),
    LEAST: lambda folder: by_exporter(folder, TensorProto.BOOL, float(np.finfo(np.float32).min)),
    "torch, boolean mask": by_torch,
}


def drawn(program: Program, finite: bool) -> list[np.ndarray]:
    """Inputs whose mask hides all keys of some rows, unless their queries are not finite, and the first of another."""
    rng = np.random.default_rng(3)
    *qkv, mask = program.inputs
    keep = rng.random((S, S)) < 0.5
    keep[5, : S - 3] = False
    q, k, v = (rng.standard_normal([int(e) for e in t.shape]).astype(np.float32) for t in qkv)
    if finite:
        keep[list(ROWS)] = False
    else:
        q[0, list(ROWS)] = np.array([np.inf, -np.inf, np.nan])[:, None]
    shown = keep if mask.dtype.value == "bool" else np.where(keep, 0.0, -np.inf).astype(np.float32)
    return [q, k, v, shown]


@pytest.mark.parametrize("form", slow_but([f for f in FORMS if f != "exporter, boolean mask"], FORMS))
def test_a_guard_is_fused_and_holds(form: str, tmp_path: Path) -> None:
    program = FORMS[form](tmp_path)
    with prism.search(program, budget=SearchBudget(max_sgraphs=8, max_families=48)) as found:
        best = next(p for p in found if is_online(p.sgraph))
    assert best.verdict
    assert not best.verdict.assumptions
    inputs = drawn(program, form != LEAST)
    want = evaluate(program, dict(zip((t.name for t in program.inputs), inputs, strict=True)))[program.outputs[0]]
    assert (want.reshape(S, D)[list(ROWS)] == 0).all()
    assert np.isfinite(want).all()
    sgraph, tiles = best.sgraph, {str(s): 32 for s in best.sgraph.symbols}
    simulated = run_module(lower(sgraph), inputs, tiles)[0][sgraph.outputs[0].name]
    np.testing.assert_allclose(simulated.reshape(want.shape), want, rtol=0, atol=1e-5)
    ((compiled,),) = run_batch([Case(sgraph, tiles, inputs)], tmp_path)
    np.testing.assert_allclose(compiled.reshape(want.shape), want, rtol=0, atol=1e-5)


def test_a_sum_that_a_mask_may_empty_is_no_number_above_0() -> None:
    """Exponentials without a maximum: of a hidden row the sum is 0, which is known of no input."""

    def shares(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x + mask)
        s = e.sum(-1, keepdim=True)
        return e / torch.where(s == 0, 1.0, s) + torch.where(s > 0, 1.0, 2.0) + torch.where(s <= 0, 3.0, 4.0)

    x, mask = torch.randn(6, 32), torch.zeros(6, 32)
    mask[2], mask[4] = -torch.inf, torch.nan
    with prism.search(trace(shares, (x, torch.zeros(6, 32))), budget=SearchBudget(max_sgraphs=4)) as found:
        for one in found:
            tiles = {str(s): 4 for s in one.sgraph.symbols}
            got = run_module(lower(one.sgraph), [x.numpy(), mask.numpy()], tiles)[0][one.sgraph.outputs[0].name]
            np.testing.assert_allclose(got.reshape(x.shape), shares(x, mask).numpy(), rtol=1e-5)
    assert found.proved


def is_online(sgraph: SGraph) -> bool:
    """Whether it is one kernel that goes over the keys once."""
    return len(sgraph.kernels) == 1 and any(
        isinstance(s, Accumulate) and s.shift for s in sgraph.kernels[0].statements()
    )
