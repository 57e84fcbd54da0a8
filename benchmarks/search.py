"""How long the search takes: processor seconds by stage, e-nodes, sGraphs and memory.

    python benchmarks/search.py [--json] [--repeat N] [NAME ...]     a line a workload (workloads.py)
    python benchmarks/search.py --ablate [NAME ...]                  time and states with each pruner switched off
    python benchmarks/search.py --growth [NAME ...]                  time against max_ops, and the slope of its log

Seconds are of the processor, of this process and of the e-graph worker together, so that what else a machine does
hardly matters. Each workload runs in a process of its own, `--repeat` times with a fresh worker each; the run with the
least total is printed, with the total of the first one, when no cache was warm, beside it (`first_s`). `import_s` is
the reading or tracing of the model, with the front end's libraries already loaded; starting the worker (a process that
loads egglog and the rules) overlaps with it in `prism optimize` and is printed as `start`. The total is saturation +
generation + proof, and partitioning where a program is cut into regions; equal ones are searched, and counted, once.
`soonest` is when the first sGraph was proved. Which workloads are beyond START_S and SOONEST_S is said at the end.
It fails when a run takes 1 GB of memory or more.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.workloads import TRACED, Workload, workloads

if TYPE_CHECKING:
    from prism.api.region_search import SearchBudget
    from prism.egraph.worker import Worker

MEMORY_MB = 1000.0
START_S = 0.4
"""What starting the e-graph worker should take."""
SOONEST_S = 0.5
"""What the first proof should take, from the start of saturation."""
GROWTH_OPS = tuple(range(4, 13))
GROWTH = ("RMSNorm+gated-Linears", "QK-norm-attention")


@dataclass(frozen=True, slots=True)
class Row:
    """One workload's figures; seconds of the processor, and MiB for `peak_mb` (the worker's included).

    Attributes:
        kernels: launches of the proved sGraph that is best by the ranking model; of all regions together.
        best_s: its estimated seconds.
        first_s: the total of the first run, where the best one is a later one.
        start_s: start of the e-graph worker.
        soonest_s: from the start of saturation to the first proved sGraph; of the region in which that takes longest.
        partition_s: cutting into regions, and what the searches of regions take besides their stages.
    """

    name: str
    import_s: float
    saturation_s: float
    generation_s: float
    proof_s: float
    enodes: int
    generated: int
    pruned: Mapping[str, int]
    proved: int
    unknown: int
    peak_mb: float
    start_s: float
    partition_s: float
    total_s: float
    first_s: float
    operators: int
    kernels: int
    regions: int
    searched: int
    best_s: float
    soonest_s: float


def measure(workload: Workload, repeat: int, budgets: Sequence[SearchBudget]) -> list[Row]:
    """For each budget, the workload's best run; only the very first of all meets cold caches."""
    warnings.simplefilter("ignore")  # torch's own
    workload.program()  # loads the libraries
    rows = []
    for budget in budgets:
        runs = [_run(workload, budget) for _ in range(repeat)]
        rows.append(replace(min(runs, key=lambda r: r.total_s), first_s=runs[0].total_s))
    return rows


