"""A smaller draw with the same problem: fewer and shorter axes, then rounder numbers. Greedy, so a local minimum."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from prism.egraph.finite_field import NotRational
from prism.egraph.worlds import AXES, Undefined, World

LIMIT = 600
"""Draws that are tried."""

_SIMPLE = (0, 1, -1, 2, 3)


def shrunk(world: World, draw: int, bad: Callable[[World], bool]) -> World:
    """The smallest world that was found to be `bad`, of a single draw.

    Args:
        world: with the problem.
        draw: the draw that has it.
        bad: whether a world of a single draw still has it.
    """
    raw = {name: a[min(draw, len(a) - 1)][None] for name, a in world.raw.items()}
    owned = {name: world.owned[name] for name in world.raw}
    best = World(world.parts, world.arithmetic, world.sizes, dict(world.axis), owned, raw)
    left = LIMIT
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(best):
            left -= 1
            if left < 0:
                return best
            try:
                worse = bad(smaller)
            except (NotRational, Undefined):
                continue
            if worse:
                best, changed = smaller, True
                break
    return World(best.parts, best.arithmetic, best.sizes, best.axis, dict(owned_of(best)), best.raw)


def owned_of(world: World) -> dict[str, frozenset[str]]:
    """The axes of the variables that were drawn."""
    return {name: world.owned[name] for name in world.raw}


def _smaller(world: World) -> Iterator[World]:
    """Worlds that are simpler in one place, the largest steps first."""
    owned = owned_of(world)
    for name in world.raw:
        for axis in sorted(owned[name]):
            cut = np.take(world.raw[name], [0], AXES.index(axis) + 1)
            yield _with(world, owned | {name: owned[name] - {axis}}, world.raw | {name: cut})
    for n, axis in enumerate(AXES):
        for extent in range(1, world.sizes[n]):
            sizes = (*world.sizes[:n], extent, *world.sizes[n + 1 :])
            raw = {v: np.take(a, range(extent), n + 1) if axis in owned[v] else a for v, a in world.raw.items()}
            yield _with(world, owned, raw, sizes)
    for name, array in world.raw.items():
        for n, value in enumerate(_SIMPLE):
            if any(bool((array == v).all()) for v in _SIMPLE[: n + 1]):
                break
            yield _with(world, owned, world.raw | {name: np.full_like(array, value)})
    for name, array in world.raw.items():
        for place in np.ndindex(array.shape):
            now = array[place]
            simple = [v for v in _SIMPLE if _size(v) < _size(now)]
            if isinstance(now, float) and np.isfinite(now) and now != np.rint(now):
                simple += [float(np.rint(now)), float(np.round(now, 1)), float(np.round(now, 3))]
            for value in simple:
                if _size(value) >= _size(now):
                    continue
                changed = array.copy()
                changed[place] = value
                yield _with(world, owned, world.raw | {name: changed})


def _size(value: object) -> float:
    """How complicated a number is to read."""
    number = float(value)  # type: ignore[arg-type]
    if number in _SIMPLE:
        return _SIMPLE.index(int(number))
    if not np.isfinite(number):
        return 1e3
    return abs(number) + 10 + (100 * len(f"{number:.17g}") if number != np.rint(number) else 0)


def _with(
    world: World,
    owned: dict[str, frozenset[str]],
    raw: dict[str, np.ndarray],
    sizes: tuple[int, ...] | None = None,
) -> World:
    return World(world.parts, world.arithmetic, sizes or world.sizes, dict(world.axis), dict(owned), dict(raw))
