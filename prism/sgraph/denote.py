"""Denotation: what an sGraph computes, as expressions over its inputs, for every tile size, grid and split.

An axis `a` of a kernel is split into (grid, loop, tile) parts, which is a bijection of its index set:

    a tile reduction            is a Reduce over the tile part
    an accumulator of a loop    is a Reduce over the loop part; of a reduction over the tile part, over the whole axis
    a scan of a loop            is a Reduce over all places of the axis, of what is 0 behind the present one; with a
                                growth g, times exp(G - G'), where G is the scan of g, here and there; of what is
                                rescaled by a maximum so far, exp(a - m)*f, with the m of the present place
    the parts of a split        are an axis of their own, `a = rest_extent * part + rest`, over which a later kernel
                                reduces

so a tile reduction that is accumulated is the reduction over the axis, and no tile size is left in the result. Where a
split's second stage is a reduction over the parts of a reduction over the rest, that again is the reduction over the
axis; where it is not (partial results that are rescaled before they are added), the parts stay in the expression, and
`split` names the extents whose axes the reference must be expanded over, in the same way (`expand`).

The deviations over an axis, accumulated or of a tile that holds all of it, denote the sum over the axis of
(a - 1/n * sum a)^2, with n its extent; merged along more axes, the same over all of them, with n their places.
Which values are such statistics, over which axes and of what, is kept beside what they denote.

A tensor with several stores is a choice among them by the place along the axis that they are pieces of. One that is
added to at places p is what was stored plus, at k, the sum of where(k == p, src, 0) over the axes of src and p that the
index lacks.

Parts of a split have each as many elements as tile and split make it, so that no expression stands for the moments of a
part: a count of `rest_extent` would prove means of means. What is stored is a name for the moment, which nothing may
use but the merging of all moments of one statistic over all parts; that denotes the statistic over the axis.

A rescaled accumulator denotes sum(exp(a - m)*f) with the final m. That is so when src is exactly such a sum over a
running m and neither a nor f depends on m (see prism.sgraph.nodes), and a is -inf while m is, and never far above it;
this is checked here, structurally, and anything else is an IllegalIRError. Where m is -inf in the end kernels have 0,
see `rescaled.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import sympy

from prism.errors import IllegalIRError
from prism.program.build import add, const, mean, mul, position, recip, reduce, size
from prism.program.equal_lengths import as_short
from prism.program.extents import Extent, is_static, text
from prism.program.index import Axis, Index
from prism.program.inline import refolded
from prism.program.nodes import (
    Const,
    Definition,
    Expr,
    Map,
    Program,
    Read,
    Reduce,
    ReduceKind,
    Size,
    SymbolRange,
    free_axes,
    walk,
)
from prism.program.nodes import Position as PositionExpr
from prism.program.pieces import axis_of_places, whole_of
from prism.program.prefix import running, since
from prism.program.sign_analysis import Facts
from prism.program.transform import Canonical, Interned, canonical, substitute, with_children, with_tensors
from prism.sgraph import nodes as sg
from prism.sgraph import rescaled
from prism.sgraph.hidden import check_needed
from prism.sgraph.ranges import check_ranges
from prism.sgraph.value_bounds import Bounds

HORIZON = 500
"""Operations and reads back to which a kernel's values are written out, where they are looked at to judge rounding."""


@dataclass(frozen=True, slots=True)
class Denotation:
    """What an sGraph computes."""

    # One expression per output tensor, in order, with canonical bound axes; free axes as in the stores.
    outputs: tuple[Expr, ...]
    # Extents of the axes that are expressed by (part, rest); the reference must be expanded over them.
    split: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class _Partial:
    """A reduction over the tile part of a looped axis: not an expression until it is accumulated."""

    kind: sg.Kind
    axis: Axis
    body: Expr
    inner: tuple[Axis, ...] = ()


@dataclass(frozen=True, slots=True)
class _Part:
    """A statistic over a program's part of a split axis: no expression, but its moments may be stored."""

    part: Axis  # the axis over the parts
    axes: tuple[Axis, ...]  # what it is over, the split axis first
    body: Expr  # what of

    @property
    def free(self) -> tuple[Axis, ...]:
        """The axes that its moments but the count have beside the part."""
        return tuple(a for a in _ordered(self.body) if a not in self.axes)


_Meaning = Expr | _Partial | _Part
_Stored: TypeAlias = "tuple[tuple[Index, ...], Expr]"


@dataclass(slots=True)
class _Shared:
    """What kernels leave behind for later ones."""

    stores: dict[str, list[_Stored]] = field(default_factory=dict)  # tensor to (index, value) of each of its stores
    # The symbol of a split to the extent of the axis that it splits.
    parts: dict[sympy.Symbol, Extent] = field(default_factory=dict)
    # A reduction over the rest of a split axis to the (kind, axis, body) that it is the part of.
    rests: dict[Expr, tuple[ReduceKind, Axis, Expr]] = field(default_factory=dict)
    # The name for a moment of a part to which it is, the kernel's name and the value's, and the statistic.
    moments: dict[str, tuple[sg.Moment, tuple[str, str], _Part]] = field(default_factory=dict)
    alike: bool = False  # whether all parts have `rest_extent` elements: what is stored of them then is an expression

    def store(self, tensor: str, index: tuple[Index, ...], value: Expr) -> None:
        """Note what is stored to the tensor, beside what is there."""
        self.stores.setdefault(tensor, []).append((index, value))

    @property
    def stored(self) -> dict[str, _Stored]:
        """What is in each tensor."""
        return {tensor: self.held(tensor) for tensor in self.stores}

    def held(self, tensor: str) -> _Stored:
        """What is in the tensor: its pieces, where it has several stores, as a choice by the place among them.

        Raises:
            IllegalIRError: they are not one after another along one dimension, or do not say of which axis they are.
        """
        stores = self.stores[tensor]
        if len(stores) > 1:  # all of them are there, as a kernel reads what others have ended; so this is once
            stores[:] = [_side_by_side(tensor, stores)]
        return stores[0]


