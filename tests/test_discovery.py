"""What the search finds by itself, from the rules alone, as properties of the best sGraphs.

Nothing below the front end knows any of these workloads. Run with `-s` to see how long each search takes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from discovery_programs import SMALL, WORKLOADS, contracted_scale, program, small_program
from quick import slow_but
from sgraph_programs import task
from sgraph_properties import (
    accumulators,
    contracts,
    loads,
    looped,
    materialised,
    passes,
    plain_operands,
    plain_products,
    repeats,
    rescaled,
    scans,
    sources,
    splits,
    stages,
    stores,
    sums,
    tile_shares,
    writes,
)
from sgraph_simulator import simulate
from short_calls import prove_programs
from torch import Tensor

from prism.api import trace
from prism.api.region_search import SearchBudget, SearchResult, run_search
from prism.cost.constraints import RoleBounds
from prism.cost.device import device
from prism.egraph.language import Budget
from prism.egraph.worker import Worker
from prism.events import Recorder
from prism.generate.enumerate import Bounds, generate
from prism.ir.kit import statements
from prism.program.evaluate import evaluate
from prism.program.inline import inline
from prism.program.verdict import Status
from prism.sgraph import show
from prism.sgraph.denote import denote, expand
from prism.sgraph.nodes import Kernel, Pointwise, SGraph

Search: TypeAlias = Callable[..., SearchResult]

ENODES = 3000

REPEATED = frozenset({
    "attention",  # causal_attention, without a mask
    "cross_entropy_mean",  # cross_entropy, and its mean
    "four_inputs",  # as x_times_silu_y
    "int4_linear",  # packed_int4_linear, unpacked
    "int8_linear",  # int8_zero_linear, without zero points
    "joined_gate",  # gated_mlp, with one weight and without the second product
    "layer_norm_linear_tall",  # layer_norm_linear, with many rows
    "linear_attention",  # linear_attention_normalised, without the quotient
    "logsumexp",  # cross_entropy, without the label
    "lora_square",  # lora, with equal extents
    "masked_attention",  # causal_attention, with a tensor for a mask
    "ngpt_residual",  # residual_norm, by another norm
    "one_input",  # as x_times_silu_y
    "packed_int4_linear",  # int8_zero_linear, by group and unpacked
    "right_first",  # left_first, the other way round
    "rms_norm_gated",  # rms_norm_linear, twice
    "row_scale",  # as x_times_silu_y
    "rope_attention",  # qk_norm_attention, and rotations
    "running_twice",  # running_softmax, with sums of sums
    "softmax_short",  # softmax, in one tile
    "x_plus_silu_y",  # as x_times_silu_y
})  # fmt: skip
"""Workloads that take the path of another one, which is named."""


def once(names: Iterable[str]) -> list[Any]:
    """The workloads as parameters, those marked slow that take another one's path."""
    return slow_but(frozenset(names) - REPEATED, names)


@pytest.fixture(scope="module")
def search(worker: Worker) -> Search:
    """The search of a workload, each once in a module."""

    @cache
    def run(name: str, max_kernels: int = SearchBudget().max_kernels) -> SearchResult:
        budget = SearchBudget(max_kernels=max_kernels)
        found = run_search(program(name), device("sm_90"), budget, worker, Recorder())
        seconds = ", ".join(f"{stage} {s:.2f}" for stage, s in found.seconds.items())
        over = " OVER 0.5 s" if sum(found.seconds.values()) > 0.5 else ""
        print(f"\n{name}: {seconds} s, {found.enodes} e-nodes, {len(found.proved)} proved{over}", end="")
        return found

    return run


def best(result: SearchResult) -> SGraph:
    """The sGraph that the search puts first."""
    return result.proved[0].sgraph


def single(result: SearchResult) -> tuple[SGraph, Kernel]:
    """The best sGraph of one kernel, second stages of splits counted, and that kernel."""
    for p in result.proved:
        if len(p.sgraph.kernels) == 1:
            return p.sgraph, p.sgraph.kernels[0]
    pytest.fail("no sGraph of one kernel was found")


def one_pass(sgraph: SGraph, *tensors: str) -> bool:
    """Whether each of the tensors is loaded in one nest of loops of one kernel, every tile of it once there."""
    return all(passes(sgraph, t) == 1 and not repeats(sgraph, t) for t in tensors)


