"""ATen's reductions and softmaxes, as formulas with their reductions written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from prism.frontend import order
from prism.frontend.order import place_of_extreme
from prism.frontend.rows import Row, central, count, cumulative, folded, log_softmax, log_sum_exp, mean, softmax
from prism.frontend.torch.values import Handler, Node, Result, TorchValue, converted, is_truth
from prism.program import build
from prism.program.fold import div, op, sub, truth
from prism.program.formulas import power
from prism.program.index import Axis, Index
from prism.program.integers import Interval
from prism.program.nodes import Const, DType, Expr, ReduceKind
from prism.program.prefix import Recurrence
from prism.program.sign_analysis import settled
from prism.program.views import axes_of, broadcast_shapes


def dimensions(rank: int, dims: int | Sequence[int] | None) -> list[int]:
    """Dimensions as torch gives them (negative from the end; none or no list: all), in increasing order."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return list(range(rank))
    return sorted(d % max(rank, 1) for d in ([dims] if isinstance(dims, int) else dims)) if rank else []


def along(x: TorchValue, dims: Sequence[int], axes: Sequence[Axis]) -> Row:
    """The row of these dimensions, the others under the axes, of which there is one for each dimension."""

    def row(prefix: str) -> tuple[tuple[Axis, ...], Expr]:
        bound = {d: Axis(f"{prefix}{d}", x.shape[d]) for d in dims}
        return tuple(bound.values()), x.at([Index.axis(bound.get(d, a)) for d, a in enumerate(axes)])

    return row


class Reduction:
    """The axes of a reduction of `x` over `dims`: those of the result, and those that are bound.

    Attributes:
        axes: the result's axes, one per dimension of the result.
        row: what is reduced.
        bound: the axes that the reduction binds.
        element: of x, under the result's and the bound axes.
    """

    def __init__(self, x: TorchValue, dims: Sequence[int], keepdim: bool) -> None:
        self._x = x
        kept = [d for d in range(len(x.shape)) if keepdim or d not in dims]
        self.axes = axes_of([1 if d in dims else x.shape[d] for d in kept])
        own = dict(zip(kept, self.axes, strict=True))
        self._own = [own.get(d, Axis("none", 1)) for d in range(len(x.shape))]
        self._dims = dims
        self.row = along(x, dims, self._own)
        self.bound, self.element = self.row("r")

    def at(self, bound: Sequence[Axis]) -> Expr:
        """The element of x under the result's axes and these in the reduced dimensions."""
        inner = dict(zip(self._dims, bound, strict=True))
        return self._x.at([Index.axis(inner.get(d, a)) for d, a in enumerate(self._own)])


def _reduction(n: Node) -> Reduction:
    x: TorchValue = n["self"]
    return Reduction(x, dimensions(len(x.shape), n.get("dim")), bool(n.get("keepdim", False)))


def _folded(kind: ReduceKind, n: Node) -> Result:
    """A reduction of the elements, cast to the result's type first."""
    r = _reduction(n)
    n.settled("dtype")
    return n.define(folded(kind, r.row, lambda x: converted(n, x, n.dtype)), r.axes)


def _extreme(kind: ReduceKind, n: Node) -> Result:
    """max.dim and min.dim give (values, positions); without a dim, or with another tensor, only values."""
    if n.has("other"):
        name = "maximum" if kind is ReduceKind.MAX else "minimum"
        return n.define(op(name, n["self"].under(n.axes), n["other"].under(n.axes)))
    r = _reduction(n)
    values = n.define(build.reduce(kind, r.bound, r.element), r.axes)
    return values if len(n.shapes) == 1 else (values, _place(n, r, kind, result=1))


def _place(n: Node, r: Reduction, kind: ReduceKind, result: int = 0) -> TorchValue:
    """Where the extreme is, and the first of them where there are several."""
    x: TorchValue = n["self"]
    expr = place_of_extreme(kind, r.at, r.bound, floats=x.dtype.is_float)
    within = n.bounds(count(r.row))
    return n.define(expr, r.axes, result=result, bounds=Interval(0.0, max(within.high - 1.0, 0.0), whole=True))


def _place_of(kind: ReduceKind, n: Node) -> Result:
    """argmax and argmin; without a dimension the place among all elements, row by row."""
    return _place(n, _reduction(n), kind)


def _mean(n: Node) -> Result:
    r = _reduction(n)
    n.settled("dtype")  # of floating point
    return n.define(mean(r.row), r.axes)


