"""Refutation: inputs at which two lists of formulas differ, found by evaluating both in float64.

Symbols are bound to small values of their ranges, distinct and equal. Where a formula is too large to evaluate whole,
its free axes are cut to a few values (the first, the last, those around the borders of masks) and every tensor to the
elements that are then read: a difference there is a difference. Draws are signed, with ties, zeros, halves, equal rows,
one number throughout, spikes at the ends, and large and tiny scales, because positive inputs hide sign errors, flat
ones dropped rescales, those of scale one a dropped eps, and long sums a dropped last element. What is found is made
small (smaller_inputs.py) at the one element of the output that shows it.

Weights keep the values that the programs hold. Where some, or constants, may be rounded values of the other program's,
a difference that rounding them anew makes as well is none.

Values are extended real numbers (see sign_analysis.py): that a value is infinite or undefined counts only where it is
so over the reals, which error_bounds.py tells from overflow and rounding. Where the reference has a value, the
candidate must have it; where the reference has none (inf - inf, 0*inf, 1/0), the candidate may have any, and an
instance of that is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from prism.egraph.prove.error_bounds import bounded, tracked
from prism.egraph.prove.smaller_inputs import TRIES, shrink, written
from prism.program.constants import renumbered, rounded_constants
from prism.program.evaluate import evaluate_expr
from prism.program.extents import evaluate, is_static
from prism.program.index import Axis, Index
from prism.program.integers import of_type
from prism.program.nodes import (
    Const,
    DType,
    Expr,
    Formula,
    Map,
    Position,
    Read,
    Reduce,
    SymbolRange,
    Tensor,
    free_axes,
    walk,
)
from prism.program.refinement import thresholds
from prism.program.transform import substitute

# Terms of the largest reduction that is evaluated; a few tenths of a second in numpy.
MAX_WORK = 1 << 25
# Up to this the formula is evaluated whole.
WHOLE_WORK = 1 << 20
# Values of each free axis that are kept otherwise.
KEPT = 3
RTOL = 1e-6
ATOL = 1e-12
# Differences that rounding in float64 may be, too: they count where the identity test says the same.
SLIGHT_RTOL = 1e-11
SLIGHT_ATOL = 1e-15
# Elements of all inputs up to which other values than the first are kept, and up to which every kind is drawn.
WINDOW_ELEMENTS = 1 << 23
DRAW_ELEMENTS = 1 << 19
# Products and sums that shrinking one counterexample may cost.
SHRINK_WORK = 1 << 27

# A difference has to be so many times what rounding weights makes.
NOISE = 8.0

# Slight differences of one window that are looked into.
LOOKS = 4
FLOAT64 = 2.0**-50
"""A few roundings of float64."""

# Products and sums of an expression at one point up to which its errors are tracked, and how often that is done.
TRACKED_WORK = 1 << 18
TRACKED_TRIES = 24

# Those of one sign, however far from 0, are where masks by a comparison hide everything, or nothing.
KINDS = (
    "normal", "ties", "tiny", "positive", "negative", "normal", "zeros", "large", "equal rows", "halves", "one number",
    "last", "first", "nothing", "far below", "far above", "mixed", "ends", "mixed",
)  # fmt: skip
# With weights that keep their values, parts of a program are asleep until inputs are large.
MORE_KINDS = ("huge", "normal", "huge")
# Truth values, and whole numbers, where floats are of one sign.
EVERYWHERE = MappingProxyType({"positive": 1.0, "negative": 0.0, "nothing": 0.0, "far above": 1.0})
FEW_KINDS = ("normal", "ties", "positive", "negative", "last")


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Inputs at which two formulas differ."""

    # Tensor to float64 array, of the inputs' own extents; elements that are not read are zero.
    inputs: Mapping[str, np.ndarray]
    where: str  # the output and the element, with both values, as text
    finite: bool = True  # whether both values are finite; else one of them is not


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of trying."""

    found: Counterexample | None  # a counterexample, or None
    points: int  # how many finite elements were compared
    skipped: str = ""  # why nothing could be evaluated, when nothing was
    # Where none was found, inputs at which the two differ by more than rounding usually does.
    slight: Counterexample | None = None
    undefined: Counterexample | None = None  # where none was found, inputs at which the candidate alone has a value


class _Tells(Enum):
    """What one element of the output tells."""

    NOTHING = "nothing"
    DIFFER = "the two differ"
    UNDEFINED = "the candidate alone has a value"


@dataclass(frozen=True, slots=True)
class Fixed:
    """Tensors that are not drawn."""

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)  # their values
    # Those that may be rounded values of others, with the unit roundoff of their type.
    rounded: Mapping[str, float] = field(default_factory=dict)
    sharp: bool = False  # whether any difference counts that rounding, also that of float64, does not explain

    def cut(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """The elements that are read."""
        return {n: self.arrays[n][tuple(map(slice, s))] for n, s in shapes.items() if n in self.arrays}

    def disturbed(self, arrays: Mapping[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Arrays as other roundings would have left them."""
        least = FLOAT64 if self.sharp else 0.0
        far = {n: max(self.rounded.get(n, 0.0), least) for n in arrays}
        return {n: v * (1 + far[n] * rng.uniform(-1, 1, v.shape)) for n, v in arrays.items()}


