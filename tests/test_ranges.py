"""Ranges of loops: found where a predicate lets tiles be skipped, refused where it does not, run, counted, emitted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from cost_bounds import lower_bound, upper_bound
from cost_sympy import as_sympy
from cpu_batch import Case, run_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreting import InterpreterPool, InterpretJob
from quick import examples
from sgraph_samples import MAX, SUM, at, grouped_attention, op, sym
from sgraph_simulator import simulate

from prism.backends.protocol import Compiled, arguments
from prism.backends.triton.crosscompile import CompileJob
from prism.backends.triton.emit import emit_module
from prism.cost.counts import kernel_cost, sgraph_cost
from prism.cost.trip_counts import allowed, visited
from prism.errors import IllegalIRError
from prism.program.extents import Extent, evaluate, symbol
from prism.program.index import Axis, Index
from prism.program.nodes import DType, ReduceKind, Tensor
from prism.program.prefix import SO_FAR, Recurrence
from prism.sgraph import spec
from prism.sgraph.config import Config
from prism.sgraph.denote import denote
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Pointwise,
    Position,
    Scan,
    SGraph,
    Split,
    Stmt,
    Store,
    TileReduce,
    Whole,
    part_axis,
    sides,
)
from prism.sgraph.ranges import Ranged, assumed, check_ranges, narrow
from prism.sgraph.show import key
from prism.sgraph.show import text as shown

F32 = DType.FLOAT32
LEAST = float(np.finfo(np.float32).min)
ROW, KEY = Axis("i", 37), Axis("j", 37)
A, E = Axis("a", 16), Axis("e", 16)


def line(offset: Extent, *terms: tuple[Axis, int]) -> Index:
    total = Index.const(offset)
    for axis, c in terms:
        total = total + Index.axis(axis).scaled(c)
    return total


def below(lhs: Index, rhs: Index, name: str = "le") -> tuple[str, Index, Index]:
    return (name, lhs, rhs)


i, j = Index.axis(ROW), Index.axis(KEY)
CAUSAL = (below(j, i),)
WINDOW = (below(j, i), below(i + -7, j, "lt"))
PREFIX = (below(j, i), below(j, Index.const(11), "or lt"))
# A window and the first places, before the row alone, or whatever the row; the last ones; rows that see all.
SINKS = (below(i + -7, j, "lt"), below(j, Index.const(5), "or lt"), below(j, i))
BOTH_WAYS = (below(i + -7, j, "lt"), below(j, i + 6), below(j, Index.const(3), "or lt"))
LAST = (below(j, i), below(Index.const(30), j, "or le"))
GLOBAL = (*BOTH_WAYS, below(i, Index.const(4), "or lt"))
ROWS = (below(i + -7, j, "lt"), below(j, i), below(i, Index.const(4), "or lt"))


@dataclass(frozen=True)
class Masked:
    """softmax_j(q k where every predicate holds) v over rows of `rows` and keys of `keys`.

    One by the name of "or le" may hold in place of all before it. What is compared is in which of parts of so many
    places an index lies; or how many parts those two are apart, and a number: `apart` says which is on the left.
    """

    predicates: Sequence[tuple[str, Index, Index]]
    rows: Axis = ROW
    keys: Axis = KEY
    tile: object = sym("T_i")
    hidden: float = float("-inf")
    parts: int = 1
    apart: tuple[str, int] | None = None

    def compared(self, n: int, test: str) -> list[Stmt]:
        """The comparison of two places, as `p` and its number."""
        if self.apart is None:
            return [op(f"p{n}", test, f"a{n}", f"b{n}")]
        way, number = self.apart
        size = f"z{n}" if "size" in way else f"d{n}"
        return [
            op(f"n{n}", "neg", f"b{n}"),
            op(f"d{n}", "add", f"a{n}", f"n{n}"),
            op(f"z{n}", "abs", f"d{n}"),
            op(f"p{n}", test, *((float(number), size) if "number" in way else (size, float(number)))),
        ]

    def placed(self, name: str, index: Index) -> list[Stmt]:
        """What is compared of an index."""
        if self.parts == 1:
            return [Position(name, index)]
        return [
            Position(f"{name}i", index),
            op(f"{name}h", "add", f"{name}i", 0.5),
            op(f"{name}p", "mul", f"{name}h", 1.0 / self.parts),
            op(name, "floor", f"{name}p"),
        ]

    def body(self) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
        """The loop's body, and what follows it."""
        mask: list[Stmt] = []
        for n, (name, lhs, rhs) in enumerate(self.predicates):
            how, test = name.split() if " " in name else ("and", name)
            mask += [*self.placed(f"a{n}", lhs), *self.placed(f"b{n}", rhs), *self.compared(n, test)]
            mask.append(op(f"seen{n}", how, f"p{n}", f"seen{n - 1}" if n else 1.0))
        inside: tuple[Stmt, ...] = (
            Load("k1", "k", at(self.keys, A)),
            Contract("qk", A, "q1", "k1"),
            *mask,
            op("s", "where", f"seen{len(self.predicates) - 1}", "qk", self.hidden),
            TileReduce("top", MAX, self.keys, "s"),
            Accumulate("m", MAX, "top"),
            op("minus", "mul", -1.0, "m"),
            op("diff", "add", "s", "minus"),
            op("p", "exp", "diff"),
            TileReduce("psum", SUM, self.keys, "p"),
            Accumulate("l", SUM, "psum", "m"),
            Load("v1", "v", at(self.keys, E)),
            Contract("pv", self.keys, "p", "v1"),
            Accumulate("o", SUM, "pv", "m"),
        )
        after = (op("inv", "recip", "l"), op("out", "mul", "o", "inv"), Store("y", at(self.rows, E), "out"))
        return inside, after

    def tensors(self) -> tuple[tuple[Tensor, ...], Tensor]:
        n, t = self.rows.extent, self.keys.extent
        inputs = (Tensor("q", (n, 16), F32), Tensor("k", (t, 16), F32), Tensor("v", (t, 16), F32))
        return inputs, Tensor("y", (n, 16), F32)

    def sgraph(self) -> SGraph:
        inside, after = self.body()
        body = (Load("q1", "q", at(self.rows, A)), Loop(self.keys, inside), *after)
        roles = ((self.rows, Grid(self.tile)), (self.keys, LoopRole(sym("T_j"))), (A, Whole()), (E, Whole()))
        inputs, output = self.tensors()
        return SGraph("masked", inputs, (), (output,), (Kernel("masked_kernel", roles, body),))

    def split(self) -> SGraph:
        """The keys shared by S_j programs, and the stage that combines them."""
        inside, after = self.body()
        parts = sym("S_j")
        part = part_axis(self.keys, parts)
        n = self.rows.extent
        stores = (
            Store("part_m", at(part, self.rows), "m"),
            Store("part_l", at(part, self.rows), "l"),
            Store("part_o", at(part, self.rows, E), "o"),
        )
        roles = ((self.rows, Grid(self.tile)), (self.keys, Split(parts, sym("T_j"))), (A, Whole()), (E, Whole()))
        first = Kernel("masked_kernel", roles, (Load("q1", "q", at(self.rows, A)), Loop(self.keys, inside), *stores))
        second = Kernel(
            "masked_combine",
            ((self.rows, Grid(sym("T_c"))), (part, Whole()), (E, Whole())),
            (
                Load("m1", "part_m", at(part, self.rows)),
                TileReduce("m2", MAX, part, "m1"),
                op("minus", "mul", -1.0, "m2"),
                op("diff", "add", "m1", "minus"),
                op("f", "exp", "diff"),
                Load("l1", "part_l", at(part, self.rows)),
                op("l2", "mul", "f", "l1"),
                TileReduce("l", SUM, part, "l2"),
                Load("o1", "part_o", at(part, self.rows, E)),
                op("o2", "mul", "f", "o1"),
                TileReduce("o", SUM, part, "o2"),
                *after,
            ),
        )
        buffers = (
            Tensor("part_m", (parts, n), F32),
            Tensor("part_l", (parts, n), F32),
            Tensor("part_o", (parts, n, 16), F32),
        )
        inputs, output = self.tensors()
        return SGraph("masked_split", inputs, buffers, (output,), (first, second))

    def draw(self, binding: dict[str, int] | None = None) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(3)
        shapes = {t.name: [evaluate(e, binding or {}) for e in t.shape] for t in self.tensors()[0]}
        return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}

    def reference(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        place: dict[object, np.ndarray] = {self.rows: np.arange(len(q))[:, None], self.keys: np.arange(len(k))[None, :]}

        def number(index: Index) -> np.ndarray:
            return sum((int(c) * place[x] for x, c in index.terms), np.array(int(index.offset)))

        seen = np.ones((len(q), len(k)), bool)
        for name, lhs, rhs in self.predicates:
            a, b = number(lhs) // self.parts, number(rhs) // self.parts
            if self.apart is not None:
                way, limit = self.apart
                size = np.abs(a - b) if "size" in way else a - b
                a, b = (np.array(limit), size) if "number" in way else (size, np.array(limit))
            holds = a < b if name.endswith("lt") else a <= b
            seen = seen | holds if name.startswith("or") else seen & holds
        s = np.where(seen, q.astype(float) @ k.T, self.hidden)
        with np.errstate(all="ignore"):
            p = np.exp(s - s.max(-1, keepdims=True))
            result: np.ndarray = p @ v / p.sum(-1, keepdims=True)
        return result


def narrowed(g: SGraph) -> SGraph:
    return replace(g, kernels=tuple(map(narrow, g.kernels)))


def bounds(kernel: Kernel) -> list[str]:
    return [b for s in kernel.statements() if isinstance(s, Loop) for b in s.bounds]


def loop_of(kernel: Kernel) -> Loop:
    return next(s for s in kernel.statements() if isinstance(s, Loop))


def with_range(g: SGraph, *conditions: Index) -> SGraph:
    """The sGraph with that range of its first kernel's only loop."""
    kernel = g.kernels[0]
    body = tuple(replace(s, range=conditions) if isinstance(s, Loop) else s for s in kernel.body)
    return replace(g, kernels=(replace(kernel, body=body), *g.kernels[1:]))


# What is found.


@pytest.mark.parametrize(
    ("predicates", "expected"),
    [
        (CAUSAL, ["j <= i"]),
        ((below(j, i, "lt"),), ["j <= i - 1"]),
        ((below(j + 3, i),), ["j <= i - 3"]),
        ((below(j, i + 5),), ["j <= i + 5"]),
        ((below(i, j),), ["j >= i"]),
        (WINDOW, ["j <= i", "j >= i - 6"]),
        # The tighter of two bounds.
        ((below(j, i + 9), below(j, i)), ["j <= i"]),
        ((below(j, i, "eq"),), ["j <= i", "j >= i"]),
        ((below(j.scaled(2), i),), ["2*j <= i"]),
        ((below(j, i.scaled(-1) + 30),), ["j <= -1*i + 30"]),
        # A prefix that all rows see, and a suffix; of two that vary, the one that the other is never above.
        (PREFIX, ["j <= i or j <= 10"]),
        ((below(i, j), below(Index.const(19), j, "or lt")), ["j >= i or j >= 20"]),
        ((below(j, i), below(j, i.scaled(2) + -40, "or le")), ["j <= i"]),
        # A gap, and rows that it is not left out for.
        (SINKS, ["j <= i", "j <= 4 or j >= i - 6"]),
        (BOTH_WAYS, ["j <= i + 6", "j <= 2 or j >= i - 6"]),
        (LAST, ["j <= i or j >= 30"]),
        (GLOBAL, ["j <= i + 6 or -1*i + 3 >= 0", "j <= 2 or j >= i - 6 or -1*i + 3 >= 0"]),
        (ROWS, ["j <= i or -1*i + 3 >= 0", "j >= i - 6 or -1*i + 3 >= 0"]),
        # Always true, and about other axes only.
        ((below(j, i + 36),), []),
        ((below(i, Index.const(9)),), []),
    ],
)
def test_the_range_follows_from_the_predicate(
    predicates: Sequence[tuple[str, Index, Index]], expected: list[str]
) -> None:
    g = narrowed(Masked(predicates).sgraph())
    assert bounds(g.kernels[0]) == expected
    spec.check(g)
    assert denote(g) == denote(Masked(predicates).sgraph())
    assert narrowed(g) == g


def test_positions_may_be_computed_and_predicates_negated() -> None:
    def change(s: Stmt) -> tuple[Stmt, ...]:
        match s:
            case Pointwise("p0"):
                # not(j - i > 3)
                return (
                    op("n", "mul", -1.0, "b0"),
                    op("ahead", "add", "a0", "n"),
                    op("far", "lt", 3.0, "ahead"),
                    op("p0", "not", "far"),
                )
            case _:
                return (s,)

    kernel = Masked(CAUSAL).sgraph().kernels[0]
    loop = loop_of(kernel)
    changed = replace(loop, body=tuple(x for s in loop.body for x in change(s)))
    assert bounds(narrow(replace(kernel, body=(kernel.body[0], changed, *kernel.body[2:])))) == ["j <= i + 3"]


def test_ranges_that_were_found_serve_loops_that_take_the_same_from_outside() -> None:
    kernel = Masked(CAUSAL).sgraph().kernels[0]
    loop = loop_of(kernel)
    inner = tuple(s for s in loop.body if getattr(s, "dst", None) != "b0")

    def behind(by: int) -> Kernel:
        """The mask's rows are so many further, by a position that is made before the loop."""
        before = (kernel.body[0], Position("b0", line(by, (ROW, 1))))
        return replace(kernel, body=(*before, Loop(KEY, inner), *kernel.body[2:]))

    known: Ranged = {}
    assert bounds(narrow(behind(0), known)) == ["j <= i"]
    (key,) = known
    assert bounds(narrow(behind(2), known)) == ["j <= i + 2"]
    known[key] = (Loop(KEY, inner),)
    assert not bounds(narrow(behind(0), known)), "what was found is not looked for again"


def test_a_split_of_either_axis_keeps_the_bound() -> None:
    high, low = Axis("hi", 5), Axis("lo", 8)
    rows = line(0, (high, 8), (low, 1))
    blocks, inner = Axis("jh", 10), Axis("jl", 4)
    keys = line(0, (blocks, 4), (inner, 1))
    body = (
        Load("x1", "x", (keys,)),
        Position("pj", keys),
        Position("pi", rows),
        op("seen", "le", "pj", "pi"),
        op("s", "where", "seen", "x1", 0.0),
        TileReduce("each", SUM, inner, "s"),
        TileReduce("part", SUM, blocks, "each"),
        Accumulate("acc", SUM, "part"),
    )
    roles = ((high, Grid(sym("T_hi"))), (low, Whole()), (blocks, LoopRole(sym("T_jh"))), (inner, Whole()))
    kernel = Kernel("sums_kernel", roles, (Loop(blocks, body), Store("y", (rows,), "acc")))
    g = SGraph("sums", (Tensor("x", (40,), F32),), (), (Tensor("y", (40,), F32),), (kernel,))
    # The largest row of a program's tile is 7 more than its first block of 8.
    assert bounds(narrow(kernel)) == ["4*jh <= 8*hi + 7"]
    spec.check(narrowed(g))
    x = np.random.default_rng(0).standard_normal(40)
    for binding in ({"T_hi": 1, "T_jh": 2}, {"T_hi": 2, "T_jh": 1}, {"T_hi": 8, "T_jh": 16}):
        np.testing.assert_allclose(simulate(narrowed(g), {"x": x}, binding)["y"], np.cumsum(x))


def test_a_mask_that_is_a_factor_and_a_loop_inside_a_loop() -> None:
    # y[j, e] = sum_i sum_a (j <= i) q[i, a] k[j, a] v[i, e]: queries inside, a loop over a inside that.
    inner = Loop(
        A,
        (
            Load("q1", "q", at(ROW, A)),
            Load("k1", "k", at(KEY, A)),
            Contract("qk", A, "q1", "k1"),
            Accumulate("s", SUM, "qk"),
        ),
    )
    body = (
        Position("pi", i),
        op("seen", "le", "pj", "pi"),
        inner,
        op("w", "mul", "seen", "s"),
        Load("v1", "v", at(ROW, E)),
        Contract("wv", ROW, "w", "v1"),
        Accumulate("acc", SUM, "wv"),
    )
    roles = ((KEY, Grid(sym("T_j"))), (ROW, LoopRole(sym("T_i"))), (A, LoopRole(sym("T_a"))), (E, Whole()))
    kernel = Kernel("linear_kernel", roles, (Position("pj", j), Loop(ROW, body), Store("y", at(KEY, E), "acc")))
    inputs = Masked(CAUSAL).tensors()[0]
    g = narrowed(SGraph("linear", inputs, (), (Tensor("y", (37, 16), F32),), (kernel,)))
    assert bounds(g.kernels[0]) == ["i >= j"]
    spec.check(g)
    drawn = Masked(CAUSAL).draw()
    visits: dict[str, list[int]] = {}
    got = simulate(g, drawn, {"T_i": 8, "T_j": 8, "T_a": 8}, visits)["y"]
    scores = np.tril(drawn["q"].astype(float) @ drawn["k"].T)
    np.testing.assert_allclose(got, scores.T @ drawn["v"], rtol=1e-6, atol=1e-6)
    assert visits["i"] == [15, 25]


def test_two_passes_are_both_narrowed() -> None:
    mask: tuple[Stmt, ...] = (Position("pj", j), Position("pi", i), op("seen", "le", "pj", "pi"))
    first = Loop(
        KEY,
        (
            Load("x1", "x", at(ROW, KEY)),
            *mask,
            op("s", "where", "seen", "x1", float("-inf")),
            TileReduce("t", MAX, KEY, "s"),
            Accumulate("m", MAX, "t"),
        ),
    )
    again: tuple[Stmt, ...] = (Position("pj2", j), Position("pi2", i), op("seen2", "lt", "pi2", "pj2"))
    second = Loop(
        KEY,
        (
            Load("x2", "x", at(ROW, KEY)),
            *again,
            op("s2", "where", "seen2", float("-inf"), "x2"),
            op("d", "add", "s2", "n"),
            op("p", "exp", "d"),
            TileReduce("t2", SUM, KEY, "p"),
            Accumulate("l", SUM, "t2"),
        ),
    )
    roles = ((ROW, Grid(1)), (KEY, LoopRole(sym("T_j"))))
    kernel = Kernel("norm_kernel", roles, (first, op("n", "neg", "m"), second, Store("y", at(ROW), "l")))
    g = narrowed(SGraph("norm", (Tensor("x", (37, 37), F32),), (), (Tensor("y", (37,), F32),), (kernel,)))
    assert bounds(g.kernels[0]) == ["j <= i", "j <= i"]
    spec.check(g)
    x = np.random.default_rng(1).standard_normal((37, 37))
    s = np.where(np.tri(37) > 0, x, -np.inf)
    expected = np.exp(s - s.max(-1, keepdims=True)).sum(-1)
    np.testing.assert_allclose(simulate(g, {"x": x}, {"T_j": 8})["y"], expected)


@pytest.mark.parametrize("hidden", [LEAST, -1e30])
@pytest.mark.parametrize("predicates", [CAUSAL, WINDOW, (below(i, j),)])
@pytest.mark.parametrize("binding", [{"T_i": 8, "T_j": 4}, {"T_i": 4, "T_j": 16}])
def test_a_finite_mask_hides_what_is_below_something_visible(
    predicates: Sequence[tuple[str, Index, Index]], hidden: float, binding: dict[str, int]
) -> None:
    sample = Masked(predicates, hidden=hidden)
    g = narrowed(sample.sgraph())
    assert bounds(g.kernels[0]) == bounds(narrow(Masked(predicates).sgraph().kernels[0]))
    assert "1e" in " ".join(assumed(g.kernels)), "that is an assumption, which the verdict names"
    assert not assumed(narrowed(Masked(predicates).sgraph()).kernels)
    drawn = sample.draw()
    for form, more in ((g, {}), (narrowed(sample.split()), {"S_j": 3, "T_c": 8})):
        got = simulate(form, drawn, {**binding, **more})["y"]
        np.testing.assert_allclose(got, sample.reference(**drawn), rtol=1e-6, atol=1e-6)


def test_how_far_two_positions_are_apart_is_a_window() -> None:
    kernel = Masked(CAUSAL).sgraph().kernels[0]
    apart = (Position("d", line(0, (ROW, 1), (KEY, -1))), op("far", "abs", "d"), op("seen0", "le", "far", 5.0))
    loop = loop_of(kernel)
    before = ("a0", "b0", "p0", "seen0")
    body = (*apart, *(s for s in loop.body if getattr(s, "dst", None) not in before))
    assert bounds(narrow(replace(kernel, body=(kernel.body[0], Loop(KEY, body), *kernel.body[2:])))) == [
        "j <= i + 5",
        "j >= i - 5",
    ]


def sink(kernel: Kernel, *, inside: bool = False) -> Kernel:
    """The kernel with a floor under its running maximum, which is loaded before the loop or in it."""
    loop = loop_of(kernel)
    load = Load("floor", "floors", at(ROW))
    body = tuple(
        x
        for s in loop.body
        for x in (
            (op("held", "maximum", "floor", "s"), TileReduce("top", MAX, KEY, "held"))
            if isinstance(s, TileReduce) and s.dst == "top"
            else (s,)
        )
    )
    before = () if inside else (load,)
    return replace(
        kernel, body=(kernel.body[0], *before, Loop(KEY, (load, *body) if inside else body), *kernel.body[2:])
    )


@pytest.mark.parametrize("hidden", [-math.inf, LEAST])
def test_a_floor_under_a_running_maximum_is_there_once_a_tile_is_visited(hidden: float) -> None:
    sample = Masked(CAUSAL, hidden=hidden)
    kernel = narrow(sink(sample.sgraph().kernels[0]))
    assert bounds(kernel) == ["j <= i"]
    check_ranges(kernel)
    inputs = (*sample.sgraph().inputs, Tensor("floors", (37,), F32))
    g = replace(sample.sgraph(), inputs=inputs, kernels=(kernel,))
    drawn = sample.draw()
    floors = np.linspace(-3.0, 3.0, 37)
    for binding in ({"T_i": 8, "T_j": 4}, {"T_i": 4, "T_j": 16}):
        # The floor is in the maximum alone here, and goes out with it.
        got = simulate(g, {**drawn, "floors": floors}, binding)["y"]
        np.testing.assert_allclose(got, sample.reference(**drawn), rtol=1e-6, atol=1e-6)


def test_a_floor_is_none_where_no_tile_may_be_visited_or_it_is_another_one_on_each() -> None:
    rows_without_keys = (below(j + 20, i),)
    assert not bounds(narrow(sink(Masked(rows_without_keys).sgraph().kernels[0])))
    assert not bounds(narrow(sink(Masked(CAUSAL).sgraph().kernels[0], inside=True)))


# What is not.


def test_a_finite_mask_that_scores_may_fall_below_hides_nothing() -> None:
    assert not bounds(narrow(Masked(CAUSAL, hidden=-1e9).sgraph().kernels[0]))


def test_a_finite_mask_hides_nothing_where_a_row_may_be_hidden_as_a_whole() -> None:
    """Such a row's result is the mean of all values, and not of those in the tiles that are visited."""
    rows_without_keys = (below(j + 20, i),)
    assert bounds(narrow(Masked(rows_without_keys).sgraph().kernels[0]))
    assert not bounds(narrow(Masked(rows_without_keys, hidden=LEAST).sgraph().kernels[0]))
    for missing in (line(-40, (ROW, 1), (KEY, -1)), line(-1, (ROW, 1), (KEY, -1))):
        with pytest.raises(IllegalIRError, match="skips tiles"):
            check_ranges(with_range(Masked(CAUSAL, hidden=LEAST).sgraph(), missing).kernels[0])


def test_a_finite_mask_of_data_hides_nothing() -> None:
    def padded(hidden: float) -> Kernel:
        kernel = Masked(CAUSAL, hidden=hidden).sgraph().kernels[0]
        loop = loop_of(kernel)
        body: list[Stmt] = []
        for s in loop.body:
            if s == op("s", "where", "seen0", "qk", hidden):
                body += [Load("pad", "pads", at(KEY)), op("both", "and", "seen0", "pad")]
                s = op("s", "where", "both", "qk", hidden)
            body.append(s)
        return replace(kernel, body=(kernel.body[0], Loop(KEY, tuple(body)), *kernel.body[2:]))

    assert bounds(narrow(padded(-np.inf))) == ["j <= i"]
    assert not bounds(narrow(padded(LEAST))), "a row may be padding alone"


def test_a_finite_mask_of_data_hides_nothing_of_a_sum_after_the_maximum() -> None:
    """Of a row that is padding alone the maximum is the mask itself, and each exponential 1."""

    def passes(*seen: Stmt) -> Kernel:
        masked = (Load("x1", "x", at(ROW, KEY)), *seen, op("s", "where", "seen", 0.0, LEAST), op("d", "add", "x1", "s"))
        first = Loop(KEY, (*masked, TileReduce("t", MAX, KEY, "d"), Accumulate("m", MAX, "t")))
        total = (op("e", "add", "d", "n"), op("p", "exp", "e"), TileReduce("t2", SUM, KEY, "p"))
        body = (first, op("n", "neg", "m"), Loop(KEY, (*masked, *total, Accumulate("l", SUM, "t2"))))
        roles = ((ROW, Grid(1)), (KEY, LoopRole(sym("T_j"))))
        return Kernel("norm_kernel", roles, (*body, Store("y", at(ROW), "l")))

    causal = (Position("pj", j), Position("pi", i))
    assert bounds(narrow(passes(*causal, op("seen", "le", "pj", "pi")))) == ["j <= i", "j <= i"]
    padded = passes(*causal, op("own", "le", "pj", "pi"), Load("pad", "pads", at(KEY)), op("seen", "and", "own", "pad"))
    assert not bounds(narrow(padded))


def test_one_accumulator_without_the_mask_keeps_every_tile() -> None:
    kernel = Masked(CAUSAL).sgraph().kernels[0]
    loop = loop_of(kernel)
    more = replace(loop, body=(*loop.body, TileReduce("all", SUM, A, "k1"), TileReduce("every", SUM, KEY, "all"),
                               Accumulate("sum", SUM, "every")))  # fmt: skip
    assert not bounds(narrow(replace(kernel, body=(kernel.body[0], more, *kernel.body[2:]))))


def _both_sides(*more: Stmt, other: tuple[Index, Index] = (i, j)) -> SGraph:
    """Sums over what is before a row and over what comes after it, in one loop."""
    body: tuple[Stmt, ...] = (
        Load("k1", "k", at(KEY, A)),
        Contract("qk", A, "q1", "k1"),
        Position("pj", j),
        Position("pi", i),
        op("before", "le", "pj", "pi"),
        op("s", "where", "before", "qk", 0.0),
        TileReduce("s1", SUM, KEY, "s"),
        Accumulate("l", SUM, "s1"),
        Position("one", other[0]),
        Position("two", other[1]),
        op("after", "le", "one", "two"),
        op("squared", "mul", "qk", "qk"),
        op("t", "where", "after", "squared", 0.0),
        TileReduce("t1", SUM, KEY, "t"),
        Accumulate("r", SUM, "t1"),
        *more,
    )
    roles = ((ROW, Grid(sym("T_i"))), (KEY, LoopRole(sym("T_j"))), (A, Whole()))
    after = (op("out", "add", "l", "r"), Store("y", at(ROW), "out"))
    inputs = (Tensor("q", (37, 16), F32), Tensor("k", (37, 16), F32))
    kernel = Kernel("sides_kernel", roles, (Load("q1", "q", at(ROW, A)), Loop(KEY, body), *after))
    return SGraph("sides", inputs, (), (Tensor("y", (37,), F32),), (kernel,))


def test_what_masks_show_apart_is_accumulated_in_loops_of_its_own() -> None:
    g = _both_sides()
    both = narrowed(g)
    assert bounds(both.kernels[0]) == ["j <= i", "j >= i"]
    spec.check(both)
    assert denote(both) == denote(g)
    assert narrowed(both) == both
    rng = np.random.default_rng(5)
    drawn = {t.name: rng.standard_normal([int(e) for e in t.shape]).astype(np.float32) for t in g.inputs}
    scores = drawn["q"].astype(float) @ drawn["k"].T
    expected = np.tril(scores).sum(1) + np.triu(scores**2).sum(1)
    for binding in ({"T_i": 8, "T_j": 4}, {"T_i": 4, "T_j": 16}):
        got = simulate(both, drawn, binding)["y"]
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    at_cost = [kernel_cost(x.kernels[0], x).evaluate({"T_i": 8, "T_j": 4})["dot_flops"] for x in (both, g)]
    assert at_cost[0] <= 1.3 * at_cost[1]


@pytest.mark.parametrize(
    "g",
    [
        # Both loops would visit nearly all.
        _both_sides(other=(i, j + 30)),
        # One sum sees all.
        _both_sides(TileReduce("k2", SUM, A, "k1"), TileReduce("k3", SUM, KEY, "k2"), Accumulate("sum", SUM, "k3")),
        # The loop stores.
        _both_sides(Store("z", at(ROW, KEY), "qk")),
    ],
)
def test_a_loop_is_one_where_several_would_visit_more(g: SGraph) -> None:
    kernel = narrow(g.kernels[0])
    assert len([s for s in kernel.statements() if isinstance(s, Loop)]) == 1
    assert not bounds(kernel)


def test_a_loop_that_stores_keeps_every_tile() -> None:
    kernel = Masked(CAUSAL).sgraph().kernels[0]
    loop = loop_of(kernel)
    storing = replace(loop, body=(*loop.body, Store("z", at(ROW, KEY), "qk")))
    assert not bounds(narrow(replace(kernel, body=(kernel.body[0], storing, *kernel.body[2:]))))


@pytest.mark.parametrize(
    ("predicates", "condition"),
    [
        (CAUSAL, line(-6, (ROW, 1), (KEY, -1))),
        (CAUSAL, line(-1, (ROW, 1), (KEY, -1))),
        (CAUSAL, line(0, (ROW, -1), (KEY, 1))),
        (CAUSAL, line(20, (KEY, -1))),
        (WINDOW, line(5, (ROW, -1), (KEY, 1))),
        ((below(j, i.scaled(2)),), line(0, (ROW, 1), (KEY, -1))),
    ],
)
def test_an_unjustified_range_has_no_denotation(
    predicates: Sequence[tuple[str, Index, Index]], condition: Index
) -> None:
    g = with_range(Masked(predicates).sgraph(), condition)
    with pytest.raises(IllegalIRError, match="skips tiles"):
        denote(g)
    # The range does change what is computed.
    drawn = Masked(predicates).draw()
    got = simulate(g, drawn, {"T_i": 1, "T_j": 1})["y"]
    assert not np.allclose(got, Masked(predicates).reference(**drawn), equal_nan=True)


def test_an_accumulator_without_a_mask_makes_a_range_unjustified() -> None:
    kernel = Masked(CAUSAL).sgraph().kernels[0]
    loop = loop_of(kernel)
    more = (TileReduce("all", SUM, A, "k1"), TileReduce("every", SUM, KEY, "all"), Accumulate("sum", SUM, "every"))
    bad = Loop(KEY, (*loop.body, *more), (line(0, (ROW, 1), (KEY, -1)),))
    check_ranges(with_range(Masked(CAUSAL).sgraph(), line(0, (ROW, 1), (KEY, -1))).kernels[0])
    with pytest.raises(IllegalIRError, match="skips tiles"):
        check_ranges(replace(kernel, body=(kernel.body[0], bad, *kernel.body[2:])))


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ((line(0, (A, 1), (KEY, -1)),), "its tile is not known"),
        ((line(3),), "has no bound"),
        ((line(0, (ROW, 1), (KEY, -1)), line(2, (ROW, 1), (KEY, -1))), "two bounds"),
    ],
)
def test_the_specification_refuses_a_range(conditions: tuple[Index, ...], message: str) -> None:
    with pytest.raises(IllegalIRError, match=message):
        spec.check(with_range(Masked(CAUSAL).sgraph(), *conditions))


