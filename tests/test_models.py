"""Two models with weights of their own: compared by inputs and outputs alone, proved and refuted by the values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from frontend_onnx_models import FLOAT, model
from onnx import numpy_helper
from onnx.helper import make_node as node
from quick import slow_but
from short_calls import prove_programs

import prism
from prism.cli import main
from prism.egraph.worker import Worker
from prism.errors import ExitCode, ShapeError, UnsupportedError
from prism.frontend.onnx.reader import from_model
from prism.program.verdict import Status, Verdict

D, H, N = 6, 8, 5
Weights: TypeAlias = dict[str, np.ndarray]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def f32(x: Any) -> np.ndarray:
    return np.asarray(x, dtype=np.float32)


@dataclass(frozen=True)
class Graph:
    """A model of one input `x` [3, 4, D] and one output `y`."""

    nodes: tuple[onnx.NodeProto, ...]
    weights: Weights

    def build(self, changed: Mapping[str, np.ndarray] | None = None) -> onnx.ModelProto:
        return model(self.nodes, {"x": (FLOAT, (3, 4, D))}, ["y"], {**self.weights, **(changed or {})})


def graph(weights: Weights, *nodes: tuple[Any, ...]) -> Graph:
    """Nodes as (operator, operands, result, attributes)."""
    made = [node(op, args.split(), result.split(), **(rest[0] if rest else {})) for op, args, result, *rest in nodes]
    return Graph(tuple(made), weights)


W, V, B = draw(D, N), draw(D, N, seed=1), draw(N, seed=2)
G, SHIFT = draw(D, seed=3), draw(D, seed=4)
UP, DOWN = draw(D, H, seed=5), draw(H, D, seed=6)
LOW, HIGH = draw(D, 2, seed=7), draw(2, N, seed=8)
SQUARE = draw(D, D, seed=9)
EPS = f32(1e-5)


def folded_scale() -> tuple[Graph, Graph]:
    a = graph({"w": W, "two": f32(2)}, ("Mul", "x two", "t"), ("MatMul", "t w", "y"))
    return a, graph({"v": 2 * W}, ("MatMul", "x v", "y"))


def zero_bias() -> tuple[Graph, Graph]:
    a = graph({"w": W, "b": np.zeros(N, np.float32)}, ("MatMul", "x w", "t"), ("Add", "t b", "y"))
    return a, graph({"w": W}, ("MatMul", "x w", "y"))


def gain_of_ones() -> tuple[Graph, Graph]:
    a = graph({"w": W, "g": np.ones(D, np.float32)}, ("Mul", "x g", "t"), ("MatMul", "t w", "y"))
    return a, graph({"w": W}, ("MatMul", "x w", "y"))


def transposed() -> tuple[Graph, Graph]:
    a = graph({"w": W, "b": B}, ("MatMul", "x w", "t"), ("Add", "t b", "y"))
    shapes = {"flat": np.array([-1, D]), "back": np.array([3, 4, N])}
    b = graph(
        {"wt": W.T.copy(), "c": B, **shapes},
        ("Reshape", "x flat", "f"),
        ("Gemm", "f wt c", "g", {"transB": 1}),
        ("Reshape", "g back", "y"),
    )
    return a, b


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> Graph:
    return graph(
        {"wq": q, "wk": k, "wv": v, "s": f32(scale)},
        ("MatMul", "x wq", "q"),
        ("MatMul", "x wk", "k"),
        ("MatMul", "x wv", "v"),
        ("Transpose", "k", "kt", {"perm": [0, 2, 1]}),
        ("MatMul", "q kt", "scores"),
        ("Mul", "scores s", "scaled"),
        ("Softmax", "scaled", "p"),
        ("MatMul", "p v", "y"),
    )


def fused_qkv() -> tuple[Graph, Graph]:
    q, k, v = SQUARE, draw(D, D, seed=10), draw(D, D, seed=11)
    a = attention(q, k, v, D**-0.5)
    scaled = [f32(q * f32(D**-0.5)), k, v]
    b = graph(
        {"w": np.concatenate(scaled, 1), "widths": np.array([D, D, D])},
        ("MatMul", "x w", "qkv"),
        ("Split", "qkv widths", "q k v", {"axis": -1}),
        ("Transpose", "k", "kt", {"perm": [0, 2, 1]}),
        ("MatMul", "q kt", "scores"),
        ("Softmax", "scores", "p"),
        ("MatMul", "p v", "y"),
    )
    return a, b


def merged_lora() -> tuple[Graph, Graph]:
    a = graph(
        {"w": W, "a": LOW, "b": HIGH, "s": f32(0.5)},
        ("MatMul", "x w", "base"),
        ("MatMul", "x a", "low"),
        ("MatMul", "low b", "high"),
        ("Mul", "high s", "delta"),
        ("Add", "base delta", "y"),
    )
    return a, graph({"w": f32(W + f32(0.5) * (LOW @ HIGH))}, ("MatMul", "x w", "y"))


def norm(weights: Weights, *rest: tuple[Any, ...]) -> Graph:
    """The root mean square norm of x as `n`, and more."""
    return graph(
        {"two": f32(2), "last": np.array([-1]), "eps": EPS, **weights},
        ("Pow", "x two", "sq"),
        ("ReduceMean", "sq last", "ms"),
        ("Add", "ms eps", "ms_eps"),
        ("Sqrt", "ms_eps", "rms"),
        ("Div", "x rms", "n"),
        *rest,
    )


def gain_in_projection() -> tuple[Graph, Graph]:
    a = norm({"g": G, "w": W}, ("Mul", "n g", "t"), ("MatMul", "t w", "y"))
    return a, norm({"w": f32(G[:, None] * W)}, ("MatMul", "n w", "y"))


def shift_in_bias() -> tuple[Graph, Graph]:
    a = graph({"w": W, "b": B, "shift": SHIFT}, ("Add", "x shift", "t"), ("MatMul", "t w", "u"), ("Add", "u b", "y"))
    return a, graph({"w": W, "b": f32(SHIFT @ W + B)}, ("MatMul", "x w", "u"), ("Add", "u b", "y"))


def batch_norm() -> tuple[Graph, Graph]:
    mean, var, gain, bias = draw(N, seed=12), np.abs(draw(N, seed=13)) + 0.5, draw(N, seed=14), draw(N, seed=15)
    back, flat = np.array([3, 4, N]), np.array([-1, D])
    a = graph(
        {"w": W, "b": B, "gain": gain, "bias": bias, "mean": mean, "var": var, "flat": flat, "back": back},
        ("Reshape", "x flat", "f"),
        ("Gemm", "f w b", "t"),
        ("BatchNormalization", "t gain bias mean var", "u"),
        ("Relu", "u", "r"),
        ("Reshape", "r back", "y"),
    )
    factor = gain / np.sqrt(var + EPS)
    folded = {"w": f32(W * factor), "b": f32((B - mean) * factor + bias)}
    b = graph(folded, ("MatMul", "x w", "t"), ("Add", "t b", "u"), ("Relu", "u", "y"))
    return a, b


def gated() -> tuple[Graph, Graph]:
    """A gain folded into both projections of a gated block, whose residual is left as it is."""
    tail = (
        ("Sigmoid", "u", "s"),
        ("Mul", "u s", "silu"),
        ("Mul", "silu v", "h"),
        ("MatMul", "h down", "d"),
        ("Add", "x d", "y"),
    )
    gate = draw(D, H, seed=16)
    a = norm(
        {"g": G, "up": UP, "gate": gate, "down": DOWN},
        ("Mul", "n g", "t"),
        ("MatMul", "t up", "u"),
        ("MatMul", "t gate", "v"),
        *tail,
    )
    folded = {"up": f32(G[:, None] * UP), "gate": f32(G[:, None] * gate), "down": DOWN}
    return a, norm(folded, ("MatMul", "n up", "u"), ("MatMul", "n gate", "v"), *tail)


PAIRS: Sequence[Callable[[], tuple[Graph, Graph]]] = (
    folded_scale, zero_bias, gain_of_ones, transposed, fused_qkv, merged_lora, gain_in_projection, shift_in_bias,
    batch_norm, gated,
)  # fmt: skip


def verdict(a: onnx.ModelProto, b: onnx.ModelProto, worker: Worker) -> Verdict:
    return prove_programs(from_model(a, "a.onnx", None), from_model(b, "b.onnx", None), worker=worker)


def changes(weights: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Each weight with one element changed by one percent, or not 0 any more; square ones transposed, too."""
    for n, (name, array) in enumerate(weights.items()):
        if array.dtype != np.float32 or array.ndim == 0:
            continue
        one = array.copy()
        at = int(np.random.default_rng(n).integers(one.size))
        one.flat[at] = one.flat[at] * 1.01 or 0.01
        yield name, one
        if array.ndim == 2 and array.shape[0] == array.shape[1]:
            yield name, array.T.copy()


