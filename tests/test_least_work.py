"""Of kernels that read and write the same, the one with the fewest operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import prism
from prism.sgraph.nodes import Pointwise

A, B, C = (torch.randn(64, 64) for _ in range(3))


@pytest.mark.parametrize(
    ("fn", "inputs", "operations"),
    [
        (lambda a, b, c: a * b + c * b, (A, B, C), ["add", "mul"]),
        (lambda a, b: a * b + 3 * (a * b), (A, B), ["mul", "mul"]),
        (lambda a: a + a + a + a + a, (A,), ["mul"]),
        (lambda a, b, c: a * b - a * c, (A, B, C), ["mul", "add", "mul"]),
        (lambda a, b: a + a * b, (A, B), ["add", "mul"]),
        (lambda a, b: 2 * a + 2 * b, (A, B), ["add", "mul"]),
        (lambda a: torch.sigmoid(a) * a + a, (A,), ["sigmoid", "add", "mul"]),
        (lambda a: a * a * a * a * a * a * a * a, (A,), ["mul", "mul", "mul"]),
    ],
)
def test_nothing_is_computed_that_need_not_be(
    fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...], operations: list[str]
) -> None:
    with prism.search(prism.trace(fn, inputs), target="sm_90") as found:
        sgraph = next(found).sgraph
    assert sorted(s.op for k in sgraph.kernels for s in k.statements() if isinstance(s, Pointwise)) == sorted(
        operations
    )


def test_products_of_sums_stay_as_they_are_where_that_is_less() -> None:
    with prism.search(prism.trace(lambda a, b, c: (a + b) * c, (A, B, C)), target="sm_90") as found:
        sgraph = next(found).sgraph
    assert [s.op for k in sgraph.kernels for s in k.statements() if isinstance(s, Pointwise)] == ["add", "mul"]
