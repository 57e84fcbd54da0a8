"""Fifty nets for benchmarks/problems.py, of few and narrow layers: the third level."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Net = tuple[Callable[[], nn.Module], Callable[[], Sequence[Tensor]]]


def conv(i: int, o: int, k: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)
    )


class Plus(nn.Module):
    """x + f(x), by a shortcut where the widths differ."""

    def __init__(self, inner: nn.Module, shortcut: nn.Module | None = None, after: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.shortcut, self.after = inner, shortcut or nn.Identity(), after or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        y: Tensor = self.after(self.inner(x) + self.shortcut(x))
        return y


class Beside(nn.Module):
    """Branches side by side, their channels in one tensor."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Concatenated along the channels."""
        return torch.cat([b(x) for b in self.branches], 1)


class Gated(nn.Module):
    """Squeeze and excite."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, c // 2, 1), nn.SiLU(), nn.Conv2d(c // 2, c, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Channels scaled."""
        y: Tensor = x * self.gate(x)
        return y


def classified(*layers: nn.Module, width: int) -> nn.Sequential:
    """Layers, a global mean, and a linear layer."""
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def inception(i: int, o: int) -> nn.Module:
    return Beside(
        nn.Conv2d(i, o, 1),
        nn.Sequential(nn.Conv2d(i, o, 1), nn.Conv2d(o, o, 3, padding=1)),
        nn.Sequential(nn.Conv2d(i, o, 1), nn.Conv2d(o, o, 5, padding=2)),
        nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(i, o, 1)),
    )


def basic(i: int, o: int, stride: int = 1) -> nn.Module:
    inner = nn.Sequential(conv(i, o, 3, stride), nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o))
    short = None if i == o and stride == 1 else nn.Sequential(nn.Conv2d(i, o, 1, stride), nn.BatchNorm2d(o))
    return Plus(inner, short, nn.ReLU())


