"""Convolution, pooling and padding, in both readers: against torch, which is no part of either's definitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from formulas import evaluate_formula
from frontend_onnx_models import model, node_model, run_program

from prism.backends.eager import TorchArrays
from prism.errors import PrismError
from prism.frontend.onnx.reader import from_model
from prism.frontend.torch.reader import trace
from prism.program.evaluate import Interpreter, evaluate_expr, run
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import Const, Expr, Map, Position, Program, Read, Reduce, ReduceKind, walk

RNG = np.random.default_rng(3)


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def agrees(program: Program, given: Mapping[str, np.ndarray], expected: torch.Tensor) -> None:
    (found,) = run_program(program, given)
    assert found.shape == tuple(expected.shape)
    np.testing.assert_allclose(found, expected.double().numpy(), rtol=1e-4, atol=1e-4)


X1, X2, X3 = f(2, 4, 7), f(2, 4, 5, 6), f(1, 2, 4, 3, 5)
INFINITE = np.where(f(1, 2, 9) > 0.5, -np.inf, f(1, 2, 9)).astype(np.float32)

# (operator, its operands, its attributes, the same by torch)
ONNX: list[tuple[str, list[np.ndarray], dict[str, Any], Callable[..., torch.Tensor]]] = [
    (
        "Conv",
        [X1, f(6, 2, 3), f(6)],
        {"group": 2, "strides": [2], "dilations": [2], "pads": [2, 2]},
        lambda x, w, b: F.conv1d(x, w, b, stride=2, dilation=2, padding=2, groups=2),
    ),
    ("Conv", [X2, f(4, 1, 2, 3)], {"group": 4}, lambda x, w: F.conv2d(x, w, groups=4)),
    (
        "Conv",
        [X3, f(2, 2, 1, 3, 2)],
        {"pads": [0, 1, 0, 0, 1, 0]},
        lambda x, w: F.conv3d(x, w, padding=(0, 1, 0)),
    ),
    ("Conv", [X1, f(3, 4, 1)], {"auto_pad": "VALID"}, F.conv1d),
    (
        "ConvTranspose",
        [X2, f(4, 3, 2, 2), f(6)],
        {"group": 2, "strides": [2, 2]},
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, groups=2),
    ),
    (
        "ConvTranspose",
        [X2, f(4, 3, 3, 4)],
        {"strides": [2, 3], "pads": [1, 0, 1, 0], "output_padding": [1, 2]},
        lambda x, w: F.conv_transpose2d(x, w, stride=(2, 3), padding=(1, 0), output_padding=(1, 2)),
    ),
    (
        "ConvTranspose",
        [X1, f(4, 2, 3)],
        {"strides": [3], "dilations": [2], "pads": [1, 1]},
        lambda x, w: F.conv_transpose1d(x, w, stride=3, dilation=2, padding=1),
    ),
    ("ConvTranspose", [X1, f(4, 2, 3)], {"dilations": [3]}, lambda x, w: F.conv_transpose1d(x, w, dilation=3)),
    ("ConvTranspose", [X1, f(4, 2, 2)], {"strides": [3]}, lambda x, w: F.conv_transpose1d(x, w, stride=3)),
    (
        "AveragePool",
        [X1],
        {"kernel_shape": [3], "strides": [3], "pads": [1, 1], "ceil_mode": 1},
        lambda x: F.avg_pool1d(x, 3, 3, 1, ceil_mode=True, count_include_pad=False),
    ),
    (
        "AveragePool",
        [X2],
        {"kernel_shape": [2, 3], "strides": [3, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1, "count_include_pad": 1},
        lambda x: F.avg_pool2d(x, (2, 3), (3, 2), 1, ceil_mode=True),
    ),
    (
        "MaxPool",
        [X2],
        {"kernel_shape": [3, 2], "strides": [2, 1], "dilations": [2, 1], "pads": [1, 1, 1, 1]},
        lambda x: F.max_pool2d(x, (3, 2), (2, 1), 1, (2, 1)),
    ),
    (
        "MaxPool",
        [INFINITE],
        {"kernel_shape": [3], "strides": [2], "pads": [1, 1], "ceil_mode": 1},
        lambda x: F.max_pool1d(x, 3, 2, 1, ceil_mode=True),
    ),
    (
        "MaxPool",
        [-np.arange(1, 8, dtype=np.int8).reshape(1, 1, 7)],
        {"kernel_shape": [3], "pads": [1, 1]},
        lambda x: F.max_pool1d(x.double(), 3, 1, 1),
    ),
    ("LpPool", [X1], {"kernel_shape": [2], "strides": [2], "p": 3}, lambda x: F.lp_pool1d(x.abs(), 3.0, 2)),
    ("GlobalLpPool", [X3], {"p": 3}, lambda x: torch.linalg.vector_norm(x, 3, (2, 3, 4), keepdim=True)),
    ("GlobalMaxPool", [X1], {}, lambda x: x.amax(2, keepdim=True)),
    ("GlobalAveragePool", [X3], {}, lambda x: x.mean((2, 3, 4), keepdim=True)),
]


@pytest.mark.parametrize("case", ONNX, ids=lambda c: f"{c[0]}-{c[2]}")
def test_onnx(case: tuple[str, Sequence[np.ndarray], Mapping[str, Any], Callable[..., torch.Tensor]]) -> None:
    name, arrays, attributes, meant = case
    built, given = node_model(name, arrays, attributes, 18)
    agrees(from_model(built, "m.onnx", None), given, meant(*map(torch.from_numpy, arrays)))


PADS = [
    ("constant", [0, -1, 2, 1, 3, 0], 18, lambda x: F.pad(x, (2, 0, -1, 3, 0, 1), value=1.5)),
    ("reflect", [0, 0, 4, 0, 0, 2], 18, lambda x: F.pad(x, (4, 2), mode="reflect")),
    ("edge", [0, 0, 9, 0, 0, 1], 18, lambda x: F.pad(x, (9, 1), mode="replicate")),
    ("wrap", [0, 0, 5, 0, 0, 7], 19, lambda x: F.pad(x, (5, 7), mode="circular")),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "pads", "opset", "meant"), PADS, ids=[p[0] for p in PADS])
def test_onnx_padding(mode: str, pads: list[int], opset: int, meant: Callable[[torch.Tensor], torch.Tensor]) -> None:
    arrays = [X1, np.array(pads), np.array(1.5, np.float32)][: 3 if mode == "constant" else 2]
    built, given = node_model("Pad", arrays, {"mode": mode}, opset, fixed=range(1, len(arrays)))
    agrees(from_model(built, "m.onnx", None), given, meant(torch.from_numpy(X1)))


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        ("MaxPool", [X1], {"kernel_shape": [2], "pads": [2, 2]}),
        ("MaxPool", [X1], {"kernel_shape": [3], "strides": [2], "auto_pad": "VALID", "ceil_mode": 1}),
        ("AveragePool", [X1], {"kernel_shape": [3], "dilations": [2], "auto_pad": "SAME_UPPER"}),
        ("Conv", [X1, f(2, 4, 9)], {}),
        ("Conv", [X1, f(2, 3, 3)], {}),
        ("Conv", [X1, f(2, 4, 3)], {"auto_pad": "SAME_UPPER", "pads": [1, 1]}),
        ("ConvTranspose", [X1, f(4, 2, 1)], {"strides": [3], "auto_pad": "SAME_UPPER"}),
    ],
)
def test_what_runtimes_differ_about_is_refused(op: str, arrays: list[np.ndarray], attributes: dict[str, Any]) -> None:
    built, _ = node_model(op, arrays, attributes, 19)
    with pytest.raises(PrismError):
        from_model(built, "m.onnx", None)


def test_sizes_may_be_symbolic() -> None:
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], strides=[2], pads=[1, 0])
    built = model([node], {"x": (1, ["n", 3, "t"])}, ["y"], {"w": f(2, 3, 4)}, 18)
    program = from_model(built, "m.onnx", None)
    assert program.ranges["t"].low == 3  # of fewer there is no window
    x = f(2, 3, 8)
    weights = torch.from_numpy(np.array(program.weights["w"]))
    agrees(program, {"x": x}, F.conv1d(F.pad(torch.from_numpy(x), (1, 0)), weights, stride=2))


TORCH: list[tuple[Callable[..., torch.Tensor], list[np.ndarray]]] = [
    (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1, groups=2), [X2, f(4, 2, 3, 3)]),
    (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=5), [X2]),
    (lambda x: F.max_pool3d(x, 2, 1, 1), [X3]),
    (lambda x: F.max_pool2d(x[0], 2), [X2]),
    (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), [X2]),
    (lambda x: F.adaptive_max_pool1d(x, 3), [X1]),
    (lambda x: F.max_pool2d(x.round(), 3, 2, 1, return_indices=True)[1], [X2]),
    (lambda x: F.max_pool1d(x, 3, 2, 1, ceil_mode=True, return_indices=True)[1], [INFINITE]),
    (lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True)[1] * 2, [X2]),
    (lambda x: F.lp_pool2d(x, 2, 2), [X2]),
    (lambda x: F.pad(x, (1, -2, 3, 0), value=2.0), [X1]),
]


@pytest.mark.parametrize("place", range(len(TORCH)))
def test_torch(place: int) -> None:
    function, arrays = TORCH[place]
    tensors = [torch.from_numpy(a) for a in arrays]
    program = trace(function, tensors, name="windows")
    given = {t.name: a for t, a in zip(program.inputs, arrays, strict=False)}
    agrees(program, given, function(*tensors))


class Recording(TorchArrays):
    """What is computed by torch's functions for windows: how many windows see how many taps."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), torch.float32)
        self.seen: list[tuple[str, int, list[int]]] = []

    def windowed(self, kind: ReduceKind, *args: Any) -> torch.Tensor | None:
        """See TorchArrays."""
        groups, windows = args[2:]
        self.seen.append((kind.name, groups, [int(w.taps) for w in windows]))
        return super().windowed(kind, *args)


