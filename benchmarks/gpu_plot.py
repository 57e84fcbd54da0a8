"""The results as one HTML page with a plotly figure: microseconds of each contender by case, the floor as marks.

plotly is not needed: the figure is plotly's JSON, and the page loads its script from a CDN.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from prism.bench.results import MEASURED

SCRIPT = "https://cdn.plot.ly/plotly-2.35.2.min.js"


def figure(rows: Sequence[Mapping[str, Any]], title: str) -> dict[str, Any]:
    """The figure as plotly takes it: a trace a contender; times that were never measured say so in their name."""
    measured = [r for r in rows if r["evidence"] == MEASURED]
    estimated = [r for r in rows if r["evidence"] != MEASURED]
    traces: list[dict[str, Any]] = []

    def bars(name: str, values: Sequence[tuple[str, float | None]]) -> None:
        kept = [(x, y) for x, y in values if y is not None]
        if kept:
            traces.append({"type": "bar", "name": name, "x": [x for x, _ in kept], "y": [y for _, y in kept]})

    bars("prism", [(r["name"], r["prism_us"]) for r in measured])
    for b in sorted({b for r in measured for b in r["baselines"]}):
        bars(b, [(r["name"], r["baselines"].get(b)) for r in measured])
    bars("prism, estimated", [(r["name"], r["estimate_us"]) for r in estimated])
    bars("operator by operator, estimated", [(r["name"], r.get("baseline_estimate_us")) for r in estimated])
    names = [r["name"] for r in rows]
    floor = {"symbol": "line-ew", "size": 14, "line": {"width": 3, "color": "black"}}
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "floor",
            "x": names,
            "y": [r["floor_us"] for r in rows],
            "marker": floor,
        }
    )
    layout = {
        "title": {"text": title},
        "barmode": "group",
        "yaxis": {"type": "log", "title": {"text": "µs"}},
        "xaxis": {"tickangle": -60, "automargin": True},
    }
    return {"data": traces, "layout": layout}


def page(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """The page."""
    body = json.dumps(figure(rows, title)).replace("</", "<\\/")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            f'<script src="{SCRIPT}"></script></head>',
            '<body><div id="plot" style="width:100%;height:90vh"></div>',
            f"<script>const f = {body}; Plotly.newPlot('plot', f.data, f.layout);</script>",
            "</body></html>",
            "",
        ]
    )
