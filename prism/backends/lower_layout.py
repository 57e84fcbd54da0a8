"""Lowering, first step: which axes of a kernel are dimensions of its tiles, how long, and in which order.

An axis that a program or a loop walks one element at a time is a scalar. The others are dimensions, in one order for
the whole kernel, chosen so that the operands of matrix products are [M, K] and [K, N] as they stand. Several axes that
only ever stand together on one side of matrix products (the heads and queries of grouped-query attention) are packed
into one dimension, so that nothing has to be reshaped inside a loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prism.backends.tile import Constant, Dim, Dims, Size, identifier
from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.sgraph import nodes as sg
from prism.sgraph.products import drops_dimension, tile_product

# Matrix units take at least 16 elements along the contracted axis; the other two they pad themselves.
DOT_LEAST_K = 16


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction that is a matrix product: the sides as dimensions, and whether the operands change places."""

    m: Dims
    k: str
    n: Dims
    swapped: bool


@dataclass(slots=True)
class Layout:
    """The dimensions of one kernel's tiles."""

    kernel: sg.Kernel
    dims: tuple[Dim, ...] = ()  # the dimensions, in the order that all tiles have them in
    constants: tuple[Constant, ...] = ()  # the compile-time sizes that the dimensions need
    sizes: dict[Axis, Size] = field(default_factory=dict)  # the tile's size along each axis that has a dimension
    # By the contraction's dst, those that are matrix products.
    products: dict[str, Product] = field(default_factory=dict)
    _dim_of: dict[Axis, str] = field(default_factory=dict)

    def is_tiled(self, axis: Axis) -> bool:
        """Whether tiles have a dimension for the axis."""
        return axis in self._dim_of

    def dim_of(self, axis: Axis) -> Dim:
        """The dimension that holds the axis."""
        name = self._dim_of[axis]
        return next(d for d in self.dims if d.name == name)

    def dims_for(self, axes: Iterable[Axis]) -> Dims:
        """The dimensions of a tile whose value depends on the axes."""
        wanted = {self._dim_of[a] for a in axes if a in self._dim_of}
        return tuple(d.name for d in self.dims if d.name in wanted)

    def is_ragged(self, axis: Axis) -> bool:
        """Whether a tile may hold elements outside the axis."""
        return self.is_tiled(axis) and self.sizes[axis] != axis.extent


def layout(kernel: sg.Kernel) -> Layout:
    """Chooses the dimensions of the kernel's tiles."""
    made = Layout(kernel)
    tiled = [a for a, r in kernel.roles if not (a.extent == 1 or drops_dimension(r))]
    axes = {name: frozenset(a for a in of if a in tiled) for name, of in sg.value_axes(kernel).items()}
    rank = _memory_rank(kernel)
    found = {s: tile_product(kernel, s, axes) for s in kernel.statements() if isinstance(s, sg.Contract)}
    products = {s.dst: (p.rows, s.axis, p.columns) for s, p in found.items() if p is not None}
    units = _units(kernel, tiled, axes, products.values(), rank)
    order, swapped = _order(units, products, rank)
    _size(made, order, {k for _, k, _ in products.values()})
    for dst, (lhs, k, rhs) in products.items():
        m, n = (rhs, lhs) if swapped[dst] else (lhs, rhs)
        made.products[dst] = Product(made.dims_for(m), made.dims_for((k,))[0], made.dims_for(n), swapped[dst])
    return made


def _memory_rank(kernel: sg.Kernel) -> dict[Axis, int]:
    """The axes in the order of memory: of what is stored, then of what is loaded.

    Those that a store adds along come first: where these places are is anywhere.
    """
    found: dict[Axis, int] = {}
    for s in kernel.additions:
        along = kernel.added_along(s)
        found |= {a: n for n, a in enumerate(a for a, _ in kernel.roles if a in along)}
    indices = [s.index for s in kernel.statements() if isinstance(s, sg.Store)]
    indices += [s.index for s in kernel.statements() if isinstance(s, sg.Load | sg.Gather)]
    for index in indices:
        for i in index:
            for axis in _by_stride(i):
                found.setdefault(axis, len(found))
    for axis, _ in kernel.roles:
        found.setdefault(axis, len(found))
    return found


def _by_stride(index: Index) -> list[Axis]:
    terms = [(a, c) for a, c in index.terms if isinstance(a, Axis)]
    terms.sort(key=lambda t: -(abs(int(t[1])) if is_static(t[1]) else 1 << 62))
    return [a for a, _ in terms]


