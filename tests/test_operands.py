"""The type in which products are computed, where what is in float32 goes into an operand that the program rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import prism
from prism.api.finalists import emitted
from prism.backends.lower import lower
from prism.backends.tile import Cast, Dot, Load, Pointwise
from prism.instantiate.gate.check import check_module
from prism.instantiate.space import Space
from prism.ir.kit import statements
from prism.platforms.choice import platform_of
from prism.program.nodes import DType
from prism.program.products import operands_type

M, N, K = 24, 40, 16


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


def kept_rows(s: torch.Tensor, rows: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """What attention's backward pass multiplies with: rows' logsumexp is kept in float32."""
    return torch.exp(s.float() - rows).to(v.dtype) @ v


def in_float32(s: torch.Tensor, rows: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (torch.exp(s.float() - rows) @ v.float()).to(v.dtype)


def two_kinds(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return ((a @ b).float() + c @ b.float()).to(a.dtype)


ROWS = (bf16(M, N), torch.rand(M, 1) + 4, bf16(N, K))


@pytest.mark.parametrize(
    ("fn", "inputs", "wanted"),
    [
        (kept_rows, ROWS, DType.BFLOAT16),
        (in_float32, ROWS, None),
        (torch.matmul, (bf16(M, K), bf16(K, N)), DType.BFLOAT16),
        (torch.matmul, (torch.randn(M, K), torch.randn(K, N)), None),
        (two_kinds, (bf16(M, K), bf16(K, N), torch.randn(M, K)), None),
        (torch.add, (bf16(M, K), bf16(M, K)), None),
    ],
)
def test_the_type_is_that_of_all_operands_as_written(
    fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...], wanted: DType | None
) -> None:
    assert operands_type(prism.trace(fn, inputs)) is wanted


@pytest.mark.parametrize(("fn", "wanted"), [(kept_rows, DType.BFLOAT16), (in_float32, DType.FLOAT32)])
def test_products_are_computed_in_it(fn: Callable[..., Any], wanted: DType) -> None:
    found = [p.sgraph for p in prism.search(prism.trace(fn, ROWS), target="sm_90")]
    types = []
    for body in (p.body for sgraph in found for p in lower(sgraph).programs):
        known = {s.dst: s.dtype for s in statements(body) if isinstance(s, Cast | Load | Pointwise)}
        types += [known.get(s.lhs, DType.FLOAT32) for s in statements(body) if isinstance(s, Dot)]
    assert types
    assert set(types) == {wanted}


def test_they_are_right(tmp_path: Path) -> None:
    program = prism.trace(kept_rows, ROWS)
    platform = platform_of("cpu", lambda _: None)
    found = [p.sgraph for p in prism.search(program, target="cpu")]
    assert any(k.operands is DType.BFLOAT16 for k in found[0].kernels)
    model = platform.model(found[0], program.hints)
    space = Space(found[0], platform.device, program.hints)
    ((config, _),) = space.points_ranked(model, 1)
    path = emitted(tmp_path / "module", found[0], "", platform, [config], space.options)
    with platform.runner() as runner:
        report = check_module(program, path, found[0], config, runner=runner)
    assert report.passed, report.failures
