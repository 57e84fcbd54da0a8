"""Complex numbers between real tensors: programs that have none compute what torch does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from prism.api.loading import trace
from prism.errors import UnsupportedError
from prism.frontend.torch.pairs import BY_PARTS, RULES, InPairs, in_pairs
from prism.program.evaluate import evaluate

Function = Callable[..., torch.Tensor]


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, as Llama's original code has it."""
    turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned * turns[None, :, None]).flatten(3).type_as(x)


class Rotary(torch.nn.Module):
    """Turns that are stored: as a tensor that the module holds, and as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = torch.polar(torch.ones(16, 4), torch.arange(64.0).reshape(16, 4))
        self.register_buffer("back", self.turns.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Some rows of both."""
        back = self.get_buffer("back")
        turned = torch.view_as_complex(x.reshape(2, 5, -1, 2)) * self.turns[2:7] * back[:5].conj()
        return torch.view_as_real(turned).flatten(2)


def _z(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.complex(a, b)


def _transforms(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.fft.fft(torch.fft.fft(x.float(), dim=-1), dim=-2))


A, B = torch.Size([4, 6]), torch.Size([6, 4])
CASES: dict[str, tuple[Function, Sequence[Sequence[int]]]] = {
    "rotary": (rotated, [(2, 5, 3, 8), (5, 4)]),
    "stored": (Rotary(), [(2, 5, 8)]),
    "exponential": (lambda x, t: (torch.exp(1j * t) * x).imag, [A, A]),
    "sizes and angles": (lambda a, b: _z(a, b).abs() + _z(a, b - 1).angle(), [A, A]),
    "sums": (lambda a, b: torch.view_as_real((_z(a, b) - 2 * _z(b, a) + (1.5 - 2j) - a).sum(0) / 3), [A, A]),
    "choices": (lambda a, b: torch.view_as_real(torch.where(a > 0, _z(a, b), _z(b, a).conj())), [A, A]),
    "products": (lambda a, b: torch.view_as_real(_z(a, a + 1) @ _z(b, 2 * b)), [A, B]),
    "joined": (lambda a, b: torch.view_as_real(torch.cat([_z(a, b), -_z(b, a)])[1:, [0, 2]]), [A, A]),
    "quotients": (lambda a, b: torch.view_as_real(_z(a, b) / _z(b, a + 3) + a / _z(b, a) + 1 / _z(a, b)), [A, A]),
    "logarithms": (lambda a, b: torch.view_as_real(torch.log(_z(a, b)) / (2 - 1j)), [A, A]),
    "signs": (lambda a, b: torch.view_as_real(torch.sgn(_z(a.relu(), b.relu()))), [A, A]),
    "padded": (lambda a, b: torch.view_as_real(torch.nn.functional.pad(_z(a, b), (1, 2))), [A, A]),
    "half a transform": (lambda x: torch.fft.rfft(x, norm="ortho").abs(), [(3, 9)]),
    "and back": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * (1 + 2j), n=7), [(3, 7)]),
    "to fewer": (lambda x: torch.fft.irfft(torch.fft.rfft(x), n=6), [(3, 10)]),
    "to more": (lambda x: torch.fft.irfft(torch.fft.rfft(x), n=14), [(3, 10)]),
    "one after another": (_transforms, [(2, 6, 8)]),
    "inverse": (lambda x: torch.fft.ifft(torch.fft.fft(x, norm="forward")).real, [(2, 6)]),
    "beside what writes": (lambda x: torch.fft.rfft(x.clone().add_(1).mul_(2)).abs(), [(3, 8)]),
    "of two": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 0.5, s=(6, 8)), [(2, 6, 8)]),
    "convolution": (
        lambda x, k: torch.fft.irfft(torch.fft.rfft(x, n=16) * torch.fft.rfft(k, n=16), n=16)[..., :8],
        [(2, 3, 8), (3, 8)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_torch_does(name: str) -> None:
    function, shapes = CASES[name]
    draw = torch.Generator().manual_seed(0)
    given = [torch.randn(*shape, generator=draw) for shape in shapes]
    program = trace(function, given)
    made = evaluate(program, {t.name: x.numpy() for t, x in zip(program.arguments, given, strict=True)})
    with torch.no_grad():
        np.testing.assert_allclose(made[program.outputs[0]], function(*given).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: torch.view_as_real(torch.cat([_z(a, b), a])),
        lambda a, b: _z(a, b),
        lambda a, b: a.to(torch.complex64).imag + b,
    ],
    ids=["joined with real ones", "result", "cast"],
)
def test_what_has_no_rule_is_refused_or_right(function: Function) -> None:
    given = [torch.randn(4, 4) for _ in range(2)]
    try:
        program = trace(function, given)
    except UnsupportedError:
        return
    made = evaluate(program, {t.name: x.numpy() for t, x in zip(program.arguments, given, strict=True)})
    np.testing.assert_allclose(made[program.outputs[0]], function(*given).numpy(), rtol=1e-5, atol=1e-5)


def test_a_graph_with_complex_inputs_and_results_is_real_within() -> None:
    def function(x: torch.Tensor, turns: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = torch.ops.aten.mul.Tensor(x, turns)
        return turned, torch.ops.aten.view_as_real.default(turned)

    given = [torch.randn(3, 4, dtype=torch.complex64) for _ in range(2)]
    graph = torch.fx.experimental.proxy_tensor.make_fx(function, tracing_mode="fake")(*given)
    made = in_pairs(graph)
    named = [str(n.target) for n in made.graph.nodes if n.op == "call_function"]
    assert named.count("aten.view_as_real.default") == 2
    assert named.count("aten.view_as_complex.default") == 1
    for got, want in zip(made(*given), function(*given), strict=True):
        torch.testing.assert_close(got, want)


def test_rules_and_parts_are_apart() -> None:
    assert not BY_PARTS & RULES.keys()


def test_a_real_operator_stays_as_it_is() -> None:
    graph = torch.fx.symbolic_trace(lambda x: torch.sigmoid(x))
    x: Any = torch.randn(3)
    torch.testing.assert_close(InPairs(graph).run(x), torch.sigmoid(x))
