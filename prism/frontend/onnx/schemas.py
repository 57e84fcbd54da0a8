"""What an operator's schema says of a node: its version, the types of its operands, what it may leave unsaid.

The schemas are those of the installed `onnx`; which of their versions a translator has the meaning of is stated here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from onnx import defs, helper

from prism.errors import ModelError, UnsupportedError
from prism.frontend.onnx.graph import Node
from prism.program.nodes import DType

VERSIONS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("Abs", "Ceil", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Sigmoid", "Sqrt", "Tanh"), (6, 13)
        ),
        **dict.fromkeys(("Add", "Sub", "Mul", "Div"), (7, 14)),
        **dict.fromkeys(("And", "Or", "Xor"), (7, 7)),
        **dict.fromkeys(("Acos", "Asin", "Atan", "Cos", "Sin", "Tan"), (7, 22)),
        **dict.fromkeys(("Sinh", "Cosh", "Asinh", "Acosh", "Atanh"), (9, 22)),
        **dict.fromkeys(("Less", "Greater"), (7, 13)),
        **dict.fromkeys(("LessOrEqual", "GreaterOrEqual"), (12, 16)),
        **dict.fromkeys(("Max", "Min", "Mean", "Sum"), (6, 13)),
        **dict.fromkeys(("GRU", "LSTM", "RNN"), (7, 22)),
        **dict.fromkeys(("Elu", "HardSigmoid", "Selu", "InstanceNormalization"), (6, 22)),
        **dict.fromkeys(("Softplus", "Softsign", "LpNormalization"), (1, 22)),
        **dict.fromkeys(("ArgMax", "ArgMin", "Gather", "Hardmax", "LogSoftmax", "Softmax"), (1, 13)),
        **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceMean", "ReduceProd", "ReduceSumSquare"), (1, 18)),
        **dict.fromkeys(("ReduceLogSum", "ReduceLogSumExp"), (1, 28)),
        **dict.fromkeys(("ReduceMax", "ReduceMin"), (1, 20)),
        **dict.fromkeys(("Flatten", "Identity", "Shape", "Size", "Squeeze", "Transpose", "Unsqueeze"), (1, 25)),
        **dict.fromkeys(("Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool"), (1, 22)),
        "Attention": (23, 25),
        "AveragePool": (7, 22),
        "BatchNormalization": (7, 15),
        "Cast": (6, 28),
        "CastLike": (15, 25),
        **dict.fromkeys(("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"), (18, 18)),
        "BitShift": (11, 28),
        "Celu": (12, 28),
        "Clip": (6, 13),
        "Concat": (4, 13),
        "Constant": (1, 25),
        "ConvInteger": (10, 10),
        "DFT": (17, 20),
        "STFT": (17, 17),
        "ConstantOfShape": (9, 25),
        "CumProd": (26, 26),
        "CumSum": (11, 14),
        "DepthToSpace": (1, 28),
        "DequantizeLinear": (10, 28),
        "DynamicQuantizeLinear": (11, 11),
        "Dropout": (7, 22),
        "Einsum": (12, 28),
        "Equal": (7, 19),
        "Erf": (9, 13),
        "EyeLike": (9, 22),
        "Expand": (8, 13),
        "GatherElements": (11, 13),
        "GatherND": (11, 13),
        "Gelu": (20, 20),
        "Gemm": (7, 13),
        "GlobalLpPool": (2, 22),
        "GroupNormalization": (18, 21),
        "HardSwish": (14, 22),
        "IsInf": (10, 20),
        "IsNaN": (9, 20),
        "LayerNormalization": (17, 17),
        "LeakyRelu": (6, 16),
        "LpPool": (2, 22),
        "MatMul": (1, 13),
        "MatMulInteger": (10, 10),
        "MaxPool": (1, 22),
        "Mish": (18, 22),
        "Mod": (10, 28),
        "NegativeLogLikelihoodLoss": (12, 22),
        "Not": (1, 1),
        "OneHot": (9, 28),
        "PRelu": (7, 16),
        "Pad": (2, 25),
        "Pow": (7, 15),
        "QLinearConv": (10, 10),
        "QLinearMatMul": (10, 21),
        "QuantizeLinear": (10, 28),
        "RMSNormalization": (23, 23),
        "Range": (11, 27),
        "ReduceSum": (1, 13),
        "Relu": (6, 14),
        "Reshape": (5, 25),
        "RotaryEmbedding": (23, 23),
        "Round": (11, 22),
        "Sign": (9, 13),
        "Scatter": (9, 9),
        **dict.fromkeys(("ScatterElements", "ScatterND"), (11, 18)),
        "Slice": (1, 13),
        "SoftmaxCrossEntropyLoss": (12, 13),
        "SpaceToDepth": (1, 28),
        "Split": (2, 18),
        "Swish": (24, 24),
        "TensorScatter": (24, 24),
        "Tile": (6, 13),
        "TopK": (1, 24),
        "Resize": (10, 19),
        "Upsample": (7, 9),
        "LRN": (1, 13),
        "ReverseSequence": (10, 28),
        "Trilu": (14, 14),
        "Where": (9, 16),
    }
)
"""For each operator, the first and the last version of its schema that prism has the meaning of, and all between."""

_ELEMENT: Mapping[DType, str] = MappingProxyType(
    {
        DType.FLOAT64: "tensor(double)",
        DType.FLOAT32: "tensor(float)",
        **{d: f"tensor({d.value})" for d in DType if d not in (DType.FLOAT64, DType.FLOAT32)},
    }
)
_VARIADIC = defs.OpSchema.FormalParameterOption.Variadic
_FLOATS = frozenset(text for dtype, text in _ELEMENT.items() if dtype.is_float)

MEANINGLESS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "Cast": frozenset({"saturate", "round_mode"}),  # of 8-bit floats, which there are none of
        "CastLike": frozenset({"saturate", "round_mode"}),
        "BatchNormalization": frozenset({"momentum"}),  # of training
        "QuantizeLinear": frozenset({"saturate", "precision"}),  # of 8-bit floats; of the division
        "Dropout": frozenset({"seed", "ratio"}),
        # The precision of a step: a program computes over the reals.
        **dict.fromkeys(
            ("LayerNormalization", "RMSNormalization", "GroupNormalization", "Range"), frozenset({"stash_type"})
        ),
        "Attention": frozenset({"softmax_precision"}),
    }
)
"""Attributes that say nothing about a value over the reals, by operator."""


@dataclass(frozen=True, slots=True)
class Formal:
    """An operand or a result as the schema has it."""

    name: str  # of the operand
    variable: str  # the type variable, or the type itself where there is no choice
    types: frozenset[str]  # the types that it may have
    variadic: bool  # whether it stands for all that follow, too
    homogeneous: bool  # whether those have one type


@dataclass(frozen=True, slots=True)
class Signature:
    """A version of an operator's schema, as far as the reader asks it."""

    version: int  # the operator set that the version came with
    inputs: tuple[Formal, ...]  # its operands
    defaults: Mapping[str, Any]  # the attributes that have one, with it


