"""The tile program: what one program instance of a kernel does to tiles, with no backend in it.

    module  ::= name; inputs, buffers, outputs (contiguous, row-major); programs in launch order; launches; folds;
                repeats
    repeat  ::= launches, adjacent, that run once for each step of a loop; trips; windows: tensors of a step
    fold    ::= split, combine: launches of one program each; a program of the first that is the last of those that
                differ in the last grid index alone may go on as the second's program of its place; sizes
    launch  ::= name; programs: one, or several that are launched at once, each with its part of the launch's grid;
                parameters: what all of them take, and what their shares of the grid depend on
    program ::= name; parameters: tensors, lengths (integers known at launch), constants (known at compile time);
                grid: (index, count) per axis, the first slowest, counted down perhaps, two of them in groups, or one
                of them in sections; dims; body
    dim     ::= name; one axis with the tile's size along it, or several axes packed, the last fastest
    stmt    ::= Scalar(dst, value)                          an integer
              | Offsets(dst, dim, axis, start)              int[dim]: start + 0, 1, ..., size - 1
              | InBounds(dst, index, high, low?)            bool: index < high (and low <= index)
              | IndexValue(dst, index)                      int: the value of an affine index
              | Load(dst, tensor, offset, masks, dtype, readers?)
                                                            0 where a mask does not hold
              | Full(dst, value, dtype)                     one value everywhere
              | Cast(dst, src, dtype, among?)               src is known to be among these integers
              | Copy(dst, src)                              keeps the present value of an accumulator
              | Pointwise(dst, op, args, dtype)             TILE_OPS
              | Select(dst, mask, src, otherwise)           src where the mask holds, else a number
              | Reduce(dst, kind, src, dim)                 over the whole of the dimension
              | Prefix(dst, src, dim, how, factor)          combined along the dimension up to each place
              | Dot(dst, lhs, rhs, precision, add)          [M, K] x [K, N], accumulated in float32; plus `add`
              | Rearrange(dst, src, groups)                 the dimensions in another order, or several taken as one
              | For(index, start, stop, step, body)         sequential; the accumulators are what was Full before it
              | Within(dst, index, low, high, src, body, value)
                                                            src while low <= index < high, else the value body makes
              | Update(acc, kind, src)                      acc := acc <kind> src; src alone without a kind
              | Store(tensor, offset, masks, src, write_only?, adds?)

Integers (offsets, starts, counts, bounds) are sympy expressions over lengths, constants, grid indices and loop
indices. A value's dimensions are a tuple of dim names; an operand may lack dimensions of the result, and is broadcast
along them: all dimension tuples of a program are in one order (results of Rearrange, and loads that only Dot uses,
excepted), so the place of the missing ones is known. Values are assigned once, except accumulators: names made by
`Full` that `Update`, or a `Dot` that adds to its own result, changes.

Element types are prism's DType: bool is a mask, int32 and int64 are index arithmetic, everything that is computed is
float32, and the storage types are for loads, stores and the operands of Dot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, TypeAlias

import sympy

from prism.ir import kit
from prism.ir.kit import Changed, Defined, Holds, Used
from prism.program.extents import Extent
from prism.program.index import Axis
from prism.program.nodes import DType, ReduceKind, Tensor
from prism.program.ops import OPS, Op
from prism.program.prefix import SO_FAR, Recurrence
from prism.sgraph.nodes import Window

Size: TypeAlias = int | str
"""The elements of a tile along an axis: a number, or the name of a constant."""

Operand: TypeAlias = str | float
Dims: TypeAlias = tuple[str, ...]
Integer: TypeAlias = Annotated[Extent, Holds.INTEGER]


TILE_OPS: Mapping[str, Op] = MappingProxyType(
    {**OPS, "div": Op(2, 4), "exp2": Op(1, 4), "shift": Op(2), "bits": Op(2), "down": Op(2)}
)
"""The operations of Pointwise: those of programs, and what backends have besides.