def bottleneck(i: int, o: int) -> nn.Module:
    inner = nn.Sequential(conv(i, o // 4, 1), conv(o // 4, o // 4), nn.Conv2d(o // 4, o, 1), nn.BatchNorm2d(o))
    return Plus(inner, nn.Conv2d(i, o, 1), nn.ReLU())


def inverted(c: int, gate: bool = False) -> nn.Module:
    middle = (Gated(2 * c),) if gate else ()
    return Plus(nn.Sequential(conv(c, 2 * c, 1), conv(2 * c, 2 * c, 3, 1, 2 * c), *middle, nn.Conv2d(2 * c, c, 1)))


class Shuffled(nn.Module):
    """A unit of ShuffleNet: grouped 1 x 1, channels shuffled, depthwise, grouped 1 x 1."""

    def __init__(self, c: int, groups: int = 2) -> None:
        super().__init__()
        self.groups = groups
        self.first, self.depth = conv(c, c, 1, 1, groups), nn.Conv2d(c, c, 3, 1, 1, groups=c)
        self.last = nn.Conv2d(c, c, 1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        """The unit with its shortcut."""
        b, c, h, w = x.shape
        y = self.first(x).view(b, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(b, c, h, w)
        return F.relu(x + self.last(self.depth(y)))


class Dense(nn.Module):
    """A block of DenseNet."""

    def __init__(self, c: int, growth: int, many: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(c + n * growth), nn.ReLU(), nn.Conv2d(c + n * growth, growth, 3, 1, 1))
            for n in range(many)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Everything before is the input of what comes."""
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


class UNet(nn.Module):
    """Two levels down and up."""

    def __init__(self, soft: bool = False) -> None:
        super().__init__()
        last = nn.Softmax(dim=-1) if soft else nn.ReLU()
        self.down, self.deep = nn.Sequential(conv(3, 8), last), nn.Sequential(conv(8, 16), last)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Sequential(conv(16, 8), nn.Conv2d(8, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Both levels, the first one beside what comes up."""
        a = self.down(x)
        y: Tensor = self.out(torch.cat([self.up(self.deep(F.max_pool2d(a, 2))), a], 1))
        return y


class Attention(nn.Module):
    """Multi-head self-attention in its variants."""

    def __init__(self, width: int, heads: int, causal: bool = False, relu: bool = False, kv: int | None = None) -> None:
        super().__init__()
        self.heads, self.kv, self.causal, self.relu = heads, kv or heads, causal, relu
        self.size = width // heads
        self.qkv = nn.Linear(width, (heads + 2 * self.kv) * self.size)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, width] of the same."""
        b, s, w = x.shape
        q, k, v = self.qkv(x).split([self.heads * self.size, self.kv * self.size, self.kv * self.size], -1)
        q, k, v = (t.view(b, s, -1, self.size).transpose(1, 2) for t in (q, k, v))
        if self.kv != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kv, 1) for t in (k, v))
        scores = q @ k.mT / math.sqrt(self.size)
        if self.causal:
            above = torch.triu(torch.ones(s, s, dtype=torch.bool), 1)
            scores = scores.masked_fill(above, 0.0 if self.relu else -math.inf)
        weights = F.relu(scores) / s if self.relu else scores.softmax(-1)
        y: Tensor = self.out((weights @ v).transpose(1, 2).reshape(b, s, w))
        return y


class RMSNorm(nn.Module):
    """With a gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """x over its root mean square."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.gain


class SwiGLU(nn.Module):
    """A gated MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(width, 48), nn.Linear(width, 48), nn.Linear(48, width)

    def forward(self, x: Tensor) -> Tensor:
        """down(silu(gate) * up)."""
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class Experts(nn.Module):
    """A mixture of experts, the two largest of which count."""

    def __init__(self, width: int, many: int = 4, top: bool = True) -> None:
        super().__init__()
        self.router, self.top = nn.Linear(width, many), top
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(many))

    def forward(self, x: Tensor) -> Tensor:
        """Weighted sum of the experts' results."""
        p = self.router(x).softmax(-1)
        if self.top:
            p = p * (p >= p.topk(2, -1).values[..., -1:])
        return sum((p[..., n, None] * e(x) for n, e in enumerate(self.experts)), torch.zeros_like(x))


def mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


def block(width: int = 32, **how: bool | int) -> nn.Sequential:
    return nn.Sequential(
        Plus(nn.Sequential(nn.LayerNorm(width), Attention(width, 4, **how))),  # type: ignore[arg-type]
        Plus(nn.Sequential(nn.LayerNorm(width), mlp(width))),
    )


class Vision(nn.Module):
    """Patches, a class token, blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 32, 4, 4), nn.Parameter(torch.zeros(1, 1, 32))
        self.places, self.blocks, self.head = nn.Parameter(torch.randn(1, 10, 32)), block(), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The class of an image."""
        t = self.patches(x).flatten(2).transpose(1, 2)
        t = torch.cat([self.token.expand(len(x), -1, -1), t], 1) + self.places
        y: Tensor = self.head(self.blocks(t)[:, 0])
        return y


class Windows(nn.Module):
    """Shifted windows, as in Swin: by attention or an MLP over positions."""

    def __init__(self, spatial: bool = False, shift: int = 2) -> None:
        super().__init__()
        self.shift = shift
        self.inner = nn.Linear(16, 16) if spatial else Attention(32, 4)
        self.spatial = spatial

    def forward(self, x: Tensor) -> Tensor:
        """[batch, height, width, channels] of the same, in windows of 4 x 4."""
        b, h, w, c = x.shape
        y = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        y = y.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        y = self.inner(y.mT).mT if self.spatial else self.inner(y)
        y = y.reshape(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return x + torch.roll(y, (self.shift, self.shift), (1, 2))


class Recurrent(nn.Module):
    """A recurrent layer, or several, and a linear one of the last step."""

    def __init__(self, kind: type[nn.RNNBase], **how: bool | int) -> None:
        super().__init__()
        self.layer = kind(8, 16, batch_first=True, **how)  # type: ignore[arg-type]
        self.out = nn.Linear(32 if how.get("bidirectional") else 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Of [batch, steps, features]."""
        y: Tensor = self.out(self.layer(x)[0][:, -1])
        return y


class Cell(nn.Module):
    """A recurrence written out over eight steps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(24, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Of [batch, 8, 8]."""
        h = torch.zeros(x.shape[0], 16)
        for t in range(8):
            h = torch.tanh(self.inner(torch.cat([x[:, t], h], -1)))
        y: Tensor = self.out(h)
        return y


class StateSpace(nn.Module):
    """Mamba-2 in its quadratic form: decays between positions as a lower triangular matrix."""

    def __init__(self, all_of_it: bool = False) -> None:
        super().__init__()
        self.project, self.all_of_it = nn.Linear(16, 16 + 8 + 8 + 1), all_of_it

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, 16] of the same."""
        v, b, c, a = self.project(x).split([16, 8, 8, 1], -1)
        total = F.logsigmoid(a).squeeze(-1).cumsum(-1)
        decay = (total[:, :, None] - total[:, None, :]).tril().exp().tril()
        y: Tensor = ((c @ b.mT) * decay) @ v
        return y + total.exp()[..., None] * x if self.all_of_it else y


class Linear(nn.Module):
    """Linear attention: features of queries and keys, sums before."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, 16] of the same."""
        q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
        y: Tensor = (q @ (k.mT @ v)) / (q @ k.sum(1, keepdim=True).mT)
        return y


class Vlad(nn.Module):
    """NetVLAD: features assigned to clusters."""

    def __init__(self) -> None:
        super().__init__()
        self.assign, self.centers = nn.Linear(16, 6), nn.Parameter(torch.randn(16, 6))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, many, 16] to [batch, 16 * 6]."""
        a = self.assign(x).softmax(-1)
        v = x.mT @ a - a.sum(1, keepdim=True) * self.centers
        return F.normalize(F.normalize(v, dim=1).flatten(1), dim=1)


class Rotary(nn.Module):
    """A layer of Llama."""

    cos: Tensor
    sin: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.feed = RMSNorm(32), RMSNorm(32), SwiGLU(32)
        self.qkv, self.out = nn.Linear(32, 64, bias=False), nn.Linear(32, 32, bias=False)
        angles = torch.arange(12)[:, None] / 10000 ** (torch.arange(4) / 4)
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def _turned(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 12, 32] of the same."""
        b, s, _ = x.shape
        q, k, v = self.qkv(self.first(x)).split([32, 16, 16], -1)
        q, k, v = (t.view(b, s, -1, 8).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(self._turned(q), self._turned(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, 32))
        z: Tensor = x + self.feed(self.second(x))
        return z


class Embedded(nn.Module):
    """Tokens and places, and what follows."""

    def __init__(self, inner: nn.Module, out: int | None = None) -> None:
        super().__init__()
        self.tokens, self.places, self.inner = nn.Embedding(50, 32), nn.Embedding(12, 32), inner
        self.head = nn.Linear(32, out or 50, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        y: Tensor = self.head(self.inner(self.tokens(x) + self.places(torch.arange(x.shape[1]))))
        return y


class Fire(nn.Module):
    """SqueezeNet's unit."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.squeeze, self.expand = conv(c, c // 2, 1), Beside(conv(c // 2, c // 2, 1), conv(c // 2, c // 2))

    def forward(self, x: Tensor) -> Tensor:
        """Squeezed, and expanded twice."""
        y: Tensor = self.expand(self.squeeze(x))
        return y


class Transposed(nn.Module):
    """f between two axes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """f(x transposed), transposed."""
        y: Tensor = self.inner(x.mT).mT
        return y


def images() -> list[Tensor]:
    return [torch.randn(2, 3, 12, 12)]


def tokens() -> list[Tensor]:
    return [torch.randint(0, 50, (2, 12))]


def drawn(*shape: int) -> Callable[[], list[Tensor]]:
    return lambda: [torch.randn(shape)]


rows, sequence, steps, squares = drawn(8, 24), drawn(2, 12, 32), drawn(2, 8, 8), drawn(2, 8, 8, 32)

NETS: dict[str, Net] = {
    "MLP": (lambda: nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)), rows),
    "shallow and wide MLP": (lambda: nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 4)), rows),
    "deep and narrow MLP": (
        lambda: nn.Sequential(nn.Linear(24, 8), *[m for _ in range(8) for m in (nn.ReLU(), nn.Linear(8, 8))]),
        rows,
    ),
    "LeNet": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 16),
            nn.ReLU(),
            nn.Linear(16, 10),
        ),
        images,
    ),
    "AlexNet": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 5, 2, 2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(8, 8, 3, 1, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Dropout(),
            nn.Flatten(),
            nn.Linear(32, 10),
        ),
        images,
    ),
    "VGG": (lambda: classified(conv(3, 8), conv(8, 8), nn.MaxPool2d(2), conv(8, 8), nn.MaxPool2d(2), width=8), images),
    "inception": (lambda: inception(3, 4), images),
    "GoogLeNet": (
        lambda: classified(conv(3, 8), inception(8, 4), nn.MaxPool2d(3, 2), inception(16, 4), width=16),
        images,
    ),
    "ResNet, basic block": (lambda: basic(3, 8, 2), images),
    "ResNet-18": (lambda: classified(conv(3, 8), basic(8, 8), basic(8, 16, 2), basic(16, 16), width=16), images),
    "ResNet-101": (lambda: classified(conv(3, 8), bottleneck(8, 16), bottleneck(16, 16), width=16), images),
    "DenseNet, block": (lambda: Dense(3, 4, 3), images),
    "DenseNet, transition": (
        lambda: nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 1), nn.AvgPool2d(2)),
        images,
    ),
    "DenseNet": (lambda: classified(conv(3, 8), Dense(8, 4, 2), conv(16, 8, 1), nn.AvgPool2d(2), width=8), images),
    "MobileNet": (lambda: classified(conv(3, 8, 3, 2), conv(8, 8, 3, 1, 8), conv(8, 16, 1), width=16), images),
    "MobileNet-2": (lambda: classified(conv(3, 8), inverted(8), inverted(8), width=8), images),
    "EfficientNet, MBConv": (lambda: inverted(3), images),
    "EfficientNet": (lambda: classified(conv(3, 8), inverted(8, True), width=8), images),
    "ShuffleNet, unit": (lambda: Shuffled(8), drawn(2, 8, 6, 6)),
    "ShuffleNet": (lambda: classified(conv(3, 8), Shuffled(8), Shuffled(8), width=8), images),
    "SqueezeNet, fire": (lambda: Fire(8), drawn(2, 8, 6, 6)),
    "SqueezeNet": (lambda: classified(conv(3, 8), nn.MaxPool2d(3, 2, ceil_mode=True), Fire(8), width=8), images),
    "RegNet": (lambda: classified(conv(3, 8), conv(8, 8, 3, 1, 4), nn.MaxPool2d(2), conv(8, 8), width=8), images),
    "U-Net": (UNet, images),
    "U-Net with softmax": (lambda: UNet(True), images),
    "squeeze and excite": (lambda: Gated(8), drawn(2, 8, 6, 6)),
    "ConvNeXt, block": (
        lambda: Plus(
            nn.Sequential(
                nn.Conv2d(8, 8, 7, padding=3, groups=8),
                nn.GroupNorm(1, 8),
                nn.Conv2d(8, 16, 1),
                nn.GELU(),
                nn.Conv2d(16, 8, 1),
            )
        ),
        drawn(2, 8, 8, 8),
    ),
    "ViT": (Vision, images),
    "attention": (lambda: Attention(32, 4), sequence),
    "causal attention": (lambda: Attention(32, 4, causal=True), sequence),
    "ReLU attention": (lambda: Attention(32, 4, causal=True, relu=True), sequence),
    "grouped-query attention": (lambda: Attention(32, 4, causal=True, kv=2), sequence),
    "linear attention": (Linear, drawn(2, 12, 16)),
    "GPT, block": (lambda: block(causal=True), sequence),
    "GPT": (lambda: Embedded(nn.Sequential(block(causal=True), block(causal=True), nn.LayerNorm(32))), tokens),
    "BERT": (lambda: Embedded(nn.Sequential(nn.LayerNorm(32), block(), block()), 2), tokens),
    "encoder layer of torch": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), sequence),
    "decoder layer of torch": (
        lambda: nn.TransformerDecoderLayer(32, 4, 64, batch_first=True),
        lambda: [torch.randn(2, 12, 32), torch.randn(2, 7, 32)],
    ),
    "multi-head attention of torch": (
        lambda: nn.MultiheadAttention(32, 4, batch_first=True),
        lambda: [torch.randn(2, 12, 32) for _ in range(3)],
    ),
    "Llama, layer": (Rotary, sequence),
    "Swin": (lambda: nn.Sequential(Windows(shift=0), Windows()), squares),
    "Swin MLP": (lambda: Windows(spatial=True), squares),
    "MLP-Mixer": (
        lambda: nn.Sequential(Plus(Transposed(mlp(12))), Plus(mlp(32))),
        sequence,
    ),
    "NetVLAD": (Vlad, drawn(2, 12, 16)),
    "Mamba-2": (StateSpace, drawn(2, 12, 16)),
    "Mamba-2, and its initial state": (lambda: StateSpace(True), drawn(2, 12, 16)),
    "mixture of experts": (lambda: Experts(32), sequence),
    "RNN": (Cell, steps),
    "LSTM": (lambda: Recurrent(nn.LSTM), steps),
    "GRU, two layers, both ways": (lambda: Recurrent(nn.GRU, num_layers=2, bidirectional=True), steps),
}
"""By name: what makes the net, and what makes its inputs."""
