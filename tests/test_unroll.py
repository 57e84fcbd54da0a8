"""Reductions over short axes along which a choice is made are written out; nothing else is, and nothing changes."""

from __future__ import annotations

import numpy as np
import pytest
from formulas import evaluate_formula

from prism.program import fold
from prism.program.build import mul, op, position, read, reduce
from prism.program.evaluate import evaluate_expr
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.inline import LONGEST, inline, unrolled
from prism.program.nodes import (
    Const,
    Definition,
    DType,
    Expr,
    Formula,
    Map,
    Position,
    Program,
    Read,
    Reduce,
    Tensor,
    walk,
)
from prism.program.prefix import carried
from prism.program.transform import canonical

I2, I3, J, S = Axis("i", 2), Axis("i", 3), Axis("j", 6), Axis("s", symbol("s"))


def where(axis: Axis, below: int, then: Expr, otherwise: Expr) -> Expr:
    return fold.op("where", fold.op("lt", position(axis), Const(float(below))), then, otherwise)


def choices(e: Expr) -> int:
    return sum(isinstance(x, Map) and x.op == "where" for x in walk(e))


def reads(e: Expr) -> set[str]:
    return {str(x) for x in walk(e) if isinstance(x, Read)}


def strided(axis: Axis, by: int) -> Expr:
    return Read("x", (Index.axis(J).scaled(by) + Index.axis(axis),))


def test_each_element_is_a_term_and_its_choice_is_made() -> None:
    body = mul(strided(I2, 2), where(I2, 1, read("low", J), read("high", J)))
    found = unrolled(reduce("sum", J, reduce("sum", I2, body)))
    assert choices(found) == 0
    assert not any(isinstance(e, Position) or (isinstance(e, Reduce) and e.axis == I2) for e in walk(found))
    assert reads(found) == {"x[2*j]", "x[2*j + 1]", "low[j]", "high[j]"}


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_the_value_is_the_same(kind: str) -> None:
    body = mul(strided(I3, 3), where(I3, 1, read("low", J), where(I3, 2, read("high", J), Const(2.0))))
    e = reduce(kind, I3, body)
    found = unrolled(e)
    assert choices(e) == 2
    assert choices(found) == 0
    rng = np.random.default_rng(0)
    tensors = {"x": rng.standard_normal(18), "low": rng.standard_normal(6), "high": rng.standard_normal(6)}
    before, after = (evaluate_expr(x, tensors, {}, (J,)) for x in (e, found))
    np.testing.assert_allclose(after, before, rtol=1e-14)


def test_what_is_long_symbolic_or_decided_by_other_axes_stays() -> None:
    long = Axis("i", LONGEST + 1)
    for axis in (long, S):
        e = reduce("sum", axis, mul(read("x", axis), where(axis, 1, Const(1.0), Const(3.0))))
        assert unrolled(e) is e
    # A causal mask is of two axes.
    causal = fold.op("where", fold.op("le", position(I2), position(J)), read("x", I2), Const(0.0))
    e = reduce("sum", I2, causal)
    assert unrolled(e) is e
    # A choice by a tensor's elements is not made by position.
    e = reduce("sum", I2, fold.op("where", fold.op("lt", read("m", I2), Const(0.0)), read("x", I2), Const(0.0)))
    assert unrolled(e) is e
    # Without a choice there is nothing to gain.
    e = reduce("sum", I2, mul(read("x", I2), position(I2)))
    assert unrolled(e) is e


def test_only_the_reductions_that_decide_are_written_out() -> None:
    inner = reduce("max", I3, read("w", I3, J))
    e = reduce("sum", I2, mul(inner, where(I2, 1, read("low", J), read("high", J))))
    found = unrolled(e)
    assert [x.axis for x in walk(found) if isinstance(x, Reduce)] == [I3]


