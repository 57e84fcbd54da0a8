"""Whole ONNX graphs: decomposed norms, symbolic shapes, masks that become predicates, exported attention."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from formulas import evaluate_formula
from frontend_onnx_models import BOOL, FLOAT, INT64, check, model, run_program
from onnx import helper
from quick import slow_but

from prism.errors import ModelError, UnsupportedError
from prism.frontend.onnx.reader import MOST_PLACES, from_model, load
from prism.frontend.sizes import not_negative
from prism.program import extents, spec
from prism.program.evaluate import bind, evaluate
from prism.program.extents import symbol
from prism.program.inline import inline
from prism.program.nodes import DType, Position, Program, Read, SymbolRange, walk

RNG = np.random.default_rng(3)
node = helper.make_node


def f(*shape: int) -> np.ndarray:
    """Signed values."""
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    """A list of integers."""
    return np.array(values, dtype=np.int64)


def check_inlined(program: Program, given: dict[str, np.ndarray]) -> None:
    """The inlined formula of every output computes what the program does."""
    tensors = {**program.weights, **given}
    arrays = {t.name: np.asarray(tensors[t.name], dtype=np.float64) for t in program.inputs}
    binding = bind(program.inputs, {name: a.shape for name, a in arrays.items()})
    for formula, expected in zip(inline(program), run_program(program, given), strict=True):
        assert all(i.is_affine() for e in walk(formula.expr) if isinstance(e, Read) for i in e.index)
        found = evaluate_formula(formula, arrays, binding)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_decomposed_rms_norm_keeps_eps_and_mean() -> None:
    nodes = [
        node("Pow", ["x", "two"], ["sq"]),
        node("ReduceMean", ["sq"], ["ms"], axes=[-1]),
        node("Add", ["ms", "eps"], ["shifted"]),
        node("Sqrt", ["shifted"], ["root"]),
        node("Reciprocal", ["root"], ["inv"]),
        node("Mul", ["x", "inv"], ["normed"]),
        node("Mul", ["weight", "normed"], ["y"]),
    ]
    constants: dict[str, Any] = {"two": np.float32(2).reshape(()), "eps": np.array([1e-3], np.float32), "weight": f(8)}
    built = model(nodes, {"x": (FLOAT, ["seq", 8])}, ["y"], constants, opset=17)
    program = check(built, {"x": f(3, 8)})
    text = str(program)
    assert "0.125" in text
    assert "0.001" in text
    assert "pow" not in text
    assert [t.name for t in program.inputs] == ["x", "weight"]
    assert set(program.weights) == {"weight"}
    assert program.operator_count == 7
    check_inlined(program, {"x": f(5, 8)})


def test_decomposed_layer_norm() -> None:
    nodes = [
        node("ReduceMean", ["x", "last"], ["mean"]),
        node("Sub", ["x", "mean"], ["d"]),
        node("Mul", ["d", "d"], ["sq"]),
        node("ReduceMean", ["sq", "last"], ["var"]),
        node("Add", ["var", "eps"], ["shifted"]),
        node("Sqrt", ["shifted"], ["root"]),
        node("Div", ["d", "root"], ["n"]),
        node("Mul", ["n", "scale"], ["s"]),
        node("Add", ["s", "bias"], ["y"]),
    ]
    constants: dict[str, Any] = {"last": ints(-1), "eps": np.float32(1e-5).reshape(()), "scale": f(6), "bias": f(6)}
    built = model(nodes, {"x": (FLOAT, [2, "n", 6])}, ["y"], constants)
    program = check(built, {"x": f(2, 5, 6)})
    assert "recip" in str(program)


def head_split() -> onnx.ModelProto:
    """x [batch, seq, 24] as [batch, 4, seq, 6] and back, its shapes computed from Shape."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["b"]),
        node("Gather", ["s", "one"], ["l"]),
        node("Gather", ["s", "two"], ["hidden"]),
        node("Div", ["hidden", "heads"], ["size"]),
        *[node("Unsqueeze", [n, "axis0"], [f"{n}1"]) for n in ("b", "l", "heads", "size", "hidden")],
        node("Concat", ["b1", "l1", "heads1", "size1"], ["split"], axis=0),
        node("Reshape", ["x", "split"], ["four"]),
        node("Transpose", ["four"], ["by_head"], perm=[0, 2, 1, 3]),
        node("Softmax", ["by_head"], ["p"], axis=2),
        node("Transpose", ["p"], ["back"], perm=[0, 2, 1, 3]),
        node("Concat", ["b1", "l1", "hidden1"], ["merge"], axis=0),
        node("Reshape", ["back", "merge"], ["y"]),
    ]
    constants = {n: np.array(v, dtype=np.int64) for n, v in {"zero": 0, "one": 1, "two": 2, "heads": 4}.items()}
    return model(nodes, {"x": (FLOAT, ["batch", "seq", 24])}, ["y"], {**constants, "axis0": ints(0)})


def test_shapes_computed_from_symbols_fold() -> None:
    program = check(head_split(), {"x": f(2, 5, 24)})
    assert [d.name for d in program.definitions] == ["four", "by_head", "p", "back", "y"]
    assert program.definition("by_head").tensor.shape == (symbol("batch"), 4, symbol("seq"), 6)
    assert program.operator_count == 1
    assert {n: (r.low, r.high, r.hint) for n, r in program.ranges.items()} == {
        "batch": (1, 32768, 4),
        "seq": (1, 32768, 1024),
    }
    check_inlined(program, {"x": f(3, 4, 24)})


