"""Loads by tensor descriptors (TMA), where the configuration and the tensors at hand allow it.

A launch that reads a tile in two layouts has them at every point where they fit: by pointers its reads of shared memory
conflict (`prism.cost.shared_memory`). Of all others the model takes both for equal, so that a column would repeat every
point: the best few points of a study have variants instead, the other way round. Which loads,
`prism.backends.tensor_descriptors` says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from prism.backends.tensor_descriptors import deciding, fitting
from prism.cost.gpu import LIBRARY_STAGES
from prism.cost.model import CostModel
from prism.cost.shared_memory import DESCRIPTORS, described, shared_memory
from prism.instantiate.options.option import Family, Offered, Option
from prism.instantiate.point_tables import PointSpace
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
        """All launches that can, or none where all do."""
        names = self._fitting(config)
        return config.having(descriptors=names - config.launches(DESCRIPTORS) and names) if names else None

    def forms(self) -> Collection[str]:
        """Those with loads that a descriptor may do."""
        return tuple(self.family.descriptors)

    def extend(self, tables: dict[str, PointSpace], shared: Collection[str]) -> None:
        """A column for launches that read a tile in two layouts, 1 where its descriptor fits."""
        for name in self._in_two_layouts():
            held = self.family.descriptors.get(name)
            if held is None or not held.looped(twice=True):
                continue
            table = tables[name]
            launch = next(x for x in self.family.module.launches if x.name == name)
            symbols = deciding(launch, held, table.names[:-2], twice=True)
            rows, places = np.unique(table.columns(symbols), axis=0, return_inverse=True)
            given = (dict(zip(symbols, row, strict=True)) for row in rows.tolist())
            fits = [bool(fitting(self.family.module, {name: held}, g, self.family.hints, twice=True)) for g in given]
            chosen = np.array(fits)[places.reshape(-1)] & (table.column("stages") != LIBRARY_STAGES)
            tables[name] = table.flagged(described(name), chosen)

    def chosen(self, launch: str, row: Mapping[str, int]) -> bool:
        """What the launch's column says."""
        return bool(row.get(described(launch), 0))

    def _in_two_layouts(self) -> list[str]:
        """The launches for which tile programs are worth a look."""
        found = self.family.footprints
        launches = [x for x in self.family.sgraph.launches if x.name in self.launches]
        return [x.name for x in launches if any(shared_memory(found[k.name]).tiles for k in x.kernels)]

    def _fitting(self, config: Config) -> frozenset[str]:
        return self.family.described(config.symbols) & config.warps.keys()
