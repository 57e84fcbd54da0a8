"""Index expressions: which element of a dimension a read takes, as a function of named axes.

    index ::= sum of coefficient * atom, plus an offset
    atom  ::= axis | index // extent | index % extent

After inlining, `//` and `%` are gone: an axis that is still divided is split into factors (see `inline.py`), so what
the e-graph, the sGraph and the backends see is affine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from prism.program.deferred import Deferred
from prism.program.extents import Extent, add, at_most, exact_quotient, is_static, mul, normal, strides_of

if TYPE_CHECKING:
    import sympy
else:
    sympy = Deferred("sympy")


_AXES: dict[tuple[str, Extent], Axis] = {}
"""Every axis by what it is. Axes are told apart and looked up by the million in a search, names and extents are few."""


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Axis:
    """A named axis. Two axes are the same axis, and one object, when name and extent agree."""

    name: str
    extent: Extent

    def __new__(cls, name: str, extent: Extent) -> Axis:
        """The one object for the name and the extent."""
        key = name, normal(extent)
        known = _AXES.get(key)
        if known is None:
            made = object.__new__(cls)
            object.__setattr__(made, "name", name)
            object.__setattr__(made, "extent", key[1])
            # Another thread may have been first.
            known = _AXES.setdefault(key, made)
        return known

    def __reduce__(self) -> tuple[type[Axis], tuple[str, Extent]]:
        return Axis, (self.name, self.extent)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """value // divisor, for value >= 0 and divisor > 0."""

    value: Index
    divisor: Extent

    def __str__(self) -> str:
        return f"({self.value})//{self.divisor}"


@dataclass(frozen=True, slots=True)
class Mod:
    """value % divisor, for value >= 0 and divisor > 0."""

    value: Index
    divisor: Extent

    def __str__(self) -> str:
        return f"({self.value})%{self.divisor}"


