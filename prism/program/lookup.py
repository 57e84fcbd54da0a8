"""Elements at places that data give, in index notation: sum_k where(k == place, f(k), 0), with a place free of k.

As it is written it goes through f at every k. What runs or weighs a program takes the one element; 0 where the place
lies outside of the axis, so that nothing is ever read beyond a tensor. Runtimes refuse such places, and what a proof
says of lookups is said of legal ones (`prism.program.integers.assumptions`).

The other way round, a sum over i of where(v == place(i), f(i), 0), with v free of both, is f added up where data say.

Only what lies in memory is looked up there; what is computed is not (`prism.program.of_looked_up`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prism.program import build
from prism.program.extents import at_most, product
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, free_axes, walk
from prism.program.transform import flat


@dataclass(frozen=True, slots=True)
class Lookup:
    """The value of `element` at one place of the axis."""

    axis: Axis  # along which the place counts; bound here
    place: Expr  # a number, which does not depend on the axis
    element: Expr  # at one place of the axis

    @property
    def chain(self) -> list[Lookup]:
        """It, and what is looked up along further axes within it, outermost first."""
        found = [self]
        while (inner := lookup(found[-1].element)) is not None:
            found.append(inner)
        return found

    @property
    def lies_in_memory(self) -> bool:
        """Whether the element is read of a tensor, at places that are looked up for none of the axes."""
        *_, last = chain = self.chain
        axes = {c.axis for c in chain}
        return isinstance(last.element, Read) and all(axes.isdisjoint(free_axes(c.place)) for c in chain)

    @property
    def is_repeated(self) -> bool:
        """Whether more elements are wanted than there are."""
        *_, last = chain = self.chain
        own = free_axes(last.element)
        wanted = own.union(*(free_axes(c.place) for c in chain)).difference(c.axis for c in chain)
        return not at_most(product(a.extent for a in wanted), product(a.extent for a in own))


def lookup(e: Expr) -> Lookup | None:
    """Which element the expression is, where data say it."""
    match e:
        case Reduce(ReduceKind.SUM, bound, Map("where", (Map("eq", sides), element, Const(0.0)))):
            for position, place in (sides, sides[::-1]):
                if isinstance(position, Position) and position.index.as_axis() == bound:
                    apart = bound not in free_axes(place) and bound in free_axes(element)
                    return Lookup(bound, place, element) if apart else None
    return None


def lookups(e: Expr) -> Iterator[Lookup]:
    """What the expression looks up, but for what is looked up of that."""
    found = {id(part): chosen for part in walk(e) if (chosen := lookup(part)) is not None}
    within = {id(chosen.element) for chosen in found.values()}
    return (chosen for part, chosen in found.items() if part not in within)


def place_along(e: Expr) -> tuple[Axis, Expr] | None:
    """An axis and a number that its position is compared with, as of what is looked up, or written, at a place."""
    match e:
        case Map("eq", sides):
            for position, place in (sides, sides[::-1]):
                axis = position.index.as_axis() if isinstance(position, Position) else None
                if axis is not None and axis not in free_axes(place):
                    return axis, place
    return None


@dataclass(frozen=True, slots=True)
class Sent:
    """What is summed and where each term goes."""

    places: tuple[tuple[Axis, Expr], ...]  # the place along each axis of the result
    term: Expr  # what goes there, 0 where it goes nowhere; it has none of these axes, and neither have the places


def sent(body: Expr, bound: Iterable[Axis]) -> Sent | None:
    """Where the terms of a sum over some axes go, where data say it; None where they are at every place."""
    conditions: list[Expr] = []
    while isinstance(body, Map) and body.op == "where" and body.args[2] == Const(0.0):
        conditions += flat(body.args[0], "and")
        body = body.args[1]
    over = frozenset(bound)
    found = [(c, along) for c in conditions if (along := place_along(c)) is not None and along[0] not in over]
    rest = [c for c in conditions if all(c is not placed for placed, _ in found)]
    # What else has the axis is at every place of it; and one place is enough.
    parts = (body, *rest, *(place for _, (_, place) in found))
    used = frozenset(a for e in parts for a in free_axes(e))
    named = [axis for _, (axis, _) in found]
    if not found or not used.isdisjoint(named) or len(set(named)) < len(named):
        return None
    if over.isdisjoint(a for _, (_, place) in found for a in free_axes(place)):
        return None
    for c in rest:
        body = Map("where", (c, body, Const(0.0)))
    return Sent(tuple(along for _, along in found), body)


def looked_up(axis: Axis, place: Expr, element: Expr) -> Expr:
    """The element at a place of the axis that it is over; 0 where the place lies outside."""
    if axis.extent == 0 or axis not in free_axes(element):
        return element
    here = Map("eq", (Position(Index.axis(axis)), place))
    return Reduce(ReduceKind.SUM, axis, Map("where", (here, element, Const(0.0))))


def from_end(place: Expr, axis: Axis) -> Expr:
    """The place, where a negative one counts from the end of the axis."""
    return Map("where", (Map("lt", (place, Const(0.0))), Map("add", (place, build.size(axis.extent))), place))
