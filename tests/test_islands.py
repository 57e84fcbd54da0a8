"""Models with operators that have no translation: they go in parts, and none is refused for them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from quick import RunPython
from test_cache import WORK
from test_cpu_target import CPU
from test_stages import split_matvec

import prism.api as api
import prism.api.in_parts as alone
import prism.api.whole_models as whole
from prism.api import choosing, composing, optimize_model, optimize_model_ranges
from prism.api.loading import load, load_bytes
from prism.api.model_inputs import MOST, drawn, feeds
from prism.api.optimizing import Produced, produce
from prism.api.options import ModelOptions, Options
from prism.api.records import Choice, Request
from prism.api.time_limit import MEETING_S, MORE_TIME
from prism.api.verifying import verify
from prism.backends.assembled import TOGETHER as TOGETHER_TEXT
from prism.backends.assembled import Step, assembled_text, consecutive
from prism.backends.cpu.emit import emit_module
from prism.backends.loading import load_module
from prism.backends.protocol import write_module
from prism.backends.tensors import numbers
from prism.cli.app import main
from prism.errors import (
    CompilerError,
    ExitCode,
    ModelError,
    NoImprovementError,
    PrismError,
    UnsupportedError,
    UsageError,
    VerificationError,
    of_one_part,
)
from prism.events import Event, IslandReport, ModelReport, Recorder, Warned, Within
from prism.frontend.onnx import written
from prism.frontend.onnx.islands import Cut, cut, left, windowed
from prism.frontend.onnx.other_readers import Inference
from prism.frontend.onnx.reader import for_runtimes
from prism.instantiate.confirm import Confirmation
from prism.instantiate.confirm import confirm as confirm_matches
from prism.instantiate.model_bench import difference
from prism.platforms.stock import Stock
from prism.process.deadline import Deadline
from prism.program.extents import is_static
from prism.program.nodes import Program
from prism.report.model_folder import TOGETHER, render_model
from prism.report.records import from_json
from prism.sgraph.config import Config

onnxruntime = pytest.importorskip("onnxruntime")  # of the extra `models`, which `dev` has too

RNG = np.random.default_rng(0)
HEAD = '<ir_version: 10, opset_import: ["" : 18]> m '

# Each with inputs that it takes, and the operators that stay.
MODELS: dict[str, tuple[str, dict[str, np.ndarray], set[str]]] = {
    "top-k between two islands": (
        """(float[n, 16] x, float[16, 8] w) => (float[n, 8] y, int64[n, 3] at)
        <int64[1] k = {3}, int64[1] last = {-1}> {
            p = MatMul(x, w)  a = Relu(p)  top, at = TopK <sorted = 0> (a, k)
            most = ReduceMax <keepdims = 1> (top, last)  d = Sub(a, most)  y = Tanh(d) }""",
        {"x": RNG.standard_normal((5, 16), np.float32), "w": RNG.standard_normal((16, 8), np.float32)},
        {"TopK"},
    ),
    "an embedding": (
        """(int64[b, s] ids, float[30, 8] table, float[8, 8] w) => (float[b, s, 8] y) {
            a = Gather(table, ids)  t = Tanh(a)  p = MatMul(t, w)  y = Add(p, a) }""",
        {
            "ids": RNG.integers(0, 30, (2, 5)),
            "table": RNG.standard_normal((30, 8), np.float32),
            "w": RNG.standard_normal((8, 8), np.float32),
        },
        set(),
    ),
    "a convolution, and sizes that are computed of its result": (
        """(float[b, 3, 8, 8] x, float[4, 3, 2, 2] w) => (float y) <int64[1] minus = {-1}, int64 zero = {0}> {
            c = Conv <strides = [2, 2]> (x, w)  r = Relu(c)  size = Shape(c)  rows = Gather(size, zero)
            axes = Constant <value_ints = [0]> ()  row = Unsqueeze(rows, axes)  to = Concat <axis = 0> (row, minus)
            f = Reshape(r, to)  t = Tanh(f)  y = ReduceSum <keepdims = 0> (t) }""",
        {"x": RNG.standard_normal((2, 3, 8, 8), np.float32), "w": RNG.standard_normal((4, 3, 2, 2), np.float32)},
        {"Conv"},
    ),
    "a branch that reads what an island makes": (
        """(float[4] x, bool yes) => (float[4] y) {
            t = Tanh(x)  u = Mul(t, x)
            b = If (yes) <
                then_branch = one () => (float[4] v) { v = Add(u, t) },
                else_branch = two () => (float[4] v) { v = Sub(u, x) }>
            e = Exp(b)  y = Add(e, u) }""",
        {"x": RNG.standard_normal(4, np.float32), "yes": np.array(True)},
        {"If"},
    ),
    "a loop": (
        """(float[4] x, int64 n) => (float[4] y) <bool on = {1}> {
            t = Tanh(x)
            last = Loop (n, on, t) <body = step (int64 i, bool go, float[4] v) => (bool again, float[4] w) {
                again = Identity(go)  w = Mul(v, t) }>
            y = Add(last, x) }""",
        {"x": RNG.standard_normal(4, np.float32), "n": np.array(3)},
        {"Loop"},
    ),
    "a size that depends on data": (
        """(float[6] x) => (float[k] y) {
            r = Relu(x)  at = NonZero(r)  picked = Transpose(at)  few = GatherND(r, picked)
            t = Tanh(few)  size = Shape(few)  one = ConstantOfShape(size)  y = Add(t, one) }""",
        {"x": RNG.standard_normal(6, np.float32)},
        {"NonZero"},
    ),
    "a sequence": (
        """(float[4] x) => (float[2, 4] y) {
            t = Tanh(x)  u = Exp(x)  s = SequenceConstruct(t, u)
            c = ConcatFromSequence <axis = 0, new_axis = 1> (s)  y = Relu(c) }""",
        {"x": RNG.standard_normal(4, np.float32)},
        {"SequenceConstruct", "ConcatFromSequence"},
    ),
    "a part in float64": (
        """(float[4] x) => (float[4] y, double[4] e) <double one = {1.0}> {
            t = Tanh(x)  d = Cast <to = 11> (t)  e = Exp(d)  f = Add(e, one)  s = Cast <to = 1> (f)
            u = Mul(s, t)  y = Add(u, x) }""",
        {"x": RNG.standard_normal(4, np.float32)},
        {"Cast", "Exp", "Add"},
    ),
    "what no output hangs on": (
        """(float[n, 8] x) => (float[n, 8] y) <int64[1] k = {8}> {
            none = SequenceEmpty ()  t = Tanh(x)  dead = Exp(t)  at = NonZero(dead)
            u, i = TopK <sorted = 0> (t, k)  y = Mul(u, x) }""",
        {"x": RNG.standard_normal((3, 8), np.float32)},
        {"TopK"},
    ),
    "a size that nobody knows, and that is 1": (
        """(float[4, s, t] x, int64[1] n, float[s, t] w) => (float[4, s, t] y) {
            one = Constant<value_ints = [1]>()  big = Constant<value_ints = [9223372036854775807]>()
            e = Exp(w)  row = Slice(e, n, big)  m = Add(x, row)  t0 = Tanh(m)  y = Mul(t0, x) }""",
        {"x": RNG.standard_normal((4, 5, 3), np.float32), "n": np.array([-1])}
        | {"w": RNG.standard_normal((5, 3), np.float32)},
        {"Slice", "Add", "Mul"},
    ),
    "a size of which a fourth is taken, and put together again": (
        """(float[b, h, w] x) => (float[b, h, w] y) <int64[1] four = {4}> {
            size = Shape(x)  one = Shape <start = 0, end = 1> (x)  two = Shape <start = 1, end = 2> (x)
            three = Shape <start = 2> (x)  p = Div(two, four)  q = Div(three, four)
            to = Concat <axis = 0> (one, p, four, q, four)  r = Reshape(x, to)  t = Tanh(r)  e = Exp(t)
            z = Reshape(e, size)  y = Mul(z, x) }""",
        {"x": RNG.standard_normal((1, 16, 8), np.float32)},
        {"Reshape"},
    ),
    "an operator of another type": (
        """(float[4] x) => (float[4] y, bool[4] odd) {
            t = Tanh(x)  u = Cast <to = 12> (t)  one = Constant <value = uint32 {1}> ()  v = BitwiseAnd(u, one)
            w = Cast <to = 1> (v)  y = Add(w, t)  odd = Cast <to = 9> (v) }""",
        {"x": RNG.standard_normal(4, np.float32) * 9},
        {"Cast", "Constant", "BitwiseAnd"},
    ),
}


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + text)


@contextmanager
def saved(text: str, folder: Path, **weights: np.ndarray) -> Iterator[Path]:
    made = model(text)
    made.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    path = folder / "m.onnx"
    onnx.save(made, path)
    yield path


def in_parts(parts: Cut, chosen: frozenset[str], values: Mapping[str, Any]) -> dict[str, Any]:
    known = dict(values)
    for part in parts.parts(chosen):
        known |= Stock(part.data, part.name).run(known, [p.name for p in part.inputs])
    return {p.name: known[p.name] for p in parts.outputs}


@pytest.fixture(scope="module")
def asked() -> Iterator[Inference]:
    with Inference() as one:
        yield one


@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_parts_computes_what_the_model_does(name: str, tmp_path: Path, asked: Inference) -> None:
    text, values, stays = MODELS[name]
    with saved(text, tmp_path) as path:
        parts = cut(path, inference=asked)
        assert {k.op for k in parts.kept.values()} == stays
        assert all(k.why for k in parts.kept.values())
        expected = Stock(path, name).run(values, list(values))
        everything = frozenset(i.name for i in parts.islands)
        assert everything
        for chosen in (everything, frozenset(sorted(everything)[:1]), frozenset[str]()):
            found = in_parts(parts, chosen, values)
            for n, y in expected.items():
                np.testing.assert_allclose(found[n], y, rtol=1e-5, atol=1e-6)
            data = parts.with_functions(chosen)
            onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
            for n, y in Stock(data, name).run(values, list(values)).items():
                np.testing.assert_allclose(y, expected[n], rtol=1e-5, atol=1e-6)


NEWER = """(float[4, 8] x) => (int64[2, n] y) {
    a = Softmax(x)
    b = OPERATOR
    y = NonZero(b)
}"""


@pytest.mark.parametrize("newer", [(28, 14), (28, 13), (21, 14)], ids=str)
@pytest.mark.parametrize("operator", ["Celu(a)", "Cast <to = 1> (a)", "Sigmoid(a)"])
def test_a_model_that_is_newer_than_runtimes_take_is_said_in_older_words(
    operator: str, newer: tuple[int, int], tmp_path: Path, asked: Inference
) -> None:
    made = model(NEWER.replace("OPERATOR", operator))
    path = tmp_path / "m.onnx"
    values = {"x": np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)}
    onnx.save(made, path)
    (expected,) = Stock(path, "older").run(values, ["x"]).values()
    made.opset_import[0].version, made.ir_version = newer
    onnx.save(made, path)
    with pytest.raises(ModelError, match="onnxruntime does not take the model"):
        Stock(path, "newer")
    parts = cut(path, inference=asked)
    assert parts.newer
    everything = frozenset(i.name for i in parts.islands)
    assert everything
    found = [in_parts(parts, everything, values), Stock(parts.with_functions(everything), "whole").run(values, ["x"])]
    found.append(Stock(for_runtimes(path)[0], "file").run(values, ["x"]))
    for y in found:
        np.testing.assert_array_equal(y["y"], expected)


@pytest.mark.parametrize("operator", ["SpaceToDepth", "Range", "Celu of doubles"])
def test_what_means_something_else_in_older_words_stays_as_it_is(operator: str, tmp_path: Path) -> None:
    text = {
        "SpaceToDepth": "m (float[1, 1, 4, 4] x) => (float[1, 4, 2, 2] y)"
        ' { y = SpaceToDepth <blocksize = 2, mode = "CRD"> (x) }',
        "Range": "m (float16 x) => (float16[n] y) { y = Range(x, x, x) }",
        "Celu of doubles": "m (double[4] x) => (double[4] y) { y = Celu(x) }",
    }[operator]
    made = onnx.parser.parse_model('<ir_version: 13, opset_import: ["" : 28]> ' + text)
    assert written.for_runtimes(made, 28) is made
    path = tmp_path / "m.onnx"
    onnx.save(made, path)
    with pytest.raises(ModelError, match="convert it to operator set 26"):
        whole.Run(path, cut(path), ModelOptions(), None, Recorder(None), tmp_path)._stock()  # type: ignore[arg-type]


def test_islands_are_as_large_as_they_can_be_and_no_path_leaves_one_and_comes_back(
    tmp_path: Path, asked: Inference
) -> None:
    text = """(float[8] x) => (float[8] y) <int64[1] k = {8}> {
        a = Tanh(x)  top, at = TopK <sorted = 0> (a, k)  b = Exp(a)  c = Add(b, top)  d = Sub(c, a)  y = Mul(d, b) }"""
    with saved(text, tmp_path) as path:
        parts = cut(path, inference=asked)
    # a and b could be one, but not with what TopK gives.
    assert [parts.operators(i) for i in parts.islands] == [["Tanh", "Exp"], ["Add", "Sub", "Mul"]]


def test_sizes_stay_what_they_are_through_what_is_not_read(tmp_path: Path, asked: Inference) -> None:
    """What two operators that stay give is added in an island at every size; nothing states their sizes."""
    text = """(float[b, s, 8] words, float[b, 1, 8] kinds) => (float[b, s, 8] y) {
        eight = Constant<value_ints = [8]>()  w, at = TopK <sorted = 0> (words, eight)
        size = Shape(words)  each = Expand(kinds, size)  k, there = TopK <sorted = 0> (each, eight)
        a = Add(w, k)  long = Shape(a)  h = Reshape(a, long)  y = Tanh(h) }"""
    with saved(text, tmp_path) as path:
        parts = cut(path, inference=asked)
        assert [k.op for k in parts.kept.values()] == ["TopK", "TopK"]
        island = parts.islands[-1]
        assert parts.operators(island) == ["Add", "Reshape", "Tanh"]
        shapes = [[str(e) for e in p.shape or ()] for p in parts.part(island).inputs]
        assert shapes == [["b", "s", "8"], ["b", "s", "8"]]
        for b, s in ((3, 5), (1, 9), (1, 1)):
            given = {"words": RNG.standard_normal((b, s, 8), np.float32)}
            given["kinds"] = RNG.standard_normal((b, 1, 8), np.float32)
            expected = Stock(path, "m").run(given, list(given))["y"]
            np.testing.assert_allclose(
                in_parts(parts, frozenset(i.name for i in parts.islands), given)["y"], expected, rtol=1e-5
            )


UNTRANSLATED = {
    # An image that is made as large as another one, of any size, and then both are rows.
    "Resize": """(float[b, c, u, v] x, float[b, c, h, w] z) => (float[b, c, n] y) {
        size = Shape(z)  big = Resize <mode = "nearest"> (x, , , size)  rows = Constant<value_ints = [0, 0, -1]>()
        one = Reshape(big, rows)  other = Reshape(z, rows)  s = Add(one, other)  y = Tanh(s) }""",
    # The columns of z that belong to the eight largest of each row of any length.
    "TopK": """(float[b, s] x, float[b, s] z) => (float[b, 8] y) {
        eight = Constant<value_ints = [8]>()  t, at = TopK(x, eight)  g = GatherElements <axis = 1> (z, at)
        s = Add(g, t)  y = Tanh(s) }""",
}


@pytest.mark.parametrize("kept", UNTRANSLATED)
def test_what_has_no_translation_has_the_sizes_that_are_read_of_it(kept: str, tmp_path: Path, asked: Inference) -> None:
    with saved(UNTRANSLATED[kept], tmp_path) as path:
        parts = cut(path, inference=asked)
        assert [k.op for k in parts.kept.values()] == [kept]
        assert len(parts.islands) == 1
        for n in (8, 11):
            shapes = {"x": (2, 3, 4, 5), "z": (2, 3, n, 7)} if kept == "Resize" else {"x": (2, n), "z": (2, n)}
            given = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
            found = in_parts(parts, frozenset({"island_0"}), given)["y"]
            np.testing.assert_allclose(found, Stock(path, "m").run(given, list(given))["y"], rtol=1e-5, atol=1e-6)


def test_sizes_that_are_rounded_are_computed_where_they_are_needed(tmp_path: Path, asked: Inference) -> None:
    """Every third place of a row, and half of a row: what stays reads such sizes, and so does an island."""
    text = """(float[b, h] x, float[b, 4] z) => (float[b, u] y, float[v] q) {
        zero = Constant<value_ints = [0]>()  end = Constant<value_ints = [9223372036854775807]>()
        one = Constant<value_ints = [1]>()  three = Constant<value_ints = [3]>()  four = Constant<value_ints = [4]>()
        third = Slice(x, zero, end, one, three)  size = Shape(third)
        t = Tanh(z)  u, at = TopK <sorted = 0> (t, four)  most = ReduceMax(u, one)
        each = Expand(most, size)  m = Mul(each, third)  y = Exp(m)
        long = Shape<start = 1>(x)  two = Constant<value = int64 {2}>()  half = Div(long, two)
        fill = ConstantOfShape(half)  r = RandomUniformLike <seed = 1.0> (fill)  none = Sub(r, r)  q = Exp(none) }"""
    with saved(text, tmp_path) as path:
        parts = cut(path, inference=asked)
        assert {k.op for k in parts.kept.values()} == {"TopK", "RandomUniformLike"}
        for b, h in ((2, 7), (1, 1), (3, 9), (1, 2)):
            given = {n: RNG.standard_normal((b, w)).astype(np.float32) for n, w in (("x", h), ("z", 4))}
            expected = Stock(path, "m").run(given, list(given))
            for n, found in in_parts(parts, frozenset(i.name for i in parts.islands), given).items():
                np.testing.assert_allclose(found, expected[n], rtol=1e-5)
    (island,) = (i for i in parts.islands if "Expand" in parts.operators(i))
    program = load_bytes(parts.part(island).data, "m")
    assert [str(e) for e in program.tensor(program.outputs[0]).shape] == ["b", "ceiling(h/3)"]


def test_sizes_at_an_islands_border_are_what_they_are_in_the_model(tmp_path: Path, asked: Inference) -> None:
    """What stays leaves `floor(n/2) - 1` places: its shape, computed of `n`, and theirs are one."""
    text = """(float[b, n] x, float[4, 1, 4] w) => (float[b, 4, u] y) {
        channels = Constant<value_ints = [1]>()  e = Exp(x)  u = Unsqueeze(e, channels)
        c = Conv <strides = [2], kernel_shape = [4]> (u, w)
        size = Shape(c)  flat = Constant<value_ints = [0, -1]>()  t = Tanh(c)  f = Reshape(t, flat)
        s = Softmax(f)  back = Reshape(s, size)  y = Mul(back, c) }"""
    with saved(text, tmp_path) as path:
        parts = cut(path, inference=asked)
        assert {k.op for k in parts.kept.values()} == {"Conv"}
        for n in (4, 7, 12):
            given = {"x": RNG.standard_normal((2, n)), "w": RNG.standard_normal((4, 1, 4))}
            given = {name: a.astype(np.float32) for name, a in given.items()}
            expected = Stock(path, "m").run(given, list(given))
            (found,) = in_parts(parts, frozenset(i.name for i in parts.islands), given).values()
            np.testing.assert_allclose(found, expected["y"], rtol=1e-5)
    (island,) = (i for i in parts.islands if "Softmax" in parts.operators(i))
    program = load_bytes(parts.part(island).data, "m")
    assert [str(e) for e in program.tensor("y").shape] == ["b", "4", "floor(n/2) - 1"]


def test_what_only_a_shape_is_asked_of_is_in_no_part(tmp_path: Path, asked: Inference) -> None:
    """As quantisers leave it: what a Shape reads is dequantised for it alone."""
    text = """(float[b, 3, 8, 8] x, float[4, 3, 2, 2] w) => (float[b, u] y) {
        c = Conv <strides = [2, 2]> (x, w)  t = Tanh(c)  e = Exp(t)  d = Conv <strides = [2, 2]> (e, v)
        size = Shape <end = 1> (d)  minus = Constant <value_ints = [-1]> ()  to = Concat <axis = 0> (size, minus)
        r = Relu(x)  y = Reshape(r, to) }"""
    weights = {"v": RNG.standard_normal((5, 4, 2, 2)).astype(np.float32)}
    with saved(text, tmp_path, **weights) as path:
        parts = cut(path, inference=asked)
        assert not parts.kept
        assert [parts.operators(i) for i in parts.islands] == [["Relu", "Reshape"]]
        given = {"x": RNG.standard_normal((2, 3, 8, 8)), "w": RNG.standard_normal((4, 3, 2, 2))}
        given = {name: a.astype(np.float32) for name, a in given.items()}
        for chosen in (frozenset[str](), frozenset({"island_0"})):
            (found,) = in_parts(parts, chosen, given).values()
            np.testing.assert_array_equal(found, Stock(path, "m").run(given, list(given))["y"])


def test_nodes_out_of_order_are_put_in_order(tmp_path: Path, asked: Inference) -> None:
    """As onnxruntime's converter to float16 writes casts of inputs behind all else; a branch reads one, too."""
    text = """(float[4, 8] x, bool yes) => (float[4, 8] y) {
        b = If (yes) <
            then_branch = one () => (float[4, 8] v) { v = Add(t, late) },
            else_branch = two () => (float[4, 8] v) { late2 = Sub(late, x)  v = Neg(late2) }>
        late = Exp(t)  y = Mul(b, late)  t = Tanh(x) }"""
    x = {"x": RNG.standard_normal((4, 8), np.float32), "yes": np.array(True)}
    with saved(text, tmp_path) as path:
        parts = cut(path, inference=asked)
        assert {k.op for k in parts.kept.values()} == {"If"}
        for yes in (True, False):
            x["yes"] = np.array(yes)
            (found,) = in_parts(parts, frozenset(i.name for i in parts.islands), x).values()
            np.testing.assert_allclose(found, Stock(path, "m").run(x, list(x))["y"], rtol=1e-5)
    whole_model = "(float[4, 8] x) => (float[4, 8] y) { y = Mul(a, b)  b = Exp(a)  a = Tanh(x) }"
    with saved(whole_model, tmp_path) as path:
        assert [d.name for d in load(path).definitions][-1] == "y"


