"""The executable specification of sGraphs: what a legal one is, checked statement by statement.

What is checked, beyond names and scopes, is what makes the denotation a function: nothing computed from a running
value escapes its loop except into the rescaled accumulator that corrects for it, and every output element is stored
exactly once, and added to by at most one kernel after that.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import inf
from typing import NoReturn, TypeAlias

import sympy

from prism.errors import IllegalIRError
from prism.program.extents import Extent, add, at_most, mul, product
from prism.program.index import Axis, Index
from prism.program.nodes import ReduceKind, Tensor
from prism.program.ops import OPS
from prism.program.prefix import Recurrence
from prism.program.spec import surely_outside
from prism.sgraph import nodes as sg
from prism.sgraph import ranges
from prism.sgraph.launches import check_together
from prism.sgraph.resident import obstacle

SCALED = "scaled"  # exp(-m)*g with g free of the running value m
TAINTED = "tainted"  # depends on m in some other way
# How a value depends on a running value m: a float c means g + c*m.
Dependence: TypeAlias = "float | str"
Box: TypeAlias = "tuple[tuple[Extent, Extent], ...]"


def check(sgraph: sg.SGraph) -> None:
    """Checks every rule of the specification.

    Raises:
        IllegalIRError: a rule is broken; the message says which, in which kernel and statement.
    """
    where = f"sGraph {sgraph.name}"
    tensors: dict[str, Tensor] = {}
    windows = [w.tensor for r in sgraph.repeats for w in r.windows]
    for t in (*sgraph.inputs, *sgraph.buffers, *sgraph.outputs, *windows):
        if t.name in tensors:
            _fail(f"tensor {t.name} is declared twice", where)
        tensors[t.name] = t
    names = [k.name for k in sgraph.kernels]
    for name in names:
        if names.count(name) > 1 or not name.isidentifier():
            _fail(f"kernel name {name!r} is not a unique identifier", where)
    check_together(sgraph)
    _check_symbols(sgraph, where)
    inputs = frozenset(t.name for t in sgraph.inputs)
    boxes: dict[str, list[Box]] = {}
    added: set[str] = set()
    there: set[str] = set(inputs)
    repeats = _repeats(sgraph, tensors, where)
    for n, kernel in enumerate(sgraph.kernels):
        repeat = repeats.get(n)
        if repeat is not None and kernel.name == repeat.kernels[0]:
            _check_begin(repeat, tensors, there, where)
            there |= {w.tensor.name for w in repeat.windows if w.first is not None or w.of in there}
        # A tensor that a later kernel still stores to (parts of a concatenation) cannot be read yet.
        pending = {name for later in sgraph.kernels[n:] for name in later.writes}
        checker = _KernelChecker(kernel, tensors, there - pending, inputs, f"{where}, kernel {kernel.name}")
        checker.run()
        for name in checker.added:
            if name not in boxes or name in inputs or name in added or repeat is not None:
                why = "once, to what an earlier kernel has stored, and in no step"
                _fail(f"{name} is added to", checker.where, why)
        for name, box in checker.stores:
            if name in inputs:
                _fail(f"input {name} is stored to", checker.where)
            if name in added or name in checker.added:
                _fail(f"{name} is stored to, and added to not after that", checker.where)
            if repeat is not None and any(w.tensor.name == name and w.first is not None for w in repeat.windows):
                _fail(f"{name}, the state before a step, is stored to", checker.where)
            boxes.setdefault(name, []).append(box)
            there.add(name)
        added |= checker.added
        if repeat is not None and kernel.name == repeat.kernels[-1]:
            there = _after(repeat, there, boxes, where)
    for t in (*sgraph.buffers, *sgraph.outputs):
        if t.name not in there or t.name in boxes:
            _check_covered(t, boxes.get(t.name, []), where)
    for r in (r for r in sgraph.repeats if r.resident):
        why = obstacle([k for k in sgraph.kernels if k.name in r.kernels], r)
        if why:
            _fail(f"the steps of {', '.join(r.kernels)} cannot be one launch", where, why)


def _repeats(sgraph: sg.SGraph, tensors: Mapping[str, Tensor], where: str) -> dict[int, sg.Repeat]:
    """The repeat of each kernel's place that is in one."""
    place = {k.name: n for n, k in enumerate(sgraph.kernels)}
    found: dict[int, sg.Repeat] = {}
    for r in sgraph.repeats:
        places = [place.get(name, -1) for name in r.kernels]
        if not places or -1 in places or places != list(range(places[0], places[0] + len(places))):
            _fail(f"the kernels {', '.join(r.kernels)} of a step are not adjacent", where)
        if not found.keys().isdisjoint(places):
            _fail("a kernel is part of two steps", where)
        found |= dict.fromkeys(places, r)
        for w in r.windows:
            outer = tensors.get(w.of)
            if outer is None or (outer.shape, outer.dtype) != ((r.trips, *w.tensor.shape), w.tensor.dtype):
                _fail(f"{w.tensor.name} is no window into {w.of}", where)
    own = {w.tensor.name: n for n, r in enumerate(sgraph.repeats) for w in r.windows}
    for k in sgraph.kernels:
        repeat = found.get(place[k.name])
        for t in (*k.reads, *k.writes):
            if t in own and (repeat is None or sgraph.repeats[own[t]] is not repeat):
                _fail(f"{k.name} is not of the step that {t} is of", where)
    return found


