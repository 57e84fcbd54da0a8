"""What is compared of two programs: their outputs, over the inputs of one of them, with the weights that each holds.

Inputs that a caller passes are matched by name where the names agree, else by position. Weights are constants: they are
never matched by name or by number. Equal arrays get one name; one that holds a single number is that number, and
infinities in one are choices by a mask, so that what is known of constants is known of weights. Names of axes and
symbols are those of the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sympy

from prism.egraph.refute import Fixed, draws, work
from prism.errors import ShapeError
from prism.program.constants import rounded_constants
from prism.program.evaluate import evaluate
from prism.program.extents import Extent, is_static, normal
from prism.program.extents import evaluate as evaluate_extent
from prism.program.index import Axis, Index
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
from prism.program.transform import with_args

# Products and sums of two programs that are run whole to see where they are apart.
MAX_RUN = 1 << 35
_UNITS = {DType.FLOAT64: 2.0**-53, DType.FLOAT32: 2.0**-24, DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8}


@dataclass(frozen=True, slots=True)
class Weight:
    """An array that a program fixes.

    Attributes:
        array: its elements, float64; finite but for NaN.
        dtype: how it is stored.
        name: what its program calls it.
        sides: whether the reference and whether the candidate holds it.
    """

    array: np.ndarray
    dtype: DType
    name: str
    sides: tuple[bool, bool]

    @property
    def unit(self) -> float:
        """The unit roundoff of the stored type; 0 where it holds no fractions."""
        return _UNITS.get(self.dtype, 0.0)


@dataclass(frozen=True, slots=True)
class Matched:
    """Two programs over one set of names.

    Attributes:
        reference: one formula per output.
        candidate: as many.
        tensors: the inputs that a caller passes, and the weights.
        ranges: of the symbols.
        weights: by the name that the formulas use.
        programs: both, where there are any.
        inputs: the names in both of what a caller passes.
    """

    reference: tuple[Formula, ...]
    candidate: tuple[Formula, ...]
    tensors: tuple[Tensor, ...]
    ranges: Mapping[str, SymbolRange]
    weights: Mapping[str, Weight]
    programs: tuple[Program, Program] | None = None
    inputs: tuple[tuple[str, str], ...] = ()

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
        rounded = {n: w.unit for n, w in mine.items() if not all(w.sides) and self._made(w)}
        return Fixed({n: w.array for n, w in mine.items()}, rounded, sharp)

    def _made(self, weight: Weight) -> bool:
        """Whether a weight of one program may have been computed from the other's: else it has elements of theirs."""
        some = weight.array.flat[:: max(1, weight.array.size // 256)]
        other = weight.sides.index(False)
        copied = np.zeros(some.shape, bool)
        for w in self.weights.values():
            if w.sides[other]:
                copied |= np.isin(some, w.array)
        return float(copied.mean()) < 0.5


def match(a: Program, b: Program) -> Matched:
    """Both programs, written down to their inputs and weights.

    Raises:
        ShapeError: the programs take different numbers of inputs, or inputs of different shapes or kinds.
        UnsupportedError: a program has an output whose indices cannot be made affine.
    """
    pairs = _inputs(a, b)
    symbols = _symbols(pairs, a, b)
    held = _Held({t.name for t in a.inputs} | {t.name for p in pairs for t in p})
    ours: dict[str, Expr | str] = {n: held.add(n, w, _dtype(a, n), 0) for n, w in a.weights.items()}
    theirs: dict[str, Expr | str] = {n: held.add(n, w, _dtype(b, n), 1) for n, w in b.weights.items()}
    theirs |= {t.name: s.name for s, t in pairs}
    reference = tuple(_renamed(f, ours, {}) for f in inline(a))
    candidate = tuple(_renamed(f, theirs, symbols) for f in inline(b))
    read = _reads([f.expr for f in (*reference, *candidate)])
    weights = {n: w for n, w in held.weights.items() if n in read}
    tensors = [s for s, _ in pairs]
    tensors += [Tensor(n, w.array.shape, w.dtype) for n, w in weights.items()]
    names = tuple((s.name, t.name) for s, t in pairs)
    return Matched(reference, candidate, tuple(tensors), {**b.ranges, **a.ranges}, weights, (a, b), names)


def _reads(exprs: Sequence[Expr]) -> set[str]:
    return {e.tensor for expr in exprs for e in walk(expr) if isinstance(e, Read)}


def _dtype(program: Program, name: str) -> DType:
    return program.tensor(name).dtype


class _Held:
    """Gives names to weights, equal arrays one."""

    def __init__(self, taken: set[str]) -> None:
        self.weights: dict[str, Weight] = {}
        self._taken = taken
        self._known: dict[tuple[object, ...], list[str]] = {}

    def add(self, name: str, values: object, dtype: DType, side: int) -> Expr | str:
        """The name of a weight in the formulas, or what its elements are, as an expression over `_element`'s axes."""
        array = np.asarray(values, dtype=np.float64) + 0.0  # one zero, not two
        if array.size and (array == array.flat[0]).all():
            return Const(float(array.flat[0]))
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


def _inputs(a: Program, b: Program) -> list[tuple[Tensor, Tensor]]:
    """Pairs of inputs that a caller passes."""
    ours, theirs = ([t for t in p.inputs if t.name not in p.weights] for p in (a, b))
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


def _renamed(formula: Formula, names: Mapping[str, Expr | str], symbols: Mapping[sympy.Basic, Extent]) -> Formula:
    """The formula over other names and symbols, its axes named anew; some reads are expressions."""
    changed = {s: e for s, e in symbols.items() if s != e}

    def axis(a: Axis) -> Axis:
        return Axis(a.name, _extent(a.extent, changed))

    def index(i: Index) -> Index:
        total = Index((), _extent(i.offset, changed))
        for atom, c in i.terms:
            assert isinstance(atom, Axis)
            total = total + Index(((axis(atom), 1),)).scaled(_extent(c, changed))
        return total

    def element(e: Expr, at: tuple[Index, ...]) -> Expr:
        """What a weight is at an element: its masks and parts are read there."""
        match e:
            case Read(tensor, _):
                return Read(tensor, at)
            case Map(_, args):
                return with_args(e, tuple([element(x, at) for x in args]))
        return e

    memo: dict[int, Expr] = {}
    for e in walk(formula.expr):
        match e:
            case Read(name, indices):
                at = tuple(map(index, indices))
                known = names.get(name, name)
                memo[id(e)] = Read(known, at) if isinstance(known, str) else element(known, at)
            case Position(i):
                memo[id(e)] = Position(index(i))
            case Size(extent):
                length = _extent(extent, changed)
                memo[id(e)] = Const(float(int(length))) if is_static(length) else Size(length)
            case Map(_, args):
                memo[id(e)] = with_args(e, tuple([memo[id(x)] for x in args]))
            case Reduce(kind, a, body):
                memo[id(e)] = Reduce(kind, axis(a), memo[id(body)])
            case _:
                memo[id(e)] = e
    t = formula.tensor
    tensor = Tensor(t.name, tuple(_extent(e, changed) for e in t.shape), t.dtype)
    return Formula(tensor, tuple(map(index, formula.index)), memo[id(formula.expr)])
