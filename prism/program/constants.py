"""What constants are read as before two programs are compared: a number rounded to float32 is the number it was.

An exporter writes 1/sqrt(128) as 0.08838834613561630 and 1e-6 as 9.999999974752427e-07, the nearest float32. Whoever
compares that with a program that computes 1/sqrt(128) wants to know whether the two are one function up to this
rounding. So such a constant may be read as what it was rounded from: as a decimal of few digits, a simple fraction, or
a root of one, where exactly that constant is its nearest float32. What it is read as depends on it alone, and every
reading is said with the verdict: it is an assumption. Nothing else about a constant is approximate here; numbers that
differ by more than the rounding of float64 stay different numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from prism.program.formulas import softplus
from prism.program.nodes import Const, DType, Expr, Map, walk
from prism.program.transform import rebuilt, replaced

# Digits of a decimal that a float32 is taken for.
DIGITS = 6
# Digits of a number that stands for itself, whatever its precision.
SHORT = 11

# Two constants nearer than this are one number that was rounded to float64 in two ways.
ULPS = 4 * 2.0**-52
# Two others nearer than this are not told apart by the prover, which keeps 40 bits.
NEAR = 2.0**-37


@dataclass(frozen=True, slots=True)
class Reading:
    """Expressions with their constants as they are read."""

    left: tuple[Expr, ...]  # of one program
    right: tuple[Expr, ...]  # of the other
    assumed: tuple[str, ...] = ()  # what was assumed, a clause a constant
    unclear: str = ""  # a pair of constants that are too near each other to be told apart, as text, or empty
    weights: tuple[str, ...] = ()  # what of the weights of one was read as what of the other's, a clause each


def readings(left: Sequence[Expr], right: Sequence[Expr]) -> Reading:
    """Both programs with their constants read alike; unchanged where both have the same float32 constants.

    Likewise softplus, of which torch has x itself beyond a threshold: unchanged where both have the same ones.
    """
    left, right, straight = _without_thresholds(left, right)
    ours, theirs = _constants(left), _constants(right)
    rounded = [{c: r for c in side if (r := rounded_from(c)) is not None} for side in (ours, theirs)]
    names: dict[float, float] = {}
    assumed: list[str] = list(straight)
    if rounded[0].keys() != rounded[1].keys() or {r for r, _ in rounded[0].values()} & (ours | theirs):
        for c, (number, text) in sorted({**rounded[0], **rounded[1]}.items()):
            names[c] = number
            assumed.append(f"{c!r} read as {text}, of which it is the nearest float32")
    unclear = ""
    every = sorted({names.get(c, c) for c in ours | theirs})
    for a, b in itertools.pairwise(every):
        apart = (b - a) / max(abs(a), abs(b))
        if apart <= ULPS:
            keep, drop = sorted((a, b), key=lambda c: (len(repr(c)), c))
            for c in [drop, *(k for k, v in names.items() if v == drop)]:
                names[c] = keep
            assumed.append(f"{a!r} and {b!r} read as one number, rounded to float64")
        elif apart < NEAR:
            unclear = unclear or f"{a!r} and {b!r}"
    if not names:
        return Reading(tuple(left), tuple(right), tuple(assumed), unclear)
    return Reading(renumbered(left, names), renumbered(right, names), tuple(assumed), unclear)


def _without_thresholds(
    left: Sequence[Expr], right: Sequence[Expr]
) -> tuple[Sequence[Expr], Sequence[Expr], tuple[str, ...]]:
    """Both with log(1 + exp x) for softplus, where not both have the same thresholds, and what that assumes."""
    ours, theirs = (
        {e: t for x in side for e in walk(x) if isinstance(e, Map) and (t := _threshold(e)) is not None}
        for side in (left, right)
    )
    if ours.keys() == theirs.keys():
        return left, right, ()

    def soft(e: Expr) -> Expr:
        return e.children[2] if isinstance(e, Map) and _threshold(e) is not None else e

    said = [f"softplus(x) read as log(1 + exp(x)) where x > {t:g}, too, where it is less than {math.exp(-t):.0e} more"
            for t in sorted({*ours.values(), *theirs.values()})]  # fmt: skip
    return rebuilt(left, soft), rebuilt(right, soft), tuple(said)


def _threshold(e: Map) -> float | None:
    """Beyond what a softplus is its argument, where float32 rounds it to that; None of what is none."""
    match e:
        case Map("where", (Map("lt", (Const(t), z)), x, soft)) if t > 1 and math.exp(-t) <= DType.FLOAT32.roundoff * t:
            beta = z.args[0] if isinstance(z, Map) and z.op == "mul" and z != x else Const(1.0)
            return t if isinstance(beta, Const) and softplus(x, beta.value, math.inf) == soft else None
    return None


def rounded_from(c: float) -> tuple[float, str] | None:
    """What a constant was before it was rounded to float32, as float64 and as text; None where it stands for itself."""
    if not _is_float32(c) or digits(c) <= SHORT or c == 0:
        return None
    decimal = str(np.float32(c))
    if digits(float(decimal)) <= DIGITS:
        return float(decimal), decimal
    sign, size = math.copysign(1.0, c), abs(c)
    for found, root in ((_simplest(size), False), (_simplest(size * size), True)):
        if found is not None:
            exact = math.sqrt(found) if root else float(found)
            if float(np.float32(exact)) == size and exact != size:
                text = f"sqrt({found})" if root else str(found)
                return sign * exact, text if sign > 0 else f"-{text}"
    return None


def rounded_constants(left: Sequence[Expr], right: Sequence[Expr]) -> tuple[float, ...]:
    """Constants that one side alone has and that are, or are one over, what may have been rounded to float32."""
    found = _constants(left) ^ _constants(right)
    return tuple(sorted(c for c in found if c and digits(c) > SHORT and (_like_float32(c) or _like_float32(1 / c))))


def _like_float32(c: float) -> bool:
    near = float(np.float32(c)) if 1e-37 < abs(c) < 1e38 else 0.0
    return abs(near - c) <= ULPS * abs(c)


def _constants(exprs: Iterable[Expr]) -> set[float]:
    found = {e.value for expr in exprs for e in walk(expr) if isinstance(e, Const)}
    return {c for c in found if math.isfinite(c)}


def _is_float32(c: float) -> bool:
    return 1e-37 < abs(c) < 1e38 and float(np.float32(c)) == c


def digits(c: float) -> int:
    """Significant digits of the shortest decimal that rounds to it."""
    return len(repr(abs(c)).split("e")[0].replace(".", "").strip("0"))


def _simplest(c: float) -> Fraction | None:
    """The simplest fraction near a float32, when it is simple."""
    if not 1e-12 < c < 1e12:
        return None
    exact = Fraction(c)
    return simplest_near(exact, Fraction(1, 1 << 22), SINGLE)


@dataclass(frozen=True, slots=True)
class Simple:
    """What a rounded number is taken for: numerator times denominator, at most."""

    common: int  # of any fraction
    whole: int  # of whole numbers, and of one over these


SINGLE = Simple(1 << 12, 1 << 20)
DOUBLE = Simple(1 << 20, 1 << 34)


def simplest_near(x: Fraction, slack: Fraction, most: Simple) -> Fraction | None:
    """The simplest fraction within so much of a positive number, relative to it; None where that is not simple."""
    found = simplest_between(x * (1 - slack), x * (1 + slack))
    limit = most.whole if 1 in (found.numerator, found.denominator) else most.common
    return found if found.numerator * found.denominator <= limit else None


def simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of least denominator in [low, high], 0 < low (Stern and Brocot)."""
    whole = low.numerator // low.denominator
    if low == whole:
        return Fraction(whole)
    if high >= whole + 1:
        return Fraction(whole + 1)
    return whole + 1 / simplest_between(1 / (high - whole), 1 / (low - whole))


def renumbered(exprs: Sequence[Expr], names: Mapping[float, float]) -> tuple[Expr, ...]:
    """The expressions with other numbers for some."""
    return tuple(replaced(exprs, lambda e: Const(names[e.value]) if isinstance(e, Const) and e.value in names else e))
