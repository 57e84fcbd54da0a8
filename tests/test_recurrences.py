"""Recurrences that were written step by step are loops where they are read; nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import prism
from prism.frontend.torch.reader import trace
from prism.program import spec
from prism.program.evaluate import evaluate
from prism.program.nodes import Program, Read, ReduceKind, Steps, walk
from prism.program.prefix import carried
from prism.program.recurrences import direct, looped
from prism.program.rolled import rolled

Make = Callable[..., Any]


def _read(fn: Make, *shapes: tuple[int, ...]) -> tuple[Program, Program]:
    """The program as it is written, and with loops."""
    plain = trace(fn, tuple(torch.zeros(s) for s in shapes), name="unrolled", check=False)
    found = direct(rolled(looped(plain)))
    spec.check(found)
    rng = np.random.default_rng(0)
    given = {t.name: rng.standard_normal([int(e) for e in t.shape]) / 2 for t in plain.inputs}
    one, other = evaluate(plain, given), evaluate(found, given)
    for name in plain.outputs:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-12, atol=1e-12)
    return plain, found


def layer(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    h, found = torch.zeros(4, 8), []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h @ u)
        found.append(h)
    return torch.stack(found)


def given_state(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h @ u)
        found.append(h)
    return torch.stack(found, 1), h


def from_the_end(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    found = []
    for t in reversed(range(x.shape[0])):
        h = torch.tanh(x[t] @ w + h @ u)
        found.append(h)
    return torch.stack(found[::-1])


def last_alone(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h @ u)
    return h


def odd(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found, c = [], torch.zeros(4, 8)
    for t in range(x.shape[0]):
        s = torch.softmax(h @ u, -1)
        c = c * 0.9 + s * x[t].cos()
        h = h - 0.1 * (c @ u).relu() + x[t].sum(-1, keepdim=True)
        found.append(s)
    return torch.stack(found), c


def two_layers(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    g, found = h, []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h @ u)
        g = torch.sigmoid(h @ w + g @ u)
        found.append(g)
    return torch.stack(found), h


def one_after_another(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return layer(layer(x, w, u).cos(), u, w)


def power_method(a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        v = a @ v
        v = v / v.norm()
    return v


def other_dimension(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    h, found = x.new_zeros(x.shape[0], 8), []
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] + h @ u)
        found.append(h @ w)
    return torch.stack(found, 1)


def two_before(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    found = [h, h]
    for t in range(x.shape[0]):
        found.append(torch.tanh(x[t] @ w + found[-1] @ u + found[-2] @ w))
    return torch.stack(found)


X, W, H = (6, 4, 8), (8, 8), (4, 8)
CASES: dict[str, tuple[Make, list[tuple[int, ...]], int, int]] = {
    "a layer": (layer, [X, W, W], 1, 6),
    "from a given state": (given_state, [X, W, W, H], 1, 6),
    "from the end": (from_the_end, [X, W, W, H], 1, 6),
    "the last state alone": (last_alone, [X, W, W, H], 1, 6),
    "an odd step": (odd, [X, W, W, H], 1, 5),
    "two layers in one loop": (two_layers, [X, W, W, H], 1, 6),
    "two loops": (one_after_another, [X, W, W, H], 2, 6),
    "no slices": (power_method, [(8, 8), (8,)], 1, 6),
    "a state of two steps before, whose product is carried": (two_before, [X, W, W, H], 1, 5),
    "slices of another dimension": (other_dimension, [(4, 6, 8), W, W], 1, 6),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_are_a_loop(case: str) -> None:
    make, shapes, loops, trips = CASES[case]
    _, found = _read(make, *shapes)
    assert [loop.trips for loop in found.loops] == [trips] * loops


class Cells(nn.Module):
    """Cells of torch, called step by step."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell = getattr(nn, kind)(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(4, 8)
        found = []
        for t in range(x.shape[0]):
            if isinstance(self.cell, nn.LSTMCell):
                h, c = self.cell(x[t], (h, c))
            else:
                h = self.cell(x[t], h)
            found.append(h)
        return torch.stack(found)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_cells_of_torch_are_steps(kind: str) -> None:
    torch.manual_seed(0)
    _, found = _read(Cells(kind).eval(), X)
    (loop,) = found.loops
    assert len(loop.states) == (2 if kind == "LSTMCell" else 1)
    assert loop.trips == 6  # also where the first step is folded, as its state is 0
    assert isinstance(found.definition(found.outputs[0]).expr, Steps)