def test_a_range_is_part_of_the_key_and_of_the_text() -> None:
    g = Masked(WINDOW).sgraph()
    assert key(narrowed(g)) != key(g)
    assert key(narrowed(g)) != key(with_range(g, line(0, (ROW, 1), (KEY, -1))))
    assert "for tiles of j with j <= i and j >= i - 6:" in shown(narrowed(g))


@pytest.mark.parametrize(
    ("predicates", "parts", "expected"),
    [
        (CAUSAL, 4, ["j <= i + 3"]),
        ((below(j, i, "lt"),), 4, ["j <= i - 1"]),
        ((below(i, j),), 3, ["j >= i - 2"]),
        ((below(j, i, "eq"),), 3, ["j <= i + 2", "j >= i - 2"]),
        ((below(j, i), below(i + -3, j)), 3, ["j <= i + 2", "j >= i - 5"]),
        ((below(j, i), below(j, Index.const(5), "or le")), 3, ["j <= i + 2 or j <= 5"]),
    ],
)
def test_positions_may_be_compared_by_parts(
    predicates: Sequence[tuple[str, Index, Index]], parts: int, expected: list[str]
) -> None:
    sample = Masked(predicates, parts=parts)
    g = narrowed(sample.sgraph())
    assert bounds(g.kernels[0]) == expected
    spec.check(g)
    assert denote(g) == denote(sample.sgraph())


