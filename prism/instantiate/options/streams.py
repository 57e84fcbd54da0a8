"""Independent launches on several streams of a captured graph: the number is the stream, from 1, beside the first one.

Which streams, and whether they pay, `prism.cost.streams` says. Kernels are the same, so nothing is compiled or checked
anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from prism.cost.model import CostModel, Model
from prism.cost.streams import STREAMS
from prism.instantiate.options.option import Family, Offered, Option
from prism.sgraph.config import Config, Resources


class Streams(Option):
    """Open to all launches: what has to wait for what is made from what they load and store."""

    name = STREAMS
    numbered = True
    offered = Offered.CHECKED
    common = True

    def __init__(self, family: Family) -> None:
        super().__init__(family)
        self.launches = tuple(x.name for x in family.sgraph.launches) if family.device.is_gpu else ()

    def variant(self, config: Config, model: CostModel, resources: Sequence[Resources] = ()) -> Config | None:
        """Launches on the streams by which the model expects a gain."""
        return model.on_streams(config, resources) if isinstance(model, Model) else None

    @classmethod
    def shown(cls, config: Config, launch: str) -> str:
        """The launch's stream."""
        return f"stream={config.numbers(STREAMS)[launch]}"
