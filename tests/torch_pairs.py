"""Pairs of torch functions written by hand: one line each, a function and what somebody might take for the same.

x, y: [3, 4], w: [4, 4], s: [3, 1], floats; p: truth values [3, 4]; n, m: whole numbers [3, 4]. WRONG pairs differ at
some finite inputs at which the first has a value, most of them at few: in rows that a mask empties, at ties, zeros,
halves, a type's ends, infinities on the way. RIGHT ones differ nowhere, rounding apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from verdict_mutants import Pair

WRONG: Sequence[str] = (
    """
torch.where(p, x, -inf).softmax(-1).nan_to_num(0.0) ## torch.where(p, x, -1e4).softmax(-1)
torch.where(p, x, -inf).softmax(-1).nan_to_num(0.0) ## torch.where(p, x, -inf).softmax(-1).nan_to_num(0.25)
torch.where(p, x, -inf).softmax(-1).nan_to_num(0.0) ## (x.softmax(-1) * p) / (x.softmax(-1) * p).sum(-1, keepdim=True)
torch.where(p.any(-1, keepdim=True), torch.where(p, x, -inf).softmax(-1), 0.0) ## torch.where(p, x, -1e9).softmax(-1)
torch.where(p, x, -inf).amax(-1, keepdim=True) ## torch.where(p, x, -1e9).amax(-1, keepdim=True)
torch.where(p, x, 0.0).amax(-1, keepdim=True) ## torch.where(p, x, -inf).amax(-1, keepdim=True).clamp(min=0)
torch.where(p, x, -inf).amax(-1, keepdim=True).clamp(min=-5)
  ## torch.where(p, x.clamp(min=-5), -4.0).amax(-1, keepdim=True)
torch.where(p, x, 0.0).sum(-1) / p.sum(-1).clamp(min=1) ## torch.where(p, x, 0.0).mean(-1)
torch.where(p, x, 0.0).sum(-1) / p.sum(-1).clamp(min=1) ## torch.where(p, x, 0.0).sum(-1) / (p.sum(-1) + 1)
torch.where(p.any(-1), torch.where(p, x, -inf).logsumexp(-1), 0.0) ## torch.where(p, x, -inf).logsumexp(-1)
torch.where(p, x, 0.0).prod(-1) ## torch.where(p, x, 1.0).prod(-1)
2 * x ## 2 * x + 0 * torch.where(p, x, -inf).amax(-1, keepdim=True)
2 * x ## 2 * x + (torch.where(p, x, inf).amin(-1, keepdim=True) - torch.where(p, x, inf).amin(-1, keepdim=True))
2 * x ## 2 * x + 0 * (1 / y)
2 * x ## 2 * x * (y / y)
2 * x ## 2 * x + 0 * torch.log(y)
2 * x ## 2 * x + 0 * torch.sqrt(y)
x * 0 ## x * 0 * torch.rsqrt(y * y)
torch.exp(x) ## torch.exp(x) * torch.exp(torch.log(y) - torch.log(y))
x ## torch.sqrt(x) * torch.sqrt(x)
x ## torch.sqrt(x * x)
x ## torch.exp(torch.log(x))
x ## x / y * y
x ## torch.where(x == 0, 1e-30, x)
x ## torch.where(x == 1.5, 1.0, x)
x ## torch.where((x == 0) & (y == 0), 1.0, x)
x ## torch.where(x == y, x + 1, x)
x ## torch.maximum(x, torch.full((), -1e3))
x ## x.clamp(-1e6, 1e6)
x ## x.clamp(min=-100) + 0.0
x ## torch.nan_to_num(x, neginf=0.0) + torch.relu(-x - 50)
x ## x + 1e-9
x ## x * (1 + 1e-9)
x ## torch.floor(x) + torch.frac(x) * 0.999999
torch.frac(x) ## x - torch.floor(x)
torch.round(x) ## torch.floor(x + 0.5)
torch.round(x) ## torch.trunc(x + 0.5 * torch.sign(x))
torch.trunc(x) ## torch.floor(x)
torch.trunc(x) ## torch.sign(x) * torch.ceil(x.abs())
torch.ceil(x) ## torch.floor(x) + 1
torch.sign(x) ## torch.where(x >= 0, 1.0, -1.0)
torch.sign(x) ## x / x.abs()
torch.sign(x) * y ## torch.where(x > 0, y, -y)
torch.relu(x) ## torch.where(x > 0, x, 1e-12)
(x > 0).to(x.dtype) ## torch.relu(torch.sign(x) + 0.5).round()
(x > 0).to(x.dtype) ## (x >= 0).to(x.dtype)
(x >= y).to(x.dtype) ## 1 - (x <= y).to(x.dtype)
((x > y) != (y > x)).to(x.dtype) ## torch.ones_like(x)
(x == x.amax(-1, keepdim=True)).to(x.dtype)
  ## (x >= x.amax(-1, keepdim=True)).to(x.dtype) / (x == x.amax(-1, keepdim=True)).sum(-1, keepdim=True)
