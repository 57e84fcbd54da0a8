"""Loops of programs: definitions of what their steps make, and what they are step by step.

A loop (`prism.program.nodes.Loop`) is a body, a program of one step, and what it carries from one step to the next.
Nothing that a step computes is seen from outside but what all steps make, which a definition names, the step as its
first dimension. `written_out` is the same without loops: its meaning, and what is compared and proved where two
programs need not have the same loops.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from prism.errors import UnsupportedError
from prism.program.build import balanced_select, position
from prism.program.extents import is_static
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.nodes import Definition, DType, Expr, Loop, Program, Read, Steps
from prism.program.transform import rebuilt
from prism.program.views import axes_of

WRITTEN = 1 << 13
"""Definitions of steps that are written out at most."""


def steps_of(loop: Loop, output: str, name: str, origin: str = "") -> Definition:
    """A definition of what all steps make."""
    made = loop.body.tensor(output)
    axes = axes_of((loop.trips, *made.shape))
    return Definition(name, axes, Steps(loop, output, tuple(map(Index.axis, axes))), made.dtype, origin)


def defined_as(definitions: Iterable[Definition], axes: tuple[Axis, ...], expr: Expr, dtype: DType) -> str | None:
    """The name of the definition that is this already: states that begin with one constant begin with one tensor."""
    return next((d.name for d in definitions if (d.axes, d.expr, d.dtype) == (axes, expr, dtype)), None)


def stacks(program: Program) -> dict[tuple[str, str], str]:
    """By a loop's name and an output of its body, the definition that has it of all steps."""
    return {(d.expr.loop.name, d.expr.output): d.name for d in program.definitions if isinstance(d.expr, Steps)}


def written_out(program: Program) -> Program:
    """The program with every step of every loop written out, one after the other.

    Raises:
        UnsupportedError: the number of steps is symbolic, or there are too many.
    """
    if not program.loops:
        return program
    made: list[Definition] = []
    done: set[str] = set()
    taken = {t.name for t in program.inputs} | set(program.order)
    for d in program.definitions:
        if not isinstance(d.expr, Steps):
            made.append(d)
            continue
        loop = d.expr.loop
        trips = _number(loop, program.name)
        if loop.name not in done:
            done.add(loop.name)
            for n in range(trips):
                made += _step(loop, n, trips, taken)
        made.append(_stacked(d, loop, d.expr.output, trips, taken))
    return replace(program, definitions=tuple(made))


def _number(loop: Loop, where: str) -> int:
    if not is_static(loop.trips) or int(loop.trips) * len(loop.body.definitions) > WRITTEN:
        raise UnsupportedError(
            f"{loop.trips} steps of loop {loop.name} cannot be written out",
            where=where,
            why=f"each is {len(loop.body.definitions)} definitions, and {WRITTEN} are looked at in all",
            fix="give the sequence a short, fixed length",
        )
    return int(loop.trips)


def _step(loop: Loop, n: int, trips: int, taken: set[str]) -> list[Definition]:
    """The definitions of one step; n counts from the first step on."""
    place = trips - 1 - n if loop.reverse else n
    slices = dict(loop.slices)
    states = {s.before: s for s in loop.states}

    def read(e: Expr) -> Expr:
        if not isinstance(e, Read):
            return e
        if e.tensor in slices:
            return Read(slices[e.tensor], (Index.const(place), *e.index))
        if e.tensor in states:
            s = states[e.tensor]
            if n:
                return Read(_called(s.after, n - 1, taken), e.index)
            return Read(s.first, e.index if s.place is None else (Index.const(s.place), *e.index))
        return Read(_called(e.tensor, n, taken), e.index) if e.tensor in loop.body.order else e

    exprs = rebuilt([d.expr for d in loop.body.definitions], read)
    return [
        replace(d, name=_called(d.name, n, taken), expr=e) for d, e in zip(loop.body.definitions, exprs, strict=True)
    ]


def _called(name: str, n: int, taken: set[str]) -> str:
    """What the n-th step's definition is called: no tensor around the loops is."""
    made = f"{name}_step{n}"
    while made in taken:
        made += "_"
    return made


def _stacked(d: Definition, loop: Loop, output: str, trips: int, taken: set[str]) -> Definition:
    """What all steps made, piece by piece."""
    first, *rest = d.axes
    index = tuple(map(Index.axis, rest))

    def piece(place: int) -> Expr:
        return Read(_called(output, trips - 1 - place if loop.reverse else place, taken), index)

    def choose(place: int, before: Expr, after: Expr) -> Expr:
        return op("where", op("lt", position(Index.axis(first)), position(Index.const(place))), before, after)

    expr = balanced_select(trips, piece, choose)
    return replace(d, expr=expr, view=isinstance(expr, Read))
