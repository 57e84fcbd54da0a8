"""Plain matrix products and attention that the vendor's library computes: a launch's point of no stages.

What the library takes is in `prism.cost.library`. The launch's symbols count for nothing then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from prism.cost.gpu import LIBRARY_STAGES
from prism.instantiate.options.option import Family, Offered, Option
from prism.instantiate.point_tables import PointSpace
from prism.sgraph.library import library_calls
from prism.sgraph.products import LIBRARY


class Library(Option):
    """Open to launches that a library has something for, on a device where launches have options at all."""

    name = LIBRARY
    offered = Offered.SPACE
    replaces = True
    foreign = True

    def __init__(self, family: Family) -> None:
        super().__init__(family)
        self.launches = tuple(library_calls(family.sgraph)) if family.device.is_gpu else ()

    def extend(self, tables: dict[str, PointSpace], shared: Collection[str]) -> None:
        """For every value of what a launch shares with others one point more."""
        tables.update((name, tables[name].with_absence(shared)) for name in self.launches)

    def chosen(self, launch: str, row: Mapping[str, int]) -> bool:
        """The point of no stages."""
        return launch in self.launches and row["stages"] == LIBRARY_STAGES
