"""Small constructors for expressions, so that front ends, tests and rules read like formulas."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from prism.program.extents import Extent, is_static, product
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, Size


def read(tensor: str, *index: Index | Axis | int) -> Read:
    """tensor[index...]."""
    return Read(tensor, tuple(_index(i) for i in index))


def _index(i: Index | Axis | int) -> Index:
    match i:
        case Index():
            return i
        case Axis():
            return Index.axis(i)
        case _:
            return Index.const(i)


_LONG = 16


def balanced_fold(join: Callable[[Expr, Expr], Expr], items: Sequence[Expr]) -> Expr:
    """The items combined from the left; a long list by halves, so that it is not nested as deeply as it is long."""
    if len(items) <= _LONG:
        return functools.reduce(join, items)
    half = len(items) // 2
    return join(balanced_fold(join, items[:half]), balanced_fold(join, items[half:]))


def balanced_select(count: int, piece: Callable[[int], Expr], choose: Callable[[int, Expr, Expr], Expr]) -> Expr:
    """What consists of pieces, one after another; of many, the choice is by halves, so that it is not nested deeply.

    There are one or more; `choose` is the first expression before the piece of that number, else the second.
    """

    def of(low: int, high: int) -> Expr:
        if high - low == 1:
            return piece(low)
        middle = low + 1 if high - low <= _LONG else (low + high) // 2
        return choose(middle, of(low, middle), of(middle, high))

    return of(0, count)


def const(value: float) -> Const:
    """A number."""
    return Const(float(value))


def size(extent: Extent) -> Expr:
    """An extent, as a number; what may not be positive is no length, but the value of a constant index."""
    if is_static(extent):
        return Const(float(int(extent)))
    return Size(extent) if extent.is_positive else Position(Index.const(extent))  # type: ignore[union-attr]


def position(index: Index | Axis) -> Expr:
    """The value of an index, as a number; one without axes is written as lengths are, of which there is one form."""
    i = _index(index)
    return Position(i) if i.terms else size(i.offset)


def op(name: str, *args: Expr) -> Map:
    """A pointwise operation."""
    return Map(name, args)


def add(*terms: Expr) -> Expr:
    """The sum of the terms, left to right."""
    total = terms[0]
    for t in terms[1:]:
        total = Map("add", (total, t))
    return total


def mul(*factors: Expr) -> Expr:
    """The product of the factors, left to right."""
    total = factors[0]
    for f in factors[1:]:
        total = Map("mul", (total, f))
    return total


def neg(a: Expr) -> Expr:
    """-a."""
    return Const(-a.value) if isinstance(a, Const) else Map("neg", (a,))


def sub(a: Expr, b: Expr) -> Expr:
    """a - b."""
    return Map("add", (a, neg(b)))


def recip(a: Expr) -> Expr:
    """1 / a."""
    if isinstance(a, Const) and a.value != 0 and math.isfinite(a.value):
        return Const(1 / a.value)
    return Map("recip", (a,))


def div(a: Expr, b: Expr) -> Expr:
    """a / b."""
    return Map("mul", (a, recip(b)))


def reduce(kind: ReduceKind | str, axes: Axis | tuple[Axis, ...], body: Expr) -> Expr:
    """The reduction over the axes, the first the outermost; axes of extent 1 are dropped."""
    for axis in reversed(axes if isinstance(axes, tuple) else (axes,)):
        if axis.extent != 1:
            body = Reduce(ReduceKind(kind), axis, body)
    return body


def mean(axes: Axis | tuple[Axis, ...], body: Expr) -> Expr:
    """The arithmetic mean over the axes."""
    count = product(a.extent for a in (axes if isinstance(axes, tuple) else (axes,)))
    total = reduce(ReduceKind.SUM, axes, body)
    return total if count == 1 else div(total, size(count))