@pytest.mark.parametrize(
    "make",
    slow_but([zero_bias, transposed, fused_qkv, merged_lora, gain_in_projection], PAIRS),
    ids=lambda f: f.__name__,
)
def test_folded_weights_are_proved_and_changed_ones_refuted(
    make: Callable[[], tuple[Graph, Graph]], worker: Worker
) -> None:
    a, b = make()
    for one, other in ((a, b), (b, a)):
        found = verdict(one.build(), other.build(), worker)
        assert found.status is Status.PROVED, found.reason
    for name, array in changes(b.weights):
        wrong = verdict(a.build(), b.build({name: array}), worker)
        assert wrong.status is Status.REFUTED, (name, wrong.reason)
        assert set(wrong.counterexample) <= {"x"}


def test_the_verdict_names_what_was_read_as_what(worker: Worker) -> None:
    a, b = folded_scale()
    assert verdict(a.build(), b.build(), worker).weights == ("v[d6, d5] read as 2*w[d6, d5]",)
    a, b = gain_in_projection()
    (said,) = verdict(a.build(), b.build(), worker).weights
    assert said.startswith("w'[d6, d5] read as g[d6]*w[d6, d5] (to within 0.")
    assert said.endswith(" ulp of float32)")


def test_weights_that_are_stored_are_equal_or_not(worker: Worker) -> None:
    a = graph({"w": W}, ("MatMul", "x w", "y"))
    off = W.copy()
    off[2, 3] = np.nextafter(off[2, 3], np.float32(9))
    assert verdict(a.build(), a.build({"w": off}), worker).status is not Status.PROVED


