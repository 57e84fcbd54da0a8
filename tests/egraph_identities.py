"""Pairs of expressions for the prover's tests: RIGHT must be proved, WRONG must not (and can be refuted)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from egraph_workloads import (
    attention,
    axis,
    gated_mlp,
    gelu,
    inv_rms,
    layernorm_linear_gelu,
    lora,
    rmsnorm_gated,
    rmsnorm_linear,
    silu,
    softmax,
)

from prism.program.build import add, const, div, mean, mul, neg, op, position, read, recip, reduce, sub
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.nodes import Expr
from prism.program.transform import canonical, substitute

Pair = tuple[Expr, Expr]

M, K, N, R, J, E_ = axis(8), axis(256), axis(512), axis(16), axis(96), axis(64)


def both(a: Expr, b: Expr) -> Pair:
    return canonical(a), canonical(b)


def x(k: Axis = K) -> Expr:
    return read("x", M, k)


def w(k: Axis = K) -> Expr:
    return read("w", k, N)


def g(k: Axis = K) -> Expr:
    return read("g", k)


def total(axis_: Axis, body: Expr) -> Expr:
    return reduce("sum", axis_, body)


def norm_past_linear() -> Pair:
    return rmsnorm_linear(), canonical(mul(inv_rms(x, K), total(K, mul(x(), mul(g(), w())))))


def division_past_values() -> Pair:
    def s(j: Axis) -> Expr:
        return total(K, mul(read("q", M, K), read("k", j, K)))

    v = read("v", J, E_)

    def e(j: Axis) -> Expr:
        return op("exp", sub(s(j), reduce("max", J, s(J))))

    return both(total(J, mul(softmax(s, J)(J), v)), div(total(J, mul(e(J), v)), total(J, e(J))))


def max_dropped() -> Pair:
    def s(j: Axis) -> Expr:
        return mul(const(0.125), total(K, mul(read("q", M, K), read("k", j, K))))

    v = read("v", J, E_)
    e = op("exp", s(J))
    return both(total(J, mul(softmax(s, J)(J), v)), div(total(J, mul(e, v)), total(J, e)))


def masked_scores(j: Axis, i: Axis) -> Expr:
    s = mul(const(0.125), total(K, mul(read("q", i, K), read("k", j, K))))
    return op("where", op("le", position(j), position(i)), s, const(-math.inf))


def masked_max_dropped() -> Pair:
    def s(j: Axis) -> Expr:
        return masked_scores(j, M)

    v = read("v", J, E_)
    e = op("exp", s(J))
    return both(total(J, mul(softmax(s, J)(J), v)), div(total(J, mul(e, v)), total(J, e)))


def layernorm_folded() -> Pair:
    k, o = K, N
    mu = mean(k, x())
    inv = recip(op("sqrt", add(mean(k, mul(sub(x(), mu), sub(x(), mu))), const(1e-5))))
    gw = mul(g(), w())
    h = add(
        mul(inv, sub(total(k, mul(x(), gw)), mul(mu, total(k, gw)))),
        add(total(k, mul(read("b", k), w())), read("c", o)),
    )
    return layernorm_linear_gelu(), canonical(gelu(h))


def one_pass_variance() -> Pair:
    mu = mean(K, x())
    return both(mean(K, mul(sub(x(), mu), sub(x(), mu))), sub(mean(K, mul(x(), x())), mul(mu, mu)))


def lora_merged() -> Pair:
    merged = add(read("w", K, N), mul(const(2.0), total(R, mul(read("a", K, R), read("b", R, N)))))
    return lora(), canonical(total(K, mul(x(), merged)))


def linear_attention() -> Pair:
    q, k, v = read("q", M, K), read("k", J, K), read("v", J, E_)
    return both(total(J, mul(total(K, mul(q, k)), v)), total(K, mul(q, total(J, mul(k, v)))))


def four_matrices() -> Pair:
    a, b, c, d = axis(5), axis(7), axis(9), axis(11)
    p, q, r, s = read("p", M, a), read("q", a, b), read("r", b, c), read("s", c, d)
    left = total(c, mul(total(b, mul(total(a, mul(p, q)), r)), s))
    right = total(a, mul(p, total(b, mul(q, total(c, mul(r, s))))))
    return both(left, right)


def split_axis(j: Axis) -> tuple[Axis, Axis, Index]:
    part, rest = Axis(f"{j.name}.part", symbol("S")), Axis(f"{j.name}.rest", symbol("R"))
    return part, rest, Index.axis(part).scaled(symbol("R")) + Index.axis(rest)


def split_softmax(mask: bool) -> Pair:
    """Attention over J = S*R keys against the combination of S partial results."""
    part, rest, whole = split_axis(J)

    def score(j: Index) -> Expr:
        s = mul(const(0.125), total(K, mul(read("q", M, K), read("k", j, K))))
        return op("where", op("le", position(j), position(M)), s, const(-math.inf)) if mask else s

    s, v = score(whole), read("v", whole, E_)
    top = reduce("max", part, reduce("max", rest, s))

    def sums(body: Expr) -> Expr:
        return total(part, total(rest, body))

    e = op("exp", sub(s, top))
    reference = sums(mul(mul(e, recip(sums(e))), v))
    local = reduce("max", rest, s)
    p = op("exp", sub(s, local))
    scale = op("exp", sub(local, reduce("max", part, local)))
    combined = div(total(part, mul(scale, total(rest, mul(p, v)))), total(part, mul(scale, total(rest, p))))
    return both(reference, combined)


def split_sum() -> Pair:
    part, rest, whole = split_axis(K)
    a, b = read("x", M, whole), read("w", whole, N)
    return both(total(part, total(rest, mul(a, b))), total(rest, total(part, mul(b, a))))


def gated_order() -> Pair:
    h = axis(512)
    o = axis(128)
    one, three = (total(K, mul(read(n, K, h), x())) for n in ("w1", "w3"))
    return gated_mlp(), canonical(total(h, mul(read("w2", h, o), mul(three, mul(op("sigmoid", one), one)))))


def gated_norms() -> Pair:
    inv = inv_rms(x, K)
    h = [mul(inv, total(K, mul(mul(x(), g()), read(n, K, N)))) for n in ("w1", "w3")]
    return rmsnorm_gated(), canonical(mul(silu(h[0]), h[1]))


def scale_inside() -> Pair:
    q, k = read("q", M, K), read("k", J, K)
    return both(mul(const(0.125), total(K, mul(q, k))), total(K, mul(mul(q, const(0.125)), k)))


def float32_scale() -> Pair:
    s = total(K, mul(x(), w()))
    return both(mul(const(0.08838834613561630), s), div(s, op("sqrt", const(128.0))))


def silu_by_exp() -> Pair:
    return both(silu(x()), div(x(), add(const(1.0), op("exp", neg(x())))))


def tanh_by_exp() -> Pair:
    return both(op("tanh", x()), sub(mul(const(2.0), op("sigmoid", mul(const(2.0), x()))), const(1.0)))


def pow_square() -> Pair:
    return both(mean(K, op("pow", x(), const(2.0))), mean(K, mul(x(), x())))


def max_scaled() -> Pair:
    return both(reduce("max", K, mul(const(0.5), x())), mul(const(0.5), reduce("max", K, x())))


def same_extents() -> Pair:
    """Every axis of extent 32: re-association has to rename bound axes."""
    i, a, b, c = axis(32), Axis("a", 32), Axis("b", 32), axis(32, 1)
    q, k, v = read("q", i, a), read("k", b, a), read("v", b, c)
    return both(total(b, mul(total(a, mul(q, k)), v)), total(a, mul(q, total(b, mul(k, v)))))


def square_gain() -> Pair:
    """A factor over the output's axis leaves a sum over an axis of the same extent."""
    i, a, o = axis(8), Axis("a", 32), axis(32)
    body = mul(mul(read("x", i, a), read("w", a, o)), read("c", o))
    return both(total(a, body), mul(read("c", o), total(a, mul(read("x", i, a), read("w", a, o)))))


