"""Every example, from the .onnx file to a folder whose module computes the right thing without prism."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from prism.cli import main
from prism.frontend.onnx import load
from prism.program.extents import evaluate
from prism.program.nodes import DType

ROOT = Path(__file__).resolve().parent.parent
MODELS = sorted((ROOT / "examples" / "models").glob("*.onnx"))
FILES = {"proof.json", "prism.lock.json", "report.json", "report.html", "sgraph.txt", "sgraph.dot", "program.txt"}
# Rounding of the inputs' and outputs' type, at a few hundred terms.
TOLERANCE = {DType.FLOAT32: 2e-4, DType.FLOAT16: 2e-2, DType.BFLOAT16: 1e-1}


@pytest.fixture(scope="module", params=MODELS, ids=lambda p: p.stem)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model and its output folder."""
    out = tmp_path_factory.mktemp(request.param.stem) / "out"
    code = main(["optimize", str(request.param), "--target", "sm_90", "--trials", "4", "--out", str(out)])
    assert code == 0
    return request.param, out


def test_the_folder_is_complete(made: tuple[Path, Path]) -> None:
    _, out = made
    assert {f.name for f in out.iterdir()} >= FILES
    report = json.loads((out / "report.json").read_text())
    record = report.get("report", report)
    assert record["evidence"] == "estimated"
    assert record["verdict"] == "proved"
    assert record["kernel_count"] < record["operator_count"]
    assert record["funnel"]["proved"] >= 1
    assert "measured" not in (out / "report.html").read_text().lower().replace("not measured", "")


def test_the_module_computes_the_model_without_prism(made: tuple[Path, Path], tmp_path: Path) -> None:
    model, out = made
    program = load(model)
    binding = {name: 5 if "batch" not in name else 2 for name in program.ranges}
    torch.manual_seed(0)
    tensors = {
        t.name: torch.randn([evaluate(e, binding) for e in t.shape]).to(getattr(torch, t.dtype.value))
        for t in program.inputs
        if t.name not in program.weights
    }
    torch.save(list(tensors.values()), tmp_path / "inputs.pt")
    module = next(out.glob("*.py"))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1"}
    runner = ROOT / "tests" / "end_to_end_runner.py"
    done = subprocess.run(
        [sys.executable, str(runner), str(module), str(tmp_path / "inputs.pt"), str(tmp_path / "outputs.pt")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    got = [t.to(torch.float64).numpy() for t in torch.load(tmp_path / "outputs.pt")]
    expected = _reference(model, {n: t.float().numpy() for n, t in tensors.items()})
    for value, right, name in zip(got, expected, program.outputs, strict=True):
        scale = np.abs(right).max()
        tolerance = TOLERANCE[program.definition(name).dtype] * scale
        assert value.shape == right.shape
        assert np.abs(value - right).max() <= tolerance


def _reference(path: Path, tensors: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The model's outputs by ONNX's own evaluator, in float32 where the model is in half precision."""
    model = onnx.load(path)
    names = [i.name for i in model.graph.input]
    kinds = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in model.graph.input}
    given = dict(zip(names, tensors.values(), strict=True))
    return [
        np.asarray(v, dtype=np.float64)
        for v in ReferenceEvaluator(model).run(None, {n: a.astype(kinds[n]) for n, a in given.items()})
    ]
