"""Prefix sums in index notation: sum_m where(m <= n, f(m), 0), with an f that n is not an axis of.

As it is written it takes a sum for every n. What runs or weighs a program adds one term from each n to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prism.program.index import Axis, Index
from prism.program.lookup import lookup
from prism.program.nodes import Const, Expr, Map, Position, Reduce, ReduceKind, free_axes, walk
from prism.program.transform import substitute


@dataclass(frozen=True, slots=True)
class PrefixSum:
    """The sums of `term` over the places of the axis up to each place.

    Attributes:
        axis: along which it is summed.
        term: at one place of the axis.
    """

    axis: Axis
    term: Expr


def prefix_sum(e: Expr) -> PrefixSum | None:
    """What the expression is the prefix sum of, where it is one."""
    match e:
        case Reduce(ReduceKind.SUM, bound, Map("where", (Map("le", (Position(m), Position(n))), f, Const(0.0)))):
            axis = n.as_axis()
            if m.as_axis() != bound or axis is None or axis == bound or axis.extent != bound.extent:
                return None
            free = free_axes(f)
            return (
                None if axis in free or bound not in free else PrefixSum(axis, substitute(f, {bound: Index.axis(axis)}))
            )
        case _:
            return None


def stepwise(e: Expr, *, sums: bool = True) -> Expr:
    """The expression as a machine goes through it: another value, which takes as much work.

    Each prefix sum is one addition, and an element at a place that data give is read at the place.

    Args:
        e: the expression.
        sums: whether prefix sums are gone through, too, or stay as they are written.
    """
    made: dict[int, Expr] = {}
    for part in walk(e):
        made[id(part)] = _step(part, made, sums)
    return made[id(e)]


def _step(e: Expr, made: Mapping[int, Expr], sums: bool) -> Expr:
    """The expression, given what its operands became."""
    match e:
        case Map(op, args):
            new = tuple([made[id(a)] for a in args])
            return e if all(a is b for a, b in zip(args, new, strict=True)) else Map(op, new)
        case Reduce(kind, axis, body):
            running, chosen = prefix_sum(e), lookup(e)
            if running is not None and sums:
                return Map("add", (stepwise(running.term), Const(0.0)))
            if chosen is not None:
                place, element = made[id(chosen.place)], made[id(chosen.element)]
                at = sum((Index.axis(a) for a in sorted(free_axes(place), key=str)), Index.const(0))
                return Map("add", (place, substitute(element, {chosen.axis: at})))
            return e if made[id(body)] is body else Reduce(kind, axis, made[id(body)])
        case _:
            return e
