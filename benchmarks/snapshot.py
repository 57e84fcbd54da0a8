"""What prism makes of every example, search workload and case of the suite: files to compare before and after a change.

    python benchmarks/snapshot.py record FOLDER [NAME ...]   minutes on two cores; NAME is a part of a program's name
    python benchmarks/snapshot.py compare BEFORE AFTER       what differs; exit status 1 where anything does

For each program there are, under the folder of the device (sm_90, and for all but the suite's a CPU that is described
here, so that the machine does not matter):

    sgraphs/NAME.txt     the regions; of each the search's counts, its proved sGraphs in order, and who wins where
    ranking/NAME.txt     the baseline's estimate; of each sGraph the size of its space and its best configurations, with
                         the cost model's parts of every launch
    modules/NAME-...     the modules of the first sGraphs: one that every configuration fits, and one for the best
                         configuration and its variants (library, folded, descriptors, streams, persistent)

Nothing in them depends on times, paths or the machine. Numbers have nine digits, so that a sum in another order is no
difference.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

if TYPE_CHECKING:
    from prism.api.region_search import SearchResult
    from prism.egraph.worker import Worker
    from prism.program.nodes import Program
    from prism.sgraph.config import Config
    from prism.sgraph.nodes import SGraph

GPU = "sm_90"
CPU = "cpu"
RANKED = 12
"""Configurations of each sGraph that are written down."""
LOOKED_AT = 200
"""Configurations of an sGraph among which variants are looked for."""
EMITTED = 2
"""sGraphs of each region that are emitted."""
SHOWN = 12
"""Lines of a difference that `compare` prints of a file."""

Files: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True)
class Task:
    """A program on a device.

    Attributes:
        name: of the program, as in file names: model, workload or case, and what it is called there.
        read: reads or traces it.
        target: sm_90 or cpu.
    """

    name: str
    read: Callable[[], Program]
    target: str


def tasks(names: Sequence[str] = ()) -> list[Task]:
    """All whose names have one of these as a part; all of them without any."""
    from benchmarks.workloads import workloads
    from prism.bench.prepare import trace_case
    from prism.bench.suite import CASES

    plain = [(_file("workload" if w.fn else "model", w.name), w.program) for w in workloads()]
    every = [Task(name, read, target) for target in (GPU, CPU) for name, read in plain]
    every += [Task(_file("case", c.name), partial(trace_case, c), GPU) for c in CASES]
    return [t for t in every if not names or any(_file(n) in t.name for n in names)]


def _file(*words: str) -> str:
    return re.sub(r"\W+", "_", " ".join(words)).strip("_").lower()


@dataclass(frozen=True, slots=True)
class Machine:
    """A device with the models and the writer of modules that belong to it."""

    target: str

    @property
    def device(self) -> Any:
        """Its description."""
        if self.target == CPU:
            from prism.cost.device import multicore

            kib = 1024
            return multicore("a CPU", 8, 32, 32 * kib, 1024 * kib, 32 * 1024 * kib)
        from prism.cost.device import device

        return device(self.target)

    def model(self, sgraph: SGraph, hints: Mapping[str, int]) -> Any:
        """The cost model of one sGraph."""
        from prism.cost.cpu import CpuModel
        from prism.cost.model import Model

        return (CpuModel if self.target == CPU else Model)(sgraph, self.device, hints)

    def space(self, sgraph: SGraph, hints: Mapping[str, int]) -> Any:
        """Its configurations."""
        from prism.instantiate.space import Space

        return Space(sgraph, self.device, hints)

    def forms(self, sgraph: SGraph, program: Program) -> dict[str, list[Config]]:
        """The configurations that modules are emitted for; C++ is the same for all of them."""
        best = {"best": _variants(sgraph, program, self)}
        return best if self.target == CPU else {"any": [], **best}

    def emitted(self, sgraph: SGraph, formula: str, configs: Sequence[Config]) -> Files:
        """The module, by what its files' names end in."""
        from prism.backends.cpu import emit as cpu
        from prism.backends.triton import emit as triton
        from prism.errors import PrismError

        write = cpu.emit_module if self.target == CPU else triton.emit_module
        try:
            source = write(sgraph, formula=formula, configs={self.device.target: list(configs)} if configs else {})
        except PrismError as error:
            return {".error": f"{error.one_line()}\n"}
        return {".py": source.text, **{f"-{name}": text for name, text in source.extra.items()}}


