"""Emission: from an sGraph to a self-contained Triton module, source that is meant to be read.

    CONFIGS      tuned configurations by target
    kernels      one @triton.jit function each (emit_kernel.py); where one launch is of several, one more that calls
                 each with its part of the programs; what else a launch may be, each in both forms (options/)
    launches     the launches for given tensors, in order (emit_host.py)
    <name>       the launcher: checks its arguments, chooses a configuration, allocates, launches, returns
    capture      one CUDA graph of all launches, to be replayed: what Python does at a call is not done again

The module imports torch and triton alone.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping, Sequence

from prism.backends.host import STATED, STATED_NAMES, TORCH_OP_NAMES, Launcher, Signature, name_tensors, write_configs
from prism.backends.passes import tile_module
from prism.backends.protocol import Backend, ModuleSource
from prism.backends.source import HOST, KERNEL, Writer, fresh, programs_of
from prism.backends.tile import Adds, TileLaunch, TileModule, identifier
from prism.backends.tile_spec import check_module
from prism.backends.triton.emit_helpers import HELPERS
from prism.backends.triton.emit_host import CAPTURE, CHOOSE, CONSTANT, EXPECT, PREPARED, RESERVED, WEIGHT, HostEmitter
from prism.backends.triton.emit_kernel import KernelEmitter, has_plain_loops, stages_parameter
from prism.backends.triton.options import PRINTED
from prism.backends.triton.options.printed import Printed
from prism.errors import BackendError
from prism.program.nodes import SymbolRange
from prism.program.returned import Made, Returned
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph


def emit_module(
    sgraph: SGraph,
    *,
    formula: str = "",
    configs: Mapping[str, Sequence[Config]] | None = None,
    weights: bool = False,
    returned: Sequence[Returned] = (),
    ranges: Mapping[str, SymbolRange] | None = None,
    options: Sequence[type[Printed]] = PRINTED,
) -> ModuleSource:
    """The sGraph as a Triton module, whose launches may have these options: see `prism.backends.protocol.Emit`."""
    module = tile_module(sgraph)
    check_module(module)
    text = _text(module, sgraph, Launcher(formula, configs or {}, weights, returned, ranges or {}), options)
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise BackendError(f"the emitted module does not parse: {error}", where=sgraph.name) from error
    launches = tuple(launch.name for launch in module.launches)
    return ModuleSource(identifier(sgraph.name), text, launches)


def _text(module: TileModule, sgraph: SGraph, launcher: Launcher, options: Sequence[type[Printed]]) -> str:
    taken = {p.name for p in module.programs} | {launch.name for launch in module.launches}
    taken |= {c.name for launch in module.launches for c in launch.constants}
    taken |= set(module.lengths)
    taken |= set(HELPERS) | {identifier(module.name), "choose"} | TORCH_OP_NAMES
    every = [c for entries in launcher.configs.values() for c in entries]
    made = [o(module, sgraph, every) for o in options]
    printed = [o for o in made if o.launches]
    taken |= {n for o in printed for n in o.names}
    taken |= {"_constant", "_CONSTANTS"} if launcher.returned else set()
    taken |= STATED_NAMES
    entry = identifier(module.name)
    capture = "capture" if entry != "capture" else "capture_graph"
    taken |= {capture}
    tensors = name_tensors(module, {*taken, *RESERVED, *(o.option for o in made)})
    signature = Signature(module, tensors, HOST, lambda d: f"torch.{d.value}", launcher)
    for o in printed:
        o.named(signature, taken)
    kernels = Writer()
    helpers: set[str] = set()
    for launch in _as_defined(module):
        several = len(launch.programs) > 1
        emitters = [KernelEmitter(program, tensors.pointer, kernels, several) for program in launch.programs]
        for o, emitter in itertools.product(printed, emitters):
            o.kernel(launch, emitter)
        stages = stages_parameter(launch, emitters[0].tail)
        for emitter in emitters:
            emitter.stages = stages if has_plain_loops(emitter.program) else ""
            kernels.blank(2)
            emitter.run()
            helpers |= emitter.helpers
        for o in printed:
            o.wrap(launch, kernels, stages, emitters[0].descriptors)
        if several:
            kernels.blank(2)
            _together(launch, tensors.pointer, kernels, stages, [e.descriptors for e in emitters])
    w = Writer()
    many = len(module.launches)
    w.describe(f"{many} Triton kernel{'s' * (many != 1)}", launcher.formula, sgraph, module.orderless({*Adds}))
    if module.before:
        w.line("import weakref")
    if launcher.weights:
        w.line("from pathlib import Path")
    if launcher.weights or module.before:
        w.blank()
    for line in ("import torch", "import triton", "import triton.language as tl"):
        w.line(line)
    for o in printed:
        if o.imports:
            w.line(o.imports)
    w.blank()
    encoded = {target: [c.encode() for c in entries] for target, entries in launcher.configs.items()}
    write_configs(w, "tile sizes and part counts, warps and pipeline stages of each kernel", encoded)
    for name in sorted(helpers):
        w.paste(HELPERS[name])
    w.paste(kernels.text)
    host = HostEmitter(module, signature, w, printed)
    w.blank(2)
    for o in printed:
        o.decorate(w)
    host.launches()
    constants = any(isinstance(r, Made) for r in launcher.returned)
    optional = (
        (EXPECT, True),
        (CHOOSE, True),
        (PREPARED, bool(module.before)),
        (
            WEIGHT.replace("{held}", "\n        hold([_WEIGHTS[name, device]])" if module.before else ""),
            launcher.weights,
        ),
        (CONSTANT, constants),
        (STATED, bool(signature.stated)),
    )
    for o in printed:
        if o.source:
            w.paste(o.source)
    for source in (text for text, wanted in optional if wanted):
        w.paste(source)
    w.blank(2)
    host.launcher()
    around = next((o.captured for o in printed if o.captured), "torch.cuda.graph(graph)")
    w.paste(CAPTURE.format(name=capture, entry=entry, around=around))
    return w.text


def _together(
    launch: TileLaunch,
    pointers: Mapping[str, str],
    writer: Writer,
    stages: str = "",
    extra: Sequence[Sequence[str]] = (),
) -> None:
    """Several tile programs in one launch, as one @triton.jit function: it calls each with its part of the programs.

    Triton inlines the calls, so every body is compiled as if it were a kernel of its own: products are pipelined in
    each. The parts are told apart by `if`s one after another, because so they use the same shared memory: of `if` and
    `else`, and of early returns, Triton 3.7 keeps the buffers apart, which costs two or three times as much. `pointers`
    are the parameters of tensors, `stages` that with the pipeline stages, where some loop is told them; `extra` are
    parameters that a program has besides.
    """
    parameters = [pointers[t.name] for t in launch.tensors] + list(launch.lengths)
    constants = [*(c.name for c in launch.constants), *[stages] * bool(stages)]
    taken = {*parameters, *constants, *(p.name for p in launch.programs), "pid"}
    writer.line("@triton.jit")
    descriptors = list(dict.fromkeys(name for own in extra for name in own))
    taken |= set(descriptors)
    writer.call(f"def {launch.name}", parameters + [f"{c}: tl.constexpr" for c in constants] + descriptors, ":")
    with writer.indented():
        writer.line(f'"""The programs of {len(launch.programs)} kernels, one after another."""')
        writer.line("pid = tl.program_id(0)")
        ends: list[str] = []
        for program in launch.programs[:-1]:
            end = fresh(f"end_{len(ends) + 1}", taken)
            writer.line(f"{end} = {' + '.join([*ends[-1:], programs_of(program.grid, KERNEL)])}")
            ends.append(end)
        own = extra or [()] * len(launch.programs)
        for program, more, start, end in zip(launch.programs, own, ["", *ends], [*ends, ""], strict=True):
            bounds = [f"pid >= {start}"] * bool(start) + [f"pid < {end}"] * bool(end)
            place = f"pid - {start}" if start else "pid"
            args = [place, *(pointers[t.name] for t in program.tensors), *program.lengths]
            with writer.block(f"if {bounds[0] if len(bounds) == 1 else ' & '.join(f'({b})' for b in bounds)}:"):
                told = [stages] * has_plain_loops(program)
                writer.call(program.name, [*args, *(c.name for c in program.constants), *told, *more])


def _as_defined(module: TileModule) -> list[TileLaunch]:
    """The launches in order, but that a second stage stands before the split that calls it."""
    by_name = {launch.name: launch for launch in module.launches}
    called = {fold.split: by_name.pop(fold.combine) for fold in module.folds}
    return [x for name, launch in by_name.items() for x in (called.get(name), launch) if x is not None]


TRITON = Backend("Triton", emit_module)
