"""One tile program as one @triton.jit function: a kernel, or what a kernel of several programs calls (emit.py).

A value that is used once, on the spot, is written into the expression that uses it; the others are assigned. An operand
that lacks dimensions of the result is indexed with None in their places. A load that a descriptor may do
(tensor_descriptors.py) is written in both forms: by pointers where the parameter for the descriptor is None, which is
known when it is compiled.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy

from prism.backends import tile
from prism.backends.lower_index import Names
from prism.backends.passes.predicates import base
from prism.backends.passes.small_integers import Bits, written
from prism.backends.place import write_place
from prism.backends.source import KERNEL, Writer, fresh
from prism.backends.tensor_descriptors import DescriptorLoad
from prism.backends.tile_rewrite import accumulators, names_beside
from prism.backends.triton.ahead import Ahead, loads_ahead, trip
from prism.backends.triton.emit_helpers import HELPERS
from prism.backends.triton.paired import Both, Turns, Word, in_turn, pairs, products
from prism.cost.counts import LINE_BYTES, SECTOR_BYTES
from prism.errors import UnsupportedError
from prism.ir.kit import defined, operands, statements
from prism.program.extents import Extent, add, mul
from prism.program.nodes import DType, ReduceKind, Tensor

TL_TYPES: Mapping[DType, str] = {d: f"tl.{d.value}" for d in DType} | {DType.BOOL: "tl.int1"}
STREAMED = 1 << 24
"""Bytes of an output from which on a store does not ask caches to keep it: what reads a smaller one may find it."""
# Precedence of an expression: an atom binds tightest.
_COMPARE, _OR, _AND, _ADD, _MUL, _UNARY, _ATOM = range(7)
_NAN = "propagate_nan=tl.PropagateNan.ALL"
# tl.max and tl.min lose NaN, where torch keeps it.
_COMBINE: Mapping[ReduceKind, str] = {
    ReduceKind.PROD: "multiply",
    ReduceKind.MAX: "larger",
    ReduceKind.MIN: "smaller",
}
_GROWING: Mapping[ReduceKind, str] = {
    ReduceKind.SUM: "recurrence",
    ReduceKind.MAX: "growing_maximum",
    ReduceKind.MIN: "growing_minimum",
}
_BEFORE: Mapping[ReduceKind, str] = {
    ReduceKind.PROD: "product_before",
    ReduceKind.MAX: "maximum_before",
    ReduceKind.MIN: "minimum_before",
}


@dataclass(frozen=True, slots=True)
class Text:
    """An expression as source: how tightly it binds, and the dimensions of its value."""

    source: str
    level: int
    dims: tile.Dims = ()

    def at(self, level: int) -> str:
        """The source, in parentheses unless it binds at least so tightly."""
        return self.source if self.level >= level else f"({self.source})"


@dataclass(frozen=True, slots=True)
class Tail:
    """How a split's kernel goes on where its second stage is folded into it."""

    fold: tile.TileFold  # which launches
    program: tile.TileProgram  # the split's
    function: str  # the second stage as a function of its place in the grid
    arguments: tuple[str, ...]  # what is passed to it, after that
    # Parameters of the split's kernel, with those of the second stage; so are the following.
    tensors: tuple[Tensor, ...]
    lengths: tuple[str, ...]  # integers known at launch
    constants: tuple[tile.Constant, ...]  # known at compile time
    arrivals: str  # the parameter that points to the counts
    flag: str  # the constant that says whether it does go on

    def write(self, writer: Writer) -> None:
        """The end of the kernel's body."""
        names = names_beside(self.program)
        names.taken |= {*self.lengths, *(c.name for c in self.constants), *self.arguments}
        tile, earlier = names.fresh("tile"), names.fresh("earlier")
        parts = KERNEL.factor(self.program.grid[-1].count)
        with writer.block(f"if {self.flag}:"):
            writer.line("# Every thread has stored its share before one of them counts the program in.")
            writer.line("tl.debug_barrier()")
            writer.line(f"{tile} = tl.program_id(0) // {parts}")
            count = f"{self.arrivals} + {tile}"
            writer.assign(earlier, f'tl.atomic_add({count}, 1, sem="acq_rel", scope="gpu")')
            with writer.block(f"if {earlier} == {parts} - 1:"):
                writer.line(f"tl.store({count}, 0)")
                writer.call(self.function, [tile, *self.arguments])


