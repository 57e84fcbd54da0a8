"""Predicates on positions that hold for whole tiles, from some iteration of a loop on or up to one.

A predicate is a comparison of integers, or the bound of an axis or of a dimension, that is affine in the loop's index
and in lanes: `a*L + b + sum(c*lane) >= 0`. It holds for the whole tile where it does in the worst lane, hence from some
iteration on (a > 0) or up to one (a < 0), and so do several together. Of `where(keep, number, x)` it is the negation
that should hold. guards.py is what is made of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy

from prism.backends import tile
from prism.backends.lower_index import Names
from prism.backends.tile_rewrite import accumulators, names_beside, renamed, value_dims
from prism.ir.kit import defined, operands, statements
from prism.program.extents import Extent, is_static, normal
from prism.program.nodes import DType


@dataclass(frozen=True, slots=True)
class _Linear:
    """An integer on a tile: a number for each program and iteration, plus a multiple of the place in each lane."""

    base: sympy.Expr
    lanes: tuple[tuple[str, Extent], ...] = ()

    def __add__(self, other: _Linear) -> _Linear:
        lanes = dict(self.lanes)
        for name, c in other.lanes:
            lanes[name] = lanes.get(name, 0) + c
        return _Linear(self.base + other.base, tuple((n, c) for n, c in lanes.items() if c != 0))

    def scaled(self, factor: Extent) -> _Linear:
        return _Linear(self.base * factor, tuple((n, c * factor) for n, c in self.lanes))


@dataclass(frozen=True, slots=True)
class Predicate:
    """A value that is known to be `holds` in every lane where slope*L + rest >= 0 for all `bounds`."""

    name: str  # the value
    holds: bool  # what it is there
    bounds: tuple[tuple[int, sympy.Expr], ...]  # (slope, rest) of each
    partial: bool = False  # whether it is that a tile ends inside of its axis


@dataclass(frozen=True, slots=True)
class Folded:
    """A body in which predicates are known."""

    body: tuple[tile.Stmt, ...]  # what is left of it
    chosen: Mapping[str, str]  # the selections on tiles that went away, each with the operand that it always is
    masks: int  # how many loads and stores lost a mask


@dataclass(slots=True)
class Predicates:
    """The predicates of a program's loops."""

    program: tile.TileProgram  # the tile program
    names: Names = field(init=False)  # hands out names that the program does not have
    dims: Mapping[str, tile.Dims] = field(init=False)  # the dimensions of every value
    _changing: frozenset[str] = field(init=False)
    _linear: dict[str, _Linear] = field(default_factory=dict)
    _scalars: dict[str, sympy.Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = names_beside(self.program)
        self.dims = value_dims(self.program)
        self._changing = accumulators(self.program.body)

    def useful(self, loop: tile.For) -> list[Predicate]:
        """The predicates without which some selection would stay, and the bounds of tiles that loads ask for, too."""

        def gone(of: Sequence[Predicate]) -> tuple[int, int]:
            found = self.folded(loop.body, {p.name: p.holds for p in of})
            return len(found.chosen), found.masks

        kept = self._all(loop)
        selections, masks = gone(kept)
        for p in list(kept):
            rest = [x for x in kept if x is not p]
            fewer, others = gone(rest)
            if fewer == selections and (others == masks or not p.partial):
                kept, masks = rest, others
        return kept if selections else []

    # What integers are.

    def know(self, s: tile.Stmt) -> None:
        """Take note of a statement: statements are to be shown in order, those of a loop's body before the loop."""
        made: _Linear | None = None
        match s:
            case tile.Scalar(dst, value):
                self._scalars[dst] = self.resolved(value)
            case tile.Offsets(dst, _, _, start):
                made = _Linear(self.resolved(start), ((dst, 1),))
            case tile.IndexValue(_, index, _):
                made = self._affine(index)
            case tile.Cast(_, src, DType.INT32 | DType.INT64):
                made = self._linear.get(src)
            case tile.Pointwise(_, "add" | "mul" | "neg" as op, args, _, DType.INT32 | DType.INT64):
                made = self._arithmetic(op, args)
        name = defined(s)
        if made is not None and name is not None:
            self._linear[name] = made

    def _arithmetic(self, op: str, args: Sequence[tile.Operand]) -> _Linear | None:
        of = [self._integer(a) for a in args]
        known = [a for a in of if a is not None]
        if len(known) < len(of):
            return None
        if op == "add":
            return known[0] + known[1]
        if op == "neg":
            return known[0].scaled(-1)
        for a, b in (known, known[::-1]):
            if not b.lanes and b.base.is_Integer:
                return a.scaled(int(b.base))
        return None

    def _integer(self, a: tile.Operand) -> _Linear | None:
        if not isinstance(a, str):
            return _Linear(sympy.Integer(int(a))) if a == int(a) else None
        if a in self._linear:
            return self._linear[a]
        return None if a in self.dims else _Linear(self.resolved(tile.symbol(a)))

    def _affine(self, index: tile.Affine) -> _Linear | None:
        total = _Linear(self.resolved(index.offset))
        for name, c in index.terms:
            term = self._integer(name)
            if term is None:
                return None
            total = total + term.scaled(self.resolved(c))
        return total

    def resolved(self, e: Extent) -> sympy.Expr:
        """The expression over grid and loop indices, lengths and constants, each by one symbol."""
        e = sympy.sympify(e)
        known = {
            x: self._scalars.get(tile.identifier(x.name), tile.symbol(tile.identifier(x.name))) for x in e.free_symbols
        }
        return e.xreplace(known)

    # What predicates there are, and where they hold.

    def _all(self, loop: tile.For) -> list[Predicate]:
        found: list[Predicate] = []
        own = {n for s in statements(loop.body) if isinstance(s, tile.For) for n in (s.index,)}
        own |= {s.dst for s in statements(loop.body) if isinstance(s, tile.Scalar)}
        for s in statements(loop.body):
            wanted: list[_Linear | None] = []
            holds, partial = True, False
            match s:
                case tile.InBounds(_, index, high, low, _, size):
                    at = self._affine(index)
                    if at is None:
                        continue
                    if high is not None:
                        wanted.append(_Linear(self.resolved(high) - 1) + at.scaled(-1))
                    if low is not None:
                        wanted.append(at + _Linear(-self.resolved(low)))
                    partial = size is not None
                case tile.Pointwise(dst, "lt" | "le" as op, (a, b)):
                    one, other = self._integer(a), self._integer(b)
                    if one is None or other is None:
                        continue
                    holds = _wanted(dst, loop.body)
                    less = other + one.scaled(-1) if holds else one + other.scaled(-1)
                    strict = (op == "lt") is holds
                    wanted.append(less + _Linear(sympy.Integer(-1 if strict else 0)))
                case _:
                    continue
            bounds = [self._bound(w, loop.index, own) for w in wanted]
            if all(b is not None for b in bounds):
                name = defined(s)
                assert name is not None
                found.append(Predicate(name, holds, tuple(b for b in bounds if b is not None), partial))
        return found

    def _bound(self, at: _Linear | None, index: str, own: set[str]) -> tuple[int, sympy.Expr] | None:
        """(slope, rest) with slope*L + rest the least value over the lanes."""
        if at is None:
            return None
        total = at.base
        for lane, c in at.lanes:
            if not is_static(c):
                return None
            if int(c) < 0:
                total += c * (self._size(lane) - 1)
        total = sympy.expand(total)
        loop = tile.symbol(index)
        slope = total.coeff(loop, 1)
        rest = sympy.expand(total - slope * loop)
        if not slope.is_Integer or slope == 0 or rest.has(loop) or {x.name for x in rest.free_symbols} & own:
            return None
        return int(slope), rest

    def _size(self, lane: str) -> Extent:
        for s in statements(self.program.body):
            if isinstance(s, tile.Offsets) and s.dst == lane:
                size = self.program.dim(s.dim).sizes[s.axis]
                return tile.symbol(size) if isinstance(size, str) else size
        raise KeyError(lane)

    # Bounds of L.

    def named(self, e: Extent, name: str, made: list[tile.Stmt]) -> Extent:
        """The expression, or a scalar for it where it is long and not known when compiled."""
        constants = {c.name for c in self.program.constants}
        e = normal(e)
        if isinstance(e, int | sympy.Symbol) or {tile.identifier(str(x)) for x in e.free_symbols} <= constants:
            return e
        name = self.names.fresh(name)
        made.append(tile.Scalar(name, e))
        self.know(made[-1])
        return tile.symbol(name)

    def at_most(self, a: Extent, b: Extent) -> bool:
        """Whether a <= b: lengths and sizes are at least 1, indices at least 0."""
        sizes = {c.name for c in self.program.constants} | set(self.program.lengths)
        difference = sympy.expand(self.resolved(b - a))
        shift = {x: 1 + x for x in difference.free_symbols if x.name in sizes}
        return bool(sympy.expand(difference.xreplace(shift)).is_nonnegative)

    def first(self, predicates: Sequence[Predicate], start: Extent) -> list[sympy.Expr]:
        """What L must reach for all predicates to hold, as far as `start` does not already."""
        found = dict.fromkeys(_first(s, r) for p in predicates for s, r in p.bounds if s > 0)
        return [x for x in found if not self.at_most(x, start)]

    def ends(self, predicates: Sequence[Predicate]) -> list[sympy.Expr]:
        """What L must stay below for all predicates to hold."""
        return list(dict.fromkeys(_end(s, r) for p in predicates for s, r in p.bounds if s < 0))

    # The body where predicates are known.

    def folded(self, body: Sequence[tile.Stmt], known: Mapping[str, bool]) -> Folded:
        """The body with predicates known."""
        truth = dict(known)
        alias: dict[str, str] = {}
        chosen: dict[str, str] = {}
        masked = 0

        def same(dst: str, other: str) -> list[tile.Stmt]:
            """`dst` as another name of `other`."""
            if other in self._changing:
                return [tile.Copy(dst, other)]
            alias[dst] = other
            return []

        def one(s: tile.Stmt) -> list[tile.Stmt]:
            nonlocal masked
            if isinstance(s, tile.For):
                return [replace(s, body=tuple(x for inner in s.body for x in one(inner)))]
            old, s = s, renamed(s, alias)
            match s:
                case tile.Load(masks=masks) | tile.Store(masks=masks) if any(truth.get(m) for m in masks):
                    masked += 1
                    return [replace(s, masks=tuple(m for m in masks if not truth.get(m)))]
                case tile.Pointwise(dst, "not", (str() as a,)) if a in truth:
                    truth[dst] = not truth[a]
                case tile.Pointwise(dst, "and" | "or" as op, (a, b), dims):
                    for p, q in ((a, b), (b, a)):
                        first, second = (truth.get(x) if isinstance(x, str) else bool(x) for x in (p, q))
                        if first is (op == "or"):
                            truth[dst] = op == "or"
                        elif first is not None and second is not None:
                            truth[dst] = second
                        elif first is not None and isinstance(q, str) and self.dims.get(q) == dims:
                            return same(dst, q)
                case tile.Pointwise(dst, "where", (str() as p, then, other), dims) if p in truth:
                    taken = then if truth[p] else other
                    if isinstance(taken, str) and self.dims.get(taken, ()) == dims:
                        chosen.update({dst: _operand(old, 1 if truth[p] else 2)} if dims else {})
                        return same(dst, taken)
                case tile.Select(dst, mask, src, _) if truth.get(mask):
                    chosen.update({dst: _operand(old, 1)} if self.dims.get(src) else {})
                    return same(dst, src)
            return [s]

        return Folded(tuple(x for s in body for x in one(s)), chosen, masked)


def _operand(s: tile.Stmt, number: int) -> str:
    found = s.args[number] if isinstance(s, tile.Pointwise) else operands(s)[number]
    assert isinstance(found, str)
    return found


def _wanted(name: str, body: Sequence[tile.Stmt]) -> bool:
    """Whether most can be left out where the predicate holds, or where its negation does."""
    for s in statements(body):
        match s:
            case tile.Pointwise(_, "where", (p, then, other)) if p == name:
                return isinstance(then, str) or not isinstance(other, str)
            case tile.Pointwise(dst, "not", (p,)) if p == name:
                return not _wanted(dst, body)
            case tile.Pointwise(dst, "and" | "or", args) if name in args:
                return _wanted(dst, body)
    return True


def _first(slope: int, rest: sympy.Expr) -> sympy.Expr:
    """The least L >= 0 with slope*L + rest >= 0, for a positive slope (or what is less than 0 when all are)."""
    return -rest if slope == 1 else sympy.floor((sympy.Max(-rest, 0) + slope - 1) / slope)


def _end(slope: int, rest: sympy.Expr) -> sympy.Expr:
    """One more than the largest L with slope*L + rest >= 0, for a negative slope (at most 0 when there is none)."""
    return rest + 1 if slope == -1 else sympy.floor(sympy.Max(rest - slope, 0) / -slope)


def least(e: sympy.Expr) -> tuple[sympy.Expr, ...]:
    """The terms that an expression is the least of."""
    return tuple(e.args) if isinstance(e, sympy.Min) else (e,)


def base(loop: tile.For) -> str:
    """What the names of a loop's bounds end with."""
    return loop.index.removeprefix("start_")


def rewritten(
    body: Sequence[tile.Stmt],
    known: Predicates,
    change: Callable[[tile.For, Sequence[Predicate]], list[tile.Stmt]],
) -> tuple[tile.Stmt, ...]:
    """The statements with each innermost loop that has useful predicates changed; one around a changed loop stays.

    What is `known` of their values learns as it goes; `change` is what takes a loop's place.
    """
    made: list[tile.Stmt] = []
    for s in body:
        if not isinstance(s, tile.For):
            known.know(s)
            made.append(s)
            continue
        inner = rewritten(s.body, known, change)
        if inner != s.body:
            made.append(replace(s, body=inner))
            continue
        predicates = known.useful(s)
        made += change(s, predicates) if predicates else [s]
    return tuple(made)
