"""Lowering, last step: what no store needs is dropped, and a load that is only converted loads converted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from prism.backends.tile import Cast, Dot, For, Full, Load, Stmt, Store, Update, defined, operands, statements
from prism.backends.tile import integers as integer_symbols


def clean(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The body without dead statements and without loads that are only there to be converted."""
    return _fold_loads(_live(body))


def _live(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    everything = list(statements(body))
    needed: set[str] = set()
    grown = True
    while grown:
        before = len(needed)
        for s in reversed(everything):
            if isinstance(s, For):
                needed |= integer_symbols(s)
            elif isinstance(s, Store) or defined(s) in needed:
                needed.update(operands(s))
                needed |= integer_symbols(s)
        grown = len(needed) > before

    def keep(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        kept: list[Stmt] = []
        for s in body:
            if isinstance(s, For):
                inner = keep(s.body)
                if inner:
                    kept.append(replace(s, body=inner))
            elif isinstance(s, Store) or defined(s) in needed:
                kept.append(s)
        return tuple(kept)

    return keep(body)


def _fold_loads(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Load, then Cast of it and nothing else: one load."""
    everything = list(statements(body))
    uses = Counter(name for s in everything for name in operands(s))
    loads = {s.dst: s for s in everything if isinstance(s, Load)}
    casts = {s.src: s for s in everything if isinstance(s, Cast) and s.src in loads and uses[s.src] == 1}

    def visit(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        made: list[Stmt] = []
        for s in body:
            match s:
                case For():
                    made.append(replace(s, body=visit(s.body)))
                case Load(dst=dst) if dst in casts and any(x is casts[dst] for x in body):
                    made.append(replace(s, dst=casts[dst].dst, dtype=casts[dst].dtype))
                case Cast(src=src) if src in casts and any(isinstance(x, Load) and x.dst == src for x in body):
                    pass
                case _:
                    made.append(s)
        return tuple(made)

    return visit(body)


def accumulators(body: Sequence[Stmt]) -> frozenset[str]:
    """The names that change: those that are updated."""
    found: set[str] = set()
    for s in statements(body):
        if isinstance(s, Update):
            found.add(s.acc)
        elif isinstance(s, Dot) and s.add is not None and s.add == s.dst:
            found.add(s.dst)
    return frozenset(found) & {s.dst for s in statements(body) if isinstance(s, Full)}
