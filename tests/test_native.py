"""The torch baseline is what a user would write: torch's own calls where they compute the same, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import fx

import prism
from prism.backends.native import exported, native
from prism.frontend.torch.reader import Positional
from prism.instantiate.model_bench import storable
from prism.platforms.contenders import Contenders, onnx_call

X, Y, G, B = torch.randn(6, 16), torch.randn(6, 16), torch.randn(16), torch.randn(16)
W, BIAS = torch.randn(8, 16), torch.randn(8)
Q, K, V = (torch.randn(1, 2, 12, 8) for _ in range(3))
Q8 = torch.randn(1, 8, 12, 8)


def attention(q: Any, k: Any, v: Any) -> Any:
    seen = torch.ones(12, 12, dtype=torch.bool).tril()
    scores = (torch.matmul(q, k.transpose(2, 3)) * 8**-0.5).masked_fill(~seen, float("-inf"))
    return torch.matmul(torch.softmax(scores, -1), v)


def repeated(q: Any, k: Any, v: Any) -> Any:
    """Heads of keys and values repeated as exporters spell it."""
    k, v = (x[:, :, None].expand(1, 2, 4, 12, 8).reshape(1, 8, 12, 8) for x in (k, v))
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(2, 3)) * 8**-0.5, -1), v)


def tiled(q: Any, k: Any, v: Any) -> Any:
    """The same with heads in another order, which torch's call does not have."""
    k, v = (x.repeat(1, 4, 1, 1) for x in (k, v))
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(2, 3)) * 8**-0.5, -1), v)


def ops(graph: torch.fx.GraphModule) -> list[str]:
    """The functions that a graph calls, in order, by name."""
    called = [n.target for n in graph.graph.nodes if n.op in ("call_function", "call_method")]
    return [str(getattr(t, "__name__", t)) for t in called]


def silu_in_two(x: Any, y: Any) -> Any:
    return x * (y * torch.sigmoid(y))


def layer_norm_in_steps(x: Any, g: Any, b: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * g + b


def rms_norm_in_steps(x: Any, g: Any) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * g


def cosine(x: Any, y: Any) -> Any:
    return (x * y).sum(-1) * torch.rsqrt((x * x).sum(-1) * (y * y).sum(-1) + 1e-6)


CASES: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...], list[str]]] = [
    (lambda x: torch.softmax(x, 0), (X,), ["softmax"]),
    (lambda x: torch.log_softmax(x, -1), (X,), ["log_softmax"]),
    (lambda x: torch.logsumexp(x, -1), (X,), ["logsumexp"]),
    (lambda x: F.gelu(x), (X,), ["gelu"]),
    (lambda x, y: x * F.silu(y), (X, Y), ["silu", "mul"]),
    (silu_in_two, (X, Y), ["silu", "mul"]),
    (lambda x, g, b: F.relu(x * g + b), (X, G, B), ["mul", "add", "relu"]),
    (lambda x, g, b: F.layer_norm(x, (16,), g, b, 1e-5), (X, G, B), ["layer_norm"]),
    (layer_norm_in_steps, (X, G, B), ["layer_norm"]),
    (rms_norm_in_steps, (X, G), ["mul", "mean", "add", "rsqrt", "mul", "mul"]),
    (lambda x: torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-6), (X,), ["var", "add", "sqrt"]),
    (cosine, (X, Y), ["mul", "sum", "mul", "sum", "mul", "sum", "mul", "add", "rsqrt", "mul"]),
    (lambda x, w, b: F.linear(x, w, b), (X, W, BIAS), ["linear"]),
    (lambda x, y: x @ y.t(), (X, Y), ["permute", "matmul"]),
    (lambda x, y: torch.cat([x, y], 1) * 2, (X, Y), ["cat", "mul"]),
    (lambda x: x.reshape(3, 32).exp(), (X,), ["reshape", "exp"]),
    (attention, (Q, K, V), ["scaled_dot_product_attention"]),
    (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (Q, K, V), ["scaled_dot_product_attention"]),
    (repeated, (Q8, K, V), ["scaled_dot_product_attention"]),
    (
        lambda q, k, v: attention(q, *(x.repeat_interleave(4, 1) for x in (k, v))),
        (Q8, K, V),
        ["scaled_dot_product_attention"],
    ),
]


@pytest.mark.parametrize(("fn", "inputs", "wanted"), CASES)
def test_torchs_own_call_is_found(fn: Any, inputs: tuple[torch.Tensor, ...], wanted: list[str]) -> None:
    graph = native(prism.trace(fn, inputs), inputs)
    assert ops(graph) == wanted
    torch.testing.assert_close(graph(*inputs)[0], fn(*inputs), rtol=1e-4, atol=1e-5)


