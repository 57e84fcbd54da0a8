"""Helpers of the ONNX front end's tests: small models, and the comparison with `onnx.reference`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from prism.frontend.onnx.reader import from_model
from prism.program.evaluate import evaluate
from prism.program.nodes import Program

ELEMENT_TYPES = {np.dtype(np.float32): 1, np.dtype(np.int64): 7, np.dtype(np.bool_): 9, np.dtype(np.float64): 11,
    np.dtype(np.int8): 3, np.dtype(np.uint8): 2, np.dtype(np.int32): 6, np.dtype(np.float16): 10, np.dtype(np.int16): 5,
}  # fmt: skip


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[Any]]],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    """A model; inputs are given as (element type, shape), outputs without a type."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [onnx.ValueInfoProto(name=o) for o in outputs],
        [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def node_model(
    op: str,
    arrays: Sequence[np.ndarray | None],
    attributes: Mapping[str, Any],
    opset: int,
    fixed: Sequence[int] = (),
    outputs: int = 1,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node; the operands at the places `fixed` are initialisers, the others inputs."""
    names = ["" if a is None else f"in{n}" for n, a in enumerate(arrays)]
    given = {names[n]: a for n, a in enumerate(arrays) if a is not None and n not in fixed}
    results = [f"out{n}" for n in range(outputs)]
    built = model(
        [helper.make_node(op, names, results, name=f"the_{op}", **attributes)],
        {n: (ELEMENT_TYPES[a.dtype], a.shape) for n, a in given.items()},
        results,
        {names[n]: a for n in fixed if (a := arrays[n]) is not None},
        opset,
    )
    return built, given


def run_program(program: Program, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The program's outputs in order."""
    results = evaluate(program, dict(given))
    return [results[name] for name in program.outputs]


def check(built: onnx.ModelProto, given: Mapping[str, np.ndarray], tolerance: float = 2e-5) -> Program:
    """Translate the model and compare every output with `onnx.reference`."""
    program = from_model(built, "model.onnx", None)
    expected = ReferenceEvaluator(built).run(None, dict(given))
    found = run_program(program, given)
    for declared, a, b in zip(program.outputs, found, expected, strict=True):
        assert a.shape == b.shape, declared
        np.testing.assert_allclose(a, b.astype(np.float64), rtol=tolerance, atol=tolerance)
    return program


FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
