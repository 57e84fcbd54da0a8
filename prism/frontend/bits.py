"""Operations on the bits of whole numbers, under both readers: what they are over the numbers.

A number of a signed type has the bits of its complement of two. What two numbers have in common is an operation of
programs, `bitand`; with a number that is known it is a sum of remainders, which rules and kernels know more of.
"""

from __future__ import annotations

from prism.program.fold import op, sub
from prism.program.integers import Interval, range_of
from prism.program.nodes import Const, DType, Expr

EXACT = 2.0**51
"""Numbers beyond which sums of two are not exact."""


def bitwise(name: str, x: Expr, y: Expr) -> Expr:
    """`and`, `or` or `xor` of two whole numbers of one type; either may be a number."""
    if isinstance(x, Const):
        x, y = y, x
    both = _masked(x, int(y.value)) if isinstance(y, Const) and not isinstance(x, Const) else op("bitand", x, y)
    match name:
        case "and":
            return both
        case "or":
            return sub(op("add", x, y), both)
        case "xor":
            return sub(op("add", x, y), op("mul", Const(2.0), both))
    raise ValueError(f"{name} is no bitwise operation of two numbers")


def within(name: str, x: Interval, y: Interval, dtype: DType) -> Interval:
    """Bounds of that, given those of the operands."""
    tops = [i.high for i in (x, y) if i.low >= 0]
    if name == "and" and tops:
        return Interval(0.0, min(tops), whole=True)
    if len(tops) == 2:
        return Interval(0.0, 2.0 ** int(max(tops)).bit_length() - 1, whole=True)
    return range_of(dtype)


def inverted(x: Expr, dtype: DType) -> Expr:
    """The bits that a whole number has not."""
    return sub(Const(range_of(dtype).high if dtype is DType.UINT8 else -1.0), x)


def shifted(x: Expr, by: Expr, over: Interval, dtype: DType, *, right: bool) -> Expr:
    """x * 2^by, of which the type keeps what it has room for, or x / 2^by, rounded down: the sign is shifted in.

    Args:
        x: whole numbers of the type.
        by: how far.
        over: its bounds. What is shifted by less than nothing, or by more than there is, is all shifted out.
        dtype: the type.
        right: whether it is divided.
    """
    bits = 8 * dtype.bytes
    some = over.whole and over.low >= 0 and over.high < bits
    legal = by if some else op("minimum", op("maximum", by, Const(0.0)), Const(bits - 1.0))
    inside = Const(1.0) if some else op("and", op("le", Const(0.0), by), op("lt", by, Const(float(bits))))
    if right:
        moved = op("floor", op("mul", x, op("pow", Const(0.5), legal)))
        gone = op("floor", op("mul", x, Const(0.5 ** (bits - 1)))) if range_of(dtype).low < 0 else Const(0.0)
        return op("where", inside, moved, gone)
    if shifted_within(isinstance(by, Const), dtype, right=False) is None:
        return op("where", inside, op("mul", x, op("pow", Const(2.0), legal)), Const(0.0))
    # What has no room is taken out first: the product is exact.
    room = op("pow", Const(2.0), sub(Const(float(bits)), legal))
    kept = sub(x, op("mul", room, op("floor", op("mul", x, op("pow", Const(0.5), sub(Const(float(bits)), legal))))))
    moved = op("mul", kept, op("pow", Const(2.0), legal))
    return op("where", inside, moved, Const(0.0))


def shifted_within(known: bool, dtype: DType, *, right: bool) -> Interval | None:
    """Bounds of that, where more is known of them than the formula says.

    Args:
        known: whether it is a number by which it is shifted.
        dtype: the type.
        right: whether it is shifted to the right.
    """
    bits = 8 * dtype.bytes
    return None if right or known or bits == 64 else Interval(0.0, 2.0**bits - 1, whole=True)


def _low_bits(x: Expr, mask: int) -> Expr:
    """x & (2^b - 1) = x modulo 2^b, of negative numbers too: they are stored as complements."""
    modulus = float(mask + 1)
    return sub(x, op("mul", Const(modulus), op("floor", op("mul", x, Const(1 / modulus)))))


def _masked(x: Expr, mask: int) -> Expr:
    """The bits of x that a mask has: of each run of ones, what is below its end without what is below its start."""
    if mask < 0:
        return sub(x, _masked(x, ~mask))
    value: Expr = Const(0.0)
    while mask:
        start = mask & -mask
        end = mask + start & -(mask + start)
        value = op(
            "add", value, _low_bits(x, end - 1) if start == 1 else sub(_low_bits(x, end - 1), _low_bits(x, start - 1))
        )
        mask &= -end
    return value
