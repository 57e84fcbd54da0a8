"""Pieces of a stack or a concatenation that are one expression of their position become one; nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import prism
from prism.frontend.torch.reader import trace
from prism.program import spec
from prism.program.build import const, read
from prism.program.evaluate import evaluate
from prism.program.extents import evaluate as at
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import Map, Position, Program, Read, walk
from prism.program.rolled import _gives_back, rolled

Make = Callable[..., Any]


def _read(fn: Make, *shapes: tuple[int, ...], dynamic: Any = None) -> Program:
    given = tuple(torch.zeros(s) for s in shapes)
    return trace(fn, given, name="unrolled", dynamic_shapes=dynamic, check=False)


def _same_values(p: Program, q: Program, sizes: dict[str, int]) -> None:
    rng = np.random.default_rng(0)
    given = {t.name: rng.standard_normal([at(e, sizes) for e in t.shape]) for t in p.inputs}
    one, other = evaluate(p, given), evaluate(q, given)
    for name in p.outputs:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-13, atol=1e-13)


def _choices(p: Program) -> int:
    return sum(isinstance(e, Map) and e.op == "where" for f in inline(p) for e in walk(f.expr))


ROLLED: dict[str, tuple[Make, list[tuple[int, ...]], int]] = {
    "rows": (lambda x: torch.stack([r.exp() for r in x.unbind(0)]), [(16, 8)], 3),
    "rows of another dimension": (lambda x: torch.stack([torch.softmax(x[i], -1) for i in range(3)], 1), [(3, 8)], 3),
    "rows, last first": (lambda x: torch.stack([x[3 - i].exp() for i in range(4)]), [(4, 8)], 3),
    "every second row": (lambda x: torch.stack([x[2 * i].exp() for i in range(4)]), [(8, 8)], 3),
    "reductions": (lambda x: torch.stack([x[i].mean(-1) for i in range(4)]), [(4, 3, 8)], 3),
    "columns": (lambda x: torch.cat([c.exp() for c in x.split(16, 1)], 1), [(4, 48)], 3),
    "products with one weight": (lambda x, w: torch.cat([r @ w for r in x.chunk(4)]), [(32, 8), (8, 4)], 3),
    "products, own weights": (
        lambda x, w: torch.cat([x[i] @ w[i] for i in range(3)]),
        [(3, 2, 8), (3, 8, 4)],
        4,
    ),
    "blocks that are not fused": (lambda x: torch.cat([r @ r.T for r in x.chunk(4)]), [(32, 8)], 4),
    "a stack of stacks": (
        lambda x: torch.stack([torch.stack([x[i, j].exp() for j in range(3)]) for i in range(4)]),
        [(4, 3, 8)],
        5,
    ),
    "more than the choices of one chain": (lambda x: torch.stack([r.exp() for r in x.unbind(0)]), [(40, 2)], 3),
}


@pytest.mark.parametrize("name", ROLLED)
def test_pieces_are_one(name: str) -> None:
    fn, shapes, definitions = ROLLED[name]
    p = _read(fn, *shapes)
    q = rolled(p)
    spec.check(q)
    assert len(q.definitions) == definitions
    assert _choices(q) == 0 < _choices(p)
    _same_values(p, q, {})


def test_a_piece_may_be_of_symbolic_length() -> None:
    n = torch.export.Dim("n", min=2, max=64)
    p = _read(lambda x: torch.cat([x[i].exp() for i in range(3)]), (3, 8, 4), dynamic=({1: n},))
    q = rolled(p)
    spec.check(q)
    assert len(q.definitions) == 3
    (f,) = inline(q)
    assert str(f.index[0]) == "n*d3 + n"
    for size in (2, 5):
        _same_values(p, q, {"n": size})


def test_numbers_and_places_may_grow_with_the_position() -> None:
    p = _read(lambda x: torch.stack([x[i] * (2 * i + 3) for i in range(4)]), (4, 8))
    q = rolled(p)
    (f,) = inline(q)
    assert "@(2*d4 + 3)" in str(f.expr)
    _same_values(p, q, {})


def test_neighbours_that_agree_are_one_piece_among_others() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[0].exp(), x[1].exp(), x[2].exp(), y[0].sin(), y[1].sin(), x[0] * y[0]])

    p = _read(fn, (3, 8), (3, 8))
    q = rolled(p)
    spec.check(q)
    assert _choices(q) == 2
    _same_values(p, q, {})


def test_what_else_reads_a_piece_reads_its_place() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        pieces = [x[i].exp() for i in range(4)]
        return torch.stack(pieces) + pieces[1]

    p = _read(fn, (4, 8))
    q = rolled(p)
    spec.check(q)
    assert sum(isinstance(e, Map) and e.op == "exp" for d in q.definitions for e in walk(d.expr)) == 1
    _same_values(p, q, {})


def _recurrence(x: torch.Tensor) -> torch.Tensor:
    h, steps = x[0], []
    for i in range(1, 5):
        h = torch.tanh(h + x[i])
        steps.append(h)
    return torch.stack(steps)


@pytest.mark.parametrize(
    "fn",
    [
        _recurrence,
        lambda x: torch.cat([-x[:, 4:], x[:, :4]], 1),
        lambda x: torch.stack([x[0].exp(), x[1].sin()]),
        lambda x: torch.cat([x, x], 1),
        lambda x: torch.stack([x[0] * 0.5, x[1] * 0.25]),
    ],
    ids=["a recurrence", "halves that differ", "other operators", "one value twice", "other numbers"],
)
def test_what_is_not_one_expression_stays(fn: Make) -> None:
    p = _read(fn, (5, 8))
    assert rolled(p) is p


def test_places_that_do_not_grow_evenly_are_not_one_run() -> None:
    p = _read(lambda x: torch.stack([x[i].exp() for i in (0, 1, 3)]), (4, 8))
    q = rolled(p)
    assert _choices(q) == 1
    _same_values(p, q, {})


def test_outputs_stay_what_they_are() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pieces = [x[i].exp() for i in range(4)]
        return torch.stack(pieces), pieces[2]

    p = _read(fn, (4, 8))
    assert rolled(p).outputs == p.outputs
    _same_values(p, rolled(p), {})


def test_a_piece_that_is_not_given_back_is_seen() -> None:
    place, i = Axis("at", 3), Axis("i", 8)
    whole = Map("mul", (Read("x_rolled", (Index.axis(place), Index.axis(i))), Position(Index.axis(place))))
    members = {"x_rolled": ("a", "b", "c")}

    def own(tensor: str, number: int) -> Map:
        return Map("mul", (read(tensor, i), const(number)))

    assert all(_gives_back(whole, place, members, n, own(t, n)) for n, t in enumerate("abc"))
    assert not _gives_back(whole, place, members, 1, own("a", 1))
    assert not _gives_back(whole, place, members, 1, own("b", 2))


def test_an_index_put_together_from_its_quotient_and_remainder_is_itself() -> None:
    a = Index.axis(Axis("a", 48)) + 3
    assert a.floordiv(16).scaled(32) + a.mod(16).scaled(2) == a.scaled(2)
    assert a.floordiv(16).scaled(16) + a.mod(8) != a


def test_unrolled_source_is_one_kernel() -> None:
    def stacked(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.nn.functional.gelu(r) for r in x.unbind(0)])

    with prism.search(prism.trace(stacked, (torch.randn(16, 64),), check=False)) as found:
        sgraph = next(found).sgraph
    (kernel,) = sgraph.kernels
    assert len(list(kernel.statements())) < 12


def test_a_loop_is_proved_to_be_what_it_is_the_loop_of() -> None:
    x = torch.randn(6, 4, 8)
    verdict = prism.prove(
        lambda x: torch.stack([torch.softmax(x[i], -1) for i in range(6)]), lambda x: torch.softmax(x, -1), (x,)
    )
    assert verdict.status == "proved"
