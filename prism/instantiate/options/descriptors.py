"""Loads by tensor descriptors (TMA), where the configuration and the tensors at hand allow it.

No column: the model takes them for equal, so every second point would be a repetition. The best few points of a study
have variants with them instead. Which loads, `prism.backends.tensor_descriptors` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from prism.backends.tensor_descriptors import DESCRIPTORS, LaunchBoxes, boxes, fitting
from prism.cost.model import CostModel
from prism.instantiate.options.option import Family, Offered, Option
from prism.sgraph.config import Config, Resources


class Descriptors(Option):
    """Open to launches with a load in a loop that fits, on devices that have descriptors."""

    name = DESCRIPTORS
    offered = Offered.STUDY

    def __init__(self, family: Family) -> None:
        super().__init__(family)
        self.launches = tuple(x.name for x in family.sgraph.launches) if family.device.descriptors else ()

    def feasible(self, config: Config) -> bool:
        """Whether one of its loads fits in each."""
        chosen = config.launches(DESCRIPTORS)
        return not chosen or chosen <= self._fitting(config)

    def variant(self, config: Config, model: CostModel, resources: Sequence[Resources] = ()) -> Config | None:
        """All launches that can."""
        names = self._fitting(config)
        return config.having(descriptors=names) if names else None

    def _fitting(self, config: Config) -> frozenset[str]:
        if not self.launches:
            return frozenset()
        return fitting(self.family.module, self._boxes, config.symbols, self.family.hints) & config.warps.keys()

    @cached_property
    def _boxes(self) -> Mapping[str, LaunchBoxes]:
        return boxes(self.family.module)