def test_levels_of_an_infinite_scale_are_left_to_the_runtime(tmp_path: Path, asked: Inference) -> None:
    """As static quantisation gives a mask of -inf."""
    text = """(float[4, 8] x) => (float[4, 8] y) <int8 zero = {0}> {
        q = QuantizeLinear(x, scale, zero)  d = DequantizeLinear(q, scale, zero)  y = Tanh(d) }"""
    for scale, stays in ((np.inf, {"QuantizeLinear", "DequantizeLinear"}), (0.5, set())):
        with saved(text, tmp_path, scale=np.array(scale, np.float32)) as path:
            assert {k.op for k in cut(path, inference=asked).kept.values()} == stays


def test_what_onnxruntime_takes_in_no_function_is_in_no_island(tmp_path: Path, asked: Inference) -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]> g (float[4, 8] x) => (float[8, 8] y)
        <float s = {0.1}, uint8 z = {128}> {
        q = QuantizeLinear(x, s, z)  c = com.microsoft.QLinearConcat <axis = 0> (s, z, q, s, z, q, s, z)
        d = DequantizeLinear(c, s, z)  y = Tanh(d) }"""
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    parts = cut(path, inference=asked)
    assert [(k.op, k.why) for k in parts.kept.values()] == [
        ("com.microsoft.QLinearConcat", "onnxruntime does not take it in the body of a function")
    ]
    given = {"x": RNG.standard_normal((4, 8)).astype(np.float32)}
    made = Stock(parts.with_functions({i.name for i in parts.islands}), "functions").run(given, ["x"])
    np.testing.assert_allclose(made["y"], Stock(path, "m").run(given, ["x"])["y"], rtol=1e-5)


def test_what_the_file_says_of_operators_that_onnx_does_not_know_is_taken(tmp_path: Path, asked: Inference) -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]> g (float[b, 8] x) => (float[b, 8] y) {
        t = Tanh(x)  a = com.microsoft.CDist(t, t)  e = Exp(a)  s = Mul(e, a)  m = MatMul(s, t)  y = Sub(m, x) }"""
    built = onnx.parser.parse_model(text)
    path = tmp_path / "m.onnx"
    onnx.save(built, path)
    untold = cut(path, inference=asked)
    assert [k.op for k in untold.kept.values()] == ["com.microsoft.CDist", "Exp", "Mul", "MatMul", "Sub"]
    built.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, ["b", "b"]))
    onnx.save(built, path)
    told = cut(path, inference=asked)
    assert [k.op for k in told.kept.values()] == ["com.microsoft.CDist"]
    assert told.operators(told.islands[-1]) == ["Exp", "Mul", "MatMul", "Sub"]
    given = {"x": RNG.standard_normal((3, 8), np.float32)}
    names = frozenset(i.name for i in told.islands)
    np.testing.assert_allclose(
        in_parts(told, names, given)["y"], Stock(path, "m").run(given, list(given))["y"], rtol=1e-4
    )


