"""What an sGraph costs, symbolically: bytes moved, work, programs, loop trips, as functions of the unbound sizes.

A cost is a polynomial of few kinds of factors, kept as plain data, which evaluates fast on numbers and on numpy arrays
of tile sizes.

    size(N)            N, the elements of an axis that a masked access really touches
    padded(N, T)       T*ceil(N/T), or the power of two above N for a whole axis: the lanes that compute
    tiles(N, T)        ceil(N/T)
    parts(S)           S programs share the axis
    share(N, T, S)     ceil(ceil(N/T)/S), the tiles of one program's chunk
    visited(...)       the share of a ranged loop's tiles that programs visit on average (prism.cost.trip_counts)

A statement with value axes A runs, over all programs, on the product over the kernel's axes of: size for an axis in A;
tiles for a grid axis, or the axis of an enclosing loop, that is not in A; parts (times share in the loop) for a split
axis that is not in A; visited for every enclosing loop with a range. Of a load that no use looks at all of
(prism.sgraph.hidden), the share that is needed counts, by lines of memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import sympy

from prism.cost.compiled_expr import log2_ceil, value
from prism.cost.trip_counts import Visited, allowed, shown, visited
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.ops import OPS
from prism.sgraph import nodes as sg
from prism.sgraph.hidden import hidden, line
from prism.sgraph.products import dot_dims, is_dot, of_bytes, passed_on
from prism.sgraph.resident import in_one_launch

SECTOR_BYTES = 32
"""What a load brings to a GPU's first cache at least, bytes (data sheet)."""
LINE_BYTES = 128
"""A line of a GPU's caches, bytes (data sheet): four sectors. So much is what a store moves at least (measured on an
H100: runs of 32 and 64 bytes, each evicted first, took 5 to 10 times as long as all bytes do)."""
DEVIATION_WORK = 6
"""Multiply-adds for an element (by definition: two differences, their square, steps of its sum and of the mean)."""

