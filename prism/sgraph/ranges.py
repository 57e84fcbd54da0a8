"""Ranges: loops that do not visit the tiles on which nothing can happen, as under a causal mask or a sliding window.

A condition `e >= 0` may be in the range of a loop when, on a tile where e is negative everywhere, each accumulator of
the loop takes its kind's identity (0 for a sum, -inf for a maximum) and the body stores nothing; several of one side,
of which one has to hold, when that is so where all of them are negative everywhere; so may conditions of either side,
which leave a gap, and those without the axis, under which nothing is left out. A scan along the axis stays what it was
where its operand takes its kind's identity and nothing grows. Whether that is so is decided by
propagating constants and affine indices through the body under the assumption e <= -1:

    positions   values of affine indices; sums and multiples of them stay affine
    a <= b      is false where b - a <= -1 follows from e <= -1, true where b - a >= 0 does; `<` and `==` likewise;
                |i| <= c is that of both i and -i; floor(i/c) - floor(j/c) <= k is true where i - j <= c*k, and
                false where i - j >= c*(k + 1); floor(i/c) < floor(j/c) is that of the other difference
    p or q      is false where both are: under two conditions, or one that is at least either's, as i + c of i and c
    where       is the chosen operand where the predicate is known
    0*f = 0, exp(-inf) = 0, -inf + x = -inf, a maximum of -inf is -inf, a sum of zeros is 0, a contraction of zeros is 0

Why that is enough. The assumption is about every element of the tile, so what follows from it holds for every element,
and each accumulator is combined with its identity: it stays what it was. A rescaled accumulator is besides multiplied
by exp(m - m') for its shift m, an accumulator of the same loop, which by the same argument stays: the factor is 1.
What an unvisited tile defines is not in scope after the loop. So a loop with a range denotes what it denotes without.

Implication is linear: b - a = l*(e + 1) + r with l >= 0 and r <= -1 over the boxes of the axes, whose elements are all
that counts (lanes outside of an axis are masked, with or without a range).

Two things more, for loops of which each element of the other axes surely visits a tile that it is not hidden on:

    a maximum of c and what is -inf is c, for a c from outside of the loop: what any visited tile has put there already
    what a mask hides may be a number instead of -inf, LOW or less: less a running maximum of the same loop it counts as
    -inf, since whatever is visible is above it. That is an assumption, and `assumed` says so.

Floating-point class: *masked values are not read*. What the mask hides may be infinite or NaN; 0*inf, or -inf + inf,
does not arise where a tile is skipped and may where it is visited. And where a row has nothing left, its maximum is
-inf and exp(-inf - -inf) is undefined; the class of the rules (`domain`) leaves that row open as well.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import TypeAlias

from prism.errors import IllegalIRError
from prism.ir.kit import Holds, defined, free_name, sources, statements, with_names
from prism.program.extents import Extent, add, at_most, evaluate, is_static, mul
from prism.program.index import Axis, Index
from prism.program.nodes import ReduceKind
from prism.program.ops import COMPARISONS
from prism.sgraph import nodes as sg

TWICE = 1.1
"""Loops in place of one visit at most so many times its tiles; on the diagonal of a mask both sides have a tile."""

MOST_PAIRED = 6
"""Conditions of one direction of which pairs are looked at."""


@dataclass(frozen=True, slots=True)
class Part:
    """An affine index and less than one more, over a whole number; `floored`, or the fraction itself."""

    index: Index
    of: int
    floored: bool = False
    less: Index | None = None  # another index, over the same number and floored, that is taken off what is floored


@dataclass(frozen=True, slots=True)
class Absolute:
    """The absolute value of an affine index, or of a part: how far two positions or blocks are apart."""

    index: Index | Part


@dataclass(frozen=True, slots=True)
class Same:
    """The value of that name, which is defined outside of the loop."""

    name: str


@dataclass(frozen=True, slots=True)
class RunningMaximum:
    """A maximum that the loop accumulates, or its negative: no visible value of the loop's is above it."""

    negative: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values, of which some are hidden by a mask: not known which."""


@dataclass(frozen=True, slots=True)
class EndedMaximum:
    """A maximum that an earlier loop took of values some of which are hidden, or its negative.

    It may be hidden itself, where all of them are. Less it, what is visible is as far above what is hidden, or further.
    """

    negative: bool = False


@dataclass(frozen=True, slots=True)
class Compared:
    """Whether the index is > 0, >= 0 or 0 (`lt`, `le`, `eq`), which is asked again where more is assumed."""

    op: str
    ahead: Index


# What is known of a value on every element of the tile; a number may be a truth value, 0 or 1; nothing is None.
Fact: TypeAlias = "Index | Absolute | Part | Same | Compared | RunningMaximum | Choice | EndedMaximum | float | None"

LOW = -1e30
"""Numbers up to here stand for -inf in masks: float32's and bfloat16's least number, and what people write instead."""

_FOLD: Mapping[str, Callable[..., float]] = {
    "neg": lambda a: -a,
    "abs": abs,
    "floor": lambda a: float(math.floor(a)) if math.isfinite(a) else a,
    "exp": lambda a: 0.0 if a == -math.inf else math.exp(a),
    "sigmoid": lambda a: 0.0 if a == -math.inf else 1.0 / (1.0 + math.exp(-a)),
    "maximum": max,
    "minimum": min,
    "isnan": lambda a: 0.0,
    "not": lambda a: float(not a),
    "lt": lambda a, b: float(a < b),
    "le": lambda a, b: float(a <= b),
    "eq": lambda a, b: float(a == b),
}


# Affine indices.


def sign(coefficient: Extent) -> int:
    """1 where the coefficient is known not to be negative, -1 where it is known not to be positive, else 0."""
    return 1 if at_most(0, coefficient) else -1 if at_most(coefficient, 0) else 0


def negated(index: Index) -> Index:
    """-index - 1, which is at least 0 where the index is negative."""
    return index.scaled(-1) + -1


def _follows(wanted: Index, given: Index, axis: Axis) -> bool:
    """Whether wanted >= 0 wherever given >= 0, or everywhere; multiples are chosen so that the axis cancels."""
    if wanted.never_negative:
        return True
    p, q = wanted.slope(axis), given.slope(axis)
    if p == q == 0:
        return (wanted + given.scaled(-1)).never_negative
    return p * q > 0 and (wanted.scaled(abs(q)) + given.scaled(-abs(p))).never_negative


# Propagation.


@dataclass(slots=True)
class _Facts:
    """Facts about values, statement by statement."""

    known: dict[str, Fact]  # by value name
    axis: Axis | None = None  # the axis of the loop whose tile is looked at
    assumed: tuple[Index, ...] = ()  # indices that are negative on every element of the tile
    # For every comparison of indices that is not decided, what is asked: whether one is >= 0.
    asked: list[Index] = field(default_factory=list)
    # The names that the loop defines; of others the value is the same on all of its tiles.
    inside: frozenset[str] = frozenset()
    at: Index | None = None  # where the loop's axis is, if at one place
    visited: bool = False  # whether something follows only where some tile is visited
    # Whether something follows only where a visited tile is not hidden: the assumption about masks.
    visible: bool = False

    def statement(self, s: sg.Stmt) -> None:
        match s:
            case sg.Position(dst, index):
                if self.at is not None and self.axis is not None:
                    index = index.substitute({self.axis: self.at})
                self.known[dst] = float(int(index.offset)) if not index.terms and is_static(index.offset) else index
            case sg.Pointwise(dst, "maximum", (a, b)) if (same := self.floor(a, b) or self.floor(b, a)) is not None:
                self.known[dst] = same
            case sg.Pointwise(dst, op, args):
                self.known[dst] = self.pointwise(op, [self.of(a) for a in args])
            case sg.TileReduce(dst, sg.Statistic()) | sg.Accumulate(dst, sg.Statistic()):
                self.known[dst] = None
            case sg.TileReduce(dst, ReduceKind() as kind, axis, src):
                fact = self.of(src)
                along = isinstance(fact, Same) and kind is ReduceKind.MAX and axis == self.axis
                self.known[dst] = fact if along else _reduced(kind, fact)
            case sg.Contract(dst, _, lhs, rhs):
                facts = (self.of(lhs), self.of(rhs))
                self.known[dst] = 0.0 if 0.0 in facts else _unknown(facts)
            case sg.Accumulate(dst, ReduceKind() as kind, src, _):
                # Of an inner loop, whose every tile the assumption is about.
                fact = self.of(src)
                ended = self.axis is None and kind is ReduceKind.MAX and isinstance(fact, Choice)
                self.known[dst] = (
                    kind.identity if fact == kind.identity else EndedMaximum() if ended else _unknown((fact,))
                )
            case sg.Loop(_, body):
                for inner in body:
                    self.statement(inner)

    def of(self, operand: sg.Operand) -> Fact:
        fact = self.known.get(operand) if isinstance(operand, str) else float(operand)
        if isinstance(fact, Compared):
            decided = self.compare(fact.op, fact.ahead)
            return fact if decided is None else decided
        return fact

    def floor(self, hidden: sg.Operand, other: sg.Operand) -> Same | None:
        """The other operand of a maximum, where one is hidden and the other is from outside of the loop."""
        low = self.of(hidden)
        if not self.assumed or not (isinstance(low, float) and low <= LOW) or not isinstance(other, str):
            return None
        return Same(other) if other not in self.inside and self.of(other) is None else None

    def pointwise(self, op: str, args: Sequence[Fact]) -> Fact:
        found = self._pointwise(op, args)
        return _unknown(args) if found is None else found

    def _pointwise(self, op: str, args: Sequence[Fact]) -> Fact:
        numbers = [a for a in args if isinstance(a, float)]
        match op:
            case "where":
                if isinstance(args[0], float):
                    return args[1] if args[0] else args[2]
                if args[1] == args[2]:
                    return args[1]
                return Choice() if any(n <= LOW for n in numbers) else None
            case "and" | "or":
                decisive = op == "or"
                if any(bool(n) is decisive for n in numbers):
                    return float(decisive)
                return float(not decisive) if len(numbers) == len(args) else None
            case "add":
                if len(numbers) < len(args) and all(isinstance(a, Index) or _is_whole(a) for a in args):
                    return _index(args[0]) + _index(args[1])
                floors = [a for a in args if isinstance(a, Part) and a.floored]
                if len(floors) == 2:
                    return _apart(*floors) or _apart(*reversed(floors))
                if floors and numbers and _is_whole(numbers[0]):
                    return replace(floors[0], index=floors[0].index + floors[0].of * int(numbers[0]))
                if numbers and 0.0 < numbers[0] < 1.0 and (of := [a for a in args if isinstance(a, Index)]):
                    return Part(of[0], 1)
                for n in numbers:
                    if math.isinf(n) and -n not in numbers:
                        return n
                if len(numbers) < len(args) and any(n <= LOW for n in numbers):
                    # What is visible is above what is hidden, which counts as -inf less that.
                    self.visible = True
                    return -math.inf if RunningMaximum(negative=True) in args else min(numbers)
                return sum(numbers) if len(numbers) == len(args) and math.isfinite(sum(numbers)) else None
            case "mul":
                if len(numbers) == len(args):
                    return None if math.isnan(numbers[0] * numbers[1]) else numbers[0] * numbers[1]
                if 0.0 in numbers:
                    return 0.0
                if -1.0 in numbers and any(a in (RunningMaximum(), EndedMaximum()) or _is_floor(a) for a in args):
                    return self._pointwise("neg", [a for a in args if not isinstance(a, float)])
                scaled = next((a for a in args if isinstance(a, Index)), None)
                if scaled and numbers and _is_whole(numbers[0]):
                    return scaled.scaled(int(numbers[0]))
                fraction = Part(scaled, 1) if scaled else next((a for a in args if isinstance(a, Part)), None)
                if fraction is None or fraction.floored or not numbers or not math.isfinite(1 / numbers[0]):
                    return None
                parts = round(1 / numbers[0])
                return replace(fraction, of=fraction.of * parts) if parts > 1 and parts * numbers[0] == 1.0 else None
            case _ if op in _FOLD and len(numbers) == len(args):
                try:
                    return _FOLD[op](*numbers)
                except OverflowError:
                    return None
            case "neg" if isinstance(args[0], Index):
                return args[0].scaled(-1)
            case "neg" if isinstance(args[0], Part) and args[0].floored:
                return Part(args[0].less or Index(()), args[0].of, True, args[0].index)
            case "neg" if args[0] in (RunningMaximum(), EndedMaximum()):
                return RunningMaximum(negative=True) if args[0] == RunningMaximum() else EndedMaximum(negative=True)
            case "maximum" if RunningMaximum() in args:
                return RunningMaximum()
            case "floor" if isinstance(args[0], Part):
                return args[0].index if args[0].of == 1 else replace(args[0], floored=True)
            case _ if op in COMPARISONS and any(isinstance(a, Part) for a in args):
                return self._compare_parts(op, *args)
            case "abs" if isinstance(args[0], Index | Part):
                return Absolute(args[0]) if isinstance(args[0], Index) or args[0].floored else None
            case "lt" | "le" if isinstance(args[0], Absolute) and (isinstance(args[1], Index) or _is_whole(args[1])):
                # |i| <= c is -c <= i <= c.
                match args[0].index, args[1]:
                    case Part() as part, float(most):
                        return self.near(part, int(most) - (op == "lt"))
                    case Index() as index, _:
                        sides = [self.compare(op, _index(args[1]) + index.scaled(way)) for way in (1, -1)]
                    case _:
                        return None
                return 0.0 if 0.0 in sides else 1.0 if sides == [1.0, 1.0] else None
            case "lt" | "le" if isinstance(args[1], Absolute) and (isinstance(args[0], Index) or _is_whole(args[0])):
                # c <= |i| is c <= i or c <= -i.
                match args[1].index, args[0]:
                    case Part() as part, float(least):
                        near = self.near(part, int(least) - (op == "le"))
                        return None if near is None else 1.0 - near
                    case Index() as index, _:
                        sides = [self.compare(op, index.scaled(way) + _index(args[0]).scaled(-1)) for way in (1, -1)]
                    case _:
                        return None
                return 1.0 if 1.0 in sides else 0.0 if sides == [0.0, 0.0] else None
            case _ if op in COMPARISONS and all(isinstance(a, Index) or _is_whole(a) for a in args):
                ahead = _index(args[1]) + _index(args[0]).scaled(-1)
                decided = self.compare(op, ahead)
                return Compared(op, ahead) if decided is None else decided
            case _:
                return None

    def _compare_parts(self, op: str, a: Fact, b: Fact) -> float | None:
        """The comparison of two parts of the same size, or of one with a whole number."""
        match a, b:
            case Part(_, _, True), float() if _is_whole(b):
                part, whole, turned = a, int(b), False
            case float(), Part(_, _, True) if _is_whole(a):
                part, whole, turned = b, int(a), True
            case Part(one, of, True, None), Part(other, parts, True, None) if of == parts:
                part, whole, turned = Part(one, of, True, other), 0, False
            case _:
                return None
        # part < whole is part <= whole - 1, and whole < part is not part <= whole.
        strict = op == "lt"
        most = self.at_most(part, whole - (strict != turned if op != "eq" else 0))
        if op == "eq":
            less = self.at_most(part, whole - 1)
            return 0.0 if most == 0.0 or less == 1.0 else 1.0 if (most, less) == (1.0, 0.0) else None
        return most if most is None or not turned else 1.0 - most

    def near(self, part: Part, most: int) -> float | None:
        """Whether a floored part is at most a whole number away from 0."""
        above, below = self.at_most(part, most), self.at_most(part, -most - 1)
        return 0.0 if above == 0.0 or below == 1.0 else 1.0 if (above, below) == (1.0, 0.0) else None

    def at_most(self, part: Part, most: int) -> float | None:
        """Whether a floored part is at most a whole number."""
        if part.less is None:
            return self.holds(negated(part.index + -part.of * (most + 1)))
        ahead = part.index + part.less.scaled(-1)
        if self.holds(ahead.scaled(-1) + part.of * most) == 1.0:
            return 1.0
        return 0.0 if self.holds(ahead + -part.of * (most + 1)) == 1.0 else None

    def compare(self, op: str, ahead: Index) -> float | None:
        """Whether `ahead`, the second operand minus the first, is > 0, >= 0 or 0."""
        match op:
            case "lt":
                return self.holds(ahead + -1)
            case "le":
                return self.holds(ahead)
            case _:
                both = (self.holds(ahead), self.holds(ahead.scaled(-1)))
                return 0.0 if 0.0 in both else 1.0 if both == (1.0, 1.0) else None

    def holds(self, index: Index) -> float | None:
        """Whether the index is >= 0 on every element (1), on none (0), or it is not known."""
        for wanted, answer in ((index, 1.0), (negated(index), 0.0)):
            if wanted.never_negative:
                return answer
            axis = self.axis
            if axis is not None and any(_follows(wanted, negated(e), axis) for e in self.assumed):
                return answer
        self.asked.append(index)
        return None


def _unknown(of: Sequence[Fact]) -> Fact:
    """What is made of these, where nothing more is known: something that may be hidden, where one of them may be."""
    return Choice() if Choice() in of or EndedMaximum() in of else None


def _apart(a: Part, b: Part) -> Part | None:
    """The sum of floor(i/c) and of n - floor(j/c), for a whole number n."""
    shift = b.index
    if a.less is not None or b.less is None or a.of != b.of or shift.terms or not is_static(shift.offset):
        return None
    return Part(a.index + shift, a.of, True, b.less) if int(shift.offset) % a.of == 0 else None


def _is_floor(a: Fact) -> bool:
    return isinstance(a, Part) and a.floored


def _is_whole(a: Fact) -> bool:
    return isinstance(a, float) and a.is_integer()


def _index(a: Fact) -> Index:
    return a if isinstance(a, Index) else Index.const(int(a) if isinstance(a, float) else 0)


def _reduced(kind: ReduceKind, fact: Fact) -> Fact:
    """The reduction of a tile whose elements are all the same; a tile has at least one."""
    if not isinstance(fact, float):
        return _unknown((fact,))
    match kind:
        case ReduceKind.SUM:
            return 0.0 if fact == 0 else None
        case ReduceKind.PROD:
            return fact if fact in (0.0, 1.0) else None
        case _:
            return fact


@dataclass(frozen=True, slots=True)
class Grounds:
    """When a tile on which a condition is negative everywhere leaves a loop's accumulators as they were."""

    visited: bool = False  # only where some other tile is visited
    visible: bool = False  # only where a mask does not hide all that is visited: what it hides is a number, not -inf