@pytest.mark.parametrize(
    ("predicates", "apart", "expected"),
    [
        (((("le", j, i)),), ("", 0), ["j <= i + 3"]),
        (((("le", j, i)),), ("", 2), ["j <= i + 11"]),
        (((("lt", i, j)),), ("number", -2), ["j <= i + 7"]),
        (((("le", i, j)),), ("size", 1), ["j <= i + 7", "j >= i - 7"]),
        (((("lt", j, i)),), ("size", 1), ["j <= i + 3", "j >= i - 3"]),
        (((("le", i, j)),), ("number size", 1), []),
    ],
)
def test_parts_may_be_told_apart(
    predicates: Sequence[tuple[str, Index, Index]], apart: tuple[str, int], expected: list[str]
) -> None:
    sample = Masked(predicates, parts=4, apart=apart)
    g = narrowed(sample.sgraph())
    assert bounds(g.kernels[0]) == expected
    spec.check(g)
    binding, drawn = {"T_i": 4, "T_j": 2}, sample.draw()
    got, all_of_them = (simulate(x, drawn, binding)["y"] for x in (g, sample.sgraph()))
    np.testing.assert_allclose(got, all_of_them, rtol=1e-9)


# What runs.

SHAPES = [
    (CAUSAL, 37, 37),
    (WINDOW, 37, 37),
    ((below(j, i, "lt"),), 37, 37),
    ((below(j, i + 20),), 17, 37),
    ((below(j + 20, i), below(i, j + 29)), 37, 37),
    ((below(i, j),), 37, 21),
    (PREFIX, 37, 37),
    ((below(i, j), below(Index.const(19), j, "or lt")), 37, 37),
    (SINKS, 37, 37),
    (BOTH_WAYS, 37, 37),
    (LAST, 37, 37),
    (GLOBAL, 37, 37),
    (ROWS, 37, 37),
]


