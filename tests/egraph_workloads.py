"""Workloads of the e-graph's tests, in index notation, as expressions with canonical axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from prism.program.build import add, const, div, mean, mul, op, position, read, recip, reduce, sub
from prism.program.extents import Extent, symbol
from prism.program.index import Axis
from prism.program.nodes import Expr
from prism.program.transform import canonical, instance


def axis(extent: Extent, number: int = 0) -> Axis:
    return instance(extent, number)


def inv_rms(tensor: Callable[[Axis], Expr], k: Axis, eps: float = 1e-6) -> Expr:
    return recip(op("sqrt", add(mean(k, mul(tensor(k), tensor(k))), const(eps))))


def silu(x: Expr) -> Expr:
    return mul(x, op("sigmoid", x))


def gelu(x: Expr) -> Expr:
    return mul(mul(const(0.5), x), add(op("erf", mul(x, const(1 / math.sqrt(2)))), const(1.0)))


def softmax(s: Callable[[Axis], Expr], j: Axis) -> Callable[[Axis], Expr]:
    top = reduce("max", j, s(j))
    return lambda at: div(op("exp", sub(s(at), top)), reduce("sum", j, op("exp", sub(s(j), top))))


def rmsnorm_linear(m: Extent = 8, d: Extent = 256, n: Extent = 512) -> Expr:
    i, k, o = axis(m), axis(d), axis(n)

    def x(a: Axis) -> Expr:
        return read("x", i, a)

    return canonical(reduce("sum", k, mul(mul(mul(x(k), inv_rms(x, k)), read("g", k)), read("w", k, o))))


def gated_mlp(m: Extent = 8, d: Extent = 256, f: Extent = 512, n: Extent = 128) -> Expr:
    i, k, h, o = axis(m), axis(d), axis(f), axis(n)
    one = reduce("sum", k, mul(read("x", i, k), read("w1", k, h)))
    three = reduce("sum", k, mul(read("x", i, k), read("w3", k, h)))
    return canonical(reduce("sum", h, mul(mul(silu(one), three), read("w2", h, o))))


def attention(causal: bool = True, seq: Extent | None = None, d: int = 64, e: int = 64) -> Expr:
    seq = symbol("seq") if seq is None else seq
    b, h, i, j, k, o = Axis("batch", symbol("batch")), axis(8), axis(seq), axis(seq, 1), Axis("dd", d), axis(e)

    def s(at: Axis) -> Expr:
        score = mul(reduce("sum", k, mul(read("q", b, h, i, k), read("k", b, h, at, k))), const(d**-0.5))
        return op("where", op("le", position(at), position(i)), score, const(-math.inf)) if causal else score

    return canonical(reduce("sum", j, mul(softmax(s, j)(j), read("v", b, h, j, o))))


def qknorm_attention(causal: bool = True, d: int = 64) -> Expr:
    seq = symbol("seq")
    h, i, j, k, o = axis(8), axis(seq), axis(seq, 1), Axis("dd", d), axis(d)

    def normed(name: str, at: Axis) -> Callable[[Axis], Expr]:
        def x(a: Axis) -> Expr:
            return read(name, h, at, a)

        return lambda a: mul(mul(x(a), inv_rms(x, k)), read(f"g{name}", a))

    def s(at: Axis) -> Expr:
        score = mul(reduce("sum", k, mul(normed("q", i)(k), normed("k", at)(k))), const(d**-0.5))
        return op("where", op("le", position(at), position(i)), score, const(-math.inf)) if causal else score

    return canonical(reduce("sum", j, mul(softmax(s, j)(j), read("v", h, j, o))))


def lora(m: Extent = 8, d: Extent = 256, r: Extent = 16, n: Extent = 512) -> Expr:
    i, k, a, o = axis(m), axis(d), axis(r), axis(n)
    base = reduce("sum", k, mul(read("x", i, k), read("w", k, o)))
    low = reduce("sum", k, mul(read("x", i, k), read("a", k, a)))
    return canonical(add(base, mul(const(2.0), reduce("sum", a, mul(low, read("b", a, o))))))


def layernorm_linear_gelu(m: Extent = 8, d: Extent = 256, n: Extent = 512) -> Expr:
    i, k, o = axis(m), axis(d), axis(n)
    mu = mean(k, read("x", i, k))

    def centred(a: Axis) -> Expr:
        return sub(read("x", i, a), mu)

    inv = recip(op("sqrt", add(mean(k, mul(centred(k), centred(k))), const(1e-5))))
    normed = add(mul(mul(centred(k), inv), read("g", k)), read("b", k))
    return canonical(gelu(add(reduce("sum", k, mul(normed, read("w", k, o))), read("c", o))))


def rmsnorm_gated(m: Extent = 8, d: Extent = 256, n: Extent = 512) -> Expr:
    i, k, o = axis(m), axis(d), axis(n)

    def x(a: Axis) -> Expr:
        return read("x", i, a)

    h = [reduce("sum", k, mul(mul(mul(x(k), inv_rms(x, k)), read("g", k)), read(w, k, o))) for w in ("w1", "w3")]
    return canonical(mul(silu(h[0]), h[1]))


def x_silu_y() -> Expr:
    i, k = axis(8), axis(256)
    return canonical(mul(read("x", i, k), silu(read("y", i, k))))


def prenorm_mlp() -> Expr:
    i, k, h, o = axis(8), axis(256), axis(512), axis(128)

    def x(a: Axis) -> Expr:
        return read("x", i, a)

    n = mul(mul(x(k), inv_rms(x, k)), read("g", k))
    one, three = (reduce("sum", k, mul(n, read(w, k, h))) for w in ("w1", "w3"))
    return canonical(add(read("r", i, o), reduce("sum", h, mul(mul(silu(one), three), read("w2", h, o)))))


WORKLOADS: Mapping[str, Callable[[], Expr]] = {
    "rmsnorm_linear": rmsnorm_linear,
    "gated_mlp": gated_mlp,
    "causal_attention": attention,
    "attention": lambda: attention(causal=False),
    "qknorm_attention": qknorm_attention,
    "lora": lora,
    "layernorm_linear_gelu": layernorm_linear_gelu,
    "rmsnorm_gated": rmsnorm_gated,
    "x_silu_y": x_silu_y,
    "prenorm_mlp": prenorm_mlp,
}