QUANTISED = """<ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]> g (float[b, 8] x) => (float[b, 4] y)
    <float s = {0.02}, uint8 z = {128}> {
        q = com.microsoft.DynamicQuantizeMatMul(x, w, s, z)
        y = Tanh(q) }"""
LOOPS = {
    "a state that keeps its shape": (
        """(float[b, 8] x) => (float[b, 8] y, float[n, b, 1] z) <int64 trips = {5}, bool go = {1}> {
            t = Tanh(x)
            h, means = Loop (trips, go, t) <body = step (int64 i, bool on, float[r, c] before)
                => (bool still, float[r, c] after, float[r, d] mean) {
                still = Identity(on)  p = MatMul(before, w)  after = Tanh(p)
                one = Constant <value_ints = [1]> ()  mean = ReduceMax(after, one) }>
            e = Exp(h)  y = Mul(e, x)  z = Exp(means) }""",
        ["b", "8"],
    ),
    "a state that grows in one dimension": (
        """(float[4, 8] x) => (float[m, 8] y) <int64 trips = {3}, bool go = {1}> {
            h = Loop (trips, go, x) <body = step (int64 i, bool on, float[r, c] before)
                => (bool still, float[q, c] after) {
                still = Identity(on)  after = Concat <axis = 0> (before, x) }>
            p = MatMul(h, w)  y = Exp(p) }""",
        ["h_d0", "8"],
    ),
    "a state that stands for another": (
        """(float[4, 8] x, float[3, 8] x0) => (float[m, 8] y) <int64 trips = {3}, bool go = {1}> {
            h, k = Loop (trips, go, x, x0) <body = step (int64 i, bool on, float[r, c] one, float[q, d] two)
                => (bool still, float[q, d] other, float[r, c] back) {
                still = Identity(on)  other = Exp(two)  back = Exp(one) }>
            p = MatMul(h, w)  y = Exp(p) }""",
        ["h_d0", "8"],
    ),
}


def test_what_onnxruntime_says_of_its_own_operators_is_taken(tmp_path: Path, asked: Inference) -> None:
    given = {"x": RNG.standard_normal((3, 8), np.float32)}
    made = onnx.parser.parse_model(QUANTISED)
    made.graph.initializer.append(numpy_helper.from_array(RNG.integers(0, 255, (8, 4), np.uint8), "w"))
    onnx.save(made, tmp_path / "m.onnx")
    parts = cut(tmp_path / "m.onnx", inference=asked)
    assert [parts.operators(i) for i in parts.islands] == [["Tanh"]]
    assert [str(e) for e in parts.part(parts.islands[0]).inputs[0].shape or ()] == ["b", "4"]
    expected = Stock(tmp_path / "m.onnx", "m").run(given, list(given))["y"]
    np.testing.assert_allclose(in_parts(parts, frozenset({"island_0"}), given)["y"], expected, rtol=1e-5)


def test_a_value_of_which_nobody_knows_the_rank_has_a_type(tmp_path: Path, asked: Inference) -> None:
    """Imputer, Scaler and their like: onnx says nothing of what they give, and onnxruntime the type alone."""
    text = """<ir_version: 8, opset_import: ["" : 13, "ai.onnx.ml" : 3]> g (float[b, 4] x) => (float[b, 4] y) {
        i = ai.onnx.ml.Imputer <imputed_value_floats = [0.0, 1.0, 2.0, 3.0], replaced_value_float = -1.0> (x)
        t = Tanh(x)  e = Exp(t)  u, at = TopK <sorted = 0> (e, k)  p = Mul(u, t)  y = Add(i, p) }"""
    made = onnx.parser.parse_model(text)
    made.graph.initializer.append(numpy_helper.from_array(np.array([4]), "k"))
    onnx.save(made, tmp_path / "m.onnx")
    parts = cut(tmp_path / "m.onnx", inference=asked)
    given = {"x": np.where(RNG.random((3, 4)) < 0.5, -1.0, RNG.standard_normal((3, 4))).astype(np.float32)}
    expected = Stock(tmp_path / "m.onnx", "m").run(given, list(given))["y"]
    names = frozenset(i.name for i in parts.islands)
    np.testing.assert_allclose(in_parts(parts, names, given)["y"], expected, rtol=1e-5)


@pytest.mark.parametrize("name", LOOPS)
def test_shapes_that_a_loop_leaves_as_they_are_are_known(name: str, tmp_path: Path, asked: Inference) -> None:
    text, shape = LOOPS[name]
    with saved(text, tmp_path, w=RNG.standard_normal((8, 8), np.float32)) as path:
        parts = cut(path, inference=asked)
        assert {k.op for k in parts.kept.values()} == {"Loop"}
        known = {p.name: p.shape for i in parts.islands for p in parts.part(i).inputs}
        assert [str(e) for e in known["h"] or ()] == shape
        sizes = {"b": 2} | {str(e): 4 for p in parts.inputs for e in p.shape or () if not is_static(e)}
        given = {
            p.name: RNG.standard_normal([int(sizes.get(str(e), e)) for e in p.shape or ()]).astype(np.float32)
            for p in parts.inputs
        }
        found = in_parts(parts, frozenset(i.name for i in parts.islands), given)
        for n, y in Stock(path, "m").run(given, list(given)).items():
            np.testing.assert_allclose(found[n], y, rtol=1e-4, atol=1e-6)


def test_what_stays_for_speed_has_the_sizes_that_are_read_of_it(tmp_path: Path, asked: Inference) -> None:
    """Two convolutions that halve an image of any size give what can be added, and names of the model's own stay."""
    text = """(float[n, c, h, w] x) => (float[n, 4, u, v] y) {
        a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, k)  b = Conv <strides = [2, 2]> (x, p)
        r = Relu(a)  s = Add(r, b)  t = Tanh(s)  y = Mul(t, s) }"""
    weights = {"k": RNG.standard_normal((4, 3, 3, 3), np.float32), "p": RNG.standard_normal((4, 3, 1, 1), np.float32)}
    with saved(text, tmp_path, **weights) as path:
        parts = cut(path, inference=asked)
        assert [str(e) for e in parts.inputs[0].shape or ()] == ["n", "3", "h", "w"]
        assert [parts.operators(i) for i in parts.islands] == [["Relu", "Add", "Tanh", "Mul"]]
        taken = parts.part(parts.islands[0]).inputs
        assert {p.name: [str(e) for e in p.shape or ()] for p in taken} == {
            name: ["n", "4", "ceiling(h/2)", "ceiling(w/2)"] for name in ("a", "b")
        }
        for h, w in ((8, 5), (1, 2)):
            given = {"x": RNG.standard_normal((2, 3, h, w)).astype(np.float32)}
            found = in_parts(parts, frozenset({"island_0"}), given)["y"]
            np.testing.assert_allclose(found, Stock(path, "m").run(given, ["x"])["y"], rtol=1e-4, atol=1e-5)


def test_sizes_that_onnx_makes_up_are_not_taken_for_one_another(tmp_path: Path, asked: Inference) -> None:
    text = """(float[6] x, float[6] z) => (float[m] y, float[n] v) {
        a = NonZero(x)  b = NonZero(z)  c = Transpose(a)  d = Transpose(b)
        e = GatherND(x, c)  f = GatherND(z, d)  y = Tanh(e)  v = Tanh(f) }"""
    with saved(text, tmp_path) as path:
        parts = cut(path, inference=asked)
    shapes = {p.name: p.shape for i in parts.islands for p in parts.part(i).inputs}
    assert shapes["a"] != shapes["b"]


LAYERS = """(float[n, 8] x) => (float[n, 8] y) <int64[1] k = {8}> {
    p0 = MatMul(x, w0)  a0 = Tanh(p0)  t0, i0 = TopK <sorted = 0> (a0, k)
    p1 = MatMul(t0, w1)  a1 = Tanh(p1)  t1, i1 = TopK <sorted = 0> (a1, k)
    p2 = MatMul(t1, w2)  y = Sigmoid(p2) }"""


def test_islands_are_equal_up_to_names_and_weights(tmp_path: Path, asked: Inference) -> None:
    weights = {f"w{n}": RNG.standard_normal((8, 8), np.float32) for n in range(3)}
    with saved(LAYERS, tmp_path, **weights) as path:
        parts = cut(path, inference=asked)
        one, two, other = (parts.part(i) for i in parts.islands)
    assert one.key == two.key
    assert one.key != other.key  # another function


def test_inputs_are_drawn_that_the_model_takes(tmp_path: Path, asked: Inference) -> None:
    text = """(int64[b, s] ids, int64[b, s] kinds) => (float[b, s, 4] y) {
        e = Gather(words, ids)  k = Gather(sorts, kinds)  size = Shape(ids)  one = Constant <value_int = 1> ()
        s0 = Gather(size, one)  zero = Constant <value_int = 0> ()  at = Range(zero, s0, one)  p = Gather(places, at)
        q = Add(e, k)  y = Add(q, p) }"""
    tables = {n: RNG.standard_normal((r, 4), np.float32) for n, r in (("words", 50), ("sorts", 2), ("places", 16))}
    with saved(text, tmp_path, **tables) as path:
        parts, stock = cut(path, inference=asked), Stock(path, "m")
    found = feeds(parts.inputs, {}, 0, lambda x: stock.run(x, ["ids", "kinds"]), "m", parts.most_elements)
    assert found.sizes["s"] == 16  # no more places than these are known
    assert found.highs == {"ids": 10, "kinds": 2}
    with pytest.raises(UsageError, match="no symbolic dimension t"):
        feeds(parts.inputs, {"t": 4}, 0, lambda x: stock.run(x, ["ids", "kinds"]), "m", parts.most_elements)


