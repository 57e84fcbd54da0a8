"""Prefix sums in index notation: sum_m where(m <= n, f(m), 0), with an f that n is not an axis of.

As it is written it takes a sum for every n. What runs or weighs a program adds one term from each n to the next. So it
is with products and extremes, with what is summed before n alone (m < n) or from n on (n <= m), and with what decays or
grows on the way, by exp(a(n) - b(m))*f(m) or by factors, prod_l where(l <= n, where(m < l, a(l), 1), 1)*f(m): what was
summed up to the place before is multiplied by a number. To extremes it is added, a(n) - b(m) + f(m), as if they were
the logarithms of sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from prism.program.index import Axis, Index
from prism.program.lookup import lookup
from prism.program.nodes import Const, Expr, Map, Position, Reduce, ReduceKind, free_axes, walk
from prism.program.transform import substitute, with_children

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UpTo:
    """The places m, of an axis as long, that count at a place n of `axis`: m <= n, n <= m, m < n or n < m."""

    axis: Axis  # that of n
    before: bool = False  # whether n itself is left out
    back: bool = False  # whether those from n on count, rather than those up to it

    def compare(self, m: T, n: T) -> tuple[str, tuple[T, T]]:
        """The comparison that leaves these places."""
        return "lt" if self.before else "le", (n, m) if self.back else (m, n)

    def behind(self, place: Axis) -> tuple[UpTo, UpTo]:
        """Those of them that a scan comes to after a place: their own condition, and that they are behind it."""
        return self, UpTo(place, True, not self.back)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """How a scan goes from place to place: all that is the same of it in programs, sGraphs and tile programs.

    What grows on the way is a sum, multiplied by the exponential of its growth from each place to the next, or an
    extreme, to which the growth is added: the largest exponent of such a sum grows as the sum does.
    """

    kind: ReduceKind = ReduceKind.SUM  # what combines the places
    before: bool = False  # whether each place's own operand and growth are left out
    back: bool = False  # whether it goes from the last place to the first
    # Whether a growth is what the sum so far is multiplied by, rather than the logarithm of that. Of an extreme,
    # whether what is added between two places is written as their sum, rather than a difference of two sums, so that it
    # may be infinite.
    factors: bool = False
    # Whether a growth is a running maximum instead, and what there is so far is multiplied by the exponential of what
    # it was less what it is.
    rescaled: bool = False

    @property
    def exponential(self) -> bool:
        """Whether what there is so far is multiplied by the exponential of its growth, or of how that moves."""
        return not (self.factors or self.kind.is_extreme)

    def up_to(self, axis: Axis) -> UpTo:
        """The places that count at one of the axis."""
        return UpTo(axis, self.before, self.back)

    def fits_tiles(self, grows: bool, shift_grows: bool = False) -> bool:
        """Whether the places of a tile can be gone through at once, rather than one by one.

        Of a sum the place's own operand can be subtracted again; products and extremes have a scan of pairs. What grows
        leaves out no place's own, nor is it rescaled by an extreme that grows itself.
        """
        return not ((self.before and grows) or shift_grows)

    def __str__(self) -> str:
        words = [] if self.kind is ReduceKind.SUM else [self.kind.value]
        return " ".join([*words, *(w for w in ("before", "back", "factors", "rescaled") if getattr(self, w))])


SO_FAR = Recurrence()
"""Prefix sums."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What one loop over the places of an axis carries on from each to the next."""

    axis: Axis  # along which it goes
    term: Expr  # what comes in at one place of the axis
    how: Recurrence = SO_FAR  # from place to place
    factor: Expr | None = None  # what the sum so far is multiplied by; over the axis, or the same at all places


def carried(e: Expr) -> Carried | None:
    """What the expression carries on along an axis as it stands: prefix sums, products and extremes, with factors."""
    match e:
        case Reduce(kind, bound, Map("where", (mask, f, Const(outside)))) if outside == kind.identity:
            to = _up_to(mask, bound)
            if to is None or bound not in free_axes(f):
                return None
            here = {bound: Index.axis(to.axis)}
            factor: Expr | None = None
            if to.axis in free_axes(f) and isinstance(f, Map) and kind is not ReduceKind.PROD and f.op == kind.times.op:
                for between, rest in (f.args, f.args[::-1]):
                    factor = _between(between, bound, to, kind.times) if to.axis not in free_axes(rest) else None
                    if factor is not None:
                        how = Recurrence(kind, to.before, to.back, factors=True)
                        return Carried(to.axis, substitute(rest, here), how, factor)
            if to.axis in free_axes(f):
                return None
            return Carried(to.axis, substitute(f, here), Recurrence(kind, to.before, to.back))
        case _:
            return None


def running(
    how: Recurrence,
    term: Expr,
    bound: Axis,
    axis: Axis,
    factor: tuple[Axis, Expr] | None = None,
    made: Callable[[Expr], Expr] = lambda e: e,
) -> Expr:
    """What is carried along an axis, as a reduction over `bound`; a growth that is no factor is part of the term.

    Args:
        how: from place to place.
        term: over `bound`.
        bound: a name for the places that are gone through.
        axis: that of the result.
        factor: a name for the places that factors are multiplied over, and the factor over it; or None.
        made: the object to take for a new node.
    """

    def kept(over: Axis, at: UpTo, e: Expr, kind: ReduceKind) -> Expr:
        op, sides = at.compare(*(made(Position(Index.axis(a))) for a in (over, at.axis)))
        return made(Map("where", (made(Map(op, sides)), e, made(Const(kind.identity)))))

    if factor is not None:
        (between, by), joined = factor, how.kind.times
        for at in reversed(how.up_to(axis).behind(bound)):
            by = kept(between, at, by, joined)
        term = made(Map(joined.op, (made(Reduce(joined, between, by)), term)))
    return made(Reduce(how.kind, bound, kept(bound, how.up_to(axis), term, how.kind)))


