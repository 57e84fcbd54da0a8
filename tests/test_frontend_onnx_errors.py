"""What the ONNX front end refuses, each with one line that says what, where, why and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend_onnx_models import FLOAT, INT64, model
from onnx import TensorProto, helper
from quick import examples

from prism.errors import ExitCode, ModelError, PrismError, ShapeError, UnsupportedError
from prism.frontend.onnx.reader import from_model, load

node = helper.make_node


def simple(opset: int = 18) -> onnx.ModelProto:
    """Two linear layers."""
    weights = {"w": np.eye(4, dtype=np.float32), "v": np.tri(4, dtype=np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "v"], ["y"])]
    return model(nodes, {"x": (FLOAT, ["n", 4])}, ["y"], weights, opset)


def raised(call: Callable[[], object], kind: type[PrismError]) -> PrismError:
    """The one error that the call raises, checked for its form."""
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert error.exit_code == ExitCode.UNSUPPORTED
    assert error.where
    assert error.fix
    assert "\n" not in error.one_line()
    return error


def refused(built: onnx.ModelProto, kind: type[PrismError], *parts: str) -> None:
    """The translation raises that error, whose line holds the parts."""
    line = raised(lambda: from_model(built, "net.onnx", None), kind).one_line()
    assert line.startswith("net.onnx")
    for part in parts:
        assert part in line, line


def test_missing_file(tmp_path: Path) -> None:
    error = raised(lambda: load(tmp_path / "none.onnx"), ModelError)
    assert "none.onnx" in error.where
    assert "No such file" in error.why


@pytest.mark.parametrize("data", [b"", b"hello, this is a text file\n", b"PK\x03\x04" + bytes(99), b"{}"])
def test_not_onnx(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.onnx"
    file.write_bytes(data)
    assert "not an ONNX model" in raised(lambda: load(file), ModelError).what


def test_every_truncation_is_a_model_error(tmp_path: Path) -> None:
    file, data = tmp_path / "x.onnx", simple().SerializeToString()
    for length in range(2, len(data) - 1, 7):
        file.write_bytes(data[:length])
        raised(lambda: load(file), ModelError)
    file.write_bytes(data[: len(data) // 2])
    assert "truncated" in raised(lambda: load(file), ModelError).what


def test_external_data_missing_or_short(tmp_path: Path) -> None:
    file = tmp_path / "x.onnx"
    onnx.save(simple(), str(file), save_as_external_data=True, location="w.bin", size_threshold=0)
    data = (tmp_path / "w.bin").read_bytes()
    (tmp_path / "w.bin").write_bytes(data[:100])
    assert "too short" in raised(lambda: load(file), ModelError).what
    (tmp_path / "w.bin").write_bytes(data[:50])
    whole = onnx.load_model(str(file), load_external_data=False)
    for tensor in whole.graph.initializer:  # no length need be said: the tensor has one
        kept = [e for e in tensor.external_data if e.key != "length"]
        del tensor.external_data[:]
        tensor.external_data.extend(kept)
    file.write_bytes(whole.SerializeToString())
    assert "50 bytes of 64" in raised(lambda: load(file), ModelError).why
    (tmp_path / "w.bin").unlink()
    error = raised(lambda: load(file), ModelError)
    assert "'w.bin' is missing" in error.what
    assert "'w'" in error.where


@pytest.mark.parametrize("opset", [0, 99])
def test_operator_set_out_of_range(opset: int) -> None:
    refused(simple(opset), UnsupportedError, f"operator set {opset}", f"1 to {onnx.defs.onnx_opset_version()}")


def test_old_operator_sets_are_read_where_the_operator_is_what_it_is() -> None:
    inputs = {"x": (TensorProto.BOOL, [3])}
    assert from_model(model([node("Not", ["x"], ["y"])], inputs, ["y"], opset=1), "net.onnx", None).outputs == ("y",)
    old = model([node("Add", ["x", "x"], ["y"])], {"x": (FLOAT, [3])}, ["y"], opset=6)
    refused(old, UnsupportedError, "version 6 of Add is not supported")


def test_every_unknown_operator_is_named_at_once() -> None:
    nodes = [
        node("NonZero", ["x"], ["a"], name="first"),
        node("FusedThing", ["a"], ["b"], domain="com.vendor"),
        node("NonZero", ["b"], ["c"]),
        node("Compress", ["c", "k"], ["y"]),
    ]
    built = model(nodes, {"x": (FLOAT, [3]), "k": (INT64, [1])}, ["y"])
    refused(built, UnsupportedError, "NonZero, com.vendor.FusedThing, Compress", "'first'")


def test_control_flow() -> None:
    branch = helper.make_graph([node("Neg", ["x"], ["z"])], "b", [], [onnx.ValueInfoProto(name="z")])
    built = model(
        [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)],
        {"c": (TensorProto.BOOL, []), "x": (FLOAT, [3])},
        ["y"],
    )
    refused(built, UnsupportedError, "If", "control flow")


@pytest.mark.parametrize(
    "kind", [TensorProto.COMPLEX64, TensorProto.STRING, TensorProto.FLOAT8E4M3FN, TensorProto.INT4]
)
def test_data_types(kind: int) -> None:
    name = TensorProto.DataType.Name(kind).lower()
    refused(
        model([node("Identity", ["x"], ["y"])], {"x": (kind, [3])}, ["y"]), UnsupportedError, name, "'x'", "float16"
    )
    if kind != TensorProto.STRING:
        cast = model([node("Cast", ["x"], ["y"], to=kind, name="c")], {"x": (FLOAT, [3])}, ["y"], opset=21)
        refused(cast, UnsupportedError, name, "'c'")


def one(op: str, shapes: Sequence[Sequence[Any]], opset: int = 18, **attributes: Any) -> onnx.ModelProto:
    """A model of one node over float inputs."""
    names = [f"a{n}" for n in range(len(shapes))]
    return model(
        [node(op, names, ["y"], name="here", **attributes)],
        {n: (FLOAT, s) for n, s in zip(names, shapes, strict=True)},
        ["y"],
        opset=opset,
    )


@pytest.mark.parametrize(
    ("built", "part"),
    [
        (one("Add", [[3, 4], [3, 5]]), "do not broadcast"),
        (one("Add", [["n+1", 4], ["n+2", 4]]), "n + 1 and n + 2"),
        (one("MatMul", [[3, 4], [5, 6]]), "4 and 5"),
        (one("MatMul", [["n", "n"], ["n+1", 6]]), "n and n + 1"),
        (one("Gemm", [[3, 4], [4, 5], [6]]), "do not broadcast"),
        (one("Concat", [[3, 4], [4, 5]], axis=0), "joined"),
        (one("Transpose", [[3, 4]], perm=[0, 0]), "permute"),
        (one("Split", [[3, 4]], axis=2, num_outputs=1), "out of range"),
        (one("Softmax", [[3, 4]], axis=5), "out of range"),
        (one("Einsum", [[3, 4], [5, 6]], equation="ij,jk->ik"), "dimension j"),
        (one("LayerNormalization", [[3, 4], [5]]), "scale"),
        (one("Attention", [[1, 3, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8]], 23), "3 query heads"),
        (one("Attention", [[1, 3, 8], [1, 2, 8], [1, 2, 8]], 23), "number of heads"),
        (one("Attention", [[1, 2, 4, 8], [1, 2, 4, 6], [1, 2, 4, 8]], 23), "do not fit"),
    ],
)
def test_shapes_that_do_not_add_up(built: onnx.ModelProto, part: str) -> None:
    refused(built, ShapeError, part, "'here'")


def test_sizes_of_which_nothing_says_that_they_are_equal() -> None:
    # Either may be what follows from the other, so there is nothing to put in the place of a symbol.
    refused(one("Add", [["n", "m", "n*n"], ["n", "m", "m*m"]]), UnsupportedError, "nothing says that", "'here'")
    shape = {"s": np.array([3, -1], np.int64)}
    built = model([node("Reshape", ["x", "s"], ["y"], name="here")], {"x": (FLOAT, ["n", 4])}, ["y"], shape)
    refused(built, UnsupportedError, "whether 4*n is a multiple of 3 depends on the sizes", "'here'")


@pytest.mark.parametrize(
    ("op", "constant", "part"),
    [
        ("Reshape", [5, 2], "[5, 2]"),
        ("Reshape", [-1, 5], "[-1, 5]"),
        ("Expand", [3, 5], "4 and 5"),
        ("Squeeze", [0], "3"),
    ],
)
def test_constant_shapes_that_do_not_fit(op: str, constant: list[int], part: str) -> None:
    built = model(
        [node(op, ["x", "s"], ["y"], name="here")], {"x": (FLOAT, [3, 4])}, ["y"], {"s": np.array(constant, np.int64)}
    )
    refused(built, ShapeError, part, "'here'")


def test_a_stated_output_shape_is_checked() -> None:
    built = one("Neg", [[3, 4]])
    built.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, [3, 5]))
    refused(built, ShapeError, "'y'", "[3, 5]")


def test_data_dependent_shapes_and_lookups_of_nothing() -> None:
    reshape = model([node("Reshape", ["t", "i"], ["y"], name="r")], {"t": (FLOAT, [9, 4]), "i": (INT64, [2])}, ["y"])
    refused(reshape, UnsupportedError, "computed from data", "'r'")
    bad = model(
        [node("Gather", ["t", "i"], ["y"], name="g")], {"t": (FLOAT, [9, 4])}, ["y"], {"i": np.array([9, 1, 0])}
    )
    refused(bad, ShapeError, "index 9 is out of range")


def test_attention_caches() -> None:
    past = [[1, 2, 4, 8]] * 3
    refused(one("Attention", [*past, [4, 8], past[0]], 23), ShapeError, "past_key and past_value", "together")
    refused(one("Attention", [*past, [4, 8], [1, 2, 3, 9], past[0]], 23), ShapeError, "a cache of shape [1, 2, 3, 9]")


def test_places_of_maxima_and_unknown_rank() -> None:
    pool = one("MaxPool", [[2, 3, 5]], kernel_shape=[2])
    pool.graph.node[0].output.append("places")
    refused(pool, UnsupportedError, "result 1 of MaxPool")
    built = one("Neg", [[3]])
    built.graph.input[0].type.tensor_type.ClearField("shape")
    refused(built, UnsupportedError, "without a shape")


def test_malformed_graphs() -> None:
    dangling = model([node("Neg", ["nowhere"], ["y"])], {"x": (FLOAT, [3])}, ["y"])
    refused(dangling, ModelError, "'nowhere'")
    missing = model([node("Neg", ["x"], ["z"])], {"x": (FLOAT, [3])}, ["y"])
    refused(missing, ModelError, "'y'")
    illegal = model([node("Gemm", ["x"], ["y"])], {"x": (FLOAT, [3, 3])}, ["y"])
    refused(illegal, ModelError, "not a legal Gemm")
    no_opset = simple()
    del no_opset.opset_import[:]
    refused(no_opset, ModelError, "operator set")


def test_a_circle_names_who_computes_the_operand() -> None:
    circle = model([node("Add", ["x", "y"], ["y"], name="own")], {"x": (FLOAT, [3])}, ["y"])
    refused(circle, ModelError, "'y'", "'own'", "circle")
    two = [node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"], name="last"), node("Exp", ["x"], ["y"])]
    two.append(node("Add", ["y", "b"], ["z"]))
    refused(model(two, {"x": (FLOAT, [3])}, ["z"]), ModelError, "'b'", "'last'", "circle")


def test_two_inputs_of_one_name() -> None:
    built = model([node("Neg", ["x"], ["y"])], {"x": (FLOAT, [3])}, ["y"])
    built.graph.input.append(built.graph.input[0])
    refused(built, ModelError, "2 inputs", "'x'")


def test_tensors_that_no_memory_holds() -> None:
    huge = model([node("Relu", ["x"], ["y"])], {"x": (FLOAT, [2**62] * 25)}, ["y"])
    refused(huge, ShapeError, "larger than any memory", "input 'x'")
    outer = model([node("Mul", ["x", "z"], ["y"])], {"x": (FLOAT, [2**40, 1]), "z": (FLOAT, [1, 2**40])}, ["y"])
    refused(outer, ShapeError, "larger than any memory", "output 'y'")


@pytest.mark.parametrize("count", [0, 60, 68])
def test_a_constant_of_another_size_than_its_shape_says_both(count: int) -> None:
    built = simple()
    built.graph.initializer[0].raw_data = bytes(count)
    refused(built, ModelError, "'w'", f"{count} bytes", "float32 [4, 4] takes 64")


@pytest.mark.parametrize(
    ("data", "why"), [(b"", "empty"), (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "Git LFS")]
)
def test_files_that_hold_no_model_yet(data: bytes, why: str, tmp_path: Path) -> None:
    file = tmp_path / "x.onnx"
    file.write_bytes(data)
    assert why in raised(lambda: load(file), ModelError).why


def test_damaged_bytes_never_escape_as_another_error(tmp_path: Path) -> None:
    """Whatever bytes of a file change, it loads or is refused; anything else would be a traceback."""
    file, data, rng = tmp_path / "x.onnx", simple().SerializeToString(), np.random.default_rng(5)
    for _ in range(examples(400, 1500)):
        damaged = bytearray(data)
        for place in rng.integers(len(data), size=rng.integers(1, 4)):
            damaged[place] = rng.integers(256)
        file.write_bytes(damaged)
        with contextlib.suppress(ModelError):
            load(file)


def test_names_that_are_not_text(tmp_path: Path) -> None:
    file = tmp_path / "x.onnx"
    built = model([node("Neg", ["x"], ["yyyy"])], {"x": (FLOAT, [3])}, ["yyyy"])
    file.write_bytes(built.SerializeToString().replace(b"yyyy", b"\xff\xfeyy"))
    assert "not UTF-8" in raised(lambda: load(file), ModelError).why


@pytest.mark.parametrize("op", ["Softmax", "Concat", "CumSum", "LayerNormalization"])
def test_scalars_have_no_axis(op: str) -> None:
    names = {"Softmax": ["x"], "Concat": ["x", "x"], "CumSum": ["x", "i"], "LayerNormalization": ["x", "x"]}[op]
    attributes: dict[str, Any] = {"axis": 0} if op != "CumSum" else {}
    built = model([node(op, names, ["y"], **attributes)], {"x": (FLOAT, [])}, ["y"], {"i": np.array(0, dtype=np.int64)})
    refused(built, ShapeError, "axis 0 is out of range for 0 dimensions")
