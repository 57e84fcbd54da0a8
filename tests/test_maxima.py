"""Maxima over windows as one over fewer axes, against all places; and what is monotone, or 0 or 1, within a maximum."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from prism.egraph.prove.error_bounds import tracked
from prism.egraph.prove.normal_form import normal_form
from prism.egraph.prove.windows import Windows, windows
from prism.program.build import add, const, mul, neg, op, position, read, recip
from prism.program.evaluate import evaluate_expr
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Reduce, ReduceKind

OUTSIDE = Axis("o", 5)
INSIDE = Axis("i", 3), Axis("j", 2), Axis("k", 3)
LONG = 40


def drawn(rng: random.Random) -> Windows:
    """Windows of windows with strides, with comparisons of their places."""
    axes = INSIDE[: rng.randint(1, 3)]
    steps = [1, *(rng.randint(1, 4) for _ in axes[1:])]
    place = Index.axis(OUTSIDE) + 10
    guards = []
    for a, s in zip(axes, steps, strict=True):
        place = place + Index.axis(a).scaled(s)
        sides = (1, -1) if rng.random() < 0.4 else (rng.choice((1, -1)),)
        guards += [place.scaled(s) + -s * rng.randint(8, 18) for s in sides if rng.random() < 0.7]
    return Windows(axes, tuple(guards), read("x", place))


def places(w: Windows, outside: int) -> set[int]:
    """The elements that the maximum is of."""
    found = set()
    for values in itertools.product(*(range(int(a.extent)) for a in w.axes)):
        at = {a: Index.const(v) for a, v in zip(w.axes, values, strict=True)} | {OUTSIDE: Index.const(outside)}
        if all(int(d.substitute(at).offset) >= 0 for d in w.guards):
            (index,) = w.core.index  # type: ignore[attr-defined]
            found.add(int(index.substitute(at).offset))
    return found


def test_windows_of_windows_are_one_over_the_same_places() -> None:
    rng = random.Random(0)
    fewer = never = 0
    for _ in range(1500):
        w = drawn(rng)
        plain = w.plain()
        for n in range(int(OUTSIDE.extent)):
            assert places(plain, n) == places(w, n), (w, plain)
            assert places(w, n) or not w.never_empty, w
        made = w.expr
        assert isinstance(made, Reduce)
        again = windows(made)
        assert again is not None
        assert all(places(again, n) == places(w, n) for n in range(int(OUTSIDE.extent)))
        fewer += len(plain.axes) < len(w.axes)
        never += w.never_empty
    assert fewer > 300
    assert never > 300


def test_windows_of_more_inside_bind_a_name_once() -> None:
    i = INSIDE[0]
    inner = Reduce(ReduceKind.MAX, i, read("x", i))
    guarded = op("where", op("le", const(1.0), position(i)), inner, Const(-np.inf))
    assert windows(Reduce(ReduceKind.MAX, i, guarded)) is None


FREE, BOUND = Axis("m", 3), Axis("n", 4)
X, Y, ROW = read("x", FREE, BOUND), read("y", FREE, BOUND), read("y", FREE, 0)
TRUTH = op("where", op("lt", const(0.0), X), const(1.0), const(0.0))


def most(e: Expr) -> Expr:
    return Reduce(ReduceKind.MAX, BOUND, e)


def least(e: Expr) -> Expr:
    return Reduce(ReduceKind.MIN, BOUND, e)


def product(e: Expr) -> Expr:
    return Reduce(ReduceKind.PROD, BOUND, e)


def clipped(e: Expr) -> Expr:
    return op("maximum", e, const(0.0))


def power(e: Expr, c: float) -> Expr:
    return Map("pow", (e, Const(c)))


EQUAL: dict[str, tuple[Expr, Expr]] = {
    "sigmoid": (most(op("sigmoid", X)), op("sigmoid", most(X))),
    "tanh of what is subtracted": (most(op("tanh", neg(X))), op("tanh", neg(least(X)))),
    "one over exp": (most(recip(op("exp", X))), recip(op("exp", least(X)))),
    "root": (most(op("sqrt", clipped(X))), op("sqrt", most(clipped(X)))),
    "power below 0": (most(power(op("exp", X), -0.3)), power(least(op("exp", X)), -0.3)),
    "a factor that may be 0": (most(mul(X, clipped(ROW))), mul(most(X), clipped(ROW))),
    "a square": (most(mul(mul(ROW, ROW), X)), mul(mul(ROW, ROW), most(X))),
    "any": (most(TRUTH), add(const(1.0), neg(product(add(const(1.0), neg(TRUTH)))))),
    "all": (least(TRUTH), product(TRUTH)),
    "any by a sum": (most(TRUTH), op("lt", const(0.0), Reduce(ReduceKind.SUM, BOUND, TRUTH))),
    "a product of exponentials": (product(op("exp", X)), op("exp", Reduce(ReduceKind.SUM, BOUND, X))),
    "log of a size": (mul(const(2.0), op("log", op("abs", X))), op("log", mul(X, X))),
}
UNEQUAL: dict[str, tuple[Expr, Expr]] = {
    "cosine": (most(op("cos", X)), op("cos", most(X))),
    "a square within": (most(mul(X, X)), mul(most(X), most(X))),
    "a factor of either sign": (most(mul(X, ROW)), mul(most(X), ROW)),
    "a factor that varies": (most(mul(X, op("abs", Y))), mul(most(X), most(op("abs", Y)))),
    "one over": (most(recip(op("exp", X))), recip(op("exp", most(X)))),
    "all for any": (most(TRUTH), product(TRUTH)),
    "not 0 or 1": (least(X), product(X)),
    "more of 0": (most(X), op("lt", const(0.0), Reduce(ReduceKind.SUM, BOUND, X))),
    "a root of either sign": (power(mul(X, Y), 0.3), mul(power(X, 0.3), power(Y, 0.3))),
    "another power": (mul(power(op("exp", X), 0.3), power(op("exp", X), 0.6)), op("exp", X)),
    "log of a sum": (op("log", op("abs", add(X, Y))), add(op("log", op("abs", X)), op("log", op("abs", Y)))),
}


@pytest.mark.parametrize("name", EQUAL)
def test_are_one_form(name: str) -> None:
    one, other = (normal_form(e) for e in EQUAL[name])
    assert one == other
    rng = np.random.default_rng(0)
    drawn_ = {t: rng.standard_normal((3, 4)) for t in "xy"}
    found = evaluate_expr(one, drawn_, {}, (FREE, BOUND))
    for e in EQUAL[name]:
        np.testing.assert_allclose(found, evaluate_expr(e, drawn_, {}, (FREE, BOUND)))


@pytest.mark.parametrize("name", UNEQUAL)
def test_are_two_forms(name: str) -> None:
    one, other = (normal_form(e) for e in UNEQUAL[name])
    assert one != other


def test_an_overflow_of_a_power_is_no_infinity() -> None:
    x = read("x", 0)
    large = {"x": np.array([2e14]), "y": np.zeros((3, 4))}
    assert tracked(power(x, 27.0), large, {}) is None
    assert tracked(recip(x), {"x": np.array([1e-310])}, {}) is None
    assert tracked(power(x, -1.0), {"x": np.array([0.0])}, {}) == np.inf
    assert np.isnan(tracked(power(x, 0.5), {"x": np.array([-1.0])}, {}) or 0.0)
