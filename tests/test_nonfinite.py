"""What is equal but for points where something is infinite or undefined is never proved in silence.

Each pair differs, if at all, where a mask hides a whole row, at a division by zero, or outside of a function's domain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import pytest
import torch
from formulas import prove_formulas
from torch.nn import functional as F

from prism.egraph.prove.error_bounds import tracked
from prism.egraph.worker import Worker
from prism.frontend.torch.reader import trace
from prism.program.build import add, const, mul, neg, op, position, read, recip, reduce, sub
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import Expr, Formula
from prism.program.sign_analysis import Facts
from prism.program.verdict import Status, Verdict

INF = float("inf")
W = torch.where
N = 8
Tensor: TypeAlias = torch.Tensor
One: TypeAlias = Callable[[Tensor], Tensor]
Two: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def kept(x: Tensor) -> Tensor:
    """Rows without a positive element are masked as a whole."""
    return W(x > 0, x, -INF)


def top(x: Tensor) -> Tensor:
    """-inf for such rows."""
    return kept(x).amax(-1, keepdim=True)


def below(x: Tensor) -> Tensor:
    """The counterpart with a minimum."""
    return W(x > 0, x, INF).amin(-1, keepdim=True)


def causal(s: Tensor) -> Tensor:
    """Every row keeps an element."""
    return W(torch.arange(N)[None, :] <= torch.arange(N)[:, None], s, -INF)


def window(s: Tensor, w: int = 3) -> Tensor:
    """The last `w` keys."""
    i = torch.arange(N)
    return W((i[None] <= i[:, None]) & (i[None] > i[:, None] - w), s, -INF)


def attention(s: Tensor, v: Tensor) -> Tensor:
    return s.softmax(-1) @ v


def flash(s: Tensor, v: Tensor, block: int = 4) -> Tensor:
    """Online softmax over blocks, as people write it in a loop."""
    m, l, o = torch.full((N, 1), -INF), torch.zeros(N, 1), torch.zeros(N, v.shape[-1])  # noqa: E741
    for i in range(0, N, block):
        b = s[:, i : i + block]
        new = torch.maximum(m, b.amax(-1, keepdim=True))
        p, c = (b - new).exp(), (m - new).exp()
        l, o, m = l * c + p.sum(-1, keepdim=True), o * c + p @ v[i : i + block], new  # noqa: E741
    return o / l


def unshifted(s: Tensor, v: Tensor) -> Tensor:
    """Softmax without its maximum, divided last."""
    e = s.exp()
    return (e @ v) / e.sum(-1, keepdim=True)


def shifted(s: Tensor, v: Tensor) -> Tensor:
    """Softmax divided last."""
    e = (s - s.amax(-1, keepdim=True)).exp()
    return (e @ v) / e.sum(-1, keepdim=True)


def guarded(p: Tensor, m: Tensor) -> Tensor:
    return W(m == -INF, 0.0, p)


# (reference, candidate); the reference has a value at every input, or at more of them than the candidate.
WRONG: Mapping[str, tuple[One, One]] = {
    "a masked maximum minus itself": (lambda x: 2 * x, lambda x: 2 * x + (top(x) - top(x))),
    "zero times a masked maximum": (lambda x: 2 * x, lambda x: 2 * x + 0 * top(x)),
    "zero times what a mask hides": (lambda x: 2 * x, lambda x: 2 * x + 0 * kept(x)),
    "zero times two masked maxima": (lambda x: x, lambda x: x + 0 * torch.maximum(top(x), top(x) - 1)),
    "a masked minimum minus itself": (lambda x: x, lambda x: x + (below(x) - below(x))),
    "what a mask hides minus itself": (lambda x: x, lambda x: x + (kept(x) - kept(x))),
    "what a mask hides plus zero times it": (kept, lambda x: kept(x) + 0 * kept(x)),
    "two masks of both signs": (lambda x: x, lambda x: x + W(x > 0, x, -INF) + W(x > 0, -x, INF)),
    "zero times a masked sum": (lambda x: x, lambda x: x + 0 * kept(x).sum(-1, keepdim=True)),
    "zero times a masked product": (lambda x: x, lambda x: x + 0 * W(x > 0, x, INF).prod(-1, keepdim=True)),
    "zero times a range that is always empty": (
        lambda x: x,
        lambda x: x + 0 * W(torch.arange(N) > N - 1, x, -INF).amax(-1, keepdim=True),
    ),
    "a first row without a key": (
        lambda x: x,
        lambda x: x + 0 * W(torch.arange(N)[None] < torch.arange(N)[:, None], x, -INF).amax(-1, keepdim=True),
    ),
    "softmax minus itself": (lambda x: x, lambda x: x + (kept(x).softmax(-1) - kept(x).softmax(-1))),
    "zero times softmax": (lambda x: x, lambda x: x + 0 * kept(x).softmax(-1)),
    "softmax sums to one": (lambda x: x.sum(-1) * 0 + 1, lambda x: kept(x).softmax(-1).sum(-1)),
    "logsumexp times zero": (lambda x: x, lambda x: x + 0 * kept(x).logsumexp(-1, keepdim=True)),
    "a masked mean times zero": (
        lambda x: x,
        lambda x: x + 0 * (W(x > 0, x, 0.0).sum(-1, keepdim=True) / (x > 0).float().sum(-1, keepdim=True)),
    ),
    "a count over itself": (
        torch.ones_like,
        lambda x: (x > 0).float().sum(-1, keepdim=True) / (x > 0).float().sum(-1, keepdim=True) + 0 * x,
    ),
    "a guard by the maximum dropped": (lambda x: guarded(kept(x).softmax(-1), top(x)), lambda x: kept(x).softmax(-1)),
    "a guard by isnan dropped": (lambda x: kept(x).softmax(-1).nan_to_num(0.0), lambda x: kept(x).softmax(-1)),
    "a guard turned": (lambda x: x, lambda x: W(torch.isnan(kept(x).softmax(-1)), 0.0, x)),
    "a mask before the exponential": (
        lambda x: W(x > 0, (x - top(x)).exp(), 0.0),
        lambda x: (kept(x) - top(x)).exp(),
    ),
    "a masked exponential shifted": (lambda x: kept(x).exp(), lambda x: (kept(x) - top(x)).exp() * top(x).exp()),
    "a masked sum shifted": (
        lambda x: kept(x).exp().sum(-1, keepdim=True),
        lambda x: (kept(x) - top(x)).exp().sum(-1, keepdim=True) * top(x).exp(),
    ),
    "a chain through a masked maximum": (
        lambda x: (kept(x) - 1).exp(),
        lambda x: (kept(x) - top(x)).exp() * (top(x) - 1).exp(),
    ),
    "log of a masked sum shifted": (
        lambda x: kept(x).exp().sum(-1, keepdim=True).log(),
        lambda x: top(x) + (kept(x) - top(x)).exp().sum(-1, keepdim=True).log(),
    ),
    "an infinite factor into a sum": (
        lambda x: (W(x[..., :1] > 0, 1.0, -INF) * x.relu().sum(-1, keepdim=True)).exp(),
        lambda x: (W(x[..., :1] > 0, 1.0, -INF) * x.relu()).sum(-1, keepdim=True).exp(),
    ),
    "an infinite factor into a maximum": (
        lambda x: W(x[..., :1] > 0, 1.0, INF) * x.abs().amax(-1, keepdim=True),
        lambda x: (W(x[..., :1] > 0, 1.0, INF) * x.abs()).amax(-1, keepdim=True),
    ),
    "x over x": (torch.ones_like, lambda x: x / x),
    "x squared over x": (lambda x: x, lambda x: x * x / x),
    "one over one over": (lambda x: x * 0 + 1, lambda x: x * (1 / x)),
    "a sum over itself": (
        lambda x: x,
        lambda x: x * x.sum(-1, keepdim=True) / x.sum(-1, keepdim=True),
    ),
    "a norm over itself": (
        lambda x: x,
        lambda x: (x / x.norm(dim=-1, keepdim=True)) * x.norm(dim=-1, keepdim=True),
    ),
    "relu normalised and back": (
        F.relu,
        lambda x: x.relu() / x.relu().sum(-1, keepdim=True) * x.relu().sum(-1, keepdim=True),
    ),
    "relu squared over relu": (F.relu, lambda x: x.relu() * x.relu() / x.relu()),
    "zero times a power": (torch.abs, lambda x: x.abs() + 0 * x**-1),
    "a root squared": (lambda x: x, lambda x: x.sqrt() * x.sqrt()),
    "a root squared by a power": (torch.abs, lambda x: x.sqrt() ** 2),
    "exp of log": (lambda x: x, lambda x: x.log().exp()),
    "log of a square": (lambda x: (x * x).log(), lambda x: 2 * x.log()),
    "log of a product": (lambda x: (x * x.flip(-1)).log(), lambda x: x.log() + x.flip(-1).log()),
    "log minus itself": (lambda x: x * 1, lambda x: x + (x.log() - x.log())),
    "sigmoid of log": (lambda x: x / (1 + x), lambda x: x.log().sigmoid()),
    "a maximum by log and exp": (lambda x: x.amax(-1), lambda x: x.log().amax(-1).exp()),
    "a choice as a product": (lambda x: W(x > 0, x.log(), 0.0), lambda x: (x > 0).float() * x.log()),
    "a minimum by a choice": (lambda x: W(x.log() < x, x.log(), x), lambda x: torch.minimum(x.log(), x)),
    "a sine over itself": (lambda x: x, lambda x: x * x.sin() / x.sin()),
}


def rarely(x: Tensor) -> Tensor:
    """Rows are masked as a whole where no draw of the refuter comes."""
    return W(x < 1e5, x, -INF)


def highest(x: Tensor) -> Tensor:
    return rarely(x).amax(-1, keepdim=True)


def infinite(x: Tensor) -> Tensor:
    """1, and rarely infinite."""
    return W(x < 1e5, 1.0, INF)


# As wrong, and no draw shows it: the proof itself has to see it.
UNSEEN: Mapping[str, tuple[One, One]] = {
    "a chain through a rarely masked maximum": (
        lambda x: (rarely(x) - 1).exp(),
        lambda x: (rarely(x) - highest(x)).exp() * (highest(x) - 1).exp(),
    ),
    "a rarely infinite factor into a sum": (
        lambda x: (-infinite(x[..., :1]) * x.relu().sum(-1, keepdim=True)).exp(),
        lambda x: (-infinite(x[..., :1]) * x.relu()).sum(-1, keepdim=True).exp(),
    ),
    "an infinite factor into a product": (
        lambda x: (-infinite(x[..., :1]) * (x.abs() @ x.abs())).exp(),
        lambda x: ((-infinite(x[..., :1]) * x.abs()) @ x.abs()).exp(),
    ),
    "an infinite addend into a masked maximum": (
        lambda x: rarely(x).amax(-1, keepdim=True) + infinite(x[..., :1]),
        lambda x: (rarely(x) + infinite(x[..., :1])).amax(-1, keepdim=True),
    ),
    "an infinite addend into a larger one": (
        lambda x: torch.maximum(rarely(x), x) + infinite(x),
        lambda x: torch.maximum(rarely(x) + infinite(x), x + infinite(x)),
    ),
    "infinity over itself": (torch.ones_like, lambda x: infinite(x) / infinite(x)),
    "a sigmoid that is 0 over itself": (lambda x: x, lambda x: x * rarely(x).sigmoid() / rarely(x).sigmoid()),
    "a fraction gathered": (
        torch.ones_like,
        lambda x: rarely(x).sigmoid() + (-rarely(x)).exp() * rarely(x).sigmoid(),
    ),
}

# Proved, and on no more than finite inputs.
RIGHT: Mapping[str, tuple[Two, Two]] = {
    "causal, maximum dropped": (lambda s, v: attention(causal(s), v), lambda s, v: unshifted(causal(s), v)),
    "causal, divided last": (lambda s, v: attention(causal(s), v), lambda s, v: shifted(causal(s), v)),
    "causal flash": (lambda s, v: attention(causal(s), v), lambda s, v: flash(causal(s), v)),
    "causal, guarded by the maximum": (
        lambda s, v: attention(causal(s), v),
        lambda s, v: guarded(causal(s).softmax(-1), causal(s).amax(-1, keepdim=True)) @ v,
    ),
    "causal, guarded by isnan": (
        lambda s, v: attention(causal(s), v),
        lambda s, v: W(torch.isnan(causal(s).softmax(-1)), 0.0, causal(s).softmax(-1)) @ v,
    ),
    "causal, additive": (
        lambda s, v: attention(causal(s), v),
        lambda s, v: attention(s + causal(torch.zeros(N, N)), v),
    ),
    "causal, by 0 and 1": (
        lambda s, v: causal(s).exp() @ v,
        lambda s, v: (torch.tril(torch.ones(N, N)) * s.exp()) @ v,
    ),
    "zero times a causal maximum": (lambda s, v: s, lambda s, v: s + 0 * causal(s).amax(-1, keepdim=True)),
    "a causal maximum minus itself": (
        lambda s, v: s,
        lambda s, v: s + (causal(s).amax(-1, keepdim=True) - causal(s).amax(-1, keepdim=True)),
    ),
    "zero times a causal minimum": (
        lambda s, v: s,
        lambda s, v: s + 0 * W(torch.ones(N, N).tril() > 0, s, INF).amin(-1, keepdim=True),
    ),
    "log softmax": (lambda s, v: causal(s).softmax(-1), lambda s, v: causal(s).log_softmax(-1).exp()),
    "flash": (attention, flash),
    "a window, maximum dropped": (lambda s, v: attention(window(s), v), lambda s, v: unshifted(window(s), v)),
    "logsumexp of a window": (lambda s, v: window(s).logsumexp(-1), lambda s, v: window(s).exp().sum(-1).log()),
    "a data mask, both undefined": (lambda s, v: attention(kept(s), v), lambda s, v: unshifted(kept(s), v)),
    "a data mask, divided last": (lambda s, v: attention(kept(s), v), lambda s, v: shifted(kept(s), v)),
    "a guard before and after the product": (
        lambda s, v: guarded(kept(s).softmax(-1), top(s)) @ v,
        lambda s, v: guarded(kept(s).softmax(-1) @ v, top(s)),
    ),
    "a data mask, guarded, maximum dropped": (
        lambda s, v: guarded(attention(kept(s), v), top(s)),
        lambda s, v: guarded(unshifted(kept(s), v), top(s)),
    ),
    "a masked sum of exponentials": (lambda s, v: kept(s).exp().sum(-1), lambda s, v: W(s > 0, s.exp(), 0.0).sum(-1)),
    "a positive factor": (lambda s, v: s * (s * s + 1) / (s * s + 1), lambda s, v: s),
    "exponentials cancel": (lambda s, v: s, lambda s, v: s * s.exp() * (-s).exp()),
    "a positive sum": (lambda s, v: s / (s.relu() + 1) * (s.relu() + 1), lambda s, v: s),
    "a norm moved": (
        lambda s, v: (s * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-6)) @ v,
        lambda s, v: (s @ v) * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-6),
    ),
}

# Proved where the reference has a value, which the verdict says.
ASSUMING: Mapping[str, tuple[Two, Two]] = {
    "a guard where the reference is NaN": (
        lambda s, v: attention(kept(s), v),
        lambda s, v: guarded(kept(s).softmax(-1), top(s)) @ v,
    ),
    "a masked maximum minus itself dropped": (lambda s, v: s + (top(s) - top(s)), lambda s, v: s),
}


def traced(functions: Mapping[str, Callable[..., Tensor]], inputs: tuple[Tensor, ...]) -> dict[str, Formula]:
    """All functions as one program, and its outputs by the functions' names."""
    program = trace(lambda *xs: tuple(f(*xs) for f in functions.values()), inputs)
    return dict(zip(functions, inline(program), strict=True))


