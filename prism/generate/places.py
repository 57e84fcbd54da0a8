"""Where values that are stored have others: in windows, and in slices.

What a window sees at a place is one value of the place, however many windows it is in.

A depthwise convolution of f(x) reads `f(x)[y + d - 1]` for each row y and tap d. Inlined that is f over y and d,
computed again for each tap. Where all that a value is made of has the two in one and the same sum alone, the value is
one of that sum: over a new axis, as long as the dimension that is read, it is computed once a place. Stored, it is read
back at the sum. f may see windows itself (`x[(y + d - 1) + e]`, e bound in it), and masks of places. Something has to
be read at the sum whatever is chosen in f: outside of the dimension nothing that counts was read then, so nothing that
counts is read of the buffer.

A convolution of a convolution reads `x[(y + d - 1) + (e - 1)]` and nothing at `y + d - 1` itself, so nothing tells
which places count. Then all do at which windows are, from `y + d` = 0 on, borders among them: none is read outside.

`y = x @ w` and `y[:, n:]` are two e-classes once slices are inlined: sums over products with `w[k, j]` and with
`w[k, n + j]`. The second is the first at `j -> n + j`: found is such an index for each axis of the whole, by structure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prism.generate.options import REDUCING, Choice, Choices, Chosen, Over, Weights, below
from prism.generate.scans import Along
from prism.program import fold
from prism.program.classes import EClasses
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Read, Tensor, free_axes
from prism.program.ops import COMMUTATIVE, COMPARISONS, ROUNDED
from prism.program.transform import indices, least_instance

# Values are computed once a place where windows would compute them so many times as often, at least.
AGAIN = 2.0
# And where they reduce nothing, if all windows spend so many multiply-adds on each place: twice what storing takes.
DEAR = 64.0


@dataclass(frozen=True, slots=True)
class Window:
    """A value of a form that is one of places."""

    seen: int  # the e-class, over the axes of windows
    at: int  # the e-class over places
    places: tuple[tuple[Axis, Index], ...]  # the axes of the places, with the sum that each stands for

    def index(self, axes: tuple[Axis, ...]) -> tuple[Index, ...]:
        """Where a buffer with these axes holds what is seen."""
        known = dict(self.places)
        return tuple(known.get(a, Index.axis(a)) for a in axes)


@dataclass(slots=True)
class Places:
    """Finds what forms compute in windows, and adds what computes it over places."""

    classes: EClasses  # the e-graph; e-classes over places are added to its axes
    inputs: Sequence[Tensor]  # the program's inputs
    _axes: dict[int, frozenset[Axis]] = field(init=False)
    _made: dict[tuple[object, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._axes = dict(self.classes.axes)
        self.classes = replace(self.classes, axes=self._axes)

    def added(self, choices: Choices, weights: Weights) -> tuple[Choices, tuple[Window, ...]]:
        """The form with what it takes to compute its windows' values over places, and those values.

        They reduce something, or are dear all the same (`DEAR`), and none is part of another one.
        """
        order = below(choices, self.classes.roots)
        if not any(_slides(i) for c in order for i in indices(choices[c].payload)):
            return choices, ()
        extended = dict(choices)
        found: list[Window] = []
        done: set[int] = set()
        for nested in (False, True):
            for cls in reversed(order):
                if cls in done or not choices[cls].children:
                    continue
                inside = below(choices, [cls])
                if nested and not done.isdisjoint(w.seen for w in found if w.seen in inside):
                    continue
                window = self._window(extended, cls, weights, nested)
                if window is not None:
                    found.append(window)
                    done.update(inside)
        return extended, tuple(found)

    def _window(self, choices: dict[int, Choice], cls: int, weights: Weights, nested: bool) -> Window | None:
        """The e-class as a value of places, which is added to the choices; None where it is none.

        Nested in it may be windows at each place, where nothing is read at the place itself: then all places count at
        which windows are, borders of the image among them.
        """
        free = self._axes[cls]
        every = below(choices, [cls])
        slid = {
            a
            for c in every
            for i in indices(choices[c].payload)
            if _slides(i) and (i.axes() <= free or (nested and len(i.axes() & free) > 1))
            for a in i.axes() & free
        }
        # What is the same in all windows, as statistics are, is one value, whatever it reduces.
        same = dict.fromkeys(c for c in every if self._axes[c].isdisjoint(slid))
        order = below(choices, [cls], same)
        vary = [c for c in order if c not in same]
        bound = frozenset(a for c in vary for a in choices[c].reduced)
        if bound & free or any(isinstance(choices[c].payload, (Along, Chosen, Over)) for c in vary):
            return None
        sums: dict[Index, Extent] = {}
        for c in _whatever_is_chosen(choices, cls, same):
            match choices[c].payload:
                case Read(tensor, index):
                    shape = next(t.shape for t in self.inputs if t.name == tensor)
                    for i, extent in zip(index, shape, strict=True):
                        if _slides(i) and i.axes() <= free and sums.setdefault(i, extent) != extent:
                            return None
        for c in vary if nested else ():
            for i in indices(choices[c].payload):
                total = _free_part(i, free)
                if total is not None and _parts(i, sums) is None:
                    sums[total[0]] = total[1]
        moved = frozenset(a for i in sums for a in i.axes())
        if not sums or len(moved) < sum(len(i.axes()) for i in sums):
            return None
        compared = {c: d for c in vary if (d := _difference(choices, c)) is not None and d.axes() & moved}
        apart = {k for c in compared for k in choices[c].children}
        apart -= {k for c in vary if c not in compared for k in choices[c].children}
        told = [i for c in vary if c not in apart for i in indices(choices[c].payload)]
        if any(_parts(i, sums) is None and i.axes() & moved for i in told):
            return None
        if any(_parts(d, sums) is None for d in compared.values()):
            return None
        taken = [*bound, *(free - moved)]
        places: dict[Index, Axis] = {}
        for i, extent in sums.items():
            places[i] = least_instance(extent, [*taken, *places.values()])
        if weights.size(moved) < AGAIN * weights.size(frozenset(places.values())):
            return None
        if not any(choices[c].op in REDUCING for c in every):
            stored = weights.size((free - moved).union(places.values()))
            if sum(weights.work(c, choices[c]) for c in vary if choices[c].op in ROUNDED) < DEAR * stored:
                return None  # a border alone is chosen again
        new: dict[int, int] = {}
        for c in order:
            choice = choices[c]
            if not self._axes[c] & moved:
                new[c] = c
                continue
            payload = choice.payload
            match payload:
                case Read(tensor, index):
                    payload = Read(tensor, tuple(_placed(i, places) for i in index))
                case Position(i):
                    payload = Position(_placed(i, places))
            if c in apart:
                continue
            if c in compared:
                new[c] = self._number(choices, _over_places(choice.op, compared[c], places))
                continue
            held = frozenset(a for i, a in places.items() if i.axes() & self._axes[c])
            made = Choice(choice.op, payload, tuple(new[k] for k in choice.children))
            new[c] = self._add(choices, made, (self._axes[c] - moved) | held)
        return Window(cls, new[cls], tuple((a, i) for i, a in places.items()))

    def _add(self, choices: dict[int, Choice], made: Choice, axes: frozenset[Axis]) -> int:
        """The e-class that is computed so, over these axes."""
        key = (made.op, made.payload, made.children)
        cls = self._made.setdefault(key, max(self._axes) + 1)
        choices[cls], self._axes[cls] = made, axes
        return cls

    def _number(self, choices: dict[int, Choice], e: Expr) -> int:
        """The e-class of an expression of positions and numbers."""
        kids = tuple(self._number(choices, k) for k in e.children)
        match e:
            case Map(name):
                made = Choice(name, None, kids)
            case Const():
                made = Choice("const", e, ())
            case _:
                assert isinstance(e, Position)
                made = Choice("position", e, ())
        return self._add(choices, made, free_axes(e))


def _difference(choices: Choices, cls: int) -> Index | None:
    """What a comparison of two positions compares with 0: the second less the first; None of anything else."""
    choice = choices[cls]
    if choice.op not in COMPARISONS:
        return None
    match [choices[k].payload for k in choice.children]:
        case [Position(one), Position(other)]:
            return other + one.scaled(-1)
    return None


def _over_places(name: str, difference: Index, places: Mapping[Index, Axis]) -> Expr:
    """The comparison of 0 with a difference of positions, over places."""
    parts = _parts(difference, places)
    assert parts is not None
    if parts[0][0][1] > 0:
        return fold.op(name, Const(0.0), Position(_placed(difference, places)))
    return fold.op(name, Position(_placed(difference.scaled(-1), places)), Const(0.0))


def _whatever_is_chosen(choices: Choices, root: int, stops: Container[int]) -> Iterator[int]:
    """The e-classes that a value is made of, but for those that a mask may leave out, and what `stops` are made of.

    A mask is of places: a choice by value, as a ReLU's gradient is, may be either everywhere.
    """
    seen: set[int] = set()
    stack = [root]
    while stack:
        cls = stack.pop()
        if cls not in seen and cls not in stops:
            seen.add(cls)
            yield cls
            children = choices[cls].children
            masked = choices[cls].op == "where" and _of_places(choices, children[0])
            stack += children[:1] if masked else children


def _of_places(choices: Choices, cls: int) -> bool:
    """Whether a condition compares places, be it among others."""
    choice = choices[cls]
    if choice.op in COMPARISONS:
        return any(choices[k].op == "position" for k in choice.children)
    return choice.op not in REDUCING and any(_of_places(choices, k) for k in choice.children)


def _parts(index: Index, sums: Iterable[Index]) -> tuple[list[tuple[Index, int]], Index] | None:
    """Which of the sums it has, each how many times, and what it has besides; None where axes of sums are in that."""
    rest, found = index, []
    axes: set[Axis] = set()
    for total in sums:
        axes |= total.axes()
        first, each = total.terms[0]
        many = dict(rest.terms).get(first, 0)
        if isinstance(many, int) and isinstance(each, int) and many and many % each == 0:
            found.append((total, many // each))
            rest = rest + total.scaled(-(many // each))
    return (found, rest) if found and rest.axes().isdisjoint(axes) else None


def _free_part(index: Index, free: frozenset[Axis]) -> tuple[Index, Extent] | None:
    """Of an index in a window within a window the sum that is the outer one's, from 0 on, and its places.

    Where windows are a stride apart that is of the windows, and not of what they lie over.
    """
    terms = [(a, c) for a, c in index.terms if isinstance(a, Axis) and a in free]
    if len(terms) < 2 or not _slides(index):
        return None
    if not all(isinstance(a.extent, int) and isinstance(c, int) and c > 0 for a, c in terms):
        return None
    stride = math.gcd(*(int(c) for _, c in terms))
    total, last = Index(()), 1
    for a, c in terms:
        total = total + Index.axis(a).scaled(int(c) // stride)
        last += int(c) // stride * (int(a.extent) - 1)
    return total, last


def _placed(index: Index, places: Mapping[Index, Axis]) -> Index:
    """The index with the places in the place of their sums."""
    parts = _parts(index, places)
    if parts is None:
        return index
    found, placed = parts
    for total, times in found:
        placed = placed + Index.axis(places[total]).scaled(times)
    return placed


def _slides(index: Index) -> bool:
    """Whether it is a sum of several axes, and not one of digits, which has each place once."""
    return len(index.axes()) > 1 and not index.digits() and all(isinstance(a, Axis) for a, _ in index.terms)


@dataclass(frozen=True, slots=True)
class _State:
    """What is known while two e-classes are compared."""

    axes: Mapping[Axis, Index]  # what axes of the whole are in the part
    # e-classes that have been compared, with the names of bound axes.
    done: frozenset[tuple[int, int, frozenset[tuple[Axis, Axis]]]]


@dataclass(slots=True)
class Slices:
    """Finds the slices of a form's values."""

    choices: Choices  # the form
    classes: EClasses  # the e-graph
    order: Sequence[int]  # the form's e-classes, operands before results
    _alike: dict[int, list[int]] = field(init=False)
    _outline: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        numbers: dict[object, int] = {}
        self._alike, self._outline = defaultdict(list), {}
        reducing: set[int] = set()
        for cls in self.order:
            choice = self.choices[cls]
            kids = [self._outline[k] for k in choice.children]
            if _commutes(choice):
                kids.sort()
            key = (choice.op, _payload(choice), tuple(kids))
            self._outline[cls] = numbers.setdefault(key, len(numbers))
            if choice.op in REDUCING or not reducing.isdisjoint(choice.children):
                reducing.add(cls)
                self._alike[self._outline[cls]].append(cls)

    def of(self, whole: int, index: Sequence[Index]) -> Iterator[tuple[int, tuple[Index, ...]]]:
        """The e-classes that are slices of one, and no other names of it, with where a tensor that holds it has them.

        Only those that reduce something: the others are as quickly computed as read.
        """
        nothing = _State({}, frozenset())
        for cls in self._alike.get(self._outline[whole], ()):
            if cls == whole:
                continue
            at = next(self._matched(whole, cls, {}, nothing), nothing).axes
            inside = all(i.within(a.extent) and i.axes() <= self.classes.axes[cls] for a, i in at.items())
            if inside and at.keys() == self.classes.axes[whole] and any(_cuts(a, i) for a, i in at.items()):
                yield cls, tuple(i.substitute(at) for i in index)

    def _matched(self, whole: int, part: int, bound: Mapping[Axis, Axis], state: _State) -> Iterator[_State]:
        """The states in which the part is the whole, for each way to match operands that commute."""
        pair = (whole, part, frozenset(bound.items()))
        if pair in state.done:
            yield state
            return
        one, other = self.choices[whole], self.choices[part]
        if self._outline[whole] != self._outline[part]:
            return
        pairs: Sequence[tuple[Index, Index]] = ()
        match one.payload, other.payload:
            case (Read(_, a), Read(_, b)):
                pairs = tuple(zip(a, b, strict=True))
            case (Position(a), Position(b)):
                pairs = ((a, b),)
            case (Axis() as a, Axis() as b):
                bound = {**bound, a: b}
            case (Along() | Chosen() | Over(), _) if one != other:
                return
        axes = state.axes
        for mine, its in pairs:
            solved = _solved(mine, its, axes, bound)
            if solved is None:
                return
            axes = solved
        state = _State(axes, state.done | {pair})
        parts = [other.children]
        if _commutes(one) and len(set(other.children)) > 1:
            parts.append(other.children[::-1])
        for kids in parts:
            yield from self._operands(one.children, kids, bound, state)

    def _operands(
        self, wholes: Sequence[int], parts: Sequence[int], bound: Mapping[Axis, Axis], state: _State
    ) -> Iterator[_State]:
        if not wholes:
            yield state
            return
        for first in self._matched(wholes[0], parts[0], bound, state):
            yield from self._operands(wholes[1:], parts[1:], bound, first)


