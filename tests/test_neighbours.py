"""Neighbouring regions as one: which are tried, that what comes of it computes the program, and what it may cost."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program_random import arrays, programs
from quick import examples
from test_partition import chain, picks, run_regions

from prism.api import trace
from prism.api.partitioned import AT_POINTS, ONE_BY_ONE, search_regions
from prism.api.region_search import SearchBudget, run_search
from prism.cost.device import device
from prism.egraph.worker import Worker
from prism.events import Recorder
from prism.generate.neighbours import merged, pairs
from prism.generate.partition import RegionBounds, partition
from prism.program import spec as program_spec
from prism.program.evaluate import evaluate
from prism.program.nodes import Program

SM_90 = device("sm_90")
SMALL = SearchBudget(max_sgraphs=8)


def pointwise(x: Any, y: Any) -> tuple[Any, Any]:
    """Three operators over large tensors, of which the first is an output as well."""
    a = x * y
    return a, torch.sigmoid(torch.tanh(a) + y)


def traced(size: int = 4096) -> Program:
    return trace(pointwise, [torch.empty(size, size, device="meta") for _ in range(2)])


@settings(max_examples=examples(40, 150), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.data())
def test_any_pairs_of_random_programs_compute_the_program(program: Program, data: st.DataObject) -> None:
    names = [d.name for d in program.definitions]
    outputs = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    whole = replace(program, outputs=tuple(outputs))
    regions = partition(whole, ONE_BY_ONE)
    feed = arrays(whole, 0)
    expected = evaluate(whole, feed)
    while found := pairs(whole, regions, [0.0] * len(regions), SM_90):
        some = data.draw(st.lists(st.sampled_from(found), min_size=1, max_size=3, unique_by=id))
        fewer = merged(whole, regions, some)
        assert len(fewer) < len(regions), "one of them can be merged by itself"
        regions = fewer
        for r in regions:
            program_spec.check(r.program)
        for name, value in run_regions(whole, regions, feed).items():
            assert np.allclose(value, expected[name], rtol=1e-9, atol=1e-9, equal_nan=True)


def test_two_that_something_stands_between_are_no_pair() -> None:
    """b reads a, and c reads both: a and c alone would have to run before b and after it."""

    def between(x: Any) -> Any:
        a = x.tanh()
        return a * (a.sum(0) + 1.0)

    program = trace(between, [torch.empty(4096, 4096, device="meta")])
    regions = partition(program, ONE_BY_ONE)
    makes = [r.outputs for r in regions]
    found = [(p.first, p.second) for p in pairs(program, regions, [0.0] * len(regions), SM_90)]
    first = makes.index(("tanh",))
    last = next(n for n, r in enumerate(regions) if program.outputs == r.outputs)
    assert "tanh" in regions[last].inputs
    assert (first, last) not in found
    assert found


def test_what_takes_long_is_not_searched_for_a_little_traffic() -> None:
    program = chain([4096, 4096, 4096], 64)
    regions = partition(program, ONE_BY_ONE)
    (pair,) = pairs(program, regions, [1e-6, 1e-6], SM_90)
    assert pair.saved > SM_90.launch_overhead_s
    assert not pairs(program, regions, [6 * pair.saved, 6 * pair.saved], SM_90)


def test_neighbours_that_are_faster_as_one_are_one(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism.api.partitioned.whole", lambda *_: None)
    program = traced()
    regions = partition(program, ONE_BY_ONE)
    assert len(regions) == 4
    apart = search_regions(program, regions, SM_90, SMALL, [worker], Recorder(), as_one=False)
    found = search_regions(program, regions, SM_90, SMALL, [worker], Recorder())
    assert [r.region.outputs for r in found.regions] == [program.outputs]
    assert len(found.joined) == 3
    assert all(j.after < j.before for j in found.joined)
    chosen = picks(found, 0)
    said = found.whole(chosen, found.compose([p.sgraph for p in chosen])).verdict.reason
    assert all(f"; {j}" in said for j in found.joined)
    assert found.regions[0].result.proved[0].seconds < sum(r.result.proved[0].seconds for r in apart.regions)


def test_what_is_tried_for_nothing_is_about_as_large_as_the_regions(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prism.api.partitioned.whole", lambda *_: None)
    program = chain([64 + n for n in range(10)], 64)
    regions = partition(program, ONE_BY_ONE)
    tried: list[int] = []

    def run(p: Program, target: Any, budget: SearchBudget, *rest: object) -> object:
        if budget.below < 1.0:
            tried.append(budget.enodes)
            return SimpleNamespace(proved=(), enodes=2 * budget.enodes)
        return SimpleNamespace(proved=(SimpleNamespace(seconds=3e-6),), enodes=100)

    monkeypatch.setattr("prism.api.partitioned.run_search", run)
    found = search_regions(program, regions, SM_90, SMALL, [worker], Recorder())
    assert len(found.regions) == len(regions) == 9
    assert tried == [400, 400], "800 each, of 900"


def test_equal_pairs_are_searched_once(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism.api.partitioned.whole", lambda *_: None)
    monkeypatch.setattr("prism.api.partitioned._estimated", lambda _, made, *__: made)
    program = chain([64, 96, 64, 96, 64, 96, 64], 64)
    regions = partition(program, ONE_BY_ONE)
    tried: list[float] = []

    def run(p: Program, target: Any, budget: SearchBudget, *rest: object) -> object:
        if budget.below < 1.0:
            tried.append(budget.below)
            joined = SimpleNamespace(seconds=2e-6, sgraph=2e-6)
            return SimpleNamespace(proved=(joined,) if len(tried) == 1 else (), enodes=20)
        return SimpleNamespace(proved=(SimpleNamespace(seconds=3e-6, sgraph=3e-6),), enodes=10)

    monkeypatch.setattr("prism.api.partitioned.run_search", run)
    found = search_regions(program, regions, SM_90, SMALL, [worker], Recorder())
    assert len(found.regions) == 3
    assert [j.times for j in found.joined] == [3]
    assert tried[0] == pytest.approx(6e-6)


def test_only_what_looks_faster_than_something_else_is_built(worker: Worker) -> None:
    program = traced()
    plain = run_search(program, SM_90, SMALL, worker, Recorder())
    least = plain.proved[0].seconds
    for below, some in ((1.5 * least, True), (least, False), (0.1 * least, False)):
        found = run_search(program, SM_90, replace(SMALL, below=below), worker, Recorder())
        assert bool(found.proved) == some
        assert found.generated.generated <= plain.generated.generated
        if some:
            assert found.proved[0] == plain.proved[0]


def test_one_may_compute_again_what_is_stored_for_others() -> None:
    """Probabilities are stored, as they are an output, but a product has them of queries and keys instead."""

    def weights_too(q: Any, k: Any, v: Any, w: Any) -> tuple[Any, Any, Any]:
        p = (q @ k.transpose(-1, -2)).softmax(-1)
        return p, p @ v, p.transpose(-1, -2) @ w

    args = [torch.empty(16, 2048, 64, dtype=torch.bfloat16, device="meta") for _ in range(4)]
    program = trace(weights_too, args)
    regions = partition(program, RegionBounds(products=2, outputs=1), SM_90)
    assert [r.inputs for r in regions] == [("q", "k"), ("q", "k", "v"), ("w", "softmax")]


@pytest.mark.parametrize(("below", "rounds"), [(1e3, 1), (math.inf, 3)])
def test_no_round_follows_one_of_which_nothing_can_run_where_something_else_does_the_same(
    below: float, rounds: int, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    widened: list[int] = []
    monkeypatch.setattr("prism.generate.enumerate._Walk.visit", lambda *_: None)
    monkeypatch.setattr("prism.generate.enumerate._Agenda.widen", lambda *given: widened.append(given[2]))
    program = trace(lambda x: x / x.sum(-1, keepdim=True), [torch.empty(64, 64, device="meta")])
    found = run_search(program, SM_90, replace(SMALL, max_rounds=3, below=below), worker, Recorder())
    assert not found.proved
    assert len(widened) == rounds


def test_of_neighbours_that_are_far_slower_as_one_a_few_are_estimated(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prism.api.partitioned.whole", lambda *_: None)
    points: list[int] = []

    def estimated(_: Program, made: float, __: object, most: int) -> float:
        points.append(most)
        return made

    def run(p: Program, target: Any, budget: SearchBudget, *rest: object) -> object:
        seconds = 9e-6 if budget.below < 1.0 else 3e-6
        return SimpleNamespace(proved=(SimpleNamespace(seconds=seconds, sgraph=seconds),), enodes=10)

    monkeypatch.setattr("prism.api.partitioned._estimated", estimated)
    monkeypatch.setattr("prism.api.partitioned.run_search", run)
    program = chain([64, 96, 64, 96, 64], 64)
    found = search_regions(program, partition(program, ONE_BY_ONE), SM_90, SMALL, [worker], Recorder())
    assert not found.joined
    assert set(points) == {AT_POINTS}
