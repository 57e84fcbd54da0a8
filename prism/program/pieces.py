"""Outputs in pieces: what is one expression on each of a few stretches of an axis, without a choice among these.

A rotary embedding is `where(d < 64, q[d]*cos[d] - q[d + 64]*sin[d], q[d]*cos[d] + q[d - 64]*sin[d])` for d in [0, 128):
where q is a product, a kernel over d has it at three places. In pieces,

    y[e] = q[e]*cos[e] - q[e + 64]*sin[e],   y[e + 64] = q[e + 64]*cos[e + 64] + q[e]*sin[e + 64],   e in [0, 64)

a kernel over e has it at two, for twice the elements. So an output is made in pieces, of one length, where what they
reduce all together is less than what the output as it is does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from prism.program.extents import evaluate, is_static
from prism.program.index import Axis, Index
from prism.program.inline import decided
from prism.program.nodes import Const, Expr, Formula, Map, Position, Reduce, free_axes, walk
from prism.program.transform import canonical, substitute

PIECE = ".piece"
"""The end of the name of an axis along a piece: what comes before it is the name of the axis that is in pieces."""

MOST = 4
"""Pieces of one output: each is stored by itself."""


def in_pieces(formulas: Sequence[Formula], hints: Mapping[str, int]) -> tuple[Formula, ...]:
    """The formulas, each output that is less work in pieces as a formula for each of them, in order."""
    return tuple(p for f in formulas for p in _pieces(f, hints))


def _pieces(f: Formula, hints: Mapping[str, int]) -> tuple[Formula, ...]:
    for axis in (i.as_axis() for i in f.index):
        length = 0 if axis is None else _length(f.expr, axis)
        if axis is None or not length:
            continue
        along = Axis(f"{axis.name}{PIECE}", length)
        starts = (Index.axis(along) + n for n in range(0, int(axis.extent), length))
        found = tuple(_at(f, axis, place) for place in starts)
        if _reduced([p.expr for p in found], hints) < _reduced([f.expr], hints):
            return found
    return (f,)


def _at(f: Formula, axis: Axis, place: Index) -> Formula:
    expr = canonical(decided(substitute(f.expr, {axis: place})))
    return Formula(f.tensor, tuple(i.substitute({axis: place}) for i in f.index), expr)


def _length(expr: Expr, axis: Axis) -> int:
    """The length of the pieces in which nothing is chosen by the place along the axis; 0 where they would be many."""
    if not is_static(axis.extent):
        return 0
    extent = int(axis.extent)
    borders = {b for b in _borders(expr, axis) if 0 < b < extent}
    length = math.gcd(extent, *borders)
    return length if length > 1 and 2 <= extent // length <= MOST else 0


def _borders(expr: Expr, axis: Axis) -> Iterator[int]:
    """The places along the axis from which on a choice is another one."""
    for e in walk(expr):
        match e:
            case Map("lt", (Position(index), Const(border))) if (
                index.axes() == {axis} and index.slope(axis) == 1 and is_static(index.offset)
            ):
                yield math.ceil(border) - int(index.offset)


def _reduced(exprs: Sequence[Expr], hints: Mapping[str, int]) -> int:
    """The elements that the expressions reduce; what they have in common counts once."""
    reductions = dict.fromkeys(e for x in exprs for e in walk(x) if isinstance(e, Reduce))
    return sum(math.prod(evaluate(a.extent, hints) for a in free_axes(e.body)) for e in reductions)
