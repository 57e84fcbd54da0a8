"""LayerNorm, a Linear with bias and GELU, as torch exports them at opset 23: function ops, and Gemm with transB.

    y[s,k]   = (x[s,k] - mean_k x) / sqrt(var_k x + eps) * scale[k] + shift[k]
    out[s,n] = gelu(sum_k y[s,k] * w[n,k] + bias[n])          gelu(z) = z * (1 + erf(z / sqrt(2))) / 2

All weights are stored in the file; the sequence length `seq` is symbolic.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
import onnx

from examples.common import Array, normal, save, torch_model, wide

D, N, EPS = 256, 512, 1e-5


def weights() -> tuple[Array, Array, Array, Array]:
    """The norm's scale and shift [D], the weight [N, D] and the bias [N]."""
    rng = np.random.default_rng(2)
    scale = (1.0 + normal(rng, D, scale=0.1)).astype(np.float32)
    return scale, normal(rng, D, scale=0.1), normal(rng, N, D, scale=D**-0.5), normal(rng, N, scale=0.1)


def build() -> onnx.ModelProto:
    """The model."""
    import torch

    layers = OrderedDict[str, torch.nn.Module](
        norm=torch.nn.LayerNorm(D, eps=EPS), linear=torch.nn.Linear(D, N), gelu=torch.nn.GELU()
    )
    module = torch.nn.Sequential(layers)
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), weights(), strict=True):
            parameter.copy_(torch.from_numpy(value))
    args = {"x": torch.randn(5, D)}
    return torch_model("layernorm_linear_gelu", module, args, dynamic={"x": {0: "seq"}}, opset=23)


def inputs(rng: np.random.Generator) -> dict[str, Array]:
    """x [9, D], with a mean that is not zero."""
    return {"x": normal(rng, 9, D) + np.float32(0.5)}


def formula(feed: Mapping[str, Array]) -> Array:
    """The output in float64."""
    x = wide(feed["x"])
    scale, shift, w, bias = (wide(a) for a in weights())
    centred = x - x.mean(axis=-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPS) * scale + shift
    z = y @ w.T + bias
    result: Array = 0.5 * z * (1.0 + np.vectorize(math.erf)(z / math.sqrt(2.0)))
    return result


if __name__ == "__main__":
    print(save(build(), "layernorm_linear_gelu"))
