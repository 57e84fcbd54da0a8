"""onnxruntime's results of a small model, in a process of its own: of its fused operators some do not survive a call.

`com.microsoft.Attention` without a bias, or with a mask of ends beyond its keys, ends the process that asks
(onnxruntime 1.31).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from prism.process.child import Closing, child_environment, module_command
from prism.process.serve import Answer, Request, serve
from prism.process.worker import Ending, Worker

LIMIT_S = 120.0
"""How long one node may take, seconds: what is compared is small, and loading onnxruntime takes one."""


class ReferenceRuntime(Closing):
    """Runs models. The process starts with the first, and again after one that ends it."""

    def __init__(self) -> None:
        self._worker = Worker(module_command(__name__), child_environment())

    def run(self, model: bytes, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
        """The results in order; None where there is no onnxruntime, or it cannot run the model."""
        reply = self._worker.ask({"model": base64.b64encode(model).decode(), "inputs": _packed(inputs)}, LIMIT_S)
        if reply.ending is not Ending.ANSWERED or "results" not in reply.answer:
            return None
        return [*_unpacked(reply.answer["results"]).values()]

    def close(self) -> None:
        """End the process."""
        self._worker.close()


def _packed(arrays: Mapping[str, np.ndarray]) -> str:
    data = io.BytesIO()
    np.savez(data, **dict[str, Any](arrays))
    return base64.b64encode(data.getvalue()).decode()


def _unpacked(text: str) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as held:
        return {name: held[name] for name in held.files}


def answered(request: Request) -> Answer:
    """The results of a model; what onnxruntime raises is an error."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    model = base64.b64decode(request["model"])
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    results = session.run(None, _unpacked(request["inputs"]))
    return {"results": _packed({f"{n:06}": a for n, a in enumerate(results)})}


if __name__ == "__main__":
    serve(answered)
