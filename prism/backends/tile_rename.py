"""Names of tile programs: statements with other names in the places of theirs, fresh names, what a name stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from prism.backends.lower import HELPERS, RESERVED
from prism.backends.lower_index import Names
from prism.backends.tile import (
    Affine,
    Cast,
    Copy,
    Dims,
    Dot,
    For,
    Full,
    InBounds,
    IndexValue,
    Load,
    Offsets,
    Pointwise,
    Prefix,
    Rearrange,
    Reduce,
    Scalar,
    Select,
    Stmt,
    Store,
    TileProgram,
    Update,
    Within,
    defined,
    identifier,
    integers,
    statements,
    symbol,
)
from prism.program.extents import Extent


def renamed(s: Stmt, names: Mapping[str, str]) -> Stmt:
    """The statement, a loop with its body, with every name that `names` has replaced."""

    def name(n: str) -> str:
        return names.get(n, n)

    def integer(e: Extent) -> Extent:
        if isinstance(e, int):
            return e
        found = {x: names[identifier(x.name)] for x in e.free_symbols if identifier(x.name) in names}
        return e.xreplace({x: symbol(n) for x, n in found.items()}) if found else e

    def affine(a: Affine) -> Affine:
        return Affine(tuple((name(n), integer(c)) for n, c in a.terms), integer(a.offset), a.wide)

    match s:
        case Scalar(dst, value):
            return Scalar(name(dst), integer(value))
        case Offsets(dst=dst, start=start):
            return replace(s, dst=name(dst), start=integer(start))
        case InBounds(dst=dst, index=index, high=high, low=low):
            bounds = (None if e is None else integer(e) for e in (high, low))
            return replace(s, dst=name(dst), index=affine(index), high=next(bounds), low=next(bounds))
        case IndexValue(dst=dst, index=index):
            return replace(s, dst=name(dst), index=affine(index))
        case Load(dst=dst, offset=offset, masks=masks):
            return replace(s, dst=name(dst), offset=affine(offset), masks=tuple(map(name, masks)))
        case Full(dst=dst):
            return replace(s, dst=name(dst))
        case Cast() | Copy() | Reduce() | Prefix() | Rearrange():
            return replace(s, dst=name(s.dst), src=name(s.src))
        case Pointwise(dst=dst, args=args):
            return replace(s, dst=name(dst), args=tuple(name(a) if isinstance(a, str) else a for a in args))
        case Select(dst=dst, mask=mask, src=src):
            return replace(s, dst=name(dst), mask=name(mask), src=name(src))
        case Dot(dst=dst, lhs=lhs, rhs=rhs, add=add):
            return replace(s, dst=name(dst), lhs=name(lhs), rhs=name(rhs), add=None if add is None else name(add))
        case Update(acc=acc, src=src):
            return replace(s, acc=name(acc), src=name(src))
        case Store(offset=offset, masks=masks, src=src):
            given = name(src) if isinstance(src, str) else src
            return replace(s, offset=affine(offset), masks=tuple(map(name, masks)), src=given)
        case For(index=index, start=start, stop=stop, step=step, body=body):
            inner = tuple(renamed(x, names) for x in body)
            return For(name(index), integer(start), integer(stop), integer(step), inner)
        case Within(dst, index, low, high, src, body, value):
            ends = tuple(None if e is None else integer(e) for e in (low, high))
            inner = tuple(renamed(x, names) for x in body)
            return Within(name(dst), name(index), ends[0], ends[1], name(src), inner, name(value))


def names_beside(program: TileProgram) -> Names:
    """Hands out names that the program does not have."""
    taken = {*RESERVED, *HELPERS, *program.lengths}
    taken |= {c.name for c in program.constants} | {g.index for g in program.grid}
    taken |= {identifier(t.name) + "_ptr" for t in program.tensors}
    for s in statements(program.body):
        taken |= {*integers(s), (s.index if isinstance(s, For) else defined(s)) or ""}
    return Names(taken)


def value_dims(program: TileProgram) -> dict[str, Dims]:
    """The dimensions of every value."""
    found: dict[str, Dims] = {}
    for s in statements(program.body):
        match s:
            case Offsets(dst=dst, dim=dim):
                found[dst] = (dim,)
            case InBounds(dst=dst, dims=dims) | IndexValue(dst=dst, dims=dims) | Load(dst=dst, dims=dims):
                found[dst] = dims
            case Full(dst=dst, dims=dims) | Pointwise(dst=dst, dims=dims):
                found[dst] = dims
            case Cast() | Copy() | Select() | Prefix() | Within():
                found[s.dst] = found.get(s.src, ())
            case Reduce(dst=dst, src=src, dim=dim):
                found[dst] = tuple(d for d in found[src] if d != dim)
            case Dot(dst=dst, lhs=lhs, rhs=rhs):
                found[dst] = (found[lhs][0], found[rhs][1])
            case Rearrange(dst=dst, groups=groups):
                found[dst] = tuple("*".join(g) for g in groups)
            case _:
                pass
    return found
