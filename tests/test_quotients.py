"""Quotients are one where they are over a common denominator, and where what divides one is 0 neither has a value."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from prism.api import prove
from prism.egraph.prove.normal_form import Unfit, normal_form, same_quotient
from prism.program.build import add, const, mul, neg, op, read, recip
from prism.program.evaluate import evaluate_expr
from prism.program.index import Axis
from prism.program.nodes import Const, Expr, Map, Read
from prism.program.verdict import Status

Function = Callable[..., torch.Tensor]
N = Axis("n", 1)

EQUAL: dict[str, tuple[int, Function, Function]] = {
    "two fractions": (2, lambda x, y: 1 / x + 1 / y, lambda x, y: (x + y) / (x * y)),
    "squares": (2, lambda x, y: (x * x - y * y) / (x - y) + 1 / (y - x), lambda x, y: x + y - 1 / (x - y)),
    "fractions in fractions": (1, lambda x: 1 / (2 + 1 / (1 + x * x)), lambda x: (1 + x * x) / (3 + 2 * x * x)),
    "sums that divide": (
        2,
        lambda p, t: 1 - 2 * (p * t).sum() / (p.sum() + t.sum()),
        lambda p, t: (p + t - 2 * p * t).sum() / (p.sum() + t.sum()),
    ),
    "tanh of twice": (1, lambda x: torch.tanh(2 * x), lambda x: 2 * torch.tanh(x) / (1 + torch.tanh(x) ** 2)),
    "cosh": (1, lambda x: 1 - torch.tanh(x) ** 2, lambda x: 1 / torch.cosh(x) ** 2),
    "mish": (1, F.mish, lambda x: x * ((1 + x.exp()) ** 2 - 1) / ((1 + x.exp()) ** 2 + 1)),
    "logs of sigmoids": (
        2,
        lambda z, y: F.binary_cross_entropy_with_logits(z, y),
        lambda z, y: -(y * torch.log(torch.sigmoid(z)) + (1 - y) * torch.log(1 - torch.sigmoid(z))).mean(),
    ),
    "the root of a square": (1, lambda x: torch.sqrt((1 + x * x) ** 2), lambda x: 1 + x * x),
    "roots of squares over others": (
        2,
        lambda x, y: torch.sqrt((1 + x.exp()) ** 3 / (1 + y * y) ** 2).sum(-1),
        lambda x, y: ((1 + x.exp()) * torch.sqrt(1 + x.exp()) / (1 + y * y)).sum(-1),
    ),
    "sine of twice": (1, lambda x: torch.sin(2 * x), lambda x: 2 * x.sin() * x.cos()),
    "sine of three times": (1, lambda x: torch.sin(3 * x), lambda x: 3 * x.sin() - 4 * x.sin() ** 3),
    "tangent of half": (1, lambda x: torch.sin(2 * x) / (1 + torch.cos(2 * x)), lambda x: x.sin() / x.cos()),
}
UNLIKE: dict[str, tuple[int, Function, Function]] = {
    "no value at 0": (2, lambda x, y: y + 1, lambda x, y: (x * y + x) / x),
    "no value where they meet": (2, lambda x, y: x + y, lambda x, y: (x * x - y * y) / (x - y)),
    "another fraction": (1, lambda x: 1 / (2 + 1 / (1 + x * x)), lambda x: (1 + x * x) / (2 + 3 * x * x)),
    "sum of tanh": (
        2,
        lambda x, y: torch.tanh(x + y),
        lambda x, y: (torch.tanh(x) + torch.tanh(y)) / (1 - torch.tanh(x) * torch.tanh(y)),
    ),
    "another label": (
        2,
        lambda z, y: F.binary_cross_entropy_with_logits(z, y),
        lambda z, y: -((1 - y) * torch.log(torch.sigmoid(z)) + y * torch.log(1 - torch.sigmoid(z))).mean(),
    ),
    "powers of a sine": (1, lambda x: torch.sin(3 * x), lambda x: 4 * x.sin() - 3 * x.sin() ** 3),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_quotients_are_proved(name: str) -> None:
    many, f, g = EQUAL[name]
    verdict = prove(f, g, [torch.randn(3, 4) for _ in range(many)])
    assert verdict.status is Status.PROVED, verdict.reason


@pytest.mark.parametrize("name", ["no value at 0", "no value where they meet"])
def test_what_divides_is_not_simply_left_out(name: str) -> None:
    """As by the reference alone: it has no value there, and whoever leaves that out has to say so."""
    many, f, g = UNLIKE[name]
    assert prove(g, f, [torch.randn(3, 4) for _ in range(many)]).status is not Status.PROVED


@pytest.mark.parametrize("name", UNLIKE)
def test_other_quotients_are_refuted(name: str) -> None:
    many, f, g = UNLIKE[name]
    verdict = prove(f, g, [torch.randn(3, 4) for _ in range(many)])
    assert verdict.status is Status.REFUTED, verdict.reason


def quotient(rng: np.random.Generator, depth: int) -> Expr:
    """A random function of x and y by arithmetic."""
    if depth == 0:
        return [read("x", N), read("y", N), const(1.0), const(2.0)][rng.integers(4)]
    a = quotient(rng, depth - 1)
    match rng.integers(5):
        case 0 | 1:
            return add(a, quotient(rng, depth - 1))
        case 2:
            return mul(a, quotient(rng, depth - 1))
        case 3:
            return neg(a)
        case _:
            return recip(a)


def value(e: Expr, at: dict[str, Fraction]) -> Fraction | None:
    """What it is, exactly; None where something is divided by 0."""
    match e:
        case Const(c):
            return Fraction(c)
        case Read(name, _):
            return at[name]
        case Map(name, args):
            known = [value(a, at) for a in args]
            if any(k is None for k in known) or (name == "recip" and known[0] == 0):
                return None
            a, b = known[0], known[-1]
            assert a is not None
            assert b is not None
            return {"add": a + b, "mul": a * b, "neg": -a, "recip": 1 / a if a else a}[name]
    raise AssertionError(e)


def twin(rng: np.random.Generator, e: Expr) -> Expr:
    """The function in other words, which may have no value where the first ones have one."""
    match e:
        case Map(name, args) if rng.random() < 0.8:
            return Map(name, tuple([twin(rng, a) for a in args]))
    by = quotient(rng, 1)
    return mul(mul(e, by), recip(by)) if rng.random() < 0.5 else recip(recip(e))


def test_quotients_that_are_one_have_the_same_values_or_none() -> None:
    rng = np.random.default_rng(0)
    points = [{"x": Fraction(a), "y": Fraction(b, 2)} for a in range(-3, 4) for b in range(-5, 6)]
    alike = apart = 0
    for _ in range(300):
        one = quotient(rng, 3)
        other = twin(rng, one if rng.random() < 0.9 else quotient(rng, 3))
        for a, b in ((one, other), (other, one)):
            of_a, of_b = ([value(e, p) for p in points] for e in (a, b))
            agree = of_a == of_b
            try:
                found = same_quotient(a, b)
            except Unfit:
                continue
            assert agree or not found, (str(a), str(b))
            alike += found and str(a) != str(b)
            apart += not agree
    assert alike > 40
    assert apart > 50


def smooth(rng: np.random.Generator, depth: int) -> Expr:
    """A random function of x and y by exponentials, larger ones, logarithms and quotients of what is above 0."""
    if depth == 0:
        return [read("x", N), read("y", N), const(1.0), const(0.5)][rng.integers(4)]
    a = smooth(rng, depth - 1)
    match rng.integers(9):
        case 0 | 1:
            return add(a, smooth(rng, depth - 1))
        case 2:
            return mul(a, smooth(rng, depth - 1))
        case 3:
            return op("maximum", a, const(0.0))
        case 4:
            return op(["sigmoid", "tanh"][rng.integers(2)], a)
        case 5:
            return op("log", add(const(1.0), op("exp", a)))
        case 6:
            return recip(add(const(1.0), op("exp", a)))
        case 7:
            return op("log", add(const(1.0), neg(op("sigmoid", a))))
        case _:
            return op("exp", mul(const([2.0, -1.0, 0.5][rng.integers(3)]), op("maximum", a, const(0.0))))


def test_a_normal_form_of_quotients_has_the_values_of_what_it_stands_for() -> None:
    rng = np.random.default_rng(1)
    made = changed = 0
    for _ in range(250):
        e = smooth(rng, 3)
        try:
            form = normal_form(e)
        except Unfit:
            continue
        at = {"x": rng.normal(size=1), "y": rng.normal(size=1)}
        one, other = (float(evaluate_expr(s, at, {}, (N,))[0]) for s in (e, form))
        if not np.isfinite(one) or abs(one) > 1e6:
            continue
        assert abs(one - other) <= 1e-7 * max(1.0, abs(one)), (str(e), str(form))
        made += 1
        changed += form != e
    assert made > 150
    assert changed > 100
