"""True identities, by family. Each is a function of the sizes; see identities_common.Sizes."""

from __future__ import annotations

from collections.abc import Mapping

from identities_common import (
    INF,
    Axis,
    Expr,
    Identity,
    Index,
    Pair,
    Sizes,
    add,
    at_most,
    concat,
    const,
    div,
    exp,
    gelu,
    inverse_rms,
    ix,
    layernorm,
    less,
    log,
    logsumexp,
    mean,
    mul,
    neg,
    op,
    position,
    read,
    recip,
    relu,
    rsqrt,
    sigmoid,
    silu,
    softmax,
    square,
    sub,
    top,
    total,
    where,
)


def axes(z: Sizes) -> tuple[Axis, Axis, Axis]:
    """m, k, n."""
    return Axis("m", z.m), Axis("k", z.k), Axis("n", z.n)


def linear(z: Sizes) -> tuple[Axis, Axis, Axis, Expr, Expr]:
    """m, k, n, x[m, k], w[k, n]."""
    m, k, n = axes(z)
    return m, k, n, read("x", m, k), read("w", k, n)


# Linear layers


def row_scale(z: Sizes) -> Pair:
    m, k, n, x, w = linear(z)
    s = read("s", m)
    return (m, n), total(k, mul(mul(x, recip(s)), w)), div(total(k, mul(x, w)), s)


def bias_through(z: Sizes) -> Pair:
    m, k, n, x, w = linear(z)
    b = read("b", k)
    return (m, n), total(k, mul(add(x, b), w)), add(total(k, mul(x, w)), total(k, mul(b, w)))


def three_matrices(z: Sizes) -> Pair:
    m, k, n, x, _ = linear(z)
    r = Axis("r", z.r)
    a, b = read("a", k, r), read("b", r, n)
    return (m, n), total(r, mul(total(k, mul(x, a)), b)), total(k, mul(x, total(r, mul(a, b))))


def packed_columns(z: Sizes) -> Pair:
    """x @ [v | w], of which the second half is taken."""
    m, k, n, x, _ = linear(z)
    both = concat(ix(n) + z.n, z.n, lambda i: read("v", k, i), lambda i: read("w", k, i))
    return (m, n), total(k, mul(x, both)), total(k, mul(x, read("w", k, n)))


