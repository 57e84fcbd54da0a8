"""What the numeric gate runs: which draws at which shapes under which configuration, and how much of each.

Triton's interpreter takes about 0.1 ms for an operation whatever the size of its tiles, so a program of a kernel takes
3 to 30 ms. Of the launches that nothing reads from only a sample of programs runs (corners and a few between), and what
those wrote is compared; the others get larger tiles where they would take too long.

The chosen configuration is checked at a multiple of its tiles and beside one. All other cases run under a *quick*
configuration: tiles at which every loop runs twice and every axis has two tiles, where it is long enough, with as few
operations as can be. An emitted module takes any tile sizes, so what a case exercises, ragged tails, masks, a second
iteration that rescales the first, does not depend on which. Unusual inputs are interpreted in few programs.
"""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import TypeAlias, cast

import sympy

from prism.errors import some
from prism.instantiate.gate.draws import DRAWS, struck_sets
from prism.instantiate.options import foreign
from prism.ir.connected import connected
from prism.program.extents import Extent, evaluate
from prism.program.nodes import Program, SymbolRange
from prism.sgraph import nodes as sg
from prism.sgraph.config import Config
from prism.sgraph.folding import Fold, chosen_folds, launches_under
from prism.sgraph.resident import launched

Sample: TypeAlias = tuple[tuple[tuple[int, ...], int], ...] | None
"""For each kernel of a launch, tiles along each axis of its grid, and how many programs to run; None: all of them."""

OPERATION_S = 8e-5
"""What the interpreter takes for one operation on small tiles, seconds."""
ELEMENT_S = 4e-9
"""What it takes for an element of an operation, seconds."""
CASE_TARGET_S = 0.5
"""What a case may cost in the interpreter before its programs are sampled, seconds."""
LEAST_SAMPLE = 5
LARGEST_TILE = 1 << 20
"""Elements of the box of a kernel's tiles up to which tiles are enlarged for the interpreter."""
LARGEST_EXTENT = 200
"""Symbolic extents are checked up to here, tile sizes beyond it at their range's low end."""


GIVEN = "given"
"""What the draw of inputs is called that nobody drew."""
SHOWN = 24
"""Entries of a configuration that a message about a case names."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a kind of draw at one binding of the symbols, under one configuration."""

    draw: str  # see `draw_inputs`, also for binding, seed and struck
    binding: Mapping[str, int]
    config: Config  # the kernels'
    seed: int
    struck: tuple[str, ...] | None = None

    def __str__(self) -> str:
        at = ", ".join(f"{k}={v}" for k, v in sorted(self.binding.items()))
        of = f" ({', '.join(self.struck)})" if self.struck else ""
        return (
            f"{self.draw} inputs{of}"
            + (f" at {at}" if at else "")
            + f" with {some(self.config.key().split(' '), ' ', SHOWN)}"
        )


def plan_cases(
    program: Program,
    sgraph: sg.SGraph,
    config: Config,
    alternatives: Sequence[Config] = (),
    seed: int = 0,
    *,
    bounded: bool = False,
) -> list[Case]:
    """The cases, in order: ordinary inputs at every kind of shape, then each other draw at one of them.

    Args:
        program: the program.
        sgraph: what implements it.
        config: the chosen configuration.
        alternatives: other feasible ones: the quick configuration has no smaller tiles than these.
        seed: of the draws.
        bounded: whether the device has room for some configurations alone, as the interpreter's has not.
    """
    quick = quick_config(program, sgraph, config, alternatives, bounded=bounded)
    chosen, shapes = plan_bindings(program, sgraph, config), plan_bindings(program, sgraph, quick)
    # Beside a multiple of the tiles first: a wrong mask shows there.
    first = [(b, config) for b in (*chosen[2:3], *chosen[:1])]
    others = [(b, quick) for b in (*shapes[3:], *shapes[1:2])]
    others = others or [(b, quick) for b in shapes if quick != config]
    ordinary = [*first[:1], *others, *first[1:]]
    cases = [Case("normal", b, c, seed) for b, c in ordinary]
    ragged = _unusual(program, sgraph, quick, shapes[2:] or shapes)
    for draw in DRAWS:
        if draw != "normal":
            for struck in struck_sets(program, draw):
                n = len(cases)
                cases.append(Case(draw, ragged[n % len(ragged)], quick, seed, struck))
    return cases


