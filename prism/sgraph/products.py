"""Which kernels are plain matrix products of two stored tensors, and in what types products are computed.

A kernel qualifies by what it computes, whatever its roles and loops are: two loads of whole dense tensors, the sum over
one axis of their product, and the store of that sum to a whole tensor. To the sum may be added a stored vector along
the columns, or a stored tensor of the result's extents, and of the sum with a vector the positive part taken: libraries
do both as they store. Every index is a bare axis, so an operand is a
permutation of a contiguous tensor; the axes that both operands and the result have are the batch, those of one operand
and the result its rows or columns. Each group must be adjacent and in one order wherever it occurs, so that it can be
seen as one dimension without a copy. Nothing else qualifies: another epilogue, a factor, a mask, a second product, a
loop with a range, a split, a part of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.integers import Interval
from prism.program.known import NOTHING, Known, computed, constant, reduced, stored
from prism.program.nodes import DType, ReduceKind, Tensor
from prism.program.products import Product, matrix_product
from prism.sgraph import nodes as sg
from prism.sgraph.value_bounds import declared

LIBRARY = "library"
"""What configurations call it."""


@dataclass(frozen=True, slots=True)
class View:
    """A stored tensor as a matrix, or as a stack of them."""

    tensor: str  # its name
    dropped: tuple[int, ...]  # its dimensions of extent 1 that no axis runs over
    order: tuple[int, ...]  # the other dimensions, counted without those dropped, in the order of the groups
    # How many of them the batch, the first and the second dimension of the matrices have; one number for a vector.
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlainProduct:
    """out[batch, rows, columns] = sum over depth of lhs[batch, rows, depth] * rhs[batch, depth, columns] + addend."""

    lhs: View  # the operand with the rows, as [batch, rows, depth]
    rhs: View  # the other operand, as [batch, depth, columns]
    out: View  # the result, as [batch, rows, columns]
    batch: tuple[Axis, ...]  # the axes of the batch; empty for one product
    rows: tuple[Axis, ...]  # the axes of the rows; empty for one row
    columns: tuple[Axis, ...]  # the axes of the columns; empty for one column
    depth: Axis  # the axis that is summed over
    dtype: DType  # the element type of all tensors
    # What is added to the sum: a vector along the columns, or a tensor as the result is; None for nothing.
    addend: View | None = None
    relu: bool = False  # whether of that sum the positive part is stored

    @property
    def kind(self) -> tuple[bool, ...]:
        """What tells its cost from that of other kernels that move and compute as much."""
        return self.addend is None, self.copies_addend

    @property
    def copies_addend(self) -> bool:
        """Whether the addend is as large as the result: a library adds to what lies there, so it is copied there."""
        return self.addend is not None and len(self.addend.groups) > 1


def plain_product(kernel: sg.Kernel, sgraph: sg.SGraph) -> PlainProduct | None:
    """The matrix product that a kernel of the sGraph is, or None when it is anything else."""
    if any(isinstance(r, sg.Split) or a.name.endswith(".part") for a, r in kernel.roles):
        return None
    read = _Reading(kernel)
    if not read.run() or read.store is None or read.depth is None:
        return None
    depth = read.depth
    statements: list[sg.Load | sg.Store] = [*read.factors, read.store, *read.addends]
    touched = [sgraph.tensor(s.tensor) for s in statements]
    if len({t.dtype for t in touched}) != 1 or not touched[0].dtype.is_float:
        return None
    indices = [_axes(s.index, t.shape) for s, t in zip(statements, touched, strict=True)]
    first, second, out = ([a for a in i if a is not None] if i is not None else None for i in indices[:3])
    if first is None or second is None or out is None or depth in out or depth not in first or depth not in second:
        return None
    # Every axis is summed over or stored, and read: no element is computed twice, broadcast, or left out. Of an axis of
    # extent 1 no index speaks.
    if {*out, depth} != {a for a, _ in kernel.roles if a.extent != 1} or {*out, depth} != {*first, *second}:
        return None
    # The columns are what the result's last axis belongs to, so that it is stored as it comes.
    swapped = bool(out) and out[-1] in first and out[-1] not in second
    places = (1, 0, 2) if swapped else (0, 1, 2)
    if swapped:
        first, second = second, first
    batch = [a for a in out if a in first and a in second]
    rows = [a for a in out if a in first and a not in second]
    columns = [a for a in out if a in second and a not in first]
    if not out or out[-1] in batch:
        return None
    groups = ((batch, rows, [depth]), (batch, [depth], columns), (batch, rows, columns))
    lhs, rhs, result = (
        _view(touched[p].name, indices[p] or (), wanted) for p, wanted in zip(places, groups, strict=True)
    )
    if lhs is None or rhs is None or result is None:
        return None
    addend = None
    if read.addends:
        addend = _addend(touched[3].name, indices[3], groups[2])
        # Of a sum with a whole tensor libraries store no positive part.
        if addend is None or (read.relu and len(addend.groups) > 1):
            return None
    made = tuple(batch), tuple(rows), tuple(columns), depth, touched[0].dtype
    return PlainProduct(lhs, rhs, result, *made, addend, read.relu)


@dataclass(slots=True)
class _Reading:
    """One walk through a kernel's body: of what its two loads, its sum, what is added to that and its store are."""

    kernel: sg.Kernel
    loads: dict[str, sg.Load] = field(default_factory=dict)
    factors: tuple[sg.Load, ...] = ()
    depth: Axis | None = None
    store: sg.Store | None = None
    addends: tuple[sg.Load, ...] = ()
    relu: bool = False
    # Names: of the product of two tiles before it is summed, of a sum over a tile, and of the whole sum.
    _product: str | None = None
    _part: str | None = None
    _sum: str | None = None
    # The loops around the product.
    _around: tuple[sg.Loop, ...] = ()

    def run(self) -> bool:
        """Whether the body is two loads, the sum of their product, perhaps an addend, and a store of it."""
        return all(self._allowed(s, loops) for s, loops in _within(self.kernel.body, ()))

    def _allowed(self, s: sg.Stmt, loops: tuple[sg.Loop, ...]) -> bool:
        match s:
            case sg.Loop():
                return not s.skips
            case sg.Load(dst, _, _):
                self.loads[dst] = s
                return len(self.loads) <= 3
            case sg.Contract(dst, axis, lhs, rhs) if self._multiplied(lhs, rhs, loops):
                return self._summed(dst, axis)
            case sg.Pointwise(dst, "mul", (str(lhs), str(rhs))) if self._multiplied(lhs, rhs, loops):
                self._product = dst
                return True
            case sg.TileReduce(dst, ReduceKind.SUM, axis, src) if src == self._product and self._part is None:
                return loops == self._around and self._summed(dst, axis)
            case sg.Pointwise(dst, "add", (str(lhs), str(rhs))) if self._added(lhs, rhs, loops):
                self._sum = dst
                return True
            case sg.Pointwise(dst, "maximum", args) if self.addends and len(args) == 2 and {*args} == {self._sum, 0}:
                self._sum, self.relu = dst, True
                return all(loop.axis != self.depth for loop in loops)
            case sg.Accumulate(dst, ReduceKind.SUM, src, None) if self._sum is None and loops:
                return loops == self._around and self._accumulated(dst, src, loops[-1].axis)
            case sg.Store(_, _, src, _, ()) if self.store is None and self._sum is not None and src == self._sum:
                self.store = s
                return all(loop.axis != self.depth for loop in loops) and len(self.loads) == 2 + len(self.addends)
            case _:
                return False

    def _multiplied(self, lhs: str, rhs: str, loops: tuple[sg.Loop, ...]) -> bool:
        """Whether this is the product of the two loads, and the only one."""
        if self.factors or lhs == rhs or not {lhs, rhs} <= self.loads.keys():
            return False
        self.factors = (self.loads[lhs], self.loads[rhs])
        self._around = loops
        return True

    def _added(self, lhs: str, rhs: str, loops: tuple[sg.Loop, ...]) -> bool:
        """Whether this adds a load to the whole sum, for the first time."""
        other = rhs if lhs == self._sum else lhs
        if self._sum is None or self.addends or self.relu or self._sum not in (lhs, rhs) or other not in self.loads:
            return False
        self.addends = (self.loads[other],)
        return self.addends[0] not in self.factors and all(loop.axis != self.depth for loop in loops)

    def _summed(self, dst: str, axis: Axis) -> bool:
        """A sum over a tile's part of an axis: of a whole axis it is the sum, of a loop's it has to be accumulated."""
        self._part, self.depth = dst, axis
        match self.kernel.role(axis):
            case sg.Whole():
                self._sum = dst
                return True
            case sg.LoopRole():
                return bool(self._around) and self._around[-1].axis == axis
            case _:
                return False

    def _accumulated(self, dst: str, src: str, axis: Axis) -> bool:
        self._sum = dst
        if self._part is not None:
            return src == self._part and axis == self.depth
        # One element a tile: there is nothing to sum within it.
        self.depth = axis
        return src == self._product and self.kernel.role(axis) == sg.LoopRole(1)


