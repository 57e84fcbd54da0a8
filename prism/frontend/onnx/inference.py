"""Types and shapes as onnx infers them, in a process of its own: of a damaged node onnx follows what is not there.

`infer_shapes` checks little of what it is given: an operand that is left out, an attribute that is too short, or a
sub-graph without outputs ends the process that asks. Nodes that are translated are not asked about; of those that stay
as they are, prism knows no more than onnx does.
"""

from __future__ import annotations

import base64

import onnx

from prism.process.child import Closing, child_environment, module_command
from prism.process.serve import Answer, Request, serve
from prism.process.worker import Ending, Worker

LIMIT_S = 60.0
"""How long onnx may think about one node, seconds; it takes a thousandth."""


class Inference(Closing):
    """What onnx says of small models. The process starts with the first, and again after one that ends it."""

    def __init__(self) -> None:
        self._worker = Worker(module_command(__name__), child_environment())

    def outputs(self, model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
        """The outputs with their types and shapes; none where onnx refuses the model, or does not survive it."""
        told = base64.b64encode(model.SerializeToString()).decode()
        reply = self._worker.ask({"model": told}, LIMIT_S)
        if reply.ending is not Ending.ANSWERED or "model" not in reply.answer:
            return []
        found = onnx.ModelProto()
        found.ParseFromString(base64.b64decode(reply.answer["model"]))
        return list(found.graph.output)

    def close(self) -> None:
        """End the process."""
        self._worker.close()


def inferred(request: Request) -> Answer:
    """The model with what onnx infers, both in base64; what onnx raises is an error."""
    model = onnx.ModelProto()
    model.ParseFromString(base64.b64decode(request["model"]))
    found = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return {"model": base64.b64encode(found.SerializeToString()).decode()}


if __name__ == "__main__":
    serve(inferred)
