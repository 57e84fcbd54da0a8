"""Models at fault are refused by name, with exit code 3: never a traceback, a hang, or memory without bounds."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_damage import many

from prism.api.loading import load
from prism.cli.app import main
from prism.errors import ExitCode, PrismError
from prism.frontend.onnx import functions as onnx_functions
from prism.frontend.onnx.islands import cut
from prism.frontend.onnx.other_readers import Inference

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
EXAMPLES = Path(__file__).parent.parent / "examples" / "models"
MAIN, OWN = helper.make_opsetid("", 18), helper.make_opsetid("own", 1)

node = helper.make_node
info = helper.make_tensor_value_info
SCALAR = info("y", FLOAT, [])
X, Y = info("x", FLOAT, [3, 4]), info("y", FLOAT, [3, 4])


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (X,),
    outputs: Sequence[onnx.ValueInfoProto] = (Y,),
    functions: Sequence[onnx.FunctionProto] = (),
    **constants: object,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), tensors)
    return helper.make_model(graph, opset_imports=[MAIN, OWN], functions=list(functions), ir_version=9)


def call(name: str, given: str, result: str) -> onnx.NodeProto:
    return node(name, [given], [result], domain="own")


def function(name: str, *nodes: onnx.NodeProto) -> onnx.FunctionProto:
    return helper.make_function("own", name, ["a"], ["b"], list(nodes), [MAIN, OWN])


def doubling(depth: int) -> onnx.ModelProto:
    """Functions that each call the one before twice: 2^depth nodes."""
    made = [function("f0", node("Neg", ["a"], ["b"]))]
    made += [function(f"f{n}", call(f"f{n - 1}", "a", "t"), call(f"f{n - 1}", "t", "b")) for n in range(1, depth + 1)]
    return model([call(f"f{depth}", "x", "y")], functions=made)


def chain(length: int) -> onnx.ModelProto:
    names = ["x", *(f"v{n}" for n in range(1, length)), "y"]
    return model([node("Relu" if n % 2 else "Neg", [names[n]], [names[n + 1]]) for n in range(length)])


def nan(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    return model([node("Constant", [], ["c"], value_float=math.nan), *nodes])


FAULTY: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[str, ...]]] = {
    "split by 0": (lambda: model([node("Split", ["x"], ["y", "z"], num_outputs=0)]), ("Split", "0 parts")),
    "split into many": (lambda: model([node("Split", ["x"], ["y"], num_outputs=2**40)]), ("Split", "1 outputs")),
    "split that does not add up": (
        lambda: model([node("Split", ["x", "s"], ["y", "z"])], s=np.array([0, 0])),
        ("Split", "[0, 0]", "extent 3"),
    ),
    "recursive function": (
        lambda: model([call("f", "x", "y")], functions=[function("f", call("f", "a", "b"))]),
        ("function own::f", "calls itself"),
    ),
    "functions that call each other": (
        lambda: model(
            [call("f", "x", "y")], functions=[function("f", call("g", "a", "b")), function("g", call("f", "a", "b"))]
        ),
        ("own::f calls own::g calls own::f",),
    ),
    "2^40 nodes": (lambda: doubling(40), ("more than 1,000,000,000,000 nodes", "200,000 at most")),
    "2^18 nodes": (lambda: doubling(18), ("262,144 nodes",)),
    "a long line of functions": (
        lambda: model(
            [call("f900", "x", "y")],
            functions=[
                function("f0", node("Neg", ["a"], ["b"])),
                *(function(f"f{n}", call(f"f{n - 1}", "a", "b")) for n in range(1, 901)),
            ],
        ),
        ("nested 901 deep",),
    ),
    "NaN added": (lambda: nan(node("Add", ["x", "c"], ["y"])), ("node 'Add y'", "a constant is NaN")),
    "NaN chosen": (
        lambda: nan(node("Greater", ["x", "c"], ["p"]), node("Where", ["p", "x", "c"], ["y"])),
        ("a constant is NaN",),
    ),
    "NaN returned": (
        lambda: model([node("Constant", [], ["y"], value_float=math.nan)], (), (SCALAR,)),
        ("output y", "NaN"),
    ),
    "mean of nothing": (
        lambda: model([node("ReduceMean", ["x"], ["y"], keepdims=0)], (info("x", FLOAT, [0]),), (SCALAR,)),
        ("ReduceMean", "NaN", "no elements"),
    ),
    "an operand of a function's body from nowhere": (  # whose type onnx would follow unseen
        lambda: model([node("SequenceMap", ["nowhere"], ["y"], body=model([node("Neg", ["x"], ["y"])]).graph)]),
        ("node 'SequenceMap y'", "'nowhere' is defined nowhere"),
    ),
    "a name defined twice": (
        lambda: model([node("Exp", ["x"], ["y"]), node("Neg", ["x"], ["y"])]),
        ("node 'Neg y'", "defined twice"),
    ),
    "an input defined again": (
        lambda: model([node("Exp", ["w"], ["x"]), node("Neg", ["x"], ["y"])], w=np.ones(4, np.float32)),
        ("'x' is defined twice",),
    ),
    "neither yes nor no": (
        lambda: model([node("ReduceSum", ["x"], ["y"], keepdims=3)]), ("ReduceSum", "keepdims is 3", "0 or 1")
    ),
    "a table of starts": (
        lambda: model([node("Slice", ["x", "s", "e"], ["y"])], s=np.array([[0]]), e=np.array([3])),
        ("Slice", "2 dimensions"),
    ),
    "no groups": (
        lambda: model([node("GroupNormalization", ["x", "s", "s"], ["y"], num_groups=-1)], s=np.ones(4, np.float32)),
        ("GroupNormalization", "-1 groups"),
    ),
    "an infinite attribute": (
        lambda: model([node("Selu", ["x"], ["y"], alpha=math.inf)]), ("Selu", "alpha is inf")
    ),
    "division by an attribute": (lambda: model([node("Celu", ["x"], ["y"], alpha=0.0)]), ("Celu", "alpha is 0")),
    "weights of other classes": (
        lambda: model(
            [node("SoftmaxCrossEntropyLoss", ["x", "l", "w"], ["y"])],
            (X, info("w", FLOAT, ["n"])), (SCALAR,), l=np.array([0, 1, 2]),
        ),
        ("SoftmaxCrossEntropyLoss", "4 classes"),
    ),
    "no outputs": (lambda: model([node("Exp", ["x"], ["y"])], outputs=()), ("no outputs",)),
    "nothing at all": (lambda: model([], (), ()), ("no outputs",)),
}  # fmt: skip


def refused(path: Path, capsys: pytest.CaptureFixture[str], *said: str) -> str:
    """The command's one line about a model that it does not take."""
    for command in (["show", str(path)], ["prove", str(path), str(path)], ["optimize", str(path)]):
        assert main(command) == ExitCode.UNSUPPORTED, command
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(f"prism: error: {path}")
        assert "; " in line, "it says what to do"
        assert "bug in prism" not in line
        for words in said:
            assert words in line
    return line