@pytest.mark.parametrize("name", once(WORKLOADS))
def test_the_e_graph_saturates_small_and_everything_is_proved(name: str, search: Search) -> None:
    found = search(name)
    assert found.stopped == "saturated"
    assert found.enodes < ENODES
    assert found.proved
    assert (found.refuted, found.unknown) == (0, 0)


FEW = {"decayed_attention", "gqa_decode", "layer_norm_linear"}


@pytest.mark.parametrize("name", slow_but(FEW, SMALL))
def test_what_is_proved_computes_the_program(name: str, worker: Worker) -> None:
    """At extents of a few elements, tile by tile in numpy, with tiles of any size."""
    p = small_program(name)
    reference = tuple(f.expr for f in inline(p))
    classes = worker.explore(reference, Budget())
    bounds = Bounds(max_sgraphs=16, roles=RoleBounds(short=0))
    rng, tiles = np.random.default_rng(0), random.Random(0)
    arrays = {t.name: rng.normal(size=t.shape) if t.dtype.is_float else rng.integers(0, 9, t.shape) for t in p.inputs}
    inputs = {n: a.astype(np.float64) for n, a in arrays.items()}
    expected = evaluate(p, inputs)
    for c in generate(replace(task(p), classes=classes), bounds).candidates:
        meaning = denote(c.sgraph)
        worker.explore(tuple(expand(e, meaning.split) for e in reference), Budget())
        (verdict,) = worker.prove([meaning.outputs])
        assert verdict
        binding = {s.name: tiles.choice([1, 2, 4, 8]) for s in c.sgraph.symbols}
        got = simulate(c.sgraph, inputs, binding)
        for output, value in expected.items():
            np.testing.assert_allclose(got[output], value, rtol=1e-8, atol=1e-9, err_msg=str(binding))


# Norms into linears


def test_rms_norm_and_linear_are_one_pass_over_the_weight(search: Search) -> None:
    found = search("rms_norm_linear")
    assert one_pass(best(found), "x", "g", "w")
    assert stages(best(found)) == 1
    graph, kernel = single(found)
    assert one_pass(graph, "x", "g", "w")
    # The product and the mean square are accumulated together; the norm's division comes after both.
    (axis,) = looped(kernel)
    assert len(accumulators(kernel, axis)) == 2
    assert {frozenset({"x", "g"}), frozenset({"w"})} in map(set, plain_products(kernel))


def test_a_norm_of_as_many_columns_as_the_product_has_is_in_its_loop(search: Search) -> None:
    """The norm's axis is called as the product's columns are, and yet runs with what the product contracts."""
    graph = best(search("rms_norm_linear_square"))
    assert one_pass(graph, "x", "g", "w")
    assert materialised(graph) == ()


@pytest.mark.slow
def test_rms_norm_into_two_gated_linears_is_one_kernel(search: Search) -> None:
    found = search("rms_norm_gated")
    assert stages(best(found)) == 1
    graph, kernel = single(found)
    assert one_pass(graph, "x", "g", "w1", "w3")
    (axis,) = looped(kernel)
    assert len(accumulators(kernel, axis)) == 3
    assert {frozenset({"x", "g"}), frozenset({"w1"})} in map(set, plain_products(kernel))
    assert {frozenset({"x", "g"}), frozenset({"w3"})} in map(set, plain_products(kernel))


def test_layer_norm_is_folded_into_the_linear_with_column_sums(search: Search) -> None:
    """In one kernel the folded form reads x once, beside its mean and its squares about it; the plain one, twice."""
    graph, kernel = single(search("layer_norm_linear", max_kernels=1))
    assert one_pass(graph, "x", "w", "g", "b")
    assert any({"x", "g"} in p and {"w"} in p for p in plain_products(kernel))
    columns = [set(s) for s in sums(kernel, "w") if "x" not in s]
    assert {"w", "g"} in columns
    assert {"w", "b"} in columns


@pytest.mark.slow
def test_layer_norm_is_not_folded_where_the_product_is_what_costs(search: Search) -> None:
    """At 65536 rows every program would sum the columns again, beside a product that is bound by arithmetic."""
    graph = best(search("layer_norm_linear_tall"))
    assert {"w", "g"} not in [set(s) for k in graph.kernels for s in sums(k, "w")]


def test_a_norm_over_several_axes_is_one_kernel(search: Search) -> None:
    """Each program has a whole group: the channels of it and all of their places."""
    graph = best(search("group_norm"))
    assert len(graph.kernels) == 1
    assert passes(graph, "x") == 1


