"""The whole space of sGraphs of a small program, listed without any pruner: forms x cuts x roles.

Nothing of prism.sgraph's forms, cuts, generate and prune.keep is used: choices are enumerated one e-class after
another, cuts as all subsets, roles as all assignments. Only a single point (form, cut, roles) is turned into kernels by
the code under test, and measured by its symbolic cost.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prism.generate.adding import added
from prism.generate.enumerate import Task, isomorphism_key
from prism.generate.families import Target, _kernel, _split, bound_names
from prism.generate.options import REDUCING, Choice, options
from prism.generate.pruning import PRUNERS, Array, reach
from prism.generate.roles import Kind, batch_axes, reduced_axes, roles, scanned_axes, single_axes
from prism.generate.schedule import Output, Unschedulable
from prism.generate.values import Builder
from prism.program.index import Axis, Index
from prism.program.nodes import Read, Tensor
from prism.sgraph.hidden import without_unneeded
from prism.sgraph.nodes import Kernel, SGraph, Split
from prism.sgraph.ranges import narrow

Form = Mapping[int, Choice]
Stage = tuple[int, frozenset[Axis]]
EVERY_PRUNER = frozenset(PRUNERS)


class TooMany(Exception):
    """The space is larger than the test wants to list."""


def every_form(task: Task, limit: int) -> list[Form]:
    """Every acyclic choice of one option for each e-class that the outputs need."""
    table = options(task.classes, EVERY_PRUNER)
    found: list[Form] = []

    def cyclic(chosen: Form, cls: int) -> bool:
        seen: set[int] = set()
        stack = list(chosen[cls].children)
        while stack:
            c = stack.pop()
            if c == cls:
                return True
            if c not in seen:
                seen.add(c)
                stack += chosen[c].children if c in chosen else ()
        return False

    def go(chosen: dict[int, Choice]) -> None:
        needed = [*task.classes.roots, *(c for o in chosen.values() for c in o.children)]
        missing = next((c for c in needed if c not in chosen), None)
        if missing is None:
            found.append(dict(chosen))
            if len(found) > limit:
                raise TooMany
            return
        for option in table[missing]:
            chosen[missing] = option
            if not cyclic(chosen, missing):
                go(chosen)
            del chosen[missing]

    go({})
    return found


@dataclass
class BruteForce:
    """Lists the vectors (bytes, work, seconds, launches) that some sGraph of the space reaches at some assignment."""

    task: Task
    max_kernels: int
    limit: int
    seen: dict[object, list[tuple[int, Array]]] = field(default_factory=dict)
    reached: dict[object, Array | None] = field(default_factory=dict)
    built: int = 0

    def vectors(self) -> Array:
        rows = [np.empty((0, 4))]
        for form in every_form(self.task, self.limit):
            cuttable = [
                c
                for c in form
                if form[c].children
                and (c not in self.task.classes.roots or any(c in o.children for o in form.values()))
                and (self.task.classes.axes[c] or any(form[k].op in REDUCING for k in _below(form, [c], {})))
                and _reads(form, c)
            ]
            for count in range(self.max_kernels):
                for cut in itertools.combinations(sorted(cuttable), count):
                    rows += self._plan(form, cut)
        return np.concatenate(rows)

    def _plan(self, form: Form, cut: tuple[int, ...]) -> list[Array]:
        task = self.task
        stored = {c: (f"t{c}", tuple(sorted(task.classes.axes[c], key=lambda a: a.name))) for c in cut}
        dtype = task.formulas[0].tensor.dtype
        # Outputs are stored anyway.
        own = {c: s for c, s in stored.items() if c not in task.classes.roots}
        outputs = zip(task.formulas, task.classes.roots, strict=True)
        stored |= {r: (f.tensor.name, Target("", f.index, r).axes) for f, r in outputs if r in stored}
        buffers = [Tensor(n, tuple(a.extent for a in axes), dtype) for n, axes in own.values()]
        targets = [Target(n, tuple(map(Index.axis, axes)), c) for c, (n, axes) in own.items()]
        targets += [Target(f.tensor.name, f.index, r) for f, r in zip(task.formulas, task.classes.roots, strict=True)]
        stages: dict[tuple[int, frozenset[Axis]], list[Target]] = {}
        for t in targets:
            stages.setdefault((_stage(form, t.cls, cut), frozenset(t.axes)), []).append(t)
        found: list[Array] = []
        # Outputs over other axes take kernels of their own.
        most = self.max_kernels + len({frozenset(Target("", f.index, 0).axes) for f in task.formulas}) - 1
        plain = [(stage, group) for (stage, _), group in stages.items()]
        given = form, stages, stored, task.classes.axes, task.classes.roots
        for made in (plain, *_fused(*given), *_taken_along(*given)):
            if len(made) <= most:
                found += self._combined(form, made, stored, buffers)
        return found

    def _combined(
        self,
        form: Form,
        stages: Sequence[tuple[int, list[Target]]],
        stored: Mapping[int, tuple[str, tuple[Axis, ...]]],
        buffers: list[Tensor],
    ) -> list[Array]:
        """What the kernels reach together, one of each."""
        task = self.task
        per_group: list[list[tuple[int, Array]]] = []
        ordered = [group for _, group in sorted(stages, key=lambda s: s[0])]
        for group in ordered:
            per_group.append(self._kernels(form, group, stored, buffers))
        loads = [_loads(form, group, stored) for group in ordered]
        independent = len({stage for stage, _ in stages}) == 1
        shares = len(stages) == 2 and independent and bool(loads[0] & loads[1])
        found: list[Array] = []
        for pick in itertools.product(*per_group):
            rows = np.zeros((1, 3))
            for _, own in pick:
                # Of sums only those of the best can be best.
                rows = _best((rows[:, None] + own[None]).reshape(-1, 3))
            launches = sum(n for n, _ in pick)
            found.append(np.hstack([rows, np.full((len(rows), 1), float(launches))]))
            if shares and launches == 2:
                # Independent kernels that read a common tensor may be one launch.
                less = rows - np.array([0.0, 0.0, task.device.launch_overhead_s])
                found.append(np.hstack([less, np.full((len(rows), 1), 1.0)]))
        return found

    def _kernels(
        self,
        form: Form,
        group: Sequence[Target],
        stored: Mapping[int, tuple[str, tuple[Axis, ...]]],
        buffers: list[Tensor],
    ) -> list[tuple[int, Array]]:
        """What every family of one kernel reaches: launches, and rows of (bytes, work, seconds)."""
        own = {t.cls for t in group}
        read = {c: s for c, s in stored.items() if c not in own}
        below = _below(form, sorted(own), read)
        key = (tuple(group), tuple(sorted(read.items())), tuple((c, form[c]) for c in below))
        if key in self.seen:
            return self.seen[key]
        found: list[tuple[int, Array]] = []
        outputs = tuple(f.tensor for f in self.task.formulas)
        for kernels, extra in self._families(form, group, read):
            self.built += 1
            whole = SGraph("p", self.task.inputs, (*buffers, *extra), outputs, kernels)
            # Kernels that differ by names alone are measured once.
            like = isomorphism_key(kernels, whole)
            if like not in self.reached:
                answer = reach(kernels, whole, self.task.device, (self.task.hints,))
                self.reached[like] = None if isinstance(answer, str) else _best(answer.points[0])
            rows = self.reached[like]
            if rows is not None:
                found.append((len(kernels), rows))
        self.seen[key] = found
        return found

    def _families(
        self, form: Form, group: Sequence[Target], read: Mapping[int, tuple[str, tuple[Axis, ...]]]
    ) -> Iterator[tuple[tuple[Kernel, ...], tuple[Tensor, ...]]]:
        free = tuple(dict.fromkeys(a for t in group for a in t.axes))
        axes = self.task.classes.axes
        held = {c: (name, tuple(map(Index.axis, own))) for c, (name, own) in read.items()}
        plain = Builder(form, axes, held, {})
        values = [plain.build(t.cls) for t in group]
        clashing = [a for a in free if a in reduced_axes(values)]
        names = bound_names(values, free)
        suffix = f"_{group[0].tensor}"
        # What some targets store along and others reduce keeps its name.
        both = {a for a in free if any(a not in t.axes for t in group)}
        others = [a for a in clashing if a not in both]
        for renamed in (s for n in range(len(others) + 1) for s in itertools.combinations(others, n)):
            bound = {a: b for a, b in names.items() if a in renamed or a not in clashing}
            builder = Builder(form, axes, held, bound)
            outputs = [Output(t.tensor, t.index, builder.build(t.cls)) for t in group]
            roots = [o.value for o in outputs]
            reduced = reduced_axes(roots)
            batch, scanned = batch_axes(roots), scanned_axes(roots)
            tiled = self.task.device.tiles.scans
            single = single_axes(roots, tiled)
            kinds: list[list[Kind]] = []
            order = tuple(dict.fromkeys((*free, *reduced)))
            for a in order:
                if a in scanned:
                    # Without sums within a tile, what does not grow goes along the batch of a product alone.
                    kinds.append([Kind.LOOP] if a in single else [Kind.WHOLE, Kind.LOOP] * tiled)
                elif a in batch:
                    kinds.append([Kind.ONE] if a in free else [Kind.LOOP, Kind.SPLIT])
                elif a in reduced:
                    one = a in free and a not in both
                    kinds.append([Kind.WHOLE, Kind.LOOP] if one else [Kind.WHOLE, Kind.LOOP, Kind.SPLIT])
                else:
                    kinds.append([Kind.GRID, Kind.ONE, Kind.LOOP, Kind.WHOLE])
            for picks in itertools.product(*kinds):
                if picks.count(Kind.SPLIT) > 1:
                    continue
                given = roles(dict(zip(order, picks, strict=True)), order, single, suffix)
                try:
                    if any(isinstance(r, Split) for r in given.values()):
                        family = _split(outputs, given, builder.values, f"k{suffix}", suffix)
                        if family is not None:
                            yield tuple(without_unneeded(narrow(k)) for k in family.kernels), family.buffers
                    else:
                        yield (without_unneeded(narrow(_kernel(f"k{suffix}", outputs, given))),), ()
                except Unschedulable:
                    continue
        if len(group) == 1:
            yield from self._added(form, group[0], held)

    def _added(
        self, form: Form, target: Target, held: Mapping[int, tuple[str, tuple[Index, ...]]]
    ) -> Iterator[tuple[tuple[Kernel, ...], tuple[Tensor, ...]]]:
        """The families that add each term of a sum where data say, each axis in every role."""
        sums = added(form, self.task.classes.axes, target.cls)
        if sums is None:
            return
        builder = Builder(form, self.task.classes.axes, held, {})
        begin = builder.values.const(0.0) if sums.base is None else builder.build(sums.base)
        value, found = sums.values(builder)
        places = dict(zip(sums.along, found, strict=True))
        index = tuple(Index.const(0) if a in places else Index.axis(a) for a in target.axes)
        at = tuple((n, a.extent, places[a]) for n, a in enumerate(target.axes) if a in places)
        adds = Output(target.tensor, index, value, None, at)
        free = sorted(adds.axes, key=str)
        order = (*free, *(a for a in reduced_axes(adds.values) if a not in adds.axes))
        every, whole = [Kind.GRID, Kind.ONE, Kind.LOOP, Kind.WHOLE], [Kind.WHOLE, Kind.LOOP]
        stores = Output(target.tensor, target.index, begin)
        for first in itertools.product([Kind.GRID, Kind.ONE, Kind.WHOLE], repeat=len(target.axes)):
            given = roles(dict(zip(target.axes, first, strict=True)), target.axes, frozenset(), "_b")
            kernel = without_unneeded(narrow(_kernel("begin", [stores], given)))
            for picks in itertools.product(*(every if a in adds.axes else whole for a in order)):
                try:
                    given = roles(dict(zip(order, picks, strict=True)), order, frozenset(), "_a")
                    yield (kernel, without_unneeded(narrow(_kernel("adds", [adds], given)))), ()
                except Unschedulable:
                    continue


def _fused(
    form: Form,
    stages: Mapping[Stage, list[Target]],
    stored: Mapping[int, tuple[str, tuple[Axis, ...]]],
    axes: Mapping[int, frozenset[Axis]],
    roots: Sequence[int],
) -> Iterator[list[tuple[int, list[Target]]]]:
    """The kernels with those put into another that reduce what it stores along, or do not know of it.

    That is of their stage, or reads what they make. First those that lack one of its axes, then all; then pairs of
    which each lacks some of the other's.
    """
    into: dict[Stage, Stage] = {}
    names = {t.tensor: key for key, group in stages.items() for t in group}
    for mine, group in stages.items():
        own = {t.cls for t in group}
        apart = {c: s for c, s in stored.items() if c not in own}
        for wider, other in stages.items():
            lacks = wider[1] - mine[1]
            below = [_below(form, [t.cls], apart) for t in group]
            if mine in into or not mine[1] < wider[1] or mine[0] > wider[0]:
                continue
            if mine[0] < wider[0]:
                # It makes what it would read, which others read, too, and no products that it had to hold.
                theirs = _read(form, other, apart)
                rest = [t for key, targets in stages.items() if key not in (mine, wider) for t in targets]
                read = _read(form, rest, stored)
                early = all(names[n][0] < mine[0] for n in theirs)
                product = any(form[c].op == "contract" and lacks & axes[c] for c in _below(form, sorted(own), {}))
                if product or not early or not all(t.tensor in read or t.cls in roots for t in group):
                    continue
            reduced = [{a for c in b for a in form[c].reduced} for b in below]
            along = lacks if all(lacks <= r for r in reduced) else frozenset()
            if not along and not any(lacks & axes[c] for b in below for c in b):
                others = [{a for c in _below(form, [t.cls], apart) for a in form[c].reduced} for t in other]
                along = frozenset(set.intersection(*reduced, *others))
            if along and _reads_alike(form, group, other, apart, along):
                into[mine] = wider
    for most in sorted({len(w[1] - m[1]) for m, w in into.items()}):
        made: dict[Any, tuple[int, list[Target]]] = {key: (key[0], list(group)) for key, group in stages.items()}
        for mine in sorted((m for m, w in into.items() if len(w[1] - m[1]) <= most), key=lambda m: len(m[1])):
            stage, group = made.pop(mine)
            before, wide = made[into[mine]]
            made[into[mine]] = min(stage, before), [*wide, *group]
        yield [(stage, group) for stage, group in made.values()]
    for mine, wider in itertools.permutations(stages, 2):
        mine_only, wider_only = mine[1] - wider[1], wider[1] - mine[1]
        if mine[0] != wider[0] or not mine_only or not wider_only:
            continue
        both = [*stages[mine], *stages[wider]]
        apart = {c: s for c, s in stored.items() if c not in {t.cls for t in both}}
        within = {t: _below(form, [t.cls], apart) for t in both}
        summed = {t: {a for c in within[t] for a in form[c].reduced} for t in both}
        alike = not any(mine_only & axes[c] for t in stages[wider] for c in within[t])
        if (
            all(wider_only <= summed[t] for t in stages[mine])
            and (alike or all(mine_only <= summed[t] for t in stages[wider]))
            and _reads_alike(form, stages[mine], stages[wider], apart, wider_only)
        ):
            left = [(key[0], group) for key, group in stages.items() if key not in (mine, wider)]
            yield [*left, (mine[0], [*stages[wider], *stages[mine]])]


def _taken_along(
    form: Form,
    stages: Mapping[Stage, list[Target]],
    stored: Mapping[int, tuple[str, tuple[Axis, ...]]],
    axes: Mapping[int, frozenset[Axis]],
    roots: Sequence[int],
) -> Iterator[list[tuple[int, list[Target]]]]:
    """The kernels with outputs put into one before, which stores for others what these sum."""
    names = {t.tensor: key for key, group in stages.items() for t in group}
    for mine, wider in itertools.permutations(stages, 2):
        mine_only, wider_only = mine[1] - wider[1], wider[1] - mine[1]
        rest = [t for key, group in stages.items() if key != mine for t in group]
        read = _read(form, [t for t in rest if t not in stages[wider]], stored) | _read(form, stages[wider], stored)
        if mine[0] <= wider[0] or not wider_only or not all(t.cls in roots for t in stages[mine]):
            continue
        if not all(t.cls in roots or t.tensor in read for t in stages[wider]):
            continue
        both = [*stages[wider], *stages[mine]]
        apart = {c: s for c, s in stored.items() if c not in {t.cls for t in both}}
        within = {t: _below(form, [t.cls], apart) for t in both}
        summed = {t: {a for c in within[t] for a in form[c].reduced} for t in both}
        alike = not any(mine_only & axes[c] for t in stages[wider] for c in within[t])
        if (
            all(names[n][0] < wider[0] for n in _read(form, stages[mine], apart))
            and all(wider_only <= summed[t] for t in stages[mine])
            and (alike or all(mine_only <= summed[t] for t in stages[wider]))
            and _reads_alike(form, stages[mine], stages[wider], apart, wider_only)
        ):
            left = [(key[0], group) for key, group in stages.items() if key not in (mine, wider)]
            yield [*left, (wider[0], both)]


def _read(form: Form, group: Sequence[Target], stored: Mapping[int, tuple[str, tuple[Axis, ...]]]) -> set[str]:
    """What a kernel reads of what others store."""
    own = {t.cls for t in group}
    return {stored[c][0] for c in _below(form, sorted(own), stored) if c in stored and c not in own}


def _reads_alike(
    form: Form,
    group: Sequence[Target],
    other: Sequence[Target],
    stored: Mapping[int, tuple[str, tuple[Axis, ...]]],
    axes: frozenset[Axis],
) -> bool:
    """Whether both read one tensor, the second along one of the axes."""
    sets = []
    for targets in (group, other):
        own = {t.cls for t in targets}
        read: set[tuple[str, bool]] = set()
        for c in _below(form, sorted(own), {c: s for c, s in stored.items() if c not in own}):
            if c in stored and c not in own:
                read.add((stored[c][0], bool(axes & set(stored[c][1]))))
            elif form[c].op == "read":
                payload = form[c].payload
                assert isinstance(payload, Read)
                read.add((payload.tensor, bool(axes & {a for i in payload.index for a in i.axes()})))
        sets.append(read)
    return any((name, True) in sets[1] for name, _ in sets[0])


def _below(form: Form, roots: Sequence[int], stored: Mapping[int, object]) -> list[int]:
    seen = set(roots)
    stack = list(roots)
    while stack:
        c = stack.pop()
        if c in stored and c not in roots:
            continue
        for child in form[c].children:
            if child not in seen:
                seen.add(child)
                stack.append(child)
    return sorted(seen)


def _reads(form: Form, cls: int) -> bool:
    """Whether something below is read from memory: what is made of positions alone is not worth a buffer."""
    return form[cls].op == "read" or any(_reads(form, c) for c in form[cls].children)


def _loads(form: Form, group: Sequence[Target], stored: Mapping[int, tuple[str, tuple[Axis, ...]]]) -> frozenset[str]:
    own = {t.cls for t in group}
    read = {c: s for c, s in stored.items() if c not in own}
    found = set()
    for c in _below(form, sorted(own), read):
        if c in read:
            found.add(read[c][0])
        elif form[c].op == "read":
            found.add(form[c].payload.tensor)  # type: ignore[union-attr]
    return frozenset(found)


def _stage(form: Form, cls: int, cut: Sequence[int]) -> int:
    """How many kernels must have ended before the e-class can be computed."""
    return max((_stage(form, c, cut) + (c in cut) for c in form[cls].children), default=0)


def _best(rows: Array) -> Array:
    """The rows that no other beats in every column, as far as a look at each in turn tells."""
    left = rows[np.lexsort(rows.T[::-1])]
    kept = np.empty((0, rows.shape[1]))
    while len(left):
        kept = np.concatenate([kept, left[:1]])
        left = left[(left < left[0]).any(axis=1)]
    return kept


def attained(task: Task, sgraphs: Sequence[SGraph]) -> Array:
    """The same vectors, of given sGraphs: kernels share no symbols, but for the two stages of a split."""
    rows = [np.empty((0, 4))]
    for g in sgraphs:
        total = np.zeros((1, 3))
        units: list[list[Kernel]] = []
        for k in g.kernels:
            if k.name.endswith("_combine"):
                next(u for u in units if f"{u[0].name}_combine" == k.name).append(k)
            else:
                units.append([k])
        for unit in units:
            answer = reach(unit, g, task.device, (task.hints,))
            assert not isinstance(answer, str), answer
            total = (total[:, None] + answer.points[0][None]).reshape(-1, 3)
        launches = len(g.launches)
        total[:, 2] -= (len(g.kernels) - launches) * task.device.launch_overhead_s
        rows.append(np.hstack([total, np.full((len(total), 1), float(launches))]))
    return np.concatenate(rows)


def front(rows: Array) -> set[tuple[float, ...]]:
    """The rows that no other matches or beats in every column, rounded to nine digits."""
    rounded = np.unique(np.array([[float(f"{x:.9g}") for x in row] for row in rows]), axis=0)
    return {
        tuple(row) for row in rounded if not bool(((rounded <= row).all(axis=1) & (rounded < row).any(axis=1)).any())
    }
