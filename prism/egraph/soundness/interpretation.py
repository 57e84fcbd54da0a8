"""Random interpretations of a rule: each pattern variable is a random array, and the rule's facts hold or do not.

An axis variable is one of four axes, of distinct and of equal extents. A term variable is an array over a random subset
of them: normal, small integers (so ties and zeros), of one sign, truth values, large, tiny, with -inf (which masks are
made of), with +inf (1/0) or undefined elements. Many draws of the same structure are evaluated at once: dimension 0 of
every array is the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from prism.egraph import running_error as floats
from prism.egraph.language import REDUCTIONS
from prism.egraph.running_error import Num
from prism.egraph.sexpr import Form, Parts, literal
from prism.egraph.soundness import finite_field
from prism.egraph.soundness.finite_field import PRIME, NotRational, Residue
from prism.egraph.soundness.plan import OP_OF, RELATIONS, Plan

AXES = ("i", "j", "k", "l")
BLOCK = 16
"""Draws, of those evaluated at once, that have numbers of one kind."""
SIZES = ((2, 3, 4, 2), (3, 3, 3, 3), (2, 2, 2, 2), (1, 2, 3, 1))
_PRIMITIVES = {"+": "add", "*": "mul", "-": "sub", "^": "pow", "max": "maximum", "min": "minimum", "abs": "abs"}

Array: TypeAlias = Any  # as in prism.program.arrays
Mask: TypeAlias = Any
Value: TypeAlias = "Num | Residue | str | frozenset[str]"


class Undefined(Exception):
    """The draw does not fit the pattern."""


class Arithmetic(Protocol):
    """What numbers are."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], wanted: frozenset[str]) -> Array:
        """Random elements; likely, but not surely, in the relations `wanted`."""

    def number(self, raw: Array) -> Any:
        """What was drawn, as numbers."""

    def constant(self, value: float) -> Any:
        """A literal, in five dimensions."""

    def pointwise(self, op: str, args: Sequence[Any]) -> Any:
        """One pointwise operation."""

    def reduce(self, head: str, a: Any, dimension: int, extent: int) -> Any:
        """One reduction."""

    def relation(self, name: str, a: Any) -> tuple[Mask, Mask]:
        """Whether each draw is in the relation, and whether it certainly is not."""

    def agreement(self, a: Any, b: Any) -> tuple[Mask, Mask, Mask, Mask]:
        """See floats.agreement."""

    def less(self, a: Any, b: Any, or_equal: bool) -> Mask:
        """Whether a < b, or a <= b, of each draw; for numbers without axes."""


def _blocks(draws: int) -> list[int]:
    """The draws in runs of at most BLOCK."""
    return [min(BLOCK, draws - start) for start in range(0, draws, BLOCK)]


