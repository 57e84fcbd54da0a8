"""numpy's operations with 0 times anything as 0, infinities and NaN included.

What a mask or a padding leaves out is a factor of zero in a formula. Kernels do not read it, so they cannot make a NaN
of 0 * inf there. This is the arithmetic in which leaving it out changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prism.program.arrays import NUMPY, Array, NumpyArrays


class AnnihilatingArrays(NumpyArrays):
    """float64 arrays; see Arrays."""

    def pointwise(self, op: str, args: Sequence[Array]) -> Array:
        """See Arrays."""
        found = super().pointwise(op, args)
        if op != "mul":
            return found
        a, b = args
        return np.where(np.equal(a, 0) | np.equal(b, 0), 0.0, found)

    def matmul(self, a: Array, b: Array) -> Array:
        """See Arrays."""
        odd = _odd(a, -1) | _odd(b, -2)
        if not odd.any():
            return np.matmul(a, b)
        found = np.matmul(_finite(a), _finite(b))
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
    return a if NUMPY.all_finite(a) else np.where(np.isfinite(a), a, 0.0)


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