@pytest.mark.parametrize(("predicates", "rows", "keys"), SHAPES)
@pytest.mark.parametrize("binding", [{"T_i": 8, "T_j": 4}, {"T_i": 4, "T_j": 16}, {"T_i": 64, "T_j": 8}])
def test_a_narrowed_sgraph_computes_the_same_with_fewer_tiles(
    predicates: Sequence[tuple[str, Index, Index]], rows: int, keys: int, binding: dict[str, int]
) -> None:
    sample = resized(predicates, rows, keys)
    drawn = sample.draw()
    expected = sample.reference(**drawn)
    visits: dict[str, list[int]] = {}
    g = narrowed(sample.sgraph())
    np.testing.assert_allclose(simulate(g, drawn, binding, visits)["y"], expected, rtol=1e-6, atol=1e-6)
    seen, all_of_them = visits["j"]
    # What the cost says is what was visited; one program that visits all counts as if it were any.
    at_cost = kernel_cost(g.kernels[0], g).evaluate(binding)
    off = all_of_them / at_cost["programs"] if loop_of(g.kernels[0]).everywhere else 1e-6
    assert at_cost["loop_trips"] * at_cost["programs"] == pytest.approx(seen, abs=off)
    assert kernel_cost(sample.sgraph().kernels[0], g).evaluate(binding)["loop_trips"] * at_cost[
        "programs"
    ] == pytest.approx(all_of_them)
    for parts in (2, 5):
        both = narrowed(sample.split())
        spec.check(both)
        counted: dict[str, list[int]] = {}
        got = simulate(both, drawn, {**binding, "S_j": parts, "T_c": 8}, counted)["y"]
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
        assert counted["j"][0] == seen


