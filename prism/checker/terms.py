"""Terms, and what can be told of them: free axes, value, sign. Nothing here is taken from the prover."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

REDUCTIONS = frozenset({"Sum", "Max", "Min", "Prod"})
LEAVES = frozenset({"Read", "Pos", "Const", "Size"})

Index: TypeAlias = "tuple[tuple[tuple[str, str], ...], str]"  # ((axis, coefficient), ...), offset
Fact: TypeAlias = "str | tuple[str, float]"  # positive, say, or ("lower", 0.5)
_NO_AXES: frozenset[str] = frozenset()


class CertificateError(Exception):
    """The certificate is not what it claims; the message names the first bad place."""


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A term; within one `Terms`, equal terms are one object."""

    id: int  # its number there
    op: str  # constructor
    data: Any  # of a leaf what it names, of a reduction its axis, else None
    kids: tuple[Term, ...]  # children
    axes: frozenset[str]  # its free axes
    # What is known of its value: finite, positive, nonneg, nonzero, boolean (each of them: a number); below: a number
    # or -inf.
    facts: frozenset[str]
    value: float | None  # the number that it is, where it has neither reads nor axes
    # Two numbers between which a finite one surely lies; -inf and inf where nothing is known.
    bounds: tuple[float, float]
    size: int  # how many nodes it has, as a tree


@dataclass(slots=True)
class Terms:
    """All terms of a check."""

    extents: dict[str, str] = field(default_factory=dict)  # of the axes, by name
    # Facts and bounds that are taken for granted of the elements of tensors, by their names.
    stated: Mapping[str, Sequence[Fact]] = field(default_factory=dict)
    rows: list[Term] = field(default_factory=list)  # by number
    _known: dict[tuple[Any, ...], Term] = field(default_factory=dict)

    def make(self, op: str, data: Any, kids: tuple[Term, ...]) -> Term:
        """The term."""
        # 0.0 and -0.0 are equal and NaN is not: a constant is told apart by its text.
        key = (op, repr(data) if op == "Const" else data, *[k.id for k in kids])
        known = self._known.get(key)
        if known is None:
            value = _value(op, data, kids)
            granted = self.stated.get(data[0], ()) if op == "Read" else ()
            facts = _closed(_facts(op, data, kids, value).union(f for f in granted if isinstance(f, str)))
            bounds = _bounds(op, kids, value, facts, dict(f for f in granted if not isinstance(f, str)))
            facts = _closed({*facts, *_signs(bounds)}) if "finite" in facts else facts
            size = 1 + sum(k.size for k in kids)
            known = Term(len(self.rows), op, data, kids, _axes(op, data, kids), facts, value, bounds, size)
            self.rows.append(known)
            self._known[key] = known
        return known

    def const(self, value: float) -> Term:
        """A constant."""
        return self.make("Const", value + 0.0, ())

    def length(self, axis: str) -> Term:
        """How long an axis is, as a term."""
        extent = self.extents[axis]
        return self.const(float(extent)) if extent.isdecimal() else self.make("Size", extent, ())

    def at(self, term: Term, path: Sequence[int]) -> Term:
        """What stands at a path. Raises CertificateError: there is no such path."""
        for n in path:
            if not 0 <= n < len(term.kids):
                raise CertificateError(f"there is no position {list(path)}")
            term = term.kids[n]
        return term

    def put(self, term: Term, path: Sequence[int], new: Term) -> Term:
        """The term with something else at a path."""
        if not path:
            return new
        kids = list(term.kids)
        kids[path[0]] = self.put(kids[path[0]], path[1:], new)
        return self.make(term.op, term.data, tuple(kids))

    def renamed(self, term: Term, names: Mapping[str, str]) -> Term:
        """The term with free axes renamed; no bound axis may have one of the new names."""
        done: dict[tuple[int, frozenset[tuple[str, str]]], Term] = {}

        def visit(t: Term, env: Mapping[str, str]) -> Term:
            env = {a: b for a, b in env.items() if a in t.axes}
            if not env:
                return t
            key = t.id, frozenset(env.items())
            if key not in done:
                if t.op in REDUCTIONS and t.data in env.values():
                    raise CertificateError(f"renaming to {t.data} would capture it")
                kids = tuple([visit(k, env) for k in t.kids])
                done[key] = self.make(t.op, rename_data(t, env), kids)
            return done[key]

        return visit(term, names)

    def same(self, a: Term, b: Term) -> bool:
        """Whether two terms differ by the names of their bound axes alone."""
        seen: set[tuple[Any, ...]] = set()

        def visit(x: Term, y: Term, left: Mapping[str, str], right: Mapping[str, str]) -> bool:
            left = {k: v for k, v in left.items() if k in x.axes}
            right = {k: v for k, v in right.items() if k in y.axes}
            if not left and not right and x is y:
                return True
            key = (x.id, y.id, frozenset(left.items()), frozenset(right.items()))
            if key in seen:
                return True
            if x.op != y.op or len(x.kids) != len(y.kids):
                return False
            if x.op in REDUCTIONS:
                if self.extents[x.data] != self.extents[y.data]:
                    return False
                mark = f"\0{len(left)},{len(right)},{x.id},{y.id}"
                fine = visit(x.kids[0], y.kids[0], {**left, x.data: mark}, {**right, y.data: mark})
            elif x.op in LEAVES:
                fine = repr(rename_data(x, left)) == repr(rename_data(y, right))
            else:
                fine = all(visit(p, q, left, right) for p, q in zip(x.kids, y.kids, strict=True))
            if fine:
                seen.add(key)
            return fine

        return visit(a, b, {}, {})


