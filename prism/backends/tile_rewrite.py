"""Tile programs rewritten: other names in the places of theirs, fresh names, and what no store needs dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from prism.backends import tile
from prism.backends.lower_index import Names
from prism.ir import kit
from prism.ir.kit import Holds, defined, operands, rewrite, statements
from prism.program.extents import Extent

_NAMES = (Holds.DEFINES, Holds.CHANGES, Holds.USES, Holds.BINDS, Holds.SCALAR)


def renamed(s: tile.Stmt, names: Mapping[str, str]) -> tile.Stmt:
    """The statement, a loop with its body, with every name that `names` has replaced."""

    def integer(e: Extent) -> Extent:
        if isinstance(e, int):
            return e
        found = {x: names[tile.identifier(x.name)] for x in e.free_symbols if tile.identifier(x.name) in names}
        return e.xreplace({x: tile.symbol(n) for x, n in found.items()}) if found else e

    return kit.with_names(s, names, *_NAMES, also={Holds.INTEGER: integer})


def names_beside(program: tile.TileProgram) -> Names:
    """Hands out names that the program does not have."""
    taken = {*tile.HELPERS, *program.lengths}
    taken |= {c.name for c in program.constants} | {g.index for g in program.grid}
    taken |= {tile.identifier(t.name) + "_ptr" for t in program.tensors}
    for s in statements(program.body):
        taken |= {*tile.integers(s), (s.index if isinstance(s, tile.For) else defined(s)) or ""}
    return Names(taken)


def value_dims(program: tile.TileProgram) -> dict[str, tile.Dims]:
    """The dimensions of every value."""
    found: dict[str, tile.Dims] = {}
    for s in statements(program.body):
        match s:
            case tile.Offsets(dst=dst, dim=dim):
                found[dst] = (dim,)
            case (
                tile.InBounds(dst=dst, dims=dims) | tile.IndexValue(dst=dst, dims=dims) | tile.Load(dst=dst, dims=dims)
            ):
                found[dst] = dims
            case tile.Full(dst=dst, dims=dims) | tile.Pointwise(dst=dst, dims=dims):
                found[dst] = dims
            case tile.Cast() | tile.Copy() | tile.Select() | tile.Prefix() | tile.Within():
                found[s.dst] = found.get(s.src, ())
            case tile.Reduce(dst=dst, src=src, dim=dim):
                found[dst] = tuple(d for d in found[src] if d != dim)
            case tile.Dot(dst=dst, lhs=lhs, rhs=rhs):
                found[dst] = (found[lhs][0], found[rhs][1])
            case tile.Rearrange(dst=dst, groups=groups):
                found[dst] = tuple("*".join(g) for g in groups)
    return found


def clean(body: Sequence[tile.Stmt]) -> tuple[tile.Stmt, ...]:
    """The body without dead statements and without loads that are only there to be converted."""
    return _fold_loads(_live(body))


def _live(body: Sequence[tile.Stmt]) -> tuple[tile.Stmt, ...]:
    everything = statements(body)
    live: set[str] = set()
    grown = True
    while grown:
        before = len(live)
        for s in reversed(everything):
            if isinstance(s, tile.For):
                live |= tile.integers(s)
            elif isinstance(s, tile.Store) or defined(s) in live:
                live.update(operands(s))
                live |= tile.integers(s)
        grown = len(live) > before

    def kept(s: tile.Stmt) -> Sequence[tile.Stmt]:
        useful = s.body if isinstance(s, tile.For) else isinstance(s, tile.Store) or defined(s) in live
        return (s,) if useful else ()

    return rewrite(body, kept)


def _fold_loads(body: Sequence[tile.Stmt]) -> tuple[tile.Stmt, ...]:
    """Load, then Cast of it and nothing else: one load."""
    everything = statements(body)
    uses = Counter(name for s in everything for name in operands(s))
    loads = {s.dst: s for s in everything if isinstance(s, tile.Load)}
    plain = (s for s in everything if isinstance(s, tile.Cast) and s.among is None)
    casts = {s.src: s for s in plain if s.src in loads and uses[s.src] == 1}

    blocks = [body, *(s.body for s in everything if isinstance(s, tile.For))]
    where = {id(s): n for n, block in enumerate(blocks) for s in block}
    together = {src for src, cast in casts.items() if where.get(id(cast)) == where.get(id(loads[src]))}

    def converted(s: tile.Stmt) -> tile.Stmt | Sequence[tile.Stmt]:
        match s:
            case tile.Load(dst=dst) if dst in together:
                return replace(s, dst=casts[dst].dst, dtype=casts[dst].dtype)
            case tile.Cast(src=src) if src in together:
                return ()
            case _:
                return s

    return rewrite(body, converted)


def accumulators(body: Sequence[tile.Stmt]) -> frozenset[str]:
    """The names that change: those that are updated."""
    found: set[str] = set()
    for s in statements(body):
        if isinstance(s, tile.Update):
            found.add(s.acc)
        elif isinstance(s, tile.Dot) and s.add is not None and s.add == s.dst:
            found.add(s.dst)
    return frozenset(found) & {s.dst for s in statements(body) if isinstance(s, tile.Full)}
