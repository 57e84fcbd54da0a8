"""What the identities are written with: sizes, axes, and the building blocks of models in index notation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from prism.program.build import add, const, div, mean, mul, neg, op, position, read, recip, reduce, size, sub
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Expr, Formula, Tensor


@dataclass(frozen=True, slots=True)
class Sizes:
    """Extents: rows m, contracted k (even), columns n, rank r, parts p, group g, heads h, positions s, keys j, width d
    (even), values e, window w < s, taps t."""

    m: int
    k: int
    n: int
    r: int
    p: int
    g: int
    h: int
    s: int
    j: int
    d: int
    e: int
    w: int
    t: int = 3


SMALL = Sizes(m=3, k=8, n=5, r=2, p=3, g=2, h=2, s=6, j=7, d=4, e=3, w=2)
EQUAL = Sizes(m=4, k=4, n=4, r=4, p=2, g=2, h=2, s=4, j=4, d=4, e=4, w=2)
LARGE = Sizes(m=16, k=4096, n=1024, r=16, p=8, g=128, h=8, s=2048, j=1024, d=128, e=128, w=1000)

Pair: TypeAlias = tuple[tuple[Axis, ...], Expr, Expr]
Identity: TypeAlias = Callable[[Sizes], Pair]
INF = math.inf


def formulas(pair: Pair) -> tuple[Formula, Formula]:
    """The two sides as outputs over the pair's free axes."""
    axes, a, b = pair
    tensor = Tensor("y", tuple(x.extent for x in axes), DType.FLOAT32)
    index = tuple(Index.axis(x) for x in axes)
    return Formula(tensor, index, a), Formula(tensor, index, b)


def ix(a: Axis) -> Index:
    return Index.axis(a)


def total(axes: Axis | tuple[Axis, ...], body: Expr) -> Expr:
    return reduce("sum", axes, body)


def top(axes: Axis | tuple[Axis, ...], body: Expr) -> Expr:
    return reduce("max", axes, body)


def exp(a: Expr) -> Expr:
    return op("exp", a)


def log(a: Expr) -> Expr:
    return op("log", a)


def sqrt(a: Expr) -> Expr:
    return op("sqrt", a)


def rsqrt(a: Expr) -> Expr:
    return recip(sqrt(a))


def sigmoid(a: Expr) -> Expr:
    return op("sigmoid", a)


def square(a: Expr) -> Expr:
    return mul(a, a)


def silu(a: Expr) -> Expr:
    return mul(a, sigmoid(a))


def gelu(a: Expr) -> Expr:
    return mul(mul(const(0.5), a), add(const(1.0), op("erf", mul(a, const(2**-0.5)))))


def relu(a: Expr) -> Expr:
    return op("maximum", a, const(0.0))


def where(p: Expr, a: Expr, b: Expr) -> Expr:
    return op("where", p, a, b)


def at_most(a: Axis | Index | int, b: Axis | Index | int) -> Expr:
    """a <= b for positions."""
    return op("le", _place(a), _place(b))


def less(a: Axis | Index | int, b: Axis | Index | int) -> Expr:
    """a < b for positions."""
    return op("lt", _place(a), _place(b))


def _place(a: Axis | Index | int) -> Expr:
    return const(a) if isinstance(a, int) else position(a)


def concat(axis: Axis | Index, first: int, a: Callable[[Index], Expr], b: Callable[[Index], Expr]) -> Expr:
    """a on [0, first), then b."""
    at = Index.axis(axis) if isinstance(axis, Axis) else axis
    return where(less(at, first), a(at), b(at + (-first)))


def inverse_rms(k: Axis, body: Expr, eps: float = 1e-6) -> Expr:
    return rsqrt(add(mean(k, square(body)), const(eps)))


def layernorm(k: Axis, body: Expr, eps: float = 1e-5) -> Expr:
    """Without gain and bias."""
    centred = sub(body, mean(k, body))
    return mul(centred, inverse_rms(k, centred, eps))


def softmax(j: Axis, s: Expr) -> Expr:
    e = exp(sub(s, top(j, s)))
    return div(e, total(j, e))


def logsumexp(j: Axis, s: Expr) -> Expr:
    m = top(j, s)
    return add(m, log(total(j, exp(sub(s, m)))))


__all__ = [
    "EQUAL", "INF", "LARGE", "SMALL", "Axis", "Expr", "Identity", "Index", "Pair", "Sizes", "add", "at_most", "concat",
    "const", "div", "exp", "formulas", "gelu", "inverse_rms", "ix", "layernorm", "less", "log", "logsumexp", "mean",
    "mul", "neg", "op", "position", "read", "recip", "reduce", "relu", "rsqrt", "sigmoid", "silu", "size", "softmax",
    "sqrt", "square", "sub", "top", "total", "where",
]  # fmt: skip
