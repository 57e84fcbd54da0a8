"""Ways of writing a torch function that the operator database does not sample: assignments, indices, state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.inductor_prims  # which defines one operator
import torch.nn.functional as F

import prism
from prism.errors import UnsupportedError
from prism.frontend.order import TIES_ASSUMED, UNSORTED_ASSUMED
from prism.frontend.torch.reader import trace
from prism.program.integers import assumptions

Fn = Callable[..., Any]

X = torch.tensor([[-2.5, 1.5, 0.0, 3.25], [7.0, -0.0, 0.5, -1.0], [2.0, 2.0, -3.0, 1e-3]])
Y = torch.linspace(-2, 3, 12).view(3, 4)
CUBE = torch.linspace(-1, 1, 24).view(2, 3, 4)
LINES = torch.cat([torch.arange(50), torch.arange(70, 20, -2)])
I8 = torch.tensor([[3, -7, 0, 5], [1, 2, -1, 100], [-128, 127, 64, 9]], dtype=torch.int8)
MASK = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()


def changed(place: Any, value: Any) -> Fn:
    """A copy of the tensor, into a part of which something is written."""

    def function(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[place(x, *others) if callable(place) else place] = value(x, *others) if callable(value) else value
        return y

    return function


def several(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 1:] = 0
    y[0] = x[1]
    y[..., -1] += 1
    y[1:, 0] *= x[0, 0]
    return y


def through_views(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.clone()
    row = y[1]
    row.add_(1)
    y.T[2].mul_(3)
    y.view(-1)[0] = 9
    y.diagonal().zero_()
    return y, row * 1


def into_others(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = torch.zeros(3, 4, dtype=torch.int32)
    whole[:] = x
    whole[1] = 2.7
    byte = torch.empty(3, 4, dtype=torch.uint8)
    byte[:, ::2] = -1
    byte[:, 1::2] = 7
    out = torch.empty(3, 4, dtype=torch.float64)
    torch.mul(x, 3, out=out)
    return whole, byte + x.to(torch.uint8), out


def put(x: torch.Tensor) -> torch.Tensor:
    return x.index_put((x > 0,), torch.tensor(2.0), accumulate=True)


EQUAL: dict[str, tuple[Fn, list[torch.Tensor]]] = {
    "several": (several, [X]),
    "through_views": (through_views, [X]),
    "into_others": (into_others, [X]),
    "a_slice": (changed((slice(None), slice(1, 3)), lambda x: x[:, 2:]), [X]),
    "a_step": (changed((slice(1, None, 2), slice(1, None, 2)), 5.0), [X]),
    "a_step_of_many": (changed((slice(None), slice(1, 4, 2)), lambda x: x[:, :2] * 10), [X]),
    "a_stepped_row": (changed((slice(None), slice(None, None, 3)), lambda x: x[:1, 1:3]), [X]),
    "nothing": (changed((slice(2, 2),), 5.0), [X]),
    "from_the_end": (changed((-1, slice(-3, -1)), lambda x: x[0, :2]), [X]),
    "broadcast": (changed((slice(1, None), slice(0, 2)), lambda x: x[:1, 2:]), [X]),
    "narrow_type": (changed((slice(None), 1), 2.7), [I8.to(torch.uint8)]),
    "where_a_mask_is": (changed(lambda x: x > 0, 0.0), [X]),
    "where_a_mask_is_by_data": (changed(lambda x: x > 0, lambda x: x[0, 0]), [X]),
    "rows_of_a_mask": (changed(lambda x: x[:, 0] > 0, lambda x: x[1]), [X]),
    "columns_of_a_mask": (changed(lambda x: (slice(None), x[0] > 0), 2.5), [X]),
    "planes_of_a_mask": (changed(lambda x, m: m[:2, :3], lambda x, m: x[0, 0]), [CUBE, MASK]),
    "accumulated": (put, [X]),
    "diagonal": (lambda x: torch.diagonal_scatter(x, x[0, :3], -0), [X]),
    "low_diagonal": (lambda x: torch.diagonal_scatter(x, x[0, :2], -1), [X]),
    "high_diagonal": (lambda x: torch.diagonal_scatter(x, x[0, :3], 1), [X]),
    "list": (lambda x: x[[0, 2, 1]], [X]),
    "list_from_the_end": (lambda x: (x[:, [-1, 0, 0]], x[[-1, -2]]), [X]),
    "two_lists": (lambda x: (x[[0, 2], [3, 1]], x[[[0], [2]], [3, 1, 1]], x[1, [0, 3, 1]]), [X]),
    "lists_apart": (lambda x: x[[0, 1], :, [3, 1]], [CUBE]),
    "a_list_and_a_range": (lambda x: x[[2, 0, 1], torch.arange(3)], [X]),
    "ranges": (lambda x: (x[:, torch.arange(4).flip(0)], x[:, torch.arange(8) % 4], x[:, 3 - torch.arange(4)]), [X]),
    "lines": (lambda x: (x[:, LINES] * 2, x[1, -LINES - 1], x.index_select(1, LINES[::2])), [torch.randn(2, 80)]),
    "lines_of_both": (lambda x: x[LINES, LINES.flip(0)], [torch.randn(80, 80)]),
    "reflected": (lambda x: F.pad(x, (3, 2), mode="reflect"), [torch.randn(1, 2, 70)]),
    "fused": (lambda x, y: torch.ops.prims.fma(x, y, x), [X, Y]),
    "a_number": (lambda x: x[torch.tensor(1)] + x[torch.tensor([2])], [X]),
    "selected": (lambda x: (x.index_select(1, torch.tensor([2, 0, 3])), x.index_select(0, torch.tensor(1))), [X]),
    "gathered": (lambda x: x.gather(1, torch.tensor([[0, 3], [1, 1], [2, 0]])), [X]),
    "along_a_dimension": (lambda x: torch.take_along_dim(x, torch.tensor([[1], [3], [0]]), 1), [X]),
    "taken": (lambda x: x.take(torch.tensor([0, 5, 7])), [X]),
    "of_no_dimensions": (lambda x, y: x * y, [I8, torch.tensor(300)]),
    "of_no_dimensions_and_half": (lambda x, y: x + y, [X.half(), torch.tensor(0.1, dtype=torch.float64)]),
    "over_no_dimensions": (
        lambda x: (torch.any(x, dim=()), torch.all(x, dim=(), keepdim=True), torch.amax(x, dim=())),
        [X],
    ),
    "losses": (
        lambda x, y: (F.hinge_embedding_loss(x, y.sign()), F.cosine_embedding_loss(x, y, x[:, 0].sign())),
        [X, Y],
    ),
    "attention_broadcast": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        [CUBE[:1, None], CUBE[:, None, :2], CUBE[:1, None, :2]],
    ),
    "linear_of_vectors": (lambda x: (F.linear(x, x[0]), F.linear(x[0], x[1]), F.linear(x[0], x, x[:, 0])), [X]),
    "instances": (lambda x: F.instance_norm(x, weight=x[0, :, 0], bias=x[0, :, 1], eps=1e-2), [CUBE]),
    "a_batch": (lambda x: F.batch_norm(x, None, None, training=True), [X]),
    "running_extremes": (lambda x, i: (*x.cummax(-1), *x.cummin(0), *i.cummax(1), x.sum().cummax(0)[0]), [X, I8]),
    "running_logsumexp": (lambda x: (x.logcumsumexp(1), x[0, 0].logcumsumexp(0)), [CUBE]),
    "the_largest": (lambda x: (x.topk(1)[0], x.topk(1, 0)[0], x.topk(1, largest=False)[0]), [X]),
    "gathered_of_one": (lambda x: x[:, :1].gather(1, x.abs().long().clamp(max=0)), [X]),
    "some_of_the_largest": (lambda x, i: (x.topk(2)[0], x.topk(3, 0, largest=False)[0], i.topk(2)[0]), [X, I8]),
    "in_order": (
        lambda x, i: (x.sort(0)[0], *torch.sort(x, stable=True, descending=True), *torch.sort(i, stable=True)),
        [X, I8],
    ),
    "by_an_order_that_is_known": (
        lambda x: (x[torch.tensor([2, 0, 1]).argsort()], x[:, torch.tensor([0, 2, 1]).sort(descending=True)[1]]),
        [X],
    ),
    "in_the_middle": (
        lambda x: (x.median(0)[0], x.median(1, keepdim=True)[0], x.kthvalue(2, 0)[0], x.quantile(0.3, 1)),
        [X],
    ),
    "number_if_any": (lambda x, i: (torch.fmax(x, 0 / x), torch.fmin(0 / x, x), torch.fmax(i, -i)), [X, I8]),
    "hypotenuse": (lambda x, y: torch.hypot(x, y), [X, Y]),
    "angles": (lambda x, y: (torch.atan2(x, y), torch.atan2(y, -x), torch.atan2(x, -x), torch.atan2(y, x - x)), [X, Y]),
    "signs": (
        lambda z: (z.signbit(), z.copysign(z.flip(0)), z.copysign(-0.0), z.abs().copysign(2.0)),
        [torch.tensor([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, -0.0])],
    ),
    "resized": (
        lambda x: (F.interpolate(x, size=(3, 7), mode="bilinear"), F.interpolate(x, scale_factor=2, mode="bicubic")),
        [CUBE[None]],
    ),
    "sampled": (lambda x, at: F.grid_sample(x, at, align_corners=False), [CUBE[None], CUBE[None, :, :3, :2]]),
    "sorted_into": (lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 2.0])), [X]),
    "nothing_sorted_into": (lambda x: torch.bucketize(x[:, :0], torch.tensor([-1.0, 0.0, 2.0])), [X]),
    "distances": (
        lambda x, y: (torch.dist(x, y), torch.dist(x, y[0], 1), torch.cdist(x, y[:2]), torch.cdist(x, y, p=1.0)),
        [X, Y],
    ),
    "bilinear": (lambda x, y, w: (F.bilinear(x, y, w, w[:, 0, 0]), F.bilinear(x, y, w)), [X[:, :3], Y, CUBE]),
    "random_slope": (lambda x: F.rrelu(x, training=False), [X]),
    "no_dropout": (lambda x: F.dropout(x, 0.0, training=True) + F.dropout(x, 0.5, training=False), [X]),
}


def spread(fn: Fn) -> Fn:
    """The function of a sequence of tensors."""
    return lambda tensors: fn(*tensors)


def test_forms_are_what_torch_does() -> None:
    import torch_op_db as db

    given = [
        db.Sample(name, tensors[0].dtype, n, tuple(tensors), spread(fn))
        for n, (name, (fn, tensors)) in enumerate(EQUAL.items())
    ]
    bad = [f"{o.op}: {o.status}: {o.detail}" for o in db.outcomes(given) if o.status != db.EQUAL]
    assert not bad, "\n".join(bad)


class Counting(torch.nn.Module):
    """A module that is no function: it changes what it multiplies with."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


