"""Causal attention with RMS-normed queries and keys: opset 23's RMSNormalization and Attention, float16.

qn[b,h,i,d] = q[b,h,i,d] / sqrt(mean_d q[b,h,i,d]^2 + eps) * q_scale[d]        and likewise kn of k
out         = softmax_j(sum_d qn * kn / sqrt(D), over j <= i) v
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_node

from examples.common import Array, Spec, helper_model, normal, rms_norm, save, softmax, wide

H, S, D, EPS = 8, 512, 64, 1e-5


def build() -> onnx.ModelProto:
    """The model."""
    nodes = [
        make_node("RMSNormalization", ["q", "q_scale"], ["q_normed"], "q_norm", axis=-1, epsilon=EPS),
        make_node("RMSNormalization", ["k", "k_scale"], ["k_normed"], "k_norm", axis=-1, epsilon=EPS),
        make_node("Attention", ["q_normed", "k_normed", "v"], ["out"], "attention", is_causal=1, scale=D**-0.5),
    ]
    kind = TensorProto.FLOAT16
    heads: Spec = (kind, ["batch", H, S, D])
    return helper_model(
        "qknorm_attention",
        nodes,
        {"q": heads, "k": heads, "v": heads, "q_scale": (kind, [D]), "k_scale": (kind, [D])},
        {"out": heads},
        opset=23,
    )


def inputs(rng: np.random.Generator) -> dict[str, Array]:
    """q, k, v [1, H, S, D], q_scale and k_scale [D]."""
    feed = {name: normal(rng, 1, H, S, D, dtype=np.float16) for name in ("q", "k", "v")}
    scales = {name: np.float16(1.0) + normal(rng, D, scale=0.1, dtype=np.float16) for name in ("q_scale", "k_scale")}
    return {**feed, **scales}


def formula(feed: Mapping[str, Array]) -> Array:
    """The output in float64."""
    q, k, v, q_scale, k_scale = (wide(feed[n]) for n in ("q", "k", "v", "q_scale", "k_scale"))
    eps = float(np.float32(EPS))
    scores = rms_norm(q, q_scale, eps) @ rms_norm(k, k_scale, eps).swapaxes(2, 3) / np.sqrt(D)
    result: Array = softmax(np.where(np.tri(S, dtype=bool), scores, -np.inf)) @ v
    return result


if __name__ == "__main__":
    print(save(build(), "qknorm_attention"))
