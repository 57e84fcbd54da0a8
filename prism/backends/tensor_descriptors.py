"""Which loads of a tile program may be done by tensor descriptors (TMA), and what the host has to describe for them.

A descriptor is a view of memory of up to five dimensions, the last contiguous. The hardware copies a box of it, given
by the coordinates of its first element, to shared memory; elements outside of the view are zeros. A load's address is

    offset + sum(stride * lane) + sum(stride * index)

over lanes (the offsets of one axis in a tile, with a first element and a length) and indices (of the grid and of
loops). Each lane becomes a dimension of the view, as long as its mask allows, and indices that are neighbours in memory
one more, of boxes of one element. So no dimension of the tensor has to be recovered, and what a mask keeps out is
outside of the view, neither more nor less. A load is refused where that is not so: where a mask is anything but an
upper bound of one lane, where dimensions of the view would overlap or not be multiples of each other (the driver's
documentation wants them so), or where the first element of a box in a row may not be a multiple of 16 bytes.

Only loads of two or more lanes that feed matrix products inside a loop are worth a descriptor, and a launch has
descriptors only where one of them is in the loop: elsewhere there is no pipeline that copies could run ahead in. Where
the tile is read in another layout, too (`twice`), descriptors are the rule: by pointers it would lie in shared memory
as it comes (prism.cost.shared_memory).

Axes that are packed in one dimension of tiles are left to pointers: Triton (3.7) does not see through the reshape, and
keeps the operand in registers (of causal prefill, 636 bytes spilled a thread, and the products serialised).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cmp_to_key

import sympy

from prism.backends import tile
from prism.backends.lower_index import Names
from prism.backends.tile_rewrite import names_beside
from prism.cost.counts import next_power_of_two
from prism.cost.shared_memory import Step, in_two_layouts, made_of
from prism.ir.kit import defined, operands, statements
from prism.program.extents import Extent, add, at_most, cdiv, exact_quotient, mul, normal, product
from prism.program.nodes import DType, Tensor

MAX_RANK = 5
MAX_BOX = 256
"""Elements of a box along a dimension."""
ALIGNMENT = 16
"""Bytes that addresses, strides and the box's part of a row are multiples of."""
ROWS = 8
"""Elements of a box along a slower dimension, where it has more than one: what the layout of shared memory repeats
after. Shorter boxes are legal, and have led to misaligned addresses (pytorch/helion#662)."""
_TYPES = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT8, DType.UINT8})


@dataclass(frozen=True, slots=True)
class TensorMap:
    """What a descriptor describes, slowest dimension first, in elements."""

    tensor: Tensor  # whose memory it is
    offset: Extent  # where it begins in it
    shape: tuple[Extent, ...]  # the lengths; beyond them is zero
    strides: tuple[Extent, ...]  # the last is 1
    block: tuple[tile.Size, ...]  # the box

    def names(self) -> frozenset[str]:
        """The lengths and constants on which it hangs whether it fits."""
        sizes = (*self.block, self.offset, *self.shape, *self.strides)
        return frozenset().union(*({e} if isinstance(e, str) else tile.scalars(e) for e in sizes))

    def fits(self, values: Mapping[str, int]) -> bool:
        """Whether the hardware takes it at these lengths and constants, the tensor's address being aligned."""
        size = self.tensor.dtype.bytes
        block = [_value(b, values) for b in self.block]
        offset, *shape = (_value(e, values) for e in (self.offset, *self.shape))
        steps = [offset, *(_value(s, values) for s in self.strides[:-1])]
        return (
            min(shape) > 0
            and max(shape) < 1 << 31
            and max(block) <= MAX_BOX
            and all(b == 1 or b >= ROWS for b in block[:-1])
            and block[-1] * size >= ALIGNMENT
            and all(s * size % ALIGNMENT == 0 for s in steps)
        )


@dataclass(frozen=True, slots=True)
class DescriptorLoad:
    """One load by a descriptor."""

    view: TensorMap  # the descriptor's
    start: tuple[Extent, ...]  # coordinates of the box, over the kernel's scalars
    dims: tuple[str | None, ...]  # what the box's dimensions are in the tile; None is an index
    looped: bool  # whether it is in a loop
    twice: bool = False  # whether something else than products is made of it, too