REFUSED: dict[str, tuple[Fn, list[torch.Tensor], str]] = {
    "a_counter": (Counting(), [X], "another result when it is called again"),
    "an_input_written_to": (lambda x: (x.view(-1)[:2].zero_(), x * 2)[1], [X.clone()], "in place"),
    "running_statistics": (torch.nn.BatchNorm1d(4), [X], "in place"),
    "dropout": (torch.nn.Dropout(0.5), [X], "is random"),
    "memory_as_it_is": (torch.empty_like, [X], "nothing was written to"),
    "random": (lambda x: x + torch.rand(4), [X], "is random"),
    "a_number_of_a_tensor": (lambda x: x * x[0, 0].item(), [X], "taken out of a tensor"),
    "resized_whole_numbers": (
        lambda x: F.interpolate(x, size=(3, 7), mode="bilinear"),
        [torch.ones(1, 1, 2, 3).byte()],
        "rounded, as its weights are",
    ),
    "resized_whole_numbers_by_cubes": (
        lambda x: F.interpolate(x, size=(3, 7), mode="bicubic"),
        [torch.ones(1, 1, 2, 3).byte()],
        "rounded, as its weights are",
    ),
    "out_of_range": (lambda x: x.index_select(0, torch.tensor([-1, 0])), [X], "not in a dimension"),
    "values_of_a_mask": (lambda x, y: x.masked_scatter(x > 0, y), [X, Y], "depends on data"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_function_is_refused(case: str) -> None:
    function, tensors, reason = REFUSED[case]
    with pytest.raises(UnsupportedError, match=reason) as caught:
        trace(function, tensors)
    assert caught.value.where
    assert caught.value.fix


def test_a_graph_that_cannot_be_captured_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnsupportedError, match="cannot capture"):
        trace(lambda x: x if x.sum() > 0 else -x, [X])
    assert capfd.readouterr() == ("", "")


def test_a_result_may_be_returned_twice() -> None:
    program = trace(lambda x: (x + 1,) * 2, [X])
    assert len(set(program.outputs)) == 2


ROUTED: dict[str, tuple[Fn, tuple[str, ...]]] = {
    "places": (lambda x: x.topk(2), (TIES_ASSUMED,)),
    "of_one": (lambda x: x.topk(1, 0, largest=False), (TIES_ASSUMED,)),
    "in_no_order": (lambda x: x.topk(2, sorted=False), (UNSORTED_ASSUMED, TIES_ASSUMED)),
    "values_in_no_order": (lambda x: x.topk(2, sorted=False)[0], (UNSORTED_ASSUMED,)),
    "values": (lambda x: x.topk(2)[0], ()),
    "of_an_order": (lambda x: x.argsort(-1, descending=True), (TIES_ASSUMED,)),
    "of_a_stable_order": (lambda x: x.sort(stable=True)[1], ()),
    "of_known_numbers": (lambda x: x[torch.tensor([1, 0, 1]).argsort()], (TIES_ASSUMED,)),
    "of_distinct_ones": (lambda x: x[torch.tensor([2, 0, 1]).argsort()], ()),
    "of_no_use": (lambda x: (x + 1, x.topk(2)[1])[0], ()),
    "a_mask": (lambda x: torch.zeros_like(x).scatter(-1, x.topk(2)[1], 1.0), (TIES_ASSUMED,)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("case", ROUTED)
def test_which_of_equal_elements_comes_first_is_assumed_where_torch_does_not_say(case: str, dtype: torch.dtype) -> None:
    """Every row of the examples, and of what is drawn, holds some that are equal."""
    function, clauses = ROUTED[case]
    x = torch.tensor([[3, 5, 5, -3, 5], [0, 0, 0, 0, 0], [2, 1, 2, 1, 2], [1, 2, 3, 4, 4]]).to(dtype)
    program = trace(function, [x])
    assert program.conformance is not None
    assert "ties" in program.conformance.draws
    assert tuple(c for c in assumptions(program) if c in (TIES_ASSUMED, UNSORTED_ASSUMED)) == clauses


def test_a_router_is_proved_to_be_another_under_the_assumption() -> None:
    def picked(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(x.topk(1).indices.squeeze(-1), 5).sum(0)

    def greatest(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(x.argmax(-1), 5).sum(0)

    verdict = prism.prove(picked, greatest, torch.randn(4, 5))
    assert verdict, verdict.reason
    assert verdict.assumptions == (TIES_ASSUMED,)
