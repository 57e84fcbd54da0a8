"""The roles that the axes of a kernel can take: the part of the space that turns values into families of kernels."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import sympy

from prism.cost.constraints import RoleBounds
from prism.generate.values import KernelValue, Scanned, reachable
from prism.program.extents import is_static
from prism.program.index import Axis
from prism.program.nodes import ReduceKind
from prism.program.products import matrix_product
from prism.sgraph.nodes import Grid, LoopRole, Role, Split, Whole


class Kind(StrEnum):
    """A role without its symbols."""

    ONE = "grid(1)"
    GRID = "grid"
    LOOP = "loop"
    WHOLE = "whole"
    SPLIT = "split"


Assignment = Mapping[Axis, Kind]


def product_axes(outputs: Sequence[KernelValue]) -> tuple[frozenset[Axis], frozenset[Axis]]:
    """The axes of matrix products: those that both operands share, and those that only one has.

    A shared axis, the contracted one excepted, is no dimension of the product's tiles: it takes one element a program.
    """
    shared: set[Axis] = set()
    own: set[Axis] = set()
    for v in reachable(tuple(outputs)):
        operands: tuple[KernelValue, ...] = ()
        if v.op == "contract":
            operands = v.args
        elif v.op == "rescaled" and len(v.args) == 3:
            operands = v.args[:2]
        product = matrix_product(operands[0].axes, operands[1].axes, {v.axis}) if operands else None
        if product is not None:
            shared |= product.batch
            own |= product.rows | product.columns
    return frozenset(shared), frozenset(own)


def batch_axes(outputs: Sequence[KernelValue]) -> frozenset[Axis]:
    """The axes that both operands of some matrix product share beside the contracted one."""
    return product_axes(outputs)[0]


def scanned_axes(outputs: Sequence[KernelValue]) -> frozenset[Axis]:
    """The axes along which something is summed up from place to place: never on the grid."""
    return frozenset(s.axis for v in reachable(tuple(outputs)) if isinstance(s := v.payload, Scanned))


def single_axes(outputs: Sequence[KernelValue], scans: bool = True) -> frozenset[Axis]:
    """The axes whose loops take one element at a time.

    Those are the batch of some matrix product; what a scan that grows is along where it leaves out each place's own, or
    where there are no prefix sums within a tile (`scans`); and that of an extreme before each place.
    """
    found = batch_axes(outputs)
    for v in reachable(tuple(outputs)):
        match v.payload:
            case Scanned(axis, how):
                grows = len(v.args) == 2
                sums = how.kind is ReduceKind.SUM and not grows
                if not (sums or scans) or not how.fits_tiles(grows, how.rescaled and len(v.args[1].args) == 2):
                    found |= {axis}
    return found


def reduced_axes(outputs: Sequence[KernelValue]) -> tuple[Axis, ...]:
    """The axes that are reduced somewhere below, in a fixed order."""
    return tuple(dict.fromkeys(v.axis for v in reachable(tuple(outputs)) if v.is_reduction))


def assignments(
    free: Sequence[Axis],
    outputs: Sequence[KernelValue],
    clashing: frozenset[Axis],
    bounds: RoleBounds,
    looping: bool = False,
    off: frozenset[str] = frozenset(),
    pruned: Counter[str] | None = None,
    both: frozenset[Axis] = frozenset(),
    added: frozenset[Axis] = frozenset(),
) -> Iterator[dict[Axis, Kind]]:
    """Every assignment of kinds to the axes of a kernel, in a fixed order.

    Args:
        free: the axes of the outputs, in the order of the first output's dimensions.
        outputs: what the kernel computes.
        clashing: output axes that are also reduced under the same name: not on the grid.
        bounds: see RoleBounds.
        looping: whether those with a loop over an output axis are wanted, or those without; a scan's loop is none.
        off: names of pruners that are switched off: one-tile, one-grid, idle-loop are asked here.
        pruned: where removals are counted.
        both: those of `clashing` that some outputs range over and the others reduce: they may be split.
        added: those along which elements are added at one place; no other program adds where one has all of them.
    """
    counts = pruned if pruned is not None and not looping else Counter()
    batch, own = product_axes(outputs)
    scanned, single = scanned_axes(outputs), single_axes(outputs, bounds.scans)
    choices: list[tuple[Axis, list[Kind]]] = []

    def scanning(axis: Axis) -> list[Kind]:
        if axis in single:
            return [Kind.LOOP]
        loop = [Kind.LOOP] * (not _fits(axis, bounds.short))
        return (loop + [Kind.WHOLE] * _fits(axis, bounds.whole)) * bounds.scans

    outermost = _outermost(outputs, bounds)
    for axis in free:
        long = axis in outermost or not _fits(axis, bounds.short)
        if axis in scanned:
            kinds = scanning(axis)
        elif axis in clashing:
            kinds = [Kind.WHOLE] * _fits(axis, bounds.whole) + [Kind.LOOP] * long
            kinds += [Kind.SPLIT] * (axis in both and long and bounds.splits)
        elif axis in batch:
            kinds = [Kind.ONE]
        else:
            kinds = [Kind.GRID]
            if is_static(axis.extent) and int(axis.extent) <= bounds.narrow:
                if axis in own or "one-grid" in off:
                    kinds.append(Kind.ONE)
                else:
                    counts["one-grid"] += 1
            if axis in added:
                kinds.append(Kind.LOOP if long else Kind.WHOLE)
                choices.append((axis, kinds))
                continue
            kinds += [Kind.LOOP] * (long and looping)
            if _fits(axis, bounds.whole):
                if "one-tile" in off:
                    kinds.append(Kind.WHOLE)
                else:
                    counts["one-tile"] += 1
        choices.append((axis, kinds))
    for axis in reduced_axes(outputs):
        if axis in clashing:
            continue
        if axis in scanned:
            kinds = scanning(axis)
        elif axis in batch:
            kinds = [Kind.LOOP] + [Kind.SPLIT] * bounds.splits
        elif _fits(axis, bounds.short) and axis not in outermost:
            kinds = [Kind.WHOLE]
        else:
            kinds = [Kind.LOOP] + [Kind.WHOLE] * _fits(axis, bounds.whole) + [Kind.SPLIT] * bounds.splits
        choices.append((axis, kinds))
    varying = _varying(outputs)
    for picks in itertools.product(*(kinds for _, kinds in choices)):
        made = {axis: kind for (axis, _), kind in zip(choices, picks, strict=True)}
        if sum(kind is Kind.SPLIT for kind in picks) > 1:
            continue
        if looping and not any(made[a] is Kind.LOOP and a not in clashing | scanned for a in free):
            continue
        if "idle-loop" not in off and _idle(made, free, clashing | scanned | added, varying):
            if pruned is not None:
                pruned["idle-loop"] += 1
            continue
        yield made


def _outermost(outputs: Sequence[KernelValue], bounds: RoleBounds) -> frozenset[Axis]:
    """The short axes whose reductions hold those over others that are short, and together are long."""
    short = frozenset(a for a in reduced_axes(outputs) if _fits(a, bounds.short))
    if len(short) < 2:
        return frozenset()
    below: dict[int, frozenset[Axis]] = {}
    within: dict[Axis, frozenset[Axis]] = dict.fromkeys(short, frozenset())
    every = reachable(tuple(outputs))
    for v in every:
        below[v.number] = frozenset[Axis]().union(*(below[a.number] for a in v.args))
        if v.is_reduction and v.axis in short:
            within[v.axis] |= below[v.number]
            below[v.number] |= {v.axis}
    found: set[Axis] = set()
    for mine in dict.fromkeys(v.axes & short for v in every):
        if math.prod(int(a.extent) for a in mine) > bounds.joint:
            found |= {a for a in mine if mine - {a} <= within[a] and not any(a in within[b] for b in mine)}
    return frozenset(found)


def _varying(outputs: Sequence[KernelValue]) -> tuple[frozenset[Axis], ...]:
    """The axes of every value that costs something, each set once."""
    return tuple(dict.fromkeys(v.axes for v in reachable(tuple(outputs)) if v.op not in ("const", "position")))


def _idle(
    made: Mapping[Axis, Kind], free: Sequence[Axis], clashing: frozenset[Axis], varying: Sequence[frozenset[Axis]]
) -> bool:
    """Whether some loop over an output axis has nothing to compute once before it."""
    loops = {a for a, kind in made.items() if kind in (Kind.LOOP, Kind.SPLIT)}
    return any(
        made[a] is Kind.LOOP and a not in clashing and not any(a not in axes and not axes & loops for axes in varying)
        for a in free
    )


def _fits(axis: Axis, length: int) -> bool:
    return is_static(axis.extent) and int(axis.extent) <= length


def roles(assignment: Assignment, order: Sequence[Axis], single: frozenset[Axis], suffix: str) -> dict[Axis, Role]:
    """The roles with their symbols, unbound: grid axes first, one element a program before tiles.

    The assignment is of every axis; loops over those that are `single` take one element an iteration, and the suffix is
    appended to the symbols' names.
    """

    def symbol(prefix: str, axis: Axis) -> sympy.Symbol:
        return sympy.Symbol(f"{prefix}_{axis.name}{suffix}", integer=True, positive=True)

    made: dict[Axis, Role] = {}
    rank = {Kind.ONE: 0, Kind.GRID: 1, Kind.SPLIT: 2, Kind.LOOP: 3, Kind.WHOLE: 4}
    for axis in sorted(order, key=lambda a: rank[assignment[a]]):
        match assignment[axis]:
            case Kind.ONE:
                made[axis] = Grid(1)
            case Kind.GRID:
                made[axis] = Grid(symbol("T", axis))
            case Kind.LOOP:
                made[axis] = LoopRole(1 if axis in single else symbol("T", axis))
            case Kind.SPLIT:
                made[axis] = Split(symbol("S", axis), 1 if axis in single else symbol("T", axis))
            case Kind.WHOLE:
                made[axis] = Whole()
    return made
