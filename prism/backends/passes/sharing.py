"""Which programs read the same elements, from what addresses mention: the order of programs, and hints for caches.

An address mentions a grid index when it does so by name, or by a loop over the share of an axis that the index selects.
Programs that differ only in what it does not mention read the same elements.

Order. Along two neighbouring axes of the grid where each has tiles that do not depend on the other (the rows and
columns of a matrix product) programs are numbered in groups, so that those at work at a time have tiles in common.
Where there are no groups, an axis that is counted down orders its grid in sections: where a loop has a range (causal
attention) a program's work grows along an axis, and along it programs count down, so that the longest come first
(`prism.sgraph.ranges`). With many heads that is not enough, as each has its long programs and its short ones.

Hints. A load is `readers=()` when no two programs, no two iterations, and no other load read an element of it, so that
caches need not keep it; else it names the grid indices that it does not mention. Where one iteration takes a part of
what memory sends at once, and the next one the rest, both read the same. A store is `write_only` when nothing
loads the tensor. Of both, how many elements lie side by side is said: programs beside each other share the rest of a
sector, or of a cache's line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import sympy

from prism.backends import tile
from prism.cost.counts import SECTOR_BYTES
from prism.ir.kit import statements
from prism.program.extents import Extent, at_most, mul
from prism.program.nodes import DType
from prism.sgraph.ranges import SECTION

GROUP = 8
"""Tiles of the slow axis in a group: with as many programs at work, about as many tiles of either axis are."""


def share_module(module: tile.TileModule) -> tile.TileModule:
    """The module with its programs in groups and hints on their loads and stores."""
    read = Counter(
        s.tensor
        for p in module.programs
        for s in statements(p.body)
        if isinstance(s, tile.Load) or (isinstance(s, tile.Store) and s.adds is not None)
    )
    return module.over(lambda p: in_sections(grouped(hinted(p, read))))


def grouped(program: tile.TileProgram, size: int = GROUP) -> tile.TileProgram:
    """The program, in groups of `size` tiles where two neighbouring axes each have tiles that lack the other."""
    tiles = [of for s, of, looped in Mentions(program).loads() if looped or len(s.dims) > 1]
    for slow, fast in pairwise(g.index for g in program.grid):
        if any(slow in of and fast not in of for of in tiles) and any(fast in of and slow not in of for of in tiles):
            return replace(program, groups=tile.Groups(slow, fast, size))
    return program


def in_sections(program: tile.TileProgram) -> tile.TileProgram:
    """The program, in sections where an axis counts down and groups do not order its grid already.

    A section hands out the long programs of many heads first. It holds about SECTION programs, twice what a large GPU
    runs at a time, and not all: what the programs of a head share (keys and values) is at most that of SECTION tiles,
    which an L2 cache holds. A CPU has few threads, that each take the next program when they are done, and caches that
    want a head's programs together: there counting down is all.
    """
    down = [g.index for g in program.grid if g.reversed]
    if not down or len(program.grid) < 2 or program.groups is not None:
        return program
    return replace(program, sections=tile.Sections(down[0], SECTION))


def hinted(program: tile.TileProgram, read: Mapping[str, int]) -> tile.TileProgram:
    """The program with `readers` of its loads and `write_only` stores.

    `read` says for each tensor how many loads of it the module has.
    """
    mentions = Mentions(program)
    order = [g.index for g in program.grid]
    width = {t.name: t.dtype.bytes for t in program.tensors}

    def visit(body: Sequence[tile.Stmt], loops: tuple[str, ...]) -> tuple[tile.Stmt, ...]:
        made: list[tile.Stmt] = []
        for s in body:
            match s:
                case tile.For():
                    made.append(replace(s, body=visit(s.body, (*loops, s.index))))
                case tile.Load():
                    named = mentions.names(s.offset)
                    readers = tuple(g for g in order if g not in mentions.grid(s.offset))
                    # A loop that the address does not mention reads it again, and so does another load.
                    again = (
                        read[s.tensor] > 1
                        or any(loop not in named for loop in loops)
                        or _overlaps(s.offset, mentions)
                        or any(_leaves_some(s.offset, loop, width[s.tensor], mentions) for loop in loops)
                    )
                    made.append(replace(s, readers=None if again else readers, run=mentions.run(s.offset)))
                case tile.Store(tensor=tensor):
                    made.append(replace(s, write_only=tensor not in read, run=mentions.run(s.offset)))
                case _:
                    made.append(s)
        return tuple(made)

    return replace(program, body=visit(program.body, ()))


def _leaves_some(offset: tile.Affine, loop: str, width: int, mentions: Mentions) -> bool:
    """Whether a trip leaves a part of a sector to the next one: the loop steps by less than it, and than any lane."""
    step = abs(dict(offset.terms).get(loop, 0) * width)
    lanes = [abs(c * width) for name, c in offset.terms if name in mentions.dims]
    return step != 0 and at_most(step, SECTOR_BYTES // 2) and all(at_most(step + width, c) for c in lanes)


def _overlaps(offset: tile.Affine, mentions: Mentions) -> bool:
    """Whether several elements of a tile may be one in memory.

    They may where data give places, where two terms are along one dimension, and where a stride is 0.
    """
    dims = [mentions.dims[name] for name, _ in offset.terms if name in mentions.dims]
    if any(name in mentions.places for name, _ in offset.terms):
        return True
    return len(dims) > len(set(dims)) or any(c == 0 for _, c in offset.terms)


@dataclass(slots=True)
class Mentions:
    """What each name of a program is made from."""

    program: tile.TileProgram  # the tile program
    dims: dict[str, tuple[str, int]] = field(default_factory=dict)  # dimension and axis of offsets
    places: set[str] = field(default_factory=set)  # integers that data give
    _from: dict[str, frozenset[str]] = field(default_factory=dict)
    _scalars: dict[str, sympy.Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for s in statements(self.program.body):
            match s:
                case tile.Scalar(dst, value):
                    self._scalars[dst] = self._resolved(value)
                    self._from[dst] = self._names(value)
                case tile.Offsets(dst, dim, axis, start):
                    self.dims[dst] = (dim, axis)
                    self._from[dst] = self._names(start)
                case tile.IndexValue(dst, index, _):
                    self._from[dst] = self.names(index)
                case tile.For(index, start, stop, _, _):
                    self._from[index] = self._share(start, stop) | {index}
                case tile.Load(dst, _, offset) if s.dtype is not DType.BOOL and not s.dtype.is_float:
                    self.places.add(dst)
                    self._from[dst] = self.names(offset)
                case tile.Cast(dst, src, DType.INT32 | DType.INT64):
                    self.places.add(dst)
                    self._from[dst] = self._from.get(src, frozenset({src}))
                case tile.Pointwise(dst, _, args, _, DType.INT32 | DType.INT64):
                    self.places.add(dst)
                    of = (self._from.get(a, frozenset({a})) for a in args if isinstance(a, str))
                    self._from[dst] = frozenset[str]().union(*of)

    def names(self, offset: tile.Affine) -> frozenset[str]:
        """The scalars that an address is made from, grid and loop indices among them."""
        found = {n for name, c in offset.terms if c != 0 for n in self._from.get(name, {name})}
        return frozenset(found) | self._names(offset.offset)

    def grid(self, offset: tile.Affine) -> frozenset[str]:
        """The grid indices that an address mentions."""
        return self.names(offset) & {g.index for g in self.program.grid}

    def run(self, offset: tile.Affine) -> Extent:
        """How many elements of a tile lie side by side in memory, at least: those along its fastest axes."""
        lanes = {c: self.dims[name] for name, c in offset.terms if name in self.dims}
        run: Extent = 1
        while run in lanes:
            dim, axis = lanes.pop(run)
            size = self.program.dim(dim).sizes[axis]
            run = mul(run, tile.symbol(size) if isinstance(size, str) else size)
        return run

    def loads(self) -> Iterator[tuple[tile.Load, frozenset[str], bool]]:
        """Every load, the grid indices that it mentions, and whether it is in a loop."""
        looped = {id(x) for s in statements(self.program.body) if isinstance(s, tile.For) for x in statements(s.body)}
        for s in statements(self.program.body):
            if isinstance(s, tile.Load):
                yield s, self.grid(s.offset), id(s) in looped

    def _names(self, e: Extent) -> frozenset[str]:
        return frozenset(n for name in tile.scalars(e) for n in self._from.get(name, {name}))

    def _share(self, start: Extent, stop: Extent) -> frozenset[str]:
        """The grid indices that select a share of an axis: the loop's length does not depend on them."""
        begin, end = self._resolved(start), self._resolved(stop)
        ends = end.args if isinstance(end, sympy.Min) else (end,)
        own = tile.scalars(begin) & {g.index for g in self.program.grid}
        lengths = [tile.scalars(sympy.expand(e - begin)) for e in ends]
        return frozenset(g for g in own if any(g not in of for of in lengths))

    def _resolved(self, e: Extent) -> sympy.Expr:
        e = sympy.sympify(e)
        return e.xreplace({x: self._scalars.get(tile.identifier(x.name), x) for x in e.free_symbols})
