"""Preparation, where prism is and no GPU need be: each case is searched, proved, emitted and cross-compiled.

    search   -> proved sGraphs at the case's own extents
    rank     by the cost model: a few finalists, their best configurations, and a spread of others for the model's sake
    compile  every configuration for the device's target, the best ones for the other targets
    check    each workload's chosen sGraphs in Triton's interpreter, at reduced and ragged extents (checking.py)

What comes out is a folder: `manifest.json` and emitted modules, which need torch and triton alone. Its seconds are
estimates of the cost model.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import prism
from prism.api.searching import ProvedSGraph, SearchBudget, SearchResult, search
from prism.backends.protocol import Compiled
from prism.backends.protocol import arguments as launcher_arguments
from prism.backends.triton.crosscompile import WORKER, compiled, worker_environment
from prism.backends.triton.emit import emit_module
from prism.bench.suite import Case
from prism.cost.device import DEVICES, Device, device
from prism.cost.model import Model, baseline_estimate
from prism.instantiate.cache import cache_root, version_of
from prism.instantiate.options import Offered, Option, variants
from prism.instantiate.point_tables import PointSpace
from prism.instantiate.space import VARIED, Space
from prism.instantiate.study import over_limit
from prism.process.child import module_command
from prism.process.worker import Ending, Pool
from prism.program.nodes import Program
from prism.sgraph import show
from prism.sgraph.config import Config, Resources
from prism.sgraph.folding import FOLDED
from prism.sgraph.nodes import SGraph

SCHEMA = "prism.bench/1"
SHARED_LIMIT_BYTES = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
"""What the suite is compiled for, and the shared memory that one block may use there, bytes."""
COMPILE_LIMIT_S = 90.0
RANKED = 2000
"""Points of a space that the spread is taken from."""
ROUND = 4
"""Configurations that are compiled before the next decision."""
ALIKE = 2
"""Finalists that cut the program in the same way."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is prepared for a case.

    Attributes:
        proved: sGraphs that are proved, best bound first.
        finalists: sGraphs that are emitted.
        points: configurations that are compiled, of all finalists together, at least.
        most: configurations of one finalist that are compiled at most, while the next could be the best.
        varied: of a finalist's best configurations, how many have variants for studies, too.
        spread: configurations of the best finalist all over its space, which the cost model is judged by.
        targets: what the best configuration is compiled for, too.
        budget: bounds of the search; its own by default.
    """

    proved: int = 24
    finalists: int = 4
    points: int = 12
    most: int = 20
    varied: int = VARIED
    spread: int = 5
    targets: tuple[str, ...] = tuple(t for t in SHARED_LIMIT_BYTES if t != "sm_90")
    budget: SearchBudget = field(default_factory=SearchBudget)


@dataclass(frozen=True, slots=True)
class Finalist:
    """A proved sGraph that is emitted, with its model and its space."""

    proved: ProvedSGraph
    model: Model
    space: Space
    best_s: float


def file_name(name: str) -> str:
    """A case's name as part of a file's."""
    return re.sub(r"\W+", "_", name).strip("_").lower()


def compile_pool(root: Path, size: int) -> Pool:
    """Workers that compile; their Triton cache is under `root`."""
    return Pool(module_command(WORKER), worker_environment(root / "triton"), size)


def trace_case(case: Case) -> Program:
    """The case as a program, from meta tensors: only shapes and data types matter."""
    import torch

    from prism.api.loading import trace
    from prism.bench import functions

    meta = [torch.empty(a.shape, dtype=getattr(torch, a.dtype), device="meta") for a in case.arguments]
    return trace(getattr(functions, case.workload.name), meta, name=case.workload.name)


def describe(case: Case) -> dict[str, Any]:
    """What the manifest and the results say of a case itself."""

    def arguments(found: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            {"name": a.name, "shape": list(a.shape), "dtype": a.dtype, "scale": a.scale, "offset": a.offset}
            for a in found
        ]

    return {
        "name": case.name,
        "group": case.group,
        "function": case.workload.name,
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


def proved_sgraphs(
    program: Program, target: str, limit: int, budget: SearchBudget | None = None
) -> tuple[list[ProvedSGraph], SearchResult]:
    """The first so many proved sGraphs of a program, and what the search says of itself."""
    found: list[ProvedSGraph] = []
    with closing(search(program, target=target, budget=budget)) as running:
        for one in running:
            found.append(one)
            if len(found) == limit:
                break
        result = running.result()
    return found, result


def finalists(found: Sequence[ProvedSGraph], program: Program, target: Device, limit: int) -> list[Finalist]:
    """Those that the cost model likes best, fastest first; few that cut the program in the same way."""
    ranked: list[tuple[float, int, Finalist]] = []
    for n, p in enumerate(found):
        model = Model(p.sgraph, target, program.hints)
        space = Space(p.sgraph, target, program.hints)
        best = space.points_ranked(model, 1)
        if best:
            ranked.append((best[0][1].seconds, n, Finalist(p, model, space, best[0][1].seconds)))
    ranked.sort(key=lambda t: t[:2])
    chosen: list[Finalist] = []
    cuts: Counter[tuple[str, ...]] = Counter()
    for _, _, f in ranked:
        cut = tuple(k.name for k in f.proved.sgraph.kernels)
        cuts[cut] += 1
        if cuts[cut] <= ALIKE and len(chosen) < limit:
            chosen.append(f)
    return chosen


def shares(points: int, many: int) -> list[int]:
    """How many of the points each of `many` finalists gets: the first a half, the others equal parts of the rest."""
    if many == 0:
        return []
    if many == 1:
        return [points]
    first = (points + 1) // 2
    rest, left = divmod(points - first, many - 1)
    return [first, *(max(1, rest + (n < left)) for n in range(many - 1))]


def varied(f: Finalist, limit: int) -> list[Config]:
    """Configurations that differ in the launch that takes longest, fastest first; the other launches at their best.

    The best points of the whole space of several launches mostly differ in what hardly counts.
    """
    best = f.space.best(f.model, 1)
    if not best:
        return []
    longest = max(f.model.estimate(best[0]).per_kernel, key=lambda k: k.seconds).name
    main = [m.name for m in f.model.launches].index(longest)
    spaces, seconds = f.space.launches, []
    for model, space in zip(f.model.launches, spaces, strict=True):
        own = model.seconds(space.binding(), space.column("warps"), space.column("stages"))
        seconds.append(np.broadcast_to(np.asarray(own, dtype=np.float64), (len(space.points),)))
    others: dict[tuple[int, ...], list[int] | None] = {}
    ranked: list[tuple[float, int, list[int]]] = []
    shared = [n for n in f.space.shared if n in spaces[main].names]
    columns = [spaces[main].column(n) for n in shared]
    # What launches beside the main one share among themselves is as in the best point.
    held = f.space.shared_values(best[0])
    elsewhere = {n: held[n] for n in f.space.shared if n not in shared}
    for row in range(len(spaces[main].points)):
        key = tuple(int(c[row]) for c in columns)
        if key not in others:
            others[key] = _rows(spaces, seconds, {**elsewhere, **dict(zip(shared, key, strict=True))})
        rows = others[key]
        if rows is None or not np.isfinite(seconds[main][row]):
            continue
        rows = [row if n == main else r for n, r in enumerate(rows)]
        ranked.append((float(sum(s[r] for s, r in zip(seconds, rows, strict=True))), row, rows))
    ranked.sort(key=lambda t: t[:2])
    return [f.space.config(rows) for _, _, rows in ranked[:limit]]


def _rows(spaces: Sequence[PointSpace], seconds: Sequence[Any], fixed: Mapping[str, int]) -> list[int] | None:
    """The best row of each launch where symbols have these values; None where a launch has no such row."""
    found = []
    for space, own in zip(spaces, seconds, strict=True):
        mask = np.isfinite(own)
        for name, value in fixed.items():
            if name in space.names:
                mask = mask & (space.column(name) == value)
        if not mask.any():
            return None
        found.append(int(np.argmin(np.where(mask, own, np.inf))))
    return found


def spread(points: Sequence[Config], many: int) -> list[Config]:
    """So many of the ranked points, evenly from behind the best to the worst."""
    if many <= 0 or len(points) < 2:
        return []
    places = sorted({(len(points) - 1) * (n + 1) // many for n in range(many)})
    return [points[p] for p in places if p > 0]


def prepare_case(
    case: Case, program: Program, folder: Path, pool: Pool, effort: Effort, target: str = "sm_90"
) -> dict[str, Any]:
    """Search, prove, emit and compile one case: what the manifest says of it.

    Args:
        case: the case.
        program: the case as a program.
        folder: where `modules/` is.
        pool: workers that compile.
        effort: how much of it.
        target: what it is prepared for.
    """
    described = device(target)
    start = time.perf_counter()
    found, result = proved_sgraphs(program, target, effort.proved, effort.budget)
    record: dict[str, Any] = {
        **describe(case),
        "target": target,
        "search": {
            "seconds": time.perf_counter() - start,
            "bounds": effort.budget.as_dict(),
            "stages": dict(result.seconds),
            "enodes": result.enodes,
            "generated": result.generated.generated,
            "proved": len(found),
            "unknown": result.unknown,
            "proof": found[0].verdict.reason if found else "",
        },
        "baseline_estimate_us": 1e6 * baseline_estimate(program, described, program.hints).seconds,
        "candidates": [],
    }
    chosen = finalists(found, program, described, effort.finalists)
    if not chosen:
        return {**record, "error": "nothing was proved" if not found else "no feasible configuration"}
    places = {t.name: n for n, t in enumerate(program.inputs)}
    stem = file_name(case.name)
    for n, (f, many) in enumerate(zip(chosen, shares(effort.points, len(chosen)), strict=True)):
        ranked = varied(f, RANKED)
        extra = spread(ranked, effort.spread) if n == 0 else []
        module = _emit(f.proved.sgraph, folder / "modules" / f"{stem}_{n}.py", str(program))
        judge = partial(_judged, f, module, program=program, pool=pool, target=target)
        judged = promising(ranked, f.model.seconds, judge, many, max(many, effort.most))
        beside = partial(beside_best, f.space.options, f.model)
        judged += judge([c for _, c in beside(Offered.STUDY, judged, effort.varied)])
        judged += judge([c for c in extra if c.key() not in {e["key"] for e in judged}], spread=True)
        same = [again(f.model, e, c) for e, c in beside(Offered.CHECKED, judged)]
        timed = judge([c for _, c in beside(Offered.TIMING, judged)])
        judged += [settled(f.space.options, f.model, e) for e in timed] + same
        judged.sort(key=lambda e: ("error" in e, e.get("estimate_us", 0.0), e["key"]))
        record["candidates"].append(
            {
                "module": f"modules/{module.name}",
                "sgraph": show.text(f.proved.sgraph),
                "key": show.key(f.proved.sgraph),
                "kernels": [launch.name for launch in f.proved.sgraph.launches],
                "takes": [places[t.name] for t in f.proved.sgraph.inputs],
                "configs": judged,
            }
        )
    _conclude(record)
    record["targets"] = {t: _on(t, chosen, folder, record, program, pool) for t in effort.targets}
    return record


def _emit(sgraph: SGraph, path: Path, formula: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(emit_module(sgraph, formula=formula, configs={}).text, encoding="utf-8")
    return path


def _compile(
    module: Path, sgraph: SGraph, configs: Sequence[Config], program: Program, pool: Pool, target: str
) -> Iterator[Compiled]:
    """What the compiler says of each configuration, in order."""
    given = [[list(a.shape), a.dtype] for a in launcher_arguments(sgraph, program.hints)]
    requests = [
        {"module": str(module.resolve()), "target": target, "config": c.encode(), "arguments": given} for c in configs
    ]
    for reply in pool.map(requests, COMPILE_LIMIT_S):
        if reply.ending is Ending.ANSWERED:
            yield compiled(reply.answer)
        else:
            yield Compiled(error=f"{reply.ending.value}: {reply.detail}")


def promising(
    ranked: Sequence[Config],
    seconds: Callable[[Config], float],
    judge: Callable[[Sequence[Config]], list[dict[str, Any]]],
    least: int,
    most: int,
) -> list[dict[str, Any]]:
    """The first of the ranked configurations, judged, until no later one can be the best.

    The model without the compiler's word knows no spills, so it mostly errs to one side: what it puts behind the best
    estimate so far is not looked at.

    Args:
        ranked: fastest first by `seconds`.
        seconds: the model without resources.
        judge: from configurations to entries with an `estimate_us` or an `error`.
        least: how many are judged in any case.
        most: how many are judged at most.
    """
    found: list[dict[str, Any]] = []
    while len(found) < min(most, len(ranked)):
        best = min((e["estimate_us"] for e in found if "error" not in e), default=math.inf)
        if len(found) >= least and 1e6 * seconds(ranked[len(found)]) >= best:
            break
        found += judge(ranked[len(found) : min(len(found) + ROUND, most)])
    return found


def beside_best(
    options: Sequence[Option], model: Model, offered: Offered, judged: Sequence[Mapping[str, Any]], many: int = VARIED
) -> list[tuple[Mapping[str, Any], Config]]:
    """The best so many entries, each with a variant that is offered then: a GPU shall say which is faster.

    Args:
        options: of the entries' sGraph.
        model: of it.
        offered: when.
        judged: entries of a manifest, with estimates or errors.
        many: entries that get variants.
    """
    ranked = sorted((e for e in judged if "error" not in e), key=lambda e: (e["estimate_us"], e["key"]))
    return [
        (e, c)
        for e in ranked[:many]
        for c in variants(options, offered, Config.decode(e["config"]), model, _resources(e))
    ]


def again(model: Model, entry: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The entry under another configuration of the same kernels: nothing is compiled anew."""
    return {
        **entry,
        "config": config.encode(),
        "key": config.key(),
        "model_us": 1e6 * model.seconds(config),
        "estimate_us": 1e6 * model.seconds(config, _resources(entry)),
    }


