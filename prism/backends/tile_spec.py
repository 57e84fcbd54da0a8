"""The executable specification of tile programs: what a legal one is, checked statement by statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NoReturn

import sympy

from prism.backends import tile
from prism.backends.lower_types import INTS
from prism.backends.passes.sharing import Mentions
from prism.backends.tile_rewrite import accumulators
from prism.errors import IllegalIRError
from prism.ir.kit import statements
from prism.program.nodes import DType, ReduceKind

_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def check_module(module: tile.TileModule) -> None:
    """Checks every program of a module, that what they read is there, and that launches take what programs need.

    Raises:
        IllegalIRError: a rule is broken.
    """
    ready = {t.name for t in module.inputs}
    repeats = {name: r for r in module.repeats for name in r.launches}
    for launch in module.launches:
        repeat = repeats.get(launch.name)
        if repeat is not None:
            ready |= {w.tensor.name for w in repeat.windows if w.first in ready or (w.first is None and w.of in ready)}
        stored: set[str] = set()
        for program in launch.programs:
            check(program)
            checker = _Checker(program)
            for s in statements(program.body):
                if isinstance(s, tile.Load) and s.tensor not in ready:
                    checker.fail(f"loads {s.tensor}, which no earlier launch stores")
            stored |= {s.tensor for s in statements(program.body) if isinstance(s, tile.Store)}
        ready |= stored
        if repeat is not None:
            ready |= {w.of for w in repeat.windows if w.tensor.name in stored}
        _check_launch(launch)
    for t in (*module.buffers, *module.outputs):
        if t.name not in ready:
            raise IllegalIRError(f"tensor {t.name} is never stored", where=f"tile module {module.name}")
    for fold in module.folds:
        _check_fold(module, fold)


def _check_fold(module: tile.TileModule, fold: tile.TileFold) -> None:
    """Both launches have the same tiles, and what one reads of the other's is stored by the programs of its tile."""
    launches = {launch.name: launch for launch in module.launches}

    def fail(what: str) -> NoReturn:
        where = f"folding {fold.combine} into {fold.split}"
        raise IllegalIRError(what, where=where, fix="this is a bug in prism; please report it")

    if any(len(launches[name].programs) != 1 for name in (fold.split, fold.combine)):
        fail("a launch of several programs")
    (split,), (combine,) = launches[fold.split].programs, launches[fold.combine].programs
    constants = {c.name for c in split.constants}
    for name, size in fold.sizes:
        if name not in {c.name for c in combine.constants} or (isinstance(size, str) and size not in constants):
            fail(f"{size} stands for {name}")
    sizes = {
        tile.symbol(name): tile.symbol(size) if isinstance(size, str) else sympy.Integer(size)
        for name, size in fold.sizes
    }
    counts = [sympy.sympify(g.count).xreplace(sizes) for g in combine.grid]
    if counts != [sympy.sympify(g.count) for g in split.grid[:-1]]:
        fail("the grids differ by more than the parts")
    places = [{g.index: n for n, g in enumerate(p.grid)} for p in (split, combine)]
    groups = [
        p.groups and (of.get(p.groups.slow), of.get(p.groups.fast), p.groups.size)
        for p, of in zip((split, combine), places, strict=True)
    ]
    down = [[g.reversed for g in p.grid][: len(combine.grid)] for p in (split, combine)]
    if groups[0] != groups[1] or down[0] != down[1] or split.sections or combine.sections:
        fail("tiles are numbered in different orders")
    stored = {s.tensor for s in statements(split.body) if isinstance(s, tile.Store)}
    written = {s.tensor for p in module.programs for s in statements(p.body) if isinstance(s, tile.Store)}
    # What a step is given is there before it begins.
    given = {w.tensor.name for r in module.repeats for w in r.windows if w.tensor.name not in written}
    before: set[str] = {t.name for t in module.inputs} | given
    for launch in module.launches:
        if launch.name == fold.split:
            break
        before |= {s.tensor for p in launch.programs for s in statements(p.body) if isinstance(s, tile.Store)}
    for p in module.programs:
        for s in statements(p.body):
            if isinstance(s, tile.Load) and s.tensor in stored and p is not combine:
                fail(f"{p.name} loads {s.tensor}, too")
            if isinstance(s, tile.Load) and p is combine and s.tensor not in stored | before:
                fail(f"{s.tensor} is stored after {fold.split} has begun")
    # Its own programs alone store what a tile reads.
    for p, kind, grid in ((split, tile.Store, split.grid), (combine, tile.Load, combine.grid)):
        mentions = Mentions(p)
        for s in statements(p.body):
            if isinstance(s, kind) and s.tensor in stored:
                missing = {g.index for g in grid} - mentions.grid(s.offset)
                if missing:
                    fail(f"an address in {s.tensor} does not mention {', '.join(sorted(missing))}")


