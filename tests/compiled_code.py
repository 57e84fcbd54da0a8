"""What Triton makes of emitted kernels for sm_90, by the installed version and by the oldest that is supported."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from quick import RunPython

from prism.backends.protocol import arguments
from prism.backends.triton.crosscompile import worker_environment
from prism.backends.triton.emit import emit_module
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph

SCRIPT = """
import json, sys
from pathlib import Path
import torch
from prism.backends.protocol import load_module
from prism.backends.triton.named_target import compile_for

path, given, configs = json.loads(sys.argv[1])
compile_for("sm_90")
module = load_module(Path(path))
tensors = [torch.empty(s, dtype=getattr(torch, d), device="meta") for s, d in given]
found = []
for config in configs:
    kernel, _, args, meta = next(iter(module.launches(*tensors, config=config)))
    built = kernel.warmup(*args, grid=(1,), **meta)
    found.append({ending: built.asm[ending] for ending in ("ptx", "ttgir")})
print(json.dumps(found))
"""


def compiled_code(
    g: SGraph, configs: Sequence[Config], folder: Path, run_python: RunPython
) -> Iterator[Mapping[str, str]]:
    """PTX and TTGIR, by these names, of the first launch: by each version, at each configuration.

    Args:
        g: what is emitted.
        configs: of it.
        folder: where the module and what is compiled go.
        run_python: runs a child.
    """
    path = folder / f"{g.name}.py"
    path.write_text(emit_module(g, formula="", configs={}).text)
    given = [[list(a.shape), a.dtype] for a in arguments(g, {})]
    asked = json.dumps([str(path), given, [c.encode() for c in configs]])
    oldest = os.environ.get("PRISM_OLDEST_TRITON")
    for version in ("", oldest) if oldest else ("",):
        environment = worker_environment(folder / f"cache{bool(version)}")
        if version:
            environment["PYTHONPATH"] = os.pathsep.join([str(Path(version).resolve()), environment["PYTHONPATH"]])
        yield from json.loads(run_python("-P", "-c", SCRIPT, asked, environment=environment).splitlines()[-1])
