"""The sGraph: a hierarchical graph of kernels over tiles whose sizes are unbound sympy symbols.

    sgraph ::= kernels in launch order; tensors they exchange (buffers); symbols, unbound; kernels launched together
    kernel ::= a role for each axis, and a body
    role   ::= Grid(T)      one tile of size T a program; T = 1 drops the dimension from the tile
             | Loop(T)      a sequential loop over tiles of size T; T = 1 as for Grid
             | Whole()      the entire axis in one tile
             | Split(S, T)  S programs share the axis, each loops over its chunk in tiles of size T
    stmt   ::= Load(dst, tensor, index)            a tile, read from memory
             | Gather(dst, tensor, index, places)  the same at places along some dimensions that values give
             | Position(dst, index)                the values of an index, as numbers
             | Pointwise(dst, op, args)            ops as in prism.program.ops; args are names or numbers
             | TileReduce(dst, kind, axis, src, moments)  over the part of the axis that the tile holds
             | Contract(dst, axis, lhs, rhs)       sum over the tile's part of the axis of lhs*rhs: a matrix product
             | Loop(axis, body, range, gap)        over the tiles of the axis (of the program's chunk of it, if split)
             | Accumulate(dst, kind, src, shift)   dst := dst <combine> src, from the kind's identity before the loop
             | Scan(dst, axis, src, growth, how)    src combined along the axis, which may decay on the way
             | Store(tensor, index, src, moment, places)     with places, src is added to what is there

A tile has one dimension per axis that its value depends on, except Grid(1) and Loop(1) axes. Inside the loop and after
its `Accumulate`, the accumulator's name means its running value; after the loop, its final value.

A *rescaled* accumulator is `Accumulate(dst, "sum", src, shift=m)` where `m` is an accumulator of the same loop that was
updated earlier in the body, and src is a tile sum of exp(a - m)*f, with neither a nor f depending on m. When m moves
from m to m', dst is multiplied by exp(m - m') before src is added; so after each tile dst is the sum of exp(a - m')*f
over what was seen, and after the loop it is what a second pass with the final m would have computed (the online
softmax of Milakov & Gimelshein 2018, for any loop-carried shift). The tile may have further axes, of which it holds
all, and src be the sum over these, too: m is over all of them then.

A *statistic* is a kind of tile reduction that is no reduction of programs. `TileReduce(dst, "deviations", axis, src)`
is the sum over the axis of (src - mean)^2, the mean that of src over the axis. In a loop over the axis it is of no use
but to an accumulator of that kind, which merges the tile's count, mean and sum of squares with those of tiles before
(Chan, Golub & LeVeque 1979): after the loop it is what a second pass with the mean of all would have computed. The kind
"merged" merges statistics along an axis, as they are over others: the sum over all of these axes of (src - mean)^2.

Of a statistic over a program's part of a split axis the *moments* are stored, one a `Store`: what a later kernel merges
over all parts, as `TileReduce(dst, "merged", part, squares, (counts, means, rests))`. Parts differ in how many elements
they have, and may have none; then all their moments are 0.

A *scan* along a loop's axis stands in that loop, and in none inside it: the sum of the tiles so far is added to the
prefix sums within the tile. It is a value of its iteration like any other, and the axis may be one of the output's, so
that the loop stores it. Along a whole axis it needs no loop.

A scan with a *growth* g is a linear recurrence: what is summed so far is multiplied by exp(g) before src is added, so
at each place n it is the sum over m <= n of exp(g[m+1] + ... + g[n])*src[m]. Where g <= 0 it decays. The exponential of
one place's g is all that is computed, and what is carried is a value of the result. Where that overflows it stays
infinite, though later places may have forgotten it: so g has to be known not to grow (see prism.sgraph.numerics). What
g is at the first place is multiplied by nothing, and left out.
A growth may be the factor itself, of any sign and also 0, as what an episode that has ended carries on: then the result
is the sum over m <= n of g[m+1]*...*g[n]*src[m].
A *rescaled* scan has a running maximum for its growth: a scan of the same loop, m, and src is exp(a - m)*f. As with an
accumulator, what is summed so far is multiplied by exp(m - m') where m moves to m', so at each place it is the sum of
exp(a - m)*f up to there, with the m of that place. No factor is more than 1.
To an extreme a growth is added: max(m + g, src), the maximum over m <= n of g[m+1] + ... + g[n] + src[m]. Of what is
rescaled by such a maximum the factor is exp(m + g - m'), so the sum decays as the maximum does: at each place it is
that of exp(a + what has been added since - m)*f.
*before* leaves out a place's own src, and its own g: the sum up to the place before, rescaled by the maximum up to
there. *back* goes from the last place to the first; a loop's scans all go one way.

A *gather* of places p is, for an axis k that is bound there, sum_k where(k == p, tensor[..., k, ...], 0).

A tensor may have several *stores*, of pieces side by side along one dimension: each stored once, all of them covered.
Their axes are named after the axis that they are pieces of (see prism.program.pieces).

A store with *places* p adds: for an axis k along the dimension of p, an element at k gains the sum of src over all
places of the axes that the index lacks at which p == k. An earlier kernel has stored what it is added to, all of it;
what is no place of the dimension is added nowhere. One element may be added to by several programs, in any order.

The *range* of a loop is affine conditions: a tile on which one of them is negative everywhere is not visited. Such a
tile would leave every accumulator as it was (see prism.sgraph.ranges), so a range changes the cost and no value.

`Split(S, T)` leaves a value per part: an axis of extent S whose name ends in ".part", the program's own, over which a
later kernel reduces. Names of values are unique in a kernel.

A kernel is a launch of its own unless it is in a group of `together`: independent kernels in one launch, whose programs
are divided among them by program id (horizontal fusion). What they compute is the same either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, TypeAlias

import sympy

from prism.ir import kit
from prism.ir.kit import Changed, Defined, Holds, Used, defined, parts, sources
from prism.program.extents import Extent, is_static
from prism.program.index import Axis, Index
from prism.program.nodes import DType, ReduceKind, Tensor
from prism.program.prefix import SO_FAR, Recurrence


class Statistic(StrEnum):
    """Kinds of tile reductions whose results over two tiles do not determine the one over both."""

    DEVIATIONS = "deviations"
    MERGED = "merged"


class Moment(StrEnum):
    """What has to be known of a statistic to merge it with others; a mean is a sum of two terms."""

    SQUARES = "squares"
    COUNT = "count"
    MEAN = "mean"
    REST = "rest"


Kind: TypeAlias = ReduceKind | Statistic
Operand: TypeAlias = str | float
Tile: TypeAlias = "sympy.Symbol | int"
Affine: TypeAlias = Annotated[Index, Holds.INDEX]

_INFIX: Mapping[str, str] = {"add": "+", "mul": "*", "lt": "<", "le": "<=", "eq": "==", "and": "and", "or": "or"}
_COMBINE: Mapping[str, str] = {
    **{"sum": "+=", "prod": "*=", "max": "max=", "min": "min="},
    **dict.fromkeys(Statistic, "merges"),
}


@dataclass(frozen=True, slots=True)
class Grid:
    """One tile of size `tile` per program; `tile` is a symbol, or the number 1."""

    tile: Tile


@dataclass(frozen=True, slots=True)
class LoopRole:
    """A sequential loop over tiles of size `tile`; with the number 1, a tile has no dimension for the axis."""

    tile: Tile


@dataclass(frozen=True, slots=True)
class Whole:
    """The entire axis in one tile."""

    @property
    def tile(self) -> None:
        """None: as long as the axis."""


@dataclass(frozen=True, slots=True)
class Split:
    """`parts` programs share the axis; each loops over its chunk in tiles of size `tile`."""

    parts: sympy.Symbol
    tile: Tile


Role: TypeAlias = Grid | LoopRole | Whole | Split


@dataclass(frozen=True, slots=True)
class Load:
    """dst = tensor[index...], one tile; the index is affine in the kernel's axes."""

    dst: Defined
    tensor: Annotated[str, Holds.TENSOR]
    index: tuple[Affine, ...]

    def __str__(self) -> str:
        return f"{self.dst} = {self.tensor}[{_listed(self.index)}]"


