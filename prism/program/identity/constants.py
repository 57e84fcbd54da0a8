"""What the constants of formulas are in a finite field: the simple number that a rounded one stands for.

Constants are folded in float64, so 1/768 comes as 0.0013020833333333333 and 1/sqrt(128) as 0.08838834764831845.
Constants that agree up to such rounding are one number here, and it is

    a fraction             that is simple and near enough, or the constant as it is written, when that is short
    a root of a fraction   likewise, of the square
    a product              of powers of other constants and a simple fraction: 0.79788 * 0.044715
    itself                 otherwise: any number will do, as long as it is the same one everywhere
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from prism.program.constants import DOUBLE, SHORT, digits, simplest_near

CLOSE = 1e-13
"""Relative distance within which two constants are one: some hundred roundings to float64."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """coefficient * sqrt(under_root), positive or negative; `guessed` where a number had to stand for itself."""

    coefficient: Fraction
    under_root: Fraction = Fraction(1)
    guessed: bool = False

    def residue(self, p: int) -> int | None:
        """Modulo a prime that is 3 modulo 4; None where it has none."""
        inside = _residue(self.under_root, p)
        front = _residue(self.coefficient, p)
        if inside is None or front is None:
            return None
        root = pow(inside, (p + 1) // 4, p)
        return front * root % p if root * root % p == inside else None


def meanings(reference: Iterable[float], candidate: Iterable[float]) -> Mapping[float, Meaning]:
    """What each constant is; those of the reference are understood first, and those of the candidate by them."""
    known: dict[float, Meaning] = {}
    given: list[tuple[float, Meaning]] = []
    for n, constants in enumerate((reference, candidate)):
        for c in sorted(set(constants)):
            if c in known or not math.isfinite(c):
                continue
            twin = next((k for k in known if abs(k - c) <= CLOSE * max(abs(k), abs(c))), None)
            meaning = known[twin] if twin is not None else _plain(c) or _composed(c, given)
            known[c] = meaning or Meaning(Fraction(c), guessed=True)
            if n == 0 and known[c].under_root == 1 and _size(known[c].coefficient) > DOUBLE.common:
                given.append((c, known[c]))
    return known


def _plain(c: float) -> Meaning | None:
    written = Fraction(repr(c))
    if digits(c) <= SHORT:
        return Meaning(written)
    near = _simplest(c)
    if near is not None:
        return Meaning(near)
    square = _simplest(c * c)
    if square is not None:
        return Meaning(Fraction(1 if c > 0 else -1), square)
    return None


def _composed(c: float, others: Sequence[tuple[float, Meaning]]) -> Meaning | None:
    """The constant as a fraction times another to a small power, or times a product or quotient of two."""
    for a, x in others:
        for power in (1, 2, -1, -2, 3):
            found = _times(c, [(a, x, power)])
            if found is not None:
                return found
        for b, y in others:
            for one, two in ((1, 1), (1, -1)):
                found = _times(c, [(a, x, one), (b, y, two)])
                if found is not None:
                    return found
    return None


def _times(c: float, powers: Sequence[tuple[float, Meaning, int]]) -> Meaning | None:
    rest, whole, guessed = c, Fraction(1), False
    for value, meaning, power in powers:
        rest /= value**power
        whole *= meaning.coefficient**power
        guessed = guessed or meaning.guessed or len(powers) > 1
    left = _simplest(rest)
    return None if left is None else Meaning(left * whole, guessed=guessed)


def _simplest(c: float) -> Fraction | None:
    """The fraction of least denominator within the tolerance, when it is simple: few constants are so by chance."""
    if c == 0 or not 1e-12 < abs(c) < 1e12:
        return None
    exact = abs(Fraction(c))
    found = simplest_near(exact, Fraction(CLOSE), DOUBLE)
    return found if found is None or c > 0 else -found


def _size(x: Fraction) -> int:
    return abs(x.numerator) * x.denominator


def _residue(x: Fraction, p: int) -> int | None:
    return None if x.denominator % p == 0 else x.numerator * pow(x.denominator, -1, p) % p