def test_lengths_that_are_multiplied_are_tried_at_sizes_that_fit(tmp_path: Path, asked: Inference) -> None:
    text = """(float[n, 3, h, w] x) => (float[n, h, h] y) {
        axes = Constant<value_ints = [1]>()  m = ReduceMean<keepdims = 0>(x, axes)
        t = Transpose<perm = [0, 2, 1]>(m)  y = MatMul(m, t) }"""
    ran: list[int] = []

    def run(arrays: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        ran.append(arrays["x"].size)
        return {}

    with saved(text, tmp_path) as path:
        parts = cut(path, inference=asked)
        found = feeds(parts.inputs, {}, 0, run, "m", parts.most_elements)
        hints = load_bytes(path.read_bytes(), "m").hints
    assert found.sizes == {"h": 128, "n": 128, "w": 128}
    assert parts.most_elements(found.sizes) == ran[0] == 3 * 128**3 <= MOST
    assert hints == {"h": 16, "n": 16, "w": 16}, "of a program that is read whole, which is run far more often"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (np.ones((3, 4), np.float32) * 1.00001, ""),
        (np.ones((3, 4), np.float32) * 1.1, "is off by 0.1"),
        (np.full((3, 4), np.nan, np.float32), "is off by nan"),
        (np.ones((4, 3), np.float32), "should be float32"),
        (np.ones((3, 4)), "should be float32"),
    ],
)
def test_results_that_differ_beyond_rounding_are_told(result: np.ndarray, said: str) -> None:
    one = np.ones((3, 4), np.float32)
    why = difference(result, one, one)
    assert said in why
    assert bool(why) == bool(said)


def test_what_is_far_larger_than_most_is_rounded_as_such() -> None:
    """As the last steps of a loop that multiplies are: next to nothing of them is much of the rest."""
    one = np.geomspace(1, 1e38, 1000, dtype=np.float32)
    assert not difference(one * np.float32(1.0008), one, one)
    assert "is off by 2e+37" in difference(np.append(one[:-1], np.float32(1.2e38)), one, one)
    assert "is off by 2e+35" in difference(np.append(np.float32(2e35), one[1:]), one, one)


def test_whole_numbers_may_differ_where_values_tie() -> None:
    one = np.arange(1000)
    other, wrong = one.copy(), one.copy()
    other[:2] = other[1::-1]
    wrong[:50] = 0
    assert not difference(other, one, one)
    assert "4.9% of its elements differ" in difference(wrong, one, one)


def test_what_an_island_rounds_within_says_how_far_apart_kernels_and_onnxruntime_may_be(
    tmp_path: Path, asked: Inference
) -> None:
    text = """(float[64] x) => (float[64] y, float[9] t) <int64[1] k = {9}> {
        h = Cast <to = 10> (x)  p = Relu(h)  d = Add(p, p)  f = Cast <to = 1> (d)
        r = Relu(x)  e = Add(r, r)  y = Sub(f, e)
        t, at = TopK <sorted = 0> (f, k) }"""
    with saved(text, tmp_path) as path:
        parts = cut(path, inference=asked)
        (island,) = parts.islands
        programs = {island.name: load_bytes(parts.part(island).data, island.name)}
        run = whole.Run(path, parts, ModelOptions(), None, Recorder(None), tmp_path)  # type: ignore[arg-type]
        x = {"x": RNG.standard_normal(64).astype(np.float32)}
        (plain, _), (rounded, _) = run._expected(x), run._expected(x, programs)
    unrounded = np.zeros(64, np.float32)
    assert "rounding explains" in difference(unrounded, *plain)
    assert not difference(unrounded, *rounded)
    assert "rounding explains" in difference(unrounded + np.float32(0.1), *rounded)


def test_what_neighbours_of_inputs_give_says_how_far_steps_take_rounding_apart(
    tmp_path: Path, asked: Inference
) -> None:
    """Of a logistic map's steps, each of which takes two values four times as far apart as they were.

    A fifth of the elements round to another number where their input is the next one.
    """
    text = """(float[64] x, int64 n) => (float[64] y, float[64] near)
        <bool on = {1}, float one = {1.0}, float four = {4.0}, float half = {0.5}> {
        h = Sigmoid(x)  a = Mul(h, half)  near = Add(a, half)
        y = Loop (n, on, near) <body = step (int64 i, bool go, float[64] v) => (bool again, float[64] w) {
            again = Identity(go)  u = Sub(one, v)  p = Mul(u, v)  w = Mul(p, four) }> }"""
    with saved(text, tmp_path) as path:
        parts = cut(path, inference=asked)
        programs = {i.name: load_bytes(parts.part(i).data, i.name) for i in parts.islands}
        run = whole.Run(path, parts, ModelOptions(), None, Recorder(None), tmp_path)  # type: ignore[arg-type]
        x = {"x": RNG.standard_normal(64).astype(np.float32), "n": np.array(40)}
        (plain, _), (far, near) = run._expected(x), run._expected(x, programs)
        kernels = {"x": np.nextafter(x["x"], np.float32(9)), "n": x["n"]}
        as_kernels = list(run._run(kernels).values())
    assert "rounding explains" in difference(as_kernels[0], *plain)
    assert not difference(as_kernels[0], *far)
    assert not difference(as_kernels[1], *near)
    assert "rounding explains" in difference(as_kernels[1] + np.float32(0.01), *near)


@pytest.mark.parametrize(
    ("to", "stays"), [(10, {"Cast f", "TopK t"}), (16, {"Cast h", "Transpose v", "Cast f", "TopK t"})]
)
def test_a_cast_that_is_taken_back_rounds_and_stays(to: int, stays: set[str], tmp_path: Path, asked: Inference) -> None:
    """Values in bfloat16 do not leave onnxruntime, so all that has one stays, too; those in float16 do."""
    text = f"""(float[4, 8] x) => (float[8, 4] y, float[8, 2] t) <int64[1] k = {{2}}> {{
        e = Exp(x)  h = Cast <to = {to}> (e)  v = Transpose(h)  f = Cast <to = 1> (v)  g = Transpose(e)
        y = Sub(f, g)  t, at = TopK <sorted = 0> (y, k) }}"""
    x = {"x": RNG.standard_normal((4, 8), np.float32)}
    with saved(text, tmp_path) as path:
        with pytest.raises(UnsupportedError, match="taken back at once rounds"):
            load(path)
        parts = cut(path, inference=asked)
        assert {k.node for k in parts.kept.values()} == stays
        expected = Stock(path, "m").run(x, ["x"])
        values = dict(x)
        for part in parts.parts({i.name for i in parts.islands}):
            given = [p.name for p in part.inputs]
            assert not part.island or all(p.dtype != "bfloat16" for p in (*part.inputs, *part.outputs))
            values |= Stock(part.data, part.name).run(values, given)
    assert np.abs(expected["y"]).max() > 1e-4
    np.testing.assert_array_equal(values["y"], expected["y"])


