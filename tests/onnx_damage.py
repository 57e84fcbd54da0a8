"""ONNX models damaged at random, in the ways in which files are: what a reader must refuse by name, or read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import onnx
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, TensorProto, helper

HUGE = (2**62, 2**31, -1, -(2**63), 2**63 - 1, 0, 100_000)

Damage = Callable[[onnx.ModelProto, random.Random], None]


def _node(m: onnx.ModelProto, r: random.Random) -> onnx.NodeProto:
    nodes: list[onnx.NodeProto] = list(m.graph.node)
    return r.choice(nodes)


def _name(m: onnx.ModelProto, r: random.Random) -> str:
    g = m.graph
    named = (*g.input, *g.output, *g.initializer)
    return r.choice([*(str(t.name) for t in named), *(str(o) for n in g.node for o in n.output), "nowhere"])


def _tensors(m: onnx.ModelProto) -> list[TensorProto]:
    constants = [a.t for n in m.graph.node for a in n.attribute if a.type == AttributeProto.TENSOR]
    return [*m.graph.initializer, *constants]


def drop_node(m: onnx.ModelProto, r: random.Random) -> None:
    del m.graph.node[r.randrange(len(m.graph.node))]


def drop_initializer(m: onnx.ModelProto, r: random.Random) -> None:
    del m.graph.initializer[r.randrange(len(m.graph.initializer))]


def drop_input(m: onnx.ModelProto, r: random.Random) -> None:
    del m.graph.input[r.randrange(len(m.graph.input))]


def drop_output(m: onnx.ModelProto, r: random.Random) -> None:
    del m.graph.output[r.randrange(len(m.graph.output))]


def repeat_node(m: onnx.ModelProto, r: random.Random) -> None:
    m.graph.node.append(_node(m, r))


def repeat_initializer(m: onnx.ModelProto, r: random.Random) -> None:
    m.graph.initializer.append(r.choice(m.graph.initializer))


def repeat_input(m: onnx.ModelProto, r: random.Random) -> None:
    m.graph.input.append(r.choice(m.graph.input))


def shuffle(m: onnx.ModelProto, r: random.Random) -> None:
    nodes = list(m.graph.node)
    r.shuffle(nodes)
    del m.graph.node[:]
    m.graph.node.extend(nodes)


def other_operand(m: onnx.ModelProto, r: random.Random) -> None:
    """Another value, which may be defined later, be of another shape or type, or be the node's own result."""
    n = _node(m, r)
    n.input[r.randrange(len(n.input))] = _name(m, r)


def fewer_operands(m: onnx.ModelProto, r: random.Random) -> None:
    n = _node(m, r)
    del n.input[r.randrange(len(n.input)) :]


def more_operands(m: onnx.ModelProto, r: random.Random) -> None:
    _node(m, r).input.extend([_name(m, r)] * r.randint(1, 4))


def no_operand(m: onnx.ModelProto, r: random.Random) -> None:
    n = _node(m, r)
    n.input[r.randrange(len(n.input))] = ""


def other_result(m: onnx.ModelProto, r: random.Random) -> None:
    n = _node(m, r)
    n.output[r.randrange(len(n.output))] = _name(m, r)


def results(m: onnx.ModelProto, r: random.Random) -> None:
    n = _node(m, r)
    if r.random() < 0.5:
        n.output.append("another")
    else:
        del n.output[-1:]


def other_operator(m: onnx.ModelProto, r: random.Random) -> None:
    n = _node(m, r)
    n.op_type = r.choice([_node(m, r).op_type, *OPERATORS])


