"""Cuts: which e-classes of a form are materialised, so which kernels there are and what each computes.

Any e-class with an axis, or that reduces something to a number, may be materialised if it is neither a leaf nor an
output. Where two e-classes of a form are one
value under two namings of its axes (a tensor used in two roles: keys and queries of the same projection), they are one
cut: stored once, read back under either naming. So are slices of it (places.py). An output is stored anyway: that
others read it back is a cut, too, without a buffer.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import TypeAlias

from prism.cost.device import Device
from prism.cost.roofline import CUT_TILE, full
from prism.generate.adding import Sums, added
from prism.generate.families import Target
from prism.generate.options import (
    FIRST,
    REDUCING,
    Choice,
    Chosen,
    Inside,
    Over,
    Weights,
    Within,
    below,
    fixed_classes,
)
from prism.generate.places import Slices, Window
from prism.generate.scans import Along
from prism.program.classes import EClasses
from prism.program.index import Axis, Index
from prism.program.integers import Interval
from prism.program.known import Known, computed, constant, reduced, stored
from prism.program.nodes import Const, DType, Formula, Position, Read, ReduceKind, Tensor
from prism.program.ops import BOOLEAN, COMMUTATIVE, OPS
from prism.program.products import matrix_product
from prism.sgraph.value_bounds import declared

_REDUCTIONS = {k.value: k for k in (ReduceKind.MAX, ReduceKind.MIN, ReduceKind.SUM)}

Choices: TypeAlias = Mapping[int, Choice]

# A buffer that is so many times smaller than what it is computed from is stored in full precision.
NEGLIGIBLE = 8
# The number of kernels before one that runs once, when the weights are there: it waits for none, and none waits for it.
PREPARED = -1
_NOTHING: Mapping[int, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Cut:
    """A value to materialise."""

    # e-classes that are this value, the first the one that is stored: under some naming of its axes, or in a window;
    # with the index at which each is in the buffer.
    members: tuple[tuple[int, tuple[Index, ...]], ...]
    # It, stored in a buffer. That is named after its e-class, so that a kernel is the same kernel in every plan that
    # has it.
    target: Target = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", Target(f"t{self.cls}", self.members[0][1], self.cls))

    @property
    def cls(self) -> int:
        """The e-class that is stored."""
        return self.members[0][0]


@dataclass(frozen=True, slots=True)
class Plan:
    """A form with its cuts."""

    choices: Choices  # the form
    # What is computed by one kernel each, in launch order, with the number of kernels that must come before, or
    # `PREPARED`.
    groups: tuple[tuple[int, tuple[Target, ...]], ...]
    # e-class to its buffer and where it is in it, for what is read back.
    stored: Mapping[int, tuple[str, tuple[Index, ...]]]
    buffers: tuple[Tensor, ...]  # what the cuts materialise
    cuts: tuple[Cut, ...]

    @property
    def launches(self) -> int:
        """How many kernels a call runs."""
        return sum(rank != PREPARED for rank, _ in self.groups)

    def cut_signature(self) -> object:
        """What plans of different forms share that cut the program in the same way."""
        return tuple([(rank, tuple(sorted([a.name for t in group for a in t.axes]))) for rank, group in self.groups])


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a form computes from the model's weights alone."""

    classes: frozenset[int] = frozenset()  # the e-classes, those included that are made on the way
    # Those that are stored in any case, with their place in the buffer: they take no more bytes than the weights that
    # they are made of.
    stored: Mapping[int, tuple[Index, ...]] = field(default_factory=dict)
    done: frozenset[int] = frozenset()  # what is below those alone, and they themselves: no other cuts

    @staticmethod
    def of(within: Within, weights: Weights, formulas: Sequence[Formula], inputs: Sequence[Tensor]) -> Prepared:
        """The same of a form."""
        choices, classes = within.choices, weights.classes
        own = fixed_classes(classes, {c: (choice,) for c, choice in choices.items()}, inputs)
        own -= frozenset(classes.roots)
        if not own:
            return Prepared()
        tensors = {t.name: t for t in inputs}
        width = max((f.tensor.dtype.bytes for f in formulas), default=4)

        def worth(cls: int) -> bool:
            made = [choices[c].payload for c in below(choices, [cls])]
            read = {p.tensor if isinstance(p, Read) else p.element.tensor for p in made if isinstance(p, Read | Chosen)}
            sources = sum(weights.elements(tensors[t].shape) * tensors[t].dtype.bytes for t in read)
            return weights.size(classes.axes[cls]) * width <= sources

        order = below(choices, classes.roots)
        waiting = [k for c in order if c not in own for k in choices[c].children if k in own]
        found: set[int] = set()
        seen: set[int] = set()
        while waiting:
            cls = waiting.pop()
            if cls in seen or not choices[cls].children:
                continue
            seen.add(cls)
            if choices[cls].op != "gather" and worth(cls):
                found.add(cls)
            else:
                waiting += [k for k in choices[cls].children if k in own]
        outer = _outer(formulas)
        stored = {
            c: tuple(map(Index.axis, _dimensions(choices, within.of((c,), _NOTHING).used, classes.axes[c], outer)))
            for c in sorted(found)
        }
        left = within.of(classes.roots, stored).used
        return Prepared(own, stored, frozenset(order) - frozenset(left) | found)


def _outer(formulas: Sequence[Formula]) -> dict[Axis, int]:
    """The outputs' axes, with their places in the order in which they are met."""
    return {a: n for n, a in enumerate(dict.fromkeys(a for f in formulas for a in Target("", f.index, 0).axes))}


