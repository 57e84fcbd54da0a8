"""A gated MLP (SwiGLU) with its down projection in float16, as torch exports it at opset 18; weights are inputs.

h[t,f]   = silu(sum_k x[t,k] * w_gate[k,f]) * sum_k x[t,k] * w_up[k,f]         silu(z) = z / (1 + exp(-z))
out[t,k] = sum_f h[t,f] * w_down[f,k]
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from examples.common import Array, normal, save, sigmoid, torch_model, wide

D, F = 1024, 2816


def build() -> onnx.ModelProto:
    """The model."""
    import torch

    def gated_mlp(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.silu(x @ w_gate) * (x @ w_up)) @ w_down

    shapes = {"x": (5, D), "w_gate": (D, F), "w_up": (D, F), "w_down": (F, D)}
    args = {name: torch.zeros(shape, dtype=torch.float16) for name, shape in shapes.items()}
    return torch_model("gated_mlp", gated_mlp, args, dynamic={"x": {0: "batch"}}, opset=18)


def inputs(rng: np.random.Generator) -> dict[str, Array]:
    """x [6, D], w_gate and w_up [D, F], w_down [F, D], at the scales of a trained layer."""
    return {
        "x": normal(rng, 6, D, dtype=np.float16),
        "w_gate": normal(rng, D, F, scale=D**-0.5, dtype=np.float16),
        "w_up": normal(rng, D, F, scale=D**-0.5, dtype=np.float16),
        "w_down": normal(rng, F, D, scale=F**-0.5, dtype=np.float16),
    }


def formula(feed: Mapping[str, Array]) -> Array:
    """The output in float64."""
    x, w_gate, w_up, w_down = (wide(feed[n]) for n in ("x", "w_gate", "w_up", "w_down"))
    gate = x @ w_gate
    result: Array = (gate * sigmoid(gate) * (x @ w_up)) @ w_down
    return result


if __name__ == "__main__":
    print(save(build(), "gated_mlp"))
