"""Mistakes, made at random in one place of an expression: what a slip of the pen does to a true identity."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from prism.program.build import const, neg
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind
from prism.program.transform import substitute

Path = tuple[int, ...]

_OTHER = {
    "lt": "le", "le": "lt", "maximum": "minimum", "minimum": "maximum", "sin": "cos", "cos": "sin", "exp": "sigmoid",
    "sqrt": "abs", "sigmoid": "tanh", "tanh": "erf", "erf": "tanh", "eq": "le", "and": "or", "or": "and",
}  # fmt: skip


def paths(e: Expr, at: Path = ()) -> Iterator[tuple[Path, Expr]]:
    """Every place of an expression, as a tree."""
    yield at, e
    for n, c in enumerate(e.children):
        yield from paths(c, (*at, n))


def put(e: Expr, path: Path, new: Expr) -> Expr:
    """The expression with something else at a place."""
    if not path:
        return new
    match e:
        case Map(op, args):
            return Map(op, tuple(put(a, path[1:], new) if n == path[0] else a for n, a in enumerate(args)))
        case Reduce(kind, axis, body):
            return Reduce(kind, axis, put(body, path[1:], new))
    raise AssertionError(path)


def mutants(e: Expr, bound: tuple[Axis, ...]) -> Iterator[Expr]:
    """What may stand there by mistake; `bound` are the axes that are in scope."""
    match e:
        case Const(c) if np.isfinite(c):
            yield from (const(c * (1 + d)) for d in (1e-9, 1e-7, 1e-6, 1e-3) if c)
            yield from (const(x) for x in (c + 1, c - 1, -c, 2 * c) if x != c)
        case Read(tensor, index):
            for n, i in enumerate(index):
                one = i.as_axis()
                for m in range(n):
                    two = index[m].as_axis()
                    if one is not None and two is not None and one.extent == two.extent and one != two:
                        swapped = list(index)
                        swapped[m], swapped[n] = index[n], index[m]
                        yield Read(tensor, tuple(swapped))
                if one is not None:
                    for other in bound:
                        if other != one and other.extent == one.extent:
                            yield Read(tensor, (*index[:n], Index.axis(other), *index[n + 1 :]))
        case Position(index):
            yield from (Position(index + d) for d in (1, -1))
        case Reduce(kind, axis, body):
            n = int(axis.extent)
            if n > 1:
                short = Axis(f"{axis.name}.s", n - 1)
                for start in (0, 1):
                    yield Reduce(kind, short, substitute(body, {axis: Index.axis(short) + start}))
            yield Reduce(ReduceKind.MAX if kind is ReduceKind.SUM else ReduceKind.SUM, axis, body)
        case Map("add" | "mul" as name, (a, b)):
            yield from (a, b, Map("mul" if name == "add" else "add", (a, b)))
            yield Map(name, (a, neg(b)))
        case Map("neg" | "recip", (a,)):
            yield a
        case Map("where", (p, a, b)):
            yield from (Map("where", (p, b, a)), a, b)
        case Map(name, args):
            if name in _OTHER:
                yield Map(_OTHER[name], args)
            if len(args) == 1:
                yield args[0]


def mutant(e: Expr, rng: np.random.Generator) -> Expr:
    """The expression with one mistake in it."""
    places = list(paths(e))
    for _ in range(200):
        path, there = places[int(rng.integers(len(places)))]
        scope: list[Axis] = []
        at = e
        for n in path:
            if isinstance(at, Reduce):
                scope.append(at.axis)
            at = at.children[n]
        found = list(mutants(there, tuple(scope)))
        if found:
            return put(e, path, found[int(rng.integers(len(found)))])
    return neg(e)
