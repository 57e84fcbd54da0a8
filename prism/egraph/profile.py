"""Which rule costs what on a program: matches, e-nodes added and seconds, rule by rule.

The schedule is the generator's (saturate.py), but each rule that makes terms is in a ruleset of its own and runs by
itself, so that what it adds is known; egglog's own times are not used, because what it reports is about a thousand
times too small. Rules then see what the ones before them in the same round have added: the totals are near those of
the search, and not the same.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from prism.egraph.bindings import bindings
from prism.egraph.language import ANALYSIS, EXPLORE, SIMPLIFY, Budget
from prism.egraph.rules import Rule, RuleSet, install
from prism.egraph.saturate import FULL, Saturation
from prism.program.nodes import Expr

__all__ = ["Cost", "Profile", "profile"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a rule came to."""

    rule: str  # its name; `(analysis)` is the free-axes, value and sign analyses together
    ruleset: str  # where it is
    matches: int  # how often its left-hand side and its guards were met
    enodes: int  # e-nodes that it added; merging can make it negative
    seconds: float  # spent on it


@dataclass(frozen=True, slots=True)
class Profile:
    """The costs, the dearest in e-nodes first."""

    costs: tuple[Cost, ...]  # of each rule that met something
    idle: tuple[str, ...]  # names of the rules that met nothing
    enodes: int  # at the end
    iterations: int  # rounds of `explore`
    stopped: str  # why it stopped


def profile(rules: RuleSet, reference: Sequence[Expr], budget: Budget | None = None) -> Profile:
    """Saturate the expressions as the generator does, and count by rule.

    `analysis`, `simplify` and `explore` of the rules run; the budget's seconds are not heeded.
    """
    budget = budget or Budget()
    running = [r for r in rules.rules if r.ruleset in (SIMPLIFY, EXPLORE)]
    graph = install(replace(rules, rules=tuple(r for r in rules.rules if r.ruleset == ANALYSIS)))
    own = {r.name: f"only{n}" for n, r in enumerate(running)}
    for rule in running:
        text = re.sub(r":ruleset\s+[^\s()]+", f":ruleset {own[rule.name]}", rule.text)
        graph.run_program(*graph.parse_program(f"(ruleset {own[rule.name]})"))
        graph.run_program(*graph.parse_program(text))
    state = _Counting(graph, own)
    saturation = Saturation(graph)
    saturation.insert(reference)
    simplify = [r for r in running if r.ruleset == SIMPLIFY]
    state.settle(saturation, simplify)
    stopped = "iteration budget"
    rounds = 0
    for _ in range(budget.iterations):
        if saturation.enodes() > budget.enodes:
            stopped = FULL
            break
        rounds += 1
        changed = False
        for rule in running:
            if rule.ruleset == EXPLORE:
                changed |= state.run(saturation, rule.name, rule.ruleset, own[rule.name])
        changed |= state.settle(saturation, simplify)
        if not changed and not saturation.rename():
            stopped = "saturated"
            break
    costs = [c for c in state.costs.values() if c.matches]
    costs.sort(key=lambda c: (-c.enodes, -c.matches, c.rule))
    met = {c.rule for c in costs}
    idle = tuple(r.name for r in running if r.name not in met)
    return Profile(tuple(costs), idle, saturation.enodes(), rounds, stopped)


class _Counting:
    """Runs rulesets and adds up."""

    def __init__(self, graph: bindings.EGraph, rulesets: dict[str, str]) -> None:
        self.costs: dict[str, Cost] = {}
        self._graph = graph
        self._programs: dict[str, list[Any]] = {
            name: graph.parse_program(f"(run-schedule (run {name}))") for name in rulesets.values()
        }
        self._programs[ANALYSIS] = graph.parse_program(f"(run-schedule (saturate (run {ANALYSIS})))")
        self._rulesets = rulesets

    def run(self, saturation: Saturation, rule: str, ruleset: str, program: str) -> bool:
        """Run one ruleset; whether anything changed."""
        before = saturation.enodes()
        start = time.perf_counter()
        outputs: list[Any] = self._graph.run_program(*self._programs[program])
        seconds = time.perf_counter() - start
        report = outputs[-1].report
        known = self.costs.get(rule, Cost(rule, ruleset, 0, 0, 0.0))
        self.costs[rule] = Cost(
            rule,
            ruleset,
            known.matches + sum(report.num_matches_per_rule.values()),
            known.enodes + saturation.enodes() - before,
            known.seconds + seconds,
        )
        return bool(report.updated)

    def settle(self, saturation: Saturation, simplify: Sequence[Rule]) -> bool:
        """The analyses and simplification to their ends; whether anything changed."""
        any_change = False
        while True:
            changed = self.run(saturation, f"({ANALYSIS})", ANALYSIS, ANALYSIS)
            for rule in simplify:
                changed |= self.run(saturation, rule.name, rule.ruleset, self._rulesets[rule.name])
            any_change |= changed
            if not changed:
                return any_change
