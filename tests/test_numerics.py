"""What is unsafe is found in an sGraph's expressions; what is safe, and what the model does itself, is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import sgraph_samples

from prism.program import build
from prism.program.build import add, const, mul, neg, op, position, read, reduce
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Expr, ReduceKind, Tensor
from prism.program.transform import substitute
from prism.sgraph.denote import Denotation, denote
from prism.sgraph.nodes import Contract, Grid, Kernel, Load, Pointwise, SGraph, Stmt, Store, TileReduce, Whole
from prism.sgraph.numerics import Finding, Kind, Numerics, _is_product, staged

i, j, k = Axis("i", 8), Axis("j", 32), Axis("k", 32)
X = read("x", i, k)
TOP = reduce("max", k, X)
AT = read("x", i, j)


def findings(sgraph: SGraph, reference: Sequence[Expr], denotation: Denotation | None = None) -> tuple[Finding, ...]:
    return Numerics(tuple(reference)).findings(sgraph, denotation or denote(sgraph))


def kinds(candidate: Expr, reference: Expr | None = None, dtype: DType = DType.FLOAT32) -> list[Kind]:
    """What is found in an sGraph that denotes the expression."""
    inputs = (Tensor("x", (8, 32), dtype), Tensor("t", (8,), DType.INT64))
    graph = SGraph("g", inputs, (), (Tensor("y", (8, 32), dtype),), ())
    found = findings(graph, [] if reference is None else [reference], Denotation((candidate,), ()))
    assert all(f.where == "y" and f.why and f.what for f in found)
    return [f.kind for f in found]


def shifted(shift: Expr) -> Expr:
    """softmax_k x with that subtracted."""
    minus = mul(const(-1.0), shift)
    return build.div(op("exp", add(AT, minus)), reduce("sum", k, op("exp", add(X, minus))))


LOG = op("log", reduce("sum", k, op("exp", build.sub(X, TOP))))


def picked(*rest: Expr, mask: str = "eq") -> Expr:
    """exp of the logarithm of x at a place, what is added to it after it is chosen times how often it is chosen."""
    chosen = op(mask, position(k), read("t", i))
    count = reduce("sum", k, op("where", chosen, const(1.0), const(0.0)))
    total = reduce("sum", k, op("where", chosen, X, const(0.0)))
    for r in rest:
        total = add(total, mul(count, r))
    return op("exp", total)


def mean_of_chosen(shift: Expr) -> Expr:
    """The exponential of a mean of what is chosen from each row, shifted after it was chosen, term by term."""
    chosen = op("eq", position(k), read("t", i))
    count = reduce("sum", k, op("where", chosen, const(1.0), const(0.0)))
    total = reduce("sum", k, op("where", chosen, X, const(0.0)))
    terms = add(reduce("sum", i, total), mul(const(-1.0), reduce("sum", i, mul(count, shift))))
    return op("exp", mul(const(1 / 8), terms))


LEAST = reduce("min", k, X)

SAFE = {
    "a mean of what is chosen and shifted": mean_of_chosen(add(TOP, LOG)),
    "chosen, then shifted by the maximum": picked(neg(TOP)),
    "chosen, then shifted twice": picked(mul(const(-1.0), TOP), mul(const(-1.0), LOG)),
    "maximum": shifted(TOP),
    "maximum of maxima": shifted(reduce("max", k, op("maximum", TOP, TOP))),
    "maximum and log of the sum": op(
        "exp", build.sub(AT, add(TOP, op("log", reduce("sum", k, op("exp", build.sub(X, TOP))))))
    ),
    "a logsumexp with its guard": op(
        "exp",
        build.sub(AT, op("where", op("eq", op("abs", TOP), const(float("inf"))), TOP, add(TOP, LOG))),
    ),
    "scaled after the shift": op("exp", mul(const(0.125), build.sub(AT, TOP))),
    "scaled on both sides": op("exp", add(mul(const(0.125), AT), mul(const(-0.125), TOP))),
    "a common factor": op("exp", build.sub(mul(op("sigmoid", AT), AT), mul(op("sigmoid", AT), TOP))),
    "minus an absolute value": op("log", add(const(1.0), op("exp", neg(op("abs", AT))))),
    "minus a square": op("exp", mul(const(-0.5), mul(AT, AT))),
    "log sigmoid": op("exp", op("log", op("sigmoid", AT))),
    "sigmoid written out": op("recip", add(const(1.0), op("exp", neg(AT)))),
    "masked": op("exp", op("where", op("lt", AT, const(0.0)), const(float("-inf")), build.sub(AT, TOP))),
    "tanh": op("exp", mul(const(50.0), op("tanh", AT))),
    "minus itself where it is no less than a number": op(
        "exp", neg(op("where", op("lt", const(20.0), AT), AT, op("maximum", AT, const(0.0))))
    ),
    "itself where it is not more than a number": op("exp", op("where", op("lt", const(20.0), AT), const(0.0), AT)),
    "a maximum of one axis added before that of another": op(
        "exp", add(add(AT, read("y", j)), neg(reduce("max", j, add(read("y", j), TOP))))
    ),
    "below the larger of two sums, added up in another order": op(
        "exp", add(add(AT, LEAST), neg(op("maximum", add(LEAST, AT), const(0.0))))
    ),
}
UNSAFE = {
    "a mean of what is chosen, shifted by something else": mean_of_chosen(reduce("min", k, X)),
    "a sum of what is chosen and another of maxima, differently scaled": op(
        "exp", add(reduce("sum", i, TOP), mul(const(-0.5), reduce("sum", i, TOP)))
    ),
    "chosen": picked(),
    "chosen, then shifted by something else": picked(neg(reduce("min", k, X))),
    "several chosen": picked(neg(TOP), mask="le"),
    "chosen, then shifted by another element of an axis of that name": picked(neg(X)),
    "no maximum": build.div(op("exp", AT), reduce("sum", k, op("exp", X))),
    "the mean for the maximum": shifted(build.mean(k, X)),
    "a minimum": shifted(reduce("min", k, X)),
    "the maximum, or else a minimum": op("exp", build.sub(AT, op("where", op("lt", LEAST, const(0.0)), TOP, LEAST))),
    "the maximum of something else": shifted(reduce("max", k, mul(X, X))),
    "the maximum added": shifted(neg(TOP)),
    "twice the difference and more": op("exp", add(AT, build.sub(AT, TOP))),
    "scaled differently": op("exp", add(mul(const(0.25), AT), mul(const(-0.125), TOP))),
    "scaled by a negative number": op("exp", add(mul(const(-0.125), AT), mul(const(0.125), TOP))),
    "a common factor of any sign": op("exp", build.sub(mul(op("tanh", AT), AT), mul(op("tanh", AT), TOP))),
    "an absolute value": op("exp", op("abs", AT)),
    "a plain logsumexp": op("exp", build.sub(AT, op("log", reduce("sum", k, op("exp", X))))),
    "a maximum of one axis, and something else added to it": op(
        "exp", add(add(AT, mul(AT, AT)), neg(reduce("max", j, add(read("y", j), TOP))))
    ),
    "below the larger of another sum and a number": op("exp", add(add(AT, LEAST), neg(op("maximum", AT, const(0.0))))),
    "a square": op("exp", mul(AT, AT)),
    "itself where it is no less than a number": op("exp", op("where", op("lt", const(20.0), AT), AT, const(0.0))),
    "another where it is not more than a number": op("exp", op("where", op("lt", const(20.0), AT), const(0.0), LEAST)),
    "an unguarded reciprocal": op("recip", add(const(-1.0), op("exp", neg(AT)))),
}


@pytest.mark.parametrize("name", SAFE)
def test_exponents_that_are_bounded(name: str) -> None:
    assert kinds(SAFE[name]) == []


@pytest.mark.parametrize("name", UNSAFE)
def test_exponents_that_are_not(name: str) -> None:
    assert set(kinds(UNSAFE[name])) == {Kind.EXP}
    assert set(kinds(UNSAFE[name], SAFE["maximum"])) == {Kind.EXP}
    assert kinds(UNSAFE[name], UNSAFE[name]) == [], "the model does the same"


def test_the_online_forms_are_safe_and_need_no_reference() -> None:
    for sample in (
        sgraph_samples.attention(),
        sgraph_samples.attention(causal=False),
        sgraph_samples.grouped_attention(),
        sgraph_samples.layernorm(),
        sgraph_samples.gated_mlp(),
    ):
        assert findings(sample.sgraph, []) == (), sample.sgraph.name


def test_a_mask_written_another_way_is_what_the_reference_does() -> None:
    kept = op("le", build.position(k), build.position(i))
    wanted = op("exp", op("where", kept, X, const(float("-inf"))))
    number = op("where", kept, const(1.0), const(0.0))
    for mask in (number, op("where", number, const(1.0), const(0.0))):
        assert kinds(wanted, op("exp", op("where", mask, X, const(float("-inf"))))) == []
    turned = op("exp", op("where", op("not", kept), const(float("-inf")), X))
    assert kinds(wanted, turned) == kinds(turned, wanted) == []
    other = op("exp", op("where", op("lt", build.position(k), build.position(i)), X, const(float("-inf"))))
    assert kinds(wanted, other) == [Kind.EXP], "another mask"
    assert kinds(op("exp", mul(X, const(1e3))), op("exp", mul(op("where", X, const(1.0), const(0.0)), const(1e3)))) == [
        Kind.EXP
    ], "where(x, 1, 0) is not x"


def test_an_exponent_that_is_the_references_by_algebra_overflows_where_that_does() -> None:
    """A ratio of probabilities: what is chosen from a row of logarithms, minus what another model said of it."""
    chosen, before = op("eq", position(k), read("t", i)), read("x", i, k.extent - 1)
    shift = add(TOP, LOG)
    wanted = op(
        "exp",
        build.sub(reduce("sum", k, op("where", chosen, build.sub(build.sub(X, TOP), LOG), const(0.0))), before),
    )
    count = reduce("sum", k, op("where", chosen, const(1.0), const(0.0)))
    total = reduce("sum", k, op("where", chosen, X, const(0.0)))
    ratio = op("exp", add(total, mul(const(-1.0), add(before, mul(count, shift)))))
    assert kinds(ratio) == [Kind.EXP]
    assert kinds(ratio, wanted) == []
    far = Axis("far", 8)
    renamed = substitute(wanted, {i: Index.axis(far)})
    assert kinds(ratio, renamed) == [], "axes are told apart by their lengths alone"
    apart = mul(op("exp", add(total, mul(const(-1.0), before))), op("exp", mul(const(-1.0), mul(count, shift))))
    assert set(kinds(apart, wanted)) == {Kind.EXP}, "in two factors, which overflow alone"
    assert kinds(op("exp", add(total, mul(const(-1.0), add(before, mul(count, TOP))))), wanted) == [Kind.EXP]


def test_a_variance_by_difference() -> None:
    mean, square = build.mean(k, X), build.mean(k, mul(X, X))
    apart = build.sub(X, mean)
    right = op("recip", op("sqrt", add(build.mean(k, mul(apart, apart)), const(1e-5))))
    wrong = [
        build.sub(square, mul(mean, mean)),
        build.sub(reduce("sum", k, mul(X, X)), mul(const(32.0), mul(mean, mean))),
        add(const(1e-5), build.sub(square, op("pow", mean, const(2.0)))),
        build.sub(build.mean(k, op("pow", X, const(2.0))), mul(mean, mean)),
    ]
    assert kinds(right) == []
    for v in wrong:
        assert kinds(op("sqrt", v), right) == [Kind.VARIANCE]
        assert kinds(op("sqrt", v), op("sqrt", v)) == []
    other = build.mean(k, read("z", i, k))
    assert kinds(build.sub(square, mul(other, other))) == [], "two different things"
    assert kinds(add(square, mul(mean, mean))) == [], "no difference"


def late(dtype: DType, buffer: DType) -> SGraph:
    """h = x @ w; y = h / |x|, with h in a buffer."""
    d, n = Axis("d", 32), Axis("n", 16)
    at = sgraph_samples.at
    product: tuple[Stmt, ...] = (
        Load("x1", "x", at(i, d)),
        Load("w1", "w", at(d, n)),
        Contract("p", d, "x1", "w1"),
        Store("h", at(i, n), "p"),
    )
    division: tuple[Stmt, ...] = (
        Load("x1", "x", at(i, d)),
        Pointwise("x2", "mul", ("x1", "x1")),
        TileReduce("s", ReduceKind.SUM, d, "x2"),
        Pointwise("r", "sqrt", ("s",)),
        Pointwise("inv", "recip", ("r",)),
        Load("h1", "h", at(i, n)),
        Pointwise("y1", "mul", ("h1", "inv")),
        Store("y", at(i, n), "y1"),
    )
    roles = ((i, Grid(symbol("T_i"))), (d, Whole()), (n, Whole()))
    return SGraph(
        "late",
        (Tensor("x", (8, 32), dtype), Tensor("w", (32, 16), dtype)),
        (Tensor("h", (8, 16), buffer),),
        (Tensor("y", (8, 16), dtype),),
        (Kernel("product", roles, product), Kernel("division", roles, division)),
    )


def test_a_division_moved_past_a_float16_buffer_is_staged() -> None:
    d, n = Axis("d", 32), Axis("n", 16)
    x, w = read("x", i, d), read("w", d, n)
    inv = op("recip", op("sqrt", reduce("sum", d, mul(x, x))))
    before = reduce("sum", d, mul(mul(x, inv), w))
    graph = late(DType.FLOAT16, DType.FLOAT16)
    (found,) = findings(graph, [before])
    assert (found.kind, found.where) == (Kind.OVERFLOW, "h")
    wide = staged(graph, [found])
    assert wide is not None
    assert wide.buffers[0].dtype is DType.FLOAT32
    assert findings(wide, [before]) == ()
    assert denote(wide) == denote(graph)
    after = mul(reduce("sum", d, mul(x, w)), inv)
    assert findings(graph, [after]) == (), "the model stores that sum, too"
    assert findings(late(DType.BFLOAT16, DType.BFLOAT16), [before]) == (), "bfloat16 has float32's range"


def test_a_product_of_inputs_that_the_model_does_not_compute_is_staged() -> None:
    n = Axis("n", 16)
    scales = ["a", "b"]
    loads = tuple(Load(f"{s}1", s, (Index.axis(n),)) for s in scales)

    def graph(buffer: DType = DType.FLOAT16, *, weight: bool = False) -> SGraph:
        both: tuple[Stmt, ...] = (*loads, Pointwise("p", "mul", ("a1", "b1")), Store("ab", (Index.axis(n),), "p"))
        last: tuple[Stmt, ...] = (
            Load("x1", "x", sgraph_samples.at(i, n)),
            Load("s1", "ab", (Index.axis(n),)),
            Pointwise("y1", "mul", ("x1", "s1")),
            Store("y", sgraph_samples.at(i, n), "y1"),
        )
        return SGraph(
            "g",
            (Tensor("x", (8, 16), buffer), *(Tensor(s, (16,), buffer, weight=weight) for s in scales)),
            (Tensor("ab", (16,), buffer),),
            (Tensor("y", (8, 16), buffer),),
            (
                Kernel("both", ((n, Grid(symbol("T_n"))),), both),
                Kernel("last", ((i, Grid(symbol("T_i"))), (n, Whole())), last),
            ),
        )

    x, a, b = read("x", i, n), read("a", n), read("b", n)
    before = mul(mul(x, a), b)
    (found,) = findings(graph(), [before])
    assert (found.kind, found.where) == (Kind.OVERFLOW, "ab")
    wide = staged(graph(), [found])
    assert wide is not None
    assert wide.buffers[0].dtype is DType.FLOAT32
    assert findings(graph(), [mul(x, mul(a, b))]) == (), "the model multiplies them, too"
    assert findings(graph(DType.BFLOAT16), [before]) == ()
    assert findings(graph(weight=True), [before]) == (), "what the model's own numbers make is known"


def test_what_is_divided_by_itself_is_no_factor_of_a_large_product() -> None:
    n, given = Axis("n", 16), {"x", "a", "b"}
    x, a, b = read("x", i, n), read("a", n), read("b", n)
    normed = mul(x, op("recip", op("sqrt", reduce("sum", n, mul(x, x)))))
    assert not _is_product(mul(normed, a), given)
    assert _is_product(mul(mul(normed, a), b), given)
    assert not _is_product(mul(mul(normed, a), b), {"x", "a"})


def test_what_cannot_be_staged_is_refused() -> None:
    graph = SGraph("g", (Tensor("x", (8, 32), DType.FLOAT16),), (), (Tensor("y", (8, 32), DType.FLOAT16),), ())
    found = findings(graph, [SAFE["maximum"]], Denotation((UNSAFE["no maximum"],), ()))
    assert found
    assert staged(graph, found) is None
    assert staged(graph, ()) == graph
