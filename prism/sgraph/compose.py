"""From the sGraphs of regions to one sGraph of the whole program.

The kernels of the regions run one region after the other; what one region writes and another reads becomes a buffer.
Regions are searched without names, so every name is given here: tensors get those of the whole program, kernels and
symbols are set apart region by region, and so are the axes over a split's parts, which are called after its symbol.
Axes keep their names: they mean something in one kernel only.

The parts of a loop's step run once for each step. What a step is given of the state and of its slices, and what it
makes, are windows into tensors around the loop: each output of a step is stored for all steps, and a state is read
where the step before stored it. That these are what the loop says is looked at here, too.

Composing adds nothing that would have to be proved: the whole is the regions' formulas read one after the other, and
`compose` checks that each tensor is handed over with the shape and data type that the reader declares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType

import sympy

from prism.errors import IllegalIRError
from prism.ir.kit import Holds, free_name, mapped
from prism.program.extents import Extent, normal
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Tensor
from prism.program.nodes import Loop as ProgramLoop
from prism.sgraph import nodes as sg
from prism.sgraph.resident import as_one, obstacle


@dataclass(frozen=True, slots=True)
class Part:
    """One region's sGraph and its place in the whole."""

    sgraph: sg.SGraph  # the region's sGraph
    tensors: Mapping[str, str]  # the whole's name for each input and output of the region
    loop: ProgramLoop | None = None  # of whose step the region is a part; parts of one loop follow one another
    waits: bool = False  # whether steps are launches even where they need not wait for each other
    # Parts of one kind, which have equal sGraphs, have their symbols in common; empty where there is no other.
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Names:
    """What a region's names became."""

    tensors: Mapping[str, str]  # inputs, outputs and buffers
    launches: Mapping[str, str]  # launches, by `SGraph.launches`' names
    symbols: Mapping[str, str]  # the unbound symbols, by name


@dataclass(frozen=True, slots=True)
class Composed:
    """The whole, and what each part's names became in it, in the order of the parts."""

    sgraph: sg.SGraph
    names: tuple[Names, ...]