def _within(body: Sequence[sg.Stmt], loops: tuple[sg.Loop, ...]) -> Iterator[tuple[sg.Stmt, tuple[sg.Loop, ...]]]:
    for s in body:
        yield s, loops
        if isinstance(s, sg.Loop):
            yield from _within(s.body, (*loops, s))


def _axes(index: Sequence[Index], shape: Sequence[Extent]) -> tuple[Axis | None, ...] | None:
    """The axis of each dimension, None for one of extent 1 without; None when the index is not all of the tensor."""
    found: list[Axis | None] = []
    for i, extent in zip(index, shape, strict=True):
        match i.terms:
            case ((Axis() as axis, 1),) if i.offset == 0 and axis.extent == extent and axis not in found:
                found.append(axis)
            case () if i.offset == 0 and extent == 1:
                found.append(None)
            case _:
                return None
    return tuple(found)


def _view(tensor: str, axes: Sequence[Axis | None], groups: Sequence[Sequence[Axis]]) -> View | None:
    """The tensor with its axes in groups; None when the axes of a group are not neighbours in their order."""
    kept = [a for a in axes if a is not None]
    order = [kept.index(a) for group in groups for a in group]
    for group in groups:
        places = [kept.index(a) for a in group]
        if places != list(range(min(places, default=0), min(places, default=0) + len(group))):
            return None
    dropped = tuple(n for n, a in enumerate(axes) if a is None)
    batch, first, second = map(len, groups)
    return View(tensor, dropped, tuple(order), (batch, first, second))


