"""A normal form of expressions as sums of products: what is equal by arithmetic alone becomes one expression.

A polynomial is a sum of terms (products.py, polynomials.py). Products are multiplied out, like terms gathered; an
exponential of a sum is a product of exponentials, a sine or cosine of one is taken apart by its addition theorem; a
reciprocal, a root or a logarithm of a sum gives up the factors that its terms share and is else an atom over the sum's
own normal form. Every step is an equality over the reals with its side condition (sign_analysis.py); where one is not
known, the step is not taken. Numbers are exact (exact.py). It decides what makes an e-graph grow without end:
distributivity with cancellation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from prism.egraph.prove.exact import exact, factors, logarithm, number
from prism.egraph.prove.polynomials import UNIT, Algebra, Unfit, content, leading
from prism.egraph.prove.products import HALF, ONE, Poly, Term, ordered
from prism.egraph.prove.windows import windows
from prism.program.build import add, const, mul, neg, op, position, recip
from prism.program.extents import is_static
from prism.program.formulas import LARGEST_POWER
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, Size, free_axes, walk
from prism.program.ops import BOOLEAN
from prism.program.refinement import bounds, margin, simplified
from prism.program.sign_analysis import NONE, Facts, constant
from prism.program.transform import canonical, flat


def normal_form(
    expr: Expr, facts: Facts | None = None, *, strict: bool = False, nonzero: frozenset[Expr] = frozenset()
) -> Expr:
    """The normal form, over the same free axes; equal forms are equal functions.

    What `facts` assumes, the equality rests on; `strict` is whether comparisons of positions are all written by strict
    ones and equalities; `nonzero` are normal forms of finite values that are not 0.

    Raises:
        Unfit: it has none.
    """
    now = canonical(simplified(expr))
    known = facts or Facts()
    try:
        for _ in range(3):
            machine = _Machine(facts=known, strict=strict, nonzero=nonzero)
            new = canonical(machine.expr(machine.poly(now)))
            if new == now:
                break
            now = new
    except (OverflowError, ZeroDivisionError, RecursionError):
        raise Unfit from None
    return now


def same_quotient(reference: Expr, candidate: Expr, nonzero: frozenset[Expr] = frozenset()) -> bool:
    """Whether two expressions are one over their common denominator.

    Where what both divide by is 0, neither has a value; `nonzero` are normal forms of finite values that are not 0.

    Raises:
        Unfit: one of them is no sum of products.
    """
    if not any(isinstance(e, Map) and e.op in _QUOTIENTS for side in (reference, candidate) for e in walk(side)):
        return False
    sides = [canonical(simplified(e)) for e in (reference, candidate)]
    for apart in (False, True):
        try:
            machine = _Machine(facts=Facts(), apart=apart)
            below, under = ({b for d in _divisors(e) for b in machine.below(d)} for e in sides)
            machine = _Machine(facts=Facts(), apart=apart, nonzero=nonzero | (below & under))
            one, other = machine.cleared([machine.poly(e) for e in sides])
        except (OverflowError, ZeroDivisionError, RecursionError):
            raise Unfit from None
        if one == other:
            return True
    return False


def _divisors(e: Expr) -> Iterator[Expr]:
    """What an expression divides by, whatever else is: it has no value where one of them is 0."""
    match e:
        case Map("recip", (Map("mul", (a, b)) as product,)):
            yield product
            yield from _divisors(recip(a))
            yield from _divisors(recip(b))
        case Map("recip", (a,)):
            yield a
            yield from _divisors(a)
        case Map("add" | "mul" | "neg" | "exp", args):
            for a in args:
                yield from _divisors(a)


def polynomial(expr: Expr) -> Poly:
    """The expression as a sum of products. Raises Unfit: it is none."""
    try:
        return _Machine(facts=Facts()).poly(canonical(simplified(expr)))
    except (OverflowError, ZeroDivisionError, RecursionError):
        raise Unfit from None


def expression(p: Poly) -> Expr:
    """A sum of products as an expression."""
    return _Machine(facts=Facts()).expr(p)


_MONOTONE = ("log", "erf", "atan", "floor", "round", "sign")
"""Functions that grow with what they are of; sigmoid and tanh are written by exponentials."""
_QUOTIENTS = frozenset({"recip", "sigmoid", "tanh", "pow"})
_OTHER = {ReduceKind.MAX: ReduceKind.MIN, ReduceKind.MIN: ReduceKind.MAX}
# Terms of what is multiplied by itself to see whether it is 0 or 1.
_SHORT = 8
# Offsets of a comparison that are counted out, one equality for each.
_NEAR = 4
# Ramps of a sum that are told apart for its least value.
_RAMPS = 4


@dataclass(slots=True)
class _Machine(Algebra):
    """Normalises; equal expressions once."""

    # Whether `j <= i` is `j < i` or `j == i`, as what sums up to each place and what does so before it are.
    strict: bool = False
    # Whether one over a product is the product of what is one over its factors, which are then no sum of products.
    apart: bool = False

    def poly(self, e: Expr) -> Poly:
        """The expression as a polynomial."""
        known = self.done.get(e)
        if known is None:
            known = self.done[e] = self._poly(e)
        return known

    def _poly(self, e: Expr) -> Poly:
        match e:
            case Const(c):
                if not math.isfinite(c):
                    raise Unfit
                front, under = exact(c)
                of = logarithm(c)
                if of is not None and under == 1 and front == Fraction(c):
                    return self._log_number(of)
                return self.scaled(self.root(under), front) if c else {}
            case Position(index):
                return self._position(index)
            case Read() | Size():
                return self.atom(e)
            case Reduce():
                return self._reduce(e)
            case Map("add", (a, b)):
                return self.sum([self.poly(a), self.poly(b)])
            case Map("neg", (a,)):
                return self.scaled(self.poly(a), -1)
            case Map("mul", (a, b)):
                p, q = self.poly(a), self.poly(b)
                if (_is_sum(q) and self._infinite(a)) or (_is_sum(p) and self._infinite(b)):
                    raise Unfit
                return self.times(p, q)
            case Map("maximum" | "minimum" as name, _) if any(map(self._infinite, e.args)):
                return self._extreme(e, name)
            case Map("abs", (a,)) if self._infinite(a):
                raise Unfit
            case Map("recip", (Map("mul", (a, b)),)) if self.apart:
                return self.times(self.poly(recip(a)), self.poly(recip(b)))
            case Map("recip", (a,)):
                return self.power(self.poly(a), -UNIT, a)
            case Map("sqrt", (a,)):
                return self.power(self.poly(a), HALF, a)
            case Map("pow", (a, Const(c))):
                return self._pow(a, c)
            case Map("pow", (Const(c) as base, a)) if c > 0 and math.isfinite(c):
                return self._exp(mul(a, op("log", base)))
            case Map("pow", (a, b)) if self._positive(a) and self.facts.finite(a) and self.facts.finite(b):
                return self._exp(mul(b, op("log", a)))
            case Map("exp", (a,)):
                return self._exp(a)
            case Map("log2", (a,)):
                return self.poly(mul(op("log", a), const(1 / math.log(2.0))))
            case Map("log", (a,)):
                return self._log(a)
            case Map("sigmoid", (a,)):
                return self.poly(recip(add(const(1.0), op("exp", neg(a)))))
            case Map("tanh", (a,)):
                return self.sum([{ONE: -UNIT}, self.scaled(self.poly(op("sigmoid", mul(const(2.0), a))), 2)])
            case Map("erf" | "atan" as name, (a,)):
                return self._odd(name, self.poly(a))
            case Map("sin", (a,)):
                return self._turn(self.poly(a))[1]
            case Map("cos", (a,)):
                return self._turn(self.poly(a))[0]
            case Map("abs", (a,)):
                return self.sum([self.scaled(self._ramp(self.poly(a)), 2), self.scaled(self.poly(a), -1)])
            case Map("floor" | "round", (a,)) if self.facts.finite(a) and self.facts.range(a).whole:
                return self.poly(a)
            case Map("floor", (a,)) if self.facts.finite(a):
                return self._floor(self.poly(a))
            case Map("maximum" | "minimum" as name, (a, b)) if (ahead := self._ahead(a, b)) is not None:
                return self.poly(ahead if name == "maximum" else b if ahead is a else a)
            case Map("maximum", (a, b)):
                return self._larger(self.poly(a), self.poly(b))
            case Map("minimum", (a, b)):
                minus = [self.scaled(self.poly(x), -1) for x in (a, b)]
                return self.scaled(self._larger(*minus), -1)
            case Map("where", (p, a, b)):
                return self._where(p, a, b)
            case Map(name, _) if name in BOOLEAN:
                return self._truth(e)
            case Map(name, args):
                return self.atom(Map(name, tuple([self.within(a) for a in args])))
        raise Unfit

    def _pow(self, a: Expr, c: float) -> Poly:
        if c.is_integer() and 2 <= c <= LARGEST_POWER:
            p = self.poly(a)
            result = p
            for _ in range(int(c) - 1):
                result = self.times(result, p)
            return result
        if c in (-1.0, 0.5, 1.0):
            return self.poly(a) if c == 1.0 else self.power(self.poly(a), Fraction(c), a)
        if c == -0.5:
            return self.poly(recip(op("sqrt", a)))
        if c == -2.0:
            return self.poly(recip(mul(a, a)))
        q, under = exact(c)
        if under == 1 and self.facts.finite(a) and (self._positive(a) or (c > 0 and self.facts.nonneg(a))):
            return self.power(self.poly(a), q, a)
        return self.atom(Map("pow", (self.within(a), Const(c))))

    def below(self, divisor: Expr) -> list[Expr]:
        """What is finite and has powers in one over the divisor."""
        over = self.power(self.poly(canonical(simplified(divisor))), -UNIT, divisor)
        return [b for t in over for b, n in t.factors if n < 0 and self.facts.finite(b)]

    # Functions

    def _exp(self, a: Expr) -> Poly:
        match a:
            case Const(c) if c == -math.inf:
                return {}
            case Map("where", (p, x, y)) if not self.facts.finite(a):
                return self._where(p, op("exp", x), op("exp", y))
            case Map("add", (x, y)) if not self.facts.finite(a):
                return self.times(self._exp(x), self._exp(y))
            case Map("mul", (Const(c), Map("where", (p, x, y)))) if c > 0 and not self.facts.finite(a):
                return self._where(p, op("exp", mul(Const(c), x)), op("exp", mul(Const(c), y)))
        result: Poly = {ONE: UNIT}
        for t, times in self.poly(a).items():
            part: Poly
            match t:
                case Term((), ()):
                    part = self.atom(op("exp", const(1.0)), times)
                case Term((), ((Map("log", (Const(c) as x,)), 1),)) if c > 0:
                    part = self.term([], [(x, times)])
                case Term((), ((Map("log", (x,)), 1),)) if _few(times) and self._positive(x):
                    base = self.poly(x) if times > 0 else self.power(self.poly(x), -UNIT, x)
                    part = functools.reduce(self.times, [base] * int(abs(times)))
                case Term((), ((Map("log", (x,)), 1),)) if self._positive(x) and self.facts.finite(x):
                    part = self.power(self.poly(x), times, x)
                case _:
                    part = self.atom(Map("exp", (self.expr({t: UNIT}),)), times)
            result = self.times(result, part)
        return result

    def _log(self, a: Expr) -> Poly:
        match a:
            case Map("abs", (x,)) if not self._infinite(x):
                return self._log_size(self.poly(x))
            case Map("add", (Const(1.0), Map("exp", (x,))) | (Map("exp", (x,)), Const(1.0))):
                size = self._size(self.poly(x))
                if size is not None:  # log(1 + exp(-|u|)) is log(1 + exp(u)) - max(u, 0)
                    u = self.expr(size)
                    return self.sum([self._log(add(const(1.0), op("exp", u))), self.scaled(self._ramp(size), -1)])
        p = self.poly(a)
        if not p:
            raise Unfit
        quotient = self._over_one(p)
        if quotient is not None:
            p, below = quotient
            under = [self.scaled(self._log_of(b), -n) for b, n in below.items()]
            return self.sum([self._log(self.expr(p)), *under])
        shared, rest = self._shared(p)
        ((common, scale),) = shared.items()
        nonneg = rest == {ONE: 1} and all(n > 0 and self._square(b, n) for b, n in common.factors)
        if not nonneg and not all(self._positive(b) for b, _ in common.factors):
            return self.atom(Map("log", (self.expr(p),)))
        parts = [self._log_number(scale)]
        for b, n in common.factors:
            match b:
                case Map("exp", (x,)):
                    parts.append(self.scaled(self.poly(x), n))
                case Reduce(ReduceKind.PROD, axis, body) if self.facts.positive(body):
                    parts.append(self.scaled(self.over(axis, self._log(body)), n))
                case _:
                    parts.append(self.scaled(self._log_of(b), n))
        if rest != {ONE: 1}:
            inner = self.expr(rest)
            if self.facts.positive(a):
                self.above.add(inner)
            parts.append(self.atom(Map("log", (inner,))))
        return self.sum(parts)

    def _size(self, p: Poly) -> Poly | None:
        """What the polynomial is minus the size of: c*x of c*x - 2*c*max(x, 0) with c > 0; None of others."""
        for t, c in p.items():
            match t:
                case Term((), ((Map("maximum", (x, Const(0.0))), 1),)) if c < 0:
                    size = self.scaled(self.poly(x), -c / 2)
                    if self.sum([size, {t: c}]) == p:
                        return size
        return None

    def _log_size(self, p: Poly) -> Poly:
        """log |p|, of what is finite: the sum of those of its factors."""
        if not p:
            raise Unfit
        shared, rest = self._shared(p)
        ((common, scale),) = shared.items()
        parts = [self._log_number(scale), *(self.scaled(self._log_of(b), n) for b, n in common.factors)]
        if rest not in ({ONE: 1}, {ONE: -1}):
            size = self.expr(rest if leading(rest) > 0 else self.scaled(rest, -1))
            parts.append(self.atom(Map("log", (op("abs", size),))))
        return self.sum(parts)

    def _log_of(self, base: Expr) -> Poly:
        """log |b| of one factor."""
        match base:
            case Map("exp", (x,)):
                return self.poly(x)
            case _ if self._positive(base) or self.facts.nonneg(base):
                return self.atom(Map("log", (base,)))
        return self.atom(Map("log", (op("abs", base),)))

    def _square(self, base: Expr, n: Fraction) -> bool:
        """Whether a power of the base is finite and at least 0, as whole even ones are."""
        return self.facts.finite(base) and (n % 2 == 0 or self.facts.nonneg(base))

    def _log_number(self, x: Fraction) -> Poly:
        """log x of a positive number, by the logarithms of its factors."""
        top, below = factors(x.numerator), factors(x.denominator)
        if any(p > 1 << 53 for p in top.keys() | below.keys()):
            raise Unfit
        logs = [
            (op("log", const(float(p))), top.get(p, 0) - below.get(p, 0)) for p in sorted(top.keys() | below.keys())
        ]
        return self.sum([self.scaled(self.atom(log), n) for log, n in logs if n])

    def _floor(self, p: Poly) -> Poly:
        """floor(w + r) is w + floor(r) of whole numbers w, and a number where bounds of r have one floor."""
        whole = {t: c for t, c in p.items() if self.facts.range(self.expr({t: c})).whole}
        rest = {t: c for t, c in p.items() if t not in whole}
        number = math.floor(rest.get(ONE, 0))
        rest = self.sum([rest, {ONE: -Fraction(number)}]) if number else rest
        low, high = self._least_of(rest), -self._least_of(self.scaled(rest, -1))
        if math.isfinite(low) and high < math.floor(low) + 1:
            number, rest = number + math.floor(low), {}
        parts = [whole, {ONE: Fraction(number)} if number else {}]
        return self.sum([*parts, self.atom(Map("floor", (self.expr(rest),))) if rest else {}])

    def _odd(self, name: str, p: Poly) -> Poly:
        if not p:
            return {}
        if leading(p) < 0:
            return self.scaled(self._odd(name, self.scaled(p, -1)), -1)
        return self.atom(Map(name, (self.expr(p),)))

    def _turn(self, p: Poly) -> tuple[Poly, Poly]:
        """Cosine and sine of a sum, by the addition theorems; twice an angle is a sum."""
        cosine: Poly = {ONE: UNIT}
        sine: Poly = {}
        parts = ((t, c / n) for t, c in p.items() for n in [abs(c) if _few(c) else 1] for _ in range(int(n)))
        for t, c in sorted(parts, key=lambda x: x[0].key):
            angle = self.expr({t: abs(c)})
            a = self.atom(Map("cos", (angle,)))
            b = self.scaled(self.atom(Map("sin", (angle,))), 1 if c > 0 else -1)
            both = self.times(cosine, a), self.times(sine, b), self.times(sine, a), self.times(cosine, b)
            cosine = self.sum([both[0], self.scaled(both[1], -1)])
            sine = self.sum([both[2], both[3]])
        return cosine, sine

    def _larger(self, p: Poly, q: Poly) -> Poly:
        """max(p, q) = q + max(p - q, 0)."""
        return self.sum([q, self._ramp(self.sum([p, self.scaled(q, -1)]))])

    def _ahead(self, a: Expr, b: Expr) -> Expr | None:
        """Which of two is never less than the other, by their bounds; both are finite."""
        one, other = self.facts.range(a), self.facts.range(b)
        if not (one.low >= other.high or other.low >= one.high) or not (self.facts.finite(a) and self.facts.finite(b)):
            return None
        return a if one.low >= other.high else b

    def _extreme(self, e: Map, name: str) -> Poly:
        """A maximum (minimum) of several, of which one may be infinite: an atom, whatever their order."""
        parts = {self._masked(x) for x in flat(e, name)} - {const(-math.inf if name == "maximum" else math.inf)}
        first, *rest = sorted(parts, key=str)
        return self.atom(functools.reduce(lambda a, b: Map(name, (a, b)), rest, first))

    def _ramp(self, p: Poly) -> Poly:
        """max(p, 0), of p or of -p: max(-p, 0) = max(p, 0) - p."""
        if not p:
            return {}
        if set(p) == {ONE}:
            return {ONE: p[ONE]} if p[ONE] > 0 else {}
        if leading(p) < 0:
            return self.sum([self._ramp(self.scaled(p, -1)), p])
        scale, rest = self._scale(p)
        if rest == {ONE: UNIT}:
            return p
        if self.facts.finite(self.expr(rest)):
            if self._least_of(rest) >= 0:
                return p
            if self._least_of(self.scaled(rest, -1)) >= 0:
                return {}
        return self.times(scale, self.atom(Map("maximum", (self.expr(rest), const(0.0)))))

    def _least_of(self, p: Poly, most: int = _RAMPS) -> float:
        """A number that the finite value is not less than: with a ramp it is the larger, or smaller, of two values.

        p + c*max(u, 0) is the larger of p and p + c*u where c > 0, and else the smaller of them.
        """
        known = self.facts.range(self.expr(p)).low
        ramps = [
            (t, u) for t in p if not t.bound and len(t.factors) == 1 and (u := self._of_ramp(*t.factors[0])) is not None
        ]
        if not ramps or not most:
            return known
        t, u = max(ramps, key=lambda x: len(x[0].key))
        c, rest = p[t], {k: v for k, v in p.items() if k != t}
        ends = [self._least_of(q, most - 1) for q in (rest, self.sum([rest, self.scaled(u, c)]))]
        return max(known, max(ends) if c > 0 else min(ends))

    def _where(self, p: Expr, a: Expr, b: Expr) -> Poly:
        known = self._truth(p)
        if not known or known == {ONE: UNIT}:
            return self.poly(a if known else b)
        match p:
            case Map("eq", (x, Const(0.0) as zero)) if x == b and self.facts.nonzero(a) and self._numbers(a, b):
                # Any number that is not 0, as it is stated: a product with a mask would not show that.
                return self.atom(Map("where", (Map("eq", (self.within(x), zero)), self.within(a), self.within(x))))
        match p:
            case Map("le" | "lt", (x, y)) if {x, y} == {a, b} and self.facts.finite(x) and self.facts.finite(y):
                return self.poly(op("maximum" if y == a else "minimum", x, y))
        if not self._numbers(a, b):
            parts = [self._masked(x) for x in (a, b)]
            return self.atom(self._chosen(p, *parts))
        other = self.sum([{ONE: UNIT}, self.scaled(known, -1)])
        return self.sum([self.times(known, self.poly(a)), self.times(other, self.poly(b))])

    def _numbers(self, *of: Expr) -> bool:
        """Whether values are known to be numbers, if need be because what is divided by is not 0."""
        return all(
            self.facts.finite(e)
            or (bool(self.nonzero) and not self._infinite(e) and all(map(self._finite, self.poly(e))))
            for e in of
        )

    def _chosen(self, p: Expr, a: Expr, b: Expr) -> Expr:
        """A choice, by the predicate or by its negation."""
        t = self._truth(p)
        other = self.sum([{ONE: UNIT}, self.scaled(t, -1)])
        if len(t) == 2 and len(other) == 1:
            return Map("where", (self.expr(other), b, a))
        return Map("where", (self.expr(t), a, b))

    def _truth(self, p: Expr) -> Poly:
        """1 where the predicate holds, else 0."""
        match p:
            case Const(c):
                return {ONE: UNIT} if c != 0 else {}
            case Map("not", (a,)):
                return self.sum([{ONE: UNIT}, self.scaled(self._truth(a), -1)])
            case Map("and" | "mul", (a, b)):
                return self.times(self._truth(a), self._truth(b))
            case Map("or", (a, b)):
                x, y = self._truth(a), self._truth(b)
                return self.sum([x, y, self.scaled(self.times(x, y), -1)])
            case Map("eq", (a, Const(c))) | Map("eq", (Const(c), a)) if math.isinf(c):
                known = self.facts.infinities(a)
                if known is not None and c not in known:
                    return {}
                return self.atom(Map("eq", (self._masked(a), Const(c))))
            case Map("lt" | "le" | "eq", (a, b)):
                return self._compared(p)
            case Map("isnan", (a,)):
                return {} if self.facts.infinities(a) is not None else self.atom(Map("isnan", (self.within(a),)))
        whole = self.within(p)
        return self.atom(Map("not", (Map("eq", (whole, const(0.0))),)))

    def _is_truth(self, p: Poly) -> bool:
        """Whether the value is 0 or 1: these are what is its own square."""
        return len(p) <= _SHORT and bool(p) and self.times(p, p) == p

    def _compared(self, e: Map) -> Poly:
        d = margin(e)
        if d is not None and d.terms and d.is_affine():
            digits = _digits(d)
            if digits is not None:
                high, low = (position(x) for x in digits)
                alike = self._truth(op("eq", high, const(0.0)))
                if e.op == "eq":
                    return self.times(alike, self._truth(op("eq", low, const(0.0))))
                more = self._truth(op("le", const(1.0), high))
                return self.sum([more, self.times(alike, self._truth(op("le", const(0.0), low)))])
            first = d.terms[0][1]
            backwards = is_static(first) and int(first) < 0
            if e.op == "eq":
                d = d.scaled(-1) if backwards else d
                return self.atom(Map("eq", (position(d), const(0.0))))
            if backwards:
                # d >= 0 unless -d - 1 >= 0
                return self.sum([{ONE: UNIT}, self.scaled(self._not_negative(d.scaled(-1) + (-1)), -1)])
            return self._not_negative(d)
        x, y = e.args
        one, other = self.facts.range(x), self.facts.range(y)
        finite = self.facts.finite(x) and self.facts.finite(y)
        if (one.high < other.low or other.high < one.low) and finite:
            return {ONE: UNIT} if e.op != "eq" and one.high < other.low else {}
        if e.op == "eq" and finite and const(0.0) in e.args:
            p = self.poly(y if x == const(0.0) else x)
            if len(p) == 1 and all(not t.bound and all(self._not_zero(b) for b, _ in t.factors) for t in p):
                return {}  # a product of what is not 0
        match e:
            case Map("eq" | "le", (Const(c), Reduce(ReduceKind.SUM, axis, body))) if self._all(c, axis, body):
                return self.poly(Reduce(ReduceKind.MIN, axis, body))
            case Map("eq", (Reduce(ReduceKind.SUM, axis, body), Const(c))) if self._all(c, axis, body):
                return self.poly(Reduce(ReduceKind.MIN, axis, body))
            case Map("lt", (Const(0.0), Reduce(ReduceKind.SUM, axis, body))) if self._least_zero(body):
                return self.poly(Reduce(ReduceKind.MAX, axis, Map("lt", (const(0.0), body))))
            case Map(_, (Const(c), x)) | Map(_, (x, Const(c))) if math.isfinite(c) and self.facts.finite(x):
                p = self.poly(x)
                if self._is_truth(p):
                    no, yes = (
                        constant(Map(e.op, tuple([const(v) if a is x else a for a in e.args]))) or 0.0
                        for v in (0.0, 1.0)
                    )
                    return self.sum([{ONE: Fraction(no)} if no else {}, self.scaled(p, Fraction(yes - no))])
        if finite and one.whole and other.whole:
            return self._whole(e)
        a, b = (x if isinstance(x, Const) else self.within(x) for x in e.args)
        if a == b and e.op != "lt" and self.facts.finite(e.args[0]) and self.facts.finite(e.args[1]):
            return {ONE: UNIT}
        return self.atom(Map(e.op, (a, b)))

    def _all(self, many: float, axis: Axis, body: Expr) -> bool:
        """Whether a sum of what is 0 or 1 that is no less than this is one of ones."""
        return is_static(axis.extent) and many == int(axis.extent) and self._is_truth(self.poly(body))

    def _whole(self, e: Map) -> Poly:
        """A comparison of finite whole numbers, by 0 <= d or d = 0 of one that begins with a positive coefficient.

        a < b is 0 <= b - a - 1, and what is not 0 <= d is 0 <= -d - 1, as there is nothing between -1 and 0.
        """
        d = self.sum([self.poly(e.args[1]), self.scaled(self.poly(e.args[0]), -1)])
        d = self.sum([d, {ONE: -UNIT}]) if e.op == "lt" else d
        low, high = self._least_of(d), -self._least_of(self.scaled(d, -1))
        if high < 0 or (e.op == "eq" and low > 0):
            return {}
        if e.op != "eq" and low >= 0:
            return {ONE: UNIT}
        equal = e.op == "eq" or high == 0
        rest = {t: c for t, c in d.items() if t != ONE}
        if not rest:
            return {ONE: UNIT} if (d.get(ONE, 0) == 0 if equal else d.get(ONE, 0) >= 0) else {}
        backwards = leading(rest) < 0
        d = self.scaled(d, -1) if backwards else d
        if equal:
            return self.atom(Map("eq", (const(0.0), self.expr(d))))
        if backwards:
            other = self.atom(Map("le", (const(0.0), self.expr(self.sum([d, {ONE: -UNIT}])))))
            return self.sum([{ONE: UNIT}, self.scaled(other, -1)])
        return self.atom(Map("le", (const(0.0), self.expr(d))))

    def _places(self, axis: Axis, base: Expr) -> Expr | None:
        """Of the n places k >= m are n - min(max(m, 0), n), k <= m are min(max(m + 1, 0), n), k = m is one within."""
        match base:
            case Map("eq" | "le" as name, (Const(0.0), e)) if is_static(axis.extent):
                pass
            case _:
                return None
        d = dict(self.poly(e))
        slope = d.pop(Term((), ((position(Index.axis(axis)), UNIT),)), None)
        if slope not in (1, -1) or any(axis in t.free() for t in d):
            return None
        m, n = self.expr(self.scaled(d, -slope)), const(float(int(axis.extent)))
        if not self.facts.range(m).whole or not self.facts.finite(m):
            return None
        if name == "eq":
            return mul(op("le", const(0.0), m), op("lt", m, n))
        until = m if slope > 0 else add(m, const(1.0))
        fewer = op("minimum", op("maximum", until, const(0.0)), n)
        return add(n, neg(fewer)) if slope > 0 else fewer

    def _not_negative(self, d: Index) -> Poly:
        """d >= 0, of what has no digits; strictly: whether d without its offset is more than 0, or one of a few."""
        if not self.strict or not is_static(d.offset) or abs(int(d.offset)) > _NEAR:
            return self.atom(Map("le", (const(0.0), position(d))))
        offset = int(d.offset)
        plain = d + -offset
        more = self.atom(Map("le", (const(0.0), position(plain + (-1)))))
        equal = range(0, offset + 1) if offset >= 0 else range(offset + 1, 0)
        beside = [self._truth(op("eq", position(plain + t), const(0.0))) for t in equal]
        return self.sum([more, *(self.scaled(b, 1 if offset >= 0 else -1) for b in beside)])

    def _position(self, index: Index) -> Poly:
        if not is_static(index.offset) or not all(is_static(c) for _, c in index.terms):
            return self.atom(Position(index))
        parts: list[Poly] = [{ONE: Fraction(int(index.offset))} if index.offset else {}]
        for a, c in index.terms:
            parts.append(self.scaled(self.atom(Position(Index(((a, 1),)))), int(c)))
        return self.sum(parts)

    def _reduce(self, e: Reduce) -> Poly:
        axis = e.axis
        match e.kind:
            case ReduceKind.SUM:
                return self.over(axis, self.poly(e.body))
            case ReduceKind.MIN:
                flipped = Reduce(ReduceKind.MAX, axis, neg(e.body))
                return self.scaled(self.poly(flipped), -1)
            case ReduceKind.PROD if self.facts.finite(e.body) and self._is_truth(self.poly(e.body)):
                return self.poly(Reduce(ReduceKind.MIN, axis, e.body))
            case ReduceKind.PROD:
                return self._multiplied(e)
        if not self.facts.finite(e.body):
            return self._most_kept(e)
        padded = windows(e, 0.0)
        if padded is not None and padded.guards and self.facts.nonneg(padded.core):
            match padded.core:
                case Map("maximum", (x, Const(0.0))):
                    padded = replace(padded, core=x)
            return self.poly(op("maximum", padded.expr, const(0.0)))
        return self._most(axis, self.poly(e.body))

    def _multiplied(self, e: Reduce) -> Poly:
        """A product over an axis: that of each factor."""
        p = self.poly(e.body)
        whole = self.atom(Reduce(e.kind, e.axis, self.expr(p)))
        if len(p) != 1 or not self.facts.finite(e.body) or not is_static(e.axis.extent):
            return whole
        ((t, c),) = p.items()
        many = int(e.axis.extent)
        if t.bound or (len(t.factors) == 1 and c == 1 and not _is_exp(t.factors[0][0]) and t.factors[0][1] == 1):
            return whole
        made: Poly = {ONE: c**many}
        for b, n in t.factors:
            if _is_exp(b):
                assert isinstance(b, Map)
                made = self.times(made, self._exp(Reduce(ReduceKind.SUM, e.axis, mul(number(n), b.args[0]))))
            elif not (self._cancels(b) or (n > 0 and (n.denominator == 1 or self._least_zero(b)))):
                return whole
            elif e.axis in free_axes(b):
                made = self.times(made, self.term([], [(canonical(Reduce(e.kind, e.axis, b)), n)]))
            else:
                made = self.times(made, self.term([], [(b, n * many)]))
        return made

    def _most_kept(self, e: Reduce) -> Poly:
        """The maximum of what a mask hides places of: where it leaves some, of what is monotone as `_most`."""
        found = windows(e)
        if found is None:
            return self.atom(canonical(Reduce(e.kind, e.axis, self._masked(e.body))))
        if self.facts.finite(found.core) and (found.never_empty or self.facts.finite(e)):
            match found.core:
                case Map(name, (a,)) if name in _MONOTONE or name in ("exp", "sigmoid", "tanh"):
                    return self.poly(Map(name, (replace(found, core=a).expr,)))
                case Map("maximum" | "minimum" as name, (a, b)) if free_axes(b).isdisjoint(found.axes):
                    return self.poly(Map(name, (replace(found, core=a).expr, b)))
                case Map("neg", (Map("maximum" | "minimum" as name, (a, b)),)) if free_axes(b).isdisjoint(found.axes):
                    other = "minimum" if name == "maximum" else "maximum"
                    return self.poly(Map(other, (replace(found, core=neg(a)).expr, neg(b))))
            p = self.poly(found.core)
            outside = {t: c for t, c in p.items() if t.free().isdisjoint(found.axes)}
            inside = {t: c for t, c in p.items() if t not in outside}
            scale = abs(leading(inside)) if inside else UNIT
            if outside or scale != 1:
                rest = replace(found, core=self.expr(self.scaled(inside, 1 / scale))).expr
                return self.sum([outside, self.scaled(self.poly(rest), scale) if inside else {}])
        made = found.plain().expr
        if isinstance(made, Reduce):
            return self.atom(canonical(Reduce(made.kind, made.axis, self._masked(made.body))))
        return self.atom(canonical(self._masked(made)))

    def _most(self, axis: Axis, p: Poly) -> Poly:
        """The maximum over the axis of what is finite: of what is monotone, that of what it is of."""
        outside = {t: c for t, c in p.items() if axis not in t.free()}
        inside = {t: c for t, c in p.items() if axis in t.free()}
        if not inside:
            return p
        scale, inside = self._scale(inside, axis)
        found = self._of_one(axis, *next(iter(inside.items()))) if len(inside) == 1 else None
        if found is None:
            found = self.atom(canonical(_in_few(Reduce(ReduceKind.MAX, axis, self.expr(inside)))))
        return self.sum([outside, self.times(scale, found)])

    def _least(self, axis: Axis, p: Poly) -> Poly:
        """The minimum."""
        return self.scaled(self._most(axis, self.scaled(p, -1)), -1)

    def _scale(self, p: Poly, axis: Axis | None = None) -> tuple[Poly, Poly]:
        """(c, q): p is c*q, where c is not less than 0, finite, and has not the axis."""
        scale = content(p)
        shared: list[tuple[Expr, Fraction]] = []
        for b in sorted({b for t in p for b, _ in t.factors if axis not in free_axes(b)}, key=str):
            powers = [[n for x, n in t.factors if x == b] for t in p]
            if any(len(n) != 1 for n in powers) or any(free_axes(b) & set(t.bound) for t in p):
                continue
            least = min(n for (n,) in powers)
            if self.facts.finite(b) and (self._positive(b) or (least > 0 and (self.facts.nonneg(b) or least == 2))):
                shared.append((b, least))
        over = Term((), tuple((b, -n) for b, n in shared))
        return {Term((), ordered(shared)): scale}, {self._divided(t, over): c / scale for t, c in p.items()}

    def _of_one(self, axis: Axis, t: Term, c: Fraction) -> Poly | None:
        """The maximum of c times a term without a scale, where the term is a monotone function of something."""
        if abs(c) != 1 or t.bound:
            return None
        kind = ReduceKind.MAX if c > 0 else ReduceKind.MIN
        if len(t.factors) == 1:
            found = self._monotone(axis, *t.factors[0], kind)
            return None if found is None else self.scaled(found, c)
        if not all(self._cancels(b) for b, _ in t.factors):
            return None
        over = self.term([], [(b, -n) for b, n in t.factors])
        if len(over) < 2 or sum(axis in x.free() for x in over) != 1:
            return None
        # As a sigmoid: one over a sum with one term that varies.
        extreme = self._least(axis, over) if c > 0 else self._most(axis, over)
        return self.scaled(self.power(extreme, -UNIT, Reduce(kind, axis, self.expr(over))), c)

    def _monotone(self, axis: Axis, base: Expr, power: Fraction, kind: ReduceKind) -> Poly | None:
        """The extreme of base^power over the axis, where that is a monotone function of something."""
        if _is_exp(base):
            assert isinstance(base, Map)
            return self._exp(Reduce(kind, axis, mul(number(power), base.args[0])))
        if power == 1:
            match base:
                case Map(name, (a,)) if name in _MONOTONE:
                    return self.poly(Map(name, (Reduce(kind, axis, a),)))
                case Map("maximum", (a, b)) if axis not in free_axes(b):
                    return self.poly(Map("maximum", (Reduce(kind, axis, a), b)))
            return None
        if not self.facts.positive(base) and not (power > 0 and self.facts.nonneg(base)):
            return None
        kind = kind if power > 0 else _OTHER[kind]
        extreme = Reduce(kind, axis, base)
        return self.power(self.poly(extreme), power, extreme)

    def _infinite(self, e: Expr) -> bool:
        """Whether an infinite constant may make the value infinite, or undefined."""
        known = self.facts.infinities(e)
        if known is not None:
            return known != NONE
        match e:
            case Const(c):
                return not math.isfinite(c)
        return any(self._infinite(c) for c in e.children)

    def _masked(self, e: Expr) -> Expr:
        """A body with -inf in it, its parts in normal form."""
        match e:
            case Map("where", (p, a, b)) if not self.facts.finite(e):
                return self._chosen(p, self._masked(a), self._masked(b))
            case Map("add" | "mul" as name, (a, b)) if not self.facts.finite(e):
                return Map(name, (self._masked(a), self._masked(b)))
        return e if isinstance(e, Const) else self.within(e)


def _digits(d: Index) -> tuple[Index, Index] | None:
    """(high, low) with d = s * high + low and |low| < s: d >= 0 where high > 0, or high is 0 and low >= 0."""
    if not all(is_static(c) for _, c in d.terms) or not is_static(d.offset):
        return None
    offset = int(d.offset)
    for s in sorted({abs(int(c)) for _, c in d.terms} - {1}, reverse=True):
        above = tuple((a, int(c) // s) for a, c in d.terms if int(c) % s == 0)
        below = tuple(t for t in d.terms if int(t[1]) % s)
        for rest in (offset % s, offset % s - s):
            low = Index(below, rest)
            known = bounds(low)
            if below and known is not None and -s < known[0] and known[1] < s:
                return Index(above, (offset - rest) // s), low
    return None


def _in_few(e: Reduce) -> Expr:
    """A maximum over windows of maxima over windows as one over the windows that these make."""
    found = windows(e)
    return e if found is None else found.plain().expr


def _is_exp(base: Expr) -> bool:
    return isinstance(base, Map) and base.op == "exp"


def _few(times: Fraction) -> bool:
    """Whether a power is written as a product."""
    return times.denominator == 1 and 1 <= abs(times) <= 4


def _is_sum(p: Poly) -> bool:
    """Whether an infinite factor must not be multiplied in: inf * (1 + 0) is infinite, inf*1 + inf*0 undefined."""
    return len(p) > 1 or any(t.bound for t in p)


__all__ = ["Unfit", "normal_form"]