@pytest.mark.parametrize("fault", FAULTY)
def test_a_model_at_fault(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, said = FAULTY[fault]
    path = tmp_path / "m.onnx"
    path.write_bytes(make().SerializeToString())
    refused(path, capsys, *said)


@pytest.mark.parametrize(
    ("location", "offset", "said"),
    [
        ("../secret", "0", "outside"),
        ("/dev/zero", "0", "not a regular file"),
        ("pipe", "0", "not a regular file"),
        ("folder", "0", "not a regular file"),
        ("link", "0", "symbolic link"),
        ("nowhere", "0", "symbolic link"),
        ("gone", "0", "missing"),
        ("", "0", "named"),
        ("d", "zz", "whole numbers"),
        ("d", "-1", "whole numbers"),
        ("d", "9", "too short"),
    ],
)
def test_external_data_lie_beside_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], location: str, offset: str, said: str
) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    os.mkfifo(inside / "pipe")
    (inside / "folder").mkdir()
    (inside / "link").symlink_to("d")
    (inside / "nowhere").symlink_to("no such file")
    for place in (tmp_path / "secret", inside / "d"):
        place.write_bytes(bytes(16))
    m = model([node("Add", ["x", "w"], ["y"])], w=np.zeros(4, np.float32))
    (w,) = m.graph.initializer
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": offset, "length": "16"}.items():
        entry = w.external_data.add()
        entry.key, entry.value = key, value
    (inside / "m.onnx").write_bytes(m.SerializeToString())
    refused(inside / "m.onnx", capsys, "initialiser 'w'", "external data", said)


def test_external_data_beyond_two_gigabytes_are_read_where_they_lie(tmp_path: Path) -> None:
    """The file has a hole of four gigabytes, as a file of many large weights would have them before this one."""
    m = model([node("Add", ["x", "w"], ["y"])], w=np.zeros(4, np.float32))
    (w,) = m.graph.initializer
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    with (tmp_path / "w.bin").open("wb") as file:
        file.seek(4 << 30)
        file.write(np.arange(4, dtype=np.float32).tobytes())
    for key, value in {"location": "w.bin", "offset": str(4 << 30), "length": "16"}.items():
        entry = w.external_data.add()
        entry.key, entry.value = key, value
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    program = load(tmp_path / "m.onnx")
    found = np.asarray(next(iter(program.weights.values())))
    assert list(found) == [0.0, 1.0, 2.0, 3.0]
    assert not found.flags.owndata  # it is the file's memory


