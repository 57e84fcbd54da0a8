"""Constants are the numbers that they are: nothing is proved because two of them are near each other."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from formulas import prove_formulas
from identities_common import (
    Axis,
    Expr,
    Pair,
    add,
    const,
    div,
    exp,
    formulas,
    inverse_rms,
    mean,
    mul,
    op,
    read,
    rsqrt,
    square,
    sub,
    total,
)

from prism.egraph.language import Budget
from prism.egraph.prove.exact import exact, number
from prism.egraph.prove.normal_form import normal_form
from prism.egraph.worker import Worker
from prism.program.constants import readings, rounded_from
from prism.program.identity.testing import Outcome, compare
from prism.program.transform import canonical
from prism.program.verdict import Status, Verdict

M = Axis("m", 3)


def verdict_of(pair: Pair, worker: Worker) -> Verdict:
    a, b = formulas(pair)
    return prove_formulas([a], [b], tensors=(), worker=worker)


def mean_by(n: int, divisor: Expr) -> Pair:
    k = Axis("k", n)
    x = read("x", M, k)
    return (M,), mean(k, x), mul(divisor, total(k, x))


def norm_by(n: int, divisor: Expr) -> Pair:
    k = Axis("k", n)
    x = read("x", M, k)
    return (M, k), mul(x, inverse_rms(k, x)), mul(x, rsqrt(add(mul(divisor, total(k, square(x))), const(1e-6))))


def eps_of(eps: float, other: float = 1e-6) -> Pair:
    k = Axis("k", 64)
    x = read("x", M, k)
    return (M, k), mul(x, inverse_rms(k, x, other)), mul(x, inverse_rms(k, x, eps))


@pytest.mark.parametrize("power", [10, 16, *(pytest.param(n, marks=pytest.mark.slow) for n in (20, 24))])
@pytest.mark.parametrize("shape", [mean_by, norm_by])
def test_one_over_n_is_not_one_over_n_less_one(power: int, shape: object, worker: Worker) -> None:
    n = 2**power
    for wrong in (const(1 / (n - 1)), div(const(1.0), const(n - 1.0))):
        verdict = verdict_of(shape(n, wrong), worker)  # type: ignore[operator]
        assert verdict.status is Status.REFUTED, verdict.reason
    verdict = verdict_of(shape(n, const(1 / n)), worker)  # type: ignore[operator]
    assert verdict.status is Status.PROVED, verdict.reason


@pytest.mark.parametrize("power", [24, 30, 36])
def test_the_prover_alone_tells_them_apart_in_long_axes(power: int, worker: Worker) -> None:
    n = 2**power
    _, a, b = mean_by(n, const(1 / (n - 1)))
    _, _, right = mean_by(n, const(1 / n))
    a, b, right = canonical(a), canonical(b), canonical(right)
    worker.explore([a], Budget())
    wrong, fine = worker.prove([[b], [right]])
    assert (wrong.status, fine.status) == (Status.UNKNOWN, Status.PROVED)
    assert normal_form(a) != normal_form(b)
    assert normal_form(a) == normal_form(right)
    if power == 24:
        assert compare([a], [b]).outcome is Outcome.DISAGREE


@pytest.mark.parametrize("eps", [1.00001e-6, 1.000001e-6, 1.0000001e-6, 1.0000000001e-6])
def test_one_eps_is_not_another(eps: float, worker: Worker) -> None:
    verdict = verdict_of(eps_of(eps), worker)
    assert verdict.status is Status.REFUTED, verdict.reason


def test_constants_that_are_too_near_are_unknown(worker: Worker) -> None:
    verdict = verdict_of(eps_of(1.0000000000001e-6), worker)
    assert verdict.status is Status.UNKNOWN
    assert "1e-06 and 1.0000000000001e-06" in verdict.reason


def test_sums_that_are_too_near_are_not_proved(worker: Worker) -> None:
    """Neither number is near the other; what they come to is."""
    k = Axis("k", 8)
    x = read("x", M, k)
    for tiny, other in ((1e-14, 2e-14), (1e-20, 2e-20), (1e-9, 1.001e-9)):
        left, right = (mul(add(const(1.0), const(t)), x) for t in (tiny, other))
        verdict = verdict_of(((M, k), left, right), worker)
        assert not verdict, verdict.reason
        assert compare([left], [right]).outcome is Outcome.DISAGREE


def test_a_rounding_to_float32_is_an_assumption_that_is_said(worker: Worker) -> None:
    for eps in (1e-6, 1e-5):
        verdict = verdict_of(eps_of(float(np.float32(eps)), eps), worker)
        assert verdict.status is Status.PROVED, verdict.reason
        assert f"read as {eps!r}, of which it is the nearest float32" in verdict.reason
    # The same number in both needs none.
    same = verdict_of(eps_of(float(np.float32(1e-6)), float(np.float32(1e-6))), worker)
    assert same.status is Status.PROVED
    assert "read as" not in same.reason
    # The next float32 is another number, and is not read as this one.
    beside = float(np.nextafter(np.float32(1e-6), np.float32(1)))
    assert not verdict_of(eps_of(beside), worker)


def test_scales_as_exporters_round_them(worker: Worker) -> None:
    k, j = Axis("k", 128), Axis("j", 5)
    s = mul(read("q", M, k), read("t", j, k))
    for d, ok in ((128, True), (127, False), (129, False)):
        scale = const(float(np.float32(d**-0.5)))
        left = exp(mul(rsqrt(const(128.0)), total(k, s)))
        right = exp(total(k, mul(scale, s)))
        verdict = verdict_of(((M, j), left, right), worker)
        assert verdict.status is (Status.PROVED if ok else Status.REFUTED), verdict.reason


def test_what_float32_numbers_are_read_as() -> None:
    single = {128**-0.5: "sqrt(1/128)", 1 / 3: "1/3", 1 / 768: "1/768", 1e-6: "1e-06", 0.044715: "0.044715"}
    for value, text in single.items():
        assert rounded_from(float(np.float32(value))) == (value, text)
        assert rounded_from(-float(np.float32(value))) == (-value, f"-{text}")
        assert rounded_from(value) is None
    for value in (0.125, 3.0, 2.0**-24, 0.7978845608, float(np.float32(0.7978845608)), float(np.float16(1e-6)), 0.0):
        assert rounded_from(value) is None


def test_roundings_to_float64_are_one_number() -> None:
    x = read("x", M)
    one, other = 0.1 * 3, 0.3
    known = readings([mul(const(one), x)], [mul(const(other), x)])
    assert known.left == known.right
    assert known.assumed == (f"{other!r} and {one!r} read as one number, rounded to float64",)
    apart = readings([sub(const(0.1), x)], [sub(const(0.2), x)])
    assert (apart.assumed, apart.unclear) == ((), "")


def test_numbers_are_exact_and_read_back() -> None:
    read_as = {
        0.1: Fraction(1, 10), 0.1 * 3: Fraction(3, 10), 1 / 3: Fraction(1, 3), 2.0**-24: Fraction(1, 2**24),
        1 / (2**24 - 1): Fraction(1, 2**24 - 1), 1.0000001e-6: Fraction(10000001, 10**13),
        2.0**53 - 2: Fraction(2**53 - 2),
    }  # fmt: skip
    for c, x in read_as.items():
        assert exact(c) == (x, Fraction(1))
        assert exact(-c) == (-x, Fraction(1))
    assert exact(128**-0.5) == (Fraction(1), Fraction(1, 128))
    assert exact(0.7978845608028654)[1] == 1
    for x in (Fraction(1, 3), 1 + Fraction(1, 10**20), Fraction(3**60, 7**40), -Fraction(10**30 + 1), Fraction(0)):
        form = number(x)
        assert normal_form(form) == normal_form(mul(const(1.0), form))
        assert number(x) != number(x + Fraction(1, 10**30))


def test_roots_and_logarithms_of_numbers_are_exact() -> None:
    x = read("x", M)

    def same(a: Expr, b: Expr) -> bool:
        return normal_form(canonical(mul(a, x))) == normal_form(canonical(mul(b, x)))

    def root(c: float) -> Expr:
        return op("sqrt", const(c))

    def log(c: float) -> Expr:
        return op("log", const(c))

    assert same(mul(root(8.0), root(18.0)), const(12.0))
    assert same(div(const(1.0), root(12.0)), mul(const(0.5), div(root(3.0), const(3.0))))
    assert same(const(2**-0.5), root(0.5))
    assert same(add(log(8.0), log(0.5)), mul(const(2.0), log(2.0)))
    assert same(op("exp", mul(const(3.0), log(2.0))), const(8.0))
    assert same(mul(exp(const(0.5)), exp(const(1.5))), exp(const(2.0)))
    assert not same(root(2.0), const(1.41421356))
    assert not same(log(2.0), const(0.69314718056))
    assert not same(exp(const(1.0)), const(2.718281828459045))
    assert not same(op("cos", const(1.0)), const(0.5403023058681398))
