"""Rules tested by random interpretation, independently of egglog: each pattern variable is a random array.

An axis variable is one of a few axes, of distinct and of equal extents; a term variable is a float64 array over a
random subset of them, signed, with zeros and ties, of one sign or of truth values, sometimes with -inf, which masks are
made of. The rule's facts are evaluated on the arrays themselves, and draws at which they do not hold are dropped; where
they hold, both sides of every union must agree wherever both are defined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from prism.egraph.language import CONSTRUCTORS, LEAVES, REDUCTIONS
from prism.egraph.rules import Rule
from prism.program.arrays import NumpyArrays

Form: TypeAlias = "str | list[Form]"
Value: TypeAlias = "np.ndarray | str | frozenset[str] | float | bool"

AXES = ("i", "j", "k", "l")
SIZES = ((2, 3, 4, 2), (3, 3, 3, 3))
RTOL = 1e-7
# A draw that satisfies the facts is looked for this often.
TRIES = 4000
WANTED = 40

_OP_OF = {constructor: op for op, constructor in CONSTRUCTORS.items()}
_RELATIONS = ("finite", "nonzero", "positive", "nonneg", "boolean")
_NUMPY = NumpyArrays()


@dataclass(frozen=True, slots=True)
class Finding:
    """What the test of one rule came to.

    Attributes:
        rule: its name.
        agreed: draws at which the facts held and both sides agreed.
        counterexample: text of the first draw at which they did not; empty when there was none.
    """

    rule: str
    agreed: int
    counterexample: str = ""

    def __bool__(self) -> bool:
        return not self.counterexample and self.agreed > 0


def parse(text: str) -> Form:
    """The s-expression."""
    tokens = list(_tokens(text))
    position = 0

    def read() -> Form:
        nonlocal position
        token = tokens[position]
        position += 1
        if token != "(":
            return token
        items: list[Form] = []
        while tokens[position] != ")":
            items.append(read())
        position += 1
        return items

    return read()


def _tokens(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        c = text[position]
        if c in "()":
            yield c
            position += 1
        elif c == '"':
            end = text.index('"', position + 1)
            yield text[position : end + 1]
            position = end + 1
        elif c == ";":
            position = (text.find("\n", position) + 1) or len(text)
        elif c.isspace():
            position += 1
        else:
            end = position
            while end < len(text) and text[end] not in '()"; \n\t':
                end += 1
            yield text[position:end]
            position = end


@dataclass(slots=True)
class _Parts:
    """A rule as facts and what must follow from them."""

    facts: list[Form]
    unions: list[tuple[Form, Form]] = field(default_factory=list)
    relations: list[tuple[str, Form]] = field(default_factory=list)


def _parts(form: Form) -> _Parts:
    assert isinstance(form, list)
    head = form[0]
    if head in ("rewrite", "birewrite"):
        return _Parts([], [(form[1], form[2])])
    facts, actions = form[1], form[2]
    assert isinstance(facts, list)
    assert isinstance(actions, list)
    parts = _Parts(facts)
    for action in actions:
        assert isinstance(action, list)
        match action[0]:
            case "union":
                parts.unions.append((action[1], action[2]))
            case "set":
                parts.unions.append((action[1], action[2]))
            case "subsume" | "panic":
                pass
            case str(name):
                parts.relations.append((name, action[1]))
    return parts


def check_rule(rule: Rule, seed: int = 0) -> Finding:
    """Test one rule.

    Args:
        rule: the rule.
        seed: of the draws; equal seeds give equal findings.
    """
    parts = _parts(parse(rule.text))
    agreed = 0
    for number in range(TRIES):
        world = _World(np.random.default_rng([seed, number]), SIZES[number % len(SIZES)])
        with np.errstate(all="ignore"):
            if not world.prepare(parts):
                continue
            problem = world.problem(parts)
        if problem:
            return Finding(rule.name, agreed, problem)
        agreed += 1
        if agreed >= WANTED:
            break
    return Finding(rule.name, agreed)


class _Undefined(Exception):
    """The draw does not fit the pattern."""


@dataclass(slots=True)
class _World:
    """One draw."""

    rng: np.random.Generator
    sizes: tuple[int, ...]
    env: dict[str, Value] = field(default_factory=dict)
    owned: dict[str, frozenset[str]] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)

    # Drawing

    def prepare(self, parts: _Parts) -> bool:
        """Draw the variables, define those that facts define, and say whether all facts hold."""
        forms: list[Form] = [*parts.facts, *(f for u in parts.unions for f in u)]
        defined = self._defined(parts.facts)
        for fact in parts.facts:
            if isinstance(fact, list) and fact[0] == "=":
                for side in fact[1:]:
                    if isinstance(side, list) and side[0] == "value" and isinstance(side[1], str):
                        self.constants.add(side[1])
        for form in forms:
            self._draw(form, "T", defined)
        # Definitions may stand in any order; a few rounds settle them.
        pending = [f for f in parts.facts if isinstance(f, list) and f[0] == "="]
        try:
            for _ in range(len(pending) + 1):
                pending = [f for f in pending if not self._define(f)]
        except _Undefined:
            return False
        if pending:
            return False
        return all(self._holds(f) for f in parts.facts)

    def _defined(self, facts: list[Form]) -> set[str]:
        """Variables that a fact `(= v expression)` gives a value."""
        found: set[str] = set()
        for fact in facts:
            if isinstance(fact, list) and fact[0] == "=":
                sides = fact[1:]
                if any(isinstance(s, list) for s in sides):
                    found |= {s for s in sides if isinstance(s, str) and not _literal(s)}
        # A variable whose value is asked for is drawn as a constant, not defined by it.
        return found

    def _draw(self, form: Form, sort: str, defined: set[str]) -> None:
        if isinstance(form, str):
            if _literal(form) or form in self.env or form in defined or sort == "?":
                return
            if sort == "axis":
                self.env[form] = str(self.rng.choice(AXES))
            elif sort == "T":
                self._tensor(form)
            return
        head, args = form[0], form[1:]
        assert isinstance(head, str)
        if head in REDUCTIONS.values():
            self._draw(args[0], "axis", defined)
            self._draw(args[1], "T", defined)
        elif head == "length":
            self._draw(args[0], "axis", defined)
        elif head in ("axes", "value", *_RELATIONS) or head in _OP_OF:
            for a in args:
                self._draw(a, "T", defined)
        elif head in LEAVES:
            return
        else:
            for a in args:
                self._draw(a, "T" if isinstance(a, list) else "?", defined)

    def _tensor(self, name: str) -> None:
        owned = frozenset(a for a in AXES if self.rng.random() < 0.45)
        if name in self.constants:
            owned = frozenset()
        shape = tuple(n if a in owned else 1 for a, n in zip(AXES, self.sizes, strict=True))
        normal = self.rng.standard_normal(shape)
        match int(self.rng.integers(7)):
            case 0:
                drawn = normal
            case 1:
                drawn = self.rng.integers(-2, 3, shape).astype(np.float64)
            case 2:
                drawn = np.abs(normal) + 0.1
            case 3:
                drawn = np.abs(normal) * (self.rng.random(shape) < 0.6)
            case 4:
                drawn = self.rng.integers(0, 2, shape).astype(np.float64)
            case 5:
                drawn = np.where(self.rng.random(shape) < 0.3, -np.inf, normal)
            case _:
                drawn = np.full(shape, float(self.rng.choice([-1.5, -1.0, 0.5, 2.0, 1.0, 0.0])))
        self.env[name] = drawn
        self.owned[name] = owned

    def _define(self, fact: list[Form]) -> bool:
        """Give the variables of `(= a b)` their value where one side is known; whether one was.

        Raises:
            _Undefined: a `value` is asked of what is no constant.
        """
        try:
            for one, other in ((fact[1], fact[2]), (fact[2], fact[1])):
                if isinstance(one, str) and not _literal(one) and one not in self.env:
                    value = self.value(other)
                    self.env[one] = value
                    if isinstance(value, np.ndarray):
                        self.owned[one] = self.axes(other)
                    return True
            self.value(fact[1])
            self.value(fact[2])
        except KeyError:
            return False
        return True

    def _holds(self, fact: Form) -> bool:
        try:
            assert isinstance(fact, list)
            match fact[0]:
                case "=":
                    return self._same(self.value(fact[1]), self.value(fact[2]), exact=True)
                case "!=":
                    return not self._same(self.value(fact[1]), self.value(fact[2]), exact=True)
                case str(name) if name in _RELATIONS:
                    return _relation(name, self._array(fact[1]))
                case _:
                    return bool(self.value(fact))
        except _Undefined:
            return False

    # Judging

    def problem(self, parts: _Parts) -> str:
        """What does not follow; empty when all does."""
        for left, right in parts.unions:
            try:
                a, b = self.value(left), self.value(right)
            except _Undefined:
                continue
            if not self._same(a, b, exact=False):
                return f"{_text(left)} is {_shown(a)} and {_text(right)} is {_shown(b)}, with {self._given()}"
        for name, form in parts.relations:
            if not _relation(name, self._array(form)):
                return f"{_text(form)} is not {name}, with {self._given()}"
        return ""

    def _given(self) -> str:
        return ", ".join(f"{k} = {_shown(v)}" for k, v in self.env.items())

    def _same(self, a: Value, b: Value, exact: bool) -> bool:
        if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
            if isinstance(a, float) and isinstance(b, float):
                return a == b or math.isclose(a, b, rel_tol=1e-12)  # sqrt and ^0.5 differ in the last place
            return a == b
        x, y = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
        if exact:
            return bool(np.array_equal(x, y, equal_nan=True))
        # 1/0 and inf - inf are undefined; +-inf itself is a value that both sides may take.
        defined = np.isfinite(x) & np.isfinite(y)
        scale = np.maximum(np.abs(x), np.abs(y)) + 1e-6
        return bool(np.all(~defined | (np.abs(np.where(defined, x - y, 0.0)) <= RTOL * np.where(defined, scale, 1.0))))

    def _array(self, form: Form) -> np.ndarray:
        value = self.value(form)
        if not isinstance(value, np.ndarray):
            raise _Undefined
        return value

    # Interpreting

    def axes(self, form: Form) -> frozenset[str]:
        """The free axes of a term."""
        if isinstance(form, str):
            return self.owned[form]
        head, args = form[0], form[1:]
        if head in REDUCTIONS.values():
            return self.axes(args[1]) - {str(self.value(args[0]))}
        if head in ("Read", "Pos"):
            return frozenset(AXES[:2])
        if head in ("Const", "Size", "length"):
            return frozenset()
        return frozenset(a for arg in args for a in self.axes(arg))

    def value(self, form: Form) -> Value:
        """The value of a form: an array for a term, else a name, a set of axes, a number or a truth value.

        Raises:
            KeyError: a variable has no value yet.
            _Undefined: a `value` is asked of what is no constant.
        """
        if isinstance(form, str):
            return _constant(form) if _literal(form) else self.env[form]
        head, args = form[0], form[1:]
        assert isinstance(head, str)
        if head in _OP_OF:
            operands = [np.asarray(self.value(a), dtype=np.float64) for a in args]
            result = np.asarray(_NUMPY.pointwise(_OP_OF[head], operands), dtype=np.float64)
            return result
        if head in REDUCTIONS.values():
            return self._reduce(head, str(self.value(args[0])), self._array(args[1]))
        match head:
            case "Const":
                return np.full((1, 1, 1, 1), float(self.value(args[0])))  # type: ignore[arg-type]
            case "Read":
                return np.random.default_rng(1).standard_normal((*self.sizes[:2], 1, 1))
            case "Pos":
                return np.arange(self.sizes[0] * self.sizes[1], dtype=np.float64).reshape(*self.sizes[:2], 1, 1) - 2
            case "Size":
                return np.full((1, 1, 1, 1), 5.0)
            case "length":
                return np.full((1, 1, 1, 1), float(self.sizes[AXES.index(str(self.value(args[0])))]))
            case "axes":
                return self.axes(args[0])
            case "value":
                array = self._array(args[0])
                if array.size != 1 or not np.isfinite(array).all():
                    raise _Undefined
                return float(array.reshape(()))
        return self._primitive(head, [self.value(a) for a in args])

    def _reduce(self, head: str, axis: str, array: np.ndarray) -> np.ndarray:
        dimension = AXES.index(axis)
        shape = list(array.shape)
        shape[dimension] = self.sizes[dimension]
        full = np.broadcast_to(array, shape)
        match head:
            case "Sum":
                folded = np.sum(full, axis=dimension, keepdims=True)
            case "Max":
                folded = np.max(full, axis=dimension, keepdims=True)
            case "Min":
                folded = np.min(full, axis=dimension, keepdims=True)
            case _:
                folded = np.prod(full, axis=dimension, keepdims=True)
        return np.asarray(folded)

    @staticmethod
    def _primitive(head: str, args: list[Value]) -> Value:
        """egglog's own functions on numbers and sets."""
        a = args[0]
        b = args[1] if len(args) > 1 else a
        if isinstance(a, frozenset):
            match head:
                case "set-contains":
                    return b in a
                case "set-not-contains":
                    return b not in a
                case "set-union":
                    assert isinstance(b, frozenset)
                    return a | b
                case "set-length":
                    return float(len(a))
        assert isinstance(a, float | int)
        assert isinstance(b, float | int)
        table: Mapping[str, Value] = {
            "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "+": a + b, "-": a - b, "*": a * b,
            "/": a / b if b else math.nan, "abs": abs(a), "max": max(a, b), "min": min(a, b),
        }  # fmt: skip
        if head == "^":
            return float(np.power(a, b))
        return table[head]


def _relation(name: str, x: np.ndarray) -> bool:
    match name:
        case "finite":
            return bool(np.isfinite(x).all())
        case "nonzero":
            return bool((x != 0).all())
        case "positive":
            return bool((x > 0).all())
        case "nonneg":
            return bool(((x >= 0) | np.isnan(x)).all())
        case _:
            return bool(((x == 0) | (x == 1)).all())


def _literal(token: str) -> bool:
    return token.startswith('"') or token.lstrip("-") in ("inf", "NaN") or token.lstrip("-")[:1].isdigit()


def _constant(token: str) -> Value:
    return token[1:-1] if token.startswith('"') else float(token)


def _text(form: Form) -> str:
    return form if isinstance(form, str) else f"({' '.join(map(_text, form))})"


def _shown(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return np.array2string(np.squeeze(value), precision=4, threshold=12).replace("\n", "")
    return "{" + ", ".join(sorted(value)) + "}" if isinstance(value, frozenset) else str(value)
