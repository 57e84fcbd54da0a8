"""Segments of a stack or a concatenation that are one expression of their position, as one.

    y0[i] = f(x[0, i])    y1[i] = f(x[1, i])    y2[i] = f(x[2, i])
    y[p, i] = where(p < 1, y0[i], where(p < 2, y1[i], y2[i]))
    ->  y0_rolled[p, i] = f(x[p, i])          y[p, i] = y0_rolled[p, i]

Source that was unrolled (a loop over rows, heads or chunks) says the same operators again for each segment. Here the
definitions that the segments read are laid side by side, back to what they share: where they differ by offsets that
grow evenly from segment to segment, one definition with an axis more stands for all of them. Segments of several
elements are read at the quotient and the remainder of the position, which inlining takes apart like any reshape's.
Where only neighbours agree, these are one segment among others.

A rolled definition stands for the n-th of what it was made from when n in place of its new axis gives that one back,
operator by operator; that is looked at (`_gives_back`) for each of them before any is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from prism.program.build import position
from prism.program.extents import Extent, add, exact_quotient, mul
from prism.program.fold import as_index, op
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Definition, Expr, Map, Position, Program, Read, Reduce, Size, free_axes, walk
from prism.program.region import reads
from prism.program.transform import replaced, substitute
from prism.program.views import same_extent


def rolled(program: Program) -> Program:
    """The same program, in which segments of one expression are one; itself where there are none."""
    new = program
    shapes: dict[str, int] = {}
    if any(_chosen_along(d) for d in program.definitions):
        for d in program.definitions:
            shapes[d.name] = _shape(d.expr, shapes)
    for d in program.definitions if shapes else ():
        found = _rolled(new, new.definition(d.name), shapes)
        if found is not None:
            new = found
    return new if new is program else replace(new, definitions=live_definitions(ordered(new.definitions), program))


def _shape(expr: Expr, shapes: Mapping[str, int]) -> int:
    """A number that is the same for expressions that are alike but for numbers and indices, back to the inputs.

    Pieces that differ far back, as the steps of a recurrence do, are told apart by it at once.
    """

    def leaf(e: Expr) -> tuple[object, ...]:
        match e:
            case Read(tensor, index):
                return "read", shapes.get(tensor, tensor), len(index)
            case Const() | Position():
                return ("number",)
            case _:
                return (e,)

    return shape_of(expr, leaf)


def shape_of(expr: Expr, leaf: Callable[[Expr], tuple[object, ...]]) -> int:
    """A number that is the same for expressions of the same operators, whose leaves have the same keys."""
    known: dict[int, int] = {}
    for e in walk(expr):
        match e:
            case Map(name, args):
                key: tuple[object, ...] = (name, *[known[id(a)] for a in args])
            case Reduce(kind, axis, body):
                key = (kind, axis, known[id(body)])
            case _:
                key = leaf(e)
        known[id(e)] = hash(key)
    return known[id(expr)]


def side_by_side(es: Sequence[Expr], one: Callable[[Sequence[Expr]], Expr]) -> Expr:
    """Expressions of one operator as one, their operands by `one`. Raises UnlikeError: they are not of one operator."""
    match es[0]:
        case Map(name, args):
            maps = [e for e in es if isinstance(e, Map) and e.op == name and len(e.args) == len(args)]
            if len(maps) == len(es):
                return Map(name, tuple([one([e.args[n] for e in maps]) for n in range(len(args))]))
        case Reduce(kind, axis, _):
            sums = [e for e in es if isinstance(e, Reduce) and e.kind == kind and e.axis == axis]
            if len(sums) == len(es):
                return Reduce(kind, axis, one([e.body for e in sums]))
    raise UnlikeError


@dataclass(frozen=True, slots=True)
class _Segment:
    """Some places of a definition, one after another, along one of its axes."""

    start: Extent  # the first of them
    length: Extent  # how many there are
    expr: Expr  # their values, over the definition's axes


class UnlikeError(Exception):
    """Expressions that were laid side by side are not one expression of their place."""


def _rolled(program: Program, d: Definition, shapes: dict[str, int]) -> Program | None:
    """The program with the definition's segments rolled; None where no two neighbours are one expression."""
    axis = _chosen_along(d)
    segments = [] if axis is None else _segments(d.expr, axis)
    if axis is None or len(segments) < 2:
        return None
    runs: list[tuple[_Segment, _Run | None]] = []
    start = 0
    made: dict[str, Definition] = {}
    while start < len(segments):
        run = _longest(program, d, axis, segments[start:], made, shapes)
        runs.append((segments[start], run))
        start += 1 if run is None else run.many
        if run is not None:
            made |= {f.definition.name: f.definition for f in run.families}
            shapes |= {f.definition.name: shapes[f.members[0]] for f in run.families}
    if all(run is None for _, run in runs):
        return None
    expr = (runs[-1][1] or runs[-1][0]).expr
    for (before, run), (after, _) in reversed(list(pairwise(runs))):
        inside = op("lt", position(axis), position(Index.const(after.start)))
        expr = op("where", inside, (run or before).expr, expr)
    return _with(program, replace(d, expr=expr, view=isinstance(expr, Read)), [r for _, r in runs if r is not None])