def since(
    how: Recurrence,
    growth: Expr,
    bound: Axis,
    axis: Axis,
    made: Callable[[Expr], Expr] = lambda e: e,
    moved: Callable[[Expr, dict[Axis, Index]], Expr] = substitute,
) -> Expr:
    """What a scan has grown by from a place of `bound` on: the difference of two sums, or steps times the same growth.

    Args:
        how: from place to place.
        growth: from each place to the next, over the axis or the same at all places.
        bound: that of the place.
        axis: that of the result.
        made: the object to take for a new node.
        moved: substitutes axes.
    """

    def times(a: Expr, b: Expr) -> Expr:
        return made(Map("mul", (a, b)))

    if axis not in free_axes(growth):
        sign = -1 if how.back else 1
        steps = Index.axis(axis).scaled(sign) + Index.axis(bound).scaled(-sign) + (-1 if how.before else 0)
        return times(growth, made(Position(steps)))
    to_place = {axis: Index.axis(bound)}
    total = running(Recurrence(back=how.back), moved(growth, to_place), bound, axis, made=made)
    minus = made(Const(-1.0))
    here = made(Map("add", (total, times(minus, growth)))) if how.before else total
    return made(Map("add", (here, times(minus, moved(total, to_place)))))


def _moved(e: Expr, axis: Axis, other: Axis) -> Expr:
    return substitute(e, {axis: Index.axis(other)})


def _up_to(mask: Expr, bound: Axis) -> UpTo | None:
    match mask:
        case Map("le" | "lt" as op, (Position(m), Position(n))):
            for back, (own, end) in enumerate(((m, n), (n, m))):
                axis = end.as_axis()
                if own.as_axis() == bound and axis is not None and axis != bound and axis.extent == bound.extent:
                    return UpTo(axis, op == "lt", bool(back))
    return None


def _between(e: Expr, bound: Axis, to: UpTo, joined: ReduceKind = ReduceKind.PROD) -> Expr | None:
    """What a product of factors from behind a place on is of, at a place of the axis; or a sum of what is added."""
    match e:
        case Reduce(kind, axis, Map("where", (one, Map("where", (other, f, Const(x))), Const(y)))) if (
            kind is joined and x == y == kind.identity
        ):
            wanted = to.behind(bound)
            if {_up_to(one, axis), _up_to(other, axis)} == {*wanted} and not {bound, to.axis} & free_axes(f):
                return substitute(f, {axis: Index.axis(to.axis)})
    return None


def recurrence(e: Expr) -> Expr | None:
    """What is done from each place to the next, where an expression is what one loop over places carries on."""
    match e:
        case Reduce(ReduceKind.SUM, bound, body):
            factors, masks = _factors(body)
            to = _up_to(masks[0], bound) if len(masks) == 1 else None
            if to is None:
                return None
            own = [f if (p := _between(f, bound, to)) is None else _moved(p, to.axis, bound) for f in factors]
            if not all(_of_one_place(f, bound, to.axis) for f in own) or not any(bound in free_axes(f) for f in own):
                return None
            term = own[0]
            for f in own[1:]:
                term = Map("mul", (term, f))
            return Map("add", (stepwise(_moved(term, bound, to.axis)), Const(0.0)))
        case _:
            if (found := carried(e)) is None:
                return _grown_extreme(e)
            return Map(found.how.kind.op, (stepwise(found.term), Const(found.how.kind.identity)))


def _grown_extreme(e: Expr) -> Expr | None:
    """What is done from each place to the next, where an expression is an extreme that grows."""
    match e:
        case Reduce(kind, bound, Map("where", (mask, f, Const(outside)))) if (
            kind.is_extreme and outside == kind.identity and bound in free_axes(f)
        ):
            to = _up_to(mask, bound)
            if to is not None and _of_one_place(Map("exp", (f,)), bound, to.axis):
                return Map(kind.op, (stepwise(_moved(f, bound, to.axis)), Const(kind.identity)))
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
            case Map("exp", (Map("add", (Map("where", (mask, inner, Const(value))), shift)),)) if value == -math.inf:
                masks.append(mask)
                factors.append(Map("exp", (Map("add", (inner, shift)),)))
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
    is read at the place. `sums` is whether prefix sums are gone through, too, or stay as they are written.
    """
    made: dict[int, Expr] = {}
    for part in walk(e):
        made[id(part)] = _step(part, made, sums)
    return made[id(e)]


def _step(e: Expr, made: Mapping[int, Expr], sums: bool) -> Expr:
    """The expression, given what its operands became."""
    if isinstance(e, Reduce):
        step, chosen = recurrence(e) if sums else None, lookup(e)
        if step is not None:
            return step
        if chosen is not None:
            place, element = made[id(chosen.place)], made[id(chosen.element)]
            at = sum((Index.axis(a) for a in sorted(free_axes(place), key=str)), Index.const(0))
            return Map("add", (place, substitute(element, {chosen.axis: at})))
    return with_children(e, [made[id(c)] for c in e.children])