@pytest.fixture(scope="module", autouse=True)
def everything_may_gain() -> Iterator[None]:
    """Models of a few microseconds lose more by each border than any kernel gains."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alone, "GAIN", -math.inf)
        yield


GATED_LAYERS = """(float[n, 64] x) => (float[n, 64] y) <int64[1] k = {64}> {
    m0 = Mul(x, w0)  s0 = Sigmoid(m0)  g0 = Mul(s0, m0)  t0, i0 = TopK <sorted = 0> (g0, k)
    m1 = Mul(t0, w1)  s1 = Sigmoid(m1)  g1 = Mul(s1, m1)  t1, i1 = TopK <sorted = 0> (g1, k)
    y = Identity(t1) }"""
GATES = {f"w{n}": RNG.standard_normal(64).astype(np.float32) for n in range(2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, unoptimised: None, small_gate: None) -> Path:
    """A model in parts, whose kernels are taken however fast they are: all else is as in every run."""
    place = tmp_path_factory.mktemp("parts")
    with pytest.MonkeyPatch.context() as patch, saved(GATED_LAYERS, place, **GATES) as path:
        patch.setenv("PRISM_CACHE_DIR", str(place / "cache"))
        patch.setattr("prism.instantiate.confirm.Confirmation.won", property(lambda _: True))
        patch.setattr("prism.instantiate.confirm.MATCHES", 1)
        np.savez(place / "data.npz", x=np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32))
        options = ["--target", "cpu", "--trials", "1", "--inputs", str(place / "data.npz"), "--out", str(place / "out")]
        assert main(["optimize", str(path), *options]) == ExitCode.DONE
    return place / "out"


def test_equal_islands_share_kernels_with_weights_of_their_own(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    one, two, last = report["islands"]
    assert (one["folder"], one["same_as"], two["folder"], two["same_as"]) == ("island_0", "", "island_0", "island_0")
    assert "only re-indexes its inputs" in last["why"]
    assert [k["operator"] for k in report["kept"]] == ["TopK"]
    assert report["nodes"] == 9
    assert report["sizes"] == {"n": 8}
    assert "6 of 9 nodes (67%), in 2 islands" in (folder / "README.md").read_text()
    names = {"README.md", "island_0", "island_1.weights.pt", "model.onnx", "model.py", "prism.lock.json"}
    assert {p.name for p in folder.iterdir()} == {*names, "report.json", "rest_0.onnx", "rest_1.onnx"}


def test_the_folder_computes_the_model_without_prism(folder: Path, run_python: RunPython) -> None:
    x = RNG.standard_normal((5, 64)).astype(np.float32)
    np.save(folder.parent / "x.npy", x)
    code = (
        "import sys, numpy as np, torch; sys.modules['prism'] = None; from model import load; model = load(threads=1)\n"
        "x = np.load('../x.npy'); y = model(x); assert isinstance(y, np.ndarray); np.save('../y.npy', y)\n"
        "t = model(x=torch.from_numpy(x)); assert isinstance(t, torch.Tensor) and np.array_equal(t.numpy(), y)\n"
        "for args, given in (((), {}), ((x, x), {}), ((x,), {'x': x}), ((), {'z': x})):\n"
        "    try: model(*args, **given)\n"
        "    except ValueError as error: print(error)\n"
        "grad = torch.from_numpy(x).requires_grad_()\n"
        "try: model(grad)\n"
        "except ValueError as error: print(error)\n"
        "with torch.no_grad(): assert np.array_equal(model(grad).numpy(), y)\n"
        "assert model(x[:0]).shape == (0, 64) and model(torch.from_numpy(x[:0])).shape == (0, 64)\n"
    )
    assert run_python("-c", code, folder=folder).splitlines() == [
        "the input x is missing; the model takes x",
        "2 inputs were given, and the model has 1: x",
        "the input x is given twice",
        "the input z is none of the model's: x",
        "x requires a gradient, which this model does not compute: detach it, or call under torch.no_grad()",
    ]
    assert '"session.force_spinning_stop", "1"' in (folder / "model.py").read_text()
    expected = Stock(folder.parent / "m.onnx", "m").run({"x": x}, ["x"])["y"]
    np.testing.assert_allclose(np.load(folder.parent / "y.npy"), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(Stock(folder / "model.onnx", "m").run({"x": x}, ["x"])["y"], expected, rtol=1e-5)
    functions = onnx.load(folder / "model.onnx").functions
    assert [(f.domain, f.name, [n.op_type for n in f.node]) for f in functions] == [
        ("ai.prism", "island_0", ["Mul", "Sigmoid", "Mul"]),
        ("ai.prism", "island_1", ["Mul", "Sigmoid", "Mul"]),
    ]


def test_the_folder_is_verified_part_by_part(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(folder)]) == ExitCode.DONE
    assert "island_0: the derivation's" in capsys.readouterr().out
    assert main(["verify", str(folder), "--model", str(folder.parent / "m.onnx")]) == ExitCode.DONE
    assert "m.onnx with its islands as functions" in capsys.readouterr().out
    with saved(GATED_LAYERS, tmp_path, **{n: w + 1 for n, w in GATES.items()}) as path:
        assert main(["verify", str(folder), "--model", str(path)]) == ExitCode.VERIFICATION_FAILED
    assert "WRONG  model.onnx" in capsys.readouterr().out
    damaged = tmp_path / "out"
    damaged.mkdir()
    for file in (p for p in folder.rglob("*") if p.is_file()):
        (damaged / file.relative_to(folder)).parent.mkdir(exist_ok=True)
        (damaged / file.relative_to(folder)).write_bytes(file.read_bytes())
    with (damaged / "island_0" / "island_0.py").open("a") as module:
        module.write("# changed\n")
    (damaged / "rest_0.onnx").unlink()
    (damaged / "mine.txt").write_text("mine")
    found = verify(damaged)
    assert {m.where for m in found.mismatches} == {"island_0/island_0.py", "rest_0.onnx", "mine.txt"}


def test_a_second_run_of_a_model_in_parts_does_nothing_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("done again")

    for name in WORK:
        monkeypatch.setattr(name, refuse)
    monkeypatch.setattr(whole, "compare", refuse)
    monkeypatch.setattr("prism.instantiate.model_bench.ModelBench.contest", refuse)
    monkeypatch.setattr("prism.instantiate.confirm.Confirmation.won", property(lambda _: True))
    monkeypatch.setattr("prism.instantiate.confirm.MATCHES", 1)
    monkeypatch.setenv("PRISM_CACHE_DIR", str(folder.parent / "cache"))
    data = folder.parent / "data.npz"
    options = ["--target", "cpu", "--trials", "1", "--inputs", str(data), "--out", str(tmp_path / "out")]
    assert main(["optimize", str(folder.parent / "m.onnx"), *options]) == ExitCode.DONE
    # A machine that is busy now is warned of, and when what is stored was measured.
    told = [line for line in capsys.readouterr().err.splitlines() if "warning" not in line]
    assert any("(--anew: again)" in line for line in told), "the island"
    assert sum("stored, of 20" in line for line in told) == 2, "the comparison and the confirmation of the whole"
    for file in ("island_0/island_0.py", "model.py", "model.onnx", "island_1.weights.pt"):
        assert (tmp_path / "out" / file).read_bytes() == (folder / file).read_bytes()


def test_a_model_that_lost_is_not_put_together_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("prism.process.deadline.since_start", lambda: 0.0)  # this process began long ago
    lost = (0.5, 0.75)

    def losing(*given: Any, **options: Any) -> Confirmation:
        return replace(confirm_matches(*given, **options), between=lost)

    monkeypatch.setattr(whole, "confirm", losing)
    monkeypatch.setattr("prism.instantiate.confirm.Confirmation.won", property(lambda c: c.between != lost))
    monkeypatch.setattr("prism.instantiate.confirm.MATCHES", 1)
    shutil.copytree(folder.parent / "cache", tmp_path / "cache")
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path / "cache"))
    data = folder.parent / "data.npz"
    command = ["optimize", str(folder.parent / "m.onnx"), "--target", "cpu", "--trials", "1", "--inputs", str(data)]
    command += ["--out", str(tmp_path / "out")]
    assert main([*command, "--budget", "20m"]) == ExitCode.NO_IMPROVEMENT
    capsys.readouterr()
    made: list[None] = []

    def counted(*_: object) -> list[Any]:
        made.append(None)
        raise NoImprovementError("it is made again")

    monkeypatch.setattr(whole.Run, "_islands", counted)
    for again in (["--budget", "20m"], ["--budget", "10m"]):
        assert main([*command, *again]) == ExitCode.NO_IMPROVEMENT
        said = capsys.readouterr().err
        assert "the assembled model is no faster than onnxruntime" in said
        assert "stored, of 20" in said
    assert not made
    for more in (["--budget", "40m"], [], ["--budget", "10m", "--anew"]):
        assert main([*command, *more]) == ExitCode.NO_IMPROVEMENT
    assert len(made) == 3


def test_results_that_are_strings_or_sequences_are_compared_by_their_parts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_python: RunPython
) -> None:
    monkeypatch.setattr("prism.instantiate.confirm.Confirmation.won", property(lambda _: True))
    monkeypatch.setattr("prism.instantiate.confirm.MATCHES", 1)
    monkeypatch.setenv("PRISM_CACHE_DIR", str(folder.parent / "cache"))
    text = """(float[n, 64] x, string[n] s)
        => (float[n, 64] t0, string[n, 64] label, seq(float[n, 64]) parts, string[n] same) <int64[1] k = {64}> {
        m0 = Mul(x, w0)  s0 = Sigmoid(m0)  g0 = Mul(s0, m0)  t0, i0 = TopK(g0, k)
        label = Gather(names, i0)  parts = SequenceConstruct(t0, g0)  same = Identity(s) }"""
    names = np.array([f"label {n}" for n in range(64)], object)
    with saved(text, tmp_path, w0=GATES["w0"], names=names) as path:
        x, s, data = np.load(folder.parent / "data.npz")["x"], np.array([*"abcdefgh"]), tmp_path / "data.npz"
        np.savez(data, x=x, s=s)
        options = ["--target", "cpu", "--trials", "1", "--inputs", str(data), "--out", str(tmp_path / "out")]
        assert main(["optimize", str(path), *options]) == ExitCode.DONE
        ports = cut(path).inputs
        expected = Stock(path, "m").run({"x": x, "s": s}, ["x", "s"])
    (words,) = (drawn((p,), {"n": 500}, {}, 0)["s"] for p in ports if p.name == "s")
    assert {*words} == {"word", *names}, "those that the model holds, and one that it does not"
    code = (
        "import numpy as np; from model import load\n"
        "t, label, parts, same = load(threads=1)(np.load('../../data.npz')['x'], list('abcdefgh'))\n"
        "print(label[3, 5], len(parts), parts[1].shape, same[2])"
    )
    (folder.parent / "strings").mkdir()
    shutil.copytree(tmp_path / "out", folder.parent / "strings" / "out")
    said = run_python("-c", code, folder=folder.parent / "strings" / "out").split("\n")[0]
    assert said == f"{expected['label'][3, 5]} 2 {(8, 64)} c"


def test_results_are_arrays_of_numbers() -> None:
    def same(a: Any, b: Any) -> bool:
        one, other = numbers(a), numbers(b)
        return len(one) == len(other) and all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))

    words = np.array([["one", "two"]], object)
    assert numbers(words)[0].shape == (1, 2)
    assert same(words, words.copy())
    assert not same(words, np.array([["one", "three"]], object))
    maps = [{"a": 0.25, "b": 0.75}, {"a": 0.5, "b": 0.5}]
    assert same(maps, [dict(m) for m in maps])
    assert not same(maps, maps[:1])
    assert not same(maps, [{"a": 0.25, "c": 0.75}, maps[1]])
    assert difference(numbers([0.1, 0.2])[0], *2 * [np.array([0.1, 0.2000001])]) == ""
    with pytest.raises(TypeError, match="NoneType"):
        numbers([None])


def test_two_towers_are_made_once_and_run_in_one_call(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_python: RunPython
) -> None:
    monkeypatch.setattr("prism.instantiate.confirm.Confirmation.won", property(lambda _: True))
    monkeypatch.setattr("prism.instantiate.confirm.MATCHES", 1)
    candidates = whole.candidates
    monkeypatch.setattr(whole, "candidates", lambda islands: candidates(islands)[:1])
    shutil.copytree(folder.parent / "cache", tmp_path / "cache")
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path / "cache"))
    text = """(float[n, 64] x, float[n, 64] z) => (float[n, 64] t0, float[n, 64] t1) <int64[1] k = {64}> {
        m0 = Mul(x, w0)  s0 = Sigmoid(m0)  g0 = Mul(s0, m0)  t0, i0 = TopK <sorted = 0> (g0, k)
        m1 = Mul(z, w1)  s1 = Sigmoid(m1)  g1 = Mul(s1, m1)  t1, i1 = TopK <sorted = 0> (g1, k) }"""
    given = {n: RNG.standard_normal((8, 64)).astype(np.float32) for n in ("x", "z")}
    out = tmp_path / "out"
    with saved(text, tmp_path, **GATES) as path:
        report = optimize_model(path, target="cpu", out=out, inputs=given, trials=1).report
        expected = Stock(path, "m").run(given, ["x", "z"])
        assert main(["verify", str(out), "--model", str(path)]) == ExitCode.DONE
    assert [i.same_as for i in report.islands] == ["", "island_0"]
    assert [p.name for p in out.glob("*.cpp")] == [TOGETHER]
    assert f"`{TOGETHER}`" in (out / "README.md").read_text()
    np.savez(tmp_path / "given.npz", x=given["x"], z=given["z"])
    code = (
        "import sys, numpy as np; sys.modules['prism'] = None; from model import load; model = load(threads=1)\n"
        "assert len(model._steps) == 2; given = dict(np.load('../given.npz'))\n"
        "for _ in range(2): t0, t1 = model(**given)\n"
        "assert [len(t) for t in model(x=given['x'][:0], z=given['z'])] == [0, 8]\n"
        "np.savez('../found.npz', t0=t0, t1=t1)"
    )
    run_python("-c", code, folder=out)
    found = np.load(tmp_path / "found.npz")
    for name, y in expected.items():
        np.testing.assert_allclose(found[name], y, rtol=1e-4, atol=1e-5)


def test_a_slow_model_has_as_many_contenders_as_there_is_time_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An FNet of 0.25 s a call, three sets of islands, two ways for the rest: 14 contenders took all that was left."""

    def most(call_s: float, seconds: float, anew: bool = False) -> int:
        options = ModelOptions(seconds=Deadline.after(seconds), anew=anew)
        times = iter((0.0, call_s))
        monkeypatch.setattr(whole, "monotonic", lambda: next(times))
        with saved(GATED_LAYERS, tmp_path, **GATES) as path:
            platform = SimpleNamespace(device_name="cpu", compiler="c++")
            run = whole.Run(path, cut(path), options, platform, Recorder(None), tmp_path)  # type: ignore[arg-type]
            return run._meet(np.load(folder.parent / "data.npz"), "of these files")

    assert most(0.25, 90.0) == 5
    assert most(1e-3, 90.0) == 5, "the match is stored"
    assert most(1e-3, 90.0, anew=True) == 1350
    assert most(0.25, math.inf) == sys.maxsize


def test_an_island_that_had_no_time_has_none_again_until_a_run_has_more(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prism.instantiate.confirm.Confirmation.won", property(lambda _: True))
    monkeypatch.setattr("prism.instantiate.confirm.MATCHES", 1)
    shutil.copytree(folder.parent / "cache", tmp_path / "cache")
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path / "cache"))
    tried: list[str] = []
    make = produce

    def first_alone(program: Program, options: Options, matches: int, platform: Any) -> Produced:
        tried.append(program.name)
        if program.name != "island_0":
            raise NoImprovementError("no time", fix=MORE_TIME)
        return make(program, options, matches=matches, platform=platform)

    monkeypatch.setattr(whole, "produce", first_alone)
    given = np.load(folder.parent / "data.npz")
    text = GATED_LAYERS.replace("Sigmoid(m1)", "Tanh(m1)")
    made: list[ModelReport] = []
    asked: list[list[str]] = []
    told: list[Event] = []
    with saved(text, tmp_path, **GATES) as path:
        for seconds in (500.0, 500.0, 400.0, 501.0):
            tried.clear()
            told.clear()
            options: dict[str, Any] = {"inputs": dict(given), "trials": 1, "listener": told.append}
            made.append(optimize_model(path, target="cpu", seconds=seconds, **options).report)
            asked.append(sorted(tried))
            said = [e.message for e in told if isinstance(e, Warned) and "had no time" in e.message]
            assert len(said) == (len(made) in (2, 3))
    # What is left of the time is for another turn.
    assert asked == [["island_0", "island_1", "island_1"], ["island_0"], ["island_0"], ["island_0", *["island_1"] * 2]]
    assert all([i.why for i in m.islands] == [i.why for i in made[0].islands] for m in made)
    assert made[0].islands[1].why == "no time"