def test_equal_extents_do_not_confuse_axes() -> None:
    check(head_split(), {"x": f(4, 4, 24)})


def test_dynamic_expand_folds() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("ConstantOfShape", ["rank"], ["ones"], value=onnx.numpy_helper.from_array(ints(1))),
        node("Mul", ["ones", "minus"], ["all_minus"]),
        node("Equal", ["s", "all_minus"], ["same"]),
        node("Where", ["same", "ones", "s"], ["target"]),
        node("Expand", ["w", "target"], ["e"]),
        node("Add", ["x", "e"], ["y"]),
    ]
    built = model(nodes, {"x": (FLOAT, ["batch", 4])}, ["y"], {"rank": ints(2), "minus": ints(-1), "w": f(1, 4)})
    check(built, {"x": f(3, 4)})


@pytest.mark.parametrize("kind", ["trilu", "range"])
def test_causal_masks_become_predicates(kind: str) -> None:
    if kind == "trilu":
        mask = [
            node("Concat", ["n", "n"], ["square"], axis=0),
            node("Expand", ["one", "square"], ["full"]),
            node("Trilu", ["full"], ["lower"], upper=0),
            node("Equal", ["lower", "zero"], ["future"]),
            node("Where", ["future", "inf", "zero"], ["mask"]),
            node("Add", ["x", "mask"], ["y"]),
        ]
    else:
        mask = [
            node("Squeeze", ["n"], ["n0"]),
            node("Range", ["start", "n0", "step"], ["positions"]),
            node("Unsqueeze", ["positions", "axis1"], ["rows"]),
            node("LessOrEqual", ["positions", "rows"], ["past"]),
            node("Where", ["past", "x", "inf"], ["y"]),
        ]
    nodes = [node("Shape", ["x"], ["n"], start=-1), *mask]
    constants = {
        "one": np.float32(1).reshape(()),
        "zero": np.float32(0).reshape(()),
        "inf": np.array(-np.inf, dtype=np.float32),
        "start": np.array(0, dtype=np.int64),
        "step": np.array(1, dtype=np.int64),
        "axis1": ints(1),
    }
    program = check(model(nodes, {"x": (FLOAT, ["n", "n"])}, ["y"], constants), {"x": f(4, 4)})
    (only,) = program.definitions
    assert sum(isinstance(e, Position) for e in walk(only.expr)) == 2
    assert not program.weights


def test_a_constant_triangular_mask_is_a_comparison_of_positions() -> None:
    mask = np.triu(np.full((4, 4), -np.inf, dtype=np.float32), 1)
    program = check(model([node("Add", ["x", "m"], ["y"])], {"x": (FLOAT, [4, 4])}, ["y"], {"m": mask}), {"x": f(4, 4)})
    assert not program.weights
    assert "(@(i1) <= @(i0))" in str(program)


def test_a_constant_of_two_values_without_a_rule_stays_an_input() -> None:
    mask = np.random.default_rng(0).random((4, 4)) > 0.5
    nodes = [node("Where", ["m", "x", "zero"], ["y"])]
    constants = {"m": mask, "zero": np.zeros((), np.float32)}
    program = check(model(nodes, {"x": (FLOAT, [4, 4])}, ["y"], constants), {"x": f(4, 4)})
    assert np.array_equal(np.asarray(program.weights["m"]), mask)


def test_a_slice_up_to_a_symbol_narrows_its_range() -> None:
    nodes = [
        node("Shape", ["x"], ["n"], start=0, end=1),
        node("Slice", ["table", "zero", "n", "zero"], ["rows"]),
        node("Mul", ["x", "rows"], ["y"]),
    ]
    built = model(nodes, {"x": (FLOAT, ["seq", 6])}, ["y"], {"table": f(64, 6), "zero": ints(0)})
    program = check(built, {"x": f(5, 6)})
    assert program.ranges["seq"].high == 64
    assert program.ranges["seq"].hint == 64


def test_an_embedding_of_positions_is_a_slice() -> None:
    nodes = [
        node("Shape", ["x"], ["n"], start=0, end=1),
        node("Squeeze", ["n"], ["n0"]),
        node("Range", ["zero", "n0", "one"], ["ids"]),
        node("Gather", ["table", "ids"], ["rows"]),
        node("Add", ["x", "rows"], ["y"]),
    ]
    constants = {"table": f(64, 6), "zero": np.array(0, dtype=np.int64), "one": np.array(1, dtype=np.int64)}
    program = check(model(nodes, {"x": (FLOAT, ["seq", 6])}, ["y"], constants), {"x": f(5, 6)})
    assert program.definition("rows").view
    assert program.ranges["seq"].high == 64


