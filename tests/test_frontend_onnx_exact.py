"""A model read from ONNX is the function that it was: versions, attributes, types, integers, rows that are empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from frontend_onnx_models import BOOL, FLOAT, INT64, check, model, node_model, run_program
from onnx import TensorProto, helper
from onnx.helper import make_node as node
from onnx.reference import ReferenceEvaluator

from prism.errors import ModelError, PrismError, ShapeError, UnsupportedError
from prism.frontend.onnx import schemas as onnx_schemas
from prism.frontend.onnx.graph import Given, Node, OnnxValue
from prism.frontend.onnx.reader import from_model
from prism.program.nodes import DType, Map, walk

RNG = np.random.default_rng(3)
I8, U8, I32, I64 = np.int8, np.uint8, np.int32, np.int64
i8, u8, i32, i64, f32 = (partial(np.array, dtype=kind) for kind in (I8, U8, I32, I64, np.float32))


def f(*shape: int) -> np.ndarray:
    """Signed values."""
    return RNG.standard_normal(shape).astype(np.float32)


def result(
    op: str, arrays: Sequence[Any], opset: int = 18, fixed: Sequence[int] = (), outputs: int = 1, **attributes: Any
) -> np.ndarray:
    """The first result of one node, by way of a program."""
    built, given = node_model(op, arrays, attributes, opset, fixed, outputs)
    program = from_model(built, "m.onnx", None)
    return run_program(program, given)[0]


def refusal(kind: type[PrismError], op: str, arrays: Sequence[Any], opset: int = 18, **more: Any) -> str:
    """What the refusal of one node says."""
    with pytest.raises(kind) as caught:
        result(op, arrays, opset, **more)
    return caught.value.one_line()


# Versions


@pytest.mark.parametrize("opset", [7, 11, 12])
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_an_old_softmax_takes_its_operand_for_a_matrix(opset: int, axis: int | None) -> None:
    x = f(2, 3, 4)
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    rows = x.reshape(int(np.prod(x.shape[: 1 if axis is None else axis])), -1).astype(np.float64)
    e = np.exp(rows - rows.max(1, keepdims=True))
    expected = (e / e.sum(1, keepdims=True)).reshape(x.shape)
    np.testing.assert_allclose(result("Softmax", [x], opset, **attributes), expected, rtol=1e-12)
    np.testing.assert_allclose(result("LogSoftmax", [x], opset, **attributes), np.log(expected), rtol=1e-9)


def test_what_are_operands_now_were_attributes() -> None:
    x = f(4, 1, 6)
    np.testing.assert_array_equal(result("Squeeze", [x], 11, axes=[-2]), x[:, 0])
    np.testing.assert_array_equal(result("Unsqueeze", [x], 7, axes=[0, 2]), x[None, :, None])
    np.testing.assert_array_equal(result("Split", [x], 7, axis=2, split=[2, 4], outputs=2), x[..., :2])
    np.testing.assert_array_equal(result("Slice", [x], 9, starts=[1, -3], ends=[3, 1000], axes=[0, 2]), x[1:3, :, -3:])
    np.testing.assert_array_equal(result("Clip", [x], 10, min=-0.5), np.maximum(x, -0.5))
    np.testing.assert_allclose(result("ReduceSum", [x], 11, axes=[2], keepdims=0), x.astype(float).sum(2))
    np.testing.assert_array_equal(result("Reshape", [x, np.array([6, 4])], 5 + 2, [1]), x.reshape(6, 4))


def test_everything_is_kept_by_a_dropout_that_does_not_train() -> None:
    built, given = node_model("Dropout", [f(3)], {}, 13, outputs=2)
    program = from_model(built, "m", None)
    assert [program.tensor(t).dtype for t in program.outputs] == [DType.FLOAT32, DType.BOOL]
    np.testing.assert_array_equal(run_program(program, given)[1], np.ones(3))
    built, _ = node_model("Dropout", [f(3)], {"ratio": 0.3}, 7, outputs=2)
    assert from_model(built, "m", None).outputs


def test_a_version_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_schemas, "VERSIONS", {**onnx_schemas.VERSIONS, "Relu": (6, 13)})
    assert result("Relu", [f(3)], 13).shape == (3,)
    line = refusal(UnsupportedError, "Relu", [f(3)], 14)
    assert "version 14 of Relu is not supported: prism knows 6 to 13" in line


def test_a_function_of_another_operator_set_is_refused() -> None:
    body = [node("Softmax", ["a"], ["b"])]
    built = model([node("F", ["x"], ["y"], domain="own")], {"x": (FLOAT, [2, 3, 4])}, ["y"])
    built.opset_import.append(helper.make_opsetid("own", 1))
    for opset in (11, 18):
        del built.functions[:]
        built.functions.append(helper.make_function("own", "F", ["a"], ["b"], body, [helper.make_opsetid("", opset)]))
        if opset == 18:
            assert from_model(built, "m", None).outputs
            continue
        with pytest.raises(UnsupportedError, match="Softmax is version 11 of itself in one and 13 in the other"):
            from_model(built, "m", None)


def test_the_type_that_the_file_states_for_an_output_is_checked() -> None:
    built = model([node("Shape", ["x"], ["y"])], {"x": (FLOAT, [2])}, ["y"])
    built.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, [1]))
    with pytest.raises(ModelError, match="of type int64"):
        from_model(built, "m", None)


def test_statistics_have_the_type_that_they_are_computed_in() -> None:
    x = f(2, 3).astype(np.float16)
    built, _ = node_model("LayerNormalization", [x, x[0]], {}, 17, outputs=3)
    program = from_model(built, "m", None)
    assert [program.tensor(t).dtype for t in program.outputs] == [DType.FLOAT16, DType.FLOAT32, DType.FLOAT32]


def test_which_symbolic_dimensions_are_1_is_not_guessed() -> None:
    built = model([node("Squeeze", ["x"], ["y"])], {"x": (FLOAT, ["n", 1])}, ["y"])
    with pytest.raises(UnsupportedError, match="Squeeze without axes"):
        from_model(built, "m", None)


# Nothing is dropped


def test_what_a_translator_does_not_look_at_is_refused() -> None:
    x = OnnxValue((3,), DType.FLOAT32, tensor="x")

    def made(*reads: str, operands: int, results: int = 1, **attributes: Any) -> None:
        n = Node("Op", "n", "m.onnx, node 'n'", 1, (x, x, None), ("y", "z"), Given({"mode": "fast", **attributes}))
        for name in reads:
            n.attributes.get(name)
        for place in range(operands):
            n.optional(place)
        onnx_schemas.check_all_read(n, {"mode": "fast"}, results)

    made(operands=2, results=2)
    made("sharp", operands=2, results=2, sharp=1)
    calls: dict[str, Callable[[], None]] = {
        "operand 1": lambda: made(operands=1, results=2),
        "attribute sharp = 1": lambda: made(operands=2, results=2, sharp=1),
        "attribute mode = slow": lambda: made(operands=2, results=2, mode="slow"),
        "result 1": lambda: made(operands=2, results=1),
    }
    for line, call in calls.items():
        with pytest.raises(UnsupportedError, match=line):
            call()


def test_statistics_of_each_place_are_not_those_of_each_channel() -> None:
    x = f(2, 3, 4)
    assert "spatial = 0" in refusal(UnsupportedError, "BatchNormalization", [x, *[f(3)] * 4], 8, spatial=0)
    refusal(ShapeError, "BatchNormalization", [x, *[f(3, 4)] * 4], 8)


def test_results_without_a_translation_are_refused() -> None:
    line = refusal(UnsupportedError, "BatchNormalization", [f(2, 3), *[f(3)] * 4], 9, outputs=5)
    assert "result 1 of BatchNormalization" in line


# Types


def test_operands_have_the_types_of_the_schema() -> None:
    assert "does not take int64" in refusal(ModelError, "Exp", [np.arange(3)])
    assert "does not take bool" in refusal(ModelError, "Add", [np.ones(3, bool), np.ones(3, bool)])
    assert "float32" in refusal(ModelError, "Add", [f(3), np.arange(3)])
    assert "operand 2" in refusal(ModelError, "Where", [np.ones(3, bool), f(3), np.arange(3)])


CASES: list[tuple[str, Sequence[np.ndarray], dict[str, Any], Any]] = [
    ("Add", [i8([100, -100]), i8([100, -100])], {}, [-56, 56]),
    ("Sub", [u8([3, 200]), u8([5, 100])], {}, [254, 100]),
    ("Mul", [i8([16, -128]), i8([16, -1])], {}, [0, -128]),
    ("Mul", [u8([16, 255]), u8([17, 255])], {}, [16, 1]),
    ("Neg", [i8([-128, 5])], {}, [-128, -5]),
    ("Abs", [i8([-128, 5])], {}, [-128, 5]),
    ("Add", [i32([2**31 - 1]), i32([1])], {}, [-(2**31)]),
    ("ReduceSum", [i32([2**31 - 1, 2**31 - 1, 5])], {"keepdims": 0}, 3),
    ("Div", [i32([-7, 7, 49, -49, 6]), i32([2, -2, 49, 49, 7])], {}, [-3, -3, 1, -1, 0]),
    ("Div", [u8([255, 49, 48]), u8([2, 49, 49])], {}, [127, 1, 0]),
    ("Mod", [i64([-7, 7, -7, 6]), i64([3, -3, -3, 3])], {}, [2, -2, -1, 0]),
    ("Mod", [i64([-7, 7, -7, 6]), i64([3, -3, -3, 3])], {"fmod": 1}, [-1, 1, -1, 0]),
    ("Pow", [i32([-3, 2]), i32([3, 5])], {}, None),
    ("Cast", [f32([-2.7, 2.7, -0.5])], {"to": TensorProto.INT32}, [-2, 2, 0]),
    ("Cast", [f32([300.7, 255.0, 3.9])], {"to": TensorProto.UINT8}, [44, 255, 3]),
    ("Cast", [i64([300, -1, 2**31])], {"to": TensorProto.INT8}, [44, -1, 0]),
    ("Cast", [i32([-1, 256, 5])], {"to": TensorProto.UINT8}, [255, 0, 5]),
    ("Cast", [i32([-1, 0, 256])], {"to": TensorProto.BOOL}, [1, 0, 1]),
    ("Cast", [f32([0.2, -0.0, np.nan])], {"to": TensorProto.BOOL}, [1, 0, 1]),
    ("Max", [i8([-128, 5]), i8([127, 4])], {}, [127, 5]),
    ("Relu", [i8([-128, 5])], {}, [0, 5]),
    ("MatMul", [i32([[2**20, 3]]), i32([[2**12], [1]])], {}, None),
]


@pytest.mark.parametrize(("op", "arrays", "attributes", "expected"), CASES, ids=str)
def test_integers_are_what_their_type_stores(
    op: str, arrays: Sequence[np.ndarray], attributes: dict[str, Any], expected: Any
) -> None:
    for fixed in ((), range(1, len(arrays)), range(len(arrays))):
        try:
            found = result(op, arrays, 18, fixed, **attributes)
        except UnsupportedError:
            # Only what may be too large for float64 is refused.
            assert expected is None
            continue
        if expected is not None:
            np.testing.assert_array_equal(found, expected)


def test_folded_shapes_are_stored_like_other_integers() -> None:
    built = model(
        [
            node("Cast", ["n"], ["m"], to=TensorProto.INT8),
            node("Add", ["m", "m"], ["s"]),
            node("Cast", ["s"], ["y"], to=TensorProto.FLOAT),
            node("Mul", ["x", "y"], ["z"]),
        ],
        {"x": (FLOAT, [1])},
        ["z"],
        {"n": np.array([356])},
    )
    check(built, {"x": np.ones(1, np.float32)})


def test_whole_numbers_that_float64_does_not_have_are_refused() -> None:
    x = np.arange(3)
    assert "2^53" in refusal(UnsupportedError, "Equal", [x, np.array(2**53 + 1)], fixed=[1])
    # As the end of a type's range it says nothing.
    top = np.array(2**63 - 1)
    np.testing.assert_array_equal(result("Clip", [x, np.array(1), top], fixed=[1, 2]), [1, 1, 2])
    assert "divided by 0" in refusal(UnsupportedError, "Div", [x, np.array(0)], fixed=[1])
    assert "a power that may be" in refusal(UnsupportedError, "Pow", [x, np.array(-1)], fixed=[1])
    assert "fmod=1" in refusal(UnsupportedError, "Mod", [f(3), f(3)])
    assert "not known to be a whole number" in refusal(UnsupportedError, "ReduceMean", [x])


def test_a_backward_slice_from_before_the_dimension_is_refused() -> None:
    places = [np.array([n]) for n in (-7, -7, 0, -2)]
    assert "starts before" in refusal(UnsupportedError, "Slice", [f(5), *places], fixed=[1, 2, 3, 4])


def test_the_remainder_of_fractions_has_the_sign_of_the_dividend() -> None:
    x, y = f32([-7.5, 7.5, 5.0, -5.0, 4.9, 0.0]), f32([2.0, -2.0, 5.0, 2.5, 5.0, -3.0])
    np.testing.assert_allclose(result("Mod", [x, y], fmod=1), np.fmod(x, y), atol=1e-6)
    assert "may be infinite" in refusal(UnsupportedError, "Mod", [x, f32(np.inf)], fixed=[1], fmod=1)


@pytest.mark.parametrize("equation", ["...ij,...jk->...ik", "...ij,...jk", "i...j,jk...->...ki", "...ij,jk->ik..."])
def test_an_ellipsis_stands_for_dimensions_that_broadcast(equation: str) -> None:
    x, y = f(2, 1, 3, 4), f(4, 5)
    if equation.startswith("..."):
        x, y = f(2, 1, 3, 4), f(2, 4, 5) if equation.count("...") > 2 or "->" not in equation else f(4, 5)
    else:
        x, y = f(3, 2, 4), f(4, 5, 2)
    np.testing.assert_allclose(result("Einsum", [x, y], equation=equation), np.einsum(equation, x, y), atol=1e-5)


def test_a_range_of_fractions_has_a_number_of_elements_that_no_rounding_decides() -> None:
    given = [f32(v) for v in (1.0, 3.0, 0.75)]
    np.testing.assert_allclose(result("Range", given, fixed=[0, 1, 2]), np.array([1.0, 1.75, 2.5]))
    close = [f32(v) for v in (0.0, 0.3, 0.1)]
    assert "depends on how it is rounded" in refusal(UnsupportedError, "Range", close, fixed=[0, 1, 2])


# Rows of nothing


@pytest.mark.parametrize("p", [1, 2])
def test_a_row_of_zeros_has_a_normalisation_of_zeros(p: int) -> None:
    x = np.array([[0.0, 0.0], [3.0, -4.0]], dtype=np.float32)
    length = 7.0 if p == 1 else 5.0
    np.testing.assert_allclose(result("LpNormalization", [x], 22, p=p), x.astype(np.float64) / [[1.0], [length]])


def _attention(mask: np.ndarray | None, *, fixed: bool = False, opset: int = 23, **attributes: Any) -> np.ndarray:
    arrays = [f(1, 2, 4, 8), f(1, 2, 4, 8), f(1, 2, 4, 8), mask]
    return result("Attention", arrays[: 3 + (mask is not None)], opset, [3] if fixed else [], **attributes)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("boolean", [False, True])
def test_a_query_without_keys_has_a_result_of_zeros(fixed: bool, boolean: bool) -> None:
    keep = np.tril(np.ones((4, 4), bool))
    keep[2] = False
    mask = keep if boolean else np.where(keep, np.float32(0), np.float32(-np.inf))
    found = _attention(mask, fixed=fixed)
    assert np.all(found[:, :, 2] == 0)
    assert np.all(np.isfinite(found))
    assert np.all(found[:, :, [0, 1, 3]] != 0)


def test_a_causal_mask_composed_with_another_may_leave_nothing() -> None:
    mask = np.ones((4, 4), bool)
    mask[1, :2] = False
    assert np.all(_attention(mask, is_causal=1)[:, :, 1] == 0)
    assert np.all(_attention(mask)[:, :, 1] != 0)


def test_where_every_query_has_a_key_nothing_is_tested() -> None:
    def tests(arrays: Sequence[Any], fixed: Sequence[int] = (), opset: int = 25, **attributes: Any) -> bool:
        built, _ = node_model("Attention", arrays, attributes, opset, fixed)
        last = from_model(built, "m", None).definitions[-1]
        return any(isinstance(e, Map) and e.op == "where" for e in walk(last.expr))

    q = f(1, 2, 4, 8)
    triangle = np.tril(np.ones((4, 4), bool))
    assert not tests([q, q, q])
    assert not tests([q, q, q], is_causal=1)
    assert not tests([q, q, q], is_causal=1, left_window_size=1)
    assert not tests([q, q, q, triangle], fixed=[3])
    assert not tests([q, q, q, triangle], fixed=[3], is_causal=1)
    assert tests([q, q, q, triangle])
    assert tests([q, q, q, ~triangle], fixed=[3])
    assert tests([q, q[:, :, :1], q[:, :, :1]], left_window_size=1)
    assert tests([q, q, q, None, None, None, np.array([2])])


def test_what_exporters_write_for_queries_without_keys() -> None:
    nodes = [
        node("Where", ["mask", "x", "low"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("IsNaN", ["p"], ["n"]),
        node("Where", ["n", "zero", "p"], ["w"]),
        node("MatMul", ["w", "v"], ["y"]),
    ]
    constants = {"low": np.float32(-np.inf), "zero": np.float32(0)}
    shapes = {"x": (FLOAT, [4, 4]), "mask": (BOOL, [4, 4]), "v": (FLOAT, [4, 3])}
    keep = np.tril(np.ones((4, 4), bool), -1)
    built = model(nodes, shapes, ["y"], {k: np.array(v) for k, v in constants.items()})
    with np.errstate(all="ignore"):
        check(built, {"x": f(4, 4), "mask": keep, "v": f(4, 3)})


def test_a_log_sum_exp_of_what_is_all_masked_is_minus_infinity() -> None:
    nodes = [
        node("Where", ["mask", "x", "low"], ["s"]),
        node("ReduceLogSumExp", ["s", "last"], ["y"], keepdims=0),
        node("ReduceLogSumExp", ["x", "last"], ["z"]),
    ]
    constants = {"low": f32(-np.inf), "last": i64([-1])}
    built = model(nodes, {"x": (FLOAT, [3, 4]), "mask": (BOOL, [3, 4])}, ["y", "z"], constants)
    keep = np.eye(3, 4, dtype=np.bool_)
    keep[1] = False
    # onnx.reference says NaN of such a row, having subtracted its maximum; the text of ONNX says log(0). That is noted.
    program = from_model(built, "m", None)
    assert program.conformance
    x = f(3, 4)
    found = run_program(program, {"x": x, "mask": keep})[0]
    np.testing.assert_allclose(found, [x[0, 0], -np.inf, x[2, 2]])
    # What cannot be infinite has no test in it.
    plain = program.definition(program.outputs[1])
    assert not any(isinstance(e, Map) and e.op == "where" for e in walk(plain.expr))


def test_a_cache_before_the_keys_and_the_windows() -> None:
    q, k, past = f(2, 4, 3, 8), f(2, 2, 3, 8), f(2, 2, 5, 8)
    for attributes in ({"is_causal": 1}, {"left_window_size": 2}, {"left_window_size": 1, "right_window_size": 1}):
        built, given = node_model("Attention", [q, k, k, None, past, past], attributes, 25, outputs=3)
        check(built, given)
    padded, given = node_model("Attention", [q, k, k, None, None, None, np.array([1, 3])], {"is_causal": 1}, 24)
    program = check(padded, given)
    assert np.all(run_program(program, given)[0][0, :, :2] == 0)
    assert "one key" in refusal(UnsupportedError, "Attention", [q, k, k, np.ones((3, 1), bool)], 24)


# Random graphs


KINDS = {
    I8: TensorProto.INT8,
    U8: TensorProto.UINT8,
    I32: TensorProto.INT32,
    I64: INT64,
    np.bool_: BOOL,
    np.float32: FLOAT,
}
ANY = ("Cast", "Cast", "Where", "Transpose")
NUMBERS = ("Add", "Sub", "Mul", "Abs", "Max", "Min", "Div", "Less", "Equal", "Clip", *ANY)
WIDE = ("CumSum", "ReduceSum", "ReduceMax", "Mod", "Neg", "Pow", "Trilu", "Sign")
TRUTHS = ("And", "Or", "Xor", "Not", *ANY)


def _random_graph(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A chain of operations on small integers, truth values and a few fractions, all of shape [4, 4]."""
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, np.ndarray] = {}
    values: list[tuple[str, Any]] = []

    def draw(kind: Any) -> np.ndarray:
        if kind is np.bool_:
            return rng.random((4, 4)) < 0.5
        if kind is np.float32:
            return (rng.standard_normal((4, 4)) * 9).astype(np.float32)
        ends = (np.iinfo(kind).min, np.iinfo(kind).max) if kind in (I8, U8) else (-99, 99)
        return rng.integers(*ends, (4, 4), endpoint=True).astype(kind)

    def constant(array: Any, kind: Any) -> str:
        constants[f"c{len(constants)}"] = np.array(array, dtype=kind)
        return f"c{len(constants) - 1}"

    given = {f"x{n}": draw(list(KINDS)[int(rng.integers(len(KINDS)))]) for n in range(3)}
    values += [(name, a.dtype.type) for name, a in given.items()]
    for _ in range(int(rng.integers(2, 7))):
        name, kind = values[int(rng.integers(len(values)))]
        other = str(rng.choice([v for v, k in values if k is kind]))
        narrow = kind in (I8, U8)
        op = str(rng.choice(TRUTHS if kind is np.bool_ else NUMBERS if narrow else NUMBERS + WIDE))
        result, operands = kind, [name]
        attributes: dict[str, Any] = {}
        match op:
            case "Less" | "Equal":
                operands, result = [name, other], np.bool_
            case "Div" | "Mod" | "Pow":
                if op == "Mod" and kind is np.float32:
                    continue
                numbers = [0, 1, 2, 3] if op == "Pow" else [1, 2, 3, 49] if kind is U8 else [-49, -3, 1, 2, 49]
                operands.append(constant(rng.choice(numbers), kind))
                attributes = {"fmod": int(rng.integers(2))} if op == "Mod" else {}
            case "Clip":
                operands.append(constant(rng.integers(3), kind))
            case "CumSum":
                operands.append(constant(rng.integers(2), I64))
                attributes = {"exclusive": int(rng.integers(2)), "reverse": int(rng.integers(2))}
            case "ReduceSum" | "ReduceMax":
                nodes.append(node(op, [name, constant([1], I64)], [f"r{len(nodes)}"]))
                operands, op = [name, f"r{len(nodes) - 1}"], "Sub"
            case "Cast":
                result = list(KINDS)[int(rng.integers(len(KINDS)))]
                attributes = {"to": KINDS[result]}
            case "Where":
                operands = [constant(rng.random((4, 4)) < 0.5, np.bool_), name, other]
            case "Add" | "Sub" | "Mul" | "Max" | "Min" | "And" | "Or" | "Xor":
                operands = [name, other]
            case _:
                pass
        values.append((f"v{len(values)}", result))
        nodes.append(node(op, operands, [values[-1][0]], **attributes))
    if not nodes:
        nodes.append(node("Identity", [values[-1][0]], ["v"]))
    shapes = {name: (KINDS[a.dtype.type], [4, 4]) for name, a in given.items()}
    return model(nodes, shapes, [nodes[-1].output[0]], constants), given


