"""In which order the dimensions of what kernels hand over lie in memory: no value changes, tiles have neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_batch import Case, run_batch
from sgraph_samples import F32, SAMPLES, SUM, Sample, added_rows, at, op, split_attention, sym

import prism
from prism.api.region_search import SearchBudget, run_search
from prism.backends.cpu.build import find_compiler
from prism.cost.device import device
from prism.egraph.worker import Worker
from prism.events import Recorder
from prism.generate.memory_order import arranged, copies, laid_out, reordered
from prism.program.evaluate import evaluate
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Tensor
from prism.sgraph import spec
from prism.sgraph.denote import denote
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Gather,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Place,
    SGraph,
    Store,
    Tile,
)

AI, AJ, AK, AD = Axis("i", 12), Axis("j", 10), Axis("k", 20), Axis("d", 12)


def handed_over(batch: Tile = 1, made: Tile | None = None) -> SGraph:
    """t[i, k, d] = sigmoid(a[i, k, d]), and y[i, j, d] = sum_k t[i, k, d]*b[j, k, d], a program a tile of d."""
    make = Kernel(
        "make",
        ((AI, Grid(sym("T_i0"))), (AK, Grid(sym("T_k0") if made is None else made)), (AD, Grid(sym("T_d0")))),
        (Load("x", "a", at(AI, AK, AD)), op("v", "sigmoid", "x"), Store("t", at(AI, AK, AD), "v")),
    )
    body = (
        Load("l", "t", at(AI, AK, AD)),
        Load("r", "b", at(AJ, AK, AD)),
        Contract("p", AK, "l", "r"),
        Accumulate("acc", SUM, "p"),
    )
    roles = ((AD, Grid(batch)), (AI, Grid(sym("T_i1"))), (AJ, Grid(sym("T_j1"))), (AK, LoopRole(sym("T_k1"))))
    product = Kernel("product", roles, (Loop(AK, body), Store("y", at(AI, AJ, AD), "acc")))
    return SGraph(
        "triangle",
        (Tensor("a", (12, 20, 12), F32), Tensor("b", (10, 20, 12), F32)),
        (Tensor("t", (12, 20, 12), F32),),
        (Tensor("y", (12, 10, 12), F32),),
        (make, product),
    )


HANDING_OVER = [s for s in (*SAMPLES, added_rows) if any(len(b.shape) > 1 for b in s(F32).sgraph.buffers)]
HANDING_OVER.remove(split_attention)  # a sample without a denotation


@pytest.mark.parametrize("sample", HANDING_OVER, ids=lambda s: s.__name__)
def test_any_order_of_a_buffer_computes_the_same(sample: Callable[[DType], Sample]) -> None:
    g = sample(F32).sgraph
    for b in g.buffers:
        for order in permutations(range(len(b.shape))):
            other = reordered(g, b.name, order)
            spec.check(other)
            assert other.tensors[b.name].shape == tuple(b.shape[n] for n in order)
            assert denote(other).outputs == denote(g).outputs


def test_what_is_multiplied_batch_by_batch_lies_batch_by_batch() -> None:
    """Of t[i, k, d] a program of one d reads every twelfth element: each in a sector of its own."""
    g = laid_out(handed_over())
    spec.check(g)
    assert g.tensors["t"].shape == (12, 12, 20)
    assert g == reordered(handed_over(), "t", (0, 2, 1)) == laid_out(g)
    assert denote(g).outputs == denote(handed_over()).outputs


@pytest.mark.parametrize("made", [None, 1])
def test_where_tiles_have_neighbours_the_dimensions_stay(made: Tile | None) -> None:
    g = handed_over(batch=sym("T_d1"), made=made)
    assert laid_out(g) == g


def test_where_no_order_serves_all_kernels_the_dimensions_stay() -> None:
    g = handed_over(made=1)  # i is the only one that both have tiles of
    assert laid_out(g).tensors["t"].shape == (20, 12, 12)
    make, product = g.kernels
    one = replace(make, roles=((AI, Grid(1)), *make.roles[1:]))
    assert laid_out(replace(g, kernels=(one, product))) == replace(g, kernels=(one, product))


def test_the_dimension_of_a_place_moves_with_it() -> None:
    """What is read at places has no neighbours along them."""
    place = Axis("n", 6)
    get = Kernel(
        "get",
        ((place, Grid(sym("T_n"))), (AD, Grid(1)), (AI, Grid(sym("T_i1")))),
        (
            Load("at", "places", at(place)),
            Gather("g", "t", (*at(AI), Index.const(0), *at(AD)), (Place("at", 1, 20),)),
            Store("y", at(AI, place, AD), "g"),
        ),
    )
    g = handed_over()
    inputs = (g.inputs[0], Tensor("places", (6,), DType.INT32))
    g = replace(g, inputs=inputs, outputs=(Tensor("y", (12, 6, 12), F32),), kernels=(g.kernels[0], get))
    made = laid_out(g)
    spec.check(made)
    assert made.tensors["t"].shape == (20, 12, 12)
    assert [s.places[0].dimension for s in made.kernels[1].statements() if isinstance(s, Gather)] == [0]
    assert denote(made).outputs == denote(g).outputs


def test_inputs_and_results_are_copied_beside() -> None:
    """y[i, j, d] of a program of one d is stored element by element: in another order, and then copied, row by row."""
    g = handed_over()
    both, last = copies(g)
    for made, names in ((both, ["b_copy", "y_copy"]), (last, ["y_copy"])):
        spec.check(made)
        assert [b.name for b in made.buffers] == ["t", *names]
        assert made.tensors["y_copy"].shape == (12, 12, 10)
        assert denote(made).outputs == denote(g).outputs
        assert isinstance(made.kernels[-1].body[-1], Store)
    assert both.tensors["b_copy"].shape == (10, 12, 20)
    assert [k.name for k in both.kernels] == ["triangle_b_copy_kernel", "make", "product", "triangle_y_copy_kernel"]


def test_what_has_neighbours_or_lies_at_places_is_not_copied() -> None:
    assert copies(handed_over(batch=sym("T_d1"))) == []
    assert copies(added_rows(F32).sgraph) == []
    g = handed_over()
    short = replace(g, outputs=(replace(g.outputs[0], dtype=DType.BFLOAT16),))
    assert [list(c.tensors) for c in copies(short)] == [["a", "b", "t", "b_copy", "y"]], "12 elements are in one sector"


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here, which the CPU target needs")
def test_kernels_that_hand_over_in_another_order_compute_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal([int(e) for e in t.shape]).astype(np.float32) for t in handed_over().inputs]
    graphs = [handed_over(), laid_out(handed_over()), *copies(handed_over())]
    made = run_batch([Case(g, {s.name: 8 for s in g.symbols}, given) for g in graphs], tmp_path)
    expected = np.einsum("ikd,jkd->ijd", 1 / (1 + np.exp(-given[0].astype(np.float64))), given[1])
    for (y,) in made:
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def gated_triangle(
    z: torch.Tensor, wa: torch.Tensor, wb: torch.Tensor, ga: torch.Tensor, gb: torch.Tensor
) -> torch.Tensor:
    a, b = (z @ wa) * torch.sigmoid(z @ ga), (z @ wb) * torch.sigmoid(z @ gb)
    return torch.einsum("ikd,jkd->ijd", a, b)


def test_what_regions_hand_over_lies_as_products_read_it() -> None:
    made = [torch.randn(6, 6, 4), *(torch.randn(4, 4) for _ in range(4))]

    def normed(*tensors: torch.Tensor) -> torch.Tensor:
        y = gated_triangle(*tensors)
        return y - y.mean(-1, keepdim=True)

    program = prism.trace(normed, made)
    found = arranged(program)
    shapes = {d.name: [int(a.extent) for a in d.axes] for d in found.definitions}
    assert {n: s for n, s in shapes.items() if s != [int(a.extent) for a in program.definition(n).axes]} == {
        "mul": [6, 4, 6],
        "mul_1": [6, 4, 6],
        "einsum": [6, 4, 6],
    }
    assert arranged(found) is found
    given = {t.name: x.numpy() for t, x in zip(program.inputs, made, strict=True)}
    before, after = (evaluate(p, given)[program.outputs[0]] for p in (program, found))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("equation", ["bhqd,bhkd->bhqk", "bqhd,bkhd->bhqk", "mk,kn->mn", "bm,bn->bmn"])
def test_where_no_product_is_batched_along_the_last_dimension_all_lies_as_it_does(equation: str) -> None:
    made = [torch.randn([4] * len(side)) for side in equation.partition("->")[0].split(",")]
    program = prism.trace(lambda a, b: torch.einsum(equation, a.exp(), b.exp()) * 2, made)
    assert arranged(program) is program


def test_inputs_and_outputs_lie_as_they_do() -> None:
    program = prism.trace(lambda a, b: torch.einsum("ikd,jkd->ijd", a, b), [torch.randn(4, 4, 4)] * 2)
    assert arranged(program) is program


def test_a_search_hands_over_what_its_kernels_read_side_by_side(worker: Worker) -> None:
    """A triangle multiplication as in AlphaFold: by the model 1,164 us, and 461 in such orders, at 512 x 512 x 128."""
    made = [torch.zeros(192, 192, 64), *(torch.zeros(64, 64) for _ in range(4))]
    program = prism.trace(gated_triangle, made, check=False)
    found = run_search(program, device("sm_90"), SearchBudget(), worker, Recorder())
    assert found.refuted == found.unknown == 0
    batched = [p.sgraph for p in found.proved if p.sgraph.kernels[-1].roles[0][1] == Grid(1)]
    read = [s for g in batched for s in g.kernels[-1].statements() if isinstance(s, Load) and s.tensor[0] == "t"]
    assert read
    assert all(s.index[-1].axes() != s.index[1].axes() and str(s.index[1]) == "d64" for s in read)
