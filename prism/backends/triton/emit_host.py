"""The host side of an emitted module: `launches`, which yields kernels with grid and arguments, and the launcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from prism.backends.host import Signature, Tensors, tuple_of
from prism.backends.source import HOST, Writer, programs_of
from prism.backends.tile import Constant, TileLaunch, TileModule, TileRepeat, identifier, scalars
from prism.backends.triton.emit_kernel import stages_parameter
from prism.backends.triton.options.printed import Call, Printed
from prism.errors import UnsupportedError
from prism.program.extents import add, is_static
from prism.program.nodes import Tensor

RESERVED = frozenset(
    {"torch", "triton", "tl", "config", "symbols", "warps", "stages", "kernel", "grid", "args", "meta"}
    | {"arrived", "at", "step", "tiles", "made"}
)
"""What the emitted host's own variables are called."""

EXPECT = '''
def _expect(name, tensor, shape, dtype):
    """Refuse an argument of another rank, data type or shape; None stands for any length."""
    if type(tensor) is torch.Tensor and tensor.dtype == dtype and tensor.shape == shape and not (
        tensor.requires_grad or tensor.is_meta
    ):
        return
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name} must be a torch.Tensor, not {type(tensor).__name__}")
    if tensor.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}, not {tensor.dtype}")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} requires a gradient, which these kernels do not compute: detach it, call under torch.no_grad(), "
            "or let prism differentiate: torch.compile(model, backend='prism')"
        )
    fits = tensor.dim() == len(shape) and all(n is None or n == m for n, m in zip(shape, tensor.shape))
    if not fits:
        wanted = ", ".join("*" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must have the shape ({wanted}), not {tuple(tensor.shape)}")
    if tensor.is_meta or type(tensor).__name__ == "FakeTensor":
        raise ValueError(
            f"{name} has no memory that kernels can read: it is on meta, or torch traces the call; call torch_op() of "
            "this module there"
        )
'''

CHOOSE = '''
_TARGETS = {}


def choose(device):
    """The tuned configuration for a device."""
    target = _TARGETS.get(device)
    if target is None:
        target = "sm_%d%d" % torch.cuda.get_device_capability(device) if device.type == "cuda" else device.type
        _TARGETS[device] = target
    entries = CONFIGS.get(target) or CONFIGS.get(device.type) or next(iter(CONFIGS.values()), None)
    if not entries:
        raise ValueError("this module has no tuned configuration: pass config=")
    return entries[0]
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
        _WEIGHTS[name, device] = _WEIGHTS[""][name].to(device){held}
    return _WEIGHTS[name, device]
'''

