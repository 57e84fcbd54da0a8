"""Workloads of which the search must find the fused form by itself, as torch functions at realistic shapes.

Programs are traced from meta tensors: only shapes and data types matter. Nothing here says how to compute anything
fast: each function is the textbook definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from prism.api import trace
from prism.program.nodes import Program

Fn = Callable[..., Tensor | tuple[Tensor, ...]]
BF16, F32, I8, I64 = torch.bfloat16, torch.float32, torch.int8, torch.int64


@dataclass(frozen=True)
class Workload:
    """A function with the shapes and data types of its arguments."""

    fn: Fn
    arguments: tuple[tuple[tuple[int, ...], torch.dtype], ...]


def _bf16(*shapes: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    return tuple((s, BF16) for s in shapes)


def _f32(*shapes: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    return tuple((s, F32) for s in shapes)


# Norms into linears


def rms_norm(x: Tensor, g: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), g, eps=1e-6)


def rms_norm_linear(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    return rms_norm(x, g) @ w


def rms_norm_gated(x: Tensor, g: Tensor, w1: Tensor, w3: Tensor) -> Tensor:
    n = rms_norm(x, g)
    return F.silu(n @ w1) * (n @ w3)


def layer_norm_linear(x: Tensor, g: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), g, b) @ w


# Products


def gated_mlp(x: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
    return (F.silu(x @ w1) * (x @ w3)) @ w2


def joined_gate(x: Tensor, w: Tensor) -> Tensor:
    gate, up = (x @ w).chunk(2, dim=-1)
    return F.silu(gate) * up


def lora(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x @ w + 2.0 * ((x @ a) @ b)


def two_products(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return (x @ a) @ b


def group_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x, 8, w, b)


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2)) @ v


def linear_attention_normalised(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = torch.exp(q) @ torch.exp(k).transpose(-1, -2)
    return (s / s.sum(-1, keepdim=True)) @ v


def chunked_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal, in chunks of equal parts: q, k, v [heads, chunks, rows, d]."""
    states = k.transpose(-1, -2) @ v
    before = states.cumsum(1) - states
    return (q @ k.transpose(-1, -2)).tril() @ v + q @ before


def running_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x.cumsum(-1), -1)


def running_twice(x: Tensor, g: Tensor) -> Tensor:
    return (x.cumsum(-1) * g).cumsum(-1)


