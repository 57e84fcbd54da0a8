"""What a user states of an input's elements: `x > 0`, `x in [0, 1]`, `0 <= x < 1`, `x != 0`, `x in {0, 1}`, `x finite`.

A statement is a set of numbers, and a set of numbers is a formula whose values, over all finite numbers, are that set:
x > 0 is exp(y), x >= 0 is max(y, 0). Two programs are equal where x is in the set if and only if they are equal for all
y with the formula in the place of x. So no rule, test or certificate has to know of assumptions, and none can use one
that was not stated: what is proved, drawn and checked are programs of y.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from prism.errors import UsageError, other_kind
from prism.program import build
from prism.program.nodes import Const, DType, Expr, Program, Read, Tensor
from prism.program.stated import Assumption, Fact
from prism.program.transform import rebuilt

Stated: TypeAlias = "Sequence[str] | Mapping[str, str]"
"""Statements as a user gives them: ["x > 0"] or {"x": "> 0"}."""

_NUMBER = r"[-+]?(?:inf|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_COMPARED = re.compile(rf"(<=|>=|!=|<|>)\s*({_NUMBER})")
_RANGE = re.compile(rf"in\s*([\[(])\s*({_NUMBER})\s*,\s*({_NUMBER})\s*([\])])")
_TRUTH = re.compile(r"in\s*\{\s*0\s*,\s*1\s*\}")
_NAMED = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(\W.*|in\b.*|finite)", re.DOTALL)
# As it is written of a range: 0 <= x < 1.
_BETWEEN = re.compile(rf"\s*({_NUMBER})\s*(<=|>=|<|>)\s*([A-Za-z_][\w.]*)\s*(.*)", re.DOTALL)
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_WHERE = "assume"
_FIX = "write it as in x > 0, x >= 0, x != 0, x in [0, 1], x in (0, 1], 0 <= x < 1, x in {0, 1}, x finite"


def read_assumptions(given: Stated) -> dict[str, Assumption]:
    """What is stated, by the input's name: as texts like "x > 0", or texts like "> 0" by name.

    Raises:
        UsageError: a text is no statement, or what is said of an input leaves it no number.
    """
    if isinstance(given, str):
        raise other_kind(_WHERE, given, f"several statements: [{given!r}]")
    texts = given.items() if isinstance(given, Mapping) else map(_parted, given)
    found: dict[str, Assumption] = {}
    for name, text in texts:
        one = _read(name, text.strip())
        found[name] = found.get(name, Assumption()).both(one)
        if found[name].empty:
            raise UsageError(
                f"no number is what is stated of {name}",
                where=_WHERE,
                why=f"{name} {text.strip()} contradicts what else is stated of it" if name in found else "",
                fix="state what its elements are",
            )
    return found


def _parted(text: str) -> tuple[str, str]:
    if match := _BETWEEN.fullmatch(text):
        number, sign, name, rest = match.groups()
        return name, f"{_TURNED[sign]} {number}" + (f" and {rest}" if rest else "")
    match = _NAMED.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} states nothing of an input", where=_WHERE, fix=_FIX)
    return match.group(1), match.group(2)


def _read(name: str, text: str) -> Assumption:
    one, joined, rest = text.partition(" and ")
    if joined:
        return _read(name, one.strip()).both(_read(name, rest.strip()))
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


def formula(held: Assumption, y: Expr) -> Expr:
    """An expression whose values are the set, when `y` may be any finite number (of a type with these ends)."""
    if held.truth:
        return build.op("where", build.op("lt", Const(0.0), y), Const(1.0), Const(0.0))
    inside = Const(held.low) if held.low == held.high else _between(held, y)
    if not held.nonzero:
        return inside
    ends = [x for x in (1.0, -1.0, held.low / 2, held.high / 2) if math.isfinite(x)]
    other = next(x for x in ends if bool(held.holds(np.array(x))))
    return build.op("where", build.op("eq", inside, Const(0.0)), Const(other), inside)


def _between(held: Assumption, y: Expr) -> Expr:
    low, high = Const(held.low), Const(held.high)
    if held.above and held.below and math.isfinite(held.low) and math.isfinite(held.high):
        return build.add(low, build.mul(build.sub(high, low), build.op("sigmoid", y)))
    if held.above and math.isfinite(held.low):
        inside: Expr = build.op("exp", y)
        inside = build.add(low, inside) if held.low else inside
        return build.op("minimum", inside, high) if math.isfinite(held.high) else inside
    if held.below and math.isfinite(held.high):
        inside = build.sub(high, build.op("exp", y))
        return build.op("maximum", inside, low) if math.isfinite(held.low) else inside
    if math.isfinite(held.low):
        y = build.op("maximum", y, low)
    return build.op("minimum", y, high) if math.isfinite(held.high) else y


def of_inputs(stated: Mapping[str, Assumption], program: Program) -> dict[str, Assumption]:
    """What is stated, for the types of the program's inputs.

    Raises:
        UsageError: a name is that of no input, or of a weight; or no number of the input's type is as stated.
    """
    inputs = {t.name: t for t in program.arguments}
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


def under(program: Program, stated: Stated) -> Program:
    """The program for inputs that are as stated, besides what is stated of them already.

    Raises:
        UsageError: as `read_assumptions` and `of_inputs`; what is said of an input leaves it no number; or it is no
            program.
    """
    if not isinstance(program, Program):
        raise UsageError(
            f"this is a {type(program).__name__}, and no program",
            fix="make one: prism.trace(function, example_inputs) of torch, prism.load_onnx(path) of an ONNX model",
        )
    held = of_inputs(read_assumptions(stated), program)

    def declared(t: Tensor) -> Tensor:
        if t.name not in held:
            return t
        both = held[t.name] if t.stated is None else t.stated.both(held[t.name])
        if both.empty:
            raise UsageError(
                f"no number is what is stated of {t.name}",
                where=_WHERE,
                why=f"it is {t.stated} already",
                fix="state what its elements are",
            )
        return replace(t, stated=both)

    return replace(program, inputs=tuple(map(declared, program.inputs)))


def stated_texts(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    """What is stated of the tensors, in words."""
    return tuple(f"{t.name} {t.stated}" for t in tensors if t.stated is not None)


def facts(tensors: Iterable[Tensor]) -> dict[str, tuple[Fact, ...]]:
    """What rules may take for granted of the tensors' elements (`prism.egraph.language` has the relations), by name."""
    return {t.name: t.stated.facts for t in tensors if t.stated is not None and t.stated.facts}


