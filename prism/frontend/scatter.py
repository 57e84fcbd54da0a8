"""Writing at places that data give, under both readers, as sums and extremes say it.

An element of the result is written where a place equals its own position. So what is added is a sum over everything
that is written, in which the terms count whose place it is, and what is replaced has the last such term: where it
stands is an extreme of positions, as in `extremes`, and the term is looked up there. Places that positions tell, as
those of slices are, are solved for what is written there, and nothing is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from prism.program import build
from prism.program.extents import add, is_static, mul, strides_of
from prism.program.fold import op
from prism.program.index import Axis, Index, row_major
from prism.program.integers import floor_quotient
from prism.program.lookup import looked_up
from prism.program.nodes import Const, Expr, Position, Read, ReduceKind, free_axes, walk
from prism.program.views import MAX_CHOICES

KINDS = {"add": ReduceKind.SUM, "mul": ReduceKind.PROD, "max": ReduceKind.MAX, "min": ReduceKind.MIN}
"""How what is written meets what is there, by name; `set` besides, which replaces it."""


@dataclass(frozen=True, slots=True)
class Writes:
    """What is written into a tensor, and where."""

    # Axes over everything that is written to one element of the dimensions that places say nothing of.
    bound: tuple[Axis, ...]
    along: tuple[Axis, ...]  # axes of the result, those of the dimensions that places count along
    # For each of them the place, at an index for each bound axis: a number, not negative where it is legal.
    places: Callable[[Sequence[Index]], Sequence[Expr]]
    source: Callable[[Sequence[Index]], Expr]  # what is written, at such an index


def scattered(how: str, own: Expr, writes: Writes) -> Expr:
    """The element of the result under its axes.

    `how` is `set`, of which the last of several at one place counts, or one of KINDS; `own` is what the tensor has
    there.
    """
    if any(a.extent == 0 for a in writes.bound):
        return own
    few = _few(writes)
    if few is not None:
        for here, element in few:
            own = op("where", here, element if how == "set" else op(KINDS[how].op, own, element), own)
        return own
    solved = _Solved(writes)
    here, left, element = solved.here, solved.left, writes.source(solved.at)
    if how == "set":
        if not left or not set(left) & free_axes(element):
            return op("where", build.reduce(ReduceKind.MAX, left, here), element, own)
        return _last(own, writes, solved)
    kind = KINDS[how]
    if not left:
        return op("where", here, op(kind.op, own, element), own)
    neutral = {ReduceKind.SUM: Const(0.0), ReduceKind.PROD: Const(1.0)}.get(kind, own)
    return op(kind.op, own, build.reduce(kind, left, op("where", here, element, neutral)))


def hit(writes: Writes) -> Expr:
    """Whether anything is written to the element."""
    if any(a.extent == 0 for a in writes.bound):
        return Const(0.0)
    solved = _Solved(writes)
    return build.reduce(ReduceKind.MAX, solved.left, solved.here)


def count(writes: Writes) -> Expr:
    """How often the element is written to."""
    if any(a.extent == 0 for a in writes.bound):
        return Const(0.0)
    solved = _Solved(writes)
    return build.reduce(ReduceKind.SUM, solved.left, op("where", solved.here, Const(1.0), Const(0.0)))


def _few(writes: Writes) -> list[tuple[Expr, Expr]] | None:
    """(where it is written, what) one after another, where all places are known numbers, and few."""
    shape = [a.extent for a in writes.bound]
    if not shape or not all(map(is_static, shape)) or np.prod([int(e) for e in shape]) > MAX_CHOICES:
        return None
    found = []
    for at in np.ndindex(*(int(e) for e in shape)):
        index = [Index.const(p) for p in at]
        places = writes.places(index)
        if not all(isinstance(p, Const) for p in places):
            return None
        found.append((_met(writes.along, places), writes.source(index)))
    if len(found) > 1 and not _Solved(writes).left:
        return None  # on a line
    return found


def _met(along: Sequence[Axis], places: Sequence[Expr]) -> Expr:
    """Whether the places are the element's own."""
    return both([op("eq", build.position(a), p) for a, p in zip(along, places, strict=True)])


