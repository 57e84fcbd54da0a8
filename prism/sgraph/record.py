"""An sGraph as plain data (dicts, lists, strings, numbers) and back: what an output folder keeps of it.

A node is {"is": its class, field: ...}; a symbolic extent is {"is": "symbol" | "sum" | "product" | "power" | "floor" |
"ceiling" | "ratio", "of": ...}; everything else stands for itself. Reading builds nodes of the classes below and
nothing else, so a file from anywhere can be read; whether the graph is legal is for `prism.sgraph.spec.check` to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import sympy

from prism.errors import IllegalIRError
from prism.program.extents import normal, symbol
from prism.program.index import Axis, Index
from prism.program.nodes import DType, ReduceKind, Tensor
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Pointwise,
    Position,
    Scan,
    SGraph,
    Split,
    Store,
    TileReduce,
    Whole,
)

_CLASSES: Mapping[str, type] = {
    c.__name__: c
    for c in (
        Accumulate, Axis, Contract, Grid, Index, Kernel, Load, Loop, LoopRole, Pointwise, Position, Scan, SGraph, Split,
        Store, Tensor, TileReduce, Whole,
    )
}  # fmt: skip
_ENUMS: Mapping[str, Callable[[str], Enum]] = {"kind": ReduceKind, "dtype": DType}
_MANY: Mapping[str, Callable[..., Any]] = {
    "sum": sympy.Add, "product": sympy.Mul, "power": sympy.Pow, "floor": sympy.floor, "ceiling": sympy.ceiling,
    "ratio": sympy.Rational,
}  # fmt: skip
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
        return data
    kind = data["is"]
    if kind == "symbol":
        return symbol(str(data["of"]))
    if kind == "number":
        return float(data["of"])
    if kind in _MANY:
        return normal(_MANY[kind](*_node(data["of"])))
    made = {}
    for name, value in data.items():
        if name != "is":
            made[name] = _ENUMS[name](value) if name in _ENUMS else _node(value)
    return _CLASSES[kind](**made)


__all__ = ["plain", "sgraph_of"]
