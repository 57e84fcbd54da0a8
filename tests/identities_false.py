"""Wrong identities, by family, with the mistakes that smooth random inputs hide: ties, signs, axes of equal extents, an
eps in another place, borders of groups and masks, 1/n against 1/(n - 1), a dropped last element, a large d."""

from __future__ import annotations

from collections.abc import Mapping

from identities_common import (
    INF,
    Axis,
    Expr,
    Identity,
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
    sqrt,
    square,
    sub,
    top,
    total,
    where,
)
from identities_true import causal, conv, experts, halves, interleaved, linear, rope_axes, scores, turned

# Linear layers


def scale_along_k(z: Sizes) -> Pair:
    """(x / s) w with s along the contracted axis, against (x w) / s with s along the rows: k and m may be as long."""
    m, k, n, x, w = linear(z)
    s = div(total(k, mul(x, w)), read("s", Axis("n", z.n)))
    return (m, n), total(k, mul(div(x, read("s", k)), w)), s


def transposed_weight(z: Sizes) -> Pair:
    m, k = Axis("m", z.m), Axis("k", z.d)
    n = Axis("n", z.d)
    x = read("x", m, k)
    return (m, n), total(k, mul(x, read("w", k, n))), total(k, mul(x, read("w", n, k)))


def bias_before(z: Sizes) -> Pair:
    m, k, n, x, w = linear(z)
    return (m, n), add(total(k, mul(x, w)), read("b", n)), total(k, add(mul(x, w), read("b", n)))


def last_of_k_dropped(z: Sizes) -> Pair:
    m, k, n, x, w = linear(z)
    a = Axis("a", z.k - 1)
    return (m, n), total(k, mul(x, w)), total(a, mul(read("x", m, a), read("w", a, n)))


def packed_columns_swapped(z: Sizes) -> Pair:
    m, k, n, x, _ = linear(z)
    both = concat(ix(n) + z.n, z.n, lambda i: read("v", k, i), lambda i: read("w", k, i))
    return (m, n), total(k, mul(x, both)), total(k, mul(x, read("v", k, n)))