Lowering makes div (quotients.py), and down, the largest multiple of a power of 2 that is not above an integer;
exponents.py exp2; codes.py, of integers, shift (to the right, by a number) and bits (those that a number has).
"""


class Precision(StrEnum):
    """How a Dot treats float32 operands."""

    IEEE = "ieee"
    TF32 = "tf32"


class Adds(StrEnum):
    """Who adds to the elements that a store adds to."""

    ALONE = "alone"
    SHARED = "shared"
    """Other programs may at the same time."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A compile-time parameter, and how the host computes it.

    The value is `symbol` of the configuration or, without one, the least power of two that holds `extent`; in both
    cases at least `least`.
    """

    name: str
    symbol: str | None = None
    extent: Extent | None = None
    least: int = 1


@dataclass(frozen=True, slots=True)
class GridAxis:
    """One factor of the launch grid: the scalar `index` runs over 0..count-1, from above when it is `reversed`."""

    index: str
    count: Extent
    reversed: bool = False


@dataclass(frozen=True, slots=True)
class Groups:
    """How programs are numbered along two neighbouring grid axes: in groups of `size` along the slow one.

    Within a group the slow index changes first, so that programs with numbers close to each other have the slow axis'
    tiles, and a few of the fast axis', in common. The last group may hold fewer.
    """

    slow: str
    fast: str
    size: int


@dataclass(frozen=True, slots=True)
class Sections:
    """How programs are numbered where one axis of the grid decides how long they run.

    What the other axes have, all of them as one, is taken in sections: so many at a time as make at least `programs`
    programs. Within a section `index` changes last, so that all of one length follow each other. The last section may
    hold fewer.
    """

    index: str
    programs: int


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of tiles: the axes packed in it, the last fastest, with the tile's size along each."""

    name: str
    axes: tuple[Axis, ...]
    sizes: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Affine:
    """sum(coefficient * value) + offset, over names of integer values; `wide` asks for 64-bit arithmetic."""

    terms: tuple[tuple[Used, Integer], ...]
    offset: Integer = 0
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Scalar:
    """dst = an integer expression."""

    dst: Defined
    value: Integer


@dataclass(frozen=True, slots=True)
class Offsets:
    """dst[dim] = start + the position along axis number `axis` of the dimension."""

    dst: Defined
    dim: str
    axis: int
    start: Integer


@dataclass(frozen=True, slots=True)
class InBounds:
    """dst = low <= index < high; a bound that is None is not checked.

    `tile` is set when the index is the offsets of one tile and `low` is None: the check holds for every element when
    `tile` divides `high`.
    """

    dst: Defined
    index: Affine
    high: Integer | None
    low: Integer | None
    dims: Dims
    tile: Size | None = None


@dataclass(frozen=True, slots=True)
class IndexValue:
    """dst = the value of an affine index."""

    dst: Defined
    index: Affine
    dims: Dims


@dataclass(frozen=True, slots=True)
class Load:
    """dst = tensor at `offset` elements from its start, as `dtype`; 0 where a mask does not hold.

    `readers` is for caches: the grid indices along which programs read the same elements; none where every element is
    read by one program once. It is None where nothing is known, and where a program reads elements several times.
    So is `run`: how many elements of the tile lie side by side in memory, at least.
    """

    dst: Defined
    tensor: Annotated[str, Holds.TENSOR]
    offset: Affine
    masks: tuple[Used, ...]
    dims: Dims
    dtype: DType
    readers: tuple[str, ...] | None = None
    run: Integer = 1


@dataclass(frozen=True, slots=True)
class Full:
    """dst = one number everywhere; an accumulator when it is updated later."""

    dst: Defined
    value: float
    dims: Dims
    dtype: DType


@dataclass(frozen=True, slots=True)
class Cast:
    """dst = src as dtype; to bool: src != 0.

    `among` is set where src is an integer that is known to lie between two, both included, and `dtype` a float.
    """

    dst: Defined
    src: Used
    dtype: DType
    among: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """dst = the present value of an accumulator."""

    dst: Defined
    src: Used