@dataclass(frozen=True, slots=True)
class LaunchDescriptors:
    """The descriptors of a launch."""

    views: Mapping[str, TensorMap]  # by the parameter's name
    # By program and the load's value, the parameter and the load.
    loads: Mapping[tuple[str, str], tuple[str, DescriptorLoad]]

    def of(self, program: tile.TileProgram) -> dict[str, tuple[str, DescriptorLoad]]:
        """By the load's value: what one program loads."""
        return {dst: found for (name, dst), found in self.loads.items() if name == program.name}

    def looped(self, twice: bool) -> list[TensorMap]:
        """What loads in loops read, or those `twice` alone that are read in two layouts."""
        return [b.view for _, b in self.loads.values() if b.looped and (b.twice or not twice)]

    def parameters(self, program: tile.TileProgram) -> list[str]:
        """Those of one program, in order."""
        used = {name for name, _ in self.of(program).values()}
        return [name for name in self.views if name in used]


def launch_descriptors(module: tile.TileModule) -> dict[str, LaunchDescriptors]:
    """The launches that descriptors may serve, by name.

    Second stages that may be folded are not among them: a split's kernel calls them.
    """
    combines = {fold.combine for fold in module.folds}
    found = {x.name: _of_launch(x, module) for x in module.launches if x.name not in combines}
    return {name: held for name, held in found.items() if held is not None}


def fitting(
    module: tile.TileModule,
    held: Mapping[str, LaunchDescriptors],
    symbols: Mapping[str, int],
    hints: Mapping[str, int],
    twice: bool = False,
) -> frozenset[str]:
    """The launches where a descriptor in a loop fits.

    `held` are from `launch_descriptors`. `twice` is of those alone that load a tile which is read in two layouts, where
    that one's descriptor fits.
    """
    launches = {x.name: x for x in module.launches}
    found: set[str] = set()
    for name, own_loads in held.items():
        values = {tile.identifier(n): v for n, v in {**hints, **symbols}.items()}
        for c in launches[name].constants:
            own = symbols.get(c.symbol) if c.symbol is not None else next_power_of_two(_value(c.extent or 1, values))
            if own is not None:
                values[c.name] = max(own, c.least)
        if any(view.fits(values) for view in own_loads.looped(twice)):
            found.add(name)
    return frozenset(found)


def deciding(launch: tile.TileLaunch, held: LaunchDescriptors, symbols: Iterable[str], twice: bool) -> list[str]:
    """The symbols of a configuration, of these, on which it hangs whether a descriptor fits; as of `fitting`."""
    names = frozenset().union(*(view.names() for view in held.looped(twice)))
    constants = [c for c in launch.constants if c.name in names]
    names |= frozenset().union(*(tile.scalars(c.extent) for c in constants if c.extent is not None))
    own = {c.symbol for c in constants}
    return [s for s in symbols if s in own or tile.identifier(s) in names]


def _of_launch(launch: tile.TileLaunch, module: tile.TileModule) -> LaunchDescriptors | None:
    made = {(p.name, dst): b for p in launch.programs for dst, b in descriptor_loads(p).items()}
    if not any(b.looped for b in made.values()):
        return None
    # The host's function that makes them has names of all launches.
    taken = {tile.identifier(t.name) for t in module.tensors}
    taken |= {x.name for x in module.launches} | {p.name for p in module.programs}
    for p in module.programs:
        taken |= names_beside(p).taken
    free = Names(taken)
    names: dict[TensorMap, str] = {}
    for b in made.values():
        if b.view not in names:
            names[b.view] = free.fresh(f"{b.view.tensor.name}_box")
    return LaunchDescriptors({n: v for v, n in names.items()}, {key: (names[b.view], b) for key, b in made.items()})


def descriptor_loads(program: tile.TileProgram) -> dict[str, DescriptorLoad]:
    """The loads of a legal tile program that a descriptor may do, by their values."""
    known = _Known(program)
    fed = _feeding(program)
    twice = read_twice(program)
    found: dict[str, DescriptorLoad] = {}
    for s, looped in _loads(program.body, False):
        if s.dst in fed:
            box = known.box(s, looped)
            if box is not None:
                found[s.dst] = replace(box, twice=looped and s.dst in twice)
    return found


def _loads(body: Sequence[tile.Stmt], looped: bool) -> Iterator[tuple[tile.Load, bool]]:
    for s in body:
        if isinstance(s, tile.Load):
            yield s, looped
        elif isinstance(s, tile.For):
            yield from _loads(s.body, True)


def _feeding(program: tile.TileProgram) -> set[str]:
    """The values that reach an operand of a matrix product in a loop, element by element."""
    made = {name: operands(s) for s in statements(program.body) if (name := defined(s)) and _by_elements(s)}
    loops = [s for s in program.body if isinstance(s, tile.For)]
    products = [s for loop in loops for s in statements(loop.body) if isinstance(s, tile.Dot)]
    return made_of([n for s in products for n in (s.lhs, s.rhs)], made)


