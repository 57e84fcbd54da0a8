"""Sums over all places up to one's own, of products of matrices, as sums over chunks of them.

    o[i, d] = sum_j where(j <= i, sum_k q[i, k]*k[j, k], 0)*v[j, d]
    ->  state[c, k, d]   = sum_s k[C*c + s, k]*v[C*c + s, d]
        before[c, k, d]  = sum_c' where(c' < c, state[c', k, d], 0)
        own[c, r, d]     = sum_s where(s <= r, sum_k q[C*c + r, k]*k[C*c + s, k], 0)*v[C*c + s, d]
        o[i, d]          = own[i // C, i % C, d] + sum_k q[i, k]*before[i // C, k, d]

Whatever is in an earlier chunk is before i, so the mask is only of i's own chunk. For the rest the summand has to be a
product of factors of which none needs both i and j, but for sums over other axes (k) of such products, and exponentials
of differences `exp(a[i] - a[j])`, as gates and decays are. Those go by way of the ends of chunks, so that each of the
three parts is a decay where the whole is one:

    exp(a[i] - a[j]) = exp(a[i] - a[C*c]) * exp(a[C*c] - a[C*c' + C-1]) * exp(a[C*c' + C-1] - a[j])

Where a is a prefix sum itself, or so many times one, that is summed within chunks and over their ends, and a[C*c - 1]
stands for a[C*c]. A power of the distance is a decay, too: g**(i - j) goes as exp(i*log(g) - j*log(g)), and is written
as powers again where g may be no positive number, whose logarithm is none. None of these has an exponent below 0.

The chunk is the one whose own sums and whose state take the same work, longer where decays of many chunks would take
more than that; or the next longer divisor of the length, as fewer states are stored then.
A sum over the places from one's own on is the same with all places from the other end.
Where that saves less than half of the work, the definition stays as it is, and so does one that does not give its
summand back: what the parts are made of has to be the factors of the original, neither more nor less (`_gives_back`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from prism.program.build import add, mul, neg, position
from prism.program.extents import add as add_extents
from prism.program.extents import at_most, is_static
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.nodes import (
    Const,
    Definition,
    DType,
    Expr,
    Map,
    Position,
    Program,
    Read,
    Reduce,
    ReduceKind,
    free_axes,
    walk,
)
from prism.program.prefix import stepwise
from prism.program.rolled import live_definitions
from prism.program.sign_analysis import Facts
from prism.program.transform import canonical, element_at, nested, rebuilt, replaced, substitute, with_tensors

_Signed: TypeAlias = tuple[int, Expr]
"""A summand, and 1 or -1 for its sign."""
GAIN = 2.0
"""How much less work than the whole sum has to be left."""
SHORTEST = 16
"""Places of a chunk, at least: the least side of a matrix product's tile."""


def chunked(program: Program) -> Program:
    """The same program, in which long sums under a causal mask go by chunks; itself where there are none."""
    definitions: list[Definition] = []
    numbering = _ValueNumbering(program)
    for d in program.definitions:
        definitions += _chunked(program, d, numbering) or [d]
    if len(definitions) == len(program.definitions):
        return program
    # What only the whole sum read, scores of all pairs, is not needed.
    return replace(program, definitions=live_definitions(definitions, program))


@dataclass(frozen=True, slots=True)
class _Causal:
    """A sum under a causal mask, taken apart: sum_j where(j <= i, sum_bound (of_i*of_j*exp(a_i - a_j)), 0)."""

    row: Axis  # i, an axis of the definition
    column: Axis  # j, which is summed
    body: Expr  # the whole summand, written out as far as it needs both
    bound: tuple[Axis, ...]  # the axes of the sums within
    of_row: tuple[Expr, ...]  # factors without j
    of_column: tuple[Expr, ...]  # factors without i
    growth: Expr | None  # a, over i; None where there is none
    bases: frozenset[Expr]  # whose powers exponentials of their logarithms stand for


class _OtherwiseError(Exception):
    """The sum is not of this form."""


