"""Search: saturate the reference, generate sGraphs, prove them.

The proofs of sGraphs whose splits leave no trace in their denotation share the saturated reference; those that combine
rescaled partial results are proved against the reference written over (part, rest) of the split axis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prism.egraph.budget import Budget
from prism.egraph.worker import Worker
from prism.errors import IllegalIRError
from prism.events import Funnel, Listener, Recorder
from prism.instantiate.devices import Device, device
from prism.program.extents import Extent
from prism.program.inline import inline
from prism.program.nodes import Const, Expr, Formula, Program
from prism.sgraph import spec
from prism.sgraph.classes import EClasses
from prism.sgraph.denote import Denotation, denote, expand
from prism.sgraph.generate import Bounds, Candidate, Generated, Task, generate
from prism.sgraph.nodes import SGraph
from prism.sgraph.prune import Rates
from prism.sgraph.verdict import Status, Verdict


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """What bounds a search. Equal budgets give equal results.

    Attributes:
        max_kernels: launches in one sGraph, second stages of splits not counted.
        max_sgraphs: sGraphs handed to the prover, best first.
        enodes: e-nodes at which saturation stops.
        iterations: rounds of the rules at which saturation stops.
        seconds: limit at which the e-graph worker is killed; reaching it is an error, not a result.
    """

    max_kernels: int = 3
    max_sgraphs: int = 32
    enodes: int = 8000
    iterations: int = 16
    seconds: float = 120.0

    def as_dict(self) -> dict[str, int]:
        """The bounds that determine the result."""
        return {
            "max_kernels": self.max_kernels,
            "max_sgraphs": self.max_sgraphs,
            "enodes": self.enodes,
            "iterations": self.iterations,
        }


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
    """

    formulas: tuple[Formula, ...]
    proved: tuple[ProvedSGraph, ...]
    generated: Generated
    refuted: int
    unknown: int
    enodes: int
    stopped: str
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def funnel(self) -> Funnel:
        """The counts."""
        return Funnel(self.generated.generated, self.generated.pruned, len(self.proved), self.refuted, self.unknown)


def rates(d: Device) -> Rates:
    """The device as the generator ranks by it."""
    return Rates(d.bandwidth_bytes_s, d.fp32_flops / 2, d.launch_overhead_s, d.sms)


def run_search(
    program: Program, target: Device, budget: SearchBudget, worker: Worker, recorder: Recorder
) -> SearchResult:
    """The whole search, stage by stage; see the module."""
    formulas = inline(program)
    reference = tuple(f.expr for f in formulas)
    limit = Budget(enodes=budget.enodes, iterations=budget.iterations, seconds=budget.seconds)
    with recorder.stage("start-up") as detail:
        worker.explore((Const(1.0),), limit)
        detail.append("egglog and the rules are loaded")
    with recorder.stage("saturation") as detail:
        classes = worker.explore(reference, limit)
        detail.append(f"{classes.enodes:,} e-nodes, {classes.stopped}")
    with recorder.stage("generation") as detail:
        found = _generate(program, formulas, classes, target, budget)
        detail.append(f"{found.generated:,} built, {len(found.candidates)} left")
    with recorder.stage("proof") as detail:
        proved, counts = _prove(reference, found.candidates, worker, limit, recorder)
        detail.append(f"{len(proved)} proved")
    return SearchResult(
        formulas,
        tuple(proved),
        found,
        counts[Status.REFUTED],
        counts[Status.UNKNOWN],
        classes.enodes,
        classes.stopped,
        {stage: recorder.seconds[stage] for stage in ("saturation", "generation", "proof")},
    )


def _generate(
    program: Program, formulas: tuple[Formula, ...], classes: EClasses, target: Device, budget: SearchBudget
) -> Generated:
    task = Task(program.name, program.inputs, formulas, classes, program.hints, target, rates(target))
    return generate(task, Bounds(max_kernels=budget.max_kernels, max_sgraphs=budget.max_sgraphs))


def _prove(
    reference: tuple[Expr, ...], candidates: Sequence[Candidate], worker: Worker, limit: Budget, recorder: Recorder
) -> tuple[list[ProvedSGraph], Counter[Status]]:
    """The candidates that are proved, in their order, and how many were not."""
    groups: dict[tuple[Extent, ...], list[tuple[int, Candidate, Denotation]]] = {}
    counts: Counter[Status] = Counter()
    for n, c in enumerate(candidates):
        try:
            spec.check(c.sgraph)
            meaning = denote(c.sgraph)
        except IllegalIRError as error:
            recorder.warn(f"an sGraph was dropped: {error}")
            counts[Status.UNKNOWN] += 1
            continue
        groups.setdefault(meaning.split, []).append((n, c, meaning))
    proved: dict[int, ProvedSGraph] = {}
    for split, group in sorted(groups.items(), key=lambda g: (len(g[0]), str(g[0]))):
        if split:
            worker.explore(tuple(expand(e, split) for e in reference), limit)
        # Families that differ by roles and cuts alone denote the same: one proof serves them all.
        distinct = list(dict.fromkeys(m.outputs for _, _, m in group))
        answers = dict(zip(distinct, worker.prove(distinct), strict=True))
        for n, c, meaning in group:
            verdict = answers[meaning.outputs]
            counts[verdict.status] += 1
            if verdict:
                proved[n] = ProvedSGraph(c.sgraph, verdict, meaning, c.seconds)
    return [proved[n] for n in sorted(proved)], counts


def search(
    program: Program,
    *,
    target: str = "sm_90",
    budget: SearchBudget | None = None,
    listener: Listener | None = None,
) -> Iterator[ProvedSGraph]:
    """Proved sGraphs of a program, best bound first.

    Args:
        program: from `load` or `trace`.
        target: the device whose limits prune and whose rates order: sm_80, sm_89, sm_90, sm_100.
        budget: bounds of the search.
        listener: called with progress events.

    Raises:
        UsageError: the target is unknown.
        UnsupportedError: an index of the program cannot be made affine.
        WorkerError: the e-graph worker ran into its time limit twice.
    """
    chosen = device(target)
    with Worker() as worker:
        yield from run_search(program, chosen, budget or SearchBudget(), worker, Recorder(listener)).proved
