"""A Program run operator by operator in torch: the baseline that is timed, and the yardstick of rounding error.

Each definition is computed as eager torch would: a sum of products of stored tensors by a matrix product in the
tensors' own data type, everything else in float32 where the tensors are half precision, and the result rounded to the
definition's data type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from prism.errors import UsageError
from prism.program.evaluate import bind, run
from prism.program.nodes import DType, Program, ReduceKind

_DTYPES: Mapping[DType, torch.dtype] = {d: getattr(torch, d.value) for d in DType}


def torch_dtype(dtype: DType) -> torch.dtype:
    """torch's name for a data type."""
    return _DTYPES[dtype]


def eager(program: Program, *, plain: bool = False) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The program as a function of tensors.

    Args:
        program: what is run.
        plain: whether a CPU rounds as a GPU does, the measure for the rounding of kernels. Prefix sums are added up in
            the type of the result, one after another, where torch takes float64 for them; products in half precision
            are sums in float32 that are rounded once, where torch, without instructions for them, takes up to a
            hundred times as long for much the same.

    Returns:
        A function that takes one tensor per program input, in order (those that the program holds as weights may all
        be left out), runs on their device, and returns one tensor per output.
    """
    weighted = [t.name for t in program.inputs if t.name in program.weights]
    required = [t.name for t in program.arguments]
    everything = [t.name for t in program.inputs]
    dtypes = {t.name: torch_dtype(t.dtype) for t in program.inputs}
    on_device: dict[tuple[str, torch.device], torch.Tensor] = {}
    bindings: dict[tuple[torch.Size, ...], dict[str, int]] = {}

    def weight(name: str, device: torch.device) -> torch.Tensor:
        key = (name, device)
        if key not in on_device:
            on_device[key] = torch.as_tensor(program.weights[name]).to(device, dtypes[name])
        return on_device[key]

    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if len(tensors) not in (len(everything), len(required)):
            raise UsageError(
                f"{program.name} takes {len(everything)} tensors",
                why=f"{len(tensors)} were passed",
                fix=f"pass {', '.join(everything)}" + (f"; {', '.join(weighted)} may be left out" if weighted else ""),
            )
        names = everything if len(tensors) == len(everything) else required
        given = dict(zip(names, tensors, strict=True))
        device = tensors[0].device if tensors else torch.device("cpu")
        for name in everything:
            if name not in given:
                given[name] = weight(name, device)
        shapes = tuple(given[name].shape for name in everything)
        if shapes not in bindings:
            bindings[shapes] = bind(program.inputs, {n: given[n].shape for n in everything})
        double = any(t.dtype == torch.float64 for t in given.values())
        compute = torch.float64 if double else torch.float32
        results = run(program, given, bindings[shapes], TorchArrays(device, compute, plain))
        return tuple(results[name].contiguous() for name in program.outputs)

    return call


class TorchArrays:
    """torch on one device, as prism.program.arrays.Arrays.

    Args:
        device: where new tensors are made.
        compute: the data type of pointwise operations and reductions.
        plain: see `eager`.
    """

    def __init__(self, device: torch.device, compute: torch.dtype, plain: bool = False) -> None:
        self._device = device
        self._compute = compute
        self._plain = plain

    def store(self, array: torch.Tensor, dtype: DType) -> torch.Tensor:
        """The array as a tensor of that data type is stored."""
        return array.to(torch_dtype(dtype))

    def arange(self, n: int) -> torch.Tensor:
        """See Arrays."""
        return torch.arange(n, device=self._device)

    def number(self, array: Any) -> torch.Tensor:
        """See Arrays."""
        if isinstance(array, torch.Tensor):
            return array if array.dtype == torch.bool else array.to(self._compute)
        return torch.full((), float(array), dtype=self._compute, device=self._device)

    def transpose(self, array: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
        """See Arrays."""
        return array.permute(tuple(order))

    def reshape(self, array: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """See Arrays."""
        return array.reshape(tuple(shape))

    def broadcast(self, array: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """See Arrays."""
        return array.expand(tuple(shape))

    def strided(
        self, array: torch.Tensor, shape: Sequence[int], first: Sequence[int], steps: Sequence[Sequence[int]]
    ) -> torch.Tensor | None:
        """See Arrays."""
        if any(s < 0 for row in steps for s in row):
            return None  # torch has no negative strides
        rows = [[a for a, s in enumerate(row) if s] for row in steps]
        used = [a for row in rows for a in row]
        if all(len(row) <= 1 for row in rows) and sorted(used) == list(range(len(shape))):
            # A slice per dimension and a permutation: what a compiler understands best.
            part = array
            for d in reversed(range(len(rows))):
                if not rows[d]:
                    part = part.select(d, first[d])
                    continue
                step, extent = steps[d][rows[d][0]], shape[rows[d][0]]
                if step != 1 or extent != part.shape[d]:
                    part = part[(slice(None),) * d + (slice(first[d], first[d] + step * (extent - 1) + 1, step),)]
            return part.permute([used.index(a) for a in range(len(shape))])
        strides = array.stride()
        offset = array.storage_offset() + sum(f * s for f, s in zip(first, strides, strict=True))
        return array.as_strided(
            tuple(shape),
            tuple(sum(s * row[a] for s, row in zip(strides, steps, strict=True)) for a in range(len(shape))),
            int(offset),
        )

    def gather(self, array: torch.Tensor, indices: Sequence[torch.Tensor], valid: torch.Tensor | None) -> torch.Tensor:
        """See Arrays."""
        if array.numel() == 0:
            shape = torch.broadcast_tensors(*indices)[0].shape  # type: ignore[no-untyped-call]
            return torch.zeros(shape, dtype=array.dtype, device=self._device)
        taken = array[tuple(i.clamp(0, n - 1) for i, n in zip(indices, array.shape, strict=True))]
        if valid is None:
            return taken
        return torch.where(valid, taken, torch.zeros((), dtype=taken.dtype, device=taken.device))

    def places(self, array: Any) -> torch.Tensor:
        """Numbers as integers, -1 for what is no place."""
        given: torch.Tensor = array if isinstance(array, torch.Tensor) else self.number(array)
        if given.dtype.is_floating_point:
            given = torch.where(torch.floor(given) == given, given, -1.0)
        return given.to(torch.int64)

    def pointwise(self, op: str, args: Sequence[Any]) -> torch.Tensor:
        """See Arrays."""
        if op == "where":
            p, a, b = args
            return torch.where(self._truth(p), self._wide(a), self._wide(b))
        if op in ("and", "or", "not"):
            return POINTWISE[op](*(self._truth(a) for a in args))
        if all(not isinstance(a, torch.Tensor) for a in args):
            args = [self.number(args[0]), *args[1:]]
        if op in _NO_NUMBERS:
            args = [self.number(a) for a in args]
        return POINTWISE[op](*(self._wide(a) for a in args))

    def _wide(self, a: Any) -> Any:
        return a.to(self._compute) if isinstance(a, torch.Tensor) else a

    def _truth(self, a: Any) -> torch.Tensor:
        tensor = a if isinstance(a, torch.Tensor) else self.number(a)
        return tensor if tensor.dtype == torch.bool else tensor != 0

    def reduce(self, kind: ReduceKind, array: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        """See Arrays."""
        wide: torch.Tensor = self._wide(array)
        match kind:
            case ReduceKind.SUM:
                return wide.sum(tuple(dims))
            case ReduceKind.MAX:
                return wide.amax(tuple(dims))
            case ReduceKind.MIN:
                return wide.amin(tuple(dims))
            case ReduceKind.PROD:
                for d in sorted(dims, reverse=True):
                    wide = wide.prod(d)
                return wide

    def prefix_sums(self, array: torch.Tensor, dim: int) -> torch.Tensor:
        """See Arrays."""
        wide: torch.Tensor = self._wide(array)
        if self._plain and self._device.type == "cpu":
            return torch.from_numpy(np.add.accumulate(wide.numpy(), axis=dim))
        return wide.cumsum(dim)

    def matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """See Arrays."""
        if a.dtype != b.dtype or not a.dtype.is_floating_point:
            a, b = self._wide(a), self._wide(b)
        if self._plain and self._device.type == "cpu" and a.dtype.itemsize == 2:
            return torch.matmul(a.float(), b.float()).to(a.dtype)
        return torch.matmul(a, b)

    def all_finite(self, array: Any) -> bool:
        """See Arrays. Looking would wait for the device; eager torch does not look either."""
        return True

    def stack(self, arrays: Sequence[torch.Tensor]) -> torch.Tensor:
        """See Arrays."""
        return torch.stack(tuple(arrays))


def _bitand(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    both: torch.Tensor = a.to(torch.int64) & b.to(torch.int64)
    return both.to(torch.promote_types(a.dtype, b.dtype))


# torch takes a Python number as an operand of most of these, but not of these.
_NO_NUMBERS = frozenset({"maximum", "minimum", "bitand"})

POINTWISE: Mapping[str, Callable[..., torch.Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": torch.neg,
    "recip": torch.reciprocal,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "atan": torch.atan,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "round": torch.round,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "pow": torch.pow,
    "bitand": _bitand,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "not": torch.logical_not,
    "isnan": torch.isnan,
}
