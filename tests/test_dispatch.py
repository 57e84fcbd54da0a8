"""Winners over a range of shapes: times against the generator's, regions against brute force, predicates to read."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from sgraph_programs import PLAIN, task

from prism.cost.shapes import TimeModel, lattice
from prism.errors import UsageError
from prism.generate.dispatch import TOLERANCE, Winner, dispatch_table, points
from prism.generate.dispatch_regions import Condition, Losses, Splits, Tree, intervals, regions, roundest
from prism.generate.enumerate import Bounds, generate
from prism.generate.pruning import reach
from prism.program.build import div, mul, op, read, reduce, sub
from prism.program.extents import Extent, symbol
from prism.program.index import Axis
from prism.program.nodes import Definition, DType, Expr, Program, SymbolRange, Tensor
from prism.sgraph.nodes import Grid, Kernel, LoopRole, SGraph, Split

Ranges = Mapping[str, SymbolRange]
F16 = DType.FLOAT16
# Nothing but work counts, and one program fills the device.
WORK_ALONE = replace(PLAIN, bandwidth_bytes_s=1e16, launch_overhead_s=0.0, processors=1)

M, N, SEQ, BATCH = symbol("m"), symbol("n"), symbol("seq"), symbol("b")


def winner_at(found: Sequence[Winner], point: Mapping[str, int]) -> Winner:
    """The first whose predicate holds at a shape."""
    return next(w for w in found if w.holds(point))


def program(
    name: str, inputs: Mapping[str, tuple[Extent, ...]], index: tuple[Axis, ...], e: Expr, r: Ranges
) -> Program:
    tensors = tuple(Tensor(n, s, F16) for n, s in inputs.items())
    return Program(name, tensors, (Definition("y", index, e, F16),), ("y",), r)


def chain(left: bool, m: Extent, k: Extent, n: Extent, r: Extent, ranges: Ranges) -> Program:
    """x @ w1 @ w2, associated to the left or to the right."""
    i, a, b, j = Axis("i", m), Axis("a", k), Axis("c", n), Axis("j", r)
    x, w1, w2 = read("x", i, a), read("w1", a, b), read("w2", b, j)
    first = reduce("sum", b, mul(reduce("sum", a, mul(x, w1)), w2))
    last = reduce("sum", a, mul(x, reduce("sum", b, mul(w1, w2))))
    return program("chain", {"x": (m, k), "w1": (k, n), "w2": (n, r)}, (i, j), first if left else last, ranges)


def decode(ranges: Ranges, batch: bool = False) -> Program:
    """One query, or one a batch, against a sequence of keys."""
    b, t, d, e = Axis("b", BATCH), Axis("t", SEQ), Axis("d", 64), Axis("e", 64)
    own, outer = ((b,), (BATCH,)) if batch else ((), ())
    s = reduce("sum", d, mul(read("q", *own, d), read("k", *own, t, d)))
    p = op("exp", sub(s, reduce("max", t, s)))
    o = div(reduce("sum", t, mul(p, read("v", *own, t, e))), reduce("sum", t, p))
    inputs = {"q": (*outer, 64), "k": (*outer, SEQ, 64), "v": (*outer, SEQ, 64)}
    return program("decode", inputs, (*own, e), o, ranges)


def generated(p: Program, *further: Mapping[str, int]) -> tuple[SGraph, ...]:
    found = generate(replace(task(p), points=further), Bounds())
    return tuple(c.sgraph for c in found.candidates)


CHAIN_M: Ranges = {"m": SymbolRange(1, 1500, 64)}
CHAIN_MN: Ranges = {"m": SymbolRange(64, 8192, 64), "n": SymbolRange(64, 8192, 512)}
DECODE: Ranges = {"seq": SymbolRange(1, 1200, 512)}
DECODE_BATCH: Ranges = {"b": SymbolRange(1, 256, 8), "seq": SymbolRange(1, 32768, 1024)}


@cache
def chains_m() -> tuple[SGraph, ...]:
    return tuple(s for left in (True, False) for s in generated(chain(left, M, 256, 256, 256, CHAIN_M), {"m": 1500}))


@cache
def chains_mn() -> tuple[tuple[SGraph, ...], tuple[SGraph, ...]]:
    """Those of the left association, those of the right one."""
    left, right = (generated(chain(left, M, 1024, N, 2048, CHAIN_MN), {"m": 8192, "n": 8192}) for left in (True, False))
    return left, right


@cache
def decodes() -> tuple[SGraph, ...]:
    return generated(decode(DECODE), {"seq": 32768})


@cache
def batched() -> tuple[SGraph, ...]:
    return generated(decode(DECODE_BATCH, batch=True), {"b": 1, "seq": 32768}, {"b": 256, "seq": 32768})


def lost(found: Sequence[Winner], seconds: np.ndarray, shapes: Sequence[Mapping[str, int]]) -> list[float]:
    """What the winner loses to the best, shape by shape, by the generator's own estimate of each sGraph."""
    result = []
    for n, p in enumerate(shapes):
        result.append(float(seconds[winner_at(found, p).place, n] / seconds[:, n].min()) - 1)
    return result