def _addend(
    tensor: str, axes: Sequence[Axis | None] | None, groups: tuple[Sequence[Axis], Sequence[Axis], Sequence[Axis]]
) -> View | None:
    """What is added, as a library takes it: a vector along the columns of one product, or a tensor as the result is."""
    batch, _, columns = groups
    kept = [a for a in axes or () if a is not None]
    if axes is None or not columns:
        return None
    if kept == [*columns] and not batch:
        dropped = tuple(n for n, a in enumerate(axes) if a is None)
        return View(tensor, dropped, tuple(range(len(kept))), (len(kept),))
    return _view(tensor, axes, groups) if {*kept} == {a for g in groups for a in g} else None


def drops_dimension(role: sg.Role) -> bool:
    """Whether tiles have no dimension for an axis of this role."""
    return role.tile == 1


def passed_on(kernel: sg.Kernel) -> dict[str, str]:
    """What is reduced along axes that have one element in a tile: nothing is computed, the value has another name.

    By such a value, the one that it is.
    """
    found: dict[str, str] = {}
    for s in kernel.statements():
        if isinstance(s, sg.TileReduce) and drops_dimension(kernel.role(s.axis)):
            found[s.dst] = found.get(s.src, s.src)
    return found


def is_dot(kernel: sg.Kernel, contract: sg.Contract, axes: Mapping[str, Iterable[Axis]]) -> bool:
    """Whether a contraction is a matrix product on tiles; see `tile_product`."""
    return tile_product(kernel, contract, axes) is not None


def tile_product(kernel: sg.Kernel, contract: sg.Contract, axes: Mapping[str, Iterable[Axis]]) -> Product | None:
    """The product of two matrices that a contraction is, or None: no axis but the contracted one is in both operands.

    Only axes count that are dimensions of the tile.
    """
    dims = _dimensions(kernel)
    found = matrix_product(dims & {*axes[contract.lhs]}, dims & {*axes[contract.rhs]}, {contract.axis})
    return None if found is None or found.batch else found


def dot_dims(
    kernel: sg.Kernel, contract: sg.Contract, axes: Mapping[str, Sequence[Axis]]
) -> tuple[tuple[Axis, ...], tuple[Axis, ...], tuple[Axis, ...]]:
    """The tile dimensions that only lhs has, that only rhs has, and that both have besides the contracted axis."""
    dims = _dimensions(kernel)
    lhs, rhs = axes[contract.lhs], axes[contract.rhs]
    both = set(lhs) & set(rhs)
    return (
        tuple(a for a in lhs if a in dims and a not in both),
        tuple(a for a in rhs if a in dims and a not in both),
        tuple(a for a in lhs if a in dims and a in both and a != contract.axis),
    )


_BYTES = (DType.INT8, DType.UINT8)


