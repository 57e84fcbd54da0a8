"""Passes over tile programs: from one to another that computes the same with less, or on better units."""

from __future__ import annotations

from prism.backends.lower import lower
from prism.backends.passes.codes import code_module
from prism.backends.passes.exponents import binary_module
from prism.backends.passes.folded_split import fold_module
from prism.backends.passes.fused_sums import fused_module
from prism.backends.passes.guards import guard_module
from prism.backends.passes.sharing import share_module
from prism.backends.passes.small_integers import small_integer_module
from prism.backends.tile import TileModule
from prism.sgraph.folding import folds
from prism.sgraph.nodes import SGraph


def tile_module(sgraph: SGraph) -> TileModule:
    """The tile programs of an sGraph as they are printed."""
    coded = small_integer_module(code_module(fused_module(lower(sgraph))))
    return fold_module(share_module(guard_module(binary_module(coded))), folds(sgraph).values())
