"""What an sGraph does to rounding that the reference does not: read off its expressions, without running anything.

    exp       the exponent has no upper bound: neither a maximum over the same values (or more) is subtracted from it,
              nor does its form bound it (-|x|, log sigmoid), nor does what becomes of it (1/(1 + exp x))
    variance  mean(x^2) - mean(x)^2, whose two terms agree in most of their digits where the mean is large
    division  a buffer in float16 holds a sum that only a later kernel divides: it may overflow where the quotient
              does not (bfloat16 has float32's range, so nothing is lost there)

The first two are refused, for float32 has no answer to them either; for the third the buffer is staged in float32. What
the reference does itself is no finding: its author chose it, and the numeric gate compares with it.

Exponents are bounded by intervals, and by one fact on two values: a - m <= 0 where m is a maximum of a over an axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from prism.program.index import Atom, Axis, Index
from prism.program.nodes import Const, DType, Expr, Map, Position, Read, Reduce, ReduceKind, Size, free_axes, walk
from prism.sgraph.denote import Denotation, denote, stored_values
from prism.sgraph.nodes import SGraph

EXP_LIMIT = 80.0
"""Exponents up to here are safe: exp(88.7) is float32's largest number, and sums of some thousands fit."""

_UNIT = frozenset({"tanh", "erf", "sin", "cos", "sign"})
_TRUTH = frozenset({"lt", "le", "eq", "and", "or", "not", "isnan", "sigmoid"})
_ANY = (-math.inf, math.inf)


class Kind(StrEnum):
    """What is wrong."""

    EXP = "exp"
    VARIANCE = "variance"
    DIVISION = "division"


@dataclass(frozen=True, slots=True)
class Finding:
    """One numerically unsafe place.

    Attributes:
        kind: what is wrong.
        where: the tensor whose value it is in, an output or a buffer.
        what: the expression, shortened.
        why: what happens there, in one line.
    """

    kind: Kind
    where: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.why}"


_WHY: Mapping[Kind, str] = {
    Kind.EXP: "the exponent has no upper bound, so it overflows where the reference does not",
    Kind.VARIANCE: "a variance by difference cancels where the mean is large",
    Kind.DIVISION: "a sum is stored in float16 and divided later, so it overflows where the quotient does not",
}


def findings(sgraph: SGraph, reference: Sequence[Expr], denotation: Denotation | None = None) -> tuple[Finding, ...]:
    """What is unsafe in the sGraph and not in the reference.

    Args:
        sgraph: a family; it has a denotation.
        reference: the outputs' expressions, as the model has them.
        denotation: of the sGraph, where it is known already.

    Raises:
        IllegalIRError: the sGraph has no denotation.
    """
    dtypes = {t.name: t.dtype for t in sgraph.inputs}
    known = _Known.of(reference, dtypes)
    outputs = (denotation or denote(sgraph)).outputs
    found: dict[Finding, None] = {}
    for t, e in zip(sgraph.outputs, outputs, strict=True):
        for kind, at in (*_unbounded(e, _Bounds(dtypes)), *_differences(e)):
            if (kind, shape(at)) not in known.unsafe:
                found[Finding(kind, t.name, _short(at), _WHY[kind])] = None
    for buffer in _late_divisions(sgraph, known):
        found[Finding(Kind.DIVISION, buffer, buffer, _WHY[Kind.DIVISION])] = None
    return tuple(found)


def staged(sgraph: SGraph, found: Sequence[Finding]) -> SGraph | None:
    """The sGraph with the buffers of the findings in float32; None where that does not help."""
    if any(f.kind is not Kind.DIVISION for f in found):
        return None
    wide = {f.where for f in found}
    buffers = tuple(replace(t, dtype=DType.FLOAT32) if t.name in wide else t for t in sgraph.buffers)
    return replace(sgraph, buffers=buffers) if wide else sgraph


@dataclass(frozen=True, slots=True)
class _Known:
    """What the reference does: its own unsafe places, and every value that it computes, by shape."""

    unsafe: frozenset[tuple[Kind, str]]
    values: frozenset[str]

    @staticmethod
    def of(reference: Sequence[Expr], dtypes: Mapping[str, DType]) -> _Known:
        bounds = _Bounds(dtypes)
        unsafe = {(kind, shape(at)) for e in reference for kind, at in (*_unbounded(e, bounds), *_differences(e))}
        return _Known(frozenset(unsafe), frozenset(shape(x) for e in reference for x in walk(e)))


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
        case Map("add" | "mul" as op, _):
            return f"{op}({','.join(sorted(map(shape, _flat(e, op))))})"
        case Map(op, args):
            return f"{op}({','.join(map(shape, args))})"
        case Reduce(kind, axis, body):
            return f"{kind.value}.{axis.extent}({shape(body)})"
        case _:
            return str(e)


