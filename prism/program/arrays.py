"""The array operations that running a Program takes, and numpy's: the interpreter is written over these alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import ml_dtypes
import numpy as np

from prism.program.nodes import DType, ReduceKind
from prism.program.prefix import Recurrence

Array: TypeAlias = Any


def numpy_type(dtype: DType) -> np.dtype[Any]:
    """numpy's type of such elements; bfloat16 is that of ml_dtypes."""
    return np.dtype(ml_dtypes.bfloat16 if dtype is DType.BFLOAT16 else dtype.value)


class Arrays(Protocol):
    """An array library, as the interpreter sees it. A number may stand for an array without dimensions.

    Besides these methods, the arrays that `arange` gives support `+`, `*`, `//`, `%`, `<`, `&` by broadcasting.
    """

    def arange(self, n: int) -> Array:
        """The integers 0, ..., n-1."""

    def number(self, array: Array) -> Array:
        """Integers as the numbers that pointwise operations take."""

    def transpose(self, array: Array, order: Sequence[int]) -> Array:
        """Dimension d of the result is dimension order[d] of the array."""

    def reshape(self, array: Array, shape: Sequence[int]) -> Array:
        """The elements in row-major order under another shape."""

    def broadcast(self, array: Array, shape: Sequence[int]) -> Array:
        """The array with dimensions of extent 1 repeated."""

    def strided(
        self, array: Array, shape: Sequence[int], first: Sequence[int], steps: Sequence[Sequence[int]]
    ) -> Array | None:
        """result[i...] = array[first[d] + sum_a steps[d][a] * i[a]], all in bounds; None where that is not a view."""

    def gather(self, array: Array, indices: Sequence[Array], valid: Array | None) -> Array:
        """array[indices], broadcasting the integer arrays; 0 where `valid` is false."""

    def pointwise(self, op: str, args: Sequence[Array]) -> Array:
        """One operation of ops.OPS, or sub or div, broadcasting the arguments."""

    def reduce(self, kind: ReduceKind, array: Array, dims: Sequence[int]) -> Array:
        """The reduction over some dimensions, which the result does not have."""

    def carried(self, how: Recurrence, dim: int, array: Array, factor: Array | None = None) -> Array:
        """What is carried along a dimension, at each place: `array` has the terms."""

    def matmul(self, a: Array, b: Array) -> Array:
        """The product of matrices [m, k] @ [k, n], or of stacks of them [b, m, k] @ [b, k, n]."""

    def all_finite(self, array: Array) -> bool:
        """Whether no element is known to be infinite or NaN."""

    def stack(self, arrays: Sequence[Array]) -> Array:
        """The arrays, of one shape, along a new first dimension."""


def _erf(x: Array) -> Array:
    # numpy has none; the C library's is exact to the last place and costs about 60 ns an element.
    x = np.asarray(x, dtype=np.float64)
    return np.fromiter(map(math.erf, x.ravel().tolist()), dtype=np.float64, count=x.size).reshape(x.shape)


def _sigmoid(x: Array) -> Array:
    # Each branch exponentiates a number that is not positive, so neither overflows.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _bitand(a: Array, b: Array) -> Array:
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    whole = np.isfinite(a) & np.isfinite(b)  # of anything else, nothing is said
    both = np.where(whole, a, 0.0).astype(np.int64) & np.where(whole, b, 0.0).astype(np.int64)
    return np.where(whole, both, np.nan)


def _truth(x: Array) -> Array:
    return np.not_equal(x, 0)


_POINTWISE: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "mul": np.multiply,
    "sub": np.subtract,
    "div": np.divide,
    "neg": np.negative,
    "recip": lambda x: np.divide(1.0, x),
    "exp": np.exp,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "atan": np.arctan,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "abs": np.abs,
    "sign": lambda x: np.subtract(np.greater(x, 0), np.less(x, 0), dtype=np.float64),
    "floor": np.floor,
    "round": np.rint,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "pow": np.power,
    "bitand": _bitand,
    "where": lambda p, a, b: np.where(_truth(p), a, b),
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "and": lambda a, b: _truth(a) & _truth(b),
    "or": lambda a, b: _truth(a) | _truth(b),
    "not": lambda a: ~_truth(a),
    "isnan": np.isnan,
}