def _justified(loop: sg.Loop, side: Sequence[Index], known: Mapping[str, Fact]) -> Grounds | None:
    """Whether a tile on which all these conditions are negative everywhere leaves the loop's accumulators as they were.

    The loop's own range does not matter; the sides are affine, some of them over the loop's axis. `known` are facts
    about the values that are defined before the loop.
    """
    if not any(c.slope(loop.axis) for c in side):
        return None
    facts = _Facts(dict(known), loop.axis, tuple(side), inside=_defined(loop))
    found = False
    for s in loop.body:
        if isinstance(s, sg.Accumulate):
            if isinstance(s.kind, sg.Statistic):
                return None  # a tile that is not visited is not counted
            fact = facts.of(s.src)
            largest = s.kind is ReduceKind.MAX
            if fact != s.kind.identity:
                hidden = isinstance(fact, float) and fact <= LOW
                if not largest or not (hidden or isinstance(fact, Same)):
                    return None
                facts.visited = True
                facts.visible |= hidden
            # Inside the loop the name means what other tiles have left in it.
            facts.known[s.dst] = RunningMaximum() if largest else None
            found = True
        elif isinstance(s, sg.Scan) and s.axis == loop.axis:
            # What there is so far goes on as it is, where a tile has nothing to combine with it and it does not grow.
            if s.growth is not None or facts.of(s.src) != s.how.kind.identity:
                return None
        elif any(isinstance(x, sg.Store | sg.Scan) for x in statements((s,))):
            return None
        else:
            facts.statement(s)
    return Grounds(facts.visited, facts.visible) if found else None


