"""The gallery: of the functions that `discover.py` searched, the twenty that gain most, from formula to kernel.

A function is shown where what was found for it is within `NEAR` of the best known algorithm and is one region, so that
one sGraph is all of it. The twenty are those of the largest estimated gain over a kernel for each operator. Each comes
with its source, its sGraph, the rules of its derivation, which the checker has accepted, and the Triton kernels.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.collection import Known
    from prism.api.proofs import ProvedSGraph
    from prism.egraph.worker import Worker
    from prism.program.nodes import Formula

NEAR = 1.1
"""How far from the best known an entry may be, as a ratio of times."""
SHOWN = 20
"""Entries of the page."""
_STEP = re.compile(r"  \d+(-\d+)?  ")


@dataclass(frozen=True, slots=True)
class Entry:
    """One function of the page.

    Attributes:
        name: as on the command line.
        shapes: its arguments, with their sizes.
        source: of the function, in torch.
        sgraph: as text.
        proof: how it was proved, a clause a line.
        kernels: in Triton.
        tiles: the sizes and options at which it is counted.
        gain: estimated, over a kernel for each operator.
        ratio: to the best known algorithm.
        known: where that is from.
    """

    name: str
    shapes: str
    source: str
    sgraph: str
    proof: tuple[str, ...]
    kernels: str
    tiles: Mapping[str, Any]
    gain: float
    ratio: float
    known: str


def source(known: Known) -> str:
    """The function's text."""
    return textwrap.dedent(inspect.getsource(known.fn)).strip()


def proof(formulas: Sequence[Formula], proved: ProvedSGraph, worker: Worker) -> list[str]:
    """The verdict, and the rules of the derivation in order; why there is none, where there is none."""
    from prism.api.records import reference_of
    from prism.api.verifying import explanation
    from prism.checker import check
    from prism.egraph.rules import load_rules, rule_files
    from prism.errors import WorkerError

    denotation = proved.denotation
    names, lines = [f.tensor.name for f in formulas], [str(proved.verdict)]
    try:
        derived = worker.derive(names, reference_of(formulas, denotation), denotation.outputs)
    except WorkerError:
        return [*lines, "no derivation: the worker ran past its limit"]
    if derived.reason:
        return [*lines, f"no derivation: {derived.reason}"]
    accepted = check(derived.certificate, {p.name: p.read_bytes() for p in rule_files()})
    told = list(explanation(accepted, load_rules(rule_files())))
    return [*lines, *(line.rstrip() for line in told if _STEP.match(line) or not line.startswith(" "))]


def kernels(module: str) -> str:
    """The functions of a module that run on the device."""
    found = []
    lines = module.splitlines()
    for node in ast.parse(module).body:
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list):
            first = min(d.lineno for d in node.decorator_list)
            found.append("\n".join(lines[first - 1 : node.end_lineno]))
    return "\n\n\n".join(found)


def best(entries: Sequence[Entry]) -> list[Entry]:
    """Those that the page shows."""
    return sorted(entries, key=lambda e: -e.gain)[:SHOWN]


def page(entries: Sequence[Entry]) -> str:
    """The page of the best."""
    shown = best(entries)
    parts = [
        "# Gallery",
        textwrap.fill(
            f"What the search finds for the {len(shown)} functions of `benchmarks/collection.py` that gain most, of "
            f"those within {NEAR:g} of the best known algorithm: the function as a model's code has it, the sGraph "
            "that was chosen for an H200 (`sm_90`), the rules by which it was proved equal, once for all tile sizes, "
            "and the kernels. Gains are estimates of the cost model, over a kernel for each operator; nothing was "
            "measured. Equal functions are searched once, whatever they call things: `in0` is the first argument, "
            "`d4096` an axis of that length. `python benchmarks/discover.py --gallery docs/gallery.md` writes this "
            "page.",
            118,
        ),
        "\n".join(
            [
                "| function | estimated gain over operators | times the best known | best known from |",
                "|---|---|---|---|",
                *(f"| [{e.name}](#{_anchor(e.name)}) | {e.gain:.1f} | {e.ratio:.2f} | {e.known} |" for e in shown),
            ]
        ),
    ]
    parts += [_section(e) for e in shown]
    return "\n\n".join(parts) + "\n"


def _anchor(name: str) -> str:
    """As MyST makes them of headings."""
    return re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")


def _section(e: Entry) -> str:
    return "\n\n".join(
        [
            f"## {e.name}",
            f"`{e.shapes}`",
            f"```python\n{e.source}\n```",
            f"becomes, at `{e.tiles}`,",
            f"```text\n{e.sgraph.strip()}\n```",
            "\n".join(["```text", *e.proof, "```"]),
            f"```python\n{e.kernels}\n```",
        ]
    )