def resized(predicates: Sequence[tuple[str, Index, Index]], rows: int, keys: int) -> Masked:
    new = {ROW: Axis("i", rows), KEY: Axis("j", keys)}
    mapping = {a: Index.axis(b) for a, b in new.items()}
    moved = [(n, a.substitute(mapping), b.substitute(mapping)) for n, a, b in predicates]
    return Masked(moved, new[ROW], new[KEY])


def test_a_causal_square_visits_about_half_of_the_tiles() -> None:
    sample = resized(CAUSAL, 128, 128)
    visits: dict[str, list[int]] = {}
    simulate(narrowed(sample.sgraph()), sample.draw(), {"T_i": 8, "T_j": 8}, visits)
    assert visits["j"] == [16 * 17 // 2, 16 * 16]


def test_a_window_visits_a_band() -> None:
    sample = resized(WINDOW, 128, 128)
    visits: dict[str, list[int]] = {}
    simulate(narrowed(sample.sgraph()), sample.draw(), {"T_i": 8, "T_j": 8}, visits)
    assert visits["j"] == [2 * 16 - 1, 16 * 16]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Masked, dict[str, int]]:
    rows, keys = Axis("i", draw(st.integers(2, 20))), Axis("j", draw(st.integers(2, 20)))

    def index() -> Index:
        return line(draw(st.integers(-9, 9)), (rows, draw(st.integers(-2, 2))), (keys, draw(st.integers(-2, 2))))

    names = st.sampled_from(["le", "lt", "eq", "or le", "or lt"])
    predicates = [(draw(names), index(), index()) for _ in range(draw(st.integers(1, 3)))]
    tiles = {t: 1 << draw(st.integers(0, 4)) for t in ("T_i", "T_j")}
    ways = st.sampled_from(["", "number", "size", "number size"])
    apart = draw(st.none() | st.tuples(ways, st.integers(-2, 3)))
    return Masked(predicates, rows, keys, parts=draw(st.sampled_from([1, 1, 2, 3, 5])), apart=apart), tiles