def split_k_overlapping(z: Sizes) -> Pair:
    m, k, n, x, w = linear(z)
    a, b = Axis("a", z.k // 2 + 1), Axis("b", z.k // 2)
    high = ix(b) + z.k // 2
    halves_ = [total(a, mul(read("x", m, a), read("w", a, n))), total(b, mul(read("x", m, high), read("w", high, n)))]
    return (m, n), total(k, mul(x, w)), add(*halves_)


# Norms


def eps_outside_root(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), mul(x, inverse_rms(k, x)), mul(x, recip(add(sqrt(mean(k, square(x))), const(1e-6))))


def rms_is_l2(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), mul(x, inverse_rms(k, x)), mul(x, rsqrt(add(total(k, square(x)), const(1e-6))))


def l2_eps_not_scaled(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    l2 = rsqrt(add(total(k, square(x)), const(1e-6)))
    return (m, k), mul(x, inverse_rms(k, x)), mul(mul(const(z.k**0.5), x), l2)


def eps_of_another_size(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), mul(x, inverse_rms(k, x, 1e-6)), mul(x, inverse_rms(k, x, 1e-5))


def rms_scale_invariant(z: Sizes) -> Pair:
    """Up to the eps it is."""
    m, k, _, x, _ = linear(z)
    y = mul(const(2.0), x)
    return (m, k), mul(y, inverse_rms(k, y)), mul(x, inverse_rms(k, x))


def rms_of_negative(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    y = mul(const(-2.0), x)
    return (m, k), mul(y, inverse_rms(k, y, 4e-6)), mul(x, inverse_rms(k, x))


def unbiased_variance(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    centred = sub(x, mean(k, x))
    variance = div(total(k, square(centred)), const(z.k - 1))
    return (m, k), layernorm(k, x), mul(centred, rsqrt(add(variance, const(1e-5))))


def layernorm_is_rms(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), layernorm(k, x, 1e-6), mul(x, inverse_rms(k, x))


def mean_not_scaled(z: Sizes) -> Pair:
    """LayerNorm folded, without the inverse deviation at the mean's term."""
    m, k, n, x, w = linear(z)
    mu = mean(k, x)
    inv = rsqrt(add(mean(k, square(sub(x, mu))), const(1e-5)))
    return (m, n), total(k, mul(layernorm(k, x), w)), sub(mul(inv, total(k, mul(x, w))), mul(mu, total(k, w)))


def norm_over_columns(z: Sizes) -> Pair:
    """The mean square of a column in place of a row's, of a square x."""
    m, k = Axis("m", z.d), Axis("k", z.d)
    x = read("x", m, k)
    return (m, k), mul(x, inverse_rms(k, x)), mul(x, inverse_rms(m, x))


def mean_of_last_dropped(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    a = Axis("a", z.k - 1)
    squares = div(total(a, square(read("x", m, a))), const(z.k))
    return (m, k), mul(x, inverse_rms(k, x)), mul(x, rsqrt(add(squares, const(1e-6))))


# Softmax and logsumexp


def softmax_over_rows(z: Sizes) -> Pair:
    m, j = Axis("m", z.d), Axis("j", z.d)
    s = read("s", m, j)
    return (m, j), softmax(j, s), softmax(m, s)


def shift_along_j(z: Sizes) -> Pair:
    m, j, _, s, _ = scores(z)
    return (m, j), softmax(j, add(s, read("c", j))), softmax(j, s)


def scale_inside_softmax(z: Sizes) -> Pair:
    m, j, _, s, _ = scores(z)
    return (m, j), softmax(j, mul(const(2.0), s)), softmax(j, s)


def parts_not_rescaled(z: Sizes) -> Pair:
    m, e, p, j = Axis("m", z.m), Axis("e", z.e), Axis("p", z.p), Axis("j", z.j)
    at = ix(p).scaled(z.j) + ix(j)
    s, v = read("s", m, at), read("v", at, e)
    x = exp(s)
    y = exp(sub(s, top(j, s)))
    left = div(total(p, total(j, mul(x, v))), total(p, total(j, x)))
    return (m, e), left, div(total(p, total(j, mul(y, v))), total(p, total(j, y)))


def denominator_not_rescaled(z: Sizes) -> Pair:
    m, e, p, j = Axis("m", z.m), Axis("e", z.e), Axis("p", z.p), Axis("j", z.j)
    at = ix(p).scaled(z.j) + ix(j)
    s, v = read("s", m, at), read("v", at, e)
    local = top(j, s)
    y, scale = exp(sub(s, local)), exp(sub(local, top(p, local)))
    x = exp(s)
    left = div(total(p, total(j, mul(x, v))), total(p, total(j, x)))
    return (m, e), left, div(total(p, mul(scale, total(j, mul(y, v)))), total(p, total(j, y)))


def mean_of_part_softmaxes(z: Sizes) -> Pair:
    m, p, j = Axis("m", z.m), Axis("p", z.p), Axis("j", z.j)
    s = read("s", m, ix(p).scaled(z.j) + ix(j))
    v = read("v", ix(p).scaled(z.j) + ix(j))
    x = exp(s)
    left = div(total(p, total(j, mul(x, v))), total(p, total(j, x)))
    return (m,), left, mean(p, div(total(j, mul(x, v)), total(j, x)))


def lse_of_sum(z: Sizes) -> Pair:
    m, p, j = Axis("m", z.m), Axis("p", z.p), Axis("j", z.j)
    s = read("s", m, ix(p).scaled(z.j) + ix(j))
    return (m,), log(total(p, total(j, exp(s)))), total(p, logsumexp(j, s))


def lse_without_max(z: Sizes) -> Pair:
    m, j, _, s, _ = scores(z)
    return (m,), logsumexp(j, s), log(total(j, exp(sub(s, top(j, s)))))


def max_counted_once(z: Sizes) -> Pair:
    """Ties: the maximum is excluded by its value, so equal ones are all missing from the sum."""
    m, j, _, s, _ = scores(z)
    t = top(j, s)
    others = where(op("lt", s, t), exp(s), const(0.0))
    return (m,), total(j, exp(s)), add(exp(t), total(j, others))


def lse_merge_swapped(z: Sizes) -> Pair:
    """The maxima of the two parts exchanged in the rescaling."""
    m = Axis("m", z.m)
    first = z.j // 2
    j, a, b = Axis("j", z.j), Axis("a", first), Axis("b", z.j - first)
    sa, sb = read("s", m, a), read("s", m, ix(b) + first)
    ta, tb = top(a, sa), top(b, sb)
    right = add(mul(exp(tb), total(a, exp(sub(sa, ta)))), mul(exp(ta), total(b, exp(sub(sb, tb)))))
    return (m,), total(j, exp(read("s", m, j))), right


# Gated units


def gates_exchanged(z: Sizes) -> Pair:
    m, k, n, x, _ = linear(z)
    a, b = (total(k, mul(x, read(name, k, n))) for name in ("w1", "w3"))
    return (m, n), mul(silu(a), b), mul(a, silu(b))


def halves_exchanged(z: Sizes) -> Pair:
    m, n = Axis("m", z.m), Axis("n", z.n)
    a, b = read("h", m, n), read("h", m, ix(n) + z.n)
    return (m, n), mul(silu(a), b), mul(silu(b), a)


def gate_interleaved(z: Sizes) -> Pair:
    """Gate and up in halves, or in turns."""
    m, n = Axis("m", z.m), Axis("n", z.n)
    left = mul(silu(read("h", m, n)), read("h", m, ix(n) + z.n))
    return (m, n), left, mul(silu(read("h", m, ix(n).scaled(2))), read("h", m, ix(n).scaled(2) + 1))


def gate_of_sum(z: Sizes) -> Pair:
    m, n = Axis("m", z.m), Axis("n", z.n)
    a, b = read("a", m, n), read("b", m, n)
    return (m, n), silu(add(a, b)), add(silu(a), silu(b))


# GELU, SiLU and their kin


def gelu_by_tanh(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    u = mul(const(0.7978845608), add(x, mul(const(0.044715), mul(x, mul(x, x)))))
    return (m, k), gelu(x), mul(mul(const(0.5), x), add(const(1.0), op("tanh", u)))


def quick_gelu(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), gelu(x), mul(x, sigmoid(mul(const(1.702), x)))


def silu_is_even(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), silu(x), silu(neg(x))


def silu_reflected_wrongly(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), add(silu(x), silu(neg(x))), x


def relu_of_negative(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), relu(neg(x)), neg(relu(x))


def sign_of_zero(z: Sizes) -> Pair:
    """1 at 0 against 0 at 0."""
    m, k, _, x, _ = linear(z)
    return (m, k), where(op("lt", x, const(0.0)), const(-1.0), const(1.0)), op("sign", x)


def root_of_square(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    return (m, k), sqrt(square(x)), x


def rounded_half(z: Sizes) -> Pair:
    """Half to even against half up."""
    m, k, _, x, _ = linear(z)
    return (m, k), op("round", x), op("floor", add(x, const(0.5)))


# RoPE


def rope_other_way(z: Sizes) -> Pair:
    i, _, t = rope_axes(z)
    a, _ = turned("q", i, position(i), t, halves(t))
    b, _ = turned("q", i, neg(position(i)), t, halves(t))
    return (i, t), a, b


def _rope(z: Sizes, shift_q: int, shift_k: int, channels: object = halves) -> Expr:
    i, j, t = rope_axes(z)
    a, b = turned("q", i, position(ix(i) + shift_q), t, channels(t))  # type: ignore[operator]
    c, d = turned("k", j, position(ix(j) + shift_k), t, channels(t))  # type: ignore[operator]
    return total(t, add(mul(a, c), mul(b, d)))


def rope_shifted_apart(z: Sizes) -> Pair:
    i, j, _ = rope_axes(z)
    return (i, j), _rope(z, 0, 0), _rope(z, 1, 0)


def rope_interleaved_unpermuted(z: Sizes) -> Pair:
    i, j, _ = rope_axes(z)
    return (i, j), _rope(z, 0, 0), _rope(z, 0, 0, interleaved)


def rope_with_gain(z: Sizes) -> Pair:
    """A gain along the channels does not commute with the rotation."""
    i, _, t = rope_axes(z)
    x, y = (read("q", i, c) for c in halves(t))
    g, h = (read("g", c) for c in halves(t))
    angle = mul(position(i), read("f", t))
    c, s = op("cos", angle), op("sin", angle)
    left = sub(mul(mul(x, g), c), mul(mul(y, h), s))
    return (i, t), left, mul(g, sub(mul(x, c), mul(y, s)))


# Grouped heads


def group_order(z: Sizes) -> Pair:
    """Query q of group g is head h * G + g, not g * H + h."""
    h, g, j, d = Axis("h", z.h), Axis("g", z.g), Axis("j", z.j), Axis("d", z.d)
    k = read("k", h, j, d)
    one, other = ix(h).scaled(z.g) + ix(g), ix(g).scaled(z.h) + ix(h)
    return (h, g, j), total(d, mul(read("q", one, d), k)), total(d, mul(read("q", other, d), k))


def first_head_for_all(z: Sizes) -> Pair:
    h, g, j, d = Axis("h", z.h), Axis("g", z.g), Axis("j", z.j), Axis("d", z.d)
    q = read("q", ix(h).scaled(z.g) + ix(g), d)
    return (h, g, j), total(d, mul(q, read("k", h, j, d))), total(d, mul(q, read("k", 0, j, d)))


def heads_transposed(z: Sizes) -> Pair:
    """The output projection over channels in order d, h in place of h, d."""
    m, n, h, d = Axis("m", z.m), Axis("n", z.n), Axis("h", z.h), Axis("d", z.d)
    at, wrong = ix(h).scaled(z.d) + ix(d), ix(d).scaled(z.h) + ix(h)
    left = total(h, total(d, mul(read("o", m, at), read("w", at, n))))
    return (m, n), left, total(h, total(d, mul(read("o", m, at), read("w", wrong, n))))


# Masks


def strict_causal(z: Sizes) -> Pair:
    i, j, e, s, v = causal(z)

    def side(mask: Expr) -> Expr:
        return total(j, mul(where(mask, exp(s), const(0.0)), v))

    return (i, e), side(at_most(j, i)), side(less(j, i))


def window_off_by_one(z: Sizes) -> Pair:
    i, j, e, s, v = causal(z)

    def side(width: int) -> Expr:
        mask = op("and", at_most(j, i), less(ix(i) + ix(j).scaled(-1), width))
        return total(j, mul(where(mask, exp(s), const(0.0)), v))

    return (i, e), side(z.w), side(z.w + 1)


def padding_off_by_one(z: Sizes) -> Pair:
    m, j, e, s, v = scores(z)

    def side(length: int) -> Expr:
        return total(j, mul(exp(where(less(j, length), s, const(-INF))), v))

    return (m, e), side(z.j - 1), side(z.j)


def mask_by_zero(z: Sizes) -> Pair:
    i, j, _, s, _ = causal(z)
    return (i, j), softmax(j, where(at_most(j, i), s, const(-INF))), softmax(j, where(at_most(j, i), s, const(0.0)))


def alibi_sign(z: Sizes) -> Pair:
    i, j, _, s, _ = causal(z)
    bias = mul(read("slope"), position(j))
    return (i, j), softmax(j, add(s, bias)), softmax(j, sub(s, bias))


def alibi_distance(z: Sizes) -> Pair:
    """slope * |j - i| is slope * (j - i) below the diagonal only."""
    i, j, _, s, _ = causal(z)
    apart = sub(position(j), position(i))
    left = softmax(j, sub(s, mul(read("slope"), op("abs", apart))))
    return (i, j), left, softmax(j, add(s, mul(read("slope"), apart)))


def masked_keys_read(z: Sizes) -> Pair:
    """The denominator counts the masked keys."""
    m, j, e, s, v = scores(z)
    kept = where(less(j, z.j - 1), exp(s), const(0.0))
    return (m, e), div(total(j, mul(kept, v)), total(j, kept)), div(total(j, mul(kept, v)), total(j, exp(s)))


def causal_from_the_end(z: Sizes) -> Pair:
    """With fewer queries than keys: query i sees up to key i, or up to i + keys - queries."""
    i, j = Axis("i", z.s), Axis("j", z.s + 1)
    s = exp(read("s", i, j))
    left = total(j, where(at_most(j, i), s, const(0.0)))
    return (i,), left, total(j, where(at_most(j, ix(i) + 1), s, const(0.0)))


# Low-rank and quantised linear maps


def lora_scale_dropped(z: Sizes) -> Pair:
    m, k, n, x, w = linear(z)
    r = Axis("r", z.r)
    a, b = read("a", k, r), read("b", r, n)
    left = add(total(k, mul(x, w)), mul(const(2.0), total(r, mul(total(k, mul(x, a)), b))))
    return (m, n), left, total(k, mul(x, add(w, total(r, mul(a, b)))))


def zero_point_scaled_twice(z: Sizes) -> Pair:
    m, k, n, x, w = linear(z)
    zero, s = read("z", n), read("s", n)
    left = total(k, mul(x, mul(sub(w, zero), s)))
    return (m, n), left, sub(mul(s, total(k, mul(x, w))), mul(zero, total(k, x)))


def group_of_neighbour(z: Sizes) -> Pair:
    """Groups that start one element late."""
    m, p, g = Axis("m", z.m), Axis("p", z.p - 1), Axis("g", z.g)
    at = ix(p).scaled(z.g) + ix(g)
    s = read("s", p)
    left = total(p, mul(s, total(g, mul(read("x", m, at), read("w", at)))))
    return (m,), left, total(p, mul(s, total(g, mul(read("x", m, at + 1), read("w", at + 1)))))


def group_stride(z: Sizes) -> Pair:
    """Scales by k // G against scales by k % P."""
    m, p, g = Axis("m", z.m), Axis("p", z.g), Axis("g", z.g)
    at = ix(p).scaled(z.g) + ix(g)
    x = mul(read("x", m, at), read("w", at))
    return (m,), total(p, total(g, mul(x, read("s", p)))), total(p, total(g, mul(x, read("s", g))))


# Convolution


def conv_flipped(z: Sizes) -> Pair:
    o, i, c, t, x, w = conv(z)
    flipped = read("w", o, c, ix(t).scaled(-1) + (z.t - 1))
    return (o, i), total(c, total(t, mul(x, w))), total(c, total(t, mul(x, flipped)))


def conv_padded_on_one_side(z: Sizes) -> Pair:
    o, i, c, t, _, w = conv(z)

    def side(shift: int) -> Expr:
        at = ix(i) + ix(t) + shift
        inside = op("and", at_most(0, at), less(at, z.s))
        return total(c, total(t, mul(where(inside, read("x", c, at), const(0.0)), w)))

    return (o, i), side(-1), side(-2)


def conv_last_tap_dropped(z: Sizes) -> Pair:
    o, i, c, t, x, w = conv(z)
    parts = [total(c, mul(read("x", c, ix(i) + n), read("w", o, c, n))) for n in range(z.t - 1)]
    return (o, i), total(c, total(t, mul(x, w))), add(*parts)


def conv_channels_transposed(z: Sizes) -> Pair:
    o, i, c, t = Axis("o", z.d), Axis("i", z.s), Axis("c", z.d), Axis("t", z.t)
    x = read("x", c, ix(i) + ix(t))
    left = total(c, total(t, mul(x, read("w", o, c, t))))
    return (o, i), left, total(c, total(t, mul(x, read("w", c, o, t))))


def batchnorm_bias_unscaled(z: Sizes) -> Pair:
    o, i, c, t, x, w = conv(z)
    inv = rsqrt(add(read("var", o), const(1e-5)))
    y = add(total(c, total(t, mul(x, w))), read("b", o))
    left = mul(sub(y, read("mu", o)), inv)
    return (o, i), left, add(total(c, total(t, mul(x, mul(w, inv)))), sub(read("b", o), mul(read("mu", o), inv)))


def batchnorm_eps_outside(z: Sizes) -> Pair:
    o, i, c, t, x, w = conv(z)
    y = total(c, total(t, mul(x, w)))
    v = read("var", o)
    left = mul(y, rsqrt(add(square(v), const(1e-5))))
    return (o, i), left, mul(y, recip(add(op("abs", v), const(1e-5))))


# Concatenation and splitting


def concat_order(z: Sizes) -> Pair:
    m, k = Axis("m", z.m), Axis("k", 2 * z.k)
    one = concat(k, z.k, lambda i: read("x", m, i), lambda i: read("y", m, i))
    return (m, k), one, concat(k, z.k, lambda i: read("y", m, i), lambda i: read("x", m, i))


def concat_border(z: Sizes) -> Pair:
    m, k = Axis("m", z.m), Axis("k", z.k)
    one = where(less(k, z.k - 1), read("x", m, k), read("y", m, k))
    return (m, k), one, where(at_most(k, z.k - 1), read("x", m, k), read("y", m, k))


def halves_interleaved(z: Sizes) -> Pair:
    m, k = Axis("m", z.m), Axis("k", z.k // 2)
    return (m, k), read("x", m, ix(k).scaled(2)), read("x", m, k)


def max_of_parts_added(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    half = Axis("a", z.k // 2)
    parts = [top(half, read("x", m, ix(half) + at)) for at in (0, z.k // 2)]
    return (m,), top(k, x), add(*parts)


def last_maximum_dropped(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    a = Axis("a", z.k - 1)
    return (m,), top(k, x), top(a, read("x", m, a))


# Einsum


def trace_of_transposed(z: Sizes) -> Pair:
    a, b = Axis("a", z.d), Axis("b", z.d)
    left = total(a, total(b, mul(read("x", a, b), read("w", b, a))))
    return (), left, total(a, total(b, mul(read("x", a, b), read("w", a, b))))


def product_of_sums(z: Sizes) -> Pair:
    m, k, _, x, _ = linear(z)
    y = read("y", m, k)
    return (m,), total(k, mul(x, y)), mul(total(k, x), total(k, y))


def diagonal_of_product(z: Sizes) -> Pair:
    a, b = Axis("a", z.d), Axis("b", z.d)
    left = total(b, mul(read("x", a, b), read("w", b, a)))
    return (a,), left, mul(read("x", a, a), read("w", a, a))


def softmax_reassociated(z: Sizes) -> Pair:
    """Linear attention holds without the softmax only."""
    m, j, k, e = Axis("m", z.m), Axis("j", z.j), Axis("k", z.d), Axis("e", z.e)
    q, t, v = read("q", m, k), read("k", j, k), read("v", j, e)
    left = total(j, mul(exp(total(k, mul(q, t))), v))
    return (m, e), left, total(k, mul(exp(q), total(j, mul(exp(t), v))))


# Mixture of experts


def weights_not_renormalised(z: Sizes) -> Pair:
    m, x, _, _, g, _ = experts(z)
    kept = where(less(x, z.h - 1), softmax(x, g), const(0.0))
    return (m, x), div(kept, total(x, kept)), kept


def weight_inside_activation(z: Sizes) -> Pair:
    m, x, f, n, g, h = experts(z)
    w = read("w", x, f, n)
    return (m, n), total(x, mul(g, total(f, mul(silu(h), w)))), total(x, total(f, mul(silu(mul(g, h)), w)))


def top_by_value(z: Sizes) -> Pair:
    """Ties: all experts that reach the maximum, against their mean weight."""
    m, x, _, _, g, _ = experts(z)
    best = where(op("eq", g, top(x, g)), const(1.0), const(0.0))
    return (m,), total(x, best), const(1.0)


def weights_of_another_token(z: Sizes) -> Pair:
    m, x, f = Axis("m", z.h), Axis("x", z.h), Axis("f", z.d)
    h = read("hidden", x, m, f)
    return (m, f), total(x, mul(read("gate", m, x), h)), total(x, mul(read("gate", x, m), h))


FALSE: Mapping[str, Identity] = {
    f.__name__.replace("_", " "): f
    for f in (
        scale_along_k, transposed_weight, bias_before, last_of_k_dropped, packed_columns_swapped, split_k_overlapping,
        eps_outside_root, rms_is_l2, l2_eps_not_scaled, eps_of_another_size, rms_scale_invariant, rms_of_negative,
        unbiased_variance, layernorm_is_rms, mean_not_scaled, norm_over_columns, mean_of_last_dropped,
        softmax_over_rows, shift_along_j, scale_inside_softmax, parts_not_rescaled, denominator_not_rescaled,
        mean_of_part_softmaxes, lse_of_sum, lse_without_max, max_counted_once, lse_merge_swapped,
        gates_exchanged, halves_exchanged, gate_interleaved, gate_of_sum,
        gelu_by_tanh, quick_gelu, silu_is_even, silu_reflected_wrongly, relu_of_negative, sign_of_zero, root_of_square,
        rounded_half,
        rope_other_way, rope_shifted_apart, rope_interleaved_unpermuted, rope_with_gain,
        group_order, first_head_for_all, heads_transposed,
        strict_causal, window_off_by_one, padding_off_by_one, mask_by_zero, alibi_sign, alibi_distance,
        masked_keys_read, causal_from_the_end,
        lora_scale_dropped, zero_point_scaled_twice, group_of_neighbour, group_stride,
        conv_flipped, conv_padded_on_one_side, conv_last_tap_dropped, conv_channels_transposed,
        batchnorm_bias_unscaled, batchnorm_eps_outside,
        concat_order, concat_border, halves_interleaved, max_of_parts_added, last_maximum_dropped,
        trace_of_transposed, product_of_sums, diagonal_of_product, softmax_reassociated,
        weights_not_renormalised, weight_inside_activation, top_by_value, weights_of_another_token,
    )
}  # fmt: skip
