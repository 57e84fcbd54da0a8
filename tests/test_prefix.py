"""Prefix sums among expressions: recognised, evaluated in one pass, weighed as one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sgraph_simulator import COMBINE

from prism.api import trace
from prism.backends.eager import eager
from prism.cost.device import device
from prism.cost.model import baseline_estimate
from prism.program.build import add, const, mul, op, position, read, reduce, sub
from prism.program.evaluate import evaluate
from prism.program.index import Axis, Index
from prism.program.nodes import Definition, DType, Expr, Position, Program, Reduce, ReduceKind, Tensor, walk
from prism.program.prefix import Carried, Recurrence, carried, recurrence, running, stepwise
from prism.program.transform import substitute

SUM, F32 = ReduceKind.SUM, DType.FLOAT32
i, n, m, other, other_n = Axis("i", 4), Axis("n", 6), Axis("m", 6), Axis("o", 5), Axis("l", 6)
UP_TO = op("le", position(m), position(n))


def masked(term: Expr, mask: Expr = UP_TO, otherwise: float = 0.0) -> Expr:
    return reduce("sum", m, op("where", mask, term, const(otherwise)))


def test_a_sum_of_what_stands_up_to_a_place_is_a_prefix_sum() -> None:
    assert carried(masked(mul(read("x", i, m), read("g", m)))) == Carried(n, mul(read("x", i, n), read("g", n)))


WAYS = [(before, back) for before in (False, True) for back in (False, True)]
KINDS = [Carried(n, read("x", i, n), Recurrence(kind, *way)) for kind in ReduceKind for way in WAYS]
FACTORS = [
    Carried(n, read("x", i, n), Recurrence(SUM, *way, factors=True), f)
    for f in (read("g", n), const(0.5), read("g", i))
    for way in WAYS
]
FACTORS += [
    Carried(n, read("x", i, n), Recurrence(kind, *way, factors=True), read("g", n))
    for kind in (ReduceKind.MAX, ReduceKind.MIN)
    for way in WAYS
]


@pytest.mark.parametrize("c", [*KINDS, *FACTORS], ids=str)
def test_what_is_carried_is_what_its_reduction_is_at_every_place(c: Carried) -> None:
    factor = None if c.factor is None else (other_n, substitute(c.factor, {n: Index.axis(other_n)}))
    made = running(c.how, read("x", i, m), m, n, factor)
    assert carried(made) == c
    step = recurrence(made)
    assert step is not None
    assert not any(isinstance(e, Reduce) for e in walk(step))
    rng = np.random.default_rng(2)
    x, g = rng.normal(size=(4, 6)), rng.normal(size=6)
    inputs = (Tensor("x", (4, 6), F32), Tensor("g", (6,), F32))
    p = Program("p", inputs, (Definition("o", (i, n), made, F32),), ("o",), {})
    by = np.ones((4, 6)) if c.factor is None else np.full((4, 6), 0.5) if c.factor == const(0.5) else g[None, :] + 0 * x
    by = g[:4, None] + 0 * x if c.factor == read("g", i) else by
    wanted, state = np.empty((4, 6)), None
    for place in reversed(range(6)) if c.how.back else range(6):
        last = np.full(4, c.how.kind.identity) if state is None else state
        extreme = c.how.kind.is_extreme and c.factor is not None
        grown = by[:, place] + last if extreme else by[:, place] * last
        state = x[:, place] if state is None else COMBINE[c.how.kind](grown, x[:, place])
        wanted[:, place] = last if c.how.before else state
    np.testing.assert_allclose(evaluate(p, {"x": x, "g": g})["o"], wanted, rtol=1e-12)
    # As it is written, place by place.
    whole = [substitute(made, {n: Index.const(k)}) for k in range(6)]
    ones = tuple(Definition(f"o{k}", (i,), e, F32) for k, e in enumerate(whole))
    apart = evaluate(Program("p", inputs, ones, tuple(d.name for d in ones), {}), {"x": x, "g": g})
    np.testing.assert_allclose(np.stack([apart[f"o{k}"] for k in range(6)], 1), wanted, rtol=1e-12)


NOT: dict[str, Expr] = {
    "a maximum": reduce("max", m, op("where", UP_TO, read("x", m), const(0.0))),
    "another mask": masked(read("x", m), op("le", position(Index.axis(n) + 1), position(m))),
    "something behind it": masked(read("x", m), otherwise=1.0),
    "a term of both places": masked(mul(read("x", m), read("y", n))),
    "a term of neither": masked(read("x", i)),
    "another length": reduce(
        "sum", other, op("where", op("le", position(other), position(n)), read("x", other), const(0.0))
    ),
}


@pytest.mark.parametrize("what", NOT)
def test_what_only_looks_like_one_is_none(what: str) -> None:
    assert carried(NOT[what]) is None
    assert recurrence(NOT[what]) is None
    assert stepwise(NOT[what]) == NOT[what]


BEFORE = op("lt", position(m), position(n))
DECAY = op("exp", sub(read("c", i, n), read("d", m)))
DISTANCE = position(Index.axis(n) + Index.axis(m).scaled(-1))
CARRIED: dict[str, tuple[Expr, Expr]] = {
    "strictly before": (masked(read("x", m), BEFORE), read("x", n)),
    "a decay": (masked(mul(DECAY, read("x", m))), mul(read("x", n), op("exp", sub(read("c", i, n), read("d", n))))),
    "a masked factor": (
        reduce("sum", m, mul(op("where", BEFORE, op("exp", mul(const(-0.1), DISTANCE)), const(0.0)), read("x", m))),
        mul(read("x", n), op("exp", mul(const(-0.1), Position(Index(()))))),
    ),
}


@pytest.mark.parametrize("what", CARRIED)
def test_what_goes_from_place_to_place_takes_one_step(what: str) -> None:
    given, term = CARRIED[what]
    assert recurrence(given) == op("add", term, const(0.0))
    assert stepwise(given) == op("add", term, const(0.0))


def test_each_place_takes_one_addition() -> None:
    inner = masked(read("x", i, m))
    assert stepwise(add(inner, const(1.0))) == add(op("add", read("x", i, n), const(0.0)), const(1.0))


def test_it_is_evaluated_in_one_pass() -> None:
    """As written this would take 10^10 additions, and the operators one by one would be weighed by them."""
    p = trace(lambda x: (x * x).cumsum(0), [torch.empty(100_000, 2, device="meta")], name="p")
    x = np.random.default_rng(0).normal(size=(100_000, 2))
    np.testing.assert_allclose(evaluate(p, {"x": x})[p.outputs[0]], (x * x).cumsum(0))
    (got,) = eager(p)(torch.from_numpy(x))
    np.testing.assert_allclose(got.numpy(), (x * x).cumsum(0))
    assert baseline_estimate(p, device("sm_90"), {}).seconds < 20e-6


def test_nan_and_infinity_go_on_from_where_they_stand() -> None:
    p = trace(lambda x: x.cumsum(0), [torch.empty(5, device="meta")], name="p")
    for special in (np.nan, np.inf):
        x = np.array([1.0, 2.0, special, 4.0, -special])
        np.testing.assert_array_equal(evaluate(p, {"x": x})[p.outputs[0]], x.cumsum())
