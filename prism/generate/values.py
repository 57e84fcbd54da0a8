"""Values of one kernel: a DAG of what it computes, with every reduced axis named apart from the grid's axes.

    value ::= read(tensor, index) | const | position(index) | pointwise op
            | reduce(kind, axis; src)       a statistic's kind as well
            | contract(axis; lhs, rhs) | rescaled(axis; p, m) | rescaled(axis; p, f, m)     p = exp(a - m), or a sum or
                                            a contraction of that over another axis
            | first(axis; where(v == m, place, n), m)       the first place of the extreme m of v
            | merge(part; squares, counts, means, rests)    a statistic of all parts of a split, from their moments
            | scan(axis; src) | scan(axis; src, growth)     the prefix sums of src along the axis, which both have
            | before(axis; src) | before(axis; src, growth) the same without each place's own
            | gather(fetch; places) a tensor at places along some of its dimensions

Built from the choices of an extraction: an e-class becomes a value under a renaming of its axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

from prism.errors import UnsupportedError
from prism.generate.options import FIRST, REDUCTIONS, Choices, Chosen, Over
from prism.generate.scans import Along
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Position, Read, ReduceKind, Size
from prism.program.prefix import Recurrence
from prism.program.transform import least_instance
from prism.sgraph.nodes import Kind, Statistic

Renaming: TypeAlias = "frozenset[tuple[Axis, Axis]] | None"
UNCHANGED: Mapping[Axis, Axis] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a scan goes along, and how."""

    axis: Axis
    how: Recurrence


@dataclass(frozen=True, slots=True)
class Fetch:
    """What a gather reads."""

    tensor: str
    index: tuple[Index, ...]  # without the places
    # For each operand, the dimension that it is a place along, and how many places there are.
    places: tuple[tuple[int, Extent], ...]


@dataclass(frozen=True, slots=True, eq=False)
class KernelValue:
    """One value; identity is equality, because a `Values` makes each only once."""

    op: str  # see the module's grammar
    # The Read, Const or Position of a leaf; the axis of a reduction or a scan; what a gather reads.
    payload: Read | Const | Position | Axis | Fetch | Scanned | None
    args: tuple[KernelValue, ...]  # operands
    axes: frozenset[Axis]  # the axes that it depends on
    kind: Kind | None  # of a reduction
    number: int  # its place in the order of making, operands before results

    @property
    def is_reduction(self) -> bool:
        """Whether an axis is reduced here."""
        return self.kind is not None

    @property
    def axis(self) -> Axis:
        """The reduced axis."""
        assert isinstance(self.payload, Axis)
        return self.payload


