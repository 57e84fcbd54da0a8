"""One e-graph under a budget: the schedule of the rulesets, stepped from Python.

egglog has no limit of its own, so each step runs one ruleset once and the e-nodes are counted after it. A step adds at
most what one application of one ruleset can; the rulesets are small and `simplify` runs before each of the others, so
the overshoot is bounded by one step, and by `OVERSTEP`. Budgets are in e-nodes and iterations: a result does not
depend on the machine.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from prism.egraph.bindings import bindings
from prism.egraph.language import ANALYSIS, CONSTRUCTORS, EXPLORE, LEAVES, REDUCTIONS, SIMPLIFY, Budget
from prism.egraph.terms import SPAN, Encoder, Frozen, Leaves, Table, decode, freeze, table
from prism.errors import WorkerError
from prism.program.classes import EClasses
from prism.program.index import Axis, Index
from prism.program.nodes import Expr, Read, Reduce, ReduceKind, free_axes, walk
from prism.program.transform import canonical, least_instance, substitute

OVERSTEP = 2
"""A round of exploring that goes so many times beyond the e-nodes that a budget has costs each step of a search more
than it gains: one that would by growing as the last one did does not take place, and one that does is undone."""

FULL = "e-node budget"
"""Why an e-graph stopped that would have grown further."""

MAX_SIMPLIFIED = 12
"""Rounds of simplification in a step, of which five are the most that were seen to come to an end."""

_SIMPLIFIED = f"(saturate (run {ANALYSIS})) (run {SIMPLIFY})"

TERMS = frozenset(LEAVES) | frozenset(CONSTRUCTORS.values()) | frozenset(REDUCTIONS.values())


# Names of bound axes: what rules cannot do, done between their rounds.
#
# A rule that pulls a factor out of `sum_d64_1` may leave a body in which `d64` is free no longer, so that the canonical
# name of the bound axis is now `d64`; and a factor that mentions `d64_1` cannot be pushed under that sum, though under
# another name it could. Both are found in a snapshot of the e-graph: a sum is written once more, from its least term,
# over the axis' other name.

MAX_RENAMED = 64
"""Of one call; more are left to the next."""


@dataclass(slots=True)
class Renamer:
    """Finds reductions that want another name for their axis, each once."""

    # (kind, axis, new axis, digest of the body) of what was renamed.
    done: set[tuple[str, Axis, Axis, bytes]] = field(default_factory=set)

    def fork(self) -> Renamer:
        """One that starts from here and leaves this one as it is."""
        return Renamer(set(self.done))

    def pairs(self, frozen: Frozen) -> list[tuple[Expr, Expr]]:
        """(reduction, the same reduction over another axis), in an order that does not depend on the process."""
        wanted: dict[tuple[Any, ...], tuple[str, Axis, Axis, Any]] = {}

        def want(kind: str, axis: Axis, new: Axis, body: Any) -> None:
            key = (kind, axis, new, frozen.keys[body][1])
            if new != axis and key not in self.done:
                order = (frozen.keys[body], kind, axis.name, new.name)
                wanted[order] = (kind, axis, new, body)

        reductions: dict[Any, list[tuple[str, Axis, Any]]] = defaultdict(list)
        for cls, rows in frozen.rows.items():
            for op, payload, _, kids in rows:
                if op in REDUCTIONS and isinstance(payload, Axis) and kids[0] in frozen.keys:
                    reductions[cls].append((op, payload, kids[0]))
        for cls, mine in reductions.items():
            for kind, axis, body in mine:
                want(kind, axis, least_instance(axis.extent, frozen.axes.get(cls, frozenset())), body)
        for outer in reductions.values():
            for kind, axis, body in outer:
                if kind != "sum":
                    continue
                for op, _, _, kids in frozen.rows[body]:
                    if op == "mul":
                        for u, b in (kids, kids[::-1]):
                            self._captured(frozen, reductions.get(u, []), axis, u, b, want)
        made: list[tuple[Expr, Expr]] = []
        for order in sorted(wanted)[:MAX_RENAMED]:
            kind, axis, new, body = wanted[order]
            self.done.add((kind, axis, new, frozen.keys[body][1]))
            term = frozen.expr(body)
            # The least term may mention axes that its value does not depend on.
            if new in free_axes(term):
                continue
            renamed = substitute(term, {axis: Index.axis(new)})
            kept = Reduce(ReduceKind(kind), new, canonical(renamed))
            made.append((Reduce(ReduceKind(kind), axis, term), kept))
        return made

    @staticmethod
    def _captured(frozen: Frozen, inner: list[tuple[str, Axis, Any]], outer: Axis, u: Any, b: Any, want: Any) -> None:
        """Ask for sums in u whose axis a factor b beside them mentions to be named apart from it."""
        beside = frozen.axes.get(b, frozenset())
        for kind, axis, body in inner:
            if kind == "sum" and axis in beside and axis != outer:
                taken = beside | frozen.axes.get(u, frozenset()) | frozen.axes.get(body, frozenset()) | {outer}
                want(kind, axis, least_instance(axis.extent, taken), body)


def in_common(formulas: Sequence[Expr]) -> list[tuple[Expr, Expr]]:
    """(reduction, the same reduction over another axis) for sums of sums that read what others read, by another name.

    Beside `sum_f q[f] * (sum_r k[r, f] * v[r, d])`, where d and f are of one length, `sum_d q[d] * (sum_r k[r, d])` is
    over f as well. What it reads, and what it may store, is then what the other one reads, along the same axis. Where
    no sum is inside, a kernel that computes both finds a name for them.
    """
    reductions = list(dict.fromkeys(e for f in formulas for e in walk(f) if isinstance(e, Reduce)))
    if len(reductions) > MAX_RENAMED:
        return []
    reads: dict[Axis, set[Expr]] = defaultdict(set)
    for r in reductions:
        reads[r.axis] |= _reading(r.body, r.axis)
    found: dict[tuple[Expr, Expr], None] = {}
    for r in reductions:
        if not any(isinstance(e, Reduce) and r.axis in free_axes(e) for e in walk(r.body)):
            continue
        for axis, theirs in reads.items():
            if axis != r.axis and axis.extent == r.axis.extent and axis not in free_axes(r.body):
                renamed = canonical(substitute(r.body, {r.axis: Index.axis(axis)}))
                if theirs & _reading(renamed, axis):
                    found[r, Reduce(r.kind, axis, renamed)] = None
    return list(found)[:MAX_RENAMED]


def _reading(e: Expr, axis: Axis) -> set[Expr]:
    return {r for r in walk(e) if isinstance(r, Read) and axis in free_axes(r)}


class Contradiction(WorkerError):
    """The rules derived that two different numbers are equal."""


@dataclass(slots=True)
class Saturation:
    """An e-graph that is grown step by step."""

    graph: bindings.EGraph  # with the language and the rules in it
    leaves: Leaves = field(default_factory=Leaves)  # what the strings in it stand for
    iterations: int = 0  # rounds run so far
    renamer: Renamer = field(default_factory=Renamer)  # what was renamed in it
    matched: set[str] = field(default_factory=set)  # the names of the rules that `step` found matches of
    # Of the globals' names, each given once for all that goes into the e-graph, also by those who had it before, and
    # aside: after a `Pop` egglog 13.2 may take a name that is defined anew for what it was, and proves what is wrong.
    serials: Iterator[int] = field(default_factory=itertools.count)
    _encoder: Encoder | None = None
    _programs: dict[str, list[Any]] = field(default_factory=dict)
    # Of the e-graph as it is now.
    _frozen: Frozen | None = None

    def insert(self, exprs: Sequence[Expr]) -> list[str]:
        """Add expressions; returns the globals that name them."""
        if self._encoder is None:
            self._encoder = Encoder(self.leaves, f"$e{next(self.serials)}_")
        names, commands = self._encoder.write(exprs)
        self._change(*commands)
        return names

    @contextmanager
    def aside(self) -> Iterator[Saturation]:
        """A copy of the e-graph as it is now, to be grown within the `with` block and then forgotten."""
        self._run(bindings.Push(1))
        try:
            leaves = self.leaves.fork()
            prefix = f"$a{next(self.serials)}_"
            encoder = Encoder(leaves, prefix) if self._encoder is None else self._encoder.fork(leaves, prefix)
            yield Saturation(
                self.graph,
                leaves,
                self.iterations,
                self.renamer.fork(),
                set(self.matched),
                self.serials,
                encoder,
                self._programs,
            )
        finally:
            self._run(bindings.Pop(SPAN, 1))

    def enodes(self) -> int:
        """How many e-nodes there are."""
        sizes = self._run(bindings.PrintSize(SPAN, None))[0].sizes
        return sum(n for name, n in sizes if name in TERMS)

    def step(self, ruleset: str) -> bool:
        """Run a ruleset once, then the analyses and simplification to their ends; whether anything changed.

        Simplification may have no end: `exp a * exp b` is one exponential, whose logarithm is a sum, ...
        """
        changed = goes_on = self.run(f"(run-schedule (run {ruleset}) {_SIMPLIFIED})", self.matched)
        for _ in range(MAX_SIMPLIFIED - 1):
            if not goes_on:
                break
            goes_on = self.run(f"(run-schedule {_SIMPLIFIED})", self.matched)
        return changed

    def run(self, schedule: str, matched: set[str] | None = None) -> bool:
        """Run a schedule; the names of the rules that match go into `matched`; whether anything changed."""
        if schedule not in self._programs:
            self._programs[schedule] = self.graph.parse_program(schedule)
        (output,) = self._change(*self._programs[schedule])
        if matched is not None:
            matched |= _matched(output)
        return bool(output.report.updated)

    def rename(self) -> bool:
        """Write reductions over other names of their axes where that helps (see `Renamer`); whether any were."""
        return self.unite(self.renamer.pairs(self.freeze()))

    def unite(self, pairs: Sequence[tuple[Expr, Expr]]) -> bool:
        """Add expressions that are equal by themselves, as such; whether there are any."""
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
        before = math.inf
        for _ in range(budget.iterations):
            size = self.enodes()
            if size > budget.enodes or size * size > OVERSTEP * budget.enodes * before:
                return FULL
            before = size
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