@settings(max_examples=examples(40, 100), deadline=None)
@given(problems())
def test_any_predicate_computes_the_same_narrowed(problem: tuple[Masked, dict[str, int]]) -> None:
    sample, binding = problem
    plain = sample.sgraph()
    g = narrowed(plain)
    check_ranges(g.kernels[0])
    spec.check(g)
    drawn = sample.draw()
    got, expected = (simulate(x, drawn, binding)["y"] for x in (g, plain))
    np.testing.assert_allclose(got, expected, rtol=1e-9)


# What it costs.


def test_a_causal_square_costs_about_half() -> None:
    sample = resized(CAUSAL, 4096, 4096)
    plain, narrow_one = (sgraph_cost(g) for g in (sample.sgraph(), narrowed(sample.sgraph())))
    binding = {"T_i": 128, "T_j": 64}
    before, after = plain.evaluate(binding), narrow_one.evaluate(binding)
    # 2 tiles more for every row tile: (2 + 4 + ... + 64) of 32 * 64.
    share = sum(range(2, 66, 2)) / (32 * 64)
    assert after["dot_flops"] == before["dot_flops"] * share
    assert 0.5 < share < 0.52
    q = 4096 * 16 * 4
    assert after["bytes_read"] - q == (before["bytes_read"] - q) * share
    at_arrays = narrow_one.evaluate({k: np.array([v, 2 * v]) for k, v in binding.items()})
    assert at_arrays["dot_flops"][0] == after["dot_flops"]
    kernel = narrow_one.kernels[0]
    assert kernel.longest_trips.evaluate(binding) == 64
    assert kernel.loop_trips.evaluate(binding) == 64 * share


def test_bounds_stay_bounds() -> None:
    for predicates, rows, keys in SHAPES:
        g = narrowed(resized(predicates, rows, keys).sgraph())
        low = lower_bound(g, {})
        for t_i in (1, 4, 16, 64):
            for t_j in (1, 8, 64):
                c = sgraph_cost(g).evaluate({"T_i": t_i, "T_j": t_j})
                assert low.bytes <= c["bytes_read"] + c["bytes_written"] + 1e-6
                assert low.flops <= c["flops"] + c["dot_flops"] / 32 + 1e-6
                high = upper_bound(g, {})
                assert c["bytes_read"] + c["bytes_written"] <= high.bytes
                assert c["flops"] + c["dot_flops"] / 32 <= high.flops
    # Keys that no row sees need not be loaded: of 37 keys, those up to 16 + 3.
    g = narrowed(resized((below(j, i + 3),), 17, 37).sgraph())
    assert lower_bound(g, {}).bytes == 4 * 16 * (17 + 20 + 20 + 17)


def test_a_symbolic_square_costs_about_half() -> None:
    n = symbol("n")
    rows, keys = Axis("i", n), Axis("j", n)
    sample = Masked((below(Index.axis(keys), Index.axis(rows)),), rows, keys)
    g = narrowed(sample.sgraph())
    assert bounds(g.kernels[0]) == ["j <= i"]
    cost = sgraph_cost(g)
    numbers = {"n": 2048, "T_i": 64, "T_j": 64}
    dots = cost.total("dot_flops")
    expected = dots.evaluate(numbers)
    assert expected == pytest.approx(2 * 2 * 16 * 2048**2 * 33 / 64)
    values = {s: numbers[s.name] for s in as_sympy(dots).free_symbols}
    assert float(as_sympy(dots).subs(values)) == pytest.approx(expected, rel=0.05)
    assert float(as_sympy(dots, exact=False).subs(values)) <= expected
    assert allowed(keys, loop_of(g.kernels[0]).range) == n


