"""Selections by predicates on positions are made only in the iterations where the predicates do not hold throughout.

    for L in start .. stop by T:                     # before
        keep = L + lane_j <= i0 + lane_i
        s    = where(keep, score, -inf)
        ...
    whole = i0 - T + 2                               # after
    for L in start .. stop by T:
        s    = score while L < whole, else
                 keep = L + lane_j <= i0 + lane_i
                 where(keep, score, -inf)
        ...

The branch is the same for all threads of a program. Below a causal diagonal that saves a comparison and a selection for
every score, and the loop stays one loop: its pipeline is not drained in between, nor is its code doubled. Of two
loops that share the accumulator of a matrix product, ptxas (CUDA 13, sm_90) serialises the products.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from prism.backends import tile
from prism.backends.passes.predicates import Predicate, Predicates, base, least, rewritten
from prism.backends.tile_rewrite import accumulators
from prism.ir.kit import defined, operands, statements
from prism.program.extents import normal


def guard(program: tile.TileProgram) -> tile.TileProgram:
    """The program with selections left out of the iterations in which they select everything."""
    known = Predicates(program)
    guard = _Guard(known, Counter(n for s in statements(program.body) for n in operands(s)))
    body = rewritten(program.body, known, guard.loop)
    return program if body == program.body else replace(program, body=body)


@dataclass(slots=True)
class _Guard:
    known: Predicates
    uses: Counter[str]

    def loop(self, loop: tile.For, predicates: Sequence[Predicate]) -> list[tile.Stmt]:
        known = self.known
        made: list[tile.Stmt] = []
        lower, upper = known.first(predicates, loop.start), known.ends(predicates)
        parts = [p for e in upper for p in least(e)]
        low = known.named(sympy.Max(*lower), f"first_{base(loop)}", made) if lower else None
        high = known.named(normal(sympy.Min(*parts)), f"whole_{base(loop)}", made) if upper else None
        if low is None and high is None:
            return [loop]
        chosen = known.folded(loop.body, {p.name: p.holds for p in predicates}).chosen
        body: list[tile.Stmt] = []
        for s in loop.body:
            src = chosen.get(defined(s) or "")
            if src is not None and isinstance(s, tile.Pointwise | tile.Select):
                inner = replace(s, dst=known.names.fresh(f"{s.dst}_masked"))
                body.append(tile.Within(s.dst, loop.index, low, high, src, (inner,), inner.dst))
            else:
                body.append(s)
        return [*made, replace(loop, body=self._sunk(body))]

    def _sunk(self, body: Sequence[tile.Stmt]) -> tuple[tile.Stmt, ...]:
        """The body; what only one guarded selection uses is made there."""
        changing = accumulators(self.known.program.body)
        needed = {s.src for s in body if isinstance(s, tile.Within)}
        made: dict[int, tile.Stmt] = {}
        taken: set[int] = set()
        for n in reversed(range(len(body))):
            guarded = body[n]
            if not isinstance(guarded, tile.Within):
                continue
            inside = list(guarded.body)
            own = Counter(x for s in inside for x in operands(s))
            for k in reversed(range(n)):
                s = body[k]
                name = defined(s)
                if (
                    k in taken
                    or not isinstance(s, tile.Pointwise | tile.Cast | tile.InBounds | tile.IndexValue)
                    or name in needed
                ):
                    continue
                if name is not None and own[name] == self.uses[name] and changing.isdisjoint(operands(s)):
                    inside.insert(0, s)
                    own.update(operands(s))
                    taken.add(k)
            made[n] = replace(guarded, body=tuple(inside))
        return tuple(made.get(n, s) for n, s in enumerate(body) if n not in taken)
