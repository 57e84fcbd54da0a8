"""Polynomials: sums of terms (products.py) with exact coefficients, their products, sums over axes and powers.

Every step is an equality over the reals with its side condition (sign_analysis.py); where one is not known, the step is
not taken, or there is no normal form. Roots of numbers are powers of primes, and so are compared exactly, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from prism.egraph.prove.exact import power as power_of
from prism.egraph.prove.products import (
    HALF,
    ONE,
    Poly,
    Term,
    chosen_value,
    is_choice,
    is_sum,
    named,
    ordered,
    turned,
    written,
)
from prism.program.build import add, const, neg, size
from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, free_axes
from prism.program.ops import BOOLEAN
from prism.program.refinement import simplified
from prism.program.sign_analysis import Facts
from prism.program.transform import canonical, least_instance, substitute

# A polynomial, and the sums around one of its terms, may grow this far.
MAX_TERMS = 600
MAX_BOUND = 16
# Terms that one normal form may take, those of polynomials on the way included.
MAX_STEPS = 100_000
# How often a numerator's own denominators are cleared.
_NESTED = 4
# Powers of exp(max(x, 0)) that are taken apart.
_POWERS = 4

_ZERO = Fraction(0)
UNIT = Fraction(1)


class Unfit(Exception):
    """An expression has no normal form here."""


@dataclass(slots=True)
class Algebra:
    """Arithmetic of polynomials; `poly` says what expression is which."""

    done: dict[Expr, Poly] = field(default_factory=dict)  # polynomials
    # Bases of powers that are known to be more than 0, whatever their text shows.
    above: set[Expr] = field(default_factory=set)
    # Bases, finite ones, that are taken not to be 0 wherever anything is asked: neither side has a value where one is.
    nonzero: frozenset[Expr] = frozenset()
    facts: Facts = field(default_factory=Facts)  # what is known of expressions
    steps: int = 0  # terms that were made so far

    def poly(self, e: Expr) -> Poly:
        """The expression as a polynomial. Raises Unfit: it is none."""
        raise Unfit

    def within(self, e: Expr) -> Expr:
        """The normal form as an expression; constants as they are."""
        return e if isinstance(e, Const) else self.expr(self.poly(e))

    def atom(self, base: Expr, power: Fraction = UNIT) -> Poly:
        """One factor."""
        return {Term((), ((base, power),)): UNIT}

    def sum(self, polys: Iterable[Poly]) -> Poly:
        """The sum; terms that cancel have to be finite."""
        total: Poly = {}
        for p in polys:
            for t, c in p.items():
                total[t] = total.get(t, _ZERO) + c
        if len(total) > MAX_TERMS:
            raise Unfit
        kept: Poly = {}
        for t, c in total.items():
            if c:
                kept[t] = c
            elif not self._finite(t):
                raise Unfit
        return self._gathered(kept)

    def scaled(self, p: Poly, factor: Fraction | int) -> Poly:
        """factor * p."""
        if factor == 0:
            return self.sum([p, {t: -c for t, c in p.items()}])
        return {t: c * factor for t, c in p.items()}

    def times(self, p: Poly, q: Poly) -> Poly:
        """The product, multiplied out."""
        if not p or not q:
            self.scaled(p or q, 0)
            return {}
        if len(p) * len(q) > MAX_TERMS:
            raise Unfit
        pairs = itertools.product(p.items(), q.items())
        return self.sum([self.scaled(self._product(s, t), c * d) for (s, c), (t, d) in pairs])

    def _product(self, s: Term, t: Term) -> Poly:
        """The product of two terms, the bound axes of both named apart from all others."""
        taken = {a for b, _ in (*s.factors, *t.factors) for a in free_axes(b)} | set(s.bound) | set(t.bound)
        bound: list[Axis] = []
        factors: list[tuple[Expr, Fraction]] = []
        for one in (s, t):
            mapping: dict[Axis, Index] = {}
            for a in one.bound:
                fresh = least_instance(a.extent, taken)
                taken.add(fresh)
                bound.append(fresh)
                mapping[a] = Index.axis(fresh)
            factors += [(substitute(b, mapping), p) for b, p in one.factors]
        return self.term(bound, factors)

    def term(self, bound: list[Axis], factors: list[tuple[Expr, Fraction]]) -> Poly:
        """sum over `bound` of the product of the factors: powers gathered, sums that can be done done."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise Unfit
        merged: dict[Expr, list[Fraction]] = {}
        for base, power in factors:
            powers = merged.setdefault(base, [])
            for n, other in enumerate(powers):
                same = _whole(other) and _whole(power) and other * power > 0
                roots = other * power > 0 and self.facts.nonneg(base)
                ratio = _whole(other) and _whole(power) and self._not_zero(base)
                if same or roots or ratio or self._cancels(base):
                    powers[n] = other + power
                    break
            else:
                powers.append(power)
        flat: list[tuple[Expr, Fraction]] = []
        expand: list[Poly] = []
        scale = UNIT
        for base, powers in merged.items():
            for power in powers:
                if power == 0:
                    continue
                if isinstance(base, Const):
                    # A prime: what is left of its power is less than 1.
                    outside, power = divmod(power, 1)
                    scale *= Fraction(base.value) ** outside
                    if power:
                        flat.append((base, power))
                    continue
                if isinstance(base, Map) and base.op in BOOLEAN and power > 0:
                    power = UNIT
                whole = _whole(power) and power > 0
                if whole and isinstance(base, Map) and base.op == "sin" and power >= 2:
                    cosine = self.atom(Map("cos", base.args), Fraction(2))
                    rest: list[tuple[Expr, Fraction]] = [(base, power - 2)] if power > 2 else []
                    expand += [self.sum([{ONE: UNIT}, self.scaled(cosine, -1)]), self.term([], [*rest])]
                elif whole and power >= 2 and (ramp := self._of_ramp(base)) is not None:
                    # max(u, 0)^2 = u * max(u, 0), where u > 0 and elsewhere.
                    expand += [ramp] * int(power - 1)
                    flat.append((base, UNIT))
                elif whole and 2 <= power <= _POWERS and (square := self._square_of(base)) is not None:
                    expand += [square, self.term([], [(base, power - 2)] if power > 2 else [])]
                elif power >= 1 and is_sum(base) and (whole or self.facts.nonneg(base)):
                    expand += [self.poly(base)] * int(power)
                    if not whole:
                        flat.append((base, power % 1))
                else:
                    flat.append((base, power))
        if expand:
            # Products of sums are multiplied out under the sums.
            result: Poly = {Term((), ordered(flat)): scale}
            for q in expand:
                result = self.times(result, q)
            for axis in bound:
                result = self.over(axis, result)
            return result
        return self._summed(bound, flat, scale)

    def _of_ramp(self, base: Expr, power: Fraction = UNIT) -> Poly | None:
        """The finite number u of max(u, 0); None of others."""
        match base:
            case Map("maximum", (u, Const(0.0))) if power == 1 and self.facts.finite(u):
                return self.poly(u)
        return None

    def _square_of(self, base: Expr) -> Poly | None:
        """The square of exp(max(x, 0)), by itself and exp x: it is one of exp x and 1. None of others."""
        match base:
            case Map("exp", (Map("maximum", (x, Const(0.0))),)) if self.facts.finite(x):
                other = self.poly(Map("exp", (x,)))
                return self.sum([self.times(self.atom(base), self.sum([{ONE: UNIT}, other])), self.scaled(other, -1)])
        return None

    def _summed(self, bound: list[Axis], factors: list[tuple[Expr, Fraction]], scale: Fraction) -> Poly:
        for axis in list(bound):
            mine = [(b, p) for b, p in factors if axis in free_axes(b)]
            if not mine:
                bound.remove(axis)
                if is_static(axis.extent):
                    scale *= int(axis.extent)
                else:
                    factors.append((size(axis.extent), UNIT))
                continue
            chosen = chosen_value(axis, factors)
            if chosen is not None:
                bound.remove(axis)
                rest = [(substitute(b, {axis: chosen}), p) for b, p in factors if not is_choice(b, axis, chosen)]
                again = [(simplified(b), p) for b, p in rest]
                return self.scaled(self.term(bound, again), scale)
            if len(mine) == 1 and mine[0][1] == 1 and (many := self._places(axis, mine[0][0])) is not None:
                bound.remove(axis)
                rest = [f for f in factors if f != mine[0]]
                result = self.scaled(self.times(self.term([], rest), self.poly(many)), scale)
                for other in bound:
                    result = self.over(other, result)
                return result
        if len(bound) > MAX_BOUND:
            raise Unfit
        return {named(bound, turned(bound, factors)): scale}

    def _places(self, axis: Axis, base: Expr) -> Expr | None:
        """How many places of the axis a comparison of them with a whole number holds at; None of others."""
        return None

    def over(self, axis: Axis, p: Poly) -> Poly:
        """sum_axis p."""
        parts = []
        for t, c in p.items():
            bound, factors = list(t.bound), list(t.factors)
            if axis in bound:
                other = least_instance(axis.extent, [*bound, *(a for b, _ in factors for a in free_axes(b))])
                factors = [(substitute(b, {axis: Index.axis(other)}), q) for b, q in factors]
                bound[bound.index(axis)] = other
                # The axis was bound, so the factors do not depend on the new one.
            parts.append(self.scaled(self.term([*bound, axis], factors), c))
        return self.sum(parts)

    # Powers

    def power(self, p: Poly, q: Fraction, source: Expr) -> Poly:
        """p^q, of p that is at least 0 where q is no whole number; `source` is p as it was written."""
        if not p:
            raise Unfit
        if _whole(q) and leading(p) < 0 and not self.facts.positive(source):
            return self.scaled(self.power(self.scaled(p, -1), q, neg(source)), -1 if q % 2 else 1)
        quotient = self._over_one(p) if _whole(q) else None
        if quotient is not None:
            p, below = quotient
            divided = self.term([], [(b, -n * q) for b, n in below.items()])
            return self.times(self.power(p, q, self.expr(p)), divided)
        result, rest, sign = self._content(p, q)
        if rest == {ONE: 1}:
            return result
        base = self.expr(rest)
        if sign > 0 and self.facts.positive(source):
            self.above.add(base)
        return self.times(result, self.atom(base, q))

    def root(self, x: Fraction, q: Fraction = HALF) -> Poly:
        """x^q of a positive number: powers of primes, and what is outside them.

        Raises:
            Unfit: a number that is raised is too large.
        """
        found = power_of(x, q)
        if found is None:
            raise Unfit
        outside, primes = found
        return {Term((), ordered([(const(float(p)), n) for p, n in primes])): outside}

    def _shared(self, p: Poly) -> tuple[Poly, Poly]:
        """(number and factors that all terms share, what is left)."""
        first = min(p, key=lambda t: t.key)
        scale = abs(p[first])
        bases: dict[Expr, Fraction] = {}
        for t in p:
            for b, _ in t.factors:
                bases.setdefault(b, _ZERO)
        shared: list[tuple[Expr, Fraction]] = []
        for b in bases:
            if any(free_axes(b) & set(t.bound) for t in p):
                continue
            powers = [_power(t, b) for t in p]
            least = min(powers)
            if least > 0 or (least != 0 and (self._positive(b) or (all(map(_whole, powers)) and self._not_zero(b)))):
                shared.append((b, least))
        if not shared:
            return {ONE: scale}, {t: c / scale for t, c in p.items()}
        left: Poly = {}
        for t, c in p.items():
            inverse = Term((), tuple((b, -n) for b, n in shared))
            divided = self._divided(t, inverse)
            left[divided] = left.get(divided, _ZERO) + c / scale
        if any(n >= 2 and self._square_of(b) is not None for t in left for b, n in t.factors):
            # As e^2 + e^x of e = exp(max(x, 0)), which is e*(1 + e^x).
            squared = self.sum([self.scaled(self.term(list(t.bound), list(t.factors)), c) for t, c in left.items()])
            if not squared:
                raise Unfit
            more, rest = self._shared(squared)
            whole = self.times({Term((), ordered(shared)): scale}, more)
            if len(whole) == 1:
                return whole, rest
        return {Term((), ordered(shared)): scale}, left

    def _divided(self, t: Term, inverse: Term) -> Term:
        taken = dict(inverse.factors)
        kept: list[tuple[Expr, Fraction]] = []
        for b, n in t.factors:
            n += taken.pop(b, _ZERO)
            if n:
                kept.append((b, n))
        kept += list(taken.items())
        return named(list(t.bound), kept)

    def _content(self, p: Poly, q: Fraction) -> tuple[Poly, Poly, int]:
        """(the shared factors raised to q as far as that is sound, the rest that is to be raised, the sign between).

        The sign is 1 where the rest is known to have that of p, else 0.
        """
        shared, rest = self._shared(p)
        ((common, scale),) = shared.items()
        sign = 1 if all((self._positive(b) for b, _ in common.factors)) else 0
        if len(rest) == 1 and next(iter(rest.values())) < 0 and _whole(q):
            rest = {t: -c for t, c in rest.items()}
            scale, sign = -scale, 0
        out: list[tuple[Expr, Fraction]] = []
        back: list[tuple[Expr, Fraction]] = []
        # (x*y)^q is x^q * y^q where neither is less than 0 and there is nothing else.
        apart = q > 0 and rest == {ONE: 1} and all(n > 0 and self._least_zero(b) for b, n in common.factors)
        for b, n in common.factors:
            sure = apart or self._positive(b)
            if sure or (_whole(q) and ((n > 0 and (_whole(n) or self.facts.nonneg(b))) or self._not_zero(b))):
                out.append((b, n * q))
            elif q == HALF and n == 2:
                absolute = self.poly(Map("abs", (b,)))
                if len(absolute) == 1:
                    out += next(iter(absolute)).factors
                else:
                    back.append((b, n))
            else:
                back.append((b, n))
        if back:
            rest = self.times({Term((), ordered(back)): UNIT}, rest)
        number = {ONE: scale ** int(q)} if _whole(q) else self.root(scale, q)
        return self.times(self.term([], out), number), rest, sign

    # Facts

    def _positive(self, base: Expr) -> bool:
        known = base in self.above or self.facts.positive(base)
        return known or (base in self.nonzero and self.facts.nonneg(base))

    def _not_zero(self, base: Expr) -> bool:
        """Whether the base is finite and not 0: its whole powers are what whole powers of a number are."""
        known = base in self.nonzero or base in self.above or self.facts.nonzero(base)
        return known and self.facts.finite(base)

    def _least_zero(self, base: Expr) -> bool:
        return self.facts.nonneg(base) and self.facts.finite(base)

    def _cancels(self, base: Expr) -> bool:
        """Whether the base over itself is 1: it is more than 0, and finite."""
        return self._positive(base) and self.facts.finite(base)

    def _finite(self, t: Term) -> bool:
        facts = self.facts
        for b, p in t.factors:
            defined = facts.nonneg(b) if p > 0 else self._not_zero(b) and (_whole(p) or facts.positive(b))
            if not facts.finite(b) or not (defined or (p > 0 and _whole(p)) or self._positive(b)):
                return False
        return True

    def _gathered(self, p: Poly) -> Poly:
        """Terms over a common denominator that add up to a multiple of it: (a + a*b)/(1 + b) = a."""
        bases = sorted({b for t in p for b, n in t.factors if n == -1 and is_sum(b) and self._cancels(b)}, key=str)
        for base in bases:
            whole = self.poly(base)
            over = {t: c for t, c in p.items() if (base, -UNIT) in t.factors}
            for t, c in over.items():
                for factor, first in _quotients(t, base, whole):
                    made = self.scaled(self._multiple(factor, whole, base), c / first)
                    if made and all(p.get(s, _ZERO) == d for s, d in made.items()):
                        rest = {s: d for s, d in p.items() if s not in made}
                        rest[factor] = rest.get(factor, _ZERO) + c / first
                        return self.sum([rest])
        return p

    def _multiple(self, factor: Term, whole: Poly, base: Expr) -> Poly:
        """The factor times the sum, over the sum."""
        over = Term(factor.bound, (*factor.factors, (base, -UNIT)))
        made: Poly = {}
        for t, d in whole.items():
            for product, c in self._product(over, t).items():
                made[product] = made.get(product, _ZERO) + c * d
        return made

    def cleared(self, polys: Sequence[Poly]) -> list[Poly]:
        """The polynomials times one product of their denominators, of those that are not 0: equal where they are."""
        made = list(polys)
        for _ in range(_NESTED):
            below = self._denominators(made, self._not_zero)
            if not below:
                break
            made = [self._times_powers(p, below) for p in made]
        return made

    def _denominators(self, polys: Iterable[Poly], sure: Callable[[Expr], bool]) -> dict[Expr, Fraction]:
        """The powers of bases by which polynomials are divided, of those that are sure."""
        below: dict[Expr, Fraction] = {}
        for t in itertools.chain(*polys):
            for b, n in t.factors:
                outside = n < 0 and _whole(n) and free_axes(b).isdisjoint(t.bound)
                if outside and sure(b):
                    below[b] = max(below.get(b, _ZERO), -_power(t, b))
        return below

    def _over_one(self, p: Poly) -> tuple[Poly, dict[Expr, Fraction]] | None:
        """(q, powers): p is q over them, which are more than 0, in fewer terms: 1 - 1/(1 + x) is x over 1 + x."""
        below = self._denominators([p], lambda b: is_sum(b) and self._cancels(b)) if len(p) > 1 else {}
        if not below:
            return None
        q = self._times_powers(p, below)
        return (q, below) if q and len(q) < len(p) else None

    def _times_powers(self, p: Poly, by: Mapping[Expr, Fraction]) -> Poly:
        return self.sum([self.scaled(self._raised(t, by), c) for t, c in p.items()])

    def _raised(self, t: Term, by: Mapping[Expr, Fraction]) -> Poly:
        """A term times powers of bases that are finite, and not 0."""
        powers = [(b, _power(t, b) + n) for b, n in by.items()]
        rest = [(b, n) for b, n in t.factors if b not in by]
        return self.term(list(t.bound), rest + [(b, n) for b, n in powers if n])

    # Back to expressions

    def expr(self, p: Poly) -> Expr:
        """The polynomial as an expression."""
        if not p:
            return const(0.0)
        parts = [written(t, c) for t, c in sorted(p.items(), key=lambda x: x[0].key)]
        return add(*parts)


