"""A Program run in torch as it might as well be: sums in other orders, functions as another library rounds them.

What rounding does to a program is not what it does in one order on one machine. Where few sums decide a result and they
cancel, one order has all of the luck: eager torch is right in the last place, and the same sum from the other end is
not. So these runs say what rounding may do to a program, and eager's alone only what it did.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from prism.backends.eager import TorchArrays
from prism.program.evaluate import run
from prism.program.nodes import Program, ReduceKind
from prism.program.ops import ROUNDED

ORDERS = 3
"""Orders of the sums that are tried."""
# Not every library rounds them correctly; division and square root on a GPU neither.
_INEXACT = ROUNDED - {"add", "mul"} | {"div"}


class Order(StrEnum):
    """How sums are added up."""

    PLAIN = "as torch does"
    SHUFFLED = "in another order, functions off by a unit in the last place, and by what rounds their arguments"
    SEQUENTIAL = "one after another, products with reciprocals for divisions, exponentials as powers of two"
    HALVES = "as torch does, of factors that are rounded to half precision"


class Reordered(TorchArrays):
    """torch on the CPU, in another order.

    Args:
        order: how sums are added up.
        seed: of the orders and of what functions are off by.
        half: the half-precision type that factors are rounded to in Order.HALVES.
    """

    def __init__(self, order: Order, seed: int = 0, half: torch.dtype = torch.bfloat16) -> None:
        super().__init__(torch.device("cpu"), torch.float32, plain=True)
        self._order = order
        self._half = half
        self._random = torch.Generator().manual_seed(seed)

    def pointwise(self, op: str, args: Sequence[Any]) -> torch.Tensor:
        """See Arrays."""
        if self._order is Order.SEQUENTIAL and op == "div":
            # Matrix units cannot divide: what is infinite as a reciprocal is so in their products.
            return super().pointwise("mul", (args[0], super().pointwise("recip", args[1:])))
        made = super().pointwise(op, args)
        if made.dtype != torch.float32 or op not in _INEXACT:
            return made
        if self._order is Order.SEQUENTIAL and op == "exp":
            return torch.exp2(torch.as_tensor(args[0], dtype=torch.float32) * math.log2(math.e))
        if self._order is Order.SHUFFLED:
            off = torch.randint(-1, 2, made.shape, generator=self._random).to(torch.float32)
            off *= 2.0**-23 + _exponent(op, args) * 2.0**-24
            made = torch.where(torch.isfinite(made), made + made * off, made)
        return made

    def reduce(self, kind: ReduceKind, array: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        """See Arrays."""
        if kind in (ReduceKind.SUM, ReduceKind.PROD) and self._order is not Order.PLAIN:
            for d in dims:
                array = self._shuffled(array, d)
            if self._order is Order.SEQUENTIAL:
                wide = np.asarray(array.to(torch.float32).numpy())
                function = np.add if kind is ReduceKind.SUM else np.multiply
                for d in sorted(dims, reverse=True):
                    taken = np.moveaxis(wide, d, 0)
                    wide = function.accumulate(taken, axis=0)[-1] if len(taken) else function.reduce(taken, axis=0)
                return torch.from_numpy(np.array(wide, dtype=np.float32))
        return super().reduce(kind, array, dims)

    def matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """See Arrays."""
        if self._order is Order.SHUFFLED:
            order = torch.randperm(a.shape[-1], generator=self._random)
            a, b = a.index_select(-1, order), b.index_select(-2, order)
        if self._order is Order.HALVES:
            a, b = (x.to(self._half).to(torch.float32) for x in (a, b))
        return super().matmul(a, b)

    def _shuffled(self, array: torch.Tensor, dim: int) -> torch.Tensor:
        if self._order is not Order.SHUFFLED:
            return array
        return array.index_select(dim, torch.randperm(array.shape[dim], generator=self._random))


def _exponent(op: str, args: Sequence[Any]) -> torch.Tensor:
    """How often an exponent's rounding is in its power: a GPU's own exponential is 2 to the rounded x * log2 e."""
    numbers = [torch.as_tensor(a, dtype=torch.float32) for a in args]
    match op:
        case "exp":
            found = numbers[0].abs()
        case "pow":
            found = (numbers[1] * numbers[0].abs().log()).abs()
        case _:
            return torch.zeros(())
    return torch.nan_to_num(found, nan=0.0, posinf=0.0)


def reordered(
    program: Program, tensors: Mapping[str, torch.Tensor], binding: Mapping[str, int], orders: Sequence[Order]
) -> Iterator[dict[str, torch.Tensor]]:
    """The program's outputs in each of these orders, in turn.

    Args:
        program: what is run.
        tensors: every input, on the CPU.
        binding: the value of every symbol.
        orders: how; those that are drawn are drawn anew for each.
    """
    halves = {t.dtype for t in tensors.values()} & {torch.float16, torch.bfloat16}
    for n, order in enumerate(orders):
        if order is Order.HALVES and len(halves) != 1:
            continue
        half = next(iter(halves), torch.bfloat16)
        yield run(program, dict(tensors), binding, Reordered(order, n, half))
