"""Substitution, canonical names and inlining preserve what the interpreter computes."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import sympy
from formulas import evaluate_formula
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program_random import arrays, programs
from quick import examples

from prism.errors import UnsupportedError
from prism.program.build import add, mul, read, reduce
from prism.program.evaluate import evaluate, evaluate_expr
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import Expr, Position, Program, Read, Reduce, free_axes, walk
from prism.program.products import Product, matrix_product, product
from prism.program.spec import check
from prism.program.transform import canonical, least_instance, rename_free, substitute

QUICK = settings(max_examples=examples(50, 150), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(programs(), st.integers(0, 1000))
def test_random_programs_are_legal_and_inlining_preserves_them(program: Program, seed: int) -> None:
    check(program)
    inputs = arrays(program, seed)
    results = evaluate(program, inputs)
    try:
        formulas = inline(program)
    except UnsupportedError:
        return  # a reshape across dimensions that do not factor
    for formula in formulas:
        for e in walk(formula.expr):
            if isinstance(e, Read):
                assert e.tensor in inputs
                assert all(i.is_affine() for i in e.index)
        value = evaluate_formula(formula, inputs, {})
        np.testing.assert_allclose(value, results[formula.tensor.name], rtol=1e-9, atol=1e-12)


@QUICK
@given(programs(), st.integers(0, 1000))
def test_canonical_names_and_renaming_preserve_values(program: Program, seed: int) -> None:
    tensors = arrays(program, seed)
    for d in program.definitions:
        names: dict[Axis, Axis] = {}
        for a in d.axes:
            names[a] = least_instance(a.extent, names.values())
        renamed = canonical(rename_free(d.expr, names))
        axes = tuple(names[a] for a in d.axes)
        assert free_axes(renamed) <= set(axes)
        value = evaluate_expr(d.expr, tensors, {}, d.axes)
        np.testing.assert_allclose(evaluate_expr(renamed, tensors, {}, axes), value, rtol=1e-12)
        assert canonical(renamed) == renamed
        tensors[d.name] = value


@QUICK
@given(programs(), st.integers(0, 1000), st.randoms())
def test_substituting_shifted_swapped_and_clashing_indices(program: Program, seed: int, random: object) -> None:
    """Reading the value at an index equals the value of the substituted expression, whatever the names bound inside."""
    tensors = arrays(program, seed)
    for d in program.definitions:
        value = evaluate_expr(d.expr, tensors, {}, d.axes)
        bound = [e.axis for e in walk(d.expr) if isinstance(e, Reduce)]
        # Free axes are replaced by the names that are bound inside, where they fit: the captures to avoid.
        targets: dict[Axis, Index] = {}
        taken: set[Axis] = set()
        for a in d.axes:
            fitting = [b for b in (*bound, *d.axes) if int(b.extent) <= int(a.extent) and b not in taken]
            b = fitting[0] if fitting else a
            taken.add(b)
            targets[a] = Index.axis(b) + (int(a.extent) - int(b.extent))
        axes = tuple(dict.fromkeys(b for i in targets.values() for b in sorted(i.axes(), key=str)))
        direct = evaluate_expr(substitute(d.expr, targets), tensors, {}, axes)
        through = evaluate_expr(Read("value", tuple(targets[a] for a in d.axes)), {"value": value}, {}, axes)
        np.testing.assert_allclose(direct, through, rtol=1e-12)
        tensors[d.name] = value


def test_substitution_does_not_capture() -> None:
    i, j, k = Axis("i", 3), Axis("j", 3), Axis("k", 3)
    product = reduce("sum", k, mul(read("x", i, k), read("x", j, k)))
    captured = substitute(product, {i: Index.axis(k)})
    assert free_axes(captured) == {j, k}
    x = np.arange(9.0).reshape(3, 3)
    np.testing.assert_allclose(evaluate_expr(captured, {"x": x}, {}, (k, j)), x @ x.T)


def test_programs_that_differ_by_names_alone_have_one_canonical_form() -> None:
    def scores(i: Axis, j: Axis, k: Axis) -> object:
        return canonical(reduce("sum", k, mul(read("x", i, k), read("x", j, k))))

    i, j = Axis("d4", 4), Axis("d4_1", 4)
    assert scores(i, j, Axis("k", 4)) == scores(i, j, Axis("contracted", 4))
    assert scores(i, j, Axis("k", 4)) != scores(j, i, Axis("k", 4))


def test_positions_are_substituted_too() -> None:
    i, j = Axis("i", 3), Axis("j", 3)
    moved = substitute(Position(Index.axis(i)), {i: Index.axis(j).scaled(2) + 1})
    np.testing.assert_array_equal(evaluate_expr(moved, {}, {}, (j,)), [1, 3, 5])


def test_shared_parts_stay_shared_and_cost_once() -> None:
    # 2^60 paths: anything that walks a tree never ends.
    i, j, k = Axis("d3", 3), Axis("d3_1", 3), Axis("k", 3)
    e: Expr = reduce("sum", k, mul(read("x", i, k), read("x", i, k)))
    for n in range(60):
        e = add(e, e) if n % 2 else reduce("max", k, mul(e, mul(e, read("x", i, k))))
    moved = canonical(substitute(e, {i: Index.axis(j)}))
    assert sum(1 for _ in walk(moved)) < 300
    assert free_axes(moved) == {j}
    assert substitute(e, {j: Index.axis(i)}) is e


def test_a_canonical_form_is_canonical() -> None:
    i, k = Axis("d4", 4), Axis("d4_1", 4)
    inner = reduce("sum", i, mul(read("x", i, k), read("y", i)))
    e = reduce("max", k, add(inner, reduce("sum", k, read("x", k, k)), reduce("sum", i, read("z", k))))
    done = canonical(e)
    assert canonical(done) is done
    x, y, z = np.arange(16.0).reshape(4, 4) % 7 - 3, np.arange(4.0) - 1.5, np.array([1.0, -2.0, 0.5, 3.0])
    expected = np.max(x.T @ y + np.trace(x) + 4 * z)
    np.testing.assert_allclose(evaluate_expr(done, {"x": x, "y": y, "z": z}, {}, ()), expected)


def test_the_ends_of_an_index_are_attained() -> None:
    i, j, s = Axis("i", 5), Axis("j", 3), symbol("s")
    index = Index.axis(i).scaled(2) + Index.axis(j).scaled(-4) + 7
    values = [2 * a - 4 * b + 7 for a in range(5) for b in range(3)]
    assert index.ends() == (min(values), max(values))
    assert (Index.axis(Axis("r", s)) + -1).ends() == (-1, s - 2)
    assert Index.axis(i).scaled(s - 3).ends() is None, "of either sign"
    assert Index.axis(i).floordiv(2).ends() is None


@QUICK
@given(
    st.lists(st.tuples(st.integers(2, 6), st.integers(-6, 30)), min_size=1, max_size=3),
    st.integers(0, 40),
    st.integers(2, 25),
)
def test_a_quotient_and_a_remainder_are_those_of_numbers(terms: list[tuple[int, int]], offset: int, by: int) -> None:
    axes = [Axis(f"x{n}", extent) for n, (extent, _) in enumerate(terms)]
    index = Index.const(offset)
    for axis, (_, c) in zip(axes, terms, strict=True):
        index = index + Index.axis(axis).scaled(c)
    found = index.floordiv(by), index.mod(by)
    places = np.meshgrid(*(np.arange(int(a.extent)) for a in axes), indexing="ij")
    whole = sum((c * place for (_, c), place in zip(terms, places, strict=True)), np.array(offset))
    if whole.min() < 0:
        return
    for part, wanted in zip(found, (whole // by, whole % by), strict=True):
        made = evaluate_expr(Position(part), {}, {}, tuple(axes))
        np.testing.assert_array_equal(made, np.broadcast_to(wanted, made.shape))


def test_what_is_shifted_by_its_row_is_affine() -> None:
    """As relative positions are: rows of twice the length, less the first, are read as rows of one less."""
    n = symbol("n")
    for size in (24, n):
        i, j = Axis("i", size), Axis("j", size)
        flat = Index.axis(i).scaled(2 * size - 1) + Index.axis(j)
        # A row of the view [2 n, n] is left out, and [n, 2 n] is what lies there.
        behind = (flat.floordiv(size) + 1).scaled(size) + flat.mod(size)
        assert behind.floordiv(2 * size) == Index.axis(i)
        assert behind.mod(2 * size) == Index.axis(j) + Index.axis(i).scaled(-1) + Index.const(size)


def test_what_is_a_product_of_matrices() -> None:
    b, m, n, k = (Axis(name, 4) for name in "bmnk")
    assert matrix_product({b, m, k}, {b, k, n}, {k}) == Product(*(frozenset({a}) for a in (b, m, n, k)))
    vector = product({m, k}, {k}, {k})
    assert vector is not None
    assert not vector.is_matrix
    assert matrix_product({m, k}, {k}, {k}) is None
    assert product({m}, {k, n}, {k}) is None, "only one factor varies along what is summed"
    assert product({m, k}, {m, k}, {k}) is None, "neither has an axis of its own"


def test_an_axis_is_one_object_wherever_it_comes_from() -> None:
    n = symbol("n")
    for extent in (4, n, 2 * n):
        axis = Axis("i", extent)
        assert Axis("i", extent) is axis
        assert pickle.loads(pickle.dumps(axis)) is axis
        assert copy.deepcopy(axis) is axis
        assert replace(axis, name="j") is Axis("j", extent)
        assert axis not in (Axis("i", 5), Axis("j", extent))
    assert Axis("i", sympy.Integer(4)) is Axis("i", 4)
    assert isinstance(Axis("i", sympy.Integer(7)).extent, int)
