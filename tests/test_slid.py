"""Sums along what a window slides over: where each of its taps sees all places, they are sums of these places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from formulas import evaluate_formula
from torch.nn import functional as F

import prism
from prism.api import SearchBudget
from prism.api.region_search import run_search
from prism.cost.device import device
from prism.egraph.worker import Worker
from prism.events import Recorder
from prism.program.inline import inline
from prism.program.nodes import Map, Program, Read, Reduce, walk

X1, W1 = (2, 3, 9), (4, 3, 4)
X2, W2 = (2, 3, 8, 7), (4, 3, 3, 2)


def traced(fn: Callable[..., object], shapes: tuple[tuple[int, ...], ...]) -> Program:
    return prism.trace(fn, [torch.empty(s, device="meta") for s in shapes], check=False)


def is_masked(p: Program) -> bool:
    return any(isinstance(e, Map) and e.op == "where" for f in inline(p) for e in walk(f.expr))


def check_values(fn: Callable[..., torch.Tensor], p: Program) -> None:
    drawn = np.random.default_rng(0)
    given = {t.name: drawn.standard_normal([int(e) for e in t.shape]) for t in p.inputs}
    (formula,) = inline(p)
    expected = fn(*(torch.from_numpy(given[t.name]) for t in p.inputs)).numpy()
    np.testing.assert_allclose(evaluate_formula(formula, given, {}), expected, rtol=1e-9, atol=1e-12)


ALL_SEEN: Mapping[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "a row": (lambda x, w: F.conv1d(x, w, padding=3).mean(-1), (X1, W1)),
    "with a bias": (lambda x, w, b: F.conv1d(x, w, b, padding=3).sum(-1), (X1, W1, (4,))),
    "an image": (lambda x, w: F.conv2d(x, w, padding=(2, 1)).mean((-1, -2)), (X2, W2)),
    "more than full": (lambda x, w: F.conv1d(x, w, padding=5).sum(-1), (X1, W1)),
    "taps apart": (lambda x, w: F.conv1d(x, w, padding=6, dilation=2).mean(-1), (X1, W1)),
    "a channel each": (lambda x, w: F.conv1d(x, w, padding=3, groups=3).sum(-1), (X1, (3, 1, 4))),
    "transposed": (lambda x, w: F.conv_transpose1d(x, w).mean(-1), (X1, (3, 4, 4))),
    "an image, transposed": (lambda x, w: F.conv_transpose2d(x, w).sum((-1, -2)), (X2, (3, 4, 3, 2))),
}
SOME_SEEN: Mapping[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "as long": (lambda x, w: F.conv1d(x, w, padding=1).mean(-1), (X1, (4, 3, 3))),
    "one place less": (lambda x, w: F.conv1d(x, w, padding=2).mean(-1), (X1, W1)),
    "a stride": (lambda x, w: F.conv1d(x, w, padding=3, stride=2).mean(-1), (X1, W1)),
    "a causal sum": (lambda x, w: (F.conv1d(x, w, padding=3)[..., :9]).sum(-1), (X1, W1)),
    "squares": (lambda x, w: F.conv1d(x, w, padding=3).square().sum(-1), (X1, W1)),
    "weighed": (lambda x, w, v: (F.conv1d(x, w, padding=3) * v).sum(-1), (X1, W1, (12,))),
}


@pytest.mark.parametrize("name", ALL_SEEN)
def test_what_every_tap_sees_is_summed_apart_from_the_taps(name: str) -> None:
    fn, shapes = ALL_SEEN[name]
    p = traced(fn, shapes)
    assert not is_masked(p)
    check_values(fn, p)
    (formula,) = inline(p)
    for e in walk(formula.expr):
        if isinstance(e, Read) and e.tensor == p.inputs[0].name:
            assert all(len(i.terms) <= 1 for i in e.index), "no tap in it"


@pytest.mark.parametrize("name", SOME_SEEN)
def test_what_some_taps_do_not_see_stays(name: str) -> None:
    fn, shapes = SOME_SEEN[name]
    p = traced(fn, shapes)
    assert is_masked(p)
    check_values(fn, p)


def test_the_mean_of_a_convolution_is_a_product_of_sums(worker: Worker) -> None:
    shapes = (8, 16, 32, 32), (24, 16, 5, 5)
    p = traced(lambda x, w: F.conv2d(x, w, padding=4).mean((-1, -2)), shapes)
    found = run_search(p, device("sm_90"), SearchBudget(), worker, Recorder())
    best = found.proved[0]
    assert len(best.sgraph.kernels) == 1
    sums = [e for f in found.formulas for e in walk(f.expr) if isinstance(e, Reduce)]
    assert {int(e.axis.extent) for e in sums} == {5, 16, 32}


def test_so_it_is_proved() -> None:
    def apart(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.sum((-1, -2)) @ w.sum((-1, -2)).T / (10 * 12)

    def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, padding=2).mean((-1, -2))

    inputs = (torch.randn(2, 3, 8, 10), torch.randn(4, 3, 3, 3))
    assert prism.prove(convolved, apart, inputs)
    assert not prism.prove(lambda x, w: convolved(x, w) * 1.01, apart, inputs)
