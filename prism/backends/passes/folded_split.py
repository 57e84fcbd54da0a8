"""Second stages of splits that the split's own programs may do: the tile programs on both sides, made to fit.

prism.sgraph.folding says which, and TileFold what it means. A program of the second stage runs at the place that the
split's programs of its tile have in their grid, and reads what they stored:

- both number their tiles alike: the groups of the split are those of the second stage, too;
- a partial result that lacks axes of the grid, which one program stored for all (the sum of squares beside a matrix
  product's columns), gets a slot for each program along those axes: then the tile's own programs have stored it, and no
  two programs store one element. A second stage with tiles of its own reads the slot that its first element is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import sympy

from prism.backends import tile
from prism.backends.passes.sharing import Mentions
from prism.backends.tile_rewrite import names_beside
from prism.ir.kit import operands, rewrite, statements
from prism.program.extents import Extent, mul, product
from prism.program.nodes import Tensor
from prism.sgraph.folding import Fold
from prism.sgraph.nodes import Tile


def fold_module(module: tile.TileModule, folds: Iterable[Fold]) -> tile.TileModule:
    """The module with its folds, and their programs made to fit; what it computes without folding stays the same.

    The programs are in their final order (`sharing`), the folds as `prism.sgraph.folding.folds` gives them.
    """
    for fold in folds:
        module = _folded(module, fold)
    return module


def _folded(module: tile.TileModule, fold: Fold) -> tile.TileModule:
    launches = {launch.name: launch for launch in module.launches}
    (split,), (combine,) = launches[fold.split].programs, launches[fold.combine].programs
    # What an axis of one element has no place in the grid for.
    tiles = [(_size(split, part), _size(combine, own)) for axis, part, own in fold.grid if axis.extent != 1]
    sizes = tuple((own, size) for size, own in tiles if isinstance(own, str))
    split, combine = _grouped_alike(split, combine)
    if any(g.reversed for g in combine.grid):
        combine = _completed(module, combine, combine.body, module.buffers, combine.constants)
    split, combine, buffers = _slotted(module, split, combine, tiles)
    changed = {fold.split: split, fold.combine: combine}
    return replace(
        module,
        buffers=buffers,
        launches=tuple(_launch(x, changed[x.name]) if x.name in changed else x for x in module.launches),
        folds=(*module.folds, tile.TileFold(fold.split, fold.combine, sizes)),
    )


def _size(program: tile.TileProgram, size: Tile) -> tile.Size:
    """The program's constant for a symbol of the sGraph."""
    if isinstance(size, int):
        return size
    return next(c.name for c in program.constants if c.symbol == size.name)


def _launch(launch: tile.TileLaunch, program: tile.TileProgram) -> tile.TileLaunch:
    return tile.TileLaunch(launch.name, (program,), program.tensors, program.lengths, program.constants)


def _grouped_alike(split: tile.TileProgram, combine: tile.TileProgram) -> tuple[tile.TileProgram, tile.TileProgram]:
    """The programs with tiles numbered alike: by the split's groups, unless those are of parts, and not in sections."""
    groups = split.groups
    places = {g.index: n for n, g in enumerate(split.grid[:-1])}
    counted = zip(combine.grid, split.grid[:-1], strict=True)
    grid = tuple(replace(g, reversed=s.reversed) for g, s in counted)
    split, combine = replace(split, sections=None), replace(combine, grid=grid, sections=None)
    if groups is None or groups.fast not in places:
        return replace(split, groups=None), replace(combine, groups=None)
    slow, fast = (combine.grid[places[name]].index for name in (groups.slow, groups.fast))
    return split, replace(combine, groups=tile.Groups(slow, fast, groups.size))


