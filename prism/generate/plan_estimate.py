"""What a plan may be worth, from its form alone: the order in which plans are visited.

Each kernel is looked at with a few tilings of its output axes, and the best counts. A value is computed, and a tensor
read, once for every tile of the output axes that it does not have. That is what most families of the kernel come to,
without building any; loops and most constraints are left to the search. The tilings:

    even    every axis as long as TILE
    wide    one axis in one tile, the others shorter where both together would not fit in registers: what does not
            depend on the axis is computed once
    whole   all of the axes that are also reduced under the same name, or that scans go along, one tile after another in
            one program: what is needed of all of them is computed once, by as few programs as the other axes leave.
            Of those that some results are sums over, while others go along them, each program has all in any case, or
            one part of several

A sum that goes where data say may be added up there instead: stored, and then each term read, and added, once.

An axis that is the batch of a matrix product takes one element a program, as in every family. Where a tiling has too
few programs to fill the device, either its tiles are shortened, or a reduction that everything else waits for is shared
by several programs: that costs storing, reading and combining what each of them found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import TypeAlias

from prism.cost.constraints import RoleBounds
from prism.cost.device import Device, Tiles
from prism.cost.roofline import TILE, full
from prism.generate.adding import Added, Sums
from prism.generate.families import Target
from prism.generate.materialise import PREPARED, Choices, Plan
from prism.generate.options import REDUCING, Chosen, Inside, Weights, Within, below
from prism.generate.pruning import SLACK
from prism.generate.scans import Along
from prism.program.extents import evaluate
from prism.program.index import Axis
from prism.program.nodes import Const, Formula, Read, Tensor
from prism.program.products import matrix_product

SHORTEST = 16
# A result's tile: half of what registers hold, as its operands need some.
RESULT = Tiles().elements // 2
# Shorter reductions are one tile and cannot be shared.
SHORT = RoleBounds().short
WHOLE = RoleBounds().whole

_Axes: TypeAlias = "frozenset[Axis]"
_Costs: TypeAlias = "Mapping[tuple[_Axes, _Axes], tuple[float, float]]"
_NONE: _Axes = frozenset()
_NOTHING: _Costs = MappingProxyType({})
_ONCE = (_NONE,)
_Places: TypeAlias = "frozenset[_Axes]"
_NOWHERE: _Places = frozenset()
_HERE: _Places = frozenset({_NONE})


def _by_length(axes: _Axes) -> tuple[int, list[str]]:
    return len(axes), sorted(a.name for a in axes)


@dataclass(frozen=True, slots=True)
class _Sharing:
    """How programs may share reductions."""

    axis: Axis  # along what
    most: float  # so many programs may
    # Of what lies under these reductions and does not have the axis, as those of `_Kernel`: each needs it.
    costs: _Costs


@dataclass(slots=True)
class _Kernel:
    """What a kernel costs, before its tiles are known."""

    outer: Mapping[Axis, float]  # the output axes, with their extents
    batch: _Axes  # those that take one element a program
    # (bytes read, work), each once, by the output axes that the value has; those of a value that is needed again
    # because one of the axes `again` is also reduced, apart.
    costs: _Costs
    stored: float  # bytes of the results, in full precision
    # Tells along what programs may share reductions; None where none may. Where true is given, along an axis that all
    # results are over, else along one that some result is not over.
    parts: Callable[[bool], _Sharing | None]
    scanned: _Axes  # the output axes that scans go along, all of which each program has
    # The output axes that only some results are over, and others reduce: each program has all of them, or of one a
    # part; with the bytes that a part leaves, infinite where all of the axis is needed at once.
    carried: Mapping[Axis, float]

    def seconds(self, device: Device) -> float:
        """The time at the best of the tilings."""
        again = self.scanned.union(a for _, reduced in self.costs for a in reduced)
        if self.carried:
            return self._carrying(again, device)
        best = self._whole(again, device) if again else math.inf
        if self.scanned:
            return min(best, self._whole(self.scanned, device))
        for lengths in self._tilings():
            tiles = self._tiles(lengths)
            if math.prod(tiles.values()) < device.processors:
                long, tiles = tiles, self._filling(lengths, device)
                if (sharing := self.parts(False)) is not None:
                    best = min(best, *(self._shared(t, sharing, self.stored, device) for t in (long, tiles)))
            # Tiles may be as short as an element; where that leaves processors without a program nothing helps.
            idle = max(1.0, device.processors / math.prod(self.outer.values()))
            best = min(best, self.roofline(tiles, device) * idle)
        return best

    def roofline(
        self, tiles: Mapping[Axis, float], device: Device, more: float = 0.0, costs: _Costs = _NOTHING
    ) -> float:
        """The time with so many tiles of the output axes, were the device full, and so many times `costs` beside."""
        moved, work = self.stored, 0.0
        for found, times in ((self.costs, 1.0), (costs, more)):
            for (over, again), (loaded, computed) in found.items():
                if again and not any(tiles.get(a, 1.0) > 1 for a in again):
                    continue
                repeated = times
                for a, n in tiles.items():
                    if a not in over:
                        repeated *= n
                moved += loaded * repeated
                work += computed * repeated
        return float(full(device, moved, work))

    def _whole(self, axes: _Axes, device: Device) -> float:
        """The time where each program has all of these axes."""
        tiles = self._filling({**self._even(), **{a: self.outer[a] for a in axes}}, device, axes)
        return self.roofline(tiles, device) * max(1.0, device.processors / math.prod(tiles.values()))

    def _shared(self, tiles: Mapping[Axis, float], sharing: _Sharing, left: float, device: Device) -> float:
        """The time where several programs share reductions, each of which leaves so many bytes."""
        short = device.processors / math.prod(tiles.values())
        parts = min(-(-short // 1), sharing.most)
        if parts < 2:
            return math.inf
        combined = float(full(device, 2 * parts * left, 0.0)) + device.launch_overhead_s
        if sharing.axis in self.outer:
            tiles = {**tiles, sharing.axis: parts}
        return self.roofline(tiles, device, parts - 1, sharing.costs) * max(1.0, short / parts) + combined

    def _carrying(self, again: _Axes, device: Device) -> float:
        """The time where each program has all of the axes that are carried, or a part of one of them."""
        held = self.scanned.union(self.carried)
        best = math.inf
        for axes in (held, held | again):
            best = min(best, self._whole(axes, device))
            tiles = self._tiles({**self._even(), **{a: self.outer[a] for a in axes}})
            for a, left in self.carried.items():
                if left < math.inf:
                    most = min(float(Tiles().parts), self.outer[a] // Tiles().loop_tile)
                    best = min(best, self._shared(tiles, _Sharing(a, most, _NOTHING), left, device))
        sharing = self.parts(True)
        if sharing is not None and all(self.outer[a] <= WHOLE for a in held.union(again) - {sharing.axis}):
            # What all waits for may be shared by parts, under a name of its own, and the stage after them stores the
            # rest: it holds the other axes, so what is needed again because of them is there.
            needed = [cost for (_, more), cost in self.costs.items() if not more or sharing.axis in more]
            moved = self.stored + sum(loaded for loaded, _ in needed)
            work = sum(computed for _, computed in needed)
            best = min(best, float(full(device, moved, work)) + device.launch_overhead_s)
        return best

    def _even(self) -> dict[Axis, float]:
        return {a: 1.0 if a in self.batch else min(n, float(TILE)) for a, n in self.outer.items()}

    def _tilings(self) -> Iterator[dict[Axis, float]]:
        """The lengths of the tiles."""
        even = self._even()
        yield even
        for wide, n in self.outer.items():
            if wide in self.batch or not TILE < n <= RESULT // SHORTEST:
                continue
            lengths = {**even, wide: n}
            while math.prod(lengths.values()) > RESULT:
                longest = max((a for a in self.outer if a != wide), key=lambda a: lengths[a])
                lengths[longest] /= 2
            yield lengths

    def _tiles(self, lengths: Mapping[Axis, float]) -> dict[Axis, float]:
        return {a: -(-n // lengths[a]) for a, n in self.outer.items()}

    def _filling(self, lengths: Mapping[Axis, float], device: Device, kept: _Axes = _NONE) -> dict[Axis, float]:
        """How many tiles there are of each axis, tiles made shorter until they fill the device.

        Beside axes that are `kept`, as for norms, others may be one element, which products could not use.
        """
        shortest = 1.0 if kept else float(SHORTEST)
        shorter = dict(lengths)
        tiles = self._tiles(shorter)
        while math.prod(tiles.values()) < device.processors:
            long = [a for a in self.outer if shorter[a] > shortest and a not in kept]
            if not long:
                break
            longest = max(long, key=lambda a: shorter[a])
            shorter[longest] = max(shortest, shorter[longest] / 2)
            tiles[longest] = -(-self.outer[longest] // shorter[longest])
        return tiles


@dataclass(slots=True)
class PlanEstimate:
    """Looks at the plans of one form."""

    weights: Weights  # what values cost, at one shape
    within: Within  # the form
    formulas: Sequence[Formula]  # the outputs
    inputs: Sequence[Tensor]  # the program's inputs
    device: Device  # what kernels run on
    # Seconds of kernels of any form: forms differ in few of their values.
    shared: dict[object, float] = field(default_factory=dict)
    _width: dict[str, int] = field(init=False)
    _costs: dict[int, tuple[frozenset[Axis], float, float]] = field(default_factory=dict)
    _known: dict[Inside, float] = field(default_factory=dict)
    _least: dict[Inside, float] = field(default_factory=dict)
    _sums: Sums = field(init=False)

    def __post_init__(self) -> None:
        self._sums = Sums(self.choices, self.weights.classes.axes)
        self._width = {t.name: t.dtype.bytes for t in self.inputs}

    @property
    def choices(self) -> Choices:
        """The form's choices."""
        return self.within.choices

    def seconds(self, plan: Plan, below: float = math.inf) -> float:
        """Roughly the time of the plan's kernels that a call runs, one after another.

        Infinite where that is not below so much by what is known of some kernels and `at_least` of the others.
        """
        run = self._run(plan)
        if below < math.inf:
            left = [self._known.get(inside) or self._once(plan, group, inside) for group, inside in run]
            for n, (group, inside) in enumerate(run):
                if sum(left) >= below:
                    return math.inf
                left[n] = self._kernel(plan, group, inside)
        return sum(self._kernel(plan, group, inside) for group, inside in run)

    def at_least(self, plan: Plan) -> float:
        """What `seconds` is at least: what is known of other plans' kernels, and of the others what no tiling beats."""
        return sum(self._known.get(inside) or self._once(plan, group, inside) for group, inside in self._run(plan))

    def least(self) -> float:
        """What no plan of the form beats, launches apart: inputs read, values computed and outputs stored once each.

        Of an input no more is counted than what is read of it.
        """
        hints = self.weights.hints
        roots = self.weights.classes.roots
        whole = {t.name: float(math.prod(evaluate(e, hints) for e in t.shape)) * t.dtype.bytes for t in self.inputs}
        read: dict[str, float] = {}
        work = 0.0
        axes = self.weights.classes.axes
        stored = sum(
            self.weights.size(axes[r]) * f.tensor.dtype.bytes for f, r in zip(self.formulas, roots, strict=True)
        )
        order = below(self.choices, roots)
        # Where each term is added where it goes, nothing is compared with every place.
        compared = frozenset(c for top in order if (sums := self._sums.of(top)) for c in sums.written)
        for cls in order:
            _, loaded, computed = self._cost(cls)
            work += computed if cls not in compared else 0.0
            payload = self.choices[cls].payload
            match payload:
                case Read(tensor) | Chosen(Read(tensor)):
                    read[tensor] = min(whole[tensor], read.get(tensor, 0.0) + loaded)
                case _:
                    pass
        return float(full(self.device, sum(read.values()) + stored, work))

    def _run(self, plan: Plan) -> list[tuple[tuple[Target, ...], Inside]]:
        """The kernels that a call runs."""
        within, stored = self.within, plan.stored
        return [(group, within.of([t.cls for t in group], stored)) for rank, group in plan.groups if rank != PREPARED]

    def _once(self, plan: Plan, group: Sequence[Target], inside: Inside) -> float:
        """Seconds that no tiling beats: everything read, computed and stored once, and a launch.

        What is added up where data say computes less: of that no more is counted than what it stores.
        """
        known = self._least.get(inside)
        if known is not None:
            return known
        moved, work = sum(self.weights.size(self.weights.classes.axes[t.cls]) * 4 for t in group), 0.0
        if not self._added(plan, group):
            read = self._read(plan, inside)
            for cls in inside.used:
                if cls in read:
                    moved += self._loaded(cls, read[cls])
                else:
                    _, loaded, computed = self._costs.get(cls) or self._cost(cls)
                    moved += loaded
                    work += computed
        known = float(full(self.device, moved, work)) / (1 + SLACK) + self.device.launch_overhead_s
        self._least[inside] = known
        return known

    def _kernel(self, plan: Plan, group: Sequence[Target], inside: Inside) -> float:
        known = self._known.get(inside)
        if known is None:
            read = self._read(plan, inside)
            choices = self.within.choices
            ways = tuple(id(choices[c]) if c not in read else (read[c].shape, read[c].dtype) for c in inside.used)
            key = tuple(t.cls for t in group), inside.used, ways
            known = self.shared.get(key)
            if known is None:
                looked = self._look(group, inside, read)
                # A library's product reads what it needs about once.
                product = self._is_product(group, inside)
                known = looked.roofline({}, self.device) if product else looked.seconds(self.device)
                known += self.device.launch_overhead_s
                self.shared[key] = known = min(known, self._adding(plan, group))
            self._known[inside] = known
        return known

    def _adding(self, plan: Plan, group: Sequence[Target]) -> float:
        """The time where the kernel's value is added up where data say; infinite where it goes nowhere."""
        axes = self.weights.classes.axes
        found = self._added(plan, group)
        if not found:
            return math.inf
        sums = [s for each in found for s in each]
        operands = [c for s in sums for c in s.operands] + [b for *_, s in found if (b := s.base) is not None]
        inside = self.within.of(sorted({c for c in operands if c not in plan.stored}), plan.stored)
        read = inside.back.union(c for c in operands if c in plan.stored)
        costs = [self._cost(c) for c in inside.used if c not in inside.back]
        terms = sum(self.weights.size(frozenset[Axis]().union(*(axes[c] for c in s.operands))) for s in sums)
        moved = sum(loaded for _, loaded, _ in costs) + sum(self.weights.size(axes[c]) * 4 for c in read)
        moved += sum(self.weights.size(axes[t.cls]) * 4 for t in group) + terms * 8
        work = sum(computed for _, _, computed in costs) + terms
        return float(full(self.device, moved, work)) + (1 + len(group)) * self.device.launch_overhead_s

    def _added(self, plan: Plan, group: Sequence[Target]) -> tuple[tuple[Added, ...], ...]:
        """The sums that go where data say, all over the same axes, that a kernel stores; none where one is not."""
        return self._sums.along([t.cls for t in group], plan.stored)

    def _read(self, plan: Plan, inside: Inside) -> dict[int, Tensor]:
        """What a kernel reads back."""
        if not inside.back:
            return {}
        made = {t.name: t for t in (*plan.buffers, *(f.tensor for f in self.formulas))}
        return {c: made[plan.stored[c][0]] for c in inside.used if c in inside.back}

    def _loaded(self, cls: int, buffer: Tensor) -> float:
        """Bytes of a value that is read back; windows see an element several times."""
        whole = float(math.prod(evaluate(e, self.weights.hints) for e in buffer.shape))
        return min(self.weights.size(self.weights.classes.axes[cls]), whole) * buffer.dtype.bytes

    def _look(self, group: Sequence[Target], inside: Inside, read: Mapping[int, Tensor]) -> _Kernel:
        """The kernel, and what it reads back."""
        used = inside.used
        outer = {a: self.weights.size(frozenset({a})) for t in group for a in t.axes}
        every = frozenset(outer)
        choices, axes = self.within.choices, self.weights.classes.axes
        here = [c for c in used if c not in read]
        reducing = [c for c in here if choices[c].op in REDUCING]
        reduced = frozenset(a for c in reducing for a in self.within.reduced[c])
        one = every & frozenset.intersection(*(frozenset(t.axes) for t in group))
        places = self._places(group, inside) if reduced & every else {}
        again = frozenset(a for bounds in places.values() for bound in bounds for a in bound)
        # By an axis that is carried each goes as if alone; one that is another by chance may go along that one instead.
        carried = {
            a: math.inf if a in again else sum(self.weights.size(axes[t.cls]) * 4 for t in group if a not in t.axes)
            for a in outer
            if a in reduced and a not in one and not any(b.extent == a.extent for b in reduced - every)
        }

        def costs(of: Iterable[int]) -> _Costs:
            # By the axes of values, which are few, and only then by what of them is the output's.
            apart: dict[tuple[_Axes, tuple[_Axes, ...]], list[float]] = {}
            for cls in of:
                if cls in read:
                    over, loaded, computed = axes[cls], self._loaded(cls, read[cls]), 0.0
                else:
                    over, loaded, computed = self._costs.get(cls) or self._cost(cls)
                both = apart.setdefault((over, places.get(cls, _ONCE)), [0.0, 0.0])
                both[0] += loaded
                both[1] += computed
            found: dict[tuple[_Axes, _Axes], tuple[float, float]] = {}
            for (over, bounds), (loaded, computed) in apart.items():
                for bound in bounds:
                    key = ((over & every) - bound, bound - bounds[0])
                    before = found.get(key, (0.0, 0.0))
                    found[key] = before[0] + loaded, before[1] + computed
            return found

        @cache
        def parts(outer: bool) -> _Sharing | None:
            sharing = self._parts(here, reducing, reduced & one if outer else reduced - one)
            if sharing is None or outer:
                return sharing
            return replace(sharing, costs=costs(self._beside(inside, sharing.axis)))

        stored = sum(self.weights.size(axes[t.cls]) * 4 for t in group)
        scanned = frozenset(p.axis for c in reducing if isinstance(p := choices[c].payload, Along))
        return _Kernel(outer, self._batch(reducing) & every, costs(used), stored, parts, scanned & every, carried)

    def _beside(self, kernel: Inside, axis: Axis) -> Iterator[int]:
        """What lies under reductions along an axis and does not have it."""
        under: set[int] = set()
        for cls in reversed(kernel.used):
            if cls in kernel.back:
                continue
            if cls in under or axis in self.within.reduced[cls]:
                under.update(self.choices[cls].children)
        axes = self.weights.classes.axes
        return (c for c in kernel.used if c in under and axis not in axes[c])

    def _places(self, group: Sequence[Target], kernel: Inside) -> dict[int, tuple[_Axes, ...]]:
        """For each e-class, the sets of output axes that are reduced where it is needed, smallest first.

        Under its reduction such an axis is another one by the same name: all of it is needed for each element of what
        ranges over it.
        """
        alike: dict[_Axes, list[int]] = {}
        for t in group:
            alike.setdefault(frozenset(t.axes), []).append(t.cls)
        # Few sets come again and again: each once.
        sets: dict[_Places, _Places] = {}
        first, *others = (self._places_of(targets, kernel, over, sets) for over, targets in alike.items())
        for found in others:
            first = {c: mine | found[c] for c, mine in first.items()}
        ordered = {s: tuple(sorted(s, key=_by_length)) for s in set(first.values())}
        return {c: ordered[s] for c, s in first.items()}

    def _places_of(
        self, targets: Sequence[int], kernel: Inside, every: _Axes, sets: dict[_Places, _Places]
    ) -> dict[int, _Places]:
        """The same of targets over the same axes, in any order."""
        choices, reduced = self.within.choices, self.within.reduced
        found: dict[int, _Places] = dict.fromkeys(kernel.used, _NOWHERE)
        for t in targets:
            found[t] = _HERE
        for cls in reversed(kernel.used):
            if cls in kernel.back:
                continue
            mine = found[cls]
            inside = reduced[cls] & every
            if inside:
                # What a reduction does itself ranges over its axis as well.
                mine = frozenset(bound | inside for bound in mine)
                mine = found[cls] = sets.setdefault(mine, mine)
            for child in choices[cls].children:
                theirs = found[child]
                if theirs is not mine:
                    both = mine | theirs if theirs else mine
                    found[child] = sets.setdefault(both, both)
        return found

    def _batch(self, reducing: Sequence[int]) -> _Axes:
        """The axes that both operands of some matrix product have, beside the contracted one."""
        axes = self.weights.classes.axes
        found = _NONE
        for cls in reducing:
            choice = self.choices[cls]
            if choice.op == "contract":
                lhs, rhs = (axes[c] for c in choice.children)
            elif choice.op == "rescaled" and len(choice.children) == 3:
                lhs, rhs = axes[choice.children[0]] | axes[choice.children[1]], axes[choice.children[2]]
            else:
                continue
            product = matrix_product(lhs, rhs, {choice.innermost})
            found |= product.batch if product is not None else _NONE
        return found

    def _parts(self, here: Sequence[int], reducing: Sequence[int], reduced: _Axes) -> _Sharing | None:
        """Along the longest axis that a single pass goes along; costs apart."""
        by = self.within.reduced
        lengths = {a: self.weights.size(frozenset({a})) for a in reduced}
        for axis in sorted((a for a in reduced if lengths[a] > SHORT), key=lambda a: (-lengths[a], a.name)):
            passing = [c for c in reducing if axis in by[c]]
            if not self.within.depend(passing) or self._one_pass(axis, here):
                return _Sharing(axis, min(float(Tiles().parts), lengths[axis] / Tiles().loop_tile), _NOTHING)
        return None

    def _one_pass(self, axis: Axis, here: Sequence[int]) -> bool:
        """Whether what is stored lies between the reductions along an axis."""
        choices, by = self.within.choices, self.within.reduced
        passing: set[int] = set()
        for cls in here:
            before = not passing.isdisjoint(choices[cls].children)
            if before and axis in by[cls]:
                return False
            if before or axis in by[cls]:
                passing.add(cls)
        return True

    def _is_product(self, group: Sequence[Target], inside: Inside) -> bool:
        """Whether the kernel is a product of stored tensors, and what libraries add to one, and there is a library."""
        if not self.device.library or len(group) != 1:
            return False

        def stored(cls: int) -> bool:
            return cls in inside.back or self.choices[cls].op == "read"

        choice = self.choices[group[0].cls]
        if choice.op == "maximum":
            inner = [self.choices[c] for c in choice.children if self.choices[c].payload != Const(0)]
            choice = inner[0] if len(inner) == 1 and inner[0].op == "add" else choice
        if choice.op == "add":
            first, second = sorted(choice.children, key=stored)
            choice = self.choices[first] if stored(second) and not stored(first) else choice
        return choice.op == "contract" and all(stored(c) for c in choice.children)

    def _cost(self, cls: int) -> tuple[frozenset[Axis], float, float]:
        """The axes that a value is computed over, the bytes that it loads and its work, computed once."""
        known = self._costs.get(cls)
        if known is None:
            axes = self.weights.classes.axes
            choice = self.choices[cls]
            if isinstance(choice.payload, Read):
                known = axes[cls], self.weights.size(axes[cls]) * self._width.get(choice.payload.tensor, 4), 0.0
            elif isinstance(choice.payload, Chosen):
                width = self._width.get(choice.payload.element.tensor, 4)
                known = axes[cls], self.weights.size(axes[cls]) * width, 0.0
            else:
                over = axes[cls].union(*(axes[c] for c in choice.children))
                known = over, 0.0, self.weights.work(cls, choice)
            self._costs[cls] = known
        return known