def _quotients(t: Term, base: Expr, whole: Poly) -> Iterator[tuple[Term, Fraction]]:
    """Each (f, d) such that t is f times one of the terms of the sum, over the sum; d is that term's coefficient."""
    numerator = [f for f in t.factors if f != (base, -UNIT)]
    for first, d in sorted(whole.items(), key=lambda x: x[0].key):
        places = [[a for a in t.bound if a.extent == b.extent and a not in free_axes(base)] for b in first.bound]
        for chosen in itertools.product(*places):
            if len(set(chosen)) < len(chosen):
                continue
            mapping = {b: Index.axis(a) for b, a in zip(first.bound, chosen, strict=True)}
            rest = _without(numerator, [(canonical(substitute(b, mapping)), n) for b, n in first.factors])
            if rest is not None and not any(free_axes(b) & set(chosen) for b, _ in rest):
                yield named([a for a in t.bound if a not in chosen], rest), d


def leading(p: Poly) -> Fraction:
    """The coefficient of the first term, by text."""
    return p[min(p, key=lambda t: t.key)]


def content(p: Poly) -> Fraction:
    """The largest number, more than 0, that all coefficients are whole multiples of."""
    below = math.lcm(*(c.denominator for c in p.values()))
    return Fraction(math.gcd(*(int(c * below) for c in p.values())), below)


def _power(t: Term, base: Expr) -> Fraction:
    return sum((n for b, n in t.factors if b == base), _ZERO)


def _without(
    factors: Sequence[tuple[Expr, Fraction]], taken: Sequence[tuple[Expr, Fraction]]
) -> list[tuple[Expr, Fraction]] | None:
    """The factors without those of a term; None where it has others."""
    left = list(factors)
    for base, power in taken:
        for n, (b, p) in enumerate(left):
            if b == base and (p == power or (_whole(p) and _whole(power) and p / power > 1)):
                left[n : n + 1] = [(b, p - power)] * (p != power)
                break
        else:
            return None
    return left


def _whole(x: Fraction) -> bool:
    return x.denominator == 1
