"""Emitted C++ modules: what the sources look like, what the launcher takes and refuses, compiling, running, timing."""

from __future__ import annotations

import ctypes
import pickle
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import sgraph_samples as samples
import sympy
import torch
from cpu_batch import load
from quick import slow_but
from sgraph_samples import BF16, F32, Sample
from torch._subclasses.fake_tensor import FakeTensorMode

import prism
from prism.backends.cpu import build, machine
from prism.backends.cpu.build import compile_module, find_compiler, require_compiler
from prism.backends.cpu.cxx import Names
from prism.backends.cpu.emit import CPP, emit_module
from prism.backends.lower import lower
from prism.backends.protocol import write_module
from prism.backends.tile import For, Full, Update
from prism.backends.triton.emit import TRITON
from prism.errors import BackendError
from prism.generate.enumerate import Bounds, Candidate, Generated, Task, generate
from prism.instantiate.gate import check
from prism.instantiate.gate.check import KernelRunner, Output
from prism.ir.kit import statements
from prism.platforms.cpu_children import WORKER, cpu_environment
from prism.process.child import module_command
from prism.process.deadline import Deadline
from prism.process.worker import Worker
from prism.program.nodes import DType, SymbolRange, Tensor
from prism.program.returned import Computed, Made, Passed
from prism.sgraph.config import Config

pytestmark = pytest.mark.usefixtures("unoptimised")
compiled = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")


def config(symbols: Mapping[str, int]) -> Config:
    return Config(symbols, {}, {})


def kernels(sample: Sample) -> str:
    """The sources of the kernels, without the support code."""
    source = emit_module(sample.sgraph)
    return "\n".join(
        text[text.index("namespace PRISM_NAME") :] for text in source.extra.values() if "namespace PRISM_NAME" in text
    )


@pytest.fixture(scope="module")
def rmsnorm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sample, Path]:
    """A module on disk that is compiled once: it has symbolic rows."""
    sample = samples.rmsnorm_linear(F32, m=samples.sym("M"))
    source = emit_module(sample.sgraph, formula="y = rmsnorm(x)*g @ w", configs={"cpu": [config(sample.symbols[0])]})
    return sample, write_module(source, tmp_path_factory.mktemp("rmsnorm") / f"{source.entry}.py")


@pytest.fixture(scope="module")
def module(rmsnorm: tuple[Sample, Path]) -> ModuleType:
    return load(rmsnorm[1], "rmsnorm_module")


def inputs(m: int = 20) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(np.float32) for s in ((m, 72), (72,), (72, 24))]


def reference(x: np.ndarray, g: np.ndarray, w: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    result: np.ndarray = (wide / np.sqrt((wide**2).mean(-1, keepdims=True) + samples.EPS) * g) @ w
    return result


# Sources.


def test_nothing_is_deferred_past_a_loop() -> None:
    for defer, deferred in ((True, True), (False, False)):
        (program,) = lower(samples.layernorm().sgraph, defer=defer).programs
        in_loops = [s for f in statements(program.body) if isinstance(f, For) for s in statements(f.body)]
        dims = {s.dst: len(s.dims) for s in statements(program.body) if isinstance(s, Full)}
        sizes = [dims[s.acc] for s in in_loops if isinstance(s, Update)]
        assert sizes
        assert (max(sizes) == 2) is deferred


def test_an_exponential_is_computed_once_though_two_statements_use_it() -> None:
    text = kernels(samples.attention())
    # one for the weights, one for the factor by which accumulators are rescaled
    assert len(re.findall(r"= v_exp\(", text)) == 2
    assert text.count("multiply(") == 2


def test_reductions_over_one_tile_share_a_nest() -> None:
    text = kernels(samples.moments())
    assert text.count("auto body") < text.count("::of(") + text.count("v_st(")
    nests = re.findall(r"PRISM_BODY \{(.*?)\n {12,}\};", text, re.DOTALL)
    assert max(nest.count("part.n] =") for nest in nests) >= 2


def test_vectors_go_along_an_axis_that_fills_them() -> None:
    """Three taps are no vector, though what is read of x and w has neighbours along them."""
    text = kernels(samples.filtered())
    assert set(re.findall(r"auto part, int64_t (\w+), int64_t lanes", text)) == {"i_offs_n"}
    assert "i_offs_u * n_offs_h * n_offs_n" in text, "what one sum leaves for the other lies in vectors, too"


def test_a_row_of_a_product_reads_the_weight_where_it_is() -> None:
    text = kernels(samples.matmul(m=1))
    (call,) = re.findall(r"multiply\((.*?)\);", text, re.DOTALL)
    assert "p_w +" in call
    # One row, whatever the tile: nothing is padded.
    assert re.search(r"^ *1, n_offs_k, n_offs_n, ", call, re.MULTILINE)


@compiled
def test_a_pointwise_convolution_multiplies_pixels_together_and_makes_them_as_they_are_stored(tmp_path: Path) -> None:
    def pointwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.nn.functional.conv2d(x, w))

    x, w = torch.randn(2, 24, 9, 12), torch.randn(40, 24, 1, 1)
    best, *_ = prism.search(prism.trace(pointwise, [x, w]), target="cpu")
    source = emit_module(best.sgraph)
    (text,) = (t for name, t in source.extra.items() if "kernel" in name)
    body = text[text.index("_program(int64_t pid") :]
    assert body.count("multiply(") == 1
    assert re.search(r"multiply\(\n.*\n *p_w .*\n *p_x ", body), "channels are rows and pixels columns"
    assert "v_gather(" not in body, "nothing is stored with a stride"
    module = load(write_module(source, tmp_path / f"{source.entry}.py"), "pointwise_module")
    names = [s.name for s in best.sgraph.symbols]
    for tile in (64, 8):  # as long as all axes, and shorter than some
        got = getattr(module, source.entry)(x, w, config={"symbols": dict.fromkeys(names, tile)})
        torch.testing.assert_close(got, pointwise(x, w), rtol=1e-4, atol=1e-4)


