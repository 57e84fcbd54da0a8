"""What the worker process does: saturate a reference, and ask of candidates whether they equal it.

A candidate is first inserted beside the saturated reference, where most of what the generator makes is already known;
if a few rounds do not join the two, both go into an e-graph of their own, with all rules, as terms only: there the
rules that would blow up a saturated e-graph (exponentials apart, products over sums) have little to work on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from egglog import bindings

from prism.egraph.budget import Budget
from prism.egraph.language import DISTRIBUTE, EXPAND, EXPLORE, SIMPLIFY
from prism.egraph.rules import RuleSet, install
from prism.egraph.saturate import Contradiction, Saturation
from prism.egraph.terms import SPAN
from prism.errors import WorkerError
from prism.program.nodes import Expr
from prism.sgraph.classes import EClasses
from prism.sgraph.verdict import Status, Verdict

# Rounds beside the saturated reference, and how many e-nodes a candidate may add there.
BESIDE_ROUNDS = 3
BESIDE_ENODES = 2000

# One round of the second stage: cheap rules settle before each expensive one.
APART = (EXPLORE, DISTRIBUTE, EXPLORE, EXPAND, EXPLORE)
APART_BUDGET = Budget(enodes=5000, iterations=10)


@dataclass(slots=True)
class Engine:
    """Holds the e-graphs. Bound to the thread that made it.

    Attributes:
        rules: what is loaded.
    """

    rules: RuleSet
    _reference: Saturation | None = None
    _formulas: tuple[Expr, ...] = ()
    _roots: list[str] = field(default_factory=list)
    _spare: list[bindings.EGraph] = field(default_factory=list)
    _base: bindings.EGraph | None = None

    def prepare(self) -> None:
        """Make the e-graphs of the next requests ahead of their use."""
        if self._base is None:
            self._base = self._fresh()
        if not self._spare:
            self._spare.append(self._fresh())

    def _fresh(self) -> bindings.EGraph:
        if self._spare:
            return self._spare.pop()
        graph = install(self.rules)
        assert isinstance(graph, bindings.EGraph)
        return graph

    def explore(self, reference: Sequence[Expr], budget: Budget) -> EClasses:
        """Saturate the reference, keep it, and return it as data."""
        self._reference = None
        saturation = Saturation(self._fresh())
        self._roots = saturation.insert(reference)
        stopped = saturation.explore(budget)
        self._reference, self._formulas = saturation, tuple(reference)
        return saturation.decode(self._roots, stopped)

    def prove(self, candidates: Sequence[Sequence[Expr]]) -> list[Verdict]:
        """A verdict, proved or unknown, for each candidate against the reference.

        Raises:
            WorkerError: nothing was explored, or a candidate has another number of outputs.
        """
        if self._reference is None:
            raise WorkerError("there is no reference to prove against", fix="call explore first")
        verdicts: list[Verdict] = []
        for candidate in candidates:
            if len(candidate) != len(self._formulas):
                raise WorkerError(f"a candidate has {len(candidate)} outputs and the reference {len(self._formulas)}")
            try:
                verdicts.append(self._beside(candidate) or self._apart(candidate))
            except Contradiction as error:
                verdicts.append(self._verdict(Status.UNKNOWN, error.one_line(), None))
        return verdicts

    def _beside(self, candidate: Sequence[Expr]) -> Verdict | None:
        """Proved in the saturated reference, or None."""
        saturation = self._reference
        assert saturation is not None
        graph = saturation.graph
        graph.run_program(bindings.Push(1))
        try:
            limit = saturation.enodes() + BESIDE_ENODES
            roots = saturation.insert(candidate)
            saturation.step(SIMPLIFY)
            for round_ in range(BESIDE_ROUNDS + 1):
                if saturation.equal(self._roots, roots):
                    return self._verdict(Status.PROVED, "one e-class with the saturated reference", saturation, round_)
                if round_ == BESIDE_ROUNDS or saturation.enodes() > limit:
                    return None
                if not saturation.step(EXPLORE) and not saturation.rename():
                    return None
            return None
        finally:
            graph.run_program(bindings.Pop(SPAN, 1))

    def _apart(self, candidate: Sequence[Expr]) -> Verdict:
        """Proved or unknown, in an e-graph that starts from the two as terms."""
        if self._base is None:
            self._base = self._fresh()
        self._base.run_program(bindings.Push(1))
        try:
            return self._search(Saturation(self._base), candidate)
        finally:
            self._base.run_program(bindings.Pop(SPAN, 1))

    def _search(self, saturation: Saturation, candidate: Sequence[Expr]) -> Verdict:
        left = saturation.insert(self._formulas)
        right = saturation.insert(candidate)
        saturation.step(SIMPLIFY)
        for round_ in range(APART_BUDGET.iterations):
            changed = False
            for ruleset in APART:
                if saturation.equal(left, right):
                    return self._verdict(Status.PROVED, "one e-class by all rules", saturation, round_)
                if saturation.enodes() > APART_BUDGET.enodes:
                    reason = f"the e-graph grew past {APART_BUDGET.enodes} e-nodes"
                    return self._verdict(Status.UNKNOWN, reason, saturation, round_)
                changed |= saturation.step(ruleset)
            changed |= saturation.rename()
            if not changed:
                if saturation.equal(left, right):
                    return self._verdict(Status.PROVED, "one e-class by all rules", saturation, round_)
                return self._verdict(Status.UNKNOWN, "no rule applies any more", saturation, round_)
        if saturation.equal(left, right):
            return self._verdict(Status.PROVED, "one e-class by all rules", saturation, APART_BUDGET.iterations)
        reason = f"{APART_BUDGET.iterations} rounds did not join the two"
        return self._verdict(Status.UNKNOWN, reason, saturation, APART_BUDGET.iterations)

    def _verdict(self, status: Status, reason: str, saturation: Saturation | None, rounds: int = 0) -> Verdict:
        enodes = saturation.enodes() if saturation is not None else 0
        return Verdict(status, reason, enodes=enodes, iterations=rounds, rules=self.rules.families)
