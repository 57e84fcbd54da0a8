"""Names of tile programs: statements with other names in the places of theirs, fresh names, what a name stands for."""

from __future__ import annotations

from collections.abc import Mapping

from prism.backends.lower import HELPERS, RESERVED
from prism.backends.lower_index import Names
from prism.backends.tile import (
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
    Select,
    Stmt,
    TileProgram,
    Within,
    identifier,
    integers,
    symbol,
)
from prism.ir import kit
from prism.ir.kit import Holds, defined, statements
from prism.program.extents import Extent

_NAMES = (Holds.DEFINES, Holds.CHANGES, Holds.USES, Holds.BINDS, Holds.SCALAR)


def renamed(s: Stmt, names: Mapping[str, str]) -> Stmt:
    """The statement, a loop with its body, with every name that `names` has replaced."""

    def integer(e: Extent) -> Extent:
        if isinstance(e, int):
            return e
        found = {x: names[identifier(x.name)] for x in e.free_symbols if identifier(x.name) in names}
        return e.xreplace({x: symbol(n) for x, n in found.items()}) if found else e

    return kit.with_names(s, names, *_NAMES, also={Holds.INTEGER: integer})


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
