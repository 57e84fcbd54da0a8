"""A smaller draw of a rule with the same problem: fewer and shorter axes, then rounder numbers. A local minimum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from prism.egraph.soundness.finite_field import NotRational
from prism.egraph.soundness.interpretation import AXES, Interpretation, Undefined

LIMIT = 600
"""Draws that are tried."""

SIMPLE = (0, 1, -1, 2, 3)
"""Plain numbers, the plainest first."""


def shrunk(
    model: Interpretation, draw: int, bad: Callable[[Interpretation], bool], limit: int = LIMIT
) -> Interpretation:
    """The smallest interpretation that was found to be `bad`, of a single draw.

    Args:
        model: with the problem.
        draw: the draw that has it.
        bad: whether an interpretation of a single draw still has it.
        limit: how many draws are tried.
    """
    raw = {name: a[min(draw, len(a) - 1)][None] for name, a in model.raw.items()}
    best = Interpretation(model.parts, model.arithmetic, model.sizes, dict(model.axis), _drawn(model), raw)
    left = limit
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(best):
            left -= 1
            if left < 0:
                return best
            owned = dict(smaller.owned)  # facts define more
            try:
                worse = bad(smaller)
            except (NotRational, Undefined):
                continue
            if worse:
                best = Interpretation(best.parts, best.arithmetic, smaller.sizes, best.axis, owned, smaller.raw)
                changed = True
                break
    return best


def _drawn(model: Interpretation) -> dict[str, frozenset[str]]:
    """The axes of the variables that were drawn."""
    return {name: model.owned[name] for name in model.raw}


def _smaller(model: Interpretation) -> Iterator[Interpretation]:
    """Interpretations that are simpler in one place, the largest steps first."""
    owned = _drawn(model)
    for name in model.raw:
        for axis in sorted(owned[name]):
            cut = np.take(model.raw[name], [0], AXES.index(axis) + 1)
            yield _with(model, owned | {name: owned[name] - {axis}}, model.raw | {name: cut})
    for n, axis in enumerate(AXES):
        for extent in range(1, model.sizes[n]):
            sizes = (*model.sizes[:n], extent, *model.sizes[n + 1 :])
            raw = {v: np.take(a, range(extent), n + 1) if axis in owned[v] else a for v, a in model.raw.items()}
            yield _with(model, owned, raw, sizes)
    for name, array in model.raw.items():
        for n, value in enumerate(SIMPLE):
            if any(bool((array == v).all()) for v in SIMPLE[: n + 1]):
                break
            yield _with(model, owned, model.raw | {name: np.full_like(array, value)})
    for name, array in model.raw.items():
        for place in np.ndindex(array.shape):
            now: Any = array[place]
            for simple in _simpler(now):
                if size(simple) < size(now):
                    changed = array.copy()
                    changed[place] = simple
                    yield _with(model, owned, model.raw | {name: changed})


def _simpler(now: Any) -> list[float]:
    """Numbers to try for one."""
    rounder: list[float] = [*SIMPLE]
    if isinstance(now, float) and np.isfinite(now) and now != np.rint(now):
        rounder += [float(np.rint(now)), float(np.round(now, 1)), float(np.round(now, 3))]
    return rounder


def size(value: Any) -> float:
    """How complicated a number is to read."""
    number = float(value)
    if number in SIMPLE:
        return SIMPLE.index(int(number))
    if not np.isfinite(number):
        return 1e3
    return abs(number) + 10 + (100 * len(f"{number:.17g}") if number != np.rint(number) else 0)


def _with(
    model: Interpretation, owned: dict[str, frozenset[str]], raw: dict[str, Any], sizes: tuple[int, ...] | None = None
) -> Interpretation:
    return Interpretation(model.parts, model.arithmetic, sizes or model.sizes, dict(model.axis), dict(owned), dict(raw))