(x == x.amax(-1, keepdim=True)).sum(-1) ## torch.ones_like(n.sum(-1))
(x > x.mean(-1, keepdim=True)).any(-1) ## torch.ones_like(p.any(-1))
torch.where(x > 0, y, -y) ## torch.where(x < 0, -y, y)
torch.where(x > 0, torch.log(x.abs() + 1e-3), y) ## torch.where(x >= 0, torch.log(x.abs() + 1e-3), y)
x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) ## x / (torch.sqrt((x * x).mean(-1, keepdim=True)) + 1e-6)
x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) ## x * torch.rsqrt((x * x + 1e-6).sum(-1, keepdim=True))
x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
  ## x * torch.rsqrt((x * x).mean(-1, keepdim=True).clamp(min=1e-6))
x / (x.norm(dim=-1, keepdim=True) + 1e-3) ## x / x.norm(dim=-1, keepdim=True).clamp(min=1e-3)
x / x.norm(dim=-1, keepdim=True).clamp(min=1e-3) ## x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)
x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6) ## x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-7)
F.layer_norm(x, (4,), eps=1e-5) ## (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5)
F.layer_norm(x, (4,), eps=1e-5) ## (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, unbiased=False) + 1e-5)
F.layer_norm(x, (4,), eps=1e-5) ## F.layer_norm(x * 2, (4,), eps=1e-5)
F.layer_norm(x, (4,), w[0], w[1]) ## F.layer_norm(x, (4,), w[0]) + w[1] * w[0]
F.softplus(x) ## torch.log1p(torch.exp(-x))
F.softplus(x) ## torch.relu(x)
F.elu(x) ## torch.where(x > 0, x, torch.exp(x))
F.gelu(x) ## F.gelu(x, approximate='tanh')
F.silu(x) ## x * torch.sigmoid(1.702 * x)
F.hardtanh(x) ## torch.tanh(x)
F.leaky_relu(x, 0.1) ## torch.maximum(x, 0.1 * x) + torch.relu(-x) * 1e-7
F.leaky_relu(x, 2.0) ## torch.maximum(x, 2.0 * x)
x.softmax(-1) ## (x + w[0]).softmax(-1)
x.softmax(-1) ## (x + y.sum(0, keepdim=True)).softmax(-1)
x.softmax(-1) ## (x * s).softmax(-1)
x.softmax(-1) ## torch.exp(x) / (torch.exp(x).sum(-1, keepdim=True) + 1e-8)
x.softmax(-1).sum(-1) ## x.softmax(0).sum(-1)
x.logsumexp(-1) ## x.amax(-1) + torch.log(torch.exp(x - x.amax(-1, keepdim=True)).mean(-1))
(x @ w).amax(-1) ## x.amax(-1) * w.amax()
(x * s).amax(-1, keepdim=True) ## x.amax(-1, keepdim=True) * s
(x * s).amin(-1, keepdim=True) ## x.amin(-1, keepdim=True) * s.abs()
(x + y).amax(-1) ## x.amax(-1) + y.amax(-1)
x.amax(-1) * 0 + x.amin(-1) ## x.amax(-1) * 1e-9 + x.amin(-1)
x.cumsum(-1) ## x.flip(-1).cumsum(-1).flip(-1)
x.cumsum(-1)[:, 1:] ## x.cumsum(-1)[:, :-1]
x.cumsum(-1) - x ## F.pad(x.cumsum(-1)[:, 1:], (1, 0))
x.cumsum(0) ## x.cumsum(-1)
x.prod(-1) ## torch.exp(torch.log(x.abs()).sum(-1))
x.prod(-1) ## x[:, 0] * x[:, 1] * x[:, 2]
x.var(-1) ## (x * x).mean(-1) - x.mean(-1) ** 2
x.tril(1) ## x.tril()
x.clone().masked_fill_(p, 0) + y ## torch.where(p, x, 0.0) + y
x.clone().mul_(2).add_(y, alpha=2) ## x * 2 + y
torch.cat([x[:, 2:], x[:, :2]], -1) ## x.roll(1, -1)
x.roll(1, 0) ## x.roll(1, -1)
F.pad(x, (1, 1)).amax(-1) ## x.amax(-1)
F.pad(x, (1, 1), value=-inf).amax(-1) ## F.pad(x, (1, 1)).amax(-1)
F.pad(x, (0, 1)).mean(-1) ## x.mean(-1)
int8: n + m ## (n.to(torch.int32) + m.to(torch.int32)).clamp(-128, 127).to(torch.int8)
int8: (n * 2) // 2 ## n
int8: -(-n) + n.abs()
  ## n + n.to(torch.int32).abs().to(torch.uint8).to(torch.int8).abs() + (n == -128)
