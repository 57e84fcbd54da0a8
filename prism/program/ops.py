"""The pointwise operations that `Map` may carry, as data: arity, result kind and how costly one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Op:
    """One pointwise operation.

    Attributes:
        arity: the number of operands.
        flops: the cost of one element, in multiply-adds of a GPU's vector units.
        boolean: whether the result is 0 or 1.
    """

    arity: int
    flops: int = 1
    boolean: bool = False


OPS: Mapping[str, Op] = MappingProxyType(
    {
        "add": Op(2),
        "mul": Op(2),
        "neg": Op(1),
        "recip": Op(1, 4),
        "exp": Op(1, 4),
        "log": Op(1, 4),
        "sqrt": Op(1, 4),
        "sin": Op(1, 8),
        "cos": Op(1, 8),
        "tanh": Op(1, 8),
        "atan": Op(1, 8),
        "erf": Op(1, 8),
        "sigmoid": Op(1, 8),
        "abs": Op(1),
        "sign": Op(1),
        "floor": Op(1),
        "round": Op(1),  # half to even, as ONNX and torch do
        "maximum": Op(2),
        "minimum": Op(2),
        "pow": Op(2, 16),  # a general power; small integer powers are products
        "bitand": Op(2),  # the bits that two whole numbers both have, as two's complements
        "where": Op(3),  # where(predicate, then, otherwise); what is not selected is not read
        "lt": Op(2, 1, True),
        "le": Op(2, 1, True),
        "eq": Op(2, 1, True),
        "and": Op(2, 1, True),
        "or": Op(2, 1, True),
        "not": Op(1, 1, True),
        "isnan": Op(1, 1, True),
    }
)

BOOLEAN = frozenset(name for name, op in OPS.items() if op.boolean)
"""The operations whose result is 0 or 1."""
COMPARISONS = frozenset({"lt", "le", "eq"})
