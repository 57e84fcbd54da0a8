"""RMSNorm and a Linear without bias, as torch exports them at opset 18: the norm in seven small ops.

    out[s,n] = sum_k  x[s,k] / sqrt(mean_k x[s,k]^2 + eps) * scale[k] * w[n,k]

The norm's scale and the weight are stored in the file; the sequence length `seq` is symbolic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
import onnx

from examples.common import Array, normal, rms_norm, save, torch_model, wide

D, N, EPS = 512, 384, 1e-6


def weights() -> tuple[Array, Array]:
    """The norm's scale [D] and the weight [N, D]."""
    rng = np.random.default_rng(1)
    return (1.0 + normal(rng, D, scale=0.1)).astype(np.float32), normal(rng, N, D, scale=D**-0.5)


def build() -> onnx.ModelProto:
    """The model."""
    import torch

    layers = OrderedDict(norm=torch.nn.RMSNorm(D, eps=EPS), linear=torch.nn.Linear(D, N, bias=False))
    module = torch.nn.Sequential(layers)
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), weights(), strict=True):
            parameter.copy_(torch.from_numpy(value))
    return torch_model("rmsnorm_linear", module, {"x": torch.randn(5, D)}, dynamic={"x": {0: "seq"}}, opset=18)


def inputs(rng: np.random.Generator) -> dict[str, Array]:
    """x [7, D]."""
    return {"x": normal(rng, 7, D)}


def formula(feed: Mapping[str, Array]) -> Array:
    """The output in float64."""
    scale, w = (wide(a) for a in weights())
    result: Array = rms_norm(wide(feed["x"]), scale, EPS) @ w.T
    return result


if __name__ == "__main__":
    print(save(build(), "rmsnorm_linear"))
