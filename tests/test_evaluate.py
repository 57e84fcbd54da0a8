"""The oracle against closed forms in numpy, and against itself through inlining."""

from __future__ import annotations

import time

import numpy as np
import pytest
from formulas import evaluate_formula
from program_random import concat

from prism.errors import ShapeError
from prism.program.build import add, const, div, mean, mul, op, position, read, reduce, size, sub
from prism.program.evaluate import evaluate, evaluate_expr
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import Definition, DType, Expr, Program, Read, Reduce, ReduceKind, Tensor
from prism.program.views import axes_of, reshape_index

F32 = DType.FLOAT32
M, J, K = Axis("i", 3), Axis("j", 4), Axis("k", 5)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def program(inputs: dict[str, tuple[int, ...]], *definitions: tuple[str, tuple[Axis, ...], Expr]) -> Program:
    defined = tuple(Definition(name, axes, expr, F32) for name, axes, expr in definitions)
    return Program("p", tuple(Tensor(n, s, F32) for n, s in inputs.items()), defined, (defined[-1].name,))


def one(expr: Expr, axes: tuple[Axis, ...], **tensors: np.ndarray) -> np.ndarray:
    return evaluate_expr(expr, tensors, {}, axes)


def test_a_large_matmul_is_a_matrix_product() -> None:
    m, k, n = Axis("m", 512), Axis("k", 1024), Axis("n", 768)
    x, w = draw(512, 1024), draw(1024, 768)
    p = program(
        {"x": (512, 1024), "w": (1024, 768)},
        ("y", (m, n), reduce("sum", k, mul(read("x", m, k), const(0.5), read("w", k, n)))),
    )
    start = time.process_time()
    y = evaluate(p, {"x": x, "w": w})["y"]
    assert time.process_time() - start < 5  # element by element it would hold 3 GB and take minutes
    np.testing.assert_allclose(y, 0.5 * x @ w)


