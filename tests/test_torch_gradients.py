"""Graphs of gradients, as torch's own differentiation writes them down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from prism.api import trace
from prism.errors import UnsupportedError, UsageError
from prism.program.evaluate import evaluate
from prism.program.inline import inline
from prism.program.nodes import Reduce, walk

Fn = Callable[..., Any]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def interleaved(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x[:, ::2].clamp(max=1.0)) * x[:, 1::2]


def running_mean(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return F.silu(g) * x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]


def every_third(x: torch.Tensor) -> torch.Tensor:
    return x[:, 4:11:3] * x[:, 2::3][:, :3]


CASES: dict[str, tuple[Fn, list[torch.Tensor]]] = {
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, padding=1), [drawn(2, 4, 5, 6), drawn(6, 4, 3, 3), drawn(6)]),
    "strides and groups": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1, groups=2),
        [drawn(2, 4, 6, 7), drawn(6, 2, 3, 3), drawn(6)],
    ),
    "dilation": (lambda x, w: F.conv1d(x, w, dilation=2, stride=2), [drawn(2, 4, 12), drawn(6, 4, 3)]),
    "depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=4), [drawn(2, 4, 5, 6), drawn(4, 1, 3, 3)]),
    "patches": (lambda x, w: F.conv2d(x, w, stride=4), [drawn(2, 3, 8, 8), drawn(6, 3, 4, 4)]),
    "transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1, groups=2),
        [drawn(2, 4, 5, 6), drawn(4, 3, 3, 3), drawn(6)],
    ),
    "layer norm": (lambda x, g, b: F.layer_norm(x, (6,), g, b), [drawn(4, 6), drawn(6), drawn(6)]),
    "group norm": (lambda x, g, b: F.group_norm(x, 2, g, b), [drawn(2, 4, 3), drawn(4), drawn(4)]),
    "batch norm": (lambda x, g, b: F.batch_norm(x, None, None, g, b, True), [drawn(4, 3, 5), drawn(3), drawn(3)]),
    "log-sigmoid": (lambda x, y: F.logsigmoid(x @ y), [drawn(3, 4), drawn(4, 2)]),
    "every other": (interleaved, [drawn(3, 8)]),
    "every third": (every_third, [drawn(2, 12)]),
    "averages side by side": (lambda x: F.avg_pool2d(x, (2, 3)), [drawn(2, 3, 8, 6)]),
    "averages that overlap": (lambda x: F.avg_pool2d(x, 3, 2, 1), [drawn(2, 3, 8, 7)]),
    "averages without padding": (lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), [drawn(2, 3, 8, 7)]),
    "averages beyond the end": (lambda x: F.avg_pool2d(x, (3, 2), (2, 3), (1, 0), ceil_mode=True), [drawn(1, 2, 8, 7)]),
    "averages by a number": (lambda x: F.avg_pool3d(x, 2, 1, divisor_override=5), [drawn(1, 2, 4, 5, 3)]),
    "averages of rows": (lambda x: F.avg_pool1d(x, 3, 2, 1), [drawn(2, 3, 8)]),
    "largest side by side": (lambda x: F.max_pool2d(x, 2), [drawn(2, 3, 8, 6)]),
    "largest that overlap": (lambda x: F.max_pool2d(x, 3, 2, 1), [drawn(2, 3, 8, 7)]),
    "largest of equal ones": (lambda x: F.max_pool2d(x.round(), 3, 1, 1), [drawn(2, 3, 8, 7)]),
    "largest far apart": (lambda x: F.max_pool2d(x, (3, 2), (2, 1), 1, (2, 1)), [drawn(2, 3, 8, 7)]),
    "largest of volumes": (lambda x: F.max_pool3d(x, (1, 3, 2), (1, 2, 2), ceil_mode=True), [drawn(1, 2, 3, 6, 5)]),
    "as many averages as fit": (lambda x: F.adaptive_avg_pool2d(x, (4, 2)), [drawn(2, 3, 8, 6)]),
    "more averages than fit": (lambda x: F.adaptive_avg_pool2d(x, (5, 7)), [drawn(2, 3, 8, 6)]),
    "one average": (lambda x: F.adaptive_avg_pool3d(x, 1), [drawn(2, 3, 4, 3, 2)]),
    "as many of the largest": (lambda x: F.adaptive_max_pool2d(x, (4, 5)), [drawn(2, 3, 8, 6)]),
    "nearest, twice as many": (lambda x: F.interpolate(x, scale_factor=2), [drawn(2, 3, 4, 5)]),
    "nearest, three by two": (lambda x: F.interpolate(x, (12, 10), mode="nearest-exact"), [drawn(2, 3, 4, 5)]),
    "between, twice as many": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [drawn(2, 3, 4, 5)]),
    "between, by three and one": (lambda x: F.interpolate(x, (12, 5), mode="bilinear"), [drawn(2, 3, 4, 5)]),
    "between, of rows": (lambda x: F.interpolate(x, scale_factor=4, mode="linear"), [drawn(2, 3, 5)]),
    "between, of volumes": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), [drawn(1, 2, 3, 2, 4)]),
    "edges repeated": (lambda x: F.pad(x, (1, 2, 0, 3), mode="replicate"), [drawn(2, 3, 4, 5)]),
    "edges of rows repeated": (lambda x: F.pad(x, (2, 1), mode="replicate"), [drawn(3, 4)]),
    "shrunk softly": (lambda x: F.softshrink(x, 0.3), [drawn(4, 6)]),
    "shrunk": (F.hardshrink, [drawn(4, 6)]),
    "weights by norms": (lambda v, g: torch._weight_norm(v, g, 0), [drawn(4, 3, 2), drawn(4, 1, 1)]),
    "weights by norms of columns": (lambda v, g: torch._weight_norm(v, g, 1), [drawn(4, 3), drawn(1, 3)]),
    "distances": (lambda x, y: torch.cdist(x, y), [drawn(2, 5, 3), drawn(2, 4, 3)]),
    "distances to itself, by one": (lambda x: torch.cdist(x, x, p=1.0), [drawn(5, 3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_read(name: str) -> None:
    fn, given = CASES[name]

    def gradient(*args: torch.Tensor) -> Any:
        return torch.func.vjp(fn, *args[:-1])[1](args[-1])

    args = [*given, drawn(*fn(*given).shape) + 1]
    program = trace(make_fx(gradient)(*args), args)
    assert len(inline(program)) == len(program.outputs)
    found = evaluate(program, {t.name: a.numpy() for t, a in zip(program.inputs, args, strict=True)})
    for output, expected in zip(program.outputs, gradient(*args), strict=True):
        assert np.allclose(found[output], expected.numpy(), rtol=1e-10, atol=1e-10), output


def test_differentiation_within_a_function_is_written_down() -> None:
    """torch.export alone has the numbers of a power's gradient in bfloat16 for tensors without values."""

    def gradient(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> Any:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        with torch.enable_grad():
            h = x.float()
            h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
            return torch.autograd.grad(w * h.type_as(x), (x, w), dy)

    given = [torch.randn(3, 4).bfloat16(), torch.randn(4).bfloat16(), torch.randn(3, 4).bfloat16()]
    program = trace(gradient, given)
    assert program.conformance is not None
    assert program.conformance.draws
    assert [str(program.tensor(o).dtype) for o in program.outputs] == ["bfloat16", "bfloat16"]


def test_what_torch_asserts_of_its_own_casts_is_no_operator() -> None:
    """Of tensors without values it takes nothing apart beside it."""

    def gradient(x: torch.Tensor, g: torch.Tensor, dy: torch.Tensor) -> Any:
        x, g = x.detach().requires_grad_(), g.detach().requires_grad_()
        return torch.autograd.grad(running_mean(x, g), (x, g), dy)

    assert trace(gradient, [torch.empty(2, 5, 3, device="meta")] * 3).outputs


def test_differentiation_does_not_see_values_either() -> None:
    def gradient(x: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            h = x.float()
            y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
            return torch.autograd.grad(y.sum() if h.sum() > 0 else -y.sum(), x)

    with pytest.raises(UnsupportedError):
        trace(gradient, [torch.randn(3, 4).bfloat16()])


def test_places_that_torch_counts_by_in_memory_are_drawn_among_the_rows() -> None:
    """It takes any place for one of its counts: others would be written beside them."""
    ids = torch.tensor([3, 3, 7, 1, 3])

    def gradient(dy: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.embedding_dense_backward(dy, ids, 50, 1, True)  # type: ignore[no-any-return]

    dy = drawn(5, 6)
    program = trace(gradient, (dy, ids))
    assert program.conformance is not None
    assert program.conformance.draws
    (found,) = evaluate(program, {t.name: x.numpy() for t, x in zip(program.inputs, (dy, ids), strict=True)}).values()
    np.testing.assert_allclose(found, gradient(dy, ids).numpy())


def by_grad(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> Any:
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    return torch.autograd.grad(F.silu(x @ w), (x, w), dy)


def by_grad_where_gradients_are_recorded(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> Any:
    with torch.enable_grad():
        return by_grad(x, w, dy)


def backwards(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> Any:
    x = x.clone().requires_grad_()
    F.silu(x @ w).backward(dy)  # type: ignore[no-untyped-call]
    return x.grad


def of_an_input(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> Any:
    x.requires_grad_(True)
    return torch.autograd.grad(F.silu(x @ w), x, dy)[0]


@pytest.mark.parametrize("fn", [by_grad, by_grad_where_gradients_are_recorded, backwards, of_an_input])
def test_a_function_that_differentiates_need_not_say_that_gradients_are_recorded(fn: Callable[..., Any]) -> None:
    program = trace(fn, (torch.randn(3, 6), torch.randn(6, 4), torch.randn(3, 4)))
    assert program.conformance is not None
    assert program.conformance.draws


def test_the_gradient_of_what_is_convolved_alone_is_read() -> None:
    """Of three results of one operator torch asks for one."""
    x, w, dy = drawn(2, 3, 5, 6), drawn(4, 3, 3, 3), drawn(2, 4, 5, 6)

    def gradient(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> Any:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(F.conv2d(x, w, padding=1), [x], dy)

    program = trace(gradient, (x, w, dy))
    found = evaluate(program, {t.name: a.numpy() for t, a in zip(program.inputs, (x, w, dy), strict=True)})
    np.testing.assert_allclose(found[program.outputs[0]], gradient(x, w, dy)[0].numpy(), rtol=1e-10, atol=1e-10)


def test_what_fails_in_any_case_is_said_to_fail() -> None:
    def gradient(x: torch.Tensor) -> Any:
        return torch.autograd.grad(x.sum(), x)[0]

    with pytest.raises(UsageError, match="does not require grad"):
        trace(gradient, (torch.randn(3),))


def volume(x: torch.Tensor) -> torch.Tensor:
    """Its gradient by torch's differentiation is made of running products before and behind each side."""
    (found,) = torch.autograd.grad(x.prod(-1).sum(), x)
    return found


@pytest.mark.parametrize("sides", [1, 2, 3, 4, 5])
def test_products_of_a_few_are_written_out(sides: int) -> None:
    x = torch.tensor([[0.0, 2.0, -3.0, 0.5, 1.5], [4.0, -1.0, 0.0, 0.0, 2.0]])[:, :sides].clone().requires_grad_()
    with torch.enable_grad():
        program, expected = trace(volume, [x]), volume(x)
    reduced = [e for f in inline(program) for e in walk(f.expr) if isinstance(e, Reduce)]
    assert bool(reduced) == (sides > 4), "kernels are built to reductions, and a few factors are none"
    found = evaluate(program, {program.inputs[0].name: x.detach().numpy()})[program.outputs[0]]
    np.testing.assert_allclose(found, expected.detach().numpy())
