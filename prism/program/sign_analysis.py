"""What is known of an expression's sign and of where it is infinite or undefined, for inputs that are finite numbers.

Values are extended real numbers: infinities come from constants (a mask's -inf) and from log 0, and inf - inf, 0*inf
and 1/0 are undefined. A maximum over a range of which a mask may hide all is -inf there, so it counts as a number only
where some element is known to be kept: one is sought at the ends of the range and at the borders of its comparisons (a
causal mask keeps position 0, and the query's own).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.integers import REAL, Interval, bounds_of
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, Size, free_axes, walk
from prism.program.ops import BOOLEAN, COMPARISONS
from prism.program.refinement import margin, simplified
from prism.program.transform import canonical, substitute

NONE: frozenset[float] = frozenset()
# Places of a range at which an element that is kept is sought.
_PLACES = 8
# What bounds are moved by, relative to them, at each step.
_ROUNDED = 1e-12


@dataclass(slots=True)
class Facts:
    """Answers about expressions; each is worked out once."""

    # Whether every maximum (minimum) is taken for a number that is one unless all of its range is masked.
    assume: bool = False
    # Whether a finite number is taken to lie in the domain of what it is an argument of, so that infinities alone are
    # followed.
    trust: bool = False
    # The maxima and minima of which that was assumed, in the order in which they were met.
    assumed: dict[Expr, None] = field(default_factory=dict)
    # By identity; the expression is kept, so that its identity is not used again.
    _infinities: dict[int, tuple[Expr, frozenset[float] | None]] = field(default_factory=dict)
    _sums: dict[int, tuple[Expr, bool]] = field(default_factory=dict)
    _ranges: dict[int, tuple[Expr, Interval]] = field(default_factory=dict)
    _sure: Facts | None = None

    def positive(self, e: Expr) -> bool:
        """Whether the value is known to be more than 0, where it is defined."""
        match e:
            case Const(c):
                return c > 0
            case Size():
                return True
            case Map("exp" | "sigmoid", (a,)):
                return self.finite(a)  # 0 at -inf
            case Map("abs", (a,)):
                return self.nonzero(a)
            case Map("add", (Const(c), Map("neg", (Map("sigmoid", (a,)),)))) if c >= 1:
                return self.finite(a)
            case Map("add", (a, b)):
                signs = (self.positive(a) and self.nonneg(b)) or (self.nonneg(a) and self.positive(b))
                return signs or self.range(e).low > 0
            case Map("mul", (a, b)):
                return (self.positive(a) and self.positive(b)) or (a == b and self.nonzero(a))
            case Map("sqrt", (a,)):
                return self.positive(a)
            case Map("recip", (a,)):
                return self.positive(a) and self.finite(a)
            case Map("maximum", (a, b)):
                return self.positive(a) or self.positive(b)
            case Map("minimum" | "where", (*_, a, b)):
                return self.positive(a) and self.positive(b)
            case Map("pow", (a, b)):
                return self.positive(a) and self.finite(a) and self.finite(b)
            case Reduce(ReduceKind.SUM, _, _):
                known = self._sums.get(id(e))
                if known is None:
                    known = self._sums[id(e)] = e, self._positive_sum(e)
                return known[1]
            case Reduce(_, _, body):
                return self.positive(body)
        return False

    def _positive_sum(self, e: Reduce) -> bool:
        """Whether a sum is more than 0: all of its terms are, or one of them and none is less."""
        if self.positive(e.body):
            return True
        if not self.nonneg(e.body):
            return False
        match e.body:
            case Map("exp", (Map("add", (a, Map("neg", (Reduce(ReduceKind.MAX, axis, b) as top,)))),)):
                # exp(a - max a) is 1 somewhere.
                if substitute(b, {axis: Index.axis(e.axis)}) == a and self.finite(top):
                    return True
        return any(self.positive(x) for x in _elements(e))

    def nonzero(self, e: Expr) -> bool:
        """Whether the value is known not to be 0, where it is defined."""
        match e:
            case Const(c):
                return c != 0
            case Map("neg", (a,)):
                return self.nonzero(a)
            case Map("recip", (a,)):
                return self.nonzero(a) and self.finite(a)
            case Map("mul", (a, b)):
                return self.nonzero(a) and self.nonzero(b)
            case Map("abs" | "sqrt", (a,)):
                return self.nonzero(a)
            case Map("where", (Map("eq", (a, Const(0.0))), b, c)) if a == c:
                return self.nonzero(b)
        return self.positive(e)

    def nonneg(self, e: Expr) -> bool:
        """Whether the value is known to be at least 0, where it is defined."""
        match e:
            case Const(c):
                return c >= 0
            case Map("exp" | "sigmoid" | "abs" | "sqrt" | "lt" | "le" | "eq" | "and" | "or" | "not" | "isnan", _):
                return True
            case Map("add", (a, b)):
                return (self.nonneg(a) and self.nonneg(b)) or self.range(e).low >= 0
            case Map("mul", (a, b)):
                return a == b or (self.nonneg(a) and self.nonneg(b))
            case Map("recip", (a,)):
                return self.nonneg(a)
            case Map("maximum", (a, b)):
                return self.nonneg(a) or self.nonneg(b)
            case Map("minimum" | "where", (*_, a, b)):
                return self.nonneg(a) and self.nonneg(b)
            case Map("pow", (a, Const(c))):
                return self.nonneg(a) or c == 2.0
            case Reduce(_, _, body):
                return self.nonneg(body)
        return self.positive(e)

    def range(self, e: Expr) -> Interval:
        """Numbers between which the value lies, where it is defined; inputs may be any."""
        known = self._ranges.get(id(e))
        if known is None:
            made = bounds_of(e, [self.range(c) for c in e.children], lambda _: REAL, MappingProxyType({}))
            exact = made.whole or (isinstance(e, Map) and e.op in _SELECTS)
            known = self._ranges[id(e)] = e, made if exact else _widened(made)
        return known[1]

    def finite(self, e: Expr) -> bool:
        """Whether the value is known to be a number at all finite inputs."""
        return self.infinities(e) == NONE

    def infinities(self, e: Expr) -> frozenset[float] | None:
        """The infinities that the value may be, where it is known to be defined; None where it is not."""
        known = self._infinities.get(id(e))
        if known is None:
            sure = self._without(e)
            known = self._infinities[id(e)] = e, sure if sure == NONE else self._found(e)
        return known[1]

    def _without(self, e: Expr) -> frozenset[float] | None:
        """What is known without assumptions, where there are any."""
        if not self.assume:
            return None
        if self._sure is None:
            self._sure = Facts(trust=self.trust)
        return self._sure.infinities(e)

    def _found(self, e: Expr) -> frozenset[float] | None:
        match e:
            case Const(c):
                return None if math.isnan(c) else NONE if math.isfinite(c) else frozenset({c})
            case Read() | Size() | Position():
                return NONE
            case Map(op, _) if op in BOOLEAN:
                return NONE
            case Map("where", (p, a, b)):
                chosen = constant(p)
                if chosen is not None:
                    return self.infinities(a if chosen else b)
                return _either(self.infinities(a), self.infinities(b))
            case Reduce(kind, _, body):
                return self._reduced(e, kind, body)
            case Map(op, args):
                below = [self.infinities(a) for a in args]
                return self._pointwise(op, args, [b for b in below if b is not None]) if None not in below else None
        return None

    def _pointwise(self, op: str, args: tuple[Expr, ...], of: list[frozenset[float]]) -> frozenset[float] | None:
        a, x = args[0], of[0]
        match op:
            case "add":
                both = x | of[1]
                return None if len(both) == 2 and x != NONE and of[1] != NONE else both
            case "neg":
                return frozenset(-i for i in x)
            case "mul":
                return self._product(args, of)
            case "maximum" | "minimum":
                # What loses against any number is the result only where both are it.
                loser = -math.inf if op == "maximum" else math.inf
                return (x | of[1]) - {loser} | (x & of[1] & {loser})
            case "exp":
                return x - {-math.inf}
            case "abs":
                return frozenset({math.inf}) if x else NONE
            case "recip":
                return NONE if self.trust or self.nonzero(a) else None
            case "log" | "log2":
                return x if self.positive(a) else x | {-math.inf} if self.trust or self.nonneg(a) else None
            case "sqrt":
                return x if self.trust or self.nonneg(a) else None
            case "pow":
                return NONE if not any(of) and (self.trust or self._power(a, args[1])) else None
            case "sigmoid" | "tanh" | "atan" | "erf" | "sign":
                return NONE
            case "floor" | "round":
                return x
        return NONE if not any(of) else None

    def _power(self, a: Expr, b: Expr) -> bool:
        return self.positive(a) or (isinstance(b, Const) and b.value >= 0 and b.value.is_integer())

    def _product(self, args: tuple[Expr, ...], of: list[frozenset[float]]) -> frozenset[float] | None:
        if not any(of):
            return NONE
        for one, other in ((0, 1), (1, 0)):
            if of[one] == NONE:
                factor = args[one]
                if self.positive(factor):
                    return of[other]
                if isinstance(factor, Const) and factor.value < 0:
                    return frozenset(-i for i in of[other])
        return None

    def _reduced(self, e: Reduce, kind: ReduceKind, body: Expr) -> frozenset[float] | None:
        inside = self.infinities(body)
        if inside is None or not inside:
            return inside
        match kind:
            case ReduceKind.SUM:
                return inside if len(inside) == 1 else None
            case ReduceKind.PROD:
                return None
        loser = -math.inf if kind is ReduceKind.MAX else math.inf
        if loser not in inside or any(self.finite(x) for x in _elements(e)):
            return inside - {loser}
        if self.assume:
            self.assumed.setdefault(canonical(e))
            return inside - {loser}
        return inside


_SELECTS = frozenset(
    {"maximum", "minimum", "where", "neg", "abs", "sigmoid", "tanh", "erf", "sin", "cos", "atan", "sign"}
)


def _widened(x: Interval) -> Interval:
    """The bounds apart by more than roundings of them, and by more than what constants are read as is from them."""
    low = x.low - _ROUNDED * abs(x.low) if math.isfinite(x.low) else x.low
    high = x.high + _ROUNDED * abs(x.high) if math.isfinite(x.high) else x.high
    return REAL if math.isnan(low) or math.isnan(high) else Interval(low, high, whole=False)


def _either(a: frozenset[float] | None, b: frozenset[float] | None) -> frozenset[float] | None:
    return None if a is None or b is None else a | b


def _elements(e: Reduce) -> Iterator[Expr]:
    """Elements of a reduction's range: at its ends, and where a comparison in the body has its border."""
    last = Index.const(e.axis.extent) + (-1)
    compared = [c for c in walk(e.body) if isinstance(c, Map) and c.op in COMPARISONS and e.axis in free_axes(c)]
    places = dict.fromkeys([Index.const(0), *(b for c in compared for b in _borders(e.axis, c, 0))])
    places |= dict.fromkeys([last, *(b for c in compared for b in _borders(e.axis, c, -1))])
    for place in [*places][:_PLACES]:
        yield simplified(substitute(e.body, {e.axis: place}))