def _slotted(
    module: tile.TileModule,
    split: tile.TileProgram,
    combine: tile.TileProgram,
    tiles: Sequence[tuple[tile.Size, tile.Size]],
) -> tuple[tile.TileProgram, tile.TileProgram, tuple[Tensor, ...]]:
    """The programs, with slots in the partial results that lack axes of the grid; and the buffers, so much longer."""
    mentions = Mentions(split)
    grid = split.grid[:-1]
    missing: dict[str, list[int]] = {}
    for s in statements(split.body):
        if isinstance(s, tile.Store):
            lacking = [n for n, g in enumerate(grid) if g.index not in mentions.grid(s.offset)]
            if lacking:
                missing[s.tensor] = lacking
    if not missing:
        return split, combine, module.buffers
    names = names_beside(combine)
    slots: dict[int, tile.Scalar] = {}
    for n in sorted({n for lacking in missing.values() for n in lacking}):
        index = combine.grid[n].index
        first = sympy.floor(tile.symbol(index) * _symbol(tiles[n][1]) / _symbol(tiles[n][0]))
        slots[n] = tile.Scalar(names.fresh(f"slot_{index.removeprefix('pid_')}"), first)
    strides: dict[str, dict[int, Extent]] = {}
    buffers: list[Tensor] = []
    for b in module.buffers:
        stride = product(b.shape)
        for n in reversed(missing.get(b.name, [])):
            strides.setdefault(b.name, {})[n] = stride
            stride = mul(stride, grid[n].count)
        buffers.append(replace(b, shape=(*(grid[n].count for n in missing.get(b.name, [])), *b.shape)))
    lone = {grid[n].index for lacking in missing.values() for n in lacking}
    firsts = {s.dst for s in statements(split.body) if isinstance(s, tile.InBounds) and _is_first(s, lone)}

    def stored(s: tile.Stmt) -> tile.Stmt:
        if not isinstance(s, tile.Store) or s.tensor not in missing:
            return s
        terms = tuple((grid[n].index, strides[s.tensor][n]) for n in missing[s.tensor])
        return replace(s, offset=_with(s.offset, terms), masks=tuple(m for m in s.masks if m not in firsts))

    def loaded(s: tile.Stmt) -> tile.Stmt:
        if not isinstance(s, tile.Load) or s.tensor not in missing:
            return s
        terms = tuple((slots[n].dst, strides[s.tensor][n]) for n in missing[s.tensor])
        return replace(s, offset=_with(s.offset, terms))

    body = rewrite(split.body, stored)
    used = {name for s in statements(body) for name in operands(s)}
    body = tuple(s for s in body if not (isinstance(s, tile.InBounds) and s.dst in firsts - used))
    known = (*split.constants, *combine.constants)
    return (
        _completed(module, split, body, buffers, known),
        _completed(module, combine, (*slots.values(), *rewrite(combine.body, loaded)), buffers, known),
        tuple(buffers),
    )


def _symbol(size: tile.Size) -> sympy.Expr:
    return sympy.Integer(size) if isinstance(size, int) else tile.symbol(size)


def _is_first(s: tile.InBounds, indices: set[str]) -> bool:
    """Whether this holds in the first program along one of these axes of the grid alone."""
    return len(s.index.terms) == 1 and s.index.terms[0][0] in indices and s.high == 1 and s.low is None


def _with(offset: tile.Affine, terms: tuple[tuple[str, Extent], ...]) -> tile.Affine:
    """The address, further on: scalars come first."""
    return replace(offset, terms=(*terms, *offset.terms))


def _completed(
    module: tile.TileModule,
    program: tile.TileProgram,
    body: tuple[tile.Stmt, ...],
    buffers: Sequence[Tensor],
    known: Sequence[tile.Constant],
) -> tile.TileProgram:
    """The program with another body, its tensors as declared now, and with the parameters that the body needs."""
    declared = {b.name: b for b in buffers}
    constants = {c.name: c for c in program.constants}
    lengths = set(program.lengths)
    symbols = {tile.identifier(s): s for s in module.symbols}
    theirs: Mapping[str, tile.Constant] = {c.name: c for c in known}
    made = {s.dst for s in statements(body) if isinstance(s, tile.Scalar)}
    made |= {s.index for s in statements(body) if isinstance(s, tile.For)} | {g.index for g in program.grid}
    needed = {n for s in statements(body) for n in tile.integers(s)} | {
        n for k, g in enumerate(program.grid) if k or g.reversed for n in tile.scalars(g.count)
    }
    for name in sorted(needed - made - lengths - constants.keys()):
        if name in theirs:
            constants[name] = theirs[name]
        elif name in symbols:
            constants[name] = tile.Constant(name, symbols[name])
        else:
            lengths.add(name)
    return replace(
        program,
        body=body,
        tensors=tuple(declared.get(t.name, t) for t in program.tensors),
        lengths=tuple(sorted(lengths)),
        constants=tuple(constants.values()),
    )
