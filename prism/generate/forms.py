"""Forms: one option for every e-class that the outputs need; what is shared in the e-graph is shared in the form.

Forms are found bottom-up. Each e-class keeps the sub-forms that compute it, as sets of options; an option's are the
unions of its operands' (two that choose differently for one e-class do not go together, nor one that holds the e-class
itself), and rounds are repeated until nothing changes. While no e-class has more sub-forms than the bound, that lists
*every* form of the e-graph, and the search over it is complete.

Beyond the bound, forms are told apart by their *skeleton* only: which reductions are computed, each by which option.
What is pointwise between two reductions costs little and comes in many orders of association; per skeleton the sub-form
with the least work is kept, and per e-class a number of skeletons, those with the least work and those with the fewest
reductions one after another in turn. Reductions that take less than HEAVY of the work are not told apart at first, so
that the ways to compute what costs come before the ways to compute what does not.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from prism.generate.options import REDUCING, Choice, Weights, below
from prism.program.classes import EClasses

SKELETONS = 6
"""Beyond the bound, so many skeletons are kept for an e-class at least; of few e-classes as many as forms wanted."""
WIDEST = 32
"""As many are kept at most where no form comes of fewer."""
MANY = 2000
"""Of so many e-classes no more than SKELETONS are kept for one that is no output: pairs of them take the time."""
ROUNDS = 16
HEAVY = 0.01
_GIVEN = "given"


@dataclass(frozen=True, slots=True)
class Form:
    """How the outputs are computed.

    Attributes:
        choices: the option of every e-class that the outputs need.
        work: see Weights; each value counted once.
        depth: reductions one after another.
    """

    choices: Mapping[int, Choice]
    work: float
    depth: int


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms of an e-graph.

    Attributes:
        found: best first: the least work and the fewest reductions one after another in turn.
        complete: whether these are all.
        left_out: how many more were found.
    """

    found: tuple[Form, ...]
    complete: bool
    left_out: int


class _Entry(NamedTuple):
    """A sub-form as bits: of its options, and of the e-classes that they are options of.

    Millions are made: a tuple takes a third of the time of a frozen dataclass.
    """

    options: int
    classes: int
    work: float
    depth: int
    length: int

    @property
    def by_work(self) -> tuple[float, int, int, int]:
        """The order by least work; of equals, the one with the shortest chain of operators adds what is ready first."""
        return self.work, self.depth, self.length, self.options

    @property
    def by_depth(self) -> tuple[int, float, int, int]:
        """The order by fewest reductions one after another."""
        return self.depth, self.work, self.length, self.options


_Made: TypeAlias = "tuple[Sequence[list[_Entry]], list[_Entry]]"
"""What an option's operands were, and the sub-forms that it made of them."""


class _Table:
    """The options of the e-classes below the roots, numbered."""

    def __init__(
        self, classes: EClasses, options: Mapping[int, Sequence[Choice]], roots: Sequence[int], weights: Weights
    ) -> None:
        self.options = options
        self.roots = roots
        self.order = _bottom_up(options, roots)
        self.bit: dict[tuple[int, int], int] = {}
        self.work: list[float] = []
        self.reducing = 0
        self.class_bit = {c: 1 << n for n, c in enumerate(self.order)}
        self.users: dict[int, set[int]] = {c: set() for c in self.order}
        for cls in self.order:
            for child in {k for choice in options[cls] for k in choice.children}:
                self.users[child].add(cls)
        self.meaning: list[tuple[int, Choice]] = []
        self._known: dict[int, float] = {}
        # Sets differ in few of their words.
        self._parts: dict[tuple[int, int], float] = {}
        for cls in self.order:
            for n, choice in enumerate(options[cls]):
                place = len(self.work)
                self.bit[cls, n] = 1 << place
                self.work.append(weights.work(cls, choice))
                self.meaning.append((cls, choice))
                if choice.op in REDUCING:
                    self.reducing |= 1 << place

    def heavier(self, work: float) -> int:
        """The reducing options with at least so much work."""
        return sum(1 << n for n, w in enumerate(self.work) if w >= work and self.reducing >> n & 1)

    def work_of(self, options: int) -> float:
        """The work of a set of options."""
        total = self._known.get(options)
        if total is None:
            total = 0.0
            for n, word in enumerate(_words(options)):
                if word:
                    part = self._parts.get((n, word))
                    if part is None:
                        part = sum(self.work[64 * n + bit] for bit in _bits(word))
                        self._parts[n, word] = part
                    total += part
            self._known[options] = total
        return total

    def choices(self, options: int) -> dict[int, Choice]:
        """The set as a mapping, operands before results."""
        found: dict[int, Choice] = {}
        for bit in _bits(options):
            cls, choice = self.meaning[bit]
            found[cls] = choice
        return found


