"""States that stay on chip: all steps of a loop in one launch, whose programs keep their parts of the states.

The steps of a `Repeat` are launches because a step may read what any program of the step before stored. Where its one
kernel loads of each state exactly the tile that the same program has stored in its place, no program waits for another,
whatever the sizes: `obstacle` says whether that is so, and why not. Then a program may go through all steps by itself
(`Repeat.resident`). `in_one_launch` is what it does so:

    x = first[i, j]
    before[i, j] = x                # before names a tile on chip
    for tiles of step:
      y = before[i, j]
      ...                           # the step's statements; its slices and outputs at the step's place
      before[i, j] = z
    x = before[i, j]
    after_steps[last, i, j] = x     # where nothing reads the state after other steps; else after each

Where one kernel makes `first` for this loop alone, over the same tiles, programs make their own parts of it before the
first step; and where all that is read of the state after steps is copied, the copy is stored in its place. These
kernels are then no launches (`launched`).

It is what is counted and lowered. What is proved is the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy

from prism.ir import kit
from prism.ir.kit import Holds
from prism.program.extents import Extent, add
from prism.program.index import Axis, Index
from prism.program.nodes import Tensor
from prism.sgraph import nodes as sg

_PURE = (sg.Load, sg.Gather, sg.Position, sg.Pointwise, sg.TileReduce, sg.Contract)
"""What computes the same wherever it stands."""


@dataclass(frozen=True, slots=True)
class _State:
    """A state of a loop's step: its windows before and after the step, and where the kernel loads and stores it."""

    before: str
    after: str
    of: str
    first: str
    place: int | None
    index: tuple[Index, ...]
    stored: sg.Store


def obstacle(kernels: Sequence[sg.Kernel], repeat: sg.Repeat) -> str:
    """Why programs cannot keep their parts of the states over all steps; nothing where they can.

    The kernels are those of the step.
    """
    if len(kernels) != 1:
        return f"a step is {len(kernels)} kernels, of which programs of one may read what others of another store"
    (kernel,) = kernels
    found = _states(kernel, repeat)
    return found if isinstance(found, str) else ""


def _states(kernel: sg.Kernel, repeat: sg.Repeat) -> list[_State] | str:
    """The states, or why programs cannot keep them.

    A state is loaded and stored at one index, whole axes of the grid or of tiles one by one: so the elements that a
    program loads are those that it has stored itself, at every size.
    """
    windows = {w.tensor.name: w for w in repeat.windows}
    after = {w.of: w.tensor.name for w in repeat.windows if w.first is None}
    befores = [w for w in repeat.windows if w.first is not None]
    if not befores:
        return "nothing is carried"
    for s in kernel.statements():
        if isinstance(s, sg.Gather) and s.tensor in windows:
            return f"{s.dst} looks up places of {s.tensor}"
        if isinstance(s, sg.Store) and s.places:
            return f"{s.tensor} is added to at places"
        if isinstance(s, sg.Store) and s.tensor not in windows:
            return f"{s.tensor} is stored, which is no output of the step"
    if any(isinstance(role, sg.Split) for _, role in kernel.roles):
        return "programs share an axis"
    found: list[_State] = []
    for w in befores:
        before, stored_as = w.tensor.name, after.get(w.of, "")
        assert w.first is not None
        loads = [s for s in kernel.statements() if isinstance(s, sg.Load) and s.tensor == before]
        stores = [s for s in kernel.statements() if isinstance(s, sg.Store) and s.tensor == stored_as]
        if not w.tensor.dtype.is_float or len(stores) != 1 or not isinstance(stores[0].src, str):
            return f"{stored_as} is not one tile of numbers"
        (store,) = stores
        if store.moment is not None or any(s not in kernel.body for s in (*loads, store)):
            return f"{before} is loaded or stored within a loop"
        if not _is_tile(kernel, store.index, w.tensor):
            return f"{stored_as} is stored at {_listed(store.index)}, which is not each axis by itself"
        for s in loads:
            if s.index != store.index:
                where = f"{before} is loaded at {_listed(s.index)} and stored at {_listed(store.index)}"
                return f"{where}, so programs read what others stored"
        found.append(_State(before, stored_as, w.of, w.first, w.place, store.index, store))
    return found


def _is_tile(kernel: sg.Kernel, index: Sequence[Index], tensor: Tensor) -> bool:
    """Whether it is a tile along axes of the grid and whole ones, each a dimension's own."""
    axes: list[Axis] = []
    for i, extent in zip(index, tensor.shape, strict=True):
        if extent == 1 and i == Index.const(0):
            continue
        axis = next(iter(i.axes()), None)
        if axis is None or i != Index.axis(axis) or axis.extent != extent:
            return False
        axes.append(axis)
    return len(set(axes)) == len(axes) and all(isinstance(kernel.role(a), sg.Grid | sg.Whole) for a in axes)


