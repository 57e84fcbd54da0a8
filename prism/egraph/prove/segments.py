"""Proof along a line: what is pieces of one number is compared piece by piece, and at each point between two.

max(x, x/10) and where(0 < x, x, x/10), Huber's loss by `<` and by `<=`, a clamp by absolute values: each comparison is
of some number u with a constant, once what it compares is in pieces of u itself. So u lies below the least of these
constants, between two of them, above all or at one. Inside of a piece comparisons are known; at a point u is a number,
and one of its terms is that number less the others. Expressions of one normal form, or one quotient, throughout are
equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from prism.egraph.prove.normal_form import expression, normal_form, polynomial, same_quotient
from prism.egraph.prove.polynomials import Unfit
from prism.egraph.prove.products import ONE, Poly, Term
from prism.program.build import add, const, mul, neg
from prism.program.nodes import Const, Expr, Map, Reduce, free_axes, walk
from prism.program.sign_analysis import Facts
from prism.program.transform import rebuilt

MAX_NODES = 300
"""Of both expressions together."""
MAX_POINTS = 8
_COMPARED = frozenset({"maximum", "minimum", "lt", "le", "eq", "abs", "sign"})


def alike_in_pieces(a: Expr, b: Expr) -> bool:
    """Whether two expressions are equal in each piece of some number that both are pieces of, and in between."""
    nodes = dict.fromkeys((*walk(a), *walk(b)))
    if len(nodes) > MAX_NODES or not any(isinstance(e, Map) and e.op in _COMPARED for e in nodes):
        return False
    bound = frozenset(e.axis for e in nodes if isinstance(e, Reduce))
    line = next((u for u in map(_line, nodes) if u is not None), None)
    if line is None or not free_axes(line).isdisjoint(bound) or not Facts().finite(line):
        return False
    try:
        return _Line(polynomial(line), [MAX_POINTS]).alike([a, b], -math.inf, math.inf)
    except Unfit:
        return False


def _line(e: Expr) -> Expr | None:
    """What a comparison compares with a constant, if it is free of comparisons itself."""
    d = _difference(e)
    if d is None or any(isinstance(x, Map) and x.op in _COMPARED for x in walk(d)):
        return None
    try:
        p = _straightened(polynomial(d))
    except Unfit:
        return None
    p.pop(ONE, None)
    return expression(p) if p else None


def _difference(e: Expr) -> Expr | None:
    """The number whose sign decides what the value is."""
    match e:
        case Map("abs" | "sign", (x,)):
            return x
        case Map(op, (x, y)) if op in _COMPARED:
            infinite = any(isinstance(c, Const) and not math.isfinite(c.value) for c in (x, y))
            return None if infinite else add(x, neg(y))
    return None


def _straightened(p: Poly) -> Poly:
    """A number of the same sign: of c*(exp x - 1), c*x."""
    rest = dict(p)
    offset = rest.pop(ONE, Fraction(0))
    match [*rest.items()]:
        case [(Term((), ((Map("exp", (x,)), 1),)), c)] if c == -offset:
            return {t: c * n for t, n in polynomial(x).items()}
    return dict(p)


@dataclass(frozen=True, slots=True)
class _Line:
    """The number u."""

    u: Poly  # it, without a constant term
    left: list[int]  # how many points may still be looked at

    def alike(self, exprs: Sequence[Expr], low: Fraction | float, high: Fraction | float) -> bool:
        """Whether both are equal where u is more than one bound and less than the other."""
        points: set[Fraction] = set()

        def known(e: Expr) -> Expr:
            p = self._sign(e)
            if p is None:
                return e
            slope, offset = p
            if slope:
                root = -offset / slope
                if low < root < high:
                    points.add(root)
                    return e
                positive = (root <= low) == (slope > 0)
                return _decided(e, 1 if positive else -1)
            return _decided(e, (offset > 0) - (offset < 0))

        made = rebuilt(exprs, known)
        if not points:
            one, other = made
            return _same(one, other, frozenset({expression(self.u)}) if high <= 0 or low >= 0 else frozenset())
        point = min(points)
        self.left[0] -= 1
        return (
            self.left[0] >= 0
            and self.alike(made, low, point)
            and ((point == 0 and Facts().nonzero(expression(self.u))) or self._alike_at(made, point))
            and self.alike(made, point, high)
        )

    def _alike_at(self, exprs: Sequence[Expr], point: Fraction) -> bool:
        """Whether both are equal where u is a number."""

        def number(e: Expr) -> Expr:
            """A multiple of u, and a number more, is one."""
            at = None if isinstance(e, Const) else self._multiple(e)
            return expression({ONE: at[0] * point + at[1]}) if at is not None and at[0] else e

        def known(e: Expr) -> Expr:
            p = self._sign(e)
            return e if p is None or p[0] else _decided(e, (p[1] > 0) - (p[1] < 0))

        at = rebuilt(exprs, number)
        for t, c in self.u.items():
            if len(self.u) > 1 and not t.bound and len(t.factors) == 1 and t.factors[0][1] == 1:
                atom = t.factors[0][0]
                others = expression({k: -v / c for k, v in self.u.items() if k != t} | {ONE: point / c})
                if atom not in set(walk(others)):
                    at = rebuilt(at, lambda e, atom=atom, others=others: others if e == atom else e)  # type: ignore[misc]
                    break
        one, other = rebuilt(at, known)
        return _same(one, other)

    def _sign(self, e: Expr) -> tuple[Fraction, Fraction] | None:
        """(a, b) where the value is decided by the sign of a*u + b."""
        d = _difference(e)
        if d is None or not Facts().finite(d):
            return None
        return self._affine(_straightened(polynomial(d)))

    def _multiple(self, e: Expr) -> tuple[Fraction, Fraction] | None:
        """(a, b) where the value is a*u + b."""
        try:
            return self._affine(dict(polynomial(e)))
        except Unfit:
            return None

    def _affine(self, p: Poly) -> tuple[Fraction, Fraction] | None:
        offset = p.pop(ONE, Fraction(0))
        if not p:
            return Fraction(0), offset
        if p.keys() != self.u.keys():
            return None
        first = next(iter(self.u))
        slope = p[first] / self.u[first]
        return (slope, offset) if all(v == slope * self.u[t] for t, v in p.items()) else None


def _same(a: Expr, b: Expr, nonzero: frozenset[Expr] = frozenset()) -> bool:
    """Whether two expressions are one, where some finite values are not 0."""
    one, other = (normal_form(e, nonzero=nonzero) for e in (a, b))
    return one == other or same_quotient(a, b, nonzero)


def _decided(e: Expr, sign: int) -> Expr:
    """A comparison whose difference is negative, 0 or positive."""
    assert isinstance(e, Map)
    x, y = e.args[0], e.args[-1]
    match e.op:
        case "maximum":
            return x if sign >= 0 else y
        case "minimum":
            return x if sign <= 0 else y
        case "abs":
            return x if sign >= 0 else mul(const(-1.0), x)
        case "sign":
            return const(float(sign))
        case "lt":
            return const(float(sign < 0))
        case "le":
            return const(float(sign <= 0))
    return const(float(sign == 0))