@pytest.fixture(scope="module")
def verdicts(worker: Worker) -> Callable[[str], Verdict]:
    """The verdict on a pair by its name."""
    x, v = torch.randn(N, N), torch.randn(N, 4)
    pairs: dict[str, tuple[Formula, Formula]] = {}
    for table, inputs in ((WRONG, (x,)), (UNSEEN, (x,)), (RIGHT, (x, v)), (ASSUMING, (x, v))):
        sides = [traced({name: pair[n] for name, pair in table.items()}, inputs) for n in (0, 1)]
        pairs |= {name: (sides[0][name], sides[1][name]) for name in table}
    return lambda name: prove_formulas([pairs[name][0]], [pairs[name][1]], tensors=(), worker=worker)


def test_there_are_enough() -> None:
    assert len(WRONG) >= 40
    assert len(RIGHT) >= 20


@pytest.mark.parametrize("name", WRONG)
def test_what_has_no_value_where_the_reference_has_one_is_refuted(
    name: str, verdicts: Callable[[str], Verdict]
) -> None:
    verdict = verdicts(name)
    if name == "a sine over itself":  # 0 among the draws would refute it, and is one
        assert verdict.status is not Status.PROVED
        return
    assert verdict.status is Status.REFUTED, verdict.reason
    assert " against " in verdict.reason
    assert verdict.counterexample