def _variance(n: Node, r: Reduction) -> Expr:
    correction, unbiased = n.get("correction"), n.get("unbiased", True)
    if correction is None:
        correction = 1 if unbiased else 0
    divisor = op("add", count(r.row), Const(-float(correction)))
    if isinstance(divisor, Const) and divisor.value <= 0:
        raise n.unsupported("so few elements have no variance: it is NaN", "average over more, or with correction=0")
    return div(folded(ReduceKind.SUM, central(r.row)), divisor)


def _spread(made: Callable[[Expr], Expr], n: Node) -> Result:
    """What is made of the variance."""
    r = _reduction(n)
    return n.define(made(_variance(n, r)), r.axes)


def _var_mean(n: Node) -> Result:
    r = _reduction(n)
    average = n.define(mean(r.row), r.axes, result=1)
    return n.define(_variance(n, r), r.axes, result=0), average


def _norm(n: Node) -> Result:
    r = _reduction(n)
    n.settled("dtype")  # of floating point
    order = n.get("ord", n.get("p"))
    return n.define(_normed(r.bound, r.element, 2.0 if order is None else float(order)), r.axes)


def _normed(bound: tuple[Axis, ...], element: Expr, p: float) -> Expr:
    """The p-norm of an element over the bound axes."""
    x = op("abs", element)
    if math.isinf(p):
        return build.reduce(ReduceKind.MAX if p > 0 else ReduceKind.MIN, bound, x)
    if p == 0:
        return build.reduce(ReduceKind.SUM, bound, op("where", truth(x), Const(1.0), Const(0.0)))
    if p == 1:
        return build.reduce(ReduceKind.SUM, bound, x)
    base = element if p % 2 == 0 else x
    return power(build.reduce(ReduceKind.SUM, bound, power(base, Const(p))), Const(1 / p))


def _dist(n: Node) -> Result:
    """The norm of a difference."""
    one, other = n["self"], n["other"]
    bound = axes_of(broadcast_shapes(one.shape, other.shape, where=n.origin), "r")
    return n.define(_normed(bound, sub(one.under(bound), other.under(bound)), float(n["p"])))


def _distances(n: Node) -> Result:
    """Of each row of one matrix to each of another."""
    one, other = n["x1"], n["x2"]
    n.settled("compute_mode")
    *batch, i, j = n.axes
    k = Axis("k", one.shape[-1])
    difference = sub(one.under((*batch, i, k)), other.under((*batch, j, k)))
    return n.define(_normed((k,), difference, float(n["p"])))


def _distances_backward(n: Node) -> Result:
    """The gradient of the first matrix; of equal rows the distance has none, and torch takes 0."""
    p = float(n["p"])
    if p not in (1.0, 2.0):
        raise n.unsupported("the gradient of distances other than of 1 and 2 is not translated")
    *batch, i, k = n.axes
    j = Axis("j", n["x2"].shape[-2])
    difference = sub(n["x1"].under((*batch, i, k)), n["x2"].under((*batch, j, k)))
    apart = n["cdist"].under((*batch, i, j))
    slope = op("sign", difference) if p == 1.0 else div(difference, apart)
    slope = op("where", op("eq", apart, Const(0.0)), Const(0.0), slope)
    return n.define(build.reduce(ReduceKind.SUM, j, op("mul", n["grad"].under((*batch, i, j)), slope)))


def _any_all(kind: ReduceKind, n: Node) -> Result:
    x: TorchValue = n["self"]
    none = n.get("dim") == []  # of these two alone no dimensions are not all
    r = Reduction(x, [] if none else dimensions(len(x.shape), n.get("dim")), bool(n.get("keepdim", False)))
    element = r.element if is_truth(x) else truth(r.element)
    return n.define(settled(build.reduce(kind, r.bound, element)), r.axes)


def _cumulative(kind: ReduceKind, n: Node) -> Result:
    """The sum or the product of the elements up to each place."""
    x: TorchValue = n["self"]
    n.settled("dtype")
    d = n["dim"] % max(len(x.shape), 1)
    if not x.shape:
        return n.define(converted(n, x.at([]), n.dtype))
    row, how = along(x, [d], n.axes), Recurrence(kind)
    return n.define(cumulative(how, row, n.axes[d], lambda element: converted(n, element, n.dtype)))


def _up_to(n: Node) -> tuple[Callable[[Axis], Expr], Axis, Callable[[Axis], Expr]] | None:
    """(the element under an axis in place of a dimension, an axis to bind, whether it is not after the element's).

    None where there is no dimension.
    """
    x: TorchValue = n["self"]
    d = n["dim"] % max(len(x.shape), 1)
    if not x.shape:
        return None

    def at(a: Axis) -> Expr:
        return x.at([Index.axis(a if k == d else b) for k, b in enumerate(n.axes)])

    return at, Axis("r", x.shape[d]), lambda a: op("le", build.position(a), build.position(n.axes[d]))