class NumpyArrays:
    """numpy in float64; booleans are 0 and 1."""

    def arange(self, n: int) -> Array:
        """See Arrays."""
        return np.arange(n, dtype=np.int64)

    def number(self, array: Array) -> Array:
        """See Arrays."""
        return np.asarray(array, dtype=np.float64)

    def transpose(self, array: Array, order: Sequence[int]) -> Array:
        """See Arrays."""
        return np.transpose(array, order)

    def reshape(self, array: Array, shape: Sequence[int]) -> Array:
        """See Arrays."""
        return np.reshape(array, tuple(shape))

    def broadcast(self, array: Array, shape: Sequence[int]) -> Array:
        """See Arrays."""
        return np.broadcast_to(array, tuple(shape))

    def strided(
        self, array: Array, shape: Sequence[int], first: Sequence[int], steps: Sequence[Sequence[int]]
    ) -> Array | None:
        """See Arrays."""
        corner = array[tuple(slice(f, None) for f in first)]
        strides = [sum(s * row[a] for s, row in zip(array.strides, steps, strict=True)) for a in range(len(shape))]
        return np.lib.stride_tricks.as_strided(corner, tuple(shape), strides)

    def gather(self, array: Array, indices: Sequence[Array], valid: Array | None) -> Array:
        """See Arrays."""
        if array.size == 0:
            shape = np.broadcast_shapes(*(np.shape(i) for i in indices))
            return np.zeros(shape)
        taken = array[tuple(np.clip(i, 0, n - 1) for i, n in zip(indices, array.shape, strict=True))]
        return taken if valid is None else np.where(valid, taken, 0.0)

    def pointwise(self, op: str, args: Sequence[Array]) -> Array:
        """See Arrays."""
        return np.asarray(_POINTWISE[op](*args), dtype=np.float64)

    def floor_quotient(self, a: Array, b: Array) -> Array:
        """floor(a / b) of the exact quotient; a library without this method rounds the quotient first."""
        rounded = np.floor(np.divide(a, b))
        return np.where(np.isfinite(rounded), np.floor_divide(a, b), rounded)

    def places(self, array: Array) -> Array:
        """Numbers as integers, -1 for what is no place; a library without this method looks at every place."""
        numbers = np.asarray(array, dtype=np.float64)
        whole = (np.floor(numbers) == numbers) & (np.abs(numbers) < 2.0**53)
        return np.where(whole, np.where(whole, numbers, 0.0).astype(np.int64), -1)

    def added(self, shape: Sequence[int], indices: Sequence[Array], valid: Array, terms: Array) -> Array:
        """Zeros to which each term is added at its index, where that is valid.

        A library without this method sums over all terms at every place.
        """
        size = int(np.prod(shape))
        if size == 0:
            return np.zeros(tuple(shape))
        at = np.ravel_multi_index([np.where(valid, i, 0) for i in indices], tuple(shape))
        kept = np.where(valid, terms, 0.0).ravel()
        return np.bincount(at.ravel(), kept, size).reshape(tuple(shape))

    def reduce(self, kind: ReduceKind, array: Array, dims: Sequence[int]) -> Array:
        """See Arrays."""
        axis = tuple(dims)
        match kind:
            case ReduceKind.SUM:
                return np.sum(array, axis=axis)
            case ReduceKind.PROD:
                return np.prod(array, axis=axis)
            case ReduceKind.MAX:
                return np.max(array, axis=axis, initial=-np.inf)
            case ReduceKind.MIN:
                return np.min(array, axis=axis, initial=np.inf)

    def carried(self, how: Recurrence, dim: int, array: Array, factor: Array | None = None) -> Array:
        """See Arrays."""
        way = slice(None, None, -1 if how.back else 1)
        terms = np.moveaxis(array, dim, 0)[way]
        with np.errstate(all="ignore"):
            if factor is None:
                made = _UFUNCS[how.kind].accumulate(terms, axis=0)
            else:
                made, by = np.array(terms), np.moveaxis(factor, dim, 0)[way]
                for n in range(1, len(made)):
                    made[n] = _UFUNCS[how.kind](made[n], _UFUNCS[how.kind.times](by[n], made[n - 1]))
        if how.before:
            made = np.concatenate((np.full_like(made[:1], how.kind.identity), made[:-1]))
        return np.moveaxis(made[way], 0, dim)

    def matmul(self, a: Array, b: Array) -> Array:
        """See Arrays."""
        return np.matmul(a, b)

    def all_finite(self, array: Array) -> bool:
        """See Arrays."""
        # A sum that is finite is of finite numbers, and sooner there; one that is not may have overflowed.
        with np.errstate(all="ignore"):
            return bool(np.isfinite(np.sum(array)) or np.isfinite(array).all())

    def stack(self, arrays: Sequence[Array]) -> Array:
        """See Arrays."""
        return np.stack(arrays)