def _run(workload: Workload, budget: SearchBudget) -> Row:
    from prism.api.partitioned import search_regions
    from prism.api.region_search import run_search
    from prism.cost.device import device
    from prism.egraph.worker import Worker
    from prism.events import Recorder
    from prism.generate.partition import partition

    start = time.process_time()
    program = workload.program()
    imported = time.process_time() - start
    target = device("sm_90")
    with Worker() as worker, processor_clock(worker) as clock:
        worker.ready()
        started = _seconds_of(worker)
        start = clock()
        regions = partition(program, device=target)
        if len(regions) == 1:
            cut = clock() - start
            distinct = [run_search(program, target, budget, worker, Recorder())]
            every = distinct
            total = cut + sum(distinct[0].seconds.values())
        else:
            found = search_regions(program, regions, target, budget, [worker], Recorder())
            total = clock() - start
            distinct = [r.result for r in found.distinct.values()]
            every = [r.result for r in found.regions]
            cut = total - sum(s for r in distinct for s in r.seconds.values())
        peak = _peak_mb(os.getpid()) + _peak_mb(worker.pid)
    pruned: Counter[str] = Counter()
    for r in distinct:
        pruned.update(r.generated.pruned)
    best = [r.proved[0] for r in every if r.proved]
    return Row(
        name=workload.name,
        import_s=imported,
        saturation_s=sum(r.seconds["saturation"] for r in distinct),
        generation_s=sum(r.seconds["generation"] for r in distinct),
        proof_s=sum(r.seconds["proof"] for r in distinct),
        enodes=sum(r.enodes for r in distinct),
        generated=sum(r.generated.generated for r in distinct),
        pruned=dict(sorted(pruned.items())),
        proved=sum(len(r.proved) for r in distinct),
        unknown=sum(r.unknown for r in distinct),
        peak_mb=peak,
        start_s=started,
        partition_s=cut,
        total_s=total,
        first_s=total,
        operators=program.operator_count,
        kernels=sum(len(p.sgraph.launches) for p in best),
        regions=len(every),
        searched=len(distinct),
        best_s=sum(p.seconds for p in best),
        soonest_s=max((r.first for r in distinct if r.first is not None), default=math.nan),
    )


@contextmanager
def processor_clock(worker: Worker) -> Iterator[Callable[[], float]]:
    """Within, searches take their times from this clock: processor seconds of this process and of the worker."""
    from prism.events import Recorder

    def clock() -> float:
        return time.process_time() + _seconds_of(worker)

    before = Recorder.clock
    Recorder.clock = staticmethod(clock)  # type: ignore[method-assign]
    try:
        yield clock
    finally:
        Recorder.clock = staticmethod(before)  # type: ignore[method-assign]


def _seconds_of(worker: Worker) -> float:
    """Processor seconds of the worker's process so far."""
    return int(Path(f"/proc/{worker.pid}/schedstat").read_text().split()[0]) / 1e9


def _peak_mb(pid: int | None) -> float:
    """Peak resident memory of a process that is alive, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def apart(workload: Workload, repeat: int, budgets: Sequence[SearchBudget]) -> list[Row]:
    """`measure` in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, workload, repeat, budgets).result()


