"""Sums over all places up to one's own, of products of matrices, as sums over chunks of them.

    o[i, d] = sum_j where(j <= i, sum_k q[i, k]*k[j, k], 0)*v[j, d]
    ->  state[c, k, d]   = sum_s k[C*c + s, k]*v[C*c + s, d]
        before[c, k, d]  = sum_c' where(c' <= c, state[c', k, d], 0) - state[c, k, d]
        own[c, r, d]     = sum_s where(s <= r, sum_k q[C*c + r, k]*k[C*c + s, k], 0)*v[C*c + s, d]
        o[i, d]          = own[i // C, i % C, d] + sum_k q[i, k]*before[i // C, k, d]

Whatever is in an earlier chunk is before i, so the mask is only of i's own chunk. For the rest the summand has to be a
product of factors of which none needs both i and j, but for sums over other axes (k) of such products, and exponentials
of differences `exp(a[i] - a[j])`, as gates and decays are. Those go by way of the ends of chunks, so that each of the
three parts is a decay where the whole is one:

    exp(a[i] - a[j]) = exp(a[i] - a[C*c]) * exp(a[C*c] - a[C*c' + C-1]) * exp(a[C*c' + C-1] - a[j])

The chunk is the one whose own sums and whose state take the same work, or the divisor of the length that is next to it.
Where that saves less than half of the work, the definition stays as it is, and so does one that does not give its
summand back: what the parts are made of has to be the factors of the original, neither more nor less (`_gives_back`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from prism.program.build import add, mul, neg, position
from prism.program.extents import add as add_extents
from prism.program.extents import is_static
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Definition, Expr, Map, Position, Program, Read, Reduce, ReduceKind, free_axes
from prism.program.region import reads
from prism.program.transform import rebuilt, replaced, substitute

_Signed: TypeAlias = tuple[int, Expr]
"""A summand, and 1 or -1 for its sign."""
GAIN = 2.0
"""How much less work than the whole sum has to be left."""
SHORTEST = 16
"""Places of a chunk, at least: the least side of a matrix product's tile."""


def chunked(program: Program) -> Program:
    """The same program, in which long sums under a causal mask go by chunks; itself where there are none."""
    definitions: list[Definition] = []
    for d in program.definitions:
        definitions += _chunked(program, d) or [d]
    if len(definitions) == len(program.definitions):
        return program
    # What only the whole sum read, scores of all pairs, is not needed.
    used = set(program.outputs)
    kept: list[Definition] = []
    before = {t for d in program.definitions for t in reads(d.expr)}
    for d in reversed(definitions):
        if d.name in used or (d.name in program.order and d.name not in before):
            used.update(reads(d.expr))
            kept.append(d)
    return replace(program, definitions=tuple(reversed(kept)))


@dataclass(frozen=True, slots=True)
class _Causal:
    """A sum under a causal mask, taken apart: sum_j where(j <= i, sum_bound (of_i*of_j*exp(a_i - a_j)), 0).

    Attributes:
        row: i, an axis of the definition.
        column: j, which is summed.
        body: the whole summand, written out as far as it needs both.
        bound: the axes of the sums within.
        of_row: factors without j.
        of_column: factors without i.
        growth: a, over i; None where there is none.
    """

    row: Axis
    column: Axis
    body: Expr
    bound: tuple[Axis, ...]
    of_row: tuple[Expr, ...]
    of_column: tuple[Expr, ...]
    growth: Expr | None


class _OtherwiseError(Exception):
    """The sum is not of this form."""


def _chunked(program: Program, d: Definition) -> list[Definition] | None:
    sums: list[Axis] = []
    body = d.expr
    while isinstance(body, Reduce) and body.kind is ReduceKind.SUM:
        sums.append(body.axis)
        body = body.body
    for row, column in itertools.product(d.axes, sums):
        if row.extent != column.extent or not is_static(row.extent) or not {row, column} <= free_axes(body):
            continue
        inner = body
        for axis in reversed(sums):
            inner = inner if axis == column else Reduce(ReduceKind.SUM, axis, inner)
        try:
            found = _Apart(program, row, column, {*d.axes, column}).whole(inner)
        except _OtherwiseError:
            continue
        length = _length(d, found)
        if length is not None:
            return _parts(program, d, found, length)
    return None


