"""The same program, bounds and seed give byte-identical sGraphs in the same order, however they are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from quick import run_slow, slow_but

from prism.api import SearchBudget, load
from prism.api.region_search import Search, SearchResult
from prism.cost.device import device
from prism.egraph.worker import Worker
from prism.events import Recorder
from prism.sgraph.show import key, text

MODELS = Path(__file__).resolve().parent.parent / "examples" / "models"
BUDGET = SearchBudget(max_kernels=2, max_forms=3, max_families=24, max_sgraphs=6)
# Products with several forms; a split that is proved against a reference of its own; several accumulators.
NAMES = ["lora", "gqa_decode", "rmsnorm_linear"] if run_slow() else ["gqa_decode", "rmsnorm_linear"]


def search(name: str, workers: Sequence[Worker], budget: SearchBudget = BUDGET) -> SearchResult:
    found = Search(load(MODELS / f"{name}.onnx"), device("sm_90"), budget, workers, Recorder())
    given = tuple(found)
    assert given == found.result().proved
    return found.result()


def written(found: SearchResult) -> list[str]:
    """All that a search says, but for how long it took, byte by byte.

    The text leaves little out; the representation of the dataclasses leaves nothing out.
    """
    lines = [
        f"{found.generated.generated} {dict(found.generated.pruned)} {found.unknown} {found.enodes} {found.stopped}"
    ]
    for c in found.generated.candidates:
        lines.append(f"candidate {key(c.sgraph)} {c.seconds.hex()}")
    for p in found.proved:
        verdict = f"{p.verdict.status} {p.verdict.reason} {p.verdict.enodes} {p.verdict.iterations} {p.verdict.rules}"
        lines += [key(p.sgraph), text(p.sgraph), repr(p.sgraph), repr(p.denotation), p.seconds.hex(), verdict]
    return lines


@pytest.fixture(scope="module")
def first() -> dict[str, list[str]]:
    """What the first search in a process finds, each with a worker of its own."""
    found = {}
    for name in NAMES:
        with Worker() as worker:
            found[name] = written(search(name, [worker]))
    assert all(len(lines) > 10 for lines in found.values())
    return found


@pytest.mark.parametrize("name", slow_but(["gqa_decode"], NAMES))
def test_two_workers_find_what_one_finds(name: str, first: dict[str, list[str]]) -> None:
    with Worker() as a, Worker() as b:
        assert written(search(name, [a, b])) == first[name]


@pytest.mark.slow
def test_the_tenth_search_in_a_process_finds_what_the_first_finds(first: dict[str, list[str]]) -> None:
    with Worker() as worker:
        for n in range(10):
            name = NAMES[n % 2]
            assert written(search(name, [worker])) == first[name], f"search {n + 1}"
        # Whatever was searched before, with other bounds too.
        search(NAMES[-1], [worker], replace(BUDGET, max_sgraphs=3))
        assert written(search(NAMES[-1], [worker])) == first[NAMES[-1]]


ELSEWHERE = """
import json, sys
from prism.egraph.worker import Worker
from test_determinism import NAMES, search, written
with Worker() as worker:
    print(json.dumps({name: written(search(name, [worker])) for name in sys.argv[1].split(",")}))
"""


@pytest.mark.parametrize("seed", slow_but(["4242"], ["1", "4242"]))
def test_another_process_finds_the_same(seed: str, first: dict[str, list[str]]) -> None:
    root = MODELS.parent.parent
    # Strings hash by the seed, and so sets are walked in another order; the order of the searches differs as well.
    names = NAMES if seed == "1" else NAMES[::-1]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"}
    command = [sys.executable, "-c", ELSEWHERE, ",".join(names)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == first
