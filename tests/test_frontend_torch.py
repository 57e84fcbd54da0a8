"""torch.export graphs become programs that compute what torch computes, in float64."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from formulas import evaluate_formula
from quick import slow_but

from prism.backends.eager import eager
from prism.errors import UnsupportedError, UsageError
from prism.frontend.torch.reader import trace
from prism.program.evaluate import evaluate
from prism.program.inline import inline
from prism.program.nodes import Map, Position, Program, Reduce, walk
from prism.program.region import subprogram
from prism.program.spec import check

Fn = Callable[..., Any]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + len(shape)))


def agree(program: Program, fn: Fn, tensors: list[torch.Tensor], inlined: bool = True) -> None:
    check(program)
    expected = fn(*tensors)
    expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    required = [t for t in program.inputs if t.name not in program.weights]
    arrays = {t.name: x.numpy() for t, x in zip(required, tensors, strict=True)}
    results = evaluate(program, arrays)
    for name, want in zip(program.outputs, expected, strict=True):
        assert results[name].shape == tuple(want.shape)
        np.testing.assert_allclose(results[name], want.detach().double().numpy(), rtol=1e-9, atol=1e-11)
    for got, want in zip(eager(program)(*tensors), expected, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want)
    if inlined:
        everything = {**program.weights, **arrays}
        for formula in inline(program):
            value = evaluate_formula(formula, everything, {})  # type: ignore[arg-type]
            np.testing.assert_allclose(value, results[formula.tensor.name], rtol=1e-9, atol=1e-11)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def causal_by_tril(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    n = q.shape[-2]
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    s = s.masked_fill(torch.tril(torch.ones(n, n)) == 0, float("-inf"))
    return torch.softmax(s, dim=-1) @ v


def causal_by_arange(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    i = torch.arange(q.shape[-2])
    s = torch.where(i[None, :] <= i[:, None], q @ k.mT, float("-inf"))
    return s.softmax(-1) @ v


def heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, s, _ = x.shape
    q, k, v = torch.split(x @ w, x.shape[-1], dim=-1)
    q, k, v = (t.view(b, s, 2, 4).transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, -1)


ATEN = torch.ops.aten


def backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, **options: Any) -> Any:
    """The gradients of fused attention, by what its forward pass saves."""
    causal = options.pop("is_causal", False)
    made, logarithms = ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, **options)
    return ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
        g, q, k, v, made, logarithms, 0.0, causal, **options
    )


CASES: dict[str, tuple[Fn, list[tuple[int, ...]]]] = {
    "matmul": (lambda x, w: x @ w, [(5, 7), (7, 3)]),
    "matmul_stack": (lambda x, w: x @ w, [(2, 3, 5, 7), (3, 7, 4)]),
    "matmul_vectors": (lambda x, w: (x @ w, w @ x.mT, w @ w), [(2, 5, 7), (7,)]),
    "linear": (F.linear, [(2, 5, 7), (3, 7), (3,)]),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), [(3,), (5, 7), (7, 3)]),
    "bmm": (lambda c, a, b: torch.baddbmm(c, a, b, alpha=-1), [(2, 5, 3), (2, 5, 7), (2, 7, 3)]),
    "einsum": (lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b), [(2, 3, 4, 5), (2, 3, 6, 5)]),
    "einsum_ellipsis": (lambda a, b: torch.einsum("...k,kn->...n", a, b), [(2, 3, 5), (5, 4)]),
    "arithmetic": (lambda x, y: (x - 2 * y) / (y * y + 1) + (3 - x).abs(), [(4, 5), (5,)]),
    "alpha": (lambda x, y: torch.sub(torch.add(x, y, alpha=2), y, alpha=0.5), [(4, 5), (4, 1)]),
    "powers": (lambda x: x**2 + x**3 - (x * x + 1) ** -0.5 + (x.abs() + 1) ** 1.3, [(4, 5)]),
    "activations": (
        lambda x: (F.silu(x), F.gelu(x), F.gelu(x, approximate="tanh"), F.relu(x), F.leaky_relu(x, 0.1), F.softplus(x)),
        [(4, 5)],
    ),
    "more_activations": (
        lambda x: (F.elu(x), F.mish(x), F.hardswish(x), F.logsigmoid(x), F.hardtanh(x), torch.tanh(x) * x.sigmoid()),
        [(4, 5)],
    ),
    "elementary": (
        lambda x: (x.exp().log1p(), x.sin() * x.cos(), x.erf(), x.abs().sqrt(), x.square().add(1).rsqrt().reciprocal()),
        [(4, 5)],
    ),
    "rounding": (lambda x: (x.floor(), x.ceil(), x.round(), x.trunc(), x.sign(), torch.remainder(x, 0.7)), [(4, 5)]),
    "clamp": (
        lambda x, y: (x.clamp(-0.5, 0.5), torch.maximum(x, y), torch.minimum(x, y), x.clamp(min=y)),
        [(4, 5)] * 2,
    ),
    "logic": (lambda x, y: torch.where((x > y) & ~(x <= 0) | (x == y), x, y).masked_fill(x != y, 1.0), [(4, 5)] * 2),
    "logic_as_numbers": (lambda x, y: (x >= y).double() * x + torch.logical_xor(x < 0, y < 0).double(), [(4, 5)] * 2),
    "views": (
        lambda x: (x.transpose(0, 1).reshape(4, -1), x.permute(2, 0, 1)[1:, None], x.flatten(1).t(), x[:, 1::2, -1]),
        [(2, 4, 6)],
    ),
    "expand": (lambda x, y: x.unsqueeze(1).expand(3, 2, 5) * y.squeeze(0), [(3, 5), (1, 2, 5)]),
    "pieces": (lambda x: torch.cat([p * n for n, p in enumerate(x.split([1, 2, 3], dim=1))], dim=1), [(2, 6)]),
    "stack": (lambda x, y: (torch.stack([x, y], dim=1), torch.cat([x, y, x[:1]])), [(2, 3), (2, 3)]),
    "flip_roll": (lambda x: (x.flip(1), x.roll(2, 0), x.roll((1, -1), (0, 1))), [(4, 5)]),
    "pad_repeat": (
        lambda x: (F.pad(x, (1, 2, 0, 3), value=2.0), x.repeat(2, 3), x.repeat_interleave(2, dim=1)),
        [(2, 3)],
    ),
    "diagonal_triangle": (lambda x: (x.diagonal(1), x.tril(-1), x.triu(1)), [(4, 4)]),
    "reductions": (
        lambda x: (x.sum(), x.mean((0, 2)), x.amax(1, keepdim=True), x.amin(-1), x.prod(1), x.max(1).values, x.max()),
        [(2, 3, 4)],
    ),
    "moments": (lambda x: (x.var(1), x.std(-1, correction=0), *torch.var_mean(x, (0, 2), keepdim=True)), [(2, 3, 4)]),
    "norms": (lambda x: (torch.linalg.norm(x, dim=-1), x.norm(p=1, dim=0), F.normalize(x, dim=1)), [(3, 4)]),
    "divergence": (lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"), [(3, 4)] * 2),
    "xlogy": (lambda x, y: torch.xlogy(x * (x > 0), y.abs() + 0.1), [(3, 4)] * 2),
    "any_all": (lambda x: ((x > 1).any(1), (x > -1).all(0), x.cumsum(1)), [(3, 4)]),
    "softmax": (lambda x: (x.softmax(-1), x.softmax(0), x.log_softmax(1), x.logsumexp(1)), [(3, 4)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (3, 4), w, b, eps=1e-3), [(2, 3, 4), (3, 4), (3, 4)]),
    "rms_norm": (lambda x, w: (F.rms_norm(x, (4,), w, eps=1e-2), F.rms_norm(x, (4,))), [(2, 3, 4), (4,)]),
    "rms_by_hand": (
        lambda x, w, g: (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * g) @ w,
        [(3, 4), (4, 5), (4,)],
    ),
    "rotary": (rotary, [(2, 3, 4), (3, 4), (3, 4)]),
    "sdpa": (F.scaled_dot_product_attention, [(2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 5)]),
    "sdpa_causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        [(2, 6, 8)] * 3,
    ),
    "sdpa_mask": (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), [(2, 6, 8)] * 3 + [(6, 6)]),
    "sdpa_grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        [(2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)],
    ),
    "sdpa_saved": (
        lambda q, k, v, m: ATEN._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, attn_mask=torch.where(m > 1, -math.inf, m)
        ),
        [(2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 8), (4, 6)],
    ),
    "sdpa_backward": (
        lambda q, k, v, m, g: backward(q, k, v, g, attn_mask=m),
        [*[(2, 3, 4, 8)] * 3, (4, 4), (2, 3, 4, 8)],
    ),
    "sdpa_backward_causal": (lambda q, k, v, g: backward(q, k, v, g, is_causal=True, scale=0.3), [(2, 3, 4, 8)] * 4),
    "norms_with_what_they_save": (
        lambda x, g, b: (
            *ATEN.native_layer_norm(x, [6], g, b, 1e-5),
            *ATEN._fused_rms_norm(x, [6], g, 1e-5),
            *ATEN.native_group_norm(x, None, None, 2, 4, 6, 2, 1e-5),
        ),
        [(2, 4, 6), (6,), (6,)],
    ),
    "batch_norm_that_counts": (
        lambda x, m, v: ATEN._native_batch_norm_legit_functional(x, m, v, m, v, True, 0.2, 1e-5),
        [(3, 4, 6), (4,), (4,)],
    ),
    "causal_by_tril": (causal_by_tril, [(2, 5, 4)] * 3),
    "causal_by_arange": (causal_by_arange, [(2, 5, 4)] * 3),
    "self_attention": (heads, [(2, 5, 8), (8, 24)]),
    "conv": (lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1), [(2, 3, 9), (4, 3, 3), (4,)]),
    "conv_depthwise": (lambda x, w: F.conv2d(x, w, groups=3, dilation=2), [(1, 3, 6, 7), (3, 1, 2, 2)]),
    "batch_norm": (
        lambda x, mean, var, w, b: F.batch_norm(x, mean, var * var, w, b, False, 0.1, 1e-3),
        [(2, 3, 4), (3,), (3,), (3,), (3,)],
    ),
    "group_norm": (lambda x, w, b: (F.group_norm(x, 2, w, b), F.group_norm(x, 4)), [(2, 4, 3, 5), (4,), (4,)]),
    "unfold": (lambda x: (x.unfold(1, 3, 2), x.unfold(0, 2, 1)), [(3, 8)]),
    "arange": (lambda x: x * torch.arange(1, 9, 2) + torch.full((4,), 0.5) - torch.eye(4)[1], [(3, 4)]),
    "index": (lambda x: x[torch.arange(3), torch.arange(3) + 1], [(3, 4)]),
    "identity": (lambda x, y: (x, x * 1, y), [(3,), (2,)]),
}


# A repeat or an uneven reshape cannot be inlined to affine indices; the definitions still can be run.
NOT_INLINED = ("views", "pad_repeat")


def tensors_of(case: str) -> list[torch.Tensor]:
    return [draw(*shape, seed=10 * n) for n, shape in enumerate(CASES[case][1])]


@pytest.fixture(scope="module")
def together() -> dict[str, Program]:
    """All cases, traced as one function, since an export costs half a second whatever it holds; then taken apart."""
    examples = {case: tensors_of(case) for case in CASES}
    counts: dict[str, int] = {}

    def everything(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left = iter(tensors)
        results: list[torch.Tensor] = []
        for case, (fn, shapes) in CASES.items():
            made = fn(*(next(left) for _ in shapes))
            results += made if isinstance(made, (tuple, list)) else [made]
            counts[case] = len(results)
        return tuple(results)

    whole = trace(everything, [t for tensors in examples.values() for t in tensors], check=False)
    names = iter(t.name for t in whole.inputs if t.name not in whole.weights)
    parts, start = {}, 0
    for case, tensors in examples.items():
        inputs = {next(names) for _ in tensors}
        part = subprogram(whole, "case", whole.outputs[start : counts[case]])
        start = counts[case]
        mine = tuple(t for t in whole.inputs if t.name in inputs)
        others = tuple(t for t in part.inputs if t.name in whole.weights)
        assert {t.name for t in part.inputs} <= {t.name for t in (*mine, *others)}, "a case reads its own inputs"
        parts[case] = replace(part, inputs=(*mine, *others))
    return parts


@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_torch_computes(case: str, together: dict[str, Program]) -> None:
    agree(together[case], CASES[case][0], tensors_of(case), inlined=case not in NOT_INLINED)


@pytest.mark.parametrize("case", slow_but(["self_attention", "identity", "moments"], CASES))
def test_it_does_by_itself_and_checked(case: str) -> None:
    fn, tensors = CASES[case][0], tensors_of(case)
    agree(trace(fn, tensors, name="case"), fn, tensors, inlined=case not in NOT_INLINED)


def test_nan_as_a_number_is_refused_where_it_stands() -> None:
    with pytest.raises(UnsupportedError, match="NaN as a number"):
        trace(lambda x: torch.where(x > 0, x, float("nan")), [torch.empty(3, device="meta")], name="case")


class Block(torch.nn.Module):
    """A module with parameters, a buffer and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(8, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.drop = torch.nn.Dropout(0.1)
        self.register_buffer("scale", torch.rand(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.drop(F.gelu(self.norm(self.lin(x)) * self.scale))
        return y * torch.tensor(2.0)


def test_parameters_and_buffers_are_weights_after_the_callers_inputs() -> None:
    module = Block().double().eval()
    x = draw(3, 5, 8)
    program = trace(module, [x])
    assert [t.name for t in program.inputs] == ["x", "lin_weight", "lin_bias", "norm_weight", "norm_bias", "scale"]
    assert set(program.weights) == {t.name for t in program.inputs[1:]}
    agree(program, module, [x])


def test_one_definition_per_kernel_of_eager_torch() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = F.rms_norm(x, (8,)).reshape(2, 5, 2, 4).transpose(1, 2)
        return F.softmax(F.scaled_dot_product_attention(h, h, h), -1) @ w

    program = trace(fn, [draw(2, 5, 8), draw(4, 3)])
    # norm; scores, weights, product with the values; softmax; matmul
    assert program.operator_count == 6


@pytest.mark.parametrize("fn", [causal_by_tril, causal_by_arange])
def test_a_causal_mask_becomes_one_comparison_of_positions(fn: Fn) -> None:
    program = trace(fn, [draw(2, 5, 4)] * 3)
    assert len(program.inputs) == 3
    masks = [e for d in program.definitions for e in walk(d.expr) if isinstance(e, Map) and e.op in ("le", "lt", "eq")]
    assert len(masks) == 1
    assert all(isinstance(a, Position) for a in masks[0].args)


@pytest.mark.parametrize("dynamic", ["sequence", "mapping"])
def test_dynamic_dimensions_become_symbols_and_hold_at_other_sizes(dynamic: str) -> None:
    batch, seq = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("seq", min=2, max=128)
    shapes: Any = [{0: batch, 1: seq}, None] if dynamic == "sequence" else {"x": {0: batch, 1: seq}}
    program = trace(heads, [draw(3, 5, 8), draw(8, 24)], dynamic_shapes=shapes)
    check(program)
    assert [str(e) for e in program.inputs[0].shape] == ["batch", "seq", "8"]
    assert (program.ranges["seq"].low, program.ranges["seq"].high, program.ranges["seq"].hint) == (2, 128, 5)
    x, w = draw(2, 7, 8), draw(8, 24)
    (got,) = evaluate(program, {"x": x.numpy(), "w": w.numpy()}).values()
    np.testing.assert_allclose(got, heads(x, w).numpy(), rtol=1e-9, atol=1e-12)
    (formula,) = inline(program)
    inlined = evaluate_formula(formula, {"x": x.numpy(), "w": w.numpy()}, {"batch": 2, "seq": 7})
    np.testing.assert_allclose(inlined, got, rtol=1e-9, atol=1e-12)


def test_a_length_used_as_a_number_is_a_size() -> None:
    seq = torch.export.Dim("seq", min=2, max=128)
    program = trace(lambda x: x.sum(0) / x.shape[0], [draw(5, 3)], name="avg", dynamic_shapes=[{0: seq}])
    x = draw(9, 3)
    (got,) = evaluate(program, {program.inputs[0].name: x.numpy()}).values()
    np.testing.assert_allclose(got, x.mean(0).numpy())


def test_a_query_that_may_look_nowhere_gets_zeros_as_in_torch() -> None:
    def fn(q: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=m)

    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    program = trace(fn, [draw(1, 3, 4), mask])
    (got,) = evaluate(program, {"q": draw(1, 3, 4).numpy(), "m": mask.numpy()}).values()
    np.testing.assert_allclose(got, fn(draw(1, 3, 4), mask).numpy(), rtol=1e-12)
    assert (got[0, 1] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_eager_in_low_precision_is_as_close_to_the_oracle_as_torch(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.softmax(F.rms_norm(x, (32,), eps=1e-5) @ w, -1)

    x, w = draw(4, 32).to(dtype), draw(32, 8).to(dtype)
    program = trace(fn, [x, w])
    (exact,) = evaluate(program, {"x": x.double().numpy(), "w": w.double().numpy()}).values()
    (got,) = eager(program)(x, w)
    assert got.dtype == dtype
    error = np.abs(got.double().numpy() - exact).max()
    theirs = np.abs(fn(x, w).double().numpy() - exact).max()
    assert error <= 2 * theirs + torch.finfo(dtype).eps


LABELS = torch.tensor([2, 0, 4, -100])

CHOSEN: dict[str, Fn] = {
    "gather": lambda x, i: x.gather(1, i.abs()[:, None] % 5),
    "gather_rows": lambda x, i: x.gather(0, (i % 4)[None]),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i[:, None] % 5, 1),
    "cross_entropy": F.cross_entropy,
    "cross_entropy_each": lambda x, i: F.cross_entropy(x, i, reduction="none"),
    "cross_entropy_sum": lambda x, i: F.cross_entropy(x, i % 5, reduction="sum", ignore_index=1),
    "smoothed": lambda x, i: F.cross_entropy(x, i, label_smoothing=0.1),
    "weighted": lambda x, i: F.cross_entropy(x, i, x.exp()[0]),
    "nll_loss": lambda x, i: F.nll_loss(x, i),
    "one_hot_by_hand": lambda x, i: torch.where(torch.arange(5) == i[:, None], x, 0.0).sum(-1),
}


@pytest.mark.parametrize("name", slow_but(["gather", "cross_entropy", "smoothed", "weighted"], CHOSEN))
def test_what_an_index_chooses_is_a_sum(name: str) -> None:
    agree(trace(CHOSEN[name], [draw(4, 5), LABELS]), CHOSEN[name], [draw(4, 5), LABELS])


def test_places_may_be_differences_of_positions() -> None:
    """As of a relative bias: row i and column j read the element j - i + n - 1, which is never below 0."""

    def fn(bias: torch.Tensor) -> torch.Tensor:
        i = torch.arange(500)
        return bias[:, i[None] - i[:, None] + 499]

    program = trace(fn, [draw(2, 999)])
    assert not any(isinstance(e, Reduce) for d in program.definitions for e in walk(d.expr)), "a load, no look-up"
    agree(program, fn, [draw(2, 999)])
    with pytest.raises(UnsupportedError, match="is not known to lie in a dimension"):
        trace(lambda bias: fn(bias[:, 1:]), [draw(2, 999)])


GRADIENTS: dict[str, tuple[tuple[int, ...], torch.Tensor, int]] = {
    "mean": ((4, 5), LABELS, 1),
    "weighted_sum": ((4, 5), LABELS, 2),
    "each": ((4, 5), LABELS, 0),
    "one_row": ((5,), torch.tensor(3), 1),
    "image": ((2, 5, 2, 2), LABELS.view(1, 2, 2).expand(2, 2, 2), 1),
    "image_each": ((2, 5, 2, 2), LABELS.view(1, 2, 2).expand(2, 2, 2), 0),
}


@pytest.mark.parametrize("name", slow_but(["mean", "weighted_sum", "image_each"], GRADIENTS))
def test_the_gradient_of_a_loss_is_at_targets(name: str) -> None:
    """Also where nothing counts, of which the mean is no number: beside the targets it is 0."""
    shape, labels, reduction = GRADIENTS[name]
    loss = torch.ops.aten.nll_loss2d_backward if len(shape) == 4 else torch.ops.aten.nll_loss_backward
    weight = torch.rand(5) if "weighted" in name else None

    def fn(g: torch.Tensor, x: torch.Tensor, i: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return loss(g, x, i, weight, reduction, -100, total)  # type: ignore[no-any-return]

    each = labels.shape if reduction == 0 else ()
    given = [torch.randn(each), torch.randn(shape), labels, torch.tensor(3.0)]
    named = dict(zip("gxi", given, strict=False)) | {"total": given[-1]}
    (found,) = evaluate(trace(fn, given), {name: t.numpy() for name, t in named.items()}).values()
    np.testing.assert_allclose(found, fn(*given).numpy(), rtol=1e-6)


def test_a_gradient_that_is_not_asked_for_is_none() -> None:
    """As of a batch norm whose input needs no gradient: its decomposition has one all the same."""

    def fn(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, scale = x.mean((0, 2)), torch.rsqrt(x.var((0, 2), correction=0) + 1e-5)
        asked = [False, True, True]
        found = torch.ops.aten.native_batch_norm_backward(g, x, w, None, None, mean, scale, True, 1e-5, asked)
        return found[1], found[2]

    given = [draw(4, 3, 5), draw(4, 3, 5), draw(3)]
    agree(trace(fn, given), fn, given)


def test_a_gather_at_positions_is_a_view() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.gather(1, torch.arange(4).expand(3, 4) + 1)

    program = trace(fn, [draw(3, 6)])
    agree(program, fn, [draw(3, 6)])
    assert [d.view for d in program.definitions] == [True]


BITS: dict[str, Fn] = {
    "low_bits": lambda q: q & 15,
    "bits": lambda q: (q & 10, q & 112, q | 12, q ^ 41, ~q, q << 3),
    "shifted": lambda q: (q >> 4, torch.bitwise_right_shift(q, 2)),
    "nibbles": lambda q: (q[:, None] >> torch.arange(0, 8, 4)[:, None]) & 15,
    "quotient": lambda q: (q // 16, q % 16),
}


@pytest.mark.parametrize("dtype", [torch.uint8, pytest.param(torch.int8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BITS)
def test_packed_integers_come_apart(name: str, dtype: torch.dtype) -> None:
    q = torch.arange(-128, 128).to(dtype).view(4, 64)
    agree(trace(BITS[name], [q]), BITS[name], [q])


def test_where_nothing_is_dropped_the_mask_keeps_all() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        kept, mask = torch.ops.aten.native_dropout(x, 0.5, False)
        return torch.where(mask, kept, -1.0)

    agree(trace(fn, [draw(4)]), fn, [draw(4)])


REFUSED: dict[str, tuple[Fn, list[torch.Tensor], str]] = {
    "lookup": (lambda x, i: x[i], [torch.randn(3), torch.tensor([True, False, True])], "the size u0"),
    "order": (lambda x: x.kthvalue(2).indices, [torch.randn(4)], "which one it takes"),
    "long_rows": (lambda x: x.topk(2).indices, [torch.randn(256)], "a sort is no formula"),
    "complex": (lambda x: x.to(torch.complex64) * 2, [torch.randn(4)], "complex64"),
    "random": (lambda x: F.dropout(x, 0.3), [torch.randn(4)], "no translation"),
    "data_dependent": (lambda x: x * 2 if x.sum() > 0 else x, [torch.randn(4)], "torch.export cannot capture it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_translation_is_refused_with_the_reason(case: str) -> None:
    fn, inputs, reason = REFUSED[case]
    with pytest.raises(UnsupportedError, match=reason) as caught:
        trace(fn, inputs)
    assert caught.value.where
    assert caught.value.fix
    assert "\n" not in caught.value.one_line()


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What torch's fake tensors log."""
    handler = logging.getLogger("torch._subclasses.fake_tensor").handlers[0]
    said: list[logging.LogRecord] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handler, "handle", lambda r: said.append(r) if handler.filter(r) else None)
        yield said


def test_torch_says_nothing_besides_the_error(logged: list[logging.LogRecord]) -> None:
    with pytest.raises(UsageError, match="Sizes of tensors must match"):
        trace(lambda x, y: torch.cat([x, y]), [torch.randn(2, 3), torch.randn(2, 4)])
    assert not logged


def test_torch_says_nothing_of_shapes_that_are_tried_in_vain(logged: list[logging.LogRecord]) -> None:
    """What is too large to compare is traced at smaller extents, if the function takes them."""

    def int4_linear(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        n, groups = scale.shape
        codes = torch.stack((w & 15, w >> 4), -1).reshape(n, groups, -1).to(x.dtype)
        return x @ ((codes - zero[..., None]) * scale[..., None]).reshape(n, -1).T

    shapes, types = ((16, 4096), (4096, 2048), (4096, 32), (4096, 32)), (torch.float16, torch.uint8)
    made = trace(int4_linear, [torch.empty(s, dtype=types[n == 1], device="meta") for n, s in enumerate(shapes)])
    assert made.conformance is not None
    assert not logged


def test_only_tensors_are_example_inputs() -> None:
    with pytest.raises(UsageError, match="example input 1 is a int"):
        trace(lambda x, n: x * n, [torch.randn(3), 2])  # type: ignore[list-item]


def test_one_tensor_as_two_examples_is_two_inputs() -> None:
    example = torch.empty(3, 4, device="meta")
    program = trace(lambda p, q: p - 2 * q, (example, example))
    values = {"p": np.ones((3, 4)), "q": np.zeros((3, 4))}  # float64
    (out,) = evaluate(program, values).values()
    assert (out == 1).all()


def test_a_sum_of_exponentials_of_what_is_infinite_is_guarded() -> None:
    """The logarithm of nothing but zeros is minus infinity at every place, of which the largest is no shift."""
    p = trace(lambda x: torch.logsumexp(torch.log(x), -1), (torch.rand(3, 5),))
    x = torch.tensor([[0.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    found = evaluate(p, {p.inputs[0].name: x.numpy()})[p.outputs[0]]
    np.testing.assert_allclose(found, torch.logsumexp(torch.log(x), -1).numpy())


def test_a_constant_without_values_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="on the meta device has no values"):
        trace(lambda x: x * torch.tensor([1.0, 2.0], device=x.device), [torch.empty(3, 2, device="meta")], name="case")
