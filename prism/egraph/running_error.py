"""float64 with a running bound on its rounding error, on the extended reals: what a number is, not what it rounds to.

A value is ±inf or NaN only where the real computation is (1/0, inf - inf, a mask's -inf); an overflow, or a comparison
that rounding could have turned, is *undetermined*: its error bound is infinite. So two values that differ by more than
their bounds really differ, for large and tiny values alike. (Running error analysis: Higham, Accuracy and Stability of
Numerical Algorithms, 2002, section 3.3; constants rounded up.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from prism.program.arrays import NUMPY
from prism.program.nodes import DType

Array: TypeAlias = Any  # as in prism.program.arrays
Mask: TypeAlias = Any

U = 2 * DType.FLOAT64.roundoff
_TINY = 1e-290  # below this, results may be subnormal


@dataclass(frozen=True, slots=True)
class Num:
    """Numbers with error bounds."""

    v: Array  # the values
    e: Array  # how far each may be from the real one; inf where nothing is known. Same shape.

    @property
    def known(self) -> Mask:
        """Where the value means something."""
        return np.asarray(self.e < np.inf)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self.v.shape)

    def __getitem__(self, place: int | tuple[int, ...]) -> Num:
        return Num(self.v[place], self.e[place])


def exactly(v: Array) -> Num:
    """Numbers that are what they are."""
    v = np.asarray(v, dtype=np.float64)
    return Num(v, np.zeros_like(v))


def _sure(a: Num) -> Mask:
    """Where the sign, zero included, is certain."""
    return (a.e == 0) | (np.abs(a.v) > a.e) | np.isnan(a.v)


def _multiples(v: Array, unit: int, below: int) -> Mask:
    """Where a number is a multiple of 2^unit, of size less than 2^below."""
    scaled = v * 2.0**-unit
    return (np.abs(v) < 2.0**below) & (scaled == np.rint(scaled))


def short(v: Array) -> Mask:
    """Where sums of such numbers are exact, as far as those of their sizes stay below 2^32."""
    return _multiples(v, -20, 31)


def pointwise(op: str, args: Sequence[Num]) -> Num:
    """One operation of `prism.program.ops.OPS`, broadcasting the arguments."""
    v = np.asarray(NUMPY.pointwise(op, [a.v for a in args]), dtype=np.float64)
    if op == "pow":
        # IEEE's pow(-inf, -1/2) is 0; over the reals it is undefined.
        base, power = args[0].v, args[1].v
        v = np.where((base < 0) & (power != np.floor(power)), np.nan, v)
    e = np.zeros(v.shape) + _error(op, v, args)
    e = np.where(np.isnan(e), np.inf, e)
    plain = np.isfinite(v)
    if not plain.all() and op != "where":  # what is chosen brings its own bound
        # inf or NaN: of the operation itself, where no rounding can be to blame.
        finite, sure = np.True_, np.True_
        for a in args:
            bounded = np.isfinite(a.v)
            finite = finite & bounded
            sure = sure & (_sure(a) | ~bounded)
        # Of numbers, only 0 has an infinite power or logarithm, and what is undefined does not overflow.
        pole = (op in ("recip", "log", "log2", "sqrt", "pow")) & (np.isnan(v) | (args[0].v == 0))
        genuine = sure & (~finite | pole)
        e = np.where(plain, e, np.where(genuine, 0.0, np.inf))
    if op not in ("where", "isnan"):
        for a in args:
            if not a.known.all():
                e = np.where(a.known, e, np.inf)
    return Num(v, e)


def _error(op: str, v: Array, args: Sequence[Num]) -> Array:
    """The bound where the result is finite; NaN for none."""
    a = args[0]
    b = args[1] if len(args) > 1 else a
    size = np.abs(v)
    small = np.where(size < _TINY, 1e-300, 0.0)
    match op:
        case "add" | "sub":
            return np.asarray(a.e + b.e + np.where((a.v == 0) | (b.v == 0) | (short(a.v) & short(b.v)), 0.0, U * size))
        case "mul":
            exact = ((a.v == 0) & (a.e == 0)) | ((b.v == 0) & (b.e == 0))
            exact |= (a.e == 0) & (b.e == 0) & _multiples(a.v, -10, 16) & _multiples(b.v, -10, 16)
            return np.where(exact, 0.0, np.abs(a.v) * b.e + np.abs(b.v) * a.e + a.e * b.e + U * size + small)
        case "recip":
            near = np.abs(a.v) - a.e
            found = np.where(near > 0, a.e / np.abs(a.v) / near + U * size + small, np.nan)
            return np.where(np.isinf(a.v), 0.0, found)
        case "exp":
            return np.where(a.v == -np.inf, 0.0, v * np.expm1(a.e) + 4 * U * size + small + (size < _TINY) * _TINY)
        case "log" | "log2":
            return np.where(a.v > a.e, -1.5 * np.log1p(-np.minimum(a.e / a.v, 1.0)) + 4 * U * size, np.nan)
        case "sqrt":
            return np.where(a.v > a.e, a.e / np.sqrt(a.v - a.e) + U * size, np.where(a.e == 0, 0.0, np.nan))
        case "sin" | "cos" | "tanh" | "erf" | "sigmoid":
            return np.where(np.isinf(a.v), 0.0, 1.2 * a.e + 8 * U)
        case "atan":
            return 1.2 * a.e + 8 * U
        case "bitand":
            return np.where((a.e == 0) & (b.e == 0), 0.0, np.nan)
        case "neg" | "abs":
            return a.e
        case "sign":
            return np.where(_sure(a), 0.0, np.nan)
        case "floor" | "round":
            turn = np.floor if op == "floor" else np.rint
            return np.where(turn(a.v - a.e) == turn(a.v + a.e), 0.0, np.nan)
        case "maximum" | "minimum":
            return np.maximum(a.e, b.e)
        case "pow":
            relative = np.abs(b.v) * a.e / np.abs(a.v) + np.abs(np.log(np.abs(a.v))) * b.e
            exact = (a.e == 0) & (b.e == 0)
            return np.where(exact, 8 * U * size + small, 2 * size * np.expm1(relative) + 8 * U * size + small)
        case "where":
            return np.where(_sure(a) & a.known, np.where(a.v != 0, b.e, args[2].e), np.nan)
        case "lt" | "le" | "eq":
            exact = (a.e == 0) & (b.e == 0)
            return np.where(exact | (np.abs(a.v - b.v) > a.e + b.e) | np.isinf(a.v) | np.isinf(b.v), 0.0, np.nan)
        case "isnan":
            return np.where(a.known, 0.0, np.inf)
        case _:  # and, or, not
            return np.where(_sure(a) & _sure(b), 0.0, np.nan)


def reduce(head: str, a: Num, dimension: int, extent: int) -> Num:
    """`Sum`, `Max`, `Min` or `Prod` along a dimension, which then has extent 1."""
    shape = list(a.v.shape)
    shape[dimension] = extent
    v, e = np.broadcast_to(a.v, shape), np.broadcast_to(a.e, shape)
    op = {"Sum": "add", "Max": "maximum", "Min": "minimum", "Prod": "mul"}[head]
    terms = [Num(np.take(v, [n], dimension), np.take(e, [n], dimension)) for n in range(extent)]
    total = terms[0]
    for term in terms[1:]:
        total = pointwise(op, [total, term])
    return total


def agreement(a: Num, b: Num) -> tuple[Mask, Mask, Mask, Mask]:
    """How two numbers compare, element by element, where both are known; each draw in the first dimension.

    Returns:
        Masks: they agree and are not NaN; both are finite and differ; one alone is finite; neither is finite, and they
        differ (inf against NaN or -inf).
    """
    av, bv, ae, be = np.broadcast_arrays(a.v, b.v, a.e, b.e)
    known = (ae < np.inf) & (be < np.inf)
    fa, fb = np.isfinite(av), np.isfinite(bv)
    both = known & fa & fb
    gap = np.abs(np.where(both, av - bv, 0.0))
    differ = both & (gap > 4 * (np.where(both, ae + be, 0.0)) + 1e-285)
    same = np.where(fa & fb, both & ~differ, known & (av == bv))
    return same, differ, known & (fa != fb), known & ~fa & ~fb & (av != bv) & ~(np.isnan(av) & np.isnan(bv))


def relation(name: str, a: Num) -> tuple[Mask, Mask]:
    """Whether each draw (the first dimension) is in the relation, and whether it certainly is not.

    All but `finite` and `boolean` speak of a value where it is defined.
    """
    v, e = a.v, a.e
    nan = np.isnan(v)
    match name:
        case "finite":
            yes, no = np.isfinite(v), ~np.isfinite(v)
        case "nonzero":
            yes, no = (np.abs(v) > e) | nan, (v == 0) & (e == 0)
        case "positive":
            yes, no = v > e, (v < -e) | ((v <= 0) & (e == 0))
        case "nonneg":
            yes, no = (v >= e) | nan, v < -e
        case _:
            yes, no = (e == 0) & ((v == 0) | (v == 1)), (np.abs(v) > e) & (np.abs(v - 1) > e)
    every = tuple(range(1, v.ndim))
    known = a.known
    return np.asarray((yes & known).all(axis=every)), np.asarray((no & known).any(axis=every))
