"""Values of expressions in the finite fields of the identity test, over a sample of their axes; see testing.py."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prism.program.arrays import NUMPY
from prism.program.identity.constants import Meaning
from prism.program.identity.field import Field, Numbers, mix
from prism.program.identity.sample import Sample
from prism.program.index import Axis, FloorDiv, Index, Mod
from prism.program.nodes import Const, DType, Expr, Map, Position, Read, Reduce, ReduceKind, Size
from prism.program.transform import Numbering

ORACLES = ("erf", "atan", "bitand", "sin", "cos")
"""Operations that are random functions here: nothing is known of them but that they are odd, even or symmetric."""
LARGEST_POWER = 64
"""Of powers that are products; larger ones are random functions."""


@dataclass(frozen=True, slots=True)
class NamedNumbers:
    """Numbers with one dimension per axis, after those of levels and draws; axes as they were first met."""

    axes: tuple[Axis, ...]
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class Drawn:
    """Elements of a tensor that were read: an index per dimension, [axes...], and what was drawn for them."""

    places: tuple[np.ndarray, ...]
    numbers: Numbers


@dataclass(slots=True)
class Evaluator:
    """Evaluates expressions; equal sub-expressions once."""

    field: Field  # the arithmetic
    sample: Sample  # the values of the axes
    constants: Mapping[float, Meaning]  # what each constant is
    dtypes: Mapping[str, DType]  # of the tensors; float32 where one is missing
    scale: float  # of the shadows of inputs: small, so that sums over long axes stay in the range of exp
    read: dict[str, list[Drawn]] = dataclasses.field(default_factory=dict)
    _rank: dict[Axis, int] = dataclasses.field(default_factory=dict)
    _numbers: Numbering = dataclasses.field(default_factory=Numbering)
    _values: dict[int, NamedNumbers] = dataclasses.field(default_factory=dict)

    def value(self, expr: Expr) -> NamedNumbers:
        """The value of an expression over the samples of its free axes."""
        number = self._numbers.of(expr)
        if number not in self._values:
            with np.errstate(all="ignore"):
                self._values[number] = self._compute(expr)
        return self._values[number]

    def over(self, value: NamedNumbers, axes: Sequence[Axis]) -> Numbers:
        """The numbers aligned to axes, which hold the value's own; extent 1 for those that it lacks."""
        ordered = self._order(axes)
        return self._align(value, ordered)

    def _order(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        for a in axes:
            self._rank.setdefault(a, len(self._rank))
        return tuple(sorted(set(axes), key=lambda a: self._rank[a]))

    def ordered(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """The axes in the order of dimensions."""
        return self._order(axes)

    def _compute(self, expr: Expr) -> NamedNumbers:
        match expr:
            case Const(number):
                return NamedNumbers((), self._constant(number))
            case Size(extent):
                return NamedNumbers((), self.field.integers(np.asarray(self.sample.size(extent))))
            case Position(index):
                axes = self._order(sorted(index.axes(), key=str))
                return NamedNumbers(axes, self.field.integers(self._index(index, axes)))
            case Read(tensor, indices):
                return self._read(tensor, indices)
            case Reduce(kind, axis, body):
                return self._reduce(kind, axis, self.value(body))
            case Map("log", (Map("exp", (a,)),)):
                return self.value(a)
            case Map("mul", (Const(c), a)) | Map("mul", (a, Const(c))) if float(c).is_integer():
                value = self.value(a)
                return NamedNumbers(value.axes, self._scaled(value.numbers, c))
            case Map("pow", (a, Const(c))) if (2 * c).is_integer() and abs(c) <= LARGEST_POWER:
                if c.is_integer():
                    value = self.value(a)
                    return NamedNumbers(value.axes, self.field.power(value.numbers, int(c)))
                root = self.value(Map("sqrt", (a,)))
                return NamedNumbers(root.axes, self.field.power(root.numbers, int(2 * c)))
            case Map("sqrt", (a,)):
                return self._root(a)
            case Map(op, args):
                values = [self.value(a) for a in args]
                axes = self._order([a for v in values for a in v.axes])
                return NamedNumbers(axes, self._pointwise(op, [self._align(v, axes) for v in values]))
        raise TypeError(f"not an expression: {expr!r}")

    def _root(self, a: Expr) -> NamedNumbers:
        """The square root; undefined where a factor of several has a residue that its sign does not go with.

        The residue of 1 + x^2 need not be a square, so the root of its square, which is one, would be another number.
        """
        value, factors = self.value(a), _factors(a)
        root = self.field.sqrt(value.numbers)
        if len(factors) > 1:
            for e in dict.fromkeys(factors):
                own = self._align(self.value(e), value.axes)
                root = dataclasses.replace(root, d=root.d & self.field.goes_with_sign(own))
        return NamedNumbers(value.axes, root)

    def _constant(self, number: float) -> Numbers:
        if not math.isfinite(number):
            return self.field.constant([None] * self.field.levels, number)
        meaning = self.constants[number]
        return self.field.constant([meaning.residue(p) for p in self.field.primes], number)

    def _scaled(self, a: Numbers, c: float) -> Numbers:
        one = self._constant(c)
        return self.field.mul(a, one.mapped([slice(None), slice(None)] + [None] * (a.f.ndim - 2)), int(c))

    @staticmethod
    def _align(value: NamedNumbers, axes: tuple[Axis, ...]) -> Numbers:
        if value.axes == axes:
            return value.numbers
        own = set(value.axes)
        return value.numbers.mapped([slice(None), slice(None), *(slice(None) if a in own else None for a in axes)])

    # Leaves

    def _index(self, index: Index, axes: tuple[Axis, ...]) -> np.ndarray:
        """The values of an index at the samples of the axes, int64."""
        total = np.full([1] * len(axes), self.sample.size(index.offset), dtype=np.int64)
        for atom, coefficient in index.terms:
            match atom:
                case Axis():
                    part = self.sample.of(atom).values.reshape([-1 if a == atom else 1 for a in axes])
                case FloorDiv(inner, divisor):
                    part = self._index(inner, axes) // self.sample.size(divisor)
                case Mod(inner, divisor):
                    part = self._index(inner, axes) % self.sample.size(divisor)
            total = total + part * self.sample.size(coefficient)
        return total

    def _read(self, tensor: str, indices: tuple[Index, ...]) -> NamedNumbers:
        axes = self._order([a for i in indices for a in sorted(i.axes(), key=str)])
        places = tuple(self._index(i, axes) for i in indices)
        keys = np.full([1] * len(axes), zlib.crc32(tensor.encode()), dtype=np.uint64)
        for place in places:
            keys = mix(keys * np.uint64(31) + place.astype(np.uint64))
        dtype = self.dtypes.get(tensor, DType.FLOAT32)
        whole = 0 if dtype.is_float else 2 if dtype is DType.BOOL else 4
        numbers = self.field.drawn(keys, self.scale, whole)
        self.read.setdefault(tensor, []).append(Drawn(places, numbers))
        return NamedNumbers(axes, numbers)

    # Reductions

    def _reduce(self, kind: ReduceKind, axis: Axis, value: NamedNumbers) -> NamedNumbers:
        field, numbers = self.field, value.numbers
        if axis not in value.axes:
            n = self.sample.length(axis)
            match kind:
                case ReduceKind.SUM:
                    length = field.integers(np.full([1] * len(value.axes), n))
                    return NamedNumbers(value.axes, field.mul(numbers, length, n))
                case ReduceKind.PROD:
                    return NamedNumbers(value.axes, field.power(numbers, n))
            return value
        place = value.axes.index(axis)
        rest = value.axes[:place] + value.axes[place + 1 :]
        points, dim = self.sample.of(axis), place + 2
        match kind:
            case ReduceKind.SUM:
                return NamedNumbers(rest, field.sum(numbers, dim, points.weights))
            case ReduceKind.PROD:
                return NamedNumbers(rest, field.product(numbers, dim, points.weights))
            case ReduceKind.MAX:
                return NamedNumbers(rest, field.largest(numbers, dim))
            case ReduceKind.MIN:
                return NamedNumbers(rest, field.neg(field.largest(field.neg(numbers), dim)))

    # Pointwise

    def _pointwise(self, op: str, args: Sequence[Numbers]) -> Numbers:
        field, a = self.field, args[0]
        simple: Mapping[str, Callable[..., Numbers]] = {
            "add": field.add, "mul": field.mul, "neg": field.neg, "recip": field.recip, "exp": field.exp,
            "log": field.log, "sqrt": field.sqrt, "where": field.where, "eq": field.equal,
        }  # fmt: skip
        if op in simple:
            return simple[op](*args)
        zero = self._like(0, a)
        match op:
            case "sigmoid":
                return self._sigmoid(a)
            case "tanh":
                double = field.mul(self._like(2, a), self._sigmoid(field.mul(self._like(2, a), a)))
                whole = field.add(double, self._like(-1, a))
                return Numbers(whole.f, whole.d, np.tanh(a.r))
            case "lt" | "le":
                return field.less(a, args[1], op == "le")
            case "maximum":
                return field.where(field.less(a, args[1], True), args[1], a)
            case "minimum":
                return field.where(field.less(a, args[1], True), a, args[1])
            case "abs":
                return field.where(field.less(a, zero, False), field.neg(a), a)
            case "sign":
                below = field.where(field.less(a, zero, False), self._like(-1, a), zero)
                return field.where(field.less(zero, a, False), self._like(1, a), below)
            case "floor" | "round":
                return self._rounded(a, op)
            case "and" | "or":
                both = (a.r != 0) & (args[1].r != 0) if op == "and" else (a.r != 0) | (args[1].r != 0)
                return field.truth(both, ~np.isnan(a.r) & ~np.isnan(args[1].r))
            case "not":
                return field.truth(a.r == 0, ~np.isnan(a.r))
            case "isnan":
                return field.truth(np.isnan(a.r), ~np.isnan(a.r))
            case "cos" | "sin":
                real = np.cos(a.r) if op == "cos" else np.sin(a.r)
                return field.oracle(zlib.crc32(op.encode()) >> 9, [a], real, 1 if op == "cos" else -1)
            case "log2":
                return field.mul(field.log(a), field.recip(field.log(self._like(2, a))))
            case "atan":
                return field.oracle(zlib.crc32(op.encode()) >> 9, [a], np.arctan(a.r), -1)
            case "bitand":  # whichever operand comes first
                both = [field.add(a, args[1]), field.mul(a, args[1])]
                return field.oracle(zlib.crc32(op.encode()) >> 9, both, NUMPY.pointwise(op, [a.r, args[1].r]))
            case "erf":
                real = np.array([math.erf(x) if math.isfinite(x) else math.nan for x in a.r.ravel()]).reshape(a.r.shape)
                return field.oracle(zlib.crc32(op.encode()) >> 9, [a], real, -1)
            case "pow":
                return field.oracle(zlib.crc32(op.encode()) >> 9, args, np.power(a.r, args[1].r))
        return field.oracle(zlib.crc32(op.encode()) >> 9, args, np.full((1, 1, *[1] * (a.f.ndim - 2)), np.nan))

    def _like(self, n: int, a: Numbers) -> Numbers:
        return self.field.integers(np.full([1] * (a.f.ndim - 2), n))

    def _sigmoid(self, a: Numbers) -> Numbers:
        field = self.field
        made = field.recip(field.add(self._like(1, a), field.exp(field.neg(a))))
        return Numbers(made.f, made.d, 1 / (1 + np.exp(-a.r)))

    def _rounded(self, a: Numbers, op: str) -> Numbers:
        """Whole numbers by the shadow; undefined close to a step, unless it is known to be on it."""
        n = np.floor(a.r) if op == "floor" else np.rint(a.r)
        finite = np.isfinite(n) & (np.abs(n) < 1 << 53)
        step = np.abs(a.r - np.rint(a.r)) if op == "floor" else np.abs(np.abs(a.r - np.trunc(a.r)) - 0.5)
        whole = np.where(finite, n, 0.0).astype(np.int64)
        residues = np.concatenate([(whole % p).astype(np.uint64) for p in self.field.primes])
        on = (residues == a.f).all(axis=0, keepdims=True) & a.d.all(axis=0, keepdims=True)
        return Numbers(residues, finite & ((step > 1e-6) | on), n)


def _factors(e: Expr) -> list[Expr]:
    """What is multiplied to a value, or divides it, as often as it is."""
    match e:
        case Map("mul", (x, y)):
            return [*_factors(x), *_factors(y)]
        case Map("recip", (x,)):
            return _factors(x)
        case Map("pow", (x, Const(c))) if c.is_integer() and 1 <= abs(c) <= LARGEST_POWER:
            return _factors(x) * int(abs(c))
    return [] if isinstance(e, Const | Size | Position) else [e]
