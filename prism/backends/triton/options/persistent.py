"""Kernels that may be persistent: the program of a tile as a function, which the kernel calls once or tile after tile.

Triton inlines the call, so that a kernel which is not persistent is compiled as if it had been written in one piece.
How many programs a persistent launch has depends on the device it runs on, which the host asks: multiprocessors times
the programs that one of them holds, which the configuration says (the option `persistent`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from prism.backends.host import Signature
from prism.backends.source import Writer, fresh
from prism.backends.tile import TileLaunch, TileModule
from prism.backends.tile_rewrite import names_beside
from prism.backends.triton.options.printed import Call, Printed
from prism.cost.persistent import FLATTENED, PERSISTENT, flattenable, persistable
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph

if TYPE_CHECKING:
    from prism.backends.triton.emit_kernel import KernelEmitter


RESIDENT = '''
def _resident(tiles, blocks, device):
    """How many programs take `tiles` tiles between them, of which a multiprocessor holds `blocks` at a time."""
    if device.type != "cuda":
        return min(tiles, 2 * blocks)
    return min(tiles, torch.cuda.get_device_properties(device).multi_processor_count * blocks)
'''


class PrintedPersistent(Printed):
    """The launches that a configuration names, all that may be without any."""

    option = PERSISTENT
    refusal = "the launch {} cannot be persistent"
    default = "{}"
    source = RESIDENT
    names = ("_resident",)

    def __init__(self, module: TileModule, sgraph: SGraph, configs: Sequence[Config]) -> None:
        super().__init__(module, sgraph, configs)
        self.launches = [n for n in self.launches if not configs or n in self.chosen]
        self._flattened = {n for n in PrintedFlattened(module, sgraph, configs).launches if n in self.launches}

    def possible(self, module: TileModule, sgraph: SGraph) -> Collection[str]:
        """Launches that multiply in a loop."""
        return persistable(sgraph)

    def named(self, signature: Signature, taken: set[str]) -> None:
        """Name what a program does at a tile."""
        super().named(signature, taken)
        self._functions = {name: fresh(f"{name}_tile", taken) for name in self.launches}
        launches = [x for x in self.module.launches if x.name in self._flattened]
        self._flags = {x.name: names_beside(x.programs[0]).fresh("FLATTENED") for x in launches}

    def kernel(self, launch: TileLaunch, emitter: KernelEmitter) -> None:
        """The program is a function of its tile."""
        if launch.name in self._functions:
            emitter.name, emitter.called = self._functions[launch.name], True

    def wrap(self, launch: TileLaunch, writer: Writer, stages: str, parameters: Sequence[str]) -> None:
        """The kernel; its last argument is the number of tiles where it is persistent, and None where it is not."""
        if launch.name not in self._functions:
            return
        function = self._functions[launch.name]
        arguments = [*(self.tensors.pointer[t.name] for t in launch.tensors), *launch.lengths]
        constants = [*(c.name for c in launch.constants), *[stages] * bool(stages)]
        names = names_beside(launch.programs[0])
        names.taken |= {*arguments, *constants, *parameters}
        tiles, tile = names.fresh("tile_count"), names.fresh("tile")
        numbers = f"tl.program_id(0), {tiles}, tl.num_programs(0)"
        writer.blank(2)
        writer.line("@triton.jit")
        flag = self._flags.get(launch.name)
        flags = [f"{flag}: tl.constexpr"] if flag else []
        loop = f"tl.range({numbers}, flatten={flag})" if flag else f"range({numbers})"
        given = [*arguments, tiles, *(f"{c}: tl.constexpr" for c in constants), *flags, *parameters]
        writer.call(f"def {launch.name}", given, ":")
        with writer.indented():
            with writer.block(f"if {tiles} is None:"):
                writer.call(function, ["tl.program_id(0)", *arguments, *constants, *parameters])
            with (
                writer.block("else:"),
                writer.block(f"for {tile} in {loop}:"),
            ):
                writer.call(function, [tile, *arguments, *constants, *parameters])

    def call(self, call: Call, writer: Writer) -> None:
        """As many programs as the device runs at a time."""
        name = call.launch.name
        if name not in self._functions:
            return
        writer.line(f"tiles = {call.counts[0]}")
        device = f"{self.tensors.host[call.tensors[0].name]}.device"
        call.counts = [f'_resident(tiles, persistent["{name}"], {device}) if "{name}" in persistent else tiles']
        call.last.append(f'tiles if "{name}" in persistent else None')
        if name in self._flags:
            call.keywords.append(f'{self._flags[name]}="{name}" in {FLATTENED}')


class PrintedFlattened(Printed):
    """The launches that a configuration names, all that may be without any."""

    option = FLATTENED
    refusal = "the loop over tiles of the launch {} cannot be one with its own"

    def __init__(self, module: TileModule, sgraph: SGraph, configs: Sequence[Config]) -> None:
        super().__init__(module, sgraph, configs)
        self.launches = [n for n in self.launches if not configs or n in self.chosen]

    def possible(self, module: TileModule, sgraph: SGraph) -> Collection[str]:
        """Persistent launches of one loop, as long in every tile."""
        return flattenable(sgraph)