Unit = tuple[Axis, ...]


def _units(
    kernel: sg.Kernel,
    tiled: Sequence[Axis],
    axes: Mapping[str, frozenset[Axis]],
    products: Iterable[tuple[frozenset[Axis], Axis, frozenset[Axis]]],
    rank: Mapping[Axis, int],
) -> list[Unit]:
    """The tiled axes, those that can be packed together."""
    packed: list[frozenset[Axis]] = []
    for lhs, _, rhs in products:
        for side in (lhs, rhs):
            free = all(side.isdisjoint(p) for p in packed)
            if len(side) > 1 and free and _can_pack(kernel, side, axes):
                packed.append(side)
    units = [tuple(sorted(p, key=rank.__getitem__)) for p in packed]
    return units + [(a,) for a in tiled if all(a not in p for p in packed)]


def _can_pack(kernel: sg.Kernel, side: frozenset[Axis], axes: Mapping[str, frozenset[Axis]]) -> bool:
    """Whether the axes stand in a tile for the whole kernel, unreduced, and in products all or none."""
    roles = dict(kernel.roles)
    if not all(isinstance(roles[a], sg.Grid | sg.Whole) for a in side):
        return False
    for s in kernel.statements():
        if isinstance(s, sg.TileReduce | sg.Contract | sg.Scan) and s.axis in side:
            return False
        if isinstance(s, sg.Contract) and any(side & axes[o] not in (frozenset(), side) for o in (s.lhs, s.rhs)):
            return False
    return True


def _order(
    units: Sequence[Unit],
    products: Mapping[str, tuple[frozenset[Axis], Axis, frozenset[Axis]]],
    rank: Mapping[Axis, int],
) -> tuple[list[Unit], dict[str, bool]]:
    """The units in an order with M before K before N wherever that is possible; which products swap operands."""
    after: dict[Unit, set[Unit]] = {u: set() for u in units}

    def reaches(start: Unit, goal: Unit) -> bool:
        return start == goal or any(reaches(u, goal) for u in after[start])

    def of(side: Iterable[Axis]) -> list[Unit]:
        return [u for u in units if not set(side).isdisjoint(u)]

    swapped: dict[str, bool] = {}
    for dst, (lhs, k, rhs) in products.items():
        first = min(rank[a] for a in rhs) < min(rank[a] for a in lhs)
        swapped[dst] = first
        for swap in (first, not first):
            m, n = (rhs, lhs) if swap else (lhs, rhs)
            inner = of((k,))[0]
            if any(reaches(inner, u) for u in of(m)) or any(reaches(u, inner) for u in of(n)):
                continue
            if any(reaches(b, a) for a in of(m) for b in of(n)):
                continue
            for u in of(m):
                after[u].add(inner)
            after[inner].update(of(n))
            swapped[dst] = swap
            break
    order: list[Unit] = []
    left = sorted(units, key=lambda u: min(rank[a] for a in u))
    while left:
        unit = next(u for u in left if not any(u in after[v] for v in left))
        order.append(unit)
        left.remove(unit)
    return order, swapped


def _size(made: Layout, order: Sequence[Unit], contracted: set[Axis]) -> None:
    """Fills in the dimensions and their sizes."""
    constants: dict[str, Constant] = {}
    dims: list[Dim] = []
    for unit in order:
        sizes: list[Size] = []
        for axis in unit:
            least = DOT_LEAST_K if axis in contracted else 1
            match made.kernel.role(axis):
                case sg.Grid(tile) | sg.LoopRole(tile) | sg.Split(_, tile):
                    assert not isinstance(tile, int)
                    constant = Constant(identifier(tile.name), symbol=tile.name, least=least)
                    constants[constant.name] = constant
                    sizes.append(constant.name)
                case sg.Whole() if is_static(axis.extent):
                    sizes.append(max(least, 1 << (int(axis.extent) - 1).bit_length()))
                case sg.Whole():
                    constant = Constant(identifier(f"BLOCK_{axis.name}"), extent=axis.extent, least=least)
                    constants[constant.name] = constant
                    sizes.append(constant.name)
            made.sizes[axis] = sizes[-1]
        name = "_".join(identifier(a.name) for a in unit)
        dims.append(Dim(name, unit, tuple(sizes)))
        for axis in unit:
            made._dim_of[axis] = name
    made.dims = tuple(dims)
    made.constants = tuple(constants.values())
