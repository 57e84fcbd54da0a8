"""Identities that people use by hand, as torch functions: rotary embeddings, chunks, Strassen, pooling."""

from __future__ import annotations

import functools
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
from prism.program.verdict import Status

S, D = 12, 8
PERMUTED = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
BACK = torch.argsort(PERMUTED)
OTHER = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])


def angles(x: Tensor, shift: float | Tensor) -> Tensor:
    rates = 10000.0 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    return (torch.arange(x.shape[-2])[:, None] + shift) * rates


def half(x: Tensor, shift: float | Tensor = 0.0) -> Tensor:
    """Halves turn with each other, by rotate_half."""
    a = torch.cat((angles(x, shift),) * 2, -1)
    first, second = x.chunk(2, -1)
    return x * a.cos() + torch.cat((-second, first), -1) * a.sin()


def halves(x: Tensor, shift: float | Tensor = 0.0) -> Tensor:
    """Halves turn with each other, one at a time."""
    a = angles(x, shift)
    first, second = x.chunk(2, -1)
    return torch.cat((first * a.cos() - second * a.sin(), second * a.cos() + first * a.sin()), -1)


def interleaved(x: Tensor, shift: float | Tensor = 0.0) -> Tensor:
    """Neighbours turn with each other."""
    a = angles(x, shift)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * a.cos() - odd * a.sin(), odd * a.cos() + even * a.sin()), -1).flatten(-2)


def repeated(x: Tensor) -> Tensor:
    """Neighbours turn with each other, angles repeated."""
    a = angles(x, 0.0).repeat_interleave(2, -1)
    return x * a.cos() + torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2) * a.sin()


def rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def strassen(a: Tensor, b: Tensor, product: Callable[[Tensor, Tensor], Tensor] = torch.matmul) -> Tensor:
    (a11, a12), (a21, a22) = (rows.chunk(2, 1) for rows in a.chunk(2, 0))
    (b11, b12), (b21, b22) = (rows.chunk(2, 1) for rows in b.chunk(2, 0))
    factors = (
        (a11 + a22, b11 + b22), (a21 + a22, b11), (a11, b12 - b22), (a22, b21 - b11),
        (a11 + a12, b22), (a21 - a11, b11 + b12), (a12 - a22, b21 + b22),
    )  # fmt: skip
    m = [product(x, y) for x, y in factors]
    top = torch.cat((m[0] + m[3] - m[4] + m[6], m[2] + m[4]), 1)
    return torch.cat((top, torch.cat((m[1] + m[3], m[0] - m[1] + m[2] + m[5]), 1)), 0)


def strassen_twice(a: Tensor, b: Tensor) -> Tensor:
    return strassen(a, b, strassen)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.tril(q @ k.mT) @ v


def chunk_by_chunk(q: Tensor, k: Tensor, v: Tensor, size: int = 4) -> Tensor:
    made, state = [], torch.zeros(q.shape[-1], v.shape[-1])
    for n in range(0, q.shape[0], size):
        a, b, c = q[n : n + size], k[n : n + size], v[n : n + size]
        made.append(a @ state + torch.tril(a @ b.mT) @ c)
        state = state + b.mT @ c
    return torch.cat(made, 0)


