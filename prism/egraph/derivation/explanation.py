"""Which rules, in which order, join two terms: what a derivation has to replay.

All rules join the two in an e-graph of thousands of e-nodes. Most of them are not needed: each is a ruleset of its own
here, so that a schedule can leave any of them out, and schedules are made smaller as long as they still join the two
(delta debugging: Zeller & Hildebrandt, Simplifying and isolating failure-inducing input, 2002): first whole rules,
then single applications of a rule to the whole e-graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from prism.egraph.bindings import EGraph
from prism.egraph.language import ANALYSIS, DISTRIBUTE, EXPAND, EXPLORE, NO_FACTS, SIMPLIFY, TensorFacts
from prism.egraph.rules import RuleSet, install
from prism.egraph.saturate import Contradiction, Saturation
from prism.program.nodes import Expr

T = TypeVar("T")

RENAME = "~rename"
"""The stage that names bound axes anew."""

Stages: TypeAlias = "tuple[tuple[str, ...], ...]"

# Schedules that are tried, the cheap ones first; each ends where the two are joined.
ROUNDS = (
    (EXPLORE,) * 3,
    (EXPLORE, RENAME, EXPLORE, DISTRIBUTE, EXPLORE, EXPLORE),
    (EXPLORE, DISTRIBUTE, EXPLORE, EXPAND, EXPLORE, RENAME) * 3,
)

# E-nodes past which a schedule is given up.
ENODES = 4000

# Schedules that are run at most.
TRIALS = 400


@dataclass(frozen=True, slots=True)
class Schedule:
    """What joins two terms.

    Attributes:
        stages: rules that run once each, one stage after the other.
        simple: rules that run to their end after each stage, and before the first.
    """

    stages: Stages
    simple: tuple[str, ...]

    def only(self, names: Collection[str]) -> Schedule:
        """Without the rules of other names."""
        stages = tuple([t for s in self.stages if (t := tuple([r for r in s if r in names or r == RENAME]))])
        return Schedule(stages, tuple([r for r in self.simple if r in names]))


@dataclass(slots=True)
class Trials:
    """Runs schedules. Bound to the thread that made it.

    Attributes:
        rules: all that there are.
        count: schedules run so far.
    """

    rules: RuleSet
    count: int = 0
    _graph: Saturation | None = None

    def find(self, left: Expr, right: Expr, facts: TensorFacts = NO_FACTS) -> Schedule | None:
        """A small schedule that joins the two, given facts of tensors; None where none of those tried does."""
        self.count = 0
        if self._graph is None:
            self._graph = _apart(self.rules)
        matched: set[str] = set()
        with self._graph.aside() as graph:
            graph.leaves.facts = facts
            (a,), (b,) = graph.insert([left]), graph.insert([right])
            first = self._first(graph, a, b, matched)
        if first is None:
            return None
        # An e-graph with few rules is quick to copy; what matched nothing does nothing.
        graph = _apart(replace(self.rules, rules=tuple(r for r in self.rules.rules if r.name in matched)))
        graph.leaves.facts = facts
        (a,), (b,) = graph.insert([left]), graph.insert([right])
        graph.run(_program((), ()))
        first = first.only(matched)
        if self._joins(graph, a, b, first) is None:
            return None
        return self._smaller(first, lambda s: self._joins(graph, a, b, s) is not None)

    def _of(self, ruleset: str) -> tuple[str, ...]:
        return tuple(r.name for r in self.rules.rules if r.ruleset == ruleset)

    def _first(self, graph: Saturation, a: str, b: str, matched: set[str]) -> Schedule | None:
        simple = self._of(SIMPLIFY)
        for rounds in ROUNDS:
            stages = tuple((RENAME,) if r == RENAME else self._of(r) for r in rounds)
            used = self._joins(graph, a, b, Schedule(stages, simple), matched)
            if used is not None:
                return Schedule(stages[:used], simple)
        return None

    def _joins(
        self, graph: Saturation, a: str, b: str, schedule: Schedule, matched: set[str] | None = None
    ) -> int | None:
        """After how many stages the two are joined; None where they are not. Rules that match go into `matched`."""
        self.count += 1
        if self.count > TRIALS:
            return None
        try:
            with graph.aside() as copy:
                copy.run(_program((), schedule.simple), matched)
                for n, stage in enumerate(schedule.stages):
                    if copy.equal([a], [b]):
                        return n
                    if copy.enodes() > ENODES:
                        return None
                    if stage == (RENAME,):
                        copy.rename()
                        stage = ()
                    copy.run(_program(stage, schedule.simple), matched)
                return len(schedule.stages) if copy.equal([a], [b]) else None
        except Contradiction:
            return None

    def _smaller(self, schedule: Schedule, joins: Callable[[Schedule], bool]) -> Schedule:
        """Without what is not needed."""
        used = list(dict.fromkeys([*schedule.simple, *(r for s in schedule.stages for r in s)]))
        schedule = schedule.only(set(_minimal(used, lambda names: joins(schedule.only(set(names))))))
        atoms = [(n, r) for n, s in enumerate(schedule.stages) for r in s]

        def those(kept: Sequence[tuple[int, str]]) -> Schedule:
            stages: dict[int, list[str]] = {}
            for n, r in kept:
                stages.setdefault(n, []).append(r)
            return Schedule(tuple(tuple(s) for s in stages.values()), schedule.simple)

        return those(_minimal(atoms, lambda kept: joins(those(kept))))


def _apart(rules: RuleSet) -> Saturation:
    """An e-graph in which every rule but the analyses is a ruleset of its own."""
    graph = install(replace(rules, rules=tuple(r for r in rules.rules if r.ruleset == ANALYSIS)))
    assert isinstance(graph, EGraph)
    for r in rules.rules:
        if r.ruleset != ANALYSIS:
            own = _ruleset(r.name)
            text = re.sub(r":ruleset\s+[^\s()]+", f":ruleset {own}", r.text)
            graph.run_program(*graph.parse_program(f"(ruleset {own})"), *graph.parse_program(text))
    return Saturation(graph)


def _ruleset(name: str) -> str:
    return "only-" + re.sub(r"[^A-Za-z0-9]", "-", name)


def _program(stage: Sequence[str], simple: Sequence[str]) -> str:
    once = " ".join(f"(run {_ruleset(r)})" for r in stage)
    to_end = " ".join(f"(run {_ruleset(r)})" for r in simple)
    return f"(run-schedule {once} (saturate (seq (saturate (run {ANALYSIS})) {to_end})))"


def _minimal(items: Sequence[T], fine: Callable[[Sequence[T]], bool]) -> list[T]:
    """A part of the items that is still fine, and of which no single one can be left out."""
    kept = list(items)
    size = max(1, len(kept) // 2)
    while kept:
        at = 0
        removed = False
        while at < len(kept):
            rest = kept[:at] + kept[at + size :]
            if fine(rest):
                kept, removed = rest, True
            else:
                at += size
        if size == 1 and not removed:
            break
        size = size if removed and size == 1 else max(1, size // 2)
    return kept
