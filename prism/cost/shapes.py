"""Estimated times of sGraphs over many shapes at once, and the shapes to look at.

The estimate is that of the generator's ranking (prune.reach): each kernel takes the greater of bytes over bandwidth and
work over the rate of work, longer by what of the device its programs leave idle, plus a launch; an sGraph takes the
least sum over the feasible assignments of tiles and parts *at that shape*. Kernels of one launch pay for one.

All shapes are evaluated together. A factor of a cost, and a constraint, is evaluated on an open grid, over shapes and
the few symbols that it mentions; the assignments that satisfy what does not depend on the shape are listed once, and
factors are looked up for them. Kernels that no constraint and no cost tells apart are evaluated once.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import sympy

from prism.cost import roofline
from prism.cost.compiled_expr import value
from prism.cost.constraints import INT32_MAX, Domain, Footprint, checks, counted, domains, footprint, tile_sizes
from prism.cost.counts import Access, KernelCost, Polynomial, kernel_cost, next_power_of_two
from prism.cost.device import Device, Tiles
from prism.errors import UsageError
from prism.program.extents import is_static
from prism.program.nodes import SymbolRange
from prism.sgraph.nodes import Kernel, SGraph, Whole
from prism.sgraph.resident import in_one_launch

Array: TypeAlias = "np.ndarray[Any, Any]"
Point: TypeAlias = Mapping[str, int]

CHUNK = 1 << 16
"""Shapes times assignments that are evaluated in one piece, so that it stays in the cache (guess)."""
EXPONENTS = 20
"""Tiles and parts are powers of two up to this exponent (by definition)."""


@dataclass(slots=True)
class TimeModel:
    """The roofline estimate as a function of sGraph and shape; it remembers the kernels that it has seen."""

    device: Device  # what the sGraphs run on
    _kernels: dict[object, _Kernel] = field(default_factory=dict, repr=False, compare=False)
    _sgraphs: dict[SGraph, _SGraph] = field(default_factory=dict, repr=False, compare=False)

    def __str__(self) -> str:
        d = self.device
        return (
            f"roofline: {d.bandwidth_bytes_s / 1e12:.3g} TB/s, {d.multiply_adds_s / 1e12:.3g} T multiply-adds/s, "
            f"{d.launch_overhead_s * 1e6:.3g} us a launch, {d.processors} programs fill the device"
        )

    def seconds(self, sgraphs: Sequence[SGraph], points: Sequence[Point]) -> Array:
        """The least time of each sGraph (row) at each shape (column); infinite where no assignment is feasible.

        The points have a value for every symbol of the extents, shape by shape.

        Raises:
            UsageError: a symbol of the extents has no value.
        """
        names = sorted({n for p in points for n in p})
        shapes = {n: np.array([p[n] for p in points], dtype=np.int64) for n in names}
        tables: dict[int, tuple[tuple[str, ...], Array]] = {}
        rows: dict[tuple[Any, ...], Array] = {}
        out = np.empty((len(sgraphs), len(points)))
        for n, sgraph in enumerate(sgraphs):
            made = self._sgraph(sgraph)
            missing = [s for s in made.extents if s not in shapes]
            if missing:
                raise UsageError(f"the extent {missing[0]} has no value", where=sgraph.name, fix="give it a range")
            known = rows.get(made.key)
            if known is None:
                known = rows[made.key] = self._row(made, shapes, len(points), tables)
            out[n] = known
        return out

    def extents(self, sgraphs: Sequence[SGraph]) -> tuple[str, ...]:
        """The names of the symbols that the sGraphs' extents mention, sorted; tiles and parts are not among them."""
        return tuple(sorted({n for s in sgraphs for n in self._sgraph(s).extents}))

    def alike(self, sgraphs: Sequence[SGraph]) -> tuple[int, ...]:
        """For each sGraph the place of the first one that no shape tells apart from it."""
        first: dict[tuple[Any, ...], int] = {}
        return tuple(first.setdefault(self._sgraph(s).key, n) for n, s in enumerate(sgraphs))

    def _sgraph(self, sgraph: SGraph) -> _SGraph:
        known = self._sgraphs.get(sgraph)
        if known is None:
            known = self._sgraphs[sgraph] = self._prepare(sgraph)
        return known

    def _prepare(self, sgraph: SGraph) -> _SGraph:
        sgraph = in_one_launch(sgraph)
        kernels: list[_Kernel] = []
        names = [{s.name for s in k.symbols} for k in sgraph.kernels]
        extents: set[str] = set()
        for n, kernel in enumerate(sgraph.kernels):
            others = set().union(*(s for m, s in enumerate(names) if m != n))
            shared = tuple(sorted(names[n] & others))
            f, cost = footprint(kernel, sgraph), kernel_cost(kernel, sgraph)
            counts = counted(kernel, sgraph)
            key = _key(f, cost, cost.accesses if self.device.is_gpu else (), counts, shared)
            kernels.append(self._kernels.setdefault(key, _Kernel(len(self._kernels), f, cost, counts, shared)))
            own = {s.name for s in kernel.symbols}
            extents |= {s.name for e in _extents(kernel, counts) for s in e.free_symbols} - own
        launches = len(sgraph.launches)
        return _SGraph(tuple(kernels), launches, tuple(sorted(extents)), (launches, *(k.number for k in kernels)))

    def _row(
        self, made: _SGraph, shapes: Mapping[str, Array], count: int, tables: dict[int, tuple[tuple[str, ...], Array]]
    ) -> Array:
        parts: list[tuple[tuple[str, ...], Array]] = []
        for k in made.kernels:
            if k.number not in tables:
                tables[k.number] = (k.shared, k.seconds(shapes, count, self.device))
            parts.append(tables[k.number])
        saved = self.device.launch_overhead_s * (len(made.kernels) - made.launches)
        result: Array = _least_sum(parts, count) - saved
        return result


