"""Computed values at places that data give: what is computed of what is looked up, and what is stored before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from formulas import evaluate_formula

from prism.api import trace
from prism.generate.partition import partition, whole
from prism.program import build
from prism.program.evaluate import evaluate
from prism.program.index import Axis
from prism.program.inline import inline
from prism.program.lookup import lookups
from prism.program.nodes import Program, Reduce, ReduceKind, walk
from prism.program.ops import COMMUTATIVE
from prism.sgraph.value_bounds import shape

Fn = Callable[..., Any]

X, W = torch.randn(7, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
MANY, FEW = torch.tensor([[0, 6, 3], [3, 3, 1], [5, 0, 2], [1, 1, 1]]), torch.tensor([4, 0])


def edges(x: Any, w: Any, i: Any) -> Any:
    """Features of neighbours, of which there are more than features."""
    return F.relu((x @ w)[i]).amax(1)


def masked(x: Any, t: Any) -> Any:
    """The exponential of one element, and 0 where no place is the label."""
    hit = torch.arange(x.shape[-1]) == t[:, None]
    return torch.where(hit, x.exp(), 0.0).sum(-1)


def corners(x: Any, at: Any) -> Any:
    """Of images, flat, the elements at computed places and below these."""
    i = (at[..., 0] * 3.9).floor() * x.shape[-1] + (at[..., 1] * 5.9).floor()
    flat = x.flatten(2)
    return sum(flat.gather(2, (i + o).long()[:, None].expand(-1, x.shape[1], -1)) for o in (0, x.shape[-1]))


CASES: dict[str, tuple[Fn, list[torch.Tensor]]] = {
    "pointwise": (lambda x, i: (x.exp() + 1)[i], [X, MANY]),
    "0 at 0": (lambda x, i: (x.tanh() * 2)[i].sum(1), [X, MANY]),
    "a position": (lambda x, i: (x * torch.arange(7)[:, None])[i], [X, MANY]),
    "a few rows of a product": (lambda x, w, i: (x @ w)[i], [X, W, FEW]),
    "a few rows of a norm": (lambda x, i: F.layer_norm(x, (4,))[i], [X, FEW]),
    "one of a softmax": (lambda x, t: x.log_softmax(-1).gather(1, t[:, None])[:, 0], [X[:4], MANY[3]]),
    "of what is flat": (lambda x, i: x.flatten()[i], [X, MANY * 4 + 3]),
    "corners": (corners, [torch.randn(2, 3, 5, 6, dtype=torch.float64), torch.rand(2, 9, 2).double()]),
    "along two": (lambda x, i, j: (x @ x.T)[i, j], [X, FEW, FEW + 1]),
    "neighbours of a place": (lambda x, i: (x[:-1] + x[1:]).exp()[i], [X, FEW]),
    "no place is the label": (masked, [X[:4], torch.tensor([-100, 0, 3, 4])]),
    "between two places": (masked, [X[:4], torch.tensor([0.5, 0.0, 3.0, -1.0])]),
    "one a row": (
        lambda x, t: x - torch.where(torch.arange(4) == t[:, None], x[:, :1], 0.0).sum(-1, keepdim=True),
        [X[:4], torch.tensor([-100, 0, 3, 4])],
    ),
    "edges": (edges, [X, W, MANY]),
    "edges, twice": (lambda x, w, i: edges(edges(x, w, i), w, i % 4), [X, W, MANY]),
    "edges and what they are of": (lambda x, w, i: ((x @ w)[i].sum(1), x @ w), [X, W, MANY]),
}


def feed(program: Program, given: list[torch.Tensor]) -> dict[str, np.ndarray]:
    return {t.name: g.numpy() for t, g in zip(program.inputs, given, strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_formulas_and_regions_compute_the_program(name: str) -> None:
    fn, given = CASES[name]
    program = trace(fn, given)
    expected = evaluate(program, feed(program, given))
    known = dict(feed(program, given))
    for region in partition(program):
        for formula in inline(region.program):
            known[formula.tensor.name] = evaluate_formula(formula, known, {})
    for output in program.outputs:
        assert np.allclose(known[output], expected[output], rtol=1e-12, atol=1e-12), name


@pytest.mark.parametrize(
    "name",
    ["pointwise", "a few rows of a product", "one of a softmax", "along two", "of what is flat", "corners"],
)
def test_nothing_computed_is_looked_up(name: str) -> None:
    (formula,) = inline(trace(*CASES[name]))
    found = list(lookups(formula.expr))
    assert found
    assert all(chosen.lies_in_memory for chosen in found)


def test_what_many_places_want_is_stored_before() -> None:
    program = trace(*CASES["edges"])
    first, second = partition(program)
    (product,) = inline(first.program)
    assert isinstance(product.expr, Reduce)
    assert product.expr.kind is ReduceKind.SUM
    assert first.outputs[0] in {t.name for t in second.program.inputs}
    assert whole(program) is None


def test_what_is_needed_before_and_after_is_reduced_once() -> None:
    def both(x: Any, w: Any, i: Any) -> Any:
        h = x @ w
        return F.relu(h * 2 - F.layer_norm(h, (4,)))[i].sum(1), h.exp()

    regions = partition(trace(both, [X, W, MANY]))
    reductions = [e for r in regions for d in r.program.definitions for e in walk(d.expr) if isinstance(e, Reduce)]
    assert sum(e.axis.name == "k" for e in reductions) == 1


@pytest.mark.parametrize("op", sorted(COMMUTATIVE))
def test_an_exponent_is_the_references_in_any_order_of_operands(op: str) -> None:
    m = Axis("m", 6)
    x, y = build.read("x", m), build.read("y", m)
    assert shape(build.op("exp", build.op(op, x, y))) == shape(build.op("exp", build.op(op, y, x)))
    assert shape(build.op("exp", build.op("lt", x, y))) != shape(build.op("exp", build.op("lt", y, x)))
