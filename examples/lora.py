"""A Linear with a low-rank adapter beside it, in bfloat16, from ONNX's helper at opset 21; all four are inputs.

out[t,n] = sum_k x[t,k] * w[k,n]  +  SCALE * sum_r (sum_k x[t,k] * a[k,r]) * b[r,n]
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_node

from examples.common import Array, helper_model, normal, save, wide

K, N, R, SCALE = 1024, 768, 16, 2.0


def build() -> onnx.ModelProto:
    """The model."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["base"], "base"),
        make_node("MatMul", ["x", "a"], ["down"], "down"),
        make_node("MatMul", ["down", "b"], ["delta"], "delta"),
        make_node("Mul", ["delta", "scale"], ["scaled"], "scaled"),
        make_node("Add", ["base", "scaled"], ["out"], "sum"),
    ]
    kind = TensorProto.BFLOAT16
    return helper_model(
        "lora",
        nodes,
        {"x": (kind, ["tokens", K]), "w": (kind, [K, N]), "a": (kind, [K, R]), "b": (kind, [R, N])},
        {"out": (kind, ["tokens", N])},
        opset=21,
        initializers=[onnx.helper.make_tensor("scale", kind, [], [SCALE])],
    )


def inputs(rng: np.random.Generator) -> dict[str, Array]:
    """x [5, K], w [K, N], a [K, R], b [R, N]."""
    bf16 = ml_dtypes.bfloat16
    return {
        "x": normal(rng, 5, K, dtype=bf16),
        "w": normal(rng, K, N, scale=K**-0.5, dtype=bf16),
        "a": normal(rng, K, R, scale=K**-0.5, dtype=bf16),
        "b": normal(rng, R, N, scale=R**-0.5, dtype=bf16),
    }


def formula(feed: Mapping[str, Array]) -> Array:
    """The output in float64."""
    x, w, a, b = (wide(feed[n]) for n in ("x", "w", "a", "b"))
    result: Array = x @ w + SCALE * ((x @ a) @ b)
    return result


if __name__ == "__main__":
    print(save(build(), "lora"))