@dataclass(frozen=True, slots=True)
class _SGraph:
    kernels: tuple[_Kernel, ...]
    launches: int
    extents: tuple[str, ...]
    key: tuple[Any, ...]


def _extents(kernel: Kernel, shapes: Iterable[Sequence[Any]]) -> list[sympy.Expr]:
    every = [*(a.extent for a, _ in kernel.roles), *(e for s in shapes for e in s)]
    return [e for e in every if not is_static(e)]


def _key(f: Footprint, cost: KernelCost, accesses: Sequence[Access], shapes: object, shared: tuple[str, ...]) -> object:
    """All that the time of a kernel depends on."""
    work = (cost.bytes_read, cost.bytes_written, cost.padded_flops, cost.padded_dot_flops, cost.programs)
    # Of a GPU: what lies side by side in memory.
    rows = frozenset(Counter((a.traffic, a.element, a.row) for a in accesses).items())
    staged = tuple((f.axes[v], f.width[f.tensor_of[v]]) for v in f.staged)
    # A set of live shapes: which of them is the greatest matters, not in which order they come.
    live = frozenset(f.live_shapes())
    return (f.kernel.roles, work, tuple(f.dots), f.tiles, live, staged, f.full_precision, rows, shapes, shared)


def _least_sum(parts: Sequence[tuple[tuple[str, ...], Array]], count: int) -> Array:
    """The least sum of the kernels' tables, which agree on the symbols that they share."""
    names = sorted({n for shared, _ in parts for n in shared})
    total: Array = np.zeros((count, *([1] * len(names))))
    for shared, table in parts:
        shape = (count, *(EXPONENTS if n in shared else 1 for n in names))
        total = total + table.reshape(shape)
    result: Array = total.reshape(count, -1).min(axis=1)
    return result


