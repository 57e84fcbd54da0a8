"""Pointwise operators that a user declares: a name, parameters, and the torch expression that defines the value.

The expression is Python, read with `ast` and translated node by node; nothing in it is ever run. What it may hold:
numbers, the parameters, `math.pi`, `+ - * / **`, comparisons, and the pointwise functions of torch that are listed
here, as `torch.f(x)`, `torch.nn.functional.f(x)`, `F.f(x)` or `x.f()`.

A declared operator is its definition everywhere: a program holds what `Operator.of` writes, so evaluation, costs,
tests and kernels know known operations only. In the e-graph it is an operation of its own as well, for rules to speak
of (prism.egraph.operators).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from prism.program import formulas
from prism.program.fold import div, op, sub
from prism.program.nodes import Const, Expr, Map, Read, walk
from prism.program.transform import replaced


class ExpressionError(Exception):
    """The expression is not one of those that define an operator.

    Attributes:
        place: of the first character that is wrong, from 0, in the expression without the space around it.
        fix: what to do.
    """

    def __init__(self, what: str, at: ast.AST | None = None, *, place: int = 0, fix: str = "") -> None:
        super().__init__(what)
        self.place: int = getattr(at, "col_offset", place)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Operator:
    """A declared operator."""

    name: str  # in lower case: `softcap`; rules write `Softcap`
    parameters: tuple[str, ...]  # in the order of the arguments
    torch: str  # the expression that defines it
    body: Expr  # the same over the parameters, each a read without index
    where: str = ""  # file:line of the declaration

    def of(self, arguments: Sequence[Expr]) -> Expr:
        """The definition at these arguments, as written: numbers in it are not folded, so rules recognise it."""
        given: dict[Expr, Expr] = {
            Read(p, ()): argument for p, argument in zip(self.parameters, arguments, strict=True)
        }
        return replaced([self.body], lambda e: given.get(e, e))[0]


def syntax(torch: str) -> ast.expr:
    """The expression's syntax tree, as of one line; it may go over several. Raises SyntaxError: it is no expression."""
    return ast.parse(torch.strip().replace("\n", " "), mode="eval").body


def operator(name: str, parameters: Sequence[str], torch: str, where: str = "") -> Operator:
    """Translate a declaration. Raises ExpressionError: the expression is no legal definition."""
    try:
        tree = syntax(torch)
    except (SyntaxError, ValueError) as error:
        what = f"the torch expression does not parse: {getattr(error, 'msg', error)}"
        raise ExpressionError(what, place=(getattr(error, "offset", 1) or 1) - 1) from None
    body = _Translation(tuple(parameters)).of(tree)
    read = {e.tensor for e in walk(body) if isinstance(e, Read)}
    unused = [p for p in parameters if p not in read]
    if unused:
        fix = "leave it out of the parameters"
        raise ExpressionError(f"the value does not depend on the parameter {unused[0]}", tree, fix=fix)
    if not isinstance(body, Map):
        raise ExpressionError("the expression computes nothing", tree, fix="an operator needs an operation")
    return Operator(name, tuple(parameters), torch, body, where)


