"""Functions of kernel collections, forward and backward, with what the best known algorithm of each moves and computes.

A function says what is computed, operator by operator, as a model's code does; a backward pass is the plain formula of
the gradient, and nothing in either says how to fuse it. Beside it stand formulas in its shapes, each with its source:

    bytes       io is every input read once and every output written once, elements of two bytes as the inputs are; what
                an algorithm moves besides is added
    matrix      operations of matrix products, two a multiply-add
    launches    kernels; the combine of partial sums counts as one

Pointwise work is that of the function as written, each operation once, or prism's where that is less.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prism.bench.suite import Argument, Case, Workload

if TYPE_CHECKING:
    from prism.program.nodes import Program

ARGUMENT = re.compile(r"(\w+):([\w,]+)(\+?)(?:/(\w+)(?:<(\w+))?)?")
EPS = 1e-6
LIGER = "Liger-Kernel"
FLASH = "FlashAttention-2 (Dao 2023)"
LEAST = "lower bound: inputs read once, outputs written once"
LAYERS = "Appleyard et al. 2016: one product for the inputs of all steps, and one launch a step"
STEPS = "4*t*m*g + 2*(t - 1)*m*n"
"""What a recurrent layer moves besides: that product, written and read, and the state before; weights are in caches."""
PARTIAL = 132
"""Programs that carry partial sums in a persistent backward kernel: multiprocessors of an H200."""


@dataclass(frozen=True, slots=True)
class Known:
    """A function and the best known way to compute it.

    Attributes:
        name: as on the command line.
        fn: the torch function.
        arguments: names and dimensions, as `x:m,n g:n`; a type other than bfloat16 after a slash, and what
            is less than a size or a number after that, as `t:m/int64<v`; what is positive has a plus, as `v:m,n+`.
        sizes: of the dimensions.
        matrix: operations of matrix products.
        more: bytes besides io.
        vector: multiply-adds of everything else; where it is empty, what is written, each operator once.
        launches: of the best known algorithm.
        source: where the three are from.
        reason: why prism is more than 1.5 times from it, where it is.
        assume: what is stated of an input, where its meaning says so.
    """

    name: str
    fn: Callable[..., Any]
    arguments: str
    sizes: str
    matrix: str = "0"
    more: str = "0"
    launches: int = 1
    source: str = LEAST
    reason: str = ""
    vector: str = ""
    assume: str = ""

    @property
    def dimensions(self) -> dict[str, int]:
        """The sizes by name."""
        return {k: int(v) for k, v in (part.split("=") for part in self.sizes.split())}

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """The arguments at the sizes; what is positive is drawn around 4."""
        size, made = self.dimensions, []
        for argument in self.arguments.split():
            found = ARGUMENT.fullmatch(argument)
            if found is None:
                raise ValueError(f"{self.name} has the argument {argument}; NAME:SIZES[+][/TYPE[<SIZE]] is one")
            name, shape, positive, dtype, limit = found.groups("")
            dims = tuple(size[d] if d in size else int(d) for d in shape.split(","))
            scale, offset = (0.5, 4.0) if positive else (1.0, 0.0)
            below = size.get(limit) or int(limit or 2 * (dtype == "bool")) or None
            made.append(Argument(name, dims, dtype or "bfloat16", scale, offset, below))
        return tuple(made)

    @property
    def stated(self) -> tuple[str, ...]:
        """What is assumed, as `trace` takes it."""
        return (self.assume,) if self.assume else ()

    def meta(self) -> list[Any]:
        """The arguments without values: only shapes and types matter."""
        import torch

        return [torch.empty(a.shape, dtype=getattr(torch, a.dtype), device="meta") for a in self.inputs]

    def program(self) -> Program:
        """Traced from meta tensors."""
        from prism.api import trace

        return trace(self.fn, self.meta(), name=self.name.replace(" ", "_"), assume=self.stated)

    def case(self) -> Case:
        """It as a case to be timed, beside torch.compile as it is by default."""
        from sympy import sympify

        made = self.fn(*self.meta())
        results = made if isinstance(made, tuple) else (made,)
        outputs = tuple(
            Argument(f"y{n}", tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in enumerate(results)
        )
        flops = float(sympify(self.matrix).subs(self.dimensions))
        workload = Workload(
            self.fn.__name__,
            lambda _: self.inputs,
            lambda _: outputs,
            lambda _: flops,
            {},
            module=__name__,
            mode="default",
            assume=self.stated,
        )
        return Case(self.name, "collection", workload, self.dimensions)


# Norms and rows.


def _mean(x: Any) -> Any:
    return x.mean(-1, keepdim=True)


def _rstd(x: Any) -> Any:
    return (_mean(x * x) + EPS).rsqrt()


def rms_norm(x: Any, g: Any) -> Any:
    """x [m, n], g [n]."""
    return x * _rstd(x) * g


def rms_norm_backward(x: Any, g: Any, dy: Any) -> tuple[Any, Any]:
    """dx and dg."""
    r = _rstd(x)
    h, dh = x * r, dy * g
    return r * (dh - h * _mean(dh * h)), (dy * h).sum(0)


def layer_norm(x: Any, g: Any, b: Any) -> Any:
    """x [m, n], g and b [n]."""
    from torch.nn import functional

    return functional.layer_norm(x, (x.shape[-1],), g, b)


def layer_norm_backward(x: Any, g: Any, dy: Any) -> tuple[Any, Any, Any]:
    """dx, dg and db."""
    c = x - _mean(x)
    r = _rstd(c)
    h, dh = c * r, dy * g
    return r * (dh - _mean(dh) - h * _mean(dh * h)), (dy * h).sum(0), dy.sum(0)


def add_rms_norm(x: Any, residual: Any, g: Any) -> tuple[Any, Any]:
    """The normed sum, and the sum."""
    h = x + residual
    return rms_norm(h, g), h


def add_rms_norm_backward(h: Any, g: Any, dy: Any, ds: Any) -> tuple[Any, Any]:
    """The gradient of both summands, and dg; h is the sum, ds its own gradient."""
    dx, dg = rms_norm_backward(h, g, dy)
    return dx + ds, dg


def dyt(x: Any, a: Any, g: Any, b: Any) -> Any:
    """Dynamic tanh: x [m, n], a [1]."""
    return g * (a * x).tanh() + b


def dyt_backward(x: Any, a: Any, g: Any, dy: Any) -> tuple[Any, Any, Any, Any]:
    """dx, da, dg and db."""
    t = (a * x).tanh()
    inner = dy * g * (1 - t * t)
    return inner * a, (inner * x).sum(), (dy * t).sum(0), dy.sum(0)


def poly_norm(x: Any, w: Any, b: Any) -> Any:
    """Normed powers of x [m, n], weighted by w [3]."""

    def norm(p: Any) -> Any:
        return p * _rstd(p)

    return w[0] * norm(x**3) + w[1] * norm(x**2) + w[2] * norm(x) + b


def poly_norm_backward(x: Any, w: Any, dy: Any) -> tuple[Any, Any, Any]:
    """dx, dw and db."""
    import torch

    def back(p: Any, g: Any) -> tuple[Any, Any]:
        r = _rstd(p)
        h = p * r
        return r * (g - h * _mean(g * h)), (dy * h).sum()

    (d3, w3), (d2, w2), (d1, w1) = (back(x ** (3 - n), dy * w[n]) for n in range(3))
    return d3 * 3 * x * x + d2 * 2 * x + d1, torch.stack((w3, w2, w1)), dy.sum()


def group_norm(x: Any, g: Any, b: Any) -> Any:
    """x [n, c, s] in 32 groups of channels."""
    from torch.nn import functional

    return functional.group_norm(x, 32, g, b)


def group_norm_backward(x: Any, g: Any, dy: Any) -> tuple[Any, Any, Any]:
    """x and dy [n, groups, c, s], g [groups, c]."""
    over = (2, 3)
    c = x - x.mean(over, keepdim=True)
    h = c * ((c * c).mean(over, keepdim=True) + EPS).rsqrt()
    r = ((c * c).mean(over, keepdim=True) + EPS).rsqrt()
    dh = dy * g[None, :, :, None]
    dx = r * (dh - dh.mean(over, keepdim=True) - h * (dh * h).mean(over, keepdim=True))
    return dx, (dy * h).sum((0, 3)), dy.sum((0, 3))


def variance(x: Any) -> tuple[Any, Any]:
    """Variance and mean of rows that fit on no chip."""
    return x.var(-1, correction=0), x.mean(-1)


def standard_deviation(x: Any) -> Any:
    """Of all elements."""
    return x.std()


def batch_norm_training(x: Any, g: Any, b: Any) -> Any:
    """x [n, c, s]."""
    from torch.nn import functional

    return functional.batch_norm(x, None, None, g, b, training=True)


def softmax(x: Any) -> Any:
    """Over the last dimension."""
    return x.softmax(-1)


def softmax_backward(p: Any, dp: Any) -> Any:
    """From what softmax gave."""
    return p * (dp - (dp * p).sum(-1, keepdim=True))


def log_softmax(x: Any) -> Any:
    """Over the last dimension."""
    return x.log_softmax(-1)


def logsumexp(x: Any) -> Any:
    """Over the last dimension."""
    return x.logsumexp(-1)


def cosine_similarity(x: Any, y: Any) -> Any:
    """By rows."""
    return (x * y).sum(-1) * (x * x).sum(-1).rsqrt() * (y * y).sum(-1).rsqrt()


def ngpt_residual(h: Any, block: Any, alpha: Any) -> Any:
    """A step from one point of the sphere towards another, and back onto it."""

    def onto_sphere(x: Any) -> Any:
        return x * (x * x).sum(-1, keepdim=True).rsqrt()

    return onto_sphere(h + alpha * (onto_sphere(block) - h))


# Activations.


def _silu_slope(a: Any) -> Any:
    s = a.sigmoid()
    return s * (1 + a * (1 - s))


def _gelu_slope(a: Any) -> Any:
    c = 0.7978845608028654
    t = (c * (a + 0.044715 * a * a * a)).tanh()
    return 0.5 * (1 + t) + 0.5 * a * (1 - t * t) * c * (1 + 3 * 0.044715 * a * a)


def swiglu(a: Any, b: Any) -> Any:
    """silu(a) b."""
    from torch.nn import functional

    return functional.silu(a) * b


def swiglu_backward(a: Any, b: Any, dy: Any) -> tuple[Any, Any]:
    """da and db."""
    return dy * b * _silu_slope(a), dy * a * a.sigmoid()


def geglu(a: Any, b: Any) -> Any:
    """gelu(a) b."""
    from torch.nn import functional

    return functional.gelu(a, approximate="tanh") * b


def geglu_backward(a: Any, b: Any, dy: Any) -> tuple[Any, Any]:
    """da and db."""
    from torch.nn import functional

    return dy * b * _gelu_slope(a), dy * functional.gelu(a, approximate="tanh")


def relu_squared(x: Any) -> Any:
    """As in Primer."""
    return x.relu() ** 2


def _rotate(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def rope(q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    """Queries and keys rotated: q and k [b, h, s, d], cos and sin [s, d]."""
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def rope_backward(dq: Any, dk: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    """The rotation back."""
    return rope(dq, dk, cos, -sin)


# Losses.


def _hit(x: Any, t: Any) -> Any:
    import torch

    return (torch.arange(x.shape[-1], device=x.device) == t[:, None]).to(x.dtype)


def cross_entropy(x: Any, t: Any) -> Any:
    """x [m, v], t [m]."""
    from torch.nn import functional

    return functional.cross_entropy(x, t)


def cross_entropy_both(x: Any, t: Any) -> tuple[Any, Any]:
    """The loss of each row and the gradient of the logits."""
    hit = _hit(x, t)
    return x.logsumexp(-1) - (x * hit).sum(-1), (x.softmax(-1) - hit) / x.shape[0]


def linear_cross_entropy(x: Any, w: Any, t: Any) -> Any:
    """x [m, k], w [v, k], t [m]."""
    from torch.nn import functional

    return functional.cross_entropy(x @ w.T, t, reduction="none")


def linear_cross_entropy_backward(x: Any, w: Any, t: Any) -> tuple[Any, Any]:
    """dx and dw."""
    logits = x @ w.T
    d = (logits.softmax(-1) - _hit(logits, t)) / x.shape[0]
    return d @ w, d.T @ x


def kl(p: Any, logq: Any) -> Any:
    """By rows, of probabilities against logarithms."""
    return (p * (p.log() - logq)).sum(-1)


def kl_backward(p: Any) -> Any:
    """Of the logarithms."""
    return p * (-1.0 / p.shape[0])


def jsd(logp: Any, logq: Any) -> tuple[Any, Any]:
    """The loss of each row and the gradient of logp."""
    p, q = logp.exp(), logq.exp()
    m = (0.5 * (p + q)).log()
    return (0.5 * (p * (logp - m) + q * (logq - m))).sum(-1), 0.5 * p * (logp - m) / logp.shape[0]


def tvd(p: Any, q: Any) -> Any:
    """By rows."""
    return 0.5 * (p - q).abs().sum(-1)


# Attention.


def _scores(q: Any, k: Any) -> Any:
    return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5


def _later(q: Any, k: Any) -> Any:
    import torch

    keys, queries = (torch.arange(x.shape[-2], device=x.device) for x in (k, q))
    return keys - queries[:, None]


def attention(q: Any, k: Any, v: Any) -> Any:
    """q, k and v [h, s, d]."""
    return _scores(q, k).softmax(-1) @ v


def causal(q: Any, k: Any, v: Any) -> Any:
    """Causal attention."""
    return _scores(q, k).masked_fill(_later(q, k) > 0, float("-inf")).softmax(-1) @ v


def causal_finite(q: Any, k: Any, v: Any) -> Any:
    """Causal attention, masked by a large number."""
    return _scores(q, k).masked_fill(_later(q, k) > 0, -1e30).softmax(-1) @ v


def gqa(q: Any, k: Any, v: Any) -> Any:
    """q [kv, g, s, d], k and v [kv, s, d]; causal."""
    k, v = k[:, None], v[:, None]
    return causal(q, k, v)


def sliding(q: Any, k: Any, v: Any) -> Any:
    """The last 1024 keys."""
    import torch

    d = _later(q, k)
    return _scores(q, k).masked_fill(torch.logical_or(d > 0, d <= -1024), float("-inf")).softmax(-1) @ v


def alibi(q: Any, k: Any, v: Any, slope: Any) -> Any:
    """slope [h]."""
    d = _later(q, k)
    return (_scores(q, k) + slope[:, None, None] * d).masked_fill(d > 0, float("-inf")).softmax(-1) @ v


def softcap(q: Any, k: Any, v: Any) -> Any:
    """Gemma 2's: scores within 50."""
    return (50 * (_scores(q, k) / 50).tanh()).softmax(-1) @ v


def qk_norm_attention(q: Any, k: Any, v: Any) -> Any:
    """Normed queries and keys."""
    return attention(q * _rstd(q), k * _rstd(k), v)


