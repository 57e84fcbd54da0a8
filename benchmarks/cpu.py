"""Kernels that prism finds for the CPU that is here, timed against torch eager, torch.compile and onnxruntime.

    python benchmarks/cpu.py [--json] [--trials N] [--repeats N] [--dtype TYPE] [--no-inductor] [NAME ...]
    python benchmarks/cpu.py --list

NAME is part of a case's name; all cases of `cpu_cases.py` and the examples by default. Each case is optimized, then
timed in a process of its own (`cpu_child.py`): all contenders interleaved in one run, threads pinned, the same inputs,
lower quartiles with medians and upper ones, results checked against float64, and the machine's copy bandwidth taken in
the same rounds. It is timed twice, each time in a process of its own, above 3x for longer; the least gain counts, and
with it stands what the gain lies between. What is beside it on the machine is said where there are no cores for it.

`floor_us` is the time in which the machine copies as many bytes as the case's inputs and outputs have, or does the
case's matrix operations, whichever is longer. The baseline is a candidate: where a kernel is slower than the best of
them, `chosen` is `baseline`, `prism_us` is the baseline's, and `kernel_us` still says what the kernel takes. With
--json, what was run replaces the same cases in `benchmarks/results/cpu-MACHINE.json`; a table and a plot are beside it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cpu_report import figures, plot, summary, table, together

if TYPE_CHECKING:
    from prism.platforms.cpu import CpuPlatform
    from prism.program.nodes import Program

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = "prism.bench/3"
RESULTS = ROOT / "benchmarks" / "results"
CHILD = ROOT / "benchmarks" / "cpu_child.py"
CHILD_LIMIT_S = 900.0
MATCHES = 2
"""Processes that time a case."""
SETTLE_S = 10.0
"""Between tuning a case and timing it, seconds: a virtual machine that has just compiled on all cores is slow."""


@dataclass(frozen=True, slots=True)
class Job:
    """A case in one data type: from the suite, or a model."""

    name: str
    dtype: str
    model: Path | None = None


def jobs() -> list[Job]:
    """Every case, the suite before the examples."""
    from benchmarks.cpu_cases import CASES

    found = [Job(c.name, d) for c in CASES for d in c.dtypes]
    models = sorted((ROOT / "examples" / "models").glob("*.onnx"))
    # A whole layer is several regions, each tuned by itself: it takes as long as all others together.
    models = [m for m in models if m.stem != "decoder_layer"] + [m for m in models if m.stem == "decoder_layer"]
    return found + [Job(f"example {m.stem}", "", m) for m in models]


def program_of(job: Job) -> Program:
    """The case as prism takes it."""
    import torch

    from benchmarks.cpu_cases import CASES
    from prism.api import load, trace

    if job.model is not None:
        return load(job.model)
    (case,) = (c for c in CASES if c.name == job.name)
    (first, *_) = case.forms.values()
    meta = [torch.empty(s, dtype=getattr(torch, job.dtype), device="meta") for s in case.shapes]
    return trace(first, meta, name=re.sub(r"\W+", "_", job.name).strip("_").lower())


def shapes_of(program: Program) -> tuple[dict[str, list[int]], int]:
    """Shapes of inputs and outputs by name, and their bytes together."""
    from prism.program.extents import evaluate

    tensors = [*program.inputs, *(program.tensor(n) for n in program.outputs)]
    shapes = {t.name: [evaluate(e, program.hints) for e in t.shape] for t in tensors}
    return shapes, sum(math.prod(shapes[t.name]) * t.dtype.bytes for t in tensors)


def measure(job: Job, args: argparse.Namespace, target: CpuPlatform) -> dict[str, Any]:
    """One case's row."""
    from prism.api import optimize
    from prism.backends.protocol import write_module
    from prism.errors import PrismError
    from prism.instantiate.machine_load import Load
    from prism.instantiate.rounds import INCREDIBLE, LONGER
    from prism.platforms.cpu_children import cpu_environment

    program = program_of(job)
    shapes, size = shapes_of(program)
    dtype = job.dtype or program.tensor(program.outputs[0]).dtype.value
    row: dict[str, Any] = {"name": job.name, "shapes": shapes, "dtype": dtype}
    with tempfile.TemporaryDirectory(prefix="prism-bench-") as name:
        folder, module = Path(name), ""
        start = time.perf_counter()
        try:
            made = optimize(program, target="cpu", trials=args.trials, seed=args.seed, only_better=False, baselines=())
        except PrismError as error:
            row |= {"sgraph": "", "config": {}, "why_no_kernel": error.one_line()}
        else:
            assert made.source is not None
            module = str(write_module(made.source, folder / "kernels.py"))
            row |= {"sgraph": made.report.sgraph_text, "config": dict(made.report.config)}
            row |= {"kernels": made.report.kernel_count, "operators": made.report.operator_count}
        row["tuning_s"] = round(time.perf_counter() - start, 1)
        request = {
            "case": job.name,
            "model": str(job.model or ""),
            "dtype": dtype,
            "module": module,
            "bytes": size,
            "processors": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
            "inductor": args.inductor,
            "onnxruntime": importlib.util.find_spec("onnxruntime") is not None,
        }
        time.sleep(SETTLE_S)
        load = os.getloadavg()[0]
        environment = cpu_environment(target.device.processors, pinned=not args.loose)
        answers: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        for _ in range(MATCHES):
            incredible = any((r["kernel_speedup"] or 0.0) > INCREDIBLE for r in rows)
            times = LONGER if incredible else 1
            answers.append(timed(job, request | {"repeats": times * args.repeats}, folder, environment))
            rows.append(figures(answers[-1]["contenders"], flops_of(job), size, dtype, target.device.cache_bytes))
    found = together(rows, [a["contenders"] for a in answers])
    loads = [Load(**a["load"]) for a in answers]
    crowded = any(x.crowded for x in loads)
    others = max((x.others for x in loads if x.others is not None), default=None)
    return row | found | {"load_before": round(load, 2), "others": others, "crowded": crowded}


