"""Which values of the axes the identity test looks at: a few of each axis, with weights that sum to its length.

    extents of 3 or less      every value, each of weight 1
    longer ones               the first, the last and one in between (or two of them), of random whole weights
    an axis in two parts      i = rest_extent*part + rest: the values and weights are the products of the parts'

A sum over an axis becomes the weighted sum over its sample. That is what the formulas compute on inputs that repeat
the sampled elements as often as the weights say; sums still add up, swap and scale, and the sum of 1 is the length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import sympy

from prism.program.extents import Extent, evaluate, is_static
from prism.program.index import Axis
from prism.program.nodes import SymbolRange

_FULL = 3


@dataclass(frozen=True, slots=True)
class Points:
    """Values of an axis, ascending, and how much each counts (int64)."""

    values: np.ndarray
    weights: np.ndarray

    @property
    def whole(self) -> bool:
        """Whether every value is there."""
        return bool(np.all(self.weights == 1))


@dataclass(slots=True)
class Sample:
    """The sample of every axis, by extent, so that axes of one extent have the same."""

    binding: Mapping[str, int]  # value of every symbol
    parts: Mapping[Extent, tuple[Extent, Extent]]  # for an extent that is cut in two, the extents of part and rest
    points: int  # how many values of a long axis are taken: 2, 3, or all where it is larger than the axis is long
    seed: int  # of positions and weights
    only: frozenset[Axis] | None = None  # where it is not None, the axes that are sampled; others are taken whole
    _known: dict[tuple[Extent, bool], Points] = field(default_factory=dict)

    def of(self, axis: Axis) -> Points:
        """The sample of an axis."""
        key = axis.extent, self.only is not None and axis not in self.only
        if key not in self._known:
            n = self.length(axis)
            whole = Points(np.arange(n), np.ones(n, dtype=np.int64))
            self._known[key] = whole if key[1] else self._new(axis.extent)
        return self._known[key]

    def length(self, axis: Axis) -> int:
        """How long the axis is."""
        return evaluate(axis.extent, self.binding)

    def size(self, extent: Extent) -> int:
        """The value of an extent."""
        return evaluate(extent, self.binding)

    def _new(self, extent: Extent) -> Points:
        if extent in self.parts:
            part, rest = (self.of(Axis("", e)) for e in self.parts[extent])
            step = self.size(self.parts[extent][1])
            values = (part.values[:, None] * step + rest.values[None]).reshape(-1)
            return Points(values, (part.weights[:, None] * rest.weights[None]).reshape(-1))
        n = self.size(extent)
        if n <= max(_FULL, self.points):
            return Points(np.arange(n), np.ones(n, dtype=np.int64))
        rng = np.random.default_rng([self.seed, n])
        # One value in common with all other axes, so that a mask's diagonal is met off the corner.
        common = next(c for c in np.random.default_rng([self.seed]).permutation([1, 2, 3]).tolist() if c < n - 1)
        chosen = [0, common, n - 1] if self.points > 2 else [0, common] if self.seed % 2 else [0, n - 1]
        cuts = np.sort(1 + rng.choice(n - 1, len(chosen) - 1, replace=False))
        weights = np.diff(np.concatenate([[0], cuts, [n]]))
        return Points(np.array(chosen, dtype=np.int64), weights.astype(np.int64))


def symbols_of(extents: Iterable[Extent]) -> list[str]:
    """The names of the symbols, sorted."""
    return sorted({s.name for e in extents if not is_static(e) for s in e.free_symbols})  # type: ignore[union-attr]


def bindings(
    names: Sequence[str], ranges: Mapping[str, SymbolRange], parts: Mapping[Extent, tuple[Extent, Extent]]
) -> list[dict[str, int]]:
    """Values of the symbols: all equal where their ranges allow it, and all distinct; part * rest is the extent."""
    within = {s.name for pair in parts.values() for s in pair if isinstance(s, sympy.Symbol)}
    free = [n for n in names if n not in within]
    chosen: list[dict[str, int]] = []
    cut = any(not is_static(e) for e in parts)
    for base, stride in ((4, 0), (4, 2)) if cut else ((3, 0), (2, 1)):
        binding = SymbolRange.sizes(free, ranges, base, stride)
        for extent, (part, rest) in parts.items():
            total = evaluate(extent, binding)
            assert isinstance(part, sympy.Symbol)
            assert isinstance(rest, sympy.Symbol)
            binding[part.name] = next((d for d in range(2, min(total, 97) + 1) if total % d == 0), 1)
            binding[rest.name] = total // binding[part.name]
        if binding not in chosen:
            chosen.append(binding)
    return chosen
