"""The search of one region: saturate the reference, generate sGraphs, prove them one small batch after another.

    saturation   the formulas of the outputs go into the e-graph worker, all rules run, the e-classes come back
    generation   candidates from the e-classes, best bound first
    proof        the candidates in that order; each is handed on as soon as it and all better ones are decided

The proofs themselves are in proofs.py.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from prism.api.proofs import Proofs, ProvedSGraph
from prism.api.second_opinion import SecondOpinions
from prism.api.trivial import nothing_to_gain
from prism.cost.device import Device
from prism.cost.model import operators
from prism.cost.shapes import points
from prism.egraph.language import Budget
from prism.egraph.rules import FpClass
from prism.egraph.worker import Worker
from prism.errors import UsageError, refusing_depth
from prism.events import Funnel, Recorder
from prism.generate.dispatch import Winner, dispatch_table
from prism.generate.enumerate import Bounds, Candidate, Generated, Task, generate
from prism.generate.pruning import PRUNERS
from prism.process.child import Closing
from prism.process.deadline import NEVER, Deadline
from prism.program.assumptions import facts
from prism.program.classes import EClasses
from prism.program.nodes import Formula, Program, SymbolRange
from prism.program.pieces import formulas_of
from prism.program.products import operands_type
from prism.program.verdict import Status

T = TypeVar("T")

_BOUNDS = Bounds()
PROOFS, PROOFS_S = 0.3, 5.0
"""Of the time that a search is given after saturation this share, and no more seconds, is left for proofs, of 0.02 to
1.5 seconds that the first one takes (measured);"""
LEAST_PROOFS, AFTER_FIRST = 0.1, 4.0
"""less where one took less already, but this share, or so many times as long: most are proved by what the first left,
and all take 3 to 8 times as long as that one (measured)."""


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """What bounds a search: of the space, of the e-graph, of time. Equal budgets give equal results.

    Attributes:
        max_kernels: launches in one sGraph; neither second stages of splits are counted, nor what outputs over other
            axes take besides the first. Further rounds go on to as many as the operators one by one take, a launch at
            a time. 3.
        max_ops: operators (pointwise, reductions, products) in one kernel; of what reduces nothing, all. 64.
        max_loops: loops in one kernel, nested or one after another. 6.
        max_forms: forms (one way to compute each value) that are walked. 16.
        max_cuts: values of a form that the first round considers for materialisation together; each is alone. 6.
        max_families: families of kernels that the first round builds; plans that look fastest come first. 80.
        max_sgraphs: sGraphs handed to the prover, best first. 32.
        enodes: e-nodes at which saturation stops. 8000.
        iterations: rounds of the rules at which saturation stops. 16.
        seconds: limit at which the e-graph worker is killed; reaching it is an error, not a result. 120.
        off: pruners (`prism.generate.pruning.PRUNERS`) that are switched off: slower, and not better.
        fp: what rules may do to rounding: `exact` nothing, `reassociates` other orders of sums and products, too,
            `domain` also other places of overflow and NaN (rules of this class derive no candidates). domain.
        max_rounds: rounds, each with twice the cuts and families of the one before; a further one takes place only
            where it may gain something by estimate. 3.
        below: seconds that something else takes which does the same; only what looks faster by estimate is built.

    Raises:
        UsageError: a bound below 1, or a pruner that does not exist.
    """

    max_kernels: int = _BOUNDS.max_kernels
    max_ops: int = _BOUNDS.max_ops
    max_loops: int = _BOUNDS.max_loops
    max_forms: int = _BOUNDS.max_forms
    max_cuts: int = _BOUNDS.max_cuts
    max_families: int = _BOUNDS.max_families
    max_sgraphs: int = 32
    enodes: int = 8000
    iterations: int = 16
    seconds: float = 120.0
    off: frozenset[str] = frozenset()
    fp: str = FpClass.DOMAIN.value
    max_rounds: int = _BOUNDS.max_rounds
    below: float = _BOUNDS.below

    def __post_init__(self) -> None:
        for name, value in (*self.as_dict().items(), ("seconds", self.seconds)):
            if value <= 0:
                raise UsageError(f"a bound of {value}", where=name, fix="give 1 or more")
        if self.fp not in list(FpClass):
            raise UsageError(f"there is no class {self.fp}", where="fp", fix=f"there are: {', '.join(FpClass)}")
        unknown = sorted(self.off - PRUNERS.keys())
        if unknown:
            known = ", ".join(PRUNERS)
            raise UsageError(f"there is no pruner {unknown[0]}", where="off", fix=f"there are: {known}")

    def as_dict(self) -> dict[str, int]:
        """What determines the result, by name; a pruner that is off as `off.NAME`, less than all of `fp` as `fp.IT`."""
        others = ("seconds", "off", "fp", "below")
        bounds = {f.name: int(getattr(self, f.name)) for f in fields(self) if f.name not in others}
        if math.isfinite(self.below):
            bounds["below_ps"] = math.ceil(self.below * 1e12)
        if self.fp != FpClass.DOMAIN:
            bounds[f"fp.{self.fp}"] = 1
        return bounds | {f"off.{name}": 1 for name in sorted(self.off)}

    def bounds(self) -> Bounds:
        """The generator's part of it."""
        own = {f.name for f in fields(self)}
        return Bounds(**{f.name: getattr(self, f.name) for f in fields(Bounds) if f.name in own})

    def saturation(self) -> Budget:
        """The e-graph's part of it."""
        return Budget(enodes=self.enodes, iterations=self.iterations, seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found.

    Attributes:
        formulas: the outputs, inlined.
        proved: best first.
        generated: what the generator built and pruned.
        refuted: candidates that were shown to differ: none, unless there is a bug.
        unknown: candidates that the prover could not decide.
        enodes: size of the saturated e-graph.
        stopped: why saturation stopped.
        seconds: by stage: saturation, generation, proof.
        interrupted: whether its time ended before all was generated, or candidates are left that nobody has tried to
            prove.
        first: seconds until the first sGraph was proved, whichever it was; None where none was.
    """

    formulas: tuple[Formula, ...]
    proved: tuple[ProvedSGraph, ...]
    generated: Generated
    refuted: int
    unknown: int
    enodes: int
    stopped: str
    seconds: Mapping[str, float] = field(default_factory=dict)
    interrupted: bool = False
    first: float | None = field(default=None, compare=False)

    @property
    def funnel(self) -> Funnel:
        """The counts."""
        return Funnel(self.generated.generated, self.generated.pruned, len(self.proved), self.refuted, self.unknown)

    def __str__(self) -> str:
        said = f"{self.generated.generated} sGraphs generated, {len(self.proved)} proved"
        return f"{said}, the best of them\n{self.proved[0]}" if self.proved else said


class SearchInterruptedError(KeyboardInterrupt):
    """Ctrl-C while sGraphs were being proved. A KeyboardInterrupt, so who does not care about the rest just ends.

    Attributes:
        result: what had been proved by then.
    """

    def __init__(self, result: SearchResult) -> None:
        super().__init__(f"{len(result.proved)} sGraphs had been proved")
        self.result = result


class Search(Iterator[ProvedSGraph], Closing):
    """One search, as an iterator over its proved sGraphs, best bound first.

    Nothing is saturated before the first is asked for, and no more is proved than was asked for, but for a batch. An
    interrupt loses nothing that was decided: `proved` and `result` say what there is, and the iteration can go on.
    An sGraph of the form as written is proved before the others are generated. Where its time ends, what was generated
    shortly before is proved, the best of each way to cut the program first, as bounds are rough, and what is proved by
    then is what there is; but something is in any case.

    Args:
        program: what is searched.
        target: the device that it is for.
        budget: bounds.
        workers: the e-graph worker, and others that take references off it where there are several.
        recorder: gets the stages.
        owned: whether the workers end with the search.
        otherwise: makes the search that goes on where nothing could be proved, of the program in smaller regions.
        until: when its time is over.
    """

    def __init__(
        self,
        program: Program,
        target: Device,
        budget: SearchBudget,
        workers: Sequence[Worker],
        recorder: Recorder,
        *,
        owned: bool = False,
        otherwise: Callable[[SearchResult], Search] | None = None,
        until: Deadline = NEVER,
    ) -> None:
        self._until = until
        self._otherwise = otherwise
        self._instead: Search | None = None
        self._program = program
        self._target = target
        self._budget = budget
        self._workers = tuple(workers)
        self._recorder = recorder
        self._ready: _Ready | None = None
        # One that is proved before the others are generated; it counts until one of those is.
        self._soon: _Ready | None = None
        self._ahead: tuple[ProvedSGraph, ...] = ()
        self._began = 0.0
        self._first: float | None = None
        self._next = 0
        self._closed = False
        self._seconds: dict[str, float] = {}
        self._end = weakref.finalize(self, _close, self._workers if owned else ())

    def __iter__(self) -> Search:
        return self

    def __next__(self) -> ProvedSGraph:
        """The next best proved sGraph.

        Raises:
            StopIteration: there are no more, or the search was closed.
            UnsupportedError: an index of the program cannot be made affine.
            WorkerError: the e-graph worker died or ran past its time limit.
            VerificationError: the identity test contradicts a proof: a bug in prism, or in a rule of your own.
        """
        if self._closed:
            raise StopIteration
        with refusing_depth(self._program.name):
            return self._following()

    @property
    def budget(self) -> SearchBudget:
        """Its bounds."""
        return self._budget

    def outlook(self, until: Deadline = NEVER) -> tuple[Candidate, ...]:
        """All that it will try to prove, best bound first: it is generated, and nothing proved yet.

        Where so much time is given for it and the first proof, as of `Search`.

        Raises:
            UnsupportedError: an index of the program cannot be made affine.
            WorkerError: the e-graph worker died or ran past its time limit.
        """
        if self._ready is None:
            with refusing_depth(self._program.name):
                self._ready = self._prepare(until, soon=False)
            # Whoever asks does not know yet whether it is proved, and may have the worker do something else before.
            self._ready.proofs.forget()
        return self._ready.generated.candidates

    def ending(self, until: Deadline) -> Search:
        """Itself, with so much time from now on."""
        self._until = until
        return self

    def _following(self) -> ProvedSGraph:
        if self._instead is not None:
            return next(self._instead)
        if self._ready is None:
            self._ready = self._prepare(self._until)
        proofs = self._ready.proofs
        while self._next < len(proofs.candidates):
            late = self._is_late() and not proofs.candidates[self._next].written
            if self._next not in proofs.decided and not late:
                with self._recorder.part("proof"):
                    self._timed("proof", lambda: self._decide(proofs, self._next))
                self._recorder.count("sGraphs", len(proofs.decided), len(proofs.candidates))
            found = proofs.decided.get(self._next)
            self._next += 1
            if found is not None:
                return found
        if len(proofs.decided) == len(proofs.candidates):
            self._ahead = ()
        if self._otherwise is not None and not enough(self._program, self.result()):
            self._instead = self._otherwise(self.result())
            return next(self._instead)
        self._finish()
        raise StopIteration

    @property
    def proved(self) -> tuple[ProvedSGraph, ...]:
        """What has been proved so far, best first; also what is ahead of its turn."""
        if self._instead is not None:
            return self._instead.proved
        found = () if self._ready is None else self._ready.proofs.proved
        return tuple(sorted(found, key=lambda p: p.seconds) if self._until.finite else found) or self._ahead

    def result(self) -> SearchResult:
        """What has been found so far; all of it once the iteration has ended.

        Raises:
            UsageError: nothing has been asked for yet, so there is nothing to tell.
        """
        if self._instead is not None:
            return self._instead.result()
        ready = self._ready or self._soon
        if ready is None:
            raise UsageError("the search has not begun", fix="ask for the first sGraph: next(search)")
        proofs = ready.proofs
        generated = ready.generated
        counted = {"numerics": proofs.refused, "illegal": proofs.illegal, "spares": proofs.spares}
        dropped = {k: n for k, n in counted.items() if n}
        if dropped:
            generated = replace(generated, pruned={**generated.pruned, **dropped})
        return SearchResult(
            ready.formulas,
            self.proved,
            generated,
            proofs.counts[Status.REFUTED],
            proofs.counts[Status.UNKNOWN],
            ready.classes.enodes,
            ready.classes.stopped,
            {stage: self._seconds.get(stage, 0.0) for stage in ("saturation", "generation", "proof")},
            self._ready is None or generated.ended or len(proofs.decided) < len(proofs.candidates),
            self._first,
        )

    def run(self) -> SearchResult:
        """All of it.

        Raises:
            SearchInterruptedError: Ctrl-C after the first proof; it holds what was proved.
        """
        try:
            for _ in self:
                pass
        except KeyboardInterrupt as error:
            if self.proved:
                raise SearchInterruptedError(self.result()) from error
            raise
        return self.result()

    def winners(self, ranges: Mapping[str, SymbolRange] | None = None) -> tuple[Winner, ...]:
        """The few of what has been proved so far that are best somewhere, each with where.

        Predicates are over the program's symbolic dimensions, disjoint, and cover their ranges; without any there is
        one winner, everywhere. By estimate, see prism.generate.dispatch.

        Args:
            ranges: the lengths of interest by symbolic dimension; the program's own by default.
        """
        found = [p.sgraph for p in self.proved]
        return dispatch_table(found, ranges if ranges is not None else self._program.ranges, self._target)

    def close(self) -> None:
        """End the search; its own workers are killed, what was proved stays."""
        if not self._closed:
            self._finish()
        self._end()

    def _finish(self) -> None:
        self._closed = True
        if self._ready is not None:
            self._recorder.finish("proof", f"{len(self._ready.proofs.proved)} proved")
        self._end()

    def _prepare(self, until: Deadline, soon: bool = True) -> _Ready:
        """Everything before the first proof, which is to be had by then.

        But for that of the form as written, where one is wanted `soon`.
        """
        why = nothing_to_gain(self._program)
        if why:
            self._recorder.warn(f"there is nothing to gain: {why}")
        formulas, pieces = formulas_of(self._program)
        reference = tuple(f.expr for f in formulas)
        given = facts(self._program.inputs)
        limit, worker, recorder = self._budget.saturation(), self._workers[0], self._recorder
        self._soon, self._ahead = None, ()
        with recorder.stage("start-up") as detail:
            worker.ready()
            detail.append("egglog and the rules are loaded")
        self._began = recorder.clock()
        with recorder.stage("saturation") as detail:
            inserted = tuple(f.expr for f in pieces)
            classes = self._timed("saturation", lambda: worker.explore(inserted, limit, given, beside=not soon))
            detail.append(f"{classes.enodes:,} e-nodes, {classes.stopped}")
        second = SecondOpinions(self._program, formulas, rules=worker.rules)
        inputs, saturated = self._program.inputs, pieces == formulas
        proofs = Proofs(reference, (), self._workers, limit, recorder, second, inputs, saturated=saturated)

        def at_once(candidate: Candidate) -> None:
            proofs.go_on((candidate,))
            self._timed("proof", lambda: self._decide(proofs, 0))
            self._soon = _Ready(formulas, classes, Generated((candidate,), 1, {}, False), proofs)
            self._ahead = proofs.proved

        with recorder.stage("generation") as detail:
            task = self._task(pieces, classes)
            bounds, told, left = self._budget.bounds(), at_once if soon else None, until.left

            def ends() -> Deadline:
                return until.moved(-self._left_for_proofs(left))

            generated = self._timed("generation", lambda: generate(task, bounds, told, ends))
            if until.finite:
                by_turns = sorted(generated.candidates, key=lambda c: c.turn)
                generated = replace(generated, candidates=tuple(by_turns))
            self._seconds["generation"] -= self._seconds.get("proof", 0.0)
            detail.append(f"{generated.generated:,} built, {len(generated.candidates)} left")
        proofs.go_on(generated.candidates)
        return _Ready(formulas, classes, generated, proofs)

    def _decide(self, proofs: Proofs, n: int) -> None:
        proofs.decide(n)
        if self._first is None and proofs.proved:
            self._first = self._recorder.clock() - self._began

    def _task(self, pieces: tuple[Formula, ...], classes: EClasses) -> Task:
        p = self._program
        shapes = points(p.ranges) if p.ranges else ()
        launches = len(operators(p))
        return Task(p.name, p.inputs, pieces, classes, p.hints, self._target, shapes, launches, operands_type(p))

    def _left_for_proofs(self, given: float) -> float:
        """Of so many seconds for generation and proofs what generation leaves."""
        most = min(PROOFS * given, PROOFS_S)
        if not self._ahead:
            return most
        return min(most, max(LEAST_PROOFS * given, AFTER_FIRST * self._seconds["proof"]))

    def _is_late(self) -> bool:
        """Whether its time is over, and something proved."""
        return not self._until.left and bool(self.proved)

    def _timed(self, stage: str, work: Callable[[], T]) -> T:
        """This search's own seconds; a recorder may serve several."""
        before = self._recorder.clock()
        try:
            with _young():
                return work()
        finally:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + self._recorder.clock() - before


YOUNG = 500_000
"""Objects that are made between two collections during a search."""


@contextmanager
def _young() -> Iterator[None]:
    """Only young objects are collected within, many at once.

    A full collection walks through all of torch, as long as a search; and of what a search makes little is in cycles.
    """
    before = gc.get_threshold()
    gc.set_threshold(YOUNG, before[1], 2**31 - 1)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A search whose candidates are known."""

    formulas: tuple[Formula, ...]
    classes: EClasses
    generated: Generated
    proofs: Proofs


def enough(program: Program, found: SearchResult) -> bool:
    """Whether a program's search as one region is all there is: something was proved, or it has no smaller parts."""
    return bool(found.proved) or program.operator_count == 1


def run_search(
    program: Program,
    target: Device,
    budget: SearchBudget,
    worker: Worker,
    recorder: Recorder,
    until: Deadline = NEVER,
    begun: Search | None = None,
    patience: float = 0.0,
) -> SearchResult:
    """The whole search, stage by stage; see the module. It ends at a moment, if something was proved by then.

    One of the same that has `begun` goes on. What is under way at that moment has so many more seconds, the `patience`.

    Raises:
        UnsupportedError: an index of the program cannot be made affine.
        WorkerError: the e-graph worker died or ran past its time limit.
        SearchInterruptedError: Ctrl-C after the first proof; it holds what was proved.
    """
    search = (begun or Search(program, target, budget, (worker,), recorder)).ending(until)
    with until.moved(patience).limited(lambda: bool(search.proved)) as limit:
        try:
            return search.run()
        except SearchInterruptedError as error:
            if not limit.rung:
                raise
            return error.result


def _close(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.close()
