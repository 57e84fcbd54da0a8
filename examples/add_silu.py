"""X + silu(Y), X declared first, as torch exports it at opset 20.

out[t,f] = x[t,f] + y[t,f] / (1 + exp(-y[t,f]))
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from examples.common import Array, normal, save, sigmoid, torch_model, wide

F = 4096


def build() -> onnx.ModelProto:
    """The model."""
    import torch

    def add_silu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.silu(y)

    args = {name: torch.randn(5, F) for name in ("x", "y")}
    return torch_model("add_silu", add_silu, args, dynamic={name: {0: "tokens"} for name in args}, opset=20)


def inputs(rng: np.random.Generator) -> dict[str, Array]:
    """x and y [3, F]."""
    return {name: normal(rng, 3, F, scale=2.0) for name in ("x", "y")}


def formula(feed: Mapping[str, Array]) -> Array:
    """The output in float64."""
    x, y = wide(feed["x"]), wide(feed["y"])
    result: Array = x + y * sigmoid(y)
    return result


if __name__ == "__main__":
    print(save(build(), "add_silu"))
