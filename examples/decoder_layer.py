"""A whole decoder layer in float16, as torch exports it at opset 18; weights and rotation tables are inputs.

    a   = rms_norm(x, norm_1)
    q,k = rotate(a w_q), rotate(a w_k), v = a w_v        rotate(z) = z cos + half_turn(z) sin, head by head
    o   = softmax_j(q k / sqrt(D), over j <= i) v        each of the KV_HEADS key-value heads serves HEADS/KV_HEADS
    h   = x + o w_o
    out = h + (silu(b w_gate) * (b w_up)) w_down         b = rms_norm(h, norm_2)

The sequence length is symbolic. Norms compute in float32, as trained models do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx

from examples.common import Array, normal, rms_norm, save, sigmoid, softmax, torch_model, wide

if TYPE_CHECKING:
    import torch

EPS = 1e-5


@dataclass(frozen=True)
class Sizes:
    """The layer's dimensions: the model's, heads, key-value heads, a head's, the MLP's."""

    hidden: int = 1024
    heads: int = 16
    kv_heads: int = 4
    head: int = 64
    mlp: int = 2816

    def shapes(self, seq: int) -> dict[str, tuple[int, ...]]:
        """The inputs' shapes by name, in order."""
        model, q, kv = self.hidden, self.heads * self.head, self.kv_heads * self.head
        return {
            "x": (seq, model),
            "cos": (seq, self.head),
            "sin": (seq, self.head),
            "norm_1": (model,),
            "w_q": (model, q),
            "w_k": (model, kv),
            "w_v": (model, kv),
            "w_o": (q, model),
            "norm_2": (model,),
            "w_gate": (model, self.mlp),
            "w_up": (model, self.mlp),
            "w_down": (self.mlp, model),
        }


FULL = Sizes()


def layer(s: Sizes) -> Callable[..., torch.Tensor]:
    """The layer as a function of its inputs, in the order of `Sizes.shapes`."""
    import torch

    def norm(z: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        wide_z = z.float()
        inverse = torch.rsqrt(wide_z.pow(2).mean(-1, keepdim=True) + EPS)
        return scale * (wide_z * inverse).to(z.dtype)

    def rotate(z: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = s.head // 2
        return z * cos + torch.cat((-z[..., half:], z[..., :half]), -1) * sin

    def split(z: torch.Tensor, heads: int) -> torch.Tensor:
        return z.view(-1, heads, s.head).transpose(0, 1)

    def decoder_layer(
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        norm_1: torch.Tensor,
        w_q: torch.Tensor,
        w_k: torch.Tensor,
        w_v: torch.Tensor,
        w_o: torch.Tensor,
        norm_2: torch.Tensor,
        w_gate: torch.Tensor,
        w_up: torch.Tensor,
        w_down: torch.Tensor,
    ) -> torch.Tensor:
        seq, group = x.shape[0], s.heads // s.kv_heads
        a = norm(x, norm_1)
        q = rotate(split(a @ w_q, s.heads), cos, sin)
        k = rotate(split(a @ w_k, s.kv_heads), cos, sin)
        v = split(a @ w_v, s.kv_heads)
        k, v = (z[:, None].expand(s.kv_heads, group, seq, s.head).reshape(s.heads, seq, s.head) for z in (k, v))
        scores = torch.matmul(q, k.transpose(1, 2)) * s.head**-0.5
        visible = torch.ones(seq, seq, dtype=torch.bool).tril()
        weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), -1)
        o = torch.matmul(weights, v).transpose(0, 1).reshape(seq, s.heads * s.head)
        h = x + o @ w_o
        b = norm(h, norm_2)
        return h + (torch.nn.functional.silu(b @ w_gate) * (b @ w_up)) @ w_down

    return decoder_layer


def build(s: Sizes = FULL) -> onnx.ModelProto:
    """The model."""
    import torch

    args = {name: torch.zeros(shape, dtype=torch.float16) for name, shape in s.shapes(48).items()}
    dynamic = {name: {0: "seq"} for name in ("x", "cos", "sin")}
    return torch_model("decoder_layer", layer(s), args, dynamic=dynamic, opset=18)


def inputs(rng: np.random.Generator, s: Sizes = FULL, seq: int = 6) -> dict[str, Array]:
    """A draw at the scales of a trained layer; the rotation's angles are position / 10000^(2d / D)."""
    shapes = s.shapes(seq)
    feed = {n: normal(rng, *shape, scale=shape[0] ** -0.5, dtype=np.float16) for n, shape in shapes.items()}
    feed["x"] = normal(rng, seq, s.hidden, dtype=np.float16)
    for name in ("norm_1", "norm_2"):
        feed[name] = np.float16(1.0) + normal(rng, s.hidden, scale=0.1, dtype=np.float16)
    angles = np.arange(seq)[:, None] / 10000.0 ** (np.arange(s.head // 2) * 2 / s.head)
    feed["cos"], feed["sin"] = (np.tile(f(angles), 2).astype(np.float16) for f in (np.cos, np.sin))
    return feed


def formula(feed: Mapping[str, Array], s: Sizes = FULL) -> Array:
    """The output in float64."""
    t = {name: wide(value) for name, value in feed.items()}
    eps, seq = float(np.float32(EPS)), len(t["x"])

    def heads(z: Array) -> Array:
        return z.reshape(seq, -1, s.head).swapaxes(0, 1)

    def rotate(z: Array) -> Array:
        low, high = np.split(z, 2, -1)
        turned: Array = z * t["cos"] + np.concatenate((-high, low), -1) * t["sin"]
        return turned

    a = rms_norm(t["x"], t["norm_1"], eps)
    q, k, v = (heads(a @ t[w]) for w in ("w_q", "w_k", "w_v"))
    q, k = rotate(q), rotate(k)
    k, v = (np.repeat(z, s.heads // s.kv_heads, 0) for z in (k, v))
    visible = np.tri(seq, dtype=bool)
    weights = softmax(np.where(visible, q @ k.swapaxes(1, 2) / np.sqrt(s.head), -np.inf))
    h = t["x"] + (weights @ v).swapaxes(0, 1).reshape(seq, -1) @ t["w_o"]
    b = rms_norm(h, t["norm_2"], eps)
    gate = b @ t["w_gate"]
    result: Array = h + (gate * sigmoid(gate) * (b @ t["w_up"])) @ t["w_down"]
    return result


if __name__ == "__main__":
    print(save(build(), "decoder_layer"))
