"""The host side of an emitted module: `launches`, which yields kernels with grid and arguments, and the launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy

from prism.backends.host import Signature, Tensors, tuple_of
from prism.backends.source import HOST, Writer
from prism.backends.tile import Constant, TileLaunch, TileModule, identifier, scalars
from prism.backends.triton.emit_fold import Tail
from prism.backends.triton.emit_launch import programs_of
from prism.backends.triton.emit_stages import stages_parameter
from prism.backends.triton.tensor_descriptors import BoxView, LaunchBoxes
from prism.errors import UnsupportedError
from prism.program.extents import is_static
from prism.sgraph.products import PlainProduct, View

RESERVED = frozenset(
    {"torch", "triton", "tl", "config", "symbols", "warps", "stages", "library", "kernel", "grid", "args", "meta"}
    | {"folded", "arrived", "descriptors", "persistent", "tiles"}
)
"""What the emitted host's own variables are called."""

EXPECT = '''
def _expect(name, tensor, shape, dtype):
    """Refuse an argument of another rank, data type or shape; None stands for any length."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name} must be a torch.Tensor, not {type(tensor).__name__}")
    if tensor.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}, not {tensor.dtype}")
    fits = tensor.dim() == len(shape) and all(n is None or n == m for n, m in zip(shape, tensor.shape))
    if not fits:
        wanted = ", ".join("*" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must have the shape ({wanted}), not {tuple(tensor.shape)}")
'''

CHOOSE = '''
def choose(device, sizes):
    """The tuned configuration for a device and for the lengths of the axes."""
    target = "sm_%d%d" % torch.cuda.get_device_capability(device) if device.type == "cuda" else device.type
    entries = CONFIGS.get(target) or CONFIGS.get(device.type) or next(iter(CONFIGS.values()), None)
    if not entries:
        raise ValueError("this module has no tuned configuration: pass config=")
    for entry in entries:
        ranges = entry.get("shapes", {})
        if all(low <= sizes.get(name, low) <= high for name, (low, high) in ranges.items()):
            return entry
    return entries[-1]
'''

WEIGHT = '''
_WEIGHTS = {}


def _weight(name, like):
    """One of the model's weights, from the file beside this module, on the device of `like`; read once."""
    if "" not in _WEIGHTS:
        _WEIGHTS[""] = torch.load(Path(__file__).with_name("weights.pt"), map_location="cpu", weights_only=True)
    if name not in _WEIGHTS[""]:
        raise ValueError(f"{name} is missing: it was not passed, and it is none of the model's weights")
    device = torch.device("cpu") if like is None else like.device
    if (name, device) not in _WEIGHTS:
        _WEIGHTS[name, device] = _WEIGHTS[""][name].to(device)
    return _WEIGHTS[name, device]
'''

CONSTANT = '''
_CONSTANTS = {}


def _constant(device, values, shape, dtype):
    """A new tensor of these values: one for all elements, or one for each."""
    dtype = getattr(torch, dtype)
    if len(values) < 2:
        return torch.full(shape, *(values or (0,)), dtype=dtype, device=device)
    # Kept on the device, as a CUDA graph cannot capture the copy from the host.
    key = device, values, shape, dtype
    if key not in _CONSTANTS:
        _CONSTANTS[key] = torch.tensor(values, dtype=dtype, device=device).reshape(shape)
    return _CONSTANTS[key].clone()
'''

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

LIBRARY_PRODUCT = '''
class LibraryProduct:
    """A matrix product that the library behind torch computes, launched as a kernel is: product[grid](a, b, out)."""

    def __init__(self, name):
        self.__name__ = name

    def __getitem__(self, grid):
        return self

    def __call__(self, lhs, rhs, out):
        """out = lhs @ rhs, of matrices or of stacks of them: summed in float32 and, of float32, without TF32."""
        flags = torch.backends.cuda.matmul
        if lhs.dtype == torch.float32:
            name, wanted = ("fp32_precision", "ieee") if hasattr(flags, "fp32_precision") else ("allow_tf32", False)
        else:
            name = "allow_bf16" if lhs.dtype == torch.bfloat16 else "allow_fp16"
            name, wanted = f"{name}_reduced_precision_reduction", False
        before = getattr(flags, name)
        setattr(flags, name, wanted)
        try:
            (torch.mm if lhs.dim() == 2 else torch.bmm)(lhs, rhs, out=out)
        finally:
            setattr(flags, name, before)

    def warmup(self, *args, **meta):
        """There is nothing to compile."""
'''

