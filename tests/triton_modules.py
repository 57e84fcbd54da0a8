"""Hand-written modules with the shape of emitted ones, right and wrong, for tests of what happens after emission."""

from __future__ import annotations

from pathlib import Path

RMSNORM = '''"""y[m, d] = x[m, d] / sqrt(mean_d x[m, d]^2 + eps)"""
import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm_kernel(x, y, n, EPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + offs, mask=MASK, other=0.0).to(tl.float32)
        acc += v * v
    inv = 1.0 / tl.sqrt(tl.sum(acc, axis=0) / n + EPS)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + offs, mask=offs < n, other=0.0).to(tl.float32)
        tl.store(y + row * n + offs, v * inv, mask=offs < n)


def launches(x, y, *, config):
    block = config["symbols"]["T_d"]
    yield (
        rmsnorm_kernel,
        (x.shape[0],),
        (x, y, x.shape[1]),
        dict(EPS=EPSILON, BLOCK=block, num_warps=config["warps"]["rmsnorm_kernel"], num_stages=2),
    )


def rmsnorm(x, *, config=None):
    y = torch.empty_like(x)
    for kernel, grid, args, meta in launches(x, y, config=config):
        kernel[grid](*args, **meta)
    return y
'''

SPILLING = """import torch
import triton
import triton.language as tl


@triton.jit
def spilling_kernel(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    for step in range(0, 2):
        a = a * tl.sum(a, axis=0) + step
    tl.store(y + i, a)


def launches(x, y, *, config):
    warps = config["warps"]["spilling_kernel"]
    yield spilling_kernel, (1,), (x, y), dict(BLOCK=config["symbols"]["T"], num_warps=warps)
"""

BROKEN = """import triton
import triton.language as tl


@triton.jit
def broken_kernel(x, y):
    tl.store(y + tl.arange(0, 3), 0.0)


def launches(x, y, *, config):
    yield broken_kernel, (1,), (x, y), {}
"""

DYING = """import os


def launches(x, y, *, config):
    os._exit(9)
    yield
"""

HANGING = """import time


def launches(x, y, *, config):
    time.sleep(600)
    yield
"""


def write(folder: Path, name: str, text: str) -> Path:
    """The module on disk."""
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


def rmsnorm(eps: str = "1e-6", mask: str = "offs < n") -> str:
    """The RMSNorm module, with another eps or another mask of the first pass."""
    return RMSNORM.replace("EPSILON", eps).replace("MASK", mask)