def table(lines: Sequence[Sequence[str]]) -> str:
    """The lines as aligned text, the first column to the left."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )


HEAD = (
    "workload import start saturate generate prove soonest total first e-nodes built pruned proved unknown kernels "
    "regions peak-MiB"
)


def _line(r: Row) -> list[str]:
    seconds = (r.import_s, r.start_s, r.saturation_s, r.generation_s, r.proof_s, r.soonest_s, r.total_s, r.first_s)
    counts = (r.enodes, r.generated, sum(r.pruned.values()), r.proved, r.unknown)
    places = (f"{r.operators}->{r.kernels}", f"{r.searched}/{r.regions}", f"{r.peak_mb:.0f}")
    return [r.name, *(f"{s:.3f}" for s in seconds), *(f"{c:,}" for c in counts), *places]


def beyond(rows: Sequence[Row]) -> str:
    """Which workloads take longer than they should until the worker has started, and until something is proved."""
    goals = (
        ("the worker starts", START_S, [(r.start_s, r.name) for r in rows]),
        ("the first proof", SOONEST_S, [(r.soonest_s, r.name) for r in rows]),
    )
    said = []
    for what, goal, found in goals:
        late = [f"{name} {s:.2f}" for s, name in sorted(found, reverse=True) if not s < goal]
        most = max(s for s, _ in found)
        said.append(f"{what}: {most:.2f} s at most" + (f"; {goal} s or more: {', '.join(late)}" if late else ""))
    return "\n".join(said)


def ablation(chosen: Sequence[Workload], repeat: int, budget: SearchBudget) -> str:
    """For each workload, the search as it is and with each pruner off.

    `best` is the estimated time of the best proved sGraph: switching a pruner off may find no better one.
    """
    from prism.generate.pruning import PRUNERS

    lines = [["workload / without", "total s", "ratio", "built", "ratio", "proved", "best us"]]
    for w in chosen:
        without = [replace(budget, off=frozenset({name})) for name in PRUNERS]
        # The first warms the caches up for all of them.
        _, base, *rows = apart(w, repeat, [budget, budget, *without])
        lines.append(_ablated(w.name, base, base))
        lines += [_ablated(f"  {name}", r, base) for name, r in zip(PRUNERS, rows, strict=True)]
    return table(lines)


def _ablated(label: str, r: Row, base: Row) -> list[str]:
    return [
        label,
        f"{r.total_s:.3f}",
        f"{r.total_s / base.total_s:.2f}",
        f"{r.generated:,}",
        f"{r.generated / max(1, base.generated):.2f}",
        str(r.proved),
        f"{r.best_s * 1e6:.2f}",
    ]


def growth(workload: Workload, repeat: int, budget: SearchBudget) -> tuple[str, float]:
    """Time and memory against max_ops, as text, and the most memory."""
    _, *found = apart(workload, repeat, [budget, *(replace(budget, max_ops=n) for n in GROWTH_OPS)])
    rows = list(zip(GROWTH_OPS, found, strict=True))
    lines = [["max_ops", "total s", "built", "proved", "peak MiB"]]
    lines += [[str(n), f"{r.total_s:.3f}", f"{r.generated:,}", str(r.proved), f"{r.peak_mb:.0f}"] for n, r in rows]
    rate = slope([n for n, _ in rows], [r.total_s for _, r in rows])
    peak = max(r.peak_mb for _, r in rows)
    fitted = f"time grows by a factor of {math.exp(rate):.3f} an operator (slope of log time {rate:+.4f})"
    return f"{workload.name}\n{table(lines)}\n{fitted}; at most {peak:.0f} MiB", peak


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The slope of log y over x, by least squares."""
    logs = [math.log(y) for y in ys]
    x0, y0 = sum(xs) / len(xs), sum(logs) / len(logs)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, logs, strict=True)) / sum((x - x0) ** 2 for x in xs)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    from prism.api.region_search import SearchBudget

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="workloads; all by default, with --ablate those that are no models")
    parser.add_argument("--json", action="store_true", help="one JSON object a workload")
    parser.add_argument("--ablate", action="store_true", help="with each pruner switched off")
    parser.add_argument("--growth", action="store_true", help="against max_ops")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, of which the fastest counts; 3 by default")
    args = parser.parse_args(argv)
    known = {w.name: w for w in workloads()}
    unknown = [n for n in args.names if n not in known]
    if unknown or args.repeat < 1:
        parser.error(
            f"there is no workload {unknown[0]}: {', '.join(known)}" if unknown else "--repeat takes 1 or more"
        )
    default = GROWTH if args.growth else [w.name for w in TRACED] if args.ablate else list(known)
    chosen = [known[n] for n in args.names or default]
    peak = 0.0
    if args.ablate:
        print(ablation(chosen, args.repeat, SearchBudget()))
    if args.growth:
        for w in chosen:
            text, most = growth(w, args.repeat, SearchBudget())
            print(text, flush=True)
            peak = max(peak, most)
    if not (args.ablate or args.growth):
        rows = []
        for w in chosen:
            rows += apart(w, args.repeat, [SearchBudget()])
            if args.json:
                print(json.dumps(asdict(rows[-1])), flush=True)
        if not args.json:
            print(table([HEAD.split(), *map(_line, rows)]))
            print(beyond(rows))
        peak = max(r.peak_mb for r in rows)
    if peak >= MEMORY_MB:
        print(f"{peak:.0f} MiB: a search may take {MEMORY_MB:.0f} at most", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
