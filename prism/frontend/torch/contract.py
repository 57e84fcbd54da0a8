"""ATen's contractions: matrix products of every spelling, einsum and attention, as sums of products."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from prism.frontend.einsum import contraction, subscripts
from prism.frontend.rows import folded, log_sum_exp, softmax
from prism.frontend.torch.values import Handler, Node, Result, TorchValue, number
from prism.program import build
from prism.program.extents import Extent
from prism.program.fold import div, op, sub
from prism.program.index import Axis, Index
from prism.program.nodes import Const, DType, Expr, ReduceKind
from prism.program.views import axes_of, same_extent


def _matmul(n: Node) -> Result:
    return n.define(_product(n, n["self"], n["mat2"] if n.has("mat2") else n["other"]))


def _product(n: Node, a: TorchValue, b: TorchValue) -> Expr:
    """The element of a @ b under the result's axes: torch.matmul's rules for vectors and for stacks of matrices."""
    k = Axis("k", a.shape[-1])
    axes = list(n.axes)
    column = [axes.pop()] if len(b.shape) > 1 else []
    row = [axes.pop()] if len(a.shape) > 1 else []
    left = a.under([*axes, *row, k])
    right = b.under([*axes, k, *column])
    return build.reduce(ReduceKind.SUM, k, op("mul", left, right))


def _vectors(n: Node) -> Result:
    return n.define(_product(n, n["self"], n["vec"] if n.has("vec") else n["tensor"]))


def _outer(n: Node) -> Result:
    i, j = n.axes
    return n.define(op("mul", n["self"].at([Index.axis(i)]), n["vec2"].at([Index.axis(j)])))


def _linear(n: Node) -> Result:
    x: TorchValue = n["input"]
    weight: TorchValue = n["weight"]
    many = len(weight.shape) - 1  # a weight of one dimension has no columns
    rows, column = n.axes[: len(x.shape) - 1], n.axes[len(n.axes) - many :]
    k = Axis("k", x.shape[-1])
    product = op("mul", x.under([*rows, k]), weight.under([*column, k]))
    value = build.reduce(ReduceKind.SUM, k, product)
    if n["bias"] is not None:
        value = op("add", value, n["bias"].under(n.axes))
    return n.define(value)


def _trilinear(n: Node) -> Result:
    """The product of three operands, each spread over dimensions that it has not, summed over some."""
    n.settled("unroll_dim")
    operands = [(n[f"i{k}"], n[f"expand{k}"]) for k in (1, 2, 3)]
    summed, own = n["sumdim"], iter(n.axes)
    extents: dict[int, Extent] = {}
    for x, spread in operands:
        kept = (d for d in range(len(x.shape) + len(spread)) if d not in spread)
        extents |= {d: e for d, e in zip(kept, x.shape, strict=True) if e != 1 or d not in extents}
    axes = [Axis(f"k{d}", extents[d]) if d in summed else next(own) for d in sorted(extents)]
    value: Expr = Const(1.0)
    for x, spread in operands:
        value = op("mul", value, x.under([a for d, a in enumerate(axes) if d not in spread]))
    return n.define(build.reduce(ReduceKind.SUM, tuple(axes[d] for d in summed), value))


def _added(first: str, second: str, n: Node) -> Result:
    """addmm and its kin: beta * self + alpha * (a @ b)."""
    product = op("mul", number(n["alpha"], n.axes), _product(n, n[first], n[second]))
    added: TorchValue = n["self"]
    if n["beta"] == 0:
        return n.define(product)
    return n.define(op("add", op("mul", number(n["beta"], n.axes), added.under(n.axes)), product))


def _einsum(n: Node) -> Result:
    tensors: list[TorchValue] = n["tensors"]
    terms, result = subscripts(n["equation"], [len(t.shape) for t in tensors])
    return n.define(contraction(terms, result, [(t.shape, t.at) for t in tensors], n.axes)[1])


class _Scores:
    """The scores of attention before their softmax, a definition of the program, and what they are made of.

    Attributes:
        outer, i, j: their axes: batches and heads, queries, keys.
        scale: the factor of the products.
        value: the scores.
    """

    def __init__(self, n: Node) -> None:
        q, k, v = n["query"], n["key"], n["value"]
        if n["dropout_p"] != 0:
            raise n.unsupported("dropout is random", "trace the module in eval mode, with dropout_p=0")
        if len({len(t.shape) for t in (q, k, v)}) > 1:
            raise n.unsupported("query, key and value are of different rank", "give them dimensions of extent 1")
        self.n, self.mask = n, n["attn_mask"]
        scale = n["scale"]
        self.scale = div(Const(1.0), op("sqrt", build.size(q.shape[-1]))) if scale is None else number(scale, ())
        # what all three broadcast to
        self.axes = axes_of([*n.shape[:-2], q.shape[-2], k.shape[-2]])
        *outer, self.i, self.j = self.axes
        self.outer = tuple(outer)
        d = Axis("d", q.shape[-1])
        product = op("mul", self.of_head(q, self.outer, self.i, d), self.of_head(k, self.outer, self.j, d))
        score = op("mul", self.scale, build.reduce(ReduceKind.SUM, d, product))
        if n["is_causal"]:
            score = op("where", op("le", build.position(self.j), build.position(self.i)), score, Const(-math.inf))
        if self.mask is not None:
            chosen = self.mask.under(self.axes)
            only = self.mask.dtype is DType.BOOL
            score = op("where", chosen, score, Const(-math.inf)) if only else op("add", score, chosen)
        self.value = n.builder.define(f"{n.name}_scores", self.axes, score, n.dtype, n.origin)

    def of_head(self, t: TorchValue, over: Sequence[Axis], row: Axis, column: Axis) -> Expr:
        """t[..., head, row, column]; with fewer heads than queries have, consecutive queries share one."""
        n = self.n
        index = [Index.const(0) if e == 1 else Index.axis(a) for a, e in zip(over, t.shape[:-2], strict=True)]
        if n.get("enable_gqa") and over and t.shape[-3] != 1 and not same_extent(t.shape[-3], over[-1].extent):
            heads, shared = over[-1].extent, t.shape[-3]
            if not (isinstance(heads, int) and isinstance(shared, int)):
                raise n.unsupported("the number of heads is symbolic")
            index[-1] = Index.axis(over[-1]).floordiv(heads // shared)
        return t.at([*index, Index.axis(row), Index.axis(column)])

    def at(self, a: Axis) -> Expr:
        """The score of a query and a key."""
        return self.value.at([*(Index.axis(x) for x in (*self.outer, self.i)), Index.axis(a)])


def _attention(n: Node) -> Result:
    """Scores with their mask, their softmax, and its product with the values: what eager torch launches."""
    scores = _Scores(n)
    outer, i, j = scores.outer, scores.i, scores.j
    bound = Axis("r", j.extent)

    def row(prefix: str) -> tuple[tuple[Axis, ...], Expr]:
        keys = Axis(prefix, j.extent)
        return (keys,), scores.at(keys)

    weight, nothing = softmax(scores.at(j), row), None
    if scores.mask is not None:
        # torch gives 0, not NaN, to a query that may look at no key; only a given mask can leave one
        nothing = op("eq", folded(ReduceKind.MAX, row), Const(-math.inf))
        weight = op("where", nothing, Const(0.0), weight)

    def looked() -> TorchValue:
        weights = n.builder.define(f"{n.name}_weights", scores.axes, weight, n.dtype, n.origin)
        *result_outer, row, column = n.axes
        chosen = weights.at([*(Index.axis(x) for x in (*result_outer, row)), Index.axis(bound)])
        product = op("mul", chosen, scores.of_head(n["value"], result_outer, bound, column))
        return n.define(build.reduce(ReduceKind.SUM, bound, product))

    def logarithms() -> TorchValue:
        """Of the rows' sums of exponentials, which the gradient is computed by."""
        value = log_sum_exp(row, may_be_infinite=lambda _: False)
        if nothing is not None:
            value = op("where", nothing, Const(0.0), value)
        return n.define(value, (*outer, i), result=1)

    return n.results(looked, logarithms)


