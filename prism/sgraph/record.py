"""An sGraph as plain data (dicts, lists, strings, numbers) and back: what an output folder keeps of it.

A node is {"is": its class, field: ...}; a symbolic extent is {"is": "symbol" | "sum" | "product" | "power" | "floor" |
"ceiling" | "ratio", "of": ...}; everything else stands for itself. Reading builds nodes of the classes below and
nothing else, so a file from anywhere can be read; whether the graph is legal is for `prism.sgraph.spec.check` to say.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import sympy

from prism.errors import IllegalIRError
from prism.program.extents import KINDS, LARGEST, made, symbol
from prism.program.index import Axis, Index
from prism.program.nodes import DType, ReduceKind, Tensor
from prism.program.stated import Assumption
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Gather,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Moment,
    Place,
    Pointwise,
    Position,
    Repeat,
    Scan,
    SGraph,
    Split,
    Statistic,
    Store,
    TileReduce,
    Whole,
    Window,
)

_CLASSES: Mapping[str, type] = {
    c.__name__: c
    for c in (
        Accumulate, Assumption, Axis, Contract, Gather, Grid, Index, Kernel, Load, Loop, LoopRole, Place, Pointwise,
        Position, Repeat, Scan, SGraph, Split, Store, Tensor, TileReduce, Whole, Window,
    )
}  # fmt: skip


def _kind(name: str) -> Enum:
    return Statistic(name) if name in [s.value for s in Statistic] else ReduceKind(name)


def _moment(name: str | None) -> Enum | None:
    return None if name is None else Moment(name)


_ENUMS: Mapping[str, Callable[[str], Enum | None]] = {"kind": _kind, "moment": _moment, "dtype": DType}
_NAMES = {sympy.Add: "sum", sympy.Mul: "product", sympy.Pow: "power", sympy.floor: "floor", sympy.ceiling: "ceiling"}


def plain(value: Any) -> Any:
    """The node as plain data.

    Raises:
        IllegalIRError: it holds something that no sGraph has.
    """
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


def sgraph_of(data: Any) -> SGraph:
    """The sGraph from plain data.

    Raises:
        IllegalIRError: it is none.
    """
    try:
        found = _node(data)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise IllegalIRError("not an sGraph", why=f"{type(error).__name__}: {error}") from error
    if not isinstance(found, SGraph):
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
    given = {}
    for name, value in data.items():
        if name != "is":
            given[name] = _ENUMS[name](value) if name in _ENUMS else _node(value)
    made_of = _CLASSES[kind]
    for name, hint in _hints(made_of).items():
        if name in given and not _fits(given[name], hint):
            raise TypeError(f"{name} of a {kind} is a {type(given[name]).__name__}, or holds what it cannot")
    return made_of(**given)


@cache
def _hints(of: type) -> dict[str, Any]:
    return get_type_hints(of, localns={"sympy": sympy})


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
