"""Two programs run whole on the same inputs, definition by definition: where they differ, and what in them is alike.

This is for programs that are too deep for one formula: a run takes as long as the model does. What counts as a
difference is as in refutation.py: it has to be several times what rounding anew does, that of weights which may be
rounded values of the other program's, of constants, and of float64 itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from prism.egraph.prove.error_bounds import TrackedArrays
from prism.egraph.prove.matching import COARSE, Names
from prism.egraph.prove.refutation import (
    ATOL,
    FEW_KINDS,
    FLOAT64,
    KINDS,
    MORE_KINDS,
    NOISE,
    RTOL,
    SHRINK_WORK,
    SLIGHT_ATOL,
    SLIGHT_RTOL,
    Attempt,
    Counterexample,
    difference,
    draws,
    sides_text,
    work,
)
from prism.egraph.prove.smaller_inputs import TRIES, shrink, written
from prism.program.arrays import NUMPY, Array, Arrays
from prism.program.constants import renumbered, rounded_constants
from prism.program.evaluate import run
from prism.program.extents import evaluate
from prism.program.nodes import DType, Program, Read, SymbolRange, walk

# Products and sums of a run of both programs up to which it is made, and up to which many or some inputs are drawn.
MAX_RUN = 1 << 37
_MANY = 1 << 27
_SOME = 1 << 33
_TRACKED = 1 << 22
"""Those of a run whose rounding errors are bounded, an array of terms a sum: some 100 MB."""
# Draws on which float64 does not overflow, so that an infinity or NaN is one.
_TAME = ("normal", "positive", "negative", "ties")
# Tensors of two programs are alike that differ by no more: in what is left after rounding, by the types of weights.
_NEAR = 1e-4
_NEAR_COARSE = 2e-2
# Dimensions that are longer than 1 of a tensor that may lie transposed in the other program.
_TRANSPOSED = 4

Order = tuple[int, ...]
"""Which dimension of one tensor, those of extent 1 left out, each of the other's is."""


@dataclass(frozen=True, slots=True)
class Alike:
    """A tensor of one program that has the elements of a tensor of the other, or of the same."""

    name: str  # the tensor
    of: str  # the reference's tensor
    order: Order | None  # how it is transposed; None where both have the same elements in row-major order