def _places(stored: Index, wanted: Index) -> dict[Axis, Index] | None:
    """Where the axes of a store are at the element that is wanted, one dimension of both; None where it is not said.

    What is wanted beside the tensor, of which a kernel makes a number, is no element: digits would be another's.
    """
    axis = stored.as_axis()
    if axis is not None:
        return {axis: wanted}
    digits = stored.digits() if stored.offset == 0 else []
    if not digits:
        return {} if stored == wanted else None
    if not wanted.within(math.prod(int(a.extent) for _, a in digits)):
        return None
    return {a: wanted.floordiv(unit).mod(a.extent) for unit, a in digits}


def _side_by_side(tensor: str, stores: Sequence[_Stored]) -> _Stored:
    """Several stores as one, over the axis that they are pieces of."""

    def illegal(why: str) -> IllegalIRError:
        return IllegalIRError(f"{tensor} has {len(stores)} stores", where="sGraph", why=why)

    apart = {n for index, _ in stores for n, (i, j) in enumerate(zip(index, stores[0][0], strict=True)) if i != j}
    if len(apart) != 1:
        raise illegal("they are not side by side along one dimension")
    (place,) = apart
    rest = {i for index, _ in stores for n, i in enumerate(index) if n != place}
    pieces: list[tuple[Extent, Axis | None, Expr]] = []
    for index, value in stores:
        axis = Index(index[place].terms).as_axis()
        # A piece of one place has no axis.
        if index[place].terms and (axis is None or whole_of(axis) is None or any(axis in i.axes() for i in rest)):
            raise illegal(f"{index[place]} is no place along a piece")
        pieces.append((index[place].offset, axis, value))
    if not all(is_static(e) for start, axis, _ in pieces for e in (start, 1 if axis is None else axis.extent)):
        raise illegal("where its pieces begin is not known")
    pieces.sort(key=lambda p: int(p[0]))
    ends = [0]
    for start, axis, _ in pieces:
        if start != ends[-1]:
            raise illegal(f"the piece before {start} ends at {ends[-1]}")
        ends.append(ends[-1] + (1 if axis is None else int(axis.extent)))
    names = {whole_of(axis) for _, axis, _ in pieces if axis is not None}
    whole = Axis(names.pop() or "", ends[-1]) if names else axis_of_places(stores[0][0], place, ends[-1])
    if names or any(whole in free_axes(value) for _, _, value in pieces):
        raise illegal("they are pieces of several axes")
    at = Index.axis(whole)
    found: Expr | None = None
    for (start, axis, value), end in reversed(list(zip(pieces, ends[1:], strict=True))):
        here = value if axis is None else substitute(value, {axis: at + -int(start)})
        before = Map("lt", (PositionExpr(at), Const(float(end))))
        found = here if found is None else Map("where", (before, here, found))
    assert found is not None
    index = stores[0][0]
    return (*index[:place], at, *index[place + 1 :]), found


@dataclass(slots=True)
class _Memory:
    """What is remembered from one sGraph to the next; every expression is the one object for it."""

    # The expressions, which also keeps their identities from being used again.
    interned: Interned = field(default_factory=Interned)
    canonical: Canonical = field(default_factory=Canonical)  # of whole outputs
    # By the expression's identity and the mapping.
    substituted: dict[tuple[int, frozenset[tuple[Axis, Index]]], Expr] = field(default_factory=dict)
    # By the expression's identity and the extents.
    expanded: dict[tuple[int, tuple[Extent, ...]], Expr] = field(default_factory=dict)
    # Whether an expression mentions a running value, by its identity.
    running: dict[int, bool] = field(default_factory=dict)
    # The extents of an expression's bound axes, by its identity.
    bound: dict[int, frozenset[Extent]] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)  # where expressions are infinite
    bounds: Bounds = field(default_factory=lambda: Bounds({}))  # of expressions of any inputs
    # What is denoted, by the identity of what was read off (see `rescaled.py`).
    said: dict[int, Expr] = field(default_factory=dict)

    def substitute(self, e: Expr, mapping: dict[Axis, Index]) -> Expr:
        if not mapping:
            return e
        key = id(e), frozenset(mapping.items())
        if key not in self.substituted:
            made = substitute(e, mapping)
            if any(isinstance(c, int) and c < 0 for i in mapping.values() for _, c in i.terms):
                made = refolded(made)  # what is taken off on one side of a comparison is added on the other
            self.substituted[key] = self.interned.all(made)
        return self.substituted[key]

    def output(self, e: Expr, split: tuple[Extent, ...]) -> Expr:
        """The expression with canonical axes, those of the extents split."""
        key = id(e), split
        if key not in self.expanded:
            self.expanded[key] = self.interned.all(as_short(expand(self.canonical.of(e), split)))
        return self.expanded[key]

    def told(self, e: Expr) -> Expr:
        """What is denoted by what was read off."""
        if id(e) not in self.said:
            self.said[id(e)] = self.interned.all(rescaled.told(e))
        return self.said[id(e)]

    def bound_extents(self, e: Expr) -> frozenset[Extent]:
        if id(e) not in self.bound:
            self.bound[id(e)] = frozenset(x.axis.extent for x in walk(e) if isinstance(x, Reduce))
        return self.bound[id(e)]

    def mentions_running(self, e: Expr) -> bool:
        for x in walk(e, self.running):
            mine = isinstance(x, Read) and x.tensor.startswith("running ")
            self.running[id(x)] = mine or any(self.running[id(c)] for c in x.children)
        return self.running[id(e)]