@dataclass(slots=True)
class KernelEmitter:
    """Writes one kernel."""

    program: tile.TileProgram  # the tile program
    pointers: Mapping[str, str]  # the pointer parameter of each tensor
    writer: Writer  # where it is written
    called: bool = False  # whether its place in the grid is its first parameter, and not the program's number
    helpers: set[str] = field(default_factory=set)  # names of the helper functions that were used
    tail: Tail | None = None  # how it goes on, where it is a split's and its second stage may be folded into it
    name: str = ""  # the function's, by default the program's
    stages: str = ""  # the parameter with the launch's pipeline stages, where loops are told them
    # The loads that descriptors may do, by their values: the parameter and the load.
    descriptor_loads: Mapping[str, tuple[str, DescriptorLoad]] = field(default_factory=dict)
    descriptors: Sequence[str] = ()  # the parameters for descriptors, in order, and whatever else is None or not
    waits: str = ""  # the one by which it waits for the launch before, if there is one
    _pairs: dict[str, tuple[tile.Load, tile.Load]] = field(default_factory=dict)
    # Products of pairs, by the second of two; operands of those, by either load; what such products make needless.
    _both: dict[str, Both] = field(default_factory=dict)
    _turns: dict[str, tuple[Turns, str]] = field(default_factory=dict)
    _needless: frozenset[str] = frozenset()
    # Loads one trip ahead, by the loop's index.
    _ahead: dict[str, list[Ahead]] = field(default_factory=dict)
    _names: Names = field(default_factory=lambda: Names(set()))
    _inline: dict[str, Text] = field(default_factory=dict)
    _dims: dict[str, tile.Dims] = field(default_factory=dict)
    _types: dict[str, DType] = field(default_factory=dict)
    _uses: Counter[str] = field(default_factory=Counter)
    _changing: frozenset[str] = frozenset()

    def run(self) -> None:
        """Writes the function."""
        found = pairs(self.program)
        described = self.descriptor_loads.keys()
        self._pairs = {name: pair for name, pair in found.items() if described.isdisjoint(x.dst for x in pair)}
        turns = in_turn(self.program, self._pairs)
        self.program, self._both = products(self.program, turns)
        p = self.program
        everything = statements(p.body)
        self._uses = Counter(name for s in everything for name in operands(s))
        self._changing = accumulators(p.body)
        self._names = names_beside(p)
        for t in (
            {t.low.dst: t for t in turns.values()} | {b.turns.low.dst: b.turns for b in self._both.values()}
        ).values():
            called = self._names.fresh(f"{t.low.tensor}_pairs")
            self._turns |= {t.low.dst: (t, called), t.high.dst: (t, called)}
        words = [x for b in self._both.values() if b.word is not None for x in b.word.parts]
        self._needless = frozenset([*words, *(x for b in self._both.values() for x in (b.first, b.total))])
        self._ahead = loads_ahead(p, {*self.descriptor_loads, *(x.dst for pair in found.values() for x in pair)})
        self.writer.line("@triton.jit")
        self.writer.call(f"def {self.name or p.name}", self._parameters(), ":")
        with self.writer.indented():
            if self.waits:
                with self.writer.block(f"if {self.waits} is not None:"):
                    self.writer.line("gdc_wait()")
                    self.writer.line("gdc_launch_dependents()")
            self._grid()
            self._body(p.body)
            if self.tail is not None:
                self.tail.write(self.writer)

    def _parameters(self) -> list[str]:
        p = self.tail or self.program
        found = ["pid"] * self.called + [self.pointers[t.name] for t in p.tensors]
        found += [self.tail.arrivals] if self.tail is not None else []
        found += [*p.lengths, *(f"{c.name}: tl.constexpr" for c in p.constants)]
        found += [f"{self.stages}: tl.constexpr"] * bool(self.stages)
        found += [f"{self.tail.flag}: tl.constexpr"] if self.tail is not None else []
        return found + list(self.descriptors)

    def _grid(self) -> None:
        self._types.update({g.index: DType.INT32 for g in self.program.grid})
        number = "pid"
        if not self.called and len(self.program.grid) == 1:
            number = "tl.program_id(0)"
        elif not self.called and self.program.grid:
            self.writer.line("pid = tl.program_id(0)")
        write_place(self.program, number, self.writer, KERNEL, names_beside(self.program).fresh)

    # Statements.

    def _body(self, body: Sequence[tile.Stmt]) -> None:
        for n, s in enumerate(body):
            name = defined(s)
            if isinstance(s, tile.For):
                self._types[s.index] = DType.INT32
                head = f"{KERNEL.text(s.start)}, {KERNEL.text(s.stop)}, {KERNEL.text(s.step)}"
                told = self.stages and is_plain(s)
                head = f"tl.range({head}, num_stages={self.stages})" if told else f"range({head})"
                going = self._begun(s)
                with self.writer.block(f"for {s.index} in {head}:"):
                    self._next(s, going)
                    self._body([x for x in s.body if defined(x) not in going])
            elif isinstance(s, tile.Within):
                self._within(s)
            elif isinstance(s, tile.Store):
                self._store(s)
            elif isinstance(s, tile.Load) and s.dst in self.descriptor_loads:
                self._by_descriptor(s, *self.descriptor_loads[s.dst])
            elif isinstance(s, tile.Update):
                self._update(s)
            elif isinstance(s, tile.Scalar):
                self.writer.line(f"{s.dst} = {KERNEL.text(s.value)}")
            elif isinstance(s, tile.Dot) and s.dst in self._both:
                self._dot_both(self._both[s.dst])
            elif name in self._needless:
                pass  # It is part of a product that is written as one.
            elif isinstance(s, tile.Load) and s.dst in self._pairs:
                if s.dst in self._turns:
                    self._load_turns(*self._turns[s.dst])
                else:
                    self._load_pair(*self._pairs[s.dst])
            elif isinstance(s, tile.Load) and any(s in pair for pair in self._pairs.values()):
                pass  # It came with the first of its pair.
            elif isinstance(s, tile.Offsets):
                self._dims[s.dst], self._types[s.dst] = (s.dim,), DType.INT32
                self._offsets(s)
            else:
                assert name is not None
                text = self._expression(s)
                self._dims[name] = text.dims
                if self._can_inline(s, name, body[n + 1 :], text):
                    self._inline[name] = text
                else:
                    self.writer.assign(name, text.source)

    def _begun(self, loop: tile.For) -> dict[str, str]:
        """Before a loop, what it loads ahead of its first trip: by the load's value, where that is."""
        ahead = self._ahead.get(loop.index, [])
        going = {a.load.dst: self._names.fresh(f"{a.load.dst}_ahead") for a in ahead}
        self._trip(loop, going, loop.start)
        return going

    def _next(self, loop: tile.For, going: Mapping[str, str]) -> None:
        """At the top of a loop, this trip's values of what is loaded ahead, and the loads for the next one."""
        for a in self._ahead.get(loop.index, []):
            dst, dims, dtype = a.load.dst, a.load.dims, a.load.dtype
            self._dims[dst], self._types[dst] = dims, dtype
            self.writer.assign(dst, f"{going[dst]}{self._cast(a.load)}")
        self._trip(loop, going, add(tile.symbol(loop.index), loop.step))

    def _trip(self, loop: tile.For, going: Mapping[str, str], place: Extent) -> None:
        """The loads ahead of the trip that begins at a place."""
        if not going:
            return
        index = self._names.fresh(f"next_{base(loop)}")
        self._types[index] = DType.INT32
        self.writer.line(f"{index} = {KERNEL.text(place)}")
        made = trip(self._ahead[loop.index], loop, index, self._names)
        self._uses.update(n for s in made for n in operands(s))
        self._body(made[: -len(going)])
        for name, load in zip(going.values(), made[-len(going) :], strict=True):
            assert isinstance(load, tile.Load)
            self.writer.assign(name, self._load(replace(load, dtype=self._tensor(load.tensor).dtype)).source)

    def _within(self, s: tile.Within) -> None:
        """One branch for all threads: outside of the bounds the value is computed."""
        text = self._operand(s.src)
        self.writer.assign(s.dst, text.source)
        self._dims[s.dst], self._types[s.dst] = text.dims, self._types.get(s.src, DType.FLOAT32)
        tests = [] if s.low is None else [f"{s.index} < {KERNEL.text(s.low)}"]
        tests += [] if s.high is None else [f"{s.index} >= {KERNEL.text(s.high)}"]
        with self.writer.block(f"if {tests[0] if len(tests) == 1 else ' | '.join(f'({t})' for t in tests)}:"):
            self._body(s.body[:-1])
            last = s.body[-1]
            if defined(last) == s.value:
                self.writer.assign(s.dst, self._expression(last).source)
            else:
                self._body(s.body[-1:])
                self.writer.assign(s.dst, self._operand(s.value).source)

    def _can_inline(self, s: tile.Stmt, name: str, rest: Sequence[tile.Stmt], text: Text) -> bool:
        """Whether the value is used once, in this block, before any accumulator that it reads changes."""
        if not isinstance(s, tile.Pointwise | tile.Cast | tile.Select | tile.IndexValue):
            return False
        if self._uses[name] != 1 or len(text.source) > self.writer.room - 50:
            return False
        reads = {name for name in self._changing if name in text.source}
        for later in rest:
            if isinstance(later, tile.For | tile.Within):
                return False
            if name in operands(later):
                # A masked store or a product reads better with names.
                return not isinstance(later, tile.Dot | tile.Store | tile.Reduce) or len(text.source) < 30
            if isinstance(later, tile.Pointwise | tile.Cast | tile.Select | tile.IndexValue):
                continue
            if defined(later) in reads:
                return False
        return False

    def _offsets(self, s: tile.Offsets) -> None:
        dim = self.program.dim(s.dim)
        size = str(dim.sizes[s.axis])
        lanes = f"tl.arange(0, {size})"
        if len(dim.axes) > 1:
            total = " * ".join(str(z) for z in dim.sizes)
            faster = [str(z) for z in dim.sizes[s.axis + 1 :]]
            lanes = f"tl.arange(0, {total})"
            if faster:
                divisor = faster[0] if len(faster) == 1 else f"({' * '.join(faster)})"
                lanes += f" // {divisor}"
            if s.axis > 0:
                lanes = f"{lanes} % {size}"
        start = "" if s.start == 0 else f"{KERNEL.text(s.start)} + "
        self.writer.line(f"{s.dst} = {start}{lanes}")

    def _store(self, s: tile.Store) -> None:
        args = [self._pointer(s.tensor, s.offset, s.dims), self._expanded(s.src, s.dims).source]
        if s.masks:
            args.append(f"mask={self._mask(s.masks, s.dims)}")
        if s.adds is not None:
            # One place may be that of several elements of a tile, whose threads know nothing of each other.
            self.writer.call("tl.atomic_add", [*args, 'sem="relaxed"'])
            return
        if s.write_only and self._bytes(s.tensor) >= STREAMED:
            args += self._evicted(s, [])
        self.writer.call("tl.store", args)

    def _update(self, s: tile.Update) -> None:
        dims = self._dims[s.acc]
        src = self._expanded(s.src, dims)
        match s.kind:
            case None:
                self.writer.line(f"{s.acc} = {src.source}")
            case ReduceKind.SUM:
                self.writer.line(f"{s.acc} = {s.acc} + {src.at(_MUL)}")
            case ReduceKind.PROD:
                self.writer.line(f"{s.acc} = {s.acc} * {src.at(_UNARY)}")
            case _:
                name = "maximum" if s.kind is ReduceKind.MAX else "minimum"
                self.writer.line(f"{s.acc} = tl.{name}({s.acc}, {src.source}, {_NAN})")

    # Addresses.

    def _tensor(self, name: str) -> Tensor:
        return next(t for t in self.program.tensors if t.name == name)

    def _cast(self, s: tile.Load) -> str:
        """What is loaded in another type than it is stored in is cast; truth values are stored as bytes."""
        same = s.dtype is self._tensor(s.tensor).dtype and s.dtype is not DType.BOOL
        return "" if same else f".to({TL_TYPES[s.dtype]})"

    def _masked(self, s: tile.Load, mask: str) -> list[str]:
        """The arguments by which a load is 0 where the mask is not true."""
        return [f"mask={mask}", "other=0.0" if self._tensor(s.tensor).dtype.is_float else "other=0"]

    def _pointer(self, tensor: str, offset: tile.Affine, dims: tile.Dims) -> str:
        text = self._affine(offset, dims)
        return self.pointers[tensor] if text == "0" and not dims else f"{self.pointers[tensor]} + {text}"

    def _affine(self, index: tile.Affine, dims: tile.Dims) -> str:
        parts: list[str] = []
        for name, coefficient in index.terms:
            # Scalars (grid and loop indices) have no dimensions to expand.
            value = self._expanded(name, dims).source if name in self._dims else name
            if index.wide:
                value = f"tl.cast({value}, tl.int64)"
            if coefficient == 1:
                parts.append(value)
            elif coefficient == -1:
                parts.append(f"-{value}")
            else:
                parts.append(f"{value} * {KERNEL.factor(coefficient)}")
        if index.offset != 0 or not parts:
            parts.append(KERNEL.text(index.offset))
        return " + ".join(parts).replace("+ -", "- ")

    def _mask(self, masks: Sequence[str], dims: tile.Dims) -> str:
        return " & ".join(self._expanded(m, dims).at(_AND) for m in masks)

    # Expressions.

    def _operand(self, operand: tile.Operand) -> Text:
        if not isinstance(operand, str):
            return Text(_number(operand), _ATOM if operand >= 0 else _UNARY)
        inlined = self._inline.pop(operand, None)
        return inlined if inlined is not None else Text(operand, _ATOM, self._dims.get(operand, ()))

    def _expanded(self, operand: tile.Operand, dims: tile.Dims) -> Text:
        """The operand with None in the places of the dimensions that it lacks."""
        text = self._operand(operand)
        if text.dims == dims or not text.dims:
            return text
        places = ", ".join(":" if d in text.dims else "None" for d in dims)
        if text.level == _UNARY and text.source.startswith("-"):
            return Text(f"{text.source}[{places}]", _UNARY, dims)
        return Text(f"{text.at(_ATOM)}[{places}]", _ATOM, dims)

    def _expression(self, s: tile.Stmt) -> Text:
        match s:
            case tile.InBounds(dst, index, high, low, dims, size):
                self._types[dst] = DType.BOOL
                return self._bounds(index, high, low, dims, size)
            case tile.IndexValue(dst, index, dims):
                self._types[dst] = DType.INT32
                return Text(self._affine(index, dims), _ADD, dims)
            case tile.Load():
                self._types[s.dst] = s.dtype
                return self._load(s)
            case tile.Full(dst, value, dims, dtype):
                self._types[dst] = dtype
                shape = ", ".join(self._length(d) for d in dims)
                shape = f"({shape},)" if len(dims) == 1 else f"({shape})"
                if value == 0 and dims:
                    return Text(f"tl.zeros({shape}, {TL_TYPES[dtype]})", _ATOM, dims)
                return Text(f"tl.full({shape}, {_number(value)}, {TL_TYPES[dtype]})", _ATOM, dims)
            case tile.Cast(dst, src, dtype, among):
                text = self._operand(src)
                self._types[dst] = dtype
                bits = written(dtype, among) if among is not None else None
                if bits is not None:
                    return _by_bits(text, dtype, bits)
                if dtype is DType.BOOL:
                    return Text(f"{text.at(_ADD)} != 0", _COMPARE, text.dims)
                if not text.dims and self._types.get(src) in (DType.INT32, DType.INT64):
                    # An integer parameter may be a compile-time number, which has no methods.
                    return Text(f"tl.cast({text.source}, {TL_TYPES[dtype]})", _ATOM)
                return Text(f"{text.at(_ATOM)}.to({TL_TYPES[dtype]})", _ATOM, text.dims)
            case tile.Copy(dst, src):
                self._types[dst] = self._types.get(src, DType.FLOAT32)
                return self._operand(src)
            case tile.Pointwise():
                self._types[s.dst] = s.dtype
                return self._pointwise(s)
            case tile.Select(dst, mask, src, otherwise):
                text = self._operand(src)
                self._types[dst] = self._types.get(src, DType.FLOAT32)
                chosen = self._expanded(mask, text.dims)
                return Text(f"tl.where({chosen.source}, {text.source}, {_number(otherwise)})", _ATOM, text.dims)
            case tile.Reduce(dst, kind, src, dim):
                self._types[dst] = DType.FLOAT32
                return self._reduce(kind, src, dim)
            case tile.Prefix():
                self._types[s.dst] = DType.FLOAT32
                return self._prefix(s)
            case tile.Dot(dst):
                self._types[dst] = DType.FLOAT32
                return self._dot(s)
            case tile.Rearrange(dst, src, groups):
                self._types[dst] = self._types.get(src, DType.FLOAT32)
                return self._rearrange(src, groups)
            case _:
                raise UnsupportedError(f"no Triton expression for {type(s).__name__}", where=self.program.name)

    def _bounds(
        self, index: tile.Affine, high: Extent | None, low: Extent | None, dims: tile.Dims, size: tile.Size | None
    ) -> Text:
        value = self._affine(index, dims)
        parts: list[str] = []
        if low is not None:
            parts.append(f"{value} >= {KERNEL.text(low)}")
        if high is not None:
            text = f"{value} < {KERNEL.text(high)}"
            if isinstance(size, str) and not tile.scalars(high) - {c.name for c in self.program.constants}:
                # Known when compiled: where the tile divides the axis, the mask is all true and goes away.
                return Text(f"({text}) | ({KERNEL.factor(high)} % {size} == 0)", _OR, dims)
            parts.append(text)
        if len(parts) == 1:
            return Text(parts[0], _COMPARE, dims)
        return Text(" & ".join(f"({p})" for p in parts), _AND, dims)

    def _load(self, s: tile.Load) -> Text:
        args = [self._pointer(s.tensor, s.offset, s.dims)]
        if s.masks:
            args += self._masked(s, self._mask(s.masks, s.dims))
        args += self._policy(s)
        return Text(f"tl.load({', '.join(args)}){self._cast(s)}", _ATOM, s.dims)

    def _by_descriptor(self, s: tile.Load, descriptor: str, box: DescriptorLoad) -> None:
        """The load by the descriptor where there is one."""
        text = self._expression(s)
        self._dims[s.dst] = text.dims
        with self.writer.block(f"if {descriptor} is None:"):
            self.writer.assign(s.dst, text.source)
        with self.writer.block("else:"):
            self.writer.assign(s.dst, self._box(s, descriptor, box))

    def _box(self, s: tile.Load, descriptor: str, box: DescriptorLoad) -> str:
        """The box, in the shape of the tile."""
        source = f"{descriptor}.load([{', '.join(KERNEL.text(e) for e in box.start)}])"
        dims = [d for d in box.dims if d is not None]
        if len(dims) < len(box.dims):
            source = f"tl.reshape({source}, ({', '.join(self._length(d) for d in dims)}))"
        if dims != list(s.dims):
            source = f"tl.permute({source}, ({', '.join(str(dims.index(d)) for d in s.dims)}))"
        stored = box.view.tensor.dtype
        return source if stored is s.dtype else f"{source}.to({TL_TYPES[s.dtype]})"

    def _load_pair(self, low: tile.Load, high: tile.Load) -> None:
        """Every element of the one beside its neighbour of the other."""
        outer, inner = f"[{':, ' * len(low.dims)}None]", f"[{'None, ' * len(low.dims)}:]"
        args = [f"{self.pointers[low.tensor]} + ({self._affine(low.offset, low.dims)}){outer} + tl.arange(0, 2){inner}"]
        if low.masks:
            args += self._masked(low, f"({self._mask(low.masks, low.dims)}){outer}")
        policy = self._policy(low) if low.readers == high.readers else []
        self.writer.call(f"{low.dst}, {high.dst} = tl.split(tl.load", [*args, *policy], ")")
        for s in (low, high):
            self._dims[s.dst], self._types[s.dst] = s.dims, s.dtype
        self._stored_as(low, high)

    def _load_turns(self, turns: Turns, called: str) -> None:
        """Both of a pair's loads as one, in turn along a dimension."""
        low, lanes = turns.low, turns.lanes
        along, size = low.dims.index(lanes.dim), self._length(lanes.dim)
        start = "" if lanes.start == 0 else f"{KERNEL.text(mul(2, lanes.start))} + "
        place = self._names.fresh(f"{called}_offs")
        self.writer.line(f"{place} = {start}tl.arange(0, 2 * {size})")
        self._dims[place] = (lanes.dim,)
        offset = replace(low.offset, terms=tuple((place, 1) if n == lanes.dst else (n, c) for n, c in low.offset.terms))
        args = [self._pointer(low.tensor, offset, low.dims)]
        if low.masks:
            masks = [self._in_turn(turns.inside[m], place, size) if m in turns.inside else m for m in low.masks]
            args += self._masked(low, self._mask(masks, low.dims))
        args += self._policy(low) if low.readers == turns.high.readers else []
        self.writer.assign(called, f"tl.load({', '.join(args)})")
        for s in (low, turns.high):
            self._dims[s.dst], self._types[s.dst] = s.dims, s.dtype
        if turns.split:
            shape = [self._length(d) for d in low.dims]
            shape.insert(along + 1, "2")
            halves = f"tl.reshape({called}, ({', '.join(shape)}))"
            if along + 1 < len(low.dims):
                order = [*(n for n in range(len(shape)) if n != along + 1), along + 1]
                halves = f"tl.permute({halves}, {tuple(order)})"
            self.writer.line(f"{low.dst}, {turns.high.dst} = tl.split({halves})")
            self._stored_as(low, turns.high)

    def _stored_as(self, low: tile.Load, high: tile.Load) -> None:
        """The halves of a pair in the type that they have in the kernel."""
        for s in (low, high):
            if cast := self._cast(s):
                self.writer.line(f"{s.dst} = {s.dst}{cast}")

    def _in_turn(self, mask: tile.InBounds, place: str, size: str) -> str:
        """A mask along the dimension, for every element twice."""
        name = self._names.fresh(f"{mask.dst}_pairs")
        assert mask.high is not None
        both = mask.tile and f"(2 * {size})"
        text = self._bounds(tile.Affine(((place, 1),)), mul(2, mask.high), None, mask.dims, both)
        self.writer.assign(name, text.source)
        self._dims[name] = mask.dims
        return name

    def _dot_both(self, both: Both) -> None:
        """The sum of two products as one, over the elements of a pair in turn."""
        if both.word is None:
            low, high = self._operand(both.low), self._operand(both.high)
            dims, tail = low.dims, ""
            joined = f"tl.join({low.source}, {high.source})"
        else:
            dims, word = self._dims[both.word.whole], self._word(both.word)
            joined = f"tl.join({word}.to(tl.int16), ({word} >> 16).to(tl.int16))"
            tail = f".to({TL_TYPES[both.word.dtype]}, bitcast=True) - {float(both.word.offset)}"
        rows, columns = (self._length(d) for d in dims)
        turned = (
            f"tl.reshape(tl.permute({joined}, (0, 2, 1)), (2 * {rows}, {columns})){tail}"
            if both.left
            else f"tl.reshape({joined}, ({rows}, 2 * {columns})){tail}"
        )
        if tail:
            name = self._names.fresh("codes")
            self.writer.assign(name, turned)
            turned = name
        pair = self._turns[both.turns.low.dst][1]
        sides = [pair, turned] if both.left else [turned, pair]
        outer = both.turns.low.dims
        self._dims[both.total] = (outer[0], dims[1]) if both.left else (dims[0], outer[1])
        self._types[both.total] = DType.FLOAT32
        self.writer.assign(both.total, f"tl.dot({', '.join(sides)})")

    def _word(self, word: Word) -> str:
        """Two codes of an integer as the bits of two floats, under a name."""
        whole = self._operand(word.whole).at(_ATOM)
        low = f"({whole} >> {word.low})" if word.low else whole
        name = self._names.fresh("word")
        halves = f"({low} | ({whole} << {16 - word.high})) & {hex(word.mask)}"
        self.writer.assign(name, f"({halves}) | {hex(word.base)}")
        return name

    def _bytes(self, tensor: str) -> int:
        """The size of a tensor, 0 where it is not known."""
        found = self._tensor(tensor)
        total = sympy.Mul(*found.shape)
        return int(total) * found.dtype.bytes if total.is_Integer else 0

    def _policy(self, s: tile.Load) -> list[str]:
        """What is read once need not be kept; whether an axis has several programs may be known when compiled."""
        if s.readers is None:
            return []
        counts = [g.count for g in self.program.grid if g.index in s.readers]
        if any(tile.scalars(c) - {k.name for k in self.program.constants} for c in counts):
            return []
        alone = [text for c in counts for text in _is_one(c)]
        if any("tl." in text for text in alone):
            return []  # What a function of Triton's returns is a tensor in 3.6, which decides nothing when compiled.
        return self._evicted(s, alone)

    def _evicted(self, s: tile.Load | tile.Store, conditions: Sequence[str]) -> list[str]:
        """The hint that what is moved is not needed again, where tiles hold whole sectors, or lines where they store.

        A sector whose rest another program reads would be loaded again, and of a line parts go to memory one by one.
        """
        known, chosen_sizes = sympy.sympify(s.run).as_coeff_Mul()
        unit = LINE_BYTES if isinstance(s, tile.Store) else SECTOR_BYTES
        least = math.ceil(unit / (int(known) * self._tensor(s.tensor).dtype.bytes))
        if least > 1 and chosen_sizes == 1:
            return []
        asked = [*conditions, *([f"{least} <= {KERNEL.text(chosen_sizes)}"] if least > 1 else [])]
        chosen = f' if {" and ".join(asked)} else ""' if asked else ""
        return [f'eviction_policy="evict_first"{chosen}']

    def _length(self, dim: str) -> str:
        return " * ".join(str(z) for z in self.program.dim(dim).sizes)

    def _reduce(self, kind: ReduceKind, src: str, dim: str) -> Text:
        text = self._operand(src)
        axis = text.dims.index(dim)
        dims = tuple(d for d in text.dims if d != dim)
        combine = _COMBINE.get(kind)
        if combine is not None:
            self.helpers.add(combine)
            return Text(f"tl.reduce({text.source}, {axis}, {combine})", _ATOM, dims)
        return Text(f"tl.{kind.value}({text.source}, axis={axis})", _ATOM, dims)

    def _prefix(self, s: tile.Prefix) -> Text:
        text = self._operand(s.src)
        axis, back = text.dims.index(s.dim), ", reverse=True" * s.how.back
        where = f"axis={axis}{back}"
        if s.factor is not None:
            helper = _GROWING[s.how.kind]
            self.helpers.add(helper)
            shape = ", ".join(self._length(d) for d in text.dims)
            wide = f"tl.broadcast_to({self._expanded(s.factor, text.dims).source}, ({shape},))"
            made = f"{helper}({wide}, {text.source}, {where})"
        elif s.how.before:
            before = _BEFORE[s.how.kind]
            self.helpers.add(before)
            made = f"{before}({text.source}, {where})"
        elif s.how.kind is ReduceKind.SUM:
            made = f"tl.cumsum({text.source}, {where})"
        else:
            combine = _COMBINE[s.how.kind]
            self.helpers.add(combine)
            made = f"tl.associative_scan({text.source}, {axis}, {combine}{back})"
        return Text(made, _ATOM, text.dims)

    def _dot(self, s: tile.Dot) -> Text:
        lhs, rhs = self._operand(s.lhs), self._operand(s.rhs)
        args = [lhs.source, rhs.source]
        if s.add is not None:
            args.append(s.add)
        if self._types.get(s.lhs) is DType.FLOAT32:
            args.append(f'input_precision="{s.precision.value}"')
        return Text(f"tl.dot({', '.join(args)})", _ATOM, (lhs.dims[0], rhs.dims[1]))

    def _rearrange(self, src: str, groups: tuple[tuple[str, ...], ...]) -> Text:
        text = self._operand(src)
        source = text.at(_ATOM)
        apart = [d for name in text.dims for d in name.split("*")]
        if len(apart) != len(text.dims):
            source = f"tl.reshape({source}, ({', '.join(self._length(d) for d in apart)}))"
        wanted = [d for g in groups for d in g]
        if wanted != apart:
            order = ", ".join(str(apart.index(d)) for d in wanted)
            source = f"tl.permute({source}, ({order}))"
        if any(len(g) > 1 for g in groups):
            shape = ", ".join(" * ".join(self._length(d) for d in g) for g in groups)
            source = f"tl.reshape({source}, ({shape}))"
        return Text(source, _ATOM, tuple("*".join(g) for g in groups))

    def _pointwise(self, s: tile.Pointwise) -> Text:
        """The operation; a function keeps its operand's place, an infix operator aligns both."""
        args = [self._expanded(a, s.dims) for a in s.args]
        dims = s.dims if any(a.dims == s.dims for a in args) else ()
        types = [self._types.get(a, DType.FLOAT32) for a in s.args if isinstance(a, str)]
        floats = DType.FLOAT32 in types
        infix = {"and": ("&", _AND), "or": ("|", _OR), "mul": ("*", _MUL)}
        compare = {"lt": "<", "le": "<=", "eq": "=="}
        a = args[0]
        match s.op:
            case "add":
                for this, other in ((a, args[1]), (args[1], a)):
                    if other.level == _UNARY and other.source.startswith("-"):
                        return Text(f"{this.at(_ADD)} - {other.source[1:]}", _ADD, dims)
                return Text(f"{a.at(_ADD)} + {args[1].at(_MUL)}", _ADD, dims)
            case "mul" if -1.0 in s.args and not isinstance(s.args[1 - s.args.index(-1.0)], float):
                other = args[1 - s.args.index(-1.0)]
                return Text(f"-{other.at(_ATOM)}", _UNARY, dims)
            case op if op in infix:
                sign, level = infix[op]
                return Text(f"{a.at(level)} {sign} {args[1].at(level + (op == 'mul'))}", level, dims)
            case op if op in compare:
                return Text(f"{a.at(_ADD)} {compare[op]} {args[1].at(_ADD)}", _COMPARE, dims)
            case "shift" | "bits":
                return Text(f"({a.at(_ATOM)} {'>>' if s.op == 'shift' else '&'} {args[1].source})", _ATOM, dims)
            case "down":
                # Of a quotient and a product Triton knows how many neighbours are alike, of bits it does not.
                return Text(f"{a.at(_ATOM)} // {args[1].source} * {args[1].source}", _MUL, dims)
            case "neg":
                return Text(f"-{a.at(_ATOM)}", _UNARY, dims)
            case "not":
                return Text(f"~{a.at(_ATOM)}", _UNARY, dims)
            case "isnan":
                name = a.at(_ATOM)
                return Text(f"{name} != {name}", _COMPARE, dims)
            case "recip":
                return Text(f"1.0 / {a.at(_UNARY)}", _MUL, dims)
            case "div":
                return Text(f"{a.at(_MUL)} / {args[1].at(_UNARY)}", _MUL, dims)
            case "where":
                return Text(f"tl.where({', '.join(x.source for x in args)})", _ATOM, dims)
            case "maximum" | "minimum":
                flag = f", {_NAN}" if floats else ""
                return Text(f"tl.{s.op}({a.source}, {args[1].source}{flag})", _ATOM, dims)
            case "sqrt":
                return Text(f"tl.sqrt_rn({a.source})", _ATOM, dims)
            case "exp" | "exp2" | "log" | "log2" | "sin" | "cos" | "erf" | "floor" | "abs" | "sigmoid":
                return Text(f"tl.{s.op}({a.source})", _ATOM, dims)
            case "bitand":
                return Text(f"({a.at(_ATOM)} & {args[1].at(_ATOM)})", _ATOM, dims)
            case _:
                name = {"round": "round_half_even", "pow": "power", "atan": "arctangent"}.get(s.op, s.op)
                if name not in HELPERS:
                    raise UnsupportedError(f"no Triton expression for {s.op}", where=self.program.name)
                self.helpers.add(name)
                return Text(f"{name}({', '.join(x.source for x in args)})", _ATOM, dims)


