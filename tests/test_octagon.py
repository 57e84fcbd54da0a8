"""Arrays of two values as bounds on positions: masks that are held as constants or buffers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import prism
from prism.program.evaluate import evaluate_expr
from prism.program.index import Axis, Index
from prism.program.octagon import octagon

APART = np.subtract.outer(np.arange(12), np.arange(12))
MASKS = {
    "causal": APART >= 0,
    "causal, as numbers": np.tril(np.ones((12, 12), np.float32)),
    "causal, to be added": np.triu(np.full((12, 12), -np.inf, np.float32), 1),
    "causal, finite": np.triu(np.full((1, 1, 12, 12), np.finfo(np.float32).min, np.float32), 1),
    "a window": (APART >= 0) & (APART < 4),
    "a band": np.abs(APART) <= 3,
    "outside of a band": np.abs(APART) > 3,
    "a prefix": (APART >= 0) | (np.arange(12) < 4),
    "a length": np.broadcast_to(np.arange(12) < 5, (7, 12)),
    "an identity": np.eye(12),
    "reversed": np.flip(np.eye(12), 0),
    "the middle of kernels": np.pad(np.eye(4)[:, :, None, None], ((0, 0), (0, 0), (1, 1), (1, 1))),
    "whole numbers": np.tril(np.ones((12, 12), np.int64), 2),
}
ROW, COLUMN = np.ogrid[:48, :48]
CAUSAL = ROW >= COLUMN
MATRICES = {
    "blocks": ROW // 12 == COLUMN // 12,
    "blocks of no power of two": (ROW // 6 == COLUMN // 6) & CAUSAL,
    "blocks before": COLUMN // 8 <= ROW // 8,
    "a band of blocks": np.abs(ROW // 8 - COLUMN // 8) <= 1,
    "every third": (ROW - COLUMN) % 3 == 0,
    "every fourth of a window": CAUSAL & (ROW - COLUMN < 20) & ((ROW - COLUMN) % 4 == 0),
    "every fifth column": np.broadcast_to(COLUMN % 5 == 2, (48, 48)) & CAUSAL,
    "a window and the first": CAUSAL & ((ROW - COLUMN < 8) | (COLUMN < 3)),
    "a window and every eighth": CAUSAL & ((ROW - COLUMN < 8) | ((ROW - COLUMN) % 8 == 0)),
    "a band, first rows and columns": (np.abs(ROW - COLUMN) <= 6) | (COLUMN < 4) | (ROW < 4),
    "a band of blocks and the first": (np.abs(ROW // 8 - COLUMN // 8) <= 1) | (COLUMN < 8),
    "to be added": np.where(ROW // 12 == COLUMN // 12, 0.0, -np.inf),
}
MASKS |= MATRICES


def read(array: np.ndarray) -> np.ndarray | None:
    told = octagon(array)
    if told is None:
        return None
    axes = tuple(Axis(f"i{d}", n) for d, n in enumerate(array.shape))
    value = evaluate_expr(told.at([Index.axis(a) for a in axes]), {}, {}, axes)
    return np.broadcast_to(value, array.shape)


@pytest.mark.parametrize("name", MASKS)
def test_every_element_is_what_its_position_says(name: str) -> None:
    found = read(MASKS[name])
    assert found is not None
    np.testing.assert_array_equal(found, MASKS[name])


@pytest.mark.parametrize(
    "array",
    [
        np.random.default_rng(0).standard_normal((12, 12)),
        np.random.default_rng(0).random((12, 12)) > 0.5,
        np.tril(np.ones((12, 12))) + np.eye(12),
        np.where(np.eye(12) > 0, np.nan, 0.0),
        np.ones((12, 12)),
        np.where(APART % 3 == 0, 1.0, 0.0),
        np.eye(3),
        np.random.default_rng(0).random((48, 48)) > 0.5,
        np.repeat([0, 1, 2, 3], [5, 17, 9, 17])[:, None] == np.repeat([0, 1, 2, 3], [5, 17, 9, 17])[None],
    ],
)
def test_other_arrays_stay_arrays(array: np.ndarray) -> None:
    assert octagon(array) is None


@pytest.mark.parametrize("name", [n for n in MASKS if MASKS[n].ndim == 2])
def test_one_element_that_differs_is_seen(name: str) -> None:
    mask = np.array(MASKS[name])
    for at in [(0, 0), (5, 7), (6, 2), (mask.shape[0] - 1, 11), (mask.shape[0] - 1, mask.shape[1] - 2)]:
        edited = mask.copy()
        low, high = np.unique(mask)
        edited[at] = high if mask[at] == low else low
        found = read(edited)
        assert found is None or np.array_equal(found, edited)


@given(st.integers(1, 9), st.integers(2, 9), st.integers(-9, 9), st.integers(-9, 9), st.integers(0, 9), st.booleans())
def test_what_is_told_is_right(rows: int, columns: int, low: int, high: int, first: int, turned: bool) -> None:
    i, j = np.ogrid[:rows, :columns]
    apart = i + j if turned else i - j
    mask = (apart >= low) & (apart <= high) & (j >= first)
    found = read(mask)
    assert found is None or np.array_equal(found, mask)
    if 0 < mask.sum() < mask.size >= 16:
        assert found is not None


@given(st.data())
def test_what_is_told_of_matrices_is_right(data: st.DataObject) -> None:
    rows, columns = (data.draw(st.integers(16, 40)) for _ in range(2))
    i, j = np.ogrid[:rows, :columns]

    def some() -> np.ndarray:
        n = data.draw(st.integers(2, 9))
        low, high = sorted(data.draw(st.tuples(st.integers(-20, 20), st.integers(-20, 20))))
        kinds = [(i - j) % n == 0, i // n == j // n, j // n <= i // n, (i - j >= low) & (i - j <= high), j < n]
        return np.broadcast_to(kinds[data.draw(st.integers(0, len(kinds) - 1))], (rows, columns))

    mask = some()
    for _ in range(data.draw(st.integers(0, 3))):
        mask = mask & some() if data.draw(st.booleans()) else mask | some()
    found = read(mask)
    assert found is None or np.array_equal(found, mask)


class Cached(torch.nn.Module):
    """Attention with the mask in a buffer, as GPT-2 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(64, 64, dtype=torch.bool)).view(1, 1, 64, 64))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        kept = self.get_buffer("bias")[:, :, : q.shape[-2], : k.shape[-2]]
        scores = (q @ k.mT).masked_fill(~kept, float("-inf"))
        return scores.softmax(-1) @ v


def heads() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 48, 16, generator=generator) for _ in range(3)]


def test_a_mask_in_a_buffer_is_a_causal_one() -> None:
    program = prism.trace(Cached(), heads())
    assert not program.weights
    verdict = prism.prove(
        Cached(), lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0), heads()
    )
    assert verdict, verdict.reason


def test_tiles_that_a_mask_in_a_buffer_hides_are_skipped() -> None:
    with prism.search(prism.trace(Cached(), heads()), target="sm_90") as ours:
        first = next(ours).sgraph
    given = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)  # noqa: E731
    with prism.search(prism.trace(given, heads()), target="sm_90") as theirs:
        other = next(theirs).sgraph
    assert [t.name for t in first.inputs] == ["q", "k", "v"]
    assert str(first).count("where") == str(other).count("where")


def test_parameters_stay_weights() -> None:
    linear = torch.nn.Linear(8, 8, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(8))
    assert "weight" in prism.trace(linear, [torch.randn(4, 8)]).weights
