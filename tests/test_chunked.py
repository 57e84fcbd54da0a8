"""Causal sums of products go by chunks where that is less work, and are what they were; nothing else changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from prism.frontend.torch.reader import trace
from prism.program import chunked as module
from prism.program import spec
from prism.program.build import const, mul
from prism.program.chunked import chunked
from prism.program.evaluate import evaluate
from prism.program.index import Index
from prism.program.inline import inline
from prism.program.nodes import Definition, DType, Map, Position, Program, walk
from prism.program.products import operands_type
from prism.program.transform import substitute

Make = Callable[..., Any]
H, N, D = 2, 128, 4
QKV = ((H, N, D), (H, N, D), (H, N, 8))


def _read(fn: Make, *shapes: tuple[int, ...]) -> Program:
    return trace(fn, tuple(torch.zeros(s) for s in shapes), name="causal", check=False)


def _segments(a: torch.Tensor) -> torch.Tensor:
    """a summed after j up to i; minus infinity where j is after i."""
    total = a.cumsum(-1)
    mask = torch.ones(a.shape[-1], a.shape[-1], dtype=torch.bool).tril()
    return (total[..., :, None] - total[..., None, :]).masked_fill(~mask, -math.inf)


def _segments_by_zeros(a: torch.Tensor) -> torch.Tensor:
    """The exponential of the same, whose mask is 0 before it and after it."""
    total = a.cumsum(-1)
    return (total[..., :, None] - total[..., None, :]).tril().exp().tril()


def _state_space(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Mamba-2's quadratic form: x [h, n, p], a [h, n], b and c [n, d]."""
    return torch.einsum("id,jd,hij,hjp->hip", c, b, torch.exp(_segments(a)), x)


def _places() -> torch.Tensor:
    places = torch.arange(N)
    return (places[:, None] - places).float()


def _steps(a: torch.Tensor) -> torch.Tensor:
    """As many a [h] as there are places from j up to i; 0 where j is after i, as retention has it."""
    places = torch.arange(N)
    steps = (places[:, None] - places[None]).float()
    return torch.where(steps >= 0, torch.exp(steps * a[:, None, None]), 0.0)


