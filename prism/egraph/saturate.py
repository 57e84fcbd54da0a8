"""One e-graph under a budget: the schedule of the rulesets, stepped from Python.

egglog has no limit of its own, so each step runs one ruleset once and the e-nodes are counted after it. A step adds at
most what one application of one ruleset can; the rulesets are small and `simplify` runs before each of the others, so
the overshoot is bounded by one step. Budgets are in e-nodes and iterations: a result does not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from egglog import bindings

from prism.egraph.alpha import Renamer
from prism.egraph.budget import Budget
from prism.egraph.language import ANALYSIS, CONSTRUCTORS, EXPLORE, LEAVES, REDUCTIONS, SIMPLIFY
from prism.egraph.terms import SPAN, Encoder, Frozen, Leaves, Table, decode, freeze, table
from prism.errors import WorkerError
from prism.program.classes import EClasses
from prism.program.nodes import Expr

TERMS = frozenset(LEAVES) | frozenset(CONSTRUCTORS.values()) | frozenset(REDUCTIONS.values())


class Contradiction(WorkerError):
    """The rules derived that two different numbers are equal."""


@dataclass(slots=True)
class Saturation:
    """An e-graph that is grown step by step.

    Attributes:
        graph: with the language and the rules in it.
        leaves: what the strings in it stand for.
        iterations: rounds run so far.
        renamer: what was renamed in it.
        matched: the names of the rules that `step` found matches of.
    """

    graph: bindings.EGraph
    leaves: Leaves = field(default_factory=Leaves)
    iterations: int = 0
    renamer: Renamer = field(default_factory=Renamer)
    matched: set[str] = field(default_factory=set)
    _encoder: Encoder | None = None
    _depth: int = 0
    _programs: dict[str, list[Any]] = field(default_factory=dict)
    # Of the e-graph as it is now.
    _frozen: Frozen | None = None

    def insert(self, exprs: Sequence[Expr]) -> list[str]:
        """Add expressions; returns the globals that name them."""
        if self._encoder is None:
            self._encoder = Encoder(self.leaves, "$e")
        names, commands = self._encoder.write(exprs)
        self._change(*commands)
        return names

    @contextmanager
    def aside(self) -> Iterator[Saturation]:
        """A copy of the e-graph as it is now, to be grown within the `with` block and then forgotten."""
        self._run(bindings.Push(1))
        try:
            leaves = self.leaves.fork()
            prefix = f"$a{self._depth}_"
            encoder = Encoder(leaves, prefix) if self._encoder is None else self._encoder.fork(leaves, prefix)
            yield Saturation(
                self.graph,
                leaves,
                self.iterations,
                self.renamer.fork(),
                set(self.matched),
                encoder,
                self._depth + 1,
                self._programs,
            )
        finally:
            self._run(bindings.Pop(SPAN, 1))

    def enodes(self) -> int:
        """How many e-nodes there are."""
        sizes = self._run(bindings.PrintSize(SPAN, None))[0].sizes
        return sum(n for name, n in sizes if name in TERMS)

    def step(self, ruleset: str) -> bool:
        """Run a ruleset once, then the analyses and simplification to their ends; whether anything changed."""
        if ruleset not in self._programs:
            self._programs[ruleset] = self.graph.parse_program(
                f"(run-schedule (run {ruleset}) (saturate (seq (saturate (run {ANALYSIS})) (run {SIMPLIFY}))))"
            )
        outputs = self._change(*self._programs[ruleset])
        self.matched |= _matched(outputs[0])
        return bool(outputs[0].report.updated)

    def run(self, schedule: str, matched: set[str] | None = None) -> None:
        """Run a schedule of one's own; the names of the rules that match go into `matched`."""
        if schedule not in self._programs:
            self._programs[schedule] = self.graph.parse_program(schedule)
        outputs = self._change(*self._programs[schedule])
        if matched is not None:
            matched |= _matched(outputs[0])

    def rename(self) -> bool:
        """Write reductions over other names of their axes where that helps (see alpha.py); whether any were."""
        pairs = self.renamer.pairs(self.freeze())
        if not pairs:
            return False
        names = self.insert([e for pair in pairs for e in pair])
        for one, other in zip(names[::2], names[1::2], strict=True):
            left, right = bindings.Var(SPAN, one), bindings.Var(SPAN, other)
            self._change(bindings.ActionCommand(bindings.Union(SPAN, left, right)))
        self.step(SIMPLIFY)
        return True

    def equal(self, left: Sequence[str], right: Sequence[str]) -> bool:
        """Whether the globals are pairwise in the same e-class."""
        return all(self.e_class(a) == self.e_class(b) for a, b in zip(left, right, strict=True))

    def e_class(self, name: str) -> Any:
        """The e-class of a global, until the e-graph changes."""
        return self.graph.eval_expr(bindings.Var(SPAN, name))[1]

    def explore(self, budget: Budget) -> str:
        """Saturate under `explore`; why it stopped."""
        self.step(SIMPLIFY)
        for _ in range(budget.iterations):
            if self.enodes() > budget.enodes:
                return "e-node budget"
            self.iterations += 1
            if not self.step(EXPLORE) and not self.rename():
                return "saturated"
        return "iteration budget"

    def freeze(self) -> Frozen:
        """A snapshot."""
        if self._frozen is None:
            self._frozen = freeze(self.graph, self.leaves)
        return self._frozen

    def table(self) -> Table:
        """The e-nodes as they are now."""
        return table(self.graph, self.leaves)

    def decode(self, roots: Sequence[str], stopped: str) -> EClasses:
        """The e-graph as data; see terms.decode."""
        return decode(self.freeze(), [self.e_class(name) for name in roots], self.iterations, stopped)

    def _change(self, *commands: Any) -> list[Any]:
        self._frozen = None
        return self._run(*commands)

    def _run(self, *commands: Any) -> list[Any]:
        try:
            return self.graph.run_program(*commands)
        except bindings.EggSmolError as error:
            if "two different numbers" in error.context:
                raise Contradiction(
                    "the rules are inconsistent",
                    why="they derive that two different numbers are equal",
                    fix="run `prism rules check` on the rule files",
                ) from None
            raise WorkerError("egglog refused a command", why=error.context[:300]) from None


def _matched(output: Any) -> set[str]:
    """The names of the rules that matched in a run."""
    # egglog calls the two directions of a birewrite NAME=> and NAME<=.
    counts = output.report.num_matches_per_rule
    return {name.removesuffix("=>").removesuffix("<=") for name, count in counts.items() if count}