@dataclass(slots=True)
class _Symbol:
    """What a tile symbol may be: at least what some configuration has, at most half of its longest fixed axis."""

    low: int  # the least value
    high: int = 0  # the largest; of the fixed axes that are that long
    free: frozenset[str] = frozenset()  # the symbols in the extents of its axes
    tiles: bool = False  # whether it is a tile size, and not the number of parts


def quick_config(
    program: Program, sgraph: sg.SGraph, config: Config, alternatives: Sequence[Config] = (), *, bounded: bool = False
) -> Config:
    """Tile sizes at which the interpreter is quick, every fixed axis has two tiles and symbolic ones can have.

    Symbolic extents follow the tiles (see `plan_bindings`), so along each of them all tiles are as small as they may
    be, and equal; along fixed ones they grow as long as that saves operations. Where the device is bounded they do not
    grow: tiles of a few hundred elements on each side do not fit into a GPU's shared memory.
    """
    known = _tile_symbols(sgraph, [config, *alternatives])
    values = dict(config.symbols)
    for group in connected([s.free for s in known.values()]):
        mine = {name: s for name, s in known.items() if s.free & group}
        least = max((s.low for s in mine.values() if s.tiles), default=1)
        values |= dict.fromkeys(mine, least)
    grown = {name: s for name, s in known.items() if s.tiles and not s.free}
    values |= {name: s.low for name, s in grown.items()}
    # Two parts of a split are enough: the first, and the last, which may have nothing to do.
    values |= {name: 2 for name, value in values.items() if name not in known and value > 2}
    if bounded:
        return replace(config, symbols=values)

    shapes = plan_bindings(program, sgraph, replace(config, symbols=values))
    costs = InterpreterCosts(sgraph, config, shapes[min(2, len(shapes) - 1)], values)
    boxes = _Boxes(sgraph, values)
    # Tiles of fixed axes alone change, so the binding stays.
    _grow(
        grown,
        costs,
        may=lambda n, to: to <= grown[n].high and boxes.fit(n, to),
        taken=boxes.take,
        ends=lambda change: change >= 0,
    )
    return replace(config, symbols={**values, **{n: costs.values[n] for n in grown}})


def _grow(
    names: Iterable[str],
    costs: InterpreterCosts,
    may: Callable[[str, int], bool],
    taken: Callable[[str, int], object],
    ends: Callable[[float], bool],
) -> None:
    """Double one symbol at a time, the one that saves most, or adds least.

    A step changes what is known of those alone that share a kernel or a launch with its symbol; what the heap has of
    these is of an earlier turn then, and is passed over. `costs` has the symbols' values, and takes the new ones; `may`
    is whether a symbol may have a value. `taken` is told each step; `ends` is whether to end before one that changes
    the costs by so much.
    """
    turns = dict.fromkeys(names, 0)
    heap: list[tuple[float, str, int, int]] = []

    def offer(some: Iterable[str]) -> None:
        for n in some:
            turns[n] += 1
            to = 2 * costs.values[n]
            if may(n, to):
                heappush(heap, (costs.change(n, to), n, to, turns[n]))

    offer(turns)
    while heap:
        change, name, to, turn = heappop(heap)
        if turn != turns[name]:
            continue
        if ends(change):
            return
        costs.take(name, to)
        taken(name, to)
        offer((costs.beside(name) | {name}) & turns.keys())


def _tile_symbols(sgraph: sg.SGraph, configs: Sequence[Config]) -> dict[str, _Symbol]:
    found: dict[str, _Symbol] = {}
    for kernel in sgraph.kernels:
        for axis, role in kernel.roles:
            tile = role.tile
            if not isinstance(tile, sympy.Symbol):
                continue
            s = found.setdefault(tile.name, _Symbol(min(c.symbols[tile.name] for c in configs)))
            s.tiles = True
            if isinstance(axis.extent, sympy.Expr) and axis.extent.free_symbols:
                s.free |= {x.name for x in axis.extent.free_symbols}
            else:
                s.high = max(s.high, 1 << max(0, math.ceil(math.log2(max(1, int(str(axis.extent))))) - 1))
    return found


