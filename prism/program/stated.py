"""A set of numbers that a tensor's elements are stated to lie in: what it holds, and what follows of signs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

Fact: TypeAlias = "str | tuple[str, float]"
"""The name of a relation, or of a bound with the number."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """A set of finite numbers that an input's elements lie in."""

    low: float = -math.inf  # none is below
    high: float = math.inf  # none is above
    above: bool = False  # whether none is `low` itself
    below: bool = False  # whether none is `high` itself
    nonzero: bool = False  # whether none is 0
    truth: bool = False  # whether each is 0 or 1

    def holds(self, values: np.ndarray) -> np.ndarray:
        """Element by element, whether it is in the set."""
        x = np.asarray(values, dtype=np.float64)
        inside = np.isfinite(x) & ((x > self.low) if self.above else (x >= self.low))
        inside &= (x < self.high) if self.below else (x <= self.high)
        inside &= (x != 0) | (not self.nonzero)
        return np.asarray(inside & ((x == 0) | (x == 1) | (not self.truth)))

    def test(self, name: str) -> str:
        """Python for whether the elements of an array of that name are in the set."""
        if self.truth:
            return f"({name} == 0) | ({name} == 1)"
        low, high = (repr(e) if math.isfinite(e) else f'float("{e}")' for e in (self.low, self.high))
        above = self.above or math.isinf(self.low)
        below = self.below or math.isinf(self.high)
        ends = f"({name} {'>' if above else '>='} {low}) & ({name} {'<' if below else '<='} {high})"
        return f"{ends} & ({name} != 0)" if self.nonzero else ends

    def both(self, other: Assumption) -> Assumption:
        """What is in both sets."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        above = any(a.above and a.low == low for a in (self, other))
        below = any(a.below and a.high == high for a in (self, other))
        nonzero = self.nonzero or other.nonzero
        return Assumption(low, high, above, below, nonzero, self.truth or other.truth).plain()

    def plain(self) -> Assumption:
        """The set in one way: an end that is left out is open, a set of one number is a range."""
        if self.truth:
            kept = [x for x in (0.0, 1.0) if bool(self.holds(np.array(x)))]
            return Assumption(truth=True) if len(kept) == 2 else self._only(kept)
        above = self.above or (self.nonzero and self.low == 0)
        below = self.below or (self.nonzero and self.high == 0)
        return replace(self, above=above, below=below, nonzero=self.nonzero and self.low < 0 < self.high)

    @staticmethod
    def _only(kept: Sequence[float]) -> Assumption:
        return Assumption(kept[0], kept[0]) if kept else Assumption(math.inf, -math.inf)

    def whole(self) -> Assumption:
        """The whole numbers of the set, between ends that are among them."""
        low = math.floor(self.low) + 1 if self.above else self.low if math.isinf(self.low) else math.ceil(self.low)
        high = math.ceil(self.high) - 1 if self.below else self.high if math.isinf(self.high) else math.floor(self.high)
        return replace(self, low=float(low), high=float(high), above=False, below=False)

    @property
    def empty(self) -> bool:
        """Whether there is no such number."""
        none = self.low == math.inf or self.high == -math.inf or self.low > self.high
        return none or (self.low == self.high and (self.above or self.below))

    @property
    def positive(self) -> bool:
        """Whether all of them are above 0."""
        return not self.truth and (self.low > 0 or (self.low == 0 and self.above))

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What all of them are, of the relations that rules ask for, and their bounds; each is finite besides."""
        nonneg = self.truth or self.low >= 0
        nonzero = self.nonzero or self.positive or self.high < 0 or (self.high == 0 and self.below)
        held = {"boolean": self.truth, "positive": self.positive, "nonneg": nonneg, "nonzero": nonzero}
        ends = (("lower", self.low), ("upper", self.high))
        return (*(name for name, so in held.items() if so), *(e for e in ends if math.isfinite(e[1])))

    def nearest(self, values: np.ndarray, whole: bool = False) -> np.ndarray:
        """Numbers of the set, for draws of any numbers: those that are in it stay; the others are folded into it."""
        x = np.asarray(values, dtype=np.float64)
        if self.truth:
            return np.where(x > 0, 1.0, 0.0)
        folded = np.where(np.isfinite(x), x, 0.0)
        if math.isfinite(self.low) and math.isfinite(self.high):
            folded = self.low + (self.high - self.low) * np.modf(np.abs(folded))[0]
        elif math.isfinite(self.low):
            folded = self.low + np.abs(folded - self.low)
        elif math.isfinite(self.high):
            folded = self.high - np.abs(self.high - folded)
        folded = np.floor(folded) if whole else folded
        folded = np.where(self.holds(x), x, folded)
        return np.where(self.holds(folded), folded, self.member)

    @property
    def member(self) -> float:
        """One of them, far from ends and from 0 where it can be."""
        if self.truth:
            return 1.0
        low, high = max(self.low, -3.4e38), min(self.high, 3.4e38)
        near = (1.0, -1.0, self.low + 1.0, self.high - 1.0, low / 2 + high / 2, self.low, self.high)
        return next(x for x in near if math.isfinite(x) and bool(self.holds(np.array(x))))

    @property
    def stretch(self) -> tuple[float, float]:
        """Two ends that all numbers between, and they themselves, are of the set; of a mask, 0 and 1."""
        if self.truth:
            return 0.0, 1.0
        low, high = self.low, self.high
        if self.nonzero:
            low, high = (0.0, high) if high >= -low else (low, 0.0)
        if math.isinf(low):
            low = high - 2.0 if math.isfinite(high) else -1.0
        width = min(high - low, 2.0)
        return low + width / 4, low + 3 * width / 4

    def __str__(self) -> str:
        if self.truth:
            return "in {0, 1}"
        if math.isfinite(self.low) and math.isfinite(self.high):
            ends = "(" if self.above else "[", ")" if self.below else "]"
            said = [f"in {ends[0]}{shortest(self.low)}, {shortest(self.high)}{ends[1]}"]
        else:
            said = [f"{'>' if self.above else '>='} {shortest(self.low)}"] * math.isfinite(self.low)
            said += [f"{'<' if self.below else '<='} {shortest(self.high)}"] * math.isfinite(self.high)
        return " and ".join([*said, *(["!= 0"] * self.nonzero)]) or "finite"


def shortest(x: float) -> str:
    """The number in as few digits as tell it from all others."""
    text = f"{x:g}"
    if float(text) == x or x != x:
        return text
    return str(int(x)) if x.is_integer() and abs(x) < 1e16 else repr(x)


POSITIVE = Assumption(low=0.0, above=True)
"""What every set of positive numbers is part of."""


__all__ = ["POSITIVE", "Assumption", "Fact", "shortest"]