def test_every_island_is_explained_by_itself(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(folder)]) == ExitCode.USAGE
    assert "island_0" in capsys.readouterr().err
    assert main(["explain", str(folder / "island_0")]) == ExitCode.DONE


def test_a_folder_of_parts_is_replaced_and_one_with_files_of_others_is_not(folder: Path) -> None:
    from prism.report.folder import check_writable

    check_writable(folder)
    mine = folder / "island_0" / "mine.txt"
    mine.write_text("mine")
    try:
        with pytest.raises(UsageError, match=r"also holds 'mine\.txt'"):
            check_writable(folder)
    finally:
        mine.unlink()


def test_what_gains_nothing_stays_and_the_reason_is_told(tmp_path: Path) -> None:
    text = """(float[8] x) => (float[8] y) <int64[1] k = {8}> {
        t = Tanh(x)  top, at = TopK <sorted = 0> (t, k)  y = Exp(top) }"""
    with saved(text, tmp_path) as path, pytest.raises(NoImprovementError) as refused:
        optimize_model(path, target="cpu", out=tmp_path / "out")
    told = refused.value.why.split("; ")
    assert told[0].startswith("island_0 (1 nodes), island_1 (1 nodes): it is one pointwise operator")
    assert told[-1] == "TopK stays: the 8 largest elements in no order have no translation: which is first is not said"
    assert not (tmp_path / "out").exists()


BETWEEN_CONVOLUTIONS = """(float[1, 4, 8, 8] x, float[4, 4, 3, 3] w)
    => (float[1, 4, 1, 1] y) <int64[2] k = {2, 3}> {
    c0 = Conv <pads = [1, 1, 1, 1]> (x, w)  t0 = Tanh (c0)  m0 = Mul (t0, c0)
    c1 = Conv <pads = [1, 1, 1, 1]> (m0, w)  t1 = Tanh (c1)  m1 = Mul (t1, c1)
    c2 = Conv <pads = [1, 1, 1, 1]> (m1, w)  e = Sigmoid (c2)  y = ReduceMean (e, k) }"""


@pytest.mark.parametrize(
    ("between", "after", "together", "asked"),
    [
        (0.90, 0.90, 1.05, []),  # something may gain, though not all of it does
        (0.97, 1.02, 1.05, ["island_0", "island_1", "island_2"]),  # less than two measurements differ by
        (1.02, 0.80, 1.05, ["island_0", "island_1"]),
        (1.02, 1.02, 0.99, []),  # together they may gain
    ],
)
def test_islands_without_which_the_rest_takes_as_long_gain_nothing(
    between: float, after: float, together: float, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A border costs what onnxruntime fuses across it: of a ResNet-50 53 of 54 islands were tuned in vain."""
    times = {frozenset({"island_0", "island_1"}): between, frozenset({"island_2"}): after}
    run: list[frozenset[str]] = []

    def least(self: alone.InParts, chosen: Iterable[str]) -> float:
        run.append(frozenset(chosen))
        return times.get(run[-1], together)

    monkeypatch.undo()
    monkeypatch.setattr(alone, "GAIN", 0.05)
    monkeypatch.setattr(alone.InParts, "least", least)
    monkeypatch.setattr(alone, "fastest", lambda call: call() and 1.0)
    with saved(BETWEEN_CONVOLUTIONS, tmp_path) as path:
        values = {p.name: np.zeros([int(e) for e in p.shape or ()], np.float32) for p in cut(path).inputs}
        on = alone.InParts(cut(path), lambda: Stock(path, "m"), CPU, "m", values)
        found = on.gainless(Deadline())
    assert sorted(found) == asked
    assert all("on one thread" in why for why in found.values())


def test_the_least_that_a_model_takes_is_what_stays_and_what_kernels_read_and_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "fastest", lambda call: call() or 1.0)
    device = replace(CPU, processors=2, cache_bandwidth_bytes_s=2.0 * 4 * 4 * 64)
    with saved(BETWEEN_CONVOLUTIONS, tmp_path) as path:
        parts = cut(path)
        values = {p.name: np.ones([int(e) for e in p.shape or ()], np.float32) for p in parts.inputs}
        on = alone.InParts(parts, lambda: Stock(path, "m"), device, "m", values)
        every = on.least(i.name for i in parts.islands)
        # Three convolutions; each of two islands reads and writes 4 channels of 64, the last reads them and writes 4.
        assert every == pytest.approx(3.0 + 2.0 + 2.0 + 1.0 + 4 / (4 * 64))
        assert on.least(["island_1"]) == pytest.approx(2.0 + 2.0)
        expected = Stock(path, "m").run(values, [p.name for p in parts.inputs])
    np.testing.assert_allclose(on.values["y"], expected["y"], rtol=1e-5)


def test_what_can_gain_nothing_is_not_searched_and_a_second_run_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def nothing(self: alone.InParts, time: Deadline) -> dict[str, str]:
        asked.append(self.where)
        self.least(i.name for i in self.parts.islands)
        return {i.name: "what is left takes as long" for i in self.parts.islands}

    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("searched")

    monkeypatch.setattr(alone.InParts, "gainless", nothing)
    monkeypatch.setattr(whole, "produce", refuse)
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path / "cache"))
    with saved(BETWEEN_CONVOLUTIONS, tmp_path) as path:
        for anew in (False, False, True):
            with pytest.raises(NoImprovementError, match="no part of the model") as refused:
                optimize_model(path, target="cpu", seconds=300.0, anew=anew)
            assert "island_0 (2 nodes), island_1 (2 nodes)" in refused.value.why
            assert "keep the model as it is" in refused.value.fix
    assert len(asked) == 2, "a second run knows, and --anew asks again"


@pytest.mark.parametrize("kind", [UnsupportedError, NoImprovementError])
def test_an_island_that_fails_is_halved_until_what_fails_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[PrismError]
) -> None:
    """Also where nothing is proved of one of its operators."""
    tried: list[str] = []

    def fails(program: Program, _: Options, **others: Any) -> Produced:
        tried.append(program.name)
        if any("tanh" in str(d.expr) for d in program.definitions):
            raise of_one_part(kind("a tanh", why="for a test"), "tanh")
        raise NoImprovementError("nothing is gained", why="for a test")

    monkeypatch.setattr(whole, "produce", fails)
    text = """(float[8] x) => (float[8] y) <int64[1] k = {8}> {
        top, at = TopK <sorted = 0> (x, k)  a = Exp(top)  b = Mul(a, top)  c = Sigmoid(b)
        d = Tanh(c)  e = Mul(d, top)  y = Sub(e, a) }"""
    told: list[Event] = []
    with saved(text, tmp_path) as path, pytest.raises(NoImprovementError) as refused:
        optimize_model(path, target="cpu", listener=told.append)
    assert Warned("island_0 is halved: a tanh: for a test") in told
    assert tried == ["island_0", "island_0a", "island_0b", "island_0bb"]
    assert "island_0ba (1 nodes): it is one pointwise operator" in refused.value.why
    assert "island_0a (3 nodes), island_0bb (2 nodes): nothing is gained" in refused.value.why


def test_an_operator_that_no_kernel_computes_right_keeps_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is read whole, and all that is found for its tanh is wrong: the rest has kernels all the same."""
    chosen = choosing.choice_of_search

    def choose(request: Request, *rest: Any) -> Choice:
        if any("tanh" in str(d.expr) for d in request.program.definitions):
            raise VerificationError("no proved kernel passed the numeric gate", why="8.0 times")
        return chosen(request, *rest)

    monkeypatch.setattr(composing, "choice_of_search", choose)
    monkeypatch.setattr("prism.instantiate.confirm.Confirmation.won", property(lambda _: True))
    monkeypatch.setattr("prism.instantiate.confirm.MATCHES", 1)
    text = """(float[8, 64] x) => (float[8, 64] y) {
        a = Exp(x)  s = Sigmoid(a)  b = Mul(s, x)  y = Tanh(b) }"""
    options = ["--target", "cpu", "--trials", "1", "--max-sgraphs", "1", "--max-families", "4"]
    with saved(text, tmp_path) as path:
        assert main(["optimize", str(path), *options, "--out", str(tmp_path / "out")]) == ExitCode.DONE
        x = RNG.standard_normal((8, 64)).astype(np.float32)
        expected = Stock(path, "m").run({"x": x}, ["x"])["y"]
    said = capsys.readouterr().err
    assert "m.onnx goes in parts: " in said
    assert "(y): no proved kernel passed the numeric gate: 8.0 times" in said
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [(i["nodes"], bool(i["folder"])) for i in report["islands"]] == [(2, True), (1, False), (1, False)]
    assert any("8.0 times" in w for w in report["warnings"])
    module = load_module(tmp_path / "out" / "model.py")
    np.testing.assert_allclose(module.load(threads=1)(x), expected, rtol=1e-4, atol=1e-6)


def test_a_second_run_asks_onnx_and_onnxruntime_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, dict[str, int]]] = []

    def nothing(program: Program, options: Options, **others: Any) -> Produced:
        tried.append((program.name, dict(options.at)))
        raise NoImprovementError("nothing is gained", why="for a test")

    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("asked again")

    monkeypatch.setattr(whole, "produce", nothing)
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path / "cache"))
    text = """(float[n, 8] x, int64[n] at) => (float[k, 8] y) {
        a = Exp(x)  b = Mul(a, x)  c = Gather(b, at)  i = NonZero(at)  p = Transpose(i)
        d = GatherND(c, p)  e = Tanh(d)  y = Mul(e, d) }"""
    with saved(text, tmp_path) as path:
        for again in (False, True):
            if again:
                monkeypatch.setattr(whole, "Stock", refuse)
                monkeypatch.setattr("prism.frontend.onnx.other_readers.Inference._ask", refuse)
            with pytest.raises(NoImprovementError, match="no part of the model gains anything"):
                optimize_model(path, target="cpu")
    assert [name for name, _ in tried] == ["island_0", "island_0"]
    assert tried[0] == tried[1]


def test_where_the_time_is_limited_the_largest_island_comes_first_and_has_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: dict[str, float] = {}
    monkeypatch.setattr("prism.api.time_limit.slowed", lambda: 1.0)

    def nothing(program: Program, options: Options, **others: Any) -> Produced:
        tried[program.name] = options.time.left
        raise NoImprovementError("nothing is gained", why="for a test")

    monkeypatch.setattr(whole, "produce", nothing)
    text = """(float[8] x) => (float[8] y) <int64[1] k = {8}> {
        a = Exp(x)  b = Mul(a, x)  top, at = TopK <sorted = 0> (b, k)
        c = Sigmoid(top)  d = Tanh(c)  e = Mul(d, top)  y = Sub(e, c) }"""
    with saved(text, tmp_path) as path, pytest.raises(NoImprovementError) as refused:
        optimize_model(path, target="cpu", seconds=40.0)
    assert [*tried] == ["island_1", "island_0"]
    assert tried["island_1"] > 0.8 * whole.ISLAND_S > 0.5 * 40.0 * whole.MADE
    assert refused.value.why.index("island_0") < refused.value.why.index("island_1")