# Products


def test_gate_and_up_are_one_pass_over_the_input(search: Search) -> None:
    graph = best(search("gated_mlp"))
    assert one_pass(graph, "x", "w1", "w3", "w2")
    assert stages(graph) == 2
    assert materialised(graph) == ((16, 14336),)
    first = graph.kernels[0]
    assert {frozenset(map(frozenset, p)) for p in plain_products(first)} == {
        frozenset({frozenset({"x"}), frozenset({"w1"})}),
        frozenset({frozenset({"x"}), frozenset({"w3"})}),
    }


@pytest.mark.slow
def test_gate_and_up_in_one_weight_are_one_pass_over_the_input(search: Search) -> None:
    found = search("joined_gate")
    assert stages(best(found)) == 1
    assert passes(best(found), "x") == 1
    _, kernel = single(found)
    assert len(plain_products(kernel)) == len(accumulators(kernel)) == 2


@pytest.mark.parametrize("name", once(["lora", "lora_square"]))
def test_lora_never_materialises_the_low_rank_product(name: str, search: Search) -> None:
    found = search(name)
    assert stages(best(found)) == 1
    assert materialised(best(found)) == ()
    graph, kernel = single(found)
    assert one_pass(graph, "x", "w", "a", "b")
    assert len(looped(kernel)) == 1


@pytest.mark.parametrize(
    ("name", "first", "never"),
    [("left_first", "xa", "ab"), pytest.param("right_first", "ab", "xa", marks=pytest.mark.slow)],
)
def test_two_products_in_the_cheaper_order(name: str, first: str, never: str, search: Search) -> None:
    graph = best(search(name))
    assert contracts(graph, *first)
    assert not contracts(graph, *never)


@pytest.mark.parametrize("name", once(["linear_attention", "linear_attention_normalised"]))
def test_linear_attention_is_associated_anew(name: str, search: Search) -> None:
    graph = best(search(name))
    assert contracts(graph, "k", "v")
    assert not contracts(graph, "q", "k")
    assert not stores(graph, 16384, 64)
    assert passes(graph, "v") == passes(graph, "q") == 1


# Prefix sums


def test_the_state_of_linear_attention_is_carried_from_chunk_to_chunk(search: Search) -> None:
    """Two passes: the states as they were before each chunk, and everything else of the chunks at once."""
    found = search("chunked_linear_attention")
    assert any(scans(k) for k in best(found).kernels)
    two = [p.sgraph for p in found.proved if stages(p.sgraph) == 2]
    graph = next(g for g in two if not looped(g.kernels[1]))
    first, _ = graph.kernels
    assert len(scans(first)) == 1
    assert looped(first) == (scans(first)[0].axis,)
    assert materialised(graph) == ((32, 64, 128, 128),)
    assert one_pass(graph, "q")


def test_the_softmax_of_prefix_sums_takes_two_passes(search: Search) -> None:
    """The sums go on in each; the first one's maximum and sum of exponentials are accumulated together."""
    graph, kernel = single(search("running_softmax"))
    assert passes(graph, "x") == 2
    assert len(scans(kernel)) == 2
    assert rescaled(graph) == 1


@pytest.mark.slow
def test_prefix_sums_of_prefix_sums_share_a_loop(search: Search) -> None:
    graph = best(search("running_twice"))
    assert one_pass(graph, "x", "g")
    (kernel,) = graph.kernels
    assert len(scans(kernel)) == 2
    assert len(looped(kernel)) == 1


def test_decays_are_summed_up_once_for_queries_and_keys(search: Search) -> None:
    """The sums stand in the exponent once as they are and once negated: one buffer serves both."""
    graph = best(search("decayed_attention"))
    assert materialised(graph) == ((8, 4093),)
    assert len(graph.kernels) == 2
    assert one_pass(graph, "g", "k", "v")


def test_a_chunk_of_a_state_space_model_is_one_kernel(search: Search) -> None:
    found = search("state_space_chunk")
    assert (found.refuted, found.unknown) == (0, 0)
    graph = best(found)
    assert len(graph.kernels) == 1
    assert scans(graph.kernels[0])


# Attention


@pytest.mark.parametrize("name", once(["attention", "causal_attention", "masked_attention"]))
def test_attention_is_one_kernel_with_rescaled_accumulators(name: str, search: Search) -> None:
    graph = best(search(name))
    assert len(graph.kernels) == 1
    assert graph.buffers == ()
    assert one_pass(graph, "q", "k", "v")
    assert rescaled(graph) == 2  # the softmax's sum, and its product with the values


