"""The report as one HTML page that needs nothing else: no script, no network, no font.

Charts are inline SVG rather than plotly, whose JavaScript would add 4.5 MB to a page of some 20 kB, for bars that need
no interaction; the page then also opens under a policy that forbids scripts. All text from a model passes `escape`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as _escape

from prism.events import ProofRecord, RunReport
from prism.report.units import (
    CONTENDERS,
    check_line,
    config_text,
    contender_rows,
    duration,
    evidence_note,
    funnel_rows,
    kernel_rows,
    load_line,
    measured_line,
    number,
    prepared_note,
    speedup,
)

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2330;--dim:#667;--line:#d5d9e2;--bar:#3b6fd4;--cut:#c9783a;--bg:#fff;
--code:#f4f6fa}
@media(prefers-color-scheme:dark){:root{--ink:#e3e7f0;--dim:#9aa3b5;--line:#39404f;--bar:#6d9bf5;--cut:#e29a5f;
--bg:#151922;--code:#1e2430}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--bg);max-width:62rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2.2rem;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;margin:.6rem 0}th,td{padding:.25rem .9rem .25rem 0;text-align:left;vertical-align:top}
th{color:var(--dim);font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
pre{background:var(--code);padding:.8rem;overflow-x:auto;font-size:13px;line-height:1.4;border-radius:4px}
code{font-size:13px;overflow-wrap:anywhere}.lead{font-size:1.2rem}.dim{color:var(--dim)}.wide{overflow-x:auto}
svg{max-width:100%;height:auto}svg text{fill:var(--ink);font-size:13px}
svg .bar{fill:var(--bar)}svg .cut{fill:var(--cut)}
.warn{border-left:4px solid var(--cut);padding-left:.8rem}
"""


def escape(text: object) -> str:
    """Text made safe for an element's content or a quoted attribute."""
    return _escape(str(text), quote=True)


def render_html(report: RunReport, proof: ProofRecord | None = None) -> str:
    """The page. Equal reports give equal pages."""
    sections = [_lead(report), _formulas(report), _kernels(report), _measurement(report), _funnel(report)]
    sections += [_stages(report)]
    sections += [
        _proof(report, proof),
        f"<h2>sGraph</h2>\n<pre>{escape(report.sgraph_text)}</pre>\n{_details('The same as DOT', report.sgraph_dot)}",
        _reproduce(report),
    ]
    title = escape(f"prism: {report.name} for {report.target}")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{title}</title>",
            f"<style>{_STYLE}</style></head><body>",
            *sections,
            "</body></html>",
            "",
        ]
    )


def _lead(r: RunReport) -> str:
    lines = [
        f"<h1>{escape(r.name)}</h1>",
        f'<p class="dim">for {escape(r.target)} ({escape(r.device)})</p>',
        f'<p class="lead"><b>{escape(speedup(r))}</b> ({r.evidence}): {duration(r.baseline_seconds)} '
        f"{escape(r.baseline)} → {duration(r.best_seconds)}; "
        f"{r.operator_count} kernels → {r.kernel_count}; <b>{escape(r.verdict)}</b>.</p>",
        f"<p>{escape(evidence_note(r))}</p>",
        *(f"<p>{escape(note)}</p>" for note in [prepared_note(r)] if note),
    ]
    if r.shapes:
        lines.append(f"<p>Quoted at <code>{escape(config_text(r.shapes))}</code>.</p>")
    lines += [f'<p class="warn">{escape(w)}</p>' for w in r.warnings]
    return "\n".join(lines)


def _formulas(r: RunReport) -> str:
    body = "\n".join(f"{output} = {formula}" for output, formula in r.formulas.items())
    read = f"\n<p>As it was read: {escape(r.conformance)}.</p>" if r.conformance else ""
    return f"<h2>What it computes</h2>\n<pre>{escape(body)}</pre>{read}"


def _kernels(r: RunReport) -> str:
    head = ["kernel", "axes", "config", r.memory, "registers", "spills", f"time ({r.evidence})", "bound by"]
    return f"<h2>Kernels</h2>\n{_table(head, kernel_rows(r), numeric=range(3, 7))}"


def _measurement(r: RunReport) -> str:
    m = r.measurement
    if m is None:
        return ""
    notes = [measured_line(m), load_line(m), *(f"not timed: {name}, {why}" for name, why in m.missing.items())]
    lines = "".join(f'<p class="dim">{escape(n)}</p>\n' for n in notes if n)
    return f"<h2>Measurement</h2>\n{_table(CONTENDERS, contender_rows(m), numeric=range(1, 5))}\n{lines}"


