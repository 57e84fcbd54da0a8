"""Tile programs rewritten: other names in the places of theirs, fresh names, and what no store needs dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from prism.backends.lower_index import HELPERS, RESERVED, Names
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
    Store,
    TileProgram,
    Update,
    Within,
    identifier,
    integers,
    symbol,
)
from prism.backends.tile import integers as integer_symbols
from prism.ir import kit
from prism.ir.kit import Holds, defined, operands, rewrite, statements
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


def clean(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The body without dead statements and without loads that are only there to be converted."""
    return _fold_loads(_live(body))


def _live(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    everything = list(statements(body))
    live: set[str] = set()
    grown = True
    while grown:
        before = len(live)
        for s in reversed(everything):
            if isinstance(s, For):
                live |= integer_symbols(s)
            elif isinstance(s, Store) or defined(s) in live:
                live.update(operands(s))
                live |= integer_symbols(s)
        grown = len(live) > before

    def kept(s: Stmt) -> Sequence[Stmt]:
        useful = s.body if isinstance(s, For) else isinstance(s, Store) or defined(s) in live
        return (s,) if useful else ()

    return rewrite(body, kept)


def _fold_loads(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Load, then Cast of it and nothing else: one load."""
    everything = list(statements(body))
    uses = Counter(name for s in everything for name in operands(s))
    loads = {s.dst: s for s in everything if isinstance(s, Load)}
    plain = (s for s in everything if isinstance(s, Cast) and s.among is None)
    casts = {s.src: s for s in plain if s.src in loads and uses[s.src] == 1}

    blocks = [body, *(s.body for s in everything if isinstance(s, For))]
    where = {id(s): n for n, block in enumerate(blocks) for s in block}
    together = {src for src, cast in casts.items() if where.get(id(cast)) == where.get(id(loads[src]))}

    def converted(s: Stmt) -> Stmt | Sequence[Stmt]:
        match s:
            case Load(dst=dst) if dst in together:
                return replace(s, dst=casts[dst].dst, dtype=casts[dst].dtype)
            case Cast(src=src) if src in together:
                return ()
            case _:
                return s

    return rewrite(body, converted)


def accumulators(body: Sequence[Stmt]) -> frozenset[str]:
    """The names that change: those that are updated."""
    found: set[str] = set()
    for s in statements(body):
        if isinstance(s, Update):
            found.add(s.acc)
        elif isinstance(s, Dot) and s.add is not None and s.add == s.dst:
            found.add(s.dst)
    return frozenset(found) & {s.dst for s in statements(body) if isinstance(s, Full)}
