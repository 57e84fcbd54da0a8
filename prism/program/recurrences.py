"""Recurrences that were unrolled, as loops: `for t in range(T): h = torch.tanh(x[t] @ w + h @ u)`.

    a0[i] = f(x[0, i])    h0[i] = g(a0, 0)     a1[i] = f(x[1, i])    h1[i] = g(a1, h0)     ...
    ->  a[t, i] = f(x[t, i])      loop: h_after = g(a[t], h)

Source that was unrolled says the same definitions again for each step. Their sequence is periodic; the period is
looked for in the shapes of their expressions, without views, which are indices of what reads them. Then the steps are
laid side by side: a read of the same step stays one, a read of the step before is a state, what is read around the loop
is the same in every step or a slice whose place grows evenly. What hangs on no state is taken out of the loop, as one
definition with an axis for the steps.

As with other unrolled source (rolled.py), every definition has to be given back: a step of the loop, with the names of
the n-th step in place of its own, is that step, operator by operator. What is not stays as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prism.program.extents import is_static
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.loops import defined_as, steps_of
from prism.program.nodes import (
    Const,
    Definition,
    Expr,
    Loop,
    Map,
    Program,
    Read,
    Reduce,
    State,
    Steps,
    Tensor,
    walk,
)
from prism.program.region import reads
from prism.program.rolled import UnlikeError, live_definitions, ordered, shape_of, side_by_side
from prism.program.transform import rebuilt, replaced, substitute, with_tensors
from prism.program.views import same_extent

LEAST = 4
"""Steps of a loop: of fewer, what is computed for two at once gains more."""
PERIODS = 6
"""Periods that are tried."""
PHASES = 8
"""Places where a step may begin that are tried."""
LOOPS = 32
"""Loops of a program that are looked for."""


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
        for before, steps in _phases(program, computed, bare, start, period, length):
            try:
                found = _Steps(program, bare, steps).loop(before)
            except UnlikeError:
                continue
            if found is not None:
                return found
    return None


def _without_views(program: Program) -> dict[str, Expr]:
    """Every definition's expression, views as indices of what they are of."""
    views: dict[str, Definition] = {}
    found: dict[str, Expr] = {}

    def change(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor in views:
            d = views[e.tensor]
            return substitute(d.expr, dict(zip(d.axes, e.index, strict=True)))
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
    """The steps, and as many definitions before them; first where steps begin that carry and hand over least."""
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
        found.append((len(handed), -many, begin, many))
    for _, _, begin, many in sorted(found)[:PHASES]:
        steps = [list(computed[begin + t * period : begin + (t + 1) * period]) for t in range(many)]
        yield list(computed[max(begin - period, 0) : begin]), steps


@dataclass(frozen=True, slots=True)
class _Slice:
    """A tensor around the loop, of which a step reads the place `first + step * n` along a dimension."""

    tensor: str
    dimension: int
    first: int
    step: int

    def at(self, n: int | Index, index: Sequence[Index]) -> Read:
        """The element at step n; the index is of the other dimensions."""
        where = n.scaled(self.step) + self.first if isinstance(n, Index) else Index.const(self.first + n * self.step)
        return Read(self.tensor, (*index[: self.dimension], where, *index[self.dimension :]))

    def turned(self, trips: int) -> _Slice:
        """The same places from the last step's to the first's."""
        return replace(self, first=self.first + self.step * (trips - 1), step=-self.step)


@dataclass(slots=True)
class _Steps:
    """Steps side by side.

    Attributes:
        program, bare: what they are of.
        steps: their definitions, step by step.
        exprs: what each is, as one expression of a step: reads of the same step, and of the one before it, are of the
            first step's names, and of `before`.
        firsts: by a state, what it is before the first step: a tensor and its place there, or a number.
        slices: by the name that a step has for it.
    """

    program: Program
    bare: Mapping[str, Expr]
    steps: list[list[Definition]]
    exprs: list[Expr] = field(default_factory=list)
    firsts: dict[int, tuple[str, int | None] | float] = field(default_factory=dict)
    slices: dict[_Slice, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    inside: dict[str, tuple[int, int]] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)

    def loop(self, before: Sequence[Definition] = ()) -> Program | None:
        """The program with these steps as a loop; None where that gains nothing.

        Args:
            before: what is computed before them, and may be one more.

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
        if not self.states or not self._worth(held):
            return None
        for n in range(len(self.steps)):
            self._check(n)
        self._extend(before)
        return self._made(held)

    def _extend(self, before: Sequence[Definition]) -> None:
        """Take what is computed before as the first step, where it is one of states that are 0, folded."""
        first = self.steps[0]
        alike = len(before) == len(first) and all(
            (d.axes, d.dtype) == (b.axes, b.dtype) for d, b in zip(first, before, strict=True)
        )
        if not alike or any(begun != (before[j].name, None) for j, begun in self.firsts.items()):
            return
        made = replace(self, steps=[list(before), *self.steps], firsts=dict.fromkeys(self.firsts, 0.0))
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
        outer = [e for e in es if isinstance(e, Read) and e.tensor == second.tensor]
        if len(outer) != len(es) or second.tensor in self.inside:
            raise UnlikeError
        return self._outer(outer)

    def _begins(self, j: int, e: Expr, index: tuple[Index, ...]) -> None:
        """Note what a state is before the first step."""
        found: tuple[str, int | None] | float
        match e:
            case Const(value):
                found = value
            case Read(tensor, at) if tensor not in self.inside and at == index:
                found = tensor, None
            case Read(tensor, (place, *at)) if tensor not in self.inside and tuple(at) == index and not place.terms:
                if not is_static(place.offset):
                    raise UnlikeError
                found = tensor, int(place.offset)
            case _:
                raise UnlikeError
        if self.firsts.setdefault(j, found) != found:
            raise UnlikeError

    def _state(self, j: int) -> str:
        if j not in self.states:
            self.states[j] = self._name(f"{self.steps[0][j].name}_before")
        return self.states[j]

    def _outer(self, es: Sequence[Read]) -> Expr:
        """What is read around the loop: the same in each step, or a slice."""
        first, second = es[0], es[1]
        varies = [d for d, (a, b) in enumerate(zip(first.index, second.index, strict=True)) if a != b]
        if not varies:
            if any(e != first for e in es):
                raise UnlikeError
            return first
        if len(varies) > 1:
            raise UnlikeError
        (d,) = varies
        places = [e.index[d] for e in es]
        if any(p.terms or not is_static(p.offset) for p in places):
            raise UnlikeError
        rest = (*first.index[:d], *first.index[d + 1 :])
        found = _Slice(first.tensor, d, int(places[0].offset), int(places[1].offset) - int(places[0].offset))
        if any(found.at(n, rest) != e for n, e in enumerate(es)):
            raise UnlikeError
        if found not in self.slices:
            self.slices[found] = self._name(f"{first.tensor}_slice")
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

    def _worth(self, held: set[int]) -> bool:
        """Whether a step reduces what hangs on a state, for which all of the step before has to be there.

        Pointwise steps are fused, as many as a region holds, and are left alone.
        """
        names = {self.steps[0][j].name for j in held} | set(self.states.values())
        sums = (x for j in held for x in walk(self.exprs[j]) if isinstance(x, Reduce))
        return any(not names.isdisjoint(reads(x.body)) for x in sums)

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
                if n:
                    return Read(self.steps[n - 1][j].name, e.index)
                first = self.firsts[j]
                if not isinstance(first, tuple):
                    return Const(first)
                tensor, place = first
                return Read(tensor, e.index if place is None else (Index.const(place), *e.index))
            return e

        steps = [self.bare[d.name] for d in self.steps[n]]
        found = rebuilt(self.exprs, back)
        if folded:
            steps, found = rebuilt(steps, _folded), rebuilt(found, _folded)
        if steps != found:
            raise UnlikeError

    # The loop

    def _made(self, held: set[int]) -> Program:
        first, trips = self.steps[0], len(self.steps)
        # What is read from the last place on is stored so, too.
        reverse = bool(self.slices) and all(s.step < 0 for s in self.slices)
        by_place = {name: s.turned(trips) if reverse else s for s, name in self.slices.items()}
        order = {d.name: j for j, d in enumerate(first)}
        step = Axis("step", trips)
        made: list[Definition] = []
        before: dict[int, str] = {}  # what hangs on no state, of all steps
        for j, d in enumerate(first):
            if j not in held:
                before[j] = self._name(f"{d.name}_steps")
                at = _apart(step, d.axes)
                made.append(
                    replace(d, name=before[j], axes=(at, *d.axes), expr=self._taken_out(j, at, before, by_place))
                )
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
        around = {s.tensor for s in self.slices} | {x[0] for x in self.firsts.values() if isinstance(x, tuple)}
        self._check_before(around.union(shared))
        stacks = {
            j: steps_of(loop, names[first[j].name], self._name(f"{first[j].name}_all"), first[j].origin)
            for j in outputs
        }
        made += stacks.values()
        kept = {**before, **{j: d.name for j, d in stacks.items()}}
        every = self.steps[::-1] if reverse else self.steps
        places = {d.name: (n, kept[j]) for n, one in enumerate(every) for j, d in enumerate(one) if j in kept}

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

    def _taken_out(self, j: int, step: Axis, before: Mapping[int, str], slices: Mapping[str, _Slice]) -> Expr:
        """What hangs on no state, at the place of a step."""
        order = {d.name: n for n, d in enumerate(self.steps[0])}
        here = Index.axis(step)

        def change(e: Expr) -> Expr:
            if not isinstance(e, Read):
                return e
            if e.tensor in slices:
                return slices[e.tensor].at(here, e.index)
            return Read(before[order[e.tensor]], (here, *e.index)) if e.tensor in order else e

        return rebuilt([self.exprs[j]], change)[0]

    def _stored(self, s: _Slice, made: list[Definition]) -> str:
        """The tensor whose first dimension are the places of the steps: what is sliced, or a view of it."""
        t, trips = self.program.tensor(s.tensor), len(self.steps)
        if (s.dimension, s.first, s.step) == (0, 0, 1) and same_extent(t.shape[0], trips):
            return s.tensor
        rest = (*t.shape[: s.dimension], *t.shape[s.dimension + 1 :])
        axes = (Axis("step", trips), *(Axis(f"i{d}", e) for d, e in enumerate(rest)))
        expr = s.at(Index.axis(axes[0]), [Index.axis(a) for a in axes[1:]])
        made.append(Definition(self._name(f"{s.tensor}_places"), axes, expr, t.dtype, view=True))
        return made[-1].name

    def _begun(self, j: int, made: list[Definition]) -> tuple[str, int | None]:
        """The tensor that a state is before the first step, and its place there."""
        d, found = self.steps[0][j], self.firsts[j]
        if not isinstance(found, tuple):
            name = defined_as(made, d.axes, Const(found), d.dtype)
            if name is None:
                name = self._name(f"{d.name}_first")
                made.append(Definition(name, d.axes, Const(found), d.dtype, d.origin))
            return name, None
        tensor, place = found
        t = self.program.tensor(tensor)
        if (t.shape if place is None else t.shape[1:]) != d.tensor.shape or t.dtype is not d.dtype:
            raise UnlikeError
        return tensor, place

    def _read_outside(self) -> set[int]:
        """The definitions of steps that something else needs."""
        found = {self.inside[t][1] for t in self.program.outputs if t in self.inside}
        views = {d.name for d in self.program.definitions if d.view}
        for d in self.program.definitions:
            if d.name not in self.inside and (d.name not in views or d.name in self.program.outputs):
                found |= {self.inside[t][1] for t in reads(self.bare[d.name]) if t in self.inside}
        return found


def _folded(e: Expr) -> Expr:
    return op(e.op, *e.args) if isinstance(e, Map) else e


def _apart(step: Axis, axes: Sequence[Axis]) -> Axis:
    name = step.name
    while any(a.name == name for a in axes):
        name += "_"
    return Axis(name, step.extent)
