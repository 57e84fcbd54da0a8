"""An sGraph as plain data (dicts, lists, strings, numbers) and back: what an output folder keeps of it.

A node is {"is": its class, field: ...}; a symbolic extent is {"is": "symbol" | "sum" | "product" | "power" | "floor" |
"ceiling" | "ratio", "of": ...}; everything else stands for itself. Reading builds nodes of the classes below and
nothing else, so a file from anywhere can be read. Whoever checks a folder reads its file, works out the denotation
anew, and compares that with the end of the certificate's proof: nothing of what the run said about itself is used.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import sympy

from prism.errors import IllegalIRError, UsageError
from prism.program.extents import KINDS, LARGEST, made, symbol
from prism.program.index import Axis, Index
from prism.program.nodes import Expr, Tensor
from prism.program.prefix import Recurrence
from prism.program.stated import Assumption
from prism.sgraph import nodes as sg
from prism.sgraph import spec
from prism.sgraph.denote import denote

_CLASSES: Mapping[str, type] = {
    c.__name__: c
    for c in (
        Assumption, Axis, Index, Recurrence, Tensor, sg.Accumulate, sg.Contract, sg.Gather, sg.Grid, sg.Kernel, sg.Load,
        sg.Loop, sg.LoopRole, sg.Place, sg.Pointwise, sg.Position, sg.Repeat, sg.Scan, sg.SGraph, sg.Split, sg.Store,
        sg.TileReduce, sg.Whole, sg.Window,
    )
}  # fmt: skip


_NAMES = {sympy.Add: "sum", sympy.Mul: "product", sympy.Pow: "power", sympy.floor: "floor", sympy.ceiling: "ceiling"}


def plain(value: Any) -> Any:
    """The node as plain data. Raises IllegalIRError: it holds something that no sGraph has."""
    match value:
        case Enum():
            return value.value
        case str() | bool() | int() | None:
            return value
        case float():
            return value if math.isfinite(value) else {"is": "number", "of": repr(value)}
        case tuple():
            return [plain(v) for v in value]
        case sympy.Integer():
            return int(value)
        case sympy.Symbol():
            return {"is": "symbol", "of": value.name}
        case sympy.Rational():
            return {"is": "ratio", "of": [int(value.p), int(value.q)]}
        case sympy.Expr() if type(value) in _NAMES:
            return {"is": _NAMES[type(value)], "of": [plain(a) for a in value.args]}
    name = type(value).__name__
    if is_dataclass(value) and _CLASSES.get(name) is type(value):
        return {"is": name, **{f.name: plain(getattr(value, f.name)) for f in fields(value) if f.init}}
    raise IllegalIRError(f"an sGraph has no {name}", where=str(value)[:80])


def sgraph_of(data: Any) -> sg.SGraph:
    """The sGraph from plain data. Raises IllegalIRError: it is none."""
    try:
        found = _node(data)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise IllegalIRError("not an sGraph", why=f"{type(error).__name__}: {error}") from error
    if not isinstance(found, sg.SGraph):
        raise IllegalIRError("not an sGraph", why=f"it is a {type(found).__name__}")
    return found


def _node(data: Any) -> Any:
    if isinstance(data, list):
        return tuple([_node(d) for d in data])
    if not isinstance(data, dict):
        if isinstance(data, int) and abs(data) > LARGEST:
            raise ValueError("a number larger than any extent")
        return data
    kind = data["is"]
    if kind == "symbol":
        return symbol(str(data["of"]))
    if kind == "number":
        return float(data["of"])
    if kind in KINDS:
        if kind in ("sum", "product") and len(data["of"]) < 2:
            raise ValueError(f"a {kind} of {len(data['of'])}")
        return made(kind, _node(data["of"]))
    made_of = _CLASSES[kind]
    hints = _hints(made_of)
    given = {n: _named(v, hints.get(n)) if isinstance(v, str) else _node(v) for n, v in data.items() if n != "is"}
    for name, hint in hints.items():
        if name in given and not _fits(given[name], hint):
            raise TypeError(f"{name} of a {kind} is a {type(given[name]).__name__}, or holds what it cannot")
    return made_of(**given)


@cache
def _hints(of: type) -> dict[str, Any]:
    return get_type_hints(of, localns={"sympy": sympy})


def _named(text: str, hint: Any) -> Any:
    """The member of an enumeration that a field of this type may have by the name; else the text itself."""
    kinds = [k for k in get_args(hint) or (hint,) if isinstance(k, type) and issubclass(k, Enum)]
    return next((member for kind in kinds for member in kind if member.value == text), text)


def _fits(value: Any, hint: Any) -> bool:
    """Whether the value is of the type, all that it holds included."""
    match get_origin(hint), get_args(hint):
        case ((types.UnionType | typing.Union), kinds):
            return any(_fits(value, k) for k in kinds)
        case origin, (kind, end) if origin is tuple and end is Ellipsis:
            return isinstance(value, tuple) and all(_fits(v, kind) for v in value)
        case origin, kinds if origin is tuple:
            return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_fits, value, kinds))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


__all__ = ["plain", "sgraph_of"]

NAME = "sgraph.json"
SCHEMA = "prism.sgraph/1"


def written(sgraph: sg.SGraph) -> str:
    """The file's text."""
    body = msgspec.json.encode({"schema": SCHEMA, "sgraph": plain(sgraph)})
    return msgspec.json.format(body, indent=1).decode() + "\n"


def read(data: bytes) -> sg.SGraph:
    """The sGraph of a file's bytes, checked to be a legal one.

    Raises:
        UsageError: it is no such file.
        IllegalIRError: the sGraph is not legal.
    """
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"not a {SCHEMA} record", where=NAME, why=str(error)) from error
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise UsageError(f"not a {SCHEMA} record", where=NAME, fix="run prism optimize again")
    found = sgraph_of(body.get("sgraph"))
    spec.check(found)
    return found


def denoted(sgraph: sg.SGraph, outputs: Sequence[str]) -> list[Expr]:
    """What the sGraph stores in these tensors, over its inputs and over the others of these.

    Raises:
        IllegalIRError: it has no denotation, or stores nothing there.
    """
    if [t.name for t in sgraph.outputs] == list(outputs) and not sgraph.repeats:
        return list(denote(sgraph).outputs)
    return [_one(sgraph, name, frozenset(outputs)) for name in outputs]


def _one(sgraph: sg.SGraph, output: str, handed: frozenset[str]) -> Expr:
    """What is stored in one tensor: the kernels between it and the tensors that are handed over."""
    writers: dict[str, list[sg.Kernel]] = {}
    for k in sgraph.kernels:
        for name in k.writes:
            writers.setdefault(name, []).append(k)
    if output not in writers:
        raise IllegalIRError(f"no kernel stores {output}", where=sgraph.name)
    needed: set[str] = set()
    stack = [*writers[output]]
    while stack:
        kernel = stack.pop()
        if kernel.name not in needed:
            needed.add(kernel.name)
            stack += [k for t in kernel.reads if t not in handed for k in writers.get(t, ())]
    kernels: list[sg.Kernel] = [k for k in sgraph.kernels if k.name in needed]
    stored = {name for k in kernels for name in k.writes}
    read_here = {name for k in kernels for name in k.reads}
    known = sgraph.tensors.values()
    inputs = tuple(t for t in known if t.name in read_here and t.name not in stored)
    part = replace(
        sgraph,
        inputs=inputs,
        buffers=tuple(t for t in known if t.name in stored and t.name != output),
        outputs=(sgraph.tensor(output),),
        kernels=tuple(kernels),
        together=(),
        repeats=(),
    )
    return denote(part).outputs[0]
