"""Scheduling: from the values of a kernel and the roles of its axes to its loops.

A value belongs to the *block* of the loop axes it depends on. A reduction over a loop axis becomes an accumulator of a
loop over that axis in the block of its own remaining loop axes; reductions that do not need one another's results
share one loop (one pass), others follow in later loops. What a loop needs and does not vary in it is computed before
it. A rescaled reduction shares the loop of its shift. A scan stands in the loop over its axis like what is not reduced.

`level` numbers the passes of a block: a value is at level n when it needs the results of n passes, one after another.
An accumulator that only later passes' results go with waits for one that reads what it does (`_wait`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prism.generate.values import Fetch, KernelValue, Scanned
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Read, ReduceKind
from prism.program.nodes import Position as PositionExpr
from prism.program.prefix import Recurrence
from prism.sgraph import nodes as sg

_WITH_EXTREME = frozenset({"rescaled", "first"})
"""Reductions that go with the extreme that is their last operand."""


class Unschedulable(Exception):
    """A value is needed inside a loop over an axis that it reduces itself: no nest of loops has these roles."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a kernel stores: tensor[index...] = value, or a moment of it; or what it adds there, at places."""

    tensor: str
    index: tuple[Index, ...]
    value: KernelValue
    moment: sg.Moment | None = None
    # Of what is added, the dimension of each place, how many places there are, and which it is.
    places: tuple[tuple[int, Extent, KernelValue], ...] = ()

    @property
    def values(self) -> tuple[KernelValue, ...]:
        """What it takes."""
        return (self.value, *(v for _, _, v in self.places))

    @property
    def axes(self) -> frozenset[Axis]:
        """The axes that the store ranges over."""
        return frozenset(a for i in self.index for a in i.axes()) | self.added

    @property
    def added(self) -> frozenset[Axis]:
        """Those along which elements may go to one place."""
        mine = frozenset(a for v in self.values for a in v.axes) if self.places else frozenset[Axis]()
        return mine - {a for i in self.index for a in i.axes()}


@dataclass(slots=True)
class _Block:
    """Statements under construction, inside the loops over `loops` (outermost first)."""

    loops: tuple[Axis, ...]
    parent: _Block | None
    body: list[sg.Stmt] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)

    def find(self, value: KernelValue) -> str | None:
        known = self.names.get(value.number)
        if known is None and self.parent is not None:
            return self.parent.find(value)
        return known


def _is_shifted(value: KernelValue, shift: KernelValue) -> bool:
    """Whether the value is exp(a - shift)."""
    return value.op == "exp" and value.args[0].op == "add" and shift in value.args[0].args[1].args


def _varying(roots: Iterable[KernelValue], axis: str) -> set[KernelValue]:
    """What varies along the axis of that name, of what the roots are made of in one tile of it."""
    seen: set[KernelValue] = set()
    stack = list(roots)
    while stack:
        v = stack.pop()
        if v not in seen and any(a.name == axis for a in v.axes):
            seen.add(v)
            stack += v.args
    return seen