int8: n.abs() ## torch.where(n < -127, torch.full_like(n, 127), n.abs())
int8: (n > m) ## ((n - m) > 0)
int8: n.to(torch.int32) + m ## (n + m).to(torch.int32)
int8: n.sum(-1) ## n.sum(-1, dtype=torch.int8).to(torch.int64)
int8: n.to(torch.uint8).to(torch.int32) ## n.to(torch.int32)
int8: n // 2 ## torch.div(n, 2, rounding_mode='trunc')
int8: n % 3 ## torch.fmod(n, 3)
int8: n * n ## (n.to(torch.int32) * n.to(torch.int32)).clamp(max=127).to(torch.int8)
int8: n >> 1 ## torch.div(n, 2, rounding_mode='trunc')
uint8: n - m ## (n.to(torch.int32) - m.to(torch.int32)).clamp(min=0).to(torch.uint8)
uint8: n - m + m - 1 ## torch.where(n == 0, n, n - 1)
uint8: n.to(torch.int8).to(torch.int32) ## n.to(torch.int32)
uint8: (n + 1 > n) ## torch.ones_like(p)
uint8: n * 3 // 3 ## n
int32: n * 2 // 2 ## n
int32: (n + m) // 2 ## n // 2 + m // 2
int32: (n.to(torch.float64) / 3).to(torch.int32) ## n // 3
int32: n.abs() >= 0 ## torch.ones_like(p)
int64: (n.to(torch.float64) / 2).floor() ## (n.to(torch.float64) / 2).trunc()
int64: n.to(torch.bool).to(torch.int64) ## n.clamp(0, 1)
int64: torch.where(n == 7, 8, n) ## n
(x.to(torch.int32)).to(x.dtype) ## torch.floor(x)
(x * 0.5).to(torch.int64) ## x.to(torch.int64) // 2
p.to(x.dtype).sum(-1) ## p.any(-1).to(x.dtype)
(p.to(torch.int32) + p.to(torch.int32)) ## (p | p).to(torch.int32)
p ^ (x > 0) ## p | (x > 0)
p.all(-1) ## p[:, 0] & p[:, 1] & p[:, 2]
torch.where(p, x, y) ## torch.where(p, x, 0.0) + torch.where(p, 0.0, x)
torch.where(p, x, y) ## torch.where(p, x, torch.where(x > 0, y, y + (x == 0)))
torch.where(p, x / s, 0.0) ## torch.where(p, x, 0.0) / (s + 1e-12)
x @ w @ w ## x @ (w * w)
(x * w[0]) @ w ## (x @ w) * w[0]
(x @ w + w[1]) @ w ## x @ (w @ w) + w[1]
(x @ w) * s.sum() ## (x * s) @ w
x.mean(-1) + y.mean(-1) ## (x + y).sum(-1) / 3
x.mean(0) ## x.sum(0) / 4
((x - y) ** 2).mean(-1) ## x.var(-1) + y.var(-1)
torch.sigmoid(x) - 0.5 ## 0.5 * torch.tanh(x)
torch.tanh(x) ## x.clamp(-1, 1)
torch.sin(x) ## torch.sin(x + 6.283185)
torch.cos(x) ** 2 ## 1 - torch.sin(x)
torch.log1p(x.abs()) ## torch.log(x.abs())
torch.expm1(x) ## torch.exp(x) - (1 - 1e-7)
torch.isnan(x / y) ## torch.zeros_like(p)
torch.isinf(1 / torch.relu(x)) ## x < 0
x[:, :0].sum(-1) ## x[:, :1].sum(-1)
x[:, :1].softmax(-1) ## x[:, :1]
x[:, :1].var(-1, unbiased=False) ## x[:, 0] * 1e-9
x[:1].amax(0) ## x.amax(0)
x.argmax(-1) ## x.argmin(-1)
x.argmax(-1) ## (-x).argmax(-1)
x.argmax(-1) ## (x * s).argmax(-1)
x.argmax(-1) ## (x + y).argmax(-1)
x.argmax(-1) ## (x + w[0]).argmax(-1)
x.argmax(-1) ## (x * 0).argmax(-1)
x.argmax(-1) ## (x * x).argmax(-1)
x.argmax(-1) ## x.abs().argmax(-1)
x.argmax(-1) ## x.clamp(max=1).argmax(-1)
x.argmax(-1) ## torch.relu(x).argmax(-1)
x.argmax(-1) ## torch.sigmoid(x * y).argmax(-1)
x.argmax(-1) ## 3 - x.flip(-1).argmax(-1)
x.argmax(-1) ## (x == x.amax(-1, keepdim=True)).to(torch.int64).cumsum(-1).argmax(-1)
x.argmax(-1) ## torch.where(x == x.amax(-1, keepdim=True), torch.arange(4), -1).amax(-1)
x.argmax(-1) ## x.round().argmax(-1)
x.argmax(-1) ## (x / s).argmax(-1)
x.argmax(-1) ## (x - s * x).argmax(-1)
x.argmax(-1) ## torch.exp(-x).argmax(-1)
x.argmax(-1) ## x.softmax(0).argmax(-1)
x.argmax(-1) ## (x.softmax(-1) * w[0]).argmax(-1)
x.argmin(-1) ## (-2 * x).argmin(-1)
x.argmin(-1) ## (1 / x).argmax(-1)
(x * s).argmin(-1) ## (x * s.abs()).argmin(-1)
(x < y) ## (-x < -y)
(x < y) ## (x * s < y * s)
(x < y) ## (x * 0.0 < y * 0.0)
(x <= y) ## (x + s <= y)
(x == y) ## (x * s == y * s)
(x == y) ## (x * x == y * y)
(x < y) ## (x.abs() < y.abs())
(x < y) ## (torch.exp(-x) < torch.exp(-y))
(x <= y) ## (-2 * x <= -2 * y)
x.clamp(-1, 1) ## torch.where(x < -1, -1.0, torch.where(x > 1, 0.999, x))
x.clamp(-1, 1) ## torch.where(x < -1, -1.0, torch.minimum(x, torch.full((), 2.0)))
x.clamp(-1, 1) ## torch.where(x < -0.5, -1.0, torch.where(x > 1, 1.0, x))
x.clamp(-1, 1) ## torch.where(x < 1, -1.0, torch.where(x > -1, 1.0, x))
x.clamp(-1, 1) ## torch.where(x > -1, x.clamp(max=1), -1.0) + 1e-7
x.clamp(1, -1) ## torch.where(x < 1, 1.0, torch.where(x > -1, -1.0, x))
torch.where(x < 2, 2.0, x.clamp(max=1)) ## torch.maximum(x.clamp(max=1), torch.full((), 2.0))
torch.where(x < y, y, torch.minimum(x, s)) ## torch.maximum(torch.minimum(x, s), y)
torch.maximum(torch.minimum(x, y), s) ## torch.minimum(torch.maximum(x, s), y)
torch.where(x > y, y, torch.maximum(x, s)) ## torch.minimum(torch.maximum(x, s), y)
(x * s).amax(-1) ## s[:, 0] * x.amin(-1)
(-2 * x).amax(-1) ## -2 * x.amax(-1)
(x * -2).amin(-1) ## -2 * x.amin(-1)
(x * (s - 5)).amax(-1) ## (s - 5)[:, 0] * x.amin(-1)
(x * -w[0].abs()).amax(-1) ## -(x * w[0].abs()).amax(-1)
F.huber_loss(x, y) ## torch.where((x - y).abs() <= 1, 0.5 * (x - y) ** 2, (x - y).abs() - 0.4999).mean()
F.huber_loss(x, y) ## F.smooth_l1_loss(x, y, beta=0.999)
F.huber_loss(x, y, delta=2.0) ## F.smooth_l1_loss(x, y, beta=2.0)
F.binary_cross_entropy_with_logits(x, y) ## (x.clamp(min=0) - x * y + torch.log(1 + torch.exp(x.abs()))).mean()
F.binary_cross_entropy_with_logits(x, y) ## -(y * F.logsigmoid(x) + (1 - y) * F.logsigmoid(x)).mean()
x.logsumexp(-1) ## torch.maximum(x[:, :2].logsumexp(-1), x[:, 2:].logsumexp(-1))
x.logsumexp(-1) ## torch.logaddexp(x[:, :2].logsumexp(-1), x[:, 1:].logsumexp(-1))
x.softmax(-1) ## torch.cat([x[:, :2].softmax(-1), x[:, 2:].softmax(-1)], -1) / 2
torch.where(x > 0, x, 0.1 * x) ## torch.where(x >= 0, x, 0.1 * x) + (x == 0).to(x.dtype)
(x.argmax(-1) == x.argmin(-1)) ## torch.zeros(3, dtype=torch.bool)
(1 / x == 1 / y) ## (x == y)
(torch.sqrt(x) < torch.sqrt(y)) ## (x < y)
(torch.log(x) < torch.log(y)) ## (x < y)
int8: n.argmax(-1) ## (-n).argmin(-1)
int8: n.argmax(-1) ## (n * 2).argmax(-1)
int8: (n < m) ## (-m < -n)
int8: (n < m) ## (n + 1 < m + 1)
int8: n.argmax(-1) ## (n + 100).argmax(-1)
uint8: n.argmax(-1) ## (-n).argmin(-1)
uint8: (n < m) ## (n - 1 < m - 1)
F.huber_loss(x, y, reduction='none') ## torch.where((x - y).abs() <= 1, 0.5 * (x - y) ** 2, (x - y).abs() - 0.25)
F.softshrink(x, 0.5) ## F.hardshrink(x, 0.5)
F.leaky_relu(x, 0.1) ## F.relu(x) + 0.1 * F.relu(-x)
F.elu(x) ## torch.maximum(x, torch.exp(torch.clamp(x, max=0.0)) - 1 - 1e-9)
torch.where(x.abs() > 0.5, x, 0.0) ## torch.where(x.abs() >= 0.5, x, 0.0)
x.clamp(-1, 2) ## 0.5 * ((x + 1).abs() - (x - 2).abs() + 1) + (x == 2).to(x.dtype)
F.rms_norm(x + 3, (4,), eps=1e-6) ## F.rms_norm(x, (4,), eps=1e-6)
F.layer_norm(x, (4,), eps=1e-5) ## F.layer_norm(2 * x, (4,), eps=1e-5)
torch.softmax((x + 1) @ w, -1) ## torch.softmax(x @ w, -1)
int8: (2 * n).clamp(min=0) ## n + n.abs()
int8: n.clamp(-1, 1) ## torch.where(n * 2 < -2, torch.full_like(n, -1), n.clamp(max=1))
""".strip()
    .replace("\n  ##", " ##")
    .splitlines()
)

RIGHT: Sequence[str] = (
    """
