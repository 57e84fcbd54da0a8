"""Scans in an e-graph: what a loop over places carries on from one to the next, growing or decaying.

    sum_m where(m <= n, f(m), 0)                              prefix sums of f; products and extremes alike
    sum_m where(m <= n, a(m + 1)*...*a(n) * f(m), 0)          the same, times a(n) from each place to the next
    sum_m where(m <= n, exp(G(n) - G(m)) * f(m), 0)           the same, times exp(g(n)) from each place to the next
    sum_m where(m < n, exp(G(n) - g(n) - G(m)) * f(m), 0)     of that, the sum up to the place before
    max_m where(m <= n, G(n) - G(m) + f(m), -inf)             maxima, to which g(n) is added from each place to the next
    sum_m where(m <= n, exp(a(m) - M(n)) * f(m), 0)           rescaled by M(n) = max_m where(m <= n, b(m), -inf)
    sum_m where(m <= n, exp(G(n) - G(m) + a(m) - M(n)) * f(m), 0)         the same where M grows by g

G(n) is the prefix sum of a growth g, as a cumulative sum of the logarithms of gates is, or n*g where g is the same at
all places, as a decay by a power of the distance is. Masks stand around the whole term or around a factor of it, are
factors themselves, or are in an exponent, as minus infinity where they do not hold. Each may go from the last place to
the first, with n <= m. What is rescaled by a maximum of the places before, m < n, is 0 where there are none: there its
exponents are shifted by 0.

Axes are names, so g(n) and g(m) are two e-classes. `Alike` says whether one is the other, renamed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from prism.program.classes import EClasses, ENode
from prism.program.extents import add
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Position, Read, ReduceKind, Size
from prism.program.prefix import Recurrence, UpTo

Pairs: TypeAlias = Mapping[int, tuple[tuple[int, int], ...]]
"""By e-class, pairs of e-classes (a, b) of which it is something."""


@dataclass(frozen=True, slots=True)
class Along:
    """Where a scan goes."""

    axis: Axis  # that of its result
    # Of each operand the axis that goes along with that one, the first operand's being what is summed over; None where
    # an operand is the same at all places.
    over: tuple[Axis | None, ...]
    how: Recurrence  # from place to place
    grows: bool = False  # whether it is rescaled by what grows


Scan: TypeAlias = tuple[Along, tuple[int, ...]]
"""A scan that a reduction is, and its operands.