def test_grouped_query_expansion_and_rotary_halves() -> None:
    """What exporters write of repeat_kv and rotate_half at opset 18."""
    nodes = [
        node("Slice", ["k", "i0", "i3", "last"], ["k1"]),
        node("Slice", ["k", "i3", "imax", "last"], ["k2"]),
        node("Neg", ["k2"], ["k2n"]),
        node("Concat", ["k2n", "k1"], ["turned"], axis=-1),
        node("Mul", ["k", "cos"], ["kc"]),
        node("Mul", ["turned", "sin"], ["ks"]),
        node("Add", ["kc", "ks"], ["rotated"]),
        node("Unsqueeze", ["rotated", "i2"], ["five"]),
        node("Expand", ["five", "expanded"], ["wide"]),
        node("Reshape", ["wide", "merged"], ["keys"]),
        node("Transpose", ["keys"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["y"]),
    ]
    constants = {
        "i0": ints(0), "i2": ints(2), "i3": ints(3), "imax": ints(2**63 - 1), "last": ints(-1),
        "expanded": ints(2, 2, 3, 5, 6), "merged": ints(0, 6, -1, 6),
    }  # fmt: skip
    shapes = {"q": (2, 6, 1, 6), "k": (2, 2, 5, 6), "cos": (5, 6), "sin": (5, 6)}
    given = {n: f(*s) for n, s in shapes.items()}
    program = check(model(nodes, {n: (FLOAT, s) for n, s in shapes.items()}, ["y"], constants), given)
    check_inlined(program, given)


def test_function_attention_inlines() -> None:
    shapes = {"q": (FLOAT, ["b", "n", 32]), "k": (FLOAT, ["b", "m", 16]), "v": (FLOAT, ["b", "m", 16])}
    nodes = [node("Attention", ["q", "k", "v"], ["y"], q_num_heads=4, kv_num_heads=2, is_causal=1)]
    program = check(
        model(nodes, shapes, ["y"], opset=23), given := {"q": f(2, 3, 32), "k": f(2, 5, 16), "v": f(2, 5, 16)}
    )
    assert program.operator_count == 3
    check_inlined(program, given)


@pytest.mark.parametrize("op", ["GroupNormalization", "RotaryEmbedding"])
def test_grouped_indices_inline(op: str) -> None:
    if op == "GroupNormalization":
        given = {"x": f(2, 6, 5), "s": f(6), "b": f(6)}
        attributes: dict[str, Any] = {"num_groups": 2}
    else:
        given = {"x": f(2, 5, 32), "s": f(2, 5, 4), "b": f(2, 5, 4)}
        attributes = {"num_heads": 4, "interleaved": 1}
    built = model(
        [node(op, ["x", "s", "b"], ["y"], **attributes)], {n: (FLOAT, a.shape) for n, a in given.items()}, ["y"],
        opset=23,
    )  # fmt: skip
    check_inlined(check(built, given), given)


def test_old_group_norm_scales_by_group() -> None:
    given = {"x": f(2, 6, 5), "s": f(2), "b": f(2)}
    built = model(
        [node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)],
        {n: (FLOAT, a.shape) for n, a in given.items()}, ["y"], opset=18,
    )  # fmt: skip
    (found,) = run_program(from_model(built, "m", None), given)
    groups = given["x"].reshape(2, 2, 15).astype(np.float64)
    normal = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    expected = (normal * given["s"][None, :, None] + given["b"][None, :, None]).reshape(2, 6, 5)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_l1_norm_of_signed_values() -> None:
    x = f(2, 3)
    built = model([node("LpNormalization", ["x"], ["y"], p=1)], {"x": (FLOAT, [2, 3])}, ["y"])
    (found,) = run_program(from_model(built, "m", None), {"x": x})
    np.testing.assert_allclose(found, x / np.abs(x).sum(-1, keepdims=True), rtol=1e-6)


def test_names_become_identifiers_and_stay_distinct() -> None:
    nodes = [node("Mul", ["a.b", "a_b"], ["class"]), node("Neg", ["class"], ["1out"])]
    program = from_model(
        model(nodes, {"a.b": (FLOAT, [2]), "a_b": (FLOAT, [2])}, ["1out", "class"]), "my-net.onnx", None
    )
    assert program.name == "my_net"
    assert [t.name for t in program.inputs] == ["a_b", "a_b_1"]
    assert program.outputs == ("_1out", "class_")
    assert program.definitions[0].origin == "Mul class"


def test_outputs_that_are_inputs_constants_or_repeated() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("Neg", ["x"], ["y"]), node("Identity", ["y"], ["z"])]
    built = model(nodes, {"x": (FLOAT, ["n", 3])}, ["s", "x", "y", "z"])
    program = check(built, {"x": f(2, 3)})
    assert len(set(program.outputs)) == 4


def test_dead_nodes_and_unused_weights_are_dropped() -> None:
    nodes = [node("MatMul", ["x", "w"], ["dead"]), node("Shape", ["dead"], ["s"]), node("Expand", ["one", "s"], ["y"])]
    built = model(nodes, {"x": (FLOAT, ["n", 3])}, ["y"], {"w": f(3, 5), "one": f(1)})
    program = check(built, {"x": f(2, 3)})
    assert [d.name for d in program.definitions] == ["y"]
    assert not program.weights


def test_bool_input_mask() -> None:
    nodes = [node("Where", ["m", "x", "inf"], ["y"])]
    built = model(nodes, {"m": (BOOL, ["n"]), "x": (FLOAT, [2, "n"])}, ["y"], {"inf": np.array(-1e4, np.float32)})
    program = check(built, {"m": np.array([True, False, True]), "x": f(2, 3)})
    assert program.inputs[0].dtype == DType.BOOL


def test_half_types_are_kept_and_bfloat16_weights_are_float32() -> None:
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.BFLOAT16, [2], [1.5, -2.0])
    built = model([node("Mul", ["x", "w"], ["y"])], {"x": (onnx.TensorProto.BFLOAT16, [2])}, ["y"])
    built.graph.initializer.append(weight)
    program = from_model(built, "m", None)
    assert program.definitions[0].dtype == DType.BFLOAT16
    assert np.array_equal(np.asarray(program.weights["w"]), np.array([1.5, -2.0], np.float32))