def placed(kernel: sg.Kernel) -> Mapping[str, Fact]:
    """What is known of the kernel's values from the positions that they are made of, by name."""
    facts = _Facts({})
    for s in kernel.body:
        facts.statement(s)
    return facts.known


def _defined(loop: sg.Loop) -> frozenset[str]:
    return frozenset(dst for s in statements((loop,)) if (dst := defined(s)) is not None)


def _hold(
    loop: sg.Loop,
    among: Sequence[Sequence[Index]],
    known: Mapping[str, Fact],
    justified: Callable[[tuple[Index, ...]], Grounds | None],
) -> bool:
    """Whether tiles outside of one of these sides leave the loop's accumulators as they were."""
    grounds = [justified(tuple(side)) for side in among]
    visible = any(g is not None and g.visible for g in grounds)
    visited = visible or any(g is not None and g.visited for g in grounds)
    return None not in grounds and (not visited or _never_all_masked(loop, among, known, visible))


def _never_all_masked(
    loop: sg.Loop, among: Sequence[Sequence[Index]], known: Mapping[str, Fact], visible: bool
) -> bool:
    """Whether for each element of the other axes there is a place of the loop's where a condition of each side holds.

    The sides of affine conditions are `among`; `visible` is whether nothing that the loop accumulates may be hidden
    there. What is `known` is as for `_justified`.
    """
    last = add(loop.axis.extent, -1)
    places = [Index.const(0), Index.const(last)]
    for c in (c for side in among for c in side):
        if abs(c.slope(loop.axis)) == 1:  # where it is 0
            own = c + Index.axis(loop.axis).scaled(-c.slope(loop.axis))
            places.append(own if c.slope(loop.axis) < 0 else own.scaled(-1))
    for place in places:
        within = (place, Index.const(last) + place.scaled(-1))
        at = [[c.substitute({loop.axis: place}) for c in side] for side in among]
        holds = all(any(i.never_negative for i in side) for side in at)
        if holds and all(i.never_negative for i in within) and (not visible or _shows(loop, place, known)):
            return True
    return False


