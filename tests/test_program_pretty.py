"""Formulas as a person writes them."""

from __future__ import annotations

from prism.program.build import add, const, div, mean, mul, neg, op, position, read, recip, reduce, sub
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Expr, Formula, Tensor
from prism.program.pretty import formula_text

M, K = Axis("m", 8), Axis("k", 512)
N = Axis("n", 8)


def show(expr: Expr, *axes: Axis) -> str:
    return formula_text(
        Formula(Tensor("y", tuple(a.extent for a in axes), DType.FLOAT32), tuple(map(Index.axis, axes)), expr)
    )


def test_quotients_and_differences() -> None:
    x, y = read("x", M), read("y", M)
    assert show(sub(x, y), M) == "y[m] = x[m] - y[m]"
    assert show(div(x, add(y, const(1.0))), M) == "y[m] = x[m]/(y[m] + 1)"
    assert show(neg(mul(x, add(x, y))), M) == "y[m] = -(x[m]*(x[m] + y[m]))"
    assert show(mul(x, neg(y)), M) == "y[m] = x[m]*-y[m]"
    assert show(recip(mul(x, y)), M) == "y[m] = 1/(x[m]*y[m])"
    assert show(sub(x, sub(y, x)), M) == "y[m] = x[m] - (y[m] - x[m])"


def test_a_mean_is_a_sum_over_its_length() -> None:
    assert show(mean(K, read("x", M, K)), M) == "y[m] = sum_k(x[m, k])/512"


def test_choices_and_comparisons() -> None:
    causal = op("where", op("le", position(N), position(M)), read("s", M, N), const(float("-inf")))
    assert show(causal, M, N) == "y[m, n] = s[m, n] if n <= m else -inf"
    assert show(mul(causal, const(2.0)), M, N) == "y[m, n] = (s[m, n] if n <= m else -inf)*2"


def test_what_is_used_twice_gets_a_name_with_its_axes() -> None:
    p = op("exp", sub(read("x", M, K), reduce("max", K, read("x", M, K))))
    text = show(div(p, reduce("sum", K, p)), M, K)
    assert text == "y[m, k] = t1[m, k]/sum_k(t1[m, k])\n    t1[m, k] = exp(x[m, k] - max_k(x[m, k]))"


def test_a_scalar_output_has_no_index() -> None:
    assert show(reduce("sum", M, read("x", M))) == "y = sum_m(x[m])"