@cache
def signature(op: str, opset: int) -> Signature:
    """The operator's schema in an operator set."""
    schema = defs.get_schema(op, opset)
    inputs = tuple(
        Formal(i.name, i.type_str, frozenset(i.types), i.option == _VARIADIC, i.is_homogeneous) for i in schema.inputs
    )
    given = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    defaults = {name: helper.get_attribute_value(value) for name, value in given.items()}
    return Signature(
        schema.since_version,
        inputs,
        MappingProxyType({name: v.decode() if isinstance(v, bytes) else v for name, v in defaults.items()}),
    )


def check_version(op: str, version: int, where: str) -> None:
    """Refuse a version of an operator that prism does not have the meaning of.

    Raises:
        UnsupportedError: it is older or newer than those in `VERSIONS`.
    """
    first, last = VERSIONS[op]
    if not first <= version <= last:
        raise UnsupportedError(
            f"version {version} of {op} is not supported",
            where=where,
            why=f"prism knows {first} to {last}" if last > first else f"prism knows {first}",
            fix="convert the model with onnx.version_converter or export it again",
        )


def check_types(node: Node, formals: Sequence[Formal]) -> None:
    """Check that the operands have types that the schema allows, and one type where it has one variable.

    Any float stands for any other here: schemas came late to bfloat16, models did not.

    Raises:
        ModelError: they do not.
    """
    bound: dict[str, tuple[int, DType]] = {}
    for place, value in enumerate(node.inputs):
        if value is None or value.carried:
            continue
        formal = formals[min(place, len(formals) - 1)]
        given = _ELEMENT[value.dtype]
        if given not in formal.types and not (given in _FLOATS and formal.types & _FLOATS):
            raise ModelError(
                f"{node.op} does not take {value.dtype.value} as {formal.name}",
                where=node.where,
                why="its types are " + ", ".join(sorted(t.removeprefix("tensor(").rstrip(")") for t in formal.types)),
                fix="export the model again",
            )
        if formal.variadic and not formal.homogeneous:
            continue
        first, dtype = bound.setdefault(formal.variable, (place, value.dtype))
        if dtype != value.dtype:
            raise ModelError(
                f"operand {place} is of type {value.dtype.value} and operand {first} of type {dtype.value}",
                where=node.where,
                why=f"{node.op} takes one type for both",
                fix="put a Cast before the node, or export the model again",
            )


def check_all_read(node: Node, defaults: Mapping[str, Any], made: int) -> None:
    """Refuse a node of which a translator left something unread that says something.

    Its translator has looked at it, and made so many results; `defaults` are what the schema says of attributes that
    are not given.

    Raises:
        UnsupportedError: an operand, an attribute that is not at its default, or a result is left over.
    """
    for place in node.unread:
        raise node.unsupported(f"operand {place} of {node.op} is not supported", fix="remove that operand")
    ignored = MEANINGLESS.get(node.op, frozenset())
    for name, value in node.attributes.unread.items():
        if name not in ignored and not (name in defaults and defaults[name] == value):
            raise node.unsupported(f"the attribute {name} = {value} of {node.op} is not supported")
    for place in range(made, len(node.outputs)):
        if node.wanted(place):
            raise node.unsupported(f"the result {place} of {node.op} is not supported", fix="remove that output")
