"""Slices: e-classes of a form that are parts of another one, which need not be computed again where that is stored.

`y = x @ w` and `y[:, n:]` are two e-classes once slices are inlined: sums over products with `w[k, j]` and with
`w[k, n + j]`. The second is the first at `j -> n + j`. Found is such an index for each axis of the whole, by structure:
what the one reads at an index, the other reads at that index with the axes replaced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prism.generate.options import COMMUTATIVE, REDUCING, Along, Choice, Choices, Chosen, Over
from prism.program.classes import EClasses
from prism.program.index import Axis, Index
from prism.program.nodes import Position, Read


@dataclass(frozen=True, slots=True)
class _State:
    """What is known while two e-classes are compared.

    Attributes:
        axes: what axes of the whole are in the part.
        done: e-classes that have been compared, with the names of bound axes.
    """

    axes: Mapping[Axis, Index]
    done: frozenset[tuple[int, int, frozenset[tuple[Axis, Axis]]]]


@dataclass(slots=True)
class Slices:
    """Finds the slices of a form's values.

    Attributes:
        choices: the form.
        classes: the e-graph.
        order: the form's e-classes, operands before results.
    """

    choices: Choices
    classes: EClasses
    order: Sequence[int]
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
            case _:
                pass
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
