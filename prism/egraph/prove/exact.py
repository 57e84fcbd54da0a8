"""Constants as exact numbers, and exact numbers as expressions.

A float64 constant is read as the simplest number within its rounding: a decimal of few digits, a simple fraction, the
root of one; else as the binary fraction that it is. What it is read as depends on it alone, and coefficients are
fractions from there on, so that no two numbers are ever taken for one because they are near each other.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from prism.program.build import const, mul, recip
from prism.program.constants import DOUBLE, SINGLE, ULPS, digits, simplest_near
from prism.program.integers import EXACT
from prism.program.nodes import Const, Expr, Map

# Digits of a decimal that a constant is read as.
_DIGITS = 12
_CHUNK = 50
# Integers are divided by all numbers up to this; what is left counts as one factor.
_TRIAL = 1000
# Powers of numbers beyond this are not worked out.
_LARGEST = 1 << 10


@lru_cache(maxsize=4096)
def exact(c: float) -> tuple[Fraction, Fraction]:
    """(a, b): the constant is read as a*sqrt(b), where b is 1 or a simple fraction."""
    if c.is_integer() and abs(c) <= EXACT:
        return Fraction(int(c)), Fraction(1)
    if digits(c) <= _DIGITS:
        return Fraction(repr(c)), Fraction(1)
    decimal = f"{c:.{_DIGITS - 1}e}"
    if abs(float(decimal) - c) <= ULPS * abs(c):
        return Fraction(decimal), Fraction(1)
    near = _simplest(Fraction(abs(c)))
    sign = 1 if c > 0 else -1
    if near is not None:
        return sign * near, Fraction(1)
    square = _simplest(Fraction(c) ** 2)
    if square is not None:
        return Fraction(sign), square
    return Fraction(c), Fraction(1)


def _simplest(x: Fraction) -> Fraction | None:
    if not Fraction(1, 10**12) < x < 10**12:
        return None
    return simplest_near(x, Fraction(ULPS), DOUBLE)


def number(x: Fraction) -> Expr:
    """The number as an expression that `exact` reads back."""
    c = _float(x)
    if c is not None and exact(c) == (x, Fraction(1)):
        return Const(c)
    return mul(_integer(x.numerator), recip(_integer(x.denominator)))


def _float(x: Fraction) -> float | None:
    try:
        c = float(x)
    except OverflowError:
        return None
    return c if 1e-290 < abs(c) < 1e290 or x == 0 else None


def _integer(n: int) -> Expr:
    if abs(n) <= EXACT:
        return const(n)
    high, low = divmod(abs(n), 1 << _CHUNK)
    total = Map("add", (mul(const(1 << _CHUNK), _integer(high)), const(low)))
    return total if n > 0 else Map("neg", (total,))


@lru_cache(maxsize=4096)
def logarithm(c: float) -> Fraction | None:
    """The simple positive number of which a constant is the natural logarithm, rounded to float64; None of others."""
    if digits(c) <= _DIGITS or not 1e-3 < abs(c) < 20:
        return None
    found = simplest_near(Fraction(math.exp(c)), Fraction(ULPS) * 2 * max(1, int(abs(c))), SINGLE)
    if found is None or abs(math.log(found) - c) > ULPS * abs(c):
        return None
    return found


def power(x: Fraction, q: Fraction) -> tuple[Fraction, tuple[tuple[int, Fraction], ...]] | None:
    """(a, primes): x^q of a positive number is a times these primes raised to what is less than 1.

    None where one is too large.
    """
    top, below = factors(x.numerator), factors(x.denominator)
    outside = Fraction(1)
    inside: list[tuple[int, Fraction]] = []
    for p in sorted(top.keys() | below.keys()):
        whole, rest = divmod((top.get(p, 0) - below.get(p, 0)) * q, 1)
        if abs(whole) > _LARGEST:
            return None
        outside *= Fraction(p) ** whole
        if rest:
            inside.append((p, rest))
    return (outside, tuple(inside)) if all(p <= EXACT for p, _ in inside) else None


def factors(n: int) -> dict[int, int]:
    """Small prime factors of a positive integer with their powers; what is left counts as one, or as its square."""
    found: dict[int, int] = {}
    p = 2
    while p <= _TRIAL and p * p <= n:
        while n % p == 0:
            found[p] = found.get(p, 0) + 1
            n //= p
        p += 1 if p == 2 else 2
    if n > 1:
        root = math.isqrt(n)
        if root * root == n:
            found[root] = found.get(root, 0) + 2
        else:
            found[n] = found.get(n, 0) + 1
    return found