def _shows(loop: sg.Loop, place: Index, known: Mapping[str, Fact]) -> bool:
    """Whether what the loop accumulates is surely not hidden at a place of its axis.

    Of sums, too: the maximum that is taken off what they sum may be an earlier loop's, and hidden where all of it is.
    """
    facts = _Facts(dict(known), loop.axis, inside=_defined(loop), at=place)
    for s in loop.body:
        facts.statement(s)
        if isinstance(s, sg.Accumulate) and isinstance(s.kind, ReduceKind):
            fact = facts.of(s.src)
            hidden = isinstance(fact, float) and (s.kind is ReduceKind.MAX or fact == s.kind.identity)
            if hidden or fact in (Choice(), EndedMaximum()):
                return False
            facts.known[s.dst] = None
    return True


def check_ranges(kernel: sg.Kernel) -> None:
    """Checks that every range in the kernel is one that changes nothing; trusts nobody who made it.

    Raises:
        IllegalIRError: a tile outside of a range might change an accumulator, or store.
    """
    if not any(isinstance(s, sg.Loop) and s.skips for s in kernel.statements()):
        return

    def visit(body: Sequence[sg.Stmt], facts: _Facts) -> None:
        for s in body:
            if isinstance(s, sg.Loop):
                # Of the others `prism.sgraph.hidden` asks where what they accumulate is needed.
                if not s.all_or_none and not _hold(s, s.sides, facts.known, partial(_justified, s, known=facts.known)):
                    raise IllegalIRError(
                        f"the loop over {s.axis} skips tiles without {' and '.join(s.bounds)}",
                        where=f"kernel {kernel.name}",
                        why="they are not known to leave its accumulators as they are",
                        fix="this is a bug in prism; please report it",
                    )
                visit(s.body, _Facts(dict(facts.known)))
            facts.statement(s)

    visit(kernel.body, _Facts({}))


