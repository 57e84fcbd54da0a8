"""Elements at places that data give, in index notation: sum_k where(k == place, f(k), 0), with a place free of k.

As it is written it goes through f at every k. What runs or weighs a program takes the one element; 0 where the place
lies outside of the axis, so that nothing is ever read beyond a tensor. Runtimes refuse such places, and what a proof
says of lookups is said of legal ones (`prism.program.integers.assumptions`).
"""

from __future__ import annotations

from dataclasses import dataclass

from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Reduce, ReduceKind, Size, free_axes


@dataclass(frozen=True, slots=True)
class Lookup:
    """The value of `element` at one place of the axis.

    Attributes:
        axis: along which the place counts; bound here.
        place: a number, which does not depend on the axis.
        element: at one place of the axis.
    """

    axis: Axis
    place: Expr
    element: Expr


def lookup(e: Expr) -> Lookup | None:
    """Which element the expression is, where data say it."""
    match e:
        case Reduce(ReduceKind.SUM, bound, Map("where", (Map("eq", sides), element, Const(0.0)))):
            for position, place in (sides, sides[::-1]):
                if isinstance(position, Position) and position.index.as_axis() == bound:
                    apart = bound not in free_axes(place) and bound in free_axes(element)
                    return Lookup(bound, place, element) if apart else None
    return None


def place_along(e: Expr) -> tuple[Axis, Expr] | None:
    """An axis and a number that its position is compared with, as of what is looked up, or written, at a place."""
    match e:
        case Map("eq", sides):
            for position, place in (sides, sides[::-1]):
                axis = position.index.as_axis() if isinstance(position, Position) else None
                if axis is not None and axis not in free_axes(place):
                    return axis, place
    return None


def looked_up(axis: Axis, place: Expr, element: Expr) -> Expr:
    """The element at a place of the axis that it is over; 0 where the place lies outside."""
    if axis.extent == 0 or axis not in free_axes(element):
        return element
    here = Map("eq", (Position(Index.axis(axis)), place))
    return Reduce(ReduceKind.SUM, axis, Map("where", (here, element, Const(0.0))))


def from_end(place: Expr, axis: Axis) -> Expr:
    """The place, where a negative one counts from the end of the axis."""
    extent = axis.extent
    size: Expr = Const(float(extent)) if isinstance(extent, int) else Size(extent)
    return Map("where", (Map("lt", (place, Const(0.0))), Map("add", (place, size)), place))