torch.where(p, x, -inf).softmax(-1) ## torch.softmax(x.masked_fill(~p, -inf), -1)
torch.where(p, x, -inf).softmax(-1).nan_to_num(0.0)
  ## torch.where(p.any(-1, keepdim=True), torch.where(p, x, -inf).softmax(-1), 0.0)
torch.where(p, x, -inf).amax(-1, keepdim=True) ## -torch.where(p, -x, inf).amin(-1, keepdim=True)
torch.where(p, x, -inf).amax(-1).clamp(min=-5) ## torch.where(p, x.clamp(min=-5), -5.0).amax(-1)
torch.where(p, x, 0.0).sum(-1) / p.sum(-1).clamp(min=1)
  ## (x * p).sum(-1) / torch.maximum(p.to(x.dtype).sum(-1), torch.ones(()))
torch.where(p, x, 0.0) ## x * p
torch.where(p, x, 0.0) ## torch.where(~p, 0.0, x)
torch.where(p, x, y) ## y + p * (x - y)
torch.where(p, x, y) ## torch.where(p, x, 0.0) + torch.where(p, 0.0, y)
torch.where(p, torch.where(p, x, w[0]), y) ## torch.where(p, x, y)
torch.where(x > 0, y, -y) ## torch.where(x <= 0, -y, y)
torch.where(x > y, x, y) ## torch.maximum(x, y)
torch.where(x > 0, x, -x) ## x.abs()
torch.where(x >= 0, x, 0.1 * x) ## F.leaky_relu(x, 0.1)
torch.where(x > 0, x, 0.1 * x) ## torch.maximum(x, 0.1 * x)
torch.relu(x) ## 0.5 * (x + x.abs())
torch.relu(x) ## x * (x > 0)
torch.relu(x) - torch.relu(-x) ## x
torch.clamp(x, -1, 1) ## torch.minimum(torch.maximum(x, torch.full((), -1.0)), torch.full((), 1.0))
torch.clamp(x, -1, 1) ## F.hardtanh(x)
torch.clamp(x, -1, 1) ## -torch.clamp(-x, -1, 1)
torch.sign(x) ## (x > 0).to(x.dtype) - (x < 0).to(x.dtype)
torch.sign(x) * x.abs() ## x
torch.trunc(x) ## torch.sign(x) * torch.floor(x.abs())
torch.trunc(x) ## torch.where(x >= 0, torch.floor(x), torch.ceil(x))
torch.ceil(x) ## -torch.floor(-x)
torch.round(x) ## -torch.round(-x)
torch.frac(x) ## x - torch.trunc(x)
torch.remainder(x, 2) ## x - 2 * torch.floor(x / 2)
torch.fmod(x, 2) ## x - 2 * torch.trunc(x / 2)
x ## torch.floor(x) + torch.remainder(x, 1)
(x > y) ## (y < x)
(x >= y) ## ~(x < y)
(x != y) ## ~(x == y)
(x > 0) & (y > 0) ## ~((x <= 0) | (y <= 0))
(x > 0) ^ p ## (x > 0) != p
(x - y > 0) ## (x > y)
(2 * x > 2 * y) ## (x > y)
p ## ~~p
p & p | (p & (x > 0)) ## p
p.to(x.dtype) ## torch.where(p, 1.0, 0.0)
p.any(-1) ## p.sum(-1) > 0
p.all(-1) ## ~((~p).any(-1))
p.sum(-1) ## 4 - (~p).sum(-1)
x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) ## x / torch.sqrt((x * x).sum(-1, keepdim=True) / 4 + 1e-6)
(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)) @ w
  ## (x @ w) * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
