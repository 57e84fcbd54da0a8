"""The inputs that kernels are checked on: ordinary ones, and those that expose what ordinary ones hide.

Positive inputs hide sign errors, flat softmax inputs hide a dropped rescale, large extents hide 1/n against 1/(n-1):
so each draw is a different way of being unlike the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from prism.program.extents import evaluate
from prism.program.nodes import Program

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def _outlier_channel(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    x = rng.standard_normal(shape)
    if x.ndim:
        x[..., int(rng.integers(shape[-1]))] *= 100.0
    return x


def _equal_rows(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    row = rng.standard_normal(shape[-1:])
    return np.broadcast_to(row, shape).copy()


def _large_mean(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return 100.0 + 0.1 * rng.standard_normal(shape)


DRAWS: Mapping[str, Draw] = MappingProxyType(
    {
        "normal": _normal,
        "log-normal": lambda rng, shape: rng.lognormal(0.0, 1.0, shape),
        "positive": lambda rng, shape: rng.uniform(0.5, 1.5, shape),
        "large": lambda rng, shape: 1e3 * rng.standard_normal(shape),
        "small": lambda rng, shape: 1e-3 * rng.standard_normal(shape),
        "outlier channel": _outlier_channel,
        "equal rows": _equal_rows,
        "zeros": lambda rng, shape: np.zeros(shape),
        "large mean": _large_mean,
    }
)
"""By name, how an adversarial input is drawn; `normal` is the ordinary one."""


def mask(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A boolean array of both values, with one row (along the last dimension) all false and one all true."""
    drawn = rng.random(shape) < 0.5
    if drawn.ndim >= 2:
        rows = drawn.reshape(-1, shape[-1])
        rows[0] = False
        if len(rows) > 1:
            rows[-1] = True
    return drawn


def draw_inputs(program: Program, kind: str, binding: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Torch tensors for the program's inputs, rounded to their data types.

    An adversarial draw strikes one floating-point input that is no weight (which one varies with the seed) and leaves
    the others ordinary, for a program's inputs rarely all misbehave at once; zeros strike all of them.

    Args:
        program: the program; inputs that it holds as weights keep their values.
        kind: a key of DRAWS.
        binding: the value of every symbol.
        seed: equal seeds give equal tensors.
    """
    import torch

    rng = np.random.default_rng(seed)
    struck = [t.name for t in program.inputs if t.dtype.is_float and t.name not in program.weights]
    if kind != "zeros" and struck:
        struck = [struck[seed % len(struck)]]
    found: dict[str, Any] = {}
    for t in program.inputs:
        shape = tuple(evaluate(e, binding) for e in t.shape)
        dtype = getattr(torch, t.dtype.value)
        values: Any
        if t.name in program.weights:
            values = np.asarray(program.weights[t.name])
        elif t.dtype.value == "bool":
            values = mask(rng, shape)
        elif not t.dtype.is_float:
            # Positions and identifiers: small, so that they are legal wherever they index something.
            values = rng.integers(0, 2, shape)
        else:
            values = DRAWS[kind if t.name in struck else "normal"](rng, shape)
        found[t.name] = torch.as_tensor(np.ascontiguousarray(values)).to(dtype).reshape(shape)
    return found
