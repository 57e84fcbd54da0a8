"""Correctness without a GPU: each workload's chosen sGraphs in Triton's interpreter, at reduced and ragged extents.

An sGraph has its extents in it, so the workload is searched again at its reduced sizes, and the proved sGraph of the
same structure (equal but for the numbers in it) is checked by the numeric gate: emitted, run on ordinary and on
adversarial inputs, and judged against the float64 oracle by eager's own error. A structure that the search at the
reduced sizes does not reach stays unchecked here, and the record says so.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prism.api.proofs import ProvedSGraph
from prism.api.region_search import SearchBudget
from prism.api.searching import search
from prism.backends.triton.emit import emit_module
from prism.bench.prepare import file_name, trace_case
from prism.bench.suite import Case, reduced
from prism.cost.device import device
from prism.cost.model import Model
from prism.errors import PrismError
from prism.instantiate.gate.check import KernelRunner, check_module
from prism.instantiate.options import Offered, variants
from prism.instantiate.space import Space
from prism.platforms.gpu import interpreter
from prism.program.nodes import Program
from prism.sgraph import show

PROVED = 96
"""sGraphs that are proved at the reduced sizes in search of the structures that are wanted."""
OFF = frozenset({"dominated", "worse"})
"""Pruners that are switched off there: what is best at full sizes need not be at these."""
POINTS = 64
VARIED_CASES = 2
"""Cases of the gate for variants of the best point, where the extents allow them."""

_INDEX = re.compile(r"(?<=\[)[^\[\]]*(?=\])")
_LOADS = re.compile(r"(?:^ +x# = [^\n]*\n)+", re.MULTILINE)
_AXIS = re.compile(r"(?<![A-Za-z0-9])d\d+(?:_\d+)?")


def structure(shown: str) -> str:
    """A shown sGraph without its numbers, axes by the order of their mention: equal for one way to compute it."""
    places: dict[str, str] = {}
    text = "\n".join(line for line in shown.splitlines()[1:] if not line.startswith("  buffer"))
    text = _AXIS.sub(lambda m: places.setdefault(m[0], f"axis{chr(ord('a') + len(places))}"), text)
    text = re.sub(r"\d+", "#", text)
    # The order of the terms of an index follows the axes' own names.
    text = _INDEX.sub(lambda m: ", ".join(" + ".join(sorted(i.split(" + "))) for i in m[0].split(", ")), text)
    # So does the order of loads that stand together.
    return _LOADS.sub(lambda m: "".join(sorted(m[0].splitlines(keepends=True))), text)


def check_case(
    small: Case,
    wanted: Iterable[str],
    folder: Path,
    runner: KernelRunner,
    *,
    target: str = "sm_90",
    seed: int = 0,
    limit: int | None = None,
) -> dict[str, Any]:
    """Check the structures that are wanted of a case; where none is found, the best that is proved.

    Args:
        small: a case at reduced sizes.
        wanted: structures, as `structure` gives them.
        folder: for modules.
        runner: runs kernels.
        target: what configurations are for.
        seed: of the draws.
        limit: run the first so many cases of the gate; all when None.
    """
    start = time.perf_counter()
    program = trace_case(small)
    unique = list(dict.fromkeys(wanted))
    by_structure: dict[str, ProvedSGraph] = {}
    found: Sequence[ProvedSGraph] = ()
    for budget in (SearchBudget(), SearchBudget(max_sgraphs=PROVED, off=OFF)):
        if not set(unique) <= by_structure.keys():
            with search(program, target=target, budget=budget) as running:
                more = running.run().proved
            found = found or more
            for p in more:
                by_structure.setdefault(structure(show.text(p.sgraph)), p)
    matched = [by_structure[s] for s in unique if s in by_structure]
    record: dict[str, Any] = {
        "sizes": dict(small.sizes),
        "structures": len(unique),
        "matched": len(matched),
        "runner": runner.name,
        "runs": [],
    }
    for n, p in enumerate(matched or found[:1]):
        record["runs"].append(
            _check(p, program, folder / f"{file_name(small.name)}_{n}.py", runner, target, seed, limit)
        )
    record["passed"] = bool(record["runs"]) and all(r["passed"] for r in record["runs"])
    record["seconds"] = time.perf_counter() - start
    return record


def _check(
    p: ProvedSGraph, program: Program, path: Path, runner: KernelRunner, target: str, seed: int, limit: int | None
) -> dict[str, Any]:
    described = device(target)
    space = Space(p.sgraph, described, program.hints)
    model = Model(p.sgraph, described, program.hints)
    points = space.best(model, POINTS)
    kernels = [launch.name for launch in p.sgraph.launches]
    if not points:
        return {"kernels": kernels, "passed": False, "cases": 0, "failures": ["no feasible configuration"]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(emit_module(p.sgraph, formula=str(program), configs={}).text, encoding="utf-8")
    others = [(c, VARIED_CASES) for c in variants(space.options, Offered.STUDY, points[0], model)]
    reports = [
        check_module(program, path, p.sgraph, c, seed=seed, runner=runner, alternatives=points[1:], limit=cases)
        for c, cases in ((points[0], limit), *others)
    ]
    return {
        "kernels": kernels,
        "passed": all(r.passed for r in reports),
        "cases": sum(r.cases for r in reports),
        "worst": max((w for r in reports for w in r.worst.values()), default=0.0),
        "failures": [f for r in reports for f in r.failures],
    }


def check_entries(
    entries: Sequence[tuple[Case, dict[str, Any]]],
    folder: Path,
    *,
    limit: int | None = None,
    say: Callable[[str], None] = print,
    done: Callable[[dict[str, Any]], object] = lambda _: None,
) -> dict[str, Any]:
    """Check the best finalist of every case, those of one workload at the same reduced sizes together.

    Args:
        entries: cases with what the manifest says of them.
        folder: where modules go.
        limit: cases of the gate; all when None.
        say: told one line a check.
        done: called after each with all records so far.

    Returns:
        by the name of the check; each record gets it as `check`.
    """
    wanted: dict[tuple[str, tuple[int, ...]], tuple[Case, list[str]]] = {}
    for case, record in entries:
        if "best" in record:
            small = reduced(case)
            key = small.workload.name, tuple(small.sizes.values())
            first, structures = wanted.setdefault(key, (small, []))
            structures.append(structure(record["candidates"][record["best"]["candidate"]]["sgraph"]))
            record["check"] = first.name
    records: dict[str, Any] = {}
    with interpreter() as runner:
        for small, structures in wanted.values():
            try:
                found = check_case(small, structures, folder / "checked", runner, limit=limit)
            except PrismError as error:
                found = {"passed": False, "runs": [], "error": error.one_line()}
            records[small.name] = found
            say(check_line(small.name, found))
            done(records)
    return records


def check_line(name: str, record: Mapping[str, Any]) -> str:
    """One line about a checked workload."""
    if "error" in record:
        return f"{name:42s} {record['error']}"
    cases = sum(r["cases"] for r in record["runs"])
    failures = [f for r in record["runs"] for f in r["failures"]]
    return (
        f"{name:42s} {'passed' if record['passed'] else 'FAILED'}  {record['matched']} of {record['structures']} "
        f"structures, {cases} cases in {record['seconds']:.1f} s{'  ' + failures[0] if failures else ''}"
    )
