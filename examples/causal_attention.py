"""Causal multi-head attention with a scale, written out in torch and exported at opset 18; the mask is Trilu and Where.

    s[b,h,i,j]   = sum_d q[b,h,i,d] * k[b,h,j,d] / sqrt(D)   for j <= i, else -inf
    out[b,h,i,d] = sum_j softmax_j(s)[b,h,i,j] * v[b,h,j,d]

Batch and sequence length are symbolic, so the mask's shape is computed in the graph (Shape, Concat, Expand).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from examples.common import Array, normal, save, softmax, torch_model, wide

H, D = 8, 64


def build() -> onnx.ModelProto:
    """The model."""
    import torch

    def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seq = q.shape[2]
        scores = torch.matmul(q, k.transpose(2, 3)) * D**-0.5
        visible = torch.ones(seq, seq, dtype=torch.bool).tril()
        scores = scores.masked_fill(~visible, float("-inf"))
        return torch.matmul(torch.softmax(scores, -1), v)

    args = {name: torch.randn(2, H, 48, D) for name in ("q", "k", "v")}
    dynamic = {name: {0: "batch", 2: "seq"} for name in args}
    return torch_model("causal_attention", causal_attention, args, dynamic=dynamic, opset=18)


def inputs(rng: np.random.Generator) -> dict[str, Array]:
    """q, k, v [2, H, 20, D]."""
    return {name: normal(rng, 2, H, 20, D) for name in ("q", "k", "v")}


def formula(feed: Mapping[str, Array]) -> Array:
    """The output in float64."""
    q, k, v = (wide(feed[n]) for n in ("q", "k", "v"))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(D)
    visible = np.tri(q.shape[2], dtype=bool)
    result: Array = softmax(np.where(visible, scores, -np.inf)) @ v
    return result


if __name__ == "__main__":
    print(save(build(), "causal_attention"))