def settled(options: Sequence[Option], model: Model, entry: Mapping[str, Any]) -> dict[str, Any]:
    """A variant's entry, with the numbers that follow from what the compiler made of it."""
    config = Config.decode(entry["config"])
    for o in options if "error" not in entry else ():
        config = o.settled(config, model, _resources(entry))
    return {**entry, "config": config.encode(), "key": config.key()}


def _resources(entry: Mapping[str, Any]) -> tuple[Resources, ...]:
    return tuple(Resources(**r) for r in entry["resources"])


def _judged(
    f: Finalist,
    module: Path,
    configs: Sequence[Config],
    *,
    program: Program,
    pool: Pool,
    target: str,
    spread: bool = False,
) -> list[dict[str, Any]]:
    """Each configuration with its resources and its estimate, or why it cannot run."""
    found = []
    for config, c in zip(configs, _compile(module, f.proved.sgraph, configs, program, pool, target), strict=True):
        why = c.error or over_limit(c.resources, device(target).shared_limit_bytes)
        entry: dict[str, Any] = {
            "config": config.encode(),
            "key": config.key(),
            "model_us": 1e6 * f.model.seconds(config),
            "spread": spread,
            "resources": [asdict(r) for r in c.resources],
        }
        if why:
            entry["error"] = why
        else:
            estimate = f.model.estimate(config, c.resources)
            entry["estimate_us"] = 1e6 * estimate.seconds
            entry["limiter"] = estimate.limiter
            entry["times_us"] = _times(f.model, config, c.resources)
        found.append(entry)
    return found