@dataclass(slots=True)
class _Boxes:
    """Elements of each kernel's tile over all its axes of fixed extents and all tiles, as symbols change."""

    sgraph: sg.SGraph
    values: Mapping[str, int]
    having: dict[str, list[sg.Kernel]] = field(default_factory=dict)
    larger: int = 0
    _held: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._held = dict(self.values)
        for kernel in self.sgraph.kernels:
            for s in kernel.symbols:
                self.having.setdefault(s.name, []).append(kernel)
            self.larger += _box(kernel, self._held) > LARGEST_TILE

    def fit(self, name: str, to: int) -> bool:
        """Whether no kernel's box is too large with this value."""
        made = _over({name: to}, self._held)
        return not self.larger and all(_box(k, made) <= LARGEST_TILE for k in self.having.get(name, ()))

    def take(self, name: str, to: int) -> None:
        """Give the symbol this value, which fits."""
        self._held[name] = to


def _box(kernel: sg.Kernel, values: Mapping[str, int]) -> int:
    box = 1
    for axis, role in kernel.roles:
        tile = role.tile
        if tile is not None:
            box *= int(values[tile.name]) if isinstance(tile, sympy.Symbol) else tile
        elif not (isinstance(axis.extent, sympy.Expr) and axis.extent.free_symbols):
            box *= int(str(axis.extent))
    return box


def interpretable(sgraph: sg.SGraph, config: Config, binding: Mapping[str, int]) -> Config:
    """The configuration, or where the interpreter would take too long for it, one with larger tiles.

    A launch that a later one reads from cannot be sampled. The emitted module takes any tile sizes, and the
    interpreter has neither shared memory nor registers to run out of.
    """
    costs = InterpreterCosts(sgraph, config, binding, config.symbols, sampled=True)
    having: dict[str, list[sg.Kernel]] = {}
    for kernel in sgraph.kernels:
        for n in {t.name for _, role in kernel.roles if isinstance(t := role.tile, sympy.Symbol)}:
            having.setdefault(n, []).append(kernel)
    # A sampled launch takes the target by itself; as much again is left for the others.
    _grow(
        having,
        costs,
        may=lambda n, _: all(_enlargeable(n, k, costs.values, binding) for k in having[n]),
        taken=lambda n, to: None,
        ends=lambda _: costs.total <= 2 * CASE_TARGET_S,
    )
    return replace(config, symbols=dict(costs.values))


def spread_out(sgraph: sg.SGraph, config: Config, binding: Mapping[str, int]) -> Config:
    """The configuration with longer tiles of what programs share out among them, where that is sooner interpreted.

    What an unusual input does to a program's arithmetic, and to its neighbours in a reduction, does not depend on how
    many programs there are; their edges are looked at on ordinary inputs. Symbolic extents stay beside their tiles.
    """
    roles: dict[str, list[tuple[sg.Kernel, bool]]] = {}
    for kernel in sgraph.kernels:
        for axis, role in kernel.roles:
            if isinstance(tile := role.tile, sympy.Symbol):
                fixed = isinstance(role, sg.Grid) and not getattr(axis.extent, "free_symbols", None)
                roles.setdefault(tile.name, []).append((kernel, fixed))
    shared = {name: [k for k, _ in of] for name, of in roles.items() if all(fixed for _, fixed in of)}
    costs = InterpreterCosts(sgraph, config, binding, config.symbols, sampled=True)
    _grow(
        shared,
        costs,
        may=lambda n, _: all(_enlargeable(n, k, costs.values, binding) for k in shared[n]),
        taken=lambda n, to: None,
        ends=lambda change: change >= 0,
    )
    return replace(config, symbols=dict(costs.values))


def _enlargeable(name: str, kernel: sg.Kernel, symbols: Mapping[str, int], binding: Mapping[str, int]) -> bool:
    """Whether a kernel's tiles of that symbol are shorter than their axes, and its box leaves room for twice of it."""
    box = 1
    for axis, role in kernel.roles:
        extent = _extent(axis.extent, symbols, binding)
        tile = role.tile
        size = extent if tile is None else _value(tile, symbols)
        box *= size
        if isinstance(tile, sympy.Symbol) and tile.name == name and size >= extent:
            return False
    return 2 * box <= LARGEST_TILE