def _by_elements(s: tile.Stmt) -> bool:
    return isinstance(s, tile.Cast | tile.Copy | tile.Pointwise | tile.Rearrange | tile.Select | tile.Within)


def read_twice(program: tile.TileProgram) -> set[str]:
    """The values of loops of which both operands of products and something else are made."""

    def step(s: tile.Stmt) -> Step:
        if isinstance(s, tile.Dot):
            return Step(s.dst, (s.lhs, s.rhs), "product")
        return Step(defined(s), operands(s), "elements" if _by_elements(s) else "other")

    loops = [s for s in program.body if isinstance(s, tile.For)]
    return {n for loop in loops for n in in_two_layouts([step(s) for s in statements(loop.body)])}


@dataclass(frozen=True, slots=True)
class _Lane:
    """A dimension of the view that a box covers a part of."""

    dim: str
    stride: Extent
    extent: Extent
    size: tile.Size
    start: Extent


@dataclass(frozen=True, slots=True)
class _Single:
    """An index: `high` is its largest value, where that is known."""

    name: str
    stride: Extent
    high: Extent | None


class _Known:
    """What a program's names stand for."""

    def __init__(self, program: tile.TileProgram) -> None:
        self.program = program
        everything = statements(program.body)
        self.offsets = {s.dst: s for s in everything if isinstance(s, tile.Offsets)}
        self.bounds = {s.dst: s for s in everything if isinstance(s, tile.InBounds)}
        self.values = {s.dst: s.value for s in everything if isinstance(s, tile.Scalar)}
        self.loops = {s.index: s for s in everything if isinstance(s, tile.For)}
        self.grid = {g.index: g.count for g in program.grid}
        self.tensors = {t.name: t for t in program.tensors}

    def box(self, s: tile.Load, looped: bool) -> DescriptorLoad | None:
        """The load by a descriptor; None where that would not be the same."""
        tensor = self.tensors[s.tensor]
        if tensor.dtype not in _TYPES or s.dtype is DType.BOOL or not at_most(0, s.offset.offset):
            return None
        limits = self._limits(s)
        if limits is None:
            return None
        terms: list[_Lane | _Single] = []
        for name, stride in s.offset.terms:
            term = self._term(name, stride, limits)
            if term is None:
                return None
            terms.append(term)
        lanes = [t for t in terms if isinstance(t, _Lane)]
        if len(lanes) < 2 or sorted(s.dims) != sorted(x.dim for x in lanes):
            return None
        ordered = _ordered(terms)
        return None if ordered is None else self._view(tensor, s.offset.offset, ordered, looped)

    def _limits(self, s: tile.Load) -> dict[str, Extent] | None:
        """How long each lane with a mask may be; None where a mask is no upper bound of a lane."""
        found: dict[str, Extent] = {}
        for mask in s.masks:
            b = self.bounds.get(mask)
            if b is None or b.low is not None or b.high is None or b.index.offset != 0 or len(b.index.terms) != 1:
                return None
            ((name, factor),) = b.index.terms
            if factor != 1 or name not in self.offsets or name not in dict(s.offset.terms):
                return None
            held = found.get(name, b.high)
            if not at_most(held, b.high) and not at_most(b.high, held):
                return None
            found[name] = held if at_most(held, b.high) else b.high
        return found

    def _term(self, name: str, stride: Extent, limits: Mapping[str, Extent]) -> _Lane | _Single | None:
        """One term of an address; None where it cannot be a dimension of a view."""
        if not at_most(1, stride):
            return None
        lane = self.offsets.get(name)
        if lane is not None:
            dim = self.program.dim(lane.dim)
            # Without a mask the axis has to be one tile, all of it.
            whole = lane.start == 0 and dim.sizes[0] == dim.axes[0].extent
            extent = limits.get(name, dim.axes[0].extent if whole else None)
            if len(dim.axes) > 1 or extent is None:
                return None
            return _Lane(lane.dim, stride, extent, dim.sizes[0], lane.start)
        if name in self.grid:
            return _Single(name, stride, add(self.grid[name], -1))
        if name in self.loops:
            return _Single(name, stride, self._below(self.loops[name].stop))
        return None

    def _below(self, stop: Extent) -> Extent | None:
        """A number that the last index of a loop that ends before `stop` does not exceed, the same in every program."""
        for part in stop.args if isinstance(stop, sympy.Min) else (stop,):
            if not tile.scalars(part) - set(self.program.lengths):
                return add(normal(part), -1)
        return None

    def _view(
        self, tensor: Tensor, offset: Extent, terms: Sequence[_Lane | _Single], looped: bool
    ) -> DescriptorLoad | None:
        """The dimensions of the view, from those of the address in the order of memory."""
        last = terms[-1]
        if not isinstance(last, _Lane) or last.stride != 1 or not self._multiple(last.start, last.size):
            return None
        shape: list[Extent] = []
        strides: list[Extent] = []
        block: list[tile.Size] = []
        start: list[Extent] = []
        dims: list[str | None] = []
        singles: list[_Single] = []
        for t in terms:
            if isinstance(t, _Single):
                singles.append(t)
                continue
            if singles:
                held = self._together(singles, strides[-1] if strides else None, tensor, offset)
                if held is None:
                    return None
                shape.append(held[0])
                strides.append(singles[-1].stride)
                block.append(1)
                start.append(held[1])
                dims.append(None)
                singles = []
            shape.append(t.extent)
            strides.append(t.stride)
            block.append(t.size)
            start.append(t.start)
            dims.append(t.dim)
        for n in range(len(shape) - 1):
            if exact_quotient(strides[n], strides[n + 1]) is None or not at_most(
                mul(shape[n + 1], strides[n + 1]), strides[n]
            ):
                return None
        if len(shape) > MAX_RANK:
            return None
        view = TensorMap(tensor, offset, tuple(shape), tuple(strides), tuple(block))
        return DescriptorLoad(view, tuple(start), tuple(dims), looped)

    def _together(
        self, singles: Sequence[_Single], above: Extent | None, tensor: Tensor, offset: Extent
    ) -> tuple[Extent, Extent] | None:
        """Indices that are neighbours in memory as one: its length and its value; None where they are no multiples.

        Nothing masks them. Above all lanes they may go as far as the tensor does, between lanes up to the next one.
        """
        stride = singles[-1].stride
        value: Extent = 0
        reach: Extent | None = stride
        for t in singles:
            ratio = exact_quotient(t.stride, stride)
            if ratio is None:
                return None
            value = add(value, mul(ratio, tile.symbol(t.name)))
            reach = None if t.high is None or reach is None else add(reach, mul(t.high, t.stride))
        if above is None:
            left = add(product(tensor.shape), mul(-1, offset))
            return exact_quotient(left, stride) or cdiv(left, stride), value
        length = exact_quotient(above, stride)
        if length is None or reach is None or not at_most(reach, above):
            return None
        return length, value

    def _multiple(self, e: Extent, size: tile.Size) -> bool:
        """Whether an expression is a multiple of a tile's size in every program and iteration."""
        if isinstance(e, int) or e.is_Integer:
            return int(e) == 0 or (isinstance(size, int) and int(e) % size == 0)
        if isinstance(e, sympy.Symbol):
            name = tile.identifier(e.name)
            if name == size:
                return True
            if name in self.values:
                return self._multiple(self.values[name], size)
            loop = self.loops.get(name)
            return loop is not None and self._multiple(loop.start, size) and self._multiple(loop.step, size)
        if isinstance(e, sympy.Mul):
            return _whole(e) and any(self._multiple(a, size) for a in e.args)
        if isinstance(e, sympy.Add | sympy.Max | sympy.Min):
            return all(self._multiple(a, size) for a in e.args)
        return False


