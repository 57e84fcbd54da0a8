"""Masks by blocks: where nothing but a row's own block counts, formulas reduce over that block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from formulas import evaluate_formula

from prism.frontend.torch.reader import trace
from prism.program.blocks import own_block
from prism.program.build import const, mul, op, position, read, reduce
from prism.program.index import Axis
from prism.program.inline import inline
from prism.program.nodes import Formula, Reduce, walk

LOW = float("-inf")


def _blocks(n: int, of: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    i = torch.arange(n)
    return i[:, None] // of, i[None] // of


def chunks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i, j = _blocks(q.shape[0])
    return (q @ k.T).masked_fill(i != j, LOW).softmax(-1) @ v


def causal_chunks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    place = torch.arange(q.shape[0])
    i, j = _blocks(q.shape[0])
    seen = (i == j) & (place[None] <= place[:, None])
    return torch.where(seen, q @ k.T, LOW).softmax(-1) @ v


def dilated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    place = torch.arange(q.shape[0])
    apart = place[:, None] - place[None]
    return (q @ k.T).masked_fill((apart % 4 != 0) | (apart < 0), LOW).softmax(-1) @ v


def one_remainder(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    place = torch.arange(q.shape[0]) % 3
    return torch.where(place[:, None] == place[None], q @ k.T, 0.0) @ v


def another_remainder(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    place = torch.arange(q.shape[0])
    return torch.where((place[:, None] - place[None]) % 4 == 1, q @ k.T, 0.0) @ v


def sums_of_places(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    place = torch.arange(q.shape[0])
    return torch.where((place[:, None] + place[None]) % 4 == 0, q @ k.T, 0.0) @ v


def sums(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i, j = _blocks(q.shape[0])
    return torch.where(i == j, q @ k.T, 0.0) @ v


def earlier_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i, j = _blocks(q.shape[0])
    return torch.where(j <= i, q @ k.T, LOW).softmax(-1) @ v


def hidden_by_zeros(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i, j = _blocks(q.shape[0])
    return torch.where(i == j, q @ k.T, 0.0).softmax(-1) @ v


def other_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i, j = _blocks(q.shape[0])
    return torch.where(i == j, LOW, q @ k.T).softmax(-1) @ v


def blocks_of_two_lengths(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    place = torch.arange(q.shape[0])
    return torch.where(place[:, None] // 4 == place[None] // 6, q @ k.T, 0.0) @ v


def length_that_divides_nothing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i, j = _blocks(q.shape[0], 5)
    return torch.where(i == j, q @ k.T, 0.0) @ v


def _formula(fn: Callable[..., Any]) -> Formula:
    drawn = [torch.randn(12, n, dtype=torch.float64) for n in (3, 3, 2)]
    program = trace(fn, drawn)
    (formula,) = inline(program)
    arrays = {t.name: x.numpy() for t, x in zip(program.inputs, drawn, strict=True)}
    np.testing.assert_allclose(evaluate_formula(formula, arrays, {}), fn(*drawn).numpy(), rtol=1e-9)
    return formula


def _over(formula: Formula) -> set[int]:
    return {int(e.axis.extent) for e in walk(formula.expr) if isinstance(e, Reduce)}


@pytest.mark.parametrize(
    ("fn", "over"),
    [(chunks, 4), (causal_chunks, 4), (sums, 4), (dilated, 3), (one_remainder, 4)],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_of_a_row_its_own_block_is_reduced_over(fn: Callable[..., Any], over: int) -> None:
    formula = _formula(fn)
    assert _over(formula) - {3} == {over} - {3}
    assert "floor" not in str(formula.expr)


@pytest.mark.parametrize(
    "fn",
    [
        earlier_blocks,
        hidden_by_zeros,
        other_blocks,
        blocks_of_two_lengths,
        length_that_divides_nothing,
        another_remainder,
        sums_of_places,
    ],
    ids=lambda f: f.__name__,
)
def test_where_more_than_that_counts_all_is(fn: Callable[..., Any]) -> None:
    assert 12 in _over(_formula(fn))


def test_a_reduction_inside_over_an_axis_of_that_name_is_another() -> None:
    """sum_q where(p == q, x[q] * max_q where(p == q, x[q], 0), 0): the maximum is of all, for it may be 0."""
    p, q = Axis("p", 3), Axis("q", 3)
    same = op("eq", position(p), position(q))
    inner = reduce("max", q, op("where", same, read("x", q), const(0.0)))
    assert own_block(reduce("sum", q, op("where", same, mul(read("x", q), inner), const(0.0)))) is None
    alone = own_block(reduce("sum", q, op("where", same, read("x", q), const(0.0))))
    assert alone == read("x", p)