class Floats:
    """The extended reals, in float64 with error bounds."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], wanted: frozenset[str]) -> Array:
        """See Arithmetic: a kind of numbers for every few draws."""
        return np.concatenate([self._block(rng, (n, *shape[1:]), wanted) for n in _blocks(shape[0])])

    def _block(self, rng: np.random.Generator, shape: tuple[int, ...], wanted: frozenset[str]) -> Array:
        normal = rng.standard_normal(shape)
        kind = int(rng.integers(11))
        if wanted and rng.random() < 0.9:
            if "boolean" in wanted:
                kind = 4
            elif "positive" in wanted or wanted >= {"nonneg", "nonzero"}:
                kind = int(rng.choice([2, 11]))
            elif "nonneg" in wanted:
                kind = int(rng.choice([2, 3, 4, 11]))
            elif "nonzero" in wanted:
                kind = int(rng.choice([0, 2, 7, 8, 12, 12]))
            elif kind in (5, 9, 10):
                kind = 0
        drawn = self._kind(kind, normal, rng)
        if wanted and wanted.isdisjoint({"finite", "boolean"}) and rng.random() < 0.3:
            # What else is positive, or not 0: an infinity, and, but for `positive`, what is undefined.
            special = [np.inf] if "positive" in wanted else [np.inf, np.nan]
            drawn = np.where(rng.random(shape) < 0.3, rng.choice(special, shape), drawn)
        return drawn

    @staticmethod
    def _kind(kind: int, normal: Array, rng: np.random.Generator) -> Array:
        """Numbers of one kind; `normal` ones, of the shape that is wanted, are given."""
        shape = normal.shape
        kinds: tuple[Callable[[], Array], ...] = (
            lambda: normal,
            lambda: rng.integers(-2, 3, shape).astype(np.float64),
            lambda: np.abs(normal) + 0.1,
            lambda: np.abs(normal) * (rng.random(shape) < 0.6),
            lambda: rng.integers(0, 2, shape).astype(np.float64),
            lambda: np.where(rng.random(shape) < 0.3, -np.inf, normal),
            lambda: rng.choice([-1.5, -1.0, 0.5, 2.0, 1.0, 0.0], (shape[0], 1, 1, 1, 1)) + np.zeros(shape),
            lambda: normal * 10.0 ** rng.integers(1, 9, shape),
            lambda: normal * 10.0 ** -rng.integers(1, 13, shape).astype(np.float64),
            lambda: np.where(rng.random(shape) < 0.3, rng.choice([-np.inf, np.inf], shape), normal),
            lambda: np.where(rng.random(shape) < 0.3, rng.choice([np.nan, np.inf, -np.inf], shape), normal),
            lambda: np.exp(rng.uniform(-20, 15, shape)),
            lambda: rng.choice([-2.0, -1.0, 1.0, 2.0], shape),
        )
        return kinds[kind]()

    number = staticmethod(floats.exactly)
    pointwise = staticmethod(floats.pointwise)
    reduce = staticmethod(floats.reduce)
    relation = staticmethod(floats.relation)
    agreement = staticmethod(floats.agreement)

    def constant(self, value: float) -> Num:
        """See Arithmetic."""
        return floats.exactly(np.full((1, 1, 1, 1, 1), value))

    def less(self, a: Num, b: Num, or_equal: bool) -> Mask:
        """See Arithmetic."""
        gap = b.v - a.v
        surely = (gap > a.e + b.e) | (or_equal & (gap == 0) & (a.e + b.e == 0))
        return np.asarray(surely.all(axis=tuple(range(1, surely.ndim))))


class Field:
    """Residues modulo 2^61 - 1."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], wanted: frozenset[str]) -> Array:
        """See Arithmetic."""
        return np.concatenate([self._block(rng, (n, *shape[1:]), wanted) for n in _blocks(shape[0])])

    @staticmethod
    def _block(rng: np.random.Generator, shape: tuple[int, ...], wanted: frozenset[str]) -> Array:
        drawn = rng.integers(0, PRIME, shape).astype(object)
        match int(rng.integers(6)):
            case 0:
                drawn = np.where(rng.random(shape) < 0.3, 0, drawn)
            case 1:
                drawn = rng.choice([-1, 1, 2] if wanted else [-1, 0, 1], shape).astype(object)
        return np.asarray(drawn)

    number = staticmethod(finite_field.residues)
    constant = staticmethod(finite_field.constant)
    pointwise = staticmethod(finite_field.pointwise)
    reduce = staticmethod(finite_field.reduce)

    def relation(self, name: str, a: Residue) -> tuple[Mask, Mask]:
        """See Arithmetic: there is no order, so only two of them mean something."""
        if name not in ("finite", "nonzero"):
            raise NotRational
        fine = a.ok if name == "finite" else a.ok & (a.v != 0)
        every = tuple(range(1, a.v.ndim))
        return np.asarray(fine.all(axis=every)), np.asarray((~fine).any(axis=every))

    def agreement(self, a: Residue, b: Residue) -> tuple[Mask, Mask, Mask, Mask]:
        """See Arithmetic."""
        both = a.ok & b.ok
        same = both & np.asarray(a.v == b.v, dtype=bool)
        return same, both & ~same, np.asarray(a.ok != b.ok), np.zeros_like(both)

    def less(self, a: Residue, b: Residue, or_equal: bool) -> Mask:
        """See Arithmetic: there is no order, but for counts of axes."""
        if not all(x.v.size == 1 and x.v.reshape(())[()] < 64 for x in (a, b)):
            raise NotRational
        x, y = (int(z.v.reshape(())[()]) for z in (a, b))
        return np.asarray([x <= y if or_equal else x < y])