def _length(d: Definition, c: _Causal) -> int | None:
    """Places of a chunk; None where chunks do not pay."""
    within = {a for e in c.of_row for a in free_axes(e)} & set(c.bound)
    beside = {a for e in c.of_column for a in free_axes(e)} & (set(d.axes) - {c.row})
    # Axes of rows and columns alike are a batch: each takes the same work.
    beside -= {a for e in (*c.of_row, *([c.growth] * (c.growth is not None))) for a in free_axes(e)}
    inner, outer = _points(within), _points(beside)
    n = int(c.row.extent)
    if min(inner, outer) < 2:
        return None
    ideal = 2 * inner * outer / (inner + outer)
    fitting = [m for m in range(SHORTEST, n // 2 + 1) if n % m == 0]
    if not fitting:
        return None
    chunk = min(fitting, key=lambda m: abs(math.log(m / ideal)))
    whole = n / 2 * (inner + outer)
    left = chunk / 2 * (inner + outer) + 2 * inner * outer + n / chunk**2 / 2 * inner * outer * (c.growth is not None)
    return chunk if whole >= GAIN * left else None


def _points(axes: Iterable[Axis]) -> int:
    return math.prod(int(a.extent) if is_static(a.extent) else 1 for a in axes)


@dataclass(slots=True)
class _Apart:
    """Takes a summand apart into what is of the row and what is of the column."""

    program: Program
    row: Axis
    column: Axis
    taken: set[Axis]
    masked: bool = False

    def whole(self, body: Expr) -> _Causal:
        """The sum.

        Raises:
            _OtherwiseError: it is none of its form.
        """
        written = self._written(body)
        bound: list[Axis] = []
        factors: list[Expr] = []
        self._factors(written, bound, factors)
        if not self.masked:
            raise _OtherwiseError
        of_row: list[Expr] = []
        of_column: list[Expr] = []
        exponents: list[_Signed] = []
        for f in factors:
            if isinstance(f, Map) and f.op == "exp" and self._mixed(f):
                exponents += _summands(f.args[0])
            elif self.column not in free_axes(f):
                of_row += [f] * (f != Const(1.0))
            elif self.row not in free_axes(f):
                of_column.append(f)
            else:
                raise _OtherwiseError
        growth = self._growth(exponents) if exponents else None
        return _Causal(self.row, self.column, written, tuple(bound), tuple(of_row), tuple(of_column), growth)

    def _mixed(self, e: Expr) -> bool:
        return {self.row, self.column} <= free_axes(e)

    def _written(self, e: Expr) -> Expr:
        """The expression with views, and the definitions that it reads at both axes, written out."""
        mixed = self._mixed(e)
        match e:
            case Read(tensor, index):
                d = self.program.definition(tensor) if tensor in self.program.order else None
                if d is not None and (mixed or d.view):
                    return self._written(substitute(d.expr, dict(zip(d.axes, index, strict=True))))
            case _ if not mixed:
                return replaced([e], self._view)[0]
            case Map("mul" | "add" | "neg" | "where" | "exp" as name, args):
                return op(name, *[self._written(a) for a in args])
            case Map("le" | "lt"):
                return e
            case Reduce(ReduceKind.SUM, axis, body):
                return Reduce(ReduceKind.SUM, axis, self._written(body))
        if mixed:
            raise _OtherwiseError
        return e

    def _view(self, e: Expr) -> Expr:
        return self._written(e) if isinstance(e, Read) and not self._mixed(e) else e

    def _factors(self, e: Expr, bound: list[Axis], factors: list[Expr]) -> None:
        if not self._mixed(e):
            factors.append(e)
            return
        match e:
            case Map("mul", args):
                for a in args:
                    self._factors(a, bound, factors)
            case Map("neg", (a,)):
                factors.append(Const(-1.0))
                self._factors(a, bound, factors)
            case Map("where", (mask, a, Const(0.0))) if self._causal(mask):
                self._factors(a, bound, factors)
            case Map("where", (mask, Const(0.0), a)) if self._causal(op("not", mask)):
                self._factors(a, bound, factors)
            case Map("exp", (Map("where", (mask, a, Const(value))),)) if value == -math.inf and self._causal(mask):
                factors.append(op("exp", a))
            case Map("exp", (Map("where", (mask, Const(value), a)),)) if value == -math.inf and self._causal(
                op("not", mask)
            ):
                factors.append(op("exp", a))
            case Map("exp"):
                factors.append(e)
            case Reduce(ReduceKind.SUM, axis, body) if axis not in bound and axis not in self.taken:
                bound.append(axis)
                self._factors(body, bound, factors)
            case _:
                raise _OtherwiseError

    def _causal(self, mask: Expr) -> bool:
        """Whether the mask is true for all columns before the row, and for none after it."""
        match mask:
            case Map("where", (m, Const(1.0), Const(0.0))):
                return self._causal(m)
            case Map("not", (Map("where", (m, Const(1.0), Const(0.0))),)):
                return self._causal(op("not", m))
            case Map("le" | "lt" as name, (Position(j), Position(i))):
                ahead = i + j.scaled(-1)
                own = add_extents(ahead.offset, -1 if name == "lt" else 0) in (0, -1)
                self.masked = own and ahead.terms == (Index.axis(self.row) + Index.axis(self.column).scaled(-1)).terms
                return self.masked
        return False

    def _growth(self, exponents: Sequence[_Signed]) -> Expr:
        """a, where the exponents' sum is a[i] - a[j]."""
        ups = [e for e in exponents if self.column not in free_axes(e[1])]
        downs = [e for e in exponents if self.column in free_axes(e[1])]
        if any(self.row in free_axes(e) for _, e in downs):
            raise _OtherwiseError
        at_row = {self.column: Index.axis(self.row)}
        if Counter(ups) != Counter((-sign, substitute(e, at_row)) for sign, e in downs):
            raise _OtherwiseError
        return add(*[e if sign > 0 else neg(e) for sign, e in ups])


def _summands(e: Expr, sign: int = 1) -> list[_Signed]:
    match e:
        case Map("add", args):
            return [s for a in args for s in _summands(a, sign)]
        case Map("neg", (a,)):
            return _summands(a, -sign)
    return [(sign, e)]


def _parts(program: Program, d: Definition, c: _Causal, length: int) -> list[Definition] | None:
    """The definitions of a causal sum by chunks of a length; None where they do not give the sum back."""
    count = int(c.row.extent) // length
    taken = {*program.order, *program.input_order}
    chunk, earlier = Axis(f"{d.name}.chunk", count), Axis(f"{d.name}.earlier", count)
    place, other = Axis(f"{d.name}.row", length), Axis(f"{d.name}.column", length)

    def at(which: Axis, within: Index) -> Index:
        return Index.axis(which).scaled(length) + within

    def growth(index: Index) -> Expr:
        assert c.growth is not None
        return substitute(c.growth, {c.row: index})

    of_column = [substitute(e, {c.column: at(chunk, Index.axis(other))}) for e in c.of_column]
    of_row = [substitute(e, {c.row: at(chunk, Index.axis(place))}) for e in c.of_row]
    carried: list[Expr] = []
    if c.growth is not None:
        own_end = growth(at(chunk, Index.const(length - 1)))
        of_column.append(op("exp", add(own_end, neg(growth(at(chunk, Index.axis(other)))))))
        of_row.append(op("exp", add(growth(at(chunk, Index.axis(place))), neg(growth(at(chunk, Index.const(0)))))))
        end = growth(at(earlier, Index.const(length - 1)))
        carried.append(op("exp", add(growth(at(chunk, Index.const(0))), neg(end))))

    def named(name: str, axes: Sequence[Axis], expr: Expr) -> Definition:
        full = f"{d.name}_{name}"
        while full in taken:
            full += "_"
        taken.add(full)
        return Definition(full, tuple(axes), expr, d.dtype, d.origin)

    def over(axes: Iterable[Axis]) -> list[Axis]:
        wanted = set(axes)
        return [a for a in (*d.axes, *c.bound) if a in wanted and a != c.row]

    state_axes = over(a for e in of_column for a in free_axes(e))
    if any(a in c.bound and not any(a in free_axes(e) for e in of_row) for a in state_axes):
        return None  # a sum of the columns' alone would be part of the state
    state = named("state", (chunk, *state_axes), Reduce(ReduceKind.SUM, other, mul(*of_column)))
    held = Read(state.name, (Index.axis(earlier), *map(Index.axis, state_axes)))
    term = mul(*carried, held)
    before_axes = [a for a in over(a for e in (*carried, *of_column) for a in free_axes(e))]
    before = named("before", (chunk, *before_axes), _before(chunk, earlier, term, prefix=c.growth is None))
    past: Expr = mul(*of_row, Read(before.name, (Index.axis(chunk), *map(Index.axis, before_axes))))
    for axis in reversed(c.bound):
        past = Reduce(ReduceKind.SUM, axis, past)
    own_body = substitute(c.body, {c.row: at(chunk, Index.axis(place)), c.column: at(chunk, Index.axis(other))})
    # Comparisons within a chunk do not mention it any more.
    (own_body,) = rebuilt([own_body], lambda e: op(e.op, *e.args) if isinstance(e, Map) and e.op in ("le", "lt") else e)
    axes = [b for a in d.axes for b in ((chunk, place) if a == c.row else (a,))]
    own = named("own", axes, Reduce(ReduceKind.SUM, other, own_body))
    read = tuple(map(Index.axis, d.axes))
    both = named("chunks", axes, add(Read(own.name, tuple(map(Index.axis, axes))), past))
    places = [(i.floordiv(length), i.mod(length)) if a == c.row else (i,) for a, i in zip(d.axes, read, strict=True)]
    whole = replace(d, expr=Read(both.name, tuple(i for at_axis in places for i in at_axis)), view=True)
    across = substitute(c.body, {c.row: at(chunk, Index.axis(place)), c.column: at(earlier, Index.axis(other))})
    if not _gives_back(across, past, before, state, frozenset((chunk, place, earlier, other))):
        return None
    return [state, before, own, both, whole]


def _before(chunk: Axis, earlier: Axis, term: Expr, *, prefix: bool) -> Expr:
    """The sum of a term over all earlier chunks.

    As a prefix sum less its last term, which one loop over the chunks computes, where the term is of its chunk alone.
    """

    def upto(compare: str) -> Expr:
        inside = op(compare, position(earlier), position(chunk))
        return Reduce(ReduceKind.SUM, earlier, op("where", inside, term, Const(0.0)))

    return add(upto("le"), neg(substitute(term, {earlier: Index.axis(chunk)}))) if prefix else upto("lt")


def _gives_back(summand: Expr, past: Expr, before: Definition, state: Definition, pair: frozenset[Axis]) -> bool:
    """Whether what the parts carry from a column of an earlier chunk is the summand there.

    The parts are read as they were written, each in place of its name: factors, sums and exponents have to be the same.
    """
    match before.expr, state.expr:
        case (
            (Map("add", (Reduce(_, _, Map("where", (_, carried, _))), _)) | Reduce(_, _, Map("where", (_, carried, _)))),
            Reduce(_, _, added),
        ):
            instead = {before.name: (before.axes, carried), state.name: (state.axes, added)}
        case _:
            return False

    def written(e: Expr) -> Expr:
        match e:
            case Read(name, index) if name in instead:
                axes, body = instead[name]
                return substitute(body, dict(zip(axes, index, strict=True)))
        return e

    # What was carried reads the states, so it is looked at twice.
    (once,) = replaced([past], written)
    (twice,) = replaced([once], written)
    return _product(twice, pair) == _product(summand, pair)


def _product(e: Expr, pair: frozenset[Axis]) -> tuple[Counter[Expr], Counter[Axis], dict[Expr, int]]:
    """Factors, axes of sums, and what is in exponents, how often; masks of the pair's places are true here."""
    factors: Counter[Expr] = Counter()
    sums: Counter[Axis] = Counter()
    exponents: Counter[Expr] = Counter()
    stack = [e]
    while stack:
        match stack.pop():
            case Map("mul", args):
                stack += args
            case Map("neg", (a,)):
                stack += [Const(-1.0), a]
            case Map("where", (mask, a, b)) if pair <= free_axes(mask):
                stack.append(a if b == Const(0.0) else b)
            case Reduce(ReduceKind.SUM, axis, body):
                sums[axis] += 1
                stack.append(body)
            case Map("exp", (Map("where", (mask, a, b)),)) if pair <= free_axes(mask):
                stack.append(op("exp", b if isinstance(a, Const) else a))
            case Map("exp", (a,)):
                for sign, part in _summands(a):
                    exponents[part] += sign
            case other:
                factors[other] += other != Const(1.0)
    return factors, sums, {part: n for part, n in exponents.items() if n}
