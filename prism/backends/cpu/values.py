"""What the values of a tile program are on a CPU: lanes, element kinds, and which of them are only other names.

A tile's loop runs over what is inside its axis, so a mask that keeps a tile inside an axis holds everywhere and is
dropped, and so is what selects by it. A *lane set* is one `Offsets` statement: the elements of an axis that are at hand
between it and the end of its block. A value's lanes are those of its dimensions, in their order.

Rounding an operand of a matrix product to half precision is dropped, too: products are in float32 here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from prism.backends import tile
from prism.backends.tile import Affine, Size, Stmt, TileProgram
from prism.backends.tile_rewrite import accumulators
from prism.errors import IllegalIRError, UnsupportedError
from prism.ir.kit import defined, operands, statements
from prism.program.extents import Extent, add, mul
from prism.program.nodes import DType, ReduceKind, Tensor

KINDS: Mapping[DType, str] = {
    DType.FLOAT32: "f",
    DType.FLOAT16: "f",
    DType.BFLOAT16: "f",
    DType.INT64: "l",
    DType.INT32: "i",
    DType.INT16: "i",
    DType.INT8: "i",
    DType.UINT8: "i",
    DType.BOOL: "b",
}


@dataclass(frozen=True, slots=True)
class Lane:
    """The elements of an axis that are at hand."""

    name: str  # of the `Offsets`
    size: Size | None  # of the tile; None where it holds the whole axis
    extent: Extent  # of the axis
    start: Extent  # the first element


@dataclass(frozen=True, slots=True)
class LaneValue:
    """A value."""

    lanes: tuple[str, ...]  # names of its lanes
    kind: str  # f (float32), i (int32), l (int64) or b (a truth value)
    stmt: Stmt  # what defines it
    position: int  # of that statement, in the order of the program
    block: int  # the position of the loop whose body defines it; -1 outside of loops


@dataclass(frozen=True, slots=True)
class View:
    """Elements in memory: `offset` plus a stride times the place in each lane, from the start of a tensor."""

    tensor: str
    offset: Extent  # elements from its start, in scalars
    strides: Mapping[str, Extent]  # of each lane
    masks: tuple[str, ...] = ()  # names of what else must hold
    # Integer values that are added, each times a stride: places that data give.
    places: tuple[tuple[str, Extent], ...] = ()


@dataclass(frozen=True, slots=True)
class Product:
    """dst (+)= the sum over one lane of lhs*rhs."""

    dst: str  # the result
    lhs: str  # a factor
    rhs: str  # the other
    lane: str  # what is summed over
    into: bool  # whether it is added to an accumulator
    halves: bool = False  # whether the factors may be rounded to bfloat16
    added: tuple[tile.Operand, ...] = ()  # of factors that are bytes, what is added to each of them; empty for others
    bytes: tuple[DType, ...] = ()  # their types


@dataclass(slots=True)
class Values:
    """The values of a program."""

    program: TileProgram  # the tile program
    lanes: dict[str, Lane] = field(default_factory=dict)  # by name
    values: dict[str, LaneValue] = field(default_factory=dict)  # by name
    views: dict[str, View] = field(default_factory=dict)  # of loads
    places: dict[int, int] = field(default_factory=dict)  # position of each statement, by its identity
    ends: dict[int, int] = field(default_factory=dict)  # for each loop, by its position, the position after its body
    parents: dict[int, int] = field(default_factory=dict)  # for each loop, by its position, the loop that holds it
    accumulators: frozenset[str] = frozenset()
    _alias: dict[str, str] = field(default_factory=dict)
    _true: set[str] = field(default_factory=set)
    _scope: dict[tuple[str, int], str] = field(default_factory=dict)
    _tensors: dict[str, Tensor] = field(default_factory=dict)
    _count: int = 0

    @property
    def scalars(self) -> frozenset[str]:
        """Integers that are no tiles: grid and loop indices."""
        p = self.program
        names = {g.index for g in p.grid} | set(p.lengths) | {c.name for c in p.constants}
        for s in statements(p.body):
            if isinstance(s, tile.For):
                names.add(s.index)
            elif isinstance(s, tile.Scalar):
                names.add(s.dst)
        return frozenset(names)

    def run(self) -> None:
        """Fills everything in."""
        self._tensors = {t.name: t for t in self.program.tensors}
        self.accumulators = accumulators(self.program.body)
        self._round(self.program.body)
        self._block(self.program.body, -1)

    def resolve(self, name: str) -> str:
        """The value that a name means."""
        while name in self._alias:
            name = self._alias[name]
        return name

    def holds(self, mask: str) -> bool:
        """Whether a mask holds everywhere."""
        return mask in self._true

    def chosen(self, name: str) -> frozenset[str]:
        """Of a load, the lanes along which data say what is read: neighbours are anywhere."""
        return frozenset(n for place, _ in self.views[name].places for n in self.lanes_of(place))

    def lanes_of(self, name: str) -> tuple[str, ...]:
        """The lanes of a value, or of a scalar: none."""
        return self.values[name].lanes if name in self.values else ()

    def kind_of(self, name: str) -> str:
        """The kind of a value or scalar."""
        return self.values[name].kind if name in self.values else "i"

    def tensor(self, name: str) -> Tensor:
        """A tensor of the program."""
        return self._tensors[name]

    def _round(self, body: Sequence[Stmt]) -> None:
        """Which conversions to half precision are dropped: for stores, which convert, and for products."""
        users: dict[str, list[Stmt]] = {}
        for s in statements(body):
            for name in operands(s):
                users.setdefault(name, []).append(s)

        def unrounded(name: str) -> bool:
            for s in users.get(name, []):
                if isinstance(s, tile.Rearrange | tile.Select):
                    if not unrounded(s.dst):
                        return False
                elif not isinstance(s, tile.Dot | tile.Store):
                    return False
            return True

        for s in statements(body):
            if isinstance(s, tile.Cast) and s.dtype.is_half and unrounded(s.dst):
                self._alias[s.dst] = s.src

    def _block(self, body: Sequence[Stmt], block: int) -> None:
        outer = dict(self._scope)
        for s in body:
            place = self.places[id(s)] = self._count
            self._count += 1
            if isinstance(s, tile.For):
                self.parents[place] = block
                self._block(s.body, place)
                self.ends[place] = self._count
            else:
                self._statement(s, place, block)
        self._scope = outer

    def _statement(self, s: Stmt, place: int, block: int) -> None:
        def define(lanes: tuple[str, ...], kind: str) -> None:
            name = defined(s)
            assert name is not None
            self.values[name] = LaneValue(lanes, kind, s, place, block)

        match s:
            case tile.Offsets(dst, dim, axis, start):
                d = self.program.dim(dim)
                size: Size | None = d.sizes[axis]
                constant = next((c for c in self.program.constants if c.name == size), None)
                if isinstance(size, int) or (constant is not None and constant.symbol is None):
                    size = None
                self.lanes[dst] = Lane(dst, size, d.axes[axis].extent, start)
                self._scope[dim, axis] = dst
                define((dst,), "i")
            case tile.InBounds(dst, _, _, _, dims, size):
                if size is not None:
                    self._true.add(dst)
                else:
                    define(self._lanes(dims), "b")
            case tile.IndexValue(_, _, dims):
                define(self._lanes(dims), "i")
            case tile.Load(dst, tensor, offset, masks, dims, dtype):
                define(self._lanes(dims), KINDS[dtype])
                self.views[dst] = self.view(tensor, offset, masks)
            case tile.Full(_, _, dims, dtype):
                define(self._lanes(dims), KINDS[dtype])
            case tile.Cast(dst, src, dtype):
                source = self.resolve(src)
                if dst in self._alias and self.kind_of(source) == "f":
                    return
                self._alias.pop(dst, None)  # integers and truth values are converted, not rounded
                if KINDS[dtype] == self.kind_of(source) and not dtype.is_half:
                    self._alias[dst] = src
                    return
                define(self.lanes_of(source), KINDS[dtype])
            case tile.Copy(_, src):
                source = self.resolve(src)
                define(self.lanes_of(source), self.kind_of(source))
            case tile.Pointwise(_, _, _, dims, dtype):
                define(self._lanes(dims), KINDS[dtype])
            case tile.Select(dst, mask, src, _):
                if self.holds(mask):
                    self._alias[dst] = src
                    return
                source = self.resolve(src)
                define(self.lanes_of(source), self.kind_of(source))
            case tile.Reduce(_, _, src, dim):
                gone = self._lanes((dim,))
                define(tuple(n for n in self.lanes_of(self.resolve(src)) if n not in gone), "f")
            case tile.Dot(dst, lhs, rhs):
                if dst in self.values:
                    return
                one, other = (self.lanes_of(self.resolve(o)) for o in (lhs, rhs))
                mine = tuple(n for n in one if n not in other) + tuple(n for n in other if n not in one)
                define(mine, "i" if s.added else "f")
            case tile.Rearrange(dst, src, _):
                self._alias[dst] = src
            case tile.Prefix(dst):
                raise UnsupportedError(
                    f"the prefix sums {dst} within a tile",
                    where=f"C++ emission of {self.program.name}",
                    fix="give the summed axis tiles of one element",
                )

    def _lanes(self, dims: Sequence[str]) -> tuple[str, ...]:
        found: list[str] = []
        for joined in dims:
            for d in joined.split("*"):
                for n in range(len(self.program.dim(d).axes)):
                    if (d, n) not in self._scope:
                        raise IllegalIRError(
                            f"dimension {d} has no offsets at hand",
                            where=f"C++ emission of {self.program.name}",
                            fix="this is a bug in prism; please report it",
                        )
                    found.append(self._scope[d, n])
        return tuple(found)

    def view(self, tensor: str, offset: Affine, masks: Sequence[str]) -> View:
        """Where a load or store goes."""
        places = tuple((n, c) for n, c in offset.terms if self.is_place(n))
        total, strides = self.affine(replace(offset, terms=tuple(t for t in offset.terms if t not in places)))
        named = tuple((self.resolve(n), c) for n, c in places)
        return View(tensor, total, strides, tuple(m for m in masks if not self.holds(m)), named)

    def is_place(self, name: str) -> bool:
        """Whether a name in an address is a value that data give."""
        name = self.resolve(name)
        return name in self.values and not isinstance(self.values[name].stmt, tile.Offsets | tile.IndexValue)

    def affine(self, index: Affine) -> tuple[Extent, dict[str, Extent]]:
        """An index as a sum over scalars, and a stride for each lane."""
        total: Extent = index.offset
        strides: dict[str, Extent] = {}
        for name, coefficient in index.terms:
            if name in self.lanes:
                total = add(total, mul(coefficient, self.lanes[name].start))
                strides[name] = add(strides.get(name, 0), coefficient)
            elif name in self.values:
                inner = self.values[name].stmt
                if not isinstance(inner, tile.IndexValue):
                    raise IllegalIRError(f"{name} is no affine index", where=f"C++ emission of {self.program.name}")
                more, along = self.affine(inner.index)
                total = add(total, mul(coefficient, more))
                for lane, c in along.items():
                    strides[lane] = add(strides.get(lane, 0), mul(coefficient, c))
            else:
                total = add(total, mul(coefficient, tile.symbol(name)))
        return total, strides


def find_products(v: Values) -> tuple[dict[str, Product], set[str]]:
    """The matrix products: by name of the result; and the names that they make superfluous.

    `Dot` is one. So is the sum along a lane of a product of two values, when one of them has lanes that the other has
    not and is in memory as it stands: then it need not be held twice.
    """
    found: dict[str, Product] = {}
    gone: set[str] = set()
    everything = statements(v.program.body)
    uses: dict[str, int] = {}
    types: dict[str, DType | None] = {}
    for s in everything:
        match s:
            case tile.Cast(dst, _, dtype) | tile.Load(dst, _, _, _, _, dtype):
                types[dst] = dtype
            case tile.Rearrange(dst, src, _) | tile.Copy(dst, src) | tile.Select(dst, _, src, _):
                types[dst] = types.get(src)
        if defined(s) is not None and defined(s) in v._alias:
            continue
        for name in operands(s):
            uses[v.resolve(name)] = uses.get(v.resolve(name), 0) + 1
    for s in everything:
        match s:
            case tile.Dot(dst, lhs, rhs, _, added):
                one, other = v.resolve(lhs), v.resolve(rhs)
                shared = [n for n in v.lanes_of(one) if n in v.lanes_of(other)]
                halves = types.get(lhs) is types.get(rhs) is DType.BFLOAT16
                numbers = tuple(v.resolve(a) if isinstance(a, str) else a for a in s.added)
                made = Product(dst, one, other, shared[0], added == dst, halves, numbers, s.bytes)
                found[f"{dst}@{v.places[id(s)]}"] = made
            case tile.Reduce(dst, ReduceKind.SUM, src, _):
                terms = v.resolve(src)
                inner = v.values[terms].stmt if terms in v.values else None
                if not (isinstance(inner, tile.Pointwise) and inner.op == "mul" and uses.get(terms) == 1):
                    continue
                args = [v.resolve(a) for a in inner.args if isinstance(a, str)]
                (lane,) = (n for n in v.lanes_of(terms) if n not in v.lanes_of(dst))
                if len(args) != 2 or any(lane not in v.lanes_of(a) for a in args):
                    continue
                small, large = sorted(args, key=lambda a: len(v.lanes_of(a)))
                more = set(v.lanes_of(large)) - set(v.lanes_of(small))
                plain = large in v.views and not v.views[large].masks and not v.views[large].places
                if more and plain:
                    found[f"{dst}@{v.places[id(s)]}"] = Product(dst, small, large, lane, False)
                    gone.add(terms)
    return found, gone


def without_aliases(s: Stmt, v: Values) -> tuple[str, ...]:
    """The values that a statement reads, by their own names."""
    names = [v.resolve(n) for n in operands(s) if not v.holds(n)]
    if isinstance(s, tile.Load | tile.Store | tile.IndexValue | tile.InBounds):
        index = s.index if isinstance(s, tile.IndexValue | tile.InBounds) else s.offset
        named = {n for n, _ in index.terms}
        places = {v.resolve(n) for n in named if v.is_place(n)}
        names = [n for n in names if n not in named or n not in v.values or n in places]
    return tuple(names)
