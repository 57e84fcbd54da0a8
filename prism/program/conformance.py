"""Is the program the function that it was read from? Definition by definition, against values made by another's hand.

A reader claims of each value of the model which tensor of the program, or which formula, it is. The model's own
runtime says what the values are; each definition is evaluated on the runtime's values of what it reads, and must give
the runtime's value of what it defines. Where all do, the program is right on these inputs, by induction; where one
does not, that node was misread. No rounding adds up, and none decides: a comparison sees the same operands twice.

Of large tensors a sample is evaluated, some places along each axis. A difference that rounding explains is none: what
an element moves by when its operands move by a few last places is what it may be off by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from prism.errors import ConformanceError
from prism.program import extents, integers
from prism.program.arrays import Array, NumpyArrays
from prism.program.evaluate import Interpreter
from prism.program.index import Axis, Index
from prism.program.integers import EXACT
from prism.program.nodes import (
    Conformance,
    Const,
    Definition,
    DType,
    Expr,
    Map,
    Program,
    Read,
    Reduce,
    ReduceKind,
    free_axes,
    walk,
)
from prism.program.ops import ROUNDED
from prism.program.transform import substitute
from prism.program.work import formula_work

# The most elements that are computed for one definition of one draw; of more, a sample is.
_SAMPLE = 1 << 17
_COMPARING = frozenset({"lt", "le", "eq", "maximum", "minimum"})
# Inputs are some of so many thresholds, of such a size.
_THRESHOLDS = 32
_LARGE = 1e4
# The most nodes that a record names.
_NAMED = 8
# The smallest numbers that types hold to all of their digits: what lies below is flushed to 0, or is not, as it may.
_UNDERFLOW = {DType.FLOAT64: 2.0**-1022, DType.FLOAT32: 2.0**-126, DType.BFLOAT16: 2.0**-126, DType.FLOAT16: 2.0**-14}
_WITH_POLES = frozenset({"recip", "pow"})
_DECIDING = frozenset({"floor", "round", "sign", "lt", "le", "eq"})


@dataclass(frozen=True, slots=True)
class Precision:
    """How exactly the reference was computed."""

    relative: float  # what an element may be off by, relative to itself
    absolute: float  # what it may be off by, relative to the largest
    step: float  # a few units in the last place, relative: what operands are moved by to see what rounding explains
    slack: float  # how many times as far as such a step moves it an element may be off
    dtype: str  # the type that the reference computes floats in


DOUBLE = Precision(1e-10, 1e-14, 1e-14, 1e3, "float64")
SINGLE = Precision(1e-5, 1e-5, 1e-6, 1e2, "float32")
# In float64 with constants that are rounded to float32.
MIXED = Precision(1e-6, 1e-8, 1e-8, 1e2, "float64")
HALF = Precision(1e-2, 1e-2, 2e-3, 1e2, "float16")
BFLOAT = Precision(5e-2, 5e-2, 1e-2, 1e2, "bfloat16")
PRECISIONS: Mapping[DType, Precision] = {
    DType.FLOAT64: DOUBLE,
    DType.FLOAT32: SINGLE,
    DType.FLOAT16: HALF,
    DType.BFLOAT16: BFLOAT,
}


@dataclass(frozen=True, slots=True)
class Claim:
    """What a reader says of one value of the model: it is a tensor of the program, or a formula without reads."""

    value: str  # the value's name in the reference
    node: str  # the node that it came from, as the user knows it
    dtype: DType  # how it is stored
    tensor: str = ""  # the tensor of the program
    axes: tuple[Axis, ...] = ()  # of the formula
    expr: Expr | None = None  # the formula, where it is no tensor


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that the program and the reference do not agree on."""

    node: str  # the node, as the user knows it
    what: str  # what differs

    def error(self, where: str, against: str, on: str, switch: str) -> ConformanceError:
        """The error that says so: where the model is, what it was compared with, on which inputs, how to go on."""
        return ConformanceError(
            f"internal error: prism misread {self.node}",
            where=where,
            why=f"{self.what.format(against=against)}, {on}",
            fix=f"this is a bug in prism, please report it with this line; {switch} goes on with the program as it is",
        )


