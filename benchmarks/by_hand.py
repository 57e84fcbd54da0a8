"""Whether what `prism optimize` prints is what timing by hand says: printed and timed anew, case by case.

    python benchmarks/by_hand.py                              # all cases, on the machine as it is
    python benchmarks/by_hand.py --busy 1 softmax attention   # those of these names, while one core is kept busy

For each case an ONNX file is optimized by the command, as a user types it; then, in a process that knows nothing of
prism, its module is timed against torch eager, torch.compile and onnxruntime on one thread and on all, interleaved, by
lower quartiles (`by_hand_child.py`). A line tells the gain that was printed, the gain by hand, and the times of both
sides; `contradicted` where they are further apart than 1.2x. Nothing is asserted: on a machine that does other things,
the two are of different minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

WITHIN = 1.2
"""Printed and by hand may differ by so much, as a ratio."""
LIMIT_S = 1200.0
"""What the command may take, seconds."""


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    """Keep so many cores busy, the last ones."""
    usable = sorted(os.sched_getaffinity(0))
    burn = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    running = [subprocess.Popen([sys.executable, "-c", burn, str(c)]) for c in usable[len(usable) - cores :]]
    try:
        yield
    finally:
        for p in running:
            p.kill()
            p.wait()


def exported(name: str, folder: Path) -> Path:
    """The case's ONNX file."""
    from benchmarks.by_hand_cases import CASES, EXAMPLES
    from examples.common import MODELS, torch_model

    if name in EXAMPLES:
        return MODELS / f"{name}.onnx"
    import onnx

    case = next(c for c in CASES if c.name == name)
    args = {f"x{n}": x for n, x in enumerate(case.inputs())}
    path = folder / f"{'_'.join(filter(str.isidentifier, name.replace(',', '').split()))}.onnx"
    onnx.save(torch_model(path.stem, case.fn, args, dynamic={}, opset=23), path)
    return path


def by_hand(name: str, model: Path, made: Path, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What the child found."""
    request = {"case": name, "model": str(model), "folder": str(made), "seconds": args.seconds}
    given, out = folder / "request.json", folder / "answer.json"
    given.write_text(json.dumps(request | {"block_s": args.block * 1e-3}))
    command = [sys.executable, str(Path(__file__).with_name("by_hand_child.py")), str(given), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def compared(report: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Printed and by hand: gains, microseconds of both sides, and the ratios of the two."""
    lower = {name: q[0] for name, q in found["quartiles"].items()}
    ours = min((s, n) for n, s in lower.items() if n.startswith("prism"))
    theirs = min((s, n) for n, s in lower.items() if not n.startswith("prism"))
    m = report["measurement"]
    gain = theirs[0] / ours[0]
    return {
        "printed": min(m["gains"]),
        "gains": m["gains"],
        "by_hand": gain,
        "baseline": [report["baseline"], report["baseline_seconds"] * 1e6, theirs[1], theirs[0] * 1e6],
        "kernel": [report["best_seconds"] * 1e6, ours[1], ours[0] * 1e6],
        "contradiction": max(gain / max(m["gains"]), min(m["gains"]) / gain, 1.0),
        "others": m["others"],
        "far": found["far"],
        "quartiles": found["quartiles"],
    }


def line(name: str, c: Mapping[str, Any]) -> str:
    """A case for the terminal."""
    baseline, printed_us, theirs, their_us = c["baseline"]
    kernel_us, ours, our_us = c["kernel"]
    gains = f"{c['printed']:.2f}x" + (f" to {max(c['gains']):.2f}x" if max(c["gains"]) > WITHIN * c["printed"] else "")
    verdict = "" if c["contradiction"] <= WITHIN else f"  contradicted: {c['contradiction']:.2f}"
    return (
        f"{name:28} printed {gains:15} {printed_us:9.1f} µs {baseline} / {kernel_us:.1f} µs; "
        f"by hand {c['by_hand']:.2f}x {their_us:9.1f} µs {theirs} / {our_us:.1f} µs {ours} "
        f"(others {c['others'] or 0:.1f}, {c['seconds']:.0f} s){verdict}"
    )


def run(name: str, args: argparse.Namespace, folder: Path) -> dict[str, Any] | str:
    """Optimize one case and time it by hand; a sentence where there is nothing to compare."""
    model, made = exported(name, folder), folder / "made"
    command = [
        sys.executable,
        "-m",
        "prism.cli",
        "optimize",
        str(model),
        "--target",
        "cpu",
        "--out",
        str(made),
        "--json",
    ]
    start = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} | ({"PRISM_CACHE_DIR": args.cache} if args.cache else {})
    done = subprocess.run(
        [*command, *args.options], capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environment
    )
    taken = time.monotonic() - start
    if done.returncode:
        return f"exit {done.returncode} after {taken:.0f} s: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    report = json.loads(done.stdout)
    confirmation = report["stages"].get("confirmation", 0.0)
    row = compared(report, by_hand(name, model, made, args, folder))
    return row | {"seconds": taken, "confirmation": confirmation}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases; returns the exit code."""
    from benchmarks.by_hand_cases import CASES, EXAMPLES

    warnings.simplefilter("ignore")  # torch's own
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="part of a case's name")
    parser.add_argument("--busy", type=int, default=0, help="cores to keep busy")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long a case is timed by hand")
    parser.add_argument("--block", type=float, default=5.0, help="how long calls are timed together, milliseconds")
    parser.add_argument("--cache", default="", help="the folder of prism's cache; the user's by default")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument("--option", dest="options", action="append", default=[], help="for prism optimize")
    args = parser.parse_args(argv)
    every = [*EXAMPLES, *(c.name for c in CASES)]
    chosen = [n for n in every if not args.names or any(part.lower() in n.lower() for part in args.names)]
    if not chosen:
        print(f"no case is called {', '.join(args.names)}; there are {'; '.join(every)}", file=sys.stderr)
        return 2
    rows: dict[str, Any] = {}
    with busy(args.busy):
        for name in chosen:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = run(name, args, Path(folder))
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    found = str(error)
            rows[name] = found
            print(f"{name:28} {found}" if isinstance(found, str) else line(name, found), flush=True)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1) + "\n")
    times = [r["contradiction"] for r in rows.values() if not isinstance(r, str)]
    if times:
        off = sum(t > WITHIN for t in times)
        print(f"{off} of {len(times)} contradicted by more than {WITHIN}x; median {statistics.median(times):.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