F.rms_norm(x, (4,), w[0], 1e-5) ## x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w[0]
F.layer_norm(x, (4,), eps=1e-5)
  ## (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
F.layer_norm(x, (4,), eps=1e-5) ## F.layer_norm(2 * x, (4,), eps=4e-5)
F.layer_norm(x, (4,), eps=1e-5) ## F.layer_norm(x + s, (4,), eps=1e-5)
F.layer_norm(x, (4,), w[0], w[1], 1e-5) ## F.layer_norm(x, (4,), eps=1e-5) * w[0] + w[1]
x.var(-1, unbiased=False) ## (x * x).mean(-1) - x.mean(-1) ** 2
x.var(-1) ## ((x - x.mean(-1, keepdim=True)) ** 2).sum(-1) / 3
x.norm(dim=-1) ## torch.sqrt((x * x).sum(-1))
F.normalize(x, dim=-1) ## x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)
x.softmax(-1) ## (x - s).softmax(-1)
x.softmax(-1) ## torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)
x.softmax(-1) ## (x - x.amax(-1, keepdim=True)).softmax(-1)
x.softmax(-1) ## torch.exp(x - x.logsumexp(-1, keepdim=True))
x.softmax(-1) ## torch.exp(x.log_softmax(-1))
x.softmax(-1) @ w ## (torch.exp(x) @ w) / torch.exp(x).sum(-1, keepdim=True)
x.softmax(-1).sum(-1) ## torch.ones_like(x.sum(-1))
x.log_softmax(-1) ## x - x.logsumexp(-1, keepdim=True)
x.logsumexp(-1) ## torch.log(torch.exp(x).sum(-1))
x.logsumexp(-1) ## (x + s).logsumexp(-1) - s[:, 0]
-(y.softmax(-1) * x.log_softmax(-1)).sum(-1) ## x.logsumexp(-1) - (y.softmax(-1) * x).sum(-1)
F.softplus(x, threshold=1000) ## torch.log(1 + torch.exp(x))
F.silu(x) ## x * torch.sigmoid(x)
F.silu(x) ## x / (1 + torch.exp(-x))
F.gelu(x) ## 0.5 * x * (1 + torch.erf(x * 0.7071067811865476))
F.elu(x) ## torch.where(x > 0, x, torch.expm1(x))
F.mish(x) ## x * torch.tanh(F.softplus(x))
F.glu(x, -1) ## x[:, :2] * torch.sigmoid(x[:, 2:])
torch.sigmoid(x) ## 1 - torch.sigmoid(-x)
torch.sigmoid(x) ## 0.5 + 0.5 * torch.tanh(0.5 * x)
torch.tanh(x) ## 2 * torch.sigmoid(2 * x) - 1
torch.tanh(x) ## (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1)
torch.exp(x + y) ## torch.exp(x) * torch.exp(y)
torch.exp(x) / torch.exp(y) ## torch.exp(x - y)
torch.log(torch.exp(x)) ## x
torch.sin(x) ** 2 + torch.cos(x) ** 2 ## torch.ones_like(x)
torch.sqrt(x * x) ## x.abs()
x ** 3 ## x * x * x
x.square() ## x.abs() ** 2
(x + y) * (x - y) ## x * x - y * y
(x + y) ** 2 ## x ** 2 + 2 * x * y + y ** 2
x @ w + y @ w ## (x + y) @ w
(x * s) @ w ## s * (x @ w)
(x @ w) @ w ## x @ (w @ w)
(x * w[0]) @ w ## x @ (w[0][:, None] * w)
(x @ w) * w[0] ## x @ (w * w[0])
(x @ w).mT ## w.mT @ x.mT
x @ w ## x[:, :2] @ w[:2] + x[:, 2:] @ w[2:]
torch.cat([x @ w[:, :2], x @ w[:, 2:]], -1) ## x @ w
torch.cat([x, y], -1) @ torch.cat([w, w], 0) ## (x + y) @ w
F.linear(x, w, w[0]) ## x @ w.mT + w[0]
torch.addmm(x, y, w, beta=2, alpha=0.5) ## 2 * x + 0.5 * (y @ w)
(x @ y.mT).softmax(-1) @ y ## F.scaled_dot_product_attention(x[None], y[None], y[None], scale=1.0)[0]
(x * s.abs()).amax(-1, keepdim=True) ## x.amax(-1, keepdim=True) * s.abs()
(x + s).amax(-1, keepdim=True) ## x.amax(-1, keepdim=True) + s
x.amin(-1) ## -(-x).amax(-1)
torch.maximum(x, y).amax(-1) ## torch.maximum(x.amax(-1), y.amax(-1))
x.amax((0, 1)) ## x.amax(0).amax(-1)
x.cumsum(-1)[:, -1] ## x.sum(-1)
x.cumsum(-1) ## x.sum(-1, keepdim=True) - x.flip(-1).cumsum(-1).flip(-1) + x
(2 * x).cumsum(-1) ## 2 * x.cumsum(-1)
x.mean(-1) ## x.sum(-1) / 4
x.mean() ## x.mean(0).mean()
x.sum() ## x.reshape(-1).sum()
x.prod(-1) ## x[:, 0] * x[:, 1] * x[:, 2] * x[:, 3]
x.roll(1, -1).roll(-1, -1) ## x
x.flip(0).flip(0) ## x
x.roll(2, -1) ## torch.cat([x[:, 2:], x[:, :2]], -1)
x.mT.mT ## x
x.tril() + x.triu(1) ## x
F.pad(x, (1, 2)).sum(-1) ## x.sum(-1)
F.pad(x, (1, 1), value=-inf).amax(-1) ## x.amax(-1)
x.clone().masked_fill_(p, 0) ## torch.where(p, 0.0, x)
x.clone().mul_(2).add_(y, alpha=2) ## 2 * (x + y)
x[:, :1].softmax(-1) ## torch.ones_like(x[:, :1])
x[:, :1].mean(-1) ## x[:, 0]
x[:, :1].var(-1, unbiased=False) ## torch.zeros_like(x[:, 0])
x.unsqueeze(1).squeeze(1) ## x
x.repeat(2, 1)[:3] ## x
x.repeat_interleave(2, -1)[:, ::2] ## x
x.unfold(-1, 2, 1).sum(-1) ## x[:, 1:] + x[:, :-1]
torch.einsum('ij,jk->ik', x, w) ## x @ w
torch.einsum('ij,ij->i', x, y) ## (x * y).sum(-1)
torch.stack([x, y]).sum(0) ## x + y
torch.stack([x, y], -1).amax(-1) ## torch.maximum(x, y)
torch.lerp(x, y, 0.25) ## 0.75 * x + 0.25 * y
torch.logaddexp(x, y) ## torch.log(torch.exp(x) + torch.exp(y))
x.to(torch.float64).to(torch.float32) ## x
x + n ## n + x
int8: n + m - m ## n
int8: n + m ## (n.to(torch.int32) + m.to(torch.int32)).to(torch.int8)
int8: -(-n) ## n
int8: n * 2 ## n + n
int8: (n // 4) * 4 + n % 4 ## n
int8: n & 3 ## n % 4
int8: n >> 1 ## n // 2
int8: torch.maximum(n, m) + torch.minimum(n, m) ## n + m
int8: n.sum(-1) ## n.to(torch.int64).sum(-1)
int8: n.to(torch.float32).to(torch.int8) ## n
int8: (n > m) ## (n.to(torch.int32) - m.to(torch.int32) > 0)
uint8: n - m + m ## n
uint8: n.to(torch.int8).to(torch.uint8) ## n
uint8: n.to(torch.int32) // 16 * 16 + (n & 15) ## n.to(torch.int32)
int32: n // 2 * 2 + n % 2 ## n
int32: (n == m) ## ~(n != m)
int32: torch.where(n > m, n, m) ## torch.maximum(n, m)
int64: n * 3 - n ## 2 * n
int64: n.clamp(0, 10) ## torch.minimum(torch.maximum(n, torch.zeros_like(n)), torch.full_like(n, 10))
int64: torch.div(n, 2, rounding_mode='floor') ## n // 2
x.argmax(-1) ## (-x).argmin(-1)
x.argmax(-1) ## (2 * x + 1).argmax(-1)
x.argmax(-1) ## x.softmax(-1).argmax(-1)
x.argmax(-1) ## (x + s).argmax(-1)
x.argmax(-1) ## (-3 * x).argmin(-1)
x.argmax(-1) ## torch.exp(x).argmax(-1)
(x < y) ## (-y < -x)
(x <= y) ## (2 * x + 1 <= 2 * y + 1)
(x == y) ## (s + x == s + y)
x.clamp(-1, 1) ## torch.where(x < -1, -1.0, torch.where(x > 1, 1.0, x))
x.clamp(-1, 2) ## torch.where(x >= 2, 2.0, torch.where(x <= -1, -1.0, x))
(-2 * x).amax(-1) ## -2 * x.amin(-1)
F.huber_loss(x, y, reduction='none') ## torch.where((x - y).abs() <= 1, 0.5 * (x - y) ** 2, (x - y).abs() - 0.5)
F.softshrink(x, 0.5) ## torch.sign(x) * F.relu(x.abs() - 0.5)
F.leaky_relu(x, 0.1) ## 0.55 * x + 0.45 * x.abs()
F.elu(x) ## F.relu(x) + torch.clamp(torch.exp(x) - 1, max=0.0)
F.hardtanh(x) ## 0.5 * ((x + 1).abs() - (x - 1).abs())
F.relu6(x) ## F.relu(x) - F.relu(x - 6)
F.layer_norm(x, (4,), eps=1e-5) ## F.rms_norm(x - x.mean(-1, keepdim=True), (4,), eps=1e-5)
F.layer_norm(x, (4,), eps=1e-5) ## F.layer_norm(2 * x + 3, (4,), eps=4e-5)
torch.softmax(x @ (w + w[0]), -1) ## torch.softmax(x @ (w + w[0]) + s, -1)
int8: n.argmax(-1) ## (-1 - n).argmin(-1)
""".strip()
    .replace("\n  ##", " ##")
    .splitlines()
)


def pair(line: str) -> Pair:
    """The pair of a line; whole numbers are of int32 where it does not say otherwise."""
    name, _, rest = line.rpartition(": ") if line.startswith(("int", "uint")) else ("int32", "", line)
    reference, candidate = rest.split(" ## ")
    return Pair(0, getattr(torch, name), reference, candidate, "by hand")
