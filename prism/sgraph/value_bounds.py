"""What is known of an expression's values: bounds, and whether one expression is at least another.

Intervals, and one fact on two values: a - m <= 0 where m is a maximum of a over an axis. Expressions are compared by
their *shape*, the text with axes told apart by their extents alone.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from prism.program import transform
from prism.program.extents import Extent, at_most
from prism.program.index import Atom, Axis, Index
from prism.program.integers import Interval, bounds_where, image, times
from prism.program.nodes import (
    Const,
    DType,
    Expr,
    Map,
    Position,
    Read,
    Reduce,
    ReduceKind,
    Size,
    Tensor,
    free_axes,
    walk,
)
from prism.program.ops import COMMUTATIVE
from prism.program.transform import canonical, substitute

_ANY = (-math.inf, math.inf)
_STORED = {
    DType.BOOL: (0.0, 1.0),
    DType.UINT8: (0.0, 255.0),
    DType.INT8: (-128.0, 127.0),
    DType.INT16: (-32768.0, 32767.0),
}
"""What short types hold."""


MOST_TERMS = 64
"""Terms that a sum, and factors that a product, is taken apart into at most: what is shared may have 2^n of them."""
_LONGEST = 300
"""The longest shape that is kept as text; of a longer one, its hash stands for it."""


def flat(e: Expr, op: str) -> list[Expr]:
    """As `transform.flat`, up to MOST_TERMS."""
    return transform.flat(e, op, MOST_TERMS)


def shape(e: Expr) -> str:
    """The expression as text, with axes told apart by their extents alone: equal where one is the other, renamed.

    Two axes of one extent that are swapped go unseen, which is near enough to say what the reference does, too.
    """
    return Shapes().of(e)


@dataclass(slots=True)
class Shapes:
    """Shapes of expressions; of what is shared, each is worked out once."""

    # The extent of an axis whose elements are not told apart, nor those of the parts that it is split into.
    blurred: Extent | None = None
    _known: dict[int, tuple[Expr, str]] = field(default_factory=dict)
    # Of sums and products: how often each term or factor stands in them.
    _parts: dict[tuple[int, str], Mapping[str, int]] = field(default_factory=dict)
    _truth: dict[int, bool] = field(default_factory=dict)

    def of(self, e: Expr) -> str:
        """The shape of an expression."""
        if id(e) not in self._known:
            for x in walk(e, self._known):
                self._truth[id(x)] = self._is_truth(x)
                self._known[id(x)] = x, self._shortened(self._of(x))
        return self._known[id(e)][1]

    @staticmethod
    def _shortened(text: str) -> str:
        return text if len(text) <= _LONGEST else f"#{hashlib.sha256(text.encode()).hexdigest()}"

    def _of(self, e: Expr) -> str:
        """The shape, given those of what is below."""
        match e:
            case Read(tensor, index):
                return f"{tensor}[{','.join(map(self._index, index))}]"
            case Position(index):
                return f"@{self._index(index)}"
            case Map("neg", _):
                return self._flattened(e, "mul")
            case Map("where", (p, a, b)):
                return self._choice(p, a, b)
            case Map("add" | "mul" as op, _):
                return self._flattened(e, op)
            case Map(op, args):
                operands = map(self.of, args)
                return f"{op}({','.join(sorted(operands) if op in COMMUTATIVE else operands)})"
            case Reduce(kind, axis, body):
                return f"{kind.value}.{axis.extent}({self.of(body)})"
            case _:
                return str(e)

    def _choice(self, p: Expr, a: Expr, b: Expr) -> str:
        while True:
            if a == Const(1.0) and b == Const(0.0) and self._truth[id(p)]:
                return self.of(p)
            if not (isinstance(p, Map) and p.op == "not"):
                return f"where({self.of(p)},{self.of(a)},{self.of(b)})"
            p, a, b = p.args[0], b, a

    def _flattened(self, e: Map, op: str) -> str:
        total: Counter[str] = Counter({str(Const(-1.0)): 1} if e.op == "neg" else {})
        for a in e.args:
            total.update(self._within(a, op))
        self._parts[id(e), op] = total
        return f"{op}({','.join(p if n == 1 else f'{n} {p}' for p, n in sorted(total.items()))})"

    def _within(self, e: Expr, op: str) -> Mapping[str, int]:
        """The terms or factors that the expression is, counted."""
        return self._parts.get((id(e), op)) or {self.of(e): 1}

    def _is_truth(self, e: Expr) -> bool:
        """Whether the value is 0 or 1 by its operator."""
        match e:
            case Map("lt" | "le" | "eq" | "not" | "isnan", _):
                return True
            case Map("and" | "or", args):
                return all(self._truth[id(a)] for a in args)
            case Map("where", (_, a, b)):
                return all(self._truth[id(x)] or x in (Const(0.0), Const(1.0)) for x in (a, b))
            case _:
                return False

    def _index(self, index: Index) -> str:
        if self.blurred is None:
            return f"{index.offset}+" + "+".join(sorted(f"{c}*{_atom(a)}" for a, c in index.terms))
        split = any(_atom(a).startswith(("rest_", "parts_")) for a, _ in index.terms)
        # The parts of a split axis, and what is within one, are the axis of that extent.
        extent = str(self.blurred)
        gone = {extent, extent.removeprefix("rest_").removeprefix("parts_")}
        kept = [] if split else sorted(f"{c}*{_atom(a)}" for a, c in index.terms if _atom(a) not in gone)
        free = split or len(kept) < len(index.terms)
        return ("?" if free else f"{index.offset}") + "+".join(kept)


def _atom(atom: Atom) -> str:
    """An axis by its extent; what is rounded or wrapped as it is written."""
    return str(atom.extent) if isinstance(atom, Axis) else str(atom)


def declared(t: Tensor | None) -> tuple[float, float]:
    """Bounds of what is read from a tensor, as far as its type and what is stated of it say."""
    if t is None:
        return _ANY
    low, high = _STORED.get(t.dtype, _ANY)
    if t.stated is not None:
        low, high = max(low, t.stated.low), min(high, t.stated.high)
        low, high = (max(low, 0.0), min(high, 1.0)) if t.stated.truth else (low, high)
    return low, high


@dataclass(slots=True)
class Bounds:
    """Bounds on the values of expressions, over the reals.

    Attributes:
        tensors: those that are read, by name: their types bound them, and what is stated of them.
    """

    tensors: Mapping[str, Tensor]
    _known: dict[int, tuple[Expr, tuple[float, float]]] = field(default_factory=dict)
    _shapes: Shapes = field(default_factory=Shapes)
    _blurred: dict[Extent, Shapes] = field(default_factory=dict)

    def of(self, e: Expr) -> tuple[float, float]:
        """The least and the largest value, as far as it is known."""
        if id(e) not in self._known:
            for x in walk(e, self._known):
                self._known[id(x)] = x, self._of(x)
        return self._known[id(e)][1]

    def _of(self, e: Expr) -> tuple[float, float]:
        match e:
            case Const(value):
                return value, value
            case Size():
                return 1.0, math.inf
            case Position(index):
                least = 0 if all(at_most(0, c) for c in (index.offset, *(c for _, c in index.terms))) else -math.inf
                return float(least), math.inf
            case Read(tensor, _):
                return declared(self.tensors.get(tensor))
            case Map("add", _):
                return self._sum(e)
            case Map("mul", _):
                return self._product(e)
            case Map("where", (p, a, b)):
                test, one, other = (Interval(*self.of(x), whole=False) for x in e.args)
                found = image("where", [test, bounds_where(p, a, one), bounds_where(p, b, other, holds=False)])
                return found.low, found.high
            case Map(op, args):
                found = image(op, [Interval(*self.of(a), whole=False) for a in args])
                return found.low, found.high
            case Reduce(ReduceKind.MAX | ReduceKind.MIN, _, body):
                return self.of(body)
            case Reduce(_, _, body) if _picked(e) is not None:
                return self.of(body)
            case Reduce(_, _, body):
                low, high = self.of(body)
                return (0.0 if low >= 0 else -math.inf), (0.0 if high <= 0 and low < 0 else math.inf)
            case _:
                return _ANY

    def _sum(self, e: Expr) -> tuple[float, float]:
        terms = self._chosen_together(_added_together(flat(e, "add")))
        if len(terms) == 1:
            return self.of(terms[0])
        low = sum(self.of(t)[0] for t in terms)
        high = sum(self.of(t)[1] for t in terms)
        factors = [_factors(t) for t in terms]
        for n, t in enumerate(terms):
            # a - m, with a what m is a maximum of, or both times one factor; everything else of the sum stays.
            for k in range(len(terms) if factors[n][0] < 0 else 0):
                if k != n and self._exceeds(factors[n], factors[k]):
                    rest = (self.of(r)[1] for j, r in enumerate(terms) if j not in (n, k))
                    high = min(high, sum(rest, 0.0))
            m = negated(t)
            others = terms[:n] + terms[n + 1 :]
            if m is not None and others and self._dominates(m, _folded(others, "add")):
                high = min(high, 0.0)
        return low if low == low else -math.inf, high if high == high else math.inf

    def _chosen_together(self, terms: list[Expr]) -> list[Expr]:
        """The terms, with sum_k where(k == p, a, 0) and c * sum_k (k == p) as sum_k where(k == p, a + c, 0).

        What is chosen from a row of logarithms is so written where its shift is added after it is chosen.
        """
        chosen = {n: picked for n, t in enumerate(terms) if (picked := _picked(t)) is not None}
        left = dict(enumerate(terms))
        for n, (reduction, mask, value) in chosen.items():
            wanted = self._shapes.of(mask)
            for k in [k for k in left if k != n]:
                factors = flat(left[k], "mul")
                own = [f for f in factors if _counts(f) is not None and self._shapes.of(_counts(f) or f) == wanted]
                others = [f for f in factors if not own or f is not own[0]]
                if own and others and not any(reduction.axis in free_axes(f) for f in others):
                    value = Map("add", (value, _folded(others, "mul")))
                    del left[k]
            left[n] = Reduce(reduction.kind, reduction.axis, Map("where", (mask, value, Const(0.0))))
        return list(left.values())

    def _exceeds(self, t: tuple[float, list[Expr]], a: tuple[float, list[Expr]]) -> bool:
        """Whether t is -c*m and a is c*b, with c >= 0 and m at least b."""
        (x, ours), (y, theirs) = (t[0], list(t[1])), (a[0], list(a[1]))
        if not (x < 0 < y and math.isclose(-x, y, rel_tol=1e-5)):
            return False
        for f in list(ours):
            if f in theirs and self.of(f)[0] >= 0:
                ours.remove(f)
                theirs.remove(f)
        return bool(ours and theirs) and self._dominates(_folded(ours, "mul"), _folded(theirs, "mul"))

    def _product(self, e: Expr) -> tuple[float, float]:
        factors = list(flat(e, "mul"))
        shapes = [self._shapes.of(f) for f in factors]
        # Squares are at least 0.
        left = [n for n, s in enumerate(shapes) if shapes.count(s) % 2 or shapes.index(s) == n]
        low, high = 1.0, 1.0
        for n in left:
            squared = shapes.count(shapes[n]) % 2 == 0
            a, b = self.of(factors[n])
            if squared:
                a, b = 0.0, max(times(a, a), times(b, b))
            ends = [times(x, y) for x in (low, high) for y in (a, b)]
            low, high = min(ends), max(ends)
        return low, high

    def _dominates(self, m: Expr, a: Expr) -> bool:
        """Whether m >= a wherever both are: m is a maximum of a over axes, or log(sum exp a), or has one of these."""
        known: dict[int, bool] = {}
        own = Counter(_added_together(flat(a, "add")))

        def over(m: Expr) -> bool:
            if id(m) not in known:
                # In whatever order it is added up.
                known[id(m)] = m == a or (len(own) > 1 and Counter(_added_together(flat(m, "add"))) == own) or above(m)
            return known[id(m)]

        def above(m: Expr) -> bool:
            match m:
                case Reduce(ReduceKind.MAX, axis, body):
                    # Of the parts of a split axis, the program's own is as good as any: the index names are told apart
                    # by extents, so the body is compared without the terms over the axis.
                    alike = self._blurred.setdefault(axis.extent, Shapes(axis.extent))
                    return over(body) or any(
                        alike.of(x) == alike.of(a) or self._added_to_maximum(x, a, alike) for x in flat(body, "maximum")
                    )
                case Map("maximum", (x, y)):
                    return over(x) or over(y)
                case Map("where", (Map("eq", (x, Const(value))), Const(0.0), y)) if x == y and value == -math.inf:
                    return over(y)  # of a part that is masked as a whole: there all of a is -inf
                case Map("where", (_, x, y)):
                    return over(x) and over(y)
                case Map("log", (Reduce(ReduceKind.SUM, _, Map("exp", (body,))),)):
                    return self._shapes.of(body) == self._shapes.of(a)
                case Map("add", _):
                    # logsumexp with the maximum apart: m' + log(sum exp(a - m')), whose sum is at least 1.
                    terms = flat(m, "add")
                    return len(terms) == 2 and any(
                        over(x) and self._log_of_shifted(y, x) for x, y in (terms, terms[::-1])
                    )
                case _:
                    return False

        return over(m)

    def _added_to_maximum(self, m: Expr, a: Expr, shapes: Shapes) -> bool:
        """Whether m is c + n and a is c + b, where n is a maximum of b: a maximum of sums over two axes may be so."""
        terms, own = flat(m, "add"), flat(a, "add")
        left = {n: shapes.of(t) for n, t in enumerate(own)}
        tops = [t for t in terms if isinstance(t, Reduce) and t.kind is ReduceKind.MAX]
        if len(tops) != 1:
            return False
        for wanted in (shapes.of(t) for t in terms if t is not tops[0]):
            same = next((n for n, shape in left.items() if shape == wanted), None)
            if same is None:
                return False
            del left[same]
        return len(left) < len(own) and bool(left) and self._dominates(tops[0], _folded([own[n] for n in left], "add"))

    def _log_of_shifted(self, e: Expr, m: Expr) -> bool:
        """Whether the expression is log(sum exp(a - m))."""
        match e:
            case Map("log", (Reduce(ReduceKind.SUM, _, Map("exp", (Map("add", (a, negative)),))),)):
                shift = negated(negative)
                same = shift is not None and self._shapes.of(shift) == self._shapes.of(m)
                return same and self._dominates(m, a)
            case _:
                return False


def _added_together(terms: Sequence[Expr]) -> list[Expr]:
    """The terms, with c * sum_k a and -c * sum_k b as c * sum_k (a - b): neither is bounded alone."""
    alike: dict[tuple[Axis, float], list[tuple[Expr, float, Expr]]] = {}
    for t in terms:
        number, others = _factors(t)
        match others:
            case [Reduce(ReduceKind.SUM, axis, body)]:
                alike.setdefault((axis, abs(number)), []).append((t, number, body))
    left = list(terms)
    for (axis, number), found in alike.items():
        if len({n > 0 for _, n, _ in found}) == 2:
            left = [t for t in left if all(t is not joined for joined, _, _ in found)]
            body = _folded([b if n > 0 else Map("mul", (Const(-1.0), b)) for _, n, b in found], "add")
            left.append(Map("mul", (Const(number), Reduce(ReduceKind.SUM, axis, body))))
    return left


def _picked(e: Expr) -> tuple[Reduce, Expr, Expr] | None:
    """The sum, k == p and a, where the expression is sum_k where(k == p, a, 0), of which one term counts at most."""
    match e:
        case Reduce(ReduceKind.SUM, axis, Map("where", (Map("eq", (a, b)) as mask, value, Const(0.0)))):
            for place, other in ((a, b), (b, a)):
                own = place.index.as_axis() if isinstance(place, Position) else None
                if own == axis and axis not in free_axes(other):
                    return e, mask, value
    return None


def _counts(e: Expr) -> Expr | None:
    """p, where the expression is how often p holds along an axis."""
    match e:
        case Reduce(ReduceKind.SUM, _, Map("where", (p, Const(1.0), Const(0.0)))):
            return p
        case Reduce(ReduceKind.SUM, _, Map("eq", _) as p):
            return p
    return None


def _folded(parts: Sequence[Expr], op: str) -> Expr:
    total = parts[0]
    for e in parts[1:]:
        total = Map(op, (total, e))
    return total


def _factors(e: Expr) -> tuple[float, list[Expr]]:
    """The number and the other factors of a product."""
    parts = list(flat(e, "mul"))
    return math.prod(f.value for f in parts if isinstance(f, Const)), [f for f in parts if not isinstance(f, Const)]


def negated(e: Expr) -> Expr | None:
    """m, where the expression is -m."""
    match e:
        case Map("neg", (m,)) | Map("mul", (Const(-1.0), m)) | Map("mul", (m, Const(-1.0))):
            return m
        case _:
            return None


LEAST, MOST = 2.0**-126, 2.0**126
"""Between them the reciprocal of a float32 number is a normal one."""
LARGEST_ROOT = 2.0**64
"""The square root of float32's largest number."""
LONGEST = 2.0**63
"""What no extent exceeds."""


