"""X * silu(Y), X declared first, in float16, from ONNX's helper at opset 13.

out[t,f] = x[t,f] * y[t,f] / (1 + exp(-y[t,f]))
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_node

from examples.common import Array, Spec, helper_model, normal, save, sigmoid, wide

F = 4096


def build() -> onnx.ModelProto:
    """The model."""
    nodes = [
        make_node("Sigmoid", ["y"], ["gate"], "gate"),
        make_node("Mul", ["y", "gate"], ["silu"], "silu"),
        make_node("Mul", ["x", "silu"], ["out"], "product"),
    ]
    shape: Spec = (TensorProto.FLOAT16, ["tokens", F])
    return helper_model("mul_silu", nodes, {"x": shape, "y": shape}, {"out": shape}, opset=13)


def inputs(rng: np.random.Generator) -> dict[str, Array]:
    """x and y [3, F]."""
    return {name: normal(rng, 3, F, scale=2.0, dtype=np.float16) for name in ("x", "y")}


def formula(feed: Mapping[str, Array]) -> Array:
    """The output in float64."""
    x, y = wide(feed["x"]), wide(feed["y"])
    result: Array = x * y * sigmoid(y)
    return result


if __name__ == "__main__":
    print(save(build(), "mul_silu"))