def convolved(x: Sequence[int], w: Sequence[int], **how: Any) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    """A convolution of random numbers, by the shapes of its image and its weights."""
    function = {3: torch.nn.functional.conv1d, 4: torch.nn.functional.conv2d}[len(x)]

    def convolution(image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(function(image, weight, **how))

    return convolution, [torch.randn(x), torch.randn(w) / 8]


WINDOWS: Mapping[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "padded": convolved((2, 24, 9, 11), (20, 24, 3, 3), padding=1),
    "strided": convolved((1, 33, 12, 9), (20, 33, 3, 3), padding=1, stride=2),
    "dilated": convolved((1, 32, 13, 9), (16, 32, 3, 2), dilation=2, stride=(3, 1)),
    "grouped": convolved((2, 12, 7, 6), (24, 4, 3, 3), padding=2, groups=3),
    "along one axis": convolved((3, 20, 19), (8, 20, 5), padding=2),
    "few channels": convolved((1, 3, 17, 15), (8, 3, 7, 7), padding=3, stride=2),
    "rows that are summed": (
        lambda image, weight: torch.relu(torch.nn.functional.conv2d(image, weight, padding=1)).sum(3),
        [torch.randn(1, 24, 9, 7), torch.randn(20, 24, 3, 3) / 8],
    ),
}


@compiled
@pytest.mark.parametrize("name", WINDOWS)
def test_a_convolution_is_one_product_over_a_window(name: str, tmp_path: Path) -> None:
    """Of tiles as long as all axes and of ragged ones, and of numbers that are not finite."""
    function, inputs = WINDOWS[name]
    best, *_ = prism.search(prism.trace(function, inputs), target="cpu")
    source = emit_module(best.sgraph)
    (text,) = (t for key, t in source.extra.items() if "kernel" in key)
    body = text[text.index("_program(int64_t pid") :]
    assert body.count("multiply_window(") == 1
    assert "multiply(" not in body
    assert "v_gather(" not in body, "nothing is gathered tap by tap"
    module = load(write_module(source, tmp_path / f"{source.entry}.py"), "convolution_module")
    names = [s.name for s in best.sgraph.symbols]
    for tile, odd in ((64, None), (5, None), (5, float("nan")), (64, float("inf")), (64, 3e38)):
        image, weight = (x.clone() for x in inputs)
        if odd is not None:
            image.flatten()[image.numel() // 2] = odd
        given = {"image": image, "weight": weight}
        got = getattr(module, source.entry)(
            *(given[t.name] for t in best.sgraph.inputs), config={"symbols": dict.fromkeys(names, tile)}
        )
        wanted = function(image.double(), weight.double()).float()
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5 if odd != 3e38 else 1e33, equal_nan=True)


@compiled
@pytest.mark.parametrize("stride", [1, 2])
def test_a_product_of_a_models_weight_with_pixels_is_a_window_of_one_tap(stride: int, tmp_path: Path) -> None:
    """It is packed once and kept; of channels' tiles that follow one another what is seen is copied once."""
    convolution = torch.nn.Conv2d(24, 40, 1, stride)
    model = torch.nn.Sequential(convolution, torch.nn.ReLU()).eval()
    x = torch.randn(2, 24, 9, 13)
    best, *_ = prism.search(prism.trace(model, [x]), target="cpu")
    source = emit_module(best.sgraph)
    (text,) = (t for name, t in source.extra.items() if "kernel" in name)
    body = text[text.index("_program(int64_t pid") :]
    assert body.count("multiply_window(") == 1
    assert "multiply(" not in body
    assert body.index("T_d40") < body.index("T_d9" if stride == 1 else "T_d5"), "channels change fastest"
    module = load(write_module(source, tmp_path / f"{source.entry}.py"), "one_tap_module")
    weights = [w.detach() for w in convolution.parameters()]
    given = [next((w for w in weights if w.shape == t.shape), x) for t in best.sgraph.inputs]
    for tile in (64, 8, 5):
        got = getattr(module, source.entry)(*given, config={"symbols": {s.name: tile for s in best.sgraph.symbols}})
        torch.testing.assert_close(got, model(x).detach(), rtol=1e-5, atol=1e-5)


@compiled
def test_a_convolution_of_what_is_put_side_by_side_sees_its_pieces_in_turn(tmp_path: Path) -> None:
    """And of what lies beside a piece in memory nothing."""

    def joined(one: torch.Tensor, other: torch.Tensor, last: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.nn.functional.conv2d(torch.cat([one, other, last], 1), weight, padding=1))

    given = [torch.randn(2, n, 9, 11) for n in (17, 8, 20)]
    weight = torch.randn(24, 45, 3, 3) / 8
    best, *_ = prism.search(prism.trace(joined, [*given, weight]), target="cpu")
    source = emit_module(best.sgraph)
    (text,) = (t for key, t in source.extra.items() if "kernel" in key)
    body = text[text.index("_program(int64_t pid") :]
    assert body.count("multiply_window(") == 3
    module = load(write_module(source, tmp_path / f"{source.entry}.py"), "joined_module")
    for tile, odd in ((64, None), (5, None), (5, float("nan"))):
        if odd is not None:
            given[1][1, 3, 4, 5] = odd
        named = dict(zip(("one", "other", "last", "weight"), (*given, weight), strict=True))
        got = getattr(module, source.entry)(
            *(named[t.name] for t in best.sgraph.inputs),
            config={"symbols": {s.name: tile for s in best.sgraph.symbols}},
        )
        wanted = joined(*(x.double() for x in (*given, weight))).float()
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@compiled
def test_sums_of_a_window_are_as_exact_where_a_weight_is_not_finite(tmp_path: Path) -> None:
    """Pixels are computed one by one then, and a sum of so many terms, one after another, is not exact in float32."""
    function, inputs = convolved((1, 256, 14, 14), (256, 256, 3, 3), padding=1)
    best, *_ = prism.search(prism.trace(function, inputs), target="cpu")
    source = emit_module(best.sgraph)
    module = load(write_module(source, tmp_path / f"{source.entry}.py"), "inexact_module")
    image, weight = inputs[0] + 2, inputs[1] + 0.5
    weight[3, 5, 1, 1] = float("nan")
    named = {"image": image, "weight": weight}
    symbols = {s.name: 64 for s in best.sgraph.symbols}
    got = getattr(module, source.entry)(*(named[t.name] for t in best.sgraph.inputs), config={"symbols": symbols})
    wanted = function(image.double(), weight.double()).float()
    own = slice(0, 64)  # what the programs make that meet this weight
    torch.testing.assert_close(got[:, own], wanted[:, own], rtol=5e-7, atol=0, equal_nan=True)


def test_what_a_short_search_has_of_a_convolution_is_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is offered before the e-graph is walked, which is all that a run has whose time ends in the search."""
    found: list[Candidate] = []

    def watched(
        task: Task, bounds: Bounds, soon: Callable[[Candidate], None], until: Callable[[], Deadline]
    ) -> Generated:
        def both(candidate: Candidate) -> None:
            found.append(candidate)
            soon(candidate)

        return generate(task, bounds, both, until)

    def block(image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.nn.functional.conv2d(image, weight, bias, padding=1) + rest)

    monkeypatch.setattr("prism.api.region_search.generate", watched)
    inputs = torch.randn(1, 64, 28, 28), torch.randn(64, 64, 3, 3), torch.randn(64), torch.randn(1, 64, 28, 28)
    next(prism.search(prism.trace(block, inputs), target="cpu"))
    (first,) = found
    assert len(first.sgraph.kernels) == 1
    assert "multiply_window(\n" in "".join(emit_module(first.sgraph).extra.values())


def test_a_filter_as_large_as_the_image_is_no_window() -> None:
    """Nearly all that a window would compute are no pixels."""
    function, inputs = convolved((4, 8, 14, 14), (8, 8, 12, 12))
    best, *_ = prism.search(prism.trace(function, inputs), target="cpu")
    assert "multiply_window(\n" not in "".join(emit_module(best.sgraph).extra.values())


@compiled
def test_rows_that_data_choose_are_loaded_along_the_row(tmp_path: Path) -> None:
    sample = samples.looked_up_product()
    assert "v_pick(" not in kernels(sample), "16 elements of as many rows, one by one"
    source = emit_module(sample.sgraph)
    made = load(write_module(source, tmp_path / f"{source.entry}.py"), "looked_up_module")
    inputs = sample.inputs({})
    got = getattr(made, source.entry)(*inputs, config={"symbols": sample.symbols[0]})
    (wanted,) = sample.reference(*inputs)
    assert np.abs(got - wanted).max() < 1e-4


def test_programs_that_differ_are_handed_out_one_by_one() -> None:
    cut = kernels(samples.matmul())
    assert "schedule(static)" in cut
    (condition,) = (line for line in cut.splitlines() if "if (!(" in line)
    assert condition.count(" % ") == 2, "rows and columns, of which the last tiles may have fewer"
    assert cut.index(condition) < cut.index("schedule(dynamic, few)") < cut.index("schedule(static)")
    assert "schedule(dynamic, 1)" in kernels(samples.causal_symbolic()) or "stop_" not in kernels(
        samples.causal_symbolic()
    )


def test_what_is_named_on_the_way_has_no_name_of_the_program() -> None:
    names = Names(["inverse", "inverse_2", "int", "n_ctx"])
    made = [names.fresh(names(n)) for n in ("inverse", "inverse", "inverse_2", "int")]
    assert made == ["inverse_1", "inverse_3", "inverse_2_1", "xint_1"]


def test_the_same_sgraph_gives_the_same_sources() -> None:
    one, other = emit_module(samples.split_attention().sgraph), emit_module(samples.split_attention().sgraph)
    assert (one.text, one.extra) == (other.text, other.extra)


# The launcher.


@compiled
@pytest.mark.parametrize("m", [1, 2, 5, 20, 33])
def test_rows_of_any_number_go_through_one_module(module: ModuleType, m: int) -> None:
    given = inputs(m)
    got = module.rmsnorm_linear(*given)
    np.testing.assert_allclose(got, reference(*given), atol=1e-4)


@compiled
def test_torch_in_torch_out_and_outputs_that_are_given(module: ModuleType) -> None:
    given = inputs()
    tensors = [torch.from_numpy(a) for a in given]
    # What is not contiguous is copied.
    tensors[2] = tensors[2].t().contiguous().t()
    got = module.rmsnorm_linear(*tensors, threads=1)
    assert isinstance(got, torch.Tensor)
    np.testing.assert_allclose(got.numpy(), reference(*given), atol=1e-4)
    out = torch.full((20, 24), float("nan"))
    assert module.rmsnorm_linear(*tensors, out=(out,)) is out
    np.testing.assert_array_equal(out.numpy(), got.numpy())


@compiled
@pytest.mark.parametrize("sample", [samples.add_silu(), samples.rotated()], ids=["add_silu", "rotated"])
def test_a_result_is_laid_out_by_itself_however_arguments_are_stored(sample: Sample, tmp_path: Path) -> None:
    source = emit_module(sample.sgraph)
    made = load(write_module(source, tmp_path / "m.py"), "laid_out")
    entry = getattr(made, source.entry)
    given = [torch.from_numpy(np.asarray(a)) for a in sample.inputs({})]

    def called(arguments: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        found = entry(*arguments, config={"symbols": sample.symbols[0]})
        return found if isinstance(found, tuple) else (found,)

    wanted = called(given)
    assert any(x.shape == wanted[0].shape for x in given)
    in_another_order = [x.movedim(0, -1).contiguous().movedim(-1, 0) for x in given]
    with_gaps = [x.repeat_interleave(2, -1)[..., ::2] for x in given]
    for stored in (in_another_order, with_gaps):
        assert not stored[0].is_contiguous()
        got = called(stored)
        assert all(y.is_contiguous() for y in got)
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@compiled
def test_bfloat16_without_torch_is_mldtypes_or_bits(tmp_path: Path) -> None:
    import ml_dtypes

    sample = samples.matmul(BF16)
    source = emit_module(sample.sgraph)
    made = load(write_module(source, tmp_path / "m.py"), "bf16_module")
    x, w = (np.asarray(a).astype(ml_dtypes.bfloat16) for a in sample.inputs({}))
    chosen = {"symbols": sample.symbols[0]}
    entry = getattr(made, source.entry)
    got = entry(x, w, config=chosen)
    assert got.dtype == ml_dtypes.bfloat16
    bits = entry(x.view(np.uint16), w.view(np.uint16), config=chosen)
    np.testing.assert_array_equal(bits.astype(np.float32), got.astype(np.float32))


def test_arguments_are_checked(module: ModuleType) -> None:
    x, g, w = inputs()
    with pytest.raises(ValueError, match="x must be float32, not float64"):
        module.rmsnorm_linear(x.astype(np.float64), g, w)
    with pytest.raises(ValueError, match=r"w must have the shape \(72, 24\)"):
        module.rmsnorm_linear(x, g, w.T)
    with pytest.raises(ValueError, match="g must be a numpy array or a torch tensor"):
        module.rmsnorm_linear(x, g.tolist(), w)
    with pytest.raises(ValueError, match="y must be contiguous"):
        module.rmsnorm_linear(x, g, w, out=(np.empty((24, 20), np.float32).T,))
    with pytest.raises(ValueError, match="y must have the shape"):
        module.rmsnorm_linear(x, g, w, out=(np.empty((21, 24), np.float32),))
    for one, kind in ((x, np.asarray), (torch.from_numpy(x), torch.as_tensor)):
        with pytest.raises(ValueError, match="y overlaps x in memory"):
            module.rmsnorm_linear(one, kind(g), kind(w), out=(one.reshape(-1)[72:552].reshape(20, 24),))


@compiled
def test_a_length_is_checked_where_it_is_not_told(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    x, g, w = (torch.from_numpy(a) for a in inputs())
    with pytest.raises(ValueError, match="x must be on the CPU, not on meta"):
        module.rmsnorm_linear(x.to("meta"), g, w)
    with pytest.raises(ValueError, match=r"x must have the shape \(\*, 72\), not \(20,\)"):
        module.rmsnorm_linear(x[:, 0], g, w)
    checked: list[str] = []
    monkeypatch.setattr(module, "_expect", lambda name, *_: checked.append(name))
    module.rmsnorm_linear(x, g, w)
    # The rows of x are what x says.
    assert checked == ["x", "g", "w"]


def test_what_requires_a_gradient_is_not_silently_detached(module: ModuleType) -> None:
    x, g, w = (torch.from_numpy(a) for a in inputs())
    g.requires_grad_()
    with pytest.raises(ValueError, match=r"g requires a gradient, .* torch\.compile\(model, backend='prism'\)"):
        module.rmsnorm_linear(x, g, w)
    with torch.no_grad():
        got = module.rmsnorm_linear(x, g, w)
    torch.testing.assert_close(got, module.rmsnorm_linear(x, g.detach(), w))


@compiled
def test_tensors_without_memory_are_refused_and_not_read(module: ModuleType) -> None:
    """Kernels would read address 0."""
    given = [torch.from_numpy(a) for a in inputs()]
    with FakeTensorMode() as mode, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of who asks where they are
        fake = [mode.from_tensor(t) for t in given]
        with pytest.raises(ValueError, match=r"no memory .* call torch_op\(\)"):
            module.rmsnorm_linear(*fake)
    with pytest.raises(ValueError, match=r"no memory .* call torch_op\(\)"):
        torch.vmap(lambda x: module.rmsnorm_linear(x, *given[1:]))(given[0][None])


@compiled
def test_a_module_is_an_operator_of_torch(module: ModuleType) -> None:
    """One node to Dynamo and to torch.export, for any number of rows, and no gradient in silence."""
    op = module.torch_op()
    assert module.torch_op() is op
    assert str(op).startswith("prism.rmsnorm_linear_")
    given = [torch.from_numpy(a) for a in inputs()]
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(op.default, tuple(given), test_utils=checks)

    def model(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(op(x * 2, g, w))

    whole = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for m in (20, 33):
        x, g, w = (torch.from_numpy(a) for a in inputs(m))
        torch.testing.assert_close(whole(x, g, w), torch.relu(module.rmsnorm_linear(x * 2, g, w)))
    rows = {"x": {0: torch.export.Dim("rows")}, "g": None, "w": None}

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return model(x, g, w)

    exported = torch.export.export(Model(), tuple(given), dynamic_shapes=rows)
    assert [n.target for n in exported.graph.nodes].count(op.default) == 1
    torch.testing.assert_close(exported.module()(x, g, w), model(x, g, w))
    loss = op(given[0].requires_grad_(), *given[1:]).sum()
    with pytest.raises(RuntimeError, match="no autograd formula"):
        loss.backward()


@compiled
def test_an_operator_of_torch_reads_weights_and_returns_nothing_that_it_takes(tmp_path: Path) -> None:
    sample = samples.rmsnorm_linear()
    returned = (Passed("x"), Computed(0), Made(Tensor("one", (), F32), (2.5,)))
    source = emit_module(sample.sgraph, configs={"cpu": [config(sample.symbols[0])]}, weights=True, returned=returned)
    x, g, w = (torch.from_numpy(a) for a in inputs())
    torch.save({"g": g, "w": w}, tmp_path / "weights.pt")
    op = load(write_module(source, tmp_path / "m.py"), "operator").torch_op()
    passed, made, one = torch.compile(lambda x: op(x), backend="eager", fullgraph=True)(x)
    assert passed.data_ptr() != x.data_ptr()
    torch.testing.assert_close(passed, x)
    np.testing.assert_allclose(made.numpy(), reference(*inputs()), atol=1e-4)
    assert one.item() == 2.5
    for backend in (CPP, TRITON):
        text = "".join(backend.emit(sample.sgraph, weights=True, returned=returned).text.split())
        told = "(Tensor? x=None, Tensor? g=None, Tensor? w=None) -> (Tensor, Tensor, Tensor)"
        assert "".join(told.split()) in text


def test_a_module_without_configurations_asks_for_one(tmp_path: Path) -> None:
    source = emit_module(samples.matmul().sgraph)
    made = load(write_module(source, tmp_path / "m.py"), "unconfigured")
    with pytest.raises(ValueError, match="pass config="):
        getattr(made, source.entry)(*samples.matmul().inputs({}))


def test_lengths_that_a_program_is_not_for_are_refused(tmp_path: Path) -> None:
    """A slice of a symbolic dimension may read what smaller tensors, or larger ones, do not have."""
    sample = samples.symbolic_matmul()
    x, w = sample.inputs({"M": 9})
    bounded = emit_module(sample.sgraph, ranges={"M": SymbolRange(3, 8, hint=5)})
    called = getattr(load(write_module(bounded, tmp_path / "bounded.py"), "bounded"), bounded.entry)
    for rows in (2, 9):
        with pytest.raises(ValueError, match=f"the length M must be at least 3 and at most 8, not {rows}"):
            called(x[:rows], w)
    # Proofs take it that there is an element along every axis: a sum over softmax's axis is 1, and of nothing it is 0.
    least = emit_module(sample.sgraph, ranges={"M": SymbolRange(1, 8, hint=5)})
    with pytest.raises(ValueError, match="the length M must be at least 1 and at most 8, not 0"):
        getattr(load(write_module(least, tmp_path / "least.py"), "least"), least.entry)(x[:0], w)
    # How large it may be is not said, so there is nothing to refuse: what is missing is a configuration.
    unbounded = emit_module(sample.sgraph, ranges={"M": SymbolRange(1, 8, hint=5, open=True)})
    called = getattr(load(write_module(unbounded, tmp_path / "unbounded.py"), "unbounded"), unbounded.entry)
    with pytest.raises(ValueError, match="pass config="):
        called(x, w)
    for backend in (CPP, TRITON):
        text = backend.emit(sample.sgraph, ranges={"M": SymbolRange(3, 8, hint=5, open=True)}).text
        assert "if M < 3:" in text


@compiled
@pytest.mark.parametrize("dtype", [F32, BF16], ids=lambda d: d.value)
def test_weights_may_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: DType) -> None:
    sample = samples.rmsnorm_linear(dtype)
    source = emit_module(sample.sgraph, configs={"cpu": [config(sample.symbols[0])]}, weights=True)
    kind = getattr(torch, dtype.value)
    x, g, w = (torch.from_numpy(a).to(kind) for a in inputs())
    # Stored as torch stores what is not contiguous, and what shares memory.
    torch.save({"g": g, "w": w.t().contiguous().t(), "same": g[3:9]}, tmp_path / "weights.pt")
    exact = reference(*(t.double().numpy() for t in (x, g, w)))
    atol = 1e-4 if dtype is F32 else 0.13
    made = load(write_module(source, tmp_path / "m.py"), f"weighted_{dtype.value}")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch", None)
        bits = x.view(torch.uint16) if dtype is BF16 else x
        got = made.rmsnorm_linear(bits.numpy())
        assert isinstance(got, np.ndarray)
        np.testing.assert_allclose(got.astype(np.float64), exact, atol=atol)
        with pytest.raises(ValueError, match="x is missing"):
            made.rmsnorm_linear()
    again = made.rmsnorm_linear(x)
    assert again.dtype is kind
    np.testing.assert_array_equal(again.float().numpy(), got.astype(np.float32))


def test_where_weights_lie_is_asked_once_and_forgotten_with_them(rmsnorm: tuple[Sample, Path]) -> None:
    own = load(rmsnorm[1], "rmsnorm_places")
    x, g, w = inputs()
    own.hold([g, w])
    assert {id(g), id(w)} <= own._PLACES.keys()
    np.testing.assert_allclose(own.rmsnorm_linear(x, g, w), reference(x, g, w), atol=1e-4)
    g *= 2  # what lies there may change
    np.testing.assert_allclose(own.rmsnorm_linear(x, g, w), reference(x, g, w), atol=1e-4)
    place = id(g)
    del g
    assert place not in own._PLACES
    for n in range(20):  # some of them where the other was
        other = np.full((72,), n, np.float32)
        np.testing.assert_allclose(own.rmsnorm_linear(x, other, w), reference(x, other, w), atol=1e-3)


def test_the_weights_file_is_read_as_torch_reads_it(tmp_path: Path) -> None:
    sample = samples.rmsnorm_linear()
    made = load(write_module(emit_module(sample.sgraph, weights=True), tmp_path / "m.py"), "reads")
    kinds = [torch.float32, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]
    kept = {str(k): (7 * torch.randn(3, 4, generator=torch.Generator().manual_seed(0))).to(k) for k in kinds}
    kept |= {"one": torch.tensor(2.5), "none": torch.empty(0, 3), "part": kept["torch.float32"][1:, ::2]}
    torch.save(kept, tmp_path / "weights.pt")
    read = made._read_weights(tmp_path / "weights.pt")
    assert read.keys() == kept.keys()
    for name, tensor in kept.items():
        np.testing.assert_array_equal(read[name], tensor.numpy(), strict=True)
    torch.save({"a": torch.Size([1])}, tmp_path / "weights.pt")
    with pytest.raises(pickle.UnpicklingError, match="is no tensor"):
        made._read_weights(tmp_path / "weights.pt")


@compiled
def test_the_module_needs_neither_prism_nor_torch(rmsnorm: tuple[Sample, Path]) -> None:
    script = (
        "import sys; sys.modules['prism'] = sys.modules['torch'] = None; sys.path.insert(0, '.')\n"
        "import numpy as np, rmsnorm_linear as m\n"
        "ones = [np.ones(s, np.float32) for s in ((2, 72), (72,), (72, 24))]\n"
        "print(float(m.rmsnorm_linear(*ones)[1, 3]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=rmsnorm[1].parent, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert abs(float(done.stdout) - 72.0) < 1e-2


# Compiling.


def test_without_a_compiler_the_error_names_what_to_install(
    rmsnorm: tuple[Sample, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert find_compiler() is None
    with pytest.raises(BackendError, match=r"no C\+\+ compiler was found.*apt install g\+\+"):
        require_compiler()
    made = load(rmsnorm[1], "uncompiled")
    with pytest.raises(made.CompilerError, match=r"apt install g\+\+"):
        made.load({"symbols": {"T_m": 3, "T_n": 3, "T_d": 3}})


@compiled
def test_a_library_is_compiled_once_for_each_configuration(rmsnorm: tuple[Sample, Path]) -> None:
    symbols = {"T_m": 2, "T_n": 8, "T_d": 24}
    first, second = (compile_module(rmsnorm[1], config(symbols)) for _ in range(2))
    assert first.library == second.library
    assert first.library is not None
    assert first.seconds > 0.0 == second.seconds
    other = compile_module(rmsnorm[1], config({**symbols, "T_m": 4}))
    assert other.library != first.library


@compiled
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("optimised", [True, False])
def test_a_product_is_compiled_once_and_linked(
    dtype: DType, optimised: bool, tmp_path: Path, unoptimising: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all tiles, and for all modules that look into the same folder."""
    monkeypatch.setenv("PRISM_CPP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if not optimised:
        monkeypatch.setenv("CXX", str(unoptimising))
    sample = samples.matmul(dtype)
    source = emit_module(sample.sgraph)
    paths = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        paths.append(write_module(source, folder / f"{source.entry}.py"))
    (_, name) = build.products_of(paths[0])
    assert name == {F32: "multiply-float", BF16: "multiply_halves-bf16"}[dtype]
    assert not build.product_known(name, tmp_path / "cache")
    given = [torch.randint(-3, 4, t.shape).to(getattr(torch, dtype.value)) for t in sample.sgraph.inputs]
    (out,) = sample.sgraph.outputs
    for path, rows in zip(paths, (8, 16), strict=True):
        built = compile_module(path, config({**sample.symbols[0], "T_m": rows}))
        assert built.library is not None, built.error
        (made,) = (tmp_path / "cache").glob("multiply*.o")
        result = torch.zeros(out.shape, dtype=getattr(torch, dtype.value))
        pointers = (ctypes.c_void_p * 3)(*(t.data_ptr() for t in (*given, result)))
        ctypes.CDLL(str(built.library)).run(pointers, None, 1)
        assert torch.equal(result.float(), given[0].float() @ given[1].float())
    assert made.name.startswith(name)
    assert len([*(tmp_path / "cache").glob("launch_*.o")]) == len(paths)
    assert build.product_known(name, tmp_path / "cache")


@compiled
def test_what_is_damaged_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM_CPP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sample = samples.matmul()
    source = emit_module(sample.sgraph)
    path = write_module(source, tmp_path / f"{source.entry}.py")
    symbols = {**sample.symbols[0], "T_m": 8}
    (_, name) = build.products_of(path)
    assert build.compile_product(name) == ""
    (object_,) = (tmp_path / "cache").glob("multiply*.o")
    object_.write_bytes(b"damaged")
    built = compile_module(path, config(symbols))
    assert built.library is not None
    assert object_.read_bytes() != b"damaged"
    built.library.write_bytes(b"")
    given = sample.inputs({})
    got = getattr(load(path, "damaged_module"), source.entry)(*given, config={"symbols": symbols})
    np.testing.assert_allclose(got, given[0] @ given[1], atol=1e-4)


@compiled
def test_a_product_that_does_not_compile_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM_CPP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "nothing" in build.compile_product("multiply-nothing")
    assert not list(tmp_path.rglob("*.o"))


@compiled
def test_what_a_library_keeps_is_its_own(rmsnorm: tuple[Sample, Path]) -> None:
    """Scratch memory and panels of weights have names that every library has: the loader must not make them one."""
    built = compile_module(rmsnorm[1], config(rmsnorm[0].symbols[0]))
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("needs nm, of binutils")
    shown = subprocess.run([nm, "-D", "--defined-only", str(built.library)], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in shown.stdout.splitlines()}
    assert {"run", "hold", "forget"} <= names
    assert not [n for n in names if "prism" in n], names


@compiled
def test_what_does_not_compile_says_why(tmp_path: Path) -> None:
    source = emit_module(samples.matmul().sgraph)
    path = write_module(source, tmp_path / f"{source.entry}.py")
    kernel = tmp_path / f"{source.kernels[0]}.cpp"
    kernel.write_text(kernel.read_text() + "\nint broken = nothing;\n")
    built = compile_module(path, config(samples.matmul().symbols[0]))
    assert built.library is None
    assert "nothing" in built.error
    assert "no value for T_k" in compile_module(path, config({"T_m": 1, "T_n": 1})).error


def test_what_is_no_module_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.py"
    path.write_text("x = 1\n")
    with pytest.raises(BackendError, match="no module"):
        build._names(path)


# The worker.


@pytest.fixture(scope="module")
def runner() -> Iterator[KernelRunner]:
    """The child that the numeric gate runs kernels in, on two threads."""
    with KernelRunner("cpu", "compiled C++", Worker(module_command(WORKER), cpu_environment(2))) as made:
        yield made


def run_in(runner: KernelRunner, path: Path, sample: Sample, given: Sequence[np.ndarray]) -> list[Output] | str:
    """The outputs of a sample's first configuration, or what went wrong."""
    tensors = [torch.from_numpy(np.asarray(a, np.float32)) for a in given]
    (x, *_) = tensors
    outputs = [
        (tuple(x.shape[0] if isinstance(e, sympy.Expr) else e for e in t.shape), t.dtype.value)
        for t in sample.sgraph.outputs
    ]
    return runner.run(path, config(sample.symbols[0]), tensors, outputs, [None] * len(sample.sgraph.launches))


@compiled
def test_the_runner_runs(runner: KernelRunner, rmsnorm: tuple[Sample, Path]) -> None:
    sample, path = rmsnorm
    for m in (7, 20):
        given = inputs(m)
        found = run_in(runner, path, sample, given)
        assert not isinstance(found, str), found
        (y,) = found
        assert y.written.all()
        np.testing.assert_allclose(y.values, reference(*given), atol=1e-4)


@pytest.fixture(scope="module")
def tame(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module that does nothing wrong."""
    source = emit_module(samples.matmul().sgraph)
    return write_module(source, tmp_path_factory.mktemp("tame") / f"{source.entry}.py")


GRID = "::run_grid(tensors, lengths, threads);"
BREAKAGES = {
    "crash: the process ended with status -11": (GRID, f"{GRID}\n    *(volatile int*)8 = 1;"),
    "hang: no answer in 1 s": (GRID, f"{GRID}\n    for (volatile int x = 0;;) x = x + 1;"),
    "unwritten": ("pid < end_0; ++pid", "pid < end_0 - 1; ++pid"),
    "beyond the end": (GRID, f"{GRID}\n    ((float*)tensors[2])[40 * 24 + 3] = 1.0f;"),
    "beyond the end of": (GRID, f"{GRID}\n    ((float*)tensors[2])[-5] = 1.0f;"),
}


@compiled
@pytest.mark.parametrize("what", slow_but([w for w in [*BREAKAGES][:4] if not w.startswith("hang")], BREAKAGES))
def test_a_kernel_that_goes_wild_harms_only_the_worker(
    runner: KernelRunner, tame: Path, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = samples.matmul()
    source = emit_module(sample.sgraph)
    given = sample.inputs({})
    wild = write_module(source, tmp_path / f"{source.entry}.py")
    kernel = wild.with_name(f"{source.kernels[0]}.cpp")
    before, after = BREAKAGES[what]
    assert kernel.read_text().count(before) == (3 if what == "unwritten" else 1)  # on one thread, on several twice
    kernel.write_text(kernel.read_text().replace(before, after))
    assert compile_module(wild, config(sample.symbols[0])).library
    good = run_in(runner, tame, sample, given)
    assert not isinstance(good, str), good
    assert good[0].written.all()
    with monkeypatch.context() as patch:
        if what.startswith("hang"):
            patch.setattr(check, "CASE_LIMIT_S", 1.0)  # it is compiled already
            patch.setattr(check, "LAUNCH_LIMIT_S", 0.0)
        found = run_in(runner, wild, sample, given)
    if what == "unwritten":
        assert not isinstance(found, str), found
        left = ~found[0].written
        assert left.any()
        assert not left.all(), "the other programs ran"
        # Not bit by bit: on a busy machine one of the two may have been compiled with less effort.
        np.testing.assert_allclose(found[0].values[~left], good[0].values[~left], rtol=1e-4, atol=1e-4)
    else:
        assert isinstance(found, str)
        assert what in found
    again = run_in(runner, tame, sample, given)
    assert not isinstance(again, str), again
    assert again[0].written.all()
    np.testing.assert_array_equal(again[0].values, good[0].values)


def test_the_machine_is_described() -> None:
    found = machine.describe()
    assert found.cores >= 1
    assert 0 < found.l1_bytes <= found.l2_bytes <= found.l3_bytes
    assert found.vector_bits in (128, 256, 512)
    assert (found.compiler != "") == (find_compiler() is not None)
    assert machine.vector_bits(()) == 128
    assert machine.vector_bits(("avx", "avx2")) == 256