@dataclass(slots=True)
class Values:
    """Makes values, each once."""

    made: dict[tuple[object, ...], KernelValue] = field(default_factory=dict)

    def make(
        self,
        op: str,
        args: tuple[KernelValue, ...] = (),
        payload: Read | Const | Position | Axis | Fetch | Scanned | None = None,
        axes: frozenset[Axis] | None = None,
        kind: Kind | None = None,
    ) -> KernelValue:
        """The value; `axes` defaults to the union of the operands' axes, less a reduced one."""
        key = (op, payload, tuple(a.number for a in args), kind)
        known = self.made.get(key)
        if known is not None:
            return known
        if axes is None:
            axes = frozenset(x for a in args for x in a.axes)
            if kind is not None:
                assert isinstance(payload, Axis)
                axes -= {payload}
        made = KernelValue(op, payload, args, axes, kind, len(self.made))
        self.made[key] = made
        return made

    def read(self, tensor: str, index: tuple[Index, ...]) -> KernelValue:
        """A tile of a tensor."""
        return self.make("read", (), Read(tensor, index), frozenset(a for i in index for a in i.axes()))

    def const(self, number: float) -> KernelValue:
        """A number."""
        return self.make("const", (), Const(number), frozenset())

    def reduce(self, kind: Kind, axis: Axis, src: KernelValue) -> KernelValue:
        """The reduction of src over the axis; a product under a sum becomes a contraction where it can."""
        return self.make("reduce", (src,), axis, None, kind)

    def contract(self, axis: Axis, lhs: KernelValue, rhs: KernelValue) -> KernelValue:
        """The contraction sum_axis lhs*rhs; where there is one of the same two the other way round, that."""
        swapped = self.made.get(("contract", axis, (rhs.number, lhs.number), ReduceKind.SUM))
        return swapped or self.make("contract", (lhs, rhs), axis, None, ReduceKind.SUM)

    def merge(self, part: Axis, *moments: KernelValue) -> KernelValue:
        """The statistic of all parts of a split axis, from the moments of each."""
        return self.make("merge", moments, part, None, Statistic.MERGED)

    def rescaled(
        self, axis: Axis, exponent: KernelValue, shift: KernelValue, factor: KernelValue | None
    ) -> KernelValue:
        """sum_axis exp(exponent - shift) * factor, the shift a running value of the same pass."""
        p = self.shifted(exponent, shift)
        args = (p, shift) if factor is None else (p, factor, shift)
        return self.make("rescaled", args, axis, None, ReduceKind.SUM)

    def rescaled_over(
        self, axes: tuple[Axis, Axis], exponent: KernelValue, shift: KernelValue, factor: KernelValue | None
    ) -> KernelValue:
        """The same over two axes, of which the outer one's tiles may come one after another."""
        outer, inner = axes
        p = self.shifted(exponent, shift)
        src = self.reduce(ReduceKind.SUM, inner, p) if factor is None else self.contract(inner, p, factor)
        return self.make("rescaled", (src, shift), outer, None, ReduceKind.SUM)

    def shifted(self, exponent: KernelValue, shift: KernelValue) -> KernelValue:
        """exp(exponent - shift)."""
        minus = self.make("mul", (self.const(-1.0), shift))
        return self.make("exp", (self.make("add", (exponent, minus)),))

    def first(
        self, kind: ReduceKind, axis: Axis, value: KernelValue, beyond: KernelValue, undefined: KernelValue | None
    ) -> KernelValue:
        """The first place along the axis where the value is at its extreme, a running value of the same pass."""
        extreme = self.reduce(kind, axis, value)
        met = self.make("eq", (value, extreme))
        met = met if undefined is None else self.make("or", (undefined, met))
        place = self.make("position", (), Position(Index.axis(axis)), frozenset({axis}))
        return self.make("first", (self.make("where", (met, place, beyond)), extreme), axis, None, ReduceKind.MIN)


