"""What the suite's functions compute, written down a second time: formulas in float64, by einsum and explicit loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

EPS = 1e-6


def normed(x: Array, axis: int = -1) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axis=axis, keepdims=True) + EPS))


def probabilities(s: Array) -> Array:
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def swish(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def heads(q: Array, k: Array, v: Array, causal: bool = False) -> Array:
    """One query head after another; its group's keys and values."""
    out = np.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            s = q[b, h] @ k[b, h // group].T / math.sqrt(q.shape[-1])
            if causal:
                for i in range(s.shape[0]):
                    s[i, i + 1 :] = -np.inf
            out[b, h] = probabilities(s) @ v[b, h // group]
    return out


def turned(x: Array, cos: Array, sin: Array) -> Array:
    half = x.shape[-1] // 2
    out = np.empty_like(x)
    for i in range(half):
        out[..., i] = x[..., i] * cos[i] - x[..., i + half] * sin[i]
        out[..., i + half] = x[..., i + half] * cos[i + half] + x[..., i] * sin[i + half]
    return out


def int4_linear(x: Array, w: Array, scale: Array, zero: Array) -> Array:
    codes = np.empty((w.shape[0], 2 * w.shape[1]))
    codes[:, 0::2], codes[:, 1::2] = w % 16, w // 16
    size = codes.shape[1] // scale.shape[1]
    for g in range(scale.shape[1]):
        block = codes[:, g * size : (g + 1) * size]
        block[:] = (block - zero[:, g : g + 1]) * scale[:, g : g + 1]
    return np.asarray(x @ codes.T)


def layernorm_gelu_mlp(x: Array, g: Array, b: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    h = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * g + b
    inner = h @ w1.T + b1
    erf = np.vectorize(math.erf)
    return np.asarray(inner * 0.5 * (1 + erf(inner / math.sqrt(2))) @ w2.T + b2)


def mla_decode(q: Array, qr: Array, c: Array, kr: Array) -> Array:
    keys, queries = np.concatenate([c, kr], -1), np.concatenate([q, qr], -1)
    scale = 1 / math.sqrt(128 + qr.shape[-1])
    return np.asarray(np.einsum("bhs,bsr->bhr", probabilities(np.einsum("bhe,bse->bhs", queries, keys) * scale), c))


def ngpt_residual(h: Array, block: Array, alpha: Array) -> Array:
    unit = block / np.linalg.norm(block, axis=-1, keepdims=True)
    moved = (1 - alpha) * h + alpha * unit
    return np.asarray(moved / np.linalg.norm(moved, axis=-1, keepdims=True))


def linear_attention(q: Array, k: Array, v: Array) -> Array:
    """Step by step: the state after each position."""
    out = np.zeros_like(v)
    state = np.zeros((q.shape[0], q.shape[2], v.shape[2]))
    for t in range(q.shape[1]):
        state += np.einsum("hd,he->hde", k[:, t], v[:, t])
        out[:, t] = np.einsum("hd,hde->he", q[:, t], state)
    return out


def matmul_attention(q: Array, k: Array, v: Array) -> Array:
    return np.asarray(probabilities(np.einsum("bsd,bdt->bst", q, k) / math.sqrt(q.shape[-1])) @ v)


REFERENCES: Mapping[str, Callable[..., Any]] = {
    "rmsnorm_linear": lambda x, g, w: (normed(x) * g) @ w.T,
    "rmsnorm_gate_up": lambda x, g, a, b: swish((normed(x) * g) @ a.T) * ((normed(x) * g) @ b.T),
    "gated_mlp": lambda x, a, b, c: (swish(x @ a.T) * (x @ b.T)) @ c.T,
    "gqa_decode": heads,
    "gqa_prefill": lambda q, k, v: heads(q, k, v, causal=True),
    "qk_norm_rope_gqa_decode": lambda q, k, v, g, cos, sin: heads(turned(normed(q) * g, cos, sin), k, v),
    "lora": lambda x, w, a, b: x @ (w + 2.0 * b @ a).T,
    "layernorm_gelu_mlp": layernorm_gelu_mlp,
    "softmax_v": lambda s, v: np.einsum("hqk,hkd->hqd", probabilities(s), v),
    "int8_linear": lambda x, w, scale: x @ (w * scale[:, None]).T,
    "int4_linear": int4_linear,
    "add_rmsnorm": lambda x, r, g: (normed(x + r) * g, x + r),
    "mla_decode": mla_decode,
    "ngpt_residual": ngpt_residual,
    "logsumexp": lambda x: np.log(np.exp(x).sum(axis=-1)),
    "linear_attention": linear_attention,
    "matmul_attention": matmul_attention,
    "qk_norm_matmul_attention": lambda q, k, v: matmul_attention(normed(q), normed(k, axis=1), v),
    "norm_matmul": lambda x, w: normed(x) @ w,
    "norm_gated_matmul": lambda x, a, b: swish(normed(x) @ a) * (normed(x) @ b),
    "gated_matmul": lambda x, a, b: swish(x @ a) * (x @ b),
    "lora_matmul": lambda x, w, a, b: x @ (w + a @ b),
    "attention": heads,
    "qk_norm_attention": lambda q, k, v: heads(normed(q), normed(k), v),
}
"""By name of the function."""
