"""Lowering of pointwise operations: element types of operands and result, and where a result is known to be zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prism.program.index import Axis
from prism.program.nodes import DType
from prism.program.ops import OPS

_INTS = (DType.INT32, DType.INT64)
_INT32_MAX = 2**31 - 1
_KEEPS_INTS = frozenset({"add", "mul", "neg", "abs", "maximum", "minimum", "where"})
_COMPARES = frozenset({"lt", "le", "eq"})
# f(0) = 0
_KEEPS_ZERO = frozenset({"neg", "abs", "sqrt", "floor", "round", "sign", "tanh", "erf", "sin"})


@dataclass(frozen=True, slots=True)
class PointwiseRules:
    """The rules for one operation.

    Attributes:
        op: the operation.
        args: for each operand its element type, or the number that it is.
    """

    op: str
    args: tuple[DType | float, ...]

    @property
    def wanted(self) -> tuple[DType, ...]:
        """The element type that each operand is brought to."""
        match self.op:
            case "and" | "or" | "not":
                return (DType.BOOL,) * len(self.args)
            case "where":
                return (DType.BOOL, *(self._common(self.args[1:]),) * 2)
            case op if op in _KEEPS_INTS | _COMPARES:
                common = self._common(self.args)
                # Comparing or adding truth values is done on integers.
                return (DType.INT32 if common is DType.BOOL else common,) * len(self.args)
            case _:
                return (DType.FLOAT32,) * len(self.args)

    @property
    def result(self) -> DType:
        """The element type of the result."""
        if OPS[self.op].boolean:
            return DType.BOOL
        return self.wanted[-1]

    def _common(self, args: Sequence[DType | float]) -> DType:
        types = [a for a in args if isinstance(a, DType)]
        numbers = [a for a in args if not isinstance(a, DType)]
        if types and all(t is DType.BOOL for t in types) and all(n in (0, 1) for n in numbers):
            return DType.BOOL
        if types and all(t in (*_INTS, DType.BOOL) for t in types) and all(_is_int(n) for n in numbers):
            return DType.INT64 if DType.INT64 in types else DType.INT32
        return DType.FLOAT32

    @staticmethod
    def number(value: float, dtype: DType) -> float:
        """The number as an operand of that type: an int, a bool, or a float."""
        if dtype is DType.BOOL:
            return bool(value)
        return int(value) if dtype in _INTS else float(value)

    def zero(self, args: Sequence[frozenset[Axis] | float]) -> frozenset[Axis]:
        """The axes outside of which the result is zero, given those of the operands (or the numbers they are)."""
        everything = frozenset(a for of in args if isinstance(of, frozenset) for a in of)
        of = [a if isinstance(a, frozenset) else everything if a == 0 else frozenset() for a in args]
        match self.op:
            case op if op in _KEEPS_ZERO:
                return of[0]
            case "mul":
                # Zero times what may be infinite is not zero.
                for this, other in ((0, 1), (1, 0)):
                    number = args[other]
                    if not isinstance(number, frozenset) and abs(number) < float("inf"):
                        return of[this]
                return of[0] & of[1]
            case "add" | "maximum" | "minimum":
                return of[0] & of[1]
            case "where":
                return of[1] & of[2]
            case _:
                return frozenset()


def _is_int(n: float) -> bool:
    return abs(n) <= _INT32_MAX and n == int(n)
