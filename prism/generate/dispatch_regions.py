"""Which of several alternatives to take where: regions of a box of shapes, from costs at samples of it.

Over one symbol: the fewest intervals in each of which one alternative is good enough at all samples, then the least
loss (dynamic programming over the samples, in order). Over more: a small decision tree. Its splits are inequalities
that are given, and thresholds of symbols and of their products; the split is taken that leaves least beyond the
tolerance on its two sides, a short inequality that was given before thresholds that are little better. A split that
mends little is not made: along a border that is no simple line some samples always lose more than the tolerance.

All arithmetic that decides is in whole numbers (millionths of a logarithm), so that the order of sums does not matter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import sympy

from prism.cost.compiled_expr import compiled
from prism.program.extents import symbol

Array: TypeAlias = "np.ndarray[Any, Any]"

# Losses count in millionths, up to this; what is beyond the tolerance counts as more than all losses together.
SCALE = 1_000_000
MOST = 3 * SCALE
BAD = 10**10
INTERVAL = 10**10
# A loss of so many tolerances counts as one of more.
WORST = 64
# A split must mend so many tolerances a sample, on average over all samples.
ENOUGH = 0.04
MAX_REGIONS = 8
# Thresholds of one expression, evenly over its values at the samples.
MAX_THRESHOLDS = 96
# Terms of an inequality that is preferred to a threshold.
SHORT = 4


@dataclass(frozen=True, slots=True)
class Losses:
    """How much slower than the best each alternative (row) is at each sample (column)."""

    loss: Array  # in millionths of the logarithm; 0 at samples where no alternative is feasible: nothing is to be lost
    excess: Array  # 0 within the tolerance, else how many times the tolerance is lost, up to a limit
    relative: Array  # time over the least time, less one

    def undominated(self) -> tuple[int, ...]:
        """Alternatives that no other matches or beats at all samples; of equals the first."""
        kept: list[int] = []
        # Whoever another beats has a greater sum.
        for n in np.argsort(self.loss.sum(axis=1), kind="stable").tolist():
            if not any((self.loss[m] <= self.loss[n]).all() for m in kept):
                kept.append(n)
        return tuple(sorted(kept))

    @staticmethod
    def of(seconds: Array, tolerance: float) -> Losses:
        """From times, infinite where infeasible."""
        least = seconds.min(axis=0)
        nowhere = ~np.isfinite(least)
        with np.errstate(invalid="ignore"):
            ratio = np.where(nowhere, 1.0, seconds / np.where(nowhere, 1.0, least))
        loss = np.minimum(np.rint(np.log(ratio) * SCALE), MOST).astype(np.int64)
        many = np.minimum(np.ceil((ratio - 1) / tolerance), WORST)
        return Losses(loss, np.where(ratio <= 1 + tolerance, 0, many).astype(np.int64), ratio - 1)

    @property
    def good(self) -> Array:
        """Whether it is within the tolerance."""
        result: Array = self.excess == 0
        return result


# One symbol.


@dataclass(frozen=True, slots=True)
class Interval:
    """Samples first..last, inclusive, for one alternative."""

    who: int
    first: int
    last: int


def intervals(losses: Losses) -> tuple[Interval, ...]:
    """The fewest intervals of the samples, which are in order, then the least loss; earlier alternatives first."""
    cost = losses.loss + BAD * 10 * losses.excess
    total = cost[:, 0].copy()
    # For each sample and alternative: which alternative the sample before has.
    before = np.zeros(cost.shape, dtype=np.int64)
    stay = np.arange(cost.shape[0])
    for n in range(1, cost.shape[1]):
        best = int(np.argmin(total))
        switch = total[best] + INTERVAL < total
        before[:, n] = np.where(switch, best, stay)
        total = np.where(switch, total[best] + INTERVAL, total) + cost[:, n]
    who = int(np.argmin(total))
    found: list[Interval] = []
    last = cost.shape[1] - 1
    for n in range(last, -1, -1):
        previous = int(before[who, n]) if n else -1
        if previous != who:
            found.append(Interval(who, n, last))
            who, last = previous, n - 1
    return tuple(reversed(found))


# Several symbols.


@dataclass(frozen=True, slots=True)
class Condition:
    """One way to halve the box: `left < right`, or not; `left <= right` where it is closed."""

    left: sympy.Expr  # an expression in the symbols
    right: sympy.Expr  # likewise, or a number
    closed: bool = False  # whether equals belong to the half where it holds

    def relation(self, holds: bool) -> sympy.Basic:
        """The condition, or its opposite."""
        if self.closed:
            return sympy.Le(self.left, self.right) if holds else sympy.Gt(self.left, self.right)
        return sympy.Lt(self.left, self.right) if holds else sympy.Ge(self.left, self.right)

    @property
    def is_threshold(self) -> bool:
        """Whether it bounds an expression by a number."""
        return self.closed and bool(self.right.is_Integer)

    def holds(self, samples: Mapping[str, Array]) -> Array:
        """Whether it holds, sample by sample."""
        # In floating point: products of many extents leave 64 bits.
        wide = {n: v.astype(np.float64) for n, v in samples.items()}
        left, right = (np.asarray(compiled(e)(wide)) for e in (self.left, self.right))
        result: Array = np.broadcast_to(
            left <= right if self.closed else left < right, next(iter(samples.values())).shape
        )
        return result


Path: TypeAlias = "tuple[tuple[Condition, bool], ...]"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A region, and who takes it."""

    path: Path
    who: int
    good: bool