def square_mean() -> Pair:
    i, a, o = axis(8), Axis("a", 32), axis(32)

    def xa(k: Axis) -> Expr:
        return read("x", i, k)

    inv = inv_rms(xa, a)
    moved = mul(inv_rms(xa, axis(32, 1)), total(a, mul(mul(xa(a), read("g", a)), read("w", a, o))))
    return both(total(a, mul(mul(mul(xa(a), inv), read("g", a)), read("w", a, o))), moved)


RIGHT: Mapping[str, Callable[[], Pair]] = {
    "norm past linear": norm_past_linear,
    "division past values": division_past_values,
    "max dropped": max_dropped,
    "masked max dropped": masked_max_dropped,
    "layernorm folded": layernorm_folded,
    "one-pass variance": one_pass_variance,
    "lora merged": lora_merged,
    "linear attention": linear_attention,
    "four matrices": four_matrices,
    "split softmax": lambda: split_softmax(False),
    "masked split softmax": lambda: split_softmax(True),
    "split sum": split_sum,
    "gated order": gated_order,
    "gated norms": gated_norms,
    "scale inside": scale_inside,
    "float32 scale": float32_scale,
    "silu by exp": silu_by_exp,
    "tanh by sigmoid": tanh_by_exp,
    "pow square": pow_square,
    "max scaled": max_scaled,
    "same extents": same_extents,
    "square gain": square_gain,
    "square mean": square_mean,
    "itself": lambda: both(attention(), attention()),
}


def _sum_of(a: Expr, b: Expr) -> Expr:
    return total(K, mul(a, b))


def _rms(eps: float, n: float = 256.0, gain: bool = True) -> Expr:
    inv = recip(op("sqrt", add(div(total(K, mul(x(), x())), const(n)), const(eps))))
    return total(K, mul(mul(mul(x(), inv), g()) if gain else mul(x(), inv), w()))


def _transposed() -> Pair:
    a, b = axis(16), axis(16, 1)
    return both(read("x", a, b), read("x", b, a))


def _softmax_axis() -> Pair:
    s = read("s", M, J)
    e = op("exp", s)
    return both(div(e, total(J, e)), div(e, total(M, e)))


