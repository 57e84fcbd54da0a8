"""What a program returns without computing it: inputs as they are, constants, and one result twice.

A kernel would copy an input, and compute constants, in float32, which holds no large integer. So such outputs are taken
off before anything is searched, and the emitted module returns them besides what its kernels compute.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import sympy

from prism.program.empty import is_empty
from prism.program.extents import Extent, is_static, mul
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Definition, Expr, Map, Position, Program, Read, Size, Tensor, walk
from prism.program.region import subprogram
from prism.program.transform import element_at, replaced, substitute

FEW = 64
"""Elements that are written out."""


@dataclass(frozen=True, slots=True)
class Computed:
    """An output of the program that is left: which of them."""

    place: int


@dataclass(frozen=True, slots=True)
class Passed:
    """An input, or a weight, as it is."""

    name: str


@dataclass(frozen=True, slots=True)
class Made:
    """A constant."""

    tensor: Tensor  # its name, shape and data type
    # One for all elements, or one for each, outermost dimension first; none where there are no elements.
    values: tuple[float | Extent, ...]


Returned: TypeAlias = Computed | Passed | Made


def computed(program: Program) -> tuple[Program, tuple[Returned, ...]]:
    """The program without the outputs that need no kernel, and where each of its outputs comes from.

    A program without any other outputs is left as it is.
    """
    definitions = {d.name: d for d in program.definitions}
    inputs = {t.name: t for t in program.inputs}
    constant = constants(program)
    outputs: dict[str, int] = {}
    places: list[int] = []
    returned: list[Returned] = []
    for place, name in enumerate(program.outputs):
        d = definitions[name]
        found: Returned | None = None
        same = _same(d, definitions, program.outputs)
        if same in inputs and (inputs[same].shape, inputs[same].dtype) == (d.tensor.shape, d.dtype):
            found = Passed(same)
        elif is_empty(d.tensor.shape):
            found = Made(d.tensor, ())
        elif name in constant:
            found = _made(program, d)
        if found is None:
            own = name if same in inputs else same
            if own not in outputs:
                outputs[own] = len(outputs)
                places.append(place)
            found = Computed(outputs[own])
        returned.append(found)
    if not outputs or len(outputs) == len(program.outputs):
        return program, tuple(Computed(n) for n in range(len(program.outputs)))
    left = subprogram(program, program.name, tuple(outputs))
    left = replace(
        left,
        inputs=program.inputs,
        ranges=program.ranges,
        weights=program.weights,
        source=program.source,
        conformance=program.conformance,
        places=tuple(places),
    )
    return left, tuple(returned)


def constants(program: Program) -> frozenset[str]:
    """The definitions that depend on no input: numbers, positions and extents."""
    found: set[str] = set()
    for d in program.definitions:
        if all(e.tensor in found for e in walk(d.expr) if isinstance(e, Read)):
            found.add(d.name)
    return frozenset(found)


def _same(d: Definition, definitions: Mapping[str, Definition], outputs: tuple[str, ...]) -> str:
    """The input, or the output, that the definition is a copy of; itself where it is none."""
    name, of = d.name, d
    while True:
        plain = tuple(map(Index.axis, of.axes))
        match of.expr:
            case Read(tensor, index) if len(index) == len(plain) and all(map(_same_place, index, plain, of.axes)):
                pass
            case _:
                return name
        below = definitions.get(tensor)
        if below is None:
            return tensor
        if below.dtype != d.dtype or below.tensor.shape != d.tensor.shape:
            return name
        of = below
        if tensor in outputs:
            name = tensor


def _same_place(index: Index, plain: Index, axis: Axis) -> bool:
    return index == plain or (axis.extent == 1 and index == Index.const(0))


def _made(program: Program, d: Definition) -> Made | None:
    """The constant, where it is one number or has few elements."""
    expr = _inlined(program, d)
    if expr is None:
        return None
    whole = _number(expr)
    if whole is not None:
        return Made(d.tensor, (whole,))
    shape = d.tensor.shape
    if not all(is_static(e) for e in shape) or math.prod(int(e) for e in shape) > FEW:
        return None
    values: list[float | Extent] = []
    for place in itertools.product(*(range(int(e)) for e in shape)):
        at = {a: Index.const(p) for a, p in zip(d.axes, place, strict=True)}
        value = _number(substitute(expr, at))
        if value is None:
            return None
        values.append(value)
    return Made(d.tensor, tuple(values))


def _inlined(program: Program, d: Definition) -> Expr | None:
    """The definition's expression without reads; None where it has reductions or is large."""
    definitions = {x.name: x for x in program.definitions}
    expr = d.expr
    for _ in range(FEW):
        read = next((e for e in walk(expr) if isinstance(e, Read)), None)
        if read is None:
            return expr
        below = definitions[read.tensor]
        value = element_at(below, read.index)
        (expr,) = replaced([expr], partial(_instead, read, value))
    return None


def _instead(read: Read, value: Expr, e: Expr) -> Expr:
    return value if e == read else e


def _number(expr: Expr) -> float | Extent | None:
    """The value of an expression that mentions no axis; None where it does, or is nothing simple."""
    match expr:
        case Const(value):
            return value
        case Size(extent):
            return extent
        case Position(index) if not index.terms:
            return float(int(index.offset)) if is_static(index.offset) else index.offset
    if not isinstance(expr, Map):
        return None
    name, values = expr.op, [_number(a) for a in expr.args]
    if name == "where" and isinstance(values[0], float):
        return values[1] if values[0] else values[2]
    numbers = [v for v in values if isinstance(v, float)]
    if len(numbers) == len(values):
        made = op(name, *map(Const, numbers))
        return made.value if isinstance(made, Const) else None
    extents = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
    match name, extents:
        case "mul", [int() | sympy.Expr() as a, int() | sympy.Expr() as b]:
            return mul(a, b)
        case _:
            return None