@dataclass(frozen=True, slots=True)
class Splits:
    """The ways to halve a box that a tree chooses from, at given samples."""

    conditions: tuple[Condition, ...]  # one a way
    ranks: tuple[int, ...]  # how simple each is, simplest first; a short inequality that was given is the simplest
    masks: Array  # for each sample (row) and condition whether it holds, as 0 and 1

    @staticmethod
    def of(samples: Mapping[str, Array], given: Sequence[Condition]) -> Splits:
        """The given inequalities, and thresholds of symbols and of products of up to three."""
        found = [(c, 0 if _terms(c) <= SHORT else 4, c.holds(samples)) for c in given]
        names = sorted(samples)
        for size in range(1, min(len(names), 3) + 1):
            for some in itertools.combinations(names, size):
                if math.prod(int(samples[n].max()) for n in some) < 1 << 53:
                    found += [(c, size, mask) for c, mask in _thresholds(some, samples)]
        found = [f for f in found if f[2].any() and not f[2].all()]
        count = len(next(iter(samples.values())))
        masks = np.stack([m for _, _, m in found], axis=1) if found else np.zeros((count, 0))
        return Splits(tuple(c for c, _, _ in found), tuple(r for _, r, _ in found), masks.astype(np.float64))


def _thresholds(names: Sequence[str], samples: Mapping[str, Array]) -> Iterator[tuple[Condition, Array]]:
    values: Array = np.prod([samples[n] for n in names], axis=0)
    expression = sympy.Mul(*(symbol(n) for n in names))
    distinct = np.unique(values)
    step = -(-len(distinct) // MAX_THRESHOLDS)
    for low, high in zip(distinct[:-1:step].tolist(), distinct[1::step].tolist(), strict=True):
        most = roundest(low, high)
        yield Condition(expression, sympy.Integer(most), True), values <= most


@dataclass(frozen=True, slots=True)
class Tree:
    """Grows a decision tree."""

    splits: Splits  # what to choose from
    losses: Losses  # of the alternatives at the same samples

    def leaves(self) -> tuple[Leaf, ...]:
        """The regions, each with one alternative; as few different ones as greed finds."""
        # Whole numbers, in sums below 2**53: floating-point products are exact in any order.
        cost = (self.losses.loss + BAD * self.losses.excess).astype(np.float64)
        return tuple(_merged(self._settled(self._grown(cost))))

    def _grown(self, cost: Array) -> list[tuple[Path, Array]]:
        """Regions with their samples: the one that loses most is halved, as long as that mends enough."""
        grown: list[tuple[Path, Array]] = [((), np.ones(cost.shape[1], dtype=bool))]
        final: set[Path] = set()
        enough = BAD * max(1.0, ENOUGH * cost.shape[1])
        while len(grown) < MAX_REGIONS:
            lost = [0.0 if path in final else float((cost @ inside).min()) for path, inside in grown]
            worst = max(range(len(grown)), key=lambda n: (lost[n], -n))
            path, inside = grown[worst]
            if lost[worst] < BAD:
                break
            best = self._best(cost * inside, inside, enough)
            if best is None:
                final.add(path)
                continue
            condition, mask = self.splits.conditions[best], self.splits.masks[:, best] > 0
            halves = [((*path, (condition, side)), inside & (mask == side)) for side in (True, False)]
            grown[worst : worst + 1] = halves
        return grown

    def _best(self, cost: Array, inside: Array, enough: float) -> int | None:
        masks = self.splits.masks
        held = inside.astype(np.float64) @ masks
        halves = (held > 0) & (held < inside.sum())
        left = cost @ masks
        total = left.min(axis=0) + (cost.sum(axis=1)[:, None] - left).min(axis=0)
        halves &= total <= float(cost.sum(axis=1).min()) - enough
        if not halves.any():
            return None
        # What is nearly as good counts as good: then simplicity decides, then the loss.
        least = total[halves].min()
        order = np.lexsort((total, np.array(self.splits.ranks), (total - least) // enough, ~halves))
        return int(order[0])

    def _settled(self, raw: Sequence[tuple[Path, Array]]) -> list[Leaf]:
        good = np.stack([self.losses.good[:, inside].all(axis=1) for _, inside in raw], axis=1)
        loss = np.stack([self.losses.loss[:, inside].sum(axis=1) for _, inside in raw], axis=1)
        sizes = np.array([int(inside.sum()) for _, inside in raw])
        who: dict[int, int] = {}
        for n in np.flatnonzero(~good.any(axis=0)).tolist():
            # Nobody is good enough throughout: who is beyond the tolerance least.
            beyond = self.losses.excess[:, raw[n][1]].sum(axis=1)
            who[n] = min(range(len(beyond)), key=lambda s: (int(beyond[s]), int(loss[s, n]), s))
        while len(who) < len(raw):
            left = [n for n in range(len(raw)) if n not in who]
            gain = (good[:, left] * sizes[left]).sum(axis=1)
            lost = (good[:, left] * loss[:, left]).sum(axis=1)
            best = min(range(len(gain)), key=lambda s: (-int(gain[s]), int(lost[s]), s))
            who |= {n: best for n in left if good[best, n]}
        return [Leaf(path, who[n], bool(good[who[n], n])) for n, (path, _) in enumerate(raw)]


def _terms(c: Condition) -> int:
    return sum(len(sympy.Add.make_args(sympy.expand(e))) for e in (c.left, c.right))


def _merged(leaves: list[Leaf]) -> list[Leaf]:
    """Two halves of one region that the same alternative takes are one region."""
    while True:
        for n, (a, b) in enumerate(itertools.pairwise(leaves)):
            halves = a.path[:-1] == b.path[:-1] and a.path and b.path and a.path[-1][0] == b.path[-1][0]
            if halves and a.who == b.who:
                leaves[n : n + 2] = [Leaf(a.path[:-1], a.who, a.good and b.good)]
                break
        else:
            return leaves


def roundest(low: int, high: int) -> int:
    """Of the integers from low to below high the one that the highest power of two divides; the least of those.

    Times jump where a tile is full: right above such numbers.
    """
    for bits in range(high.bit_length(), -1, -1):
        least = -(-low >> bits) << bits
        if least < high:
            return least
    return low


def regions(paths: Sequence[Path]) -> tuple[tuple[sympy.Basic, ...], ...]:
    """The conditions of the paths' regions; those that only a threshold of one expression parts are one."""
    boxes = [_Box.of(p) for p in paths]
    while True:
        for a, b in itertools.permutations(boxes, 2):
            both = a.merged(b)
            if both is not None:
                boxes[boxes.index(a)] = both
                boxes.remove(b)
                break
        else:
            return tuple(box.conditions for box in boxes)


@dataclass(frozen=True, slots=True)
class _Box:
    """Where expressions are above a number and at most another, and other inequalities hold."""

    bounds: Mapping[sympy.Expr, tuple[int, int | None]]
    others: tuple[sympy.Basic, ...]

    @staticmethod
    def of(path: Path) -> _Box:
        bounds: dict[sympy.Expr, tuple[int, int | None]] = {}
        others: dict[sympy.Basic, None] = {}
        for c, holds in path:
            if not c.is_threshold:
                others[c.relation(holds)] = None
                continue
            low, high = bounds.get(c.left, (0, None))
            t = int(c.right)
            bounds[c.left] = (low, t if high is None else min(t, high)) if holds else (max(t, low), high)
        return _Box(bounds, tuple(others))

    def merged(self, above: _Box) -> _Box | None:
        """The two as one, where they differ by one expression, for which the other begins where this one ends."""
        if set(self.others) != set(above.others):
            return None
        every = [*self.bounds, *(e for e in above.bounds if e not in self.bounds)]
        differ = [e for e in every if self.bounds.get(e, (0, None)) != above.bounds.get(e, (0, None))]
        if len(differ) != 1:
            return None
        (low, stop), (start, high) = self.bounds.get(differ[0], (0, None)), above.bounds.get(differ[0], (0, None))
        if stop != start:
            return None
        merged = {**self.bounds, differ[0]: (low, high)}
        return _Box({e: b for e, b in merged.items() if b != (0, None)}, self.others)

    @property
    def conditions(self) -> tuple[sympy.Basic, ...]:
        """As relations: the inequalities, then the bounds."""
        found = list(self.others)
        for e, (low, high) in self.bounds.items():
            found += [sympy.Gt(e, low)] if low else []
            found += [sympy.Le(e, high)] if high is not None else []
        return tuple(found)
