"""Products with reciprocals are divisions where float32 does not hold the reciprocal, and where that saves one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import sgraph_samples
import torch
from sgraph_samples import at

import prism
from prism.api.region_search import SearchBudget
from prism.api.searching import search
from prism.backends.lower import lower
from prism.backends.tile import Pointwise as TilePointwise
from prism.errors import IllegalIRError
from prism.ir.kit import statements
from prism.program import build
from prism.program.build import add, const, mul, op, position, read, reduce
from prism.program.extents import add as add_extents
from prism.program.extents import floordiv, symbol
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Expr, ReduceKind, Tensor
from prism.sgraph.denote import denote, kernel_values
from prism.sgraph.nodes import Contract, Grid, Kernel, Load, Pointwise, SGraph, Stmt, Store, TileReduce, Whole
from prism.sgraph.numerics import divisors_stored
from prism.sgraph.value_bounds import Bounds, Divisors

F32 = DType.FLOAT32
i, j = Axis("i", 8), Axis("j", 32)
X = read("x", i, j)
TOP = reduce("max", j, X)
HELD = {
    "a number": const(3.0),
    "a size": build.size(symbol("n")),
    "a square root": op("sqrt", reduce("sum", j, mul(X, X))),
    "a norm with an epsilon": add(op("sqrt", reduce("sum", j, mul(X, X))), const(1e-6)),
    "a norm at least something": op("maximum", op("sqrt", reduce("sum", j, mul(X, X))), const(1e-12)),
    "a softmax's sum": reduce("sum", j, op("exp", build.sub(X, TOP))),
    "a sum of absolute values over something": op("minimum", const(1e6), add(const(0.5), op("abs", X))),
}
NOT_HELD = {
    "an input": X,
    "a sum": reduce("sum", j, X),
    "a maximum": TOP,
    "a number that is too small": const(1e-39),
    "a number that is too large": const(2.0**127),
    "a product": mul(op("sqrt", mul(X, X)), op("sqrt", mul(X, X))),
    "exponentials without a maximum": reduce("sum", j, op("exp", X)),
    "exponentials below another maximum": reduce("sum", j, op("exp", build.sub(X, reduce("max", i, TOP)))),
    "a sum of squares": add(const(1e-30), reduce("sum", j, mul(X, X))),
}


def invertible(e: Expr) -> bool:
    return Divisors({"x": Tensor("x", (), F32)}).invertible(e)


@pytest.mark.parametrize("name", HELD)
def test_reciprocals_that_float32_holds(name: str) -> None:
    assert invertible(HELD[name])


@pytest.mark.parametrize("name", NOT_HELD)
def test_reciprocals_that_it_does_not(name: str) -> None:
    assert not invertible(NOT_HELD[name])


def test_the_maximum_must_be_of_the_same_values() -> None:
    square = read("x", j, Axis("k", 32))
    turned = read("x", Axis("k", 32), j)
    k = Axis("k", 32)
    assert invertible(reduce("sum", k, op("exp", build.sub(square, reduce("max", k, square)))))
    assert not invertible(reduce("sum", k, op("exp", build.sub(square, reduce("max", k, turned))))), "of the columns"


def divided(root: bool = False, elementwise: bool = False, contract: bool = False) -> SGraph:
    """y = x / sum(x), over the rows; of the root of the sum; of x itself; summed again."""
    body: list[Stmt] = [Load("x1", "x", at(i, j)), TileReduce("s", ReduceKind.SUM, j, "x1")]
    body.append(Pointwise("r", "sqrt", ("s",)) if root else Pointwise("r", "abs", ("x1" if elementwise else "s",)))
    body.append(Pointwise("inv", "recip", ("r",)))
    if contract:
        body += [Pointwise("wide", "add", ("x1", "inv")), Pointwise("own", "recip", ("wide",))]
        body += [Contract("y1", j, "x1", "own"), Store("y", at(i), "y1")]
    else:
        body += [Pointwise("y1", "mul", ("inv", "x1")), Store("y", at(i, j), "y1")]
    roles = ((i, Grid(sgraph_samples.sym("T_i"))), (j, Whole()))
    shape = (8,) if contract else (8, 32)
    return SGraph("g", (Tensor("x", (8, 32), F32),), (), (Tensor("y", shape, F32),), (Kernel("k", roles, tuple(body)),))


def pointwise(sgraph: SGraph) -> list[str]:
    return [s.op for p in lower(sgraph).programs for s in statements(p.body) if isinstance(s, TilePointwise)]


def test_what_is_lowered_as_a_division() -> None:
    assert pointwise(divided()) == ["abs", "div"], "1/|sum| may be infinite"
    assert pointwise(divided(root=True)) == ["sqrt", "recip", "mul"], "one reciprocal serves the row"
    assert pointwise(divided(elementwise=True)) == ["abs", "div"], "one operation in place of two"
    assert pointwise(divided(contract=True)).count("div") == 1, "a sum of quotients"


def test_a_softmax_keeps_one_reciprocal_a_row() -> None:
    sample = sgraph_samples.attention()
    assert "div" not in pointwise(sample.sgraph)
    assert "recip" in pointwise(sample.sgraph)


def apart(what: str = "recip") -> SGraph:
    """y = x / sum(x), with what is stored between two kernels in float16."""
    first = (
        Load("x1", "x", at(i, j)),
        TileReduce("s", ReduceKind.SUM, j, "x1"),
        Pointwise("inv", what, ("s",)),
        Store("b", at(i), "inv"),
    )
    second = (
        Load("x1", "x", at(i, j)),
        Load("b1", "b", at(i)),
        Pointwise("y1", "mul", ("x1", "b1")),
        Store("y", at(i, j), "y1"),
    )
    roles = ((i, Grid(sgraph_samples.sym("T_i"))), (j, Whole()))
    return SGraph(
        "g",
        (Tensor("x", (8, 32), F32),),
        (Tensor("b", (8,), DType.FLOAT16),),
        (Tensor("y", (8, 32), F32),),
        (Kernel("one", roles, first), Kernel("two", roles, second)),
    )


def test_a_buffer_holds_the_divisor() -> None:
    graph = apart()
    made = divisors_stored(graph)
    assert denote(made) == denote(graph)
    assert made.buffers[0].dtype is F32, "the sum may be larger than float16 holds"
    assert pointwise(made) == ["div"]
    assert divisors_stored(made) == made
    assert divisors_stored(apart("exp")) == apart("exp")


@pytest.mark.parametrize("step", [-1, 1])
def test_kernels_of_other_regions_take_nothing_from_what_is_known_of_one(step: int) -> None:
    """What is stored by blocks and read beside them is an input to who reads it; a root has a reciprocal all the same.

    At the last row the next one has digits, too, which are those of the first.
    """
    a, b = Axis("a", 2), Axis("b", 4)
    rows = Index.axis(a).scaled(4) + Index.axis(b)
    copy = (Load("x1", "x", (rows, Index.axis(j))), Store("t", (rows, Index.axis(j)), "x1"))
    graph = divided(root=True)
    (kernel,) = graph.kernels
    (load, *rest) = kernel.body
    assert isinstance(load, Load)
    body = (replace(load, tensor="t", index=(Index.axis(i) + step, Index.axis(j))), *rest)
    graph = replace(
        graph,
        buffers=(Tensor("t", (8, 32), F32),),
        kernels=(Kernel("copy", ((a, Grid(1)), (b, Whole()), (j, Whole())), copy), replace(kernel, body=body)),
    )
    with pytest.raises(IllegalIRError):
        denote(graph)
    assert pointwise(graph) == ["sqrt", "recip", "mul"]
    assert str(kernel_values(graph)["k"]["r"]).count("t[") == 1


def test_a_number_over_a_sum_is_a_divisor_too() -> None:
    """x / mean(x) is x * (32 / sum(x)), which is infinite where the sum is subnormal."""
    graph = divided()
    (kernel,) = graph.kernels
    body = list(kernel.body)
    body[-2:] = [Pointwise("c", "mul", ("inv", 32.0)), Pointwise("y1", "mul", ("c", "x1")), body[-1]]
    graph = replace(graph, kernels=(replace(kernel, body=tuple(body)),))
    assert pointwise(graph) == ["abs", "mul", "div"]
    body[2] = Pointwise("r", "sqrt", ("s",))
    graph = replace(graph, kernels=(replace(kernel, body=tuple(body)),))
    assert pointwise(graph) == ["sqrt", "mul", "div"], "a number times a root may be anything"
    body[-4:] = [Pointwise("inv", "recip", ("r",)), Pointwise("y1", "mul", ("inv", 32.0)), Store("y", at(i), "y1")]
    graph = replace(graph, kernels=(replace(kernel, body=tuple(body)),), outputs=(Tensor("y", (8,), F32),))
    assert pointwise(graph) == ["sqrt", "div"]


def test_no_proved_sgraph_of_a_quotient_multiplies_by_what_may_be_infinite() -> None:
    program = prism.trace(lambda x, w: (x / x.sum(-1, keepdim=True)) @ w, (torch.randn(16, 64), torch.randn(64, 32)))
    with search(program, budget=SearchBudget(max_sgraphs=12)) as found:
        graphs = [p.sgraph for p in found]
    assert graphs
    for graph in graphs:
        used = pointwise(graph)
        assert "div" in used
        assert "recip" not in used


def test_places_in_rows_of_a_rounded_length_may_be_below_0() -> None:
    n = symbol("n")
    i, j = Axis("i", n), Axis("j", n)
    short = add_extents(floordiv(n, 5), -1)
    bounds = Bounds({})
    assert bounds.of(position(Index(((i, n), (j, 1)), n - 1)))[0] == 0
    assert bounds.of(position(Index(((i, short), (j, 1)))))[0] == -math.inf
    assert bounds.of(position(Index(((j, 1),), short)))[0] == -math.inf


def test_a_softmax_of_what_masked_heads_store_side_by_side_is_told_through_both() -> None:
    """Its scores hold what the heads rescaled, by a maximum that may be -inf."""

    def heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        scores = torch.where(kept > 0, q @ k.transpose(1, 2), -torch.inf)
        return (torch.softmax(scores, -1) @ v).transpose(0, 1).reshape(1024, 256)

    def after(reshape: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return torch.softmax(reshape @ w.T, -1) @ u

    def graphs(fn: Callable[..., object], *shapes: tuple[int, ...]) -> list[SGraph]:
        given = [torch.empty(s, device="meta") for s in shapes]
        program = prism.trace(fn, given, name=fn.__name__, check=False)
        with search(program, budget=SearchBudget(max_sgraphs=12)) as found:
            return [p.sgraph for p in found if len(p.sgraph.kernels) < 3]

    first, second = graphs(heads, *[(4, 1024, 64)] * 3, (4, 1024, 1024)), graphs(after, *[(1024, 256)] * 2, (1024, 64))
    through = 0
    for one, other in product(first, second):
        both = replace(
            other,
            inputs=(*one.inputs, *(t for t in other.inputs if t.name != "reshape")),
            buffers=(*one.buffers, *one.outputs, *other.buffers),
            kernels=(*one.kernels, *other.kernels),
        )
        values = kernel_values(both)[other.kernels[-1].name]
        through += any("v[" in str(v) for v in values.values())
    assert through
