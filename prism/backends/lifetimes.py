"""Which buffers may lie in the same memory: those that no launch needs at the same time.

A buffer lives from the launch that first stores it to the last one that reads or stores it, and launches run one after
another; what a step of a loop needs, it needs in every step. Buffers are given places in the order in which their lives
begin, a place that is free before a new one (linear scan, as registers are allocated: Poletto & Sarkar, 1999): of those
that are large enough the smallest, else the largest, which grows; of equal ones what was left last, as it is still in a
cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from prism.backends.tile import TileLaunch, TileModule, TileRepeat
from prism.program.extents import Extent, evaluate
from prism.program.nodes import Tensor

ASSUMED = 256
"""What a symbol of a shape is taken for where sizes are compared; any number is right, a likely one wastes less."""


@dataclass(slots=True)
class _Place:
    """Memory of several buffers: how many bytes it has so far, and the last launch that needs it."""

    bytes: int
    end: int
    held: list[Tensor] = field(default_factory=list)


def shared_places(module: TileModule) -> list[tuple[Tensor, ...]]:
    """The buffers that launches of a call exchange, in groups whose members never live at the same time."""
    needed = [_live(module, x) for x in module.order]
    lives = {b.name: [n for n, names in enumerate(needed) if b.name in names] for b in module.exchanged}
    places: list[_Place] = []
    for b in sorted(module.exchanged, key=lambda b: lives[b.name][:1]):
        begin, end = min(lives[b.name], default=0), max(lives[b.name], default=0)
        wanted = _bytes(b.shape) * b.dtype.bytes
        free = [p for p in places if p.end < begin]
        if free:
            place = min(free, key=lambda p: (p.bytes < wanted, abs(p.bytes - wanted), -p.end))
        else:
            place = _Place(wanted, end)
            places.append(place)
        place.bytes, place.end = max(place.bytes, wanted), end
        place.held.append(b)
    return [tuple(p.held) for p in places]


def _live(module: TileModule, x: TileLaunch | TileRepeat) -> set[str]:
    """The tensors that a launch needs, or all steps do."""
    if isinstance(x, TileLaunch):
        return {t.name for t in x.tensors}
    around = {name for w in x.windows for name in (w.of, w.first) if name is not None}
    return around.union(*({t.name for t in launch.tensors} for launch in module.within(x)))


def _bytes(shape: Sequence[Extent]) -> int:
    total = 1
    for e in shape:
        names = {} if isinstance(e, int) else {s.name: ASSUMED for s in e.free_symbols}
        total *= max(1, int(evaluate(e, names)))
    return total
