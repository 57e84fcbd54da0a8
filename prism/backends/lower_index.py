"""Lowering of axes and indices: the grid, offsets and masks of tiles, addresses, bounds of loops."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

import sympy

from prism.backends import tile
from prism.backends.lower_layout import Layout
from prism.backends.tile import OWN, Affine, GridAxis, identifier, symbol
from prism.cost.constraints import INT32_MAX
from prism.program.extents import Extent, add, at_most, is_static, mul, product, strides_of
from prism.program.index import Axis, Index
from prism.program.nodes import Tensor
from prism.sgraph.nodes import Grid, Kernel, Loop, Split, part_axis
from prism.sgraph.ranges import growing, sign


@dataclass(slots=True)
class Names:
    """Hands out names, each once."""

    taken: set[str]  # those that are not free
    shared: frozenset[str] = frozenset()  # those that are not either, of all programs of a module

    def fresh(self, base: str) -> str:
        """`base`, or `base_2` and so on when it is taken."""
        base = identifier(base, OWN)
        if keyword.iskeyword(base):
            base += "_"
        name, n = base, 1
        while name in self.taken or name in self.shared:
            n += 1
            name = f"{base}_{n}"
        self.taken.add(name)
        return name


@dataclass(slots=True)
class Indexing:
    """What stands for each axis of a kernel in addresses."""

    kernel: Kernel
    layout: Layout  # the dimensions of its tiles
    names: Names  # hands out names
    emit: Callable[[tile.Stmt], None]  # takes the statements that this makes
    grid: list[GridAxis] = field(default_factory=list)  # the launch grid, the first axis slowest
    # The mask of each axis whose tile may be ragged, in the open blocks.
    mask: dict[Axis, str] = field(default_factory=dict)
    # A scalar or a vector of offsets; None is the number 0.
    _index: dict[Axis, str | None] = field(default_factory=dict)
    _pid: dict[Axis, str] = field(default_factory=dict)
    # The first element of the tile that a program, or an open loop, is at.
    _first: dict[Axis, Extent] = field(default_factory=dict)
    # Programs get longer along these: the longest come first.
    _growing: tuple[Axis, ...] = ()

    def start(self) -> None:
        """Place the program in the grid; offsets of the axes that it holds from beginning to end."""
        self._growing = growing(self.kernel)
        looped = {s.axis for s in self.kernel.statements() if isinstance(s, Loop)}
        for axis, role in self.kernel.roles:
            if isinstance(role, Grid):
                self._grid_axis(axis)
        for axis, role in self.kernel.roles:
            if isinstance(role, Split):
                pid = self.names.fresh(f"pid_{axis.name}_part")
                self.grid.append(GridAxis(pid, role.parts))
                self._index[part_axis(axis, role.parts)] = pid
            elif axis.extent == 1:
                self._index[axis] = None
            elif not isinstance(role, Grid) and axis not in looped:
                self._offsets(axis, 0)

    def _grid_axis(self, axis: Axis) -> None:
        if axis.extent == 1:
            return
        pid = self._pid[axis] = self.names.fresh(f"pid_{axis.name}")
        if self.layout.is_tiled(axis):
            size = self._size(axis)
            self.grid.append(GridAxis(pid, cdiv(axis.extent, size), axis in self._growing))
            self._first[axis] = symbol(pid) * size
            self._offsets(axis, symbol(pid) * size)
        else:
            self.grid.append(GridAxis(pid, axis.extent, axis in self._growing))
            self._first[axis] = symbol(pid)
            self._index[axis] = pid

    def _size(self, axis: Axis) -> Extent:
        size = self.layout.sizes[axis]
        return symbol(size) if isinstance(size, str) else size

    def _offsets(self, axis: Axis, start: Extent) -> None:
        """The axis' offsets in the tile that begins at `start`, and their mask."""
        dim = self.layout.dim_of(axis)
        offsets = self.names.fresh(f"offs_{axis.name}")
        self.emit(tile.Offsets(offsets, dim.name, dim.axes.index(axis), start))
        self._index[axis] = offsets
        if self.layout.is_ragged(axis):
            mask = self.names.fresh(f"mask_{axis.name}")
            index = Affine(((offsets, 1),))
            self.emit(tile.InBounds(mask, index, axis.extent, None, (dim.name,), self.layout.sizes[axis]))
            self.mask[axis] = mask

    # Loops.

    def bounds(self, loop: Loop) -> tuple[Extent, Extent, Extent, tuple[Extent, Extent] | None]:
        """Start, stop and step of a loop over an axis, or over the program's part of it, inside of its range.

        And of its gap, where it has one, the place where it begins and how much of the axis it skips, in whole tiles.
        """
        axis, step = loop.axis, self._size(loop.axis) if self.layout.is_tiled(loop.axis) else 1
        start, stop = self._chunk(axis, step)
        highs = [add(self._highest(c, axis), 1) for c in loop.everywhere]
        # 1 where the program visits all tiles whatever bounds them, else 0.
        every = self._scalar("everywhere", axis, sympy.Min(sympy.Max(*highs, 0), 1)) if highs else None
        above, below = self._ends(loop.range, axis, every)
        if loop.all_or_none:
            stop = self._scalar("stop", axis, sympy.Min(stop, mul(every, axis.extent)))
        if above:
            stop = self._scalar("stop", axis, sympy.Min(stop, sympy.Max(*above)))
        if below:
            begin = self._tile_of("begin", axis, sympy.Min(*below), step)
            start = begin if start == 0 else sympy.Max(start, begin)
        if not loop.gap:
            return start, stop, step, None
        above, below = self._ends(loop.gap, axis, every)
        reached = self._scalar("reached", axis, sympy.Max(*above, start))
        gap = self._scalar("gap", axis, mul(cdiv(reached, step), step))
        again = sympy.Min(self._tile_of("again", axis, sympy.Min(*below), step), mul(cdiv(stop, step), step))
        return start, stop, step, (gap, self._scalar("skipped", axis, sympy.Max(add(again, mul(-1, gap)), 0)))

    def _scalar(self, name: str, axis: Axis, value: Extent) -> Extent:
        """A name for a number of the program."""
        made = self.names.fresh(f"{name}_{axis.name}")
        self.emit(tile.Scalar(made, value))
        return symbol(made)

    def _tile_of(self, name: str, axis: Axis, place: Extent, step: Extent) -> Extent:
        """Where the tile with a place of the axis begins; the first one for what is before it: no quotient of those."""
        return mul(floordiv(self._scalar(name, axis, sympy.Max(place, 0)), step), step)

    def _ends(self, conditions: Sequence[Index], axis: Axis, every: Extent | None) -> tuple[list[Extent], list[Extent]]:
        """What ends before each bound from above, and what each bound from below begins with."""
        above: list[Extent] = []
        below: list[Extent] = []
        for c in conditions:
            # slope*axis + high >= 0, high the largest value of the rest over the tiles that the program holds.
            own, high = c.slope(axis), self._highest(c, axis)
            if own < 0:
                above.append(floordiv(high, -own) + 1)
            elif own > 0:
                below.append(floordiv(own - 1 - high, own) if own > 1 else -high)
        if every is not None:
            above += [mul(every, axis.extent)] if above else []
            below += [mul(add(1, mul(-1, every)), axis.extent)] if below else []
        return above, below

    def _highest(self, condition: Index, but: Axis) -> Extent:
        """The largest value of an index over the tiles of its axes, without the term of one of them."""
        total = condition.offset
        for axis, c in condition.terms:
            assert isinstance(axis, Axis)
            if axis == but or axis.extent == 1:
                continue
            place: Extent = self._first[axis]
            if sign(c) > 0 and self.layout.is_tiled(axis):
                place = add(place, add(self._size(axis), -1))
            total = add(total, mul(c, place))
        return total

    def _chunk(self, axis: Axis, step: Extent) -> tuple[Extent, Extent]:
        """Start and stop of the axis, or of the program's part of it."""
        role = self.kernel.role(axis)
        if not isinstance(role, Split):
            return 0, axis.extent
        # Whole tiles, shared as evenly as they can be; the last parts may be empty.
        chunk = self.names.fresh(f"chunk_{axis.name}")
        parts = symbol(identifier(role.parts.name))
        self.emit(tile.Scalar(chunk, mul(cdiv(cdiv(axis.extent, step), parts), step)))
        first = self.names.fresh(f"first_{axis.name}")
        pid = self._index[part_axis(axis, role.parts)]
        assert pid is not None
        self.emit(tile.Scalar(first, symbol(pid) * symbol(chunk)))
        return symbol(first), sympy.Min(symbol(first) + symbol(chunk), axis.extent)

    def enter(self, axis: Axis) -> str:
        """The name of the index of a loop over the axis."""
        return self.names.fresh(f"start_{axis.name}" if self.layout.is_tiled(axis) else axis.name)

    def step(self, axis: Axis, index: str) -> None:
        """At the top of the loop's body: what stands for the axis there."""
        self._first[axis] = symbol(index)
        if self.layout.is_tiled(axis):
            self._offsets(axis, symbol(index))
        else:
            self._index[axis] = index

    def ends(self, axis: Axis, back: bool = False) -> tuple[str, str]:
        """Masks of the first and of the last place of the present tile of a loop's axis, which is tiled.

        With `back` the last place comes first.
        """
        dim, offsets, start = self.layout.dim_of(axis).name, self._index[axis], self._first[axis]
        assert offsets is not None
        first, last = self.names.fresh(f"first_{axis.name}"), self.names.fresh(f"last_{axis.name}")
        index = Affine(((offsets, 1),))
        self.emit(tile.InBounds(first, index, add(start, 1), None, (dim,)))
        self.emit(tile.InBounds(last, index, None, add(start, add(self._size(axis), -1)), (dim,)))
        return (last, first) if back else (first, last)

    # Indices.

    def affine(self, index: Index) -> Affine:
        """The index over the names that stand for its axes."""
        terms: list[tuple[str, Extent]] = []
        for axis, coefficient in index.terms:
            assert isinstance(axis, Axis), "indices of sGraphs are affine"
            name = self._index[axis]
            if name is not None:
                terms.append((name, coefficient))
        return Affine(tuple(terms), index.offset)

    def address(self, tensor: Tensor, index: Sequence[Index]) -> Affine:
        """The offset in elements from the start of a contiguous row-major tensor."""
        total = Index(())
        for i, stride in zip(index, strides_of(tensor.shape), strict=True):
            total = total + i.scaled(stride)
        elements = product(tensor.shape)
        wide = is_static(elements) and int(elements) > INT32_MAX
        affine = self.affine(total)
        # Scalars first, they make the base; then the slow dimensions before the fast ones.
        axes = [a for i in index for a, _ in i.terms if isinstance(a, Axis)]
        axes.sort(key=self.layout.is_tiled)
        order = [self._index[a] for a in axes]
        return Affine(tuple(sorted(affine.terms, key=lambda t: order.index(t[0]))), affine.offset, wide)

    def masks(self, axes: Iterable[Axis]) -> tuple[str, ...]:
        """The masks that keep a tile with these axes inside of them."""
        wanted = frozenset(axes)
        return tuple(self.mask[a] for a, _ in self.kernel.roles if a in wanted and a in self.mask)

    def first(self, axes: Iterable[Axis]) -> tuple[str, ...]:
        """Masks that leave a store to the first program along each grid axis that is not among `axes`."""
        stored = frozenset(axes)
        made: list[str] = []
        for axis, role in self.kernel.roles:
            if isinstance(role, Grid) and axis in self._pid and axis not in stored:
                mask = self.names.fresh(f"first_{axis.name}")
                self.emit(tile.InBounds(mask, Affine(((self._pid[axis], 1),)), 1, None, ()))
                made.append(mask)
        return tuple(made)

    def inside(self, tensor: Tensor, index: Sequence[Index], among: Container[int] | None = None) -> tuple[str, ...]:
        """Masks for the dimensions that an index may leave while its axes are inside theirs (as d + 32 may).

        `among` are the dimensions to look at; None for all.
        """
        made: list[str] = []
        for position, (i, extent) in enumerate(zip(index, tensor.shape, strict=True)):
            if among is not None and position not in among:
                continue
            low, high = _range(i)
            check_low = low is None or not at_most(0, low)
            check_high = high is None or not at_most(add(high, 1), extent)
            if check_low or check_high:
                mask = self.names.fresh(f"inside_{tensor.name}_{position}")
                bounds = (extent if check_high else None, 0 if check_low else None)
                self.emit(tile.InBounds(mask, self.affine(i), *bounds, self.layout.dims_for(i.axes())))
                made.append(mask)
        return tuple(made)


def floordiv(a: Extent, b: Extent) -> Extent:
    """The quotient, rounded down."""
    return a if b == 1 else sympy.floor(sympy.sympify(a) / b)


def cdiv(a: Extent, b: Extent) -> Extent:
    """The quotient, rounded up."""
    if b == 1:
        return a
    ratio = sympy.sympify(a) / b
    # Nothing to simplify, which takes sympy 10 ms to find out.
    plain = isinstance(b, sympy.Symbol) and isinstance(a, int | sympy.Symbol) and a != b
    return sympy.ceiling(ratio, evaluate=False) if plain and ratio.has(b) else sympy.ceiling(ratio)


def _range(index: Index) -> tuple[Extent | None, Extent | None]:
    """The least and largest value (inclusive), where the signs of the coefficients are known."""
    low: Extent = index.offset
    high: Extent = index.offset
    for axis, c in index.terms:
        assert isinstance(axis, Axis)
        reach = mul(c, add(axis.extent, -1))
        if at_most(0, c):
            high = add(high, reach)
        elif at_most(c, 0):
            low = add(low, reach)
        else:
            return None, None
    return low, high
