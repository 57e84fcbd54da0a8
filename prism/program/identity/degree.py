"""Degrees of expressions that are rational functions of the inputs, for the Schwartz-Zippel bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from prism.program.index import Axis
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, Size, walk

Degree: TypeAlias = tuple[int, int]
"""Bounds on the total degrees of numerator and denominator."""

_LARGEST = 1 << 40


def degree(expr: Expr, points: Callable[[Axis], int], length: Callable[[Axis], int]) -> Degree | None:
    """Bounds on the degrees of an expression; None where it is no rational function of real inputs.

    Args:
        expr: the expression.
        points: how many values of an axis are summed over.
        length: how long it is.
    """
    memo: dict[int, Degree | None] = {}
    for e in walk(expr):
        memo[id(e)] = _of(e, [memo[id(c)] for c in e.children], points, length)
    found = memo[id(expr)]
    return found if found is not None and max(found) <= _LARGEST else None


def _of(
    e: Expr, parts: list[Degree | None], points: Callable[[Axis], int], length: Callable[[Axis], int]
) -> Degree | None:
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return None
    match e:
        case Const() | Size() | Position():
            return 0, 0
        case Read():
            return 1, 0
        case Map("add", _):
            return _sum(known[0], known[1])
        case Map("mul", _):
            return known[0][0] + known[1][0], known[0][1] + known[1][1]
        case Map("neg", _):
            return known[0]
        case Map("recip", _):
            return known[0][1], known[0][0]
        case Map("pow", (_, Const(c))) if c.is_integer() and abs(c) <= 64:
            n, d = known[0] if c >= 0 else known[0][::-1]
            return n * int(abs(c)), d * int(abs(c))
        case Map("where", _) if known[0] == (0, 0):
            # An element takes one of the two, by its position alone.
            return max(known[1][0], known[2][0]), max(known[1][1], known[2][1])
        case Map("le" | "lt" | "eq" | "and" | "or" | "not", _) if all(k == (0, 0) for k in known):
            return 0, 0
        case Reduce(ReduceKind.SUM, axis, _):
            (n, d), k = known[0], points(axis)
            return n + (k - 1) * d, k * d
        case Reduce(ReduceKind.PROD, axis, _):
            return known[0][0] * length(axis), known[0][1] * length(axis)
        case _:
            return None


def _sum(a: Degree, b: Degree) -> Degree:
    if a[1] == b[1] == 0:
        return max(a[0], b[0]), 0
    return max(a[0] + b[1], b[0] + a[1]), a[1] + b[1]
