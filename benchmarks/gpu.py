"""The suite on a GPU: prepared where prism is, measured where the GPU is, reported anywhere.

    python benchmarks/gpu.py prepare --out out/gpu [NAME ...]   search, prove, emit, cross-compile, check: no GPU needed
    python benchmarks/gpu.py compile out/gpu [NAME ...]         compile what was prepared, by the triton that is here
    python benchmarks/gpu.py smoke out/gpu [NAME ...]           call one configuration of each option, and check it
    python benchmarks/gpu.py measure out/gpu [NAME ...]         time against the baselines: torch and triton are enough
    python benchmarks/gpu.py report RESULTS.json                table (Markdown) and plot (HTML, plotly) of results
    python benchmarks/gpu.py options RESULTS.json               what each option of launches gains, of the same results
    python benchmarks/gpu.py list                               the cases with their floors

NAME is a part of a case's name, or `suite`, `mirage`, `prism-paper`, `collection` (benchmarks/collection.py). `prepare`
writes the folder that `measure` takes, and estimates of every case (`--estimates`), which are marked as never measured
on a device. `compile` needs no GPU: it is worth running before one is at hand that has another triton. `measure` writes
its JSON after each case and goes on where it or an `--earlier` run stopped; `--configs` times configurations alone, by
which benchmarks/model.py judges the cost model, and `--known` takes them from such a run; `--interpreter` runs the same
path in Triton's interpreter, where times mean nothing.

On a lent machine, with the folder that prepare wrote carried along (docs/benchmarks.md has the whole procedure):

    python3 benchmarks/gpu.py measure out/gpu --earlier so-far.json --results $OUT/so-far.json --budget 520
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from prism.errors import PrismError

if TYPE_CHECKING:
    from prism.bench.suite import Case

RESULTS = Path(__file__).resolve().parent / "results"


def chosen(names: Sequence[str]) -> list[Case]:
    """The cases that the names stand for; all but the collection's when there is none."""
    from prism.bench.suite import CASES

    return [c for c in CASES if not names or any(n == c.group or n in c.name for n in names)]


def collected(names: Sequence[str]) -> list[Case]:
    """Of the collection, where it is asked for, what is timed: the check knows no results of whole numbers."""
    from benchmarks.collection import KNOWN
    from prism.program.nodes import DType

    cases = [known.case() for known in KNOWN] if "collection" in names else []
    return [c for c in cases if all(DType(o.dtype).is_float for o in c.outputs)]


def prepare(args: argparse.Namespace) -> int:
    """The first step."""
    import warnings

    from benchmarks.gpu_check import check_entries
    from prism.api.region_search import SearchBudget
    from prism.bench.prepare import Effort, prepare, prepared, versions, write_manifest
    from prism.bench.results import ESTIMATED, estimated_row

    warnings.simplefilter("ignore")  # torch's own
    cases = [*chosen(args.names), *collected(args.names)]
    if not cases:
        print(f"no case is called {', '.join(args.names)}", file=sys.stderr)
        return 2
    bounds = {"max_kernels": args.max_kernels, "max_families": args.max_families}
    effort = Effort(
        compile=not args.uncompiled,
        points=args.points,
        spread=args.spread,
        targets=() if args.target_only or args.uncompiled else Effort().targets,
        budget=SearchBudget(**{k: v for k, v in bounds.items() if v is not None}),
    )
    records = prepare(cases, args.out, effort=effort, workers=args.workers, say=say)
    estimates = args.estimates or args.out / "estimates.json"

    def write(checks: dict[str, Any]) -> list[dict[str, Any]]:
        write_manifest(args.out, records, checks, prepared(args.out))
        rows = [estimated_row(r, checks) for r in records]
        body = {"schema": "prism.bench.estimates/1", "evidence": ESTIMATED, "versions": versions(), "cases": rows}
        estimates.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        return rows

    rows = write({})
    if not args.no_check:
        pairs = list(zip(cases, records, strict=True))
        rows = write(check_entries(pairs, args.out, limit=args.gate_cases, say=say, done=write))
    failed = [r["name"] for r in rows if "error" in r or not r.get("check", {"passed": True})["passed"]]
    say(f"{len(rows)} cases, {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}; {estimates}")
    return 1 if failed else 0


