"""What is compared of two programs: their outputs, over the inputs of one of them, with the weights that each holds.

Inputs that a caller passes are matched by name where the names agree, else by position. Weights are constants: they are
never matched by name or by number. Equal arrays get one name; one that holds a single number is that number, and
infinities in one are choices by a mask, so that what is known of constants is known of weights. Names of axes and
symbols are those of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import sympy

from prism.egraph.prove.refutation import Fixed, draws, work
from prism.errors import ShapeError
from prism.program.constants import rounded_constants
from prism.program.evaluate import evaluate
from prism.program.extents import Extent, is_static, normal
from prism.program.extents import evaluate as evaluate_extent
from prism.program.index import Axis, FloorDiv, Index, Mod
from prism.program.inline import inline
from prism.program.nodes import (
    Const,
    DType,
    Expr,
    Formula,
    Map,
    Position,
    Program,
    Read,
    Reduce,
    Size,
    SymbolRange,
    Tensor,
    walk,
)
from prism.program.octagon import octagon
from prism.program.transform import rebuilt, with_children

# Products and sums of two programs that are run whole to see where they are apart.
MAX_RUN = 1 << 35


@dataclass(frozen=True, slots=True)
class Weight:
    """An array that a program fixes."""

    array: np.ndarray  # its elements, float64; finite but for NaN
    dtype: DType  # how it is stored
    name: str  # what its program calls it
    sides: tuple[bool, bool]  # whether the reference and whether the candidate holds it

    @property
    def unit(self) -> float:
        """The unit roundoff of the stored type; 0 where it holds no fractions."""
        return self.dtype.roundoff


@dataclass(frozen=True, slots=True)
class Matched:
    """Two programs over one set of names."""

    reference: tuple[Formula, ...]  # one formula per output
    candidate: tuple[Formula, ...]  # as many
    tensors: tuple[Tensor, ...]  # the inputs that a caller passes, and the weights
    ranges: Mapping[str, SymbolRange]  # of the symbols
    weights: Mapping[str, Weight]  # by the name that the formulas use
    programs: tuple[Program, Program] | None = None  # both, where there are any
    inputs: tuple[tuple[str, str], ...] = ()  # the names in both of what a caller passes
    # The weights of one program that have elements of the other's: they are no rounded values of these.
    copies: frozenset[str] = frozenset()
    sharp: bool = False  # whether what both compute from weights is equal or not, however the weights may be rounded

    def furthest(self, binding: Mapping[str, int]) -> list[tuple[int, ...] | None]:
        """For each output the element at which the programs, run whole on a draw, are furthest apart; None for none."""
        nowhere: list[tuple[int, ...] | None] = [None] * len(self.reference)
        if self.programs is None:
            return nowhere
        if sum(work(d.expr, binding) for p in self.programs for d in p.definitions) > MAX_RUN:
            return nowhere
        a, b = self.programs
        passed = {s for s, _ in self.inputs}
        shapes = {t.name: tuple(evaluate_extent(e, binding) for e in t.shape) for t in a.inputs if t.name in passed}
        dtypes = {t.name: t.dtype for t in a.inputs}
        found = nowhere
        for _, given in draws(np.random.default_rng(0), shapes, dtypes, ("normal", "ties")):
            left = evaluate(a, given)
            right = evaluate(b, {t: given[s] for s, t in self.inputs})
            for n, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=True)):
                one, other = left[x], right[y]
                with np.errstate(all="ignore"):
                    gap = np.abs(one - other) / (np.abs(one) + 1e-3 * np.nanmax(np.abs(one), initial=0.0))
                gap = np.where(np.isfinite(gap), gap, 0.0)
                if found[n] is None and gap.any():
                    found[n] = tuple(int(i) for i in np.unravel_index(int(gap.argmax()), gap.shape))
        return found

    def apart(self, left: Sequence[Expr], right: Sequence[Expr]) -> tuple[str, ...]:
        """The weights that only one side reads, where each side has such; else none."""
        ours, theirs = (_reads(side) & self.weights.keys() for side in (left, right))
        return tuple(sorted(ours ^ theirs)) if ours - theirs and theirs - ours else ()

    def unlike(self, left: Sequence[Expr], right: Sequence[Expr]) -> bool:
        """Whether the two sides read other weights."""
        ours, theirs = (_reads(side) & self.weights.keys() for side in (left, right))
        return ours != theirs

    def computed(self, left: Sequence[Expr], right: Sequence[Expr]) -> bool:
        """Whether what one side computes from weights may be computed otherwise by the other side."""
        held = bool(_reads([*left, *right]) & self.weights.keys())
        return held and (self.unlike(left, right) or bool(rounded_constants(left, right)))

    def fixed(self, exprs: Sequence[Expr], sharp: bool = False) -> Fixed:
        """The weights that the expressions read, for the search for inputs at which they differ."""
        read = _reads(exprs)
        mine = {n: w for n, w in self.weights.items() if n in read}
        rounded = {n: w.unit for n, w in mine.items() if not all(w.sides) and n not in self.copies}
        return Fixed({n: w.array for n, w in mine.items()}, rounded, sharp)


@dataclass(frozen=True, slots=True)
class Names:
    """One set of names for the inputs, symbols and weights of two programs."""

    a: Program  # the reference
    b: Program  # the candidate, over the symbols of the reference
    pairs: tuple[tuple[Tensor, Tensor], ...]  # the inputs that a caller passes, of both
    ours: Mapping[str, Expr | str]  # what tensors of `a` are called, or which number a weight is
    theirs: Mapping[str, Expr | str]  # the same of `b`
    weights: Mapping[str, Weight]  # by name, whether or not an output needs them
    copies: frozenset[str]  # see `Matched`

    @property
    def ranges(self) -> Mapping[str, SymbolRange]:
        """Of the symbols of both."""
        return {**self.b.ranges, **self.a.ranges}

    def matched(self, a: Program, b: Program, given: Sequence[Tensor] = ()) -> Matched:
        """Parts of the two programs, written down to inputs, weights, and tensors that are called alike in both.

        Raises:
            UnsupportedError: a part has an output whose indices cannot be made affine.
        """
        reference = tuple(replace(f, expr=over_names(f.expr, self.ours)) for f in inline(a))
        candidate = tuple(replace(f, expr=over_names(f.expr, self.theirs)) for f in inline(b))
        read = _reads([f.expr for f in (*reference, *candidate)])
        weights = {n: w for n, w in self.weights.items() if n in read}
        tensors = [s for s, _ in self.pairs]
        tensors += [t for t in given if t.name in read]
        tensors += [Tensor(n, w.array.shape, w.dtype) for n, w in weights.items()]
        return Matched(reference, candidate, tuple(tensors), self.ranges, weights, copies=self.copies)


def named(a: Program, b: Program) -> Names:
    """One set of names for what both programs read.

    Raises:
        ShapeError: the programs take different numbers of inputs, or inputs of different shapes or kinds.
    """
    pairs = paired_inputs(a, b)
    symbols = _symbols(pairs, a, b)
    held = _Held({t.name for t in a.inputs} | {t.name for p in pairs for t in p})
    ours: dict[str, Expr | str] = {n: held.add(n, w, _dtype(a, n), 0) for n, w in a.weights.items()}
    theirs: dict[str, Expr | str] = {n: held.add(n, w, _dtype(b, n), 1) for n, w in b.weights.items()}
    theirs |= {t.name: s.name for s, t in pairs}
    return Names(a, _over(b, symbols), tuple(pairs), ours, theirs, held.weights, _copies(held.weights))


def whole(names: Names) -> Matched:
    """Both programs, written down to their inputs and weights.

    Raises:
        UnsupportedError: a program has an output whose indices cannot be made affine.
    """
    inputs = tuple((s.name, t.name) for s, t in names.pairs)
    return replace(names.matched(names.a, names.b), programs=(names.a, names.b), inputs=inputs)


def _copies(weights: Mapping[str, Weight]) -> frozenset[str]:
    """The weights of one side of which half of the elements, or more, stand in the other's.

    One with an element edited is a copy, too, and no rounded value of what the other side computes.
    """
    mine = {n: w for n, w in weights.items() if not all(w.sides)}
    found: set[str] = set()
    for side in (0, 1):
        for run in (1, _RUN):
            some = {n: _runs(w, run, -1) for n, w in mine.items() if w.sides[side] and _told_by(w) == run}
            some = {n: x[:: max(1, x.size // 256)] for n, x in some.items()}
            if not some:
                continue
            sought = np.unique(np.concatenate(list(some.values())))
            met = np.zeros(sought.shape, bool)
            for w in weights.values():
                if w.sides[1 - side]:
                    for axis in range(w.array.ndim if run > 1 else 1):
                        values = _runs(w, run, axis)
                        at = np.minimum(np.searchsorted(sought, values), sought.size - 1)
                        met[at[sought[at] == values]] = True
            kept = sought[met]
            found |= {n for n, x in some.items() if np.isin(x, kept).mean() >= 0.5}
    return frozenset(found)


# Neighbours that are taken together where an element alone is likely to stand elsewhere by chance.
_RUN = 4
COARSE = 2.0**-20
"""Types of which one rounding is coarser than this are computed with in float32."""


def _told_by(weight: Weight) -> int:
    """How many neighbours tell an element: types of few digits hold the same numbers often."""
    return _RUN if weight.unit > COARSE and weight.array.shape[-1:] >= (2 * _RUN,) else 1


def _runs(weight: Weight, run: int, axis: int) -> np.ndarray:
    """A number for each run of so many elements along an axis, the same for the same elements."""
    array = weight.array
    if run == 1:
        return array.reshape(-1)
    if array.ndim == 0 or array.shape[axis] < run:
        return np.zeros(0)
    moved = np.moveaxis(array, axis, -1)
    many = moved.shape[-1] - run + 1
    return np.asarray(sum(moved[..., n : n + many] * math.sqrt(p) for n, p in enumerate((2, 3, 5, 7)))).reshape(-1)


def _reads(exprs: Sequence[Expr]) -> set[str]:
    return {e.tensor for expr in exprs for e in walk(expr) if isinstance(e, Read)}


def _dtype(program: Program, name: str) -> DType:
    return program.tensor(name).dtype


# What the axes of an expression that stands for a weight are called, by dimension.
_DIMENSIONS = {f"weight's {d}": d for d in range(16)}


class _Held:
    """Gives names to weights, equal arrays one."""

    def __init__(self, taken: set[str]) -> None:
        self.weights: dict[str, Weight] = {}
        self._taken = taken
        self._known: dict[tuple[object, ...], list[str]] = {}

    def add(self, name: str, values: object, dtype: DType, side: int) -> Expr | str:
        """The name of a weight in the formulas, or what its elements are, as an expression over its axes."""
        array = np.asarray(values, dtype=np.float64) + 0.0  # one zero, not two
        if array.size and (array == array.flat[0]).all():
            return Const(float(array.flat[0]))
        told = octagon(array)
        if told is not None:
            return told.at([Index.axis(Axis(a, n)) for a, n in zip(_DIMENSIONS, array.shape, strict=False)])
        infinite = np.isinf(array)
        if not infinite.any():
            return self._store(name, array, dtype, side)
        rest = self.add(f"{name}.finite", np.where(infinite, 0.0, array), dtype, side)
        made: Expr = rest if isinstance(rest, Expr) else Read(rest, ())
        for limit in (np.inf, -np.inf):
            at = array == limit
            if at.any():
                mask = self._store(f"{name}.{limit}", at.astype(np.float64), DType.BOOL, side)
                made = Map("where", (Read(mask, ()), Const(float(limit)), made))
        return made

    def _store(self, name: str, array: np.ndarray, dtype: DType, side: int) -> str:
        # Elements that are alike may be different in other places: a few of them, and the sums, tell most apart.
        some = array.flat[:: max(1, array.size // 64)]
        key = (array.shape, some.tobytes())
        for known in self._known.get(key, ()):
            old = self.weights[known]
            if np.array_equal(old.array, array, equal_nan=True):
                sides = (old.sides[0] or side == 0, old.sides[1] or side == 1)
                self.weights[known] = Weight(old.array, old.dtype, old.name, sides)
                return known
        free = name
        while free in self.weights or (side == 1 and free in self._taken):
            free += "'"
        self._taken.add(free)
        self.weights[free] = Weight(array, dtype, name, (side == 0, side == 1))
        self._known.setdefault(key, []).append(free)
        return free


def paired_inputs(a: Program, b: Program) -> list[tuple[Tensor, Tensor]]:
    """Pairs of inputs that a caller passes, by name where the names agree, else by position.

    Raises:
        ShapeError: the programs take different numbers of inputs, or inputs of different kinds.
    """
    ours, theirs = (p.arguments for p in (a, b))
    if len(ours) != len(theirs):
        raise ShapeError(
            f"{a.name} takes {len(ours)} inputs and {b.name} {len(theirs)}",
            fix="give both the same inputs, unused ones included",
        )
    by_name = {t.name: t for t in theirs}
    pairs = list(zip(ours, theirs, strict=True))
    if {t.name for t in ours} == set(by_name):
        pairs = [(t, by_name[t.name]) for t in ours]
    for s, t in pairs:
        if _kind(s) != _kind(t):
            raise ShapeError(
                f"input {s.name} of {a.name} and {t.name} of {b.name} are of the types {s.dtype} and {t.dtype}",
                fix="inputs are matched by name where the names agree, else by position",
            )
    return pairs


def _kind(t: Tensor) -> str:
    """Types of one kind hold the same values, up to rounding."""
    return "float" if t.dtype.is_float else "bool" if t.dtype is DType.BOOL else "int"


def _symbols(pairs: Sequence[tuple[Tensor, Tensor]], a: Program, b: Program) -> dict[sympy.Basic, Extent]:
    """What each symbol of `b` is in terms of `a`'s, by the shapes of the inputs."""
    found: dict[sympy.Basic, Extent] = {}
    for ours, theirs in pairs:
        if len(ours.shape) == len(theirs.shape):
            for x, y in zip(ours.shape, theirs.shape, strict=True):
                if isinstance(y, sympy.Symbol):
                    found.setdefault(y, x)
    for ours, theirs in pairs:
        if ours.shape != tuple(_extent(e, found) for e in theirs.shape):
            shapes = " and ".join(f"[{', '.join(map(str, t.shape))}]" for t in (ours, theirs))
            raise ShapeError(
                f"input {ours.name} of {a.name} and {theirs.name} of {b.name} have shapes {shapes}",
                fix="inputs are matched by name where the names agree, else by position",
            )
    return found