@dataclass(slots=True)
class Scheduler:
    """Schedules one kernel."""

    roles: Mapping[Axis, sg.Role]  # the role of every axis of the kernel
    _count: int = 0
    _levels: dict[tuple[tuple[Axis, ...], int], int] = field(default_factory=dict)

    def run(self, outputs: Sequence[Output]) -> tuple[sg.Stmt, ...]:
        """The kernel's body. Raises Unschedulable: the roles allow no nest of loops."""
        root = _Block((), None)
        self._fill(root, (), outputs)
        return tuple(root.body)

    def is_loop(self, axis: Axis) -> bool:
        """Whether tiles of the axis come one after another."""
        return isinstance(self.roles.get(axis), sg.LoopRole | sg.Split)

    def home(self, value: KernelValue) -> frozenset[Axis]:
        """The loops that the value stands in."""
        return frozenset(a for a in value.axes if self.is_loop(a))

    def passes(self, value: KernelValue, loops: tuple[Axis, ...]) -> bool:
        """Whether the value is an accumulator of a loop in the block of `loops`."""
        return value.is_reduction and self.is_loop(value.axis) and self.home(value) <= set(loops)

    def level(self, value: KernelValue, loops: tuple[Axis, ...]) -> int:
        """How many passes of the block must have ended before the value is known."""
        key = (loops, value.number)
        known = self._levels.get(key)
        if known is None:
            known = self._level(value, loops)
            self._levels[key] = known
        return known

    def _level(self, value: KernelValue, loops: tuple[Axis, ...]) -> int:
        if not self.passes(value, loops):
            return max((self.level(a, loops) for a in value.args), default=0)
        if value.op in _WITH_EXTREME:
            shift = value.args[-1]
            if self._shares_pass(value, loops):
                return self.level(shift, loops)
        return max(self.level(a, loops) for a in value.args) + 1

    def _shares_pass(self, value: KernelValue, loops: tuple[Axis, ...]) -> bool:
        """Whether a rescaled reduction, or a place, can run in the loop that accumulates its shift, or its extreme."""
        shift = value.args[-1]
        if not (shift.is_reduction and shift.axis == value.axis and shift.op not in _WITH_EXTREME):
            return False
        if self.home(shift) != self.home(value):
            return False
        # Of a place what is compared; of an exponential its exponent.
        own, *others = shift.args[0], *value.args[1:-1]
        if value.op == "rescaled":
            within = power = value.args[0]
            if within.is_reduction:
                # Over another axis, too: that is in one tile, as the shift is one of all of it.
                if self.is_loop(within.axis):
                    return False
                power = next(p for p in within.args if _is_shifted(p, shift))
                others = [f for f in within.args if f is not power]
            own = power.args[0].args[0]
        others.append(own)
        return max(self.level(a, loops) for a in others) < self.level(shift, loops)

    def _fill(self, block: _Block, wanted: Sequence[KernelValue], outputs: Sequence[Output]) -> None:
        """Compute `wanted` and store `outputs` in the block."""
        loops = block.loops
        here = [o for o in outputs if self._store_home(o) <= set(loops)]
        deeper = [o for o in outputs if not self._store_home(o) <= set(loops)]
        # Accumulators of this block by (level, axis), and the stores that need a loop of their own.
        passes: dict[tuple[int, str], list[KernelValue]] = defaultdict(list)
        stores: dict[tuple[int, str], list[Output]] = defaultdict(list)
        axes: dict[str, Axis] = {}
        for v in self._uncomputed([*wanted, *(v for o in outputs for v in o.values)], block):
            if self.passes(v, loops):
                axes[v.axis.name] = v.axis
                passes[self.level(v, loops), v.axis.name].append(v)
        for o in deeper:
            axis = min(self._store_home(o) - set(loops), key=lambda a: a.name)
            axes[axis.name] = axis
            stores[max(self.level(v, loops) for v in o.values) + 1, axis.name].append(o)
        self._wait(passes, stores, loops)
        for key in sorted({*passes, *stores}):
            self._loop(block, axes[key[1]], passes.get(key, []), stores.get(key, []))
        for v in wanted:
            self._ensure(v, block)
        for o in here:
            src: sg.Operand = self._operand(o.value, block)
            places = tuple(sg.Place(self._ensure(v, block), d, extent) for d, extent, v in o.places)
            block.body.append(sg.Store(o.tensor, o.index, src, o.moment, places))

    def _wait(
        self,
        passes: dict[tuple[int, str], list[KernelValue]],
        stores: Mapping[tuple[int, str], Sequence[Output]],
        loops: tuple[Axis, ...],
    ) -> None:
        """Moves accumulators to later loops over their axis that read what they do, where earlier ones then read less.

        Only where nothing is computed in both loops that was computed in one.
        """
        loops_over = [name for _, name in {*passes, *stores}]
        if len(set(loops_over)) == len(loops_over):
            return
        latest: dict[KernelValue, int] = {}  # by accumulator, the last level at which it is in time

        def needed(roots: Iterable[KernelValue], by: int) -> None:
            for v in self._results(roots, loops):
                latest[v] = min(latest.get(v, by), by)

        for (level, _), outputs in stores.items():
            needed((v for o in outputs for v in o.values), level - 1)
        for level, name in sorted(passes, reverse=True):
            stored = [v for o in stores.get((level, name), ()) for v in o.values]
            needed((v.args[-1] for v in passes[level, name] if v.op in _WITH_EXTREME), level)
            for later in sorted(m for m, other in {*passes, *stores} if other == name and m > level):
                mine = passes[level, name]
                own = {v: _varying(v.args, name) for v in mine}
                waiting = [a for v in passes.get((later, name), ()) for a in v.args]
                there = _varying([*waiting, *(v for o in stores.get((later, name), ()) for v in o.values)], name)
                moved = {
                    v
                    for v in mine
                    if latest.get(v, later) >= later
                    and isinstance(v.kind, ReduceKind)
                    and v.op not in _WITH_EXTREME
                    and not any(isinstance(o.payload, Read | Fetch | Scanned) for o in own[v] - there)
                }
                left: set[KernelValue] = set()
                while moved != left:
                    left = moved
                    kept = _varying([*stored, *(a for v in mine if v not in moved for a in v.args)], name)
                    moved = {
                        v
                        for v in moved
                        if any(isinstance(o.payload, Read | Fetch) for o in own[v] - kept)
                        and kept.isdisjoint(own[v] - there)
                    }
                passes[level, name] = [v for v in mine if v not in moved]
                passes[later, name] = [*passes.get((later, name), ()), *(v for v in mine if v in moved)]
                needed((a for v in moved for a in v.args), later - 1)
            needed((a for v in passes[level, name] for a in v.args), level - 1)
        for key in [key for key, left in passes.items() if not left]:
            del passes[key]

    def _results(self, roots: Iterable[KernelValue], loops: tuple[Axis, ...]) -> set[KernelValue]:
        """The accumulators of the block that the roots need, but for what those need in turn."""
        seen: set[KernelValue] = set()
        stack = list(roots)
        while stack:
            v = stack.pop()
            if v not in seen:
                seen.add(v)
                stack += () if self.passes(v, loops) else v.args
        return {v for v in seen if self.passes(v, loops)}

    def _store_home(self, output: Output) -> frozenset[Axis]:
        return frozenset(a for a in output.axes if self.is_loop(a))

    def _uncomputed(self, roots: Iterable[KernelValue], block: _Block) -> list[KernelValue]:
        """What must be computed in this block or inside it, operands before results."""
        seen: dict[int, KernelValue] = {}
        stack = list(roots)
        while stack:
            v = stack.pop()
            if v.number in seen or block.find(v) is not None:
                continue
            seen[v.number] = v
            stack.extend(v.args)
        return [seen[n] for n in sorted(seen)]

    def _loop(self, block: _Block, axis: Axis, accumulators: Sequence[KernelValue], outputs: Sequence[Output]) -> None:
        """One pass over the axis: its accumulators, and the stores inside it."""
        if axis in block.loops:
            raise Unschedulable
        inner = _Block((*block.loops, axis), block)
        operands = [a for v in accumulators for a in self._tile_operands(v)]
        for v in self._uncomputed([*operands, *(v for o in outputs for v in o.values)], block):
            # Hoisting: what does not vary in the loop is computed before it (values of other loops excepted).
            fixed = self.home(v) <= set(block.loops) and not isinstance(v.payload, Const)
            if fixed and not self._uses_running(v, accumulators) and self._ready(v, block):
                self._ensure(v, block)
        # A shift that an earlier loop has found needs no running value.
        own = {v.number for v in accumulators}
        shared = {v.number for v in accumulators if v.op in _WITH_EXTREME and self._shares_pass(v, block.loops)}
        plain = [v for v in accumulators if v.number not in shared or v.args[-1].number not in own]
        rescaled = [v for v in accumulators if v not in plain]
        if not {v.args[-1] for v in rescaled if v.op == "first"}.isdisjoint(
            v.args[-1] for v in rescaled if v.op == "rescaled"
        ):
            # While all is -inf, exponents are shifted by 0 in the place of the extreme.
            raise Unschedulable
        nested = [a for v in plain for a in self._tile_operands(v)]
        self._fill(inner, nested, ())
        names: dict[int, str] = {}
        for v in plain:
            src = self._tile_part(v, inner)
            names[v.number] = self._name("acc")
            inner.body.append(sg.Accumulate(names[v.number], self._kind(v), src))
        inner.names.update(names)
        self._fill(inner, [a for v in rescaled for a in self._tile_operands(v)], ())
        for v in rescaled:
            src = self._tile_part(v, inner)
            names[v.number] = self._name("acc")
            inner.body.append(sg.Accumulate(names[v.number], self._kind(v), src, names[v.args[-1].number]))
        if outputs:
            self._fill(inner, (), outputs)
        back = {s.how.back for s in inner.body if isinstance(s, sg.Scan)}
        if len(back) > 1 or (True in back and any(isinstance(v.kind, sg.Statistic) for v in accumulators)):
            raise Unschedulable
        block.body.append(sg.Loop(axis, tuple(inner.body)))
        block.names.update(names)

    def _uses_running(self, value: KernelValue, accumulators: Sequence[KernelValue]) -> bool:
        """Whether the value needs an accumulator of the loop that is being built."""
        numbers = {v.number for v in accumulators}
        stack = [value]
        seen: set[int] = set()
        while stack:
            v = stack.pop()
            if v.number in numbers:
                return True
            if v.number not in seen:
                seen.add(v.number)
                stack.extend(v.args)
        return False

    def _ready(self, value: KernelValue, block: _Block) -> bool:
        """Whether every accumulator that the value needs is there already."""
        stack = [value]
        while stack:
            v = stack.pop()
            if block.find(v) is not None:
                continue
            if v.is_reduction and self.is_loop(v.axis):
                return False
            stack.extend(v.args)
        return True

    @staticmethod
    def _kind(value: KernelValue) -> sg.Kind:
        assert value.kind is not None
        return value.kind

    @staticmethod
    def _tile_operands(value: KernelValue) -> tuple[KernelValue, ...]:
        """What the tile part of a reduction is made of."""
        return value.args[:-1] if value.op in _WITH_EXTREME else value.args

    def _tile_part(self, value: KernelValue, block: _Block) -> str:
        """The reduction over the tile's part of the axis."""
        operands = self._tile_operands(value)
        dst = self._name("part")
        names = tuple(self._ensure(a, block) for a in operands)
        if len(names) == 2:
            block.body.append(sg.Contract(dst, value.axis, *names))
        else:
            block.body.append(sg.TileReduce(dst, self._kind(value), value.axis, names[0], names[1:]))
        return dst

    def _scan(self, axis: Axis, how: Recurrence, value: KernelValue, block: _Block) -> str:
        """What is combined along a whole axis, or one that the block is the loop over."""
        role = self.roles[axis]
        if not isinstance(role, sg.Whole) and (not isinstance(role, sg.LoopRole) or block.loops[-1:] != (axis,)):
            raise Unschedulable
        src = self._ensure(value.args[0], block)
        growth = self._operand(value.args[1], block) if len(value.args) == 2 else None
        name = self._name("sum")
        block.body.append(sg.Scan(name, axis, src, growth, how))
        return name

    def _operand(self, value: KernelValue, block: _Block) -> sg.Operand:
        if isinstance(value.payload, Const):
            return value.payload.value
        return self._ensure(value, block)

    def _ensure(self, value: KernelValue, block: _Block) -> str:
        """The name of the value, computed in this block if it is not there yet."""
        known = block.find(value)
        if known is not None:
            return known
        match value.payload:
            case Read(tensor, index):
                name = self._name("x")
                block.body.append(sg.Load(name, tensor, index))
            case Fetch(tensor, index, along):
                named = [self._ensure(a, block) for a in value.args]
                places = tuple(sg.Place(v, d, extent) for v, (d, extent) in zip(named, along, strict=True))
                name = self._name("x")
                block.body.append(sg.Gather(name, tensor, index, places))
            case PositionExpr(index):
                name = self._name("i")
                block.body.append(sg.Position(name, index))
            case Const(number):
                name = self._name("c")
                block.body.append(sg.Pointwise(name, "add", (number, 0.0)))
            case Scanned(axis, how):
                name = self._scan(axis, how, value, block)
            case Axis():
                assert not self.is_loop(value.axis), "an accumulator is made by its loop"
                name = self._tile_part(value, block)
            case None:
                args = tuple(self._operand(a, block) for a in value.args)
                name = self._name("v")
                block.body.append(sg.Pointwise(name, value.op, args))
        block.names[value.number] = name
        return name

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"