def _running(n: Node, kind: ReduceKind, at: Callable[[Axis], Expr], bound: Axis, up_to: Callable[[Axis], Expr]) -> Expr:
    """The extreme of the elements up to each place."""
    # Of whole numbers there is no infinite one.
    beyond = Const(kind.identity) if n["self"].dtype.is_float else n["self"].under(n.axes)
    return build.reduce(kind, bound, op("where", up_to(bound), at(bound), beyond))


def _cumulative_extreme(kind: ReduceKind, n: Node) -> Result:
    """The extreme up to each place, and the last place of those that are it."""
    found = _up_to(n)
    if found is None:
        return n["self"], n.define(Const(0.0), result=1)
    at, bound, up_to = found
    inner = Axis("q", bound.extent)
    highest = _running(n, kind, at, inner, up_to)
    met = op("or", op("eq", at(bound), highest), op("isnan", at(bound)))
    place = op("where", op("and", up_to(bound), met), build.position(bound), Const(-1.0))
    return n.results(
        lambda: n.define(_running(n, kind, at, bound, up_to), result=0),
        lambda: n.define(build.reduce(ReduceKind.MAX, bound, place), result=1),
    )


def _log_cumulative_sum(n: Node) -> Result:
    found = _up_to(n)
    if found is None:
        same: TorchValue = n["self"]
        return same
    at, bound, up_to = found
    highest = _running(n, ReduceKind.MAX, at, Axis("q", bound.extent), up_to)
    terms = op("where", up_to(bound), op("exp", sub(at(bound), highest)), Const(0.0))
    return n.define(op("add", highest, op("log", build.reduce(ReduceKind.SUM, bound, terms))))


def _top(n: Node) -> Result:
    """The largest elements, or the smallest, and where they are."""
    x: TorchValue = n["self"]
    many, largest = n["k"], n["largest"]
    if many == 1:
        n.settled("sorted")
        kind = ReduceKind.MAX if largest else ReduceKind.MIN
        r = Reduction(x, dimensions(len(x.shape), n["dim"]), keepdim=True)
        return n.results(
            lambda: n.define(build.reduce(kind, r.bound, r.element), r.axes),
            lambda: n.granted(_place(n, r, kind, result=1), order.TIES_ASSUMED),
        )
    unsorted = () if n["sorted"] else (order.UNSORTED_ASSUMED,)
    row = _Row(n, largest=bool(largest))
    wanted = build.position(n.axes[row.dimension])
    return n.results(
        lambda: n.granted(row.results(n.axes, wanted, places=False), *unsorted),
        lambda: n.granted(row.results(n.axes, wanted, places=True), *unsorted, order.TIES_ASSUMED),
    )


class _Row:
    """A dimension in its order."""

    def __init__(self, n: Node, *, largest: bool) -> None:
        if not n.has("dim"):
            raise n.unsupported("it orders all elements", "flatten the tensor, and name the dimension")
        self._n = n
        self._x: TorchValue = n["self"]
        shape = self._x.shape
        self.dimension = n["dim"] % max(len(shape), 1)  # which one
        if not shape or not order.short(shape[self.dimension]):
            raise n.unsupported(order.TOO_LONG if shape else "a number has no order")
        self.bound = Axis("r", shape[self.dimension])  # an axis to bind, for the elements of a row
        own = axes_of(shape)
        at = self._under(self._x, own)
        expr = order.rank(at, own[self.dimension], largest=largest, floats=self._x.dtype.is_float)
        self._places = n.bounds(build.position(self.bound))
        self._ranks = n.builder.define(f"{n.name}_rank", own, expr, DType.INT64, n.origin, bounds=self._places)

    def _under(self, value: TorchValue, axes: Sequence[Axis]) -> Callable[[Axis], Expr]:
        """An element of a value of the row's shape, under an axis in place of the dimension."""
        return lambda at: value.at([Index.axis(at if k == self.dimension else a) for k, a in enumerate(axes)])

    def element(self, axes: Sequence[Axis]) -> Expr:
        """The element of the row under the bound axis."""
        return self._under(self._x, axes)(self.bound)

    def value(self, axes: Sequence[Axis], wanted: Expr) -> Expr:
        """The element of a rank, under axes of which the dimension's is not read."""
        return order.of_rank(self._under(self._x, axes), self._under(self._ranks, axes), wanted, self.bound)

    def results(self, axes: Sequence[Axis], wanted: Expr, *, places: bool) -> TorchValue:
        """Of elements of a rank, the values or the places."""
        if not places:
            return self._n.define(self.value(axes, wanted), result=0, bounds=self._n.bounds(self.element(axes)))
        place = order.of_rank(build.position, self._under(self._ranks, axes), wanted, self.bound)
        return self._n.define(place, result=1, bounds=self._places)