@dataclass(slots=True)
class Builder:
    """Turns e-classes into values."""

    choices: Choices  # how each e-class is computed
    class_axes: Mapping[int, frozenset[Axis]]  # the free axes of each e-class
    # e-classes that are read back from memory: their buffer's name, and where they are in it.
    stored: Mapping[int, tuple[str, tuple[Index, ...]]]
    # The name that a reduced axis takes in this kernel, for those that would clash with a grid axis.
    bound: Mapping[Axis, Axis]
    values: Values = field(default_factory=Values)  # where the values are made
    _memo: dict[tuple[int, Renaming], KernelValue] = field(default_factory=dict)

    def build(self, cls: int, renaming: Mapping[Axis, Axis] = UNCHANGED) -> KernelValue:
        """The value of an e-class, its free axes renamed."""
        live = renaming
        if renaming:
            free = self.class_axes[cls]
            live = {a: b for a, b in renaming.items() if a in free}
        key = (cls, frozenset(live.items())) if live else (cls, None)
        known = self._memo.get(key)
        if known is None:
            known = self._build(cls, live)
            self._memo[key] = known
        return known

    def _build(self, cls: int, live: Mapping[Axis, Axis]) -> KernelValue:
        mapping = {a: Index.axis(b) for a, b in live.items()}
        if cls in self.stored:
            name, index = self.stored[cls]
            return self.values.read(name, tuple(i.substitute(mapping) for i in index) if mapping else index)
        choice = self.choices[cls]
        match choice.op, choice.payload:
            case "read", Read(tensor, index):
                return self.values.read(tensor, tuple(i.substitute(mapping) for i in index) if mapping else index)
            case "const", Const() as c:
                return self.values.make("const", (), c, frozenset())
            case "size", Size(extent):
                index = (Index.const(extent),)
                return self.values.make("position", (), Position(index[0]), frozenset())
            case "position", Position(i):
                moved = i.substitute(mapping)
                return self.values.make("position", (), Position(moved), moved.axes())
            case "contract", Axis() as axis:
                inner, under = self._enter(axis, live)
                a, b = (self.build(c, under) for c in choice.children)
                return self.values.contract(inner, a, b)
            case "rescaled", Axis() as axis:
                inner, under = self._enter(axis, live)
                exponent = self.build(choice.children[0], under)
                shift = self.values.reduce(ReduceKind.MAX, inner, self.build(choice.children[1], under))
                factor = self.build(choice.children[2], under) if len(choice.children) == 3 else None
                return self.values.rescaled(inner, exponent, shift, factor)
            case "rescaled", Over((outer, inner)):
                first, under = self._enter(outer, live)
                second, under = self._enter(inner, under)
                exponent, of, *factors = (self.build(c, under) for c in choice.children)
                most = self.values.reduce(ReduceKind.MAX, first, self.values.reduce(ReduceKind.MAX, second, of))
                return self.values.rescaled_over((first, second), exponent, most, factors[0] if factors else None)
            case op, Axis() as axis if op in FIRST:
                inner, under = self._enter(axis, live)
                value, beyond, *undefined = (self.build(c, under) for c in choice.children)
                return self.values.first(FIRST[op], inner, value, beyond, undefined[0] if undefined else None)
            case "deviations", Axis() | Over():
                several = choice.payload.axes if isinstance(choice.payload, Over) else (choice.payload,)
                return self._deviations(choice.children[0], several, live)
            case "scan", Along(axis, owns, how, grows):
                place = live.get(axis, axis)
                operands = tuple(
                    self.build(c, live if own is None else {**{a: b for a, b in live.items() if a != own}, own: place})
                    for c, own in zip(choice.children, owns, strict=True)
                )
                if how.rescaled:
                    largest = Scanned(place, Recurrence(ReduceKind.MAX, back=how.back))
                    after = 3 if grows else 2
                    shift = self.values.make("scan", operands[1:after], largest)
                    src = self.values.shifted(operands[0], shift)
                    for factor in operands[after:]:
                        src = self.values.make("mul", (src, factor))
                    operands = (src, shift)
                return self.values.make("scan", operands, Scanned(place, how))
            case "gather", Chosen(element, axes) as chosen:
                apart = {**mapping, **{a: Index.const(0) for a in axes}}
                index = tuple(i.substitute(apart) for i in element.index)
                fetched = tuple((d, a.extent) for d, a in zip(chosen.dimensions, axes, strict=True))
                places = tuple(self.build(c, live) for c in choice.children)
                over = frozenset(a for i in index for a in i.axes()).union(*(p.axes for p in places))
                return self.values.make("gather", places, Fetch(element.tensor, index, fetched), over)
            case op, Axis() as axis if op in REDUCTIONS:
                inner, under = self._enter(axis, live)
                return self.values.reduce(ReduceKind(op), inner, self.build(choice.children[0], under))
            case op, None:
                return self.values.make(op, tuple(self.build(c, live) for c in choice.children))
            case op, payload:
                raise UnsupportedError(f"no value for the e-node {op} with {payload}", where="sGraph generation")

    def _deviations(self, cls: int, over: tuple[Axis, ...], live: Mapping[Axis, Axis]) -> KernelValue:
        """Squared deviations over the innermost of the axes, merged over the others."""
        inner, under = self._enter(over[0], live)
        if len(over) == 1:
            return self.values.reduce(Statistic.DEVIATIONS, inner, self.build(cls, under))
        return self.values.reduce(Statistic.MERGED, inner, self._deviations(cls, over[1:], under))

    def _enter(self, axis: Axis, live: Mapping[Axis, Axis]) -> tuple[Axis, Mapping[Axis, Axis]]:
        """The reduced axis' name in this kernel, and the renaming below it."""
        inner = self.bound.get(axis, axis)
        if live and inner in live.values():
            # A scan gave its axis' name to what is free here.
            bound = {a for c in self.choices.values() for a in c.reduced}
            own = frozenset(bound).union(*self.class_axes.values())
            inner = least_instance(axis.extent, own.union(live.values(), self.bound.values()))
        if inner == axis and axis not in live:
            return inner, live
        return inner, {**{a: b for a, b in live.items() if a != axis}, **({axis: inner} if inner != axis else {})}


@lru_cache(64)
def reachable(roots: tuple[KernelValue, ...]) -> tuple[KernelValue, ...]:
    """All values below the roots, operands before results."""
    seen: dict[int, KernelValue] = {}
    stack = list(roots)
    while stack:
        v = stack.pop()
        if v.number not in seen:
            seen[v.number] = v
            stack.extend(v.args)
    return tuple(seen[n] for n in sorted(seen))
