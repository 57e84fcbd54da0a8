"""Forms: one option for every e-class that the outputs need; what is shared in the e-graph is shared in the form.

Forms are found bottom-up. Each e-class keeps the sub-forms that compute it, as sets of options; an option's are the
unions of its operands' (two that choose differently for one e-class do not go together, nor one that holds the e-class
itself). E-classes come after those that they need; of those that need one another, rounds are repeated until nothing
changes. While no e-class has more sub-forms than the bound, that lists *every* form of the e-graph, and the search over
it is complete.

Beyond the bound, forms are told apart by their *skeleton* only: which reductions are computed, each by which option.
What is pointwise between two reductions costs little and comes in many orders of association; per skeleton the sub-form
with the least work is kept, and per e-class a number of skeletons, those with the least work and those with the fewest
reductions one after another in turn. Reductions that take less than HEAVY of the work are not told apart at first, so
that the ways to compute what costs come before the ways to compute what does not.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from prism.generate.options import ONE_PASS, REDUCING, Choice, Weights, below
from prism.program.arrays import NumpyArrays
from prism.program.classes import EClasses, Key
from prism.program.index import Axis
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, Size, walk
from prism.program.ops import COMMUTATIVE
from prism.program.transform import rebuilt

SKELETONS = 6
"""Beyond the bound, so many skeletons are kept for an e-class at least; of few e-classes as many as forms wanted."""
SHARED = 3
"""As many of one e-class where only the form with the least work is wanted."""
WIDEST = 32
"""As many are kept at most where no form comes of fewer."""
MANY = 2000
"""Of so many e-classes no more than SKELETONS are kept for one that is no output: pairs of them take the time."""
ROUNDS = 16
GRAIN = 1024
"""Work is counted in whole parts of a multiply-add, so many: sums of it do not depend on their order."""
HEAVY = 0.01
SHARES = 1024
"""What takes less than one part in so many of what the dearest option takes makes no shape another one."""
ROOM = 4
"""So many more than are wanted, or as many more, are held before it is looked which are among the first."""
_GIVEN = "given"

_Priced: TypeAlias = "dict[int, list[tuple[int, int, tuple[int, ...]]]]"
"""By e-class, the fields of its options' `_Option`, but for the number."""


