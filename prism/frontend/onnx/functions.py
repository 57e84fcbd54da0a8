"""Functions written out: the local ones of an ONNX model, and operators by the bodies that onnx has of them.

What that makes is counted first. A function may call others, and forty that each call the one before twice are 2^40
nodes in a file of a few kilobytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import onnx
from onnx import defs, inliner

from prism.errors import ModelError, UnsupportedError

MAX_NODES = 200_000
"""The most nodes that a model may have, its functions written out."""
MAX_DEPTH = 100
"""The most calls of functions within functions: onnx writes out no more."""

_Key: TypeAlias = tuple[str, str, str]


def expanded(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model without functions of its own: each call replaced by the nodes of its function.

    Raises:
        ModelError: a function calls itself, or calls are nested too deep.
        UnsupportedError: there would be too many nodes.
    """
    total = _count(model, name)
    if total > MAX_NODES:
        many = f"{total:,}" if total < 10**12 else f"more than {10**12:,}"
        raise UnsupportedError(
            f"the model has {many} nodes",
            where=name,
            why=f"{'its functions call one another, and ' if model.functions else ''}prism takes {MAX_NODES:,} at most",
            fix="split the model, or export the part that is to be optimised",
        )
    if not model.functions:
        return model
    try:
        return inliner.inline_local_functions(_with_defaults(model))
    except Exception as error:  # what onnx refuses it refuses with errors of several kinds
        raise ModelError(
            "the functions of the model cannot be written out",
            where=name,
            why=str(error).split("\n")[0],
            fix="export the model without functions of its own",
        ) from None


def _with_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model whose calls of functions say what they leave to a default, which onnx's inliner takes for nothing."""
    defaults = {(f.domain, f.name, f.overload): f.attribute_proto for f in model.functions if f.attribute_proto}
    if not defaults:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for node in nodes_within((*made.graph.node, *(n for f in made.functions for n in f.node))):
        said = {a.name for a in node.attribute}
        node.attribute.extend(a for a in defaults.get(_called(node), ()) if a.name not in said)
    return made