def _readable(formulas: Sequence[Formula], classes: EClasses) -> dict[int, Formula]:
    """The outputs that may be read back, by e-class: numbers of floating point, an element for each, in one piece."""
    found: dict[int, Formula] = {}
    pieces = Counter(f.tensor.name for f in formulas)
    for f, root in zip(formulas, classes.roots, strict=True):
        if (
            pieces[f.tensor.name] == 1
            and f.tensor.dtype.is_float
            and frozenset(Target("", f.index, 0).axes) == classes.axes[root]
        ):
            found.setdefault(root, f)
    return found


def _ends(
    choices: Choices,
    order: Sequence[int],
    free: Sequence[int],
    classes: EClasses,
    names: _Names,
    outputs: Mapping[int, Formula],
) -> list[int]:
    """The cuts without those that only feed a pointwise operator over the same axes that may be stored instead.

    One stays that is what another cut is under other names: stored once, it serves both. So does an output, which is
    stored anyway.
    """
    users: dict[int, list[int]] = defaultdict(list)
    for c in order:
        for child in set(choices[c].children):
            users[child].append(c)
    # An output that nothing reads is no cut.
    may = {c for c in free if c not in outputs or users[c]}

    def passed_on(cls: int) -> bool:
        if len(users[cls]) != 1 or cls in outputs:
            return False
        (user,) = users[cls]
        others = [c for c in choices[user].children if c != cls]
        alike = choices[user].op in OPS and classes.axes[user] == classes.axes[cls]
        if user not in may or not alike or any(classes.axes[c] for c in others):
            return False
        # Stores add a sum that goes where data say, and nothing that is made of it.
        return added(choices, classes.axes, cls) is None

    left = {c for c in free if not passed_on(c)}
    shared = {key for c in left if (key := names.of(c)[0]) is not None}
    return [c for c in free if c in left or names.of(c)[0] in shared]


def _dimensions(choices: Choices, under: Iterable[int], axes: frozenset[Axis], outer: Mapping[Axis, int]) -> list[Axis]:
    """The order of a buffer's dimensions: as far from the end as in the tensors that the value is computed from.

    The value, over these axes, is computed from the e-classes `under` it.
    """
    place: dict[Axis, float] = {}
    for c in under:
        payload = choices[c].payload
        if isinstance(payload, Chosen):
            payload = payload.element
        if isinstance(payload, Read):
            for n, index in enumerate(reversed(payload.index)):
                strides = {a: k if isinstance(k, int) else 1 << 62 for a, k in index.terms if isinstance(a, Axis)}
                for m, a in enumerate(sorted(strides, key=lambda a: (strides[a], a.name))):
                    place[a] = max(place.get(a, 0.0), n + m / (len(strides) + 1))
    return sorted(axes, key=lambda a: (-place.get(a, 0.0), outer.get(a, len(outer)), a.name))


def _is_name(index: Index, whole: Index) -> bool:
    """Whether it is an axis that is as long as the other."""
    one, other = index.as_axis(), whole.as_axis()
    return one is not None and other is not None and one.extent == other.extent


@dataclass(slots=True)
class _Names:
    """Tells which e-classes of a form are one value under different names of their axes.

    `blind` labels forget the axes' names; only where two e-classes share one is their structure written out, with the
    axes numbered as they are met.
    """

    choices: Choices
    classes: EClasses
    _blind: dict[int, int] = field(default_factory=dict)
    _labels: dict[object, int] = field(default_factory=dict)
    _shared: Counter[int] | None = None
    _known: dict[int, tuple[object, tuple[Axis, ...]]] = field(default_factory=dict)

    def of(self, cls: int) -> tuple[object, tuple[Axis, ...]]:
        """A key that equal values share, and the axes in the order that it numbers them; no key for what is alone."""
        known = self._known.get(cls)
        if known is None:
            known = self._known[cls] = self._of(cls)
        return known

    def _of(self, cls: int) -> tuple[object, tuple[Axis, ...]]:
        if self._shared is None:
            self._shared = Counter(self._label(c) for c in sorted(self.choices))
        if self._shared[self._label(cls)] == 1:
            return None, ()
        written = _Written(self.choices, self.classes, self._label)
        written.write(cls, {})
        return tuple(written.tokens), tuple(written.free)

    def _label(self, cls: int) -> int:
        known = self._blind.get(cls)
        if known is None:
            choice = self.choices[cls]
            kids = [self._label(c) for c in choice.children]
            if choice.op in COMMUTATIVE or choice.op == "contract":
                kids.sort()
            key = (choice.op, _blind(choice), tuple(kids), tuple(sorted(str(a.extent) for a in self.classes.axes[cls])))
            known = self._blind[cls] = self._labels.setdefault(key, len(self._labels))
        return known


@dataclass(slots=True)
class _Written:
    """The structure of an e-class in a form, axes numbered as they are met: bound ones anew under each binder."""

    choices: Choices
    classes: EClasses
    label: Callable[[int], int]
    tokens: list[object] = field(default_factory=list)
    free: dict[Axis, int] = field(default_factory=dict)
    _met: dict[object, int] = field(default_factory=dict)
    _count: int = 0

    def write(self, cls: int, bound: Mapping[Axis, int]) -> None:
        """Append the e-class, where `bound` numbers the axes of the binders above."""
        key = (cls, frozenset((a, n) for a, n in bound.items() if a in self.classes.axes[cls]))
        if key in self._met:
            self.tokens.append(("again", self._met[key]))
            return
        self._met[key] = len(self._met)
        choice = self.choices[cls]
        self.tokens.append((choice.op, _blind(choice)))
        match choice.payload:
            case Read(_, indices):
                self.tokens.append(tuple(self._index(i, bound) for i in indices))
            case Position(index):
                self.tokens.append(self._index(index, bound))
            case Axis() as axis:
                bound = {**bound, axis: self._next()}
            case Chosen(element, axes):
                # The operands do not have these axes: what is bound here is bound in the element's index alone.
                inside = {**bound, **{a: self._next() for a in axes}}
                self.tokens.append(tuple(self._index(i, inside) for i in element.index))
            case Over(axes):
                bound = {**bound, **{a: self._next() for a in axes}}
            case Along(axis, over):
                self.tokens.append(self._number(axis, bound))
                # Of operand and growth, each is over an axis of its own; places along both are the same.
                place = self._next()
                for child, own in zip(choice.children, over, strict=True):
                    self.write(child, bound if own is None else {**bound, own: place})
                return
            case _:
                pass
        kids = list(choice.children)
        if choice.op in COMMUTATIVE or choice.op == "contract":
            kids.sort(key=self.label)
        for child in kids:
            self.write(child, bound)

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _number(self, axis: Axis, bound: Mapping[Axis, int]) -> int:
        if axis in bound:
            return bound[axis]
        if axis not in self.free:
            self.free[axis] = self._next()
        return self.free[axis]

    def _index(self, index: Index, bound: Mapping[Axis, int]) -> object:
        known = {**self.free, **bound}
        terms = [
            (str(a.extent), str(c), known.get(a, 1 << 62), a.name, a) for a, c in index.terms if isinstance(a, Axis)
        ]
        return tuple((extent, c, self._number(a, bound)) for extent, c, _, _, a in sorted(terms, key=lambda t: t[:4]))