OPERATORS = [
    "Split",
    "Reshape",
    "Transpose",
    "Slice",
    "Gather",
    "Concat",
    "Softmax",
    "LayerNormalization",
    "Attention",
    "RotaryEmbedding",
    "Einsum",
    "Tile",
    "Expand",
    "ConstantOfShape",
    "Range",
    "ReduceSum",
    "ReduceMax",
    "Where",
    "Cast",
    "Pow",
    "MatMul",
    "Gemm",
    "Unsqueeze",
    "Squeeze",
    "Shape",
    "Size",
    "Constant",
    "Trilu",
    "CumSum",
    "Clip",
    "Pad",
    "Conv",
    "If",
    "Loop",
    "Scan",
    "Identity",
    "Nope",
    "Mod",
    "DepthToSpace",
    "GatherElements",
    "OneHot",
    "TopK",
    "Flatten",
]


def other_domain(m: onnx.ModelProto, r: random.Random) -> None:
    _node(m, r).domain = r.choice(["com.microsoft", "prism", "ai.onnx", "x" * 1000])


def drop_attribute(m: onnx.ModelProto, r: random.Random) -> None:
    n = r.choice([n for n in m.graph.node if n.attribute])
    del n.attribute[r.randrange(len(n.attribute))]


def other_attribute(m: onnx.ModelProto, r: random.Random) -> None:
    """A number that is out of every range, or one of another type."""
    n = r.choice([n for n in m.graph.node if n.attribute])
    a = r.choice(n.attribute)
    values: list[object] = [r.choice(HUGE), r.choice([float("nan"), float("inf"), 0.0]), "zz", [], [r.choice(HUGE)] * 3]
    if a.type == AttributeProto.INT:
        values = [*HUGE, 1, 3]
    elif a.type == AttributeProto.INTS:
        values = [[r.choice([*HUGE, 1, 2]) for _ in a.ints], list(a.ints)[1:], [*a.ints, 1]]
    if r.random() < 0.2:
        values = ["", b"\xff", 1.5, [1.5], 7]
    if values:
        a.CopyFrom(helper.make_attribute(a.name, r.choice(values)))


def new_attribute(m: onnx.ModelProto, r: random.Random) -> None:
    name = r.choice(["axis", "axes", "keepdims", "perm", "to", "alpha", "value", "mode", "num_outputs", "zz"])
    _node(m, r).attribute.append(helper.make_attribute(name, r.choice([*HUGE, 1, 2])))


def unknown_attribute_type(m: onnx.ModelProto, r: random.Random) -> None:
    n = r.choice([n for n in m.graph.node if n.attribute])
    r.choice(n.attribute).type = r.choice(list(AttributeProto.AttributeType.values()))


def other_opset(m: onnx.ModelProto, r: random.Random) -> None:
    if r.random() < 0.2:
        del m.opset_import[:]
    else:
        r.choice(m.opset_import).version = r.choice([-1, 0, 1, 12, 13, 18, 21, 24, 99, 2**62])


def other_dimension(m: onnx.ModelProto, r: random.Random) -> None:
    info = r.choice([*m.graph.input, *m.graph.output])
    dims = info.type.tensor_type.shape.dim
    if dims and r.random() < 0.6:
        r.choice(dims).dim_value = r.choice([*HUGE, 1, 2, 3])
    elif dims and r.random() < 0.7:
        r.choice(dims).dim_param = r.choice(
            ["n", "", "2*n", "n**n", "-n", "(" * 500, "9" * 50, "a b", "-5", "n-n", "0*n"]
        )
    elif dims:
        del dims[-1]
    else:
        dims.add().dim_value = 3


def other_type(m: onnx.ModelProto, r: random.Random) -> None:
    info = r.choice([*m.graph.input, *m.graph.output])
    info.type.tensor_type.elem_type = r.choice([*TensorProto.DataType.values(), 0, 99])


def no_type(m: onnx.ModelProto, r: random.Random) -> None:
    info = r.choice([*m.graph.input, *m.graph.output])
    if r.random() < 0.5:
        info.type.tensor_type.ClearField("shape")
    else:
        info.ClearField("type")


