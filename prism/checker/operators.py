"""Operators that a rule file declares: their definitions, read again from the torch expression, as rules.

`(operator softcap (x c) "c * torch.tanh(x / c)")` is the rule `softcap-definition`, both ways, and
`softcap-recognition`, for a number c whose 1/c was computed ahead (in float64: the two may differ by 1e-11 of them).
What is read here is less than what prism takes: arithmetic, comparisons, and the functions below. An operator that uses
more has no rule here, and what rests on it has no derivation that this checker accepts.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Sexp: TypeAlias = "str | float | list[Sexp]"

_SAME = {
    **{
        name: name.capitalize()
        for name in ("exp", "log", "sqrt", "sin", "cos", "tanh", "atan", "erf", "sigmoid", "abs")
    },
    **{"sign": "Sign", "floor": "Floor", "round": "Round", "reciprocal": "Recip"},
    **{"maximum": "Max2", "minimum": "Min2", "where": "Where"},
}
# Others, as expressions over a.
_WRITTEN = {
    "relu": "torch.maximum(a, 0)",
    "square": "a * a",
    "silu": "a * torch.sigmoid(a)",
    "rsqrt": "torch.reciprocal(torch.sqrt(a))",
}
_PYTHON: dict[str, Any] = {"Exp": math.exp, "Log": math.log, "Sqrt": math.sqrt, "Tanh": math.tanh, "Abs": abs}


class _Unread(Exception):
    """The expression holds what is not read here."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A rule that a declaration makes."""

    name: str  # of the rule
    left: Sexp  # the term that it takes
    right: Sexp  # the term that it gives
    facts: tuple[Sexp, ...] = ()  # what must hold
    both: bool = True  # whether it is read from right to left, too


def definitions(form: Sequence[Any]) -> tuple[Definition, ...]:
    """The rules of a declaration; none where its expression holds what is not read here, or it is no declaration."""
    match form:
        case ["operator", str(name), list(parameters), str(quoted)]:
            names = [str(p) for p in parameters]
        case _:
            return ()
    try:
        tree = ast.parse(quoted[1:-1].strip().replace("\n", " "), mode="eval").body
        body = _of(tree, {p: p for p in names})
    except (_Unread, SyntaxError, ValueError, ArithmeticError, RecursionError):
        return ()
    head: Sexp = ["".join(part[:1].upper() + part[1:] for part in name.split("_")), *names]
    made = [Definition(f"{name}-definition", head, body)]
    facts: list[Sexp] = []
    pattern = _recognised(body, names[1:], facts)
    if facts and set(names) <= _leaves(pattern):
        known: list[Sexp] = [["=", f"_v_{p}", ["value", p]] for p in names[1:]]
        made.append(Definition(f"{name}-recognition", pattern, head, (*known, *facts), both=False))
    return tuple(made)


def _leaves(s: Sexp) -> set[str]:
    if isinstance(s, list):
        return {leaf for part in s[1:] for leaf in _leaves(part)}
    return {s} if isinstance(s, str) else set()


def _recognised(s: Sexp, numbers: Sequence[str], facts: list[Sexp]) -> Sexp:
    """The term with a variable for each part that is a number where the parameters `numbers` are."""
    if not isinstance(s, list) or s[0] == "Const":
        return s
    value = _worth(s, numbers)
    if value is None:
        return [s[0], *[_recognised(part, numbers, facts) for part in s[1:]]]
    name = f"_k{len(facts) // 2}"
    v = f"_v{name}"
    facts += [["=", v, ["value", name]], ["<", ["abs", ["-", v, value]], ["*", 1e-11, ["abs", v]]]]
    return name


def _worth(s: Sexp, numbers: Sequence[str]) -> Sexp | None:
    """The arithmetic that such a part is; None for what is no number."""
    if isinstance(s, str):
        return f"_v_{s}" if s in numbers else None
    if not isinstance(s, list) or s[0] == "Const":
        return s[1] if isinstance(s, list) else s
    args = [_worth(part, numbers) for part in s[1:]]
    if any(a is None for a in args):
        return None
    known: list[Sexp] = [a for a in args if a is not None]
    match s[0]:
        case "Add":
            return ["+", *known]
        case "Mul":
            return ["*", *known]
        case "Recip":
            return ["/", 1.0, *known]
    return None


def _of(tree: ast.expr, known: dict[str, Sexp]) -> Sexp:
    def of(t: ast.expr) -> Sexp:
        return _of(t, known)

    match tree:
        case ast.Constant(bool() | int() | float() as value):
            return ["Const", float(value)]
        case ast.Name(name) if name in known:
            return known[name]
        case ast.UnaryOp(ast.USub(), a):
            return _negative(of(a))
        case ast.BinOp(a, ast.Add(), b):
            return _add(of(a), of(b))
        case ast.BinOp(a, ast.Sub(), b):
            return _add(of(a), _negative(of(b)))
        case ast.BinOp(a, ast.Mult(), b):
            return _mul(of(a), of(b))
        case ast.BinOp(a, ast.Div(), b):
            return _mul(of(a), _recip(of(b)))
        case ast.BinOp(a, ast.Pow(), ast.Constant(2 | 3 | 4 as n)):
            x = of(a)
            square = _mul(x, x)
            return square if n == 2 else _mul(square, x if n == 3 else square)
        case ast.Compare(a, [ast.Lt() | ast.Gt() as kind], [b]):
            return ["Lt", of(a), of(b)] if isinstance(kind, ast.Lt) else ["Lt", of(b), of(a)]
        case ast.Compare(a, [ast.LtE() | ast.GtE() as kind], [b]):
            return ["Le", of(a), of(b)] if isinstance(kind, ast.LtE) else ["Le", of(b), of(a)]
        case ast.Call(ast.Attribute(ast.Name("torch" | "F"), name), arguments, []):
            args = [of(a) for a in arguments]
            if name in _WRITTEN and len(args) == 1:
                return _of(ast.parse(_WRITTEN[name], mode="eval").body, {"a": args[0]})
            if name in _SAME:
                return _recip(args[0]) if name == "reciprocal" else _made(_SAME[name], args)
    raise _Unread


def _number(s: Sexp) -> float | None:
    return s[1] if isinstance(s, list) and s[0] == "Const" and isinstance(s[1], float) else None


def _made(head: str, args: list[Sexp]) -> Sexp:
    """An operation; of numbers, a number."""
    numbers = [_number(a) for a in args]
    if None not in numbers:
        if head not in _PYTHON:
            raise _Unread
        return ["Const", float(_PYTHON[head](*numbers))]
    return [head, *args]


def _add(a: Sexp, b: Sexp) -> Sexp:
    x, y = _number(a), _number(b)
    if x is not None and y is not None:
        return ["Const", x + y]
    return b if x == 0 else a if y == 0 else ["Add", a, b]


def _mul(a: Sexp, b: Sexp) -> Sexp:
    x, y = _number(a), _number(b)
    if x is not None and y is not None:
        return ["Const", x * y]
    return b if x == 1 else a if y == 1 else ["Mul", a, b]


def _negative(a: Sexp) -> Sexp:
    x = _number(a)
    return ["Const", -x] if x is not None else ["Mul", ["Const", -1.0], a]


def _recip(a: Sexp) -> Sexp:
    x = _number(a)
    return ["Const", 1.0 / x] if x is not None else ["Recip", a]
