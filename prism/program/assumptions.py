"""What a user states of an input's elements: `x > 0`, `x in [0, 1]`, `x != 0`, `x in {0, 1}`, `x finite`.

A statement is a set of numbers, and a set of numbers is a formula whose values, over all finite numbers, are that set:
x > 0 is exp(y), x >= 0 is max(y, 0). Two programs are equal where x is in the set if and only if they are equal for all
y with the formula in the place of x. So no rule, test or certificate has to know of assumptions, and none can use one
that was not stated: what is proved, drawn and checked are programs of y.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from prism.errors import UsageError
from prism.program import build
from prism.program.nodes import Const, DType, Expr, Program, Read
from prism.program.transform import rebuilt

_NUMBER = r"[-+]?(?:inf|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_COMPARED = re.compile(rf"(<=|>=|!=|<|>)\s*({_NUMBER})")
_RANGE = re.compile(rf"in\s*([\[(])\s*({_NUMBER})\s*,\s*({_NUMBER})\s*([\])])")
_TRUTH = re.compile(r"in\s*\{\s*0\s*,\s*1\s*\}")
_NAMED = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(\W.*|in\b.*|finite)", re.DOTALL)
_WHERE = "assume"
_FIX = "write it as in x > 0, x >= 0, x != 0, x in [0, 1], x in (0, 1], x in {0, 1}, x finite"


@dataclass(frozen=True, slots=True)
class Assumption:
    """A set of finite numbers that an input's elements lie in.

    Attributes:
        low: none is below.
        high: none is above.
        above: whether none is `low` itself.
        below: whether none is `high` itself.
        nonzero: whether none is 0.
        truth: whether each is 0 or 1.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False
    nonzero: bool = False
    truth: bool = False

    def holds(self, values: np.ndarray) -> np.ndarray:
        """Element by element, whether it is in the set."""
        x = np.asarray(values, dtype=np.float64)
        inside = np.isfinite(x) & ((x > self.low) if self.above else (x >= self.low))
        inside &= (x < self.high) if self.below else (x <= self.high)
        inside &= (x != 0) | (not self.nonzero)
        return np.asarray(inside & ((x == 0) | (x == 1) | (not self.truth)))

    def both(self, other: Assumption) -> Assumption:
        """What is in both sets."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        above = any(a.above and a.low == low for a in (self, other))
        below = any(a.below and a.high == high for a in (self, other))
        nonzero = self.nonzero or other.nonzero
        return Assumption(low, high, above, below, nonzero, self.truth or other.truth)._plain()

    def _plain(self) -> Assumption:
        """The set in one way: an end that is left out is open, a set of one number is a range."""
        if self.truth:
            kept = [x for x in (0.0, 1.0) if bool(self.holds(np.array(x)))]
            return Assumption(truth=True) if len(kept) == 2 else self._only(kept)
        above = self.above or (self.nonzero and self.low == 0)
        below = self.below or (self.nonzero and self.high == 0)
        return replace(self, above=above, below=below, nonzero=self.nonzero and self.low < 0 < self.high)

    @staticmethod
    def _only(kept: Sequence[float]) -> Assumption:
        return Assumption(kept[0], kept[0]) if kept else Assumption(math.inf, -math.inf)

    def whole(self) -> Assumption:
        """The whole numbers of the set, between ends that are among them."""
        low = math.floor(self.low) + 1 if self.above else self.low if math.isinf(self.low) else math.ceil(self.low)
        high = math.ceil(self.high) - 1 if self.below else self.high if math.isinf(self.high) else math.floor(self.high)
        return replace(self, low=float(low), high=float(high), above=False, below=False)

    @property
    def empty(self) -> bool:
        """Whether there is no such number."""
        none = self.low == math.inf or self.high == -math.inf or self.low > self.high
        return none or (self.low == self.high and (self.above or self.below))

    @property
    def positive(self) -> bool:
        """Whether all of them are above 0."""
        return not self.truth and (self.low > 0 or (self.low == 0 and self.above))

    def formula(self, y: Expr) -> Expr:
        """An expression whose values are this set, when `y` may be any finite number (of a type with these ends)."""
        if self.truth:
            return build.op("where", build.op("lt", Const(0.0), y), Const(1.0), Const(0.0))
        inside = Const(self.low) if self.low == self.high else self._between(y)
        if not self.nonzero:
            return inside
        ends = [x for x in (1.0, -1.0, self.low / 2, self.high / 2) if math.isfinite(x)]
        other = next(x for x in ends if bool(self.holds(np.array(x))))
        return build.op("where", build.op("eq", inside, Const(0.0)), Const(other), inside)

    def _between(self, y: Expr) -> Expr:
        low, high = Const(self.low), Const(self.high)
        if self.above and self.below and math.isfinite(self.low) and math.isfinite(self.high):
            return build.add(low, build.mul(build.sub(high, low), build.op("sigmoid", y)))
        if self.above and math.isfinite(self.low):
            inside: Expr = build.op("exp", y)
            inside = build.add(low, inside) if self.low else inside
            return build.op("minimum", inside, high) if math.isfinite(self.high) else inside
        if self.below and math.isfinite(self.high):
            inside = build.sub(high, build.op("exp", y))
            return build.op("maximum", inside, low) if math.isfinite(self.low) else inside
        if math.isfinite(self.low):
            y = build.op("maximum", y, low)
        return build.op("minimum", y, high) if math.isfinite(self.high) else y

    def __str__(self) -> str:
        if self.truth:
            return "in {0, 1}"
        if math.isfinite(self.low) and math.isfinite(self.high):
            ends = "(" if self.above else "[", ")" if self.below else "]"
            said = [f"in {ends[0]}{self.low:g}, {self.high:g}{ends[1]}"]
        else:
            said = [f"{'>' if self.above else '>='} {self.low:g}"] * math.isfinite(self.low)
            said += [f"{'<' if self.below else '<='} {self.high:g}"] * math.isfinite(self.high)
        return " and ".join([*said, *(["!= 0"] * self.nonzero)]) or "finite"


POSITIVE = Assumption(low=0.0, above=True)
"""What every set of positive numbers is part of."""


def read_assumptions(given: Mapping[str, str] | Sequence[str]) -> dict[str, Assumption]:
    """What is stated, by the input's name: as texts like "x > 0", or texts like "> 0" by name.

    Raises:
        UsageError: a text is no statement, or what is said of an input leaves it no number.
    """
    texts = given.items() if isinstance(given, Mapping) else map(_parted, given)
    found: dict[str, Assumption] = {}
    for name, text in texts:
        one = _read(name, text.strip())
        found[name] = found[name].both(one) if name in found else one._plain()
        if found[name].empty:
            raise UsageError(
                f"no number is what is stated of {name}",
                where=_WHERE,
                why=f"{name} {text.strip()} contradicts what else is stated of it" if name in found else "",
                fix="state what its elements are",
            )
    return found


def _parted(text: str) -> tuple[str, str]:
    match = _NAMED.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} states nothing of an input", where=_WHERE, fix=_FIX)
    return match.group(1), match.group(2)


def _read(name: str, text: str) -> Assumption:
    if text == "finite":
        return Assumption()
    if _TRUTH.fullmatch(text):
        return Assumption(truth=True)
    if match := _RANGE.fullmatch(text):
        left, low, high, right = match.groups()
        return Assumption(float(low), float(high), left == "(", right == ")")
    if match := _COMPARED.fullmatch(text):
        x = float(match.group(2))
        match match.group(1):
            case "!=" if x == 0:
                return Assumption(nonzero=True)
            case ">" | ">=" as sign:
                return Assumption(low=x, above=sign == ">")
            case "<" | "<=" as sign:
                return Assumption(high=x, below=sign == "<")
    raise UsageError(f"{name} {text} states nothing of an input", where=_WHERE, fix=_FIX)


def of_inputs(stated: Mapping[str, Assumption], program: Program) -> dict[str, Assumption]:
    """What is stated, for the types of the program's inputs.

    Raises:
        UsageError: a name is that of no input, or of a weight; or no number of the input's type is as stated.
    """
    inputs = {t.name: t for t in program.inputs if t.name not in program.weights}
    found = {}
    for name, one in stated.items():
        if name not in inputs:
            weight = name in program.weights
            raise UsageError(
                f"{name} is {'a weight, whose numbers are known' if weight else 'no input'} of {program.name}",
                where=_WHERE,
                why=f"its inputs are {', '.join(inputs) or 'none'}",
                fix="state it of an input",
            )
        dtype = inputs[name].dtype
        found[name] = one if dtype.is_float or one.truth else one.whole()
        if dtype is DType.BOOL and not one.truth:
            raise UsageError(f"{name} is of truth values: {one} says nothing of it", where=_WHERE, fix=_FIX)
        if found[name].empty:
            raise UsageError(f"no {dtype.value} is {one}", where=_WHERE, fix=f"state what {name}'s elements are")
    return found


def over(program: Program, formulas: Mapping[str, tuple[str, Assumption]]) -> Program:
    """The program of y, given for inputs x the name of y and the set whose formula of y takes the place of x."""

    def placed(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor in formulas:
            free, held = formulas[e.tensor]
            dtype = program.tensor(e.tensor).dtype
            return Read(free, e.index) if dtype is DType.BOOL else held.formula(Read(free, e.index))
        return e

    inputs = tuple([replace(t, name=formulas[t.name][0]) if t.name in formulas else t for t in program.inputs])
    definitions = []
    for d in program.definitions:
        (expr,) = rebuilt([d.expr], placed)
        definitions.append(replace(d, expr=expr, view=d.view and isinstance(expr, Read)))
    return replace(program, inputs=inputs, definitions=tuple(definitions), source=None)


def values_of(held: Assumption, dtype: DType, y: np.ndarray) -> np.ndarray:
    """The elements of x, given those of y."""
    from prism.program.evaluate import evaluate_expr
    from prism.program.index import Axis, Index

    if dtype is DType.BOOL:
        return y
    flat = np.asarray(y, dtype=np.float64).reshape(-1)
    axis = Axis("i", max(1, flat.size))
    read = Read("y", (Index.axis(axis),))
    found = evaluate_expr(held.formula(read), {"y": flat}, {}, (axis,)) if flat.size else flat
    return np.asarray(found, dtype=np.float64).reshape(np.shape(y))


def check_examples(stated: Mapping[str, Assumption], examples: Mapping[str, np.ndarray]) -> None:
    """Check examples of the inputs.

    Raises:
        UsageError: an element of one is not as stated.
    """
    for name, one in stated.items():
        if name in examples and not (inside := one.holds(examples[name])).all():
            at = tuple(int(n) for n in np.argwhere(~inside)[0])
            raise UsageError(
                f"an example of {name} is not {one}",
                where=_WHERE,
                why=f"{name}[{', '.join(map(str, at))}] is {np.asarray(examples[name])[at]:g}",
                fix="give examples that are as stated, or state what is so",
            )


__all__ = ["POSITIVE", "Assumption", "check_examples", "of_inputs", "over", "read_assumptions", "values_of"]
