"""What is known of an expression's values: bounds, and whether one expression is at least another.

Intervals, and one fact on two values: a - m <= 0 where m is a maximum of a over an axis. Expressions are compared by
their *shape*, the text with axes told apart by their extents alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prism.program.index import Atom, Axis, Index
from prism.program.nodes import Const, DType, Expr, Map, Position, Read, Reduce, ReduceKind, Size

_UNIT = frozenset({"tanh", "erf", "sin", "cos", "sign"})
_TRUTH = frozenset({"lt", "le", "eq", "and", "or", "not", "isnan", "sigmoid"})
_ANY = (-math.inf, math.inf)


def shape(e: Expr) -> str:
    """The expression as text, with axes told apart by their extents alone: equal where one is the other, renamed.

    Two axes of one extent that are swapped go unseen, which is near enough to say what the reference does, too.
    """
    match e:
        case Read(tensor, index):
            return f"{tensor}[{','.join(map(_index, index))}]"
        case Position(index):
            return f"@{_index(index)}"
        case Map("neg", (a,)):
            return shape(Map("mul", (Const(-1.0), a)))
        case Map("where", (p, Const(1.0), Const(0.0))) if _is_truth(p):
            return shape(p)
        case Map("where", (Map("not", (p,)), a, b)):
            return shape(Map("where", (p, b, a)))
        case Map("add" | "mul" as op, _):
            return f"{op}({','.join(sorted(map(shape, flat(e, op))))})"
        case Map(op, args):
            return f"{op}({','.join(map(shape, args))})"
        case Reduce(kind, axis, body):
            return f"{kind.value}.{axis.extent}({shape(body)})"
        case _:
            return str(e)


def _is_truth(e: Expr) -> bool:
    """Whether the value is 0 or 1 by its operator."""
    match e:
        case Map("lt" | "le" | "eq" | "not" | "isnan", _):
            return True
        case Map("and" | "or", args):
            return all(map(_is_truth, args))
        case Map("where", (_, a, b)):
            return all(_is_truth(x) or x in (Const(0.0), Const(1.0)) for x in (a, b))
        case _:
            return False


def _index(index: Index) -> str:
    return f"{index.offset}+" + "+".join(sorted(f"{c}*{_atom(a)}" for a, c in index.terms))


def _atom(atom: Atom) -> str:
    """An axis by its extent; what is rounded or wrapped as it is written."""
    return str(atom.extent) if isinstance(atom, Axis) else str(atom)


def flat(e: Expr, op: str) -> Iterator[Expr]:
    """The terms of a sum, or the factors of a product."""
    if isinstance(e, Map) and e.op == op:
        for a in e.args:
            yield from flat(a, op)
    elif op == "mul" and isinstance(e, Map) and e.op == "neg":
        yield Const(-1.0)
        yield from flat(e.args[0], op)
    else:
        yield e


@dataclass(slots=True)
class Bounds:
    """Bounds on the values of expressions, over the reals.

    Attributes:
        dtypes: of the tensors that are read.
    """

    dtypes: Mapping[str, DType]
    _known: dict[int, tuple[Expr, tuple[float, float]]] = field(default_factory=dict)

    def of(self, e: Expr) -> tuple[float, float]:
        """The least and the largest value, as far as it is known."""
        if id(e) not in self._known:
            self._known[id(e)] = e, self._of(e)
        return self._known[id(e)][1]

    def _of(self, e: Expr) -> tuple[float, float]:
        match e:
            case Const(value):
                return value, value
            case Size():
                return 1.0, math.inf
            case Position(index):
                least = 0 if all(c >= 0 for _, c in index.terms) and index.offset >= 0 else -math.inf
                return float(least), math.inf
            case Read(tensor, _):
                dtype = self.dtypes.get(tensor)
                return (0.0, 1.0) if dtype is DType.BOOL else (0.0, 255.0) if dtype is DType.UINT8 else _ANY
            case Map("add", _):
                return self._sum(e)
            case Map("mul", _):
                return self._product(e)
            case Map(op, args):
                return _image(op, [self.of(a) for a in args])
            case Reduce(ReduceKind.MAX | ReduceKind.MIN, _, body):
                return self.of(body)
            case Reduce(_, _, body):
                low, high = self.of(body)
                return (0.0 if low >= 0 else -math.inf), (0.0 if high <= 0 and low < 0 else math.inf)
            case _:
                return _ANY

    def _sum(self, e: Expr) -> tuple[float, float]:
        terms = list(flat(e, "add"))
        low = sum(self.of(t)[0] for t in terms)
        high = sum(self.of(t)[1] for t in terms)
        for n, t in enumerate(terms):
            others = terms[:n] + terms[n + 1 :]
            # a - m, with a what m is a maximum of, or both times one factor; everything else of the sum stays.
            for k, a in enumerate(others):
                if self._exceeds(t, a):
                    rest = others[:k] + others[k + 1 :]
                    high = min(high, sum((self.of(r)[1] for r in rest), 0.0))
            m = negated(t)
            if m is not None and others and dominates(m, _added(others)):
                high = min(high, 0.0)
        return low if low == low else -math.inf, high if high == high else math.inf

    def _exceeds(self, t: Expr, a: Expr) -> bool:
        """Whether t is -c*m and a is c*b, with c >= 0 and m at least b."""
        (x, ours), (y, theirs) = _factors(t), _factors(a)
        if not (x < 0 < y and math.isclose(-x, y, rel_tol=1e-5)):
            return False
        for f in list(ours):
            if f in theirs and self.of(f)[0] >= 0:
                ours.remove(f)
                theirs.remove(f)
        return bool(ours and theirs) and dominates(_joined(ours, "mul"), _joined(theirs, "mul"))

    def _product(self, e: Expr) -> tuple[float, float]:
        factors = list(flat(e, "mul"))
        shapes = [shape(f) for f in factors]
        # Squares are at least 0.
        left = [n for n, s in enumerate(shapes) if shapes.count(s) % 2 or shapes.index(s) == n]
        low, high = 1.0, 1.0
        for n in left:
            squared = shapes.count(shapes[n]) % 2 == 0
            a, b = self.of(factors[n])
            if squared:
                a, b = 0.0, max(_times(a, a), _times(b, b))
            ends = [_times(x, y) for x in (low, high) for y in (a, b)]
            low, high = min(ends), max(ends)
        return low, high


def _times(x: float, y: float) -> float:
    return 0.0 if x == 0 or y == 0 else x * y


def _added(terms: Sequence[Expr]) -> Expr:
    return _joined(terms, "add")


def _joined(parts: Sequence[Expr], op: str) -> Expr:
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


def _image(op: str, of: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The bounds of a pointwise function's value, given those of its arguments."""
    low, high = of[0]
    if op in _UNIT:
        return -1.0, 1.0
    if op in _TRUTH:
        return 0.0, 1.0
    match op:
        case "neg":
            return -high, -low
        case "abs":
            return max(0.0, low, -high), max(abs(low), abs(high))
        case "exp":
            return _exp(low), _exp(high)
        case "log":
            return (math.log(low) if 0 < low < math.inf else -math.inf), (
                math.log(high) if 0 < high < math.inf else math.inf
            )
        case "sqrt":
            return math.sqrt(max(low, 0.0)), math.sqrt(high) if 0 <= high < math.inf else math.inf
        case "recip":
            if low < 0:
                return _ANY
            return (1 / high if 0 < high < math.inf else 0.0), (1 / low if low > 0 else math.inf)
        case "floor" | "round":
            return low - 1, high + 1
        case "maximum":
            return max(low, of[1][0]), max(high, of[1][1])
        case "minimum":
            return min(low, of[1][0]), min(high, of[1][1])
        case "where":
            return min(of[1][0], of[2][0]), max(of[1][1], of[2][1])
        case "pow" if of[1][0] == of[1][1] and of[1][0] % 2 == 0:
            return 0.0, math.inf
        case _:
            return _ANY


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)


