"""Values that are constants, whatever the inputs are, end as these."""

from __future__ import annotations

import pytest
import torch

import prism
from prism.program.nodes import Program
from prism.sgraph.nodes import Gather, Load, Store


def _crossed(x: torch.Tensor) -> torch.Tensor:
    return torch.clamp(x, 2.0, 1.0) + 0.5


def _centred(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x - x.mean(-1, keepdim=True))


def _below(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(-torch.exp(x)) + torch.clamp(torch.exp(x), max=-1.0)


def _all(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1).sum(-1)


def _program(fn: object, *shape: int) -> Program:
    return prism.trace(fn, (torch.randn(*shape),), check=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fn", "shape", "value"),
    [(_crossed, (8, 16), 1.5), (_centred, (8, 1), 0), (_below, (8, 16), -1), (_all, (8, 16), 1)],
)
def test_a_constant_is_stored_and_nothing_is_read(fn: object, shape: tuple[int, ...], value: float) -> None:
    with prism.search(_program(fn, *shape)) as found:
        kernels = next(found).sgraph.kernels
    statements = [s for k in kernels for s in k.statements()]
    assert len(kernels) == 1
    assert not any(isinstance(s, Load | Gather) for s in statements)
    assert [s.src for s in statements if isinstance(s, Store)] == [value]


def test_bounds_in_order_are_no_constant() -> None:
    def clamped(x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, 1.0, 2.0) + 0.5

    with prism.search(_program(clamped, 8, 16)) as found:
        (kernel,) = next(found).sgraph.kernels
    assert any(isinstance(s, Load) for s in kernel.statements())


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_kernels_of_constants_are_checked_and_run(target: str) -> None:
    made = prism.optimize(_program(_crossed, 8, 24), target=target, trials=2, only_better=False, baselines=())
    if target == "cpu":
        assert torch.equal(torch.as_tensor(made(torch.randn(8, 24).numpy())), torch.full((8, 24), 1.5))
    assert "] = 1.5\n" in made.report.sgraph_text
    assert "= x[" not in made.report.sgraph_text


def test_a_constant_that_infinities_tell_apart_leaves_the_parts() -> None:
    # softmax sums up to 1 for finite inputs; in eager an infinite one makes a NaN, which the gate asks for.
    said: list[str] = []
    made = prism.optimize(
        _program(_all, 64, 8),
        target="cpu",
        trials=2,
        only_better=False,
        baselines=(),
        listener=lambda e: said.append(str(e)),
    )
    assert any("is kept as 2 parts" in s for s in said)
    assert made.report.sgraph_text.count("\n  kernel ") == 2
