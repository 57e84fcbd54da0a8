"""Arithmetic in which 0 times anything is 0, and the gate's use of it: what is masked or padded need not be read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from prism.backends.eager import eager
from prism.frontend.torch.reader import trace
from prism.instantiate.gate.check import _without_non_finite
from prism.instantiate.gate.judge import judge
from prism.program.arrays import ANNIHILATING
from prism.program.evaluate import evaluate
from prism.program.nodes import DType

NUMBERS = np.array([0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("seed", range(20))
def test_a_matrix_product_is_the_sum_of_its_terms(seed: int) -> None:
    r = np.random.default_rng(seed)
    a, b = r.choice(NUMBERS, (2, 4, 3)), r.choice(NUMBERS, (2, 3, 5))
    with np.errstate(all="ignore"):
        terms = ANNIHILATING.pointwise("mul", (a[:, :, :, None], b[:, None, :, :]))
        np.testing.assert_array_equal(ANNIHILATING.matmul(a, b), terms.sum(axis=2))


def test_a_kernel_need_not_read_a_weight_that_only_padding_meets() -> None:
    program = trace(
        lambda x, w: F.relu(F.conv2d(x, w, padding=1)),
        (torch.empty(1, 2, 4, 4, device="meta"), torch.empty(3, 2, 3, 3, device="meta")),
    )
    x, w = np.ones((1, 2, 4, 4)), np.ones((3, 2, 3, 3))
    w[0, 0, 0, :] = -np.inf  # the top row of a window, which is padding for the top row of the result
    exact, (given,) = evaluate(program, {"x": x, "w": w}), eager(program)(*map(torch.tensor, (x, w)))
    (name,) = program.outputs
    clean = _without_non_finite(program, {"x": x, "w": w}, {"w"})[name]
    np.testing.assert_array_equal(*clean)
    assert np.isnan(exact[name][0, 0, 0]).all(), "0 * inf"
    skipped = np.where(np.isnan(exact[name]), clean[0], exact[name])
    assert np.isfinite(skipped[0, 0, 0]).all()
    assert judge(skipped, exact[name], given.numpy(), DType.FLOAT64, clean=clean)
    wrong = skipped.copy()
    wrong[0, 0, 0, 1] += 1
    assert not judge(wrong, exact[name], given.numpy(), DType.FLOAT64, clean=clean)
    wrong = skipped.copy()
    wrong[0, 1] = np.inf
    assert not judge(wrong, exact[name], given.numpy(), DType.FLOAT64, clean=clean)


def test_what_a_guard_makes_a_number_of_is_right_with_and_without_it() -> None:
    def guarded(x: torch.Tensor) -> torch.Tensor:
        near = torch.where(x * x < 9, 7.0, 0.0)  # the same of all numbers that take the place of what is not one
        return torch.where(torch.isnan(x), 0.0, near) * (1 + (x - x))

    x = np.array([1.0, np.nan, 2.0])
    program = trace(guarded, (torch.empty(3, device="meta", dtype=torch.float64),))
    exact, (given,) = evaluate(program, {"x": x}), eager(program)(torch.tensor(x))
    (name,) = program.outputs
    clean = _without_non_finite(program, {"x": x}, {"x"})[name]
    for found, right in ((0.0, True), (7.0, True), (np.nan, True), (3.0, False), (np.inf, True)):
        result = np.array([7.0, found, 7.0])
        assert bool(judge(result, exact[name], given.numpy(), DType.FLOAT64, clean=clean)) == right, found
