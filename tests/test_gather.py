"""Elements at places that data give: read as sums in which one term counts, fetched by whatever runs or weighs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from backend_examples import BOUNDS
from cpu_batch import Case, run_batch
from frontend_onnx_models import check, model
from onnx import TensorProto
from onnx.helper import make_node as node
from onnx.reference import ReferenceEvaluator
from sgraph_programs import task

import prism
from prism.backends.cpu.build import find_compiler
from prism.backends.eager import eager
from prism.errors import UnsupportedError
from prism.frontend.onnx.reader import from_model
from prism.generate.enumerate import generate
from prism.instantiate.gate.draws import draw_inputs
from prism.program.evaluate import evaluate
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.integers import PLACES_ASSUMED, assumptions
from prism.program.nodes import DType, Program, Tensor
from prism.program.verdict import Status
from prism.sgraph import spec
from prism.sgraph.nodes import Gather, Grid, Kernel, Load, Place, Pointwise, SGraph, Store
from prism.sgraph.numerics import divisors_stored
from prism.sgraph.show import text

FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


def places(*shape: int, below: int, least: int = 0) -> torch.Tensor:
    return torch.randint(least, below, shape, generator=torch.Generator().manual_seed(sum(shape)))


X = torch.randn(7, 5, 6)
READ: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "embedding": (F.embedding, [places(2, 4, below=7), X[:, 0]]),
    "padded": (lambda i, t: F.embedding(i, t, padding_idx=2), [places(4, below=7), X[:, 0]]),
    "of a computed table": (lambda i, t: F.embedding(i, t.exp() + 1), [places(4, below=7), X[:, 0]]),
    "sums of bags": (lambda i, t: F.embedding_bag(i, t, mode="sum"), [places(2, 4, below=7), X[:, 0]]),
    "means of bags": (lambda i, t: F.embedding_bag(i, t), [places(3, 4, below=7), X[:, 0]]),
    "maxima of bags": (lambda i, t: F.embedding_bag(i, t, mode="max"), [places(1, 4, below=7), X[:, 0]]),
    "bags with weights": (
        lambda i, t, w: F.embedding_bag(i, t, mode="sum", per_sample_weights=w),
        [places(3, 2, below=7), X[:, 0], torch.rand(3, 2)],
    ),
    "index_select": (lambda x, i: x.index_select(1, i), [X, places(9, below=5)]),
    "gather": (lambda x, i: x.gather(2, i), [X, places(3, 5, 8, below=6)]),
    "gather of a scalar": (lambda x, i: x.gather(0, i), [torch.tensor(2.0), torch.tensor(0)]),
    "take_along_dim": (lambda x, i: x.take_along_dim(i, 1), [X, places(7, 2, 6, below=5)]),
    "from the end": (lambda x, i: x[:, i], [X, places(3, 2, below=5, least=-5)]),
    "along two": (lambda x, i, j: x[i, :, j], [X, places(3, below=7), places(2, 1, below=6, least=-6)]),
    "along three": (lambda x, i: x[i, i % 5, i % 6], [X, places(8, below=7)]),
    "in int32": (lambda x, i: x[i] * 2, [X, places(4, below=7).int()]),
    "of integers": (lambda x, i: x[i], [places(7, below=100), places(4, below=7)]),
    "of one": (lambda x, i: x[:1][i], [X, places(4, below=1)]),
    "of what was looked up": (lambda i, j: i[j], [places(7, below=9), places(4, below=7)]),
    "twice": (lambda x, i, j: x[i[j]], [X, places(4, below=7), places(3, below=4)]),
}


@pytest.mark.parametrize("name", READ)
def test_torch_reads(name: str) -> None:
    fn, given = READ[name]
    program = prism.trace(fn, given)
    (out,) = program.outputs
    found = evaluate(program, {t.name: x.numpy() for t, x in zip(program.inputs, given, strict=True)})[out]
    np.testing.assert_allclose(found, fn(*given).double().numpy(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(eager(program)(*given)[0], fn(*given))


def test_bags_of_lengths_that_data_give_are_refused() -> None:
    given = [places(9, below=7), X[:, 0], torch.tensor([0, 2, 5])]
    with pytest.raises(UnsupportedError, match="how many places a bag has"):
        prism.trace(F.embedding_bag, given)


def test_random_lookups_are_read_as_onnx_says() -> None:
    rng = np.random.default_rng(0)
    for trial in range(24):
        shape = rng.integers(1, 6, rng.integers(1, 4))
        x = rng.standard_normal(shape).astype(np.float32)
        op = ["Gather", "GatherElements", "GatherND"][trial % 3]
        attributes: dict[str, Any] = {}
        if op == "GatherND":
            batch = int(rng.integers(0, len(shape)))
            many = int(rng.integers(1, len(shape) - batch + 1))
            outer = [*shape[:batch], *rng.integers(1, 4, rng.integers(1, 3))]
            attributes = {"batch_dims": batch} if batch else {}
            at = np.stack([rng.integers(-n, n, outer) for n in shape[batch : batch + many]], -1)
        else:
            attributes["axis"] = axis = int(rng.integers(-len(shape) if op == "Gather" else 0, len(shape)))
            own = rng.integers(1, 4, rng.integers(0, 3))
            if op == "GatherElements":
                own = shape.copy()
                own[axis] = rng.integers(1, 7)
            at = rng.integers(-shape[axis], shape[axis], own)
        if rng.random() < 0.3 and op != "GatherND":
            at = at.astype(np.int32)
        kind = INT32 if at.dtype == np.int32 else INT64
        made = model(
            [node(op, ["x", "i"], ["y"], **attributes)], {"x": (FLOAT, x.shape), "i": (kind, at.shape)}, ["y"], opset=13
        )
        check(made, {"x": x, "i": at})


def test_places_outside_give_zero_and_the_assumption_is_named() -> None:
    program = prism.trace(F.embedding, [torch.tensor([0, 2]), torch.randn(3, 2)])
    table = np.arange(6.0).reshape(3, 2) + 1
    given = dict(zip((t.name for t in program.inputs), (np.array([3, -1]), table), strict=True))
    assert not evaluate(program, given)[program.outputs[0]].any()
    assert assumptions(program) == (PLACES_ASSUMED,)
    bounded = prism.trace(lambda i, t: F.embedding(i.clamp(0, 2), t), [torch.tensor([0, 2]), torch.randn(3, 2)])
    assert not assumptions(bounded)


IDS, TABLE = places(7, below=50), torch.randn(50, 8)
PAIRS: list[tuple[Callable[..., Any], Callable[..., Any], Status]] = [
    (lambda i, t: F.embedding(i, t), lambda i, t: t.gather(0, i[:, None].expand(7, 8)), Status.PROVED),
    (lambda i, t: F.embedding(i, t), lambda i, t: (i[:, None] == torch.arange(50)).float() @ t, Status.PROVED),
    (lambda i, t: F.embedding(i, 2 * t), lambda i, t: 2 * F.embedding(i, t), Status.PROVED),
    (lambda i, t: F.embedding(i, t + t.exp()), lambda i, t: t.exp()[i.abs()] + t[i.abs()], Status.PROVED),
    (lambda i, t: F.embedding(i, t), lambda i, t: t[(i + 1) % 50], Status.REFUTED),
]


@pytest.mark.parametrize("n", range(len(PAIRS)))
def test_verdicts(n: int) -> None:
    a, b, status = PAIRS[n]
    verdict = prism.prove(a, b, [IDS, TABLE])
    assert verdict.status is status
    named = {PLACES_ASSUMED, "i in [0, 49]"}
    assert named.isdisjoint(verdict.assumptions) == (status is not Status.PROVED)


def test_what_takes_legal_places_to_tell_is_proved_of_them_and_says_so() -> None:
    logits, labels = torch.randn(6, 10), places(6, below=10)

    def of_others_nothing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, y, reduction="none")  # 0 where y is -100

    def by_places(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x, -1) - x.gather(1, y[:, None])[:, 0]

    for a, b in ((of_others_nothing, by_places), (by_places, of_others_nothing)):
        verdict = prism.prove(a, b, [logits, labels])
        assert verdict
        assert verdict.assumptions == ("y in [0, 9]",)
    wrong = prism.prove(of_others_nothing, lambda x, y: -by_places(x, y), [logits, labels])
    assert wrong.status is Status.REFUTED
    # Nothing is taken for granted that no lookup says.
    free = prism.prove(lambda x, y: x * y.abs()[:, None], lambda x, y: x * y[:, None], [logits, labels])
    assert free.status is Status.REFUTED


def test_draws_are_legal_places() -> None:
    rows, where = torch.randn(40, 4), torch.tensor([1, 2])
    program = prism.trace(lambda i, j, t: F.embedding(i, t) + t[j * 4 + 3], [where, where, rows])
    drawn = draw_inputs(program, "normal", {}, 0)
    i, j, _ = (drawn[t.name].numpy() for t in program.inputs)
    assert min(i.min(), j.min()) >= 0
    assert max(i.max(), (j * 4 + 3).max()) < 40


def embedding() -> onnx.ModelProto:
    """The sum of a word's row and a place's, normalised, as at the start of a language model."""
    return model(
        [
            node("Gather", ["words", "ids"], ["w"]),
            node("Gather", ["spots", "at"], ["p"]),
            node("Add", ["w", "p"], ["x"]),
            node("LayerNormalization", ["x", "gain", "bias"], ["y"], axis=-1),
        ],
        {
            "ids": (INT64, [3, 5]),
            "at": (INT64, [5]),
            "words": (FLOAT, [30, 24]),
            "spots": (FLOAT, [9, 24]),
            "gain": (FLOAT, [24]),
            "bias": (FLOAT, [24]),
        },
        ["y"],
    )


def sgraphs(program: Program) -> list[SGraph]:
    return [c.sgraph for c in generate(task(program), BOUNDS).candidates]


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")
def test_an_embedding_is_loads_at_places(tmp_path: Path) -> None:
    built = embedding()
    program = from_model(built, "m", None)
    rng = np.random.default_rng(0)
    shapes = {t.name: [int(e) for e in t.shape] for t in program.inputs}
    given: dict[str, Any] = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    given |= {"ids": rng.integers(-30, 30, (3, 5)), "at": rng.integers(0, 9, 5)}
    want = np.asarray(next(iter(ReferenceEvaluator(built).run(None, given))))
    made = sgraphs(program)
    for g in made:
        fetched = [s for k in g.kernels for s in k.statements() if isinstance(s, Gather)]
        assert {s.tensor for s in fetched} == {"words", "spots"}
        assert all(f"{s.tensor}[{s.places[0].value}, " in text(g) for s in fetched)
    cases = [Case(g, {s.name: 8 for s in g.symbols}, [given[t.name] for t in g.inputs]) for g in made[:2]]
    for got in run_batch(cases, tmp_path):
        np.testing.assert_allclose(got[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")
def test_rows_of_a_concatenation_are_looked_up_in_its_pieces(tmp_path: Path) -> None:
    """Places of the whole are outside of a piece, where nothing is read of it."""
    given = [places(9, below=8), torch.randn(1, 6), torch.randn(7, 6)]
    program = prism.trace(lambda i, x, y: torch.cat((x, y))[i], given)
    search = prism.search(program, target="cpu")
    with search:
        result = search.run()
    assert result.proved
    assert not result.unknown
    assert "illegal" not in result.generated.pruned
    made = [p.sgraph for p in result.proved[:2]]
    assert any("-1 + " in text(g) for g in made)
    for got in run_batch([Case(g, {s.name: 8 for s in g.symbols}, [t.numpy() for t in given]) for g in made], tmp_path):
        np.testing.assert_array_equal(got[0], torch.cat(given[1:])[given[0]].numpy())


def test_a_buffer_that_is_gathered_from_keeps_its_reciprocals() -> None:
    m, n, zero = Axis("m", 6), Axis("n", 4), Index.const(0)
    made = Kernel(
        "made",
        ((m, Grid(symbol("T_m"))),),
        (
            Load("x1", "x", (Index.axis(m),)),
            Pointwise("d", "mul", ("x1", 1e-30)),
            Pointwise("r", "recip", ("d",)),
            Store("buffer", (Index.axis(m),), "r"),
        ),
    )
    read = Kernel(
        "read",
        ((n, Grid(symbol("T_n"))),),
        (
            Load("i1", "i", (Index.axis(n),)),
            Gather("g", "buffer", (zero,), (Place("i1", 0, 6),)),
            Store("y", (Index.axis(n),), "g"),
        ),
    )
    given = (Tensor("x", (6,), DType.FLOAT32), Tensor("i", (4,), DType.INT64))
    buffer, y = Tensor("buffer", (6,), DType.FLOAT32), Tensor("y", (4,), DType.FLOAT32)
    sgraph = SGraph("looked_up", given, (buffer,), (y,), (made, read))
    spec.check(sgraph)
    assert divisors_stored(sgraph) == sgraph
    plain = replace(read, body=(Load("g", "buffer", (Index.axis(n),)), Store("y", (Index.axis(n),), "g")))
    assert divisors_stored(replace(sgraph, kernels=(made, plain))) != replace(sgraph, kernels=(made, plain))
