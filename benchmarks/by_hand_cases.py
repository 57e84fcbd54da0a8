"""The cases of `benchmarks/by_hand.py`: functions as a user of torch writes them, and what they are called with.

Each is exported to an ONNX file, which prism is given; the function itself is what is timed by hand. Cases of the name
of an example are that example's model, its function written by hand beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

Fn: TypeAlias = Callable[..., Any]
Weights: TypeAlias = Mapping[str, torch.Tensor]
EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Case:
    """One case.

    Attributes:
        name: unique.
        fn: of the inputs.
        shapes: of the inputs, in order.
        dtype: of all of them.
    """

    name: str
    fn: Fn
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "float32"

    def inputs(self, seed: int = 0) -> list[torch.Tensor]:
        """Normal numbers; matrices scaled so that products stay near one."""
        g = torch.Generator().manual_seed(seed)
        made = []
        for n, shape in enumerate(self.shapes):
            x = torch.randn(shape, generator=g)
            made.append((x * shape[0] ** -0.5 if n and len(shape) == 2 else x).to(getattr(torch, self.dtype)))
        return made


def bias_gelu(x: Any, g: Any, b: Any) -> Any:
    return F.gelu(x * g + b)


def hard_gate(x: Any, y: Any) -> Any:
    return torch.sigmoid(x) * torch.tanh(y) + x


def scaled_softmax(x: Any) -> Any:
    return torch.softmax(x * 0.125, -1)


def add_layer_norm(x: Any, y: Any, g: Any, b: Any) -> Any:
    return F.layer_norm(x + y, (x.shape[-1],), g, b)


def rms_linear(x: Any, g: Any, w: Any) -> Any:
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * g) @ w


def linear_relu(x: Any, w: Any, b: Any) -> Any:
    return F.relu(x @ w + b)


def swiglu(x: Any, gate: Any, up: Any) -> Any:
    return F.silu(x @ gate) * (x @ up)


def attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v)


def logsumexp(x: Any) -> Any:
    return torch.logsumexp(x, -1)


def unit(x: Any) -> Any:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + EPS)


def deviation(x: Any) -> Any:
    return torch.sqrt(x.var(-1, keepdim=True, correction=0) + EPS)


def cosine(x: Any, y: Any) -> Any:
    return (x * y).sum(-1) * torch.rsqrt((x * x).sum(-1) * (y * y).sum(-1) + EPS)


CASES: tuple[Case, ...] = (
    Case("bias gelu, small", bias_gelu, ((64, 256), (256,), (256,))),
    Case("bias gelu", bias_gelu, ((512, 1024), (1024,), (1024,))),
    Case("gate, bfloat16", hard_gate, ((256, 2048), (256, 2048)), "bfloat16"),
    Case("softmax", scaled_softmax, ((256, 1000),)),
    Case("softmax, bfloat16", scaled_softmax, ((1024, 2048),), "bfloat16"),
    Case("add, LayerNorm", add_layer_norm, ((512, 768), (512, 768), (768,), (768,))),
    Case("add, LayerNorm, bfloat16", add_layer_norm, ((512, 1024), (512, 1024), (1024,), (1024,)), "bfloat16"),
    Case("RMSNorm, Linear", rms_linear, ((32, 512), (512,), (512, 512))),
    Case("RMSNorm, Linear, bfloat16", rms_linear, ((16, 1024), (1024,), (1024, 1024)), "bfloat16"),
    Case("Linear, ReLU", linear_relu, ((8, 1024), (1024, 512), (512,))),
    Case("SwiGLU", swiglu, ((8, 512), (512, 1376), (512, 1376))),
    Case("attention", attention, ((1, 8, 128, 64),) * 3),
    Case("attention, bfloat16", attention, ((1, 8, 256, 64),) * 3, "bfloat16"),
    Case("logsumexp, long", logsumexp, ((16, 100_000),)),
    Case("unit length, long, bfloat16", unit, ((8, 65_536),), "bfloat16"),
    Case("standard deviation, long", deviation, ((4, 262_144),)),
    Case("cosine", cosine, ((2048, 384), (2048, 384))),
)


def _lora(w: Weights) -> Fn:
    return lambda x, base, a, b: x @ base + 2 * ((x @ a) @ b)


def _layer_norm_linear_gelu(w: Weights) -> Fn:
    return lambda x: F.gelu(
        F.linear(
            F.layer_norm(x, (256,), w["norm_weight"], w["norm_bias"]),
            w["linear_weight"],
            w["linear_bias"],
        )
    )


def _rmsnorm_linear(w: Weights) -> Fn:
    return lambda x: F.linear(F.rms_norm(x, (512,), w["norm_weight"], EPS), w["linear_weight"])


def _qknorm_attention(w: Weights) -> Fn:
    def fn(q: Any, k: Any, v: Any, a: Any, b: Any) -> Any:
        q, k = F.rms_norm(q, (64,), a, 1e-5), F.rms_norm(k, (64,), b, 1e-5)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return fn


EXAMPLES: Mapping[str, Callable[[Weights], Fn]] = MappingProxyType(
    {
        "rmsnorm_linear": _rmsnorm_linear,
        "gated_mlp": lambda w: lambda x, gate, up, down: (F.silu(x @ gate) * (x @ up)) @ down,
        "causal_attention": lambda w: lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "gqa_decode": lambda w: lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        "lora": _lora,
        "qknorm_attention": _qknorm_attention,
        "layernorm_linear_gelu": _layer_norm_linear_gelu,
        "mul_silu": lambda w: lambda x, y: x * F.silu(y),
        "add_silu": lambda w: lambda x, y: x + F.silu(y),
    }
)
"""The examples' functions, of the weights that their files hold."""
