"""Lowering, third step: the statements of one kernel, one by one, as tile statements.

Everything that an sGraph leaves to the reader is made explicit here: addresses, masks, what stands outside an axis in a
ragged tile, element types, the layout of matrix products, and how a rescaled accumulator moves.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy

from prism.backends import tile
from prism.backends.lower_deviations import Deviations, Moments, Running, Span
from prism.backends.lower_index import Indexing, Names, cdiv
from prism.backends.lower_layout import Layout
from prism.backends.lower_types import INTS, Types
from prism.backends.quotients import Quotients
from prism.backends.tile import GridAxis, symbol
from prism.cost.constraints import INT32_MAX
from prism.errors import IllegalIRError
from prism.ir.kit import sources, statements
from prism.program.extents import Extent, add, at_most, is_static, mul, strides_of
from prism.program.index import Axis, Index
from prism.program.nodes import DType, ReduceKind, Tensor
from prism.program.ops import COMPARISONS, OPS
from prism.sgraph import nodes as sg
from prism.sgraph.hidden import Condition, hidden, line

F32 = DType.FLOAT32
_NAMES: Mapping[str, str] = {
    "add": "total", "mul": "scaled", "neg": "negated", "recip": "inverse", "exp": "exponential", "sqrt": "root",
    "where": "chosen", "lt": "keep", "le": "keep", "eq": "keep", "and": "keep", "or": "keep", "not": "keep",
    "div": "quotient", "isnan": "missing", "sigmoid": "gate", "maximum": "larger", "minimum": "smaller",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TileValue:
    """What an sGraph value became."""

    name: str  # the tile value
    dims: tile.Dims  # its dimensions
    dtype: DType  # its element type
    zero: frozenset[Axis] = frozenset()  # axes outside of which every element of a tile is 0
    raw: str | None = None  # the same value in its storage type, where it was loaded in half precision
    raw_dtype: DType | None = None  # that type


@dataclass(slots=True)
class KernelLowering:
    """Lowers one kernel."""

    kernel: sg.Kernel
    layout: Layout  # the dimensions of its tiles
    types: Types  # what is known of its values
    tensors: Mapping[str, Tensor]  # every tensor of the sGraph, by name
    names: Names  # hands out the names of tile values
    quotients: Quotients  # which products are divisions
    defer: bool = True  # whether reductions may be left to after their loop
    on_chip: Container[str] = ()  # tensors that name tiles which the program keeps: an accumulator each
    _out: list[tile.Stmt] = field(default_factory=list)
    _values: dict[str, TileValue] = field(default_factory=dict)
    # Reductions that are left to after their loop: the accumulator keeps the axis.
    _deferred: dict[str, sg.Kind] = field(default_factory=dict)
    # Matrix products that wait for the accumulator they are added to.
    _waiting: dict[str, sg.Contract] = field(default_factory=dict)
    _factor: dict[str, str] = field(default_factory=dict)
    _anew: dict[str, str] = field(default_factory=dict)
    # Scans by whose moves others are rescaled; where nothing but -inf was seen so far.
    _rescaling: set[str] = field(default_factory=set)
    _empty: dict[str, TileValue] = field(default_factory=dict)
    _uses: dict[str, int] = field(default_factory=dict)
    _accumulated: set[str] = field(default_factory=set)
    _axes: dict[str, tuple[Axis, ...]] = field(default_factory=dict)
    # Conversions and selections that were made already in the open blocks.
    _known: dict[tuple[object, ...], str] = field(default_factory=dict)
    _kept: dict[str, TileValue] = field(default_factory=dict)
    _running: dict[str, Running] = field(default_factory=dict)
    # Of statistics, their means and counts as well; in a loop, what is to be merged.
    _moments: dict[str, Moments] = field(default_factory=dict)
    _spans: dict[Axis, Span] = field(default_factory=dict)
    # What must hold of the elements of a load that are needed.
    _hidden: Mapping[str, tuple[Condition, ...]] = field(default_factory=dict)
    _indexing: Indexing = field(init=False)
    _deviations: Deviations = field(init=False)

    def __post_init__(self) -> None:
        self._indexing = Indexing(self.kernel, self.layout, self.names, lambda s: self._out.append(s))
        self._deviations = Deviations(self.layout, self.names, self._indexing, lambda s: self._out.append(s))

    @property
    def grid(self) -> tuple[GridAxis, ...]:
        """The launch grid, once the kernel is lowered."""
        return tuple(self._indexing.grid)

    def run(self) -> tuple[tile.Stmt, ...]:
        """The body."""
        for s in self.kernel.statements():
            for name in sources(s):
                self._uses[name] = self._uses.get(name, 0) + 1
            if isinstance(s, sg.Accumulate | sg.Scan):
                self._accumulated.add(s.src)
            if isinstance(s, sg.Scan) and s.how.rescaled:
                self._rescaling.add(str(s.growth))
        self._axes = sg.value_axes(self.kernel)
        self._hidden = hidden(self.kernel)
        self._indexing.start()
        self._block(self.kernel.body)
        return tuple(self._out)

    # Statements.

    def _block(self, body: Iterable[sg.Stmt], axis: Axis | None = None) -> None:
        """The statements of the kernel, or of a loop over the axis."""
        for s in body:
            match s:
                case sg.Load():
                    self._load(s)
                case sg.Gather():
                    self._gather(s)
                case sg.Position(dst, index):
                    self._position(dst, index)
                case sg.Pointwise():
                    self._pointwise(s)
                case sg.TileReduce():
                    self._reduce(s)
                case sg.Contract():
                    self._contract(s)
                case sg.Loop():
                    self._loop(s)
                case sg.Accumulate():
                    assert axis is not None
                    self._accumulate(s, axis)
                case sg.Scan():
                    self._scan(s)
                case sg.Store():
                    self._store(s)

    def _load(self, s: sg.Load) -> None:
        if s.tensor in self.on_chip:
            kept = self._kept[s.tensor]
            self._values[s.dst] = replace(kept, name=self.names.fresh(s.tensor))
            self._out.append(tile.Copy(self._values[s.dst].name, kept.name))
            return
        tensor = self.tensors[s.tensor]
        axes = frozenset(a for i in s.index for a in i.axes())
        dims = self.layout.dims_for(axes)
        masks = self._indexing.masks(axes) + self._indexing.inside(tensor, s.index)
        ends = [(i, i.scaled(-1) + Index.const(add(n, -1))) for i, n in zip(s.index, tensor.shape, strict=True)]
        checked = {e for both in ends for e in both}
        shown = [c for c in self._hidden.get(s.dst, ()) if checked.isdisjoint(c)]
        if not shown and len(masks) == len(self._indexing.masks(axes)):
            dims = self._product_dims(s.dst, s.index) or dims
        masks += tuple(self._shown(c, tensor, s.index) for c in shown)
        address = self._indexing.address(tensor, s.index)
        self._values[s.dst] = self._loaded(tensor, address, masks, dims, axes)

    def _shown(self, condition: Condition, tensor: Tensor, index: Sequence[Index]) -> str:
        """A mask that holds where a condition does, for some element at least that comes from memory at once."""
        lines = line(tensor, index)
        key = ("shown", condition, lines)
        if key not in self._known:
            masks = [self._not_negative(i, lines) for i in condition]
            name, dims = masks[0].name, set(masks[0].dims)
            for other in masks[1:]:
                dims |= set(other.dims)
                ordered = tuple(d.name for d in self.layout.dims if d.name in dims)
                name = self._made("shown", "or", (name, other.name), ordered, DType.BOOL).name
            self._known[key] = name
        return self._known[key]

    def _not_negative(self, index: Index, lines: tuple[Axis, int] | None) -> TileValue:
        """Whether an index is not negative, for some element at least of those that are a line of memory."""
        slope = 0 if lines is None or not self.layout.is_tiled(lines[0]) else index.slope(lines[0])
        made = TileValue(self.names.fresh("shown"), self.layout.dims_for(index.axes()), DType.BOOL)
        if lines is None or not slope:
            self._out.append(tile.InBounds(made.name, self._indexing.affine(index), None, 0, made.dims))
            return made
        axis, length = lines
        ((offsets, _),) = self._indexing.affine(Index.axis(axis)).terms
        along = self.layout.dims_for((axis,))
        key = ("line", axis, length)
        if key not in self._known:
            self._known[key] = self._made(f"line_{axis.name}", "down", (offsets, length), along, DType.INT32).name
        first = self._known[key]
        if abs(slope) > 1:
            first = self._made("first", "mul", (first, abs(slope)), along, DType.INT32).name
        # Of the elements of a line the first, or the last, is where the index is largest.
        rest = index + Index.axis(axis).scaled(-slope)
        rest = rest if slope < 0 else (rest + slope * (length - 1)).scaled(-1)
        bound = self._integer(rest)
        sides = (first, bound.name) if slope < 0 else (bound.name, first)
        self._out.append(tile.Pointwise(made.name, "le", sides, made.dims, DType.BOOL))
        return made

    def _gather(self, s: sg.Gather) -> None:
        tensor = self.tensors[s.tensor]
        axes = frozenset(a for i in s.index for a in i.axes())
        fixed = [n for n in range(len(s.index)) if all(p.dimension != n for p in s.places)]
        masks = self._indexing.masks(axes) + self._indexing.inside(tensor, s.index, fixed)
        address, there, dims = self._at_places(tensor, s.index, s.places)
        # Behind the end of an axis of a place alone anything may be read that is inside of the tensor.
        self._values[s.dst] = self._loaded(tensor, address, masks + there, dims, axes)

    def _at_places(
        self, tensor: Tensor, index: Sequence[Index], places: Sequence[sg.Place]
    ) -> tuple[tile.Affine, tuple[str, ...], tile.Dims]:
        """The address of an index with places added, masks that hold where these are some, and its dimensions."""
        terms: list[tuple[str, Extent]] = []
        masks: tuple[str, ...] = ()
        dims = set(self.layout.dims_for(a for i in index for a in i.axes()))
        for p in places:
            first, size = index[p.dimension].offset, tensor.shape[p.dimension]
            lows = [0] if at_most(0, first) else [0, add(0, -first)]
            highs = [p.extent] if at_most(add(first, p.extent), size) else [p.extent, add(size, -first)]
            place, there = self._place(self._values[p.value], lows, highs)
            terms.append((place.name, strides_of(tensor.shape)[p.dimension]))
            masks += there
            dims |= set(place.dims)
        address = self._indexing.address(tensor, index)
        ordered = tuple(d.name for d in self.layout.dims if d.name in dims)
        return replace(address, terms=(*terms, *address.terms)), masks, ordered

    def _place(
        self, value: TileValue, lows: Iterable[Extent], highs: Iterable[Extent]
    ) -> tuple[TileValue, tuple[str, ...]]:
        """A value as an index, and masks that hold where it is one from all `lows` on and below all `highs`."""
        masks: list[str] = []

        def test(op: str, *args: tile.Operand) -> None:
            masks.append(self._made("place", op, args, value.dims, DType.BOOL).name)

        if value.dtype is F32:
            test("eq", self._made("whole", "floor", (value.name,), value.dims).name, value.name)
        if value.dtype not in INTS:
            value = self._cast(value, DType.INT32)

        def number(extent: Extent) -> tile.Operand:
            if is_static(extent):
                return int(extent)
            end = TileValue(self.names.fresh(f"{value.name}_end"), (), DType.INT32)
            self._out.append(tile.IndexValue(end.name, tile.Affine((), extent), ()))
            return self._cast(end, value.dtype).name

        least, beyond = [*map(number, lows)], [*map(number, highs)]
        for low in least:
            test("le", low, value.name)
        for high in beyond:
            test("lt", value.name, high)
        return value, tuple(masks)

    def _loaded(
        self, tensor: Tensor, address: tile.Affine, masks: tuple[str, ...], dims: tile.Dims, axes: frozenset[Axis]
    ) -> TileValue:
        """A tile of a tensor, in a type that is computed with."""
        name = self.names.fresh(tensor.name)
        self._out.append(tile.Load(name, tensor.name, address, masks, dims, tensor.dtype))
        zero = frozenset(a for a in axes if self.layout.is_ragged(a))
        value = TileValue(name, dims, tensor.dtype, zero)
        if tensor.dtype.is_half:
            wide = self._cast(value, F32, f"{tensor.name}_f32")
            return replace(wide, raw=name, raw_dtype=tensor.dtype)
        if tensor.dtype in (DType.INT16, DType.INT8, DType.UINT8):
            return self._cast(value, DType.INT32, tensor.name)
        return value

    def _product_dims(self, name: str, index: Sequence[Index]) -> tile.Dims | None:
        """The dimensions in the order that products want them, when nothing but products uses the value.

        Where they want both orders, the dimension along which memory is contiguous is the last: pipelining keeps one
        copy of such a tile in shared memory, and products take it from there either way.
        """
        found: set[tile.Dims] = set()
        for s in self.kernel.statements():
            if name not in sources(s):
                continue
            product = self.layout.products.get(s.dst) if isinstance(s, sg.Contract) else None
            if product is None or len(product.m) != 1 or len(product.n) != 1:
                return None
            assert isinstance(s, sg.Contract)
            first = name == (s.rhs if product.swapped else s.lhs)
            found.add((*product.m, product.k) if first else (product.k, *product.n))
        if len(found) > 1:
            inner = self.layout.dims_for(a for a, c in index[-1].terms if c == 1 and isinstance(a, Axis))
            found = {dims for dims in found if dims[-1] in inner}
        return found.pop() if len(found) == 1 else None

    def _position(self, dst: str, index: Index) -> None:
        self._values[dst] = self._integer(index)

    def _integer(self, index: Index) -> TileValue:
        affine = self._indexing.affine(index)
        dims = self.layout.dims_for(index.axes())
        if affine.offset == 0 and len(affine.terms) == 1 and affine.terms[0][1] == 1:
            return TileValue(affine.terms[0][0], dims, DType.INT32)
        name = self.names.fresh("position" if affine.terms else "size")
        self._out.append(tile.IndexValue(name, affine, dims))
        return TileValue(name, dims, DType.INT32)

    def _pointwise(self, s: sg.Pointwise) -> None:
        quotient = self.quotients.of(s)
        if quotient is not None:
            self._values[s.dst] = self._quotient(*quotient)
            return
        args = [self._values[a] if isinstance(a, str) else float(a) for a in s.args]
        rules = PointwiseRules(s.op, tuple(a.dtype if isinstance(a, TileValue) else a for a in args))
        made: list[tile.Operand] = []
        for arg, wanted in zip(args, rules.wanted, strict=True):
            made.append(self._cast(arg, wanted).name if isinstance(arg, TileValue) else rules.number(arg, wanted))
        dims = self._union(a for a in args if isinstance(a, TileValue))
        if not any(isinstance(a, str) for a in made):
            # An operation on numbers alone: the first becomes a value, so that a backend sees a typed operand.
            first = self.names.fresh("number")
            assert not isinstance(made[0], str)
            self._out.append(tile.Full(first, made[0], (), rules.wanted[0]))
            made[0] = first
        zero = rules.zero([a.zero if isinstance(a, TileValue) else a for a in args])
        self._values[s.dst] = self._made(_NAMES.get(s.op, s.op), s.op, made, dims, rules.result, zero)

    def _quotient(self, dividend: sg.Operand, divisor: sg.Operand, scale: float) -> TileValue:
        """A division by a number times a value, as a value."""
        given = [self._cast(self._values[o], F32) if isinstance(o, str) else float(o) for o in (dividend, divisor)]
        below = given[1]
        if isinstance(below, TileValue) and scale != 1:
            given[1] = self._made(_NAMES["mul"], "mul", (below.name, scale), below.dims)
        elif isinstance(below, float):
            given[1] = below * scale
        dims = self._union(v for v in given if isinstance(v, TileValue))
        return self._made(_NAMES["div"], "div", [v.name if isinstance(v, TileValue) else v for v in given], dims)

    def _made(
        self,
        base: str,
        op: str,
        args: Sequence[tile.Operand],
        dims: tile.Dims,
        dtype: DType = F32,
        zero: frozenset[Axis] = frozenset(),
    ) -> TileValue:
        """A new value, called after `base`: an operation on others."""
        name = self.names.fresh(base)
        self._out.append(tile.Pointwise(name, op, tuple(args), dims, dtype))
        return TileValue(name, dims, dtype, zero)

    def _full(self, base: str, number: float, dims: tile.Dims) -> TileValue:
        """A new tile of one number."""
        name = self.names.fresh(base)
        self._out.append(tile.Full(name, number, dims, F32))
        return TileValue(name, dims, F32)

    def _copied(self, base: str, value: TileValue) -> str:
        """A copy, of what is changed later."""
        name = self.names.fresh(base)
        self._out.append(tile.Copy(name, value.name))
        return name

    def _union(self, values: Iterable[TileValue]) -> tile.Dims:
        wanted = {d for v in values for d in v.dims}
        return tuple(d.name for d in self.layout.dims if d.name in wanted)

    def _cast(self, value: TileValue, dtype: DType, base: str = "") -> TileValue:
        """The value as another element type."""
        if value.dtype is dtype:
            return value
        if value.raw is not None and value.raw_dtype is dtype:
            return replace(value, name=value.raw, dtype=dtype)
        key = (value.name, dtype)
        name = self._known.get(key)
        if name is None:
            name = self._known[key] = self.names.fresh(base or value.name)
            self._out.append(tile.Cast(name, value.name, dtype))
        return replace(value, name=name, dtype=dtype, raw=None, raw_dtype=None)

    def _inside(self, value: TileValue, axis: Axis, kind: ReduceKind) -> TileValue:
        """The value with the kind's identity wherever the tile holds elements outside the axis."""
        if not self.layout.is_ragged(axis) or (kind is ReduceKind.SUM and axis in value.zero):
            return value
        key = (value.name, axis, kind)
        name = self._known.get(key)
        if name is None:
            name = self._known[key] = self.names.fresh(f"{value.name}_inside")
            self._out.append(tile.Select(name, self._indexing.mask[axis], value.name, kind.identity))
        zero = value.zero | {axis} if kind is ReduceKind.SUM else frozenset()
        return replace(value, name=name, zero=zero, raw=None, raw_dtype=None)

    def _reduce(self, s: sg.TileReduce) -> None:
        value = self._cast(self._values[s.src], F32)
        if s.moments:
            names = (s.src, *s.moments)
            squares, count, mean, rest = (
                self._inside(self._cast(self._values[n], F32), s.axis, ReduceKind.SUM) for n in names
            )
            given = Moments(mean.name, squares.name, squares.dims, rest=rest.name)
            self._statistic(s.dst, self._deviations.parts(given, count.name, s.axis))
            return
        if isinstance(s.kind, sg.Statistic):
            merged = s.kind is sg.Statistic.MERGED
            found = self._moments[s.src] if merged else Moments(value.name, None, value.dims)
            if isinstance(self.kernel.role(s.axis), sg.LoopRole | sg.Split):
                self._moments[s.dst] = found
                self._values[s.dst] = value
            else:
                self._statistic(s.dst, self._deviations.whole(found, s.axis))
            return
        if not self.layout.is_tiled(s.axis):
            self._values[s.dst] = replace(value, raw=None, raw_dtype=None)
            return
        value = self._inside(value, s.axis, s.kind)
        if s.dst not in self._deferred:
            value = self._reduced(s.kind, value, s.axis, f"{s.kind.value}_{s.axis.name}")
        self._values[s.dst] = value

    def _statistic(self, dst: str, found: Moments) -> None:
        assert found.squares is not None
        self._moments[dst] = found
        self._values[dst] = TileValue(found.squares, found.dims, F32)

    def _reduced(self, kind: ReduceKind, value: TileValue, axis: Axis, base: str) -> TileValue:
        dim = self.layout.dim_of(axis)
        assert dim.axes == (axis,), "a packed axis is never reduced"
        name = self.names.fresh(base)
        self._out.append(tile.Reduce(name, kind, value.name, dim.name))
        zero = value.zero - {axis} if kind is ReduceKind.SUM else frozenset()
        return TileValue(name, tuple(d for d in value.dims if d != dim.name), F32, zero)

    def _contract(self, s: sg.Contract) -> None:
        product = self.layout.products.get(s.dst)
        if product is not None:
            # A sum that has no other use goes straight into its accumulator.
            straight = len(product.m) == len(product.n) == 1 and product.m + product.n == self.layout.dims_for(
                a for d in self.layout.dims if d.name in product.m + product.n for a in d.axes
            )
            if straight and self._uses[s.dst] == 1 and s.dst in self._accumulated:
                self._waiting[s.dst] = s
                return
            self._values[s.dst] = self._dot(s, None)
            return
        quotient = self.quotients.of(s)
        if quotient is not None:
            value = self._quotient(*quotient)
        else:
            lhs, rhs = (self._cast(self._values[o], F32) for o in (s.lhs, s.rhs))
            dims, zero = self._union((lhs, rhs)), lhs.zero & rhs.zero
            value = self._made("product", "mul", (lhs.name, rhs.name), dims, zero=zero)
        if self.layout.is_tiled(s.axis):
            value = self._inside(value, s.axis, ReduceKind.SUM)
            if s.dst not in self._deferred:
                value = self._reduced(ReduceKind.SUM, value, s.axis, f"sum_{s.axis.name}")
        self._values[s.dst] = value

    def _dot(self, s: sg.Contract, into: str | None) -> TileValue:
        """The matrix product; added to the accumulator `into`, if any."""
        product = self.layout.products[s.dst]
        wanted = self.types.dot(s.lhs, s.rhs)
        sides = [(s.lhs, (product.m, (product.k,))), (s.rhs, ((product.k,), product.n))]
        if product.swapped:
            sides = [(s.rhs, (product.m, (product.k,))), (s.lhs, ((product.k,), product.n))]
        operands: list[str] = []
        for name, groups in sides:
            value = self._cast(self._inside(self._values[name], s.axis, ReduceKind.SUM), wanted.dtype)
            operands.append(self._rearranged(value.name, value.dims, groups))
        dims = self._union(TileValue("", side, F32) for side in (product.m, product.n))
        dst = into if into is not None else self.names.fresh("dot")
        self._out.append(tile.Dot(dst, operands[0], operands[1], wanted.precision, into))
        if into is None and (len(product.m) > 1 or len(product.n) > 1 or dims != product.m + product.n):
            apart = self.names.fresh("dot")
            self._out.append(tile.Rearrange(apart, dst, tuple((d,) for d in dims)))
            dst = apart
        return TileValue(dst, dims, F32)

    def _rearranged(self, name: str, dims: tile.Dims, groups: tuple[tile.Dims, tile.Dims]) -> str:
        if all(len(g) == 1 for g in groups) and dims == groups[0] + groups[1]:
            return name
        dst = self.names.fresh(f"{name}_2d")
        self._out.append(tile.Rearrange(dst, name, groups))
        return dst

    # Loops and accumulators.

    def _loop(self, loop: sg.Loop) -> None:
        axis, body = loop.axis, loop.body
        made: dict[str, sg.Accumulate] = {}
        later = self._can_defer(axis, body)
        self._deferred.update({s.src: s.kind for s in later})
        for s in body:
            if isinstance(s, sg.Accumulate):
                made[s.dst] = s
                self._start(s, axis if s in later else None, axis)
            elif isinstance(s, sg.Scan) and s.axis == axis:
                self._start(s, None, axis)
        accumulators = {name: self._values[name].name for name in made}
        start, stop, step, gap = self._indexing.bounds(loop)
        index = trip = self._indexing.enter(axis)
        self._spans[axis] = span = Span(index, start, stop, step)
        outer, self._out = self._out, []
        known = dict(self._known)
        if gap is not None or loop.back:
            trip = self.names.fresh(f"{'trip' if gap is not None else 'done'}_{axis.name}")
            place: Extent = symbol(trip)
            if gap is not None:
                stop = add(stop, mul(-1, gap[1]))
            if loop.back:
                # From the last tile to the first.
                last = mul(add(cdiv(stop, step), -1), step)
                place = add(add(last, start), mul(-1, place))
            if gap is not None:
                behind = sympy.Min(sympy.Max(add(add(place, 1), mul(-1, gap[0])), 0), 1)
                place = add(place, mul(behind, gap[1]))
            self._out.append(tile.Scalar(index, place))
        self._indexing.step(axis, index)
        self._block(body, axis)
        outer.append(tile.For(trip, start, stop, step, tuple(self._out)))
        self._out, self._known = outer, known
        for name, s in made.items():
            value = replace(self._values[name], name=accumulators[name])
            if isinstance(s.kind, sg.Statistic):
                held = self._moments[s.src].count
                part = isinstance(self.kernel.role(axis), sg.Split)
                self._statistic(name, self._deviations.end(self._running[name], held, axis, span, part))
                continue
            if s in later:
                value = self._reduced(s.kind, value, axis, f"{s.kind.value}_{axis.name}")
            self._values[name] = value

    def _can_defer(self, axis: Axis, body: tuple[sg.Stmt, ...]) -> list[sg.Accumulate]:
        """The accumulators of a loop that may keep the axis' tile, to be reduced once, after the loop.

        That saves an exchange between threads in every iteration, for registers: not where matrix products need them.
        """
        if not self.defer or not self.layout.is_tiled(axis):
            return []
        products = any(isinstance(s, sg.Contract) and s.dst in self.layout.products for s in body)
        made = {s.dst: s for s in body if isinstance(s, sg.TileReduce | sg.Contract) and s.axis == axis}
        read = {name for s in statements(body) for name in sources(s)}
        found: list[sg.Accumulate] = []
        for s in body:
            if isinstance(s, sg.Accumulate) and s.shift is None and s.dst not in read and self._uses[s.src] == 1:
                src = made.get(s.src)
                kind: sg.Kind = src.kind if isinstance(src, sg.TileReduce) else ReduceKind.SUM
                if src is not None and kind is s.kind and (not products or self._must_defer(s, src)):
                    found.append(s)
        return found

    def _must_defer(self, s: sg.Accumulate, src: sg.TileReduce | sg.Contract) -> bool:
        """Whether the accumulator takes the reduction of a tile as it was loaded, and has several uses after the loop.

        Triton (3.9) moves such a reduction behind the loop by itself, and fails on the several uses.
        """
        if not isinstance(src, sg.TileReduce) or self._uses.get(s.dst, 0) < 2:
            return False
        loads = {
            x.dst: self.tensors[x.tensor].dtype for x in self.kernel.statements() if isinstance(x, sg.Load | sg.Gather)
        }
        return loads.get(src.src) is F32

    def _start(self, s: sg.Accumulate | sg.Scan, kept: Axis | None, axis: Axis) -> None:
        """The accumulator before its loop; with the dimension of the axis that is kept until after it."""
        axes = (*self._axes[s.dst], *(() if kept is None else (kept,)))
        if isinstance(s, sg.Scan):
            axes = tuple(a for a in axes if a != s.axis)
        dims = self.layout.dims_for(axes)
        kind: sg.Kind = s.kind if isinstance(s, sg.Accumulate) else s.how.kind
        if isinstance(kind, sg.Statistic):
            self._running[s.dst] = self._deviations.start(axis, dims, kept is not None)
            self._values[s.dst] = TileValue(self._running[s.dst].squares, dims, F32)
            return
        base = "acc" if s.src in self.layout.products else f"running_{kind.value}"
        self._values[s.dst] = self._full(base, kind.identity, dims)

    def _accumulate(self, s: sg.Accumulate, axis: Axis) -> None:
        if isinstance(s.kind, sg.Statistic):
            self._deviations.merge(self._running[s.dst], self._moments[s.src], axis, self._spans[axis])
            return
        acc = self._values[s.dst]
        if s.shift is not None and s.kind is ReduceKind.MIN:
            self._out.append(tile.Update(acc.name, ReduceKind.MAX, self._anew[s.shift]))
        elif s.shift is not None:
            self._out.append(tile.Update(acc.name, ReduceKind.PROD, self._factor[s.shift]))
        followers = {o.kind for o in self.kernel.statements() if isinstance(o, sg.Accumulate) and o.shift == s.dst}
        old = self._copied(f"old_{acc.name}", acc) if followers else acc.name
        self._values[s.dst] = self._updated(acc, s.kind, s.src)
        if ReduceKind.MIN in followers:
            self._anew[s.dst] = self._changed(acc, old)
        elif followers:
            self._values[s.dst] = self._shift(s.dst, s.kind, acc, old)

    def _updated(self, acc: TileValue, kind: ReduceKind, src: str) -> TileValue:
        """The accumulator, after it has taken the value."""
        waiting = self._waiting.pop(src, None)
        if waiting is not None:
            self._dot(waiting, acc.name)
            return replace(acc, zero=frozenset())
        value = self._cast(self._values[src], F32)
        self._out.append(tile.Update(acc.name, kind, value.name))
        return replace(acc, zero=value.zero if kind is ReduceKind.SUM else frozenset())

    def _scan(self, s: sg.Scan) -> None:
        acc = self._values.get(s.dst)
        if self.layout.is_tiled(s.axis):
            self._scan_tile(s, acc)
        elif acc is not None:
            self._scan_element(s, acc)
        elif s.how.before:
            self._values[s.dst] = self._full("prefix", s.how.kind.identity, ())
        else:
            self._values[s.dst] = self._values[s.src]

    def _scan_element(self, s: sg.Scan, acc: TileValue) -> None:
        """One place of a scan whose loop takes one element at a time."""
        # A name of its own: the next iteration changes the accumulator.
        name, old = self.names.fresh("prefix"), ""
        if s.how.before:
            self._out.append(tile.Copy(name, acc.name))
        if s.growth is not None:
            self._out.append(tile.Update(acc.name, s.how.kind.times, self._growth(s, carried=True).name))
        if s.dst in self._rescaling:
            old = self._copied(f"old_{acc.name}", acc)
        if s.how.rescaled:
            updated = acc
            self._out.append(tile.Update(acc.name, s.how.kind, self._seen(s).name))
        else:
            updated = self._updated(acc, s.how.kind, s.src)
        if s.how.before:
            updated = acc
        else:
            self._out.append(tile.Copy(name, acc.name))
        self._values[s.dst] = replace(updated, name=name)
        if s.dst in self._rescaling:
            self._shift(s.dst, s.how.kind, self._values[s.dst], old)

    def _seen(self, s: sg.Scan) -> TileValue:
        """What is combined; 0 where it would be rescaled by the exponential of -inf: nothing is there yet."""
        src = self._cast(self._values[s.src], F32)
        if not s.how.rescaled:
            return src
        empty = self._empty[str(s.growth)]
        return self._made("seen", "where", (empty.name, 0.0, src.name), self._union((src, empty)), zero=src.zero)

    def _scan_tile(self, s: sg.Scan, acc: TileValue | None) -> None:
        """The places of a tile, after those of the tiles before it."""
        how, kind = s.how, s.how.kind
        src = self._seen(s)
        if how.back:
            # Behind the end of the axis anything may stand; from the first place on it comes after all that counts.
            src = self._inside(src, s.axis, kind)
        dim = self.layout.dim_of(s.axis).name
        factor = None if s.growth is None else self._growth(s, carried=acc is not None)
        rescales = s.dst in self._rescaling
        own = rescales or (how.before and kind is not ReduceKind.SUM)
        in_tile = replace(how, before=own, factors=factor is not None, rescaled=False)

        def prefix(of: TileValue) -> TileValue:
            made = TileValue(self.names.fresh("prefix"), of.dims, F32, of.zero - {s.axis})
            by = None if factor is None else factor.name
            self._out.append(tile.Prefix(made.name, of.name, dim, in_tile, by))
            return made

        def pointwise(op: str, *args: TileValue) -> TileValue:
            return self._made("prefix", op, [a.name for a in args], self._union(args))

        sums = found = prefix(src)
        if acc is not None and factor is None:
            zero = sums.zero if kind is ReduceKind.SUM else frozenset()
            found = replace(pointwise(kind.op, sums, acc), zero=zero)
            of_tile = self._reduced(kind, src, s.axis, f"{kind.value}_{s.axis.name}")
            self._out.append(tile.Update(acc.name, kind, of_tile.name))
        elif acc is not None and factor is not None:
            # What came before is multiplied by the factors up to each place; to the next tile goes what is last.
            first, last = self._indexing.ends(s.axis, how.back)
            grow = kind.times
            seed = self._made("factor", "where", (first, factor.name, kind.identity), factor.dims, zero=factor.zero)
            since = prefix(seed)
            found = pointwise(kind.op, sums, pointwise(grow.op, since, acc))
            for combine, value in ((grow, since), (kind, sums)):
                ending = self.names.fresh("ending")
                self._out.append(tile.Select(ending, last, value.name, 0.0))
                end = self._reduced(ReduceKind.SUM, replace(value, name=ending), s.axis, "end")
                self._out.append(tile.Update(acc.name, combine, end.name))
        if how.before and not own:
            found = pointwise("add", found, pointwise("neg", src))
        self._values[s.dst] = found
        if rescales:
            self._values[s.dst] = pointwise(kind.op, found, src)
            self._shift(s.dst, kind, self._values[s.dst], found.name)

    def _growth(self, s: sg.Scan, carried: bool) -> TileValue:
        """The factors of a scan: at the first place of all 0, where something is carried, for nothing is there yet.

        Or what is added to an extreme.
        """
        assert s.growth is not None
        if s.how.rescaled:
            return replace(self._values[str(s.growth)], name=self._factor[str(s.growth)])
        if isinstance(s.growth, str):
            factor = self._cast(self._values[s.growth], F32)
            if s.how.exponential:
                factor = self._made("factor", "exp", (factor.name,), factor.dims)
        else:
            factor = self._full("factor", math.exp(min(s.growth, 700.0)) if s.how.exponential else s.growth, ())
        place = self._indexing.affine(Index.axis(s.axis)).terms
        if not place or not (carried or s.how.back) or (s.how.kind.is_extreme and not s.how.back):
            return factor
        along = self.layout.dims_for((s.axis,))
        if s.how.back:
            first = TileValue(self.names.fresh("first"), along, DType.BOOL)
            end = tile.Affine(((place[0][0], 1),))
            self._out.append(tile.InBounds(first.name, end, None, add(s.axis.extent, -1), along))
        else:
            first = self._made("first", "eq", (place[0][0], 0), along, DType.BOOL)
        return self._made("factor", "where", (first.name, 0.0, factor.name), self._union((first, factor)))

    def _changed(self, acc: TileValue, old: str) -> str:
        """Infinity where the extreme is another one than it was, -infinity elsewhere: what is not a number stays so."""

        def made(op: str, *args: str | float, dtype: DType = DType.BOOL) -> str:
            return self._made("anew", op, args, acc.dims, dtype).name

        same = made("eq", old, acc.name)
        stays = made("or", same, made("isnan", old))
        return made("where", stays, -math.inf, math.inf, dtype=F32)

    def _shift(self, dst: str, kind: sg.Kind, acc: TileValue, old: str) -> TileValue:
        """The factor exp(old - new) for what is rescaled by this accumulator or scan, and the value to subtract.

        While everything seen so far is -inf, so is the maximum: then 0 is subtracted in its place, for -inf - -inf is
        not a number.
        """
        if kind is ReduceKind.MAX:
            empty = self._empty[dst] = self._made("empty", "eq", (acc.name, float("-inf")), acc.dims, DType.BOOL)
            new = self._made("shift", "where", (empty.name, 0.0, acc.name), acc.dims).name
        else:
            new = self._copied("shift", acc)
        negated = self._made("negated", "neg", (new,), acc.dims)
        moved = self._made("moved", "add", (old, negated.name), acc.dims)
        self._factor[dst] = self._made("factor", "exp", (moved.name,), acc.dims).name
        return TileValue(new, acc.dims, F32)

    def _keep(self, s: sg.Store) -> None:
        """The tile that the program keeps, made or changed: 0 outside of its axes, as a tile that is loaded is."""
        axes = [a for i in s.index for a in i.axes()]
        dims = self.layout.dims_for(axes)
        value = self._cast(self._values[str(s.src)], F32)
        if value.dims != dims:
            nothing = self._full("nothing", 0.0, dims)
            value = self._made(f"{value.name}_tile", "add", (nothing.name, value.name), dims, zero=value.zero)
        for axis in axes:
            value = self._inside(value, axis, ReduceKind.SUM)
        if s.tensor not in self._kept:
            zero = frozenset(a for a in axes if self.layout.is_ragged(a))
            self._kept[s.tensor] = replace(self._full(f"kept_{s.tensor}", 0.0, dims), zero=zero)
        self._out.append(tile.Update(self._kept[s.tensor].name, None, value.name))

    def _store(self, s: sg.Store) -> None:
        if s.tensor in self.on_chip:
            self._keep(s)
            return
        tensor = self.tensors[s.tensor]
        axes = frozenset(a for i in s.index for a in i.axes())
        dims = self.layout.dims_for(axes)
        adds: tile.Adds | None = None
        there: tuple[str, ...] = ()
        if s.places:
            address, there, dims = self._at_places(tensor, s.index, s.places)
            axes |= self.kernel.added_along(s)
            adds = tile.Adds.SHARED if self.kernel.shares(s) else tile.Adds.ALONE
        else:
            address = self._indexing.address(tensor, s.index)
        value = self._stored(s)
        src: tile.Operand = value.name if isinstance(value, TileValue) else value
        if isinstance(value, TileValue):
            src = self._cast(value, tensor.dtype, f"{s.tensor}_tile").name
        if isinstance(value, TileValue) and not set(value.dims) <= set(dims):
            raise IllegalIRError(
                f"kernel {self.kernel.name} stores {s.src} to {s.tensor}", why="the index misses axes of it"
            )
        masks = self._indexing.masks(axes) + self._indexing.first(axes) + there
        self._out.append(tile.Store(s.tensor, address, masks, dims, src, adds=adds))

    def _stored(self, s: sg.Store) -> TileValue | float:
        """What is stored: a value, or a moment of it."""
        if not isinstance(s.src, str):
            return float(s.src)
        if s.moment is None or s.moment is sg.Moment.SQUARES:
            return self._values[s.src]
        moments = self._moments[s.src]
        if s.moment is sg.Moment.COUNT:
            count = self._deviations.number(moments.count)
            return TileValue(count, (), F32) if isinstance(count, str) else float(count)
        name = moments.mean if s.moment is sg.Moment.MEAN else moments.rest
        assert name is not None
        return TileValue(name, moments.dims, F32)