def test_heads_that_are_repeated_are_torchs_to_repeat() -> None:
    grouped = native(prism.trace(repeated, (Q8, K, V)), (Q8, K, V))
    assert "enable_gqa = True" in grouped.code
    other = native(prism.trace(tiled, (Q8, K, V)), (Q8, K, V))
    assert "enable_gqa = True" not in other.code
    torch.testing.assert_close(other(Q8, K, V)[0], tiled(Q8, K, V), rtol=1e-4, atol=1e-5)


def test_half_precision_is_computed_with_as_it_is() -> None:
    def fn(x: Any, y: Any) -> Any:
        return x * torch.sigmoid(y)

    inputs = (X.half(), Y.half())
    graph = native(prism.trace(fn, inputs), inputs)
    assert ops(graph) == ["sigmoid", "mul"], "without a copy in float32"
    torch.testing.assert_close(graph(*inputs)[0], fn(*inputs))


def test_what_only_looks_alike_is_no_call_of_torchs() -> None:
    def almost(x: Any) -> Any:
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / (1 + e.sum(-1, keepdim=True))

    graph = native(prism.trace(almost, (X,)), (X,))
    assert "softmax" not in ops(graph)
    torch.testing.assert_close(graph(X)[0], almost(X), rtol=1e-4, atol=1e-5)


def test_casts_are_where_the_program_has_them() -> None:
    x = X.half()
    graph = native(prism.trace(lambda x: (x * x).float().exp(), (x,)), (x,))
    assert ops(graph) == ["mul", "to", "exp"]
    torch.testing.assert_close(graph(x)[0], (x * x).float().exp())


def test_constants_are_computed_once() -> None:
    graph = native(prism.trace(lambda x: torch.where(torch.arange(16) < 5, x, 0.0), (X,)), (X,))
    assert "arange" not in ops(graph)


def chosen(x: Any, y: Any) -> Any:
    whole = (x > y).long()
    return torch.softmax(whole.float() * x, -1), whole + 1


