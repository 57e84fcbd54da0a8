"""Regions: what the partitioner cuts, that equal ones are searched once, and that the whole is put together right."""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from frontend_onnx_models import FLOAT, model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from program_random import arrays, programs
from quick import examples, run_slow
from sgraph_simulator import simulate
from torch.nn import functional as F

from examples.common import MODELS
from examples.decoder_layer import Sizes, formula, inputs, layer
from prism.api import choosing, composing, load, partitioned, trace
from prism.api.optimizing import optimize
from prism.api.partitioned import ONE_BY_ONE, PartitionedSearch, search_regions
from prism.api.proofs import ProvedSGraph
from prism.api.records import Request
from prism.api.region_search import SearchBudget, SearchResult, run_search
from prism.api.searching import search as prism_search
from prism.api.time_limit import ENDLESS, SearchTime
from prism.backends.cpu.build import compile_module, find_compiler
from prism.backends.cpu.emit import emit_module
from prism.backends.loading import load_module
from prism.backends.protocol import write_module
from prism.cost.device import device
from prism.cost.regions import Costs, RootCost, moved
from prism.egraph.worker import Worker
from prism.errors import (
    CompilerError,
    ExitCode,
    IllegalIRError,
    NoImprovementError,
    PrismError,
    UnsupportedError,
    VerificationError,
    of_part,
)
from prism.events import Recorder
from prism.frontend.onnx.reader import from_model
from prism.generate.partition import RegionBounds, partition, searchable, unrepeated, whole
from prism.ir.kit import statements
from prism.process.deadline import Deadline
from prism.program import spec as program_spec
from prism.program.build import const, mul, op, read, reduce
from prism.program.evaluate import evaluate
from prism.program.extents import symbol, told
from prism.program.index import Axis, Index
from prism.program.nodes import Definition, DType, Expr, Program, Reduce, Tensor, walk
from prism.program.region import Region, canonical, subprogram
from prism.program.transform import substitute
from prism.sgraph import spec
from prism.sgraph.compose import Part, compose
from prism.sgraph.config import Config
from prism.sgraph.nodes import Store
from prism.sgraph.show import key, text

pytestmark = pytest.mark.usefixtures("small_gate")

SM_90 = device("sm_90")
TINY = Sizes(hidden=64, heads=4, kv_heads=2, head=16, mlp=96)
SEQ = 24
SMALL = SearchBudget(max_sgraphs=8)


@cache
def tiny_layer() -> Program:
    shapes = TINY.shapes(SEQ).values()
    return trace(layer(TINY), [torch.zeros(s) for s in shapes], name="tiny_layer")


@cache
def two_layers() -> Program:
    one = layer(TINY)
    shapes = list(TINY.shapes(SEQ).values())

    def stacked(*t: torch.Tensor) -> torch.Tensor:
        return one(one(*t[:12]), *t[1:3], *t[12:])

    return trace(stacked, [torch.zeros(s) for s in (*shapes, *shapes[3:])], name="two_layers")


@pytest.fixture(scope="module")
def tiny_search(worker: Worker) -> PartitionedSearch:
    program = tiny_layer()
    return search_regions(program, partition(program), SM_90, SMALL, [worker], Recorder())