def test_more_than_rounding_is_not_read_as_rounding(worker: Worker) -> None:
    a, b = gain_in_projection()
    off = b.weights["w"].copy()
    off[1, 2] *= 1 + 1e-6
    assert verdict(a.build(), b.build({"w": off}), worker).status is not Status.PROVED
    off[1, 2] *= 1 + 1e-4
    assert verdict(a.build(), b.build({"w": off}), worker).status is Status.REFUTED


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_coarse_types_hide_no_change_where_sums_cancel(kind: Any, worker: Worker) -> None:
    one, two = draw(D, 16, seed=23).astype(kind), draw(16, N, seed=24).astype(kind)
    whole = f32(f32(one) @ f32(two))
    at = np.unravel_index(int(np.abs(whole).argmin()), whole.shape)
    x = {"x": (onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)), (3, D))}
    nodes = [node("MatMul", ["x", "w"], ["t"]), node("MatMul", ["t", "v"], ["y"])]
    a = model(nodes, x, ["y"], {"w": one, "v": two})

    def folded(times: float) -> onnx.ModelProto:
        changed = whole.copy()
        changed[at] *= times
        return model([node("MatMul", ["x", "u"], ["y"])], x, ["y"], {"u": changed.astype(kind)})

    assert verdict(a, folded(1.0), worker).status is Status.PROVED
    assert verdict(a, folded(1.05), worker).status is not Status.PROVED


def test_sums_hide_no_change(worker: Worker) -> None:
    """One element of a sum of many products: no rounding of the product, whatever its size."""
    one, two = draw(D, 256, seed=20), draw(256, N, seed=21)
    a = graph({"w": one, "v": two}, ("MatMul", "x w", "t"), ("MatMul", "t v", "y"))
    for times in (1.01, 1 + 1e-4, 1 + 1e-6):
        off = one.copy()
        off[2, 77] *= times
        for other in (a.build({"w": off}), graph({"w": off @ two}, ("MatMul", "x w", "y")).build()):
            found = verdict(a.build(), other, worker)
            assert found.status is not Status.PROVED or times < 1 + 1e-5, (times, found.weights)
        assert verdict(a.build(), a.build({"w": off}), worker).status is Status.REFUTED, times