def families(sgraph: SGraph) -> list[list[Kernel]]:
    """The kernels, those together that share a symbol."""
    found: list[list[Kernel]] = []
    for k in sgraph.kernels:
        mine = [f for f in found if any(set(k.symbols) & set(o.symbols) for o in f)]
        found = [f for f in found if f not in mine] + [[*itertools.chain(*mine), k]]
    return found


@pytest.mark.parametrize("which", ["chain", "decode", "batched"])
def test_times_are_those_of_the_generator(which: str) -> None:
    sgraphs = {"chain": chains_m, "decode": decodes, "batched": batched}[which]()[::3]
    shapes = [{"m": v, "seq": v, "b": 1 + v % 7} for v in (1, 2, 17, 64, 100, 513, 1200)]
    device = replace(PLAIN, processors=60)
    seconds = TimeModel(device).seconds(sgraphs, shapes)
    infeasible = 0
    for (n, sgraph), (m, shape) in itertools.product(enumerate(sgraphs), enumerate(shapes)):
        # As the generator does, family by family: a kernel, or the stages of a split.
        expected = -device.launch_overhead_s * (len(sgraph.kernels) - len(sgraph.launches))
        for family in families(sgraph):
            reached = reach(family, sgraph, device, [shape])
            expected += np.inf if isinstance(reached, str) else reached.seconds
        infeasible += expected == np.inf
        assert seconds[n, m] == pytest.approx(expected, rel=1e-9), (sgraph.name, shape)
    assert np.isfinite(seconds).any()
    assert which != "decode" or infeasible, "a split has no parts in a sequence of one"


@pytest.mark.parametrize(("which", "ranges"), [("chain", CHAIN_M), ("decode", DECODE)])
def test_one_symbol_against_every_integer(which: str, ranges: Ranges) -> None:
    sgraphs = chains_m() if which == "chain" else decodes()
    found = dispatch_table(sgraphs, ranges, PLAIN)
    (name, r), *_ = ranges.items()
    shapes = [{name: v} for v in range(r.low, r.high + 1)]
    seconds = TimeModel(PLAIN).seconds(sgraphs, shapes)
    losses = lost(found, seconds, shapes)
    assert 2 <= len(found) <= 4
    assert max(losses) <= found[0].tolerance == TOLERANCE
    assert max(w.loss for w in found) <= TOLERANCE
    # Breakpoints are exact: on either side of one its own sGraph is no slower than the other.
    places = [winner_at(found, p).place for p in shapes]
    borders = [n for n in range(1, len(places)) if places[n] != places[n - 1]]
    assert len(borders) >= len(found) - 1
    for n in borders:
        before, after = places[n - 1], places[n]
        assert seconds[before, n - 1] <= seconds[after, n - 1]
        assert seconds[after, n] <= seconds[before, n]


