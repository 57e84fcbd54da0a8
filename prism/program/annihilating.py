"""numpy's operations with 0 times anything as 0, infinities and NaN included.

What a mask or a padding leaves out is a factor of zero in a formula. Kernels do not read it, so they cannot make a NaN
of 0 * inf there. This is the arithmetic in which leaving it out changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prism.program.arrays import Array, NumpyArrays


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
        if self.all_finite(a) and self.all_finite(b):
            return np.matmul(a, b)
        found = np.matmul(_finite(a), _finite(b))
        up, down = _infinite(a, b), _infinite(a, -b)
        lost = _count(np.isnan(a), np.not_equal(b, 0)) + _count(np.not_equal(a, 0), np.isnan(b))
        found = np.where(up > 0, np.inf, np.where(down > 0, -np.inf, found))
        return np.where((lost > 0) | ((up > 0) & (down > 0)), np.nan, found)


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
