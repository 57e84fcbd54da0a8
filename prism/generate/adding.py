"""Sums that go where data say: which e-classes of a form they are, and what a kernel that adds at places is made of.

A sum over i of where(v == p, f, 0), v an axis of the result that neither p nor f has, looks at every i for every v. A
kernel over i that adds f at place p looks at each once. It is the same sum, so this is no option of an e-class: what
is stored may be computed in either way, and within a kernel it is the sum that it is written as.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prism.generate.options import Choices, below
from prism.generate.values import Builder, KernelValue
from prism.program.index import Axis
from prism.program.nodes import Const, Position, ReduceKind


@dataclass(frozen=True, slots=True)
class Added:
    """base + the sum over axes of where(each along == its place and all masks hold, the product of the factors, 0)."""

    bound: tuple[Axis, ...]  # the axes that are summed over
    along: tuple[Axis, ...]  # axes of the result, none of which anything below has
    places: tuple[int, ...]  # the e-class of the place along each
    masks: tuple[int, ...]  # e-classes of other conditions
    factors: tuple[int, ...]  # e-classes of what is summed
    written: frozenset[int]  # the e-classes that say so, which a kernel that adds at places does without
    base: int | None = None  # the e-class that the sum is added to; None for 0

    @property
    def operands(self) -> tuple[int, ...]:
        """What the places and what goes there are computed from."""
        return (*self.places, *self.masks, *self.factors)

    def values(self, builder: Builder) -> tuple[KernelValue, tuple[KernelValue, ...]]:
        """What is added, and the place along each axis; what goes to one place whatever it is at is summed before."""
        values = builder.values
        places = tuple(builder.build(c) for c in self.places)
        value = values.const(1.0)
        for n, c in enumerate(self.factors):
            factor = builder.build(c)
            value = factor if n == 0 else values.make("mul", (value, factor))
        for c in self.masks:
            value = values.make("where", (builder.build(c), value, values.const(0.0)))
        moving = frozenset(a for p in places for a in p.axes)
        for a in self.bound:
            if a not in moving:
                value = values.reduce(ReduceKind.SUM, a, value)
        return value, places


def added(choices: Choices, axes: Mapping[int, frozenset[Axis]], cls: int) -> Added | None:
    """How a form's e-class is a sum that goes where data say; None where it is none."""
    found = _sum(choices, axes, cls)
    choice = choices[cls]
    if found is not None or choice.op != "add":
        return found
    for own, total in (choice.children, choice.children[::-1]):
        found = _sum(choices, axes, total)
        if found is not None and axes[own] <= axes[cls] == axes[total]:
            return replace(found, base=own, written=found.written | {cls})
    return None


@dataclass(slots=True)
class Sums:
    """Which of a form's e-classes are sums that go where data say; each is looked at once."""

    choices: Choices
    axes: Mapping[int, frozenset[Axis]]  # of the e-classes
    _known: dict[int, Added | None] = field(default_factory=dict)

    def of(self, cls: int) -> Added | None:
        """As `added`."""
        if cls not in self._known:
            self._known[cls] = added(self.choices, self.axes, cls)
        return self._known[cls]

    def along(self, classes: Sequence[int], stored: Container[int]) -> tuple[tuple[Added, ...], ...]:
        """How e-classes are such sums, all over the same axes; nothing where one is not.

        Of an e-class the sums that it is made of, the last of which has the base of all: what is stored or is no such
        sum.
        """
        found: list[tuple[Added, ...]] = []
        for cls in classes:
            sums: list[Added] = []
            base: int | None = cls
            while base is not None and (base == cls or base not in stored):
                more = self.of(base)
                if more is None or (sums and {*more.bound} != {*sums[0].bound}):
                    break
                sums.append(more)
                base = more.base
            if not sums:
                return ()
            found.append(tuple(sums))
        return tuple(found) if len({frozenset(s[0].bound) for s in found}) == 1 else ()


def _sum(choices: Choices, axes: Mapping[int, frozenset[Axis]], cls: int) -> Added | None:
    """The same of what is added to nothing."""
    bound: list[Axis] = []
    factors: list[int] = []
    masks: list[int] = []
    written: set[int] = set()
    # What stands outside of the sum is as good inside; there a sum of its own is a factor.
    outer, waiting = True, [cls]
    while waiting:
        c = waiting.pop()
        match choices[c].op, choices[c].payload, choices[c].children:
            case ("sum", Axis() as axis, (body,)) if outer:
                bound.append(axis)
                waiting.append(body)
            case ("contract", Axis() as axis, (lhs, rhs)) if outer:
                bound.append(axis)
                outer = False
                waiting += [lhs, rhs]
            case "mul", _, (lhs, rhs):
                waiting += [lhs, rhs] if choices[lhs].op not in ("sum", "contract") else [rhs, lhs]
            case ("where", _, (mask, value, other)) if choices[other].payload == Const(0.0):
                outer = False
                masks += _all_of(choices, mask, written)
                waiting.append(value)
            case (("eq" | "and"), _, _):
                masks += _all_of(choices, c, written)
            case _:
                factors.append(c)
                continue
        written.add(c)
    return _with_places(choices, axes, cls, tuple(bound), masks, factors, frozenset(written)) if masks else None


def _all_of(choices: Choices, mask: int, written: set[int]) -> Iterator[int]:
    """The conditions that a mask is all of."""
    if choices[mask].op == "and":
        written.add(mask)
        for c in choices[mask].children:
            yield from _all_of(choices, c, written)
    else:
        yield mask


def _with_places(
    choices: Choices,
    axes: Mapping[int, frozenset[Axis]],
    cls: int,
    bound: tuple[Axis, ...],
    masks: list[int],
    factors: list[int],
    written: frozenset[int],
) -> Added | None:
    """Which of the conditions say where it goes: none of whose axes anything else has."""
    places = {m: at for m in dict.fromkeys(masks) for at in _place(choices, axes, m) if at[0] in axes[cls]}
    while True:
        rest = [*(m for m in dict.fromkeys(masks) if m not in places), *factors, *(p for _, p in places.values())]
        used = frozenset(a for c in rest for a in axes[c])
        taken = [v for v, _ in places.values()]
        kept = {m: (v, p) for m, (v, p) in places.items() if v not in used and taken.count(v) == 1}
        if len(kept) == len(places):
            break
        places = kept
    moving = frozenset(a for _, p in places.values() for a in axes[p])
    along = tuple(v for v, _ in places.values())
    if moving.isdisjoint(bound) or frozenset(bound) & axes[cls] or used - frozenset(bound) != axes[cls] - {*along}:
        return None
    others = tuple(m for m in dict.fromkeys(masks) if m not in places)
    return Added(
        bound, along, tuple(p for _, p in places.values()), others, tuple(factors), written | frozenset(places)
    )


def _place(choices: Choices, axes: Mapping[int, frozenset[Axis]], mask: int) -> Iterator[tuple[Axis, int]]:
    """The axis and the e-class of the place, where a mask says that one is the other and data give it."""
    if choices[mask].op != "eq":
        return
    for position, place in (choices[mask].children, choices[mask].children[::-1]):
        match choices[position].payload:
            case Position(index) if (axis := index.as_axis()) is not None and axis not in axes[place]:
                if any(choices[c].op in ("read", "gather") for c in below(choices, [place])):
                    yield axis, place
                    return