@dataclass(slots=True)
class Interpretation:
    """Draws of one structure."""

    parts: Parts  # the rule
    arithmetic: Arithmetic  # what numbers are
    sizes: tuple[int, ...]  # of the four axes
    axis: dict[str, str] = field(default_factory=dict)  # axis variable to axis
    # Term variable to its axes; those that facts define are added.
    owned: dict[str, frozenset[str]] = field(default_factory=dict)
    raw: dict[str, Array] = field(default_factory=dict)  # term variable to what was drawn, [draw, i, j, k, l]
    env: dict[str, Value] = field(default_factory=dict)  # all variables' values, once `settle` has been called
    # In which draws what is asked to be a constant is a finite number; once it has been called, of those that satisfy
    # the facts.
    defined: Mask = field(default_factory=lambda: np.ones(1, dtype=bool))

    # Drawing

    def draw(self, rng: np.random.Generator, draws: int, plan: Plan | None = None) -> None:
        """Draw the variables that no fact defines.

        `plan` is what the rule's text says of its variables; worked out by default.
        """
        plan = plan or Plan.of(self.parts)
        wanted = {name: set(relations) for name, relations in plan.wanted.items()}
        for operand in plan.truths:
            if rng.random() < 0.7:
                wanted.setdefault(operand, set()).add("boolean")
        for name in plan.axes:
            self.axis[name] = str(rng.choice(AXES))
        for name in plan.terms:
            chosen = {a for a in AXES if rng.random() < 0.45}
            for axis, inside in plan.asked.get(name, ()):
                if rng.random() < 0.85:
                    chosen = chosen | {self.axis[axis]} if inside else chosen - {self.axis[axis]}
            self.owned[name] = frozenset() if name in plan.constants else frozenset(chosen)
            shape = (draws, *(n if a in self.owned[name] else 1 for a, n in zip(AXES, self.sizes, strict=True)))
            self.raw[name] = self.arithmetic.draw(rng, shape, frozenset(wanted.get(name, ())))

    def settle(self) -> Mask:
        """Give all variables their values; which draws satisfy all facts.

        Raises:
            NotRational: the arithmetic cannot say.
        """
        self.env = {**self.axis, **{name: self.arithmetic.number(raw) for name, raw in self.raw.items()}}
        none = np.zeros(1, dtype=bool)
        self.defined = np.ones(1, dtype=bool)
        equalities = [f for f in self.parts.facts if isinstance(f, list) and f[0] == "="]
        try:
            # Definitions may stand in any order; a few rounds settle them.
            defining: list[list[Form]] = []
            for _ in range(len(equalities) + 1):
                equalities = [f for f in equalities if not self._define(f, defining)]
            if equalities:
                return none
            holds = np.ones(1, dtype=bool)
            for fact in self.parts.facts:
                if any(fact is f for f in defining):
                    continue
                holds = holds & self._holds(fact) & self.defined
                if not holds.any():
                    return none
        except Undefined:
            return none
        self.defined = holds & self.defined
        return self.defined

    def _define(self, fact: list[Form], defining: list[list[Form]]) -> bool:
        """Whether both sides have values; a variable is given that of the other side, and the fact is noted."""
        for one, other in ((fact[1], fact[2]), (fact[2], fact[1])):
            if isinstance(one, str) and not literal(one) and one not in self.env:
                try:
                    self.env[one] = self.value(other)
                except KeyError:
                    continue
                defining.append(fact)
                if isinstance(self.env[one], Num | Residue):
                    self.owned[one] = self.axes(other)
                return True
        try:
            self.value(fact[1])
            self.value(fact[2])
        except KeyError:
            return False
        return True

    def _holds(self, fact: Form) -> Mask:
        assert isinstance(fact, list)
        head, args = str(fact[0]), fact[1:]
        if head in RELATIONS:
            return self.arithmetic.relation(head, self.number(args[0]))[0]
        values = [self.value(a) for a in args]
        a, b = values[0], values[-1]
        if isinstance(a, str | frozenset):
            return np.asarray([_structural(head, a, b)])
        if isinstance(b, str | frozenset):
            raise Undefined
        if head in ("=", "!="):
            if a is b:
                return np.asarray([head == "="])
            same = self.arithmetic.agreement(a, b)[0]
            equal = same.all(axis=tuple(range(1, same.ndim)))
            return np.asarray(equal if head == "=" else ~equal)
        if head in ("<", "<="):
            return self.arithmetic.less(a, b, head == "<=")
        if head in (">", ">="):
            return self.arithmetic.less(b, a, head == ">=")
        raise NotRational

    # Interpreting

    def number(self, form: Form) -> Any:
        """The value of a term. Raises Undefined: the form is none."""
        value = self.value(form)
        if isinstance(value, str | frozenset):
            raise Undefined
        return value

    def axes(self, form: Form) -> frozenset[str]:
        """The free axes of a term."""
        if isinstance(form, str):
            return frozenset() if literal(form) else self.owned.get(form, frozenset())
        head, args = form[0], form[1:]
        if head in REDUCTIONS.values():
            return self.axes(args[1]) - {str(self.value(args[0]))}
        if head in ("Read", "Pos"):
            return frozenset(AXES[:2])
        if head in ("Const", "Size", "length", "value"):
            return frozenset()
        return frozenset(a for arg in args for a in self.axes(arg))

    def value(self, form: Form) -> Value:
        """The value of a form: numbers, the name of an axis, or a set of axes.

        Raises:
            KeyError: a variable has no value yet.
            Undefined: a `value` is asked of what is no constant.
            NotRational: the arithmetic has no such operation.
        """
        if isinstance(form, str):
            if literal(form):
                return form[1:-1] if form.startswith('"') else self._constant(float(form))
            return self.env[form]
        head, args = str(form[0]), form[1:]
        if head in OP_OF:
            return self._pointwise(OP_OF[head], [self.number(a) for a in args])
        if head in self.parts.macros:
            return self._expanded(head, [self.number(a) for a in args])
        if head in REDUCTIONS.values():
            dimension = AXES.index(str(self.value(args[0])))
            found: Value = self.arithmetic.reduce(head, self.number(args[1]), dimension + 1, self.sizes[dimension])
            return found
        match head:
            case "Const":
                return self.number(args[0])  # type: ignore[no-any-return]
            case "Read" | "Pos":
                if not isinstance(self.arithmetic, Floats):
                    raise NotRational
                shape = (1, *self.sizes[:2], 1, 1)
                index = np.arange(self.sizes[0] * self.sizes[1], dtype=np.float64).reshape(shape) - 2
                drawn = np.random.default_rng(1).standard_normal(shape)
                return Floats.number(index if head == "Pos" else drawn)
            case "Size":
                return self._constant(5.0)
            case "length":
                return self._constant(float(self.sizes[AXES.index(str(self.value(args[0])))]))
            case "axes":
                self.value(args[0])  # a KeyError where it has none yet
                return self.axes(args[0])
            case "value":
                return self._known_constant(args[0])
            case "lower" | "upper":
                return self._bound(head, self.number(args[0]))
        values = [self.value(a) for a in args]
        if isinstance(values[0], frozenset):
            return self._set(head, values)
        op = _PRIMITIVES.get(head)
        if head == "/":
            return self._pointwise("mul", [values[0], self._pointwise("recip", [values[1]])])
        if op == "sub":
            return self._pointwise("add", [values[0], self._pointwise("neg", [values[-1]])])
        if op is None:
            raise NotRational
        return self._pointwise(op, values)

    def _expanded(self, head: str, args: Sequence[Any]) -> Value:
        """A declared operator, by its definition."""
        parameters, body = self.parts.macros[head]
        outside, self.env = self.env, dict(zip(parameters, args, strict=True))
        try:
            return self.value(body)
        finally:
            self.env = outside

    def _pointwise(self, op: str, args: Sequence[Any]) -> Value:
        found: Value = self.arithmetic.pointwise(op, args)
        return found

    def _constant(self, value: float) -> Value:
        found: Value = self.arithmetic.constant(value)
        return found

    def _known_constant(self, form: Form) -> Value:
        found = self.number(form)
        if self.axes(form) or found.v[0].size != 1:
            raise Undefined
        if isinstance(found, Num):
            # Each draw for itself: of many that are made at once, some are infinite nearly always.
            self.defined = self.defined & np.isfinite(found.v).reshape(-1)
            if not self.defined.any():
                raise Undefined
        return found  # type: ignore[no-any-return]

    def _bound(self, head: str, a: Value) -> Value:
        """A number that no element is below, or above: the sharpest, or, in two draws of three, one that is further."""
        if not isinstance(a, Num):
            raise NotRational
        every = tuple(range(1, a.v.ndim))
        self.defined = self.defined & (np.isfinite(a.v) & a.known).all(axis=every)
        if not self.defined.any():
            raise Undefined
        v = np.where(np.isfinite(a.v) & a.known, a.v, 0.0)
        away = np.where(np.isfinite(a.e), a.e, 0.0)
        end = (
            (v - away).min(axis=every, keepdims=True) if head == "lower" else (v + away).max(axis=every, keepdims=True)
        )
        slack = (np.arange(len(end)) % 3).reshape(end.shape) * (0.3 + 0.4 * np.abs(end))
        return Floats.number(end - slack if head == "lower" else end + slack)

    def _set(self, head: str, values: Sequence[Value]) -> Value:
        """egglog's functions of sets."""
        a, b = values[0], values[-1]
        assert isinstance(a, frozenset)
        match head, b:
            case "set-union", frozenset():
                return a | b
            case "set-intersect", frozenset():
                return a & b
            case "set-diff", frozenset():
                return a - b
            case "set-remove", str():
                return a - {b}
            case "set-insert", str():
                return a | {b}
            case "set-length", _:
                return self._constant(float(len(a)))
        raise NotRational


def _structural(head: str, a: Value, b: Value) -> bool:
    """A fact about axes."""
    match head:
        case "=":
            return a == b
        case "!=":
            return a != b
        case "set-contains":
            return isinstance(a, frozenset) and b in a
        case "set-not-contains":
            return isinstance(a, frozenset) and b not in a
    raise NotRational