def attention_backward(q: Any, k: Any, v: Any, do: Any) -> tuple[Any, Any, Any]:
    """dq, dk and dv."""
    p = _scores(q, k).softmax(-1)
    dp = do @ v.transpose(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
    return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ do


def differential(q1: Any, k1: Any, q2: Any, k2: Any, v: Any, scale: Any) -> Any:
    """The difference of two attentions over the same values; scale [1]."""
    return (_scores(q1, k1).softmax(-1) - scale * _scores(q2, k2).softmax(-1)) @ v


def mla_decode(q: Any, qr: Any, c: Any, kr: Any) -> Any:
    """Absorbed: q [b, h, r], qr [b, h, p] over the cache c [b, s, r], kr [b, s, p]."""
    scores = (q @ c.transpose(-1, -2) + qr @ kr.transpose(-1, -2)) * 0.07
    return scores.softmax(-1) @ c


def mla_decode_written(q: Any, qr: Any, wk: Any, wv: Any, c: Any, kr: Any) -> Any:
    """With both projections: q [b, h, e], wk and wv [h, e, r]; the output [b, h, e]."""
    import torch

    own = torch.einsum("bhe,her->bhr", q, wk)
    return torch.einsum("bhr,her->bhe", mla_decode(own, qr, c, kr), wv)


def linear_attention(q: Any, k: Any, v: Any) -> Any:
    """Causal, quadratic as written: q, k, v [h, s, d]."""
    return (q @ k.transpose(-1, -2)).tril() @ v


def decays(a: Any) -> Any:
    """exp of what a [h, s] sums to after j up to i; 0 where j is after i."""
    import torch

    total = a.float().cumsum(-1)
    after = torch.ones(a.shape[-1], a.shape[-1], dtype=torch.bool, device=a.device).triu(1)
    return (total[:, :, None] - total[:, None, :]).masked_fill(after, float("-inf")).exp()


def gated_linear_attention(q: Any, k: Any, v: Any, a: Any) -> Any:
    """A gate per head and row, quadratic as written: q, k, v [h, s, d], a [h, s], logarithms of the gates."""
    return (q @ k.transpose(-1, -2) * decays(a)).to(q.dtype) @ v


def channel_gated_linear_attention(q: Any, k: Any, v: Any, g: Any) -> Any:
    """A gate per channel, its products as factors that grow: q, k, v, g [h, s, d], g the logarithms of the gates."""
    total = g.float().cumsum(-2)
    return ((q * total.exp()) @ (k * (-total).exp()).transpose(-1, -2)).tril().to(q.dtype) @ v


def retention(q: Any, k: Any, v: Any) -> Any:
    """A constant decay per head, quadratic as written: q, k, v [h, s, d]."""
    import torch

    heads, places = (torch.arange(n, device=q.device) for n in q.shape[:2])
    decay = torch.log1p(-torch.exp2(-5.0 - heads.float()))
    steps = (places[:, None] - places[None]).float()
    weights = torch.where(steps >= 0, torch.exp(steps * decay[:, None, None]), 0.0)
    return (q @ k.transpose(-1, -2) * weights).to(q.dtype) @ v


def state_space(x: Any, a: Any, b: Any, c: Any) -> Any:
    """Mamba-2's quadratic form: x [h, s, d], a [h, s], b, c [s, n] of all heads."""
    return ((c @ b.transpose(0, 1)) * decays(a)).to(x.dtype) @ x


# Products and what is around them.


def gelu_linear(x: Any, w: Any, b: Any) -> Any:
    """x [m, k], w [n, k]."""
    from torch.nn import functional

    return functional.gelu(functional.linear(x, w, b), approximate="tanh")


def gelu_linear_backward(x: Any, w: Any, b: Any, dy: Any) -> tuple[Any, Any, Any]:
    """dx, dw and db."""
    d = dy * _gelu_slope(x @ w.T + b)
    return d @ w, d.T @ x, d.sum(0)


def gated_mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """x [m, k], gate and up [k, n], down [n, k]."""
    return swiglu(x @ gate, x @ up) @ down


def norm_qkv(x: Any, g: Any, wq: Any, wk: Any, wv: Any) -> tuple[Any, Any, Any]:
    """One norm, three projections."""
    h = rms_norm(x, g)
    return h @ wq, h @ wk, h @ wv


def norm_linear(x: Any, g: Any, w: Any) -> Any:
    """RMSNorm, Linear."""
    return rms_norm(x, g) @ w


def lora(x: Any, w: Any, a: Any, b: Any) -> Any:
    """A Linear with a low-rank correction."""
    return x @ w + (x @ a) @ b


def moe(x: Any, route: Any, w1: Any, w2: Any) -> Any:
    """Dense: x [m, k], route [m, e], w1 [e, k, n], w2 [e, n, k]."""
    import torch

    h = torch.einsum("mk,ekn->emn", x, w1).relu()
    return torch.einsum("emn,enk,me->mk", h, w2, route)


def int8_linear(x: Any, w: Any, scale: Any) -> Any:
    """x [m, k], w [n, k] int8, scale [n]."""
    return (x @ w.to(x.dtype).T) * scale


def dynamic_int8_linear(x: Any, w: Any, scale: Any) -> Any:
    """Rows of x [m, k] made codes of 8 bits: w [n, k] int8, scale [n]."""
    own = x.abs().amax(-1, keepdim=True) / 127
    return ((x / own).round().clamp(-127, 127) @ w.to(x.dtype).T) * own * scale


def int4_linear(x: Any, w: Any, scale: Any, zero: Any) -> Any:
    """x [m, k], w [n, k / 2] uint8 with two codes each; scale and zero [n, k / 128]."""
    import torch

    n, groups = scale.shape
    codes = torch.stack((w & 15, w >> 4), -1).reshape(n, groups, -1).to(x.dtype)
    return x @ ((codes - zero[..., None]) * scale[..., None]).reshape(n, -1).T


def mbconv(x: Any, w1: Any, wd: Any, w2: Any) -> Any:
    """Expansion, depthwise 3 x 3, projection: x [n, c, h, w]."""
    from torch.nn import functional

    h = functional.silu(functional.conv2d(x, w1))
    h = functional.silu(functional.conv2d(h, wd, padding=1, groups=wd.shape[0]))
    return functional.conv2d(h, w2)


def conv_group_norm(x: Any, w: Any, g: Any, b: Any) -> Any:
    """3 x 3 convolution, then GroupNorm of 8 groups."""
    from torch.nn import functional

    return functional.group_norm(functional.conv2d(x, w, padding=1), 8, g, b)


def mean_of_full_convolution(x: Any, w: Any) -> Any:
    """3 x 3 convolution of an image with two places more on each side, then the mean of each channel."""
    from torch.nn import functional

    return functional.conv2d(x, w, padding=2).mean((-1, -2))


def causal_conv_backward(x: Any, w: Any, dy: Any) -> tuple[Any, Any]:
    """dx and dw of silu(depthwise causal convolution): x and dy [b, c, s], w [c, taps]."""
    import torch
    from torch.nn import functional

    (c, taps), s = w.shape, x.shape[-1]
    padded = functional.pad(x, (taps - 1, 0))
    d = dy * _silu_slope(functional.conv1d(padded, w[:, None], groups=c))
    dx = functional.conv1d(functional.pad(d, (0, taps - 1)), w.flip(1)[:, None], groups=c)
    return dx, torch.stack([(d * padded[..., i : i + s]).sum((0, 2)) for i in range(taps)], -1)


# Algebra.


def stacked(a: Any) -> Any:
    """A row at a time."""
    import torch
    from torch.nn import functional

    return torch.stack([functional.gelu(a[i], approximate="tanh") for i in range(a.shape[0])])


def clamped(x: Any) -> Any:
    """Between bounds that cross: a constant."""
    return x.clamp(min=2.0).clamp(max=1.0)


def powers(x: Any) -> Any:
    """A quotient of powers."""
    return x**6 + x**4


def common_factor(a: Any, b: Any, c: Any) -> Any:
    """A sum of products with one factor."""
    return a * b + c * b


def added_up(a: Any) -> Any:
    """Five times itself."""
    return a + a + a + a + a


# Losses, cells and masks that the search was tried on by strangers to it.


def info_nce(a: Any, b: Any) -> Any:
    """Contrastive loss of a and b [m, d], one way: scores are never needed in memory."""
    import torch

    scores = (a @ b.T) * 20.0
    return (torch.logsumexp(scores, 1) - torch.diagonal(scores)).mean()


def z_loss(x: Any, t: Any) -> Any:
    """Cross-entropy with a penalty on the logarithm of its normaliser."""
    import torch

    z = torch.logsumexp(x, -1)
    return (z - x.gather(1, t[:, None])[:, 0] + 1e-4 * z * z).mean()


def smoothed_cross_entropy(x: Any, t: Any) -> Any:
    """Cross-entropy with labels smoothed by a tenth."""
    logs = x.log_softmax(-1)
    return -(0.9 * logs.gather(1, t[:, None])[:, 0] + 0.1 * logs.mean(-1)).mean()


def grpo(new: Any, old: Any, ref: Any, advantage: Any, mask: Any) -> Any:
    """Clipped policy loss with a penalty, a mean over tokens and then over rows: all but advantage [m] are [m, n]."""
    import torch

    ratio, by = torch.exp(new - old), advantage[:, None]
    gain = torch.minimum(ratio * by, ratio.clamp(0.8, 1.2) * by)
    penalty = torch.exp(ref - new) - (ref - new) - 1
    return (((0.04 * penalty - gain) * mask).sum(1) / mask.sum(1)).mean()


def gated_rms_norm_backward(x: Any, z: Any, g: Any, dy: Any) -> tuple[Any, Any, Any]:
    """dx, dz and dg of RMSNorm(x * silu(z)) * g, of as many rows as columns."""
    s = z.sigmoid()
    a = z * s
    dx, dg = rms_norm_backward(x * a, g, dy)
    return dx * a, dx * x * (s + a * (1 - s)), dg


def adaptive_layer_norm(x: Any, shift: Any, scale: Any, gate: Any, residual: Any) -> Any:
    """x and residual [b, s, n], the rest [b, n]."""
    from torch.nn import functional

    h = functional.layer_norm(x, (x.shape[-1],))
    return residual + gate[:, None] * (h * (1 + scale[:, None]) + shift[:, None])


def two_temperatures(x: Any) -> Any:
    """Softmax at one temperature and at twice that."""
    return (x / 0.7).softmax(-1) + 0.1 * (x / 1.4).softmax(-1)


def _seen(scores: Any, allowed: Callable[[Any, Any], Any]) -> Any:
    """Scores, where the row i may see the key j; elsewhere -inf."""
    import torch

    i = torch.arange(scores.shape[-1], device=scores.device)
    return scores.masked_fill(~allowed(i[:, None], i[None]), -torch.inf)


def sink_attention(q: Any, k: Any, v: Any, sink: Any) -> Any:
    """Causal, with a score [h] appended that no value belongs to; masked by the least number, as transformers does."""
    import torch

    scores = _scores(q, k)
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    column = sink[:, None, None].expand(*scores.shape[:2], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1] @ v


def sink_as_a_term(q: Any, k: Any, v: Any, sink: Any) -> Any:
    """The same with the sink as a term of the sum."""
    import torch

    scores = _seen(_scores(q, k), lambda i, j: j <= i)
    top = torch.maximum(scores.amax(-1, keepdim=True), sink[:, None, None])
    e = torch.exp(scores - top)
    return (e / (e.sum(-1, keepdim=True) + torch.exp(sink[:, None, None] - top))) @ v


def neighbourhood_attention(q: Any, k: Any, v: Any) -> Any:
    """Keys no further than 256 from the row, on both sides."""
    return _seen(_scores(q, k), lambda i, j: (i - j).abs() <= 256).softmax(-1) @ v


def prefix_attention(q: Any, k: Any, v: Any) -> Any:
    """Causal, but for the first 512 keys, which all see."""
    return _seen(_scores(q, k), lambda i, j: (j <= i) | (j < 512)).softmax(-1) @ v


def lstm_cell(x: Any, h: Any, c: Any, w: Any, u: Any, b: Any) -> tuple[Any, Any]:
    """One step: x [m, k], h and c [m, n], w [k, 4n], u [n, 4n]."""
    i, f, o, n = (x @ w + h @ u + b).chunk(4, -1)
    state = f.sigmoid() * c + i.sigmoid() * n.tanh()
    return o.sigmoid() * state.tanh(), state


def gru_cell(x: Any, h: Any, w: Any, u: Any, b: Any, c: Any) -> Any:
    """One step: x [m, k], h [m, n], w [k, 3n], u [n, 3n]."""
    (r, z, n), (rh, zh, nh) = (x @ w + b).chunk(3, -1), (h @ u + c).chunk(3, -1)
    z = (z + zh).sigmoid()
    return (1 - z) * (n + (r + rh).sigmoid() * nh).tanh() + z * h


def lstm_layer(x: Any, h: Any, c: Any, w: Any, u: Any, b: Any, d: Any) -> tuple[Any, ...]:
    """All steps: x [t, m, k], h and c [1, m, n], w [4n, k], u [4n, n]."""
    import torch

    return tuple(torch.lstm(x, (h, c), (w, u, b, d), True, 1, 0.0, False, False, False))


def gru_layer(x: Any, h: Any, w: Any, u: Any, b: Any, d: Any) -> tuple[Any, ...]:
    """All steps: x [t, m, k], h [1, m, n], w [3n, k], u [3n, n]."""
    import torch

    return tuple(torch.gru(x, h, (w, u, b, d), True, 1, 0.0, False, False, False))


def adafactor(p: Any, g: Any) -> tuple[Any, Any, Any]:
    """A factored step, its update clipped by its root mean square: p and g [m, n]; and the rows' and columns' means."""
    squares = g * g + 1e-30
    rows, columns = squares.mean(1), squares.mean(0)
    update = g * (rows / rows.mean()).rsqrt()[:, None] * columns.rsqrt()
    return p - 0.01 * update / update.square().mean().sqrt().clamp(min=1.0), rows, columns


def squeeze_excite(x: Any, w1: Any, w2: Any) -> Any:
    """x [b, c, s, s] times a gate of each channel, made of its mean."""
    gate = ((x.mean((-1, -2)) @ w1).relu() @ w2).sigmoid()
    return x * gate[:, :, None, None]


def convnext(x: Any, wd: Any, bd: Any, g: Any, b: Any, w1: Any, b1: Any, w2: Any, b2: Any, scale: Any) -> Any:
    """Depthwise 7 x 7, LayerNorm over channels, two products, residual: x [b, c, s, s]."""
    from torch.nn import functional

    h = functional.conv2d(x, wd, bd, padding=3, groups=x.shape[1]).permute(0, 2, 3, 1)
    h = functional.gelu(functional.layer_norm(h, (h.shape[-1],), g, b) @ w1 + b1) @ w2 + b2
    return x + (scale * h).permute(0, 3, 1, 2)


# A fourth round, of which each told something that the others had not.


def kl_logits(a: Any, b: Any) -> Any:
    """Of two tensors of logits, by rows, as distillation has it."""
    from torch.nn import functional

    return functional.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="none").sum(-1)


def focal_cross_entropy(x: Any, t: Any) -> Any:
    """x [m, v], t [m]: by rows, weighed by the square of what the label's probability lacks."""
    logs = x.log_softmax(-1).gather(1, t[:, None])[:, 0]
    return -((1 - logs.exp()) ** 2) * logs