@dataclass(frozen=True, slots=True)
class Place:
    """Where along a dimension a gather reads, or a store adds: the index there, plus a value."""

    value: Used  # a whole number below the extent and not negative, or else nothing is read, or added
    dimension: int  # of the tensor; the index there has no axes
    # What the value is a place of. What is added stays within the dimension; as with a load, nothing that counts is
    # read outside of it.
    extent: Annotated[Extent, Holds.INTEGER]


@dataclass(frozen=True, slots=True)
class Gather:
    """dst = tensor[index...] with the places added to their dimensions, one tile; 0 where that is no place of it."""

    dst: Defined
    tensor: Annotated[str, Holds.TENSOR]
    index: tuple[Affine, ...]
    places: tuple[Place, ...]

    def __str__(self) -> str:
        return f"{self.dst} = {self.tensor}[{_at_places(self.index, self.places)}]"


@dataclass(frozen=True, slots=True)
class Position:
    """dst = the value of an affine index, as a number."""

    dst: Defined
    index: Affine

    def __str__(self) -> str:
        return f"{self.dst} = @({self.index})"


@dataclass(frozen=True, slots=True)
class Pointwise:
    """dst = op(args...), broadcast over the union of the arguments' axes."""

    dst: Defined
    op: str
    args: tuple[Annotated[Operand, Holds.USES], ...]

    def __str__(self) -> str:
        args = [_operand(a) for a in self.args]
        if self.op in _INFIX and len(args) == 2:
            return f"{self.dst} = {args[0]} {_INFIX[self.op]} {args[1]}"
        return f"{self.dst} = {self.op}({_listed(args)})"


