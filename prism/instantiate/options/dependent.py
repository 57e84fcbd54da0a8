"""Launches that start before the one before them has ended (programmatic dependent launch).

What that saves has not been measured, and the model says nothing of it: where a device is there to say, the best
configurations are timed with it as well. It is for kernels that come after kernels: what a library launches does not
say whether it has waited for what was before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from prism.cost.model import CostModel
from prism.cost.streams import STREAMS
from prism.instantiate.options.option import Family, Offered, Option
from prism.sgraph.config import Config, Resources
from prism.sgraph.folding import launches_under
from prism.sgraph.launches import DEPENDENT, overlapping
from prism.sgraph.products import LIBRARY


class Dependent(Option):
    """Open to all launches but the first, on devices from Hopper on."""

    name = DEPENDENT
    offered = Offered.TIMING

    def __init__(self, family: Family) -> None:
        super().__init__(family)
        self.launches = overlapping(family.sgraph) if family.device.descriptors else ()

    def feasible(self, config: Config) -> bool:
        """Whether each is a kernel after a kernel, and all are on one stream."""
        chosen = config.launches(DEPENDENT)
        return not chosen or (chosen <= self._possible(config) and not config.launches(STREAMS))

    def variant(self, config: Config, model: CostModel, resources: Sequence[Resources] = ()) -> Config | None:
        """All launches that may be."""
        names = self._possible(config)
        return config.having(dependent=names) if names and not config.launches(STREAMS) else None

    def _possible(self, config: Config) -> frozenset[str]:
        order = [x.name for x in launches_under(self.family.sgraph, config)]
        library = config.launches(LIBRARY)
        after = {name for before, name in itertools.pairwise(order) if not {before, name} & library}
        return frozenset(after & set(self.launches) & config.warps.keys())
