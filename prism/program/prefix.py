"""Prefix sums in index notation: sum_m where(m <= n, f(m), 0), with an f that n is not an axis of.

As it is written it takes a sum for every n. What runs or weighs a program adds one term from each n to the next. So it
is with what is summed before n alone (m < n), and with what decays or grows on the way, exp(a(n) - b(m))*f(m): what was
summed up to the place before is multiplied by a number.
"""

from __future__ import annotations

import math
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


def recurrence(e: Expr) -> PrefixSum | None:
    """What is added from each place to the next, where an expression is a sum that one loop over places carries on."""
    match e:
        case Reduce(ReduceKind.SUM, bound, body):
            factors, masks = _factors(body)
            match masks:
                case [Map("le" | "lt", (Position(m), Position(n)))] if m.as_axis() == bound:
                    axis = n.as_axis()
                case _:
                    return None
            if axis is None or axis == bound or axis.extent != bound.extent:
                return None
            if not all(_of_one_place(f, bound, axis) for f in factors):
                return None
            if not any(bound in free_axes(f) for f in factors):
                return None
            term = factors[0]
            for f in factors[1:]:
                term = Map("mul", (term, f))
            return PrefixSum(axis, substitute(term, {bound: Index.axis(axis)}))
        case _:
            return None


def _factors(e: Expr) -> tuple[list[Expr], list[Expr]]:
    """What a term is a product of, and the masks outside of which it is 0."""
    factors: list[Expr] = []
    masks: list[Expr] = []
    stack = [e]
    while stack:
        match stack.pop():
            case Map("mul", args):
                stack += args
            case Map("where", (mask, inner, Const(0.0))):
                masks.append(mask)
                stack.append(inner)
            case Map("exp", (Map("where", (mask, inner, Const(value))),)) if value == -math.inf:
                masks.append(mask)
                factors.append(Map("exp", (inner,)))
            case other:
                factors.append(other)
    return factors, masks


def _of_one_place(e: Expr, bound: Axis, axis: Axis) -> bool:
    """Whether the factor is of the place that is summed over, or the exponential of what is of one place each."""
    if axis not in free_axes(e):
        return True
    terms = [e.args[0]] if isinstance(e, Map) and e.op == "exp" else []
    while terms:
        match terms.pop():
            case Map("add" | "neg", args):
                terms += args
            case Position(index) if index.is_affine():
                pass
            case Map("mul", (Position(index), other) | (other, Position(index))) if index.is_affine():
                if {bound, axis} & free_axes(other):
                    return False
            case other if {bound, axis} <= free_axes(other):
                return False
    return isinstance(e, Map) and e.op == "exp"


def stepwise(e: Expr, *, sums: bool = True) -> Expr:
    """The expression as a machine goes through it: another value, which takes as much work.

    Each prefix sum, or what else goes from one place to the next, is one addition; an element at a place that data give
    is read at the place.

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
            running, chosen = recurrence(e) if sums else None, lookup(e)
            if running is not None:
                return Map("add", (stepwise(running.term), Const(0.0)))
            if chosen is not None:
                place, element = made[id(chosen.place)], made[id(chosen.element)]
                at = sum((Index.axis(a) for a in sorted(free_axes(place), key=str)), Index.const(0))
                return Map("add", (place, substitute(element, {chosen.axis: at})))
            return e if made[id(body)] is body else Reduce(kind, axis, made[id(body)])
        case _:
            return e
