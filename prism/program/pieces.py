"""Outputs in pieces: what is one expression on each of a few stretches of an axis, without a choice among these.

A rotary embedding is `where(d < 64, q[d]*cos[d] - q[d + 64]*sin[d], q[d]*cos[d] + q[d - 64]*sin[d])` for d in [0, 128):
where q is a product, a kernel over d has it at three places. In pieces,

    y[e] = q[e]*cos[e] - q[e + 64]*sin[e],   y[e + 64] = q[e + 64]*cos[e + 64] + q[e]*sin[e + 64],   e in [0, 64)

a kernel over e has it at two, for twice the elements. So an output is made in pieces, of one length, where what they
reduce all together is less than what the output as it is does.

Gradients of gates that lie side by side have most of what they compute in common, place by place: with the choice
among them it is computed at each shift. So pieces of one length are also made where they share pointwise work, or are
dear.

Side by side with others, a row that is normed is read along an axis of two lengths, its own and that of all of them:
no tile is over both. Pieces, which may be of several lengths, are also made where tensors are read along fewer.

A piece may be one place, where all are: the four sides of a box's gradient, which are chosen among what they share.
Such an output is also proved as the choice among its places.

What reduces such a choice, as a softmax over one score and many others side by side does, reduces each stretch by
itself where what is chosen is computed: no product of matrices has a column more than its operand has rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from prism.program.equal_lengths import follows, of_equal_lengths
from prism.program.extents import evaluate, is_static
from prism.program.groups import by_groups
from prism.program.index import Axis, Index
from prism.program.inline import aligned, decided, inline, named_as
from prism.program.nodes import Const, Expr, Formula, Map, Position, Program, Read, Reduce, free_axes, walk
from prism.program.products import work
from prism.program.transform import canonical, flat, least_instance, rebuilt, substitute

_PIECE = ".piece"

MOST = 4
"""Pieces of one output: each is stored by itself."""


SHARED = 0.1
"""Pieces are made of what shares pointwise work where that is this part of what they take one by one, or more."""


DEAR = 32.0
"""And where each element takes so many multiply-adds, half of them for what is not chosen: by then a kernel waits for
these and not for memory."""


MOST_TERMS = 16
"""Terms of a sum or factors of a product that are put in order at once."""


def formulas_of(program: Program) -> tuple[tuple[Formula, ...], tuple[Formula, ...]]:
    """The formulas of a program's outputs, under the names that are proved, and the same in pieces.

    What is as long as pieces that it reads alike goes along with them.
    """
    formulas = by_groups(aligned(_stretched(inline(program))))
    found = [_pieces(f, program.hints) for f in formulas]
    cut = [p for pieces in found if len(pieces) > 1 for p in pieces]
    if cut:
        both = list(zip(formulas, found, strict=True))
        formulas = tuple(_choice(f, p) if len(p) > 1 else named_as(f, cut) for f, p in both)
        found = [p if len(p) > 1 else (f,) for f, p in zip(formulas, found, strict=True)]
    return formulas, of_equal_lengths([p for pieces in found for p in pieces])


def _stretched(formulas: Sequence[Formula]) -> Sequence[Formula]:
    """The formulas with reductions stretch by stretch, where what is chosen along them is computed."""
    if not any(isinstance(e, Reduce) and _chosen(e) for f in formulas for e in walk(f.expr)):
        return formulas
    made = rebuilt([f.expr for f in formulas], _by_stretches)
    return [replace(f, expr=canonical(e)) for f, e in zip(formulas, made, strict=True)]


def _chosen(e: Reduce) -> bool:
    """Whether a choice by the place along the reduction is one of what other reductions make, and no mask of it."""
    return any(
        isinstance(c, Map)
        and c.op == "where"
        and not any(isinstance(x, Const) for x in c.args[1:])
        and any(True for _ in _borders(c.args[0], e.axis))
        and any(isinstance(r, Reduce) and e.axis in free_axes(r) for x in c.args[1:] for r in walk(x))
        for c in walk(e.body)
    )


def _by_stretches(e: Expr) -> Expr:
    """The reduction, each stretch by itself where what is chosen along it is computed; anything else as it is."""
    if not isinstance(e, Reduce) or not is_static(e.axis.extent) or not _chosen(e):
        return e
    extent = int(e.axis.extent)
    ends = [0, *sorted({b for b in _borders(e.body, e.axis) if 0 < b < extent}), extent]
    if not 2 < len(ends) <= MOST + 1:
        return e
    parts = []
    for start, end in itertools.pairwise(ends):
        along = least_instance(end - start, free_axes(e))
        place = Index.const(start) if end - start == 1 else Index.axis(along) + start
        body = decided(substitute(e.body, {e.axis: place}))
        parts.append(body if end - start == 1 else Reduce(e.kind, along, body))
    return reduce(lambda a, b: Map(e.kind.op, (a, b)), parts)


def in_pieces(formulas: Sequence[Formula], hints: Mapping[str, int]) -> tuple[Formula, ...]:
    """The formulas, each output that is less work in pieces as a formula for each of them, in order."""
    return tuple(p for f in formulas for p in _pieces(f, hints))


def whole_of(piece: Axis) -> str | None:
    """The name of the axis that is in pieces, of an axis along one of them; None of any other axis."""
    name, _, end = piece.name.rpartition(_PIECE)
    return name if end == str(piece.extent) else None


def _pieces(f: Formula, hints: Mapping[str, int]) -> tuple[Formula, ...]:
    for axis in (i.as_axis() for i in f.index):
        for bounds in () if axis is None else _ways(f.expr, axis):
            assert axis is not None
            found = tuple(_between(f, axis, *ends) for ends in itertools.pairwise(bounds))
            exprs = [p.expr for p in found]
            less, as_much = _reduced(exprs, hints), _reduced([f.expr], hints)
            alike = len({end - start for start, end in itertools.pairwise(bounds)}) == 1
            if alike and less < as_much:
                return found
            lengths, as_many = _lengths(exprs), _lengths([f.expr])
            ordered = _in_order(exprs) if alike else exprs
            alone = sum(_work([e], hints) for e in ordered)
            shared = alike and _work(ordered, hints) <= (1 - SHARED) * alone
            # Each place computes all that is chosen among.
            whole = _work([f.expr], hints)
            dear = alike and whole >= DEAR * _extent(free_axes(f.expr), hints) and 2 * alone <= (1 + SHARED) * whole
            # At single places nothing is read along the axis.
            fewer = lengths < as_many and bounds[1] > 1
            if less <= as_much and (fewer or ((shared or dear) and (lengths == as_many or bounds[1] == 1))):
                return found
    return (f,)


def axis_of_places(index: Sequence[Index], place: int, extent: int) -> Axis:
    """The axis of a dimension that is stored place by place, by the index of one of them, which names the others."""
    return least_instance(extent, {a for n, i in enumerate(index) if n != place for a in i.axes()})


def _choice(f: Formula, pieces: Sequence[Formula]) -> Formula:
    """The formula as the choice among its pieces, where these are places: no rule tells what an axis is at a place."""
    first, second = pieces[0].index, pieces[1].index
    (place,) = (n for n, (i, j) in enumerate(zip(first, second, strict=True)) if i != j)
    if first[place].terms:
        return f
    axis = Index.axis(axis_of_places(first, place, len(pieces)))
    *before, found = (p.expr for p in pieces)
    for end, expr in reversed(list(enumerate(before, 1))):
        found = Map("where", (Map("lt", (Position(axis), Const(float(end)))), expr, found))
    return Formula(f.tensor, (*first[:place], axis, *first[place + 1 :]), canonical(found))


def _between(f: Formula, axis: Axis, start: int, end: int) -> Formula:
    """The piece of a formula between two places along an axis."""
    length = end - start
    at = Index.axis(Axis(f"{axis.name}{_PIECE}{length}", length)) if length > 1 else Index.const(0)
    place = {axis: at + start}
    expr = canonical(decided(substitute(f.expr, place)))
    return Formula(f.tensor, tuple(i.substitute(place) for i in f.index), expr)


def _ways(expr: Expr, axis: Axis) -> Iterator[list[int]]:
    """Where pieces begin and end in which nothing is chosen by the place along the axis: of one length, and of any."""
    if not is_static(axis.extent):
        return
    extent = int(axis.extent)
    borders = sorted({b for b in _borders(expr, axis) if 0 < b < extent})
    length = math.gcd(extent, *borders)
    ways = [list(range(0, extent + 1, length)), [0, *borders, extent]]
    for n, way in enumerate(ways):
        # Beside longer pieces, one of one place would be a kernel of its own.
        apart = [end - start for start, end in itertools.pairwise(way)]
        if 2 < len(way) <= MOST + 1 and way not in ways[:n] and (1 not in apart or max(apart) == 1):
            yield way


def _borders(expr: Expr, axis: Axis) -> Iterator[int]:
    """The places along the axis from which on a choice is another one."""
    for e in walk(expr):
        match e:
            case Map("lt" | "eq" as op, (Position(index), Const(border))) if (
                index.axes() == {axis} and index.slope(axis) == 1 and is_static(index.offset)
            ):
                yield math.ceil(border) - int(index.offset)
                if op == "eq":
                    yield math.floor(border) - int(index.offset) + 1


def _reduced(exprs: Sequence[Expr], hints: Mapping[str, int]) -> int:
    """The elements that the expressions reduce; what they have in common counts once."""
    reductions = dict.fromkeys(e for x in exprs for e in walk(x) if isinstance(e, Reduce))
    return sum(_extent(free_axes(e.body), hints) for e in reductions)


def _work(exprs: Sequence[Expr], hints: Mapping[str, int]) -> int:
    """Multiply-adds of what is no product of matrices; what the expressions have in common counts once."""
    return sum(cost * _extent(axes, hints) for cost, axes in work(*exprs).others)


def _in_order(exprs: Sequence[Expr]) -> list[Expr]:
    """The expressions with nested sums and products in one order each, so that what they share has one spelling."""
    numbers: dict[Expr, int] = {}

    def ordered(e: Expr) -> Expr:
        if isinstance(e, Map) and e.op in ("add", "mul"):
            op = e.op
            parts = sorted(flat(e, op, most=MOST_TERMS), key=lambda x: numbers.setdefault(x, len(numbers)))
            e = reduce(lambda a, b: Map(op, (a, b)), parts)
        numbers.setdefault(e, len(numbers))
        return e

    return rebuilt(exprs, ordered)


def _extent(axes: Iterable[Axis], hints: Mapping[str, int]) -> int:
    """Of all of the axes together."""
    return math.prod(evaluate(a.extent, hints) for a in axes)


def _lengths(exprs: Sequence[Expr]) -> int:
    """Along how many lengths dimensions of tensors are read place by place."""
    reads = dict.fromkeys(e for x in exprs for e in walk(x) if isinstance(e, Read))
    along = ((r.tensor, n, follows(i)) for r in reads for n, i in enumerate(r.index))
    return len({(tensor, n, axis.extent) for tensor, n, axis in along if axis is not None})
