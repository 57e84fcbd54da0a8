"""From the sGraphs of regions to one sGraph of the whole program.

The kernels of the regions run one region after the other; what one region writes and another reads becomes a buffer.
Regions are searched without names, so every name is given here: tensors get those of the whole program, kernels and
symbols are set apart region by region, and so are the axes over a split's parts, which are called after its symbol.
Axes keep their names: they mean something in one kernel only.

Composing adds nothing that would have to be proved: the whole is the regions' formulas read one after the other, and
`compose` checks that each tensor is handed over with the shape and data type that the reader declares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import sympy

from prism.errors import IllegalIRError
from prism.ir.kit import Holds, mapped
from prism.program.extents import Extent, normal
from prism.program.index import Axis, Index
from prism.program.nodes import Tensor
from prism.sgraph.nodes import (
    Grid,
    Kernel,
    Launch,
    LoopRole,
    Role,
    SGraph,
    Split,
    Stmt,
    part_axis,
)


@dataclass(frozen=True, slots=True)
class Part:
    """One region's sGraph and its place in the whole.

    Attributes:
        sgraph: the region's sGraph.
        tensors: the whole's name for each input and output of the region.
    """

    sgraph: SGraph
    tensors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Names:
    """What a region's names became.

    Attributes:
        tensors: inputs, outputs and buffers.
        launches: launches, by `SGraph.launches`' names.
        symbols: the unbound symbols, by name.
    """

    tensors: Mapping[str, str]
    launches: Mapping[str, str]
    symbols: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Composed:
    """The whole, and what each part's names became in it, in the order of the parts."""

    sgraph: SGraph
    names: tuple[Names, ...]


def compose(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parts: Sequence[Part]) -> Composed:
    """One sGraph that runs the parts in order.

    Args:
        name: the whole program's name.
        inputs: its inputs, in order.
        outputs: its outputs, in order.
        parts: each reads inputs and what earlier parts write.

    Raises:
        IllegalIRError: a part reads what nothing earlier writes or what has another shape or data type, or an output
            is never written.
    """
    known = {t.name: t for t in inputs}
    final = {t.name: t for t in outputs}
    reserved = {*known, *final, *(n for p in parts for n in p.tensors.values())}
    buffers: list[Tensor] = []
    kernels: list[Kernel] = []
    together: list[tuple[str, ...]] = []
    renamings: list[_Renaming] = []
    for place, part in enumerate(parts):
        where = f"{name}, region {place}"
        for t in part.sgraph.inputs:
            outer = known.get(part.tensors[t.name])
            if outer is None or outer.shape != t.shape or outer.dtype != t.dtype:
                held = f"it is {outer.dtype.value}{list(outer.shape)}" if outer else "nothing before writes it"
                raise IllegalIRError(
                    f"reads {part.tensors[t.name]} as {t.dtype.value}{list(t.shape)}", where=where, why=held
                )
        renaming = _Renaming(part, place, name, reserved)
        for t in part.sgraph.outputs:
            made = renaming.tensor(t)
            if made.name in known:
                raise IllegalIRError(f"writes {made.name}, which is there already", where=where)
            if made.name in final and final[made.name] != made:
                raise IllegalIRError(f"writes {made.name}, an output, with another shape or data type", where=where)
            known[made.name] = made
            if made.name not in final:
                buffers.append(made)
        buffers += [renaming.tensor(t) for t in part.sgraph.buffers]
        kernels += [renaming.kernel(k) for k in part.sgraph.kernels]
        together += [tuple(renaming.kernels[k] for k in group) for group in part.sgraph.together]
        renamings.append(renaming)
    missing = [t.name for t in outputs if t.name not in known]
    if missing:
        raise IllegalIRError(f"output {missing[0]} is never written", where=name)
    whole = SGraph(name, tuple(inputs), tuple(buffers), tuple(outputs), tuple(kernels), tuple(together))
    launches = iter(whole.launches)
    return Composed(whole, tuple(r.names(launches) for r in renamings))


@dataclass(slots=True)
class _Renaming:
    """The new names of one part. `taken` are tensor names of the whole, to which the part's buffers are added."""

    part: Part
    place: int
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
            new, n = f"{prefix}_{b.name.removeprefix(f'{sgraph.name}_')}", 1
            while new in self.taken:
                n += 1
                new = f"{prefix}_{b.name}_{n}"
            self.taken.add(new)
            self.tensors[b.name] = new
        for s in sgraph.symbols:
            self.symbols[s] = sympy.Symbol(f"{s.name}_{self.place}", integer=True, positive=True)
        for k in sgraph.kernels:
            for axis, role in k.roles:
                if isinstance(role, Split):
                    parts = self.symbols[role.parts]
                    self.axes[part_axis(axis, role.parts)] = part_axis(axis, parts)

    def names(self, launches: Iterator[Launch]) -> Names:
        """What the names became; `launches` gives the whole's, from the part's first on."""
        renamed = {a.name: next(launches).name for a in self.part.sgraph.launches}
        return Names(self.tensors, renamed, {a.name: b.name for a, b in self.symbols.items()})

    def tensor(self, t: Tensor) -> Tensor:
        return Tensor(self.tensors[t.name], tuple(map(self._extent, t.shape)), t.dtype, t.stated)

    def kernel(self, k: Kernel) -> Kernel:
        roles = tuple((self.axes.get(a, a), self._role(r)) for a, r in k.roles)
        return Kernel(self.kernels[k.name], roles, tuple(map(self._statement, k.body)))

    def _extent(self, e: Extent) -> Extent:
        return e if isinstance(e, int) else normal(e.xreplace(self.symbols))

    def _role(self, role: Role) -> Role:
        match role:
            case Grid(sympy.Symbol() as tile):
                return Grid(self.symbols[tile])
            case LoopRole(sympy.Symbol() as tile):
                return LoopRole(self.symbols[tile])
            case Split(parts, tile):
                return Split(self.symbols[parts], self.symbols[tile])
            case _:
                return role

    def _index(self, index: Index) -> Index:
        if not any(a in self.axes for a in index.axes()):
            return index
        return index.substitute({a: Index.axis(b) for a, b in self.axes.items()})

    def _axis(self, axis: Axis) -> Axis:
        return self.axes.get(axis, axis)

    def _statement(self, s: Stmt) -> Stmt:
        return mapped(
            s,
            {
                Holds.TENSOR: self.tensors.__getitem__,
                Holds.AXIS: self._axis,
                Holds.INDEX: self._index,
                Holds.BODY: self._statement,
            },
        )
