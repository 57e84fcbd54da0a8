"""Two loads of every other element, one of the even and one of the odd ones, as one load of pairs.

    low  = tl.load(x + 2 * j)          pair = tl.load(x + (2 * j)[:, None] + tl.arange(0, 2)[None, :])
    high = tl.load(x + 2 * j + 1)      low, high = tl.split(pair)

A thread cannot load with a stride but element by element, and a single element of 2 bytes is no asynchronous copy.
Pairs are read as they lie in memory. What is read is the same: both loads have the same masks.
"""

from __future__ import annotations

from collections.abc import Sequence

from prism.backends.tile import Load, Offsets, Stmt, TileProgram, statements
from prism.program.extents import is_static


def pairs(program: TileProgram) -> dict[str, tuple[Load, Load]]:
    """By the name of the first of two loads, the load of the lower elements and that of the upper ones.

    Args:
        program: a legal tile program.
    """
    lanes = frozenset(s.dst for s in statements(program.body) if isinstance(s, Offsets))
    found: dict[str, tuple[Load, Load]] = {}
    blocks = [program.body, *(s.body for s in statements(program.body) if hasattr(s, "body"))]
    for block in blocks:
        _pair_up(block, lanes, found)
    return found


def _pair_up(block: Sequence[Stmt], lanes: frozenset[str], found: dict[str, tuple[Load, Load]]) -> None:
    waiting: list[Load] = []
    for s in block:
        if not isinstance(s, Load) or not _strided(s, lanes):
            continue
        for other in waiting:
            order = _order(other, s)
            if order is not None:
                found[other.dst] = order
                waiting.remove(other)
                break
        else:
            waiting.append(s)


def _strided(s: Load, lanes: frozenset[str]) -> bool:
    """Whether the nearest neighbours of the tile are two elements apart."""
    steps = [c for name, c in s.offset.terms if name in lanes]
    return bool(s.dims) and all(is_static(c) for c in steps) and min((abs(int(c)) for c in steps), default=0) == 2


def _order(a: Load, b: Load) -> tuple[Load, Load] | None:
    """The two, the lower first, where they are alike but for one element."""
    alike = (a.tensor, a.offset.terms, a.offset.wide, a.masks, a.dims, a.dtype)
    if alike != (b.tensor, b.offset.terms, b.offset.wide, b.masks, b.dims, b.dtype):
        return None
    apart = b.offset.offset - a.offset.offset
    return (a, b) if apart == 1 else (b, a) if apart == -1 else None
