"""What windows see at a place is computed once a place, and read back where the windows are."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sgraph_programs import PLAIN, program, task
from sgraph_simulator import simulate
from window_programs import C, D, K, N, reads_windows, seen, windowed

from prism.api import trace
from prism.generate.enumerate import Bounds, generate
from prism.generate.forms import forms
from prism.generate.options import Weights, options
from prism.generate.places import Places, Window
from prism.program import fold
from prism.program.build import const, mul, op, position, read, reduce
from prism.program.evaluate import evaluate
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import Expr, Map, Program, Reduce, walk
from prism.program.ops import COMPARISONS
from prism.program.transform import canonical
from prism.sgraph.denote import denote, expand
from prism.sgraph.nodes import Load
from prism.sgraph.spec import check


def strided(taps: int) -> Program:
    """The same within bounds, a window each two places."""
    n, d = Axis("n", (12 - taps) // 2 + 1), Axis("d", taps)
    value = seen(Index.axis(n).scaled(2) + Index.axis(d))
    return program("p", {"x": (8, 12), "u": (4, 8)}, {"y": ((C, n), op("sigmoid", reduce("sum", d, value)))})


def windows(p: Program) -> tuple[Window, ...]:
    t = task(p)
    weights = Weights(t.classes, t.hints, PLAIN.tiles.dot)
    (form,) = forms(t.classes, options(t.classes), weights, 1).found
    return Places(t.classes, t.inputs).added(form.choices, weights)[1]


def normed() -> Program:
    """A convolution of what is normed within groups of channels, over all places: windows share the statistic."""
    g, c, o, place = Axis("g", 2), Axis("c", 4), Axis("o", 5), Axis("l", 12)
    channel, at = Index.axis(g).scaled(4) + Index.axis(c), Index.axis(N) + Index.axis(D) + Index.const(-1)
    everywhere = read("x", channel, place)
    total = reduce("sum", c, reduce("sum", place, mul(everywhere, everywhere)))
    value = op("sigmoid", mul(read("x", channel, at), op("recip", op("sqrt", total))))
    inside = mul(op("le", const(0.0), position(at)), op("lt", position(at), const(12.0)))
    product = mul(read("w", o, channel, D), op("where", inside, value, const(0.0)))
    summed = reduce("sum", g, reduce("sum", c, reduce("sum", D, product)))
    return program("p", {"x": (8, 12), "w": (5, 8, 3)}, {"y": ((o, N), summed)})


def stacked(stride: int = 1) -> Program:
    """A convolution of what a convolution makes, both over both ends: nothing is read at a place itself."""
    many = 12 * stride

    def convolved(weights: Expr, axis: Axis, at: Index, end: int, value: Expr) -> Expr:
        inside = mul(op("le", const(0.0), position(at)), op("lt", position(at), const(float(end))))
        return reduce("sum", axis, mul(weights, op("where", inside, value, const(0.0))))

    e, at = Axis("e", 3), Index.axis(N) + Index.axis(D) + Index.const(-1)
    place = at.scaled(stride) + Index.axis(e) + Index.const(-1)
    first = op("sigmoid", reduce("sum", K, convolved(read("u", C, K, e), e, place, many, read("x", K, place))))
    out = op("sigmoid", convolved(read("w", C, D), D, at, 12, first))
    return program("p", {"x": (8, many), "u": (4, 8, 3), "w": (4, 3)}, {"y": ((C, N), out)})


def turned() -> Program:
    """A convolution's gradient by what it reads, of what is made of a convolution: taps are taken off places."""
    e, n, d = Axis("e", 3), Index.axis(N), Index.axis(D)
    at = n + d.scaled(-1) + Index.const(1)
    beside = Index.axis(N) + Index.axis(e)
    within = mul(op("le", position(d), position(beside)), op("le", position(beside), position(d + Index.const(11))))
    shown = op("where", within, read("x", C, at + Index.axis(e) + Index.const(-1)), const(0.0))
    made = mul(read("g", C, at), op("sigmoid", reduce("sum", e, mul(read("u", C, e), shown))))
    inside = mul(
        op("le", position(d), position(n + Index.const(1))), op("lt", position(n), position(d + Index.const(11)))
    )
    total = reduce("sum", D, mul(read("w", C, D), op("where", inside, made, const(0.0))))
    return program("p", {"x": (4, 12), "g": (4, 12), "u": (4, 3), "w": (4, 3)}, {"y": ((C, N), total)})


