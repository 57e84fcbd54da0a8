"""Runs an sGraph in numpy, tile by tile, as its statements say: what denotations and backends are tested against.

Tiles at a ragged edge are simply shorter, so there are no masks here to get wrong.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prism.program.extents import evaluate
from prism.program.index import Axis, Index
from prism.program.nodes import ReduceKind
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
    Operand,
    Place,
    Pointwise,
    Position,
    Scan,
    SGraph,
    Split,
    Statistic,
    Stmt,
    Store,
    TileReduce,
    part_axis,
    value_axes,
)

Array = np.ndarray[Any, Any]
POINTWISE: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "neg": np.negative,
    "recip": lambda a: 1.0 / a,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "atan": np.arctan,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "sigmoid": lambda a: 1.0 / (1.0 + np.exp(-a)),
    "abs": np.abs,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "where": lambda p, a, b: np.where(p != 0, a, b),
    "le": lambda a, b: (a <= b) * 1.0,
    "lt": lambda a, b: (a < b) * 1.0,
    "eq": lambda a, b: (a == b) * 1.0,
    "and": lambda a, b: a * b,
    "or": lambda a, b: np.maximum(a, b),
    "not": lambda a: (a == 0) * 1.0,
    "floor": np.floor,
    "round": np.round,
    "isnan": lambda a: np.isnan(a) * 1.0,
    "sign": np.sign,
    "log2": np.log2,
    "pow": np.power,
    "bitand": lambda a, b: (np.asarray(a).astype(np.int64) & np.asarray(b).astype(np.int64)) * 1.0,
}
COMBINE: Mapping[ReduceKind, Callable[[Any, Any], Any]] = {
    ReduceKind.SUM: np.add,
    ReduceKind.MAX: np.maximum,
    ReduceKind.MIN: np.minimum,
    ReduceKind.PROD: np.multiply,
}
REDUCE: Mapping[ReduceKind, Callable[..., Any]] = {
    ReduceKind.SUM: np.sum,
    ReduceKind.MAX: np.max,
    ReduceKind.MIN: np.min,
    ReduceKind.PROD: np.prod,
}


@dataclass
class Tile:
    """An array with one dimension per axis, in the order of `axes`."""

    axes: tuple[Axis, ...]
    data: Array

    def over(self, axes: Sequence[Axis]) -> Array:
        """The data with its dimensions in the order of `axes`, of length 1 where it has none."""
        order = [self.axes.index(a) for a in axes if a in self.axes]
        moved = np.transpose(self.data, order)
        return moved.reshape([self.data.shape[self.axes.index(a)] if a in self.axes else 1 for a in axes])


@dataclass
class _Run:
    kernel: Kernel
    binding: Mapping[str, int]
    memory: dict[str, Array]
    at: dict[Axis, Array] = field(default_factory=dict)
    chunk: dict[Axis, range] = field(default_factory=dict)
    values: dict[str, Tile] = field(default_factory=dict)
    # By the axis' name: the tiles that loops visited, and those that they would have without their ranges.
    visits: dict[str, list[int]] = field(default_factory=dict)
    # Of statistics, the elements and the axes that they are over.
    elements: dict[str, tuple[Tile, frozenset[Axis]]] = field(default_factory=dict)
    # Of what is merged from parts, their squares, counts and means, the axes of these, and those that were merged over.
    parts: dict[str, tuple[Array, Array, Array, tuple[Axis, ...], tuple[Axis, ...]]] = field(default_factory=dict)
    # What scans have summed so far in their loop.
    scanned: dict[str, Array] = field(default_factory=dict)
    # By scan, what is added to an extreme on the way.
    growths: dict[str, str | float | None] = field(default_factory=dict)
    axes: dict[str, tuple[Axis, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.axes = value_axes(self.kernel)

    def size(self, axis: Axis) -> int:
        return evaluate(axis.extent, self.binding)

    def tile(self, tile: Any) -> int:
        return tile if isinstance(tile, int) else self.binding[tile.name]

    def run(self) -> None:
        choices: list[list[tuple[Axis, Any]]] = []
        for axis, role in self.kernel.roles:
            n = self.size(axis)
            match role:
                case Grid(t):
                    size = self.tile(t)
                    choices.append([(axis, np.arange(s, min(s + size, n))) for s in range(0, n, size)])
                case Split(parts, t):
                    size, count = self.tile(t), self.tile(parts)
                    tiles = -(-n // size)
                    share = -(-tiles // count) * size
                    choices.append([(axis, (p, range(p * share, min((p + 1) * share, n), size))) for p in range(count)])
                case LoopRole(t):
                    self.chunk[axis] = range(0, n, self.tile(t))
                case _:
                    self.at[axis] = np.arange(n)
        for picks in itertools.product(*choices):
            for axis, pick in picks:
                if isinstance(pick, tuple):
                    part, self.chunk[axis] = pick
                    role = self.kernel.role(axis)
                    assert isinstance(role, Split)
                    self.at[part_axis(axis, role.parts)] = np.array([part])
                else:
                    self.at[axis] = pick
            self.values = {}
            self.body(self.kernel.body)

    def index(self, index: Index, axes: Sequence[Axis]) -> Array:
        total = np.full([1] * len(axes), evaluate(index.offset, self.binding))
        for axis, coefficient in index.terms:
            assert isinstance(axis, Axis)
            shape = [-1 if a == axis else 1 for a in axes]
            total = total + evaluate(coefficient, self.binding) * self.at[axis].reshape(shape)
        return total

    def at_places(
        self, index: Sequence[Index], places: Sequence[Place], axes: Sequence[Axis]
    ) -> tuple[list[Array], Array]:
        """An index with places added to its dimensions, and where these are some."""
        at = [self.index(i, axes) for i in index]
        found = np.full([len(self.at[a]) for a in axes], True)
        for p in places:
            value = self.operand(p.value, axes)
            inside = (value >= 0) & (value < evaluate(p.extent, self.binding))
            at[p.dimension] = at[p.dimension] + np.where(inside, value, 0).astype(int)
            found &= inside
        return at, found

    def add(self, s: Store) -> None:
        """Adds each element of what is added where it goes; along a grid axis that it lacks, by the first program."""
        over = {a for i in s.index for a in i.axes()} | self.kernel.added_along(s)
        if any(isinstance(r, Grid) and a not in over and self.at[a][0] > 0 for a, r in self.kernel.roles):
            return
        axes = tuple(sorted(over, key=lambda a: a.name))
        at, found = self.at_places(s.index, s.places, axes)
        value = np.broadcast_to(self.operand(s.src, axes), found.shape)
        where = tuple(np.broadcast_to(i, found.shape)[found] for i in at)
        np.add.at(self.memory[s.tensor], where, value[found])

    def operand(self, o: Operand, axes: Sequence[Axis]) -> Any:
        return self.values[o].over(axes) if isinstance(o, str) else np.float64(o)

    def union(self, *operands: Operand) -> tuple[Axis, ...]:
        return tuple(dict.fromkeys(a for o in operands if isinstance(o, str) for a in self.values[o].axes))

    def body(self, body: Sequence[Stmt]) -> None:
        for s in body:
            match s:
                case Load(dst, tensor, index):
                    axes = tuple(sorted({a for i in index for a in i.axes()}, key=lambda a: a.name))
                    data = self.memory[tensor]
                    where = [np.clip(self.index(i, axes), 0, n - 1) for i, n in zip(index, data.shape, strict=True)]
                    shape = [len(self.at[a]) for a in axes]
                    self.values[dst] = Tile(axes, np.broadcast_to(data[tuple(where)], shape))
                case Gather(dst, tensor, index, places):
                    from_index = {a for i in index for a in i.axes()}
                    axes = tuple(
                        sorted(from_index.union(*(self.values[p.value].axes for p in places)), key=lambda a: a.name)
                    )
                    data = self.memory[tensor]
                    at, found = self.at_places(index, places, axes)
                    where = [np.clip(i, 0, n - 1) for i, n in zip(at, data.shape, strict=True)]
                    for p in places:
                        found &= where[p.dimension] == at[p.dimension]
                    self.values[dst] = Tile(axes, np.where(found, data[tuple(where)], 0.0))
                case Position(dst, index):
                    axes = tuple(sorted(index.axes(), key=lambda a: a.name))
                    self.values[dst] = Tile(axes, self.index(index, axes).astype(float))
                case Pointwise(dst, op, args):
                    axes = self.union(*args)
                    found = POINTWISE[op](*(self.operand(a, axes) for a in args))
                    self.values[dst] = Tile(axes, np.asarray(found, dtype=float))
                case TileReduce(dst, Statistic(), axis, src, moments) if moments:
                    axes = self.values[src].axes
                    squares, count, mean, rest = (self.operand(n, axes) for n in (src, *moments))
                    self.merge(dst, squares, count, mean + rest, axes, (), axis)
                case TileReduce(dst, Statistic.MERGED, axis, src) if src in self.parts:
                    self.merge(dst, *self.parts[src], axis)
                case TileReduce(dst, Statistic() as kind, axis, src):
                    tile, over = self.values[src], frozenset[Axis]()
                    if kind is Statistic.MERGED:
                        tile, over = self.elements[src]
                    self.statistic(dst, tile, over | {axis})
                case TileReduce(dst, ReduceKind() as kind, axis, src):
                    tile = self.values[src]
                    kept = tuple(a for a in tile.axes if a != axis)
                    self.values[dst] = Tile(kept, REDUCE[kind](tile.data, axis=tile.axes.index(axis)))
                case Contract(dst, axis, lhs, rhs):
                    axes = self.union(lhs, rhs)
                    product = self.operand(lhs, axes) * self.operand(rhs, axes)
                    kept = tuple(a for a in axes if a != axis)
                    self.values[dst] = Tile(kept, product.sum(axis=axes.index(axis)))
                case Loop():
                    self.loop(s)
                case Store(places=(_, *_)):
                    self.add(s)
                case Store(tensor, index, src, moment):
                    axes = tuple(sorted({a for i in index for a in i.axes()}, key=lambda a: a.name))
                    place = tuple(self.index(i, axes) for i in index)
                    value = self.operand(src, axes) if moment is None else self.moment(src, moment, axes)
                    self.memory[tensor][place] = value
                case Scan(dst, axis, src, growth, how):
                    scanned = self.values[src]
                    along = scanned.axes.index(axis)
                    shape = scanned.data.shape
                    grown = self.operand(0.0 if growth is None else growth, scanned.axes)
                    combine, extreme = COMBINE[how.kind], how.kind.is_extreme
                    self.growths[dst] = growth if extreme else None
                    factors = np.moveaxis(
                        np.broadcast_to(grown if how.factors or extreme else np.exp(grown), shape), along, 0
                    )
                    values = np.moveaxis(scanned.data, along, 0)
                    sums: list[Any] = []
                    last: Any = self.scanned.get(dst) if axis in self.chunk else None
                    steps = list(zip(values, factors, strict=True))[:: -1 if how.back else 1]
                    if how.rescaled:
                        shifts = np.moveaxis(np.broadcast_to(grown, shape), along, 0)[:: -1 if how.back else 1]
                        carried = self.scanned.get(f"{dst} shift") if axis in self.chunk else None
                        before = [np.full_like(shifts[0], -np.inf) if carried is None else carried, *shifts[:-1]]
                        self.scanned[f"{dst} shift"] = shifts[-1]
                        added = self.operand(self.growths[str(growth)] or 0.0, scanned.axes)
                        since = np.moveaxis(np.broadcast_to(added, shape), along, 0)[:: -1 if how.back else 1]
                        with np.errstate(invalid="ignore"):
                            moved = [
                                np.where(b > -np.inf, np.exp(b + g - s), 0)
                                for b, g, s in zip(before, since, shifts, strict=True)
                            ]
                        seen = [np.where(np.isinf(s), 0.0, v) for s, (v, _) in zip(shifts, steps, strict=True)]
                        steps = list(zip(seen, moved, strict=True))
                    for value, factor in steps:
                        kept = last if growth is None or last is None else factor + last if extreme else factor * last
                        new = value if last is None else combine(kept, value)
                        nothing = np.full_like(new, how.kind.identity)
                        sums.append(new if not how.before else nothing if last is None else last)
                        last = new
                    self.scanned[dst] = last
                    self.values[dst] = Tile(scanned.axes, np.stack(sums[:: -1 if how.back else 1], along))
                case Accumulate():
                    raise AssertionError("outside a loop")

    def statistic(self, dst: str, tile: Tile, over: frozenset[Axis]) -> None:
        """The sum of squared deviations of the tile's elements over the axes."""
        self.elements[dst] = tile, over
        along = tuple(n for n, a in enumerate(tile.axes) if a in over)
        found = ((tile.data - tile.data.mean(axis=along, keepdims=True)) ** 2).sum(axis=along)
        self.values[dst] = Tile(tuple(a for a in tile.axes if a not in over), found)

    def merge(
        self,
        dst: str,
        squares: Array,
        count: Array,
        mean: Array,
        axes: tuple[Axis, ...],
        over: tuple[Axis, ...],
        axis: Axis,
    ) -> None:
        """The sum of squared deviations of all parts, along one more axis."""
        over = (*over, axis)
        self.parts[dst] = squares, count, mean, axes, over
        along = tuple(axes.index(a) for a in over)
        weight = np.broadcast_to(count, squares.shape)
        about = (weight * mean).sum(along, keepdims=True) / weight.sum(along, keepdims=True)
        found = (squares + weight * (mean - about) ** 2).sum(along)
        self.values[dst] = Tile(tuple(a for a in axes if a not in over), found)

    def moment(self, src: Operand, moment: Moment, axes: Sequence[Axis]) -> Any:
        """A moment of a statistic; 0 where nothing was seen."""
        assert isinstance(src, str)
        if moment is Moment.SQUARES:
            return self.operand(src, axes)
        if moment is Moment.REST or src not in self.elements:
            return np.float64(0)
        tile, over = self.elements[src]
        along = tuple(n for n, a in enumerate(tile.axes) if a in over)
        if moment is Moment.COUNT:
            return np.float64(math.prod(tile.data.shape[n] for n in along))
        return Tile(tuple(a for a in tile.axes if a not in over), tile.data.mean(along)).over(axes)

    def in_range(self, condition: Index) -> bool:
        """Whether the condition holds somewhere in the box of the present tiles, which end where whole tiles do."""
        most = evaluate(condition.offset, self.binding)
        for axis, coefficient in condition.terms:
            assert isinstance(axis, Axis)
            role = self.kernel.role(axis)
            assert isinstance(role, Grid | LoopRole | Split)
            c = evaluate(coefficient, self.binding)
            first = int(self.at[axis][0])
            most += c * (first + self.tile(role.tile) - 1 if c > 0 else first)
        return most >= 0

    def loop(self, loop: Loop) -> None:
        axis, inner = loop.axis, loop.body
        names = {s.dst: s for s in inner if isinstance(s, Accumulate)}
        # Of a statistic, whatever its accumulator has seen.
        seen: dict[str, list[Array]] = {}
        shifts = {s.shift for s in names.values() if s.kind is ReduceKind.SUM}
        for name in names:
            self.elements.pop(name, None)
        running: dict[str, Tile] = {}
        for scan in inner:
            if isinstance(scan, Scan):
                self.scanned.pop(scan.dst, None)
                self.scanned.pop(f"{scan.dst} shift", None)
        for name, a in names.items():
            axes = tuple(x for x in self.axes[name] if x in self.at)
            running[name] = Tile(
                axes,
                np.full([len(self.at[x]) for x in axes], a.kind.identity if isinstance(a.kind, ReduceKind) else 0.0),
            )
        counts = self.visits.setdefault(axis.name, [0, 0])
        for start in reversed(self.chunk[axis]) if loop.back else self.chunk[axis]:
            size = self.chunk[axis].step
            self.at[axis] = np.arange(start, min(start + size, self.chunk[axis].stop))
            counts[1] += 1
            if not all(any(map(self.in_range, side)) for side in loop.sides):
                continue
            counts[0] += 1
            old = dict(running)
            todo: list[Stmt] = []
            for s in (*inner, None):
                if s is not None and not isinstance(s, Accumulate):
                    todo.append(s)
                    continue
                self.body(todo)
                todo = []
                if s is not None and isinstance(s.kind, Statistic):
                    tile, over = self.elements[s.src]
                    seen.setdefault(s.dst, []).append(tile.data)
                    every = np.concatenate(seen[s.dst], axis=tile.axes.index(axis))
                    self.statistic(s.dst, Tile(tile.axes, every), over)
                    running[s.dst] = self.values[s.dst]
                    continue
                if s is not None:
                    assert isinstance(s.kind, ReduceKind)
                    axes = self.values[s.src].axes
                    before = running[s.dst].over(axes)
                    if s.shift is not None and s.kind is ReduceKind.MIN:
                        was = old[s.shift].over(axes)
                        stays = (was == running[s.shift].over(axes)) | np.isnan(was)
                        before = np.where(stays, before, s.kind.identity)
                    elif s.shift is not None:
                        moved = old[s.shift].over(axes) - running[s.shift].over(axes)
                        before = before * np.exp(np.where(np.isnan(moved), 0.0, moved))
                    combined = COMBINE[s.kind](before, self.values[s.src].data)
                    running[s.dst] = self.values[s.dst] = Tile(axes, combined)
                    if s.dst in shifts and s.kind is ReduceKind.MAX:
                        # While a row has seen nothing, 0 is subtracted in place of its maximum.
                        self.values[s.dst] = Tile(axes, np.where(np.isneginf(combined), 0.0, combined))
        self.values.update(running)


def simulate(
    sgraph: SGraph,
    tensors: Mapping[str, Array],
    binding: Mapping[str, int],
    visits: dict[str, list[int]] | None = None,
) -> dict[str, Array]:
    """The outputs; `binding` gives every symbol of the sGraph and of the extents.

    `visits` takes, by the name of a loop's axis, how many tiles were visited, and how many there were.
    """
    memory = {n: np.asarray(a, dtype=float) for n, a in tensors.items()}
    for t in (*sgraph.buffers, *sgraph.outputs):
        memory[t.name] = np.full([evaluate(e, binding) for e in t.shape], np.nan)
    with np.errstate(all="ignore"):
        # Kernels of one launch run in another order than they were written in: none may wait for another.
        for launch in sgraph.launches:
            for kernel in reversed(launch.kernels):
                _Run(kernel, binding, memory, visits={} if visits is None else visits).run()
    return {t.name: memory[t.name] for t in sgraph.outputs}