def test_what_is_left_of_the_time_is_for_islands_that_had_none_and_all_of_it_where_none_has_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[tuple[str, float, object]] = []
    monkeypatch.setattr("prism.api.time_limit.slowed", lambda: 1.0)

    def late(program: Program, options: Options, platform: object, **others: Any) -> Produced:
        ends.append((program.name, options.time.end, platform))
        raise NoImprovementError("no time", fix=MORE_TIME)

    monkeypatch.setattr(whole, "produce", late)
    text = """(float[8] x) => (float[8] y) <int64[1] k = {8}> {
        a = Exp(x)  b = Mul(a, x)  top, at = TopK <sorted = 0> (b, k)
        c = Sigmoid(top)  d = Tanh(c)  e = Mul(d, top)  y = Sub(e, c) }"""
    with saved(text, tmp_path) as path, pytest.raises(NoImprovementError, match="more time"):
        optimize_model(path, target="cpu", seconds=1000.0)
    assert [name for name, _, _ in ends] == ["island_1", "island_0"] * 2
    first, again = (max(end for _, end, _ in turn) for turn in (ends[:2], ends[2:]))
    assert again - first == pytest.approx(whole.WHOLE_S - MEETING_S, abs=1e-3), "there is no whole"
    assert len({id(platform) for _, _, platform in ends}) == 1, "children serve all islands"


def test_where_no_island_has_kernels_what_is_left_is_for_them_on_a_slow_machine_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Whisper's encoder had 120 s on ten processes for two cores, and its run ended after 65."""
    monkeypatch.setattr(whole, "here", lambda seconds: 6.0 * seconds)
    left: list[float] = []

    def late(program: Program, options: Options, **others: Any) -> Produced:
        left.append(options.time.left)
        raise NoImprovementError("no time", fix=MORE_TIME)

    monkeypatch.setattr(whole, "produce", late)
    text = "(float[8] x) => (float[8] y) { a = Exp(x)  y = Mul(a, x) }"
    for seconds in (50.0, 8.0):
        with saved(text, tmp_path) as path, pytest.raises(NoImprovementError, match="more time"):
            optimize_model(path, target="cpu", seconds=seconds)
    assert len(left) == 3, "twice, and once where LEAST_S are not left"
    assert left[1] == pytest.approx(50.0 * whole.MADE, abs=1.0)


def test_an_island_that_is_equal_to_one_that_had_no_time_has_another_turn_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def late(program: Program, options: Options, **others: Any) -> Produced:
        tried.append(program.name)
        raise NoImprovementError("no time" if len(tried) == 1 else "nothing", fix=MORE_TIME * (len(tried) == 1))

    monkeypatch.setattr(whole, "produce", late)
    text = """(float[8] x) => (float[8] y) <int64[1] k = {8}> {
        a = Exp(x)  b = Mul(a, x)  top, at = TopK <sorted = 0> (b, k)
        c = Exp(top)  y = Mul(c, top) }"""
    with saved(text, tmp_path) as path, pytest.raises(NoImprovementError) as refused:
        optimize_model(path, target="cpu", seconds=1000.0)
    assert len(tried) == 2
    assert refused.value.why.startswith("island_0 (2 nodes), island_1 (2 nodes): nothing;")


def test_the_whole_is_tried_with_fewer_islands_those_that_save_the_most_last() -> None:
    def made(name: str, saves: float, like: str = "") -> Any:
        report = IslandReport(name, 1, {}, same_as=like, best_seconds=1.0, baseline_seconds=1.0 + saves)
        kernels: Any = object()
        return whole._Made(report, kernels=kernels)

    islands = [made("a", 3), made("b", 2), made("c", 2, "b"), made("d", 1), whole._Made(made("e", 9).report)]
    assert whole.candidates(islands) == [{"a", "b", "c", "d"}, {"b", "c", "a"}, {"b", "c"}]
    assert whole.candidates(islands[3:]) == [{"d"}]
    assert whole.candidates(islands[4:]) == []


@pytest.mark.parametrize("chosen", [{"a"}, {"b"}, {"a", "b"}, set[str]()])
def test_halves_of_an_island_run_in_their_order(tmp_path: Path, chosen: set[str], asked: Inference) -> None:
    text, values, _ = MODELS["top-k between two islands"]
    with saved(text, tmp_path) as path:
        parts = cut(path, inference=asked)
        for island in parts.islands:
            parts.halve(island)
        expected = Stock(path, "m").run(values, list(values))
        names = frozenset(i.name for i in parts.islands if i.name[-1] in chosen)
        found = in_parts(parts, names, values)
        whole_model = Stock(parts.with_functions(names), "m").run(values, list(values))
        again = cut(path, inference=asked)
        again.halve_for({i.name for i in parts.islands})
        assert [i.name for i in again.islands] == [i.name for i in parts.islands]
        assert again.with_functions(names) == parts.with_functions(names), "as `prism verify --model` looks at them"
    for n, y in expected.items():
        np.testing.assert_allclose(found[n], y, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(whole_model[n], y, rtol=1e-5, atol=1e-6)


def test_islands_that_follow_each_other_are_one_native_call_and_share_memory(tmp_path: Path) -> None:
    """Two equal ones and one that reads what the first makes; all of them exchange partial sums between launches."""
    place = tmp_path / "model"
    steps = []
    for name, (rows, columns) in {"first": (24, 100), "second": (3000, 24)}.items():
        g = replace(split_matvec(rows, columns), name=name)
        launches = dict.fromkeys(["parts", "combine"], 1)
        config = Config({"T_n": 8, "T_k": 16, "S_k": 3, "T_n2": 8}, launches, launches)
        (place / name).mkdir(parents=True)
        write_module(emit_module(g, configs={"cpu": [config]}), place / name / "kernels.py")
    for name, takes, gives in (("first", "xw", "h"), ("first", "zw", "g"), ("second", "hv", "y")):
        steps.append(Step(f"{name}/kernels.py", tuple(takes), (gives,), name))
    assert consecutive(steps)
    assert not consecutive([steps[0], Step("rest_0.onnx", ("h",), ("i",)), steps[1]])
    (place / "model.py").write_text(assembled_text("m", ["x", "z", "w", "v"], ["y", "g"], steps))
    (place / TOGETHER).write_text(TOGETHER_TEXT)
    spec = importlib.util.spec_from_file_location("islands_in_one_call", place / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.load(threads=2)
    assert len(model._steps) == 1
    first, second = module._MODULES.values()

    given = [RNG.standard_normal(s).astype(np.float32) for s in ((100,), (100,), (24, 100), (3000, 24))]
    x, z, w, v = given
    for _ in range(3):
        y, g = model(*given)
        np.testing.assert_allclose(g, w @ z, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(y, v @ (w @ x), rtol=1e-3, atol=1e-3)
    buffers = [m._OWN.arena[2] for m in (first, second)]
    assert buffers[0] is buffers[1] is module._MEMORY.memory
    assert not np.shares_memory(y, model(*given)[0]), "results are the caller's"
    turned = [np.asfortranarray(t) for t in given]
    for read_only in (given, turned):
        for t in read_only:
            t.flags.writeable = False
        np.testing.assert_array_equal(model(*read_only)[0], y)
    with pytest.raises(ValueError, match="must have the shape"):
        model(x, z, w, w)
    np.testing.assert_array_equal(model(x, z, w=2 * w, v=v)[0], 2 * y)
    np.testing.assert_allclose(first.first(x, w), w @ x, rtol=1e-4, atol=1e-4)


def test_what_has_no_translation_is_shown_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with saved(GATED_LAYERS, tmp_path, **GATES) as path:
        assert main(["show", str(path)]) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "in parts: the 64 largest elements in no order have no translation: which is first is not said",
        "6 of 9 nodes are in islands that may be optimised",
    ]
    assert f"TopK, 2 nodes (TopK t0): stays as it is: {lines[0].removeprefix('in parts: ')}" in lines
    assert any("island_2 (1 node: Identity): stays as it is: it only re-indexes" in line for line in lines)


def test_what_an_input_lacks_is_what_the_error_asks_for(tmp_path: Path) -> None:
    built = model("(float[n] x, float[n] w) => (float[n] y) { t = Tanh(x)  y = Mul(t, w) }")
    built.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(built, tmp_path / "m.onnx")
    with pytest.raises(NoImprovementError, match=r"its rank is not known; export the model .*--inputs"):
        optimize_model(tmp_path / "m.onnx", target="cpu")


def test_what_a_machine_without_a_compiler_lacks_is_what_the_error_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is read whole is estimated for a GPU there, and that of parts would be no answer."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    text = "(float[8] x) => (float[8] y, int64[2] at) <int64[1] k = {2}> { t = Tanh(x)  y, at = TopK(t, k) }"
    with saved(text, tmp_path) as path, pytest.raises(CompilerError, match=r"install g\+\+"):
        optimize_model(path, target="cpu")


def test_what_an_operator_of_a_library_lacks_is_what_the_error_asks_for(tmp_path: Path) -> None:
    built = model("(float[4] x) => (float[4] y) { t = Tanh(x)  y = Relu(t) }")
    built.graph.node[1].domain = "com.acme"
    built.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))
    onnx.save(built, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"not a registered function.*give the model a function for com\.acme\.Relu"):
        optimize_model(tmp_path / "m.onnx", target="cpu")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "(float[8] x) => (float[8] y) { t = Tanh(x)  e = Exp(t)  r = RandomNormalLike(e)  y = Add(e, r) }",
            "at random",
        ),
        ("(seq(float[2]) x) => (int64 y) { y = SequenceLength(x) }", "it may be no tensor; keep the model as it is"),
    ],
)
def test_what_cannot_be_compared_is_left_alone(tmp_path: Path, text: str, said: str) -> None:
    with saved(text, tmp_path) as path, pytest.raises(NoImprovementError, match=said):
        optimize_model(path, target="cpu")


def test_a_model_of_windows_that_is_read_whole_goes_in_parts_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """(float[1, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[1, 4, 6, 6] y) {
        c = Conv (x, w)  t = Tanh (c)  y = Mul (t, c)
    }"""
    onnx.save(model(text), tmp_path / "net.onnx")
    onnx.save(model("(float[4, 8] x) => (float[4, 8] y) { y = Softmax (x) }"), tmp_path / "plain.onnx")
    net, plain = tmp_path / "net.onnx", tmp_path / "plain.onnx"
    assert "Conv" in api.better_in_parts(net, "cpu")
    assert not api.better_in_parts(plain, "cpu")
    assert not api.better_in_parts(net, "sm_90")
    assert not api.better_in_parts(net, "cpu", ["eager"])
    assert not api.left_for_types(api.load(plain), "cpu")
    for name, text in (
        ("float64", "(double[4, 8] x) => (double[4, 8] y) { t = Tanh(x)  y = Softmax(t) }"),
        ("may be large", "(int64[4] x) => (int64[4] y) <int64 k = {1000000}> { t = Mul(x, k)  y = Add(t, k) }"),
    ):
        onnx.save(model(text), tmp_path / "typed.onnx")
        program = api.load(tmp_path / "typed.onnx")
        assert name in api.left_for_types(program, "cpu")
        assert not api.left_for_types(program, "sm_90")

    def seen(path: Path, **_: object) -> None:
        raise NoImprovementError(f"in parts: {path.name}")

    monkeypatch.setattr(api, "optimize_model", seen)
    assert main(["optimize", str(net), "--target", "cpu", "--out", str(tmp_path / "out")]) == ExitCode.NO_IMPROVEMENT
    assert "onnxruntime runs Conv faster" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("attributes", "stays"),
    [
        ("kernel_shape = [4, 4], strides = [4, 4]", False),
        ("kernel_shape = [2, 4], strides = [3, 4]", False),
        ("kernel_shape = [4, 4], strides = [2, 4]", True),
        ("kernel_shape = [4, 4], strides = [4, 4], pads = [1, 1, 1, 1]", True),
        ('kernel_shape = [4, 4], strides = [4, 4], auto_pad = "SAME_UPPER"', True),
        ("kernel_shape = [4, 4], strides = [4, 4], group = 3", True),
        ("kernel_shape = [1, 1], strides = [1, 1]", True),
        ("kernel_shape = [4, 4]", True),
    ],
)
def test_patches_that_do_not_overlap_are_a_product_and_do_not_cut_a_model(attributes: str, stays: bool) -> None:
    made = model(
        f"(float[1, 3, 8, 8] x, float[8, c, h, w] k) => (float[1, 8, a, b] y) {{ y = Conv <{attributes}> (x, k) }}"
    )
    assert windowed(made.graph.node[0]) == stays


