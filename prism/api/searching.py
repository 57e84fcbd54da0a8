"""Search: saturate the reference, generate sGraphs, prove them one small batch after another.

    saturation   the formulas of the outputs go into the e-graph worker, all rules run, the e-classes come back
    generation   candidates from the e-classes, best bound first
    proof        the candidates in that order; each is handed on as soon as it and all better ones are decided

Candidates whose splits leave no trace in their denotation share the saturated reference; those that combine rescaled
partial results are proved against the reference written over (part, rest) of the split axis. A batch is of one
reference and holds the candidate whose turn it is; what is decided ahead of its turn waits for it. The worker keeps the
last few references, so going back to one costs nothing.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeAlias, TypeVar

from prism.api.gain import nothing_to_gain
from prism.egraph.budget import Budget
from prism.egraph.worker import Worker
from prism.errors import IllegalIRError, UsageError
from prism.events import Funnel, Listener, Recorder
from prism.instantiate.devices import Device, device
from prism.program.extents import Extent
from prism.program.inline import inline
from prism.program.nodes import Expr, Formula, Program
from prism.sgraph import spec
from prism.sgraph.classes import EClasses
from prism.sgraph.denote import Denotation, denote, expand
from prism.sgraph.generate import Bounds, Candidate, Generated, Task, generate
from prism.sgraph.nodes import SGraph
from prism.sgraph.prune import PRUNERS, Rates
from prism.sgraph.verdict import Status, Verdict

T = TypeVar("T")
_Split: TypeAlias = tuple[Extent, ...]

BATCH = 4
"""Denotations that the prover is asked about at once."""
AHEAD = 8
"""How far beyond the candidate whose turn it is a batch looks for others of the same reference."""


_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """What bounds a search: of the space, of the e-graph, of time. Equal budgets give equal results.

    Attributes:
        max_kernels: launches in one sGraph, second stages of splits not counted. 3.
        max_ops: operators (pointwise, reductions, products) in one kernel. 64.
        max_loops: loops in one kernel, nested or one after another. 6.
        max_forms: forms (one way to compute each value) that are walked. 16.
        max_cuts: values of a form that are considered for materialisation. 6.
        max_families: families of kernels that are built, for the plans with the least lower bound of time. 120.
        max_sgraphs: sGraphs handed to the prover, best first. 32.
        enodes: e-nodes at which saturation stops. 8000.
        iterations: rounds of the rules at which saturation stops. 16.
        seconds: limit at which the e-graph worker is killed; reaching it is an error, not a result. 120.
        off: pruners (`prism.sgraph.prune.PRUNERS`) that are switched off: slower, and not better.

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

    def __post_init__(self) -> None:
        for name, value in (*self.as_dict().items(), ("seconds", self.seconds)):
            if value <= 0:
                raise UsageError(f"a bound of {value}", where=name, fix="give 1 or more")
        unknown = sorted(self.off - PRUNERS.keys())
        if unknown:
            known = ", ".join(PRUNERS)
            raise UsageError(f"there is no pruner {unknown[0]}", where="off", fix=f"there are: {known}")

    def as_dict(self) -> dict[str, int]:
        """What determines the result, by name; a pruner that is off as `off.NAME`."""
        bounds = {f.name: int(getattr(self, f.name)) for f in fields(self) if f.name not in ("seconds", "off")}
        return bounds | {f"off.{name}": 1 for name in sorted(self.off)}

    def bounds(self) -> Bounds:
        """The generator's part of it."""
        return Bounds(
            max_kernels=self.max_kernels,
            max_ops=self.max_ops,
            max_loops=self.max_loops,
            max_forms=self.max_forms,
            max_cuts=self.max_cuts,
            max_families=self.max_families,
            max_sgraphs=self.max_sgraphs,
            off=self.off,
        )

    def saturation(self) -> Budget:
        """The e-graph's part of it."""
        return Budget(enodes=self.enodes, iterations=self.iterations, seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class ProvedSGraph:
    """An sGraph with its proof.

    Attributes:
        sgraph: the family.
        verdict: proved, and how.
        denotation: what it computes, as the prover read it off.
        seconds: its least estimated time by the ranking model; only for ordering.
    """

    sgraph: SGraph
    verdict: Verdict
    denotation: Denotation
    seconds: float


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
        interrupted: whether candidates are left that nobody has tried to prove.
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

    @property
    def funnel(self) -> Funnel:
        """The counts."""
        return Funnel(self.generated.generated, self.generated.pruned, len(self.proved), self.refuted, self.unknown)


class SearchInterruptedError(KeyboardInterrupt):
    """Ctrl-C while sGraphs were being proved. A KeyboardInterrupt, so who does not care about the rest just ends.

    Attributes:
        result: what had been proved by then.
    """

    def __init__(self, result: SearchResult) -> None:
        super().__init__(f"{len(result.proved)} sGraphs had been proved")
        self.result = result


class Search(Iterator[ProvedSGraph]):
    """One search, as an iterator over its proved sGraphs, best bound first.

    Nothing is saturated before the first is asked for, and no more is proved than was asked for, but for a batch. An
    interrupt loses nothing that was decided: `proved` and `result` say what there is, and the iteration can go on.

    Args:
        program: what is searched.
        target: the device whose limits prune and whose rates order.
        budget: bounds.
        workers: the e-graph worker, and others that take references off it where there are several.
        recorder: gets the stages.
        owned: whether the workers end with the search.
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
    ) -> None:
        self._program = program
        self._target = target
        self._budget = budget
        self._workers = tuple(workers)
        self._recorder = recorder
        self._ready: _Ready | None = None
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
        """
        if self._closed:
            raise StopIteration
        if self._ready is None:
            self._ready = self._prepare()
        proofs = self._ready.proofs
        while self._next < len(proofs.candidates):
            if self._next not in proofs.decided:
                with self._recorder.part("proof"):
                    self._timed("proof", lambda: proofs.decide(self._next))
                self._recorder.count("sGraphs", len(proofs.decided), len(proofs.candidates))
            found = proofs.decided[self._next]
            self._next += 1
            if found is not None:
                return found
        self._finish()
        raise StopIteration

    def __enter__(self) -> Search:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def proved(self) -> tuple[ProvedSGraph, ...]:
        """What has been proved so far, best first; also what is ahead of its turn."""
        return () if self._ready is None else self._ready.proofs.proved

    def result(self) -> SearchResult:
        """What has been found so far; all of it once the iteration has ended.

        Raises:
            UsageError: nothing has been asked for yet, so there is nothing to tell.
        """
        if self._ready is None:
            raise UsageError("the search has not begun", fix="ask for the first sGraph: next(search)")
        ready, proofs = self._ready, self._ready.proofs
        return SearchResult(
            ready.formulas,
            proofs.proved,
            ready.generated,
            proofs.counts[Status.REFUTED],
            proofs.counts[Status.UNKNOWN],
            ready.classes.enodes,
            ready.classes.stopped,
            {stage: self._seconds.get(stage, 0.0) for stage in ("saturation", "generation", "proof")},
            len(proofs.decided) < len(proofs.candidates),
        )

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

    def _prepare(self) -> _Ready:
        """Everything before the first proof."""
        why = nothing_to_gain(self._program)
        if why:
            self._recorder.warn(f"there is nothing to gain: {why}")
        formulas = inline(self._program)
        reference = tuple(f.expr for f in formulas)
        limit, worker, recorder = self._budget.saturation(), self._workers[0], self._recorder
        with recorder.stage("start-up") as detail:
            worker.ready()
            detail.append("egglog and the rules are loaded")
        with recorder.stage("saturation") as detail:
            classes = self._timed("saturation", lambda: worker.explore(reference, limit))
            detail.append(f"{classes.enodes:,} e-nodes, {classes.stopped}")
        with recorder.stage("generation") as detail:
            generated = self._timed("generation", lambda: self._generate(formulas, classes))
            detail.append(f"{generated.generated:,} built, {len(generated.candidates)} left")
        return _Ready(
            formulas, classes, generated, _Proofs(reference, generated.candidates, self._workers, limit, recorder)
        )

    def _generate(self, formulas: tuple[Formula, ...], classes: EClasses) -> Generated:
        p = self._program
        task = Task(p.name, p.inputs, formulas, classes, p.hints, self._target, rates(self._target))
        return generate(task, self._budget.bounds())

    def _timed(self, stage: str, work: Callable[[], T]) -> T:
        """This search's own seconds; a recorder may serve several."""
        before = self._recorder.clock()
        try:
            return work()
        finally:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + self._recorder.clock() - before


@dataclass(frozen=True, slots=True)
class _Ready:
    """A search whose candidates are known."""

    formulas: tuple[Formula, ...]
    classes: EClasses
    generated: Generated
    proofs: _Proofs


class _Proofs:
    """Decides candidates in batches.

    A verdict depends on the reference and on the denotation alone: the worker forgets a candidate before the next. So
    it does not matter how candidates are batched, nor which worker is asked, nor how often.
    """

    def __init__(
        self,
        reference: tuple[Expr, ...],
        candidates: Sequence[Candidate],
        workers: Sequence[Worker],
        limit: Budget,
        recorder: Recorder,
    ) -> None:
        self.candidates = candidates
        self.decided: dict[int, ProvedSGraph | None] = {}
        self.counts: Counter[Status] = Counter()
        self._reference = reference
        self._workers = workers
        self._limit = limit
        self._recorder = recorder
        # Families that differ by roles and cuts alone denote the same: one proof serves them all.
        self._distinct: dict[Denotation, int] = {}
        self._meanings: list[Denotation] = []
        self._meaning: dict[int, int] = {}
        self._verdicts: dict[int, Verdict] = {}
        # Which reference each worker holds: the first has just saturated the program's own.
        self._held: list[_Split | None] = [(), *(None for _ in workers[1:])]

    @property
    def proved(self) -> tuple[ProvedSGraph, ...]:
        """Those that were proved, best first."""
        found = (self.decided[n] for n in sorted(self.decided))
        return tuple(p for p in found if p is not None)

    def decide(self, n: int) -> None:
        """Decide candidate n; others are decided on the way."""
        while n not in self.decided:
            turn = self._needs(n)
            if turn is None:
                return
            lanes = {0: (turn, n)} if len(self._workers) == 1 else self._lanes(n)
            self._ask({lane: (split, self._batch(m, split)) for lane, (split, m) in lanes.items()}, n)

    def _lanes(self, n: int) -> dict[int, tuple[_Split, int]]:
        """A reference for every worker, as long as there are any; each goes on with the one that it holds."""
        waiting: dict[_Split, int] = {}
        for m in range(n, len(self.candidates)):
            split = self._needs(m)
            if split is not None:
                waiting.setdefault(split, m)
        lanes = {lane: (h, waiting.pop(h)) for lane, h in enumerate(self._held) if h is not None and h in waiting}
        free = [lane for lane in range(len(self._workers)) if lane not in lanes]
        return lanes | dict(zip(free, waiting.items(), strict=False))

    def _needs(self, n: int) -> _Split | None:
        """The reference that candidate n is proved against; None when it is decided, or not legal and so dropped."""
        if n in self.decided:
            return None
        if n not in self._meaning:
            try:
                spec.check(self.candidates[n].sgraph)
                meaning = denote(self.candidates[n].sgraph)
            except IllegalIRError as error:
                self._recorder.warn(f"an sGraph was dropped: {error}")
                self.counts[Status.UNKNOWN] += 1
                self.decided[n] = None
                return None
            self._meaning[n] = self._distinct.setdefault(meaning, len(self._meanings))
            if self._meaning[n] == len(self._meanings):
                self._meanings.append(meaning)
            if self._meaning[n] in self._verdicts:
                self._settle(n)
                return None
        return self._meanings[self._meaning[n]].split

    def _batch(self, n: int, split: _Split) -> list[int]:
        """The denotations to ask about: candidate n's, and others of the same reference among the next few."""
        found: dict[int, None] = {}
        for m in range(n, min(n + AHEAD, len(self.candidates))):
            if len(found) == BATCH:
                break
            if self._needs(m) == split:
                found[self._meaning[m]] = None
        return list(found)

    def _ask(self, batches: Mapping[int, tuple[_Split, list[int]]], n: int) -> None:
        """Ask each lane's worker about its batch, all at the same time; meanwhile, read off the next candidates."""
        for lane, (split, batch) in batches.items():
            self._refer(lane, split)
            self._workers[lane].submit([self._meanings[m].outputs for m in batch])
        for m in range(n, min(n + 2 * AHEAD, len(self.candidates))):
            self._needs(m)
        for lane, (_, batch) in batches.items():
            self._verdicts.update(zip(batch, self._workers[lane].collect(), strict=True))
        for m in sorted(self._meaning.keys() - self.decided.keys()):
            if self._meaning[m] in self._verdicts:
                self._settle(m)

    def _refer(self, lane: int, split: _Split) -> None:
        """Make the worker hold the reference; as e-classes only the program's own is of use."""
        if self._held[lane] == split:
            return
        self._held[lane] = None
        if split:
            self._workers[lane].refer(tuple(expand(e, split) for e in self._reference), self._limit)
        else:
            self._workers[lane].explore(self._reference, self._limit)
        self._held[lane] = split

    def _settle(self, n: int) -> None:
        c, m = self.candidates[n], self._meaning[n]
        verdict = self._verdicts[m]
        self.counts[verdict.status] += 1
        self.decided[n] = ProvedSGraph(c.sgraph, verdict, self._meanings[m], c.seconds) if verdict else None


def rates(d: Device) -> Rates:
    """The device as the generator ranks by it."""
    return Rates(d.bandwidth_bytes_s, d.fp32_flops / 2, d.launch_overhead_s, d.sms)


def run_search(
    program: Program,
    target: Device,
    budget: SearchBudget,
    worker: Worker,
    recorder: Recorder,
    helpers: Sequence[Worker] = (),
) -> SearchResult:
    """The whole search, stage by stage; see the module.

    Args:
        program: what is searched.
        target: the device whose limits prune and whose rates order.
        budget: bounds.
        worker: the e-graph worker.
        recorder: gets the stages.
        helpers: more workers; they change how long it takes and nothing else.

    Raises:
        UnsupportedError: an index of the program cannot be made affine.
        WorkerError: the e-graph worker died or ran past its time limit.
        SearchInterruptedError: Ctrl-C after the first proof; it holds what was proved.
    """
    running = Search(program, target, budget, (worker, *helpers), recorder)
    try:
        for _ in running:
            pass
    except KeyboardInterrupt as error:
        if running.proved:
            raise SearchInterruptedError(running.result()) from error
        raise
    return running.result()


def search(
    program: Program,
    *,
    target: str = "sm_90",
    budget: SearchBudget | None = None,
    listener: Listener | None = None,
    workers: int = 1,
) -> Search:
    """Proved sGraphs of a program, best bound first, each as soon as it is proved.

        for found in prism.search(program):        # stop whenever you have seen enough
            print(found.sgraph)

    Args:
        program: from `load` or `trace`.
        target: the device whose limits prune and whose rates order: sm_80, sm_89, sm_90, sm_100.
        budget: bounds of the search.
        listener: called with progress events.
        workers: processes that prove. The sGraphs and their order do not depend on it.

    Returns:
        An iterator that is also a context manager; `.proved` and `.result()` keep what was found when it is
        interrupted. Its processes end with the iteration, `close()`, or when nobody holds it any more.

    Raises:
        UsageError: the target is unknown, or there are no workers.
    """
    if workers < 1:
        raise UsageError(f"{workers} workers", where="search", fix="give 1 or more")
    chosen = device(target)
    running = [Worker() for _ in range(workers)]
    return Search(program, chosen, budget or SearchBudget(), running, Recorder(listener), owned=True)


def _close(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.close()
