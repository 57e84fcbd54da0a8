"""Small hand-written sGraphs for the tests of costs, constraints, spaces and the model."""

from __future__ import annotations

import sympy

from prism.program.extents import Extent, symbol
from prism.program.index import Axis, Index
from prism.program.nodes import DType, ReduceKind, Tensor
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Pointwise,
    Position,
    SGraph,
    Split,
    Stmt,
    Store,
    TileReduce,
    Whole,
    part_axis,
)

F16, F32 = DType.FLOAT16, DType.FLOAT32
SUM, MAX = ReduceKind.SUM, ReduceKind.MAX


def at(*axes: Axis) -> tuple[Index, ...]:
    return tuple(Index.axis(a) for a in axes)


def tile(name: str) -> sympy.Symbol:
    return symbol(name)


def matmul(m: Extent = 512, n: Extent = 768, k: Extent = 1024, dtype: DType = F16) -> SGraph:
    """y[m,n] = sum_k x[m,k]*w[k,n]"""
    am, an, ak = Axis("m", m), Axis("n", n), Axis("k", k)
    body: tuple[Stmt, ...] = (
        Loop(
            ak,
            (
                Load("a", "x", at(am, ak)),
                Load("b", "w", at(ak, an)),
                Contract("p", ak, "a", "b"),
                Accumulate("acc", SUM, "p"),
            ),
        ),
        Store("y", at(am, an), "acc"),
    )
    roles = ((am, Grid(tile("T_m"))), (an, Grid(tile("T_n"))), (ak, LoopRole(tile("T_k"))))
    return SGraph(
        "matmul",
        (Tensor("x", (m, k), dtype), Tensor("w", (k, n), dtype)),
        (),
        (Tensor("y", (m, n), dtype),),
        (Kernel("matmul", roles, body),),
    )


def matvec(n: int = 16384, k: int = 8192, dtype: DType = F16) -> SGraph:
    """y[n] = sum_k x[k]*w[n,k]"""
    an, ak = Axis("n", n), Axis("k", k)
    body: tuple[Stmt, ...] = (
        Loop(
            ak,
            (
                Load("a", "x", at(ak)),
                Load("b", "w", at(an, ak)),
                Contract("p", ak, "a", "b"),
                Accumulate("acc", SUM, "p"),
            ),
        ),
        Store("y", at(an), "acc"),
    )
    return SGraph(
        "matvec",
        (Tensor("x", (k,), dtype), Tensor("w", (n, k), dtype)),
        (),
        (Tensor("y", (n,), dtype),),
        (Kernel("matvec", ((an, Grid(tile("T_n"))), (ak, LoopRole(tile("T_k")))), body),),
    )


def attention(h: int = 8, i: Extent = 1024, d: int = 64, prefix: str = "", causal: bool = True) -> SGraph:
    """o[h,i,d] = sum_j softmax_j(sum_d q*k / 8) * v, one pass, the accumulators rescaled."""
    ah, ai, aj, ad, ae = Axis("h", h), Axis("i", i), Axis("j", i), Axis("d", d), Axis("e", d)

    def v(name: str) -> str:
        return prefix + name

    mask: tuple[Stmt, ...] = (
        Position(v("pi"), Index.axis(ai)),
        Position(v("pj"), Index.axis(aj)),
        Pointwise(v("ok"), "le", (v("pj"), v("pi"))),
        Pointwise(v("masked"), "where", (v("ok"), v("scaled"), float("-inf"))),
    )
    body: tuple[Stmt, ...] = (
        Load(v("q"), "q", at(ah, ai, ad)),
        Loop(
            aj,
            (
                Load(v("k"), "k", at(ah, aj, ad)),
                Contract(v("s"), ad, v("q"), v("k")),
                Pointwise(v("scaled"), "mul", (v("s"), 0.125)),
                *(mask if causal else ()),
                TileReduce(v("top"), MAX, aj, v("masked") if causal else v("scaled")),
                Accumulate(v("m"), MAX, v("top")),
                Pointwise(v("minus"), "mul", (-1.0, v("m"))),
                Pointwise(v("shifted"), "add", (v("masked") if causal else v("scaled"), v("minus"))),
                Pointwise(v("p"), "exp", (v("shifted"),)),
                TileReduce(v("row"), SUM, aj, v("p")),
                Accumulate(v("l"), SUM, v("row"), v("m")),
                Load(v("v"), "v", at(ah, aj, ae)),
                Contract(v("pv"), aj, v("p"), v("v")),
                Accumulate(v("o"), SUM, v("pv"), v("m")),
            ),
        ),
        Pointwise(v("inv"), "recip", (v("l"),)),
        Pointwise(v("out"), "mul", (v("o"), v("inv"))),
        Store("o", at(ah, ai, ae), v("out")),
    )
    roles = (
        (ah, Grid(1)),
        (ai, Grid(tile("T_i"))),
        (aj, LoopRole(tile("T_j"))),
        (ad, Whole()),
        (ae, Whole()),
    )
    tensors = tuple(Tensor(n, (h, i, d), F16) for n in ("q", "k", "v"))
    kernel = Kernel("attention", roles, body)
    return SGraph("attention", tensors, (), (Tensor("o", (h, i, d), F16),), (kernel,))


