"""The records of a finished run: the report, the proof record and the lock, as an output folder takes them."""

from __future__ import annotations

import math
import resource
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from prism.api.proofs import ProvedSGraph
from prism.api.region_search import SearchBudget, SearchResult
from prism.backends.protocol import ModuleSource
from prism.contents import Content
from prism.cost.constraints import constraints
from prism.cost.device import Device
from prism.cost.model import CostModel
from prism.egraph.derivation.certificate import Derivation, replay
from prism.egraph.rules import read_rule_files, rule_files
from prism.egraph.worker import Worker
from prism.errors import WorkerError
from prism.events import (
    Argument,
    Artifacts,
    CheckSummary,
    ContenderReport,
    KernelReport,
    LockRecord,
    MeasurementReport,
    ProofRecord,
    Recorder,
    RunReport,
)
from prism.instantiate.confirm import MATCHES, Confirmation, Standing
from prism.instantiate.lock import program_hash, versions
from prism.instantiate.measure import BASELINE, KERNEL
from prism.instantiate.options import shown
from prism.instantiate.study import Best, Failure, TuneResult
from prism.platforms.platform import Platform
from prism.process.deadline import Deadline, OutOfTimeError
from prism.program.assumptions import facts
from prism.program.extents import Extent, evaluate
from prism.program.identity.testing import Opinion
from prism.program.integers import assumptions
from prism.program.nodes import Expr, Formula, Program, Reduce, walk
from prism.program.pretty import formula_text
from prism.program.verdict import Verdict
from prism.report.units import OURS, on_threads
from prism.sgraph import record as sgraph_file
from prism.sgraph.denote import Denotation, expand, split_axes
from prism.sgraph.folding import bound, chosen_folds, launches_under
from prism.sgraph.nodes import Grid, LoopRole, Role, Split
from prism.sgraph.ranges import assumed
from prism.sgraph.show import dot, text


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, and what it was compared with."""

    proved: ProvedSGraph  # the sGraph and its proof
    best: Best  # its configuration, seconds and resources
    model: CostModel  # the cost model of the sGraph
    tuned: TuneResult  # the study it comes from
    checked: CheckSummary  # the numeric check that it passed
    baseline_seconds: float  # the time of what was given
    baseline: str  # what that is
    opinion: Opinion | None = None  # what the identity test says of the proof
    confirmation: Confirmation | None = None  # how both were measured; None where they are estimated
    missing: Mapping[str, str] = field(default_factory=dict)  # baselines that were not timed, and why
    # Of a stored confirmation, how many cores others keep busy now; None where that is not known.
    others_now: float | None = None

    @property
    def better(self) -> bool:
        """Whether it is faster than what it was compared with: in every measurement, where times are measured."""
        return self.best.seconds < self.baseline_seconds if self.confirmation is None else self.confirmation.won


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for: see `optimize`; `rules` are all rule files, None for those that ship with prism.

    A program that need not beat anything by itself, being a region of another, has no `baselines`; `matches` is how
    often others meet theirs, at most.
    """

    program: Program
    target: str
    device: Device
    device_name: str
    budget: SearchBudget
    trials: int
    seed: int
    rules: tuple[Path, ...] | None = None
    baselines: tuple[str, ...] = ()
    matches: int = MATCHES


def formulas(found: SearchResult) -> dict[str, str]:
    """The formula of each output, as text."""
    return {f.tensor.name: formula_text(f) for f in found.formulas}


def artifacts(
    request: Request,
    found: SearchResult,
    choice: Choice,
    module: ModuleSource,
    platform: Platform,
    recorder: Recorder,
    derived: Derivation,
    where: str,
    sgraph: tuple[str, str],
    weights: Content | None,
) -> Artifacts:
    """Everything that the output folder holds.

    `where` is from `conditions`; `sgraph` is the chosen one's key, and the sGraph as its file has it.
    """
    told, verdict, program = text(choice.proved.sgraph), _verdict(request, choice.proved), str(request.program)
    report = _report(request, found, choice, recorder, verdict, f"{told.rstrip()}\n{where}")
    report = replace(
        report, rung=_rung(derived), backend=platform.backend.name, compiler=platform.compiler, memory=platform.memory
    )
    extra = {**module.extra, sgraph_file.NAME: sgraph[1]}
    return Artifacts(
        report,
        labelled(module.text, report),
        _proof(request, choice.proved, derived, verdict, program, told),
        LockRecord(
            program=program_hash(request.program),
            sgraph=sgraph[0],
            target=request.target,
            device=request.device_name,
            evidence=choice.tuned.evidence,
            config=choice.best.config.flat(),
            shapes=dict(sorted(request.program.hints.items())),
            seed=request.seed,
            trials=request.trials,
            budget=dict(sorted(request.budget.as_dict().items())),
            versions=versions(),
            compiler=platform.compiler,
            baseline=choice.baseline,
        ),
        program,
        weights,
        derived.certificate,
        dict(sorted(extra.items())),
    )


