"""Kernels that may be persistent: the program of a tile as a function, which the kernel calls once or tile after tile.

Triton inlines the call, so that a kernel which is not persistent is compiled as if it had been written in one piece.
How many programs a persistent launch has depends on the device it runs on, which the host asks: multiprocessors times
the programs that one of them holds, which the configuration says (`Config.persistent`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prism.backends.source import Writer
from prism.backends.tile import TileLaunch
from prism.backends.tile_rename import names_beside

RESIDENT = '''
def _resident(tiles, blocks, device):
    """How many programs take `tiles` tiles between them, of which a multiprocessor holds `blocks` at a time."""
    if device.type != "cuda":
        return min(tiles, 2 * blocks)
    return min(tiles, torch.cuda.get_device_properties(device).multi_processor_count * blocks)
'''
"""What an emitted module with such kernels has besides."""


def write_persistent(
    launch: TileLaunch,
    function: str,
    pointers: Mapping[str, str],
    writer: Writer,
    stages: str = "",
    descriptors: Sequence[str] = (),
) -> None:
    """The kernel; its last parameter is the number of tiles where it is persistent, and None where it is not.

    Args:
        launch: of one program.
        function: what a program does at a tile, as a function of its number.
        pointers: the pointer parameter of each tensor.
        writer: where it is written.
        stages: the parameter with the pipeline stages, where some loop is told them.
        descriptors: the parameters for descriptors.
    """
    arguments = [*(pointers[t.name] for t in launch.tensors), *launch.lengths]
    constants = [*(c.name for c in launch.constants), *[stages] * bool(stages)]
    names = names_beside(launch.programs[0])
    names.taken |= {*arguments, *constants, *descriptors}
    tiles, tile = names.fresh("tile_count"), names.fresh("tile")
    writer.line("@triton.jit")
    parameters = [*arguments, tiles, *(f"{c}: tl.constexpr" for c in constants), *descriptors]
    writer.call(f"def {launch.name}", parameters, ":")
    with writer.indented():
        with writer.block(f"if {tiles} is None:"):
            writer.call(function, ["tl.program_id(0)", *arguments, *constants, *descriptors])
        with (
            writer.block("else:"),
            writer.block(f"for {tile} in range(tl.program_id(0), {tiles}, tl.num_programs(0)):"),
        ):
            writer.call(function, [tile, *arguments, *constants, *descriptors])
