"""Every example, from the .onnx file to a folder whose module computes the right thing without prism."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from quick import RunPython

from examples.common import load_example
from prism.cli import main
from prism.frontend.onnx.reader import load
from prism.program.nodes import DType

pytestmark = pytest.mark.usefixtures("small_gate")

ROOT = Path(__file__).resolve().parent.parent
# The whole layer's kernels are checked region by region at their own sizes, which takes the interpreter minutes;
# test_partition.py takes a small program of several regions the same way.
MODELS = sorted(p for p in (ROOT / "examples" / "models").glob("*.onnx") if p.stem != "decoder_layer")
# tests/test_docs.py takes one with products the same way, tests/test_masked_rows.py one with attention.
QUICK = {"mul_silu"}
FILES = {"proof.json", "prism.lock.json", "report.json", "report.html", "sgraph.txt", "sgraph.dot", "program.txt"}
# Relative to the output's root mean square: the rounding of the stored type, and of what is computed in it.
TOLERANCE = {DType.FLOAT32: 1e-5, DType.FLOAT16: 1e-2, DType.BFLOAT16: 5e-2}


@pytest.fixture(
    scope="module",
    params=[pytest.param(p, id=p.stem, marks=() if p.stem in QUICK else pytest.mark.slow) for p in MODELS],
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model and its output folder."""
    out = tmp_path_factory.mktemp(request.param.stem) / "out"
    code = main(
        ["optimize", str(request.param), "--target", "sm_90", "--trials", "1", "--max-sgraphs", "2", "--out", str(out)]
    )
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


def test_the_module_computes_the_model_without_prism(
    made: tuple[Path, Path], tmp_path: Path, run_python: RunPython
) -> None:
    model, out = made
    program = load(model)
    example = load_example(model.stem)
    feed = example.inputs(np.random.default_rng(0))
    kinds = {t.name: getattr(torch, t.dtype.value) for t in program.inputs}
    tensors = [torch.from_numpy(feed[n].astype(np.float32)).to(kinds[n]) for n in kinds if n not in program.weights]
    torch.save(tensors, tmp_path / "inputs.pt")
    run_python(
        str(ROOT / "tests" / "end_to_end_runner.py"),
        str(next(out.glob("*.py"))),
        program.name,
        str(tmp_path / "inputs.pt"),
        str(tmp_path / "outputs.pt"),
        str(ROOT / "prism" / "backends" / "triton" / "interpreter.py"),
        environment={**os.environ, "TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1"},
        folder=tmp_path,
        limit_s=300,
    )
    (found,) = torch.load(tmp_path / "outputs.pt")
    expected = example.formula(feed)
    assert found.shape == expected.shape
    error = np.abs(found.to(torch.float64).numpy() - expected).max() / np.sqrt((expected**2).mean())
    assert error < TOLERANCE[program.definition(program.outputs[0]).dtype]
