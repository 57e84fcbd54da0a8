"""Second stages that their splits' own programs do, the last of each tile (`prism.sgraph.folding`).

Folded or not is a column that both launches have, so that they agree. A second stage that is folded is no launch: its
tiles are the split's, and the split's points are those at which the second stage, with the split's tiles and warps,
keeps within the limits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from prism.cost.constraints import checks
from prism.cost.gpu import LIBRARY_STAGES, folding
from prism.instantiate.options.option import Family, Offered, Option
from prism.instantiate.point_tables import Ints, PointSpace
from prism.sgraph.config import Config
from prism.sgraph.folding import FOLDED, Fold, folds


class Folded(Option):
    """Open to second stages that some point of their split has room for."""

    name = FOLDED
    offered = Offered.SPACE
    replaces = True

    def __init__(self, family: Family) -> None:
        super().__init__(family)
        self._folds = folds(family.sgraph) if family.device.is_gpu else {}
        self.launches = tuple(self._folds)

    def feasible(self, config: Config) -> bool:
        """Whether their tiles are the split's, and keep within the limits."""
        chosen = [self._folds[n] for n in config.launches(FOLDED) & set(self.launches)]
        given = {n: np.array([v]) for n, v in config.symbols.items()}
        return (
            super().feasible(config)
            and self.bound(config).symbols == config.symbols
            and all(self._fits(f, given, np.array([config.warps.get(f.split, 0)])).all() for f in chosen)
        )

    def extend(self, tables: dict[str, PointSpace], shared: Collection[str]) -> None:
        """The split's points that have room once more, and a point at which the second stage is no launch."""
        for name, fold in self._folds.items():
            split = tables[fold.split]
            room = self._fits(fold, split.binding(), split.column("warps"))
            if room.any():
                both = replace(split, points=np.concatenate([split.points, split.points[room]]))
                tables[fold.split] = both.flagged(folding(name), np.arange(len(both.points)) >= len(split.points))
                own = tables[name].with_absence(shared)
                tables[name] = own.flagged(folding(name), own.column("stages") == LIBRARY_STAGES)
                self.columns[folding(name)] = name
        self.launches = tuple(self.columns.values())

    def chosen(self, launch: str, row: Mapping[str, int]) -> bool:
        """What the second stage's column says."""
        return launch in self.launches and bool(row[folding(launch)])

    def bound(self, config: Config) -> Config:
        """Second stages that are folded have the tiles of their splits."""
        symbols = dict(config.symbols)
        for name in config.launches(FOLDED):
            symbols |= self._folds[name].bind(config.symbols)
        return replace(config, symbols=symbols)

    def _fits(self, fold: Fold, binding: Mapping[str, Any], warps: Ints) -> npt.NDArray[np.bool_]:
        """Where the second stage with the split's tiles and warps keeps within the limits."""
        (launch,) = (x for x in self.family.sgraph.launches if x.name == fold.combine)
        given = {**self.family.hints, **binding, **fold.bind(binding)}
        ok = np.ones(len(warps), dtype=bool)
        for _, held in checks(self.family.footprints[launch.kernels[0].name], self.family.device, given, 1, warps):
            ok &= held
        return ok
