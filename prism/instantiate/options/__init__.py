"""The options of launches, each in a file of its own; all else asks the list.

See `docs/architecture.md` for what one more takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prism.cost.device import Device
from prism.cost.model import CostModel
from prism.instantiate.options.dependent import Dependent
from prism.instantiate.options.descriptors import Descriptors
from prism.instantiate.options.folded import Folded
from prism.instantiate.options.library import Library
from prism.instantiate.options.option import Family as Family
from prism.instantiate.options.option import Offered as Offered
from prism.instantiate.options.option import Option as Option
from prism.instantiate.options.persistent import Flattened, Persistent
from prism.instantiate.options.streams import Streams
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import SGraph

OPTIONS: tuple[type[Option], ...] = (Library, Folded, Persistent, Flattened, Descriptors, Dependent, Streams)
"""All of them, in the order in which reports show them."""


def options_of(sgraph: SGraph, device: Device, hints: Mapping[str, int]) -> tuple[Option, ...]:
    """The options of a family."""
    family = Family(sgraph, device, hints)
    return tuple(o(family) for o in OPTIONS)


def foreign(config: Config) -> frozenset[str]:
    """The launches that run code which is not prism's own."""
    return frozenset().union(*(config.launches(o.name) for o in OPTIONS if o.foreign))


def variants(
    options: Sequence[Option], offered: Offered, config: Config, model: CostModel, resources: Sequence[Resources] = ()
) -> tuple[Config, ...]:
    """The configuration with each of the options that is offered then, where that is worth a try.

    `resources` are what the compiler said of the launches; estimated where it is missing.
    """
    made = (o.variant(config, model, resources) for o in options if o.offered is offered)
    return tuple(c for c in made if c is not None)


def shown(launch: str, symbols: Sequence[str], config: Config) -> str:
    """The configuration of one launch as reports have it, with its symbols."""
    chosen = [o for o in OPTIONS if launch in config.launches(o.name)]
    parts = [] if any(o.replaces for o in chosen) else [f"{s}={config.symbols[s]}" for s in symbols]
    if launch in config.warps:
        parts += [f"warps={config.warps[launch]}", f"stages={config.stages[launch]}"]
    return " ".join([*parts, *(o.shown(config, launch) for o in chosen)])