CAPTURE = '''
def {name}(*inputs, keep=(), config=None):
    """One CUDA graph of all launches for arguments of these shapes; it costs a single launch to replay.

    Args:
        inputs: as of `{entry}`. The graph reads copies of its own.
        keep: which of them, by number, it reads where they are instead, as weights: those must stay alive at their
            addresses, contiguous; what is written there later is seen.
        config: as of `{entry}`.

    Returns:
        replay(*inputs), which copies arguments of the same shapes and types to where the graph reads (nothing where
        one is None or left out), replays the graph and returns its outputs: the same tensors each time, which the next
        replay overwrites.
    """
    given = [t for t in inputs if t is not None]
    if not given or not torch.cuda.is_available() or not all(t.is_cuda for t in given):
        raise RuntimeError("a CUDA graph needs arguments on a CUDA device; call {entry} instead")
    held = [
        t if t is None or n in keep else t.clone(memory_format=torch.contiguous_format) for n, t in enumerate(inputs)
    ]
    with torch.cuda.device(given[0].device):
        # Kernels are compiled and libraries set up before: a capture allows neither.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            {entry}(*held, config=config)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with {around}:
            outputs = {entry}(*held, config=config)

    def replay(*inputs):
        if len(inputs) > len(held):
            raise ValueError(f"the graph takes {{len(held)}} arguments, not {{len(inputs)}}")
        for n, (own, new) in enumerate(zip(held, inputs)):
            if new is None or new is own:
                continue
            if own is None or n in keep:
                raise ValueError(f"argument {{n}} is read where it was at the capture: write it there and pass None")
            if new.shape != own.shape or new.dtype != own.dtype:
                wanted, found = (f"{{t.dtype}} {{tuple(t.shape)}}" for t in (own, new))
                raise ValueError(f"argument {{n}} must be {{wanted}} as at the capture, not {{found}}")
            own.copy_(new)
        graph.replay()
        return outputs

    return replay
'''


WITH_GRAPH = "torch.cuda.graph(graph)"
WITH_ARRIVALS = "GraphArrivals(side) as graph.arrivals, torch.cuda.graph(graph, stream=side)"
"""What CAPTURE's launches are captured in, without folds and with them."""


