"""Operators that a user declares, in torch: as functions to call, and as what custom operators mean."""

from __future__ import annotations

import ast
import math
import operator as arithmetic
from collections.abc import Callable, Mapping
from typing import Any

import torch

from prism.errors import UsageError
from prism.frontend.torch.values import Handler, Node, Result, number
from prism.program.operators import Operator, syntax

_BINARY: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: arithmetic.add,
    ast.Sub: arithmetic.sub,
    ast.Mult: arithmetic.mul,
    ast.Div: arithmetic.truediv,
    ast.Pow: arithmetic.pow,
    ast.Lt: arithmetic.lt,
    ast.LtE: arithmetic.le,
    ast.Gt: arithmetic.gt,
    ast.GtE: arithmetic.ge,
    ast.Eq: arithmetic.eq,
    ast.NotEq: arithmetic.ne,
}


def handler(target: Any, declared: Mapping[str, Operator]) -> Handler | None:
    """What translates a custom operator that is called like a declared one; None for any other."""
    name = _name(target)
    op = declared.get(name)
    if op is None:
        return None

    def translate(n: Node) -> Result:
        given = [v for v in n.values() if v is not None]
        if len(given) != len(op.parameters):
            raise n.unsupported(
                f"{op.name} is declared with {len(op.parameters)} parameters ({op.where}), and called with {len(given)}"
            )
        return n.define(op.of([number(v, n.axes) for v in given]))

    return translate


def _name(target: Any) -> str:
    """The name of a custom operator without its namespace; empty for torch's own."""
    if isinstance(target, torch._ops.OpOverload) and target.namespace not in ("aten", "prims", "prim"):
        return str(target._schema.name).rpartition("::")[2]
    return ""


def how(target: Any) -> str:
    """What to do about a custom operator that is not declared; empty for torch's own."""
    name = _name(target)
    if not name:
        return ""
    return f'declare it in a rule file, (operator {name} (x) "torch expression"), and pass rules=[...] to trace'


def function(op: Operator) -> Callable[..., torch.Tensor]:
    """The operator as a function of tensors and numbers, which broadcast; made of torch's own, so it has a gradient.

    Raises:
        UsageError: when called with other arguments.
    """
    tree = syntax(op.torch)

    def call(*arguments: torch.Tensor | float, **named: torch.Tensor | float) -> torch.Tensor:
        given = dict(zip(op.parameters, arguments, strict=False)) | named
        if len(arguments) + len(named) != len(op.parameters) or given.keys() != {*op.parameters}:
            takes = ", ".join(op.parameters)
            raise UsageError(f"{op.name} takes {len(op.parameters)} arguments: {takes}", where=op.where)
        result: torch.Tensor = _value(tree, given)
        return result

    call.__name__ = call.__qualname__ = op.name
    call.__doc__ = f"{op.name}({', '.join(op.parameters)}) = {op.torch}"
    return call


def _value(tree: ast.expr, given: Mapping[str, Any]) -> Any:
    """The value of an expression that `prism.program.operators` has accepted."""

    def of(e: ast.expr) -> Any:
        return _value(e, given)

    match tree:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return given[name]
        case ast.Attribute(_, name):
            return getattr(math, name)
        case ast.BinOp(left, kind, right) | ast.Compare(left, [kind], [right]):
            return _BINARY[type(kind)](of(left), of(right))
        case ast.UnaryOp(kind, operand):
            return -of(operand) if isinstance(kind, ast.USub) else of(operand)
        case ast.Call(ast.Attribute(base, name), arguments, keywords):
            values, named = [of(a) for a in arguments], {str(k.arg): of(k.value) for k in keywords}
            if ast.unparse(base) not in ("torch", "torch.nn.functional", "F", "math", "torch.special"):
                values = [of(base), *values]
            return _called(name, values, named)
    raise AssertionError(ast.unparse(tree))


def _called(name: str, values: list[Any], named: dict[str, Any]) -> Any:
    """torch's function of that name; Python's where all arguments are numbers."""
    tensors = any(isinstance(v, torch.Tensor) for v in (*values, *named.values()))
    if not tensors and hasattr(math, name):
        return getattr(math, name)(*values, **named)
    if not tensors or name in ("maximum", "minimum"):  # which take no numbers
        values = [torch.as_tensor(v) if isinstance(v, (int, float)) else v for v in values]
    homes = (torch, torch.nn.functional, torch.special)
    return next(getattr(home, name) for home in homes if hasattr(home, name))(*values, **named)
