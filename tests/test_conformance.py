"""A program is compared, as it is read, with what it was read from: what is misread is caught, and named.

The comparison must not rest on the translation, so each test here translates wrongly on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from quick import slow_but
from torch.nn import functional

import prism
from prism.api import load_compared
from prism.bench import functions
from prism.cli.app import main
from prism.errors import ConformanceError, RuleError, UnsupportedError
from prism.frontend.onnx import reader as onnx_frontend
from prism.frontend.onnx.graph import Graph, OnnxValue
from prism.frontend.onnx.graph import Node as OnnxNode
from prism.frontend.onnx.reader import from_model
from prism.frontend.torch import reader as torch_frontend
from prism.frontend.torch.values import Node
from prism.program import conformance, example_draws
from prism.program.build import const, div, mul, op, reduce, sub
from prism.program.conformance import Claim, Comparison
from prism.program.index import Axis, Index
from prism.program.nodes import Definition, DType, Expr, Program, Read, Tensor
from prism.program.transform import substitute

EXAMPLES = Path(__file__).parents[1] / "examples" / "models"


# torch


def misread(monkeypatch: pytest.MonkeyPatch, operator: str, wrong: Callable[[Node], Any]) -> None:
    monkeypatch.setattr(torch_frontend, "HANDLERS", {**torch_frontend.HANDLERS, operator: wrong})


def instead(operator: str, **arguments: Any) -> Callable[[Node], Any]:
    """The handler of an operator, told that some arguments are others than they are."""
    original = torch_frontend.HANDLERS[operator]

    def wrong(n: Node) -> Any:
        changed = {**{a: n[a] for a in n.unread()}, **arguments}
        return original(Node(n.builder, n.name, n.operator, n.origin, changed, n.shapes, n.dtypes))

    return wrong


def whole(expr: Callable[[Node], Any]) -> Callable[[Node], Any]:
    """A handler that reads every argument and defines a formula."""

    def wrong(n: Node) -> Any:
        n.values()
        return n.define(expr(n))

    return wrong


def unwrapped(n: Node) -> Any:
    """A sum as of real numbers."""
    n.values()
    expr = op("add", n["self"].under(n.axes), n["other"].under(n.axes))
    return n.builder.materialise(n.name, n.axes, expr, n.dtype, n.origin)


def remainder_to_nearest(n: Expr) -> Expr:
    """n % 2 by rounding n / 2 to the nearest."""
    return sub(n, mul(const(2.0), op("round", mul(n, const(0.5)))))


def shifted_by_the_least(n: Node) -> Expr:
    """A softmax along the last axis whose exponents are shifted by the least, which may be -inf."""
    x, j = n["self"].under(n.axes), n.axes[-1]
    k = Axis("k", j.extent)
    inner = substitute(x, {j: Index.axis(k)})
    least = reduce("min", k, inner)
    return div(op("exp", sub(x, least)), reduce("sum", k, op("exp", sub(inner, least))))


WRONG: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str, Callable[[Node], Any]]] = {
    "another function": (
        lambda x: torch.tanh(x) + 1,
        (torch.randn(4, 5),),
        "tanh",
        lambda n: n.define(op("sigmoid", n["self"].under(n.axes))),
    ),
    "an epsilon": (
        lambda x, g: functional.layer_norm(x, (6,), g, eps=1e-5),
        (torch.randn(4, 6), torch.randn(6)),
        "layer_norm",
        instead("layer_norm", eps=2e-5),
    ),
    "an epsilon in half precision": (
        lambda x, g: functional.layer_norm(x, (6,), g, eps=1e-5),
        (torch.randn(4, 6, dtype=torch.bfloat16), torch.randn(6, dtype=torch.bfloat16)),
        "layer_norm",
        instead("layer_norm", eps=2e-5),
    ),
    "the approximation": (
        lambda x: functional.gelu(x, approximate="tanh"),
        (torch.randn(8),),
        "gelu",
        instead("gelu", approximate="none"),
    ),
    "a tie": (
        lambda x: (x >= 0.5).float(),
        (torch.randn(3, 7),),
        "ge",
        whole(lambda n: op("lt", const(0.5), n["self"].under(n.axes))),
    ),
    "the axis": (lambda x: x.sum(0), (torch.randn(4, 4),), "sum", instead("sum", dim=[1])),
    "a view": (
        lambda x: x.flip(0) * 2,
        (torch.randn(4, 5),),
        "flip",
        whole(lambda n: n["self"].under(n.axes)),
    ),
    "integers that wrap": (
        lambda x, y: x + y,
        (torch.ones(5, dtype=torch.int8), torch.ones(5, dtype=torch.int8)),
        "add",
        unwrapped,
    ),
    "the sign of an infinity": (
        lambda x: functional.pad(x, (0, 1), value=-math.inf).amax(0),
        (torch.randn(4, 4),),
        "constant_pad_nd",
        instead("constant_pad_nd", value=math.inf),
    ),
    "what a mask leaves undefined": (
        lambda x: x.masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf).softmax(-1),
        (torch.randn(4, 4),),
        "softmax",
        whole(shifted_by_the_least),
    ),
    "a whole number's remainder": (
        lambda n: n % 2,
        (torch.arange(12).view(3, 4),),
        "remainder",
        whole(lambda n: remainder_to_nearest(n["self"].under(n.axes))),
    ),
    "a number to compare with": (
        lambda x: x != 2.5e-3,
        (torch.randn(7, dtype=torch.float64),),
        "ne",
        whole(lambda n: op("not", op("eq", n["self"].under(n.axes), const(2.6e-3)))),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_misread_node_of_torch_is_named(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, inputs, operator, wrong = WRONG[case]
    assert prism.trace(fn, inputs).conformance is not None
    misread(monkeypatch, operator, wrong)
    with pytest.raises(ConformanceError) as caught:
        prism.trace(fn, inputs)
    line = caught.value.one_line()
    assert f"prism misread aten.{operator}" in line
    assert "where torch has" in line or "not for torch" in line
    assert "please report it" in line
    assert "check=False" in line
    prism.trace(fn, inputs, check=False)


def test_the_node_that_was_misread_is_named_and_none_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (torch.exp(x).sum(-1) - 1).cos() / 3

    misread(monkeypatch, "exp", lambda n: n.define(op("exp", op("neg", n["self"].under(n.axes)))))
    with pytest.raises(ConformanceError, match=r"misread aten.exp.default \(exp\)"):
        prism.trace(fn, (torch.randn(3, 4),))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_large_extents_are_reduced_and_their_work_is_bounded(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w)

    inputs = (torch.zeros(8192, 4096, device=device), torch.zeros(4096, 2048, device=device))
    made = prism.trace(fn, inputs).conformance
    assert made is not None
    assert made.extents == "x[12, 16], w[16, 24]"
    assert ("example" in made.draws) == (device == "cpu")
    assert made.elements < 20_000
    misread(monkeypatch, "tanh", lambda n: n.define(op("sigmoid", n["self"].under(n.axes))))
    with pytest.raises(ConformanceError, match=r"misread aten\.tanh"):
        prism.trace(fn, inputs)


def test_weights_that_cannot_be_reduced_are_compared_in_float32_on_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2048, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 2048))
    x = torch.randn(16, 2048)
    made = prism.trace(module, (x,)).conformance
    assert made is not None
    assert made.against.endswith("float32")
    assert made.draws[0] == "example"
    assert made.elements < 200_000
    misread(monkeypatch, "gelu", instead("gelu", approximate="tanh"))
    with pytest.raises(ConformanceError, match=r"misread aten\.gelu"):
        prism.trace(module, (x,))


def test_what_is_compared_in_float32_has_inputs_of_float32() -> None:
    """A view of an input is that input: here the statistics of a batch norm, whose images are too many for float64."""

    def fn(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(functional.conv2d(x, w, padding=1, groups=x.shape[1]), m, v, m, v)

    shapes = [(32, 128, 56, 56), (128, 1, 3, 3), (128,), (128,)]
    made = prism.trace(fn, [torch.empty(s, device="meta") for s in shapes]).conformance
    assert made is not None
    assert made.against.endswith("float32")
    assert made.draws


def test_symbolic_extents_are_compared_at_others_as_well() -> None:
    seq = torch.export.Dim("seq", min=2, max=4096)
    program = prism.trace(lambda x: x.sum(0) / x.shape[0], (torch.randn(5, 3),), dynamic_shapes=[{0: seq}])
    made = program.conformance
    assert made is not None
    assert len(made.draws) == 1 + len(example_draws.DRAWS)


def test_a_function_that_takes_no_smaller_inputs_says_that_it_was_not_compared() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.view(8192, 8192).t() * 2

    made = prism.trace(fn, (torch.empty(8192, 8192, device="meta"),)).conformance
    assert made is not None
    assert not made.draws
    assert "too large" in made.missing
    assert str(made).startswith("not compared with the model")


def test_what_every_call_gives_anew_is_refused_and_no_misreading() -> None:
    calls = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * (1.0 if len(calls) < 2 else float(np.random.default_rng().random()))

    with pytest.raises(UnsupportedError, match="another result when it is called again"):
        prism.trace(fn, (torch.randn(3),))


def test_a_graph_that_is_not_the_function_is_refused() -> None:
    seen: list[int] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return x * (2.0 if len(seen) == 1 else 3.0)

    with pytest.raises(ConformanceError, match="is not the function"):
        prism.trace(fn, (torch.randn(3),))


def test_a_decomposition_that_is_not_the_operator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own are taken apart by formulas of its own, and one of them counts what is only padding."""
    labels = torch.tensor([[3, 0, -1, 1], [1, 2, -1, 0]])
    with pytest.raises(UnsupportedError, match="computes something else"):
        prism.trace(functional.multilabel_margin_loss, (torch.randn(2, 4), labels))

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return torch.log(1 + x) + 1e-2

    operator = torch.ops.aten.special_log_ndtr.default
    right = torch_frontend._default_decompositions()
    monkeypatch.setattr(torch_frontend, "_default_decompositions", lambda: {**right, operator: wrong})
    with pytest.raises(UnsupportedError, match="special_log_ndtr"):
        prism.trace(torch.special.log_ndtr, (torch.rand(3),))


