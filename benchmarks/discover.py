"""How far the search is from the best known algorithm: bytes, work and launches, function by function.

    python benchmarks/discover.py [--only PART ...] [--json]    a line a function (collection.py); minutes on one core
    python benchmarks/discover.py --gallery docs/gallery.md     and the page with the best (gallery.py)

`bytes`, `matrix` (operations of matrix products), `vector` (multiply-adds) and `launches` are those of the best known
algorithm, and prism's after the arrow: of its best-ranked proved sGraph for sm_90 at the configuration that its cost
model likes best. Bytes are those that cross the memory interface, buffers between launches among them whatever a cache
keeps. `ratio` compares the time that both would take at the same rates of the device: the largest of traffic, matrix
work and vector work, and a constant a launch. `reached` is that of the proved sGraph for which it is least: what was
found, whatever the cost model ranks first. There a launch of fewer programs than the device has processors takes as
much longer, since the best known algorithm fills it. Everything is counted, nothing is measured but `search`, CPU
seconds of the search and its prover. `in 2 s` is the ratio of what there is when the search is given two seconds: where
it took longer, of a second one that was.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.collection import KNOWN, PARTIAL, Known

if TYPE_CHECKING:
    from benchmarks.gallery import Entry
    from prism.api.partitioned import PartitionedSearch
    from prism.api.proofs import ProvedSGraph
    from prism.api.region_search import SearchResult
    from prism.api.time_limit import SearchTime
    from prism.cost.device import Device
    from prism.cost.model import Estimate
    from prism.egraph.worker import Worker
    from prism.events import Funnel
    from prism.program.nodes import Formula, Program
    from prism.sgraph.config import Config
    from prism.sgraph.nodes import SGraph

TARGET = "sm_90"
FAR = 1.5
"""A ratio that wants a reason."""
SOON_S = 2.0
"""What a search is to find the best known structure in."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What an algorithm takes.

    Attributes:
        bytes: to and from memory.
        matrix: operations of matrix products.
        vector: multiply-adds of everything else.
        launches: kernels.
    """

    bytes: float
    matrix: float
    vector: float
    launches: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.bytes + other.bytes,
            self.matrix + other.matrix,
            self.vector + other.vector,
            self.launches + other.launches,
        )

    def times(self, many: int) -> Counts:
        """One after the other, so often."""
        return Counts(many * self.bytes, many * self.matrix, many * self.vector, many * self.launches)

    def seconds(self, target: Device, longer: float = 1.0) -> float:
        """At the device's rates, as if it were always full; or where it takes so much `longer`, launches apart."""
        from prism.cost import roofline
        from prism.program.nodes import DType

        work = roofline.arithmetic(target, self.matrix, self.vector, DType.BFLOAT16)
        moved = self.bytes / target.bandwidth_bytes_s
        return max(moved, *work) * longer + self.launches * target.launch_overhead_s