@pytest.mark.parametrize(("fn", "inputs"), [(attention, (Q, K, V)), (chosen, (X, Y))], ids=["attention", "integers"])
def test_what_was_found_is_not_searched_again(
    fn: Any, inputs: tuple[torch.Tensor, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, kept = prism.trace(fn, inputs), tmp_path / "program.calls"
    first = native(program, inputs, kept)
    monkeypatch.setattr("prism.backends.native._same", lambda *_: pytest.fail("searched again"))
    again = native(program, inputs, kept)
    assert again.code == first.code
    torch.testing.assert_close(again(*inputs)[0], first(*inputs)[0])


def test_an_exported_function_is_called_as_its_user_calls_it(tmp_path: Path) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(self.linear(x.view(6, 16).transpose(0, 1).transpose(0, 1)))

    block = Block()
    torch.export.save(torch.export.export(block, (X,)), tmp_path / "f.pt2")
    graph = exported(tmp_path / "f.pt2", [X])
    assert ops(graph) == ["linear", "gelu"], "no guards, no views that change nothing, torch's own functions"
    torch.testing.assert_close(graph.forward(X)[0], block(X))


def test_a_small_number_that_is_added_is_not_dropped() -> None:
    graph = native(prism.trace(lambda x: torch.sqrt((x * x).sum(-1) + 1e-9), (X,)), (X,))
    assert ops(graph) == ["mul", "sum", "add", "sqrt"]


def test_a_contender_is_what_its_kind_says(tmp_path: Any) -> None:
    import pickle
    from dataclasses import replace

    program = prism.trace(lambda x: torch.softmax(x, -1), (X,))
    assert callable(program.source)
    path = tmp_path / "program.pickle"
    path.write_bytes(pickle.dumps(replace(program, source=None)))
    makes = Contenders([X])
    (found,) = makes.call({"kind": "eager", "program": str(path)}, 1)()
    torch.testing.assert_close(found, torch.softmax(X, -1))

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    file = tmp_path / "f.pt2"
    torch.export.save(torch.export.export(Twice(), (X,)), file)
    (found,) = makes.call({"kind": "eager", "program": str(path), "exported": str(file), "inputs": [0]}, 1)()
    torch.testing.assert_close(found, 2 * X, msg="the function that was traced, and not the program")


def test_onnxruntime_runs_the_file() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is an optional baseline")
    model = Path(__file__).parent.parent / "examples" / "models" / "rmsnorm_linear.onnx"
    program = prism.load_onnx(model)
    assert program.source == model.resolve()
    (found,) = onnx_call(model, [torch.randn(4, 512)], 1)()
    assert found.shape == (4, 384)


def test_onnxruntime_is_given_numbers_without_dimensions(tmp_path: Path) -> None:
    """As arrays of one element its results had a dimension too many, and it was not compared with."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is an optional baseline")
    text = "m (float a, float[3] x) => (float b, float[3] y) { b = Exp(a) y = Mul(x, b) }"
    onnx.save(onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 18]> ' + text), tmp_path / "m.onnx")
    found = onnx_call(tmp_path / "m.onnx", [torch.tensor(2.0), torch.ones(3)], 1)()
    assert [y.shape for y in found] == [(), (3,)]
    assert [storable(np.asarray(y)).shape for y in found] == [(), (3,)]


def test_on_a_gpu_torch_runs_the_same_functions(tmp_path: Path) -> None:
    """Of an ONNX model as of a function: the child that times on a GPU, its contenders made here on the CPU."""
    import pickle
    from dataclasses import replace

    from prism.backends.triton.timing import contender

    program = prism.trace(silu_in_two, (X, Y))
    path, file = tmp_path / "program.pickle", tmp_path / "f.pt2"
    path.write_bytes(pickle.dumps(replace(program, source=None)))
    torch.export.save(torch.export.export(Positional(lambda y, x: silu_in_two(x, y)), (Y, X)), file)
    specs: list[dict[str, Any]] = [
        {"kind": "eager", "program": str(path)},
        {"kind": "eager", "program": str(path), "exported": str(file), "inputs": [1, 0]},
    ]
    for spec in specs:
        call, arrivals = contender(spec, [X, Y])
        assert arrivals is None
        (found,) = call([2 * X, Y], [])
        torch.testing.assert_close(found, silu_in_two(2 * X, Y))
        found.fill_(0.0)  # results are poisoned between replays


def windowed(q: Any, k: Any, v: Any) -> Any:
    """Causal attention, of the last 20 places alone."""
    i = torch.arange(q.shape[-2])
    seen = (i[None] <= i[:, None]) & (i[:, None] - i[None] < 20)
    scores = (torch.matmul(q, k.transpose(2, 3)) * 8**-0.5).masked_fill(~seen, float("-inf"))
    return torch.matmul(torch.softmax(scores, -1), v)


def causal(q: Any, k: Any, v: Any) -> Any:
    i = torch.arange(q.shape[-2])
    scores = (torch.matmul(q, k.transpose(2, 3)) * 8**-0.5).masked_fill(i[None] > i[:, None], float("-inf"))
    return torch.matmul(torch.softmax(scores, -1), v)


def split_heads(q: Any, k: Any, v: Any) -> Any:
    return torch.cat([causal(q, k, v).transpose(1, 2).reshape(1, -1, 16), torch.zeros(1, 3, 16)], 1)


@pytest.mark.parametrize(
    ("fn", "least", "wanted"),
    [
        (causal, 16, ["scaled_dot_product_attention"]),
        (windowed, 48, None),
        (split_heads, 16, None),
    ],
)
def test_calls_are_found_on_a_part_and_are_those_of_the_whole(
    fn: Any, least: int, wanted: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = tuple(torch.randn(1, 2, 96, 8) for _ in range(3))
    program = prism.trace(fn, inputs, dynamic_shapes=[{2: torch.export.Dim("seq", min=24)}] * 3)
    found, seen = [], []
    inner = fx.Interpreter.run

    def run(self: fx.Interpreter, *given: torch.Tensor) -> Any:
        seen.append(given[0].shape[2])
        return inner(self, *given)

    monkeypatch.setattr(fx.Interpreter, "run", run)
    for part in (16, 96):
        monkeypatch.setattr("prism.backends.native.PART", part)
        found.append(native(program, inputs))
    assert seen == [least, 96], "beyond the numbers that positions are compared with"
    assert found[0].code == found[1].code
    assert wanted is None or ops(found[0]) == wanted
    torch.testing.assert_close(found[0](*inputs)[0], fn(*inputs), rtol=1e-4, atol=1e-5)


def test_what_larger_tensors_alone_take_is_found_on_these(monkeypatch: pytest.MonkeyPatch) -> None:
    program = prism.trace(causal, (Q, K, V), dynamic_shapes=[{2: torch.export.Dim("seq", min=4)}] * 3)
    whole = native(program, (Q, K, V)).code

    def part(*_: object) -> list[torch.Tensor]:
        return [x[:, :1, :4] for x in (Q, K, V)]  # of another number of heads, which the program fixes

    monkeypatch.setattr("prism.backends.native._part", part)
    assert native(program, (Q, K, V)).code == whole