def causal_backward(q: Any, k: Any, v: Any, do: Any) -> tuple[Any, Any, Any]:
    """dq, dk and dv of causal attention."""
    p = _scores(q, k).masked_fill(_later(q, k) > 0, float("-inf")).softmax(-1)
    dp = do @ v.transpose(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
    return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ do


def half_reduced(x: Any, w: Any) -> tuple[Any, Any]:
    """A product, and squares of the first half of its columns summed up."""
    y = x @ w
    return y, y.chunk(2, -1)[0].square().sum(-1)


def normalised_linear_attention(q: Any, k: Any, v: Any) -> Any:
    """Not causal, of features elu + 1: q, k, v [h, s, d]."""
    from torch.nn import functional

    a, b = functional.elu(q) + 1, functional.elu(k) + 1
    return (a @ (b.transpose(-1, -2) @ v)) / (a @ b.sum(-2, keepdim=True).transpose(-1, -2))


def norm_qkv_rope(x: Any, g: Any, wq: Any, wk: Any, wv: Any, cos: Any, sin: Any) -> tuple[Any, Any, Any]:
    """One norm, three projections, of which heads of two are rotated: cos and sin [m, 128]."""
    h = rms_norm(x, g)
    q, k = ((h @ w).reshape(x.shape[0], -1, cos.shape[-1]).transpose(0, 1) for w in (wq, wk))
    return _rotate(q, cos, sin), _rotate(k, cos, sin), h @ wv


def odds_ratio_loss(chosen: Any, rejected: Any, t: Any, u: Any) -> Any:
    """ORPO's: chosen and rejected logits [b, s, v], their labels [b, s]; means of log-probabilities, odds, a mean."""
    import torch
    from torch.nn import functional

    def mean_log(x: Any, labels: Any) -> Any:
        return x.log_softmax(-1).gather(-1, labels[..., None])[..., 0].mean(-1)

    a, b = mean_log(chosen, t), mean_log(rejected, u)
    odds = (a - b) - (torch.log1p(-a.exp()) - torch.log1p(-b.exp()))
    return -functional.logsigmoid(odds).mean()


# An eighth round: what a stranger wrote of the collections, of which each told something that the others had not.


def instance_norm_backward(x: Any, g: Any, dy: Any) -> tuple[Any, Any, Any]:
    """dx, dg and db: x and dy [n, c, s], g [c]."""
    c = x - _mean(x)
    r = _rstd(c)
    h, dh = c * r, dy * g[:, None]
    return r * (dh - _mean(dh) - h * _mean(dh * h)), (dy * h).sum((0, 2)), dy.sum((0, 2))


def group_norm_silu_backward(x: Any, g: Any, b: Any, dy: Any) -> tuple[Any, Any, Any]:
    """dx, dg and db of silu(GroupNorm(x)): x and dy [n, groups, c, s], g and b [groups, c]."""
    over, (g, b) = (2, 3), (p[None, :, :, None] for p in (g, b))
    c = x - x.mean(over, keepdim=True)
    r = ((c * c).mean(over, keepdim=True) + EPS).rsqrt()
    h = c * r
    da = dy * _silu_slope(h * g + b)
    dh = da * g
    dx = r * (dh - dh.mean(over, keepdim=True) - h * (dh * h).mean(over, keepdim=True))
    return dx, (da * h).sum((0, 3)), da.sum((0, 3))


def upsampled(x: Any) -> Any:
    """Twice as high and as wide, bilinear: x [n, c, h, w]."""
    from torch.nn import functional

    return functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def upsampled_backward(dy: Any) -> Any:
    """dy [n, c, 2 h, 2 w]."""
    import torch

    x = dy.new_zeros(*dy.shape[:2], dy.shape[2] // 2, dy.shape[3] // 2).requires_grad_()
    return torch.autograd.grad(upsampled(x), x, dy)[0]


def largest_backward(x: Any, dy: Any) -> Any:
    """Of windows of 3 by 3 that overlap, as where a ResNet begins: x [n, c, h, w], dy [n, c, h/2, w/2]."""
    import torch
    from torch.nn import functional

    x = x.detach().requires_grad_()
    return torch.autograd.grad(functional.max_pool2d(x, 3, 2, 1), x, dy)[0]


def average_backward(dy: Any) -> Any:
    """Of windows of 3 by 3 that overlap, dy [n, c, h, w]."""
    import torch
    from torch.nn import functional

    x = dy.new_zeros(*dy.shape[:2], 2 * dy.shape[2], 2 * dy.shape[3]).requires_grad_()
    return torch.autograd.grad(functional.avg_pool2d(x, 3, 2, 1), x, dy)[0]


def clip_loss(a: Any, b: Any) -> Any:
    """Both ways: images a and texts b [m, d]."""
    import torch

    scores = (a @ b.T) * 14.3
    own = torch.diagonal(scores)
    return 0.5 * ((scores.logsumexp(1) - own).mean() + (scores.logsumexp(0) - own).mean())


def barlow_twins(a: Any, b: Any) -> Any:
    """Of two views' features [m, d]: their correlations against the unit matrix."""
    import torch

    def normed(z: Any) -> Any:
        c = z - z.mean(0)
        return c * ((c * c).mean(0) + EPS).rsqrt()

    c = normed(a).T @ normed(b) / a.shape[0]
    one = torch.eye(c.shape[0], dtype=c.dtype, device=c.device)
    return ((c - one).square() * (one + 0.005 * (1 - one))).sum()


def windows(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """Swin's, in windows of 8 x 8: [b, y, x, h, d] each, bias [h, 64, 64]."""
    b, y, x, h, d = q.shape

    def cut(z: Any) -> Any:
        z = z.reshape(b, y // 8, 8, x // 8, 8, h, d).permute(0, 1, 3, 5, 2, 4, 6)
        return z.reshape(b, y // 8, x // 8, h, 64, d)

    o = (cut(q) @ cut(k).transpose(-1, -2) * d**-0.5 + bias).softmax(-1) @ cut(v)
    return o.reshape(b, y // 8, x // 8, h, 8, 8, d).permute(0, 1, 4, 2, 5, 3, 6).reshape(b, y, x, h, d)


def paged_prefill(q: Any, keys: Any, values: Any, pages: Any, start: Any) -> Any:
    """Rows from start [1] on: q [s, h, d], caches [p, 16, h, d], whose pages are looked up [n]."""
    import torch

    k, v = keys[pages].flatten(0, 1), values[pages].flatten(0, 1)
    s = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
    i, j = (torch.arange(n, device=q.device) for n in s.shape[1:])
    s = s.masked_fill(j > i[:, None] + start, float("-inf"))
    return torch.einsum("hij,jhd->ihd", s.softmax(-1), v)


def gated_linear_attention_backward(q: Any, k: Any, v: Any, a: Any, do: Any) -> tuple[Any, Any, Any]:
    """dq, dk and dv of linear attention with a gate per head and row."""
    gates = decays(a)
    dp = (do @ v.transpose(-1, -2) * gates).to(q.dtype)
    p = (q @ k.transpose(-1, -2) * gates).to(q.dtype)
    return dp @ k, dp.transpose(-1, -2) @ q, p.transpose(-1, -2) @ do


def eight_bit_adam(p: Any, g: Any, m: Any, a: Any, v: Any, c: Any) -> tuple[Any, ...]:
    """p and g [m, b, 256], moments as codes of 8 bits with a scale for 256 each [m, b]."""
    import torch

    first = 0.9 * m.float() * a[..., None] + 0.1 * g.float()
    second = 0.999 * v.float() * c[..., None] + 0.001 * g.float() * g.float()
    step = 1e-3 * first / (second.sqrt() + 1e-8)
    a, c = first.abs().amax(-1) / 127, second.amax(-1) / 255
    codes = torch.round(first / a.clamp(min=1e-12)[..., None]).clamp(-127, 127).to(torch.int8)
    squares = torch.round(second / c.clamp(min=1e-12)[..., None]).clamp(0, 255).to(torch.uint8)
    return (p - step).to(p.dtype), codes, a, squares, c


def groups_quantised(x: Any, r: Any, g: Any) -> tuple[Any, Any, Any]:
    """The sum and its norm, of which groups of 128 are in 8 bits, with their scales."""
    import torch

    h = x + r
    wide = h.float()
    y = (wide * _rstd(wide) * g).reshape(*x.shape[:-1], -1, 128)
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 127
    return h, (y / s).round().clamp(-127, 127).to(torch.int8), s[..., 0]


def convolution_silu_gradient(x: Any, w: Any, dy: Any) -> tuple[Any, ...]:
    """dx and dw of a causal convolution of channels and its SiLU, by torch: x, dy [b, c, s], w [c, 1, 4]."""
    import torch
    from torch.nn import functional as F

    given = [t.detach().requires_grad_() for t in (x, w)]
    with torch.enable_grad():
        y = F.silu(F.conv1d(F.pad(given[0], (3, 0)), given[1], groups=x.shape[1]))
        return torch.autograd.grad(y, given, dy)


def shared_prefix(q: Any, k: Any, v: Any, m: Any, w: Any) -> Any:
    """Queries over keys that a batch shares and keys of each, one softmax: q [b, h, t, d], k [1, h, s, d]."""
    import torch

    scores = torch.cat([q @ k.transpose(-1, -2), q @ m.transpose(-1, -2)], -1) * q.shape[-1] ** -0.5
    shares = scores.softmax(-1)
    return shares[..., : k.shape[-2]] @ v + shares[..., k.shape[-2] :] @ w


def min_p_sampled(x: Any, u: Any) -> Any:
    """A token of those at least a tenth as likely as the likeliest, by Gumbel noise u."""
    import torch

    p = x.softmax(-1)
    return (torch.where(p >= 0.1 * p.amax(-1, keepdim=True), p.log(), -1e30) + u).argmax(-1)


def latent_cache_line(c: Any, k: Any, g: Any, cos: Any, sin: Any) -> Any:
    """A normed latent [m, r] and rotated keys [m, e], side by side."""
    import torch

    a, b = k.chunk(2, -1)
    return torch.cat([c * _rstd(c) * g, a * cos - b * sin, b * cos + a * sin], -1)


def multi_token_scores(x: Any, w: Any) -> Any:
    """Causal scores, convolved over queries and keys, and their softmax."""
    import torch
    import torch.nn.functional as F

    i = torch.arange(x.shape[-1], device=x.device)
    seen = i[:, None] >= i
    c = F.conv2d(torch.where(seen, x, 0.0)[None], w, padding=1, groups=x.shape[0])[0]
    return torch.softmax(torch.where(seen, c, float("-inf")).float(), -1).to(x.dtype)


def bilateral(x: Any) -> Any:
    """A window of 5 by 5, weighted by what is between places and between their values."""
    import torch
    import torch.nn.functional as F

    p = F.pad(x[:, None], (2, 2, 2, 2), mode="reflect")[:, 0]
    total = weights = torch.zeros_like(x)
    for i in range(5):
        for j in range(5):
            t = p[:, i : i + x.shape[1], j : j + x.shape[2]]
            w = torch.exp(-50 * (t - x) ** 2 - ((i - 2) ** 2 + (j - 2) ** 2) / 8)
            total, weights = total + w * t, weights + w
    return total / weights


def mixture_responsibilities(x: Any, m: Any, v: Any, p: Any) -> tuple[Any, Any]:
    """Of a mixture of Gaussians with variances by dimension: what each has of each point, and its log-likelihood."""
    import torch

    x, m, v = x.float(), m.float(), v.float()
    q = (x * x) @ (1 / v).T - 2 * (x @ (m / v).T) + (m * m / v).sum(-1)
    joint = p - 0.5 * (q + v.log().sum(-1) + x.shape[-1] * math.log(2 * math.pi))
    z = torch.logsumexp(joint, -1, keepdim=True)
    return (joint - z).exp(), z[:, 0]


def kalman_update(x: Any, p: Any, h: Any, r: Any, z: Any) -> tuple[Any, Any]:
    """Two measurements of states of four, in batches."""
    import torch

    ph = torch.einsum("mij,kj->mik", p, h)
    s = torch.einsum("ki,mil->mkl", h, ph) + r
    a, b, c, d = s[:, 0, 0], s[:, 0, 1], s[:, 1, 0], s[:, 1, 1]
    rows = torch.stack((d, -b), -1), torch.stack((-c, a), -1)
    gain = torch.einsum("mik,mkl->mil", ph, torch.stack(rows, -2) / (a * d - b * c)[:, None, None])
    return x + torch.einsum("mik,mk->mi", gain, z - x @ h.T), p - torch.einsum("mik,mjk->mij", gain, ph)


_ROWS = "m=4096 n=2048"


def layer_norm_linear_kept(x: Any, g: Any, b: Any, w: Any) -> tuple[Any, Any, Any]:
    """LayerNorm, Linear; and the mean and the reciprocal deviation of each row."""
    import torch

    mean = x.mean(-1, keepdim=True)
    scale = torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + EPS)
    return ((x - mean) * scale * g + b) @ w, mean, scale


def state_and_sum(k: Any, v: Any) -> tuple[Any, Any]:
    """What linear attention keeps of keys and values: k, v [h, s, d]."""
    return k.transpose(-1, -2) @ v, k.sum(-2)


# A fifth round: policies, codes, samplers and rays.


def ppo(x: Any, old: Any, action: Any, advantage: Any) -> Any:
    """Clipped policy loss with a bonus for entropy: logits x [m, v], the rest [m]."""
    import torch

    logs = x.log_softmax(-1)
    entropy = -(logs.exp() * logs).sum(-1)
    ratio = (logs.gather(-1, action[:, None])[:, 0] - old).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return -gain.mean() - 0.01 * entropy.mean()


def block_scaled_linear(x: Any, w: Any, s: Any, t: Any) -> Any:
    """x [m, k] with a scale for 128 elements of a row, w [n, k] with one for a block of 128 x 128."""
    (m, k), n = x.shape, w.shape[0]
    scaled = x.reshape(m, -1, 128).float() * s[..., None]
    weight = w.reshape(n // 128, 128, -1, 128).float() * t[:, None, :, None]
    return scaled.reshape(m, k) @ weight.reshape(n, k).T


def swiglu_quantised(a: Any, b: Any) -> tuple[Any, Any]:
    """Codes of 8 bits of silu(a) b, and each row's scale."""
    y = swiglu(a, b)
    scale = y.abs().amax(-1, keepdim=True) / 127
    return (y / scale).round().clamp(-127, 127), scale


def argmax(x: Any) -> Any:
    """By rows."""
    return x.argmax(-1)


def gumbel_sample(x: Any, u: Any) -> Any:
    """A draw from the softmax of x [m, v] at a temperature, by u [m, v] between 0 and 1."""
    return (x / 0.7 - (-u.log()).log()).argmax(-1)


def nearest_code(x: Any, codes: Any) -> Any:
    """x [m, d], codes [k, d]."""
    return ((x * x).sum(-1, keepdim=True) - 2 * x @ codes.T + (codes * codes).sum(-1)).argmin(-1)


def volume_rendering(colour: Any, density: Any, step: Any) -> tuple[Any, Any]:
    """What rays see, and the weight of each sample: colour [m, n, 3], density and step [m, n]."""
    import torch

    alpha = 1 - (-density * step).exp()
    clear = torch.cat((torch.ones_like(alpha[:, :1]), (1 - alpha + 1e-10).cumprod(-1)[:, :-1]), -1)
    weights = alpha * clear
    return (weights[..., None] * colour).sum(1), weights


# Recurrences as they are written: step by step.


def advantages(reward: Any, value: Any, done: Any, last: Any) -> tuple[Any, Any]:
    """Generalised advantages (Schulman 2016) and returns: [t, n] each, and the value [n] after the last step."""
    import torch

    carried, after = torch.zeros_like(last), last
    found: list[Any] = []
    for t in reversed(range(reward.shape[0])):
        live = 1 - done[t]
        carried = reward[t] + 0.99 * after * live - value[t] + 0.99 * 0.95 * live * carried
        found.insert(0, carried)
        after = value[t]
    made = torch.stack(found)
    return made, made + value


def moving_average(x: Any) -> Any:
    """x [t, n], exponentially weighted."""
    import torch

    h, found = x[0], []
    for t in range(x.shape[0]):
        h = 0.9 * h + 0.1 * x[t]
        found.append(h)
    return torch.stack(found)


def selective_scan(x: Any, step: Any, a: Any, b: Any, c: Any) -> Any:
    """x and step [b, t, d], a [d, n], b and c [b, t, n]."""
    import torch

    h, found = torch.zeros(x.shape[0], *a.shape, dtype=x.dtype, device=x.device), []
    for t in range(x.shape[1]):
        h = (step[:, t, :, None] * a).exp() * h + (step[:, t] * x[:, t])[..., None] * b[:, t, None]
        found.append((h * c[:, t, None]).sum(-1))
    return torch.stack(found, 1)


def gated_average(x: Any, forget: Any) -> Any:
    """x and forget [b, t, d]."""
    import torch

    h, found = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        gate = forget[:, t].sigmoid()
        h = gate * h + (1 - gate) * x[:, t]
        found.append(h)
    return torch.stack(found, 1)


def cumulative_product_backward(x: Any, y: Any, dy: Any) -> Any:
    """dx of y = cumprod(x), no element 0."""
    return (dy * y).flip(-1).cumsum(-1).flip(-1) / x


def running_maximum(x: Any) -> Any:
    """The largest so far."""
    return x.cummax(-1).values


def running_logsumexp(x: Any) -> Any:
    """The logarithm of the sum of exponentials so far."""
    return x.logcumsumexp(-1)


def lamb(p: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    """A step of LAMB (You 2020): the weights and both moments."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    u = m / (v.sqrt() + EPS) + 0.01 * p
    return p - 1e-3 * (p.norm() / u.norm()) * u, m, v


def cross_layer(x0: Any, x: Any, w: Any, b: Any) -> Any:
    """x0 and x [m, n]."""
    return x0 * (x @ w + b) + x


# A sixth round: optimisers, losses, masks, gradients and mixers of collections that no row had.


def softcapped_cross_entropy(x: Any, t: Any) -> Any:
    """Of logits within 30, by rows: x [m, v], t [m]."""
    from torch.nn import functional

    return functional.cross_entropy(30 * (x / 30).tanh(), t, reduction="none")


def dropout_add_layer_norm(x: Any, residual: Any, kept: Any, g: Any, b: Any) -> tuple[Any, Any]:
    """The normed sum, and the sum; kept [m, n] is the mask."""
    h = x * kept / 0.9 + residual
    return layer_norm(h, g, b), h


def group_norm_silu(x: Any, g: Any, b: Any) -> Any:
    """x [n, c, s] in 32 groups of channels."""
    from torch.nn import functional

    return functional.silu(group_norm(x, g, b))


def adamw(p: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    """A step: the weights and both moments, corrected for their beginning."""
    m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
    return p * (1 - 1e-3) - 1e-3 * (m / 0.5) / ((v / 0.3).sqrt() + 1e-8), m, v


def lion(p: Any, g: Any, m: Any) -> tuple[Any, Any]:
    """A step: the weights and the moment."""
    return p - 1e-4 * ((0.9 * m + 0.1 * g).sign() + 0.1 * p), 0.99 * m + 0.01 * g


def newton_schulz(x: Any) -> Any:
    """A step of Muon's orthogonalisation: x [m, n]."""
    a = x @ x.T
    return 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x


def mish_backward(x: Any, dy: Any) -> Any:
    """Of x tanh(softplus(x))."""
    from torch.nn import functional

    t = functional.softplus(x).tanh()
    return dy * (t + x * x.sigmoid() * (1 - t * t))


def triplet(anchor: Any, near: Any, far: Any) -> Any:
    """Margin loss of [m, n] each."""

    def distance(x: Any) -> Any:
        return (anchor - x).square().sum(-1).sqrt()

    return (distance(near) - distance(far) + 0.2).relu().mean()


def sigmoid_focal(x: Any, t: Any) -> Any:
    """Of logits and targets [m, n]."""
    from torch.nn import functional

    p = x.sigmoid()
    hit = p * t + (1 - p) * (1 - t)
    return ((0.25 * t + 0.75 * (1 - t)) * (functional.softplus(x) - x * t) * (1 - hit) ** 2).mean()


def dice(x: Any, t: Any) -> Any:
    """Of logits and masks [m, n]."""
    p = x.sigmoid()
    return 1 - ((2 * (p * t).sum(-1) + 1) / (p.sum(-1) + t.sum(-1) + 1)).mean()


def qk_norm_rope(q: Any, k: Any, g: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    """Queries and keys, normed and rotated: q and k [b, h, s, d], cos and sin [s, d]."""
    return rope(rms_norm(q, g), rms_norm(k, g), cos, sin)


def rope_interleaved(q: Any, cos: Any, sin: Any) -> Any:
    """Neighbours are rotated: q [b, h, s, d], cos and sin [s, d / 2]."""
    import torch

    a, b = q[..., 0::2], q[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def masked_softmax(x: Any, hidden: Any) -> Any:
    """Of scaled scores x [b, h, s, s], where keys are not hidden [b, s]."""
    return (x * 0.125).masked_fill(hidden[:, None, None], -10000.0).softmax(-1)


def gradient_clipping(g: Any) -> Any:
    """To a norm of one."""
    return g * (1.0 / (g.float().norm() + EPS)).clamp(max=1.0)


def weight_norm(v: Any, g: Any) -> Any:
    """v [m, n], g [m]."""
    return v * (g / v.norm(dim=-1))[:, None]


def biased_attention(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """bias [h, s, s]."""
    return (_scores(q, k) + bias).softmax(-1) @ v


def padded_attention(q: Any, k: Any, v: Any, hidden: Any) -> Any:
    """Keys that are hidden [b, s]."""
    return _scores(q, k).masked_fill(hidden[:, None, None], float("-inf")).softmax(-1) @ v


def attention_kept(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """And the logarithm of each row's sum."""
    s = _scores(q, k)
    return s.softmax(-1) @ v, s.logsumexp(-1)


def swiglu_linear_backward(dy: Any, w: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """da and db, from behind the projection down: dy [m, k], w [n, k]."""
    return swiglu_backward(a, b, dy @ w.T)


def causal_conv(x: Any, w: Any) -> Any:
    """silu of a depthwise causal convolution: x [b, c, s], w [c, taps]."""
    from torch.nn import functional

    (c, taps) = w.shape
    return functional.silu(functional.conv1d(functional.pad(x, (taps - 1, 0)), w[:, None], groups=c))


def token_shift(x: Any, mu: Any) -> Any:
    """A mean of each token and the one before: x [b, s, d], mu [d]."""
    from torch.nn import functional

    return x * mu + functional.pad(x, (0, 0, 1, 0))[:, :-1] * (1 - mu)


def cosine_pairs(a: Any, b: Any) -> Any:
    """Similarity of every two rows."""
    from torch.nn import functional

    return functional.normalize(a, dim=-1) @ functional.normalize(b, dim=-1).T


def prelu_backward(x: Any, w: Any, dy: Any) -> tuple[Any, Any]:
    """dx and dw: x [n, c, s], w [c]."""
    import torch

    below = x < 0
    return torch.where(below, dy * w[None, :, None], dy), torch.where(below, dy * x, 0.0).sum((0, 2))


def batch_norm_backward(x: Any, g: Any, dy: Any) -> tuple[Any, Any, Any]:
    """dx, dg and db: x [n, c, s], g [c]."""
    over, many = (0, 2), x.shape[0] * x.shape[2]
    c = x - x.mean(over, keepdim=True)
    r = ((c * c).mean(over, keepdim=True) + EPS).rsqrt()
    dg, db = (dy * c * r).sum(over), dy.sum(over)
    return g[None, :, None] * r * (dy - db[None, :, None] / many - c * r * dg[None, :, None] / many), dg, db


def masked_mean(x: Any, kept: Any) -> Any:
    """x [b, s, d], kept [b, s]."""
    return (x * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)


def router(x: Any, w: Any) -> tuple[Any, Any]:
    """Probabilities of experts, and the largest: x [m, k], w [k, e]."""
    p = (x @ w).softmax(-1)
    return p, p.max(-1).values


def rwkv_mixing(k: Any, v: Any, decay: Any, bonus: Any) -> Any:
    """RWKV-4's, quadratic as written: k and v [b, t, c], the rest [c]."""
    import torch

    i = torch.arange(k.shape[1], device=k.device)
    since = (i[:, None] - 1 - i[None])[None, :, :, None]
    now = torch.where(since == -1, k[:, None] + bonus, float("-inf"))
    return (torch.where(since >= 0, k[:, None] - since * decay, now).softmax(2) * v[:, None]).sum(2)


# A seventh round: quantisers, optimisers, losses of preferences, attention variants, routing and augmentations.


def mx_quantise(x: Any) -> tuple[Any, Any]:
    """x [m, b, 32]: levels of 4 bits and a power of two for each block (OCP MX)."""
    import torch

    scale = torch.exp2(torch.floor(torch.log2(x.abs().amax(-1, keepdim=True))) - 2)
    return (x / scale).round().clamp(-7, 7), scale[..., 0]


def fake_quantise(x: Any) -> Any:
    """x [m, b, 32] as groups of 4 bits between their extremes give it (torchao's training)."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = ((high - low) / 15).clamp(min=1e-6)
    zero = (-low / scale).round()
    return (((x / scale).round() + zero).clamp(0, 15) - zero) * scale


def fake_quantise_backward(x: Any, scale: Any, dy: Any) -> tuple[Any, Any]:
    """Straight through where levels fit, and the learned scale's (LSQ): x and dy [m, n], scale [m, 1]."""
    import torch

    level = x / scale
    inside = (level >= -8) & (level <= 7)
    outside = torch.where(level < -8, -8.0, 7.0)
    return torch.where(inside, dy, 0.0), (dy * torch.where(inside, level.round() - level, outside)).sum(
        -1, keepdim=True
    )


def tensor_quantise(x: Any) -> tuple[Any, Any]:
    """x [m, n] by the largest of all, as float8 training scales activations."""
    scale = x.abs().amax().clamp(min=1e-12) / 448
    return (x / scale).clamp(-448, 448), scale


def row_quantise(x: Any, smooth: Any) -> tuple[Any, Any]:
    """x [m, n] over SmoothQuant's divisors [n], by each row's largest."""
    y = x / smooth
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return (y / scale).round().clamp(-128, 127), scale


def dequantise_table(codes: Any, levels: Any, scale: Any) -> Any:
    """codes [m, b, 64] of 16 levels, scale [m, b] (NF4)."""
    return levels[codes.long()] * scale[..., None]


def bag(table: Any, ids: Any) -> Any:
    """Sums of n rows of a table each: table [v, d], ids [b, n]."""
    return table[ids].sum(1)


def weighted_bag(table: Any, ids: Any, weight: Any) -> Any:
    """Of rows with weights: weight [b, n]."""
    return (table[ids] * weight[..., None]).sum(1)


def embedding(table: Any, ids: Any, positions: Any, g: Any, b: Any) -> Any:
    """BERT's: rows of a table and positions, normed; table [v, d], ids [b, s], positions [s, d]."""
    return layer_norm(table[ids] + positions, g, b)


def siglip(a: Any, b: Any, t: Any, bias: Any) -> Any:
    """Of every pair of images a and texts b [m, d]; t and bias [1]."""
    import torch
    from torch.nn import functional

    scores = a @ b.T * t + bias
    same = 2 * torch.eye(a.shape[0], device=a.device, dtype=a.dtype) - 1
    return -functional.logsigmoid(same * scores).sum() / a.shape[0]


def dpo(chosen: Any, rejected: Any, t: Any, u: Any, reference: Any) -> Any:
    """Logits [b, s, v], labels [b, s], the reference's difference of log-probabilities [b]."""
    from torch.nn import functional

    def total(x: Any, labels: Any) -> Any:
        return x.log_softmax(-1).gather(-1, labels[..., None])[..., 0].sum(-1)

    return -functional.logsigmoid(0.1 * (total(chosen, t) - total(rejected, u) - reference)).mean()


def grpo_of_logits(x: Any, t: Any, old: Any, other: Any, gain: Any) -> Any:
    """By tokens: logits x [m, v], labels t, log-probabilities before and of the reference, advantages [m]."""
    import torch

    logs = x.log_softmax(-1).gather(1, t[:, None])[:, 0]
    ratio = (logs - old).exp()
    kl = (other - logs).exp() - (other - logs) - 1
    return -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain) + 0.04 * kl


def distil_backward(s: Any, t: Any) -> Any:
    """The gradient of KL at temperature 2 by the student's logits [m, v]."""
    return ((s / 2).softmax(-1) - (t / 2).softmax(-1)) * 2


def huber(x: Any, y: Any) -> Any:
    """The mean over [m, n]."""
    from torch.nn import functional

    return functional.huber_loss(x, y)


def total_variation(x: Any) -> Any:
    """x [n, h, w]."""
    return (x[:, 1:] - x[:, :-1]).abs().mean() + (x[:, :, 1:] - x[:, :, :-1]).abs().mean()


def clip_norm(g: Any) -> Any:
    """A gradient [m, n] whose norm is at most 1."""
    return g * (1 / (g.norm() + EPS)).clamp(max=1)


def sgd(p: Any, g: Any, m: Any) -> tuple[Any, Any]:
    """A step with Nesterov's momentum and decay."""
    g = g + 1e-4 * p
    m = 0.9 * m + g
    return p - 0.1 * (g + 0.9 * m), m


def adagrad(p: Any, g: Any, s: Any) -> tuple[Any, Any]:
    """A step with a row's accumulator (row-wise Adagrad of embedding tables): p and g [m, n], s [m]."""
    s = s + (g * g).mean(-1)
    return p - 0.01 * g / (s.sqrt() + 1e-8)[:, None], s


def shampoo(g: Any, left: Any, right: Any) -> tuple[Any, Any]:
    """Both statistics of a gradient [m, n]."""
    return 0.95 * left + 0.05 * g @ g.T, 0.95 * right + 0.05 * g.T @ g


def partial_rope(q: Any, cos: Any, sin: Any) -> Any:
    """Half of the channels are rotated: q [b, h, s, d], cos and sin [s, d / 2]."""
    import torch

    n = cos.shape[-1]
    a, b = q[..., : n // 2], q[..., n // 2 : n]
    return torch.cat((q[..., :n] * cos + torch.cat((-b, a), -1) * sin, q[..., n:]), -1)


def looked_up_rope(q: Any, cos: Any, sin: Any, places: Any) -> Any:
    """Places are data: q [b, h, s, d], cos and sin [n, d], places [b, s]."""
    import torch

    a, b = q.chunk(2, -1)
    return q * cos[places][:, None] + torch.cat((-b, a), -1) * sin[places][:, None]


def balance(x: Any) -> Any:
    """Switch's loss: router logits x [m, e]; the share of tokens and of probability that each expert gets."""
    import torch

    p = x.softmax(-1)
    first = torch.nn.functional.one_hot(p.argmax(-1), x.shape[-1]).to(x.dtype)
    return x.shape[-1] * (first.mean(0) * p.mean(0)).sum()


def combine(y: Any, w: Any) -> Any:
    """What k experts say of each token, weighted: y [m, k, d], w [m, k]."""
    return (y * w[..., None]).sum(1)


def permuted(x: Any, rows: Any, w: Any) -> Any:
    """Rows of x [m, d] in the order of experts, weighted: rows and w [n]."""
    return x[rows] * w[:, None]


def sigmoid_attention(q: Any, k: Any, v: Any) -> Any:
    """FlashSigmoid (Ramapuram 2024)."""
    import math

    return (_scores(q, k) - math.log(k.shape[-2])).sigmoid() @ v


def softmax_one(q: Any, k: Any, v: Any) -> Any:
    """Off by one: weights may add up to less than 1."""
    import torch

    s = _scores(q, k)
    top = s.amax(-1, keepdim=True).clamp(min=0)
    e = torch.exp(s - top)
    return (e @ v) / (e.sum(-1, keepdim=True) + torch.exp(-top))


def cosine_attention(q: Any, k: Any, v: Any, scale: Any, bias: Any) -> Any:
    """Swin v2's: scale [h], bias [h, s, s]."""
    from torch.nn import functional

    q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
    return ((q @ k.transpose(-1, -2)) * scale[:, None, None] + bias).softmax(-1) @ v


def document_attention(q: Any, k: Any, v: Any, d: Any) -> Any:
    """Causal within documents, which tokens name: d [s]."""
    hidden = (_later(q, k) > 0) | (d[:, None] != d[None])
    return _scores(q, k).masked_fill(hidden, float("-inf")).softmax(-1) @ v


def forgetting_attention(q: Any, k: Any, v: Any, c: Any) -> Any:
    """Lin 2025: c [h, s] is the running sum of logarithms of forget gates."""
    s = _scores(q, k) + (c[:, :, None] - c[:, None])
    return s.masked_fill(_later(q, k) > 0, float("-inf")).softmax(-1) @ v


def delta_net(q: Any, k: Any, v: Any, b: Any) -> Any:
    """The delta rule, step by step: q, k and v [t, d], b [t]."""
    import torch

    state, found = torch.zeros(q.shape[-1], v.shape[-1], dtype=q.dtype, device=q.device), []
    for t in range(q.shape[0]):
        error = v[t] - k[t] @ state
        state = state + b[t] * k[t][:, None] * error
        found.append(q[t] @ state)
    return torch.stack(found)


def response_norm(x: Any, g: Any, b: Any) -> Any:
    """ConvNeXt v2's: x [n, s, c]."""
    size = x.norm(dim=1, keepdim=True)
    return g * (x * (size / (size.mean(-1, keepdim=True) + EPS))) + b + x


def instance_norm(x: Any, g: Any, b: Any) -> Any:
    """x [n, c, s]."""
    from torch.nn import functional

    return functional.instance_norm(x, weight=g, bias=b)


def normalise_backward(x: Any, dy: Any) -> Any:
    """Of x over its norm, by rows."""
    r = 1 / x.norm(dim=-1, keepdim=True)
    h = x * r
    return r * (dy - h * (dy * h).sum(-1, keepdim=True))


def batch_norm_relu(x: Any, mean: Any, variance: Any, g: Any, b: Any) -> Any:
    """As it is run: x [n, c, s]."""
    from torch.nn import functional

    return functional.batch_norm(x, mean, variance, g, b).relu()


def causal_softmax(x: Any) -> Any:
    """apex's, scaled: x [b, s, s]."""
    return (x * 0.125).masked_fill(_later(x, x) > 0, float("-inf")).softmax(-1)


def causal_softmax_backward(p: Any, dp: Any) -> Any:
    """From what it gave, of which apex, too, reads what is not masked."""
    later = _later(p, p) > 0
    p = p.masked_fill(later, 0.0)
    return (p * (dp - (dp * p).sum(-1, keepdim=True)) * 0.125).masked_fill(later, 0.0)


def bias_gelu_backward(x: Any, b: Any, dy: Any) -> tuple[Any, Any]:
    """Megatron's: x and dy [m, n], b [n]; dx and db."""
    z = x + b
    t = (0.79788456 * z * (1 + 0.044715 * z * z)).tanh()
    dx = dy * (0.5 * z * ((1 - t * t) * (0.79788456 + 0.1070322243 * z * z)) + 0.5 * (1 + t))
    return dx, dx.sum(0)


def pixels(x: Any, mean: Any, std: Any) -> Any:
    """Bytes as a model takes them, flipped: x [n, h, w, 3] to [n, 3, h, w]."""
    return ((x.flip(2) / 255 - mean) / std).permute(0, 3, 1, 2)


def mixup(x: Any, order: Any, share: Any) -> Any:
    """Each image with another: x [n, p], order [n], share [n]."""
    return share[:, None] * x + (1 - share[:, None]) * x[order]


def contrast(x: Any, by: Any) -> Any:
    """Around the mean grey of each image: x [n, 3, p], by [n]."""
    grey = (0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2]).mean(-1)[:, None, None]
    return (grey + by[:, None, None] * (x - grey)).clamp(0, 1)


# A ninth round, of which each told something that the others had not.


def relative_attention(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """T5's, by how far a key is from the row: bias [h, 2s - 1]."""
    import torch

    s = q.shape[-2]
    i = torch.arange(s, device=q.device)
    return (q @ k.transpose(-1, -2) + bias[:, i[None] - i[:, None] + s - 1]).softmax(-1) @ v


def soft_cross_entropy(x: Any, t: Any) -> Any:
    """Of labels that are weights, as mixed images and teachers give them: x and t [m, v]."""
    return -(t * x.log_softmax(-1)).sum(-1)


def chunked_attention(q: Any, k: Any, v: Any) -> Any:
    """Llama 4's: causal within chunks of 1024."""
    return _seen(_scores(q, k), lambda i, j: (i // 1024 == j // 1024) & (j <= i)).softmax(-1) @ v


def generalised_jsd(x: Any, y: Any) -> Any:
    """Of students' and teachers' logits [m, v], by rows, at a share of a tenth (Agarwal 2024)."""
    import math

    import torch

    p, q = x.log_softmax(-1), y.log_softmax(-1)
    mixed = torch.stack((p + math.log(0.9), q + math.log(0.1))).logsumexp(0)
    return 0.1 * (q.exp() * (q - mixed)).sum(-1) + 0.9 * (p.exp() * (p - mixed)).sum(-1)


def decomposed_attention(q: Any, k: Any, v: Any, rows: Any, columns: Any) -> Any:
    """Segment Anything's: of images of 64 x 64, a bias by row and one by column of the key: [h, 4096, 64] each."""
    h, s, _ = q.shape
    scores = _scores(q, k).reshape(h, s, 64, 64) + rows[..., None] + columns[..., None, :]
    return scores.reshape(h, s, s).softmax(-1) @ v


def window_and_global(q: Any, k: Any, v: Any) -> Any:
    """Longformer's: a window of 512, and 64 tokens that see all and that all see."""
    return _seen(_scores(q, k), lambda i, j: ((i - j).abs() <= 256) | (i < 64) | (j < 64)).softmax(-1) @ v


def stick_breaking(q: Any, k: Any, v: Any) -> Any:
    """Tan 2024: a key gets its share of what later ones left."""
    import torch
    from torch.nn import functional

    s = _scores(q, k)
    past = _later(q, k) < 0
    left = torch.where(past, functional.logsigmoid(-s), 0.0)
    after = left.flip(-1).cumsum(-1).flip(-1) - left
    return torch.where(past, (functional.logsigmoid(s) + after).exp(), 0.0) @ v


def attention_backward_kept(q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any) -> tuple[Any, Any, Any]:
    """dq, dk and dv, from the forward pass's output and its rows' logsumexp [h, s]."""
    p = (_scores(q, k) - lse[..., None]).exp()
    ds = p * (do @ v.transpose(-1, -2) - (do * o).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
    return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ do


def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any) -> Any:
    """xLSTM's in parallel (Beck 2024): q, k, v [h, s, d], gates i and f [h, s]."""
    import torch
    from torch.nn import functional

    total = functional.logsigmoid(f.float()).cumsum(-1)
    d = (total[:, :, None] - total[:, None] + i[:, None]).masked_fill(_later(q, k) > 0, float("-inf"))
    top = d.amax(-1, keepdim=True)
    a = _scores(q, k) * (d - top).exp()
    return a.to(q.dtype) @ v / torch.maximum(a.sum(-1, keepdim=True).abs(), (-top).exp()).to(q.dtype)


def supervised_contrastive(z: Any, t: Any) -> Any:
    """Khosla 2020: z [n, d], labels [n]."""
    import torch
    from torch.nn import functional

    z = functional.normalize(z, dim=-1)
    s = z @ z.T / 0.1
    own = torch.eye(z.shape[0], dtype=torch.bool, device=z.device)
    same = (t[:, None] == t[None]) & ~own
    logs = s - s.masked_fill(own, float("-inf")).logsumexp(-1, keepdim=True)
    return -((logs * same).sum(-1) / same.sum(-1).clamp(min=1)).mean()


def sinkhorn(x: Any) -> Any:
    """Rows and columns of [m, 4, 4] that sum to 1, by turns (hyper-connections on a manifold, Xie 2025)."""
    p = (x - x.amax((-1, -2), keepdim=True)).exp()
    for _ in range(5):
        p = p / (p.sum(-1, keepdim=True) + EPS)
        p = p / (p.sum(-2, keepdim=True) + EPS)
    return p


def embedding_backward(dy: Any, ids: Any) -> Any:
    """The gradient of 32,000 rows: dy [m, d], ids [m]."""
    import torch

    return torch.zeros(32000, dy.shape[1], dtype=dy.dtype, device=dy.device).index_add(0, ids, dy)


def messages(x: Any, source: Any, target: Any) -> Any:
    """What a graph's nodes hear: the sum over edges of x [v, d] at one end, at the other."""
    import torch

    return torch.zeros(x.shape, dtype=x.dtype, device=x.device).index_add(0, target, x[source])


def shifted_windows(x: Any, g: Any, b: Any) -> Any:
    """LayerNorm, shifted by half a window and cut into windows of 8 by 8, as Swin's blocks begin: x [n, s, s, c]."""
    import torch

    n, s, _, c = x.shape
    y = torch.roll(torch.nn.functional.layer_norm(x, (c,), g, b), shifts=(-4, -4), dims=(1, 2))
    return y.view(n, s // 8, 8, s // 8, 8, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 64, c)


def segment_means(x: Any, source: Any, target: Any) -> Any:
    """The mean over edges of x [v, d] at one end, at the other, as GraphSAGE has it; 0 where no edge ends."""
    import torch

    total = torch.zeros(x.shape, dtype=x.dtype, device=x.device).index_add(0, target, x[source])
    count = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
    count = count.index_add(0, target, torch.ones(target.shape, dtype=x.dtype, device=x.device))
    return total / count.clamp(min=1)[:, None]


def distmult_gradient(entities: Any, relations: Any, head: Any, relation: Any, tail: Any) -> tuple[Any, ...]:
    """DistMult's loss of known triples, differentiated by torch: tables [v, d] and [r, d], places [n] in them."""
    from torch.nn import functional

    def loss(entities: Any, relations: Any) -> Any:
        return functional.softplus(-(entities[head] * relations[relation] * entities[tail]).sum(-1)).mean()

    return _gradient(loss, (entities, relations))


def exclusive_sums(x: Any) -> Any:
    """The sum of what comes before each place of a row, with a zero put before all: x [m, n]."""
    import torch

    return torch.cat((torch.zeros_like(x[:, :1]), x), 1)[:, :-1].cumsum(1)


def retention_gradient(q: Any, k: Any, v: Any, g: Any, do: Any) -> tuple[Any, ...]:
    """A decay g [h] <= 0 a place, quadratic as written, differentiated by torch: q, k, v, do [h, s, d]."""
    import torch

    places = torch.arange(q.shape[1], device=q.device)
    ahead = (places[:, None] - places).clamp(min=0)
    weights = torch.where(places <= places[:, None], torch.exp(g[:, None, None] * ahead), 0)

    def attended(q: Any, k: Any, v: Any) -> Any:
        return (q @ k.mT * q.shape[-1] ** -0.5 * weights).to(v.dtype) @ v

    return _gradient(attended, (q, k, v), do)


def relu_convolution_gradient(x: Any, w: Any, b: Any, dy: Any) -> tuple[Any, ...]:
    """A convolution under a ReLU, differentiated by torch: x [n, c, s], w [o, c, 5]."""
    from torch.nn import functional

    return _gradient(lambda x, w, b: functional.relu(functional.conv1d(x, w, b, padding=2)), (x, w, b), dy)


def mish_glu_gradient(z: Any, dy: Any) -> tuple[Any, ...]:
    """A gate under Mish and what it gates, side by side in one tensor, differentiated by torch: z [m, 2n]."""
    from torch.nn import functional

    def gated(z: Any) -> Any:
        gate, x = z.chunk(2, -1)
        return functional.mish(gate) * x

    return _gradient(gated, (z,), dy)


def padded_attention_gradient(q: Any, k: Any, v: Any, n: Any, do: Any) -> tuple[Any, ...]:
    """Attention to the first n [b] keys, differentiated by torch: q [b, h, s, d], k and v [b, h, t, d]."""
    import torch

    beyond = (torch.arange(k.shape[2], device=q.device) >= n[:, None])[:, None, None]

    def attended(q: Any, k: Any, v: Any) -> Any:
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(beyond, -torch.inf)
        return scores.float().softmax(-1).to(v.dtype) @ v

    return _gradient(attended, (q, k, v), do)


def upper_product(a: Any, b: Any) -> Any:
    """A product [n, n] on and above its diagonal."""
    return (a @ b).triu()


def histogram(bins: Any) -> Any:
    """How often each of 4,096 bins is met: bins [n]."""
    import torch

    return torch.zeros(4096, device=bins.device).index_add(0, bins, torch.ones(bins.shape, device=bins.device))


def sparse_step(table: Any, g: Any, ids: Any) -> Any:
    """A step of gradient descent of some rows of a table [v, d]: g [m, d], ids [m]."""
    return table.index_add(0, ids, g, alpha=-0.01)


def expert_combine(y: Any, weights: Any, tokens: Any) -> Any:
    """What experts made of tokens comes back to them, weighted: y [s, d], weights [s], tokens [s]."""
    import torch

    out = torch.zeros(8192, y.shape[1], dtype=y.dtype, device=y.device)
    return out.index_add(0, tokens, y * weights[:, None])


def convolution_update(state: Any, x: Any, w: Any, b: Any) -> tuple[Any, Any]:
    """Decoding's step of a causal convolution: state [b, d, 4], x [b, d], w [d, 4]."""
    import torch
    from torch.nn import functional

    state = torch.cat((state[..., 1:], x[..., None]), -1)
    return state, functional.silu((state * w).sum(-1) + b)


def depthwise_bn_silu(x: Any, w: Any, mean: Any, variance: Any, g: Any, b: Any) -> Any:
    """EfficientNet's, as it is run: x [n, c, h, h]."""
    from torch.nn import functional

    h = functional.conv2d(x, w, padding=1, groups=x.shape[1])
    return functional.silu(functional.batch_norm(h, mean, variance, g, b))


# A tenth round, of which each told something that the others had not.


def edge_convolution(h: Any, i: Any, w: Any, u: Any) -> Any:
    """DGCNN's: features h [n, d], neighbours i [n, k], w and u [d, o]."""
    return ((h @ w)[:, None] + (h @ u)[i]).relu().amax(1)


def dot_interaction(x: Any, y: Any) -> Any:
    """DLRM's: the products of all pairs of vectors, x [b, d] among them, each once: y [b, f, d]."""
    import torch

    z = torch.cat((x[:, None], y), 1)
    first, second = (i.to(x.device) for i in torch.tril_indices(z.shape[1], z.shape[1], -1))
    return torch.cat((x, (z @ z.transpose(1, 2))[:, first, second]), 1)


def last_logits(x: Any, g: Any, w: Any, n: Any) -> Any:
    """The logits of each sequence's last token: x [b, s, d], w [d, v], n [b]."""
    import torch

    return rms_norm(x, g)[torch.arange(x.shape[0], device=x.device), n] @ w


def nt_xent(z: Any) -> Any:
    """SimCLR's: of each row z [n, d] the row half of them further on is its other view."""
    import torch
    from torch.nn import functional

    z, places = functional.normalize(z, dim=-1), torch.arange(z.shape[0], device=z.device)
    scores = (z @ z.T / 0.1).masked_fill(places[:, None] == places, float("-inf"))
    return functional.cross_entropy(scores, (places + z.shape[0] // 2) % z.shape[0])


def simpo(x: Any, t: Any, y: Any, u: Any) -> Any:
    """Of logits x of the chosen and y of the rejected [b, s, v], labels t and u [b, s]."""
    from torch.nn import functional

    def mean_log(logits: Any, labels: Any) -> Any:
        return logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0].mean(-1)

    return -functional.logsigmoid(2 * (mean_log(x, t) - mean_log(y, u)) - 1.4).mean()


def norm_silu_convolution(x: Any, g: Any, b: Any, w: Any) -> Any:
    """A diffusion model's: GroupNorm of 32 groups, SiLU, 3 x 3 convolution."""
    from torch.nn import functional

    return functional.conv2d(functional.silu(functional.group_norm(x, 32, g, b)), w, padding=1)


def spectral_loss(x: Any, y: Any, c: Any, s: Any) -> Any:
    """Of frames x and y [m, n] by cosines and sines [n, f]: how far magnitudes and their logarithms are apart."""
    a, b = (((z @ c) ** 2 + (z @ s) ** 2 + 1e-7).sqrt() for z in (x, y))
    return (a - b).norm() / a.norm() + (a.log() - b.log()).abs().mean()


def triangle_multiplication(a: Any, b: Any) -> Any:
    """AlphaFold's, outgoing: a and b [n, n, c]."""
    import torch

    return torch.einsum("ikc,jkc->ijc", a, b)


def response_norm_backward(x: Any, g: Any, dy: Any) -> tuple[Any, Any, Any]:
    """dx, dg and db of ConvNeXt V2's: x and dy [n, s, c]."""
    norm = x.square().sum(1, keepdim=True).sqrt()
    mean = _mean(norm) + EPS
    scaled, d = norm / mean, dy * g
    of_scaled = (d * x).sum(1, keepdim=True)
    of_norm = of_scaled / mean - _mean(of_scaled * norm) / mean**2
    return d * scaled + dy + x * of_norm / norm, (dy * x * scaled).sum((0, 1)), dy.sum((0, 1))


def target_attention(q: Any, h: Any, w: Any, b: Any, v: Any) -> Any:
    """Deep interest network: q [m, d], what was seen h [m, s, d], w [4d, n], b [n], v [n, 1]."""
    import torch

    q = q[:, None].expand_as(h)
    weights = (torch.cat((q, h, q - h, q * h), -1) @ w + b).sigmoid() @ v
    return (weights * h).sum(1)


def latent_keys(q: Any, p: Any, c: Any, k: Any, u: Any, w: Any) -> Any:
    """MLA's decoding with keys and values made: q [b, h, f], p [b, h, e], c [b, s, r], k [b, s, e]."""
    import torch

    keys, values = torch.einsum("bsr,hfr->bhsf", c, u), torch.einsum("bsr,hrf->bhsf", c, w)
    keys = torch.cat([keys, k.unsqueeze(1).expand(-1, keys.size(1), -1, -1)], dim=-1)
    queries = torch.cat([q, p], dim=-1).unsqueeze(2)
    scores = queries @ keys.transpose(-1, -2) / math.sqrt(queries.size(-1))
    return (scores.softmax(-1) @ values).squeeze(2)


def simple_recurrent_unit(x: Any, w: Any, c: Any, p: Any, q: Any) -> Any:
    """Lei 2018, peepholes p and q [n]: x [t, b, d], w [d, 3n], c [b, n], n as many as d."""
    import torch

    u, f, r = torch.matmul(x, w).chunk(3, -1)
    out = []
    for n in range(x.shape[0]):
        gate, reset = torch.sigmoid(f[n] + p * c), torch.sigmoid(r[n] + q * c)
        c = gate * c + (1 - gate) * u[n]
        out.append(reset * torch.tanh(c) + (1 - reset) * x[n])
    return torch.stack(out)


def biased_attention_backward(q: Any, k: Any, v: Any, o: Any, do: Any, l: Any, z: Any) -> tuple[Any, Any, Any]:  # noqa: E741
    """dq, dk and dv with ALiBi, causal: rows' logsumexp l [h, s] and slopes z [h] are float32, as kernels keep them."""
    import torch

    place = torch.arange(q.shape[1], device=q.device)
    apart = (place[None, :] - place[:, None]).to(torch.float32)
    scores = torch.einsum("hid,hjd->hij", q, k) * 0.125 + z[:, None, None] * apart
    p = torch.where(apart > 0, torch.zeros((), device=q.device), torch.exp(scores - l[:, :, None])).to(q.dtype)
    dp, delta = torch.einsum("hid,hjd->hij", do, v), (o * do).sum(-1, keepdim=True)
    ds = p * (dp - delta) * 0.125
    return ds @ k, torch.einsum("hij,hid->hjd", ds, q), torch.einsum("hij,hid->hjd", p, do)


def column_moments(x: Any) -> tuple[Any, Any]:
    """Skewness and excess kurtosis of columns: x [m, n]."""
    c = x.float() - x.float().mean(0)
    v = (c**2).mean(0)
    return (c**3).mean(0) / v**1.5, (c**4).mean(0) / v.square() - 3


def separable_convolution(x: Any, u: Any, b: Any, w: Any) -> Any:
    """Depthwise 5 x 5 with stride 2, a hard swish, and a product over channels: u [c, 1, 5, 5], w [o, c, 1, 1]."""
    from torch.nn import functional

    h = functional.conv2d(x, u, b, stride=2, padding=2, groups=x.shape[1])
    return functional.conv2d(functional.hardswish(h), w)


def shared_weight(x: Any, y: Any, w: Any) -> Any:
    """One product of a sum: x and y [m, k], w [k, n]."""
    import torch

    return torch.addmm(torch.mm(x, w), y, w)


def grouped_attention_backward(q: Any, k: Any, v: Any, do: Any, lse: Any, e: Any) -> tuple[Any, Any, Any]:
    """q and do [g, r, s, d]; k and v [g, s, d]; of rows logsumexp and sum(o*do) in float32, lse and e [g, r, s]."""
    k, v, scale = k[:, None], v[:, None], q.shape[-1] ** -0.5
    p = ((q @ k.mT).float() * scale - lse[..., None]).exp()
    ds = (p * ((do @ v.mT).float() - e[..., None]) * scale).to(q.dtype)
    return ds @ k, (ds.mT @ q).sum(1), (p.to(q.dtype).mT @ do).sum(1)


def stream_norm_swiglu(x: Any, g: Any, w: Any, u: Any) -> Any:
    """A residual stream and a gain in float32, products in float16."""
    from torch.nn import functional

    h = rms_norm(x, g).half()
    return functional.silu((h @ w).float()).half() * (h @ u)


def chunk_output(q: Any, k: Any, v: Any, g: Any) -> Any:
    """Gated linear attention within chunks: cumulated gates in float32, g [h, n, c]."""
    decays = (g[..., :, None] - g[..., None, :]).exp()
    return ((q @ k.mT).float() * decays).tril().to(q.dtype) @ v


def grpo_gradient(x: Any, t: Any, o: Any, r: Any, a: Any, m: Any) -> Any:
    """GRPO's loss with a KL divergence, differentiated by torch to the logits x [n, v]; masked by m [n]."""
    import torch

    x = x.detach().requires_grad_()
    with torch.enable_grad():
        lp = x.float().log_softmax(-1).gather(-1, t[:, None])[:, 0]
        ratio = (lp - o).exp()
        loss = (r - lp).exp() - (r - lp) - 1
        loss = 0.04 * loss - torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a)
        return torch.autograd.grad((loss * m).sum() / m.sum(), x)[0]


def pooling_gradient(x: Any, w: Any, dy: Any) -> Any:
    """Attention pooling of x [b, s, d] by w [d], differentiated by torch."""
    import torch

    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    with torch.enable_grad():
        a = (x @ w).float().softmax(-1).to(x.dtype)
        return torch.autograd.grad((a[..., None] * x).sum(1), (x, w), dy)


def muon(g: Any, m: Any) -> tuple[Any, Any]:
    """Nesterov's momentum, by its norm, and a step of the orthogonalisation."""
    m = 0.95 * m + g
    u = g + 0.95 * m
    return m, newton_schulz(u / (u.square().sum().sqrt() + 1e-7))


def dilated_attention(q: Any, k: Any, v: Any) -> Any:
    """Causal attention to every fourth of the last 1,024 places."""
    return _seen(_scores(q, k), lambda i, j: (j <= i) & (i - j < 1024) & ((i - j) % 4 == 0)).softmax(-1) @ v


def block_attention(q: Any, k: Any, v: Any) -> Any:
    """Attention to a block of 64 places, its neighbours, and the first one."""
    near = _seen(_scores(q, k), lambda i, j: ((i // 64 - j // 64).abs() <= 1) | (j < 64))
    return near.softmax(-1) @ v


def rwkv6(r: Any, k: Any, v: Any, w: Any, u: Any, s: Any) -> tuple[Any, Any]:
    """RWKV-6, step by step: r, k, v and decays w [t, h, d], bonus u [h, d], state s [h, d, d]; what it gives, and s."""
    import torch

    out = []
    for t in range(r.shape[0]):
        kv = k[t][:, :, None] * v[t][:, None, :]
        out.append((r[t][:, :, None] * (s + u[:, :, None] * kv)).sum(1))
        s = w[t][:, :, None] * s + kv
    return torch.stack(out), s


def rwkv7(r: Any, k: Any, v: Any, w: Any, a: Any, b: Any, s: Any) -> tuple[Any, Any]:
    """RWKV-7, step by step: s = s diag(w) + (s a) b + v k; all [t, h, d], state s [h, d, d]."""
    import torch

    out = []
    for t in range(r.shape[0]):
        removed = (s * a[t][:, None, :]).sum(-1)
        s = s * w[t][:, None, :] + removed[:, :, None] * b[t][:, None, :] + v[t][:, :, None] * k[t][:, None, :]
        out.append((s * r[t][:, None, :]).sum(-1))
    return torch.stack(out), s


def bucketed_attention(q: Any, k: Any, v: Any, z: Any) -> Any:
    """T5's attention: a bias z [32, h] by buckets of how far places are apart, logarithmic from 8 on."""
    import torch

    later = _later(q, k)
    far = later.abs()
    large = 8 + (torch.log(far.float().clamp(min=1) / 8) / math.log(128 / 8) * 8).to(torch.int64)
    bucket = 16 * (later > 0).to(torch.int64) + torch.where(far < 8, far, large.clamp(max=15))
    return (q @ k.transpose(-1, -2) + z[bucket].permute(2, 0, 1)).softmax(-1) @ v


def hyper_connection_backward(x: Any, y: Any, r: Any, p: Any, g: Any) -> tuple[Any, Any, Any, Any]:
    """Of r @ x + p*y: streams x and their gradient g [m, 4, d], y [m, d], r [m, 4, 4], p [m, 4]."""
    import torch

    dx = torch.einsum("mij,mid->mjd", r, g)
    return dx, (p[..., None] * g).sum(1), torch.einsum("mid,mjd->mij", g, x), (g * y[:, None]).sum(-1)


def softcap_window_attention(q: Any, k: Any, v: Any) -> Any:
    """Gemma 2's: q [g, r, s, d], k and v [g, s, d], capped scores, the last 1,024 places."""
    s = _scores(q, k[:, None])
    capped = 50.0 * (s / 50.0).tanh()
    return _seen(capped, lambda i, j: (j <= i) & (i - j < 1024)).softmax(-1) @ v[:, None]


def merged_states(v: Any, l: Any) -> tuple[Any, Any]:  # noqa: E741
    """Attention over parts of the keys, put together: v [m, k, h, d], logsumexps l [m, k, h]."""
    return (v * l.softmax(1)[..., None]).sum(1), l.logsumexp(1)


def lora_backward(x: Any, w: Any, a: Any, b: Any, dy: Any) -> tuple[Any, Any, Any]:
    """dx, da and db of x @ w + 2 x @ a @ b."""
    t = dy @ b.T
    return dy @ w.T + 2.0 * (t @ a.T), 2.0 * (x.T @ t), 2.0 * ((x @ a).T @ dy)


def linear_jsd(x: Any, w: Any, y: Any, u: Any) -> Any:
    """Jensen-Shannon divergence of two heads: x and y [m, k], w and u [k, v]."""
    import torch

    p, q = (x @ w).log_softmax(-1), (y @ u).log_softmax(-1)
    m = torch.log(0.5 * p.exp() + 0.5 * q.exp())
    return (0.5 * (p.exp() * (p - m)).sum(-1) + 0.5 * (q.exp() * (q - m)).sum(-1)).mean()


def tiled_mlp(x: Any, w: Any, u: Any, d: Any) -> Any:
    """A gated MLP, a quarter of the rows after another."""
    import torch
    from torch.nn import functional

    return torch.cat([(functional.silu(c @ w) * (c @ u)) @ d for c in x.chunk(4)])


def _gradient(function: Callable[..., Any], given: Sequence[Any], dy: Any = None) -> tuple[Any, ...]:
    """A function's gradients to what it is given, by torch."""
    import torch

    given = [t.detach().requires_grad_() for t in given]
    with torch.enable_grad():
        made: tuple[Any, ...] = torch.autograd.grad(function(*given), given, dy)
    return made


def kto_gradient(x: Any, t: Any, r: Any, k: Any) -> tuple[Any, ...]:
    """KTO's loss, differentiated by torch: logits x [b, s, v], tokens t [b, s], of sequences reference r and sign k."""

    def loss(x: Any) -> Any:
        chosen = x.log_softmax(-1).gather(-1, t[..., None])[..., 0].sum(-1)
        return (1 - (0.1 * k * (chosen - r)).sigmoid()).mean()

    return _gradient(loss, [x])


def hyena_gradient(q: Any, k: Any, v: Any, w: Any, dy: Any) -> tuple[Any, ...]:
    """A gated causal convolution of a gated input, differentiated by torch: [b, c, t] and w [c, 1, 3]."""
    from torch.nn import functional as F

    def gated(q: Any, k: Any, v: Any, w: Any) -> Any:
        return q * F.conv1d(F.pad(k * v, (2, 0)), w, groups=k.shape[1])

    return _gradient(gated, [q, k, v, w], dy)


def group_norm_silu_gradient(x: Any, g: Any, b: Any, dy: Any) -> tuple[Any, ...]:
    """Of silu(GroupNorm of 32 groups), differentiated by torch: x and dy [n, c, s]."""
    from torch.nn import functional as F

    return _gradient(lambda x, g, b: F.silu(F.group_norm(x, 32, g, b)), [x, g, b], dy)


def sink_attention_gradient(q: Any, k: Any, v: Any, z: Any, do: Any) -> tuple[Any, ...]:
    """Causal attention with a learned sink z [h], differentiated by torch."""
    import torch

    def attention(q: Any, k: Any, v: Any, z: Any) -> Any:
        s = _seen(_scores(q, k), lambda i, j: j <= i)
        beside = z[:, None, None].expand(*s.shape[:2], 1)
        return torch.cat([s, beside], -1).softmax(-1)[..., :-1] @ v

    return _gradient(attention, [q, k, v, z], do)


def xielu_gradient(x: Any, a: Any, b: Any, dy: Any) -> tuple[Any, ...]:
    """Of xIELU with learned a and b, differentiated by torch."""
    import torch

    def xielu(x: Any, a: Any, b: Any) -> Any:
        below = (torch.expm1(x.clamp(max=-1e-6)) - x) * b + 0.5 * x
        return torch.where(x > 0, a * x * x + 0.5 * x, below)

    return _gradient(xielu, [x, a, b], dy)


def gated_residual_gradient(x: Any, y: Any, a: Any, s: Any, b: Any, dz: Any, dn: Any) -> tuple[Any, ...]:
    """Of z = x + a*y and its LayerNorm, scaled by 1 + s and shifted by b, differentiated by torch (adaLN-zero)."""

    def loss(x: Any, y: Any, a: Any, s: Any, b: Any) -> Any:
        z = x + a[:, None] * y
        centred = z - z.mean(-1, keepdim=True)
        n = centred * (centred.square().mean(-1, keepdim=True) + EPS).rsqrt() * (1 + s[:, None]) + b[:, None]
        return (z * dz).sum() + (n * dn).sum()

    return _gradient(loss, [x, y, a, s, b])


def packed_gates_gradient(z: Any, c: Any, dh: Any, dc: Any) -> tuple[Any, ...]:
    """Of an LSTM's cell, differentiated by torch: its four gates z [b, 4 d] side by side, its state c [b, d]."""

    def loss(z: Any, c: Any) -> Any:
        i, f, g, o = z.chunk(4, -1)
        n = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return (o.sigmoid() * n.tanh() * dh).sum() + (n * dc).sum()

    return _gradient(loss, [z, c])


def cosine_triplet_gradient(a: Any, p: Any, q: Any) -> tuple[Any, ...]:
    """Of a triplet loss of cosines, differentiated by torch."""
    from torch.nn import functional

    def loss(a: Any, p: Any, q: Any) -> Any:
        a, p, q = (functional.normalize(x, dim=-1) for x in (a, p, q))
        return functional.relu((a * q).sum(-1) - (a * p).sum(-1) + 0.2).mean()

    return _gradient(loss, [a, p, q])


def differential_attention_gradient(q: Any, k: Any, u: Any, w: Any, v: Any, do: Any) -> tuple[Any, ...]:
    """Of differential attention, differentiated by torch: q and k [h, s, d], u and w the second, v [h, s, f]."""

    def attended(q: Any, k: Any, u: Any, w: Any, v: Any) -> Any:
        return (_scores(q, k).softmax(-1) - 0.4 * _scores(u, w).softmax(-1)) @ v

    return _gradient(attended, [q, k, u, w, v], do)


def pair_bias_attention_gradient(q: Any, k: Any, v: Any, z: Any, do: Any) -> tuple[Any, ...]:
    """Of attention with a bias z [h, s, s] for all of a batch (Evoformer), differentiated by torch, z too."""

    def attended(q: Any, k: Any, v: Any, z: Any) -> Any:
        return (_scores(q, k) + z).softmax(-1) @ v

    return _gradient(attended, [q, k, v, z], do)


def skewed_kl_gradient(x: Any, y: Any) -> tuple[Any, ...]:
    """Of KL(p || 0.9 p' + 0.1 p), student logits x [m, v], teacher logits y, differentiated by torch (DistiLLM)."""
    p = y.softmax(-1)

    def loss(x: Any) -> Any:
        return (p * (p.log() - (0.9 * x.softmax(-1) + 0.1 * p).log())).sum(-1).mean()

    return _gradient(loss, [x])


def monarch(x: Any, u: Any, w: Any) -> Any:
    """A Monarch matrix: x [m, a, a] by a blocks u, then, the two axes changed, by a blocks w."""
    import torch

    return torch.einsum("mac,cad->mdc", torch.einsum("mab,abc->mac", x, u), w)


def queue_places(x: Any) -> tuple[Any, ...]:
    """Switch routing: of logits x [m, e] the best expert with its weight, and the token's place in its queue."""
    import torch

    weight, best = x.softmax(-1).max(-1)
    chosen = (torch.arange(x.shape[1], device=x.device) == best[:, None]).to(torch.int32)
    return weight, best, ((chosen.cumsum(0) - 1) * chosen).sum(-1)


def bilinear_samples(x: Any, at: Any) -> Any:
    """Of images x [n, c, h, w] at places `at` [n, p, 2] from -1 to 1, corners gathered of flat images."""
    _, c, h, w = x.shape
    px, py = (at[..., 0] + 1) * 0.5 * (w - 1), (at[..., 1] + 1) * 0.5 * (h - 1)
    left, top = px.floor().clamp(0, w - 2), py.floor().clamp(0, h - 2)
    fx, fy = (px - left)[:, None], (py - top)[:, None]
    place, flat = (top * w + left).long(), x.flatten(2)

    def corner(beside: int) -> Any:
        return flat.gather(2, (place + beside)[:, None].expand(-1, c, -1))

    above = corner(0) * (1 - fx) + corner(1) * fx
    return above * (1 - fy) + (corner(w) * (1 - fx) + corner(w + 1) * fx) * fy


def gated_depthwise_gradient(x: Any, w: Any, dy: Any) -> tuple[Any, ...]:
    """Of silu(depthwise convolution of a GLU), differentiated by torch: x [b, 2 c, t] (Conformer)."""
    from torch.nn import functional as F

    def block(x: Any, w: Any) -> Any:
        return F.silu(F.conv1d(F.glu(x, dim=1), w, padding=w.shape[-1] // 2, groups=w.shape[0]))

    return _gradient(block, [x, w], dy)


def transposed_convolution(x: Any, w: Any, b: Any) -> Any:
    """Twice as large, with a leaky ReLU: x [n, c, s, s], w [c, o, 4, 4]."""
    from torch.nn import functional as F

    return F.leaky_relu(F.conv_transpose2d(x, w, b, stride=2, padding=1), 0.2)


def giou_gradient(p: Any, q: Any) -> tuple[Any, ...]:
    """Of the mean generalised IoU loss of boxes [m, 4], differentiated by torch."""
    import torch

    def area(x: Any) -> Any:
        return (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])

    def loss(p: Any) -> Any:
        inner = (torch.min(p[:, 2:], q[:, 2:]) - torch.max(p[:, :2], q[:, :2])).clamp(min=0)
        outer = (torch.max(p[:, 2:], q[:, 2:]) - torch.min(p[:, :2], q[:, :2])).clamp(min=0)
        both, hull = inner[:, 0] * inner[:, 1], outer.prod(-1)
        union = area(p) + area(q) - both
        return (1 - both / (union + 1e-7) + (hull - union) / (hull + 1e-7)).mean()

    return _gradient(loss, [p])


def triangle_update(
    z: Any, g1: Any, b1: Any, wa: Any, wb: Any, ga: Any, gb: Any, g2: Any, b2: Any, wo: Any, go: Any
) -> Any:
    """AlphaFold's triangle multiplication, outgoing edges: of pairs z [n, n, c], with its norms and its gates."""
    import torch
    import torch.nn.functional as F

    x = F.layer_norm(z, z.shape[-1:], g1, b1)
    a, b = ((x @ g).sigmoid() * (x @ w) for g, w in ((ga, wa), (gb, wb)))
    y = torch.einsum("ikd,jkd->ijd", a, b)
    return (x @ go).sigmoid() * (F.layer_norm(y, y.shape[-1:], g2, b2) @ wo)


def compressed_attention(q: Any, k: Any, v: Any) -> Any:
    """NSA's first branch: q [h, s, d], k and v [s, d], each block of 32 places as its mean once it has ended."""
    import torch

    keys, values = (x.reshape(-1, 32, x.shape[-1]).mean(1) for x in (k, v))
    i, j = (torch.arange(x.shape[-2], device=q.device) for x in (q, keys))
    ended = j * 32 + 31 <= i[:, None]
    s = torch.where(ended, _scores(q, keys), -torch.inf)
    p = torch.where(ended, (s - s.amax(-1, keepdim=True)).exp(), 0.0)
    return (p @ values) / p.sum(-1, keepdim=True).clamp(min=1e-9)


_HEADS = "h=32 s=4096 d=128"
_QKV = "q:h,s,d k:h,s,d v:h,s,d"
_NORM_BACKWARD = f"{LIGER}: one persistent kernel reads x and dy once, partial sums per program, a combine"
_FUSED = f"{LIGER}: one kernel"

KNOWN = (
    Known("RMSNorm", rms_norm, "x:m,n g:n", _ROWS, source=_FUSED),
    Known(
        "RMSNorm backward",
        rms_norm_backward,
        "x:m,n g:n dy:m,n",
        _ROWS,
        "0",
        "8*P*n",
        2,
        _NORM_BACKWARD,
    ),
    Known("LayerNorm", layer_norm, "x:m,n g:n b:n", _ROWS, source=_FUSED),
    Known(
        "LayerNorm backward",
        layer_norm_backward,
        "x:m,n g:n dy:m,n",
        _ROWS,
        "0",
        "16*P*n",
        2,
        _NORM_BACKWARD,
    ),
    Known("add+RMSNorm", add_rms_norm, "x:m,n r:m,n g:n", _ROWS, source=_FUSED),
    Known(
        "add+RMSNorm backward",
        add_rms_norm_backward,
        "h:m,n g:n dy:m,n ds:m,n",
        _ROWS,
        "0",
        "8*P*n",
        2,
        _NORM_BACKWARD,
    ),
    Known("DyT", dyt, "x:m,n a:1 g:n b:n", _ROWS, source=_FUSED),
    Known(
        "DyT backward",
        dyt_backward,
        "x:m,n a:1 g:n dy:m,n",
        _ROWS,
        "0",
        "16*P*n",
        2,
        _NORM_BACKWARD,
    ),
    Known("PolyNorm", poly_norm, "x:m,n w:3 b:1", _ROWS, source=_FUSED),
    Known(
        "PolyNorm backward",
        poly_norm_backward,
        "x:m,n w:3 dy:m,n",
        _ROWS,
        "0",
        "32*P",
        2,
        f"{LIGER}: one persistent kernel, four partial sums a program, a combine",
    ),
    Known("GroupNorm", group_norm, "x:n,c,s g:c b:c", "n=16 c=256 s=1024", source=_FUSED),
    Known(
        "GroupNorm backward",
        group_norm_backward,
        "x:n,q,c,s g:q,c dy:n,q,c,s",
        "n=16 q=32 c=8 s=1024",
        "0",
        "16*n*q*c",
        2,
        f"{LIGER}: one kernel a group, partial dg and db",
    ),
    Known(
        "BatchNorm training",
        batch_norm_training,
        "x:n,c,s g:c b:c",
        "n=16 c=256 s=1024",
        source=f"{LEAST} (a channel's 32 KB stay on chip)",
    ),
    Known("softmax", softmax, "x:m,n", _ROWS, source=_FUSED),
    Known("softmax backward", softmax_backward, "p:m,n dp:m,n", _ROWS, source=_FUSED),
    Known("log-softmax", log_softmax, "x:m,n", _ROWS),
    Known(
        "variance of long rows",
        variance,
        "x:m,n",
        "m=1024 n=262144",
        source="T. F. Chan et al., 1979: counts, means and sums of squares about them are merged, in one pass",
    ),
    Known(
        "standard deviation of all",
        standard_deviation,
        "x:n/float32",
        "n=1000000",
        more="32*P",
        source="T. F. Chan et al., 1979, in one launch: the last program merges (CUDA's threadFenceReduction)",
    ),
    Known("logsumexp", logsumexp, "x:m,n", "m=4096 n=32768"),
    Known("cosine similarity", cosine_similarity, "x:m,n y:m,n", _ROWS),
    Known("nGPT residual", ngpt_residual, "h:m,n b:m,n a:n", _ROWS),
    Known("SwiGLU", swiglu, "a:m,n b:m,n", _ROWS, source=_FUSED),
    Known("SwiGLU backward", swiglu_backward, "a:m,n b:m,n dy:m,n", _ROWS, source=_FUSED),
    Known("GEGLU", geglu, "a:m,n b:m,n", _ROWS, source=_FUSED),
    Known("GEGLU backward", geglu_backward, "a:m,n b:m,n dy:m,n", _ROWS, source=_FUSED),
    Known("ReLU squared", relu_squared, "x:m,n", _ROWS, source=_FUSED),
    Known(
        "RoPE",
        rope,
        "q:b,h,s,d k:b,h,s,d c:s,d i:s,d",
        "b=4 h=32 s=2048 d=128",
        source=_FUSED,
    ),
    Known(
        "RoPE backward",
        rope_backward,
        "q:b,h,s,d k:b,h,s,d c:s,d i:s,d",
        "b=4 h=32 s=2048 d=128",
        source=_FUSED,
    ),
    Known(
        "cross-entropy", cross_entropy, "x:m,v t:m/int64<v", "m=4096 v=32768", "0", "8*m", 2, f"{LIGER}, its mean apart"
    ),
    Known(
        "cross-entropy with gradient",
        cross_entropy_both,
        "x:m,v t:m/int64<v",
        "m=4096 v=32768",
        "0",
        "2*m*v",
        1,
        f"{LIGER}: one kernel, two passes over the logits",
    ),
    Known(
        "linear cross-entropy",
        linear_cross_entropy,
        "x:m,k w:v,k t:m/int64<v",
        "m=1024 k=2048 v=32768",
        "2*m*k*v",
        source="Cut Your Losses (Wijmans 2024): no logits in memory",
    ),
    Known(
        "linear cross-entropy backward",
        linear_cross_entropy_backward,
        "x:m,k w:v,k t:m/int64<v",
        "m=1024 k=2048 v=32768",
        "6*m*k*v",
        "4*2*m*v",
        4,
        f"{LIGER}: logits in chunks, the gradient in their place, library products",
    ),
    Known("KL", kl, "p:m,v+ q:m,v+", "m=4096 v=32768", source=_FUSED),
    Known("KL backward", kl_backward, "p:m,v", "m=4096 v=32768", source=_FUSED),
    Known(
        "JSD with gradient",
        jsd,
        "p:m,v q:m,v",
        "m=4096 v=32768",
        source=_FUSED,
    ),
    Known("TVD", tvd, "p:m,v q:m,v", "m=4096 v=32768", source=_FUSED),
    Known("attention", attention, _QKV, _HEADS, "4*h*s*s*d", source=FLASH),
    Known("causal attention", causal, _QKV, _HEADS, "2*h*s*s*d", source=FLASH),
    Known("causal attention, finite mask", causal_finite, _QKV, _HEADS, "2*h*s*s*d", source=FLASH),
    Known("GQA causal", gqa, "q:h,g,s,d k:h,s,d v:h,s,d", "h=8 g=4 s=4096 d=128", "2*h*g*s*s*d", source=FLASH),
    Known(
        "sliding window attention",
        sliding,
        _QKV,
        _HEADS,
        "4*h*(s*1024 - 1024*1024/2)*d",
        source=f"{FLASH}: tiles outside the window skipped",
    ),
    Known("ALiBi attention", alibi, f"{_QKV} a:h", _HEADS, "2*h*s*s*d", source=FLASH),
    Known("softcap attention", softcap, _QKV, _HEADS, "4*h*s*s*d", source=FLASH),
    Known("QK-norm attention", qk_norm_attention, _QKV, _HEADS, "4*h*s*s*d", source=FLASH),
    Known(
        "attention backward",
        attention_backward,
        f"{_QKV} o:h,s,d",
        _HEADS,
        "14*h*s*s*d",
        "2*4*h*s*d + 16*h*s",
        3,
        f"{FLASH}: the forward's rows, then dk and dv with dq, scores computed twice",
    ),
    Known(
        "differential attention",
        differential,
        "q:h,s,d k:h,s,d r:h,s,d l:h,s,d v:h,s,d z:1",
        "h=16 s=4096 d=128",
        "8*h*s*s*d",
        source="Differential Transformer (Ye 2024): two flash passes in one kernel",
    ),
    Known(
        "MLA decode",
        mla_decode,
        "q:b,h,r p:b,h,e c:b,s,r k:b,s,e",
        "b=8 h=128 r=512 e=64 s=4096",
        "2*b*h*s*(2*r + e)",
        "8*b*h*r*4",
        2,
        "FlashMLA: the cache read once, split over keys",
    ),
    Known(
        "MLA decode with projections",
        mla_decode_written,
        "q:b,h,f p:b,h,e u:h,f,r w:h,f,r c:b,s,r k:b,s,e",
        "b=8 h=128 r=512 e=64 f=128 s=4096",
        "2*b*h*s*(2*r + e) + 4*b*h*f*r",
        "8*b*h*r*4 + 8*b*h*r",
        4,
        "FlashMLA and two batched products",
    ),
    Known(
        "linear attention",
        linear_attention,
        _QKV,
        "h=32 s=4096 d=128",
        "2*h*s*(2*d*d + 128*2*d/2)",
        "8*h*s*d",
        2,
        "Flash Linear Attention (Yang 2024): chunks of 128; their states, for which k and v are read once more",
    ),
    Known(
        "gated linear attention",
        gated_linear_attention,
        f"{_QKV} a:h,s",
        _HEADS,
        "2*h*s*(2*d*d + 128*2*d/2)",
        "8*h*s*d + 2*h*s",
        2,
        "Flash Linear Attention (Yang 2024), simple_gla: chunks of 128; k, v and the gates are read twice",
        vector="h*s*(7*128/2 + 2*d + 2*d*d/128)",
        assume="a <= 0",
    ),
    Known(
        "linear attention, gates per channel",
        channel_gated_linear_attention,
        f"{_QKV} g:h,s,d",
        _HEADS,
        "2*h*s*(2*d*d + 128*2*d/2)",
        "10*h*s*d",
        2,
        "Flash Linear Attention (Yang 2024), gla: chunks of 128; k, v and the gates are read twice",
        vector="h*s*(128/2 + 34*d + 2*d*d/128)",
        assume="g <= 0",
    ),
    Known(
        "retention",
        retention,
        _QKV,
        "h=8 s=4096 d=128",
        "2*h*s*(2*d*d + 128*2*d/2)",
        "8*h*s*d",
        2,
        "Flash Linear Attention (Yang 2024): chunks of 128; k and v are read twice",
        vector="h*s*(7*128/2 + 2*d + 2*d*d/128)",
    ),
    Known(
        "Mamba-2, quadratic form",
        state_space,
        "x:h,s,d a:h,s b:s,n c:s,n",
        "h=64 s=4096 d=64 n=128",
        "2*h*s*(2*d*n + 128*(d + n)/2)",
        "2*h*s*d + 4*h*s*n*d/128 + 2*h*s",
        2,
        "Mamba-2 (Dao & Gu 2024): chunks of 128 with the recurrence over states in the pass that makes them",
        vector="h*s*(7*128/2 + d + n + 2*d*n/128)",
        assume="a <= 0",
    ),
    Known("GELU linear", gelu_linear, "x:m,k w:n,k b:n", "m=1024 k=4096 n=4096", "2*m*k*n"),
    Known(
        "GELU linear backward",
        gelu_linear_backward,
        "x:m,k w:n,k b:n dy:m,n",
        "m=1024 k=4096 n=4096",
        "6*m*k*n",
        "2*3*m*n + 2*m*k + 2*n*k",
        3,
        "the activation's gradient stored once, as an epilogue, then two products",
    ),
    Known(
        "gated MLP",
        gated_mlp,
        "x:m,k g:k,n u:k,n d:n,k",
        "m=16 k=4096 n=14336",
        "6*m*k*n",
        "4*m*n",
        2,
        "two products with one epilogue, then a product",
    ),
    Known("RMSNorm+Linear", norm_linear, "x:m,k g:k w:k,n", "m=16 k=4096 n=4096", "2*m*k*n", source="Mirage (Wu 2024)"),
    Known(
        "RMSNorm+QKV",
        norm_qkv,
        "x:m,k g:k q:k,n r:k,e v:k,e",
        "m=16 k=4096 n=4096 e=1024",
        "2*m*k*(n + 2*e)",
        source="Mirage (Wu 2024): the norm in the products' kernel",
    ),
    Known(
        "LoRA",
        lora,
        "x:m,k w:k,n a:k,r b:r,n",
        "m=16 k=4096 n=4096 r=16",
        "2*m*k*n + 2*m*r*(k + n)",
        "4*m*r",
        2,
        "S-LoRA: the narrow product, then the wide one with its epilogue",
    ),
    Known(
        "MoE, dense",
        moe,
        "x:m,k p:m,e u:e,k,n d:e,n,k",
        "m=64 k=1024 n=2048 e=8",
        "4*m*k*n*e",
        "4*m*n*e",
        2,
        "grouped products: hidden values stored once",
    ),
    Known("int8 linear", int8_linear, "x:m,k w:n,k/int8 s:n", "m=16 k=4096 n=4096", "2*m*k*n"),
    Known(
        "int8 linear, rows quantised",
        dynamic_int8_linear,
        "x:m,k w:n,k/int8 s:n",
        "m=1024 k=4096 n=4096",
        "2*m*k*n",
        "2*m*k + 8*m",
        2,
        "codes of 8 bits and their scales stored, then a product with its epilogue",
    ),
    Known(
        "int4 linear",
        int4_linear,
        "x:m,k w:n,l/uint8 s:n,g z:n,g",
        "m=16 k=4096 l=2048 n=4096 g=32",
        "2*m*k*n",
        source="Marlin (Frantar 2024)",
    ),
    Known(
        "MBConv",
        mbconv,
        "x:n,c,s,s u:e,c,1,1 d:e,1,3,3 w:c,e,1,1",
        "n=8 c=64 e=256 s=56",
        "4*n*c*e*s*s",
        "2*2*2*n*e*s*s",
        3,
        "a kernel a convolution, activations as epilogues",
    ),
    Known(
        "convolution+GroupNorm",
        conv_group_norm,
        "x:n,c,s,s w:e,c,3,3 g:e b:e",
        "n=8 c=64 e=64 s=56",
        "18*n*c*e*s*s",
        "2*2*n*e*s*s",
        2,
        "cuDNN: implicit product, then one pass of the norm",
    ),
    Known(
        "mean of a full convolution",
        mean_of_full_convolution,
        "x:n,c,s,s w:e,c,3,3",
        "n=64 c=64 e=64 s=56",
        launches=2,
        source="each tap sees each place once: a product of the sums of both",
        vector="n*c*s*s + n*c*e",
    ),
    Known(
        "causal convolution backward",
        causal_conv_backward,
        "x:b,c,s w:c,4 dy:b,c,s",
        "b=8 c=2048 s=2048",
        "0",
        "32*b*c",
        2,
        "causal-conv1d (Dao): one kernel that shares the edges of its tiles, partial dw per batch",
        reason="tiles share no edges in an sGraph: the activation's gradient is stored and read back",
    ),
    Known(
        "unrolled stack",
        stacked,
        "a:m,n",
        "m=16 n=65536",
    ),
    Known(
        "crossed clamp",
        clamped,
        "x:m,n",
        _ROWS,
        "0",
        "-2*m*n",
        source="a constant: nothing is read",
    ),
    Known("powers", powers, "x:m,n", _ROWS),
    Known("common factor", common_factor, "a:m,n b:m,n c:m,n", _ROWS),
    Known("five times", added_up, "a:m,n", _ROWS),
    Known("InfoNCE", info_nce, "a:m,d b:m,d", "m=4096 d=512", "2*m*m*d", launches=2),
    Known(
        "cross-entropy with z-loss", z_loss, "x:m,v t:m/int64<v", "m=4096 v=32768", "0", "8*m", 2, "as cross-entropy's"
    ),
    Known(
        "smoothed cross-entropy",
        smoothed_cross_entropy,
        "x:m,v t:m/int64<v",
        "m=4096 v=32768",
        "0",
        "8*m",
        2,
        "as cross-entropy's",
    ),
    Known(
        "GRPO", grpo, "a:m,n b:m,n r:m,n d:m w:m,n", "m=4096 n=4096", "0", "8*m", 2, f"{LIGER}: rows, then their mean"
    ),
    Known(
        "gated RMSNorm backward",
        gated_rms_norm_backward,
        "x:m,n z:m,n g:n dy:m,n",
        "m=4096 n=4096",
        "0",
        "8*P*n",
        2,
        "as RMSNorm's",
    ),
    Known("adaptive LayerNorm", adaptive_layer_norm, "x:b,s,n a:b,n c:b,n g:b,n r:b,s,n", "b=8 s=1024 n=2048"),
    Known("two temperatures", two_temperatures, "x:m,n", "m=4096 n=4096"),
    Known("attention with sinks", sink_attention, f"{_QKV} z:h", _HEADS, "2*h*s*s*d", source=FLASH),
    Known("attention with sinks as a term", sink_as_a_term, f"{_QKV} z:h", _HEADS, "2*h*s*s*d", source=FLASH),
    Known("neighbourhood attention", neighbourhood_attention, _QKV, _HEADS, "4*h*s*512*d", source=FLASH),
    Known("prefix attention", prefix_attention, _QKV, _HEADS, "2*h*s*s*d + 2*h*512*512*d", source=FLASH),
    Known(
        "LSTM cell",
        lstm_cell,
        "x:m,k h:m,n c:m,n w:k,g u:n,g b:g",
        "m=256 k=1024 n=1024 g=4096",
        "2*m*g*(k + n)",
        "4*m*g",
        2,
        "cuDNN: a product for all gates, then what is element by element",
    ),
    Known(
        "GRU cell",
        gru_cell,
        "x:m,k h:m,n w:k,g u:n,g b:g c:g",
        "m=256 k=1024 n=1024 g=3072",
        "2*m*g*(k + n)",
        "8*m*g",
        3,
        "cuDNN: a product for each side's gates, then what is element by element",
    ),
    Known(
        "LSTM layer",
        lstm_layer,
        "x:t,m,k h:1,m,n c:1,m,n w:g,k u:g,n b:g d:g",
        "t=64 m=64 k=512 n=512 g=2048",
        "2*t*m*g*(k + n)",
        STEPS + " + 4*t*m*n",
        65,
        LAYERS,
    ),
    Known(
        "GRU layer",
        gru_layer,
        "x:t,m,k h:1,m,n w:g,k u:g,n b:g d:g",
        "t=64 m=64 k=512 n=512 g=1536",
        "2*t*m*g*(k + n)",
        STEPS,
        65,
        LAYERS,
    ),
    Known(
        "Adafactor step",
        adafactor,
        "p:m,n g:m,n",
        "m=4096 n=4096",
        "0",
        "4*m*n",
        3,
        "means of squares, the update's root mean square, the step: the gradient is read three times",
    ),
    Known(
        "squeeze and excite",
        squeeze_excite,
        "x:b,c,s,s w:c,r u:r,c",
        "b=32 c=256 s=56 r=16",
        "4*b*c*r",
        "2*b*c*s*s",
        3,
        "means, two small products, then the gate: x is read twice",
    ),
    Known(
        "ConvNeXt block",
        convnext,
        "x:b,c,s,s w:c,1,7,7 d:c g:c e:c u:c,f p:f v:f,c q:c z:c",
        "b=16 c=96 s=56 f=384",
        "4*b*s*s*c*f",
        "4*b*s*s*c + 4*b*s*s*f",
        3,
        "the convolution, then two products with what is around them",
    ),
    Known("KL of logits", kl_logits, "a:m,v b:m,v", "m=4096 v=32768", source=f"{LEAST}, all sums rescaled"),
    Known(
        "odds ratio loss",
        odds_ratio_loss,
        "x:b,s,v y:b,s,v t:b,s/int64<v u:b,s/int64<v",
        "b=4 s=1024 v=32768",
        "0",
        "16*b*s",
        2,
        f"{LIGER}, its last mean apart",
    ),
    Known("focal cross-entropy", focal_cross_entropy, "x:m,v t:m/int64<v", "m=4096 v=32768"),
    Known(
        "causal attention backward",
        causal_backward,
        f"{_QKV} o:h,s,d",
        _HEADS,
        "7*h*s*s*d",
        "2*4*h*s*d + 16*h*s",
        3,
        f"{FLASH}: as without a mask, of half the tiles",
    ),
    Known(
        "product and its half reduced",
        half_reduced,
        "x:m,k w:k,n",
        "m=2048 k=1024 n=2048",
        "2*m*k*n",
        "m*n",
        2,
        "the product, and half of it read back",
    ),
    Known(
        "normalised linear attention",
        normalised_linear_attention,
        _QKV,
        _HEADS,
        "4*h*s*d*d",
        "8*h*d*d",
        2,
        "Katharopoulos 2020: a state and the keys' sum in one pass, then one over the queries",
    ),
    Known(
        "RMSNorm+QKV+RoPE",
        norm_qkv_rope,
        "x:m,k g:k q:k,n r:k,e v:k,e c:m,128 i:m,128",
        "m=16 k=4096 n=4096 e=1024",
        "2*m*k*(n + 2*e)",
        source="as RMSNorm+QKV, the rotation as its epilogue",
    ),
    Known(
        "LayerNorm+Linear, statistics kept",
        layer_norm_linear_kept,
        "x:m,k g:k b:k w:k,n",
        "m=16 k=4096 n=4096",
        "2*m*k*n",
        source="as RMSNorm+Linear, its statistics stored for a backward pass",
    ),
    Known("state and sum of keys", state_and_sum, "k:h,s,d v:h,s,d", _HEADS, "2*h*s*d*d"),
    Known(
        "PPO with entropy",
        ppo,
        "x:m,v o:m a:m/int64<v g:m",
        "m=4096 v=32768",
        "0",
        "16*m",
        2,
        "as cross-entropy's: rows in one pass with all sums rescaled, then their mean",
    ),
    Known(
        "linear, float8 scales of blocks",
        block_scaled_linear,
        "x:m,k w:n,k s:m,g/float32 t:h,g/float32",
        "m=1024 k=4096 n=4096 g=32 h=32",
        "2*m*k*n",
        source="DeepGEMM (DeepSeek 2025): each block's product is scaled as it is added",
    ),
    Known("SwiGLU, rows quantised", swiglu_quantised, "a:m,n b:m,n", _ROWS, source="vLLM: one kernel"),
    Known("argmax of long rows", argmax, "x:m,v", "m=256 v=131072"),
    Known("Gumbel-max sampling", gumbel_sample, "x:m,v u:m,v", "m=256 v=131072"),
    Known(
        "nearest code",
        nearest_code,
        "x:m,d c:k,d",
        "m=16384 d=256 k=1024",
        "2*m*d*k",
        source="RAFT's fused L2 nearest neighbour: a product whose epilogue keeps the least",
    ),
    Known(
        "volume rendering",
        volume_rendering,
        "c:m,n,3 s:m,n d:m,n",
        "m=16384 n=128",
        source="NerfAcc (Li 2022): one scan a ray",
        vector="m*n*40",
    ),
    Known(
        "advantages, step by step",
        advantages,
        "r:t,n v:t,n z:t,n l:n",
        "t=128 n=65536",
        source=f"{LEAST}: a thread a sequence, from the last step on",
    ),
    Known(
        "moving average, step by step",
        moving_average,
        "x:t,n",
        "t=128 n=65536",
        source=f"{LEAST}: a thread a sequence",
    ),
    Known(
        "selective scan, step by step",
        selective_scan,
        "x:b,t,d z:b,t,d a:d,n p:b,t,n q:b,t,n",
        "b=256 t=32 d=1024 n=16",
        source="Mamba (Gu & Dao 2023): states on chip, inputs read once, outputs written once",
    ),
    Known(
        "gated average, step by step",
        gated_average,
        "x:b,t,d f:b,t,d",
        "b=256 t=64 d=1024",
        source="Flash Linear Attention (Yang 2024), fused_recurrent_hgrn",
    ),
    Known("cumulative product backward", cumulative_product_backward, "x:m,n y:m,n dy:m,n", "m=65536 n=128"),
    Known("running maximum", running_maximum, "x:m,n", "m=65536 n=128"),
    Known(
        "running logsumexp",
        running_logsumexp,
        "x:m,n",
        "m=65536 n=128",
        vector="m*n*40",
    ),
    Known(
        "LAMB step",
        lamb,
        "p:m,n g:m,n u:m,n/float32 s:m,n+/float32",
        "m=4096 n=4096",
        "0",
        "12*m*n",
        3,
        "apex: moments and both norms in one pass, their combine, and a pass that applies them",
    ),
    Known(
        "cross layer",
        cross_layer,
        "x:m,n h:m,n w:n,n b:n",
        "m=8192 n=1024",
        "2*m*n*n",
        source="a product whose epilogue multiplies and adds (DCN v2, Wang 2021)",
    ),
    Known(
        "RMSNorm backward, float32",
        rms_norm_backward,
        "x:m,n/float32 g:n/float32 dy:m,n/float32",
        _ROWS,
        "0",
        "8*P*n",
        2,
        _NORM_BACKWARD,
    ),
    Known("softcapped cross-entropy", softcapped_cross_entropy, "x:m,v t:m/int64<v", "m=4096 v=32768", source=_FUSED),
    Known(
        "dropout+add+LayerNorm",
        dropout_add_layer_norm,
        "x:m,n r:m,n z:m,n g:n b:n",
        _ROWS,
        source="FlashAttention's layer_norm: one kernel",
    ),
    Known("GroupNorm+SiLU", group_norm_silu, "x:n,c,s g:c b:c", "n=16 c=256 s=1024", source="apex: one kernel a group"),
    Known("AdamW step", adamw, "p:m,n g:m,n m:m,n/float32 v:m,n+/float32", "m=4096 n=4096", source="apex: one kernel"),
    Known("Lion step", lion, "p:m,n g:m,n m:m,n/float32", "m=4096 n=4096"),
    Known(
        "Newton-Schulz step",
        newton_schulz,
        "x:m,n",
        "m=1024 n=4096",
        "4*m*m*n + 2*m*m*m",
        "8*m*m",
        3,
        "Muon (Jordan 2024): three products, sums as their epilogues",
    ),
    Known("Mish backward", mish_backward, "x:m,n dy:m,n", _ROWS),
    Known("triplet loss", triplet, "a:m,n p:m,n q:m,n", "m=65536 n=128"),
    Known("sigmoid focal loss", sigmoid_focal, "x:m,n t:m,n", "m=65536 n=128", source="torchvision, in one launch"),
    Known("Dice loss", dice, "x:m,n t:m,n", "m=512 n=65536", "0", "8*m", 2, "rows, then their mean"),
    Known(
        "QK-norm+RoPE",
        qk_norm_rope,
        "q:b,h,s,d k:b,h,s,d g:d c:s,d i:s,d",
        "b=4 h=32 s=2048 d=128",
        source="vLLM: one kernel",
    ),
    Known("RoPE, interleaved", rope_interleaved, "q:b,h,s,d c:s,e i:s,e", "b=4 h=32 s=2048 d=128 e=64"),
    Known("masked softmax", masked_softmax, "x:b,h,s,s z:b,s/bool", "b=4 h=8 s=1024", source="apex: one kernel"),
    Known(
        "gradient clipping", gradient_clipping, "g:m,n", "m=4096 n=4096", "0", "2*m*n", 2, "apex: the norm, then a pass"
    ),
    Known("weight norm", weight_norm, "v:m,n g:m", "m=4096 n=4096"),
    Known("attention with bias", biased_attention, f"{_QKV} b:h,s,s", "h=16 s=2048 d=64", "4*h*s*s*d", source=FLASH),
    Known(
        "GQA decode",
        attention,
        "q:b,h,g,d k:b,h,s,d v:b,h,s,d",
        "b=8 h=8 g=4 s=8192 d=128",
        "4*b*h*g*s*d",
        source="Flash-decoding: the cache read once",
    ),
    Known(
        "attention, padded keys",
        padded_attention,
        "q:b,h,s,d k:b,h,s,d v:b,h,s,d z:b,s/bool",
        "b=2 h=16 s=4096 d=128",
        "4*b*h*s*s*d",
        source=FLASH,
    ),
    Known("attention with its logsumexp", attention_kept, _QKV, _HEADS, "4*h*s*s*d", source=FLASH),
    Known(
        "SwiGLU linear backward",
        swiglu_linear_backward,
        "y:m,k w:n,k a:m,n b:m,n",
        "m=1024 k=4096 n=4096",
        "2*m*k*n",
        source="a product with its epilogue",
    ),
    Known("causal convolution", causal_conv, "x:b,c,s w:c,4", "b=8 c=2048 s=2048", source="causal-conv1d (Dao)"),
    Known("token shift", token_shift, "x:b,s,d m:d", "b=8 s=2048 d=2048"),
    Known(
        "cosine similarity of all pairs",
        cosine_pairs,
        "a:m,d b:n,d",
        "m=4096 n=4096 d=512",
        "2*m*n*d",
        "8*m + 8*n",
        2,
        "norms, then a product with its epilogue",
    ),
    Known("PReLU backward", prelu_backward, "x:n,c,s w:c dy:n,c,s", "n=16 c=256 s=3136"),
    Known(
        "BatchNorm backward",
        batch_norm_backward,
        "x:n,c,s g:c dy:n,c,s",
        "n=16 c=256 s=1024",
        source=f"{LEAST} (a channel stays on chip)",
    ),
    Known("masked mean pooling", masked_mean, "x:b,s,d z:b,s", "b=64 s=512 d=1024"),
    Known("router", router, "x:m,k w:k,e", "m=4096 k=2048 e=64", "2*m*k*e", source="a product with its epilogue"),
    Known(
        "RWKV-4 mixing",
        rwkv_mixing,
        "k:b,t,c v:b,t,c w:c u:c",
        "b=8 t=1024 c=1024",
        source="RWKV (Peng 2023): one scan a channel, rescaled by its running maximum",
        vector="b*t*c*40",
        assume="decay >= 0",
    ),
    Known("MX quantised", mx_quantise, "x:m,b,32", "m=4096 b=128", source=LEAST),
    Known("int4 groups, as trained", fake_quantise, "x:m,b,32", "m=4096 b=128", source="torchao: one kernel"),
    Known("learned scale backward", fake_quantise_backward, "x:m,n s:m,1 dy:m,n", _ROWS),
    Known(
        "quantised by the largest of all",
        tensor_quantise,
        "x:m,n",
        _ROWS,
        "0",
        "2*m*n",
        2,
        "torchao: the largest, then a pass",
    ),
    Known("SmoothQuant rows", row_quantise, "x:m,n s:n", _ROWS),
    Known(
        "NF4 dequantised",
        dequantise_table,
        "c:m,b,64/uint8<16 t:16 s:m,b",
        "m=4096 b=64",
        source="bitsandbytes: one kernel",
    ),
    Known(
        "embedding bag",
        bag,
        "w:v,d i:b,n/int64<v",
        "v=100000 d=128 b=4096 n=32",
        source="TorchRec (FBGEMM): each row from memory once",
    ),
    Known(
        "weighted embedding bag",
        weighted_bag,
        "w:v,d i:b,n/int64<v s:b,n",
        "v=100000 d=128 b=4096 n=32",
        source="TorchRec (FBGEMM): each row from memory once",
    ),
    Known(
        "embedding+LayerNorm",
        embedding,
        "w:v,d i:b,s/int64<v p:s,d g:d b:d",
        "v=30522 d=768 b=32 s=512",
        "0",
        "2*(b*s - v)*d",
        source="each row read once",
    ),
    Known(
        "SigLIP",
        siglip,
        "a:m,d b:m,d t:1 c:1",
        "m=4096 d=768",
        "2*m*m*d",
        "8*P",
        2,
        "scores in tiles, partial sums and their sum",
    ),
    Known(
        "DPO",
        dpo,
        "x:b,s,v y:b,s,v t:b,s/int64<v u:b,s/int64<v r:b",
        "b=4 s=512 v=32768",
        "0",
        "8*b*s",
        2,
        f"{LIGER}: logits read once, then the loss",
    ),
    Known(
        "GRPO of logits",
        grpo_of_logits,
        "x:m,v t:m/int64<v o:m r:m a:m",
        "m=2048 v=32768",
        source=f"{LIGER}: one pass over the logits",
    ),
    Known(
        "distillation backward",
        distil_backward,
        "s:m,v t:m,v",
        "m=2048 v=32768",
        "0",
        "4*m*v",
        1,
        "each row twice, its sums and then the gradient",
    ),
    Known("Huber loss", huber, "x:m,n y:m,n", _ROWS, "0", "8*P", 2, "partial sums and their sum"),
    Known(
        "total variation",
        total_variation,
        "x:n,h,w",
        "n=64 h=512 w=512",
        "0",
        "8*P",
        2,
        "partial sums and their sum",
    ),
    Known(
        "gradient clipped by its norm",
        clip_norm,
        "g:m,n",
        _ROWS,
        "0",
        "2*m*n + 8*P",
        3,
        "apex: partial sums, their sum, a pass",
    ),
    Known("SGD step, Nesterov", sgd, "p:m,n g:m,n m:m,n", _ROWS, source="apex: one pass"),
    Known("row-wise Adagrad step", adagrad, "p:m,n g:m,n s:m+", "m=65536 n=128", source="TorchRec (FBGEMM): one pass"),
    Known(
        "Shampoo statistics",
        shampoo,
        "g:m,n l:m,m r:n,n",
        "m=2048 n=2048",
        "2*m*n*(m + n)",
        launches=2,
        source="two products with epilogues",
    ),
    Known("RoPE of half the channels", partial_rope, "q:b,h,s,d c:s,e i:s,e", "b=4 h=32 s=2048 d=128 e=64"),
    Known(
        "RoPE, places looked up",
        looked_up_rope,
        "q:b,h,s,d c:n,d i:n,d p:b,s/int64<n",
        "b=4 h=32 s=2048 d=128 n=2048",
        source="vLLM: one kernel",
    ),
    Known(
        "load balancing loss",
        balance,
        "x:m,e",
        "m=16384 e=64",
        "0",
        "16*P*e",
        2,
        "partial sums by expert and their sum",
    ),
    Known("experts combined", combine, "y:m,k,d w:m,k", "m=4096 k=8 d=4096"),
    Known(
        "rows permuted for experts",
        permuted,
        "x:m,d r:n/int64<m w:n",
        "m=4096 d=4096 n=8192",
        "0",
        "2*(n - m)*d",
        source="each row read where it is wanted",
    ),
    Known("sigmoid attention", sigmoid_attention, _QKV, _HEADS, "4*h*s*s*d", source="FlashSigmoid (Ramapuram 2024)"),
    Known("softmax off by one", softmax_one, _QKV, _HEADS, "4*h*s*s*d", source=FLASH),
    Known(
        "cosine attention with bias",
        cosine_attention,
        f"{_QKV} t:h b:h,s,s",
        "h=32 s=1024 d=64",
        "4*h*s*s*d",
        source=FLASH,
    ),
    Known(
        "document attention",
        document_attention,
        f"{_QKV} d:s/int64<h",
        _HEADS,
        "2*h*s*s*d",
        source=f"{FLASH}, causal tiles",
    ),
    Known(
        "forgetting attention",
        forgetting_attention,
        f"{_QKV} c:h,s",
        _HEADS,
        "2*h*s*s*d",
        source="Lin 2025: FlashAttention with a bias of two vectors",
    ),
    Known(
        "delta rule, step by step",
        delta_net,
        "q:t,d k:t,d v:t,d b:t",
        "t=512 d=64",
        source="FLA (fused recurrent): the state on chip",
        reason="three launches: what steps are given and the state that they begin with are stored before them",
    ),
    Known(
        "global response norm",
        response_norm,
        "x:n,s,c g:c b:c",
        "n=64 s=784 c=384",
        "0",
        "2*n*s*c + 8*n*c",
        2,
        "norms, then a pass",
    ),
    Known("InstanceNorm", instance_norm, "x:n,c,s g:c b:c", "n=32 c=256 s=4096", source=_FUSED),
    Known("L2 norm backward", normalise_backward, "x:m,n dy:m,n", _ROWS),
    Known("BatchNorm+ReLU, as run", batch_norm_relu, "x:n,c,s m:c v:c+ g:c b:c", "n=32 c=256 s=4096"),
    Known(
        "causal softmax",
        causal_softmax,
        "x:b,s,s",
        "b=64 s=2048",
        "0",
        "-b*s*s",
        source="apex: of a row what is not masked",
    ),
    Known(
        "causal softmax backward",
        causal_softmax_backward,
        "p:b,s,s d:b,s,s",
        "b=64 s=2048",
        "0",
        "-2*b*s*s",
        source="apex: of a row what is not masked",
    ),
    Known("bias+GELU backward", bias_gelu_backward, "x:m,n b:n dy:m,n", _ROWS, "0", "8*P*n", 2, _NORM_BACKWARD),
    Known("images of bytes", pixels, "x:n,h,w,3/uint8 m:3 s:3", "n=64 h=224 w=224"),
    Known(
        "mixup",
        mixup,
        "x:n,p o:n/int64<n s:n",
        "n=256 p=150528",
        "0",
        "2*n*p",
        source="each image and its partner read",
    ),
    Known("contrast", contrast, "x:n,3,p b:n", "n=64 p=50176", "0", "6*n*p", 2, "means, then a pass"),
    Known(
        "InstanceNorm backward",
        instance_norm_backward,
        "x:n,c,s g:c dy:n,c,s",
        "n=32 c=256 s=4096",
        "0",
        "16*n*c",
        2,
        "one kernel a row, partial dg and db",
    ),
    Known(
        "GroupNorm+SiLU backward",
        group_norm_silu_backward,
        "x:n,q,c,s g:q,c b:q,c dy:n,q,c,s",
        "n=16 q=32 c=8 s=1024",
        "0",
        "16*n*q*c",
        2,
        "as GroupNorm's",
    ),
    Known("bilinear upsampling", upsampled, "x:n,c,h,w", "n=16 c=64 h=64 w=64"),
    Known("bilinear upsampling backward", upsampled_backward, "dy:n,c,h,w", "n=16 c=64 h=128 w=128"),
    Known(
        "max pooling backward", largest_backward, "x:n,c,h,w dy:n,c,p,q", "n=16 c=64 h=112 w=112 p=56 q=56", "0", "0", 2
    ),
    Known("average pooling backward", average_backward, "dy:n,c,h,w", "n=16 c=64 h=56 w=56"),
    Known(
        "CLIP loss",
        clip_loss,
        "a:m,d b:m,d",
        "m=4096 d=512",
        "2*m*m*d",
        "2*2*8*m*m/128",
        2,
        "scores in tiles of 128, of each the sums of its rows and of its columns, and their sums",
        reason="no kernel carries sums over rows and over columns at once: the scores are stored",
    ),
    Known(
        "Barlow Twins",
        barlow_twins,
        "a:m,d b:m,d",
        "m=4096 d=2048",
        "2*m*d*d",
        "4*m*d + 32*d + 8*P",
        3,
        "statistics of columns, a product with its epilogue, their sum",
    ),
    Known(
        "LayerNorm to shifted windows",
        shifted_windows,
        "x:n,s,s,c g:c b:c",
        "n=32 s=64 c=192",
        source=LEAST + ", as Swin's window_process kernel does without the norm",
    ),
    Known(
        "window attention",
        windows,
        "q:b,y,y,h,d k:b,y,y,h,d v:b,y,y,h,d z:h,64,64",
        "b=16 y=64 h=8 d=32",
        "4*b*y*y*64*h*d",
        source=f"{FLASH}, of windows where they are",
    ),
    Known(
        "prefill, pages looked up",
        paged_prefill,
        "q:s,h,d k:p,16,h,d v:p,16,h,d t:n/int64<p z:1/int64<1",
        "s=2048 h=32 d=128 p=512 n=512",
        "4*h*s*16*n*d",
        source="FlashInfer (Ye 2025)",
        reason="found in one pass, a page a trip; by the model two passes with products over many pages are faster",
    ),
    Known(
        "Adam step of 8 bits",
        eight_bit_adam,
        "p:m,b,256 g:m,b,256 m:m,b,256/int8 a:m,b/float32 v:m,b,256/uint8 c:m,b/float32",
        "m=4096 b=16",
        source="bitsandbytes: one kernel",
    ),
    Known(
        "gated linear attention backward",
        gated_linear_attention_backward,
        f"{_QKV} a:h,s o:h,s,d",
        _HEADS,
        "2*h*s*(4*d*d + 5*128*d/2)",
        "16*h*s*d",
        4,
        "Flash Linear Attention (Yang 2024), simple_gla: chunks of 128; everything is read twice",
        reason="three regions, one a gradient, read the same tensors",
        vector="h*s*(7*128/2 + 2*d + 4*d*d/128)",
        assume="a <= 0",
    ),
    Known(
        "relative attention", relative_attention, f"{_QKV} b:h,z", "h=16 s=2048 d=64 z=4095", "4*h*s*s*d", source=FLASH
    ),
    Known("cross-entropy of soft labels", soft_cross_entropy, "x:m,v t:m,v", "m=2048 v=32768"),
    Known(
        "attention in chunks",
        chunked_attention,
        _QKV,
        _HEADS,
        "2*h*s*1024*d",
        source=f"{FLASH}, of each chunk",
        vector="h*s*1024*6/2",
    ),
    Known(
        "generalised JSD of logits",
        generalised_jsd,
        "x:m,v y:m,v",
        "m=2048 v=32768",
        "0",
        "4*m*v",
        1,
        f"{LIGER}: sums, then the mixture, each row read twice",
    ),
    Known(
        "attention with a decomposed bias",
        decomposed_attention,
        "q:h,4096,d k:h,4096,d v:h,4096,d a:h,4096,64 b:h,4096,64",
        "h=12 d=64",
        "4*h*4096*4096*d",
        source=FLASH,
    ),
    Known(
        "window and global tokens",
        window_and_global,
        _QKV,
        "h=16 s=4096 d=64",
        "4*h*d*(s*513 + 2*64*s)",
        source=f"{FLASH}, of tiles that are not hidden (Longformer, Beltagy 2020)",
        vector="h*(s*513 + 2*64*s)*10",
    ),
    Known(
        "stick-breaking attention",
        stick_breaking,
        _QKV,
        "h=16 s=2048 d=64",
        "2*h*s*s*d",
        source="Tan 2024: one kernel, of the tiles before the row",
        vector="h*s*s*40/2",
    ),
    Known(
        "attention backward, rows kept",
        attention_backward_kept,
        f"{_QKV} o:h,s,d l:h,s x:h,s,d",
        _HEADS,
        "10*h*s*s*d",
        "2*4*h*s*d + 12*h*s",
        3,
        FLASH,
    ),
    Known(
        "mLSTM",
        mlstm,
        f"{_QKV} i:h,s f:h,s",
        "h=8 s=4096 d=128",
        "2*h*s*s*d",
        "8*h*s",
        2,
        "sums of gates, then as FlashAttention (Beck 2024)",
    ),
    Known(
        "supervised contrastive loss",
        supervised_contrastive,
        "z:n,d t:n/int64<128",
        "n=8192 d=256",
        "2*n*n*d",
        "4*n*d + 8*n",
        3,
        "rows normed, scores in tiles with both sums, their mean",
    ),
    Known(
        "Sinkhorn",
        sinkhorn,
        "x:m,4,4",
        "m=262144",
        source=LEAST,
    ),
    Known(
        "embedding backward",
        embedding_backward,
        "y:m,d i:m/int64<32000",
        "m=8192 d=2048",
        launches=2,
        vector="m*d",
        source=f"{LIGER}: zeros, then each row is added where it belongs",
        reason="bfloat16 is added up in a buffer in float32: zeros, additions and the conversion move it",
    ),
    Known(
        "embedding backward float32",
        embedding_backward,
        "y:m,d/float32 i:m/int64<32000",
        "m=8192 d=2048",
        more="8*m*d",
        launches=2,
        vector="m*d",
        source=f"{LIGER}: zeros, then each row is read, added to and written where it belongs",
    ),
    Known(
        "messages along edges",
        messages,
        "x:v,d/float32 s:e/int64<v t:e/int64<v",
        "v=100000 e=1000000 d=64",
        more="8*v*d",
        launches=2,
        vector="e*d",
        source="zeros, then an edge after the other: sums are read, added to and written",
    ),
    Known(
        "means over edges",
        segment_means,
        "x:v,d/float32 s:e/int64<v t:e/int64<v",
        "v=100000 e=1000000 d=64",
        more="16*v*d + 16*v",
        launches=3,
        vector="e*d + e + v*d + v",
        source="zeros, an edge after the other to sums and counts, and their quotient",
    ),
    Known(
        "histogram",
        histogram,
        "b:n/int64<4096",
        "n=16777216",
        launches=2,
        vector="n",
        source="zeros, then one addition an element: bins stay in L2",
    ),
    Known(
        "sparse step",
        sparse_step,
        "w:v,d/float32 g:m,d/float32 i:m/int64<v",
        "v=32000 m=8192 d=2048",
        more="8*m*d",
        launches=2,
        vector="2*m*d",
        source="a copy, then each row is read, added to and written where it belongs",
    ),
    Known(
        "experts' combine",
        expert_combine,
        "y:s,d/float32 w:s/float32 t:s/int64<8192",
        "s=16384 d=2048",
        more="8*s*d",
        launches=2,
        vector="2*s*d",
        source="zeros, then each token's parts are read, added to and written",
    ),
    Known("convolution's update", convolution_update, "s:b,d,4 x:b,d w:d,4 b:d", "b=256 d=8192"),
    Known("depthwise+BatchNorm+SiLU", depthwise_bn_silu, "x:n,c,h,h w:c,1,3,3 m:c v:c+ g:c b:c", "n=32 c=128 h=56"),
    Known(
        "edge convolution",
        edge_convolution,
        "h:n,d i:n,k/int64<n w:d,o u:d,o",
        "n=32768 d=64 k=16 o=64",
        "4*n*d*o",
        "8*n*o",
        2,
        "Wang 2019: both products, then the largest of neighbours",
    ),
    Known(
        "DLRM interaction",
        dot_interaction,
        "x:b,d y:b,f,d",
        "b=8192 f=26 d=128",
        "2*b*27*27*d",
        source="one kernel (Naumov 2019; NVIDIA's DLRM)",
    ),
    Known(
        "last tokens' logits",
        last_logits,
        "x:b,s,d g:d w:d,v n:b/int64<s",
        "b=32 s=1024 d=4096 v=32000",
        "2*b*d*v",
        "-2*b*s*d + 2*b*d + 4*b*d",
        2,
        "vLLM: the rows that are wanted, then a product",
    ),
    Known(
        "NT-Xent",
        nt_xent,
        "z:n,d",
        "n=8192 d=128",
        "2*n*n*d",
        "4*n*d + 16*n",
        3,
        "rows normed, scores in tiles with their sums, their mean",
    ),
    Known(
        "SimPO",
        simpo,
        "x:b,s,v t:b,s/int64<v y:b,s,v u:b,s/int64<v",
        "b=4 s=512 v=32768",
        "0",
        "16*b*s",
        2,
        f"{LIGER}: logits read once, then the loss",
    ),
    Known(
        "GroupNorm+SiLU+convolution",
        norm_silu_convolution,
        "x:n,c,h,h g:c b:c w:o,c,3,3",
        "n=8 c=320 h=64 o=320",
        "2*n*o*c*9*h*h",
        "6*n*c*h*h",
        3,
        "statistics, what is normed once, an implicit product",
    ),
    Known(
        "STFT loss",
        spectral_loss,
        "x:m,n y:m,n c:n,f s:n,f",
        "m=16384 n=512 f=257",
        "8*m*n*f",
        "24*P",
        2,
        "four products with one epilogue, partial sums and their sum",
    ),
    Known(
        "triangle multiplication",
        triangle_multiplication,
        "a:n,n,c b:n,n,c",
        "n=256 c=128",
        "2*n*n*n*c",
        source="a product a channel",
        reason="a product a channel gives single elements: they are made in rows of another order, and copied",
    ),
    Known(
        "global response norm backward",
        response_norm_backward,
        "x:n,s,c g:c dy:n,s,c",
        "n=64 s=784 c=384",
        "0",
        "4*n*s*c + 24*n*c",
        2,
        "sums of each image and channel, then a pass",
    ),
    Known(
        "target attention",
        target_attention,
        "q:m,d h:m,s,d w:e,n b:n v:n,1",
        "m=2048 s=64 d=64 e=256 n=64",
        "2*m*s*2*d*n",
        source="DIN (Zhou 2018): products of what was seen, and with the target, those of the target once",
    ),
    Known(
        "add+RMSNorm, groups quantised",
        groups_quantised,
        "x:m,n r:m,n g:n",
        "m=4096 n=4096",
        source="vLLM, SGLang: one kernel that keeps its row",
    ),
    Known(
        "causal convolution+SiLU differentiated",
        convolution_silu_gradient,
        "x:b,c,s w:c,1,4 dy:b,c,s",
        "b=8 c=1024 s=4096",
        "0",
        "32*b*c",
        2,
        "causal-conv1d (Dao): one kernel that shares the edges of its tiles, partial dw per batch",
        reason="tiles share no edges in an sGraph: the activation's gradient is stored and read back",
    ),
    Known(
        "attention with a shared prefix",
        shared_prefix,
        "q:b,h,t,d k:1,h,s,d v:1,h,s,d m:b,h,r,d w:b,h,r,d",
        "b=32 h=8 t=16 s=4096 r=256 d=64",
        "4*b*h*t*(s + r)*d",
        "20*b*h*t*d",
        3,
        "FlashInfer (Ye 2025), cascade: the prefix for all queries, what each has, and their merge",
    ),
    Known(
        "min-p sampling",
        min_p_sampled,
        "x:m,v u:m,v",
        "m=512 v=131072",
        "0",
        "2*m*v",
        source="FlashInfer: logits twice, as a row of theirs is in no kernel",
    ),
    Known(
        "latent and rotated keys, cached",
        latent_cache_line,
        "c:m,r k:m,e g:r cos:m,f sin:m,f",
        "m=16384 r=512 e=64 f=32",
    ),
    Known(
        "multi-token scores",
        multi_token_scores,
        "x:h,s,s w:h,1,3,3",
        "h=16 s=1024",
        more="-h*s*s",
        vector="8*h*s*s",
        source="Multi-token attention (Golovneva 2025): what is seen is read once, all is written",
        reason="rows of a convolution are a buffer, and its taps go through what the mask hides",
    ),
    Known(
        "bilateral filter",
        bilateral,
        "x:n,h,h/float32",
        "n=16 h=512",
    ),
    Known(
        "Gaussian mixture, E step",
        mixture_responsibilities,
        "x:n,d m:k,d v:k,d+ p:k",
        "n=65536 d=128 k=64",
        "4*n*d*k",
        "8*k*d + 8*k",
        2,
        "what the mixture alone gives, then two products of one tile and its softmax",
    ),
    Known(
        "Kalman update",
        kalman_update,
        "x:m,4/float32 p:m,4,4/float32 h:2,4/float32 r:2,2/float32 z:m,2/float32",
        "m=262144",
    ),
    Known(
        "MLA decode, keys put together",
        latent_keys,
        "q:b,h,f p:b,h,e c:b,s,r k:b,s,e u:h,f,r w:h,r,f",
        "b=4 h=64 r=256 e=32 f=64 s=8192",
        "4*b*h*f*r + 2*b*h*s*(2*r + e)",
        "8*b*h*r*4 + 8*b*h*r",
        3,
        "FlashMLA and two batched products",
    ),
    Known(
        "simple recurrent unit, step by step",
        simple_recurrent_unit,
        "x:t,b,d w:d,e c:b,n/float32 p:n q:n",
        "t=64 b=32 d=512 n=512 e=1536",
        "2*t*b*d*e",
        "4*t*b*e",
        2,
        "Lei 2018: one product for all steps, one launch of the recurrence",
    ),
    Known(
        "ALiBi attention backward, float32 rows",
        biased_attention_backward,
        "q:h,s,d k:h,s,d v:h,s,d o:h,s,d do:h,s,d l:h,s/float32 z:h/float32",
        "h=16 s=2048 d=64",
        "7*h*s*s*d",
        "2*4*h*s*d + 16*h*s",
        3,
        FLASH,
    ),
    Known(
        "moments of columns",
        column_moments,
        "x:m,n",
        "m=65536 n=1024",
        "0",
        "128*n",
        2,
        "all four moments in one pass, combined (Pebay 2008)",
        "powers of what the mean is taken off are sums of their own, so the columns are read twice",
    ),
    Known(
        "separable convolution",
        separable_convolution,
        "x:n,c,s,s u:c,1,5,5 b:c w:o,c,1,1",
        "n=8 c=128 s=56 o=256",
        "2*n*c*o*28*28",
        reason="what is between the convolutions is stored; by the model, reading taps again costs less (1.30 reached)",
    ),
    Known("two products with one weight", shared_weight, "x:m,k y:m,k w:k,n", "m=2048 k=2048 n=2048", "2*m*k*n"),
    Known(
        "GQA backward, float32 rows",
        grouped_attention_backward,
        "q:g,r,s,d k:g,s,d v:g,s,d o:g,r,s,d l:g,r,s/float32 e:g,r,s/float32",
        "g=4 r=4 s=2048 d=128",
        "10*g*r*s*s*d",
        "4*g*r*s*d + 4*g*s*d + 8*g*r*s",
        2,
        FLASH,
    ),
    Known(
        "float32 RMSNorm+SwiGLU in float16",
        stream_norm_swiglu,
        "x:m,k/float32 g:k/float32 w:k,n/float16 u:k,n/float16",
        "m=4096 k=2048 n=5632",
        "4*m*n*k",
        "4*m*k",
        2,
        "the norm, then one kernel with both products",
    ),
    Known(
        "gated linear attention within chunks, float32 gates",
        chunk_output,
        "q:h,n,c,d k:h,n,c,d v:h,n,c,d g:h,n,c/float32",
        "h=32 n=64 c=64 d=128",
        "4*h*n*c*c*d",
        source="Flash Linear Attention (Yang 2024): one kernel",
    ),
    Known(
        "GRPO differentiated",
        grpo_gradient,
        "x:n,v t:n/int64<v o:n r:n a:n m:n",
        "n=2048 v=32768",
        "0",
        "2*n*v",
        2,
        f"{LIGER}: each row twice, its sums and then the gradient; the mask's sum",
    ),
    Known(
        "attention pooling differentiated",
        pooling_gradient,
        "x:b,s,d w:d dy:b,d",
        "b=256 s=256 d=512",
        "0",
        "2*b*s*d + 8*P*d",
        2,
        "each sequence twice, its scores and then the gradient; partial sums",
    ),
    Known(
        "Muon step",
        muon,
        "g:m,n m:m,n",
        "m=1024 n=4096",
        "4*m*m*n + 2*m*m*m",
        "10*m*n + 6*m*m",
        4,
        "momentum with its norm, then three products with epilogues",
    ),
    Known(
        "dilated attention",
        dilated_attention,
        _QKV,
        "h=16 s=2048 d=64",
        "4*h*d*256*(s - 512)",
        source=f"{FLASH}, of places with one remainder (LongNet, Ding 2023)",
        vector="h*256*(s - 512)*10",
    ),
    Known(
        "block-sparse attention",
        block_attention,
        _QKV,
        "h=16 s=2048 d=64",
        "4*h*d*s*256",
        source=f"{FLASH}, of blocks that are seen (BigBird, Zaheer 2020, without random ones)",
        vector="h*s*256*10",
    ),
    Known(
        "RWKV-6, step by step",
        rwkv6,
        "r:t,h,d k:t,h,d v:t,h,d w:t,h,d u:h,d s:h,d,d/float32",
        "t=128 h=64 d=64",
        source="Flash Linear Attention (fused recurrent): the state on chip",
        reason="found in one pass (1.42 reached); by the model all states, stored and read again, are faster",
    ),
    Known(
        "RWKV-7, step by step",
        rwkv7,
        "r:t,h,d k:t,h,d v:t,h,d w:t,h,d a:t,h,d b:t,h,d s:h,d,d/float32",
        "t=128 h=64 d=64",
        source="Flash Linear Attention (fused recurrent): the state on chip",
    ),
    Known(
        "attention with buckets",
        bucketed_attention,
        f"{_QKV} z:32,h",
        "h=16 s=2048 d=64",
        "4*h*s*s*d",
        source=f"{FLASH} with the bias looked up (FAT5)",
        vector="h*s*s*12",
        reason="the bias is stored for all pairs of places: no buffer has one place for all that are as far apart",
    ),
    Known(
        "hyper-connections backward",
        hyper_connection_backward,
        "x:m,4,d y:m,d r:m,4,4 p:m,4 g:m,4,d",
        "m=8192 d=2048",
        source=f"{LIGER} (mHC): one kernel keeps a row's streams",
    ),
    Known(
        "capped attention with a window",
        softcap_window_attention,
        "q:g,r,s,d k:g,s,d v:g,s,d",
        "g=8 r=2 s=4096 d=128",
        "4*g*r*d*(s*1024 - 1024*1024/2)",
        source=f"{FLASH} (Gemma 2)",
        vector="g*r*(s*1024 - 1024*1024/2)*20",
    ),
    Known(
        "states merged",
        merged_states,
        "v:m,k,h,d l:m,k,h/float32",
        "m=512 k=8 h=32 d=128",
        source="FlashInfer (cascade): one kernel",
    ),
    Known(
        "LoRA backward",
        lora_backward,
        "x:m,k w:k,n a:k,r b:r,n dy:m,n",
        "m=4096 k=2048 n=2048 r=16",
        "2*m*n*k + 2*m*r*(2*n + 3*k)",
        "2*m*n + 4*m*k + 8*m*r",
        5,
        "Unsloth: a product for each, that of dx adds to the one before",
    ),
    Known(
        "linear JSD",
        linear_jsd,
        "x:m,k w:k,v y:m,k u:k,v",
        "m=2048 k=1024 v=32768",
        "4*m*k*v",
        "3*4*m*v",
        4,
        f"{LIGER}: both logits are stored, read for their sums and again for the divergence",
    ),
    Known(
        "tiled MLP",
        tiled_mlp,
        "x:m,k w:k,n u:k,n d:n,k",
        "m=4096 k=1024 n=4096",
        "6*m*k*n",
        "4*m*n",
        2,
        "as the MLP that it is a part after another of: both products with their epilogue, and one",
    ),
    Known(
        "compressed attention",
        compressed_attention,
        "q:h,s,d k:s,d v:s,d",
        "h=16 s=8192 d=64",
        "2*h*s*s/32*d",
        "8*s*d/32",
        2,
        f"means of blocks, then {FLASH} (NSA, Yuan 2025)",
        vector="h*s*s/64*10",
    ),
    Known(
        "KTO differentiated",
        kto_gradient,
        "x:b,s,v t:b,s/int64<v r:b k:b",
        "b=4 s=512 v=32768",
        "0",
        "2*b*s*v + 16*b*s",
        2,
        f"{LIGER}: logits read for their sums and once more for the gradient",
    ),
    Known(
        "Hyena gate differentiated",
        hyena_gradient,
        "q:b,c,t k:b,c,t v:b,c,t w:c,1,3 dy:b,c,t",
        "b=8 c=1024 t=2048",
        "0",
        "64*4*c",
        2,
        "one kernel that keeps the edges of its tiles, partial dw per batch",
    ),
    Known(
        "GroupNorm+SiLU differentiated",
        group_norm_silu_gradient,
        "x:n,c,s g:c b:c dy:n,c,s",
        "n=16 c=512 s=1024",
        "0",
        "0",
        2,
        "Liger-Kernel's GroupNorm backward: a group at a time, partial dg and db",
    ),
    Known(
        "attention with sinks differentiated",
        sink_attention_gradient,
        "q:h,s,d k:h,s,d v:h,s,d z:h do:h,s,d",
        "h=16 s=2048 d=64",
        "7*h*s*s*d",
        "8*h*s*d + 16*h*s",
        3,
        FLASH,
        reason="found as one: gradients of queries and of keys are a kernel each, which both make the weights again",
        vector="7*h*s*s",
    ),
    Known(
        "xIELU differentiated",
        xielu_gradient,
        "x:m,n a:1 b:1 dy:m,n",
        "m=8192 n=4096",
        "0",
        "16*P",
        2,
        "one pass with partial sums of da and db",
    ),
    Known(
        "adaLN-zero differentiated",
        gated_residual_gradient,
        "x:b,s,d y:b,s,d a:b,d s:b,d c:b,d dz:b,s,d dn:b,s,d",
        "b=16 s=1024 d=1152",
        "0",
        "64*3*b*d",
        2,
        "one pass over the rows, partial sums of three gradients",
    ),
    Known(
        "gates side by side differentiated",
        packed_gates_gradient,
        "z:b,n c:b,d dh:b,d dc:b,d",
        "b=8192 d=1024 n=4096",
        source="Appleyard et al. 2016: one kernel of a cell's pointwise work",
    ),
    Known("cosine triplet loss differentiated", cosine_triplet_gradient, "a:m,n p:m,n q:m,n", "m=32768 n=768"),
    Known(
        "differential attention differentiated",
        differential_attention_gradient,
        "q:h,s,d k:h,s,d u:h,s,d w:h,s,d v:h,s,f do:h,s,f",
        "h=8 s=2048 d=64 f=128",
        "2*h*s*s*(8*d + 3*f)",
        "8*h*s*f + 32*h*s",
        3,
        FLASH,
        vector="24*h*s*s",
    ),
    Known(
        "attention with a pair bias differentiated",
        pair_bias_attention_gradient,
        "q:b,h,s,d k:b,h,s,d v:b,h,s,d z:h,s,s do:b,h,s,d",
        "b=32 h=8 s=512 d=32",
        "14*b*h*s*s*d",
        "8*b*h*s*d + 16*b*h*s + 8*h*s*s",
        4,
        "DS4Sci_EvoformerAttention: FlashAttention whose bias gradient is added up over the batch",
        reason="in parts, which hand over the weights; without them the exponentials are made four times (2.60)",
        vector="14*b*h*s*s",
    ),
    Known(
        "skewed KL differentiated",
        skewed_kl_gradient,
        "x:m,v y:m,v",
        "m=4096 v=32768",
        "0",
        "4*m*v",
        source=f"{LIGER}: both logits twice, their sums and then the gradient",
    ),
    Known(
        "Monarch product",
        monarch,
        "x:m,a,a u:a,a,a w:a,a,a",
        "m=16384 a=32",
        "4*m*a*a*a",
        source="Dao 2022: one kernel keeps a row between both products",
        reason="the batch of a product takes one place a program: what is between both goes through memory",
    ),
    Known(
        "places in experts' queues",
        queue_places,
        "x:m,e",
        "m=65536 e=64",
        "0",
        "8*m + 8*1024*64",
        3,
        "each token's expert and counts of blocks, their scan, then the places",
        "the running count of each expert is stored at all tokens, and one program has an expert",
    ),
    Known(
        "bilinear samples",
        bilinear_samples,
        "x:n,c,s,s/float32 at:n,p,2/float32",
        "n=8 c=64 s=64 p=16384",
        source="torch's grid_sample: one kernel",
    ),
    Known(
        "GLU+depthwise convolution differentiated",
        gated_depthwise_gradient,
        "x:b,e,t w:c,1,15 dy:b,c,t",
        "b=16 c=512 e=1024 t=1500",
        "0",
        "64*15*c",
        2,
        "one kernel that keeps the edges of its tiles, partial dw per batch",
    ),
    Known(
        "transposed convolution",
        transposed_convolution,
        "x:n,c,s,s w:c,o,4,4 b:o",
        "n=8 c=128 o=64 s=32",
        "2*n*c*o*16*s*s",
        source="cuDNN: four taps reach each place, in one kernel with its epilogue",
        vector="n*o*4*s*s*4",
    ),
    Known(
        "triangle update",
        triangle_update,
        "z:n,n,c g1:c b1:c wa:c,c wb:c,c ga:c,c gb:c,c g2:c b2:c wo:c,c go:c,c",
        "n=512 c=128",
        "12*n*n*c*c + 2*n*n*n*c",
        "14*n*n*c",
        3,
        "Jumper et al. 2021, algorithm 11: norm and gated projections, a product a channel, norm and gated projection",
    ),
    Known(
        "GIoU differentiated",
        giou_gradient,
        "p:m,4/float32 q:m,4/float32",
        "m=1048576",
    ),
    Known(
        "DistMult differentiated",
        distmult_gradient,
        "e:v,d/float32 r:k,d/float32 h:n/int64<v l:n/int64<k t:n/int64<v",
        "v=100000 k=256 n=65536 d=128",
        more="8*v*d + 8*k*d",
        launches=3,
        vector="8*n*d",
        source="zeros of both tables, then a triple after the other: its rows are read, added to and written",
    ),
    Known("sums of what comes before", exclusive_sums, "x:m,n/float32", "m=8192 n=8192"),
    Known(
        "retention differentiated",
        retention_gradient,
        f"{_QKV} g:h/float32 o:h,s,d",
        _HEADS,
        "2*h*s*(4*d*d + 5*128*d/2)",
        "16*h*s*d",
        4,
        "Flash Linear Attention (Yang 2024): chunks of 128; everything is read twice",
        reason="three regions, one a gradient, read the same tensors",
        vector="h*s*(7*128/2 + 2*d + 4*d*d/128)",
        assume="g <= 0",
    ),
    Known(
        "convolution+ReLU differentiated",
        relu_convolution_gradient,
        "x:n,c,s w:o,c,5 b:o dy:n,o,s",
        "n=16 c=256 s=2048 o=256",
        "30*n*c*o*s",
        "6*n*o*s + 2*n*c*s",
        3,
        "cuDNN: the convolution again with its mask as an epilogue, then a product for each gradient",
    ),
    Known("Mish GLU differentiated", mish_glu_gradient, "z:m,f dy:m,n", "m=8192 n=4096 f=8192"),
    Known(
        "attention to so many keys differentiated",
        padded_attention_gradient,
        "q:b,h,s,d k:b,h,t,d v:b,h,t,d n:b/int64<t do:b,h,s,d",
        "b=4 h=16 s=2048 t=512 d=64",
        "18*b*h*s*t*d",
        "4*b*h*(s + t)*d + 16*b*h*s",
        3,
        f"{FLASH}: rows, then dk and dv, and dq, scores computed three times",
        vector="16*b*h*s*t",
    ),
    Known(
        "upper triangle of a product",
        upper_product,
        "a:n,n b:n,n",
        "n=4096",
        "n*n*n",
        source="KernelBench, level 1: tiles that the diagonal crosses or leaves above it alone",
    ),
)