def _borders(axis: Axis, comparison: Map, by: int) -> Iterator[Index]:
    """The value of the axis at which a comparison holds by so much, where it is always within the range.

    By 0 it just holds; by -1 it just does not.
    """
    d = margin(comparison)
    slope = dict(d.terms).get(axis) if d is not None else None
    if d is None or slope not in (1, -1):
        return
    rest = Index(tuple(t for t in d.terms if t[0] != axis), d.offset)
    found = (rest + -by).scaled(-1) if slope == 1 else rest + -by
    if found.never_negative and (Index.const(axis.extent) + (-1) + found.scaled(-1)).never_negative:
        yield found


def settled(e: Expr) -> Expr:
    """Whether all of a range holds, or any, as a number where an element decides it; anything else as it is."""
    match e:
        case Reduce(ReduceKind.MAX | ReduceKind.MIN as kind, _, Map(name, _)) if name in BOOLEAN:
            decisive = 1.0 if kind is ReduceKind.MAX else 0.0
            if any(constant(x) == decisive for x in _elements(e)):
                return Const(decisive)
    return e


def constant(e: Expr) -> float | None:
    """The value of an expression of finite numbers alone, as comparisons leave behind; else None."""
    match e:
        case Const(c):
            return c if math.isfinite(c) else None
        case Position(index) if not index.terms and is_static(index.offset):
            return float(int(index.offset))
        case Map("add" | "mul" | "neg" | "and" | "or" | "not" | "lt" | "le" | "eq" as op, args):
            values = [constant(a) for a in args]
            known = [v for v in values if v is not None]
            return float(_ARITHMETIC[op](*known)) if len(known) == len(values) else None
    return None


_ARITHMETIC: Mapping[str, Callable[..., float]] = MappingProxyType(
    {
        **{"add": operator.add, "mul": operator.mul, "neg": operator.neg, "not": operator.not_},
        **{"lt": operator.lt, "le": operator.le, "eq": operator.eq},
        **{"and": lambda a, b: bool(a) and bool(b), "or": lambda a, b: bool(a) or bool(b)},
    }
)


def kept(extreme: Expr) -> str:
    """The assumption that a mask leaves something of every row, of whose maximum (minimum) this is."""
    least = isinstance(extreme, Reduce) and extreme.kind is ReduceKind.MAX
    return f"{extreme} {'> -inf' if least else '< inf'}: the mask keeps an element of every row"


def masked(exprs: Iterable[Expr]) -> tuple[Expr, ...]:
    """The maxima and minima of which a mask may hide all, in the order in which they are met."""
    facts = Facts()
    extremes = (e for x in exprs for e in walk(x) if isinstance(e, Reduce) and e.kind.is_extreme)
    return tuple(dict.fromkeys(canonical(e) for e in extremes if facts.infinities(e)))


__all__ = ["NONE", "Facts", "constant", "kept", "masked", "settled"]