def _wrong_rescale() -> Pair:
    part, rest, whole = split_axis(J)
    s, v = read("s", M, whole), read("v", whole, E_)
    local = reduce("max", rest, s)
    top = reduce("max", part, local)

    def sums(body: Expr) -> Expr:
        return total(part, total(rest, body))

    e = op("exp", sub(s, top))
    p = op("exp", sub(s, local))
    return both(
        sums(mul(mul(e, recip(sums(e))), v)), div(total(part, total(rest, mul(p, v))), total(part, total(rest, p)))
    )


def _mask(strict: bool) -> Expr:
    s = read("s", M, J)
    return op("where", op("lt" if strict else "le", position(J), position(M)), s, const(0.0))


S_K, S_M = read("t", K), read("u", M)

WRONG: Mapping[str, Callable[[], Pair]] = {
    "(x/s)w = (xw)/s, s along k": lambda: both(_sum_of(mul(x(), recip(S_K)), w()), mul(recip(S_K), _sum_of(x(), w()))),
    "gain dropped": lambda: both(_rms(1e-6), _rms(1e-6, gain=False)),
    "eps dropped": lambda: both(_rms(1e-1), _rms(0.0)),
    "1/n against 1/(n-1)": lambda: both(_rms(1e-6), _rms(1e-6, 255.0)),
    "transpose": _transposed,
    "sqrt(x^2) = x": lambda: both(op("sqrt", mul(x(), x())), x()),
    "|x| = x": lambda: both(op("abs", x()), x()),
    "(xy)^p = x^p y^p": lambda: both(
        op("pow", mul(x(), g()), const(0.5)), mul(op("pow", x(), const(0.5)), op("pow", g(), const(0.5)))
    ),
    "sqrt(xy) = sqrt x sqrt y": lambda: both(op("sqrt", mul(x(), g())), mul(op("sqrt", x()), op("sqrt", g()))),
    "max of a negative scale": lambda: both(
        reduce("max", K, mul(const(-2.0), x())), mul(const(-2.0), reduce("max", K, x()))
    ),
    "max_k(s f) = s max_k f, s of any sign": lambda: both(
        reduce("max", K, mul(S_M, x())), mul(S_M, reduce("max", K, x()))
    ),
    "max of sums": lambda: both(reduce("max", K, add(x(), g())), add(reduce("max", K, x()), reduce("max", K, g()))),
    "sum of products": lambda: both(_sum_of(x(), g()), mul(total(K, x()), total(K, g()))),
    "mean of squares": lambda: both(mean(K, mul(x(), x())), mul(mean(K, x()), mean(K, x()))),
    "exp of a product": lambda: both(op("exp", mul(x(), g())), mul(op("exp", x()), op("exp", g()))),
    "exp of a sum over k": lambda: both(op("exp", total(K, x())), total(K, op("exp", x()))),
    "softmax over another axis": _softmax_axis,
    "softmax without division": lambda: both(softmax(lambda j: read("s", M, j), J)(J), op("exp", read("s", M, J))),
    "split softmax without rescaling": _wrong_rescale,
    "strict mask": lambda: both(_mask(True), _mask(False)),
    "sum of a constant": lambda: both(total(K, S_M), S_M),
    "sum of a constant, another length": lambda: both(total(K, S_M), mul(const(255.0), S_M)),
    "lora without scale": lambda: (
        lora(),
        canonical(add(_sum_of(x(), w()), total(R, mul(total(K, mul(x(), read("a", K, R))), read("b", R, N))))),
    ),
    "gate and value exchanged": lambda: both(mul(silu(x()), g()), mul(x(), silu(g()))),
    "silu on the other operand": lambda: both(mul(x(), silu(read("y", M, K))), mul(silu(x()), read("y", M, K))),
    "sigmoid is tanh": lambda: both(op("sigmoid", x()), op("tanh", x())),
    "gelu by tanh": lambda: both(
        gelu(x()),
        mul(
            mul(const(0.5), x()),
            add(
                const(1.0),
                op("tanh", mul(const(0.7978845608), add(x(), mul(const(0.044715), mul(x(), mul(x(), x())))))),
            ),
        ),
    ),
    "relu twice the other way": lambda: both(op("maximum", x(), const(0.0)), op("minimum", x(), const(0.0))),
    "recip of a sum": lambda: both(recip(add(x(), g())), add(recip(x()), recip(g()))),
    "mask by -inf against 0": lambda: both(
        total(J, op("exp", op("where", op("le", position(J), position(M)), read("s", M, J), const(-math.inf)))),
        total(J, op("exp", op("where", op("le", position(J), position(M)), read("s", M, J), const(0.0)))),
    ),
    "slice shifted by one": lambda: both(
        read("x", M, Index.axis(K) + 1), substitute(read("x", M, K), {K: Index.axis(K)})
    ),
    "square extents contracted the other way": lambda: both(
        total(axis(16, 1), mul(read("x", axis(16), axis(16, 1)), g(axis(16, 1)))),
        total(axis(16, 1), mul(read("x", axis(16, 1), axis(16)), g(axis(16, 1)))),
    ),
}
