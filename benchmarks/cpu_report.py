"""What `benchmarks/cpu.py` makes of its samples: figures of a case, a summary, a table and a plot."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prism.instantiate.confirm import WORTH
from prism.instantiate.rounds import Taken, between

# Larger than this times the error that torch makes in the same type, a result is wrong.
ERROR_FACTOR = 8.0
LEAST_ERROR = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}
# Cases whose floor is the bytes', by more than this, are bound by memory.
MEMORY_BOUND = 1.5
# Below this the call itself is what is measured.
CALL_US = 20.0
# Of the copy that no cache holds, read and written together.
DRAM_BYTES = 512 << 20


def quartiles(seconds: Sequence[float]) -> list[float]:
    """Lower quartile, median and upper quartile in microseconds."""
    if len(seconds) == 1:
        return [seconds[0] * 1e6] * 3
    return [round(q * 1e6, 2) for q in statistics.quantiles(seconds, n=4, method="inclusive")]


def figures(answer: Mapping[str, Any], flops: float, size: int, dtype: str, cache: int = 0) -> dict[str, Any]:
    """A row's times, from the samples that the child took: lower quartiles, with all three quartiles beside them.

    A case is bound by memory where it moves more bytes than the last-level cache holds (`cache`); one that fits is
    bound by the caches: it may stay there from call to call, as its copy does. `share_of_floor` compares with a copy
    of as many bytes, of which a cache may hold a part; `share_of_copy_bandwidth` with the bandwidth of a copy of which
    it holds none.
    """
    times = {name: quartiles(a["seconds"]) for name, a in answer.items() if "seconds" in a}
    copy, beyond, product = (times.pop(n) for n in ("copy", "copy beyond the caches", "float32 product"))
    by_bytes, by_flops = copy[0], flops / (2 * 1024**3) * product[0]
    floor = max(by_bytes, by_flops)
    bound = "memory" if by_bytes > MEMORY_BOUND * by_flops else "compute" if by_flops > by_bytes else "both"
    if bound == "memory" and size <= cache:
        bound = "cache"
    kernel = times.pop("prism", None)
    errors = {name: a["rms_error"] for name, a in answer.items() if "rms_error" in a}
    allowed = max(LEAST_ERROR[dtype], ERROR_FACTOR * errors.get("torch eager", 0.0))
    wrong = kernel is not None and not errors["prism"] <= allowed
    same = {n: t for n, t in times.items() if not n.endswith(" (float32)")}
    best = min(same, key=lambda n: same[n][0])
    any_type = min(times, key=lambda n: times[n][0])
    ours = kernel is not None and not wrong and kernel[0] <= same[best][0]
    assert kernel is not None or not ours
    chosen = kernel if ours and kernel is not None else same[best]
    return {
        "floor_us": round(floor, 2),
        "bound": bound,
        "prism_us": chosen[0],
        "prism_quartiles_us": list(chosen),
        "kernel_us": kernel[0] if kernel is not None else None,
        "kernel_quartiles_us": list(kernel) if kernel is not None else None,
        "chosen": "kernel" if ours else "baseline",
        "baselines": {n: t[0] for n, t in times.items()},
        "baseline_quartiles_us": {n: list(t) for n, t in times.items()},
        "best_baseline": best,
        "speedup": round(same[best][0] / chosen[0], 3),
        "speedup_any_type": round(times[any_type][0] / chosen[0], 3),
        "kernel_speedup": round(same[best][0] / kernel[0], 3) if kernel is not None else None,
        "share_of_floor": round(floor / chosen[0], 3),
        "share_of_copy_bandwidth": round(size / chosen[0] * beyond[0] / DRAM_BYTES, 3),
        "copy_gb_s": round(size / copy[0] / 1e3, 1),
        "copy_beyond_caches_gb_s": round(DRAM_BYTES / beyond[0] / 1e3, 1),
        "threads": {n: a["threads"] for n, a in answer.items() if "threads" in a},
        "rms_error": {n: e if math.isfinite(e) else None for n, e in errors.items()},
        "wrong": wrong,
        "failed": {n: a["error"] for n, a in answer.items() if "error" in a},
    }


def together(rows: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of several runs of one case, each in a process of its own: those of the run with the least gain.

    With them the gains of all runs, and what the gain lies between as far as their rounds tell. A kernel is chosen only
    where all of that is above one, and more than two processes that run the same code differ by.

    Args:
        rows: the figures of each run.
        answers: the samples that they are of.
    """
    gains = [r["kernel_speedup"] for r in rows]
    if any(g is None for g in gains):
        return dict(rows[0]) | {"kernel_speedups": [], "kernel_speedup_between": None}
    row = dict(rows[gains.index(min(gains))])
    low, high = between([_sides(a) for a in answers])
    low, high = min(low, *gains), max(high, *gains)
    row |= {"kernel_speedups": gains, "kernel_speedup_between": [round(low, 3), round(high, 3)]}
    row["wrong"] = any(r["wrong"] for r in rows)
    if row["chosen"] == "kernel" and low <= WORTH:
        best = row["best_baseline"]
        quartiles_us = row["baseline_quartiles_us"][best]
        row |= {"chosen": "baseline", "prism_us": quartiles_us[0], "prism_quartiles_us": quartiles_us}
        changed = row["kernel_us"] / quartiles_us[0]
        for share in ("share_of_floor", "share_of_copy_bandwidth", "speedup_any_type"):
            row[share] = round(row[share] * changed, 3)
        row["speedup"] = 1.0
    return row


