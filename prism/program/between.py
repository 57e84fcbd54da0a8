"""Sums over what lies between two places, as differences of running sums.

    t[i, j] = sum_r where(r <= i, where(j < r, a[r], 0), 0)

is a sum of its own for every two places, as state space models write how much has decayed from one to the other. Of

    s[n] = sum_r where(r <= n, a[r], 0)   it is   t[i, j] = where(j <= i, s[i] - s[j], 0)

where every a[r] is a finite number, whatever finite inputs are: with something infinite before both, the difference is
none.
"""

from __future__ import annotations

from dataclasses import replace

from prism.errors import UnsupportedError
from prism.program.build import add, neg, position
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import (
    Const,
    Definition,
    DType,
    Expr,
    Map,
    Position,
    Program,
    Read,
    Reduce,
    ReduceKind,
    free_axes,
)
from prism.program.rolled import live_definitions
from prism.program.sign_analysis import Facts
from prism.program.transform import element_at


def differences(program: Program) -> Program:
    """The same program, in which sums between two places are differences of running sums; itself without such."""
    definitions: list[Definition] = []
    for d in program.definitions:
        definitions += _difference(program, d) or (d,)
    if len(definitions) == len(program.definitions):
        return program
    return replace(program, definitions=live_definitions(definitions, program))


def _difference(program: Program, d: Definition) -> tuple[Definition, Definition] | None:
    """The running sums, and the definition as their differences; None where it is no sum between two of its places."""
    match d.expr:
        case Reduce(ReduceKind.SUM, along, Map("where") as body):
            pass
        case _:
            return None
    last: Axis | None = None
    before: Axis | None = None
    term: Expr = body
    while last is None or before is None:
        match term:
            case Map("where", (Map("and", (p, q)), inside, Const(0.0) as nothing)):
                term = op("where", p, op("where", q, inside, nothing), nothing)
            case Map("where", (Map("le", (Position(r), Position(i))), inside, Const(0.0))) if r == Index.axis(along):
                last, term = i.as_axis(), inside
            case Map("where", (Map("lt", (Position(j), Position(r))), inside, Const(0.0))) if r == Index.axis(along):
                before, term = j.as_axis(), inside
            case Read():
                term = _written(program, term)
                if not (isinstance(term, Map) and term.op == "where"):
                    return None
            case _:
                return None
        if (last or along).extent != along.extent or (before or along).extent != along.extent:
            return None
    term = _written(program, term)
    if last == before or not {last, before} <= set(d.axes) or {last, before} & free_axes(term):
        return None
    axes = (*(a for a in d.axes if a in free_axes(term)), last)
    name = f"{d.name}_so_far"
    upto = op("where", op("le", position(along), position(last)), term, Const(0.0))
    dtype = DType.FLOAT32 if d.dtype.is_half else d.dtype
    sums = Definition(name, axes, Reduce(ReduceKind.SUM, along, upto), dtype, d.origin)
    if along not in free_axes(term) or name in program.order or not _is_finite(program, sums, term, along):
        return None

    def so_far(place: Axis) -> Expr:
        return Read(name, (*map(Index.axis, axes[:-1]), Index.axis(place)))

    between = add(so_far(last), neg(so_far(before)))
    return sums, replace(d, expr=op("where", op("le", position(before), position(last)), between, Const(0.0)))


def _written(program: Program, e: Expr) -> Expr:
    """What an expression reads, where that is a view or a choice."""
    while isinstance(e, Read) and e.tensor in program.order:
        d = program.definition(e.tensor)
        if not d.view and not (isinstance(d.expr, Map) and d.expr.op == "where"):
            break
        e = element_at(d, e.index)
    return e


def _is_finite(program: Program, sums: Definition, term: Expr, along: Axis) -> bool:
    """Whether what is summed is a number at all finite inputs."""
    terms = replace(sums, axes=(*sums.axes[:-1], along), expr=term)
    try:
        (written,) = inline(replace(program, definitions=(*program.definitions, terms)), (terms.name,))
    except UnsupportedError:
        return False
    return Facts().finite(written.expr)
