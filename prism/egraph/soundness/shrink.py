"""A smaller draw of a rule with the same problem: fewer and shorter axes, then rounder numbers.

That is a local minimum near the draw that failed first (`shrunk`). Within its extents and axes, and from a few plain
numbers and those that it has, hypothesis then draws interpretations anew, from the smallest ones upwards, and shrinks
what it finds (MacIver and Donaldson, Test-Case Reduction via Test-Case Generation, ECOOP 2020).
"""

from __future__ import annotations

import importlib.util
import random
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

    The draw has the problem. `bad` says whether an interpretation of a single draw still has it; `limit` draws are
    tried.
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


EXAMPLES = 600
"""Interpretations that are drawn until one is bad; shrinking it takes at most as many again, and more."""


def available() -> bool:
    """Whether hypothesis is installed; it comes with prism's `dev` extra."""
    return importlib.util.find_spec("hypothesis") is not None


def simplest(model: Interpretation, bad: Callable[[Interpretation], bool]) -> Interpretation:
    """The simplest of the given interpretation, of a single draw, and those that hypothesis finds to be bad."""
    if not available():
        return model
    import hypothesis
    from hypothesis import strategies as st
    from hypothesis.errors import NoSuchExample

    owned = {name: tuple(sorted(model.owned[name])) for name in model.raw}
    extents = dict(zip(AXES, model.sizes, strict=True))
    used = sorted({a for axes in owned.values() for a in axes} | set(model.axis.values()))
    numbers = {name: st.sampled_from(_numbers(raw)) for name, raw in model.raw.items()}

    @st.composite
    def interpretations(draw: Any) -> Interpretation:
        sizes = tuple(draw(st.integers(1, extents[a])) if a in used else extents[a] for a in AXES)
        raw: dict[str, Any] = {}
        kept: dict[str, frozenset[str]] = {}
        for name, axes in owned.items():
            kept[name] = frozenset(a for a in axes if draw(st.integers(0, 3)))
            shape = (1, *(n if a in kept[name] else 1 for a, n in zip(AXES, sizes, strict=True)))
            many = int(np.prod(shape))
            drawn = draw(st.lists(numbers[name], min_size=many, max_size=many))
            raw[name] = np.array(drawn, dtype=model.raw[name].dtype).reshape(shape)
        return Interpretation(model.parts, model.arithmetic, sizes, dict(model.axis), kept, raw)

    def fails(drawn: Interpretation) -> bool:
        # `bad` settles an interpretation; facts may define more in it.
        candidate = Interpretation(
            drawn.parts, drawn.arithmetic, drawn.sizes, dict(drawn.axis), dict(drawn.owned), drawn.raw
        )
        try:
            return bad(candidate)
        except (NotRational, Undefined):
            return False

    settings = hypothesis.settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        with np.errstate(all="ignore"):
            found = hypothesis.find(interpretations(), fails, settings=settings, random=random.Random(0))
    except NoSuchExample:
        return model
    return found if _weight(found) < _weight(model) else model


def _numbers(raw: Any) -> list[Any]:
    """Plain numbers, the plainest first, then those of the draw."""
    kind = raw.dtype.type if raw.dtype != object else int
    found = [kind(v) for v in SIMPLE]
    return found + [v for v in dict.fromkeys(raw.ravel().tolist()) if v not in found]


def _weight(model: Interpretation) -> float:
    """How much there is to read."""
    names = list(model.raw)
    return sum(size(v) + 4 for name in names for v in model.raw[name].ravel()) + sum(model.sizes)
