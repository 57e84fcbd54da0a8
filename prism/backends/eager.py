"""A Program run operator by operator in torch: the baseline that is timed, and the yardstick of rounding error.

Each definition is computed as eager torch would: a sum of products of stored tensors by a matrix product in the
tensors' own data type, or by a convolution where it is one, pools as pools (`prism.program.windows`), everything else
in float32 where the tensors are half precision, and the result rounded to the definition's data type.

What rounding does to a program is not what it does in one order on one machine. Where few sums decide a result and they
cancel, one order has all of the luck. So `reordered` runs it as it might as well be: sums in other orders, functions as
another library rounds them. That says what rounding may do to a program, and eager's alone only what it did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from prism.errors import UsageError
from prism.program.arrays import NUMPY
from prism.program.evaluate import bind, run
from prism.program.nodes import DType, Program, ReduceKind
from prism.program.ops import ROUNDED
from prism.program.prefix import Recurrence
from prism.program.windows import Window

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

    New tensors are made on `device`; `compute` is the data type of pointwise operations and reductions. `plain` is as
    for `eager`.
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

    def added(
        self, shape: Sequence[int], indices: Sequence[torch.Tensor], valid: torch.Tensor, terms: torch.Tensor
    ) -> torch.Tensor:
        """Zeros to which each term is added at its index, where that is valid."""
        at = tuple(torch.where(valid, i, 0).reshape(-1) for i in indices)
        kept = torch.where(valid, self._wide(terms), 0).reshape(-1)
        nothing = torch.zeros(tuple(shape), dtype=kept.dtype, device=kept.device)
        return nothing.index_put(at, kept, accumulate=True) if nothing.numel() else nothing

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

    def carried(
        self, how: Recurrence, dim: int, array: torch.Tensor, factor: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Arrays."""
        wide: torch.Tensor = self._wide(array)
        if self._plain and self._device.type == "cpu":
            by = None if factor is None else self._wide(factor).numpy()
            return torch.from_numpy(np.ascontiguousarray(NUMPY.carried(how, dim, wide.numpy(), by)))
        made = wide.flip(dim) if how.back else wide
        if factor is not None:
            by = (self._wide(factor).flip(dim) if how.back else self._wide(factor)).unbind(dim)
            steps = list(made.unbind(dim))
            for n in range(1, len(steps)):
                grown = _COMBINED[how.kind.times](by[n], steps[n - 1])
                steps[n] = _COMBINED[how.kind](steps[n], grown)
            made = torch.stack(steps, dim)
        else:
            made = _SO_FAR[how.kind](made, dim)
        if how.before:
            nothing = torch.full_like(made.narrow(dim, 0, 1), how.kind.identity)
            made = torch.cat((nothing, made.narrow(dim, 0, made.shape[dim] - 1)), dim)
        return made.flip(dim) if how.back else made

    def matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """See Arrays."""
        if a.dtype != b.dtype or not a.dtype.is_floating_point:
            a, b = self._wide(a), self._wide(b)
        if self._plain and self._device.type == "cpu" and a.dtype.itemsize == 2:
            return torch.matmul(a.float(), b.float()).to(a.dtype)
        return torch.matmul(a, b)

    def windowed(
        self,
        kind: ReduceKind,
        image: torch.Tensor,
        weights: torch.Tensor | None,
        groups: int,
        windows: Sequence[Window],
    ) -> torch.Tensor | None:
        """A convolution of [batch, channels, places ...] with [rows, channels of a group, taps ...], or a pool.

        Without weights it is the sum or the maximum of what each window sees. None where torch has no function for it.
        """
        if not 0 < len(windows) <= len(_CONVOLUTIONS):
            return None
        if self._plain and self._device.type != "cpu":
            return None  # cuDNN takes TF32 if it is not told, which is no measure
        stride, dilation = [w.stride for w in windows], [w.dilation for w in windows]
        alike = weights is not None and all(w.before == w.after for w in windows)
        around = [n for w in reversed(windows) for n in (w.before, w.after)]
        if not alike and any(around):
            image = functional.pad(image, around, value=kind.identity)
        if weights is None:
            taps = [int(w.taps) for w in windows]
            if kind is ReduceKind.MAX:
                largest: torch.Tensor = _MAX_POOLS[len(windows) - 1](self._wide(image), taps, stride, 0, dilation)
                return largest
            if kind is not ReduceKind.SUM or any(w.dilation != 1 for w in windows):
                return None
            return _summed(self._wide(image), taps, stride)
        half = image.dtype
        if image.dtype != weights.dtype or not image.dtype.is_floating_point:
            image, weights = self._wide(image), self._wide(weights)
            half = image.dtype
        elif self._plain and self._device.type == "cpu" and half.itemsize == 2:
            image, weights = image.float(), weights.float()
        padding = [w.before if alike else 0 for w in windows]
        convolution = _CONVOLUTIONS[len(windows) - 1]
        return convolution(image, weights, None, stride, padding, dilation, groups).to(half)

    def all_finite(self, array: Any) -> bool:
        """See Arrays. Looking would wait for the device; eager torch does not look either."""
        return True

    def stack(self, arrays: Sequence[torch.Tensor]) -> torch.Tensor:
        """See Arrays."""
        return torch.stack(tuple(arrays))