def in_one_launch(sgraph: sg.SGraph) -> sg.SGraph:
    """The sGraph with the kernels of steps that are one launch as they go through all steps.

    Their loads and stores of a state before a step are of a tile on chip (`SGraph.kept`). It has no denotation.
    """
    resident = {r.kernels[0]: r for r in sgraph.repeats if r.resident}
    through: dict[str, sg.Kernel] = {}
    within: set[str] = set()
    for k in sgraph.kernels:
        if k.name in resident and sgraph.kept.isdisjoint(k.writes):  # of one that goes through steps nothing is left
            through[k.name], also = _through_steps(k, resident[k.name], sgraph)
            within |= also
    if not through:
        return sgraph
    kernels = tuple(through.get(k.name, k) for k in sgraph.kernels if k.name not in within)
    windows = {w.tensor.name: w.of for r in sgraph.repeats if not r.resident for w in r.windows}
    stored = {t for k in kernels for t in k.writes}
    stored |= {windows[t] for t in stored & windows.keys()}
    return replace(sgraph, kernels=kernels, buffers=tuple(b for b in sgraph.buffers if b.name in stored))


def launched(sgraph: sg.SGraph) -> tuple[sg.Launch, ...]:
    """The launches that there are, without what a launch of all steps does as well."""
    left = {k.name for k in in_one_launch(sgraph).kernels}
    return tuple(x for x in sgraph.launches if x.kernels[0].name in left)


def _through_steps(kernel: sg.Kernel, repeat: sg.Repeat, sgraph: sg.SGraph) -> tuple[sg.Kernel, set[str]]:
    """The kernel as it goes through all steps, and the other kernels that it does the work of."""
    states = _states(kernel, repeat)
    assert not isinstance(states, str), states
    within: set[str] = set()
    begin: list[sg.Stmt] = []
    roles = kernel.roles
    for state in states:
        made = _first(sgraph, kernel, state)
        if made is not None and made[0].name not in within:
            first, axes = made
            joined = _joined(replace(kernel, roles=roles, body=(*kernel.body, *begin)), first, axes, apart=True)
            roles = joined.roles
            begin += joined.body[len(kernel.body) + len(begin) :]
            within.add(first.name)
    starts = {s.tensor: s.src for s in begin if isinstance(s, sg.Store)}
    begin = [s for s in begin if not isinstance(s, sg.Store)]
    kernel = replace(kernel, roles=roles)
    taken = {d for s in (*begin, *kernel.statements()) if (d := kit.defined(s)) is not None}
    axis = Axis(kit.free_name("step", {a.name for a, _ in kernel.roles}), repeat.trips)
    step = Index.axis(axis)
    last: Extent = 0 if repeat.reverse else add(repeat.trips, -1)
    at = step.scaled(-1) + Index.const(add(repeat.trips, -1)) if repeat.reverse else step
    end: list[sg.Stmt] = []
    following: list[sg.Stmt] = []
    stays: set[str] = set()
    for state in states:
        start = starts.get(state.first)
        if start is None:
            start = kit.free_name(f"{state.before}_start", taken)
            place = () if state.place is None else (Index.const(state.place),)
            begin.append(sg.Load(start, state.first, (*place, *state.index)))
        begin.append(sg.Store(state.before, state.index, start))
        end.append(sg.Store(state.before, state.index, state.stored.src))
        if _needed_at(sgraph, repeat, state.of) <= {last}:
            stays.add(state.after)
    for state in {s.of: s for s in states if s.after in stays}.values():
        if _needed_at(sgraph, repeat, state.of):
            value = kit.free_name(f"{state.after}_end", taken)
            following.append(sg.Load(value, state.before, state.index))
            copy = _copy(sgraph, state, last, value)
            if copy is None:
                following.append(sg.Store(state.of, (Index.const(last), *state.index), value))
            else:
                within.add(copy[0])
                following.append(copy[1])
    slices = {w.tensor.name: w.of for w in repeat.windows if w.first is None}

    def outer(s: sg.Stmt) -> sg.Stmt | Sequence[sg.Stmt]:
        if isinstance(s, sg.Store) and s.tensor in stays:
            return ()
        if isinstance(s, sg.Load | sg.Store) and s.tensor in slices:
            return replace(s, tensor=slices[s.tensor], index=(at, *s.index))
        return s

    body = sg.Loop(axis, (*kit.rewrite(kernel.body, outer), *end))
    return replace(kernel, roles=(*kernel.roles, (axis, sg.LoopRole(1))), body=(*begin, body, *following)), within


