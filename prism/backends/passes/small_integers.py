"""Integers of a known, narrow range become floats by writing bits, without a conversion.

    x = float(v)                                     lo <= v <= hi; m the bits of the type's fraction; hi - lo < 2**m
    x = float_of_bits(bits(2**m) + (v - lo)) - (2**m - lo)

From 2**m up to 2**(m + 1) a float's unit in the last place is 1: a number's bits there are those of 2**m plus what it
is more. It is exact, and so is the difference, which is at most 2**m. A GPU converts integers on few units, and adds,
masks and subtracts on many.

This pass finds the ranges: of tensors of 8 bits, and of what shifts and masks leave of them (codes.py). `Cast.among`
says them to backends; what they make of it is theirs. A conversion of a conversion, which operands of matrix products
need, is one where the last type has room. Where it has not (a byte in bfloat16, whose fraction has 7 bits), float32
has, and what follows rounds nothing. Signed bytes that go to bfloat16 as they are loaded are converted at once: Triton,
which writes bits there itself, needs fewer instructions than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from prism.backends.tile import Cast, Load, Pointwise, Stmt, TileProgram
from prism.backends.tile_rewrite import clean, names_beside
from prism.ir.kit import rewrite, statements
from prism.program.nodes import DType

Among = tuple[int, int]
"""The least and the greatest integer that a value may be."""

STORED: Mapping[DType, Among] = MappingProxyType({DType.UINT8: (0, 255), DType.INT8: (-128, 127)})
"""What elements of tensors may be, where that is narrow."""


@dataclass(frozen=True, slots=True)
class Bits:
    """How integers are written into the bits of a float."""

    base: int  # the bits to which `value - least` is added; where `least` is 0 they have none in common, so `or` does
    least: int  # the least integer, 0 where none is negative
    offset: int  # what is subtracted from the float that has those bits


def written(dtype: DType, among: Among) -> Bits | None:
    """How integers of a range are written into a type's bits; None where its fraction is too short.

    The type has a sign, an exponent with a bias of half its range, and a fraction; `among` are the least and the
    greatest.
    """
    fraction = (1 / dtype.roundoff).as_integer_ratio()[0].bit_length() - 2
    least = min(among[0], 0)
    if among[1] - least >= 1 << fraction:
        return None
    bias = (1 << (8 * dtype.bytes - fraction - 2)) - 1
    return Bits((fraction + bias) << fraction, least, (1 << fraction) - least)


def ranged(program: TileProgram) -> TileProgram:
    """The program, its codes taken out, with the ranges of integers narrow enough for the floats that they become."""
    stored = {t.name: STORED[t.dtype] for t in program.tensors if t.dtype in STORED}
    if not stored:
        return program
    among: dict[str, Among] = {}
    signed: set[str] = set()
    whole: dict[str, str] = {}  # floats that are an integer: which
    for s in statements(program.body):
        match s:
            case Load(dst=dst, tensor=tensor, dtype=DType.INT32) if tensor in stored:
                among[dst] = stored[tensor]
                signed |= {dst} if stored[tensor][0] < 0 else set()
            case Pointwise(dst, "shift", (str() as x, int() as n)) if x in among:
                among[dst] = among[x][0] >> n, among[x][1] >> n
            case Pointwise(dst, "bits", (str() as x, int() as mask)) if x in among:
                among[dst] = 0, mask
            case Cast(dst, src, DType.FLOAT32) if src in among:
                whole[dst] = src

    names = names_beside(program)

    def converted(s: Stmt) -> Stmt | Sequence[Stmt]:
        if not isinstance(s, Cast) or not s.dtype.is_float:
            return s
        src = whole.get(s.src, s.src)
        if src not in among:
            return s
        if written(s.dtype, among[src]) is not None:
            return Cast(s.dst, src, s.dtype, among[src])
        if src in signed:
            return Cast(s.dst, src, s.dtype)
        wide = names.fresh(f"{src}_f32")
        return [Cast(wide, src, DType.FLOAT32, among[src]), Cast(s.dst, wide, s.dtype)]

    return replace(program, body=clean(rewrite(program.body, converted)))