def _check_launch(launch: tile.TileLaunch) -> None:
    """The parameters of a launch hold those of its programs, and what divides the grid among them."""
    tensors = {t.name for t in launch.tensors}
    given = {*launch.lengths, *(c.name for c in launch.constants)}
    for n, p in enumerate(launch.programs):
        needed = {*p.lengths, *(c.name for c in p.constants)}
        if n < len(launch.programs) - 1:
            needed |= {name for g in p.grid for name in tile.scalars(g.count)}
        missing = [*sorted({t.name for t in p.tensors} - tensors), *sorted(needed - given)]
        if missing:
            raise IllegalIRError(
                f"{p.name} needs {', '.join(missing)}, which its launch does not take",
                where=f"tile launch {launch.name}",
                fix="this is a bug in prism; please report it",
            )


def check(program: tile.TileProgram) -> None:
    """Checks every rule of the specification.

    Raises:
        IllegalIRError: a rule is broken; the message says which, in which program and statement.
    """
    _Checker(program).run()


@dataclass(frozen=True, slots=True)
class _Type:
    """The dimensions and the element type of a value."""

    dims: tile.Dims
    dtype: DType


@dataclass(slots=True)
class _Checker:
    program: tile.TileProgram
    values: dict[str, _Type] = field(default_factory=dict)
    scalars: set[str] = field(default_factory=set)
    changing: frozenset[str] = frozenset()
    order: dict[str, int] = field(default_factory=dict)

    def fail(self, what: str) -> NoReturn:
        raise IllegalIRError(
            what, where=f"tile program {self.program.name}", fix="this is a bug in prism; please report it"
        )

    def run(self) -> None:
        p = self.program
        if not p.name.isidentifier():
            self.fail(f"{p.name!r} is not an identifier")
        parameters = [*p.lengths, *(c.name for c in p.constants), *(g.index for g in p.grid)]
        for name in parameters:
            if parameters.count(name) > 1 or not name.isidentifier():
                self.fail(f"parameter {name!r} is not a unique identifier")
        self.scalars = set(parameters)
        self.order = {d.name: n for n, d in enumerate(p.dims)}
        self.changing = accumulators(p.body)
        constants = {c.name for c in p.constants}
        for d in p.dims:
            for size in d.sizes:
                if isinstance(size, str) and size not in constants:
                    self.fail(f"dimension {d.name} has the size {size}, which is no constant")
                if isinstance(size, int) and (size < 1 or size & (size - 1)):
                    self.fail(f"dimension {d.name} has the size {size}, which is no power of two")
        if p.groups is not None:
            order = [g.index for g in p.grid]
            if (p.groups.slow, p.groups.fast) not in pairwise(order):
                self.fail(f"groups of {p.groups.slow} and {p.groups.fast}, which are no neighbours in the grid")
            if p.groups.size < 1:
                self.fail(f"groups of {p.groups.size} programs")
        if p.sections is not None:
            if p.sections.index not in {g.index for g in p.grid} or p.groups is not None:
                self.fail(f"sections along {p.sections.index}")
            if p.sections.programs < 1:
                self.fail(f"sections of {p.sections.programs} programs")
        self.body(p.body, ())
        if not any(isinstance(s, tile.Store) for s in statements(p.body)):
            self.fail("the program stores nothing")

    def body(self, body: Sequence[tile.Stmt], fresh: tuple[str, ...]) -> None:
        """One block; names made in it end with it."""
        values, scalars = dict(self.values), set(self.scalars)
        self.scalars |= set(fresh)
        for s in body:
            self.statement(s)
        self.values, self.scalars = values, scalars

    # Names and types.

    def define(self, name: str, dims: tile.Dims, dtype: DType) -> None:
        if name in self.values or name in self.scalars or not name.isidentifier():
            self.fail(f"value name {name!r} is not a unique identifier")
        self.values[name] = _Type(dims, dtype)

    def ordered(self, dims: tile.Dims, of: str) -> None:
        for d in dims:
            if d not in self.order:
                self.fail(f"{of} has an unknown dimension {d}")
        if list(dims) != sorted(set(dims), key=self.order.__getitem__):
            self.fail(f"{of} has the dimensions {dims} out of order")

    def use(self, name: str, by: str) -> _Type:
        if name in self.scalars:
            return _Type((), DType.INT32)
        if name not in self.values:
            self.fail(f"{by} uses {name}, which is not defined there")
        return self.values[name]

    def within(self, name: str, dims: tile.Dims, by: str) -> _Type:
        found = self.use(name, by)
        if tuple(d for d in dims if d in found.dims) != found.dims:
            self.fail(f"{by} has the dimensions {dims} and its operand {name} {found.dims}")
        return found

    def typed(self, name: str, dtypes: Sequence[DType], by: str) -> _Type:
        found = self.use(name, by)
        if found.dtype not in dtypes:
            self.fail(f"{by} uses {name}, which is {found.dtype.value}")
        return found

    def affine(self, index: tile.Affine, dims: tile.Dims, by: str) -> None:
        for name, _ in index.terms:
            if name in self.scalars:
                continue
            if self.within(name, dims, by).dtype not in INTS:
                self.fail(f"{by} uses {name}, which is no integer, in an index")

    def masks(self, masks: Sequence[str], dims: tile.Dims, by: str) -> None:
        for m in masks:
            if self.within(m, dims, by).dtype is not DType.BOOL:
                self.fail(f"{by} has the mask {m}, which is no truth value")

    def declared(self, tensor: str, by: str) -> DType:
        for t in self.program.tensors:
            if t.name == tensor:
                return t.dtype
        self.fail(f"{by} uses the tensor {tensor}, which is no parameter")

    # Statements.

    def statement(self, s: tile.Stmt) -> None:
        for name in tile.integers(s):
            if name not in self.scalars:
                self.fail(f"{type(s).__name__} uses the scalar {name}, which is not defined there")
        match s:
            case tile.Scalar(dst, _):
                if dst in self.scalars or dst in self.values:
                    self.fail(f"scalar {dst} is defined twice")
                self.scalars.add(dst)
            case tile.Offsets(dst, dim, axis, _):
                self.ordered((dim,), dst)
                if not 0 <= axis < len(self.program.dim(dim).axes):
                    self.fail(f"{dst} is along axis {axis} of dimension {dim}")
                self.define(dst, (dim,), DType.INT32)
            case tile.InBounds(dst, index, high, low, dims, edge):
                self.ordered(dims, dst)
                self.affine(index, dims, dst)
                if high is None and low is None:
                    self.fail(f"{dst} checks no bound")
                if edge is not None and (high is None or low is not None):
                    self.fail(f"{dst} names a tile, which is for an upper bound alone")
                self.define(dst, dims, DType.BOOL)
            case tile.IndexValue(dst, index, dims):
                self.ordered(dims, dst)
                self.affine(index, dims, dst)
                self.define(dst, dims, DType.INT32)
            case tile.Load(dst, tensor, offset, masks, dims, dtype, readers):
                if not set(readers or ()) <= {g.index for g in self.program.grid}:
                    self.fail(f"{dst} names readers {readers}, which are no grid indices")
                # Any order: an operand of a product is loaded as the product wants it.
                self.ordered(tuple(sorted(dims, key=lambda d: self.order.get(d, -1))), dst)
                self.declared(tensor, dst)
                self.affine(offset, dims, dst)
                self.masks(masks, dims, dst)
                self.define(dst, dims, dtype)
            case tile.Full(dst, _, dims, dtype):
                self.ordered(dims, dst)
                self.define(dst, dims, dtype)
            case tile.Cast(dst, src, dtype):
                self.define(dst, self.use(src, dst).dims, dtype)
            case tile.Copy(dst, src):
                found = self.use(src, dst)
                self.define(dst, found.dims, found.dtype)
            case tile.Pointwise():
                self.pointwise(s)
            case tile.Select(dst, mask, src, _):
                found = self.use(src, dst)
                self.masks((mask,), found.dims, dst)
                self.define(dst, found.dims, found.dtype)
            case tile.Reduce(dst, _, src, dim):
                found = self.typed(src, (DType.FLOAT32,), dst)
                if dim not in found.dims:
                    self.fail(f"{dst} reduces the dimension {dim}, which {src} does not have")
                self.define(dst, tuple(d for d in found.dims if d != dim), found.dtype)
            case tile.Prefix(dst, src, dim, how, factor):
                if how.factors is (factor is None) or (how.factors and how.kind is ReduceKind.PROD):
                    self.fail(f"{dst} is a {how.kind.value} along {dim} with a factor, or its factor is missing")
                if how.rescaled:
                    self.fail(f"{dst} is rescaled by itself, where tiles have factors for that")
                if how.before and (how.kind is ReduceKind.SUM or how.factors):
                    self.fail(f"{dst} is a {how.kind.value} along {dim} that leaves out its own place")
                found = self.typed(src, (DType.FLOAT32,), dst)
                if factor is not None and self.within(factor, found.dims, dst).dtype is not DType.FLOAT32:
                    self.fail(f"{dst} has the factor {factor}, which is no float32")
                if dim not in found.dims:
                    self.fail(f"{dst} sums along the dimension {dim}, which {src} does not have")
                if len(self.program.dim(dim).axes) > 1:
                    self.fail(f"{dst} sums along the dimension {dim}, which holds several axes")
                self.define(dst, found.dims, found.dtype)
            case tile.Dot():
                self.dot(s)
            case tile.Rearrange(dst, src, groups):
                self.rearrange(dst, src, groups)
            case tile.For(index, _, _, _, body):
                if index in self.scalars or index in self.values:
                    self.fail(f"loop index {index} is defined twice")
                self.body(body, (index,))
            case tile.Within():
                self.guarded(s)
            case tile.Update(acc, kind, src):
                found = self.accumulator(acc, "an update")
                given = self.within(src, found.dims, acc)
                if given.dtype is not found.dtype or not (kind is None or isinstance(kind, ReduceKind)):
                    self.fail(f"accumulator {acc} takes {src}, which is {given.dtype.value}")
                if kind is None and given.dims != found.dims:
                    self.fail(f"accumulator {acc} becomes {src}, which has other dimensions")
            case tile.Store(tensor, offset, masks, dims, src, write_only):
                by = f"store to {tensor}"
                if write_only and any(
                    isinstance(x, tile.Load) and x.tensor == tensor for x in statements(self.program.body)
                ):
                    self.fail(f"{by} is write_only, and the program loads it")
                self.ordered(dims, by)
                self.affine(offset, dims, by)
                self.masks(masks, dims, by)
                dtype = self.declared(tensor, by)
                if isinstance(src, str) and self.within(src, dims, by).dtype is not dtype:
                    self.fail(f"{by} takes {src}, which is not {dtype.value}")

    def guarded(self, s: tile.Within) -> None:
        if s.index not in self.scalars or s.index in self.values:
            self.fail(f"{s.dst} depends on {s.index}, which is no scalar")
        if s.low is None and s.high is None:
            self.fail(f"{s.dst} checks no bound")
        if any(isinstance(x, tile.For | tile.Store | tile.Update | tile.Within) for x in s.body):
            self.fail(f"{s.dst} is made by a body that does more than compute")
        values = dict(self.values)
        for x in s.body:
            self.statement(x)
        made, found = self.use(s.value, s.dst), self.use(s.src, s.dst)
        self.values = values
        if made != found:
            self.fail(f"{s.dst} is {s.src} or {s.value}, which differ in dimensions or type")
        self.define(s.dst, found.dims, found.dtype)

    def accumulator(self, name: str, by: str) -> _Type:
        if name not in self.changing:
            self.fail(f"{by} changes {name}, which is no accumulator")
        return self.use(name, by)

    def pointwise(self, s: tile.Pointwise) -> None:
        if s.op not in tile.TILE_OPS or len(s.args) != tile.TILE_OPS[s.op].arity:
            self.fail(f"{s.dst} = {s.op} of {len(s.args)} operands")
        self.ordered(s.dims, s.dst)
        named = [a for a in s.args if isinstance(a, str)]
        types = [self.within(a, s.dims, s.dst) for a in named]
        if {d for t in types for d in t.dims} != set(s.dims):
            self.fail(f"{s.dst} has dimensions that no operand has")
        if not named:
            self.fail(f"{s.dst} has no operand with a type")
        branches: Sequence[tile.Operand] = s.args[1:] if s.op == "where" else s.args
        kinds = {self.use(a, s.dst).dtype for a in branches if isinstance(a, str)}
        if len(kinds) > 1 or any(k.is_half for k in kinds):
            self.fail(f"{s.dst} computes on {', '.join(sorted(k.value for k in kinds))}")
        if s.op == "where" and isinstance(s.args[0], str) and types[0].dtype is not DType.BOOL:
            self.fail(f"{s.dst} chooses by {s.args[0]}, which is no truth value")
        wanted = DType.BOOL if tile.TILE_OPS[s.op].boolean else (kinds.pop() if kinds else s.dtype)
        if s.dtype is not wanted:
            self.fail(f"{s.dst} is {s.dtype.value} and its operands give {wanted.value}")
        self.define(s.dst, s.dims, s.dtype)

    def dot(self, s: tile.Dot) -> None:
        lhs, rhs = self.typed(s.lhs, _FLOATS, s.dst), self.typed(s.rhs, _FLOATS, s.dst)
        if lhs.dtype is not rhs.dtype:
            self.fail(f"{s.dst} multiplies {lhs.dtype.value} by {rhs.dtype.value}")
        if len(lhs.dims) != 2 or len(rhs.dims) != 2 or lhs.dims[1] != rhs.dims[0]:
            self.fail(f"{s.dst} multiplies {lhs.dims} by {rhs.dims}")
        dims = (lhs.dims[0], rhs.dims[1])
        if s.add is not None and self.typed(s.add, (DType.FLOAT32,), s.dst).dims != dims:
            self.fail(f"{s.dst} adds {dims} to {self.values[s.add].dims}")
        if s.dst == s.add:
            self.accumulator(s.dst, "a product")
        else:
            self.define(s.dst, dims, DType.FLOAT32)

    def rearrange(self, dst: str, src: str, groups: tuple[tuple[str, ...], ...]) -> None:
        found = self.use(src, dst)
        before = [d for name in found.dims for d in name.split("*")]
        after = [d for g in groups for d in g]
        if sorted(before) != sorted(after):
            self.fail(f"{dst} rearranges {before} to {after}")
        self.define(dst, tuple("*".join(g) for g in groups), found.dtype)
