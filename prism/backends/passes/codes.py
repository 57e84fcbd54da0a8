"""Codes that lie in the bits of an integer are taken out by integer operations.

    f = float(i);  high = floor(f * 2**-k);  low = f + -2**k * high          # before
    high = float(i >> k);  low = float(i & (2**k - 1))                       # after

Over the numbers, a shift is a division that is rounded down, and the bits below are what it leaves. That is how
programs write both, and what proofs need. A GPU rounds down on few units, far slower than it shifts. Both are exact,
and the same for negative integers in two's complement. Only tensors of 8 bits are looked at: float32 holds their
elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from prism.backends.tile import Cast, Load, Pointwise, Stmt, TileProgram
from prism.backends.tile_rewrite import clean, names_beside
from prism.ir.kit import rewrite, statements
from prism.program.nodes import DType

MOST = 8
"""Bits of an element."""


def coded(program: TileProgram) -> TileProgram:
    """The program, as it was lowered, with shifts and masks in the places of divisions that are rounded down."""
    short = {t.name for t in program.tensors if t.dtype in (DType.INT8, DType.UINT8)}
    found = _Codes(short)
    for s in statements(program.body):
        found.see(s)
    if not found.high:
        return program
    return replace(program, body=clean(found.written(program)))


@dataclass(slots=True)
class _Codes:
    """What values are, by name."""

    short: set[str]  # the tensors with elements of 8 bits
    whole: set[str] = field(default_factory=set)  # loaded integers
    same: dict[str, str] = field(default_factory=dict)  # floats that are an integer, which
    # Floats that are an integer divided by a power of 2: which, and of which.
    scaled: dict[str, tuple[str, int]] = field(default_factory=dict)
    high: dict[str, tuple[str, int]] = field(default_factory=dict)  # the same, rounded down
    taken: dict[str, tuple[str, int]] = field(default_factory=dict)  # such a value times that power and -1
    low: dict[str, tuple[str, int]] = field(default_factory=dict)  # the integer less that

    def see(self, s: Stmt) -> None:
        """Note what a statement makes, operands before results."""
        match s:
            case Load(dst=dst, tensor=tensor, dtype=DType.INT32) if tensor in self.short:
                self.whole.add(dst)
            case Cast(dst, src, DType.FLOAT32) if src in self.whole:
                self.same[dst] = src
            case Pointwise(dst, "mul", (str() as x, float() as c)) | Pointwise(dst, "mul", (float() as c, str() as x)):
                bits = _power(c)
                if x in self.same and bits is not None and -MOST <= bits < 0 < c:
                    self.scaled[dst] = self.same[x], -bits
                elif x in self.high and bits == self.high[x][1] and c < 0:
                    self.taken[dst] = self.high[x]
            case Pointwise(dst, "floor", (str() as x,)) if x in self.scaled:
                self.high[dst] = self.scaled[x]
            case Pointwise(dst, "add", (str() as x, str() as y)):
                for one, other in ((x, y), (y, x)):
                    if one in self.same and other in self.taken and self.taken[other][0] == self.same[one]:
                        self.low[dst] = self.taken[other]

    def written(self, program: TileProgram) -> tuple[Stmt, ...]:
        """The body anew; what is not needed any more is still there."""
        names = names_beside(program)

        def integral(s: Stmt) -> Stmt | Sequence[Stmt]:
            if isinstance(s, Pointwise) and s.dst in self.high:
                whole, bits = self.high[s.dst]
                return _through(s, names.fresh("upper"), "shift", whole, bits)
            if isinstance(s, Pointwise) and s.dst in self.low:
                whole, bits = self.low[s.dst]
                return _through(s, names.fresh("lower"), "bits", whole, (1 << bits) - 1)
            return s

        return rewrite(program.body, integral)


def _through(s: Pointwise, name: str, op: str, whole: str, number: int) -> list[Stmt]:
    return [Pointwise(name, op, (whole, number), s.dims, DType.INT32), Cast(s.dst, name, DType.FLOAT32)]


def _power(c: float) -> int | None:
    """The n of 2**n = |c|, if there is one."""
    mantissa, exponent = math.frexp(abs(c))
    return exponent - 1 if mantissa == 0.5 else None
