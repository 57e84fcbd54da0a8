"""The error catalogue: every bad input ends the real command with its code, one line, and nothing written."""

from __future__ import annotations

import errno
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from prism.cli import main
from prism.cli.output import write_line
from prism.errors import ExitCode, ModelError, PrismError, UsageError


def model(
    nodes: list[onnx.NodeProto],
    *,
    shape: tuple[int | str, ...] = (4, 8),
    weight: tuple[int, ...] = (8, 4),
    dtype: int = TensorProto.FLOAT,
    domain: str = "",
) -> onnx.ModelProto:
    """A model of x and an initialiser w to y, unchecked."""
    ones = np.ones(weight, helper.tensor_dtype_to_np_dtype(dtype))
    w = numpy_helper.from_array(ones, "w")  # raw data: only that can be moved to an external file
    x = helper.make_tensor_value_info("x", dtype, shape)
    y = helper.make_tensor_value_info("y", dtype, None)
    opsets = [helper.make_opsetid("", 20)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    made = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [w]), opset_imports=opsets)
    made.ir_version = 9
    return made


def matmul() -> onnx.ModelProto:
    """A good model."""
    return model([helper.make_node("MatMul", ["x", "w"], ["y"], name="the_product")])


def missing(path: Path) -> None:
    pass


def not_onnx(path: Path) -> None:
    path.write_text("{'this': 'is not a model'}\n" * 40)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def truncated(path: Path) -> None:
    data = matmul().SerializeToString()
    path.write_bytes(data[: len(data) * 2 // 3])


def a_folder(path: Path) -> None:
    path.mkdir()


def external_missing(path: Path) -> None:
    onnx.save(matmul(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (path.parent / "weights.bin").unlink()


def external_truncated(path: Path) -> None:
    onnx.save(matmul(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (path.parent / "weights.bin").write_bytes(b"\0" * 10)


def external_outside(path: Path) -> None:
    external_missing(path)
    path.write_bytes(path.read_bytes().replace(b"weights.bin", b"/etc/passwd"))  # of the same length


def unknown_op(path: Path) -> None:
    onnx.save(model([helper.make_node("Frobnicate", ["x"], ["y"], name="the_node")]), path)


def custom_domain(path: Path) -> None:
    made = model([helper.make_node("Fancy", ["x"], ["y"], name="the_node", domain="com.acme")], domain="com.acme")
    onnx.save(made, path)


def wrong_shapes(path: Path) -> None:
    onnx.save(model([helper.make_node("MatMul", ["x", "w"], ["y"], name="the_node")], weight=(7, 4)), path)


def wrong_broadcast(path: Path) -> None:
    onnx.save(model([helper.make_node("Add", ["x", "w"], ["y"], name="the_node")], weight=(3,)), path)


def wrong_dtype(path: Path) -> None:
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"], name="the_node")], dtype=TensorProto.COMPLEX64)
    onnx.save(made, path)


def undefined_tensor(path: Path) -> None:
    onnx.save(model([helper.make_node("Add", ["x", "nowhere"], ["y"], name="the_node")]), path)


# What makes the file, and what the line must say besides the file's name.
CATALOGUE: list[tuple[Callable[[Path], None], tuple[str, ...]]] = [
    (missing, ()),
    (a_folder, ()),
    (not_onnx, ()),
    (empty, ()),
    (truncated, ()),
    (external_missing, ("weights.bin",)),
    (external_truncated, ("weights.bin",)),
    (external_outside, ("/etc/passwd",)),
    (unknown_op, ("Frobnicate", "the_node")),
    (custom_domain, ("Fancy", "the_node")),
    (wrong_shapes, ("the_node",)),
    (wrong_broadcast, ("the_node",)),
    (wrong_dtype, ("complex64",)),
    (undefined_tensor, ("nowhere",)),
]


ELSEWHERE = (custom_domain, wrong_dtype)
"""What only a runtime can tell to be wrong: `show` says of it what stays as it is, and why."""


@pytest.mark.parametrize("make", ELSEWHERE)
def test_what_others_may_know_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None]
) -> None:
    make(tmp_path / "m.onnx")
    assert main(["show", str(tmp_path / "m.onnx")]) == ExitCode.DONE
    assert "(the_node): stays as it is: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "make", "says"),
    [
        pytest.param(command, make, says, id=f"{make.__name__}-{command}")
        for make, says in CATALOGUE
        for command in ("optimize", "show", "prove")
        if (command, make) not in {("show", m) for m in ELSEWHERE}
    ],
)
def test_a_bad_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Path], None],
    says: tuple[str, ...],
    command: str,
) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "bad_model.onnx"
    make(path)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    before = sorted(os.listdir(tmp_path / "in"))
    assert main([command, *[str(path)] * (2 if command == "prove" else 1)]) == ExitCode.UNSUPPORTED
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert [line for line in lines if line.startswith("prism: error: ")] == lines[-1:]
    for expected in ("bad_model.onnx", *says):
        assert expected.lower() in lines[-1].lower()
    assert len(lines[-1]) < 600
    assert os.listdir(tmp_path / "cwd") == []
    assert sorted(os.listdir(tmp_path / "in")) == before