FactorKind: TypeAlias = Literal["size", "padded", "tiles", "parts", "share"]
Binding: TypeAlias = Mapping[str, Any]
Step: TypeAlias = "tuple[int, Axis | None]"
# The enclosing loops, outermost first: the axis, and the share of its tiles that is visited where it has a range.
_Nest: TypeAlias = "tuple[tuple[Axis, Visited | None], ...]"


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of a monomial; see the module's table. `tile` is None for a whole axis."""

    kind: FactorKind
    extent: Extent
    tile: sg.Tile | None = None
    parts: sympy.Symbol | None = None

    def evaluate(self, binding: Binding) -> Any:
        """The factor's value under `binding` (symbol name to int or integer array)."""
        if self.kind == "size":
            return value(self.extent, binding)
        if self.kind == "parts":
            assert self.parts is not None
            return binding[self.parts.name]
        n = value(self.extent, binding)
        if self.tile is None:
            return next_power_of_two(n) if self.kind == "padded" else 1
        t = self.tile if isinstance(self.tile, int) else binding[self.tile.name]
        tiles = -(-n // t)
        if self.parts is not None:
            share = -(-tiles // binding[self.parts.name])
            return share if self.kind == "share" else share * binding[self.parts.name] * t
        return tiles if self.kind == "tiles" else tiles * t


@dataclass(frozen=True, slots=True)
class Monomial:
    """coefficient * product of the factors."""

    coefficient: int
    factors: tuple[Factor | Visited, ...]

    def evaluate(self, binding: Binding) -> Any:
        """The value under `binding` (symbol name to int or integer array)."""
        result: Any = self.coefficient
        for f in self.factors:
            result = result * f.evaluate(binding)
        return result

    def unpadded(self) -> Monomial:
        """The same of the elements that there are, without the lanes beyond them."""
        return replace(
            self,
            factors=tuple(
                replace(f, kind="size") if isinstance(f, Factor) and f.kind == "padded" else f for f in self.factors
            ),
        )

    def lower(self, hints: Binding, shares: dict[Visited, float] | None = None) -> int:
        """The least value over all assignments: whatever is not the size of an accessed axis is at least 1.

        `shares` remembers the least shares of loops with ranges between calls with the same hints.
        """
        known = {} if shares is None else shares
        result = self.coefficient
        share = 1.0
        for f in self.factors:
            if isinstance(f, Visited):
                if f not in known:
                    known[f] = f.lower(hints)
                share *= known[f]
            elif f.kind in ("size", "padded"):
                result *= value(f.extent, hints)
        return result if share == 1.0 else int(result * share)


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A sum of monomials."""

    terms: tuple[Monomial, ...]

    def evaluate(self, binding: Binding, shared: dict[int, Any] | None = None) -> Any:
        """The value under `binding` (symbol name to int or integer array).

        `shared` remembers the values of factors, by their `id`, between calls with the same binding and a kernel's own
        polynomials, which are of the same few factors.
        """
        memo = {} if shared is None else shared
        total: Any = 0
        for m in self.terms:
            product: Any = m.coefficient
            for f in m.factors:
                known = memo.get(id(f))
                if known is None:
                    known = memo[id(f)] = f.evaluate(binding)
                product = product * known
            total = total + product
        return total

    def lower(self, hints: Binding) -> int:
        """The least value over all assignments of tiles and splits; `hints` binds the extents' symbols."""
        shares: dict[Visited, float] = {}
        return sum(m.lower(hints, shares) for m in self.terms)


def _renamed(a: Index, b: Index) -> bool:
    """Whether both are one place along axes of the same length."""
    if len(a.terms) != 1 or len(b.terms) != 1 or a.offset != b.offset:
        return False
    ((x, c), (y, d)) = a.terms[0], b.terms[0]
    return c == d and isinstance(x, Axis) and isinstance(y, Axis) and x.extent == y.extent


def _ends(index: Index, lengths: Mapping[Axis, Any], binding: Binding) -> tuple[Any, Any]:
    """The first and the last place that it takes where so many places of each axis are looked at, from 0 on."""
    first = last = value(index.offset, binding)
    for a, c in index.terms:
        step = value(c, binding)
        far = step * ((lengths.get(a, 1) if isinstance(a, Axis) else 1) - 1)
        first, last = (first + far, last) if step < 0 else (first, last + far)
    return first, last


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store statement."""

    tensor: str  # the tensor's name
    store: bool  # whether it writes
    own: Monomial  # bytes of the distinct elements that it touches, as if each were touched once
    traffic: Monomial  # bytes over all programs and trips
    axes: frozenset[Axis]  # the axes that its index mentions
    index: tuple[Index, ...] = ()  # where it reads or writes
    # The loops that it is in, numbered as they come in the body: two over one axis are two passes.
    nest: tuple[int, ...] = ()
    # What lies side by side in memory, the last dimension first: the steps and the axes of its index, the smallest
    # first (None: as many places as the step), and its extent.
    row: tuple[tuple[tuple[Step, ...], Extent], ...] = ()
    element: int = 1  # bytes of an element
    adds: bool = False  # whether it is half of an addition at places, which is a load and a store
    places: int = 0  # of what is looked up or added at places, which, numbered as a kernel comes to them; or 0
    # Of one place of the last dimension, how many of them others of the same trip touch with it, its own among them:
    # they take the rest of each other's sectors.
    beside: int = 1

    @property
    def terms(self) -> Monomial:
        """How many elements it adds, where it does."""
        return replace(self.traffic, coefficient=self.traffic.coefficient // self.element)

    def sectors(self, sizes: Mapping[Axis, Any], binding: Binding, unit: int = SECTOR_BYTES) -> Any:
        """How many times its bytes it moves, at least 1: whole sectors, of which a tile's neighbours may be less.

        `sizes` are the lengths of all axes in a tile; `unit` are the bytes that are moved together: a sector's, or a
        line's. Where a tile has one place of what lies side by side, and several of the next axis, as every other
        element, it moves all between them, which others move as well.
        """
        run: Any = self.element * 1.0
        whole: Any = True
        apart: Any = 1.0
        for steps, extent in self.row:
            length = value(extent, binding)
            # What lies between places of the first axis is taken for loaded, too, by a neighbour of the access.
            (first, axis), *others = steps
            held: Any = first * (1 if axis is None else sizes.get(axis, 1))
            for step, axis in others:
                size: Any = 1 if axis is None else sizes.get(axis, 1)
                spread = np.logical_and(np.logical_and(held == first, held < step), size > 1)
                apart = np.where(np.logical_and(whole, spread), step / first, apart)
                held = np.where(np.logical_or(held >= step, spread), np.maximum(held, step * size), held)
            held = np.minimum(held, length)
            run, whole = np.where(whole, run * held, run), np.logical_and(whole, held >= length)
            if not np.count_nonzero(whole):
                break  # a tile has no dimension as a whole, so what lies beyond it is apart
        if not self.row:
            return 1.0
        return np.minimum(unit / self.element, apart * np.maximum(1.0, unit / run))

    def shifted(self, other: Access) -> frozenset[Axis] | None:
        """The axes along which it is a constant away from the other access; None where it is elsewhere altogether.

        Of axes that one has in the place of the other's, as long ones, both.
        """
        if (self.tensor, self.nest) != (other.tensor, other.nest):
            return None
        found: frozenset[Axis] = frozenset()
        for a, b in zip(self.index, other.index, strict=True):
            if a.terms != b.terms and not _renamed(a, b):
                return None
            if a != b:
                found |= a.axes() | b.axes()
        return found

    def renames(self, other: Access) -> bool:
        """Whether it touches the elements that the other access touches, under other names of axes."""
        return self.tensor == other.tensor and all(
            a == b or _renamed(a, b) for a, b in zip(self.index, other.index, strict=True)
        )

    def apart(self, other: Access, binding: Binding) -> float:
        """The share of elements that the other access does not touch, where that is a constant away; else 0."""
        common = 1.0
        for a, b in zip(self.index, other.index, strict=True):
            steps = [(str(atom), int(value(c, binding))) for atom, c in a.terms]
            if steps != [(str(atom), int(value(c, binding))) for atom, c in b.terms]:
                return 0.0
            distance = abs(int(value(a.offset, binding)) - int(value(b.offset, binding)))
            if not distance:
                continue
            if not steps or distance % math.gcd(*(c for _, c in steps)):
                return 1.0
            lengths = [int(value(x.extent, binding)) if isinstance(x, Axis) else math.inf for x, _ in a.terms]
            span = sum(abs(c) * (n - 1) for (_, c), n in zip(steps, lengths, strict=True))
            common *= max(0.0, 1 - distance / (span + math.gcd(*(c for _, c in steps))))
        return 1 - common

    def beyond(self, other: Access, lengths: Mapping[Axis, Any], at_once: Mapping[Axis, Any], binding: Binding) -> Any:
        """The share of elements that the other access of the same trip does not load; 1 where that is not told.

        So a window has what is read at its place, and the next window most of it; and rows that are read in two halves,
        or with the halves in the other order, are read as rows. `lengths` are how many places of each axis are looked
        at, numbers or arrays; `at_once` says of an axis whether that is all places.
        """
        if (self.tensor, self.nest, self.places) != (other.tensor, other.nest, other.places):
            return 1.0
        common: Any = 1.0
        together: Any = True
        for a, b in zip(self.index, other.index, strict=True):
            if a == b:
                continue
            mine, theirs = ({x: value(c, binding) for x, c in i.terms} for i in (a, b))
            differ = {x for x in mine.keys() | theirs.keys() if mine.get(x, 0) != theirs.get(x, 0)}
            steps = [abs(c) for c in theirs.values()]
            if not steps or min(steps) != 1:
                return 1.0
            (first, last), (start, end) = (_ends(i, lengths, binding) for i in (a, b))
            asked: Any = math.prod((lengths.get(x, 1) for x in theirs if isinstance(x, Axis)), start=1.0)
            together = np.logical_and(together, end - start < asked)
            for axis in differ:
                together = np.logical_and(together, isinstance(axis, Axis) and at_once.get(axis, False))
            held = np.minimum(last, end) - np.maximum(first, start) + 1
            common = common * np.maximum(0.0, held) / (last - first + 1)
        return np.where(together, 1.0 - common, 1.0)

    def distinct(self, lengths: Mapping[Axis, Any], binding: Binding) -> Any:
        """The share of distinct elements among those that it asks for: less than 1 where windows overlap.

        `lengths` are how many places of each axis are looked at, numbers or arrays; none of the others' counts.
        """
        share: Any = 1.0
        for index in self.index:
            terms = [(lengths.get(a, 1), abs(value(c, binding))) for a, c in index.terms if isinstance(a, Axis)]
            if len(terms) < 2 or len(terms) < len(index.terms) or any(c == 0 for _, c in terms):
                continue
            span: Any = 1.0
            asked: Any = 1.0
            for length, step in terms:
                span, asked = span + step * (length - 1), asked * length
            share = share * np.minimum(1.0, span / asked)
        return share


@dataclass(frozen=True, slots=True)
class Dot:
    """One matrix product."""

    rows: tuple[Axis, ...]  # the tile dimensions of its left side
    columns: tuple[Axis, ...]  # of its right side
    depth: Axis  # the contracted axis
    flops: Monomial  # operations over all programs and trips, two a multiply-add, with the masked lanes
    of_bytes: bool = False  # whether both factors are bytes in memory, plus numbers (`prism.sgraph.products.of_bytes`)


@dataclass(frozen=True, slots=True)
class KernelCost:
    """The cost of one kernel."""

    bytes_read: Polynomial  # bytes that loads ask for (masked lanes excluded), before any cache
    bytes_written: Polynomial  # bytes stored
    flops: Polynomial  # pointwise work in multiply-adds of vector units, masked lanes excluded
    dot_flops: Polynomial  # floating-point operations of matrix products (two a multiply-add), masked lanes excluded
    padded_flops: Polynomial  # as `flops`, with the masked lanes
    padded_dot_flops: Polynomial  # as `dot_flops`, with the masked lanes
    programs: Polynomial  # how many programs are launched
    loop_trips: Polynomial  # loop iterations of one program, nested ones multiplied; of loops with a range, on average
    longest_trips: Polynomial  # the same of the program that makes the most
    accesses: tuple[Access, ...]  # the loads and stores one by one
    dots: tuple[Dot, ...] = ()  # the matrix products one by one
    # By matrix product, the part of `padded_flops` that adds it to an accumulator.
    padded_additions: Mapping[str, Monomial] = field(default_factory=dict, hash=False)
    # The part of `padded_flops` that compares positions and selects, on tiles of loops with a range where all elements
    # are selected: GPUs have a branch around it (prism.backends.passes.guards).
    idle_selections: Polynomial = Polynomial(())
    shared_additions: Polynomial = Polynomial(())  # elements that it adds where other programs may add at the same time
    looped_flops: Polynomial = Polynomial(())  # the part of it within loops

    def beside(self, sizes: Mapping[Axis, Any], binding: Binding) -> list[tuple[Monomial, Any]]:
        """What comes beside the bytes that are asked for, as a GPU's memory moves whole sectors.

        The traffic of each access that moves more than it asks for, and how many times that comes beside it.
        """
        alike = {(a.row, a.element): a for a in self.accesses}
        times = {key: a.sectors(sizes, binding) - 1.0 for key, a in alike.items()}
        more = {key for key, n in times.items() if np.any(n > 0)}
        keys = [(a.traffic, (a.row, a.element)) for a in self.accesses]
        return [(traffic, times[key]) for traffic, key in keys if key in more]

    def evaluate(self, binding: Binding) -> dict[str, Any]:
        """Every polynomial under `binding` (symbol name to int or integer array), by the attribute's name."""
        names = (
            "bytes_read",
            "bytes_written",
            "flops",
            "dot_flops",
            "padded_flops",
            "padded_dot_flops",
            "programs",
            "loop_trips",
        )
        return {n: getattr(self, n).evaluate(binding) for n in names}


@dataclass(frozen=True, slots=True)
class SGraphCost:
    """The cost of all launches."""

    kernels: tuple[KernelCost, ...]  # kernel by kernel
    together: tuple[int, ...] = ()  # for each launch, how many of the kernels it is; a launch a kernel without

    @property
    def launches(self) -> int:
        """How many launches there are."""
        return len(self.together or self.kernels)

    def total(self, attribute: str) -> Polynomial:
        """The sum over the kernels of one of KernelCost's polynomials, by name."""
        return Polynomial(tuple(m for k in self.kernels for m in getattr(k, attribute).terms))

    def evaluate(self, binding: Binding) -> dict[str, Any]:
        """Bytes, flops and launches in total under `binding`."""
        names = ("bytes_read", "bytes_written", "flops", "dot_flops")
        return {**{n: self.total(n).evaluate(binding) for n in names}, "launches": self.launches}


def next_power_of_two(n: Any) -> Any:
    """The least power of two that is at least n, of an int or an integer array."""
    return 1 << log2_ceil(n)


def power_of_two_above(n: sympy.Expr | int) -> sympy.Expr:
    """`next_power_of_two` as an expression."""
    if isinstance(n, int) or n.is_Integer:
        return sympy.Integer(next_power_of_two(int(n)))
    power: sympy.Expr = 2 ** sympy.ceiling(sympy.log(n, 2))
    return power


class _Counter:
    """Walks a kernel once and collects its monomials."""

    def __init__(self, kernel: sg.Kernel, sgraph: sg.SGraph, ordered: Mapping[str, tuple[Axis, ...]]) -> None:
        self.kernel = kernel
        self.ordered = ordered
        self.passed = passed_on(kernel)
        self.axes = {n: frozenset(a) for n, a in self.ordered.items()}
        self.tensors = sgraph.tensors
        self.on_chip = sgraph.kept
        self.of_bytes = of_bytes(kernel, sgraph.tensors, ordered)
        self.hidden = hidden(kernel)
        self.looped = {axis for axis, role in kernel.roles if isinstance(role, sg.LoopRole | sg.Split)}
        # Per axis: the factor when it is accessed, when it is computed on, and when it is repeated over, by place.
        self.size: dict[Axis, Factor] = {}
        self.padded: dict[Axis, Factor] = {}
        self.outside: dict[Axis, tuple[Factor, ...]] = {}
        self.inside: dict[Axis, tuple[Factor, ...]] = {}
        for axis, role in kernel.roles:
            tile, parts = role.tile, role.parts if isinstance(role, sg.Split) else None
            self.size[axis] = Factor("size", axis.extent)
            self.padded[axis] = Factor("padded", axis.extent, tile, parts)
            match role:
                case sg.Grid():
                    repeat = () if axis.extent == 1 else (Factor("tiles", axis.extent, tile),)
                    self.outside[axis] = self.inside[axis] = repeat
                case sg.LoopRole():
                    self.outside[axis] = ()
                    self.inside[axis] = (Factor("tiles", axis.extent, tile),)
                case sg.Split():
                    shared = Factor("parts", axis.extent, None, parts)
                    self.outside[axis] = (shared,)
                    self.inside[axis] = (shared, Factor("share", axis.extent, tile, parts))
                case sg.Whole():
                    self.outside[axis] = self.inside[axis] = ()
        self.flops: dict[tuple[frozenset[Axis], _Nest], int] = {}
        self.dots: dict[tuple[frozenset[Axis], _Nest], int] = {}
        self.accesses: list[Access] = []
        self.placed: dict[tuple[sg.Place, ...], int] = {(): 0}
        self.shared: list[Monomial] = []
        self.nest: tuple[int, ...] = ()
        self.products: list[Dot] = []
        self.dotted: set[str] = set()
        self.additions: dict[str, Monomial] = {}
        # What positions alone decide, and selections by it.
        self.positional: set[str] = set()
        self.selections: dict[tuple[frozenset[Axis], _Nest], int] = {}
        # Whose exponentials multiply what is carried.
        self.grown: set[str] = set()
        self.trips: list[Monomial] = []
        self.longest: list[Monomial] = []
        # Of `monomial`: values are many, the sets of axes that they have few.
        self.factors: dict[tuple[frozenset[Axis], _Nest, bool], tuple[Factor | Visited, ...]] = {}

    def monomial(self, coefficient: int, axes: Iterable[Axis], loops: _Nest, padded: bool = False) -> Monomial:
        """Elements of a value with these axes over all programs and trips."""
        mentioned = axes if isinstance(axes, frozenset) else frozenset(axes)
        key = mentioned, loops, padded
        known = self.factors.get(key)
        if known is None:
            known = self.factors[key] = self._factors(*key)
        return Monomial(coefficient, known)

    def _factors(self, mentioned: frozenset[Axis], loops: _Nest, padded: bool) -> tuple[Factor | Visited, ...]:
        own = self.padded if padded else self.size
        enclosing = {a for a, _ in loops}
        factors: list[Factor | Visited] = []
        for axis, _ in self.kernel.roles:
            if axis in mentioned:
                factors.append(own[axis])
            else:
                factors.extend(self.inside[axis] if axis in enclosing else self.outside[axis])
        factors.extend(share for _, share in loops if share is not None)
        return tuple(factors)

    def own(self, width: int, mentioned: frozenset[Axis], loops: _Nest, ranges: Mapping[Axis, sg.Loop]) -> Monomial:
        """Bytes of the distinct elements of an access, or fewer where a range leaves some out."""
        sizes = {a: self.size.get(a) or Factor("size", a.extent) for a in mentioned}
        factors: list[Factor | Visited] = []
        for axis, share in loops:
            if share is None:
                continue
            loop = ranges[axis]
            others = {a for side in loop.sides for c in side for a in c.axes()} - {axis}
            if loop.all_or_none and not others <= mentioned:
                continue  # a program that visits all has it
            if axis in mentioned and mentioned.isdisjoint(others):
                sizes[axis] = Factor("size", allowed(axis, loop.range, loop.gap))
            else:
                factors.append(share)
        return Monomial(width, (*(sizes[a] for a in sorted(mentioned, key=str)), *factors))

    def row(self, tensor: str, index: Sequence[Index], store: bool) -> tuple[tuple[tuple[Step, ...], Extent], ...]:
        """`Access.row` of an access."""
        found: list[tuple[tuple[Step, ...], Extent]] = []
        for place, extent in zip(reversed(index), reversed(self.tensors[tensor].shape), strict=True):
            steps = [(c, a) for a, c in place.terms if isinstance(a, Axis) and isinstance(c, int) and c > 0]
            steps.sort(key=lambda s: s[0])
            if not store and any(a in self.looped for c, a in steps if c == steps[0][0]):
                # The next trip of the loop finds the rest of a sector in the first cache.
                found.append((((SECTOR_BYTES, None),), extent))
                break
            found.append((tuple(steps) or ((1, None),), extent))
        return tuple(found)

    def visit(self, body: Sequence[sg.Stmt], loops: _Nest, ranges: Mapping[Axis, sg.Loop]) -> None:
        for s in body:
            match s:
                case sg.Load(_, tensor) | sg.Store(tensor) if tensor in self.on_chip:
                    pass
                case sg.Load(_, tensor, index) | sg.Gather(_, tensor, index) | sg.Store(tensor, index, _):
                    mentioned = frozenset(a for i in index for a in i.axes())
                    adds = isinstance(s, sg.Store) and bool(s.places)
                    if isinstance(s, sg.Gather):
                        mentioned |= self.axes[s.dst]
                    elif isinstance(s, sg.Store) and adds:
                        mentioned |= self.kernel.added_along(s)
                        self.work(1, mentioned, loops)
                        if self.kernel.shares(s):
                            self.shared.append(self.monomial(1, mentioned, loops))
                    width = self.tensors[tensor].dtype.bytes
                    own = self.own(width, mentioned, loops, ranges)
                    traffic = self.monomial(width, mentioned, loops)
                    store = isinstance(s, sg.Store)
                    at = () if isinstance(s, sg.Load) else s.places
                    places = self.placed.setdefault(at, len(self.placed))
                    if isinstance(s, sg.Load) and s.dst in self.hidden:
                        shares = shown(self.hidden[s.dst], line(self.tensors[tensor], index))
                        own, traffic = (replace(m, factors=(*m.factors, *shares)) for m in (own, traffic))
                    for stores in (False, True) if adds else (store,):
                        row = self.row(tensor, index, stores)
                        self.accesses.append(
                            Access(tensor, stores, own, traffic, mentioned, index, self.nest, row, width, adds, places)
                        )
                case sg.Pointwise(dst, op):
                    self.work(OPS[op].flops, self.axes[dst], loops)
                    self.select(s, loops)
                case sg.TileReduce(dst) if dst in self.passed:
                    pass
                case sg.TileReduce(_, kind, _, src):
                    self.work(DEVIATION_WORK if isinstance(kind, sg.Statistic) else 1, self.axes[src], loops)
                case sg.Contract(_, _, lhs, rhs):
                    both = self.axes[lhs] | self.axes[rhs]
                    if is_dot(self.kernel, s, self.ordered):
                        self.dotted.add(s.dst)
                        self.dots[both, loops] = self.dots.get((both, loops), 0) + 2
                        rows, columns, _ = dot_dims(self.kernel, s, self.ordered)
                        flops = self.monomial(2, both, loops, padded=True)
                        self.products.append(Dot(rows, columns, s.axis, flops, s.dst in self.of_bytes))
                    else:
                        self.work(1, both, loops)
                case sg.Accumulate(dst, _, src, shift):
                    self.work(1, self.axes[dst], loops)
                    product = self.passed.get(src, src)
                    if product in self.dotted:
                        self.additions[product] = self.monomial(1, self.axes[dst], loops, padded=True)
                    if shift is not None:
                        self.work(1, self.axes[dst], loops)
                        self.factor(shift, True, loops)
                case sg.Scan(dst, growth=growth, how=how):
                    # Within the tile, and with what came before it.
                    self.work(2, self.axes[dst], loops)
                    if growth is not None:
                        self.work(1, self.axes[dst], loops)
                    if isinstance(growth, str) and how.exponential:
                        self.factor(growth, how.rescaled, loops)
                case sg.Loop(axis, inner):
                    share = self.visited(s) if s.skips else None
                    under = (*loops, (axis, share))
                    tiles = tuple(f for a, _ in under for f in self.inside[a] if f.kind in ("tiles", "share"))
                    shares = tuple(v for _, v in under if v is not None)
                    self.trips.append(Monomial(1, (*tiles, *shares)))
                    self.longest.append(Monomial(1, (*tiles, *(replace(v, busiest=True) for v in shares))))
                    around, self.nest = self.nest, (*self.nest, len(self.trips))
                    self.visit(inner, under, {**ranges, axis: s})
                    self.nest = around
                case sg.Position(dst):
                    self.positional.add(dst)

    def factor(self, growth: str, moves: bool, loops: _Nest) -> None:
        """Count the exponential of a growth, or of how a shift moves, once for all that it multiplies."""
        if growth not in self.grown:
            self.grown.add(growth)
            self.work(OPS["exp"].flops + moves, self.axes[growth], loops)

    def select(self, s: sg.Pointwise, loops: _Nest) -> None:
        """Note what a loop with a range does for its mask alone."""
        names = [a for a in s.args if isinstance(a, str)]
        if all(a in self.positional for a in names):
            self.positional.add(s.dst)
        elif s.op != "where" or s.args[0] not in self.positional:
            return
        if loops and loops[-1][1] is not None:
            key = self.axes[s.dst], (*loops[:-1], (loops[-1][0], replace(loops[-1][1], whole=True)))
            self.selections[key] = self.selections.get(key, 0) + OPS[s.op].flops

    def visited(self, loop: sg.Loop) -> Visited:
        """The share of its tiles that a loop visits."""
        tiles = {a: tile for a, r in self.kernel.roles if (tile := r.tile) is not None}
        return visited(loop.axis, tiles[loop.axis], loop.range, tiles, loop.gap)

    def work(self, flops: int, axes: frozenset[Axis], loops: _Nest) -> None:
        self.flops[axes, loops] = self.flops.get((axes, loops), 0) + flops

    def counted(self, work: Mapping[tuple[frozenset[Axis], _Nest], int], padded: bool) -> Polynomial:
        return Polynomial(tuple(self.monomial(c, a, loops, padded) for (a, loops), c in work.items()))


def _place_by_place(accesses: Sequence[Access]) -> Iterator[Access]:
    """The accesses, of which those of single places of a last dimension know how many there are beside them."""
    places: dict[tuple[object, ...], set[Extent]] = {}
    keys = [(a.tensor, a.store, a.nest, a.index[:-1]) if a.index and not a.index[-1].terms else () for a in accesses]
    for a, key in zip(accesses, keys, strict=True):
        if key:
            places.setdefault(key, set()).add(a.index[-1].offset)
    for a, key in zip(accesses, keys, strict=True):
        beside = len(places.get(key, ()))
        if beside > 1 and a.row:
            (_, extent), *rest = a.row
            a = replace(a, row=((((beside, None),), extent), *rest), beside=beside)
        yield a


def kernel_cost(kernel: sg.Kernel, sgraph: sg.SGraph, axes: Mapping[str, tuple[Axis, ...]] | None = None) -> KernelCost:
    """The symbolic cost of one kernel of the sGraph; `axes` are those of its values (`value_axes`)."""
    c = _Counter(kernel, sgraph, axes if axes is not None else sg.value_axes(kernel))
    c.visit(kernel.body, (), {})
    return KernelCost(
        bytes_read=Polynomial(tuple(a.traffic for a in c.accesses if not a.store)),
        bytes_written=Polynomial(tuple(a.traffic for a in c.accesses if a.store)),
        flops=c.counted(c.flops, False),
        dot_flops=c.counted(c.dots, False),
        padded_flops=c.counted(c.flops, True),
        padded_dot_flops=c.counted(c.dots, True),
        programs=Polynomial((c.monomial(1, (), ()),)),
        loop_trips=Polynomial(tuple(c.trips)),
        longest_trips=Polynomial(tuple(c.longest)),
        accesses=tuple(_place_by_place(c.accesses)),
        dots=tuple(c.products),
        padded_additions=c.additions,
        idle_selections=c.counted(c.selections, True),
        shared_additions=Polynomial(tuple(c.shared)),
        looped_flops=c.counted({(axes, loops): n for (axes, loops), n in c.flops.items() if loops}, False),
    )


def sgraph_cost(sgraph: sg.SGraph) -> SGraphCost:
    """The symbolic cost of all kernels; those of a loop's step once, or through all steps where that is one launch."""
    sgraph = in_one_launch(sgraph)
    launches = tuple(len(launch.kernels) for launch in sgraph.launches) if sgraph.together else ()
    return SGraphCost(tuple(kernel_cost(k, sgraph) for k in sgraph.kernels), launches)