def _first(sgraph: sg.SGraph, kernel: sg.Kernel, state: _State) -> tuple[sg.Kernel, dict[Axis, Axis]] | None:
    """The kernel that makes a state for the first step, which programs may do for themselves, and its axes there.

    It stores that alone, place by place of the grid, for nobody else, and has no loops, no products, and no more
    programs than the steps have.
    """
    makers = [k for k in sgraph.kernels if state.first in k.writes]
    if len(makers) != 1 or state.place is not None or not _is_between(sgraph, state.first, makers[0]):
        return None
    (made,) = makers
    windows = [w for r in sgraph.repeats for w in r.windows if state.first in (w.of, w.first)]
    *computed, store = made.body
    if any(state.first in k.reads for k in sgraph.kernels) or any(w.tensor.name != state.before for w in windows):
        return None
    if any(not isinstance(s, _PURE) or isinstance(s, sg.Contract) for s in computed):
        return None
    if not isinstance(store, sg.Store) or not isinstance(store.src, str) or store.places or store.moment is not None:
        return None
    axes: dict[Axis, Axis] = {}
    for own, here in zip(store.index, state.index, strict=True):
        a, b = own.as_axis(), here.as_axis()
        if a is None or b is None:
            if own != here:
                return None
            continue
        match made.role(a), kernel.role(b):
            case (sg.Whole(), sg.Whole()) | (sg.Grid(sympy.Symbol()), sg.Grid() | sg.Whole()):
                axes[a] = b
            case _:
                return None
    grid = {a for a, role in kernel.roles if isinstance(role, sg.Grid)}
    if not grid <= set(axes.values()) or any(a not in axes and role != sg.Whole() for a, role in made.roles):
        return None
    taken = {a.name for a, _ in kernel.roles}
    rest = [a for a, _ in made.roles if a not in axes]
    return made, axes | {a: Axis(kit.free_name(a.name, taken), a.extent) for a in rest}


def _copy(sgraph: sg.SGraph, state: _State, last: Extent, value: str) -> tuple[str, sg.Store] | None:
    """The kernel that copies a state after the last step and does nothing else, and the store of a value in its place.

    Nothing but it reads the state after steps.
    """
    readers = [k for k in sgraph.kernels if state.of in k.reads]
    if len(readers) != 1 or not _is_between(sgraph, state.of, readers[0]):
        return None
    match readers[0].body:
        case (sg.Load(read, of, (first, *index)), sg.Store(copy, to, src, None, ())) if src == read and of == state.of:
            pass
        case _:
            return None
    places: dict[Axis, Index] = {}
    for own, here in zip(index, state.index, strict=True):
        a, b = own.as_axis(), here.as_axis()
        if a is None or b is None:
            if own != here:
                return None
        elif a in places or a.extent != b.extent:
            return None
        else:
            places[a] = here
    if first != Index.const(last) or any(not i.axes() <= places.keys() for i in to):
        return None
    if sgraph.tensor(copy).dtype != sgraph.tensor(of).dtype:
        return None
    return readers[0].name, sg.Store(copy, tuple(i.substitute(places) for i in to), value)


def _is_between(sgraph: sg.SGraph, tensor: str, kernel: sg.Kernel) -> bool:
    """Whether a kernel, which runs once a call and by itself, makes or reads what is handed over."""
    together = {name for group in sgraph.together for name in group}
    steps = {name for r in sgraph.repeats for name in r.kernels}
    return tensor in sgraph.handed_over and kernel.name not in together | steps | sgraph.prepared


def _needed_at(sgraph: sg.SGraph, repeat: sg.Repeat, of: str) -> frozenset[Extent | None]:
    """The steps' places of a tensor that anything else reads; None among them where that is not so plain."""
    if all(t.name != of for t in sgraph.buffers):
        return frozenset({None})
    found: set[Extent | None] = set()
    for k in sgraph.kernels:
        for s in k.statements() if k.name not in repeat.kernels else ():
            if isinstance(s, sg.Load) and s.tensor == of and not s.index[0].terms:
                found.add(s.index[0].offset)
            elif isinstance(s, sg.Load | sg.Gather) and s.tensor == of:
                found.add(None)
    for w in (w for r in sgraph.repeats if r is not repeat for w in r.windows):
        if of in (w.of, w.first):
            found.add(w.place if w.of != of else None)
    return frozenset(found)


