"""What is known of a value by what it is computed from: bounds as float32 computes it, and whether it is a number.

A value is a number where it is one whatever finite inputs are, results beyond the largest float apart: nothing was
divided by what may be 0 and no root was drawn of what may be negative. What is not 0 over the reals may be in float32:
only what is bounded away from it, or was compared with it, is not.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from prism.program import integers
from prism.program.integers import REAL, Interval
from prism.program.nodes import DType, ReduceKind
from prism.program.ops import BOOLEAN, ROUNDED

_STEADY = frozenset(
    {"add", "mul", "neg", "abs", "sign", "round", "floor", "maximum", "minimum", "where", *BOOLEAN}
    | {"tanh", "sigmoid", "erf", "atan"}
)
_BYTES = (DType.INT8, DType.UINT8)
LEAST = 2.0**-126
"""Float32's smallest normal number."""
_EXACT = 2.0**24
_OFF = 2.0**-20
"""By what share of itself an operation may miss its result in float32, with room for approximate functions."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a value."""

    bounds: Interval = REAL  # of it, infinite or not, where it is not NaN
    number: bool = False  # whether it is one, see above
    nonzero: bool = False  # whether it is not 0
    vanishes: Hashable = None  # where this truth value holds, that value is 0; elsewhere it is not

    @property
    def byte(self) -> DType | None:
        """The type of 8 bits that holds it where it is not NaN; None where none does."""
        fits = (d for d in _BYTES if self.bounds.within(integers.range_of(d)))
        return next(fits, None) if self.bounds.whole else None


NOTHING = Known()


def constant(value: float) -> Known:
    """Of a number in the program, which kernels have in float32."""
    value = ctypes.c_float(value).value
    return _bounded(Interval(value, value, value.is_integer()), math.isfinite(value))


def stored(bounds: Interval) -> Known:
    """Of an element of a tensor, given the bounds of its type."""
    return _bounded(bounds, number=True)


def computed(op: str, args: Sequence[Known], names: Sequence[Hashable]) -> Known:
    """Of what a pointwise operation makes of values, which are told apart by their names."""
    first, *others = (a.bounds for a in args)
    if (op == "recip" and not args[0].nonzero) or (op in ("where", "sign") and not args[0].number):
        first = REAL  # a pole on either side; what NaN chooses, and what sign it has
    bounds = integers.image(op, [first, *others])
    safe = op in _STEADY or (op == "recip" and args[0].nonzero) or (op == "sqrt" and args[0].bounds.low >= 0)
    made = _bounded(_rounded(bounds) if op in ROUNDED else bounds, safe and all(a.number for a in args))
    match op:
        case "eq":
            zeros = [a.bounds.low == a.bounds.high == 0 for a in args]
            return replace(made, vanishes=names[zeros.index(False)]) if zeros.count(True) == 1 else made
        case "where":
            asked, then, other = args
            apart = asked.vanishes is not None and asked.vanishes == names[2]
            return replace(made, nonzero=made.nonzero or (then.nonzero and (other.nonzero or apart)))
    return made


def _bounded(bounds: Interval, number: bool) -> Known:
    return Known(bounds, number, bounds.low >= LEAST or bounds.high <= -LEAST)


def reduced(kind: ReduceKind, of: Known) -> Known:
    """Of a maximum, a minimum or a sum of values."""
    if kind in (ReduceKind.MAX, ReduceKind.MIN):
        return _bounded(of.bounds, of.number)
    if kind is ReduceKind.SUM:
        low, high = 0.0 if of.bounds.low >= 0 else -math.inf, 0.0 if of.bounds.high <= 0 else math.inf
        return _bounded(Interval(low, high, of.bounds.whole), of.number)
    return NOTHING


def _rounded(over_reals: Interval) -> Interval:
    """Bounds of what float32 makes of it: whole numbers up to 2^24 are exact."""
    if over_reals.whole and over_reals.largest <= _EXACT:
        return over_reals
    low = _moved(over_reals.low, -1.0)
    return Interval(low, _moved(over_reals.high, 1.0), over_reals.whole)


def _moved(bound: float, by: float) -> float:
    """A bound, moved up or down by a rounding: what is subnormal may be 0 as well as the least normal number."""
    if 0 < abs(bound) < LEAST:
        return by * LEAST if bound * by > 0 else 0.0
    return bound + by * _OFF * abs(bound) if bound else bound