@dataclass(frozen=True, slots=True)
class TileReduce:
    """dst = the reduction of src over the tile's part of the axis."""

    dst: Defined
    kind: Kind
    axis: Annotated[Axis, Holds.AXIS]
    src: Used
    # Of the parts of a split, whose sums of squares are src: counts, means, and what is added to these.
    moments: tuple[Used, ...] = ()

    def __str__(self) -> str:
        return f"{self.dst} = {self.kind.value}_{self.axis} {_listed((self.src, *self.moments))}"


@dataclass(frozen=True, slots=True)
class Contract:
    """dst = sum over the tile's part of the axis of lhs * rhs; both operands have the axis."""

    dst: Defined
    axis: Annotated[Axis, Holds.AXIS]
    lhs: Used
    rhs: Used

    def __str__(self) -> str:
        return f"{self.dst} = sum_{self.axis} {self.lhs} * {self.rhs}"


@dataclass(frozen=True, slots=True)
class Loop:
    """The body, once per tile of the axis; its accumulators start from their kind's identity."""

    axis: Annotated[Axis, Holds.AXIS]  # a loop axis, or a split one
    body: tuple[Annotated[Stmt, Holds.BODY], ...]  # the statements
    # Conditions `index >= 0`, over the loop's axis, grid axes and the axes of enclosing loops. A tile is visited when
    # of those that bound the axis from above, and of those from below, one at least holds for some element of it and
    # some of the program's tiles of the others; all are where one without the axis holds. Where none bounds the axis,
    # all tiles are visited or none: what the loop accumulates is looked at under these alone.
    range: tuple[Affine, ...] = ()
    # Further conditions on the axis, of which one has to hold in the same way: of those that bound it from above before
    # the gap, of the others behind it. As all places before it and a window see each other.
    gap: tuple[Affine, ...] = ()

    @property
    def skips(self) -> bool:
        """Whether there may be tiles that it does not visit."""
        return bool(self.range or self.gap)

    @property
    def everywhere(self) -> tuple[Index, ...]:
        """The conditions without the axis: where one of them holds all tiles are visited."""
        return tuple(c for c in self.range if not c.slope(self.axis))

    @property
    def all_or_none(self) -> bool:
        """Whether a program visits all tiles or none."""
        return bool(self.range) and not self.gap and len(self.everywhere) == len(self.range)

    @property
    def back(self) -> bool:
        """Whether its tiles come from the last to the first, as its scans go."""
        return any(isinstance(s, Scan) and s.how.back for s in self.body)

    @property
    def sides(self) -> tuple[tuple[Index, ...], ...]:
        """Conditions of each of which one has to hold: those from above, those from below, and those of the gap."""
        found = sides(self.range, self.axis)
        return (*found, (*self.gap, *self.everywhere)) if self.gap else found

    @property
    def bounds(self) -> list[str]:
        """Its sides as bounds of the axis."""
        return [" or ".join(_bound(c, self.axis) for c in side) for side in self.sides]

    @property
    def heading(self) -> str:
        """Over what it goes, and which tiles it visits."""
        bounds = f" with {' and '.join(self.bounds)}" if self.skips else ""
        return f"for tiles of {self.axis}{bounds}"

    def __str__(self) -> str:
        return "\n".join([f"{self.heading}:", *_indented(self.body)])