@dataclass(slots=True)
class _Reader:
    """Denotes one kernel, given what earlier kernels stored."""

    kernel: sg.Kernel
    shared: _Shared
    memory: _Memory
    values: dict[str, _Meaning] = field(default_factory=dict)
    # Accumulators of the loops that are open: their running value is a name that no input has.
    running: dict[str, Expr] = field(default_factory=dict)
    # Of a statistic the axes that it is over, the outermost first, and what of.
    statistics: dict[str, tuple[tuple[Axis, ...], Expr]] = field(default_factory=dict)
    # Of what is merged from moments that nobody stored, over which axes, and these.
    merged: dict[str, tuple[tuple[Axis, ...], tuple[Expr, ...]]] = field(default_factory=dict)
    scans: dict[str, sg.Scan] = field(default_factory=dict)
    _roles: dict[Axis, sg.Role] = field(default_factory=dict)

    def run(self) -> None:
        """Denote the body; what it stores ends up in `shared`."""
        self._roles = dict(self.kernel.roles)
        for axis, role in self.kernel.roles:
            if isinstance(role, sg.Split):
                self.shared.parts[role.parts] = axis.extent
        self._body(self.kernel.body, {})

    def _plain(self, axis: Axis) -> Axis:
        """The axis; the parts of a split under the one name that they have everywhere."""
        if isinstance(axis.extent, sympy.Symbol) and axis.extent in self.shared.parts:
            return split_axes(self.shared.parts[axis.extent])[0]
        return axis

    def _plain_index(self, index: Index) -> Index:
        named = {a: self._plain(a) for a in index.axes()} if self.shared.parts else {}
        changed = {a: Index.axis(b) for a, b in named.items() if b != a}
        return index.substitute(changed) if changed else index

    def _made(self, e: Expr) -> Expr:
        """The one object for a node that was just made."""
        return self.memory.interned.node(e)

    def _mul(self, a: Expr, b: Expr) -> Expr:
        return self._made(Map("mul", (a, b)))

    def _sum(self, a: Expr, b: Expr) -> Expr:
        return self._made(Map("add", (a, b)))

    def _body(self, body: Sequence[sg.Stmt], accumulated: dict[str, Expr | _Part]) -> None:
        for s in body:
            match s:
                case sg.Load(dst, tensor, index):
                    self.values[dst] = self._load(tensor, tuple(map(self._plain_index, index)))
                case sg.Gather():
                    self.values[s.dst] = self._gathered(s)
                case sg.Position(dst, index):
                    self.values[dst] = self._made(position(index))
                case sg.Pointwise(dst, op, args):
                    self.values[dst] = self._made(Map(op, tuple([self._value(a) for a in args])))
                case sg.TileReduce(dst, sg.Statistic(), axis, src, moments) if moments:
                    self.values[dst] = self._all_parts(dst, axis, tuple(map(self._value, (src, *moments))))
                case sg.TileReduce(dst, sg.Statistic() as kind, axis, src):
                    self.values[dst] = self._statistic(dst, kind, axis, src)
                case sg.TileReduce(dst, ReduceKind() as kind, axis, src):
                    self.values[dst] = self._reduce(kind, axis, self._value(src))
                case sg.Contract(dst, axis, lhs, rhs):
                    product = self._mul(self._value(lhs), self._value(rhs))
                    self.values[dst] = self._reduce(ReduceKind.SUM, axis, product)
                case sg.Loop(axis, inner):
                    finals: dict[str, Expr | _Part] = {}
                    self._body(inner, finals)
                    for name, end in finals.items():
                        self.running.pop(name, None)
                        self.values[name] = end
                case sg.Accumulate(dst, kind, src, shift):
                    accumulated[dst] = final = self._accumulate(dst, kind, src, shift, accumulated)
                    # Inside the loop the name means the running value: an opaque thing that only a rescaled
                    # accumulator may absorb.
                    index = () if isinstance(final, _Part) else tuple(Index.axis(a) for a in _ordered(final))
                    self.running[dst] = self._made(Read(f"running {dst}", index))
                    self.values[dst] = self.running[dst]
                case sg.Scan():
                    self.scans[s.dst] = s
                    self.values[s.dst] = self._scan(s)
                case sg.Store(places=(_, *_)):
                    self._add(s)
                case sg.Store(tensor, index, src, sg.Moment() as moment):
                    self.shared.store(tensor, tuple(map(self._plain_index, index)), self._moment(src, moment))
                case sg.Store(tensor, index, src):
                    value = self._value(src)
                    if self.memory.mentions_running(value):
                        raise self._illegal(f"stores a running value to {tensor}")
                    self.shared.store(tensor, tuple(map(self._plain_index, index)), value)

    def _value(self, operand: sg.Operand) -> Expr:
        if isinstance(operand, float | int):
            return self._made(Const(float(operand)))
        meaning = self.values[operand]
        if isinstance(meaning, _Partial):
            raise self._illegal(f"uses the tile reduction {operand} before it is accumulated")
        if isinstance(meaning, _Part):
            raise self._illegal(f"uses the statistic {operand} of a part as if it were of all")
        return meaning

    def _load(self, tensor: str, index: tuple[Index, ...]) -> Expr:
        if tensor not in self.shared.stores:
            return self._made(Read(tensor, index))
        at, value = self.shared.held(tensor)
        mapping: dict[Axis, Index] = {}
        for stored, wanted in zip(at, index, strict=True):
            places = _places(stored, wanted)
            if places is None:
                raise self._illegal(f"reads {tensor} at an index that its store does not name")
            mapping |= places
        return self.memory.substitute(value, {a: i for a, i in mapping.items() if i != Index.axis(a)})

    def _gathered(self, s: sg.Gather) -> Expr:
        """The sums over bound axes that pick the elements, the first place's the outermost."""
        index = list(map(self._plain_index, s.index))
        bound = [Axis(f"place{p.dimension}", p.extent) for p in s.places]
        for p, axis in zip(s.places, bound, strict=True):
            index[p.dimension] = index[p.dimension] + Index.axis(axis)
        value = self._load(s.tensor, tuple(index))
        for p, axis in reversed(list(zip(s.places, bound, strict=True))):
            kept = self._at_place(Index.axis(axis), self._value(p.value), value)
            value = self._made(Reduce(ReduceKind.SUM, axis, kept))
        return value

    def _at_place(self, index: Index, place: Expr, value: Expr) -> Expr:
        """The value where the index is the place, else 0."""
        here = self._made(Map("eq", (self._made(PositionExpr(index)), place)))
        return self._made(Map("where", (here, value, self._made(Const(0.0)))))

    def _add(self, s: sg.Store) -> None:
        """What is in the tensor once src was added at its places: a sum over all that may go there."""
        body, places = self._value(s.src), [self._value(p.value) for p in s.places]
        over = [a for a, _ in self.kernel.roles if a in self.kernel.added_along(s)]
        if any(map(self.memory.mentions_running, (body, *places))) or any(self._plain(a) != a for a in over):
            raise self._illegal(f"adds to {s.tensor} what is no value, or not at a place")
        if s.tensor in self.shared.stores:
            at, before = self.shared.held(s.tensor)
        else:
            # A kernel that is looked at by itself.
            added = {p.dimension: Index.axis(Axis(f"place{p.dimension}", p.extent)) for p in s.places}
            at = tuple(added.get(n, i) for n, i in enumerate(s.index))
            before = self._made(Read(s.tensor, at))
        taken = free_axes(before).union(*(i.axes() for i in at))
        own = {a: Axis(f"{a.name}.added", a.extent) if a in taken else a for a in over}
        named = {a: Index.axis(b) for a, b in own.items() if a != b}
        named |= {a: i for a, i in zip((i.as_axis() for i in s.index), at, strict=True) if a is not None}
        mapping = {a: i for a, i in named.items() if i != Index.axis(a)}
        value = self.memory.substitute(body, mapping)
        for p, place in reversed(list(zip(s.places, places, strict=True))):
            value = self._at_place(at[p.dimension], self.memory.substitute(place, mapping), value)
        for a in reversed(over):
            value = self._made(Reduce(ReduceKind.SUM, own[a], value))
        if before != Const(0.0):
            value = self._made(Map("add", (before, value)))
        self.shared.stores[s.tensor] = [(at, value)]

    def _reduce(self, kind: ReduceKind, axis: Axis, body: Expr) -> _Meaning:
        role = self._roles.get(axis)
        if isinstance(role, sg.LoopRole | sg.Split):
            return _Partial(kind, axis, body)
        plain = self._plain(axis)
        if plain != axis and body in self.shared.rests:
            inner_kind, whole, inner = self.shared.rests[body]
            if inner_kind is kind:
                return self._made(Reduce(kind, whole, inner))
        return self._made(Reduce(kind, plain, body))

    def _accumulate(
        self, dst: str, kind: sg.Kind, src: str, shift: str | None, done: Mapping[str, Expr | _Part]
    ) -> Expr | _Part:
        partial = self.values[src]
        if not isinstance(partial, _Partial) or partial.kind is not kind:
            raise self._illegal(f"accumulates {src}, which is not a {kind.value} over a tile of the loop's axis")
        body = partial.body
        if shift is not None and kind is ReduceKind.MIN:
            body = self._met(body, partial.axis, shift, done)
        elif shift is not None:
            end = done.get(shift)
            if end is None or isinstance(end, _Part):
                raise self._illegal(f"rescales by {shift}, which is not an accumulator of the loop")
            body = self._rescaled(
                body, shift, self.running[shift], end, lambda parts: self._subtracted(parts, shift, end)
            )
        if self.memory.mentions_running(body):
            raise self._illegal(f"accumulates {dst} from a running value without rescaling")
        if isinstance(kind, sg.Statistic):
            role = self._roles.get(partial.axis)
            if isinstance(role, sg.Split):
                part = sg.part_axis(partial.axis, role.parts)
                if self._plain(part) in free_axes(body):
                    raise self._illegal(f"has a statistic {dst} over parts of what depends on parts itself")
                return _Part(part, (partial.axis, *partial.inner), body)
            return self._deviations(dst, (partial.axis, *partial.inner), body)
        if isinstance(self._roles.get(partial.axis), sg.Split):
            return self._over_rest(kind, partial.axis, body)
        return self._made(Reduce(kind, partial.axis, body))

    def _scan(self, s: sg.Scan) -> Expr:
        """The sum of what the value is at every place up to the present one, by what it has grown since."""
        axis, body = s.axis, self._value(s.src)
        growth = None if s.growth is None else self._value(s.growth)
        changes = any(self.memory.mentions_running(e) for e in (body, growth) if e is not None)
        if changes or self._plain(axis) != axis:
            raise self._illegal(f"sums up in {s.dst} what is no value at one place of {axis}")
        place, between = (Axis(f"{axis.name}.{name}", axis.extent) for name in ("scan", "between"))
        to_place = {axis: Index.axis(place)}
        factor = None
        if growth is not None and s.how.rescaled:
            return running(s.how, self._rescaled_so_far(s, body, growth, place), place, axis, made=self._made)
        there = self.memory.substitute(body, to_place)
        if growth is not None and s.how.factors:
            factor = between, self.memory.substitute(growth, {axis: Index.axis(between)})
        elif growth is not None:
            grown = since(s.how, growth, place, axis, self._made, self.memory.substitute)
            extreme = s.how.kind.is_extreme
            there = self._sum(there, grown) if extreme else self._mul(self._made(Map("exp", (grown,))), there)
        return running(s.how, there, place, axis, factor, self._made)

    def _rescaled_so_far(self, s: sg.Scan, body: Expr, most: Expr, place: Axis) -> Expr:
        """What is summed at a place in a scan that is rescaled, exp(a - m)*f: with the m of the axis' present place.

        Where that grows, a has grown by as much since.
        """
        shift = str(s.growth)
        m = self.scans[shift]
        to_place = {s.axis: Index.axis(place)}
        grown = None
        if m.growth is not None:
            how = replace(m.how, before=s.how.before)
            grown = since(how, self._value(m.growth), place, s.axis, self._made, self.memory.substitute)
        end = self._scan(replace(m, how=replace(m.how, before=True))) if s.how.before else most
        of = self.memory.substitute(self._value(m.src), to_place)

        def subtracted(parts: Sequence[Expr]) -> Expr:
            finite = all(map(self.memory.facts.finite, parts[1:]))
            if s.how.before and not finite:
                raise self._lost(f"has in {s.dst} factors that may be infinite before the first of {shift}")
            at = rescaled.guarded(end) if s.how.before else rescaled.scan_shift(end, finite)
            return self._above(parts, shift, end, of, at)

        return self._rescaled(body, shift, most, end, subtracted, lambda e: self.memory.substitute(e, to_place), grown)

    def _rescaled(
        self,
        body: Expr,
        shift: str,
        running: Expr,
        end: Expr,
        subtracted: Callable[[Sequence[Expr]], Expr],
        there: Callable[[Expr], Expr] = lambda e: e,
        grown: Expr | None = None,
    ) -> Expr:
        """The body, which is exp(a - m) or exp(a - m)*f, or a sum of that, with the shift m as it is in the end.

        Args:
            body: what is summed.
            shift: the name of m.
            running: what m is while it runs.
            end: what it is in the end.
            subtracted: what is subtracted then, given a, and f where there is one.
            there: a and f where they are summed.
            grown: what is added to a since.
        """

        def exponent(e: Expr) -> Expr | None:
            match e:
                case Map("exp", (Map("add", (a, Map("mul", (Const(-1.0), m)))),)) if m == running:
                    return a
                case _:
                    return None

        match body:
            case Reduce(ReduceKind.SUM, axis, inner) if axis not in free_axes(end) and axis not in free_axes(running):
                of = self._rescaled(inner, shift, running, end, subtracted, there, grown)
                return self._made(Reduce(body.kind, axis, of))
            case Map("mul", (p, f)) if (a := exponent(p)) is not None:
                parts = [there(a), there(f)]
            case Map("mul", (f, p)) if (a := exponent(p)) is not None:
                parts = [there(a), there(f)]
            case _ if (a := exponent(body)) is not None:
                parts = [there(a)]
            case _:
                raise self._illegal(f"rescales by {shift} what is not exp(a - {shift}) times a factor")
        if any(self.memory.mentions_running(p) for p in parts):
            raise self._illegal(f"rescales by {shift} a sum whose terms depend on running values otherwise")
        final = self._mul(self._made(Const(-1.0)), subtracted(parts))
        now = parts[0] if grown is None else self._sum(parts[0], grown)
        new = self._made(Map("exp", (self._sum(now, final),)))
        return self._mul(new, parts[1]) if parts[1:] else new

    def _subtracted(self, parts: Sequence[Expr], shift: str, end: Expr) -> Expr:
        """What is subtracted from a, in the end: m as it is then, unless that may be -inf."""
        match end:
            case Reduce(ReduceKind.MAX, _, _) if end in self.shared.rests:
                return self._above(parts, shift, end, self.shared.rests[end][2], rescaled.guarded(end))
            case Reduce(ReduceKind.MAX, _, of):
                return self._above(parts, shift, end, of, rescaled.shift(end))
            case _:
                return end

    def _above(self, parts: Sequence[Expr], shift: str, end: Expr, of: Expr, guarded: Expr) -> Expr:
        """What is subtracted from a: m, the maximum of `of`, or what stands for it where that may be -inf."""
        facts = self.memory.facts
        if not rescaled.falls_with(parts[0], of, facts):
            raise self._lost(f"rescales by {shift}, which may be -inf so far where what is summed is not")
        above = self._sum(parts[0], self._mul(self._made(Const(-1.0)), of))
        # Of kernels before this one what they rescaled may be in it.
        if self.memory.bounds.of(rescaled.computed(above))[1] == math.inf:
            raise self._lost(f"rescales by {shift}, above which what is summed may be so far that it overflows")
        infinite = facts.infinities(end)
        return end if infinite is not None and -math.inf not in infinite else self.memory.interned.all(guarded)

    def _met(self, body: Expr, axis: Axis, extreme: str, done: Mapping[str, Expr | _Part]) -> Expr:
        """The body with a running extreme replaced by its final value, when it is the place where that is met.

        Where the extreme changes, what came before is no place of it, and the least place begins anew; a place that is
        not met counts as one beyond the axis, so it makes no difference which of those are left.
        """
        end, running = done.get(extreme), self.running.get(extreme)
        match end:
            case Reduce(ReduceKind.MAX | ReduceKind.MIN, over, value) if over == axis:
                pass
            case _:
                raise self._illegal(f"finds the place of {extreme}, which is no extreme along {axis}")

        def met(e: Expr) -> Expr | None:
            match e:
                case Map("eq", (v, m)) if v == value and m == running:
                    return self._made(Map("eq", (v, end)))
                case Map("or", (Map("isnan", (v,)) as undefined, inner)) if (
                    v == value and (now := met(inner)) is not None
                ):
                    return self._made(Map("or", (undefined, now)))
                case _:
                    return None

        match body:
            case Map("where", (mask, PositionExpr(index), beyond)) if (
                index.as_axis() == axis and _beyond(beyond, axis) and (now := met(mask)) is not None
            ):
                return self._made(Map("where", (now, body.args[1], beyond)))
        raise self._illegal(f"takes with {extreme} what is not the place where that is met")

    def _statistic(self, dst: str, kind: sg.Statistic, axis: Axis, src: str) -> _Meaning:
        """Deviations of what is no statistic, or of one that is merged."""
        body = self._value(src)
        inner: tuple[Axis, ...] = ()
        if kind is sg.Statistic.MERGED and src in self.merged and isinstance(self._roles.get(axis), sg.Whole):
            over, moments = self.merged[src]
            return self._merge(dst, (axis, *over), moments)
        if kind is sg.Statistic.MERGED:
            if src not in self.statistics or self.memory.mentions_running(body):
                raise self._illegal(f"merges {src}, which is no statistic")
            inner, body = self.statistics[src]
        if isinstance(self._roles.get(axis), sg.LoopRole | sg.Split):
            return _Partial(kind, axis, body, inner)
        return self._deviations(dst, (self._plain(axis), *inner), body)

    def _deviations(self, dst: str, axes: tuple[Axis, ...], body: Expr) -> Expr:
        """The sum over the axes of the body's squared deviations from its mean over them."""
        self.statistics[dst] = axes, body
        minus = mul(const(-1), mean(axes, body))
        deviation = self.memory.interned.all(add(body, minus))
        return self.memory.interned.all(reduce(ReduceKind.SUM, axes, self._mul(deviation, deviation)))

    def _moment(self, src: sg.Operand, moment: sg.Moment) -> Expr:
        """What is stored of the statistic of a part: a name that nothing but the merging of all parts may read."""
        of = self.values.get(src) if isinstance(src, str) else None
        if not isinstance(of, _Part) or not isinstance(src, str):
            raise self._illegal(f"stores the {moment} of {src}, which is no statistic of a part")
        if self.shared.alike:
            return self.memory.interned.all(self._alike(of, moment))
        # Whatever else is made of it is refused as what is made of a running value is.
        name = f"running {moment} of {self.kernel.name} {src}"
        self.shared.moments[name] = moment, (self.kernel.name, src), of
        axes = (self._plain(of.part), *(of.free if moment is not sg.Moment.COUNT else ()))
        return self._made(Read(name, tuple(map(Index.axis, axes))))

    def _alike(self, of: _Part, moment: sg.Moment) -> Expr:
        """A moment of a part, where each has as many elements."""
        split, *inner = of.axes
        part, rest = split_axes(split.extent)
        whole = Index.axis(part).scaled(rest.extent) + Index.axis(rest)
        body, axes = self.memory.substitute(of.body, {split: whole}), (rest, *inner)
        match moment:
            case sg.Moment.COUNT:
                return mul(*(size(a.extent) for a in axes))
            case sg.Moment.MEAN:
                return mean(axes, body)
            case sg.Moment.REST:
                return const(0)
            case sg.Moment.SQUARES:
                deviation = add(body, mul(const(-1), mean(axes, body)))
                return reduce(ReduceKind.SUM, axes, mul(deviation, deviation))

    def _all_parts(self, dst: str, axis: Axis, given: tuple[Expr, ...]) -> Expr:
        """The statistic over a split axis: all moments are of one statistic, at one place, and of all its parts."""
        known = [self.shared.moments.get(e.tensor) if isinstance(e, Read) else None for e in given]
        first = given[0]
        if not any(known) and not any(map(self.memory.mentions_running, given)):
            return self._merge(dst, (self._plain(axis),), given)
        own = known[0]
        if own is None or not isinstance(first, Read):
            raise self._illegal(f"merges in {dst} what are no moments of parts")
        _, source, of = own
        for moment, e, found in zip(sg.Moment, given, known, strict=True):
            at = first.index[:1] if moment is sg.Moment.COUNT else first.index
            if found is None or found[:2] != (moment, source) or not isinstance(e, Read) or e.index != at:
                raise self._illegal(f"merges in {dst} moments of several statistics, or at several places")
        if axis != of.part or first.index[0] != Index.axis(self._plain(axis)):
            raise self._illegal(f"merges in {dst} what are not all parts of {of.axes[0]}")
        places = dict(zip(of.free, first.index[1:], strict=True))
        bound = {*of.axes, self._plain(axis)}
        if any(bound & set(i.axes()) for i in places.values()):
            raise self._illegal(f"merges in {dst} at a place that depends on {of.axes[0]}")
        body = self.memory.substitute(of.body, {a: i for a, i in places.items() if i != Index.axis(a)})
        return self._deviations(dst, of.axes, body)

    def _merge(self, dst: str, axes: tuple[Axis, ...], moments: tuple[Expr, ...]) -> Expr:
        """The statistic over the axes from moments that are read: of a kernel that is looked at by itself."""
        self.merged[dst] = axes, moments
        squares, count, first, rest = moments
        value = add(first, rest)
        total = reduce(ReduceKind.SUM, axes, count)
        about = mul(reduce(ReduceKind.SUM, axes, mul(count, value)), recip(total))
        moved = add(value, mul(const(-1), about))
        return self.memory.interned.all(reduce(ReduceKind.SUM, axes, add(squares, mul(count, mul(moved, moved)))))

    def _over_rest(self, kind: ReduceKind, axis: Axis, body: Expr) -> Expr:
        """The reduction over the program's part of the axis, as a function of the part."""
        part, rest = split_axes(axis.extent)
        whole = Index.axis(part).scaled(rest.extent) + Index.axis(rest)
        reduced = self._made(Reduce(kind, rest, self.memory.substitute(body, {axis: whole})))
        self.shared.rests[reduced] = (kind, axis, body)
        return reduced

    def _lost(self, what: str) -> rescaled.LostError:
        return rescaled.LostError(f"kernel {self.kernel.name} {what}", where="sGraph", why="it has no denotation")

    def _illegal(self, what: str) -> IllegalIRError:
        return IllegalIRError(f"kernel {self.kernel.name} {what}", where="sGraph", why="it has no denotation")