@dataclass(slots=True)
class HostEmitter:
    """Writes the host side.

    Attributes:
        module: the tile programs.
        signature: what the launcher takes and returns.
        writer: where it is written.
        products: the launches that a library can compute as well, by name.
        tails: how splits go on where their second stages are folded into them, by launch.
        boxes: the descriptors of launches that are printed with them.
        looped: the launches that may be persistent.
    """

    module: TileModule
    signature: Signature
    writer: Writer
    products: Mapping[str, PlainProduct] = field(default_factory=dict)
    tails: Mapping[str, Tail] = field(default_factory=dict)
    boxes: Mapping[str, LaunchBoxes] = field(default_factory=dict)
    looped: Sequence[str] = ()

    @property
    def tensors(self) -> Tensors:
        """The names of tensors."""
        return self.signature.tensors

    def launches(self) -> None:
        """The generator of launches."""
        m, w = self.module, self.writer
        names = [self.tensors.host[t.name] for t in (*m.inputs, *m.outputs)]
        w.call("def launches", [*names, "*", "config"], ":")
        with w.indented():
            w.line('"""Yield (kernel, grid, arguments, options) of every launch, in order; on meta tensors, too."""')
            w.line('symbols, warps, stages = config["symbols"], config["warps"], config["stages"]')
            if self.products:
                w.line('library = config.get("library", ())')
            if self.tails:
                w.line('folded = config.get("folded", ())')
            if self.boxes:
                w.line('descriptors = config.get("descriptors", ())')
            if self.looped:
                w.line('persistent = config.get("persistent", {})')
            for name, text in self.signature.lengths.items():
                w.line(f"{name} = {text}")
            for c in self._constants():
                self._constant(c)
            for b in m.buffers:
                w.call(
                    f"{self.tensors.host[b.name]} = torch.empty",
                    [self.signature.shape(b.shape), f"dtype=torch.{b.dtype.value}", f"device={names[0]}.device"],
                )
            for b in m.buffers:
                if any(not is_static(e) for e in b.shape):
                    self._refuse_large(self.tensors.host[b.name], f"{self.tensors.host[b.name]}.numel()")
            combines = {t.fold.combine for t in self.tails.values()}
            if combines:
                self._arrivals(f"{names[0]}.device")
            for launch in m.launches:
                product = self.products.get(launch.name)
                if launch.name in combines:
                    with w.block(f'if "{launch.name}" not in folded:'):
                        self._launch(launch)
                    continue
                if product is None:
                    self._launch(launch)
                    continue
                with w.block(f'if "{launch.name}" in library:'):
                    views = [_viewed(self.tensors.host[v.tensor], v) for v in (product.lhs, product.rhs, product.out)]
                    w.call("yield ", [f'LibraryProduct("{launch.name}")', "(1,)", tuple_of(views), "{}"])
                with w.block("else:"):
                    self._launch(launch)

    def _constants(self) -> list[Constant]:
        """The sizes that kernels or buffers need, each once: one that two kernels share is long enough for both."""
        m = self.module
        found: dict[str, Constant] = {}
        for c in (c for launch in m.launches for c in launch.constants):
            known = found.setdefault(c.name, c)
            if (known.symbol, known.extent) != (c.symbol, c.extent):
                raise UnsupportedError(f"two kernels mean different sizes by {c.name}", where=f"emitting {m.name}")
            found[c.name] = replace(known, least=max(known.least, c.least))
        symbols = {identifier(s): s for s in m.symbols}
        for name in sorted({n for b in m.buffers for e in b.shape for n in scalars(e)} & set(symbols)):
            found.setdefault(name, Constant(name, symbols[name]))
        return list(found.values())

    def _constant(self, c: Constant) -> None:
        if c.symbol is not None:
            text = f'symbols["{c.symbol}"]'
        else:
            assert c.extent is not None
            text = f"triton.next_power_of_2({HOST.text(c.extent)})"
        self.writer.line(f"{c.name} = {text if c.least == 1 else f'max({text}, {c.least})'}")

    def _refuse_large(self, name: str, elements: str) -> None:
        """Offsets are 32-bit integers unless a tensor is known to need more."""
        with self.writer.block(f"if {elements} > 2**31 - 1:"):
            self.writer.line(f'raise ValueError("{name} would have more than 2**31 - 1 elements")')

    def _tiles(self, tail: Tail) -> str:
        """How many tiles the programs of a split share, as source."""
        return programs_of(replace(tail.program, grid=tail.program.grid[:-1]), HOST)

    def _arrivals(self, device: str) -> None:
        """What the programs of each split count in: of its own, as splits may run beside each other."""
        w = self.writer
        counts = [f'{self._tiles(t)} if "{t.fold.combine}" in folded else 0' for t in self.tails.values()]
        if len(counts) == 1:
            w.line("arrived = None")
            with w.block("if folded:"):
                w.assign("arrived", f"_arrivals({counts[0]}, {device})")
            return
        w.line(f"arrived = [None] * {len(counts)}")
        with w.block("if folded:"):
            # By fours: kernels are compiled for pointers that are multiples of 16 bytes.
            w.line("arrived = [")
            with w.indented():
                for count in counts:
                    w.line(f"triton.cdiv({count}, 4) * 4,")
            w.line("]")
            w.line(f"arrived = _arrivals(sum(arrived), {device})[: sum(arrived)].split(arrived)")

    @property
    def _arrived(self) -> dict[str, list[str]]:
        """What the programs of each split count in, as source."""
        if len(self.tails) == 1:
            return {split: ["arrived"] for split in self.tails}
        return {split: [f"arrived[{n}]"] for n, split in enumerate(self.tails)}

    def _launch(self, p: TileLaunch) -> None:
        w = self.writer
        counts = [programs_of(program, HOST) for program in p.programs]
        tail = self.tails.get(p.name)
        tensors, lengths, constants = (p.tensors, p.lengths, p.constants)
        if tail is not None:
            tensors, lengths, constants = tail.tensors, tail.lengths, tail.constants
        args = [self.tensors.host[t.name] for t in tensors] + self._arrived.get(p.name, []) + list(lengths)
        if p.name in self.looped:
            w.line(f"tiles = {counts[0]}")
            counts = [
                f'_resident(tiles, persistent["{p.name}"], {args[0]}.device) if "{p.name}" in persistent else tiles'
            ]
            args.append(f'tiles if "{p.name}" in persistent else None')
        options = [f"{c.name}={c.name}" for c in constants]
        held = self.boxes.get(p.name)
        if held is not None:
            self._descriptors(p.name, held)
            options += [f"{name}={name}" for name in held.views]
        if tail is not None:
            options.append(f'{tail.flag}="{tail.fold.combine}" in folded')
        told = stages_parameter(p, tail)
        options += [f'{told}=stages["{p.name}"]'] * bool(told)
        options += [f'num_warps=warps["{p.name}"]', f'num_stages=stages["{p.name}"]', "enable_fp_fusion=True"]
        w.line("yield (")
        with w.indented():
            w.line(f"{p.name},")
            grid = f"({' + '.join(counts)},),"
            if len(grid) <= w.room:
                w.line(grid)
            else:
                w.line("(")
                with w.indented():
                    for n, count in enumerate(counts):
                        w.line(f"{'+ ' if n else ''}{count}{',' if n == len(counts) - 1 else ''}")
                w.line("),")
            w.line(f"{tuple_of(args)},")
            w.call("dict", options, ",")
        w.line(")")

    def _descriptors(self, launch: str, held: LaunchBoxes) -> None:
        self.writer.line(f"{' = '.join(held.views)} = None")
        with self.writer.block(f'if "{launch}" in descriptors:'):
            for name, view in held.views.items():
                self.writer.call(f"{name} = _box", self._view(view))

    def _view(self, view: BoxView) -> list[str]:
        tensor = self.tensors.host[view.tensor.name]
        if view.offset != 0:
            start = HOST.text(view.offset)
            tensor += f".flatten()[{start}{' ' * (not start.isalnum())}:]"
        return [
            tensor,
            self.signature.shape(view.shape),
            self.signature.shape(view.strides),
            tuple_of([str(b) for b in view.block]),
        ]

    def launcher(self, formula: str) -> None:
        """The function that a user calls."""
        m, w, signature = self.module, self.writer, self.signature
        inputs, outputs = signature.inputs, signature.outputs
        signature.define(w, ["config=None"])
        with w.indented():
            signature.checks(w, formula)
            self._device_checks()
            for n in inputs:
                w.line(f"{n} = {n}.contiguous()")
            lengths = signature.lengths
            sizes = f"dict({', '.join(f'{n}={n}' for n in lengths)})" if lengths else "{}"
            w.line(f"config = choose({inputs[0]}.device, {sizes}) if config is None else config")
            for t in m.outputs:
                w.call(
                    f"{self.tensors.host[t.name]} = torch.empty",
                    [signature.shape(t.shape), f"dtype=torch.{t.dtype.value}", f"device={inputs[0]}.device"],
                )
            w.line(f"with torch.cuda.device_of({inputs[0]}):")
            with w.indented():
                w.call("for kernel, grid, args, meta in launches", [*inputs, *outputs, "config=config"], ":")
                with w.indented(), w.block("if grid[0] > 0:"):
                    w.line("kernel[grid](*args, **meta)")
            w.line(f"return {', '.join(signature.results(f'{inputs[0]}.device'))}")

    def _device_checks(self) -> None:
        """One device for all, and no tensor of more elements than offsets can count."""
        w = self.writer
        first, *others = self.signature.inputs
        if others:
            with w.block(f"if any(t.device != {first}.device for t in {tuple_of(others)}):"):
                w.line('raise ValueError("all arguments must be on one device")')
        for t in (*self.module.inputs, *self.module.outputs):
            if any(not is_static(e) for e in t.shape):
                self._refuse_large(self.tensors.host[t.name], HOST.text(sympy.Mul(*t.shape)))


def _viewed(name: str, view: View) -> str:
    """The tensor as a matrix or a stack of them, as source; nothing is copied."""
    text = name
    if view.dropped:
        text += f".squeeze({tuple_of([str(n) for n in view.dropped])})"
    if len(view.order) == 2 and view.order == (1, 0):
        text += ".mT"
    elif view.order != tuple(range(len(view.order))):
        text += f".permute{tuple_of([str(n) for n in view.order])}"
    place = 0
    for n, many in enumerate(view.groups):
        if many == 0 and n > 0:
            text += f".unsqueeze({place})"
        elif many > 1:
            text += f".flatten({place}, {place + many - 1})"
        place += 1 if n or many else 0
    return text
