"""Kernels that cost the same because they differ by names alone.

Forms that associate a product differently, cuts that store under another name and outputs that swap give kernels that
are one kernel up to the names of tensors, symbols and operators of equal cost. Cost and constraints do not look at
those names, so what one of them reaches all of them reach.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from prism.program.index import Axis
from prism.program.ops import OPS
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Gather,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Pointwise,
    Position,
    Role,
    Scan,
    SGraph,
    Split,
    Statistic,
    Stmt,
    Store,
    TileReduce,
    Whole,
)


def isomorphism_key(kernels: Sequence[Kernel], sgraph: SGraph) -> tuple[object, ...]:
    """What the cost and the constraints of the kernels depend on; equal for kernels that differ by names alone."""
    numbers: dict[sympy.Symbol, int] = {}
    return tuple(_kernel(k, sgraph, numbers) for k in kernels)


def _kernel(kernel: Kernel, sgraph: SGraph, numbers: dict[sympy.Symbol, int]) -> object:
    def symbol(s: object) -> object:
        return numbers.setdefault(s, len(numbers)) if isinstance(s, sympy.Symbol) else s

    def role(r: Role) -> object:
        match r:
            case Grid(tile):
                return "grid", symbol(tile)
            case LoopRole(tile):
                return "loop", symbol(tile)
            case Split(parts, tile):
                return "split", symbol(parts), symbol(tile)
            case Whole():
                return "whole"

    axes: dict[Axis, int] = {}
    roles: list[object] = []
    for axis, r in kernel.roles:
        axes[axis] = len(axes)
        roles.append((numbers.get(axis.extent, axis.extent), axis.name.endswith(".part"), role(r)))

    def index(items: Sequence[object]) -> tuple[object, ...]:
        found: list[object] = []
        for i in items:
            terms = i.terms  # type: ignore[attr-defined]
            found.append(tuple((axes.get(a, a), c) for a, c in terms))
        return tuple(found)

    def tensor(name: str) -> object:
        declared = sgraph.tensor(name)
        return declared.dtype, tuple(numbers.get(e, e) for e in declared.shape)

    def body(statements: Sequence[Stmt]) -> tuple[object, ...]:
        found: list[object] = []
        for s in statements:
            match s:
                case Load(dst, name, at):
                    found.append(("load", dst, tensor(name), index(at)))
                case Gather(dst, name, at, places):
                    where = tuple((p.value, p.dimension, p.extent) for p in places)
                    found.append(("gather", dst, tensor(name), index(at), where))
                case Position(dst, at):
                    found.append(("position", dst, index((at,))))
                case Pointwise(dst, op, args):
                    found.append((OPS[op].flops, dst, tuple(a if isinstance(a, str) else None for a in args)))
                case TileReduce(dst, kind, axis, src, moments):
                    found.append(("reduce", isinstance(kind, Statistic), dst, axes.get(axis), src, moments))
                case Contract(dst, axis, lhs, rhs):
                    found.append(("contract", dst, axes.get(axis), lhs, rhs))
                case Accumulate(dst, _, src, shift):
                    found.append(("accumulate", dst, src, shift))
                case Scan(dst, axis, src, growth, before):
                    found.append(
                        (
                            "scan",
                            dst,
                            axes.get(axis),
                            src,
                            growth if isinstance(growth, str) else growth is None,
                            before,
                        )
                    )
                case Loop(axis, inner, condition):
                    found.append(("loop", axes.get(axis), index(condition), str(condition), body(inner)))
                case Store(name, at, src):
                    found.append(("store", tensor(name), index(at), src if isinstance(src, str) else None))
        return tuple(found)

    return tuple(roles), body(kernel.body)