@dataclass(slots=True)
class _ValueNumbering:
    """Global value numbering: which definitions are one and the same, as of what source computes twice."""

    program: Program  # whose definitions they are
    _first: dict[str, str] | None = None

    def first(self, name: str) -> str:
        """The first of the definitions that compute what this one does."""
        if self._first is None:
            self._first = {}
            known: dict[object, str] = {}
            for d in self.program.definitions:
                names = {a: Index.axis(Axis(f"${n}", a.extent)) for n, a in enumerate(d.axes)}
                (expr,) = with_tensors([d.expr], self._earlier)
                key = canonical(substitute(expr, names)), d.dtype, tuple(a.extent for a in d.axes)
                self._first[d.name] = known.setdefault(key, d.name)
        return self._earlier(name)

    def _earlier(self, name: str) -> str:
        return name if self._first is None else self._first.get(name, name)


def _chunked(program: Program, d: Definition, numbering: _ValueNumbering) -> list[Definition] | None:
    if not isinstance(d.expr, Reduce) or d.expr.kind is not ReduceKind.SUM:
        return None
    reductions = nested(d.expr)
    sums, body = [r.axis for r in reductions], reductions[-1].body
    for mirrored, row, column in itertools.product((False, True), d.axes, sums):
        if row.extent != column.extent or not is_static(row.extent) or not {row, column} <= free_axes(body):
            continue
        inner = body
        for axis in reversed(sums):
            inner = inner if axis == column else Reduce(ReduceKind.SUM, axis, inner)
        if mirrored:
            inner = substitute(inner, _mirror((row, column)))
        for exposed in (True, False):
            try:
                found = _Apart(program, row, column, {*d.axes, column}, numbering, exposed).whole(inner)
            except _OtherwiseError:
                continue
            length = _length(d, found)
            parts = None if length is None else _parts(program, d, found, length, mirrored)
            if parts is not None:
                return parts
    return None