def plan_bindings(program: Program, sgraph: sg.SGraph, config: Config) -> list[dict[str, int]]:
    """Values of the symbolic extents: tile multiples, 1, one more and one less than a tile, and a mixture of those."""
    names = sorted(program.ranges)
    if not names:
        return [{}]
    tiles = {name: _tile(sgraph, name, config) for name in names}
    patterns = [
        [lambda t: t] * len(names),
        [lambda t: 1] * len(names),
        [lambda t: t + 1] * len(names),
        [lambda t: t - 1] * len(names),
        [(lambda t: t + 3, lambda t: 2, lambda t: 2 * t - 1)[n % 3] for n in range(len(names))],
    ]
    found: dict[tuple[int, ...], dict[str, int]] = {}
    for pattern in patterns:
        values = {}
        for name, change in zip(names, pattern, strict=True):
            held = program.ranges[name]
            values[name] = min(max(change(tiles[name]), held.low, 1), held.high, max(held.low, LARGEST_EXTENT))
        found.setdefault(tuple(values.values()), values)
    return list(found.values())


def _unusual(
    program: Program, sgraph: sg.SGraph, config: Config, bindings: Sequence[Mapping[str, int]]
) -> list[dict[str, int]]:
    """The bindings at which unusual inputs are drawn: two elements along what programs share out one by one.

    Beside such tiles there is nothing, and unusual numbers cost as much as the arrays that they are in are large.
    """
    ones = [n for n in program.ranges if set(_tiles(sgraph, n, config)) == {1}]
    least = SymbolRange.sizes(ones, program.ranges, 2, 0)
    found = [{**b, **least} for b in bindings]
    return [b for n, b in enumerate(found) if b not in found[:n]]


def _tile(sgraph: sg.SGraph, name: str, config: Config) -> int:
    """The largest tile of an axis whose extent is that symbol; 2 when there is none of more than 2 elements."""
    return max([2, *_tiles(sgraph, name, config)])


def _tiles(sgraph: sg.SGraph, name: str, config: Config) -> list[int]:
    """The tiles along the axes whose extent is that symbol; 0 where a program goes through all of one."""
    tiles = [
        role.tile
        for kernel in sgraph.kernels
        for axis, role in kernel.roles
        if isinstance(axis.extent, sympy.Symbol) and axis.extent.name == name
    ]
    return [0 if t is None else _value(t, config.symbols) for t in tiles]


def _over(changed: dict[str, int], values: Mapping[str, int]) -> Mapping[str, int]:
    """The values with some changed; no copy, as there may be thousands."""
    return ChainMap(changed, cast("dict[str, int]", values))


def _value(symbol: object, symbols: Mapping[str, int]) -> int:
    return int(symbols[symbol.name]) if isinstance(symbol, sympy.Symbol) else int(str(symbol))


def _extent(extent: Extent, symbols: Mapping[str, int], binding: Mapping[str, int]) -> int:
    if isinstance(extent, int):
        return extent
    return evaluate(extent, {n: binding[n] if n in binding else symbols[n] for n in map(str, extent.free_symbols)})


def _grid_and_program(
    kernel: sg.Kernel, work: _Work, symbols: Mapping[str, int], binding: Mapping[str, int]
) -> tuple[tuple[int, ...], float]:
    """Tiles along each grid axis, the slowest first, and what a program takes at most, seconds."""
    grid: list[int] = []
    shares: list[int] = []
    for axis, role in kernel.roles:
        match role:
            case sg.Grid(tile):
                grid.append(math.ceil(_extent(axis.extent, symbols, binding) / _value(tile, symbols)))
            case sg.Split(parts, _):
                shares.append(_value(parts, symbols))
    return (*grid, *shares), _program_s(kernel, work, symbols, binding)