@dataclass(frozen=True, slots=True)
class Form:
    """How the outputs are computed."""

    choices: Mapping[int, Choice]  # the option of every e-class that the outputs need
    work: float  # see Weights; each value counted once
    depth: int  # reductions one after another


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms of an e-graph."""

    found: tuple[Form, ...]  # best first: the least work and the fewest reductions one after another in turn
    complete: bool  # whether these are all
    left_out: int  # how many more were found


@dataclass(slots=True, eq=False)
class _Entry:
    """A sub-form: its options, as bits by their numbers; leaves go without saying.

    Hundreds of thousands are made. Which options of e-classes with several it has, and which others these e-classes
    have, are bits of `chosen` and `against` as well: few of these e-classes are ever in a sub-form that is kept.
    """

    options: int
    chosen: int
    against: int
    skeleton: int
    work: int
    depth: int
    length: int

    def __lt__(self, other: _Entry) -> bool:
        """Tells those apart that are worth the same: of the options that only one of them has the last one decides."""
        return self.options < other.options

    @property
    def by_work(self) -> tuple[int, int, int, _Entry]:
        """The order by least work; of equals, the one with the shortest chain of operators adds what is ready first."""
        return self.work, self.depth, self.length, self

    @property
    def by_depth(self) -> tuple[int, int, int, _Entry]:
        """The order by fewest reductions one after another."""
        return self.depth, self.work, self.length, self


_EMPTY = _Entry(0, 0, 0, 0, 0, 0, 0)
_LEAF = _Entry(0, 0, 0, 0, 0, 0, 1)


@dataclass(slots=True)
class _Option:
    """An option of an e-class as sub-forms have it."""

    number: int  # in the table
    work: int  # in units of 1 / GRAIN
    step: int  # 1 for a reduction
    children: tuple[int, ...]  # each e-class once


class _Table:
    """The options of the e-classes below the roots, numbered."""

    def __init__(
        self,
        options: Mapping[int, Sequence[Choice]],
        roots: Sequence[int],
        weights: Weights,
        priced: _Priced | None = None,
    ) -> None:
        """Of the e-classes that `priced` has, with the fields of their options, and of others, which it gets."""
        known = {} if priced is None else priced
        self.roots = roots
        self.order = _bottom_up(options, roots)
        self.options: dict[int, tuple[_Option, ...]] = {}
        self.work: list[int] = []
        self.meaning: list[tuple[int, Choice]] = []
        for cls in self.order:
            if cls not in known:
                known[cls] = [
                    (round(weights.work(cls, o) * GRAIN), int(o.op in REDUCING), tuple(dict.fromkeys(o.children)))
                    for o in options[cls]
                ]
            first = len(self.work)
            self.options[cls] = tuple([_Option(first + n, *fields) for n, fields in enumerate(known[cls])])
            self.work += [o.work for o in self.options[cls]]
            self.meaning += [(cls, choice) for choice in options[cls]]
        # What costs nothing, needs nothing and is the only option goes without saying.
        self.leaves = {
            cls: mine[0].number
            for cls, mine in self.options.items()
            if len(mine) == 1 and not mine[0].children and not mine[0].work
        }
        self._places: dict[int, int] = {}
        self._numbered = 0
        # The work of options together: what pairs of sub-forms have in common is one of few sets.
        self.together: dict[int, int] = {}
        self.groups = _strongly_connected(self.order, self.options)

    def reducing(self, least: float = 0.0) -> frozenset[int]:
        """The reducing options with at least so much work."""
        every = (o for mine in self.options.values() for o in mine if o.step)
        return frozenset(o.number for o in every if o.work >= least)

    def bits(self, cls: int, option: _Option) -> tuple[int, int]:
        """Of an option that a sub-form has, and of the others of its e-class; none where it is the only one."""
        mine = self.options[cls]
        if len(mine) == 1:
            return 0, 0
        if cls not in self._places:
            self._places[cls] = self._numbered
            self._numbered += len(mine)
        place = self._places[cls]
        own = 1 << place + option.number - mine[0].number
        return own, ((1 << len(mine)) - 1 << place) ^ own

    def work_of(self, options: int) -> int:
        """The work of options, given as bits."""
        known = self.together.get(options)
        if known is None:
            known = self.together[options] = sum(self.work[n] for n in _numbers(options))
        return known

    def choices(self, options: int) -> dict[int, Choice]:
        """The options, given as bits, as a mapping, operands before results."""
        mine = set(_numbers(options))
        needed = {c for n in mine for c in self.meaning[n][1].children} | set(self.roots)
        return dict(self.meaning[n] for n in sorted(mine.union(self.leaves[c] for c in needed if c in self.leaves)))


def _numbers(bits: int) -> Iterator[int]:
    """The places of the bits."""
    while bits:
        last = bits & -bits
        yield last.bit_length() - 1
        bits ^= last


def _bottom_up(options: Mapping[int, Sequence[Choice]], roots: Sequence[int]) -> list[int]:
    """The e-classes below the roots, operands before results where the e-graph has no cycle."""
    order: dict[int, None] = {}
    seen: set[int] = set()
    stack = [(r, False) for r in reversed(roots)]
    while stack:
        cls, done = stack.pop()
        if done:
            order[cls] = None
        elif cls not in seen:
            seen.add(cls)
            stack.append((cls, True))
            stack += [(c, False) for o in reversed(options[cls]) for c in reversed(o.children) if c not in seen]
    return list(order)


def _strongly_connected(order: Sequence[int], options: Mapping[int, Sequence[_Option]]) -> list[tuple[list[int], bool]]:
    """The e-classes, those that need one another together, operands before results; and whether there is a cycle."""
    place: dict[int, int] = {}
    least: dict[int, int] = {}
    open_: dict[int, None] = {}
    found: list[tuple[list[int], bool]] = []
    rank = {cls: n for n, cls in enumerate(order)}
    for root in order:
        if root in place:
            continue
        path: list[tuple[int, Iterator[int]]] = []
        entered = [root]
        while entered or path:
            if entered:
                cls = entered.pop()
                place[cls] = least[cls] = len(place)
                open_[cls] = None
                path.append((cls, (c for o in options[cls] for c in o.children)))
            cls, children = path[-1]
            for child in children:
                if child not in place:
                    entered.append(child)
                    break
                if child in open_:
                    least[cls] = min(least[cls], place[child])
            else:
                path.pop()
                if path:
                    least[path[-1][0]] = min(least[path[-1][0]], least[cls])
                if least[cls] == place[cls]:
                    mine = [cls]
                    while (last := open_.popitem()[0]) != cls:
                        mine.append(last)
                    cycle = len(mine) > 1 or any(cls in o.children for o in options[cls])
                    found.append((sorted(mine, key=rank.__getitem__), cycle))
    return found


def forms(classes: EClasses, options: Mapping[int, Sequence[Choice]], weights: Weights, limit: int) -> Forms:
    """The forms of an e-graph, at most `limit`; see the module for what is kept when there are more.

    Args:
        classes: the saturated e-graph.
        options: from `extract.options`.
        weights: what an option costs.
        limit: how many forms are returned, and how many sub-forms an e-class may have for the list to be complete.
    """
    return next(distinct_forms(classes, options, (weights,), limit))


def distinct_forms(
    classes: EClasses, options: Mapping[int, Sequence[Choice]], weights: Iterable[Weights], limit: int
) -> Iterator[Forms]:
    """The forms at several shapes, as `forms` finds them; once for shapes that tell the same ones apart.

    Those are shapes at which all options are the same shares of the dearest one, in parts of 1 / SHARES: a batch that
    all work grows with makes no difference to which form takes less.
    """
    seen: set[tuple[int, ...]] = set()
    for at in weights:
        table = _Table(options, classes.roots, at)
        dearest = max(table.work, default=0) or 1
        shares = tuple([work * SHARES // dearest for work in table.work])
        if shares not in seen:
            seen.add(shares)
            yield _forms(table, limit)


def _forms(table: _Table, limit: int) -> Forms:
    every = _solve(table, limit, limit, None)
    complete = every is not None
    if every is not None:
        ordered = _in_turn(every)
    else:
        told = table.reducing()
        light = _skeletons(table, limit, told)
        least = min((e.work for e in light), default=0)
        heavier = table.reducing(HEAVY * least)
        heavy = light if heavier == told else _skeletons(table, limit, heavier)
        ordered = list({e.options: e for e in (*_in_turn(heavy), *_in_turn(light))}.values())
    found = tuple(Form(table.choices(e.options), e.work / GRAIN, e.depth) for e in ordered[:limit])
    return Forms(found, complete and len(ordered) <= limit, max(0, len(ordered) - limit))


def _skeletons(table: _Table, limit: int, told: frozenset[int], least: int = SKELETONS) -> list[_Entry]:
    """Forms of the outputs, the best of each skeleton, of some skeletons; at least so many are kept for an e-class."""
    width = max(limit, least)
    inner = width if len(table.order) <= MANY else least
    found = _solve(table, width, inner, told)
    while not found and inner < WIDEST:
        # Of what was kept for two operands of an output no two went together.
        inner *= 2
        found = _solve(table, max(width, inner), inner, told)
    assert found is not None, "only a list of all forms may be given up"
    return found


def shared_once(
    classes: EClasses, options: Mapping[int, Sequence[Choice]], weights: Weights, written: Mapping[int, Choice]
) -> dict[int, Choice] | None:
    """The form that computes what the model uses several times once, and each such value with the least work.

    Bottom-up, a value that is needed anyway counts for everything that uses it: the mean of a convolution's result
    looks dearer than one by other sums that do without the result, although that is computed all the same. Beyond the
    bound such sub-forms are lost. Here values that the model reduces for several users are taken as given once they are
    computed, in the model's order, and the outputs come last.

    Args:
        classes: the saturated e-graph.
        options: of each e-class.
        weights: what an option costs.
        written: the form as written, operands before results.

    Returns:
        the choices, operands before results; None where no value is shared.
    """
    users: Counter[int] = Counter(c for choice in written.values() for c in set(choice.children))
    reducing = {cls for cls, choice in written.items() if choice.op in REDUCING}
    for cls, choice in written.items():
        if not reducing.isdisjoint(choice.children):
            reducing.add(cls)
    shared = [cls for cls in written if users[cls] > 1 and cls in reducing and cls not in classes.roots]
    if not shared:
        return None
    made: dict[int, Choice] = {}
    given: dict[int, Sequence[Choice]] = {**options}
    priced: _Priced = {}
    for cls in dict.fromkeys((*shared, *classes.roots)):
        if cls in made:
            continue
        table = _Table(given, (cls,), weights, priced)
        best = min(_skeletons(table, 1, table.reducing(), SHARED), key=lambda e: e.by_work, default=None)
        if best is None:
            return None
        # What an earlier value was made of stays as it is: it needs nothing that comes later.
        choices = table.choices(best.options)
        made |= {c: choice for c, choice in choices.items() if choice.op != _GIVEN and c not in made}
        given[cls] = (Choice(_GIVEN, None, ()),)
        priced.pop(cls)
    return made


def one_pass(
    options: Mapping[int, Sequence[Choice]], choices: Mapping[int, Choice], roots: Sequence[int]
) -> dict[int, Choice]:
    """The form with each sum under exponentials that are shifted by their maximum in the pass that finds the maximum.

    Places of extremes are found with them. A sum under exponentials that are shifted by the maximum of a row, of which
    it is over a part, is one in the pass over that part, times a factor.

    Where something else needs the exponentials, too, they are computed again in that pass, so by work alone such a form
    looks dearer: but who needs them is another kernel where the sum is stored. Sums of what waits for another reduction
    over their axis stay as they are.

    Returns:
        the choices, operands before results.
    """
    over: dict[int, frozenset[Axis]] = {}
    made = dict(choices)
    exponents: set[tuple[int, ...]] = set()
    for cls in below(choices, roots):
        choice = choices[cls]
        mine = [o for o in options.get(cls, ()) if o.op in ONE_PASS and choice.reduced and choice.reduced <= o.reduced]
        ready = [o for o in mine if all(k in over and not o.reduced & over[k] for k in o.children)]
        if ready and choice.op in ("sum", "contract", "min"):
            # Those with one exponent share their exponentials, and the maximum.
            made[cls] = next((o for o in ready if o.children[:2] in exponents), ready[0])
        elif choice.op in ("sum", "contract"):
            for new, o in _scaled(options, cls, choice.reduced, over).items():
                made[new] = o
                over[new] = o.reduced.union(*(over[k] for k in o.children))
                if o.op == "rescaled":
                    exponents.add(o.children[:2])
        over.setdefault(cls, choice.reduced.union(*(over[k] for k in choice.children)))
        if made[cls].op == "rescaled":
            exponents.add(made[cls].children[:2])
    return {cls: made[cls] for cls in below(made, roots)}


def _scaled(
    options: Mapping[int, Sequence[Choice]], cls: int, reduced: frozenset[Axis], over: Mapping[int, frozenset[Axis]]
) -> dict[int, Choice]:
    """Choices, operands first, by which a sum is a rescaled one times what is computed of e-classes that are there."""
    for product in options[cls]:
        if product.op != "mul":
            continue
        for factor, total in (product.children, product.children[::-1]):
            for o in options[total]:
                if o.op != "rescaled" or not reduced <= o.reduced:
                    continue
                if all(k in over and not o.reduced & over[k] for k in o.children):
                    factors = _pointwise(options, factor, over)
                    if factors is not None and cls not in factors:
                        return {**factors, total: o, cls: product}
                    break
    return {}


def _pointwise(
    options: Mapping[int, Sequence[Choice]], cls: int, given: Collection[int], depth: int = 3
) -> dict[int, Choice] | None:
    """Choices, operands first, by which an e-class is pointwise of what is given; None where it is not in few steps."""
    if cls in given:
        return {}
    for o in options[cls] if depth else ():
        operands = [] if o.op in REDUCING else [_pointwise(options, c, given, depth - 1) for c in o.children]
        if o.op in REDUCING or any(x is None or cls in x for x in operands):
            continue
        # Of two ways to compute an e-class the first: what that is made of comes before it.
        found: dict[int, Choice] = {}
        for c, made in (pair for x in operands if x for pair in x.items()):
            found.setdefault(c, made)
        return {**found, cls: o}
    return None


def _solve(table: _Table, limit: int, inner: int, told: frozenset[int] | None) -> list[_Entry] | None:
    """The forms of the roots, the best one for each set of those options that are told apart.

    Where none are named, all are, and the answer is None when an e-class has more than `limit`.
    """
    every = told is None
    bits = {n: 1 << place for place, n in enumerate(range(len(table.work)) if told is None else sorted(told))}
    entries: dict[int, list[_Entry]] = {c: [] for c in table.order}
    for group, cycle in table.groups:
        due, users = set(group), _users(table, group) if cycle else {}
        for _ in range(ROUNDS if cycle else 1):
            for cls in group:
                if cls not in due:
                    continue
                due.discard(cls)
                found = _of_class(table, cls, entries, bits, inner, every, cycle)
                if every and len(found) > inner:
                    return None
                mine = sorted(found, key=_BY_WORK)
                if len(mine) > inner:
                    mine = _taking_turns(mine)[:inner]
                if cycle and [e.options for e in mine] != [e.options for e in entries[cls]]:
                    due |= users.get(cls, set())
                entries[cls] = mine
            if not due:
                break
    whole = [_EMPTY]
    for root in table.roots:
        combined = _combined(table, whole, entries[root])
        if len(combined) > limit:
            if every:
                return None
            combined = _in_turn(combined)[:limit]
        whole = combined
    return whole


def _users(table: _Table, group: Sequence[int]) -> dict[int, set[int]]:
    """For each e-class, those of the group that have it as an operand."""
    found: dict[int, set[int]] = {}
    for c in group:
        for operand in {k for o in table.options[c] for k in o.children}:
            found.setdefault(operand, set()).add(c)
    return found


def _of_class(
    table: _Table,
    cls: int,
    entries: Mapping[int, list[_Entry]],
    bits: Mapping[int, int],
    limit: int,
    every: bool,
    cycle: bool,
) -> list[_Entry]:
    """The sub-forms of one e-class, from those of its operands; more than `limit` where all are wanted and left."""
    if cls in table.leaves:
        return [_LEAF]
    found = _Found(math.inf if every else limit)
    own = sum(1 << o.number for o in table.options[cls]) if cycle else 0
    due: list[tuple[int, int, _Option, list[list[_Entry]]]] = []
    for n, option in enumerate(table.options[cls]):
        operands = [entries[c] for c in option.children]
        if cycle:
            operands = [[e for e in each if not own & e.options] for each in operands]
        if all(operands):
            # Sub-forms are in the order of their work, or begin with the least.
            due.append((max((each[0].work for each in operands), default=0) + option.work, n, option, operands))
    # The most promising first: what cannot be as good is told from its operands alone.
    for _, _, option, operands in sorted(due):
        below = [_EMPTY]
        for each in operands[:-1]:
            below = _combined(table, below, each, math.inf if every else limit * 2)
            if every and len(below) > limit:
                return below
        _join(table, below, operands[-1] if operands else [_EMPTY], found, (cls, option, bits.get(option.number, 0)))
        if every and len(found.best) > limit:
            break
    return list(found.best.values())


def _combined(table: _Table, left: list[_Entry], right: list[_Entry], limit: float = math.inf) -> list[_Entry]:
    """Every union of a sub-form of the one and one of the other that choose alike where they meet, or so many."""
    if len(left) == 1 and left[0] is _EMPTY:
        return right
    found = _Found(limit)
    _join(table, left, right, found, None)
    mine = list(found.best.values())
    return mine if len(mine) <= limit else _in_turn(mine)[: int(limit)]


@dataclass(slots=True)
class _Found:
    """The best sub-form of each skeleton, of those that may be among the first so many in either order."""

    limit: float  # how many are wanted, by least work and by fewest reductions one after another in turn
    best: dict[int, _Entry] = field(default_factory=dict)  # by skeleton
    work: float = math.inf  # what has more work is behind so many by work,
    depth: tuple[float, float] = (math.inf, math.inf)  # and what comes after this is behind so many by depth
    _full: float = field(init=False)

    def __post_init__(self) -> None:
        self._full = self.limit + max(self.limit, ROOM)

    def add(self, skeleton: int, entry: _Entry) -> None:
        """Put the sub-form in the place of that skeleton's."""
        self.best[skeleton] = entry
        if len(self.best) > self._full:
            last = int(self.limit) - 1
            self.work = sorted(e.work for e in self.best.values())[last]
            self.depth = sorted((e.depth, e.work) for e in self.best.values())[last]
            self.best = {s: e for s, e in self.best.items() if e.work <= self.work or (e.depth, e.work) <= self.depth}
            self._full = len(self.best) + max(self.limit, ROOM)


