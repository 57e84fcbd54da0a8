"""The compile worker: a process that compiles emitted modules for a GPU that is not there, AMD's too.

It makes a driver active that only names a target, then compiles each kernel by Triton's own `warmup` with meta tensors
of the real shapes: the specialisation is the one that a launch would get. Run by `python -m`, never imported by the
parent.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from prism.backends.triton.crosscompile import load_module
from prism.backends.triton.named_target import compile_for
from prism.process.serve import Answer, Request, serve


def compile_module(request: Request) -> Answer:
    """Compile every kernel that the module launches for the request's arguments; see `crosscompile.request`.

    The target may be one of AMD's, as `gfx942`.
    """
    import torch

    from prism.backends.triton.resources import read_resources

    target = str(request["target"])
    compile_for(target)
    module = load_module(Path(request["module"]))
    tensors = [
        torch.empty(tuple(shape), dtype=getattr(torch, dtype), device="meta") for shape, dtype in request["arguments"]
    ]
    found: dict[str, Any] = {}
    for kernel, _grid, args, meta in module.launches(*tensors, config=request["config"]):
        if kernel.__name__ not in found:  # once for all steps of a loop
            built = kernel.warmup(*args, grid=(1,), **meta)
            found[kernel.__name__] = read_resources(kernel.__name__, built, target)
    return {"resources": list(found.values())}


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    serve(compile_module)
