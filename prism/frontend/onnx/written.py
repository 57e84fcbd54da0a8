"""What a model says in more words than it needs, said plainly: tensors that are stored sparse, branches that are known.

And in newer ones than it needs: it is declared of an operator set that runtimes take, where it means the same in that.
Exporters ask of sizes what they could not know themselves, as in `if the dimension is 1, squeeze it`. Where the answer
follows from the shapes, the branch that is taken stands in the place of the `If`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from prism.errors import ModelError, UnsupportedError
from prism.frontend.onnx.functions import defined_within, names_read, nodes_within
from prism.frontend.onnx.graph import MAIN_DOMAINS

MAX_DENSE = 2**31 - 1
"""The most bytes that a sparse tensor may have when it is written out: what a tensor in a model may have at all."""
RUN_SET, RUN_FORMAT = 26, 13
"""The newest operator set, and version of the file format, that onnxruntime 1.31 takes."""
_AS_BEFORE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "BitShift", "Cast", "Celu", "Compress", "DepthToSpace", "DequantizeLinear", "Einsum", "Mod", "OneHot",
                "Optional", "OptionalGetElement", "OptionalHasElement", "QuantizeLinear", "ReduceLogSum",
                "ReduceLogSumExp", "ReverseSequence", "Unique",
            ),
            frozenset[str](),
        ),
        "Range": frozenset({"stash_type"}),
        "SpaceToDepth": frozenset({"mode"}),
    }
)  # fmt: skip
"""What operator sets 27 and 28 have for more types than RUN_SET, and else alike, but for these attributes."""
_REVIEWED = 28


def for_runtimes(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model, of an operator set and a format that runtimes take; itself where it is, or where they say otherwise.

    The model has no functions of its own, and is declared of that opset.
    """
    if opset <= RUN_SET and model.ir_version <= RUN_FORMAT:
        return model
    types = frozenset(
        TensorProto.DataType.Name(t).lower() for t in {TensorProto.INT64, TensorProto.BOOL, *_types(model)}
    )
    nodes = (n for n in nodes_within(model.graph.node) if n.domain in MAIN_DOMAINS and defs.has(n.op_type, opset))
    if not all(_means_the_same(n, opset, types) for n in nodes):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.ir_version = min(model.ir_version, RUN_FORMAT)
    for o in made.opset_import:
        if o.domain in MAIN_DOMAINS:
            o.version = min(o.version, RUN_SET)
    return made


def _means_the_same(node: onnx.NodeProto, opset: int, types: frozenset[str]) -> bool:
    """Whether a node means in RUN_SET what it does, in a model of such types."""
    new = defs.get_schema(node.op_type, opset)
    if new.since_version <= RUN_SET:
        return True
    if new.since_version > _REVIEWED or node.op_type not in _AS_BEFORE:
        return False
    if any(a.name in _AS_BEFORE[node.op_type] for a in node.attribute):
        return False
    old = {t for c in defs.get_schema(node.op_type, RUN_SET).type_constraints for t in c.allowed_type_strs}
    more = {t for c in new.type_constraints for t in c.allowed_type_strs} - old
    return not any(f"tensor({t})" in text for t in types for text in more)


def _types(model: onnx.ModelProto) -> Iterator[int]:
    """The types that a model speaks of."""
    graphs = [model.graph, *(a.g for n in nodes_within(model.graph.node) for a in n.attribute if a.HasField("g"))]
    for graph in graphs:
        yield from (t.data_type for t in graph.initializer)
        yield from (i.type.tensor_type.elem_type for i in (*graph.input, *graph.output, *graph.value_info))
    for node in nodes_within(model.graph.node):
        for a in node.attribute:
            yield from (t.data_type for t in (a.t, *a.tensors))
            if a.name in ("to", "dtype", "output_dtype"):
                yield a.i


