"""How good the cost model is, from measured configurations, and its constants fitted to a device.

    python benchmarks/model.py judge RESULTS.json                  rank correlation, and how much slower its pick is
    python benchmarks/model.py judge RESULTS.json --again          the same of the model as it is now: no device needed
    python benchmarks/model.py fit RESULTS.json --out FILE.json    the device's constants, by least squares on log time
    python benchmarks/model.py constants docs/cost_constants.md    the page that says where each constant is from

RESULTS.json is what `benchmarks/gpu.py measure` writes (`--configs` for many configurations a case and no baselines);
What was measured is in the results, its sGraphs among it; of those that hold none `--again` finds nothing.
By case: Spearman's rank correlation of predicted against measured times, and the measured time of the configuration
that the model likes best over that of the fastest. A fit sees two of three configurations of each case; the third is
held out, and what is said of the fitted model is said of those alone.

Four numbers are fitted: how many times the model's memory, compute and latency seconds the device takes, and the
overhead of a launch. The first three are written as rates of `prism.cost.device.Device`.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

HOLD_OUT = 3
"""Every so many configurations of a case are held out."""
LEAST = 4
"""Configurations of a case that a rank correlation needs."""
GOAL_RHO, GOAL_SLOWDOWN = 0.85, 1.15
RIDGE = 0.0001
"""Weight of the fitted numbers' own logarithms, in configurations: what no configuration tells stays as it was."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The model's parts of a launch, microseconds; `overlap` is the share of the smaller ones that is hidden."""

    memory: float
    compute: float
    latency: float
    spill: float
    overlap: float


@dataclass(frozen=True, slots=True)
class Point:
    """A configuration that was measured.

    Attributes:
        case: its case.
        key: the candidate and its configuration.
        predicted: microseconds.
        measured: microseconds.
        launches: the model's parts.
    """

    case: str
    key: str
    predicted: float
    measured: float
    launches: tuple[Launch, ...] = ()


@dataclass(frozen=True, slots=True)
class Scales:
    """What is fitted: factors on the model's seconds, and microseconds of a launch."""

    memory: float = 1.0
    compute: float = 1.0
    latency: float = 1.0
    launch_us: float = 2.0

    def predict(self, launches: Sequence[Launch]) -> float:
        """Microseconds; the model's own formula (`prism.cost.gpu.Times.total`)."""
        total = 0.0
        for x in launches:
            parts = (x.memory * self.memory, x.compute * self.compute, x.latency * self.latency)
            bound = max(parts)
            total += bound + (sum(parts) - bound) * (1.0 - x.overlap) + x.spill + self.launch_us
        return total


@dataclass(frozen=True, slots=True)
class Judgement:
    """How well predictions order measurements.

    Attributes:
        points: configurations.
        cases: cases with enough of them.
        rho: the mean of the cases' rank correlations.
        rho_all: the rank correlation over all points of all cases.
        slowdown: geometric mean over cases of the pick's time over the fastest's.
        worst_slowdown: the largest of them.
        log_error: root mean square of log(predicted / measured).
        by_case: rank correlation and slowdown by case.
    """

    points: int
    cases: int
    rho: float
    rho_all: float
    slowdown: float
    worst_slowdown: float
    log_error: float
    by_case: Mapping[str, tuple[float, float]]


def points(body: Mapping[str, Any]) -> list[Point]:
    """The configurations in a results file that ran and were right."""
    found = []
    for row in body["cases"]:
        for t in row.get("trials", ()):
            if t["error"] <= 1.0 and t["measured_us"] > 0 and t["estimate_us"] > 0:
                launches = tuple(Launch(**x) for x in t.get("times_us", ()))
                key = f"{t['candidate']} {t['key']}"
                found.append(Point(row["name"], key, t["estimate_us"], t["measured_us"], launches))
    return found


def again(body: Mapping[str, Any]) -> list[Point]:
    """The same configurations as the present model estimates them, with what the compiler said of them."""
    from prism.cost.device import device
    from prism.cost.model import Model
    from prism.sgraph.config import Config, Resources
    from prism.sgraph.record import sgraph_of

    entries: dict[tuple[str, str], tuple[Model, Mapping[str, Any]]] = {}
    for row in body["cases"]:
        for n, candidate in enumerate(row.get("candidates", ())):
            if candidate["record"] is not None:
                model = Model(sgraph_of(json.loads(candidate["record"])), device(row["target"]), {})
                entries |= {(row["name"], f"{n} {e['key']}"): (model, e) for e in candidate["configs"]}
    found: list[Point] = []
    for p in points(body):
        if (p.case, p.key) in entries:
            model, e = entries[p.case, p.key]
            seconds = model.seconds(Config.decode(e["config"]), [Resources(**r) for r in e["resources"] or ()])
            found.append(replace(p, predicted=1e6 * seconds, launches=()))
    return found


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            found[place] = (start + end) / 2 + 1
        start = end + 1
    return found


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Spearman's rank correlation; NaN where one side has a single value."""
    a, b = ranks(xs), ranks(ys)
    if len(set(a)) < 2 or len(set(b)) < 2:
        return math.nan
    return statistics.correlation(a, b)