def of_bytes(kernel: sg.Kernel, tensors: Mapping[str, Tensor], axes: Mapping[str, Iterable[Axis]]) -> frozenset[str]:
    """The results of a kernel's contractions whose factors are bytes: CPUs multiply these.

    Either is a byte, in memory or as what is known of it says, or one plus a number that is the same everywhere; at
    least one is in memory.
    """
    every = [*kernel.statements()]
    if not any(isinstance(s, sg.Load) and tensors[s.tensor].dtype in _BYTES for s in every):
        return frozenset()
    known: dict[sg.Operand, Known] = {}
    loaded: set[str] = set()
    bytes_: set[str] = set()
    products: set[str] = set()

    def of(operand: sg.Operand) -> Known:
        return known.get(operand, NOTHING) if isinstance(operand, str) else constant(operand)

    for s in every:
        match s:
            case sg.Load(dst, tensor):
                t = tensors[tensor]
                known[dst] = stored(Interval(*declared(t), whole=not t.dtype.is_float))
                if t.dtype in _BYTES:
                    loaded.add(dst)
            case sg.Pointwise(dst, op, args):
                known[dst] = computed(op, [of(a) for a in args], args)
                for a, b in (args, args[::-1]) if op == "add" else ():
                    if a in bytes_ and not (isinstance(b, str) and [*axes[b]]) and of(b).bounds.whole:
                        bytes_.add(dst)
                        loaded |= {dst} if a in loaded else set()
            case sg.TileReduce(dst, ReduceKind() as kind, _, src) | sg.Accumulate(dst, ReduceKind() as kind, src, None):
                known[dst] = reduced(kind, of(src))
            case sg.Contract(dst, _, lhs, rhs) if {lhs, rhs} <= bytes_ and {lhs, rhs} & loaded:
                products.add(dst)
        if isinstance(s, sg.Load | sg.Pointwise) and known[s.dst].byte is not None:
            bytes_.add(s.dst)
    return frozenset(products)


def _dimensions(kernel: sg.Kernel) -> set[Axis]:
    return {a for a, r in kernel.roles if not drops_dimension(r) and a.extent != 1}


Nominal: TypeAlias = "Mapping[str, DType | None]"
"""The widest storage type of what a value was computed from, in which operators run one by one would have stored it.

By name of a value of one kernel, or of a tensor; None where only positions and numbers went in: what is computed from
them and floats is as the floats are. A buffer is as good as what it was computed from: partial results of
half-precision values are float32 in memory and half precision by this.
"""


def join(dtypes: Sequence[DType | None]) -> DType | None:
    """The nominal type of what is computed from values of these."""
    floats = {d for d in dtypes if d is not None and d.is_float}
    if not floats:
        return None
    return floats.pop() if len(floats) == 1 else DType.FLOAT32


def operands_type(kernel: sg.Kernel, nominal: Nominal, values: Iterable[str]) -> DType | None:
    """The type in which the kernel multiplies these values, of which it has the nominal types."""
    common = join([nominal[v] for v in values])
    return kernel.operands if common is DType.FLOAT32 and kernel.operands is not None else common


def nominal_types(sgraph: sg.SGraph) -> dict[str, Nominal]:
    """Those of every kernel's values, by the kernel's name; of what is loaded, the tensor's."""
    tensors: dict[str, DType | None] = {t.name: t.dtype for t in sgraph.inputs}
    stored = {t for k in sgraph.kernels for t in k.writes}
    for w in (w for r in sgraph.repeats for w in r.windows):
        tensors[w.tensor.name] = w.tensor.dtype
        if w.tensor.name in stored:
            tensors[w.of] = w.tensor.dtype
    found: dict[str, Nominal] = {}
    for k in sgraph.kernels:
        found[k.name] = values = of_values(k, tensors)
        for s in k.statements():
            if isinstance(s, sg.Store):
                own = values[s.src] if isinstance(s.src, str) else None
                tensors[s.tensor] = join((own, tensors.get(s.tensor))) or sgraph.tensor(s.tensor).dtype
    return found


def of_values(kernel: sg.Kernel, tensors: Nominal) -> dict[str, DType | None]:
    """Those of the kernel's values, given those of every tensor that it loads."""
    found: dict[str, DType | None] = {}

    def visit(body: Sequence[sg.Stmt]) -> None:
        for s in body:
            match s:
                case sg.Loop():
                    visit(s.body)
                case sg.Load(dst, tensor) | sg.Gather(dst, tensor):
                    found[dst] = tensors[tensor]
                case sg.Position(dst):
                    found[dst] = None
                case sg.Pointwise(dst, _, args):
                    found[dst] = join([found[a] for a in args if isinstance(a, str)])
                case sg.TileReduce(dst, _, _, src) | sg.Scan(dst, _, src) | sg.Accumulate(dst, _, src):
                    found[dst] = found[src]
                case sg.Contract(dst, _, lhs, rhs):
                    found[dst] = join((found[lhs], found[rhs]))
                case sg.Store():
                    pass

    visit(kernel.body)
    return found
