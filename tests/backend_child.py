"""The child of the backends' conformance suite: it calls a backend's `run` and `time`, and nothing else of it.

    python backend_child.py TARGET        sm_90 for Triton, in its interpreter; cpu for C++

Requests and answers are those of `prism.instantiate.gate.check.KernelRunner`; with `repeats`, the answer has `seconds`,
too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from prism.backends.protocol import Backend
from prism.backends.tensors import Framed
from prism.process.serve import Answer, Request, serve
from prism.sgraph.config import Config


def backend(target: str) -> Backend:
    """The backend of a target."""
    from prism.backends.cpu.backend import CppBackend
    from prism.backends.triton.backend import TritonBackend

    return CppBackend(2) if target == "cpu" else TritonBackend(target)


def answer(chosen: Backend, request: Request) -> Answer:
    """Run, or time and then look at what was computed."""
    import torch

    inputs = [torch.load(path) for path in request["inputs"]]
    framed = Framed(request["outputs"], "cpu")
    config = Config.decode(request["config"])
    found: dict[str, object] = {}
    if "repeats" in request:
        found["seconds"] = chosen.time(Path(request["module"]), config, inputs, framed.outputs, request["repeats"])
    else:
        chosen.run(Path(request["module"]), config, inputs, framed.outputs)
    return {**found, **framed.answer(request["results"])}


def main() -> None:
    """The process."""
    (target,) = sys.argv[1:]
    if os.environ.get("TRITON_INTERPRET") == "1":
        from prism.backends.triton.interpreter import harden

        harden()
    serve(lambda request: answer(backend(target), request))


if __name__ == "__main__":
    main()
