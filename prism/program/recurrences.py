"""Recurrences that were unrolled, as loops: `for t in range(T): h = torch.tanh(x[t] @ w + h @ u)`.

    a0[i] = f(x[0, i])    h0[i] = g(a0, 0)     a1[i] = f(x[1, i])    h1[i] = g(a1, h0)     ...
    ->  a[t, i] = f(x[t, i])      loop: h_after = g(a[t], h)

Source that was unrolled says the same definitions again for each step. Their sequence is periodic; the period is
looked for in the shapes of their expressions, without views, which are indices of what reads them. Then the steps are
laid side by side: a read of the same step stays one, a read of the step before is a state, what is read around the loop
is the same in every step or a slice whose place grows evenly. What hangs on no state is taken out of the loop, as one
definition with an axis for the steps.

Steps that are pointwise and linear in what they carry are no loop but a running sum with factors (prefix.py), at every
place at once; so are products and extremes:

    h0 = a[0]*h + f[0]     h1 = a[1]*h0 + f[1]     ...
    ->  h[t] = sum_m where(m <= t, (a[m + 1]*...*a[t]) * where(m == 0, a[0]*h + f[0], f[m]), 0)

As with other unrolled source (rolled.py), every definition has to be given back: a step of the loop, with the names of
the n-th step in place of its own, is that step, operator by operator. What is not stays as it was.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from prism.program.extents import is_static
from prism.program.fold import node, op
from prism.program.index import Axis, Index
from prism.program.loops import defined_as, steps_of
from prism.program.nodes import (
    Const,
    Definition,
    Expr,
    Loop,
    Map,
    Position,
    Program,
    Read,
    Reduce,
    ReduceKind,
    State,
    Steps,
    Tensor,
    walk,
)
from prism.program.prefix import Recurrence, running
from prism.program.region import reads
from prism.program.rolled import UnlikeError, live_definitions, ordered, shape_of, side_by_side
from prism.program.transform import element_at, rebuilt, replaced, substitute, with_tensors
from prism.program.views import same_extent

LEAST = 4
"""Steps of a loop: of fewer, what is computed for two at once gains more."""
PERIODS = 6
"""Periods that are tried."""
PHASES = 8
"""Places where a step may begin that are tried."""
LOOPS = 32
"""Loops of a program that are looked for."""
MANY = 64
"""Operators of pointwise steps, all together, that stay as they are, to be computed with what is around them."""


def looped(program: Program) -> Program:
    """The same program, in which recurrences that were unrolled are loops; itself where there are none."""
    new = program
    for _ in range(LOOPS):
        found = _one(new)
        if found is None:
            break
        new = found
    return new


def direct(program: Program) -> Program:
    """The same program, in which an output that is all steps of a loop, as they are, is not a copy of them."""
    new = program
    for output in program.outputs if program.loops else ():
        d, expr = new.definition(output), _without_views(new)[output]
        if not d.view or not isinstance(expr, Read) or expr.tensor not in new.order or expr.tensor in new.outputs:
            continue
        of = new.definition(expr.tensor)
        whole = tuple(map(Index.axis, d.axes))
        if isinstance(of.expr, Steps) and expr.index == whole and of.tensor.shape == d.tensor.shape:
            new = _renamed(new, of.name, output)
    return new


def _renamed(program: Program, old: str, new: str) -> Program:
    """The program in which a definition has the name of another, which is gone."""

    def name(tensor: str) -> str:
        return new if tensor == old else tensor

    kept = [replace(d, name=name(d.name)) for d in program.definitions if d.name != new]
    exprs = with_tensors([d.expr for d in kept], name)
    return replace(
        program,
        definitions=tuple(
            replace(d, expr=_reading(d.expr, name) if isinstance(d.expr, Steps) else e)
            for d, e in zip(kept, exprs, strict=True)
        ),
    )


def _reading(e: Steps, name: Callable[[str], str]) -> Steps:
    """What a loop makes, where what is around it has other names."""
    loop = e.loop
    if all(name(r.tensor) == r.tensor for r in loop.operands):
        return e
    states = tuple(replace(s, first=name(s.first)) for s in loop.states)
    slices = tuple((inner, name(outer)) for inner, outer in loop.slices)
    inputs = tuple(replace(t, name=name(t.name)) for t in loop.body.inputs)
    exprs = with_tensors([d.expr for d in loop.body.definitions], name)
    definitions = tuple(replace(d, expr=x) for d, x in zip(loop.body.definitions, exprs, strict=True))
    body = replace(loop.body, inputs=inputs, definitions=definitions)
    return Steps(replace(loop, body=body, states=states, slices=slices), e.output, e.index)


def _one(program: Program) -> Program | None:
    """The program with one more loop; None where none is found."""
    computed = [d for d in program.definitions if not d.view and not isinstance(d.expr, Steps)]
    if len(computed) < LEAST:
        return None
    bare = _without_views(program)
    tokens = [shape_of(bare[d.name], lambda _: ()) for d in computed]
    for start, period, length in _periodic(tokens):
        best: tuple[int, Program] | None = None
        for before, definitions in _phases(program, computed, bare, start, period, length):
            steps = _Steps(program, bare, definitions)
            try:
                found = steps.loop(before)
            except UnlikeError:
                continue
            if found is not None and len(found.loops) > len(program.loops):
                return found if best is None else best[1]
            # Of what is at once, where most steps are: the first is often folded.
            if found is not None and (best is None or len(steps.steps) > best[0]):
                best = len(steps.steps), found
        if best is not None:
            return best[1]
    return None


def _without_views(program: Program) -> dict[str, Expr]:
    """Every definition's expression, views as indices of what they are of."""
    views: dict[str, Definition] = {}
    found: dict[str, Expr] = {}

    def change(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor in views:
            d = views[e.tensor]
            return element_at(d, e.index)
        return e

    for d in program.definitions:
        expr = d.expr if isinstance(d.expr, Steps) else replaced([d.expr], change)[0]
        found[d.name] = expr
        if d.view:
            views[d.name] = replace(d, expr=expr)
    return found


def _periodic(tokens: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Where a sequence repeats itself, the longest first: from where, after how many, and how many in all."""
    last: dict[int, int] = {}
    gaps: Counter[int] = Counter()
    for n, token in enumerate(tokens):
        if token in last:
            gaps[n - last[token]] += 1
        last[token] = n
    # Of what occurs several times in a step, gaps are parts of the period.
    near = [gap for gap, _ in gaps.most_common(PERIODS)]
    sums = {a + b for a in near for b in near} | {a + b + c for a in near for b in near for c in near}
    candidates = sorted({*near, *sums})
    found: list[tuple[int, int, int]] = []
    for period in candidates:
        run = 0
        for n in range(len(tokens) - period + 1):
            if n + period < len(tokens) and tokens[n] == tokens[n + period]:
                run += 1
                continue
            if run + period >= LEAST * period:
                found.append((n - run, period, run + period))
            run = 0
    yield from sorted(found, key=lambda x: (-x[2], x[1]))[:PERIODS]


def _phases(
    program: Program,
    computed: Sequence[Definition],
    bare: Mapping[str, Expr],
    start: int,
    period: int,
    length: int,
) -> Iterator[tuple[list[Definition], list[list[Definition]]]]:
    """The steps, and as many definitions before them.

    First where steps begin that carry and hand over least, and of those where the fewest are left after the last one.
    """
    place = {d.name: n for n, d in enumerate(computed)}
    used = {n: [place[t] for t in reads(bare[d.name]) if t in place] for n, d in enumerate(computed)}
    outside = {t for t in program.outputs if t in place}
    found = []
    for begin in range(start, min(start + period, start + length - LEAST * period + 1)):
        many = (start + length - begin) // period
        end = begin + many * period
        second = range(begin + period, begin + 2 * period)
        carried = {m % period for n in second for m in used[n] if begin <= m < begin + period}
        read_later = {m for n in range(end, len(computed)) for m in used[n] if begin <= m < end}
        read_later |= {place[t] for t in outside if begin <= place[t] < end}
        handed = {(m - begin) % period for m in read_later} | {(c - begin) % period for c in carried}
        found.append((len(handed), -many, start + length - end, begin, many))
    for _, _, _, begin, many in sorted(found)[:PHASES]:
        steps = [list(computed[begin + t * period : begin + (t + 1) * period]) for t in range(many)]
        yield list(computed[max(begin - period, 0) : begin]), steps


@dataclass(frozen=True, slots=True)
class _Begun:
    """What there is before the first step."""

    value: str | float  # a number, or a tensor around the loop
    place: int | None = None  # along one of the tensor's dimensions; None where the tensor has no other
    dimension: int = 0  # that one

    @classmethod
    def of(cls, e: Expr, index: tuple[Index, ...], inside: Collection[str]) -> _Begun:
        """What an expression is, at an index.

        Raises:
            UnlikeError: it is of the steps, or of another index.
        """
        match e:
            case Const(value):
                return cls(value)
            case Read(tensor, at) if tensor not in inside and at == index:
                return cls(tensor)
            case Read(tensor, at) if tensor not in inside:
                for d, place in enumerate(at):
                    if (*at[:d], *at[d + 1 :]) == index and not place.terms and is_static(place.offset):
                        return cls(tensor, int(place.offset), d)
        raise UnlikeError

    def at(self, index: Sequence[Index]) -> Expr:
        """Its element."""
        if not isinstance(self.value, str):
            return Const(self.value)
        if self.place is None:
            return Read(self.value, tuple(index))
        return Read(self.value, (*index[: self.dimension], Index.const(self.place), *index[self.dimension :]))


@dataclass(frozen=True, slots=True)
class _Slice:
    """A tensor around the loop, of which a step reads the place `first + step * n` along a dimension."""

    tensor: str
    dimension: int
    first: int
    step: int
    # What the first step reads in its place, if it does: as what is before the place where values begin.
    begun: _Begun | None = None

    def at(self, n: int | Index, index: Sequence[Index]) -> Expr:
        """The element at step n, of an axis one that is not the first's; the index is of the other dimensions."""
        if n == 0 and self.begun is not None:
            return self.begun.at(index)
        where = n.scaled(self.step) + self.first if isinstance(n, Index) else Index.const(self.first + n * self.step)
        return Read(self.tensor, (*index[: self.dimension], where, *index[self.dimension :]))

    def turned(self, trips: int) -> _Slice:
        """The same places from the last step's to the first's."""
        return replace(self, first=self.first + self.step * (trips - 1), step=-self.step)


@dataclass(frozen=True, slots=True)
class _Linear:
    """What a step makes of a state: factor * state + added, or the larger or smaller of state + factor and `added`."""

    kind: ReduceKind  # how the two are combined
    factor: Expr | None  # how the state grows first; None where it does not
    added: Expr | None  # None where it is nothing

    @classmethod
    def of(cls, e: Expr, state: Read) -> _Linear | None:
        """What an expression is of a state; None where it is neither."""
        for kind in (ReduceKind.MAX, ReduceKind.MIN):
            if isinstance(e, Map) and e.op == kind.op:
                for own, other in (e.args, e.args[::-1]):
                    factor, growth = _parts(own, state) or (None, None)
                    if factor == Const(1.0) and state.tensor not in reads(other):
                        return cls(kind, growth, other)
                return None
        parts = _parts(e, state)
        if parts is None or parts[0] is None:
            return None
        factor, added = parts
        return cls(ReduceKind.SUM, None if factor == Const(1.0) else factor, added)


_Parts: TypeAlias = "tuple[Expr | None, Expr | None]"
"""What a state is multiplied by, and what is added; None in either is 0."""


def _parts(e: Expr, state: Read) -> _Parts | None:
    """What an expression is of a state; None where it is not linear."""
    if state.tensor not in reads(e):
        return None, e
    if e == state:
        return Const(1.0), None
    match e:
        case Map("add", (one, other)):
            a, b = _parts(one, state), _parts(other, state)
            return None if a is None or b is None else (_added(a[0], b[0]), _added(a[1], b[1]))
        case Map("neg", (one,)):
            return _times(_parts(one, state), Const(-1.0))
        case Map("mul", (one, other)) if state.tensor not in reads(other):
            return _times(_parts(one, state), other)
        case Map("mul", (other, one)) if state.tensor not in reads(other):
            return _times(_parts(one, state), other)
        case Map("where", (mask, one, other)) if state.tensor not in reads(mask):
            a, b = _parts(one, state), _parts(other, state)
            return None if a is None or b is None else (_chosen(mask, a[0], b[0]), _chosen(mask, a[1], b[1]))
        case _:
            return None


def _added(a: Expr | None, b: Expr | None) -> Expr | None:
    return b if a is None else a if b is None else op("add", a, b)


def _times(parts: _Parts | None, factor: Expr) -> _Parts | None:
    if parts is None:
        return None
    a, b = (None if x is None else op("mul", x, factor) for x in parts)
    return a, b


def _chosen(mask: Expr, a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None and b is None:
        return None
    a, b = (Const(0.0) if x is None else x for x in (a, b))
    return op("where", mask, a, b)


def _nodes(expr: Expr, sizes: Mapping[str, int]) -> int:
    """How many nodes an expression has where tensors are written out that have so many."""
    return sum(sizes.get(e.tensor, 1) if isinstance(e, Read) else 1 for e in walk(expr))


@dataclass(slots=True)
class _Steps:
    """Steps side by side."""

    program: Program  # what they are of, and `bare`
    bare: Mapping[str, Expr]
    steps: list[list[Definition]]  # their definitions, step by step
    # What each is, as one expression of a step: reads of the same step, and of the one before it, are of the first
    # step's names, and of `before`.
    exprs: list[Expr] = field(default_factory=list)
    firsts: dict[int, _Begun] = field(default_factory=dict)  # by a state, what it is before the first step
    slices: dict[_Slice, str] = field(default_factory=dict)  # by the name that a step has for it
    taken: set[str] = field(default_factory=set)
    inside: dict[str, tuple[int, int]] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)

    def loop(self, before: Sequence[Definition] = ()) -> Program | None:
        """The program with these steps as a loop; None where that gains nothing.

        `before` is computed before them, and may be one more.

        Raises:
            UnlikeError: they are not one program.
        """
        self.taken = {t.name for t in self.program.inputs} | set(self.program.order)
        self.taken |= {n for x in self.program.loops for n in (*x.body.order, *(t.name for t in x.body.inputs), x.name)}
        self.inside = {d.name: (n, j) for n, step in enumerate(self.steps) for j, d in enumerate(step)}
        for j, first in enumerate(self.steps[0]):
            alike = [step[j] for step in self.steps]
            if any((d.axes, d.dtype) != (first.axes, first.dtype) for d in alike):
                raise UnlikeError
            self.exprs.append(self._unified([self.bare[d.name] for d in alike]))
        held = self._depending()
        if not self.states:
            return None
        # Steps that are all the same, as of a power, are of no place.
        at_once = bool(self.slices) and set(self.states) <= set(self._order(held))
        if not at_once and not self._worth(held):
            return None
        for n in range(len(self.steps)):
            self._check(n)
        self._extend(before)
        if at_once:
            self._begin_earlier()
        return (self._at_once(held) if at_once else None) or self._made(held)

    def _extend(self, before: Sequence[Definition]) -> None:
        """Take what is computed before as the first step, where it is one of states that are 0, folded."""
        first = self.steps[0]
        alike = len(before) == len(first) and all(
            (d.axes, d.dtype) == (b.axes, b.dtype) for d, b in zip(first, before, strict=True)
        )
        if not alike or any(begun != _Begun(before[j].name) for j, begun in self.firsts.items()):
            return
        if any(s.begun is not None for s in self.slices):
            return
        made = replace(self, steps=[list(before), *self.steps], firsts=dict.fromkeys(self.firsts, _Begun(0.0)))
        made.slices = {replace(s, first=s.first - s.step): name for s, name in self.slices.items()}
        made.inside = {d.name: (n, j) for n, step in enumerate(made.steps) for j, d in enumerate(step)}
        names = {d.name: b.name for d, b in zip(first, before, strict=True)}
        made.exprs = with_tensors(self.exprs, lambda t: names.get(t, t))
        try:
            for n in range(len(made.steps)):
                made._check(n, folded=n == 0)
        except UnlikeError:
            return
        self.steps, self.firsts, self.slices = made.steps, made.firsts, made.slices
        self.inside, self.exprs = made.inside, made.exprs

    def _begin_earlier(self) -> None:
        """Take what the states are at first as a step of states that are 0 or 1, folded: `h = 0; h = h + x[0]` is x[0].

        Of such a step fewer operators are left than of the others, so it is none of their sequence.
        """
        first, states = self.steps[0], {name: j for j, name in self.states.items()}
        shifted = {replace(s, first=s.first - s.step): name for s, name in self.slices.items()}
        by_name = {name: s for s, name in shifted.items()}
        begun = {j: b.value for j, b in self.firsts.items() if isinstance(b.value, str) and b.place is None}
        if len(begun) < len(self.firsts) or any(s.begun is not None or not self._has(s) for s in shifted):
            return
        axes = {d.name: d.axes for d in first}
        sizes: dict[str, int] = {}
        for d, expr in zip(first, self.exprs, strict=True):
            sizes[d.name] = _nodes(expr, sizes)
        for value in (0.0, 1.0):
            exprs: dict[str, Expr] = {}

            def change(e: Expr, exprs: dict[str, Expr] = exprs, value: float = value) -> Expr:
                if not isinstance(e, Read):
                    return node(e)
                if e.tensor in by_name:
                    return by_name[e.tensor].at(0, e.index)
                if e.tensor in states:
                    return Const(value)
                if e.tensor in exprs:
                    return substitute(exprs[e.tensor], dict(zip(axes[e.tensor], e.index, strict=True)))
                return e

            for d, expr in zip(first, self.exprs, strict=True):
                exprs[d.name] = rebuilt([expr], change)[0]
            around = self._written_out({t for e in exprs.values() for t in reads(e)}, max(sizes.values()))
            if any(around.get(name) != exprs[first[j].name] for j, name in begun.items()):
                continue
            # What else there is of that step is of its place, too.
            alias = {name: j for j, name in begun.items()}
            places = {expr: j for j, expr in enumerate(exprs.values())}
            for name, expr in around.items():
                d, j = self.program.definition(name), places.get(expr)
                if j is not None and not d.view and (d.axes, d.dtype) == (first[j].axes, first[j].dtype):
                    alias.setdefault(name, j)
            made = [replace(d, name=self._name(f"{d.name}_begun")) for d in first]
            names = {d.name: b.name for d, b in zip(first, made, strict=True)}
            self.exprs = with_tensors(self.exprs, lambda t: names.get(t, t))  # noqa: B023
            self.steps, self.firsts, self.slices = [made, *self.steps], dict.fromkeys(begun, _Begun(value)), shifted
            self.inside = {d.name: (n, j) for n, step in enumerate(self.steps) for j, d in enumerate(step)}
            self.inside |= {name: (0, j) for name, j in alias.items()}
            return

    def _has(self, s: _Slice) -> bool:
        """Whether the first step's place is one of the tensor's."""
        extent = self.program.tensor(s.tensor).shape[s.dimension]
        return is_static(extent) and 0 <= s.first < int(extent)

    def _written_out(self, below: Collection[str], most: int) -> dict[str, Expr]:
        """The definitions around the steps, folded, down to the tensors that are given: those no deeper than a step.

        Nor larger, as `most` nodes: what is read twice is twice there, so sizes may double with every definition.
        """
        found: dict[str, Expr] = {}
        depth: dict[str, int] = {}
        sizes: dict[str, int] = {}
        axes = {d.name: d.axes for d in self.program.definitions}

        def change(e: Expr) -> Expr:
            if isinstance(e, Read) and e.tensor in found and e.tensor not in below:
                return substitute(found[e.tensor], dict(zip(axes[e.tensor], e.index, strict=True)))
            return node(e)

        for d in self.program.definitions:
            if d.name in self.inside or isinstance(d.expr, Steps):
                continue
            depth[d.name] = 1 + max((depth.get(t, 0) for t in reads(self.bare[d.name]) if t not in below), default=0)
            size = _nodes(self.bare[d.name], sizes)
            if d.name not in below:
                sizes[d.name] = size
            if depth[d.name] <= len(self.steps[0]) and size <= most:
                found[d.name] = rebuilt([self.bare[d.name]], change)[0]
        return found

    # Steps as one

    def _unified(self, es: Sequence[Expr]) -> Expr:
        first = es[1]  # the step after the first: its states are what steps make
        kinds = {type(e) for e in es}
        if kinds <= {Read, Const} and Read in kinds:
            return self._read(es)
        if len(kinds) > 1:
            raise UnlikeError
        if isinstance(first, Map | Reduce):
            return side_by_side(es, self._unified)
        if all(e == first for e in es):
            return first
        raise UnlikeError

    def _read(self, es: Sequence[Expr]) -> Expr:
        second, later = es[1], es[1:]
        if not isinstance(second, Read) or not all(isinstance(e, Read) for e in later):
            raise UnlikeError
        reading = [e for e in later if isinstance(e, Read)]
        at, j = self.inside.get(second.tensor, (-1, -1))
        if at >= 0:
            if any(self.inside.get(e.tensor) != (n + at, j) or e.index != second.index for n, e in enumerate(reading)):
                raise UnlikeError
            if at == 0:
                self._begins(j, es[0], second.index)
                return Read(self._state(j), second.index)
            if at == 1 and isinstance(es[0], Read) and es[0] == Read(self.steps[0][j].name, second.index):
                return es[0]
            raise UnlikeError
        if any(e.tensor != second.tensor for e in reading) or second.tensor in self.inside:
            raise UnlikeError
        return self._outer(es[0], reading)

    def _begins(self, j: int, e: Expr, index: tuple[Index, ...]) -> None:
        """Note what a state is before the first step."""
        found = _Begun.of(e, index, self.inside)
        if self.firsts.setdefault(j, found) != found:
            raise UnlikeError

    def _state(self, j: int) -> str:
        if j not in self.states:
            self.states[j] = self._name(f"{self.steps[0][j].name}_before")
        return self.states[j]

    def _outer(self, first: Expr, later: Sequence[Read]) -> Expr:
        """What is read around the loop: the same in each step, or a slice."""
        second, third = later[0], later[1]
        varies = [d for d, (a, b) in enumerate(zip(second.index, third.index, strict=True)) if a != b]
        if not varies:
            if any(e != second for e in (first, *later)):
                raise UnlikeError
            return second
        if len(varies) > 1:
            raise UnlikeError
        (d,) = varies
        places = [e.index[d] for e in later]
        if any(p.terms or not is_static(p.offset) for p in places):
            raise UnlikeError
        rest = (*second.index[:d], *second.index[d + 1 :])
        step = int(places[1].offset) - int(places[0].offset)
        found = _Slice(second.tensor, d, int(places[0].offset) - step, step)
        if found.at(0, rest) != first:
            found = replace(found, begun=_Begun.of(first, rest, self.inside))
        if any(found.at(n + 1, rest) != e for n, e in enumerate(later)):
            raise UnlikeError
        if found not in self.slices:
            self.slices[found] = self._name(f"{second.tensor}_slice")
        return Read(self.slices[found], rest)

    def _name(self, wanted: str) -> str:
        name = wanted
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    # What hangs on a state

    def _depending(self) -> set[int]:
        """The definitions of a step that hang on a state."""
        place = {d.name: j for j, d in enumerate(self.steps[0])}
        states = set(self.states.values())
        found: set[int] = set()
        for j, e in enumerate(self.exprs):
            if any(t in states or place.get(t) in found for t in reads(e)):
                found.add(j)
        return found

    def _spread(self, held: set[int]) -> set[int]:
        """What steps spread from less, as an outer product: made where it is read, and not stored of all steps."""
        first, outside = self.steps[0], self._read_outside()
        shapes = {d.name: d.tensor.shape for d in first}
        for s, name in self.slices.items():
            shape = self.program.tensor(s.tensor).shape
            shapes[name] = (*shape[: s.dimension], *shape[s.dimension + 1 :])
        if not all(is_static(e) for shape in shapes.values() for e in shape):
            return set()
        size = {name: math.prod(map(int, shape)) for name, shape in shapes.items()}
        leaves = {name: frozenset((name,)) for name in size}
        found: set[int] = set()
        for j, d in enumerate(first):
            of: frozenset[str] = frozenset().union(*(leaves.get(t, frozenset()) for t in reads(self.exprs[j])))
            pointwise = not any(isinstance(x, Reduce) for x in walk(self.exprs[j]))
            if j not in held and j not in outside and pointwise and size[d.name] > sum(size[t] for t in of) > 0:
                leaves[d.name] = of
                found.add(j)
        while True:
            names = {first[j].name for j in found}
            stored = {t for j in range(len(first)) if j not in held | found for t in reads(self.exprs[j])}
            if names.isdisjoint(stored):
                return found
            found = {j for j in found if first[j].name not in stored}

    def _worth(self, held: set[int]) -> bool:
        """Whether a step reduces what hangs on a state, for which all of the step before has to be there.

        Or whether steps, each at a place of its own, are many: written out they are more than a region holds, and as a
        loop one launch, whose programs keep their states.
        """
        if self.slices and len(held) * len(self.steps) > MANY:
            return True
        names = {self.steps[0][j].name for j in held} | set(self.states.values())
        sums = (x for j in held for x in walk(self.exprs[j]) if isinstance(x, Reduce))
        return any(not names.isdisjoint(reads(x.body)) for x in sums)

    def _begins_at(self, step: Axis) -> Expr:
        """Whether the place of a step is the first step's."""
        place = Const(float(len(self.steps) - 1 if self._reverse else 0))
        return Map("eq", (Position(Index.axis(step)), place))

    # Pointwise steps, at every place at once.

    def _order(self, held: set[int]) -> dict[int, _Linear | None]:
        """The definitions that hang on states in an order in which each is there at all places once those before are.

        Those that are carried from step to step are with what they are of what they carry; others with None. What comes
        after none of them is left out.
        """
        place = {d.name: j for j, d in enumerate(self.steps[0])}
        own = {name: j for j, name in self.states.items()}
        found: dict[int, _Linear | None] = {}

        def needs(e: Expr) -> set[int]:
            named = (place.get(t, own.get(t)) for t in reads(e))
            return {j for j in named if j in held and j not in found}

        def inlined(e: Expr) -> Expr:
            """What is not there yet, written out down to states."""

            def change(x: Expr) -> Expr:
                j = place.get(x.tensor) if isinstance(x, Read) else None
                if j is None or j not in held or j in found:
                    return x
                assert isinstance(x, Read)
                d = self.steps[0][j]
                return substitute(inlined(self.exprs[j]), dict(zip(d.axes, x.index, strict=True)))

            return rebuilt([e], change)[0]

        more = True
        while more:
            more = False
            for j in sorted(held - set(found)):
                if not needs(self.exprs[j]):
                    found[j], more = None, True
                elif j in self.states:
                    expr = inlined(self.exprs[j])
                    state = Read(self.states[j], tuple(map(Index.axis, self.steps[0][j].axes)))
                    linear = _Linear.of(expr, state) if needs(expr) == {j} else None
                    if linear is not None:
                        found[j], more = linear, True
        return found

    def _at_once(self, held: set[int]) -> Program | None:
        """The program in which what is carried from step to step is a running sum, product or extreme.

        None where something else needs what is not there at once.
        """
        made: list[Definition] = []
        kept = self._apart_from_states(held, made)
        order = self._order(held)
        for j, linear in order.items():
            d = self.steps[0][j]
            step = _apart(Axis("step", len(self.steps)), d.axes)
            name = self._name(f"{d.name}_all")
            if linear is None:
                expr = self._taken_out(self.exprs[j], step, kept)
            else:
                expr = self._carried(j, linear, step, kept)
            kept[j] = name
            made.append(replace(d, name=name, axes=(step, *d.axes), expr=expr, view=False))
        if not self._read_outside() <= set(kept):
            return None
        names = {d.name for d in made}
        self._check_before({t for d in made for t in reads(d.expr)} - names)
        return self._around(made, kept, self._reverse)

    def _carried(self, j: int, linear: _Linear, step: Axis, kept: Mapping[int, str]) -> Expr:
        """A state after each step."""
        index = tuple(map(Index.axis, self.steps[0][j].axes))
        factor, added = (None if e is None else self._taken_out(e, step, kept) for e in (linear.factor, linear.added))
        first = self.firsts[j].at(index)
        if linear.kind is ReduceKind.SUM:
            grown = first if factor is None else op("mul", factor, first)
            begun = added if first == Const(0.0) else grown if added is None else op("add", grown, added)
            added = Const(0.0) if added is None else added
        else:
            assert added is not None
            grown = first if factor is None else op("add", first, factor)
            begun = added if first == Const(linear.kind.identity) else op(linear.kind.op, grown, added)
        term = added if begun is None or begun == added else Map("where", (self._begins_at(step), begun, added))
        bound = _apart(Axis("place", len(self.steps)), (step, *self.steps[0][j].axes))
        term = substitute(term, {step: Index.axis(bound)})
        how = Recurrence(linear.kind, back=self._reverse, factors=factor is not None)
        between = Axis(f"{bound.name}_between", bound.extent)
        by = None if factor is None else (between, substitute(factor, {step: Index.axis(between)}))
        return running(how, term, bound, step, by)

    def _check(self, n: int, folded: bool = False) -> None:
        """Compare the loop's n-th step with the n-th step, numbers in either as readers fold them where asked.

        Raises:
            UnlikeError: they differ.
        """
        own = {d.name: self.steps[n][j].name for j, d in enumerate(self.steps[0])}
        states = {name: j for j, name in self.states.items()}
        slices = {name: s for s, name in self.slices.items()}

        def back(e: Expr) -> Expr:
            if not isinstance(e, Read):
                return e
            if e.tensor in own:
                return Read(own[e.tensor], e.index)
            if e.tensor in slices:
                return slices[e.tensor].at(n, e.index)
            if e.tensor in states:
                j = states[e.tensor]
                return Read(self.steps[n - 1][j].name, e.index) if n else self.firsts[j].at(e.index)
            return e

        steps = [self.bare[d.name] for d in self.steps[n]]
        found = rebuilt(self.exprs, back)
        if folded:
            steps, found = rebuilt(steps, node), rebuilt(found, node)
        if steps != found:
            raise UnlikeError

    # The loop

    @property
    def _reverse(self) -> bool:
        """Whether what is stored of all steps has the last one's first, as what they read has."""
        return bool(self.slices) and all(s.step < 0 for s in self.slices)

    def _by_place(self) -> dict[str, _Slice]:
        trips = len(self.steps)
        return {name: s.turned(trips) if self._reverse else s for s, name in self.slices.items()}

    def _apart_from_states(self, held: set[int], made: list[Definition]) -> dict[int, str]:
        """What hangs on no state, of all steps."""
        before: dict[int, str] = {}
        for j, d in enumerate(self.steps[0]):
            if j not in held:
                before[j] = self._name(f"{d.name}_steps")
                at = _apart(Axis("step", len(self.steps)), d.axes)
                expr = self._taken_out(self.exprs[j], at, before)
                made.append(replace(d, name=before[j], axes=(at, *d.axes), expr=expr))
        return before

    def _made(self, held: set[int]) -> Program:
        held = held | self._spread(held)
        first, trips = self.steps[0], len(self.steps)
        reverse, by_place = self._reverse, self._by_place()
        order = {d.name: j for j, d in enumerate(first)}
        made: list[Definition] = []
        before = self._apart_from_states(held, made)
        slices: dict[str, str] = {}
        inner: dict[str, Tensor] = {}
        for name, s in by_place.items():
            if any(name in reads(self.exprs[j]) for j in held):
                slices[name] = self._stored(s, made)
                of = self.program.tensor(s.tensor)
                inner[name] = Tensor(name, (*of.shape[: s.dimension], *of.shape[s.dimension + 1 :]), of.dtype)
        names: dict[str, str] = {}
        for j in sorted(held):
            names[first[j].name] = self._name(f"{first[j].name}_step")
            for read in reads(self.exprs[j]):
                if read in order and order[read] not in held and read not in names:
                    names[read] = name = self._name(f"{read}_slice")
                    slices[name] = before[order[read]]
                    inner[name] = replace(first[order[read]].tensor, name=name)
        states = []
        for j, name in self.states.items():
            if j not in held:
                raise UnlikeError  # what a step makes of its slice alone, read by the next one
            inner[name] = replace(first[j].tensor, name=name)
            begun, place = self._begun(j, made)
            states.append(State(name, begun, names[first[j].name], place))

        exprs = with_tensors([self.exprs[j] for j in sorted(held)], lambda t: names.get(t, t))
        body = tuple(
            replace(first[j], name=names[first[j].name], expr=e, view=False)
            for j, e in zip(sorted(held), exprs, strict=True)
        )
        read_outside = self._read_outside()
        outputs = [j for j in sorted(held) if j in self.states or j in read_outside]
        own_names = {d.name for d in body}
        shared = dict.fromkeys(t for d in body for t in reads(d.expr) if t not in own_names and t not in inner)
        inputs = (*inner.values(), *(self.program.tensor(t) for t in shared))
        title = self._name(f"{first[0].name}_loop")
        program = Program(
            f"{title}_step",
            tuple(inputs),
            body,
            tuple(names[first[j].name] for j in outputs),
            dict(self.program.ranges),
        )
        loop = Loop(title, program, trips, tuple(states), tuple(slices.items()), reverse)
        starts = [*self.firsts.values(), *(s.begun for s in self.slices if s.begun is not None)]
        around = {s.tensor for s in self.slices} | {x.value for x in starts if isinstance(x.value, str)}
        self._check_before(around.union(shared))
        stacks = {
            j: steps_of(loop, names[first[j].name], self._name(f"{first[j].name}_all"), first[j].origin)
            for j in outputs
        }
        made += stacks.values()
        return self._around(made, {**before, **{j: d.name for j, d in stacks.items()}}, reverse)

    def _around(self, made: list[Definition], kept: Mapping[int, str], reverse: bool) -> Program:
        """The program in which what reads a step reads its place of what is made of all.

        Others are added to what is `made`; `kept` has by a definition of a step the tensor that has it of all steps.
        With `reverse` the first place is the last step's.
        """
        last = len(self.steps) - 1
        places = {t: (last - n if reverse else n, kept[j]) for t, (n, j) in self.inside.items() if j in kept}

        def outside(e: Expr) -> Expr:
            if isinstance(e, Read) and e.tensor in places:
                n, tensor = places[e.tensor]
                return Read(tensor, (Index.const(n), *e.index))
            return e

        rest = [d for d in self.program.definitions if d.name not in self.inside]
        made += [replace(d, expr=e) for d, e in zip(rest, replaced([d.expr for d in rest], outside), strict=True)]
        for name in self.program.outputs:
            if name in self.inside:
                d = self.program.definition(name)
                made.append(replace(d, expr=outside(Read(name, tuple(map(Index.axis, d.axes)))), view=True))
        return replace(self.program, definitions=live_definitions(ordered(made), self.program))

    def _check_before(self, read: Iterable[str]) -> None:
        """Make sure that what the loop reads around it needs none of its steps. Raises UnlikeError: it does."""
        stack, seen = list(read), set(read)
        while stack:
            name = stack.pop()
            if name in self.inside:
                raise UnlikeError
            if name in self.program.order:
                below = set(reads(self.program.definition(name).expr)) - seen
                seen |= below
                stack += below

    def _taken_out(self, e: Expr, step: Axis, kept: Mapping[int, str]) -> Expr:
        """An expression of a step at the place of a step; of states only those that are kept.

        `step` is the axis of places; `kept` has by a definition the tensor that has it at all places.
        """
        order = {d.name: n for n, d in enumerate(self.steps[0])}
        states, slices = {name: j for j, name in self.states.items()}, self._by_place()
        here = Index.axis(step)

        def change(e: Expr) -> Expr:
            if not isinstance(e, Read):
                return e
            if e.tensor in slices:
                return self._sliced(slices[e.tensor], step, e.index)
            if e.tensor in states:
                j = states[e.tensor]
                earlier = Read(kept[j], (here + (1 if self._reverse else -1), *e.index))
                return Map("where", (self._begins_at(step), self.firsts[j].at(e.index), earlier))
            return Read(kept[order[e.tensor]], (here, *e.index)) if e.tensor in order else e

        return rebuilt([e], change)[0]

    def _sliced(self, s: _Slice, step: Axis, index: Sequence[Index]) -> Expr:
        """What a slice is at the place of a step."""
        read = s.at(Index.axis(step), index)
        return read if s.begun is None else Map("where", (self._begins_at(step), s.begun.at(index), read))

    def _stored(self, s: _Slice, made: list[Definition]) -> str:
        """The tensor whose first dimension are the places of the steps: what is sliced, or a view of it."""
        t, trips = self.program.tensor(s.tensor), len(self.steps)
        if s.begun is None and (s.dimension, s.first, s.step) == (0, 0, 1) and same_extent(t.shape[0], trips):
            return s.tensor
        rest = (*t.shape[: s.dimension], *t.shape[s.dimension + 1 :])
        axes = (Axis("step", trips), *(Axis(f"i{d}", e) for d, e in enumerate(rest)))
        expr = self._sliced(s, axes[0], [Index.axis(a) for a in axes[1:]])
        made.append(Definition(self._name(f"{s.tensor}_places"), axes, expr, t.dtype, view=s.begun is None))
        return made[-1].name

    def _begun(self, j: int, made: list[Definition]) -> tuple[str, int | None]:
        """The tensor that a state is before the first step, and its place there."""
        d, found = self.steps[0][j], self.firsts[j]
        if not isinstance(found.value, str):
            name = defined_as(made, d.axes, Const(found.value), d.dtype)
            if name is None:
                name = self._name(f"{d.name}_first")
                made.append(Definition(name, d.axes, Const(found.value), d.dtype, d.origin))
            return name, None
        t = self.program.tensor(found.value)
        shape = t.shape if found.place is None else t.shape[1:]
        if shape != d.tensor.shape or t.dtype is not d.dtype or found.dimension:
            raise UnlikeError
        return found.value, found.place

    def _read_outside(self) -> set[int]:
        """The definitions of steps that something else needs."""
        found = {self.inside[t][1] for t in self.program.outputs if t in self.inside}
        views = {d.name for d in self.program.definitions if d.view}
        for d in self.program.definitions:
            if d.name not in self.inside and (d.name not in views or d.name in self.program.outputs):
                found |= {self.inside[t][1] for t in reads(self.bare[d.name]) if t in self.inside}
        return found


def _apart(step: Axis, axes: Sequence[Axis]) -> Axis:
    name = step.name
    while any(a.name == name for a in axes):
        name += "_"
    return Axis(name, step.extent)
