"""Persistent launches whose loop over tiles and loop in a tile are one: loads run ahead from one tile to the next.

Triton makes one of the two (`tl.range(flatten=True)`) where there is one loop in a tile, as long in each. It keeps its
stages by descriptors alone (by pointers, of 3 of a product 1 was left with Triton 3.6 and 3.7), so it is for launches
that have these, too. What it gains has not been measured, and the model says nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from prism.cost.model import CostModel
from prism.cost.persistent import FLATTENED, PERSISTENT, flattenable
from prism.cost.shared_memory import DESCRIPTORS
from prism.instantiate.options.option import Family, Offered, Option
from prism.instantiate.options.persistent import Persistent
from prism.sgraph.config import Config, Resources


class Flattened(Option):
    """Open to persistent launches by descriptors, of one loop."""

    name = FLATTENED
    offered = Offered.TIMING

    def __init__(self, family: Family) -> None:
        super().__init__(family)
        self.launches = flattenable(family.sgraph) if family.device.descriptors else ()

    def feasible(self, config: Config) -> bool:
        """Whether they are persistent and load by descriptors."""
        return super().feasible(config) and self._possible(config) >= config.launches(FLATTENED)

    def variant(self, config: Config, model: CostModel, resources: Sequence[Resources] = ()) -> Config | None:
        """The persistent variant with all that may be."""
        made = Persistent(self.family).variant(config, model, resources) if self.launches else None
        names = frozenset() if made is None else self._possible(made)
        return None if made is None or not names else made.having(flattened=names)

    def _possible(self, config: Config) -> frozenset[str]:
        return config.launches(PERSISTENT) & config.launches(DESCRIPTORS) & frozenset(self.launches)