def test_a_negative_extent_of_a_constant_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    m = model([node("Add", ["x", "w"], ["y"])], w=np.zeros(4, np.float32))
    m.graph.initializer[0].dims[0] = -4
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    refused(tmp_path / "m.onnx", capsys, "initialiser 'w'", "[-4]")


def test_a_device_is_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "/dev/zero"]) == ExitCode.UNSUPPORTED
    assert "not a regular file" in capsys.readouterr().err


def calls_to_load(length: int, path: Path) -> int:
    """How many Python functions are called to read a chain of that length."""
    path.write_bytes(chain(length).SerializeToString())
    made = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal made
        made += event == "call"

    sys.setprofile(count)
    try:
        program = load(path)
    finally:
        sys.setprofile(None)
    assert program.operator_count == length
    return made


def test_the_time_to_read_grows_with_the_nodes_alone(tmp_path: Path) -> None:
    calls_to_load(10, tmp_path / "m.onnx")  # what is imported and remembered on the way
    load_once = calls_to_load(10, tmp_path / "m.onnx")
    few, many = (calls_to_load(n, tmp_path / "m.onnx") - load_once for n in (100, 400))
    assert many < 4.5 * few


def test_a_chain_that_is_too_long_to_prove_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for length in (800, 802):  # of which nothing but zeros comes
        (tmp_path / f"{length}.onnx").write_bytes(chain(length).SerializeToString())
    assert main(["prove", str(tmp_path / "800.onnx"), str(tmp_path / "802.onnx")]) == ExitCode.UNSUPPORTED
    assert "too deep for one formula" in capsys.readouterr().err


@pytest.mark.slow
def test_a_chain_of_100_000_nodes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(chain(100_000).SerializeToString())
    assert load(path).operator_count == 100_000
    assert onnx_functions.MAX_NODES > 100_000


def damaged_models_are_refused_or_read(
    models: list[onnx.ModelProto], seed: int, count: int, path: Path, read: Callable[[Path], object] = load
) -> None:
    def refusal(data: bytes) -> PrismError | None:
        path.write_bytes(data)
        try:
            read(path)
        except PrismError as error:
            return error
        return None

    taken = 0
    for what, data in many(models, seed, count):
        error = refusal(data)
        if error is None:
            taken += 1
            continue
        assert error.exit_code == ExitCode.UNSUPPORTED, (what, error)
        assert error.where.startswith(str(path)), (what, error)
        assert error.fix, (what, error)
    assert 0 < taken < count * 3 / 4, "damage that is refused, and some that does no harm"


def examples() -> list[onnx.ModelProto]:
    return [onnx.load(path) for path in sorted(EXAMPLES.glob("*.onnx")) if path.stat().st_size < 200_000]


def test_damaged_examples(tmp_path: Path) -> None:
    damaged_models_are_refused_or_read(examples(), 20, 150, tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("damaged", "kept"),
    [
        (node("Split", ["x"], ["y", "z"], num_outputs=1), "Split"),
        (node("Optional", [""], ["y"]), "Optional"),
    ],
)
def test_a_node_that_ends_the_process_which_infers_shapes_stays(
    damaged: onnx.NodeProto, kept: str, tmp_path: Path
) -> None:
    """The first one does, in onnx 1.23: there are more parts than it says."""
    (tmp_path / "m.onnx").write_bytes(model([damaged], (info("x", FLOAT, [6]),)).SerializeToString())
    assert [k.op for k in cut(tmp_path / "m.onnx").kept.values()] == [kept]


def node_cases() -> list[onnx.ModelProto]:
    from onnx.backend.test.case.node import collect_testcases

    return [case.model for case in collect_testcases(None) if case.model is not None]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_damaged_models_of_every_operator(tmp_path: Path, seed: int) -> None:
    damaged_models_are_refused_or_read([*examples(), *node_cases()], seed, 20_000, tmp_path / "m.onnx")


@pytest.mark.slow
def test_damaged_models_are_cut_or_refused(tmp_path: Path) -> None:
    with Inference() as asked:
        damaged_models_are_refused_or_read(
            [*examples(), *node_cases()], 11, 8_000, tmp_path / "m.onnx", lambda p: cut(p, inference=asked)
        )
