"""In which order the dimensions of what kernels hand over lie in memory.

A buffer is declared in the order of its value's axes, which is nobody's wish: a kernel whose programs have one place
each along the last of them, as of a product that is batched along it, touches one element of every sector that it
loads. Where another dimension is one along which all kernels that touch the buffer have tiles, that is the last one in
memory (`laid_out`): a[i, k, d], made row by row and multiplied batch by batch over d, lies as [i, d, k]. What regions
hand over is declared before there are kernels, and so by what products will do with it (`arranged`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from prism.ir import kit
from prism.program.index import Axis, Index
from prism.program.nodes import Expr, Program, Read, Reduce, ReduceKind, Tensor, walk
from prism.program.products import product_of
from prism.program.transform import replaced
from prism.sgraph import nodes as sg


def laid_out(sgraph: sg.SGraph) -> sg.SGraph:
    """The sGraph with its buffers in such orders; it computes the same."""
    stepped = {w.of for r in sgraph.repeats for w in r.windows}
    for b in sgraph.buffers:
        order = () if b.name in stepped else _order(sgraph, b)
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


def _order(sgraph: sg.SGraph, buffer: Tensor) -> tuple[int, ...]:
    """The places of the buffer's dimensions in the order that is better; empty where it is as good as it is."""
    last = len(buffer.shape) - 1
    tiled = set(range(last + 1))
    for kernel in sgraph.kernels:
        for s in kernel.statements():
            if isinstance(s, sg.Load | sg.Gather | sg.Store) and s.tensor == buffer.name:
                tiled &= _tiled(kernel, s)
    if last in tiled or not tiled:
        return ()
    new = max(tiled)
    return (*(n for n in range(last + 1) if n != new), new)


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
            new = max(left.intersection(*(s for _, s in found if s)) or left)
            orders[d.name] = (*(n for n in range(last + 1) if n != new), new)
    return _reordered(program, orders) if orders else program


def _touched(program: Program) -> Iterator[tuple[str, tuple[Index, ...], AbstractSet[Axis], AbstractSet[Axis]]]:
    """What every product of matrices makes, and what its factors read: where, and its batch and its summed axes."""
    for d in program.definitions:
        inside: set[Expr] = set()
        for e in reversed(list(walk(d.expr))):
            if not isinstance(e, Reduce) or e.kind is not ReduceKind.SUM or e in inside:
                continue
            body, summed = e.body, {e.axis}
            while isinstance(body, Reduce) and body.kind is ReduceKind.SUM:
                inside.add(body)
                summed.add(body.axis)
                body = body.body
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