def _attention_backward(n: Node) -> Result:
    """The gradients of queries, keys and values, weights computed anew by the rows' logarithms."""
    scores = _Scores(n)
    q, k, v, gradient, made = n["query"], n["key"], n["value"], n["grad_out"], n["out"]
    *outer, i, j = scores.axes
    places = [Index.axis(a) for a in scores.axes]
    d, e = Axis("d", q.shape[-1]), Axis("e", v.shape[-1])

    def over(t: TorchValue, row: Axis, column: Axis) -> Expr:
        return t.at([*map(Index.axis, outer), Index.axis(row), Index.axis(column)])

    score = scores.value.at(places)
    weight = op("exp", sub(score, n["logsumexp"].at(places[:-1])))
    weights = n.builder.define(f"{n.name}_weights", scores.axes, weight, n.dtype, n.origin)
    of_weight = build.reduce(ReduceKind.SUM, e, op("mul", over(gradient, i, e), over(v, j, e)))
    f = Axis("f", v.shape[-1])
    of_row = build.reduce(ReduceKind.SUM, f, op("mul", over(gradient, i, f), over(made, i, f)))
    of_score = op("mul", weights.at(places), sub(of_weight, of_row))

    def summed(result: int, bound: Axis, each: Expr, row: Axis, column: Axis) -> TorchValue:
        return n.define(build.reduce(ReduceKind.SUM, bound, each), (*outer, row, column), result=result)

    scaled = op("mul", scores.scale, of_score)
    return n.results(
        lambda: summed(0, j, op("mul", scaled, over(k, j, d)), i, d),
        lambda: summed(1, i, op("mul", scaled, over(q, i, d)), j, d),
        lambda: summed(2, i, op("mul", weights.at(places), over(gradient, i, e)), j, e),
    )


HANDLERS: Mapping[str, Handler] = {
    "mm": _matmul,
    "bmm": _matmul,
    "matmul": _matmul,
    "_int_mm": _matmul,
    "dot": _vectors,
    "mv": _vectors,
    "outer": _outer,
    "linear": _linear,
    "_trilinear": _trilinear,
    "addmm": partial(_added, "mat1", "mat2"),
    "baddbmm": partial(_added, "batch1", "batch2"),
    "addmv": partial(_added, "mat", "vec"),
    "einsum": _einsum,
    "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