def _beyond(e: Expr, axis: Axis) -> bool:
    """Whether the expression is a number that is greater than every place of the axis."""
    match e:
        case Const(value):
            return is_static(axis.extent) and value >= int(axis.extent)
        case Size(extent):
            return extent == axis.extent
        case _:
            return False


def _ordered(e: Expr) -> list[Axis]:
    return sorted(free_axes(e), key=lambda a: a.name)


def split_axes(extent: Extent) -> tuple[Axis, Axis]:
    """The (part, rest) axes that an axis of that extent is split into."""
    name = text(extent)
    parts = sympy.Symbol(f"parts_{name}", integer=True, positive=True)
    rest = sympy.Symbol(f"rest_{name}", integer=True, positive=True)
    return Axis(f"part.{name}", parts), Axis(f"rest.{name}", rest)


def expand(expr: Expr, extents: Sequence[Extent]) -> Expr:
    """`expr` with every reduction over an axis of one of the extents written over its (part, rest)."""
    if not extents:
        return expr

    # Bodies under new axes are kept with what became of them, so that no identity is used again.
    memo: dict[int, tuple[Expr, Expr]] = {}

    def visit(e: Expr) -> Expr:
        if id(e) not in memo:
            memo[id(e)] = e, new(e)
        return memo[id(e)][1]

    def new(e: Expr) -> Expr:
        if isinstance(e, Reduce) and e.axis.extent in extents:
            part, rest = split_axes(e.axis.extent)
            # Nested reductions over the same extent need parts of their own.
            part = Axis(f"{part.name}.{e.axis.name}", part.extent)
            rest = Axis(f"{rest.name}.{e.axis.name}", rest.extent)
            whole = Index.axis(part).scaled(rest.extent) + Index.axis(rest)
            return Reduce(e.kind, part, Reduce(e.kind, rest, visit(substitute(e.body, {e.axis: whole}))))
        return with_children(e, map(visit, e.children))

    return canonical(visit(expr))