@dataclass(frozen=True, slots=True)
class Accumulate:
    """dst = dst <kind> src, first rescaled by exp(old shift - new shift) when there is a shift; statistics merge.

    A minimum with a shift, of places where that extreme is met, begins anew where the extreme is another one.
    """

    dst: Changed
    kind: Kind
    src: Used
    shift: Used | None = None

    def __str__(self) -> str:
        how = "rescaled by" if self.kind is ReduceKind.SUM else "anew with"
        rescaled = f", {how} {self.shift}" if self.shift is not None else ""
        return f"{self.dst} {_COMBINE[self.kind.value]} {self.src}{rescaled}"


@dataclass(frozen=True, slots=True)
class Scan:
    """dst = for each place of the axis, src combined over the places up to it."""

    dst: Defined
    axis: Annotated[Axis, Holds.AXIS]  # a whole axis, or that of the loop that the scan stands in
    src: Used  # what is combined; has the axis
    # The logarithm of what the sum up to the place before is multiplied by, or that itself, or what it is rescaled by,
    # or what is added to an extreme, over axes of src; None where there is nothing.
    growth: Annotated[Operand, Holds.USES] | None = None
    how: Recurrence = SO_FAR  # from place to place

    def __str__(self) -> str:
        grown = ""
        if self.growth is not None:
            by = "plus " if self.how.kind.is_extreme else "times " if self.how.factors else "times exp "
            grown = f", rescaled by {self.growth}" if self.how.rescaled else f", {by}{_operand(self.growth)} a place"
        back = " from the end" * self.how.back
        kind = "summed" if self.how.kind is ReduceKind.SUM else f"{self.how.kind.value} taken"
        return (
            f"{self.dst} = {self.src} {kind} over {self.axis}{back} {'before' if self.how.before else 'so far'}{grown}"
        )


@dataclass(frozen=True, slots=True)
class Store:
    """tensor[index...] = src. Along a grid axis that the index does not mention, only the first program stores."""

    tensor: Annotated[str, Holds.TENSOR]
    index: tuple[Affine, ...]
    src: Annotated[Operand, Holds.USES]
    # What of src is stored, where that is a statistic over a program's part of a split axis. Its count has no axis but
    # the part.
    moment: Moment | None = None
    places: tuple[Place, ...] = ()  # where along dimensions at which the index is 0 it is added to what is there

    def __str__(self) -> str:
        of = "" if self.moment is None else f", {self.moment.value}"
        how = "+=" if self.places else "="
        return f"{self.tensor}[{_at_places(self.index, self.places)}] {how} {_operand(self.src)}{of}"