@dataclass(frozen=True, slots=True)
class Pointwise:
    """dst = op(args...), broadcast to `dims`."""

    dst: Defined
    op: str
    args: tuple[Annotated[Operand, Holds.USES], ...]
    dims: Dims
    dtype: DType


@dataclass(frozen=True, slots=True)
class Select:
    """dst = src where the mask holds, else `otherwise`."""

    dst: Defined
    mask: Used
    src: Used
    otherwise: float


@dataclass(frozen=True, slots=True)
class Reduce:
    """dst = the reduction of src along the whole of one of its dimensions."""

    dst: Defined
    kind: ReduceKind
    src: Used
    dim: str


@dataclass(frozen=True, slots=True)
class Prefix:
    """dst = src combined over the places of one of its dimensions up to each place, or from each place on.

    With a factor, what comes from the place before is multiplied by it: dst[n] = factor[n]*dst[n-1] + src[n]. To an
    extreme it is added: dst[n] = max(factor[n] + dst[n-1], src[n]).
    """

    dst: Defined
    src: Used
    dim: str
    how: Recurrence = SO_FAR  # from place to place; what leaves out each place's own src is no sum
    factor: Used | None = None  # there where `how` has factors


@dataclass(frozen=True, slots=True)
class Dot:
    """dst[M, N] = lhs[M, K] @ rhs[K, N] + add, in float32; `dst` may be `add`, an accumulator.

    With numbers that are `added` to the elements of either factor, factors are `bytes` of these types, in memory or as
    whole float32 numbers, and the product is in int32.
    """

    dst: Defined
    lhs: Used
    rhs: Used
    precision: Precision = Precision.IEEE
    add: Used | None = None
    added: tuple[Annotated[Operand, Holds.USES], ...] = ()
    bytes: tuple[DType, ...] = ()


@dataclass(frozen=True, slots=True)
class Rearrange:
    """dst = src with its dimensions in the order of `groups`, each group taken as one dimension or left apart.

    A group of several names becomes one dimension called by the names joined with `*`; a dimension of src that is
    called so is taken apart again by naming its parts in groups of their own.
    """

    dst: Defined
    src: Used
    groups: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class For:
    """The body for index = start, start + step, ... below stop."""

    index: Annotated[str, Holds.BINDS]
    start: Integer
    stop: Integer
    step: Integer
    body: tuple[Annotated[Stmt, Holds.BODY], ...]


@dataclass(frozen=True, slots=True)
class Within:
    """dst = src while low <= index < high, else `value`, which the body makes: what is equal to src in between.

    `index` is a scalar; a bound that is None is not checked. The body holds no loop, no store and no update.
    """

    dst: Defined
    index: Annotated[str, Holds.SCALAR]
    low: Integer | None
    high: Integer | None
    src: Used
    body: tuple[Annotated[Stmt, Holds.BODY], ...]
    value: Used


@dataclass(frozen=True, slots=True)
class Update:
    """acc := acc <kind> src; `prod` rescales. None is no combination: acc := src."""

    acc: Changed
    kind: ReduceKind | None
    src: Used


@dataclass(frozen=True, slots=True)
class Store:
    """tensor at `offset` elements from its start = src, where the masks hold; `dims` are those of the address.

    `write_only` is for caches: no program of the module reads the tensor; and `run`, as of a load. A store that `adds`
    adds src to what is there; elements of one tile may go to one place.
    """

    tensor: Annotated[str, Holds.TENSOR]
    offset: Affine
    masks: tuple[Used, ...]
    dims: Dims
    src: Annotated[Operand, Holds.USES]
    write_only: bool = False
    run: Integer = 1
    adds: Adds | None = None


Stmt: TypeAlias = (
    Scalar
    | Offsets
    | InBounds
    | IndexValue
    | Load
    | Full
    | Cast
    | Copy
    | Pointwise
    | Select
    | Reduce
    | Prefix
    | Dot
    | Rearrange
    | For
    | Within
    | Update
    | Store
)


