"""How much running a program takes, in elements and multiply-adds: counted, never timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prism.program import extents
from prism.program.index import Axis
from prism.program.nodes import Definition, Expr, Map, Program, Read, Reduce, ReduceKind, free_axes, walk
from prism.program.prefix import carried, stepwise


@dataclass(frozen=True, slots=True)
class Work:
    """What running a program takes."""

    elements: int  # of all arrays that are made on the way
    reads: int  # elements that are read, each as often as it is
    products: int  # multiply-adds of contractions


def work(program: Program, binding: Mapping[str, int]) -> Work:
    """What one run of the program takes, every definition once."""
    elements = sum(math.prod([extents.evaluate(e, binding) for e in t.shape]) for t in program.inputs)
    reads = products = 0
    found = [
        (1, formula_work(d.expr, d.axes, lambda a: extents.evaluate(a.extent, binding))) for d in program.definitions
    ]
    found += [(extents.evaluate(loop.trips, binding), work(loop.body, binding)) for loop in program.loops]
    for times, made in found:
        elements, reads = elements + times * made.elements, reads + times * made.reads
        products += times * made.products
    return Work(elements, reads, products)


def definition_work(d: Definition, binding: Mapping[str, int]) -> Work:
    """What one definition takes."""
    return formula_work(d.expr, d.axes, lambda a: extents.evaluate(a.extent, binding))


def formula_work(expr: Expr, axes: Sequence[Axis], size: Callable[[Axis], int]) -> Work:
    """What a formula takes over some axes, by the number of places along each."""
    elements, reads, products = math.prod([size(a) for a in axes]), 0, 0
    contracted: set[int] = set()
    for e in reversed(list(walk(stepwise(expr, sums=False)))):  # parents first
        if isinstance(e, Reduce) and e.kind is ReduceKind.SUM and carried(e) is None:
            inner: Expr = e
            while isinstance(inner, Reduce) and inner.kind is ReduceKind.SUM:
                contracted.add(id(inner))
                inner = inner.body
            if isinstance(inner, Map) and inner.op == "mul":
                products += math.prod([size(a) for a in free_axes(inner)])
                stack: list[Expr] = [inner]
                while stack:
                    factor = stack.pop()
                    if isinstance(factor, Map) and factor.op in ("mul", "neg"):
                        contracted.add(id(factor))
                        stack += factor.args
        if isinstance(e, Read):
            reads += math.prod([size(a) for a in free_axes(e)])
        elif isinstance(e, Map | Reduce) and id(e) not in contracted:
            elements += math.prod([size(a) for a in free_axes(e)])
    return Work(elements, reads, products)
