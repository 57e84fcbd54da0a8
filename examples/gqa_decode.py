"""Grouped-query attention of one new token over a cache, in float16: 8 query heads share 2 key-value heads.

    out[b,g*4+r,0,d] = sum_j softmax_j(sum_e q[b,g*4+r,0,e] * k[b,g,j,e] / sqrt(D)) * v[b,g,j,d]

As torch exports it at opset 18, K and V repeated by Unsqueeze, Expand and Reshape. The cache's length is symbolic.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from examples.common import Array, normal, save, softmax, torch_model, wide

B, HEADS, KV_HEADS, D = 4, 8, 2, 128
GROUP = HEADS // KV_HEADS


def build() -> onnx.ModelProto:
    """The model."""
    import torch

    def repeat(x: torch.Tensor) -> torch.Tensor:
        length = x.shape[2]
        return x[:, :, None].expand(B, KV_HEADS, GROUP, length, D).reshape(B, HEADS, length, D)

    def gqa_decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(q, repeat(k).transpose(2, 3)) * D**-0.5
        return torch.matmul(torch.softmax(scores, -1), repeat(v))

    shapes = {"q": (B, HEADS, 1, D), "k": (B, KV_HEADS, 100, D), "v": (B, KV_HEADS, 100, D)}
    args = {name: torch.randn(shape).half() for name, shape in shapes.items()}
    dynamic = {"k": {2: "context"}, "v": {2: "context"}}
    return torch_model("gqa_decode", gqa_decode, args, dynamic=dynamic, opset=18)


def inputs(rng: np.random.Generator) -> dict[str, Array]:
    """q [B, HEADS, 1, D], k and v [B, KV_HEADS, 75, D]."""
    shapes = {"q": (B, HEADS, 1, D), "k": (B, KV_HEADS, 75, D), "v": (B, KV_HEADS, 75, D)}
    return {name: normal(rng, *shape, dtype=np.float16) for name, shape in shapes.items()}


def formula(feed: Mapping[str, Array]) -> Array:
    """The output in float64."""
    q, k, v = (wide(feed[n]) for n in ("q", "k", "v"))
    grouped = q.reshape(B, KV_HEADS, GROUP, D)
    weights = softmax(np.einsum("bgrd,bgjd->bgrj", grouped, k) / np.sqrt(D))
    result: Array = np.einsum("bgrj,bgjd->bgrd", weights, v).reshape(q.shape)
    return result


if __name__ == "__main__":
    print(save(build(), "gqa_decode"))
