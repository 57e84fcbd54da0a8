"""What hangs on a model's weights alone: computed once while they stay, chosen and costed so, always right."""

from __future__ import annotations

import ast
import gc
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from cpu_batch import load
from interpreting import InterpreterPool, InterpretJob
from report_samples import artifacts
from report_samples import report as report_sample
from sgraph_programs import program, task

from prism import search, trace
from prism.backends.cpu.emit import emit_module
from prism.backends.cpu.support import find_compiler
from prism.backends.lifetimes import shared_places
from prism.backends.lower import lower
from prism.backends.protocol import write_module
from prism.backends.triton.emit import emit_module as emit_triton
from prism.cost.cpu import CpuModel
from prism.cost.device import device, multicore
from prism.cost.model import Model
from prism.events import RunReport
from prism.generate.enumerate import Bounds, generate
from prism.instantiate.space import Space
from prism.program.build import add, const, mul, op, read, reduce
from prism.program.index import Axis
from prism.program.nodes import DType, Expr, Program
from prism.program.region import canonical
from prism.report.html import render_html
from prism.report.units import prepared_note
from prism.sgraph.config import Config
from prism.sgraph.launches import fusable
from prism.sgraph.nodes import SGraph
from prism.sgraph.record import plain, sgraph_of
from prism.sgraph.spec import check

pytestmark = pytest.mark.usefixtures("unoptimised")
compiled = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")

M, K, N = Axis("m", 6), Axis("k", 24), Axis("n", 10)
CPU = multicore("a CPU", cores=2, vector_bytes=32, l1_bytes=1 << 15, l2_bytes=1 << 19, llc_bytes=1 << 24)
RNG = np.random.default_rng(0)
X, G, W = (RNG.standard_normal(s).astype(np.float32) for s in ((6, 24), (24,), (24, 10)))


def gained(weights: bool = True) -> Program:
    """x @ (g*w) + sum_k g*w, where g and w are weights, or are passed."""
    scaled = mul(read("g", K), read("w", K, N))
    summed = reduce("sum", K, mul(read("x", M, K), scaled))
    p = program("p", {"x": (6, 24), "g": (24,), "w": (24, 10)}, {"y": ((M, N), op("exp", summed))})
    return replace(p, weights={"g": G, "w": W}) if weights else p


