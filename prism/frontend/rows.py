"""What rows of elements are reduced to, under both readers: means, variances, softmaxes, norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from prism.program import build
from prism.program.extents import product
from prism.program.fold import div, node, op, sub
from prism.program.formulas import or_infinite
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Reduce, ReduceKind
from prism.program.prefix import Recurrence, running
from prism.program.sign_analysis import settled
from prism.program.transform import substitute
from prism.program.views import Shape, axes_of

FEW = 4
"""Factors that a product over a row is written out to: the sides of a box, the axes of a shape."""

Row: TypeAlias = Callable[[str], tuple[tuple[Axis, ...], Expr]]
"""Under a prefix of their names, the axes that are reduced, and the element over them."""


def folded(kind: ReduceKind, row: Row, f: Callable[[Expr], Expr] = lambda x: x) -> Expr:
    """The sum, the maximum, ... of f over the row."""
    axes, element = row("r")
    return _written_out(settled(build.reduce(kind, axes, f(element))))


def mean(row: Row, f: Callable[[Expr], Expr] = lambda x: x) -> Expr:
    """The sum of f over the row, divided by the number of its elements."""
    return div(folded(ReduceKind.SUM, row, f), count(row))


def count(row: Row) -> Expr:
    """The number of a row's elements."""
    return build.size(product([a.extent for a in row("r")[0]]))


def grouped(at: Callable[[Sequence[Index]], Expr], shape: Shape, axes: Sequence[Axis], each: int) -> Row:
    """The row of x[n, c, ...] over the group of `each` channels that an element's is in, and all that follows them."""
    first = Index.axis(axes[1]).floordiv(each).scaled(each)

    def row(prefix: str) -> tuple[tuple[Axis, ...], Expr]:
        bound = axes_of((each, *shape[2:]), prefix)
        return bound, at([Index.axis(axes[0]), first + Index.axis(bound[0]), *map(Index.axis, bound[1:])])

    return row


def square(x: Expr) -> Expr:
    """The square x * x."""
    return op("mul", x, x)


def central(row: Row) -> Row:
    """The row of the squares of what elements are above the mean."""
    average = mean(lambda _: row("q"))

    def squares(prefix: str) -> tuple[tuple[Axis, ...], Expr]:
        axes, element = row(prefix)
        return axes, square(sub(element, average))

    return squares


def inverse_root(variance: Expr, eps: float) -> Expr:
    """1 / sqrt(variance + eps)."""
    return op("recip", op("sqrt", op("add", variance, Const(float(eps)))))


def normal(x: Expr, row: Row, eps: float) -> tuple[Expr, Expr, Expr]:
    """The element above its row's mean, over the root of the variance; the mean, and what it is multiplied by."""
    average, inverse = mean(row), inverse_root(mean(central(row)), eps)
    return op("mul", sub(x, average), inverse), average, inverse


def affine(x: Expr, scale: Expr | None, shift: Expr | None) -> Expr:
    """x * scale + shift, those that are given."""
    x = x if scale is None else op("mul", x, scale)
    return x if shift is None else op("add", x, shift)


def softmax(x: Expr, row: Row) -> Expr:
    """exp(x - max) / sum exp(x - max), for the element x of the row."""
    shift, total = _shifted(row)
    return div(op("exp", sub(x, shift)), total)


def log_softmax(x: Expr, row: Row) -> Expr:
    """(x - max) - log sum exp(x - max)."""
    shift, total = _shifted(row)
    return sub(sub(x, shift), op("log", total))


def log_sum_exp(row: Row, *, may_be_infinite: Callable[[Expr], bool]) -> Expr:
    """max + log sum exp(x - max); the maximum where it is infinite, if it may be, as of a row that is all masked."""
    highest, total = _shifted(row)
    return or_infinite(highest, total, may_be_infinite)


def _shifted(row: Row) -> tuple[Expr, Expr]:
    """(max of the row, sum over the row of exp(x - max))."""
    axes, element = row("q")
    highest = build.reduce(ReduceKind.MAX, axes, element)
    return highest, folded(ReduceKind.SUM, row, lambda x: op("exp", sub(x, highest)))


def cumulative(how: Recurrence, row: Row, here: Axis, f: Callable[[Expr], Expr] = lambda x: x) -> Expr:
    """The sum, or the product, of f over the row's places up to `here`: quadratic, and exactly what is meant."""
    (bound,), element = row("r")
    return _written_out(running(how, f(element), bound, here, made=node))


def _written_out(e: Expr) -> Expr:
    """A product over a few places as so many factors: it is no reduction, to which kernels are built."""
    if not (isinstance(e, Reduce) and e.kind is ReduceKind.PROD and e.axis.extent in range(1, FEW + 1)):
        return e
    first, *rest = (_written_out(substitute(e.body, {e.axis: Index.const(n)})) for n in range(int(e.axis.extent)))
    for factor in rest:
        first = op("mul", first, factor)
    return first
