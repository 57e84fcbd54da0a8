"""Rewriting expressions under binders: substitution without capture, canonical names, inlining.

Canonical names. An axis is called after its extent and an instance number: `d4096`, `d4096_1`, `seq`. A bound axis
takes, from the outside in, the least instance that is not free in its reduction; a free axis the least not yet taken,
in the order of the output's dimensions. Two programs that were written apart so meet in one e-graph wherever they
differ by the names of axes alone, and a rewrite that moves a term out of a reduction over `k` needs only to ask
whether `k` is one of its free axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prism.program.build import size
from prism.program.extents import Extent, is_static, text
from prism.program.index import Axis, Index
from prism.program.nodes import Expr, Map, Position, Read, Reduce, ReduceKind, free_axes


def substitute(expr: Expr, mapping: Mapping[Axis, Index]) -> Expr:
    """`expr` with free axes replaced by indices; bound axes are renamed where an index would be captured."""
    return _substitute(expr, mapping, {})


def _substitute(expr: Expr, mapping: Mapping[Axis, Index], axes: dict[int, frozenset[Axis]]) -> Expr:
    """`substitute`; `axes` holds the free axes of parts of the expression."""
    if not mapping:
        return expr
    memo: dict[int, Expr] = {}

    def visit(e: Expr) -> Expr:
        known = memo.get(id(e))
        if known is not None:
            return known
        match e:
            case Read(tensor, index):
                done: Expr = Read(tensor, tuple(i.substitute(mapping) for i in index))
            case Position(index):
                done = Position(index.substitute(mapping))
            case Map(op, args):
                done = Map(op, tuple(visit(a) for a in args))
            case Reduce(kind, axis, body):
                inner = {a: i for a, i in mapping.items() if a != axis}
                free = free_axes(body, axes)
                inner = {a: i for a, i in inner.items() if a in free}
                arriving = frozenset(x for i in inner.values() for x in i.axes())
                if not inner:
                    done = e
                elif axis in arriving:
                    fresh = _fresh(axis, arriving | free)
                    done = Reduce(kind, fresh, _substitute(body, {**inner, axis: Index.axis(fresh)}, axes))
                elif len(inner) < len(mapping):
                    done = Reduce(kind, axis, _substitute(body, inner, axes))
                else:
                    done = Reduce(kind, axis, visit(body))
            case _:
                done = e
        memo[id(e)] = done
        return done

    return visit(expr)


def _fresh(axis: Axis, taken: Iterable[Axis]) -> Axis:
    names = {a.name for a in taken}
    n = 1
    while f"{axis.name}~{n}" in names:
        n += 1
    return Axis(f"{axis.name}~{n}", axis.extent)


def axis_class(extent: Extent) -> str:
    """The name that all axes of one extent share."""
    return f"d{extent}" if is_static(extent) else text(extent)


def instance(extent: Extent, number: int) -> Axis:
    """The canonical axis of that extent and instance number."""
    base = axis_class(extent)
    return Axis(base if number == 0 else f"{base}_{number}", extent)


def least_instance(extent: Extent, taken: Iterable[Axis]) -> Axis:
    """The canonical axis of that extent with the least instance number that is not taken."""
    names = {a.name for a in taken}
    number = 0
    while True:
        axis = instance(extent, number)
        if axis.name not in names:
            return axis
        number += 1


def canonical(expr: Expr) -> Expr:
    """`expr` with every bound axis given its canonical name; free axes keep theirs, which must be canonical.

    A reduction over an axis that its body does not mention is written without it.
    """
    memo: dict[int, Expr] = {}
    axes: dict[int, frozenset[Axis]] = {}

    def visit(e: Expr) -> Expr:
        known = memo.get(id(e))
        if known is not None:
            return known
        match e:
            case Map(op, args):
                new = tuple(visit(a) for a in args)
                done: Expr = e if all(a is b for a, b in zip(new, args, strict=True)) else Map(op, new)
            case Reduce(kind, axis, body) if axis not in free_axes(body, axes):
                done = visit(_repeated(kind, axis, body))
            case Reduce(kind, axis, body):
                name = least_instance(axis.extent, free_axes(e, axes))
                renamed = body if name == axis else _substitute(body, {axis: Index.axis(name)}, axes)
                # A renamed body is a new term: its inner binders are named in a scope of their own.
                done = Reduce(kind, name, visit(renamed) if renamed is body else canonical(renamed))
            case _:
                done = e
        memo[id(e)] = done
        # `e` stays alive through `expr`; renamed bodies are handled by the nested call, so ids do not clash.
        return done

    return visit(expr)


def _repeated(kind: ReduceKind, axis: Axis, body: Expr) -> Expr:
    """The reduction of a body that does not mention the axis: as many equal values as the axis is long."""
    match kind:
        case ReduceKind.SUM:
            return Map("mul", (body, size(axis.extent)))
        case ReduceKind.PROD:
            return Map("pow", (body, size(axis.extent)))
        case _:
            return body


def rename_free(expr: Expr, names: Mapping[Axis, Axis]) -> Expr:
    """`expr` with free axes renamed."""
    return substitute(expr, {a: Index.axis(b) for a, b in names.items() if a != b})