def reference(x: np.ndarray, g: np.ndarray, w: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.exp(x.astype(np.float64) @ (g[:, None] * w))
    return found


def best(p: Program) -> SGraph:
    return generate(task(p), Bounds()).candidates[0].sgraph


def test_what_the_model_fixes_is_said_of_the_inputs() -> None:
    assert [t.weight for t in gained().inputs] == [False, True, True]
    assert not any(t.weight for t in gained(False).inputs)
    assert [t.weight for t in canonical(gained()).program.inputs] == [False, True, True]
    assert canonical(gained()).key != canonical(gained(False)).key, "searched apart"


def test_it_is_a_launch_of_its_own_that_no_call_runs() -> None:
    g = best(gained())
    (made,) = g.prepared
    assert len(g.kernels) == 2
    (kernel,) = (k for k in g.kernels if k.name == made)
    assert kernel.reads == ("g", "w")
    assert sgraph_of(plain(g)).prepared == g.prepared
    assert not fusable(g, sharing=False)


def test_of_what_is_passed_nothing_is_prepared() -> None:
    g = best(gained(False))
    assert not g.prepared
    assert len(g.kernels) == 1


def test_more_bytes_than_the_weights_have_are_not_stored_for_nothing() -> None:
    """An outer product of two vectors is cheaper to make than to read."""
    m, k, n = Axis("m", 4), Axis("k", 4096), Axis("n", 4096)
    summed = reduce("sum", k, mul(read("x", m, k), mul(read("g", k), read("b", n))))
    p = program("p", {"x": (4, 4096), "g": (4096,), "b": (4096,)}, {"y": ((m, n), summed)})
    assert not best(replace(p, weights={"g": np.ones(4096), "b": np.ones(4096)})).prepared


def test_an_output_that_hangs_on_weights_alone_is_computed_at_each_call() -> None:
    p = program(
        "p", {"x": (6,), "g": (24,)}, {"y": ((M,), op("exp", read("x", M))), "z": ((K,), op("exp", read("g", K)))}
    )
    assert not best(replace(p, weights={"g": G})).prepared


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_a_call_costs_what_it_runs(kind: str) -> None:
    g = best(gained())
    config = Config({s.name: 16 for s in g.symbols}, {x.name: 4 for x in g.launches}, {x.name: 2 for x in g.launches})
    model = CpuModel(g, CPU, {}) if kind == "cpu" else Model(g, device("sm_90"), {})
    found = {k.name: k.seconds for k in model.estimate(config).per_kernel}
    (made,) = g.prepared
    assert 0 < found.pop(made) < 1e-4 * sum(found.values())
    passed = replace(g, inputs=tuple(replace(t, weight=False) for t in g.inputs))
    assert (CpuModel(passed, CPU, {}) if kind == "cpu" else Model(passed, device("sm_90"), {})).seconds(
        config
    ) > model.seconds(config)


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_no_trial_is_spent_on_what_no_call_runs(kind: str) -> None:
    g = best(gained())
    d = CPU if kind == "cpu" else device("sm_90")
    model = CpuModel(g, CPU, {}) if kind == "cpu" else Model(g, d, {})
    points = [c for c, _ in Space(g, d, {}).points_ranked(model, 12)]
    (made,) = (k for k in g.kernels if k.name in g.prepared)
    own = {s.name for s in made.symbols}
    assert len({tuple(v for n, v in sorted(c.symbols.items()) if n in own) for c in points}) == 1
    assert len({c.key() for c in points}) == len(points) > 1


def test_what_outlives_calls_shares_no_memory_with_what_does_not() -> None:
    module = lower(best(gained()))
    (kept,) = module.kept
    assert kept.name not in {b.name for group in shared_places(module) for b in group}
    assert [t.name for t in module.fixed] == ["g", "w"]
    assert not {*module.prepared} & {*module.order}


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    g = best(gained())
    source = emit_module(g, configs={"cpu": [Config({s.name: 4 for s in g.symbols}, {}, {})]}, weights=True)
    torch.save({"g": torch.from_numpy(G), "w": torch.from_numpy(W)}, tmp_path / "weights.pt")
    return load(write_module(source, tmp_path / "m.py"), "prepared")


@compiled
def test_on_a_cpu_it_is_made_once_of_weights_that_are_held(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    inner = module._prepared

    def counted(run, *rest):  # type: ignore[no-untyped-def]
        before = len(module._MADE)
        made = inner(run, *rest)
        calls.append(len(module._MADE) - before)
        return made

    monkeypatch.setattr(module, "_prepared", counted)
    for _ in range(3):
        np.testing.assert_allclose(module.p(X), reference(X, G, W), rtol=1e-4)
    again = module.p(torch.from_numpy(X))
    np.testing.assert_allclose(again.numpy(), reference(X, G, W), rtol=1e-4)
    assert calls == [1, 0, 0, 0]


@compiled
def test_on_a_cpu_other_weights_are_looked_at_anew(module: ModuleType) -> None:
    g, w = G.copy(), W.copy()
    np.testing.assert_allclose(module.p(X, g, w), reference(X, g, w), rtol=1e-4)
    g *= 0.5  # nobody said that they stay as they are
    np.testing.assert_allclose(module.p(X, g, w), reference(X, g, w), rtol=1e-4)
    assert not module._MADE
    module.hold([g, w])
    np.testing.assert_allclose(module.p(X, g, w), reference(X, g, w), rtol=1e-4)
    assert len(module._MADE) == 1
    np.testing.assert_allclose(module.p(X, g, 2 * w), reference(X, g, 2 * w), rtol=1e-4)
    assert len(module._MADE) == 1
    del g
    gc.collect()
    assert not module._MADE
    for n in range(20):  # some of them where the other was
        other = np.full((24,), n / 20, np.float32)
        np.testing.assert_allclose(module.p(X, other, w), reference(X, other, w), rtol=1e-4)


def test_on_a_gpu_launches_yield_it_until_it_is_kept(interpreter: InterpreterPool, tmp_path: Path) -> None:
    g = best(gained())
    source = emit_triton(g, formula="p", configs={}, weights=True)
    ast.parse(source.text)
    text = source.text
    begin = text.index("if made is None:")
    (made,) = g.prepared
    launched, kept = text.index(f"{made},", begin), text.index("_keep((g, w), config, ", begin)
    assert begin < launched < kept < text.index(f"{source.kernels[-1]},", kept)
    assert text.count("kernel[grid]") == 1
    assert "hold([_WEIGHTS[name, device]])" in text
    path = tmp_path / "p.py"
    path.write_text(text)
    config = Config({s.name: 16 for s in g.symbols}, dict.fromkeys(source.kernels, 4), dict.fromkeys(source.kernels, 2))
    job = InterpretJob(path, source.entry, (X, G, W), ("float32",) * 3, config)
    (answer,) = interpreter.run_many([job])
    assert not answer.error
    np.testing.assert_allclose(answer.outputs[0], reference(X, G, W), rtol=1e-3)


class Norm(torch.nn.Module):
    """RMSNorm and a projection with a bias, as models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.bias = torch.nn.Parameter(torch.rand(64)), torch.nn.Parameter(torch.rand(64))
        self.project = torch.nn.Linear(64, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = torch.nn.functional.layer_norm(x, (64,), self.gain, self.bias)
        out: torch.Tensor = self.project(normal)
        return out


def test_gain_and_bias_of_a_norm_go_into_the_projection() -> None:
    found = search(trace(Norm(), (torch.randn(32, 64),)), target="cpu").run().proved
    first = found[0].sgraph
    reads = sorted(k.reads for k in first.kernels if k.name in first.prepared)
    assert len(first.kernels) - len(first.prepared) == 1
    assert [set(r) for r in reads] == [{"bias", "project_weight", "project_bias"}, {"gain", "project_weight"}]


@pytest.mark.parametrize("rows", [1, 8192])
def test_codes_become_floats_where_reading_them_pays(rows: int) -> None:
    """Codes of 8 bits are four times the bytes as floats, which many rows are worth on a CPU and one is not."""
    a, n, k = Axis("m", rows), Axis("n", 512), Axis("k", 512)
    number = mul(add(read("q", k, n), const(-8.0)), read("s", n))
    outputs: dict[str, tuple[tuple[Axis, ...], Expr]] = {"y": ((a, n), reduce("sum", k, mul(read("x", a, k), number)))}
    p = program("p", {"x": (rows, 512), "q": (512, 512), "s": (512,)}, outputs)
    inputs = tuple(replace(t, dtype=DType.INT8) if t.name == "q" else t for t in p.inputs)
    p = replace(p, inputs=inputs, weights={"q": np.zeros((512, 512), np.int8), "s": np.ones(512, np.float32)})
    first = generate(replace(task(p), device=CPU), Bounds()).candidates[0].sgraph
    assert bool(first.prepared) == (rows > 1)


def test_a_report_says_what_runs_once_and_what_it_keeps() -> None:
    def made(once: int) -> RunReport:
        rows = tuple(replace(k, once=n < once) for n, k in enumerate(report_sample().kernels))
        return report_sample(kernels=rows, prepared_bytes=3 << 19)

    assert prepared_note(made(0)) == ""
    one = prepared_note(made(1))
    assert one == "One more hangs on the weights alone, runs once and keeps 1.5 MiB beside them."
    assert prepared_note(made(2)).startswith("2 more hang on the weights alone, run once")
    page = render_html(made(1), artifacts().proof)
    assert ">once<" in page
    assert one in page


def test_a_number_that_weights_read_is_stored_before_them() -> None:
    """Though it has no axes, and calls make it as well where they go through the same numbers."""
    k = Axis("k2", 24)
    total = reduce("sum", K, read("g", K))
    centred = add(read("g", k), op("neg", mul(const(1 / 24), total)))
    summed = reduce("sum", k, mul(read("x", M, k), mul(centred, read("h", k))))
    whole = mul(add(summed, total), reduce("sum", k, mul(read("x", M, k), read("g", k))))
    p = program("p", {"x": (6, 24), "g": (24,), "h": (24,)}, {"y": ((M,), whole)})
    found = [c.sgraph for c in generate(task(replace(p, weights={"g": G, "h": G})), Bounds()).candidates]
    numbers = {b.name for g in found for b in g.buffers if b.shape == ()}
    assert any(n in x.writes for g in found for x in g.kernels for n in numbers if x.name in g.prepared)
    for g in found:
        check(g)