def test_dimension_arithmetic_and_unnamed_dimensions() -> None:
    built = model(
        [node("Concat", ["x", "x"], ["c"], axis=0), node("Add", ["c", "z"], ["y"])],
        {"x": (FLOAT, ["s", None]), "z": (FLOAT, ["2*s", 1])},
        ["y"],
    )
    program = check(built, {"x": f(3, 4), "z": f(6, 1)})
    assert set(program.ranges) == {"s", "x_d1"}


@pytest.mark.parametrize("n_is_said", [True, False])
def test_dimensions_that_are_rounded_sizes(n_is_said: bool) -> None:
    """Of an `x[n]` beside them they are made of `n`; by themselves of the rounded size, which is a symbol then."""
    nodes = [
        node("Slice", ["v", "zero", "minus_one", "zero"], ["head"]),
        node("Add", ["head", "z"], ["y"]),
        *([node("ReduceMax", ["x"], ["m"], keepdims=0)] if n_is_said else []),
    ]
    shapes = {"v": (FLOAT, ["floor(n/2)", 3]), "z": (FLOAT, ["floor(n/2) - 1", 3])}
    given = {"v": f(3, 3), "z": f(2, 3)}
    if n_is_said:
        shapes, given = {"x": (FLOAT, ["n"]), **shapes}, {"x": f(7), **given}
    constants = {"zero": ints(0), "minus_one": ints(-1)}
    program = check(model(nodes, shapes, ["y", *["m"] * n_is_said], constants), given)
    expected = extents.floordiv(symbol("n"), 2) if n_is_said else symbol("floor_n_2_")
    assert program.tensor("y").shape == (expected - 1, 3)
    assert {name: r.low for name, r in program.ranges.items()} == ({"n": 4} if n_is_said else {"floor_n_2_": 2})


def test_lengths_that_may_be_negative_are_of_inputs_that_are_long_enough() -> None:
    """As convolutions before a transformer leave them: `n // 10 - 1` places, and a slice that leaves out the last."""
    nodes = [
        node("Shape", ["x"], ["n"], end=1),
        node("Div", ["n", "five"], ["short"]),
        node("Div", ["short", "two"], ["shorter"]),
        node("Slice", ["x", "zero", "shorter", "zero"], ["v"]),
        node("Slice", ["v", "zero", "minus_one", "zero"], ["head"]),
        node("Div", ["n", "ten"], ["tenth"]),
        node("Sub", ["tenth", "one"], ["many"]),
        node("Squeeze", ["many"], ["limit"]),
        node("Range", ["start", "limit", "step"], ["places"]),
        node("Cast", ["places"], ["at"], to=FLOAT),
        node("Mul", ["head", "at"], ["y"]),
    ]
    constants = {name: ints(v) for name, v in (("zero", 0), ("one", 1), ("two", 2), ("five", 5), ("ten", 10))}
    constants |= {"minus_one": ints(-1), "start": np.array(0), "step": np.array(1)}
    program = check(model(nodes, {"x": (FLOAT, ["n"])}, ["y"], constants), {"x": f(47)})
    assert program.tensor("y").shape == (extents.floordiv(symbol("n"), 10) - 1,)
    assert program.ranges["n"].low == 10


def test_dimensions_whose_names_say_nothing_need_not_be_equal() -> None:
    built = model(
        [node("ReduceMax", ["x"], ["m"], keepdims=1, axes=[0]), node("Sub", ["x", "m"], ["y"])],
        {"x": (FLOAT, ["?", "?", "-1", "-1"])},
        ["y"],
        opset=17,
    )
    program = check(built, {"x": f(3, 4, 5, 2)})
    assert set(program.ranges) == {f"x_d{n}" for n in range(4)}


def test_local_functions_are_inlined() -> None:
    body = helper.make_function(
        "custom", "Silu", ["x"], ["y"], [node("Sigmoid", ["x"], ["g"]), node("Mul", ["x", "g"], ["y"])],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    built = model([node("Silu", ["x"], ["y"], domain="custom")], {"x": (FLOAT, [3])}, ["y"])
    built.functions.append(body)
    built.opset_import.append(helper.make_opsetid("custom", 1))
    assert from_model(built, "m", None).operator_count == 2
    check(built, {"x": f(3)})


def test_what_a_call_of_a_function_leaves_out_is_the_functions_default() -> None:
    """Also of calls within functions; onnx's inliner forgets it."""
    inner = node("LeakyRelu", ["x"], ["y"])
    inner.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    sets, slope = [helper.make_opsetid("", 18), helper.make_opsetid("custom", 1)], helper.make_attribute("slope", 0.3)
    leaky = helper.make_function("custom", "Leaky", ["x"], ["y"], [inner], sets, attribute_protos=[slope])
    calls = [node("Leaky", ["x"], ["h"], domain="custom"), node("Leaky", ["h"], ["y"], domain="custom", slope=0.7)]
    twice = helper.make_function("custom", "Twice", ["x"], ["y"], calls, sets)
    built = model([node("Twice", ["x"], ["y"], domain="custom")], {"x": (FLOAT, [3])}, ["y"])
    built.functions.extend([leaky, twice])
    built.opset_import.append(helper.make_opsetid("custom", 1))
    x = np.array([-2.0, 0.5, -1.0], np.float32)
    found = evaluate(from_model(built, "m", None), {"x": x})["y"]
    np.testing.assert_allclose(found, np.where(x < 0, 0.21 * x, x), rtol=1e-6)


def test_the_steps_of_a_loop_are_over_the_ranges_of_its_program() -> None:
    """Hints are halved until they fit: without that, many symbols make a draw of any size."""
    built = model(
        [node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4)],
        {"x": (FLOAT, ["t", "n", 3])},
        ["y"],
        {"w": f(1, 16, 3), "r": f(1, 16, 4)},
    )
    program = from_model(built, "m", None, check=False)
    assert program.loops
    assert program.hints["t"] * program.hints["n"] <= MOST_PLACES
    spec.check(program)
    spec.check(program.over({n: replace(r, high=64, hint=7, open=False) for n, r in program.ranges.items()}))