def test_split_against_unsplit_has_a_breakpoint() -> None:
    def roles(s: SGraph) -> set[type]:
        return {type(r) for k in s.kernels for a, r in k.roles if a.extent == SEQ}

    split = next(s for s in decodes() if Split in roles(s) and Grid not in roles(s))
    unsplit = next(s for s in decodes() if roles(s) == {LoopRole} and len(s.kernels) == 1)
    ranges = {"seq": SymbolRange(1, 32768, 512)}
    short, long = dispatch_table([split, unsplit], ranges, PLAIN)
    assert (short.place, long.place) == (1, 0)
    assert isinstance(short.predicate, sympy.Le)
    assert isinstance(long.predicate, sympy.Ge)
    border = int(short.predicate.rhs)
    assert 16 < border < 4096
    assert (short.text, long.text) == (f"seq <= {border}", f"seq >= {border + 1}")
    seconds = TimeModel(PLAIN).seconds([split, unsplit], [{"seq": border}, {"seq": border + 1}])
    assert seconds[1, 0] <= seconds[0, 0]
    assert seconds[0, 1] < seconds[1, 1]
    # Where a launch costs nothing, splitting pays earlier.
    early = dispatch_table([split, unsplit], ranges, replace(PLAIN, launch_overhead_s=0.0))
    assert int(early[0].predicate.rhs) < border


def test_matrix_chain_by_the_cheaper_order() -> None:
    left, right = chains_mn()
    found = dispatch_table([*left, *right], CHAIN_MN, WORK_ALONE)
    first, last = sorted(found, key=lambda w: w.place)
    assert first.place < len(left) <= last.place
    # FLOPs: 2*m*n*(1024 + 2048) on the left, 2*1024*2048*(n + m) on the right.
    assert sympy.simplify(first.predicate.lhs / first.predicate.rhs - 3 * M * N / (2048 * (M + N))) == 0
    assert (first.text, last.text) == ("3*m*n < 2048*(m + n)", "3*m*n >= 2048*(m + n)")
    for m, n in itertools.product((64, 700, 1024, 3000, 8192), repeat=2):
        cheaper = first if m * n * 3072 < 1024 * 2048 * (m + n) else last
        assert winner_at(found, {"m": m, "n": n}) == cheaper
    # By the device's own rates launches, memory and tiles count as well: each order still has its shapes.
    real = dispatch_table([*left, *right], CHAIN_MN, PLAIN)
    assert {w.place < len(left) for w in real} == {True, False}


def test_several_symbols_against_every_shape() -> None:
    m, k = SymbolRange(1, 44, 16), SymbolRange(1, 44, 24)
    ranges = {"m": m, "k": k}
    both = [generated(chain(left, M, symbol("k"), 32, 32, ranges)) for left in (True, False)]
    sgraphs = [s for some in both for s in some]
    shapes = [{"m": a, "k": b} for a in range(1, 45) for b in range(1, 45)]
    for device in (PLAIN, WORK_ALONE):
        losses = lost(dispatch_table(sgraphs, ranges, device), TimeModel(device).seconds(sgraphs, shapes), shapes)
        strays = sum(x > TOLERANCE for x in losses)
        assert strays <= 0.03 * len(shapes)
        assert all(np.isfinite(losses))


@settings(max_examples=examples(20, 50), deadline=None)
@given(m=st.integers(64, 8192), n=st.integers(64, 8192), b=st.integers(1, 256), seq=st.integers(1, 32768))
def test_disjoint_and_covering(m: int, n: int, b: int, seq: int) -> None:
    for found, point in zip(_answers(), ({"m": m, "n": n}, {"b": b, "seq": seq}, {"seq": seq}), strict=True):
        assert sum(w.holds(point) for w in found) == 1
        # The predicate is what is asked, not something beside it.
        values = {symbol(k): v for k, v in point.items()}
        holding = [bool(w.predicate.subs(values)) for w in found]
        assert holding == [w.holds(point) for w in found]