def _by_bits(text: Text, dtype: DType, bits: Bits) -> Text:
    """The integers as floats, by the bits that these have."""
    added = bits.base - bits.least
    whole = f"{text.at(_OR)} | {hex(added)}" if bits.least == 0 else f"{text.at(_ADD)} + {hex(added)}"
    narrow = ".to(tl.int16)" if dtype.bytes == 2 else ""
    return Text(f"({whole}){narrow}.to({TL_TYPES[dtype]}, bitcast=True) - {float(bits.offset)}", _ADD, text.dims)


def _is_one(count: Extent) -> list[str]:
    """What compares extents with sizes and holds where the number of programs is one; nothing where it always is."""
    e = sympy.sympify(count)
    if isinstance(e, sympy.Mul) and sympy.fraction(e)[1] == 1:
        return [text for factor in e.args for text in _is_one(factor)]
    bound: Extent = 1
    while isinstance(e, sympy.ceiling):
        e, below = sympy.fraction(sympy.together(e.args[0]))
        bound = mul(bound, below)
    return [] if e == bound else [f"{KERNEL.text(e)} {'==' if bound == 1 else '<='} {KERNEL.text(bound)}"]


def _number(value: float) -> str:
    """A number as source; a float as the nearest float32, because Triton widens others to float64."""
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    try:
        value = (
            struct.unpack("f", struct.pack("f", value))[0] if abs(value) > 3.4e38 or 0 < abs(value) < 1.2e-38 else value
        )
    except OverflowError:
        value = float("inf") if value > 0 else float("-inf")
    if value != value or value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    # Subnormal numbers, too, would be float64: a GPU flushes them anyway.
    return repr(0.0 if abs(value) < 2.0**-126 else value)


