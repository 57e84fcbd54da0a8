"""What masks hide of what a kernel loads: elements that no use looks at, which need not be loaded.

A value is *needed* where a use looks at it. What is needed of a result is needed of its operands, lane by lane, and

    where(p, a, b)      needs a only where p holds, b only where it does not
    f*g, sum of f*g     needs f only where g is not 0
    f + g               needs f only where g is not -inf
    reductions          need what they reduce wherever their result is needed, along the whole of their axis
    all others          (stores, what loops carry, scans) need what they take everywhere

p being a predicate of positions. A value is 0, or -inf, outside of a predicate where a choice makes it so, and what is
made of such a value may be, too: 0*f = 0, exp(-inf) = 0. So what is needed of a load is a conjunction of *conditions*,
each a few affine indices of which one at least is not negative, over axes of the load itself. Under a causal mask that
is a half of a score's bias, of a softmax's argument, of a probability's gradient.

What is hidden is loaded as 0. A choice takes no part of what it does not choose, so there may be any operation between
it and the load. Between the load and a product with 0 (or an addition to -inf) there are only sums, choices and
products with numbers: they keep what is infinite infinite, so the product is 0 or NaN as it would have been.
Floating-point class: *masked values are not read*, as for loops with ranges (`prism.sgraph.ranges`): where the hidden
element itself is infinite or NaN, so would the product be, and is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from prism.errors import IllegalIRError
from prism.ir.kit import sources, statements
from prism.program.index import Axis, Index
from prism.program.nodes import ReduceKind, Tensor
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Grid,
    Kernel,
    Load,
    Loop,
    Pointwise,
    Position,
    Scan,
    Stmt,
    Store,
    TileReduce,
    value_axes,
)
from prism.sgraph.ranges import Absolute, Fact, negated, placed, share, sign

LINE = 64
"""Bytes that come together from memory: those of which none is needed are not loaded."""

WORTH = 0.9
"""Where more than this share of a load is needed, it is loaded as a whole."""

MOST = 8
"""Conditions of a predicate, and alternatives of a condition: of a longer one nothing is known."""

Condition: TypeAlias = tuple[Index, ...]
Needed: TypeAlias = frozenset[Condition]

EVERYWHERE: Needed = frozenset()

_ALL: tuple[float, str, Condition] = (1.0, "", ())


@dataclass(frozen=True, slots=True)
class _Use:
    """Where a value is needed."""

    chosen: Needed = EVERYWHERE  # the conditions under which a choice takes it
    counted: Needed = EVERYWHERE  # those outside of which it is multiplied by 0, or added to -inf

    def among(self, axes: frozenset[Axis]) -> _Use:
        """Of these, those over the axes alone."""
        return _Use(_among(self.chosen, axes), _among(self.counted, axes))


def _among(needed: Needed, axes: frozenset[Axis]) -> Needed:
    return frozenset(c for c in needed if all(i.axes() <= axes for i in c)) if needed else needed


def hidden(kernel: Kernel) -> Mapping[str, tuple[Condition, ...]]:
    """By name of what is loaded: conditions, all of which hold of each element that is needed; in order.

    Those are left out that a loop's range asks for, that the bounds of a tensor do, and that hide too little.
    """
    if not any(isinstance(s, Position) for s in kernel.statements()):
        return {}
    needs = _needed_of(kernel)
    if not needs:
        return {}
    made: dict[str, tuple[Condition, ...]] = {}
    for load, ranged in _loads(kernel.body, frozenset()):
        use = needs.get(load.dst, _Use())
        axes = frozenset(a for i in load.index for a in i.axes())
        wanted = (c for c in use.chosen | use.counted if all(i.axes() <= axes for i in c))
        kept = [c for c in wanted if ranged.isdisjoint(a for i in c for a in i.axes()) and share(c) <= WORTH]
        if kept:
            made[load.dst] = tuple(sorted(kept, key=lambda c: [str(i) for i in c]))
    return made


def check_needed(kernel: Kernel) -> None:
    """Checks that what loops leave out as a whole is not needed; trusts nobody who made their ranges.

    Raises:
        IllegalIRError: something is made of what such a loop accumulates where it visits nothing.
    """
    if not any(isinstance(s, Loop) and s.all_or_none for s in kernel.statements()):
        return
    needs = _needed_of(kernel)
    for loop in (s for s in kernel.statements() if isinstance(s, Loop) and s.all_or_none):
        if loop.range not in _asked_of(loop, needs):
            raise IllegalIRError(
                f"the loop over {loop.axis} visits nothing without {' or '.join(loop.bounds)}",
                where=f"kernel {kernel.name}",
                why="what it accumulates is not known to be looked at under that alone",
                fix="this is a bug in prism; please report it",
            )


def without_unneeded(kernel: Kernel) -> Kernel:
    """The kernel with loops that visit nothing in programs in which a mask hides all that they accumulate.

    As of scores that are masked and stored: of a causal square half of the programs look at none.
    """
    bare = any(isinstance(s, Loop) and not s.skips for s in kernel.statements())
    if not bare or not any(isinstance(s, Position) for s in kernel.statements()):
        return kernel
    needs = _needed_of(kernel)
    if not needs:
        return kernel
    grid = frozenset(a for a, r in kernel.roles if isinstance(r, Grid))

    def visit(body: Sequence[Stmt], known: frozenset[Axis], given: Sequence[Condition]) -> tuple[Stmt, ...]:
        made: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop):
                s = replace(s, body=visit(s.body, known | {s.axis}, (*given, *s.sides)))
                if not s.skips:
                    asked = (
                        c
                        for c in _asked_of(s, needs)
                        if all(i.axes() and i.axes() <= known and all(sign(n) for _, n in i.terms) for i in c)
                        # What loops around it ask for holds of every tile in which it is come to.
                        and not any(set(side) <= set(c) for side in given)
                    )
                    s = replace(
                        s, range=min(((share(c), str(c), c) for c in asked if share(c) <= WORTH), default=_ALL)[2]
                    )
            made.append(s)
        return tuple(made)

    body = visit(kernel.body, grid, ())
    return kernel if body == kernel.body else replace(kernel, body=body)


def _needed_of(kernel: Kernel) -> Mapping[str, _Use]:
    """Where values are needed, if any predicate of positions says something; see `_needs`."""
    predicates = _Predicates(placed(kernel))
    for s in kernel.statements():
        predicates.statement(s)
    return _needs(kernel, predicates) if predicates.found else {}


def _asked_of(loop: Loop, needs: Mapping[str, _Use]) -> Needed:
    """Conditions all of which hold wherever a choice takes something of what the loop accumulates."""
    if any(isinstance(s, Store | Scan) for s in statements(loop.body)):
        return EVERYWHERE
    made = [needs.get(s.dst, _Use()).chosen for s in loop.body if isinstance(s, Accumulate)]
    return frozenset.intersection(*made) if made else EVERYWHERE


def _loads(body: Sequence[Stmt], ranged: frozenset[Axis]) -> Iterator[tuple[Load, frozenset[Axis]]]:
    """The loads, with the axes that the ranges of the loops around them bound."""
    for s in body:
        if isinstance(s, Loop):
            yield from _loads(s.body, ranged | ({s.axis} if s.skips else frozenset()))
        elif isinstance(s, Load):
            yield s, ranged


def line(tensor: Tensor, index: Sequence[Index]) -> tuple[Axis, int] | None:
    """The axis along which a load's neighbours are neighbours in memory, and how many come together; None without."""
    if not index:
        return None
    axis = next((a for a, c in index[-1].terms if c == 1 and isinstance(a, Axis)), None)
    return None if axis is None else (axis, LINE // tensor.dtype.bytes)


# Predicates of positions, and what they make 0 or -inf.


@dataclass(slots=True)
class _Predicates:
    """What statements say of positions, in order."""

    facts: Mapping[str, Fact]  # what is known of values
    # By predicate, the conditions that are together the same as that it holds, and as that it does not.
    found: dict[str, tuple[Needed | None, Needed | None]] = field(default_factory=dict)
    # By value, conditions such that it is 0 where one of them does not hold.
    zero: dict[str, Needed] = field(default_factory=dict)
    low: dict[str, Needed] = field(default_factory=dict)  # the same of -inf

    def statement(self, s: Stmt) -> None:
        match s:
            case Pointwise(dst, op, args):
                self._pointwise(dst, op, args)
            case TileReduce(dst, ReduceKind.SUM, axis, src):
                self._note(self.zero, dst, self._without(self.zero.get(src, EVERYWHERE), axis))
            case Contract(dst, axis, lhs, rhs):
                both = self.zero.get(lhs, EVERYWHERE) | self.zero.get(rhs, EVERYWHERE)
                self._note(self.zero, dst, self._without(both, axis))

    @staticmethod
    def _without(needed: Needed, axis: Axis) -> Needed:
        return frozenset(c for c in needed if all(axis not in i.axes() for i in c))

    @staticmethod
    def _note(where: dict[str, Needed], name: str, needed: Needed) -> None:
        if needed:
            where[name] = needed

    def _pointwise(self, dst: str, op: str, args: Sequence[str | float]) -> None:
        made = self._predicate(op, args)
        if made != (None, None):
            self.found[dst] = made
            self._note(self.zero, dst, made[0] or EVERYWHERE)
            return
        zero = [self._of(self.zero, a, 0.0) for a in args]
        low = [self._of(self.low, a, -math.inf) for a in args]
        match op:
            case "where":
                for where, of in ((self.zero, zero), (self.low, low)):
                    self._note(where, dst, self._chosen(args[0], of[1], of[2]))
            case "mul":
                self._note(self.zero, dst, (zero[0] or EVERYWHERE) | (zero[1] or EVERYWHERE))
            case "add":
                self._note(self.low, dst, (low[0] or EVERYWHERE) | (low[1] or EVERYWHERE))
                self._note(self.zero, dst, (zero[0] or EVERYWHERE) & (zero[1] or EVERYWHERE))
            case "exp" | "sigmoid":
                self._note(self.zero, dst, low[0] or EVERYWHERE)
            case "neg" | "abs" | "sqrt":
                self._note(self.zero, dst, zero[0] or EVERYWHERE)

    @staticmethod
    def _of(where: Mapping[str, Needed], a: str | float, number: float) -> Needed | None:
        """The conditions outside of which an operand is that number; None where it is everywhere."""
        return where.get(a, EVERYWHERE) if isinstance(a, str) else None if a == number else EVERYWHERE

    def _chosen(self, p: str | float, one: Needed | None, other: Needed | None) -> Needed:
        """The conditions outside of which a choice is a number, from those of what it chooses between."""
        holds, fails = self.of(p)
        if one is None or other is None:
            # One of the two is that number everywhere.
            if one is None and other is None:
                return EVERYWHERE
            return (one or EVERYWHERE) | (holds or EVERYWHERE) if other is None else other | (fails or EVERYWHERE)
        return one & other

    def of(self, p: str | float) -> tuple[Needed | None, Needed | None]:
        """The conditions of a predicate, and of its opposite."""
        return self.found.get(p, (None, None)) if isinstance(p, str) else (None, None)

    def _predicate(self, op: str, args: Sequence[str | float]) -> tuple[Needed | None, Needed | None]:
        match op:
            case "not":
                return self.of(args[0])[::-1]
            case "and" | "or":
                (a, not_a), (b, not_b) = (self.of(x) for x in args)
                return (_both(a, b), _either(not_a, not_b)) if op == "and" else (_either(a, b), _both(not_a, not_b))
            case "lt" | "le" | "eq":
                lhs, rhs = (_whole(self.facts.get(x) if isinstance(x, str) else x) for x in args)
                return self._compared(op, lhs, rhs)
            case _:
                return None, None

    @staticmethod
    def _compared(op: str, a: Fact, b: Fact) -> tuple[Needed | None, Needed | None]:
        sides: tuple[list[Index], list[Index]]
        match a, b:
            case Absolute(Index() as i), Index() | float() if op != "eq":
                # |i| <= b is b - i >= 0 and b + i >= 0.
                sides = [_index(b) + i.scaled(-1), _index(b) + i], []
            case Index() | float(), Absolute(Index() as i) if op != "eq":
                sides = [], [i + _index(a).scaled(-1), i.scaled(-1) + _index(a).scaled(-1)]
            case Index() | float(), Index() | float():
                ahead = _index(b) + _index(a).scaled(-1)
                sides = ([ahead, ahead.scaled(-1)], []) if op == "eq" else ([ahead], [])
            case _:
                return None, None
        every, some = ([i + (-1 if op == "lt" else 0) for i in side] for side in sides)
        if some:
            return frozenset({tuple(some)}), frozenset((negated(i),) for i in some)
        return frozenset((i,) for i in every), frozenset({tuple(negated(i) for i in every)})


def _whole(x: Fact) -> Fact:
    """What is known of an integer; None of another number."""
    return x if not isinstance(x, int | float) or float(x).is_integer() else None


def _index(a: Index | float) -> Index:
    return a if isinstance(a, Index) else Index.const(int(a))


def _both(a: Needed | None, b: Needed | None) -> Needed | None:
    """What holds where both do: what is known of either is true, but not all of it."""
    if a is None or b is None:
        return None
    return a | b if len(a | b) <= MOST else None


def _either(a: Needed | None, b: Needed | None) -> Needed | None:
    if a is None or b is None:
        return None
    found = frozenset(tuple(dict.fromkeys((*x, *y))) for x in a for y in b)
    return found if len(found) <= MOST and all(len(c) <= MOST for c in found) else None


# Needs, from the uses backwards.


def _needs(kernel: Kernel, predicates: _Predicates) -> Mapping[str, _Use]:
    """Where each value is needed; what is not there is needed nowhere."""
    axes = {n: frozenset(a) for n, a in value_axes(kernel).items()}
    needs: dict[str, _Use] = {}

    def take(name: str | float, use: _Use) -> None:
        if not isinstance(name, str):
            return
        use = use.among(axes[name])
        old = needs.get(name)
        # Both uses' conditions: what one hides by a choice and the other by a product is hidden, and not by a choice.
        needs[name] = (
            use
            if old is None
            else _Use(old.chosen & use.chosen, (old.chosen | old.counted) & (use.chosen | use.counted))
        )

    for s in reversed(statements(kernel.body)):
        match s:
            case Pointwise(dst, op, args):
                _operands(op, args, needs.get(dst), predicates, take)
            case TileReduce(dst, ReduceKind(), axis, src) if not s.moments:
                take(src, _through(needs.get(dst), axis))
            case Contract(dst, axis, lhs, rhs):
                use = _through(needs.get(dst), axis)
                for one, other in ((lhs, rhs), (rhs, lhs)):
                    take(one, _Use(use.chosen, use.counted | predicates.zero.get(other, EVERYWHERE)))
            case Loop() | Load():
                pass
            case _:
                for name in sources(s):
                    if name in axes:
                        take(name, _Use())
    return needs


def _through(use: _Use | None, axis: Axis) -> _Use:
    """What is needed of what is reduced: a condition on its axis would be one on another's place."""
    if use is None:
        return _Use()
    return _Use(*(_Predicates._without(n, axis) for n in (use.chosen, use.counted)))


def _operands(
    op: str,
    args: Sequence[str | float],
    use: _Use | None,
    predicates: _Predicates,
    take: Callable[[str | float, _Use], None],
) -> None:
    use = use or _Use()
    if not (op in ("add", "neg", "where") or (op == "mul" and any(not isinstance(a, str) for a in args))):
        use = _Use(use.chosen)
    for n, a in enumerate(args):
        others = [b for m, b in enumerate(args) if m != n and isinstance(b, str)]
        match op:
            case "where" if n:
                take(a, _Use(use.chosen | (predicates.of(args[0])[n - 1] or EVERYWHERE), use.counted))
            case "mul" | "add":
                where = predicates.zero if op == "mul" else predicates.low
                take(a, _Use(use.chosen, use.counted.union(*(where.get(b, EVERYWHERE) for b in others))))
            case _:
                take(a, use)
