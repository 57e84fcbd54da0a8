"""Several tile programs in one launch, as one @triton.jit function: it calls each with its part of the programs.

Triton inlines the calls, so every body is compiled as if it were a kernel of its own: products are pipelined in each.
The parts are told apart by `if`s one after another, because so they use the same shared memory: of `if` and `else`, and
of early returns, Triton 3.7 keeps the buffers apart, which costs two or three times as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prism.backends.source import KERNEL, Writer, fresh, programs_of
from prism.backends.tile import TileLaunch
from prism.backends.triton.options.stages import has_plain_loops


def emit_launch(
    launch: TileLaunch,
    pointers: Mapping[str, str],
    writer: Writer,
    stages: str = "",
    extra: Sequence[Sequence[str]] = (),
) -> None:
    """Writes the function.

    Args:
        launch: two or more programs.
        pointers: the pointer parameter of each tensor.
        writer: where it is written.
        stages: the parameter with the pipeline stages, where some loop is told them.
        extra: for each program, parameters that it has besides.
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