def _length(d: Definition, c: _Causal) -> int | None:
    """Places of a chunk; None where chunks do not pay."""
    within = {a for e in c.of_row for a in free_axes(e)} & set(c.bound)
    beside = {a for e in c.of_column for a in free_axes(e)} & (set(d.axes) - {c.row})
    # Axes of rows and columns alike are a batch: each takes the same work.
    beside -= {a for e in (*c.of_row, c.growth or Const(0.0)) for a in free_axes(e)}
    inner, outer = _points(within), _points(beside)
    n = int(c.row.extent)
    if min(inner, outer) < 2:
        return None
    ideal = 2 * inner * outer / (inner + outer)
    if c.growth is not None:  # chunks that decay from one to the next are summed in pairs
        ideal = max(ideal, (n * ideal / 2) ** (1 / 3))
    fitting = [m for m in range(SHORTEST, n // 2 + 1) if n % m == 0]
    if not fitting:
        return None
    chunk = next((m for m in fitting if m >= ideal), fitting[-1])
    whole = n / 2 * (inner + outer)
    pairs = n / chunk**2 / 2 if c.growth is not None else 0
    left = chunk / 2 * (inner + outer) + (2 + pairs) * inner * outer
    return chunk if whole >= GAIN * left else None


def _points(axes: Iterable[Axis]) -> int:
    return math.prod(int(a.extent) if is_static(a.extent) else 1 for a in axes)


@dataclass(slots=True)
class _Apart:
    """Takes a summand apart into what is of the row and what is of the column."""

    program: Program  # whose definitions are written out where they need both
    row: Axis  # i
    column: Axis  # j
    taken: set[Axis]  # axes that sums within may not be over
    numbering: _ValueNumbering  # of the program
    # Whether exponentials that are factors of what is of the row or of the column alone are looked for, too.
    exposed: bool = False
    masked: bool = False  # whether a mask was found
    bases: set[Expr] = field(default_factory=set)  # of powers, of which any may be no positive number

    def whole(self, body: Expr) -> _Causal:
        """The sum. Raises _OtherwiseError: it is none of its form."""
        written = self._written(body)
        bound: list[Axis] = []
        factors: list[Expr] = []
        self._factors(written, bound, factors)
        if not self.masked:
            raise _OtherwiseError
        of_row: list[Expr] = []
        of_column: list[Expr] = []
        exponents: list[_Signed] = []
        if self.exposed:
            factors, exponents = self._grown_apart([f for e in factors for f in _multiplied(e)])
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
        return _Causal(
            self.row,
            self.column,
            written,
            tuple(bound),
            tuple(of_row),
            tuple(of_column),
            growth,
            frozenset(self.bases),
        )

    def _grown_apart(self, factors: Sequence[Expr]) -> tuple[list[Expr], list[_Signed]]:
        """The factors without what is the exponential of a in one of the row and of -a in one of the column; and those.

        exp(a[i]) * exp(-a[j]), of which one factor shrinks where the other grows, is exp(a[i] - a[j]).

        Raises:
            _OtherwiseError: there is no such pair.
        """
        kept: list[Expr] = []
        rows: Counter[_Signed] = Counter()
        columns: list[_Signed] = []
        for f in factors:
            free = free_axes(f) & {self.row, self.column}
            if not (isinstance(f, Map) and f.op == "exp" and len(free) == 1):
                kept.append(f)
                continue
            for sign, e in _summands(f.args[0]):
                if self.column in free_axes(e):
                    columns.append((sign, e))
                elif self.row in free_axes(e):
                    rows[sign, e] += 1
                else:
                    kept.append(Map("exp", (_signed(sign, e),)))  # a number is a summand as well
        found: list[_Signed] = []
        for sign, e in columns:
            mate = -sign, substitute(e, {self.column: Index.axis(self.row)})
            if rows[mate]:
                rows[mate] -= 1
                found += [mate, (sign, e)]
            else:
                kept.append(op("exp", _signed(sign, e)))
        if not found:
            raise _OtherwiseError
        return [*kept, *(op("exp", _signed(sign, e)) for sign, e in rows.elements())], found

    def _mixed(self, e: Expr) -> bool:
        return {self.row, self.column} <= free_axes(e)

    def _exposed(self, e: Expr) -> Expr:
        """The expression with its definitions written out as far as exponentials of an axis are factors in them."""
        match e:
            case Read(tensor, index) if tensor in self.program.order and free_axes(e) & {self.row, self.column}:
                d = self.program.definition(tensor)
                inner = self._exposed(element_at(d, index))
                return inner if d.view or any(map(self._grows, _multiplied(inner))) else e
            case Map("mul", args):
                return op("mul", *map(self._exposed, args))
            case Map("neg", (a,)):
                return op("mul", Const(-1.0), self._exposed(a))
            case Map("recip", (a,)):
                factors = _multiplied(self._exposed(a))
                if any(map(self._grows, factors)):
                    return mul(*map(_inverse, factors))
            case Map("exp", (a,)):
                return op("exp", self._terms(a))
        return replaced([e], self._view)[0]

    def _grows(self, e: Expr) -> bool:
        return isinstance(e, Map) and e.op == "exp" and bool(free_axes(e) & {self.row, self.column})

    def _terms(self, e: Expr) -> Expr:
        """The expression with its definitions written out as far as they are sums."""
        match e:
            case Read(tensor, index) if tensor in self.program.order:
                d = self.program.definition(tensor)
                if d.view or (isinstance(d.expr, Map) and (d.expr.op in ("add", "neg") or _scales(d.expr))):
                    return self._terms(element_at(d, index))
                return Read(self.numbering.first(tensor), index)
            case Map("add" | "neg" as name, args):
                return op(name, *map(self._terms, args))
            case Map("mul", args) if _scales(e):
                return op("mul", *map(self._terms, args))
        return e

    def _written(self, e: Expr) -> Expr:
        """The expression with views, and the definitions that it reads at both axes, written out."""
        mixed = self._mixed(e)
        if self.exposed and not mixed:
            return self._exposed(e)
        match e:
            case Read(tensor, index):
                d = self.program.definition(tensor) if tensor in self.program.order else None
                if d is not None and (mixed or d.view):
                    return self._written(element_at(d, index))
            case _ if not mixed:
                return replaced([e], self._view)[0]
            case Map("where", (mask, a, Const(outside))) if outside in (0.0, -math.inf):
                mask, a = self._written(mask), self._written(a)
                return op("where", mask, self._shown(a, mask) if self._is_causal(mask) else a, Const(outside))
            case Map("maximum", (Position(), Const(0.0)) | (Const(0.0), Position())) | Map("abs", (Position(),)):
                return e
            case Map("pow", (base, steps)) if not free_axes(base) & {self.row, self.column}:
                base, steps = self._written(base), self._written(steps)
                if not Facts().positive(base):
                    if not self._is_distance(steps):
                        raise _OtherwiseError
                    self.bases.add(base)
                return op("exp", op("mul", steps, op("log", base)))
            case Map("exp", (a,)):
                return op("exp", replaced([self._written(a)], self._multiple)[0])
            case Map("mul" | "add" | "neg" | "where" as name, args):
                return op(name, *[self._written(a) for a in args])
            case Map("le" | "lt") | Position():
                return e
            case Reduce(ReduceKind.SUM, axis, body):
                return Reduce(ReduceKind.SUM, axis, self._written(body))
        if mixed:
            raise _OtherwiseError
        return e

    def _multiple(self, e: Expr) -> Expr:
        """What is so many times another definition, written as that; views and what computes the same by one name."""
        if not (isinstance(e, Read) and e.tensor in self.program.order):
            return e
        d = self.program.definition(e.tensor)
        if not (d.view or _scales(d.expr) or (isinstance(d.expr, Map) and d.expr.op == "neg")):
            return Read(self.numbering.first(e.tensor), e.index)
        return replaced([element_at(d, e.index)], self._multiple)[0]

    def _is_distance(self, e: Expr) -> bool:
        """Whether a number is how many places the column is before the row, so many times, wherever it is."""
        match e:
            case (
                Map("maximum", (Position(index), Const(0.0)) | (Const(0.0), Position(index)))
                | Map("abs", (Position(index),))
                | Position(index)
            ):
                steps = dict(index.terms).get(self.row, 0)
                between = Index.axis(self.row) + Index.axis(self.column).scaled(-1)
                return is_static(steps) and int(steps) > 0 and index == between.scaled(steps)
        return False

    def _shown(self, e: Expr, mask: Expr) -> Expr:
        """What is chosen under the mask, where the column is not behind the row.

        How far it is from there is no negative number, and nothing within is masked by the same again.
        """

        def shown(e: Expr) -> Expr:
            match e:
                case Map(
                    "maximum", (Position(index) as ahead, Const(0.0)) | (Const(0.0), Position(index) as ahead)
                ) | Map("abs", (Position(index) as ahead,)) if index == Index.axis(self.row) + Index.axis(
                    self.column
                ).scaled(-1):
                    return ahead
                case Map("where", (again, inside, _)) if again == mask:
                    return inside
            return e

        return rebuilt([e], shown)[0]

    def _is_causal(self, mask: Expr) -> bool:
        known = self.masked
        found = self._causal(mask)
        self.masked = known
        return found

    def _view(self, e: Expr) -> Expr:
        match e:
            case Read(tensor, index) if tensor in self.program.order and not self._mixed(e):
                d = self.program.definition(tensor)
                if d.view:
                    return replaced([element_at(d, index)], self._view)[0]
        return e

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
            case Map("le" | "lt" | "where" | "not") if self._causal(e):
                pass  # a mask that multiplies
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
        return add(*[_signed(sign, e) for sign, e in ups])


def _scales(e: Expr) -> bool:
    """Whether a value is so many times another."""
    match e:
        case Map("mul", (Read(), Const()) | (Const(), Read())):
            return True
    return False


def _signed(sign: int, e: Expr) -> Expr:
    return e if sign > 0 else neg(e)


def _multiplied(e: Expr) -> list[Expr]:
    """What the expression is a product of."""
    if isinstance(e, Map) and e.op == "mul":
        return [f for a in e.args for f in _multiplied(a)]
    return [e]


def _inverse(e: Expr) -> Expr:
    return op("exp", neg(e.args[0])) if isinstance(e, Map) and e.op == "exp" else op("recip", e)


def _summands(e: Expr, sign: int = 1) -> list[_Signed]:
    """The terms of a sum; a position, and what is so much a place, is one for each axis."""
    match e:
        case Map("add", args):
            return [s for a in args for s in _summands(a, sign)]
        case Map("neg", (a,)):
            return _summands(a, -sign)
        case Position(index) if len(index.terms) + (index.offset != 0) > 1:
            each = [Index((term,)) for term in index.terms] + [Index.const(index.offset)] * (index.offset != 0)
            if all(is_static(c) for i in each for c in (i.offset, *(c for _, c in i.terms))):
                down = [any(int(c) < 0 for c in (i.offset, *(c for _, c in i.terms))) for i in each]
                return [
                    (-sign, position(i.scaled(-1))) if less else (sign, position(i))
                    for i, less in zip(each, down, strict=True)
                ]
        case Map("mul"):
            factors = _multiplied(e)
            for n, a in enumerate(factors):
                if isinstance(a, Position) or (isinstance(a, Map) and a.op in ("add", "neg")):
                    # Whichever factor it is, it is the first of what is found.
                    return [(own, mul(part, *factors[:n], *factors[n + 1 :])) for own, part in _summands(a, sign)]
    return [(sign, e)]


def _parts(program: Program, d: Definition, c: _Causal, length: int, mirrored: bool) -> list[Definition] | None:
    """The definitions of a causal sum by chunks of a length; None where they do not give the sum back.

    Where it is mirrored, the sum's own row and column are n-1 less what they are in the definition: so are the parts'.
    """
    count = int(c.row.extent) // length
    taken = {*program.order, *program.input_order}
    chunk, earlier = Axis(f"{d.name}.chunk", count), Axis(f"{d.name}.earlier", count)
    place, other = Axis(f"{d.name}.row", length), Axis(f"{d.name}.column", length)

    def named(name: str, axes: Sequence[Axis], expr: Expr, dtype: DType = d.dtype) -> Definition:
        full = f"{d.name}_{name}"
        while full in taken:
            full += "_"
        taken.add(full)
        return Definition(full, tuple(axes), expr, dtype, d.origin)

    def over(axes: Iterable[Axis]) -> list[Axis]:
        wanted = set(axes)
        return [a for a in (*d.axes, *c.bound) if a in wanted and a != c.row]

    def at(which: Axis, within: Axis | int) -> Index:
        return Index.axis(which).scaled(length) + (within if isinstance(within, int) else Index.axis(within))

    of_column = [substitute(e, {c.column: at(chunk, other)}) for e in c.of_column]
    of_row = [substitute(e, {c.row: at(chunk, place)}) for e in c.of_row]
    across = substitute(c.body, {c.row: at(chunk, place), c.column: at(earlier, other)})
    body = substitute(c.body, {c.row: at(chunk, place), c.column: at(chunk, other)})
    carried: list[Expr] = []
    grown: _Grown | None = None
    if c.growth is not None:
        grown = _grown(program, c, length, (chunk, place, other, earlier), over, named)
        here, there = Index.axis(chunk), Index.axis(earlier)
        before_own, end = grown.before(here), grown.at(here, Index.const(length - 1))
        of_row.append(_exp(grown.at(here, Index.axis(place)), before_own))
        of_column.append(_exp(end, grown.at(here, Index.axis(other))))
        carried.append(_exp(before_own, grown.at(there, Index.const(length - 1))))
        body = grown.within(body, c, chunk, place, other)
    state_axes = over(a for e in of_column for a in free_axes(e))
    if any(a in c.bound and not any(a in free_axes(e) for e in of_row) for a in state_axes):
        return None  # a sum of the columns' alone would be part of the state
    state = named("state", (chunk, *state_axes), Reduce(ReduceKind.SUM, other, mul(*of_column)))
    held = Read(state.name, (Index.axis(earlier), *map(Index.axis, state_axes)))
    before_axes = over(a for e in (*carried, *of_column) for a in free_axes(e))
    before = named("before", (chunk, *before_axes), _before(chunk, earlier, carried, held))
    past: Expr = mul(*of_row, Read(before.name, (Index.axis(chunk), *map(Index.axis, before_axes))))
    for axis in reversed(c.bound):
        past = Reduce(ReduceKind.SUM, axis, past)
    # Comparisons within a chunk do not mention it any more.
    (body,) = rebuilt([body], lambda e: op(e.op, *e.args) if isinstance(e, Map) and e.op in ("le", "lt") else e)
    axes = [b for a in d.axes for b in ((chunk, place) if a == c.row else (a,))]
    own = named("own", axes, Reduce(ReduceKind.SUM, other, body))
    read = tuple(map(Index.axis, d.axes))
    both = named("chunks", axes, add(Read(own.name, tuple(map(Index.axis, axes))), past))
    places = [(i.floordiv(length), i.mod(length)) if a == c.row else (i,) for a, i in zip(d.axes, read, strict=True)]
    whole = replace(d, expr=Read(both.name, tuple(i for at_axis in places for i in at_axis)), view=True)
    meant = {} if grown is None else grown.meant
    if not _gives_back(across, past, before, state, meant, frozenset((chunk, place, earlier, other))):
        return None
    made = [*(() if grown is None else grown.made), state, before, own, both]
    if c.bases:
        made = [replace(d, expr=rebuilt([d.expr], lambda e: _powers(e, c.bases))[0]) for d in made]
    made = _turned(made, (chunk, place, other, earlier)) if mirrored else made
    return [*_factors_as_stored(program, d, made, named), whole]


def _factors_as_stored(
    program: Program,
    d: Definition,
    made: Sequence[Definition],
    named: Callable[[str, Sequence[Axis], Expr, DType], Definition],
) -> Iterator[Definition]:
    """The parts, with what is computed from wider types as definitions in the type of the sum's operands.

    In the sum these were rounded to that type when they were multiplied: a decay, say, of gates in full precision.
    """
    types = {t.name: t.dtype for t in (*program.inputs, *(x.tensor for x in (*program.definitions, *made)))}

    def of(e: Expr) -> set[DType]:
        return {t for r in walk(e) if isinstance(r, Read) and (t := types[r.tensor]).is_float}

    (stored,) = found if len(found := of(d.expr)) == 1 else (None,)
    if stored is None or not stored.is_half:
        yield from made
        return
    factors: list[Definition] = []

    def rounded(e: Expr) -> Expr:
        wider = of(e)
        if wider <= {stored}:
            return e
        if isinstance(e, Map) and stored not in wider and not any(isinstance(x, Reduce) for x in walk(e)):
            axes = sorted(free_axes(e), key=lambda a: a.name)
            factors.append(named("factor", axes, e, stored))
            return Read(factors[-1].name, tuple(map(Index.axis, axes)))
        return replace(e, args=tuple(map(rounded, e.args))) if isinstance(e, Map) else summed(e)

    def summed(e: Expr) -> Expr:
        match e:
            case Reduce(body=body):
                return replace(e, body=rounded(body))
            case Map(args=args):
                return replace(e, args=tuple(map(summed, args)))
        return e

    for m in made:
        # What is carried from chunk to chunk is a scan, whose steps are not rounded.
        expr = m.expr if stepwise(m.expr) != m.expr else summed(m.expr)
        yield from factors
        factors.clear()
        yield replace(m, expr=expr)


def _mirror(axes: Iterable[Axis]) -> dict[Axis, Index]:
    """Each from its other end."""
    return {a: Index.axis(a).scaled(-1) + (int(a.extent) - 1) for a in axes}


def _turned(made: Sequence[Definition], axes: tuple[Axis, ...]) -> list[Definition]:
    """The definitions with all of these axes from their other ends."""
    ends = _mirror(axes)
    own = {d.name: [a if a in ends else None for a in d.axes] for d in made}

    def leaf(e: Expr) -> Expr:
        e = substitute(e, ends)
        if isinstance(e, Read) and e.tensor in own:
            index = zip(e.index, own[e.tensor], strict=True)
            return Read(e.tensor, tuple(i if a is None else i.scaled(-1) + (int(a.extent) - 1) for i, a in index))
        return e

    def compared(e: Expr) -> Expr:
        match e:
            case Map("le" | "lt" as name, (Position(a), Position(b))) if all(
                at_most(c, -1) for _, c in (*a.terms, *b.terms)
            ):
                return op(name, position(b.scaled(-1)), position(a.scaled(-1)))
        return e

    exprs = rebuilt(replaced([d.expr for d in made], leaf), compared)
    return [replace(d, expr=e) for d, e in zip(made, exprs, strict=True)]


@dataclass(frozen=True, slots=True)
class _Grown:
    """a, by chunk and place: as it is, or a prefix sum by what it grows by within chunks and up to their ends."""

    growth: Expr  # a, over the row
    row: Axis
    length: int  # of chunks
    # Definitions of grown[c, r] = a[C*c + r] - a[C*c - 1] and of ends[c] = a[C*c + C-1], short sums; or none.
    made: tuple[Definition, ...] = ()
    others: tuple[Axis, ...] = ()  # their axes besides

    def _read(self, n: int, *index: Index) -> Expr:
        return Read(self.made[n].name, (*index, *map(Index.axis, self.others)))

    def _a(self, index: Index) -> Expr:
        return substitute(self.growth, {self.row: index})

    def at(self, which: Index, within: Index) -> list[_Signed]:
        """a at a place of a chunk."""
        if not self.made:
            return _summands(self._a(which.scaled(self.length) + within))
        return [*self.before(which), (1, self._read(0, which, within))]

    def before(self, which: Index) -> list[_Signed]:
        """a where a chunk begins: at the last place before it, or at its first."""
        if not self.made:
            return _summands(self._a(which.scaled(self.length)))
        return [(1, self._read(1, which)), (-1, self._read(0, which, Index.const(self.length - 1)))]

    def within(self, body: Expr, c: _Causal, chunk: Axis, place: Axis, other: Axis) -> Expr:
        """A summand of one chunk: of differences of a, only what it grew by within is left."""
        if not self.made:
            return body
        here = Index.axis(chunk)
        starts = {a: here.scaled(self.length) + Index.axis(a) for a in (place, other)}
        instead: dict[Expr, _Signed] = {}
        for a, i in starts.items():
            ((sign, e),) = _summands(self._a(i))
            instead[e] = sign, self._read(0, here, Index.axis(a))

        def grown(e: Expr) -> Expr:
            match e:
                case Map("exp", (Map("where", (mask, x, Const() as outside)),)):
                    return op("exp", op("where", mask, exponent(x), outside))
                case Map("exp", (x,)):
                    return op("exp", exponent(x))
            return e

        def exponent(e: Expr) -> Expr:
            terms = _summands(e)
            if not any(part in instead for _, part in terms):
                return e
            return add(*[_signed(s * t, x) for s, part in terms for t, x in [instead.get(part, (1, part))]])

        return rebuilt([body], grown)[0]

    @property
    def meant(self) -> dict[str, tuple[tuple[Axis, ...], Expr]]:
        """What the definitions are of a."""
        if not self.made:
            return {}
        grown, ends = self.made
        start = Index.axis(grown.axes[0]).scaled(self.length)
        own = add(self._a(start + Index.axis(grown.axes[1])), neg(self._a(start + -1)))
        return {grown.name: (grown.axes, own), ends.name: (ends.axes, self._a(start + (self.length - 1)))}


def _grown(
    program: Program,
    c: _Causal,
    length: int,
    axes: tuple[Axis, Axis, Axis, Axis],
    over: Callable[[Iterable[Axis]], list[Axis]],
    named: Callable[[str, Sequence[Axis], Expr, DType], Definition],
) -> _Grown:
    """a by chunks; see `_Grown`."""
    assert c.growth is not None
    plain = _Grown(c.growth, c.row, length)
    summands = _summands(c.growth)
    if len(summands) > 1:
        return plain
    ((sign, product),) = summands
    parts = _multiplied(product)
    growth, *others_of_row = (f for f in parts if c.row in free_axes(f))
    factors = [Const(-1.0)] * (sign < 0) + [f for f in parts if c.row not in free_axes(f)]
    if others_of_row or not isinstance(growth, Read) or growth.tensor not in program.order:
        return plain
    elsewhere = (e for f in (*c.of_row, *c.of_column, *factors) for e in walk(f))
    if any(isinstance(e, Read) and e.tensor == growth.tensor for e in elsewhere):
        return plain
    d = program.definition(growth.tensor)
    along = [a for a, i in zip(d.axes, growth.index, strict=True) if c.row in i.axes()]
    match d.expr:
        case Reduce(ReduceKind.SUM, step, Map("where", (Map("le", (Position(t), Position(x))), added, Const(0.0)))) if (
            t == Index.axis(step) and [x] == [Index.axis(a) for a in along] and along[0] not in free_axes(added)
        ):
            pass
        case _:
            return plain
    index = dict(zip(d.axes, growth.index, strict=True))
    if index[along[0]] != Index.axis(c.row) or step.extent != c.row.extent:
        return plain
    chunk, place, other, earlier = axes
    added = substitute(added, {a: i for a, i in index.items() if a != along[0]})
    added = substitute(added, {step: Index.axis(chunk).scaled(length) + Index.axis(other)})
    added = _scaled(program, added, factors)
    others = tuple(over(free_axes(added)))

    def upto(axis: Axis, end: Axis, term: Expr) -> Expr:
        inside = op("le", position(axis), position(end))
        return Reduce(ReduceKind.SUM, axis, op("where", inside, term, Const(0.0)))

    grown = named("grown", (chunk, place, *others), upto(other, place, added), d.dtype)
    last = Read(grown.name, (Index.axis(earlier), Index.const(length - 1), *map(Index.axis, others)))
    ends = named("ends", (chunk, *others), upto(earlier, chunk, last), d.dtype)
    return _Grown(c.growth, c.row, length, (grown, ends), others)


def _scaled(program: Program, e: Expr, factors: Sequence[Expr]) -> Expr:
    """A product with what it reads already multiplied by numbers, all numbers as one: what undo each other are none."""
    numbers = [f.value for f in factors if isinstance(f, Const)]
    while numbers and isinstance(e, Read) and e.tensor in program.order:
        d = program.definition(e.tensor)
        match d.expr:
            case Map("mul", (x, Const(c)) | (Const(c), x)):
                numbers.append(c)
            case Read() as x if d.view:
                pass
            case _:
                break
        e = substitute(x, dict(zip(d.axes, e.index, strict=True)))
    number = math.prod(numbers)
    others = [f for f in factors if not isinstance(f, Const)]
    return mul(e, *others, *([Const(number)] if number != 1.0 else ()))


def _exp(plus: Sequence[_Signed], minus: Sequence[_Signed]) -> Expr:
    """The exponential of a difference; what is on both sides is left out."""
    left: Counter[Expr] = Counter()
    # Of what is so much a place the places are one difference: its sign is known, that of either term is not enough.
    places: dict[tuple[Expr, ...], Index] = {}
    for sign, e in (*plus, *((-sign, e) for sign, e in minus)):
        steps, rest = _steps(e)
        if steps is None:
            left[e] += sign
        else:
            places[rest] = places.get(rest, Index.const(0)) + steps.scaled(sign)
    terms = [e if n > 0 else neg(e) for e, n in left.items() for _ in range(abs(n))]
    terms += [mul(position(i), *rest) for rest, i in places.items() if i != Index.const(0)]
    return op("exp", add(*terms))


def _powers(e: Expr, bases: Set[Expr]) -> Expr:
    """An exponential with what it has of the logarithms of bases as powers of these."""
    if not (isinstance(e, Map) and e.op == "exp"):
        return e
    powers: list[Expr] = []
    rest: list[Expr] = []
    for term in e.args[0].args if isinstance(e.args[0], Map) and e.args[0].op == "add" else e.args:
        factors = _multiplied(term)
        logs = [f for f in factors if isinstance(f, Map) and f.op == "log" and f.args[0] in bases]
        if logs:
            steps = list(factors)
            steps.remove(logs[0])
            powers.append(op("pow", logs[0].args[0], mul(*steps)))
        else:
            rest.append(term)
    return mul(*powers, *([op("exp", add(*rest))] if rest else ())) if powers else e


def _steps(e: Expr) -> tuple[Index | None, tuple[Expr, ...]]:
    """Places and what they are multiplied by; no places where the term is of no such form."""
    factors = _multiplied(e)
    for n, f in enumerate(factors):
        rest = (*factors[:n], *factors[n + 1 :])
        if isinstance(f, Position):
            return f.index, rest
        if isinstance(f, Const) and f.value.is_integer() and rest:
            return Index.const(int(f.value)), rest
    return None, ()


def _before(chunk: Axis, earlier: Axis, carried: Sequence[Expr], held: Expr) -> Expr:
    """The sum of what is held over all earlier chunks, each by what is carried of it.

    One loop over the chunks computes it; what decays from chunk to chunk is a matrix product as well, with a factor for
    each pair of chunks.
    """

    def before(value: Expr) -> Expr:
        return op("where", op("lt", position(earlier), position(chunk)), value, Const(0.0))

    return Reduce(ReduceKind.SUM, earlier, mul(before(mul(*carried)), held) if carried else before(held))


def _gives_back(
    summand: Expr,
    past: Expr,
    before: Definition,
    state: Definition,
    meant: Mapping[str, tuple[tuple[Axis, ...], Expr]],
    pair: frozenset[Axis],
) -> bool:
    """Whether what the parts carry from a column of an earlier chunk is the summand there.

    The parts are read as they were written, each in place of its name: factors, sums and exponents have to be the same.
    """
    match before.expr:
        case Reduce(_, _, Map("where", (_, carried, _))):
            pass
        case Reduce(_, _, Map("mul", (Map("where", (_, factor, _)), held))):
            carried = mul(factor, held)
        case _:
            return False
    if not isinstance(state.expr, Reduce):
        return False
    instead = {**meant, before.name: (before.axes, carried), state.name: (state.axes, state.expr.body)}

    def written(e: Expr) -> Expr:
        match e:
            case Read(name, index) if name in instead:
                axes, body = instead[name]
                return substitute(body, dict(zip(axes, index, strict=True)))
        return e

    whole = past
    for _ in range(3):  # what was carried reads the states, and those what a grows by
        (whole,) = replaced([whole], written)
    return _product(whole, pair) == _product(summand, pair)


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
            case Map("le" | "lt") as mask if pair <= free_axes(mask):
                pass
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
