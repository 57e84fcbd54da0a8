"""Lowering, last step: what no store needs is dropped, and a load that is only converted loads converted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from prism.backends.tile import Cast, Dot, For, Full, Load, Stmt, Store, Update
from prism.backends.tile import integers as integer_symbols
from prism.ir.kit import defined, operands, rewrite, statements


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