@dataclass(frozen=True, slots=True)
class Row:
    """One function.

    Attributes:
        known: counts of the best known algorithm.
        formulas: what they were computed from: bytes, matrix.
        source: where the formulas are from.
        found: prism's counts; None where nothing was proved.
        ratio: of the times; infinite where nothing was proved.
        search_s: CPU seconds.
        reason: why the ratio is more than `FAR`, where it is.
        reached: the least ratio of what was proved, where processors without a program count.
        unproved: of regions of which nothing was proved, so that others were searched, what became of what was left.
        soon: the ratio of what was found in `SOON_S` seconds.
        soon_s: seconds in which that search had ended: the time is over when something is proved.
    """

    name: str
    known: Counts
    formulas: tuple[str, str]
    source: str
    found: Counts | None
    ratio: float
    regions: int
    search_s: float
    reason: str
    reached: float
    unproved: tuple[str, ...] = ()
    soon: float = math.nan
    soon_s: float = math.nan


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a region became.

    Attributes:
        formulas: its outputs.
        proved: the sGraph that the cost model likes best, with its proof.
        config: at this configuration.
        estimate: what it takes there.
    """

    formulas: tuple[Formula, ...]
    proved: ProvedSGraph
    config: Config
    estimate: Estimate


def best_known(known: Known, program: Program) -> Counts:
    """The table's formulas at the function's sizes."""
    import sympy

    names = known.dimensions | {"P": PARTIAL, "io": _io(program)}

    def at(formula: str) -> float:
        return float(sympy.sympify(formula, locals={n: sympy.Symbol(n) for n in names}).subs(names))

    vector = at(known.vector) if known.vector else _pointwise(program)
    return Counts(at(f"io + {known.more}"), at(known.matrix), vector, known.launches)


def _io(program: Program) -> int:
    """Bytes of every input and output once."""
    names = dict.fromkeys((*(t.name for t in program.inputs), *program.outputs))
    tensors = [program.tensor(n) for n in names]
    return sum(math.prod(int(e) for e in t.shape) * t.dtype.bytes for t in tensors)


def _pointwise(program: Program) -> float:
    """Multiply-adds of what is no product of matrices, each operator of the program once."""
    from prism.program.products import work

    total = sum(int(loop.trips) * _pointwise(loop.body) for loop in program.loops)
    for d in program.definitions:
        done = work(d.expr)
        total += sum(cost * math.prod(int(a.extent) for a in axes) for cost, axes in done.others)
        total += sum(math.prod(int(a.extent) for a in p.axes) for p in done.products if not p.is_matrix)
    return total


def ranked(formulas: Sequence[Formula], proved: Sequence[ProvedSGraph], target: Device) -> list[Chosen]:
    """Each sGraph that can run at the configuration that the cost model likes best, best first.

    Attention that a library would compute is counted as the kernel in whose place it would be: that is what was found.
    """
    from prism.cost.model import Model
    from prism.instantiate.space import Space
    from prism.sgraph.library import PlainAttention, library_calls

    found = []
    for p in proved:
        model = Model(p.sgraph, target, {})
        fused = {n for n, call in library_calls(p.sgraph).items() if isinstance(call, PlainAttention)}
        for m in model.launches:
            if m.name in fused and m.library is not None:
                m.library = replace(m.library, spill=math.inf)
        found += [Chosen(tuple(formulas), p, *at) for at in Space(p.sgraph, target, {}).points_ranked(model, 1)]
    return sorted(found, key=lambda c: c.estimate.seconds)


def counted(found: Chosen, target: Device) -> Counts:
    """What it takes."""
    return _counted(found.proved.sgraph, found.config, found.estimate, target)


def _counted(sgraph: SGraph, config: Config, estimate: Estimate, target: Device, only: str = "") -> Counts:
    """What all launches take, or one alone.

    What matrix units add to accumulators as they multiply is no work of its own, as in the model.
    """
    from prism.cost.compiled_expr import value
    from prism.cost.counts import SGraphCost, sgraph_cost
    from prism.cost.model import Model
    from prism.sgraph.resident import in_one_launch

    sgraph = in_one_launch(sgraph)
    mine = [n for n, k in enumerate(sgraph.kernels) if only in ("", k.name)]
    every, models = sgraph_cost(sgraph).kernels, Model(sgraph, target, {}).kernels
    cost = SGraphCost(tuple(every[n] for n in mine))
    at = cost.evaluate(config.symbols)
    touched = 0.0
    for kernel in cost.kernels:
        # Each window once, and of a tensor no more than there is.
        windows = {(a.tensor, a.store, a.index, a.places): a for a in kernel.accesses}
        parts: dict[tuple[str, bool], float] = {}
        for (name, store, *_), a in windows.items():
            parts[name, store] = parts.get((name, store), 0.0) + float(a.own.evaluate(config.symbols))
        for (name, _), own in parts.items():
            tensor = sgraph.tensors[name]
            touched += min(own, math.prod(value(e, config.symbols) for e in tensor.shape) * tensor.dtype.bytes)
    launches = [k for k in estimate.per_kernel if only in ("", k.name)]
    missed = sum(k.bytes for k in launches)
    added = [m.unpadded() for n in mine for m in models[n].added_in_place]
    vector = at["flops"] - sum(float(m.evaluate(config.symbols)) for m in added)
    return Counts(max(touched, missed), at["dot_flops"], vector, len(launches))


def through_steps(found: PartitionedSearch, made: Sequence[Chosen], target: Device) -> dict[int, Counts]:
    """What the steps of loops take that are one launch together, by the place of the region that a step is.

    With them nothing, by their places, of regions that such a launch does the work of.
    """
    from prism.cost.model import Model
    from prism.sgraph.config import Config
    from prism.sgraph.resident import launched

    composed = found.compose([c.proved.sgraph for c in made])
    sgraph = composed.sgraph
    names = {r.kernels[0] for r in sgraph.repeats if r.resident}
    config = Config.together(c.config.renamed(n.symbols, n.launches) for c, n in zip(made, composed.names, strict=True))
    if not names:
        return {}
    estimate = Model(sgraph, target, {}).estimate(config)
    left = {x.name for x in launched(sgraph)}
    within = {
        place: Counts(0.0, 0.0, 0.0, 0)
        for place, n in enumerate(composed.names)
        if left.isdisjoint(n.launches.values())
    }
    return within | {
        place: _counted(sgraph, config, estimate, target, name)
        for place, n in enumerate(composed.names)
        for name in names.intersection(n.launches.values())
    }


def idle(found: Chosen, target: Device) -> float:
    """How much longer its launches take as they leave processors of the device without a program.

    How many programs a library has for a product nobody knows: as many as it takes.
    """
    from prism.cost.counts import sgraph_cost
    from prism.cost.roofline import full

    sgraph, config = found.proved.sgraph, found.config
    called = config.launches("library")
    busy = slowed = 0.0
    for kernel, cost in zip(sgraph.kernels, sgraph_cost(sgraph).kernels, strict=True):
        counts = (cost.bytes_read, cost.bytes_written, cost.flops, cost.dot_flops, cost.programs)
        loaded, stored, flops, dot_flops, programs = (float(c.evaluate(config.symbols)) for c in counts)
        alone = float(full(target, loaded + stored, flops + target.matrix_operation * dot_flops))
        busy += alone
        slowed += alone * (1.0 if kernel.name in called else max(1.0, target.processors / programs))
    return slowed / busy if busy else 1.0


def measure(known: Known, worker: Worker) -> tuple[Row, tuple[Chosen, ...]]:
    """Search one function, region by region as `prism optimize` does, and count; and what its regions became."""
    from prism.api.time_limit import ENDLESS
    from prism.cost.device import device

    target, program = device(TARGET), known.program()
    found, searched, seconds, took = _searched(program, target, worker, lambda: ENDLESS)
    every, counts = _candidates(found, target)
    total, goal = None, best_known(known, program)
    ratio = reached = math.inf
    if counts:
        total = sum((first for first, *_ in counts), Counts(0.0, 0.0, 0.0, 0))
        goal = replace(goal, vector=min(goal.vector, total.vector))
        ratio = total.seconds(target) / goal.seconds(target)
        least = sum(
            min(x.seconds(target, idle(c, target)) for c, x in zip(each, found_counts, strict=True))
            for each, found_counts in zip(every, counts, strict=True)
        )
        reached = min(ratio, least / goal.seconds(target))
    row = Row(
        known.name,
        goal,
        (f"io + {known.more}" if known.more != "0" else "io", known.matrix),
        known.source,
        total,
        ratio,
        len(found.regions),
        seconds,
        known.reason if ratio > FAR else "",
        reached,
        tuple(what_was_left(r.funnel) for r in searched.values() if not r.proved),
        *((ratio, took) if took <= SOON_S else _soon(program, target, goal)),
    )
    return row, tuple(each[0] for each in every if each)


def _searched(
    program: Program, target: Device, worker: Worker, time_given: Callable[[], SearchTime]
) -> tuple[PartitionedSearch, dict[str, SearchResult], float, float]:
    """What was found, all searches that were made for it, CPU seconds and seconds; the time begins with the search."""
    from prism.api.partitioned import search_regions
    from prism.api.region_search import SearchBudget
    from prism.events import Recorder
    from prism.generate.partition import partition

    searched: dict[str, SearchResult] = {}
    before, began, within = _cpu_seconds(worker), time.monotonic(), time_given()
    regions = partition(program, device=target)
    found = search_regions(program, regions, target, SearchBudget(), [worker], Recorder(), searched, time=within)
    return found, searched, _cpu_seconds(worker) - before, time.monotonic() - began


def _candidates(found: PartitionedSearch, target: Device) -> tuple[list[list[Chosen]], list[list[Counts]]]:
    """What each region may become, best first, and what that takes; no counts where some region may become nothing.

    As `prism optimize`: of a step what all steps may be one launch of, where there is such.
    """
    through = [found.through_steps(r) for r in found.regions]
    proved = [
        r.result.proved if t is None else [p for p, _ in t.made] for r, t in zip(found.regions, through, strict=True)
    ]
    every = [ranked(r.result.formulas, p, target) for r, p in zip(found.regions, proved, strict=True)]
    if not all(every):
        return every, []
    steps = [1 if r.region.loop is None else int(r.region.loop.trips) for r in found.regions]
    counts = [[counted(c, target).times(n) for c in each] for each, n in zip(every, steps, strict=True)]
    for place, one in through_steps(found, [e[0] for e in every], target).items() if found.program.loops else ():
        counts[place][:1] = [one]
    return every, counts


def _soon(program: Program, target: Device, goal: Counts) -> tuple[float, float]:
    """The ratio of what is found in `SOON_S` seconds, by a search of its own, and what that took till it ended.

    The ratio is infinite where that is nothing.
    """
    from prism.api.time_limit import SearchTime
    from prism.egraph.worker import Worker
    from prism.process.deadline import Deadline

    with Worker() as worker:
        worker.ready()
        found, _, _, took = _searched(program, target, worker, lambda: SearchTime(Deadline.after(SOON_S)))
    _, counts = _candidates(found, target)
    total = sum((first for first, *_ in counts), Counts(0.0, 0.0, 0.0, 0))
    return (total.seconds(target) / goal.seconds(target) if counts else math.inf), took


def what_was_left(funnel: Funnel) -> str:
    """Of a search in which nothing was proved, how many candidates came to a verdict, and to which."""
    verdicts = {k: funnel.pruned.get(k, 0) for k in ("numerics", "illegal")}
    verdicts |= {"refuted": funnel.refuted, "unknown": funnel.unknown}
    return ", ".join((f"{sum(verdicts.values())} left, 0 proved", *(f"{k}: {n}" for k, n in verdicts.items() if n)))


def _cpu_seconds(worker: Worker) -> float:
    """Of this process and of the worker so far; a worker that was ended with its search has none to tell."""
    if worker.pid is None:
        return time.process_time()
    fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / 100


def geometric_mean(ratios: Iterable[float]) -> float:
    """Of those that are finite; NaN of none."""
    logs = [math.log(r) for r in ratios if math.isfinite(r)]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def report(rows: Sequence[Row]) -> str:
    """The table, the mean, and what is far with its reason."""
    from benchmarks.search import table

    lines = [
        [
            "function",
            "MB",
            "matrix G",
            "vector M",
            "launches",
            "regions",
            "ratio",
            "reached",
            "search",
            "in 2 s",
            "formulas",
        ]
    ]
    for r in rows:
        f = r.found

        def both(known: float, found: float | None, scale: float) -> str:
            return f"{known / scale:.4g}->" + ("?" if found is None else f"{found / scale:.4g}")

        lines.append(
            [
                r.name,
                both(r.known.bytes, f.bytes if f is not None else None, 1e6),
                both(r.known.matrix, f.matrix if f is not None else None, 1e9),
                both(r.known.vector, f.vector if f is not None else None, 1e6),
                both(r.known.launches, f.launches if f is not None else None, 1),
                str(r.regions),
                f"{r.ratio:.2f}",
                f"{r.reached:.2f}",
                f"{r.search_s:.1f}",
                f"{r.soon:.2f}",
                f"{r.formulas[0]}; {r.formulas[1]}",
            ]
        )
    proved = [r for r in rows if math.isfinite(r.ratio)]
    far = [r for r in rows if r.ratio > FAR]
    text = [table(lines), f"geometric mean {geometric_mean(r.ratio for r in rows):.3f} of {len(proved)} functions"]
    as_good = sum(r.soon <= 1.02 * r.ratio for r in proved)
    soon = (
        f"{geometric_mean(r.soon for r in rows):.3f}, and {as_good} of them within 2 % of what they are without a limit"
    )
    longest = max(rows, key=lambda r: r.soon_s)
    text.append(f"in {SOON_S:g} s it is {soon}; the longest search then, {longest.name}, takes {longest.soon_s:.1f} s")
    if len(proved) < len(rows):
        text.append(f"nothing proved: {', '.join(r.name for r in rows if r not in proved)}")
    text += [f"{r.name}: a region of which nothing was proved: {u}" for r in rows for u in r.unproved]
    text += [f"over {FAR}: {r.name} {r.ratio:.2f}: {r.reason or 'no reason is known'}" for r in far]
    return "\n".join(text)


def entry(known: Known, row: Row, made: Sequence[Chosen]) -> list[Entry]:
    """The entry of a function that is one region, not yet derived; none of others.

    Args:
        known: the function.
        row: what was counted.
        made: what its regions became.
    """
    from benchmarks.gallery import Entry, kernels, source
    from prism.backends.triton.emit import emit_module
    from prism.cost.device import device
    from prism.cost.model import baseline_estimate
    from prism.sgraph.show import text

    if len(made) != 1:
        return []
    (found,) = made
    sgraph = found.proved.sgraph
    baseline = baseline_estimate(known.program(), device(TARGET), {})
    return [
        Entry(
            known.name,
            f"{known.arguments}, {known.sizes}",
            source(known),
            text(sgraph),
            (),
            kernels(emit_module(sgraph, formula=known.name, configs={TARGET: [found.config]}).text),
            found.config.encode(),
            baseline.seconds / found.estimate.seconds,
            row.ratio,
            row.source,
        )
    ]


def derived(entries: Sequence[tuple[Entry, Chosen]]) -> list[Entry]:
    """The entries that the page shows, with their proofs."""
    from benchmarks.gallery import best, proof
    from prism.egraph.worker import Worker

    found = {id(e): chosen for e, chosen in entries}
    shown = best([e for e, _ in entries])
    with Worker() as worker:
        worker.ready()
        proofs = [tuple(proof(found[id(e)].formulas, found[id(e)].proved, worker)) for e in shown]
    return [replace(e, proof=p) for e, p in zip(shown, proofs, strict=True)]


def main(argv: Sequence[str] | None = None) -> int:
    """Search and print."""
    from benchmarks.gallery import NEAR, page
    from prism.egraph.worker import Worker

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="functions whose names have such a part")
    parser.add_argument("--json", action="store_true", help="one JSON object a function")
    parser.add_argument("--gallery", type=Path, metavar="FILE", help="write the page with the best of them here")
    args = parser.parse_args(argv)
    chosen_functions = [k for k in KNOWN if not args.only or any(o.lower() in k.name.lower() for o in args.only)]
    if not chosen_functions:
        parser.error(f"no function has a name with {', '.join(args.only)}: {', '.join(k.name for k in KNOWN)}")
    warnings.simplefilter("ignore")  # torch's own
    rows: list[Row] = []
    entries: list[tuple[Entry, Chosen]] = []
    for known in chosen_functions:
        # Each with a worker of its own: what one leaves behind is no other's start.
        with Worker() as worker:
            worker.ready()
            row, made = measure(known, worker)
            rows.append(row)
            if args.gallery is not None and row.ratio <= NEAR:
                entries += [(e, made[0]) for e in entry(known, row, made)]
        if args.json:
            print(json.dumps(asdict(row)), flush=True)
        else:
            print(f"{known.name}: {row.ratio:.2f}", file=sys.stderr, flush=True)
    if not args.json:
        print(report(rows))
    if args.gallery is not None:
        args.gallery.write_text(page(derived(entries)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