def compile_all(args: argparse.Namespace) -> int:
    """Compile what was prepared for a GPU that is not here."""
    from prism.bench.measure import Plan, Run, named

    cache = args.cache or args.folder / "cache-device"
    plan = Plan(
        device=args.target, budget_s=1e9, compile_ahead_s=1e9, compilers=args.workers, baselines=False, cache=cache
    )
    run = Run(args.folder, args.folder / "compiled.json", plan, say)
    run.compile([c for c in run.manifest["cases"] if "error" not in c and named(c, args.names)])
    return 0


def measure(args: argparse.Namespace) -> int:
    """The second step."""
    from prism.bench.measure import Plan, Run

    plan = Plan(
        device="interpreter" if args.interpreter else "cuda",
        budget_s=args.budget,
        case_s=args.case_seconds,
        trials_s=4 * args.trial_seconds if args.configs else args.trial_seconds,
        baselines=not args.configs,
        compile_ahead_s=0.0 if args.interpreter else args.compile_ahead,
        confirm_s=args.confirm_seconds,
        compilers=args.compilers,
        baseline_compilers=args.baseline_compilers,
        cache=args.cache or args.folder / "cache-device",
    )
    results = args.results or args.folder / "results.json"
    body = Run(args.folder, results, plan, say, earlier=args.earlier, known=args.known).run(args.names)
    say(json.dumps(body["summary"], indent=1))
    return 0


def smoke(args: argparse.Namespace) -> int:
    """A few calls, before anything is timed."""
    from prism.bench.measure import Plan, Run

    device = "interpreter" if args.interpreter else "cuda"
    plan = Plan(device=device, silence_s=args.silence, cache=args.cache or args.folder / "cache-device")
    wrong = Run(args.folder, args.folder / "smoke.json", plan, say).smoke(args.names)
    say(f"{len(wrong)} wrong" if wrong else "all right")
    return 1 if wrong else 0


def options(args: argparse.Namespace) -> int:
    """Configurations with an option against the same without it."""
    from prism.bench.results import geometric_mean, option_speedups

    for option, ratios in option_speedups(json.loads(args.results.read_text())["cases"]).items():
        say(f"{option}: without it {geometric_mean(ratios.values()):.3f} times as long, {len(ratios)} cases")
        for name, ratio in sorted(ratios.items(), key=lambda r: r[1]):
            say(f"  {name:42s} {ratio:.3f}")
    return 0


def report(args: argparse.Namespace) -> int:
    """Table and plot of a results file, measured or estimated."""
    from benchmarks.gpu_plot import page
    from prism.bench.results import markdown

    body = json.loads(args.results.read_text())
    rows = body["cases"]
    device = body.get("device", {}).get("name", body.get("evidence", ""))
    table = markdown(rows)
    args.results.with_suffix(".md").write_text(table + "\n", encoding="utf-8")
    args.results.with_suffix(".html").write_text(page(rows, f"prism: {device}"), encoding="utf-8")
    print(table)
    if "summary" in body:
        print(json.dumps(body["summary"], indent=1))
    return 0