def _times(model: Model, config: Config, resources: Sequence[Resources]) -> list[dict[str, float]]:
    """The model's parts of each launch, microseconds (`overlap` is a share), for benchmarks/model.py to fit."""
    known = {r.kernel: r for r in resources}
    found = []
    for launch in model.launches:
        name = launch.name
        if name in config.launches(FOLDED):
            continue
        t = launch.times_of(config, known.get(name))
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


def _on(
    target: str, chosen: Sequence[Finalist], folder: Path, record: Mapping[str, Any], program: Program, pool: Pool
) -> dict[str, Any]:
    """The best that fits on another target: the compiler's resources, and an estimate where the device is described."""
    described = DEVICES.get(target)
    nearest = described or device("sm_80")
    failures: list[str] = []
    ranked: list[tuple[float, int, Config]] = []
    for n, f in enumerate(chosen):
        model = Model(f.proved.sgraph, nearest, program.hints)
        points = Space(f.proved.sgraph, nearest, program.hints).points_ranked(model, 400)
        # Where the limits are not those of the device that the model knows, later points are smaller ones.
        kept = points[:1] if described else points[::100]
        ranked += [(e.seconds, n, c) for c, e in kept]
    for _, n, config in sorted(ranked, key=lambda t: t[:2])[:6]:
        sgraph = chosen[n].proved.sgraph
        module = folder / record["candidates"][n]["module"]
        (c,) = _compile(module, sgraph, [config], program, pool, target)
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
            made["estimate_us"] = 1e6 * Model(sgraph, described, program.hints).seconds(config, c.resources)
        return made
    return {"error": failures[0] if failures else "no feasible configuration"}


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

    Cases that the folder's manifest holds already, prepared by the same versions, stay as they are.

    Args:
        cases: the cases.
        folder: where modules and manifest go.
        effort: how much is prepared.
        workers: processes that compile.
        say: told one line a case.
        programs: by name of the case, programs that are not of the suite's functions.
        target: what they are prepared for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = prepared(folder)
    records: list[dict[str, Any]] = []
    with compile_pool(cache_root(), workers) as pool:
        for case in cases:
            start = time.perf_counter()
            record = known.get(case.name)
            if record is None or record["target"] != target:
                try:
                    program = (programs or {}).get(case.name) or trace_case(case)
                    record = prepare_case(case, program, folder, pool, effort or Effort(), target)
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
