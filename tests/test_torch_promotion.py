"""Operands of two types, and of a type and a number, are computed as torch computes them, or refused."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

Fn = Callable[[Any, Any], torch.Tensor]

PAIRS: dict[str, Fn] = {
    "add": torch.add,
    "sub": lambda a, b: torch.sub(a, b, alpha=3),
    "mul": torch.mul,
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "maximum": torch.maximum,
    "lt": torch.lt,
    "eq": torch.eq,
    "where": lambda a, b: torch.where(a > 1, a, b),
    "cat": lambda a, b: torch.cat([a, b]),
    "clamp": lambda a, b: torch.clamp(a, min=b),
    "masked_fill": lambda a, b: a.masked_fill(a > 1, b if isinstance(b, (int, float)) else b.flatten()[-1]),
    "matmul": lambda a, b: a @ b.mT,
    "copy": lambda a, b: a.clone().copy_(b),
    "bitwise_and": torch.bitwise_and,
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=2),
    "cast": lambda a, b: a.to(b.dtype).sum(1, dtype=a.dtype),
    "cumsum": lambda a, b: a.cumsum(1, dtype=b.dtype),
    "full": lambda a, b: torch.full_like(a, 2.7, dtype=b.dtype) + b,
}

NUMBERS: Sequence[float | int | bool] = (-1, 300, 2.7, 0.5, True, 3, -2.7, -7, 255, 0.1)


def tensor(dtype: torch.dtype) -> torch.Tensor:
    """Numbers at the ends of the type, and none of them 0."""
    if dtype == torch.bool:
        return torch.tensor([[1, 1, 1, 1]]).bool()
    if dtype == torch.uint8:
        return torch.tensor([[255, 49, 7, 1]]).to(dtype)
    if dtype == torch.int8:
        return torch.tensor([[-128, 49, -7, 127]]).to(dtype)
    if dtype.is_floating_point:
        return torch.tensor([[-2.5, 49.0, 0.1, 3.7]]).to(dtype)
    return torch.tensor([[-300, 49, 70000, -1]]).to(dtype)


# Functions of each pair of types, one of them with a number in a tensor; and of each type and number.
@pytest.mark.parametrize("many", [(1, 1), pytest.param((5, 4), marks=pytest.mark.slow)])
def test_types_are_promoted_as_torch_promotes_them(many: tuple[int, int]) -> None:
    import torch_op_db as db

    of_pairs, of_numbers = many

    given: list[db.Sample] = []

    def add(name: str, function: Callable[..., Any], *tensors: torch.Tensor) -> None:
        try:
            function(*tensors)
        except (RuntimeError, TypeError):
            return  # torch has no such operation
        given.append(db.Sample(name, tensors[0].dtype, len(given), tensors, lambda ts: function(*ts)))

    functions = list(PAIRS.items())
    for n, (a, b) in enumerate(itertools.product(db.DTYPES, db.DTYPES)):
        for k in range(of_pairs):
            name, function = functions[(n + 5 * k) % len(functions)]
            other = tensor(b).flip(1)
            add(f"{name} {db.type_name(b)}", function, tensor(a), other[0, 0] if (n + k) % 3 == 1 else other)
    for n, (a, number) in enumerate(itertools.product(db.DTYPES, NUMBERS)):
        for k in range(of_numbers):
            name, function = functions[(n + 7 * k) % 14]
            add(f"{name} {number}", lambda x, f=function, y=number: f(x, y), tensor(a))
    found = db.outcomes(given)
    bad = [f"{o.op} {o.dtype}: {o.status}: {o.detail}" for o in found if o.status in db.BAD]
    assert not bad, "\n".join(bad)
    assert Counter(o.status for o in found)[db.EQUAL] > 60
