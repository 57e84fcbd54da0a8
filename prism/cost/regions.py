"""What a region costs when it is one kernel: the estimate that the partitioner cuts by.

A definition that is not materialised is computed where it is used, once for each *instance*: the distinct indices under
which the region's root needs it, up to the names of axes. `s[i,j]`, read by a maximum over j and again by a sum over j,
is one instance; `q[i,d]` and `q[i,d+32]` are two. An instance has the axes of its indices; along an axis of the root
that it does not have, it is computed again for each tile of that axis (`TILE` elements), because the programs of a
grid do not talk to each other. So, for a definition t that is read under the index `i` below the root r:

    spread(t, i) = product of the extents of i's axes / elements of t * product of tiles of r's other axes
    work(t)      = flops of t alone * sum of spread over its instances, for products * sqrt(number of instances):
                   their accumulators share a tile's registers, and a smaller tile reuses its operands less
    traffic(x)   = bytes of x from memory once, and spread times from cache, for a tensor x that the region reads

The estimate is seconds = max(traffic and the root's store, matrix work, other work) + one launch; a root of few tiles
keeps only that part of the matrix units busy. It is rough on purpose: it has to tell a quadratic intermediate from a
row of statistics, not one tile size from another. The search inside a region
considers every cut and every role with the real constraints.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace

from prism.cost.device import Device
from prism.cost.roofline import TILE, arithmetic, traffic
from prism.errors import UnsupportedError
from prism.program.extents import Extent, evaluate
from prism.program.index import Atom, Axis, Index
from prism.program.inline import inline
from prism.program.lookup import lookup
from prism.program.nodes import Definition, DType, Expr, Map, Program, Read, Reduce, Tensor, walk
from prism.program.prefix import recurrence, stepwise
from prism.program.products import Work, work

FEW = 8
"""Terms of a reduction that are few: no matrix unit takes them, and a tile has all, so there is no loop (guess)."""


SHALLOW = 64
"""Definitions of which it does not matter how many of them are one within another (guess)."""


@dataclass(frozen=True, slots=True)
class Size:
    """How hard a region is to search: distinct instances of what it computes."""

    products: int = 0  # matrix products, matrix-vector products included: sums of products of two factors
    reductions: int = 0  # all reductions, products included
    operators: int = 0  # pointwise operations
    few: int = 0  # reductions and products of a few terms (`FEW`), which are counted here alone: they lie in a tile
    again: int = 0  # those of the pointwise operations that are there at another index, too
    depth: int = 0  # no more definitions than this are one within another

    def __add__(self, other: Size) -> Size:
        return Size(
            self.products + other.products,
            self.reductions + other.reductions,
            self.operators + other.operators,
            self.few + other.few,
            self.again + other.again,
            max(self.depth, other.depth),
        )

    def times(self, count: int) -> Size:
        """The size of so many instances."""
        again = self.operators * (count - 1)
        return Size(self.products * count, self.reductions * count, self.operators * count, self.few * count, again)


@dataclass(frozen=True, slots=True)
class _Facts:
    """A definition by itself: its reads (bound axes included), size, flops and elements."""

    definition: Definition
    straight: tuple[str, ...]  # the tensors that are read as the definition is, axis by axis
    reads: tuple[Read, ...]  # what is read otherwise
    bound: tuple[Axis, ...]
    size: Size  # what of it reads something
    # Pointwise operations on positions and numbers alone: those of many definitions are the same ones.
    places: frozenset[Expr]
    matrix: float
    vector: float


@dataclass(frozen=True, slots=True)
class RootCost:
    """A root and everything that is computed for it."""

    seconds: float  # the estimate
    work: float  # flops, by how long they take one after the other
    members: frozenset[str]  # the definitions that are computed, views included
    read: frozenset[str]  # the tensors that are read
    size: Size  # how hard it is to search
    # Of each member, how many there are: what is read at several indices is computed at each.
    instances: Mapping[str, int]


def bytes_of(tensor: Tensor, hints: Mapping[str, int]) -> int:
    """The size of a tensor at the hints."""
    return math.prod(evaluate(e, hints) for e in tensor.shape) * tensor.dtype.bytes


def moved(program: Program) -> int:
    """Bytes that whatever computes the program loads and stores, at the hints.

    Of each input those that one read touches, however often; what data look up is left out, and so is what has no
    affine index. What the program stores are its outputs.
    """
    hints = program.hints
    loaded: dict[str, int] = {}
    stack: list[Expr] = []
    with suppress(UnsupportedError):
        stack += [f.expr for f in inline(program)]
    seen: set[Expr] = set()
    while stack:
        e = stack.pop()
        if isinstance(e, Read):
            axes = {max(own, key=lambda a: evaluate(a.extent, hints)) for i in e.index if (own := _axes(i))}
            count = math.prod(evaluate(a.extent, hints) for a in axes)
            loaded[e.tensor] = max(loaded.get(e.tensor, 0), count)
        elif e not in seen:
            seen.add(e)
            found = lookup(e)
            stack += e.children if found is None else (found.place,)
    inputs = sum(min(loaded.get(t.name, 0) * t.dtype.bytes, bytes_of(t, hints)) for t in program.inputs)
    return inputs + sum(bytes_of(program.definition(n).tensor, hints) for n in program.outputs)


def _axes(index: Index) -> list[Axis]:
    """The axes at whose places an index is told apart."""
    return sorted((atom for atom, _ in index.terms if isinstance(atom, Axis)), key=str)


@dataclass(slots=True)
class Costs:
    """Costs of roots of one program; answers are remembered."""

    program: Program
    device: Device  # what the regions run on
    dtype: DType  # of matrix products
    _facts: dict[str, _Facts] = field(default_factory=dict)
    _lengths: dict[Extent, int] = field(default_factory=dict)
    _elements: dict[str, int] = field(default_factory=dict)
    _bytes: dict[str, int] = field(default_factory=dict)
    _known: dict[str, list[tuple[frozenset[str], RootCost]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hints = self.program.hints
        for t in (*self.program.inputs, *(d.tensor for d in self.program.definitions)):
            self._elements[t.name] = math.prod(evaluate(e, hints) for e in t.shape)
            self._bytes[t.name] = t.dtype.bytes * self._elements[t.name]
        for d in self.program.definitions:
            self._facts[d.name] = _facts(d, hints)

    def bytes(self, tensor: str) -> int:
        """The size of a tensor at the hints."""
        return self._bytes[tensor]

    def root(self, name: str, kept: Set[str]) -> RootCost:
        """The cost of computing and storing one definition from inputs and the tensors `kept`."""
        for read, cost in self._known.get(name, ()):
            # Only what is kept within reach matters: the tensors read, and that nothing computed became kept.
            if read <= kept and not (cost.members - {name}) & kept:
                return cost
        cost = self._root(name, kept)
        materialised = frozenset(t for t in cost.read if t in self._facts)
        self._known.setdefault(name, []).append((materialised, cost))
        return cost

    def once(self, names: Iterable[str]) -> Size:
        """The size of a region of these definitions where each is needed at one index: none is smaller."""
        return self._size(dict.fromkeys(names, 1))

    def together(self, roots: Iterable[RootCost]) -> Size:
        """The size of a region of several roots: what more than one of them needs is there once."""
        most: dict[str, int] = {}
        for root in roots:
            for member, count in root.instances.items():
                most[member] = max(most.get(member, 0), count)
        return self._size(most)

    def _size(self, instances: Mapping[str, int]) -> Size:
        total = Size(operators=len(frozenset[Expr]().union(*(self._facts[m].places for m in instances))))
        for member, count in instances.items():
            total += self._facts[member].size.times(count)
        if len(instances) <= SHALLOW:
            return replace(total, depth=len(instances))
        depth: dict[str, int] = {}
        for member in sorted(instances, key=self.program.order.__getitem__):
            facts = self._facts[member]
            below = (*facts.straight, *(r.tensor for r in facts.reads))
            depth[member] = 1 + max((depth.get(t, 0) for t in below), default=0)
        return replace(total, depth=max(depth.values(), default=0))

    def forget(self, name: str) -> None:
        """Let go of what is known of a root that will not be asked for again."""
        self._known.pop(name, None)

    def _root(self, name: str, kept: Set[str]) -> RootCost:
        facts = self._facts[name]
        free = {a: self._length(a) for a in facts.definition.axes}
        # By tensor and indices up to names, as a number: the greatest spread. The root itself is computed once.
        spreads: dict[tuple[str, int], float] = {(name, -1): 1.0}
        visited: set[tuple[str, int]] = set()
        # Most of what a root needs is read under the same few indices: each has a number, and what is known of it.
        numbers: dict[tuple[Index, ...], int] = {}
        known_of: list[tuple[int, int]] = []
        nameless: dict[tuple[object, ...], int] = {}

        def number(at: tuple[Index, ...]) -> int:
            found = numbers.get(at)
            if found is None:
                found = numbers[at] = len(known_of)
                known_of.append((nameless.setdefault(_up_to_names(at), len(nameless)), self._times(at, free)))
            return found

        own = tuple(map(Index.axis, facts.definition.axes))
        stack: list[tuple[str, tuple[Index, ...], int]] = [(name, own, number(own))]
        fresh = 0
        while stack:
            tensor, index, numbered = stack.pop()
            inner = self._facts[tensor]
            found = [(t, index, numbered) for t in inner.straight]
            if inner.reads:
                mapping = dict(zip(inner.definition.axes, index, strict=True))
                for a in inner.bound:
                    mapping[a] = Index.axis(Axis(f"{a.name}.{fresh}", a.extent))
                    fresh += 1
                for r in inner.reads:
                    at = tuple(_substituted(i, mapping) for i in r.index)
                    found.append((r.tensor, at, number(at)))
            for t, at, n in found:
                if (t, n) in visited:
                    continue
                visited.add((t, n))
                same, times = known_of[n]
                key = (t, same)
                spread = times / self._elements[t]
                known = spreads.get(key)
                if known is not None and spread <= known:
                    continue  # seen under other names of axes: its operands are the same instances
                spreads[key] = spread
                if t in self._facts and t not in kept:
                    stack.append((t, at, n))
        members = {t for t, _ in spreads if t in self._facts and (t not in kept or t == name)}
        instances = Counter(t for t, _ in spreads)
        inside = {t: instances[t] for t in sorted(members)}
        matrix = vector = 0.0
        read: dict[str, float] = {}
        for (tensor, _), spread in spreads.items():
            if tensor in members:
                inner = self._facts[tensor]
                if inner.matrix:
                    matrix += spread * inner.matrix * math.sqrt(instances[tensor])
                vector += spread * inner.vector
            else:
                read[tensor] = max(read.get(tensor, 0.0), spread)
        seconds = self._seconds(name, read, matrix, vector)
        work = sum(arithmetic(self.device, matrix, vector, self.dtype))
        return RootCost(seconds, work, frozenset(members), frozenset(read), self._size(inside), inside)

    def _seconds(self, name: str, read: Mapping[str, float], matrix: float, vector: float) -> float:
        device = self.device
        lengths = sorted(self._length(a) for a in self._facts[name].definition.axes)
        # A tile is of the two longest axes.
        programs = math.prod(lengths[:-2]) * math.prod(-(-n // TILE) for n in lengths[-2:])
        busy = min(1.0, programs / device.processors)
        memory = traffic(device, self._bytes[name])
        for tensor, spread in read.items():
            memory += traffic(device, self._bytes[tensor], spread)
        return device.launch_overhead_s + max(memory, *arithmetic(device, matrix, vector, self.dtype, busy))

    def _length(self, axis: Axis) -> int:
        if isinstance(axis.extent, int):
            return axis.extent
        known = self._lengths.get(axis.extent)
        if known is None:
            known = self._lengths[axis.extent] = evaluate(axis.extent, self.program.hints)
        return known

    def _times(self, index: tuple[Index, ...], free: Mapping[Axis, int]) -> int:
        """How many elements are computed or read, again ones included, where a tensor is needed at this index."""
        own = {a for i in index for a in i.axes()}
        # Whole numbers, so that the order of a set does not show in the result.
        needed = math.prod(self._length(a) for a in own)
        tiles = math.prod(-(-n // TILE) for a, n in free.items() if a not in own)
        return tiles * needed


def _substituted(index: Index, mapping: Mapping[Axis, Index]) -> Index:
    """`index.substitute(mapping)`; nearly all indices are one axis."""
    match index.terms:
        case ():
            return index
        case ((Axis() as axis, 1),) if index.offset == 0 and axis in mapping:
            return mapping[axis]
        case _:
            return index.substitute(mapping)


def _up_to_names(index: Iterable[Index]) -> tuple[object, ...]:
    """Equal for indices that differ by the names of their axes alone."""
    order: dict[Axis, int] = {}

    def atom(a: Atom) -> object:
        match a:
            case Axis(_, extent):
                return order.setdefault(a, len(order)), extent
            case _:
                return type(a).__name__, a.divisor, expression(a.value)

    def expression(i: Index) -> object:
        # Terms are sorted by the names of their axes, which must not decide: by what is left of them instead.
        terms = i.terms if len(i.terms) < 2 else sorted(i.terms, key=lambda t: (str(t[1]), *_outline(t[0])))
        return tuple((atom(a), c) for a, c in terms), i.offset

    return tuple(expression(i) for i in index)


def _outline(atom: Atom) -> tuple[str, str]:
    """What an atom is besides its name; the name decides between equals."""
    if isinstance(atom, Axis):
        return str(atom.extent), atom.name
    return f"{type(atom).__name__} {atom.divisor}", str(atom)


def _facts(d: Definition, hints: Mapping[str, int]) -> _Facts:
    """The definition by itself; structurally equal parts count once."""

    def elements(axes: Iterable[Axis]) -> int:
        return math.prod(evaluate(a.extent, hints) for a in axes)

    distinct = list(dict.fromkeys(walk(d.expr)))
    done = work(d.expr)
    matrix = sum(2 * elements(p.axes) for p in done.products)
    vector = sum(cost * elements(axes) for cost, axes in done.others)
    found = tuple(e for e in distinct if isinstance(e, Read))
    bound = tuple(dict.fromkeys(e.axis for e in distinct if isinstance(e, Reduce)))
    size, places = _counted((d.expr,), done)
    own = tuple(map(Index.axis, d.axes))
    straight = tuple(r.tensor for r in found if r.index == own)
    return _Facts(d, straight, tuple(r for r in found if r.index != own), bound, size, places, matrix, vector)


def size_of_formulas(exprs: Sequence[Expr]) -> Size:
    """How hard expressions over inputs are to search as one region: what they have in common is there once."""
    size, places = _counted(exprs, work(*exprs))
    return size + Size(operators=len(places))


def _counted(exprs: Sequence[Expr], done: Work) -> tuple[Size, frozenset[Expr]]:
    """The size of what reads something, and the pointwise operations on positions and numbers alone."""
    sums = sum(recurrence(e) is not None for e in dict.fromkeys(e for x in exprs for e in walk(x)))
    stepped = dict.fromkeys(e for x in exprs for e in walk(stepwise(x)))
    places = frozenset(e for e in stepped if isinstance(e, Map) and not any(isinstance(p, Read) for p in walk(e)))
    few = sum(map(_is_few, done.reductions))
    products = sum(not _is_few(p.depth) for p in done.products)
    return Size(products, sums + len(done.reductions) - few, done.operators - len(places), few), places


def _is_few(axes: Iterable[Axis]) -> bool:
    """Whether a reduction over the axes is over a few terms at any size."""
    return math.prod(a.extent if isinstance(a.extent, int) else math.inf for a in axes) <= FEW