def assumed(kernels: Sequence[sg.Kernel]) -> tuple[str, ...]:
    """What the kernels' ranges rest on, a clause each: that what a finite mask hides is below what is visible."""

    def rests(body: Sequence[sg.Stmt], facts: _Facts) -> bool:
        for s in body:
            if isinstance(s, sg.Loop):
                grounds = [] if s.all_or_none else [_justified(s, side, facts.known) for side in s.sides]
                if any(g is not None and g.visible for g in grounds) or rests(s.body, _Facts(dict(facts.known))):
                    return True
            facts.statement(s)
        return False

    if any(rests(k.body, _Facts({})) for k in kernels):
        return (f"what is masked by a number up to {LOW:.0e} counts as masked: values beside it are above it",)
    return ()


# Finding them.

# The range of a loop, and its gap.
Ends: TypeAlias = "tuple[tuple[Index, ...], tuple[Index, ...]]"
# What stands for loops, by what that depends on.
Ranged: TypeAlias = "dict[object, tuple[sg.Loop, ...]]"


def narrow(kernel: sg.Kernel, ranged: Ranged | None = None) -> sg.Kernel:
    """The kernel with the range of every loop as narrow as its comparisons of positions let it be.

    At most one condition a loop and direction, or two of which either may hold, one of them the same in all programs:
    the one that the others follow from, else the first by its text. The kernel's loops have no ranges; `ranged` are
    those that were found for other kernels' loops, to which what is found is added. Most families of a kernel differ by
    the roles of axes outside of a loop, which is the same in all of them.

    A loop that has no range, as one accumulator sees what the mask hides from another, is several, each with a range,
    where all of them together visit no more.
    """
    every = kernel.statements()
    if not any(isinstance(s, sg.Pointwise) and s.op in COMPARISONS for s in every):
        return kernel
    # A condition bounds a loop along which it changes, and what changes there is made of positions along it.
    loops = {s.axis for s in every if isinstance(s, sg.Loop)}
    if not any(isinstance(s, sg.Position) and not loops.isdisjoint(s.index.axes()) for s in every):
        return kernel
    grid = frozenset(a for a, r in kernel.roles if isinstance(r, sg.Grid))
    split = frozenset(a for a, r in kernel.roles if isinstance(r, sg.Split))
    body = _narrowed(kernel.body, _Facts({}), grid, split, {} if ranged is None else ranged)
    return kernel if body == kernel.body else replace(kernel, body=body)


