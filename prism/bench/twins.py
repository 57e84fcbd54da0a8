"""Configurations that differ from the best ones in how they are launched alone, for a device to say which is faster.

Independent launches on several streams of a graph (`Config.streams`): the kernels are the same, so nothing is compiled.
Programs that take tile after tile (`Config.persistent`): other kernels, which are compiled and judged as others are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prism.cost.model import Model
from prism.cost.persistent import PERSISTENT
from prism.instantiate.persistence import persistent
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import SGraph

TWINS = 2
"""Configurations of a finalist that get a twin, the best ones."""


def on_streams(model: Model, judged: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The twins of the best entries whose launches the model would put on several streams.

    Args:
        model: of the entries' sGraph.
        judged: entries of a manifest, with estimates or errors.
    """
    found: list[dict[str, Any]] = []
    for entry in _best(judged):
        resources = _resources(entry)
        config = model.on_streams(Config.decode(entry["config"]), resources)
        if config is None:
            continue
        changed = {
            "config": config.encode(),
            "key": config.key(),
            "model_us": 1e6 * model.seconds(config),
            "estimate_us": 1e6 * model.seconds(config, resources),
        }
        found.append({**entry, **changed})
    return found


def persistent_twins(sgraph: SGraph, model: Model, judged: Sequence[Mapping[str, Any]]) -> list[Config]:
    """The best entries' configurations, persistent where that is possible.

    Args:
        sgraph: the entries'.
        model: of that sGraph.
        judged: entries of a manifest, with estimates or errors.
    """
    made = (persistent(sgraph, model, Config.decode(e["config"]), _resources(e)) for e in _best(judged))
    return [config for config in made if config is not None]


def settled(model: Model, judged: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Twins with as many programs as a multiprocessor holds of what the compiler made; nothing is compiled anew.

    Args:
        model: of the entries' sGraph.
        judged: entries of persistent configurations.
    """
    found: list[dict[str, Any]] = []
    for entry in judged:
        config = Config.decode(entry["config"])
        known = {r.kernel: r for r in _resources(entry)}
        if "error" not in entry:
            blocks = {name: model.occupancy(name, config, known.get(name))[1] for name in config.launches(PERSISTENT)}
            config = config.having(persistent=blocks)
        found.append({**entry, "config": config.encode(), "key": config.key()})
    return found


def _best(judged: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    ranked = sorted((e for e in judged if "error" not in e), key=lambda e: (e["estimate_us"], e["key"]))
    return ranked[:TWINS]


def _resources(entry: Mapping[str, Any]) -> tuple[Resources, ...]:
    return tuple(Resources(**r) for r in entry["resources"])
