"""Writes the models beside it: as torch exports them, and as onnxsim leaves them (`pip install onnxsim`).

    python tests/models/make.py

onnxsim is no dependency of the tests, so what it makes is kept: NAME.onnx and NAME.sim.onnx.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxsim
import torch
from torch import Tensor, nn

HERE = Path(__file__).parent
WIDTH, HEADS = 8, 2


class Attention(nn.Module):
    """Self-attention with separate projections: onnxsim fuses it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, positions, WIDTH]."""
        batch, positions, _ = x.shape

        def heads(t: Tensor) -> Tensor:
            return t.view(batch, positions, HEADS, WIDTH // HEADS).transpose(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        p = torch.softmax(q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5, -1)
        result: Tensor = self.o((p @ v).transpose(1, 2).reshape(batch, positions, WIDTH))
        return result


class Perceptron(nn.Module):
    """LayerNorm, Linear, GELU, Linear with a bias of zeros, and what came in: onnxsim drops the zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)
        with torch.no_grad():
            self.norm.weight.normal_()
            self.norm.bias.normal_()
            self.down.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, positions, WIDTH]."""
        result: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return result


def main() -> None:
    """Write them."""
    torch.manual_seed(0)
    for name, module in (("attention", Attention()), ("perceptron", Perceptron())):
        path = HERE / f"{name}.onnx"
        example = (torch.zeros(2, 3, WIDTH),)
        torch.onnx.export(
            module.eval(), example, path, dynamo=True, opset_version=18, optimize=False, external_data=False
        )
        plain = onnx.load(path)
        for node in plain.graph.node:
            del node.metadata_props[:]  # stack traces, with paths
        del plain.graph.value_info[:]
        onnx.save(plain, path)
        simplified, _ = onnxsim.simplify(plain)
        onnx.save(simplified, HERE / f"{name}.sim.onnx")


if __name__ == "__main__":
    main()
