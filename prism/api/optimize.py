"""Optimize: from a program to an output folder with the fastest proved and checked kernels.

search   -> proved sGraphs, best bound first
rank     by the cost model over each family's feasible configurations; a few finalists go on
emit     one Triton module per finalist
tune     Optuna over (which finalist, its symbols, warps, stages): estimated without a GPU, timed with one
check    the winner against the float64 oracle; the next one when it fails
write    the folder, whole or not at all
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from prism.api.search import ProvedSGraph, SearchBudget, SearchResult, run_search
from prism.backends.protocol import Config
from prism.backends.triton.emit import emit_module
from prism.backends.weights import weights_bytes
from prism.egraph.rules import load_rules, rule_files
from prism.egraph.worker import Worker
from prism.errors import NoImprovementError, VerificationError
from prism.events import Artifacts, CheckSummary, Evidence, KernelReport, Listener, ProofRecord, Recorder, RunReport
from prism.instantiate.cache import cache_root
from prism.instantiate.check import KernelRunner, check_module
from prism.instantiate.devices import Device, device
from prism.instantiate.estimating import Estimating
from prism.instantiate.lock import flat, make_lock, program_hash, versions
from prism.instantiate.model import Model, baseline_estimate
from prism.instantiate.space import Space
from prism.instantiate.study import Best, Candidate, Evaluator, TuneResult, tune
from prism.program.nodes import Program
from prism.report.folder import check_writable, render_folder, write_folder
from prism.sgraph.show import dot, key, text

FINALISTS = 4
POINTS = 256


@dataclass(frozen=True, slots=True)
class OptimizeResult:
    """What a run ends in.

    Attributes:
        report: as shown to the user.
        module: the emitted module's source.
        search: everything that was proved.
        out: the output folder; None when none was asked for.
    """

    report: RunReport
    module: str
    search: SearchResult
    out: Path | None


@dataclass(frozen=True, slots=True)
class _Finalist:
    """A proved sGraph with its space, its model and its module."""

    proved: ProvedSGraph
    candidate: Candidate
    model: Model


def optimize(
    program: Program,
    *,
    target: str | None = None,
    out: Path | str | None = None,
    budget: SearchBudget | None = None,
    trials: int = 12,
    seed: int = 0,
    listener: Listener | None = None,
) -> OptimizeResult:
    """Search, prove, tune, check and write the kernels of a program.

    Args:
        program: from `load` or `trace`.
        target: `sm_80`, `sm_89`, `sm_90`, `sm_100` (compiled for, times estimated), or `cuda` (timed on the GPU that is
            there). By default `cuda` where a GPU is found, else `sm_90`.
        out: the output folder, made whole or not at all; none is written when None.
        budget: bounds of the search.
        trials: how many configurations are compiled (and timed).
        seed: of the study and the check's draws.
        listener: called with progress events.

    Raises:
        UsageError: the target is unknown, or the output folder cannot be written.
        UnsupportedError: the program holds something that cannot be searched.
        NoImprovementError: nothing that was proved is better than what was given.
        VerificationError: kernels that were proved compute something else: a bug in prism, and nothing is written.
    """
    recorder = Recorder(listener)
    chosen, name, evidence = _target(target)
    folder = check_writable(Path(out)) if out is not None else None
    bounds = budget or SearchBudget()
    with ExitStack() as stack:
        worker = stack.enter_context(Worker())
        found = run_search(program, chosen, bounds, worker, recorder)
        if not found.proved:
            raise NoImprovementError(
                "no implementation was proved",
                where=program.name,
                why=f"{found.unknown} candidates were left undecided" if found.unknown else "the search found none",
                fix="raise the search's bounds (--max-kernels, --enodes), or keep the model as it is",
            )
        modules = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prism-")))
        with recorder.stage("emission") as detail:
            finalists = _finalists(program, found, chosen, modules)
            detail.append(f"{len(finalists)} of {len(found.proved)} proved sGraphs")
        evaluator = stack.enter_context(_evaluator(program, finalists, name, chosen, evidence))
        with recorder.stage("tuning") as detail:
            tuned = tune(
                [f.candidate for f in finalists],
                evaluator,
                region=program_hash(program),
                budget=trials,
                storage_dir=cache_root() / "studies",
                seed=seed,
                on_trial=lambda done, all_: recorder.count("trials", done, all_),
            )
            detail.append(f"{tuned.compiled} compiled, {tuned.evidence.value}")
        baseline = _baseline_seconds(program, chosen, evaluator)
        with recorder.stage("check") as detail:
            best, checked = _first_right(program, finalists, tuned, name, seed, recorder)
            detail.append(f"{checked.cases} cases")
        if best.seconds >= baseline:
            raise NoImprovementError(
                "nothing beats what was given",
                where=program.name,
                why=f"best {best.seconds * 1e6:.1f} µs against {baseline * 1e6:.1f} µs ({tuned.evidence.value})",
                fix="keep the model as it is, or raise the search's bounds",
            )
        winner = finalists[best.candidate]
        artifacts = _artifacts(
            program, found, winner, best, tuned, checked, chosen, name, baseline, bounds, seed, trials, recorder
        )
    if folder is not None:
        folder = write_folder(
            folder, render_folder(replace(artifacts, report=replace(artifacts.report, output=str(folder))))
        )
    return OptimizeResult(artifacts.report, artifacts.module, found, folder)


def _target(target: str | None) -> tuple[Device, str, Evidence]:
    """The device's description, the target's name, and where times will come from."""
    from prism.backends.triton.device import detect_gpu

    if target in (None, "cuda"):
        there = detect_gpu()
        if there is not None:
            return device(there), "cuda", Evidence.MEASURED
        if target == "cuda":
            from prism.errors import UsageError

            raise UsageError(
                "no GPU was found", where="--target cuda", fix="name a target to compile for, such as sm_90"
            )
    return device(target or "sm_90"), target or "sm_90", Evidence.ESTIMATED


def _finalists(program: Program, found: SearchResult, target: Device, folder: Path) -> list[_Finalist]:
    """The proved sGraphs that are worth compiling, by the cost model's best configuration, with their modules."""
    ranked = []
    for n, p in enumerate(found.proved):
        model = Model(p.sgraph, target, program.hints)
        points = Space(p.sgraph, target, program.hints).points_ranked(model, POINTS)
        if points:
            ranked.append((points[0][1].seconds, n, p, model, tuple(c for c, _ in points)))
    ranked.sort(key=lambda t: t[:2])
    made = []
    for _, n, p, model, configs in ranked[:FINALISTS]:
        path = folder / f"candidate_{n}.py"
        path.write_text(emit_module(p.sgraph, formula=formula_text(found), configs={target.sm: configs[:1]}).text)
        made.append(_Finalist(p, Candidate(key(p.sgraph), p.sgraph, path, configs, model.seconds), model))
    return made


