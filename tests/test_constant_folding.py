"""What a model computes from its weights alone becomes a weight, where that is worth its bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from prism.api import optimize, trace, verify
from prism.cost.constant_folding import fold_constants
from prism.program.evaluate import evaluate
from prism.program.nodes import Program


class Positions(torch.nn.Module):
    """Scores with a bias by the distance of two places, as T5 makes its buckets."""

    apart: torch.Tensor

    def __init__(self, length: int = 24, heads: int = 2) -> None:
        super().__init__()
        places = torch.arange(length)
        self.register_buffer("apart", places[None, :] - places[:, None])
        self.table = torch.nn.Embedding(8, heads)

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        far = self.apart.abs()
        large = 2 + (torch.log(far.float() / 2) / np.log(16.0) * 4).long()
        bucket = torch.where(far < 2, far, torch.clamp(large, max=7))
        return torch.softmax(scores + self.table(bucket).permute(2, 0, 1), -1)


def folded(module: torch.nn.Module, *examples: torch.Tensor) -> tuple[Program, Program]:
    """The program of a module, and it with its constants folded, which computes what the module does."""
    program = trace(module.eval(), examples)
    found = fold_constants(program)
    assert fold_constants(found) is found
    given = {t.name: x.double().numpy() for t, x in zip(program.arguments, examples, strict=True)}
    with torch.no_grad():
        expected = module(*examples)
    for got, wanted in zip(evaluate(found, given).values(), _tuple(expected), strict=True):
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-5, atol=1e-5)
    assert [t.name for t in found.arguments] == [t.name for t in program.arguments]
    return program, found


def _tuple(x: object) -> tuple[torch.Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def new(program: Program, found: Program) -> dict[str, tuple[int, ...]]:
    """The weights that folding made, with their shapes."""
    return {n: np.asarray(w).shape for n, w in found.weights.items() if n not in program.weights}


def test_biases_by_position_are_computed_when_the_model_is_read() -> None:
    program, found = folded(Positions(), torch.randn(2, 24, 24))
    assert list(new(program, found).values()) == [(2, 24, 24)]
    assert len(found.weights) == 1, "the table and the places are read no more"
    assert all("log" not in str(d) for d in found.definitions)


def test_a_weight_that_is_normalised_is_a_weight() -> None:
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(16, 12, bias=False))
    program, found = folded(layer, torch.randn(4, 16))
    assert set(new(program, found).values()) & {(12, 16), (16, 12)}


def test_values_are_rounded_as_the_model_rounds_them() -> None:
    class Steps(torch.nn.Module):
        x: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("x", torch.linspace(0.1, 0.7, 64, dtype=torch.float32))

        def forward(self, y: torch.Tensor) -> torch.Tensor:
            third = self.x / 3
            return y * torch.exp(torch.cos(third + third + third - self.x) * 1e3 - 1e3)

    program, found = folded(Steps(), torch.ones(64))
    (name,) = new(program, found)
    third = np.linspace(0.1, 0.7, 64).astype(np.float32)
    expected = Steps()(torch.ones(64)).numpy()
    assert third.dtype == np.asarray(found.weights[name]).dtype
    np.testing.assert_allclose(np.asarray(found.weights[name]), expected, rtol=1e-4)


def test_what_is_not_worth_its_bytes_stays() -> None:
    class Cheap(torch.nn.Module):
        """Codes of eight bits with a scale, a transposition and a broadcast."""

        codes: torch.Tensor
        scale: torch.Tensor
        row: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("codes", torch.randint(-8, 8, (64, 32), dtype=torch.int8))
            self.register_buffer("scale", torch.rand(32))
            self.register_buffer("row", torch.rand(32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.codes * self.scale) + self.row.expand(4, 32)

    program, found = folded(Cheap(), torch.randn(4, 64))
    assert found is program


def test_outputs_and_free_lengths_stay() -> None:
    class Both(torch.nn.Module):
        row: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("row", torch.rand(32))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            angle = torch.cos(torch.arange(x.shape[0])[:, None] * self.row)
            return x * angle, torch.exp(torch.sin(self.row))

    n = torch.export.Dim("n", min=2, max=64)
    program = trace(Both(), (torch.randn(8, 32),), dynamic_shapes=({0: n},))
    assert fold_constants(program) is program


def test_a_folder_of_it_is_verified_against_the_model(tmp_path: Path) -> None:
    """Kernels read the folded weight; the proof is of the model that is folded again."""
    x = torch.randn(2, 24, 24)
    module = Positions().eval()
    program = trace(module, (x,), name="positions")
    result = optimize(program, target="cpu", only_better=False, baselines=(), trials=2)
    torch.testing.assert_close(result(x), module(x), rtol=1e-5, atol=1e-5)
    assert result.weights is not None
    optimize(program, target="sm_90", trials=2, out=tmp_path / "out")
    checked = verify(tmp_path / "out", program)
    assert checked, checked.mismatches
