"""What torch stores is what the program computes: integer types, casts, arguments that change results, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from quick import slow_but

from prism.errors import UnsupportedError
from prism.frontend.torch.reader import trace
from prism.program.evaluate import evaluate
from prism.program.nodes import DType
from prism.program.spec import check

Fn = Callable[..., Any]

U8 = torch.tensor([0, 1, 49, 130, 200, 255], dtype=torch.uint8)
I8 = torch.tensor([-128, -77, -1, 1, 49, 127], dtype=torch.int8)
I16 = torch.tensor([-32768, -7, -1, 1, 49, 32767], dtype=torch.int16)
I32 = torch.tensor([-(2**31), -7, -1, 1, 49, 2**31 - 1], dtype=torch.int32)
I64 = torch.tensor([-7, -2, 0, 1, 49, 300])
B = torch.tensor([True, False, True, True, False, True])
C = torch.tensor([True, True, False, True, False, False])
X = torch.tensor([-300.5, -1.5, -0.3, 0.6, 2.7, 300.9])

EXACT: dict[str, tuple[Fn, list[torch.Tensor]]] = {
    "sums_cast_first": (
        lambda x: (x.sum(dtype=torch.int64), x.cumsum(0, dtype=torch.int32), x.sum(dtype=torch.bool)),
        [X],
    ),
    "products_cast_first": (lambda x: (x[4:].prod(dtype=torch.int64), x[1:4].prod(dtype=torch.bool)), [X]),
    "narrow_sums_wrap": (
        lambda u, i: (u.sum(dtype=torch.uint8), i.sum(dtype=torch.int8), u.sum(), i.prod()),
        [U8, I8[1:5]],
    ),
    "narrow_cumsums_wrap": (lambda u: (u.cumsum(0, dtype=torch.int8), u.cumsum(0)), [U8]),
    "filled": (
        lambda x: (torch.full_like(x, 2.7), x.new_full((2,), -2.7), torch.full((2,), 2.7, dtype=torch.int32), x + 0),
        [I64],
    ),
    "filled_with_truth": (
        lambda b: (torch.full_like(b, 3), b.new_full((2,), 0.5), b | torch.full((), 2.0).bool()),
        [B],
    ),
    "scalar": (lambda x: x + torch.scalar_tensor(2.7, dtype=torch.int64), [I64]),
    "ranges": (
        lambda x: (x + torch.arange(0.5, 6.5, dtype=torch.int64), torch.arange(6, dtype=torch.uint8) + x),
        [I64],
    ),
    "padded": (
        lambda x, b: (F.pad(x, (1, 2), value=2.7), F.pad(x, (-1, 2), value=-2.7), F.pad(b, (1, 1), value=7.0)),
        [I64, B],
    ),
    "masked_fill": (lambda b, c, u: (b.masked_fill(c, 3), u.masked_fill(c, 2.7), u.masked_fill(c, -1)), [B, C, U8]),
    "truth_arithmetic": (lambda b, c: (b + c, b * c, (b + c) * 2, b.sum(), b.cumsum(0), b + 1), [B, C]),
    "truth_sums": (lambda b: (b.sum(dtype=torch.bool), b.prod(dtype=torch.bool), b.sum(dtype=torch.uint8)), [B]),
    "bytes_wrap": (lambda u, v: (u + v, u - v, u * v, u.square(), u**3, u + 300, u * -1, 3 - u, ~u), [U8, U8.flip(0)]),
    "signed_bytes_wrap": (
        lambda i, j: (i + j, i - j, i * j, -i, i.abs(), i.square(), i**5, i.sign()),
        [I8, I8.flip(0)],
    ),
    "ints_wrap": (lambda i: (i + i, -i, i.abs(), i - 1, i * 3), [I32]),
    "products_wrap": (lambda a, b: (a @ b, torch.einsum("ij,jk->ki", a, b)), [I8.view(2, 3), I8.view(3, 2)]),
    "alpha": (lambda i, j: (torch.add(i, j, alpha=3), torch.sub(i, j, alpha=-2)), [I8, I8.flip(0)]),
    "casts_wrap": (lambda i: (i.to(torch.int8), i.to(torch.uint8), i.to(torch.bool), i.to(torch.int32)), [I64]),
    "int16_wraps": (
        lambda i, x: (i + i, i.abs(), i // 3, i.float() * 0.5, x.to(torch.int16), i.to(torch.int8)),
        [I16, I64],
    ),
    "casts_of_int32": (lambda i: (i.to(torch.int8), i.to(torch.uint8), i.long() * 2), [I32]),
    "casts_of_fractions": (lambda x: (x.to(torch.uint8), x.to(torch.int8), x.to(torch.int32), x.bool()), [X]),
    "casts_of_bytes": (lambda u, i: (u.to(torch.int8), i.to(torch.uint8), u.to(torch.int8) + i), [U8, I8]),
    "division": (
        lambda a, b: (
            a // b,
            a % b,
            torch.fmod(a, b),
            torch.div(a, b, rounding_mode="trunc"),
            torch.div(a, b, rounding_mode="floor"),
        ),
        [I64, torch.tensor([3, -3, 49, -1, 49, 7])],
    ),
    "division_by_numbers": (lambda a: (a // 49, a % 49, a // -7, a % -7, torch.fmod(a, 10), a // 8), [I64]),
    "division_of_bytes": (lambda u, i: (u // 49, u % 49, i // 49, i % 49, i // -1, u // -1, i // 8), [U8, I8]),
    "division_of_fractions": (
        lambda x: (x // 49, x % 49, torch.floor_divide(x, 7)),
        [torch.tensor([49.0, 98.0, -49.0])],
    ),
    "division_of_rounded_fractions": (
        lambda x: (x // 0.1, torch.div(x, 0.1, rounding_mode="trunc"), torch.floor_divide(x, x / 10)),
        [torch.tensor([1.0, -1.0, 49.0], dtype=torch.float64)],
    ),
    "comparisons": (lambda u, i: (u > -1, u == -1, u < 300, i > 200, i == 200, u >= 0.5), [U8, I8]),
    "comparison_with_a_fraction": (lambda x: (x == 0.1, x > 0.1, x <= 0.3), [torch.tensor([0.1, 0.3])]),
    "clamps": (lambda u, i: (u.clamp(min=-1), i.clamp(-3, 5), i.relu(), i.clamp(max=7)), [U8, I8]),
    "choices": (
        lambda b, u, i: (torch.where(b, u, -1), torch.where(b, u, i.long()), torch.maximum(u, u.flip(0))),
        [B, U8, I8],
    ),
    "shifts": (lambda u, i: (u << 3, u >> 3, i << 3, i >> 3, u & 60, i | 12, i ^ 5), [U8, I8]),
    "bits_of_two": (
        lambda u, v, i, j: (u & v, u | v, u ^ v, i & j, i | j, i ^ j, i | 77, v & i.long()),
        [U8, U8.flip(0), I8, I8.flip(0)],
    ),
    "bits_of_longer": (lambda i, j: (i & j, i | j, i ^ j, ~i), [I64 * 1001, I64.flip(0)]),
    "shifts_by_data": (
        lambda u, i, s: (u << s.to(torch.uint8), u >> s.to(torch.uint8), i << s, i >> s, s.int() << i.int()),
        [U8, I8, I8.flip(0) % 11],
    ),
    "no_dimensions": (lambda x: (x.sum().cumsum(0), x.sum().amax(0), x.sum().flip(0)), [I64]),
    "gathered": (lambda i, p: i.gather(0, p), [I8, torch.tensor([5, 0, 0])]),
    "joined": (lambda u, i: (torch.cat([u, i.long()]), torch.stack([u.long(), i.long()])), [U8, I8]),
    "addmm": (lambda a, b: torch.addmm(a, b, b, beta=2, alpha=3), [I8[:4].view(2, 2), I8[2:].view(2, 2)]),
    "addcmul": (lambda i: torch.addcmul(i, i, i, value=2), [I8]),
    "round_decimals": (
        lambda x: (x.round(decimals=1) * 10).round().int(),
        [torch.tensor([0.26, -1.13, 12.34], dtype=torch.float64)],
    ),
    "round_left_of_the_point": (lambda x: x.round(decimals=-1), [torch.tensor([125.0, 135.0, 15.0])]),
    "hidden_in_a_mean": (lambda b: (b.double().mean() * 6, b.float().sum().to(torch.uint8)), [B]),
    "any": (lambda u: (u.any(), u.all(), (u > 3).any()), [U8]),
    "eye": (lambda i: i[:3, None] * torch.eye(3, dtype=torch.int8), [I8]),
}


def every_result(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    left = iter(tensors)
    made = [fn(*(next(left) for _ in own)) for fn, own in EXACT.values()]
    return tuple(r for m in made for r in (m if isinstance(m, tuple) else (m,)))


def test_integers_are_what_torch_stores() -> None:
    """All cases, traced as one function: an export costs half a second whatever it holds."""
    stores(every_result, [t for _, own in EXACT.values() for t in own], compared=False)


@pytest.mark.parametrize("case", slow_but(["truth_arithmetic", "division", "casts_wrap", "no_dimensions"], EXACT))
def test_each_case_by_itself_is_what_torch_stores(case: str) -> None:
    stores(*EXACT[case])


def stores(fn: Fn, tensors: list[torch.Tensor], compared: bool = True) -> None:
    """Compare what a function's program computes with what torch stores."""
    apart = [t.clone() for t in tensors]
    program = trace(fn, apart, check=compared)
    check(program)
    expected = fn(*tensors)
    required = [t.name for t in program.inputs if t.name not in program.weights]
    got = evaluate(program, {name: t.numpy() for name, t in zip(required, tensors, strict=True)})
    results = list(expected) if isinstance(expected, tuple) else [expected]
    for name, want in zip(program.outputs, results, strict=True):
        assert program.tensor(name).dtype == DType(str(want.dtype).removeprefix("torch."))
        np.testing.assert_array_equal(got[name], want.double().numpy())