def formula_text(found: SearchResult) -> str:
    """The outputs as formulas, one a line."""
    return "\n".join(f"{f.tensor.name}[{', '.join(map(str, f.index))}] = {f.expr}" for f in found.formulas)


def _evaluator(
    program: Program, finalists: Sequence[_Finalist], name: str, target: Device, evidence: Evidence
) -> Estimating:
    return Estimating(target.sm, target.name, target.shared_limit_bytes, program.hints)


def _baseline_seconds(program: Program, target: Device, evaluator: Evaluator) -> float:
    return baseline_estimate(program, target, program.hints).seconds


def _first_right(
    program: Program, finalists: Sequence[_Finalist], tuned: TuneResult, name: str, seed: int, recorder: Recorder
) -> tuple[Best, CheckSummary]:
    """The fastest that passes the numeric gate."""
    failures: list[str] = []
    with KernelRunner("cuda" if name == "cuda" else "interpreter") as runner:
        for best in tuned.ranking:
            c = finalists[best.candidate].candidate
            report = check_module(
                program, c.module, c.sgraph, best.config, seed=seed, runner=runner, alternatives=c.points[:64]
            )
            if report.passed:
                return best, report.summary()
            failures += report.failures
            recorder.warn(f"a proved sGraph failed the numeric gate and was dropped: {report.failures[0]}")
    raise VerificationError(
        "no proved kernel passed the numeric gate" if failures else "no configuration compiled",
        where=program.name,
        why=failures[0] if failures else ", ".join(f"{n} × {r}" for r, n in sorted(tuned.failures.items())),
        fix="report it with the model: this is a bug in prism",
    )