def test_decode_attention_splits_the_keys_and_heads_of_a_group_share_them(search: Search) -> None:
    graph = best(search("gqa_decode"))
    assert [a.extent for a in splits(graph)] == [32768]
    first, second = graph.kernels
    assert one_pass(graph, "q", "k", "v")
    assert rescaled(graph) == 2
    assert materialised(graph) == ()
    assert not stores(graph, 32768)
    # 32 query heads, 8 of keys: a tile holds queries of one group, and keys that do not depend on which.
    assert tile_shares(first, "k", 4)
    assert tile_shares(first, "v", 4)
    # The second stage reads nothing but what the first found.
    assert not set(second.reads) & {"q", "k", "v"}


def test_attention_over_a_latent_cache_splits_it_and_reads_each_tile_once(search: Search) -> None:
    """The cache is contracted with the queries and, as it lies, with the weights: one load, all 512 lanes in a tile."""
    graph = best(search("latent_decode"))
    assert [a.extent for a in splits(graph)] == [4096]
    assert stages(graph) == 1
    assert materialised(graph) == ()
    first, second = graph.kernels
    assert one_pass(graph, "q", "qr", "c", "kr")
    assert len(loads(first, "c")) == 1
    assert rescaled(graph) == 2
    assert {frozenset({"q"}), frozenset({"c"})} in map(set, plain_products(first))
    assert {frozenset({"qr"}), frozenset({"kr"})} in map(set, plain_products(first))
    assert tile_shares(first, "c", 128)
    assert not set(second.reads) & {"q", "qr", "c", "kr"}


@pytest.mark.parametrize("name", once(["qk_norm_attention", "rope_attention"]))
def test_norms_of_queries_and_keys_are_folded_into_attention(name: str, search: Search) -> None:
    """All of it in one kernel; where rotating keys for every tile of queries costs more, they are stored once."""
    assert not stores(best(search(name)), 4096, 4096)
    assert rescaled(best(search(name))) == 2
    graph, kernel = single(search(name, max_kernels=1))
    assert one_pass(graph, "q", "k", "v", "gq", "gk")
    assert rescaled(graph) == 2
    # Of one side at least, the scores are products of what no norm has divided: that division comes after the sum.
    assert any({"q", "k"} & operand for operand in plain_operands(kernel))


def test_a_difference_of_attentions_computes_each_of_the_scores_once(search: Search) -> None:
    """(p - w p2) @ v: no division by a sum over the keys stays within the sum, so nothing waits for it."""
    graph = best(search("differential_attention"))
    assert not stores(graph, 4096, 4096)
    assert one_pass(graph, "q", "k", "q2", "k2")
    assert rescaled(graph) == 4


# Rows


def test_a_long_softmax_is_one_pass_for_its_statistics_and_one_that_writes(search: Search) -> None:
    graph, kernel = single(search("softmax"))
    assert graph == best(search("softmax"))
    assert passes(graph, "x") == 2
    assert [a.shift is not None for a in accumulators(kernel)] == [False, True]


@pytest.mark.slow
def test_a_short_softmax_holds_its_row(search: Search) -> None:
    graph = best(search("softmax_short"))
    assert len(graph.kernels) == 1
    assert one_pass(graph, "x")


@pytest.mark.parametrize(
    ("name", "sums_"), [pytest.param("logsumexp", 2, marks=pytest.mark.slow), ("cross_entropy", 2)]
)
def test_one_pass_over_the_logits(name: str, sums_: int, search: Search) -> None:
    """Nothing beside maximum and sum: a label's logit is looked up, and whether there is one is told by its place."""
    graph, kernel = single(search(name))
    assert graph == best(search(name))
    assert one_pass(graph, "x")
    assert (rescaled(graph), len(accumulators(kernel))) == (1, sums_)


@pytest.mark.parametrize("name", [pytest.param("entropy", marks=pytest.mark.slow), "focal"])
def test_a_mean_under_a_softmax_and_a_power_of_a_probability_take_one_pass(name: str, search: Search) -> None:
    graph, kernel = single(search(name))
    assert graph == best(search(name))
    assert one_pass(graph, *(t.name for t in graph.inputs))
    assert len({a.shift for a in accumulators(kernel) if a.shift}) == 1


