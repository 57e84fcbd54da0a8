"""Sums over what lies between two places are differences of running sums, where all that is summed is finite."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from prism.frontend.torch.reader import trace
from prism.program import spec
from prism.program.between import differences
from prism.program.evaluate import evaluate
from prism.program.nodes import Program, Reduce, free_axes, walk

H, N = 2, 12
Make = Callable[..., torch.Tensor]


def read(fn: Make, *shapes: tuple[int, ...]) -> Program:
    return trace(fn, tuple(torch.zeros(s) for s in shapes), name="between", check=False)


def segments(a: torch.Tensor) -> torch.Tensor:
    """As in Mamba-2's reference: what comes after j up to i, and minus infinity where j is after i."""
    x = a[..., None].expand(*a.shape, N)
    x = x.masked_fill(~torch.ones(N, N, dtype=torch.bool).tril(-1), 0)
    return x.cumsum(-2).masked_fill(~torch.ones(N, N, dtype=torch.bool).tril(), -math.inf)


def scaled(a: torch.Tensor) -> torch.Tensor:
    """The same of what is computed, by the other mask inside."""
    x = torch.where(torch.arange(N)[None] < torch.arange(N)[:, None], (-a.sigmoid())[..., None], 0.0)
    return x.cumsum(-2)


def largest_sum(p: Program) -> int:
    """Over how many axes at once the largest of the sums is."""
    return max(
        (len(free_axes(e.body)) for d in p.definitions for e in walk(d.expr) if isinstance(e, Reduce)), default=0
    )


@pytest.mark.parametrize("fn", [segments, scaled])
def test_a_sum_between_two_places_is_a_difference(fn: Make) -> None:
    p = read(fn, (H, N))
    q = differences(p)
    spec.check(q)
    assert largest_sum(p) == 4 or largest_sum(p) == 3
    assert largest_sum(q) < largest_sum(p)
    given = {t.name: np.random.default_rng(0).standard_normal([int(e) for e in t.shape]) for t in p.inputs}
    one, other = evaluate(p, given), evaluate(q, given)
    for output in p.outputs:
        np.testing.assert_allclose(one[output], other[output], rtol=1e-12, atol=1e-12)


def infinite(a: torch.Tensor) -> torch.Tensor:
    """Of logarithms that may be minus infinity: behind such a place the sum between two is a number again."""
    return segments(torch.where(a < 0, -math.inf, a))


def of_both(a: torch.Tensor) -> torch.Tensor:
    """What is summed hangs on the place that the sum ends at."""
    x = a[..., None].expand(*a.shape, N).masked_fill(~torch.ones(N, N, dtype=torch.bool).tril(-1), 0)
    later = torch.arange(N)[:, None] >= torch.arange(N)
    return (torch.where(later[..., None], x[:, None] * a[:, :, None, None], 0.0)).sum(2)


@pytest.mark.parametrize("fn", [infinite, of_both, lambda a: a.cumsum(-1), lambda a: a[..., None].tril(-1).cumsum(-2)])
def test_other_sums_stay_as_they_are(fn: Make) -> None:
    p = read(fn, (H, N))
    assert differences(p) is p