def _sides(answer: Mapping[str, Any]) -> tuple[Taken, Taken]:
    """The samples of the kernel, and those of baselines in its data type."""
    timed = {n: a["seconds"] for n, a in answer.items() if "seconds" in a and "rms_error" in a}
    kernel = {"prism": timed.pop("prism")}
    return kernel, {n: s for n, s in timed.items() if not n.endswith(" (float32)")}


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive numbers; 1 of none."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the rows come to."""
    found: dict[str, Any] = {}
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        mine = [r for r in rows if r["dtype"] == dtype]
        kernels = [r["kernel_speedup"] for r in mine if r["kernel_speedup"]]
        found[dtype] = {
            "cases": len(mine),
            "geomean_speedup": round(geometric_mean(r["speedup"] for r in mine), 3),
            "geomean_kernel_speedup": round(geometric_mean(kernels), 3),
            "geomean_speedup_any_type": round(geometric_mean(r["speedup_any_type"] for r in mine), 3),
            "baseline_chosen": sum(r["chosen"] == "baseline" for r in mine),
        }
    for kind, share in (("memory", "share_of_copy_bandwidth"), ("cache", "share_of_floor")):
        bound = [r for r in rows if r["bound"] == kind and r["floor_us"] >= CALL_US]
        found[f"{kind}_bound"] = {
            "cases": len(bound),
            "below_0.85_of_copy": [f"{r['name']} {r['dtype']}: {r[share]}" for r in bound if r[share] < 0.85],
        }
    return found


def table(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    m = report["machine"]
    lines = [
        f"# CPU: {m['name']}",
        "",
        f"Measured {report['date']}; compiler {m['compiler']}; "
        + ", ".join(f"{n} {v}" for n, v in report["versions"].items() if n in ("torch", "onnxruntime", "prism")),
        "",
        "Microseconds, lower quartiles of interleaved samples; `floor` is the copy of as many bytes, or the matrix",
        "operations at the rate of a large product. `kernel` is what prism emitted, whether or not it was chosen.",
        f"`of copy` is the share of the bandwidth of a copy of {DRAM_BYTES >> 20} MiB, in the median "
        f"{report['copy_beyond_caches_gb_s']:.1f} GB/s.",
        "",
        "| case | type | floor | kernel | best baseline | | speedup | kernel's between | any type | of floor "
        "| of copy | chosen |",
        "|---|---|--:|--:|--:|---|--:|--:|--:|--:|--:|---|",
    ]
    for r in report["cases"]:
        kernel = f"{r['kernel_us']:.1f}" if r["kernel_us"] is not None else "-"
        best = r["baselines"][r["best_baseline"]]
        span = "{:.2f} and {:.2f}".format(*r["kernel_speedup_between"]) if r.get("kernel_speedup_between") else "-"
        lines.append(
            f"| {r['name']} | {r['dtype']} | {r['floor_us']:.1f} | {kernel} | {best:.1f} | {r['best_baseline']} "
            f"| {r['speedup']:.2f} | {span} | {r['speedup_any_type']:.2f} | {r['share_of_floor']:.2f} "
            f"| {r['share_of_copy_bandwidth']:.2f} | {r['chosen']} |"
        )
    lines.append("")
    for dtype, s in report["summary"].items():
        if not dtype.endswith("_bound"):
            lines.append(
                f"- {dtype}: geometric mean {s['geomean_speedup']:.2f} over the best baseline "
                f"(kernels alone {s['geomean_kernel_speedup']:.2f}; any type {s['geomean_speedup_any_type']:.2f}), "
                f"{s['baseline_chosen']} of {s['cases']} cases stay with the baseline"
            )
    for kind, said, copy in (
        ("memory", "more bytes than the last-level cache", "the machine's copy bandwidth"),
        ("cache", "within the last-level cache", "a copy that stays there"),
    ):
        s = report["summary"][f"{kind}_bound"]
        below = s["below_0.85_of_copy"]
        lines.append(f"- {said}: {s['cases']} cases, {len(below)} below 0.85 of {copy}" + (":" if below else ""))
        lines += [f"  - {b}" for b in below]
    return "\n".join([*lines, ""])


def plot(report: Mapping[str, Any]) -> str:
    """The speedups as an SVG drawing: a bar a case, a line at 1."""
    rows, left, wide, high = report["cases"], 330, 420, 20
    most = max([2.0, *(r["kernel_speedup"] or 1.0 for r in rows)])
    scale = wide / math.log2(most / 0.25)

    def x(value: float) -> float:
        return left + scale * math.log2(max(value, 0.25) / 0.25)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + wide + 60}" height="{high * len(rows) + 60}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="8" y="18">{_xml(report["machine"]["name"])}: kernel over the best baseline (log scale)</text>',
    ]
    for n, r in enumerate(rows):
        y = 34 + high * n
        value = r["kernel_speedup"] or 1.0
        start, end = sorted((x(1.0), x(value)))
        colour = "#3b6fd4" if value >= 1 else "#c9783a"
        parts.append(f'<text x="8" y="{y + 11}">{_xml(r["name"])} {r["dtype"]}</text>')
        parts.append(f'<rect x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{x(value) + 4:.1f}" y="{y + 11}">{value:.2f}</text>')
    bottom = 34 + high * len(rows)
    parts.append(f'<line x1="{x(1.0):.1f}" y1="28" x2="{x(1.0):.1f}" y2="{bottom}" stroke="#667"/></svg>')
    return "\n".join([*parts, ""])


def _xml(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