def _index(index: Index) -> str:
    return f"{index.offset}+" + "+".join(sorted(f"{c}*{_atom(a)}" for a, c in index.terms))


def _atom(atom: Atom) -> str:
    """An axis by its extent; what is rounded or wrapped as it is written."""
    return str(atom.extent) if isinstance(atom, Axis) else str(atom)


def _flat(e: Expr, op: str) -> Iterator[Expr]:
    """The terms of a sum, or the factors of a product."""
    if isinstance(e, Map) and e.op == op:
        for a in e.args:
            yield from _flat(a, op)
    elif op == "mul" and isinstance(e, Map) and e.op == "neg":
        yield Const(-1.0)
        yield from _flat(e.args[0], op)
    else:
        yield e


def _short(e: Expr) -> str:
    text = str(e)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Exponents.


@dataclass(slots=True)
class _Bounds:
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
        terms = list(_flat(e, "add"))
        low = sum(self.of(t)[0] for t in terms)
        high = sum(self.of(t)[1] for t in terms)
        for n, t in enumerate(terms):
            m = _negated(t)
            if m is None:
                continue
            # a - m, with a what m is a maximum of; everything else of the sum stays.
            others = terms[:n] + terms[n + 1 :]
            for k, a in enumerate(others):
                rest = others[:k] + others[k + 1 :]
                if dominates(m, a):
                    high = min(high, sum((self.of(r)[1] for r in rest), 0.0))
            if dominates(m, _added(others)):
                high = min(high, 0.0)
        return low if low == low else -math.inf, high if high == high else math.inf

    def _product(self, e: Expr) -> tuple[float, float]:
        factors = list(_flat(e, "mul"))
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
    total = terms[0]
    for t in terms[1:]:
        total = Map("add", (total, t))
    return total


def _negated(e: Expr) -> Expr | None:
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
            return 0.0, math.sqrt(high) if 0 <= high < math.inf else math.inf
        case "recip":
            return (0.0 if high == math.inf else 1 / high, 1 / low) if low > 0 else _ANY
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
    if shape(m) == shape(a):
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
            terms = list(_flat(m, "add"))
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
            return f"{op}({','.join(sorted(_blurred(x, extent) for x in _flat(e, op)))})"
        case Map(op, args):
            return f"{op}({','.join(_blurred(x, extent) for x in args)})"
        case Reduce(kind, axis, body):
            return f"{kind.value}.{axis.extent}({_blurred(body, extent)})"
        case _:
            return str(e)


def _blurred_index(index: Index, extent: object) -> str:
    split = any(_atom(a).startswith(("rest_", "parts_")) for a, _ in index.terms)
    kept = [] if split else sorted(f"{c}*{_atom(a)}" for a, c in index.terms if _atom(a) != str(extent))
    free = split or len(kept) < len(index.terms)
    return ("?" if free else f"{index.offset}") + "+".join(kept)


def _log_of_shifted(e: Expr, m: Expr) -> bool:
    """Whether the expression is log(sum exp(a - m))."""
    match e:
        case Map("log", (Reduce(ReduceKind.SUM, _, Map("exp", (Map("add", (a, negative)),))),)):
            shift = _negated(negative)
            return shift is not None and shape(shift) == shape(m) and dominates(m, a)
        case _:
            return False


def _unbounded(root: Expr, bounds: _Bounds) -> Iterator[tuple[Kind, Expr]]:
    """The exponentials that may overflow and whose overflow shows."""
    seen: set[tuple[int, bool]] = set()
    stack = [(root, False)]
    while stack:
        e, guarded = stack.pop()
        if (id(e), guarded) in seen:
            continue
        seen.add((id(e), guarded))
        match e:
            case Map("exp", (a,)):
                if not guarded and bounds.of(a)[1] > EXP_LIMIT:
                    yield Kind.EXP, e
                stack.append((a, False))
            case Map("recip", (a,)):
                # 1/(b + exp x) with b > 0 goes to 0 where exp x overflows.
                terms = list(_flat(a, "add"))
                positive = all(bounds.of(t)[0] >= 0 for t in terms) and any(bounds.of(t)[0] > 0 for t in terms)
                stack += [(t, positive) for t in terms]
            case _:
                stack += [(c, False) for c in e.children]


# Variances.