def dominates(m: Expr, a: Expr) -> bool:
    """Whether m >= a wherever both are: m is a maximum of a over axes, or log(sum exp a), or one of these is in m."""
    if m == a:
        return True
    match m:
        case Reduce(ReduceKind.MAX, axis, body):
            # Of the parts of a split axis, the program's own is as good as any: the index names are told apart by
            # extents, so the body is compared without the terms over the axis.
            return dominates(body, a) or _blurred(body, axis.extent) == _blurred(a, axis.extent)
        case Map("maximum", (x, y)):
            return dominates(x, a) or dominates(y, a)
        case Map("log", (Reduce(ReduceKind.SUM, _, Map("exp", (body,))),)):
            return shape(body) == shape(a)
        case Map("add", _):
            # logsumexp with the maximum apart: m' + log(sum exp(a - m')), whose sum is at least 1.
            terms = list(flat(m, "add"))
            return len(terms) == 2 and any(dominates(x, a) and _log_of_shifted(y, x) for x, y in (terms, terms[::-1]))
        case _:
            return False


def _blurred(e: Expr, extent: object) -> str:
    """The shape without which element along an axis, or along the parts of a split one."""
    match e:
        case Read(tensor, index):
            return f"{tensor}[{','.join(_blurred_index(i, extent) for i in index)}]"
        case Position(index):
            return f"@{_blurred_index(index, extent)}"
        case Map("add" | "mul" as op, _):
            return f"{op}({','.join(sorted(_blurred(x, extent) for x in flat(e, op)))})"
        case Map(op, args):
            return f"{op}({','.join(_blurred(x, extent) for x in args)})"
        case Reduce(kind, axis, body):
            return f"{kind.value}.{axis.extent}({_blurred(body, extent)})"
        case _:
            return str(e)


def _blurred_index(index: Index, extent: object) -> str:
    split = any(_atom(a).startswith(("rest_", "parts_")) for a, _ in index.terms)
    # The parts of a split axis, and what is within one, are the axis of that extent.
    gone = {str(extent), str(extent).removeprefix("rest_").removeprefix("parts_")}
    kept = [] if split else sorted(f"{c}*{_atom(a)}" for a, c in index.terms if _atom(a) not in gone)
    free = split or len(kept) < len(index.terms)
    return ("?" if free else f"{index.offset}") + "+".join(kept)


def _log_of_shifted(e: Expr, m: Expr) -> bool:
    """Whether the expression is log(sum exp(a - m))."""
    match e:
        case Map("log", (Reduce(ReduceKind.SUM, _, Map("exp", (Map("add", (a, negative)),))),)):
            shift = negated(negative)
            return shift is not None and shape(shift) == shape(m) and dominates(m, a)
        case _:
            return False
