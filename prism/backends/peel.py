"""Loops are split where predicates on positions begin or cease to hold: the tiles in between do without them.

    for L in start .. stop by T:                     # before
        keep = L + lane_j <= i0 + lane_i
        s    = where(keep, score, -inf)
        ...
    whole = start + (whole tiles that end by i0 + 1) * T
    for L in start .. whole by T:                    # after: `keep` holds on every element here
        ... with score in place of s
    for L in whole .. stop by T:                     # the diagonal, as it was
        keep = L + lane_j <= i0 + lane_i
        s    = where(keep, score, -inf)
        ...

There are at most three loops, the first before all predicates (predicates.py) hold and the last after. Iterations keep
their order and compute the same numbers, so results are the same to the last bit. A loop is split only if that drops
selections on tiles: the mask of a load alone costs a predicate.

This is for backends that compile every loop on its own. Of two loops that share the accumulator of a matrix product,
ptxas (CUDA 13, sm_90) serialises the products; there guards.py keeps one loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from prism.backends.lower_clean import clean
from prism.backends.predicates import Predicate, Predicates, base, least, rewritten
from prism.backends.tile import (
    Dot,
    For,
    Stmt,
    Store,
    TileModule,
    TileProgram,
    Update,
    defined,
    statements,
)
from prism.backends.tile_rename import renamed
from prism.program.extents import Extent, normal

LARGEST = 200
"""Statements of a loop that is still split: the body is written down two or three times."""


def peel_module(module: TileModule, *, ragged: bool = False) -> TileModule:
    """The module with every program peeled; see `peel`."""
    launches = tuple(
        replace(launch, programs=tuple(peel(p, ragged=ragged) for p in launch.programs)) for launch in module.launches
    )
    return replace(module, launches=launches)


def peel(program: TileProgram, *, ragged: bool = False) -> TileProgram:
    """The program with its loops split where predicates begin or cease to hold.

    Args:
        program: a legal tile program.
        ragged: whether bounds of tiles count as predicates; a backend whose tiles end with their axis needs none.
    """
    known = Predicates(program, ragged)
    body = rewritten(program.body, known, _Peeler(known).loop, LARGEST)
    return program if body == program.body else replace(program, body=clean(body))


@dataclass(slots=True)
class _Peeler:
    known: Predicates

    def loop(self, loop: For, predicates: Sequence[Predicate]) -> list[Stmt]:
        """The loops before, on and after the tiles where all predicates hold."""
        made: list[Stmt] = []
        start, stop = self.known.named(loop.start, f"from_{base(loop)}", made), loop.stop
        lower, upper = self.known.first(predicates, start), self.known.ends(predicates)
        if not all(any(self.known.at_most(u, t) for u in upper) for t in least(self.known.resolved(stop))):
            stop = self.known.named(stop, f"until_{base(loop)}", made)
            upper.append(sympy.sympify(stop))
        begin = start
        if lower:
            first = self._tiles([sympy.Max(*lower)], start, loop.step)
            begin = self.known.named(first, f"first_{base(loop)}", made)
            made.append(self._edge(replace(loop, start=start, stop=sympy.Min(begin, stop))))
        end = self.known.named(self._tiles(upper, begin, loop.step), f"whole_{base(loop)}", made)
        truth = {p.name: p.holds for p in predicates}
        made.append(replace(loop, start=begin, stop=end, body=self.known.folded(loop.body, truth).body))
        if upper != [stop]:
            made.append(self._edge(replace(loop, start=end, stop=stop)))
        return made

    def _tiles(self, ends: Sequence[sympy.Expr], start: Extent, step: Extent) -> Extent:
        """`start` and the tiles from there that begin before all of `ends`."""
        parts = [p for e in ends for p in least(sympy.expand(e + step - 1) if not e.has(sympy.Max) else e + step - 1)]
        total = sympy.Min(*parts) - start
        if not all(self.known.at_most(start, p) for p in parts):
            total = sympy.Max(total, 0)
        return normal(start + (total if step == 1 else sympy.floor(total / step) * step))

    def _edge(self, loop: For) -> For:
        """The loop with names of its own."""
        outer = {s.acc for s in statements(loop.body) if isinstance(s, Update)}
        outer |= {s.dst for s in statements(loop.body) if isinstance(s, Dot) and s.dst == s.add}
        inside = {n for s in statements(loop.body) for n in (s.index if isinstance(s, For) else defined(s),) if n}
        own = {s.dst for s in statements(loop.body) if not isinstance(s, For | Store | Update | Dot)}
        mine = sorted((inside - outer) | (outer & own))
        names = {n: self.known.names.fresh(f"{n}_edge") for n in (loop.index, *mine)}
        body = tuple(renamed(s, names) for s in loop.body)
        return replace(loop, index=names[loop.index], body=body)