def both(conditions: Sequence[Expr]) -> Expr:
    """Whether all of them hold."""
    held: Expr = Const(1.0)
    for c in conditions:
        held = op("and", held, c)
    return held


class _Solved:
    """Which of everything that is written may be at an element.

    Args:
        writes: what is written.
    """

    def __init__(self, writes: Writes) -> None:
        # An index for each bound axis: itself, or what its place being the element's own makes of it.
        self.at = [Index.axis(a) for a in writes.bound]
        self.left = tuple(a for a in writes.bound if a.extent != 1)  # the bound axes that are left
        inside: list[Expr] = []
        solved: set[int] = set()
        again = True
        while again:
            again = False
            for n, place in enumerate(writes.places(self.at)):
                found = self._solution(place, writes.along[n]) if n not in solved else None
                if found is None:
                    continue
                axis, value, conditions = found
                self.at = [i.substitute({axis: value}) for i in self.at]
                self.left = tuple(a for a in self.left if a != axis)
                inside += conditions
                solved.add(n)
                again = True
                break
        places = writes.places(self.at)
        rest = [n for n in range(len(places)) if n not in solved]
        met, within = _met([writes.along[n] for n in rest], [places[n] for n in rest]), both(inside)
        reads = any(isinstance(e, Read) for e in walk(met))
        # No place is read where nothing is written.
        # Whether the place is the element's own.
        self.here = op("where", within, met, Const(0.0)) if reads and inside else op("and", within, met)

    def _solution(self, place: Expr, own: Axis) -> tuple[Axis, Index, list[Expr]] | None:
        """The bound axis whose value follows from the place being that of `own`; its value, and where it is one."""
        if not isinstance(place, Position):
            return None
        match [(a, c) for a, c in place.index.terms if a in self.left]:
            case [(Axis() as axis, step)] if is_static(step) and len(place.index.terms) == 1:
                pass
            case _:
                return None
        start, position = place.index.offset, Index.axis(own)
        last = add(start, mul(step, add(axis.extent, -1)))
        low, high = (start, last) if int(step) > 0 else (last, start)
        inside = []
        if low != 0:
            inside.append(op("le", build.position(Index.const(low)), build.position(position)))
        if high != add(own.extent, -1):
            inside.append(op("le", build.position(position), build.position(Index.const(high))))
        if abs(int(step)) == 1:
            value = (position + Index.const(mul(-1, start))).scaled(int(step))
            return axis, value, inside
        if not is_static(start) or int(step) < 0:
            return None
        size = int(step)
        inside.append(op("eq", build.position(position.mod(size)), Const(float(int(start) % size))))
        return axis, position.floordiv(size) + -(int(start) // size), inside


def _last(own: Expr, writes: Writes, solved: _Solved) -> Expr:
    """The last of what is written to the element, in the order of the bound axes, or what it has."""
    place = row_major(solved.left)
    last = build.reduce(ReduceKind.MAX, solved.left, op("where", solved.here, build.position(place), Const(-1.0)))
    again = {a: Axis(f"{a.name}_x", a.extent) for a in solved.left}
    element = writes.source([i.substitute({a: Index.axis(b) for a, b in again.items()}) for i in solved.at])
    rest = op("maximum", last, Const(0.0))
    for axis, by in zip(solved.left, strides_of([a.extent for a in solved.left]), strict=True):
        digit = rest if by == 1 else floor_quotient(rest, build.size(by))
        if by != 1:
            rest = op("add", rest, op("neg", op("mul", digit, build.size(by))))
        element = looked_up(again[axis], digit, element)
    return op("where", op("lt", last, Const(0.0)), own, element)
