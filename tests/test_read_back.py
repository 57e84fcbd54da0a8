"""An output, or a slice of what is stored, that another kernel reads back instead of computing it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cpu_batch import Case, run_batch
from interpreting import InterpreterPool, InterpretJob
from sgraph_programs import program, task
from sgraph_simulator import simulate

from prism.backends.cpu.support import find_compiler
from prism.backends.triton.emit import emit_module
from prism.generate.enumerate import Bounds, generate
from prism.generate.forms import forms
from prism.generate.materialise import Cut, Planner
from prism.generate.options import Weights, Within, options
from prism.generate.places import Slices
from prism.program.build import add, const, mul, op, read, reduce
from prism.program.evaluate import evaluate
from prism.program.index import Axis, Index
from prism.program.nodes import Expr, Program
from prism.sgraph.config import Config
from prism.sgraph.nodes import Load, SGraph
from prism.sgraph.spec import check

M, K, N, H = Axis("m", 6), Axis("k", 24), Axis("n", 10), Axis("h", 4)
SHAPES: dict[str, tuple[int, ...]] = {"x": (6, 24), "w": (24, 10)}


def product(columns: Index) -> Expr:
    """x @ w at some columns."""
    return reduce("sum", K, mul(read("x", M, K), read("w", K, columns)))


def half() -> Program:
    """A product, and the sum of squares of its columns 5 to 8."""
    part = product(Index.axis(H) + 5)
    return program(
        "half",
        SHAPES,
        {"y": ((M, N), product(Index.axis(N))), "s": ((M,), reduce("sum", H, mul(part, part)))},
    )


def gated() -> Program:
    """A product that is stored, and what becomes of it and its softmax's numerator: all of y is read back."""
    y = op("tanh", product(Index.axis(N)))
    e = op("exp", add(y, mul(const(-1.0), reduce("max", N, y))))
    return program("gated", SHAPES, {"y": ((M, N), y), "p": ((M, N), e)})


def turned() -> Program:
    """What `gated` stores is stored the other way round as well: it is read back from where it lies as it is named."""
    y = op("tanh", product(Index.axis(N)))
    e = op("exp", add(y, mul(const(-1.0), reduce("max", N, y))))
    return program("turned", SHAPES, {"y": ((M, N), y), "t": ((N, M), y), "p": ((M, N), e)})


def reading(g: SGraph) -> list[str]:
    """The outputs that kernels load."""
    made = {t.name for t in g.outputs}
    return [s.tensor for k in g.kernels for s in k.statements() if isinstance(s, Load) and s.tensor in made]


def products(g: SGraph) -> int:
    """How often w is multiplied."""
    return sum(isinstance(s, Load) and s.tensor == "w" for k in g.kernels for s in k.statements())


def read_back(p: Program) -> list[SGraph]:
    found = [c.sgraph for c in generate(task(p), Bounds(max_kernels=2)).candidates]
    return [g for g in found if reading(g)]


@pytest.mark.parametrize("make", [half, gated, turned])
def test_what_is_read_back_is_computed_once(make: Callable[[], Program]) -> None:
    p = make()
    found = read_back(p)
    assert found
    rng = np.random.default_rng(1)
    given = {t.name: rng.normal(size=[int(e) for e in t.shape]) for t in p.inputs}
    wanted = evaluate(p, given)
    for g in found:
        check(g)
        assert products(g) == 1
        assert not [t for t in g.buffers if "part" not in t.name]
        for size in (1, 4, 16):
            got = simulate(g, given, {s.name: size for s in g.symbols})
            for name, value in wanted.items():
                np.testing.assert_allclose(got[name], value, rtol=1e-9, atol=1e-9)


def test_backends_write_an_output_before_they_read_it(interpreter: InterpreterPool, tmp_path: Path) -> None:
    p = half()
    g = next(g for g in read_back(p) if len(g.kernels) == 2)
    rng = np.random.default_rng(2)
    given = [rng.standard_normal(SHAPES[t.name]).astype(np.float32) for t in g.inputs]
    wanted = evaluate(p, {t.name: a for t, a in zip(g.inputs, given, strict=True)})
    symbols = {s.name: 16 for s in g.symbols}
    if find_compiler() is not None:
        (got,) = run_batch([Case(g, symbols, given)], tmp_path)
        for t, a in zip(g.outputs, got, strict=True):
            np.testing.assert_allclose(a, wanted[t.name], rtol=1e-5, atol=1e-5)
    source = emit_module(g, formula="half", configs={})
    path = tmp_path / "half.py"
    path.write_text(source.text)
    config = Config(symbols, dict.fromkeys(source.kernels, 4), dict.fromkeys(source.kernels, 2))
    job = InterpretJob(path, source.entry, tuple(given), ("float32",) * 2, config)
    (answer,) = interpreter.run_many([job])
    assert not answer.error
    for t, a in zip(g.outputs, answer.outputs, strict=True):
        np.testing.assert_allclose(a, wanted[t.name], rtol=1e-4, atol=1e-4)


def slices_of(p: Program) -> list[tuple[Index, ...]]:
    """Where the first output holds what others compute."""
    t = task(p)
    (form,) = forms(t.classes, options(t.classes, frozenset(), Counter()), Weights(t.classes, {}), 1).found
    found = Slices(form.choices, t.classes, list(form.choices))
    return [at for _, at in found.of(t.classes.roots[0], t.formulas[0].index)]


def second(expr: Expr, *axes: Axis) -> Program:
    return program("p", {**SHAPES, "v": (24, 10)}, {"y": ((M, N), product(Index.axis(N))), "z": (axes, expr)})


def test_slices_are_found_at_their_place() -> None:
    (at,) = slices_of(half())
    assert at[0] == task(half()).formulas[0].index[0]
    assert (at[1].offset, [c for _, c in at[1].terms]) == (5, [1])


def test_every_second_column_is_a_slice() -> None:
    (at,) = slices_of(second(product(Index.axis(H).scaled(2) + 1), M, H))
    assert (at[1].offset, [c for _, c in at[1].terms]) == (1, [2])


def test_what_differs_is_no_slice() -> None:
    ahead = Index.axis(H) + 5
    other = reduce("sum", K, mul(read("x", M, K), read("v", K, ahead)))
    less = Axis("l", 12)
    shorter = reduce("sum", less, mul(read("x", M, less), read("w", less, ahead)))
    shifted = reduce("sum", less, mul(read("x", M, Index.axis(less) + 12), read("w", less, ahead)))
    beyond = product(Index.axis(H) + 7)
    doubled = mul(const(2.0), product(ahead))
    for expr in (other, shorter, shifted, beyond):
        assert not slices_of(second(expr, M, H)), expr
    # Of a multiple, the product is a slice.
    assert len(slices_of(second(doubled, M, H))) == 1


def test_an_output_that_nothing_else_needs_is_no_cut() -> None:
    def found(p: Program) -> tuple[Cut, ...]:
        t = task(p)
        weights = Weights(t.classes, t.hints)
        (form,) = forms(t.classes, options(t.classes, frozenset(), Counter()), weights, 1).found
        return Planner(t.formulas, t.inputs, Within(form.choices), weights, t.device).all_cuts(Counter())

    roots = set(task(half()).classes.roots)
    assert [c.cls in roots for c in found(half())].count(True) == 1
    alone = second(read("v", K, N), K, N)
    assert not any(c.cls in set(task(alone).classes.roots) for c in found(alone))