_UFUNCS: Mapping[ReduceKind, np.ufunc] = {
    ReduceKind.SUM: np.add,
    ReduceKind.PROD: np.multiply,
    ReduceKind.MAX: np.maximum,
    ReduceKind.MIN: np.minimum,
}
NUMPY = NumpyArrays()


class AnnihilatingArrays(NumpyArrays):
    """float64 arrays; see Arrays.

    0 times anything is 0 here, infinities and NaN included. What a mask or a padding leaves out is a factor of zero
    in a formula, and kernels do not read it, so they cannot make a NaN of 0 * inf there.
    """

    def pointwise(self, op: str, args: Sequence[Array]) -> Array:
        """See Arrays."""
        found = super().pointwise(op, args)
        if op != "mul":
            return found
        a, b = args
        return np.where(np.equal(a, 0) | np.equal(b, 0), 0.0, found)

    def matmul(self, a: Array, b: Array) -> Array:
        """See Arrays."""
        ours, theirs = _odd(a, -1), _odd(b, -2)
        odd = ours | theirs
        if not odd.any():
            return np.matmul(a, b)
        found = np.matmul(_finite(a) if ours.any() else a, _finite(b) if theirs.any() else b)
        # What is not finite stands at few places of what is summed over: the terms of these are counted by kind.
        left, right = a[..., :, odd], b[..., odd, :]
        up, down = _infinite(left, right), _infinite(left, -right)
        lost = _count(np.isnan(left), np.not_equal(right, 0)) + _count(np.not_equal(left, 0), np.isnan(right))
        found = np.where(up > 0, np.inf, np.where(down > 0, -np.inf, found))
        return np.where((lost > 0) | ((up > 0) & (down > 0)), np.nan, found)


def _odd(a: Array, dim: int) -> Array:
    """The places along a dimension at which an element is not finite."""
    if NUMPY.all_finite(a):
        return np.zeros(a.shape[dim], dtype=bool)
    return ~np.isfinite(a).all(axis=tuple(n for n in range(a.ndim) if n != dim % a.ndim))


def _finite(a: Array) -> Array:
    return np.where(np.isfinite(a), a, 0.0)


def _infinite(a: Array, b: Array) -> Array:
    """For each element of a matrix product, how many of its terms are positive infinity."""
    found = _count(a == np.inf, b > 0) + _count(a == -np.inf, b < 0)
    bounded = np.isfinite(a)
    return found + _count(bounded & (a > 0), b == np.inf) + _count(bounded & (a < 0), b == -np.inf)


def _count(a: Array, b: Array) -> Array:
    """For each element of a matrix product, how many of its terms have both properties."""
    if not (a.any() and b.any()):
        return np.zeros((), dtype=np.float64)  # most operands are finite: a product less for each that is
    return np.matmul(a.astype(np.float64), b.astype(np.float64))


ANNIHILATING = AnnihilatingArrays()
