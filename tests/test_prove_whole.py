"""Whole numbers, what both sides divide by, places that are counted out: what is near is not proved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from prism.api import prove
from prism.egraph.prove.normal_form import normal_form
from prism.egraph.prove.places import alike_by_places
from prism.egraph.prove.polynomials import Unfit
from prism.program.build import add, const, mul, neg, op, position, read
from prism.program.evaluate import evaluate_expr
from prism.program.index import Axis, Index
from prism.program.nodes import Expr, Reduce, ReduceKind
from prism.program.transform import canonical
from prism.program.verdict import Status

Function = Callable[..., Any]

X = torch.randn(6)
ROWS = torch.randn(4, 6)
T = torch.randint(0, 5, (6,))
N = torch.randint(1, 6, (4,))
P = torch.rand(6) + 0.3


def shorter(x: torch.Tensor, n: torch.Tensor, k: int = 0) -> torch.Tensor:
    return torch.arange(6)[None] < n[:, None] + k


def gradient(f: Function) -> Function:
    def of(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_(True)
        return torch.autograd.grad(f(x, *rest), x)[0]

    return of


def cross_entropy_gradient(x: torch.Tensor, t: torch.Tensor) -> Any:
    return gradient(F.cross_entropy)(x, t)


def unit_gradient(x: torch.Tensor, g: torch.Tensor) -> Any:
    return gradient(unit)(x, g)


def unit(x: torch.Tensor, g: torch.Tensor) -> Any:
    return (x / x.norm(dim=-1, keepdim=True) * g).sum()


def by_hand(x: torch.Tensor, g: torch.Tensor) -> Any:
    n = x.norm(dim=-1, keepdim=True)
    return (g - x / n * (x / n * g).sum(-1, keepdim=True)) / n


def averaged(x: torch.Tensor) -> Any:
    made = [x[0]]
    for i in range(1, 6):
        made.append(0.9 * made[-1] + 0.1 * x[i])
    return torch.stack(made)


def weighted(first: float) -> Function:
    def of(x: torch.Tensor) -> torch.Tensor:
        i = torch.arange(6)
        late = 0.9 ** (i[:, None] - i[None]).clamp(min=0).float()
        return torch.where(i[:, None] >= i[None], late * torch.where(i[None] == 0, first, 0.1), 0.0) @ x

    return of


def padded(x: torch.Tensor, k: int = 3) -> torch.Tensor:
    sums = F.pad(x.cumsum(-1), (1, 0))
    return sums[:, k:] - sums[:, :-k]


EQUAL: dict[str, tuple[Function, Function, Sequence[torch.Tensor], Sequence[str]]] = {
    "less is at most one less": (
        lambda t, x: torch.where(t < 3, x, 0.0),
        lambda t, x: torch.where(t <= 2, x, 0.0),
        (T, X),
        (),
    ),
    "rows up to a length": (
        lambda x, n: (x * shorter(x, n)).sum(-1),
        lambda x, n: (x * (torch.arange(6)[None] <= n[:, None] - 1)).sum(-1),
        (ROWS, N),
        (),
    ),
    "a mean over lengths": (
        lambda x, n: (x * shorter(x, n)).sum(-1) / n,
        lambda x, n: (x * shorter(x, n)).sum(-1) / shorter(x, n).sum(-1),
        (ROWS, N),
        ["n in [1, 6]"],
    ),
    "a row of one": (lambda t, x: F.one_hot(t, 5).sum(-1) * x, lambda t, x: x * 1.0, (T, X), ["t in [0, 4]"]),
    "what is scattered": (
        lambda t, x: torch.zeros(5).scatter_add(0, t, x).sum(),
        lambda t, x: x.sum(),
        (T, X),
        ["t in [0, 4]"],
    ),
    "a masked row of a table": (
        lambda t, w: F.embedding(t, w) * (t != 0)[:, None],
        lambda t, w: F.embedding(t, torch.cat([torch.zeros(1, 3), w[1:]])),
        (T, torch.randn(5, 3)),
        ["t in [0, 4]"],
    ),
    "a cross-entropy's gradient": (
        cross_entropy_gradient,
        lambda x, t: (x.softmax(-1) - F.one_hot(t, 5).float()) / 6,
        (torch.randn(6, 5), T),
        ["t in [0, 4]"],
    ),
    "the floor of a half more": (lambda t: torch.floor(t.float() + 0.5), lambda t: t.float(), (T,), ()),
    "all of them": (lambda m: m.all(-1).float(), lambda m: (m.float().sum(-1) == 6).float(), (ROWS > 0,), ()),
    "a unit vector's gradient": (unit_gradient, by_hand, (ROWS, ROWS.flip(0)), ()),
    "a reflection twice": (
        lambda v, x: (lambda h: h(h(x)))(lambda y: y - 2 * v * (v @ y) / (v @ v)),
        lambda v, x: x + 0 * (v / (v @ v)),
        (X, X.flip(0)),
        (),
    ),
    "a harmonic mean": (
        lambda a, b: 2 / (1 / a + 1 / b),
        lambda a, b: 2 * a * b / (a + b),
        (P, P),
        ["a != 0", "b != 0"],
    ),
    "a sign": (lambda x: x / x.abs(), lambda x: x.sign(), (X,), ["x != 0"]),
    "windows of a running sum": (padded, lambda x: x.unfold(1, 3, 1).sum(-1), (ROWS,), ()),
    "half of a symmetric sum": (
        lambda x: ((x + x.T) * (1 - torch.eye(4))).sum() / 2,
        lambda x: (x + x.T).triu(1).sum(),
        (ROWS[:, :4],),
        (),
    ),
    "an average by steps": (averaged, weighted(1.0), (torch.randn(6, 4),), ()),
    "two rolls": (lambda x: x.roll(2, -1).roll(3, -1), lambda x: x.roll(-1, -1), (ROWS,), ()),
}


@pytest.mark.parametrize("name", EQUAL)
def test_is_proved(name: str) -> None:
    f, g, given, stated = EQUAL[name]
    verdict = prove(f, g, tuple(given), assume=stated)
    assert verdict.status is Status.PROVED, verdict.reason


WRONG: dict[str, tuple[Function, Function, Sequence[torch.Tensor], Sequence[str]]] = {
    "less of any numbers": (
        lambda t, x: torch.where(t < 3, x, 0.0),
        lambda t, x: torch.where(t <= 2, x, 0.0),
        (X * 3, X),
        (),
    ),
    "one longer": (
        lambda x, n: (x * shorter(x, n)).sum(-1),
        lambda x, n: (x * shorter(x, n, 1)).sum(-1),
        (ROWS, N),
        (),
    ),
    "a row that may have none": (
        lambda t, x: F.one_hot(t, 5).sum(-1) * x,
        lambda t, x: x * 1.0,
        (T, X),
        ["t in [0, 5]"],
    ),
    "a length that may be none": (
        lambda x, n: (x * shorter(x, n)).sum(-1) / (shorter(x, n).sum(-1) + 1),
        lambda x, n: (x * shorter(x, n)).sum(-1) / (n + 1),
        (ROWS, N),
        ["n in [1, 7]"],
    ),
    "all are left out of the mean": (
        cross_entropy_gradient,
        lambda x, t: (
            (x.softmax(-1) - F.one_hot(t.clamp(min=0), 5).float()) * ((t != -100) / (t != -100).sum()).unsqueeze(1)
        ),
        (torch.randn(6, 5), T),
        ["t in [-100, 4]"],
    ),
    "an average whose first weight is as the others'": (averaged, weighted(0.1), (torch.randn(6, 4),), ()),
    "a window one longer": (padded, lambda x: padded(x, 4)[:, :0].sum() + x[:, :4].cumsum(-1), (ROWS,), ()),
    "other digits": (
        lambda a, b: torch.kron(a, b),
        lambda a, b: torch.kron(b, a),
        (X[:3], X[:2]),
        (),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_near_is_refuted(name: str) -> None:
    f, g, given, stated = WRONG[name]
    assert prove(f, g, tuple(given), assume=stated).status is Status.REFUTED


@pytest.mark.parametrize(
    ("f", "g"),
    [
        (lambda a, b: 2 / (1 / a + 1 / b), lambda a, b: 2 * a * b / (a + b)),
        (lambda a, b: a / a.abs() + b, lambda a, b: a.sign() + b),
        (lambda a, b: a * b / b, lambda a, b: a * 1.0),
    ],
)
def test_what_only_one_divides_by_may_be_zero(f: Function, g: Function) -> None:
    """The other one has a value there."""
    assert prove(f, g, (X, P)).status is not Status.PROVED
    assert prove(g, f, (X, P)).status is not Status.PROVED


ROW, K = Axis("i", 3), Axis("k", 4)
HALVES = np.arange(-9, 10) / 4


def _made(rng: np.random.Generator, depth: int) -> Expr:
    """A random expression of whole and other numbers, positions and comparisons."""
    if depth == 0:
        t, x, y = op("floor", read("t", ROW)), read("x", ROW), read("y", K)
        leaves = [t, t, x, y, position(Index.axis(K)), const(float(rng.integers(-2, 4))), const(0.5)]
        return leaves[rng.integers(len(leaves))]
    a, b = (_made(rng, depth - 1) for _ in range(2))
    match rng.integers(11):
        case 0 | 1:
            return add(a, neg(b) if rng.random() < 0.5 else b)
        case 2:
            return mul(a, b)
        case 3 | 4:
            return op(("maximum", "minimum")[rng.integers(2)], a, b)
        case 5:
            return op(("floor", "abs", "sign")[rng.integers(3)], a)
        case 6 | 7:
            return op(("lt", "le", "eq")[rng.integers(3)], a, b)
        case 8:
            return Reduce(ReduceKind.SUM, K, op(("lt", "le", "eq")[rng.integers(3)], a, b))
        case 9:
            return op("where", op("eq", a, const(0.0)), const(-1.0), a)
    return op("where", op("lt", a, b), a, b)


def test_normal_forms_of_whole_numbers_have_the_values_of_what_they_are_of() -> None:
    rng = np.random.default_rng(0)
    points = [{"t": rng.choice(HALVES, 3), "x": rng.choice(HALVES, 3), "y": rng.choice(HALVES, 4)} for _ in range(8)]
    compared = 0
    for _ in range(250):
        e = canonical(_made(rng, 3))
        for strict in (False, True):
            try:
                form = normal_form(e, strict=strict)
            except Unfit:
                continue
            for given in points:
                one, other = (evaluate_expr(x, given, {}, (ROW, K)) for x in (e, form))
                np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-9, err_msg=f"{e} is not {form}")
                compared += 1
    assert compared > 3000


def test_places_tell_apart_what_differs_at_one() -> None:
    x, i, k = read("x", K), position(Index.axis(ROW)), position(Index.axis(K))
    upto = Reduce(ReduceKind.SUM, K, op("where", op("le", k, i), x, const(0.0)))
    first = op("where", op("eq", i, const(0.0)), read("x", Axis("one", 1)), upto)
    assert alike_by_places(canonical(upto), canonical(first))
    second = op("where", op("eq", i, const(1.0)), read("x", Axis("one", 1)), upto)
    assert not alike_by_places(canonical(upto), canonical(second))