NOTHING_FIXED = Fixed()
Furthest: TypeAlias = Callable[[Mapping[str, int]], Sequence[tuple[int, ...] | None]]


def refute(
    reference: Sequence[Formula],
    candidate: Sequence[Formula],
    tensors: Sequence[Tensor],
    ranges: Mapping[str, SymbolRange],
    seed: int = 0,
    fixed: Fixed = NOTHING_FIXED,
    furthest: Furthest | None = None,
) -> Attempt:
    """Look for inputs at which the formulas differ. Formulas come in pairs with equal indices.

    Args:
        reference: one formula per output.
        candidate: as many.
        tensors: the inputs that they read.
        ranges: of the symbols; those that are missing may be any positive integer.
        seed: of the draws.
        fixed: tensors that keep their values.
        furthest: for each output, given the symbols, an element to look at first where not all are looked at.
    """
    points, skipped = 0, ""
    slight: Counterexample | None = None
    undefined: Counterexample | None = None
    dtypes = {t.name: t.dtype for t in tensors}
    places = _places([f.expr for f in (*reference, *candidate)])
    number, tries = 0, TRACKED_TRIES
    for binding in _bindings(reference, candidate, tensors, ranges):
        for pairs, starts in _windows(reference, candidate, binding, furthest):
            number += 1
            if any(work(e, binding) > MAX_WORK for pair in pairs for e in pair):
                skipped = "the formulas are too large to evaluate"
                continue
            shapes = _shapes([e for pair in pairs for e in pair], tensors, binding)
            held = fixed.cut(shapes)
            shapes = {n: s for n, s in shapes.items() if n not in held}
            elements = sum(int(np.prod(s)) for s in shapes.values())
            if elements > (WINDOW_ELEMENTS if points else MAX_WORK):
                skipped = "the inputs are too large to draw"
                continue
            rng = np.random.default_rng([seed, number])
            looks = LOOKS
            kinds = KINDS + MORE_KINDS * bool(held) if elements <= DRAW_ELEMENTS else FEW_KINDS
            for kind, inputs in draws(rng, shapes, dtypes, kinds, places):
                for formula, (a, b), start in zip(reference, pairs, starts, strict=True):
                    axes = tuple(sorted(free_axes(a) | free_axes(b), key=lambda x: x.name))
                    left = evaluate_expr(a, {**held, **inputs}, binding, axes)
                    right = evaluate_expr(b, {**held, **inputs}, binding, axes)
                    points += int(np.isfinite(left).sum())
                    pair = _Pair(formula, (a, b), axes, start, binding, held, fixed, kind == "normal", dtypes)
                    limits = (RTOL, ATOL)
                    at = difference(left, right)
                    if at is None and fixed.sharp and looks:
                        limits = (SLIGHT_RTOL, SLIGHT_ATOL)
                        at = difference(left, right, *limits)
                        looks -= at is not None
                    if at is not None:
                        limits = (max(limits[0], NOISE * pair.noise((left, right), inputs)), limits[1])
                        at = difference(left, right, *limits)
                    if at is not None and not pair.is_open(at, inputs):
                        found = pair.smallest(at, inputs, _Tells.DIFFER, limits[0])
                        return Attempt(_entire(found, tensors, binding, fixed), points)
                    for at in _suspects(left, right)[:tries]:
                        tries -= 1
                        tells = pair.tells(at, inputs)
                        if tells is _Tells.DIFFER:
                            return Attempt(_entire(pair.smallest(at, inputs, tells), tensors, binding, fixed), points)
                        if tells is _Tells.UNDEFINED and undefined is None:
                            undefined = pair.smallest(at, inputs, tells)
                    at = None if slight else difference(left, right, SLIGHT_RTOL, SLIGHT_ATOL)
                    if at is not None:
                        sides = sides_text(float(left[at]), float(right[at]))
                        where = f"{formula.tensor.name} at {_place(start, zip(axes, at, strict=True))}: {sides}"
                        slight = Counterexample({n: np.asarray(v, float) for n, v in inputs.items()}, where)
                        slight = _entire(slight, tensors, binding, fixed)
    return Attempt(None, points, skipped if points == 0 else "", slight, undefined)