def _join(
    table: _Table,
    left: list[_Entry],
    right: list[_Entry],
    found: _Found,
    result: tuple[int, _Option, int] | None,
) -> None:
    """Put the unions into `found`, with the option that they are the operands of.

    Args:
        table: the options.
        left: sub-forms of one operand, or of several.
        right: those of the last one.
        found: where they are put.
        result: the e-class and its option, with its part of the skeleton.
    """
    own = own_skeleton = step = longer = named = 0
    if result is not None:
        _, option, own_skeleton = result
        own, step, longer, named = option.work, option.step, 1, 1 << option.number
    together = table.together
    bits: tuple[int, int] | None = None
    # Most of millions of pairs do not go together; those that do are found once for all that choose alike at e-classes
    # that both sides have.
    against = 0
    for b in right:
        against |= b.against
    going: dict[int, list[_Entry]] = {0: right}
    for a in left:
        skeleton_a, work_a, depth_a, length_a = a.skeleton | own_skeleton, a.work + own, a.depth, a.length
        options_a, chosen_a, against_a = a.options, a.chosen, a.against
        met = chosen_a & against
        beside = going.get(met)
        if beside is None:
            beside = going[met] = [b for b in right if not met & b.against]
        for b in beside:
            least = work_a if work_a > b.work + own else b.work + own
            depth = (depth_a if depth_a > b.depth else b.depth) + step
            if least > found.work and (depth, least) > found.depth:
                continue
            length = (length_a if length_a > b.length else b.length) + longer
            skeleton = skeleton_a | b.skeleton
            known = found.best.get(skeleton)
            if known is not None and (
                known.work < least or (known.work == least and (known.depth, known.length) < (depth, length))
            ):
                continue
            both = options_a & b.options
            shared = together.get(both)
            work = work_a + b.work - (table.work_of(both) if shared is None else shared)
            if work > found.work and (depth, work) > found.depth:
                continue
            if known is not None and (known.work, known.depth, known.length) < (work, depth, length):
                continue
            if bits is None:
                bits = (0, 0) if result is None else table.bits(*result[:2])
            made = _Entry(
                options_a | b.options | named,
                chosen_a | b.chosen | bits[0],
                against_a | b.against | bits[1],
                skeleton,
                work,
                depth,
                length,
            )
            if known is None or made.by_work < known.by_work:
                found.add(skeleton, made)