def chunks_at_once(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (t.view(-1, 4, t.shape[-1]) for t in (q, k, v))
    own = k.mT @ v
    return (q @ (own.cumsum(0) - own) + torch.tril(q @ k.mT) @ v).flatten(0, 1)


def two_parts(x: Tensor, v: Tensor) -> Tensor:
    whole = x.logsumexp(-1, keepdim=True)
    parts = zip(x.chunk(2, -1), v.chunk(2, 0), strict=True)
    return sum(
        (torch.exp(s.logsumexp(-1, keepdim=True) - whole) * (s.softmax(-1) @ w) for s, w in parts), torch.zeros(())
    )


def three_convolutions(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return F.conv2d(F.conv2d(F.conv2d(x, a, padding=1), b, padding=1), c, padding=1)


def spaced(k: Tensor) -> Tensor:
    """A kernel with a zero between neighbours."""
    return torch.stack((k, torch.zeros_like(k)), -1).flatten(-2)[..., :-1]


def filtered(x: Tensor, k: Tensor) -> Tensor:
    """Winograd's F(2, 3)."""
    x0, x1, x2, x3 = x.unbind(-1)
    k0, k1, k2 = k.unbind(-1)
    plus, minus = (x1 + x2) * (k0 + k1 + k2) / 2, (x2 - x1) * (k0 - k1 + k2) / 2
    return torch.stack(((x0 - x2) * k0 + plus + minus, plus - minus - (x1 - x3) * k2), -1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


def _parts(q: Tensor, k: Tensor, v: Tensor, lengths: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Of each part of the keys, attention over it and the logsumexp of its scores."""
    scores = [(q @ part.mT, w) for part, w in zip(torch.split(k, lengths), torch.split(v, lengths), strict=True)]
    return [(s.softmax(-1) @ w, s.logsumexp(-1, keepdim=True)) for s, w in scores]


def by_logsumexps(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    (one, a), (other, b) = _parts(q, k, v, [5, 7])
    whole = torch.logaddexp(a, b)
    return one * (a - whole).exp() + other * (b - whole).exp()


def by_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    made = _parts(q, k, v, [4, 2, 6])
    weights = torch.stack([part for _, part in made]).softmax(0)
    return sum((weights[n] * out for n, (out, _) in enumerate(made)), torch.zeros(()))


@dataclass(frozen=True, slots=True)
class Case:
    one: Callable[..., Any]
    other: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]

    def verdict(self, worker: Worker) -> Status:
        generator = torch.Generator().manual_seed(0)
        examples = [torch.randn(shape, generator=generator) for shape in self.shapes]
        a, b = (trace(f, examples, name=n, check=False) for f, n in ((self.one, "one"), (self.other, "other")))
        return verdict_on(a, b, worker).status


X, HEADS, IMAGE = (S, D), (2, 4, S, D), (1, 2, 16, 16)

TRUE: Mapping[str, Case] = {
    "scores are shift invariant: half": Case(
        lambda q, k: half(q) @ half(k).mT, lambda q, k: half(q, 5.0) @ half(k, 5.0).mT, (X, X)
    ),
    "scores are shift invariant: interleaved": Case(
        lambda q, k: interleaved(q) @ interleaved(k).mT,
        lambda q, k: interleaved(q, 5.0) @ interleaved(k, 5.0).mT,
        (X, X),
    ),
    "scores are shift invariant: by any number": Case(
        lambda q, k, t: half(q, t) @ half(k, t).mT, lambda q, k, t: halves(q) @ halves(k).mT, (X, X, ())
    ),
    "scores are shift invariant: heads": Case(
        lambda q, k: half(q) @ half(k).mT, lambda q, k: half(q, -3.0) @ half(k, -3.0).mT, (HEADS, HEADS)
    ),
    "turning and RMSNorm: half": Case(lambda x: half(rms(x)), lambda x: rms(half(x)), (X,)),
    "turning and RMSNorm: interleaved": Case(lambda x: interleaved(rms(x)), lambda x: rms(interleaved(x)), (X,)),
    "turning and RMSNorm: heads": Case(lambda x: halves(rms(x)), lambda x: rms(halves(x)), (HEADS,)),
    "two ways to turn halves": Case(half, halves, (X,)),
    "two ways to turn neighbours": Case(interleaved, repeated, (X,)),
    "interleaved is half, permuted": Case(
        lambda x: interleaved(x)[..., PERMUTED], lambda x: half(x[..., PERMUTED]), (X,)
    ),
    "interleaved is half, permuted and back": Case(interleaved, lambda x: half(x[..., PERMUTED])[..., BACK], (X,)),
    "interleaved is half, selected": Case(
        lambda x: repeated(x).index_select(-1, PERMUTED), lambda x: halves(x.index_select(-1, PERMUTED)), ((2, S, D),)
    ),
    "scores of both are one": Case(
        lambda q, k: interleaved(q) @ interleaved(k).mT,
        lambda q, k: half(q[..., PERMUTED]) @ half(k[..., PERMUTED]).mT,
        (X, X),
    ),
    "a projection's columns permuted": Case(
        lambda x, w: interleaved(x @ w), lambda x, w: half(x @ w[:, PERMUTED])[..., BACK], ((S, 6), (6, D))
    ),
    "logsumexp of two": Case(
        lambda a, b: torch.cat((a, b), -1).logsumexp(-1),
        lambda a, b: torch.logaddexp(a.logsumexp(-1), b.logsumexp(-1)),
        ((5, 7), (5, 9)),
    ),
    "logsumexp of halves": Case(
        lambda x: x.logsumexp(-1),
        lambda x: torch.logaddexp(*(part.logsumexp(-1) for part in x.chunk(2, -1))),
        ((5, S),),
    ),
    "logsumexp of many": Case(
        lambda x: x.logsumexp(-1), lambda x: x.view(5, 4, 3).logsumexp(-1).logsumexp(-1), ((5, S),)
    ),
    "logsumexp of parts of parts": Case(
        lambda x: x.logsumexp(-1),
        lambda x: functools.reduce(torch.logaddexp, (part.logsumexp(-1) for part in torch.split(x, [3, 4, 5], -1))),
        ((4, 12),),
    ),
    "attention of parts of the keys by their logsumexps": Case(attention, by_logsumexps, ((6, 8), (12, 8), (12, 5))),
    "attention of parts of the keys by a softmax": Case(attention, by_softmax, ((6, 8), (12, 8), (12, 5))),
    "attention over two parts": Case(lambda x, v: x.softmax(-1) @ v, two_parts, ((5, S), (S, 4))),
    "linear attention chunk by chunk": Case(causal, chunk_by_chunk, (X, X, (S, 4))),
    "linear attention in long chunks": Case(
        causal, lambda q, k, v: chunk_by_chunk(q, k, v, 16), ((64, D), (64, D), (64, 4))
    ),
    "linear attention by prefix sums": Case(causal, chunks_at_once, (X, X, (S, 4))),
    "Strassen": Case(torch.matmul, strassen, ((8, 8), (8, 8))),
    "what comes after is all without what comes before": Case(
        lambda x: x.flip(0).cumsum(0).flip(0), lambda x: x.sum(0, keepdim=True) - x.cumsum(0) + x, ((6, 4),)
    ),
    "Strassen twice": Case(torch.matmul, strassen_twice, ((8, 8), (8, 8))),
    "maxima of maxima with borders": Case(
        lambda x: F.max_pool2d(F.max_pool2d(x, 3, 1, 1), 3, 1, 1), lambda x: F.max_pool2d(x, 5, 1, 2), ((1, 2, 8, 8),)
    ),
    "maxima with strides and borders": Case(
        lambda x: F.max_pool1d(F.max_pool1d(x, 2, 2), 3, 2, 1), lambda x: F.max_pool1d(x, 6, 4, 2), ((1, 2, 16),)
    ),
    "maxima of strides with borders": Case(
        lambda x: F.max_pool1d(F.max_pool1d(x, 3, 2, 1), 3, 2, 1), lambda x: F.max_pool1d(x, 7, 4, 3), ((1, 2, 16),)
    ),
    "sigmoid of maxima with borders": Case(
        lambda x: torch.sigmoid(F.max_pool2d(x, 3, 1, 1)),
        lambda x: F.max_pool2d(torch.sigmoid(x), 3, 1, 1),
        ((1, 2, 8, 8),),
    ),
    "relu and a border of zeros": Case(
        lambda x: F.max_pool2d(F.pad(F.relu(x), (1, 1, 1, 1)), 3, 2),
        lambda x: F.relu(F.max_pool2d(x, 3, 2, 1)),
        (IMAGE,),
    ),
    "tanh of a maximum": Case(lambda x: torch.tanh(x.amax(-1)), lambda x: torch.tanh(x).amax(-1), ((4, 7),)),
    "a transposed convolution as one with the kernel reversed": Case(
        lambda x, k: F.conv_transpose1d(x, k),
        lambda x, k: F.conv1d(x, k.flip(-1).transpose(0, 1), padding=2),
        ((1, 2, 5), (2, 3, 3)),
    ),
    "a kernel spaced with zeros": Case(
        lambda x, k: F.conv1d(x, spaced(k)), lambda x, k: F.conv1d(x, k, dilation=2), ((1, 2, 12), (3, 2, 3))
    ),
    "maxima of maxima": Case(lambda x: F.max_pool2d(F.max_pool2d(x, 2), 2), lambda x: F.max_pool2d(x, 4), (IMAGE,)),
    "maxima of rows of maxima of columns": Case(
        lambda x: F.max_pool2d(F.max_pool2d(x, (3, 1), 1, (1, 0)), (1, 3), 1, (0, 1)),
        lambda x: F.max_pool2d(x, 3, 1, 1),
        ((1, 2, 8, 8),),
    ),
    "means of means": Case(lambda x: F.avg_pool2d(F.avg_pool2d(x, 2), 2), lambda x: F.avg_pool2d(x, 4), (IMAGE,)),
    "means as a convolution": Case(
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.conv2d(x, torch.full((2, 1, 2, 2), 0.25), stride=2, groups=2),
        (IMAGE,),
    ),
    "the mean of means": Case(lambda x: F.avg_pool2d(x, 2).mean((2, 3)), lambda x: x.mean((2, 3)), (IMAGE,)),
    "a factor through three padded convolutions": Case(
        lambda x, a, b, c: 2 * three_convolutions(x, a, b, c),
        lambda x, a, b, c: three_convolutions(2 * x, a, b, c),
        ((1, 2, 8, 8), (3, 2, 3, 3), (3, 3, 3, 3), (2, 3, 3, 3)),
    ),
    "a factor through dilated and strided ones": Case(
        lambda x, a, b, s: s * F.conv2d(F.conv2d(x, a, padding=2, dilation=2), b, stride=2, padding=1),
        lambda x, a, b, s: F.conv2d(F.conv2d(x, s * a, padding=2, dilation=2), b, stride=2, padding=1),
        ((1, 2, 8, 8), (3, 2, 3, 3), (3, 3, 3, 3), ()),
    ),
    "a convolution as a product": Case(
        lambda x, k: F.conv2d(x, k, padding=1),
        lambda x, k: (k.flatten(1) @ F.unfold(x, 3, padding=1)).view(1, 3, 8, 8),
        ((1, 2, 8, 8), (3, 2, 3, 3)),
    ),
    "Winograd": Case(lambda x, k: F.conv1d(x, k), filtered, ((1, 1, 4), (1, 1, 3))),
}

FALSE: Mapping[str, Case] = {
    "a sign of Strassen's, twice": Case(
        torch.matmul, lambda a, b: strassen(a, b, lambda x, y: strassen(x, -y)), ((8, 8), (8, 8))
    ),
    "what comes after without a place's own": Case(
        lambda x: x.flip(0).cumsum(0).flip(0), lambda x: x.sum(0, keepdim=True) - x.cumsum(0), ((6, 4),)
    ),
    "another border of maxima": Case(
        lambda x: F.max_pool1d(F.max_pool1d(x, 3, 2, 1), 3, 2, 1), lambda x: F.max_pool1d(x, 7, 4, 2), ((1, 2, 16),)
    ),
    "zeros for a border": Case(
        lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2), lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)
    ),
    "cosine of a maximum": Case(lambda x: torch.cos(x.amax(-1)), lambda x: torch.cos(x).amax(-1), ((4, 7),)),
    "a transposed convolution with the kernel as it is": Case(
        lambda x, k: F.conv_transpose1d(x, k),
        lambda x, k: F.conv1d(x, k.transpose(0, 1), padding=2),
        ((1, 2, 5), (2, 3, 3)),
    ),
    "only one is shifted": Case(lambda q, k: half(q) @ half(k).mT, lambda q, k: half(q, 5.0) @ half(k).mT, (X, X)),
    "another permutation": Case(lambda x: interleaved(x)[..., PERMUTED], lambda x: half(x[..., OTHER]), (X,)),
    "a sign of Strassen's": Case(torch.matmul, lambda a, b: strassen(a, -b), ((8, 8), (8, 8))),
    "chunks without their own part": Case(
        causal, lambda q, k, v: chunks_at_once(q, k, v) - (q * k).sum(-1, keepdim=True) * v, (X, X, (S, 4))
    ),
    "the sum of two logsumexps": Case(
        lambda a, b: torch.cat((a, b), -1).logsumexp(-1),
        lambda a, b: torch.maximum(a.logsumexp(-1), b.logsumexp(-1)),
        ((5, 7), (5, 9)),
    ),
    # Parts of an output and of a sum are read with one name: once the sum's was taken for the output's.
    "the first rows are the diagonal's": Case(
        torch.matmul,
        lambda a, b: torch.cat((a[:4, :4].diagonal().expand(4, 4) @ b[:4] + a[:4, 4:] @ b[4:], a[4:] @ b)),
        ((8, 8), (8, 8)),
    ),
}


# Of convolutions of convolutions test_taso.py proves some, and these with --run-slow: 14 s each.
LONG = ("a factor through three padded convolutions", "a factor through dilated and strided ones")


@pytest.mark.parametrize("name", slow_but([n for n in TRUE if n not in LONG], TRUE))
def test_it_is_proved(name: str, worker: Worker) -> None:
    assert TRUE[name].verdict(worker) is Status.PROVED


@pytest.mark.parametrize("name", FALSE)
def test_it_is_refuted(name: str, worker: Worker) -> None:
    assert FALSE[name].verdict(worker) is Status.REFUTED