def timed(job: Job, request: Mapping[str, Any], folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """What one child says."""
    (folder / "request.json").write_text(json.dumps(request))
    done = subprocess.run(
        [sys.executable, str(CHILD), str(folder / "request.json"), str(folder / "answer.json")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=CHILD_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{job.name}: {done.stderr.strip().splitlines()[-1:]}")
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer


def flops_of(job: Job) -> float:
    """Matrix operations, where they are known."""
    from benchmarks.cpu_cases import CASES

    return next((c.flops for c in CASES if c.name == job.name), 0.0)


def described(target: CpuPlatform) -> dict[str, Any]:
    """The machine."""
    d = target.device
    return {
        "name": d.name,
        "cores": d.processors,
        "vector_bits": 8 * d.core.vector_bytes,
        "l1_bytes": d.core.l1_bytes,
        "l2_bytes": d.core.l2_bytes,
        "l3_bytes": d.cache_bytes,
        "compiler": target.compiler,
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Of what is compared."""
    from prism.instantiate.cache import version_of
    from prism.instantiate.lock import versions as of_prism

    found = of_prism()
    return found | ({"onnxruntime": version_of("onnxruntime")} if version_of("onnxruntime") else {})


def line(row: Mapping[str, Any]) -> str:
    """A row for the terminal."""
    kernel = f"{row['kernel_us']:10.1f}" if row["kernel_us"] is not None else " " * 9 + "-"
    best = row["baselines"][row["best_baseline"]]
    low, high = row.get("kernel_speedup_between") or (0.0, 0.0)
    span = f" ({low:.2f} to {high:.2f})" if high else ""
    busy = f"  others kept {row['others'] or 0:.1f} cores busy" if row.get("crowded") else ""
    return (
        f"{row['name']:34} {row['dtype']:9} floor {row['floor_us']:9.1f}  kernel {kernel}  best {best:10.1f} "
        f"({row['best_baseline']})  x{row['kernel_speedup'] or 0:.2f}{span}  of floor {row['share_of_floor']:.2f}"
        + busy
        + ("  WRONG" if row["wrong"] else "")
    )


def merged(path: Path, rows: Sequence[Mapping[str, Any]], order: Sequence[Job]) -> list[Mapping[str, Any]]:
    """The rows, with those of other cases that are in the file already, in the order of the cases."""
    known: dict[tuple[str, str], Mapping[str, Any]] = {}
    if path.is_file():
        before = json.loads(path.read_text())
        # What was timed in another way is not mixed in.
        known = {(r["name"], r["dtype"]): r for r in before["cases"] if before["schema"] == SCHEMA}
    known |= {(r["name"], r["dtype"]): r for r in rows}
    place = {name: n for n, name in enumerate(dict.fromkeys(j.name for j in order))}
    return sorted(known.values(), key=lambda r: (place.get(r["name"], len(place)), r["dtype"] != "float32", r["dtype"]))


def write(rows: Sequence[Mapping[str, Any]], target: CpuPlatform, args: argparse.Namespace, folder: Path) -> Path:
    """The results' files; returns the JSON's path."""
    folder.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", target.device.name.lower()).strip("-")
    path = folder / f"cpu-{slug}.json"
    every = merged(path, rows, jobs())
    report = {
        "schema": SCHEMA,
        "device": target.device.name,
        "evidence": "measured",
        "machine": described(target),
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "threads": target.device.processors,
        "trials": args.trials,
        "repeats": args.repeats,
        "copy_beyond_caches_gb_s": statistics.median(r["copy_beyond_caches_gb_s"] for r in every),
        "summary": summary(every),
        "cases": every,
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(table(report), encoding="utf-8")
    path.with_suffix(".svg").write_text(plot(report), encoding="utf-8")
    return path


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="part of a case's name")
    parser.add_argument("--json", action="store_true", help="write the results' files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to")
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--trials", type=int, default=16, help="configurations that are timed a case")
    parser.add_argument("--repeats", type=int, default=15, help="samples a contender")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", help="cases in this type alone")
    parser.add_argument("--loose", action="store_true", help="threads are not pinned: for a machine that is not idle")
    parser.add_argument("--no-inductor", dest="inductor", action="store_false", help="without torch.compile")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases; returns the exit code."""
    from prism.platforms.cpu import NO_COMPILER, cpu_platform

    warnings.simplefilter("ignore")  # torch's own
    args = arguments(argv)
    chosen = [j for j in jobs() if args.dtype in (None, j.dtype)]
    if not chosen:
        print(f"no case is in {args.dtype}: --list shows them all", file=sys.stderr)
        return 2
    unknown = [n for n in args.names if not any(n.lower() in j.name.lower() for j in chosen)]
    if unknown:
        of = f" in {args.dtype}" if args.dtype else ""
        print(f"no case{of} is called {', '.join(unknown)}: --list shows them all", file=sys.stderr)
        return 2
    chosen = [j for j in chosen if not args.names or any(n.lower() in j.name.lower() for n in args.names)]
    if args.list:
        print("\n".join(f"{j.name} {j.dtype}".strip() for j in chosen))
        return 0
    target = cpu_platform()
    if target is None:
        print(NO_COMPILER, file=sys.stderr)
        return 2
    rows: list[dict[str, Any]] = []
    failed = 0
    for job in chosen:
        try:
            rows.append(measure(job, args, target))
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"{job.name} {job.dtype}: {error}", file=sys.stderr, flush=True)
            continue
        print(line(rows[-1]), flush=True)
        if args.json:
            write(rows, target, args, args.out)
    failed += sum(r["wrong"] for r in rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