@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_draw_shows_is_not_proved(name: str, verdicts: Callable[[str], Verdict]) -> None:
    assert verdicts(name).status is Status.UNKNOWN


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_finite_by_its_mask_stays_proved(name: str, verdicts: Callable[[str], Verdict]) -> None:
    verdict = verdicts(name)
    assert verdict.status is Status.PROVED, verdict.reason
    assert not verdict.assumptions


@pytest.mark.parametrize("name", ASSUMING)
def test_an_assumption_is_named(name: str, verdicts: Callable[[str], Verdict]) -> None:
    verdict = verdicts(name)
    assert verdict.status is Status.PROVED, verdict.reason
    assert verdict.assumptions
    assert all(a in verdict.reason for a in verdict.assumptions)
    assert any("the reference has a value, unlike" in a and "nan against" in a for a in verdict.assumptions)


ROW, J, K = Axis("i", N), Axis("j", N), Axis("k", symbol("keys"))
Q = Axis("q", symbol("queries"))


def masked(keep: Expr, axis: Axis = J, *others: Axis) -> Expr:
    """The maximum over an axis of what a predicate keeps."""
    return reduce("max", axis, op("where", keep, read("s", *others, axis), const(-INF)))


@pytest.mark.parametrize(
    ("extreme", "kept"),
    [
        (masked(op("le", position(J), position(ROW)), J, ROW), True),
        (masked(op("lt", position(J), position(ROW)), J, ROW), False),
        (masked(op("lt", position(ROW), position(J)), J, ROW), False),
        (masked(op("le", position(ROW), position(J)), J, ROW), True),
        (masked(op("le", position(K), position(Q)), K, Q), True),
        (masked(op("le", position(K), position(Index.axis(Q) + 3)), K, Q), True),
        (masked(op("lt", position(K), position(Q)), K, Q), False),
        (masked(op("lt", const(2.0), position(K)), K, Q), False),
        (masked(op("and", op("le", position(J), position(ROW)), op("le", position(ROW), position(J))), J, ROW), True),
        (masked(op("and", op("le", position(J), position(ROW)), op("lt", position(ROW), position(J))), J, ROW), False),
        (masked(op("eq", position(J), position(ROW)), J, ROW), True),
        (masked(op("lt", const(0.0), read("s", ROW, J)), J, ROW), False),
        (masked(op("or", op("lt", const(0.0), read("s", ROW, J)), op("eq", position(J), const(0.0))), J, ROW), True),
        (op("maximum", masked(op("lt", position(J), position(ROW)), J, ROW), read("t", ROW)), True),
        (reduce("max", ROW, masked(op("lt", position(J), position(ROW)), J, ROW)), True),
        (reduce("max", J, op("log", mul(read("s", ROW, J), read("s", ROW, J)))), False),
    ],
)
def test_a_maximum_is_a_number_where_an_element_is_kept(extreme: Expr, kept: bool) -> None:
    assert Facts().finite(extreme) is kept
    if not kept:
        assert Facts().infinities(extreme) == frozenset({-INF})


def test_what_rounding_or_overflow_makes_is_told_from_what_is_so() -> None:
    x = read("x")
    at = {"x": np.asarray(0.1)}
    cancels = add(mul(x, const(3.0)), const(-(0.1 * 3.0)))  # 0 or not, as rounding has it
    assert tracked(op("log", mul(cancels, cancels)), at, {}) is None
    assert tracked(op("sqrt", mul(const(-1.0), mul(cancels, cancels))), at, {}) is None
    assert tracked(op("exp", mul(x, const(1e9))), at, {}) is None
    assert tracked(recip(op("exp", mul(x, const(-1e9)))), at, {}) is None
    assert str(tracked(op("sqrt", neg(x)), at, {})) == "nan"
    zero = mul(x, const(0.0))
    assert tracked(recip(zero), at, {}) == INF
    assert str(tracked(recip(zero), at, {}, poles=float("nan"))) == "nan"
    assert str(tracked(sub(const(INF), const(INF)), at, {})) == "nan"
    assert tracked(op("exp", const(-INF)), at, {}) == 0