@cache
def _answers() -> tuple[tuple[Winner, ...], ...]:
    left, right = chains_mn()
    return (
        dispatch_table([*left, *right], CHAIN_MN, PLAIN),
        dispatch_table(batched(), DECODE_BATCH, PLAIN),
        _decode_answer(),
    )


def _decode_answer() -> tuple[Winner, ...]:
    return dispatch_table(decodes(), {"seq": SymbolRange(1, 32768, 512)}, PLAIN)


def test_answers_are_few_and_lose_little() -> None:
    for found in _answers():
        assert 2 <= len(found) <= 5
        assert all(w.tolerance <= 0.16 and w.loss <= 0.3 for w in found)
    shapes = lattice(DECODE_BATCH, 900)
    losses = lost(_answers()[1], TimeModel(PLAIN).seconds(batched(), shapes), shapes)
    assert sum(x > _answers()[1][0].tolerance for x in losses) <= 0.06 * len(losses)


@pytest.mark.parametrize("answers", ["[_decode_answer()]", pytest.param("_answers()", marks=pytest.mark.slow)])
def test_the_same_in_another_process(answers: str) -> None:
    code = (
        "import sympy; from test_dispatch import _answers, _decode_answer\n"
        f"print([(w.place, sympy.srepr(w.predicate), w.text, w.loss) for f in {answers} for w in f])"
    )
    here = Path(__file__).parent
    seed = "77" if os.environ.get("PYTHONHASHSEED") != "77" else "78"
    there = subprocess.run(
        [sys.executable, "-c", code],
        cwd=here,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    here_too = _answers() if answers == "_answers()" else [_decode_answer()]
    mine = [(w.place, sympy.srepr(w.predicate), w.text, w.loss) for f in here_too for w in f]
    assert there == f"{mine}\n"


def test_equals_and_one_shape() -> None:
    a, b = decodes()[:2]
    assert [w.place for w in dispatch_table([a, a], DECODE, PLAIN)] == [0]
    (only,) = dispatch_table([b], DECODE, PLAIN)
    assert only.predicate == sympy.true
    assert only.text == "everywhere"
    assert only.holds({"seq": 7})
    (there,) = dispatch_table(decodes(), {"seq": SymbolRange(900, 900, 900)}, PLAIN)
    assert there.text == "everywhere"
    assert there.place == int(np.argmin(TimeModel(PLAIN).seconds(decodes(), [{"seq": 900}])[:, 0]))
    assert dispatch_table([], DECODE, PLAIN) == ()


def test_where_nothing_is_feasible_there_is_no_extra_region() -> None:
    sgraphs = generated(chain(True, M, 256, N, 256, {"m": SymbolRange(1, 4096, 64), "n": SymbolRange(1, 4096, 64)}))
    ranges = {"m": SymbolRange(1, 1 << 20, 64), "n": SymbolRange(1, 1 << 20, 64)}
    corner = {"m": 1 << 20, "n": 1 << 20}
    assert not np.isfinite(TimeModel(PLAIN).seconds(sgraphs, [corner])).all()
    found = dispatch_table(sgraphs, ranges, PLAIN)
    assert sum(w.holds(corner) for w in found) == 1


def test_errors() -> None:
    with pytest.raises(UsageError, match="extent m has no value"):
        dispatch_table(chains_m(), {"n": SymbolRange(1, 8, 4)}, PLAIN)
    with pytest.raises(UsageError, match="low <= high"):
        dispatch_table(chains_m(), {"m": SymbolRange(8, 1, 4)}, PLAIN)
    found = dispatch_table(chains_m()[:9], {"m": SymbolRange(2, 400, 4)}, PLAIN)
    bounded = [replace(w, predicate=sympy.And(w.predicate, symbol("m") <= 400)) for w in found]
    assert not any(w.holds({"m": 401}) for w in bounded)


def test_points() -> None:
    ranges = {"seq": SymbolRange(1, 32768, 512), "b": SymbolRange(1, 64, 8)}
    found = points(ranges)
    assert found[0] == {"b": 8, "seq": 512}
    assert {"b": 1, "seq": 1} in found
    assert {"b": 64, "seq": 32768} in found
    assert len(found) == 8
    assert len({tuple(p.items()) for p in found}) == 8
    assert all(r.low <= p[n] <= r.high for p in found for n, r in ranges.items())
    assert points(dict(reversed(ranges.items()))) == found
    assert points(ranges, 3) == found[:3]
    assert points({"seq": SymbolRange(1, 32768, 512)}) == tuple({"seq": v} for v in (512, 1, 32768, 4096, 23))
    assert points({"seq": SymbolRange(4, 4, 4)}) == ({"seq": 4},)
    assert points({}) == ({},)


# Regions on their own: times that are given.


def test_intervals_leave_out_small_gains() -> None:
    flat, falling = [10.0] * 8, [20.0, 16.0, 12.0, 9.9, 9.9, 9.0, 8.0, 7.0]
    blip = [30.0, 30.0, 9.9, 30.0, 30.0, 30.0, 30.0, 30.0]
    found = intervals(Losses.of(np.array([flat, falling, blip]), 0.02))
    assert [(i.who, i.first, i.last) for i in found] == [(0, 0, 2), (1, 3, 7)]
    # A gain above the tolerance is one, however short.
    blip[1], blip[2] = 5.0, 30.0
    found = intervals(Losses.of(np.array([flat, falling, blip]), 0.02))
    assert [i.who for i in found] == [0, 2, 0, 1]


def test_tree_finds_a_product_and_a_given_inequality() -> None:
    samples = {
        "b": np.repeat([1, 2, 4, 8, 16, 32], 11),
        "s": np.tile([1 << n for n in range(11)], 6),
    }
    product = samples["b"] * samples["s"] <= 512
    seconds = np.where(product, [[1.0], [2.0]], [[2.0], [1.0]])
    leaves = Tree(Splits.of(samples, ()), Losses.of(seconds, 0.02)).leaves()
    assert [(leaf.who, str(regions([leaf.path]))) for leaf in leaves] == [
        (0, "((b*s <= 512,),)"),
        (1, "((b*s > 512,),)"),
    ]
    b, s = symbol("b"), symbol("s")
    condition = Condition(5 * b, s)
    given_mask = condition.holds(samples)
    assert given_mask.tolist() == (5 * samples["b"] < samples["s"]).tolist()
    seconds = np.where(given_mask, [[1.0], [2.0]], [[2.0], [1.0]])
    leaves = Tree(Splits.of(samples, [condition]), Losses.of(seconds, 0.02)).leaves()
    assert [(leaf.who, leaf.path) for leaf in leaves] == [(0, ((condition, True),)), (1, ((condition, False),))]


def test_regions_next_to_each_other_are_one() -> None:
    s, b = symbol("s"), symbol("b")
    low, high, side = Condition(s, sympy.Integer(8), True), Condition(s, sympy.Integer(64), True), Condition(b, s)
    paths = [((high, True), (low, True), (side, True)), ((high, True), (low, False), (side, True))]
    assert regions(paths) == ((sympy.Lt(b, s), sympy.Le(s, 64)),)
    assert len(regions([paths[0], ((high, False), (side, True))])) == 2


def test_roundest() -> None:
    assert [roundest(*p) for p in ((3, 20), (16, 18), (17, 18), (100, 140), (511, 512))] == [16, 16, 17, 128, 511]