def _clamp(x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    x = x if low is None else op("maximum", x, low)
    return x if high is None else op("minimum", x, high)


def _gelu(x: Expr, approximate: Expr | str = "none") -> Expr:
    if not isinstance(approximate, str):
        raise ExpressionError('approximate is "none" or "tanh"')
    return formulas.gelu(x, approximate)


def _numbers(given: Mapping[str, Expr]) -> dict[str, float]:
    if not all(isinstance(e, Const) for e in given.values()):
        raise ExpressionError("all arguments but the first must be numbers")
    return {name: e.value for name, e in given.items() if isinstance(e, Const)}


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of torch: the names of its arguments, how many must be given, and the formula."""

    arguments: tuple[str, ...]
    required: int
    formula: Callable[..., Expr]


def _pointwise(name: str, *arguments: str) -> _Function:
    return _Function(arguments, len(arguments), lambda *args: op(name, *args))


FUNCTIONS: Mapping[str, _Function] = MappingProxyType(
    {
        **{name: _Function(("input",), 1, f) for name, f in formulas.UNARY.items() if name != "log_sigmoid"},
        "logsigmoid": _Function(("input",), 1, formulas.log_sigmoid),
        "expit": _Function(("input",), 1, formulas.sigmoid),
        "maximum": _pointwise("maximum", "input", "other"),
        "minimum": _pointwise("minimum", "input", "other"),
        "add": _pointwise("add", "input", "other"),
        "mul": _pointwise("mul", "input", "other"),
        "sub": _Function(("input", "other"), 2, sub),
        "div": _Function(("input", "other"), 2, div),
        "pow": _Function(("input", "exponent"), 2, formulas.power),
        "where": _pointwise("where", "condition", "input", "other"),
        "clamp": _Function(("input", "min", "max"), 2, _clamp),
        "gelu": _Function(("input", "approximate"), 1, _gelu),
        "softplus": _Function(
            ("input", "beta", "threshold"),
            1,
            lambda x, **given: formulas.softplus(x, **_numbers(given)),
        ),
        "leaky_relu": _Function(
            ("input", "negative_slope"), 1, lambda x, **given: formulas.leaky_relu(x, **_numbers(given))
        ),
        "elu": _Function(("input", "alpha"), 1, lambda x, **given: formulas.elu(x, **_numbers(given))),
        "logical_and": _pointwise("and", "input", "other"),
        "logical_or": _pointwise("or", "input", "other"),
        "logical_not": _pointwise("not", "input"),
    }
)
"""Functions of torch that an expression may call."""

_MODULES = ("torch", "torch.nn.functional", "F", "math", "torch.special")
_NUMBERS = MappingProxyType({"pi": math.pi, "e": math.e, "inf": math.inf})
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Expr, Expr], Expr]] = {
    ast.Add: partial(op, "add"),
    ast.Sub: sub,
    ast.Mult: partial(op, "mul"),
    ast.Div: div,
    ast.Pow: formulas.power,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Expr, Expr], Expr]] = {
    ast.Lt: partial(op, "lt"),
    ast.LtE: partial(op, "le"),
    ast.Gt: lambda a, b: op("lt", b, a),
    ast.GtE: lambda a, b: op("le", b, a),
    ast.Eq: partial(op, "eq"),
    ast.NotEq: lambda a, b: op("not", op("eq", a, b)),
}


class _Translation:
    """An expression's syntax tree to a formula."""

    def __init__(self, parameters: tuple[str, ...]) -> None:
        self._parameters = parameters

    def of(self, tree: ast.expr) -> Expr:
        """The formula."""
        match tree:
            case ast.Constant(bool() | int() | float() as value):
                return Const(float(value))
            case ast.Name(name) if name in self._parameters:
                return Read(name, ())
            case ast.Name(name):
                known = ", ".join(self._parameters)
                raise ExpressionError(f"{name} is no parameter", tree, fix=f"the parameters are {known}")
            case ast.Attribute(ast.Name("math" | "torch"), name) if name in _NUMBERS:
                return Const(_NUMBERS[name])
            case ast.BinOp(left, kind, right):
                if type(kind) not in _ARITHMETIC:
                    raise ExpressionError("this operator is none of + - * / **", tree)
                return _ARITHMETIC[type(kind)](self.of(left), self.of(right))
            case ast.UnaryOp(ast.USub(), operand):
                return op("neg", self.of(operand))
            case ast.UnaryOp(ast.UAdd(), operand):
                return self.of(operand)
            case ast.Compare(left, [compared], [right]):
                if type(compared) not in _COMPARISONS:
                    raise ExpressionError("this comparison is none of < <= > >= == !=", tree)
                return _COMPARISONS[type(compared)](self.of(left), self.of(right))
            case ast.Call(called, arguments, keywords):
                return self._call(tree, called, arguments, keywords)
        what = f"{ast.unparse(tree)!r} has no place in a definition"
        raise ExpressionError(what, tree, fix="write it with arithmetic, comparisons and pointwise functions of torch")

    def _call(
        self, tree: ast.expr, called: ast.expr, arguments: Sequence[ast.expr], keywords: Sequence[ast.keyword]
    ) -> Expr:
        name, given = self._callee(called)
        function = FUNCTIONS.get(name)
        if function is None:
            what = f"{ast.unparse(called)} is none of the functions that a definition may call"
            raise ExpressionError(what, called, fix="see docs/rules.md for the list")
        positional = [*given, *(self.argument(name, a) for a in arguments)]
        bound: dict[str, Expr | str | None] = dict(zip(function.arguments, positional, strict=False))
        for k in keywords:
            if k.arg not in function.arguments or k.arg in bound:
                raise ExpressionError(f"{name} takes no argument {k.arg} here", tree)
            bound[k.arg] = self.argument(name, k.value)
        if len(positional) > len(function.arguments) or any(a not in bound for a in function.arguments[:1]):
            raise ExpressionError(f"{name} takes {', '.join(function.arguments)}", tree)
        if sum(v is not None for v in bound.values()) < function.required:
            raise ExpressionError(f"{name} takes {', '.join(function.arguments)}", tree)
        names = {"min": "low", "max": "high"}
        first = bound.pop(function.arguments[0])
        try:
            if function.required == len(function.arguments):
                return function.formula(first, *[bound[a] for a in function.arguments[1:]])
            return function.formula(first, **{names.get(a, a): v for a, v in bound.items() if v is not None})
        except ExpressionError as error:
            raise ExpressionError(f"{name}: {error}", tree) from None

    def _callee(self, called: ast.expr) -> tuple[str, list[Expr]]:
        """The function's name, and the object whose method it is."""
        if isinstance(called, ast.Attribute):
            if ast.unparse(called.value) in _MODULES:
                return called.attr, []
            return called.attr, [self.of(called.value)]
        what = f"{ast.unparse(called)} is no function of torch"
        raise ExpressionError(what, called, fix=f"write torch.{ast.unparse(called)}(...)")

    def argument(self, function: str, tree: ast.expr) -> Expr | str | None:
        """An argument: a formula, or the one that gelu takes as text, or None."""
        match tree:
            case ast.Constant("none" | "tanh" as text) if function == "gelu":
                return str(text)
            case ast.Constant(None) if function == "clamp":
                return None
        return self.of(tree)
