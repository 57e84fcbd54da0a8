"""What is known of a value by what it is computed from: bounds, whether it is a number, whether it may be 0.

A value is a number where it is one whatever finite inputs are, results beyond the largest float apart: nothing was
divided by what may be 0, and no root was drawn of what may be negative. Only then a type without NaN holds it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from prism.program import integers
from prism.program.integers import REAL, Interval
from prism.program.nodes import DType, ReduceKind
from prism.program.ops import BOOLEAN

_STEADY = frozenset({"add", "mul", "neg", "abs", "sign", "round", "floor", "maximum", "minimum", "where", *BOOLEAN})
_BYTES = (DType.INT8, DType.UINT8)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a value.

    Attributes:
        bounds: of it, where it is a number.
        number: whether it is one, see above.
        nonzero: whether it is not 0.
        multiple: a value of which it is a multiple by something that is not 0, itself for instance.
        vanishes: where this truth value holds, that value is 0; elsewhere it is not.
    """

    bounds: Interval = REAL
    number: bool = False
    nonzero: bool = False
    multiple: Hashable = None
    vanishes: Hashable = None

    @property
    def byte(self) -> DType | None:
        """The type of 8 bits that holds it, whatever finite inputs are; None where none does."""
        fits = (d for d in _BYTES if self.bounds.within(integers.range_of(d)))
        return next(fits, None) if self.bounds.whole and self.number else None

    @property
    def is_zero(self) -> bool:
        """Whether it is 0."""
        return self.bounds.low == self.bounds.high == 0


NOTHING = Known()
POSITION = Known(Interval(0.0, math.inf, whole=True), number=True)


def constant(value: float) -> Known:
    """Of a number in the program."""
    return Known(Interval(value, value, float(value).is_integer()), number=True, nonzero=value != 0)


def stored(bounds: Interval) -> Known:
    """Of an element of a tensor, given the bounds of its type."""
    return Known(bounds, number=True, nonzero=bounds.low > 0 or bounds.high < 0)


def computed(op: str, args: Sequence[Known], names: Sequence[Hashable]) -> Known:
    """Of what a pointwise operation makes of values, which are told apart by their names."""
    bounds = integers.image(op, [a.bounds for a in args])
    number = all(a.number for a in args) and (
        op in _STEADY or (op == "recip" and args[0].nonzero) or (op == "sqrt" and args[0].bounds.low >= 0)
    )
    made = Known(bounds, number, nonzero=bounds.low > 0 or bounds.high < 0)
    match op:
        case "mul":
            pairs = ((args[0], names[0], args[1]), (args[1], names[1], args[0]))
            of = next((name if a.multiple is None else a.multiple for a, name, factor in pairs if factor.nonzero), None)
            return replace(made, nonzero=all(a.nonzero for a in args), multiple=of)
        case "recip" | "neg":
            return replace(made, nonzero=made.nonzero or args[0].nonzero or op == "recip")
        case "eq":
            zeros = [a.is_zero for a in args]
            return replace(made, vanishes=names[zeros.index(False)]) if zeros.count(True) == 1 else made
        case "where":
            asked, then, other = args
            apart = asked.vanishes is not None and asked.vanishes in (other.multiple, names[2])
            return replace(made, nonzero=made.nonzero or (then.nonzero and (other.nonzero or apart)))
        case _:
            return made


def reduced(kind: ReduceKind, of: Known) -> Known:
    """Of a maximum, a minimum or a sum of values."""
    if kind in (ReduceKind.MAX, ReduceKind.MIN):
        return Known(of.bounds, of.number, of.nonzero and (of.bounds.low > 0 or of.bounds.high < 0))
    if kind is ReduceKind.SUM:
        low, high = 0.0 if of.bounds.low >= 0 else -math.inf, 0.0 if of.bounds.high <= 0 else math.inf
        return Known(Interval(low, high, of.bounds.whole), of.number)
    return NOTHING