Atom: TypeAlias = Axis | FloorDiv | Mod


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """sum(coefficient * atom) + offset, the terms sorted by the atom's text and no coefficient zero."""

    terms: tuple[tuple[Atom, Extent], ...]
    offset: Extent = 0
    _hash: int | None = field(default=None, init=False, repr=False)
    _axes: frozenset[Axis] | None = field(default=None, init=False, repr=False)

    def __hash__(self) -> int:
        # Indices are looked up far more often than they are made.
        known = self._hash
        if known is None:
            known = hash((self.terms, self.offset))
            object.__setattr__(self, "_hash", known)
        return known

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Index) and self.terms == other.terms and self.offset == other.offset

    def __reduce__(self) -> tuple[object, ...]:
        # The hash of a string differs between processes.
        return (Index, (self.terms, self.offset))

    @staticmethod
    def axis(axis: Axis) -> Index:
        """The index that is the axis itself (0 when the axis has extent 1)."""
        if axis.extent == 1:
            return Index(())
        return Index(((axis, 1),))

    @staticmethod
    def const(value: Extent) -> Index:
        """The same element for every assignment of the axes."""
        return Index((), normal(value))

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, add(self.offset, other))
        return _added(self, other)

    def scaled(self, factor: Extent) -> Index:
        """factor * self."""
        return _scaled(self, factor)

    def floordiv(self, divisor: Extent) -> Index:
        """self // divisor, simplified; self must not be negative."""
        if divisor == 1:
            return self
        whole, rest = self._split(divisor)
        if rest.within(divisor):
            return whole
        near, left = self._nearest(divisor)
        return near if left.within(divisor) else whole + Index(((FloorDiv(rest, divisor), 1),))

    def mod(self, divisor: Extent) -> Index:
        """self % divisor, simplified; self must not be negative."""
        if divisor == 1:
            return Index(())
        _, rest = self._split(divisor)
        if rest.within(divisor):
            return rest
        _, left = self._nearest(divisor)
        return left if left.within(divisor) else Index(((Mod(rest, divisor), 1),))

    def _split(self, divisor: Extent) -> tuple[Index, Index]:
        """(q, r) with self = divisor*q + r, r holding the terms whose coefficient the divisor does not divide."""
        whole: dict[Atom, Extent] = {}
        rest: dict[Atom, Extent] = {}
        for atom, c in self.terms:
            q = exact_quotient(c, divisor)
            if q is None:
                rest[atom] = c
            else:
                whole[atom] = q
        q = exact_quotient(self.offset, divisor)
        if isinstance(self.offset, int) and isinstance(divisor, int):
            return _index(whole, self.offset // divisor), _index(rest, self.offset % divisor)
        if q is not None:
            return _index(whole, q), _index(rest, 0)
        return _index(whole, 0), _index(rest, self.offset)

    def _nearest(self, divisor: Extent) -> tuple[Index, Index]:
        """(q, r) with self = divisor*q + r, r of the coefficients nearest to 0: rows of a length less 1 drift by one.

        So `47*i + j + 24`, for i and j below 24, is `48*i + (24 - i + j)`: how scores are shifted by their row.
        """
        whole, rest = self._split(divisor)
        quotients, rests = dict(whole.terms), dict(rest.terms)
        for atom, c in rest.terms:
            q = (2 * c + divisor) // (2 * divisor) if isinstance(c, int) and isinstance(divisor, int) else 1
            r = add(c, mul(-q, divisor))
            if q and is_static(r):
                quotients[atom] = add(quotients.get(atom, 0), q)
                rests[atom] = r
        return _index(quotients, whole.offset), _index(rests, rest.offset)

    def upper(self) -> Extent | None:
        """At most this for all values of its axes; None where the sign of a coefficient is not known."""
        return self._bound(upwards=True)

    def lower(self) -> Extent | None:
        """At least this, likewise."""
        return self._bound(upwards=False)

    def _bound(self, upwards: bool) -> Extent | None:
        """No less, or no more, than any value: each term at its end, of which the other one is 0."""
        total = self.offset
        for atom, c in self.terms:
            adds, takes = at_most(0, c), at_most(c, 0)
            if takes if upwards else adds:
                continue
            top = _largest(atom) if adds or takes else None
            if top is None:
                return None
            total = add(total, mul(c, top))
        return total

    @property
    def never_negative(self) -> bool:
        """Whether it is known to be at least 0 for all values of its axes and of the symbols."""
        return _never_negative(self)

    def ends(self) -> tuple[Extent, Extent] | None:
        """The least and the largest value over the boxes of its axes, both attained, in the symbols.

        None where it is not affine, or the sign of a coefficient is not known.
        """
        low = high = self.offset
        for atom, c in self.terms:
            if not isinstance(atom, Axis):
                return None
            if at_most(0, c):
                high = add(high, mul(c, add(atom.extent, -1)))
            elif at_most(c, 0):
                low = add(low, mul(c, add(atom.extent, -1)))
            else:
                return None
        return low, high

    def within(self, bound: Extent) -> bool:
        """Whether 0 <= self < bound is known to hold for every assignment of the axes."""
        low, top = self.lower(), self.upper()
        return low is not None and top is not None and at_most(0, low) and at_most(add(top, 1), bound)

    def slope(self, axis: Axis) -> int:
        """The coefficient of the axis, 0 where there is none or it is not a known number."""
        c = dict(self.terms).get(axis, 0)
        return int(c) if is_static(c) else 0

    def substitute(self, mapping: Mapping[Axis, Index]) -> Index:
        """The index with axes replaced by indices, simplified again."""
        result = Index((), self.offset)
        for atom, c in self.terms:
            match atom:
                case Axis():
                    part = mapping[atom] if atom in mapping else Index(((atom, 1),))
                case FloorDiv(value, divisor):
                    part = value.substitute(mapping).floordiv(divisor)
                case Mod(value, divisor):
                    part = value.substitute(mapping).mod(divisor)
            result = result + part.scaled(c)
        return result

    def axes(self) -> frozenset[Axis]:
        """The axes that the index mentions."""
        known = self._axes
        if known is None:
            known = frozenset(self._mentioned())
            object.__setattr__(self, "_axes", known)
        return known

    def _mentioned(self) -> Iterator[Axis]:
        for atom, _ in self.terms:
            match atom:
                case Axis():
                    yield atom
                case FloorDiv(value, _) | Mod(value, _):
                    yield from value.axes()

    def extents(self) -> Iterator[Extent]:
        """The offset, the coefficients and what is divided by."""
        yield self.offset
        for atom, c in self.terms:
            yield c
            if not isinstance(atom, Axis):
                yield atom.divisor
                yield from atom.value.extents()

    def is_affine(self) -> bool:
        """Whether no `//` or `%` is left."""
        return all(isinstance(atom, Axis) for atom, _ in self.terms)

    def digits(self) -> list[tuple[int, Axis]]:
        """(unit, axis) for each digit, the last one first, where each value of a range is taken once; else none."""
        plain = [(int(c), a) for a, c in self.terms if isinstance(a, Axis) and is_static(c) and is_static(a.extent)]
        found = sorted(plain, key=lambda x: (x[0], x[1].name))
        unit = 1
        for c, a in found:
            if c != unit:
                return []
            unit *= int(a.extent)
        return found if len(found) == len(self.terms) else []

    def as_axis(self) -> Axis | None:
        """The axis, when the index is exactly one axis."""
        match self.terms:
            case ((Axis() as axis, 1),) if self.offset == 0:
                return axis
            case _:
                return None

    def __str__(self) -> str:
        parts = [
            str(a) if c == 1 else f"{c}*{a}" if not isinstance(c, sympy.Add) else f"({c})*{a}" for a, c in self.terms
        ]
        if self.offset != 0 or not parts:
            parts.append(str(self.offset))
        return " + ".join(parts).replace("+ -", "- ")


def _index(terms: Mapping[Atom, Extent], offset: Extent) -> Index:
    for atom, c in terms.items():
        # d*(v//d) + v%d is v
        if isinstance(atom, FloorDiv) and c != 0:
            rest = Mod(atom.value, atom.divisor)
            once = terms.get(rest, 0)
            if once != 0 and c == mul(once, atom.divisor):
                left = {a: k for a, k in terms.items() if a not in (atom, rest)}
                return _index(left, offset) + atom.value.scaled(once)
    kept = [(a, c) for a, c in terms.items() if c != 0]
    kept.sort(key=lambda t: str(t[0]))
    return Index(tuple(kept), offset)


def row_major(axes: Sequence[Axis]) -> Index:
    """The place of an element among those of all axes, the last axis fastest."""
    total = Index.const(0)
    for axis, stride in zip(axes, strides_of([a.extent for a in axes]), strict=True):
        total = total + Index.axis(axis).scaled(stride)
    return total


# Few indices are asked of many times over.


@lru_cache(maxsize=4096)
def _added(one: Index, other: Index) -> Index:
    total: dict[Atom, Extent] = dict(one.terms)
    for atom, c in other.terms:
        total[atom] = add(total.get(atom, 0), c)
    return _index(total, add(one.offset, other.offset))


@lru_cache(maxsize=4096)
def _scaled(index: Index, factor: Extent) -> Index:
    return _index({a: mul(c, factor) for a, c in index.terms}, mul(index.offset, factor))


def _largest(atom: Atom) -> Extent | None:
    """The largest value of an atom, or a bound on it."""
    match atom:
        case Axis(_, extent):
            return add(extent, -1)
        case Mod(_, divisor):
            return add(divisor, -1)
        case FloorDiv(value, divisor):
            above = value.upper()
            if above is None or not is_static(above) or not is_static(divisor):
                return None
            return int(above) // int(divisor)


@lru_cache(maxsize=4096)
def _never_negative(index: Index) -> bool:
    low = index.lower()
    return low is not None and at_most(0, low)
