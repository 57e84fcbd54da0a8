"""Loads by tensor descriptors: the host makes them at each call, None where there can be none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from prism.backends.host import tuple_of
from prism.backends.source import HOST, Writer
from prism.backends.tensor_descriptors import LaunchDescriptors, TensorMap, launch_descriptors
from prism.backends.tile import TileLaunch, TileModule
from prism.backends.triton.options.printed import Call, Printed
from prism.cost.shared_memory import DESCRIPTORS
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph

if TYPE_CHECKING:
    from prism.backends.triton.emit_kernel import KernelEmitter

BOX = '''
def _box(tensor, shape, strides, block):
    """The descriptor of a view of the tensor's memory, of which kernels copy blocks; None where there can be none.

    It is for NVIDIA's GPUs from Hopper on, and asks for addresses and strides of whole 16 bytes, and for 8 rows or 1.
    """
    if tensor.device.type != "cpu":
        target = triton.runtime.driver.active.get_current_target()
        if target.backend != "cuda" or target.arch < 90:
            return None
    size = tensor.element_size()
    if any(n % 16 for n in (tensor.data_ptr(), block[-1] * size, *(n * size for n in strides[:-1]))):
        return None
    if min(shape) < 1 or max(shape) >= 2**31 or max(block) > 256 or any(1 < n < 8 for n in block[:-1]):
        return None
    return TensorDescriptor(tensor, list(shape), list(strides), list(block))
'''


class PrintedDescriptors(Printed):
    """Of the launches that a configuration names, all that can have them without any: both forms of each load."""

    option = DESCRIPTORS
    refusal = "no load of the launch {} can be by a descriptor"
    source = BOX
    imports = "from triton.tools.tensor_descriptor import TensorDescriptor"
    names = ("TensorDescriptor",)

    _held: Mapping[str, LaunchDescriptors]

    def __init__(self, module: TileModule, sgraph: SGraph, configs: Sequence[Config]) -> None:
        super().__init__(module, sgraph, configs)
        self._held = {n: held for n, held in self._held.items() if not configs or n in self.chosen}
        self.launches = self._held

    def possible(self, module: TileModule, sgraph: SGraph) -> Collection[str]:
        """Launches with loads in a loop that a descriptor may do."""
        self._held = launch_descriptors(module)
        return self._held

    def kernel(self, launch: TileLaunch, emitter: KernelEmitter) -> None:
        """Loads in both forms, and parameters for the descriptors."""
        held = self._held.get(launch.name)
        if held is not None:
            emitter.descriptor_loads, emitter.descriptors = held.of(emitter.program), held.parameters(emitter.program)

    def call(self, call: Call, writer: Writer) -> None:
        """Make the descriptors."""
        launch = call.launch.name
        held = self._held.get(launch)
        if held is None:
            return
        writer.line(f"{' = '.join(held.views)} = None")
        with writer.block(f'if "{launch}" in {DESCRIPTORS}:'):
            for name, view in held.views.items():
                writer.call(f"{name} = _box", self._view(view))
        call.keywords += [f"{name}={name}" for name in held.views]

    def _view(self, view: TensorMap) -> list[str]:
        tensor = self.tensors.host[view.tensor.name]
        if view.offset != 0:
            start = HOST.text(view.offset)
            tensor += f".flatten()[{start}{' ' * (not start.isalnum())}:]"
        sizes = [self.signature.shape(e) for e in (view.shape, view.strides)]
        return [tensor, *sizes, tuple_of([str(b) for b in view.block])]