def test_what_no_program_sees_of_a_gap_need_not_be_loaded() -> None:
    keys = Axis("j", 100)
    fixed = (line(9, (keys, -1)), line(-30, (keys, 1)))
    assert allowed(keys, (), fixed) == 80
    assert allowed(keys, (line(59, (keys, -1)),), fixed) == 40
    assert allowed(keys, (line(19, (keys, -1)),), fixed) == 10
    assert allowed(keys, (), (fixed[0], line(-30, (keys, 1), (ROW, 1)))) == 100


@settings(max_examples=examples(60, 200), deadline=None)
@given(st.data())
def test_the_closed_form_counts_the_tiles(data: st.DataObject) -> None:
    whole = st.integers
    rows, keys = Axis("i", data.draw(whole(2, 60))), Axis("j", data.draw(whole(2, 60)))
    t_i, t_j = (1 << data.draw(whole(0, 5)) for _ in range(2))
    c, own = data.draw(st.sampled_from([1, 2, 4, -1, -2])), data.draw(st.sampled_from([1, 2]))
    offset, width = data.draw(whole(-40, 40)), data.draw(whole(0, 40))
    upper = line(offset, (rows, c), (keys, -own))
    lower = line(width - offset, (rows, -c), (keys, own))
    fixed_upper, fixed_lower = (
        line(data.draw(whole(0, 50)), (keys, -own)),
        line(-data.draw(whole(0, 50)), (keys, own)),
    )
    choices = [(upper,), (lower,), (upper, lower), (upper, fixed_upper), (lower, fixed_lower)]
    conditions = data.draw(st.sampled_from([*choices, (upper, fixed_upper, lower), ()]))
    gaps = [(fixed_upper, lower), (upper, fixed_lower), (fixed_upper, fixed_lower)]
    gap: tuple[Index, ...] = () if conditions else data.draw(st.sampled_from(gaps))

    def extreme(index: Index, p: int, k: int, sign: int) -> int:
        """The largest value over a tile, or with -1 the smallest."""
        total = int(index.offset)
        for axis, x in index.terms:
            t, place = (t_i, p) if axis == rows else (t_j, k)
            total += int(x) * (place * t + (t - 1 if sign * int(x) > 0 else 0))
        return total

    programs, tiles = -(-int(rows.extent) // t_i), -(-int(keys.extent) // t_j)

    def counted(sign: int) -> int:
        pairs = itertools.product(range(programs), range(tiles))
        groups = sides(conditions, keys) or (gap,)
        return sum(all(any(extreme(e, p, k, sign) >= 0 for e in side) for side in groups) for p, k in pairs)

    expected = counted(1)
    share = visited(keys, sym("T_j"), conditions, {rows: sym("T_i"), keys: sym("T_j")}, gap)
    assert share.evaluate({"T_i": t_i, "T_j": t_j}) * programs * tiles == pytest.approx(expected)
    both = share.evaluate({"T_i": np.array([t_i, 1]), "T_j": np.array([t_j, 1])})
    assert both[0] * programs * tiles == pytest.approx(expected)
    # Tiles of one element visit what the conditions leave.
    assert share.lower({}) <= both[1] + 1e-12
    # Between two conditions there may be less than none for a program: then it is less than that.
    kept = replace(share, whole=True).evaluate({"T_i": t_i, "T_j": t_j}) * programs * tiles
    one_side = len(sides(conditions, keys)) == 1
    assert kept == pytest.approx(counted(-1)) if one_side else kept <= counted(-1) + 1e-9


def test_steps_that_do_not_divide_count_with_their_average() -> None:
    rows, keys = Axis("i", 1000), Axis("j", 3000)
    share = visited(keys, 64, (line(0, (rows, 3), (keys, -1)),), {rows: 16})
    # The last key of program p is 48*p + 45.
    exact = sum(min((48 * p + 45) // 64 + 1, 47) for p in range(63)) / (63 * 47)
    assert share.evaluate({}) == pytest.approx(exact, rel=0.002)
    # Two tiled axes: the longer one is summed, the other stands at its middle.
    high, low = Axis("hi", 64), Axis("lo", 16)
    columns = Axis("j", 1024)
    condition = line(0, (high, 16), (low, 1), (columns, -1))
    both = visited(columns, 32, (condition,), {high: 1, low: 4})
    exact = sum((16 * h + 4 * p + 3) // 32 + 1 for h in range(64) for p in range(4)) / (64 * 4 * 32)
    assert both.evaluate({}) == pytest.approx(exact, rel=0.02)


# What is emitted.


def job(folder: Path, g: SGraph, inputs: Sequence[np.ndarray], binding: dict[str, int]) -> InterpretJob:
    source = emit_module(g, formula="f", configs={})
    path = folder / f"{g.name}_{key(g)[:12]}.py"
    path.write_text(source.text)
    config = Config(binding, dict.fromkeys(source.kernels, 4), dict.fromkeys(source.kernels, 2))
    return InterpretJob(path, source.entry, tuple(inputs), ("float32",) * len(inputs), config)


def test_emitted_kernels_compute_the_closed_form(interpreter: InterpreterPool, tmp_path: Path) -> None:
    jobs: list[InterpretJob] = []
    expected: list[np.ndarray] = []
    for n, (predicates, rows, keys) in enumerate(SHAPES):
        sample = resized(predicates, rows, keys)
        drawn = sample.draw()
        binding = {"T_i": 16 if n % 2 else 8, "T_j": 16}
        jobs.append(job(tmp_path, narrowed(sample.sgraph()), list(drawn.values()), binding))
        expected.append(sample.reference(**drawn))
        if n < 3:
            split = {**binding, "S_j": 3, "T_c": 8}
            jobs.append(job(tmp_path, narrowed(sample.split()), list(drawn.values()), split))
            expected.append(expected[-1])
    length = symbol("n")
    row, col = Axis("i", length), Axis("j", length)
    window = [below(Index.axis(col), Index.axis(row)), below(Index.axis(row), Index.axis(col) + 9)]
    sample = Masked(window, row, col, tile=1)
    drawn = sample.draw({"n": 5})
    jobs.append(job(tmp_path, narrowed(sample.sgraph()), list(drawn.values()), {"T_j": 16}))
    expected.append(sample.reference(**drawn))
    grouped = grouped_attention()
    inputs = grouped.inputs({})
    jobs.append(job(tmp_path, narrowed(grouped.sgraph), inputs, dict(grouped.symbols[0])))
    expected += grouped.reference(*(np.asarray(a, float) for a in inputs))
    for result, want in zip(interpreter.run_many(jobs), expected, strict=True):
        assert not result.error
        np.testing.assert_allclose(result.outputs[0], want, rtol=2e-5, atol=2e-6)


def test_emitted_functions_compute_the_closed_form(tmp_path: Path) -> None:
    cases, expected = [], []
    for predicates, rows, keys in SHAPES[-5:]:
        sample = resized(predicates, rows, keys)
        drawn = sample.draw()
        binding = {"T_i": 8, "T_j": 4}
        cases += [Case(narrowed(sample.sgraph()), binding, list(drawn.values()))]
        cases += [Case(narrowed(sample.split()), {**binding, "S_j": 3, "T_c": 8}, list(drawn.values()))]
        expected += [sample.reference(**drawn)] * 2
    for (got,), want in zip(run_batch(cases, tmp_path), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def summed_so_far(
    predicates: Sequence[tuple[str, Index, Index]],
    how: Recurrence = SO_FAR,
    growth: str | None = None,
    src: str = "w",
    tile: int | None = None,
) -> SGraph:
    """y[i] = sum_j of x[i, j] times the sum so far of what is visible of it."""
    mask: list[Stmt] = []
    for n, (test, lhs, rhs) in enumerate(predicates):
        mask += [Position(f"a{n}", lhs), Position(f"b{n}", rhs), op(f"p{n}", test, f"a{n}", f"b{n}")]
        mask.append(op(f"seen{n}", "and", f"p{n}", f"seen{n - 1}" if n else 1.0))
    seen = f"seen{len(predicates) - 1}"
    body = (
        Load("x1", "x", at(ROW, KEY)),
        *mask,
        op("w", "where", seen, "x1", 0.0),
        Scan("s", KEY, src, growth, how),
        op("e", "mul", "x1", "s"),
        op("t", "where", seen, "e", 0.0),
        TileReduce("total", SUM, KEY, "t"),
        Accumulate("y1", SUM, "total"),
    )
    roles = ((ROW, Grid(sym("T_i"))), (KEY, LoopRole(tile or sym("T_j"))))
    kernel = Kernel("sums_kernel", roles, (Loop(KEY, body), Store("y", at(ROW), "y1")))
    return SGraph("sums", (Tensor("x", (37, 37), F32),), (), (Tensor("y", (37,), F32),), (kernel,))


BACK = Recurrence(back=True)


def test_a_loop_with_a_scan_leaves_out_tiles_with_nothing_to_combine() -> None:
    for how in (SO_FAR, BACK):
        assert bounds(narrowed(summed_so_far(CAUSAL, how)).kernels[0]) == ["j <= i"]
        assert bounds(narrowed(summed_so_far(WINDOW, how)).kernels[0]) == ["j <= i", "j >= i - 6"]
    assert bounds(narrowed(summed_so_far(CAUSAL, growth="w")).kernels[0]) == []
    assert bounds(narrowed(summed_so_far(CAUSAL, src="x1")).kernels[0]) == []
    assert bounds(narrowed(summed_so_far(CAUSAL, Recurrence(ReduceKind.MAX))).kernels[0]) == []


def test_scans_of_a_range_compute_the_closed_form(interpreter: InterpreterPool, tmp_path: Path) -> None:
    x = np.random.default_rng(5).standard_normal((37, 37)).astype(np.float32)
    place = np.arange(37)
    ahead = place[:, None] - place
    cases, jobs, expected = [], [], []
    for predicates, seen in ((CAUSAL, ahead >= 0), (WINDOW, (ahead >= 0) & (ahead < 7))):
        for how in (SO_FAR, BACK):
            w = np.where(seen, x.astype(float), 0.0)
            so_far = w[:, ::-1].cumsum(1)[:, ::-1] if how.back else w.cumsum(1)
            expected.append((w * so_far).sum(1))
            g = narrowed(summed_so_far(predicates, how))
            spec.check(g)
            for tiles in ({"T_i": 8, "T_j": 4}, {"T_i": 4, "T_j": 16}):
                got = simulate(g, {"x": x}, tiles)["y"]
                np.testing.assert_allclose(got, expected[-1], rtol=1e-5, atol=1e-5)
            jobs.append(job(tmp_path, g, [x], {"T_i": 8, "T_j": 8}))
            cases.append(Case(narrowed(summed_so_far(predicates, how, tile=1)), {"T_i": 8}, [x]))
    for result, want in zip(interpreter.run_many(jobs), expected, strict=True):
        assert not result.error
        np.testing.assert_allclose(result.outputs[0], want, rtol=2e-5, atol=2e-5)
    for (made,), want in zip(run_batch(cases, tmp_path), expected, strict=True):
        np.testing.assert_allclose(made, want, rtol=2e-5, atol=2e-5)


def test_tiles_outside_of_the_range_are_not_read(interpreter: InterpreterPool, tmp_path: Path) -> None:
    # 0 * nan is nan: a program that visited the tiles of keys that it cannot see would show it.
    sample = resized(WINDOW, 48, 48)
    jobs = []
    for middle in (False, True):
        drawn = sample.draw()
        drawn["v"][slice(16, 32) if middle else slice(32, 48)] = np.nan
        jobs.append(job(tmp_path, narrowed(sample.sgraph()), list(drawn.values()), {"T_i": 16, "T_j": 16}))
    last, middle_one = (r.outputs[0] for r in interpreter.run_many(jobs))
    assert np.isfinite(last[:32]).all()
    assert np.isnan(last[32:]).all()
    assert np.isfinite(middle_one[:16]).all()
    assert np.isnan(middle_one[16:48]).any()


def test_dynamic_bounds_read_well_and_compile_with_pipelining(
    compile_job: Callable[[CompileJob], Compiled], tmp_path: Path
) -> None:
    rows, keys = Axis("i", 512), Axis("j", 512)
    sample = resized(WINDOW, 512, 512)
    half = replace(
        narrowed(sample.sgraph()),
        inputs=tuple(Tensor(t.name, t.shape, DType.BFLOAT16) for t in sample.tensors()[0]),
        outputs=(Tensor("y", (512, 16), DType.BFLOAT16),),
    )
    assert loop_of(half.kernels[0]).range == (line(0, (rows, 1), (keys, -1)), line(6, (rows, -1), (keys, 1)))
    source = emit_module(half, formula="f", configs={})
    assert "stop_j = tl.minimum(512, pid_i * T_i + T_i)" in source.text
    assert "begin_j = tl.maximum(0, pid_i * T_i - 6)" in source.text
    assert "for start_j in range((begin_j // T_j) * T_j, stop_j, T_j):" in source.text
    path = tmp_path / "window.py"
    path.write_text(source.text)
    config = Config({"T_i": 64, "T_j": 32}, {"masked_kernel": 4}, {"masked_kernel": 3})
    done = compile_job(CompileJob(path, "sm_90", config, arguments(half, {})))
    assert not done.error
    (r,) = done.resources
    assert r.spills == 0
    # Three stages of keys and values: the loop is pipelined although its bounds are not known.
    assert r.shared >= 2 * 2 * 32 * 16 * 2


def test_a_loop_with_a_gap_is_one_loop_that_is_pipelined(
    compile_job: Callable[[CompileJob], Compiled], tmp_path: Path
) -> None:
    sample = resized(GLOBAL, 512, 512)
    half = replace(
        narrowed(sample.sgraph()),
        inputs=tuple(Tensor(t.name, t.shape, DType.BFLOAT16) for t in sample.tensors()[0]),
        outputs=(Tensor("y", (512, 16), DType.BFLOAT16),),
    )
    source = emit_module(half, formula="f", configs={})
    assert "for trip_j in range(0, -skipped_j + stop_j, T_j):" in source.text
    path = tmp_path / "global.py"
    path.write_text(source.text)
    done = compile_job(
        CompileJob(
            path,
            "sm_90",
            Config({"T_i": 64, "T_j": 32}, {"masked_kernel": 4}, {"masked_kernel": 3}),
            arguments(half, {}),
        )
    )
    assert not done.error
    (r,) = done.resources
    assert r.spills == 0
    assert r.shared >= 2 * 2 * 32 * 16 * 2
