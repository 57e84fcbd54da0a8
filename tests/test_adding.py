"""Sums that go where data say, added up in memory: the same sum by its denotation, whatever the places are."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compiled_code import VERSIONS, CodeOf
from cpu_batch import Case, run_batch
from frontend_onnx_models import model
from interpreting import InterpreterPool, InterpretJob
from onnx import TensorProto
from onnx.helper import make_node as node
from sgraph_samples import added_rows
from sgraph_simulator import simulate

import prism
from prism.backends import tile
from prism.backends.cpu import emit as cpu
from prism.backends.cpu.build import find_compiler
from prism.backends.eager import Order, reordered, torch_dtype
from prism.backends.lower import lower
from prism.backends.protocol import write_module
from prism.backends.triton.emit import emit_module
from prism.cost.device import device
from prism.cost.model import Model
from prism.egraph.engine import Engine
from prism.egraph.language import Budget
from prism.egraph.rules import load_rules, rule_files
from prism.errors import IllegalIRError
from prism.frontend.onnx.reader import from_model
from prism.generate.enumerate import Bounds, Task, generate
from prism.instantiate.space import Space
from prism.program.arrays import NumpyArrays
from prism.program.evaluate import evaluate
from prism.program.extents import evaluate as extent
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import Program
from prism.program.verdict import Status
from prism.sgraph import record, spec
from prism.sgraph.config import Config
from prism.sgraph.denote import denote
from prism.sgraph.launches import fusable, waits
from prism.sgraph.nodes import Loop, LoopRole, Place, SGraph, Store
from prism.sgraph.show import key, text

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Z = torch.zeros


def ids(*shape: int, below: int = 11) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(sum(shape)))


X, Y = torch.randn(37, 6), torch.randn(5, 7, 6)
SUMS: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "rows": (lambda y, i: Z(11, 6).index_add(0, i, y), [X, ids(37)]),
    "rows of two axes": (lambda y, i: Z(11, 6).index_put((i,), y, accumulate=True), [Y, ids(5, 7)]),
    "padding": (
        lambda y, i: Z(11, 6).index_put((i,), torch.where((i == 3)[:, None], 0.0, y), accumulate=True),
        [X, ids(37)],
    ),
    "of int32": (lambda y, i: Z(11, 6).index_add(0, i, y), [X, ids(37).int()]),
    "onto rows": (lambda w, y, i: w.index_add(0, i, y, alpha=-0.5), [X[:11], X, ids(37)]),
    "along the last": (lambda y, i: Z(37, 9).scatter_add(1, i, y), [X, ids(37, 6, below=9)]),
    "along two": (
        lambda y, i, j: Z(11, 4, 6).index_put((i, j), y, accumulate=True),
        [X, ids(37), ids(37, below=4)],
    ),
    "counts": (lambda i: Z(11, dtype=torch.int64).index_add(0, i, torch.ones_like(i)), [ids(300)]),
    "weights": (lambda i, w: Z(11).index_add(0, i, w), [ids(300), torch.rand(300)]),
    "edges": (lambda x, i, j: Z(11, 6).index_add(0, j, x[i]), [X[:11], ids(40), ids(41)[:40]]),
    "experts": (lambda y, w, i: Z(11, 6).index_add(0, i, y * w[:, None]), [X, torch.rand(37), ids(37)]),
    "a product": (lambda y, w, i: Z(11, 5).index_add(0, i, y @ w), [X, torch.randn(6, 5), ids(37)]),
    "an embedding's gradient": (
        lambda y, i: torch.ops.aten.embedding_dense_backward(y, i, 11, 3, False),
        [X, ids(37)],
    ),
    "one of each": (lambda i: torch.nn.functional.one_hot(i, 11).sum(0), [ids(300)]),
    "means": (
        lambda y, i: Z(11, 6).index_add(0, i, y) / Z(11).index_add(0, i, torch.ones(37)).clamp(min=1)[:, None],
        [X, ids(37)],
    ),
    "in bfloat16": (lambda y, i: Z(11, 6, dtype=y.dtype).index_add(0, i, y), [X.bfloat16(), ids(37)]),
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(load_rules(rule_files()))


def adding(engine: Engine, program: Program, target: str = "sm_90") -> list[SGraph]:
    """The sGraphs that add at places, best first, all of which are proved."""
    formulas = inline(program)
    classes = engine.explore([f.expr for f in formulas], Budget(enodes=1000, iterations=4, seconds=60))
    made = generate(Task(program.name, program.inputs, formulas, classes, program.hints, device(target)), Bounds())
    found = [c.sgraph for c in made.candidates if stores(c.sgraph)]
    assert {v.status for v in engine.prove([denote(g).outputs for g in found])} <= {Status.PROVED}
    return found


def stores(g: SGraph) -> list[Store]:
    return [s for k in g.kernels for s in k.statements() if isinstance(s, Store) and s.places]


def interpreted(case: Case, dtypes: Sequence[str], interpreter: InterpreterPool, path: Path) -> tuple[np.ndarray, ...]:
    """The outputs in Triton's interpreter."""
    source = emit_module(case.sgraph, configs={})
    write_module(source, path)
    names = [x.name for x in case.sgraph.launches]
    config = Config(dict(case.symbols), dict.fromkeys(names, 4), dict.fromkeys(names, 1))
    return tuple(interpreter.run(InterpretJob(path, source.entry, tuple(case.inputs), tuple(dtypes), config)))


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_that_goes_where_data_say_is_added_up_there(
    name: str, engine: Engine, interpreter: InterpreterPool, tmp_path: Path
) -> None:
    fn, given = SUMS[name]
    program = prism.trace(fn, given)
    want = fn(*given).double().numpy()
    inputs = [x.float().numpy() if x.dtype.is_floating_point else x.numpy() for x in given]
    named = dict(zip((t.name for t in program.inputs), inputs, strict=True))
    found = adding(engine, program)
    assert found
    tolerance = 2e-2 if "bfloat16" in name else 1e-5
    for g in found:
        spec.check(g)
        (simulated,) = simulate(g, named, {s.name: 4 for s in g.symbols}).values()
        np.testing.assert_allclose(simulated, want, rtol=tolerance, atol=tolerance)
    cases = [Case(g, {s.name: 8 for s in g.symbols}, inputs) for g in found[:3]]
    if find_compiler() is not None:
        for got in run_batch(cases, tmp_path / "cpu"):
            np.testing.assert_allclose(got[0].astype(float), want, rtol=tolerance, atol=tolerance)
    for n, c in enumerate(cases[:2]):
        dtypes = tuple(t.dtype.value for t in c.sgraph.inputs)
        (out,) = interpreted(c, dtypes, interpreter, tmp_path / f"{n}.py")
        np.testing.assert_allclose(out, want, rtol=tolerance, atol=tolerance)


