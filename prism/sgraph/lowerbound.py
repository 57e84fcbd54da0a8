"""A lower bound of a plan's time, from its form alone: the order in which plans are visited.

Each kernel moves every distinct element that it reads or stores at least once and computes every value at least once,
at the device's full rate, in one launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prism.program.extents import evaluate
from prism.program.nodes import Read, Tensor
from prism.sgraph.classes import EClasses
from prism.sgraph.cuts import Choices, Plan, below
from prism.sgraph.extract import Weights
from prism.sgraph.families import Target
from prism.sgraph.prune import Rates


@dataclass(slots=True)
class LowerBound:
    """Bounds the plans of one form.

    Attributes:
        classes: the e-graph.
        choices: the form.
        inputs: the program's inputs.
        rates: the device.
        hints: the value of every symbol.
    """

    classes: EClasses
    choices: Choices
    inputs: Sequence[Tensor]
    rates: Rates
    hints: Mapping[str, int]
    _weights: Weights = field(init=False)
    _work: dict[int, float] = field(init=False)
    _known: dict[object, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._weights = Weights(self.classes, self.hints)
        self._work = {c: self._weights.work(c, choice) for c, choice in self.choices.items()}

    def seconds(self, plan: Plan) -> float:
        """The least time that any assignment of any families of the plan may take."""
        return sum(self._kernel(plan, group) for _, group in plan.groups)

    def _kernel(self, plan: Plan, group: Sequence[Target]) -> float:
        roots = [t.cls for t in group]
        used = below(self.choices, roots, plan.stored)
        read = {c for c in used if c in plan.stored and c not in roots}
        key = (tuple(roots), tuple(sorted(read)))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._bound(plan, group, used, read)
        return known

    def _bound(self, plan: Plan, group: Sequence[Target], used: Sequence[int], read: set[int]) -> float:
        width = {t.name: t for t in (*self.inputs, *plan.buffers)}
        moved: dict[str, float] = {}
        work = 0.0
        for cls in used:
            if cls in read:
                moved[plan.stored[cls][0]] = self._bytes(width[plan.stored[cls][0]])
                continue
            work += self._work[cls]
            payload = self.choices[cls].payload
            if isinstance(payload, Read) and payload.tensor in width:
                declared = width[payload.tensor]
                touched = self._weights.size(self.classes.axes[cls]) * declared.dtype.bytes
                moved[payload.tensor] = max(moved.get(payload.tensor, 0.0), min(touched, self._bytes(declared)))
        total = sum(moved.values())
        for t in group:
            total += self._weights.size(self.classes.axes[t.cls]) * 2
        return max(total / self.rates.bytes, work / self.rates.work) + self.rates.launch

    def _bytes(self, tensor: Tensor) -> float:
        n = float(tensor.dtype.bytes)
        for extent in tensor.shape:
            n *= evaluate(extent, self.hints)
        return n