def attention() -> tuple[Program, dict[str, np.ndarray], np.ndarray]:
    h, i, j, d, f = Axis("h", 2), Axis("i", 6), Axis("j", 6), Axis("d", 4), Axis("f", 8)
    scores = mul(const(0.5), reduce("sum", d, mul(read("q", h, i, d), read("k", h, j, d))))
    causal = op("where", op("le", position(j), position(i)), scores, const(-np.inf))
    shifted = op("exp", sub(read("s", h, i, j), reduce("max", j, read("s", h, i, j))))
    merged = Read("o", (Index.axis(f).floordiv(4), Index.axis(i), Index.axis(f).mod(4)))
    p = program(
        {"q": (2, 6, 4), "k": (2, 6, 4), "v": (2, 6, 4)},
        ("s", (h, i, j), causal),
        ("p", (h, i, j), div(shifted, reduce("sum", j, shifted))),
        ("o", (h, i, d), reduce("sum", j, mul(read("p", h, i, j), read("v", h, j, d)))),
        ("r", (i, f), merged),
    )
    q, k, v = (draw(2, 6, 4, seed=s) for s in range(3))
    s = np.where(np.tril(np.ones((6, 6))) > 0, q @ k.swapaxes(1, 2) * 0.5, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return p, {"q": q, "k": k, "v": v}, (e / e.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(6, 8)


def test_causal_attention_with_merged_heads() -> None:
    p, inputs, expected = attention()
    np.testing.assert_allclose(evaluate(p, inputs)["r"], expected, rtol=1e-12)


def test_inlining_attention_preserves_it() -> None:
    p, inputs, expected = attention()
    (formula,) = inline(p)
    assert all(i.is_affine() for i in formula.index)
    np.testing.assert_allclose(evaluate_formula(formula, inputs, {}), expected, rtol=1e-12)


def test_a_row_of_minus_infinity_softmaxes_to_nan_as_in_ieee() -> None:
    e = op("exp", sub(read("x", M, J), reduce("max", J, read("x", M, J))))
    x = draw(3, 4)
    x[1] = -np.inf
    x[2, 0] = -np.inf
    y = one(div(e, reduce("sum", J, e)), (M, J), x=x)
    assert np.isnan(y[1]).all()
    assert y[2, 0] == 0
    np.testing.assert_allclose(y[[0, 2]].sum(1), 1)


def test_nan_goes_through_max_and_not_through_the_branch_not_taken() -> None:
    x = draw(3, 4)
    x[0, 2] = np.nan
    assert np.isnan(one(reduce("max", J, read("x", M, J)), (M,), x=x)[0])
    taken = op("where", op("isnan", read("x", M, J)), const(7), read("x", M, J))
    assert one(taken, (M, J), x=x)[0, 2] == 7


def test_infinity_times_zero_is_nan_in_every_element_of_a_sum() -> None:
    # Taking the infinite factor out of the sum would give inf.
    y = one(reduce("sum", J, mul(read("a", M), read("x", M, J))), (M,), a=np.array([np.inf, 1, 2]), x=np.eye(3, 4))
    assert np.isnan(y[0])
    np.testing.assert_array_equal(y[1:], [1, 2])


def test_a_sum_over_an_axis_that_is_not_mentioned_is_its_extent_times() -> None:
    x = draw(3)
    np.testing.assert_allclose(one(reduce("sum", (J, K), read("x", M)), (M,), x=x), 20 * x)
    np.testing.assert_allclose(one(Reduce(ReduceKind.PROD, J, read("x", M)), (M,), x=x), x**4)
    np.testing.assert_allclose(one(reduce("max", J, read("x", M)), (M,), x=x), x)
    assert one(reduce("sum", J, const(3)), ()) == 12


def test_one_value_as_a_factor_twice() -> None:
    x = read("x", M, J)
    a = draw(3, 4)
    np.testing.assert_allclose(one(reduce("sum", J, mul(x, x)), (M,), x=a), (a * a).sum(1))
    np.testing.assert_allclose(one(reduce("sum", (M, J), mul(x, x, x)), (), x=a), (a**3).sum())


def test_three_factors_contract_pairwise() -> None:
    a, b, c = draw(3, 4), draw(4, 5), draw(5, 6)
    m = Axis("m", 6)
    expr = reduce("sum", (J, K), mul(read("a", M, J), read("b", J, K), read("c", K, m)))
    np.testing.assert_allclose(one(expr, (m, M), a=a, b=b, c=c), (a @ b @ c).T)


def test_an_inner_reduction_may_reuse_the_outer_name() -> None:
    inner = reduce("sum", J, read("x", M, J))
    x = draw(3, 4)
    expected = (x * x.sum(1, keepdims=True)).sum(1)
    np.testing.assert_allclose(one(reduce("sum", J, mul(read("x", M, J), inner)), (M,), x=x), expected)


def test_diagonal_flip_stride_and_window() -> None:
    x = draw(9, 9)
    w = Axis("w", 3)
    np.testing.assert_array_equal(one(read("x", M, M), (M,), x=x), np.diag(x)[:3])
    flipped = Index.axis(J).scaled(-1) + 8
    np.testing.assert_array_equal(one(read("x", 2, flipped), (J,), x=x), x[2, :4:-1])
    strided = Index.axis(J).scaled(2) + 1
    np.testing.assert_array_equal(one(read("x", strided, 0), (J,), x=x), x[1::2, 0])
    window = reduce("sum", w, read("x", M, Index.axis(J) + Index.axis(w)))
    np.testing.assert_allclose(one(window, (M, J), x=x), x[:3, :4] + x[:3, 1:5] + x[:3, 2:6])


def test_a_concatenation_reads_nothing_outside_its_parts() -> None:
    parts = [Tensor("a", (3, 2), F32), Tensor("b", (3, 1), F32), Tensor("c", (3, 4), F32)]
    axes = axes_of((3, 7))
    a, b, c = draw(3, 2), draw(3, 1), draw(3, 4)
    joined = one(concat(parts, axes, 1), axes, a=a, b=b, c=c)
    np.testing.assert_array_equal(joined, np.concatenate([a, b, c], 1))


@pytest.mark.parametrize(
    ("old", "new"), [((4, 6), (24,)), ((24,), (2, 3, 4)), ((2, 3, 4), (6, 4)), ((4, 6), (6, 4)), ((1, 4, 1), (2, 1, 2))]
)
def test_a_reshape_keeps_row_major_order(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    axes, x = axes_of(new), draw(*old)
    np.testing.assert_array_equal(one(Read("x", reshape_index(old, axes)), axes, x=x), x.reshape(new))


def test_pointwise_functions() -> None:
    x = np.array([-2.5, -0.5, 0.0, 0.5, 1.5, 800.0])
    a = Axis("a", 6)
    from math import atan, erf

    expected = {
        "erf": [erf(v) for v in x],
        "round": [-2, 0, 0, 0, 2, 800],
        "atan": [atan(v) for v in x],
        "sigmoid": 1 / (1 + np.exp(-x)),
        "recip": [-0.4, -2, np.inf, 2, 2 / 3, 1 / 800],
        "sign": [-1, -1, 0, 1, 1, 1],
        "not": [0, 0, 1, 0, 0, 0],
    }
    for name, want in expected.items():
        np.testing.assert_allclose(one(op(name, read("x", a)), (a,), x=x), want, rtol=1e-15)


def test_symbols_are_bound_from_the_shapes() -> None:
    n = symbol("n")
    i, r = Axis("i", n), Axis("r", n)
    p = Program(
        "p",
        (Tensor("x", (n, 2 * n), F32), Tensor("y", (n,), F32)),
        (Definition("z", (i,), add(mean(r, read("y", r)), mul(size(n), read("x", i, Index.axis(i).scaled(2)))), F32),),
        ("z",),
    )
    x, y = draw(3, 6), draw(3)
    np.testing.assert_allclose(evaluate(p, {"x": x, "y": y})["z"], y.mean() + 3 * x[range(3), range(0, 6, 2)])
    with pytest.raises(ShapeError, match="input x"):
        evaluate(p, {"x": draw(3, 5), "y": y})
    with pytest.raises(ShapeError, match="input y"):
        evaluate(p, {"x": x, "y": draw(4)})
    with pytest.raises(ShapeError, match="2 dimensions"):
        evaluate(p, {"x": x, "y": x})
    with pytest.raises(ShapeError, match="input y is missing"):
        evaluate(p, {"x": x})


def test_weights_stand_in_for_inputs_that_are_not_given() -> None:
    p = Program(
        "p",
        (Tensor("x", (3,), F32), Tensor("w", (3,), F32)),
        (Definition("y", (M,), mul(read("x", M), read("w", M)), F32),),
        ("y",),
        weights={"w": np.array([1, 2, 3], dtype=np.float32)},
    )
    np.testing.assert_array_equal(evaluate(p, {"x": np.ones(3)})["y"], [1, 2, 3])
    np.testing.assert_array_equal(evaluate(p, {"x": np.ones(3), "w": np.zeros(3)})["y"], [0, 0, 0])
