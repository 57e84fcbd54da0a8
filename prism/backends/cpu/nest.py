"""One loop nest as C++: the innermost loop in vectors, every value at the depth that its lanes ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from prism.backends import tile
from prism.backends.cpu.cxx import KIND_TYPES, Names, Writer, converted, factor, integer, literal, operation
from prism.backends.cpu.schedule import Group, Root, Scheduler
from prism.backends.cpu.values import KINDS, Lane, Values, View
from prism.backends.tile import Operand
from prism.errors import UnsupportedError
from prism.ir.kit import operands
from prism.program.extents import Extent
from prism.program.nodes import DType, ReduceKind

REDUCERS: Mapping[ReduceKind, str] = {kind: kind.capitalize() for kind in ReduceKind}
UNROLLED = 4
"""Sums that a vectorised reduction keeps side by side, to hide the latency of an addition."""
HEAVY = 12
"""Operations from which on they, and not adding up what they make, take the time."""
ROWS = 8
"""Elements that a reduction along another lane than that of the vectors takes in registers."""
RUN = 32
"""Vectors that each of the sums of a vectorised reduction takes before a second sum takes theirs."""
SMALLEST = 8
"""Lanes that vectors have at least, where sums of many elements are worth a thought."""


def narrow(lane: Lane) -> bool:
    """Whether all of an axis fills no vector."""
    return isinstance(lane.extent, int) and lane.extent < SMALLEST


@dataclass(frozen=True, slots=True)
class Text:
    """An expression: its source, and whether it is a vector."""

    source: str
    vector: bool


@dataclass(slots=True)
class Storage:
    """Where the kept values of a program are."""

    v: Values
    scheduler: Scheduler  # what is kept, and in which order of lanes
    arrays: set[str] = field(default_factory=set)  # names of values in arrays; those without lanes are variables
    # Those of them whose sums are sums of sums: an array for those is beside them.
    blocked: frozenset[str] = frozenset()

    def lanes(self, name: str) -> tuple[str, ...]:
        """The lanes of an array in the order of memory, the slowest first.

        What reductions make is walked in vectors, along a lane that fills them if there is one.
        """
        lanes = self.scheduler.order.get(name)
        if lanes is not None:
            return lanes
        lanes = self.v.lanes_of(name)
        value = self.v.values.get(name)
        if value is None or not isinstance(value.stmt, tile.Reduce) or not narrow(self.v.lanes[lanes[-1]]):
            return lanes
        return tuple(sorted(lanes, key=lambda n: not narrow(self.v.lanes[n])))

    def is_stored(self, name: str) -> bool:
        """Whether a value is taken from where it is held, and not computed anew."""
        s = self.v.values[name].stmt
        return name in self.arrays or name in self.v.accumulators or name in self.scheduler.kept or (
            isinstance(s, tile.Reduce | tile.Dot)
        )  # fmt: skip

    def stride(self, name: str, lane: str, names: Names) -> str:
        """Elements between neighbours along a lane, as source."""
        lanes = self.lanes(name)
        after = lanes[lanes.index(lane) + 1 :]
        return " * ".join(f"n_{names(x)}" for x in after) or "1"


@dataclass(slots=True)
class NestEmitter:
    """Writes one nest."""

    group: Group  # its roots
    storage: Storage  # where kept values are
    names: Names  # C++ identifiers
    w: Writer  # where it is written
    local: frozenset[str]  # kept values that only this nest reads: they are in no array
    again: frozenset[str] = frozenset()  # loads that a later nest repeats; `repeated`: those that an earlier one made
    repeated: frozenset[str] = frozenset()
    _order: tuple[str, ...] = ()
    _code: list[list[str]] = field(default_factory=list)
    _after: list[list[str]] = field(default_factory=list)
    _memo: dict[str, Text] = field(default_factory=dict)
    _sums: list[tuple[str, str]] = field(default_factory=list)
    _rows: str | None = None
    _run: tuple[str, str] = ("", "")
    _starts: list[str] = field(default_factory=list)
    _ends: list[str] = field(default_factory=list)
    _heavy: bool = False
    _wide: bool = False

    @property
    def v(self) -> Values:
        """The values."""
        return self.storage.v

    @property
    def vector(self) -> str | None:
        """The lane that is walked in vectors."""
        return self._order[-1] if self._order else None

    def run(self) -> None:
        """Writes the nest."""
        self._order = self._choose()
        self._rows = self._taken_in_rows()
        if self._rows is not None:
            first, end = (self.names.fresh(f"{which}_{self.names(self._rows)}") for which in ("first", "end"))
            self._run = first, end
        self._code = [[] for _ in range(len(self._order) + 1)]
        self._after = [[] for _ in range(len(self._order) + 1)]
        for root in self.group.roots:
            self._declare(root)
            self._root(root)
        if not self._order:
            self.w.lines(self._code[0])
            return
        with self.w.block():
            self._level(0)

    # Loops.

    def _level(self, depth: int) -> None:
        w = self.w
        w.lines(self._code[depth])
        lane = self._order[depth]
        index, count = f"i_{self.names(lane)}", f"n_{self.names(lane)}"
        if depth < len(self._order) - 1:
            if lane == self._rows:
                first, end = self._run
                with w.block(f"for (int64_t {first} = 0; {first} < {count}; {first} += {ROWS})"):
                    w.line(f"const int64_t {end} = v_mini({count}, {first} + {ROWS});")
                    self._level(depth + 1)
            else:
                with w.block(f"for (int64_t {index} = 0; {index} < {count}; ++{index})"):
                    self._level(depth + 1)
            w.lines(self._after[depth])
            return
        self._innermost(depth, index, count)
        w.lines(self._after[depth])

    def _innermost(self, depth: int, index: str, count: str) -> None:
        """The loop in vectors, with its sums."""
        w = self.w
        unrolled = 1 if self._heavy or not self._sums else UNROLLED
        # One after another, many numbers round worse than torch's sums, which are of sums.
        long = [name for name, kind in self._sums if kind == "Sum" and self._is_long(self._order[depth])]
        for name, kind in self._sums:
            starts = ", ".join([f"v_all({kind}::start)"] * unrolled)
            w.line(f"vf {name}[{unrolled}] = {{{starts}}};")
            if name in long:
                w.line(f"vf {name}_runs[{unrolled}] = {{{starts}}};")
        with w.block(f"auto body = [&](auto full, auto part, int64_t {index}, int64_t lanes) PRISM_BODY", ";"):
            self._body(self._code[depth + 1])
        w.line(f"int64_t {index} = 0;")

        def vectors(limit: str) -> None:
            if unrolled > 1:
                with w.block(f"for (; {index} + {unrolled} * VL <= {limit}; {index} += {unrolled} * VL)"):
                    for n in range(unrolled):
                        place = f"{index} + {n} * VL" if n else index
                        w.line(f"body(Whole{{}}, Count<{n}>{{}}, {place}, VL);")
            else:
                w.line(f"for (; {index} + VL <= {limit}; {index} += VL) body(Whole{{}}, Count<0>{{}}, {index}, VL);")

        if long:
            with w.block(f"while ({index} + {unrolled} * VL <= {count})"):
                w.line(f"const int64_t run = v_mini({count}, {index} + {RUN * unrolled} * VL);")
                vectors("run")
                for name in long:
                    w.line(f"v_add_to({name}_runs, {name});")
        else:
            vectors(count)
        if unrolled > 1:
            w.line(f"for (; {index} + VL <= {count}; {index} += VL) body(Whole{{}}, Count<0>{{}}, {index}, VL);")
        w.line(f"if ({index} < {count}) body(Part{{}}, Count<0>{{}}, {index}, {count} - {index});")
        for name in long:
            w.line(f"v_add_to({name}, {name}_runs);")
        for name, kind in self._sums:
            text = f"{name}[0]"
            if unrolled == UNROLLED:
                pairs = [f"{kind}::of({name}[{n}], {name}[{n + 1}])" for n in (0, 2)]
                text = f"{kind}::of({pairs[0]}, {pairs[1]})"
            w.line(f"const float {name}_all = v_across({kind}{{}}, {text});")

    def _is_long(self, lane: str) -> bool:
        """Whether it may have more elements than a vector's sums take one after another."""
        extent = self.v.lanes[lane].extent
        return not (isinstance(extent, int) and extent <= RUN * SMALLEST)

    def _body(self, code: Sequence[str]) -> None:
        """What is done for one vector: once, or for each of a few rows."""
        if self._rows is None:
            self.w.lines(code)
            return
        index, (first, end) = f"i_{self.names(self._rows)}", self._run
        self.w.lines(self._starts)
        if self._wide:
            self.w.line(f"#pragma GCC unroll {ROWS}")
        with self.w.block(f"for (int64_t {index} = {first}; {index} < {end}; ++{index})"):
            self.w.lines(code)
        self.w.lines(self._ends)

    def _taken_in_rows(self) -> str | None:
        """The lane of which a few elements are reduced in registers, in vectors along another one."""
        gone = {r.gone for r in self.group.roots if r.kind == "reduce"}
        return next(iter(gone)) if len(gone) == 1 and self.vector not in gone else None

    def _choose(self) -> tuple[str, ...]:
        """The loops, outermost first: the lane that fills vectors in which most of memory is contiguous is the last."""
        lanes = self.group.lanes
        if not lanes:
            return ()
        score = dict.fromkeys(lanes, 0)
        seen: set[str] = set()

        def weigh(strides: Mapping[str, Extent], weight: int) -> None:
            for lane, stride in strides.items():
                if lane in score:
                    score[lane] += (weight if stride == 1 else -weight) * 4 ** len(strides)

        def visit(name: str) -> None:
            if name in seen or name not in self.v.values:
                return
            seen.add(name)
            if name in self.storage.arrays:
                order = self.storage.lanes(name)
                weigh({n: 1 if n == order[-1] else 2 for n in order}, 1)
            elif name in self.v.views:
                weigh(dict.fromkeys(self.v.chosen(name), 2) | dict(self.v.views[name].strides), 2)
            elif name not in self.v.accumulators:
                for operand in _inputs(self.v, self.v.values[name].stmt):
                    visit(operand)

        for root in self.group.roots:
            for operand in _inputs(self.v, root.stmt):
                visit(operand)
            for name in root.writes:
                visit(name)
            if isinstance(root.stmt, tile.Store):
                s = root.stmt
                weigh(self.v.view(s.tensor, s.offset, s.masks).strides, 3)
        order = {n: k for k, n in enumerate(lanes)}
        wide = [n for n in lanes if not narrow(self.v.lanes[n]) and score[n] > 0]
        last = max(wide or lanes, key=lambda n: (score[n], order[n]))
        return (*(n for n in lanes if n != last), last)

    # Roots.

    def _depth(self, lanes: Sequence[str]) -> int:
        if self._rows in lanes:
            return len(self._order)
        return max((self._order.index(n) + 1 for n in lanes), default=0)

    def _put(self, depth: int, line: str) -> None:
        self._code[depth].append(line)

    def _root(self, root: Root) -> None:
        s = root.stmt
        depth = len(self._order)
        match root.kind:
            case "fill":
                assert isinstance(s, tile.Full)
                kind = self.v.kind_of(s.dst)
                self._write(s.dst, Text(literal(s.value, kind), False), depth, declare=True)
            case "keep":
                name = root.dst
                text = self._evaluate(name)
                if name in self.local:
                    self._memo[name] = text
                else:
                    self._write(name, text, depth, declare=True)
            case "update":
                assert isinstance(s, tile.Update)
                vector = self.vector is not None
                made = self._as(self._value(s.src), vector)
                if s.kind is not None:
                    made = f"{REDUCERS[s.kind]}::of({self._as(self._value(s.acc), vector)}, {made})"
                self._memo.pop(s.acc, None)
                self._write(s.acc, Text(made, vector), depth)
            case "store":
                assert isinstance(s, tile.Store)
                self._store(s, depth)
            case "reduce":
                self._reduce(root, depth)

    def _declare(self, root: Root) -> None:
        """Where a fresh reduction goes, and the sums of a few terms of it."""
        if root.kind == "reduce" and self._in_blocks(root):
            count = " * ".join(f"n_{self.names(n)}" for n in self.v.lanes_of(root.dst))
            self.w.line(f"v_fill(b_{self.names(root.dst)}, 2 * {count}, 0.0f);")
        if root.kind != "reduce" or root.into is not None:
            return
        assert isinstance(root.stmt, tile.Reduce)
        lanes, own = self.v.lanes_of(root.dst), self.names(root.dst)
        if not lanes:
            self.w.line(f"float {own};")
        elif root.gone != self.vector:
            count = " * ".join(f"n_{self.names(n)}" for n in lanes)
            self.w.line(f"v_fill(t_{own}, {count}, {REDUCERS[root.stmt.kind]}::start);")

    def _in_blocks(self, root: Root) -> bool:
        """Whether it is a sum along another lane than that of the vectors, and long."""
        return root.dst in self.storage.blocked and root.gone != self.vector

    def _write(self, name: str, text: Text, depth: int, declare: bool = False) -> None:
        """A value into its array or variable, and what it is from here on."""
        own = self.names(name)
        if not self.v.lanes_of(name):
            kind = KIND_TYPES[self.v.kind_of(name)]
            self._put(depth, f"{kind + ' ' if declare else ''}{own} = {text.source};")
            self._memo[name] = Text(own, False)
            return
        temporary = self.names.fresh(own)
        self._put(depth, f"const auto {temporary} = {self._as(text, True)};")
        self._memo[name] = Text(temporary, True)
        address, stride = self._place(name)
        if stride == "1":
            self._put(depth, f"v_st(full, {address}, {temporary}, lanes);")
        else:
            self._put(depth, f"v_scatter(full, {address}, {stride}, {temporary}, lanes);")

    def _place(self, name: str) -> tuple[str, str]:
        """The address of an element of an array, and the stride along the vector."""
        parts: list[str] = []
        stride = "0"
        for lane in self.storage.lanes(name):
            along = self.storage.stride(name, lane, self.names)
            parts.append(f"i_{self.names(lane)}" + ("" if along == "1" else f" * {along}"))
            if lane == self.vector:
                stride = along
        return f"t_{self.names(name)} + {' + '.join(parts)}", stride

    def _store(self, s: tile.Store, depth: int) -> None:
        view = self.v.view(s.tensor, s.offset, s.masks)
        dtype = self.v.tensor(s.tensor).dtype
        if isinstance(s.src, str):
            text, kind = self._value(s.src), self.v.kind_of(self.v.resolve(s.src))
        else:
            text, kind = Text(literal(s.src, KINDS[dtype]), False), KINDS[dtype]
        if kind != KINDS[dtype]:
            raise UnsupportedError(f"a store of {kind} to {s.tensor}", where=f"C++ emission of {self.v.program.name}")
        address, lanewise = self._placed(view)
        masks = [self._value(m) for m in view.masks]
        tests = [m.source for m in masks if not m.vector]
        guard = f"if ({' && '.join(tests)}) " if tests else ""
        shared = "true" if s.adds is tile.Adds.SHARED else "false"
        if self.vector is None:
            put = f"v_more<{shared}>" if s.adds is not None else "v_put"
            self._put(depth, f"{guard}{put}({address}, {text.source});")
            return
        stride = self._number(view.strides.get(self.vector, 0))
        source = self._as(text, True)
        varying = [m.source for m in masks if m.vector]
        if s.adds is not None and (varying or lanewise or stride != "1"):
            mask = " & ".join(varying) or "v_lanes(VL)"
            self._put(
                depth, f"{guard}v_more_at<{shared}>(full, {mask}, {address}, {stride}, {source}, lanes{lanewise});"
            )
        elif s.adds is not None:
            self._put(depth, f"{guard}v_more_in<{shared}>(full, {address}, {source}, lanes);")
        elif varying:
            mask = " & ".join(varying)
            self._put(depth, f"{guard}v_scatter_if(full, {mask}, {address}, {stride}, {source}, lanes);")
        elif stride == "1":
            self._put(depth, f"{guard}v_out(past, full, {address}, {source}, lanes);")
        else:
            self._put(depth, f"{guard}v_scatter(full, {address}, {stride}, {source}, lanes);")

    def _reduce(self, root: Root, depth: int) -> None:
        s = root.stmt
        assert isinstance(s, tile.Reduce)
        kind, dst = REDUCERS[s.kind], root.dst
        text = self._value(s.src)
        if root.gone != self.vector:
            # The array holds the running values; a fresh one was filled before the nest.
            address, stride = self._place(dst)
            old = f"v_ld(full, {address}, lanes)" if stride == "1" else f"v_gather(full, {address}, {stride}, lanes)"
            name = self.names.fresh(self.names(dst))

            def store(at: str, value: str) -> str:
                if stride == "1":
                    return f"v_st(full, {at}, {value}, lanes);"
                return f"v_scatter(full, {at}, {stride}, {value}, lanes);"

            lane = root.gone or ""
            made, then = self._as(text, True), f"i_{self.names(lane)} + 1"
            put: Callable[[str], None] = partial(self._put, depth)
            if self._rows is not None:
                several = self.names.fresh(f"s_{self.names(dst)}")
                # Without jumps between them, one's operations fill the waits of another's.
                self._wide = self._wide or HEAVY < self.storage.scheduler.cost(self.v.resolve(s.src)) < 4 * HEAVY
                self._starts.append(f"vf {several} = v_all({kind}::start);")
                self._put(depth, f"{several} = {kind}::of({several}, {made});")
                made, then, put = several, self._run[1], self._ends.append
            if not self._in_blocks(root):
                put(f"const vf {name} = {kind}::of({old}, {made});")
                put(store(address, name))
                return
            # One after another, sums round worse than torch's, which are sums of sums as well.
            held, last = f"b_{address.removeprefix('t_')}", f"{then} == n_{self.names(lane)}"
            units = f"({then} + {ROWS - 1}) / {ROWS}" if self._rows is not None else then
            count = " * ".join(f"n_{self.names(n)}" for n in self.v.lanes_of(dst))
            put(f"v_cascade(full, {address}, {held}, {count}, {stride}, {made}, {units}, {last}, lanes);")
            return
        own = self.names.fresh(f"s_{self.names(dst)}")
        self._sums.append((own, kind))
        self._heavy = self._heavy or self.storage.scheduler.cost(self.v.resolve(s.src)) > HEAVY
        # How many sums there are is known at the end; `part` then stands below that number.
        self._put(
            depth,
            f"{own}[part.n] = {kind}::of({own}[part.n], v_inside({kind}{{}}, full, {self._as(text, True)}, lanes));",
        )
        if self.v.lanes_of(dst):
            place = self._place(dst)[0].removeprefix(f"t_{self.names(dst)} + ")
            place = f"t_{self.names(dst)}[{place}]"
        else:
            place = self.names(dst)
        total = f"{own}_all"
        if root.into is not None:
            total = f"{kind}::of({place}, {total})"
        self._after[depth - 1].append(f"{place} = {total};")

    # Values.

    def _number(self, e: Extent) -> str:
        return factor(e, self.names)

    def _as(self, text: Text, vector: bool) -> str:
        return f"v_all({text.source})" if vector and not text.vector else text.source

    def _value(self, operand: Operand) -> Text:
        """A value as a name or a short expression."""
        assert isinstance(operand, str)
        name = self.v.resolve(operand)
        if name in self._memo:
            return self._memo[name]
        if name not in self.v.values:
            return Text(f"(int32_t){self.names(name)}", False)
        text = self._read(name) if self.storage.is_stored(name) else self._evaluate(name)
        self._memo[name] = text
        return text

    def _name(self, name: str, source: str, lanes: Sequence[str]) -> Text:
        """A new variable at the depth of its lanes."""
        made = self.names.fresh(self.names(name))
        self._put(self._depth(lanes), f"const auto {made} = {source};")
        return Text(made, self.vector is not None and self.vector in lanes)

    def _read(self, name: str) -> Text:
        lanes = self.v.lanes_of(name)
        if not lanes:
            return Text(self.names(name), False)
        address, stride = self._place(name)
        if self.vector not in lanes:
            return self._name(name, f"*({address})", lanes)
        if stride == "1":
            return self._name(name, f"v_ld(full, {address}, lanes)", lanes)
        return self._name(name, f"v_gather(full, {address}, {stride}, lanes)", lanes)

    def _address(self, view: View) -> str:
        parts = [f"p_{self.names(view.tensor)}"]
        if view.offset != 0:
            parts.append(integer(view.offset, self.names))
        for lane, stride in view.strides.items():
            index = f"i_{self.names(lane)}"
            parts.append(index if stride == 1 else f"{index} * {self._number(stride)}")
        return " + ".join(parts)

    def _placed(self, view: View) -> tuple[str, str]:
        """The address with its places, and further arguments of those that each lane of a vector has its own of."""
        places = [(self._value(n), self._number(c)) for n, c in view.places]
        same = "".join(f" + (int64_t){t.source} * {c}" for t, c in places if not t.vector)
        return self._address(view) + same, "".join(f", {t.source}, (int64_t){c}" for t, c in places if t.vector)

    def _evaluate(self, name: str) -> Text:
        value = self.v.values[name]
        lanes, s = value.lanes, value.stmt
        vector = self.vector is not None and self.vector in lanes
        match s:
            case tile.Load():
                return self._load(name, s, vector)
            case tile.Offsets():
                start = integer(self.v.lanes[name].start, self.names)
                place = f"(int32_t)({start} + i_{self.names(name)})"
                return self._name(name, f"{place} + v_iota()" if vector else place, lanes)
            case tile.IndexValue(_, index, _):
                return self._name(name, self._index(index, vector), lanes)
            case tile.InBounds(_, index, high, low, _):
                made = self._name(f"{name}_at", self._index(index, vector), lanes).source
                bounds = ((">=", low), ("<", high))
                tests = [f"({made} {sign} (int32_t)({integer(e, self.names)}))" for sign, e in bounds if e is not None]
                return self._name(name, (" & " if vector else " && ").join(tests), lanes)
            case tile.Full(_, number_, _, _):
                return Text(literal(number_, value.kind), False)
            case tile.Copy(_, src):
                return self._value(src)
            case tile.Cast(_, src, dtype):
                return self._cast(name, src, dtype, lanes)
            case tile.Select(_, mask, src, otherwise):
                keep, given = self._value(mask), self._value(src)
                vector = vector and (keep.vector or given.vector)
                source = (
                    f"v_sel({self._as(keep, vector)}, {self._as(given, vector)}, "
                    f"{self._as(Text(literal(otherwise, value.kind), False), vector)})"
                )
                return self._name(name, source, lanes)
            case tile.Pointwise():
                return self._pointwise(name, s, lanes)
            case _:
                raise UnsupportedError(
                    f"no C++ expression for {type(s).__name__}", where=f"C++ emission of {self.v.program.name}"
                )

    def _index(self, index: tile.Affine, vector: bool) -> str:
        offset, strides = self.v.affine(index)
        parts = [integer(offset, self.names)] if offset != 0 or not strides else []
        for lane, stride in strides.items():
            place = f"i_{self.names(lane)}"
            parts.append(place if stride == 1 else f"{place} * {self._number(stride)}")
        place = f"(int32_t)({' + '.join(parts)})"
        if not vector or self.vector not in strides:
            return place
        stride = self._number(strides[self.vector])
        return f"{place} + v_iota()" if stride == "1" else f"{place} + v_iota() * (int32_t){stride}"

    def _load(self, name: str, s: tile.Load, vector: bool) -> Text:
        view = self.v.views[name]
        tensor = self.v.tensor(s.tensor)
        address, lanewise = self._placed(view)
        masks = [self._value(m) for m in view.masks]
        fixed = " && ".join(m.source for m in masks if not m.vector)
        varying = " & ".join(m.source for m in masks if m.vector)
        zero = {"f": "0.0f", "i": "(int32_t)0", "l": "(int64_t)0", "b": "false"}[KINDS[tensor.dtype]]
        if not vector:
            source = f"v_one({address})"
            if fixed:
                source = f"({fixed}) ? {source} : {zero}"
        else:
            assert self.vector is not None
            stride = self._number(view.strides.get(self.vector, 0))
            if lanewise:
                kept = varying or "v_lanes(VL)"
                source = f"v_pick(full, {kept}, {address}, {stride}, lanes{lanewise})"
            elif varying:
                source = f"v_gather_if(full, {varying}, {address}, {stride}, lanes)"
            elif stride == "1":
                # Of a short run, what comes after it is not what is loaded next.
                long = f"soon && n_{self.names(self.vector)} * {tensor.dtype.bytes} >= PAGE"
                source = f"v_in({self._ahead(name, long, tensor.dtype.bytes)}, full, {address}, lanes)"
            elif stride == "0":
                source = f"v_all(v_one({address}))"
            else:
                source = f"v_gather(full, {address}, {stride}, lanes)"
            if fixed:
                source = f"({fixed}) ? {source} : v_all({zero})"
        stored, kind = KINDS[tensor.dtype], self.v.values[name].kind
        if stored != kind:
            source = converted(source, stored, kind, vector)
        return self._name(name, source, self.v.lanes_of(name))

    def _ahead(self, name: str, long: str, width: int) -> str:
        """How far ahead a load asks for memory, in bytes; 0 for not at all.

        What several nests load is asked for by the last of them, for the next tile: memory answers while it computes.
        """
        if name not in self.again | self.repeated:
            return f"{long} ? AHEAD : 0"
        strides = self.v.views[name].strides
        slow = max(strides, key=lambda n: (strides[n] != 1, isinstance(strides[n], int) and strides[n]))
        tile_bytes = f"n_{self.names(slow)} * {self._number(strides[slow])} * {width}"
        return f"{long} ? v_next(soon, {tile_bytes}, {'true' if name in self.again else 'false'}) : 0"

    def _cast(self, name: str, src: str, dtype: DType, lanes: Sequence[str]) -> Text:
        given = self._value(src)
        before, after = self.v.kind_of(self.v.resolve(src)), KINDS[dtype]
        if before == after:
            if dtype is DType.BFLOAT16:
                return self._name(name, f"v_as_bf16({given.source})", lanes)
            if dtype is DType.FLOAT16:
                return self._name(name, f"v_as_f16({given.source})", lanes)
            return given
        made = self._name(name, converted(given.source, before, after, given.vector), lanes)
        return Text(made.source, given.vector)

    def _pointwise(self, name: str, s: tile.Pointwise, lanes: Sequence[str]) -> Text:
        kinds = [self.v.kind_of(self.v.resolve(a)) for a in s.args if isinstance(a, str)]
        if s.op == "where":
            branches = [a for a in s.args[1:] if isinstance(a, str)]
            kind = self.v.kind_of(self.v.resolve(branches[0])) if branches else self.v.values[name].kind
        else:
            kind = kinds[0]
        args: list[Text] = []
        for n, a in enumerate(s.args):
            wanted = "b" if s.op == "where" and n == 0 else kind
            args.append(self._value(a) if isinstance(a, str) else Text(literal(a, wanted), False))
        vector = any(a.vector for a in args)
        texts = [self._as(a, vector) for a in args]
        return Text(self._name(name, operation(s.op, texts, kind, vector, self.v.program.name), lanes).source, vector)


def loads_of(s: tile.Stmt, storage: Storage) -> frozenset[str]:
    """The loads that a root makes, rather than taking a value from an array."""
    found: set[str] = set()
    seen: set[str] = set()
    todo = _inputs(storage.v, s)
    while todo:
        name = todo.pop()
        if name in seen or name not in storage.v.values or storage.is_stored(name):
            continue
        seen.add(name)
        if name in storage.v.views:
            found.add(name)
        todo += _inputs(storage.v, storage.v.values[name].stmt)
    return frozenset(found)


def _inputs(v: Values, s: tile.Stmt) -> list[str]:
    """The values that a statement reads, its address left out."""
    if isinstance(s, tile.Load | tile.Store):
        named = [m for m in s.masks if not v.holds(m)] + [n for n, _ in s.offset.terms if v.is_place(n)]
        if isinstance(s, tile.Store) and isinstance(s.src, str):
            named.append(s.src)
        return [v.resolve(n) for n in named]
    return [v.resolve(n) for n in operands(s) if not v.holds(n)]