# (function, its operands, the reduction, groups, and taps that the library's function is called with)
KNOWN: list[tuple[Callable[..., torch.Tensor], list[np.ndarray], str, int, list[int]]] = [
    (lambda x, w: F.conv1d(x, w, stride=2, dilation=2, padding=3), [X1, f(6, 4, 3)], "SUM", 1, [3]),
    (lambda x, w: F.conv2d(x, w, padding=1), [X2, f(3, 4, 3, 3)], "SUM", 1, [3, 3]),
    (lambda x, w: F.conv2d(F.pad(x, (1, 2, 0, 3)), w, stride=(1, 2)), [X2, f(3, 4, 2, 3)], "SUM", 1, [2, 3]),
    (lambda x, w: F.conv2d(x, w, padding=2, groups=2), [X2, f(6, 2, 5, 5)], "SUM", 2, [5, 5]),
    (lambda x, w: F.conv2d(torch.relu(x), 2 * w, padding=1, groups=4), [X2, f(8, 1, 3, 3)], "SUM", 4, [3, 3]),
    (lambda x, w: F.conv3d(x, w, padding=1), [X3, f(2, 2, 3, 3, 2)], "SUM", 1, [3, 3, 2]),
    (lambda x: F.max_pool1d(x, 3, 2, 1), [X1], "MAX", 1, [3]),
    (lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2), [X2], "MAX", 1, [3, 3]),
    (lambda x: F.avg_pool1d(x, 3, 1, 1), [X1], "SUM", 1, [3]),
    (lambda x: F.avg_pool3d(x, 2, 1), [X3], "SUM", 1, [2, 2, 2]),
]