def _outcome(data: bytes, path: Path) -> str:
    """`model`, or the class of the error; anything but a ModelError escapes."""
    import prism.api as api

    path.write_bytes(data)
    try:
        api.load(path)
    except ModelError as e:
        return type(e).__name__ if e.where else "an error without a place"
    return "model"


def test_a_model_cut_anywhere_is_refused_in_order(tmp_path: Path) -> None:
    data = matmul().SerializeToString()
    outcomes = [_outcome(data[:n], tmp_path / "m.onnx") for n in range(len(data) + 1)]
    assert outcomes[-1] == "model"
    assert outcomes.count("ModelError") > len(data) // 2
    assert "an error without a place" not in outcomes


@given(st.data())
def test_a_model_with_damaged_bytes_is_no_internal_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    good = bytearray(matmul().SerializeToString())
    places = st.integers(0, len(good) - 1)
    for place, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)):
        good[place] = byte
    outcome = _outcome(bytes(good), tmp_path_factory.mktemp("damaged") / "m.onnx")
    assert outcome in ("model", "ModelError", "UnsupportedError", "ShapeError")


def test_an_unknown_target_through_the_api(tmp_path: Path) -> None:
    import prism.api as api

    onnx.save(matmul(), tmp_path / "m.onnx")
    with pytest.raises(UsageError) as caught:
        api.optimize(api.load(tmp_path / "m.onnx"), target="sm_7", out=tmp_path / "o")
    assert "sm_7" in caught.value.one_line()
    assert "sm_90" in caught.value.one_line()
    assert os.listdir(tmp_path) == ["m.onnx"]


def test_show_a_good_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(matmul(), tmp_path / "m.onnx")
    assert main(["show", str(tmp_path / "m.onnx")]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert out.startswith("program m\n")
    assert "sum_" in out
    assert "input w[8, 4] float32" in out


def test_an_error_is_one_line_and_survives_a_process_boundary() -> None:
    error = ModelError("cannot read\nit", where="a.onnx", why="it is\ttruncated", fix="export it again")
    assert error.one_line() == "a.onnx: cannot read it: it is truncated; export it again"
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is ModelError
    assert back.one_line() == error.one_line()
    assert back.fix == error.fix


def test_every_error_has_a_documented_code() -> None:
    kinds = [PrismError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert len(kinds) > 8
    assert all(kind.exit_code in set(ExitCode) - {ExitCode.DONE, ExitCode.INTERRUPTED} for kind in kinds)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), "/tmp/x: this machine refused: No space left"),
        (OSError(errno.EMFILE, "Too many open files"), "this machine refused: Too many open files; raise the limit"),
        (
            FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"),
            "set TMPDIR to a folder that has it",
        ),
        (MemoryError(), "not enough memory for this model"),
    ],
)
def test_what_the_machine_refuses_is_no_bug(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object, **named: object) -> None:
        raise error

    monkeypatch.chdir(tmp_path)
    Path("m.onnx").touch()
    monkeypatch.setattr("prism.api.load", refuse)
    assert main(["show", "m.onnx"]) == ExitCode.USAGE
    assert said in capsys.readouterr().err
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["show", "m.onnx"]) == ExitCode.USAGE
    assert capsys.readouterr().out == ""


def test_other_errors_of_the_system_are_bugs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object, **named: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/x")

    monkeypatch.chdir(tmp_path)
    Path("m.onnx").touch()
    monkeypatch.setattr("prism.api.load", refuse)
    assert main(["show", "m.onnx"]) == ExitCode.INTERNAL
    assert "bug in prism" in capsys.readouterr().err


def test_results_that_nobody_reads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        write_line("nobody reads this")
    with monkeypatch.context() as patch, Path("/dev/full").open("w") as full:
        patch.setattr(sys, "stdout", full)
        with pytest.raises(UsageError, match="standard output: the result cannot be printed: No space left"):
            write_line("nobody gets this")
