"""A normal form of expressions as sums of products: what is equal by arithmetic alone becomes one expression.

A polynomial is a sum of terms (products.py). Products are multiplied out, like terms gathered; an exponential of a sum
is a product of exponentials, a sine or cosine of one is taken apart by its addition theorem; a reciprocal, a root or a
logarithm of a sum gives up the factors that its terms share and is else an atom over the sum's own normal form. Every
step is an equality over the reals with its side condition (facts.py); where one is not known, the step is not taken. It
decides what makes an e-graph grow without end: distributivity with cancellation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from prism.egraph.facts import finite, nonneg, nonzero, positive
from prism.egraph.pieces import margin, simplified
from prism.egraph.products import (
    ONE,
    Poly,
    Term,
    chosen_value,
    is_choice,
    is_sum,
    named,
    ordered,
    written,
)
from prism.program.build import add, const, mul, neg, op, position, recip, size
from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, Size, free_axes
from prism.program.transform import canonical, least_instance, substitute

# A polynomial, and the sums around one of its terms, may grow this far.
MAX_TERMS = 600
MAX_BOUND = 4
# Past this, exp of a constant is out of float64's range.
MAX_EXPONENT = 500.0

# Coefficients that cancel leave rounding behind; those that agree to 22 bits are one (1/sqrt(128) in float32).
_NOTHING = 1e-13
_LEAST = 1e-200
_SPLIT = 2147483649.0  # 2^31 + 1

_BOOLEAN = ("lt", "le", "eq", "and", "or", "not", "isnan")


class Unfit(Exception):
    """An expression has no normal form here."""


def normal_form(expr: Expr) -> Expr:
    """The normal form, over the same free axes; equal forms are equal functions.

    Raises:
        Unfit: it has none.
    """
    now = canonical(simplified(expr))
    try:
        for _ in range(3):
            machine = _Machine()
            new = canonical(machine.expr(machine.poly(now)))
            if new == now:
                break
            now = new
    except (OverflowError, ZeroDivisionError, RecursionError):
        raise Unfit from None
    return _snapped(now)


def _snapped(e: Expr) -> Expr:
    match e:
        case Const(c) if math.isfinite(c):
            p = _SPLIT * c
            return Const(p - (p - c))
        case Map(name, args):
            return Map(name, tuple(_snapped(a) for a in args))
        case Reduce(kind, axis, body):
            return Reduce(kind, axis, _snapped(body))
    return e


@dataclass(slots=True)
class _Machine:
    """Normalises; equal expressions once.

    Attributes:
        done: polynomials.
        above: bases of powers that are known to be more than 0, whatever their text shows.
    """

    done: dict[Expr, Poly] = field(default_factory=dict)
    above: set[Expr] = field(default_factory=set)

    # Polynomials

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
                return {ONE: c} if c else {}
            case Position(index):
                return self._position(index)
            case Read() | Size():
                return self.atom(e)
            case Reduce():
                return self._reduce(e)
            case Map("add", (a, b)):
                return self.sum([self.poly(a), self.poly(b)])
            case Map("neg", (a,)):
                return self.scaled(self.poly(a), -1.0)
            case Map("mul", (a, b)):
                p, q = self.poly(a), self.poly(b)
                if (_infinite(a) and len(q) > 1) or (_infinite(b) and len(p) > 1):
                    raise Unfit
                return self.times(p, q)
            case Map("abs" | "maximum" | "minimum", args) if any(_infinite(a) for a in args):
                raise Unfit
            case Map("recip", (a,)):
                return self.power(self.poly(a), -1.0, a)
            case Map("sqrt", (a,)):
                return self.power(self.poly(a), 0.5, a)
            case Map("pow", (a, Const(c))):
                return self._pow(a, c)
            case Map("exp", (a,)):
                return self._exp(a)
            case Map("log", (a,)):
                return self._log(a)
            case Map("sigmoid", (a,)):
                return self.poly(recip(add(const(1.0), op("exp", neg(a)))))
            case Map("tanh", (a,)):
                return self.sum([{ONE: -1.0}, self.scaled(self.poly(op("sigmoid", mul(const(2.0), a))), 2.0)])
            case Map("erf" as name, (a,)):
                return self._odd(name, self.poly(a))
            case Map("sin", (a,)):
                return self._turn(self.poly(a))[1]
            case Map("cos", (a,)):
                return self._turn(self.poly(a))[0]
            case Map("abs", (a,)):
                return self.sum([self.scaled(self._ramp(self.poly(a)), 2.0), self.scaled(self.poly(a), -1.0)])
            case Map("maximum", (a, b)):
                return self._larger(self.poly(a), self.poly(b))
            case Map("minimum", (a, b)):
                minus = [self.scaled(self.poly(x), -1.0) for x in (a, b)]
                return self.scaled(self._larger(*minus), -1.0)
            case Map("where", (p, a, b)):
                return self._where(p, a, b)
            case Map(name, _) if name in _BOOLEAN:
                return self._truth(e)
            case Map(name, args):
                return self.atom(Map(name, tuple([self.within(a) for a in args])))
        raise Unfit

    def within(self, e: Expr) -> Expr:
        """The normal form as an expression; constants as they are."""
        return e if isinstance(e, Const) else self.expr(self.poly(e))

    def atom(self, base: Expr, power: float = 1.0) -> Poly:
        """One factor."""
        return {Term((), ((base, power),)): 1.0}

    def sum(self, polys: Iterable[Poly]) -> Poly:
        """The sum; terms that cancel have to be finite."""
        total: Poly = {}
        size_of: dict[Term, float] = {}
        for p in polys:
            for t, c in p.items():
                total[t] = total.get(t, 0.0) + c
                size_of[t] = max(size_of.get(t, 0.0), abs(c))
        if len(total) > MAX_TERMS:
            raise Unfit
        kept: Poly = {}
        for t, c in total.items():
            if not math.isfinite(c) or 0 < abs(c) < _LEAST:
                raise Unfit
            if abs(c) > _NOTHING * size_of[t]:
                kept[t] = c
            elif not self._finite(t):
                raise Unfit
        return self._gathered(kept)

    def scaled(self, p: Poly, factor: float) -> Poly:
        """factor * p."""
        if factor == 0:
            return self.sum([p, {t: -c for t, c in p.items()}])
        return {t: c * factor for t, c in p.items()}

    def times(self, p: Poly, q: Poly) -> Poly:
        """The product, multiplied out."""
        if not p or not q:
            self.scaled(p or q, 0.0)
            return {}
        if len(p) * len(q) > MAX_TERMS:
            raise Unfit
        parts = []
        for (s, c), (t, d) in itertools.product(p.items(), q.items()):
            parts.append(self.scaled(self._product(s, t), c * d))
        return self.sum(parts)

    def _product(self, s: Term, t: Term) -> Poly:
        """The product of two terms, the bound axes of both named apart from all others."""
        taken = {a for b, _ in (*s.factors, *t.factors) for a in free_axes(b)} | set(s.bound) | set(t.bound)
        bound: list[Axis] = []
        factors: list[tuple[Expr, float]] = []
        for one in (s, t):
            mapping: dict[Axis, Index] = {}
            for a in one.bound:
                fresh = least_instance(a.extent, taken)
                taken.add(fresh)
                bound.append(fresh)
                mapping[a] = Index.axis(fresh)
            factors += [(substitute(b, mapping), p) for b, p in one.factors]
        return self.term(bound, factors)

    def term(self, bound: list[Axis], factors: list[tuple[Expr, float]]) -> Poly:
        """sum over `bound` of the product of the factors: powers gathered, sums that can be done done."""
        merged: dict[Expr, list[float]] = {}
        for base, power in factors:
            powers = merged.setdefault(base, [])
            for n, other in enumerate(powers):
                same = other.is_integer() and power.is_integer() and other * power > 0
                roots = other * power > 0 and nonneg(base)
                if same or roots or self._positive(base):
                    powers[n] = other + power
                    break
            else:
                powers.append(power)
        flat: list[tuple[Expr, float]] = []
        expand: list[Poly] = []
        for base, powers in merged.items():
            for power in powers:
                if abs(power) < _NOTHING:
                    continue
                if isinstance(base, Map) and base.op in _BOOLEAN and power > 0:
                    power = 1.0
                whole = power.is_integer() and power > 0
                if whole and isinstance(base, Map) and base.op == "sin" and power >= 2:
                    cosine = self.atom(Map("cos", base.args), 2.0)
                    rest: list[tuple[Expr, float]] = [(base, power - 2)] if power > 2 else []
                    expand += [self.sum([{ONE: 1.0}, self.scaled(cosine, -1.0)]), self.term([], [*rest])]
                elif whole and is_sum(base):
                    expand += [self.poly(base)] * int(power)
                else:
                    flat.append((base, power))
        if expand:
            # Products of sums are multiplied out under the sums.
            result: Poly = {Term((), ordered(flat)): 1.0}
            for q in expand:
                result = self.times(result, q)
            for axis in bound:
                result = self.over(axis, result)
            return result
        return self._summed(bound, flat)

    def _summed(self, bound: list[Axis], factors: list[tuple[Expr, float]]) -> Poly:
        scale = 1.0
        for axis in list(bound):
            mine = [b for b, _ in factors if axis in free_axes(b)]
            if not mine:
                bound.remove(axis)
                if is_static(axis.extent):
                    scale *= int(axis.extent)
                else:
                    factors.append((size(axis.extent), 1.0))
                continue
            chosen = chosen_value(axis, factors)
            if chosen is not None:
                bound.remove(axis)
                rest = [(substitute(b, {axis: chosen}), p) for b, p in factors if not is_choice(b, axis, chosen)]
                again = [(simplified(b), p) for b, p in rest]
                return self.scaled(self.term(bound, again), scale)
        if len(bound) > MAX_BOUND:
            raise Unfit
        return {named(bound, factors): scale}

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

    def power(self, p: Poly, q: float, source: Expr) -> Poly:
        """p^q for q that is -1, 1/2 or a product of these; `source` is p as it was written."""
        if not p:
            raise Unfit
        result, rest, sign = self._content(p, q)
        if rest == {ONE: 1.0}:
            return result
        base = self.expr(rest)
        if sign > 0 and positive(source):
            self.above.add(base)
        return self.times(result, self.atom(base, q))

    def _shared(self, p: Poly) -> tuple[Poly, Poly]:
        """(number and factors that all terms share, what is left)."""
        first = min(p, key=lambda t: t.key)
        scale = abs(p[first])
        bases: dict[Expr, float] = {}
        for t in p:
            for b, _ in t.factors:
                bases.setdefault(b, 0.0)
        shared: list[tuple[Expr, float]] = []
        for b in bases:
            if any(free_axes(b) & set(t.bound) for t in p):
                continue
            powers = [sum(x for y, x in t.factors if y == b) for t in p]
            least = min(powers)
            if least > 0 or (least != 0 and self._positive(b)):
                shared.append((b, least))
        if not shared:
            return {ONE: scale}, {t: c / scale for t, c in p.items()}
        left: Poly = {}
        for t, c in p.items():
            inverse = Term((), tuple((b, -n) for b, n in shared))
            divided = self._divided(t, inverse)
            left[divided] = left.get(divided, 0.0) + c / scale
        return {Term((), ordered(shared)): scale}, left

    def _divided(self, t: Term, inverse: Term) -> Term:
        taken = dict(inverse.factors)
        kept: list[tuple[Expr, float]] = []
        for b, n in t.factors:
            n += taken.pop(b, 0.0)
            if abs(n) > _NOTHING:
                kept.append((b, n))
        kept += list(taken.items())
        return named(list(t.bound), kept)

    def _content(self, p: Poly, q: float) -> tuple[Poly, Poly, float]:
        """(the shared factors raised to q as far as that is sound, the rest that is to be raised, the sign between).

        The sign is 1 where the rest is known to have that of p, else 0.
        """
        shared, rest = self._shared(p)
        ((common, scale),) = shared.items()
        sign = 1.0 if self._above(common) else 0.0
        if len(rest) == 1 and next(iter(rest.values())) < 0 and q.is_integer():
            rest = {t: -c for t, c in rest.items()}
            scale, sign = -scale, 0.0
        out: list[tuple[Expr, float]] = []
        back: list[tuple[Expr, float]] = []
        for b, n in common.factors:
            sure = self._positive(b)
            if sure or (q.is_integer() and n.is_integer() and n > 0):
                out.append((b, n * q))
            elif q == 0.5 and n == 2.0:
                absolute = self._poly(Map("abs", (b,)))
                if len(absolute) == 1:
                    out += next(iter(absolute)).factors
                else:
                    back.append((b, n))
            else:
                back.append((b, n))
        if back:
            rest = self.times({Term((), ordered(back)): 1.0}, rest)
        return self.scaled(self.term([], out), scale**q), rest, sign

    def _pow(self, a: Expr, c: float) -> Poly:
        if c in (2.0, 3.0, 4.0):
            p = self.poly(a)
            result = p
            for _ in range(int(c) - 1):
                result = self.times(result, p)
            return result
        if c in (-1.0, 0.5, 1.0):
            return self.poly(a) if c == 1.0 else self.power(self.poly(a), c, a)
        if c == -0.5:
            return self.poly(recip(op("sqrt", a)))
        if c == -2.0:
            return self.poly(recip(mul(a, a)))
        return self.atom(Map("pow", (self.within(a), Const(c))))

    # Functions

    def _exp(self, a: Expr) -> Poly:
        match a:
            case Const(c) if c == -math.inf:
                return {}
            case Map("where", (p, x, y)) if not finite(a):
                return self._where(p, op("exp", x), op("exp", y))
            case Map("add", (x, y)) if not finite(a):
                return self.times(self._exp(x), self._exp(y))
            case Map("mul", (Const(c), Map("where", (p, x, y)))) if c > 0 and not finite(a):
                return self._where(p, op("exp", mul(Const(c), x)), op("exp", mul(Const(c), y)))
        result: Poly = {ONE: 1.0}
        for t, c in self.poly(a).items():
            part: Poly
            match t:
                case Term((), ()):
                    if abs(c) > MAX_EXPONENT:
                        raise Unfit
                    part = {ONE: math.exp(c)}
                case Term((), ((Map("log", (x,)), 1.0),)) if c == 1.0 and self._positive(x):
                    part = self.poly(x)
                case Term((), ((Map("log", (x,)), 1.0),)) if c == -1.0 and self._positive(x):
                    part = self.power(self.poly(x), -1.0, x)
                case _:
                    part = self.atom(Map("exp", (self.expr({t: 1.0}),)), c)
            result = self.times(result, part)
        return result

    def _log(self, a: Expr) -> Poly:
        p = self.poly(a)
        if not p:
            raise Unfit
        shared, rest = self._shared(p)
        ((common, scale),) = shared.items()
        if not all(self._positive(b) for b, _ in common.factors):
            return self.atom(Map("log", (self.expr(p),)))
        parts: list[Poly] = [{ONE: math.log(scale)} if scale != 1.0 else {}]
        for b, n in common.factors:
            match b:
                case Map("exp", (x,)):
                    parts.append(self.scaled(self.poly(x), n))
                case _:
                    parts.append(self.scaled(self.atom(Map("log", (b,))), n))
        if rest != {ONE: 1.0}:
            inner = self.expr(rest)
            if positive(a):
                self.above.add(inner)
            parts.append(self.atom(Map("log", (inner,))))
        return self.sum(parts)

    def _odd(self, name: str, p: Poly) -> Poly:
        if not p:
            return {}
        if _leading(p) < 0:
            return self.scaled(self._odd(name, self.scaled(p, -1.0)), -1.0)
        return self.atom(Map(name, (self.expr(p),)))

    def _turn(self, p: Poly) -> tuple[Poly, Poly]:
        """Cosine and sine of a sum, by the addition theorems."""
        cosine: Poly = {ONE: 1.0}
        sine: Poly = {}
        for t, c in sorted(p.items(), key=lambda x: x[0].key):
            if t == ONE:
                a, b = {ONE: math.cos(c)}, {ONE: math.sin(c)}
            else:
                angle = self.expr({t: abs(c)})
                a = self.atom(Map("cos", (angle,)))
                b = self.scaled(self.atom(Map("sin", (angle,))), math.copysign(1.0, c))
            both = self.times(cosine, a), self.times(sine, b), self.times(sine, a), self.times(cosine, b)
            cosine = self.sum([both[0], self.scaled(both[1], -1.0)])
            sine = self.sum([both[2], both[3]])
        return cosine, sine

    def _larger(self, p: Poly, q: Poly) -> Poly:
        """max(p, q) = q + max(p - q, 0)."""
        return self.sum([q, self._ramp(self.sum([p, self.scaled(q, -1.0)]))])

    def _ramp(self, p: Poly) -> Poly:
        """max(p, 0), of p or of -p: max(-p, 0) = max(p, 0) - p."""
        if not p:
            return {}
        if set(p) == {ONE}:
            return {ONE: p[ONE]} if p[ONE] > 0 else {}
        lead = _leading(p)
        if lead < 0:
            return self.sum([self._ramp(self.scaled(p, -1.0)), p])
        base = Map("maximum", (self.expr(self.scaled(p, 1 / lead)), const(0.0)))
        return self.scaled(self.atom(base), lead)

    def _where(self, p: Expr, a: Expr, b: Expr) -> Poly:
        if not (finite(a) and finite(b)):
            parts = [self._masked(x) for x in (a, b)]
            return self.atom(self._chosen(p, *parts))
        t = self._truth(p)
        other = self.sum([{ONE: 1.0}, self.scaled(t, -1.0)])
        return self.sum([self.times(t, self.poly(a)), self.times(other, self.poly(b))])

    def _chosen(self, p: Expr, a: Expr, b: Expr) -> Expr:
        """A choice, by the predicate or by its negation."""
        t = self._truth(p)
        other = self.sum([{ONE: 1.0}, self.scaled(t, -1.0)])
        if len(t) == 2 and len(other) == 1:
            return Map("where", (self.expr(other), b, a))
        return Map("where", (self.expr(t), a, b))

    def _truth(self, p: Expr) -> Poly:
        """1 where the predicate holds, else 0."""
        match p:
            case Const(c):
                return {ONE: 1.0} if c != 0 else {}
            case Map("not", (a,)):
                return self.sum([{ONE: 1.0}, self.scaled(self._truth(a), -1.0)])
            case Map("and", (a, b)):
                return self.times(self._truth(a), self._truth(b))
            case Map("or", (a, b)):
                x, y = self._truth(a), self._truth(b)
                return self.sum([x, y, self.scaled(self.times(x, y), -1.0)])
            case Map("lt" | "le" | "eq", (a, b)):
                return self._compared(p)
            case Map("isnan", (a,)):
                return {} if finite(a) else self.atom(Map("isnan", (a,)))
        known = self.within(p)
        return self.atom(Map("not", (Map("eq", (known, const(0.0))),)))

    def _compared(self, e: Map) -> Poly:
        d = margin(e)
        if d is not None and d.terms and d.is_affine():
            first = d.terms[0][1]
            backwards = is_static(first) and int(first) < 0
            if e.op == "eq":
                d = d.scaled(-1) if backwards else d
                return self.atom(Map("eq", (position(d), const(0.0))))
            if backwards:
                # d >= 0 unless -d - 1 >= 0
                other = self.atom(Map("le", (const(0.0), position(d.scaled(-1) + (-1)))))
                return self.sum([{ONE: 1.0}, self.scaled(other, -1.0)])
            return self.atom(Map("le", (const(0.0), position(d))))
        a, b = (x if isinstance(x, Const) else self.within(x) for x in e.args)
        return self.atom(Map(e.op, (a, b)))

    def _position(self, index: Index) -> Poly:
        if not is_static(index.offset) or not all(is_static(c) for _, c in index.terms):
            return self.atom(Position(index))
        parts: list[Poly] = [{ONE: float(int(index.offset))} if index.offset else {}]
        for a, c in index.terms:
            parts.append(self.scaled(self.atom(Position(Index(((a, 1),)))), float(int(c))))
        return self.sum(parts)

    def _reduce(self, e: Reduce) -> Poly:
        axis = e.axis
        match e.kind:
            case ReduceKind.SUM:
                return self.over(axis, self.poly(e.body))
            case ReduceKind.MIN:
                flipped = Reduce(ReduceKind.MAX, axis, neg(e.body))
                return self.scaled(self.poly(flipped), -1.0)
            case ReduceKind.PROD:
                return self.atom(Reduce(e.kind, axis, self.within(e.body)))
        if not finite(e.body):
            return self.atom(canonical(Reduce(e.kind, axis, self._masked(e.body))))
        p = self.poly(e.body)
        outside = {t: c for t, c in p.items() if axis not in t.free()}
        inside = {t: c for t, c in p.items() if axis in t.free()}
        if not inside:
            return p
        scale = abs(_leading(inside))
        body = self.expr(self.scaled(inside, 1 / scale))
        top = self.atom(canonical(Reduce(ReduceKind.MAX, axis, body)))
        return self.sum([outside, self.scaled(top, scale)])

    def _masked(self, e: Expr) -> Expr:
        """A body with -inf in it, its parts in normal form."""
        match e:
            case Map("where", (p, a, b)) if not finite(e):
                return self._chosen(p, self._masked(a), self._masked(b))
            case Map("add" | "mul" as name, (a, b)) if not finite(e):
                return Map(name, (self._masked(a), self._masked(b)))
        return e if isinstance(e, Const) else self.within(e)

    # Facts

    def _positive(self, base: Expr) -> bool:
        return base in self.above or positive(base)

    def _above(self, t: Term) -> bool:
        return all(self._positive(b) for b, _ in t.factors)

    def _finite(self, t: Term) -> bool:
        for b, p in t.factors:
            defined = nonneg(b) if p > 0 else nonzero(b) and (p.is_integer() or positive(b))
            if not finite(b) or not (defined or (p > 0 and p.is_integer()) or self._positive(b)):
                return False
        return True

    def _gathered(self, p: Poly) -> Poly:
        """Terms over a common denominator that add up to a multiple of it: (a + a*b)/(1 + b) = a."""
        bases = sorted({b for t in p for b, n in t.factors if n == -1.0 and is_sum(b) and self._positive(b)}, key=str)
        for base in bases:
            whole = self.poly(base)
            over = {t: c for t, c in p.items() if (base, -1.0) in t.factors}
            for t, c in over.items():
                part = self._quotient(t, base, whole)
                if part is None:
                    continue
                factor, first = part
                made = {s: d * c / first for s, d in self._multiple(factor, whole, base).items()}
                if made and all(abs(p.get(s, 0.0) - d) <= _NOTHING * abs(d) for s, d in made.items()):
                    rest = {s: d for s, d in p.items() if s not in made}
                    rest[factor] = rest.get(factor, 0.0) + c / first
                    return self.sum([rest])
        return p

    def _quotient(self, t: Term, base: Expr, whole: Poly) -> tuple[Term, float] | None:
        """(f, d) such that t is f times the first term of the sum, over the sum; d is that term's coefficient."""
        for first, d in sorted(whole.items(), key=lambda x: x[0].key):
            rest = [f for f in t.factors if f != (base, -1.0)]
            if first.bound:
                if t.bound == first.bound and tuple(rest) == first.factors:
                    return ONE, d
            elif first == ONE:
                return Term(t.bound, tuple(rest)), d
        return None

    def _multiple(self, factor: Term, whole: Poly, base: Expr) -> Poly:
        made: Poly = {}
        for t, d in whole.items():
            taken = {a for b, _ in factor.factors for a in free_axes(b)} | set(factor.bound)
            if set(t.bound) & taken:
                return {}
            factors = [*factor.factors, (base, -1.0)]
            powers = dict(t.factors)
            joined = [(b, n + powers.pop(b, 0.0)) for b, n in factors] + list(powers.items())
            made[named([*factor.bound, *t.bound], [(b, n) for b, n in joined if n])] = d
        return made

    # Back to expressions

    def expr(self, p: Poly) -> Expr:
        """The polynomial as an expression."""
        if not p:
            return const(0.0)
        parts = [written(t, c) for t, c in sorted(p.items(), key=lambda x: x[0].key)]
        return add(*parts)


def _infinite(e: Expr) -> bool:
    """Whether an infinite constant may be the value; an exponential or a maximum of one is none (see facts.py)."""
    match e:
        case Const(c):
            return not math.isfinite(c)
        case Map("exp", _) | Reduce(ReduceKind.MAX, _, _):
            return False
    return any(_infinite(c) for c in e.children)


def _leading(p: Poly) -> float:
    return p[min(p, key=lambda t: t.key)]


__all__ = ["Unfit", "normal_form"]
