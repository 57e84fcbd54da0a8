"""Whether what `prism optimize` prints is what timing by hand says: printed and timed anew, case by case.

    python benchmarks/by_hand.py                              # all cases, on the machine as it is
    python benchmarks/by_hand.py --busy 1 softmax attention   # those of these names, while one core is kept busy

For each case an ONNX file is optimized by the command, as a user types it; then, in a process that knows nothing of
prism, its module is timed against torch eager, torch.compile and onnxruntime on one thread and on all, interleaved, by
lower quartiles (`by_hand_child.py`). A line tells the gain that was printed; the gain by hand, what its rounds vary by,
and what it is on one thread by the time for which that thread had a core; and the times of both sides. It says
`contradicted` where printed and by hand are further apart than 1.2x. Where the command finds nothing better, its choice
is written all the same and timed, since that is a claim, too. Nothing is asserted: on a machine that does other things,
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
NO_IMPROVEMENT = 4


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
    from prism.instantiate.rounds import between
    from prism.report.units import NARROW

    mine = {name: s for name, s in found["samples"].items() if name.startswith("prism")}
    others = {name: s for name, s in found["samples"].items() if name not in mine}
    ours, theirs = (min((lower_quartile(s), name) for name, s in side.items()) for side in (mine, others))
    m = report["measurement"]
    gain = theirs[0] / ours[0]
    low, high = m["between"] or (min(m["gains"]), max(m["gains"]))
    # What is known well is printed as one number.
    low, high = (low, high) if high > NARROW * low or not m["faster"] else (min(m["gains"]),) * 2
    return {
        "printed": [low, high],
        "faster": m["faster"],
        "gains": m["gains"],
        "by_hand": gain,
        "by_hand_core": best(found["core"], others) / best(found["core"], mine),
        "by_hand_between": between([(mine, others)]),
        "baseline": [report["baseline"], report["baseline_seconds"] * 1e6, theirs[1], theirs[0] * 1e6],
        "kernel": [report["best_seconds"] * 1e6, ours[1], ours[0] * 1e6],
        "contradiction": max(gain / high, low / gain, 1.0),
        "others": m["others"],
        "far": found["far"],
        "samples": found["samples"],
    }


def best(samples: Mapping[str, Sequence[float]], side: Mapping[str, Any]) -> float:
    """The least lower quartile of a side's contenders."""
    return min(lower_quartile(s) for name, s in samples.items() if name in side)


def lower_quartile(samples: Sequence[float]) -> float:
    """What is compared."""
    return statistics.quantiles(samples, n=4, method="inclusive")[0]


def line(name: str, c: Mapping[str, Any]) -> str:
    """A case for the terminal."""
    baseline, printed_us, theirs, their_us = c["baseline"]
    kernel_us, ours, our_us = c["kernel"]
    low, high = c["printed"]
    gains = f"{low:.2f}x" + (f" to {high:.2f}x" if high > low else "") + ("" if c["faster"] else ", no faster")
    least, most = c["by_hand_between"]
    verdict = "" if c["contradiction"] <= WITHIN else f"  contradicted: {c['contradiction']:.2f}"
    return (
        f"{name:28} printed {gains:26} {printed_us:9.1f} µs {baseline} / {kernel_us:.1f} µs; "
        f"by hand {c['by_hand']:.2f}x ({least:.2f}x to {most:.2f}x, "
        f"{c['by_hand_core']:.2f}x of a core's time) {their_us:9.1f} µs {theirs} / {our_us:.1f} µs {ours} "
        f"(others {c['others'] or 0:.1f}, {c['seconds']:.0f} s){verdict}"
    )


def run(name: str, args: argparse.Namespace, folder: Path) -> dict[str, Any] | str:
    """Optimize one case and time it by hand; a sentence where there is nothing to compare."""
    model, made = exported(name, folder), folder / "made"
    command = ["-m", "prism", "optimize", str(model), "--target", "cpu", "--out", str(made), "--json"]
    start = time.monotonic()
    # Where nothing is better, what was found is written from what the command stored.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PRISM_CACHE_DIR": args.cache or str(folder / "cache")}
    done = _python([*command, *args.options], environment)
    taken = time.monotonic() - start
    if done.returncode == NO_IMPROVEMENT and not args.options:
        again = _python([str(Path(__file__).with_name("by_hand_anyway.py")), str(model), str(made)], environment)
        if again.returncode:
            return f"exit 4 after {taken:.0f} s, and then {(again.stderr.strip().splitlines() or ['?'])[-1]}"
    elif done.returncode:
        return f"exit {done.returncode} after {taken:.0f} s: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    report = json.loads((made / "report.json").read_text())
    if report["measurement"] is None:
        return f"exit {done.returncode} after {taken:.0f} s: nothing was confirmed, so nothing is claimed"
    confirmation = report["stages"].get("confirmation", 0.0)
    row = compared(report, by_hand(name, model, made, args, folder))
    return row | {"seconds": taken, "confirmation": confirmation}


def _python(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environment
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases; returns the exit code."""
    from benchmarks.by_hand_cases import CASES, EXAMPLES

    warnings.simplefilter("ignore")  # torch's own
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="part of a case's name")
    parser.add_argument("--busy", type=int, default=0, help="cores to keep busy")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long a case is timed by hand")
    parser.add_argument(
        "--block", type=float, default=200.0, help="how long calls are timed together, ms, as timeit does"
    )
    parser.add_argument("--cache", default="", help="the folder of prism's cache; one a case by default")
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
