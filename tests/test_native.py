"""The torch baseline is what a user would write: torch's own calls where they compute the same, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import prism
from prism.instantiate.contenders import Contenders, onnx_call
from prism.instantiate.native import native

X, Y, G, B = torch.randn(6, 16), torch.randn(6, 16), torch.randn(16), torch.randn(16)
W, BIAS = torch.randn(8, 16), torch.randn(8)
Q, K, V = (torch.randn(1, 2, 12, 8) for _ in range(3))


def attention(q: Any, k: Any, v: Any) -> Any:
    seen = torch.ones(12, 12, dtype=torch.bool).tril()
    scores = (torch.matmul(q, k.transpose(2, 3)) * 8**-0.5).masked_fill(~seen, float("-inf"))
    return torch.matmul(torch.softmax(scores, -1), v)


def ops(graph: torch.fx.GraphModule) -> set[str]:
    """The operators of a graph, but for views."""
    views = {"view", "permute", "expand", "t", "transpose", "getitem", "select", "unsqueeze", "_unsafe_view"}
    return {
        str(n.target).split(".")[1] for n in graph.graph.nodes if n.op == "call_function" and "." in str(n.target)
    } - views


CASES: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...], set[str]]] = [
    (lambda x: torch.softmax(x, 0), (X,), {"_softmax"}),
    (lambda x: torch.log_softmax(x, -1), (X,), {"_log_softmax"}),
    (lambda x: F.gelu(x), (X,), {"gelu"}),
    (lambda x, y: x * F.silu(y), (X, Y), {"silu", "mul"}),
    (lambda x, g, b: F.layer_norm(x, (16,), g, b, 1e-5), (X, G, B), {"native_layer_norm"}),
    (lambda x, w, b: F.linear(x, w, b), (X, W, BIAS), {"addmm"}),
    (lambda x, y: torch.cat([x, y], 1) * 2, (X, Y), {"cat", "mul"}),
    (lambda x: x.reshape(3, 32).exp(), (X,), {"exp"}),
    (attention, (Q, K, V), {"_scaled_dot_product_flash_attention_for_cpu"}),
]


@pytest.mark.parametrize(("fn", "inputs", "wanted"), CASES)
def test_torchs_own_call_is_found(fn: Any, inputs: tuple[torch.Tensor, ...], wanted: set[str]) -> None:
    graph = native(prism.trace(fn, inputs), inputs)
    assert ops(graph) == wanted
    torch.testing.assert_close(graph(*inputs)[0], fn(*inputs), rtol=1e-4, atol=1e-5)


def test_half_precision_is_computed_with_as_it_is() -> None:
    def fn(x: Any, y: Any) -> Any:
        return x * torch.sigmoid(y)

    inputs = (X.half(), Y.half())
    graph = native(prism.trace(fn, inputs), inputs)
    assert ops(graph) == {"sigmoid", "mul"}, "without a copy in float32"
    torch.testing.assert_close(graph(*inputs)[0], fn(*inputs))


def test_what_only_looks_alike_is_no_call_of_torchs() -> None:
    def almost(x: Any) -> Any:
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / (1 + e.sum(-1, keepdim=True))

    graph = native(prism.trace(almost, (X,)), (X,))
    assert "_softmax" not in ops(graph)
    torch.testing.assert_close(graph(X)[0], almost(X), rtol=1e-4, atol=1e-5)


def test_constants_are_computed_once() -> None:
    graph = native(prism.trace(lambda x: torch.where(torch.arange(16) < 5, x, 0.0), (X,)), (X,))
    assert "arange" not in ops(graph)


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

    exported = tmp_path / "f.pt2"
    torch.export.save(torch.export.export(Twice(), (X,)), exported)
    (found,) = makes.call({"kind": "eager", "program": str(path), "exported": str(exported), "inputs": [0]}, 1)()
    torch.testing.assert_close(found, 2 * X, msg="the function that was traced, and not the program")


def test_onnxruntime_runs_the_file() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is an optional baseline")
    from pathlib import Path

    model = Path(__file__).parent.parent / "examples" / "models" / "rmsnorm_linear.onnx"
    program = prism.load_onnx(model)
    assert program.source == model.resolve()
    (found,) = onnx_call(model, [torch.randn(4, 512)], 1)()
    assert found.shape == (4, 384)