def rename_data(t: Term, names: Mapping[str, str]) -> Any:
    """What a leaf names, under other names of axes."""
    if t.op == "Read":
        return t.data[0], tuple([_rename_index(i, names) for i in t.data[1]])
    return _rename_index(t.data, names) if t.op == "Pos" else t.data


def _rename_index(index: Index, names: Mapping[str, str]) -> Index:
    terms, offset = index
    return tuple(sorted((names.get(a, a), c) for a, c in terms)), offset


def _axes(op: str, data: Any, kids: tuple[Term, ...]) -> frozenset[str]:
    if op == "Read":
        return frozenset(a for terms, _ in data[1] for a, _ in terms)
    if op == "Pos":
        return frozenset(a for a, _ in data[0])
    if not kids:
        return _NO_AXES
    found = kids[0].axes.union(*[k.axes for k in kids[1:]])
    return found - {data} if op in REDUCTIONS else found


def _value(op: str, data: Any, kids: tuple[Term, ...]) -> float | None:
    """The number; None where it is none, not finite, or where rounding could have lost it."""
    if op == "Const":
        return data if math.isfinite(data) else None
    args = [k.value for k in kids]
    match op, args:
        case "Recip", [float(x)] if abs(x) > 1e-290:
            return 1.0 / x
        case "Sqrt", [float(x)] if x >= 0:
            return math.sqrt(x)
        case "Mul", [float(x), float(y)] if 1e-200 < abs(x * y) < 1e200:
            return x * y
        case "Add", [float(x), float(y)] if x == -y:
            return 0.0
        case "Add", [float(x), float(y)] if min(abs(x + y), abs(x), abs(y)) >= 0.01 * max(abs(x), abs(y)):
            return x + y
        case "Max2", [float(x), float(y)]:
            return max(x, y)
        case "Min2", [float(x), float(y)]:
            return min(x, y)
    return None


def _facts(op: str, data: Any, kids: tuple[Term, ...], value: float | None) -> set[str]:
    """What is known of the value, for finite inputs, over the reals: each fact but `below` says that it is a number."""
    if value is not None:
        return {"finite", "positive" if value > 0 else "nonzero" if value < 0 else "nonneg"}
    if op == "Const":
        return {"below"} if data == -math.inf else set()
    if op in ("Read", "Pos"):
        return {"finite"}
    if op == "Size":
        return {"positive"}
    if op in ("Lt", "Le", "Eq", "And", "Or", "Not", "IsNan"):
        return {"boolean"}
    args = [k.facts for k in kids]
    if op == "Where":
        args = args[1:]
    every = frozenset.intersection(*args) if args else frozenset()
    some = frozenset().union(*args)
    finite = "finite" in every
    found: set[str] = set()
    match op:
        case "Add":
            found = {"finite", "below", "nonneg"} & every
            if "nonneg" in every and "positive" in some:
                found.add("positive")
        case "Mul":
            found = {"finite", "positive", "nonneg", "nonzero"} & every
            if kids[0] is kids[1] and finite:
                found.add("nonneg")
            if "below" in every and "positive" in some:
                found.add("below")
        case "Recip":
            found = {"positive", "nonzero"} & every
        case "Exp":
            found = {"positive"} if finite else {"nonneg"} if "below" in every else set()
        case "Sigmoid":
            found = {"positive"} if finite else {"nonneg"} if "below" in every else set()
        case "Sqrt":
            found = {"nonneg", "positive"} & every
        case "Log":
            found = {"finite"} if "positive" in every else set()
        case "Abs":
            found = {"nonneg"} if finite else set()
            if "nonzero" in every:
                found.add("positive")
        case "Tanh" | "Erf" | "Sin" | "Cos":
            found = {"finite"} & every
        case "Max2":
            found = {"finite", "below"} & every
            if "below" in every:
                # One number is enough: the other may be -inf.
                found |= {"finite", "positive", "nonneg"} & some
        case "Min2":
            found = {"finite", "below", "positive", "nonneg"} & every
        case "Where" | "Max" | "Min":
            found = {"finite", "below", "positive", "nonneg"} & every
            if op == "Where" and _guarded(kids) and "finite" in every and "nonzero" in args[0]:
                found.add("nonzero")
        case "Sum" | "Prod":
            found = {"finite", "positive", "nonneg"} & every
            if op == "Sum":
                found |= {"below"} & every
    return found


