"""Values in windows: what a window sees at a place is one value of the place, however many windows it is in.

A depthwise convolution of f(x) reads `f(x)[y + d - 1]` for each row y and tap d. Inlined that is f over y and d,
computed again for each tap. Where all that a value is made of has the two in one and the same sum alone, the value is
one of that sum: over a new axis, as long as the dimension that is read, it is computed once a place. Stored, it is read
back at the sum. f may see windows itself (`x[(y + d - 1) + e]`, e bound in it), and masks of places. Something has to
be read at the sum whatever is chosen in f: outside of the dimension nothing that counts was read then, so nothing that
counts is read of the buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prism.generate.options import REDUCING, Along, Choice, Choices, Chosen, Over, Weights, below
from prism.program.classes import EClasses
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.nodes import Position, Read, Tensor
from prism.program.transform import least_instance

# Values are computed once a place where windows would compute them so many times as often, at least.
AGAIN = 2.0


@dataclass(frozen=True, slots=True)
class Window:
    """A value of a form that is one of places.

    Attributes:
        seen: the e-class, over the axes of windows.
        at: the e-class over places.
        places: the axes of the places, with the sum that each stands for.
    """

    seen: int
    at: int
    places: tuple[tuple[Axis, Index], ...]

    def index(self, axes: tuple[Axis, ...]) -> tuple[Index, ...]:
        """Where a buffer with these axes holds what is seen."""
        known = dict(self.places)
        return tuple(known.get(a, Index.axis(a)) for a in axes)


@dataclass(slots=True)
class Places:
    """Finds what forms compute in windows, and adds what computes it over places.

    Attributes:
        classes: the e-graph; e-classes over places are added to its axes.
        inputs: the program's inputs.
    """

    classes: EClasses
    inputs: Sequence[Tensor]
    _axes: dict[int, frozenset[Axis]] = field(init=False)
    _made: dict[tuple[object, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._axes = dict(self.classes.axes)
        self.classes = replace(self.classes, axes=self._axes)

    def added(self, choices: Choices, weights: Weights) -> tuple[Choices, tuple[Window, ...]]:
        """The form with what it takes to compute its windows' values over places, and those values.

        They reduce something, as nothing else is dear enough, and none is part of another one.
        """
        order = below(choices, self.classes.roots)
        if not any(_slides(i) for c in order for i in _indices(choices[c])):
            return choices, ()
        extended = dict(choices)
        found: list[Window] = []
        done: set[int] = set()
        for cls in reversed(order):
            if cls in done or not choices[cls].children:
                continue
            window = self._window(extended, cls, weights)
            if window is not None:
                found.append(window)
                done.update(below(choices, [cls]))
        return extended, tuple(found)

    def _window(self, choices: dict[int, Choice], cls: int, weights: Weights) -> Window | None:
        """The e-class as a value of places, which is added to the choices; None where it is none."""
        free = self._axes[cls]
        order = below(choices, [cls])
        bound = frozenset(p for c in order if choices[c].op in REDUCING and isinstance(p := choices[c].payload, Axis))
        if not bound or bound & free or any(isinstance(choices[c].payload, (Along, Chosen, Over)) for c in order):
            return None
        sums: dict[Index, Extent] = {}
        for c in _whatever_is_chosen(choices, cls):
            match choices[c].payload:
                case Read(tensor, index):
                    shape = next(t.shape for t in self.inputs if t.name == tensor)
                    for i, extent in zip(index, shape, strict=True):
                        if _slides(i) and i.axes() <= free and sums.setdefault(i, extent) != extent:
                            return None
                case _:
                    pass
        moved = frozenset(a for i in sums for a in i.axes())
        if not sums or len(moved) < sum(len(i.axes()) for i in sums):
            return None
        if any(_beside(i, sums) is None and i.axes() & moved for c in order for i in _indices(choices[c])):
            return None
        taken = [*bound, *(free - moved)]
        places: dict[Index, Axis] = {}
        for i, extent in sums.items():
            places[i] = least_instance(extent, [*taken, *places.values()])
        if weights.size(moved) < AGAIN * weights.size(frozenset(places.values())):
            return None
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
                case _:
                    pass
            made = Choice(choice.op, payload, tuple(new[k] for k in choice.children))
            key = (made.op, made.payload, made.children)
            if key not in self._made:
                self._made[key] = max(self._axes) + 1
            new[c] = self._made[key]
            choices[new[c]] = made
            held = frozenset(a for i, a in places.items() if i.axes() & self._axes[c])
            self._axes[new[c]] = (self._axes[c] - moved) | held
        return Window(cls, new[cls], tuple((a, i) for i, a in places.items()))


def _indices(choice: Choice) -> tuple[Index, ...]:
    match choice.payload:
        case Read(_, index):
            return index
        case Position(i):
            return (i,)
        case _:
            return ()


def _whatever_is_chosen(choices: Choices, root: int) -> Iterator[int]:
    """The e-classes that a value is made of, but for those that a mask may leave out."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        cls = stack.pop()
        if cls not in seen:
            seen.add(cls)
            yield cls
            children = choices[cls].children
            stack += children[:1] if choices[cls].op == "where" else children


def _beside(index: Index, sums: Iterable[Index]) -> tuple[Index, Index] | None:
    """Which of the sums it is, and what it has besides, of no axis of a sum."""
    every = tuple(sums)
    for total in every:
        rest = index + total.scaled(-1)
        if rest.axes().isdisjoint(a for s in every for a in s.axes()):
            return total, rest
    return None


def _placed(index: Index, places: Mapping[Index, Axis]) -> Index:
    """The index with the places in the place of their sums."""
    found = _beside(index, places)
    return index if found is None else found[1] + Index.axis(places[found[0]])


def _slides(index: Index) -> bool:
    """Whether it is a sum of several axes."""
    return len(index.axes()) > 1 and all(isinstance(a, Axis) for a, _ in index.terms)