def test_a_length_at_its_least_does_not_keep_others_from_being_halved() -> None:
    """As of audio, whose first convolution takes no fewer than 400 samples; reading it did not end."""
    built = model(
        [node("Conv", ["x", "w"], ["y"], strides=[160])],
        {"x": (FLOAT, ["b", 1, "samples"])},
        ["y"],
        {"w": f(2, 1, 400)},
    )
    program = from_model(built, "m", None, check=False)
    assert program.ranges["samples"].low == program.hints["samples"] == 400
    assert program.hints["b"] * 400 <= MOST_PLACES


def test_external_data_is_read_beside_the_file(tmp_path: Path) -> None:
    w = f(4, 4)
    built = model([node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, ["n", 4])}, ["y"], {"w": w})
    onnx.save(built, str(tmp_path / "big.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    program = load(tmp_path / "big.onnx")
    assert program.name == "big"
    assert np.array_equal(np.asarray(program.weights["w"]), w)


@pytest.mark.parametrize(
    ("opset", "dynamic"), slow_but([(18, True), (23, False)], [(o, d) for o in (18, 23) for d in (False, True)])
)
def test_exported_attention(tmp_path: Path, opset: int, dynamic: bool) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

    class Attention(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(24, 72, bias=False)
            self.out = torch.nn.Linear(24, 24)

        def forward(self, x: Any) -> Any:
            batch, length, hidden = x.shape
            q, k, v = (t.view(batch, length, 4, 6).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(batch, length, hidden))

    torch.manual_seed(0)
    module, x = Attention().eval(), torch.randn(2, 5, 24)
    dims = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("seq", max=512)},) if dynamic else None
    file = tmp_path / "attention.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), file, dynamo=True, opset_version=opset, dynamic_shapes=dims, verbose=False)
    program = load(file)
    assert bool(program.ranges) == dynamic
    shorter = torch.randn(3, 7, 24) if dynamic else x
    (found,) = run_program(program, {"x": shorter.numpy()})
    np.testing.assert_allclose(found, module(shorter).detach().numpy(), rtol=1e-4, atol=1e-5)
    check_inlined(program, {"x": shorter.numpy()})


def test_token_ids_as_an_input_type() -> None:
    built = model([node("Cast", ["i"], ["y"], to=1)], {"i": (INT64, ["n"])}, ["y"])
    check(built, {"i": ints(3, -2, 7)})


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integer_division_of_positions(op: str) -> None:
    nodes = [
        node("Shape", ["x"], ["n"]),
        node("Squeeze", ["n"], ["n0"]),
        node("Range", ["zero", "n0", "one"], ["ids"]),
        node(op, ["ids", "three"], ["part"]),
        node("Cast", ["part"], ["number"], to=FLOAT),
        node("Mul", ["x", "number"], ["y"]),
    ]
    constants = {n: np.array(v, dtype=np.int64) for n, v in {"zero": 0, "one": 1, "three": 3}.items()}
    check(model(nodes, {"x": (FLOAT, ["n"])}, ["y"], constants), {"x": f(8)})


def test_slices_of_a_symbolic_dimension() -> None:
    nodes = [
        node("Slice", ["x", "zero", "minus_one"], ["head"]),
        node("Slice", ["x", "one", "big"], ["tail"]),
        node("Add", ["head", "tail"], ["y"]),
        node("Slice", ["x", "minus_one", "low", "zero", "minus_one"], ["flipped"]),
    ]
    constants = {"zero": ints(0), "one": ints(1), "minus_one": ints(-1), "big": ints(2**63 - 1), "low": ints(-(2**63))}
    program = check(model(nodes, {"x": (FLOAT, ["n", 3])}, ["y", "flipped"], constants), {"x": f(5, 3)})
    assert program.definition("y").tensor.shape == (symbol("n") - 1, 3)


@pytest.mark.parametrize("fmod", [0, 1])
def test_a_length_is_padded_to_a_multiple_and_cut_to_one(fmod: int) -> None:
    """As scans by chunks and windows are exported: (4 - n % 4) % 4 rows of padding, and the first 4 * (n // 4)."""
    nodes = [
        node("Shape", ["x"], ["n"], end=1),
        node("Mod", ["n", "four"], ["over"], fmod=fmod),
        node("Sub", ["four", "over"], ["less"]),
        node("Mod", ["less", "four"], ["rest"], fmod=fmod),
        node("Concat", ["none", "rest", "zero"], ["pads"], axis=0),
        node("Pad", ["x", "pads"], ["padded"]),
        node("Reshape", ["padded", "chunks"], ["chunked"]),
        node("ReduceSum", ["chunked", "one"], ["sums"], keepdims=0),
        node("Sub", ["n", "over"], ["whole"]),
        node("Slice", ["x", "zero", "whole", "zero"], ["cut"]),
        node("ReduceSum", ["cut", "zero"], ["total"], keepdims=0),
    ]
    constants = {"four": ints(4), "none": ints(0, 0), "zero": ints(0), "one": ints(1), "chunks": ints(-1, 4, 3)}
    built = model(nodes, {"x": (FLOAT, ["n", 3])}, ["sums", "total"], constants)
    for n in (4, 6, 9):
        program = check(built, {"x": f(n, 3)})
    assert [str(e) for e in program.tensor("sums").shape] == ["ceiling(n/4)", "3"]


def test_what_is_known_of_rounded_sizes_is_so() -> None:
    n, m = symbol("n"), symbol("m")
    assert extents.at_most(4 * extents.floordiv(n, 4), n)
    assert extents.at_most(n - 1, 2 * extents.cdiv(n, 2) - 1)
    assert not extents.at_most(4 * extents.cdiv(n, 4), n)
    assert extents.floordiv(4 - n, 4) == 1 - extents.cdiv(n, 4)
    assert extents.floordiv(extents.floordiv(n, 5) - 1, 2) == extents.floordiv(n - 5, 10)

    def size() -> extents.Extent:
        total = extents.add(0, int(RNG.integers(-1, 3)))
        for _ in range(RNG.integers(1, 4)):
            by, inner = int(RNG.choice([2, 3, 8])), extents.mul(int(RNG.integers(1, 4)), (n, m)[RNG.integers(2)])
            inner = extents.add(inner, int(RNG.integers(-4, 5)))
            rounded = (extents.floordiv, extents.cdiv)[RNG.integers(2)](inner, by)
            nested = (extents.floordiv, extents.cdiv)[RNG.integers(2)](
                extents.add(rounded, int(RNG.integers(-2, 3))), 2
            )
            part = (inner, rounded, extents.mul(2, nested))[RNG.integers(3)]
            total = extents.add(total, extents.mul(int(RNG.choice([1, -1, by])), part))
        return total

    known = 0
    for _ in range(150):
        one, other = size(), size()
        if extents.at_most(one, other):
            known += 1
            for binding in ({"n": a, "m": b} for a in range(1, 18) for b in (1, 2, 3, 8)):
                assert extents.evaluate(one, binding) <= extents.evaluate(other, binding), (one, other, binding)
    assert known > 5


def test_sizes_that_are_divided_twice_are_what_they_were() -> None:
    n = symbol("n")
    for _ in range(200):
        by, rounds = RNG.choice([2, 3, 4, 5, 8], 3), [(extents.floordiv, -1), (extents.cdiv, 1)]
        size: extents.Extent = extents.add(extents.mul(int(RNG.integers(1, 4)), n), int(RNG.integers(-4, 5)))
        exact = extents.evaluate
        values = [exact(size, {"n": a}) for a in range(1, 40)]
        for b in map(int, by):
            divide, sign = rounds[RNG.integers(2)]
            more = int(RNG.integers(-3, 4))
            size = extents.add(divide(size, b), more)
            values = [v // b + more if sign < 0 else -(-v // b) + more for v in values]
        assert [exact(size, {"n": a}) for a in range(1, 40)] == values, size
        ranges = {"n": SymbolRange(1, 39, 16)}
        if not_negative(size, ranges):
            enough = [a for a, v in enumerate(values, 1) if v >= 0]
            assert enough == list(range(ranges["n"].low, 40)), size
        else:
            assert max(values) < 0, size


def test_a_rotation_by_angles_of_other_names_says_that_these_are_equal() -> None:
    """As a step of decoding is exported: one position is traced, and the angles' batch and length have names."""
    dims = {"x": (FLOAT, ["b", 2, 1, 8]), "cos": (FLOAT, ["b2", "s", 4]), "sin": (FLOAT, ["b2", "s", 4])}
    made = model([node("RotaryEmbedding", ["x", "cos", "sin"], ["y"])], dims, ["y"], opset=23)
    program = check(made, {"x": f(3, 2, 1, 8), "cos": f(3, 1, 4), "sin": f(3, 1, 4)})
    assert len(program.ranges) == 1
    assert program.tensor("cos").shape == (program.tensor("x").shape[0], 1, 4)
    dims["cos"] = dims["sin"] = (FLOAT, ["b2", 3, 4])
    with pytest.raises(ModelError, match="for 1 positions"):
        from_model(model([node("RotaryEmbedding", ["x", "cos", "sin"], ["y"])], dims, ["y"], opset=23), "m", None)


HALVES = """<ir_version: 10, opset_import: ["" : 21]>
    m (float[b, h, w, 6] x) => (float[p, q, r, s] y) {{
        size = Shape <start = 1, end = 3> (x)  two = Constant<value_ints = [2]>()  half = Div(size, two)
        none = Constant<value_ints = [0, 0]>()  axes = Constant<value_ints = [1, 2]>()
        part = Slice(x, none, half, axes)  down, across = Split <num_outputs = 2> (half)
        b = Shape <end = 1> (x)  three = Constant<value_ints = [3]>()  six = Constant<value_ints = [6]>()
        rest = Constant<value_ints = [-1]>()  both = Mul(down, across)  wide = Mul(across, six)
        to = Concat <axis = 0> ({})  y = Reshape(part, to) }}"""


@pytest.mark.parametrize(
    "target",
    ["b, down, wide", "b, down, across, three, two", "b, down, across, two, rest", "b, both, six", "both, b, six"],
)
def test_a_view_of_what_may_be_empty_has_the_shape_that_runtimes_give_it(target: str) -> None:
    """Where a size is 0 the target copies a dimension instead: one that is 0 as well."""
    made = onnx.parser.parse_model(HALVES.format(target))
    made.graph.output[0].type.tensor_type.ClearField("shape")
    program = from_model(made, "m", None)
    assert all(r.low == 1 for r in program.ranges.values())
    runtime = onnx.reference.ReferenceEvaluator(made)
    seen = 0
    for h, w in ((4, 7), (2, 3), (1, 4), (6, 1), (1, 1)):
        x = RNG.standard_normal((2, h, w, 6)).astype(np.float32)
        try:
            (expected,) = runtime.run(None, {"x": x})
        except ValueError:  # an empty one that is no view at all
            assert 1 in (h, w)
            continue
        np.testing.assert_array_equal(evaluate(program, {"x": x})["y"].astype(np.float32), expected)
        seen += 1
    assert seen >= 2


def test_a_view_whose_target_may_copy_something_else_is_refused() -> None:
    made = onnx.parser.parse_model(HALVES.format("rest, both"))
    made.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedError, match="may have none: 0 copies a dimension"):
        from_model(made, "m", None)


def test_lengths_that_follow_from_two_inputs() -> None:
    """A cache joined with new keys: its length is a sum of symbols, and meets itself."""
    nodes = [
        node("Concat", ["cache", "new"], ["keys"], axis=0),
        node("Transpose", ["keys"], ["kt"]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Softmax", ["s"], ["p"]),
        node("MatMul", ["p", "keys"], ["y"]),
    ]
    shapes = {"cache": (FLOAT, ["past", 4]), "new": (FLOAT, ["fresh", 4]), "q": (FLOAT, ["fresh", 4])}
    given = {"cache": f(5, 4), "new": f(2, 4), "q": f(2, 4)}
    program = check(model(nodes, shapes, ["y"]), given)
    assert program.definition("s").tensor.shape == (symbol("fresh"), symbol("past") + symbol("fresh"))
    check_inlined(program, given)


SIZES: dict[str, tuple[list[onnx.NodeProto], dict[str, list[Any]], dict[str, list[Any]]]] = {
    "sizes that meet": ([node("Add", ["x", "z"], ["y"])], {"x": ["b", "s", 4], "z": ["c", 1, 4]}, {"z": ["b", 1, 4]}),
    "a number": ([node("Add", ["x", "z"], ["y"])], {"x": ["b", 4], "z": [3, 4]}, {"x": [3, 4]}),
    "one of them was equated before": (
        [node("MatMul", ["x", "z"], ["p"]), node("Add", ["p", "q"], ["y"])],
        {"x": ["b", "s"], "z": ["t", "u"], "q": ["c", "s"]},
        {"x": ["b", "s"], "z": ["s", "s"], "q": ["b", "s"]},
    ),
    "a cache before them": (
        [node("Concat", ["x", "z"], ["k"], axis=1), node("Add", ["k", "q"], ["y"])],
        {"x": ["b", "past", 4], "z": ["b", "s", 4], "q": ["b", "total", 4]},
        {"q": ["b", "past + s", 4]},
    ),
    "a batch that a reshape keeps": (
        [
            node("Shape", ["z"], ["size"], end=1),
            node("Concat", ["size", "rest"], ["to"], axis=0),
            node("Reshape", ["x", "to"], ["h"]),
            node("Add", ["h", "z"], ["y"]),
        ],
        {"x": ["b", "s", 4], "z": ["c", 1, 2, 2]},
        {"x": ["b", "s", 4], "z": ["b", 1, 2, 2]},
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_have_to_be_equal_are_one(name: str) -> None:
    nodes, given, equal = SIZES[name]
    inputs = {n: (FLOAT, s) for n, s in given.items()}
    built = model(nodes, inputs, ["y"], {"rest": ints(-1, 2, 2)}, opset=18)
    if name == "a cache before them":  # a size that nothing else says would be two unknowns in one dimension
        assert bind(from_model(built, name, None).inputs, {"x": (2, 3, 4), "z": (2, 5, 4), "q": (2, 8, 4)})["past"] == 3
    sizes = {"b": 3, "s": 5, "past": 2, "past + s": 7}
    told = given | equal
    program = check(built, {n: f(*(sizes.get(e, e) for e in told[n])) for n in given})
    assert {t.name: [str(e) for e in t.shape] for t in program.arguments} == {
        n: [str(e) for e in told[n]] for n in given
    }


@pytest.mark.parametrize(
    ("element", "held"), [("INT4", DType.INT8), ("UINT4", DType.UINT8), ("INT16", DType.INT16), ("UINT16", DType.INT32)]
)
def test_weights_of_few_bits_are_held_in_a_wider_type_where_only_their_values_matter(
    element: str, held: DType, tmp_path: Path
) -> None:
    low = 0 if element[0] == "U" else -7
    levels = RNG.integers(low, 8, (32, 16))
    kind = onnx.TensorProto.DataType.Value(element)
    info = helper.make_tensor_value_info
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0, block_size=16),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    tensors = [
        helper.make_tensor("q", kind, levels.shape, levels.ravel()),
        helper.make_tensor("z", kind, (2, 16), [3] * 32),
        onnx.numpy_helper.from_array(f(2, 16), "s"),
    ]
    graph = helper.make_graph(
        nodes, "g", [info("x", FLOAT, ["n", 32])], [onnx.ValueInfoProto(name="y")], initializer=tensors
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    program = from_model(made, "m", None)
    assert program.conformance is not None
    assert {t.dtype for t in program.inputs if t.name in ("q", "z")} == {held}
    x, scale = f(3, 32), onnx.numpy_helper.to_array(tensors[2]).repeat(16, 0)
    (y,) = run_program(program, {"x": x})
    np.testing.assert_allclose(y, x @ ((levels - 3) * scale), rtol=1e-5, atol=1e-4)
    # What else reads one may ask how far its type goes.
    made.graph.output.append(info("q", kind, None))
    if kind == onnx.TensorProto.INT16:
        assert from_model(made, "m", None).outputs == ("y", "q_1")
        return
    with pytest.raises(UnsupportedError, match=f"the data type {element.lower()} is not supported"):
        from_model(made, "m", None)


@pytest.mark.parametrize("element", ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1"])
def test_weights_of_short_floats_are_held_as_half_precision(element: str) -> None:
    kind = onnx.TensorProto.DataType.Value(element)
    kept = helper.make_tensor("q", kind, (32, 16), RNG.standard_normal(32 * 16) * 3)
    levels = onnx.numpy_helper.to_array(kept).astype(np.float32)
    nodes = [node("DequantizeLinear", ["q", "s"], ["w"]), node("MatMul", ["x", "w"], ["y"])]
    scale = onnx.numpy_helper.from_array(np.array(0.25, np.float32), "s")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["n", 32])],
        [onnx.ValueInfoProto(name="y")],
        initializer=[kept, scale],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    program = from_model(made, "m", None)
    assert program.tensor("q").dtype is DType.FLOAT16
    x = f(3, 32)
    np.testing.assert_allclose(run_program(program, {"x": x})[0], x @ (levels / 4), rtol=1e-5, atol=1e-4)


BRANCHES = """<ir_version: 10, opset_import: ["" : 21]>
m (float[n, %s] x, bool yes) => (float y, float z) <int64[1] axis = {1}, int64 at = {1}, int64 one = {1}> {
    size = Shape(x)  wide = Gather(size, at)  is = Equal(wide, one)  t = Tanh(x)
    a, b = If (is) <
        then_branch = narrow () => (p, q) { p = Squeeze(t, axis)  q = Exp(p) },
        else_branch = broad () => (p, t) { p = ReduceSum <keepdims = 0> (t, axis) }>
    c = If (is) <
        then_branch = again () => (p) { p = Neg(b) },
        else_branch = other () => (r) <float two = {2}> {
            p = Mul(b, two)
            r = If (%s) <then_branch = in () => (s) { s = Abs(p) }, else_branch = out () => (s) { s = Neg(p) }> }>
    y = Mul(a, a)  z = Identity(c) }"""


@pytest.mark.parametrize(("wide", "inner"), [(1, "is"), (4, "is"), (4, "yes")])
def test_a_branch_that_sizes_decide_is_taken(wide: int, inner: str) -> None:
    built = onnx.parser.parse_model(BRANCHES % (wide, inner))
    for output in built.graph.output:
        output.ClearField("type")
    x = f(3, wide)
    if inner == "yes":
        with pytest.raises(UnsupportedError, match="If is control flow"):
            from_model(built, "m", None)
        return
    program = from_model(built, "m", None)
    t = np.tanh(x.astype(np.float64))
    y, z = (t[:, 0] ** 2, -np.exp(t[:, 0])) if wide == 1 else (t.sum(1) ** 2, -2 * t)
    for found, want in zip(run_program(program, {"x": x, "yes": np.array(True)}), (y, z), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-6)


@pytest.mark.parametrize("linear", [True, False])
def test_sparse_tensors_are_written_out(linear: bool) -> None:
    places = np.array([1, 7, 22]) if linear else np.array([[0, 1], [1, 1], [3, 4]])
    values = onnx.numpy_helper.from_array(np.array([1.5, -2, 3], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(places, "at"), [4, 6])
    x, w = f(2, 4), np.zeros((4, 6), np.float32)
    w[[0, 1, 3], [1, 1, 4]] = [1.5, -2, 3]
    takes, gives = [helper.make_tensor_value_info("x", FLOAT, [2, 4])], [onnx.ValueInfoProto(name="y")]
    product, constant = node("MatMul", ["x", "w"], ["y"]), node("Constant", [], ["w"], sparse_value=sparse)
    for graph in (
        helper.make_graph([product], "g", takes, gives, sparse_initializer=[sparse]),
        helper.make_graph([constant, product], "g", takes, gives),
    ):
        built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        (y,) = run_program(from_model(built, "m", None), {"x": x})
        np.testing.assert_allclose(y, x @ w, rtol=1e-6)
    graph.node[0].attribute[0].sparse_tensor.dims[:] = [2, 2]
    with pytest.raises(ModelError, match="the sparse tensor cannot be read"):
        from_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), "m", None)
