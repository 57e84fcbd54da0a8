"""Integers as their types store them: bounds hold, what may overflow wraps, division is exact."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import prism
from prism.errors import UnsupportedError
from prism.frontend.torch.reader import trace
from prism.program import build, extents
from prism.program.evaluate import evaluate_expr
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.integers import (
    CAST_ASSUMED,
    INT64_ASSUMED,
    INT64_ENOUGH,
    Interval,
    assumptions,
    floor_quotient,
    floor_remainder,
    from_fraction,
    interval,
    of_type,
    quotient_bounds,
    range_of,
    remainder_bounds,
    stored,
    trunc_quotient,
    trunc_remainder,
)
from prism.program.nodes import Const, DType, Expr, Read, Reduce, ReduceKind, Size, SymbolRange

ROW, COLUMN = Axis("i", 7), Axis("j", 5)
A, B = build.read("a", ROW), build.read("b", ROW)
BOUNDS: Mapping[str, Interval] = {"a": Interval(-6.0, 9.0, whole=True), "b": Interval(1.0, 4.0, whole=True)}

EXPRESSIONS: dict[str, Expr] = {
    "ring": op("add", op("mul", A, B), op("neg", op("mul", A, A))),
    "itself above a number": op("where", op("lt", Const(2.0), A), A, Const(3.0)),
    "itself up to a number": op("where", op("not", op("le", A, Const(2.0))), B, A),
    "itself where it never is": op("where", op("lt", Const(20.0), A), A, B),
    "choice": op("where", op("lt", A, B), op("abs", A), op("sign", A)),
    "extremes": op("maximum", op("minimum", A, B), Const(-3.0)),
    "power": op("pow", A, B),
    "floor": op("floor", op("mul", A, Const(0.3))),
    "round": op("round", op("mul", A, Const(0.5))),
    "sum": Reduce(ReduceKind.SUM, ROW, A),
    "prod": Reduce(ReduceKind.PROD, ROW, B),
    "max": Reduce(ReduceKind.MAX, ROW, op("mul", A, build.position(ROW))),
    "position": op("mul", build.position(Index.axis(ROW).scaled(-3) + Index.axis(COLUMN).floordiv(2) + 4), B),
    "recip": op("mul", A, op("recip", B)),
    "log": op("mul", op("log", B), op("log", op("add", A, Const(6.5)))),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_values_lie_within_their_bounds(name: str) -> None:
    draw, e = np.random.default_rng(0), EXPRESSIONS[name]
    bounds = interval(e, BOUNDS.__getitem__)
    for _ in range(40):
        given = {t: draw.integers(int(b.low), int(b.high) + 1, 7).astype(float) for t, b in BOUNDS.items()}
        values = evaluate_expr(e, given, {}, (ROW, COLUMN))
        assert bounds.low <= values.min() <= values.max() <= bounds.high
        assert not bounds.whole or np.all(values == np.rint(values))
    assert bounds.whole == (name not in ("recip", "log"))


def test_bounds_are_over_the_whole_range_of_a_symbol() -> None:
    n = extents.symbol("n")
    ranges = {"n": SymbolRange(2, 10, 4)}
    axis = Axis("k", n * n - 1)
    assert interval(Size(3 * n - n * n), BOUNDS.__getitem__, ranges).within(Interval(-94.0, 26.0, whole=True))
    assert interval(Reduce(ReduceKind.SUM, axis, build.read("a", axis)), BOUNDS.__getitem__, ranges) == Interval(
        -6.0 * 99, 9.0 * 99, whole=True
    )
    unknown = interval(Reduce(ReduceKind.SUM, axis, build.read("b", axis)), BOUNDS.__getitem__)
    assert unknown.high == float("inf")


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT32])
def test_what_may_leave_its_type_wraps_as_numpy_wraps(dtype: DType) -> None:
    numbers = np.array([-(2.0**40) - 5, -(2.0**31) - 1, -129, -128, -1, 0, 127, 128, 255, 256, 2.0**31, 2.0**45 + 3])
    x = Read("x", (Index.axis(Axis("x", len(numbers))),))
    expr, bounds = stored(x, dtype, Interval(-(2.0**50), 2.0**50, whole=True))
    got = evaluate_expr(expr, {"x": numbers}, {}, (Axis("x", len(numbers)),))
    np.testing.assert_array_equal(got, numbers.astype(np.int64).astype(dtype.value))
    assert bounds == range_of(dtype)


def test_what_fits_its_type_is_kept_as_it_is() -> None:
    for dtype in (DType.INT8, DType.UINT8, DType.INT32, DType.INT64, DType.BOOL):
        assert stored(A, dtype, Interval(0.0, 1.0, whole=True))[0] is A
    assert stored(A, DType.FLOAT32, Interval(-1e30, 1e30, whole=False))[0] is A
    assert stored(A, DType.INT32, of_type(DType.INT64))[0] is A  # as .int() of positions


def test_a_truth_value_is_whether_it_is_not_zero() -> None:
    expr, bounds = stored(A, DType.BOOL, BOUNDS["a"])
    got = evaluate_expr(expr, {"a": np.array([-2.0, 0, 1, 0, 3, 0, 0])}, {}, (ROW,))
    assert got.tolist() == [1, 0, 1, 0, 1, 0, 0]
    assert bounds == Interval(0.0, 1.0, whole=True)


def test_what_no_type_can_hold_exactly_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="not known to be a whole number"):
        stored(A, DType.INT8, Interval(0.0, 1.0, whole=False), "somewhere")
    with pytest.raises(UnsupportedError, match="may overflow"):
        stored(A, DType.INT8, Interval(0.0, 2.0**63, whole=True))
    assert stored(A, DType.INT64, Interval(0.0, 2.0**70, whole=True)) == (A, range_of(DType.INT64))


def test_fractions_are_cut_off_towards_zero() -> None:
    x = Read("x", (Index.axis(Axis("x", 4)),))
    expr, bounds = from_fraction(x, Interval(-2.7, 300.0, whole=False))
    got = evaluate_expr(expr, {"x": np.array([-2.7, -0.5, 0.5, 299.9])}, {}, (Axis("x", 4),))
    assert got.tolist() == [-2, 0, 0, 299]
    assert bounds == Interval(-2.0, 300.0, whole=True)
    assert from_fraction(x, Interval(-np.inf, np.inf, whole=False))[1] == of_type(DType.INT64)


def _numpy_trunc(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.sign(a) * np.sign(b) * (abs(a) // abs(b)))


DIVISIONS: dict[str, tuple[Callable[[Expr, Expr], Expr], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "floor": (floor_quotient, lambda a, b: a // b),
    "floor_remainder": (floor_remainder, lambda a, b: a % b),
    "trunc": (trunc_quotient, _numpy_trunc),
    "trunc_remainder": (trunc_remainder, lambda a, b: np.fmod(a, b)),
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_division_of_whole_numbers_is_exact(name: str) -> None:
    formula, exact = DIVISIONS[name]
    every = np.arange(-128, 128)
    large = np.array([2**31 - 1, -(2**31), 2**31 - 49, 2**40 + 7, -(2**50) + 3])
    a = np.concatenate([every, large])
    x = Read("x", (Index.axis(Axis("x", len(a))),))
    y = Read("y", ())
    for b in (*range(-128, 0), *range(1, 256), 999_983, -(2**31)):
        as_array = np.full_like(a, b)
        expected = exact(a, as_array)
        # the divisor as a number, whose 1/b is a rounded number in the formula, and as a tensor
        for divisor in (Const(float(b)), y):
            got = evaluate_expr(
                formula(x, divisor), {"x": a.astype(float), "y": np.array(float(b))}, {}, (Axis("x", len(a)),)
            )
            np.testing.assert_array_equal(got, expected)


def test_bounds_of_quotients_and_remainders_hold() -> None:
    ranges = [(-5, 7), (0, 7), (3, 9), (-9, -2), (0, 0), (-4, 0)]
    for (p, q), (r, s) in itertools.product(ranges, ranges):
        a = np.arange(p, q + 1)[:, None]
        b = np.array([n for n in range(r, s + 1) if n != 0])
        if not b.size:
            continue
        one, two = Interval(float(p), float(q), whole=True), Interval(float(r), float(s), whole=True)
        for bounds, values in (
            (quotient_bounds(one, two), a // b),
            (quotient_bounds(one, two), _numpy_trunc(a, b)),
            (remainder_bounds(one, two, floor=True), a % b),
            (remainder_bounds(one, two, floor=False), np.fmod(a, b)),
        ):
            assert bounds.low <= values.min() <= values.max() <= bounds.high


def test_a_verdict_names_what_is_taken_for_granted_of_int64() -> None:
    ids, x = torch.tensor([3, 1, 2]), torch.randn(3)
    proved = prism.prove(lambda i, x: (i + 1) * x, lambda i, x: i * x + x, (ids, x))
    assert proved
    assert proved.assumptions == (INT64_ASSUMED,)
    assert INT64_ASSUMED in proved.reason
    assert not prism.prove(lambda i, x: (i + 1) * x, lambda i, x: i * x - x, (ids, x)).assumptions
    assert not prism.prove(lambda i, x: (i + 1) * x, lambda i, x: i * x + x, (ids.int(), x)).assumptions


IDS, X, N = torch.tensor([3, 1, 2]), torch.tensor([0.25, -1.5, 2.0]), torch.tensor([3, 1, 2], dtype=torch.int32)
GRANTED: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], tuple[str, ...]]] = {
    "a sum may leave int64": (lambda i: i + i, (IDS,), (INT64_ASSUMED,)),
    "a product of three may, whatever they are": (lambda i: i * i * i, (IDS,), (INT64_ASSUMED, INT64_ENOUGH)),
    "positions of tokens that a mask leaves": (lambda i: i.cumsum(-1) * i, (IDS,), (INT64_ASSUMED, INT64_ENOUGH)),
    "so may a product of all": (lambda i: i.prod(-1), (IDS,), (INT64_ASSUMED, INT64_ENOUGH)),
    "a total, too": (lambda i: i.sum(-1), (IDS,), (INT64_ASSUMED,)),
    "an index does not": (lambda i: F.one_hot(i, 5) * 2, (IDS,), ()),
    "nor does what is compared": (lambda i: torch.where(i <= i.flip(0), i, -1), (IDS,), ()),
    "nor does a maximum": (lambda i: i.amax(-1), (IDS,), ()),
    "nor what is computed in floats": (lambda i: i.float() * 2, (IDS,), ()),
    "a number without bounds is cast": (lambda x: x.to(torch.int32), (X,), (CAST_ASSUMED,)),
    "narrowly": (lambda x: x.to(torch.uint8), (X,), (CAST_ASSUMED,)),
    "rounded before": (lambda x: (x * 3).round().to(torch.int8), (X,), (CAST_ASSUMED,)),
    "one with bounds": (lambda x: (x.sigmoid() * 100).to(torch.int8), (X,), ()),
    "a clamped one": (lambda x: x.clamp(-100, 100).round().to(torch.int8), (X,), ()),
    "a choice by numbers": (lambda x, n: torch.where(x > 0, n, n % 5), (X, N), ()),
    "a mean of integers": (lambda n: n.float().mean(-1).to(torch.int64), (N,), ()),
    "both": (lambda i, x: i * 3 + x.to(torch.int64), (IDS, X), (INT64_ASSUMED, CAST_ASSUMED)),
}


@pytest.mark.parametrize("name", GRANTED)
def test_what_is_taken_for_granted_is_named_where_it_matters(name: str) -> None:
    function, inputs, clauses = GRANTED[name]
    assert assumptions(trace(function, inputs, check=False)) == clauses


def test_a_proof_of_outputs_of_unlike_types_names_them() -> None:
    x = torch.randn(3, 4)
    proved = prism.prove(lambda x: x.sigmoid() * 2, lambda x: (2 * x.sigmoid()).half(), (x,))
    assert proved
    (said,) = proved.assumptions
    assert said.startswith("that types do not matter: ")
    assert said.endswith(" is float32 and float16")
    assert said in proved.reason
