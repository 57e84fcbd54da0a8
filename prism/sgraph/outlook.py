"""What a plan may be worth, from its form alone: the order in which plans are visited.

Each kernel is looked at with one tile size for every output axis: as long as TILE, shorter while too few programs fill
the device. A value is computed, and a tensor read, once for every tile of the output axes that it does not have. That
is what most families of the kernel come to, without building any; loops, splits and constraints are left to the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from prism.program.index import Axis
from prism.program.nodes import Read, Tensor
from prism.sgraph.cuts import Choices, Plan, below
from prism.sgraph.extract import Weights
from prism.sgraph.families import Target
from prism.sgraph.prune import Rates

TILE = 128
SHORTEST = 16


@dataclass(slots=True)
class Outlook:
    """Looks at the plans of one form.

    Attributes:
        weights: what values cost, at one shape.
        choices: the form.
        inputs: the program's inputs.
        rates: the device.
    """

    weights: Weights
    choices: Choices
    inputs: Sequence[Tensor]
    rates: Rates
    _width: dict[str, int] = field(init=False)
    _costs: dict[int, tuple[frozenset[Axis], float, float]] = field(default_factory=dict)
    _known: dict[object, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._width = {t.name: t.dtype.bytes for t in self.inputs}

    def seconds(self, plan: Plan) -> float:
        """Roughly the time of the plan's kernels, one after another."""
        return sum(self._kernel(plan, group) for _, group in plan.groups)

    def _kernel(self, plan: Plan, group: Sequence[Target]) -> float:
        roots = [t.cls for t in group]
        used = below(self.choices, roots, plan.stored)
        read = {c for c in used if c in plan.stored and c not in roots}
        key = (tuple(roots), tuple(sorted(read)))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._look(plan, group, used, read)
        return known

    def _tiles(self, axes: Sequence[Axis]) -> dict[Axis, float]:
        """How many tiles of each output axis there are."""
        extents = {a: self.weights.size(frozenset({a})) for a in axes}
        tile = {a: min(n, float(TILE)) for a, n in extents.items()}

        def programs() -> float:
            total = 1.0
            for a, n in extents.items():
                total *= -(-n // tile[a])
            return total

        while programs() < self.rates.programs:
            longest = max((a for a in axes if tile[a] > SHORTEST), key=lambda a: tile[a], default=None)
            if longest is None:
                break
            tile[longest] = max(float(SHORTEST), tile[longest] / 2)
        return {a: -(-n // tile[a]) for a, n in extents.items()}

    def _look(self, plan: Plan, group: Sequence[Target], used: Sequence[int], read: set[int]) -> float:
        # A library's product reads what it needs about once.
        tiles = {} if self._is_product(group, read) else self._tiles(group[0].axes)
        times: dict[frozenset[Axis], float] = {}

        def repeated(axes: frozenset[Axis]) -> float:
            total = times.get(axes)
            if total is None:
                total = 1.0
                for a, n in tiles.items():
                    if a not in axes:
                        total *= n
                times[axes] = total
            return total

        moved = work = 0.0
        for cls in used:
            if cls in read:
                name, _ = plan.stored[cls]
                axes = self.weights.classes.axes[cls]
                bytes_ = next(b.dtype.bytes for b in plan.buffers if b.name == name)
                moved += self.weights.size(axes) * repeated(axes) * bytes_
            else:
                over, loaded, computed = self._cost(cls)
                if loaded:
                    moved += loaded * repeated(over)
                elif computed:
                    work += computed * repeated(over)
        for t in group:
            moved += self.weights.size(self.weights.classes.axes[t.cls]) * 4
        return max(moved / self.rates.bytes, work / self.rates.work) + self.rates.launch

    def _is_product(self, group: Sequence[Target], read: set[int]) -> bool:
        """Whether the kernel is one product of two tensors as they are stored, and a library is there to compute it."""
        if not self.rates.library or len(group) != 1:
            return False
        choice = self.choices[group[0].cls]
        return choice.op == "contract" and all(c in read or self.choices[c].op == "read" for c in choice.children)

    def _cost(self, cls: int) -> tuple[frozenset[Axis], float, float]:
        """The axes that a value is computed over, the bytes that it loads and its work, computed once."""
        known = self._costs.get(cls)
        if known is None:
            axes = self.weights.classes.axes
            choice = self.choices[cls]
            if isinstance(choice.payload, Read):
                known = axes[cls], self.weights.size(axes[cls]) * self._width.get(choice.payload.tensor, 4), 0.0
            else:
                over = axes[cls].union(*(axes[c] for c in choice.children))
                known = over, 0.0, self.weights.work(cls, choice)
            self._costs[cls] = known
        return known
