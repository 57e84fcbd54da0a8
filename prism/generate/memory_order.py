"""In which order the dimensions of what kernels hand over lie in memory.

A buffer is declared in the order of its value's axes, which is nobody's wish: a kernel whose programs have one place
each along the last of them, as of a product that is batched along it, touches one element of every sector that it
loads. Where another dimension is one along which all kernels that touch the buffer have tiles, that is the last one in
memory (`laid_out`): a[i, k, d], made row by row and multiplied batch by batch over d, lies as [i, d, k]. What regions
hand over is declared before there are kernels, and so by what products will do with it (`arranged`). Inputs and
results lie as they do; copies of them in another order are candidates beside (`copies`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import sympy

from prism.cost.counts import SECTOR_BYTES
from prism.ir import kit
from prism.ir.kit import free_name
from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Expr, Program, Read, Reduce, ReduceKind, Tensor, walk
from prism.program.products import product_of
from prism.program.transform import least_instance, nested, replaced
from prism.sgraph import nodes as sg


def laid_out(sgraph: sg.SGraph) -> sg.SGraph:
    """The sGraph, which has no steps, with its buffers in such orders; it computes the same."""
    for b in sgraph.buffers:
        order = _order(sgraph, b)
        if order:
            sgraph = reordered(sgraph, b.name, order)
    return sgraph


def reordered(sgraph: sg.SGraph, name: str, order: Sequence[int]) -> sg.SGraph:
    """The sGraph with a buffer's dimensions in another order: `order` has their places in the present one."""

    def change(s: sg.Stmt) -> sg.Stmt:
        if not isinstance(s, sg.Load | sg.Gather | sg.Store) or s.tensor != name:
            return s
        index = tuple(s.index[n] for n in order)
        if isinstance(s, sg.Load):
            return replace(s, index=index)
        places = tuple(replace(p, dimension=order.index(p.dimension)) for p in s.places)
        return replace(s, index=index, places=places)

    kernels = tuple(replace(k, body=kit.rewrite(k.body, change)) for k in sgraph.kernels)
    buffers = tuple(replace(b, shape=tuple(b.shape[n] for n in order)) if b.name == name else b for b in sgraph.buffers)
    return replace(sgraph, kernels=kernels, buffers=buffers)


def copies(sgraph: sg.SGraph) -> list[sg.SGraph]:
    """The sGraph with what it reads copied to such an order first, and what it gives from such an order last; or one.

    Each is a launch more, which moves every element twice, side by side: by sectors of 32 bytes that is the time of
    a quarter of what single elements of 2 bytes take.
    """
    found = []
    for tensors in dict.fromkeys(((*sgraph.inputs, *sgraph.outputs), sgraph.outputs)):
        made = sgraph
        for t in tensors:
            made = _copied(made, t, t in sgraph.inputs)
        if made is not sgraph and made not in found:
            found.append(made)
    return found


def _copied(sgraph: sg.SGraph, t: Tensor, first: bool) -> sg.SGraph:
    """The sGraph with a copy of the tensor in a better order, made `first` or last; itself where none is better."""
    order = _order(sgraph, t)
    touching = [s for _, s in _touching(sgraph, t.name)]
    # What is looked up, or read by digits, has neighbours that no tile tells of.
    if not order or any(s.index[-1].as_axis() is None for s in touching):
        return sgraph
    # Of a row that is no longer than a sector neighbours of the program take the rest.
    if is_static(t.shape[-1]) and int(t.shape[-1]) * t.dtype.bytes <= SECTOR_BYTES:
        return sgraph
    axes: list[Axis] = []
    if first:
        for e in t.shape:
            axes.append(least_instance(e, axes))
    else:  # a result has the axes by which it is stored
        stores = [s for s in touching if isinstance(s, sg.Store)]
        axes = [a for s in stores for i in s.index if (a := i.as_axis()) is not None]
        plain = len(stores) == 1 and not stores[0].places and stores[0].moment is None
        if not plain or len({*axes}) < len(t.shape):
            return sgraph
    buffer = Tensor(free_name(f"{t.name}_copy", {*sgraph.tensors}), t.shape, t.dtype)
    names = {t.name: buffer.name}
    kernels = tuple(
        replace(k, body=tuple(kit.with_names(s, names, kit.Holds.TENSOR) for s in k.body)) for k in sgraph.kernels
    )
    source, end = (t, buffer) if first else (buffer, t)
    index = tuple(map(Index.axis, axes))
    copy = sg.Kernel(
        f"{sgraph.name}_{buffer.name}_kernel",
        tuple((a, sg.Grid(sympy.Symbol(f"T_{a.name}_{buffer.name}", integer=True, positive=True))) for a in axes),
        (sg.Load("x1", source.name, index), sg.Store(end.name, index, "x1")),
    )
    kernels = (copy, *kernels) if first else (*kernels, copy)
    return reordered(replace(sgraph, buffers=(*sgraph.buffers, buffer), kernels=kernels), buffer.name, order)


