"""The Python API: what a search finds for every example, that it is the same each time, and what is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from quick import slow_but
from short_calls import prove_programs

import prism
from prism import api
from prism.api import SearchBudget, load, optimize, optimizing
from prism.api.options import Options
from prism.api.region_search import SearchResult, run_search
from prism.cost.device import device
from prism.egraph.worker import Worker
from prism.errors import NoImprovementError, UnsupportedError, UsageError
from prism.events import Event, Recorder, StageFinished
from prism.program.evaluate import evaluate
from prism.program.nodes import Program
from prism.sgraph.nodes import Accumulate, Split
from prism.sgraph.show import text

pytestmark = pytest.mark.usefixtures("small_gate")

# One search is for one region; a whole layer is several: see test_partition.py.
_FILES = sorted((Path(__file__).resolve().parent.parent / "examples" / "models").glob("*.onnx"))
MODELS = [p for p in _FILES if p.stem != "decoder_layer"]


def run(program: Program, worker: Worker, budget: SearchBudget | None = None) -> SearchResult:
    return run_search(program, device("sm_90"), budget or SearchBudget(), worker, Recorder())


@pytest.fixture(scope="module")
def found(worker: Worker) -> Callable[[str], SearchResult]:
    """What the search finds of an example, each once in a module."""
    return cache(lambda name: run(load(next(p for p in MODELS if p.stem == name)), worker))


# test_discovery.py searches functions like the others.
FEW = ("gqa_decode", "rmsnorm_linear", "lora", "add_silu")


@pytest.mark.parametrize("path", slow_but([p for p in MODELS if p.stem in FEW], MODELS), ids=lambda p: p.stem)
def test_every_example_has_a_proved_sgraph_with_fewer_kernels(path: Path, found: Callable[[str], SearchResult]) -> None:
    result = found(path.stem)
    assert result.proved
    assert result.refuted == 0
    assert min(len(p.sgraph.kernels) for p in result.proved) < load(path).operator_count
    assert result.generated.generated >= len(result.generated.candidates)


@pytest.mark.parametrize("name", ["causal_attention", "qknorm_attention"])
def test_attention_is_one_kernel_that_rescales(name: str, found: Callable[[str], SearchResult]) -> None:
    fused = [p.sgraph for p in found(name).proved if len(p.sgraph.kernels) == 1]
    assert any(
        sum(isinstance(s, Accumulate) and s.shift is not None for s in g.kernels[0].statements()) == 2 for g in fused
    )
    assert all(not g.buffers for g in fused)


def test_decode_attention_is_split_over_the_keys_and_proved(found: Callable[[str], SearchResult]) -> None:
    split = [
        p.sgraph
        for p in found("gqa_decode").proved
        if len(p.sgraph.kernels) == 2 and any(isinstance(r, Split) for _, r in p.sgraph.kernels[0].roles)
    ]
    # The query heads of a group share one read of the keys: the key's index has no axis of the group.
    assert any(
        sum(isinstance(s, Accumulate) and s.shift is not None for s in g.kernels[0].statements()) == 2 for g in split
    )


def test_a_norm_moves_past_its_product(worker: Worker) -> None:
    # By the estimate several kernels are faster, and some dozens of these come first.
    program = load(next(p for p in MODELS if p.stem == "rmsnorm_linear"))
    proved = run(program, worker, SearchBudget(max_sgraphs=64)).proved
    single = [p.sgraph.kernels[0] for p in proved if len(p.sgraph.kernels) == 1]
    # Both sums in one pass over the weight.
    assert any(sum(isinstance(s, Accumulate) for s in k.statements()) == 2 for k in single)


def test_the_same_search_gives_the_same_sgraphs(found: Callable[[str], SearchResult]) -> None:
    with Worker() as other:
        again = run(load(next(p for p in MODELS if p.stem == "rmsnorm_linear")), other)
    assert [text(p.sgraph) for p in again.proved] == [text(p.sgraph) for p in found("rmsnorm_linear").proved]


def test_search_from_a_torch_function() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * torch.nn.functional.silu(y)

    found = list(prism.search(prism.trace(fn, (torch.randn(64, 256), torch.randn(64, 256)))))
    assert found
    assert len(found[0].sgraph.kernels) == 1


def test_a_search_whose_time_is_over_has_proved_the_form_as_written() -> None:
    """Of one region, and of several."""

    def norm(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def products(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = norm(x @ x)
        return x

    for fn in (norm, products):
        program = prism.trace(fn, (torch.randn(64, 64),))
        with prism.search(program, seconds=1e-3) as search:
            every = list(search)
            assert every
            assert search.proved[0].sgraph == every[0].sgraph
            assert search.result().interrupted
        with prism.search(program, seconds=1e6, budget=SearchBudget(max_rounds=1, max_families=8)) as search:
            assert list(search)
            assert not search.result().interrupted


def test_prove_two_functions() -> None:
    def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)) @ w

    def moved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def wrong(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w) * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)

    inputs = (torch.randn(4, 32), torch.randn(32, 16))
    assert prism.prove(reference, moved, inputs).status == "proved"
    verdict = prism.prove(reference, wrong, inputs)
    assert verdict.status == "refuted"
    assert verdict.counterexample


def test_both_front_ends_give_the_same_program(tmp_path: Path) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(32, 16) / 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
            return torch.softmax(h @ self.w, dim=-1)

    block, x = Block().eval(), torch.randn(4, 32)
    path = tmp_path / "block.onnx"
    torch.onnx.export(block, (x,), str(path), dynamo=True, opset_version=18)
    traced, loaded = prism.trace(block, (x,), name="block"), load(path)
    assert prove_programs(loaded, traced).status == "proved"
    (a,) = evaluate(loaded, {loaded.inputs[0].name: x.numpy()}).values()
    (b,) = evaluate(traced, {traced.inputs[0].name: x.numpy()}).values()
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_plain_product_is_left_to_the_library(tmp_path: Path) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    half = torch.float16
    program = prism.trace(
        fn, (torch.empty(2048, 2048, dtype=half), torch.empty(2048, 2048, dtype=half)), name="product"
    )
    with pytest.raises(NoImprovementError):
        optimize(program, target="sm_90", out=tmp_path / "out", trials=1)
    assert not (tmp_path / "out").exists()


def test_float64_is_refused() -> None:
    program = prism.trace(lambda x: torch.sin(x) @ x, (torch.zeros(4, 4, dtype=torch.float64),), name="sine")
    with pytest.raises(UnsupportedError, match="float64"):
        optimize(program, target="sm_90")


def test_unknown_targets_and_shapes_are_refused() -> None:
    program = load(MODELS[0])
    with pytest.raises(UsageError, match="sm_90"):
        optimize(program, target="sm_12345")
    with pytest.raises(UsageError, match="no symbolic dimension"):
        optimize(program, target="sm_90", shapes={"nothing": 4})


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x


MISTAKES: dict[str, tuple[Callable[[Program], object], str]] = {
    "no_program": (lambda p: optimize(product), "a function, and no program; make one: prism.trace"),  # type: ignore[arg-type]
    "a_path": (lambda p: prism.search("model.onnx"), "a str, and no program"),  # type: ignore[arg-type]
    "trials": (lambda p: optimize(p, trials="3"), "trials: trials is '3', a str; give a whole number"),  # type: ignore[arg-type]
    "seed": (lambda p: optimize(p, seed=0.5), "seed: seed is 0.5, a float"),  # type: ignore[arg-type]
    "no_trial": (lambda p: optimize(p, trials=0), "trials: trials is 0: without a trial "),
    "fewer_trials": (lambda p: prism.compile(product, trials=-3), "give 1 or more"),
    "below_0": (lambda p: optimize(p, seed=-1), "seed: seed is -1: "),
    "no_time": (lambda p: optimize(p, seconds=0), "seconds: seconds is 0: nothing is done in no time; give more"),
    "no_search": (lambda p: prism.search(p, seconds=0), "seconds: seconds is 0: nothing is done in no time; give more"),
    "less_time": (lambda p: prism.optimize_ranges(p, {"n": (1, 4)}, seconds=-2.5), "seconds: seconds is -2.5"),
    "not_a_time": (lambda p: optimize(p, seconds=float("nan")), "seconds: seconds is nan"),
    "time": (lambda p: optimize(p, budget="60s"), "seconds=60 ends a run"),  # type: ignore[arg-type]
    "one_baseline": (lambda p: optimize(p, baselines="eager"), "['eager']"),
    "baseline": (lambda p: optimize(p, baselines=["fast"]), "no baseline is called fast"),
    "range": (lambda p: prism.optimize_ranges(p, {"n": "1..4"}), "the range of n is '1..4'"),  # type: ignore[dict-item]
    "length": (lambda p: prism.optimize_ranges(p, {"n": 4}), "the range of n is 4"),  # type: ignore[dict-item]
    "fraction": (lambda p: prism.optimize_ranges(p, {"n": (1, 4.5)}), "the range of n is (1, 4.5)"),  # type: ignore[dict-item]
    "no_examples": (lambda p: prism.trace(product, None), "example inputs are a NoneType"),  # type: ignore[arg-type]
    "no_function": (lambda p: prism.trace("model.onnx", torch.ones(2)), "prism.load_onnx(path)"),  # type: ignore[arg-type]
    "too_many": (
        lambda p: prism.trace(product, [torch.ones(2, 2)] * 2),
        "fails on the example inputs: product() takes 1",
    ),
    "shapes": (lambda p: prism.trace(product, torch.ones(2, 3)), "fails on the example inputs: "),
    "no_path": (lambda p: prism.load_onnx(p), "this is a Program, and no path"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_asked_for_in_a_wrong_way_is_told(name: str) -> None:
    program = prism.trace(torch.relu, [torch.randn(4, 4)])
    mistake, said = MISTAKES[name]
    with pytest.raises(UsageError) as error:
        mistake(program)
    assert said in error.value.one_line()


def test_lengths_may_be_longer_than_one_thinks_where_nothing_bounds_them() -> None:
    program = load(MODELS[0])
    name = next(iter(program.ranges))
    assert program.ranges[name].open
    held = optimizing._at(program, {name: 160_000}).ranges[name]
    assert (held.hint, held.high, held.open) == (160_000, 160_000, True)
    with pytest.raises(UsageError, match=r"=0 is out of range; give a value from 1 on"):
        optimizing._at(program, {name: 0})
    bound = replace(program, ranges={name: replace(held, open=False, high=9)})
    with pytest.raises(UsageError, match=r"=10 is out of range; give a value from 1 to 9"):
        optimizing._at(bound, {name: 10})


def test_stages_are_reported_in_order(worker: Worker) -> None:
    events: list[Event] = []
    run_search(load(MODELS[0]), device("sm_90"), SearchBudget(), worker, Recorder(events.append))
    assert [e.stage for e in events if isinstance(e, StageFinished)] == [
        "start-up",
        "saturation",
        "generation",
        "proof",
    ]


def test_one_example_by_itself_is_one_input() -> None:
    x = torch.randn(4, 6)
    assert str(prism.trace(torch.tanh, x)) == str(prism.trace(torch.tanh, [x]))
    assert prism.prove(torch.tanh, lambda x: 2 * torch.sigmoid(2 * x) - 1, x)
    assert not prism.prove(torch.tanh, torch.sin, x)


@pytest.mark.parametrize("verb", [optimize, api.optimize_ranges, api.optimize_model, api.optimize_model_ranges])
def test_what_is_asked_of_a_run_is_stated_once_and_described_at_every_verb(verb: Callable[..., object]) -> None:
    taken = inspect.signature(verb).parameters
    asked = [f.name for f in fields(Options)]
    assert [n for n in taken if n in asked] == asked
    described = inspect.getdoc(verb) or ""
    assert all(f"\n    {name}: " in described for name in taken)
    with pytest.raises(TypeError, match=rf"{verb.__name__}\(\) got an unexpected keyword argument 'trial'"):
        verb("model", *["ranges"] * ("ranges" in taken), trial=1)


def test_a_moment_stays_where_it_is_when_other_options_are_replaced() -> None:
    options = Options(seconds=60.0)
    assert replace(options, trials=1).time is options.time
    assert not Options().time.finite


def test_a_model_in_parts_over_lengths_takes_no_inputs_of_one_length(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="inputs are of one length"):
        api.optimize_model_ranges(tmp_path / "m.onnx", {"s": (1, 4)}, inputs={})