def _cuts(axis: Axis, index: Index) -> bool:
    """Whether the index is more than another name of the axis."""
    same = index.as_axis()
    return same is None or same.extent != axis.extent


def _commutes(choice: Choice) -> bool:
    return choice.op in COMMUTATIVE or choice.op == "contract"


def _payload(choice: Choice) -> object:
    """The payload without its axes and indices; reduced axes are as long as each other."""
    match choice.payload:
        case Read(tensor, index):
            return tensor, len(index)
        case Position():
            return None
        case Axis(_, extent):
            return extent
        case payload:
            return payload


def _solved(
    mine: Index, its: Index, found: Mapping[Axis, Index], bound: Mapping[Axis, Axis]
) -> Mapping[Axis, Index] | None:
    """`found`, with what makes the one index the other when its axes are replaced; None where nothing does."""
    known = {**found, **{a: Index.axis(b) for a, b in bound.items()}}
    new = [(a, c) for a, c in mine.terms if isinstance(a, Axis) and a not in known]
    if new:
        left = its + Index(tuple(t for t in mine.terms if t not in new), mine.offset).substitute(known).scaled(-1)
        made = dict(found)
        for a, c in new:
            if c != 1:
                same = [b for b, d in left.terms if d == c]
                if len(same) != 1 or not isinstance(same[0], Axis):
                    return None
                made[a] = Index.axis(same[0])
                left = left + made[a].scaled(c).scaled(-1)
        units = [a for a, c in new if c == 1]
        if len(units) > 1:
            return None
        for a in units:
            made[a] = left
        found, known = made, {**made, **{a: Index.axis(b) for a, b in bound.items()}}
    return found if mine.substitute(known) == its else None