def _ordered(terms: Sequence[_Lane | _Single]) -> list[_Lane | _Single] | None:
    """From the largest stride to the smallest; None where two cannot be compared."""
    for a in terms:
        for b in terms:
            if not at_most(a.stride, b.stride) and not at_most(b.stride, a.stride):
                return None

    def compare(a: _Lane | _Single, b: _Lane | _Single) -> int:
        return at_most(a.stride, b.stride) - at_most(b.stride, a.stride)

    return sorted(terms, key=cmp_to_key(compare))


def _whole(e: sympy.Expr) -> bool:
    """Whether an expression is built of whole numbers by sums, products, extrema and quotients that are rounded.

    sympy's own answer is unknown for a rounded quotient: its divisor may be 0.
    """
    if isinstance(e, sympy.Add | sympy.Mul | sympy.Max | sympy.Min):
        return all(_whole(a) for a in e.args)
    return isinstance(e, sympy.Integer | sympy.Symbol | sympy.ceiling | sympy.floor)


def _value(e: Extent | tile.Size, values: Mapping[str, int]) -> int:
    """An expression's value. Raises KeyError: a name has no value."""
    if isinstance(e, str):
        return values[e]
    if isinstance(e, int):
        return e
    return int(e.xreplace({s: sympy.Integer(values[tile.identifier(str(s))]) for s in e.free_symbols}))
