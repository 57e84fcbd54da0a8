"""Runs tile programs in numpy, statement by statement: what transformations of them are tested against.

Everything is in float32, in the order that the statements say, so that equal programs compute equal bits. What a GPU
would not see is refused: an access outside of a tensor, an element that is stored twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy
from sgraph_simulator import COMBINE, POINTWISE, REDUCE

from prism.backends import tile
from prism.backends.tile import Affine, Dims, Operand, Stmt, TileModule, TileProgram, identifier
from prism.backends.tile_rewrite import value_dims
from prism.program.arrays import NUMPY
from prism.program.extents import Extent
from prism.program.nodes import DType

Array = np.ndarray[Any, Any]
OPERATIONS: Mapping[str, Callable[..., Any]] = {
    **POINTWISE,
    "div": np.divide,
    "exp2": np.exp2,
    "down": lambda a, b: a // b * b,
    "or": np.logical_or,
    "and": np.logical_and,
    "not": np.logical_not,
    "isnan": np.isnan,
}


def place(program: TileProgram, counts: Sequence[int], number: int) -> dict[str, int]:
    """The grid indices of a program.

    Args:
        program: the tile program.
        counts: how many there are along each axis of the grid.
        number: which of them, from 0.
    """
    found: dict[str, int] = {}
    groups, sections = program.groups, program.sections
    if sections is not None:
        length = next(c for g, c in zip(program.grid, counts, strict=True) if g.index == sections.index)
        rows = -(-sections.programs // length)
        section, inside = divmod(number, rows * length)
        rows = min(rows, math.prod(counts) // length - section * rows)
        found[sections.index], row = divmod(inside, rows)
        number = section * -(-sections.programs // length) + row
    for n, g in reversed(list(enumerate(program.grid))):
        if sections is not None and g.index == sections.index:
            continue
        if groups is None or g.index not in (groups.slow, groups.fast):
            number, found[g.index] = divmod(number, counts[n])
        elif g.index == groups.fast:
            number, inside = divmod(number, counts[n - 1] * counts[n])
            group, rest = divmod(inside, groups.size * counts[n])
            first = group * groups.size
            rows = min(groups.size, counts[n - 1] - first)
            found[groups.fast], row = divmod(rest, rows)
            found[groups.slow] = first + row
    for g, count in zip(program.grid, counts, strict=True):
        if g.reversed:
            found[g.index] = count - 1 - found[g.index]
    return found


def number(e: Extent, env: Mapping[str, int]) -> int:
    """The value of an integer expression; quotients are rounded towards zero, as on a GPU."""
    if isinstance(e, int | sympy.Integer):
        return int(e)
    if isinstance(e, sympy.Symbol):
        return env[identifier(e.name)]
    if isinstance(e, sympy.Add):
        return sum(number(a, env) for a in e.args)
    if isinstance(e, sympy.Min | sympy.Max):
        return (min if isinstance(e, sympy.Min) else max)(number(a, env) for a in e.args)
    if isinstance(e, sympy.floor | sympy.ceiling):
        top, bottom = (number(x, env) for x in sympy.fraction(sympy.together(e.args[0])))
        return int((top if isinstance(e, sympy.floor) else top + bottom - 1) / bottom)
    top, bottom = sympy.fraction(e)
    if bottom != 1:
        assert number(top, env) % number(bottom, env) == 0
        return number(top, env) // number(bottom, env)
    if isinstance(e, sympy.Pow):
        return int(number(e.base, env) ** int(e.exp))
    return math.prod(number(a, env) for a in e.args)


@dataclass
class Machine:
    """One program of a kernel.

    Attributes:
        program: the tile program.
        memory: flat tensors by name.
        env: integers by name.
        stored: elements of each tensor that were stored.
        done: how often each kind of statement was executed, selections inside of `Within` as "guarded".
    """

    program: TileProgram
    memory: dict[str, Array]
    env: dict[str, int]
    stored: dict[str, Array]
    done: Counter[str]
    values: dict[str, Any] = field(default_factory=dict)
    dims: Mapping[str, Dims] = field(default_factory=dict)

    def size(self, dim: str) -> list[int]:
        return [z if isinstance(z, int) else self.env[z] for z in self.program.dim(dim).sizes]

    def shape(self, dims: Dims) -> tuple[int, ...]:
        return tuple(math.prod(self.size(d)) for d in dims)

    def get(self, operand: Operand, dims: Dims) -> Any:
        if not isinstance(operand, str):
            return operand
        if operand not in self.values:
            return self.env[operand]
        mine = self.dims.get(operand, ())
        array = self.values[operand]
        if mine == dims or not mine:
            return array
        return array[tuple(slice(None) if d in mine else None for d in dims)]

    def affine(self, index: Affine, dims: Dims) -> Any:
        total: Any = number(index.offset, self.env)
        for name, c in index.terms:
            total = total + self.get(name, dims) * number(c, self.env)
        return total

    def mask(self, masks: Sequence[str], dims: Dims) -> Array:
        keep = np.ones(self.shape(dims), bool)
        for m in masks:
            keep = keep & self.get(m, dims)
        return keep

    def run(self, body: Sequence[Stmt]) -> None:
        for s in body:
            self.done[type(s).__name__] += 1
            self.statement(s)

    def statement(self, s: Stmt) -> None:
        match s:
            case tile.Scalar(dst, value):
                self.env[dst] = number(value, self.env)
            case tile.Offsets(dst, dim, axis, start):
                sizes = self.size(dim)
                lanes = np.arange(math.prod(sizes)) // math.prod(sizes[axis + 1 :]) % sizes[axis]
                self.values[dst] = number(start, self.env) + lanes
            case tile.InBounds(dst, index, high, low, dims):
                at = np.broadcast_to(self.affine(index, dims), self.shape(dims))
                keep = np.ones(self.shape(dims), bool)
                if high is not None:
                    keep &= at < number(high, self.env)
                if low is not None:
                    keep &= at >= number(low, self.env)
                self.values[dst] = keep
            case tile.IndexValue(dst, index, dims):
                self.values[dst] = np.broadcast_to(self.affine(index, dims), self.shape(dims))
            case tile.Load(dst, tensor, offset, masks, dims, dtype):
                keep = self.mask(masks, dims)
                at = np.broadcast_to(self.affine(offset, dims), keep.shape)
                assert not (keep & ((at < 0) | (at >= self.memory[tensor].size))).any(), f"{tensor} is left by a load"
                found = np.where(keep, self.memory[tensor][np.where(keep, at, 0)], 0)
                self.values[dst] = found.astype(np.float32) if dtype.is_float else found
            case tile.Full(dst, value, dims, dtype):
                self.values[dst] = np.full(self.shape(dims), value, np.float32 if dtype.is_float else np.int64)
            case tile.Cast(dst, src, dtype):
                given = np.asarray(self.get(src, self.dims.get(src, ())))
                self.values[dst] = given != 0 if dtype is DType.BOOL else given.astype(
                    np.float32 if dtype.is_float else np.int64
                )  # fmt: skip
            case tile.Copy(dst, src):
                self.values[dst] = np.array(self.values[src])
            case tile.Rearrange(dst, src, groups):
                names = self.dims[src]
                assert sorted(names) == sorted(n for g in groups for n in g), "only permutations are simulated"
                assert all(len(g) == 1 for g in groups), "only permutations are simulated"
                self.values[dst] = np.array(self.values[src].transpose([names.index(n) for (n,) in groups]))
            case tile.Pointwise(dst, op, args, dims, dtype):
                made = OPERATIONS[op](*(self.get(a, dims) for a in args))
                kind = np.float32 if dtype.is_float else bool if dtype is DType.BOOL else np.int64
                self.values[dst] = np.broadcast_to(np.asarray(made).astype(kind), self.shape(dims))
            case tile.Select(dst, mask, src, otherwise):
                dims = self.dims[src]
                self.values[dst] = np.where(self.get(mask, dims), self.values[src], np.float32(otherwise))
            case tile.Within(dst, index, low, high, src, body, value):
                here = self.env[index]
                inside = low is None or here >= number(low, self.env)
                inside = inside and (high is None or here < number(high, self.env))
                if inside:
                    self.values[dst] = self.values[src]
                else:
                    self.done["guarded"] += 1
                    self.run(body)
                    self.values[dst] = self.values[value]
            case tile.Reduce(dst, kind, src, dim):
                self.values[dst] = REDUCE[kind](self.values[src], axis=self.dims[src].index(dim))
            case tile.Prefix(dst, src, dim, how, factor):
                dims, found = self.dims[src], self.values[src]
                by = None if factor is None else np.broadcast_to(self.get(factor, dims), found.shape)
                self.values[dst] = NUMPY.carried(how, dims.index(dim), found, by)
            case tile.Dot(dst, lhs, rhs, _, add):
                product = self.values[lhs] @ self.values[rhs]
                self.values[dst] = product if add is None else self.values[add] + product
            case tile.For(index, start, stop, step, body):
                for self.env[index] in range(*(number(e, self.env) for e in (start, stop, step))):
                    self.done["iterations"] += 1
                    self.run(body)
            case tile.Update(acc, kind, src):
                given = self.get(src, self.dims[acc])
                self.values[acc] = np.array(given) if kind is None else COMBINE[kind](self.values[acc], given)
            case tile.Store(tensor, offset, masks, dims, src):
                keep = self.mask(masks, dims)
                at = np.broadcast_to(self.affine(offset, dims), keep.shape)[keep]
                value = np.broadcast_to(self.get(src, dims), keep.shape)[keep]
                assert not ((at < 0) | (at >= self.memory[tensor].size)).any(), f"{tensor} is left by a store"
                if s.adds is not None:
                    np.add.at(self.memory[tensor], at, value)
                else:
                    assert not self.stored[tensor][at].any(), f"{tensor} is stored twice"
                    self.stored[tensor][at] = True
                    self.memory[tensor][at] = value


def run_module(
    module: TileModule,
    inputs: Sequence[Array],
    binding: Mapping[str, int],
    folded: Collection[str] = (),
    order: Callable[[int], Iterable[int]] = range,
) -> tuple[dict[str, Array], Counter[str]]:
    """The outputs by name, as flat arrays, and how often each kind of statement was executed.

    Args:
        module: what is run.
        inputs: of the module.
        binding: values of symbols and lengths.
        folded: launches that the programs of their splits do.
        order: in which the programs of a launch run, of so many.
    """
    env = {identifier(n): v for n, v in binding.items()}
    memory = {t.name: np.array(a).ravel() for t, a in zip(module.inputs, inputs, strict=True)}
    for t in (*module.buffers, *module.outputs):
        memory[t.name] = np.full(math.prod(number(e, env) for e in t.shape), np.nan, np.float32)
    done: Counter[str] = Counter()

    def parameters(p: TileProgram) -> dict[str, int]:
        given = dict(env)
        for c in p.constants:
            value = env[identifier(c.symbol)] if c.symbol else 1 << (number(c.extent or 1, env) - 1).bit_length()
            given[c.name] = max(value, c.least)
        return given

    def run(p: TileProgram, given: Mapping[str, int], n: int, stored: dict[str, Array]) -> None:
        counts = [number(g.count, given) for g in p.grid]
        machine = Machine(p, memory, {**given, **place(p, counts, n)}, stored, done, {}, value_dims(p))
        with np.errstate(all="ignore"):
            machine.run(p.body)

    launches = {launch.name: launch for launch in module.launches}
    folds = {f.split: f for f in module.folds if f.combine in folded}
    for launch in module.launches:
        if launch.name in folded:
            continue
        fold = folds.get(launch.name)
        for p in launch.programs:
            given = parameters(p)
            tensors = (*p.tensors, *(launches[fold.combine].tensors if fold else ()))
            stored = {t.name: np.zeros(memory[t.name].size, bool) for t in tensors}
            arrived: Counter[int] = Counter()
            for n in order(math.prod(number(g.count, given) for g in p.grid)):
                run(p, given, n, stored)
                if fold is not None:
                    parts = number(p.grid[-1].count, given)
                    arrived[n // parts] += 1
                    if arrived[n // parts] == parts:
                        (combine,) = launches[fold.combine].programs
                        tiles = {c: given[z] if isinstance(z, str) else z for c, z in fold.sizes}
                        run(combine, {**parameters(combine), **tiles}, n // parts, stored)
    return {t.name: memory[t.name] for t in module.outputs}, done