def test_a_divergence_keeps_its_guard(search: Search) -> None:
    """p log p is 0 where p is, as an infinite logit makes it, so the sum of a row comes before its terms."""
    graph, kernel = single(search("divergence"))
    assert graph == best(search("divergence"))
    assert any(isinstance(s, Pointwise) and s.op == "where" for s in statements(kernel.body))
    assert [passes(graph, t.name) for t in graph.inputs] == [1, 2]


@pytest.mark.slow
def test_mean_cross_entropy_reads_the_logits_once(search: Search) -> None:
    graph = best(search("cross_entropy_mean"))
    assert one_pass(graph, "x")
    assert not stores(graph, 128256)


def test_residual_and_norm_are_written_by_one_kernel(search: Search) -> None:
    graph = best(search("residual_norm"))
    assert len(graph.kernels) == 1
    assert one_pass(graph, "x", "r", "g")
    assert [writes(graph, t.name) for t in graph.outputs] == [1, 1]


@pytest.mark.slow
def test_a_normalised_residual_is_one_kernel(search: Search) -> None:
    graph = best(search("ngpt_residual"))
    assert len(graph.kernels) == 1
    assert one_pass(graph, "h", "y", "alpha")


# Quantised weights


@pytest.mark.slow
def test_the_scale_of_an_int8_weight_comes_after_the_product(search: Search) -> None:
    graph = best(search("int8_linear"))
    assert stages(graph) == 1
    assert one_pass(graph, "x", "q", "s")
    assert contracts(graph, "x", "q")


def test_a_zero_point_of_a_column_comes_after_the_product(search: Search) -> None:
    """x @ ((q - z) * s) = s * (x @ q - z * sum_k x)."""
    assert stages(best(search("int8_zero_linear"))) == 1
    graph, kernel = single(search("int8_zero_linear", max_kernels=1))
    assert one_pass(graph, "x", "q", "z", "s")
    assert contracts(graph, "x", "q")
    assert frozenset({"x"}) in sums(kernel, "x")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "weight"), [("int4_linear", "q"), ("packed_int4_linear", "packed")])
def test_scale_and_zero_point_of_a_group_are_pulled_out_of_its_sum(name: str, weight: str, search: Search) -> None:
    graph = best(search(name))
    assert stages(graph) == 1
    assert [passes(graph, t) for t in (weight, "x", "z", "s")] == [1, 1, 1, 1]
    first = graph.kernels[0]
    # sum_r x*(q - z)*s = s*(sum_r x*q - z*sum_r x): over a group, x meets q alone, and is summed alone
    assert any(lhs | rhs == {"x", weight} for lhs, rhs in plain_products(first))
    assert frozenset({"x"}) in sums(first, "x")
    assert all("z" not in found for found in sources(first).values() if found == {"x", weight})


# What the released system of the Prism paper fails on


@pytest.mark.parametrize("name", once(["x_times_silu_y", "x_plus_silu_y", "one_input", "four_inputs", "row_scale"]))
def test_every_number_and_order_of_inputs_gives_one_kernel(name: str, search: Search) -> None:
    graph, _ = single(search(name))
    assert one_pass(graph, *(t.name for t in graph.inputs))
    assert stages(best(search(name))) == 1


def test_the_same_search_twice_gives_the_same_sgraphs(worker: Worker) -> None:
    first, second = (
        run_search(program("x_times_silu_y"), device("sm_90"), SearchBudget(), worker, Recorder()) for _ in range(2)
    )
    assert [show.text(p.sgraph) for p in first.proved] == [show.text(p.sgraph) for p in second.proved]
    assert first.generated.generated == second.generated.generated


def test_a_scale_of_the_contracted_axis_stays_inside_the_sum(search: Search) -> None:
    """(x / s) @ w with s over the contracted axis: no product of x and w alone is of any use."""
    for p in search("contracted_scale").proved:
        assert not contracts(p.sgraph, "x", "w")


def test_a_scale_of_the_contracted_axis_is_not_one_of_the_columns(worker: Worker) -> None:
    """Not even where all extents are equal, so that positions alone would not tell."""

    def by_column(x: Tensor, s: Tensor, w: Tensor) -> Tensor:
        return (x @ w) / s

    examples = [torch.empty(shape, device="meta") for shape in ((16, 16), (16,), (16, 16))]
    verdict = prove_programs(trace(contracted_scale, examples), trace(by_column, examples), worker=worker)
    assert verdict.status is Status.REFUTED
