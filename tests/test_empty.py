"""Tensors without elements, and outputs that are constants: read, evaluated and proved like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import prism
from prism.api.loading import load
from prism.cli.app import main
from prism.errors import ExitCode, ShapeError
from prism.program.empty import without_empty
from prism.program.evaluate import evaluate
from prism.program.index import Axis, Index
from prism.program.nodes import Definition, DType, Program, Read, Tensor

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str] = ("y",),
    **constants: object,
) -> onnx.ModelProto:
    """Inputs of float32; the outputs' types and shapes are left to the nodes."""
    tensors = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    given = [helper.make_tensor_value_info(n, FLOAT, list(s)) for n, s in inputs.items()]
    results = [onnx.ValueInfoProto(name=n) for n in outputs]
    graph = helper.make_graph(list(nodes), "g", given, results, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    inferred = onnx.shape_inference.infer_shapes(made)
    return inferred


def axes(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


NO_ROWS = np.zeros((0, 4), np.float32)
HALF = numpy_helper.from_array(np.array([0.5], np.float32))
NONE = {"x": (0, 4)}
LINE: dict[str, onnx.ModelProto] = {
    "relu": model([node("Relu", ["x"], ["y"])], NONE),
    "softmax over none": model([node("Softmax", ["x"], ["y"], axis=0)], NONE),
    "sum": model([node("ReduceSum", ["x", "a"], ["y"], keepdims=0)], NONE, a=axes(0)),
    "product": model([node("ReduceProd", ["x", "a"], ["y"])], NONE, a=axes(0)),
    "sum of none times a number": model(
        [node("ReduceSum", ["x", "a"], ["s"], keepdims=0), node("Add", ["s", "w"], ["y"])],
        {**NONE, "w": (4,)},
        a=axes(0),
    ),
    "matmul": model([node("MatMul", ["a", "b"], ["y"])], {"a": (3, 0), "b": (0, 4)}),
    "concat": model([node("Concat", ["x", "w"], ["c"], axis=0), node("Softmax", ["c"], ["y"])], {**NONE, "w": (3, 4)}),
    "concat of none": model([node("Concat", ["x", "x"], ["y"], axis=0)], NONE),
    "concat with a weight": model([node("Concat", ["x", "w"], ["y"], axis=0)], {"x": (3, 4)}, w=NO_ROWS),
    "slice": model([node("Slice", ["x", "a", "a"], ["y"])], {"x": (3, 4)}, a=axes(2)),
    "sum of a slice": model(
        [node("Slice", ["x", "a", "a"], ["s"]), node("ReduceSum", ["s"], ["y"], keepdims=0)], {"x": (3, 4)}, a=axes(2)
    ),
    "split": model([node("Split", ["x", "s"], ["z", "y"])], {"x": (3, 4)}, ("z", "y"), s=axes(0, 3)),
    "reshape": model([node("Reshape", ["x", "s"], ["y"], allowzero=1)], NONE, s=axes(2, 2, 0)),
    "transpose": model([node("Transpose", ["x"], ["y"])], NONE),
    "expand": model([node("Expand", ["x", "s"], ["y"])], {"x": (1, 4)}, s=axes(0, 4)),
    "broadcast": model([node("Add", ["x", "w"], ["y"])], {"x": (1, 4), "w": (0, 4)}),
    "tile": model([node("Tile", ["x", "r"], ["y"])], {"x": (3, 4)}, r=axes(0, 1)),
    "norm": model([node("LayerNormalization", ["x", "w"], ["y"])], {**NONE, "w": (4,)}),
}  # fmt: skip
CONSTANT: dict[str, onnx.ModelProto] = {
    "number": model([node("Constant", [], ["y"], value_float=1.5)], {"x": (3, 4)}),
    "no inputs": model([node("Constant", [], ["y"], value_floats=[1.0, 2.0, 4.0])], {}),
    "array": model([], {"x": (3, 4)}, y=np.arange(6, dtype=np.float32).reshape(2, 3) ** 2),
    "shape": model([node("Shape", ["x"], ["y"])], {"x": (3, 4)}),
    "symbolic shape": model([node("Shape", ["x"], ["y"])], {"x": ("n", 4)}),
    "symbolic size": model([node("Size", ["x"], ["y"])], {"x": ("n", 4)}),
    "constant of a shape": model(
        [node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["y"], value=HALF)],
        {"x": ("n", 4)},
    ),
    "range": model([node("Range", ["a", "b", "c"], ["y"])], {"x": (3, 4)}, a=np.int64(1), b=np.int64(9), c=np.int64(2)),
    "input": model([], {"x": (3, 4)}, ("x",)),
    "input and shape": model([node("Shape", ["x"], ["y"]), node("Identity", ["x"], ["z"])], {"x": (3, 4)}, ("z", "y")),
}  # fmt: skip
MODELS = {**LINE, **{f"constant: {name}": m for name, m in CONSTANT.items()}}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_read_proved_and_has_nothing_to_gain(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(MODELS[name].SerializeToString())
    program = load(path)
    rng = np.random.default_rng(0)
    given = {
        t.name: rng.standard_normal([5 if not isinstance(e, int) else e for e in t.shape]).astype(np.float32)
        for t in program.inputs
        if t.name not in program.weights
    }
    found = evaluate(program, given)
    reference = ReferenceEvaluator(MODELS[name])
    feeds = {i.name: given[i.name] for i in MODELS[name].graph.input}
    for wanted, got in zip(reference.run(None, feeds), found.values(), strict=True):
        assert got.shape == np.shape(wanted)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert main(["show", str(path)]) == ExitCode.DONE
    if name != "concat":  # a softmax: it has its own test
        assert main(["optimize", str(path), "--out", str(tmp_path / "out")]) == ExitCode.NO_IMPROVEMENT
        assert "nothing to gain" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sum", "concat", "split", "relu", "constant: symbolic shape", "constant: array"])
def test_it_is_proved_equal_to_itself(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(MODELS[name].SerializeToString())
    assert main(["prove", str(path), str(path)]) == ExitCode.DONE, capsys.readouterr()


TRACED: dict[str, tuple[Callable[..., object], tuple[tuple[int, ...], ...]]] = {
    "constant": (lambda x: torch.full((2, 3), 2.5), ((3, 4),)),
    "constant of a shape": (lambda x: torch.zeros(x.shape), ((3, 4),)),
    "the input": (lambda x: x, ((3, 4),)),
    "the input twice": (lambda x: (x, x), ((3, 4),)),
    "beside another": (lambda x: (x.softmax(-1), torch.ones(3)), ((3, 4),)),
    "relu": (lambda x: x.relu(), ((0, 4),)),
    "sum": (lambda x: x.sum(0), ((0, 4),)),
    "product": (lambda x: x.prod(0), ((0, 4),)),
    "any": (lambda x: (x > 0).any(0), ((0, 4),)),
    "all": (lambda x: (x > 0).all(0), ((0, 4),)),
    "norm": (lambda x: x.norm(), ((0, 4),)),
    "matmul": (lambda a, b: a @ b, ((3, 0), (0, 4))),
    "cat": (lambda a, b: torch.cat([a, b]).softmax(-1), ((0, 4), (5, 4))),
    "cat of empty vectors": (lambda a, b: torch.cat([a, b]), ((0,), (0,))),
    "cat with an empty vector": (lambda a, b: torch.cat([a, b], 1), ((0,), (5, 4))),
    "slice": (lambda a: a[2:2].sum() + a, ((5, 4),)),
    "pad": (lambda a: torch.nn.functional.pad(a, (0, 0, 1, 1)), ((0, 4),)),
    "reshape": (lambda a: a.reshape(2, 3, 0).sum((1, 2)), ((0, 4),)),
}


@pytest.mark.parametrize("name", TRACED)
def test_a_function_is_traced(name: str) -> None:
    function, shapes = TRACED[name]
    given = [torch.randn(s, generator=torch.Generator().manual_seed(0)) for s in shapes]
    program = prism.trace(function, given, name="f")
    found = evaluate(program, {t.name: g.numpy() for t, g in zip(program.inputs, given, strict=True)})
    results = function(*given)
    for wanted, got in zip(results if isinstance(results, tuple) else (results,), found.values(), strict=False):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_what_reads_no_empty_tensor_is_as_it_was() -> None:
    def alone(x: torch.Tensor) -> torch.Tensor:
        return x % 1e-3

    def beside(x: torch.Tensor, e: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x % 1e-3, e.sum(0)

    x = torch.tensor([-7.25, 2.75])  # 2.75 / 1e-3 is less than 2750, as 2.75 * 1000 is not
    whole = prism.trace(beside, [x, torch.ones(0, 2)])
    assert whole.definitions[0].expr == prism.trace(alone, [x]).definitions[0].expr
    assert evaluate(whole, {"x": x.numpy(), "e": np.zeros((0, 2))})[whole.outputs[0]][1] == pytest.approx(1e-3)


def test_an_element_that_is_not_there_is_refused() -> None:
    axis = Axis("i", 3)
    d = Definition("y", (axis,), Read("x", (Index.axis(axis),)), DType.FLOAT32, "node here")
    with pytest.raises(ShapeError, match="node here: an element of a tensor without elements"):
        without_empty(Program("p", (Tensor("x", (0,), DType.FLOAT32),), (d,), ("y",)))