PROGRAMS = {
    "turned": turned(),
    "padded": windowed(),
    "strided": strided(6),
    "normed": normed(),
    "stacked": stacked(),
    "apart": stacked(2),
}


@pytest.mark.parametrize("p", PROGRAMS.values(), ids=PROGRAMS)
def test_a_value_of_places_is_stored_and_read_back_in_windows(p: Program) -> None:
    bounds = Bounds(max_families=400, max_sgraphs=400, off=frozenset({"dominated", "worse"}))
    found = [c for c in generate(task(p), bounds).candidates if reads_windows(c.sgraph)]
    assert found
    rng = np.random.default_rng(1)
    tensors = {t.name: rng.normal(size=t.shape) for t in p.inputs}
    expected, tiles = evaluate(p, tensors), random.Random(1)
    reference = tuple(canonical(f.expr) for f in task(p).formulas)
    for c in found[:12]:
        check(c.sgraph)
        meaning = denote(c.sgraph)
        assert meaning.outputs == tuple(expand(r, meaning.split) for r in reference)
        got = simulate(c.sgraph, tensors, {s.name: tiles.choice([1, 2, 4, 8]) for s in c.sgraph.symbols})
        np.testing.assert_allclose(got["y"], expected["y"], rtol=1e-9, atol=1e-11)


def test_the_whole_of_what_is_seen_is_one_value() -> None:
    (window,) = windows(windowed())
    assert [str(i) for _, i in window.places] == ["d12 + d3 - 1"]
    (axis,) = (a for a, _ in window.places)
    assert axis.extent == 12


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_window_of_windows_is_a_value_of_all_places_where_they_are(stride: int) -> None:
    (window,) = windows(stacked(stride))
    assert [str(i) for _, i in window.places] == ["d12 + d3"]
    (axis,) = (a for a, _ in window.places)
    assert axis.extent == 14, "with the borders"


