"""Persistent kernels whose loop over tiles is one with the loop in a tile: `persistent.py` prints the loop."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prism.backends.tile import TileModule
from prism.backends.triton.options.printed import Printed
from prism.cost.persistent import FLATTENED, flattenable
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph


class PrintedFlattened(Printed):
    """The launches that a configuration names, all that may be without any."""

    option = FLATTENED
    refusal = "the loop over tiles of the launch {} cannot be one with its own"

    def __init__(self, module: TileModule, sgraph: SGraph, configs: Sequence[Config]) -> None:
        super().__init__(module, sgraph, configs)
        self.launches = [n for n in self.launches if not configs or n in self.chosen]

    def possible(self, module: TileModule, sgraph: SGraph) -> Collection[str]:
        """Persistent launches of one loop, as long in every tile."""
        return flattenable(sgraph)