def labelled(module: str, report: RunReport) -> str:
    """The module's source; its header says how firmly it was proved, by which rules, and under which assumptions."""
    of = f", with rules of class {', '.join(report.classes)}" if report.classes else ""
    said = f"Proof: {report.verdict}, certificate: {report.rung}{of}. `prism verify` checks it again."
    if report.assumptions:
        said += "\nFor inputs that are finite numbers, assuming"
        said += "".join(f"\n- {clause}" for clause in report.assumptions)
    return module.replace("\nThe sGraph that it implements", f"\n{said}\n\nThe sGraph that it implements", 1)


def certificate_of(
    request: Request,
    found: SearchResult,
    choice: Choice,
    recorder: Recorder,
    worker: Worker | None = None,
    until: Deadline | None = None,
) -> Derivation:
    """The certificate of the chosen sGraph; the worker, one of the request's rules and class, derives.

    Where that takes beyond `until`, the certificate says what is to be proved again.
    """
    denotation = choice.proved.denotation
    names = [f.tensor.name for f in found.formulas]
    reference = reference_of(found.formulas, denotation)
    given = facts(request.program.inputs)
    with recorder.stage("certificate") as detail:
        try:
            own = nullcontext(worker) if worker else Worker(request.rules, fp=request.budget.fp)
            with (until or Deadline()).limited(), own as running:
                derived = running.derive(names, reference, denotation.outputs, given)
        except WorkerError as error:
            derived = replay(names, reference, denotation.outputs, error.one_line(), given)
        except OutOfTimeError:
            derived = replay(names, reference, denotation.outputs, "the time ended", given)
        detail.append(_rung(derived))
    return derived


def reference_of(formulas: Sequence[Formula], denotation: Denotation) -> list[Expr]:
    """The formulas, written over the parts of the axes that the denotation splits.

    A whole of several regions has the splits of all; an output is written over the parts that it mentions.
    """
    return [
        expand(f.expr, [e for e in denotation.split if split_axes(e)[0].extent in _bound(d)])
        for f, d in zip(formulas, denotation.outputs, strict=True)
    ]


def _bound(e: Expr) -> set[Extent]:
    """The extents of bound axes."""
    return {x.axis.extent for x in walk(e) if isinstance(x, Reduce)}


def _rung(derived: Derivation) -> str:
    return "replay" if derived.reason else f"derivation of {derived.steps} steps"


def _report(
    request: Request, found: SearchResult, choice: Choice, recorder: Recorder, verdict: Verdict, told: str
) -> RunReport:
    sgraph, best = choice.proved.sgraph, choice.best
    prepared = [x for x in sgraph.launches if x.kernels[0].name in sgraph.prepared]
    kept = [sgraph.tensors[t] for x in prepared for k in x.kernels for t in k.writes]
    return RunReport(
        name=request.program.name,
        formulas=formulas(found),
        target=request.target,
        device=request.device_name,
        evidence=choice.tuned.evidence,
        baseline_seconds=choice.baseline_seconds,
        best_seconds=best.seconds,
        operator_count=request.program.operator_count,
        kernel_count=len(launches_under(sgraph, best.config)) - len(prepared),
        prepared_bytes=sum(math.prod(map(int, t.shape)) * t.dtype.bytes for t in kept),
        funnel=replace(found.funnel, timed_or_estimated=len({t.point.candidate for t in choice.tuned.trials})),
        stages=dict(recorder.seconds),
        enodes=found.enodes,
        peak_mb=peak_mb(),
        kernels=_kernels(choice),
        sgraph_text=told,
        sgraph_dot=dot(sgraph),
        verdict=verdict.status.value,
        reason=verdict.reason,
        assumptions=verdict.assumptions,
        rules=verdict.rules,
        classes=verdict.classes,
        check=choice.checked,
        config=best.config.flat(),
        seed=request.seed,
        versions=versions(),
        shapes=request.program.hints,
        warnings=(*recorder.warnings, *_not_compared(request.program)),
        baseline=choice.baseline,
        arguments=_arguments(request.program),
        measurement=_measurement(choice),
        conformance=str(request.program.conformance or ""),
    )


def _measurement(choice: Choice) -> MeasurementReport | None:
    """How the times were measured; None where they are estimated."""
    found = choice.confirmation
    return None if found is None else measured(found, choice.missing, choice.others_now)


def measured(
    found: Confirmation, missing: Mapping[str, str] = MappingProxyType({}), others_now: float | None = None
) -> MeasurementReport:
    """How times were measured.

    `missing` are baselines that were not timed, and why; `others_now`, of stored matches, is how many cores others keep
    busy now.
    """
    deciding = found.deciding
    kernel, baseline = deciding.best(KERNEL), deciding.best(BASELINE)
    met = {(s.name, s.threads) for s in deciding.standings}
    others = [s for s in found.matches[0].standings if s.side == BASELINE and (s.name, s.threads) not in met]
    left_out = {**missing, **not_timed([*deciding.standings, *others])}
    contenders = []
    for s in (*deciding.standings, *others):
        m = s.timed.measurement
        if m is not None and (s.side == BASELINE or (kernel is not None and s.name == kernel.name)):
            name, chosen = OURS if s.side == KERNEL else s.name, s in (kernel, baseline)
            contenders.append(ContenderReport(name, s.threads, m.lower, m.median, m.upper, m.samples, chosen))
    return MeasurementReport(
        tuple(contenders),
        found.ratios,
        found.date,
        found.stored,
        max((x.cores for x in found.loads), default=0),
        max((x.threads for x in found.loads), default=0),
        max((x.others for x in found.loads if x.others is not None), default=None),
        max((x.average for x in found.loads if x.average is not None), default=None),
        left_out,
        found.between,
        found.won,
        others_now,
    )