@dataclass(slots=True)
class Denotations:
    """Denotes sGraphs; what several have in common is worked out once, and equal outputs are one object."""

    _memory: _Memory = field(default_factory=_Memory)

    def of(self, sgraph: sg.SGraph) -> Denotation:
        """What the sGraph computes.

        Raises:
            IllegalIRError: a kernel has no denotation: it uses a partial result as if it were whole, or rescales what
                is not a sum of shifted exponentials, or has a loop whose range leaves out what counts.
        """
        memory = self._memory
        shared = _Shared()
        for kernel in sgraph.kernels:
            check_ranges(kernel)
            check_needed(kernel)
            _Reader(kernel, shared, memory).run()
        values = [memory.told(memory.interned.all(shared.held(t.name)[1])) for t in sgraph.outputs]
        for t, v in zip(sgraph.outputs, values, strict=True):
            if memory.mentions_running(v):
                raise IllegalIRError(f"{t.name} takes a moment of a part", where="sGraph", why="it has no denotation")
        parts = {split_axes(e)[0].extent: e for e in shared.parts.values()}
        left = tuple(e for s, e in parts.items() if any(s in memory.bound_extents(v) for v in values))
        return Denotation(tuple(memory.output(v, left) for v in values), left)


def denote(sgraph: sg.SGraph) -> Denotation:
    """What the sGraph computes.

    Raises:
        IllegalIRError: a kernel has no denotation: it uses a partial result as if it were whole, or rescales what is
            not a sum of shifted exponentials, or has a loop whose range leaves out what counts.
    """
    return Denotations().of(sgraph)


