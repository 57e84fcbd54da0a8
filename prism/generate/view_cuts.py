"""Cuts at reshapes: where an index cannot be affine, because a dimension is cut by what does not divide it.

A class token beside 4 by 4 patches makes 17 rows, and the patch of the i-th is in row (i - 1) div 4: no split of i says
that. But the 16 patches split, and a tensor of them that is in memory is read as any other. So where a value cannot be
inlined, what it reads is materialised, be it a view that is only copied then: a region of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from prism.errors import UnsupportedError
from prism.program.index import FloorDiv, Index, Mod
from prism.program.inline import inline
from prism.program.nodes import Expr, Position, Program, Read, walk
from prism.program.region import Region, reads, subprogram


def affine(region: Region) -> Sequence[Region]:
    """Several regions that do the same, and whose reads are affine.

    The region itself where its own are, or where no cut helps.
    """
    program = region.program
    if not any(_divides(d.expr) for d in program.definitions) or _inlines(program):
        return (region,)
    given: dict[str, None] = {}
    defined = {d.name for d in program.definitions}
    for d in program.definitions:
        if _inlines(subprogram(program, program.name, [d.name], _but(given, d.name))):
            continue
        given.update(dict.fromkeys(t for t in reads(d.expr) if t in defined))
        if not _inlines(subprogram(program, program.name, [d.name], _but(given, d.name))):
            return (region,)
    order = {d.name: n for n, d in enumerate(program.definitions)}
    cuts = sorted(given, key=order.__getitem__)
    parts = [Region(subprogram(program, f"{program.name}_{n}", [t], _but(given, t)), (t,)) for n, t in enumerate(cuts)]
    left = [o for o in program.outputs if o not in given]
    if left:
        parts.append(Region(subprogram(program, program.name, left, given), tuple(left)))
    return tuple(parts)


def _but(given: dict[str, None], name: str) -> set[str]:
    return given.keys() - {name}


def _inlines(program: Program) -> bool:
    with suppress(UnsupportedError):
        inline(program)
        return True
    return False


def _divides(expr: Expr) -> bool:
    """Whether an index in it is a quotient or a remainder."""
    indices: list[Index] = []
    for e in walk(expr):
        match e:
            case Read(_, index):
                indices += index
            case Position(index):
                indices.append(index)
            case _:
                pass
    return any(isinstance(atom, (FloorDiv, Mod)) for i in indices for atom, _ in i.terms)