def placed(exprs: Sequence[Expr], tensors: Iterable[Tensor]) -> list[Expr]:
    """The expressions with the formulas of what is stated in the place of the tensors."""
    sets = {t.name: (t.name, t.stated) for t in tensors if t.stated is not None and t.dtype is not DType.BOOL}
    return _placed(exprs, sets) if sets else list(exprs)


def _placed(exprs: Sequence[Expr], formulas: Mapping[str, tuple[str, Assumption | None]]) -> list[Expr]:
    def one(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor in formulas:
            free, held = formulas[e.tensor]
            return Read(free, e.index) if held is None else formula(held, Read(free, e.index))
        return e

    return rebuilt(exprs, one)


def over(program: Program, formulas: Mapping[str, tuple[str, Assumption]]) -> Program:
    """The program of y, given for inputs x the name of y and the set whose formula of y takes the place of x."""
    sets = {n: (free, None if program.tensor(n).dtype is DType.BOOL else held) for n, (free, held) in formulas.items()}
    inputs = tuple([replace(t, name=formulas[t.name][0]) if t.name in formulas else t for t in program.inputs])
    definitions = []
    for d in program.definitions:
        (expr,) = _placed([d.expr], sets)
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
    found = evaluate_expr(formula(held, read), {"y": flat}, {}, (axis,)) if flat.size else flat
    return np.asarray(found, dtype=np.float64).reshape(np.shape(y))


def check_examples(stated: Mapping[str, Assumption], examples: Mapping[str, np.ndarray]) -> None:
    """Check examples of the inputs. Raises UsageError: an element of one is not as stated."""
    for name, one in stated.items():
        if name in examples and not (inside := one.holds(examples[name])).all():
            at = tuple(int(n) for n in np.argwhere(~inside)[0])
            raise UsageError(
                f"an example of {name} is not {one}",
                where=_WHERE,
                why=f"{name}[{', '.join(map(str, at))}] is {np.asarray(examples[name])[at]:g}",
                fix="give examples that are as stated, or state what is so",
            )


__all__ = [
    "Stated",
    "check_examples",
    "facts",
    "formula",
    "of_inputs",
    "over",
    "placed",
    "read_assumptions",
    "stated_texts",
    "under",
    "values_of",
]
