"""onnxruntime's operators on quantised numbers, written out: operands over the reals, a standard operator, its levels.

So `quantize_static(..., quant_format=QuantFormat.QOperator)` writes models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import onnx
from onnx import TensorProto, helper

from prism.errors import UnsupportedError

OPSET = 13
"""The operator set of what is written."""


@dataclass(slots=True)
class _Written:
    """The nodes that a node is written out to; values within are named after its result, so that no other has them."""

    proto: onnx.NodeProto
    where: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def given(self, place: int) -> str:
        """An operand's name, or nothing."""
        return self.proto.input[place] if place < len(self.proto.input) else ""

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value."""
        return next((helper.get_attribute_value(a) for a in self.proto.attribute if a.name == name), default)

    def add(self, op: str, operands: Sequence[str], result: str = "", **attributes: Any) -> str:
        """Add a node, and name its result."""
        made = result or f"{self.proto.output[0]}/{len(self.nodes)}"
        label = f"{self.proto.name or self.proto.op_type}/{op}"
        self.nodes.append(helper.make_node(op, operands, [made], label, **attributes))
        return made

    def real(self, place: int, **attributes: Any) -> str:
        """What the levels at a place are, of which a scale and a zero point follow."""
        return self.add("DequantizeLinear", [self.given(place + n) for n in range(3)], **attributes)

    def levels(self, value: str, place: int) -> None:
        """End in the levels of a value, by the scale at a place and the zero point behind it, whose type they have."""
        if not self.given(place + 1):
            raise self.unsupported("the zero point of the result is left out", "give one, which says its type")
        self.add("QuantizeLinear", [value, self.given(place), self.given(place + 1)], self.proto.output[0])

    def unsupported(self, what: str, fix: str) -> UnsupportedError:
        """The error of a node that has no translation."""
        return UnsupportedError(f"{self.proto.op_type}: {what}", where=self.where, fix=fix)


def _unary(op: str, w: _Written, **defaults: Any) -> None:
    """Of one operand, with those attributes of the standard operator that are named."""
    w.levels(w.add(op, [w.real(0)], **{name: w.attribute(name, value) for name, value in defaults.items()}), 3)


def _binary(op: str) -> Callable[[_Written], None]:
    return lambda w: w.levels(w.add(op, [w.real(0), w.real(3)]), 6)


def _where(w: _Written) -> None:
    w.levels(w.add("Where", [w.given(0), w.real(1), w.real(4)]), 7)


def _concat(w: _Written) -> None:
    parts = [w.real(place) for place in range(2, len(w.proto.input), 3)]
    w.levels(w.add("Concat", parts, axis=w.attribute("axis")), 0)


def _softmax(w: _Written) -> None:
    if w.attribute("opset", OPSET) < OPSET:
        raise w.unsupported("of an operator set before 13", "convert the model with onnx.version_converter")
    w.levels(w.add("Softmax", [w.real(0)], axis=w.attribute("axis", -1)), 3)


def _global_pool(w: _Written) -> None:
    if w.attribute("channels_last", 0):
        raise w.unsupported("channels that come last", "quantise the model with channels first")
    w.levels(w.add("GlobalAveragePool", [w.real(0)]), 3)


def _gemm(w: _Written) -> None:
    """The bias is of levels of both scales' product; without a scale the result is over the reals."""
    if w.attribute("alpha", 1.0) != 1.0:
        raise w.unsupported("a factor besides the scales", "make it part of a scale")
    turned = w.attribute("transB", 0)
    product = w.add(
        "Gemm", [w.real(0), w.real(3, axis=0 if turned else 1)], transA=w.attribute("transA", 0), transB=turned
    )
    if w.given(6):
        level = w.add(
            "Mul", [w.add("Mul", [w.add("Cast", [w.given(6)], to=TensorProto.FLOAT), w.given(1)]), w.given(4)]
        )
        product = w.add("Add", [product, level])
    if w.given(7):
        w.levels(product, 7)
    else:
        w.add("Identity", [product], w.proto.output[0])


_OPERATORS: Mapping[str, Callable[[_Written], None]] = MappingProxyType(
    {
        "QGemm": _gemm,
        "QLinearAdd": _binary("Add"),
        "QLinearConcat": _concat,
        "QLinearGlobalAveragePool": _global_pool,
        "QLinearLeakyRelu": partial(_unary, "LeakyRelu", alpha=0.01),
        "QLinearMul": _binary("Mul"),
        "QLinearSigmoid": partial(_unary, "Sigmoid"),
        "QLinearSoftmax": _softmax,
        "QLinearWhere": _where,
    }
)

NAMES = frozenset(_OPERATORS)


def body(proto: onnx.NodeProto, where: str) -> list[onnx.NodeProto]:
    """The standard nodes, of operator set `OPSET`, that such a node is made of.

    Raises:
        UnsupportedError: it has none in this form.
    """
    written = _Written(proto, where)
    _OPERATORS[proto.op_type](written)
    return written.nodes
