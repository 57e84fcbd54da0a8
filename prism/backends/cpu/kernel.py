"""One tile program as a C++ function: what it declares, its blocks, its matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest

import sympy

from prism.backends import tile
from prism.backends.cpu.cxx import KIND_TYPES, CxxIntegers, Names, Writer, factor, integer, literal
from prism.backends.cpu.levels import with_products_of_bytes
from prism.backends.cpu.nest import NestEmitter, Storage, loads_of
from prism.backends.cpu.schedule import Group, Root, Scheduler
from prism.backends.cpu.values import Lane, Values, find_products
from prism.backends.cpu.windows import Window, find_windows
from prism.backends.place import write_place
from prism.backends.tile import GridAxis, Size, Stmt, TileProgram, scalars, symbol
from prism.ir.kit import statements
from prism.program.extents import Extent, add, mul
from prism.program.nodes import DType, ReduceKind
from prism.program.windows import WindowAxis

TENSOR_TYPES = {
    DType.FLOAT32: "float",
    DType.FLOAT16: "f16",
    DType.BFLOAT16: "bf16",
    DType.INT64: "int64_t",
    DType.INT32: "int32_t",
    DType.INT16: "int16_t",
    DType.INT8: "int8_t",
    DType.UINT8: "uint8_t",
    DType.BOOL: "bool",
}

SHORT = 32
"""Sums of so few elements are added up one after another."""
COPIES = 2
"""Windows of a program whose copies stay from one program to the next (by definition: `csrc/calls.hpp` has so many)."""
MANY = 2048
"""A loop along fewer elements seldom has many more trips."""


@dataclass(slots=True)
class KernelEmitter:
    """Writes the functions of one tile program: `<name>_program` and `<name>_room`, the bytes of scratch it needs."""

    program: TileProgram  # the tile program
    w: Writer  # where they are written
    v: Values = field(init=False)
    scheduler: Scheduler = field(init=False)
    names: Names = field(init=False)
    storage: Storage = field(init=False)
    # The functions that its matrix products are where these are compiled apart, as `multiply-f16`.
    products: set[str] = field(default_factory=set)
    _groups: list[Group] = field(default_factory=list)
    _local: frozenset[str] = frozenset()
    _carried: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.program = with_products_of_bytes(self.program)
        self.v = Values(self.program)
        self.v.run()
        products, gone = find_products(self.v)
        windows = find_windows(self.v, products)
        taken = [w.product for w in windows.values()]
        products = {key: p for key, p in products.items() if p not in taken}
        self.scheduler = Scheduler(self.v, products, windows, gone)
        self._groups = self.scheduler.run()
        p = self.program
        everything = {*self.v.values, *self.v.scalars, *(t.name for t in p.tensors)}
        self.names = Names(everything)
        self.storage = Storage(self.v, self.scheduler)
        self._local = self._locals()
        self.storage.arrays = {n for n in self._made() if self.v.lanes_of(n)} - self._local
        self.storage.blocked = frozenset(r.dst for _, r in self._roots(self._groups) if self._is_long_sum(r))
        self._carried = {r.place: self._summed(r) for _, r in self._roots(self._groups) if r.kind == "loop"}

    @property
    def imbalanced(self) -> bool:
        """Whether some programs do more than others, whatever the tiles' sizes.

        At an image's borders they do little less, and equal shares are of neighbours, which see some of the same.
        """
        place = self._placed()
        whole = {id(s) for w in self.scheduler.windows.values() for s in w.loops}
        loops = (s for s in statements(self.program.body) if isinstance(s, tile.For) and id(s) not in whole)
        return any((scalars(s.start) | scalars(s.stop)) & place for s in loops)

    @property
    def multiplies(self) -> bool:
        """Whether there are matrix products."""
        return any(r.product is not None or r.window is not None for _, r in self._roots(self._groups))

    @property
    def ragged(self) -> tuple[tuple[Extent, Size], ...]:
        """The axes that are cut among the programs, by their extents and the tiles' sizes: some may end in less."""
        place = self._placed()
        cut = ((x.extent, x.size) for x in self.v.lanes.values() if x.size is not None and scalars(x.start) & place)
        return tuple(dict.fromkeys(cut))

    def _placed(self) -> frozenset[str]:
        """The scalars that follow from which program it is."""
        place = {g.index for g in self.program.grid}
        for s in statements(self.program.body):
            if isinstance(s, tile.Scalar) and scalars(s.value) & place:
                place.add(s.dst)
        return frozenset(place)

    def _roots(self, groups: Sequence[Group]) -> Iterator[tuple[Group, Root]]:
        for g in groups:
            for r in g.roots:
                yield g, r
                yield from self._roots(r.body)

    def _locals(self) -> frozenset[str]:
        """Kept values that only the nest which makes them reads."""
        home = {r.dst: g for g, r in self._roots(self._groups) if r.kind == "keep"}
        found = {n for n in home if self.v.lanes_of(n)}
        for g, r in self._roots(self._groups):
            if r.kind != "loop":
                found -= {n for n in r.reads if n in home and home[n] is not g}
        return frozenset(found)

    def _is_long_sum(self, root: Root) -> bool:
        """Whether it is a sum into an array, along a lane of more elements than a block."""
        if root.kind != "reduce" or root.gone is None or root.dst not in self.storage.arrays:
            return False
        lane = self.v.lanes[root.gone]
        short = isinstance(lane.extent, int) and lane.extent <= SHORT
        return isinstance(root.stmt, tile.Reduce) and root.stmt.kind is ReduceKind.SUM and not short

    def _summed(self, loop: Root) -> tuple[str, ...]:
        """Plain sums of as many terms as the loop has trips, where those may be many; nothing in it reads them."""
        s = loop.stmt
        assert isinstance(s, tile.For)
        named = {symbol(x.dst): x.value for x in statements(self.program.body) if isinstance(x, tile.Scalar)}
        stop = named.get(s.stop, s.stop)
        bounds = stop.args if isinstance(stop, sympy.Min) else (stop,)
        start = s.start if isinstance(s.start, int) else 0
        if any(isinstance(b, int | sympy.Integer) and b - start <= MANY for b in bounds):
            return ()
        inside = [r for g in loop.body for r in g.roots]

        def is_sum(r: Root) -> bool:
            if r.kind == "product":
                return r.into is not None and r.product is not None and not r.product.added
            made = r.kind == "update" or (r.kind == "reduce" and r.into is not None)
            return made and isinstance(r.stmt, tile.Update | tile.Reduce) and r.stmt.kind is ReduceKind.SUM

        def touched(r: Root) -> frozenset[str]:
            return r.reads | r.writes

        return tuple(
            r.dst
            for r in inside
            if is_sum(r) and not any(r.dst in touched(other) for other in inside if other is not r)
        )

    def _held(self, name: str) -> tuple[str, str]:
        """The address and the number of elements of an accumulator, as source."""
        lanes = self.v.lanes_of(name)
        count = " * ".join(f"n_{self.names(n)}" for n in lanes) or "1"
        return f"t_{self.names(name)}" if lanes else f"&{self.names(name)}", count

    def _made(self) -> Iterator[str]:
        for _, r in self._roots(self._groups):
            if r.kind in ("fill", "keep", "reduce", "product", "window"):
                yield r.dst

    def _stays(self, name: str) -> bool:
        """Whether a factor lies in memory that no program of the launch writes."""
        written = {s.tensor for s in statements(self.program.body) if isinstance(s, tile.Store)}
        return name not in self.storage.arrays and self.v.views[name].tensor not in written

    def _is_weight(self, name: str) -> bool:
        """Whether what is loaded is a model's weight."""
        return self.v.tensor(self.v.views[name].tensor).weight

    def _apart(self, name: str, offset: Extent | None = None) -> tuple[GridAxis, ...]:
        """The axes of the grid along which programs have the same of a factor in memory, perhaps from elsewhere on."""
        if not self._stays(name) or self.v.views[name].places:
            return ()
        own = scalars(self.v.views[name].offset if offset is None else offset)
        known = {*self.program.lengths, *(c.name for c in self.program.constants)}
        if own - known - {g.index for g in self.program.grid}:
            return ()
        return tuple(g for g in self.program.grid if g.index not in own)

    def _in_order(self) -> TileProgram:
        """The program, of which those that pack the same follow one another: it is packed once.

        That is second factors, and what windows see where their weights are a model's, which are packed once for all.
        """
        p = self.program
        roots = [r for _, r in self._roots(self._groups)]
        apart = [self._apart(self.scheduler.roles(r.product)[1]) for r in roots if r.product is not None]
        for w in (r.window for r in roots if r.window is not None):
            held = self._is_weight(w.weights)
            mine = [(p.seen, p.offset) for p in w.pieces] if held else [(w.weights, w.weights_offset)]
            apart += [self._apart(*of) for of in mine]
        if not apart or self.imbalanced or p.sections is not None or p.groups is not None:
            return p
        last = {g.index for g in apart[0]}.intersection(*({g.index for g in others} for others in apart[1:]))
        return replace(p, grid=tuple(sorted(p.grid, key=lambda g: g.index in last)))

    # The functions.

    def run(self) -> None:
        """Writes both functions."""
        p, w = self.program, self.w
        lengths = [f"int64_t {self.names(n)}" for n in p.lengths]
        with w.block(f"static int64_t {p.name}_room({', '.join(lengths)})"):
            w.line("int64_t bytes = 0;")
            for name in sorted(self.storage.arrays):
                kind = KIND_TYPES[self.v.kind_of(name)]
                w.line(f"bytes += v_room({self._room(self.v.lanes_of(name))}, sizeof({kind}));")
            for name in sorted(self.storage.blocked):
                w.line(f"bytes += v_room(2 * {self._room(self.v.lanes_of(name))}, sizeof(float));")
            for name in self._many():
                w.line(f"bytes += v_room(2 * {self._room(self.v.lanes_of(name))}, sizeof(float));")
            for size in (*self._packing(), *self._copies().values()):
                w.line(f"bytes += v_room({size}, sizeof(float));")
            w.line("return bytes;")
        w.line()
        written = {s.tensor for s in statements(p.body) if isinstance(s, tile.Store)}
        parameters = ["int64_t pid", "char* at", "bool past", "int64_t soon"]
        parameters += ["Packed& packed"] * self.multiplies
        for t in p.tensors:
            const = "" if t.name in written else "const "
            parameters.append(f"{const}{TENSOR_TYPES[t.dtype]}* __restrict p_{self.names(t.name)}")
        with w.block(f"static void {p.name}_program({', '.join(parameters + lengths)})"):
            write_place(self._in_order(), "pid", w, CxxIntegers(self.names), self.names.fresh)
            for name in sorted(self.storage.arrays):
                kind = KIND_TYPES[self.v.kind_of(name)]
                room = self._room(self.v.lanes_of(name))
                w.line(f"{kind}* __restrict t_{self.names(name)} = v_take<{kind}>(at, {room});")
            for name in sorted(self.storage.blocked):
                room = self._room(self.v.lanes_of(name))
                w.line(f"float* __restrict b_{self.names(name)} = v_take<float>(at, 2 * {room});")
            for name in self._many():
                w.line(f"float* h_{self.names(name)} = v_take<float>(at, 2 * {self._room(self.v.lanes_of(name))});")
            packing = self._packing()
            if packing:
                w.line(f"float* packed_a = v_take<float>(at, {packing[0]});")
                w.line(f"float* packed_b = v_take<float>(at, {packing[1]});")
            for n, size in enumerate(self._copies().values()):
                w.line(f"float* seen_{n} = v_take<float>(at, {size});")
            self._block(p.body, self._groups)

    def _block(self, body: Sequence[Stmt], groups: Sequence[Group]) -> None:
        w = self.w
        for s in body:
            match s:
                case tile.Scalar(dst, value):
                    w.line(f"const int64_t {self.names(dst)} = {integer(value, self.names)};")
                case tile.Offsets(dst, _, _, _):
                    w.line(f"const int64_t n_{self.names(dst)} = {self._length(self.v.lanes[dst])};")
        made = [self._loads(g) for g in groups]
        for n, g in enumerate(groups):
            (root, *_) = g.roots
            if root.kind == "loop":
                self._loop(root)
            elif root.kind == "product":
                self._product(root)
            elif root.window is not None:
                self._window(root.window, root.into is None, root.place)
            else:
                again, repeated = (made[n] & frozenset().union(*others) for others in (made[n + 1 :], made[:n]))
                NestEmitter(g, self.storage, self.names, w, self._local, again, repeated).run()

    def _loads(self, group: Group) -> frozenset[str]:
        """What a nest loads."""
        if group.alone:
            return frozenset()
        return frozenset().union(*(loads_of(r.stmt, self.storage) for r in group.roots))

    def _loop(self, root: Root) -> None:
        s = root.stmt
        assert isinstance(s, tile.For)
        index = self.names(s.index)
        start, stop, step = (integer(e, self.names) for e in (s.start, s.stop, s.step))
        head, carried = (
            f"for (int64_t {index} = {start}, end = {stop}; {index} < end; {index} += {step})",
            self._carried,
        )
        if not carried[root.place]:
            with self.w.block(head):
                self._block(s.body, root.body)
            return
        # One after another, the sums of many tiles round worse than torch's: they are sums of sums, too (`v_cascade`).
        trips = self.names.fresh("trips")
        sums = [(f"h_{self.names(name)}", *self._held(name)) for name in carried[root.place]]
        with self.w.block():
            self.w.line(f"int64_t {trips} = 0;")
            for held, _, count in sums:
                self.w.line(f"v_fill({held}, 2 * {count}, 0.0f);")
            with self.w.block(head):
                self._block(s.body, root.body)
                with self.w.block(f"if (++{trips} % 16 == 0)"):
                    for held, address, count in sums:
                        self.w.line(f"v_carry({held}, {address}, {count});")
                        self.w.line(f"if ({trips} % 256 == 0) v_carry({held} + {count}, {held}, {count});")
            for held, address, count in sums:
                self.w.line(f"if ({trips} >= 16) v_carry({address}, {held}, {count});")
                self.w.line(f"if ({trips} >= 256) v_carry({address}, {held} + {count}, {count});")

    def _many(self) -> tuple[str, ...]:
        """The sums of which an array beside theirs takes what several trips of a loop add up to."""
        return tuple(sorted({name for names in self._carried.values() for name in names}))

    def _length(self, lane: Lane) -> str:
        """How many elements are inside of the axis."""
        extent = integer(lane.extent, self.names)
        if lane.size is None:
            return extent
        size = self.names(str(lane.size))
        left = integer(sympy.sympify(lane.extent) - lane.start, self.names)
        return f"{factor(lane.extent, self.names)} % {size} == 0 ? {size} : v_mini({size}, {left})"

    def _most(self, lane: Lane) -> str:
        """How many elements there can be."""
        extent = integer(lane.extent, self.names)
        return extent if lane.size is None else f"v_mini({self.names(str(lane.size))}, {extent})"

    def _room(self, lanes: Sequence[str]) -> str:
        return " * ".join(f"({self._most(self.v.lanes[n])})" for n in lanes) or "1"

    # Matrix products.

    def _packing(self) -> tuple[str, ...]:
        """Elements that packed factors take, the first and the second."""
        first, second = "", ""
        for _, r in self._roots(self._groups):
            if r.window is not None:
                a, b = self._window_rooms(r.window)
                a = "0" if all((r.place, n) in self._copies() for n in range(len(r.window.pieces))) else a
            elif r.product is not None:
                rows, columns, _ = self._sides(r)
                k = self._room((r.product.lane,))
                a, b = f"v_room_a({self._room(rows)}, {k})", f"v_room_b({self._room(columns)}, {k})"
            else:
                continue
            first = f"v_maxi({first}, {a})" if first and a not in first else first or a
            second = f"v_maxi({second}, {b})" if second and b not in second else second or b
        return (first, second) if first else ()

    def _copies(self) -> dict[tuple[int, int], str]:
        """Elements of the copies that pieces of windows have to themselves: the same for programs in turn.

        By the windows' positions, and which of their pieces it is.
        """
        windows = [(r.place, r.window) for _, r in self._roots(self._groups) if r.window is not None]
        found = [(at, n, w) for at, w in windows for n, p in enumerate(w.pieces) if self._stays(p.seen)]
        return {(at, n): self._window_rooms(w)[0] for at, n, w in found[:COPIES]}

    def _sides(self, root: Root) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """The lanes of rows, of columns, and those that both factors and the result have, as the result has them."""
        assert root.product is not None
        a, b = self.scheduler.roles(root.product)
        one, other = self.v.lanes_of(a), self.v.lanes_of(b)
        lanes = self.storage.lanes(root.dst)
        rows = tuple(n for n in lanes if n in one and n not in other)
        columns = tuple(n for n in lanes if n in other and n not in one)
        return rows, columns, tuple(n for n in lanes if n in one and n in other)

    def _stride(self, name: str, lane: str) -> Extent | str:
        if name in self.storage.arrays:
            return self.storage.stride(name, lane, self.names)
        return self.v.views[name].strides.get(lane, 0)

    def _contiguous(self, name: str, lanes: Sequence[str]) -> bool:
        """Whether the lanes are one in memory."""
        if name in self.storage.arrays:
            order = self.storage.lanes(name)
            first = order.index(lanes[0])
            return order[first : first + len(lanes)] == tuple(lanes)
        strides = self.v.views[name].strides
        for slow, fast in pairwise(lanes):
            lane = self.v.lanes[fast]
            whole = lane.size is None
            if not whole or sympy.expand(strides[slow] - mul(strides[fast], lane.extent)) != 0:
                return False
        return True

    def _product(self, root: Root) -> None:
        p, w = root.product, self.w
        assert p is not None
        a, b = self.scheduler.roles(p)
        dst = root.dst
        rows, columns, outer = self._sides(root)
        together: dict[str, tuple[str, ...]] = {}
        loops = {n: f"n_{self.names(n)}" for n in outer}
        counts: dict[str, str] = {}
        for side, name, lanes in (("m", a, rows), ("n", b, columns)):
            if len(lanes) > 1 and not (self._contiguous(name, lanes) and self._contiguous(dst, lanes)):
                loops |= {n: f"n_{self.names(n)}" for n in lanes[:-1]}
                slow, fast = lanes[-2:]
                if self._contiguous(dst, (slow, fast)):
                    # One in memory where the tile is as long as the axis.
                    one, every = self.names.fresh("one"), f"n_{self.names(fast)}"
                    steps = [
                        s if isinstance(s, str) else integer(s, self.names)
                        for s in (self._stride(name, slow), self._stride(name, fast))
                    ]
                    w.line(f"const bool {one} = ({steps[0]}) == {every} * ({steps[1]});")
                    counts[side] = f"({one} ? {loops[slow]} : 1) * {every}"
                    loops[slow] = f"({one} ? 1 : {loops[slow]})"
                lanes = lanes[-1:]
            together[side] = lanes
        fresh = "true" if root.into is None else "false"
        function = "multiply_bytes" if p.added else "multiply_halves" if p.halves else "multiply"
        added, levels = (p.added, p.bytes) if a == p.lhs else (p.added[::-1], p.bytes[::-1])
        # Bytes that are computed are whole numbers in float32.
        first, second = (
            f"level_{TENSOR_TYPES[dtype]}" if dtype is not None and name not in self.v.views else ""
            for name, dtype in zip_longest((a, b), levels)
        )
        types = (first or self._stored(a), second or self._stored(b)) if p.added else (self._stored(b),)
        self.products.add("-".join((function, *types)))
        first, second = (f"(const {kind}*)" if kind else "" for kind in (first, second))
        numbers = [self.names(n) if isinstance(n, str) else literal(n, "i") for n in added]

        def count_of(lanes: Sequence[str]) -> str:
            return " * ".join(f"n_{self.names(n)}" for n in lanes) or "1"

        same = [factor(g.count, self.names) for g in self._apart(b)]
        same += [count for n, count in loops.items() if n not in self.v.lanes_of(b)]
        uses = "0" if not self._stays(b) else " * ".join(same) or "1"

        def along(name: str, lanes: Sequence[str]) -> str:
            if not lanes:
                return "0"
            stride = self._stride(name, lanes[-1])
            return stride if isinstance(stride, str) else integer(stride, self.names)

        def start(name: str) -> str:
            parts: list[str] = []
            if name in self.storage.arrays:
                parts.append(f"t_{self.names(name)}")
                mine: Sequence[str] = self.storage.lanes(name)
            else:
                view = self.v.views[name]
                parts.append(f"p_{self.names(view.tensor)}")
                if view.offset != 0:
                    parts.append(integer(view.offset, self.names))
                mine = list(view.strides)
            parts += [f"i_{self.names(n)} * ({along(name, (n,))})" for n in loops if n in mine]
            return " + ".join(parts)

        def multiplied() -> None:
            k = (p.lane,)
            w.line(f"{function}(")
            with w.indented():
                w.line(f"{fresh}, {start(dst)}, {along(dst, together['m'])},")
                w.line(f"{first}{start(a)}, {along(a, together['m'])}, {along(a, k)},")
                w.line(f"{second}{start(b)}, {along(b, k)}, {along(b, together['n']) if together['n'] else '1'},")
                m, n = (counts.get(side, count_of(together[side])) for side in ("m", "n"))
                w.line(f"{', '.join((m, count_of(k), n, 'packed_a', 'packed_b', 'packed', uses, *numbers))});")

        self._each(loops, multiplied)

    # Products over windows.

    def _window_rooms(self, window: Window) -> tuple[str, str]:
        """Elements that what a window sees takes, and its weights."""
        places = " * ".join(f"{self._along(a, most=True)}.room()" for a in window.axes)
        k = self._room([] if window.depth is None else [window.depth])
        sides = f"{k}, {self._room([window.row])}, {window.taps}"
        return f"v_room_seen({places}, {sides})", f"v_room_weights({sides})"

    def _along(self, a: WindowAxis, out: str = "0", most: bool = False) -> str:
        """An axis of a window as a literal.

        `out` are elements of the result from pixel to pixel. `most` takes as many pixels as there can be, for what
        hangs on nothing else.
        """
        count = "1" if a.lane is None else self._room([a.lane]) if most else f"n_{self.names(a.lane)}"
        numbers = [count, str(a.stride), str(a.dilation), str(a.taps)]
        if not most:
            low, high = (
                f"{sign}(INT64_C(1) << 40)" if e is None else integer(e, self.names)
                for sign, e in (("-", a.low), ("", a.high))
            )
            numbers += [integer(a.step, self.names), integer(a.first, self.names), low, high]
            numbers += [integer(a.weight, self.names), out]
        return f"Along{{{', '.join(numbers)}}}"

    def _window(self, window: Window, fresh: bool, place: int) -> None:
        """Writes the calls, one for each piece of what is seen."""
        w, names = self.w, self.names
        weights = self.v.views[window.weights]
        for piece in window.pieces:
            self.products.add("-".join(("multiply_window", *(self._stored(n) for n in (piece.seen, window.weights)))))
        along, taps, many = (names.fresh(n) for n in ("along", "taps", "many"))
        lanes = self.storage.lanes(window.acc)
        with w.block():
            w.line(f"int64_t {taps}[{window.taps * len(window.axes)}], {many} = 0;")
            self._taps(window, window.loops, taps, many)
            for n, piece in enumerate(window.pieces):
                with w.block(f"const Along {along}_{n}[] =", ";"):
                    for a, step in zip(window.axes, piece.steps, strict=True):
                        out = "0" if a.lane is None else self.storage.stride(window.acc, a.lane, names)
                        w.line(f"{self._along(replace(a, step=step), out)},")

            def start(pointer: str, offset: Extent, strides: Mapping[str, Extent | str]) -> str:
                parts = [pointer, *([integer(offset, names)] if offset != 0 else [])]
                for n in window.shared:
                    by = strides[n]
                    parts.append(f"i_{names(n)} * ({by if isinstance(by, str) else integer(by, names)})")
                return " + ".join(parts)

            copies = [*self._copies()]

            def multiplied() -> None:
                held = {n: self.storage.stride(window.acc, n, names) for n in lanes}
                row, depth = window.row, window.depth
                same = [factor(g.count, names) for g in self._apart(window.weights, window.weights_offset)]
                uses = (" * ".join(same) or "1") if self._stays(window.weights) else "0"
                for n, piece in enumerate(window.pieces):
                    seen = self.v.views[piece.seen]
                    xk, wk = (0 if depth is None else x.strides[depth] for x in (seen, weights))
                    first, other = (
                        add(x, mul(piece.begin, by)) for x, by in ((piece.offset, xk), (window.weights_offset, wk))
                    )
                    w.line("multiply_window(")
                    with w.indented():
                        new = "true" if fresh and n == 0 else "false"
                        w.line(f"{new}, {start(f't_{names(window.acc)}', 0, held)}, {held[row]},")
                        w.line(f"{start(f'p_{names(seen.tensor)}', first, seen.strides)}, {integer(xk, names)},")
                        by = start(f"p_{names(weights.tensor)}", other, weights.strides)
                        w.line(f"{by}, {integer(weights.strides[row], names)}, {integer(wk, names)},")
                        k = "1" if depth is None else f"n_{names(depth)}"
                        k = k if piece.end is None else str(piece.end - piece.begin)
                        halves = "true" if window.product.halves else "false"
                        w.line(f"{along}_{n}, {len(window.axes)}, {taps}, {many}, n_{names(row)}, {k}, {halves},")
                        copy = copies.index((place, n)) if (place, n) in copies else None
                        to, kept = (
                            ("packed_a", "nullptr") if copy is None else (f"seen_{copy}", f"packed.seen + {copy}")
                        )
                        again = " * ".join(factor(g.count, names) for g in self._apart(piece.seen, piece.offset)) or "1"
                        w.line(f"{to}, packed_b, packed, {uses}, {kept}, {again});")

            self._each({n: f"n_{names(n)}" for n in window.shared}, multiplied)

    def _each(self, counts: Mapping[str, str], inside: Callable[[], None]) -> None:
        """Writes loops over lanes, the first one outermost, around what is written inside."""
        with ExitStack() as loops:
            for n, count in counts.items():
                index = f"i_{self.names(n)}"
                loops.enter_context(self.w.block(f"for (int64_t {index} = 0; {index} < {count}; ++{index})"))
            inside()

    def _taps(self, window: Window, loops: Sequence[tile.For], taps: str, many: str) -> None:
        """Writes the loops over the taps, which take down those that there are."""
        w, names = self.w, self.names
        if loops:
            s = loops[0]
            index, start, stop = names(s.index), integer(s.start, names), integer(s.stop, names)
            with w.block(f"for (int64_t {index} = {start}, end = {stop}; {index} < end; ++{index})"):
                for x in s.body:
                    if isinstance(x, tile.Scalar):
                        w.line(f"const int64_t {names(x.dst)} = {integer(x.value, names)};")
                self._taps(window, loops[1:], taps, many)
            return
        lane = window.product.lane
        indices = {s.index: names(s.index) for s in window.loops} | {lane: f"i_{names(lane)}"}
        with (
            w.block(f"for (int64_t i_{names(lane)} = 0; i_{names(lane)} < n_{names(lane)}; ++i_{names(lane)})")
            if (window.depth is None)
            else nullcontext()
        ):
            for n, a in enumerate(window.axes):
                w.line(f"{taps}[{many} * {len(window.axes)} + {n}] = {'0' if a.tap is None else indices[a.tap]};")
            w.line(f"++{many};")

    def _stored(self, name: str) -> str:
        """The C++ type in which an operand lies in memory."""
        if name in self.storage.arrays:
            return KIND_TYPES[self.v.kind_of(name)]
        tensor = self.v.views[name].tensor
        return next(TENSOR_TYPES[t.dtype] for t in self.program.tensors if t.name == tensor)