def by_case(found: Sequence[Point]) -> dict[str, list[Point]]:
    """The points of each case."""
    cases: dict[str, list[Point]] = {}
    for p in found:
        cases.setdefault(p.case, []).append(p)
    return cases


def judge(found: Sequence[Point]) -> Judgement:
    """How well `predicted` orders `measured`.

    Raises:
        ValueError: there are no points.
    """
    if not found:
        raise ValueError("no measured configurations")
    per_case: dict[str, tuple[float, float]] = {}
    for name, own in by_case(found).items():
        pick = min(own, key=lambda p: (p.predicted, p.key))
        slowdown = pick.measured / min(p.measured for p in own)
        rho = spearman([p.predicted for p in own], [p.measured for p in own]) if len(own) >= LEAST else math.nan
        per_case[name] = rho, slowdown
    rhos = [r for r, _ in per_case.values() if not math.isnan(r)]
    slowdowns = [s for _, s in per_case.values()]
    return Judgement(
        len(found),
        len(rhos),
        statistics.mean(rhos) if rhos else math.nan,
        spearman([p.predicted for p in found], [p.measured for p in found]),
        statistics.geometric_mean(slowdowns),
        max(slowdowns),
        math.sqrt(statistics.mean(math.log(p.predicted / p.measured) ** 2 for p in found)),
        per_case,
    )


def split(found: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    """(to fit, held out): of each case, ordered by measured time, every third is held out."""
    fitted: list[Point] = []
    held: list[Point] = []
    for own in by_case(found).values():
        for n, p in enumerate(sorted(own, key=lambda p: (p.measured, p.key))):
            (held if n % HOLD_OUT == 1 else fitted).append(p)
    return fitted, held


def fit(found: Sequence[Point], start: Scales | None = None, rounds: int = 60) -> Scales:
    """The scales that predict the measured times best: least squares on log time, by Levenberg and Marquardt.

    Raises:
        ValueError: no point says what the model's parts are.
    """
    usable = [p for p in found if p.launches]
    if not usable:
        raise ValueError("the results do not hold the model's parts: prepare them again")
    first = start or Scales()
    origin = np.log(np.array([first.memory, first.compute, first.latency, first.launch_us]))
    measured = np.log(np.array([p.measured for p in usable]))

    def residuals(theta: np.ndarray) -> np.ndarray:
        s = Scales(*(float(v) for v in np.exp(theta)))
        own = np.log(np.array([s.predict(p.launches) for p in usable])) - measured
        return np.concatenate([own, math.sqrt(RIDGE * len(usable)) * (theta - origin)])

    theta, damping = origin.copy(), 1e-2
    value = residuals(theta)
    for _ in range(rounds):
        step = 1e-4
        jacobian = np.stack([(residuals(theta + step * e) - value) / step for e in np.eye(len(theta))], axis=1)
        normal = jacobian.T @ jacobian
        move = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -jacobian.T @ value)
        tried = np.clip(theta + move, origin - 4.0, origin + 4.0)
        after = residuals(tried)
        if float(after @ after) < float(value @ value):
            theta, value, damping = tried, after, damping / 3
            if float(np.abs(move).max()) < 1e-7:
                break
        else:
            damping *= 4
            if damping > 1e8:
                break
    return Scales(*(float(v) for v in np.exp(theta)))


def predicted(found: Sequence[Point], scales: Scales) -> list[Point]:
    """The points as the fitted model predicts them."""
    return [replace(p, predicted=scales.predict(p.launches)) for p in found if p.launches]


def constants(scales: Scales, target: str) -> dict[str, float]:
    """The fitted numbers as fields of the target's `Device`: those that `dataclasses.replace` would take."""
    from prism.cost.device import device

    d = device(target)
    return {
        "bandwidth_bytes_s": d.bandwidth_bytes_s / scales.memory,
        "cache_bandwidth_bytes_s": d.cache_bandwidth_bytes_s / scales.memory,
        "multiply_adds_s": d.multiply_adds_s / scales.compute,
        "half_dot_flops": d.half_dot_flops / scales.compute,
        "double_dot_flops": d.double_dot_flops / scales.compute,
        "memory_latency_s": d.memory_latency_s * scales.latency,
        "launch_overhead_s": 1e-6 * scales.launch_us,
    }


