"""Masks as people write them, from the torch function to the tiles that are visited and the values that come out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from sgraph_programs import task
from sgraph_simulator import simulate
from torch import Tensor

import prism
from prism.api.region_search import SearchBudget, run_search
from prism.cost.device import device
from prism.egraph.worker import Worker
from prism.events import Recorder
from prism.generate.enumerate import Bounds, generate
from prism.program.evaluate import evaluate
from prism.program.nodes import Program
from prism.sgraph.nodes import Loop, SGraph
from prism.sgraph.ranges import assumed
from prism.sgraph.spec import check

S, D = 24, 4
LEAST = torch.finfo(torch.float32).min


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) * 0.5


def causal(s: Tensor) -> Tensor:
    return torch.ones(s.shape[-2], s.shape[-1], dtype=torch.bool, device=s.device).tril()


def finite(q: Tensor, k: Tensor, v: Tensor, z: Tensor) -> Tensor:
    """A mask of the least number, as transformers writes it."""
    s = scores(q, k)
    return torch.softmax(torch.where(causal(s), s, LEAST), -1) @ v


def added(q: Tensor, k: Tensor, v: Tensor, z: Tensor) -> Tensor:
    """A mask that is added."""
    s = scores(q, k)
    return torch.softmax(s + torch.where(causal(s), 0.0, LEAST), -1) @ v


def window(q: Tensor, k: Tensor, v: Tensor, z: Tensor) -> Tensor:
    """Neighbours on both sides."""
    s = scores(q, k)
    i = torch.arange(s.shape[-1], device=s.device)
    return torch.softmax(s.masked_fill((i[None] - i[:, None]).abs() > 3, -torch.inf), -1) @ v


def sink(q: Tensor, k: Tensor, v: Tensor, z: Tensor) -> Tensor:
    """A column of the softmax that no value belongs to, appended as gpt-oss does it."""
    s = scores(q, k)
    s = s.masked_fill(~causal(s), LEAST)
    both = torch.cat([s, z[:, None, None].expand(s.shape[0], s.shape[1], 1)], -1)
    return torch.softmax(both, -1)[..., :-1] @ v


def sink_as_a_term(q: Tensor, k: Tensor, v: Tensor, z: Tensor) -> Tensor:
    """The same as a term of the sum."""
    s = scores(q, k).masked_fill(~causal(q @ k.transpose(-1, -2)), -torch.inf)
    top = torch.maximum(s.amax(-1, keepdim=True), z[:, None, None])
    e = torch.exp(s - top)
    return e / (e.sum(-1, keepdim=True) + torch.exp(z[:, None, None] - top)) @ v


def padded(q: Tensor, k: Tensor, v: Tensor, z: Tensor) -> Tensor:
    """A mask of data besides, by which a row may be hidden as a whole; its result is the mean of all values then."""
    s = scores(q, k)
    return torch.softmax(torch.where(causal(s) & (z[:, None, None] > 0), s, LEAST), -1) @ v


def prefix(q: Tensor, k: Tensor, v: Tensor, z: Tensor) -> Tensor:
    """Causal, but for the first keys, which all see."""
    s = scores(q, k)
    first = torch.arange(s.shape[-1], device=q.device) < s.shape[-1] // 8
    return torch.softmax(s.masked_fill(~(causal(s) | first), -torch.inf), -1) @ v


def traced(f: Callable[..., Tensor], length: int, width: int) -> Program:
    shape = (2, length, width)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return prism.trace(f, (*(torch.empty(shape) for _ in "qkv"), torch.empty(2)), check=False)


def ranges(g: SGraph) -> set[str]:
    return {b for k in g.kernels for s in k.statements() if isinstance(s, Loop) for b in s.bounds}


@pytest.fixture(scope="module")
def worker() -> object:
    with Worker() as running:
        yield running


@pytest.mark.parametrize(
    ("f", "sides"),
    [(finite, 1), (added, 1), (window, 2), (sink, 1), (sink_as_a_term, 1), (padded, 0), (prefix, 1)],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_tiles_that_a_mask_hides_are_not_visited(f: Callable[..., Tensor], sides: int, worker: Worker) -> None:
    found = run_search(traced(f, 2048, 64), device("sm_90"), SearchBudget(), worker, Recorder())
    best = found.proved[0].sgraph
    assert len(ranges(best)) == sides
    assert bool(assumed(best.kernels)) == (f in (finite, added, sink)), "a mask of a number is an assumption"


@pytest.mark.parametrize("f", [finite, added, window, sink, sink_as_a_term, padded, prefix], ids=lambda f: f.__name__)
def test_what_comes_out_is_the_same(f: Callable[..., Tensor], worker: Worker) -> None:
    program = traced(f, S, D)
    found = run_search(program, device("sm_90"), SearchBudget(), worker, Recorder())
    rng = np.random.default_rng(5)
    given = {t.name: rng.normal(size=[int(e) for e in t.shape]) for t in program.inputs}
    expected = evaluate(program, given)
    for p in found.proved[:6]:
        binding = {s.name: int(rng.choice([2, 4, 8])) for s in p.sgraph.symbols}
        got = simulate(p.sgraph, given, binding)
        for name, value in expected.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-7, atol=1e-9, err_msg=f"{binding}\n{p.sgraph}")


def padded_gradient(q: Tensor, k: Tensor, v: Tensor, do: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    """The gradient of attention whose keys end where data say."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    beyond = torch.arange(k.shape[-2], device=k.device) >= n
    weights = torch.softmax((q @ k.transpose(-1, -2)).masked_fill(beyond, -torch.inf), -1)
    return torch.autograd.grad(weights @ v, (q, k, v), do)


def test_what_is_taken_apart_runs_after_what_it_reads() -> None:
    """Rows over a softmax's sum, of one kernel with that sum: apart, the sum comes first."""
    half = torch.bfloat16
    shapes = ((16, 2048, 64), (16, 512, 64), (16, 512, 64), (16, 2048, 64))
    given = [torch.empty(s, dtype=half, device="meta") for s in shapes]
    program = prism.trace(padded_gradient, (*given, torch.empty(1, dtype=torch.int64, device="meta")), check=False)
    found = generate(replace(task(program), device=device("sm_90")), Bounds()).candidates
    assert found
    for c in found:
        check(c.sgraph)