def test_what_hangs_on_no_state_is_one_product_before_the_loop() -> None:
    _, found = _read(layer, X, W, W)
    (loop,) = found.loops
    assert [d.tensor.shape for d in found.definitions if d.name.startswith("matmul_steps")] == [(6, 4, 8)]
    assert [outer for _, outer in loop.slices] == ["matmul_steps"]
    output = found.definition(found.outputs[0])
    assert isinstance(output.expr, Steps)  # and no copy of it
    _, found = _read(from_the_end, X, W, W, H)
    (loop,) = found.loops
    assert loop.reverse


def fast_weights(k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    s, found = torch.zeros(4, 4), []
    for t in range(k.shape[0]):
        added = v[t][:, None] * k[t][None, :]
        s = torch.tanh(s @ w) + 2.0 * added
        found.append(s.sum(-1))
    return torch.stack(found)


def summed_outside(k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """What a step spreads is read by what hangs on no state, too."""
    s, found = torch.zeros(4, 4), []
    for t in range(k.shape[0]):
        added = v[t][:, None] * k[t][None, :]
        s = torch.tanh(s @ w) + added * added.exp().sum()
        found.append(s.sum(-1))
    return torch.stack(found)


def test_what_steps_spread_is_made_within_them() -> None:
    _, found = _read(fast_weights, (6, 4), (6, 4), (4, 4))
    (loop,) = found.loops
    assert sorted(outer for _, outer in loop.slices) == ["k", "v"]
    _, found = _read(summed_outside, (6, 4), (6, 4), (4, 4))
    (loop,) = found.loops
    assert {"k", "v"}.isdisjoint(outer for _, outer in loop.slices)


def fewer(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return layer(x[:3], w, u)


def numbered(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    h, found = torch.zeros(4, 8), []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h @ u) * (1.5 + t * t)
        found.append(h)
    return torch.stack(found)


def own_weights(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    for w in (a, b, c, d):
        x = torch.tanh(x @ w)
    return x


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (fewer, [X, W, W]),
        (numbered, [X, W, W]),
        (own_weights, [H, W, W, W, W]),
        (lambda x: torch.stack([torch.softmax(r, -1) for r in x]), [X]),
    ],
)
def test_what_is_no_such_loop_stays(make: Make, shapes: list[tuple[int, ...]]) -> None:
    plain, found = _read(make, *shapes)
    assert not found.loops
    assert looped(plain) is plain


def other_first_step(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    h = torch.tanh(x[0] @ w + (0.0 * u).sum() + 1.0)
    found = [h]
    for t in range(1, x.shape[0]):
        h = torch.tanh(x[t] @ w + h @ u + h)
        found.append(h)
    return torch.stack(found)


def test_a_first_step_that_is_none_stays_before_the_loop() -> None:
    _, found = _read(other_first_step, (7, 4, 8), W, W)
    assert [loop.trips for loop in found.loops] == [6]


def one_step_differs(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    found = []
    for t in range(x.shape[0]):
        h = (torch.tanh if t != 5 else torch.sigmoid)(x[t] @ w + h @ u)
        found.append(h)
    return torch.stack(found)


def test_a_step_that_differs_is_no_step() -> None:
    _, found = _read(one_step_differs, (11, 4, 8), W, W, H)
    assert [loop.trips for loop in found.loops] == [5, 5]
    (other,) = [d for d in found.definitions if d.name.startswith("sigmoid")]
    assert not isinstance(other.expr, Read)


def test_long_sequences_are_read_and_stay_small() -> None:
    torch.manual_seed(0)
    tensors = (torch.randn(80, 4, 8), torch.randn(8, 8) / 3, torch.randn(8, 8) / 3)
    program = prism.trace(layer, tensors)
    assert len(program.definitions) == 3
    assert program.conformance is not None
    assert program.conformance.draws
    again = prism.trace(layer, tensors, check=False)
    assert str(again) == str(program)


def gated_twice(x: torch.Tensor, f: torch.Tensor, p: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """A simple recurrent unit (Lei 2018): pointwise, and not linear in what it carries."""
    found = []
    for t in range(x.shape[0]):
        gate = torch.sigmoid(f[t] + p * c)
        c = gate * c + (1 - gate) * x[t]
        found.append(torch.tanh(c))
    return torch.stack(found)


def test_many_pointwise_steps_are_a_loop_and_few_are_not() -> None:
    for steps, loops in (4, 0), (16, 1):
        _, found = _read(gated_twice, (steps, 3, 4), (steps, 3, 4), (4,), (3, 4))
        assert len(found.loops) == loops


# What is pointwise and linear in what it carries is there at every place at once.

STEPS, ROWS = 7, (7, 5)


def advantages(r: torch.Tensor, v: torch.Tensor, done: torch.Tensor, last: torch.Tensor) -> tuple[torch.Tensor, ...]:
    carried, after, found = torch.zeros_like(last), last, list[torch.Tensor]()
    for t in reversed(range(STEPS)):
        live = 1 - done[t]
        carried = r[t] + 0.99 * after * live - v[t] + 0.9 * live * carried
        found.insert(0, carried)
        after = v[t]
    made = torch.stack(found)
    return made, made + v


def average(x: torch.Tensor) -> torch.Tensor:
    h, found = x[0], []
    for t in range(STEPS):
        h = 0.9 * h + 0.1 * x[t]
        found.append(h)
    return torch.stack(found, 1)


def last_average(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for t in range(STEPS):
        w = w.lerp(x[t], 0.25)
    return w


def returns(r: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    h, found = torch.zeros_like(r[0]), []
    for t in reversed(range(STEPS)):
        h = torch.where(r[t] > 0.5, r[t] + g * h, r[t] - h)
        found.append(h)
    return torch.stack(found[::-1])


def largest(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    found = []
    for t in range(STEPS):
        h = torch.maximum(h, x[t].exp())
        found.append(h)
    return torch.stack(found)


def stabiliser(i: torch.Tensor, f: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    found = []
    for t in range(STEPS):
        m = torch.maximum(torch.nn.functional.logsigmoid(f[t]) + m, i[t])
        found.append(m)
    return torch.stack(found)


def falling(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    for t in reversed(range(STEPS)):
        m = torch.minimum(x[t], m - w)
    return m


def stabilised(z: torch.Tensor, i: torch.Tensor, f: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    """An xLSTM's scalar cell without recurrent weights (Beck 2024)."""
    c, n, m = (torch.zeros_like(z[0]) for _ in range(3))
    found = []
    for t in range(STEPS):
        gate = torch.nn.functional.logsigmoid(f[t])
        most = torch.maximum(gate + m, i[t])
        keep, take = torch.exp(gate + m - most), torch.exp(i[t] - most)
        c, n, m = keep * c + take * torch.tanh(z[t]), keep * n + take, most
        found.append(torch.sigmoid(o[t]) * c / n)
    return torch.stack(found)


def momentum(g: torch.Tensor, w: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    for t in range(STEPS):
        m = 0.9 * m + g[t]
        w = w - 0.1 * m
    return w, m


def gated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h, found = x[0], []
    for t in range(STEPS):
        gate = torch.sigmoid(x[t] @ w)
        h = gate * h + (1 - gate) * x[t]
        found.append(h)
    return torch.stack(found)


def selective(x: torch.Tensor, a: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """What steps reduce of a state feeds none of them."""
    h, found = torch.zeros(6, 4), []
    for t in range(STEPS):
        h = torch.exp(x[t, :, None] * a) * h + x[t, :, None]
        found.append((h * c[t]).sum(-1))
    return torch.stack(found)


def outer_products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Of the first step no addition is left."""
    state, found = torch.zeros(6, 4), []
    for t in range(STEPS):
        state = state + k[t, :, None] * v[t]
        found.append((q[t, :, None] * state).sum(0))
    return torch.stack(found)


def products(a: torch.Tensor) -> torch.Tensor:
    h, found = torch.ones_like(a[0]), []
    for t in range(STEPS):
        found.append(h)
        h = h * a[t]
    return torch.stack(found)


def errors_first(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The delta rule: a step reads the state twice, before it is changed and after."""
    state, found = torch.zeros(q.shape[-1], v.shape[-1]), []
    for t in range(STEPS):
        state = state + b[t] * k[t][:, None] * (v[t] - k[t] @ state)
        found.append(q[t] @ state)
    return torch.stack(found)


def test_steps_that_read_a_state_after_they_change_it_are_all_one_loop() -> None:
    """Where a step is taken to begin leaves neither the first nor the last one out."""
    _, p = _read(errors_first, (STEPS, 4), (STEPS, 4), (STEPS, 6), (STEPS,))
    (loop,) = p.loops
    assert loop.trips == STEPS
    (output,) = p.outputs
    assert isinstance(p.definition(output).expr, Steps)


def test_a_step_of_which_folding_left_less_is_the_first() -> None:
    """So outputs are one running sum, with nothing before it."""
    for make, shapes in ((outer_products, [(7, 6), (7, 6), (7, 4)]), (products, [ROWS])):
        _, p = _read(make, *shapes)
        every = [c for d in p.definitions for e in walk(d.expr) if (c := carried(e)) is not None]
        (found,) = [c for c in every if c.how.kind is ReduceKind.SUM]
        assert found.axis.extent == (STEPS if make is outer_products else STEPS - 1)


AT_ONCE: list[tuple[Make, list[tuple[int, ...]]]] = [
    (advantages, [ROWS, ROWS, ROWS, ROWS[1:]]),
    (average, [ROWS]),
    (last_average, [ROWS, ROWS[1:]]),
    (returns, [ROWS, (1,)]),
    (largest, [ROWS, ROWS[1:]]),
    (stabiliser, [ROWS, ROWS, ROWS[1:]]),
    (falling, [ROWS, ROWS[1:], ROWS[1:]]),
    (stabilised, [ROWS, ROWS, ROWS, ROWS]),
    (momentum, [ROWS, ROWS[1:], ROWS[1:]]),
    (gated, [(7, 4, 8), (8, 8)]),
    (selective, [(7, 6), (6, 4), (7, 4)]),
    (outer_products, [(7, 6), (7, 6), (7, 4)]),
    (products, [ROWS]),
]


@pytest.mark.parametrize(("make", "shapes"), AT_ONCE, ids=lambda x: getattr(x, "__name__", ""))
def test_what_is_linear_in_its_state_is_there_at_all_places_at_once(make: Make, shapes: list[tuple[int, ...]]) -> None:
    _, p = _read(make, *shapes)
    assert not p.loops
    assert any(carried(e) for d in p.definitions for e in walk(d.expr))
    # However many steps there are, so many definitions.
    assert len([d for d in p.definitions if not d.view]) <= 2 * STEPS
    rng = np.random.default_rng(3)
    arrays = [rng.random(s) for s in shapes]
    wanted = make(*map(torch.from_numpy, arrays))
    found = evaluate(p, dict(zip([t.name for t in p.inputs], arrays, strict=True)))
    for name, want in zip(p.outputs, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        np.testing.assert_allclose(found[name], want.numpy(), rtol=1e-12)


def coupled(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    for t in range(STEPS):
        a, b = a + 0.1 * b, b - 0.1 * a + x[t]
    return a + b


def squared(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    for t in range(STEPS):
        h = h * h * 0.5 + x[t]
    return h


@pytest.mark.parametrize(("make", "shapes"), [(coupled, [ROWS, ROWS[1:], ROWS[1:]]), (squared, [ROWS, ROWS[1:]])])
def test_what_is_not_linear_in_its_own_state_stays(make: Make, shapes: list[tuple[int, ...]]) -> None:
    plain, found = _read(make, *shapes)
    assert looped(plain) is plain
    assert not found.loops


def test_what_comes_before_steps_is_written_out_no_larger_than_a_step() -> None:
    """Each of forty definitions is read twice by the next one: written out they are 2^40 nodes, which do not end."""

    def decayed(x: torch.Tensor) -> torch.Tensor:
        h = x[0]
        for _ in range(40):
            h = h + h.sin()
        found = [h]
        for t in range(1, 6):
            k = x[t]
            for _ in range(40):
                k = (k * 0.5).tanh()
            h = h * 0.9 + k
            found.append(h)
        return torch.stack(found)

    plain, found = _read(decayed, (6, 2, 3))
    assert len(found.definitions) < len(plain.definitions) / 2