def not_timed(standings: Sequence[Standing], but: Failure | None = None) -> dict[str, str]:
    """Contenders that have no time, and why, but for one reason; what fails alike on several threads is said once."""
    alike: dict[tuple[str, str], list[int]] = {}
    for s in standings:
        if s.timed.failure not in (None, but):
            name = OURS if s.side == KERNEL else s.name
            alike.setdefault((name, s.timed.detail), []).append(s.threads)
    return {
        on_threads(name, many[0]) + "".join(f" and on {n}" for n in many[1:]): why
        for (name, why), many in alike.items()
    }


def _not_compared(program: Program) -> list[str]:
    """What the comparison with the model, made as it was read, left out."""
    made = program.conformance
    return [str(made)] if made is not None and made.missing else []


def _verdict(request: Request, proved: ProvedSGraph) -> Verdict:
    """The proof's verdict, with what the program takes for granted of its inputs, and what the kernels do of masks."""
    return proved.verdict.assuming((*assumptions(request.program), *assumed(proved.sgraph.kernels)))


def _arguments(program: Program) -> tuple[Argument, ...]:
    """What the emitted function is called with: the inputs that are no weights."""
    return tuple(
        Argument(
            t.name,
            t.dtype.value,
            tuple(evaluate(e, program.hints) for e in t.shape),
            t.stated.stretch if t.stated is not None else None,
            t.stated is not None and t.stated.truth,
        )
        for t in program.arguments
    )


def _kernels(choice: Choice) -> tuple[KernelReport, ...]:
    """One row a launch. Its own time is the model's share of the total, scaled to it where that was measured."""
    best, sgraph = choice.best, choice.proved.sgraph
    estimate = choice.model.estimate(best.config, best.resources)
    launches, folds = {x.name: x for x in sgraph.launches}, chosen_folds(sgraph, best.config)
    # A second stage that its split does is in the split's row.
    held = {f.split: (launches[c],) for c, f in folds.items()}
    rows = [(x, *held.get(x.name, ())) for x in launches_under(sgraph, best.config)]
    symbols = bound(sgraph, best.config.symbols, folds)
    scale = best.seconds / estimate.seconds if estimate.seconds > 0 else 1.0
    return tuple(
        KernelReport(
            row[0].name,
            " | ".join(" ".join(f"{a}:{_role(r)}" for a, r in k.roles) for x in row for k in x.kernels),
            shown(
                row[0].name,
                list(dict.fromkeys(s.name for x in row for k in x.kernels for s in k.symbols)),
                replace(best.config, symbols=symbols),
            ),
            r.shared,
            r.registers,
            r.spills,
            e.seconds * scale,
            e.limiter,
            row[0].kernels[0].name in sgraph.prepared,
        )
        for row, r, e in zip(rows, best.resources, estimate.per_kernel, strict=True)
    )


def conditions(request: Request, choice: Choice) -> str:
    """What the sGraph's symbols must satisfy on the device, one condition a line."""
    found = dict.fromkeys(
        (c.kernel, c.name, str(c.relational)) for c in constraints(choice.proved.sgraph, request.device)
    )
    return "\n".join(["  where, on " + request.device.name, *(f"    {k}: {r}  ({n})" for k, n, r in found)])


def _role(role: Role) -> str:
    match role:
        case Grid(tile):
            return f"grid({tile})"
        case LoopRole(tile):
            return f"loop({tile})"
        case Split(parts, tile):
            return f"split({parts}, {tile})"
        case _:
            return "whole"


def _proof(
    request: Request, proved: ProvedSGraph, derived: Derivation, verdict: Verdict, program: str, told: str
) -> ProofRecord:
    return ProofRecord(
        status=verdict.status.value,
        reason=verdict.reason,
        assumptions=verdict.assumptions,
        rules=verdict.rules,
        classes=verdict.classes,
        rule_hashes=dict(read_rule_files(request.rules or rule_files()).hashes),
        egglog=versions().get("egglog", ""),
        enodes=verdict.enodes,
        iterations=verdict.iterations,
        program=program,
        sgraph=told,
        denotation="\n".join(map(str, proved.denotation.outputs)),
        rung="replay" if derived.reason else "derivation",
        why_not_derived=derived.reason,
        split=tuple(map(str, proved.denotation.split)),
        stated={t.name: str(t.stated) for t in request.program.inputs if t.stated is not None},
    )


def peak_mb() -> float:
    """Peak resident memory of this process plus that of its largest finished child, MiB."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return (own + children) / 1024
