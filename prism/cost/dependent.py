"""Which launches may start before the one before them has ended."""

from __future__ import annotations

from prism.sgraph.folding import folds
from prism.sgraph.nodes import SGraph

DEPENDENT = "dependent"
"""What configurations call it."""


def overlapping(sgraph: SGraph) -> tuple[str, ...]:
    """All but the first, and but second stages that their splits may do."""
    seconds = folds(sgraph)
    return tuple(x.name for x in sgraph.launches[1:] if x.name not in seconds)