def _check_begin(r: sg.Repeat, tensors: Mapping[str, Tensor], there: Container[str], where: str) -> None:
    """What states are at the first step is there, and is as they are."""
    stored = {w.of for w in r.windows if w.first is None and w.of not in there}
    for w in r.windows:
        if w.first is None:
            continue
        first = tensors.get(w.first)
        if first is None or w.first not in there or w.of not in stored:
            _fail(f"{w.tensor.name} is at first {w.first}, which is not there, or is stored by no step", where)
        shape, inside = first.shape, w.place is None
        if w.place is not None and shape:
            inside, shape = w.place >= 0 and at_most(w.place + 1, shape[0]), shape[1:]
        if not inside or (shape, first.dtype) != (w.tensor.shape, w.tensor.dtype):
            _fail(f"{w.tensor.name} is at first {w.first}, of another shape or data type", where)


def _after(r: sg.Repeat, there: set[str], boxes: dict[str, list[Box]], where: str) -> set[str]:
    """What is there when all steps are done: a window that is stored is stored whole, so all of what it is of is."""
    of: set[str] = set()
    for w in r.windows:
        if w.tensor.name in boxes:
            if w.of in boxes or w.of in of:
                _fail(f"{w.of} is stored twice", where)
            _check_covered(w.tensor, boxes[w.tensor.name], where)
            of.add(w.of)
    return there - {w.tensor.name for w in r.windows} | of


def _fail(what: str, where: str, why: str = "") -> NoReturn:
    raise IllegalIRError(what, where=where, why=why, fix="this is a bug in prism; please report it")


def _check_symbols(sgraph: sg.SGraph, where: str) -> None:
    """Tile and split symbols are unbound sizes of one axis each, apart from the symbols of the extents."""
    owner: dict[sympy.Symbol, tuple[str, Axis]] = {}
    part_counts: set[sympy.Symbol] = set()
    for kernel in sgraph.kernels:
        for axis, role in kernel.roles:
            mine: list[tuple[sympy.Symbol, str]] = []
            if isinstance(role.tile, sympy.Symbol):
                mine.append((role.tile, "tile"))
            elif role.tile not in (None, 1):
                _fail(f"axis {axis} has the tile {role.tile}", where, "a tile is a symbol or 1")
            if isinstance(role, sg.Split):
                mine.append((role.parts, "parts"))
                part_counts.add(role.parts)
            for symbol, use in mine:
                if not (symbol.is_integer and symbol.is_positive):
                    _fail(f"symbol {symbol} of axis {axis} is not a positive integer", where)
                if owner.setdefault(symbol, (use, axis)) != (use, axis):
                    _fail(f"symbol {symbol} is shared by the axes {owner[symbol][1]} and {axis}", where)
    by_name: dict[str, sympy.Symbol] = {}
    for symbol in owner:
        if by_name.setdefault(symbol.name, symbol) != symbol:
            _fail(f"two symbols are called {symbol.name}", where)
    extents = {a.extent for k in sgraph.kernels for a, _ in k.roles} | {d for t in sgraph.inputs for d in t.shape}
    for extent in extents:
        for s in getattr(extent, "free_symbols", ()):
            if s in owner and s not in part_counts:
                _fail(f"symbol {s} is a tile size and part of an extent", where)


