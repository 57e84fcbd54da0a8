"""What prism is timed against, by name: torch alone, and libraries where they are installed.

A contender is a function of the inputs with, at times, a preparation of them that is not timed (weights that a model
would hold fused). `eager` is the reference function itself and `torch.compile` that function compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from prism.bench import functions as f

Call: TypeAlias = Callable[..., Any]
EAGER = "eager"
COMPILED = "torch.compile"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A contender."""

    call: Call  # from what `setup` returned to the outputs
    # From the inputs to what `call` takes; not timed.
    setup: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] = lambda inputs: inputs


def compiled(function: Call, mode: str) -> Call:
    """The function under torch.compile; the graph around it is the harness's own, as for every other contender."""
    made: Call = torch.compile(function, mode=mode, dynamic=False)
    return made


def baseline(name: str, function: str) -> Baseline:
    """The contender of that name for a function of the suite, besides eager and torch.compile.

    Raises:
        LookupError: there is none of that name for it.
        ImportError: the library is not installed.
    """
    make = _OTHERS.get((name, function)) or _OTHERS.get((name, ""))
    if make is None:
        raise LookupError(f"there is no baseline {name} of {function}")
    return make(function)


_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def _sdpa(backend: str, packed: bool = False) -> Callable[[str], Baseline]:
    """One backend of scaled_dot_product_attention; `packed`: the heads of a group are rows of one query."""

    def make(function: str) -> Baseline:
        causal = function == "gqa_prefill"

        def call(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel(_BACKENDS[backend]):
                if packed:
                    b, h, s, d = q.shape
                    kv = k.shape[1]
                    rows = q.reshape(b, kv, h // kv * s, d)
                    return functional.scaled_dot_product_attention(rows, k, v).reshape(b, h, s, d)
                if backend == "efficient" and k.shape[1] != q.shape[1]:
                    k, v = f.repeat_heads(k, q.shape[1]), f.repeat_heads(v, q.shape[1])
                grouped = k.shape[1] != q.shape[1]
                return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

        if function == "qk_norm_rope_gqa_decode":
            return Baseline(lambda q, k, v, gq, cos, sin: call(f.rotate(_rms_norm(q, gq), cos, sin), k, v))
        return Baseline(call)

    return make


def _rms_norm(x: Any, g: Any) -> Any:
    return functional.rms_norm(x, (x.shape[-1],), g, f.EPS)


def _norm_and_cublas(function: str) -> Baseline:
    match function:
        case "rmsnorm_linear":
            return Baseline(lambda x, g, w: functional.linear(_rms_norm(x, g), w))
        case "rmsnorm_gate_up":
            return Baseline(
                lambda x, g, w: _swiglu(functional.linear(_rms_norm(x, g), w)),
                lambda t: (t[0], t[1], torch.cat((t[2], t[3]))),
            )
        case "add_rmsnorm":
            return Baseline(_add_norm)
        case _:
            raise LookupError(function)


def _add_norm(x: Any, residual: Any, g: Any) -> Any:
    h = x + residual
    return _rms_norm(h, g), h


def _swiglu(both: Any) -> Any:
    gate, up = both.chunk(2, -1)
    return functional.silu(gate) * up


def _fused_gate_up(_function: str) -> Baseline:
    return Baseline(
        lambda x, w, down: functional.linear(_swiglu(functional.linear(x, w)), down),
        lambda t: (t[0], torch.cat((t[1], t[2])), t[3]),
    )


def _concatenated(_function: str) -> Baseline:
    """MLA as one attention of one key head: queries and keys concatenated, values padded by the backend or not."""

    def call(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return functional.scaled_dot_product_attention(q, k, v, scale=(128 + k.shape[-1] - v.shape[-1]) ** -0.5)[
                :, 0
            ]

    def setup(t: Sequence[Any]) -> Sequence[Any]:
        q, qr, c, kr = t
        return torch.cat((q, qr), -1)[:, None], torch.cat((c, kr), -1)[:, None], c[:, None]

    return Baseline(call, setup)


INNER_TILES = 8
"""Tiles of 16 along the contraction that torch packs together, the most: 2, 4 or 8."""


def int4_packed(w: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, scales and zero points as torch's product takes them, before it packs the codes.

    It takes the first code of a byte from the upper half, and a weight is `(code - 8) * scale + offset`: the offset
    is `(8 - zero) * scale`, rounded to the type of the scales, which the error that is allowed has room for.

    Args:
        w: [n, k / 2] uint8 with two codes each, the low one first.
        scale: [n, k / g].
        zero: the same.

    Returns:
        codes [n, k / 2] uint8; scales and offsets [k / g, n, 2].
    """
    offset = ((8 - zero.float()) * scale.float()).to(scale.dtype)
    return w << 4 | w >> 4, torch.stack((scale, offset), -1).transpose(0, 1).contiguous()


def _int4_product(_function: str) -> Baseline:
    """torch's own kernel for codes of 4 bits in bfloat16; weights are packed before, as a model would hold them."""
    if not hasattr(torch, "_weight_int4pack_mm"):
        raise ImportError("this torch has no _weight_int4pack_mm")

    def setup(t: Sequence[torch.Tensor]) -> Sequence[Any]:
        x, w, scale, zero = t
        codes, scales = int4_packed(w, scale, zero)
        return x, torch._convert_weight_to_int4pack(codes, INNER_TILES), x.shape[1] // scale.shape[1], scales

    return Baseline(torch._weight_int4pack_mm, setup)


def _added(norm: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A residual sum with its norm, and the sum."""

    def add(x: Any, residual: Any, g: Any) -> Any:
        h = x + residual
        return norm(h, g), h

    return add


def _liger(function: str) -> Baseline:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction  # type: ignore[import-not-found,unused-ignore]
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction  # type: ignore[import-not-found,unused-ignore]

    def norm(x: Any, g: Any) -> Any:
        return LigerRMSNormFunction.apply(x, g, f.EPS, 0.0, "llama", False)

    def gated(gate: Any, up: Any) -> Any:
        return LigerSiLUMulFunction.apply(gate, up)

    linear = functional.linear
    match function:
        case "rmsnorm_linear":
            return Baseline(lambda x, g, w: linear(norm(x, g), w))
        case "rmsnorm_gate_up":

            def gate_up(x: Any, g: Any, gate: Any, up: Any) -> Any:
                h = norm(x, g)
                return gated(linear(h, gate), linear(h, up))

            return Baseline(gate_up)
        case "gated_mlp":
            return Baseline(lambda x, gate, up, down: linear(gated(linear(x, gate), linear(x, up)), down))
        case "add_rmsnorm":
            return Baseline(_added(norm))
        case _:
            raise LookupError(function)


def _helion(function: str) -> Baseline:
    """helion's RMSNorm in place of F.rms_norm."""
    from prism.bench.helion_kernels import rms_norm as norm

    match function:
        case "rmsnorm_linear":
            return Baseline(lambda x, g, w: functional.linear(norm(x, g), w))
        case "add_rmsnorm":
            return Baseline(_added(norm))
        case _:
            raise LookupError(function)


_OTHERS: Mapping[tuple[str, str], Callable[[str], Baseline]] = {
    **{(f"SDPA {b}", ""): _sdpa(b) for b in _BACKENDS},
    **{(f"SDPA {b}, packed", ""): _sdpa(b, packed=True) for b in _BACKENDS},
    **{(f"norm, RoPE + SDPA {b}", ""): _sdpa(b) for b in _BACKENDS},
    **{(f"norm, RoPE + SDPA {b}, packed", ""): _sdpa(b, packed=True) for b in _BACKENDS},
    ("F.rms_norm + cuBLAS", ""): _norm_and_cublas,
    ("fused gate+up cuBLAS", "gated_mlp"): _fused_gate_up,
    ("SDPA cuDNN, concatenated", "mla_decode"): _concatenated,
    ("_weight_int4pack_mm", "int4_linear"): _int4_product,
    ("liger", ""): _liger,
    ("helion", ""): _helion,
}