def _compare_with_reference(seed: int) -> bool:
    """Whether a random graph is read; it is as `onnx.reference` has it, then."""
    built, given = _random_graph(seed)
    try:
        program = from_model(built, "random", None)
    except UnsupportedError:
        return False
    with np.errstate(all="ignore"):
        (expected,) = ReferenceEvaluator(built).run(None, given)
    assert isinstance(expected, np.ndarray | np.generic)
    (found,) = run_program(program, {t.name: given[t.name] for t in program.inputs if t.name in given})
    assert program.tensor(program.outputs[0]).dtype.value == expected.dtype.name, seed
    if expected.dtype == np.float32:
        np.testing.assert_allclose(found, expected.astype(np.float64), rtol=1e-4, atol=1e-3, err_msg=str(seed))
    else:
        np.testing.assert_array_equal(found, expected.astype(np.float64), err_msg=str(seed))
    return True


def test_random_graphs_of_integers() -> None:
    read = sum(_compare_with_reference(seed) for seed in range(150))
    assert read > 110


@pytest.mark.parametrize("seed", [1701, 2131], ids=["the opposite of the least", "a difference of squares"])
def test_integers_beyond_what_float64_holds_are_no_misreading(seed: int) -> None:
    """Programs take 64 bits for enough; the check compares in float64."""
    assert _compare_with_reference(seed)


@pytest.mark.slow
def test_many_random_graphs_of_integers() -> None:
    read = sum(_compare_with_reference(seed) for seed in range(150, 6000))
    assert read > 4000
