"""The cases of `benchmarks/cpu.py`: what each computes, at which shapes, and in which ways torch can be asked for it.

A case's first function is what prism is given; the others are the same mathematics by the calls that torch is best at.
Every function is of tensors alone, so that it traces, compiles and exports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

EPS = 1e-6
Fn = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One case.

    Attributes:
        name: unique.
        shapes: of the inputs, in order.
        forms: name to function; the first is what prism is given.
        flops: operations of matrix products.
        outputs: shapes of the outputs, for the bytes.
        dtypes: the data types that it is run in.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    forms: Mapping[str, Fn]
    flops: float
    outputs: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...] = ("float32", "bfloat16")

    @property
    def elements(self) -> int:
        """Elements of inputs and outputs together, each once."""
        return sum(math.prod(s) for s in (*self.shapes, *self.outputs))

    def inputs(self, dtype: str, seed: int = 0) -> list[torch.Tensor]:
        """Normal numbers; matrices scaled so that products of them stay near one."""
        g = torch.Generator().manual_seed(seed)
        kind = getattr(torch, dtype)
        made = []
        for shape in self.shapes:
            x = torch.randn(shape, generator=g)
            weight = len(shape) == 2 and shape[0] > 1 and shape != self.shapes[0]
            made.append((x * shape[0] ** -0.5 if weight else x).to(kind))
        return made


def _rms(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * g


def rmsnorm_linear(x: Any, g: Any, w: Any) -> Any:
    return _rms(x, g) @ w


def rmsnorm_linear_fused(x: Any, g: Any, w: Any) -> Any:
    return F.rms_norm(x, (x.shape[-1],), g, EPS) @ w


def gated_mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return (F.silu(x @ gate) * (x @ up)) @ down


def softmax(x: Any) -> Any:
    return torch.softmax(x, -1)


def rmsnorm(x: Any, g: Any) -> Any:
    return _rms(x, g)


def rmsnorm_fused(x: Any, g: Any) -> Any:
    return F.rms_norm(x, (x.shape[-1],), g, EPS)


def add_rmsnorm(x: Any, r: Any, g: Any) -> Any:
    h = x + r
    return h, _rms(h, g)


def add_rmsnorm_fused(x: Any, r: Any, g: Any) -> Any:
    h = x + r
    return h, F.rms_norm(h, (h.shape[-1],), g, EPS)


def lora(x: Any, w: Any, a: Any, b: Any) -> Any:
    return x @ w + 2.0 * ((x @ a) @ b)


def gqa_decode(q: Any, k: Any, v: Any) -> Any:
    # q[kv heads, group, d] against k and v[kv heads, context, d].
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return torch.softmax(scores, -1) @ v


def gqa_decode_fused(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def qknorm_attention(q: Any, k: Any, v: Any, gq: Any, gk: Any) -> Any:
    scores = (_rms(q, gq) @ _rms(k, gk).transpose(-1, -2)) * q.shape[-1] ** -0.5
    return torch.softmax(scores, -1) @ v


def qknorm_attention_fused(q: Any, k: Any, v: Any, gq: Any, gk: Any) -> Any:
    d = q.shape[-1]
    q, k = F.rms_norm(q, (d,), gq, EPS), F.rms_norm(k, (d,), gk, EPS)
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def layernorm_gelu_mlp(x: Any, g: Any, b: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    h = F.layer_norm(x, (x.shape[-1],), g, b, 1e-5)
    return F.gelu(h @ w1 + b1) @ w2 + b2


def _norm_case(name: str, m: int, n: int) -> Case:
    return Case(name, ((m, n), (n,)), {"torch eager": rmsnorm, "F.rms_norm": rmsnorm_fused}, 0.0, ((m, n),))


def _softmax_case(name: str, m: int, n: int) -> Case:
    return Case(name, ((m, n),), {"torch eager": softmax}, 0.0, ((m, n),))


CASES: tuple[Case, ...] = (
    Case(
        "RMSNorm+Linear 1x4096x4096",
        ((1, 4096), (4096,), (4096, 4096)),
        {"torch eager": rmsnorm_linear, "F.rms_norm + mm": rmsnorm_linear_fused},
        2 * 4096 * 4096,
        ((1, 4096),),
    ),
    Case(
        "gated MLP 1x4096x11008",
        ((1, 4096), (4096, 11008), (4096, 11008), (11008, 4096)),
        {"torch eager": gated_mlp},
        3 * 2 * 4096 * 11008,
        ((1, 4096),),
    ),
    Case(
        "GQA decode 32/8 heads 4096 keys",
        ((8, 4, 128), (8, 4096, 128), (8, 4096, 128)),
        {"torch eager": gqa_decode, "sdpa": gqa_decode_fused},
        2 * 2 * 32 * 4096 * 128,
        ((8, 4, 128),),
    ),
    _softmax_case("softmax 256x4096", 256, 4096),
    _softmax_case("softmax 4096x4096", 4096, 4096),
    _norm_case("RMSNorm 256x4096", 256, 4096),
    _norm_case("RMSNorm 4096x4096", 4096, 4096),
    Case(
        "add+RMSNorm 256x4096",
        ((256, 4096), (256, 4096), (4096,)),
        {"torch eager": add_rmsnorm, "F.rms_norm": add_rmsnorm_fused},
        0.0,
        ((256, 4096), (256, 4096)),
    ),
    Case(
        "LoRA 16x4096x4096 r16",
        ((16, 4096), (4096, 4096), (4096, 16), (16, 4096)),
        {"torch eager": lora},
        2 * 16 * 4096 * 4096 + 2 * 16 * 16 * 8192,
        ((16, 4096),),
    ),
    Case(
        "QK-norm attention 8x512x64",
        ((8, 512, 64), (8, 512, 64), (8, 512, 64), (64,), (64,)),
        {"torch eager": qknorm_attention, "F.rms_norm + sdpa": qknorm_attention_fused},
        2 * 2 * 8 * 512 * 512 * 64,
        ((8, 512, 64),),
    ),
    Case(
        "LayerNorm+GELU MLP 128x1024x4096",
        ((128, 1024), (1024,), (1024,), (1024, 4096), (4096,), (4096, 1024), (1024,)),
        {"torch eager": layernorm_gelu_mlp},
        2 * 2 * 128 * 1024 * 4096,
        ((128, 1024),),
    ),
)
