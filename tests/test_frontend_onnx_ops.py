"""Every ONNX operator that has a translation, against `onnx.reference`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from frontend_onnx_models import check, node_model, run_program

from prism.errors import ModelError, UnsupportedError
from prism.frontend.onnx import reader as frontend

RNG = np.random.default_rng(7)


def f(*shape: int) -> np.ndarray:
    """Signed values."""
    return RNG.standard_normal(shape).astype(np.float32)


def pos(*shape: int) -> np.ndarray:
    """Positive values."""
    return (RNG.random(shape) + 0.5).astype(np.float32)


def b(*shape: int) -> np.ndarray:
    """Booleans."""
    return RNG.random(shape) < 0.5


def i(*values: int) -> np.ndarray:
    """A list of integers."""
    return np.array(values, dtype=np.int64)


def s(value: float) -> np.ndarray:
    """A float scalar."""
    return np.array(value, dtype=np.float32)


@dataclass
class Case:
    """One node: its operands, attributes, operator set, and which operands are initialisers."""

    op: str
    arrays: Sequence[np.ndarray | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 18
    fixed: Sequence[int] = ()
    outputs: int = 1
    view: bool | None = None

    def __str__(self) -> str:
        return f"{self.op}-{self.opset}-{self.attributes}"


WITH_TIES = np.array([[-2.5, -1.5, -0.5, 0.0], [0.5, 1.5, 2.5, 3.0]], dtype=np.float32)
UNARY = (
    "Neg Abs Exp Reciprocal Erf Tanh Sigmoid Relu Sin Cos Tan Floor Ceil Round Sign Softplus Softsign HardSwish Mish"
    " Sinh Cosh Asinh"
)
BINARY = "Add Sub Mul Div Equal Less LessOrEqual Greater GreaterOrEqual"
LOGICAL = "And Or Xor Equal"
REDUCTIONS = "Sum Mean Max Min Prod SumSquare L1 L2 LogSumExp"
QKV = (f(2, 4, 5, 8), f(2, 2, 7, 8), f(2, 2, 7, 6))
Q8 = RNG.integers(-128, 128, (4, 6)).astype(np.int8)
RECURRENT = (("LSTM", 4), ("GRU", 3), ("RNN", 1))
RESIZED: tuple[tuple[float, dict[str, Any]], ...] = (
    (2, {}),
    (0.6, {"nearest_mode": "ceil", "coordinate_transformation_mode": "align_corners"}),
    (1.6, {"nearest_mode": "round_prefer_ceil"}),
    (2.4, {"mode": "linear"}),
    (0.4, {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}),
    (3, {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    (0.5, {"mode": "cubic", "cubic_coeff_a": -0.5}),
    (2, {"mode": "cubic", "exclude_outside": 1, "coordinate_transformation_mode": "asymmetric"}),
)
PACKED = (f(2, 5, 32), f(2, 7, 16), f(2, 7, 12))

CASES = [
    *[Case(op, [f(2, 3, 4)]) for op in UNARY.split()],
    *[Case(op, [WITH_TIES]) for op in ("Floor", "Ceil", "Round", "Sign", "Relu")],
    *[Case(op, [pos(2, 3)]) for op in ("Sqrt", "Log")],
    *[Case(op, [f(2, 1, 4), f(3, 1)]) for op in BINARY.split()],
    *[Case(op, [f(1), f(3, 4)]) for op in BINARY.split()],
    *[Case(op, [b(3, 4), b(4)]) for op in LOGICAL.split()],
    Case("Acosh", [pos(2, 3) + 1]),
    Case("Atanh", [np.tanh(f(2, 3))]),
    Case("Not", [b(3, 4)]),
    Case("IsNaN", [np.array([1.0, np.nan, np.inf], dtype=np.float32)]),
    *[Case("Pow", [pos(3, 4), s(e)], fixed=[1]) for e in (-2, -1, -0.5, 0, 0.5, 1, 2, 3, 1.7)],
    Case("Pow", [pos(3, 4), f(4)]),
    *[Case(op, [f(3, 4), f(4), f(1, 1)]) for op in ("Min", "Max", "Sum", "Mean")],
    Case("Max", [f(3, 4)]),
    Case("Clip", [f(3, 4), s(-0.5), s(0.5)]),
    Case("Clip", [f(3, 4), None, s(0.5)]),
    Case("Clip", [f(3, 4), s(0.0)]),
    Case("Cast", [f(3, 4)], {"to": 11}, view=True),
    Case("Cast", [f(3, 4) * 3], {"to": 7}),
    Case("Cast", [WITH_TIES], {"to": 9}),
    Case("Cast", [b(3, 4)], {"to": 1}, view=False),
    Case("Cast", [i(3, -4)], {"to": 1}),
    Case("CastLike", [b(3, 4), f(1)]),
    Case("Where", [b(3, 1), f(3, 4), f(4)]),
    Case("Where", [np.arange(4) % 2 == 0, f(3, 4), f(4)], fixed=[0]),  # a position, as a number
    Case("LeakyRelu", [f(3, 4)], {"alpha": 0.2}),
    Case("PRelu", [f(3, 4), f(4)]),
    Case("Elu", [f(3, 4)], {"alpha": 0.7}),
    Case("Selu", [f(3, 4)]),
    Case("Celu", [f(3, 4)], {"alpha": 0.7}),
    Case("Swish", [f(3, 4)], opset=24),
    Case("Swish", [f(3, 4)], {"alpha": 1.5}, opset=24),
    Case("Gelu", [f(3, 4)], opset=20),
    Case("Gelu", [f(3, 4)], {"approximate": "tanh"}, opset=20),
    Case("HardSigmoid", [f(3, 4) * 4], {"alpha": 0.3, "beta": 0.4}),
    Case("HardSwish", [f(3, 4) * 4], opset=14),
    # reductions
    *[Case(f"Reduce{op}", [f(2, 3, 4)], {"axes": [1]}, 13) for op in REDUCTIONS.split() if op != "Sum"],
    *[Case(f"Reduce{op}", [f(2, 3, 4), i(-1, 0)], {"keepdims": 0}, 18, [1]) for op in REDUCTIONS.split()],
    *[Case(f"Reduce{op}", [f(2, 3, 4)]) for op in REDUCTIONS.split()],
    *[Case(f"Reduce{op}", [f(2, 3, 1)], {"keepdims": 0}, opset=18) for op in ("Sum", "Mean", "L2")],
    Case("ReduceSum", [f(2, 3), i()], {"noop_with_empty_axes": 1}, fixed=[1]),
    Case("ReduceSum", [f(2, 3), i(1)], {}, 13, [1]),
    Case("ReduceLogSum", [pos(2, 3), i(1)], fixed=[1]),
    *[Case(op, [f(2, 3, 4) * 30], {"axis": a}) for op in ("Softmax", "LogSoftmax") for a in (-1, 0, 1)],
    Case("Softmax", [f(2, 3, 4)], opset=13),
    Case("Softmax", [f(2, 1)]),
    *[
        Case(op, [np.round(f(3, 5, 4))], {"axis": a, "keepdims": k, "select_last_index": last}, 13)
        for op in ("ArgMax", "ArgMin")
        for a, k, last in ((0, 1, 0), (-1, 0, 1), (1, 0, 0))
    ],
    Case("ArgMax", [np.array([[1, np.nan, 3, np.nan], [-np.inf] * 4], np.float32)], {"axis": 1}, 13),
    *[Case("Hardmax", [np.round(f(2, 3, 4))], {"axis": a}, 13) for a in (0, -1)],
    *[Case("TopK", [np.round(f(3, 4)), i(1)], {"axis": a, "largest": n}, 11, [1], 2) for a in (0, 1) for n in (0, 1)],
    *[Case("TopK", [np.round(f(3, 4)), i(k)], {"axis": 1, "largest": n}, 11, [1], 2) for k in (2, 4) for n in (0, 1)],
    Case("TopK", [f(3, 4)], {"axis": 0, "k": 2}, 1, (), 2),
    *[Case("OneHot", [np.array([[0, -1], [5, 2]]), np.array(4), f(2)], {"axis": a}, 11, [1]) for a in (-1, 0, 1)],
    Case("OneHot", [np.array([0, 2, 3, -4]), np.array(4), np.array([7, 9])], {}, 11, [1]),
    Case("CumSum", [f(3, 4), np.array(1, dtype=np.int64)], fixed=[1]),
    Case("CumSum", [f(3, 4), np.array(0, dtype=np.int64)], {"exclusive": 1, "reverse": 1}, fixed=[1]),
    # linear algebra
    Case("MatMul", [f(3, 4), f(4, 5)]),
    Case("MatMul", [f(4, 4), f(4, 4)]),
    Case("MatMul", [f(2, 1, 3, 4), f(6, 4, 5)]),
    Case("MatMul", [f(2, 3, 4), f(4, 5)]),
    Case("MatMul", [f(4), f(4)]),
    Case("MatMul", [f(4), f(2, 4, 5)]),
    Case("MatMul", [f(2, 3, 4), f(4)]),
    Case("MatMul", [f(3, 1), f(1, 5)]),
    Case("Gemm", [f(3, 4), f(4, 5)]),
    Case("Gemm", [f(4, 3), f(5, 4), f(5)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    Case("Gemm", [f(3, 4), f(4, 5), f(3, 1)]),
    Case("Gemm", [f(3, 4), f(4, 5), s(2.0)]),
    Case("Einsum", [f(2, 3, 4), f(2, 5, 4)], {"equation": "bid,bjd->bij"}),
    Case("Einsum", [f(3, 3)], {"equation": "ii->i"}),
    Case("Einsum", [f(3, 4), f(4, 5)], {"equation": "ij,jk"}),
    # views
    Case("Identity", [f(3, 4)], view=True),
    Case("Dropout", [f(3, 4)], view=True),
    Case("Transpose", [f(2, 3, 4)], view=True),
    Case("Transpose", [f(2, 3, 4)], {"perm": [1, 2, 0]}, view=True),
    Case("Reshape", [f(2, 3, 4), i(6, 4)], fixed=[1], view=True),
    Case("Reshape", [f(2, 12), i(0, 3, -1)], fixed=[1], view=True),
    Case("Reshape", [f(4, 6), i(3, 8)], fixed=[1], view=True),
    Case("Reshape", [f(2, 3, 4), i(4, 3, 2)], fixed=[1], view=True),
    Case("Reshape", [f(1), i()], fixed=[1]),
    Case("Reshape", [f(2, 3), i(3, 2)], {"allowzero": 1}, fixed=[1]),
    Case("Expand", [f(3, 1), i(2, 1, 4)], fixed=[1], view=True),
    Case("Tile", [f(3, 2), i(2, 3)], fixed=[1], view=True),
    Case("Unsqueeze", [f(3, 4), i(0, -1)], fixed=[1], view=True),
    Case("Squeeze", [f(1, 3, 1, 4), i(0)], fixed=[1], view=True),
    Case("Squeeze", [f(1, 3, 1, 4)], view=True),
    *[Case("Flatten", [f(2, 3, 4)], {"axis": a}, view=True) for a in (0, 1, 2, 3, -1)],
    Case("Slice", [f(6, 8), i(1, -3), i(5, 2**62), i(0, 1)], fixed=[1, 2, 3], view=True),
    Case("Slice", [f(6, 8), i(0), i(8), i(1), i(3)], fixed=[1, 2, 3, 4], view=True),
    Case("Slice", [f(6, 8), i(-1), i(-(2**63) + 1), i(1), i(-1)], fixed=[1, 2, 3, 4], view=True),
    Case("Slice", [f(6, 8), i(4), i(0), i(0), i(-2)], fixed=[1, 2, 3, 4], view=True),
    Case("Split", [f(6, 8)], {"axis": 1, "num_outputs": 3}, outputs=3, view=True),
    Case("Split", [f(6, 8)], {"axis": 0}, opset=13, outputs=2, view=True),
    Case("Split", [f(6, 8), i(3, 5)], {"axis": -1}, fixed=[1], outputs=2, view=True),
    Case("Concat", [f(2, 3), f(2, 1), f(2, 4)], {"axis": 1}),
    Case("Concat", [f(2, 3), f(5, 3)], {"axis": -2}),
    Case("Gather", [f(5, 6), np.array(-2, dtype=np.int64)], {"axis": 1}, fixed=[1], view=True),
    Case("Gather", [f(5, 6), i(1, 3, 5)], {"axis": 1}, fixed=[1], view=True),
    Case("Gather", [f(5, 6), np.array([[0, 1], [2, 3]])], {"axis": 0}, fixed=[1], view=True),
    Case("Gather", [f(5, 6), i(4, 0, 1, 1)], {"axis": 0}, fixed=[1]),
    *[Case("Trilu", [f(4, 5)], {"upper": u}, opset=14) for u in (0, 1)],
    Case("Trilu", [f(2, 4, 5), np.array(-1, dtype=np.int64)], {"upper": 0}, fixed=[1]),
    Case("Trilu", [np.ones((4, 4), dtype=np.float32)], {"upper": 0}, fixed=[0]),
    Case("Range", [np.array(2), np.array(9), np.array(3)], fixed=[0, 1, 2]),
    Case("ConstantOfShape", [i(2, 3)], fixed=[0]),
    Case("Shape", [f(3, 4)]),
    Case("Shape", [f(3, 4, 5)], {"start": -2}),
    Case("Size", [f(3, 4)]),
    # normalisations
    Case("LayerNormalization", [f(2, 3, 8), pos(8), f(8)], opset=17),
    Case("LayerNormalization", [f(2, 3, 8), pos(3, 8)], {"axis": 1, "epsilon": 1e-3}, opset=17, outputs=3),
    Case("RMSNormalization", [f(2, 3, 8), pos(8)], {"epsilon": 1e-3}, opset=23),
    Case("RMSNormalization", [f(2, 3, 8), pos(3, 8)], {"axis": -2}, opset=23),
    Case("GroupNormalization", [f(2, 6, 3, 2), pos(6), f(6)], {"num_groups": 3}, opset=21),
    Case("InstanceNormalization", [f(2, 3, 4, 2), pos(3), f(3)]),
    Case("BatchNormalization", [f(2, 3, 4), pos(3), f(3), f(3), pos(3)], {"epsilon": 1e-3}),
    Case("LpNormalization", [f(2, 3)], {"p": 2, "axis": -1}),
    # onnx.reference takes no absolute value for p = 1, so only positive operands compare.
    Case("LpNormalization", [pos(2, 3)], {"p": 1, "axis": 0}),
    # chosen by data
    Case("Gather", [f(5, 6), np.array([[4, -1, 0], [-5, 2, 2]])], {"axis": 0}),
    Case("Gather", [f(5, 6, 2), i(4, 0, -6).astype(np.int32)], {"axis": 1}),
    Case("Gather", [f(5, 1), np.array([[0], [-1]])], {"axis": 1}),
    Case("GatherND", [f(5, 6, 2), np.array([[4, -1], [-5, 2], [0, 0]])], opset=13),
    Case("GatherND", [f(3, 6, 4, 2), np.array([[4, -1], [-6, 2], [0, 0]])], {"batch_dims": 1}, opset=13),
    Case("GatherND", [f(2, 3, 4), np.array([[[1], [-1]]])], opset=13),
    Case("GatherElements", [f(3, 5), np.array([[4, 0], [1, -1], [-5, 2]])], {"axis": 1}),
    Case("GatherElements", [f(3, 5), np.array([[2, 0, -1, 1, 1]])]),
    Case("GatherElements", [f(3, 1), np.array([[0], [0], [-1]])], {"axis": -1}),
    *[
        Case(op, [f(4, 5) * 3, i(2, 0, 4, 1), *weight], {"reduction": how, **ignore})
        for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
        for how in ("none", "sum", "mean")
        for weight in ([], [pos(5)])
        for ignore in ({}, {"ignore_index": 4})
    ],
    Case("SoftmaxCrossEntropyLoss", [f(2, 5, 3), np.array([[2, 0, 4], [1, 1, 3]])], outputs=2),
    Case("NegativeLogLikelihoodLoss", [f(2, 5, 3), np.array([[2, 0, 4], [1, 1, 3]])], {"reduction": "none"}),
    Case("DequantizeLinear", [Q8, s(0.5)], opset=19),
    Case("DequantizeLinear", [Q8, pos(6), Q8[0]], {"axis": -1}, opset=19),
    Case("DequantizeLinear", [Q8[0], pos(1), Q8[0, :1]], opset=19),
    Case("DequantizeLinear", [Q8.astype(np.uint8), pos(4)], {"axis": 0}, opset=19, fixed=[1]),
    Case("DequantizeLinear", [Q8, pos(4, 2), Q8[:, :2]], {"axis": 1, "block_size": 3}, opset=21),
    Case("QuantizeLinear", [f(2, 3, 4) * 40, pos(3), i(1, 2, 3).astype(np.int8)], {"axis": 1}, opset=19),
    Case("QuantizeLinear", [WITH_TIES, s(1.0)], opset=19),
    Case("QuantizeLinear", [f(4, 6), pos(4, 2)], {"axis": 1, "block_size": 3}, opset=21),
    Case("DynamicQuantizeLinear", [f(3, 4)], opset=18, outputs=3),
    Case("MatMulInteger", [Q8, Q8.T, np.array(-3, np.int8), i(4, 5, 6, 7).astype(np.int8)], opset=18),
    Case(
        "ConvInteger", [Q8.astype(np.uint8).reshape(1, 2, 3, 4), Q8[:, :4].reshape(2, 2, 2, 2)], {"pads": [0, 1, 1, 0]}
    ),
    Case("QLinearMatMul", [Q8, s(0.5), Q8[:1, 0], Q8.T, s(0.25), Q8[1:2, 1], s(40.0), np.array(3, np.int8)]),
    Case(
        "QLinearConv",
        [
            Q8.reshape(1, 2, 3, 4),
            s(0.5),
            Q8[:1, 0],
            Q8[:, :4].reshape(2, 2, 2, 2),
            pos(2),
            Q8[:1, 0] * i(0, 0).astype(np.int8),
            s(20.0),
            np.array(3, np.int8),
        ],
    ),
    # windows
    Case("Conv", [f(2, 4, 7, 6), f(6, 2, 3, 2), f(6)], {"group": 2, "strides": [2, 1], "pads": [1, 0, 2, 1]}),
    Case("Conv", [f(1, 2, 9), f(3, 2, 3)], {"dilations": [2], "auto_pad": "SAME_UPPER"}),
    Case("Conv", [f(1, 2, 8), f(3, 2, 4)], {"strides": [3], "auto_pad": "SAME_LOWER", "kernel_shape": [4]}),
    Case("ConvTranspose", [f(2, 3, 5), f(3, 2, 3)], {"strides": [2], "pads": [1, 1], "output_padding": [1]}),
    Case("ConvTranspose", [f(1, 2, 4), f(2, 2, 3)], {"strides": [2], "dilations": [2]}),
    Case("AveragePool", [f(1, 2, 7, 5)], {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    Case("AveragePool", [f(1, 2, 6)], {"kernel_shape": [3], "pads": [1, 1], "count_include_pad": 1}),
    Case("AveragePool", [f(1, 2, 6)], {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_UPPER"}),
    Case("MaxPool", [f(1, 2, 6, 6)], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 1]}),
    Case("MaxPool", [f(1, 2, 9)], {"kernel_shape": [3], "dilations": [2]}),
    Case("LpPool", [f(1, 2, 6)], {"kernel_shape": [3], "p": 3, "strides": [2]}),
    Case("GlobalAveragePool", [f(2, 3, 4, 5)]),
    Case("GlobalMaxPool", [f(2, 3, 5, 2)]),
    Case("Pad", [f(3, 4), i(1, 0, 2, 3), s(1.5)], fixed=[1]),
    Case("Pad", [f(3, 4), i(2, 0), None, i(-1)], {"mode": "edge"}, fixed=[1, 3]),
    Case("Pad", [f(3, 4), i(1, 3, 2, 0)], {"mode": "reflect"}, fixed=[1]),
    Case("Pad", [f(3, 4), i(1, 4, 2, 0)], {"mode": "wrap"}, opset=19, fixed=[1]),
    Case("DepthToSpace", [f(2, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}, view=True),
    Case("DepthToSpace", [f(2, 12, 2, 3)], {"blocksize": 2}, view=True),
    Case("SpaceToDepth", [f(2, 3, 4, 6)], {"blocksize": 2}, view=True),
    Case("BatchNormalization", [f(4, 3, 5), pos(3), f(3), f(3), pos(3)], {"training_mode": 1}, opset=15, outputs=3),
    Case("IsInf", [np.array([1.0, np.inf, -np.inf], np.float32)], {"detect_negative": 0}, opset=20),
    Case("CumProd", [f(3, 4), np.array(1)], {"exclusive": 1}, opset=26, fixed=[1]),
    # attention
    Case("Attention", QKV, opset=23),
    Case("Attention", QKV, {"is_causal": 1, "scale": 0.3}, opset=24),
    Case("Attention", [*QKV, f(5, 7)], {"softcap": 2.0}, opset=23),
    Case("Attention", [*QKV, np.tril(np.ones((2, 1, 5, 7), dtype=np.bool_), 2)], opset=24),
    Case("Attention", PACKED, {"q_num_heads": 4, "kv_num_heads": 2}, opset=23),
    Case("Attention", [f(1, 1, 4, 4), f(1, 1, 4, 4), f(1, 1, 4, 4)], opset=23),
    *[Case("RotaryEmbedding", [f(2, 4, 5, 8), f(2, 5, 4), f(2, 5, 4)], {"interleaved": n}, opset=23) for n in (0, 1)],
    *[
        Case(
            "RotaryEmbedding",
            [f(2, 5, 32), f(2, 5, 2), f(2, 5, 2)],
            {"interleaved": n, "num_heads": 4, "rotary_embedding_dim": 4},
            opset=23,
        )
        for n in (0, 1)
    ],
    Case("RotaryEmbedding", [f(2, 4, 5, 8), f(9, 4), f(9, 4), np.array([[0, 1, 2, 3, 4]] * 2)], opset=23, fixed=[3]),
    Case("RotaryEmbedding", [f(2, 4, 5, 8), f(9, 4), f(9, 4), np.array([[0, 8, 2, 3, 4], [7, 1, 0, 3, 3]])], opset=23),
    *[Case(op, [f(4, 2, 5), f(1, g * 3, 5), f(1, g * 3, 3)], {"hidden_size": 3}, outputs=2) for op, g in RECURRENT],
    *[
        Case("Resize", [f(2, 3, 5), None, np.array([1, 1, scale], np.float32)], attributes, 13, [2])
        for scale, attributes in RESIZED
    ],
    # What repeats each element is index arithmetic.
    Case(
        "Resize",
        [f(2, 4, 3), None, np.array([1, 2, 1], np.float32)],
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        13,
        [2],
        view=True,
    ),
    *[Case(op, [np.tanh(f(2, 3))]) for op in ("Asin", "Acos", "Atan")],
    *[Case(f"Bitwise{op}", [q, Q8[1]]) for op in ("And", "Or", "Xor") for q in (Q8, Q8[:, :1])],
    Case("BitwiseAnd", [i(-1, 2**31 - 1, -(2**31), 77), i(255, -2, 2**31 - 1, -6)]),
    Case("BitwiseXor", [Q8.astype(np.uint8), np.array(60, np.uint8)], fixed=[1]),
    *[Case("BitwiseNot", [q]) for q in (Q8, Q8.astype(np.uint8))],
    *[Case("BitShift", [Q8.astype(np.uint8), Q8.astype(np.uint8) % 8], {"direction": d}) for d in ("LEFT", "RIGHT")],
    Case("BitShift", [Q8, Q8 % 12], {"direction": "LEFT"}, opset=28),
    *[Case("EyeLike", [f(3, 4)], a) for a in ({}, {"k": 2}, {"k": -1, "dtype": 7})],
    Case("ScatterElements", [f(3, 4), np.array([[1, -1], [0, 2]]), f(2, 2)], {"axis": 1}, opset=11),
    Case("ScatterND", [f(3, 4), np.array([[1], [-1]]), f(2, 4)], opset=13),
    *[
        Case("TensorScatter", [f(2, 3, 6, 4), f(2, 3, 2, 4), np.array([1, 3 + n])], {"mode": mode}, opset=24)
        for n, mode in enumerate(("linear", "circular"))
    ],
    Case("TensorScatter", [f(2, 6, 4), f(2, 1, 4)], opset=24),
    Case("Upsample", [f(2, 5), np.array([1, 2], np.float32)], {}, 9, [1]),
    Case("DFT", [f(2, 6, 2), None, np.array(1)], {"inverse": 1}, 20, [2]),
    Case("DFT", [f(2, 5, 3, 1), np.array(8)], {"axis": 1, "onesided": 1}, 17, [1]),
    Case("STFT", [f(2, 12, 1), np.array(4), pos(6)], {}, 17, [1]),
    Case("ReverseSequence", [f(4, 3, 2), np.array([2, 4, 1])], {"time_axis": 0, "batch_axis": 1}, 10),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator(case: Case) -> None:
    built, given = node_model(case.op, case.arrays, case.attributes, case.opset, case.fixed, case.outputs)
    program = check(built, given)
    if case.view is not None:
        assert [d.view for d in program.definitions] == [case.view] * case.outputs


def test_every_translator_is_tested() -> None:
    # of positions: test_frontend_onnx_graphs.py; unknown to onnx's reference: test_windows.py, test_scatter.py
    assert set(frontend.TRANSLATORS) - {c.op for c in CASES} <= {"Mod", "GlobalLpPool", "Scatter", "LRN"}


@pytest.mark.parametrize(
    ("op", "opset", "attributes", "scales"),
    [
        ("LRN", 13, {"size": 5, "alpha": 0.3}, None),
        ("LRN", 9, {"size": 3, "beta": 0.5, "bias": 2.0}, None),
        ("Hardmax", 11, {"axis": 2}, None),
        ("Upsample", 9, {"mode": "linear"}, [1, 1, 2, 3]),
        ("Upsample", 7, {"scales": [1.0, 1.0, 2.0, 2.0]}, None),
        ("Resize", 10, {"mode": "linear"}, [1, 1, 2.5, 1.5]),
    ],
)
def test_what_the_reference_lacks_is_what_onnxruntime_computes(
    op: str, opset: int, attributes: dict[str, Any], scales: list[float] | None
) -> None:
    ort = pytest.importorskip("onnxruntime")
    arrays = [f(1, 5, 4, 6)] + ([] if scales is None else [np.array(scales, np.float32)])
    built, given = node_model(op, arrays, attributes, opset, list(range(1, len(arrays))))
    built.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("out0", 1, None))
    (want,) = ort.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, given)
    (found,) = run_program(frontend.from_model(built, "m", None), given)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("sizes", [(7, 3), (2, 12)])
def test_images_of_a_free_number_are_resized_along_both_sides(mode: str, sizes: tuple[int, int]) -> None:
    built, given = node_model("Resize", [f(2, 3, 5, 6), None, None, i(*sizes)], {"mode": mode, "axes": [2, 3]}, 18, [3])
    built.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "images"
    check(built, given)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_scales_that_are_widened_are_known(kind: type) -> None:
    """As models that were converted to float16 have them."""
    text = """<ir_version: 10, opset_import: ["" : 18]> m (float[2, 3, 5, 6] x) => (float[2, 3, 10, 9] y) {
        wide = Cast <to = 1> (narrow)  y = Resize <mode = "linear"> (x, , wide) }"""
    built = onnx.parser.parse_model(text)
    built.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 1, 2, 1.5], kind), "narrow"))
    check(built, {"x": f(2, 3, 5, 6)})


@pytest.mark.parametrize(
    ("attributes", "scale", "why"),
    [
        ({"mode": "linear", "antialias": 1}, 0.5, "antialias"),
        ({"coordinate_transformation_mode": "tf_crop_and_resize"}, 2, "tf_crop_and_resize"),
        ({"keep_aspect_ratio_policy": "not_larger"}, 2, "aspect ratio"),
        ({"coordinate_transformation_mode": "align_corners", "mode": "linear"}, 0.7, "rounded down, or as it is"),
        ({"mode": "cubic"}, 1.5, "how coordinates are rounded"),
        ({}, 1.4, "depends on how it is rounded"),
        ({}, 0.1, "becomes one of 0"),
    ],
)
def test_resizes_without_a_translation_say_why(attributes: dict[str, Any], scale: float, why: str) -> None:
    built, _ = node_model("Resize", [f(2, 3, 5), None, np.array([1, 1, scale], np.float32)], attributes, 18, [2])
    with pytest.raises(ModelError, match=why):
        frontend.from_model(built, "m", None)


def test_operators_are_read_by_the_bodies_that_onnx_has_of_them() -> None:
    cases: list[tuple[str, list[np.ndarray], dict[str, Any], int]] = [
        ("Shrink", [f(3, 4)], {"lambd": 0.3, "bias": 0.1}, 13),  # a body of operator set 18
        ("ThresholdedRelu", [f(3, 4)], {"alpha": 0.2}, 18),
        ("MeanVarianceNormalization", [f(2, 3, 4)], {"axes": [0, 2]}, 13),
        ("CenterCropPad", [f(3, 5), i(4, 2)], {}, 18),  # of the operands' types
    ]
    for op, arrays, attributes, opset in cases:
        built, given = node_model(op, arrays, attributes, opset, [1] if len(arrays) > 1 else [])
        check(built, given)


def test_a_body_in_which_something_is_not_read_is_refused() -> None:
    built, _ = node_model("AffineGrid", [f(1, 2, 3), i(1, 1, 2, 3)], {}, 20, [1])
    with pytest.raises(UnsupportedError, match="If"):
        frontend.from_model(built, "m", None)


@pytest.mark.parametrize("x", [np.abs(f(5)), -np.abs(f(2, 3)), np.zeros((2, 2), np.float32)])
def test_a_tensor_is_quantised_by_its_own_range(x: np.ndarray) -> None:
    """As onnxruntime does it: the scale of zeros is 1, where onnx's formula divides zeros by zero."""
    ort = pytest.importorskip("onnxruntime")
    built, given = node_model("DynamicQuantizeLinear", [x], {}, 18, outputs=3)
    program = frontend.from_model(built, "m", None)
    found = run_program(program, given)
    session = ort.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
    for value, expected in zip(found, session.run(None, given), strict=True):
        assert np.allclose(value, expected, rtol=1e-6)


def test_without_onnxruntime_a_tensor_of_zeros_has_any_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism.frontend.onnx.conformance._Runtime.second", lambda *_: None)
    zeros = np.zeros((2, 3), np.float32)
    built, _ = node_model("DynamicQuantizeLinear", [zeros], {}, 18, outputs=3)
    program = frontend.from_model(built, "m", None)
    assert [float(np.max(v)) for v in run_program(program, {"in0": zeros})] == [0.0, 1.0, 0.0]


def test_operators_are_one_definition_each() -> None:
    for case in CASES:
        built, _ = node_model(case.op, case.arrays, case.attributes, case.opset, case.fixed, case.outputs)
        program = frontend.from_model(built, "m", None)
        # The product of all steps, the first state, the states of all steps, and both results.
        many = 3 if case.op == "Attention" else 5 if program.loops else case.outputs
        many += any(d.name.endswith("_rank") for d in program.definitions)  # and of elements in order, their ranks
        many += 2 * (case.op == "DynamicQuantizeLinear")  # and its least element and its range
        assert len(program.definitions) == many, case