def live(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without nodes that no output hangs on, which exporters leave behind; itself where it has none."""
    nodes = model.graph.node
    makers: dict[str, list[int]] = {}
    for n, node in enumerate(nodes):
        for o in filter(None, node.output):
            makers.setdefault(o, []).append(n)
    kept: set[int] = set()
    todo = [o.name for o in model.graph.output]
    while todo:
        for n in makers.pop(todo.pop(), ()):
            if n not in kept:
                kept.add(n)
                todo += names_read(nodes[n])
    if len(kept) == len(nodes):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    made.graph.node.extend(nodes[n] for n in sorted(kept))
    return made


def ordered(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each node behind those whose results it reads; itself where it is so, as ONNX wants it.

    onnxruntime takes others, and its converter to float16 writes them. What goes round in a circle is behind all else.
    """
    nodes = model.graph.node
    makers = {o: n for n, node in enumerate(nodes) for o in node.output if o}
    reads = [{makers[r] for r in {*names_read(p)} - defined_within(p) if r in makers} for p in nodes]
    if all(before < n for n, found in enumerate(reads) for before in found):
        return model
    readers: list[list[int]] = [[] for _ in nodes]
    for n, found in enumerate(reads):
        for before in found:
            readers[before].append(n)
    missing = list(map(len, reads))
    ready = [n for n, many in enumerate(missing) if not many]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for n in readers[order[-1]]:
            missing[n] -= 1
            if not missing[n]:
                heapq.heappush(ready, n)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    made.graph.node.extend(nodes[n] for n in (*order, *(n for n, many in enumerate(missing) if many)))
    return made


def dense(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with its sparse tensors written out; itself where it has none.

    Raises:
        ModelError: the places of elements are not ones of the tensor.
        UnsupportedError: it would be too large.
    """
    constants = [n for n in model.graph.node if n.op_type == "Constant" and n.domain in MAIN_DOMAINS]
    if not model.graph.sparse_initializer and not any(_is_sparse(a) for n in constants for a in n.attribute):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.graph.initializer.extend(_written_out(s, s.values.name, name) for s in model.graph.sparse_initializer)
    del made.graph.sparse_initializer[:]
    for node in made.graph.node:
        for a in node.attribute:
            if _is_sparse(a) and node.op_type == "Constant" and node.domain in MAIN_DOMAINS:
                tensor = _written_out(a.sparse_tensor, a.sparse_tensor.values.name, name)
                a.CopyFrom(helper.make_attribute("value", tensor))
    return made


def _is_sparse(a: onnx.AttributeProto) -> bool:
    return bool(a.type == onnx.AttributeProto.SPARSE_TENSOR)


def _written_out(sparse: onnx.SparseTensorProto, label: str, name: str) -> onnx.TensorProto:
    """A sparse tensor as a dense one: places are given by one number, row by row, or by one number a dimension."""
    where = f"{name}, sparse tensor {label!r}"
    try:
        values, places = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
        shape = tuple(int(d) for d in sparse.dims)
        if math.prod(shape) * values.dtype.itemsize > MAX_DENSE:
            raise UnsupportedError(
                f"the sparse tensor of shape {list(shape)} is too large to be written out",
                where=where,
                why=f"it would have more than {MAX_DENSE:,} bytes",
                fix="split it",
            )
        whole = np.zeros(shape, values.dtype)
        at = np.unravel_index(places, shape) if places.ndim == 1 else tuple(places.T)
        if places.size and places.min() < 0:
            raise IndexError("a place is negative")
        whole[at] = values
    except (IndexError, TypeError, ValueError) as error:
        raise ModelError(
            "the sparse tensor cannot be read", where=where, why=str(error).split("\n")[0], fix="export the model again"
        ) from None
    return numpy_helper.from_array(whole, label)


def check_branches(node: onnx.NodeProto, where: str) -> None:
    """Make sure that both branches of an `If` give what the node does.

    Raises:
        ModelError: one is missing, or gives more or fewer results.
    """
    branches = {a.name: a.g for a in node.attribute if a.HasField("g")}
    for name in ("then_branch", "else_branch"):
        if name not in branches or len(branches[name].output) != len(node.output):
            gives = len(branches[name].output) if name in branches else 0
            raise ModelError(
                "the node is not a legal If",
                where=where,
                why=f"its {name} " + (f"gives {gives} results of {len(node.output)}" if gives else "is missing"),
                fix="export the model again",
            )


def with_branch(model: onnx.ModelProto, place: int, taken: bool) -> onnx.ModelProto:
    """The model, its functions written out, with one branch of the `If` at that place instead of it."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    node = model.graph.node[place]
    branch = next(a.g for a in node.attribute if a.name == ("then_branch" if taken else "else_branch"))
    known = _names(made.graph)
    own = _defined(branch)
    renamed: dict[str, str] = {}
    results = list(zip((o.name for o in branch.output), node.output, strict=True))
    for inner, outer in results:
        if outer and inner in own and inner not in renamed and not any(t.name == inner for t in branch.initializer):
            renamed[inner] = outer
    first = next((o for o in node.output if o), node.name)
    for inner in own:
        if inner not in renamed:
            renamed[inner] = _fresh(f"{first}/{inner}", known)
    inside = []
    for n in branch.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(n)
        copy.name = f"{node.name or first}/{n.name or n.op_type}"
        _rename([copy], renamed)
        inside.append(copy)
    for inner, outer in results:
        stands = renamed.get(inner, inner)
        if outer and stands != outer:
            inside.append(helper.make_node("Identity", [stands], [outer], name=f"{node.name or first}/{outer}"))
    for t in branch.initializer:
        made.graph.initializer.add().CopyFrom(t)
        made.graph.initializer[-1].name = renamed[t.name]
    nodes = [*model.graph.node[:place], *inside, *model.graph.node[place + 1 :]]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _defined(graph: onnx.GraphProto) -> dict[str, None]:
    """What a sub-graph names itself, those within it included."""
    nodes = list(nodes_within(graph.node))
    graphs = [graph, *(g for n in nodes for a in n.attribute for g in (a.g, *a.graphs))]
    return dict.fromkeys(
        [o for n in nodes for o in n.output if o] + [v.name for g in graphs for v in (*g.input, *g.initializer)]
    )


def _names(graph: onnx.GraphProto) -> set[str]:
    held = {v.name for v in (*graph.input, *graph.initializer, *graph.output)}
    return held | {o for n in graph.node for o in n.output}


def _fresh(name: str, known: set[str]) -> str:
    while name in known:
        name += "_"
    known.add(name)
    return name


def _rename(nodes: Iterable[onnx.NodeProto], renamed: dict[str, str]) -> None:
    inner = list(nodes_within(nodes))
    for n in inner:
        n.input[:] = [renamed.get(i, i) for i in n.input]
        n.output[:] = [renamed.get(o, o) for o in n.output]
        for a in n.attribute:
            for g in (a.g, *a.graphs) if a.HasField("g") or a.graphs else ():
                for v in (*g.input, *g.initializer, *g.output):
                    v.name = renamed.get(v.name, v.name)