def test_a_change_is_found_wherever_it_is(worker: Worker) -> None:
    """Of a large output only a few elements are evaluated: among them those that a changed weight moves."""
    w = draw(64, 700, seed=22)
    a = model([node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, (96, 64))}, ["y"], {"w": w})
    off = w.copy()
    off[11, 333] *= 1.01
    b = model([node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, (96, 64))}, ["y"], {"w": off})
    found = verdict(a, b, worker)
    assert found.status is Status.REFUTED, found.reason
    assert "d700=333" in found.reason


def test_a_mask_that_is_stored_is_the_mask_that_is_computed(worker: Worker) -> None:
    """An optimiser folds the causal mask of a fixed length into an array with -inf."""
    scores = {"wk": SQUARE, "none": f32(-np.inf), "zero": f32(0)}
    head = (
        ("MatMul", "x wk", "k"),
        ("Transpose", "k", "kt", {"perm": [0, 2, 1]}),
        ("MatMul", "x kt", "s"),
    )
    tail = (("Add", "s mask", "masked"), ("Softmax", "masked", "p"), ("MatMul", "p x", "y"))
    computed = (
        ("Range", "start stop step", "r"),
        ("Unsqueeze", "r last", "column"),
        ("LessOrEqual", "r column", "keep"),
        ("Where", "keep zero none", "mask"),
    )
    steps = {"start": np.array(0), "stop": np.array(4), "step": np.array(1), "last": np.array([1])}
    a = graph({**scores, **steps}, *head, *computed, *tail)
    causal = np.where(np.tri(4) > 0, 0, -np.inf).astype(np.float32)
    b = graph({"wk": SQUARE, "mask": causal}, *head, *tail)
    found = verdict(a.build(), b.build(), worker)
    assert found.status is Status.PROVED, found.reason
    other = causal.copy()
    other[2, 1] = -np.inf
    assert verdict(a.build(), b.build({"mask": other}), worker).status is Status.REFUTED


def test_weights_that_are_not_numbers_prove_nothing(worker: Worker) -> None:
    broken = W.copy()
    broken[1, 1] = np.nan
    a = graph({"w": broken}, ("MatMul", "x w", "y"))
    found = verdict(a.build(), a.build(), worker)
    assert found.status is Status.UNKNOWN
    assert "NaN" in found.reason


def test_weights_are_not_counted_as_inputs(worker: Worker) -> None:
    a, b = zero_bias()
    two = model(b.nodes, {"x": (FLOAT, (3, 4, D)), "w": (FLOAT, (D, N))}, ["y"])
    with pytest.raises(ShapeError, match="takes 1 inputs and b 2"):
        verdict(a.build(), two, worker)


def test_initialisers_that_are_listed_as_inputs_are_weights(worker: Worker) -> None:
    a, b = transposed()
    old = b.build()
    old.ir_version = 3
    for tensor in old.graph.initializer:
        old.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    assert verdict(a.build(), old, worker).status is Status.PROVED


