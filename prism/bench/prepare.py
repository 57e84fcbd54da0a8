"""Preparation, where prism is and no GPU need be: each case is searched, proved, emitted and cross-compiled.

    search   -> proved sGraphs at the case's own extents
    rank     by the cost model: a few finalists, as `optimize` chooses them
    tune     as `optimize` does it for a device that is not here: the trials are what the device shall time
    compile  a spread of other configurations for the model's sake, and the best ones for other targets
    check    each workload's chosen sGraphs in Triton's interpreter, at reduced and ragged extents (gpu_check.py)

What comes out is a folder: `manifest.json` and emitted modules, which need torch and triton alone. Its seconds are
estimates of the cost model.
"""

from __future__ import annotations

import ast
import json
import keyword
import pickle
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import prism
from prism.api.finalists import MINOR, Finalist, challengers, finalists
from prism.api.region_search import SearchBudget
from prism.api.searching import search
from prism.backends.protocol import Compiled, arguments, write_module
from prism.backends.tile import identifier
from prism.backends.triton.crosscompile import COMPILE_LIMIT_S, CompileJob, compiled, request
from prism.backends.triton.emit import emit_module
from prism.bench.suite import Argument, Case, Workload
from prism.cost.device import DEVICES, SHARED_LIMIT_BYTES, Device, device
from prism.cost.model import Model
from prism.errors import UsageError
from prism.folders import cache_or_spare
from prism.instantiate.cache import version_of
from prism.instantiate.confirm import challenged
from prism.instantiate.lock import program_hash
from prism.instantiate.options import Option, foreign
from prism.instantiate.space import Space
from prism.instantiate.study import DEFAULT_BUDGET, Candidate, Outcome, over_limit, tune
from prism.platforms.estimating import Estimating, compile_pool
from prism.platforms.gpu import AbsentGpu
from prism.process.worker import Ending, Pool
from prism.program.extents import evaluate
from prism.program.nodes import Program, Tensor
from prism.sgraph import show
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import SGraph
from prism.sgraph.record import plain

SCHEMA = "prism.bench/1"
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
"""What the suite is compiled for."""
RANKED = 2000
"""Points of a space that the spread is taken from."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is prepared for a case."""

    # Whether anything is; otherwise the best `points` by the cost model are what the device shall compile.
    compile: bool = True
    points: int = DEFAULT_BUDGET  # configurations that are tried, of all finalists together
    spread: int = 5  # configurations of the best finalist all over its space, which the cost model is judged by
    # What the best configuration is compiled for, too.
    targets: tuple[str, ...] = tuple(t for t in TARGETS if t != "sm_90")
    budget: SearchBudget = field(default_factory=SearchBudget)  # bounds of the search; its own by default


def file_name(name: str) -> str:
    """A case's name as part of a file's."""
    return re.sub(r"\W+", "_", name).strip("_").lower()


def trace_case(case: Case) -> Program:
    """The case as a program, from meta tensors: only shapes and data types matter."""
    import torch

    from prism.api.loading import trace

    meta = [torch.empty(a.shape, dtype=getattr(torch, a.dtype), device="meta") for a in case.arguments]
    function = getattr(import_module(case.workload.module), case.workload.name)
    return trace(function, meta, name=case.workload.name, assume=case.workload.assume)


def describe(case: Case) -> dict[str, Any]:
    """What the manifest and the results say of a case itself."""

    def arguments(found: Sequence[Any]) -> list[dict[str, Any]]:
        return [{**asdict(a), "shape": list(a.shape)} for a in found]

    return {
        "name": case.name,
        "group": case.group,
        "module": case.workload.module,
        "function": case.workload.name,
        "mode": case.workload.mode,
        "sizes": dict(case.sizes),
        "dtype": "bfloat16",
        "inputs": arguments(case.arguments),
        "outputs": arguments(case.outputs),
        "bytes": case.bytes,
        "flops": case.flops,
        "floor_us": case.floor_us,
        "stated_us": case.stated_us,
        "note": case.note,
        "memory_bound": case.memory_bound,
        "in_mean": case.in_mean,
        "baselines": list(case.workload.baselines),
    }