def record(task: Task, worker: Worker) -> Files:
    """The files of one program, by their names."""
    from prism.api.partitioned import search_regions
    from prism.api.region_search import SearchBudget
    from prism.events import Recorder
    from prism.generate.dispatch import dispatch_table
    from prism.generate.partition import partition

    program, machine = task.read(), Machine(task.target)
    device = machine.device
    regions = partition(program, device=device)
    found = search_regions(program, regions, device, SearchBudget(), [worker], Recorder())
    places = {key: n for n, key in enumerate(found.distinct)}
    head = [f"region {places[r.canonical.key]}: {' '.join(r.region.outputs)}" for r in found.regions]
    sgraphs, ranking = ["\n".join(head) + "\n"], []
    files: Files = {}
    for key, r in found.distinct.items():
        title = f"==== region {places[key]}\n"
        sgraphs.append(title + _searched(r.result))
        own = [p.sgraph for p in r.result.proved]
        part = r.canonical.program
        for w in dispatch_table(own, part.ranges, device) if part.ranges else ():
            sgraphs.append(f"winner {w.place}: {w.text} (loses {_number(w.loss)})\n")
        ranking.append(title + _ranked(own, part, machine))
        formula = str(part)
        for n, sgraph in enumerate(own[:EMITTED]):
            for form, points in machine.forms(sgraph, part).items():
                made = machine.emitted(sgraph, formula, points)
                stem = f"{task.name}-{places[key]}-{n}-{form}"
                files |= {f"{task.target}/modules/{stem}{end}": text for end, text in made.items()}
    files[f"{task.target}/sgraphs/{task.name}.txt"] = "".join(sgraphs)
    files[f"{task.target}/ranking/{task.name}.txt"] = "".join(ranking)
    return files


def _searched(result: SearchResult) -> str:
    """What the search of one region says, but for its times."""
    from prism.sgraph import show

    g = result.generated
    lines = [
        f"{result.enodes} e-nodes, {result.stopped}; {g.generated} generated, complete {g.complete}; "
        f"{len(result.proved)} proved, {result.refuted} refuted, {result.unknown} unknown",
        *(f"pruned by {name}: {count}" for name, count in sorted(g.pruned.items())),
    ]
    for n, p in enumerate(result.proved):
        lines.append(f"-- {n} {show.key(p.sgraph)} bound {_number(p.seconds)}{' as written' if p.written else ''}")
        lines.append(show.text(p.sgraph).rstrip())
    return "\n".join(lines) + "\n"


def _ranked(sgraphs: Sequence[SGraph], program: Program, machine: Machine) -> str:
    """The configurations that the cost model likes best, and the baseline's estimate."""
    from prism.cost.model import baseline_estimate

    lines = []
    if machine.target != CPU:
        baseline = baseline_estimate(program, machine.device, program.hints)
        lines.append(f"baseline {_microseconds(baseline.seconds)}")
        lines += [f"  {_launch(k)}" for k in baseline.per_kernel]
    for n, sgraph in enumerate(sgraphs):
        space = machine.space(sgraph, program.hints)
        lines.append(f"-- {n} {space.size} configurations")
        for config, e in space.points_ranked(machine.model(sgraph, program.hints), RANKED):
            lines.append(f"{_microseconds(e.seconds)} by {e.limiter}  {config.key()}")
            lines += [f"  {_launch(k)}" for k in e.per_kernel]
    return "\n".join(lines) + "\n"


def _variants(sgraph: SGraph, program: Program, machine: Machine) -> list[Config]:
    """The best configuration, and the first that has each of the other ways to launch."""
    from prism.instantiate.options import Offered, variants

    model, space = machine.model(sgraph, program.hints), machine.space(sgraph, program.hints)
    ranked: list[Config] = [c for c, _ in space.points_ranked(model, LOOKED_AT)]
    found = list(space.varied(ranked[:1], model, 1))
    for option in (o for o in space.options if o.offered is Offered.SPACE):
        found += islice((c for c in ranked if c.launches(option.name)), 1)
    for offered in (Offered.CHECKED, Offered.TIMING):
        found += [c for base in ranked[:1] for c in variants(space.options, offered, base, model)]
    return list({c.key(): c for c in found}.values())


def _launch(k: Any) -> str:
    parts = (("memory", k.memory), ("compute", k.compute), ("latency", k.latency))
    said = ", ".join(f"{name} {_microseconds(s)}" for name, s in parts)
    return f"{k.name}: {_microseconds(k.seconds)} by {k.limiter}: {said}, {_number(k.bytes)} bytes"


def _microseconds(seconds: float) -> str:
    return f"{_number(1e6 * seconds)} us"


def _number(x: float) -> str:
    return f"{float(x):.9g}"


_WORKER: list[Worker] = []
"""The e-graph worker of a process that records."""


