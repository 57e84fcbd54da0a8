"""Reference functions of the suite, written as models write them: nothing in them says how to fuse.

They run in bfloat16 (what `eager` and `torch.compile` are given, and what prism traces) and in float64 (what results
are checked against). Sums of squares and softmaxes are taken in float32, as models do.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch.nn import functional

Tensor: TypeAlias = torch.Tensor
EPS = 1e-6
LORA_SCALE = 2.0
GROUP = 128
CHUNK = 128


def wide(x: Tensor) -> Tensor:
    """In float32, or in float64 as it is."""
    return x if x.dtype == torch.float64 else x.float()


def rms_norm(x: Tensor, g: Tensor) -> Tensor:
    """RMSNorm over the last dimension, as Llama's."""
    h = wide(x)
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype) * g


def plain_norm(x: Tensor) -> Tensor:
    """RMSNorm without a weight."""
    h = wide(x)
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension, in float32."""
    return torch.softmax(wide(x), -1).to(x.dtype)


def repeat_heads(k: Tensor, heads: int) -> Tensor:
    """k [b, kv, s, d] for each of `heads` query heads."""
    b, kv, s, d = k.shape
    return k[:, :, None].expand(b, kv, heads // kv, s, d).reshape(b, heads, s, d)


def rmsnorm_linear(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    """x [m, k], w [n, k]."""
    return functional.linear(rms_norm(x, g), w)


def rmsnorm_gate_up(x: Tensor, g: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """x [m, k], gate and up [n, k]."""
    h = rms_norm(x, g)
    return functional.silu(functional.linear(h, gate)) * functional.linear(h, up)


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """x [m, k], gate and up [n, k], down [k, n]."""
    return functional.linear(functional.silu(functional.linear(x, gate)) * functional.linear(x, up), down)


def gqa_decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [b, h, 1, d], k and v [b, kv, s, d]."""
    h, d = q.shape[1], q.shape[3]
    scores = q @ repeat_heads(k, h).transpose(-1, -2) * d**-0.5
    return softmax(scores) @ repeat_heads(v, h)


def gqa_prefill(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [b, h, s, d], k and v [b, kv, s, d]; causal."""
    h, s, d = q.shape[1:]
    scores = q @ repeat_heads(k, h).transpose(-1, -2) * d**-0.5
    place = torch.arange(s, device=q.device)
    later = place[None, :] > place[:, None]
    return softmax(scores.masked_fill(later, float("-inf"))) @ repeat_heads(v, h)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on halves: x [..., d], cos and sin [d]."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def qk_norm_rope_gqa_decode(q: Tensor, k: Tensor, v: Tensor, gq: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """A query, normed and rotated, over a cache that holds normed and rotated keys.

    q [b, h, 1, d], k and v [b, kv, s, d], gq, cos and sin [d].
    """
    return gqa_decode(rotate(rms_norm(q, gq), cos, sin), k, v)


def lora(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x [m, k], w [n, k], a [r, k], b [n, r]."""
    return functional.linear(x, w) + functional.linear(functional.linear(x, a), b) * LORA_SCALE


def layernorm_gelu_mlp(x: Tensor, g: Tensor, b: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """x [m, k], w1 [n, k], w2 [k, n]."""
    h = functional.layer_norm(x, (x.shape[-1],), g, b)
    return functional.linear(functional.gelu(functional.linear(h, w1, b1)), w2, b2)


def softmax_v(s: Tensor, v: Tensor) -> Tensor:
    """s [h, q, k], v [h, k, d]."""
    return softmax(s) @ v


def int8_linear(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    """x [m, k], w [n, k] int8, scale [n]."""
    return functional.linear(x, w.to(x.dtype)) * scale


def int4_linear(x: Tensor, w: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """x [m, k], w [n, k / 2] uint8 with two codes each, the low one first; scale and zero [n, k / g]."""
    n, groups = scale.shape
    codes = torch.stack((w & 15, w >> 4), -1).reshape(n, groups, -1).to(x.dtype)
    weight = ((codes - zero[..., None]) * scale[..., None]).reshape(n, -1)
    return functional.linear(x, weight)


def add_rmsnorm(x: Tensor, residual: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The normed sum, and the sum."""
    h = x + residual
    return rms_norm(h, g), h


def mla_decode(q: Tensor, qr: Tensor, c: Tensor, kr: Tensor) -> Tensor:
    """Absorbed: q [b, h, r], qr [b, h, p] over the cache c [b, s, r], kr [b, s, p]."""
    scale = (128 + qr.shape[-1]) ** -0.5
    scores = (q @ c.transpose(-1, -2) + qr @ kr.transpose(-1, -2)) * scale
    return softmax(scores) @ c


def ngpt_residual(h: Tensor, block: Tensor, alpha: Tensor) -> Tensor:
    """A step from one point of the sphere towards another, and back onto it."""

    def onto_sphere(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True))

    a, b = wide(h), onto_sphere(wide(block))
    return onto_sphere(a + wide(alpha) * (b - a)).to(h.dtype)


def logsumexp(x: Tensor) -> Tensor:
    """Over the last dimension, in float32."""
    return torch.logsumexp(wide(x), -1)


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal, without softmax, by chunks: q, k, v [h, l, d]."""
    h, length, d = q.shape
    chunk = min(CHUNK, length)
    q, k, v = (x.reshape(h, length // chunk, chunk, d) for x in (q, k, v))
    own = (q @ k.transpose(-1, -2)).tril() @ v
    states = wide(k.transpose(-1, -2) @ v)
    before = (states.cumsum(1) - states).to(q.dtype)
    return (own + q @ before).reshape(h, length, d)


def matmul_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Mirage's: q [b, s, d], k [b, d, t], v [b, t, d]."""
    return softmax(q @ k * q.shape[-1] ** -0.5) @ v


def qk_norm_matmul_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same over normed queries and keys."""
    return matmul_attention(plain_norm(q), plain_norm(k.transpose(-1, -2)).transpose(-1, -2), v)


def norm_matmul(x: Tensor, w: Tensor) -> Tensor:
    """RMSNorm, then x [m, k] @ w [k, n]."""
    return plain_norm(x) @ w


def norm_gated_matmul(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """RMSNorm, then two gated products."""
    return gated_matmul(plain_norm(x), gate, up)


def gated_matmul(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """x [m, k], gate and up [k, n]."""
    return functional.silu(x @ gate) * (x @ up)


def lora_matmul(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x [m, k], w [k, n], a [k, r], b [r, n]."""
    return x @ w + x @ a @ b


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [b, h, s, d], k and v [b, h, t, d]."""
    return softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5) @ v


def qk_norm_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same over normed queries and keys."""
    return attention(plain_norm(q), plain_norm(k), v)