def _artifacts(
    program: Program,
    found: SearchResult,
    winner: _Finalist,
    best: Best,
    tuned: TuneResult,
    checked: CheckSummary,
    target: Device,
    name: str,
    baseline: float,
    bounds: SearchBudget,
    seed: int,
    trials: int,
    recorder: Recorder,
) -> Artifacts:
    """Everything that the folder holds."""
    sgraph = winner.proved.sgraph
    weights = weights_bytes(program)
    module = emit_module(
        sgraph, formula=formula_text(found), configs={target.sm: [best.config]}, weights=weights is not None
    )
    verdict = winner.proved.verdict
    estimate = winner.model.estimate(best.config, best.resources)
    rules = load_rules(rule_files())
    report = RunReport(
        name=program.name,
        formulas={f.tensor.name: f"{f.tensor.name}[{', '.join(map(str, f.index))}] = {f.expr}" for f in found.formulas},
        target=name,
        device=target.name,
        evidence=tuned.evidence,
        baseline_seconds=baseline,
        best_seconds=best.seconds,
        operator_count=program.operator_count,
        kernel_count=len(sgraph.kernels),
        funnel=replace(found.funnel, timed_or_estimated=len(tuned.trials)),
        stages=dict(recorder.seconds),
        enodes=found.enodes,
        peak_mb=peak_mb(),
        kernels=tuple(
            KernelReport(
                k.name,
                " ".join(f"{a}:{_role(r)}" for a, r in k.roles),
                _config_text(k.name, tuple(s.name for s in k.symbols), best.config),
                r_.shared,
                r_.registers,
                r_.spills,
                e.seconds,
                e.limiter,
            )
            for k, r_, e in zip(sgraph.kernels, best.resources, estimate.per_kernel, strict=True)
        ),
        sgraph_text=text(sgraph),
        sgraph_dot=dot(sgraph),
        verdict=verdict.status.value,
        reason=verdict.reason,
        rules=verdict.rules,
        check=checked,
        config=flat(best.config),
        seed=seed,
        versions=versions(),
        shapes=program.hints,
        warnings=tuple(recorder.warnings),
    )
    proof = ProofRecord(
        status=verdict.status.value,
        reason=verdict.reason,
        rules=verdict.rules,
        rule_hashes=dict(rules.hashes),
        egglog=versions().get("egglog", ""),
        enodes=verdict.enodes,
        iterations=verdict.iterations,
        program=str(program),
        sgraph=text(sgraph),
        denotation="\n".join(map(str, winner.proved.denotation.outputs)),
    )
    lock = make_lock(
        program,
        sgraph_key=key(sgraph),
        config=best.config,
        target=name,
        device=target.name,
        evidence=tuned.evidence,
        shapes=program.hints,
        seed=seed,
        trials=trials,
        budget=bounds.as_dict(),
    )
    return Artifacts(report, module.text, proof, lock, str(program), weights)


def _role(role: object) -> str:
    from prism.sgraph.nodes import Grid, LoopRole, Split

    match role:
        case Grid(tile):
            return f"grid({tile})"
        case LoopRole(tile):
            return f"loop({tile})"
        case Split(parts, tile):
            return f"split({parts}, {tile})"
        case _:
            return "whole"


def _config_text(kernel: str, symbols: Sequence[str], config: Config) -> str:
    parts = [f"{s}={config.symbols[s]}" for s in symbols]
    return " ".join([*parts, f"warps={config.warps[kernel]}", f"stages={config.stages[kernel]}"])


def peak_mb() -> float:
    """Peak resident memory of this process and its largest child so far, MiB."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return (own + children) / 1024
