"""Inputs of the user's own: `--inputs data.npz`, and `inputs=` in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import prism
import prism.instantiate.gate.check as gate
from prism.api.given_inputs import check_sizes, given_to, read_inputs
from prism.cli.app import main
from prism.errors import ExitCode, UsageError, VerificationError
from prism.program.nodes import Program


def program() -> Program:
    def taken(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)[places] * 2

    return prism.trace(taken, [torch.randn(8, 32), torch.randint(0, 8, (3,))], name="taken")


def fits(**changes: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": np.ones((8, 32), np.float32), "places": np.array([7, 0, 3]), **changes}


def test_arrays_are_taken_by_name_and_symbols_by_shape() -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    p = prism.trace(torch.exp, [torch.randn(4, 8)], name="p", dynamic_shapes=({0: rows},))
    (name,) = (t.name for t in p.inputs)
    arrays, at = given_to(p, {name: torch.ones(6, 8)})
    assert (arrays[name].shape, at) == ((6, 8), {"rows": 6})
    with pytest.raises(UsageError, match="rows is 65"):
        given_to(p, {name: np.ones((65, 8), np.float32)})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"x": np.ones((8, 32), np.float32)}, "nothing for the input 'places'"),
        (fits(places=np.ones(3, np.float32)), "'places' is of type int64, and what is given of float32"),
        (fits(x=np.ones((8, 32), np.int64)), "'x' is of type float32"),
        (fits(x=np.ones((8, 31), np.float32)), "31"),
        (fits(x=np.ones(8, np.float32)), "1 dimensions"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(UsageError, match=said) as found:
        given_to(program(), given)
    assert found.value.where == "--inputs"
    assert found.value.fix


def test_a_file_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "no.npz").write_text("x = 1")
    with pytest.raises(UsageError, match="holds no inputs"):
        read_inputs(tmp_path / "no.npz")
    model = model_of(tmp_path / "m.onnx")
    command = ["optimize", str(model), "--inputs", str(tmp_path / "gone.npz"), "--out", str(tmp_path / "out")]
    assert main(command) == ExitCode.USAGE
    assert "gone.npz holds no inputs" in capsys.readouterr().err


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """What `check_given` was given."""
    found: list[Mapping[str, Any]] = []

    def spy(*args: Any, **options: Any) -> gate.CheckReport:
        found.append(args[4])
        return gate.check_given(*args, **options)

    monkeypatch.setattr("prism.api.choosing.check_given", spy)
    return found


def model_of(path: Path) -> Path:
    """y = softmax(x w) * x, at any number of rows."""
    info = helper.make_tensor_value_info
    w = numpy_helper.from_array(np.eye(32, dtype=np.float32) * 0.5, "w")
    nodes = [
        helper.make_node("MatMul", ["x.1", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["s"], axis=-1),
        helper.make_node("Mul", ["s", "x.1"], ["y"]),
    ]
    x, y = (info(n, TensorProto.FLOAT, ["rows", 32]) for n in ("x.1", "y"))
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_a_length_is_not_asked_for_beside_another_that_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save: Any = np.savez
    save(tmp_path / "data.npz", **{"x.1": np.ones((6, 32), np.float32)})
    command = ["optimize", str(model_of(tmp_path / "m.onnx")), "--inputs", str(tmp_path / "data.npz")]
    command += ["--target", "sm_90", "--out", str(tmp_path / "out"), "--shape"]
    assert main([*command, "rows=7"]) == ExitCode.USAGE
    assert "rows=7 is asked for, and rows is 6" in capsys.readouterr().err
    with pytest.raises(UsageError, match="asked for"):
        check_sizes({"rows": 6}, {"rows": 5})
    check_sizes({"rows": 6}, {"rows": 6, "columns": 2})


@pytest.mark.usefixtures("small_gate")
def test_kernels_are_checked_on_what_is_given(
    tmp_path: Path, seen: list[Mapping[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    given = np.random.default_rng(0).standard_normal((6, 32)).astype(np.float32)
    save: Any = np.savez
    save(tmp_path / "data.npz", **{"x.1": given})
    command = ["optimize", str(model_of(tmp_path / "m.onnx")), "--target", "sm_90", "--trials", "1", "--verbose"]
    out = ["--inputs", str(tmp_path / "data.npz"), "--out", str(tmp_path / "out")]
    assert main([*command, *out]) == ExitCode.DONE
    assert "inputs given" in capsys.readouterr().err
    ((array,),) = (list(s.values()) for s in seen)
    np.testing.assert_array_equal(array, given)
    assert main([*command, *out]) == ExitCode.DONE
    assert "inputs given" in (told := capsys.readouterr().err)
    assert "stored, error" in told
    assert len(seen) == 1
    save(tmp_path / "data.npz", **{"x.1": given + 1})
    assert main([*command, *out]) == ExitCode.DONE
    assert len(seen) == 2


@pytest.mark.usefixtures("small_gate")
def test_kernels_that_are_wrong_for_it_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = prism.load_onnx(model_of(tmp_path / "m.onnx"))
    (name,) = (t.name for t in program.inputs if t.name not in program.weights)
    right = gate.KernelRunner.run

    def wrong_for_quarters(self: gate.KernelRunner, *args: Any) -> list[gate.Output] | str:
        found = right(self, *args)
        if isinstance(found, str) or not any((t == 0.25).all() for t in args[2]):
            return found
        return [replace(o, values=o.values + 1) for o in found]

    monkeypatch.setattr(gate.KernelRunner, "run", wrong_for_quarters)
    with pytest.raises(VerificationError, match="something else"):
        prism.optimize(program, target="sm_90", trials=1, inputs={name: np.full((6, 32), 0.25, np.float32)})
