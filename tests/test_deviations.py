"""One-pass statistics: counts, means and sums of squares about them, merged as a loop goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from cpu_batch import Case, run_batch
from interpreting import InterpreterPool, InterpretJob
from quick import run_slow
from sgraph_samples import F32, SUM, at, sym
from sgraph_simulator import simulate

from prism.api import trace
from prism.api.region_search import SearchBudget, run_search
from prism.backends.lower import lower
from prism.backends.tile import For
from prism.backends.tile import Reduce as TileSum
from prism.backends.tile_spec import check_module
from prism.backends.triton.emit import emit_module
from prism.cost.device import device
from prism.egraph.language import Budget
from prism.egraph.worker import Worker
from prism.errors import IllegalIRError
from prism.events import Recorder
from prism.generate.options import Choice, options
from prism.ir.kit import statements
from prism.program.arrays import NUMPY
from prism.program.build import add, const, div, mean, mul, op, reduce, size, sub
from prism.program.build import read as element
from prism.program.classes import EClasses
from prism.program.evaluate import run as run_program
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Expr, Program, Tensor
from prism.sgraph import spec
from prism.sgraph.config import Config
from prism.sgraph.denote import as_program, denote
from prism.sgraph.folding import bound, folds
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Moment,
    Pointwise,
    Role,
    SGraph,
    Split,
    Statistic,
    Stmt,
    Store,
    TileReduce,
    Whole,
    part_axis,
)
from prism.sgraph.record import plain, sgraph_of
from prism.sgraph.show import key, text

DEVIATIONS = Statistic.DEVIATIONS
M, K, N = Axis("m", 6), Axis("k", 1000), Axis("n", 16)
LOAD, OF_TILE = Load("a", "x", at(M, K)), TileReduce("p", DEVIATIONS, K, "a")
MERGED, STORE = Accumulate("q", DEVIATIONS, "p"), Store("y", at(M), "q")


def graph(
    *body: Stmt, role: Role | None = None, dtype: DType = F32, roles: tuple[tuple[Axis, Role], ...] = ()
) -> SGraph:
    """y[m] of x[m, k]; w[k, n] and its product z with x, where there is an axis n."""
    axes: tuple[tuple[Axis, Role], ...] = ((M, Grid(sym("T_m"))), *roles, (K, role or LoopRole(sym("T_k"))))
    given, made = [Tensor("x", (6, 1000), dtype)], [Tensor("y", (6,), F32)]
    if roles:
        given, made = [*given, Tensor("w", (1000, 16), dtype)], [*made, Tensor("z", (6, 16), F32)]
    return SGraph("g", tuple(given), (), tuple(made), (Kernel("g_kernel", axes, body),))


LOOP = graph(Loop(K, (LOAD, OF_TILE, MERGED)), STORE)
WHOLE = graph(LOAD, OF_TILE, Store("y", at(M), "p"), role=Whole())
PRODUCT = graph(
    Loop(
        K,
        (
            LOAD,
            OF_TILE,
            MERGED,
            Load("b", "w", at(K, N)),
            Contract("c", K, "a", "b"),
            Accumulate("s", SUM, "c"),
        ),
    ),
    STORE,
    Store("z", at(M, N), "s"),
    roles=((N, Grid(sym("T_n"))),),
)


J, H = Axis("j", 10), Axis("h", 100)
MERGE = TileReduce("r", Statistic.MERGED, J, "p")
READ = Load("a", "x", at(M, J, H))
OF_ROW = replace(OF_TILE, axis=H)


def merged(roles: Mapping[Axis, Role], *body: Stmt) -> SGraph:
    """y[m] of x[m, j, h]."""
    kernel = Kernel("g_kernel", ((M, Grid(sym("T_m"))), *roles.items()), (*body, STORE))
    return SGraph("g", (Tensor("x", (6, 10, 100), F32),), (), (Tensor("y", (6,), F32),), (kernel,))


LOOP_J, LOOP_H = LoopRole(sym("T_j")), LoopRole(sym("T_h"))
OUTER = Loop(J, (READ, OF_ROW, MERGE, Accumulate("q", Statistic.MERGED, "r")))
INNER = Loop(H, (READ, OF_ROW, Accumulate("s", DEVIATIONS, "p")))
MERGED_OVER = {
    "the outer a loop": merged({J: LOOP_J, H: Whole()}, OUTER),
    "the inner a loop": merged({J: Whole(), H: LOOP_H}, INNER, replace(MERGE, dst="q", src="s")),
    "both loops": merged({J: LOOP_J, H: LOOP_H}, replace(OUTER, body=(INNER, replace(MERGE, src="s"), OUTER.body[3]))),
    "both in a tile": merged({J: Whole(), H: Whole()}, READ, OF_ROW, replace(MERGE, dst="q")),
}


def parted(split: Axis, roles: Mapping[Axis, Role], *body: Stmt, inner: bool = False) -> SGraph:
    """y[m] of x[m, ...], where several programs share an axis; `inner` where j is in the tile, merged at the end."""
    parts = sym(f"S_{split.name}")
    part, kept = part_axis(split, parts), (J,) if inner else ()
    index = {m: at(part) if m is Moment.COUNT else at(part, M, *kept) for m in Moment}
    split_role: dict[Axis, Role] = {split: Split(parts, sym(f"T_{split.name}"))}
    first = Kernel(
        "g_kernel",
        ((M, Grid(sym("T_m"))), *{**split_role, **roles}.items()),
        (*body, *(Store(f"part_{m}", at_m, "q", m) for m, at_m in index.items())),
    )
    squares, *others = (Load(f"of_{m}", f"part_{m}", at_m) for m, at_m in index.items())
    merge = TileReduce("r", Statistic.MERGED, part, squares.dst, tuple(o.dst for o in others))
    end = (replace(MERGE, dst="t", src="r"), replace(STORE, src="t")) if inner else (replace(STORE, src="r"),)
    second = Kernel(
        "g_combine",
        ((M, Grid(sym("T_c"))), (part, Whole()), *((a, Whole()) for a in kept)),
        (squares, *others, merge, *end),
    )
    shape = (6, 1000) if split == K else (6, 10, 100)
    shapes = {m: tuple(a.extent for i in at_m for a in i.axes()) for m, at_m in index.items()}
    buffers = tuple(Tensor(f"part_{m}", of, F32) for m, of in shapes.items())
    return SGraph("g", (Tensor("x", shape, F32),), buffers, (Tensor("y", (6,), F32),), (first, second))


PARTED_K = parted(K, {}, Loop(K, (LOAD, OF_TILE, MERGED)))
PARTED_J = parted(J, {H: Whole()}, OUTER)
PARTED = {
    "the outer": PARTED_J,
    "the outer, the inner a loop": parted(
        J, {H: LOOP_H}, replace(OUTER, body=(INNER, replace(MERGE, src="s"), OUTER.body[3]))
    ),
    "the inner": parted(
        H, {J: Whole()}, replace(INNER, body=(READ, OF_ROW, Accumulate("q", DEVIATIONS, "p"))), inner=True
    ),
}
EVERY = (LOOP, WHOLE, PRODUCT, *MERGED_OVER.values(), PARTED_K, *PARTED.values())


def test_it_is_legal_and_can_be_read_back() -> None:
    for g in EVERY:
        spec.check(g)
        assert sgraph_of(plain(g)) == g
        check_module(lower(g))
        check_module(lower(g, defer=False))
    assert "q merges p" in text(LOOP)
    assert "part_mean[k.part, m] = q, mean" in text(PARTED_K)
    assert "r = merged_k.part of_squares, of_count, of_mean, of_rest" in text(PARTED_K)
    assert key(second_stage(lambda s: replace(s, moments=s.moments[::-1]))) != key(PARTED_K)
    summed = graph(Loop(K, (LOAD, replace(OF_TILE, kind=SUM), replace(MERGED, kind=SUM))), STORE)
    assert key(summed) != key(LOOP)


def test_it_denotes_what_a_second_pass_would_compute(worker: Worker) -> None:
    deviation = sub(element("x", M, K), mean(K, element("x", M, K)))
    wanted = reduce("sum", K, mul(deviation, deviation))
    worker.explore((wanted,), Budget())
    other = sub(element("x", M, K), const(0.5))
    about_another = reduce("sum", K, mul(other, other))
    for g in (LOOP, WHOLE, PARTED_K):
        (value,) = denote(g).outputs
        assert [bool(v) for v in worker.prove([(value,), (about_another,)])] == [True, False]


def second_stage(
    merge: Callable[[TileReduce], Stmt], *more: Stmt, stored: str = "r", first: Callable[[Store], Stmt] = lambda s: s
) -> SGraph:
    """PARTED_K with another merge, statements after it, another result, or other stores of parts."""
    one, two = PARTED_K.kernels
    body = tuple(merge(s) if isinstance(s, TileReduce) else s for s in two.body[:-1])
    two = replace(two, body=(*body, *more, replace(STORE, src=stored)))
    one = replace(one, body=tuple(first(s) if isinstance(s, Store) else s for s in one.body))
    return replace(PARTED_K, kernels=(one, two))


def plain_squares(s: Store) -> Store:
    return replace(s, moment=None) if s.moment is Moment.SQUARES else s


K_PART = part_axis(K, sym("S_k"))
BROKEN: dict[str, tuple[SGraph, str]] = {
    "of parts, as if of all": (second_stage(lambda s: s, first=plain_squares), "of a part as if"),
    "of parts, added": (second_stage(lambda s: TileReduce("r", SUM, K_PART, "of_squares")), "stores a running value"),
    "of parts, means of means": (
        second_stage(lambda s: s, TileReduce("a", SUM, K_PART, "of_mean"), stored="a"), "stores a running value"
    ),
    "of parts, without a moment": (second_stage(lambda s: replace(s, moments=s.moments[:2])), "takes 3 moments"),
    "of parts, by others' moments": (
        second_stage(lambda s: replace(s, moments=("of_count", "of_rest", "of_mean"))), "moments of several statistics"
    ),
    "of parts, by what is no moment": (
        second_stage(lambda s: replace(s, src="d"), Pointwise("d", "add", ("of_squares", 1.0))), "uses d"
    ),
    "of parts, the counts rounded": (
        replace(
            PARTED_K,
            kernels=(
                PARTED_K.kernels[0],
                replace(
                    PARTED_K.kernels[1],
                    body=(
                        *PARTED_K.kernels[1].body[:-2],
                        Pointwise("d", "add", ("of_count", 1.0)),
                        TileReduce("r", Statistic.MERGED, K_PART, "of_squares", ("d", "of_mean", "of_rest")),
                        replace(STORE, src="r"),
                    ),
                ),
            ),
        ),
        "moments of several statistics",
    ),
    "of parts, their counts along rows": (
        second_stage(lambda s: replace(s, moments=("of_mean", "of_mean", "of_rest"))), "is no count of parts"
    ),
    "a moment of all": (graph(Loop(K, (LOAD, OF_TILE, MERGED)), replace(STORE, moment=Moment.MEAN)), "of a part"),
    "of a sum": (graph(Loop(K, (LOAD, replace(OF_TILE, kind=SUM), MERGED)), STORE), "which is no statistic over k"),
    "as a sum": (graph(Loop(K, (LOAD, OF_TILE, replace(MERGED, kind=SUM))), STORE), "which is not a sum over a tile"),
    "merged, of what is none": (
        merged({J: LOOP_J, H: Whole()}, replace(OUTER, body=(READ, replace(OF_ROW, kind=SUM), *OUTER.body[2:]))),
        "r merges p, which is no statistic",
    ),
    "merged before its loop ends": (
        merged({J: Whole(), H: LOOP_H}, Loop(H, (*INNER.body, replace(MERGE, src="s"), TileReduce("t", SUM, J, "s"))),
               replace(MERGE, dst="q", src="s")),
        "merges s, which is no statistic",
    ),
    "before it is merged": (
        graph(Loop(K, (LOAD, OF_TILE, MERGED, Pointwise("r", "exp", ("p",)))), STORE),
        "before it is accumulated",
    ),
    "of a running value": (
        graph(Loop(K, (LOAD, OF_TILE, MERGED, Pointwise("d", "add", ("a", "q")), TileReduce("r", SUM, K, "d"),
                       Accumulate("t", SUM, "r"))), replace(STORE, src="t")),
        "depends on the running value of q",
    ),
    "about a running value": (
        graph(Loop(K, (LOAD, OF_TILE, MERGED, replace(MERGED, dst="t", shift="q"))), replace(STORE, src="t")),
        "only sums, by a max or sum",
    ),
    "of tiles left out": (
        graph(Loop(K, (LOAD, OF_TILE, MERGED), (Index.axis(M) + Index.axis(K).scaled(-1),)), STORE),
        "skips tiles",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MERGED_OVER)
def test_merged_along_an_axis_it_is_over_both(what: str, worker: Worker) -> None:
    x = element("x", M, J, H)
    about, about_rows = sub(x, div(reduce("sum", (J, H), x), const(1000.0))), sub(x, mean(H, x))
    wanted, not_this = (reduce("sum", (H, J), mul(d, d)) for d in (about, about_rows))
    g = MERGED_OVER[what]
    for reference, equal in ((wanted, True), (not_this, False)):
        worker.explore((reference,), Budget())
        (verdict,) = worker.prove([denote(g).outputs])
        assert bool(verdict) is equal
        # The count of all is one number, as models have it: there is nothing to find beside the reference.
        assert verdict.iterations == 0 or not equal
    values = np.random.default_rng(0).normal(size=(6, 10, 100)) + np.arange(10)[:, None]
    made = simulate(g, {"x": values}, {"T_m": 4, "T_j": 4, "T_h": 16})["y"]
    np.testing.assert_allclose(made, values.var((1, 2)) * 1000, rtol=1e-12)


@pytest.mark.parametrize("what", PARTED)
def test_parts_of_an_axis_it_is_over_are_merged(what: str, worker: Worker) -> None:
    x = element("x", M, J, H)
    about, about_rows = sub(x, mean((J, H), x)), sub(x, mean(H, x))
    wanted, not_this = (reduce("sum", (H, J), mul(d, d)) for d in (about, about_rows))
    for reference, equal in ((wanted, True), (not_this, False)):
        worker.explore((reference,), Budget())
        assert [bool(v) for v in worker.prove([denote(PARTED[what]).outputs])] == [equal]


def test_parts_of_any_length_give_the_same() -> None:
    x = np.random.default_rng(0).normal(size=(6, 1000)) + 3
    for sizes in PART_SIZES:
        made = simulate(PARTED_K, {"x": x}, {"T_c": 4, **sizes})["y"]
        np.testing.assert_allclose(made, x.var(1) * 1000, rtol=1e-12)
    values = x.reshape(6, 10, 100) + np.arange(10)[:, None]
    for g in PARTED.values():
        made = simulate(g, {"x": values}, {"T_c": 4, "T_m": 4, **ROW_SIZES})["y"]
        np.testing.assert_allclose(made, values.var((1, 2)) * 1000, rtol=1e-12)


def test_what_parts_compute_one_after_another_is_a_program() -> None:
    found = as_program(PARTED_K)
    assert found is not None
    made, symbols = found
    x = np.random.default_rng(0).normal(size=(6, 1000)) + 3
    binding = {name: int(value) for name, value in symbols.items()}
    np.testing.assert_allclose(run_program(made, {"x": x}, binding, NUMPY)["y"], x.var(1) * 1000, rtol=1e-12)


def checked(g: SGraph) -> None:
    spec.check(g)
    denote(g)


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_statistic_of_a_loop_is_refused(what: str) -> None:
    g, message = BROKEN[what]
    with pytest.raises(IllegalIRError, match=message):
        checked(g)


def test_tiles_of_any_length_give_the_same() -> None:
    x = np.random.default_rng(0).normal(size=(6, 1000)) + 3
    for tile in (1, 8, 512, 1024):
        made = simulate(LOOP, {"x": x}, {"T_m": 4, "T_k": tile})["y"]
        np.testing.assert_allclose(made, x.var(1) * 1000, rtol=1e-12)


def test_lanes_are_merged_after_the_loop_where_no_product_needs_the_registers() -> None:
    def within(g: SGraph, defer: bool = True) -> int:
        (loop,) = [s for s in lower(g, defer=defer).programs[0].body if isinstance(s, For)]
        return sum(isinstance(s, TileSum) for s in statements(loop.body))

    assert within(LOOP) == 0
    assert within(LOOP, defer=False) == within(PRODUCT) == 3


# Numbers.


TOLERANCE = 4e-6
"""Relative. A mean that is rounded to float32 is off by 6e-4 standard deviations where it is 1e4 of them, and that
squared is what a second pass is off by; a difference of squares has no digit left."""


@dataclass(frozen=True)
class Draw:
    """Rows whose mean is so many standard deviations, ascending perhaps."""

    ratio: float
    ordered: bool = False

    def rows(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        drawn = np.random.default_rng(int(self.ratio)).normal(size=shape)
        drawn = np.sort(drawn) if self.ordered else drawn
        found: np.ndarray[Any, Any] = (drawn + self.ratio).astype(np.float32)
        return found


LARGE = Draw(1e4)
# The same kernels on what is easier: what holds where the mean is largest does there, too.
EASIER = (Draw(0), Draw(1e3), Draw(1e3, ordered=True)) if run_slow() else ()
DRAWS = (LARGE, Draw(1e4, ordered=True), *EASIER)
SIZES = ((4, 8), (1, 64), (2, 256), (8, 512), (2, 1024), (4, 1))
# The last part is short, or empty; so are all but two of five.
PART_SIZES = tuple(
    {"T_m": m, "T_k": k, "S_k": s} for m, k, s in ((4, 8, 3), (1, 64, 7), (2, 64, 16), (8, 512, 5), (2, 1024, 2))
)
ROW_SIZES = {"T_j": 4, "T_h": 16, "S_j": 4, "S_h": 5}


def squares(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """In float64, about the mean."""
    wide = x.astype(np.float64)
    found: np.ndarray[Any, Any] = ((wide - wide.mean(1, keepdims=True)) ** 2).sum(1)
    return found


def cases() -> list[Case]:
    found: list[Case] = []
    for draw in DRAWS:
        x = draw.rows((6, 1000))
        found += [Case(LOOP, {"T_m": m, "T_k": k}, [x]) for m, k in SIZES]
        found += [Case(PARTED_K, {"T_c": 4, **sizes}, [x]) for sizes in PART_SIZES]
        found.append(Case(WHOLE, {"T_m": 2}, [x]))
    x = LARGE.rows((6, 1000))
    roles = ((M, Grid(sym("T_m"))), (K, LoopRole(1)))
    one = replace(LOOP, kernels=(replace(LOOP.kernels[0], roles=roles),))
    w = np.random.default_rng(1).normal(size=(1000, 16)).astype(np.float32)
    x = x.reshape(6, 10, 100)
    found += [Case(g, {"T_m": 8, "T_j": 4, "T_h": 64}, [x]) for g in MERGED_OVER.values()]
    x = x.reshape(6, 1000)
    found += [Case(g, {"T_m": 8, "T_c": 4, **ROW_SIZES}, [x.reshape(6, 10, 100)]) for g in PARTED.values()]
    return [*found, Case(one, {"T_m": 4}, [x]), Case(PRODUCT, {"T_m": 16, "T_k": 32, "T_n": 16}, [x, w])]


def close(got: np.ndarray[Any, Any], case: Case) -> None:
    np.testing.assert_allclose(np.asarray(got, np.float64), squares(case.inputs[0].reshape(6, 1000)), rtol=TOLERANCE)


def test_triton_kernels_keep_their_digits_where_the_mean_is_large(interpreter: InterpreterPool, tmp_path: Path) -> None:
    # The interpreter takes 5 ms an iteration.
    few = [c for c in cases() if c.symbols["T_m"] * c.symbols.get("T_k", c.symbols.get("T_h", 1)) >= 512]
    few += [c for c in cases() if c.symbols.get("S_k") == 7 or "S_j" in c.symbols]
    once = [(c, ()) for c in few] + [(c, tuple(f)) for c in few if (f := folds(c.sgraph))]
    jobs: list[InterpretJob] = []
    for n, (case, folded) in enumerate(once):
        source = emit_module(case.sgraph, formula="squares", configs={})
        path = tmp_path / f"case{n}.py"
        path.write_text(source.text)
        launches = [x.name for x in case.sgraph.launches if x.name not in folded]
        symbols = bound(case.sgraph, case.symbols, folded)
        tuned = Config(symbols, dict.fromkeys(launches, 4), dict.fromkeys(launches, 2)).having(folded=frozenset(folded))
        jobs.append(InterpretJob(path, source.entry, tuple(case.inputs), ("float32",) * len(case.inputs), tuned))
    assert len(few) == (3 + 3) * len(DRAWS) + 1 + len(MERGED_OVER) + len(PARTED)
    assert len(once) - len(few) == 3 * len(DRAWS) + len(PARTED)
    for result, (case, _) in zip(interpreter.run_many(jobs), once, strict=True):
        assert not result.error
        close(result.outputs[0], case)


def test_cpp_kernels_keep_their_digits_where_the_mean_is_large(tmp_path: Path) -> None:
    every = cases()
    for got, case in zip(run_batch(every, tmp_path), every, strict=True):
        close(got[0], case)


# The search.


def explored(worker: Worker, *outputs: Expr) -> tuple[EClasses, list[Choice]]:
    """The e-graph, and the options of that kind in it."""
    classes = worker.explore(outputs, Budget())
    return classes, [c for cs in options(classes).values() for c in cs if c.op == "deviations"]


@pytest.mark.parametrize("extent", [1000, sympy.Symbol("length", integer=True, positive=True)])
def test_squares_about_the_mean_of_the_same_axis_are_an_option(worker: Worker, extent: Extent) -> None:
    k = Axis("k", extent)
    x = element("x", M, k)
    total = reduce("sum", k, x)
    about_mean, about_more = sub(x, div(total, size(extent))), sub(x, div(total, add(size(extent), const(-1))))
    _, found = explored(worker, reduce("sum", k, mul(about_mean, about_mean)))
    assert [[a.extent for a in c.reduced] for c in found] == [[extent]]
    other = sub(x, mean(k, mul(x, x)))
    for d in (about_more, other, sub(x, total)):
        assert not explored(worker, reduce("sum", k, mul(d, d)))[1]
    assert not explored(worker, reduce("sum", k, mul(about_mean, x)))[1]
    assert not explored(worker, reduce("sum", k, op("exp", about_mean)))[1]


def passes(g: SGraph, tensor: str = "x") -> int:
    """How often a tensor is loaded."""
    return sum(isinstance(s, Load) and s.tensor == tensor for k in g.kernels for s in k.statements())


LONG = 65536 + 8
FOUND: dict[str, tuple[Callable[..., Any], tuple[int, ...], int]] = {
    "variance": (lambda x: x.var(-1, correction=0), (600, LONG), 1),
    "variance over one less": (lambda x: x.var(-1), (600, LONG), 1),
    "variance and mean": (lambda x: torch.var_mean(x, -1), (600, LONG), 1),
    "standard deviation": (lambda x: x.std(-1), (600, LONG), 1),
    "of what is computed": (lambda x: (x * x.sigmoid()).std(-1), (600, LONG), 1),
    "batch norm": (lambda x: torch.nn.functional.batch_norm(x, None, None, training=True), (32, 64, 56, 56), 2),
    "group norm": (lambda x: torch.nn.functional.group_norm(x, 8), (16, 256, 64, 64), 2),
    "instance norm": (torch.nn.functional.instance_norm, (8, 64, 224, 224), 2),
    "layer norm": (lambda x: torch.nn.functional.layer_norm(x, (LONG,)), (600, LONG), 2),
}


@pytest.mark.parametrize("what", FOUND)
def test_rows_that_do_not_fit_on_chip_are_read_once_for_their_statistics(worker: Worker, what: str) -> None:
    fn, shape, times = FOUND[what]
    p = trace(fn, [torch.empty(shape, device="meta")], name="p")
    proved = run_search(p, device("sm_90"), SearchBudget(), worker, Recorder()).proved
    best = proved[0].sgraph
    assert passes(best, p.inputs[0].name) == times
    kinds = [s.kind for k in best.kernels for s in k.statements() if isinstance(s, TileReduce)]
    assert DEVIATIONS in kinds


FEW: dict[str, tuple[Callable[..., Any], tuple[int, ...], int, int]] = {
    "variance": (lambda x: x.var(), (1_000_000,), 1, 1),
    "standard deviation": (lambda x: x.std(), (1_000_000,), 1, 1),
    "variance and mean": (lambda x: torch.var_mean(x, -1), (3, 1_000_000), 1, 1),
    "layer norm": (lambda x: torch.nn.functional.layer_norm(x, (1 << 16,)), (16, 1 << 16), 2, 2),
    "batch norm": (lambda x: torch.nn.functional.batch_norm(x, None, None, training=True), (32, 64, 56, 56), 2, 2),
}


@pytest.mark.parametrize("what", FEW)
def test_few_rows_are_shared_by_several_programs(worker: Worker, what: str) -> None:
    fn, shape, times, launches = FEW[what]
    p = trace(fn, [torch.empty(shape, device="meta")], name="p")
    best = run_search(p, device("sm_90"), SearchBudget(), worker, Recorder()).proved[0].sgraph
    assert passes(best, p.inputs[0].name) == times
    assert {s.moment for k in best.kernels for s in k.statements() if isinstance(s, Store)} >= set(Moment)
    assert len(best.launches) - len(folds(best)) <= launches


@pytest.mark.parametrize(("rows", "parts"), [(600, 1), (2, 6)])
def test_a_length_that_is_a_symbol_is_one_pass_too(worker: Worker, rows: int, parts: int) -> None:
    length = torch.export.Dim("length", min=1 << 14, max=1 << 20)
    p = trace(lambda x: x.var(-1), [torch.empty(rows, 1 << 16, device="meta")], name="p", dynamic_shapes=({1: length},))
    best = run_search(p, device("sm_90"), SearchBudget(), worker, Recorder()).proved[0].sgraph
    assert passes(best) == 1
    shared = [r.parts.name for k in best.kernels for _, r in k.roles if isinstance(r, Split)]
    assert len(shared) == (parts > 1)
    x = np.random.default_rng(0).normal(size=(rows, 70)) + 5
    sizes = {s.name: parts if s.name in shared else 16 for s in best.symbols}
    (made,) = simulate(best, {p.inputs[0].name: x}, sizes | hints(p, 70)).values()
    np.testing.assert_allclose(made, x.var(1, ddof=1), rtol=1e-12)


def hints(p: Program, length: int) -> dict[str, int]:
    return dict.fromkeys(p.hints, length)
