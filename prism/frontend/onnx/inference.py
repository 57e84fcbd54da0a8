"""Types and shapes of the results of nodes that stay, as far as anyone knows them.

What onnx infers comes first. It says nothing of shapes that a loop hands from trip to trip, of which some stay as they
were, nor of operators of other domains, of which onnxruntime knows its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto, helper

_TYPES = {"float": "FLOAT", "double": "DOUBLE"}
"""onnxruntime's names of types that are not onnx's."""


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """A small model with what onnx infers of its values, and what follows of loops."""
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for node in () if all_known(model) else model.graph.node:
        if node.op_type == "Loop" and not node.domain:
            _fill(model, _of_loop(model, node))
    return model


def told(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what onnxruntime says of outputs that have no type or no shape."""
    _fill(model, _told(model))
    return model


def all_known(model: onnx.ModelProto) -> bool:
    """Whether types and shapes of all outputs are known."""
    return all(map(_is_known, model.graph.output))


def _is_known(info: onnx.ValueInfoProto) -> bool:
    """Whether the type is, and the shape of a tensor."""
    kind = info.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or info.type.tensor_type.HasField("shape"))


def _fill(model: onnx.ModelProto, known: Mapping[str, onnx.TypeProto]) -> None:
    """Give types to the outputs that have none, or no shape."""
    for o in model.graph.output:
        if o.name in known and not _is_known(o):
            o.type.CopyFrom(known[o.name])


def _told(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """What onnxruntime says of the outputs; what it knows no rank of it shows as a scalar, so of scalars the type."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    for o in asked.graph.output:
        o.ClearField("type")
    session = onnxruntime.InferenceSession(asked.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = {}
    for o in session.get_outputs():
        named = re.fullmatch(r"tensor\((\w+)\)", o.type)
        code = dict(TensorProto.DataType.items()).get(_TYPES.get(named[1], named[1].upper())) if named else None
        if code is not None:
            found[o.name] = helper.make_tensor_type_proto(code, o.shape or None)
    return found


def _of_loop(model: onnx.ModelProto, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
    """Types of a loop's results, as they are after any number of trips.

    onnx says nothing of their shapes, which may change from trip to trip. What is so before the first trip, and after
    one if it was so before it, is so after all: a rank, and every dimension of which that holds.
    """
    body = next(a.g for a in node.attribute if a.name == "body")
    outer = {i.name: i.type for i in (*model.graph.input, *model.graph.value_info)}
    outer |= {t.name: helper.make_tensor_type_proto(t.data_type, list(t.dims)) for t in model.graph.initializer}
    carried = [outer.get(name, onnx.TypeProto()) for name in node.input[2:]]
    while True:
        made = _after_a_trip(model, body, outer, carried)
        also = [_in_common(one, other) for one, other in zip(carried, made[1:], strict=False)]
        if also == carried:
            break
        carried = also
    found = dict(zip(node.output, carried, strict=False))
    for o, each in zip(node.output[len(carried) :], made[1 + len(carried) :], strict=True):
        if each.tensor_type.HasField("shape"):
            each.tensor_type.shape.dim.insert(0, onnx.TensorShapeProto.Dimension())  # as many as there are trips
            found[o] = each
    return found


def _in_common(one: onnx.TypeProto, other: onnx.TypeProto) -> onnx.TypeProto:
    """A tensor's type with what is so of both: no shape where ranks differ, no size where two dimensions do."""
    found = onnx.TypeProto()
    found.CopyFrom(one)
    shapes = [t.tensor_type.shape.dim for t in (one, other)]
    if not all(t.tensor_type.HasField("shape") for t in (one, other)) or len({*map(len, shapes)}) > 1:
        found.tensor_type.ClearField("shape")
        return found
    for dim, theirs in zip(found.tensor_type.shape.dim, shapes[1], strict=True):
        if dim != theirs:
            dim.Clear()
    return found


def _after_a_trip(
    model: onnx.ModelProto,
    body: onnx.GraphProto,
    outer: Mapping[str, onnx.TypeProto],
    carried: Sequence[onnx.TypeProto],
) -> list[onnx.TypeProto]:
    """Types of what a loop's body makes of carried values of these types: whether it goes on, those values, the rest.

    `outer` are types of what the body may read besides, `carried` those before the trip.
    """
    names = [i.name for i in body.input]
    starts = [helper.make_tensor_type_proto(kind, []) for kind in (TensorProto.INT64, TensorProto.BOOL)]
    given = dict(zip(names, [*starts, *carried], strict=True))
    own = {t.name for t in body.initializer}
    weights = [*body.initializer, *(t for t in model.graph.initializer if t.name not in own | given.keys())]
    defined = own | {o for n in body.node for o in n.output} | {t.name for t in weights}
    given |= {name: kind for name, kind in outer.items() if name not in defined | given.keys()}
    inputs = [onnx.ValueInfoProto(name=name, type=kind) for name, kind in given.items()]
    results = [onnx.ValueInfoProto(name=o.name) for o in body.output]
    trip = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    trip.graph.CopyFrom(helper.make_graph(list(body.node), "trip", inputs, results, weights))
    return [o.type for o in onnx.shape_inference.infer_shapes(trip, data_prop=True).graph.output]