# Loops that Triton pipelines only when it is told to, loop by loop.
#
# A launch's `num_stages` pipelines loads that feed matrix products (`tl.dot`) and no others: a loop without any, over
# the rows of a matrix times a vector or the tiles of a norm, waits for each of its loads in turn.
# `tl.range(num_stages=...)` pipelines those as well, by asynchronous copies, so such loops are written with the
# launch's number of stages, which the kernel then has as a parameter.


def is_plain(loop: tile.For) -> bool:
    """Whether the loop loads tiles and neither multiplies matrices nor holds another loop."""
    body = statements(loop.body)
    return not any(isinstance(s, tile.Dot | tile.For) for s in body) and any(
        isinstance(s, tile.Load) and s.dims for s in body
    )


def has_plain_loops(program: tile.TileProgram) -> bool:
    """Whether the program has loops that are told their stages."""
    return any(isinstance(s, tile.For) and is_plain(s) for s in statements(program.body))


def stages_parameter(launch: tile.TileLaunch, tail: Tail | None = None) -> str:
    """The parameter of the launch's function for its stages; nothing where no loop asks for them."""
    if not any(map(has_plain_loops, launch.programs)):
        return ""
    taken = {n for p in launch.programs for n in names_beside(p).taken}
    if tail is not None:
        taken |= {*tail.lengths, *(c.name for c in tail.constants), *tail.arguments, tail.arrivals, tail.flag}
    return fresh("STAGES", taken)