def _blind(choice: Choice) -> object:
    """The payload without the names of axes."""
    match choice.payload:
        case Read(tensor, indices):
            return tensor, tuple(_shape(i) for i in indices)
        case Position(index):
            return _shape(index)
        case Axis(_, extent):
            return str(extent)
        case Along(_, (Axis(_, extent), *_), how, grows):
            return str(extent), how, grows
        case Over(axes):
            return tuple(str(a.extent) for a in axes)
        case Chosen(Read(tensor, indices)) as chosen:
            return tensor, tuple(_shape(i) for i in indices), chosen.dimensions
        case payload:
            return payload


def _shape(index: Index) -> object:
    return str(index.offset), tuple(sorted((str(a.extent), str(c)) for a, c in index.terms if isinstance(a, Axis)))


@dataclass(slots=True)
class Planner:
    """Lists the plans of one form."""

    formulas: Sequence[Formula]  # the outputs
    inputs: Sequence[Tensor]  # the program's inputs
    within: Within  # the form
    weights: Weights  # what values cost, at the shape that is looked at first
    device: Device  # what kernels run on
    off: frozenset[str] = frozenset()  # names of pruners that are switched off
    windows: Sequence[Window] = ()  # values of the form that may be stored once a place
    cuts: tuple[Cut, ...] | None = None  # the form's cuts, those that may save most time first; once plans are listed
    as_written: Set[int] = frozenset()  # what is stored in the type that the model has it in, as small as it may be
    prepared: Prepared = field(init=False)  # what is computed from weights alone, which no bound counts
    _buffers: dict[int, Tensor] = field(default_factory=dict)
    _over: dict[Inside, frozenset[Axis]] = field(default_factory=dict)
    _read_by: dict[Inside, dict[int, str]] = field(default_factory=dict)
    _sums: Sums = field(init=False)
    _facts: dict[int, Known] = field(default_factory=dict)
    _products: list[int] = field(init=False)
    _outputs: dict[int, Formula] = field(init=False)
    _roots: list[Target] = field(init=False)

    def __post_init__(self) -> None:
        classes = self.weights.classes
        self._sums = Sums(self.choices, classes.axes)
        self._outputs = _readable(self.formulas, classes)
        roots = zip(self.formulas, classes.roots, strict=True)
        self._roots = [Target(f.tensor.name, f.index, root) for f, root in roots]
        self._products = [c for c, choice in self.choices.items() if choice.op == "contract"]
        self.prepared = Prepared.of(self.within, self.weights, self.formulas, self.inputs)

    @property
    def choices(self) -> Choices:
        """The form's choices."""
        return self.within.choices

    def plans(self, max_kernels: int, max_cuts: int, pruned: Counter[str], known: int = 0) -> Iterator[Plan]:
        """The form's sets of cuts, fewest kernels first.

        Args:
            max_kernels: kernels of one plan; those that outputs over other axes take are not counted, but for one.
            max_cuts: how many cuts of the form are considered together; each is considered alone.
            pruned: where what pruners remove is counted.
            known: plans were listed with this for `max_cuts` before: they are not listed again.
        """
        every = self._cuts(max_kernels, pruned)
        most = self._most(max_kernels)
        for count in range(max_kernels):
            places = range(len(every) if count == 1 else min(max_cuts, len(every)))
            for chosen in itertools.combinations(places, count):
                if known and (count < 2 or chosen[-1] < known):
                    continue
                plan = self._plan([every[n] for n in chosen])
                if plan is not None:
                    yield from (p for p in (plan, *self._fused(plan)) if p.launches <= most)
        for together in () if known else self._statistics(every):
            plan = self._plan(together, at_once=True)
            if plan is not None:
                yield from (p for p in (plan, *self._apart(plan), *self._fused(plan)) if p.launches <= most)

    def products(self, max_kernels: int, more: int = 0) -> Plan | None:
        """The plan that stores each product with what is computed from it alone, element by element.

        None where that is no plan, or takes more kernels than others may have and so many more.
        """
        axes, roots = self.weights.classes.axes, self.weights.classes.roots
        users: dict[int, list[int]] = defaultdict(list)
        order = below(self.choices, roots)
        for c in order:
            for child in set(self.choices[c].children):
                users[child].append(c)

        def ended(cls: int) -> int:
            while cls not in roots and len(users[cls]) == 1:
                (user,) = users[cls]
                if self.choices[user].op not in OPS or axes[user] != axes[cls]:
                    break
                cls = user
            return cls

        ends = {ended(c) for c in order if self.choices[c].op == "contract"}
        every = self._cuts(max_kernels, Counter())
        plan = self._plan([cut for cut in every if any(cls in ends for cls, _ in cut.members)])
        return plan if plan is not None and plan.launches <= self._most(max_kernels) + more else None

    def deeper(self, plan: Plan, most: int) -> Iterator[Plan]:
        """The plans that have one cut more than this one, of so many kernels at most (`max_kernels` of `plans`)."""
        most = self._most(most)
        for cut in self._cuts(most, Counter()):
            known = any(cls in plan.stored for cls, _ in cut.members)
            more = None if known else self._plan([*plan.cuts, cut])
            if more is not None:
                yield from (p for p in (more, *self._fused(more)) if plan.launches < p.launches <= most)

    def calls(self, most: int) -> Plan | None:
        """The plan that leaves each product of matrices to a library: what it reads is stored, and what it stores.

        That is the sum, or what libraries add to it. Each product is a kernel of its own, and what it touches is of one
        type. None where that is no plan, takes more than so many kernels, or where there is no such product.
        """
        axes, order = self.weights.classes.axes, below(self.choices, self.weights.classes.roots)
        users: dict[int, list[int]] = defaultdict(list)
        for c in order:
            for child in set(self.choices[c].children):
                users[child].append(c)
        ends: set[int] = set()
        wanted: set[int] = set()
        for c in order:
            choice = self.choices[c]
            if choice.op != "contract":
                continue
            lhs, rhs = choice.children
            if matrix_product(axes[lhs], axes[rhs], choice.reduced) is not None:
                ends.add(self._called(c, users))
                wanted |= {k for k in (lhs, rhs) if self.choices[k].op != "read"}
        self.as_written = ends | wanted
        every = self._cuts(most, Counter())
        plan = self._plan([cut for cut in every if any(cls in self.as_written for cls, _ in cut.members)])
        if plan is None or not ends:
            return None
        groups: list[tuple[int, tuple[Target, ...]]] = []
        for rank, group in plan.groups:
            alone = [(t,) for t in group if t.cls in ends]
            beside = tuple(t for t in group if t.cls not in ends)
            groups += [(rank, targets) for targets in (*alone, beside) if targets]
        apart = replace(plan, groups=tuple(groups))
        return apart if apart.launches <= self._most(most) else None

    def _called(self, cls: int, users: Mapping[int, Sequence[int]]) -> int:
        """Of a product what a library's call stores: with a tensor that it adds, and then the positive part."""
        axes = self.weights.classes.axes

        def takes(op: str, other: int) -> bool:
            choice = self.choices[other]
            return choice.op == "read" or other in self.prepared.stored if op == "add" else choice.payload == Const(0)

        for op in ("add", "maximum"):
            if cls in self.weights.classes.roots or len(users[cls]) != 1:
                break
            (user,) = users[cls]
            others = [c for c in self.choices[user].children if c != cls]
            if self.choices[user].op != op or axes[user] != axes[cls] or not all(takes(op, c) for c in others):
                break
            cls = user
        return cls

    def all_cuts(self, pruned: Counter[str]) -> tuple[Cut, ...]:
        """The form's cuts, those that may save most time first.

        What is seen in windows is a cut of its own, beside the e-class over windows; where the form has the same value
        over places, it is that one's. An output is one where others need it.

        Values that read nothing (made of positions) are none. What a cut may save: what is below it is computed once,
        not once for each tile of CUT_TILE elements of the output axes that it does not have, and side by side over all
        its own axes; what it costs: storing and reading it, and a launch.
        """
        weights, choices, prepared, device = self.weights, self.choices, self.prepared, self.device
        classes = weights.classes
        roots = classes.roots
        order = below(choices, roots)
        every = [*order, *(c for c in below(choices, [w.at for w in self.windows]) if c not in set(order))]
        outer = _outer(self.formulas)
        names = _Names(choices, classes)
        outputs = self._outputs
        needed = {k for c in order for k in choices[c].children}
        under: dict[int, frozenset[int]] = {}
        reading: dict[int, bool] = {}
        reduces: dict[int, bool] = {}
        for cls in every:
            kids = choices[cls].children
            under[cls] = frozenset({cls}).union(*(under[k] for k in kids))
            reading[cls] = choices[cls].op in ("read", "gather") or any(reading[k] for k in kids)
            reduces[cls] = choices[cls].op in REDUCING or any(reduces[k] for k in kids)
        work = {cls: weights.work(cls, choices[cls]) for cls in every}

        def idle(axes: Iterable[Axis]) -> float:
            """How much longer it takes where so few tiles leave programs of the device without work."""
            tiles = 1.0
            for axis in sorted(axes, key=lambda a: a.name):
                tiles *= max(1.0, weights.size(frozenset({axis})) / CUT_TILE)
            return max(1.0, device.processors / tiles)

        fused = idle(outer)

        @cache
        def computed_once(cls: int) -> float:
            return float(full(device, 0.0, sum(work[c] for c in under[cls])))

        def saved(cls: int, seen: int) -> float:
            own = classes.axes[cls]
            repeated = 1.0
            for axis in outer:
                if axis not in classes.axes[seen]:
                    repeated *= max(1.0, weights.size(frozenset({axis})) / CUT_TILE)
            again, once = computed_once(seen), computed_once(cls)
            if cls in prepared.classes:
                return again * repeated * fused - float(full(device, weights.size(own) * 4, 0.0))
            stored = 0.0 if cls in outputs else float(full(device, weights.size(own) * 4, 0.0))
            return again * repeated * fused - once * idle(own) - stored - device.launch_overhead_s

        slices = Slices(choices, classes, order)
        free = [
            c
            for c in order
            if choices[c].children
            and (classes.axes[c] or reduces[c])
            and reading[c]
            and (c not in roots or c in outputs)
            and c not in prepared.done
        ]
        if "chain" not in self.off:
            left = _ends(choices, order, free, classes, names, outputs)
            pruned["chain"] += len(free) - len(left)
            free = left
        place = {c: n for n, c in enumerate(order)}
        gains = {c: saved(c, c) for c in free}
        ranked = sorted(free, key=lambda c: (-gains[c], -place[c]))
        found: dict[object, list[tuple[int, tuple[Axis, ...]]]] = {}
        for cls in ranked:
            key, axes = names.of(cls)
            found.setdefault(key if key is not None else cls, []).append((cls, axes))
        # Where nothing is reduced, what has all axes is computed once an element, unless it is read elsewhere, too.
        once = "once" not in self.off and not any(reduces.values())
        made: list[tuple[float, Cut]] = []
        seen = {w: key for w in self.windows if (key := names.of(w.at)[0]) in found}
        for value, members in found.items():
            # What is stored anyway is what the others are read from.
            members.sort(key=lambda m: m[0] not in outputs)
            stored, own = members[0]
            if stored in outputs:
                index = outputs[stored].index
            else:
                index = tuple(map(Index.axis, _dimensions(choices, under[stored], classes.axes[stored], outer)))
            named = [(stored, index)]
            for cls, axes in members[1:]:
                under_name = {a: Index.axis(b) for a, b in zip(own, axes, strict=True)}
                named.append((cls, tuple(i.substitute(under_name) for i in index)))
            for w in (w for w, key in seen.items() if key == value):
                under_name = dict(zip(own, map(Index.axis, names.of(w.at)[1]), strict=True))
                at_places = [i.substitute(under_name).substitute(dict(w.places)) for i in index]
                named.append((w.seen, tuple(at_places)))
            named += (part for part in slices.of(stored, index) if part[0] not in roots)
            if once and len(named) == 1 and stored not in outputs and classes.axes[stored] >= outer.keys():
                pruned["once"] += 1
            elif len(named) > 1 or stored not in outputs or stored in needed:
                made.append((gains[stored], Cut(tuple(named))))
        for w in (w for w in self.windows if w not in seen):
            axes = tuple(_dimensions(choices, under[w.at], classes.axes[w.at], outer))
            cut = Cut(((w.at, tuple(map(Index.axis, axes))), (w.seen, w.index(axes))))
            made.append((saved(w.at, w.seen), cut))
        return tuple(cut for _, cut in sorted(made, key=lambda t: -t[0]))

    def _cuts(self, max_kernels: int, pruned: Counter[str]) -> tuple[Cut, ...]:
        if self.cuts is None:
            self.cuts = self.all_cuts(pruned) if max_kernels > 1 else ()
        return self.cuts

    def _most(self, max_kernels: int) -> int:
        """Kernels of one plan: what outputs over other axes take is not counted, but for one."""
        return max_kernels + len({frozenset(t.axes) for t in self._roots}) - 1

    def _statistics(self, every: Sequence[Cut]) -> Iterator[tuple[Cut, ...]]:
        """Sets of two or more values over the same axes that are next to nothing to store, each set once.

        Those that larger values read; then with those that a reduction over one of these axes reads. One kernel may
        make them all.
        """
        axes = self.weights.classes.axes
        larger: set[int] = set()
        across: set[int] = set()
        for cls, choice in self.choices.items():
            larger |= {c for c in choice.children if axes[cls] > axes[c]}
            if choice.op in REDUCING:
                across |= {c for c in choice.children if self.within.reduced[cls] & axes[c]}
        sets: dict[tuple[Cut, ...], None] = {}
        for read in (larger, larger | across):
            alike: dict[frozenset[Axis], list[Cut]] = defaultdict(list)
            for cut in every:
                if any(cls in read for cls, _ in cut.members) and self._is_small(cut.cls, axes[cut.cls]):
                    (_, whole), *_ = cut.members
                    for n, (cls, index) in enumerate(cut.members):
                        # Under whichever of its names: those of one kernel have the same axes. A window is no name,
                        # nor is a slice, were it from 0 on.
                        if all(_is_name(i, w) for i, w in zip(index, whole, strict=True)):
                            renamed = Cut((cut.members[n], *cut.members[:n], *cut.members[n + 1 :]))
                            alike[axes[cls]].append(renamed)
            sets |= dict.fromkeys(tuple(found) for found in alike.values() if len(found) > 1)
        yield from sets

    def _apart(self, plan: Plan) -> Iterator[Plan]:
        """The plan with a kernel for each of the targets that have nothing in common but the length of their axes.

        Nothing is what reads nothing: masks over the same positions, say, of which one looks ahead and the other back.
        A target that another is made of is something, be it a number.
        """
        groups: list[tuple[int, tuple[Target, ...]]] = []
        for rank, group in plan.groups:
            parts: list[tuple[set[int], list[Target]]] = []
            own = {t.cls for t in group}
            for t in group:
                used = self._reading(t.cls, plan.stored, own)
                targets = [t]
                for part in [p for p in parts if p[0] & used]:
                    parts.remove(part)
                    used |= part[0]
                    targets = [*part[1], *targets]
                parts.append((used, targets))
            groups += [(rank, tuple(targets)) for _, targets in parts]
        if len(groups) > len(plan.groups):
            yield replace(plan, groups=tuple(groups))

    def _reading(self, top: int, stored: Mapping[int, object], own: Set[int]) -> set[int]:
        """The e-classes with axes, or of its kernel's own, that one is computed from and that read something."""
        reading: set[int] = set()
        for c in below(self.choices, [top], stored):
            held = c in stored and c != top
            if held or self.choices[c].op in ("read", "gather") or not reading.isdisjoint(self.choices[c].children):
                reading.add(c)
        return {c for c in reading if c in own or self.weights.classes.axes[c]}

    def _fused(self, plan: Plan) -> Iterator[Plan]:
        """The plan with kernels as one where one has some of the axes of another of its rank, or of one that reads it.

        It reduces what the other stores along, or is the same along it and reduces what the other reduces. They read
        something in common, which is read once then. Those that lack one such axis are joined, and, as a plan of its
        own, those that lack several; and two of which each lacks an axis of the other (`_crossing`).
        """
        lacking: dict[int, tuple[int, int]] = {}
        over = [frozenset(group[0].axes) for _, group in plan.groups]
        for n, (rank, group) in enumerate(plan.groups):
            for m, (other, wider) in enumerate(plan.groups):
                if n in lacking or rank == PREPARED or rank > other or not over[n] < over[m]:
                    continue
                lacks = over[m] - over[n]
                own = {t.cls for t in group}
                apart = {c: s for c, s in plan.stored.items() if c not in own}
                near = rank == other or self._feeds(plan, (rank, group), lacks, wider, apart)
                if near and self._shares(group, lacks, wider, apart):
                    lacking[n] = m, len(lacks)
        for most in sorted({many for _, many in lacking.values()}):
            for joined in self._merged(plan, {n: m for n, (m, many) in lacking.items() if many <= most}):
                yield joined
                yield from self._crossed(joined)
        yield from self._crossed(plan)
        yield from self._taken_along(plan)
        yield from self._added_along(plan)

    def _added_along(self, plan: Plan) -> Iterator[Plan]:
        """The plan with kernels as one whose sums go where data say: it goes along the axes that all sum over."""
        into: dict[int, int] = {}
        first: dict[tuple[int, frozenset[Axis]], int] = {}
        for n, (rank, group) in enumerate(plan.groups):
            sums = self._sums.along([t.cls for t in group], plan.stored)
            if sums and rank != PREPARED:
                m = first.setdefault((rank, frozenset(sums[0][0].bound)), n)
                into |= {n: m} if m != n else {}
        if into:
            yield from self._merged(plan, into)

    def _taken_along(self, plan: Plan) -> Iterator[Plan]:
        """The plan with kernels as one where outputs reduce what another before them stores, and may run as early.

        So a convolution's dw, or a bias's gradient, is carried along by the kernel that stores what is summed.
        """
        over = [frozenset(group[0].axes) for _, group in plan.groups]
        outputs = {f.tensor.name for f in self.formulas}
        for n, (rank, group) in enumerate(plan.groups):
            if not all(t.tensor in outputs for t in group):
                continue
            for m, (other, wider) in enumerate(plan.groups):
                if other == PREPARED or rank <= other or over[n] >= over[m]:
                    continue
                if not {t.tensor for t in wider} <= outputs | self._read_beside(plan, group):
                    continue  # it need not be stored then
                own = {t.cls for t in (*group, *wider)}
                apart = {c: s for c, s in plan.stored.items() if c not in own}
                if (
                    self._joins(group, over[n], wider, over[m], apart)
                    and self._early(plan, other, group, apart)
                    and self._shares(group, over[m] - over[n], wider, apart)
                ):
                    yield from self._merged(plan, {n: m})

    def _crossed(self, plan: Plan) -> Iterator[Plan]:
        for n, m in self._crossing(plan):
            yield from self._merged(plan, {n: m})

    def _merged(self, plan: Plan, into: Mapping[int, int]) -> Iterator[Plan]:
        """The plan with some of its kernels in others; with each alone where one of these would read another's."""
        groups = {n: (rank, [*targets]) for n, (rank, targets) in enumerate(plan.groups)}
        for n, m in sorted(into.items(), key=lambda t: len(plan.groups[t[0]][1][0].axes)):
            rank, mine = groups.pop(n)
            groups[m] = min(rank, groups[m][0]), [*groups[m][1], *mine]
        if not any(self._reads_itself(groups[m][1], plan.stored) for m in into.values() if m in groups):
            ordered = sorted(groups.items(), key=lambda t: (t[1][0], t[0]))
            yield replace(plan, groups=tuple([(rank, tuple(targets)) for _, (rank, targets) in ordered]))
        elif len(into) > 1:
            for n, m in into.items():
                yield from self._merged(plan, {n: m})

    def _crossing(self, plan: Plan) -> Iterator[tuple[int, int]]:
        """Kernels of one rank each of which has axes that the other lacks, and what they may be put into.

        The first reduces those of the other; the other reduces its, or is the same along them.
        """
        over = [frozenset(group[0].axes) for _, group in plan.groups]
        for n, m in itertools.permutations(range(len(over)), 2):
            (rank, group), (other, wider) = plan.groups[n], plan.groups[m]
            mine, theirs = over[n], over[m]
            if rank != other or rank == PREPARED or mine <= theirs or theirs <= mine:
                continue
            own = {t.cls for t in (*group, *wider)}
            apart = {c: s for c, s in plan.stored.items() if c not in own}
            if self._joins(group, mine, wider, theirs, apart) and self._shares(group, theirs - mine, wider, apart):
                yield n, m

    def _joins(
        self,
        group: Sequence[Target],
        mine: frozenset[Axis],
        wider: Sequence[Target],
        theirs: frozenset[Axis],
        apart: Mapping[int, tuple[str, tuple[Index, ...]]],
    ) -> bool:
        """Whether the first, over its axes, reduces those of the other that it lacks, and the other its own or none.

        `apart` is what is stored beside both.
        """
        if not all(theirs - mine <= self._reduced_under(t.cls) for t in group):
            return False  # what is read back only makes these fewer
        lacks = mine - theirs
        alike = lacks <= self._reduced(wider, apart) or not any(
            lacks & self.weights.classes.axes[c] for c in self._needs(wider, apart).used
        )
        return alike and theirs - mine <= self._reduced(group, apart)

    def _read_beside(self, plan: Plan, *groups: Sequence[Target]) -> set[str]:
        """The tensors that kernels other than these groups' read back."""
        others = (each for _, each in plan.groups if not any(each is g for g in groups))
        return {plan.stored[c][0] for each in others for c in self._needs(each, plan.stored).back}

    def _early(
        self,
        plan: Plan,
        rank: int,
        targets: Sequence[Target],
        apart: Mapping[int, tuple[str, tuple[Index, ...]]],
    ) -> bool:
        """Whether all that the targets read back, of what is stored apart, is there before kernels of a rank."""
        made = {t.tensor: number for number, each in plan.groups for t in each}
        return all(made[apart[c][0]] < rank for c in self._needs(targets, apart).back)

    def _feeds(
        self,
        plan: Plan,
        group: tuple[int, Sequence[Target]],
        lacks: frozenset[Axis],
        wider: Sequence[Target],
        apart: Mapping[int, tuple[str, tuple[Index, ...]]],
    ) -> bool:
        """Whether the wider kernel could run as early as the group if it made the group's values itself.

        Others read these, too. Between what it finds on the way and what it does with it, it holds what it goes over
        twice: no products. `apart` is what is stored beside the group's.
        """
        rank, targets = group
        axes = self.weights.classes.axes
        if any(lacks & axes[c] and any(self.within.needs(t.cls, c) for t in targets) for c in self._products):
            return False
        elsewhere = {f.tensor.name for f in self.formulas} | self._read_beside(plan, targets, wider)
        return self._early(plan, rank, wider, apart) and all(t.tensor in elsewhere for t in targets)

    def _shares(
        self,
        group: Sequence[Target],
        lacks: frozenset[Axis],
        wider: Sequence[Target],
        apart: Mapping[int, tuple[str, tuple[Index, ...]]],
    ) -> bool:
        """Whether one kernel for both reads something once that two kernels read twice.

        Along the axes that the group lacks, where each of its values reduces them; or, where none knows of them, along
        one that all values of both reduce. `apart` is what is stored beside the group's.
        """
        axes = self.weights.classes.axes
        mine, reduced = self._needs(group, apart), self._reduced(group, apart)
        along = lacks
        if not lacks <= reduced:
            along = reduced & self._reduced(wider, apart)
            if not along or any(lacks & axes[c] for c in mine.used):
                return False
        read = set(self._touched(mine, apart).values())
        return any(along & axes[c] for c, t in self._touched(self._needs(wider, apart), apart).items() if t in read)

    def _touched(self, inside: Inside, apart: Mapping[int, tuple[str, tuple[Index, ...]]]) -> dict[int, str]:
        """The tensors that e-classes are read from where a kernel needs them."""
        known = self._read_by.get(inside)
        if known is None:
            payloads = ((c, self.choices[c].payload) for c in inside.used if c not in inside.back)
            known = self._read_by[inside] = {c: p.tensor for c, p in payloads if isinstance(p, Read)}
        return known | {c: apart[c][0] for c in inside.back}

    def _needs(self, targets: Sequence[Target], stored: Mapping[int, object]) -> Inside:
        """What a kernel goes through."""
        return self.within.of(sorted({t.cls for t in targets}), stored)

    def _reduced(self, targets: Sequence[Target], stored: Mapping[int, object]) -> frozenset[Axis]:
        """The axes that every target reduces."""
        return frozenset.intersection(*(self._reduces(self.within.of((t.cls,), stored)) for t in targets))

    def _reduces(self, inside: Inside) -> frozenset[Axis]:
        known = self._over.get(inside)
        if known is None:
            known = self._over[inside] = frozenset(a for c in inside.used for a in self.within.reduced[c])
        return known

    def _reduced_under(self, cls: int) -> frozenset[Axis]:
        """The axes that are reduced where nothing is read back."""
        return self._reduces(self.within.of((cls,), _NOTHING))

    def _buffer(self, name: str, cls: int, axes: tuple[Axis, ...]) -> Tensor:
        """In the type of what is computed from it, or in full precision.

        Where that is next to nothing, statistics keep their digits, and whole numbers always do: in half precision as
        far as that tells them apart, as codes of 8 bits in bfloat16, else in bytes where they are such and numbers
        whatever finite inputs are. What is only multiplied by what is of a half
        precision type that has float32's range stays in that type: the product rounds it to that type anyway.
        """
        known = self._buffers.get(cls)
        if known is not None:
            return known
        own = self._type_around(cls)
        small = cls not in self.as_written and self._is_small(cls, frozenset(axes))
        full = small and not (own is DType.BFLOAT16 and self._is_factor(cls))
        within = self._known(cls)
        if within.bounds.whole and self.choices[cls].op not in BOOLEAN:
            full = within.bounds.largest * own.roundoff > 1
        dtype = DType.FLOAT32 if full else own
        if dtype is DType.FLOAT32 and not small and self.choices[cls].op not in BOOLEAN:
            dtype = (within.byte if within.number else None) or dtype
        self._buffers[cls] = made = Tensor(name, tuple(a.extent for a in axes), dtype)
        return made

    def _is_small(self, cls: int, axes: frozenset[Axis]) -> bool:
        """Whether storing the value is next to nothing beside what it is computed from."""
        widest = 0.0
        for c in self.within.of((cls,), _NOTHING).used:
            choice = self.choices[c]
            if choice.op in ("read", "gather"):
                held = self.weights.size(self.weights.classes.axes[c])
                if isinstance(choice.payload, Read):
                    # Windows read an element many times.
                    held = min(held, self.weights.elements(self._input(choice.payload.tensor).shape))
                widest = max(widest, held)
        return self.weights.size(axes) * NEGLIGIBLE <= widest

    def _input(self, name: str) -> Tensor:
        return next(t for t in self.inputs if t.name == name)

    def _type_around(self, cls: int) -> DType:
        """The widest floating-point type of the outputs that are computed from it, or else of the inputs."""
        roots = zip(self.formulas, self.weights.classes.roots, strict=True)
        around = [f.tensor.dtype for f, root in roots if self.within.needs(root, cls)]
        for types in (around, [t.dtype for t in self.inputs]):
            floats = {t for t in types if t.is_float}
            if floats:
                widest = {t for t in floats if t.bytes == max(f.bytes for f in floats)}
                return widest.pop() if len(widest) == 1 else DType.FLOAT32  # neither half type holds the other
        return DType.FLOAT32

    def _known(self, cls: int) -> Known:
        """What is known of its values, whether they are whole numbers among it."""
        known = self._facts
        for c in below(self.choices, [cls], known):
            if c in known:
                continue
            match self.choices[c]:
                case Choice(payload=Const(number)):
                    known[c] = constant(number)
                case Choice(payload=Read(tensor) | Chosen(Read(tensor))):
                    t = self._input(tensor)
                    known[c] = stored(Interval(*declared(t), whole=not t.dtype.is_float))
                case Choice(op=op, children=(child,)) if op in _REDUCTIONS:
                    known[c] = reduced(_REDUCTIONS[op], known[child])
                case Choice(op=op, children=children) if op in OPS:
                    known[c] = computed(op, [known[k] for k in children], children)
                case Choice(op=op, children=children):
                    summed = op in REDUCING and op not in ("rescaled", "deviations")
                    whole = op in ("position", "size", *FIRST) or (
                        summed and all(known[k].bounds.whole for k in children)
                    )
                    known[c] = Known(Interval(-math.inf, math.inf, whole))
        return known[cls]

    def _is_factor(self, cls: int) -> bool:
        """Whether contractions alone read it, and all inputs are of its type."""
        own = self._type_around(cls)
        roots = self.weights.classes.roots
        used = [c for c, choice in self.choices.items() if cls in choice.children]
        readers = [c for c in used if any(self.within.needs(r, c) for r in roots)]
        alike = all(t.dtype is own for t in self.inputs if t.dtype.is_float)
        return alike and bool(readers) and all(self.choices[c].op == "contract" for c in readers)

    def _plan(self, chosen: Sequence[Cut], *, at_once: bool = False) -> Plan | None:
        """The plan, or None where a cut is read by no kernel.

        With `at_once`, one kernel computes all of the cuts, which then may be made of each other.
        """
        stored: dict[int, tuple[str, tuple[Index, ...]]] = {}
        buffers: list[Tensor] = []
        targets: list[Target] = []
        for cut in chosen:
            output = self._outputs.get(cut.cls)
            name = cut.target.tensor if output is None else output.tensor.name
            for cls, index in cut.members:
                stored[cls] = (name, index)
            if output is None:
                buffers.append(self._buffer(name, cut.cls, cut.target.axes))
                targets.append(cut.target)
        targets += self._roots
        owner = {cls: cut.cls for cut in chosen for cls, _ in cut.members}
        before = {c: (f"t{c}", index) for c, index in self.prepared.stored.items() if c not in stored}
        stored |= before
        owner |= {c: c for c in before}
        back = self._read(stored, owner)
        read = frozenset().union(*back.values())
        if not read.issuperset(cut.cls for cut in chosen):
            return None
        for cls, (name, index) in before.items():
            if cls in read:
                target = Target(name, index, cls)
                buffers.append(self._buffer(name, cls, target.axes))
                targets.append(target)
        stored = {cls: place for cls, place in stored.items() if cls not in before or cls in read} if before else stored
        once = {t.cls for t in targets if t.cls in self.prepared.classes}
        waiting = list(once)
        while waiting:  # a number that what runs once reads back has no axes, and runs once as well
            more = back[waiting.pop()] - once
            once |= more
            waiting += more
        depth: dict[int, int] = {}

        def rank(cls: int) -> int:
            """How many kernels must have ended before the e-class can be computed; of what runs once, of its kind."""
            known = depth.get(cls)
            if known is None:
                before = back[cls] & once if cls in once else back[cls] - once
                known = depth[cls] = max((1 if at_once and cls not in once else rank(c) + 1 for c in before), default=0)
            return known

        groups: dict[tuple[int, object], list[Target]] = defaultdict(list)
        for t in sorted(targets, key=lambda t: rank(t.cls) if t.cls in once else 0):
            if t.cls in once:
                groups[PREPARED, t.cls].append(t)
            else:
                first = at_once and t.cls in owner
                groups[0 if first else rank(t.cls), frozenset(t.axes)].append(t)
        if at_once and any(self._reads_itself(g, stored) for g in groups.values()):
            return None
        ordered = sorted(groups.items(), key=lambda g: g[0][0])
        return Plan(self.choices, tuple((r, tuple(g)) for (r, _), g in ordered), stored, tuple(buffers), tuple(chosen))

    def _reads_itself(self, targets: Sequence[Target], stored: Mapping[int, tuple[str, tuple[Index, ...]]]) -> bool:
        """Whether a kernel would read, at other places than it stores them, elements of what it stores."""
        made, own = {t.tensor for t in targets}, {t.cls for t in targets}
        return any(stored[c][0] in made for c in self._needs(targets, stored).back - own)

    def _read(self, stored: Mapping[int, object], owner: Mapping[int, int]) -> dict[int, set[int]]:
        """What is needed, roots and what they need, with the cuts that its kernel reads back, by what is stored."""
        found: dict[int, set[int]] = {}
        needed = list(self.weights.classes.roots)
        while needed:
            top = needed.pop()
            if top not in found:
                found[top] = {owner[c] for c in self.within.of((top,), stored).back}
                needed += found[top]
        return found
