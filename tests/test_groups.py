"""Rows that some read whole and others by groups, and rows in parts: what formulas become, and what is found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from formulas import evaluate_formula

from prism.api import trace
from prism.api.region_search import SearchBudget, run_search
from prism.cost.device import device
from prism.egraph.worker import Worker
from prism.events import Recorder
from prism.instantiate.gate.judge import judge
from prism.program.groups import by_groups
from prism.program.inline import aligned, inline
from prism.program.nodes import DType, Program, Reduce, walk
from prism.sgraph.nodes import Load, Loop, SGraph


def traced(fn: Callable[..., object], *shapes: tuple[int, ...]) -> Program:
    return trace(fn, [torch.empty(s, device="meta") for s in shapes], name="p", check=False)


def scales_of_normed(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * (x * x).mean(-1, keepdim=True).rsqrt() * g
    return y, y.view(x.shape[0], 4, 6).abs().amax(-1)


def largest_of_groups(x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    s = x.sigmoid() + b
    return s.view(x.shape[0], 4, 6).amax(-1), s


def drawn(p: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {t.name: rng.standard_normal([int(e) for e in t.shape]) for t in p.inputs}


@pytest.mark.parametrize("fn", [scales_of_normed, largest_of_groups])
def test_formulas_in_groups_are_the_same_tensors(fn: Callable[..., object]) -> None:
    p = traced(fn, (5, 24), (24,))
    whole, given = aligned(inline(p)), drawn(p)
    grouped = by_groups(whole)
    assert grouped != whole
    for f, g in zip(whole, grouped, strict=True):
        lengths = {a.extent for i in g.index for a in i.axes()} | {
            e.axis.extent for e in walk(g.expr) if isinstance(e, Reduce)
        }
        assert 24 not in lengths, "everything is by groups"
        np.testing.assert_allclose(evaluate_formula(g, given, {}), evaluate_formula(f, given, {}), rtol=1e-12)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x, b: (x + b, (x * x).sum(-1)), ((5, 24), (24,))),
        (lambda x, b: (x.view(5, 4, 6).amax(-1), x.view(5, 8, 3).amax(-1), x + b), ((5, 24), (24,))),
        (lambda x, w: (x @ w, x.view(5, 4, 6).amax(-1)), ((5, 24), (24, 7))),
    ],
    ids=["no groups", "groups of two lengths", "the depth of a product"],
)
def test_what_is_not_read_by_one_kind_of_groups_stays(
    fn: Callable[..., object], shapes: tuple[tuple[int, ...]]
) -> None:
    whole = aligned(inline(traced(fn, *shapes)))
    assert by_groups(whole) == whole


def found(p: Program) -> list[SGraph]:
    with Worker() as worker:
        return [c.sgraph for c in run_search(p, device("sm_90"), SearchBudget(), worker, Recorder()).proved]


@pytest.mark.parametrize("fn", [scales_of_normed, largest_of_groups])
def test_one_kernel_reads_a_row_once_for_both(fn: Callable[..., object]) -> None:
    def loads(g: SGraph) -> int:
        return sum(isinstance(s, Load) and s.tensor == "x" for k in g.kernels for s in k.statements())

    made = found(traced(fn, (512, 24), (24,)))
    assert any(len(g.kernels) == 1 and loads(g) == 1 for g in made)


def joined(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    scores = torch.cat([q @ k.transpose(-1, -2), q @ m.transpose(-1, -2)], -1)
    shares = scores.softmax(-1)
    return shares[..., : k.shape[-2]] @ v + shares[..., k.shape[-2] :] @ w


def test_keys_in_two_parts_are_one_pass_over_each() -> None:
    made = found(traced(joined, (8, 64, 32), (1, 1024, 32), (1, 1024, 32), (8, 256, 32), (8, 256, 32)))

    def rescaled(g: SGraph) -> bool:
        return any("rescaled by" in str(s) for k in g.kernels for s in k.statements())

    assert any(rescaled(g) for g in made), "each part is summed below its own maximum"
    assert min(len(g.kernels) for g in made) == 1


def test_a_byte_that_is_what_outputs_start_as_is_written() -> None:
    right = np.array([1.0, 85.0, -3.0])
    seen = np.array([True, False, True])
    assert judge(right, right, right, DType.INT8, seen)
    wrong = judge(np.array([1.0, 85.0, -3.0]), np.array([1.0, 84.0, -3.0]), right, DType.INT8, seen)
    assert "never written" in wrong.reason


def alibi_gradient(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slope: torch.Tensor, do: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    places = torch.arange(q.shape[-2], device=q.device)
    behind = places[None] - places[:, None]
    given = [t.detach().requires_grad_() for t in (q, k, v)]
    with torch.enable_grad():
        scores = given[0] @ given[1].transpose(-1, -2) + slope[:, None, None] * behind
        y = scores.masked_fill(behind > 0, float("-inf")).softmax(-1) @ given[2]
        return torch.autograd.grad(y, given, do)


def test_gradients_of_a_causal_attention_have_a_loop_each() -> None:
    shape = (32, 2048, 64)
    made = found(traced(alibi_gradient, shape, shape, shape, (32,), shape))

    def past(g: SGraph) -> bool:
        """Whether some loop goes past the mask."""
        return any(isinstance(s, Loop) and not s.range for k in g.kernels for s in k.statements())

    assert not all(past(g) for g in made), "gradients of queries and of keys are not in one loop"