f, over the reduced axis, and g, or the factor, where there is one; where it is rescaled a, over the reduced axis, b, g
where M grows, and f where there is one."""


@dataclass(frozen=True, slots=True)
class _Term:
    """What is summed, taken apart: under a mask, exp(exponent), or the product of factors, times the other factors."""

    mask: UpTo
    factor: int | None
    exponent: int | None
    product: int | None = None


def differences(classes: EClasses) -> Pairs:
    """For each e-class that is a + -1*m: the pairs (a, m)."""
    minus_one = {
        c for c, nodes in classes.nodes.items() for n in nodes if isinstance(n.payload, Const) and n.payload.value == -1
    }
    negated: dict[int, list[int]] = defaultdict(list)
    for cls, nodes in classes.nodes.items():
        for n in nodes:
            if n.op == "neg":
                negated[cls].append(n.children[0])
            elif n.op == "mul":
                for sign, value in (n.children, n.children[::-1]):
                    if sign in minus_one and value not in negated[cls]:
                        negated[cls].append(value)
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for cls, nodes in classes.nodes.items():
        for n in nodes:
            if n.op == "add":
                for a, b in (n.children, n.children[::-1]):
                    for m in negated.get(b, ()):
                        if (a, m) not in found[cls]:
                            found[cls].append((a, m))
    return {cls: tuple(pairs) for cls, pairs in found.items()}


@dataclass(slots=True)
class Scans:
    """Finds the scans that sums are."""

    classes: EClasses  # the e-graph
    differences: Pairs  # see the function of that name
    _alike: _Alike = field(init=False)

    def __post_init__(self) -> None:
        self._alike = _Alike(self.classes)

    def of(self, kind: ReduceKind, axis: Axis, body: int) -> Iterator[Scan]:
        """The scans that a reduction is, each once."""
        seen: dict[Scan, None] = {}
        for term in self._terms(kind, axis, body):
            mask = term.mask
            if term.exponent is not None:
                for a, m in self.differences.get(term.exponent, ()):
                    seen |= dict.fromkeys(self._rescaled(mask, a, m, term.factor, axis))
            if kind.is_extreme and term.factor is not None:
                for own, growth, over, between in self._apart(term.factor, axis, mask):
                    how = Recurrence(kind, mask.before, mask.back, factors=between)
                    seen[Along(mask.axis, (axis, over), how), (own, growth)] = None
            if term.factor is None or mask.axis in self._axes(term.factor) or axis not in self._axes(term.factor):
                continue
            how = Recurrence(kind, mask.before, mask.back)
            grown: Iterator[tuple[int, Axis | None]] = iter(())
            if term.exponent is not None:
                grown = self._growths(term.exponent, axis, mask)
            elif term.product is not None:
                how = replace(how, factors=True)
                grown = self._between(ReduceKind.PROD, term.product, axis, mask)
            else:
                seen[Along(mask.axis, (axis,), how), (term.factor,)] = None
            for growth, over in grown:
                if self._axes(growth) - {over} <= self._axes(term.factor):
                    seen[Along(mask.axis, (axis, over), how), (term.factor, growth)] = None
        if kind is ReduceKind.SUM:
            seen |= dict.fromkeys(self._masked_differences(body, axis))
        yield from seen

    def _apart(self, cls: int, axis: Axis, mask: UpTo) -> Iterator[tuple[int, int, Axis | None, bool]]:
        """What an e-class is a sum of: what is of a place of `axis`, and the growth from there on and its axis.

        And whether that is written as the sum of what is between.
        """
        for n in self._nodes(cls, "add"):
            for own, rest in (n.children, n.children[::-1]):
                if axis in self._axes(own) and mask.axis not in self._axes(own):
                    grown = ((*g, False) for g in self._growths(rest, axis, mask))
                    between = ((*g, True) for g in self._between(ReduceKind.SUM, rest, axis, mask))
                    for growth, over, apart in (*grown, *between):
                        if self._axes(growth) - {over} <= self._axes(own):
                            yield own, growth, over, apart

    def _rescaled(self, mask: UpTo, a: int, m: int, f: int | None, axis: Axis) -> Iterator[Scan]:
        """The scans that a sum of exp(a - m)*f under the mask is, where m is a maximum so far."""
        factors = () if f is None else (f,)
        if any(mask.axis in self._axes(c) for c in factors):
            return
        how = Recurrence(ReduceKind.SUM, mask.before, mask.back, rescaled=True)
        for largest, operands in self._largest(m, mask):
            grows = len(operands) == 2
            over = (axis, *largest.over, axis)[: 1 + len(operands) + len(factors)]
            along = Along(mask.axis, over, how, grows)
            if not grows and axis in self._axes(a) and mask.axis not in self._axes(a):
                yield along, (a, *operands, *factors)
            elif grows and not largest.how.factors:
                for own, g, over_g, between in self._apart(a, axis, mask):
                    if not between and self._is_one(g, over_g, operands[1], largest.over[1]):
                        yield along, (own, *operands, *factors)

    def _is_one(self, g: int, over: Axis | None, h: int, other: Axis | None) -> bool:
        """Whether growths over these axes are one."""
        if over is None or other is None:
            return over is other and g == h
        return self._alike.of(g, h, {over: other})

    def _largest(self, m: int, mask: UpTo) -> Iterator[Scan]:
        """The maxima that an e-class is of what the mask leaves; or, of the places before, 0 where there are none."""
        classes = [m]
        if mask.before:
            classes = [
                q
                for n in self._nodes(m, "where")
                for q in (n.children[2],)
                if is_number(self.classes, n.children[1], 0.0) and self._is_nothing(n.children[0], q)
            ]
        for q in classes:
            for n in self._nodes(q, "max"):
                assert isinstance(n.payload, Axis)
                found = self.of(ReduceKind.MAX, n.payload, n.children[0])
                yield from (x for x in found if x[0].how.up_to(x[0].axis) == mask)

    def _is_nothing(self, p: int, q: int) -> bool:
        """Whether a predicate is q == -inf."""
        return any(
            a == q and is_number(self.classes, b, -math.inf)
            for n in self._nodes(p, "eq")
            for a, b in (n.children, n.children[::-1])
        )

    def _masked_differences(self, body: int, axis: Axis) -> Iterator[Scan]:
        """The scans of exponentials whose exponents are shifted where the mask holds, and minus infinity elsewhere."""
        exponents = [(n.children[0], None) for n in self._nodes(body, "exp")]
        for exponent, f in (*exponents, *self._exponentials(body)):
            for masked, m in self.differences.get(exponent, ()):
                for mask, a in self._masked(masked, axis, -math.inf):
                    yield from self._rescaled(mask, a, m, f, axis)

    def _axes(self, cls: int) -> frozenset[Axis]:
        return self.classes.axes[cls]

    def _nodes(self, cls: int, op: str) -> Iterator[ENode]:
        return (n for n in self.classes.nodes[cls] if n.op == op and not n.domain)

    # The summand.

    def _terms(self, kind: ReduceKind, axis: Axis, body: int) -> Iterator[_Term]:
        for mask, kept in self._masked(body, axis, kind.identity):
            yield _Term(mask, kept, None)
            if kind is ReduceKind.SUM:
                for exponent, factor in self._exponentials(kept):
                    yield _Term(mask, factor, exponent)
                for p, factor in self._products(kept):
                    yield _Term(mask, factor, None, p)
        if kind is not ReduceKind.SUM:
            return
        for mask, exponent in self._masked_exponents(body, axis):
            yield _Term(mask, None, exponent)
        for p, factor in self._products(body):
            for mask in self._up_to(p, axis):
                yield _Term(mask, factor, None)
                for exponent, rest in self._exponentials(factor):
                    yield _Term(mask, rest, exponent)
            for mask, exponent in self._masked_exponents(p, axis):
                yield _Term(mask, factor, exponent)
            for n in self._nodes(p, "exp"):
                for q, rest in self._products(factor):
                    for mask in self._up_to(q, axis):
                        yield _Term(mask, rest, n.children[0])

    def _masked_exponents(self, cls: int, axis: Axis) -> Iterator[tuple[UpTo, int]]:
        """The masks under which an e-class is an exponential, which is 0 elsewhere, and its exponent."""
        for mask, kept in self._masked(cls, axis, 0.0):
            for n in self._nodes(kept, "exp"):
                yield mask, n.children[0]
        for n in self._nodes(cls, "exp"):
            yield from self._masked(n.children[0], axis, -math.inf)
        for exponent, factor in self._exponentials(cls):
            yield from ((mask, exponent) for mask in self._up_to(factor, axis))

    def _products(self, cls: int) -> Iterator[tuple[int, int]]:
        for n in self._nodes(cls, "mul"):
            yield n.children[0], n.children[1]
            yield n.children[1], n.children[0]

    def _exponentials(self, cls: int) -> Iterator[tuple[int, int]]:
        for p, factor in self._products(cls):
            for n in self._nodes(p, "exp"):
                yield n.children[0], factor

    def _masked(self, cls: int, axis: Axis, outside: float) -> Iterator[tuple[UpTo, int]]:
        """The masks under which an e-class is another one, and a number outside of them."""
        for n in self._nodes(cls, "where"):
            p, a, b = n.children
            if is_number(self.classes, b, outside):
                yield from ((m, a) for m in self._up_to(p, axis))

    def _up_to(self, mask: int, axis: Axis) -> Iterator[UpTo]:
        """What the mask leaves of the axis, where that is what comes before a place of another one as long."""
        for n in self.classes.nodes[mask]:
            if n.op in ("le", "lt"):
                for back, (own, there) in enumerate((n.children, n.children[::-1])):
                    if axis in positions(self.classes, own):
                        for other in positions(self.classes, there):
                            if other != axis and other.extent == axis.extent:
                                yield UpTo(other, n.op == "lt", bool(back))

    # What it grows by.

    def _between(self, kind: ReduceKind, cls: int, axis: Axis, mask: UpTo) -> Iterator[tuple[int, Axis | None]]:
        """The factors, and the axis they are over, whose product from behind a place of `axis` on an e-class is.

        prod_l where(l <= n, where(m < l, a(l), 1), 1), l < n where each place's own is left out; or the sum of terms.
        """
        wanted = {*mask.behind(axis)}
        for n in self._nodes(cls, kind.value):
            assert isinstance(n.payload, Axis)
            for first, kept in self._masked(n.children[0], n.payload, kind.identity):
                for second, factor in self._masked(kept, n.payload, kind.identity):
                    if {first, second} == wanted and not {axis, mask.axis} & self._axes(factor):
                        yield factor, n.payload if n.payload in self._axes(factor) else None

    def _growths(self, exponent: int, axis: Axis, mask: UpTo) -> Iterator[tuple[int, Axis | None]]:
        """The growths g, and the axes they are over, that sum up to an exponent from a place of `axis` on."""
        along = mask.axis
        for here, there in self.differences.get(exponent, ()):
            if axis in self._axes(here) or along in self._axes(there):
                continue
            starts = self.differences.get(here, ()) if mask.before else ((here, None),)
            for total, own in starts:
                for g, over in self._summed(total, along, mask.back):
                    left_out = own is None or self._alike.of(g, own, {over: along})
                    ends = self._summed(there, axis, mask.back)
                    if left_out and any(self._alike.of(g, h, {over: k}) for h, k in ends):
                        yield g, over
        for n in self._nodes(exponent, "mul"):
            for steps, g in (n.children, n.children[::-1]):
                if not self._axes(g) & {axis, along} and self._is_distance(steps, axis, mask):
                    yield g, None

    def _is_distance(self, cls: int, axis: Axis, mask: UpTo) -> bool:
        """Whether the e-class is the number of steps from a place of the axis to one's own, or the one before it."""
        wanted = (Index.axis(mask.axis) + Index.axis(axis).scaled(-1)).scaled(-1 if mask.back else 1)
        offset = -1 if mask.before else 0
        return any(
            isinstance(n.payload, Position)
            and n.payload.index.terms == wanted.terms
            and add(n.payload.index.offset, -offset) == 0
            for n in self.classes.nodes[cls]
        )

    def _summed(self, cls: int, along: Axis, back: bool) -> Iterator[tuple[int, Axis]]:
        """What an e-class is the prefix sums of along an axis: the e-class of the terms, and the axis they are over."""
        for n in self._nodes(cls, "sum"):
            assert isinstance(n.payload, Axis)
            for mask, kept in self._masked(n.children[0], n.payload, 0.0):
                over = self._axes(kept)
                if mask == UpTo(along, False, back) and n.payload in over and along not in over:
                    yield kept, n.payload


