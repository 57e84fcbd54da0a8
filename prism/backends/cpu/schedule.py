"""What is computed when: the statements of a block as loop nests.

A *root* is a statement that leaves something behind: a store, an accumulator's start or update, a reduction, a matrix
product, a value that is *kept* in an array; a loop is one, too. Everything else is computed where it is used. Roots
over the same lanes share a nest where the dependences between them are element by element, so that what they share is
computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prism.backends import tile
from prism.backends.cpu.values import Product, Values, without_aliases
from prism.backends.cpu.windows import Window, within
from prism.backends.tile import Stmt
from prism.ir.kit import defined, statements
from prism.program.nodes import DType, ReduceKind
from prism.program.ops import OPS

_COSTS: Mapping[str, int] = {
    **{name: 12 if op.rounds and op.flops > 1 else op.flops for name, op in OPS.items()},
    **{"recip": 4, "div": 4, "sqrt": 4, "exp2": 12},
}
ALONE = ("product", "window", "loop")
"""Roots that are no nests."""
RECOMPUTE = 6
"""What costs less is computed again for every use of it, rather than kept in an array."""
COSTLY = 10
_INLINE = (
    tile.Load,
    tile.Cast,
    tile.Copy,
    tile.Select,
    tile.Pointwise,
    tile.InBounds,
    tile.IndexValue,
    tile.Full,
    tile.Offsets,
)


@dataclass(frozen=True, slots=True)
class Root:
    """A root."""

    kind: str  # fill, keep, update, reduce, store, product, window or loop
    stmt: Stmt  # the statement
    place: int  # its position in the program
    lanes: tuple[str, ...] = ()  # what its nest runs over; those of the result and the summed one for a product
    writes: frozenset[str] = frozenset()  # the value that it changes; None for stores
    # The values in arrays or variables that it takes, and what it changes if it depends on that.
    reads: frozenset[str] = frozenset()
    gone: str | None = None  # the lane that it reduces
    into: str | None = None  # the accumulator that a reduction or product goes straight into
    product: Product | None = None  # the matrix product
    window: Window | None = None  # the product over a window
    body: tuple[Group, ...] = ()  # of a loop, and the values that are changed in it

    @property
    def dst(self) -> str:
        """What it makes, by name."""
        if self.window is not None:
            return self.window.acc
        if self.into is not None:
            return self.into
        return defined(self.stmt) or ""


@dataclass(slots=True)
class Group:
    """Roots of one nest, or a product or loop alone."""

    roots: list[Root]

    @property
    def lanes(self) -> tuple[str, ...]:
        """What the nest runs over."""
        return self.roots[0].lanes

    @property
    def alone(self) -> bool:
        """Whether it is no nest."""
        return self.roots[0].kind in ALONE


@dataclass(frozen=True, slots=True)
class _Use:
    """Where a value is computed: the root's position, block, lanes and identity; whether as a factor of a product."""

    place: int
    block: int
    lanes: frozenset[str]
    root: int
    factor: str = ""