def test_where_the_largest_of_windows_lie_is_a_value_of_windows() -> None:
    """Of both dimensions at once, as places are counted through both: a gradient reads it at each place."""

    def gradient(x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(torch.nn.functional.max_pool2d(x, 3, 2, 1), x, dy)[0]

    program = trace(gradient, [torch.randn(2, 3, 8, 12), torch.randn(2, 3, 4, 6)])
    found = [c.sgraph for c in generate(task(program), Bounds()).candidates]
    stored = [g for g in found if [tuple(b.shape) for b in g.buffers] == [(2, 3, 6, 8)]]
    assert stored
    for k in stored[0].kernels[1:]:
        assert "x" not in k.reads, "nothing is sought again"


def test_what_all_windows_share_may_reduce_what_they_range_over() -> None:
    (window,) = windows(normed())
    assert [str(i) for _, i in window.places] == ["d12 + d3 - 1"]


def test_what_is_cheap_or_no_value_of_places_stays_in_its_windows() -> None:
    assert windows(strided(6))
    assert not windows(strided(2))  # no place is in two windows
    for taps, wanted in ((3, 0), (9, 1)):  # how often what reduces nothing is computed
        d = Axis("d", taps)
        seen_there = op("sigmoid", op("tanh", read("z", C, Index.axis(N) + Index.axis(d) + Index.const(-1))))
        p = program("p", {"z": (4, 12)}, {"y": ((C, N), reduce("sum", d, seen_there))})
        assert len(windows(p)) == wanted
    # What depends on the window itself is no part of it: another tensor's window and tap, or the tap's position.
    for also in (read("z", N, D), op("sigmoid", position(Index.axis(D)))):
        assert [w.places for w in windows(windowed(also))] == [w.places for w in windows(windowed())]
    # Nothing is left where what is reduced does.
    beside = mul(read("x", K, Index.axis(N) + Index.axis(D) + Index.const(-1)), read("z", N, K))
    sums = reduce("sum", D, op("sigmoid", reduce("sum", K, beside)))
    assert not windows(program("p", {"x": (8, 12), "z": (12, 12)}, {"y": ((N,), sums)}))


S, E = Axis("s", 12), Axis("e", 3)


def gradient(place: Index) -> Expr:
    """Of a causal convolution of x under a sigmoid, at a place: it sees a window itself, within x."""
    at = place + Index.axis(E) + Index.const(-2)
    inside = op("le", const(0), position(at))
    summed = reduce("sum", E, mul(read("w", C, E), op("where", inside, read("x", C, at), const(0))))
    return mul(read("g", C, place), op("sigmoid", summed))


def of_positive(place: Index) -> Expr:
    """Of the convolution under a ReLU: where it is positive, which no mask says."""
    summed = next(e for e in walk(gradient(place)) if isinstance(e, Reduce))
    return op("where", op("le", summed, const(0)), const(0), read("g", C, place))


def nested(*more: tuple[str, tuple[tuple[Axis, ...], Expr]], gradient: Callable[[Index], Expr] = gradient) -> Program:
    """The gradient in windows that reach beyond its last place."""
    at = Index.axis(S) + Index.axis(D)
    masked = op("where", op("lt", position(at), const(12)), gradient(at), const(0))
    outputs = {"y": ((C, S), reduce("sum", D, mul(masked, read("w", C, D)))), **dict(more)}
    return program("p", {"x": (4, 12), "g": (4, 12), "w": (4, 3)}, outputs)


def under_a_mask(p: Program) -> bool:
    """Whether the one window's value is what a mask chooses, without the mask: beyond the last place nothing counts."""
    (window,) = windows(p)
    assert [str(i) for _, i in window.places] == ["d12 + d3"]
    nodes = task(p).classes.nodes
    return any(n.op == "where" and window.seen == n.children[1] for mine in nodes.values() for n in mine)


@pytest.mark.parametrize("of", [gradient, of_positive])
def test_what_sees_windows_itself_is_a_value_of_places(of: Callable[[Index], Expr]) -> None:
    assert under_a_mask(nested(gradient=of))


def test_what_counts_only_where_a_mask_does_not_choose_is_no_value_of_places() -> None:
    """Beyond the last place 1 counts, and the buffer would hold nothing."""
    at = Index.axis(S) + Index.axis(D)
    one = op("where", op("lt", position(at), const(12)), gradient(at), const(1))
    summed = reduce("sum", D, reduce("sum", K, op("sigmoid", mul(one, read("u", C, K)))))
    inputs: dict[str, tuple[int, ...]] = {"x": (4, 12), "g": (4, 12), "w": (4, 3), "u": (4, 8)}
    assert under_a_mask(program("p", inputs, {"y": ((C, S), summed)}))


@pytest.mark.parametrize("more", [(), (("z", ((C, S), op("tanh", gradient(Index.axis(S))))),)], ids=["alone", "twice"])
def test_windows_within_windows_are_read_back(more: tuple[tuple[str, tuple[tuple[Axis, ...], Expr]], ...]) -> None:
    """And what another output has of the same value at its places is read from the same buffer."""
    p = nested(*more)
    bounds = Bounds(max_families=200, max_sgraphs=200, off=frozenset({"dominated", "worse"}))
    found = [c for c in generate(task(p), bounds).candidates if reads_windows(c.sgraph)]
    stored = [c for c in found if any(len(b.shape) == 2 for b in c.sgraph.buffers)]
    assert stored
    rng = np.random.default_rng(1)
    tensors = {t.name: rng.normal(size=t.shape) for t in p.inputs}
    expected, tiles = evaluate(p, tensors), random.Random(1)
    for c in stored[:8]:
        check(c.sgraph)
        got = simulate(c.sgraph, tensors, {s.name: tiles.choice([1, 2, 4, 8]) for s in c.sgraph.symbols})
        for name in p.outputs:
            np.testing.assert_allclose(got[name], expected[name], rtol=1e-9, atol=1e-11)
    loads = [[x for k in c.sgraph.kernels for x in k.statements() if isinstance(x, Load)] for c in stored]
    ways = [
        {x.index for x in mine if x.tensor == b.name}
        for c, mine in zip(stored, loads, strict=True)
        for b in c.sgraph.buffers
    ]
    assert any(len(w) == 2 for w in ways) == bool(more)


def test_masks_of_places_have_one_spelling() -> None:
    """Kernels denote comparisons of what they read back in that one; a proof need not find the two alike."""

    def gradient(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = torch.nn.functional.silu(torch.nn.functional.conv1d(x, w, padding=2, groups=4))
        return torch.autograd.grad(y, (x, w), dy)

    program = trace(gradient, [torch.randn(2, 4, 12), torch.randn(4, 1, 5), torch.randn(2, 4, 12)])
    found = [e for f in inline(program) for e in walk(f.expr) if isinstance(e, Map) and e.op in COMPARISONS]
    assert found
    assert all(fold.op(e.op, *e.args) == e for e in found)
