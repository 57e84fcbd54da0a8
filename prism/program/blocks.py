"""Masks by blocks: where a row counts nothing but its own block of n places, nothing else is reduced over.

    floor(i / n) == floor(j / n)                 with i = n*p + r and j = n*q + s  is  p == q
    sum_q where(p == q, f(q), 0)                 =  f(p)
    max_q where(p == q, f(q), -inf)              =  f(p)

So attention within chunks is attention with one axis more, of as many places as there are chunks. So is a dilated one,
of places with one remainder: i - j is a multiple of n where r == s. What the mask hides counts as hidden, as in ranges
of loops (`sgraph/ranges.py`): -inf + x = -inf and 0 * x = 0, also where x is infinite.
"""

from __future__ import annotations

import math

from prism.program import fold
from prism.program.build import position
from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Reduce, ReduceKind, walk
from prism.program.transform import rebuilt, substitute


def by_blocks(expr: Expr) -> Expr:
    """The expression with floor(i / n) == floor(j / n) as i // n == j // n, for axes that n divides.

    Likewise i % n == j % n, where it is written so or as a difference that n divides.
    """

    def compared(e: Expr) -> Expr:
        match e:
            case Map("eq", (a, b)):
                (i, n), (j, m) = _quotient(a), _quotient(b)
                if n and n == m and _cuts(n, i, j):
                    return Map("eq", (position(i.floordiv(n)), position(j.floordiv(n))))
                (i, n), (j, m) = _remainder(a), _remainder(b)
                if n and b == Const(0.0) and len(i.terms) == 2 and i.offset == 0:
                    (one, up), (other, down) = i.terms
                    if {up, down} == {1, -1} and isinstance(one, Axis) and isinstance(other, Axis):
                        i, j, m = Index.axis(one), Index.axis(other), n
                if n and n == m and _cuts(n, i, j):
                    return Map("eq", (position(i.mod(n)), position(j.mod(n))))
        return e

    return rebuilt([expr], compared)[0]


def _cuts(n: int, *indices: Index) -> bool:
    """Whether these are axes that are cut into blocks of n."""
    axes = [i.as_axis() for i in indices]
    return all(a is not None and is_static(a.extent) and int(a.extent) % n == 0 for a in axes)


def _quotient(e: Expr) -> tuple[Index, int]:
    """The index and the divisor, where an expression is floor(@index / divisor); else a divisor of 0.

    Readers write a half more where the division is not exact (`integers.floor_quotient`).
    """
    match e:
        case Map("floor", (Map("mul", (Const(c), x) | (x, Const(c))),)) if 0 < c < 1 and 1 / round(1 / c) == c:
            match x:
                case Position(index) | Map("add", (Position(index), Const(0.5))):
                    return index, round(1 / c)
    return Index(()), 0


def _remainder(e: Expr) -> tuple[Index, int]:
    """Likewise of @index - divisor * floor(@index / divisor)."""
    match e:
        case Map("add", (Position(index), Map("neg", (Map("mul", (Const(n), floor)),)))):
            if _quotient(floor) == (index, n):
                return index, int(n)
    return Index(()), 0


def own_block(expr: Expr) -> Expr | None:
    """The expression with reductions over blocks as their own block; None where a comparison of blocks is left."""

    def reduced(e: Expr) -> Expr:
        if isinstance(e, Reduce) and not _bound_within(e):
            for x in walk(e.body):
                own = _other(x, e.axis)
                if own is not None and _decided(e.body, x, False) == Const(e.kind.identity):
                    return substitute(_decided(e.body, x, True), {e.axis: Index.axis(own)})
        return e

    made = rebuilt([expr], reduced)[0]
    return None if any(_is_comparison(e) for e in walk(made)) else made


def _bound_within(e: Reduce) -> bool:
    """Whether comparisons with an axis of the same name, which is another one, are left in reductions inside."""
    inner = (x for x in walk(e.body) if isinstance(x, Reduce) and x.axis == e.axis)
    return any(_other(x, e.axis) is not None for r in inner for x in walk(r.body))


def _is_comparison(e: Expr) -> bool:
    return isinstance(e, Map) and e.op == "eq" and all(isinstance(a, Position) for a in e.args)


def _other(e: Expr, axis: Axis) -> Axis | None:
    """The axis that is compared with a given one of its length; None where nothing of the kind is."""
    match e:
        case Map("eq", (Position(i), Position(j))):
            pair = [i.as_axis(), j.as_axis()]
            if axis in pair and None not in pair and pair[0] != pair[1]:
                other = pair[1 - pair.index(axis)]
                return other if other is not None and other.extent == axis.extent else None
    return None


def _decided(expr: Expr, comparison: Expr, holds: bool) -> Expr:
    """The expression where a comparison holds, or where it does not, which hides what it is the mask of."""

    def folded(e: Expr) -> Expr:
        if e == comparison:
            return Const(float(holds))
        match e:
            case Map("add", args) if not holds and Const(-math.inf) in args:
                return Const(-math.inf)
            case Map("mul", args) if not holds and Const(0.0) in args:
                return Const(0.0)
            case Map(op, args) if any(isinstance(a, Const) for a in args):
                return fold.op(op, *args)
            case Reduce(kind, _, Const(value)) if value == kind.identity or kind is ReduceKind.MAX:
                return Const(value)
        return e

    return rebuilt([expr], folded)[0]