def layer_norm(m: int = 128, n: int = 4096) -> SGraph:
    """y[m,n] = (x - mean) * rsqrt(var + eps), the row's statistics in one loop, the result in another."""
    am, an = Axis("m", m), Axis("n", n)
    body: tuple[Stmt, ...] = (
        Loop(
            an,
            (
                Load("x1", "x", at(am, an)),
                TileReduce("t1", SUM, an, "x1"),
                Accumulate("s1", SUM, "t1"),
                Pointwise("sq", "mul", ("x1", "x1")),
                TileReduce("t2", SUM, an, "sq"),
                Accumulate("s2", SUM, "t2"),
            ),
        ),
        Pointwise("mean", "mul", ("s1", 1 / n)),
        Pointwise("ex2", "mul", ("s2", 1 / n)),
        Pointwise("mean2", "mul", ("mean", "mean")),
        Pointwise("minus2", "neg", ("mean2",)),
        Pointwise("var", "add", ("ex2", "minus2")),
        Pointwise("safe", "add", ("var", 1e-5)),
        Pointwise("std", "sqrt", ("safe",)),
        Pointwise("rstd", "recip", ("std",)),
        Pointwise("minus", "neg", ("mean",)),
        Loop(
            an,
            (
                Load("x2", "x", at(am, an)),
                Pointwise("centred", "add", ("x2", "minus")),
                Pointwise("y", "mul", ("centred", "rstd")),
                Store("out", at(am, an), "y"),
            ),
        ),
    )
    kernel = Kernel("layer_norm", ((am, Grid(tile("T_m"))), (an, LoopRole(tile("T_n")))), body)
    return SGraph("layer_norm", (Tensor("x", (m, n), F32),), (), (Tensor("out", (m, n), F32),), (kernel,))


def split_k(m: int = 16, n: int = 256, k: int = 4096) -> SGraph:
    """A matmul whose contracted axis is shared by S_k programs; a second kernel adds the parts."""
    am, an, ak = Axis("m", m), Axis("n", n), Axis("k", k)
    parts = tile("S_k")
    ap = part_axis(ak, parts)
    first: tuple[Stmt, ...] = (
        Loop(
            ak,
            (
                Load("a", "x", at(am, ak)),
                Load("b", "w", at(ak, an)),
                Contract("p", ak, "a", "b"),
                Accumulate("acc", SUM, "p"),
            ),
        ),
        Store("partial", (*at(am, an), Index.axis(ap)), "acc"),
    )
    second: tuple[Stmt, ...] = (
        Load("part", "partial", (*at(am, an), Index.axis(ap))),
        TileReduce("total", SUM, ap, "part"),
        Store("y", at(am, an), "total"),
    )
    return SGraph(
        "split_k",
        (Tensor("x", (m, k), F16), Tensor("w", (k, n), F16)),
        (Tensor("partial", (m, n, parts), F32),),
        (Tensor("y", (m, n), F16),),
        (
            Kernel(
                "parts",
                ((am, Grid(tile("T_m"))), (an, Grid(tile("T_n"))), (ak, Split(parts, tile("T_k")))),
                first,
            ),
            Kernel("combine", ((am, Grid(tile("T_m2"))), (an, Grid(tile("T_n2"))), (ap, Whole())), second),
        ),
    )


ALL = (matmul, matvec, attention, layer_norm, split_k)
