"""What the worker process does: saturate a reference, and ask of candidates whether they equal it.

Most of what the generator makes is in the saturated reference as it is written. Where it is not, the reference is
*widened* once, by a round of the rules that are kept from the generator, which writes what rescaled partial results are
combined from. Looking a candidate up changes nothing. What is not found is inserted beside the reference for a few
rounds; and if those do not join the two, beside the reference's terms alone, with all rules: there the rules that would
blow up a saturated e-graph (exponentials apart, products over sums) have little to work on. Where the reference's own
e-graph was stopped for its size, a round beside it grows the reference and not what the candidate needs: its terms come
first there, and what they prove without an assumption is proved.

Every candidate is forgotten before the next: a verdict depends on the reference and the candidate alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from prism.egraph.bindings import bindings
from prism.egraph.language import ASSUME, DISTRIBUTE, EXPAND, EXPLORE, NO_FACTS, SIMPLIFY, Budget, TensorFacts
from prism.egraph.rules import RuleSet, install
from prism.egraph.saturate import FULL, OVERSTEP, Contradiction, Saturation, in_common
from prism.egraph.terms import SPAN, Leaves, Table
from prism.errors import WorkerError
from prism.program.classes import EClasses
from prism.program.nodes import Expr
from prism.program.sign_analysis import kept, masked
from prism.program.transform import Interned
from prism.program.verdict import Status, Verdict

# How a saturated reference is widened, and up to how many e-nodes.
WIDEN = (DISTRIBUTE, EXPLORE)
WIDEN_ENODES = 3000

# The rounds beside it, and how many e-nodes a candidate may add there.
BESIDE = (EXPLORE, DISTRIBUTE, EXPLORE)
BESIDE_ENODES = 2000

# One round beside the reference's terms: cheap rules settle before each expensive one, and what makes a proof rest on
# an assumption comes last.
APART = (EXPLORE, DISTRIBUTE, EXPLORE, EXPAND, EXPLORE, ASSUME)
APART_BUDGET = Budget(enodes=5000, iterations=10)

SATURATED = "one e-class with the saturated reference"

# References that stay at hand, e-graphs that are made ahead of their use, and those that are kept to serve again.
KEPT = 8
SPARE = 1
AGAIN = 2

# To saturate so many e-nodes takes less than to make an e-graph for others.
SMALL = 400

# Expressions that are remembered; past this they are forgotten between two references.
INTERNED = 500_000


@dataclass(slots=True)
class _Reference:
    """What candidates are proved against."""

    formulas: tuple[Expr, ...]  # as they were given
    saturated: Saturation  # an e-graph of them that was explored; `roots` are the formulas in it
    roots: list[str]
    stopped: str  # why that stopped
    facts: TensorFacts = field(default_factory=dict)  # what is known of tensors, see `Leaves`
    # Its e-nodes with the e-classes of the formulas and the rules that matched, as it is and widened.
    tables: list[tuple[Table, list[Any], frozenset[str]]] = field(default_factory=list)
    wide: bool = False  # whether the table of the widened one was made, as far as it may be
    classes: EClasses | None = None  # what the generator gets
    terms: Saturation | None = None  # an e-graph of the formulas alone; `left` are the formulas in it
    left: list[str] = field(default_factory=list)
    # What a proof by one-sided rules assumes of the formulas' masks, once it was asked for.
    kept: list[str] | None = None
    passing: bool = False  # whether it is small, and was asked for once: others may have its e-graph

    def assumed(self) -> list[str]:
        """That the masks keep an element of every row, where that is not known."""
        if self.kept is None:
            self.kept = [kept(e) for e in masked(self.formulas)]
        return self.kept

    def look(self, graph: Saturation, table: Table) -> None:
        """Remember the table of the e-graph as it is now."""
        self.tables.append((table, [graph.e_class(name) for name in self.roots], frozenset(graph.matched)))

    def widen(self) -> None:
        """Apply the rules that the generator does not see, to a copy: what is inserted later meets the smaller one."""
        self.wide = True
        if self.saturated.enodes() > WIDEN_ENODES:
            return
        with self.saturated.aside() as graph, suppress(Contradiction):
            for ruleset in WIDEN:
                graph.step(ruleset)
            self.look(graph, graph.table())

    def holds(self, candidate: Sequence[Expr]) -> frozenset[str] | None:
        """The rules that had matched in the first table that the candidate was found in; None if it was in none."""
        for table, classes, matched in self.tables:
            if all(table.find(e) == cls for e, cls in zip(candidate, classes, strict=True)):
                return matched
        return None


@dataclass(slots=True)
class Engine:
    """Holds the e-graphs. Bound to the thread that made it."""

    rules: RuleSet  # what is loaded
    _current: _Reference | None = None
    _kept: dict[tuple[object, ...], _Reference] = field(default_factory=dict)
    # Of those the ones that were there before another program was explored: the first to make room.
    _past: list[tuple[object, ...]] = field(default_factory=list)
    _met: set[tuple[object, ...]] = field(default_factory=set)  # what was asked for
    _spare: list[bindings.EGraph] = field(default_factory=list)
    _interned: Interned = field(default_factory=Interned)
    _serials: Iterator[int] = field(default_factory=itertools.count)

    def prepare(self, spare: int = SPARE) -> bool:
        """Make one e-graph ahead of its use, as long as fewer than `spare` are at hand; whether one was made."""
        if self._past or len(self._spare) >= spare or any(r.passing for r in self._kept.values()):
            return False
        self._spare.append(self._install())
        return True

    def _install(self) -> bindings.EGraph:
        graph = install(self.rules)
        assert isinstance(graph, bindings.EGraph)
        graph.run_program(bindings.Push(1))
        return graph

    def _drop(self, reference: _Reference) -> None:
        """Its e-graphs serve again, with the rules alone in them: to install those takes 20 times as long."""
        for held in (reference.saturated, reference.terms):
            if held is not None and len(self._spare) < AGAIN:
                held.graph.run_program(bindings.Pop(SPAN, 1), bindings.Push(1))
                self._spare.append(held.graph)

    def _fresh(self, facts: TensorFacts) -> Saturation:
        while self._past and not self._spare:
            self._drop(self._kept.pop(self._past.pop(0)))
        passing = [key for key, r in self._kept.items() if r.passing and r is not self._current]
        if passing and not self._spare:
            self._drop(self._kept.pop(passing[0]))
        graph = self._spare.pop() if self._spare else self._install()
        return Saturation(graph, Leaves(facts=facts), serials=self._serials)

    def explore(
        self, reference: Sequence[Expr], budget: Budget, facts: TensorFacts = NO_FACTS, beside: bool = False
    ) -> EClasses:
        """Saturate the reference, keep it, and return it as data; one of the last few is at hand still.

        What comes `beside` others is no new program: those do not make room for it first.
        """
        known = self._hold(reference, budget, facts, anew=not beside)
        if known.classes is None:
            known.classes = known.saturated.decode(known.roots, known.stopped)
        return known.classes

    def refer(self, reference: Sequence[Expr], budget: Budget, facts: TensorFacts = NO_FACTS) -> None:
        """Saturate the reference and keep it, as `explore` does, for proofs alone."""
        self._hold(reference, budget, facts)

    def _hold(self, reference: Sequence[Expr], budget: Budget, facts: TensorFacts, *, anew: bool = False) -> _Reference:
        """Make the reference the current one, saturated; `anew` where it is a program's own, not one for its proofs."""
        self._current = None
        if len(self._interned.nodes) > INTERNED:
            self._interned = Interned()
            self._met = set()
        formulas = tuple(self._interned.all(e) for e in reference)
        key = formulas, budget.enodes, budget.iterations, tuple(sorted((t, tuple(f)) for t, f in facts.items()))
        known = self._kept.pop(key, None)
        if key in self._past:
            self._past.remove(key)
        if known is None:
            self._past = list(self._kept) if anew else self._past
            known = self._explored(formulas, budget, facts)
            if known.saturated.enodes() > OVERSTEP * budget.enodes and known.saturated.iterations > 1:
                # The last round is undone by doing those before it again.
                last = known.saturated.iterations
                self._drop(known)
                known = self._explored(formulas, replace(budget, iterations=last - 1), facts, known.stopped)
            known.look(known.saturated, known.saturated.table())
        known.passing = key not in self._met and known.saturated.enodes() <= SMALL
        self._met.add(key)
        self._kept[key] = self._current = known
        while len(self._kept) > KEPT:
            oldest = next(iter(self._kept))
            self._past = [key for key in self._past if key != oldest]
            self._drop(self._kept.pop(oldest))
        return known

    def _explored(self, formulas: tuple[Expr, ...], budget: Budget, facts: TensorFacts, why: str = "") -> _Reference:
        """The reference in an e-graph of its own; `why` it stopped, where the budget does not say."""
        graph = self._fresh(facts)
        roots = graph.insert(formulas)
        graph.unite(in_common(formulas))
        stopped = graph.explore(budget)
        return _Reference(formulas, graph, roots, why or stopped, facts)

    def prove(self, candidates: Sequence[Sequence[Expr]]) -> list[Verdict]:
        """A verdict, proved or unknown, for each candidate against the reference.

        Raises:
            WorkerError: nothing was explored, or a candidate has another number of outputs.
        """
        reference = self._current
        if reference is None:
            raise WorkerError("there is no reference to prove against", fix="call explore first")
        verdicts: list[Verdict] = []
        for candidate in candidates:
            if len(candidate) != len(reference.formulas):
                raise WorkerError(
                    f"a candidate has {len(candidate)} outputs and the reference {len(reference.formulas)}"
                )
            exprs = [self._interned.all(e) for e in candidate]
            try:
                verdicts.append(self._prove(reference, exprs))
            except Contradiction as error:
                verdicts.append(Verdict(Status.UNKNOWN, error.one_line(), rules=self.rules.families))
        return verdicts

    def _prove(self, reference: _Reference, candidate: Sequence[Expr]) -> Verdict:
        found = reference.holds(candidate)
        if found is None and not reference.wide:
            reference.widen()
            found = reference.holds(candidate)
        if found is not None:
            return self._proved(SATURATED, reference, reference.saturated, 0, found)
        if reference.stopped != FULL:
            return self._beside(reference, candidate) or self._apart(reference, candidate)
        apart = self._apart(reference, candidate)
        if apart and not apart.assumptions:
            return apart
        return self._beside(reference, candidate) or apart

    def _beside(self, reference: _Reference, candidate: Sequence[Expr]) -> Verdict | None:
        """Proved in the saturated reference, or None."""
        limit = reference.saturated.enodes() + BESIDE_ENODES
        with reference.saturated.aside() as graph:
            roots = graph.insert(candidate)
            graph.step(SIMPLIFY)
            for round_, ruleset in enumerate([*BESIDE, ""]):
                if graph.equal(reference.roots, roots):
                    return self._proved(SATURATED, reference, graph, round_)
                size = graph.enodes()
                if not ruleset or size > limit:
                    return None
                if ruleset != DISTRIBUTE or size <= WIDEN_ENODES:
                    graph.step(ruleset)
        return None

    def _apart(self, reference: _Reference, candidate: Sequence[Expr]) -> Verdict:
        """Proved or unknown, in an e-graph that starts from the two as terms."""
        if reference.terms is None:
            reference.terms = self._fresh(reference.facts)
            reference.left = reference.terms.insert(reference.formulas)
            reference.terms.step(SIMPLIFY)
        with reference.terms.aside() as graph:
            right = graph.insert(candidate)
            return self._search(graph, reference, right)

    def _search(self, graph: Saturation, reference: _Reference, right: Sequence[str]) -> Verdict:
        left = reference.left
        graph.step(SIMPLIFY)
        for round_ in range(APART_BUDGET.iterations):
            changed = False
            for ruleset in APART:
                if graph.equal(left, right):
                    return self._proved("one e-class by all rules", reference, graph, round_)
                if graph.enodes() > APART_BUDGET.enodes:
                    reason = f"the e-graph grew past {APART_BUDGET.enodes} e-nodes"
                    return self._unknown(reason, graph, round_)
                changed |= graph.step(ruleset)
            if graph.equal(left, right):
                return self._proved("one e-class by all rules", reference, graph, round_ + 1)
            changed |= graph.rename()
            if not changed:
                return self._unknown("no rule applies any more", graph, round_)
        if graph.equal(left, right):
            return self._proved("one e-class by all rules", reference, graph, APART_BUDGET.iterations)
        reason = f"{APART_BUDGET.iterations} rounds did not join the two"
        return self._unknown(reason, graph, APART_BUDGET.iterations)

    def _unknown(self, reason: str, graph: Saturation, rounds: int) -> Verdict:
        return Verdict(Status.UNKNOWN, reason, enodes=graph.enodes(), iterations=rounds, rules=self.rules.families)

    def _proved(
        self, how: str, reference: _Reference, graph: Saturation, rounds: int, matched: frozenset[str] | None = None
    ) -> Verdict:
        """Proved, under the assumptions of the rules that matched."""
        used = graph.matched if matched is None else matched
        verdict = Verdict(
            Status.PROVED,
            how,
            enodes=graph.enodes(),
            iterations=rounds,
            rules=self.rules.families,
            classes=self.rules.classes(used),
        )
        return verdict.assuming(reference.assumed() if self.rules.partial(used) else [])
