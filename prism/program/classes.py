"""A saturated e-graph as plain data: what the generator walks. The e-graph engine hands it over once, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from prism.program.index import Axis
from prism.program.nodes import Const, Position, Read, Size

Payload: TypeAlias = "Read | Const | Size | Position | Axis | None"
Key: TypeAlias = "tuple[str, Payload, tuple[int, ...]]"


@dataclass(frozen=True, slots=True)
class ENode:
    """One way to compute an e-class."""

    # "read", "const", "size", "position" (leaves, with the expression as payload); a pointwise op's name; or "sum",
    # "max", "min", "prod" with the reduced axis as payload.
    op: str
    payload: Payload  # see `op`
    children: tuple[int, ...]  # e-class ids
    domain: bool = False  # whether only rules of the class `domain` led here (it changes where overflow or NaN happens)


@dataclass(frozen=True, slots=True)
class EClasses:
    """A frozen e-graph."""

    # e-class id to its e-nodes, in a fixed order that does not depend on the process.
    nodes: Mapping[int, tuple[ENode, ...]]
    axes: Mapping[int, frozenset[Axis]]  # e-class id to the free axes of its value: the least set that was derived
    roots: tuple[int, ...]  # the e-class of each output, in order
    enodes: int  # how many e-nodes there are
    iterations: int  # how many rounds the rules ran
    stopped: str  # why it stopped: "saturated", "e-node budget" or "iteration budget"
    # e-nodes that are not among `nodes`, as they are computed along axes that their e-class does not depend on, by
    # operator, payload and children: their e-class.
    along: Mapping[Key, int] = field(default_factory=dict)
