"""Derivations: a chain of named rule instances from a reference to what an sGraph computes.

egglog says that two terms are equal and not why. So a small schedule of rules that joins them is found with egglog:
each rule is a ruleset of its own, and schedules are made smaller as long as they still join the two (delta debugging:
Zeller & Hildebrandt, Simplifying and isolating failure-inducing input, 2002), first whole rules, then single
applications of a rule to the whole e-graph. It is replayed in an e-graph that remembers its reasons (proof_forest.py),
and the reasons are laid out as one chain of whole terms. What comes out is a certificate for `prism.checker`, which
trusts none of this.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from prism.checker import REDUCTIONS, CertificateError, Rule, Term, Terms, check, read_rules, rename_data
from prism.egraph.bindings import EGraph
from prism.egraph.derivation.certificate import Derivation, Derived, Encoder, certificate, cited_terms, replay
from prism.egraph.derivation.proof_forest import MAX_STEPS, Explainer, Forest, Link, TooLongError
from prism.egraph.derivation.proof_forest import RENAME as RENAMED
from prism.egraph.language import ANALYSIS, ASSUME, DISTRIBUTE, EXPAND, EXPLORE, NO_FACTS, SIMPLIFY, TensorFacts
from prism.egraph.rules import FpClass, RuleSet, install, read_rule_files, rule_files
from prism.egraph.saturate import Contradiction, Saturation
from prism.errors import IllegalIRError
from prism.program.nodes import Expr

T = TypeVar("T")

RENAME = "~rename"
"""The stage that names bound axes anew."""

Stages: TypeAlias = "tuple[tuple[str, ...], ...]"

# Schedules that are tried, the cheap ones first; each ends where the two are joined.
ROUNDS = (
    (EXPLORE,) * 3,
    (EXPLORE, RENAME, EXPLORE, DISTRIBUTE, EXPLORE, EXPLORE),
    (EXPLORE, DISTRIBUTE, EXPLORE, EXPAND, EXPLORE, ASSUME, RENAME) * 3,
)

# E-nodes past which a schedule is given up.
ENODES = 4000

# Schedules that are run at most.
TRIALS = 400


@dataclass(frozen=True, slots=True)
class Schedule:
    """What joins two terms."""

    stages: Stages  # rules that run once each, one stage after the other
    simple: tuple[str, ...]  # rules that run to their end after each stage, and before the first

    def only(self, names: Collection[str]) -> Schedule:
        """Without the rules of other names."""
        stages = tuple([t for s in self.stages if (t := tuple([r for r in s if r in names or r == RENAME]))])
        return Schedule(stages, tuple([r for r in self.simple if r in names]))


@dataclass(slots=True)
class Trials:
    """Runs schedules. Bound to the thread that made it."""

    rules: RuleSet  # all that there are
    count: int = 0  # schedules run so far
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


# Terms past which the replay of one output is given up.
MAX_TERMS = 60_000

# Times that the simplifying rules are run after a stage.
MAX_SIMPLIFY = 8


@dataclass(slots=True)
class Deriver:
    """Finds derivations. Bound to the thread that made it."""

    files: Sequence[Path] = field(default_factory=rule_files)  # the rule files
    fp: str = FpClass.DOMAIN.value  # only rules of this floating-point class, and those that change less, are used
    _trials: Trials | None = None
    _rules: dict[str, Rule] = field(default_factory=dict)
    _texts: dict[str, bytes] = field(default_factory=dict)

    def derive(
        self,
        names: Sequence[str],
        reference: Sequence[Expr],
        denotation: Sequence[Expr],
        facts: TensorFacts = NO_FACTS,
    ) -> Derivation:
        """A certificate that the expressions are pairwise equal.

        The reference has canonical axes, an expression an output, split as the denotation is.

        Raises:
            IllegalIRError: an expression has no term.
        """
        terms = Terms(stated=facts)
        encoder = Encoder(terms)
        pairs = [(name, encoder.of(a), encoder.of(b)) for name, a, b in zip(names, reference, denotation, strict=True)]
        spent = {"find": 0.0, "replay": 0.0, "check": 0.0}
        found: list[Derived] = []
        alike: dict[tuple[object, ...], tuple[tuple[str, ...], list[dict[str, Any]]]] = {}
        try:
            trials = self._load()
            for (name, left, right), a, b in zip(pairs, reference, denotation, strict=True):
                # Regions of a model are alike by the hundred: rules do not look at what tensors are called.
                called = _reads(left, right)
                places = {tensor: str(n) for n, tensor in enumerate(called)}
                nameless = (
                    *(t.id for t in _called(terms, (left, right), places)),
                    *(tuple(facts.get(tensor, ())) for tensor in called),
                )
                if nameless not in alike:
                    start = time.perf_counter()
                    schedule = Schedule((), ()) if left is right else trials.find(a, b, facts)
                    spent["find"] += time.perf_counter() - start
                    if schedule is None:
                        raise _GivenUpError(f"{name}: no schedule of the rules within the budget joins the two")
                    start = time.perf_counter()
                    links = self._replay(terms, left, right, schedule)
                    alike[nameless] = called, _flat(terms, left, right, links)
                    spent["replay"] += time.perf_counter() - start
                before, steps = alike[nameless]
                own = _steps_called(terms, steps, dict(zip(before, called, strict=True)))
                found.append(Derived(name, left, right, tuple(own)))
            cited = {self._rules[s["rule"]].file for d in found for s in d.steps if s["kind"] == "rule"}
            data = certificate(terms, found, {f: h for f, h in trials.rules.hashes if f in cited})
            start = time.perf_counter()
            check(data, self._texts)
            spent["check"] = time.perf_counter() - start
        except (_GivenUpError, IllegalIRError, CertificateError, RecursionError) as error:
            again = replay(names, reference, denotation, str(error) or "the terms are nested too deeply", facts)
            return replace(again, seconds=spent)
        return Derivation(data, "", sum(len(d.steps) for d in found), spent)

    def _load(self) -> Trials:
        if self._trials is None:
            loaded = read_rule_files(self.files).allowed(FpClass(self.fp))
            self._texts = {p.name: p.read_bytes() for p in self.files}
            for name, data in self._texts.items():
                self._rules |= read_rules(data.decode(), name)
            self._trials = Trials(loaded)
        return self._trials

    def _replay(self, terms: Terms, left: Term, right: Term, schedule: Schedule) -> list[Link]:
        forest = Forest(terms)
        forest.add(left)
        forest.add(right)
        forest.rebuild()
        self._simplify(forest, schedule.simple)
        for stage in schedule.stages:
            if forest.equal(left, right):
                break
            for name in stage:
                if name == RENAME:
                    _rename(forest)
                else:
                    self._apply(forest, name)
            self._simplify(forest, schedule.simple)
        if not forest.equal(left, right):
            raise _GivenUpError("the replay of the rules did not join the two")
        try:
            return Explainer(forest).chain(left.id, right.id)
        except TooLongError:
            raise _GivenUpError(f"the derivation has more than {MAX_STEPS} steps") from None

    def _simplify(self, forest: Forest, names: Sequence[str]) -> None:
        for _ in range(MAX_SIMPLIFY if names else 0):
            size = len(forest)
            for name in names:
                self._apply(forest, name)
            if len(forest) == size:
                break

    def _apply(self, forest: Forest, name: str) -> None:
        rule = self._rules.get(name)
        if rule is None:
            raise _GivenUpError(f"rule {name} is none that the checker reads")
        index = forest.index()
        forest.apply(rule, True, index)
        if rule.both:
            forest.apply(rule, False, index)
        forest.rebuild()
        if len(forest) > MAX_TERMS:
            raise _GivenUpError(f"the replay grew past {MAX_TERMS} terms")


class _GivenUpError(Exception):
    """No derivation within the budget."""


def _flat(terms: Terms, left: Term, right: Term, links: Sequence[Link]) -> list[dict[str, Any]]:
    """The steps of a chain of whole terms, without what leads back to an earlier one."""
    wholes = [left]
    kept: list[Link] = []
    for link in links:
        whole = _applied(terms, wholes[-1], link)
        if whole is None:
            raise _GivenUpError("a chain does not fit together")
        if whole in wholes:
            at = wholes.index(whole)
            del wholes[at + 1 :], kept[at:]
        else:
            wholes.append(whole)
            kept.append(link)
    if wholes[-1] is not right:
        raise _GivenUpError("a chain ends elsewhere")
    return [_step(link) for link in kept]


def _applied(terms: Terms, whole: Term, link: Link) -> Term | None:
    try:
        if any(terms.at(whole, p) is not link.before for p in link.paths):
            return None
    except CertificateError:
        return None
    for p in link.paths:
        whole = terms.put(whole, p, link.after)
    return whole


def _step(link: Link) -> dict[str, Any]:
    r = link.reason
    paths = [list(p) for p in link.paths]
    if r.kind != "rule":
        return {"kind": r.kind, "positions": paths, "to": link.after}
    return {
        "kind": "rule",
        "rule": r.rule,
        "direction": "forward" if r.forward else "backward",
        "positions": paths,
        "substitution": dict(sorted(r.given.items())),
    }


# --- names of tensors ----------------------------------------------------------------------------------------------


def _parts(roots: Iterable[Term]) -> list[Term]:
    """What the terms are made of, each once, the parts of each before it."""
    found: dict[int, Term] = {}
    stack = list(roots)[::-1]
    while stack:
        t = stack[-1]
        missing = [k for k in t.kids if k.id not in found]
        if missing:
            stack += missing[::-1]
            continue
        found.setdefault(stack.pop().id, t)
    return list(found.values())


def _reads(*roots: Term) -> tuple[str, ...]:
    """The tensors that are read, each once, in order."""
    return tuple(dict.fromkeys(t.data[0] for t in _parts(roots) if t.op == "Read"))


def _called(terms: Terms, roots: Sequence[Term], names: Mapping[str, str]) -> list[Term]:
    """The terms over tensors of other names."""
    made: dict[int, Term] = {}
    for t in _parts(roots):
        data = (names[t.data[0]], t.data[1]) if t.op == "Read" else t.data
        made[t.id] = terms.make(t.op, data, tuple([made[k.id] for k in t.kids]))
    return [made[t.id] for t in roots]


def _steps_called(
    terms: Terms, steps: Sequence[Mapping[str, Any]], names: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """The steps over tensors of other names."""
    cited = {t.id: t for t in cited_terms(steps)}
    made = dict(zip(cited, _called(terms, list(cited.values()), names), strict=True))

    def own(value: Any) -> Any:
        if isinstance(value, Term):
            return made[value.id]
        return {k: own(v) for k, v in value.items()} if isinstance(value, dict) else value

    for s in steps:
        yield {k: own(v) for k, v in s.items()}


# --- names of bound axes -------------------------------------------------------------------------------------------


def _rename(forest: Forest) -> None:
    """Write reductions over other names of their axes where the prover would (see `saturate.Renamer`)."""
    terms = forest.terms
    nodes = list(forest.nodes())
    reductions = [t for t in nodes if t.op in REDUCTIONS]
    inside: dict[int, list[Term]] = {}
    for t in reductions:
        inside.setdefault(forest.find(t.id), []).append(t)
    wanted: dict[tuple[int, str], tuple[Term, str]] = {}
    for t in reductions:
        free = forest.spokesman(t).axes
        wanted[t.id, "own"] = t, _least(terms, t.data, free)
        for product in nodes:
            if t.op != "Sum" or product.op != "Mul" or forest.find(product.id) != forest.find(t.kids[0].id):
                continue
            for u, b in (product.kids, product.kids[::-1]):
                beside = forest.spokesman(b).axes
                for inner in inside.get(forest.find(u.id), []):
                    if inner.op == "Sum" and inner.data in beside and inner.data != t.data:
                        within = forest.spokesman(inner.kids[0]).axes
                        taken = beside | forest.spokesman(u).axes | within | {t.data}
                        wanted[inner.id, "apart"] = inner, _least(terms, inner.data, taken)
    for t, name in wanted.values():
        body = forest.spokesman(t.kids[0])
        if name == t.data or name in body.axes:
            continue
        old = terms.make(t.op, t.data, (body,))
        new = terms.make(t.op, name, (canonical(terms, body, {t.data: name}),))
        forest.add(old)
        forest.add(new)
        forest.union(old, new, RENAMED)
    forest.rebuild()


def _least(terms: Terms, axis: str, taken: frozenset[str]) -> str:
    """The canonical name of an axis of that extent with the least number that is not taken."""
    extent = terms.extents[axis]
    base = f"d{extent}" if extent.isdecimal() else re.sub(r"[^A-Za-z0-9]", "_", extent)
    number = 0
    while True:
        name = f"{base}_{number}" if number else base
        if name not in taken:
            terms.extents.setdefault(name, extent)
            return name
        number += 1


def canonical(terms: Terms, term: Term, names: Mapping[str, str]) -> Term:
    """The term with free axes renamed and its bound axes called as `prism.program.transform.canonical` calls them."""
    done: dict[tuple[int, frozenset[tuple[str, str]]], Term] = {}

    def visit(t: Term, env: Mapping[str, str]) -> Term:
        env = {a: b for a, b in env.items() if a in t.axes}
        key = t.id, frozenset(env.items())
        if key not in done:
            if t.op in REDUCTIONS:
                name = _least(terms, t.data, frozenset(env.get(a, a) for a in t.axes))
                done[key] = terms.make(t.op, name, (visit(t.kids[0], {**env, t.data: name}),))
            else:
                kids = tuple([visit(k, env) for k in t.kids])
                done[key] = terms.make(t.op, rename_data(t, env), kids)
        return done[key]

    return visit(term, names)
