"""The specification of sGraphs: the samples are legal, and each rule refuses what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sgraph_small import ALL, F16, MAX, SUM, at, attention, layer_norm, matmul, split_k, tile

from prism.errors import IllegalIRError
from prism.program.index import Axis, Index
from prism.program.nodes import Tensor
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
    Role,
    SGraph,
    Stmt,
    Store,
    TileReduce,
    Whole,
)
from prism.sgraph.spec import check

M, N, K = Axis("m", 512), Axis("n", 768), Axis("k", 1024)


@pytest.mark.parametrize("make", ALL)
def test_samples_are_legal(make: Callable[[], SGraph]) -> None:
    check(make())


def with_body(g: SGraph, body: tuple[Stmt, ...], roles: tuple[tuple[Axis, Role], ...] | None = None) -> SGraph:
    kernel = replace(g.kernels[0], body=body, roles=roles or g.kernels[0].roles)
    return replace(g, kernels=(kernel, *g.kernels[1:]))


def edited(g: SGraph, edit: Callable[[Stmt], tuple[Stmt, ...]]) -> SGraph:
    """The sGraph with every statement of its first kernel replaced."""

    def visit(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        done: list[Stmt] = []
        for s in body:
            s = replace(s, body=visit(s.body)) if isinstance(s, Loop) else s
            done.extend(edit(s))
        return tuple(done)

    return with_body(g, visit(g.kernels[0].body))


def swap(old: str, *new: Stmt) -> Callable[[Stmt], tuple[Stmt, ...]]:
    """Replaces the statement that defines `old`."""

    def edit(s: Stmt) -> tuple[Stmt, ...]:
        return new if getattr(s, "dst", None) == old else (s,)

    return edit


def restore(store: Stmt) -> Callable[[Stmt], tuple[Stmt, ...]]:
    return lambda s: (store,) if isinstance(s, Store) else (s,)


LOOP = matmul().kernels[0].body[0]
STORE = matmul().kernels[0].body[1]
assert isinstance(LOOP, Loop)

BROKEN: dict[str, tuple[SGraph, str]] = {
    "a value twice": (edited(matmul(), swap("b", Load("a", "w", at(K, N)))), "unique identifier"),
    "use before definition": (edited(matmul(), swap("p", Contract("p", K, "a", "acc"))), "not defined before"),
    "loop value after the loop": (edited(matmul(), restore(Store("y", at(M, N), "p"))), "loop that has ended"),
    "contraction without the axis": (
        edited(matmul(), swap("b", Load("b", "x", at(M, N)))),
        "contracts axis k",
    ),
    "accumulator outside loops": (
        with_body(
            matmul(),
            (Load("a", "x", at(M, N)), Accumulate("acc", SUM, "a"), Store("y", at(M, N), "acc")),
            roles=((M, Grid(tile("T_m"))), (N, Grid(tile("T_n")))),
        ),
        "not in a loop",
    ),
    "accumulating along the loop axis": (
        edited(matmul(), swap("acc", Accumulate("acc", SUM, "a"))),
        "along the loop axis",
    ),
    "counting tiles": (
        edited(
            matmul(),
            swap("acc", Accumulate("acc", SUM, "p"), Load("z", "x", at(M)), Accumulate("more", SUM, "z")),
        ),
        "index of 1",
    ),
    "a store that misses a grid axis": (
        edited(matmul(), restore(Store("y", (Index.axis(M), Index.const(0)), "acc"))),
        "misses axis n",
    ),
    "a store that leaves gaps": (
        edited(matmul(), restore(Store("y", (Index.axis(M), Index.axis(N).scaled(2)), "acc"))),
        "gaps",
    ),
    "a store beyond the end": (
        edited(matmul(), restore(Store("y", (Index.axis(M), Index.axis(N) + 1), "acc"))),
        "covers",
    ),
    "an output never stored": (
        replace(matmul(), outputs=(*matmul().outputs, Tensor("z", (4,), F16))),
        "never stored",
    ),
    "an output stored twice": (
        with_body(matmul(), (LOOP, STORE, STORE)),
        "stored twice",
    ),
    "a grid axis reduced": (
        with_body(
            matmul(),
            (Load("a", "x", at(M, K)), Load("b", "w", at(K, N)), Contract("p", K, "a", "b"), Store("y", at(M, N), "p")),
            roles=((M, Grid(tile("T_m"))), (N, Grid(tile("T_n"))), (K, Grid(1))),
        ),
        "grid axis k",
    ),
    "a loop over a whole axis": (
        with_body(
            matmul(), matmul().kernels[0].body, roles=((M, Grid(tile("T_m"))), (N, Grid(tile("T_n"))), (K, Whole()))
        ),
        "neither loop nor split",
    ),
    "nested loops over one axis": (
        with_body(matmul(), (Loop(K, (LOOP,)), STORE)),
        "nested",
    ),
    "an axis without a role": (
        with_body(matmul(), matmul().kernels[0].body, roles=matmul().kernels[0].roles[1:]),
        "no role",
    ),
    "a shared tile symbol": (
        with_body(
            matmul(),
            matmul().kernels[0].body,
            roles=((M, Grid(tile("T"))), (N, Grid(tile("T"))), (K, LoopRole(tile("T_k")))),
        ),
        "shared by the axes",
    ),
    "a loop axis outside its loop": (
        with_body(matmul(), (Load("early", "x", at(M, K)), LOOP, STORE)),
        "outside its loop",
    ),
    "an input that nobody declared": (edited(matmul(), swap("a", Load("a", "nothing", at(M, K)))), "neither an input"),
    "kernels out of order": (replace(split_k(), kernels=split_k().kernels[::-1]), "neither an input"),
    "a part that is not stored apart": (
        edited(split_k(), restore(Store("partial", (*at(Axis("m", 16), Axis("n", 256)), Index.const(0)), "acc"))),
        "k.part",
    ),
    "an operation that does not exist": (
        edited(attention(), swap("out", Pointwise("out", "frobnicate", ("o",)))),
        "no such operation",
    ),
    # Running values.
    "no rescaling": (edited(attention(), swap("l", Accumulate("l", SUM, "row"))), "running value of m"),
    "a shift that is not accumulated": (
        edited(attention(), swap("l", Accumulate("l", SUM, "top", "scaled"))),
        "not an accumulator",
    ),
    "the wrong sign": (edited(attention(), swap("minus", Pointwise("minus", "mul", (1.0, "m")))), "not a tile sum"),
    "another function than exp": (
        edited(attention(), swap("p", Pointwise("p", "tanh", ("shifted",)))),
        "not a tile sum",
    ),
    "a factor that moves with the shift": (
        edited(attention(), swap("shifted", Pointwise("shifted", "mul", ("masked", "minus")))),
        "not a tile sum",
    ),
    "a shift where nothing is shifted": (
        edited(attention(), swap("row", TileReduce("row", SUM, Axis("j", 1024), "masked"))),
        "not a tile sum",
    ),
    "a rescaled maximum": (edited(attention(), swap("l", Accumulate("l", MAX, "row", "m"))), "only sums"),
    "a running value stored": (
        edited(
            layer_norm(),
            swap(
                "s2",
                Accumulate("s2", SUM, "t2"),
                Pointwise("leak", "add", ("x1", "s1")),
                Store("out", at(Axis("m", 128), Axis("n", 4096)), "leak"),
            ),
        ),
        "running value",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rules_are_named(name: str) -> None:
    g, message = BROKEN[name]
    with pytest.raises(IllegalIRError, match=message):
        check(g)


def test_a_sum_of_values_that_do_not_vary_in_the_loop_counts_tiles() -> None:
    m, k = Axis("m", 8), Axis("k", 64)
    body: tuple[Stmt, ...] = (
        Loop(k, (Load("z", "x", at(m)), Accumulate("acc", SUM, "z"))),
        Store("y", at(m), "acc"),
    )
    kernel = Kernel("k", ((m, Grid(1)), (k, LoopRole(tile("T_k")))), body)
    g = SGraph("g", (Tensor("x", (8,), F16),), (), (Tensor("y", (8,), F16),), (kernel,))
    with pytest.raises(IllegalIRError, match="no reduction over k"):
        check(g)


def test_a_concatenation_may_be_stored_by_two_kernels_and_read_only_after_both() -> None:
    a, b, c = Axis("a", 4), Axis("b", 6), Axis("c", 10)
    left = Kernel("left", ((a, Grid(1)),), (Load("v", "x", at(a)), Store("cat", at(a), "v")))
    right = Kernel("right", ((b, Grid(1)),), (Load("v", "y", at(b)), Store("cat", (Index.axis(b) + 4,), "v")))
    use = Kernel("use", ((c, Grid(1)),), (Load("v", "cat", at(c)), Store("z", at(c), "v")))
    tensors = (Tensor("x", (4,), F16), Tensor("y", (6,), F16))
    g = SGraph("g", tensors, (Tensor("cat", (10,), F16),), (Tensor("z", (10,), F16),), (left, right, use))
    check(g)
    with pytest.raises(IllegalIRError, match="cat"):
        check(replace(g, kernels=(left, use, right)))


def test_a_merged_dimension_is_covered_when_its_index_is_mixed_radix() -> None:
    h, d, s = Axis("h", 4), Axis("d", 64), Axis("s", 32)
    good = (Index.axis(s), Index.axis(h).scaled(64) + Index.axis(d))
    bad = (Index.axis(s), Index.axis(h).scaled(63) + Index.axis(d))
    for index, legal in ((good, True), (bad, False)):
        body: tuple[Stmt, ...] = (Load("v", "x", at(h, s, d)), Store("y", index, "v"))
        kernel = Kernel("k", ((h, Grid(1)), (s, Grid(tile("T_s"))), (d, Whole())), body)
        g = SGraph("g", (Tensor("x", (4, 32, 64), F16),), (), (Tensor("y", (32, 256), F16),), (kernel,))
        if legal:
            check(g)
        else:
            with pytest.raises(IllegalIRError):
                check(g)


def test_what_lies_beside_a_stored_tensor_is_read_under_a_mask_alone() -> None:
    """Two rows are stored; four are read of them, which denotes what the two rows' formula says of the other two."""
    few, row, n = Axis("few", 2), Axis("row", 4), Axis("n", 64)
    first = Kernel(
        "first",
        ((few, Grid(1)), (n, Whole())),
        (Load("a", "x", at(few, n)), TileReduce("p", SUM, n, "a"), Store("t", at(few), "p")),
    )

    def made(*body: Stmt) -> SGraph:
        second = Kernel("second", ((row, Grid(1)),), (Load("b", "t", at(row)), *body))
        return SGraph(
            "beside",
            (Tensor("x", (4, 64), F16),),
            (Tensor("t", (2,), F16),),
            (Tensor("y", (4,), F16),),
            (first, second),
        )

    with pytest.raises(IllegalIRError, match="beside a tensor"):
        check(made(Pointwise("c", "exp", ("b",)), Store("y", at(row), "c")))
    with pytest.raises(IllegalIRError, match="beside a tensor"):
        check(made(Pointwise("m", "lt", ("b", 2)), Pointwise("c", "where", ("m", 1, 0)), Store("y", at(row), "c")))
    mask = (Position("i", Index.axis(row)), Pointwise("m", "lt", ("i", 2)))
    check(made(*mask, Pointwise("c", "where", ("m", "b", 0)), Store("y", at(row), "c")))