@dataclass(slots=True)
class _Scope:
    """One block: what it defined, and the loop that it is the body of."""

    loop: Axis | None
    names: set[str] = field(default_factory=set)
    accumulators: dict[str, sg.Accumulate] = field(default_factory=dict)


class _KernelChecker:
    """Checks one kernel; `stores` then holds what it wrote, `added` to what it added."""

    def __init__(
        self,
        kernel: sg.Kernel,
        tensors: Mapping[str, Tensor],
        readable: Iterable[str],
        inputs: Container[str],
        where: str,
    ) -> None:
        self.kernel = kernel
        self.tensors = tensors
        self.readable = frozenset(readable)
        self.inputs = inputs
        self.where = where
        self.roles = dict(kernel.roles)
        self.parts = {sg.part_axis(a, r.parts) for a, r in kernel.roles if isinstance(r, sg.Split)}
        self.defined: set[str] = set()
        self.axes: dict[str, frozenset[Axis]] = {}
        # The axes that a value or what it was computed from had, reduced ones included.
        self.history: dict[str, frozenset[Axis]] = {}
        # value -> running accumulator -> how the value depends on it
        self.depends: dict[str, dict[str, Dependence]] = {}
        # A statistic to the axis that it is over.
        self.statistics: dict[str, Axis] = {}
        self.scans: dict[str, sg.Scan] = {}
        # What is made of elements beside a tensor that a kernel stored, and not left out by a `where`.
        self.beside: set[str] = set()
        self.scopes: list[_Scope] = []
        self.stores: list[tuple[str, Box]] = []
        self.added: set[str] = set()

    def run(self) -> None:
        if len(self.roles) != len(self.kernel.roles):
            self.fail("an axis has two roles")
        if len({a.name for a in self.roles}) != len(self.roles):
            self.fail("two axes have one name")
        self.block(self.kernel.body, None)
        if not self.stores and not self.added:
            self.fail("the kernel stores nothing")
        used = {a for axes in self.axes.values() for a in axes}
        for s in self.kernel.statements():
            if isinstance(s, sg.Loop):
                used.add(s.axis)
            elif isinstance(s, sg.Store):
                used |= {a for i in s.index for a in i.axes()}
        for axis in self.roles:
            if axis not in used:
                self.fail(f"axis {axis} has a role and is not used")

    def fail(self, what: str, why: str = "") -> NoReturn:
        _fail(what, self.where, why)

    @property
    def loops(self) -> tuple[Axis, ...]:
        return tuple(s.loop for s in self.scopes if s.loop is not None)

    def block(self, body: Sequence[sg.Stmt], loop: Axis | None) -> _Scope:
        scope = _Scope(loop)
        self.scopes.append(scope)
        for s in body:
            self.statement(s)
        self.scopes.pop()
        return scope

    def statement(self, s: sg.Stmt) -> None:
        match s:
            case sg.Load(dst, tensor, index):
                if tensor not in self.readable:
                    self.fail(f"{dst} loads {tensor}", "it is neither an input nor stored by an earlier kernel")
                self.index(s.index, tensor)
                self.define(dst, self.index_axes(index), (), {})
                shape = self.tensors[tensor].shape
                if tensor not in self.inputs and any(map(surely_outside, index, shape)):
                    self.beside.add(dst)
            case sg.Gather():
                self.gather(s)
            case sg.Position(dst, index):
                self.define(dst, self.index_axes((index,)), (), {})
            case sg.Pointwise(dst, op, args):
                if op not in OPS or len(args) != OPS[op].arity:
                    self.fail(f"{dst} = {op} of {len(args)} operands", "no such operation")
                names = [a for a in args if isinstance(a, str)]
                axes = frozenset(x for a in names for x in self.use(a, dst))
                self.define(dst, axes, names, self.pointwise(op, args))
                if op == "where" and args[0] not in self.beside:
                    self.beside.discard(dst)
            case sg.TileReduce(dst, kind, axis, src):
                axes = self.use(src, dst)
                if axis not in axes:
                    self.fail(f"{dst} reduces axis {axis}, which {src} does not have")
                self.in_tile(axis, dst)
                if isinstance(kind, sg.Statistic):
                    self.statistics[dst] = axis
                if s.moments:
                    self.merged_parts(s)
                elif kind is sg.Statistic.MERGED and src not in self.statistics:
                    self.fail(f"{dst} merges {src}, which is no statistic")
                of = [src, *s.moments]
                self.define(dst, axes - {axis}, of, self.reduced(kind, axis, of))
            case sg.Contract(dst, axis, lhs, rhs):
                left, right = self.use(lhs, dst), self.use(rhs, dst)
                if axis not in left or axis not in right:
                    self.fail(f"{dst} contracts axis {axis}, which not both {lhs} and {rhs} have")
                self.in_tile(axis, dst)
                self.define(dst, (left | right) - {axis}, [lhs, rhs], self.reduced(ReduceKind.SUM, axis, [lhs, rhs]))
            case sg.Accumulate():
                self.accumulate(s)
            case sg.Scan():
                self.scan(s)
            case sg.Loop():
                self.loop(s)
            case sg.Store(places=()):
                self.store(s)
            case sg.Store():
                self.add(s)

    # Names and scopes.

    def define(self, name: str, axes: frozenset[Axis], operands: Iterable[str], depends: dict[str, Dependence]) -> None:
        if name in self.defined or not name.isidentifier():
            self.fail(f"value name {name!r} is not a unique identifier")
        for axis in axes:
            if isinstance(self.roles[axis], (sg.LoopRole, sg.Split)) and axis not in self.loops:
                self.fail(f"{name} has the loop axis {axis} outside its loop")
        self.defined.add(name)
        self.axes[name] = axes
        operands = tuple(operands)
        self.history[name] = axes.union(*(self.history[o] for o in operands))
        if not self.beside.isdisjoint(operands):
            self.beside.add(name)
        self.depends[name] = depends
        self.scopes[-1].names.add(name)

    def use(self, name: sg.Operand, user: str) -> frozenset[Axis]:
        if not isinstance(name, str):
            return frozenset()
        if not any(name in s.names for s in self.scopes):
            why = "it was defined in a loop that has ended" if name in self.defined else "it is not defined before"
            self.fail(f"{user} uses {name}", why)
        return self.axes[name]

    def index_axes(self, index: Sequence[Index]) -> frozenset[Axis]:
        axes = frozenset(a for i in index for a in i.axes())
        for i in index:
            if not i.is_affine():
                self.fail(f"the index {i} is not affine")
        for a in axes:
            if a not in self.roles:
                self.fail(f"axis {a} (extent {a.extent}) has no role")
        return axes

    def index(self, index: Sequence[Index], tensor: str) -> None:
        declared = self.tensors.get(tensor)
        if declared is None:
            self.fail(f"tensor {tensor} is not declared")
        if len(declared.shape) != len(index):
            self.fail(f"{tensor} has {len(declared.shape)} dimensions and an index of {len(index)}")

    def gather(self, s: sg.Gather) -> None:
        if s.tensor not in self.readable:
            self.fail(f"{s.dst} gathers from {s.tensor}", "it is neither an input nor stored by an earlier kernel")
        self.index(s.index, s.tensor)
        shape = self.tensors[s.tensor].shape
        axes = self.index_axes(s.index)
        if not s.places or len({p.dimension for p in s.places}) != len(s.places):
            self.fail(f"{s.dst} gathers without places, or by two along one dimension")
        for p in s.places:
            axes |= self.use(p.value, s.dst)
            if self.depends[p.value]:
                self.fail(f"{s.dst} reads at {p.value}, which depends on a running value")
            if not 0 <= p.dimension < len(shape) or s.index[p.dimension].terms:
                self.fail(f"{s.dst} adds {p.value} to an index with axes, or to none")
        self.define(s.dst, axes, [p.value for p in s.places], {})

    def merged_parts(self, s: sg.TileReduce) -> None:
        """A statistic of all parts, from the moments of each, which are theirs alone."""
        of = (s.src, *s.moments)
        if s.kind is not sg.Statistic.MERGED or len(of) != len(sg.Moment):
            self.fail(f"{s.dst} takes {len(of)} moments", f"one that is merged takes {', '.join(sg.Moment)}")
        for moment, name in zip(sg.Moment, of, strict=True):
            axes = self.use(name, s.dst)
            if axes != (frozenset((s.axis,)) if moment is sg.Moment.COUNT else self.axes[s.src]) or self.depends[name]:
                self.fail(f"{s.dst} merges by {name}, which is no {moment} of parts along {s.axis}")
        if not isinstance(self.roles[s.axis], sg.Whole):
            self.fail(f"{s.dst} merges tiles of {s.axis}", "its parts are merged at once")

    def in_tile(self, axis: Axis, dst: str) -> None:
        role = self.roles[axis]
        if isinstance(role, sg.Grid):
            self.fail(f"{dst} reduces the grid axis {axis}", "a tile holds only part of it and no loop visits the rest")

    # Running values.

    def pointwise(self, op: str, args: Sequence[sg.Operand]) -> dict[str, Dependence]:
        found: dict[str, Dependence] = {}
        for m in {m for a in args if isinstance(a, str) for m in self.depends[a]}:
            of = [self.depends[a].get(m, 0.0) if isinstance(a, str) else 0.0 for a in args]
            result = _pointwise(op, args, of)
            if result != 0.0:
                found[m] = result
        return found

    def reduced(self, kind: sg.Kind, axis: Axis, operands: Sequence[str]) -> dict[str, Dependence]:
        found: dict[str, Dependence] = {}
        for m in {m for a in operands for m in self.depends[a]}:
            of = [self.depends[a].get(m, 0.0) for a in operands]
            linear_in_one = kind is ReduceKind.SUM and of.count(SCALED) == 1 and all(d in (SCALED, 0.0) for d in of)
            found[m] = SCALED if linear_in_one and axis not in self.axes[m] else TAINTED
        return found

    def accumulate(self, s: sg.Accumulate) -> None:
        if not self.loops or self.scopes[-1].loop is None:
            self.fail(f"accumulator {s.dst} is not in a loop")
        scope = self.scopes[-1]
        loop = scope.loop
        assert loop is not None
        axes = self.use(s.src, s.dst)
        if s.src not in scope.names:
            self.fail(f"accumulator {s.dst} takes {s.src}", "the value is not computed in the accumulator's loop")
        if loop in axes:
            self.fail(f"accumulator {s.dst} takes {s.src} along the loop axis {loop}", "reduce the tile first")
        if isinstance(s.kind, sg.Statistic) and self.statistics.get(s.src) != loop:
            self.fail(f"accumulator {s.dst} merges {s.src}, which is no statistic over {loop}")
        if isinstance(s.kind, sg.Statistic):
            self.statistics[s.dst] = loop
        depends = dict(self.depends[s.src])
        for other in scope.accumulators:
            how = depends.pop(other, 0.0)
            if other == s.shift:
                if how != SCALED and s.kind is ReduceKind.SUM:
                    self.fail(f"{s.src} is not a tile sum of exp(a - {other})*f", f"{s.dst} is rescaled by {other}")
            elif how != 0.0:
                self.fail(f"{s.src} depends on the running value of {other}", f"{s.dst} is not rescaled by it")
        if s.shift is not None:
            shift = scope.accumulators.get(s.shift)
            if shift is None:
                self.fail(f"{s.dst} is rescaled by {s.shift}", "it is not an accumulator of this loop, updated earlier")
            by = {ReduceKind.SUM: (ReduceKind.MAX, ReduceKind.SUM), ReduceKind.MIN: (ReduceKind.MAX, ReduceKind.MIN)}
            if not isinstance(s.kind, ReduceKind) or shift.kind not in by.get(s.kind, ()):
                self.fail(
                    f"a {s.kind.value} accumulator {s.dst} is rescaled by a {shift.kind.value}",
                    "only sums, by a max or sum, and least places, by a max or min",
                )
        for m, how in depends.items():
            if how != SCALED or s.kind is not ReduceKind.SUM:
                self.fail(f"accumulator {s.dst} depends on the running value of {m}", "an outer loop still changes it")
        if loop not in self.history[s.src] and s.kind in (ReduceKind.SUM, ReduceKind.PROD):
            self.fail(
                f"accumulator {s.dst} takes {s.src}, which is no reduction over {loop}",
                "it would depend on the number of tiles",
            )
        self.define(s.dst, axes, [s.src], depends)
        self.depends[s.dst][s.dst] = 1.0
        scope.accumulators[s.dst] = s

    def scan(self, s: sg.Scan) -> None:
        role = self.roles.get(s.axis)
        if not isinstance(role, sg.LoopRole | sg.Whole):
            self.fail(f"{s.dst} is a scan along {s.axis}", "its tiles do not come one after another")
        if isinstance(role, sg.LoopRole) and self.scopes[-1].loop != s.axis:
            self.fail(f"{s.dst} is a scan along {s.axis}", "that is not the axis of the innermost loop")
        axes = self.use(s.src, s.dst)
        if s.axis not in axes:
            self.fail(f"{s.dst} is a scan along {s.axis}, which {s.src} does not have")
        if self.depends[s.src]:
            self.fail(f"{s.dst} sums {s.src}, which depends on a running value")
        used = [s.src]
        if s.growth is not None:
            if not self.use(s.growth, s.dst) <= axes:
                self.fail(f"{s.dst} grows by {s.growth}, which has axes that {s.src} does not have")
            if isinstance(s.growth, str):
                used.append(s.growth)
                if self.depends[s.growth]:
                    self.fail(f"{s.dst} grows by {s.growth}, which depends on a running value")
            if s.how.kind is not ReduceKind.SUM and (not s.how.kind.is_extreme or s.how.rescaled):
                self.fail(f"{s.dst} grows by {s.growth}, and is no sum")
            if s.how.rescaled and not self.is_largest(s):
                self.fail(f"{s.dst} is rescaled by {s.growth}", f"that is no maximum so far along {s.axis}")
        elif s.how.rescaled or s.how.factors:
            self.fail(f"{s.dst} is a scan with {s.how}, of nothing")
        shift = self.scans.get(str(s.growth)) if s.how.rescaled else None
        shift_grows = shift is not None and shift.growth is not None
        if not s.how.fits_tiles(s.growth is not None, shift_grows) and role != sg.LoopRole(1):
            why = "is rescaled by what grows" if shift_grows else "leaves out each place's own part of it"
            self.fail(f"{s.dst} {why}", "that takes tiles of one element")
        self.define(s.dst, axes, used, {})
        self.scans[s.dst] = s

    def is_largest(self, s: sg.Scan) -> bool:
        """Whether what it is rescaled by is the maximum up to the same places."""
        m = self.scans.get(str(s.growth))
        return m is not None and m.axis == s.axis and m.how == Recurrence(ReduceKind.MAX, back=s.how.back)

    def loop(self, s: sg.Loop) -> None:
        axis, body = s.axis, s.body
        role = self.roles.get(axis)
        if not isinstance(role, (sg.LoopRole, sg.Split)):
            self.fail(f"a loop over axis {axis}", "its role is neither loop nor split")
        if axis in self.loops:
            self.fail(f"loops over axis {axis} are nested")
        self.range(s)
        if len({x.how.back for x in body if isinstance(x, sg.Scan)}) > 1:
            self.fail(f"the loop over {axis} has a scan from either end", "its tiles come one way")
        if s.back and any(isinstance(x, sg.Accumulate) and isinstance(x.kind, sg.Statistic) for x in body):
            self.fail(f"the loop over {axis} has a statistic and a scan from the end", "its first tile may be shorter")
        scope = self.block(body, axis)
        stores = any(isinstance(x, (sg.Store, sg.Loop)) for x in body)
        if not scope.accumulators and not stores:
            self.fail(f"the loop over {axis} accumulates and stores nothing")
        for name in scope.accumulators:
            # After the loop the name means the final value: in scope outside, no longer running.
            self.scopes[-1].names.add(name)
            self.depends[name].pop(name)

    def range(self, s: sg.Loop) -> None:
        """What a range may say; that it changes no value is for the denotation to check."""
        for side in s.sides:
            if sum(bool(c.slope(s.axis)) and c.axes() != {s.axis} for c in side) > 1:
                self.fail(f"the loop over {s.axis} has two bounds of one side that vary")
        if s.gap and len({c.slope(s.axis) > 0 for c in s.gap}) < 2:
            self.fail(f"the gap of the loop over {s.axis} has one end")
        for condition in (*s.range, *s.gap):
            for a in self.index_axes((condition,)):
                if a != s.axis and a not in self.loops and not isinstance(self.roles[a], sg.Grid):
                    self.fail(f"the range of the loop over {s.axis} mentions {a}", "its tile is not known there")
            bounds = condition.slope(s.axis) or (condition in s.everywhere and condition.axes() and s.sides)
            if not bounds or not all(ranges.sign(c) for _, c in condition.terms):
                self.fail(f"the loop over {s.axis} has no bound in {condition} >= 0")

    # Stores.

    def store(self, s: sg.Store) -> None:
        self.index(s.index, s.tensor)
        mentioned = frozenset(a for i in s.index for a in i.axes())
        for a in mentioned:
            if a not in self.roles and a not in self.parts:
                self.fail(f"axis {a} has no role", f"the index of {s.tensor} mentions it")
        axes = self.use(s.src, f"store to {s.tensor}")
        if s.moment is not None:
            over = self.statistics.get(s.src) if isinstance(s.src, str) else None
            if over is None or not isinstance(self.roles[over], sg.Split):
                self.fail(f"{s.tensor} takes the {s.moment} of {s.src}", "it is no statistic of a part of a split axis")
            if s.moment is sg.Moment.COUNT:
                axes = frozenset()
        if isinstance(s.src, str) and self.depends[s.src]:
            self.fail(f"{s.tensor} takes {s.src}, which depends on a running value")
        if s.src in self.beside:
            self.fail(f"{s.tensor} takes {s.src}", "it is made of elements beside a tensor that a kernel stored")
        # A grid axis may be missing: the value does not depend on it, and the first program along it stores.
        needed = set(axes) | set(self.loops)
        needed |= {
            p
            for a, p in ((a, sg.part_axis(a, r.parts)) for a, r in self.kernel.roles if isinstance(r, sg.Split))
            if a not in mentioned
        }
        for a in needed:
            if a not in mentioned and a.extent != 1:
                self.fail(f"the index of {s.tensor} misses axis {a}", "elements would be stored more than once")
        for a in mentioned:
            if isinstance(self.roles.get(a), (sg.LoopRole, sg.Split)) and a not in self.loops:
                self.fail(f"{s.tensor} is stored along axis {a} outside its loop")
        self.stores.append((s.tensor, self.box(s, mentioned)))

    def add(self, s: sg.Store) -> None:
        """Adding at places: each element of what is added counts once, wherever it goes."""
        self.index(s.index, s.tensor)
        mentioned = self.index_axes(s.index)
        shape, by = self.tensors[s.tensor].shape, f"addition to {s.tensor}"
        places = {p.dimension: p.extent for p in s.places}
        if len(places) != len(s.places) or s.moment is not None:
            self.fail(f"{by} has two places along one dimension, or a moment")
        for n, (i, extent) in enumerate(zip(s.index, shape, strict=True)):
            axis = i.as_axis()
            if i == Index.const(0) and places.get(n, 1) == extent:
                continue
            if n in places or axis is None or axis.extent != extent:
                self.fail(f"{by} is at {i} of a dimension of {extent}", "that is no axis of it, and no place in it")
        if sum(len(i.axes()) for i in s.index) > len(mentioned):
            self.fail(f"the index of {s.tensor} uses an axis in two dimensions")
        names = [*(p.value for p in s.places), s.src]
        over = frozenset(a for name in names for a in self.use(name, by)) | mentioned
        if any(self.depends[name] for name in names if isinstance(name, str)):
            self.fail(f"{by} depends on a running value")
        if not self.use(s.src, by) <= mentioned.union(*(self.axes[p.value] for p in s.places)):
            self.fail(f"{by} takes {s.src}, of which several go to one place", "reduce it first")
        if any(isinstance(r, sg.Split) or a.name.endswith(".part") for a, r in self.kernel.roles):
            self.fail(f"{by} is made by programs that share an axis")
        for a, role in self.roles.items():
            if isinstance(role, sg.LoopRole) and (a in self.loops) != (a in over):
                self.fail(f"{by} does not go along the loop over {a}", "it would be made once more for each tile")
        self.added.add(s.tensor)

    def box(self, s: sg.Store, mentioned: frozenset[Axis]) -> Box:
        """Per dimension the range [start, stop) that the store covers, each element once."""
        seen: set[Axis] = set()
        found: list[tuple[Extent, Extent]] = []
        for i in s.index:
            unit: Extent = 1
            terms = {a: c for a, c in i.terms if isinstance(a, Axis)}
            if seen & set(terms):
                self.fail(f"the index of {s.tensor} uses an axis in two dimensions")
            seen |= set(terms)
            while terms:
                axis = next((a for a, c in terms.items() if c == unit), None)
                if axis is None:
                    self.fail(f"the index {i} of {s.tensor} leaves gaps or overlaps")
                del terms[axis]
                unit = mul(unit, axis.extent)
            found.append((i.offset, add(i.offset, unit)))
        assert seen == mentioned
        return tuple(found)


