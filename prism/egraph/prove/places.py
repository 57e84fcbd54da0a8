"""Proof by places: axes whose positions expressions compute with are counted out, and each place is compared by itself.

A sum over a few places is the sum of what it adds up, and two outputs are equal that are so at each place. What steps
make one after another, against what sums under a mask make of all of them, is one normal form then; so is what is
padded, rolled or written piece by piece, and half of a symmetric matrix's sum. Places are those of fixed lengths: other
axes are left as they are.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

from prism.egraph.prove.normal_form import normal_form, same_quotient
from prism.egraph.prove.polynomials import Unfit
from prism.program.build import add, mul, op
from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Expr, Position, Read, Reduce, ReduceKind, free_axes, walk
from prism.program.refinement import simplified
from prism.program.transform import canonical, rebuilt, substitute

MAX_PLACES = 32
"""Places of the output that are compared one by one."""
MAX_LENGTH = 16
"""Of an axis that is counted out."""
MAX_NODES = 20_000
"""Of all expressions at all places together, about."""


def alike_by_places(a: Expr, b: Expr) -> bool:
    """Whether two expressions over the same free axes are equal at each place of those that they compute with."""
    axes = _computed_with([a, b])
    free = sorted(axes & (free_axes(a) | free_axes(b)), key=lambda x: x.name)
    places = math.prod(int(x.extent) for x in free)
    if not axes or places > MAX_PLACES or places * (_size(a, axes) + _size(b, axes)) > MAX_NODES:
        return False
    try:
        return all(_same(*(_counted(e, at, axes) for e in (a, b))) for at in _assignments(free))
    except Unfit:
        return False


def _computed_with(exprs: Sequence[Expr]) -> frozenset[Axis]:
    """The axes, not too long, of which positions are computed with, and that are summed over elements of theirs."""
    nodes = {x for e in exprs for x in walk(e)}
    bound = {x.axis for x in nodes if isinstance(x, Reduce)}
    found = {a for x in nodes if isinstance(x, Position) for a in x.index.axes() if _short(a)}
    read = {(x.tensor, d): frozenset[Axis]() for x in nodes if isinstance(x, Read) for d in range(len(x.index))}
    for x in nodes:
        if isinstance(x, Read):
            for d, index in enumerate(x.index):
                read[x.tensor, d] |= index.axes()
    while more := {a for axes in read.values() if axes & found for a in (axes & bound) - found if _short(a)}:
        found |= more
    return frozenset(found)


def _short(axis: Axis) -> bool:
    return is_static(axis.extent) and int(axis.extent) <= MAX_LENGTH


def _size(e: Expr, axes: frozenset[Axis]) -> float:
    """How many nodes there are once axes are counted out, about."""
    sizes: dict[int, float] = {}
    for x in walk(e):
        below = sum(sizes[id(c)] for c in x.children)
        sizes[id(x)] = 1 + below * (int(x.axis.extent) if isinstance(x, Reduce) and x.axis in axes else 1)
    return sizes[id(e)]


def _assignments(axes: Sequence[Axis]) -> Iterator[dict[Axis, Index]]:
    for values in itertools.product(*(range(int(a.extent)) for a in axes)):
        yield dict(zip(axes, map(Index.const, values), strict=True))


def _counted(e: Expr, at: dict[Axis, Index], axes: frozenset[Axis]) -> Expr:
    """The expression at a place, reductions over axes written out."""

    def out(x: Expr) -> Expr:
        if not isinstance(x, Reduce) or x.axis not in axes:
            return x
        terms = [simplified(substitute(x.body, way)) for way in _assignments([x.axis])]
        match x.kind:
            case ReduceKind.SUM:
                return add(*terms)
            case ReduceKind.PROD:
                return mul(*terms)
        return functools.reduce(lambda p, q: op("maximum" if x.kind is ReduceKind.MAX else "minimum", p, q), terms)

    return canonical(simplified(rebuilt([simplified(substitute(e, at))], out)[0]))


def _same(a: Expr, b: Expr) -> bool:
    return a == b or normal_form(a) == normal_form(b) or same_quotient(a, b)
