"""Proof by cases, and what kinds of values expressions have in rows that masks leave empty.

Of two values that are compared, or of which the larger is taken, one is not less than the other, and what does not
depend on which is right in both cases: max(x, y) + log(1 + exp(min(x, y) - max(x, y))) is one expression where y <= x
and another where x <= y, and both are log(exp x + exp y).

A proof may need that a maximum is a number, as some candidate is undefined where it is -inf. That need not be assumed
where the reference is undefined there as well, or the candidate is not. So the row is looked at by itself: the maximum
is -inf, each element that it is of is, and what follows of each operation is worked out. A finite argument is taken to
lie in the domain of what it is an argument of (see `Facts.trust`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from prism.program.build import const, mul, neg
from prism.program.fold import op
from prism.program.index import Index
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, Size, free_axes, walk
from prism.program.sign_analysis import Facts
from prism.program.transform import canonical, rebuilt, substitute

Kinds: TypeAlias = frozenset[str]

NUMBER, ABOVE, BELOW, NONE = "number", "inf", "-inf", "undefined"
_ALL: Kinds = frozenset({NUMBER, ABOVE, BELOW, NONE})
_NUMBER: Kinds = frozenset({NUMBER})
_OPPOSITE: Mapping[str, str] = MappingProxyType({NUMBER: NUMBER, ABOVE: BELOW, BELOW: ABOVE, NONE: NONE})
# Masks of which each may leave a row empty or not.
_MANY = 4
_ZERO = const(0.0)
_OTHER = MappingProxyType({"maximum": "minimum", "minimum": "maximum"})


def defined_alike(reference: Expr, candidate: Expr, extremes: Sequence[Expr]) -> bool:
    """Whether, wherever some of the maxima (minima) are of empty rows, the candidate has a value if the reference has.

    Both are over the same axes; `extremes` are the maxima and minima of which masks may hide all, in canonical form.
    """
    rows = {a for e in extremes for a in free_axes(e)}
    bound = {e.axis for x in (reference, candidate) for e in walk(x) if isinstance(e, Reduce)}
    if len(extremes) > _MANY or not rows.isdisjoint(bound):
        return False  # one of many rows may be empty, of which another reduction is
    for many in range(1, len(extremes) + 1):
        for empty in itertools.combinations(extremes, many):
            row = _Row(frozenset(empty), frozenset(extremes) - frozenset(empty))
            if NONE in row.kinds(candidate) and row.kinds(reference) != {NONE}:
                return False
    return True


@dataclass(slots=True)
class _Row:
    """A place at which some maxima are of nothing but what masks hide, and others are numbers."""

    empty: frozenset[Expr]  # the former
    kept: frozenset[Expr]  # the latter
    _facts: Facts = field(default_factory=Facts)
    # By identity; the expression is kept, so that its identity is not used again.
    _known: dict[int, tuple[Expr, Kinds]] = field(default_factory=dict)

    def kinds(self, e: Expr) -> Kinds:
        """What the value may be."""
        known = self._known.get(id(e))
        if known is None:
            hidden = self._hidden(e)
            known = self._known[id(e)] = e, self._kinds(e) if hidden is None else frozenset({hidden})
        return known[1]

    def _hidden(self, e: Expr) -> str | None:
        """The infinity that an empty row's maximum is, and that its elements are."""
        for extreme in self.empty:
            assert isinstance(extreme, Reduce)
            is_it = isinstance(e, Reduce) and e.kind is extreme.kind and canonical(e) == extreme
            if is_it or (type(e) is type(extreme.body) and self._element(e, extreme)):
                return BELOW if extreme.kind is ReduceKind.MAX else ABOVE
        return None

    @staticmethod
    def _element(e: Expr, extreme: Reduce) -> bool:
        if isinstance(e, Map) and isinstance(extreme.body, Map) and e.op != extreme.body.op:
            return False
        places = [a for a in free_axes(e) - free_axes(extreme) if a.extent == extreme.axis.extent]
        return any(substitute(extreme.body, {extreme.axis: Index.axis(a)}) == e for a in places)

    def _kinds(self, e: Expr) -> Kinds:
        match e:
            case Const(c):
                return frozenset({NONE if math.isnan(c) else NUMBER if math.isfinite(c) else ABOVE if c > 0 else BELOW})
            case Read() | Size() | Position():
                return _NUMBER
            case Map("where", (p, a, b)):
                truth = self._truth(p)
                return self.kinds(a if truth else b) if truth is not None else self.kinds(a) | self.kinds(b)
            case Map("lt" | "le" | "eq" | "and" | "or" | "not" | "isnan", _):
                return _NUMBER
            case Map(op, args):
                parts = [self.kinds(a) for a in args]
                return frozenset(k for of in itertools.product(*parts) for k in self._image(op, args, of))
            case Reduce(kind, _, body):
                found = _reduced(kind, self.kinds(body))
                loser = BELOW if kind is ReduceKind.MAX else ABOVE
                return found - {loser} if loser in found and canonical(e) in self.kept else found
        return _ALL

    def _image(self, op: str, args: Sequence[Expr], of: Sequence[str]) -> Kinds:
        if NONE in of:
            return frozenset({NONE})
        if set(of) == {NUMBER}:
            return frozenset({NUMBER, BELOW}) if op in ("log", "log2") else _NUMBER
        x, y = of[0], of[-1]
        match op:
            case "add":
                return frozenset({NONE} if {x, y} == {ABOVE, BELOW} else {x, y} - {NUMBER})
            case "neg":
                return frozenset({_OPPOSITE[x]})
            case "mul" if NUMBER not in of:
                return frozenset({ABOVE if x == y else BELOW})
            case "mul":
                factor, infinite = (args[0], y) if x == NUMBER else (args[1], x)
                return frozenset({infinite} if self._facts.positive(factor) else {ABOVE, BELOW, NONE})
            case "maximum" | "minimum":
                best, worst = (ABOVE, BELOW) if op == "maximum" else (BELOW, ABOVE)
                return frozenset({best} if best in of else set(of) - {worst} or {worst})
            case "recip" | "sigmoid" | "tanh" | "atan" | "erf" | "sign":
                return _NUMBER
            case "exp":
                return _NUMBER if x == BELOW else frozenset({ABOVE})
            case "abs":
                return frozenset({ABOVE})
            case "log" | "log2" | "sqrt":
                return frozenset({ABOVE if x == ABOVE else NONE})
            case "floor" | "round":
                return frozenset({x})
        return _ALL

    def _truth(self, p: Expr) -> bool | None:
        """Whether the predicate holds, where that is known."""
        match p:
            case Const(c):
                return c != 0
            case Map("not", (a,)):
                known = self._truth(a)
                return None if known is None else not known
            case Map("isnan", (a,)):
                kinds = self.kinds(a)
                return True if kinds == {NONE} else False if NONE not in kinds else None
            case Map("eq" | "lt" | "le" as op, (a, b)):
                one, other = self.kinds(a), self.kinds(b)
                if len(one) != 1 or len(other) != 1:
                    return None
                (x,), (y,) = one, other
                if NONE in (x, y):
                    return False
                if x == y:
                    return None if x == NUMBER else op != "lt"
                order = (BELOW, NUMBER, ABOVE)
                return op != "eq" and order.index(x) < order.index(y)
        return None