@dataclass(slots=True)
class InterpreterCosts:
    """What the interpreter takes for each launch, as symbols change: a change looks at those that have the symbol."""

    sgraph: sg.SGraph
    config: Config  # the configuration, whose symbols are not looked at
    binding: Mapping[str, int]  # the value of every symbol of the extents
    values: Mapping[str, int]  # of the symbols
    sampled: bool = False  # whether launches that can be sampled are, or all programs run
    total: float = 0.0  # seconds of all launches
    _launches: tuple[sg.Launch, ...] = ()
    _works: list[list[_Work]] = field(default_factory=list)
    _trips: list[int] = field(default_factory=list)
    _read: frozenset[str] = frozenset()
    _seconds: list[float] = field(default_factory=list)
    _having: dict[str, list[int]] = field(default_factory=dict)
    _known: dict[str, dict[int, float]] = field(default_factory=dict)
    _held: dict[str, int] = field(default_factory=dict)
    _folded: Mapping[str, Fold] = field(default_factory=dict)
    _foreign: frozenset[str] = frozenset()
    # Tiles of second stages that are folded: by symbol, the split's.
    _bound: dict[str, sg.Tile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = self._held = dict(self.values)
        self._launches = launched(self.sgraph)
        self._works = [[_Work.of(k) for k in x.kernels] for x in self._launches]
        self._read = _read(self.sgraph)
        trips = [(r, _extent(r.trips, self.values, self.binding)) for r in self.sgraph.repeats]
        self._trips = [next((n for r, n in trips if x.kernels[0].name in r.kernels), 1) for x in self._launches]
        places = {x.name: n for n, x in enumerate(self._launches)}
        for n in range(len(self._launches)):
            for name in self._symbols(n):
                self._having.setdefault(name, []).append(n)
        # A second stage that is folded has the symbols of its split.
        self._folded = chosen_folds(self.sgraph, self.config)
        self._foreign = foreign(self.config)
        for fold in self._folded.values():
            self._bound |= {own.name: tile for _, tile, own in fold.grid if isinstance(own, sympy.Symbol)}
            for name in self._symbols(places[fold.split]):
                self._having.setdefault(name, []).append(places[fold.combine])
        self._seconds = [self._launch(n, self._held) for n in range(len(self._launches))]
        self.total = sum(self._seconds)

    def change(self, name: str, to: int) -> float:
        """By how much the total changes with a symbol's new value."""
        known = self._known.setdefault(name, {})
        if to not in known:
            values = _over({name: to}, self._held)
            known[to] = sum(self._launch(n, values) - self._seconds[n] for n in self._having.get(name, ()))
        return known[to]

    def take(self, name: str, to: int) -> None:
        """Give a symbol a new value."""
        self._held[name] = to
        for n in self._having.get(name, ()):
            before, self._seconds[n] = self._seconds[n], self._launch(n, self._held)
            self.total += self._seconds[n] - before
        for other in self.beside(name):
            self._known.pop(other, None)

    def beside(self, name: str) -> set[str]:
        """The symbols whose change depends on this one's value: they share a launch."""
        places = self._having.get(name, ())
        found = {s for n in places for s in self._symbols(n)}
        bound_to = {
            t.name for n in places for s in self._symbols(n) if isinstance(t := self._bound.get(s), sympy.Symbol)
        }
        return found | bound_to

    def _symbols(self, place: int) -> list[str]:
        return list(dict.fromkeys(s.name for k in self._launches[place].kernels for s in k.symbols))

    def _launch(self, place: int, values: Mapping[str, int]) -> float:
        launch = self._launches[place]
        if launch.name in self._foreign:
            return 0.0
        whole = not self.sampled or launch.name in self._folded
        works = self._works[place]
        sample = None if whole else _sample(launch, works, values, self.binding, self._read)
        if self._bound:
            own = {s: self._bound[s] for s in self._symbols(place) if s in self._bound}
            values = _over({s: _value(tile, values) for s, tile in own.items()}, values)
        total = 0.0
        for n, kernel in enumerate(launch.kernels):
            grid, seconds = _grid_and_program(kernel, works[n], values, self.binding)
            total += (sample[n][1] if sample else math.prod(grid)) * seconds
        return total * self._trips[place]


@dataclass(frozen=True, slots=True)
class _Work:
    """What a body does, as sums: statements of one shape count together, so that new sizes are soon priced."""

    operations: int  # so many
    passes: Mapping[tuple[str, ...], int]  # by a value's axes, how often so many elements are gone through
    # Of matrices: the axes of what comes out and of both sides, and the one that is summed over.
    products: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], str], ...]
    loops: tuple[tuple[str, _Work], ...]  # their axes and bodies

    @staticmethod
    def of(kernel: sg.Kernel) -> _Work:
        """What one program of a kernel does."""
        axes = {name: tuple(a.name for a in of) for name, of in sg.value_axes(kernel).items()}

        def found(body: Sequence[sg.Stmt]) -> _Work:
            operations = 0
            passes: Counter[tuple[str, ...]] = Counter()
            products, loops = [], []
            for s in body:
                match s:
                    case sg.Loop(axis, inner):
                        loops.append((axis.name, found(inner)))
                    case sg.Load(dst, _, index) | sg.Gather(dst, _, index):
                        operations += 8 + 8 * len(index)
                        passes[axes[dst]] += 10
                    case sg.Store(_, index, src):
                        operations += 8 + 8 * len(index)
                        passes[axes[src] if isinstance(src, str) else ()] += 10
                    case sg.Contract(dst, axis, lhs, rhs):
                        operations += 6
                        products.append((axes[dst], axes[lhs], axes[rhs], axis.name))
                    case sg.TileReduce(_, _, _, src):
                        operations += 4
                        passes[axes[src]] += 1
                    case _:
                        operations += 2
                        passes[axes[s.dst]] += 1
            return _Work(operations, passes, tuple(products), tuple(loops))

        return found(kernel.body)

    def seconds(self, sizes: Mapping[str, int], trips: Mapping[str, int]) -> float:
        """What that takes with tiles of these sizes and loops of so many trips."""

        def elements(axes: Iterable[str]) -> int:
            return math.prod(sizes.get(a, 1) for a in axes)

        total = self.operations * OPERATION_S
        total += sum(n * elements(of) for of, n in self.passes.items()) * ELEMENT_S
        for out, left, right, axis in self.products:
            # A product of matrices takes little for an element; where a side is too short to be one, it is three
            # passes over all products.
            depth, sides = sizes[axis], (elements(left), elements(right))
            matrices = min(sides) >= 16 * depth >= 256
            total += (sum(sides) + elements(out) * depth * (0.1 if matrices else 1)) * ELEMENT_S
        return total + sum(trips[axis] * inner.seconds(sizes, trips) for axis, inner in self.loops)