def nodes_within(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and those of their sub-graphs."""
    stack = [iter(nodes)]
    while stack:
        for node in stack[-1]:
            yield node
            graphs = [g for a in node.attribute for g in (a.g, *a.graphs)]
            if any(g.node for g in graphs):
                stack.append(n for g in graphs for n in g.node)
                break
        else:
            stack.pop()


def names_read(proto: onnx.NodeProto) -> list[str]:
    """What the node reads, its sub-graphs included."""
    return [i for n in nodes_within([proto]) for i in n.input if i] + [
        o.name for n in nodes_within([proto]) for a in n.attribute for g in (a.g, *a.graphs) for o in g.output
    ]


def defined_within(proto: onnx.NodeProto) -> set[str]:
    """What the node's sub-graphs define."""
    inner = list(nodes_within([proto]))
    graphs = [g for n in inner for a in n.attribute for g in (a.g, *a.graphs)]
    return {o for n in inner[1:] for o in n.output} | {
        v.name for g in graphs for v in (*g.input, *g.initializer, *(t.values for t in g.sparse_initializer))
    }


def _count(model: onnx.ModelProto, name: str) -> int:
    """How many nodes there are when every call is written out."""
    functions: dict[_Key, onnx.FunctionProto] = {(f.domain, f.name, f.overload): f for f in model.functions}
    if not functions:
        return sum(1 for _ in nodes_within(model.graph.node))
    calls = {key: [_called(n) for n in nodes_within(f.node)] for key, f in functions.items()}
    known: dict[_Key, int] = {}
    depth: dict[_Key, int] = {}
    for start in functions:
        path: list[_Key] = [start]
        on_path = {start}
        while path:
            key = path[-1]
            callees = dict.fromkeys(c for c in calls[key] if c in functions)
            todo = next((c for c in callees if c not in known), None)
            if todo is None:
                known[key] = sum(known.get(c, 1) for c in calls[key])
                depth[key] = 1 + max((depth[c] for c in callees), default=0)
                on_path.discard(path.pop())
            elif todo in on_path:
                raise ModelError(
                    "a function calls itself",
                    where=f"{name}, function {_text(todo)}",
                    why=" calls ".join(_text(k) for k in [*path[path.index(todo) :], todo]),
                    fix="export the model without functions of its own; ONNX has no recursion",
                )
            else:
                path.append(todo)
                on_path.add(todo)
    deepest = max(depth, key=lambda k: depth[k])
    if depth[deepest] > MAX_DEPTH:
        raise UnsupportedError(
            f"calls of functions are nested {depth[deepest]} deep",
            where=f"{name}, function {_text(deepest)}",
            why=f"{MAX_DEPTH} at most are written out",
            fix="export the model without functions of its own",
        )
    return sum(known.get(_called(n), 1) for n in nodes_within(model.graph.node))


def _called(node: onnx.NodeProto) -> _Key:
    return node.domain, node.op_type, node.overload


def _text(key: _Key) -> str:
    domain, op, overload = key
    return f"{domain}::{op}" + (f":{overload}" if overload else "")


@cache
def operators_with_bodies() -> frozenset[str]:
    """The operators of which onnx has a function body in some version."""
    schemas: list[Any] = [s for s in defs.get_all_schemas_with_history() if s.domain == ""]
    return frozenset(s.name for s in schemas if s.has_function or s.has_context_dependent_function)


def body(node: onnx.NodeProto, opset: int, types: Sequence[onnx.TypeProto]) -> tuple[list[onnx.NodeProto], int] | None:
    """The nodes that onnx says an operator is made of, and the operator set that they are of; None where it does not.

    Values within are named after the node's first result, so that no other node has them.

    Args:
        node: the node.
        opset: the model's operator set.
        types: those of the operands, by place; an empty one of an operand that is left out. onnx follows the types that
            it expects without a look.
    """
    schema: Any = defs.get_schema(node.op_type, opset)  # onnx's stubs leave the functions out
    plain, dependent = schema.function_opset_versions, schema.context_dependent_function_opset_versions
    if plain:
        text = schema.get_function_with_opset_version(_nearest(plain, opset))
    elif dependent:
        told = [t.SerializeToString() for t in types]
        text = schema.get_context_dependent_function_with_opset_version(
            _nearest(dependent, opset), node.SerializeToString(), told
        )
    else:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(text)
    given = {a.name: a for a in node.attribute}
    given |= {n: a.default_value for n, a in schema.attributes.items() if n not in given and a.default_value.name}
    renamed = dict.fromkeys(function.input, "")
    renamed |= dict(zip(function.input, node.input, strict=False))
    renamed |= {formal: actual for formal, actual in zip(function.output, node.output, strict=False) if actual}
    first = next(o for o in node.output if o)
    made = []
    for inner in function.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        copy.name = f"{node.name or node.op_type}/{inner.op_type}"
        copy.input[:] = [renamed.setdefault(i, f"{first}/{i}") if i else "" for i in inner.input]
        copy.output[:] = [renamed.setdefault(o, f"{first}/{o}") if o else "" for o in inner.output]
        del copy.attribute[:]
        for a in inner.attribute:
            if not a.ref_attr_name:
                copy.attribute.append(a)
            elif a.ref_attr_name in given:
                copy.attribute.append(given[a.ref_attr_name])
                copy.attribute[-1].name = a.name
        made.append(copy)
    versions = [int(o.version) for o in function.opset_import if o.domain == ""]
    return made, versions[0] if versions else schema.since_version


def _nearest(versions: Sequence[int], opset: int) -> int:
    """The operator set of the body to take, all of which say the same: the last up to the model's, or the first."""
    return max((v for v in versions if v <= opset), default=min(versions))