def _entire(
    found: Counterexample, tensors: Sequence[Tensor], binding: Mapping[str, int], fixed: Fixed
) -> Counterexample:
    """The counterexample with inputs as the programs take them, those among them that nothing reads."""
    whole: dict[str, np.ndarray] = {}
    for t in tensors:
        if t.name not in fixed.arrays:
            whole[t.name] = np.zeros(tuple(evaluate(e, binding) for e in t.shape))
            if t.name in found.inputs:
                read = found.inputs[t.name]
                whole[t.name][tuple(map(slice, read.shape))] = read
    return replace(found, inputs={**found.inputs, **whole})


@dataclass(frozen=True, slots=True)
class _Pair:
    """An output's two sides."""

    formula: Formula  # the output
    exprs: tuple[Expr, Expr]  # both sides, over the output's axes
    axes: tuple[Axis, ...]
    start: Mapping[str, int]  # the first values of those that are cut
    binding: Mapping[str, int]  # the values of the symbols
    held: Mapping[str, np.ndarray]  # the elements of tensors that keep their values
    fixed: Fixed  # these tensors
    tame: bool  # whether the inputs are such that float64 neither overflows nor cancels much
    dtypes: Mapping[str, DType]  # of the inputs

    def at(self, place: tuple[int, ...]) -> tuple[Expr, Expr]:
        """Both sides at one element."""
        mapping = {x: Index.const(n) for x, n in zip(self.axes, place, strict=True)}
        a, b = (substitute(e, mapping) for e in self.exprs)
        return a, b

    def tells(self, place: tuple[int, ...], inputs: Mapping[str, np.ndarray]) -> _Tells:
        """What it tells that float64 has one side infinite or undefined there, and the other not so."""
        return self._told(*self.at(place), inputs)

    def is_open(self, place: tuple[int, ...], inputs: Mapping[str, np.ndarray]) -> bool:
        """Whether rounding may be what tells the sides apart there: it moved them so far, or decided a comparison."""
        return self._open(*self.at(place), inputs)

    def _open(self, a: Expr, b: Expr, inputs: Mapping[str, np.ndarray]) -> bool:
        if max(work(e, self.binding) for e in (a, b)) > TRACKED_WORK:
            return False
        one, other = (bounded(e, {**self.held, **inputs}, self.binding) for e in (a, b))
        return one is None or other is None or abs(one[0] - other[0]) <= one[1] + other[1]

    def _told(self, a: Expr, b: Expr, drawn: Mapping[str, np.ndarray]) -> _Tells:
        inputs = {**self.held, **drawn}
        if max(work(e, self.binding) for e in (a, b)) > TRACKED_WORK:
            one, other = (float(evaluate_expr(e, inputs, self.binding, ())) for e in (a, b))
            apart = self.tame and math.isfinite(one) and not math.isfinite(other)
            return _Tells.DIFFER if apart else _Tells.NOTHING
        left, right = tracked(a, inputs, self.binding, poles=math.nan), tracked(b, inputs, self.binding)
        if left is None or right is None:
            return _Tells.NOTHING
        if math.isnan(left):
            defined = tracked(b, inputs, self.binding, poles=math.nan)
            same = tracked(a, inputs, self.binding) == right
            return _Tells.NOTHING if same or defined is None or math.isnan(defined) else _Tells.UNDEFINED
        if math.isfinite(left):
            return _Tells.NOTHING if math.isfinite(right) else _Tells.DIFFER
        return _Tells.NOTHING if left == right else _Tells.DIFFER

    def noise(self, values: tuple[np.ndarray, np.ndarray], inputs: Mapping[str, np.ndarray]) -> float:
        """How far other roundings move the values, relative to their size (see `difference`)."""
        rng = np.random.default_rng(len(self.axes))
        numbers = rounded_constants(self.exprs[:1], self.exprs[1:])
        most = 0.0
        for _ in range(3 if numbers or self.fixed.rounded or self.fixed.sharp else 0):
            other = self.fixed.disturbed({**self.held, **inputs}, rng)
            rounded = {c: c * (1 + float(rng.uniform(-1, 1)) * DType.FLOAT32.roundoff) for c in numbers}
            for e, v in zip(renumbered(self.exprs, rounded), values, strict=True):
                moved = evaluate_expr(e, other, self.binding, self.axes)
                with np.errstate(all="ignore"):
                    finite = np.isfinite(v)
                    far = np.abs(moved - v)[finite] / (np.abs(v) + 1e-3 * np.abs(v[finite]).max(initial=0.0))[finite]
                far = far[np.isfinite(far)]
                most = max(most, float(far.max(initial=0.0)))
        return most

    def smallest(
        self, place: tuple[int, ...], inputs: Mapping[str, np.ndarray], tells: _Tells, rtol: float = RTOL
    ) -> Counterexample:
        """The counterexample at one element, its inputs made small; a difference stays more than `rtol`."""
        a, b = self.at(place)

        def values(at: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            every = {**self.held, **at}
            return evaluate_expr(a, every, self.binding, ()), evaluate_expr(b, every, self.binding, ())

        first = values(inputs)
        both = bool(np.isfinite(first).all())
        apart = float(abs(first[0] - first[1]) / (max(abs(first[0]), abs(first[1])) or 1.0)) if both else 0.0
        # A difference that was plain stays so, and one that rounding does not explain.
        least = max(RTOL, min(1e-2, apart / 2)) if rtol == RTOL else max(rtol, apart / 2)
        gap = 1e-9 if rtol >= RTOL else 0.0

        def differs(at: Mapping[str, np.ndarray]) -> bool:
            left, right = values(at)
            if not both:
                # The same kinds of values, for the same reason.
                return _kinds(left, right) == _kinds(*first) and self._told(a, b, at) is tells
            if not np.isfinite(left) or not np.isfinite(right):
                return False
            return bool(abs(left - right) > least * max(abs(left), abs(right)) and abs(left - right) > gap)

        found = {name: np.asarray(v, dtype=np.float64) for name, v in inputs.items()}
        if differs(found):
            each = max(work(e, self.binding) for e in (a, b)) + sum(v.size for v in found.values())
            small = shrink(found, differs, max(8, min(TRIES, SHRINK_WORK // each)), self.dtypes)
            found = found if both and self._open(a, b, small) else small
        left, right = values(found)
        where = f"{self.formula.tensor.name} at {_place(self.start, zip(self.axes, place, strict=True))}: "
        where += sides_text(float(left), float(right))
        if self.binding:
            where += f", with {', '.join(f'{k}={v}' for k, v in sorted(self.binding.items()))}"
        return Counterexample(found, f"{where}, where {written(found)}", both)


def _kinds(*values: np.ndarray) -> list[str]:
    """Of each value: number, nan, inf or -inf."""
    return ["number" if np.isfinite(v) else str(float(v)) for v in values]


def sides_text(left: float, right: float) -> str:
    """Two values, with as many digits as tell them apart."""
    for digits in (6, 9, 12, 17):
        one, other = f"{left:.{digits}g}", f"{right:.{digits}g}"
        if one != other:
            break
    return f"{one} against {other}"


def _place(start: Mapping[str, int], spot: Iterable[tuple[Axis, int]]) -> str:
    """The element of the output, at a place of a window: its axes and their values."""
    places = dict(start)
    for x, n in spot:
        places[x.name] = places.get(x.name, 0) + n
    return f"[{', '.join(f'{x}={n}' for x, n in places.items())}]"


def difference(left: np.ndarray, right: np.ndarray, rtol: float = RTOL, atol: float = ATOL) -> tuple[int, ...] | None:
    """An element at which the two are finite and differ."""
    finite = np.isfinite(left)
    if not finite.any():
        return None
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(left), np.abs(right)) + 1e-3 * np.abs(left[finite]).max()
        wrong = finite & np.isfinite(right) & (np.abs(left - right) > rtol * size + atol)
    if not wrong.any():
        return None
    return tuple(int(n) for n in np.argwhere(wrong)[0])


def _suspects(left: np.ndarray, right: np.ndarray) -> list[tuple[int, ...]]:
    """Elements that float64 has not finite on one side and otherwise on the other, by whether the reference is NaN."""
    other = ~(np.isfinite(left) & np.isfinite(right)) & (left != right) & ~(np.isnan(left) & np.isnan(right))
    if not other.any():
        return []
    kinds = (other & ~np.isnan(left), other & np.isnan(left))
    return [tuple(int(n) for n in np.argwhere(kind)[0]) for kind in kinds if kind.any()]


def _bindings(
    reference: Sequence[Formula],
    candidate: Sequence[Formula],
    tensors: Sequence[Tensor],
    ranges: Mapping[str, SymbolRange],
) -> list[dict[str, int]]:
    """Small values of the symbols, smallest first: all equal where the ranges allow it, then distinct."""
    extents = [e for t in tensors for e in t.shape]
    for f in (*reference, *candidate):
        extents += [a.extent for e in walk(f.expr) if isinstance(e, Reduce) for a in (e.axis,)]
        extents += [a.extent for a in free_axes(f.expr)]
    names = sorted({s.name for e in extents if not is_static(e) for s in e.free_symbols})  # type: ignore[union-attr]
    if not names:
        return [{}]
    chosen: list[dict[str, int]] = []
    for base, stride in ((2, 0), (3, 1), (5, 2)):
        binding = SymbolRange.sizes(names, ranges, base, stride)
        if binding not in chosen:
            chosen.append(binding)
    return chosen


def work(expr: Expr, binding: Mapping[str, int]) -> int:
    """The number of terms of the largest reduction, or of the result."""
    return max(1, *(math.prod(evaluate(a.extent, binding) for a in free_axes(e)) for e in walk(expr)))


def _windows(
    reference: Sequence[Formula],
    candidate: Sequence[Formula],
    binding: Mapping[str, int],
    furthest: Furthest | None,
) -> Iterator[tuple[list[tuple[Expr, Expr]], list[dict[str, int]]]]:
    """The pairs of expressions; where they are too large to evaluate whole, over a few values of their free axes.

    With each pair the first values of its axes, where that is not 0 for all.
    """
    pairs = [(a.expr, b.expr) for a, b in zip(reference, candidate, strict=True)]
    if all(work(e, binding) <= WHOLE_WORK for pair in pairs for e in pair):
        yield pairs, [{} for _ in pairs]
        return
    borders = [_borders(pair, binding, KEPT) for pair in pairs]
    kept = KEPT
    if any(work(e, binding) > MAX_WORK for pair in _moved(pairs, borders, 0, KEPT, binding) for e in pair):
        kept = 1
        borders = [_borders(pair, binding, kept) for pair in pairs]
    spots = furthest(binding) if furthest is not None else ()
    if any(s is not None for s in spots):
        first = [_starts(f, s, per, binding) for f, s, per in zip(reference, spots, borders, strict=True)]
        yield _moved(pairs, first, 0, 1, binding), _first(first, 0)
    for turn in range(max((len(n) for per in borders for n in per.values()), default=1)):
        yield _moved(pairs, borders, turn, kept, binding), _first(borders, turn)


def _first(borders: Sequence[Mapping[Axis, Sequence[int]]], turn: int) -> list[dict[str, int]]:
    """Where each axis of the windows of a turn starts."""
    return [{a.name: starts[min(turn, len(starts) - 1)] for a, starts in per.items()} for per in borders]


def _starts(
    formula: Formula, spot: tuple[int, ...] | None, per: Mapping[Axis, list[int]], binding: Mapping[str, int]
) -> dict[Axis, list[int]]:
    """The window of one element of the output; where none is given, that at the start."""
    found: dict[Axis, list[int]] = dict(per)
    for index, place in zip(formula.index, spot or (), strict=spot is not None):
        rest = place - evaluate(index.offset, binding)
        for atom, c in sorted(index.terms, key=lambda t: -evaluate(t[1], binding)):
            if isinstance(atom, Axis):
                value, rest = divmod(rest, evaluate(c, binding))
                found[atom] = [value]
    return {a: found[a] for a in per}


def _moved(
    pairs: Sequence[tuple[Expr, Expr]],
    borders: Sequence[Mapping[Axis, Sequence[int]]],
    turn: int,
    kept: int,
    binding: Mapping[str, int],
) -> list[tuple[Expr, Expr]]:
    """The pairs over `kept` values of their free axes, from the borders of this turn on."""
    moved = []
    for pair, per in zip(pairs, borders, strict=True):
        mapping = {}
        for axis, starts in per.items():
            few = Axis(axis.name, min(kept, evaluate(axis.extent, binding)))
            mapping[axis] = Index.axis(few) + starts[min(turn, len(starts) - 1)]
        moved.append((substitute(pair[0], mapping), substitute(pair[1], mapping)))
    return moved


def _borders(pair: tuple[Expr, Expr], binding: Mapping[str, int], kept: int) -> dict[Axis, list[int]]:
    """For each free axis where its windows start: at 0, at its end, and around what comparisons have borders at."""
    found: dict[Axis, list[int]] = {}
    for axis in sorted(free_axes(pair[0]) | free_axes(pair[1]), key=lambda x: x.name):
        last = max(0, evaluate(axis.extent, binding) - kept)
        inside = {min(last, max(0, t - 1)) for e in pair for t in thresholds(axis, e)}
        found[axis] = [0, last, *sorted(inside - {0, last})[:2]]
    return found


def _shapes(exprs: Sequence[Expr], tensors: Sequence[Tensor], binding: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """For each tensor that is read, the shape that holds every element that is."""
    declared = {t.name: tuple(evaluate(e, binding) for e in t.shape) for t in tensors}
    needed: dict[str, list[int]] = {}
    for expr in exprs:
        for e in walk(expr):
            if isinstance(e, Read):
                tops = [_top(i, binding) + 1 for i in e.index]
                mine = needed.setdefault(e.tensor, [1] * len(tops))
                needed[e.tensor] = [max(m, t) for m, t in zip(mine, tops, strict=True)]
    return {
        name: tuple(min(n, d) for n, d in zip(sizes, declared.get(name, tuple(sizes)), strict=True))
        for name, sizes in sorted(needed.items())
    }


def _top(index: Index, binding: Mapping[str, int]) -> int:
    """The largest value of an affine index."""
    total = evaluate(index.offset, binding)
    for atom, coefficient in index.terms:
        assert isinstance(atom, Axis)
        total += max(0, evaluate(coefficient, binding) * (evaluate(atom.extent, binding) - 1))
    return total


def _places(exprs: Sequence[Expr]) -> frozenset[str]:
    """The tensors whose elements are compared with positions: they are looked up, and lie inside what they index.

    Not those that are between two numbers there, as what is stated to be: any elements are such places then.
    """

    def read(e: Expr) -> Iterator[str]:
        match e:
            case Read():
                yield e.tensor
            case Map("minimum", (Map("maximum", (_, Const())), Const())):
                return
        for c in e.children:
            yield from read(c)

    found: set[str] = set()
    for expr in exprs:
        for e in walk(expr):
            if isinstance(e, Map) and e.op == "eq" and any(isinstance(a, Position) for a in e.args):
                found |= {t for a in e.args for t in read(a)}
    return frozenset(found)


def draws(
    rng: np.random.Generator,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, DType],
    kinds: Sequence[str],
    places: frozenset[str] = frozenset(),
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """(kind, inputs); the whole numbers of `places` are small and not negative."""

    def whole(kind: str, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
        held = of_type(dtype)
        # int64 is taken for granted to lie within 2^31; see integers.py
        low, high = int(max(held.low, -(2**31))), int(min(held.high, 2**31 - 1))
        if kind == "far below":
            return np.full(shape, float(low))
        if kind == "ends":
            return rng.choice([low, low + 1, high - 1, high, 0, 1], shape).astype(np.float64)
        return np.asarray(rng.integers(max(low, -8), 9, shape).astype(np.float64))

    def fill(kind: str, shape: tuple[int, ...]) -> np.ndarray:
        match kind:
            case "normal":
                return rng.standard_normal(shape)
            case "ties":
                return rng.integers(-2, 3, shape).astype(np.float64)
            case "zeros":
                return rng.standard_normal(shape) * (rng.random(shape) < 0.5)
            case "large":
                return rng.standard_normal(shape) * 30.0
            case "huge":
                return rng.standard_normal(shape) * 1e3
            case "tiny":
                return rng.standard_normal(shape) * 1e-3
            case "positive" | "negative":
                return np.asarray(np.abs(rng.standard_normal(shape)) + 0.1) * (1 if kind == "positive" else -1)
            case "nothing" | "far below" | "far above":
                return np.full(shape, {"nothing": 0.0, "far below": -1e3, "far above": 1e3}[kind])
            case "halves":
                return rng.integers(-5, 6, shape) / 2.0
            case "mixed":
                special = rng.choice((0.0, 0.0, 1.0, -1.0, 2.0, -0.5), shape)
                return np.where(rng.random(shape) < 0.5, special, 3 * rng.standard_normal(shape))
            case "one number":
                return np.full(shape, float(rng.choice((-2.0, -1.0, 1.0, 2.0, 3.0))))
            case "last" | "first":
                spiked = np.asarray(rng.standard_normal(shape))
                spiked[tuple(slice(-1, None) if kind == "last" else slice(1) for _ in shape)] = 8.0
                return spiked
            case _:
                return np.broadcast_to(rng.standard_normal(shape[-1:]), shape).copy()

    for kind in kinds:
        inputs: dict[str, np.ndarray] = {}
        for name, shape in shapes.items():
            dtype = dtypes.get(name, DType.FLOAT32)
            if not dtype.is_float and kind in EVERYWHERE:
                inputs[name] = np.full(shape, EVERYWHERE[kind])
            elif dtype is DType.BOOL:
                inputs[name] = rng.integers(0, 2, shape).astype(np.float64)
            elif not dtype.is_float and kind in ("mixed", "ends", "far below") and name not in places:
                inputs[name] = whole(kind, dtype, shape)
            elif not dtype.is_float:
                inputs[name] = rng.integers(0, 4, shape).astype(np.float64)
            else:
                inputs[name] = fill(kind, shape)
        yield kind, inputs