_COMBINED: Mapping[ReduceKind, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ReduceKind.SUM: torch.add,
    ReduceKind.PROD: torch.mul,
    ReduceKind.MAX: torch.maximum,
    ReduceKind.MIN: torch.minimum,
}
_SO_FAR: Mapping[ReduceKind, Callable[[torch.Tensor, int], torch.Tensor]] = {
    ReduceKind.SUM: torch.cumsum,
    ReduceKind.PROD: torch.cumprod,
    ReduceKind.MAX: lambda x, dim: torch.cummax(x, dim).values,
    ReduceKind.MIN: lambda x, dim: torch.cummin(x, dim).values,
}


def _bitand(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    both: torch.Tensor = a.to(torch.int64) & b.to(torch.int64)
    return both.to(torch.promote_types(a.dtype, b.dtype))


_CONVOLUTIONS: Sequence[Callable[..., torch.Tensor]] = (functional.conv1d, functional.conv2d, functional.conv3d)
_MAX_POOLS: Sequence[Callable[..., torch.Tensor]] = (
    functional.max_pool1d,
    functional.max_pool2d,
    functional.max_pool3d,
)


def _summed(image: torch.Tensor, taps: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    if len(taps) == 1:  # of one dimension alone torch divides by what it likes
        return _summed(image.unsqueeze(-2), (1, *taps), (1, *stride)).squeeze(-2)
    pool = functional.avg_pool2d if len(taps) == 2 else functional.avg_pool3d
    return pool(image, tuple(taps), tuple(stride), divisor_override=1)


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
    "log2": torch.log2,
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

    def added(
        self, shape: Sequence[int], indices: Sequence[torch.Tensor], valid: torch.Tensor, terms: torch.Tensor
    ) -> torch.Tensor:
        """See Arrays."""
        if self._order is Order.SHUFFLED:
            order = torch.randperm(terms.numel(), generator=self._random)
            indices, (valid, terms) = (
                [i.reshape(-1)[order] for i in indices],
                (x.reshape(-1)[order] for x in (valid, terms)),
            )
        return super().added(shape, indices, valid, terms)

    def matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """See Arrays."""
        if self._order is Order.SHUFFLED:
            order = torch.randperm(a.shape[-1], generator=self._random)
            a, b = a.index_select(-1, order), b.index_select(-2, order)
        if self._order is Order.HALVES:
            a, b = (x.to(self._half).to(torch.float32) for x in (a, b))
        return super().matmul(a, b)

    def windowed(
        self,
        kind: ReduceKind,
        image: torch.Tensor,
        weights: torch.Tensor | None,
        groups: int,
        windows: Sequence[Window],
    ) -> torch.Tensor | None:
        """See TorchArrays; in another order, sums are those of the matrix products that it is as well."""
        if kind is ReduceKind.SUM and (weights is None or self._order is Order.SHUFFLED):
            return None
        if self._order is Order.HALVES and weights is not None:
            image, weights = (x.to(self._half).to(torch.float32) for x in (image, weights))
        return super().windowed(kind, image, weights, groups, windows)

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

    `tensors` has every input, on the CPU. Orders that are drawn are drawn anew for each.
    """
    halves = {t.dtype for t in tensors.values()} & {torch.float16, torch.bfloat16}
    for n, order in enumerate(orders):
        if order is Order.HALVES and len(halves) != 1:
            continue
        half = next(iter(halves), torch.bfloat16)
        yield run(program, dict(tensors), binding, Reordered(order, n, half))