def _sort(n: Node) -> Result:
    """Elements in order, and their places; of equal ones the first comes first, as a stable sort has it."""
    known = n["self"].elements
    distinct = known is not None and known.ndim == 1 and len(set(known.tolist())) == known.size
    ties = () if n.get("stable", False) or distinct else (order.TIES_ASSUMED,)
    row = _Row(n, largest=bool(n["descending"]))
    wanted = build.position(n.axes[row.dimension])
    return n.results(
        lambda: row.results(n.axes, wanted, places=False),
        lambda: n.granted(row.results(n.axes, wanted, places=True), *ties),
    )


def _of_rank(which: Callable[[Node, int], int], n: Node, *, or_nan: bool) -> Result:
    """The element of one rank; and where asked for, what is not a number where the row holds such."""
    if 1 in n.wanted:
        raise n.unsupported("of equal elements torch does not say which one it takes", "use a stable sort")
    row = _Row(n, largest=False)
    x: TorchValue = n["self"]
    kept = bool(n["keepdim"])
    r = Reduction(x, [row.dimension], keepdim=kept)
    own = iter(r.axes)
    axes = [next(own) if kept or k != row.dimension else row.bound for k in range(len(x.shape))]
    value = row.value(axes, Const(float(which(n, int(row.bound.extent)))))
    within = n.bounds(row.element(axes))
    if or_nan and x.dtype.is_float:
        element = row.element(axes)
        broken = op("where", op("isnan", element), element, Const(0.0))
        value = op("add", value, build.reduce(ReduceKind.SUM, row.bound, broken))
    return n.define(value, r.axes, result=0, bounds=within), None


# Softmax


def _along(n: Node) -> tuple[Expr, Row]:
    """The element of x, and the row of its softmax dimension."""
    x: TorchValue = n["self"]
    n.settled("dtype", "half_to_float")  # both of floating point
    return x.under(n.axes), along(x, dimensions(len(x.shape), n["dim"]), n.axes)


def _safe_softmax(n: Node) -> Result:
    x, row = _along(n)
    masked = op("eq", folded(ReduceKind.MAX, row), Const(-math.inf))
    return n.define(op("where", masked, Const(0.0), softmax(x, row)))


def _logsumexp(n: Node) -> Result:
    r = _reduction(n)
    return n.define(log_sum_exp(r.row, may_be_infinite=n.builder.may_be_infinite), r.axes)


HANDLERS: Mapping[str, Handler] = {
    "sum": partial(_folded, ReduceKind.SUM),
    "prod": partial(_folded, ReduceKind.PROD),
    "amax": partial(_folded, ReduceKind.MAX),
    "amin": partial(_folded, ReduceKind.MIN),
    "max": partial(_extreme, ReduceKind.MAX),
    "min": partial(_extreme, ReduceKind.MIN),
    "argmax": partial(_place_of, ReduceKind.MAX),
    "argmin": partial(_place_of, ReduceKind.MIN),
    "any": partial(_any_all, ReduceKind.MAX),
    "all": partial(_any_all, ReduceKind.MIN),
    "mean": _mean,
    "var": partial(_spread, lambda v: v),
    "std": partial(_spread, partial(op, "sqrt")),
    "var_mean": _var_mean,
    "linalg_vector_norm": _norm,
    "norm": _norm,
    "cummax": partial(_cumulative_extreme, ReduceKind.MAX),
    "cummin": partial(_cumulative_extreme, ReduceKind.MIN),
    "logcumsumexp": _log_cumulative_sum,
    "topk": _top,
    "sort": _sort,
    "kthvalue": partial(_of_rank, lambda n, _: n["k"] - 1, or_nan=False),
    "median": partial(_of_rank, lambda _, extent: (extent - 1) // 2, or_nan=True),
    "dist": _dist,
    "_cdist_forward": _distances,
    "_cdist_backward": _distances_backward,
    "cumsum": partial(_cumulative, ReduceKind.SUM),
    "cumprod": partial(_cumulative, ReduceKind.PROD),
    "softmax": lambda n: n.define(softmax(*_along(n))),
    "_softmax": lambda n: n.define(softmax(*_along(n))),
    "_safe_softmax": _safe_softmax,
    "log_softmax": lambda n: n.define(log_softmax(*_along(n))),
    "_log_softmax": lambda n: n.define(log_softmax(*_along(n))),
    "logsumexp": _logsumexp,
}
