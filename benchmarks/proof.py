"""How long proofs take: milliseconds and e-nodes for each example, to prove, refute, derive and check.

    python benchmarks/proof.py [--json] [--repeat N] [--no-derive] [NAME ...]    a line an example (examples/models)

For each example the best proved sGraph of its search is proved once more: `prove` saturates the reference and looks for
the sGraph's denotation in it, in an e-graph that has the rules loaded; `normal` decides the same by normal forms alone
(`-` where it does not). `refute` finds and shrinks inputs that tell the reference from a wrong denotation: its first
read is negated. `derive` finds a derivation for that denotation and `check` runs the independent checker on it. Each is
the least of `--repeat` runs; `load` is the reading and installing of the rules. Examples of several regions add up.
It fails when a proof takes 100 ms or more, loading 200 ms, a derivation 2 s or its check 50 ms, for any one region.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.search import table
from benchmarks.workloads import MODELS

if TYPE_CHECKING:
    from prism.api.region_search import SearchResult
    from prism.program.nodes import Expr

LIMIT_MS = {"prove": 100.0, "derive": 2000.0, "check": 50.0}
LOAD_LIMIT_MS = 200.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Row:
    """One example; times in milliseconds, None for what was not run or not decided.

    Attributes:
        enodes: of the e-graph in which the proof was found; of all regions together.
        worst: the largest time of one region, by stage.
    """

    name: str
    regions: int
    enodes: int
    prove: float
    normal: float | None
    refute: float
    derive: float | None
    check: float | None
    steps: int | None
    worst: dict[str, float]


def timed(repeat: int, run: Callable[[], _T]) -> tuple[float, _T]:
    """(the least milliseconds, the last result)."""
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        result = run()
        best = min(best, (time.perf_counter() - start) * 1e3)
    return best, result


def wrong(expr: Expr) -> Expr:
    """The expression with its first read negated, wherever it occurs."""
    from prism.program.build import neg
    from prism.program.nodes import Map, Read, Reduce, walk

    first = next(e for e in walk(expr) if isinstance(e, Read))
    done: dict[int, Expr] = {}
    for e in walk(expr):
        match e:
            case Map(op, args):
                done[id(e)] = Map(op, tuple(done[id(a)] for a in args))
            case Reduce(kind, axis, body):
                done[id(e)] = Reduce(kind, axis, done[id(body)])
            case _:
                done[id(e)] = neg(e) if e == first else e
    return done[id(expr)]


def searched(name: str) -> list[SearchResult]:
    """The search of an example: one result a distinct region."""
    from prism.api import SearchBudget, load
    from prism.api.partitioned import search_regions
    from prism.api.region_search import run_search
    from prism.cost.device import device
    from prism.egraph.worker import Worker
    from prism.events import Recorder
    from prism.generate.partition import partition

    program, target = load(MODELS / f"{name}.onnx"), device("sm_90")
    with Worker() as worker:
        regions = partition(program, device=target)
        if len(regions) == 1:
            return [run_search(program, target, SearchBudget(), worker, Recorder())]
        found = search_regions(program, regions, target, SearchBudget(), [worker], Recorder())
        return [r.result for r in found.distinct.values()]


def measure(name: str, repeat: int, derive: bool) -> Row:
    """One example's figures."""
    parts = [region(r, repeat, derive) for r in searched(name) if r.proved]
    total: dict[str, Any] = {}
    for key in ("enodes", "prove", "normal", "refute", "derive", "check", "steps"):
        values = [p[key] for p in parts]
        total[key] = None if None in values else sum(values)
    worst = {k: max(p[k] for p in parts) for k in LIMIT_MS if all(p[k] is not None for p in parts)}
    return Row(name=name, regions=len(parts), worst=worst, **total)