@pytest.mark.parametrize(
    ("weight", "groups", "stays"),
    [
        ((32, 16, 3, 3), 1, False),
        ((16, 16, 1, 1), 1, False),
        ((32, 16, 3, 3), 2, False),
        ((16, 16, 3, 3), 2, True),
        ((32, 3, 7, 7), 1, True),
        ((64, 1, 3, 3), 64, True),
        ((8, 64, 3, 3), 1, True),
    ],
)
def test_convolutions_of_many_channels_are_in_islands_where_tiles_multiply(
    tmp_path: Path, weight: tuple[int, ...], groups: int, stays: bool
) -> None:
    text = f"""(float[1, {weight[1] * groups}, 8, 8] x) => (float[1, {weight[0]}, a, b] y) {{
        c = Conv <group = {groups}> (x, k)  y = Tanh (c)
    }}"""
    with saved(text, tmp_path, k=np.ones(weight, np.float32)) as path:
        assert [i.op for i in cut(path).kept.values()] == ["Conv"]
        assert [i.op for i in cut(path, tiles=True).kept.values()] == ["Conv"] * stays
        assert left(path) == ("Conv",)
        assert left(path, tiles=True) == ("Conv",) * stays


@pytest.mark.parametrize("stored", ["k = Constant <value = float[32, 16, 1, 1] {%s}> ()", "k = ConstantOfShape (s)"])
def test_weights_that_nodes_hold_are_weights(tmp_path: Path, stored: str) -> None:
    held = stored % ", ".join(["0.5"] * 512) if "%" in stored else stored
    text = f"(float[1, 16, 8, 8] x) => (float[1, 32, a, b] y) {{ {held}  c = Conv (x, k)  y = Tanh (c) }}"
    with saved(text, tmp_path, s=np.array([32, 16, 1, 1])) as path:
        assert left(path, tiles=True) == ()
        assert not cut(path, tiles=True).kept
        assert left(path) == ("Conv",)


def test_a_folder_is_of_its_model_whatever_processor_it_was_made_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "(float[1, 16, 8, 8] x) => (float[1, 16, 6, 6] y) { c = Conv (x, k)  y = Tanh (c) }"
    made = ModelReport("m", "cpu", "here", 2, (IslandReport("island_0", 1, {}),), ())
    monkeypatch.setattr(whole, "read_file", lambda *_: b"")
    monkeypatch.setattr(whole, "from_json", lambda *_, **__: made)
    with saved(text, tmp_path, k=np.ones((16, 16, 3, 3), np.float32)) as path:
        written = {tiles: cut(path, tiles=tiles).with_functions({"island_0"}) for tiles in (False, True)}
        assert written[False] != written[True]
        for data in written.values():
            monkeypatch.setattr(whole, "digest_of", lambda *_, data=data: hashlib.sha256(data).hexdigest())
            assert whole.made_of(tmp_path, path) == ""
        monkeypatch.setattr(whole, "digest_of", lambda *_: hashlib.sha256(b"another").hexdigest())
        assert "is not" in whole.made_of(tmp_path, path)


@pytest.mark.parametrize(("late", "loss", "turned"), [(True, 1.1, True), (True, 2.0, False), (False, 1.1, False)])
def test_more_time_is_advised_where_islands_without_any_could_turn_the_match(
    late: bool, loss: float, turned: bool
) -> None:
    report = ModelReport("m", "cpu", "here", 2, (), (), best_seconds=loss * 1e-3, baseline_seconds=1e-3)
    assert ("--budget" in whole.what_else(report, late=late)) == turned


def test_parts_are_for_the_cpu_and_against_onnxruntime(tmp_path: Path) -> None:
    with saved(GATED_LAYERS, tmp_path, **GATES) as path:
        with pytest.raises(UnsupportedError, match="--target cpu"):
            optimize_model(path, target="sm_90")
        with pytest.raises(UsageError, match="against onnxruntime alone"):
            optimize_model(path, baselines=("eager",))


def test_without_onnxruntime_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with saved(GATED_LAYERS, tmp_path, **GATES) as path, pytest.raises(UsageError, match=r"pip install .*\[models\]"):
        optimize_model(path, target="cpu")


@pytest.mark.parametrize(("threads", "on"), [(0, 3), (1, 1)])
def test_what_stays_runs_on_as_many_threads_as_its_step_says(
    threads: int, on: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of onnxruntime and of kernels that take turns get in each other's way."""
    (tmp_path / "rest_0.onnx").write_bytes(model("(float[4] x) => (float[4] y) { y = Exp(x) }").SerializeToString())
    (tmp_path / "model.py").write_text(
        assembled_text("m", ["x"], ["y"], [Step("rest_0.onnx", ("x",), ("y",), threads=threads)])
    )
    asked: list[int] = []
    session = onnxruntime.InferenceSession

    def watched(path: str, options: Any, **others: Any) -> Any:
        asked.append(options.intra_op_num_threads)
        return session(path, options, **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", watched)
    spec = importlib.util.spec_from_file_location(f"stays_{threads}", tmp_path / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    np.testing.assert_allclose(module.load(threads=3)(np.zeros(4, np.float32)), np.ones(4))
    assert asked == [on]


def test_a_range_of_lengths_is_dispatched_to_models_and_to_what_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells that gain something have a model each; those that gain nothing, and other lengths, run as they did."""
    text = "(float[s, 8] x) => (float[s, 8] y) <int64[1] k = {8}> { t = Tanh(x)  y, at = TopK <sorted = 0> (t, k) }"
    tuned: list[int] = []

    def made(run: whole.Run) -> tuple[ModelReport, dict[str, bytes]]:
        tuned.append(run.options.at["s"])
        if tuned[-1] < 10:
            raise NoImprovementError("nothing is gained", why="for a test")
        added = f"(float[s, 8] x) => (float[s, 8] y) <float n = {{{float(tuned[-1])}}}> {{ y = Add(x, n) }}"
        files = {"rest_0.onnx": model(added).SerializeToString()}
        files["model.py"] = assembled_text("m", ["x"], ["y"], [Step("rest_0.onnx", ("x",), ("y",))]).encode()
        island = IslandReport("island_0", 1, {}, rung="replay", best_seconds=1.0, baseline_seconds=2.0)
        report = ModelReport("m", "cpu", "here", 2, (island,), (), sizes={"s": tuned[-1]})
        return report, files | render_model(report, files)

    monkeypatch.setattr(whole.Run, "made", made)
    with saved(text, tmp_path) as path:
        given = Stock(path, "m")
        for original in (True, False):
            tuned.clear()
            out = tmp_path / f"out_{original}"
            found = optimize_model_ranges(path, {"s": (1, 1000)}, target="cpu", out=out, original=original)
            folders = [c.folder for c in found.report.cells]
            assert len(folders) > 2
            assert folders == ["", *(f"cell_{n}" for n in range(len(folders) - 1))]
            assert verify(out)
            spec = importlib.util.spec_from_file_location(f"ranged_{original}", out / "model.py")
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            run = module.load(threads=1)
            for cell, at in zip(found.report.cells, tuned, strict=True):
                for s in {int(cell.where.split()[0]), at, int(cell.where.split()[-1])}:
                    x = RNG.standard_normal((s, 8), np.float32)
                    want = x + np.float32(at) if cell.folder else given.run({"x": x}, ["x"])["y"]
                    np.testing.assert_allclose(run(x=x), want, rtol=1e-5)
            x = RNG.standard_normal((1001, 8), np.float32)
            if original:
                np.testing.assert_allclose(run(x), given.run({"x": x}, ["x"])["y"], rtol=1e-5)
            else:
                with pytest.raises(ValueError, match="s=1001: the model was made for 1 <= s <= 1000"):
                    run(x)
        for ranges, why in (({"t": (1, 4)}, "no symbolic dimension t"), ({"s": (4, 1)}, "no range of it")):
            with pytest.raises(UsageError, match=why):
                optimize_model_ranges(path, ranges, target="cpu")


def test_the_models_of_a_range_hold_their_islands(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    files = {name: data for name, data in files.items() if "cache__" not in name}
    report = from_json(files["report.json"], ModelReport, where="report.json")
    monkeypatch.setattr(whole.Run, "made", lambda run: (report, files))
    out = tmp_path / "out"
    for _ in range(2):  # the second time it takes the place of the first
        found = optimize_model_ranges(folder.parent / "m.onnx", {"n": (1, 16)}, target="cpu", out=out)
    assert (out / found.report.cells[0].folder / "island_0" / "island_0.py").is_file()
    assert main(["verify", str(out), "--model", str(folder.parent / "m.onnx")]) == ExitCode.DONE
    told = capsys.readouterr().out
    assert "island_0: the derivation's" in told
    assert "cell_0/model.onnx is" in told
    other = "(float[s, 8] x) => (float[s, 8] y) { t = Tanh(x)  y = Exp(t) }"
    onnx.save(model(other), tmp_path / "other.onnx")
    assert main(["verify", str(out), "--model", str(tmp_path / "other.onnx")]) == ExitCode.VERIFICATION_FAILED
    assert "cell_0/model.onnx: model.onnx is not" in capsys.readouterr().out
    spec = importlib.util.spec_from_file_location("model_of_a_range", out / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = RNG.standard_normal((5, 64), np.float32)
    expected = Stock(folder.parent / "m.onnx", "m").run({"x": x}, ["x"])["y"]
    np.testing.assert_allclose(module.load(threads=1)(x), expected, rtol=1e-4, atol=1e-5)
    (out / found.report.cells[0].folder / "island_0" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="prism did not write"):
        optimize_model_ranges(folder.parent / "m.onnx", {"n": (1, 16)}, target="cpu", out=out)


def test_what_goes_on_is_said_of_the_island_and_of_the_part_of_the_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: dict[int, str] = {}
    seen: list[list[str]] = []

    def listen(event: Event) -> None:
        if isinstance(event, Within):
            for level in [n for n in places if n >= event.level]:
                del places[level]
            if event.what:
                places[event.level] = event.what

    def nothing(*_: object) -> None:
        seen.append(list(places.values()))
        raise NoImprovementError("nothing is gained", why="for a test")

    monkeypatch.setattr(whole.Run, "_island", nothing)
    text = "(float[1, 4, s] x, float[4, 4, 3] w) => (float[1, 4, t] y) { t = Tanh(x)  e = Exp(t)  y = Conv(e, w) }"
    with saved(text, tmp_path) as path, pytest.raises(NoImprovementError, match="at any length"):
        optimize_model_ranges(path, {"s": (8, 16)}, target="cpu", listener=listen)
    assert seen == [["cell 1 of 1 (8 <= s <= 16)", "island_0 of 1"]]


def test_ranges_of_a_model_in_parts_go_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def nothing(path: Path, ranges: Any, **options: Any) -> None:
        seen.append((ranges, options["original"], options["shapes"]))
        raise NoImprovementError("nothing is gained")

    monkeypatch.setattr(api, "optimize_model_ranges", nothing)
    text = "(float[b, s] x) => (float[b, s] y) <int64[1] k = {2}> { t = Tanh(x)  y, at = TopK <sorted = 0> (t, k) }"
    with saved(text, tmp_path) as path:
        asked = ["optimize", str(path), "--target", "cpu", "--shape", "s=2..64", "--shape", "b=3"]
        asked += ["--out", str(tmp_path / "o")]
        assert main(asked) == ExitCode.NO_IMPROVEMENT
        assert main([*asked, "--outside", "original"]) == ExitCode.NO_IMPROVEMENT
    assert seen == [({"s": (2, 64)}, False, {"b": 3}), ({"s": (2, 64)}, True, {"b": 3})]