def _narrowed(
    body: Sequence[sg.Stmt], facts: _Facts, open_axes: frozenset[Axis], split: frozenset[Axis], ranged: Ranged
) -> tuple[sg.Stmt, ...]:
    made: list[sg.Stmt] = []
    for s in body:
        if isinstance(s, sg.Loop):
            inner = _narrowed(s.body, _Facts(dict(facts.known)), open_axes | {s.axis}, split, ranged)
            loop = sg.Loop(s.axis, inner)
            used = dict.fromkeys(v for x in statements(inner) for v in sources(x) if v in facts.known)
            key = loop, open_axes, s.axis in split, tuple((v, facts.known[v]) for v in used)
            found = ranged.get(key)
            if found is None:
                ends = _ends(loop, facts.known, open_axes)
                found = (sg.Loop(s.axis, inner, *ends),)
                if ends == ((), ()) and s.axis not in split:
                    found = _several(loop, facts.known, open_axes) or found
                ranged[key] = found
            made += found
        else:
            made.append(s)
        facts.statement(s)
    return tuple(made)


def _several(loop: sg.Loop, known: Mapping[str, Fact], open_axes: frozenset[Axis]) -> tuple[sg.Loop, ...]:
    """Loops with ranges that accumulate what a loop without one does; none where they visit more together."""
    if any(isinstance(s, sg.Store | sg.Scan) for s in statements(loop.body)):
        return ()
    apart = _apart_from_others(loop.body)
    if len(apart) < 2:
        return ()
    by: dict[Ends, frozenset[int]] = {}
    for of in apart:
        ends = _ends(_of(loop, of), known, open_axes)
        if ends == ((), ()):
            return ()
        by[ends] = by.get(ends, frozenset()) | of
    loops = [replace(_of(loop, of), range=ends[0], gap=ends[1]) for ends, of in by.items()]
    if sum(min(share(side) for side in each.sides) for each in loops) > TWICE:
        return ()
    taken = {name for s in statements(loop.body) if (name := defined(s)) is not None}
    made: list[sg.Loop] = []
    for n, each in enumerate(loops):
        inner = [s for s in statements(each.body) if not isinstance(s, sg.Accumulate) or s not in each.body]
        names = {d: free_name(d, taken) for s in inner if (d := defined(s)) is not None} if n else {}
        made.append(with_names(each, names, Holds.DEFINES, Holds.CHANGES, Holds.USES))
    return tuple(made)


