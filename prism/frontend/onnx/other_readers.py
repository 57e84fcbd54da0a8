"""What onnx and onnxruntime say of small models, in processes of their own: some models end the process that asks.

`infer_shapes` checks little of what it is given: an operand that is left out, an attribute that is too short, or a
sub-graph without outputs. Nodes that are translated are not asked about; of those that stay as they are, prism knows
what `inference` says. Of onnxruntime's fused operators some do not survive a call: `com.microsoft.Attention` without a
bias, or with a mask of ends beyond its keys (onnxruntime 1.31).
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from prism.frontend.onnx import inference
from prism.process.child import Closing, child_environment, module_command
from prism.process.serve import Answer, Request, serve
from prism.process.worker import Ending, Worker

LIMIT_S = 120.0
"""How long one node may take, seconds: what is asked is small, and loading onnxruntime takes one."""


class _Asked(Closing):
    """A process that starts with the first question, and again after one that ends it."""

    def __init__(self) -> None:
        self._worker = Worker(module_command(__name__), child_environment())

    def _ask(self, wanted: str, model: bytes, **more: str) -> str | None:
        """The answer of that name; None where the model is refused, or not survived."""
        reply = self._worker.ask({"model": base64.b64encode(model).decode(), **more}, LIMIT_S)
        return reply.answer.get(wanted) if reply.ending is Ending.ANSWERED else None

    def close(self) -> None:
        """End the process."""
        self._worker.close()


class Inference(_Asked):
    """Types and shapes as onnx infers them, and as onnxruntime does where it is installed and onnx cannot.

    `known` is what was said before, by what was asked; what is said is added.
    """

    def __init__(self, known: dict[str, str] | None = None) -> None:
        super().__init__()
        self._known = {} if known is None else known

    def outputs(self, model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
        """The outputs, typed and shaped as far as known; none where onnx refuses the model, or does not survive it."""
        data = model.SerializeToString(deterministic=True)
        key = hashlib.sha256(data).hexdigest()
        if key not in self._known:
            answer = self._ask("model", data, of="onnx")
            if answer is None:
                return []
            found = _model(answer)
            if not inference.all_known(found):
                answer = self._ask("model", found.SerializeToString(), of="onnxruntime")
                found = found if answer is None else _model(answer)
            graph = onnx.GraphProto(output=found.graph.output)
            self._known[key] = base64.b64encode(graph.SerializeToString()).decode()
        graph = onnx.GraphProto()
        graph.ParseFromString(base64.b64decode(self._known[key]))
        return list(graph.output)


class ReferenceRuntime(_Asked):
    """Runs models in onnxruntime."""

    def run(self, model: bytes, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
        """The results in order; None where there is no onnxruntime, or it cannot run the model."""
        answer = self._ask("results", model, inputs=_packed(inputs))
        return None if answer is None else [*_unpacked(answer).values()]


def _model(text: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.ParseFromString(base64.b64decode(text))
    return model


def _packed(arrays: Mapping[str, np.ndarray]) -> str:
    data = io.BytesIO()
    np.savez(data, **dict[str, Any](arrays))
    return base64.b64encode(data.getvalue()).decode()


def _unpacked(text: str) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as held:
        return {name: held[name] for name in held.files}


def answered(request: Request) -> Answer:
    """The results of a model on inputs, or without any the model with what is inferred; what is raised is an error."""
    if "inputs" not in request:
        infer = inference.inferred if request["of"] == "onnx" else inference.told
        return {"model": base64.b64encode(infer(_model(request["model"])).SerializeToString()).decode()}
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
