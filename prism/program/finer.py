"""A program whose definitions are small: what an operator computes on the way has names of its own.

A layer normalisation is one operator and one definition; with its mean, its variance and what it multiplies by the gain
defined one by one, another program that has these, and no gain, has them in common with it.
"""

from __future__ import annotations

from dataclasses import replace

from prism.program.index import Index
from prism.program.nodes import Definition, Expr, Map, Program, Read, Reduce, free_axes, walk
from prism.program.ops import OPS


def finer(program: Program) -> Program:
    """The same program with a definition for each operation on floats and each reduction.

    What stands below a choice stays there, as it may read outside of a tensor where it is not chosen, and what depends
    on the axis of a reduction stays in it.
    """
    made: list[Definition] = []
    taken = {d.name for d in program.definitions} | {t.name for t in program.inputs}
    for d in program.definitions:
        bound = {e.axis for e in walk(d.expr) if isinstance(e, Reduce)}
        if d.view or not d.dtype.is_float or not bound.isdisjoint(d.axes):
            made.append(d)
            continue
        parts: dict[Expr, Definition] = {}
        made_expr = _named(d, d.expr, parts, taken, {})
        # The last one is the definition itself.
        made += [p for p in parts.values() if p.expr is not made_expr]
        made.append(replace(d, expr=made_expr))
    return replace(program, definitions=tuple(made))


def _named(d: Definition, root: Expr, parts: dict[Expr, Definition], taken: set[str], done: dict[int, Expr]) -> Expr:
    """The expression over names for what it is computed from."""

    def visit(e: Expr) -> Expr:
        known = done.get(id(e))
        if known is not None:
            return known
        match e:
            case Map("where", (p, a, b)):
                new: Expr = Map("where", (visit(p), a, b))
            case Map(op, args):
                new = Map(op, tuple([visit(a) for a in args]))
            case Reduce(kind, axis, body):
                new = Reduce(kind, axis, visit(body))
            case _:
                new = e
        if e is not root and _stands_alone(d, e):
            new = name(new)
        done[id(e)] = new
        return new

    def name(e: Expr) -> Expr:
        if e not in parts:
            number = len(parts)
            called = f"{d.name}.{number}"
            while called in taken:
                called += "'"
            taken.add(called)
            axes = tuple([a for a in d.axes if a in free_axes(e)])
            parts[e] = Definition(called, axes, e, d.dtype, d.origin)
        part = parts[e]
        return Read(part.name, tuple(map(Index.axis, part.axes)))

    return visit(root)


def _stands_alone(d: Definition, e: Expr) -> bool:
    """Whether an expression has a value for each element of the definition, and more to it than a read."""
    match e:
        case Map(op, _) if OPS[op].boolean:
            return False
        case Map() | Reduce():
            return free_axes(e).issubset(d.axes) and any(isinstance(x, Read) for x in walk(e))
    return False