def _ahead(a: torch.Tensor, far: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The same by another spelling: the decay first, and places that are no negative number without a mask either."""
    places = torch.arange(N)
    mask = torch.ones(N, N, dtype=torch.bool).tril()
    return torch.where(mask, torch.exp(a[:, None, None] * far(places[:, None] - places[None])), 0.0)


CHUNKED: dict[str, tuple[Make, tuple[tuple[int, ...], ...]]] = {
    "linear attention": (lambda q, k, v: (q @ k.mT).tril() @ v, QKV),
    "scaled": (lambda q, k, v: (q @ k.mT * 0.5).tril() @ v, QKV),
    "a mask of ones": (lambda q, k, v: (q @ k.mT * torch.ones(N, N).tril()) @ v, QKV),
    "places from one's own on": (lambda q, k, v: (q @ k.mT).triu() @ v, QKV),
    "places after one's own": (lambda q, k, v: (q @ k.mT).triu(1) @ v, QKV),
    "a state space, transposed": (
        lambda q, k, v, a: (q @ k.mT * torch.exp(_segments(a))).mT @ v,
        (*QKV, (H, N)),
    ),
    "a decay a place, transposed": (lambda q, k, v, a: (q @ k.mT * _steps(a)).mT @ v, (*QKV, (H,))),
    "filled with zeros": (
        lambda q, k, v: (q @ k.mT).masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), 0.0) @ v,
        QKV,
    ),
    "without one's own place": (lambda q, k, v: (q @ k.mT).tril(-1) @ v, QKV),
    "feature maps": (
        lambda q, k, v: (torch.nn.functional.elu(q) @ k.exp().mT).tril() @ v,
        QKV,
    ),
    "a mask that multiplies": (
        lambda q, k, v: ((q @ k.mT) * torch.arange(N)[:, None].ge(torch.arange(N))) @ v,
        QKV,
    ),
    "masked before and after": (
        lambda q, k, v, a: (q @ k.mT * _segments_by_zeros(a)) @ v,
        (*QKV, (H, N)),
    ),
    "a decay a place, of factors": (
        lambda q, k, v, a: (q @ k.mT * torch.exp2(_places() * a[:, None, None]).tril()) @ v,
        (*QKV, (H,)),
    ),
    "a decay per head and place": (
        lambda q, k, v, a: (q @ k.mT * torch.exp(_segments(a))) @ v,
        (*QKV, (H, N)),
    ),
    "a decay under a mask of its own": (
        lambda q, k, v, a: (q @ k.mT * torch.exp(a[:, :, None] - a[:, None, :])).tril() @ v,
        (*QKV, (H, N)),
    ),
    "a decay a place": (lambda q, k, v, a: (q @ k.mT * _steps(a)) @ v, (*QKV, (H,))),
    "so much decay a place": (lambda q, k, v, a: (q @ k.mT * _ahead(a, lambda d: d)) @ v, (*QKV, (H,))),
    "a decay a place, none ahead": (
        lambda q, k, v, a: (q @ k.mT * _ahead(a, lambda d: d.clamp(min=0))) @ v,
        (*QKV, (H,)),
    ),
    "a decay by how far": (lambda q, k, v, a: (q @ k.mT * _ahead(a, torch.abs)) @ v, (*QKV, (H,))),
    "a decay a place, none ahead, transposed": (
        lambda q, k, v, a: (q @ k.mT * _ahead(a, lambda d: d.clamp(min=0))).mT @ v,
        (*QKV, (H,)),
    ),
    "a decay a place, by a table of heads": (lambda q, k, v: (q @ k.mT * _steps(-0.1 * torch.arange(H))) @ v, QKV),
    "a power of how far": (
        lambda q, k, v, a: (q @ k.mT * a[:, None, None] ** _places().abs()).tril() @ v,
        (*QKV, (H,)),
    ),
    "a power of how far, none ahead": (
        lambda q, k, v, a: (q @ k.mT * (a[:, None, None] ** _places().clamp(min=0)).tril()) @ v,
        (*QKV, (H,)),
    ),
    "a power of how far, transposed": (
        lambda q, k, v, a: (q @ k.mT * (a[:, None, None] ** _places()).tril()).mT @ v,
        (*QKV, (H,)),
    ),
    "a power of how far, of positive numbers": (
        lambda q, k, v: (
            (q @ k.mT * ((1 - torch.exp2(-5.0 - torch.arange(H)))[:, None, None] ** (0.5 * _places())).tril()) @ v
        ),
        QKV,
    ),
    "a scaled running sum": (
        lambda q, k, v, a: (
            (q @ k.mT * torch.exp2((a * 1.5).cumsum(-1)[..., None] - (a * 1.5).cumsum(-1)[:, None])).tril() @ v
        ),
        (*QKV, (H, N)),
    ),
    "a running sum, scaled": (
        lambda q, k, v, a: (
            (q @ k.mT * torch.exp((-a).cumsum(-1)[:, None] / 16 - (-a).cumsum(-1)[..., None] / 16)).tril() @ v
        ),
        (*QKV, (H, N)),
    ),
    "state space": (_state_space, ((H, N, 8), (H, N), (N, D), (N, D))),
}
GATES = (*QKV, (H, N, D))
CHUNKED |= {
    "a decay per channel, as factors": (
        lambda q, k, v, a: ((q * a.cumsum(1).exp()) @ (k * (-a.cumsum(1)).exp()).mT).tril() @ v,
        GATES,
    ),
    "a decay per channel, as a quotient": (
        lambda q, k, v, a: ((q * a.cumsum(1).exp()) @ (k / a.cumsum(1).exp()).mT).tril() @ v,
        GATES,
    ),
    "a decay per channel, as powers of two": (
        lambda q, k, v, a: (
            (
                (q * torch.exp2((a * math.log2(math.e)).cumsum(1)))
                @ (k * torch.exp2(-(a * math.log2(math.e)).cumsum(1))).mT
            ).tril()
            @ v
        ),
        GATES,
    ),
    "a decay per channel, on one side of the product": (
        lambda q, k, v, a: ((q * a.cumsum(1).exp() * 0.5) @ (k * (1 - a.cumsum(1)).exp()).mT).tril(-1) @ v,
        GATES,
    ),
    "exponentials that are no pair": (
        lambda q, k, v, a: ((q * a.exp()) @ (k * a.exp()).mT).tril() @ v,
        GATES,
    ),
}
AS_WRITTEN: dict[str, tuple[Make, tuple[tuple[int, ...], ...]]] = {
    "softmax": (
        lambda q, k, v: torch.softmax((q @ k.mT).masked_fill(torch.ones(N, N).triu(1) > 0, -math.inf), -1) @ v,
        QKV,
    ),
    "squared scores": (lambda q, k, v: (q @ k.mT).tril().square() @ v, QKV),
    "no mask": (lambda q, k, v: (q @ k.mT) @ v, QKV),
    "how far on both sides": (
        lambda q, k, v, a: (
            (q @ k.mT * torch.exp(a[:, None, None] * (torch.arange(N)[:, None] - torch.arange(N)).abs())) @ v
        ),
        (*QKV, (H,)),
    ),
    "a root of how far, of any numbers": (
        lambda q, k, v, a: (q @ k.mT * a[:, None, None] ** (0.5 * _places())).tril() @ v,
        (*QKV, (H,)),
    ),
    "a power of how far behind, of any numbers": (
        lambda q, k, v, a: (q @ k.mT * a[:, None, None] ** -_places()).tril() @ v,
        (*QKV, (H,)),
    ),
    "a window": (lambda q, k, v: (q @ k.mT).tril().triu(-8) @ v, QKV),
    "growth of other numbers": (
        lambda q, k, v, a, b: (q @ k.mT * torch.exp(a[:, :, None] - b[:, None, :])).tril() @ v,
        (*QKV, (H, N), (H, N)),
    ),
    "wide and short": (lambda q, k, v: (q @ k.mT).tril() @ v, ((1, 64, 64), (1, 64, 64), (1, 64, 64))),
    "a length without divisors": (lambda q, k, v: (q @ k.mT).tril() @ v, ((1, 127, 4), (1, 127, 4), (1, 127, 4))),
    "a prefix sum": (lambda x: x.cumsum(0), ((N, 4),)),
}


@pytest.mark.parametrize("name", CHUNKED)
def test_a_causal_sum_goes_by_chunks(name: str) -> None:
    fn, shapes = CHUNKED[name]
    p = _read(fn, *shapes)
    q = chunked(p)
    spec.check(q)
    assert len([d for d in q.definitions if d.name.endswith(("_state", "_before", "_own", "_chunks"))]) == 4
    # Nothing is left over all pairs of places.
    assert not any(sum(a.extent == N for a in d.axes) > 1 for d in q.definitions)
    inline(q)
    rng = np.random.default_rng(0)
    given = {t.name: -np.abs(rng.standard_normal([int(e) for e in t.shape])) for t in p.inputs}
    one, other = evaluate(p, given), evaluate(q, given)
    for output in p.outputs:
        np.testing.assert_allclose(one[output], other[output], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("how", ["a decay a place", "a decay a place, of factors"])
def test_exponents_of_decays_a_place_are_one_number_of_places(how: str) -> None:
    """Their sign is known, where that of a difference of two such terms is not."""
    fn, shapes = CHUNKED[how]
    q = chunked(_read(fn, *shapes))
    grown = [e for d in q.definitions for e in walk(d.expr) if isinstance(e, Map) and e.op == "exp"]
    assert len(grown) >= 3
    for e in grown:
        assert sum(isinstance(x, Position) for x in walk(e)) == 1, e


@pytest.mark.parametrize("how", ["as factors", "as a quotient", "as powers of two", "on one side of the product"])
def test_exponentials_of_row_and_column_decay_from_chunk_to_chunk(how: str) -> None:
    """Prefix sums are within chunks, and no exponent is of more places than a chunk has but what decays."""
    fn, shapes = CHUNKED[f"a decay per channel, {how}"]
    q = chunked(_read(fn, *shapes))
    assert len([d for d in q.definitions if d.name.endswith(("_grown", "_ends"))]) == 2
    assert "cumsum" not in q.order
    (before,) = [d for d in q.definitions if d.name.endswith("_before")]
    assert any(isinstance(e, Map) and e.op == "exp" for e in walk(before.expr))


@pytest.mark.parametrize("how", ["a scaled running sum", "a running sum, scaled"])
def test_a_scaled_running_sum_is_summed_within_chunks(how: str) -> None:
    fn, shapes = CHUNKED[how]
    q = chunked(_read(fn, *shapes))
    assert len([d for d in q.definitions if d.name.endswith(("_grown", "_ends"))]) == 2
    assert not any(d.name.startswith("cumsum") for d in q.definitions)


@pytest.mark.parametrize(("of", "op"), [("", "pow"), (", of positive numbers", "exp")])
def test_powers_are_exponentials_of_logarithms_that_are_numbers(of: str, op: str) -> None:
    fn, shapes = CHUNKED[f"a power of how far{of}"]
    q = chunked(_read(fn, *shapes))
    ops = {e.op for d in q.definitions for e in walk(d.expr) if isinstance(e, Map)}
    assert ops & {"pow", "exp"} - {"exp"} | ops & {"log"} == ({"pow"} if op == "pow" else {"log"})


def test_exponentials_that_are_no_pair_stay_factors() -> None:
    fn, shapes = CHUNKED["exponentials that are no pair"]
    q = chunked(_read(fn, *shapes))
    (before,) = [d for d in q.definitions if d.name.endswith("_before")]
    assert not any(isinstance(e, Map) and e.op == "exp" for e in walk(before.expr))


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_another_sum_stays_as_it_is(name: str) -> None:
    fn, shapes = AS_WRITTEN[name]
    p = _read(fn, *shapes)
    assert chunked(p) is p


def _spoiled(how: str) -> Callable[..., bool]:
    """The check, told of parts of which one is wrong."""
    right = module._gives_back

    def check(summand: Any, past: Any, before: Definition, state: Definition, *rest: Any) -> bool:
        match how:
            case "a factor":
                summand = mul(summand, const(2.0))
            case "a place":
                state = replace(state, expr=substitute(state.expr, {state.axes[0]: Index.const(0)}))
            case "a sum":
                past = past.body
        return right(summand, past, before, state, *rest)

    return check


@pytest.mark.parametrize("how", ["a factor", "a place", "a sum"])
def test_parts_that_do_not_give_the_sum_back_are_not_used(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, shapes = CHUNKED["linear attention"]
    p = _read(fn, *shapes)
    monkeypatch.setattr(module, "_gives_back", _spoiled(how))
    assert chunked(p) is p


def test_factors_in_full_precision_are_of_the_type_that_the_sum_multiplies() -> None:
    """As written, scores times decays are rounded before they are multiplied with values."""

    def retention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        steps = _places().to(q.device)
        decays = torch.where(steps >= 0, (g[:, None, None] * steps.clamp(min=0)).exp(), 0.0)
        return (q @ k.mT * decays).to(v.dtype) @ v

    half = [torch.zeros(s, dtype=torch.bfloat16) for s in QKV]
    p = chunked(trace(retention, (*half, torch.zeros(H)), name="causal", check=False))
    assert any(d.name.endswith("_state") for d in p.definitions)
    assert operands_type(p) is DType.BFLOAT16