REFUSED: dict[str, tuple[Fn, list[torch.Tensor], str]] = {
    "large_products": (lambda i: i * i, [I32], "may overflow"),
    "large_products_cast": (lambda i: (i * i).to(torch.int32), [I64], "may overflow"),
    "no_divisor": (lambda x: x // torch.zeros((), dtype=torch.int64), [I64], "divides whole numbers by 0"),
    "other_type": (lambda x: x.to(torch.uint16), [I64], "uint16"),
    "bits_of_fractions": (lambda x: x.view(torch.int32), [X], "dtype"),
    "mask": (lambda x, m: x[m], [X, B], "the size u0"),
    "large_examples": (lambda x: x + 1, [torch.tensor([2**40])], "positions, tokens or counts"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_exact_is_refused(case: str) -> None:
    fn, inputs, reason = REFUSED[case]
    with pytest.raises(UnsupportedError, match=reason) as caught:
        trace(fn, inputs)
    assert caught.value.where
    assert caught.value.fix


def test_an_argument_that_no_handler_asks_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from prism.frontend.torch import reader

    careless = {**reader.HANDLERS, "add": lambda n: n.define(n["self"].under(n.axes))}
    monkeypatch.setattr(reader, "HANDLERS", careless)
    with pytest.raises(UnsupportedError, match="its argument other is a tensor"):
        trace(lambda x: x + x, [X])
    careless["add"] = lambda n: n.define(n["self"].under(n.axes), bounds=n.bounds(n["other"].under(n.axes)))
    with pytest.raises(UnsupportedError, match="its argument alpha is 2"):
        trace(lambda x: torch.add(x, x, alpha=2), [X])