def spread(points: Sequence[Config], many: int) -> list[Config]:
    """So many of the ranked points, evenly from behind the best to the worst."""
    if many <= 0 or len(points) < 2:
        return []
    places = sorted({(len(points) - 1) * (n + 1) // many for n in range(many)})
    return [points[p] for p in places if p > 0]


def prepare_case(
    case: Case,
    program: Program,
    folder: Path,
    pool: Pool,
    effort: Effort,
    target: str = "sm_90",
    cache: Path | None = None,
) -> dict[str, Any]:
    """Search, prove, emit and compile one case: what the manifest says of it.

    `folder` is where `modules/` is; what the compiler says is kept in `cache`, the user's cache folder when None.
    """
    platform = AbsentGpu(target, device(target), cache)
    start = time.perf_counter()
    with search(program, target=target, budget=effort.budget) as running:
        found = running.run()
    record: dict[str, Any] = {
        **describe(case),
        "target": target,
        "search": {
            "seconds": time.perf_counter() - start,
            "bounds": effort.budget.as_dict(),
            "stages": dict(found.seconds),
            "enodes": found.enodes,
            "generated": found.generated.generated,
            "proved": len(found.proved),
            "unknown": found.unknown,
            "proof": found.proved[0].verdict.reason if found.proved else "",
        },
        "baseline_estimate_us": 1e6 * platform.baseline_seconds(program),
        "compiled_estimate_us": 1e6 * platform.compiled_seconds(program),
        "candidates": [],
    }

    modules = folder / "modules"
    modules.mkdir(parents=True, exist_ok=True)

    def emit(n: int, sgraph: SGraph, points: Sequence[Config], options: Sequence[Option]) -> Path:
        module = emit_module(sgraph, formula=str(program), configs={})
        return write_module(module, modules / f"{file_name(case.name)}_{n}.py")

    chosen = list(finalists(found.proved, platform, program.hints, emit).values())
    if not chosen:
        return {**record, "error": "no feasible configuration" if found.proved else "nothing was proved"}
    if effort.compile:
        with platform.estimating(program.hints, pool) as evaluator:
            tried = _tried(chosen, evaluator, effort, program, platform.device)
    else:
        tried = _best(chosen, effort.points)
    places = {t.name: n for n, t in enumerate(program.inputs)}
    for f, entries in zip(chosen, tried, strict=True):
        entries.sort(key=lambda e: ("error" in e, e.get("estimate_us", 0.0), e["key"]))
        record["candidates"].append(
            {
                "module": f"modules/{f.candidate.module.name}",
                "sgraph": show.text(f.proved.sgraph),
                "record": json.dumps(plain(f.proved.sgraph), separators=(",", ":")),
                "key": f.candidate.key,
                "kernels": [launch.name for launch in f.proved.sgraph.launches],
                "takes": [places[t.name] for t in f.proved.sgraph.inputs],
                "configs": entries,
            }
        )
    _conclude(record)
    record["targets"] = {t: _on(t, chosen, program, pool) for t in effort.targets}
    return record


def _best(chosen: Sequence[Finalist], many: int) -> list[list[dict[str, Any]]]:
    """For each finalist its best by the cost model and, so many in all, what is best of the others."""
    points = [(f.model.seconds(c), n, m) for n, f in enumerate(chosen) for m, c in enumerate(f.candidate.points)]
    taken = sorted(points, key=lambda p: (p[2] > 0, p[0]))[:many]
    found: list[list[dict[str, Any]]] = [[] for _ in chosen]
    for seconds, n, m in taken:
        found[n].append(entry(chosen[n], chosen[n].candidate.points[m], Outcome(seconds)))
    return found


def _tried(
    chosen: Sequence[Finalist], evaluator: Estimating, effort: Effort, program: Program, target: Device
) -> list[list[dict[str, Any]]]:
    """For each finalist, what was tried of it: a study's trials, variants that a device shall judge, and the spread."""
    candidates = [f.candidate for f in chosen]
    tuned = tune(candidates, evaluator, region=program_hash(program), budget=effort.points)
    tuned = challenged(tuned, candidates, evaluator.evaluate, challengers(tuned.ranking, chosen))
    found: list[list[dict[str, Any]]] = [[] for _ in chosen]
    for t in tuned.trials:
        found[t.point.candidate].append(entry(chosen[t.point.candidate], t.point.config, t.outcome))
    for b in tuned.ranking:
        f = chosen[b.candidate]
        found[b.candidate] += [entry(f, v.config, Outcome(v.seconds, resources=v.resources)) for v in f.beside(b)]
    if effort.spread:
        first = chosen[0]
        space = Space(first.proved.sgraph, target, program.hints)
        known = {e["key"] for e in found[0]}
        ranked = [c for c, _ in space.points_ranked(first.model, RANKED, MINOR)]
        extra = [c for c in spread(ranked, effort.spread) if c.key() not in known]
        outcomes = evaluator.evaluate([(first.candidate, c) for c in extra])
        found[0] += [entry(first, c, o, spread=True) for c, o in zip(extra, outcomes, strict=True)]
    return found


def entry(f: Finalist, config: Config, outcome: Outcome, *, spread: bool = False) -> dict[str, Any]:
    """What the manifest says of a configuration: its resources and its estimate, or why it cannot run."""
    for o in f.options if outcome.seconds is not None else ():
        config = o.settled(config, f.model, outcome.resources)
    made: dict[str, Any] = {
        "config": config.encode(),
        "key": config.key(),
        "model_us": 1e6 * f.model.seconds(config),
        "spread": spread,
        "resources": [asdict(r) for r in outcome.resources],
    }
    if outcome.seconds is None:
        return {**made, "error": outcome.detail or str(outcome.failure)}
    assert isinstance(f.model, Model)
    estimate = f.model.estimate(config, outcome.resources)
    times = _times(f.model, config, outcome.resources)
    return {**made, "estimate_us": 1e6 * estimate.seconds, "limiter": estimate.limiter, "times_us": times}


def _times(model: Model, config: Config, resources: Sequence[Resources]) -> list[dict[str, float]]:
    """The model's parts of each launch, microseconds (`overlap` is a share), for benchmarks/model.py to fit."""
    found = []
    for _, t in model.times(config, resources):
        parts = {"memory": t.memory, "compute": t.compute, "latency": t.latency, "spill": t.spill}
        found.append({k: 1e6 * float(v) for k, v in parts.items()} | {"overlap": float(t.overlap)})
    return found


def _conclude(record: dict[str, Any]) -> None:
    """The best estimate of all candidates, at the top of the record."""
    best = [
        (e["estimate_us"], n, m)
        for n, c in enumerate(record["candidates"])
        for m, e in enumerate(c["configs"])
        if "error" not in e
    ]
    if not best:
        record["error"] = "no configuration could be compiled"
        return
    us, n, m = min(best)
    record["best"] = {"candidate": n, "config": m}
    record["estimate_us"] = us
    record["estimated_share_of_floor"] = record["floor_us"] / us


def _on(target: str, chosen: Sequence[Finalist], program: Program, pool: Pool) -> dict[str, Any]:
    """The best that fits on another target: the compiler's resources, and an estimate where the device is described."""
    described = DEVICES.get(target)
    nearest = described or device("sm_80")
    failures: list[str] = []
    ranked: list[tuple[float, int, Config]] = []
    models = [Model(f.proved.sgraph, nearest, program.hints) for f in chosen]
    for n, (f, model) in enumerate(zip(chosen, models, strict=True)):
        points = Space(f.proved.sgraph, nearest, program.hints).points_ranked(model, 400)
        # Where the limits are not those of the device that the model knows, later points are smaller ones.
        kept = points[:1] if described else points[::100]
        ranked += [(e.seconds, n, c) for c, e in kept]
    for _, n, config in sorted(ranked, key=lambda t: t[:2])[:6]:
        c = _compiled(chosen[n].candidate, target, config, program, pool)
        why = c.error or over_limit(c.resources, SHARED_LIMIT_BYTES[target])
        if why:
            failures.append(why)
            continue
        made: dict[str, Any] = {
            "candidate": n,
            "config": config.encode(),
            "resources": [asdict(r) for r in c.resources],
        }
        if described:
            made["estimate_us"] = 1e6 * models[n].seconds(config, c.resources)
        return made
    return {"error": failures[0] if failures else "no feasible configuration"}


def _compiled(c: Candidate, target: str, config: Config, program: Program, pool: Pool) -> Compiled:
    """What the compiler says for a target, AMD's too, which nothing is tuned for."""
    job = CompileJob(c.module.resolve(), target, config, arguments(c.sgraph, program.hints))
    reply = pool.submit(request(job), COMPILE_LIMIT_S).result()
    return (
        compiled(reply.answer) if reply.ending is Ending.ANSWERED else Compiled(error=f"{reply.ending}: {reply.detail}")
    )


def versions() -> dict[str, str]:
    """Of what prepared."""
    return {"prism": prism.__version__, **{n: version_of(n) for n in ("torch", "triton", "numpy", "egglog")}}


def write_manifest(
    folder: Path,
    cases: Sequence[Mapping[str, Any]],
    checks: Mapping[str, Any],
    known: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Write what is there so far, whole or not at all; of `known` those that are not among the cases stay.

    What an earlier run checked of the cases stays, too.
    """
    path = folder / "manifest.json"
    names = {c["name"] for c in cases}
    both = [*cases, *(c for name, c in (known or {}).items() if name not in names)]
    before = json.loads(path.read_text("utf-8"))["checks"] if path.exists() else {}
    held = {c.get("check") for c in both}
    found = {**{key: c for key, c in before.items() if key in held}, **checks}
    body = {"schema": SCHEMA, "versions": versions(), "checks": found, "cases": both}
    spare = path.with_suffix(".tmp")
    spare.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    spare.replace(path)
    return path


def prepare(
    cases: Sequence[Case],
    folder: Path,
    *,
    effort: Effort | None = None,
    workers: int = 2,
    say: Callable[[str], None] = print,
    programs: Mapping[str, Program] | None = None,
    target: str = "sm_90",
) -> list[dict[str, Any]]:
    """Prepare cases into a folder; the manifest is written after each, and a case that fails says why in it.

    Cases that the folder's manifest holds already, prepared by the same versions, stay as they are. `programs` are by
    name of the case those that are not of the suite's functions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = prepared(folder)
    records: list[dict[str, Any]] = []
    with cache_or_spare(say) as cache, compile_pool(cache, workers) as pool:
        for case in cases:
            start = time.perf_counter()
            record = known.get(case.name)
            if record is None or record["target"] != target:
                try:
                    program = (programs or {}).get(case.name) or trace_case(case)
                    record = prepare_case(case, program, folder, pool, effort or Effort(), target, cache)
                except prism.errors.PrismError as error:
                    record = {**describe(case), "candidates": [], "error": error.one_line()}
                record["prepare_s"] = time.perf_counter() - start
            records.append(record)
            write_manifest(folder, records, {}, known)
            say(line(record))
    return records


def prepared(folder: Path) -> dict[str, dict[str, Any]]:
    """By name, the cases that the folder's manifest holds, if the same versions prepared them."""
    path = folder / "manifest.json"
    if not path.exists():
        return {}
    body = json.loads(path.read_text("utf-8"))
    if body["schema"] != SCHEMA or body["versions"] != versions():
        return {}
    return {r["name"]: r for r in body["cases"] if "error" not in r}


def line(record: Mapping[str, Any]) -> str:
    """One line about a prepared case."""
    head = f"{record['name']:38s} floor {record['floor_us']:7.2f} us"
    if "error" in record:
        return f"{head}  {record['error']}"
    s = record["search"]
    best = record["candidates"][record["best"]["candidate"]]
    return (
        f"{head}  estimated {record['estimate_us']:7.2f} us ({record['estimated_share_of_floor']:.2f} of the floor)  "
        f"{s['proved']} proved in {s['seconds']:.1f} s  {' -> '.join(best['kernels'])}"
    )


PROGRAM = "program.pickle"


def own_case(program: Program) -> Case:
    """The program at its hints as a case; its floor counts bytes alone, as nothing says which operations are needed."""

    def argument(t: Tensor) -> Argument:
        shape = tuple(evaluate(e, program.hints) for e in t.shape)
        held = program.weights.get(t.name)
        if held is None or not t.dtype.is_float:
            return Argument(t.name, shape, t.dtype.value)
        values = np.asarray(held, dtype=np.float64)
        return Argument(t.name, shape, t.dtype.value, float(values.std()), float(values.mean()))

    inputs = tuple(argument(t) for t in program.inputs)
    outputs = tuple(argument(program.tensor(n)) for n in program.outputs)
    workload = Workload(program.name, lambda _: inputs, lambda _: outputs, lambda _: 0.0, {})
    return Case(program.name, "own", workload, dict(program.hints))


def save_program(program: Program, folder: Path) -> str:
    """Write the program where the measuring child finds it; its name in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROGRAM).write_bytes(pickle.dumps(program))
    return PROGRAM


def from_output(record: Mapping[str, Any], program: Program, output: Path, folder: Path) -> dict[str, Any]:
    """The case's record with the module and the configurations of an output folder of `prism optimize`.

    Args:
        record: the case, as `describe` gives it.
        program: the model that the folder was made of.
        output: the output folder.
        folder: where the record's modules lie; the module is copied there.

    Raises:
        UsageError: the folder holds no Triton module, or one of another model.
    """
    source = next((p for p in sorted(output.glob("*.py")) if "def launches(" in p.read_text("utf-8")), None)
    if source is None:
        raise UsageError("there is no Triton module in it", where=str(output), fix="give a folder of prism optimize")
    configs, arguments = module_facts(source.read_text("utf-8"))
    names = {_host(t.name): n for n, t in enumerate(program.inputs)}
    many = len(arguments) - len(program.outputs)
    if not configs or any(a not in names for a in arguments[:many]):
        raise UsageError(
            "the kernels are of another model",
            where=str(source),
            why=f"they take {', '.join(arguments[:many])}",
            fix=f"give the folder that prism optimize wrote for {program.name}",
        )
    (folder / "modules").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, folder / "modules" / source.name)
    entries: list[dict[str, Any]] = [
        {"config": c, "key": str(c), "model_us": None, "estimate_us": float(n), "resources": [], "limiter": ""}
        for n, c in enumerate(configs)
    ]
    candidate = {
        "module": f"modules/{source.name}",
        "sgraph": (output / "sgraph.txt").read_text("utf-8") if (output / "sgraph.txt").exists() else "",
        "kernels": sorted([*configs[0]["warps"], *foreign(Config.decode(configs[0]))]),
        "takes": [names[a] for a in arguments[:many]],
        "configs": entries,
    }
    return {**record, "candidates": [candidate], "best": {"candidate": 0, "config": 0}}


def module_facts(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    """(the configurations of all targets, the arguments of `launches`) of an emitted module, without running it."""
    configs: list[dict[str, Any]] = []
    arguments: Sequence[str] = ()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "CONFIGS" for t in node.targets):
            configs = [c for entries in ast.literal_eval(node.value).values() for c in entries]
        if isinstance(node, ast.FunctionDef) and node.name == "launches":
            arguments = [a.arg for a in node.args.args]
    return configs, list(arguments)


def _host(name: str) -> str:
    made = identifier(name)
    return f"{made}_" if keyword.iskeyword(made) else made
