"""The shipped examples: what is in the files, and that it computes the formula each script states."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from quick import slow_but

from examples.common import MODELS, load_example, names
from prism.frontend.onnx.reader import load
from prism.program.evaluate import evaluate
from prism.program.nodes import DType

REQUIRED = {
    "add_silu",
    "causal_attention",
    "decoder_layer",
    "gated_mlp",
    "gqa_decode",
    "layernorm_linear_gelu",
    "lora",
    "mul_silu",
    "qknorm_attention",
    "rmsnorm_linear",
}
# The exporter that the shipped files were made with; another release writes the same model in other bytes.
EXPORTER = {
    line.removeprefix("onnxscript==").strip()
    for line in (Path(__file__).resolve().parent.parent / "constraints.txt").read_text().splitlines()
    if line.startswith("onnxscript==")
}
# Rounding of the stored type, through sums of about a thousand terms whose partial results are rounded as well.
TOLERANCE = {
    onnx.TensorProto.FLOAT: 1e-5,
    onnx.TensorProto.FLOAT16: 2e-2,
    onnx.TensorProto.BFLOAT16: 5e-2,
}


@cache
def shipped(name: str) -> onnx.ModelProto:
    return onnx.load(MODELS / f"{name}.onnx")


@cache
def rebuilt(name: str) -> onnx.ModelProto:
    return load_example(name).build()


def error(model: onnx.ModelProto, name: str) -> float:
    """The largest error against the formula, relative to the output's root mean square."""
    example = load_example(name)
    feed = example.inputs(np.random.default_rng(0))
    (found,) = ReferenceEvaluator(model).run(None, feed)
    assert isinstance(found, np.ndarray)
    expected = example.formula(feed)
    assert found.shape == expected.shape
    return float(np.abs(found.astype(np.float64) - expected).max() / np.sqrt((expected**2).mean()))


def test_every_example_is_there() -> None:
    assert set(names()) == REQUIRED
    assert {p.stem for p in MODELS.glob("*")} == REQUIRED


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_shipped_model_is_valid_and_computes_its_formula(name: str) -> None:
    model = shipped(name)
    onnx.checker.check_model(model, full_check=True)
    assert error(model, name) < TOLERANCE[model.graph.output[0].type.tensor_type.elem_type]


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_the_interpreter_computes_the_formula(name: str) -> None:
    feed = load_example(name).inputs(np.random.default_rng(0))
    program = load(MODELS / f"{name}.onnx")
    (found,) = evaluate(program, feed).values()
    expected = load_example(name).formula(feed)
    # Constants such as eps and scale are rounded to the model's type; nothing else is.
    rounding = 1e-6 if program.definition(program.outputs[0]).dtype is DType.FLOAT32 else 1e-3
    assert np.abs(found - expected).max() < rounding * np.sqrt((expected**2).mean())


FEW = ("layernorm_linear_gelu", "mul_silu")  # by torch's exporter, and built node by node


@pytest.mark.parametrize("name", slow_but(FEW, sorted(REQUIRED)))
def test_rebuilt_model_is_valid_and_computes_its_formula(name: str) -> None:
    model = rebuilt(name)
    onnx.checker.check_model(model, full_check=True)
    assert error(model, name) < TOLERANCE[model.graph.output[0].type.tensor_type.elem_type]


@pytest.mark.parametrize("name", slow_but(FEW, sorted(REQUIRED)))
def test_shipped_model_is_what_its_script_builds(name: str) -> None:
    model = rebuilt(name)
    if model.producer_version != shipped(name).producer_version:
        pytest.skip(f"exported by torch {shipped(name).producer_version}, this is {model.producer_version}")
    if model.producer_name == "pytorch" and version("onnxscript") not in EXPORTER:
        pytest.skip(f"exported with the pinned onnxscript, this is {version('onnxscript')}: it writes other bytes")
    assert model.SerializeToString(deterministic=True) == shipped(name).SerializeToString(deterministic=True)


def test_the_files_are_as_varied_as_real_ones() -> None:
    models = [shipped(name) for name in names()]
    inputs = [value.type.tensor_type for model in models for value in model.graph.input]
    assert len({m.opset_import[0].version for m in models}) >= 4
    assert {m.producer_name for m in models} >= {"pytorch", "prism-examples"}
    assert {t.elem_type for t in inputs} == set(TOLERANCE)
    assert any(d.dim_param for t in inputs for d in t.shape.dim)
    ops = {node.op_type for model in models for node in model.graph.node}
    assert ops >= {"Pow", "ReduceMean", "Reciprocal", "Sigmoid", "Trilu", "Where", "Expand"}, "decomposed"
    assert ops >= {"LayerNormalization", "RMSNormalization", "Attention", "Gelu"}, "function ops"


def test_the_files_are_small() -> None:
    sizes = [path.stat().st_size for path in MODELS.glob("*.onnx")]
    assert max(sizes) < 1_500_000
    assert sum(sizes) < 6_000_000


def test_no_file_names_the_machine_that_wrote_it() -> None:
    for name in names():
        assert b"/examples/" not in shipped(name).SerializeToString()