_BY_WORK = operator.attrgetter("by_work")
_BY_DEPTH = operator.attrgetter("by_depth")


def _in_turn(found: Sequence[_Entry]) -> list[_Entry]:
    """The entries, by least work and by fewest reductions one after another in turn, each once."""
    return _taking_turns(sorted(found, key=_BY_WORK))


def _taking_turns(by_work: Sequence[_Entry]) -> list[_Entry]:
    """The same of entries that are in the order of least work."""
    order: dict[int, _Entry] = {}
    for a, b in zip(by_work, sorted(by_work, key=_BY_DEPTH), strict=True):
        order.setdefault(id(a), a)
        order.setdefault(id(b), b)
    return list(order.values())


# The e-graph carries constants to 40 bits.
SAME = 2.0**-38


def written(
    classes: EClasses, exprs: Sequence[Expr], options: Mapping[int, Sequence[Choice]]
) -> dict[int, Choice] | None:
    """The form as written: every value computed by the operator that the model has for it, over the same operands.

    Its choices, operands before results; None where the e-graph does not hold it. What rounds badly is often what looks
    fastest, in all its variants: what the model itself computes, in its own order of operations, rounds as the model
    does. So the generator keeps a place for it whatever its bounds leave out. Of two operators that came to be one
    e-class the first, operands before results, computes it. What the model computes along an axis, and the rules
    without it, is computed as the rules do: whether a share of a softmax is undefined is known of a row as a whole.
    Where the model multiplies by 0, as by imaginary parts of real numbers, the e-graph may hold no more than what is
    left.

    Args:
        classes: the saturated e-graph.
        exprs: the outputs, as `classes.roots` hold them.
        options: of each e-class; of operands in either order the one that is there is taken.
    """
    found = _written(classes, exprs, options)
    return found or _written(classes, rebuilt(exprs, _without_zeros), options)