def _pointwise(op: str, args: Sequence[sg.Operand], of: Sequence[Dependence]) -> Dependence:
    """How op(args...) depends on a running value, given how its arguments do; 0.0 is not at all."""
    if all(d == 0.0 for d in of):
        return 0.0
    if TAINTED in of:
        return TAINTED
    match op:
        case "neg":
            return -of[0] if isinstance(of[0], float) else of[0]
        case "add":
            if isinstance(of[0], float) and isinstance(of[1], float):
                return of[0] + of[1]
            return SCALED if all(d == SCALED or _is_zero(a) for d, a in zip(of, args, strict=True)) else TAINTED
        case "mul":
            for this, other in ((0, 1), (1, 0)):
                constant = args[other]
                if of[other] == 0.0 and of[this] == SCALED:
                    return SCALED
                how = of[this]
                if isinstance(how, float) and isinstance(constant, (int, float)):
                    return how * float(constant)
            return TAINTED
        case "exp":
            return SCALED if of[0] == -1.0 else TAINTED
        case "where" if of[0] == 0.0:
            branches = list(zip(of[1:], args[1:], strict=True))
            if all(d == SCALED or _is_zero(a) for d, a in branches):
                return SCALED
            # Minus infinity absorbs any finite shift.
            moving = {d for d, a in branches if a != -inf}
            if len(moving) == 1:
                return moving.pop()
            return TAINTED
        case _:
            return TAINTED


def _is_zero(a: sg.Operand) -> bool:
    return not isinstance(a, str) and a == 0


def _check_covered(tensor: Tensor, boxes: Sequence[Box], where: str) -> None:
    """The boxes lie in the tensor, do not overlap, and are as many elements as it has."""
    if not boxes:
        _fail(f"{tensor.name} is never stored", where)
    total: Extent = 0
    for box in boxes:
        size: Extent = 1
        for (start, stop), extent in zip(box, tensor.shape, strict=True):
            if not (at_most(0, start) and at_most(stop, extent)):
                _fail(f"a store to {tensor.name} covers [{start}, {stop}) of a dimension of {extent}", where)
            size = mul(size, add(stop, mul(-1, start)))
        total = add(total, size)
    for a, b in combinations(boxes, 2):
        if not any(
            at_most(a_stop, b_start) or at_most(b_stop, a_start)
            for (a_start, a_stop), (b_start, b_stop) in zip(a, b, strict=True)
        ):
            _fail(f"elements of {tensor.name} are stored twice", where)
    whole = product(tensor.shape)
    if total != whole:
        _fail(f"stores cover {total} of the {whole} elements of {tensor.name}", where)