def other_bytes(m: onnx.ModelProto, r: random.Random) -> None:
    t = r.choice(_tensors(m))
    if r.random() < 0.5:
        t.raw_data = t.raw_data[: len(t.raw_data) // 2] if r.random() < 0.5 else t.raw_data + b"\x01\x02"
    else:
        t.raw_data = bytes(r.choice([0, 255, 127]) for _ in t.raw_data)


def other_tensor(m: onnx.ModelProto, r: random.Random) -> None:
    t = r.choice(_tensors(m))
    if r.random() < 0.5:
        t.data_type = r.choice([*TensorProto.DataType.values(), 99])
    elif t.dims and r.random() < 0.8:
        t.dims[r.randrange(len(t.dims))] = r.choice([*HUGE, 1])
    else:
        t.dims.append(r.choice([0, 1, 2]))


def outside(m: onnx.ModelProto, r: random.Random) -> None:
    t = r.choice(_tensors(m))
    t.data_location = TensorProto.EXTERNAL
    for key, values in {
        "location": ["../../etc/passwd", "/dev/zero", "nowhere.bin", "", "/etc/passwd", ".", "a\0b"],
        "offset": ["-1", "zz", "0", str(2**70)],
        "length": ["-1", "zz", "", "4", str(2**70)],
    }.items():
        entry = t.external_data.add()
        entry.key, entry.value = key, r.choice(values)


def subgraph(m: onnx.ModelProto, r: random.Random) -> None:
    inner = helper.make_graph(list(m.graph.node)[:3], "inner", [], list(m.graph.output)[:1])
    _node(m, r).attribute.append(helper.make_attribute("then_branch", inner))


def function(m: onnx.ModelProto, r: random.Random) -> None:
    """The node calls a function, which may call itself, miss an operand, or be of no operator set."""
    n = _node(m, r)
    inside = helper.make_node(
        r.choice(["Exp", "F", "Nope"]), [r.choice(["a", "zz"])], ["b"], domain=r.choice(["", "l"])
    )
    sets = [helper.make_opsetid("", r.choice([18, 99])), helper.make_opsetid("l", 1)][r.choice([0, 0, 1]) :]
    m.functions.append(helper.make_function("l", "F", r.choice([["a"], [], ["a", "c"]]), ["b"], [inside], sets))
    n.op_type, n.domain = "F", "l"
    if r.random() < 0.7:
        m.opset_import.append(helper.make_opsetid("l", 1))


DAMAGES: tuple[Damage, ...] = (
    drop_node, drop_initializer, drop_input, drop_output, repeat_node, repeat_initializer, repeat_input, shuffle,
    other_operand, other_operand, fewer_operands, more_operands, no_operand, other_result, results, other_operator,
    other_operator, other_domain, drop_attribute, other_attribute, other_attribute, new_attribute,
    unknown_attribute_type, other_opset, other_dimension, other_dimension, other_type, no_type, other_bytes,
    other_tensor, other_tensor, outside, subgraph, function,
)  # fmt: skip


def damaged(model: onnx.ModelProto, r: random.Random) -> tuple[str, bytes]:
    """What was done, and the file that it left."""
    m = onnx.ModelProto()
    m.CopyFrom(model)
    done: list[str] = []
    for _ in range(r.choice([1, 1, 2, 3])):
        damage = r.choice(DAMAGES)
        try:
            damage(m, r)
        except (IndexError, ValueError, TypeError, AttributeError, EncodeError):
            continue  # there is nothing of the kind in this model, or protobuf does not hold it
        done.append(damage.__name__)
    data = m.SerializeToString()
    if r.random() < 0.1:
        at = r.randrange(len(data))
        data = data[:at] if r.random() < 0.5 else data[:at] + bytes([r.randrange(256)]) + data[at + 1 :]
        done.append(f"bytes {at}")
    return ", ".join(done), data


def many(models: list[onnx.ModelProto], seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """That many damaged models."""
    r = random.Random(seed)
    for _ in range(count):
        yield damaged(r.choice(models), r)