def stored_at(sgraph: sg.SGraph) -> dict[str, tuple[Index, ...]]:
    """For each output, where in it an element of what is denoted is.

    Raises:
        IllegalIRError: a kernel has no denotation.
    """
    shared, memory = _Shared(), _Memory()
    for kernel in sgraph.kernels:
        _Reader(kernel, shared, memory).run()
    return {t.name: shared.held(t.name)[0] for t in sgraph.outputs}


def stored_values(sgraph: sg.SGraph) -> tuple[dict[str, Expr], dict[str, Expr]]:
    """What every kernel stores, by tensor: over the inputs, and over what the kernel itself reads.

    Raises:
        IllegalIRError: a kernel has no denotation.
    """
    memory = _Memory()
    shared = _Shared()
    alone: dict[str, Expr] = {}
    for kernel in sgraph.kernels:
        _Reader(kernel, shared, memory).run()
        own = _Shared(parts=shared.parts)
        _Reader(kernel, own, memory).run()
        alone |= {name: rescaled.plain(value) for name, (_, value) in own.stored.items()}
    return {name: rescaled.plain(value) for name, (_, value) in shared.stored.items()}, alone


def kernel_stores(kernel: sg.Kernel) -> dict[str, tuple[tuple[Index, ...], Expr]]:
    """What one kernel stores and where, by tensor, over what it reads itself.

    Raises:
        IllegalIRError: it has no denotation, or a loop whose range leaves out what counts.
    """
    check_ranges(kernel)
    check_needed(kernel)
    own = _Shared()
    _Reader(kernel, own, _Memory()).run()
    return {name: (index, rescaled.told(value)) for name, (index, value) in own.stored.items()}


