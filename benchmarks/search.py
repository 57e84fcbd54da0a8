"""How long the search takes: seconds by stage, e-nodes, sGraphs and memory, for every shipped example.

    python benchmarks/search.py [--json] [--repeat N] [NAME ...]

Each workload runs in a process of its own, `--repeat` times with a fresh e-graph worker each; the run with the least
total is printed. `import_s` is the reading of the model, with the front end's libraries already loaded; starting the
worker (a process that loads egglog and the rules) overlaps with it in `prism optimize` and is printed as `start_s`.
The total is saturation + generation + proof.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MODELS = Path(__file__).resolve().parent.parent / "examples" / "models"


@dataclass(frozen=True, slots=True)
class Row:
    """One workload's figures; seconds, and MiB for `peak_mb` (the worker's included)."""

    name: str
    import_s: float
    start_s: float
    saturation_s: float
    generation_s: float
    proof_s: float
    enodes: int
    generated: int
    pruned: Mapping[str, int]
    proved: int
    unknown: int
    operators: int
    kernels: int
    peak_mb: float

    @property
    def total_s(self) -> float:
        """Saturation, generation and proof."""
        return self.saturation_s + self.generation_s + self.proof_s


def measure(path: str, repeat: int) -> Row:
    """The workload's best run."""
    from prism.api import load
    from prism.api.searching import SearchBudget, run_search
    from prism.egraph.budget import Budget
    from prism.egraph.worker import Worker
    from prism.events import Recorder
    from prism.instantiate.devices import device
    from prism.program.nodes import Const

    load(path)  # loads the libraries
    rows = []
    for _ in range(repeat):
        start = time.perf_counter()
        program = load(path)
        imported = time.perf_counter() - start
        start = time.perf_counter()
        with Worker() as worker:
            worker.explore([Const(1.0)], Budget())
            started = time.perf_counter() - start
            found = run_search(program, device("sm_90"), SearchBudget(), worker, Recorder())
            peak = _peak_mb(os.getpid()) + _peak_mb(worker.pid)
        rows.append(
            Row(
                program.name,
                imported,
                started,
                found.seconds["saturation"],
                found.seconds["generation"],
                found.seconds["proof"],
                found.enodes,
                found.generated.generated,
                found.generated.pruned,
                len(found.proved),
                found.unknown,
                program.operator_count,
                min((len(p.sgraph.kernels) for p in found.proved), default=0),
                peak,
            )
        )
    return min(rows, key=lambda r: r.total_s)


def _peak_mb(pid: int | None) -> float:
    """Peak resident memory of a process that is alive, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text."""
    head = (
        "workload",
        "import",
        "saturate",
        "generate",
        "prove",
        "total s",
        "e-nodes",
        "built",
        "pruned",
        "proved",
        "unknown",
        "kernels",
        "peak MiB",
    )
    lines = [head]
    for r in rows:
        lines.append(
            (
                r.name,
                f"{r.import_s:.3f}",
                f"{r.saturation_s:.3f}",
                f"{r.generation_s:.3f}",
                f"{r.proof_s:.3f}",
                f"{r.total_s:.3f}",
                f"{r.enodes:,}",
                f"{r.generated:,}",
                f"{sum(r.pruned.values()):,}",
                str(r.proved),
                str(r.unknown),
                f"{r.operators} -> {r.kernels}",
                f"{r.peak_mb:.0f}",
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="workloads; all by default")
    parser.add_argument("--json", action="store_true", help="one JSON object a workload")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args(argv)
    paths = [p for p in sorted(MODELS.glob("*.onnx")) if not args.names or p.stem in args.names]
    rows = []
    context = multiprocessing.get_context("spawn")
    for path in paths:
        with context.Pool(1) as pool:
            row = pool.apply(measure, (str(path), args.repeat))
        rows.append(row)
        if args.json:
            print(json.dumps(asdict(row)), flush=True)
    if not args.json:
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