def _bounds(
    op: str, kids: tuple[Term, ...], value: float | None, facts: frozenset[str], granted: Mapping[str, float]
) -> tuple[float, float]:
    """Two numbers between which the value lies, which is finite; -inf and inf where nothing is known.

    Interval arithmetic, rounded to the nearest as constants are (Moore, Interval Analysis, 1966).
    """
    if "finite" not in facts:
        return -math.inf, math.inf
    if value is not None:
        return value, value
    if "boolean" in facts:
        return 0.0, 1.0
    low, high = granted.get("lower", -math.inf), granted.get("upper", math.inf)
    match op, [k.bounds for k in kids]:
        case "Add", [(a, b), (c, d)]:
            low, high = a + c, b + d
        case "Mul", [(a, b), (c, d)]:
            ends = [x * y if x and y else 0.0 for x in (a, b) for y in (c, d)]
            low, high = (min(ends), max(ends)) if kids[0] is not kids[1] else (-math.inf, max(a * a, b * b))
        case "Recip", [(a, b)] if a > 1e-290:
            low, high = 1.0 / b, 1.0 / a
        case "Recip", [(_, b)] if "positive" in facts:
            low = 1.0 / b
        case "Exp", [(a, b)]:
            low, high = (0.0 if a < -700 else math.exp(min(a, 600.0))), (math.exp(b) if b < 600 else math.inf)
        case "Sqrt", [(a, b)]:
            low, high = math.sqrt(max(a, 0.0)), math.sqrt(max(b, 0.0))
        case "Sigmoid", _:
            low, high = 0.0, 1.0
        case "Tanh" | "Erf" | "Sin" | "Cos", _:
            low, high = -1.0, 1.0
        case "Abs", [(a, b)]:
            low, high = max(a, -b, 0.0), max(-a, b)
        case "Max2", [(a, b), (c, d)]:
            low, high = max(a, c), max(b, d)
        case "Min2", [(a, b), (c, d)]:
            low, high = min(a, c), min(b, d)
        case "Where", [_, (a, b), (c, d)]:
            low, high = min(a, c), max(b, d)
        case "Max" | "Min", [(a, b)]:
            low, high = a, b
    return max(low, 0.0) if "nonneg" in facts else low, high


def _signs(bounds: tuple[float, float]) -> set[str]:
    """What follows of a finite number between the two."""
    low, high = bounds
    held = {"positive": low > 0, "nonneg": low >= 0, "nonzero": high < 0}
    return {name for name, so in held.items() if so}


def _guarded(kids: tuple[Term, ...]) -> bool:
    """Whether a choice takes its last operand only where that is not 0: (b if a = 0 else a)."""
    condition, _, otherwise = kids
    return condition.op == "Eq" and condition.kids[0] is otherwise and condition.kids[1].value == 0


def _closed(facts: set[str]) -> frozenset[str]:
    if "boolean" in facts:
        facts |= {"finite", "nonneg"}
    if "positive" in facts:
        facts |= {"nonneg", "nonzero"}
    if facts & {"nonneg", "nonzero"}:
        facts.add("finite")
    if "finite" in facts:
        facts.add("below")
    return frozenset(facts)