def thresholds(program: Program) -> tuple[float, ...]:
    """Numbers that a program compares with: few inputs are one of them by chance."""
    found: dict[float, None] = {}
    for d in program.definitions:
        for e in walk(d.expr):
            if isinstance(e, Map) and e.op in _COMPARING:
                found |= {a.value: None for a in e.args if isinstance(a, Const) and abs(a.value) < _LARGE}
    return tuple(found)[:_THRESHOLDS]


def evaluated(program: Program, claims: Sequence[Claim], taken: Collection[str]) -> list[Definition]:
    """The definitions whose formulas a comparison evaluates, in order.

    Values that are `taken` are what they are, and not compared.
    """
    first: dict[str, str] = {}
    for claim in claims:
        first.setdefault(claim.tensor, claim.value)
    read: set[str] = set()
    found = []
    for d in reversed(program.definitions):
        if first[d.name] not in taken if d.name in first else d.name in read:
            found.append(d)
            read |= {e.tensor for e in walk(d.expr) if isinstance(e, Read)}
    return found[::-1]


@dataclass(slots=True)
class Comparison:
    """Compares a program's definitions with a reference's values."""

    program: Program
    claims: Sequence[Claim]  # what the reader says of the model's values
    binding: Mapping[str, int]  # the value of every symbol
    elements: int = 0  # how many elements were evaluated and compared so far
    # Whether infinities and NaN on one side alone are no difference, but noted: a program is over the reals, and says
    # nothing of what the runtime's own order of operations makes of them. Of a value that is computed from such ones
    # they never are a difference.
    lenient: bool = False
    noted: list[Difference] = field(default_factory=list)  # such differences
    # What another runtime says a value is, and how exactly, where the reference is not believed at once.
    second: Callable[[str], tuple[np.ndarray, Precision] | None] | None = None
    taken: Collection[str] = ()  # values that are taken for what the reference says, and not compared
    # What the reference's own node gives where its operands are off by a relative step, drawn by a seed: of a group of
    # one element `x - mean(x)` is a formula of nothing, and torch's kernel leaves rounding there.
    moved: Callable[[str, float, int], np.ndarray | None] | None = None
    _of: dict[str, list[Claim]] = field(default_factory=dict)
    _undefined: Mapping[str, np.ndarray] = field(default_factory=dict)
    _known: dict[str, np.ndarray] = field(default_factory=dict)  # by tensor, what definitions are evaluated on

    def __post_init__(self) -> None:
        for claim in self.claims:
            self._of.setdefault(claim.tensor, []).append(claim)

    def difference(
        self,
        inputs: Mapping[str, np.ndarray],
        reference: Mapping[str, np.ndarray],
        precision: Mapping[str, Precision],
        usual: Precision = DOUBLE,
        undefined: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> Difference | None:
        """The first value that the program and the reference do not agree on.

        Inputs are all but weights, whose values the program holds; claims of other values than those of `reference` are
        not compared. `precision` is of those that are not computed as usual. Where values are `undefined`, or not
        known, they are taken, and not compared.
        """
        self._undefined = undefined
        known = self._known = {}
        for t in self.program.inputs:
            known[t.name] = np.asarray(inputs[t.name] if t.name in inputs else self.program.weights[t.name])
        for claim in self._of.get("", ()):
            if claim.value in reference and claim.value not in self.taken and claim.expr is not None:
                found = self._compare(claim, reference[claim.value], precision.get(claim.value, usual))
                if found is not None:
                    return found
        for t in self.program.inputs:
            found = self._same(t.name, reference, self._of.get(t.name, ()))
            if found is not None:
                return found
        run = {d.name for d in evaluated(self.program, self.claims, self.taken)}
        for d in self.program.definitions:
            claims = [c for c in self._of.get(d.name, ()) if c.value in reference]
            if not claims:
                if d.name in run:
                    self.elements += formula_work(d.expr, d.axes, self._size).elements
                    known[d.name] = self._value(d)
                continue
            first, *others = claims
            values, found = reference[first.value], None
            if first.value not in self.taken:
                claimed = replace(first, axes=d.axes, expr=d.expr)
                found = self._compare(claimed, values, precision.get(first.value, usual))
            if found is None and first.dtype is not d.dtype:
                found = Difference(
                    first.node, f"it is stored as {d.dtype.value}, and as {first.dtype.value} by {{against}}"
                )
            known[d.name] = values
            found = found or self._same(d.name, reference, others)
            if found is not None:
                return found
        return None

    def _size(self, axis: Axis) -> int:
        return extents.evaluate(axis.extent, self.binding)

    def _value(self, d: Definition) -> np.ndarray:
        with np.errstate(all="ignore"):
            machine = Interpreter(self._known, self.binding, _Widening())
            return np.asarray(machine.over(machine.value(d.expr), d.axes), dtype=np.float64)

    def _same(self, tensor: str, reference: Mapping[str, np.ndarray], claims: Sequence[Claim]) -> Difference | None:
        """The first of the claims that a tensor is a value again, which it is not."""
        for claim in claims:
            if claim.value not in reference or claim.value in self.taken:
                continue
            values, mine = reference[claim.value], self._known[tensor]
            if values.shape != mine.shape:
                return Difference(claim.node, _shapes(mine.shape, values.shape))
            if not np.array_equal(values, mine, equal_nan=values.dtype.kind == "f" and mine.dtype.kind == "f"):
                return Difference(claim.node, f"its result is taken for {tensor}, which it is not for {{against}}")
        return None

    def _compare(self, claim: Claim, values: np.ndarray, precision: Precision) -> Difference | None:
        """How the formula differs from the reference's values, and from those of the second where there is one."""
        found = self._compare_once(claim, values, precision)
        other = self.second(claim.value) if found is not None and self.second is not None else None
        if found is None or other is None or other[0].shape != values.shape:
            return found
        if self._compare_once(claim, *other) is not None:
            return found
        self.noted.append(found)
        return None

    def _compare_once(self, claim: Claim, values: np.ndarray, precision: Precision) -> Difference | None:
        expr, axes, known = claim.expr, claim.axes, self._known
        assert expr is not None
        sizes = [self._size(a) for a in axes]
        if tuple(sizes) != values.shape:
            return Difference(claim.node, _shapes(sizes, values.shape))
        places = self._places(expr, axes)
        sample = {
            a: Axis(f"{a.name}'", p.count)
            for a, p in zip(axes, places, strict=True)
            if p.count != self._size(a) and a.extent != 1
        }
        over = [sample.get(a, a) for a in axes]
        at = {
            a: Index.axis(sample[a]).scaled(p.step) + p.first for a, p in zip(axes, places, strict=True) if a in sample
        }
        body = substitute(expr, at)
        sampled = tuple(slice(p.first, p.first + p.step * p.count, p.step) for p in places)
        expected = values[sampled]

        def evaluated(step: float, seed: int = 0, reads: bool = True) -> np.ndarray:
            with np.errstate(all="ignore"):
                machine = Interpreter(known, self.binding, _Widening(step, seed, reads))
                value = machine.over(machine.value(body), over)
                self.elements += value.size
                if claim.dtype.is_float and precision.dtype == "float32":
                    value = np.asarray(value, dtype=np.float32)  # overflows where the reference does
                return np.asarray(value, dtype=np.float64)

        found = evaluated(0.0)
        wrong = _wrong(found, expected, claim.dtype, precision)
        if claim.value in self._undefined:
            anything = np.broadcast_to(self._undefined[claim.value], values.shape)
            wrong &= ~anything[sampled]
        if claim.dtype is DType.INT64:
            # Programs take 64 bits for enough, and say so; where they are not, the reference wraps.
            wrong &= np.abs(found) < 2.0**63
            # Both are compared in float64, which holds larger numbers, and so their differences, not to the last digit.
            read = [np.abs(np.asarray(known[e.tensor], np.float64)) for e in walk(expr) if isinstance(e, Read)]
            largest = max((float(r.max(initial=0.0)) for r in read), default=0.0)
            if largest > EXACT:
                wrong &= ~(np.abs(found - expected) <= 2.0**-50 * largest)
        if wrong.any() and not claim.dtype.is_float and claim.dtype is not DType.BOOL:
            # Nobody says what whole number comes of a fraction that is none, or is beyond CAST_ASSUMED.
            for e in walk(body):
                if isinstance(e, Read) and np.asarray(known[e.tensor]).dtype.kind == "f" and free_axes(e) <= set(over):
                    with np.errstate(all="ignore"):
                        machine = Interpreter(known, self.binding, _Widening())
                        wrong &= np.abs(np.asarray(machine.over(machine.value(e), over), np.float64)) < integers.CAST
        if any(isinstance(e, Map) and e.op in _WITH_POLES for e in walk(expr)):
            # Which infinity 1/0 is hangs on the sign of a zero, which real numbers do not have.
            wrong &= ~(np.isinf(found) & np.isinf(np.asarray(expected, dtype=np.float64)))
        if not wrong.any():
            return None
        if claim.dtype.is_float or _decides_on_rounding(expr):
            reads = not _decides_exactly(expr)  # stored numbers stay what they are where something hangs on them
            with np.errstate(all="ignore"):
                # each way and its opposite: one of the two takes a tie to its other side
                steps = [(s * precision.step, seed) for seed in range(4) for s in (-2.0, 2.0)]
                others = [evaluated(*step, reads) for step in steps]
                moved = [np.where(other == found, 0.0, np.abs(other - found)) for other in others]
                reach = precision.slack * np.max([np.where(np.isnan(m), np.inf, m) for m in moved], axis=0)
                wrong &= ~(np.abs(found - expected) <= reach)
        if wrong.any() and claim.dtype.is_float and self.moved is not None and not _decides(expr):
            for seed in range(4):
                shaken = self.moved(claim.value, precision.step, seed)
                if shaken is not None:
                    with np.errstate(all="ignore"):
                        wrong &= ~(np.abs(found - expected) <= precision.slack * np.abs(shaken[sampled] - expected))
        if not wrong.any():
            return None
        numbers = np.isfinite(np.asarray(expected, dtype=np.float64))
        # What is read may be infinite on ordinary inputs, too, the scores of a mask are: there a number is a number. Of
        # what is none, as the root of a variance that was drawn below 0, an attention of torch's makes zeros.
        operands = [known[e.tensor] for e in walk(expr) if isinstance(e, Read)]
        lenient = self.lenient or any(not np.isfinite(x).all() for x in operands)
        unsaid = self.lenient or any(np.isnan(x).any() for x in operands)
        telling = wrong & numbers & np.isfinite(found) if unsaid else wrong & numbers
        odd = lenient and not telling.any()
        if lenient and not odd:
            wrong = telling
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        at_text = ", ".join(str(p.first + p.step * i) for p, i in zip(places, place, strict=True))
        many = f"{int(wrong.sum())} of {wrong.size} elements differ, " if wrong.size > 1 else ""
        there = f"at [{at_text}] " if at_text else ""
        difference = Difference(
            claim.node,
            f"{many}{there}the program has {found[place]:.10g} where {{against}} has {float(expected[place]):.10g}",
        )
        if odd:
            self.noted.append(difference)
            return None
        return difference

    def _places(self, expr: Expr, axes: Sequence[Axis]) -> list[_Places]:
        """Which places along each axis are evaluated: all, or as many as the sample may have."""
        counts = {a: self._size(a) for a in axes}

        def size(axis: Axis) -> int:
            return counts[axis] if axis in counts else self._size(axis)

        def much() -> bool:
            made = formula_work(expr, axes, size)
            return made.elements + made.reads > _SAMPLE

        while max(counts.values(), default=1) > 1 and much():
            longest = max(counts, key=lambda a: counts[a])
            counts[longest] = -(-counts[longest] // 2)
        return [_spread(self._size(a), counts[a]) for a in axes]


@dataclass(frozen=True, slots=True)
class _Places:
    first: int
    step: int
    count: int


def _spread(size: int, count: int) -> _Places:
    """So many places along an axis, up to its last; an odd number apart, so that they meet every residue."""
    if count >= size:
        return _Places(0, 1, size)
    step = max(1, (size - 1) // max(1, count - 1))
    step -= step % 2 == 0
    return _Places(size - 1 - step * (count - 1), step, count)


class _Widening(NumpyArrays):
    """numpy in float64 over arrays of any type: what is read is widened.

    Where asked, results that are rounded, and floats that are read, are moved by a relative step, up or down.
    """

    def __init__(self, step: float = 0.0, seed: int = 0, reads: bool = True) -> None:
        self._step = step
        self._reads = reads
        self._seed = seed
        self._moves = 0

    def _read(self, taken: Array) -> Array:
        array = np.asarray(taken)
        wide = np.asarray(array, dtype=np.float64)
        return self._moved(wide) if array.dtype.kind == "f" and self._reads else wide

    def _moved(self, array: Array) -> Array:
        if not self._step:
            return array
        self._moves += 1
        # Any part of the step, and another at every step: equal signs would let a difference of two stand still.
        rng = np.random.default_rng([self._moves, self._seed])
        return array * (1.0 + self._step * rng.uniform(-1.0, 1.0, np.shape(array)))

    def strided(
        self, array: Array, shape: Sequence[int], first: Sequence[int], steps: Sequence[Sequence[int]]
    ) -> Array | None:
        """See Arrays."""
        return self._read(super().strided(array, shape, first, steps))

    def gather(self, array: Array, indices: Sequence[Array], valid: Array | None) -> Array:
        """See Arrays."""
        taken = np.asarray(super().gather(array, indices, valid))
        return self._read(taken if array.dtype.kind == "f" else taken.astype(np.float64))

    def pointwise(self, op: str, args: Sequence[Array]) -> Array:
        """See Arrays."""
        made = super().pointwise(op, args)
        if not self._step or not (op in ROUNDED or op in ("sub", "div")):
            return made
        exact = op in ("add", "sub", "mul") and np.logical_and.reduce(
            [np.broadcast_to(_short(a), np.shape(made)) for a in (*args, made)]
        )
        return np.where(exact, made, self._moved(made))

    def reduce(self, kind: ReduceKind, array: Array, dims: Sequence[int]) -> Array:
        """See Arrays."""
        made = super().reduce(kind, array, dims)
        return self._moved(made) if kind in (ReduceKind.SUM, ReduceKind.PROD) else made

    def added(self, shape: Sequence[int], indices: Sequence[Array], valid: Array, terms: Array) -> Array:
        """See Arrays."""
        return self._moved(super().added(shape, indices, valid, terms))

    def matmul(self, a: Array, b: Array) -> Array:
        """See Arrays."""
        return self._moved(super().matmul(a, b))


def _short(array: Array) -> Array:
    """Where numbers have so few digits that sums and products of two of them are exact."""
    scaled = np.asarray(array, dtype=np.float64) * 2.0**12
    return (scaled == np.floor(scaled)) & (np.abs(scaled) < 2.0**38)


_BEYOND = float(np.finfo(np.float32).max) * (1 - 1e-6)
"""No type but float64 holds larger numbers."""


def _wrong(found: np.ndarray, expected: np.ndarray, dtype: DType, precision: Precision) -> np.ndarray:
    """Where the two are not the same up to the precision; integers and truth values are exact."""
    wide = np.asarray(expected, dtype=np.float64)
    with np.errstate(all="ignore"):
        same = np.asarray((found == wide) | (np.isnan(found) & np.isnan(wide)))
        if dtype.is_float and dtype is not DType.FLOAT64:
            # What the type overflows to; limits that mean none, as Clip's were, are its last number.
            same |= (np.sign(found) == np.sign(wide)) & (np.minimum(np.abs(found), np.abs(wide)) >= _BEYOND)
        if same.all():
            return ~same
        error = np.abs(found - wide)
        if not dtype.is_float:
            return np.asarray(~(same | ((np.abs(wide) > EXACT) & (error <= 1e-15 * np.abs(wide)))))
        finite = np.abs(wide[np.isfinite(wide)])
        largest = float(finite.max()) if finite.size else 0.0
        allowed = precision.relative * np.abs(wide) + precision.absolute * largest + _UNDERFLOW.get(dtype, 0.0)
        return np.asarray(~(same | (np.isfinite(wide) & (error <= allowed))))


def _shapes(mine: Sequence[int], theirs: Sequence[int]) -> str:
    return f"the program has the shape {list(mine)} where {{against}} has {list(theirs)}"


def _decides(expr: Expr) -> bool:
    return any(isinstance(e, Map) and e.op in _DECIDING for e in walk(expr))


def _decides_on_rounding(expr: Expr) -> bool:
    """Whether a rounding or a comparison in it is of something that is rounded itself."""
    return any(isinstance(e, Map) and e.op in _DECIDING and _rounds(e) for e in walk(expr))


def _decides_exactly(expr: Expr) -> bool:
    """Whether a rounding or a comparison in it is of stored numbers as they are."""
    return any(
        # a sign stays what it is where its operand moves relative to itself
        isinstance(e, Map)
        and e.op in _DECIDING - {"sign"}
        and not _rounds(e)
        and any(isinstance(r, Read) for r in walk(e))
        for e in walk(expr)
    )


def _rounds(expr: Expr) -> bool:
    return any(
        (isinstance(e, Map) and e.op in ROUNDED)
        or (isinstance(e, Reduce) and e.kind in (ReduceKind.SUM, ReduceKind.PROD))
        for e in walk(expr)
    )


def some(nodes: Sequence[str]) -> str:
    """The nodes as text, and how many more there are than a line takes."""
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(nodes[:_NAMED]) + more


def unchecked(why: str) -> Conformance:
    """The record of a program that could not be compared."""
    return Conformance(missing=why)


@dataclass(slots=True)
class Draws:
    """What became of the draws that a program is compared on."""

    runtime: str  # says what the values are
    done: list[str] = field(default_factory=list)  # by name
    skipped: list[str] = field(default_factory=list)  # the others and why, and what was noted of those
    elements: int = 0  # how many were evaluated

    def add(self, name: str, compared: Comparison, why: str) -> None:
        """One draw; `why` there was nothing to compare with, or empty."""
        self.elements += compared.elements
        if why:
            self.skipped.append(f"{name}: {why[:200]}")
        else:
            self.done.append(name)
            self.skipped += [f"{name}: {d.node}: {d.what.format(against=self.runtime)}" for d in compared.noted]

    def record(self, against: str, extents: str = "", missing: str = "", *, none: str) -> Conformance:
        """The record; `none` says why there is no draw, where nothing else does."""
        if not self.done:
            return unchecked("; ".join(self.skipped) or none)
        return Conformance(against, tuple(self.done), extents, self.elements, tuple(self.skipped), missing)