def _program_s(kernel: sg.Kernel, work: _Work, symbols: Mapping[str, int], binding: Mapping[str, int]) -> float:
    """What one program of a kernel takes, seconds."""
    sizes: dict[str, int] = {}
    trips: dict[str, int] = {}
    for axis, role in kernel.roles:
        extent = _extent(axis.extent, symbols, binding)
        tile = role.tile
        size = extent if tile is None else _value(tile, symbols)
        parts = _value(role.parts, symbols) if isinstance(role, sg.Split) else 1
        sizes[axis.name] = size
        trips[axis.name] = math.ceil(extent / (parts * size))
    return 10 * OPERATION_S + work.seconds(sizes, trips)


def plan_samples(sgraph: sg.SGraph, config: Config, binding: Mapping[str, int]) -> list[Sample]:
    """For each launch, which programs to interpret: all, unless it is long and nothing reads what it writes.

    A second stage that is folded is no launch: the programs of its split do it, and those are all run.
    """
    read = _read(sgraph)
    return [
        _sample(launch, [_Work.of(k) for k in launch.kernels], config.symbols, binding, read)
        for launch in launches_under(sgraph, config)
    ]


def _read(sgraph: sg.SGraph) -> frozenset[str]:
    """What any launch reads; a step's results are what the next one is given under other names, or may be."""
    steps = {name for r in sgraph.repeats for name in r.kernels}
    return frozenset(t for k in sgraph.kernels for t in (*k.reads, *(k.writes if k.name in steps else ())))


def _sample(
    launch: sg.Launch,
    works: Sequence[_Work],
    symbols: Mapping[str, int],
    binding: Mapping[str, int],
    read: frozenset[str],
) -> Sample:
    """What of a launch to interpret; `read` is what any launch reads."""
    target = CASE_TARGET_S / len(launch.kernels)
    sample: list[tuple[tuple[int, ...], int]] = []
    for kernel, work in zip(launch.kernels, works, strict=True):
        grid, seconds = _grid_and_program(kernel, work, symbols, binding)
        affordable = max(LEAST_SAMPLE, int(target / seconds))
        whole = not read.isdisjoint(kernel.writes)
        sample.append((grid, math.prod(grid) if whole else min(affordable, math.prod(grid))))
    return tuple(sample) if any(limit < math.prod(grid) for grid, limit in sample) else None