def _extent(extent: Extent, symbols: Mapping[sympy.Basic, Extent]) -> Extent:
    if is_static(extent) or not symbols:
        return normal(extent)
    assert not isinstance(extent, int)
    return normal(sympy.expand(extent.xreplace({s: sympy.sympify(e) for s, e in symbols.items()})))


def _over(program: Program, symbols: Mapping[sympy.Basic, Extent]) -> Program:
    """The program over other symbols."""
    changed = {s: e for s, e in symbols.items() if s != e}
    if not changed:
        return program
    definitions = [
        replace(d, axes=tuple([_axis(a, changed) for a in d.axes]), expr=over_names(d.expr, {}, changed))
        for d in program.definitions
    ]
    inputs = [replace(t, shape=tuple([_extent(e, changed) for e in t.shape])) for t in program.inputs]
    return replace(program, inputs=tuple(inputs), definitions=tuple(definitions))


def _axis(a: Axis, symbols: Mapping[sympy.Basic, Extent]) -> Axis:
    return Axis(a.name, _extent(a.extent, symbols)) if symbols else a


def _index(i: Index, symbols: Mapping[sympy.Basic, Extent]) -> Index:
    if not symbols:
        return i
    total = Index((), _extent(i.offset, symbols))
    for atom, c in i.terms:
        match atom:
            case Axis():
                part = Index(((_axis(atom, symbols), 1),))
            case FloorDiv(value, divisor):
                part = _index(value, symbols).floordiv(_extent(divisor, symbols))
            case Mod(value, divisor):
                part = _index(value, symbols).mod(_extent(divisor, symbols))
        total = total + part.scaled(_extent(c, symbols))
    return total


def over_names(
    expr: Expr, names: Mapping[str, Expr | str], symbols: Mapping[sympy.Basic, Extent] = MappingProxyType({})
) -> Expr:
    """The expression over other names and symbols; some reads are expressions."""

    def element(e: Expr, at: tuple[Index, ...]) -> Expr:
        """What a weight is at an element: its masks and parts are read there."""
        match e:
            case Read(tensor, _):
                return Read(tensor, at)
            case Position(i):
                return Position(i.substitute({a: at[_DIMENSIONS[a.name]] for a in i.axes()}))
            case Map(_, args):
                return with_children(e, [element(x, at) for x in args])
        return e

    def change(e: Expr) -> Expr:
        match e:
            case Read(name, indices):
                at = tuple([_index(i, symbols) for i in indices])
                known = names.get(name, name)
                return Read(known, at) if isinstance(known, str) else element(known, at)
            case Position(i):
                return Position(_index(i, symbols))
            case Size(extent):
                length = _extent(extent, symbols)
                return Const(float(int(length))) if is_static(length) else Size(length)
            case Reduce(kind, a, body):
                return Reduce(kind, _axis(a, symbols), body)
        return e

    return rebuilt([expr], change)[0]
