"""Passes over tile programs: from one to another that computes the same with less, or on better units."""

from __future__ import annotations

from prism.backends.lower import lower
from prism.backends.passes.codes import coded
from prism.backends.passes.exponents import binary
from prism.backends.passes.folded_split import fold_module
from prism.backends.passes.fused_sums import fused
from prism.backends.passes.guards import guard
from prism.backends.passes.sharing import share_module
from prism.backends.passes.small_integers import ranged
from prism.backends.tile import TileModule
from prism.sgraph.folding import folds
from prism.sgraph.nodes import SGraph


def tile_module(sgraph: SGraph) -> TileModule:
    """The tile programs of an sGraph as they are printed."""
    module = lower(sgraph)
    for change in (fused, coded, ranged, binary, guard):
        module = module.over(change)
    return fold_module(share_module(module), folds(sgraph).values())