@dataclass(frozen=True, slots=True)
class _Kernel:
    """One kernel, ready to be evaluated."""

    number: int  # among the kernels of the model
    footprint: Footprint  # for the constraints
    cost: KernelCost
    shapes: tuple[tuple[Any, ...], ...]  # what is counted with 32 bits of the tensors that it touches
    shared: tuple[str, ...]  # names of the symbols that other kernels of the sGraph have as well, sorted
    # Of the symbols, by the powers of two above the extents, as far as they have been asked for.
    domains: dict[tuple[int, ...], tuple[Domain, ...]] = field(default_factory=dict, repr=False, compare=False)

    def seconds(self, shapes: Mapping[str, Array], count: int, device: Device) -> Array:
        """Least times: shapes by exponents of the shared symbols; infinite where nothing is feasible."""
        out = np.full((count, *([EXPONENTS] * len(self.shared))), np.inf)
        grid = _Grid.of(self, shapes, count, device.tiles)
        conditions = [np.asarray(ok) for _, ok in checks(self.footprint, device, grid.binding)]
        grid = grid.listed([c for c in conditions if c.ndim == 0 or c.shape[0] == 1])
        if grid.length == 0:
            return out
        masks = [*grid.in_domain(), *(c for c in conditions if c.ndim and c.shape[0] > 1)]
        short = self._offsets(grid.binding, count)
        groups = [(key, np.flatnonzero(where)) for key, where in self._groups(grid)]
        listed = _Lookup(grid, slice(0, count))
        sizes = tile_sizes(self.footprint.kernel, grid.binding)
        sectors = self.cost.beside(sizes, grid.binding) if device.is_gpu else ()
        step = max(1, CHUNK // max(1, grid.length))
        for start in range(0, count, step):
            rows = slice(start, min(start + step, count))
            table = listed.rows(rows)
            moved = table.total(self.cost.bytes_read) + table.total(self.cost.bytes_written)
            for traffic, more in sectors:
                moved = moved + table.total(Polynomial((traffic,))) * table.look(np.asarray(more))
            work = table.total(self.cost.padded_flops) + device.matrix_operation * table.total(
                self.cost.padded_dot_flops
            )
            time = roofline.seconds(device, moved, work, table.total(self.cost.programs))
            feasible: Any = short[rows, None]
            for m in masks:
                feasible = feasible & table.look(m)
            shape = (rows.stop - rows.start, grid.length)
            time = np.where(np.broadcast_to(feasible, shape), np.broadcast_to(time, shape), np.inf)
            for key, where in groups:
                target: Any = (rows, *key)
                out[target] = time[:, where].min(axis=1) if key else time.min(axis=1)
        return out

    def _offsets(self, binding: Mapping[str, Any], count: int) -> Array:
        """Whether kernels' offsets go as far as each shape's tensors; parts count as their least."""
        ok = np.ones(count, dtype=bool)
        own = {s.name for s in self.footprint.kernel.symbols}
        for shape in self.shapes:
            n = np.ones(count)
            for extent in shape:
                if own.isdisjoint(s.name for s in getattr(extent, "free_symbols", ())):
                    n = n * np.asarray(value(extent, binding), dtype=np.float64).reshape(-1)
            ok &= n <= INT32_MAX
        return ok

    def _groups(self, grid: _Grid) -> Iterator[tuple[tuple[int, ...], Array]]:
        """The listed assignments by the exponents of the shared symbols."""
        if not self.shared:
            yield (), np.ones(grid.length, dtype=bool)
            return
        place = [grid.names.index(n) for n in self.shared]
        exponents = np.stack([grid.lows[p] + grid.picked[p] for p in place])
        keys, which = np.unique(exponents, axis=1, return_inverse=True)
        for n, key in enumerate(keys.T.tolist()):
            yield tuple(key), which.reshape(-1) == n


@dataclass(frozen=True, slots=True)
class _Grid:
    """Shapes by powers of two of each symbol, open: every array has one long axis, shapes are the first."""

    names: tuple[str, ...]  # the symbols
    lows: tuple[int, ...]  # exponent of the least value of each
    binding: Mapping[str, Any]  # extents and symbols
    spans: tuple[tuple[Array, Array], ...]  # for each symbol its least and greatest value, shape by shape
    picked: tuple[Array, ...] = ()  # for each symbol the place of its value in the assignments that are listed
    length: int = 1  # how many assignments are listed

    @staticmethod
    def of(kernel: _Kernel, shapes: Mapping[str, Array], count: int, tiles: Tiles) -> _Grid:
        """The grid that holds every shape's domains."""
        f = kernel.footprint
        # Domains only depend on the powers of two above the extents.
        lengths = [_padded(a.extent, shapes, count) for a, r in f.kernel.roles if not isinstance(r, Whole)]
        stacked = np.stack([n for n in lengths if n is not None] or [np.zeros(count, dtype=np.int64)], axis=1)
        rows, first, which = np.unique(stacked, axis=0, return_index=True, return_inverse=True)
        each: list[tuple[Domain, ...]] = []
        for row, i in zip(map(tuple, rows.tolist()), first.tolist(), strict=True):
            if row not in kernel.domains:
                kernel.domains[row] = domains(f, {n: int(v[i]) for n, v in shapes.items()}, tiles)
            each.append(kernel.domains[row])
        names = tuple(d.symbol for d in each[0])
        where = which.reshape(-1)
        spans = tuple(
            (np.array([d[n].low for d in each])[where], np.array([d[n].high for d in each])[where])
            for n in range(len(names))
        )
        dims = len(names)
        binding: dict[str, Any] = {n: v.reshape(-1, *([1] * dims)) for n, v in shapes.items()}
        lows: list[int] = []
        for n, (name, (low, high)) in enumerate(zip(names, spans, strict=True)):
            least = int(low.min()).bit_length() - 1
            powers = 1 << np.arange(least, int(high.max()).bit_length(), dtype=np.int64)
            lows.append(least)
            binding[name] = powers.reshape(*([1] * (n + 1)), -1, *([1] * (dims - n - 1)))
        return _Grid(names, tuple(lows), binding, spans)

    def in_domain(self) -> list[Array]:
        """Whether each symbol's values are in its domain, shape by shape."""
        shape = (-1, *([1] * len(self.names)))
        return [
            (low.reshape(shape) <= self.binding[name]) & (self.binding[name] <= high.reshape(shape))
            for name, (low, high) in zip(self.names, self.spans, strict=True)
        ]

    def listed(self, conditions: Sequence[Array]) -> _Grid:
        """The grid with the assignments listed that satisfy conditions which do not depend on the shape."""
        sizes = tuple(self.binding[n].size for n in self.names)
        mask: Any = np.ones((1, *([1] * len(sizes))), dtype=bool)
        for c in conditions:
            mask = mask & c
        picked = np.nonzero(np.broadcast_to(mask[0], sizes)) if sizes else ()
        length = int(picked[0].size) if sizes else 1
        return _Grid(self.names, self.lows, self.binding, self.spans, tuple(picked), length)


def _padded(extent: Any, shapes: Mapping[str, Array], count: int) -> Array | None:
    if is_static(extent) or not all(s.name in shapes for s in extent.free_symbols):
        return None
    padded: Array = np.broadcast_to(next_power_of_two(value(extent, shapes)), (count,))
    return padded


@dataclass(slots=True)
class _Lookup:
    """Evaluates polynomials for the listed assignments, at some of the shapes; factors are evaluated once."""

    grid: _Grid  # the assignments
    part: slice  # the shapes
    small: dict[Any, Array] = field(default_factory=dict)  # factors on the open grid
    large: dict[Any, Array] = field(default_factory=dict)  # factors of the shapes at hand, one column an assignment

    def rows(self, part: slice) -> _Lookup:
        """The same at other shapes."""
        return _Lookup(self.grid, part, self.small)

    def total(self, polynomial: Polynomial) -> Array:
        """The polynomial: shapes by assignments, either of which may be 1 long where it does not matter."""
        total: Any = np.zeros((1, 1))
        for m in polynomial.terms:
            product: Any = float(m.coefficient)
            for f in m.factors:
                known = self.large.get(f)
                if known is None:
                    known = self.large[f] = self.look(self._evaluate(f))
                product = product * known
            total = total + product
        result: Array = total
        return result

    def _evaluate(self, f: Any) -> Array:
        known = self.small.get(f)
        if known is None:
            # From here on in floating point: products of many extents leave 64 bits.
            known = self.small[f] = np.asarray(f.evaluate(self.grid.binding), dtype=np.float64)
        return known

    def look(self, a: Array) -> Array:
        """An array on the open grid, for the listed assignments."""
        if a.ndim == 0:
            return a.reshape(1, 1)
        cut = a[self.part] if a.shape[0] > 1 else a
        if not self.grid.names:
            return cut.reshape(-1, 1)
        strides = [n for n, size in enumerate(cut.shape[1:]) if size > 1]
        if not strides:
            return cut.reshape(cut.shape[0], 1)
        flat = np.ravel_multi_index(
            tuple(self.grid.picked[n] for n in strides), tuple(cut.shape[n + 1] for n in strides)
        )
        looked: Array = np.take(cut.reshape(cut.shape[0], -1), flat, axis=1)
        return looked


# Which shapes.


def points(ranges: Mapping[str, SymbolRange], limit: int = 8) -> tuple[dict[str, int], ...]:
    """A handful of shapes at which a search keeps what is best, each once, in a fixed order.

    The hints; all symbols low; all high; then for each symbol on its own, the others at their hints: high, low, and the
    geometric middles of low, hint and high. Where there are no ranges, the one shape is empty; there are at most
    `limit`.
    """
    names = sorted(ranges)
    hint = {n: ranges[n].hint for n in names}
    found = [hint, {n: ranges[n].low for n in names}, {n: ranges[n].high for n in names}]
    for pick in (lambda r: r.high, lambda r: r.low, lambda r: middle(r.hint, r.high), lambda r: middle(r.low, r.hint)):
        found += [{**hint, n: pick(ranges[n])} for n in names]
    distinct = {tuple(p.values()): p for p in reversed(found)}
    order = dict.fromkeys(tuple(p.values()) for p in found)
    return tuple(distinct[k] for k in order)[: max(1, limit)]


def middle(low: int, high: int) -> int:
    """The integer nearest to the geometric middle."""
    return round(math.sqrt(low * high))


def levels(r: SymbolRange, octave: int) -> tuple[int, ...]:
    """So many values an octave of a range, evenly in the logarithm's octaves; both ends and the hint with them."""
    found = {r.low, r.high, r.hint}
    base = 1
    while base <= r.high:
        found |= {base + base * n // octave for n in range(octave)}
        base *= 2
    return tuple(sorted(v for v in found if r.low <= v <= r.high))


def lattice(ranges: Mapping[str, SymbolRange], limit: int) -> tuple[dict[str, int], ...]:
    """Shapes over the whole box, spread evenly in the logarithms; about `limit` at most.

    Every combination of as many levels a symbol as the limit allows, low and high always; with more symbols than allow
    two levels each, the first of the corners, as a counter runs through them, and the hints.
    """
    names = sorted(ranges)
    count = max(2, int(limit ** (1 / len(names)) + 1e-9))
    sizes: dict[str, int] = {}
    # What a short range leaves over is for the others.
    for place, n in enumerate(sorted(names, key=lambda n: (len(levels(ranges[n], 4)), n))):
        left = limit / max(1, int(np.prod([sizes[m] for m in sizes] or [1])))
        sizes[n] = min(len(levels(ranges[n], 4)), max(2, int(left ** (1 / (len(names) - place)) + 1e-9), count))
    axes = [_thinned(levels(ranges[n], 4), sizes[n]) for n in names]
    every = itertools.islice(itertools.product(*axes), 2 * limit)
    shapes = [tuple(ranges[n].hint for n in names), *every]
    return tuple(dict(zip(names, p, strict=True)) for p in dict.fromkeys(shapes))


def _thinned(values: Sequence[int], count: int) -> tuple[int, ...]:
    if len(values) <= count:
        return tuple(values)
    return tuple(values[round(n * (len(values) - 1) / (count - 1))] for n in range(count))
