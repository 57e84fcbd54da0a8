"""Prefix sums in index notation: sum_m where(m <= n, f(m), 0), with an f that n is not an axis of.

As it is written it takes a sum for every n. What runs or weighs a program adds one term from each n to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Reduce, ReduceKind, free_axes
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


def stepwise(e: Expr) -> Expr:
    """The expression with one addition in the place of each prefix sum: another value, which takes as much work."""
    match e:
        case Map(op, args):
            return Map(op, tuple(stepwise(a) for a in args))
        case Reduce(kind, axis, body):
            found = prefix_sum(e)
            if found is None:
                return Reduce(kind, axis, stepwise(body))
            return Map("add", (stepwise(found.term), Const(0.0)))
        case _:
            return e