def test_sums_over_the_same_terms_are_added_up_by_one_kernel(
    engine: Engine, interpreter: InterpreterPool, tmp_path: Path
) -> None:
    """As the gradients of tables that one loss looks up, one of them at two places; nothing is read back between."""

    def tables(y: torch.Tensor, z: torch.Tensor, i: torch.Tensor, j: torch.Tensor, k: torch.Tensor) -> Any:
        return Z(11, 6).index_add(0, i, y).index_add(0, j, z), Z(4, 6).index_add(0, k, y * z)

    given = [X, torch.randn(37, 6), ids(37), ids(38)[:37], ids(37, below=4)]
    program = prism.trace(tables, given)
    want = [t.numpy() for t in tables(*given)]
    inputs = [x.numpy() for x in given]
    found = [g for g in adding(engine, program) if any(len(k.additions) == 3 for k in g.kernels)]
    assert any(not g.buffers and len(g.kernels) == 3 for g in found)
    for g in found:
        spec.check(g)
        assert record.sgraph_of(record.plain(g)) == g
        named = dict(zip((t.name for t in program.inputs), inputs, strict=True))
        for got, expected in zip(simulate(g, named, {s.name: 4 for s in g.symbols}).values(), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    cases = [Case(g, {s.name: 8 for s in g.symbols}, inputs) for g in found[:2]]
    outputs = [*run_batch(cases, tmp_path / "cpu")] if find_compiler() is not None else []
    dtypes = tuple(t.dtype.value for t in program.inputs)
    outputs += [interpreted(c, dtypes, interpreter, tmp_path / f"{n}.py") for n, c in enumerate(cases)]
    for made in outputs:
        for got, expected in zip(made, want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


PLACES = (Place("i1", 0, 3),)
ADDS = Store("sums", (Index.const(0), Index.axis(Axis("d", 40))), "twice", None, PLACES)
ILLEGAL: dict[str, tuple[Callable[[SGraph], SGraph], str]] = {
    "to what nobody stored": (lambda g: replace(g, kernels=g.kernels[1:]), "is added to"),
    "twice": (
        lambda g: replace(g, kernels=(*g.kernels[:2], replace(g.kernels[1], name="again"), g.kernels[2])),
        "once",
    ),
    "before it is stored": (lambda g: replace(g, kernels=(g.kernels[1], g.kernels[0], g.kernels[2])), "is added to"),
    "to another length": (lambda g: with_store(g, places=(Place("i1", 0, 2),)), "no place in it"),
    "along two at once": (lambda g: with_store(g, places=(*PLACES, *PLACES)), "two places"),
    "beside an axis": (lambda g: with_store(g, places=(Place("i1", 1, 40),)), "no place in it"),
    "several to one place": (lambda g: with_store(g, index=(Index.const(0),) * 2, places=PLACES), "no axis"),
}


def test_a_count_that_something_is_made_of_is_added_up_too(engine: Engine) -> None:
    """Means over what goes to one place: the count is stored, not its reciprocal, which no store adds up."""

    def means(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        count = torch.zeros(1000).index_add(0, at, torch.ones(at.shape))
        return torch.zeros(1000, 64).index_add(0, at, x) / count.clamp(min=1)[:, None]

    program = prism.trace(means, (torch.randn(20000, 64), ids(20000, below=1000)))
    assert max(len(stores(g)) for g in adding(engine, program)) == 2


def with_store(g: SGraph, **changes: Any) -> SGraph:
    """The sample with another addition."""
    begin, adds, end = g.kernels
    return replace(g, kernels=(begin, replace(adds, body=(*adds.body[:-1], replace(ADDS, **changes))), end))


@pytest.mark.parametrize("what", ILLEGAL)
def test_what_adds_otherwise_is_refused(what: str) -> None:
    change, message = ILLEGAL[what]
    spec.check(with_store(added_rows().sgraph))
    with pytest.raises(IllegalIRError, match=message):
        spec.check(change(added_rows().sgraph))


def test_an_addition_in_a_loop_that_it_does_not_go_along_is_refused() -> None:
    g = added_rows(looped=True).sgraph
    loop = g.kernels[1].body[0]
    assert isinstance(loop, Loop)
    n = Axis("n", 4)
    twice = replace(g.kernels[1], roles=(*g.kernels[1].roles, (n, LoopRole(symbol("T_n")))), body=(Loop(n, (loop,)),))
    with pytest.raises(IllegalIRError, match="once more for each tile"):
        spec.check(replace(g, kernels=(g.kernels[0], twice, g.kernels[2])))


def test_what_is_added_to_is_no_launch_with_it_and_is_stored_anew_in_each_call() -> None:
    g = added_rows().sgraph
    assert not fusable(g, sharing=False)
    weight, *others = g.inputs
    of_weights = replace(g, inputs=(replace(weight, weight=True), *others))
    assert not of_weights.prepared
    assert waits(g) == {"rows_begin": (), "rows_kernel": ("rows_begin",), "rows_end": ("rows_kernel",)}


def test_an_addition_is_written_down_and_read() -> None:
    g = added_rows().sgraph
    assert record.sgraph_of(record.plain(g)) == g
    assert "sums[i1, d] += twice" in text(g)
    assert key(g) != key(with_store(g, places=(Place("i1", 0, 3),), src=1.0))
    assert lower(g).orderless({tile.Adds.SHARED})
    assert not lower(added_rows(looped=True).sgraph).orderless({tile.Adds.SHARED})
    for emit, unordered in ((emit_module, True), (cpu.emit_module, False)):
        said = emit(added_rows(looped=True).sgraph, configs={}).text
        assert ("in no fixed order" in said) is unordered


WHERE: dict[str, list[int]] = {
    "all at one": [5] * 37,
    "outside": [-1, 11, 12, -(2**31), 2**31 - 1, *range(32)],
    "each at its own": [*range(11), *[40] * 26],
}


@pytest.mark.parametrize("where", WHERE)
def test_any_place_is_added_to_as_the_program_says(
    where: str, engine: Engine, interpreter: InterpreterPool, tmp_path: Path
) -> None:
    """What is no place is added nowhere: no store leaves the tensor."""
    program = prism.trace(*SUMS["rows"])
    given = {"y": X.numpy(), "i": np.array(WHERE[where])}
    (want,) = evaluate(program, given).values()
    found = adding(engine, program)
    cases = [Case(g, {s.name: 16 for s in g.symbols}, [*given.values()]) for g in found[:2]]
    if find_compiler() is not None:
        for (got,) in run_batch(cases, tmp_path / "cpu"):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    for n, c in enumerate(cases):
        (out,) = interpreted(c, ("float32", "int64"), interpreter, tmp_path / f"{n}.py")
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


class Everywhere(NumpyArrays):
    """numpy that sums over all terms at every place."""

    def __getattribute__(self, name: str) -> Any:
        if name == "added":
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("name", SUMS)
def test_what_runs_a_program_adds_each_term_once(name: str) -> None:
    program = prism.trace(*SUMS[name])
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {}
    for t in program.inputs:
        shape = tuple(extent(e, program.hints) for e in t.shape)
        given[t.name] = rng.standard_normal(shape) if t.dtype.is_float else rng.integers(-3, 14, shape)
    for n, t in enumerate(t for t in program.inputs if t.dtype.is_float and not t.dtype.is_half):
        given[t.name].flat[n] = np.inf  # where it goes alone
    with np.errstate(all="ignore"):
        (want,) = evaluate(program, given, xp=Everywhere()).values()
        (found,) = evaluate(program, given).values()
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-12)
    tensors = {t.name: torch.from_numpy(np.asarray(given[t.name])).to(torch_dtype(t.dtype)) for t in program.inputs}
    samples = [*reordered(program, tensors, program.hints, (Order.PLAIN, Order.SHUFFLED, Order.SEQUENTIAL))]
    for (out,) in (s.values() for s in samples):
        np.testing.assert_allclose(out.double(), want, rtol=2e-2 if "bfloat16" in name else 1e-4, atol=1e-4)


def test_few_places_of_many_terms_are_summed_up_one_by_one(engine: Engine) -> None:
    """Additions at one place wait for each other: the sum over all places is faster, and is still found."""
    fn = lambda y, i: Z(4, 128).index_add(0, i, y)  # noqa: E731
    program = prism.trace(fn, [torch.zeros(65536, 128), torch.zeros(65536, dtype=torch.int64)])
    formulas = inline(program)
    classes = engine.explore([f.expr for f in formulas], Budget(enodes=1000, iterations=4, seconds=60))
    target = device("sm_90")
    made = generate(Task("p", program.inputs, formulas, classes, {}, target), Bounds()).candidates
    best: dict[bool, float] = {True: math.inf, False: math.inf}
    for c in made:
        for _, estimate in Space(c.sgraph, target, {}).points_ranked(Model(c.sgraph, target, {}), 1):
            adds = bool(stores(c.sgraph))
            best[adds] = min(best[adds], estimate.seconds)
    assert best[False] < best[True] < math.inf


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("target", "wide"), [("sm_80", ""), ("sm_90", ".v4")])
def test_additions_wait_for_nothing_and_take_neighbours_together(
    code_of: CodeOf, version: str, target: str, wide: str
) -> None:
    g = added_rows().sgraph
    sizes = {"T_m": 16, "T_d": 64, "T_vb": 2, "T_db": 16, "T_ve": 1, "T_de": 64}
    names = [x.name for x in g.launches]
    config = Config(sizes, dict.fromkeys(names, 4), dict.fromkeys(names, 1))
    _, adds, _ = code_of(g, config, target, version)
    found = set(re.findall(r"\b(?:atom|red)\.global\S*", adds.ptx))
    assert found == {f"atom.global.gpu.relaxed.add{wide}.f32"}


@pytest.mark.parametrize(("name", "shape"), [("ScatterElements", (37, 6)), ("ScatterND", (37, 1))])
def test_what_onnx_adds_at_places_is_added_there(name: str, shape: tuple[int, ...], engine: Engine) -> None:
    """Negative places count from the end."""
    tensors = {"x": (FLOAT, (11, 6)), "i": (INT64, shape), "u": (FLOAT, (37, 6))}
    program = from_model(
        model([node(name, ["x", "i", "u"], ["y"], reduction="add")], tensors, ["y"], opset=18), "m", None
    )
    rng = np.random.default_rng(0)
    given = {"x": rng.standard_normal((11, 6)), "i": rng.integers(-11, 11, shape), "u": rng.standard_normal((37, 6))}
    want = evaluate(program, given)["y"]
    found = adding(engine, program)
    assert found
    for g in found:
        got = simulate(g, given, {s.name: 4 for s in g.symbols})["y"]
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
