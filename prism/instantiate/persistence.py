"""Configurations with persistent launches, from those without: where a launch has more programs than run at a time.

The model sees no gain in it, and says of both the same: what it saves (starting programs, and their first loads) has
not been measured. So no study has it as a column, which would double every space for nothing; where a device is there
to say, the best configurations are timed with it as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from prism.cost.model import Model
from prism.cost.persistent import persistable
from prism.sgraph.config import Config, Resources
from prism.sgraph.folding import FOLDED
from prism.sgraph.nodes import SGraph
from prism.sgraph.products import LIBRARY


def persistent(sgraph: SGraph, model: Model, config: Config, resources: Sequence[Resources] = ()) -> Config | None:
    """The configuration with all launches persistent that may be, and have more programs than run at a time; else None.

    Args:
        sgraph: the family.
        model: its model on the device.
        config: a configuration.
        resources: what the compiler said of its launches; estimated where it is missing.
    """
    known = {r.kernel: r for r in resources}
    found: dict[str, int] = {}
    for name in persistable(sgraph):
        if name in config.launches(LIBRARY) or name in config.launches(FOLDED):
            continue
        programs, blocks = model.occupancy(name, config, known.get(name))
        if programs > blocks * model.device.processors:
            found[name] = blocks
    return config.having(persistent=found) if found else None