def _longest(
    program: Program,
    d: Definition,
    axis: Axis,
    segments: Sequence[_Segment],
    made: Mapping[str, Definition],
    shapes: Mapping[str, int],
) -> _Run | None:
    """The first segments as one, as many as can be; None where the first two cannot."""
    alike, shape = 1, _shape(segments[0].expr, shapes)
    while (
        alike < len(segments)
        and same_extent(segments[alike].length, segments[0].length)
        and _shape(segments[alike].expr, shapes) == shape
    ):
        alike += 1
    # What is one expression is one without its last segments, too: so the number is found by halves.
    best: _Run | None = None
    low, high, many = 1, alike, alike
    while low < high:
        run = _run(program, d, axis, segments[:many], made)
        if run is None:
            high = many - 1
        else:
            best, low = run, many
        many = (low + high + 1) // 2
    return best


def _chosen_along(d: Definition) -> Axis | None:
    """The axis along which the definition consists of segments."""
    match d.expr:
        case Map("where", (Map("lt", (Position(index), bound)), _, _)) if not isinstance(bound, Map | Reduce | Read):
            axis = index.as_axis()
            return axis if axis in d.axes else None
    return None


def _segments(expr: Expr, axis: Axis) -> list[_Segment]:
    """The segments along the axis, first to last; none where their order is not known."""
    found: list[_Segment] = []
    stack: list[tuple[Expr, Extent, Extent]] = [(expr, 0, axis.extent)]
    while stack:
        e, low, high = stack.pop()
        match e:
            case Map("where", (Map("lt", (Position(index), bound)), before, after)) if index.as_axis() == axis:
                middle = _number(bound)
                if middle is None:
                    return []
                stack += [(after, middle, high), (before, low, middle)]
            case _:
                found.append(_Segment(low, add(high, mul(-1, low)), e))
    return found


def _number(e: Expr) -> Extent | None:
    match e:
        case Const(value) if value.is_integer():
            return int(value)
        case Size(extent):
            return extent
        case Position(index) if not index.terms:
            return index.offset
    return None


@dataclass(frozen=True, slots=True)
class _Family:
    """Definitions that are one expression of their place among them."""

    definition: Definition  # the rolled one; its first axis is the place
    members: tuple[str, ...]  # those that it stands for, by name, in order


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring segments as one."""

    many: int  # how many segments
    expr: Expr  # the value, over the definition's axes
    families: tuple[_Family, ...]  # what it reads that was rolled, readers first


def _run(
    program: Program, d: Definition, axis: Axis, segments: Sequence[_Segment], made: Mapping[str, Definition]
) -> _Run | None:
    """The segments, of one length, as one; None where they are not one expression of their position."""
    start, length = segments[0].start, segments[0].length
    within = Axis(f"{d.name}.in", length)
    place = Axis(f"{d.name}.at{start}", len(segments))
    at = [substitute(p.expr, {axis: Index.axis(within) + Index.const(p.start)}) for p in segments]
    try:
        side = _Side(program, place, set(made))
        expr = side.whole(at)
    except UnlikeError:
        return None
    if place not in free_axes(expr):  # one value several times is computed once as it is
        return None
    here = Index.axis(axis)
    if length == 1:
        chosen = {place: here + Index.const(mul(-1, start))}
    else:
        # Quotient and remainder do not go below zero where the run is not: whole segments stand before it.
        before = exact_quotient(start, length)
        if before is None or exact_quotient(axis.extent, length) is None:
            return None
        chosen = {place: here.floordiv(length) + Index.const(mul(-1, before)), within: here.mod(length)}
    return _Run(len(segments), substitute(expr, chosen), tuple(side.families.values()))


@dataclass(slots=True)
class _Side:
    """Lays expressions side by side, and the definitions that they read, back to what they share."""

    program: Program  # what the definitions are of
    place: Axis  # the axis of the place among them
    taken: set[str]  # names that are not to be used
    # Rolled definitions, by the names of their members; readers first.
    families: dict[tuple[str, ...], _Family] = field(default_factory=dict)
    # The names of families, by the names of their members.
    wanted: dict[tuple[str, ...], str] = field(default_factory=dict)

    def whole(self, exprs: Sequence[Expr]) -> Expr:
        """The expressions as one of their place. Raises UnlikeError: they are none."""
        expr = self._one(exprs)
        # Without recursion, as definitions follow one another in long chains.
        while waiting := next((m for m in self.wanted if m not in self.families), None):
            self.families[waiting] = self._family(waiting)
        members = {f.definition.name: f.members for f in self.families.values()}
        if not all(_gives_back(expr, self.place, members, n, e) for n, e in enumerate(exprs)):
            raise UnlikeError
        for f in self.families.values():
            for n, name in enumerate(f.members):
                own = _over(self.program.definition(name), f.definition.axes[1:])
                if not _gives_back(f.definition.expr, f.definition.axes[0], members, n, own):
                    raise UnlikeError
        return expr

    def _family(self, members: tuple[str, ...]) -> _Family:
        if any(m not in self.program.order or m in self.program.outputs for m in members):
            raise UnlikeError
        first, *others = definitions = [self.program.definition(m) for m in members]
        if any((e.dtype, e.view, e.tensor.shape) != (first.dtype, first.view, first.tensor.shape) for e in others):
            raise UnlikeError
        expr = self._one([_over(e, first.axes) for e in definitions])
        axes = (self.place, *first.axes)
        view = isinstance(expr, Read)
        return _Family(Definition(self.wanted[members], axes, expr, first.dtype, first.origin, view), members)

    def _one(self, es: Sequence[Expr]) -> Expr:
        first = es[0]
        if all(e is first for e in es) or all(e == first for e in es):
            return first
        kinds = {type(e) for e in es}
        if kinds <= {Const, Position}:
            return position(self._index([as_index(e) for e in es]))
        if len(kinds) > 1:
            raise UnlikeError
        match first:
            case Read(_, index):
                alike = [e for e in es if isinstance(e, Read) and len(e.index) == len(index)]
                if len(alike) == len(es):
                    return self._read(alike)
            case _:
                return side_by_side(es, self._one)
        raise UnlikeError

    def _read(self, es: Sequence[Read]) -> Expr:
        index = tuple(self._index([e.index[n] for e in es]) for n in range(len(es[0].index)))
        tensors = tuple(e.tensor for e in es)
        if len(set(tensors)) == 1:
            return Read(tensors[0], index)
        if tensors not in self.wanted:
            self.wanted[tensors] = self._name(tensors[0])
        return Read(self.wanted[tensors], (Index.axis(self.place), *index))

    def _name(self, first: str) -> str:
        known = self.taken | set(self.program.order) | set(self.program.input_order) | set(self.wanted.values())
        name = f"{first}_rolled"
        while name in known:
            name += "_"
        return name

    def _index(self, indices: Sequence[Index | None]) -> Index:
        """The index whose offset grows evenly with the place."""
        first, second = indices[0], indices[1]
        if first is None or second is None:
            raise UnlikeError
        step = add(second.offset, mul(-1, first.offset))
        for n, i in enumerate(indices):
            if i is None or i.terms != first.terms or not same_extent(i.offset, add(first.offset, mul(n, step))):
                raise UnlikeError
        return first + Index.axis(self.place).scaled(step)


def _over(d: Definition, axes: Sequence[Axis]) -> Expr:
    """The definition's expression over other axes of the same extents."""
    return substitute(d.expr, {a: Index.axis(b) for a, b in zip(d.axes, axes, strict=True) if a != b})


