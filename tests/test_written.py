"""Tensors that are written piece by piece are the concatenation of their pieces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import prism
from prism.program.evaluate import evaluate
from prism.program.nodes import Reduce, walk


def rows(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    for n in range(8):
        made[n] = x[n].softmax(-1)
    return made


def heads(q: Tensor, k: Tensor) -> Tensor:
    made = torch.zeros(q.shape[0], k.shape[0] * 4)
    for h in range(4):
        part = slice(4 * h, 4 * h + 4)
        made[:, k.shape[0] * h : k.shape[0] * (h + 1)] = (q[:, part] @ k[:, part].mT).softmax(-1)
    return made


def elements(x: Tensor) -> Tensor:
    made = torch.zeros(4, 2)
    for i in range(4):
        for j in range(2):
            made[i, j] = x[i, j].logsumexp(-1)
    return made


def backwards(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    for n in reversed(range(8)):
        made[n] = x[n].softmax(-1)
    return made


def average(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    made[0] = x[0]
    for n in range(1, 8):
        made[n] = 0.9 * made[n - 1] + 0.1 * x[n]
    return made


def gathered(x: Tensor) -> Tensor:
    made = torch.zeros(2, 6)
    for n in range(8):
        made[n % 2] += x[n]
    return made


def overwritten(x: Tensor) -> Tensor:
    made = torch.zeros(8, 6)
    made[1:5] = x[:4].exp()
    made[3:7] = made[2:6] + x[4:]
    made[4] = 1.0
    return made


def read_between(x: Tensor) -> tuple[Tensor, Tensor]:
    made = torch.zeros(8, 6)
    made[0] = x[0]
    made[1] = x[1]
    early = made.sum(0)
    made[2] = x[2]
    return made * 2, early


X = (8, 6)
CASES: dict[str, tuple[Callable[..., object], list[tuple[int, ...]], int | None]] = {
    "rows": (rows, [X], 2),
    "slices": (heads, [(5, 16), (6, 16)], 3),
    "elements": (elements, [(4, 2, 6)], 2),
    "last first": (backwards, [X], 2),
    "steps": (average, [X], None),
    "added up": (gathered, [X], None),
    "written over": (overwritten, [X], 0),
    "read before the end": (read_between, [X], 1),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_in_pieces_is_one(name: str) -> None:
    """With as many reductions as are written for one piece, and the same numbers."""
    fn, shapes, reductions = CASES[name]
    torch.manual_seed(3)
    examples = [torch.randn(s) for s in shapes]
    program = prism.trace(fn, examples)
    if reductions is not None:
        found = {e for d in program.definitions for e in walk(d.expr) if isinstance(e, Reduce)}
        assert len(found) == reductions
    wanted = fn(*examples)
    given = {t.name: np.asarray(x, dtype=np.float64) for t, x in zip(program.inputs, examples, strict=True)}
    made = evaluate(program, given)
    for one, other in zip(wanted if isinstance(wanted, tuple) else (wanted,), program.outputs, strict=True):
        assert isinstance(one, Tensor)
        np.testing.assert_allclose(made[other], one.numpy(), rtol=1e-5, atol=1e-6)