def compose(
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    parts: Sequence[Part],
    stacks: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> Composed:
    """One sGraph that runs the parts in order.

    A part reads inputs and what earlier parts write. `stacks` are by a loop's name and an output of its step what that
    is called of all steps, where it has a name.

    Raises:
        IllegalIRError: a part reads what nothing earlier writes or what has another shape or data type, or an output
            is never written.
    """
    final = {t.name: t for t in outputs}
    reserved = {*(t.name for t in inputs), *final, *stacks.values(), *(n for p in parts for n in p.tensors.values())}
    buffers: list[Tensor] = []
    whole = _Scope({t.name: t for t in inputs}, final, buffers)
    kernels: list[sg.Kernel] = []
    together: list[tuple[str, ...]] = []
    repeats: list[sg.Repeat] = []
    renamings: list[_Renaming] = []
    first: dict[str, int] = {}
    for loop, group in groupby(enumerate(parts), lambda p: p[1].loop):
        begin, scope = len(kernels), whole
        if loop is not None:
            windows = _windows(loop, whole, stacks, reserved, f"{name}, loop {loop.name}")
            steps = {w.tensor.name: w.tensor for w in windows}
            stored = {n: steps.pop(n) for n in loop.body.outputs}
            scope = _Scope({**whole.known, **steps}, stored, buffers)
        for place, part in group:
            where = f"{name}, region {place}"
            # A step's tiles may yet become another's.
            alike = first.setdefault(part.kind, place) if part.kind and loop is None else place
            renaming = _Renaming(part, place, alike, name, reserved)
            scope.add(part, renaming, where)
            kernels += [renaming.kernel(k) for k in part.sgraph.kernels]
            together += [tuple(renaming.kernels[k] for k in group) for group in part.sgraph.together]
            renamings.append(renaming)
        if loop is not None:
            scope.complete(name)
            repeat = sg.Repeat(tuple(k.name for k in kernels[begin:]), loop.trips, windows, loop.reverse)
            one = None if part.waits else _on_chip(repeat, kernels, begin, together, renamings)
            repeats.append(one or repeat)
    whole.complete(name)
    sgraph = sg.SGraph(
        name, tuple(inputs), tuple(buffers), tuple(outputs), tuple(kernels), tuple(together), tuple(repeats)
    )
    launches = iter(sgraph.launches)
    return Composed(sgraph, tuple(r.names(launches) for r in renamings))


@dataclass(frozen=True, slots=True)
class _Scope:
    """What parts may read, and where what they write is: around loops, or in a step."""

    known: dict[str, Tensor]  # what is there, by name
    final: Mapping[str, Tensor]  # what has a place of its own
    buffers: list[Tensor]  # everything else that parts write

    def add(self, part: Part, renaming: _Renaming, where: str) -> None:
        """Check what the part reads, and take what it writes."""
        for t in part.sgraph.inputs:
            self.read(part.tensors[t.name], t.shape, t.dtype, where)
        for t in part.sgraph.outputs:
            made = renaming.tensor(t)
            if made.name in self.known:
                raise IllegalIRError(f"writes {made.name}, which is there already", where=where)
            self.write(made, where)
        self.buffers.extend(renaming.tensor(t) for t in part.sgraph.buffers)

    def read(self, name: str, shape: tuple[Extent, ...], dtype: DType, where: str) -> None:
        """Check that a tensor is there as its reader declares it."""
        outer = self.known.get(name)
        if outer is None or outer.shape != shape or outer.dtype != dtype:
            held = f"it is {outer.dtype.value}{list(outer.shape)}" if outer else "nothing before writes it"
            raise IllegalIRError(f"reads {name} as {dtype.value}{list(shape)}", where=where, why=held)

    def write(self, made: Tensor, where: str) -> None:
        """Take a tensor that is written."""
        if made.name in self.final and self.final[made.name] != made:
            raise IllegalIRError(f"writes {made.name}, an output, with another shape or data type", where=where)
        self.known[made.name] = made
        if made.name not in self.final:
            self.buffers.append(made)

    def complete(self, where: str) -> None:
        """Check that what has a place of its own is written."""
        for name in self.final:
            if name not in self.known:
                raise IllegalIRError(f"output {name} is never written", where=where)


def _windows(
    loop: ProgramLoop, whole: _Scope, stacks: Mapping[tuple[str, str], str], reserved: set[str], where: str
) -> tuple[sg.Window, ...]:
    """The windows of a loop's step: its slices, states before it, and outputs, which are stored for all steps."""
    body, found, held = loop.body, [], {}
    for inner, outer in loop.slices:
        t = body.tensor(inner)
        whole.read(outer, (loop.trips, *t.shape), t.dtype, where)
        found.append(sg.Window(t, outer))
    for name in body.outputs:
        t = body.tensor(name)
        of = stacks.get((loop.name, name)) or free_name(f"{name}_steps", reserved)
        held[name] = of
        found.append(sg.Window(t, of))
    for s in loop.states:
        t, first = body.tensor(s.before), whole.known.get(s.first)
        if first is None or (first.shape if s.place is None else first.shape[1:]) != t.shape or first.dtype != t.dtype:
            raise IllegalIRError(
                f"{s.before} is at first {s.origin}, which is not there or has another shape", where=where
            )
        found.append(sg.Window(t, held[s.after], s.first, s.place))
    for name, of in held.items():
        t = body.tensor(name)
        whole.write(Tensor(of, (loop.trips, *t.shape), t.dtype), where)
    return tuple(found)


def _on_chip(
    repeat: sg.Repeat, kernels: list[sg.Kernel], begin: int, together: list[tuple[str, ...]], parts: Sequence[_Renaming]
) -> sg.Repeat | None:
    """The steps as one launch whose programs keep their parts of the states; None where they have to wait for others.

    Kernels of a step that are launched together, over one grid, are then one kernel. The step's kernels are those from
    `begin` on; `together` are the groups so far, `parts` what the parts so far are called.
    """
    own = kernels[begin:]
    tiles: Mapping[sympy.Symbol, sympy.Symbol] = {}
    if len(own) > 1:
        made = as_one(own, repeat) if together[-1:] == [repeat.kernels] else None
        if made is None:
            return None
        (launch,) = sg.SGraph("", (), (), (), tuple(own), (repeat.kernels,)).launches
        one, tiles = replace(made[0], name=launch.name), made[1]
        own = [one]
    repeat = replace(repeat, kernels=tuple(k.name for k in own), resident=True)
    if obstacle(own, repeat):
        return None
    if tiles:
        together.pop()
    kernels[begin:] = own
    for p in parts:
        p.symbols |= {old: tiles[new] for old, new in p.symbols.items() if new in tiles}
    return repeat


def steps_differ(repeats: Sequence[sg.Repeat], loops: Sequence[ProgramLoop]) -> str:
    """How the steps of an sGraph are not those of a program's loops: in one clause, or nothing.

    What their kernels compute is not looked at.
    """
    of_output = {name: loop for loop in loops for name in loop.body.outputs}
    for r in repeats:
        stored = {w.tensor.name: w for w in r.windows if w.first is None and w.tensor.name in of_output}
        loop = of_output[next(iter(stored))] if stored else None
        if loop is None or set(stored) != set(loop.body.outputs):
            return f"the steps of {', '.join(r.kernels)} are those of no loop"
        if (r.trips, r.reverse) != (loop.trips, loop.reverse):
            return f"loop {loop.name} has other steps"
        wanted: set[tuple[str, str, str | None, int | None]]
        wanted = {(inner, outer, None, None) for inner, outer in loop.slices}
        wanted |= {(s.before, stored[s.after].of, s.first, s.place) for s in loop.states}
        found = {(w.tensor.name, w.of, w.first, w.place) for w in r.windows if w.tensor.name not in stored}
        if found != wanted:
            return f"what a step of loop {loop.name} is given is something else"
    return ""


@dataclass(slots=True)
class _Renaming:
    """The new names of one part.

    `alike` is the place of the first part with these symbols, and `taken` are tensor names of the whole, to which the
    part's buffers are added.
    """

    part: Part
    place: int
    alike: int
    whole: str
    taken: set[str]
    tensors: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    symbols: dict[sympy.Symbol, sympy.Symbol] = field(default_factory=dict)
    axes: dict[Axis, Axis] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sgraph = self.part.sgraph
        self.tensors = dict(self.part.tensors)
        prefix = f"{self.whole}_{self.place}"
        for k in sgraph.kernels:
            self.kernels[k.name] = f"{prefix}_{k.name.removeprefix(f'{sgraph.name}_')}"
        for b in sgraph.buffers:
            self.tensors[b.name] = free_name(f"{prefix}_{b.name.removeprefix(f'{sgraph.name}_')}", self.taken)
        for s in sgraph.symbols:
            self.symbols[s] = sympy.Symbol(f"{s.name}_{self.alike}", integer=True, positive=True)
        for k in sgraph.kernels:
            for axis, role in k.roles:
                if isinstance(role, sg.Split):
                    parts = self.symbols[role.parts]
                    self.axes[sg.part_axis(axis, role.parts)] = sg.part_axis(axis, parts)

    def names(self, launches: Iterator[sg.Launch]) -> Names:
        """What the names became; `launches` gives the whole's, from the part's first on."""
        renamed = {a.name: next(launches).name for a in self.part.sgraph.launches}
        return Names(self.tensors, renamed, {a.name: b.name for a, b in self.symbols.items()})

    def tensor(self, t: Tensor) -> Tensor:
        return Tensor(self.tensors[t.name], tuple(map(self._extent, t.shape)), t.dtype, t.stated)

    def kernel(self, k: sg.Kernel) -> sg.Kernel:
        roles = tuple((self.axes.get(a, a), self._role(r)) for a, r in k.roles)
        return sg.Kernel(self.kernels[k.name], roles, tuple(map(self._statement, k.body)), k.operands)

    def _extent(self, e: Extent) -> Extent:
        return e if isinstance(e, int) else normal(e.xreplace(self.symbols))

    def _role(self, role: sg.Role) -> sg.Role:
        match role:
            case sg.Grid(sympy.Symbol() as tile):
                return sg.Grid(self.symbols[tile])
            case sg.LoopRole(sympy.Symbol() as tile):
                return sg.LoopRole(self.symbols[tile])
            case sg.Split(parts, tile):
                return sg.Split(self.symbols[parts], self.symbols[tile] if isinstance(tile, sympy.Symbol) else tile)
            case _:
                return role

    def _index(self, index: Index) -> Index:
        if not any(a in self.axes for a in index.axes()):
            return index
        return index.substitute({a: Index.axis(b) for a, b in self.axes.items()})

    def _statement(self, s: sg.Stmt) -> sg.Stmt:
        return mapped(
            s,
            {
                Holds.TENSOR: self.tensors.__getitem__,
                Holds.AXIS: lambda a: self.axes.get(a, a),
                Holds.INDEX: self._index,
                Holds.BODY: self._statement,
            },
        )
