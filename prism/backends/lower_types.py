"""Lowering, second step: what is known of a kernel's values that decides the element types of matrix products.

A matrix product runs in the nominal type of its operands (prism/sgraph/products.py), or in that of the program's own
where that is narrower, on operands rounded to it if they were computed in float32, as running the operators one by one
would have done: bfloat16 has float32's range, so nothing is lost but what is lost there, too. float16 has not; an
operand that was computed and is not known to fit stays in float32, and the product runs in TF32, whose fraction is as
long as float16's and whose range is float32's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prism.backends.tile import Precision
from prism.program.integers import Interval, image
from prism.program.nodes import DType, ReduceKind
from prism.sgraph import nodes as sg
from prism.sgraph.products import Nominal, operands_type

INTS = (DType.INT32, DType.INT64)
_LARGEST: Mapping[DType | None, float] = {
    DType.FLOAT16: 65504.0, DType.BOOL: 1.0, DType.INT16: 32768.0, DType.INT8: 128.0, DType.UINT8: 255.0
}  # fmt: skip
"""The largest magnitude that a type holds, where it is less than that of float32."""


@dataclass(frozen=True, slots=True)
class DotType:
    """The element type that both operands of a matrix product are brought to, and the precision of float32 ones."""

    dtype: DType
    precision: Precision = Precision.IEEE


@dataclass(slots=True)
class Types:
    """Facts about the values of one kernel, by name."""

    kernel: sg.Kernel
    nominal: Nominal  # the nominal type
    # The largest magnitude, unless an input was infinite already; infinite where nothing is known.
    largest: dict[str, float]
    _max_of: dict[str, str]

    def dot(self, lhs: str, rhs: str) -> DotType:
        """The type of the product of two values."""
        common = operands_type(self.kernel, self.nominal, (lhs, rhs))
        if common is DType.BFLOAT16:
            return DotType(DType.BFLOAT16)
        if common is DType.FLOAT16:
            if max(self.largest[lhs], self.largest[rhs]) <= _LARGEST[DType.FLOAT16]:
                return DotType(DType.FLOAT16)
            return DotType(DType.FLOAT32, Precision.TF32)
        return DotType(DType.FLOAT32)


def analyse(kernel: sg.Kernel, nominal: Nominal) -> Types:
    """The facts about every value of the kernel, given their nominal types."""
    types = Types(kernel, nominal, {}, {})
    definitions: dict[str, sg.Stmt] = {}

    def visit(body: Sequence[sg.Stmt]) -> None:
        for s in body:
            if isinstance(s, sg.Loop):
                visit(s.body)
                continue
            if isinstance(s, sg.Store):
                continue
            definitions[s.dst] = s
            _statement(s, types, definitions)

    visit(kernel.body)
    return types


def _statement(
    s: sg.Load | sg.Gather | sg.Position | sg.Pointwise | sg.TileReduce | sg.Contract | sg.Accumulate | sg.Scan,
    types: Types,
    definitions: Mapping[str, sg.Stmt],
) -> None:
    largest = math.inf
    match s:
        case sg.Load(dst) | sg.Gather(dst):
            largest = _LARGEST.get(types.nominal[dst], math.inf)
        case sg.Pointwise(_, op, args):
            largest = _largest_result(op, args, types, definitions)
        case sg.TileReduce(dst, kind, _, src):
            if kind is ReduceKind.MAX:
                types._max_of[dst] = src
            if kind in (ReduceKind.MAX, ReduceKind.MIN):
                largest = types.largest[src]
        case sg.Accumulate(dst, kind, src, _):
            if kind is ReduceKind.MAX and src in types._max_of:
                types._max_of[dst] = types._max_of[src]
            if kind in (ReduceKind.MAX, ReduceKind.MIN):
                largest = types.largest[src]
    types.largest[s.dst] = largest


def _largest_result(op: str, args: Sequence[sg.Operand], types: Types, definitions: Mapping[str, sg.Stmt]) -> float:
    of = [types.largest[a] if isinstance(a, str) else 0.0 if math.isinf(a) else abs(a) for a in args]
    if op == "exp":
        return 1.0 if _is_below_max(args[0], types, definitions) else math.inf
    return image(op, [Interval(-x, x, whole=False) for x in of]).largest


def _is_below_max(arg: sg.Operand, types: Types, definitions: Mapping[str, sg.Stmt]) -> bool:
    """Whether arg is a + -1*m with m a maximum over a."""
    s = definitions.get(arg) if isinstance(arg, str) else None
    if not (isinstance(s, sg.Pointwise) and s.op == "add"):
        return False
    for a, b in (s.args, s.args[::-1]):
        shift = _negated(b, definitions)
        if isinstance(a, str) and shift is not None and types._max_of.get(shift) == a:
            return True
    return False


def _negated(operand: sg.Operand, definitions: Mapping[str, sg.Stmt]) -> str | None:
    """m, when the operand is -m."""
    s = definitions.get(operand) if isinstance(operand, str) else None
    match s:
        case sg.Pointwise(_, "neg", (str() as m,)):
            return m
        case sg.Pointwise(_, "mul", (str() as m, -1.0)) | sg.Pointwise(_, "mul", (-1.0, str() as m)):
            return m
        case _:
            return None