# One kernel of several.


def as_one(
    kernels: Sequence[sg.Kernel], repeat: sg.Repeat
) -> tuple[sg.Kernel, dict[sympy.Symbol, sympy.Symbol]] | None:
    """Kernels of a step as one, whose programs do what a program of each does, if all have the same grid.

    None of the kernels reads what another stores.

    Returns:
        the kernel, with the axes and tiles of the first that stores a state, and by tile of another's grid the one that
        it is now; None where grids differ.
    """
    carried = {w.of for w in repeat.windows if w.first is not None}
    states = {w.tensor.name for w in repeat.windows if w.of in carried}
    made = next((k for k in kernels if not states.isdisjoint(k.writes)), None)
    if made is None or any(isinstance(role, sg.Split) for k in kernels for _, role in k.roles):
        return None
    tiles: dict[sympy.Symbol, sympy.Symbol] = {}
    for k in [k for k in kernels if k is not made]:
        axes = _along(k, made, states)
        if axes is None:
            return None
        for a, role in k.roles:
            match role, made.role(axes[a]) if isinstance(role, sg.Grid) else None:
                case sg.Grid(sympy.Symbol() as mine), sg.Grid(sympy.Symbol() as theirs):
                    tiles[mine] = theirs
        made = _joined(made, k, axes)
    return made, tiles


def _along(kernel: sg.Kernel, to: sg.Kernel, states: set[str]) -> dict[Axis, Axis] | None:
    """For each axis of a kernel the one of another that it is, or a new one; None where the grids differ."""
    there = [s for s in to.statements() if isinstance(s, sg.Load)]
    found: dict[Axis, Axis] = {}

    def pair(a: Axis, b: Axis) -> None:
        match kernel.role(a), to.role(b):
            case (
                (sg.Whole(), sg.Whole())
                | (sg.Grid(int()), sg.Grid(int()))
                | (sg.Grid(sympy.Symbol()), sg.Grid(sympy.Symbol()))
            ):
                if a.extent == b.extent and a not in found and b not in found.values():
                    found[a] = b

    # Along what both load, states first, they go the same way.
    for s in sorted((s for s in kernel.statements() if isinstance(s, sg.Load)), key=lambda s: s.tensor not in states):
        for other in (o for o in there if o.tensor == s.tensor):
            for i, j in zip(s.index, other.index, strict=True):
                if len(i.axes()) == len(j.axes()) == 1:
                    pair(*i.axes(), *j.axes())
    for a, _ in kernel.roles:
        for b, _ in to.roles:
            pair(a, b)
    mine, theirs = ({a for a, role in k.roles if isinstance(role, sg.Grid)} for k in (kernel, to))
    if not mine <= found.keys() or {found[a] for a in mine} != theirs:
        return None
    taken = {a.name for a, _ in to.roles}
    return {a: found[a] if a in found else Axis(kit.free_name(a.name, taken), a.extent) for a, _ in kernel.roles}


def _joined(made: sg.Kernel, other: sg.Kernel, axes: Mapping[Axis, Axis], *, apart: bool = False) -> sg.Kernel:
    """Both bodies one after the other, the second over other axes; once what both compute, unless `apart`."""
    indices = {a: Index.axis(b) for a, b in axes.items()}
    along: Mapping[Holds, Callable[[Any], Any]] = {
        Holds.AXIS: axes.__getitem__,
        Holds.INDEX: lambda i: i.substitute(indices),
    }
    theirs = {d for s in made.statements() if (d := kit.defined(s)) is not None}
    own = {d for s in other.statements() if (d := kit.defined(s)) is not None}
    taken = theirs | own
    names = {d: kit.free_name(d, taken) if d in theirs else d for d in sorted(own)}
    there = {replace(s, dst=""): s.dst for s in made.body if isinstance(s, _PURE) and not apart}
    new: list[sg.Stmt] = []
    for s in other.body:
        renamed = kit.with_names(s, names, Holds.DEFINES, Holds.CHANGES, Holds.USES, also=along)
        same = there.get(replace(renamed, dst="")) if isinstance(renamed, _PURE) else None
        if same is None:
            new.append(renamed)
        else:
            names[str(kit.defined(s))] = same
    roles = tuple((axes[a], role) for a, role in other.roles if axes[a] not in dict(made.roles))
    return replace(made, roles=(*made.roles, *roles), body=(*made.body, *new))


def _listed(index: Sequence[Index]) -> str:
    return f"[{', '.join(map(str, index))}]"
