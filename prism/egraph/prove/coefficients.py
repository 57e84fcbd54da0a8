"""Weights of two programs read alike: what is computed from weights alone is a constant, and compared by its values.

In a normal form, what a term takes from weights (its factors that read no input, summed over the axes that only they
have) is its coefficient; terms that are alike otherwise have one, the sum of theirs. So `(2*x)@W` has the coefficient
`2*W[k, n]` where `x@V` has `V[k, n]`, a merged LoRA has `V` where the other has `W + s*A@B`, and a fused projection is
read at `V[k, n + 16]`. A coefficient is a function of axes: how its array lies in memory does not matter.

All elements are compared. Where the values are equal the candidate's expression is replaced by the reference's, and the
rest is left to the prover. Where a program stores what the other computes, they may differ by as much as computing it
rounds, in the type in which it is stored; where both compute, by as much as the stored arrays may be rounded that only
one of them has. Each reading is said with the verdict. Arrays that both store are equal or they are not, and one that
has the other's elements is no rounded one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeGuard

import numpy as np

from prism.egraph.prove.matching import COARSE, Weight
from prism.egraph.prove.normal_form import Unfit, normal_form
from prism.program.build import add, const, mul, neg
from prism.program.constants import rounded_constants, simplest_between
from prism.program.evaluate import evaluate_expr
from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Const, DType, Expr, Map, Position, Read, Reduce, ReduceKind, free_axes, walk
from prism.program.ops import BOOLEAN
from prism.program.pretty import expr_text
from prism.program.refinement import bounds
from prism.program.transform import canonical, flat, least_instance, rename_free, replaced, substitute, with_children

# Elements of a coefficient, and products of which it is the sum, up to which it is evaluated.
MAX_ELEMENTS = 1 << 25
MAX_WORK = 1 << 36
# Numerator times denominator of a factor between two arrays, or of its square.
_SIMPLE = 1 << 16
# Characters of an expression in a verdict.
_SHOWN = 60
_FLOAT32 = DType.FLOAT32.roundoff
# What is as near as this is one number, computed in float64 in two ways.
_SAME = 2.0**-46
# Roundings that an array may have behind it which is stored, and computed with: of coarse types, and of others.
_FEW = 1.5
_SOME = 8.0
# The rounding of the smallest numbers of float16.
_SUBNORMAL = 2.0**-25


@dataclass(frozen=True, slots=True)
class Alike:
    """Expressions with their weights as they are read."""

    left: tuple[Expr, ...]  # of the reference
    right: tuple[Expr, ...]  # of the candidate
    said: tuple[str, ...] = ()  # what was read as what, a clause each


def stored_alike(left: Sequence[Expr], right: Sequence[Expr], weights: Mapping[str, Weight]) -> Alike:
    """Both lists, the candidate's reads of weights as the reference has them: transposed, sliced or stacked.

    Masks that are stored become the predicates of positions that one of the two computes.
    """
    table = _Table(weights)
    masks = _Table(weights)
    for e in {x: None for expr in (*left, *right) for x in walk(expr) if isinstance(x, Map) and x.op in BOOLEAN}:
        if free_axes(e) and not any(isinstance(x, Read) for x in walk(e)):
            masks.of(e)
    masks.learning = False

    def computed(e: Expr) -> Expr:
        if not _within(e, weights) or not np.isin(weights[e.tensor].array, (0.0, 1.0)).all():
            return e
        found = masks.of(e)
        if found == e:
            opposite = masks.of(add(const(1.0), neg(e)))
            found = e if any(isinstance(x, Read) for x in walk(opposite)) else Map("not", (opposite,))
        return found

    sides: list[tuple[Expr, ...]] = []
    for side in (replaced(left, computed), replaced(right, computed)):
        sides.append(tuple(replaced(side, lambda e: table.of(e) if _within(e, weights) else e)))
        table.learning = False
    return Alike(sides[0], sides[1], tuple(dict.fromkeys((*masks.said, *table.said))))


def _within(e: Expr, weights: Mapping[str, Weight]) -> TypeGuard[Read]:
    """Whether it is an element of a weight, and there is one wherever it is read."""
    if not isinstance(e, Read) or e.tensor not in weights:
        return False
    limits = [bounds(i) for i in e.index]
    extents = weights[e.tensor].array.shape
    return all(x is not None and x[0] >= 0 and x[1] < n for x, n in zip(limits, extents, strict=True))


def read_alike(
    left: Sequence[Expr],
    right: Sequence[Expr],
    weights: Mapping[str, Weight],
    rounded: Mapping[str, float],
    sharp: bool = False,
) -> Alike | None:
    """Both lists with the candidate's coefficients as the reference has them; None where one has no normal form.

    `rounded` are weights that may be rounded values of the other program's, with the unit roundoff of their type;
    `sharp` is whether what both programs compute is equal or not, however their arrays may be rounded.
    """
    try:
        forms = [[normal_form(e) for e in side] for side in (left, right)]
    except Unfit:
        return None
    numbers = {abs(x.value) for e in left for x in walk(e) if isinstance(x, Const) and x.value not in (0, 1, -1)}
    multiples = tuple(sorted(c for c in numbers if math.isfinite(c)))
    table = _Table(weights, rounded=rounded, multiples=multiples, sharp=sharp)
    ours = _Side(table, weights)
    one = [canonical(ours.of(e)) for e in forms[0]]
    table.learning = False
    theirs = _Side(table, weights)
    other = [canonical(theirs.of(e)) for e in forms[1]]
    return Alike(tuple(one), tuple(other), tuple(dict.fromkeys(table.said)))


@dataclass(slots=True)
class _Coefficient:
    """What is computed from weights alone."""

    expr: Expr  # how
    axes: tuple[Axis, ...]  # the axes that it depends on, by name
    array: np.ndarray  # its values over them
    size: np.ndarray  # for each element, the sum of the sizes of what is added up for it
    terms: np.ndarray  # the same, a product of two arrays counting as one
    scale: tuple[Expr, ...]  # its factors that are numbers
    stored: bool  # whether nothing else is computed: it is an element of an array
    roundings: float  # how many roundings it takes to compute it, but for its scale
    leaves: frozenset[str]  # the weights that it is computed from
    numbers: frozenset[float]  # constants in it that may have been rounded to float32


@dataclass(slots=True)
class _Table:
    """The reference's coefficients."""

    weights: Mapping[str, Weight]  # of both
    # The weights that may be rounded values of the other program's, with the unit roundoff of their type.
    rounded: Mapping[str, float] = field(default_factory=dict)
    # Numbers that the reference has, which are tried first where one is a multiple of another; None where only what is
    # equal counts.
    multiples: tuple[float, ...] | None = None
    learning: bool = True  # whether coefficients are the reference's
    sharp: bool = False  # whether what both compute has to be equal
    said: list[str] = field(default_factory=list)  # the readings so far
    _known: dict[tuple[str, ...], list[_Coefficient]] = field(default_factory=dict)
    _done: dict[Expr, Expr] = field(default_factory=dict)
    _sizes: dict[str, np.ndarray] = field(default_factory=dict)

    def of(self, e: Expr) -> Expr:
        """The expression as it is read; the same where it is like no other."""
        e = canonical(e)
        found = self._done.get(e)
        if found is None:
            found = self._done[e] = self._of(e)
        return found

    def _of(self, e: Expr) -> Expr:
        made = self._evaluated(e)
        if made is None:
            return e
        if not made.array.any():
            self._say(e, const(0.0), 0.0, made)
            return const(0.0)
        key = tuple(sorted(str(a.extent) for a in made.axes))
        others = self._known.setdefault(key, [])
        best: tuple[float, Expr] | None = None
        for other in others:
            for names in _matchings(other.axes, made.axes):
                apart = self._apart(other, made, names)
                if apart is not None and (best is None or apart < best[0]):
                    best = apart, substitute(other.expr, {a: Index.axis(b) for a, b in names.items()})
                if best is not None and best[0] == 0.0:
                    break
        if best is None and not self.learning and self.multiples is not None:
            best = self._multiple(made, others, self.multiples)
        if best is not None and (best[0] == 0.0 or not self.learning):
            self._say(e, best[1], best[0], made)
            return best[1]
        if self.learning:
            others.append(made)
        return e

    def _multiple(
        self, made: _Coefficient, others: Sequence[_Coefficient], numbers: Sequence[float]
    ) -> tuple[float, Expr] | None:
        """How far it is from a simple multiple of another, and that."""
        top = int(np.abs(made.array).argmax())
        for other in others:
            for names in _matchings(other.axes, made.axes):
                order = [next(n for n, x in enumerate(other.axes) if names[x] == y) for y in made.axes]
                one = other.array.transpose(order).reshape(-1)
                if one[top] == 0:
                    continue
                unit = max((self.weights[n].unit for n in made.leaves | other.leaves), default=0.0)
                times = _simple(float(made.array.reshape(-1)[top]) / float(one[top]), unit, numbers)
                if times is None or times == 1.0:
                    continue
                expr = mul(const(times), substitute(other.expr, {a: Index.axis(b) for a, b in names.items()}))
                scaled = replace(
                    other,
                    expr=expr,
                    array=other.array * times,
                    size=other.size * abs(times),
                    terms=other.terms * abs(times),
                    scale=(const(times), *other.scale),
                )
                apart = self._apart(scaled, made, names)
                if apart is not None:
                    return apart, expr
        return None

    def _evaluated(self, e: Expr) -> _Coefficient | None:
        """Its values; None where they are not worth comparing, or too many."""
        if not free_axes(e) and not any(isinstance(x, Read) for x in walk(e)):
            return None
        axes = tuple(sorted(free_axes(e), key=lambda a: a.name))
        if not all(is_static(a.extent) for x in walk(e) for a in (*free_axes(x), *_bound(x))):
            return None
        elements = math.prod(int(a.extent) for a in axes)
        work = elements * max((_summed(x) for x in walk(e)), default=1)
        if elements > MAX_ELEMENTS or work > MAX_WORK:
            return None
        arrays = {x.tensor: self.weights[x.tensor].array for x in walk(e) if isinstance(x, Read)}
        array = evaluate_expr(e, arrays, {}, axes)
        if not np.isfinite(array).all():
            return None
        size = array if isinstance(e, Read | Position) else evaluate_expr(_sizes_of(e), arrays, {}, axes)
        factors = flat(e, "mul")
        scale = tuple(f for f in factors if not free_axes(f) and not any(isinstance(x, Read) for x in walk(f)))
        rest = [f for f in factors if f not in scale]
        stored = len(rest) == 1 and isinstance(rest[0], Read)
        roundings = max(len(rest) - 1, 0) + sum(map(_roundings, rest))
        numbers = frozenset(rounded_constants([e], ()))
        parts = list(_added(e))
        terms = sum(np.abs(evaluate_expr(p, arrays, {}, axes)) for p in parts) if len(parts) > 1 else np.abs(array)
        leaves = frozenset(arrays)
        return _Coefficient(e, axes, array, np.abs(size), np.asarray(terms), scale, stored, roundings, leaves, numbers)

    def _apart(self, a: _Coefficient, b: _Coefficient, names: Mapping[Axis, Axis]) -> float | None:
        """How many units in the last place the two are apart at most; None where rounding does not explain it."""
        order = [next(n for n, x in enumerate(a.axes) if names[x] == y) for y in b.axes]
        one, other = a.array.transpose(order), b.array
        step = max(1, other.size // 64)
        allowed, coarse = self._allowed(a, b)
        halves = {self.weights[n].dtype for c in (a, b) if c.stored for n in c.leaves if n in self.rounded}
        least = _SUBNORMAL if DType.FLOAT16 in halves and coarse else 0.0
        sizes, terms = a.size.transpose(order), a.terms.transpose(order)
        for part in (slice(None, None, step), slice(None)):
            # A few elements tell most apart.
            some = [x.reshape(-1)[part] for x in (one, other, sizes, b.size, terms, b.terms)]
            gap = np.abs(some[0] - some[1])
            size = np.maximum(some[2], some[3])
            if (gap > allowed * size + coarse * np.maximum(some[4], some[5]) + least).any():
                return None
        far = float((gap[gap > 0] / size[gap > 0]).max(initial=0.0))
        return 0.0 if far <= _SAME else far

    def _allowed(self, a: _Coefficient, b: _Coefficient) -> tuple[float, float]:
        """How far the two may be apart, for each unit of their sizes, and of their terms.

        What is stored in a coarse type is computed, and added up, in float32, and rounded where it is stored.
        """
        stored = [c for c in (a, b) if c.stored]
        scaled = a.scale != b.scale
        units = [max((self.rounded.get(n, 0.0) for n in c.leaves), default=0.0) for c in stored]
        own = [u for n in a.leaves ^ b.leaves if (u := self.rounded.get(n, 0.0))]
        roundings = a.roundings + b.roundings + (scaled and not _exact(a.scale, b.scale))
        computing = 2.0**-50 * (1 + roundings) + len(a.numbers ^ b.numbers) * _FLOAT32
        match units:
            case [one, other] if not scaled:
                kinds = {self.weights[n].dtype for n in a.leaves | b.leaves}
                return max(one, other) if len(kinds) == 2 else 0.0, 0.0
            case [_, *_]:
                unit = max(units)
                if unit > COARSE:
                    return roundings * _FLOAT32 + computing, min(2.0, roundings) * unit
                return (roundings * unit + sum(own) - unit + computing if unit else computing), 0.0
        if self.sharp:
            return computing, 0.0
        return sum(u * (_FEW if u > COARSE else _SOME) for u in own) + computing, 0.0

    def _say(self, e: Expr, read: Expr, apart: float, made: _Coefficient) -> None:
        if e == read or not any(isinstance(x, Read) for x in walk(e)):
            return
        types = {w.unit: w.dtype.value for n, w in self.weights.items() if n in made.leaves and w.unit}
        unit = max(types, default=_FLOAT32)
        near = f" (to within {apart / (2 * unit):.2g} ulp of {types.get(unit, 'float32')})" if apart else ""
        # A factor that both have says nothing.
        ours, theirs = flat(e, "mul"), flat(read, "mul")
        for c in [f for f in ours if not any(isinstance(x, Read) for x in walk(f))]:
            if c in theirs and len(ours) > 1 and len(theirs) > 1:
                ours.remove(c)
                theirs.remove(c)
        self.said.append(f"{self._text(mul(*ours))} read as {self._text(mul(*theirs))}{near}")

    def _text(self, e: Expr) -> str:
        """The expression, or what it is computed from where it is long."""
        text = expr_text(e)
        if len(text) <= _SHOWN:
            return text
        names = dict.fromkeys(x.tensor for x in walk(e) if isinstance(x, Read))
        return f"a constant computed from {', '.join(names)}" if names else "a mask"


@dataclass(slots=True)
class _Side:
    """Replaces the coefficients of one program's expressions."""

    table: _Table
    weights: Mapping[str, Weight]
    _done: dict[Expr, Expr] = field(default_factory=dict)
    _closed: dict[int, tuple[Expr, bool]] = field(default_factory=dict)

    def of(self, e: Expr) -> Expr:
        """The expression, terms that are alike gathered, its coefficients as they are read."""
        known = self._done.get(e)
        if known is None:
            known = self._done[e] = self._of(e)
        return known

    def _of(self, e: Expr) -> Expr:
        if self.closed(e):
            return self._constant(e)
        match e:
            case Map("add" | "mul" | "neg", _) | Reduce(ReduceKind.SUM, _, _):
                return self._sum(e)
            case Map("where", (p, a, b)) if self.closed(p):
                return self._choice(p, self.of(a), self.of(b))
        return with_children(e, map(self.of, e.children))

    def closed(self, e: Expr) -> bool:
        """Whether it reads weights alone, or nothing."""
        known = self._closed.get(id(e))
        if known is None:
            for x in walk(e):
                if id(x) not in self._closed:
                    here = x.tensor in self.weights if isinstance(x, Read) else True
                    self._closed[id(x)] = x, here and all(self._closed[id(c)][1] for c in x.children)
            known = self._closed[id(e)]
        return known[1]

    def _constant(self, e: Expr) -> Expr:
        return e if isinstance(e, Const) else self.table.of(e)

    def _choice(self, p: Expr, a: Expr, b: Expr) -> Expr:
        """A choice by a mask, or by the opposite mask where the reference has that one."""
        read = self._constant(p)
        if read == canonical(p):
            other = add(const(1.0), neg(p))
            opposite = self._constant(other)
            if opposite != canonical(other):
                return Map("where", (opposite, b, a))
        return Map("where", (read, a, b))

    def _sum(self, e: Expr) -> Expr:
        """Terms that differ by their coefficients alone made one."""
        groups: dict[tuple[tuple[Axis, ...], tuple[Expr, ...]], list[Expr]] = {}
        for bound, factors in _terms(e):
            open_ones = [self.of(f) for f in factors if not self.closed(f)]
            coefficient = [f for f in factors if self.closed(f)]
            mine = [a for a in bound if any(a in free_axes(f) for f in open_ones)]
            total = mul(*coefficient) if coefficient else const(1.0)
            for axis in bound:
                if axis not in mine:
                    total = Reduce(ReduceKind.SUM, axis, total)
            key, total = _keyed(mine, open_ones, total)
            groups.setdefault(key, []).append(total)
        parts: list[Expr] = []
        for (axes, rest), totals in groups.items():
            read = self._constant(_gathered(totals))
            if read == const(0.0):
                continue
            body = mul(*([] if read == const(1.0) and rest else [read]), *rest)
            for axis in reversed(axes):
                body = Reduce(ReduceKind.SUM, axis, body)
            parts.append(body)
        return add(*parts) if parts else const(0.0)


def _added(e: Expr) -> Iterator[Expr]:
    """What a sum at the top adds up."""
    if isinstance(e, Map) and e.op == "add":
        for a in e.args:
            yield from _added(a)
    else:
        yield e


def _terms(e: Expr) -> Iterator[tuple[list[Axis], list[Expr]]]:
    """The terms of a sum: the axes that each is summed over, and its factors."""
    match e:
        case Map("add", args):
            for a in args:
                yield from _terms(a)
        case Map("neg", (a,)):
            for bound, factors in _terms(a):
                yield bound, [const(-1.0), *factors]
        case Reduce(ReduceKind.SUM, axis, body):
            for bound, factors in _terms(body):
                yield [axis, *bound], factors
        case Map("mul", _):
            factors = flat(e, "mul")
            sums = [f for f in factors if _is_sum(f)]
            if len(sums) != 1:
                yield [], factors
                return
            rest = [f for f in factors if f is not sums[0]]
            taken = frozenset(a for f in rest for a in free_axes(f))
            for bound, inner in _terms(sums[0]):
                used = [*taken, *bound, *(a for f in inner for a in free_axes(f))]
                names: dict[Axis, Axis] = {}
                for axis in bound:
                    if axis in taken:
                        names[axis] = least_instance(axis.extent, used)
                        used.append(names[axis])
                axes = [names.get(a, a) for a in bound]
                yield axes, [*rest, *(rename_free(f, names) for f in inner)]
        case _:
            yield [], [e]


def _is_sum(e: Expr) -> bool:
    match e:
        case Map("add", _) | Reduce(ReduceKind.SUM, _, _):
            # Large numbers are written as sums.
            return any(isinstance(x, Read) for x in walk(e))
    return False


def _keyed(
    bound: list[Axis], factors: list[Expr], total: Expr
) -> tuple[tuple[tuple[Axis, ...], tuple[Expr, ...]], Expr]:
    """What tells a term from others but for its coefficient, and the coefficient over the same names.

    Where names can be given in several ways that leave the factors as they are (x[i]*x[j]), the coefficient is the mean
    of all: only that part of it counts.
    """
    outer = frozenset(a for f in (*factors, total) for a in free_axes(f)) - frozenset(bound)
    taken = list(outer)
    names: list[Axis] = []
    for a in sorted(bound, key=lambda a: str(a.extent)):
        names.append(least_instance(a.extent, taken))
        taken.append(names[-1])
    best: tuple[str, ...] | None = None
    kept: list[Expr] = []
    ways: list[dict[Axis, Index]] = []
    for order in itertools.permutations(bound):
        if any(a.extent != n.extent for a, n in zip(order, names, strict=True)):
            continue
        mapping = {a: Index.axis(n) for a, n in zip(order, names, strict=True)}
        renamed = sorted([canonical(substitute(f, mapping)) for f in factors], key=str)
        text = tuple(map(str, renamed))
        if best is None or text < best:
            best, kept, ways = text, renamed, []
        if text == best:
            ways.append(mapping)
    totals = list(dict.fromkeys(canonical(substitute(total, way)) for way in ways))
    mean = totals[0] if len(totals) == 1 else mul(const(1 / len(totals)), add(*totals))
    return (tuple(names), tuple(kept)), mean


def _gathered(totals: Sequence[Expr]) -> Expr:
    numbers = [t.value for t in totals if isinstance(t, Const)]
    rest = [t for t in totals if not isinstance(t, Const)]
    if numbers and (not rest or math.fsum(numbers) != 0):
        rest = [const(math.fsum(numbers)), *rest]
    return add(*rest)


def _matchings(a: Sequence[Axis], b: Sequence[Axis]) -> Iterator[dict[Axis, Axis]]:
    """Ways to take the axes of one for those of another, that of equal names first."""
    if set(a) == set(b):
        yield {x: x for x in a}
    for order in itertools.permutations(b):
        names = dict(zip(a, order, strict=True))
        if all(x.extent == y.extent for x, y in names.items()) and any(x != y for x, y in names.items()):
            yield names


def _bound(e: Expr) -> tuple[Axis, ...]:
    return (e.axis,) if isinstance(e, Reduce) else ()


def _summed(e: Expr) -> int:
    """How many terms a reduction, with those directly under it, adds up."""
    many = 1
    while isinstance(e, Reduce):
        many *= int(e.axis.extent)
        e = e.body
    return many


def _sizes_of(e: Expr) -> Expr:
    """For each element the sum of the sizes of what is added up for it."""
    done: dict[int, Expr] = {}
    for x in walk(e):
        match x:
            case Map("neg", (a,)):
                done[id(x)] = done[id(a)]
            case Map("add" | "mul", args):
                done[id(x)] = Map(x.op, tuple([done[id(a)] for a in args]))
            case Reduce(ReduceKind.SUM, axis, body):
                done[id(x)] = Reduce(ReduceKind.SUM, axis, done[id(body)])
            case Const(c):
                done[id(x)] = const(abs(c))
            case _:
                done[id(x)] = Map("abs", (x,))
    return done[id(e)]


def _roundings(e: Expr) -> float:
    """How many roundings, each of one unit of the size, computing it takes; those of sums add up like random walks."""
    total = 0.0
    for x in walk(e):
        match x:
            case Map("neg" | "abs", _) | Map("lt" | "le" | "eq" | "and" | "or" | "not" | "isnan", _):
                pass
            case Map("mul", (Const(c), _)) | Map("mul", (_, Const(c))) if math.frexp(c)[0] == 0.5:
                pass  # a power of two
            case Map():
                total += 1
            case Reduce(ReduceKind.SUM, axis, _):
                total += 2 * math.sqrt(int(axis.extent))
    return total


def _exact(*scales: Sequence[Expr]) -> bool:
    """Whether the numbers are powers of two: with them, nothing is rounded."""
    return all(isinstance(c, Const) and abs(math.frexp(c.value)[0]) == 0.5 for scale in scales for c in scale)


def _simple(ratio: float, unit: float, numbers: Sequence[float]) -> float | None:
    """The number of these, or the simple one, or root of one, that a quotient of two rounded numbers is."""
    if not 1e-9 < abs(ratio) < 1e9:
        return None
    size, slack = Fraction(abs(ratio)), Fraction(4 * max(unit, 2.0**-50))
    for known in numbers:
        for c in (known, 1 / known):
            if abs(Fraction(c) - size) <= slack * size:
                return math.copysign(c, ratio)
    for power in (1, 2):
        found = simplest_between(size**power * (1 - power * slack), size**power * (1 + power * slack))
        if found.numerator * found.denominator <= _SIMPLE:
            return math.copysign(float(found) if power == 1 else math.sqrt(found), ratio)
    return None