@dataclass(frozen=True, slots=True)
class TileProgram:
    """One kernel; see the module's grammar."""

    name: str
    tensors: tuple[Tensor, ...]
    lengths: tuple[str, ...]
    constants: tuple[Constant, ...]
    grid: tuple[GridAxis, ...]
    dims: tuple[Dim, ...]
    body: tuple[Stmt, ...]
    groups: Groups | None = None
    sections: Sections | None = None

    def dim(self, name: str) -> Dim:
        """The dimension of that name. Raises KeyError: there is none."""
        for d in self.dims:
            if d.name == name:
                return d
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class TileLaunch:
    """Tile programs that are launched at once: the grid is theirs laid end to end, in order."""

    name: str  # the program's, where there is one
    programs: tuple[TileProgram, ...]  # what is launched
    tensors: tuple[Tensor, ...]  # parameters, as in TileProgram; so are the following
    lengths: tuple[str, ...]  # names of integers known at launch
    constants: tuple[Constant, ...]  # known at compile time


@dataclass(frozen=True, slots=True)
class TileFold:
    """Two launches that may be one: the last program of each tile of the first goes on as one of the second.

    The grid of `split` is that of `combine` and, last, the parts. The programs of a tile, which differ in the part
    alone, count their arrivals; the last to arrive sees what all of them stored, and runs `combine` at the tile.
    """

    split: str  # the launch whose programs store parts
    combine: str  # the launch that reads them
    # What stands for the constants of `combine` that size its grid's tiles: constants of `split`, or numbers.
    sizes: tuple[tuple[str, Size], ...]


@dataclass(frozen=True, slots=True)
class TileRepeat:
    """Launches that run once for each step of a loop, one step after the other."""

    launches: tuple[str, ...]  # their names, adjacent in order
    trips: Extent  # how many steps
    windows: tuple[Window, ...]  # the tensors of a step, each at a place of one around the loop
    reverse: bool  # whether the first step is at the last place

    @property
    def lengths(self) -> tuple[str, ...]:
        """The names of integers that the places of windows depend on."""
        extents = (self.trips, *(e for w in self.windows for e in w.tensor.shape))
        return tuple(sorted({n for e in extents for n in scalars(e)}))


