"""What is decided by floating-point numbers: cut to a whole number, or compared, where a rounding may turn it.

`log(d / 8) / 2.7725887 * 8` is 2 at d = 16 as float32 rounds it, and 1.99999999 in float64, in which programs are
evaluated. Of data either is as good, since data are rounded themselves. What is made of positions and sizes is the same
at every call, and an error of rounding there is an error of the model: so it is exact, or no formula says it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from prism.program.integers import Interval
from prism.program.nodes import Const, DType, Expr, Map, Position, Read, Reduce, Size
from prism.program.ops import OPS

ROUNDINGS = 64
"""Roundings that a single number may have behind it, which is kept as a number and not as what it was made by."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Values that a type holds exactly."""

    unit: float  # a power of two of which each is a multiple; 0 where no such is known
    largest: float  # no magnitude is above


_ONES = Grid(1.0, 1.0)


@dataclass(slots=True)
class Exactness:
    """Which expressions are computed without a rounding in a type."""

    dtype: DType  # the type
    bounds: Callable[[Expr], Interval]  # of an expression's values
    # What defines the tensors that hang on no argument; one that it lacks is a constant of the model.
    made: Mapping[str, Expr]
    _found: dict[int, tuple[Grid | None, Expr]] = field(default_factory=dict)  # holds the node, for its id

    def decides(self, operands: Sequence[Expr], *, quotients: bool) -> bool:
        """Whether what is cut of the operand, or compared of the two, is the same however it is rounded.

        One operand is cut, or two are compared. With `quotients`, a quotient is rounded once: of two numbers that the
        type holds it then lies on the side of a whole number, or of a half, on which the real one does, and is it where
        that is.
        """
        numbers = [e.value for e in operands if isinstance(e, Const)]
        if any(map(math.isinf, numbers)) or (len(numbers) == len(operands) and self._are_clear(numbers)):
            return True  # no rounding makes an infinity of a number within the type's range
        known = [self.grid(e) for e in operands]
        rounded = [e for e, g in zip(operands, known, strict=True) if g is None]
        if not rounded:
            return True
        others = all(g is None or g.unit >= 1.0 for g in known)
        return quotients and others and len(rounded) == 1 and self._is_quotient(rounded[0])

    def _are_clear(self, numbers: Sequence[float]) -> bool:
        """Whether a number is so far from wholes and halves, or two are so far apart, that no few roundings matter."""
        one, *others = numbers
        other = others[0] if others else round(2 * one) / 2 if math.isfinite(one) else 0.0
        return abs(one - other) > ROUNDINGS * self.dtype.roundoff * max(abs(one), abs(other))

    def _is_quotient(self, e: Expr) -> bool:
        match e:
            case Map("mul", (a, Map("recip", (b,)))):
                return self.grid(a) is not None and self.grid(b) is not None
            case Map("abs" | "neg", (a,)):
                return self._is_quotient(a)
        return False

    def grid(self, e: Expr) -> Grid | None:
        """What the values are multiples of, None where a rounding may be in them."""
        if id(e) not in self._found:
            self._found[id(e)] = (self._held(self._grid(e)), e)
        return self._found[id(e)][0]

    def _held(self, g: Grid | None) -> Grid | None:
        if g is None or g.unit == 0.0 or g.largest * self.dtype.roundoff <= g.unit:
            return g
        return None

    def _grid(self, e: Expr) -> Grid | None:
        match e:
            case Const(value):
                return _of_number(value)
            case Position() | Size():
                return Grid(1.0, self.bounds(e).largest)
            case Read(tensor, _):
                if tensor in self.made:
                    return self.grid(self.made[tensor])
                bounds = self.bounds(e)
                return Grid(1.0, bounds.largest) if bounds.whole else Grid(0.0, math.inf)
            case Reduce(kind, _, body) if kind.is_extreme:
                return self.grid(body)
            case Map("where", (_, *choices)) | Map("maximum" | "minimum", choices) | Map("neg" | "abs", choices):
                parts = [self.grid(c) for c in choices]
                if any(p is None for p in parts):
                    return None
                return Grid(min(p.unit for p in parts if p), max(p.largest for p in parts if p))
            case Map("add" | "mul" as name, (a, b)):
                one, other = self.grid(a), self.grid(b)
                if one is None or other is None or 0.0 in (one.unit, other.unit):
                    return None
                if name == "add":
                    return Grid(min(one.unit, other.unit), one.largest + other.largest)
                return Grid(one.unit * other.unit, one.largest * other.largest)
            case Map(name, _) if OPS[name].boolean:
                return _ONES
            case Map():
                # A whole number by its operator, as of floor, was decided where it was made.
                bounds = self.bounds(e)
                return Grid(1.0, bounds.largest) if bounds.whole else None
        return None


def _of_number(value: float) -> Grid:
    """What one number is; an infinity, and 0, round nothing that they are added to."""
    if value == 0.0 or not math.isfinite(value):
        return Grid(2.0**1000, 0.0)
    mantissa, exponent = math.frexp(abs(value))
    bits = int(math.ldexp(mantissa, 53))
    return Grid(math.ldexp(float(bits & -bits), exponent - 53), abs(value))
