"""Which sGraph wins where: one search serves a range of shapes with a few sGraphs and a predicate for each.

The time of an sGraph at a shape is the least estimate over its feasible assignments (cost/shapes.py), so it is made of
many pieces: tiles are powers of two. Whoever wins by less than a tolerance is not told apart from the second, and the
answer is the few sGraphs that are within the tolerance of the best wherever they are named. How:

    one symbol     samples over the range, more of them between neighbours with different winners until those are
                   neighbours as integers: breakpoints are exact, and both sides of them have been evaluated
    several        samples over the box. An inequality between the symbolic costs of two sGraphs, without roundings,
                   where it parts the winners as well as anything (`m*n*(k + r) < k*r*(m + n)`); else a decision tree of
                   such inequalities and thresholds, of at most MAX_REGIONS; samples are added along its borders

Predicates are disjoint and cover the box. Where no sGraph is feasible (a tensor that 32-bit offsets cannot address)
there is nothing to win: such shapes fall to whichever region is simplest, and the launcher has to refuse them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy

from prism.cost.compiled_expr import compiled
from prism.cost.counts import SGraphCost, sgraph_cost
from prism.cost.device import MATRIX_OPERATION, Device
from prism.cost.shapes import Point, TimeModel, lattice, levels, middle, points
from prism.errors import UsageError
from prism.generate.dispatch_regions import (
    MAX_REGIONS,
    Array,
    Condition,
    Leaf,
    Losses,
    Splits,
    Tree,
    intervals,
    regions,
)
from prism.program.extents import symbol
from prism.program.nodes import SymbolRange
from prism.sgraph.nodes import SGraph

__all__ = ["TOLERANCE", "Winner", "dispatch_table", "points"]

TOLERANCE = 0.02
"""A gain below this share does not make a winner."""
LOOSEST = 0.16
"""Where the regions would be many, the tolerance doubles, up to this."""
STRAYS = 0.05
"""Of the shapes that are looked at over several symbols so many may lose more than the tolerance, along borders."""
# An sGraph that is nowhere on the first samples within this of the best is looked at no further.
FAR = 0.25
# Ranges of so many values are looked at value by value; boxes of so many shapes shape by shape.
EVERY_VALUE = 128
EVERY_SHAPE = 256
FIRST_SHAPES = 64
# New samples between neighbours with different winners, and rounds of them.
BETWEEN = 15
ROUNDS = 8
BORDER_SHAPES = 64
BORDER_ROUNDS = 3
# Pairs of sGraphs whose costs are compared symbolically: of so many that win most samples.
MAX_COMPARED = 5


@dataclass(frozen=True, slots=True)
class Winner:
    """An sGraph and where it wins."""

    place: int  # the sGraph's place in the sequence that was asked about
    sgraph: SGraph
    # Where, over the symbols of the extents; true when everywhere. Of a box's shapes exactly one winner's predicate
    # holds at each.
    predicate: sympy.Basic
    text: str  # the same to read: `512 <= seq <= 2047`
    # What it may lose to the best inside, as a share of the time. With one symbol it does nowhere on the samples, with
    # several at few of them (STRAYS), along the borders.
    tolerance: float
    loss: float  # what it does lose at most on the samples
    model: TimeModel = field(compare=False, repr=False)  # what estimated the times

    def holds(self, point: Point) -> bool:
        """Whether it is the winner at a shape of the box."""
        return _holds(self.predicate, point)


def _holds(predicate: sympy.Basic, point: Point) -> bool:
    if isinstance(predicate, sympy.Or):
        return any(_holds(p, point) for p in predicate.args)
    return bool(compiled(predicate)(point))


def dispatch_table(
    sgraphs: Sequence[SGraph],
    ranges: Mapping[str, SymbolRange],
    device: Device,
    tolerance: float = TOLERANCE,
) -> tuple[Winner, ...]:
    """The few sGraphs that win over the box of the ranges, each with where.

    Of equal sGraphs the earlier one wins; ranges of more symbols do no harm.

    Returns:
        the winners, disjoint and covering the box; ascending for one symbol. Empty for no sGraphs.

    Raises:
        UsageError: a symbol of the extents has no range, or a range is empty.
    """
    for name, r in sorted(ranges.items()):
        if not 1 <= r.low <= r.high:
            raise UsageError(f"the range [{r.low}, {r.high}]", where=name, fix="give 1 <= low <= high")
    if not sgraphs:
        return ()
    return _Dispatch(tuple(sgraphs), ranges, TimeModel(device), tolerance).table()


@dataclass(frozen=True, slots=True)
class _Dispatch:
    sgraphs: tuple[SGraph, ...]
    ranges: Mapping[str, SymbolRange]
    model: TimeModel
    tolerance: float

    def table(self) -> tuple[Winner, ...]:
        alike = self.model.alike(self.sgraphs)
        runners = tuple(n for n, first in enumerate(alike) if n == first)
        mentioned = self.model.extents(self.sgraphs)
        open_ = tuple(n for n in mentioned if n in self.ranges and self.ranges[n].low < self.ranges[n].high)
        if not open_ or len(runners) == 1:
            seconds = self._seconds(runners, [{n: r.hint for n, r in self.ranges.items()}])
            return (self._winner(runners[int(np.argmin(seconds[:, 0]))], [()], 0.0, self.tolerance),)
        return self._along(open_[0], runners) if len(open_) == 1 else self._across(open_, runners)

    def _seconds(self, runners: Sequence[int], shapes: Sequence[Point]) -> Array:
        # Symbols of one value only.
        closed = {n: r.low for n, r in self.ranges.items() if r.low == r.high}
        return self.model.seconds([self.sgraphs[n] for n in runners], [{**p, **closed} for p in shapes])

    def _near(self, runners: Sequence[int], shapes: Sequence[Point]) -> tuple[int, ...]:
        """Those that are somewhere near the best."""
        seconds = self._seconds(runners, shapes)
        near = Losses.of(seconds, FAR)
        somewhere: Any = (near.good & np.isfinite(seconds)).any(axis=1)
        return tuple(n for n, ok in zip(runners, somewhere.tolist(), strict=True) if ok) or tuple(runners[:1])

    def _winner(self, place: int, where: Sequence[tuple[sympy.Basic, ...]], loss: float, tolerance: float) -> Winner:
        predicate = sympy.Or(*(sympy.And(*conditions) for conditions in where))
        text = " or ".join(_text(c, len(where) > 1) for c in where)
        return Winner(place, self.sgraphs[place], predicate, text, tolerance, loss, self.model)

    # One symbol.

    def _along(self, name: str, runners: tuple[int, ...]) -> tuple[Winner, ...]:
        r = self.ranges[name]
        values: tuple[int, ...] = tuple(range(r.low, r.high + 1))
        if len(values) > EVERY_VALUE:
            runners = self._near(runners, [{name: v} for v in levels(r, 2)])
            powers = {1 << n for n in range(r.high.bit_length())}
            values = tuple(sorted({*levels(r, 4), *(p + 1 for p in powers if r.low <= p < r.high)}))
        seconds = self._seconds(runners, [{name: v} for v in values])
        tolerance = self.tolerance
        for _ in range(ROUNDS):
            losses = Losses.of(seconds, tolerance)
            runs = intervals(losses)
            while len(runs) > MAX_REGIONS and tolerance * 2 <= LOOSEST:
                tolerance *= 2
                losses = Losses.of(seconds, tolerance)
                runs = intervals(losses)
            new = [v for a, b in itertools.pairwise(runs) for v in _between(values[a.last], values[b.first])]
            if not new:
                break
            seconds = np.concatenate([seconds, self._seconds(runners, [{name: v} for v in new])], axis=1)
            every = np.array([*values, *new])
            order = np.argsort(every, kind="stable")
            values, seconds = tuple(every[order].tolist()), seconds[:, order]
        s = symbol(name)
        where: dict[int, list[tuple[sympy.Basic, ...]]] = {}
        worst: dict[int, float] = {}
        for run in runs:
            ends = []
            if run.first > 0:
                ends.append(sympy.Ge(s, values[run.first]))
            if run.last < len(values) - 1:
                # Up to the next one's first; they are neighbours, unless the rounds ran out.
                ends.append(sympy.Le(s, values[run.last + 1] - 1))
            where.setdefault(run.who, []).append(tuple(ends))
            lost = float(losses.relative[run.who, run.first : run.last + 1].max())
            worst[run.who] = max(worst.get(run.who, 0.0), lost)
        return tuple(self._winner(runners[who], w, worst[who], tolerance) for who, w in where.items())

    # Several symbols.

    def _across(self, names: tuple[str, ...], runners: tuple[int, ...]) -> tuple[Winner, ...]:
        box = {n: self.ranges[n] for n in names}
        count = math.prod(r.high - r.low + 1 for r in box.values())
        if count <= EVERY_SHAPE:
            spans = [range(r.low, r.high + 1) for r in box.values()]
            shapes = [dict(zip(names, p, strict=True)) for p in itertools.product(*spans)]
        else:
            runners = self._near(runners, lattice(box, FIRST_SHAPES))
            shapes = list(lattice(box, EVERY_SHAPE))
        seconds = self._seconds(runners, shapes)
        left = Losses.of(seconds, self.tolerance).undominated()
        runners, seconds = tuple(runners[n] for n in left), seconds[list(left)]
        given = self._inequalities(names, runners, seconds)
        for turn in range(BORDER_ROUNDS + 1):
            leaves, losses, tolerance = self._regions(names, shapes, seconds, given)
            new = _borders(names, shapes, leaves) if turn < BORDER_ROUNDS else []
            if not new:
                break
            seconds = np.concatenate([seconds, self._seconds(runners, new)], axis=1)
            shapes = [*shapes, *new]
        samples = {n: np.array([p[n] for p in shapes], dtype=np.int64) for n in names}
        found: list[Winner] = []
        for who in dict.fromkeys(leaf.who for leaf in leaves):
            mine = [leaf for leaf in leaves if leaf.who == who]
            lost = max(float(losses.relative[who, _inside(leaf, samples)].max(initial=0.0)) for leaf in mine)
            found.append(self._winner(runners[who], regions([leaf.path for leaf in mine]), lost, tolerance))
        return tuple(found)

    def _regions(
        self, names: Sequence[str], shapes: Sequence[Point], seconds: Array, given: Sequence[Condition]
    ) -> tuple[tuple[Leaf, ...], Losses, float]:
        samples = {n: np.array([p[n] for p in shapes], dtype=np.int64) for n in names}
        splits = Splits.of(samples, given)
        tolerance = self.tolerance
        found: list[tuple[float, tuple[Leaf, ...], Losses, float]] = []
        while True:
            losses = Losses.of(seconds, tolerance)
            leaves = Tree(splits, losses).leaves()
            strays = sum(int((losses.excess[leaf.who] > 0)[_inside(leaf, samples)].sum()) for leaf in leaves)
            share = strays / len(shapes)
            found.append((share, leaves, losses, tolerance))
            if share <= STRAYS or tolerance * 2 > LOOSEST:
                break
            tolerance *= 2
        # The first that keeps its promise is the last; if none does, the one with fewest strays.
        return (found[-1] if share <= STRAYS else min(found, key=lambda f: f[0]))[1:]

    def _inequalities(self, names: Sequence[str], runners: Sequence[int], seconds: Array) -> tuple[Condition, ...]:
        """Where one's symbolic cost is below another's, of the few that are needed most; each inequality once."""
        good = Losses.of(seconds, self.tolerance).good
        left = np.ones(good.shape[1], dtype=bool)
        chosen: list[int] = []
        while left.any() and len(chosen) < MAX_COMPARED:
            chosen.append(int(np.argmax((good & left).sum(axis=1))))
            left &= ~good[chosen[-1]]
        measures = [_measures(self.sgraphs[runners[n]]) for n in chosen]
        found: dict[Condition, None] = {}
        for a, b in itertools.combinations(measures, 2):
            for mine, other in zip(a, b, strict=True):
                c = _below(mine, other, names) if mine is not None and other is not None else None
                if c is not None:
                    found[c] = None
        return tuple(found)


def _text(conditions: Sequence[sympy.Basic], one_of_several: bool) -> str:
    if not conditions:
        return "everywhere"
    # Two bounds of one expression are read together.
    lows = {c.lhs: c for c in conditions if isinstance(c, sympy.Ge | sympy.Gt) and c.rhs.is_Integer}
    highs = {c.lhs: c for c in conditions if isinstance(c, sympy.Le) and c.rhs.is_Integer and c.lhs in lows}
    found: list[str] = []
    for c in conditions:
        if c in highs.values():
            low = lows[c.lhs]
            least, sign = low.rhs, "<" if isinstance(low, sympy.Gt) else "<="
            found.append(f"{c.lhs} = {least}" if (least, sign) == (c.rhs, "<=") else f"{least} {sign} {c}")
        elif c not in lows.values() or c.lhs not in highs:
            found.append(str(c))
    conjunction = " and ".join(found)
    return f"({conjunction})" if one_of_several and len(found) > 1 else conjunction


def _between(low: int, high: int) -> list[int]:
    step = (high - low) / (BETWEEN + 1)
    found = {low + round(step * n) for n in range(1, BETWEEN + 1)}
    return sorted(found - {low, high})


def _inside(leaf: Leaf, samples: Mapping[str, Array]) -> Array:
    inside = np.ones(next(iter(samples.values())).shape, dtype=bool)
    for c, holds in leaf.path:
        inside &= c.holds(samples) == holds
    return inside


def _borders(names: Sequence[str], shapes: Sequence[Point], leaves: Sequence[Leaf]) -> list[dict[str, int]]:
    """The middles of neighbouring samples, which differ in one symbol, that fall to different sGraphs."""
    samples = {n: np.array([p[n] for p in shapes], dtype=np.int64) for n in names}
    who = np.zeros(len(shapes), dtype=np.int64)
    for leaf in leaves:
        who[_inside(leaf, samples)] = leaf.who
    known = {tuple(p[n] for n in names) for p in shapes}
    found: dict[tuple[int, ...], None] = {}
    for place in range(len(names)):
        lines: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for n, p in enumerate(shapes):
            key = tuple(p[m] for m in names)
            lines.setdefault((*key[:place], *key[place + 1 :]), []).append((key[place], int(who[n])))
        for rest, line in sorted(lines.items()):
            for (low, a), (high, b) in itertools.pairwise(sorted(line)):
                if a != b and high - low > 1:
                    between = min(max(middle(low, high), low + 1), high - 1)
                    found[(*rest[:place], between, *rest[place:])] = None
    new = [k for k in found if k not in known]
    # Evenly over all borders.
    step = max(1, -(-len(new) // BORDER_SHAPES))
    return [dict(zip(names, k, strict=True)) for k in new[::step]]


# Costs as polynomials in the extents alone.


def _measures(sgraph: SGraph) -> tuple[sympy.Expr | None, ...]:
    """Work and distinct bytes without roundings, as far as no tile or part is in them."""
    cost = sgraph_cost(sgraph)
    dots = _sizes(cost, "dot_flops")
    rest = _sizes(cost, "flops")
    work = None if dots is None or rest is None else dots * sympy.Rational(MATRIX_OPERATION) + rest
    return (dots, work, _distinct_bytes(cost))


def _sizes(cost: SGraphCost, measure: str) -> sympy.Expr | None:
    return _polynomial(cost.total(measure).terms)


def _distinct_bytes(cost: SGraphCost) -> sympy.Expr | None:
    terms: dict[Any, None] = {}
    for n, k in enumerate(cost.kernels):
        for a in k.accesses:
            terms[n, a.tensor, a.store, a.own] = None
    return _polynomial([own for _, _, _, own in terms])


def _polynomial(terms: Sequence[Any]) -> sympy.Expr | None:
    if any(getattr(f, "kind", None) != "size" for m in terms for f in m.factors):
        return None
    return sympy.Add(*(sympy.Mul(m.coefficient, *(f.extent for f in m.factors)) for m in terms))


def _below(mine: sympy.Expr, other: sympy.Expr, names: Sequence[str]) -> Condition | None:
    """Where one polynomial is below another, with what is common to all terms taken out; None where one always is."""
    difference = sympy.expand(mine - other)
    symbols = [symbol(n) for n in names]
    if not difference.free_symbols or not difference.free_symbols <= set(symbols):
        return None
    if not difference.is_polynomial(*symbols):
        return None
    _, whole = sympy.Poly(difference, *symbols).primitive()
    terms = whole.terms()
    least = [min(powers[n] for powers, _ in terms) for n in range(len(symbols))]
    sides: dict[bool, list[sympy.Expr]] = {True: [], False: []}
    for powers, c in terms:
        factors = [s ** (p - q) for s, p, q in zip(symbols, powers, least, strict=True)]
        sides[bool(c > 0)].append(sympy.Mul(abs(c), *factors))
    if not sides[True] or not sides[False]:
        return None
    left, right = (sympy.factor(sympy.Add(*sides[key])) for key in (True, False))
    # A number stands on the right: the halves are the same, called the other way round.
    return Condition(right, left, True) if left.is_number else Condition(left, right)
