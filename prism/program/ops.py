"""The pointwise operations that `Map` may carry, as data: arity, kind and bounds of the result, how costly one is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Op:
    """One pointwise operation."""

    arity: int  # the number of operands
    flops: int = 1  # the cost of one element, in multiply-adds of a GPU's vector units
    boolean: bool = False  # whether the result is 0 or 1
    bounds: tuple[float, float] = (-math.inf, math.inf)  # the least and the largest result, of whatever operands
    rounds: bool = False  # whether the result of floats is not one in general, and so is rounded


_UNIT = (-1.0, 1.0)
_SHARE = (0.0, 1.0)
_NO_LESS = (0.0, math.inf)

OPS: Mapping[str, Op] = MappingProxyType(
    {
        "add": Op(2, rounds=True),
        "mul": Op(2, rounds=True),
        "neg": Op(1),
        "recip": Op(1, 4, rounds=True),
        "exp": Op(1, 4, bounds=_NO_LESS, rounds=True),
        "log": Op(1, 4, rounds=True),
        "log2": Op(1, 4, rounds=True),  # its own: a multiple of a logarithm misses whole numbers
        "sqrt": Op(1, 4, bounds=_NO_LESS, rounds=True),
        "sin": Op(1, 8, bounds=_UNIT, rounds=True),
        "cos": Op(1, 8, bounds=_UNIT, rounds=True),
        "tanh": Op(1, 8, bounds=_UNIT, rounds=True),
        "atan": Op(1, 8, bounds=(-1.6, 1.6), rounds=True),
        "erf": Op(1, 8, bounds=_UNIT, rounds=True),
        "sigmoid": Op(1, 8, bounds=_SHARE, rounds=True),
        "abs": Op(1, bounds=_NO_LESS),
        "sign": Op(1, bounds=_UNIT),  # 0 where the operand is NaN, as in torch
        "floor": Op(1),
        "round": Op(1),  # half to even, as ONNX and torch do
        "maximum": Op(2),
        "minimum": Op(2),
        "pow": Op(2, 16, rounds=True),  # a general power; small integer powers are products
        "bitand": Op(2),  # the bits that two whole numbers both have, as two's complements
        "where": Op(3),  # where(predicate, then, otherwise); what is not selected is not read
        "lt": Op(2, 1, True, _SHARE),
        "le": Op(2, 1, True, _SHARE),
        "eq": Op(2, 1, True, _SHARE),
        "and": Op(2, 1, True, _SHARE),
        "or": Op(2, 1, True, _SHARE),
        "not": Op(1, 1, True, _SHARE),
        "isnan": Op(1, 1, True, _SHARE),
    }
)

BOOLEAN = frozenset(name for name, op in OPS.items() if op.boolean)
"""The operations whose result is 0 or 1."""
ROUNDED = frozenset(name for name, op in OPS.items() if op.rounds)
"""Those whose result is rounded."""
COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "and", "or", "eq"})
"""Those whose operands may be in any order."""
COMPARISONS = frozenset({"lt", "le", "eq"})
