"""A softmax over two axes in one pass: what is over one of them lies in a tile, and the shift is one of all of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from cpu_batch import Case, run_batch
from interpreting import InterpreterPool, InterpretJob
from sgraph_programs import program, task
from sgraph_simulator import simulate

from prism.backends.cpu.support import find_compiler
from prism.backends.triton.emit import emit_module
from prism.cost.constraints import RoleBounds
from prism.egraph.language import Budget
from prism.egraph.worker import Worker
from prism.errors import IllegalIRError
from prism.generate.enumerate import Bounds, generate
from prism.generate.options import Over, options
from prism.ir import kit
from prism.program.build import add, const, div, mul, op, position, read, reduce, sub
from prism.program.evaluate import evaluate
from prism.program.index import Axis
from prism.program.inline import inline
from prism.program.nodes import Expr, Program, ReduceKind
from prism.sgraph import spec
from prism.sgraph.config import Config
from prism.sgraph.denote import denote
from prism.sgraph.nodes import Accumulate, Contract, Loop, LoopRole, SGraph, Stmt, TileReduce, Whole

R, P, B, D, E = Axis("r", 6), Axis("p", 7), Axis("b", 4), Axis("d", 3), Axis("e", 5)
WIDE = Bounds(
    max_kernels=1,
    max_families=400,
    per_kernel=40,
    per_plan=60,
    max_sgraphs=60,
    off=frozenset({"dominated", "worse"}),
    roles=RoleBounds(short=4),
)
SHAPES = {"q": (6, 3), "k": (7, 4, 3), "v": (7, 4, 5)}


def scores() -> Expr:
    """Of the first rows the first pages are masked, of the last ones everything is."""
    s = reduce("sum", D, mul(read("q", R, D), read("k", P, B, D)))
    return op("where", op("lt", add(position(R), const(5)), add(position(P), position(B))), s, const(-inf))


def softmax(largest: Callable[[Expr], Expr]) -> Program:
    s = scores()
    e = op("exp", sub(s, largest(s)))
    total = reduce("sum", (P, B), e)
    o = div(reduce("sum", (P, B), mul(e, read("v", P, B, E))), total)
    return program("p", SHAPES, {"o": ((R, E), o)})


def over_both() -> Program:
    return softmax(lambda s: reduce("max", (P, B), s))


def drawn() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {n: rng.standard_normal(s) for n, s in SHAPES.items()}


def one_pass(g: SGraph) -> bool:
    """Whether one loop has the maximum and both sums that it rescales, over both axes."""
    loops = [s for k in g.kernels for s in k.statements() if isinstance(s, Loop)]
    whole = [a.extent for k in g.kernels for a, role in k.roles if isinstance(role, Whole)]
    rescaled = [s for loop in loops for s in loop.body if isinstance(s, Accumulate) and s.shift is not None]
    return len(loops) == 1 and loops[0].axis.extent == P.extent and B.extent in whole and len(rescaled) == 2


@pytest.fixture(scope="module")
def found() -> list[SGraph]:
    mine = [c.sgraph for c in generate(task(over_both()), WIDE).candidates if one_pass(c.sgraph)]
    assert mine
    return mine


def over(p: Program) -> list[set[object]]:
    """The extents that the rescaled sums of a program are over, where they are over several axes."""
    every = [c for choices in options(task(p).classes).values() for c in choices if c.op == "rescaled"]
    return [{a.extent for a in c.payload.axes} for c in every if isinstance(c.payload, Over)]


def test_only_a_maximum_over_both_axes_is_such_a_shift() -> None:
    assert over(over_both()) == [{P.extent, B.extent}] * 2
    wrong: list[Callable[[Expr], Expr]] = [
        lambda s: reduce("max", B, s),
        lambda s: reduce("max", P, s),
        lambda s: reduce("min", (P, B), s),
        lambda s: reduce("max", P, reduce("min", B, s)),
        lambda s: reduce("max", P, reduce("sum", B, s)),
        lambda s: reduce("max", R, reduce("max", P, s)),
    ]
    assert [over(softmax(largest)) for largest in wrong] == [[]] * len(wrong)


def test_tiles_of_any_length_give_the_same(found: list[SGraph]) -> None:
    choose, given = random.Random(0), drawn()
    wanted = evaluate(over_both(), given)["o"]
    assert np.isnan(wanted).any(1).tolist() == [False] * 4 + [True] * 2
    for g in found:
        spec.check(g)
        binding = {s.name: choose.choice((1, 2, 3, 8)) for s in g.symbols}
        with np.errstate(all="ignore"):
            got = simulate(g, given, binding)["o"]
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9, err_msg=str(binding))


def test_kernels_do_both(found: list[SGraph], interpreter: InterpreterPool, tmp_path: Path) -> None:
    given = {n: a.astype(np.float32) for n, a in drawn().items()}
    wanted = evaluate(over_both(), given)["o"]
    g = found[0]
    made = [given[t.name] for t in g.inputs]
    source = emit_module(g, formula="pages", configs={})
    path = tmp_path / "m.py"
    path.write_text(source.text)
    jobs = []
    for size in (1, 2, 8):
        config = Config(
            {s.name: size for s in g.symbols}, dict.fromkeys(source.kernels, 4), dict.fromkeys(source.kernels, 2)
        )
        jobs.append(InterpretJob(path, source.entry, tuple(made), ("float32",) * len(made), config))
    answers: list[np.ndarray] = []
    for result in interpreter.run_many(jobs):
        assert not result.error
        answers += result.outputs
    if find_compiler() is not None:
        cases = [Case(g, {s.name: size for s in g.symbols}, made) for size in (1, 3, 8)]
        answers += [a for outputs in run_batch(cases, tmp_path) for a in outputs]
    for answer in answers:
        np.testing.assert_allclose(answer, wanted, rtol=0, atol=2e-5)


def changed(g: SGraph, change: Callable[[Stmt], Stmt]) -> SGraph:
    return replace(g, kernels=tuple(replace(k, body=kit.rewrite(k.body, change)) for k in g.kernels))


def in_turn(g: SGraph) -> SGraph:
    """The axis that lies in a tile in tiles one after another, too: each has a shift of its own."""
    kernels = []
    for k in g.kernels:
        roles = tuple((a, LoopRole(2) if a.extent == B.extent else role) for a, role in k.roles)
        kernels.append(replace(k, roles=roles))
    return replace(g, kernels=tuple(kernels))


def wrong_sums(s: Stmt) -> Stmt:
    """Sums over what is in the tile are maxima."""
    mine = isinstance(s, TileReduce) and s.axis.extent == B.extent and s.kind is ReduceKind.SUM
    return replace(s, kind=ReduceKind.MAX) if mine and isinstance(s, TileReduce) else s


def least(s: Stmt) -> Stmt:
    """The shift is over what is least in a tile."""
    mine = isinstance(s, TileReduce) and s.axis.extent == B.extent and s.kind is ReduceKind.MAX
    return replace(s, kind=ReduceKind.MIN) if mine and isinstance(s, TileReduce) else s


def twice_the_factor(s: Stmt) -> Stmt:
    """Exponentials that are squared, and so fall by twice the shift."""
    mine = isinstance(s, Contract) and s.axis.extent == B.extent
    return replace(s, rhs=s.lhs) if mine and isinstance(s, Contract) else s


@pytest.mark.parametrize("of", [wrong_sums, least, twice_the_factor], ids=lambda f: f.__name__)
def test_what_is_not_rescaled_by_the_shift_is_not_proved(
    found: list[SGraph], of: Callable[[Stmt], Stmt], worker: Worker
) -> None:
    worker.explore(tuple(f.expr for f in inline(over_both())), Budget())
    assert worker.prove([denote(found[0]).outputs])[0]
    wrong = changed(found[0], of)
    assert wrong != found[0]
    try:
        spec.check(wrong)
        outputs = denote(wrong).outputs
    except IllegalIRError:
        return
    assert not worker.prove([outputs])[0]


def test_an_axis_in_tiles_one_after_another_is_none_of_a_tile(found: list[SGraph]) -> None:
    with pytest.raises(IllegalIRError):
        denote(in_turn(found[0]))