def test_codes_packed_two_a_byte_are_unpacked_once() -> None:
    n, p, k = Axis("n", 3), Axis("p", 4), Axis("k", 8)
    i = Axis("c", 2)
    high = fold.op("floor", mul(read("w", n, p), Const(0.0625)))
    low = fold.op("add", read("w", n, p), mul(Const(-16.0), high))
    steps = (
        Definition("codes", (n, p, i), where(i, 1, low, high), DType.FLOAT32),
        Definition(
            "weight",
            (n, k),
            Read("codes", (Index.axis(n), Index.axis(k).floordiv(2), Index.axis(k).mod(2))),
            DType.FLOAT32,
        ),
        Definition("y", (n,), reduce("sum", k, mul(read("x", k), read("weight", n, k))), DType.FLOAT32),
    )
    inputs = (Tensor("x", (8,), DType.FLOAT32), Tensor("w", (3, 4), DType.UINT8))
    (formula,) = inline(Program("packed", inputs, steps, ("y",)))
    assert choices(formula.expr) == 0
    assert len({x for x in walk(formula.expr) if isinstance(x, Map) and x.op == "floor"}) == 1
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(8), rng.integers(0, 256, (3, 4))
    weight = np.stack((w & 15, w >> 4), -1).reshape(3, 8)
    got = evaluate_formula(formula, {"x": x, "w": w.astype(float)}, {})
    np.testing.assert_allclose(got, weight @ x, rtol=1e-12)


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("border", [1, 3, 17, 19])
def test_appended_elements_are_terms_of_their_own(kind: str, border: int) -> None:
    """Of what is put together along a long axis, the piece of a few elements leaves the loop."""
    n = Axis("n", 20)
    e = reduce(kind, n, where(n, border, read("x", n), read("z", J)))
    found = unrolled(e)
    assert choices(found) == 0
    (loop,) = [x for x in walk(found) if isinstance(x, Reduce)]
    assert loop.axis.extent == max(border, 20 - border)
    rng = np.random.default_rng(1)
    given = {"x": rng.standard_normal(20), "z": rng.standard_normal(int(J.extent))}
    tensor, index = Tensor("y", (J.extent,), DType.FLOAT32), (Index.axis(J),)
    before, after = (evaluate_formula(Formula(tensor, index, x), given, {}) for x in (e, found))
    np.testing.assert_allclose(after, before, rtol=1e-12)


def test_appended_elements_that_take_reductions_stay_in_the_loop() -> None:
    n, k = Axis("n", 20), Axis("k", 30)
    e = reduce("sum", n, where(n, 19, read("x", n), reduce("sum", k, read("z", k))))
    assert unrolled(e) is e
    # Both pieces are long, or both short.
    for border, extent in ((10, 20), (1, 5)):
        n = Axis("n", extent)
        e = reduce("sum", n, where(n, border, read("x", n), read("z", J)))
        assert unrolled(e) is e


def test_comparisons_that_always_hold_are_gone() -> None:
    n = Axis("n", 20)
    e = reduce("sum", n, where(n, 20, read("x", n), read("z", J)))
    assert unrolled(e) == reduce("sum", n, read("x", n))


# A place that is another axis' own is apart, where a choice is for it alone.
K, N = Axis("k", 6), Axis("n", 6)
OWN, EARLIER = fold.op("eq", position(K), position(N)), fold.op("lt", position(K), position(N))
SEEN = fold.op("where", EARLIER, read("a", K), fold.op("where", OWN, read("b", N), Const(-np.inf)))
BELOW = fold.op("exp", fold.op("add", SEEN, fold.op("neg", reduce("max", K, SEEN))))


@pytest.mark.parametrize("e", [reduce("max", K, SEEN), reduce("sum", K, mul(BELOW, read("f", K)))], ids=["max", "sum"])
def test_the_place_that_is_an_axis_own_is_apart(e: Expr) -> None:
    found = unrolled(e)
    assert any(isinstance(x, Map) and x.op == "eq" for x in walk(e))
    assert not any(isinstance(x, Map) and x.op == "eq" for x in walk(found))
    assert isinstance(found, Map)
    rng = np.random.default_rng(1)
    tensors = {name: 50 * rng.standard_normal(6) for name in "abf"}
    before, after = (evaluate_expr(x, tensors, {}, (N,)) for x in (e, found))
    np.testing.assert_allclose(after, before, rtol=1e-14)


@pytest.mark.parametrize(
    "body",
    [
        # What else there is at the place counts.
        fold.op("where", OWN, read("b", N), read("a", K)),
        fold.op("where", fold.op("eq", position(K), position(J)), read("b", N), fold.op("exp", read("a", K))),
        # The exponential of -inf, below what may be -inf as well: no maximum of numbers.
        fold.op("exp", fold.op("add", SEEN, fold.op("neg", reduce("max", J, op("log", read("a", J)))))),
        # A factor that may be infinite.
        mul(BELOW, op("log", read("f", K))),
    ],
)
def test_a_place_whose_rest_counts_stays(body: Expr) -> None:
    e = reduce("sum", K, body)
    eqs = [x for x in walk(e) if isinstance(x, Map) and x.op == "eq"]
    assert eqs
    assert any(isinstance(x, Map) and x.op == "eq" for x in walk(unrolled(e)))