def _differences(root: Expr) -> Iterator[tuple[Kind, Expr]]:
    """Sums of sum_k(x*x)*c and -(sum_k x)^2*d, with c, d > 0."""
    for e in walk(root):
        if not (isinstance(e, Map) and e.op == "add"):
            continue
        squares: set[str] = set()
        products: set[str] = set()
        for t in _flat(e, "add"):
            factors = list(_flat(t, "mul"))
            sign = math.prod(math.copysign(1.0, f.value) for f in factors if isinstance(f, Const))
            if sign > 0:
                squares |= {s for f in factors if (s := _squared_inside(f))}
            else:
                sums = [s for f in factors for s in _sums_inside(f)]
                products |= {s for s in sums if sums.count(s) > 1}
        if squares & products:
            yield Kind.VARIANCE, e


def _squared_inside(e: Expr) -> str:
    """x, where the expression is a sum of x*x over an axis, or over the parts of one; else nothing."""
    body = _summed(e)
    if body is None:
        return ""
    if isinstance(body, Map) and body.op == "pow" and body.args[1] == Const(2.0):
        return shape(body.args[0])
    if isinstance(body, Map) and body.op == "mul":
        shapes = [shape(f) for f in _flat(body, "mul") if not isinstance(f, Const) and free_axes(f)]
        if len(shapes) % 2 == 0 and shapes and all(shapes.count(s) % 2 == 0 for s in shapes):
            return _product_text(s for s in sorted(set(shapes)) for _ in range(shapes.count(s) // 2))
    return ""


def _sums_inside(e: Expr) -> list[str]:
    """For each factor that is a sum of x over an axis: x; a square of a product is two of each."""
    if isinstance(e, Map) and e.op == "pow" and e.args[1] == Const(2.0):
        return [s for f in _flat(e.args[0], "mul") for s in _sums_inside(f)] * 2
    body = _summed(e)
    if body is None:
        return []
    shapes = [shape(f) for f in _flat(body, "mul") if not isinstance(f, Const) and free_axes(f)]
    return [_product_text(sorted(shapes))] if shapes else []


def _product_text(shapes: Iterator[str] | Sequence[str]) -> str:
    return "*".join(shapes)


def _summed(e: Expr) -> Expr | None:
    """What is summed, over one axis or over the parts of one."""
    if not (isinstance(e, Reduce) and e.kind is ReduceKind.SUM):
        return None
    body = e.body
    while isinstance(body, Reduce) and body.kind is ReduceKind.SUM:
        body = body.body
    return body


# Divisions.


def _late_divisions(sgraph: SGraph, known: _Known) -> list[str]:
    """The float16 buffers that hold a sum the reference does not compute, and that another kernel divides."""
    narrow = {t.name for t in sgraph.buffers if t.dtype is DType.FLOAT16}
    if not narrow:
        return []
    whole, alone = stored_values(sgraph)
    found: list[str] = []
    for t in sgraph.buffers:
        if t.name not in narrow or shape(whole[t.name]) in known.values or not _is_sum(whole[t.name]):
            continue
        if any(_divides(e, t.name) for name, e in alone.items() if name != t.name):
            found.append(t.name)
    return found


def _is_sum(e: Expr) -> bool:
    """Whether the value is a sum over an axis, times or plus something, and is not divided by anything."""
    match e:
        case Reduce(ReduceKind.SUM, _, _):
            return True
        case Map("mul", _):
            factors = list(_flat(e, "mul"))
            return any(map(_is_sum, factors)) and not any(map(_is_quotient, factors))
        case Map("add", _):
            return any(map(_is_sum, _flat(e, "add")))
        case _:
            return False


def _is_quotient(e: Expr) -> bool:
    return isinstance(e, Map) and e.op == "recip" and not isinstance(e.args[0], Const | Size)


def _divides(root: Expr, buffer: str) -> bool:
    """Whether somewhere a value that comes from the buffer by sums and products is divided."""
    for e in walk(root):
        if isinstance(e, Map) and e.op == "mul":
            factors = list(_flat(e, "mul"))
            if any(map(_is_quotient, factors)) and any(_carries(f, buffer) for f in factors if not _is_quotient(f)):
                return True
    return False


def _carries(e: Expr, buffer: str) -> bool:
    match e:
        case Read(tensor, _):
            return tensor == buffer
        case Map("add" | "mul" | "neg" | "where", args):
            return any(_carries(a, buffer) for a in args)
        case Reduce(ReduceKind.SUM, _, body):
            return _carries(body, buffer)
        case _:
            return False