def test_products_that_overflow_tell_nothing_of_a_decomposition() -> None:
    """As of a deep network's gradients, where statistics that are drawn multiply up."""

    def fn(g: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, by: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        asked = [True, True, True]
        found = torch.ops.aten.native_layer_norm_backward(g * 1e304, x, [8], mean, by, w, w, asked)
        return found[0]  # type: ignore[no-any-return]

    given = (torch.zeros(32, 8), torch.randn(32, 8), torch.randn(32, 1), torch.rand(32, 1), torch.rand(8))
    made = prism.trace(fn, given).conformance
    assert made is not None
    assert made.draws[0] == "example"


@pytest.mark.parametrize("norm", [lambda x: functional.batch_norm(x, None, None, training=True), torch.var])
def test_what_is_left_where_equal_numbers_cancel_out_is_rounding(norm: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Rows that are all the bias, off their mean: last bits of torch's kernel, none of its decomposition."""
    bias = torch.tensor([0.1, -0.3, 0.7, 1.1, -1.3, 1.7])
    made = prism.trace(lambda x: norm(x * 0 + bias), (torch.randn(5, 6),)).conformance
    assert made is not None
    assert "zeros" in made.draws


def test_what_torch_makes_of_nan_is_noted_and_no_misreading() -> None:
    made = prism.trace(
        torch.hypot, (torch.tensor([1.0, -2.0, math.nan]), torch.tensor([1.0, 2.0, math.inf]))
    ).conformance
    assert made is not None
    assert any(text.startswith("example: aten.hypot") for text in made.skipped)

    def fn(x: torch.Tensor) -> torch.Tensor:
        root = torch.sqrt(x)  # of what is drawn below 0, too
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(root, root, root)[0]  # type: ignore[no-any-return]

    made = prism.trace(fn, (torch.rand(1, 1, 4, 8),)).conformance
    assert made is not None
    assert any(text.startswith("mixed: aten._scaled_dot_product") for text in made.skipped)


def test_undefined_conversions_are_no_misreading() -> None:
    made = prism.trace(lambda x: (x * 1e9).to(torch.int32), (torch.randn(4),)).conformance
    assert made is not None
    assert made.draws == ("example", *example_draws.DRAWS)


def test_integers_that_index_are_drawn_as_the_function_takes_them() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.gather(1, i)

    made = prism.trace(fn, (torch.randn(4, 5), torch.randint(0, 5, (4, 3)))).conformance
    assert made is not None
    assert "large" in made.draws
    assert not made.missing


def test_a_function_that_writes_to_its_argument_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="it changes"):
        prism.trace(lambda x: x.add_(1) * 2, (torch.randn(3),))


def test_a_declaration_that_is_not_the_operator_is_a_rule_error(tmp_path: Path) -> None:
    @torch.library.custom_op("conformance_test::bump", mutates_args=())
    def bump(x: torch.Tensor) -> torch.Tensor:
        return x * x + 1

    @bump.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    rules = tmp_path / "own.egg"
    rules.write_text('(operator bump (x) "x * x")\n')
    with pytest.raises(RuleError, match=r"the declaration of conformance_test\.bump\.default is not what"):
        prism.trace(lambda x: bump(x) * 2, (torch.randn(4),), rules=[rules])
    rules.write_text('(operator bump (x) "x * x + 1")\n')
    assert prism.trace(lambda x: bump(x) * 2, (torch.randn(4),), rules=[rules]).conformance is not None


def heads(s: int = 6) -> tuple[torch.Tensor, ...]:
    return torch.randn(1, 4, s, 8), torch.randn(1, 2, s, 8), torch.randn(1, 2, s, 8)


SUITE: dict[str, Callable[[], Sequence[torch.Tensor]]] = {
    "rmsnorm_linear": lambda: (torch.randn(4, 8), torch.randn(8), torch.randn(6, 8)),
    "rmsnorm_gate_up": lambda: (torch.randn(4, 8), torch.randn(8), torch.randn(6, 8), torch.randn(6, 8)),
    "gated_mlp": lambda: (torch.randn(4, 8), torch.randn(6, 8), torch.randn(6, 8), torch.randn(8, 6)),
    "gqa_decode": lambda: (torch.randn(2, 4, 1, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)),
    "gqa_prefill": heads,
}


HALVES = torch.float16, torch.bfloat16
ROUNDED = [(name, dtype) for name in SUITE for dtype in (*HALVES, torch.float32)]
FEW = [(name, HALVES[n % 2]) for n, name in enumerate(SUITE)] + [("gqa_prefill", torch.float32)]


@pytest.mark.parametrize(("name", "dtype"), slow_but(FEW, ROUNDED), ids=str)
def test_rounding_is_no_misreading(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    made = prism.trace(getattr(functions, name), tuple(t.to(dtype) for t in SUITE[name]())).conformance
    assert made is not None
    assert made.draws == ("example", *example_draws.DRAWS)
    assert not made.skipped
    assert not made.missing


def test_what_a_kernel_rounds_where_a_formula_has_nothing_left_is_no_misreading() -> None:
    """Groups of one element: `x - mean(x)` is 0 by the formula, and `x*r - mean(x)*r` is not by torch's kernel."""

    def normed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return functional.group_norm(x @ w + b, 16, g, b)

    shapes = (12, 24), (24, 16), (16,), (16,)
    record = prism.trace(normed, [torch.empty(s, device="meta") for s in shapes]).conformance
    assert record is not None
    assert len(record.draws) > 4


# ONNX


def model(*nodes: onnx.NodeProto, shape: Sequence[Any] = (3, 4), dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", dtype, list(shape))],
        [helper.make_tensor_value_info("y", dtype, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def misread_onnx(monkeypatch: pytest.MonkeyPatch, operator: str, by: str) -> None:
    table = {**onnx_frontend.TRANSLATORS, operator: onnx_frontend.TRANSLATORS[by]}
    monkeypatch.setattr(onnx_frontend, "TRANSLATORS", table)


@pytest.mark.parametrize("shape", [(3, 4), ("n", 4), (2000, 3000), (16384, 8192)], ids=str)
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_misread_node_of_onnx_is_named(shape: Sequence[Any], dtype: int, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], name="first"),
        helper.make_node("Sin", ["e"], ["s"], name="second"),
        helper.make_node("Neg", ["s"], ["y"], name="third"),
    ]
    built = model(*nodes, shape=shape, dtype=dtype)
    made = from_model(built, "m", None).conformance
    assert made is not None
    assert made.draws
    assert made.elements < 2_000_000
    misread_onnx(monkeypatch, "Sin", "Cos")
    with pytest.raises(ConformanceError) as caught:
        from_model(built, "m", None)
    line = caught.value.one_line()
    assert "prism misread node 'second' (Sin)" in line
    assert "--no-check" in line
    from_model(built, "m", None, check=False)


def test_the_command_ends_in_an_internal_error_and_goes_on_without_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(helper.make_node("Sin", ["x"], ["y"], name="wave")), path)
    assert main(["show", str(path)]) == 0
    assert "compared with onnx.reference" in capsys.readouterr().out
    misread_onnx(monkeypatch, "Sin", "Cos")
    assert main(["show", str(path)]) == 1
    assert "prism misread node 'wave' (Sin)" in capsys.readouterr().err
    assert main(["show", str(path), "--no-check"]) == 0
    assert "not compared" in capsys.readouterr().out


def test_a_node_that_no_runtime_evaluates_is_named_and_the_rest_compared(tmp_path: Path) -> None:
    rules = tmp_path / "own.egg"
    rules.write_text('(operator bump (x) "x * x")\n')
    nodes = [
        helper.make_node("bump", ["x"], ["b"], name="own", domain="prism"),
        helper.make_node("Sin", ["b"], ["y"], name="wave"),
    ]
    built = model(*nodes)
    built.opset_import.append(helper.make_opsetid("prism", 1))
    path = tmp_path / "m.onnx"
    onnx.save(built, path)
    made = prism.load_onnx(path, rules=[rules]).conformance
    assert made is not None
    assert made.missing == "not compared: node 'own' (bump)"
    assert made.draws


@pytest.mark.parametrize("opset", [7, 9, 13, 14, 15])
def test_a_batch_norm_is_compared_as_of_a_trained_model(opset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference runtime trains versions 9 to 13, and nothing but onnxruntime, an extra, said otherwise."""
    monkeypatch.setattr("prism.frontend.onnx.conformance._onnxruntime", lambda *_, **__: None)
    numbers = [f"v{n}" for n in range(4)]
    built = model(helper.make_node("BatchNormalization", ["x", *numbers], ["y"], momentum=0.7, epsilon=0.01))
    rng = np.random.default_rng(0)
    built.graph.initializer.extend(numpy_helper.from_array(rng.random(4).astype(np.float32), n) for n in numbers)
    built.opset_import[0].version, built.ir_version = opset, 8
    made = from_model(built, "m", None).conformance
    assert made is not None
    assert made.draws
    assert not made.missing


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.onnx")), ids=lambda p: p.stem)
def test_every_example_is_compared(path: Path) -> None:
    made = prism.load_onnx(path).conformance
    assert made is not None
    assert made.draws
    assert not made.missing
    assert not made.skipped
    assert made.elements < 2_000_000


# The comparison itself


def one(expr: Any, axes: tuple[Axis, ...], dtype: DType = DType.FLOAT32, of: DType = DType.FLOAT32) -> Comparison:
    shape = tuple(a.extent for a in axes)
    program = Program("p", (Tensor("x", shape, of),), (Definition("y", axes, expr, dtype, "node"),), ("y",))
    return Comparison(program, [Claim("y", "node", dtype, "y")], {})


PLACES = Axis("i", 50)
X = Read("x", (Index.axis(PLACES),))


def test_a_tie_is_excused_where_rounding_decides_it_alone() -> None:
    x = np.full(50, 2.5)
    rounded = one(op("floor", op("add", X, const(0.5))), (PLACES,))
    assert rounded.difference({"x": x}, {"y": np.round(x)}, {}) is None
    exact = one(op("floor", X), (PLACES,))
    assert exact.difference({"x": np.full(50, 3.0)}, {"y": np.full(50, 2.0)}, {}) is not None


def test_a_cancelled_sum_is_excused_and_a_wrong_one_is_not() -> None:
    x = np.linspace(1, 2, 50) * 1e6
    sub = one(op("add", op("mul", X, const(1e3)), op("neg", op("mul", X, const(1e3 - 1e-9)))), (PLACES,))
    exact = (x.astype(np.longdouble) * 1e3 - x.astype(np.longdouble) * (1e3 - 1e-9)).astype(np.float64)
    assert sub.difference({"x": x}, {"y": exact}, {}) is None
    assert sub.difference({"x": x}, {"y": exact + 1.0}, {}) is not None


def test_what_lies_below_the_smallest_normal_number_may_be_flushed_to_zero() -> None:
    x = np.linspace(1, 2, 50) * 1e-30
    product = one(op("mul", X, const(1e-15)), (PLACES,))
    assert product.difference({"x": x}, {"y": np.zeros(50)}, {}) is None
    assert product.difference({"x": x * 1e12}, {"y": np.zeros(50)}, {}) is not None


def test_integers_are_exact_up_to_two_to_the_fifty_third() -> None:
    x = np.arange(50)
    same = one(op("add", X, const(2.0**40)), (PLACES,), DType.INT64, DType.INT64)
    assert same.difference({"x": x}, {"y": x + 2**40}, {}) is None
    assert same.difference({"x": x}, {"y": x + 2**40 + (x == 7)}, {}) is not None


def test_a_sample_meets_every_residue_and_the_last_place() -> None:
    places = conformance._spread(4096, 64)
    taken = {places.first + places.step * n for n in range(places.count)}
    assert max(taken) == 4095
    assert min(taken) >= 0
    assert {t % 64 for t in taken} == set(range(64))


def test_shapes_and_types_are_compared() -> None:
    c = one(X, (PLACES,))
    found = c.difference({"x": np.zeros(50)}, {"y": np.zeros((50, 1))}, {})
    assert found is not None
    assert "shape" in found.what
    other = replace(c.claims[0], dtype=DType.FLOAT16)
    found = Comparison(c.program, [other], {}).difference({"x": np.zeros(50)}, {"y": np.zeros(50)}, {})
    assert found is not None
    assert "stored as" in found.what


def test_a_long_chain_is_compared_on_fewer_inputs_and_an_endless_one_on_none() -> None:
    def chain(many: int) -> onnx.ModelProto:
        names = ["x", *(f"v{n}" for n in range(many - 1)), "y"]
        nodes = [helper.make_node("LeakyRelu", [a], [b], alpha=1.0 + n) for n, (a, b) in enumerate(pairwise(names))]
        return model(*nodes)

    short, long = from_model(chain(20), "m", None).conformance, from_model(chain(9000), "m", None).conformance
    assert short is not None
    assert long is not None
    assert len(short.draws) == len(example_draws.DRAWS)
    assert not long.draws
    assert "too large" in long.missing


# Equal nodes


def layers(many: int, tokens: int = 512, width: int = 128, twice: bool = False) -> onnx.ModelProto:
    """Equal layers whose extents no other take: the number of tokens is a constant of each."""
    random = np.random.default_rng(0)
    held = [numpy_helper.from_array(np.array([tokens // 2, 2, width]), "shape")]
    held.append(numpy_helper.from_array(np.array([tokens, width]), "back"))
    nodes, x = [], "x"
    for n in range(many):
        weight = random.standard_normal((width, width), np.float32) / width**0.5
        held.append(numpy_helper.from_array(weight, f"w{n}"))
        steps = [("MatMul", [x, f"w{n}"]), ("Reshape", [f"a{n}", "shape"]), ("Sin", [f"b{n}"])]
        steps += [("Softmax", [f"c{n}"]), ("Reshape", [f"d{n}", "back"]), ("Add", [f"e{n}", x])]
        nodes += [
            helper.make_node(op, given, [f"{letter}{n}"], name=f"{op} {letter}{n}")
            for letter, (op, given) in zip("abcdef", steps, strict=True)
        ]
        x = f"f{n}"
    if twice:  # what is the same tensor for the program
        nodes += [helper.make_node("Identity", [x], ["again"]), helper.make_node("Add", ["again", x], ["both"])]
        x = "both"
    nodes.append(helper.make_node("Neg", [x], ["y"]))
    made = model(*nodes, shape=(tokens, width))
    made.graph.initializer.extend(held)
    return made


@pytest.mark.parametrize("twice", [False, True])
def test_of_equal_layers_one_is_compared(twice: bool) -> None:
    made = from_model(layers(30, twice=twice), "m", None).conformance
    assert made is not None
    assert made.draws
    assert not made.extents
    assert not made.missing
    assert made.once == f"equal operators once, {7 + 2 * twice} of {181 + 2 * twice}"
    assert made.once in str(made)
    few = from_model(layers(1), "m", None).conformance
    assert few is not None
    assert not few.once  # so little is compared as a whole


@pytest.mark.parametrize("label", ["Sin c0", "Sin c29", "Softmax d29", "Add f29"])
def test_one_layer_that_is_misread_equals_none(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = label.split()[0]
    right = onnx_frontend.TRANSLATORS[operator]

    def wrong(graph: Graph, node: OnnxNode) -> Sequence[OnnxValue]:
        if node.label != label:
            return right(graph, node)
        return onnx_frontend.TRANSLATORS[{"Sin": "Cos", "Softmax": "LogSoftmax", "Add": "Sub"}[operator]](graph, node)

    monkeypatch.setattr(onnx_frontend, "TRANSLATORS", {**onnx_frontend.TRANSLATORS, operator: wrong})
    with pytest.raises(ConformanceError, match=rf"prism misread node '{label}' \({operator}\)"):
        from_model(layers(30), "m", None)


def test_nodes_of_other_constants_attributes_or_bounds_are_not_equal() -> None:
    """Each of these tells two nodes apart that are alike in all else."""
    wide = 1 << 21
    held = {
        "one": np.array([1], np.int64),
        "two": np.array([2], np.int64),
        "half": np.array([wide // 2], np.int64),
        "few": np.array([0, 1], np.int64),
        "back": np.array([0, -1], np.int64),
    }
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["a"], axis=1),
        helper.make_node("Gather", ["x", "few"], ["g"], axis=0),
        helper.make_node("Gather", ["x", "back"], ["h"], axis=0),
        helper.make_node("Elu", ["g"], ["i"], alpha=1.0),
        helper.make_node("Elu", ["h"], ["j"], alpha=2.0),
        helper.make_node("Elu", ["i"], ["k"], alpha=1.0),
        helper.make_node("Add", ["j", "k"], ["m"]),
        helper.make_node("Slice", ["a", "one", "half", "one"], ["s"]),
        helper.make_node("Slice", ["a", "two", "half", "one"], ["t"]),
        helper.make_node("ReduceSum", ["m"], ["y"], keepdims=0),
    ]
    built = model(*nodes, shape=(3, wide))
    built.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in held.items())
    made = from_model(built, "m", None).conformance
    assert made is not None
    assert made.draws


def test_a_node_that_is_too_large_is_compared_alone_at_smaller_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of many rows, between two views whose sizes the model fixes."""
    tokens, width = 1 << 15, 64
    held = [
        numpy_helper.from_array(np.array([tokens // 2, 2, width]), "shape"),
        numpy_helper.from_array(np.ones((width, 2048), np.float32), "w"),
    ]
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["a"], name="view"),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="large"),
        helper.make_node("Sin", ["b"], ["c"], name="larger"),
        helper.make_node("ReduceSum", ["c", "last"], ["y"], keepdims=0, name="sum"),
    ]
    built = model(*nodes, shape=(tokens, width))
    built.graph.initializer.extend([*held, numpy_helper.from_array(np.array([2]), "last")])
    made = from_model(built, "m", None).conformance
    assert made is not None
    assert made.draws
    assert "alone at smaller extents" in made.once
    assert not made.missing
    with monkeypatch.context() as patch:
        misread_onnx(patch, "Sin", "Cos")
        with pytest.raises(ConformanceError, match="prism misread node 'larger'"):
            from_model(built, "m", None)
    right = onnx_frontend.TRANSLATORS["MatMul"]

    def negated(graph: Graph, node: OnnxNode) -> Sequence[OnnxValue]:
        return [graph.pointwise(node, right(graph, node), lambda x: op("neg", x))]

    monkeypatch.setattr(onnx_frontend, "TRANSLATORS", {**onnx_frontend.TRANSLATORS, "MatMul": negated})
    with pytest.raises(ConformanceError, match="prism misread node 'large'"):
        from_model(built, "m", None)


class Layers(torch.nn.Module):
    """Equal layers whose number of tokens is fixed."""

    def __init__(self, many: int) -> None:
        super().__init__()
        self.products = torch.nn.ModuleList([torch.nn.Linear(128, 128) for _ in range(many)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for product in self.products:
            a, b = product(x).view(256, 2, 128).chunk(2, 1)
            x = x + torch.cat([a.sin(), functional.gelu(b)], 1).view(512, 128)
        return x.view(64, 1024).sum(-1)


def test_of_equal_layers_of_a_function_one_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    fn, inputs = Layers(40), (torch.randn(512, 128),)
    made = prism.trace(fn, inputs).conformance
    assert made is not None
    assert made.draws[0] == "example"
    assert not made.missing
    assert made.once.startswith("equal operators once, ")
    assert int(made.once.split()[-3]) < 20
    right = torch_frontend.HANDLERS["sin"]

    def wrong(n: Node) -> Any:
        return n.define(op("cos", n["self"].under(n.axes))) if n.name == "sin_39" else right(n)

    misread(monkeypatch, "sin", wrong)
    with pytest.raises(ConformanceError, match=r"misread aten\.sin\.default \(sin_39"):
        prism.trace(fn, inputs)


def test_fractions_of_a_class_are_cut_off_as_the_text_says_and_compared_with_none(tmp_path: Path) -> None:
    """onnxruntime, which cuts off none, is no judge of them."""
    text = """<ir_version: 10, opset_import: ["" : 18]>
    m (float[3, 2] i, float[2] v) => (float[3, 5, 2] y) <int64 many = {5}> { y = OneHot <axis = 1> (i, many, v) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    program, _ = load_compared(tmp_path / "m.onnx")
    assert "OneHot" in str(program.conformance)