def run_regions(program: Program, regions: tuple[Region, ...], feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The regions by the float64 oracle, one after the other."""
    known = dict(feed)
    for r in regions:
        known |= evaluate(r.program, {n: known[n] for n in r.inputs})
    return {n: known[n] for n in program.outputs}


def draw(program: Program, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal([int(e) for e in t.shape]) for t in program.inputs}


def chain(sizes: list[int], rows: int) -> Program:
    """x @ w0 @ w1 ...: a product an operator."""
    m = Axis("m", rows)
    inputs_ = [Tensor("x", (rows, sizes[0]), DType.FLOAT16)]
    made: list[Definition] = []
    left = "x"
    for n, (a, b) in enumerate(pairwise(sizes)):
        k, out = Axis(f"k{n}", a), Axis(f"n{n}", b)
        inputs_.append(Tensor(f"w{n}", (a, b), DType.FLOAT16))
        product = reduce("sum", k, mul(read(left, m, k), read(f"w{n}", k, out)))
        made.append(Definition(f"y{n}", (m, out), product, DType.FLOAT16))
        left = f"y{n}"
    return Program("chain", tuple(inputs_), tuple(made), (left,))


# What is cut.


def test_layers_that_change_the_places_of_halves_are_not_counted_one_instance_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Swin of four layers took 80 CPU seconds to be told too large for one region."""

    def shifted(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = torch.cat((x[3:], x[:3])) @ w
        return x

    program = trace(shifted, [torch.zeros(16, 16)] * 17, name="shifted")
    most = []
    root = Costs.root

    def counted(self: Costs, name: str, kept: Any) -> RootCost:
        found = root(self, name, kept)
        most.append(sum(found.instances.values()))
        return found

    monkeypatch.setattr(Costs, "root", counted)
    regions = partition(program, device=SM_90)
    assert len(regions) > 1
    assert whole(program, SM_90) is None
    assert max(most) < 256, "2^16 of the first layer alone"


@pytest.mark.parametrize("path", sorted(p for p in MODELS.glob("*.onnx") if p.stem != "decoder_layer"))
def test_a_small_program_is_one_region(path: Path) -> None:
    program = load(path)
    (region,) = partition(program, device=SM_90)
    assert region.program is program


def products(program: Program) -> int:
    """Operators that multiply and add up over an axis, two factors."""
    found = 0
    for d in program.definitions:
        sums = [e for e in walk(d.expr) if isinstance(e, Reduce) and str(e.kind) == "sum"]
        found += any(str(e.body).count("[") == 2 for e in sums)
    return found


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90", "sm_100"])
def test_a_decoder_layer_is_a_handful_of_regions(target: str) -> None:
    program = load(MODELS / "decoder_layer.onnx")
    regions = partition(program, device=device(target))
    assert 3 <= len(regions) <= 7
    written: set[str] = {t.name for t in program.inputs}
    for r in regions:
        program_spec.check(r.program)
        assert set(r.inputs) <= written, "a region reads what an earlier one writes"
        assert not set(r.outputs) & written, "every tensor is written once"
        written |= set(r.outputs)
    assert set(program.outputs) <= written
    # No tensor with two dimensions of the sequence's length crosses a boundary.
    seq = next(t for t in program.inputs if t.name == "x").shape[0]
    tensors = [program.tensor(o) for r in regions for o in r.outputs]
    assert all(t.shape.count(seq) < 2 for t in tensors)
    # Row statistics are computed by who needs them.
    assert all(t.shape[-1] != 1 for t in tensors)


def test_what_a_decoder_layer_stores_comes_out_of_products() -> None:
    regions = partition(load(MODELS / "decoder_layer.onnx"), device=SM_90)
    assert all(products(subprogram(r.program, "part", (o,))) for r in regions for o in r.outputs)


def test_regions_compute_the_program() -> None:
    program = tiny_layer()
    regions = partition(program)
    assert len(regions) > 1
    feed = {n: a.astype(float) for n, a in inputs(np.random.default_rng(3), TINY, SEQ).items()}
    (found,) = run_regions(program, regions, feed).values()
    expected = formula(feed, TINY)
    assert np.abs(found - expected).max() < 1e-6 * np.abs(expected).max()


def test_regions_are_told_how_long_all_of_their_axes_are() -> None:
    """Of rows that were merged, `x[n*m, 4]`, nobody knows what to take apart into `[n, m]`."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Reshape", ["p", "rows"], ["flat"]),
        helper.make_node("Softmax", ["flat"], ["s"]),
        helper.make_node("Shape", ["p"], ["shape"]),
        helper.make_node("Reshape", ["s", "shape"], ["back"]),
        helper.make_node("ReduceSum", ["back", "one"], ["y"], keepdims=0),
    ]
    constants = {"rows": np.array([-1, 4]), "one": np.array([1])}
    shapes: dict[str, tuple[int, list[Any]]] = {"x": (FLOAT, ["n", "m", "k"]), "w": (FLOAT, ["k", 4])}
    program = from_model(model(nodes, shapes, ["y"], constants), "rows", None, check=False)
    regions = partition(program, RegionBounds(0, 0, 0, 1))
    assert len(regions) > 2
    for r in regions:
        assert told(e for t in r.program.inputs for e in t.shape) >= {symbol(s) for s in r.program.ranges}
    feed = {"x": np.random.default_rng(1).standard_normal((3, 5, 2)), "w": np.ones((2, 4))}
    (found,) = run_regions(program, regions, feed).values()
    assert np.allclose(found, evaluate(program, feed)["y"], rtol=1e-9, atol=1e-9)


def test_any_bounds_give_regions_that_compute_the_program() -> None:
    program = tiny_layer()
    feed = draw(program)
    expected = evaluate(program, feed)[program.outputs[0]]
    counts = []
    for n in (0, 1, 2, 4, 16):
        regions = partition(program, RegionBounds(n, 2 * n, 8 * n, max(1, n // 2)))
        counts.append(len(regions))
        (found,) = run_regions(program, regions, feed).values()
        assert np.allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert counts[0] == program.operator_count
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1


@settings(max_examples=examples(40, 150), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.data())
def test_random_programs_in_regions(program: Program, data: st.DataObject) -> None:
    names = [d.name for d in program.definitions]
    outputs = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    whole = replace(program, outputs=tuple(outputs))
    n = data.draw(st.integers(0, 2))
    regions = partition(whole, RegionBounds(n, n + 1, 2 * n, 2))
    feed = arrays(whole, n)
    for r in regions:
        program_spec.check(r.program)
    expected = evaluate(whole, feed)
    for name, found in run_regions(whole, regions, feed).items():
        assert np.allclose(found, expected[name], rtol=1e-9, atol=1e-9, equal_nan=True)


def taps(steps: int, count: int) -> Program:
    """A sum of exponentials of so many neighbours, step after step."""
    n = Axis("n", 65536)
    made: list[Definition] = []
    last = "x"
    for step in range(steps):
        total: Expr = read(last, n)
        for k in range(count):
            tap = read(last, Index(((n, 1),), k))
            total = op("add", total, op("exp", mul(tap, op("add", tap, const(k + 0.5)))))
        shorter = Axis("n", 65536 - count * (step + 1))
        made.append(Definition(f"y{step}", (shorter,), substitute(total, {n: Index.axis(shorter)}), DType.FLOAT32))
        last = f"y{step}"
    return Program("taps", (Tensor("x", (65536,), DType.FLOAT32),), tuple(made), (last,))


def test_many_operators_without_a_reduction_are_one_region() -> None:
    (one,) = partition(taps(1, 40), device=SM_90)
    assert one.program.operator_count == 1
    # The first of two steps would be done at twelve places: it is stored.
    assert {o for r in partition(taps(2, 12), device=SM_90) for o in r.outputs} == {"y0", "y1"}


def test_regions_are_no_deeper_than_walks_go(worker: Worker) -> None:
    n = Axis("n", 65536)
    made = [
        Definition(f"y{k}", (n,), op("tanh", read(f"y{k - 1}" if k else "x", n)), DType.FLOAT32) for k in range(300)
    ]
    program = Program("deep", (Tensor("x", (65536,), DType.FLOAT32),), tuple(made), ("y299",))
    regions = partition(program, device=SM_90)
    assert 1 < len(regions) < 5
    for r in regions:
        assert run_search(r.program, SM_90, SMALL, worker, Recorder()).proved


def test_products_of_a_few_terms_are_no_products(worker: Worker) -> None:
    """A rotation of each row, five times: one kernel, which reads a row once."""
    m, i, j = Axis("m", 4096), Axis("i", 4), Axis("j", 4)
    made = [
        Definition(
            f"y{n + 1}",
            (m, i),
            op("exp", reduce("sum", j, mul(read("w", i, j), read(f"y{n}", m, j)))),
            DType.FLOAT32,
        )
        for n in range(5)
    ]
    tensors = Tensor("y0", (4096, 4), DType.FLOAT32), Tensor("w", (4, 4), DType.FLOAT32)
    program = Program("p", tensors, tuple(made), ("y5",))
    (region,) = partition(program, device=SM_90)
    assert len(partition(program, RegionBounds(operators=8), SM_90)) > 1
    best = run_search(region.program, SM_90, SMALL, worker, Recorder()).proved[0]
    assert len(best.sgraph.kernels) == 1


def test_what_reduces_a_few_terms_alone_may_be_longer() -> None:
    """There are no loops to find: only what has some is cut at the same length."""

    def steps(count: int, terms: int) -> Program:
        m, c = Axis("m", 65536), Axis("c", terms)
        total: Expr = reduce("sum", c, read("x", m, c))
        for k in range(count):
            total = op("tanh", op("add", total, const(k + 0.5)))
        made = Definition("y", (m,), total, DType.FLOAT32)
        halves = Definition("z", (m,), op("exp", read("y", m)), DType.FLOAT32)
        return Program("p", (Tensor("x", (65536, terms), DType.FLOAT32),), (made, halves), ("z",))

    assert len(partition(steps(34, 3), device=SM_90)) == 1
    assert len(partition(steps(34, 64), device=SM_90)) == 2
    assert len(partition(steps(40, 3), device=SM_90)) == 2


def test_a_chain_is_cut_where_recomputing_costs_more_than_storing() -> None:
    # Wide intermediates over many rows: each product alone, no two in one region.
    wide = partition(chain([4096] * 6, 4096))
    assert [r.roots for r in wide] == [(f"y{n}",) for n in range(5)]
    # A row statistic between two products, and a product down to 8 columns: cheap to have again.
    narrow = partition(chain([4096, 8, 4096, 8, 4096], 4096))
    assert len(narrow) < 4


def test_an_epilogue_joins_the_product_that_it_ends() -> None:
    m, k, n, j = Axis("m", 2048), Axis("k", 2048), Axis("n", 2048), Axis("j", 2048)
    kinds = DType.FLOAT16
    before = chain([2048] * 4, 2048)
    act = Definition("act", (m, n), op("sigmoid", read("y2", m, n)), kinds)
    last = Definition("z", (m, j), reduce("sum", k, mul(read("act", m, k), read("w9", k, j))), kinds)
    w9 = Tensor("w9", (2048, 2048), kinds)
    program = Program("p", (*before.inputs, w9), (*before.definitions, act, last), ("z",))
    roots = [r.roots for r in partition(program, RegionBounds(products=3))]
    assert ("act",) in roots
    assert ("y2",) not in roots


def test_a_quadratic_intermediate_is_never_stored() -> None:
    rows = 4096
    m, j, d = Axis("m", rows), Axis("j", rows), Axis("d", 64)
    s: Expr = reduce("sum", d, mul(read("y2", m, d), read("key", j, d)))
    before = chain([64] * 4, rows)
    score = Definition("score", (m, j), mul(s, const(0.125)), DType.FLOAT16)
    out = Definition(
        "o", (m, d), reduce("sum", j, mul(op("exp", read("score", m, j)), read("key", j, d))), DType.FLOAT16
    )
    tensors = (*before.inputs, Tensor("key", (rows, 64), DType.FLOAT16))
    program = Program("p", tensors, (*before.definitions, score, out), ("o",))
    regions = partition(program, RegionBounds(products=2))
    assert len(regions) > 1
    assert "score" not in {o for r in regions for o in r.outputs}


def test_a_view_is_stored_instead_where_that_merges_axes() -> None:
    regions = partition(load(MODELS / "decoder_layer.onnx"), device=SM_90)
    (output_projection,) = (r for r in regions if "w_o" in r.inputs)
    heads_merged = next(t for t in output_projection.program.inputs if t.name not in ("x", "w_o"))
    assert len(heads_merged.shape) == 2, "the heads are merged by who stores them, not by who reads"


# Equal regions.


def test_what_several_regions_compute_is_stored_once() -> None:
    regions = partition(load(MODELS / "decoder_layer.onnx"), device=SM_90)
    repeated = [part for r in regions for part in (regions[0], r)]
    assert unrepeated(repeated) == regions


def test_what_two_regions_make_besides_something_else_is_made_by_the_first() -> None:
    """As the cosine of a rotary embedding is, where the attentions of two layers are cut into smaller regions."""
    i = Axis("i", 64)
    program = Program(
        "p",
        (Tensor("x", (64,), DType.FLOAT32),),
        (
            Definition("c", (i,), op("exp", read("x", i)), DType.FLOAT32),
            Definition("a", (i,), op("tanh", read("c", i)), DType.FLOAT32),
            Definition("b", (i,), mul(read("c", i), read("x", i)), DType.FLOAT32),
        ),
        ("a", "b"),
    )
    first, second = (Region(subprogram(program, n, ("c", n)), ("c", n)) for n in "ab")
    kept, other = unrepeated((first, second))
    assert kept == first
    assert other.outputs == other.roots == ("b",)
    assert set(other.inputs) == {"c", "x"}


def test_names_do_not_make_regions_different() -> None:
    a = chain([8, 16, 8], 4)
    names = {"x": "u", "w0": "p", "w1": "q", "y0": "r", "y1": "s"}

    m = Axis("row", 4)
    k0, n0, k1, n1 = Axis("a", 8), Axis("b", 16), Axis("c", 16), Axis("d", 8)
    b = Program(
        "other",
        tuple(Tensor(names[t.name], t.shape, t.dtype) for t in a.inputs),
        (
            Definition("r", (m, n0), reduce("sum", k0, mul(read("u", m, k0), read("p", k0, n0))), DType.FLOAT16),
            Definition("s", (m, n1), reduce("sum", k1, mul(read("r", m, k1), read("q", k1, n1))), DType.FLOAT16),
        ),
        ("s",),
    )
    assert canonical(a).key == canonical(b).key
    assert canonical(a).program == canonical(b).program
    wider = replace(b, inputs=tuple(replace(t, dtype=DType.FLOAT32) for t in b.inputs))
    assert canonical(wider).program != canonical(b).program
    assert canonical(chain([8, 16, 16], 4)).key != canonical(a).key


def test_two_equal_layers_share_their_searches(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    program = two_layers()
    regions = partition(program)
    keys = [r.canonical().key for r in regions]
    half = len(keys) // 2
    assert keys[:half] == keys[half:], "the second layer is the first again"
    searched: list[str] = []

    def run(p: Program, *rest: object) -> object:
        searched.append(canonical(p).key)
        return SimpleNamespace(proved=(SimpleNamespace(),))

    monkeypatch.setattr("prism.api.partitioned.run_search", run)
    found = search_regions(program, regions, SM_90, SMALL, [worker], Recorder(), as_one=False)
    assert sorted(searched) == sorted(set(keys))
    assert [r.result for r in found.regions[:half]] == [r.result for r in found.regions[half:]]


def test_a_region_without_a_proof_is_searched_operator_by_operator(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tiny_layer()
    regions = partition(program)

    def run(p: Program, *rest: object) -> object:
        hard = p.operator_count > 10
        return SimpleNamespace(proved=() if hard else (SimpleNamespace(),))

    monkeypatch.setattr("prism.api.partitioned.run_search", run)
    found = search_regions(program, regions, SM_90, SMALL, [worker], Recorder(), as_one=False)
    assert all(r.result.proved for r in found.regions)
    assert len(found.regions) > len(regions)
    feed = draw(program)
    (result,) = run_regions(program, tuple(r.region for r in found.regions), feed).values()
    assert np.allclose(result, evaluate(program, feed)[program.outputs[0]], rtol=1e-9, atol=1e-9)


# The whole.


def picks(search: PartitionedSearch, rank: int) -> list[ProvedSGraph]:
    return [r.result.proved[min(rank, len(r.result.proved) - 1)] for r in search.regions]


@pytest.mark.parametrize("rank", [0, 3, 7])
def test_the_composed_sgraph_computes_the_layer(tiny_search: PartitionedSearch, rank: int) -> None:
    chosen = picks(tiny_search, rank)
    composed = tiny_search.compose([p.sgraph for p in chosen])
    spec.check(composed.sgraph)
    assert len(composed.sgraph.kernels) == sum(len(p.sgraph.kernels) for p in chosen)
    binding = {s.name: 2 if s.name.startswith("S_") else 7 for s in composed.sgraph.symbols}
    feed = {n: a.astype(float) for n, a in inputs(np.random.default_rng(rank), TINY, SEQ).items()}
    (found,) = simulate(composed.sgraph, feed, binding).values()
    expected = formula(feed, TINY)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_a_program_a_little_beyond_the_bounds_is_searched_as_one_region_too(worker: Worker) -> None:
    """Attention's backward pass by its plain formula: statistics of rows are stored, and no score."""

    def attention_backward(q: Any, k: Any, v: Any, do: Any) -> tuple[Any, Any, Any]:
        p = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        dp = do @ v.transpose(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ do

    args = [torch.empty((8, 4096, 64), dtype=torch.bfloat16, device="meta") for _ in range(4)]
    program = trace(attention_backward, args)
    regions = partition(program, device=SM_90)
    assert len(regions) > 1
    known: dict[str, SearchResult] = {}
    found = search_regions(program, regions, SM_90, SearchBudget(), [worker], Recorder(), known)
    (region,) = found.regions
    assert list(known) == [region.canonical.key], "of the parts it is known from what is generated that they are slower"
    best = region.result.proved[0].sgraph
    assert {len(b.shape) for b in best.buffers} == {2}, "rows' statistics"
    first, *_ = best.kernels
    assert {s.tensor for s in statements(first.body) if isinstance(s, Store)} == {b.name for b in best.buffers}


def estimated(_: object, made: float, *rest: object) -> float:
    """Of what is a number of seconds instead of an sGraph."""
    return made


@pytest.mark.parametrize(
    ("launches", "proved_at", "slower", "looked_at", "proofs"),
    [
        (2.0, 2.0, 1.0, 1, 1),
        (3.5, 3.5, 1.0, 2, 1),
        (20.0, 20.0, 1.0, 4, 3),
        (3.5, 20.0, 1.0, 4, 4),
        (7.5, 7.5, 1.1, 4, 1),
        (7.5, 7.5, 1.3, 4, 3),
    ],
)
def test_parts_are_searched_for_as_long_as_they_may_be_faster(
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    launches: float,
    proved_at: float,
    slower: float,
    looked_at: int,
    proofs: int,
) -> None:
    """Three parts, each of which takes three launches and at least one, where the program as one takes so many.

    What of it is proved may be slower than what was generated, and by estimate it is so much slower than by its bound,
    which tells where bounds are near. What loses is not proved.
    """

    def chain(x: Any, w: Any, v: Any, u: Any) -> Any:
        return ((x @ w).relu() @ v).sigmoid() @ u

    sizes = ((64, 64), (64, 96), (96, 32), (32, 80))
    program = trace(chain, [torch.empty(size, device="meta") for size in sizes])
    regions = partition(program, RegionBounds(products=1, outputs=1))
    at_once = whole(program, SM_90)
    assert at_once is not None
    assert len({r.canonical().key for r in regions}) == 3
    alone = at_once.canonical().key
    generated: list[str] = []
    searched: list[str] = []
    monkeypatch.setattr("prism.api.partitioned.pairs", lambda *_: [])

    def begun(p: Program, *_: object) -> object:
        generated.append(canonical(p).key)
        many = launches if generated[-1] == alone else 3
        least = SM_90.launch_overhead_s * many
        by_estimate = slower * least if generated[-1] == alone else least
        return SimpleNamespace(outlook=lambda *_: (SimpleNamespace(seconds=least, sgraph=by_estimate),))

    def run(p: Program, *rest: object) -> object:
        searched.append(canonical(p).key)
        least = SM_90.launch_overhead_s * (proved_at if searched[-1] == alone else 3)
        by_estimate = slower * least if searched[-1] == alone else least
        return SimpleNamespace(proved=(SimpleNamespace(seconds=least, sgraph=by_estimate),), enodes=1)

    monkeypatch.setattr("prism.api.partitioned._estimated", estimated)
    monkeypatch.setattr("prism.api.partitioned.Search", begun)
    monkeypatch.setattr("prism.api.partitioned.run_search", run)
    found = search_regions(program, regions, SM_90, SMALL, [worker], Recorder())
    assert generated[0] == alone
    assert len(set(generated + searched)) == looked_at
    assert len(generated) == len(set(generated))
    assert len(searched) == proofs
    assert (len(found.regions) == 1) == (slower * proved_at <= 9)


def test_names_in_the_whole_are_its_own(tiny_search: PartitionedSearch) -> None:
    chosen = picks(tiny_search, 0)
    composed = tiny_search.compose([p.sgraph for p in chosen])
    for p, names in zip(chosen, composed.names, strict=True):
        assert set(names.launches) == {x.name for x in p.sgraph.launches}
        assert set(names.symbols) == {s.name for s in p.sgraph.symbols}
    launches = [x for n in composed.names for x in n.launches.values()]
    assert launches == [x.name for x in composed.sgraph.launches]
    symbols = [s for n in composed.names for s in n.symbols.values()]
    assert {*symbols} == {s.name for s in composed.sgraph.symbols}
    assert {t.name for t in composed.sgraph.inputs} == {t.name for t in tiny_layer().inputs}
    whole = tiny_search.whole(chosen, composed)
    granted = [replace(p, verdict=p.verdict.assuming([f"of {n}"])) for n, p in enumerate(chosen)]
    assumed = tiny_search.whole(granted, composed).verdict
    assert assumed.assumptions == tuple(f"of {n}" for n in range(len(chosen)))
    assert assumed.reason.count("assuming") == 1
    assert whole.verdict
    reads_of_all = {t for k in composed.sgraph.kernels for t in k.reads}
    assert "region" not in text(composed.sgraph)
    assert {t.name for t in composed.sgraph.inputs} <= reads_of_all


def test_a_tensor_is_handed_over_as_the_reader_declares_it(tiny_search: PartitionedSearch) -> None:
    program = tiny_search.program
    chosen = picks(tiny_search, 0)
    parts = [Part(p.sgraph, r.canonical.names) for p, r in zip(chosen, tiny_search.regions, strict=True)]
    outputs = [program.definition(n).tensor for n in program.outputs]
    with pytest.raises(IllegalIRError, match="nothing before writes it"):
        compose("p", program.inputs, outputs, parts[1:])
    with pytest.raises(IllegalIRError, match="is never written"):
        compose("p", program.inputs, outputs, parts[:-1])
    with pytest.raises(IllegalIRError, match="which is there already"):
        compose("p", program.inputs, outputs, [parts[0], *parts])
    halves = [replace(t, dtype=DType.FLOAT16) for t in program.inputs]
    with pytest.raises(IllegalIRError, match="float16"):
        compose("p", halves, outputs, parts)


def cosines(a: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """A triplet loss of cosines."""
    a, p, q = (torch.nn.functional.normalize(x, dim=-1) for x in (a, p, q))
    return torch.relu((a * q).sum(-1) - (a * p).sum(-1) + 0.2).mean()


def gradient(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    given = tuple(t.detach().requires_grad_() for t in given)
    with torch.enable_grad():
        return torch.autograd.grad(cosines(*given), given)


def test_what_outputs_share_is_searched_as_one_further_beyond_the_bounds(worker: Worker) -> None:
    program = trace(gradient, [torch.empty(64, 32, device="meta")] * 3, check=False)
    regions = partition(program, device=SM_90)
    assert len(regions) > 1
    assert not searchable(program, SM_90)
    found = search_regions(program, regions, SM_90, SMALL, [worker], Recorder())
    (region,) = found.regions
    sgraph = region.result.proved[0].sgraph
    assert len(sgraph.kernels) == 1
    given = arrays(program, 0)
    wanted = evaluate(program, given)
    got = simulate(
        sgraph,
        {c: given[n] for c, n in region.canonical.names.items() if n in given},
        {s.name: 8 for s in sgraph.symbols},
    )
    for mine, name in zip(got.values(), program.outputs, strict=True):
        np.testing.assert_allclose(mine, wanted[name], rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")
@pytest.mark.usefixtures("unoptimised")
def test_equal_regions_share_their_sources_and_what_was_compiled_of_them(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def layers(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(x @ a + b) @ c + d)

    monkeypatch.setenv("PRISM_CPP_CACHE", str(tmp_path / "cache"))
    given = [torch.randn(s) for s in ((12, 24), (24, 24), (24,), (24, 24), (24,))]
    program = trace(layers, tuple(given))
    regions = partition(program, RegionBounds(1, 1, 8, 1))
    found = search_regions(program, regions, SM_90, SMALL, [worker], Recorder(), as_one=False)
    (kind,) = found.distinct.values()
    assert len(found.regions) == 2
    chosen = kind.result.proved[0].sgraph
    composed = found.compose([chosen, chosen])
    own = Config({s.name: 8 for s in chosen.symbols}, {}, {})
    config = Config.together(own.renamed(n.symbols, n.launches) for n in composed.names)
    assert len(config.symbols) == len(own.symbols) == len(composed.sgraph.symbols)
    alone, whole = emit_module(chosen), emit_module(composed.sgraph, configs={"cpu": [config]})
    assert len([n for n in whole.extra if n.endswith("kernel.cpp")]) == len(chosen.launches)
    modules = []
    for name, source, tiles in (("alone", alone, own), ("whole", whole, config)):
        (tmp_path / name).mkdir()
        modules.append(write_module(source, tmp_path / name / "kernels.py"))
        assert compile_module(modules[-1], tiles).library
        assert len([*(tmp_path / "cache").glob("launch_*.o")]) == len(chosen.launches), name
    made = getattr(load_module(modules[-1]), whole.entry)(*given)
    assert torch.allclose(made, layers(*given), rtol=1e-4, atol=1e-4)
    # Other tiles are another kernel.
    assert compile_module(modules[0], Config(dict.fromkeys(own.symbols, 4), {}, {})).library
    assert len([*(tmp_path / "cache").glob("launch_*.o")]) == 2 * len(chosen.launches)


@pytest.mark.slow
def test_the_whole_layer_is_found_and_proved() -> None:
    program = load(MODELS / "decoder_layer.onnx")
    with Worker() as first, Worker() as second:
        regions = partition(program, device=SM_90)
        found = search_regions(program, regions, SM_90, SearchBudget(), [first, second], Recorder())
    assert all(r.result.proved for r in found.regions)
    assert all(r.result.refuted == 0 for r in found.regions)
    composed = found.compose([r.result.proved[0].sgraph for r in found.regions])
    spec.check(composed.sgraph)
    assert len(composed.sgraph.kernels) < program.operator_count / 2


SAME = """
from examples.common import MODELS
from prism.frontend.onnx.reader import load
from prism.generate.partition import partition
from dataclasses import replace
from prism.cost.device import DEVICES
for launch in (1e-6, 5e-6):
    for r in partition(load(MODELS / "decoder_layer.onnx"), device=replace(DEVICES["sm_80"], launch_overhead_s=launch)):
        print(r.program, r.canonical().key)
"""


def test_partition_does_not_depend_on_the_process() -> None:
    root = str(Path(__file__).resolve().parent.parent)
    answers = [
        subprocess.run(
            [sys.executable, "-c", SAME],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", *(["2"] if run_slow() else []))
    ]
    with contextlib.redirect_stdout(io.StringIO()) as here:
        exec(SAME, {})
    assert {*answers, here.getvalue()} == {answers[0]}
    assert "program decoder_layer_0" in answers[0]


def test_search_yields_sgraphs_of_the_whole_program() -> None:
    program = tiny_layer()
    with prism_search(program) as search:
        best, other = next(search), next(search)
        spec.check(best.sgraph)
        assert {t.name for t in best.sgraph.outputs} == set(program.outputs)
        assert best.seconds <= other.seconds
        assert best.sgraph != other.sgraph
        assert search.proved == (best, other)
        assert search.result().proved == (best, other)
    assert next(search, None) is None


def test_the_number_of_workers_does_not_show(worker: Worker) -> None:
    program = chain([32, 48, 32, 64, 32, 16, 8, 24], 20)
    regions = partition(program, RegionBounds(products=2))
    assert len(regions) > 2
    found = [search_regions(program, regions, SM_90, SMALL, [worker], Recorder())]
    with Worker() as other:
        found.append(search_regions(program, regions, SM_90, SMALL, [worker, other], Recorder()))
    one, two = ([[(key(p.sgraph), p.verdict) for p in r.result.proved] for r in f.regions] for f in found)
    assert one == two
    assert all(one)


def test_optimize_writes_one_module_for_all_regions(tmp_path: Path) -> None:
    program = chain([32, 48, 32, 64, 32, 16, 24, 40], 20)
    assert len(partition(program, device=SM_90)) > 1
    made = optimize(program, target="sm_90", out=tmp_path / "out", trials=1, budget=SMALL)
    assert len(repr(made)) < 200
    assert "estimated" in repr(made)
    said = str(made).splitlines()
    assert said[1].startswith("Times are estimated for sm_90")
    assert said[-1] == str(tmp_path / "out")
    assert str(made.search.proved[0].sgraph) in str(made.search)
    report = made.report
    assert report.verdict == "proved"
    assert "region by region" in report.reason
    assert report.best_seconds < report.baseline_seconds
    assert 1 < report.kernel_count == len(report.kernels) < report.operator_count
    assert {"search", "composition"} <= set(report.stages)
    assert set(report.check.worst) > {"normal"}
    assert max(report.check.worst.values()) <= 1
    module = (tmp_path / "out" / "chain.py").read_text()
    assert module.count("def chain(") == 1
    assert module.count("@triton.jit") == report.kernel_count


QUICK = SearchBudget(max_sgraphs=1, max_families=4)
WRONG = VerificationError("no proved kernel passed the numeric gate", why="8.0 times")
ROUNDS_WORSE = NoImprovementError("nothing that was proved rounds as well as what was given", why="3.5 times")


def refusing(monkeypatch: pytest.MonkeyPatch, operators: int, error: Exception) -> None:
    """No kernels of regions of so many operators, or more, will do."""
    chosen = choosing.choice_of_search

    def choose(request: Request, *rest: Any) -> object:
        if request.program.operator_count >= operators:
            raise error
        return chosen(request, *rest)

    monkeypatch.setattr(composing, "choice_of_search", choose)


@pytest.mark.parametrize(
    "error",
    [
        ROUNDS_WORSE,
        WRONG,
        pytest.param(
            choosing._NothingRunsError("no configuration could be compiled and run", why="3 times compile"),
            marks=pytest.mark.slow,
        ),
        pytest.param(CompilerError("no kernel could be compiled", why="3 times compile"), marks=pytest.mark.slow),
    ],
    ids=["rounding", "wrong values", "nothing runs", "nothing compiles"],
)
def test_a_region_for_which_nothing_will_do_is_kept_in_parts(
    error: PrismError, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = chain([16] * 8, 20)
    largest, other = partition(program, device=SM_90)
    count = largest.program.operator_count
    assert count > other.program.operator_count
    refusing(monkeypatch, count, error)
    report = optimize(program, target="sm_90", trials=1, budget=QUICK, only_better=False).report
    (said,) = [w for w in report.warnings if "parts" in w]
    assert f"({', '.join(largest.outputs)})" in said
    assert error.what in said
    assert error.why in said
    assert report.verdict == "proved"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ROUNDS_WORSE, ExitCode.NO_IMPROVEMENT),
        (WRONG, ExitCode.VERIFICATION_FAILED),
        (ZeroDivisionError("8.0"), ExitCode.INTERNAL),
    ],
    ids=["rounding", "wrong values", "a bug"],
)
def test_a_region_that_cannot_be_kept_ends_the_run_by_its_name(
    error: Exception, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, 1, error)
    said = of_part(error)
    with pytest.raises(type(said), match=f"\\(y[0-9]\\): {said.what}: {said.why}") as caught:
        optimize(chain([16] * 8, 20), target="sm_90", trials=1, budget=QUICK)
    assert caught.value.exit_code is code
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.one_line(), again.exit_code, again.in_part) == (caught.value.one_line(), code, True)


def test_a_region_whose_search_fails_goes_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    program = chain([16] * 8, 20)
    largest = max((r.program for r in partition(program, device=SM_90)), key=lambda p: p.operator_count)

    def fails(of: Program, *rest: Any) -> SearchResult:
        if of.operator_count >= largest.operator_count:
            raise UnsupportedError("an index", why="for a test")
        return run_search(of, *rest)

    monkeypatch.setattr(partitioned, "run_search", fails)
    report = optimize(program, target="sm_90", trials=1, budget=QUICK, only_better=False).report
    assert sum("failed: an index: for a test" in w for w in report.warnings) == 1
    assert report.verdict == "proved"


def chained() -> Program:
    """A product and a chain of pointwise operators."""

    def of(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        for _ in range(2):
            y = torch.tanh(torch.sigmoid(y) * 2)
        return y

    return trace(of, [torch.empty(32, 32, device="meta") for _ in range(2)], name="p")


def test_a_program_in_which_nothing_is_proved_is_cut_into_regions() -> None:
    """Its one region has more operators than a kernel may have here; one by one they are put together again."""
    program = chained()
    budget = SearchBudget(max_kernels=1, max_ops=4)
    assert len(partition(program)) == 1
    with prism_search(program, budget=budget) as search:
        best = next(search)
        spec.check(best.sgraph)
        assert 1 < len(best.sgraph.kernels) < program.operator_count
        assert search.proved == search.result().proved == (best,)


@pytest.mark.slow
def test_and_optimized_operator_by_operator() -> None:
    program, budget = chained(), SearchBudget(max_kernels=1, max_ops=4)
    with pytest.raises(NoImprovementError, match="nothing beats"):
        optimize(program, target="sm_90", budget=budget, trials=1)


def test_outputs_that_are_made_of_each_other_share_a_region() -> None:
    """A cell's state and what it puts out of it, both element by element, after products that are cut off."""

    def cell(
        x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, w: torch.Tensor, u: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        i, f, o, n = (x @ w + h @ u).chunk(4, -1)
        state = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(n)
        return torch.sigmoid(o) * torch.tanh(state), state

    shapes = ((256, 1024), (256, 1024), (256, 1024), (1024, 4096), (1024, 4096))
    made = [torch.empty(s, dtype=torch.bfloat16, device="meta") for s in shapes]
    regions = partition(trace(cell, made, check=False), device=device("sm_90"))
    assert [len(r.outputs) for r in regions] == [1, 2]
    assert not set(regions[0].outputs) & set(regions[1].outputs)


@pytest.mark.parametrize(
    ("function", "made", "moves"),
    [
        (lambda x: x.softmax(-1), [torch.zeros(64, 32)], 4 * 2 * 64 * 32),
        (lambda x, y: (x @ y) * x[0, 0], [torch.zeros(16, 32), torch.zeros(32, 8)], 4 * (16 * 32 + 32 * 8 + 16 * 8)),
        (lambda x: x[4:, ::2] + 1, [torch.zeros(64, 32)], 4 * 2 * 60 * 16),
        (lambda x: x.repeat(4, 1), [torch.zeros(64, 32)], 4 * 5 * 64 * 32),
        (lambda x: x.diagonal() * 2, [torch.zeros(64, 64)], 4 * 2 * 64),
        (lambda x, y: x.exp(), [torch.zeros(64, 32), torch.zeros(8)], 4 * 2 * 64 * 32),
        # What is looked up is not known.
        (lambda x, i: x[i], [torch.zeros(64, 32), torch.zeros(2, dtype=torch.int64)], 4 * 2 * 32 + 8 * 2),
    ],
)
def test_whatever_computes_a_program_moves_what_it_reads_and_makes(
    function: Any, made: list[torch.Tensor], moves: int
) -> None:
    assert moved(trace(function, made, check=False)) == moves


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("launches", [1.5, 20.0])
def test_a_whole_that_computes_products_again_comes_after_its_parts(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, launches: float, limited: bool
) -> None:
    """Two gates are halves of one product, which a kernel without the whole of it computes twice.

    Of what loses by what was generated nothing is proved.
    """

    def gated(x: Any, w: Any) -> Any:
        opened, value = (x @ w).chunk(2, -1)
        return opened.sigmoid() * value

    program = trace(gated, [torch.empty(size, device="meta") for size in ((64, 64), (64, 96))])
    regions = partition(program, ONE_BY_ONE)
    at_once = whole(program, SM_90)
    assert at_once is not None
    assert len(regions) == 3
    time = SearchTime(Deadline.after(1000.0)) if limited else ENDLESS
    alone, parts = at_once.canonical().key, [r.canonical().key for r in regions]
    generated: list[tuple[str, float]] = []
    searched: list[str] = []
    monkeypatch.setattr("prism.api.partitioned.pairs", lambda *_: [])

    def found(p: Program) -> object:
        took = SM_90.launch_overhead_s * (launches if canonical(p).key == alone else 3)
        return SimpleNamespace(seconds=took, sgraph=took)

    def begun(p: Program, _: object, budget: SearchBudget, *rest: object) -> object:
        generated.append((canonical(p).key, budget.below))
        return SimpleNamespace(outlook=lambda *_: (found(p),))

    def run(p: Program, *rest: object) -> object:
        searched.append(canonical(p).key)
        return SimpleNamespace(proved=(found(p),), enodes=1, interrupted=False)

    monkeypatch.setattr("prism.api.partitioned._estimated", estimated)
    monkeypatch.setattr("prism.api.partitioned.Search", begun)
    monkeypatch.setattr("prism.api.partitioned.run_search", run)
    regional = search_regions(program, regions, SM_90, SMALL, [worker], Recorder(), time=time)
    assert generated == [(p, math.inf) for p in parts] + [(alone, pytest.approx(9 * SM_90.launch_overhead_s))]
    chosen = parts if launches > 9 else [alone]
    assert sorted(searched) == sorted(chosen)
    assert [r.canonical.key for r in regional.regions] == chosen


def test_what_may_be_one_launch_is_not_left_out_for_its_launches(worker: Worker) -> None:
    """Products over other axes look like a launch each: something else takes a little more than all as one."""

    def projections(x: Any, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
        return x @ q, x @ k, x @ v

    sizes = ((16, 1024), (1024, 2048), (1024, 512), (1024, 256))
    program = trace(projections, [torch.empty(size, dtype=torch.bfloat16, device="meta") for size in sizes])
    best = run_search(program, SM_90, SearchBudget(), worker, Recorder()).proved[0]
    assert best.sgraph.together
    below = best.seconds + SM_90.launch_overhead_s / 2
    assert run_search(program, SM_90, SearchBudget(below=below), worker, Recorder()).proved


def test_one_region_that_stores_more_than_the_outputs_is_searched_without() -> None:
    """Rows that change places in two dimensions after a norm, which is not stored for nobody and computed again."""

    def rolled(x: torch.Tensor) -> torch.Tensor:
        return torch.roll(F.layer_norm(x.float(), (x.shape[-1],)).to(x.dtype), (-4, -4), (1, 2))

    program = trace(rolled, (torch.empty(8, 64, 64, 192, dtype=torch.bfloat16, device="meta"),))
    target = device("sm_90")
    (cut,) = partition(program, device=target)
    assert len(cut.outputs) > 1
    with Worker() as worker:
        found = search_regions(program, (cut,), target, SearchBudget(max_sgraphs=4), [worker], Recorder())
    assert [r.region.outputs for r in found.regions] == [program.outputs]
