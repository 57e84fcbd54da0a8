"""Two ways in which people write one function, and beside each a third that looks like them and is another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from quick import slow_but
from torch import Tensor
from torch.nn import functional as F

from prism.api.loading import trace
from prism.api.proving import verdict_on
from prism.egraph.worker import Worker
from prism.program.verdict import Status, Verdict

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Pair:
    one: Function
    other: Function
    wrong: Function  # looks like the other
    shapes: tuple[tuple[int, ...], ...]

    def verdict(self, other: Function, worker: Worker) -> Verdict:
        """The prover's, on the first function and another."""
        generator = torch.Generator().manual_seed(0)
        examples = [torch.randn(shape, generator=generator) for shape in self.shapes]
        a, b = (trace(f, examples, name=n, check=False) for f, n in ((self.one, "one"), (other, "other")))
        return verdict_on(a, b, worker)


def attended(scores: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    return scores.masked_fill(~kept, -math.inf).softmax(-1) @ v


def near(length: int, width: int) -> Tensor:
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (distance >= 0) & (distance < width)


def by_two_masks(s: Tensor, v: Tensor) -> Tensor:
    return attended(s, v, (torch.ones(8, 8).tril() * torch.ones(8, 8).triu(-2)).bool())


def by_either_mask(s: Tensor, v: Tensor) -> Tensor:
    return attended(s, v, torch.maximum(near(8, 3).float(), (torch.arange(8) < 1).float() * near(8, 8)).bool())


def clipped(r: Tensor, a: Tensor) -> Tensor:
    """PPO's."""
    return torch.minimum(r * a, r.clamp(0.8, 1.2) * a)


def by_sign(r: Tensor, a: Tensor, low: float, high: float) -> Tensor:
    return torch.where(a >= 0, r.clamp(max=high) * a, r.clamp(min=low) * a)


def turned(x: Tensor, scale: float = 1.0) -> Tensor:
    rates = 10000.0 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    a = torch.cat((torch.arange(x.shape[-2])[:, None] * rates * scale,) * 2, -1)
    first, second = x.chunk(2, -1)
    return x * a.cos() + torch.cat((-second, first), -1) * a.sin()


def online(q: Tensor, k: Tensor, v: Tensor, *, rescaled: bool = True) -> Tensor:
    top, total, made = torch.full((q.shape[0], 1), -math.inf), torch.zeros(q.shape[0], 1), torch.zeros(())
    for keys, values in zip(k.chunk(2), v.chunk(2), strict=True):
        scores = q @ keys.mT
        now = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights, old = (scores - now).exp(), (top - now).exp()
        total = total * old + weights.sum(-1, keepdim=True)
        made = made * (old if rescaled else 1.0) + weights @ values
        top = now
    return made / total


def sink_as_key(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
    return torch.cat((q @ k.mT, s[:, None]), -1).softmax(-1)[:, :-1] @ v


def gradient(f: Function) -> Function:
    """Of a function of its first inputs by the first, where the last is the gradient of what it makes."""

    def made(x: Tensor, *rest: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(f(x, *rest[:-1]), x, rest[-1])[0]

    return made


def rms(x: Tensor, g: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * g


def rms_backwards(x: Tensor, g: Tensor, d: Tensor, over: float) -> Tensor:
    r = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    return r * (d * g - x * r * r * (d * g * x).sum(-1, keepdim=True) / over)


def merged_variance(x: Tensor, between: float) -> Tensor:
    a, b = x[:, :3], x[:, 3:]
    within = a.var(-1, unbiased=False) * 3 + b.var(-1, unbiased=False) * 5
    return (within + (a.mean(-1) - b.mean(-1)) ** 2 * between) / 8


ROW, S8 = (4, 6), (8, 8)

PAIRS: Mapping[str, Pair] = {
    "a window by two masks": Pair(
        by_two_masks, lambda s, v: attended(s, v, near(8, 3)), lambda s, v: attended(s, v, near(8, 4)), (S8, (8, 3))
    ),
    "a window and a sink by either mask": Pair(
        by_either_mask,
        lambda s, v: attended(s, v, near(8, 3) | (torch.arange(8) == 0) & near(8, 8)),
        lambda s, v: attended(s, v, near(8, 3) | (torch.arange(8) <= 1) & near(8, 8)),
        (S8, (8, 3)),
    ),
    "a clipped ratio by the sign of the advantage": Pair(
        clipped, lambda r, a: by_sign(r, a, 0.8, 1.2), lambda r, a: by_sign(r, a, 1.2, 0.8), ((5,), (5,))
    ),
    "a relu of a product by one's sign": Pair(
        lambda x, a: F.relu(x * a),
        lambda x, a: torch.where(a >= 0, F.relu(x) * a, -F.relu(-x) * a),
        lambda x, a: torch.where(a >= 0, F.relu(x) * a, F.relu(-x) * a),
        (ROW, ROW),
    ),
    "a margin in a mean of logsigmoids": Pair(
        lambda a, b: -F.logsigmoid(2 * (a / 3 - b / 5) - 0.5).mean(),
        lambda a, b: torch.log1p(torch.exp(0.5 + 0.4 * b - 2 * a / 3)).mean(),
        lambda a, b: torch.log1p(torch.exp(0.4 * b - 2 * a / 3 - 0.5)).mean(),
        ((5,), (5,)),
    ),
    "a focal loss by the logit's sign": Pair(
        lambda x, y: (
            (1 - torch.where(y > 0, x.sigmoid(), 1 - x.sigmoid())) ** 2 * F.softplus(torch.where(y > 0, -x, x))
        ),
        lambda x, y: torch.where(y > 0, x, -x).neg().sigmoid() ** 2 * -F.logsigmoid(torch.where(y > 0, x, -x)),
        lambda x, y: torch.where(y > 0, x, -x).sigmoid() ** 2 * -F.logsigmoid(torch.where(y > 0, x, -x)),
        (ROW, ROW),
    ),
    "a softmax by parts": Pair(
        lambda q, k, v: (q @ k.mT).softmax(-1) @ v,
        online,
        lambda q, k, v: online(q, k, v, rescaled=False),
        ((5, 4), (8, 4), (8, 3)),
    ),
    "a sink by the logsumexp": Pair(
        sink_as_key,
        lambda q, k, v, s: (q @ k.mT).softmax(-1) @ v * torch.sigmoid((q @ k.mT).logsumexp(-1) - s)[:, None],
        lambda q, k, v, s: (q @ k.mT).softmax(-1) @ v * torch.sigmoid((q @ k.mT).amax(-1) - s)[:, None],
        ((5, 4), (7, 4), (7, 3), (5,)),
    ),
    "attention after a latent, absorbed": Pair(
        lambda h, c, a, b, o: ((h @ a) @ (c @ b).mT).softmax(-1) @ (c @ o),
        lambda h, c, a, b, o: ((h @ (a @ b.mT)) @ c.mT).softmax(-1) @ c @ o,
        lambda h, c, a, b, o: ((h @ (b @ a.mT)) @ c.mT).softmax(-1) @ c @ o,
        ((5, 6), (7, 6), (6, 4), (6, 4), (6, 5)),
    ),
    "turning twice": Pair(lambda x: turned(turned(x)), lambda x: turned(x, 2.0), lambda x: turned(x, -2.0), ((6, 8),)),
    "a gain in the next product": Pair(
        lambda x, g, w: rms(x, g) @ w.mT,
        lambda x, g, w: (x @ (w * g).mT) * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6),
        lambda x, g, w: (x @ (w * g[:, None]).mT) * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6),
        ((5, 8), (8,), (8, 8)),
    ),
    "a weight that is centred, or its product": Pair(
        lambda x, w: F.conv2d(x, w - w.mean((1, 2, 3), keepdim=True)),
        lambda x, w: F.conv2d(x, w) - w.mean((1, 2, 3))[:, None, None] * F.conv2d(x, torch.ones(1, 3, 2, 2)),
        lambda x, w: F.conv2d(x, w) - w.mean((1, 2, 3))[:, None, None] * F.avg_pool2d(x, 2, 1).sum(1, keepdim=True),
        ((1, 3, 4, 4), (5, 3, 2, 2)),
    ),
    "variances of two parts": Pair(
        lambda x: x.var(-1, unbiased=False),
        lambda x: merged_variance(x, 15 / 8),
        lambda x: merged_variance(x, 1.0),
        ((4, 8),),
    ),
    "a Kronecker product": Pair(
        lambda a, b, x: x @ torch.kron(a, b).mT,
        lambda a, b, x: torch.einsum("pq,nqs->nps", a, x.view(5, 3, 4) @ b.mT).flatten(1),
        lambda a, b, x: torch.einsum("pq,nqs->nps", a, x.view(5, 4, 3).mT @ b.mT).flatten(1),
        ((2, 3), (6, 4), (5, 12)),
    ),
    "both directions of a contrast": Pair(
        lambda a, b: F.cross_entropy(a @ b.mT, torch.arange(5)) + F.cross_entropy(b @ a.mT, torch.arange(5)),
        lambda a, b: ((a @ b.mT).logsumexp(0) + (a @ b.mT).logsumexp(1) - 2 * (a * b).sum(1)).mean(),
        lambda a, b: (2 * (a @ b.mT).logsumexp(1) - 2 * (a * b).sum(1)).mean(),
        ((5, 4), (5, 4)),
    ),
    "branches of a convolution, merged": Pair(
        lambda x, a, b: F.conv2d(x, a, padding=1) + F.conv2d(x, b) + x,
        lambda x, a, b: F.conv2d(x, a + F.pad(b + torch.eye(3)[:, :, None, None], (1, 1, 1, 1)), padding=1),
        lambda x, a, b: F.conv2d(x, a + F.pad(b + torch.eye(3)[:, :, None, None], (0, 2, 0, 2)), padding=1),
        ((1, 3, 5, 5), (3, 3, 3, 3), (3, 3, 1, 1)),
    ),
    "a causal convolution by shifts": Pair(
        lambda x, w: F.conv1d(x, w[:, None], padding=2, groups=4)[..., :8],
        lambda x, w: sum((F.pad(x, (2 - k, 0))[..., :8] * w[:, k, None] for k in range(3)), torch.zeros(())),
        lambda x, w: sum((F.pad(x, (k, 0))[..., :8] * w[:, k, None] for k in range(3)), torch.zeros(())),
        ((2, 4, 8), (4, 3)),
    ),
    "scales of groups after the product": Pair(
        lambda x, w, s: x @ (w.view(6, 2, 4) * s[..., None]).flatten(1).mT,
        lambda x, w, s: (torch.einsum("ngk,ogk->ngo", x.view(5, 2, 4), w.view(6, 2, 4)) * s.mT).sum(1),
        lambda x, w, s: x @ (w.view(6, 4, 2) * s[:, None]).flatten(1).mT,
        ((5, 8), (6, 8), (6, 2)),
    ),
    "the gradient of an RMSNorm": Pair(
        gradient(rms),
        lambda x, g, d: rms_backwards(x, g, d, 8.0),
        lambda x, g, d: rms_backwards(x, g, d, 1.0),
        ((4, 8), (8,), (4, 8)),
    ),
    "the gradient of a turn": Pair(
        gradient(turned), lambda x, d: turned(d, -1.0), lambda x, d: turned(d), ((6, 8), (6, 8))
    ),
    "the gradient of soft-capped scores": Pair(
        gradient(lambda s: (5 * torch.tanh(s / 5)).softmax(-1)),
        lambda s, d: by_hand(s, d, capped=True),
        lambda s, d: by_hand(s, d, capped=False),
        (ROW, ROW),
    ),
}


def by_hand(s: Tensor, d: Tensor, *, capped: bool) -> Tensor:
    t = torch.tanh(s / 5)
    p = (5 * t).softmax(-1)
    made = p * (d - (p * d).sum(-1, keepdim=True))
    return made * (1 - t * t) if capped else made


# What the arithmetic of the first five rests on is in no other test.
ALWAYS = list(PAIRS)[:5]


@pytest.mark.parametrize("name", slow_but(ALWAYS, PAIRS))
def test_both_are_one_function(name: str, worker: Worker) -> None:
    verdict = PAIRS[name].verdict(PAIRS[name].other, worker)
    assert verdict.status is Status.PROVED, verdict.reason


@pytest.mark.parametrize("name", slow_but(ALWAYS, PAIRS))
def test_the_third_is_another(name: str, worker: Worker) -> None:
    verdict = PAIRS[name].verdict(PAIRS[name].wrong, worker)
    assert verdict.status is Status.REFUTED, verdict.reason
