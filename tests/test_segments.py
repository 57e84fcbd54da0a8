"""What is proved piece by piece along a line is equal at every point, and what differs at one point is not proved."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from prism.api import prove
from prism.egraph.prove.equality import _same_forms as same_forms
from prism.egraph.prove.segments import alike_in_pieces
from prism.program.build import add, const, mul, op, read
from prism.program.evaluate import evaluate_expr
from prism.program.index import Axis
from prism.program.nodes import Expr, Map
from prism.program.transform import rebuilt
from prism.program.verdict import Status

Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

GRID = np.arange(-12.0, 12.0, 0.125)
N = Axis("n", len(GRID))
X = read("x", N)


def pieces(rng: np.random.Generator, depth: int) -> Expr:
    """A random function of x whose pieces meet at multiples of a half, or jump there."""
    if depth == 0:
        return X if rng.random() < 0.6 else const(float(rng.integers(-4, 5)) / 2)
    a, b = (pieces(rng, depth - 1) for _ in range(2))
    match rng.integers(7):
        case 0:
            return op("maximum", a, b)
        case 1:
            return op("minimum", a, b)
        case 2:
            return op("abs", a)
        case 3:
            return add(a, b)
        case 4:
            return op("where", op("lt" if rng.random() < 0.5 else "le", a, const(1.0)), b, X)
        case 5:
            return mul(op("sign", a), X)
        case _:
            return add(mul(const(2.0), a), b)


def twin(rng: np.random.Generator, e: Expr) -> Expr:
    """The function said in other words, one of which may be wrong."""

    def change(e: Expr) -> Expr:
        match e:
            case Map("maximum", (a, b)) if rng.random() < 0.7:
                choose = op("lt" if rng.random() < 0.5 else "le", a, b)
                return op("where", choose, b, a)
            case Map("abs", (a,)) if rng.random() < 0.7:
                return op("maximum", a, mul(const(-1.0), a))
            case Map("lt", (a, b)) if rng.random() < 0.5:
                return op("le", a, b)
            case Map("sign", (a,)) if rng.random() < 0.7:
                below = op("where", op("lt", a, const(0.0)), const(-1.0), const(0.0))
                more = op("lt" if rng.random() < 0.7 else "le", const(0.0), a)
                return op("where", more, const(1.0), below)
        return e

    return rebuilt([e], change)[0]


def values(e: Expr) -> np.ndarray:
    return evaluate_expr(e, {"x": GRID}, {}, (N,))


def test_what_is_alike_in_pieces_is_so_on_a_fine_grid() -> None:
    proved = wrong = missed = 0
    for seed in range(500):
        rng = np.random.default_rng(seed)
        a = pieces(rng, 3)
        b = twin(rng, a)
        if a == b:
            continue
        same = np.array_equal(values(a), values(b))
        found = alike_in_pieces(a, b)
        assert same or not found, f"{seed}: {a} and {b}"
        proved += found
        wrong += not same
        missed += same and not found
    assert proved > 200
    assert wrong > 15
    assert missed < 0.35 * proved  # comparisons of numbers alone


PAIRS = {
    "Huber by <=": (
        lambda x, y: F.huber_loss(x, y, reduction="none"),
        lambda x, y: torch.where((x - y).abs() <= 1, 0.5 * (x - y) ** 2, (x - y).abs() - 0.5),
    ),
    "leaky as a maximum": (lambda x, y: F.leaky_relu(x, 0.1), lambda x, y: torch.maximum(x, 0.1 * x)),
    "leaky by absolute values": (lambda x, y: F.leaky_relu(x, 0.1), lambda x, y: 0.55 * x + 0.45 * x.abs()),
    "ReLU6": (lambda x, y: F.relu6(x), lambda x, y: F.relu(x) - F.relu(x - 6)),
    "ELU": (lambda x, y: F.elu(x), lambda x, y: F.relu(x) + torch.minimum(torch.exp(x) - 1, torch.zeros(()))),
    "soft shrinkage": (lambda x, y: F.softshrink(x, 0.5), lambda x, y: torch.sign(x) * F.relu(x.abs() - 0.5)),
    "clamp": (lambda x, y: F.hardtanh(x + y), lambda x, y: 0.5 * ((x + y + 1).abs() - (x + y - 1).abs())),
    "ReLU6 under a product": (
        lambda x, y: F.relu6(x) @ y.mT,
        lambda x, y: (F.relu(x) - F.relu(x - 6)) @ y.mT,
    ),
    "ReLU6 of a product": (lambda x, y: F.relu6(x @ y.mT), lambda x, y: F.relu(x @ y.mT) - F.relu(x @ y.mT - 6)),
    "median of three": (lambda x, y: x.clamp(-1, 2), lambda x, y: x + F.relu(-1 - x) - F.relu(x - 2)),
}
ELSEWHERE = {
    "Huber, another offset": (
        lambda x, y: F.huber_loss(x, y, reduction="none"),
        lambda x, y: torch.where((x - y).abs() <= 1, 0.5 * (x - y) ** 2, (x - y).abs() - 0.25),
    ),
    "a slope above 1": (lambda x, y: F.leaky_relu(x, 2.0), lambda x, y: torch.maximum(x, 2.0 * x)),
    "hard shrinkage at its border": (
        lambda x, y: torch.where(x.abs() > 0.5, x, 0.0),
        lambda x, y: torch.where(x.abs() >= 0.5, x, 0.0),
    ),
    "another number at one point": (lambda x, y: x, lambda x, y: torch.where(x == 1.5, 1.0, x)),
    "a threshold of two numbers": (lambda x, y: torch.where(x < y, x, y), lambda x, y: torch.where(x < 1, x, y)),
}
X4 = torch.linspace(-2, 2, 12).reshape(3, 4)


@pytest.mark.parametrize("name", PAIRS)
def test_pieces_of_one_number(name: str) -> None:
    left, right = PAIRS[name]
    assert prove(left, right, [X4, X4]).status is Status.PROVED


@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_functions_are_not_proved(name: str) -> None:
    left, right = ELSEWHERE[name]
    assert prove(left, right, [X4, X4]).status is not Status.PROVED


def test_windows_of_windows_of_a_maximum() -> None:
    x = torch.randn(1, 2, 9, 9)

    def status(outer: int, stride: int, inner: int, whole: int) -> Status:
        return prove(
            lambda x: F.max_pool2d(F.max_pool2d(x, inner, 1), outer, stride),
            lambda x: F.max_pool2d(x, whole, stride),
            [x],
        ).status

    assert status(3, 1, 3, 5) is Status.PROVED
    assert status(2, 2, 3, 4) is Status.PROVED
    assert status(2, 2, 3, 3) is not Status.PROVED


def test_windows_with_gaps_are_left_alone() -> None:
    """Two places, four apart, of windows of three: the fourth is in none."""
    x = torch.randn(16)

    def gaps(x: torch.Tensor) -> torch.Tensor:
        return torch.stack((x[:-6].unfold(0, 3, 1).amax(-1), x[4:-2].unfold(0, 3, 1).amax(-1))).amax(0)

    assert prove(gaps, lambda x: x[:-1].unfold(0, 7, 1).amax(-1)[:8], [x]).status is not Status.PROVED


def lattice(rng: np.random.Generator, depth: int) -> Expr:
    """Random maxima and minima of a, b and c."""
    if depth == 0:
        return read("abc"[rng.integers(3)], N)
    a, b = (lattice(rng, depth - 1 if rng.random() < 0.8 else 0) for _ in range(2))
    return op("maximum" if rng.random() < 0.5 else "minimum", a, b)


def test_maxima_and_minima_of_three_numbers_are_one_where_they_are_in_every_order() -> None:
    """What they are is decided by the order of the three: 27 triples have them all, with ties."""
    rng = np.random.default_rng(0)
    triples = np.array(list(itertools.product(range(3), repeat=3)), dtype=float)
    at = {name: np.resize(triples[:, n], len(GRID)) for n, name in enumerate("abc")}
    made = [lattice(rng, 3) for _ in range(60)]
    values = [evaluate_expr(e, at, {}, (N,)) for e in made]
    proved = 0
    for (a, u), (b, v) in itertools.combinations(zip(made, values, strict=True), 2):
        alike = bool((u == v).all())
        if not alike and rng.random() < 0.7:
            continue
        assert (same_forms([a], [b]) is not None) == alike, (str(a), str(b))
        proved += alike and a != b
    assert proved > 20


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            lambda a, b, c: torch.maximum(torch.minimum(a, b), torch.minimum(torch.maximum(a, b), c)),
            lambda a, b, c: a + b + c - a.maximum(b).maximum(c) - a.minimum(b).minimum(c),
        ),
        (lambda a, b, c: a.maximum(b.minimum(c)), lambda a, b, c: a.maximum(b).minimum(a.maximum(c))),
        (
            lambda a, b, c: a.maximum(b.minimum(c)).minimum(b.maximum(c)),
            lambda a, b, c: a.minimum(b.maximum(c)).maximum(b.minimum(c)),
        ),
    ],
)
def test_what_several_numbers_are_in_order_is_proved(one: Function, other: Function) -> None:
    """The middle of three, distribution, and a clamp by bounds in any order."""
    assert prove(one, other, [torch.randn(8) for _ in range(3)]).status is Status.PROVED