Stmt: TypeAlias = Load | Gather | Position | Pointwise | TileReduce | Contract | Loop | Accumulate | Scan | Store


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch, or the part of one (see `SGraph.together`)."""

    name: str  # a legal identifier, unique in the sGraph
    # Every axis that the body mentions (also `.part` axes that a second stage reduces) with its role, in grid order:
    # the first grid axis varies slowest. A split axis `k` puts `k.part` on the grid, last.
    roles: tuple[tuple[Axis, Role], ...]
    body: tuple[Stmt, ...]  # the statements, in order
    # The type of 16 bits that operands of matrix products have in the program as it is written, and so here
    # (`products.operands_type`); None where they have that of what they are computed from.
    operands: DType | None = None
    _every: tuple[Stmt, ...] | None = field(default=None, init=False, repr=False, compare=False)

    def role(self, axis: Axis) -> Role:
        """The axis' role. Raises KeyError: the kernel does not have the axis."""
        for a, r in self.roles:
            if a == axis:
                return r
        raise KeyError(axis.name)

    @property
    def symbols(self) -> tuple[sympy.Symbol, ...]:
        """The unbound symbols, in the order of the roles."""
        found: dict[sympy.Symbol, None] = {}
        for _, role in self.roles:
            match role:
                case Grid(tile) if isinstance(tile, sympy.Symbol):
                    found[tile] = None
                case LoopRole(tile) if isinstance(tile, sympy.Symbol):
                    found[tile] = None
                case Split(parts, tile):
                    found[parts] = None
                    found |= {tile: None} if isinstance(tile, sympy.Symbol) else {}
        for axis, _ in self.roles:
            if isinstance(axis.extent, sympy.Symbol) and axis.name.endswith(".part"):
                found[axis.extent] = None
        return tuple(found)

    def statements(self) -> tuple[Stmt, ...]:
        """All statements, a loop before its body."""
        every = self._every
        if every is None:
            every = tuple(kit.statements(self.body))
            object.__setattr__(self, "_every", every)
        return every

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that the kernel loads, gathers from or adds to, each once, in order."""
        read = (s for s in self.statements() if isinstance(s, Load | Gather) or (isinstance(s, Store) and s.places))
        return tuple(dict.fromkeys(s.tensor for s in read))

    @property
    def tensors(self) -> frozenset[str]:
        """All that it loads from or stores to."""
        return frozenset((*self.reads, *self.writes))

    @property
    def writes(self) -> tuple[str, ...]:
        """The tensors that the kernel stores, in order."""
        return tuple(dict.fromkeys(s.tensor for s in self.statements() if isinstance(s, Store)))

    def added_along(self, store: Store) -> frozenset[Axis]:
        """The axes that a store with places sums over: those of what it adds, and where, that its index lacks."""
        axes = value_axes(self)
        return frozenset(a for n in sources(store) for a in axes[n]) - {a for i in store.index for a in i.axes()}

    def shares(self, store: Store) -> bool:
        """Whether several programs may add to the same elements by a store with places."""
        return any(isinstance(self.role(a), Grid) and a.extent != 1 for a in self.added_along(store))

    @property
    def additions(self) -> tuple[Store, ...]:
        """The stores with places."""
        return tuple(s for s in self.statements() if isinstance(s, Store) and s.places)

    @property
    def layout(self) -> str:
        """The roles in one line: `grid m(T_m) n(T_n) | loop k(T_k) | whole d`."""
        groups: dict[str, list[str]] = {name: [] for name in ("grid", "loop", "whole", "split")}
        for axis, role in self.roles:
            match role:
                case Grid(tile):
                    groups["grid"].append(f"{axis}({tile})")
                case LoopRole(tile):
                    groups["loop"].append(f"{axis}({tile})")
                case Whole():
                    groups["whole"].append(str(axis))
                case Split(parts, tile):
                    groups["split"].append(f"{axis}({parts}, {tile})")
        return " | ".join(f"{name} {' '.join(axes)}" for name, axes in groups.items() if axes)

    def __str__(self) -> str:
        return "\n".join([f"kernel {self.name}", f"  {self.layout}", *_indented(self.body)])


@dataclass(frozen=True, slots=True)
class Launch:
    """What is launched at once."""

    name: str  # the kernel's name, or one made of those of the kernels
    kernels: tuple[Kernel, ...]  # the first ones' programs come first


@dataclass(frozen=True, slots=True)
class Window:
    """A tensor of a step that is a place of one around the loop, along that one's first dimension."""

    tensor: Tensor  # as kernels of the step name it
    of: str  # the tensor around the loop; kernels of the step may store all of the window, and so all of this
    # Of a state before a step: what it is at the first step; at others it is the place of the step before. None: the
    # place is the step's.
    first: str | None = None
    place: int | None = None  # where along the first dimension of `first` that is; None where it is all of it


