"""Results: medians with quartiles, ratios, shares of the floor, summary and table. The standard library alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, Any]

COMPILED = "torch.compile"
COMPILERS = ("eager", COMPILED)
"""The baselines that the goal of the mean is over."""
ESTIMATED = "estimated, never measured on a device"
INTERPRETED = "interpreted, a rehearsal whose times mean nothing"
MEASURED = "measured"
CONFIGURED = ("key", "config", "resources")
"""What results say of each configuration, by which the cost model is judged again."""


def quartiles(samples: Sequence[float]) -> dict[str, float]:
    """Median, lower and upper quartile, and how many samples. Raises ValueError: there is no sample."""
    if not samples:
        raise ValueError("no samples")
    if len(samples) == 1:
        return {"median": samples[0], "lower": samples[0], "upper": samples[0], "samples": 1}
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return {"median": median, "lower": lower, "upper": upper, "samples": len(samples)}


def geometric_mean(values: Iterable[float]) -> float | None:
    """The geometric mean; None of nothing."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def head(record: Row) -> dict[str, Any]:
    """What a row says of its case, whether measured or not."""
    return {
        "name": record["name"],
        "group": record["group"],
        "shapes": [[a["name"], a["shape"], a["dtype"]] for a in record["inputs"]],
        "dtype": record["dtype"],
        "floor_us": record["floor_us"],
        "memory_bound": record["memory_bound"],
        "in_mean": record["in_mean"],
    }