def _apart_from_others(body: Sequence[sg.Stmt]) -> tuple[frozenset[int], ...]:
    """For each group of accumulators that need nothing of one another's, the places of what they are made by."""
    maker = {name: n for n, s in enumerate(body) for x in statements((s,)) if (name := defined(x)) is not None}
    needs: list[frozenset[int]] = []
    groups: list[frozenset[int]] = []
    for n, s in enumerate(body):
        used = {m for x in statements((s,)) for v in sources(x) if (m := maker.get(v, n)) < n}
        needs.append(frozenset({n}).union(*(needs[m] for m in used)))
        if isinstance(s, sg.Accumulate):
            sums = {m for m in needs[n] if isinstance(body[m], sg.Accumulate)}
            with_it = [g for g in groups if not sums.isdisjoint(g)]
            groups = [g for g in groups if g not in with_it] + [needs[n].union(*with_it)]
    return tuple(groups)


def _of(loop: sg.Loop, places: frozenset[int]) -> sg.Loop:
    return replace(loop, body=tuple(s for n, s in enumerate(loop.body) if n in places))


def _ends(loop: sg.Loop, known: Mapping[str, Fact], open_axes: frozenset[Axis]) -> Ends:
    """The loop's range, upper bounds of its axis first, and its gap."""
    if not any(isinstance(s, sg.Accumulate) for s in loop.body):
        return (), ()
    facts = _Facts(dict(known))
    for s in loop.body:
        facts.statement(s)
    asked: dict[Index, None] = {}
    for question in facts.asked:
        # What is masked may be where the comparison fails, or where it holds.
        for wanted in (question, negated(question)):
            condition = _over(wanted, open_axes | {loop.axis})
            if condition is not None and condition.axes() and not condition.never_negative:
                asked[condition] = None
    sought = _Sought(loop, tuple(asked), cache(partial(_justified, loop, known=known)))
    sides = [side for way in (-1, 1) if (side := sought.side(way))]
    # A loop that is bounded from both ends visits little as it is.
    kept = [*sides, *([gap] if len(sides) < 2 and (gap := sought.gap()) else [])]
    for way in (kept, *([side] for side in kept)) if len(kept) > 1 else (kept,):
        if _hold(loop, way, known, sought.justified):
            mixed = [side for side in way if len({sign(c.slope(loop.axis)) for c in side if c.slope(loop.axis)}) > 1]
            ends = dict.fromkeys(c for side in way for c in side if side not in mixed or not c.slope(loop.axis))
            return tuple(ends), tuple(c for side in mixed for c in side if c.slope(loop.axis))
    return (), ()


@dataclass(frozen=True, slots=True)
class _Sought:
    """Looks for the conditions that a loop's tiles may be visited under."""

    loop: sg.Loop
    asked: tuple[Index, ...]  # conditions that its comparisons ask for
    justified: Callable[[tuple[Index, ...]], Grounds | None]  # when nothing happens where some of them fail

    def side(self, way: int) -> tuple[Index, ...]:
        """Conditions of one direction, one of which has to hold: the tightest or a pair; or one of rows besides."""
        one_way = self._one_way(way)
        # Something may happen where either of two conditions holds, as under a prefix that all see.
        fixed = [c for c in one_way if c.axes() == {self.loop.axis}]
        pairs = [(a, b) for a in one_way[:MOST_PAIRED] if a not in fixed for b in fixed[:MOST_PAIRED]]
        for besides in ((), *self._everywhere()):
            found = self._tightest([(c,) for c in one_way], besides) or self._first(pairs, besides)
            if found:
                return found
            if not besides:
                some = one_way[:MOST_PAIRED]
                both = {h for a in some for b in some if (h := _above(a, b, self.loop.axis)) is not None}
                found = self._tightest([(c,) for c in sorted(both, key=str)], ())
                if found:
                    return found
        return ()

    def gap(self) -> tuple[Index, ...]:
        """A condition from above and one from below, one of which has to hold, one of them the same in all programs."""
        above, below = (self._one_way(way)[:MOST_PAIRED] for way in (-1, 1))
        fixed = {c for c in self.asked if c.axes() == {self.loop.axis}}
        pairs = [(a, b) for a in above for b in below if (a in fixed) != (b in fixed)]
        tried = ((), *self._everywhere())
        return next((found for besides in tried if (found := self._tightest(pairs, besides))), ())

    def _one_way(self, way: int) -> list[Index]:
        return sorted((c for c in self.asked if way * c.slope(self.loop.axis) > 0), key=str)

    def _everywhere(self) -> Sequence[tuple[Index, ...]]:
        """Conditions of rows that may see everything."""
        return [(c,) for c in sorted(self.asked, key=str) if not c.slope(self.loop.axis)][:MOST_PAIRED]

    def _first(self, among: Sequence[tuple[Index, ...]], besides: tuple[Index, ...]) -> tuple[Index, ...]:
        return next(((*p, *besides) for p in sorted(among, key=str) if self.justified((*p, *besides)) is not None), ())

    def _tightest(self, among: Sequence[tuple[Index, ...]], besides: tuple[Index, ...]) -> tuple[Index, ...]:
        """Of those that are justified the one that the others follow from, else the first."""
        mine = [p for p in among if self.justified((*p, *besides)) is not None]
        least = [
            p for p in mine if all(_follows(x, y, self.loop.axis) for o in mine for x, y in zip(o, p, strict=True))
        ]
        return next(((*p, *besides) for p in least or mine), ())