def _start() -> None:
    from prism.egraph.worker import Worker

    warnings.simplefilter("ignore")  # torch's own
    _WORKER.append(Worker())


def _apart(name: str, target: str) -> tuple[Files, float]:
    """`record` in a process of its own, and how long it took."""
    start = time.perf_counter()
    task = next(t for t in tasks() if (t.name, t.target) == (name, target))
    return record(task, _WORKER[0]), time.perf_counter() - start


def write(folder: Path, chosen: Sequence[Task], workers: int) -> None:
    """Record all of them into a folder; what it held of them goes."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start) as pool:
        made = pool.map(_apart, [t.name for t in chosen], [t.target for t in chosen])
        for task, (files, seconds) in zip(chosen, made, strict=True):
            for old in folder.glob(f"{task.target}/modules/{task.name}-[0-9]*"):
                old.unlink()
            for name, text in files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            print(f"{task.target} {task.name}: {len(files)} files, {seconds:.1f} s", flush=True)


def compare(before: Path, after: Path, shown: int = SHOWN) -> Iterator[str]:
    """What differs, in words, a block a file; nothing where nothing does."""
    old, new = ({str(p.relative_to(f)): p for p in f.rglob("*") if p.is_file()} for f in (before, after))
    for name in sorted(old.keys() - new.keys()):
        yield f"{name}: only before"
    for name in sorted(new.keys() - old.keys()):
        yield f"{name}: only after"
    for name in sorted(old.keys() & new.keys()):
        a, b = (p[name].read_text("utf-8") for p in (old, new))
        if a != b:
            kind = name.split("/")[1]
            say = {"sgraphs": _sgraphs_differ, "ranking": _rankings_differ}.get(kind)
            detail = say(a, b) if say else ""
            yield f"{name}: differs{detail}\n" + "\n".join(f"    {line}" for line in _difference(a, b, shown))


def _difference(a: str, b: str, shown: int) -> list[str]:
    lines = list(difflib.unified_diff(a.splitlines(), b.splitlines(), lineterm="", n=0))[2:]
    return lines[:shown] + ([f"... {len(lines) - shown} lines more"] if len(lines) > shown else [])


def _sgraphs_differ(a: str, b: str) -> str:
    """Whether there are other sGraphs, or the same in another order."""
    old, new = (re.findall(r"^-- \d+ (\w+)", text, re.MULTILINE) for text in (a, b))
    if old == new:
        return ", the same sGraphs in the same order"
    if sorted(old) == sorted(new):
        return f", the same {len(old)} sGraphs in another order"
    gone, come = len(set(old) - set(new)), len(set(new) - set(old))
    return f", {len(old)} sGraphs before and {len(new)} after, {gone} of them gone, {come} new"


def _rankings_differ(a: str, b: str) -> str:
    """How the best estimate and the order of configurations changed."""
    old, new = (re.findall(r"^([\d.e+-]+) us by \w+  (.*)$", text, re.MULTILINE) for text in (a, b))
    best = [min((float(s) for s, _ in points), default=float("nan")) for points in (old, new)]
    order = "the same" if [k for _, k in old] == [k for _, k in new] else "another"
    changes = [abs(float(y) / float(x) - 1) for (x, k), (y, j) in zip(old, new, strict=False) if k == j]
    most = f", estimates by {max(changes):.2%} at most" if changes else ""
    return f", {order} order of configurations, best {best[0]:g} -> {best[1]:g} us{most}"


def main(argv: Sequence[str] | None = None) -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(required=True, dest="step")
    p = steps.add_parser("record", help="write the files")
    p.add_argument("folder", type=Path)
    p.add_argument("names", nargs="*", help="parts of names; all programs by default, into an emptied folder")
    p.add_argument("--workers", type=int, default=2, help="processes; 2")
    p = steps.add_parser("compare", help="say what differs")
    p.add_argument("before", type=Path)
    p.add_argument("after", type=Path)
    p.add_argument("--shown", type=int, default=SHOWN, help=f"lines of each difference; {SHOWN}")
    args = parser.parse_args(argv)
    if args.step == "compare":
        for folder in (args.before, args.after):
            if not folder.is_dir():
                parser.error(f"there is no folder {folder}")
        found = list(compare(args.before, args.after, args.shown))
        print("\n".join([*found, f"{len(found)} files differ" if found else "no difference"]))
        return 1 if found else 0
    chosen = tasks(args.names)
    if not chosen:
        parser.error(f"no program is called {', '.join(args.names)}")
    if not args.names:
        for target in (GPU, CPU):
            shutil.rmtree(args.folder / target, ignore_errors=True)
    write(args.folder, chosen, args.workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
