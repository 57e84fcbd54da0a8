"""Persistent launches: as many programs as the device runs at a time, each of which takes tile after tile.

It is timed together with descriptors, where they fit: copies then run ahead into the next tile, which is the form that
published figures are of, and the model's (`prism.cost.gpu.COPY_OVERLAP`), of programs that have a multiprocessor to
themselves. Those that share one lose by it, as measured (`prism.cost.gpu.SHARED_LOSS`). So it is no column, which would
double every space for little; where a device is there to say, the best configurations are timed with it as well. Its
number is the programs that a multiprocessor holds at a time. Which launches may be, `prism.cost.persistent` says.
"""

from __future__ import annotations

from collections.abc import Sequence

from prism.cost.model import CostModel, Model
from prism.cost.persistent import FLATTENED, PERSISTENT, flattenable, persistable
from prism.cost.shared_memory import DESCRIPTORS
from prism.instantiate.options.option import Family, Offered, Option
from prism.sgraph.config import Config, Resources


class Persistent(Option):
    """Open to launches that multiply in a loop."""

    name = PERSISTENT
    numbered = True
    offered = Offered.TIMING

    def __init__(self, family: Family) -> None:
        super().__init__(family)
        self.launches = persistable(family.sgraph) if family.device.is_gpu else ()

    def feasible(self, config: Config) -> bool:
        """Whether they are kernels of their own, too."""
        return super().feasible(config) and config.launches(PERSISTENT) <= config.warps.keys()

    def variant(self, config: Config, model: CostModel, resources: Sequence[Resources] = ()) -> Config | None:
        """All launches that may be and have more programs than run at a time."""
        known = {r.kernel: r for r in resources}
        found: dict[str, int] = {}
        for name in self.launches:
            if name in config.warps and isinstance(model, Model):
                programs, blocks = model.occupancy(name, config, known.get(name))
                if programs > blocks * model.device.processors:
                    found[name] = blocks
        both = {DESCRIPTORS: config.launches(DESCRIPTORS) | (self.family.described(config.symbols) & found.keys())}
        return config.having(persistent=found, **both) if found else None

    def settled(self, config: Config, model: CostModel, resources: Sequence[Resources]) -> Config:
        """As many programs as a multiprocessor holds of what the compiler made."""
        known = {r.kernel: r for r in resources}
        if not known or not isinstance(model, Model):
            return config
        blocks = {n: model.occupancy(n, config, known.get(n))[1] for n in config.launches(PERSISTENT)}
        return config.having(persistent=blocks)


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
