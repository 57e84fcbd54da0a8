"""From the values of one kernel to the families of kernels that compute them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain

import sympy

from prism.cost.constraints import Needed, RoleBounds, too_large
from prism.cost.device import Device
from prism.generate.adding import Sums
from prism.generate.roles import Kind, assignments, batch_axes, reduced_axes, roles, scanned_axes, single_axes
from prism.generate.schedule import Output, Scheduler, Unschedulable
from prism.generate.values import Builder, KernelValue, Values, reachable
from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Tensor
from prism.program.transform import least_instance
from prism.sgraph.hidden import without_unneeded
from prism.sgraph.nodes import Grid, Kernel, Loop, Moment, Role, Split, Statistic, Whole, part_axis
from prism.sgraph.ranges import Ranged, narrow

LEAVES = frozenset({"read", "const", "position"})


@dataclass(frozen=True, slots=True)
class Target:
    """What a kernel is to compute: e-class `cls`, stored as tensor[index...]."""

    tensor: str
    index: tuple[Index, ...]
    cls: int
    # The axes of the store, in the order of the dimensions.
    axes: tuple[Axis, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        axes = tuple(dict.fromkeys(a for i in self.index for a, _ in _by_stride(i)))
        object.__setattr__(self, "axes", axes)


def _by_stride(index: Index) -> list[tuple[Axis, object]]:
    found = [(a, c) for a, c in index.terms if isinstance(a, Axis)]
    return sorted(found, key=lambda t: -(t[1] if isinstance(t[1], int) else 1 << 62))


@dataclass(frozen=True, slots=True)
class Family:
    """One or two kernels (a split and its second stage) that compute the targets, and the buffers between them."""

    kernels: tuple[Kernel, ...]
    buffers: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """What bounds the families of one kernel."""

    roles: RoleBounds  # see RoleBounds
    max_ops: int  # operators in one kernel
    max_loops: int  # loops in one kernel
    device: Device  # what kernels run on
    points: Sequence[Mapping[str, int]]  # values of the extents' symbols; a family must run at one of them
    looping: bool = False  # whether the families with a loop over an output axis are wanted, or those without
    off: frozenset[str] = frozenset()  # names of pruners that are switched off
    operands: DType | None = None  # see Kernel
    # Ranges of loops, for kernels that have the same ones; see `narrow`.
    ranged: Ranged = field(default_factory=dict, compare=False)


def families(
    targets: Sequence[Target],
    builder: Builder,
    name: str,
    suffix: str,
    space: Space,
    pruned: Counter[str],
    tensors: Mapping[str, Tensor] | None = None,
) -> Iterator[Family | str]:
    """Every family for the targets, in a fixed order; in place of one that cannot run, the constraint that it breaks.

    They range over the axes of all; what some lack of them, they reduce, or are the same along it. What cannot run is
    what roles tell without a kernel (`too_large`); constraints may rule out others.

    Args:
        targets: what to compute.
        builder: gives the e-classes' values; its `bound` is set here.
        name: the kernel's name, unique in the sGraph.
        suffix: appended to the kernel's symbols, so that they are its own.
        space: see Space.
        pruned: where roles without a schedule, and what is beyond a bound, are counted.
        tensors: those of the targets, by name: a sum that goes where data say may be added up there.
    """

    def stored(made: Builder) -> list[Output]:
        return [Output(t.tensor, t.index, made.build(t.cls)) for t in targets]

    free = tuple(dict.fromkeys(a for t in targets for a in t.axes))
    found = _kernels(stored, free, builder, name, suffix, space, pruned)
    known = tensors or {}
    if all(t.tensor in known for t in targets) and not space.looping:
        found = chain(found, _adding([(t, known[t.tensor]) for t in targets], builder, name, suffix, space, pruned))
    for family in found:
        if isinstance(family, Family) and space.operands is not None:
            kernels = tuple(replace(k, operands=space.operands) for k in family.kernels)
            yield replace(family, kernels=kernels)
        else:
            yield family


def _kernels(
    outputs_of: Callable[[Builder], list[Output]],
    free: tuple[Axis, ...],
    builder: Builder,
    name: str,
    suffix: str,
    space: Space,
    pruned: Counter[str],
) -> Iterator[Family | str]:
    """The families that store what a builder makes, over the axes `free`; the rest as of `families`."""
    bounds = space.roles
    plain = Builder(builder.choices, builder.class_axes, builder.stored, {})
    outputs = outputs_of(plain)
    values = _values(outputs)
    summed = frozenset(a for o in outputs for a in o.added)
    below = reachable(tuple(values))
    if sum(v.op not in LEAVES for v in below) > space.max_ops:
        pruned["max_ops"] += not space.looping
        return
    reduced = reduced_axes(values)
    clashing = frozenset(free) & frozenset(reduced)
    # What some targets range over and others reduce: under one name, so that one loop does both.
    both = clashing & frozenset(a for o in outputs for a in free if a not in o.axes)
    names = bound_names(values, free)
    # Each subset of the clashing axes may go on the grid, its reductions then running under a name of their own. Short
    # ones buy nothing there, but for the programs that a loop over another output axis leaves wanting.
    scans = bool(scanned_axes(values))
    long = [a for a in clashing - both if scans or not (is_static(a.extent) and int(a.extent) <= bounds.short)]
    # Equal extents may have one name by chance: what is reduced by some targets under the name of an axis of others may
    # have the loop of what these reduce instead, and is the same along the axis then.
    long += [a for a in both if names.get(a) in reduced]
    for renamed in _subsets(sorted(long, key=lambda a: a.name)):
        bound = {a: b for a, b in names.items() if a in renamed or a not in clashing}
        made = Builder(builder.choices, builder.class_axes, builder.stored, bound) if bound else plain
        outputs = outputs_of(made)
        roots = _values(outputs)
        order = tuple(dict.fromkeys((*free, *reduced_axes(roots))))
        single = single_axes(roots, bounds.scans)
        kept = clashing - set(renamed)
        needed = cache(partial(_needed, roots))
        for assignment in assignments(free, roots, kept, bounds, space.looping, space.off, pruned, both & kept, summed):
            given = roles(assignment, order, single, suffix)
            split = next((a for a, kind in assignment.items() if kind is Kind.SPLIT), None)
            try:
                if split is not None:
                    family = None if summed else _split(outputs, given, made.values, name, suffix)
                else:
                    family = Family((_kernel(name, outputs, given),), ())
            except Unschedulable:
                family = None
            if family is None:
                pruned["schedule"] += 1
            elif any(sum(isinstance(s, Loop) for s in k.statements()) > space.max_loops for k in family.kernels):
                pruned["max_loops"] += 1
            else:
                reasons = [too_large(needed(split), given, free, space.device, p) for p in space.points]
                if None in reasons:
                    yield replace(
                        family, kernels=tuple(without_unneeded(narrow(k, space.ranged)) for k in family.kernels)
                    )
                else:
                    yield str(reasons[-1])


def _needed(roots: Sequence[KernelValue], split: Axis | None) -> Needed:
    """What a kernel computes that must be held; where an axis is split, of what each part does."""
    every = reachable(tuple(roots))
    if split is not None:
        every = reachable(tuple(v for v in every if v.is_reduction and v.axis == split))
    factors = [v for v in every if v.op == "contract" or (v.op == "rescaled" and len(v.args) == 3)]
    # What is made of positions is in no register, nor need be what a product reads, or one that is added up.
    used = {a for v in every if v.op not in ("contract", "rescaled") for a in v.args}
    virtual: set[KernelValue] = set()
    held: set[KernelValue] = set()
    live: dict[tuple[frozenset[Axis], ...], None] = {}
    for v in every:
        if v.op in ("const", "position") or (v.payload is None and virtual.issuperset(v.args)):
            virtual.add(v)
        elif v.payload is None:
            held.add(v)
            # What is computed place by place is there an element at a time.
            live[tuple(a.axes for a in dict.fromkeys(v.args) if a in held and a.payload is not None)] = None
        elif v.op in ("read", "gather") and v in used:
            held.add(v)
    live |= dict.fromkeys((v.axes,) for v in held)
    products = dict.fromkeys((v.args[0].axes, v.args[1].axes, v.axis) for v in factors)
    return Needed(frozenset(v.axes for v in every), tuple(live), tuple(products))


def _values(outputs: Sequence[Output]) -> list[KernelValue]:
    return [v for o in outputs for v in o.values]


ADDED_IN = frozenset({DType.FLOAT32, DType.INT32, DType.INT64})
"""What is added up in memory; narrower types round at each addition, and are made of float32 once all is there."""


def _adding(
    targets: Sequence[tuple[Target, Tensor]],
    builder: Builder,
    name: str,
    suffix: str,
    space: Space,
    pruned: Counter[str],
) -> Iterator[Family | str]:
    """The families that store what sums that go where data say are added to, and then add each term where it goes."""
    found = Sums(builder.choices, builder.class_axes).along([t.cls for t, _ in targets], builder.stored)
    if not found or not all(t.dtype in ADDED_IN or t.dtype.is_half for _, t in targets):
        return
    plain = Builder(builder.choices, builder.class_axes, builder.stored, {})
    begin = [plain.values.const(0.0) if f[-1].base is None else plain.build(f[-1].base) for f in found]
    if reduced_axes(begin) or scanned_axes(begin):
        return
    own = [[i.as_axis() for i in target.index] for target, _ in targets]
    for axes, (_, tensor) in zip(own, targets, strict=True):
        # All of the tensor, each axis a dimension of it.
        if [a and a.extent for a in axes] != list(tensor.shape) or len(set(axes)) < len(axes):
            return
    nth = [str(n) if n else "" for n in range(len(targets))]
    sums = [
        Tensor(f"{name}_sums{n}", t.shape, DType.FLOAT32) if t.dtype.is_half else t
        for n, (_, t) in zip(nth, targets, strict=True)
    ]

    def grid(n: int, tensor: str, value: KernelValue, end: str) -> Kernel:
        target, _ = targets[n]
        mine = f"{suffix}{end[1]}{nth[n]}"
        tiles = {a: Grid(sympy.Symbol(f"T_{a.name}{mine}", integer=True, positive=True)) for a in target.axes}
        stored = [Output(tensor, target.index, value)]
        return without_unneeded(narrow(_kernel(f"{name}{end}{nth[n]}", stored, tiles), space.ranged))

    def adds(made: Builder) -> list[Output]:
        stored: list[Output] = []
        for one, (target, _), axes, into in zip(found, targets, own, sums, strict=True):
            for f in reversed(one):
                value, places = f.values(made)
                at = dict(zip(f.along, places, strict=True))
                index = tuple(Index.const(0) if a in at else i for a, i in zip(axes, target.index, strict=True))
                where = tuple((n, a.extent, at[a]) for n, a in enumerate(axes) if a in at)
                stored.append(Output(into.name, index, value, None, where))
        return stored

    first = [grid(n, into.name, b, "_begin") for n, (into, b) in enumerate(zip(sums, begin, strict=True))]
    halves = [n for n, (into, (_, t)) in enumerate(zip(sums, targets, strict=True)) if into != t]
    last = [grid(n, targets[n][1].name, plain.values.read(sums[n].name, targets[n][0].index), "_end") for n in halves]
    stored = adds(plain)
    along = frozenset(a for o in stored for a in o.added)
    kept = dict.fromkeys(a for t, _ in targets for a in t.axes if any(a in o.axes for o in stored))
    free = (*sorted(along, key=found[0][0].bound.index), *kept)
    for family in _kernels(adds, free, builder, name, suffix, space, pruned):
        if isinstance(family, str):
            yield family
        else:
            buffers = (*(sums[n] for n in halves), *family.buffers)
            yield Family((*first, *family.kernels, *last), buffers)


def bound_names(values: Sequence[KernelValue], free: Sequence[Axis]) -> dict[Axis, Axis]:
    """Names for reduced axes in one kernel, so that reductions over equal extents share a name, and so a loop.

    A reduced axis takes the name of another one of its extent unless the two would be confused: one's reduction lies
    under the other's, and some value under both depends on both. An axis that is also one of the output's takes a name
    that is not; where a value under another reduction, and not under its own, depends on it, that is the output's.
    """
    below = reachable(tuple(values))
    reduced = reduced_axes(values)
    lower = {v: reachable(v.args) for v in below if v.is_reduction}
    needed = {v: frozenset(a for w in under if v.axis in w.axes for a in w.axes) for v, under in lower.items()}
    confused = {
        frozenset((v.axis, w.axis)) for v, under in lower.items() for w in under if w in needed and v.axis in needed[w]
    }
    taken = {a for v in below for a in v.axes} | set(free) | set(reduced)
    names: dict[Axis, Axis] = {}
    groups: dict[Axis, set[Axis]] = {}
    # Those that keep their name come first, so that others can take it.
    for axis in sorted(reduced, key=lambda a: a in free):
        for name, members in groups.items():
            if name.extent == axis.extent and not any(frozenset((axis, m)) in confused for m in members):
                if name != axis:
                    names[axis] = name
                members.add(axis)
                break
        else:
            name = axis
            if axis in free:
                name = least_instance(axis.extent, taken)
                taken.add(name)
                names[axis] = name
            groups[name] = {axis}
    return names


def _subsets(items: Sequence[Axis]) -> Iterator[tuple[Axis, ...]]:
    for mask in range(1 << len(items)):
        yield tuple(a for n, a in enumerate(items) if mask >> n & 1)


def _kernel(name: str, outputs: Sequence[Output], given: Mapping[Axis, Role]) -> Kernel:
    roots = tuple(_values(outputs))
    used = {a for v in reachable(roots) for a in (v.axes | ({v.axis} if v.is_reduction else set()))}
    used |= {a for o in outputs for a in o.axes}
    kept = tuple((a, r) for a, r in given.items() if a in used)
    return Kernel(name, kept, Scheduler(given).run(outputs))


def _split(
    outputs: Sequence[Output], given: Mapping[Axis, Role], values: Values, name: str, suffix: str
) -> Family | None:
    """The two stages, or None where the split axis is not one pass that everything else follows."""
    axis, role = next((a, r) for a, r in given.items() if isinstance(r, Split))
    scheduler = Scheduler(given)
    roots = tuple(o.value for o in outputs)
    shared = [v for v in reachable(roots) if v.is_reduction and v.axis == axis]
    below = {v.number for s in shared for v in reachable((s,))}
    for v in reachable(roots):
        if v.is_reduction and scheduler.is_loop(v.axis) and v.number not in below:
            return None
    if any(scheduler.level(v, ()) != 1 or scheduler.home(v) for v in shared):
        return None
    if any(v.op == "first" for v in shared):
        return None  # a part's place counts where its extreme is that of all, which is another pass over the parts
    if any(scheduler.is_loop(a) and a != axis for o in outputs for a in o.axes):
        return None
    # What is stored along the axis is stored as the parts go, and needs none of what they find.
    along = [o for o in outputs if axis in o.axes]
    outputs = [o for o in outputs if axis not in o.axes]
    if not outputs or any(v in shared for v in reachable(tuple(o.value for o in along))):
        return None
    part = part_axis(axis, role.parts)
    free = [a for a in given if any(a in o.axes for o in outputs)]
    buffers: list[Tensor] = []
    # Of a sum or maximum what it is of each part; of a statistic the moments.
    partial: dict[int, list[Output]] = {}
    for v in shared:
        partial[v.number] = []
        for moment in Moment if isinstance(v.kind, Statistic) else (None,):
            axes = (part, *(a for a in given if a in v.axes and moment is not Moment.COUNT))
            buffers.append(Tensor(f"{name}_part{len(buffers)}", tuple(a.extent for a in axes), DType.FLOAT32))
            partial[v.number].append(Output(buffers[-1].name, tuple(Index.axis(a) for a in axes), v, moment))
    first = [*along, *(o for found in partial.values() for o in found)]

    memo: dict[int, KernelValue] = {}

    def read(v: KernelValue) -> list[KernelValue]:
        """What the parts left of the value."""
        return [values.read(o.tensor, o.index) for o in partial[v.number]]

    def combined(v: KernelValue) -> KernelValue:
        """The value, with each reduction over the split axis written as one over its parts."""
        known = memo.get(v.number)
        if known is not None:
            return known
        if v.number in partial:
            stored, *moments = read(v)
            if v.op == "rescaled" and v.args[-1].number in partial:
                (old,) = read(v.args[-1])
                minus = values.make("mul", (values.const(-1.0), combined(v.args[-1])))
                factor = values.make("exp", (values.make("add", (old, minus)),))
                stored = values.make("mul", (factor, stored))
            assert v.kind is not None
            new = values.merge(part, stored, *moments) if moments else values.reduce(v.kind, part, stored)
        elif v.args:
            new = values.make(v.op, tuple(combined(a) for a in v.args), v.payload, None, v.kind)
        else:
            new = v
        memo[v.number] = new
        return new

    second = [Output(o.tensor, o.index, combined(o.value)) for o in outputs]
    # Whatever the epilogue reduces keeps its role; the output axes get tiles of their own.
    kept = {a: r for a, r in given.items() if a in reduced_axes([o.value for o in second]) and a != axis}
    grid: dict[Axis, Role] = {}
    for a in free:
        match given[a]:
            case Grid(tile) if tile == 1 and a in batch_axes([o.value for o in second]):
                grid[a] = Grid(1)
            case other if isinstance(other, Grid) or (along and a not in kept):
                grid[a] = Grid(sympy.Symbol(f"T_{a.name}{suffix}c", integer=True, positive=True))
            case other:
                grid[a] = other
    stage_one = _kernel(name, first, given)
    stage_two = _kernel(f"{name}_combine", second, {**grid, **kept, part: Whole()})
    return Family((stage_one, stage_two), tuple(buffers))