def _bits(options: int) -> Iterator[int]:
    """The elements of a set of options, ascending; in linear time, which taking the lowest bit off the whole is not."""
    for n, word in enumerate(_words(options)):
        while word:
            lowest = word & -word
            yield 64 * n + lowest.bit_length() - 1
            word ^= lowest


def _words(options: int) -> tuple[int, ...]:
    """64 elements each, the lowest first."""
    words = (options.bit_length() + 63) // 64
    return struct.unpack(f"<{words}Q", options.to_bytes(8 * words, "little"))


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


def forms(classes: EClasses, options: Mapping[int, Sequence[Choice]], weights: Weights, limit: int) -> Forms:
    """The forms of an e-graph, at most `limit`; see the module for what is kept when there are more.

    Args:
        classes: the saturated e-graph.
        options: from `extract.options`.
        weights: what an option costs.
        limit: how many forms are returned, and how many sub-forms an e-class may have for the list to be complete.
    """
    table = _Table(classes, options, classes.roots, weights)
    every = _solve(table, table.roots, limit, limit, None)
    complete = every is not None
    if every is not None:
        ordered = _in_turn(every)
    else:
        light = _skeletons(table, limit)
        least = min((e.work for e in light), default=0.0)
        heavier = table.heavier(HEAVY * least)
        heavy = light if heavier == table.reducing else _skeletons(table, limit, heavier)
        ordered = list({e.options: e for e in (*_in_turn(heavy), *_in_turn(light))}.values())
    found = tuple(Form(table.choices(e.options), e.work, e.depth) for e in ordered[:limit])
    return Forms(found, complete and len(ordered) <= limit, max(0, len(ordered) - limit))


def _skeletons(table: _Table, limit: int, key: int | None = None) -> list[_Entry]:
    """Forms of the outputs, the best of each skeleton, of some skeletons.

    Args:
        table: the options.
        limit: how many are wanted.
        key: the reductions that skeletons are told apart by; all by default.
    """
    told = table.reducing if key is None else key
    width = max(limit, SKELETONS)
    inner = width if len(table.order) <= MANY else SKELETONS
    found = _solve(table, table.roots, width, inner, told)
    while not found and inner < WIDEST:
        # Of what was kept for two operands of an output no two went together.
        inner *= 2
        found = _solve(table, table.roots, max(width, inner), inner, told)
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
    for cls in dict.fromkeys((*shared, *classes.roots)):
        if cls in made:
            continue
        table = _Table(classes, given, (cls,), weights)
        best = min(_skeletons(table, 1), key=lambda e: e.by_work, default=None)
        if best is None:
            return None
        # What an earlier value was made of stays as it is: it needs nothing that comes later.
        choices = table.choices(best.options)
        made |= {c: choice for c, choice in choices.items() if choice.op != _GIVEN and c not in made}
        given[cls] = (Choice(_GIVEN, None, ()),)
    return made


def one_pass(
    options: Mapping[int, Sequence[Choice]], choices: Mapping[int, Choice], roots: Sequence[int]
) -> dict[int, Choice]:
    """The form with each sum under exponentials that are shifted by their maximum in the pass that finds the maximum.

    Where something else needs the exponentials, too, they are computed again in that pass, so by work alone such a form
    looks dearer: but who needs them is another kernel where the sum is stored. Sums of what waits for another reduction
    over their axis stay as they are.

    Args:
        options: of each e-class.
        choices: the form.
        roots: the outputs.

    Returns:
        the choices, operands before results.
    """
    over: dict[int, frozenset[object]] = {}
    made = dict(choices)
    exponents: set[tuple[int, ...]] = set()
    for cls in below(choices, roots):
        choice = choices[cls]
        own = {choice.payload} if choice.op in REDUCING else set()
        over[cls] = frozenset(own).union(*(over[k] for k in choice.children))
        mine = [o for o in options.get(cls, ()) if o.op == "rescaled" and o.payload == choice.payload]
        ready = [o for o in mine if all(k in over and o.payload not in over[k] for k in o.children)]
        if ready and choice.op in ("sum", "contract"):
            # Those with one exponent share their exponentials, and the maximum.
            made[cls] = next((o for o in ready if o.children[:2] in exponents), ready[0])
        if made[cls].op == "rescaled":
            exponents.add(made[cls].children[:2])
    return {cls: made[cls] for cls in below(made, roots)}


