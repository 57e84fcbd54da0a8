"""Runs emitted modules in Triton's interpreter on CPU tensors; prism cannot be imported by them.

A request is a line of JSON:

    {"module": path, "entry": name, "inputs": npz, "dtypes": [...], "config": {...}, "outputs": npz}
    -> {} or {"error": text}
"""

from __future__ import annotations

import importlib.util
import linecache
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from prism.backends.triton.interpreter import harden
from prism.process.serve import serve

_KNOWN: dict[tuple[str, bytes], ModuleType] = {}


def load_module(path: str) -> ModuleType:
    """The module at a path, imported once for each content."""
    with open(path, "rb") as file:
        content = file.read()
    if (path, content) not in _KNOWN:
        name = f"emitted_{len(_KNOWN)}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # jit functions read their own source: an older module of that path must not be remembered.
        linecache.checkcache(path)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        _KNOWN[path, content] = module
    return _KNOWN[path, content]


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """One request."""
    import torch

    module = load_module(request["module"])
    with np.load(request["inputs"]) as arrays:
        inputs = [
            torch.from_numpy(np.array(arrays[str(n)])).to(getattr(torch, dtype))
            for n, dtype in enumerate(request["dtypes"])
        ]
    with np.errstate(all="ignore"):
        outputs = getattr(module, request["entry"])(*inputs, config=request["config"])
    made = outputs if isinstance(outputs, tuple) else (outputs,)
    plain = [t.float() if t.dtype == torch.bfloat16 else t for t in made]
    np.savez(request["outputs"], **{str(n): t.numpy() for n, t in enumerate(plain)})
    return {}


if __name__ == "__main__":
    harden()
    for imported in [n for n in sys.modules if n.split(".")[0] == "prism"]:
        sys.modules[imported] = None  # type: ignore[assignment]
    serve(run)
