"""The partitioner: from a whole program to regions, each small enough to be searched as one.

The search inside a region considers every way to cut it into kernels, with the real constraints; but its e-graph and
its space grow with the region. So a program is cut where fusing could gain nothing, and only if it has to be:

1.  *A program within the bounds is one region.* `RegionBounds` bounds what a search has to look at: matrix products,
    reductions and pointwise operations, each counted once per distinct instance (see cost/regions.py).
2.  *Which results are materialised.* To begin with, every operator's is (views never are: they are indices of what
    reads them). Then, greatest benefit first, a result is made internal, which is to say computed by those that need
    it, as long as that gains time by the estimate of cost/regions.py and keeps every region within the bounds:

        benefit(t) = time of t's own kernel + what its readers save by not reading t
                  - what they take to compute t, as often as their tiles need it, and to read what t reads

    A chain of pointwise operations goes into whatever surrounds it, and a residual into the product it is added to. A
    row statistic is computed again by the consumer's every tile, which is cheap beside the product that
    reads the same rows. A quadratic intermediate between two products over one axis saves its own size squared and
    is never stored. A product that feeds another product along a long free axis would be computed once a tile of that
    axis: it is cut there. A product that is read at several shifted indices (a rotation's halves) would be computed
    once an index: it is cut, and the rotation goes to its reader.
    What can be made internal without computing anything more often goes first: so an epilogue joins the product it
    ends rather than the product it feeds. Each step changes the gains of its neighbours only; the rest stay in a heap.
    Ties go to the earlier definition. What is stored for others may be computed again by one that would rather not
    read it: of two regions that read the same probabilities, one may have them of the scores' operands.
3.  *Who shares a region.* Roots that do not depend on each other and read the same tensors (projections of one
    activation) are put together while the bounds allow it, those that share most bytes first, so that the search can
    compute them in one kernel. So are a root and one that reads it, where neither has a matrix product: both are
    outputs, or more than one reads the former.
4.  *Where exactly a boundary is.* A result whose only reader is a chain of views of the same size may be stored as any
    of them. The one is taken that leaves the two sides the fewest axes: heads merged into one axis by the producer's
    store are one contracted axis for the next product. What products are batched along is not last in memory
    (prism/generate/memory_order.py).

What is looked up at more places than it has, and is dear to compute, is stored before: so are the features that
edges of a graph gather. So is a product of matrices whose elements, looked up one by one, take longer than all of it on
matrix units. (What is looked up at fewer is computed there: prism/program/lookup.py.)

A loop is cut off from what is around it: what it reads is stored before, and what its steps make is there afterwards.
What comes before, its step, and what comes after are partitioned each by itself.

Nothing here knows any operator's name, and all ties are broken by position, so equal programs give equal regions.
A program that is a little beyond the bounds is searched as one region first (`whole`), and the better one is taken.

The result is a list in an order in which each region reads inputs and outputs of earlier regions only.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from prism.cost.device import DEVICES, Device
from prism.cost.regions import Costs, RootCost, Size, size_of_formulas
from prism.cost.roofline import full, traffic
from prism.errors import UnsupportedError
from prism.generate.memory_order import arranged
from prism.program.extents import Extent, evaluate, product
from prism.program.index import Axis
from prism.program.inline import inline
from prism.program.lookup import Lookup, lookup, lookups
from prism.program.nodes import Definition, Expr, Loop, Program, Read, Reduce, Steps, free_axes, walk
from prism.program.pieces import in_pieces
from prism.program.products import matrix_product, work
from prism.program.region import Region, reads, subprogram
from prism.program.transform import element_at, indices

_Entry: TypeAlias = "tuple[tuple[bool, float], int, str]"

AGAIN = 0.01
"""Work that counts as done again, as a part of what is made internal; less is rounding."""


OVERLAP = 0.05
"""A root computes again what is stored for others where that takes this share off its time, at least."""


FEW_OPERATORS = 2
"""Pointwise operations that a sum of a few terms counts as: a product and an addition."""


WITHOUT_LOOPS = 1.5
"""So many times the pointwise operations where all reductions are of a few terms: kernels differ by grids alone."""


DEEP = 128
"""Definitions one within another in a long region without reductions: walks are recursive, and end at some 190."""


NEAR = 64
"""Roots after one that reads a tensor, too, which it may share a region with: of thousands, pairs would be millions."""


NOT_AFFINE = 1000
"""Axes that an index counts as when it cannot be written in any number of them."""


@dataclass(frozen=True, slots=True)
class RegionBounds:
    """What one search is given at most; see `Size` for what is counted."""

    products: int = 4  # matrix products
    reductions: int = 8  # reductions, products included
    operators: int = 48  # pointwise operations
    outputs: int = 3  # tensors that a region of several roots writes
    # Pointwise operations where there is no reduction and at most half of them are done again at other indices, if that
    # is more: one kernel is all that there is to find.
    unreduced: int = 0

    def admits(self, size: Size) -> bool:
        """Whether a region of that size is within the bounds."""
        operators = size.operators + FEW_OPERATORS * size.few
        if size.products == size.reductions == 0 and 2 * size.again <= size.operators and size.depth <= DEEP:
            more = WITHOUT_LOOPS * self.operators if size.few else self.unreduced
            return operators <= max(self.operators, more)
        return size.products <= self.products and size.reductions <= self.reductions and operators <= self.operators


AT_FIRST = RegionBounds(unreduced=1024)
"""Bounds of the regions that a program is cut into, before any is found to be too hard."""
BEYOND = RegionBounds(products=6, reductions=10, operators=60)
"""A program within these is searched as one region, too, where the bounds cut it."""
SHARING = RegionBounds(products=8, reductions=16, operators=80)
"""So is a program of several outputs within these, in one round: what outputs share is cut off from each of them."""
TWICE = RegionBounds(2 * BEYOND.products, 2 * BEYOND.reductions, 2 * BEYOND.operators)
"""A program within these may be within those with its outputs in pieces."""


def partition(program: Program, bounds: RegionBounds | None = None, device: Device | None = None) -> tuple[Region, ...]:
    """The program's regions, in an order in which they can run.

    Args:
        program: a legal program.
        bounds: how large a region may be.
        device: what it runs on; an A100 by default.

    Returns:
        One region, the program itself, when it is within the bounds. A region with an index that is not affine is cut
        where one is in memory that is (prism/generate/partition.py).
    """
    if program.loops:
        return _around_loops(program, bounds, device)
    program = arranged(program)
    gathered = _gathered(program, device)
    if gathered:
        return _after_gathered(program, gathered, bounds, device)
    limits = bounds or AT_FIRST
    graph = _Graph.of(program)
    costs = _costs(program, device)
    # One kernel is what there is to find of a few outputs.
    at_once = limits if len(graph.forced) <= limits.outputs else replace(limits, unreduced=0)
    if at_once.admits(_size(graph, costs, at_once)) or len(graph.live) == 1:
        return tuple(affine(Region(program, graph.forced)))
    greedy = _Greedy(graph, costs, limits)
    kept = greedy.run()
    groups = _grouped(graph, {r: greedy.roots[r] for r in graph.live if r in kept}, costs, limits)
    return unrepeated(part for region in _regions(graph, kept, greedy.roots, groups) for part in affine(region))


def whole(program: Program, device: Device | None = None) -> Region | None:
    """The program as one region where it is a little beyond the bounds, so that it may be searched as that, too.

    What is cut off goes through memory, and no algebra sees both sides of a cut.
    """
    if program.loops:
        return None
    if not searchable(program, device) and not _shares(program, device):
        return None
    found = tuple(affine(Region(program, _Graph.of(program).forced)))
    return found[0] if len(found) == 1 else None


def _shares(program: Program, device: Device | None) -> bool:
    """Whether a program is one of several outputs within `SHARING`."""
    return len(program.outputs) > 1 and not _gathered(program, device) and SHARING.admits(size_of(program, device))


def searchable(program: Program, device: Device | None = None) -> bool:
    """Whether a program is at most a little beyond the bounds of a region, as it is or written out.

    Written out are its outputs, in pieces where that is less: what simplifies across operators is not there any more.
    """
    if _gathered(program, device):
        return False
    size = size_of(program, device)
    if BEYOND.admits(size):
        return True
    if not TWICE.admits(size) or len(program.outputs) > BEYOND.outputs:
        return False
    try:
        formulas = inline(program)
    except UnsupportedError:
        return False
    return BEYOND.admits(size_of_formulas([p.expr for p in in_pieces(formulas, program.hints)]))


def size_of(program: Program, device: Device | None = None) -> Size:
    """How hard a program is to search as one region, its outputs as they are; at least so hard, beyond `TWICE`."""
    return _size(_Graph.of(program), _costs(program, device))


def _size(graph: _Graph, costs: Costs, limits: RegionBounds = TWICE) -> Size:
    """How hard all of it is to search as one region; of what is beyond the limits anyway, what it is at least.

    Where halves of a tensor change places, as where windows are shifted, instances double with each layer.
    """
    least = costs.once(graph.live)
    if not limits.admits(least):
        return least
    return costs.together(costs.root(r, frozenset()) for r in graph.forced)


def _costs(program: Program, device: Device | None) -> Costs:
    return Costs(program, device or DEVICES["sm_80"], program.tensor(program.outputs[0]).dtype)


def _gathered(program: Program, device: Device | None) -> tuple[str, ...]:
    """What is reduced and then looked up at so many places that all of it takes less, and made of nothing else such."""
    found: dict[str, None] = {}
    graph: _Graph | None = None
    for d in program.definitions:
        for chosen in lookups(d.expr):
            element = chosen.chain[-1].element
            if not isinstance(element, Read) or element.tensor not in program.order:
                continue
            reduced = [r for c in chosen.chain for r in _reduced(program, element, c.axis)]
            on = device or DEVICES["sm_80"]
            if reduced and (chosen.is_repeated or _takes_longer(program, chosen, element.tensor, reduced, on)):
                graph = graph or _Graph.of(program)
                found[graph.source(element.tensor)] = None
    made_of = {f: subprogram(program, f, (f,)).order for f in found}
    return tuple(f for f in found if not any(g in made_of[f] for g in found if g != f))


def _reduced(program: Program, element: Expr, axis: Axis) -> Iterator[Reduce]:
    """The reductions that make what is read differ along the axis, the outermost of those within one another."""
    seen: set[Expr] = set()
    stack = [element]
    while stack:
        for e in walk(stack.pop()):
            if axis not in free_axes(e) or e in seen:
                continue
            if isinstance(e, Reduce) and lookup(e) is None:
                yield e
                continue
            if isinstance(e, Read) and e.tensor in program.order:
                seen.add(e)
                d = program.definition(e.tensor)
                stack.append(element_at(d, e.index))


def _takes_longer(program: Program, chosen: Lookup, tensor: str, reduced: Iterable[Reduce], device: Device) -> bool:
    """Whether a product of matrices takes less, stored and read in a launch of its own, than its elements one by one.

    Where one axis has the places of rows and columns, what is looked up is no product of matrices.
    """
    places = {c.axis: free_axes(c.place) for c in chosen.chain}

    def moved(axes: Iterable[Axis]) -> set[Axis]:
        return {b for a in axes for b in places.get(a, (a,))}.difference(places)

    def size(axes: Iterable[Axis]) -> int:
        return math.prod(evaluate(a.extent, program.hints) for a in axes)

    for p in work(*reduced).products:
        rows, columns = moved(p.rows | p.batch), moved(p.columns | p.batch)
        if not p.is_matrix or matrix_product(rows | p.depth, columns | p.depth, p.depth) is not None:
            continue
        each = full(device, 0, size(rows | columns | p.depth))
        stored = 2 * size(p.rows | p.columns | p.batch) * program.tensor(tensor).dtype.bytes
        if full(device, stored, 2 * device.matrix_operation * size(p.axes)) + device.launch_overhead_s < each:
            return True
    return False


def _after_gathered(
    program: Program, gathered: Sequence[str], bounds: RegionBounds | None, device: Device | None
) -> tuple[Region, ...]:
    """The regions of what makes the tensors, and with them what else of reductions is needed before and after."""
    before = subprogram(program, f"{program.name}_before", gathered)
    after = subprogram(program, f"{program.name}_after", program.outputs, gathered)
    both = (d for d in before.definitions if d.name in after.order)
    stored = {*gathered, *(d.name for d in both if any(isinstance(e, Reduce) for e in walk(d.expr)))}
    after = subprogram(program, after.name, [n for n in program.outputs if n not in stored], stored)
    read = {t.name for t in after.inputs} | set(program.outputs)
    made = [d.name for d in before.definitions if d.name in stored and d.name in read]
    before = subprogram(program, before.name, made)
    return unrepeated((*partition(before, bounds, device), *partition(after, bounds, device)))


def _around_loops(program: Program, bounds: RegionBounds | None, device: Device | None) -> tuple[Region, ...]:
    """The regions of a program with loops: of its steps, and of what is computed between them.

    A definition's depth is how many loops one after another it hangs on; what is of one depth is one program.
    """
    depth: dict[str, int] = {}
    before: dict[str, int] = {}
    for d in program.definitions:
        own = max((depth.get(t, 0) for t in reads(d.expr)), default=0)
        if isinstance(d.expr, Steps):
            before[d.expr.loop.name] = own
        depth[d.name] = own + isinstance(d.expr, Steps)
    computed = {d.name for d in program.definitions if not isinstance(d.expr, Steps)}
    # What is stored: what loops read, outputs, and what is read beyond a loop; through views, what these are of.
    stored: dict[str, None] = dict.fromkeys(n for n in program.outputs if n in computed)
    needed = {*program.outputs}
    for d in reversed(program.definitions):
        if d.name not in needed:
            continue
        for t in reads(d.expr):
            needed.add(t)
            if t in computed and isinstance(d.expr, Steps):
                stored[t] = None
    uses: list[tuple[str, int]] = [(d.name, depth[d.name]) for d in program.definitions if d.name in needed & computed]
    while uses:
        name, at = uses.pop()
        if name in stored and depth[name] < at:
            continue
        for t in reads(program.definition(name).expr):
            if t not in computed:
                continue
            if depth[t] < at and not program.definition(t).view:
                stored[t] = None
            elif depth[t] < at:
                uses.append((t, at))
    given = {*stored, *(d.name for d in program.definitions if d.name not in computed)}
    loops = [loop for loop in program.loops if any(n in needed for n in _made_by(program, loop))]
    found: list[Region] = []
    for level in range(1 + max(depth.values())):
        outputs = tuple(d.name for d in program.definitions if d.name in stored and depth[d.name] == level)
        if outputs:
            part = subprogram(program, f"{program.name}_{level}", outputs, given - set(outputs))
            found += partition(part, bounds, device)
        for loop in loops:
            if before[loop.name] == level:
                found += [replace(r, loop=loop) for r in partition(loop.body, bounds, device)]
    return unrepeated(replace(r, program=replace(r.program, name=f"{program.name}_{n}")) for n, r in enumerate(found))


def _made_by(program: Program, loop: Loop) -> list[str]:
    return [d.name for d in program.definitions if isinstance(d.expr, Steps) and d.expr.loop.name == loop.name]


def unrepeated(regions: Iterable[Region]) -> tuple[Region, ...]:
    """The regions without what an earlier one makes: what several compute is cut off from each.

    One that makes something else besides reads what is there.
    """
    made: set[str] = set()
    found = []
    for region in regions:
        p = region.program
        own = [o for o in p.outputs if o not in made]
        if own and len(own) < len(p.outputs):
            program = subprogram(p, p.name, own, made.intersection(p.outputs))
            roots = tuple(r for r in region.roots if r in program.order)
            region = replace(region, program=program, roots=roots)
        if own:
            found.append(region)
        made.update(own)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Graph:
    """The program as a graph of results that may be materialised."""

    program: Program
    definitions: dict[str, Definition]  # by name
    place: dict[str, int]  # position of each definition
    readers: dict[str, tuple[str, ...]]  # for each definition, the definitions that read it, in order
    # Definitions that may be materialised and that an output needs, in order: no views, unless an output is a view of
    # an input.
    live: tuple[str, ...]
    forced: tuple[str, ...]  # those that must be: what the outputs are, or are views of

    @staticmethod
    def of(program: Program) -> _Graph:
        definitions = {d.name: d for d in program.definitions}
        place = {d.name: n for n, d in enumerate(program.definitions)}
        needed: set[str] = set()
        stack = list(program.outputs)
        while stack:
            name = stack.pop()
            if name in definitions and name not in needed:
                needed.add(name)
                stack.extend(reads(definitions[name].expr))
        readers: dict[str, list[str]] = {}
        for d in program.definitions:
            if d.name in needed:
                for t in reads(d.expr):
                    readers.setdefault(t, []).append(d.name)

        forced = tuple(dict.fromkeys(_source(definitions, o) for o in program.outputs))
        live = tuple(d.name for d in program.definitions if d.name in needed and (not d.view or d.name in forced))
        return _Graph(program, definitions, place, {t: tuple(r) for t, r in readers.items()}, live, forced)

    def source(self, name: str) -> str:
        """What a definition is a view of; itself when it is computed, or is a view of an input."""
        return _source(self.definitions, name)


def _source(definitions: Mapping[str, Definition], name: str) -> str:
    d = definitions[name]
    while d.view:
        (below,) = reads(d.expr)
        if below not in definitions:
            return name
        d = definitions[below]
    return d.name


@dataclass(slots=True)
class _Greedy:
    """Makes results internal, greatest benefit first."""

    graph: _Graph
    costs: Costs
    limits: RegionBounds
    kept: set[str] = field(default_factory=set)  # what is materialised
    # Of a root, what is materialised and computed by it all the same.
    own: dict[str, set[str]] = field(default_factory=dict)
    roots: dict[str, RootCost] = field(default_factory=dict)
    using: dict[str, set[str]] = field(default_factory=dict)
    # Of each result that may still be made internal, the least first: whether something is then computed more often
    # than before, and the benefit, negative.
    rank: dict[str, tuple[bool, float]] = field(default_factory=dict)

    def run(self) -> frozenset[str]:
        """What stays materialised."""
        self.kept = set(self.graph.live)
        for name in self.graph.live:
            self._set(name, self._cost(name))
        heap: list[_Entry] = []
        self._update(self.graph.live, heap)
        self._all_internal(heap)
        for name in self.graph.live:
            while name in self.kept and self._overlap(name, heap):
                self._all_internal(heap)
        return frozenset(self.kept)

    def _cost(self, root: str) -> RootCost:
        own = self.own.get(root)
        return self.costs.root(root, self.kept - own if own else self.kept)

    def _all_internal(self, heap: list[_Entry]) -> None:
        while heap:
            rank, _, name = heapq.heappop(heap)
            if self.rank.get(name) != rank or name not in self.kept:
                continue  # an entry that a later one replaced
            self._internal(name, heap)

    def _overlap(self, root: str, heap: list[_Entry]) -> bool:
        """Whether the root computes something by itself now that it read, though others go on reading it."""
        known, own = self.roots[root], self.own.get(root, set())
        most = OVERLAP * known.seconds
        best: tuple[float, str, RootCost] | None = None
        for t in sorted(known.read & self.kept, key=self.graph.place.__getitem__):
            if traffic(self.costs.device, self.costs.bytes(t)) < most:
                continue  # not to read it saves no more than that
            cost = self.costs.root(root, self.kept - own - {t})
            saved = known.seconds - cost.seconds
            if saved >= most and self.limits.admits(cost.size) and (best is None or saved > best[0]):
                best = saved, t, cost
        if best is None:
            return False
        _, t, cost = best
        self.own.setdefault(root, set()).add(t)
        self._set(root, cost)
        touched = {t, *known.read, *cost.read} & self.kept
        self._update(sorted(touched, key=self.graph.place.__getitem__), heap)
        return True

    def _set(self, root: str, cost: RootCost) -> None:
        known = self.roots.get(root)
        for t in known.read if known is not None else ():
            self.using[t].discard(root)
        self.roots[root] = cost
        for t in cost.read:
            self.using.setdefault(t, set()).add(root)

    def _internal(self, name: str, heap: list[_Entry]) -> None:
        self.kept.remove(name)
        self.costs.forget(name)
        gone = self.roots.pop(name)
        for t in gone.read:
            self.using[t].discard(name)
        touched = set(gone.read)
        for root in self._readers(name):
            touched.add(root)
            self._set(root, self._cost(root))
            touched |= self.roots[root].read
        self._update(sorted(touched & self.kept, key=self.graph.place.__getitem__), heap)

    def _readers(self, name: str) -> list[str]:
        return sorted(self.using.get(name, ()), key=lambda r: self.graph.place[r])

    def _update(self, names: Sequence[str], heap: list[_Entry]) -> None:
        for name in names:
            self.rank.pop(name, None)
            again, benefit = self._benefit(name)
            if benefit > 0:
                self.rank[name] = (again, -benefit)
                heapq.heappush(heap, (self.rank[name], self.graph.place[name], name))

    def _benefit(self, name: str) -> tuple[bool, float]:
        """Whether making a result internal computes anything more often, and seconds saved; 0 where it cannot be."""
        readers = self._readers(name)
        if name in self.graph.forced:
            return False, 0.0
        benefit, work = self.roots[name].seconds, -self.roots[name].work
        self.kept.remove(name)  # for the while: a copy of the set for each question would make the whole quadratic
        try:
            for root in readers:
                cost = self._cost(root)
                if not self.limits.admits(cost.size):
                    return False, 0.0
                benefit += self.roots[root].seconds - cost.seconds
                work += cost.work - self.roots[root].work
        finally:
            self.kept.add(name)
        return work > AGAIN * self.roots[name].work, benefit


def _grouped(
    graph: _Graph, roots: dict[str, RootCost], costs: Costs, limits: RegionBounds
) -> tuple[tuple[str, ...], ...]:
    """The roots, those that share a region together."""
    groups: dict[str, list[str]] = {r: [r] for r in roots}
    owner = {r: r for r in roots}
    readers: dict[str, list[str]] = {}
    for r, cost in roots.items():
        for t in sorted(cost.read):
            readers.setdefault(t, []).append(r)
    shared: dict[tuple[str, str], int] = {}
    light = {r for r, cost in roots.items() if not cost.size.products}
    for r in light:
        for t in sorted(roots[r].read & light):
            shared[t, r] = costs.bytes(t)
    for t, of in readers.items():
        for n, a in enumerate(of):
            for b in of[n + 1 : n + 1 + NEAR]:
                shared[a, b] = shared.get((a, b), 0) + costs.bytes(t)
    for a, b in sorted(shared, key=lambda p: (-shared[p], graph.place[p[0]], graph.place[p[1]])):
        first, second = owner[a], owner[b]
        members = groups[first] + groups[second]
        if first == second or len(members) > limits.outputs:
            continue
        if not limits.admits(costs.together(roots[m] for m in members)) or _depend(first, second, groups, owner, roots):
            continue
        if not light.issuperset(members) and _reads(first, second, groups, owner, roots):
            continue
        groups[first] = sorted(members, key=lambda m: graph.place[m])
        del groups[second]
        for m in members:
            owner[m] = first
    return tuple(tuple(g) for g in groups.values())


def _reads(
    a: str, b: str, groups: Mapping[str, Sequence[str]], owner: Mapping[str, str], roots: Mapping[str, RootCost]
) -> bool:
    """Whether one of the groups reads what the other makes."""
    made = {a: {*groups[a]}, b: {*groups[b]}}
    return any(roots[m].read & made[other] for one, other in ((a, b), (b, a)) for m in groups[one])


def _depend(
    a: str, b: str, groups: Mapping[str, Sequence[str]], owner: Mapping[str, str], roots: Mapping[str, RootCost]
) -> bool:
    """Whether one of the groups needs the other through further groups, which could run neither before nor after."""
    for start, goal in ((a, b), (b, a)):
        seen = {start, goal}
        stack = [owner[t] for m in groups[start] for t in roots[m].read if t in owner and owner[t] not in seen]
        while stack:
            above = stack.pop()
            if above in seen:
                continue
            seen.add(above)
            for m in groups[above]:
                for t in roots[m].read:
                    further = owner.get(t)
                    if further == goal:
                        return True
                    if further is not None and further not in seen:
                        stack.append(further)
    return False


def _regions(
    graph: _Graph, kept: frozenset[str], roots: Mapping[str, RootCost], groups: Sequence[Sequence[str]]
) -> tuple[Region, ...]:
    """The groups as programs, in an order in which they can run."""
    boundary = {t: _boundary(graph, kept, t) for t in graph.live if t in kept}
    final = set(graph.program.outputs)
    views: dict[str, list[str]] = {}
    for o in graph.program.outputs:
        views.setdefault(graph.source(o), []).append(o)
    given = {*boundary.values(), *final}
    made: dict[str, Region] = {}
    for group in groups:
        outputs: dict[str, None] = {}
        for root in group:
            if boundary[root] in final or _read_elsewhere(graph, kept, boundary[root]):
                outputs[boundary[root]] = None
            outputs |= dict.fromkeys(views.get(root, ()))
        name = f"{graph.program.name}_{len(made)}"
        read = {t for root in group for t in roots[root].read}
        again = {t for root in group for t in roots[root].members} & kept - read
        own = {boundary[root] for root in (*group, *again)}
        given -= own
        part = subprogram(graph.program, name, tuple(outputs), given)
        given |= own
        made[group[0]] = Region(part, tuple(group))
    return ordered(list(made.values()), graph.program)


def _read_elsewhere(graph: _Graph, kept: frozenset[str], tensor: str) -> bool:
    """Whether something that is computed reads the tensor, itself or through views."""
    return any(not graph.definitions[r].view or _read_elsewhere(graph, kept, r) for r in graph.readers.get(tensor, ()))


def ordered(regions: Sequence[Region], program: Program) -> tuple[Region, ...]:
    """Regions after those that they read from; otherwise by the place of what they write first. Named by position.

    Those that wait for each other are left out.
    """
    maker = {t: n for n, r in enumerate(regions) for t in r.outputs}
    waiting = [{maker[t] for t in r.inputs if t in maker} for r in regions]
    readers: dict[int, list[int]] = {}
    for n, needs in enumerate(waiting):
        for m in needs:
            readers.setdefault(m, []).append(n)
    first = [min(program.order[t] for t in r.roots) for r in regions]
    ready = [(first[n], n) for n, needs in enumerate(waiting) if not needs]
    heapq.heapify(ready)
    done: list[int] = []
    while ready:
        _, n = heapq.heappop(ready)
        done.append(n)
        for m in readers.get(n, ()):
            waiting[m].remove(n)
            if not waiting[m]:
                heapq.heappush(ready, (first[m], m))
    return tuple(
        replace(regions[n], program=replace(regions[n].program, name=f"{program.name}_{place}"))
        for place, n in enumerate(done)
    )


def _boundary(graph: _Graph, kept: frozenset[str], root: str) -> str:
    """The root, or the view of it that is stored instead: the one that leaves both sides the fewest axes."""
    chain = [root]
    while chain[-1] not in graph.program.outputs:
        following = graph.readers.get(chain[-1], ())
        if len(following) != 1 or not graph.definitions[following[0]].view or following[0] in kept:
            break
        view = graph.definitions[following[0]]
        if _elements(view) != _elements(graph.definitions[root]) or view.dtype != graph.definitions[root].dtype:
            break
        chain.append(view.name)
    if len(chain) == 1:
        return root
    consumers = _computing_readers(graph, chain[-1])

    def axes(name: str, given: tuple[str, ...], within: tuple[str, ...]) -> int:
        try:
            (formula,) = inline(graph.program, (name,), _Stored(graph.definitions, given, within))
        except UnsupportedError:
            return NOT_AFFINE
        return len({a for i in formula.index for a in i.axes()}) + sum(
            isinstance(e, Reduce) for e in walk(formula.expr)
        )

    def score(tensor: str) -> int:
        return axes(tensor, (), (root, tensor)) + sum(axes(c, (tensor,), (c, root)) for c in consumers)

    return min(chain, key=score)


@dataclass(frozen=True, slots=True)
class _Stored:
    """What is read as it is while a boundary is looked for: everything that is computed, but for what is within."""

    definitions: Mapping[str, Definition]  # by name
    given: tuple[str, ...]  # tensors that are read, too, though they may be views
    within: tuple[str, ...]  # tensors that are written out

    def __contains__(self, name: object) -> bool:
        if name in self.given:
            return True
        return isinstance(name, str) and name not in self.within and not self.definitions[name].view


def _elements(d: Definition) -> Extent:
    return product(a.extent for a in d.axes)


def _computing_readers(graph: _Graph, tensor: str) -> list[str]:
    """The definitions that are no views and read the tensor, itself or through views."""
    found: dict[str, None] = {}
    for r in graph.readers.get(tensor, ()):
        for c in _computing_readers(graph, r) if graph.definitions[r].view else (r,):
            found[c] = None
    return list(found)


def affine(region: Region) -> Sequence[Region]:
    """Several regions that do the same, and whose reads are affine.

    A class token beside 4 by 4 patches makes 17 rows, and the patch of the i-th is in row (i - 1) div 4: no split of i
    says that. But the 16 patches split, and a tensor of them that is in memory is read as any other. So where a value
    cannot be inlined, what it reads is materialised, be it a view that is only copied then: a region of its own.

    The region itself where its own are, or where no cut helps.
    """
    program = region.program
    if not any(_divides(d.expr) for d in program.definitions) or _inlines(program):
        return (region,)
    given: dict[str, None] = {}
    defined = {d.name for d in program.definitions}
    for d in program.definitions:
        if _inlines(subprogram(program, program.name, [d.name], _but(given, d.name))):
            continue
        given.update(dict.fromkeys(t for t in reads(d.expr) if t in defined))
        if not _inlines(subprogram(program, program.name, [d.name], _but(given, d.name))):
            return (region,)
    order = {d.name: n for n, d in enumerate(program.definitions)}
    cuts = sorted(given, key=order.__getitem__)
    parts = [Region(subprogram(program, f"{program.name}_{n}", [t], _but(given, t)), (t,)) for n, t in enumerate(cuts)]
    left = [o for o in program.outputs if o not in given]
    if left:
        parts.append(Region(subprogram(program, program.name, left, given), tuple(left)))
    return tuple(parts)


def _but(given: dict[str, None], name: str) -> set[str]:
    return given.keys() - {name}


def _inlines(program: Program) -> bool:
    with suppress(UnsupportedError):
        inline(program)
        return True
    return False


def _divides(expr: Expr) -> bool:
    """Whether an index in it is a quotient or a remainder."""
    return not all(i.is_affine() for e in walk(expr) for i in indices(e))