def list_cases(args: argparse.Namespace) -> int:
    """Every case with its floor."""
    for c in chosen(args.names):
        bound = "bytes" if c.memory_bound else "operations"
        say(f"{c.name:42s} {c.group:12s} {c.floor_us:8.2f} us by {bound}{'' if c.in_mean else '; not in the mean'}")
    return 0


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(required=True)

    p = steps.add_parser("prepare", help="search, prove, emit, cross-compile, check")
    p.add_argument("names", nargs="*")
    p.add_argument("--out", type=Path, default=Path("out") / "gpu")
    p.add_argument("--estimates", type=Path, help="where estimates go; OUT/estimates.json by default")
    p.add_argument("--points", type=int, default=12, help="configurations compiled a case, of all finalists; 12")
    p.add_argument("--spread", type=int, default=5, help="others, all over the best finalist's space; 5")
    p.add_argument("--max-kernels", type=int, help="the search's bound; its own by default")
    p.add_argument("--max-families", type=int, help="the search's bound; its own by default")
    p.add_argument("--target-only", action="store_true", help="compile for sm_90 alone")
    p.add_argument("--workers", type=int, default=2, help="processes that compile; 2")
    p.add_argument("--no-check", action="store_true", help="leave the interpreter out")
    p.add_argument("--uncompiled", action="store_true", help="compile nothing: the cost model alone chooses the points")
    p.add_argument("--gate-cases", type=int, default=None, help="cases of the numeric gate; all by default")
    p.set_defaults(step=prepare)

    p = steps.add_parser("compile", help="compile a prepared folder by the triton that is here; no GPU needed")
    p.add_argument("folder", type=Path)
    p.add_argument("names", nargs="*", help="parts of names, or groups; all cases by default")
    p.add_argument("--target", default="sm_90", help="what for; sm_90")
    p.add_argument("--workers", type=int, default=2, help="processes that compile; 2")
    p.add_argument("--cache", type=Path, help="of compiled kernels; FOLDER/cache-device by default")
    p.set_defaults(step=compile_all)

    p = steps.add_parser("measure", help="time a prepared folder on this machine's GPU")
    p.add_argument("folder", type=Path)
    p.add_argument("names", nargs="*", help="parts of names, or groups; all cases by default")
    p.add_argument("--results", type=Path, help="FOLDER/results.json by default; gone on with where it exists")
    p.add_argument("--earlier", type=Path, nargs="*", default=[], help="results of earlier runs, which are carried in")
    p.add_argument(
        "--known", type=Path, help="results with --configs: configurations that they tell of are not tried again"
    )
    p.add_argument("--budget", type=float, default=540.0, help="seconds in all; 540")
    p.add_argument("--case-seconds", type=float, default=120.0, help="seconds of one case at most; 120")
    p.add_argument("--trial-seconds", type=float, default=6.0, help="seconds of a case's configurations; 6")
    p.add_argument("--compile-ahead", type=float, default=240.0, help="seconds of compiling ahead at most; 240")
    p.add_argument("--compilers", type=int, default=14, help="processes that compile ahead; 14")
    p.add_argument("--baseline-compilers", type=int, default=4, help="of these at a time with torch.compile; 4")
    p.add_argument("--confirm-seconds", type=float, default=3.0, help="seconds of a case beside its baselines; 3")
    p.add_argument("--cache", type=Path, help="of compiled kernels; FOLDER/cache-device by default")
    p.add_argument("--configs", action="store_true", help="configurations alone, for the cost model; no baselines")
    p.add_argument("--interpreter", action="store_true", help="in Triton's interpreter: a rehearsal")
    p.set_defaults(step=measure)

    p = steps.add_parser(
        "smoke", help="call a configuration of each option on this machine's GPU, and check the results"
    )
    p.add_argument("folder", type=Path)
    p.add_argument("names", nargs="*", help="parts of names; five small cases with all options by default")
    p.add_argument("--silence", type=float, default=180.0, help="seconds that a call may take; 180")
    p.add_argument("--cache", type=Path, help="of compiled kernels; FOLDER/cache-device by default")
    p.add_argument("--interpreter", action="store_true", help="in Triton's interpreter: a rehearsal")
    p.set_defaults(step=smoke)

    p = steps.add_parser("options", help="what options of launches gain, by results")
    p.add_argument("results", type=Path)
    p.set_defaults(step=options)

    p = steps.add_parser("report", help="table and plot")
    p.add_argument("results", type=Path)
    p.set_defaults(step=report)

    p = steps.add_parser("list", help="the cases")
    p.add_argument("names", nargs="*")
    p.set_defaults(step=list_cases)

    args = parser.parse_args(argv)
    try:
        code: int = args.step(args)
    except PrismError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return code


if __name__ == "__main__":
    sys.exit(main())