def kernel_values(sgraph: sg.SGraph) -> dict[str, dict[str, Expr]]:
    """By kernel, what each of its values is over the inputs; in a loop, of an accumulator what it is at the end.

    What is a partial result, and what is made of the running value of an accumulator, is left out. What is stored after
    more than `HORIZON` operations is read from there on as if it were an input, so that the values of many kernels
    after one another do not take the square of their number. So is what a kernel reads where it cannot be told from
    what was stored: between the kernels of regions, one may store `y[16*a + b]` and the other read `y[c - 1]`.

    Raises:
        IllegalIRError: a kernel has no denotation.
    """
    memory = _Memory()
    shared = _Shared()
    found: dict[str, dict[str, Expr]] = {}
    for kernel in sgraph.kernels:
        reader = _Reader(kernel, shared, memory)
        try:
            reader.run()
        except IllegalIRError:
            for tensor in kernel.reads:
                shared.stores.pop(tensor, None)
            reader = _Reader(kernel, shared, memory)
            reader.run()
        for tensor in kernel.writes:
            if sum(1 for _, value in shared.stores.get(tensor, ()) for _ in walk(value)) > HORIZON:
                del shared.stores[tensor]
        found[kernel.name] = {
            name: rescaled.plain(value)
            for name, value in reader.values.items()
            if not isinstance(value, _Partial | _Part) and not memory.mentions_running(value)
        }
    return found