def _above(a: Index, b: Index, axis: Axis) -> Index | None:
    """What differs from a by a number and is at least b everywhere; None where that says nothing, or is not known."""
    apart = a + b.scaled(-1)
    if a == b or a.slope(axis) != b.slope(axis) or not is_static(apart.offset):
        return None
    least = int(apart.offset)
    for atom, c in apart.terms:
        if not isinstance(atom, Axis) or not is_static(atom.extent) or not is_static(c):
            return None
        least += min(0, int(c)) * (int(atom.extent) - 1)
    found = a + max(0, -least)
    return None if found.never_negative else found


def _over(index: Index, axes: frozenset[Axis]) -> Index | None:
    """The largest value of the index for each element of the axes; None where the sign of a coefficient is unknown."""
    total = Index((), index.offset)
    for axis, c in index.terms:
        if not isinstance(axis, Axis) or not sign(c):
            return None
        if axis in axes:
            total = total + Index(((axis, c),))
        elif sign(c) > 0:
            total = total + Index.const(mul(c, add(axis.extent, -1)))
    return total


SAMPLES = 16
"""Places of an axis that are looked at to tell how much a condition leaves."""


@lru_cache(maxsize=1024)
def share(condition: tuple[Index, ...]) -> float:
    """The share of the elements for which one of these holds, at a few of them; symbols stand at 1024."""
    axes = sorted({a for i in condition for a in i.axes()}, key=lambda a: a.name)
    symbols = {str(x): 1024 for i in condition for e in _extents(i) for x in getattr(e, "free_symbols", ())}

    def number(e: Extent) -> int:
        return evaluate(e, symbols)

    if len(axes) > 2 or any(not i.is_affine() for i in condition):
        return 1.0
    places = []
    for a in axes:
        n = number(a.extent)
        places.append([(2 * k + 1) * n // (2 * SAMPLES) for k in range(SAMPLES)] if n > SAMPLES else list(range(n)))
    lines = [([number(dict(i.terms).get(a, 0)) for a in axes], number(i.offset)) for i in condition]
    points = list(itertools.product(*places))
    holds = sum(any(sum(map(operator.mul, c, p)) + offset >= 0 for c, offset in lines) for p in points)
    return holds / len(points)


def _extents(index: Index) -> Iterator[Extent]:
    yield index.offset
    for atom, c in index.terms:
        yield c
        if isinstance(atom, Axis):
            yield atom.extent


SECTION = 512
"""Programs of a section, at least, where there are as many."""


def growing(kernel: sg.Kernel) -> tuple[Axis, ...]:
    """The grid axes along which programs get longer, in the order of the roles: programs count down along them.

    Handing out the longest first is Graham's LPT rule ("Bounds on multiprocessing timing anomalies", 1969): a launch
    ends at most a short program after it could, where in ascending order it may be a long one.

    A condition slope*j + c*i + ... >= 0 holds for more j as i grows where c > 0, and for fewer where c < 0, whatever
    the sign of the slope: an axis grows where no condition of any loop has it with c < 0, or an unknown sign.
    """
    conditions = _conditions(kernel)
    terms = [(axis, sign(c)) for condition in conditions for axis, c in condition.terms]
    more = {axis for axis, way in terms if way > 0}
    less = {axis for axis, way in terms if way <= 0}
    return tuple(a for a, role in kernel.roles if isinstance(role, sg.Grid) and a in more - less and a.extent != 1)


def ordered(kernel: sg.Kernel) -> bool:
    """Whether no program is longer than one that comes before it, where the grid counts down along `growing` axes.

    It is taken to hold where there is such an axis, also if lengths depend on others besides.
    """
    return bool(growing(kernel)) or not _conditions(kernel)


def _conditions(kernel: sg.Kernel) -> list[Index]:
    return [c for s in kernel.statements() if isinstance(s, sg.Loop) for c in (*s.range, *s.gap)]