@dataclass(slots=True)
class Runs:
    """Runs of two programs."""

    names: Names  # of both
    binding: Mapping[str, int]  # the values of the symbols
    _held: tuple[dict[str, np.ndarray], ...] = ()

    @staticmethod
    def of(names: Names) -> Runs | None:
        """Runs at small values of the symbols; None where they would take too long."""
        symbols = sorted({s for p in (names.a, names.b) for s in p.ranges})
        binding = SymbolRange.sizes(symbols, names.ranges, 3, 2)
        try:
            made = Runs(names, binding)
            return made if made.cost() <= MAX_RUN else None
        except KeyError:
            return None

    def cost(self) -> int:
        """Products and sums of a run of both."""
        return sum(work(d.expr, self.binding) for p in self._programs for d in p.definitions)

    @property
    def _programs(self) -> tuple[Program, Program]:
        return self.names.a, self.names.b

    def _inputs(self, kinds: Sequence[str], seed: int) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        shapes = {s.name: tuple(evaluate(e, self.binding) for e in s.shape) for s, _ in self.names.pairs}
        dtypes = {s.name: s.dtype for s, _ in self.names.pairs}
        return draws(np.random.default_rng(seed), shapes, dtypes, kinds)

    def _weights(self, side: int) -> dict[str, np.ndarray]:
        if not self._held:
            self._held = tuple(
                {n: self._array(names[n], np.asarray(w)) for n, w in p.weights.items()}
                for p, names in zip(self._programs, (self.names.ours, self.names.theirs), strict=True)
            )
        return self._held[side]

    def _array(self, called: object, stored: np.ndarray) -> np.ndarray:
        known = self.names.weights.get(called) if isinstance(called, str) else None
        return known.array if known is not None else np.asarray(stored, dtype=np.float64)

    def _run(
        self,
        side: int,
        inputs: Mapping[str, np.ndarray],
        weights: Mapping[str, np.ndarray] | None = None,
        program: Program | None = None,
        seen: Callable[[str, np.ndarray], None] | None = None,
    ) -> list[np.ndarray]:
        """The outputs of one program, in order."""
        return [np.asarray(v, dtype=np.float64) for v in self._made(side, inputs, NUMPY, weights, program, seen)]

    def _made(
        self,
        side: int,
        inputs: Mapping[str, np.ndarray],
        xp: Arrays,
        weights: Mapping[str, np.ndarray] | None = None,
        program: Program | None = None,
        seen: Callable[[str, np.ndarray], None] | None = None,
    ) -> list[Array]:
        program = program or self._programs[side]
        given = {(s, t)[side].name: inputs[s.name] for s, t in self.names.pairs}
        with np.errstate(all="ignore"):
            tensors = {**given, **(self._weights(side) if weights is None else weights)}
            found = run(program, tensors, self.binding, xp, seen)
        return [found[n] for n in program.outputs]

    # Differences

    def attempt(self) -> Attempt:
        """Look for inputs at which the programs differ."""
        cost = self.cost()
        kinds = KINDS + MORE_KINDS if cost <= _MANY else (*FEW_KINDS, "tiny") if cost <= _SOME else ("normal", "tiny")
        points = 0
        for kind, inputs in self._inputs(kinds, 0):
            both = [self._run(side, inputs) for side in (0, 1)]
            points += sum(int(np.isfinite(v).sum()) for v in both[0])
            found = self._apart(kind, inputs, both)
            if found is not None:
                return Attempt(found, points)
        return Attempt(None, points)

    def _apart(
        self, kind: str, inputs: Mapping[str, np.ndarray], both: Sequence[Sequence[np.ndarray]]
    ) -> Counterexample | None:
        near = [difference(x, y, SLIGHT_RTOL, SLIGHT_ATOL) for x, y in zip(*both, strict=True)]
        lost = [np.isfinite(x) & ~np.isfinite(y) for x, y in zip(*both, strict=True)]
        if all(at is None for at in near) and not (kind in _TAME and any(at.any() for at in lost)):
            return None
        noise, lost = self._noise(inputs, both, lost)
        for n, (x, y) in enumerate(zip(*both, strict=True)):
            limits = (max(SLIGHT_RTOL, NOISE * noise[n]), ATOL)
            at = difference(x, y, *limits)
            if at is not None and not self._open(n, at, inputs):
                return self._smallest(n, at, inputs, limits[0])
            if kind in _TAME and lost[n].any():
                at = tuple(int(i) for i in np.argwhere(lost[n])[0])
                return Counterexample(dict(inputs), self._where(n, at, x, y, inputs), finite=False)
        return None

    def _open(self, n: int, at: tuple[int, ...], inputs: Mapping[str, np.ndarray]) -> bool:
        """Whether rounding may be what tells the two apart there: it moved them so far, or decided a comparison."""
        if self.cost() > _TRACKED:
            return False
        one, other = (self._made(side, inputs, TrackedArrays())[n][at] for side in (0, 1))
        apart = abs(float(one.v) - float(other.v))
        return not (one.known and other.known and apart > float(one.e) + float(other.e))

    def _noise(
        self,
        inputs: Mapping[str, np.ndarray],
        both: Sequence[Sequence[np.ndarray]],
        lost: Sequence[np.ndarray],
    ) -> tuple[list[float], list[np.ndarray]]:
        """How far other roundings move each output, for its size, and where the candidate alone has no value."""
        rng = np.random.default_rng(1)
        most = [0.0] * len(both[0])
        gone = list(lost)
        numbers = rounded_constants(*([d.expr for d in p.definitions] for p in self._programs))
        for _ in range(3):
            moved_inputs = {n: self._moved(v, FLOAT64, rng) for n, v in inputs.items()}
            rounded = {c: c * (1 + float(rng.uniform(-1, 1)) * DType.FLOAT32.roundoff) for c in numbers}
            for side, values in enumerate(both):
                program = self._programs[side]
                if rounded:
                    exprs = renumbered([d.expr for d in program.definitions], rounded)
                    changed = [replace(d, expr=e) for d, e in zip(program.definitions, exprs, strict=True)]
                    program = replace(program, definitions=tuple(changed))
                weights = {n: self._rounded(side, n, v, rng) for n, v in self._weights(side).items()}
                for n, (v, other) in enumerate(
                    zip(values, self._run(side, moved_inputs, weights, program), strict=True)
                ):
                    most[n] = max(most[n], _far(v, other))
                    gone[n] = gone[n] & (np.isfinite(other) if side == 0 else ~np.isfinite(other))
        return most, gone

    def _moved(self, values: np.ndarray, unit: float, rng: np.random.Generator) -> np.ndarray:
        whole = (values == np.round(values)).all()
        return values if whole else values * (1 + unit * rng.uniform(-1, 1, values.shape))

    def _rounded(self, side: int, name: str, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A weight as another rounding would have left it."""
        if not self._programs[side].tensor(name).dtype.is_float:
            return values
        called = (self.names.ours, self.names.theirs)[side][name]
        known = self.names.weights.get(called) if isinstance(called, str) else None
        if known is None or all(known.sides) or called in self.names.copies:
            return self._moved(values, FLOAT64, rng)
        return np.asarray(values * (1 + max(known.unit, FLOAT64) * rng.uniform(-1, 1, values.shape)))

    def _smallest(self, n: int, at: tuple[int, ...], inputs: Mapping[str, np.ndarray], rtol: float) -> Counterexample:
        def values(given: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            one, other = (self._run(side, given)[n] for side in (0, 1))
            return one, other

        x, y = values(inputs)
        apart = float(abs(x[at] - y[at]) / (max(abs(x[at]), abs(y[at])) or 1.0))
        least = max(rtol, min(1e-2, apart / 2) if apart > RTOL else apart / 2)

        def differs(given: Mapping[str, np.ndarray]) -> bool:
            one, other = (float(v[at]) for v in values(given))
            if not (math.isfinite(one) and math.isfinite(other)):
                return False
            return abs(one - other) > least * max(abs(one), abs(other)) + 1e-9 * (apart > RTOL)

        found = dict(inputs)
        tries = min(TRIES, SHRINK_WORK // self.cost())
        if tries >= 8 and differs(found):
            found = shrink(found, differs, tries, {t.name: t.dtype for t in self._programs[0].inputs})
        return Counterexample(found, self._where(n, at, *values(found), found))

    def _where(
        self, n: int, at: tuple[int, ...], x: np.ndarray, y: np.ndarray, inputs: Mapping[str, np.ndarray]
    ) -> str:
        place = ", ".join(map(str, at))
        with_ = "".join(f", with {k}={v}" for k, v in sorted(self.binding.items()))
        sides = sides_text(float(x[at]), float(y[at]))
        return f"{self.names.a.outputs[n]} at [{place}]: {sides}{with_}, where {written(inputs)}"

    # What is alike

    def alike(self) -> tuple[tuple[Alike, ...], tuple[Alike, ...]]:
        """Tensors with the values of a tensor of the reference: others of its own, and the candidate's.

        Only tensors of floats that depend on the inputs and whose values are numbers.
        """
        coarse = any(w.unit > COARSE and not all(w.sides) for w in self.names.weights.values())
        near = _NEAR_COARSE if coarse else _NEAR
        kept: list[dict[_Key, float]] = []
        kinds = ("normal", "normal", *(("large",) if self.cost() <= _MANY else ()))
        for _, inputs in self._inputs(kinds, 7):
            table = _Table(near)
            found: dict[_Key, float] = {}
            self._run(0, inputs, seen=self._seen(0, table.add))
            for side in (0, 1):
                self._run(side, inputs, seen=self._seen(side, partial(table.match, found, side)))
            kept.append(found)
        common = {k: max(v, kept[1][k]) for k, v in kept[0].items() if k in kept[1]}
        place = {d.name: (d.view, n) for n, d in enumerate(self.names.a.definitions)}
        best: tuple[dict[str, Alike], dict[str, Alike]] = ({}, {})

        # What is alike where inputs are large, too, counts first: small ones do not pass a clamp's ends. Then the
        # nearest; of those that are equal, one that is no view, and the first.
        def rank(k: _Key) -> tuple[object, ...]:
            return k not in kept[-1], max(common[k], _EQUAL), *place[k[2]], k[3] is not None

        for key in sorted(common, key=rank):
            side, name, of, order = key
            best[side].setdefault(name, Alike(name, of, order))
        return tuple(x for x in best[0].values() if x.name != x.of), tuple(best[1].values())

    def _seen(self, side: int, then: Callable[[str, np.ndarray], None]) -> Callable[[str, np.ndarray], None]:
        """Calls `then` with the tensors that may be alike."""
        program = self._programs[side]
        found = {(s, t)[side].name for s, t in self.names.pairs}
        for d in program.definitions:
            if any(isinstance(e, Read) and e.tensor in found for e in walk(d.expr)):
                found.add(d.name)
        floats = {d.name for d in program.definitions if d.dtype.is_float and d.name in found}

        def seen(name: str, array: np.ndarray) -> None:
            if name in floats and array.size > 1 and np.isfinite(array).all():
                then(name, array)

        return seen


_Key: TypeAlias = tuple[int, str, str, Order | None]


@dataclass(slots=True)
class _Table:
    """What tells the reference's tensors from one another: sums of their values, one with random factors.

    Values are squashed, so that a mask's large numbers hide nothing.
    """

    near: float
    _rows: dict[int, list[tuple[str, tuple[int, ...], float, float, float]]] = field(default_factory=dict)

    def add(self, name: str, array: np.ndarray) -> None:
        x = _squashed(array)
        row = name, _long(array.shape), float(np.sqrt((x * x).sum())), float(x.sum()), _mixed(x)
        self._rows.setdefault(array.size, []).append(row)

    def match(self, found: dict[_Key, float], side: int, name: str, array: np.ndarray) -> None:
        """Notes the tensors that have these values, and how far apart they are."""
        rows = self._rows.get(array.size, [])
        if not rows:
            return
        x = _squashed(array)
        norm, total, mixed = float(np.sqrt((x * x).sum())), float(x.sum()), _mixed(x)
        far = self.near * norm
        orders: dict[Order, float] = {}
        shape = _long(array.shape)
        for of, others, *prints in rows:
            if abs(norm - prints[0]) > far or abs(total - prints[1]) > far * math.sqrt(array.size):
                continue
            if abs(mixed - prints[2]) <= _SPREAD * far:
                found[side, name, of, None] = abs(mixed - prints[2]) / (norm or 1.0)
                continue
            if not orders and 2 <= len(shape) <= _TRANSPOSED:
                every = itertools.permutations(range(len(shape)))
                orders = {o: _mixed(x.reshape(shape).transpose(o)) for o in every if o != tuple(range(len(shape)))}
            for order, turned in orders.items():
                if tuple(shape[d] for d in order) == others and abs(turned - prints[2]) <= _SPREAD * far:
                    found[side, name, of, order] = abs(turned - prints[2]) / (norm or 1.0)


def _squashed(array: np.ndarray) -> np.ndarray:
    return np.asarray(np.sign(array) * np.log1p(np.abs(array)))


def _long(shape: Sequence[int]) -> tuple[int, ...]:
    """The extents that are not 1."""
    return tuple(n for n in shape if n != 1)


def _mixed(array: np.ndarray) -> float:
    """The sum with random factors by place, the same for all tensors."""
    flat = array.reshape(-1)
    total = 0.0
    for n, start in enumerate(range(0, flat.size, _FACTORS.size)):
        part = flat[start : start + _FACTORS.size]
        total += float(part @ _FACTORS[: part.size]) * math.cos(n)
    return total


_FACTORS = np.random.default_rng(3).standard_normal((1 << 16) + 1)
# The sum with random factors may be so many times further apart than the values are, taken together.
_SPREAD = 4.0
# What is no further apart is equal, but for the rounding of float64.
_EQUAL = 1e-10


def _far(values: np.ndarray, moved: np.ndarray) -> float:
    """How far the values are moved at most, relative to their size; see `difference`."""
    with np.errstate(all="ignore"):
        finite = np.isfinite(values)
        size = np.abs(values) + 1e-3 * np.abs(values[finite]).max(initial=0.0)
        far = (np.abs(moved - values) / size)[finite]
    return float(far[np.isfinite(far)].max(initial=0.0))
