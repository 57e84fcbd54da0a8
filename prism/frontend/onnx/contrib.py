"""Operators that optimisers put in place of standard ones, written out as the standard ones again.

onnxsim and onnxruntime's higher levels fuse self-attention into `com.microsoft.Attention`: one product with the stacked
weights of queries, keys and values, heads, softmax and the product with the values. What such a node may say beside
that (masks, caches, rotations) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from prism.errors import UnsupportedError

DOMAIN = "com.microsoft"
Expansion: TypeAlias = tuple[list[onnx.NodeProto], list[onnx.TensorProto]]


def expanded(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with such nodes written out; itself where it has none.

    Args:
        model: the model.
        name: its file, for errors.

    Raises:
        UnsupportedError: a node says something that has no translation.
    """
    if not any(n.domain == DOMAIN and n.op_type in EXPANSIONS for n in model.graph.node):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    weights = {t.name: t for t in model.graph.initializer}
    del result.graph.node[:]
    for node in model.graph.node:
        if node.domain == DOMAIN and node.op_type in EXPANSIONS:
            nodes, constants = EXPANSIONS[node.op_type](node, weights, name)
            result.graph.node.extend(nodes)
            result.graph.initializer.extend(constants)
        else:
            result.graph.node.append(node)
    return result


def _attention(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto], name: str) -> Expansion:
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    label = node.name or node.output[0]
    where = f"{name}, node {label!r} ({DOMAIN}.Attention)"
    heads = int(given.pop("num_heads", 0))
    sizes = [int(n) for n in given.pop("qkv_hidden_sizes", ())]
    scale = float(given.pop("scale", 0.0))
    given.pop("mask_filter_value", None)  # says something of masks alone
    said = [k for k, v in given.items() if v not in (0, 0.0)]
    said += [f"operand {n}" for n, operand in enumerate(node.input) if n > 2 and operand]
    said += [f"result {n}" for n, output in enumerate(node.output) if n > 0 and output]
    if said:
        raise UnsupportedError(
            f"what it says beside weights, bias and scale has no translation: {', '.join(said)}",
            where=where,
            fix="optimise the model without fusing attention",
        )
    weight = weights.get(node.input[1]) if len(node.input) > 1 else None
    if weight is None:
        raise UnsupportedError("its weights are not in the model", where=where, fix="fix them in the model")
    if not sizes and len(weight.dims) == 2 and weight.dims[1] % 3 == 0:
        sizes = [weight.dims[1] // 3] * 3
    if len(sizes) != 3 or heads < 1 or any(n % heads for n in sizes) or sizes[0] != sizes[1]:
        raise UnsupportedError("the sizes of its heads are not known", where=where, fix="fix its weights in the model")
    size = sizes[0] // heads
    made: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def constant(array: np.ndarray, what: str) -> str:
        constants.append(numpy_helper.from_array(array, f"{node.output[0]}/{what}"))
        return constants[-1].name

    def do(op: str, operands: Sequence[str], what: str, **attributes: Any) -> str:
        result = what if what == node.output[0] else f"{node.output[0]}/{what}"
        made.append(helper.make_node(op, list(operands), [result], name=f"{label}/{what}", **attributes))
        return result

    projected = do("MatMul", node.input[:2], "projected")
    if len(node.input) > 2 and node.input[2]:
        projected = do("Add", [projected, node.input[2]], "shifted")
    parts = []
    for what, start, extent in zip("qkv", np.cumsum([0, *sizes[:2]]), sizes, strict=True):
        ends = [constant(np.array([n], np.int64), f"{what}{n}") for n in (int(start), int(start) + extent)]
        last = constant(np.array([2], np.int64), f"{what}/axis")
        part = do("Slice", [projected, *ends, last], what)
        split = constant(np.array([0, 0, heads, extent // heads], np.int64), f"{what}/shape")
        part = do("Reshape", [part, split], f"{what}/split")
        order = [0, 2, 3, 1] if what == "k" else [0, 2, 1, 3]
        parts.append(do("Transpose", [part], f"{what}/heads", perm=order))
    scores = do("MatMul", parts[:2], "products")
    kind = helper.tensor_dtype_to_np_dtype(weight.data_type)
    factor = constant(np.array(scale or size**-0.5, kind), "scale")
    shares = do("Softmax", [do("Mul", [scores, factor], "scores")], "weights", axis=-1)
    mixed = do("Transpose", [do("MatMul", [shares, parts[2]], "mixed")], "merged", perm=[0, 2, 1, 3])
    whole = constant(np.array([0, 0, sizes[2]], np.int64), "shape")
    do("Reshape", [mixed, whole], node.output[0])
    return made, constants


EXPANSIONS: Mapping[str, Callable[[onnx.NodeProto, Mapping[str, onnx.TensorProto], str], Expansion]] = MappingProxyType(
    {"Attention": _attention}
)