@pytest.mark.parametrize("place", range(len(KNOWN)))
def test_torch_computes_windows_by_its_own_functions(place: int) -> None:
    function, arrays, kind, groups, taps = KNOWN[place]
    tensors = [torch.from_numpy(a) for a in arrays]
    program = trace(function, tensors, name="windows")
    arrays_of = Recording()
    given = {t.name: x for t, x in zip(program.inputs, tensors, strict=True)}
    found = run(program, given, {}, arrays_of)[program.outputs[0]]
    torch.testing.assert_close(found, function(*tensors), rtol=1e-4, atol=1e-4)
    assert arrays_of.seen == [(kind, groups, taps)]


PIXEL, K = Axis("i", 6), Axis("k", 3)
AT = Index.axis(PIXEL) + Index.axis(K)
SEEN = Read("x", (AT + (-1),))
HERE = op("le", Const(1.0), Position(AT))
WEIGHT, FACTOR = Read("w", (Index.axis(K),)), Read("v", (Index.axis(PIXEL),))


@pytest.mark.parametrize(
    ("kind", "body", "windows"),
    [
        (ReduceKind.SUM, op("mul", op("where", HERE, SEEN, Const(0.0)), WEIGHT), 1),
        (ReduceKind.SUM, op("mul", op("where", HERE, SEEN, Const(1.0)), WEIGHT), 0),  # ones beside what is seen
        (ReduceKind.SUM, op("mul", op("mul", SEEN, WEIGHT), FACTOR), 0),  # a factor for each pixel
        (ReduceKind.SUM, op("mul", Read("x", (Index.axis(K) + Index.axis(PIXEL).scaled(-1) + 5,)), WEIGHT), 0),
        (ReduceKind.SUM, op("mul", SEEN, Read("x", (AT,))), 0),  # no weights
        (ReduceKind.MAX, op("where", HERE, SEEN, Const(-math.inf)), 1),
        (ReduceKind.MAX, SEEN, 0),  # zeros, and no -inf, beside what is seen
        (ReduceKind.MAX, op("where", HERE, SEEN, Const(0.0)), 0),
    ],
)
def test_only_a_window_is_one(kind: ReduceKind, body: Expr, windows: int) -> None:
    arrays = {"x": f(9) - 2, "w": f(3), "v": f(6)}
    expr = Reduce(kind, K, body)
    arrays_of = Recording()
    found = Interpreter({n: torch.from_numpy(a) for n, a in arrays.items()}, {}, arrays_of).value(expr)
    np.testing.assert_allclose(found.array.numpy(), evaluate_expr(expr, arrays, {}, (PIXEL,)), rtol=1e-5, atol=1e-5)
    assert len(arrays_of.seen) == windows