def region(found: SearchResult, repeat: int, derive: bool) -> dict[str, Any]:
    """One region's figures, by the names of Row."""
    from dataclasses import replace

    from prism.egraph.engine import Engine
    from prism.egraph.language import Budget
    from prism.egraph.prove.normal_form import Unfit, normal_form
    from prism.egraph.prove.refutation import refute
    from prism.egraph.rules import load_rules, rule_files
    from prism.sgraph.denote import expand

    denotation = found.proved[0].denotation
    reference = [expand(f.expr, denotation.split) for f in found.formulas]
    outputs = list(denotation.outputs)
    rules = load_rules(rule_files())

    best, enodes = float("inf"), 0
    for _ in range(repeat):
        engine = Engine(rules)
        engine.prepare()

        def prove(engine: Engine = engine) -> Any:
            engine.refer(reference, Budget())
            return engine.prove([outputs])[0]

        spent, verdict = timed(1, prove)
        if not verdict:
            raise SystemExit(f"the best sGraph is not proved again: {verdict.reason}")
        best, enodes = min(best, spent), verdict.enodes

    def forms() -> bool:
        try:
            return all(normal_form(a) == normal_form(b) for a, b in zip(reference, outputs, strict=True))
        except Unfit:
            return False

    spent, same = timed(repeat, forms)
    left = [replace(f, expr=e) for f, e in zip(found.formulas, reference, strict=True)]
    right = [replace(f, expr=wrong(e)) for f, e in zip(found.formulas, outputs, strict=True)]
    tensors: tuple[Any, ...] = ()
    refuted, attempt = timed(1, lambda: refute(left, right, tensors, {}))
    if attempt.found is None:
        print(f"{found.formulas[0].tensor.name}: a negated read goes unseen", file=sys.stderr)
    figures: dict[str, Any] = {
        "enodes": enodes,
        "prove": best,
        "normal": spent if same else None,
        "refute": refuted,
        "derive": None,
        "check": None,
        "steps": None,
    }
    return figures | (derivation(found, reference, repeat) if derive else {})


def derivation(found: SearchResult, reference: Sequence[Expr], repeat: int) -> dict[str, Any]:
    """How long the derivation and its check take."""
    from prism.checker import check
    from prism.egraph.derivation.derive import Deriver
    from prism.egraph.rules import rule_files

    deriver = Deriver()
    names = [f.tensor.name for f in found.formulas]
    denotation = found.proved[0].denotation
    spent, d = timed(max(2, repeat), lambda: deriver.derive(names, reference, denotation.outputs))
    if d.reason:
        return {}
    texts = {p.name: p.read_bytes() for p in rule_files()}
    checked, _ = timed(repeat, lambda: check(d.certificate, texts))
    return {"derive": spent, "check": checked, "steps": d.steps}


def load_ms(repeat: int) -> float:
    """Reading the rule files and installing them in an e-graph, egglog already imported."""
    from prism.egraph.rules import install, load_rules, rule_files

    install(load_rules(rule_files()))
    return timed(repeat, lambda: install(load_rules(rule_files())))[0]


HEAD = "example regions e-nodes prove normal refute derive check steps"


def _line(r: Row) -> list[str]:
    times = (r.prove, r.normal, r.refute, r.derive, r.check)
    steps = "-" if r.steps is None else f"{r.steps:,}"
    return [r.name, str(r.regions), f"{r.enodes:,}", *("-" if t is None else f"{t:.1f}" for t in times), steps]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted(p.stem for p in MODELS.glob("*.onnx"))
    parser.add_argument("names", nargs="*", help="examples; all by default")
    parser.add_argument("--json", action="store_true", help="one JSON object an example, and one for the loading")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, of which the fastest counts; 3 by default")
    parser.add_argument("--no-derive", action="store_true", help="leave derivations and their check out")
    args = parser.parse_args(argv)
    unknown = [n for n in args.names if n not in known]
    if unknown or args.repeat < 1:
        parser.error(f"there is no example {unknown[0]}: {', '.join(known)}" if unknown else "--repeat takes 1 or more")
    warnings.simplefilter("ignore")
    loading = load_ms(args.repeat)
    rows = []
    for name in args.names or known:
        rows.append(measure(name, args.repeat, not args.no_derive))
        if args.json:
            print(json.dumps(asdict(rows[-1])), flush=True)
    if args.json:
        print(json.dumps({"load": loading}))
    else:
        print(table([HEAD.split(), *map(_line, rows)]))
        print(f"milliseconds; loading the rules takes {loading:.0f} ms")
    over = [f"{r.name}: {k} {r.worst[k]:.0f} ms" for r in rows for k in r.worst if r.worst[k] >= LIMIT_MS[k]]
    over += [f"loading: {loading:.0f} ms"] if loading >= LOAD_LIMIT_MS else []
    for line in over:
        print(f"over the limit: {line}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