def _touching(sgraph: sg.SGraph, name: str) -> Iterator[tuple[sg.Kernel, sg.Load | sg.Gather | sg.Store]]:
    """What loads from a tensor or stores to it, each with its kernel."""
    for kernel in sgraph.kernels:
        for s in kernel.statements():
            if isinstance(s, sg.Load | sg.Gather | sg.Store) and s.tensor == name:
                yield kernel, s


def _order(sgraph: sg.SGraph, buffer: Tensor) -> tuple[int, ...]:
    """The places of the buffer's dimensions in the order that is better; empty where it is as good as it is."""
    rank = len(buffer.shape)
    tiled = set(range(rank))
    for kernel, s in _touching(sgraph, buffer.name):
        tiled &= _tiled(kernel, s)
    return () if rank - 1 in tiled or not tiled else _ending(rank, max(tiled))


def _ending(rank: int, last: int) -> tuple[int, ...]:
    """The places of so many dimensions, one of them last."""
    return (*(n for n in range(rank) if n != last), last)


def _tiled(kernel: sg.Kernel, s: sg.Load | sg.Gather | sg.Store) -> set[int]:
    """The dimensions along which a tile may have neighbours."""
    by_data = set() if isinstance(s, sg.Load) else {p.dimension for p in s.places}
    long = {a for a, role in kernel.roles if role.tile != 1}
    return {
        n
        for n, index in enumerate(s.index)
        if n not in by_data and any(a in long and abs(index.slope(a)) == 1 for a in index.axes())
    }


def arranged(program: Program) -> Program:
    """The program with what products make or read batch by batch along the last dimension declared in another order.

    The last one is then a dimension that no product is batched along, a summed one if there is one. Inputs and outputs
    lie as they do, and so does what loops are given.
    """
    touched: dict[str, list[tuple[set[int], set[int]]]] = {}
    for name, index, batch, summed in () if program.loops else _touched(program):
        along = [i.axes() for i in index]
        batched = {n for n, axes in enumerate(along) if axes and axes <= batch}
        touched.setdefault(name, []).append((batched, {n for n, axes in enumerate(along) if axes & summed}))
    orders: dict[str, tuple[int, ...]] = {}
    for d in program.definitions:
        last, found = len(d.axes) - 1, touched.get(d.name, [])
        if d.view or d.name in program.outputs or not found or not all(last in batched for batched, _ in found):
            continue
        left = {n for n, a in enumerate(d.axes) if a.extent != 1}.difference(*(batched for batched, _ in found))
        if left:
            orders[d.name] = _ending(last + 1, max(left.intersection(*(s for _, s in found if s)) or left))
    return _reordered(program, orders) if orders else program


def _touched(program: Program) -> Iterator[tuple[str, tuple[Index, ...], AbstractSet[Axis], AbstractSet[Axis]]]:
    """What every product of matrices makes, and what its factors read: where, and its batch and its summed axes."""
    for d in program.definitions:
        inside: set[Expr] = set()
        for e in reversed(list(walk(d.expr))):
            if not isinstance(e, Reduce) or e.kind is not ReduceKind.SUM or e in inside:
                continue
            sums = nested(e)
            inside.update(sums[1:])
            body, summed = sums[-1].body, {s.axis for s in sums}
            found = product_of(body, summed)
            if found is None or not found.is_matrix:
                continue
            if e is d.expr:
                yield d.name, tuple(map(Index.axis, d.axes)), found.batch, summed
            for r in walk(body):
                if isinstance(r, Read):
                    yield r.tensor, r.index, found.batch, summed


def _reordered(program: Program, orders: Mapping[str, Sequence[int]]) -> Program:
    def read(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.tensor not in orders:
            return e
        return Read(e.tensor, tuple(e.index[n] for n in orders[e.tensor]))

    exprs = replaced([d.expr for d in program.definitions], read)
    axes = (tuple(d.axes[n] for n in orders.get(d.name, range(len(d.axes)))) for d in program.definitions)
    made = (replace(d, expr=e, axes=a) for d, e, a in zip(program.definitions, exprs, axes, strict=True))
    return replace(program, definitions=tuple(made))