REPORTED = ("cache_bandwidth_bytes_s", "launch_overhead_s", "memory_latency_s")
"""Of a GPU, what no data sheet states; see prism/cost/device.py."""


def told() -> str:
    """The page of the cost model's numbers: of each device's, and of every constant with what its code says of it."""
    from prism.cost.device import DEVICES, Device

    lines = [
        "# Where the cost model's numbers are from",
        "",
        "Written by `python benchmarks/model.py constants docs/cost_constants.md`, from the code. *Data sheet* is the",
        "vendor's word, *reported* what microbenchmarks, papers or the compiler's output give, *measured* what prism's",
        "authors saw, on CPUs, of a compiler, or on an H200 (so its L2's rate), *by definition* what follows from the",
        "algorithm, and *guess* the rest.",
        "",
        "## GPUs",
        "",
        f"| | {' | '.join(d.target for d in DEVICES.values())} | from |",
        f"|---|{'---|' * len(DEVICES)}---|",
    ]
    for name in [f.name for f in fields(Device) if isinstance(getattr(DEVICES["sm_90"], f.name), (int, float))]:
        values = [getattr(d, name) for d in DEVICES.values()]
        if not isinstance(values[0], bool) and name != "matrix_operation":
            source = "reported" if name in REPORTED else "data sheet"
            shown = (f"{v:,}" if isinstance(v, int) else f"{v:.4g}" for v in values)
            lines.append(f"| `{name}` | {' | '.join(shown)} | {source} |")
    lines += ["", "## Constants", "", "| | | what it is, and where it is from |", "|---|---|---|"]
    for path in sorted((ROOT / "prism" / "cost").glob("*.py")):
        body = ast.parse(path.read_text("utf-8")).body
        for node, after in itertools.pairwise([*body, None]):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.BinOp | ast.Tuple | ast.Dict):
                text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and not text:
                    said = " ".join(str(after.value.value).split()).replace("|", "or")
                    names = ast.unparse(node.targets[0]).strip("()")
                    lines.append(f"| `{names}` ({path.stem}) | {ast.unparse(node.value)} | {said} |")
    return "\n".join(lines) + "\n"


def summary(j: Judgement) -> str:
    """A few lines."""
    good = j.rho >= GOAL_RHO and j.slowdown <= GOAL_SLOWDOWN
    return (
        f"{j.points} configurations, {j.cases} cases with {LEAST} or more: rank correlation {j.rho:.3f} in the mean "
        f"({j.rho_all:.3f} over all); the pick takes {j.slowdown:.3f} times the fastest in the mean, "
        f"{j.worst_slowdown:.2f} at worst; log error {j.log_error:.3f}: {'within' if good else 'short of'} the goal "
        f"(correlation {GOAL_RHO}, pick {GOAL_SLOWDOWN})"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Judge, fit, or tell the constants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("judge", "fit", "constants"))
    parser.add_argument("results", type=Path, help="results of configurations; of constants the page that is written")
    parser.add_argument("--again", action="store_true", help="judge the present model's estimates of them")
    parser.add_argument("--out", type=Path, help="where the constants go")
    args = parser.parse_args(argv)
    if args.what == "constants":
        args.results.write_text(told(), encoding="utf-8")
        return 0
    body = json.loads(args.results.read_text())
    found = again(body) if args.again else points(body)
    if not found:
        lacks = "there are no sGraphs in the results" if args.again else "no configuration was measured"
        print(f"{lacks}: run benchmarks/gpu.py measure on a device", file=sys.stderr)
        return 1
    whole = judge(found)
    for name, (rho, slowdown) in sorted(whole.by_case.items()):
        print(f"{name:42s} {rho:6.3f}  {slowdown:.3f}")
    print(f"as it is: {summary(whole)}")
    if args.what == "judge":
        return 0
    seen, held = split(found)
    scales = fit(seen)
    print(f"held out, as it is: {summary(judge(held))}")
    after = judge(predicted(held, scales))
    print(f"held out, fitted:   {summary(after)}")
    print(f"fitted: {asdict(scales)}")
    device = body.get("device", {})
    target = device.get("target", "sm_90")
    made = {
        "schema": "prism.model/1",
        "device": device.get("name", ""),
        "target": target,
        "constants": constants(scales, target),
        "fitted": asdict(scales),
        "points": len(seen),
        "held_out": {k: v for k, v in asdict(after).items() if k != "by_case"},
    }
    if args.out:
        args.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