def test_a_factor_that_is_one_tensor_after_another_is_multiplied_as_the_two() -> None:
    along, row = Axis("d", 24), Axis("m", 5)
    own, later = Index.axis(along), Index.axis(along) + Index.const(-16)
    both = where(along, 16, Read("a", (Index.axis(row), own)), Read("b", (Index.axis(row), later)))
    halves = where(along, 12, Read("a", (Index.axis(row), own + 12)), Read("a", (Index.axis(row), own + -12)))
    weight = Read("w", (own,))
    found = unrolled(reduce("sum", along, mul(both, weight)))
    assert choices(found) == 0
    assert {x.axis.extent for x in walk(found) if isinstance(x, Reduce)} == {16, 8}
    assert reads(found) == {"a[m, d]", "b[m, d]", "w[d]", "w[d + 16]"} or len(reads(found)) == 4
    rotated = reduce("sum", along, mul(halves, weight))
    assert unrolled(rotated) == rotated, "halves of one tensor are one row, which is read once"


def test_a_product_with_a_part_after_it_is_a_sum_of_the_product_and_one_of_the_part() -> None:
    """As keys of latent attention are, with what is rotated after them: two sums of the product may change places."""
    n, k = Axis("n", 20), Axis("k", 7)
    product = reduce("sum", k, mul(Read("c", (Index.axis(k),)), Read("u", (Index.axis(n), Index.axis(k)))))
    part = Read("p", (Index.axis(n) + -12,))
    e = reduce("sum", n, mul(read("q", n), where(n, 12, product, part)))
    found = unrolled(e)
    assert choices(found) == 0
    assert isinstance(found, Map)
    assert found.op == "add"
    rng = np.random.default_rng(0)
    given = {"c": rng.normal(size=7), "u": rng.normal(size=(20, 7)), "p": rng.normal(size=8), "q": rng.normal(size=20)}
    before, after = (evaluate_expr(x, given, {}, ()) for x in (e, found))
    np.testing.assert_allclose(after, before, rtol=1e-12)


def running(kind: str, op: str, places: int, along: int, shift: int, *, back: bool) -> Reduce:
    """What a mask leaves of `places`, each moved on by `shift`, along an axis of another length."""
    r, n = Axis("r", places), Axis("n", along)
    sides = Position(Index.axis(r) + shift), position(n)
    compared = fold.op(op, *(sides[::-1] if back else sides))
    outside = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}[kind]
    body = reduce(kind, r, Map("where", (compared, fold.op("exp", read("x", r)), Const(outside))))
    assert isinstance(body, Reduce)
    return body


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("op", ["le", "lt"])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("places", [11, 12, 13, 15])
@pytest.mark.parametrize("shift", [-3, -1, 0, 1, 2])
def test_what_runs_along_an_axis_has_as_many_places(kind: str, op: str, back: bool, places: int, shift: int) -> None:
    """Whatever is found is what was asked for, read within the tensor alone."""
    e = running(kind, op, places, 12, shift, back=back)
    found = unrolled(e)
    tensors = {"x": np.random.default_rng(places).standard_normal(places)}
    before, after = (evaluate_expr(x, tensors, {}, (Axis("n", 12),)) for x in (e, found))
    np.testing.assert_allclose(after, before, rtol=1e-12)
    if found is not e:
        (loop,) = [x for x in walk(found) if isinstance(x, Reduce)]
        assert carried(loop) is not None


@pytest.mark.parametrize(
    ("op", "places", "shift", "back"),
    [
        ("lt", 11, 0, False),  # sums that begin with 0 and end with all of it
        ("le", 11, 1, False),  # what stood behind a 0 that was put first
        ("lt", 13, 0, True),  # the gradient of the former
        ("lt", 12, -1, True),
        ("le", 11, 0, True),  # sums from a place on that end with 0
        ("le", 12, 3, False),
    ],
)
def test_sums_that_begin_or_end_with_nothing_run_along(op: str, places: int, shift: int, back: bool) -> None:
    e = running("sum", op, places, 12, shift, back=back)
    assert carried(e) is None
    found = unrolled(e)
    assert carried(found) is not None
    assert canonical(unrolled(found)) == canonical(found)


def test_few_places_or_those_before_the_first_do_not_run_along() -> None:
    for e in (running("sum", "lt", 5, 12, 0, back=False), running("sum", "le", 12, 12, -1, back=False)):
        assert unrolled(e) is e