def test_both_readers_make_one_formula() -> None:
    built, _ = node_model("Conv", [X1, f(6, 2, 3)], {"group": 2, "pads": [1, 1]}, 18)
    theirs = trace(
        lambda in0, in1: F.conv1d(in0, in1, padding=1, groups=2), [torch.from_numpy(X1), torch.zeros(6, 2, 3)]
    )
    assert [str(o.expr) for o in inline(from_model(built, "m", None))] == [str(o.expr) for o in inline(theirs)]


@pytest.mark.parametrize(
    ("taps", "stride", "padding", "more", "places"),
    # What is padded besides strides is none, half a stride, or anything else.
    [(4, 2, 1, 0, 2), (4, 2, 0, 0, 2), (3, 2, 1, 1, 2), (16, 8, 4, 0, 2), (8, 4, 6, 0, 2), (7, 3, 2, 0, 3)],
)
def test_of_places_that_a_strided_window_reaches_from_few_are_looked_at(
    taps: int, stride: int, padding: int, more: int, places: int
) -> None:
    x, w = f(2, 4, 9), f(4, 3, taps)

    def turned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose1d(x, w, stride=stride, padding=padding, output_padding=more)

    program = trace(turned, [torch.from_numpy(x), torch.from_numpy(w)])
    (formula,) = inline(program)
    found = evaluate_formula(formula, {"x": x, "w": w}, {})
    want = turned(torch.from_numpy(x), torch.from_numpy(w)).numpy()
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    assert want.shape[-1] % stride == 0
    assert {int(e.axis.extent) for e in walk(formula.expr) if isinstance(e, Reduce)} == {4, places}


def test_what_a_convolutions_gradient_reads_is_masked_and_not_its_products() -> None:
    """So that they are products of matrices, as a convolution's are."""
    x, w = f(2, 4, 9), f(4, 3, 3)
    program = trace(lambda x, w: F.conv_transpose1d(x, w, padding=1), [torch.from_numpy(x), torch.from_numpy(w)])
    (formula,) = inline(program)
    sums = [e.body for e in walk(formula.expr) if isinstance(e, Reduce)]
    assert [e.op for e in sums if isinstance(e, Map)] == ["mul"]