def _gives_back(expr: Expr, place: Axis, members: Mapping[str, tuple[str, ...]], n: int, own: Expr) -> bool:
    """Whether a rolled expression, at the n-th place, is that place's own."""

    def at(e: Expr) -> Expr:
        match e:
            case Read(tensor, (which, *index)) if tensor in members:
                return Read(members[tensor][int(which.offset)], tuple(index))
            case Position(index):
                return position(index)
        return e

    return replaced([substitute(expr, {place: Index.const(n)})], at)[0] == own


def _with(program: Program, d: Definition, runs: Sequence[_Run]) -> Program:
    """The program with a definition in place of the one of its name, and what was rolled for it.

    What was rolled is computed there: a member that something else reads is a place of it.
    """
    made = [f for run in runs for f in run.families]
    changed = {d.name: d}
    for f in made:
        for n, name in enumerate(f.members):
            old = program.definition(name)
            index = (Index.const(n), *map(Index.axis, old.axes))
            changed.setdefault(name, replace(old, expr=Read(f.definition.name, index), view=True))
    every = [*(f.definition for f in made), *(changed.get(e.name, e) for e in program.definitions)]
    return replace(program, definitions=tuple(every))


def ordered(definitions: Sequence[Definition]) -> tuple[Definition, ...]:
    """The definitions, each after what it reads, else in the order that they have.

    There is such an order: members of a family are alike back to what they share, so none of them needs another.
    """
    by_name = {e.name: e for e in definitions}
    below = {e.name: [t for t in reads(e.expr) if t in by_name] for e in definitions}
    done: dict[str, Definition] = {}
    begun: set[str] = set()
    for e in definitions:
        stack = [e.name]
        while stack:
            name = stack[-1]
            waiting = [t for t in below[name] if t not in done]
            if name in done or not waiting:
                stack.pop()
                done[name] = by_name[name]
            else:
                assert name not in begun
                begun.add(name)
                stack.extend(reversed(waiting))
    return tuple(done.values())


def live_definitions(definitions: Sequence[Definition], old: Program) -> tuple[Definition, ...]:
    """Those that are read or were not read before either, of definitions in order."""
    before = {t for d in old.definitions for t in reads(d.expr)}
    used = set(old.outputs)
    kept: list[Definition] = []
    for d in reversed(definitions):
        if d.name in used or (d.name in old.order and d.name not in before):
            used.update(reads(d.expr))
            kept.append(d)
    return tuple(reversed(kept))