# Lowering of pointwise operations: element types of operands and result, and where a result is known to be zero.

_KEEPS_INTS = frozenset({"add", "mul", "neg", "abs", "maximum", "minimum", "where"})
# f(0) = 0
_KEEPS_ZERO = frozenset({"neg", "abs", "sqrt", "floor", "round", "sign", "tanh", "atan", "erf", "sin"})


@dataclass(frozen=True, slots=True)
class PointwiseRules:
    """The rules for one operation."""

    op: str  # the operation
    args: tuple[DType | float, ...]  # for each operand its element type, or the number that it is

    @property
    def wanted(self) -> tuple[DType, ...]:
        """The element type that each operand is brought to."""
        match self.op:
            case "and" | "or" | "not":
                return (DType.BOOL,) * len(self.args)
            case "where":
                return (DType.BOOL, *(self._common(self.args[1:]),) * 2)
            case "bitand":
                wide = DType.INT64 in self.args or not all(isinstance(a, DType) or _is_int(a) for a in self.args)
                return (DType.INT64 if wide else DType.INT32,) * len(self.args)
            case op if op in _KEEPS_INTS | COMPARISONS:
                common = self._common(self.args)
                # Comparing or adding truth values is done on integers.
                return (DType.INT32 if common is DType.BOOL else common,) * len(self.args)
            case _:
                return (DType.FLOAT32,) * len(self.args)

    @property
    def result(self) -> DType:
        """The element type of the result."""
        if OPS[self.op].boolean:
            return DType.BOOL
        return self.wanted[-1]

    def _common(self, args: Sequence[DType | float]) -> DType:
        types = [a for a in args if isinstance(a, DType)]
        numbers = [a for a in args if not isinstance(a, DType)]
        if types and all(t is DType.BOOL for t in types) and all(n in (0, 1) for n in numbers):
            return DType.BOOL
        if types and all(t in (*INTS, DType.BOOL) for t in types) and all(_is_int(n) for n in numbers):
            return DType.INT64 if DType.INT64 in types else DType.INT32
        return DType.FLOAT32

    @staticmethod
    def number(value: float, dtype: DType) -> float:
        """The number as an operand of that type: an int, a bool, or a float."""
        if dtype is DType.BOOL:
            return bool(value)
        return int(value) if dtype in INTS else float(value)

    def zero(self, args: Sequence[frozenset[Axis] | float]) -> frozenset[Axis]:
        """The axes outside of which the result is zero, given those of the operands (or the numbers they are)."""
        everything = frozenset(a for of in args if isinstance(of, frozenset) for a in of)
        of = [a if isinstance(a, frozenset) else everything if a == 0 else frozenset() for a in args]
        match self.op:
            case op if op in _KEEPS_ZERO:
                return of[0]
            case "mul":
                # Zero times what may be infinite is not zero.
                for this, other in ((0, 1), (1, 0)):
                    number = args[other]
                    if not isinstance(number, frozenset) and abs(number) < float("inf"):
                        return of[this]
                return of[0] & of[1]
            case "bitand":
                return of[0] | of[1]
            case "add" | "maximum" | "minimum":
                return of[0] & of[1]
            case "where":
                return of[1] & of[2]
            case _:
                return frozenset()


def _is_int(n: float) -> bool:
    return abs(n) <= INT32_MAX and n == int(n)