@dataclass(slots=True)
class Divisors:
    """Tells divisors whose reciprocal float32 holds.

    `a * (1/b)` rounds once more than `a / b`, which no gate minds; but where b is subnormal its reciprocal is infinite,
    and where it is huge the reciprocal is subnormal, so that digits are lost, or all of it. What has a bound on both
    sides has no such values: the sum of exponentials below their own maximum is at least 1, a norm over an epsilon at
    least that, and a square root of whatever float32 holds is between 2**-75 and 2**64.
    """

    tensors: Mapping[str, Tensor]  # those that are read, by name
    _bounds: Bounds = field(init=False)
    _known: dict[int, tuple[Expr, tuple[float, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._bounds = Bounds(self.tensors)

    def invertible(self, e: Expr) -> bool:
        """Whether a product with 1/e is as good as a division by e, whatever the value; 0 and infinity are."""
        if isinstance(e, Map) and e.op == "sqrt":
            return True
        low, high = self.range(e)
        return (low >= LEAST and high <= MOST) or (low >= -MOST and high <= -LEAST)

    def range(self, e: Expr) -> tuple[float, float]:
        """Bounds on the value where it is finite, as float32 computes it."""
        for x in walk(e, self._known):
            low, high = self._range(x)
            least, most = self._bounds.of(x)
            self._known[id(x)] = x, (max(low, least), min(high, most))
        return self._known[id(e)][1]

    def _range(self, e: Expr) -> tuple[float, float]:
        match e:
            case Size():
                return 1.0, LONGEST
            case Map("sqrt", (a,)):
                return math.sqrt(max(self.range(a)[0], 0.0)), LARGEST_ROOT
            case Map("add", _):
                return self._folded([self.range(t) for t in flat(e, "add")], lambda x, y: x + y)
            case Map("maximum", (a, b)):
                return self._folded([self.range(a), self.range(b)], max)
            case Map("minimum", (a, b)):
                return self._folded([self.range(a), self.range(b)], min)
            case Map("where", (_, a, b)):
                (x, y), (u, v) = self.range(a), self.range(b)
                return min(x, u), max(y, v)
            case Map("mul", (Const(c), a)) | Map("mul", (a, Const(c))) if c > 0:
                low, high = self.range(a)
                return c * low, c * high
            case Reduce(ReduceKind.SUM, axis, body):
                low, high = self.range(body)
                count = float(axis.extent) if isinstance(axis.extent, int) else LONGEST
                least = 1.0 if _reaches_one(e) else low if low >= 0 else -math.inf
                return least, high * count if high >= 0 else high
            case _:
                return -math.inf, math.inf

    @staticmethod
    def _folded(of: list[tuple[float, float]], op: Callable[[float, float], float]) -> tuple[float, float]:
        low, high = of[0]
        for x, y in of[1:]:
            low, high = op(low, x), op(high, y)
        return (low if low == low else -math.inf), (high if high == high else math.inf)


def _reaches_one(e: Reduce) -> bool:
    """Whether it is a sum of exp(a - m) where m is the maximum of a over the same axis: one term is exp(0)."""
    match e.body:
        case Map("exp", (Map("add", (a, other)),)):
            for value, minus in ((a, other), (other, a)):
                m = negated(minus)
                if isinstance(m, Reduce) and m.kind is ReduceKind.MAX and m.axis.extent == e.axis.extent:
                    along = substitute(m.body, {m.axis: Index.axis(e.axis)})
                    if e.axis not in free_axes(m) and canonical(along) == canonical(value):
                        return True
    return False