def _solve(table: _Table, roots: Sequence[int], limit: int, inner: int, key: int | None) -> list[_Entry] | None:
    """The forms of the roots, one for each set of those options that `key` holds, as bits.

    Without a key all forms are told apart; the answer is None when an e-class has more than `limit`.
    """
    entries: dict[int, list[_Entry]] = {c: [] for c in table.order}
    made: dict[tuple[int, int], _Made] = {}
    due = set(table.order)
    for _ in range(ROUNDS):
        if not due:
            break
        for cls in table.order:
            if cls not in due:
                continue
            due.discard(cls)
            mine = _of_class(table, cls, entries, made, inner, key)
            if mine is None:
                return None
            if mine != entries[cls]:
                entries[cls] = mine
                due |= table.users[cls]
    whole = [_Entry(0, 0, 0.0, 0, 0)]
    for root in roots:
        combined = _combined(table, whole, entries[root], key)
        if len(combined) > limit:
            if key is None:
                return None
            combined = _in_turn(combined)[:limit]
        whole = combined
    return whole


def _of_class(
    table: _Table,
    cls: int,
    entries: Mapping[int, list[_Entry]],
    made: dict[tuple[int, int], _Made],
    limit: int,
    key: int | None,
) -> list[_Entry] | None:
    """The sub-forms of one e-class, from those of its operands."""
    found: dict[int, _Entry] = {}
    for n, choice in enumerate(table.options[cls]):
        operands = [entries[c] for c in dict.fromkeys(choice.children)]
        known = made.get((cls, n))
        # In a cycle an e-class is due whenever one of its operands changed; options that have others stay.
        if known is None or any(a is not b for a, b in zip(known[0], operands, strict=True)):
            by = _of_option(table, cls, n, operands, limit, key)
            if by is None:
                return None
            made[cls, n] = known = operands, by
        for e in known[1]:
            _better(found, e, e.options if key is None else e.options & key)
        if key is None and len(found) > limit:
            return None
    ordered = sorted(found.values(), key=lambda e: e.by_work)
    return _in_turn(ordered)[:limit] if key is not None and len(ordered) > limit else ordered


def _of_option(
    table: _Table, cls: int, n: int, operands: Sequence[list[_Entry]], limit: int, key: int | None
) -> list[_Entry] | None:
    """The sub-forms of one e-class that begin with its nth option."""
    mine, bit = table.class_bit[cls], table.bit[cls, n]
    below: list[_Entry] | None = None
    for each in operands:
        usable = [e for e in each if not e.classes & mine]
        below = usable if below is None else _combined(table, below, usable, key)
        if key is None and len(below) > limit:
            return None
        if key is not None and len(below) > limit * 2:
            below = _in_turn(below)[: limit * 2]
    work = table.work_of(bit)
    step = 1 if table.options[cls][n].op in REDUCING else 0
    return [
        _Entry(e.options | bit, e.classes | mine, e.work + work, e.depth + step, e.length + 1)
        for e in (below if below is not None else [_Entry(0, 0, 0.0, 0, 0)])
    ]


def _combined(table: _Table, left: list[_Entry], right: list[_Entry], key: int | None) -> list[_Entry]:
    """Every union of a sub-form of the one and one of the other that choose alike where they meet."""
    found: dict[int, _Entry] = {}
    # Millions of pairs: entries are taken apart once, and what two have in common is among few sets.
    for options_a, classes_a, work_a, depth_a, length_a in left:
        for options_b, classes_b, work_b, depth_b, length_b in right:
            both = options_a & options_b
            if both.bit_count() != (classes_a & classes_b).bit_count():
                continue
            options = options_a | options_b
            mine = options if key is None else options & key
            work = work_a + (work_b - table.work_of(both) if both else work_b)
            known = found.get(mine)
            if known is not None and known.work < work:
                continue
            made = _Entry(options, classes_a | classes_b, work, max(depth_a, depth_b), max(length_a, length_b))
            _better(found, made, mine)
    return list(found.values())


def _better(found: dict[int, _Entry], made: _Entry, key: int) -> None:
    known = found.get(key)
    if known is None or made.by_work < known.by_work:
        found[key] = made


def _in_turn(found: Sequence[_Entry]) -> list[_Entry]:
    """The entries, by least work and by fewest reductions one after another in turn, each once."""
    by_work = sorted(found, key=lambda e: e.by_work)
    by_depth = sorted(found, key=lambda e: e.by_depth)
    order: dict[int, _Entry] = {}
    for a, b in zip(by_work, by_depth, strict=True):
        order.setdefault(a.options, a)
        order.setdefault(b.options, b)
    return list(order.values())
