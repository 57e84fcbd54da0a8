"""Compiles emitted modules for named targets, and says what came of it: the child of `compiled_code.py`.

A request is a line of JSON:

    {"module": path, "target": "sm_90", "arguments": [[shape, dtype], ...], "config": {...}}
    -> {"launches": [{"kernel": name, "early": whether it may start before the one before has ended, "resources": ...,
                      "ptx": ...}, ...]}
"""

from __future__ import annotations

from pathlib import Path

from prism.backends.loading import load_module
from prism.backends.triton.named_target import compile_for
from prism.process.serve import Answer, Request, serve

ENDINGS = ("ttgir", "ptx", "amdgcn")


def compile_module(request: Request) -> Answer:
    """One request."""
    import torch

    from prism.backends.triton.compile_worker import read_resources

    compile_for(request["target"])
    module = load_module(Path(request["module"]), apart=True)
    given = [torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for shape, dtype in request["arguments"]]
    found = []
    for kernel, _, args, meta in module.launches(*given, config=request["config"]):
        built = kernel.warmup(*args, grid=(1,), **meta)
        texts = {e: built.asm[e] for e in ENDINGS if e in built.asm}
        early = getattr(built.metadata, "launch_pdl", False)
        resources = read_resources(kernel.__name__, built, request["target"])
        found.append({"kernel": kernel.__name__, "early": early, "resources": resources, **texts})
    return {"launches": found}


if __name__ == "__main__":
    serve(compile_module)