def runtime_basic(built: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model as onnxruntime's basic level leaves it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(built.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


@pytest.mark.parametrize(
    "make",
    [transposed, fused_qkv, merged_lora, gain_in_projection, batch_norm, pytest.param(gated, marks=pytest.mark.slow)],
)
def test_what_onnxruntime_optimises_is_proved(
    make: Callable[[], tuple[Graph, Graph]], worker: Worker, tmp_path: Path
) -> None:
    a, b = (g.build() for g in make())
    optimised = runtime_basic(b, tmp_path / "b.onnx")
    assert [n.op_type for n in optimised.graph.node] or not b.graph.node
    for one in (a, runtime_basic(a, tmp_path / "a.onnx")):
        found = verdict(one, optimised, worker)
        assert found.status is Status.PROVED, found.reason
    for tensor in optimised.graph.initializer:
        array = numpy_helper.to_array(tensor).copy()
        if array.dtype == np.float32 and array.ndim == 2:
            array[1, 1] *= 1.01
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
            break
    assert verdict(a, optimised, worker).status is Status.REFUTED


SIMPLIFIED = Path(__file__).parent / "models"
"""Models as torch exports them and as onnxsim leaves them; make.py there writes them."""


@pytest.mark.parametrize("name", ["attention", pytest.param("perceptron", marks=pytest.mark.slow)])
def test_what_onnxsim_optimises_is_proved(name: str, worker: Worker) -> None:
    one, other = onnx.load(SIMPLIFIED / f"{name}.onnx"), onnx.load(SIMPLIFIED / f"{name}.sim.onnx")
    found = verdict(one, other, worker)
    assert found.status is Status.PROVED, found.reason
    assert found.weights
    for tensor in other.graph.initializer:
        array = numpy_helper.to_array(tensor).copy()
        if array.dtype == np.float32 and array.ndim == 2:
            kept = tensor.SerializeToString()
            array[-1, -1] *= 1.01
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
            assert verdict(one, other, worker).status is Status.REFUTED, tensor.name
            tensor.ParseFromString(kept)


def test_what_a_fused_attention_says_besides_is_read_or_refused(worker: Worker) -> None:
    fused = onnx.load(SIMPLIFIED / "attention.sim.onnx")
    (attention,) = [n for n in fused.graph.node if n.op_type == "Attention"]
    masked = onnx.ModelProto()
    masked.CopyFrom(fused)
    masked.graph.node[0].input.append("x")
    with pytest.raises(UnsupportedError, match="a mask of shape"):
        from_model(masked, "masked.onnx", None)
    causal = onnx.ModelProto()
    causal.CopyFrom(fused)
    causal.graph.node[[*fused.graph.node].index(attention)].attribute.append(
        onnx.helper.make_attribute("unidirectional", 1)
    )
    assert verdict(fused, causal, worker).status is Status.REFUTED


def test_what_does_not_count_may_be_changed(worker: Worker) -> None:
    """A softmax is the same for all biases of the keys: a changed weight that changes nothing is proved."""
    one, other = (onnx.load(SIMPLIFIED / "attention.onnx") for _ in range(2))
    for tensor in other.graph.initializer:
        if tensor.name == "k.bias":
            array = numpy_helper.to_array(tensor) * np.float32(1.5)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    assert verdict(one, other, worker).status is Status.PROVED


class Separate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(D, H), torch.nn.Linear(D, H)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.relu(self.a(x)) * self.b(x)
        return result


class Stacked(torch.nn.Module):
    def __init__(self, of: Separate) -> None:
        super().__init__()
        self.both = torch.nn.Linear(D, 2 * H)
        with torch.no_grad():
            self.both.weight.copy_(torch.cat([of.a.weight, of.b.weight]))
            self.both.bias.copy_(torch.cat([of.a.bias, of.b.bias]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self.both(x).chunk(2, -1)
        result: torch.Tensor = torch.relu(one) * other
        return result


def test_modules_are_compared_with_their_parameters() -> None:
    torch.manual_seed(0)
    one = Separate()
    other = Stacked(one)
    found = prism.prove(one, other, (torch.randn(3, D),))
    assert found.status is Status.PROVED, found.reason
    assert any("both_weight" in w and "read as a_weight" in w for w in found.weights)
    with torch.no_grad():
        other.both.bias[3] += 0.01
    assert prism.prove(one, other, (torch.randn(3, D),)).status is Status.REFUTED


def test_the_command_says_what_it_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = folded_scale()
    off = b.weights["v"].copy()
    off[0, 0] *= 1.01
    files = {"a": a.build(), "b": b.build(), "off": b.build({"v": off})}
    for name, built in files.items():
        onnx.save(built, tmp_path / f"{name}.onnx")
    assert main(["prove", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")]) == ExitCode.DONE
    assert "v[d6, d5] read as 2*w[d6, d5]" in capsys.readouterr().out
    assert main(["prove", str(tmp_path / "a.onnx"), str(tmp_path / "off.onnx")]) == ExitCode.VERIFICATION_FAILED
    assert "they differ at" in capsys.readouterr().out