@dataclass(frozen=True, slots=True)
class Repeat:
    """Kernels that run once for each step of a loop, one step after the other."""

    kernels: tuple[str, ...]  # their names, adjacent in launch order
    trips: Extent  # how many steps
    windows: tuple[Window, ...]  # the tensors of a step that are not the same in each
    reverse: bool = False  # whether the first step is at the last place
    # Whether all steps are one launch, whose programs keep their parts of the states on chip (`prism.sgraph.resident`).
    resident: bool = False

    def __str__(self) -> str:
        """How many steps there are, and what their windows are."""
        how = " in one launch" if self.resident else ""
        lines = [f"{self.trips} steps{how}, the {'last' if self.reverse else 'first'} place first, each with"]
        for w in self.windows:
            place = "step" if w.first is None else "the step before"
            at = "" if w.place is None else f"[{w.place}]"
            first = "" if w.first is None else f", at first {w.first}{at}"
            lines.append(f"  {w.tensor.declared} = {w.of}[{place}]{first}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class SGraph:
    """A family of implementations of one program."""

    name: str  # the program's name
    inputs: tuple[Tensor, ...]  # the tensors that the caller passes
    # What kernels exchange: materialised values and the partial results of splits. A dimension may be a symbol of the
    # sGraph.
    buffers: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]  # the tensors that the caller gets
    kernels: tuple[Kernel, ...]  # in launch order; each reads inputs and what earlier kernels stored
    # Groups of two or more kernels, by name, that are one launch: adjacent in launch order, and none reads what another
    # stores.
    together: tuple[tuple[str, ...], ...] = ()
    repeats: tuple[Repeat, ...] = ()  # the steps of loops
    _tensors: Mapping[str, Tensor] | None = field(default=None, init=False, compare=False, repr=False)
    _handed_over: frozenset[str] | None = field(default=None, init=False, compare=False, repr=False)
    _prepared: frozenset[str] | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The declarations by name: inputs, then buffers, outputs, and the windows of steps."""
        if self._tensors is None:
            windows = [w.tensor for r in self.repeats for w in r.windows]
            found = {t.name: t for t in (*self.inputs, *self.buffers, *self.outputs, *windows)}
            object.__setattr__(self, "_tensors", found)
            return found
        return self._tensors

    @property
    def handed_over(self) -> frozenset[str]:
        """The names of the buffers."""
        if self._handed_over is None:
            found = frozenset(t.name for t in self.buffers)
            object.__setattr__(self, "_handed_over", found)
            return found
        return self._handed_over

    @property
    def kept(self) -> frozenset[str]:
        """The states before steps that programs keep on chip, as steps name them."""
        return frozenset(w.tensor.name for r in self.repeats if r.resident for w in r.windows if w.first is not None)

    @property
    def symbols(self) -> tuple[sympy.Symbol, ...]:
        """The unbound symbols of all kernels, each once."""
        return tuple(dict.fromkeys(s for k in self.kernels for s in k.symbols))

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launches in order: the groups of `together`, and the other kernels one by one."""
        if not self.together:
            return tuple(Launch(k.name, (k,)) for k in self.kernels)
        group_of = {name: group for group in self.together for name in group}
        members: dict[tuple[str, ...], list[Kernel]] = {}
        for k in self.kernels:
            if k.name in group_of:
                members.setdefault(group_of[k.name], []).append(k)
        taken = {k.name for k in self.kernels}
        found: list[Launch] = []
        for kernel in self.kernels:
            group = group_of.get(kernel.name, (kernel.name,))
            if len(group) == 1:
                found.append(Launch(kernel.name, (kernel,)))
            elif kernel.name == group[0]:
                name = _common_name(group)
                while name in taken:
                    name += "_"
                taken.add(name)
                found.append(Launch(name, tuple(members[group])))
        return tuple(found)

    @property
    def prepared(self) -> frozenset[str]:
        """The kernels of launches that run once, when the weights are there: what they read follows from weights alone.

        They store buffers of lengths that are known, which no call adds to, and are not steps of loops.
        """
        if self._prepared is None:
            object.__setattr__(self, "_prepared", self._before_calls())
        return self._prepared or frozenset()

    def _before_calls(self) -> frozenset[str]:
        fixed = {t.name for t in self.inputs if t.weight}
        stepped = {name for r in self.repeats for name in r.kernels}
        added = {s.tensor for k in self.kernels for s in k.additions}
        found: set[str] = set()
        for launch in self.launches if fixed else ():
            mine = {k.name for k in launch.kernels}
            stored = {t for k in launch.kernels for t in k.writes}
            read = {t for k in launch.kernels for t in k.reads}
            extents = [a.extent for k in launch.kernels for a, _ in k.roles]
            extents += [e for t in stored for e in self.tensors[t].shape]
            static = all(map(is_static, extents)) and stepped.isdisjoint(mine)
            if static and read and read <= fixed and stored <= self.handed_over - added:
                found |= mine
                fixed |= stored
        return frozenset(found)

    def repeat(self, launch: Launch) -> Repeat | None:
        """The steps that a launch is part of; None where it runs once."""
        name = launch.kernels[0].name
        return next((r for r in self.repeats if name in r.kernels), None)

    def __str__(self) -> str:
        """Readable, indented text: declarations, then for each kernel its roles and statements.

        Kernels that are launched together come after a line that says so.
        """
        inputs, outputs = (", ".join(t.declared for t in group) for group in (self.inputs, self.outputs))
        lines = [f"sgraph {self.name}({inputs}) -> {outputs}"]
        lines += [f"  buffer {b.declared}" for b in self.buffers]
        for launch in self.launches:
            repeat, inset = self.repeat(launch), "  "
            if repeat is not None:
                inset = "    "
                if launch.kernels[0].name == repeat.kernels[0]:
                    lines += _indented([repeat])
            if len(launch.kernels) > 1:
                lines.append(f"{inset}launch {launch.name}: {_listed(k.name for k in launch.kernels)}")
            lines += _indented(launch.kernels, inset)
        return "\n".join(lines)

    def tensor(self, name: str) -> Tensor:
        """The declaration of an input, buffer or output. Raises KeyError: there is none of that name."""
        return self.tensors[name]


