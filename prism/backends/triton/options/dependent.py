"""Launches that start before the one before them has ended: programmatic dependent launch.

It is for NVIDIA's GPUs from Hopper on. Where a configuration has any, every kernel waits at its first instruction until
the launch before it has ended and what that stored is seen, and then lets the next one start: nothing is loaded, stored
or counted while an earlier launch runs. That holds of all earlier launches, as the one before had waited too before it
ended, or was an ordinary launch.
So buffers and the counts of folded splits are safe; what overlaps is starting the programs.

The first launch is an ordinary one, whatever ran before. Second stages that a split may do instead are ordinary, too:
they share a function with it. In Triton's interpreter and beside other streams the option counts for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prism.backends.source import Writer
from prism.backends.tile import TileLaunch, TileModule
from prism.backends.tile_rewrite import names_beside
from prism.backends.triton.emit_kernel import KernelEmitter
from prism.backends.triton.options.printed import Call, Printed
from prism.sgraph.config import Config
from prism.sgraph.launches import DEPENDENT, overlapping
from prism.sgraph.nodes import SGraph


class PrintedDependent(Printed):
    """Of the launches that a configuration names, how they are called; of all others that they let them start."""

    option = DEPENDENT
    refusal = "the launch {} cannot start before the one before it has ended"
    imports = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait"
    names = ("gdc_launch_dependents", "gdc_wait")

    def __init__(self, module: TileModule, sgraph: SGraph, configs: Sequence[Config]) -> None:
        super().__init__(module, sgraph, configs)
        if configs and not self.chosen:
            self.launches = ()
        folded = {f.combine for f in module.folds}
        self._flags = {x.name: _flag(x) for x in module.launches if x.name not in folded}

    def possible(self, module: TileModule, sgraph: SGraph) -> Collection[str]:
        """All but the first, and but second stages."""
        return overlapping(sgraph)

    def kernel(self, launch: TileLaunch, emitter: KernelEmitter) -> None:
        """Wait, and let the next one start, where the host says so."""
        if launch.name in self._flags:
            emitter.waits = self._flags[launch.name]
            emitter.descriptors = [*emitter.descriptors, emitter.waits]

    def begin(self, writer: Writer, device: str) -> None:
        """Where it counts for nothing."""
        with writer.block(f'if {device}.type == "cpu" or config.get("streams"):'):
            writer.line(f"{DEPENDENT} = ()")

    def call(self, call: Call, writer: Writer) -> None:
        """Every kernel is told whether there are any; those that are, Triton."""
        name = call.launch.name
        if name in self._flags:
            call.keywords.append(f"{self._flags[name]}=1 if {DEPENDENT} else None")
        if name in self.launches:
            call.keywords.append(f'**({{"launch_pdl": True}} if "{name}" in {DEPENDENT} else {{}})')


def _flag(launch: TileLaunch) -> str:
    """The parameter: 1, or None, which Triton knows as it compiles."""
    first, *others = (names_beside(p) for p in launch.programs)
    first.taken |= {n for o in others for n in o.taken}
    return first.fresh("waits")
