"""Every example, from the .onnx file to a folder whose module computes the right thing without prism."""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
import torch
from quick import RunPython
from scripted_clock import scripted

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


def floors() -> dict[str, int]:
    """Modules and folders of prism, by how far up they stand in the import contract."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (c["layers"] for c in contracts if c["name"] == "direction of imports")
    return {name.strip(" ()"): n for n, layer in enumerate(reversed(layers)) for name in layer.split("|")}


class Walk:
    """Follows calls while it is on: which go up, from a module to one that it may not import."""

    def __init__(self) -> None:
        self.most = 0
        self.doors: dict[str, set[str]] = {}
        self.written: list[int] = []
        self._floors = floors()
        self._place = cache(self._placed)

    def _placed(self, code: CodeType) -> tuple[int, str] | None:
        """The floor and the module of code that is prism's own; a generator goes on wherever it is asked."""
        path = Path(code.co_filename)
        if not path.is_relative_to(ROOT / "prism") or code.co_flags & inspect.CO_GENERATOR:
            return None
        name = path.relative_to(ROOT / "prism").with_suffix("")
        floor = self._floors.get(name.parts[0])
        return None if floor is None else (floor, ".".join(name.parts))

    def _climbs(self, frame: FrameType | None) -> Iterator[tuple[str, str]]:
        """Who calls upwards on the way to a frame, and whom."""
        above: tuple[int, str] | None = None
        while frame is not None:
            here = self._place(frame.f_code)
            if here is not None:
                if above is not None and here[0] < above[0]:
                    yield here[1], above[1]
                above = here
            frame = frame.f_back

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or self._place(frame.f_code) is None:
            return
        if next(self._climbs(frame), None) is not None:
            climbs = list(self._climbs(frame))
            self.most = max(self.most, len(climbs))
            for caller, callee in climbs:
                self.doors.setdefault(caller, set()).add(callee)
        if frame.f_code.co_name == "write_folder":
            self.written.append(len(list(self._climbs(frame))))


# Calls that go up do so by what was handed down: who makes them, and what that is.
DOORS = {
    "events": "the listener",
    "ir.kit": "what a rewrite makes of a statement",
    "process.child": "whatever is closed at the end",
    "generate.enumerate": "who proves something while the rest is generated",
    "program.coverage": "which nodes of the model are equal",
    "program.transform": "what tensors are called",
    "program.evaluate": "the arrays that values are",
    "program.integers": "the bounds of names",
    "instantiate.measure": "the platform's compiler, and its child that times",
    "instantiate.gate.check": "the platform's compiler",
    "instantiate.study": "what makes trials",
}


def test_a_walk_to_the_folder_climbs_back_up_at_most_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls go down, as imports do: all of them on the way to the folder, and elsewhere but by what was handed down."""
    scripted(monkeypatch, {"eager": 2e-3, "kernels": 1e-3})
    walk = Walk()
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path / "cache"))
    model = str(ROOT / "examples" / "models" / "mul_silu.onnx")
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        code = main(
            ["optimize", model, "--target", "cpu", "--trials", "2", "--baseline", "eager", "-o", str(tmp_path / "out")]
        )
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert code == 0
    assert walk.written == [0]
    assert walk.doors.keys() <= DOORS.keys(), sorted(walk.doors.items())
    assert 0 < walk.most <= 2
