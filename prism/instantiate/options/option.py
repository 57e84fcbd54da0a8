"""What a launch option says of itself: where it is legal, what points it adds, which variants, how it is shown.

An option changes how a launch runs and not what it computes. It is an object for one family on one device, so that it
can keep what it has found out about it. How its name and values are written down follows from `name` and `numbered`
(`prism.sgraph.config`); what it changes in kernels and host code is with the backend that prints them
(`prism.backends.triton.options`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import ClassVar

from prism.backends.passes import tile_module
from prism.backends.tensor_descriptors import LaunchDescriptors, fitting, launch_descriptors
from prism.backends.tile import TileModule
from prism.cost.constraints import Footprint, footprint
from prism.cost.device import Device
from prism.cost.model import CostModel
from prism.instantiate.point_tables import PointSpace
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import SGraph


class Offered(Enum):
    """When an option is tried."""

    SPACE = "with every point, as a column of the space"
    STUDY = "beside the best points by the model, before anything is compiled"
    TIMING = "beside the best points of a study, where a device is there to say which is faster"
    CHECKED = "beside what has passed the check: the kernels are the same"


@dataclass(frozen=True)
class Family:
    """What options are asked about."""

    sgraph: SGraph  # the family
    device: Device  # whose limits hold
    hints: Mapping[str, int]  # a value for every symbol of the extents

    @cached_property
    def footprints(self) -> Mapping[str, Footprint]:
        """By kernel."""
        return {k.name: footprint(k, self.sgraph) for k in self.sgraph.kernels}

    @cached_property
    def module(self) -> TileModule:
        """The tile programs as they are printed."""
        return tile_module(self.sgraph)

    @cached_property
    def descriptors(self) -> Mapping[str, LaunchDescriptors]:
        """The loads that descriptors may do, by launch."""
        return launch_descriptors(self.module) if self.device.descriptors else {}

    def described(self, symbols: Mapping[str, int]) -> frozenset[str]:
        """The launches where descriptors fit; see `prism.backends.tensor_descriptors.fitting`."""
        return fitting(self.module, self.descriptors, symbols, self.hints) if self.descriptors else frozenset()


class Option:
    """A launch option of one family on one device; a subclass says what is particular about it."""

    name: ClassVar[str]  # in configurations, and so in lock files, emitted modules, keys
    offered: ClassVar[Offered]  # when it is tried
    numbered: ClassVar[bool] = False  # whether launches have a number of it
    # Whether a launch that has it is no kernel of its own, and has neither warps nor stages.
    replaces: ClassVar[bool] = False
    foreign: ClassVar[bool] = False  # whether its launches run code that is not prism's own
    # Whether it is about all launches together, so that a part's choice says nothing of the whole.
    common: ClassVar[bool] = False

    def __init__(self, family: Family) -> None:
        self.family = family
        self.launches: Collection[str] = ()  # those that may have it, at some of their points
        # Of an option that launches have to agree on, the columns that tables have for it (1 where it is chosen), and
        # the launch that each is for.
        self.columns: dict[str, str] = {}

    def feasible(self, config: Config) -> bool:
        """Whether the launches that a configuration gives it may have it there."""
        return config.launches(self.name) <= set(self.launches)

    def variant(self, config: Config, model: CostModel, resources: Sequence[Resources] = ()) -> Config | None:
        """The configuration with it wherever that is worth a try; None where that is nowhere, and where it is a column.

        `resources` are what the compiler said of the launches; estimated where it is missing.
        """
        return None

    def forms(self) -> Collection[str]:
        """The launches that a module has its form of, where a device may try it."""
        return self.launches

    def settled(self, config: Config, model: CostModel, resources: Sequence[Resources]) -> Config:
        """A variant as what the compiler said of it has it; nothing is compiled anew."""
        return config

    def extend(self, tables: dict[str, PointSpace], shared: Collection[str]) -> None:
        """Add the points that have it.

        `tables` are the points of each launch, `shared` the symbols that several launches have to agree on.
        """

    def chosen(self, launch: str, row: Mapping[str, int]) -> bool:
        """Whether a point of the launch's table has it."""
        return False

    def bound(self, config: Config) -> Config:
        """The configuration with the symbols that follow from it."""
        return config

    @classmethod
    def shown(cls, config: Config, launch: str) -> str:
        """What reports say of a launch that has it."""
        return f"{cls.name}={config.numbers(cls.name)[launch]}" if cls.numbered else cls.name