def _at_places(index: Sequence[Index], places: Sequence[Place]) -> str:
    """An index with places added to their dimensions."""
    at = {p.dimension: p.value for p in places}
    return _listed(
        i if n not in at else at[n] if i == Index.const(0) else f"{i} + {at[n]}" for n, i in enumerate(index)
    )


def _listed(parts: Iterable[object]) -> str:
    return ", ".join(map(str, parts))


def _indented(parts: Iterable[object], by: str = "  ") -> list[str]:
    return [by + line for p in parts for line in str(p).splitlines()]


def _operand(a: Operand) -> str:
    return a if isinstance(a, str) else f"{a:.9g}"


def sides(conditions: Sequence[Index], axis: Axis) -> tuple[tuple[Index, ...], ...]:
    """Of conditions `index >= 0` those that bound the axis from above, and those from below; none that is empty.

    Those without the axis are in both, last; where there is nothing else, they are all that is asked for.
    """
    everywhere = [c for c in conditions if not c.slope(axis)]
    found = ([c for c in conditions if way * c.slope(axis) > 0] for way in (-1, 1))
    return tuple((*side, *everywhere) for side in found if side) or ((tuple(everywhere),) if everywhere else ())


def _bound(condition: Index, axis: Axis) -> str:
    """A condition of a range as a bound of the axis: `j <= i + 3`."""
    c = condition.slope(axis)
    if not c:
        return f"{condition} >= 0"
    rest = condition + Index(((axis, c),)).scaled(-1)
    if c < 0:
        return f"{axis if c == -1 else f'{-c}*{axis}'} <= {rest}"
    return f"{axis if c == 1 else f'{c}*{axis}'} >= {rest.scaled(-1)}"


def _common_name(names: Sequence[str]) -> str:
    """One name for several: `p_q_kernel` and `p_k_kernel` are `p_q_k_kernel`."""
    words = [n.split("_") for n in names]
    shortest = min(map(len, words))
    head = 0
    while head < shortest - 1 and len({tuple(w[: head + 1]) for w in words}) == 1:
        head += 1
    tail = 0
    while tail < shortest - 1 - head and len({tuple(w[len(w) - tail - 1 :]) for w in words}) == 1:
        tail += 1
    own = [x for w in words for x in w[head : len(w) - tail]]
    return "_".join([*words[0][:head], *own, *words[0][len(words[0]) - tail :]])


def part_axis(axis: Axis, parts: sympy.Symbol) -> Axis:
    """The axis over the parts of a split axis; splits of one axis by different kernels have different parts."""
    own = parts.name.removeprefix(f"S_{axis.name}")
    return Axis(f"{axis.name}{own}.part" if own != parts.name else f"{axis.name}.part", parts)


def value_axes(kernel: Kernel) -> dict[str, tuple[Axis, ...]]:
    """For each value, the axes that it depends on, in the order of the kernel's roles.

    A value of a split axis, reduced over its chunk, depends on the axis' part.
    """
    order = {a: n for n, (a, _) in enumerate(kernel.roles)}
    found: dict[str, frozenset[Axis]] = {}
    none = frozenset[Axis]()
    for s in kernel.statements():
        dst = defined(s)
        if dst is not None:
            # What a sum is rescaled or grows by has no other axes than what is summed.
            of = [x.axes() if isinstance(x, Index) else found.get(x, none) for x in parts(s, Holds.INDEX, Holds.USES)]
            axes = none.union(*of)
            found[dst] = axes - {s.axis} if isinstance(s, TileReduce | Contract) else axes
    # Values are many, the sets of axes that they have few.
    each = {axes: tuple(sorted(axes, key=lambda a: order.get(a, len(order)))) for axes in set(found.values())}
    return {name: each[axes] for name, axes in found.items()}
