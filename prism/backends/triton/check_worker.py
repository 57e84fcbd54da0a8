"""The worker that runs an emitted module's kernels on given tensors: in Triton's interpreter, or on the GPU.

Outputs start as poison (`prism.backends.tensors`). In the interpreter a launch can be cut down to a sample of its
programs. Run by `python -m` with TRITON_INTERPRET set or unset; a wild access kills this process alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from prism.backends.loading import load_module
from prism.backends.tensors import Framed
from prism.backends.triton.replay import begin, give_up_if_sticky
from prism.process.serve import Answer, Request, one_line, serve


def sample_programs(counts: Sequence[int], limit: int | None) -> list[int]:
    """The programs of a launch to run: its corners first, then others evenly between them; all when `limit` is None.

    `counts` are the tiles along each axis of the grid, the slowest first; at most `limit` programs run.

    Returns:
        their numbers, ascending, the last axis varying fastest.
    """
    total = math.prod(counts)
    if limit is None or total <= limit:
        return list(range(total))
    corners = [0]
    for count in counts:
        corners = [c * count + place for c in corners for place in (0, count - 1)]
    # The last corner holds the tails of all axes, so it comes before the mixed ones.
    order = dict.fromkeys([0, total - 1, *corners, *(total * n // limit for n in range(limit))])
    return sorted(list(order)[:limit])


@lru_cache(maxsize=64)
def _loaded(path: str) -> Any:
    """The tensor in a file; a path is never written twice."""
    import torch

    return torch.load(path)


def run_module(request: Request) -> Answer:
    """Run a module's kernels.

    The request names the module, the configuration, a file an input and one for the outputs, the device
    (`interpreter`, `cuda`), the outputs' shapes and dtypes, and for each launch, kernel by kernel, the tiles along its
    axes and how many of its programs to run (null: all of the launch). The outputs' file holds, per output, the tensor
    and a mask of the elements that were written. The answer is `unfit` where the device has no room for a kernel.
    """
    from triton.runtime.errors import OutOfResources

    interpreting = request["device"] == "interpreter"
    device = "cpu" if interpreting else "cuda"
    module = load_module(Path(request["module"]))
    # A copy: a kernel may do to its inputs what it likes.
    inputs = [_loaded(path).to(device, copy=True) for path in request["inputs"]]
    framed = Framed(request["outputs"], device)
    samples: list[Any] = list(request["samples"])
    for n, (kernel, grid, args, meta) in enumerate(module.launches(*inputs, *framed.outputs, config=request["config"])):
        try:
            if interpreting:
                _interpret(kernel, tuple(grid), args, meta, samples[n] if n < len(samples) else None)
            else:
                kernel[grid](*args, **meta)
        except OutOfResources as error:
            return {"unfit": one_line(error)}
    return framed.answer(request["results"])


def _interpret(kernel: Any, grid: tuple[int, ...], args: Sequence[Any], meta: Mapping[str, Any], sample: Any) -> None:
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    dims = (*grid, 1, 1, 1)[:3]
    parts = sample or ()
    if sum(math.prod(counts) for counts, _ in parts) != math.prod(grid):
        parts = [(grid, None)]
    line: list[int] = []
    first = 0
    for counts, limit in parts:
        line += [first + n for n in sample_programs(counts, limit)]
        first += math.prod(counts)
    programs = [(n // (dims[1] * dims[2]), n // dims[2] % dims[1], n % dims[2]) for n in line]
    kind = type(builder)
    # The executor walks a line of programs; the kernel is told the grid and the place that the program really has.
    builder.set_grid_dim = lambda *_: kind.set_grid_dim(builder, *dims)
    builder.set_grid_idx = lambda x, *_: kind.set_grid_idx(builder, *programs[x])
    try:
        kernel[(len(programs),)](*args, **meta)
    finally:
        del builder.set_grid_dim, builder.set_grid_idx


def run_or_end(request: Request) -> Answer:
    """`run_module`; an error that poisons the CUDA context ends the process, so that the next case gets a fresh one."""
    try:
        return run_module(request)
    except Exception as error:
        give_up_if_sticky(error)
        raise


if __name__ == "__main__":
    import os

    if os.environ.get("TRITON_INTERPRET") == "1":
        from prism.backends.triton.interpreter import harden

        harden()
        serve(run_or_end)
    else:
        serve(run_or_end, begin)
