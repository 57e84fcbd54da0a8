"""What a kernel's sizes must satisfy on a device: as sympy relationals to read, as fast checks to prune with.

Every tile and part count ranges over powers of two between a least and a largest useful size (its *domain*). A
family none of whose assignments satisfies the constraints is pruned, by the name of the first one that rules out what
was left. Footprints only grow with the tiles, so the corner of all least sizes usually decides, in microseconds.

The footprints are lower bounds: a value counts from its statement to its last use; what only feeds a matrix product is
in shared memory, masks and positions are recomputed, and a product that is only accumulated is computed in place, so
none of them counts as registers. What is computed and used place by place is there an element at a time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import sympy

from prism.cost.compiled_expr import value
from prism.cost.counts import next_power_of_two, power_of_two_above
from prism.cost.device import Device, Tiles
from prism.ir.kit import sources, statements
from prism.program.extents import Extent, is_static
from prism.program.index import Axis
from prism.program.products import matrix_product
from prism.sgraph import nodes as sg
from prism.sgraph.products import dot_dims, drops_dimension, is_dot, passed_on

REGISTER_BYTES = 4
"""Of a register (data sheet)."""
WARP = 32
"""Threads of a warp (data sheet)."""
MAX_WARPS = 8
"""Warps of the widest block that is tuned (guess)."""
WARP_GROUP_ROWS = 64
"""Rows from which a group of warps multiplies operands that lie in shared memory, where devices can (data sheet)."""
INT32_MAX = 2**31 - 1
"""The largest offset that kernels compute (by definition)."""
MAX_OPERANDS = 384
"""Operands of one matrix product that a thread may hold (measured, by Triton's compiler).

In full precision the product is unrolled, operands in registers: beyond this they spill, and one kernel takes ten
seconds to compile.
"""


@dataclass(frozen=True, slots=True)
class RoleBounds:
    """What bounds the enumeration."""

    whole: int = 16384  # the longest axis that one tile may hold, in elements
    # An axis that is reduced and no longer than this is always one tile: a loop over a tile or two, or a grid that
    # makes each program reduce all of it again, buys nothing.
    short: int = 128
    # Unless what is reduced along several of these, one inside the other, is longer than this: then the outermost of
    # them may also be a loop or a split.
    joint: int = 512
    # An output axis no longer than this may also take one element a program, which makes a matrix product a vector
    # product.
    narrow: int = 8
    splits: bool = True  # whether reductions may be shared by several programs
    # Whether prefix sums within a tile can be had; without them a scan goes from element to element, along the batch of
    # a matrix product.
    scans: bool = True


_ROLES = RoleBounds()
_Tiles: TypeAlias = "tuple[tuple[Axis, ...], int]"  # a shape, and how many tiles have it
_AT_LEAST = frozenset({"tile_bound", "dot_m", "dot_n", "dot_k"})
"""Constraints that longer tiles, or more parts, may satisfy."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """One condition on an sGraph's symbols."""

    # Its kind: tile_bound, parts, dot_m, dot_n, dot_k, registers, shared, unrolled, tile_elements, int32_offsets.
    name: str
    kernel: str  # the kernel that it is about
    relational: sympy.Basic  # the condition, over the unbound symbols and those of the extents
    why: str  # what goes wrong without it


@dataclass(frozen=True, slots=True)
class Domain:
    """The values of one symbol: powers of two from `low` to `high`, inclusive."""

    symbol: str
    low: int
    high: int

    @property
    def values(self) -> tuple[int, ...]:
        """The powers of two, ascending."""
        return tuple(1 << n for n in range(self.low.bit_length() - 1, self.high.bit_length()))


@dataclass(frozen=True, slots=True)
class Needed:
    """What a kernel computes and holds, whatever its loops are."""

    shapes: Set[frozenset[Axis]]  # the axes of its values
    live: Sequence[tuple[frozenset[Axis], ...]]  # the axes of values that are in registers at the same time
    # Sums of products: the axes of both factors, and the one that is summed.
    products: Sequence[tuple[frozenset[Axis], frozenset[Axis], Axis]]


@dataclass(slots=True)
class Footprint:
    """What of a kernel's structure the constraints and the cost model look at.

    Attributes:
        kernel: the kernel.
        axes: value name to axes, grid axes with tile 1 left out: the dimensions of its tile.
        live: sets of values that are in registers at the same time.
        dots: matrix products: dimensions of lhs alone, of rhs alone, and the contracted axis.
        staged: values loaded in a loop for a matrix product, which shared memory holds once per pipeline stage.
        held: values loaded once, outside of loops, for nothing but matrix products.
        width: tensor name to bytes of an element, for the tensors that the kernel loads.
        tensor_of: loaded value to its tensor.
        in_place: products that are only accumulated, computed in the accumulator's own registers.
        tiles: all tile shapes, each once.
    """

    kernel: sg.Kernel
    axes: dict[str, tuple[Axis, ...]]
    live: list[frozenset[str]] = field(default_factory=list)
    dots: list[tuple[tuple[Axis, ...], tuple[Axis, ...], Axis]] = field(default_factory=list)
    staged: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    width: dict[str, int] = field(default_factory=dict)
    tensor_of: dict[str, str] = field(default_factory=dict)
    in_place: frozenset[str] = frozenset()
    _largest: tuple[tuple[Axis, ...], ...] | None = None
    _shapes: list[frozenset[tuple[tuple[Axis, ...], int]]] | None = None
    _counts: list[list[tuple[int, int]]] | None = None
    _distinct: tuple[tuple[Axis, ...], ...] = ()

    @property
    def full_precision(self) -> bool:
        """Whether matrix products are of float32 operands, which matrix units do not take without rounding."""
        return bool(self.width) and min(self.width.values()) >= REGISTER_BYTES

    @property
    def tiles(self) -> frozenset[tuple[Axis, ...]]:
        """The shapes of all tiles, as their axes."""
        return frozenset(self.axes.values())

    def largest(self) -> tuple[tuple[Axis, ...], ...]:
        """The shapes of tiles whose axes are not all among another tile's."""
        if self._largest is None:
            apart = {frozenset(shape): shape for shape in self.tiles}
            self._largest = tuple(shape for axes, shape in apart.items() if not any(axes < other for other in apart))
        return self._largest

    def live_shapes(self) -> list[frozenset[tuple[tuple[Axis, ...], int]]]:
        """For each maximal live set, the shapes of its tiles, and how many tiles have each."""
        if self._shapes is None:
            maximal: list[frozenset[str]] = []
            for s in sorted(dict.fromkeys(self.live), key=len, reverse=True):
                if not any(s <= m for m in maximal):
                    maximal.append(s)
            shapes = [frozenset(Counter(self.axes[v] for v in s).items()) for s in maximal]
            self._shapes = list(dict.fromkeys(shapes))
        return self._shapes

    def live_counts(self) -> tuple[tuple[tuple[Axis, ...], ...], list[list[tuple[int, int]]]]:
        """The same with the shapes apart: each once, and for each set, places among these with how many tiles.

        Sets of which another has as many tiles of each shape are left out.
        """
        if self._counts is None:
            places: dict[tuple[Axis, ...], int] = {}
            self._counts = [
                [(places.setdefault(shape, len(places)), count) for shape, count in shapes.items()]
                for shapes in _most(self.live_shapes())
            ]
            self._distinct = tuple(places)
        return self._distinct, self._counts


def _most(sets: Iterable[frozenset[_Tiles]]) -> list[dict[tuple[Axis, ...], int]]:
    """Those of sets of tiles of which no other has as many of each shape."""
    left: list[dict[tuple[Axis, ...], int]] = []
    for mine in sorted(map(dict, sets), key=lambda s: -sum(s.values())):
        if not any(all(n <= theirs.get(shape, 0) for shape, n in mine.items()) for theirs in left):
            left.append(mine)
    return left


def footprint(
    kernel: sg.Kernel, sgraph: sg.SGraph, all_axes: Mapping[str, tuple[Axis, ...]] | None = None
) -> Footprint:
    """The kernel's liveness, matrix products and staged loads; `all_axes` are its values' (`value_axes`), if known."""
    all_axes = all_axes if all_axes is not None else sg.value_axes(kernel)
    dropped = {a for a, r in kernel.roles if drops_dimension(r) or a.extent == 1}
    left = {axes: tuple(a for a in axes if a not in dropped) for axes in set(all_axes.values())}
    f = Footprint(kernel, {v: left[axes] for v, axes in all_axes.items()})
    all_statements = kernel.statements()
    on_chip = sgraph.kept
    used = {id(s): _uses(s) for s in all_statements}
    dot_operands: set[str] = set()
    other_uses: set[str] = set()
    virtual: set[str] = set()
    for s in all_statements:
        match s:
            case sg.Contract(dst, axis, lhs, rhs):
                if is_dot(kernel, s, all_axes):
                    m, n, _ = dot_dims(kernel, s, all_axes)
                    f.dots.append((m, n, axis))
                    dot_operands |= {lhs, rhs}
                else:
                    other_uses |= {lhs, rhs}
            case sg.Load(_, tensor) if tensor in on_chip:
                f.width[tensor] = REGISTER_BYTES
            case sg.Load(dst, tensor, _) | sg.Gather(dst, tensor, _):
                other_uses.update(used[id(s)])
                f.tensor_of[dst] = tensor
                f.width[tensor] = sgraph.tensor(tensor).dtype.bytes
            case sg.Position(dst):
                virtual.add(dst)
            case sg.Pointwise(dst, _, args):
                names = [a for a in args if isinstance(a, str)]
                if all(a in virtual for a in names):
                    virtual.add(dst)
                other_uses.update(names)
            case _:
                other_uses.update(used[id(s)])
    in_shared = {v for v in f.tensor_of if v in dot_operands and v not in other_uses}
    uses = Counter(u for s in all_statements for u in used[id(s)])
    products = {s.dst for s in all_statements if isinstance(s, sg.Contract)}
    passed = passed_on(kernel)
    values = {s.dst: s.src for s in all_statements if isinstance(s, sg.TileReduce)}
    for s in all_statements:
        if isinstance(s, sg.Accumulate) and isinstance(s.kind, sg.Statistic):
            # Lanes along the loop's axis keep their own where no product needs the registers.
            f.axes.update(dict.fromkeys(_carried(s), f.axes[s.dst if f.dots else values[s.src]]))
    sums = [s.src for s in all_statements if isinstance(s, sg.Accumulate | sg.Scan) if uses[s.src] == 1]
    added = {passed.get(v, v) for v in sums} & {v for v in products if uses[v] == 1}
    f.in_place = frozenset(v for v in (*products, *passed) if passed.get(v, v) in added)
    in_loops = {
        s.dst
        for loop in all_statements
        if isinstance(loop, sg.Loop)
        for s in statements(loop.body)
        if isinstance(s, sg.Load)
    }
    f.staged = [v for v in f.tensor_of if v in dot_operands and v in in_loops]
    f.held = [v for v in f.tensor_of if v in in_shared and v not in in_loops]
    passing = _passing(kernel, all_axes) - virtual
    made_of: dict[str, tuple[str, ...]] = {}
    for s in all_statements:
        # What takes a passing value takes, element by element, what that is made of.
        used[id(s)] = tuple(dict.fromkeys(v for u in used[id(s)] for v in made_of.get(u, (u,))))
        if isinstance(s, sg.Pointwise) and s.dst in passing:
            made_of[s.dst] = used[id(s)]
    _liveness(kernel.body, frozenset(), frozenset(virtual | in_shared | f.in_place), passing, used, f.live)
    return f


def _passing(kernel: sg.Kernel, axes: Mapping[str, Iterable[Axis]]) -> frozenset[str]:
    """Values that are there an element at a time: what makes them and what takes them go place by place.

    Compilers put such operations in the order of elements: a GELU behind a product of 128 x 256 spills nothing (by
    Triton's compiler, 173 registers of a thread that holds 128 elements). What crosses a reduction, a product or a loop
    is there as a whole, and so is what a matrix product multiplies.
    """
    found: dict[str, int] = {}
    whole: set[str] = set()
    stretch = 0

    def visit(body: Sequence[sg.Stmt]) -> None:
        nonlocal stretch
        for s in body:
            dotted = isinstance(s, sg.Contract) and is_dot(kernel, s, axes)
            placewise = isinstance(s, sg.Pointwise | sg.Store | sg.TileReduce | sg.Contract) and not dotted
            whole.update(v for v in sources(s) if not placewise or found.get(v) != stretch)
            if isinstance(s, sg.Loop):
                stretch += 1
                visit(s.body)
            if not isinstance(s, sg.Pointwise | sg.Store | sg.Load | sg.Position):
                stretch += 1
            elif isinstance(s, sg.Pointwise):
                found[s.dst] = stretch

    visit(kernel.body)
    return frozenset(found) - whole


def _uses(s: sg.Stmt) -> tuple[str, ...]:
    """The values that a statement reads: the running value of a sum is one."""
    return (*_carried(s), *sources(s)) if isinstance(s, sg.Accumulate | sg.Scan) else sources(s)


def _carried(s: sg.Accumulate | sg.Scan) -> tuple[str, ...]:
    """What stays from one iteration of a loop to the next; of a statistic, an element or mean, the mean and squares."""
    if isinstance(s, sg.Accumulate) and isinstance(s.kind, sg.Statistic):
        return tuple(f"{s.dst} {part}" for part in ("base", "mean", "squares"))
    return (s.dst,)


def _liveness(
    body: Sequence[sg.Stmt],
    after: frozenset[str],
    skipped: frozenset[str],
    passing: frozenset[str],
    used: Mapping[int, tuple[str, ...]],
    found: list[frozenset[str]],
) -> frozenset[str]:
    """Collects the live sets of a body, backwards; returns what is live before it.

    `after` is live behind them, `skipped` is in no register; what is `passing` is there an element at a time: as a
    whole it counts by itself alone. `used` says by the statement's `id` what it uses. What is `found` are the live
    sets.
    """
    live = after
    for s in reversed(body):
        if isinstance(s, sg.Loop):
            # What a scan has summed stays from one iteration to the next, as long as its value does.
            carriers = [x for x in s.body if isinstance(x, sg.Accumulate | sg.Scan)]
            mine = frozenset(name for x in carriers for name in _carried(x))
            defined = {x.dst for x in statements(s.body) if not isinstance(x, (sg.Loop, sg.Store))}
            outer = frozenset(u for x in statements(s.body) for u in used[id(x)]) - defined - skipped
            live = live | outer
            made = frozenset(x.dst for x in carriers)
            _liveness(s.body, live - made | mine, skipped, passing, used, found)
            live = live - made - mine
            continue
        dst = None if isinstance(s, sg.Store) else s.dst
        if dst is not None and dst not in skipped:
            found += [live, frozenset({dst})] if dst in passing else [live | {dst}]
        if dst is not None and not isinstance(s, sg.Accumulate | sg.Scan):
            live = live - {dst}
        live = live | (frozenset(used[id(s)]) - skipped)
    return live


# Numbers: tile sizes under an assignment, and what they imply.


def tile_sizes(kernel: sg.Kernel, binding: Mapping[str, Any]) -> dict[Axis, Any]:
    """The length of every axis in a tile under `binding` (symbol name to int or integer array)."""
    sizes: dict[Axis, Any] = {}
    for axis, role in kernel.roles:
        if role.tile is None:
            sizes[axis] = next_power_of_two(value(axis.extent, binding))
        else:
            sizes[axis] = role.tile if isinstance(role.tile, int) else binding[role.tile.name]
    return sizes


def elements(shape: Sequence[Axis], sizes: Mapping[Axis, Any]) -> Any:
    """The number of elements of a tile."""
    return math.prod([sizes[a] for a in shape])


def live_elements(f: Footprint, sizes: Mapping[Axis, Any]) -> Any:
    """The most elements that are in registers at the same time."""
    most: Any = 0
    shapes, live = f.live_counts()
    each = [elements(shape, sizes) for shape in shapes]
    for counts in live:
        total: Any = 0
        for place, count in counts:
            total = total + (each[place] if count == 1 else count * each[place])
        most = _larger(most, total)
    return most


def staged_bytes(f: Footprint, sizes: Mapping[Axis, Any]) -> Any:
    """Shared memory of one pipeline stage, in bytes."""
    return sum(elements(f.axes[v], sizes) * f.width[f.tensor_of[v]] for v in f.staged)


def held_bytes(f: Footprint, sizes: Mapping[Axis, Any], device: Device) -> Any:
    """Shared memory of operands that stay there while loops run: those that groups of warps multiply."""
    total: Any = 0
    for v in f.held if device.is_gpu and device.multiprocessor.warp_groups else ():
        mine = {*f.axes[v]}
        sides = [side for m, n, k in f.dots if k in mine and not mine.isdisjoint((*m, *n)) for side in (m, n)]
        groups: Any = 0
        for side in sides:
            groups = _larger(groups, elements(side, sizes) // WARP_GROUP_ROWS)
        # None of shorter ones, all of longer.
        total = total + _smaller(groups, 1) * elements(f.axes[v], sizes) * f.width[f.tensor_of[v]]
    return total


def _larger(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if isinstance(a, sympy.Basic) or isinstance(b, sympy.Basic):
        return sympy.Max(a, b)
    import numpy

    return numpy.maximum(a, b)


def _smaller(a: Any, b: Any) -> Any:
    return -_larger(-a, -b)


# Domains and checks.


def _padded(extent: Extent, hints: Mapping[str, int]) -> int:
    return int(next_power_of_two(value(extent, hints)))


def _least(
    axis: Axis,
    role: sg.Role,
    roles: Iterable[tuple[Axis, sg.Role]],
    stored: Set[Axis],
    hints: Mapping[str, int],
    tiles: Tiles,
) -> int:
    """The shortest tile of an axis, whatever matrix products ask for; `stored` are those that some store is along.

    Of a loop a short axis is one because of what is held whole inside of it. Of a split's rows that are held whole and
    stored as it goes, one fills a program.
    """
    low = 1
    match role:
        case sg.Whole():
            return _padded(axis.extent, hints)
        case _ if isinstance(role.tile, int):
            return role.tile
        case sg.LoopRole() | sg.Split() if axis.name.endswith(".part"):
            low = 2
        case sg.LoopRole() | sg.Split():
            held = math.prod(_padded(a.extent, hints) for a, r in roles if isinstance(r, sg.Whole))
            length = _padded(axis.extent, hints)
            nested = length <= _ROLES.short and length * held > _ROLES.joint
            filled = isinstance(role, sg.Split) and axis in stored and held > _ROLES.joint
            low = 1 if filled else min(tiles.loop_tile, 2) if nested else tiles.loop_tile
    return min(low, tiles.parts if axis.name.endswith(".part") else _padded(axis.extent, hints))


def domains(f: Footprint, hints: Mapping[str, int], tiles: Tiles) -> tuple[Domain, ...]:
    """The domain of every tile and part symbol of the kernel; `hints` binds the symbols of the extents."""
    single = {side[0] for m, n, k in f.dots for side in (m, n, (k,)) if len(side) == 1}
    stored = {a for s in f.kernel.statements() if isinstance(s, sg.Store) for i in s.index for a in i.axes()}
    found: dict[str, Domain] = {}

    for axis, role in f.kernel.roles:
        if role.tile is not None and not isinstance(role.tile, int):
            # The parts of a split are bound by their own kernel; here any number of them may come.
            above = tiles.parts if axis.name.endswith(".part") else _padded(axis.extent, hints)
            low = _least(axis, role, f.kernel.roles, stored, hints, tiles)
            if axis in single:
                low = max(low, min(tiles.dot, above))
            name = role.tile.name
            found.setdefault(name, Domain(name, low, max(low, min(above, tiles.tile))))
        if isinstance(role, sg.Split):
            found.setdefault(role.parts.name, Domain(role.parts.name, 2, tiles.parts))
    for symbol in f.kernel.symbols:
        # The part count of a split in an earlier kernel.
        found.setdefault(symbol.name, Domain(symbol.name, 2, tiles.parts))
    return tuple(found.values())


def checks(
    f: Footprint, device: Device, binding: Mapping[str, Any], stages: Any = 1, warps: Any = MAX_WARPS
) -> Iterator[tuple[str, Any]]:
    """Name and outcome (a bool, or a boolean array) of every constraint that is not a domain, cheap ones first.

    The binding's values, stages and warps are numbers or integer arrays.
    """
    sizes = tile_sizes(f.kernel, binding)
    tiles = device.tiles
    for axis, role in f.kernel.roles:
        if isinstance(role, sg.Split):
            yield "parts", binding[role.parts.name] <= -(-value(axis.extent, binding) // sizes[axis])
        elif axis.name.endswith(".part") and not isinstance(role, sg.Whole) and not drops_dimension(role):
            yield "tile_bound", sizes[axis] <= value(axis.extent, binding)
    for m, n, k in f.dots:
        for name, side in (("dot_m", m), ("dot_n", n), ("dot_k", (k,))):
            yield name, elements(side, sizes) >= _dot_least(side, binding, tiles.dot)
    for shape in f.largest():
        yield "tile_elements", elements(shape, sizes) <= tiles.elements
    yield tiles.held, live_elements(f, sizes) <= (tiles.live or _register_elements(device, warps))
    if f.staged or f.held:
        yield "shared", staged_bytes(f, sizes) * stages + held_bytes(f, sizes, device) <= device.shared_limit_bytes
    if f.full_precision and tiles.unrolled:
        for m, n, k in f.dots:
            yield "unrolled", operand_registers(m, n, k, sizes, 1) <= MAX_OPERANDS**2 * WARP * warps


def operand_registers(m: Sequence[Axis], n: Sequence[Axis], k: Axis, sizes: Mapping[Axis, Any], threads: Any) -> Any:
    """The square of how many operands of a full-precision product one of so many threads holds.

    A thread computes a patch of the result, about as high as wide, and holds the rows and columns that it takes:
    2*K*sqrt(M*N/threads). Squared, it stays a polynomial.
    """
    return 4 * elements((k,), sizes) ** 2 * elements(m, sizes) * elements(n, sizes) / threads


def _dot_least(side: Sequence[Axis], binding: Mapping[str, Any], least: int) -> Any:
    """`least`, or all there is where the axes together are shorter: then the matrix unit's operand is padded."""
    n = math.prod(next_power_of_two(value(a.extent, binding)) for a in side)
    if isinstance(n, int):
        return min(least, n)
    import numpy

    return numpy.minimum(least, n)


def _register_elements(device: Device, warps: Any) -> Any:
    per_block = device.multiprocessor.registers_per_thread * WARP * warps
    if isinstance(per_block, int):
        return min(per_block, device.multiprocessor.registers)
    import numpy

    return numpy.minimum(per_block, device.multiprocessor.registers)


def too_large(
    needed: Needed, roles: Mapping[Axis, sg.Role], stored: Iterable[Axis], device: Device, hints: Mapping[str, int]
) -> str | None:
    """The constraint that no kernel with these roles satisfies, by its shortest tiles; None where one may run.

    It is told from the values alone: what a schedule holds beside may be too much as well. It needs `needed` with these
    roles of all axes; `stored` are the axes that some store is along.
    """
    tiles, along = device.tiles, frozenset(stored)
    least = {a: _least(a, r, roles.items(), along, hints, tiles) for a, r in roles.items()}
    dims = {a for a, r in roles.items() if not drops_dimension(r) and a.extent != 1}
    # Rows and columns of a product are longer than their shortest tiles by so much at least.
    longer: dict[frozenset[Axis], int] = {}
    for lhs, rhs, axis in needed.products:
        product = matrix_product(dims & lhs, dims & rhs, {axis})
        if product is not None and not product.batch:
            for side in (product.rows, product.columns):
                wanted = _dot_least(tuple(side), hints, tiles.dot)
                longer[side] = -(-wanted // elements(tuple(side), least))

    @cache
    def size(shape: frozenset[Axis]) -> int:
        times = max((n for side, n in longer.items() if side <= shape), default=1)
        return math.prod(least[a] for a in shape if a in dims) * max(times, 1)

    if any(size(shape) > tiles.elements for shape in needed.shapes):
        return "tile_elements"
    limit = tiles.live or _register_elements(device, MAX_WARPS)
    return tiles.held if any(sum(map(size, together)) > limit for together in needed.live) else None


def first_unsatisfiable(f: Footprint, sgraph: sg.SGraph, device: Device, hints: Mapping[str, int]) -> str | None:
    """The name of the first constraint that no assignment satisfies along with those before it, or None."""
    found = feasible(f, sgraph, device, hints)
    return found if isinstance(found, str) else None


def feasible(f: Footprint, sgraph: sg.SGraph, device: Device, hints: Mapping[str, int]) -> dict[str, Any] | str:
    """Every feasible assignment, as one array a symbol, all of one length, with the hints.

    The name of the first constraint that no assignment satisfies along with those before it where there is none.
    """
    if too_long(f, sgraph, hints):
        return "int32_offsets"
    ranges = domains(f, hints, device.tiles)
    # What is too much at the least sizes is too much at all: footprints grow with the tiles.
    for name, ok in checks(f, device, {**hints, **{d.symbol: d.low for d in ranges}}):
        if not ok and (not ranges or name not in _AT_LEAST):
            return name
    if not ranges:
        return dict(hints)
    import numpy

    values = [numpy.array(d.values, dtype=numpy.int64) for d in ranges]
    open_ = {d.symbol: axis for d, axis in zip(ranges, numpy.ix_(*values), strict=True)}
    mask: Any = numpy.ones((1,) * len(ranges), dtype=bool)
    for name, ok in checks(f, device, {**hints, **open_}):
        mask = mask & ok
        if not numpy.count_nonzero(mask):
            return name
    where = numpy.nonzero(numpy.broadcast_to(mask, tuple(len(v) for v in values)))
    return {**hints, **{d.symbol: v[w] for d, v, w in zip(ranges, values, where, strict=True)}}


def too_long(f: Footprint, sgraph: sg.SGraph, hints: Mapping[str, int]) -> bool:
    """Whether an offset in some tensor that the kernel touches takes more than 32 bits."""
    # What is asked is whether any assignment is left.
    return any(least_elements(s, hints) > INT32_MAX for s in counted(f.kernel, sgraph))


def counted(kernel: sg.Kernel, sgraph: sg.SGraph) -> tuple[tuple[Extent, ...], ...]:
    """What 32 bits have to count of the tensors that the kernel touches: their elements, or places along a dimension.

    Into more elements offsets have 64 bits (`Indexing.address`), where it is known that there are so many. None but
    the caller's tensors are the reason for that: what is handed over is no longer than these.
    """
    found: list[tuple[Extent, ...]] = []
    for name in (*kernel.reads, *kernel.writes):
        shape = tuple(sgraph.tensor(name).shape)
        long = all(map(is_static, shape)) and math.prod(map(int, shape)) > INT32_MAX
        if long and name in sgraph.handed_over:
            known = (t.shape for t in (*sgraph.inputs, *sgraph.outputs) if all(map(is_static, t.shape)))
            long = math.prod(map(int, shape)) <= max((math.prod(map(int, s)) for s in known), default=0)
        found += [(e,) for e in shape] if long else [shape]
    return tuple(found)


def least_elements(shape: Sequence[Extent], hints: Mapping[str, int]) -> Any:
    """How many elements a tensor has, of which a part count counts as its least."""
    known = (e for e in shape if all(s.name in hints for s in getattr(e, "free_symbols", ())))
    return math.prod(value(e, hints) for e in known)


# Relationals, to read.


def constraints(sgraph: sg.SGraph, device: Device) -> tuple[Constraint, ...]:
    """Every constraint as a sympy relational, kernel by kernel.

    Part counts and tiles are also powers of two, which a relational cannot say. `stages_<launch>` stands for the
    pipeline stages of a launch; it is called as its kernel, or as its kernels together.
    """
    found: list[Constraint] = []
    tiles = device.tiles
    launch_of = {k.name: launch.name for launch in sgraph.launches for k in launch.kernels}
    for kernel in sgraph.kernels:
        f = footprint(kernel, sgraph)
        sizes = {a: power_of_two_above(sympy.sympify(a.extent)) if r.tile is None else r.tile for a, r in kernel.roles}

        def add(name: str, relational: Any, why: str, owner: str = kernel.name) -> None:
            if relational is not sympy.true:
                found.append(Constraint(name, owner, relational, why))

        for axis, role in kernel.roles:
            if isinstance(role.tile, sympy.Symbol):
                longest = power_of_two_above(sympy.sympify(axis.extent))
                add("tile_bound", sympy.Le(role.tile, longest), f"a longer tile than axis {axis} is masked work")
                add("tile_bound", sympy.Le(role.tile, tiles.tile), f"a longer tile dimension only costs {tiles.held}")
            if isinstance(role, sg.Split):
                most = sympy.ceiling(sympy.sympify(axis.extent) / role.tile)
                add("parts", sympy.Le(role.parts, most), f"a part of axis {axis} would be empty")
        for m, n, k in f.dots if tiles.dot > 1 else ():
            for name, side in (("dot_m", m), ("dot_n", n), ("dot_k", (k,))):
                all_there_is = sympy.Mul(*(power_of_two_above(sympy.sympify(a.extent)) for a in side))
                add(
                    name,
                    sympy.Ge(elements(side, sizes), sympy.Min(tiles.dot, all_there_is)),
                    f"matrix units take operands of at least {tiles.dot}",
                )
        for shape in sorted(f.tiles, key=lambda s: [str(a) for a in s]):
            total = sympy.sympify(elements(shape, sizes))
            add("tile_elements", sympy.Le(total, tiles.elements), f"the tile alone would fill the {tiles.memory}")
        limit = (tiles.live or _register_elements(device, MAX_WARPS)) * REGISTER_BYTES
        for shapes in f.live_shapes():
            total = sympy.Add(*(REGISTER_BYTES * count * elements(s, sizes) for s, count in shapes))
            add(tiles.held, sympy.Le(total, limit), "the values that are live together would spill")
        if f.staged or f.held:
            stages = sympy.Symbol(f"stages_{launch_of[kernel.name]}", integer=True, positive=True)
            total = sympy.sympify(staged_bytes(f, sizes) * stages + held_bytes(f, sizes, device))
            add("shared", sympy.Le(total, device.shared_limit_bytes), "the operands of the dots would not fit")
        if f.full_precision and tiles.unrolled:
            for m, n, k in f.dots:
                held = sympy.sympify(operand_registers(m, n, k, sizes, 1))
                add(
                    "unrolled",
                    sympy.Le(held, MAX_OPERANDS**2 * WARP * MAX_WARPS),
                    "the product's operands, unrolled, would spill",
                )
        for extents in counted(kernel, sgraph):
            numel = sympy.Mul(*(sympy.sympify(e) for e in extents))
            add("int32_offsets", sympy.Le(numel, INT32_MAX), "offsets would overflow 32 bits")
    return tuple(found)
