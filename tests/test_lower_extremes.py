"""Running maxima that are positive multiples of each other: one is kept, and no bit of any result changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from tile_simulator import run_module

import prism
from prism.backends import lower as lowering
from prism.backends.lower import lower
from prism.backends.passes.exponents import binary
from prism.backends.tile import Pointwise, Reduce, TileModule
from prism.backends.tile_spec import check_module
from prism.ir.kit import statements
from prism.program.nodes import ReduceKind
from prism.sgraph.nodes import Accumulate, SGraph

F = torch.nn.functional
M, N = 4, 9001


def temperatures(s: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return F.log_softmax(s, -1), F.softmax(s / 3, -1)


def neither_is_the_other(s: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(s * 0.7, -1) + torch.logsumexp(s * 0.3, -1) + torch.logsumexp(s * 1.9, -1)


def masked(s: torch.Tensor) -> torch.Tensor:
    hidden = torch.ones(M, N, dtype=torch.bool).tril(6000).logical_not()
    s = s.masked_fill(hidden, float("-inf"))
    return torch.logsumexp(s, -1) * torch.logsumexp(s / 5, -1)


def negative(s: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(s, -1) + torch.logsumexp(s * -0.5, -1)


def others(s: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(s, -1) + torch.logsumexp(s * s, -1)


@cache
def found(f: Callable[[torch.Tensor], object], maxima: int) -> SGraph:
    """The first sGraph with so many running maxima in a loop."""

    def running(g: SGraph) -> int:
        everything = (s for k in g.kernels for s in k.statements())
        return sum(isinstance(s, Accumulate) and s.kind is ReduceKind.MAX for s in everything)

    with prism.search(prism.trace(f, (torch.rand(M, N),))) as proved:
        return next(p.sgraph for p in proved if running(p.sgraph) == maxima)


def maxima(module: TileModule) -> int:
    """Reductions of a tile to its maxima."""
    return sum(isinstance(s, Reduce) and s.kind is ReduceKind.MAX for p in module.programs for s in statements(p.body))


def both(g: SGraph, monkeypatch: pytest.MonkeyPatch, *, defer: bool = True) -> tuple[TileModule, TileModule]:
    """Without and with what is shared."""
    shared = lower(g, defer=defer)
    check_module(shared)
    with monkeypatch.context() as m:
        m.setattr(lowering, "shared_extremes", lambda body, _: body)
        return lower(g, defer=defer), shared


@pytest.mark.parametrize("defer", [True, False])
@pytest.mark.parametrize(("f", "before"), [(temperatures, 2), (neither_is_the_other, 3), (masked, 2)])
def test_one_maximum_is_kept(
    f: Callable[[torch.Tensor], object], before: int, defer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = found(f, before)
    apart, shared = both(g, monkeypatch, defer=defer)
    assert (maxima(apart), maxima(shared)) == (before, 1)
    rng = np.random.default_rng(0)
    for scale in (1.0, 30.0, 3e38, 1e-42):
        s = np.clip(rng.standard_normal((M, N)) * scale, -3.3e38, 3.3e38).astype(np.float32)
        s[1, :5000] = -np.inf
        s[2] = -np.abs(s[2])
        for tile in (256, 4096):
            binding = {str(x): tile if str(N) in str(x) else 4 for x in g.symbols}
            with np.errstate(all="ignore"):
                want, got = run_module(apart, [s], binding)[0], run_module(shared, [s], binding)[0]
            for name, w in want.items():
                np.testing.assert_array_equal(got[name].view(np.int32), w.view(np.int32))


@pytest.mark.parametrize("f", [negative, others])
def test_what_is_no_positive_multiple_keeps_its_own(
    f: Callable[[torch.Tensor], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    apart, shared = both(found(f, 2), monkeypatch)
    assert apart == shared
    assert maxima(shared) == 2


def test_the_scale_still_takes_the_base_of_the_exponential(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiles(m: TileModule) -> int:
        """Products with a number of whole tiles."""
        everything = (s for p in m.programs for s in statements(p.body) if isinstance(s, Pointwise) and s.op == "mul")
        return sum(len(s.dims) == 2 and not all(isinstance(a, str) for a in s.args) for s in everything)

    apart, shared = both(found(neither_is_the_other, 3), monkeypatch)
    assert tiles(shared.over(binary)) == tiles(apart.over(binary)) == 3