def split_k(z: Sizes) -> Pair:
    m, k, n, x, w = linear(z)
    a, b = Axis("a", z.k // 2), Axis("b", z.k // 2)
    high = ix(b) + z.k // 2
    halves = [total(a, mul(read("x", m, a), read("w", a, n))), total(b, mul(read("x", m, high), read("w", high, n)))]
    return (m, n), total(k, mul(x, w)), add(*halves)


def chunked_k(z: Sizes) -> Pair:
    m, k, n, x, w = linear(z)
    a, b = Axis("a", z.k // 2), Axis("b", 2)
    i = ix(a).scaled(2) + ix(b)
    return (m, n), total(k, mul(x, w)), total(a, total(b, mul(read("x", m, i), read("w", i, n))))


# Norms


def rmsnorm_past_linear(z: Sizes) -> Pair:
    m, k, n, x, w = linear(z)
    inv, g = inverse_rms(k, x), read("g", k)
    return (m, n), total(k, mul(mul(mul(x, inv), g), w)), mul(inv, total(k, mul(x, mul(g, w))))


def layernorm_folded(z: Sizes) -> Pair:
    m, k, n, x, w = linear(z)
    mu = mean(k, x)
    inv = rsqrt(add(mean(k, square(sub(x, mu))), const(1e-5)))
    left = total(k, mul(add(mul(layernorm(k, x), read("g", k)), read("b", k)), w))
    gw = mul(read("g", k), w)
    right = add(mul(inv, sub(total(k, mul(x, gw)), mul(mu, total(k, gw)))), total(k, mul(read("b", k), w)))
    return (m, n), left, right


def one_pass_variance(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    mu = mean(k, x)
    return (m,), mean(k, square(sub(x, mu))), sub(mean(k, square(x)), square(mu))


def rms_by_l2(z: Sizes) -> Pair:
    """x / rms(x) = sqrt(n) x / |x|, the eps n times as large."""
    m, k, _, x, _ = linear(z)
    l2 = rsqrt(add(total(k, square(x)), const(z.k * 1e-6)))
    return (m, k), mul(x, inverse_rms(k, x)), mul(mul(const(z.k**0.5), x), l2)


def rms_of_scaled(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    y = mul(const(2.0), x)
    return (m, k), mul(y, inverse_rms(k, y, 4e-6)), mul(x, inverse_rms(k, x))


def layernorm_shift(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), layernorm(k, add(x, read("c", m))), layernorm(k, x)


def layernorm_by_rms(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    mu = mean(k, x)
    inv = rsqrt(add(sub(mean(k, square(x)), square(mu)), const(1e-5)))
    return (m, k), layernorm(k, x), mul(sub(x, mu), inv)


# Softmax


def scores(z: Sizes) -> tuple[Axis, Axis, Axis, Expr, Expr]:
    """m, j, e, s[m, j], v[j, e]."""
    m, j, e = Axis("m", z.m), Axis("j", z.j), Axis("e", z.e)
    return m, j, e, read("s", m, j), read("v", j, e)


def max_dropped(z: Sizes) -> Pair:
    m, j, _, s, _ = scores(z)
    return (m, j), softmax(j, s), div(exp(s), total(j, exp(s)))


def softmax_shift(z: Sizes) -> Pair:
    m, j, _, s, _ = scores(z)
    return (m, j), softmax(j, add(s, read("c", m))), softmax(j, s)


def division_past_values(z: Sizes) -> Pair:
    m, j, e, s, v = scores(z)
    p = exp(sub(s, top(j, s)))
    return (m, e), total(j, mul(softmax(j, s), v)), div(total(j, mul(p, v)), total(j, p))


def temperature(z: Sizes) -> Pair:
    m, j, _, _, _ = scores(z)
    k = Axis("k", z.k)
    q, t = read("q", m, k), read("k", j, k)
    scaled = softmax(j, mul(const(0.125), total(k, mul(q, t))))
    return (m, j), scaled, softmax(j, total(k, mul(mul(const(0.125), q), t)))


def log_softmax(z: Sizes) -> Pair:
    m, j, _, s, _ = scores(z)
    return (m, j), log(softmax(j, s)), sub(s, logsumexp(j, s))


def split_softmax(z: Sizes) -> Pair:
    """Partial results over p parts of the keys, rescaled to the common maximum."""
    m, _, e, _, _ = scores(z)
    p, j = Axis("p", z.p), Axis("j", z.j)
    at = ix(p).scaled(z.j) + ix(j)
    s, v = read("s", m, at), read("v", at, e)
    x = exp(sub(s, top(p, top(j, s))))
    left = total(p, total(j, mul(div(x, total(p, total(j, x))), v)))
    local = top(j, s)
    y, scale = exp(sub(s, local)), exp(sub(local, top(p, local)))
    right = div(total(p, mul(scale, total(j, mul(y, v)))), total(p, mul(scale, total(j, y))))
    return (m, e), left, right


def two_part_softmax(z: Sizes) -> Pair:
    """Keys in two ranges, each with its own maximum: flash decoding with two parts."""
    m, e = Axis("m", z.m), Axis("e", z.e)
    first = z.j // 2
    j, a, b = Axis("j", z.j), Axis("a", first), Axis("b", z.j - first)
    s, v = read("s", m, j), read("v", j, e)

    def part(i: Axis, start: int) -> tuple[Expr, Expr, Expr]:
        si, vi = read("s", m, ix(i) + start), read("v", ix(i) + start, e)
        t = top(i, si)
        return t, total(i, exp(sub(si, t))), total(i, mul(exp(sub(si, t)), vi))

    (ta, la, oa), (tb, lb, ob) = part(a, 0), part(b, first)
    t = op("maximum", ta, tb)
    ra, rb = exp(sub(ta, t)), exp(sub(tb, t))
    right = div(add(mul(ra, oa), mul(rb, ob)), add(mul(ra, la), mul(rb, lb)))
    return (m, e), total(j, mul(softmax(j, s), v)), right


def softmax_of_two(z: Sizes) -> Pair:
    m, j = Axis("m", z.m), Axis("j", 2)
    s = read("s", m, j)
    first = div(exp(read("s", m, 0)), total(j, exp(s)))
    return (m,), first, sigmoid(sub(read("s", m, 0), read("s", m, 1)))


# logsumexp


def lse_by_max(z: Sizes) -> Pair:
    m, j, _, s, _ = scores(z)
    return (m,), logsumexp(j, s), log(total(j, exp(s)))


def lse_of_shifted(z: Sizes) -> Pair:
    m, j, _, s, _ = scores(z)
    c = read("c", m)
    return (m,), logsumexp(j, add(s, c)), add(c, logsumexp(j, s))


def lse_merge(z: Sizes) -> Pair:
    """logsumexp of two ranges from theirs."""
    m = Axis("m", z.m)
    first = z.j // 2
    j, a, b = Axis("j", z.j), Axis("a", first), Axis("b", z.j - first)
    la, lb = logsumexp(a, read("s", m, a)), logsumexp(b, read("s", m, ix(b) + first))
    t = op("maximum", la, lb)
    return (m,), logsumexp(j, read("s", m, j)), add(t, log(add(exp(sub(la, t)), exp(sub(lb, t)))))


def lse_of_parts(z: Sizes) -> Pair:
    m, p, j = Axis("m", z.m), Axis("p", z.p), Axis("j", z.j)
    s = read("s", m, ix(p).scaled(z.j) + ix(j))
    return (m,), logsumexp(p, logsumexp(j, s)), log(total(p, total(j, exp(s))))


# Gated units


def gate_order(z: Sizes) -> Pair:
    m, k, n, x, _ = linear(z)
    a, b = (total(k, mul(x, read(name, k, n))) for name in ("w1", "w3"))
    return (m, n), mul(silu(a), b), mul(a, mul(b, sigmoid(a)))


def packed_gate(z: Sizes) -> Pair:
    """Gate and up projection in one matrix w[k, 2n] made of two."""
    m, k, n, x, _ = linear(z)

    def column(at: Index) -> Expr:
        return total(k, mul(x, concat(at, z.n, lambda i: read("w1", k, i), lambda i: read("w3", k, i))))

    a, b = (total(k, mul(x, read(name, k, n))) for name in ("w1", "w3"))
    return (m, n), mul(silu(column(ix(n))), column(ix(n) + z.n)), mul(silu(a), b)


def norm_before_gates(z: Sizes) -> Pair:
    m, k, n, x, _ = linear(z)
    inv, g = inverse_rms(k, x), read("g", k)
    left = [total(k, mul(mul(mul(x, inv), g), read(name, k, n))) for name in ("w1", "w3")]
    right = [mul(inv, total(k, mul(mul(x, g), read(name, k, n)))) for name in ("w1", "w3")]
    return (m, n), mul(silu(left[0]), left[1]), mul(silu(right[0]), right[1])


# GELU, SiLU and their kin


def silu_by_exp(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), silu(x), div(x, add(const(1.0), exp(neg(x))))


def silu_reflected(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), sub(silu(x), silu(neg(x))), x


def tanh_by_sigmoid(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), op("tanh", x), sub(mul(const(2.0), sigmoid(mul(const(2.0), x))), const(1.0))


def gelu_tanh_by_sigmoid(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    u = mul(const(0.7978845608), add(x, mul(const(0.044715), mul(x, mul(x, x)))))
    left = mul(mul(const(0.5), x), add(const(1.0), op("tanh", u)))
    return (m, k), left, mul(x, sigmoid(mul(const(2.0), u)))


def gelu_reflected(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), sub(gelu(x), gelu(neg(x))), x


def relu_reflected(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), sub(relu(x), relu(neg(x))), x


def relu_by_abs(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), relu(x), mul(const(0.5), add(x, op("abs", x)))


def softplus_reflected(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)

    def softplus(a: Expr) -> Expr:
        return log(add(const(1.0), exp(a)))

    return (m, k), softplus(x), add(x, softplus(neg(x)))


# RoPE: pair t of position i turns by the angle i * f[t]


def turned(
    name: str, i: Axis, at: Expr, t: Axis, channel: tuple[Index, Index], f: Expr | None = None
) -> tuple[Expr, Expr]:
    """Both channels of pair t of name[i], turned by at * f[t]."""
    angle = mul(at, read("f", t) if f is None else f)
    a, b = read(name, i, channel[0]), read(name, i, channel[1])
    c, s = op("cos", angle), op("sin", angle)
    return sub(mul(a, c), mul(b, s)), add(mul(b, c), mul(a, s))


def halves(t: Axis) -> tuple[Index, Index]:
    return ix(t), ix(t) + int(t.extent)


def interleaved(t: Axis) -> tuple[Index, Index]:
    return ix(t).scaled(2), ix(t).scaled(2) + 1


def rope_axes(z: Sizes) -> tuple[Axis, Axis, Axis]:
    return Axis("i", z.s), Axis("j", z.j), Axis("t", z.d // 2)


def rope_score(z: Sizes, shift: int) -> Expr:
    i, j, t = rope_axes(z)
    a, b = turned("q", i, position(ix(i) + shift), t, halves(t))
    c, d = turned("k", j, position(ix(j) + shift), t, halves(t))
    return total(t, add(mul(a, c), mul(b, d)))


def rope_by_offset(z: Sizes) -> Pair:
    """A score depends on the difference of the positions alone."""
    i, j, t = rope_axes(z)
    angle = mul(position(i), read("f", t)), mul(position(j), read("f", t))
    turn = sub(angle[0], angle[1])
    q1, q2 = (read("q", i, c) for c in halves(t))
    k1, k2 = (read("k", j, c) for c in halves(t))
    same, other = add(mul(q1, k1), mul(q2, k2)), sub(mul(q1, k2), mul(q2, k1))
    right = total(t, add(mul(same, op("cos", turn)), mul(other, op("sin", turn))))
    return (i, j), rope_score(z, 0), right


def rope_shift(z: Sizes) -> Pair:
    i, j, _ = rope_axes(z)
    return (i, j), rope_score(z, 5), rope_score(z, 0)


def rope_permuted(z: Sizes) -> Pair:
    """Interleaved pairs, or halves after the channels were permuted: the same scores."""
    i, j, _ = rope_axes(z)
    c = Axis("c", z.d)
    half = z.d // 2
    t, u = Axis("t", half), Axis("u", half)

    def parts(name: str, a: Axis) -> tuple[Expr, Expr]:
        return turned(name, a, position(a), t, interleaved(t))

    def rotated(name: str, a: Axis) -> Expr:
        """Channel c of the rotation by halves of the permuted tensor."""
        at = {p: turned(name, a, position(a), u, interleaved(u))[p] for p in (0, 1)}
        first = _shifted(at[0], u, ix(c))
        return where(less(c, half), first, _shifted(at[1], u, ix(c) + (-half)))

    q, k = parts("q", i), parts("k", j)
    left = total(t, add(mul(q[0], k[0]), mul(q[1], k[1])))
    return (i, j), left, total(c, mul(rotated("q", i), rotated("k", j)))


def _shifted(e: Expr, axis: Axis, at: Index) -> Expr:
    from prism.program.transform import substitute

    return substitute(e, {axis: at})


def rope_keeps_norm(z: Sizes) -> Pair:
    """The sum of squares of a turned pair is that of the pair."""
    i, _, t = rope_axes(z)
    a, b = turned("q", i, position(i), t, halves(t))
    x, y = (read("q", i, c) for c in halves(t))
    return (i,), total(t, add(square(a), square(b))), total(t, add(square(x), square(y)))


def rope_after_norm(z: Sizes) -> Pair:
    """The first channel of the rotation of x / rms(x), by the norm of what was rotated."""
    i, _, t = rope_axes(z)
    x, y = (read("q", i, c) for c in halves(t))
    a, b = turned("q", i, position(i), t, halves(t))
    angle = mul(position(i), read("f", t))

    def inv(p: Expr, q: Expr) -> Expr:
        return rsqrt(add(div(total(t, add(square(p), square(q))), const(z.d)), const(1e-6)))

    normed = mul(x, inv(x, y)), mul(y, inv(x, y))
    left = sub(mul(normed[0], op("cos", angle)), mul(normed[1], op("sin", angle)))
    return (i, t), left, mul(a, inv(a, b))


# Grouped heads


def heads_merged(z: Sizes) -> Pair:
    """The output projection of all heads at once, and head by head."""
    m, n, h, d, c = Axis("m", z.m), Axis("n", z.n), Axis("h", z.h), Axis("d", z.d), Axis("c", z.h * z.d)
    at = ix(h).scaled(z.d) + ix(d)
    left = total(c, mul(read("o", m, c), read("w", c, n)))
    return (m, n), left, total(h, total(d, mul(read("o", m, at), read("w", at, n))))


def grouped_scores(z: Sizes) -> Pair:
    """Scaling the shared keys or every query of the group."""
    h, g, j, d = Axis("h", z.h), Axis("g", z.g), Axis("j", z.j), Axis("d", z.d)
    q, k = read("q", ix(h).scaled(z.g) + ix(g), d), read("k", h, j, d)
    left = softmax(j, total(d, mul(q, mul(k, const(z.d**-0.5)))))
    return (h, g, j), left, softmax(j, mul(const(z.d**-0.5), total(d, mul(q, k))))


def grouped_values(z: Sizes) -> Pair:
    """A group's queries share their values; the division waits until after them."""
    h, g, j, e = Axis("h", z.h), Axis("g", z.g), Axis("j", z.j), Axis("e", z.e)
    s, v = read("s", ix(h).scaled(z.g) + ix(g), j), read("v", h, j, e)
    return (h, g, e), total(j, mul(softmax(j, s), v)), div(total(j, mul(exp(s), v)), total(j, exp(s)))


# Masks


def causal(z: Sizes) -> tuple[Axis, Axis, Axis, Expr, Expr]:
    """i, j (as many), e, s[i, j], v[j, e]."""
    i, j, e = Axis("i", z.s), Axis("j", z.s), Axis("e", z.e)
    return i, j, e, read("s", i, j), read("v", j, e)


def causal_max_dropped(z: Sizes) -> Pair:
    i, j, e, s, v = causal(z)
    masked = where(at_most(j, i), s, const(-INF))
    right = div(total(j, mul(exp(masked), v)), total(j, exp(masked)))
    return (i, e), total(j, mul(softmax(j, masked), v)), right


def causal_as_product(z: Sizes) -> Pair:
    """exp of -inf is 0: a mask after the exponential."""
    i, j, e, s, v = causal(z)
    kept = where(at_most(j, i), exp(s), const(0.0))
    masked = where(at_most(j, i), s, const(-INF))
    return (i, e), total(j, mul(exp(masked), v)), total(j, mul(kept, v))


def window_nested(z: Sizes) -> Pair:
    i, j, e, s, v = causal(z)
    near = less(ix(i) + ix(j).scaled(-1), z.w)
    one = where(op("and", at_most(j, i), near), exp(s), const(0.0))
    two = where(near, where(at_most(j, i), exp(s), const(0.0)), const(0.0))
    return (i, e), total(j, mul(one, v)), total(j, mul(two, v))


def alibi_rows(z: Sizes) -> Pair:
    """slope * (j - i) and slope * j differ by a number for each row, which softmax does not see."""
    i, j, _, s, _ = causal(z)
    slope = read("slope")
    relative = add(s, mul(slope, sub(position(j), position(i))))
    return (i, j), softmax(j, relative), softmax(j, add(s, mul(slope, position(j))))


def padding_not_read(z: Sizes) -> Pair:
    """Keys past a fixed length are masked: the softmax over the others alone."""
    m, e = Axis("m", z.m), Axis("e", z.e)
    length = z.j - 2
    j, a = Axis("j", z.j), Axis("a", length)
    s = where(less(j, length), read("s", m, j), const(-INF))
    left = div(total(j, mul(exp(s), read("v", j, e))), total(j, exp(s)))
    s2 = read("s", m, a)
    return (m, e), left, div(total(a, mul(exp(s2), read("v", a, e))), total(a, exp(s2)))


def padded_max(z: Sizes) -> Pair:
    m = Axis("m", z.m)
    j, a = Axis("j", z.j), Axis("a", z.j - 2)
    s = where(less(j, z.j - 2), read("s", m, j), const(-INF))
    return (m,), top(j, s), top(a, read("s", m, a))


def strict_complement(z: Sizes) -> Pair:
    i, j, _, s, _ = causal(z)
    return (i, j), where(at_most(j, i), s, const(-INF)), where(less(i, j), const(-INF), s)


# Low-rank and quantised linear maps


def lora_merged(z: Sizes) -> Pair:
    m, k, n, x, w = linear(z)
    r = Axis("r", z.r)
    a, b = read("a", k, r), read("b", r, n)
    left = add(total(k, mul(x, w)), mul(const(2.0), total(r, mul(total(k, mul(x, a)), b))))
    return (m, n), left, total(k, mul(x, add(w, mul(const(2.0), total(r, mul(a, b))))))


def channel_scale(z: Sizes) -> Pair:
    m, k, n, x, w = linear(z)
    return (m, n), total(k, mul(x, mul(w, read("s", n)))), mul(read("s", n), total(k, mul(x, w)))


def zero_point(z: Sizes) -> Pair:
    m, k, n, x, w = linear(z)
    zero, s = read("z", n), read("s", n)
    left = total(k, mul(x, mul(sub(w, zero), s)))
    return (m, n), left, mul(s, sub(total(k, mul(x, w)), mul(zero, total(k, x))))


def group_scale(z: Sizes) -> Pair:
    m, n, p, g = Axis("m", z.m), Axis("n", z.n), Axis("p", z.p), Axis("g", z.g)
    at = ix(p).scaled(z.g) + ix(g)
    x, w, s = read("x", m, at), read("w", at, n), read("s", p, n)
    return (m, n), total(p, total(g, mul(x, mul(w, s)))), total(p, mul(s, total(g, mul(x, w))))


def group_zero_point(z: Sizes) -> Pair:
    m, n, p, g = Axis("m", z.m), Axis("n", z.n), Axis("p", z.p), Axis("g", z.g)
    at = ix(p).scaled(z.g) + ix(g)
    x, w, s, zero = read("x", m, at), read("w", at, n), read("s", p, n), read("z", p, n)
    right = total(p, mul(s, sub(total(g, mul(x, w)), mul(zero, total(g, x)))))
    return (m, n), total(p, total(g, mul(x, mul(sub(w, zero), s)))), right


# Convolution


def conv(z: Sizes) -> tuple[Axis, Axis, Axis, Axis, Expr, Expr]:
    """o, i, c, t, x[c, i + t], w[o, c, t]."""
    o, i, c, t = Axis("o", z.n), Axis("i", z.s), Axis("c", z.d), Axis("t", z.t)
    return o, i, c, t, read("x", c, ix(i) + ix(t)), read("w", o, c, t)


def conv_as_matmuls(z: Sizes) -> Pair:
    o, i, c, t, x, w = conv(z)
    parts = [total(c, mul(read("x", c, ix(i) + n), read("w", o, c, n))) for n in range(z.t)]
    return (o, i), total(c, total(t, mul(x, w))), add(*parts)


def padded_conv(z: Sizes) -> Pair:
    """One row of zeros on each side, tap by tap."""
    o, i, c, t, _, w = conv(z)
    at = ix(i) + ix(t) + (-1)
    inside = where(at_most(0, at), where(less(at, z.s), read("x", c, at), const(0.0)), const(0.0))
    left = total(c, total(t, mul(inside, w)))
    before = where(at_most(1, i), read("x", c, ix(i) + (-1)), const(0.0))
    after = where(less(i, z.s - 1), read("x", c, ix(i) + 1), const(0.0))
    taps = [before, read("x", c, i), after]
    return (o, i), left, add(*(total(c, mul(x, read("w", o, c, n))) for n, x in enumerate(taps)))


def batchnorm_folded(z: Sizes) -> Pair:
    o, i, c, t, x, w = conv(z)
    inv = rsqrt(add(read("var", o), const(1e-5)))
    g = mul(read("gain", o), inv)
    y = add(total(c, total(t, mul(x, w))), read("b", o))
    left = add(mul(mul(sub(y, read("mu", o)), inv), read("gain", o)), read("beta", o))
    shift = add(mul(sub(read("b", o), read("mu", o)), g), read("beta", o))
    return (o, i), left, add(total(c, total(t, mul(x, mul(w, g)))), shift)


def pointwise_after_conv(z: Sizes) -> Pair:
    o, i, c, t, x, w = conv(z)
    p = Axis("p", z.r)
    u = read("u", p, o)
    left = total(o, mul(u, total(c, total(t, mul(x, w)))))
    return (p, i), left, total(c, total(t, mul(x, total(o, mul(u, w)))))


# Concatenation and splitting


def concat_then_linear(z: Sizes) -> Pair:
    m, n, k = Axis("m", z.m), Axis("n", z.n), Axis("k", z.k + z.r)
    a, b = Axis("a", z.k), Axis("b", z.r)
    x = concat(k, z.k, lambda i: read("x", m, i), lambda i: read("y", m, i))
    parts = total(a, mul(read("x", m, a), read("w", a, n))), total(b, mul(read("y", m, b), read("w", ix(b) + z.k, n)))
    return (m, n), total(k, mul(x, read("w", k, n))), add(*parts)


def concat_of_relu(z: Sizes) -> Pair:
    m, k = Axis("m", z.m), Axis("k", z.k + z.r)
    left = relu(concat(k, z.k, lambda i: read("x", m, i), lambda i: read("y", m, i)))
    return (m, k), left, concat(k, z.k, lambda i: relu(read("x", m, i)), lambda i: relu(read("y", m, i)))


def split_and_joined(z: Sizes) -> Pair:
    m, k = Axis("m", z.m), Axis("k", z.k)
    half = z.k // 2
    left = concat(k, half, lambda i: read("x", m, i), lambda i: read("x", m, i + half))
    return (m, k), left, read("x", m, k)


def max_of_concat(z: Sizes) -> Pair:
    m, k = Axis("m", z.m), Axis("k", z.k + z.r)
    a, b = Axis("a", z.k), Axis("b", z.r)
    left = top(k, concat(k, z.k, lambda i: read("x", m, i), lambda i: read("y", m, i)))
    return (m,), left, op("maximum", top(a, read("x", m, a)), top(b, read("y", m, b)))


def norm_of_concat(z: Sizes) -> Pair:
    """The RMS norm of two tensors side by side, from two sums of squares."""
    m, k = Axis("m", z.m), Axis("k", z.k + z.r)
    a, b = Axis("a", z.k), Axis("b", z.r)
    joined = concat(k, z.k, lambda i: read("x", m, i), lambda i: read("y", m, i))
    squares = add(total(a, square(read("x", m, a))), total(b, square(read("y", m, b))))
    right = rsqrt(add(div(squares, const(z.k + z.r)), const(1e-6)))
    return (m,), inverse_rms(k, joined), right


# Einsum


def linear_attention(z: Sizes) -> Pair:
    m, j, k, e = Axis("m", z.m), Axis("j", z.j), Axis("k", z.k), Axis("e", z.e)
    q, t, v = read("q", m, k), read("k", j, k), read("v", j, e)
    return (m, e), total(j, mul(total(k, mul(q, t)), v)), total(k, mul(q, total(j, mul(t, v))))


def trace_of_product(z: Sizes) -> Pair:
    a, b, c, d = Axis("a", z.k), Axis("b", z.n), Axis("c", z.k), Axis("d", z.n)
    left = total(a, total(b, mul(read("x", a, b), read("w", b, a))))
    return (), left, total(d, total(c, mul(read("w", d, c), read("x", c, d))))


def bilinear(z: Sizes) -> Pair:
    m, i, j = Axis("m", z.m), Axis("i", z.k), Axis("j", z.n)
    left = total(i, total(j, mul(mul(read("x", m, i), read("a", i, j)), read("y", m, j))))
    return (m,), left, total(j, mul(read("y", m, j), total(i, mul(read("a", i, j), read("x", m, i)))))


def diagonal(z: Sizes) -> Pair:
    """x diag(s) w."""
    m, k, n, x, w = linear(z)
    c = Axis("c", z.k)
    chosen = where(op("eq", position(k), position(c)), read("s", k), const(0.0))
    return (m, n), total(k, mul(x, mul(read("s", k), w))), total(k, mul(x, total(c, mul(chosen, read("w", c, n)))))


# Mixture of experts


def experts(z: Sizes) -> tuple[Axis, Axis, Axis, Axis, Expr, Expr]:
    """m, x (experts), f, n, gate[m, x], hidden[x, m, f]."""
    m, x, f, n = Axis("m", z.m), Axis("x", z.h), Axis("f", z.d), Axis("n", z.n)
    return m, x, f, n, read("gate", m, x), read("hidden", x, m, f)


def weight_before_down(z: Sizes) -> Pair:
    m, x, f, n, g, h = experts(z)
    w = read("w", x, f, n)
    return (m, n), total(x, mul(g, total(f, mul(h, w)))), total(x, total(f, mul(mul(g, h), w)))


def softmax_of_experts(z: Sizes) -> Pair:
    m, x, f, n, g, h = experts(z)
    y = total(f, mul(h, read("w", x, f, n)))
    return (m, n), total(x, mul(softmax(x, g), y)), div(total(x, mul(exp(g), y)), total(x, exp(g)))


def renormalised(z: Sizes) -> Pair:
    """Weights of the chosen experts, renormalised: their softmax alone."""
    m, x, _, _, g, _ = experts(z)
    kept = where(read("chosen", m, x), softmax(x, g), const(0.0))
    only = where(read("chosen", m, x), exp(g), const(0.0))
    return (m, x), div(kept, total(x, kept)), div(only, total(x, only))


def shared_expert(z: Sizes) -> Pair:
    m, x, f, n, g, h = experts(z)
    shared = read("shared", m, f)
    v = read("v", f, n)
    left = add(total(f, mul(shared, v)), total(x, mul(g, total(f, mul(h, v)))))
    return (m, n), left, total(f, mul(add(shared, total(x, mul(g, h))), v))


TRUE: Mapping[str, Identity] = {
    f.__name__.replace("_", " "): f
    for f in (
        row_scale, bias_through, three_matrices, packed_columns, split_k, chunked_k,
        rmsnorm_past_linear, layernorm_folded, one_pass_variance, rms_by_l2, rms_of_scaled, layernorm_shift,
        layernorm_by_rms,
        max_dropped, softmax_shift, division_past_values, temperature, log_softmax, split_softmax, two_part_softmax,
        softmax_of_two,
        lse_by_max, lse_of_shifted, lse_merge, lse_of_parts,
        gate_order, packed_gate, norm_before_gates,
        silu_by_exp, silu_reflected, tanh_by_sigmoid, gelu_tanh_by_sigmoid, gelu_reflected, relu_reflected, relu_by_abs,
        softplus_reflected,
        rope_by_offset, rope_shift, rope_permuted, rope_keeps_norm, rope_after_norm,
        heads_merged, grouped_scores, grouped_values,
        causal_max_dropped, causal_as_product, window_nested, alibi_rows, padding_not_read, padded_max,
        strict_complement,
        lora_merged, channel_scale, zero_point, group_scale, group_zero_point,
        conv_as_matmuls, padded_conv, batchnorm_folded, pointwise_after_conv,
        concat_then_linear, concat_of_relu, split_and_joined, max_of_concat, norm_of_concat,
        linear_attention, trace_of_product, bilinear, diagonal,
        weight_before_down, softmax_of_experts, renormalised, shared_expert,
    )
}  # fmt: skip