@dataclass(slots=True)
class Scheduler:
    """Decides what is kept and makes the nests."""

    v: Values
    products: Mapping[str, Product]  # by the key of `find_products`, but those over windows
    windows: Mapping[int, Window]  # by the position of the outermost loop, or of the product alone
    gone: set[str]  # names that products make superfluous
    kept: set[str] = field(default_factory=set)  # names that are held in arrays or variables
    # The lanes of an array in the order of memory, where it is not that of the value.
    order: dict[str, tuple[str, ...]] = field(default_factory=dict)
    merged: dict[str, str] = field(default_factory=dict)
    _uses: dict[str, list[_Use]] = field(default_factory=dict)
    _updates: dict[str, list[int]] = field(default_factory=dict)
    _cost: dict[str, int] = field(default_factory=dict)

    def run(self) -> list[Group]:
        """The nests of the whole program."""
        body = self.v.program.body
        self._merge(body)
        for s in statements(body):
            if isinstance(s, tile.Update) or (isinstance(s, tile.Dot) and s.add == s.dst):
                self._updates.setdefault(defined(s) or "", []).append(self.v.places[id(s)])
        self._as_stored()
        for p in self.products.values():
            self._columns_last(p)
        for w in self.windows.values():
            self.order[w.acc] = w.lanes
        blocks = dict(self._blocks(body, -1))
        whole = {id(s) for s in within(self.windows)}
        for s in reversed(statements(body)):
            if not isinstance(s, tile.For) and id(s) not in whole and self.v.places[id(s)] not in self.windows:
                self._visit(s, blocks[self.v.places[id(s)]])
        return self._groups(body)

    def _as_stored(self) -> None:
        """The order of results and accumulators that all stores write in another than theirs: that of the stores.

        Products then write what is stored next as neighbours, instead of what a store would gather with a stride. A
        factor of which nothing is neighbours in memory, a tap of a convolution's weights, is better the second one,
        whose panels may be held.
        """
        stores = [s for s in statements(self.v.program.body) if isinstance(s, tile.Store)]
        views = [self.v.view(s.tensor, s.offset, s.masks) for s in stores]
        # Heads that are stored side by side are added to what is within a head, and so come behind it.
        orders = {tuple(n for last in (False, True) for n, by in v.strides.items() if (by == 1) is last) for v in views}
        if not self.products or len(orders) != 1:
            return
        (stored,) = orders
        made = {self.merged.get(p.dst, p.dst) for p in self.products.values()}
        factors = [n for p in self.products.values() for n in (p.lhs, p.rhs) if n in self.v.views]
        if any(1 not in self.v.views[n].strides.values() for n in factors):
            return
        for name in sorted(made | self.v.accumulators):
            lanes = self.v.lanes_of(name)
            if lanes and set(lanes) == set(stored) and lanes[-1] != stored[-1]:
                self.order[name] = stored

    def _columns_last(self, p: Product) -> None:
        """The order of a result in which a lane of both factors would be last: products write rows of columns."""
        dst = self.merged.get(p.dst, p.dst)
        lanes = self.order.get(dst, self.v.lanes_of(dst))
        both = set(self.v.lanes_of(p.lhs)) & set(self.v.lanes_of(p.rhs))
        if lanes and lanes[-1] in both:
            self.order[dst] = (*(n for n in lanes if n in both), *(n for n in lanes if n not in both))

    def product(self, s: Stmt) -> Product | None:
        """The matrix product that a statement is."""
        return self.products.get(f"{defined(s)}@{self.v.places[id(s)]}")

    def roles(self, p: Product) -> tuple[str, str]:
        """The factor whose rows are walked one by one, and the one whose lanes are the result's last."""
        free = [n for n in self.v.lanes_of(p.rhs) if n not in self.v.lanes_of(p.lhs)]
        dst = self.merged.get(p.dst, p.dst)
        lanes = self.order.get(dst, self.v.lanes_of(dst))
        own = [n for n in lanes if n in free]
        other = [n for n in lanes if n in self.v.lanes_of(p.lhs) and n not in self.v.lanes_of(p.rhs)]
        if not own or (other and lanes.index(other[-1]) > lanes.index(own[-1])):
            return p.rhs, p.lhs
        return p.lhs, p.rhs

    def _blocks(self, body: Sequence[Stmt], block: int) -> Iterable[tuple[int, int]]:
        for s in body:
            place = self.v.places[id(s)]
            yield place, block
            if isinstance(s, tile.For):
                yield from self._blocks(s.body, place)

    def _merge(self, body: Sequence[Stmt]) -> None:
        """Reductions that go straight into the accumulator that alone takes them."""
        uses: dict[str, int] = {}
        for s in statements(body):
            for name in without_aliases(s, self.v):
                uses[name] = uses.get(name, 0) + 1
        for block in (body, *(s.body for s in statements(body) if isinstance(s, tile.For))):
            made = {s.dst: s for s in block if isinstance(s, tile.Reduce | tile.Dot)}
            for s in block:
                if not isinstance(s, tile.Update):
                    continue
                src = self.v.resolve(s.src)
                origin = made.get(src)
                if origin is None or uses[src] != 1 or set(self.v.lanes_of(src)) != set(self.v.lanes_of(s.acc)):
                    continue
                kind = origin.kind if isinstance(origin, tile.Reduce) else ReduceKind.SUM
                if kind is not s.kind or any(n in self.v.accumulators for n in without_aliases(origin, self.v)):
                    continue
                if isinstance(origin, tile.Dot) and origin.add is not None:
                    continue
                self.merged[src] = s.acc

    # What is kept.

    def _visit(self, s: Stmt, block: int) -> None:
        v, place = self.v, self.v.places[id(s)]
        name = defined(s)
        if name is not None and (name in self.gone or v.resolve(name) != name):
            return
        if isinstance(s, tile.Scalar):
            return
        product = self.product(s)
        if product is not None:
            at = self._merged_place(product.dst, place)
            a, b = self.roles(product)
            lanes = frozenset(v.lanes_of(a)) | frozenset(v.lanes_of(b))
            for factor, role in ((a, "a"), (b, "b")):
                other = b if role == "a" else a
                ready = self._ready(factor, role, product, other)
                self._use(factor, _Use(at, block, lanes, place, "" if ready else role))
                if not ready and factor in v.values and isinstance(v.values[factor].stmt, _INLINE):
                    self._arrange(factor, role, product, other)
            for number in product.added:
                if isinstance(number, str):
                    self._use(number, _Use(at, block, frozenset(), place, "added"))
            return
        if isinstance(s, _INLINE) and name not in v.accumulators:
            assert name is not None
            uses = self._uses.get(name, [])
            if not uses:
                return
            if self._must_keep(s, name, place, block, uses):
                self.kept.add(name)
                uses = [_Use(place, block, frozenset(v.lanes_of(name)), place)]
            for operand in without_aliases(s, v):
                for use in uses:
                    self._use(operand, use if not use.factor else _Use(use.place, use.block, use.lanes, use.root))
            return
        at, lanes = place, frozenset(self._root_lanes(s))
        if isinstance(s, tile.Reduce):
            at = self._merged_place(s.dst, place)
        for operand in without_aliases(s, v):
            if isinstance(s, tile.Update) and operand in self.merged:
                continue
            self._use(operand, _Use(at, block, lanes, place))

    def _merged_place(self, dst: str, place: int) -> int:
        acc = self.merged.get(dst)
        if acc is None:
            return place
        return next(
            self.v.places[id(s)]
            for s in statements(self.v.program.body)
            if isinstance(s, tile.Update) and self.v.resolve(s.src) == dst
        )

    def _use(self, name: str, use: _Use) -> None:
        self._uses.setdefault(name, []).append(use)

    def _ready(self, name: str, role: str, product: Product, other: str) -> bool:
        """Whether a factor can be taken as it stands."""
        v = self.v
        if name not in v.views:
            return name in v.values and not isinstance(v.values[name].stmt, _INLINE)
        view = v.views[name]
        stored = v.tensor(view.tensor).dtype
        if product.added and name in v.views:
            return True  # bytes are taken as they lie
        if view.masks or view.places or not stored.is_float or set(view.strides) - set(v.lanes_of(name)):
            return False
        if role == "b":
            return True
        if product.halves:
            return view.strides.get(product.lane) == 1  # pairs of terms as they lie
        # Neighbours along the sum are read one by one, neighbours across it packed in runs.
        across = [n for n in v.lanes_of(name) if n not in v.lanes_of(other)]
        return stored is DType.FLOAT32 and any(view.strides.get(n) == 1 for n in (product.lane, *across))

    def _arrange(self, name: str, role: str, product: Product, other: str) -> None:
        """The order of a factor's array: the summed lane last in rows that are walked, first in the others.

        There, too, it is last where neighbours along it alone are computed from neighbours in memory: packing
        transposes whole vectors, which costs less than a store with a stride.
        """
        if name in self.order:
            return
        mine, theirs = self.v.lanes_of(name), self.v.lanes_of(other)
        batch = tuple(n for n in mine if n in theirs and n != product.lane)
        free = tuple(n for n in mine if n not in theirs)
        last = role == "a" or (
            self._runs_along(name, product.lane) and not any(self._runs_along(name, n) for n in free)
        )
        self.order[name] = (*batch, *free, product.lane) if last else (*batch, product.lane, *free)

    def _runs_along(self, name: str, lane: str) -> bool:
        """Whether a value is computed from a tensor of no fewer lanes, contiguous along this one."""
        v = self.v
        if name in v.views:
            view = v.views[name]
            return view.strides.get(lane) == 1 and set(v.lanes_of(name)) <= set(view.strides) | v.chosen(name)
        if name not in v.values or not isinstance(v.values[name].stmt, _INLINE):
            return False
        mine = set(v.lanes_of(name))
        return any(
            mine <= set(v.lanes_of(n)) and self._runs_along(n, lane) for n in without_aliases(v.values[name].stmt, v)
        )

    def _must_keep(self, s: Stmt, name: str, place: int, block: int, uses: Sequence[_Use]) -> bool:
        v = self.v
        lanes = frozenset(v.lanes_of(name))
        if any(u.factor for u in uses):
            return True
        if isinstance(s, tile.Offsets | tile.Full | tile.InBounds | tile.IndexValue):
            return False
        if not lanes:
            return True
        if any(u.block != block for u in uses) and not isinstance(s, tile.Load):
            return True
        if any(self._changes(name, place, block, u) for u in uses):
            return True
        cost = self.cost(name)
        if cost >= COSTLY and any(u.lanes > lanes for u in uses):
            return True
        return cost >= RECOMPUTE and len({u.root for u in uses}) > 1

    def _changes(self, name: str, place: int, block: int, use: _Use) -> bool:
        """Whether an accumulator that the value is computed from changes before the use."""
        end, at = use.place, use.block
        while at not in (block, -1):
            end, at = self.v.ends[at], self.v.parents[at]
        return any(place < u < end for acc in self._accumulators_of(name) for u in self._updates.get(acc, []))

    def _accumulators_of(self, name: str) -> set[str]:
        if name in self.v.accumulators:
            return {name}
        if name not in self.v.values or not isinstance(self.v.values[name].stmt, _INLINE):
            return set()
        return {a for n in without_aliases(self.v.values[name].stmt, self.v) for a in self._accumulators_of(n)}

    def cost(self, name: str) -> int:
        """The operations of a value and of what it is computed from."""
        if name not in self._cost:
            value = self.v.values.get(name)
            if value is None or name in self.v.accumulators or not isinstance(value.stmt, _INLINE):
                return 1
            own = _COSTS.get(value.stmt.op, 1) if isinstance(value.stmt, tile.Pointwise) else 1
            self._cost[name] = own + sum(
                self.cost(n) for n in without_aliases(value.stmt, self.v) if n not in self.kept
            )
        return self._cost[name]

    # Nests.

    def _root_lanes(self, s: Stmt) -> tuple[str, ...]:
        v = self.v
        match s:
            case tile.Reduce(_, _, src, _):
                return v.lanes_of(v.resolve(src))
            case tile.Update(acc, _, _):
                return v.lanes_of(acc)
            case tile.Store(tensor, offset, masks, _, src):
                view = v.view(tensor, offset, masks)
                lanes = list(view.strides)
                named = [v.resolve(src)] if isinstance(src, str) else []
                for n in (*named, *(m for m in masks if not v.holds(m)), *(n for n, _ in view.places)):
                    lanes += [x for x in v.lanes_of(n) if x not in lanes]
                return tuple(lanes)
            case _:
                return v.lanes_of(defined(s) or "")

    def reads(self, name: str) -> frozenset[str]:
        """The arrays and variables that a value is computed from."""
        if name not in self.v.values:
            return frozenset()
        s = self.v.values[name].stmt
        if name in self.kept or name in self.v.accumulators or not isinstance(s, _INLINE):
            return frozenset({name})
        return self._operand_reads(s)

    def _operand_reads(self, s: Stmt) -> frozenset[str]:
        return frozenset(r for n in without_aliases(s, self.v) for r in self.reads(n))

    def _groups(self, body: Sequence[Stmt]) -> list[Group]:
        groups: list[Group] = []
        for s in body:
            root = self._root(s)
            if root is not None and root.window is not None:
                fresh = not root.window.loops or self._starts(root, groups)
                root = replace(root, into=None if fresh else root.dst)
            if root is not None:
                self._place(root, groups)
        return groups

    def _starts(self, window: Root, groups: list[Group]) -> bool:
        """Whether a window's accumulator holds nothing but the 0 that it was filled with, which is then left out."""
        touching = [(g, r) for g in groups for r in g.roots if window.dst in r.reads | r.writes]
        if len(touching) != 1 or touching[0][1].kind != "fill" or getattr(touching[0][1].stmt, "value", None) != 0.0:
            return False
        ((group, fill),) = touching
        group.roots.remove(fill)
        if not group.roots:
            groups.remove(group)
        return True

    def _root(self, s: Stmt) -> Root | None:
        v, place = self.v, self.v.places[id(s)]
        name = defined(s)
        if place in self.windows:
            w = self.windows[place]
            own = frozenset({w.acc})
            return Root("window", s, place, w.lanes, own, own if w.loops else frozenset(), window=w)
        if isinstance(s, tile.For):
            inner = self._groups(s.body)
            roots = [r for g in inner for r in g.roots]
            return Root(
                "loop",
                s,
                place,
                writes=frozenset(w for r in roots for w in r.writes),
                reads=frozenset(x for r in roots for x in r.reads),
                body=tuple(inner),
            )
        if name is not None and (name in self.gone or v.resolve(name) != name or name in self.merged):
            return None
        if isinstance(s, tile.Update) and v.resolve(s.src) in self.merged:
            origin = v.values[v.resolve(s.src)].stmt
            made = self._made(origin, place)
            return Root(
                made.kind, origin, place, made.lanes, frozenset({s.acc}), made.reads | {s.acc}, made.gone, s.acc,
                made.product,
            )  # fmt: skip
        if isinstance(s, tile.Dot | tile.Reduce):
            return self._made(s, place)
        if isinstance(s, tile.Store):
            return Root("store", s, place, self._root_lanes(s), frozenset(), self._operand_reads(s))
        if isinstance(s, tile.Update):
            return Root("update", s, place, v.lanes_of(s.acc), frozenset({s.acc}), self._operand_reads(s) | {s.acc})
        if isinstance(s, tile.Full) and s.dst in v.accumulators:
            return Root("fill", s, place, v.lanes_of(s.dst), frozenset({s.dst}))
        if name is not None and name in self.kept:
            return Root("keep", s, place, v.lanes_of(name), frozenset({name}), self._operand_reads(s))
        return None

    def _made(self, s: Stmt, place: int) -> Root:
        """A reduction or product as a root."""
        v = self.v
        product = self.product(s)
        if product is not None:
            lanes = (*v.lanes_of(product.dst), product.lane)
            reads = self.reads(product.lhs) | self.reads(product.rhs)
            reads = reads.union(*(self.reads(a) for a in product.added if isinstance(a, str)))
            if product.into:
                reads |= {product.dst}
            into = product.dst if product.into else None
            return Root("product", s, place, lanes, frozenset({product.dst}), reads, product.lane, into, product)
        assert isinstance(s, tile.Reduce)
        lanes = self._root_lanes(s)
        (gone,) = (n for n in lanes if n not in v.lanes_of(s.dst))
        return Root("reduce", s, place, lanes, frozenset({s.dst}), self._operand_reads(s), gone)

    def _place(self, root: Root, groups: list[Group]) -> None:
        """Into the last nest over the same lanes that nothing stands against, or one of its own."""
        first = 0
        for n, g in enumerate(groups):
            for r in g.roots:
                clash = (r.writes & (root.reads | root.writes)) | (r.reads & root.writes)
                if clash:
                    # Element by element: every element that both touch is one that an iteration has to itself.
                    same = not g.alone and root.kind not in ALONE and set(g.lanes) == set(root.lanes)
                    fits = same and all(set(self.v.lanes_of(x)) == set(root.lanes) for x in clash)
                    first = max(first, n if fits else n + 1)
        if root.kind not in ALONE:
            for g in reversed(groups[first:]):
                if not g.alone and set(g.lanes) == set(root.lanes):
                    g.roots.append(root)
                    return
        # What an accumulator was comes before its nests, so that they need not be cut apart for it.
        groups.insert(first if isinstance(root.stmt, tile.Copy) else len(groups), Group([root]))