def as_program(
    sgraph: sg.SGraph, ranges: Mapping[str, SymbolRange] | None = None
) -> tuple[Program, dict[str, Extent]] | None:
    """What the kernels compute one after another, as a program: a definition for each tensor that is stored.

    A split axis has one part, so that the program can be run at every extent: the symbols of its parts, and of what is
    in one, are returned with what they are then. None where a store is no definition: by another index than axes.
    What is rescaled is written as kernels compute it.

    Raises:
        IllegalIRError: a kernel has no denotation.
    """
    memory = _Memory()
    shared = _Shared()
    made: dict[str, Definition] = {}
    for kernel in sgraph.kernels:
        _Reader(kernel, shared, memory).run()
        own = _Shared(parts=shared.parts, alike=True)
        _Reader(kernel, own, memory).run()
        for name, (index, stored) in own.stored.items():
            tensor, value = sgraph.tensor(name), rescaled.computed(stored)
            axes: list[Axis] = []
            if len(index) != len(tensor.shape):
                return None
            for n, (i, extent) in enumerate(zip(index, tensor.shape, strict=True)):
                axis = i.as_axis() or Axis(f"whole.{n}", extent)
                places = _places(i, Index.axis(axis) if i.terms else Index.const(0))
                if places is None or (not places and extent != 1):
                    return None
                if axis not in places:
                    value = substitute(value, places)
                axes.append(axis)
            if name in made and name in kernel.reads:
                # What it is added to is a definition of its own.
                before = f"{name}.before"
                made[before] = replace(made.pop(name), name=before)
                (value,) = with_tensors([value], {**{t: t for t in kernel.reads}, name: before}.__getitem__)
            if name in made or len(set(axes)) < len(axes):
                return None
            made[name] = Definition(name, tuple(axes), value, tensor.dtype)
    if any(t.name not in made for t in sgraph.outputs):
        return None
    bound: dict[str, Extent] = {}
    for extent in shared.parts.values():
        part, rest = split_axes(extent)
        bound |= {str(part.extent): 1, str(rest.extent): extent}
    outputs = tuple(t.name for t in sgraph.outputs)
    return Program(sgraph.name, sgraph.inputs, tuple(made.values()), outputs, ranges or {}), bound