def decayed_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Linear attention that forgets: exp of the sums of g between a key and a query."""
    sums = g.cumsum(-1)
    between = (sums[..., :, None] - sums[..., None, :]).tril()
    return ((q @ k.transpose(-1, -2)) * torch.exp(between)).tril() @ v


def state_space_chunk(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """What a chunk of a state-space model adds to its own outputs and to the next state (Dao & Gu 2024, section 6)."""
    sums = a.cumsum(-1)
    between = (sums[..., :, None] - sums[..., None, :]).masked_fill(
        ~torch.ones(a.shape[-1], a.shape[-1], dtype=torch.bool, device=a.device).tril(), float("-inf")
    )
    own = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, between.exp(), x)
    left = torch.exp(sums[..., -1:] - sums)
    return own, torch.einsum("bclhn,bhcl,bclhp->bchpn", b, left, x)


# Attention


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def gqa_decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def latent_decode(q: Tensor, qr: Tensor, c: Tensor, kr: Tensor) -> Tensor:
    """Scores are the sum of two products, values are the keys of one of them: heads share one latent cache."""
    scores = (q @ c.transpose(-1, -2) + qr @ kr.transpose(-1, -2)) * 192**-0.5
    return F.softmax(scores.float(), dim=-1).to(q.dtype) @ c


def qk_norm_attention(q: Tensor, k: Tensor, v: Tensor, gq: Tensor, gk: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(rms_norm(q, gq), rms_norm(k, gk), v)


def differential_attention(q: Tensor, k: Tensor, q2: Tensor, k2: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    first, second = (F.softmax(a @ b.mT * 0.125, dim=-1) for a, b in ((q, k), (q2, k2)))
    return (first - weight * second) @ v


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def rope_attention(q: Tensor, k: Tensor, v: Tensor, gq: Tensor, gk: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    q, k = (_rotated(rms_norm(t, g), cos, sin) for t, g in ((q, gq), (k, gk)))
    return F.scaled_dot_product_attention(q, k, v)


# Rows


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, dim=-1)


def logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, dim=-1)


def cross_entropy(x: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(x, label, reduction="none")


def cross_entropy_mean(x: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(x, label, ignore_index=-1)


def divergence(x: Tensor, y: Tensor) -> Tensor:
    return F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="none").sum(-1)


def entropy(x: Tensor) -> Tensor:
    logs = x.log_softmax(-1)
    return -(logs.exp() * logs).sum(-1)


def focal(x: Tensor, label: Tensor) -> Tensor:
    logs = x.log_softmax(-1).gather(1, label[:, None])[:, 0]
    return -((1 - logs.exp()) ** 2) * logs


def residual_norm(x: Tensor, r: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    h = x + r
    return h, rms_norm(h, g)


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1, eps=0.0)


def ngpt_residual(h: Tensor, y: Tensor, alpha: Tensor) -> Tensor:
    return _unit(h + alpha * (_unit(y) - h))


# Quantised weights


def int8_linear(x: Tensor, q: Tensor, s: Tensor) -> Tensor:
    return x @ (q.to(x.dtype) * s)


def int8_zero_linear(x: Tensor, q: Tensor, z: Tensor, s: Tensor) -> Tensor:
    return x @ ((q.to(x.dtype) - z) * s)


def int4_linear(x: Tensor, q: Tensor, z: Tensor, s: Tensor) -> Tensor:
    groups, length, n = q.shape
    w = (q.to(x.dtype) - z[:, None]) * s[:, None]
    return x @ w.reshape(groups * length, n)


def packed_int4_linear(x: Tensor, packed: Tensor, z: Tensor, s: Tensor) -> Tensor:
    q = torch.stack((packed % 16, packed // 16), dim=2)
    groups, half, _, n = q.shape
    w = (q.to(x.dtype) - z[:, None, None]) * s[:, None, None]
    return x @ w.reshape(groups * half * 2, n)


# What the released system of the Prism paper fails on


def x_times_silu_y(x: Tensor, y: Tensor) -> Tensor:
    return x * F.silu(y)


def x_plus_silu_y(x: Tensor, y: Tensor) -> Tensor:
    return x + F.silu(y)


def one_input(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def four_inputs(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return F.silu(x @ a) * (x @ b) + c


def row_scale(x: Tensor, s: Tensor, w: Tensor) -> Tensor:
    return (x @ w) * s


def contracted_scale(x: Tensor, s: Tensor, w: Tensor) -> Tensor:
    return (x / s) @ w


WORKLOADS: Mapping[str, Workload] = {
    "rms_norm_linear": Workload(rms_norm_linear, _bf16((16, 4096), (4096,), (4096, 6144))),
    "rms_norm_linear_square": Workload(rms_norm_linear, _bf16((16, 4096), (4096,), (4096, 4096))),
    "rms_norm_gated": Workload(rms_norm_gated, _bf16((8, 4096), (4096,), (4096, 14336), (4096, 14336))),
    "layer_norm_linear": Workload(layer_norm_linear, _bf16((16, 4096), (4096,), (4096,), (4096, 6144))),
    "layer_norm_linear_tall": Workload(layer_norm_linear, _bf16((65536, 4096), (4096,), (4096,), (4096, 6144))),
    "gated_mlp": Workload(gated_mlp, _bf16((16, 4096), (4096, 14336), (4096, 14336), (14336, 4096))),
    "joined_gate": Workload(joined_gate, _bf16((16, 4096), (4096, 28672))),
    "lora": Workload(lora, _bf16((16, 4096), (4096, 6144), (4096, 16), (16, 6144))),
    "lora_square": Workload(lora, _bf16((16, 4096), (4096, 4096), (4096, 16), (16, 4096))),
    "left_first": Workload(two_products, _bf16((16, 4096), (4096, 1024), (1024, 4096))),
    "right_first": Workload(two_products, _bf16((65536, 2048), (2048, 1024), (1024, 16))),
    "group_norm": Workload(group_norm, _f32((8, 64, 1024), (64,), (64,))),
    "linear_attention": Workload(linear_attention, _bf16((8, 16384, 64), (8, 16384, 64), (8, 16384, 64))),
    "linear_attention_normalised": Workload(
        linear_attention_normalised, _bf16((8, 16384, 64), (8, 16384, 64), (8, 16384, 64))
    ),
    "chunked_linear_attention": Workload(
        chunked_linear_attention, _bf16((32, 64, 128, 128), (32, 64, 128, 128), (32, 64, 128, 128))
    ),
    # A length without divisors has no chunks.
    "decayed_attention": Workload(decayed_attention, _f32(*[(8, 4093, 64)] * 3, (8, 4093))),
    "state_space_chunk": Workload(
        state_space_chunk,
        _f32((2, 16, 64, 8, 64), (2, 8, 16, 64), *[(2, 16, 64, 8, 64)] * 2),
    ),
    "running_softmax": Workload(running_softmax, _bf16((1024, 65536))),
    "running_twice": Workload(running_twice, _bf16((1024, 65536), (65536,))),
    "attention": Workload(attention, _bf16((2, 16, 4096, 128), (2, 16, 4096, 128), (2, 16, 4096, 128))),
    "causal_attention": Workload(causal_attention, _bf16((2, 16, 4096, 128), (2, 16, 4096, 128), (2, 16, 4096, 128))),
    "masked_attention": Workload(
        masked_attention,
        (*_bf16((2, 16, 4096, 128), (2, 16, 4096, 128), (2, 16, 4096, 128)), ((4096, 4096), torch.bool)),
    ),
    "gqa_decode": Workload(gqa_decode, _bf16((1, 32, 1, 128), (1, 8, 32768, 128), (1, 8, 32768, 128))),
    "latent_decode": Workload(latent_decode, _bf16((8, 128, 512), (8, 128, 64), (8, 4096, 512), (8, 4096, 64))),
    "qk_norm_attention": Workload(
        qk_norm_attention, _bf16((2, 16, 4096, 128), (2, 16, 4096, 128), (2, 16, 4096, 128), (128,), (128,))
    ),
    "rope_attention": Workload(
        rope_attention,
        _bf16((2, 16, 4096, 128), (2, 16, 4096, 128), (2, 16, 4096, 128), (128,), (128,), (4096, 128), (4096, 128)),
    ),
    "differential_attention": Workload(differential_attention, _bf16(*[(16, 4096, 64)] * 5, (1,))),
    "softmax": Workload(softmax, _f32((4096, 32000))),
    "softmax_short": Workload(softmax, _f32((4096, 4096))),
    "logsumexp": Workload(logsumexp, _f32((4096, 128256))),
    "cross_entropy": Workload(cross_entropy, (*_f32((4096, 128256)), ((4096,), I64))),
    "cross_entropy_mean": Workload(cross_entropy_mean, (*_f32((4096, 128256)), ((4096,), I64))),
    "divergence": Workload(divergence, _f32((4096, 32000), (4096, 32000))),
    "entropy": Workload(entropy, _f32((4096, 32000))),
    "focal": Workload(focal, (*_f32((4096, 32000)), ((4096,), I64))),
    "residual_norm": Workload(residual_norm, _bf16((4096, 4096), (4096, 4096), (4096,))),
    "ngpt_residual": Workload(ngpt_residual, _bf16((4096, 4096), (4096, 4096), (4096,))),
    "int8_linear": Workload(int8_linear, (((16, 4096), BF16), ((4096, 4096), I8), ((4096,), BF16))),
    "int8_zero_linear": Workload(
        int8_zero_linear, (((16, 4096), BF16), ((4096, 6144), I8), ((6144,), BF16), ((6144,), BF16))
    ),
    "int4_linear": Workload(
        int4_linear, (((16, 4096), BF16), ((32, 128, 4096), I8), ((32, 4096), BF16), ((32, 4096), BF16))
    ),
    "packed_int4_linear": Workload(
        packed_int4_linear, (((16, 4096), BF16), ((32, 64, 4096), torch.uint8), ((32, 4096), BF16), ((32, 4096), BF16))
    ),
    "x_times_silu_y": Workload(x_times_silu_y, _f32((64, 4096), (64, 4096))),
    "x_plus_silu_y": Workload(x_plus_silu_y, _f32((64, 4096), (64, 4096))),
    "one_input": Workload(one_input, _f32((64, 4096))),
    "four_inputs": Workload(four_inputs, _bf16((16, 4096), (4096, 4096), (4096, 4096), (16, 4096))),
    "row_scale": Workload(row_scale, _bf16((16, 4096), (1, 4096), (4096, 4096))),
    "contracted_scale": Workload(contracted_scale, _bf16((16, 4096), (4096,), (4096, 4096))),
}


SMALL: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "layer_norm_linear": ((3, 8), (8,), (8,), (8, 8)),
    "lora_square": ((3, 8), (8, 8), (8, 2), (2, 8)),
    "gqa_decode": ((1, 4, 1, 4), (1, 2, 9, 4), (1, 2, 9, 4)),
    "latent_decode": ((2, 4, 6), (2, 4, 2), (2, 9, 6), (2, 9, 2)),
    "rope_attention": ((1, 2, 6, 4), (1, 2, 6, 4), (1, 2, 6, 4), (4,), (4,), (6, 4), (6, 4)),
    "cross_entropy_mean": ((4, 9), (4,)),
    "divergence": ((4, 9), (4, 9)),
    "entropy": ((4, 9),),
    "focal": ((4, 9), (4,)),
    "chunked_linear_attention": ((2, 4, 4, 4), (2, 4, 4, 4), (2, 4, 4, 4)),
    "decayed_attention": ((2, 9, 4), (2, 9, 4), (2, 9, 4), (2, 9)),
    "state_space_chunk": ((1, 3, 4, 2, 4), (1, 2, 3, 4), (1, 3, 4, 2, 4), (1, 3, 4, 2, 4)),
    "running_softmax": ((4, 9),),
    "running_twice": ((9, 9), (9,)),
    "packed_int4_linear": ((3, 8), (2, 2, 8), (2, 8), (2, 8)),
}
"""Shapes at which a kernel can be run tile by tile in numpy; equal extents where rules might confuse axes."""


def _traced(name: str, shapes: tuple[tuple[int, ...], ...], check: bool = True) -> Program:
    w = WORKLOADS[name]
    dtypes = [dtype for _, dtype in w.arguments]
    examples = [torch.empty(s, dtype=d, device="meta") for s, d in zip(shapes, dtypes, strict=True)]
    return trace(w.fn, examples, name=name, check=check)


@cache
def program(name: str) -> Program:
    """The workload's program; that it is what torch computes is seen at small shapes."""
    return _traced(name, tuple(shape for shape, _ in WORKLOADS[name].arguments), check=False)


def small_program(name: str) -> Program:
    """The workload's program at a shape of SMALL."""
    return _traced(name, SMALL[name])
