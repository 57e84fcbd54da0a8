"""The simplest draw that shows that a rule is wrong, by hypothesis: a search from the smallest ones upwards.

What shrink.py finds is a local minimum near the draw that failed first. Here hypothesis draws interpretations anew,
within the extents and axes of that minimum and from a few plain numbers and those that it has, and shrinks what it
finds with its own passes (MacIver and Donaldson, Test-Case Reduction via Test-Case Generation, ECOOP 2020).
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from prism.egraph.soundness.finite_field import NotRational
from prism.egraph.soundness.interpretation import AXES, Interpretation, Undefined
from prism.egraph.soundness.shrink import SIMPLE, size

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