def _funnel(r: RunReport) -> str:
    rows = [(name, count, number(count), name.startswith("pruned")) for name, count in funnel_rows(r)]
    note = (
        f"{number(r.enodes)} e-nodes in the saturated e-graph. "
        "Every station counts sGraphs; each one stands for all of its tile sizes."
    )
    return f'<h2>Funnel</h2>\n{_bars(rows)}\n<p class="dim">{escape(note)}</p>'


def _stages(r: RunReport) -> str:
    rows = [(name, seconds, duration(seconds), False) for name, seconds in r.stages.items()]
    total = duration(sum(r.stages.values()))
    note = f"{total} in all, peak memory {r.peak_mb:.0f} MiB."
    return f'<h2>Where the time went</h2>\n{_bars(rows)}\n<p class="dim">{note}</p>'


def _proof(r: RunReport, proof: ProofRecord | None) -> str:
    rows = [["verdict", r.verdict], ["how", r.reason or "-"], ["rule families", ", ".join(r.rules) or "-"]]
    rows.append(["for all inputs that are finite numbers, assuming", "; ".join(r.assumptions) or "nothing else"])
    if r.classes:
        rows.append(["what rules may have done to rounding, at most", ", ".join(r.classes)])
    if proof is not None:
        rows += [
            ["certificate", f"{proof.rung}: {proof.why_not_derived}" if proof.why_not_derived else proof.rung],
            ["e-graph", f"{number(proof.enodes)} e-nodes, {proof.iterations} iterations, egglog {proof.egglog}"],
        ]
        rows += [[f"{name}, SHA-256", digest] for name, digest in proof.rule_hashes.items()]
    if r.identity:
        rows.append(["second opinion", r.identity])
    rows.append(["numeric check", check_line(r)])
    parts = ["<h2>Proof and check</h2>", _table(["", ""], rows)]
    if r.check.worst:
        worst = [[kind, f"{ratio:.3g}"] for kind, ratio in r.check.worst.items()]
        parts.append(_table(["draw", "worst error, as a share of what is allowed"], worst, numeric=(1,)))
    if proof is not None:
        parts.append(_details("What the sGraph computes, as the prover read it", proof.denotation))
        parts.append(_details("The program it was proved against", proof.program))
    return "\n".join(parts)


def _reproduce(r: RunReport) -> str:
    rows = [["config", config_text(r.config) or "-"], ["seed", str(r.seed)]]
    rows += [[name, version] for name, version in r.versions.items()]
    return f"<h2>To make the same choice again</h2>\n{_table(['', ''], rows)}"


def _details(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>" if text else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> str:
    """A table whose `numeric` columns are aligned to the right; a head of blanks is left out."""
    right = frozenset(numeric)

    def cells(tag: str, row: Sequence[str]) -> str:
        marks = (' class="n"' if n in right else "" for n in range(len(row)))
        return "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for mark, cell in zip(marks, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    top = f"<thead><tr>{cells('th', head)}</tr></thead>" if any(head) else ""
    return f'<div class="wide"><table>{top}<tbody>\n{body}</tbody></table></div>'


def _bars(rows: Sequence[tuple[str, float, str, bool]]) -> str:
    """A bar a row: name, length, label, and whether it is drawn as something removed. Names too long are clipped."""
    pitch, left, room, label = 24, 260, 360, 120
    longest = max((value for _, value, _, _ in rows), default=0) or 1
    wide, high = left + room + label, pitch * len(rows)
    parts = [f'<svg role="img" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">']
    for n, (name, value, text, removed) in enumerate(rows):
        y = n * pitch
        width = max(1.0, room * value / longest) if value > 0 else 0.0
        short = name if len(name) <= 38 else name[:37] + "…"
        parts.append(
            f'<g><title>{escape(name)}: {escape(text)}</title><text x="0" y="{y + 16}">{escape(short)}</text>'
            f'<rect class="{"cut" if removed else "bar"}" x="{left}" y="{y + 4}" width="{width:.1f}" height="16"/>'
            f'<text x="{left + width + 8:.1f}" y="{y + 16}">{escape(text)}</text></g>'
        )
    parts.append("</svg>")
    return "\n".join(parts)
