"""Tensors without elements, taken out of a program: legal in every framework, and nothing below has a word for them.

A reduction over no elements is its identity, and a choice never takes the branch that would read a tensor without
elements: a concatenation with an empty part is its other parts. What is left of an empty tensor is its declaration,
where it is an input or an output; nothing reads it, and as a definition it is a constant.
"""

from __future__ import annotations

import math
from dataclasses import replace

from prism.errors import FaultyModelError, ShapeError
from prism.program import fold
from prism.program.extents import Extent
from prism.program.integers import range_of
from prism.program.nodes import Const, Definition, DType, Expr, Map, Program, Read, Reduce, ReduceKind, walk

NOTHING = Const(0.0)
"""What an output without elements is defined as."""


def is_empty(shape: tuple[Extent, ...]) -> bool:
    """Whether a tensor of the shape has no elements."""
    return any(e == 0 for e in shape)


def without_empty(program: Program) -> Program:
    """The same function, in which nothing is read from tensors without elements, nor reduced over none.

    Raises:
        ShapeError: an element of a tensor without elements is needed.
        FaultyModelError: a value is NaN because it is computed of no elements, as their mean is.
    """
    shapes = {t.name: t.shape for t in (*program.inputs, *(d.tensor for d in program.definitions))}
    empty = frozenset(name for name, shape in shapes.items() if is_empty(shape))
    if not empty and not any(
        e.axis.extent == 0 for d in program.definitions for e in walk(d.expr) if isinstance(e, Reduce)
    ):
        return program
    kept: list[Definition] = []
    for d in program.definitions:
        if d.name not in empty:
            expr = _rewritten(d, empty)
            kept.append(replace(d, expr=expr, view=d.view and isinstance(expr, Read)))
        elif d.name in program.outputs:
            kept.append(replace(d, expr=NOTHING, view=False))
    return replace(program, definitions=tuple(kept))


def _rewritten(d: Definition, empty: frozenset[str]) -> Expr:
    """The definition's expression; None stands for what no element has a value for."""
    done: dict[int, Expr | None] = {}
    for e in walk(d.expr):
        match e:
            case Read(tensor, _):
                done[id(e)] = None if tensor in empty else e
            case Reduce(kind, axis, body):
                inner = done[id(body)]
                if axis.extent == 0:
                    done[id(e)] = _identity(kind, d.dtype)
                elif inner is None:
                    done[id(e)] = None
                else:
                    done[id(e)] = e if inner is body else Reduce(kind, axis, inner)
            case Map(op, args):
                done[id(e)] = _map(d, e, op, [done[id(a)] for a in args])
            case _:
                done[id(e)] = e
    found = done[id(d.expr)]
    if found is None:
        raise ShapeError(
            "an element of a tensor without elements is needed",
            where=d.origin or d.name,
            fix="check the shapes of the model, or leave this part out of it",
        )
    return found


def _identity(kind: ReduceKind, dtype: DType) -> Const:
    """What a reduction over no elements is, in the type: the largest of none is the least that the type can hold."""
    bounds = range_of(dtype)
    return Const(min(max(kind.identity, bounds.low), bounds.high))


def _map(d: Definition, e: Map, op: str, args: list[Expr | None]) -> Expr | None:
    if op == "where" and args[0] is not None:
        choice, taken, other = args
        assert choice is not None
        if taken is None or other is None:
            return other if taken is None else taken
        return e if (choice, taken, other) == e.args else fold.op(op, choice, taken, other)
    known = [a for a in args if a is not None]
    if len(known) < len(args):
        return None
    unchanged = all(a is b for a, b in zip(known, e.args, strict=True))
    if unchanged and not all(isinstance(a, Const) for a in known):
        return e
    made = fold.op(op, *known)
    if isinstance(made, Map) and all(isinstance(a, Const) for a in made.args):
        raise FaultyModelError(
            "a value is NaN",
            where=d.origin or d.name,
            why="it is computed of no elements, as a mean of none is",
            fix="leave this part out of the model",
        )
    # 1/b of a number b is left where a program has it: a rounding of x/b follows, which x times a rounded 1/b is not.
    # What 1/0 is a factor of is looked at, as it may be no number.
    return e if unchanged and isinstance(made, Const) and math.isfinite(made.value) else made
