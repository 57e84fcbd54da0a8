"""Lowering: from sGraphs, which leave addresses, masks and element types to the reader, to tile programs.

lower_layout.py     the dimensions of tiles, their sizes and order; which contractions are matrix products
lower_types.py      element types of matrix products
quotients.py        which products with a reciprocal are divisions
lower_kernel.py     the statements, one by one
lower_extremes.py   one running maximum for those that are positive multiples of it
tile_rewrite.py     dead statements

What a backend may do to tile programs besides, tile program in, tile program out, each by itself:

fused_sums.py      sums that only meet in a sum as one
exponents.py        exponentials to the base 2, log2 e in the scale of their argument
guards.py           masks only where they do not hold for whole tiles, as a branch in the loop
sharing.py          the order of programs in the grid, hints for caches
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from prism.backends.lower_extremes import shared_extremes
from prism.backends.lower_index import Names
from prism.backends.lower_kernel import KernelLowering
from prism.backends.lower_layout import layout
from prism.backends.lower_types import analyse
from prism.backends.quotients import Quotients, quotients
from prism.backends.tile import (
    HELPERS,
    Constant,
    TileLaunch,
    TileModule,
    TileProgram,
    TileRepeat,
    identifier,
    integers,
    scalars,
)
from prism.backends.tile import Load as TileLoad
from prism.backends.tile import Store as TileStore
from prism.backends.tile_rewrite import clean
from prism.errors import UnsupportedError
from prism.ir.kit import statements
from prism.program.nodes import DType, Tensor
from prism.sgraph.nodes import Kernel, SGraph, Split
from prism.sgraph.products import Nominal, nominal_types
from prism.sgraph.resident import in_one_launch


def lower(sgraph: SGraph, *, defer: bool = True) -> TileModule:
    """The tile programs of an sGraph.

    `defer` is whether a loop may leave reductions to after it, and keep a tile for each: that saves exchanges between a
    GPU's threads.

    Raises:
        UnsupportedError: a tensor has an element type that tiles are not computed on.
    """
    sgraph = in_one_launch(sgraph)
    for t in (*sgraph.inputs, *sgraph.buffers, *sgraph.outputs):
        if t.dtype is DType.FLOAT64:
            raise UnsupportedError(
                f"tensor {t.name} is float64",
                where=f"lowering {sgraph.name}",
                why="tiles are computed in float32",
                fix="convert the model to float32, float16 or bfloat16",
            )
    nominal = nominal_types(sgraph)
    divisions = quotients(sgraph)
    whole = _whole(sgraph)
    launches = tuple(
        _launch(
            launch.name,
            tuple(_program(k, whole, nominal[k.name], divisions[k.name], defer) for k in launch.kernels),
            whole,
        )
        for launch in sgraph.launches
    )
    repeats = tuple(
        TileRepeat(
            tuple(x.name for x in sgraph.launches if x.kernels[0].name in r.kernels), r.trips, r.windows, r.reverse
        )
        for r in sgraph.repeats
        if not r.resident
    )
    return TileModule(
        sgraph.name,
        sgraph.inputs,
        sgraph.buffers,
        sgraph.outputs,
        launches,
        tuple(whole.symbols.values()),
        repeats=repeats,
        before=frozenset(x.name for x in sgraph.launches if x.kernels[0].name in sgraph.prepared),
    )


@dataclass(frozen=True, slots=True)
class _Whole:
    """What the kernels of an sGraph have in common."""

    tensors: Mapping[str, Tensor]  # by name, in the order of their declarations
    order: Mapping[str, int]  # their places in it
    symbols: Mapping[str, str]  # the sGraph's symbols by identifier
    lengths: frozenset[str]  # the names in the tensors' extents that are no symbols
    taken: frozenset[str]  # names that no kernel may give to something else
    on_chip: frozenset[str]  # what is no tensor in memory but a tile that programs keep


def _whole(sgraph: SGraph) -> _Whole:
    tensors = sgraph.tensors
    symbols = {identifier(s.name): s.name for s in sgraph.symbols}
    lengths = frozenset(n for t in tensors.values() for e in t.shape for n in scalars(e) if n not in symbols)
    taken = HELPERS | symbols.keys() | lengths | {identifier(t) + "_ptr" for t in tensors}
    return _Whole(tensors, {t: n for n, t in enumerate(tensors)}, symbols, lengths, frozenset(taken), sgraph.kept)


def _launch(name: str, programs: tuple[TileProgram, ...], whole: _Whole) -> TileLaunch:
    """What the programs of a launch take together, and what tells where the share of each ends."""
    if len(programs) == 1:
        (p,) = programs
        return TileLaunch(name, programs, p.tensors, p.lengths, p.constants)
    tensors = {t.name: t for p in programs for t in p.tensors}
    lengths = {n for p in programs for n in p.lengths}
    constants: dict[str, Constant] = {}
    for c in (c for p in programs for c in p.constants):
        known = constants.setdefault(c.name, c)
        constants[c.name] = replace(known, least=max(known.least, c.least))
    for n in sorted(n for p in programs[:-1] for g in p.grid for n in scalars(g.count)):
        if n in whole.symbols:
            constants.setdefault(n, Constant(n, whole.symbols[n]))
        elif n not in constants:
            lengths.add(n)
    # As the sGraph declares them.
    declared = tuple(tensors[n] for n in sorted(tensors, key=whole.order.__getitem__))
    return TileLaunch(name, programs, declared, tuple(sorted(lengths)), tuple(constants.values()))


def _program(kernel: Kernel, whole: _Whole, nominal: Nominal, divisions: Quotients, defer: bool) -> TileProgram:
    tensors, symbols = whole.tensors, whole.symbols
    types = analyse(kernel, nominal)
    made = layout(kernel)
    lengths = {name for a, _ in kernel.roles for name in scalars(a.extent) if name not in symbols}
    names = Names(lengths | {c.name for c in made.constants}, whole.taken)
    lowering = KernelLowering(kernel, made, types, tensors, names, divisions, defer, whole.on_chip)
    body = clean(shared_extremes(lowering.run(), names))
    grid = lowering.grid
    used = {name for s in statements(body) for name in integers(s)}
    # The slowest axis is what is left of the program's number, unless that is counted down.
    used |= {name for g in grid[0 if any(g.reversed for g in grid) else 1 :] for name in scalars(g.count)}
    constants = {c.name: c for c in made.constants}
    for _, role in kernel.roles:
        if isinstance(role, Split):
            constants.setdefault(identifier(role.parts.name), Constant(identifier(role.parts.name), role.parts.name))
    for name in sorted(used):
        if name in symbols:
            constants.setdefault(name, Constant(name, symbols[name]))
    touched = dict.fromkeys(s.tensor for s in statements(body) if isinstance(s, TileLoad | TileStore))
    return TileProgram(
        kernel.name,
        tuple(tensors[t] for t in sorted(touched, key=whole.order.__getitem__)),
        tuple(sorted(name for name in used if name in lengths or name in whole.lengths)),
        tuple(constants.values()),
        grid,
        made.dims,
        body,
    )