def _without_zeros(e: Expr) -> Expr:
    """What is left of an expression whose operands were done, of products with 0."""
    match e:
        case Map("mul", (Const(0), _) | (_, Const(0))) | Reduce(ReduceKind.SUM, _, Const(0)):
            return Const(0.0)
        case Map("add", (Const(0), other) | (other, Const(0))):
            return other
    return e


def _written(
    classes: EClasses, exprs: Sequence[Expr], options: Mapping[int, Sequence[Choice]]
) -> dict[int, Choice] | None:
    reading = _Reading(classes, options)
    for e in exprs:
        for part in walk(e):
            if id(part) not in reading.found and not reading.take(part):
                return None
    if tuple(reading.found[id(e)] for e in exprs) != tuple(classes.roots):
        return None
    reachable = _reachable(reading.made, classes.roots)
    return {cls: _offered(choice, options.get(cls, ())) for cls, choice in reachable.items()}


@dataclass(slots=True)
class _Reading:
    """Finds expressions among e-nodes, bottom up."""

    classes: EClasses  # the saturated e-graph
    options: Mapping[int, Sequence[Choice]]  # of each e-class
    found: dict[int, int] = field(default_factory=dict)  # an expression's e-class, by its identity
    made: dict[int, Choice] = field(default_factory=dict)  # the choices so far
    _table: dict[Key, int] = field(default_factory=dict)
    _numbers: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cls, nodes in self.classes.nodes.items():
            for n in nodes:
                if isinstance(n.payload, Const):
                    self._numbers[cls] = n.payload.value
                else:
                    self._table.setdefault((n.op, n.payload, n.children), cls)
        self._table |= self.classes.along

    def take(self, e: Expr) -> bool:
        """Whether the e-graph holds the expression, whose operands have been taken."""
        kids = tuple([self.found[id(c)] for c in e.children])
        cls = self._class(e, kids)
        if cls is None:
            return False
        self.found[id(e)] = cls
        if cls not in self.made:
            choice = self._choice(e, cls, kids)
            if choice is None:
                return False
            self.made[cls] = choice
        return True

    def _class(self, e: Expr, kids: tuple[int, ...]) -> int | None:
        match e:
            case Const(value):
                return self._number(value)
            case Read() | Position() | Size():
                op = {Read: "read", Position: "position", Size: "size"}[type(e)]
                return self._table.get((op, e, ()))
            case Map("neg", _):
                minus = self._number(-1.0)
                return None if minus is None else self._of("mul", (minus, *kids))
            case Map(op, _):
                return self._of(op, kids)
            case Reduce(kind, axis, _):
                return self._table.get((kind.value, axis, kids))
        return None

    def _number(self, value: float) -> int | None:
        for cls, known in self._numbers.items():
            if known == value or abs(known - value) <= SAME * abs(value):
                return cls
        return None

    def _of(self, op: str, kids: tuple[int, ...]) -> int | None:
        cls = self._table.get((op, None, kids))
        if cls is not None:
            return cls
        # Numbers are folded, and what a product with 1, or a sum with 0, is stands for it.
        if all(k in self._numbers for k in kids):
            with np.errstate(all="ignore"):
                return self._number(float(NumpyArrays().pointwise(op, [self._numbers[k] for k in kids])))
        neutral = {"mul": 1.0, "add": 0.0}.get(op)
        for this, other in (kids, kids[::-1]) if len(kids) == 2 else ():
            if neutral is not None and self._numbers.get(other) == neutral:
                return this
        return None

    def _choice(self, e: Expr, cls: int, kids: tuple[int, ...]) -> Choice | None:
        match e:
            case Const():
                return Choice("const", Const(self._numbers[cls]), ())
            case Read() | Position() | Size():
                return Choice({Read: "read", Position: "position", Size: "size"}[type(e)], e, ())
            case Reduce(kind, axis, _):
                if axis not in self.classes.axes[kids[0]] or (kind.value, axis, kids) in self.classes.along:
                    return self._ready(cls)
                for fetched in self.options.get(cls, ()):
                    if fetched.op == "gather" and all(k in self.made for k in fetched.children):
                        return fetched
                inner = self.made[kids[0]]
                if kind is ReduceKind.SUM and inner.op == "mul":
                    a, b = sorted(inner.children)
                    if axis in self.classes.axes[a] and axis in self.classes.axes[b]:
                        return Choice("contract", axis, (a, b))
                return Choice(kind.value, axis, kids)
            case Map(op, _):
                if cls in self._numbers:
                    return Choice("const", Const(self._numbers[cls]), ())
                if op == "neg":
                    minus = self._number(-1.0)
                    assert minus is not None
                    self.made.setdefault(minus, Choice("const", Const(-1.0), ()))
                    op, kids = "mul", (minus, *kids)
                return self._ready(cls) if (op, None, kids) in self.classes.along else Choice(op, None, kids)
        return None

    def _ready(self, cls: int) -> Choice | None:
        """What the rules compute without an axis that the model has it along, of values that are known."""
        return self.made[cls] if self._is_ready(cls, set()) else None

    def _is_ready(self, cls: int, tried: set[int]) -> bool:
        if cls in self.made:
            return True
        if cls in tried:
            return False
        tried.add(cls)
        for n in self.classes.nodes[cls]:
            reduces = n.op in (kind.value for kind in ReduceKind)
            if not (n.domain or reduces) and all(self._is_ready(k, tried) for k in n.children):
                self.made[cls] = Choice(n.op, n.payload, n.children)
                return True
        return False


def _offered(choice: Choice, options: Sequence[Choice]) -> Choice:
    """The option that is the choice, its operands in either order."""
    commutes = choice.op in COMMUTATIVE or choice.op == "contract"
    for o in options:
        alike = sorted(o.children) == sorted(choice.children) if commutes else o.children == choice.children
        if (o.op, o.payload) == (choice.op, choice.payload) and alike:
            return o
    return choice


def _reachable(made: Mapping[int, Choice], roots: Sequence[int]) -> dict[int, Choice]:
    """The choices that the roots need, operands before results."""
    reached: set[int] = set()
    stack = list(roots)
    while stack:
        cls = stack.pop()
        if cls not in reached:
            reached.add(cls)
            stack += made[cls].children
    return {cls: choice for cls, choice in made.items() if cls in reached}