PREPARED = '''
_HELD = {}
_MADE = {}


def hold(tensors):
    """Say that these, a model's weights, stay as they are: what is made of them alone is kept, while they live."""
    for tensor in tensors:
        key = id(tensor)
        _HELD[key] = weakref.ref(tensor, lambda _, key=key: _let_go(key))


def _let_go(key):
    """Forget a tensor that is gone, and what was made of it."""
    _HELD.pop(key, None)
    for made in [made for made in _MADE if key in made[0]]:
        _MADE.pop(made, None)


def _made_of(weights, config):
    """What buffers of what hangs on these weights alone are kept by."""
    return tuple(map(id, weights)), tuple(sorted(config["symbols"].items()))


def _keep(weights, config, buffers):
    """Keep what has just been made of these weights alone, where they are held, until they are gone."""
    if not all(t.is_cuda and id(t) in _HELD for t in weights) or torch.cuda.is_current_stream_capturing():
        return
    torch.cuda.current_stream(weights[0].device).synchronize()  # calls on other streams read it, too
    _MADE[_made_of(weights, config)] = buffers
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


@dataclass(slots=True)
class HostEmitter:
    """Writes the host side."""

    module: TileModule  # the tile programs
    signature: Signature  # what the launcher takes and returns
    writer: Writer  # where it is written
    options: Sequence[Printed] = ()  # those that launches of the module may have

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
            for o in self.options:
                if o.default:
                    w.line(o.read())
            for name, text in self.signature.lengths.items():
                w.line(f"{name} = {text}")
            for c in self._constants():
                self._constant(c)
            for b in m.exchanged:
                self._buffer(b)
            for b in m.buffers:
                if any(not is_static(e) for e in b.shape):
                    self._refuse_large(self.tensors.host[b.name], f"{self.tensors.host[b.name]}.numel()")
            for o in self.options:
                o.begin(w, f"{names[0]}.device")
            if m.before:
                self._prepared()
            for x in m.order:
                if isinstance(x, TileRepeat):
                    self._steps(x)
                else:
                    self._chosen(x)

    def _buffer(self, b: Tensor) -> None:
        first = self.tensors.host[self.module.inputs[0].name]
        self.writer.call(
            f"{self.tensors.host[b.name]} = torch.empty",
            [self.signature.shape(b.shape), f"dtype=torch.{b.dtype.value}", f"device={first}.device"],
        )

    def _prepared(self) -> None:
        """What hangs on weights alone: kept from an earlier call, or made by launches."""
        w, m, host = self.writer, self.module, self.tensors.host
        weights = tuple_of([host[t.name] for t in m.fixed])
        kept = [host[b.name] for b in m.kept]
        w.line(f"made = _MADE.get(_made_of({weights}, config))")
        with w.block("if made is None:"):
            for b in m.kept:
                self._buffer(b)
            for x in m.prepared:
                self._chosen(x)
            w.line(f"_keep({weights}, config, {tuple_of(kept)})")
        with w.block("else:"):
            w.line(f"{tuple_of(kept).strip('()')} = made")

    def _steps(self, repeat: TileRepeat) -> None:
        """The launches of a loop's step, for each step: windows are views."""
        w, host, trips = self.writer, self.tensors.host, HOST.text(repeat.trips)
        with w.block(f"for step in range({trips}):"):
            w.line(f"at = {f'{HOST.text(add(repeat.trips, -1))} - step' if repeat.reverse else 'step'}")
            for window in repeat.windows:
                place = f"{host[window.of]}[at]"
                if window.first is not None:
                    first = host[window.first] + ("" if window.place is None else f"[{window.place}]")
                    before = f"{host[window.of]}[at {'+' if repeat.reverse else '-'} 1]"
                    place = f"{first} if step == 0 else {before}"
                w.line(f"{host[window.tensor.name]} = {place}")
            for launch in self.module.within(repeat):
                self._chosen(launch)

    def _chosen(self, launch: TileLaunch) -> None:
        """A launch, or what an option has in its place."""
        w = self.writer
        found = ((o.option, o.instead(launch.name)) for o in self.options)
        option, instead = next((x for x in found if x[1] is not None), ("", None))
        if instead is None:
            self._launch(launch)
            return
        if instead:
            with w.block(f'if "{launch.name}" in {option}:'):
                w.call("yield ", list(instead))
        with w.block("else:" if instead else f'if "{launch.name}" not in {option}:'):
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
            text = f"1 << ({HOST.text(c.extent)} - 1).bit_length()"
        self.writer.line(f"{c.name} = {text if c.least == 1 else f'max({text}, {c.least})'}")

    def _refuse_large(self, name: str, elements: str) -> None:
        """Offsets are 32-bit integers unless a tensor is known to need more."""
        with self.writer.block(f"if {elements} > 2**31 - 1:"):
            self.writer.line(f'raise ValueError("{name} would have more than 2**31 - 1 elements")')

    def _launch(self, p: TileLaunch) -> None:
        w = self.writer
        call = Call(p, p.tensors, p.lengths, p.constants, [programs_of(x.grid, HOST) for x in p.programs])
        # From the last on: the order of what is written before the call and in it.
        for o in reversed(self.options):
            o.call(call, w)
        args = [*(self.tensors.host[t.name] for t in call.tensors), *call.pointers, *call.lengths, *call.last]
        options = [*(f"{c.name}={c.name}" for c in call.constants), *call.keywords]
        told = stages_parameter(p, call.tail)
        options += [f'{told}=stages["{p.name}"]'] * bool(told)
        options += [f'num_warps=warps["{p.name}"]', f'num_stages=stages["{p.name}"]', "enable_fp_fusion=True"]
        w.line("yield (")
        with w.indented():
            w.line(f"{p.name},")
            grid = f"({' + '.join(call.counts)},),"
            if len(grid) <= w.room:
                w.line(grid)
            else:
                w.line("(")
                with w.indented():
                    for n, count in enumerate(call.counts):
                        w.line(f"{'+ ' if n else ''}{count}{',' if n == len(call.counts) - 1 else ''}")
                w.line("),")
            w.line(f"{tuple_of(args)},")
            w.call("dict", options, ",")
        w.line(")")

    def launcher(self) -> None:
        """The function that a user calls."""
        m, w, signature = self.module, self.writer, self.signature
        inputs, outputs = signature.inputs, signature.outputs
        signature.define(w, ["config=None"])
        with w.indented():
            signature.docstring(w)
            signature.checks(w)
            self._device_checks()
            for n in inputs:
                w.line(f"{n} = {n}.contiguous()")
            w.line(f"config = choose({inputs[0]}.device) if config is None else config")
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
        signature.torch_op(w, imported=True)

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