def measured_row(record: Row, timed: Mapping[str, Row], found: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a measured case.

    `timed` has by contender (`prism N M`, or a baseline) its `timed` event; `found` has `trials`, `failures` and
    whatever else is kept of the run, `evidence` too, where it ran on no device.
    """
    wrong = {n: t["error"] for n, t in timed.items() if not t["error"] <= 1.0}
    right = {n: quartiles(t["samples_us"]) for n, t in timed.items() if n not in wrong}
    ours = {n: q for n, q in right.items() if n.startswith("prism ")}
    baselines = {n: q["median"] for n, q in right.items() if n not in ours}
    row: dict[str, Any] = {
        **head(record),
        "evidence": MEASURED,
        "target": record.get("target", ""),
        "candidates": [
            {
                "record": c.get("record"),
                "configs": [{k: e.get(k) for k in CONFIGURED} for e in c["configs"] if "error" not in e],
            }
            for c in record["candidates"]
        ],
        "prism_us": None,
        "baselines": baselines,
        "quartiles": right,
        "speedup": None,
        "share_of_floor": None,
        "sgraph": "",
        "config": None,
        "estimate_us": record.get("estimate_us"),
        **found,
        "wrong": wrong,
    }
    if not ours:
        return row
    name = min(ours, key=lambda n: (ours[n]["median"], n))
    n, m = map(int, name.split()[1:3])
    candidate = record["candidates"][n]
    us = ours[name]["median"]
    row |= {
        "prism_us": us,
        "share_of_floor": record["floor_us"] / us,
        "sgraph": candidate["sgraph"],
        "kernels": candidate["kernels"],
        "config": candidate["configs"][m]["config"],
        "error": timed[name]["error"],
    }
    if baselines:
        best = min(baselines, key=lambda b: (baselines[b], b))
        row |= {"speedup": baselines[best] / us, "best_baseline": best}
        over = [baselines[b] for b in COMPILERS if b in baselines]
        row["speedup_over_compilers"] = min(over) / us if over else None
        # The baseline is a candidate: what prism would hand out is never slower than it.
        row["chosen"] = "prism" if us <= baselines[best] else best
    return row


def estimated_row(record: Row, checks: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The row of a case that was prepared and never measured: estimates and the compiler's resources."""
    row: dict[str, Any] = {
        **head(record),
        "evidence": ESTIMATED,
        "prism_us": None,
        "baselines": {},
        "speedup": None,
        "share_of_floor": None,
        "estimate_us": record.get("estimate_us"),
        "estimated_share_of_floor": record.get("estimated_share_of_floor"),
        "baseline_estimate_us": record.get("baseline_estimate_us"),
        "compiled_estimate_us": record.get("compiled_estimate_us"),
        "stated_floor_us": record.get("stated_us"),
        "note": record.get("note", ""),
        "search": record.get("search"),
        "sgraph": "",
        "config": None,
    }
    if "error" in record:
        row["error"] = record["error"]
    if "best" in record:
        candidate = record["candidates"][record["best"]["candidate"]]
        entry = candidate["configs"][record["best"]["config"]]
        row |= {
            "sgraph": candidate["sgraph"],
            "kernels": candidate["kernels"],
            "config": entry["config"],
            "limiter": entry.get("limiter", ""),
            "resources": {record.get("target", ""): entry["resources"]},
            "compiled": sum("error" not in e for c in record["candidates"] for e in c["configs"]),
            "refused": sum("error" in e for c in record["candidates"] for e in c["configs"]),
        }
        for target, found in record.get("targets", {}).items():
            row["resources"][target] = found.get("resources", found.get("error"))
            if "estimate_us" in found:
                row.setdefault("estimates_us", {})[target] = found["estimate_us"]
    check = (checks or {}).get(record.get("check", ""))
    if check is not None:
        row["check"] = {
            "passed": check["passed"],
            "sizes": check.get("sizes"),
            "cases": sum(r["cases"] for r in check["runs"]),
            "same_structure": check.get("matched", 0) == check.get("structures", -1),
            "failures": [f for r in check["runs"] for f in r["failures"]],
        }
    return row


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """What the goals are about; over the rows that were measured and count."""
    counted = [r for r in rows if r["evidence"] == MEASURED and r["in_mean"] and r["prism_us"]]
    # A mean over whatever baselines happened to run would flatter: the hardest one is the first to fail.
    own = [r for r in counted if COMPILED in r["baselines"]]
    speedups = [r["speedup"] for r in own if r["speedup"]]
    compilers = [r["speedup_over_compilers"] for r in own if r.get("speedup_over_compilers")]
    shares = [r["share_of_floor"] for r in counted if r["memory_bound"] and r["floor_us"] > 5]
    return {
        "measured": sum(1 for r in rows if r["evidence"] == MEASURED),
        "in_mean": len(own),
        "left_out_without_torch_compile": sorted(r["name"] for r in counted if COMPILED not in r["baselines"]),
        "geometric_mean_over_compilers": geometric_mean(compilers),
        "geometric_mean_over_compilers_baseline_a_candidate": geometric_mean(max(1.0, s) for s in compilers),
        "geometric_mean_over_best": geometric_mean(speedups),
        "geometric_mean_over_best_baseline_a_candidate": geometric_mean(max(1.0, s) for s in speedups),
        "slower_than_best_baseline": sorted(r["name"] for r in counted if r["speedup"] and r["speedup"] < 1),
        "memory_bound_below_0.85": sorted(
            r["name"] for r in counted if r["memory_bound"] and r["floor_us"] > 5 and r["share_of_floor"] < 0.85
        ),
        "least_share_memory_bound": min(shares, default=None),
    }


def option_speedups(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """By option and case, how many times as long the best configuration with it takes without it, all else alike."""
    found: dict[str, dict[str, float]] = {}
    for row in (r for r in rows if r["evidence"] == MEASURED):
        times = {frozenset(t["key"].split()): t["measured_us"] for t in row["trials"] if t["error"] <= 1.0}
        for option in sorted({name for tokens in times for name in _options(tokens)}):
            pairs = []
            for tokens, us in times.items():
                without = frozenset(t for t in tokens if not t.startswith(f"{option}."))
                if without != tokens and without in times:
                    pairs.append((us, times[without] / us))
            if pairs:
                found.setdefault(option, {})[row["name"]] = min(pairs)[1]
    return found


def _options(tokens: frozenset[str]) -> set[str]:
    return {t.partition(".")[0] for t in tokens if "." in t} - {"warps", "stages"}


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 100 else f"{value:.1f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def markdown(rows: Sequence[Row]) -> str:
    """The table: of measured rows times and ratios, of others estimates, and why there is no more."""
    if all(r["evidence"] == ESTIMATED for r in rows):
        return _estimates(rows)
    lines = [
        "| case | floor µs | prism µs | eager µs | compile µs | best baseline | speedup | share of floor |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        if r["evidence"] != MEASURED:
            lines.append(
                f"| {r['name']} | {_us(r['floor_us'])} | {r['evidence']}: {_us(r['estimate_us'])} estimated | | | | | |"
            )
            continue
        b = r["baselines"]
        best = r.get("best_baseline", "")
        cells = (_us(r["floor_us"]), _us(r["prism_us"]), _us(b.get("eager")), _us(b.get("torch.compile")))
        end = (f"{best} {_us(b.get(best))}".strip(), _ratio(r["speedup"]), _ratio(r["share_of_floor"]))
        mark = "" if r["in_mean"] or r["group"] != "suite" else " (launch; not in the mean)"
        lines.append(f"| {r['name']}{mark} | {' | '.join((*cells, *end))} |")
    return "\n".join(lines)


def _estimates(rows: Sequence[Row]) -> str:
    lines = [
        "| case | floor µs | estimated µs | share of floor | limited by | op by op, estimated µs | fused, estimated µs "
        "| kernels | shared KiB | registers | spills B | checked |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        if "sgraph" not in r or not r["sgraph"]:
            lines.append(f"| {r['name']} | {_us(r['floor_us'])} | {r.get('error', '')} | | | | | | | | | |")
            continue
        resources = next(iter(r["resources"].values()))
        cells = (
            r["name"],
            _us(r["floor_us"]),
            _us(r["estimate_us"]),
            _ratio(r["estimated_share_of_floor"]),
            str(r["limiter"]),
            _us(r["baseline_estimate_us"]),
            _us(r.get("compiled_estimate_us")),
            str(len(r["kernels"])),
            ", ".join(f"{k['shared'] / 1024:.0f}" for k in resources),
            ", ".join(str(k["registers"]) for k in resources),
            ", ".join(str(k["spills"]) for k in resources),
            _checked(r.get("check")),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _checked(check: Mapping[str, Any] | None) -> str:
    if check is None:
        return "no"
    if not check["passed"]:
        return "FAILED"
    return f"{check['cases']} cases" + ("" if check["same_structure"] else ", another structure")