@dataclass(frozen=True, slots=True)
class TileModule:
    """The tile programs of an sGraph, in launch order, and the tensors they exchange."""

    name: str  # the program's name
    inputs: tuple[Tensor, ...]  # what the caller passes
    buffers: tuple[Tensor, ...]  # allocated for one call; a dimension may be a symbol of the configuration
    outputs: tuple[Tensor, ...]  # what the caller gets
    launches: tuple[TileLaunch, ...]  # in order
    # Names of the configuration's symbols, as the configuration spells them.
    symbols: tuple[str, ...] = field(default=())
    folds: tuple[TileFold, ...] = ()  # launches that may be part of another one, as the configuration says
    repeats: tuple[TileRepeat, ...] = ()  # the steps of loops
    # The launches that run once for weights that stay as they are, before any call (`SGraph.prepared`).
    before: frozenset[str] = frozenset()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The inputs, buffers and outputs, and the windows of steps."""
        return (*self.inputs, *self.buffers, *self.outputs, *(w.tensor for r in self.repeats for w in r.windows))

    def over(self, of: Callable[[TileProgram], TileProgram]) -> TileModule:
        """The module with every program as a pass makes it."""
        launches = (replace(x, programs=tuple(map(of, x.programs))) for x in self.launches)
        return replace(self, launches=tuple(launches))

    @property
    def prepared(self) -> tuple[TileLaunch, ...]:
        """The launches that run before any call, in order."""
        return tuple(x for x in self.launches if x.name in self.before)

    def orderless(self, how: Collection[Adds]) -> bool:
        """Whether numbers that rounding tells apart are added up in such ways, so in no fixed order."""
        floats = {t.name for t in self.tensors if t.dtype.is_float}
        return any(
            isinstance(s, Store) and s.adds in how and s.tensor in floats
            for p in self.programs
            for s in kit.statements(p.body)
        )

    @property
    def kept(self) -> tuple[Tensor, ...]:
        """The buffers that these store; they outlive calls."""
        stored = {
            s.tensor for x in self.prepared for p in x.programs for s in kit.statements(p.body) if isinstance(s, Store)
        }
        return tuple(b for b in self.buffers if b.name in stored)

    @property
    def exchanged(self) -> tuple[Tensor, ...]:
        """The other buffers: what the launches of one call exchange."""
        kept = {b.name for b in self.kept}
        return tuple(b for b in self.buffers if b.name not in kept)

    @property
    def fixed(self) -> tuple[Tensor, ...]:
        """The inputs that these launches read: weights."""
        read = {t.name for x in self.prepared for t in x.tensors}
        return tuple(t for t in self.inputs if t.name in read)

    @property
    def lengths(self) -> tuple[str, ...]:
        """The names of integers known at launch, of all launches and steps."""
        own = {n for launch in self.launches for n in launch.lengths}
        return tuple(sorted(own.union(*(r.lengths for r in self.repeats))))

    @property
    def order(self) -> tuple[TileLaunch | TileRepeat, ...]:
        """Launches that a call runs once, and steps, in order."""
        first = {r.launches[0]: r for r in self.repeats}
        inside = {name for r in self.repeats for name in r.launches}
        return tuple(
            first.get(launch.name, launch)
            for launch in self.launches
            if launch.name in first or (launch.name not in inside and launch.name not in self.before)
        )

    def within(self, repeat: TileRepeat) -> tuple[TileLaunch, ...]:
        """The launches of a step."""
        return tuple(launch for launch in self.launches if launch.name in repeat.launches)

    @property
    def programs(self) -> tuple[TileProgram, ...]:
        """The programs of all launches, in order."""
        return tuple(p for launch in self.launches for p in launch.programs)


_OWN = """
CONFIGS SYMBOLS args arrived at choose config ctypes descriptors folded given graph grid kernel launches library load
math meta np os out persistent pid replay stages step symbols threads tiles tl torch triton warps
all any bool dict float getattr hasattr int isinstance iter len list map max next range sorted str tuple type zip
"""
HELPERS = frozenset({
    "arctangent", "growing_maximum", "growing_maximum_of_two", "growing_minimum", "growing_minimum_of_two", "larger",
    "maximum_before", "maximum_of_two", "minimum_before", "minimum_of_two", "multiply", "power", "product_before",
    "product_of_two", "recurrence", "recurrence_of_two", "round_half_even", "sign", "smaller", "tanh",
})  # fmt: skip
"""What emitted modules may define beside their kernels (triton/emit_helpers.py)."""
OWN = frozenset(_OWN.split())
"""What emitted Python calls its own, in all modules."""
RESERVED = OWN | HELPERS
"""What emitted Python calls its own: a length, or an entry, of that name would hide it."""


def identifier(name: str, reserved: frozenset[str] = RESERVED) -> str:
    """The name as a legal identifier that is not reserved: symbols of sGraphs may hold dots."""
    text = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    text = text if text and not text[0].isdigit() else f"_{text}"
    return f"{text}_" if text in reserved else text


def symbol(name: str) -> sympy.Symbol:
    """A scalar of a tile program (length, constant, grid or loop index) in integer expressions."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


def integers(s: Stmt) -> frozenset[str]:
    """The names of the scalars in a statement's integer expressions (those of a loop's body not included)."""
    expressions = kit.parts(s, Holds.INTEGER)
    return frozenset(name for e in expressions for name in scalars(e)).union(kit.names(s, Holds.SCALAR))


def scalars(expression: Extent) -> frozenset[str]:
    """The names in an integer expression."""
    if isinstance(expression, int):
        return frozenset()
    return frozenset(identifier(str(s)) for s in expression.free_symbols)