def _reduced(kind: ReduceKind, of: Kinds) -> Kinds:
    """What a reduction of such elements may be; there is at least one."""
    if len(of) == 1 and kind is not ReduceKind.PROD:
        return of
    if kind is ReduceKind.PROD:
        return of if of <= {NUMBER, NONE} else _ALL
    meet = kind is ReduceKind.SUM and {ABOVE, BELOW} <= of
    return of | {NONE} if meet else of


def _over(e: Expr, by: Expr) -> Expr | None:
    """What the expression is a multiple of; None where it is not written as one."""
    match e:
        case Map("mul", (a, b)) if by in (a, b):
            return b if a == by else a
        case Map("neg", (a,)):
            over = _over(a, by)
            return None if over is None else neg(over)
    return e if e == _ZERO else const(1.0) if e == by else None


# Nodes of the two expressions together beyond which cases, which multiply the work, are not told apart.
MAX_NODES = 600


@dataclass(frozen=True, slots=True)
class Case:
    """That `less` is not more than `more`; is less, where it is strict."""

    less: Expr  # one value
    more: Expr  # the other
    strict: bool  # whether they differ
    within: Case | None = None  # the case that this is one of, if any

    def of(self, exprs: Sequence[Expr]) -> list[Expr]:
        """The expressions where it is so."""
        known = rebuilt(exprs, self._known)
        return rebuilt(known, self._scaled) if _ZERO in (self.less, self.more) else known

    def _scaled(self, e: Expr) -> Expr:
        """The larger (smaller) of two multiples of what has one sign: a multiple of the larger or of the smaller."""
        by, other = (self.more, self.less) if self.less == _ZERO else (self.less, self.more)
        if other != _ZERO or not isinstance(e, Map) or e.op not in _OTHER:
            return e
        x, y = (_over(a, by) for a in e.args)
        if x is None or y is None or not all(Facts().finite(a) for a in (x, y, by)):
            return e
        return mul(by, op(e.op if self.more == by else _OTHER[e.op], x, y))

    def _known(self, e: Expr) -> Expr:
        match e:
            case Map("maximum" | "minimum", (a, b)) if a == b:
                return a
            case Map("maximum" | "minimum" as name, (a, b)) if (order := self._order(a, b)) is not None:
                return b if (order[0] is a) == (name == "maximum") else a
            case Map("lt" | "le" | "eq" as name, (a, b)) if (order := self._order(a, b)) is not None:
                below, strict = order[0] is a, order[1]
                if name == "eq":
                    return const(0.0) if strict else e
                if strict or below == (name == "le"):
                    return const(float(below))
            case Map("where", (Const(), _, _)):
                return op("where", *e.args)
        return e

    def _order(self, a: Expr, b: Expr) -> tuple[Expr, bool] | None:
        """Which of two is not more than the other, and whether it is less; None where that is open."""
        for low, high in ((a, b), (b, a)):
            strict = self._less(low, high)
            if strict is not None:
                return low, strict
        return None

    def _less(self, low: Expr, high: Expr) -> bool | None:
        """Whether one is less than the other by a chain of the cases and of numbers; None where it may be more."""
        edges: list[tuple[Expr, Expr, bool]] = []
        case: Case | None = self
        while case is not None:
            edges.append((case.less, case.more, case.strict))
            case = case.within
        ends = dict.fromkeys(x for x in (low, high, *(x for e in edges for x in e[:2])) if isinstance(x, Const))
        edges += [(x, y, True) for x, y in itertools.permutations(ends, 2) if x.value < y.value]
        reached = {low: False}
        todo = [low]
        while todo:
            at = todo.pop()
            for less, more, strictly in edges:
                strict = reached[at] or strictly
                if less == at and strict > reached.get(more, -1):
                    reached[more] = strict
                    todo.append(more)
        return reached.get(high) if high != low else None


def cases(a: Expr, b: Expr, within: Case | None = None) -> tuple[Case, Case] | None:
    """Two cases of which one holds everywhere, by the smallest comparison in two expressions; None without any.

    Only values that no reduction binds are compared: a case is one of the whole expression.
    """
    nodes = dict.fromkeys((*walk(a), *walk(b)))
    if len(nodes) > MAX_NODES:
        return None
    bound = {e.axis for e in nodes if isinstance(e, Reduce)}
    found = [
        e
        for e in nodes
        if isinstance(e, Map)
        and e.op in _COMPARED
        and e.args[0] != e.args[1]
        and free_axes(e).isdisjoint(bound)
        and not any(isinstance(x, Const) and x.value in _INFINITE for x in e.args)
    ]
    if not found:
        return None
    first = min(found, key=lambda e: (len(str(e)), str(e)))
    x, y = first.args
    return Case(x, y, first.op == "lt", within), Case(y, x, first.op != "lt", within)


_COMPARED = ("maximum", "minimum", "le", "lt")
_INFINITE = (float("inf"), float("-inf"))