def is_number(classes: EClasses, cls: int, value: float) -> bool:
    """Whether an e-class is a constant of that value."""
    return any(isinstance(n.payload, Const) and n.payload.value == value for n in classes.nodes[cls])


def positions(classes: EClasses, cls: int) -> Iterator[Axis]:
    """The axes whose position an e-class is."""
    for n in classes.nodes[cls]:
        if isinstance(n.payload, Position) and (found := n.payload.index.as_axis()) is not None:
            yield found


@dataclass(slots=True)
class _Alike:
    """Whether an e-class is another one with its axes renamed: by some e-node of each, all the way down."""

    classes: EClasses
    _known: dict[tuple[int, int, frozenset[tuple[Axis, Axis]]], bool] = field(default_factory=dict)

    def of(self, one: int, other: int, renamed: Mapping[Axis, Axis]) -> bool:
        """Whether the first is the second where the axes are renamed; what is not in the mapping keeps its name."""
        axes = self.classes.axes
        live = {a: b for a, b in renamed.items() if a in axes[one] and a != b}
        if len(axes[one]) != len(axes[other]) or {live.get(a, a) for a in axes[one]} != axes[other]:
            return False
        if not live:
            return one == other
        key = (one, other, frozenset(live.items()))
        known = self._known.get(key)
        if known is None:
            self._known[key] = False  # what is made of itself is not looked at twice
            known = self._known[key] = any(
                self._nodes(n, m, renamed) for n in self.classes.nodes[one] for m in self.classes.nodes[other]
            )
        return known

    def _nodes(self, one: ENode, other: ENode, renamed: Mapping[Axis, Axis]) -> bool:
        if one.op != other.op or len(one.children) != len(other.children):
            return False
        match one.payload, other.payload:
            case Axis() as a, Axis() as b:
                if a.extent != b.extent:
                    return False
                renamed = {**renamed, a: b}
            case Read(tensor, index), Read(second, at):
                return tensor == second and self._indices(index, renamed) == at
            case Position(index), Position(at):
                return self._indices((index,), renamed) == (at,)
            case (Const() | Size() | None) as a, b:
                if a != b:
                    return False
            case _:
                return False
        return all(self.of(a, b, renamed) for a, b in zip(one.children, other.children, strict=True))

    @staticmethod
    def _indices(index: tuple[Index, ...], renamed: Mapping[Axis, Axis]) -> tuple[Index, ...]:
        mapping = {a: Index.axis(b) for a, b in renamed.items() if a != b}
        return tuple(i.substitute(mapping) for i in index)
