"""Hand-written sGraphs with what they compute in closed form, for tests of whatever takes sGraphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import sympy

from prism.program.extents import Extent, add, evaluate, symbol
from prism.program.index import Axis, Index
from prism.program.nodes import DType, ReduceKind, Tensor
from prism.program.prefix import SO_FAR, Recurrence
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Gather,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Place,
    Pointwise,
    Position,
    Scan,
    SGraph,
    Split,
    Stmt,
    Store,
    TileReduce,
    Whole,
    part_axis,
)

Arrays = Callable[..., "tuple[np.ndarray, ...]"]
SUM, MAX = ReduceKind.SUM, ReduceKind.MAX
F32, F16, BF16 = DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16
EPS = 1e-5


@dataclass(frozen=True)
class Sample:
    """An sGraph, its closed form in float64, and the sizes of its symbols to try.

    Attributes:
        sgraph: the sGraph.
        reference: from float64 inputs to the outputs.
        bindings: values of the symbolic extents to try.
        symbols: assignments of tile and part symbols to try.
        denoted: what the sGraph denotes, where that is undefined at some inputs at which kernels have a value.
    """

    sgraph: SGraph
    reference: Arrays
    bindings: tuple[Mapping[str, int], ...]
    symbols: tuple[Mapping[str, int], ...]
    scale: float = 1.0
    special: Callable[[list[np.ndarray]], None] | None = field(default=None)
    denoted: Arrays | None = None

    @property
    def name(self) -> str:
        return self.sgraph.name

    def inputs(self, binding: Mapping[str, int], seed: int = 0) -> list[np.ndarray]:
        """Signed random inputs, rounded to each tensor's data type; bfloat16 ones as float32."""
        rng = np.random.default_rng(seed)
        made = []
        for t in self.sgraph.inputs:
            shape = [evaluate(e, binding) for e in t.shape]
            if t.dtype is DType.BOOL:
                made.append(rng.random(shape) < 0.5)
            elif not t.dtype.is_float:
                made.append(rng.integers(-4, 5, shape).astype(t.dtype.value))
            else:
                made.append(rounded(rng.standard_normal(shape) * self.scale, t.dtype))
        if self.special is not None:
            self.special(made)
        return made


def rounded(array: np.ndarray, dtype: DType) -> np.ndarray:
    """The array in the data type; bfloat16 as float32 without the low bits."""
    if dtype is DType.FLOAT16:
        return array.astype(np.float16)
    single = np.ascontiguousarray(array, np.float32)
    if dtype is DType.BFLOAT16:
        bits = single.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32).reshape(single.shape)
    return single


def sym(name: str) -> sympy.Symbol:
    return symbol(name)


def at(*axes: Axis) -> tuple[Index, ...]:
    return tuple(Index.axis(a) for a in axes)


def op(dst: str, name: str, *args: str | float) -> Pointwise:
    return Pointwise(dst, name, args)


def matmul(dtype: DType = F32, m: Extent = 40, k: Extent = 72, n: Extent = 24) -> Sample:
    """y[m, n] = sum_k x[m, k] * w[k, n]"""
    am, ak, an = Axis("m", m), Axis("k", k), Axis("n", n)
    body = (
        Loop(
            ak,
            (
                Load("x1", "x", at(am, ak)),
                Load("w1", "w", at(ak, an)),
                Contract("p", ak, "x1", "w1"),
                Accumulate("acc", SUM, "p"),
            ),
        ),
        Store("y", at(am, an), "acc"),
    )
    kernel = Kernel("matmul_kernel", ((am, Grid(sym("T_m"))), (an, Grid(sym("T_n"))), (ak, LoopRole(sym("T_k")))), body)
    sgraph = SGraph(
        "matmul", (Tensor("x", (m, k), dtype), Tensor("w", (k, n), dtype)), (), (Tensor("y", (m, n), dtype),), (kernel,)
    )
    tiles = ({"T_m": 16, "T_n": 8, "T_k": 32}, {"T_m": 8, "T_n": 16, "T_k": 8})
    return Sample(sgraph, lambda x, w: (x @ w,), ({"M": 19},) if m == sym("M") else ({},), tiles)


def symbolic_matmul(dtype: DType = F32) -> Sample:
    """The same with a symbolic number of rows."""
    return matmul(dtype, m=sym("M"))


def split_k_matmul(dtype: DType = F32, m: int = 20, k: int = 100, n: int = 24) -> Sample:
    """A matrix product whose sum S programs share; the second kernel adds their parts."""
    am, ak, an = Axis("m", m), Axis("k", k), Axis("n", n)
    parts = sym("S_k")
    part = part_axis(ak, parts)
    first = Kernel(
        "split_kernel",
        ((am, Grid(sym("T_m"))), (an, Grid(sym("T_n"))), (ak, Split(parts, sym("T_k")))),
        (
            Loop(
                ak,
                (
                    Load("x1", "x", at(am, ak)),
                    Load("w1", "w", at(ak, an)),
                    Contract("p", ak, "x1", "w1"),
                    Accumulate("acc", SUM, "p"),
                ),
            ),
            Store("partial", at(part, am, an), "acc"),
        ),
    )
    second = Kernel(
        "combine_kernel",
        ((am, Grid(sym("T_m_c"))), (an, Grid(sym("T_n_c"))), (part, Whole())),
        (Load("p1", "partial", at(part, am, an)), TileReduce("y1", SUM, part, "p1"), Store("y", at(am, an), "y1")),
    )
    sgraph = SGraph(
        "split_k_matmul",
        (Tensor("x", (m, k), dtype), Tensor("w", (k, n), dtype)),
        (Tensor("partial", (parts, m, n), F32),),
        (Tensor("y", (m, n), dtype),),
        (first, second),
    )
    # With 100/16 = 7 tiles, 4 parts of 2 tiles leave the last one short, and 8 parts leave one empty.
    tiles = tuple({"T_m": 16, "T_n": 16, "T_k": 16, "S_k": s, "T_m_c": 8, "T_n_c": 32} for s in (2, 4, 8))
    return Sample(sgraph, lambda x, w: (x @ w,), ({},), tiles)


def rmsnorm_linear(dtype: DType = F32, m: Extent = 20, d: int = 72, n: int = 24) -> Sample:
    """RMSNorm moved past the linear layer: one loop with two accumulators, then an epilogue."""
    am, ad, an = Axis("m", m), Axis("d", d), Axis("n", n)
    body = (
        Loop(
            ad,
            (
                Load("x1", "x", at(am, ad)),
                Load("g1", "g", at(ad)),
                Load("w1", "w", at(ad, an)),
                op("xg", "mul", "x1", "g1"),
                Contract("p", ad, "xg", "w1"),
                Accumulate("acc", SUM, "p"),
                Contract("q", ad, "x1", "x1"),
                Accumulate("sq", SUM, "q"),
            ),
        ),
        op("mean", "mul", "sq", 1.0 / d),
        op("shifted", "add", "mean", EPS),
        op("root", "sqrt", "shifted"),
        op("inv", "recip", "root"),
        op("out", "mul", "acc", "inv"),
        Store("y", at(am, an), "out"),
    )
    roles = ((am, Grid(sym("T_m"))), (an, Grid(sym("T_n"))), (ad, LoopRole(sym("T_d"))))
    sgraph = SGraph(
        "rmsnorm_linear",
        (Tensor("x", (m, d), dtype), Tensor("g", (d,), dtype), Tensor("w", (d, n), dtype)),
        (),
        (Tensor("y", (m, n), dtype),),
        (Kernel("rmsnorm_linear_kernel", roles, body),),
    )

    def reference(x: np.ndarray, g: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, ...]:
        return ((x * g) @ w / np.sqrt((x * x).mean(-1, keepdims=True) + EPS),)

    return Sample(sgraph, reference, ({},), ({"T_m": 16, "T_n": 8, "T_d": 32}, {"T_m": 8, "T_n": 32, "T_d": 16}))


def layernorm(dtype: DType = F32, m: Extent = 5, d: int = 72) -> Sample:
    """Two passes for mean and variance, a third that stores tile by tile."""
    am, ad = Axis("m", m), Axis("d", d)
    body: tuple[Stmt, ...] = (
        Loop(ad, (Load("x1", "x", at(am, ad)), TileReduce("s1", SUM, ad, "x1"), Accumulate("total", SUM, "s1"))),
        op("mean", "mul", "total", 1.0 / d),
        op("minus", "mul", "mean", -1.0),
        Loop(
            ad,
            (
                Load("x2", "x", at(am, ad)),
                op("c2", "add", "x2", "minus"),
                op("c2s", "mul", "c2", "c2"),
                TileReduce("v2", SUM, ad, "c2s"),
                Accumulate("squares", SUM, "v2"),
            ),
        ),
        op("var", "mul", "squares", 1.0 / d),
        op("vareps", "add", "var", EPS),
        op("std", "sqrt", "vareps"),
        op("inv", "recip", "std"),
        Loop(
            ad,
            (
                Load("x3", "x", at(am, ad)),
                Load("g3", "g", at(ad)),
                op("c3", "add", "x3", "minus"),
                op("n3", "mul", "c3", "inv"),
                op("y3", "mul", "n3", "g3"),
                Store("y", at(am, ad), "y3"),
            ),
        ),
    )
    kernel = Kernel("layernorm_kernel", ((am, Grid(sym("T_m"))), (ad, LoopRole(sym("T_d")))), body)
    sgraph = SGraph(
        "layernorm",
        (Tensor("x", (m, d), dtype), Tensor("g", (d,), dtype)),
        (),
        (Tensor("y", (m, d), dtype),),
        (kernel,),
    )

    def reference(x: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, ...]:
        centred = x - x.mean(-1, keepdims=True)
        return (centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS) * g,)

    return Sample(sgraph, reference, ({},), ({"T_m": 2, "T_d": 32}, {"T_m": 8, "T_d": 8}))


def attention(dtype: DType = F32, causal: bool = True, heads: int = 2, seq: Extent = 37, d: int = 20) -> Sample:
    """softmax_j(q k / sqrt(d) + mask) v in one pass over the keys, with rescaled accumulators."""
    h, i, j = Axis("h", heads), Axis("i", seq), Axis("j", seq)
    a, e = Axis("a", d), Axis("e", d)
    scale = d**-0.5
    masked: tuple[Stmt, ...] = (op("s", "mul", "qk", scale),)
    if causal:
        masked = (
            op("s0", "mul", "qk", scale),
            Position("pj", Index.axis(j)),
            Position("pi", Index.axis(i)),
            op("seen", "le", "pj", "pi"),
            op("s", "where", "seen", "s0", float("-inf")),
        )
    body = (
        Load("q1", "q", at(h, i, a)),
        Loop(
            j,
            (
                Load("k1", "k", at(h, j, a)),
                Contract("qk", a, "q1", "k1"),
                *masked,
                TileReduce("top", MAX, j, "s"),
                Accumulate("m", MAX, "top"),
                op("minus", "mul", -1.0, "m"),
                op("diff", "add", "s", "minus"),
                op("p", "exp", "diff"),
                TileReduce("psum", SUM, j, "p"),
                Accumulate("l", SUM, "psum", "m"),
                Load("v1", "v", at(h, j, e)),
                Contract("pv", j, "p", "v1"),
                Accumulate("o", SUM, "pv", "m"),
            ),
        ),
        op("inv", "recip", "l"),
        op("out", "mul", "o", "inv"),
        Store("y", at(h, i, e), "out"),
    )
    roles = ((h, Grid(1)), (i, Grid(sym("T_i"))), (j, LoopRole(sym("T_j"))), (a, Whole()), (e, Whole()))
    shape = (heads, seq, d)
    sgraph = SGraph(
        "attention",
        (Tensor("q", shape, dtype), Tensor("k", shape, dtype), Tensor("v", shape, dtype)),
        (),
        (Tensor("y", shape, dtype),),
        (Kernel("attention_kernel", roles, body),),
    )

    def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
        s = q @ k.swapaxes(-1, -2) * scale
        if causal:
            n = s.shape[-1]
            s = np.where(np.arange(n)[None, :] <= np.arange(n)[:, None], s, -np.inf)
        return (softmax(s) @ v,)

    bindings = ({"seq": 33},) if seq == sym("seq") else ({},)
    return Sample(sgraph, reference, bindings, ({"T_i": 16, "T_j": 16}, {"T_i": 32, "T_j": 8}), scale=2.0)


def softmax(s: np.ndarray) -> np.ndarray:
    p: np.ndarray = np.exp(s - s.max(-1, keepdims=True))
    normed: np.ndarray = p / p.sum(-1, keepdims=True)
    return normed


def split_attention(dtype: DType = F32, seq: int = 45, group: int = 4, d: int = 16) -> Sample:
    """Grouped-query decoding with a key mask: S programs share the keys; a second kernel combines them.

    Keys of whole parts are masked, so that a part has seen nothing but -inf, and one row has no key at all.
    """
    g, j, a, e = Axis("g", group), Axis("j", seq), Axis("a", d), Axis("e", d)
    parts = sym("S_j")
    part = part_axis(j, parts)
    first = Kernel(
        "decode_kernel",
        ((g, Grid(sym("T_g"))), (j, Split(parts, sym("T_j"))), (a, Whole()), (e, Whole())),
        (
            Load("q1", "q", at(g, a)),
            Loop(
                j,
                (
                    Load("k1", "k", at(j, a)),
                    Load("keep", "mask", at(g, j)),
                    Contract("qk", a, "q1", "k1"),
                    op("s", "where", "keep", "qk", float("-inf")),
                    TileReduce("top", MAX, j, "s"),
                    Accumulate("m", MAX, "top"),
                    op("minus", "neg", "m"),
                    op("diff", "add", "s", "minus"),
                    op("p", "exp", "diff"),
                    TileReduce("psum", SUM, j, "p"),
                    Accumulate("l", SUM, "psum", "m"),
                    Load("v1", "v", at(j, e)),
                    Contract("pv", j, "p", "v1"),
                    Accumulate("o", SUM, "pv", "m"),
                ),
            ),
            Store("part_m", at(part, g), "m"),
            Store("part_l", at(part, g), "l"),
            Store("part_o", at(part, g, e), "o"),
        ),
    )
    second = Kernel(
        "decode_combine",
        ((g, Grid(sym("T_g_c"))), (part, Whole()), (e, Whole())),
        (
            Load("m1", "part_m", at(part, g)),
            TileReduce("m2", MAX, part, "m1"),
            op("minus", "mul", -1.0, "m2"),
            op("diff", "add", "m1", "minus"),
            op("f", "exp", "diff"),
            Load("l1", "part_l", at(part, g)),
            op("l2", "mul", "f", "l1"),
            TileReduce("l3", SUM, part, "l2"),
            Load("o1", "part_o", at(part, g, e)),
            op("o2", "mul", "f", "o1"),
            TileReduce("o3", SUM, part, "o2"),
            op("inv", "recip", "l3"),
            op("out", "mul", "o3", "inv"),
            Store("y", at(g, e), "out"),
        ),
    )
    sgraph = SGraph(
        "split_attention",
        (
            Tensor("q", (group, d), dtype),
            Tensor("k", (seq, d), dtype),
            Tensor("v", (seq, d), dtype),
            Tensor("mask", (group, seq), DType.BOOL),
        ),
        (
            Tensor("part_m", (parts, group), F32),
            Tensor("part_l", (parts, group), F32),
            Tensor("part_o", (parts, group, d), F32),
        ),
        (Tensor("y", (group, d), dtype),),
        (first, second),
    )

    def special(arrays: list[np.ndarray]) -> None:
        arrays[3][...] = True
        arrays[3][1, :30] = False
        arrays[3][2, 10:] = False
        arrays[3][3, :] = False

    def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, ...]:
        with np.errstate(all="ignore"):
            return (softmax(np.where(mask != 0, q @ k.T, -np.inf)) @ v,)

    tiles = tuple({"T_g": t, "T_j": 8, "S_j": s, "T_g_c": 4} for t, s in ((4, 2), (2, 8)))
    return Sample(sgraph, reference, ({},), tiles, special=special)


def gated_mlp(dtype: DType = F32, m: int = 12, d: int = 40, f: int = 56, n: int = 24) -> Sample:
    """y = (silu(x w1) * (x w2)) w3: the hidden axis outside, the reduction of x inside."""
    am, ad, af, an = Axis("m", m), Axis("d", d), Axis("f", f), Axis("n", n)
    body = (
        Loop(
            af,
            (
                Loop(
                    ad,
                    (
                        Load("x1", "x", at(am, ad)),
                        Load("w1t", "w1", at(ad, af)),
                        Contract("a1", ad, "x1", "w1t"),
                        Accumulate("gate", SUM, "a1"),
                        Load("w2t", "w2", at(ad, af)),
                        Contract("a2", ad, "x1", "w2t"),
                        Accumulate("up", SUM, "a2"),
                    ),
                ),
                op("sig", "sigmoid", "gate"),
                op("silu", "mul", "gate", "sig"),
                op("hid", "mul", "silu", "up"),
                Load("w3t", "w3", at(af, an)),
                Contract("a3", af, "hid", "w3t"),
                Accumulate("out", SUM, "a3"),
            ),
        ),
        Store("y", at(am, an), "out"),
    )
    roles = ((am, Grid(sym("T_m"))), (an, Grid(sym("T_n"))), (af, LoopRole(sym("T_f"))), (ad, LoopRole(sym("T_d"))))
    sgraph = SGraph(
        "gated_mlp",
        (
            Tensor("x", (m, d), dtype),
            Tensor("w1", (d, f), dtype),
            Tensor("w2", (d, f), dtype),
            Tensor("w3", (f, n), dtype),
        ),
        (),
        (Tensor("y", (m, n), dtype),),
        (Kernel("gated_mlp_kernel", roles, body),),
    )

    def reference(x: np.ndarray, w1: np.ndarray, w2: np.ndarray, w3: np.ndarray) -> tuple[np.ndarray, ...]:
        gate = x @ w1
        return ((gate / (1 + np.exp(-gate)) * (x @ w2)) @ w3,)

    return Sample(sgraph, reference, ({},), ({"T_m": 16, "T_n": 32, "T_f": 16, "T_d": 16},), scale=0.3)


def add_silu(dtype: DType = F32, m: Extent = 7, n: int = 50) -> Sample:
    """Plain pointwise: x + silu(y)."""
    am, an = Axis("m", m), Axis("n", n)
    body = (
        Load("x1", "x", at(am, an)),
        Load("y1", "y", at(am, an)),
        op("s", "sigmoid", "y1"),
        op("silu", "mul", "y1", "s"),
        op("out", "add", "x1", "silu"),
        Store("z", at(am, an), "out"),
    )
    kernel = Kernel("add_silu_kernel", ((am, Grid(sym("T_m"))), (an, Grid(sym("T_n")))), body)
    sgraph = SGraph(
        "add_silu",
        (Tensor("x", (m, n), dtype), Tensor("y", (m, n), dtype)),
        (),
        (Tensor("z", (m, n), dtype),),
        (kernel,),
    )
    bindings = ({"M": 1}, {"M": 9}) if m == sym("M") else ({},)
    return Sample(
        sgraph, lambda x, y: (x + y / (1 + np.exp(-y)),), bindings, ({"T_m": 4, "T_n": 16}, {"T_m": 1, "T_n": 64})
    )


def moments(dtype: DType = F32, m: int = 6, d: int = 45) -> Sample:
    """Several outputs of one kernel, over a whole row: sum, maximum, minimum and product of a bounded function."""
    am, ad = Axis("m", m), Axis("d", d)
    body = (
        Load("x1", "x", at(am, ad)),
        TileReduce("s", SUM, ad, "x1"),
        TileReduce("hi", MAX, ad, "x1"),
        TileReduce("lo", ReduceKind.MIN, ad, "x1"),
        op("t", "cos", "x1"),
        TileReduce("pr", ReduceKind.PROD, ad, "t"),
        Store("total", at(am), "s"),
        Store("top", at(am), "hi"),
        Store("bottom", at(am), "lo"),
        Store("product", at(am), "pr"),
    )
    kernel = Kernel("moments_kernel", ((am, Grid(sym("T_m"))), (ad, Whole())), body)
    outputs = tuple(Tensor(name, (m,), F32) for name in ("total", "top", "bottom", "product"))
    sgraph = SGraph("moments", (Tensor("x", (m, d), dtype),), (), outputs, (kernel,))
    return Sample(
        sgraph,
        lambda x: (x.sum(-1), x.max(-1), x.min(-1), np.cos(x).prod(-1)),
        ({},),
        ({"T_m": 4}, {"T_m": 1}),
        scale=0.2,
    )


def rotated(dtype: DType = F32, m: int = 5, d: int = 12) -> Sample:
    """RoPE's halves: reads at d - half and d + half, outside of the tensor where `where` does not select them."""
    am, ad = Axis("m", m), Axis("d", d)
    half = d // 2
    before, after = Index(((ad, 1),), -half), Index(((ad, 1),), half)
    body = (
        Load("lo", "x", (Index.axis(am), before)),
        Load("hi", "x", (Index.axis(am), after)),
        Position("p", Index.axis(ad)),
        op("first", "lt", "p", float(half)),
        op("minus", "neg", "hi"),
        op("out", "where", "first", "minus", "lo"),
        Load("x1", "x", at(am, ad)),
        Load("c", "table", at(am, ad)),
        op("rot", "mul", "out", "c"),
        op("sum", "add", "rot", "x1"),
        Store("y", at(am, ad), "sum"),
    )
    kernel = Kernel("rotated_kernel", ((am, Grid(sym("T_m"))), (ad, Whole())), body)
    sgraph = SGraph(
        "rotated",
        (Tensor("x", (m, d), dtype), Tensor("table", (m, d), dtype)),
        (),
        (Tensor("y", (m, d), dtype),),
        (kernel,),
    )

    def reference(x: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.concatenate([-x[:, half:], x[:, :half]], -1) * table + x,)

    return Sample(sgraph, reference, ({},), ({"T_m": 2},))


def masked_rows(dtype: DType = F32, n: int = 70) -> Sample:
    """A causal softmax of rows and its gradient: what the mask hides of either input is not read.

    The gradient is multiplied by weights that are 0 there, so that it may not be a number.
    """
    i, j = Axis("i", n), Axis("j", n)
    body = (
        Load("x1", "x", at(i, j)),
        Load("d1", "d", at(i, j)),
        Position("pi", Index.axis(i)),
        Position("pj", Index.axis(j)),
        op("seen", "le", "pj", "pi"),
        op("s", "where", "seen", "x1", float("-inf")),
        TileReduce("top", MAX, j, "s"),
        op("minus", "neg", "top"),
        op("diff", "add", "s", "minus"),
        op("p", "exp", "diff"),
        TileReduce("total", SUM, j, "p"),
        op("inv", "recip", "total"),
        op("w", "mul", "p", "inv"),
        Contract("mean", j, "w", "d1"),
        op("less", "neg", "mean"),
        op("g", "add", "d1", "less"),
        op("dx", "mul", "w", "g"),
        Store("y", at(i, j), "w"),
        Store("z", at(i, j), "dx"),
    )
    kernel = Kernel("masked_rows_kernel", ((i, Grid(sym("T_i"))), (j, Whole())), body)
    tensors = [Tensor(name, (n, n), dtype) for name in "xdyz"]
    sgraph = SGraph("masked_rows", tuple(tensors[:2]), (), tuple(tensors[2:]), (kernel,))
    keep = np.tril(np.ones((n, n), bool))
    # 32 elements of half precision come from memory together.
    apart = np.arange(n)[None, :] // 32 > np.arange(n)[:, None] // 32

    def special(made: list[np.ndarray]) -> None:
        for a in made:
            a[apart] = np.nan

    def computed(x: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, ...]:
        w = softmax(np.where(keep, x, -np.inf))
        return w, w * (d - (w * d).sum(-1, keepdims=True))

    def reference(x: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, ...]:
        return computed(x, np.where(keep, d, 0.0))

    return Sample(sgraph, reference, ({},), ({"T_i": 2}, {"T_i": 8}), special=special, denoted=computed)


def grouped_attention(
    dtype: DType = F32, groups: int = 2, per: int = 3, queries: int = 5, seq: int = 40, d: int = 16
) -> Sample:
    """Grouped-query attention: heads of a group and queries are both rows of the matrix products."""
    b, h, i, j = Axis("b", groups), Axis("h", per), Axis("i", queries), Axis("j", seq)
    a, e = Axis("a", d), Axis("e", d)
    body = (
        Load("q1", "q", at(b, h, i, a)),
        Loop(
            j,
            (
                Load("k1", "k", at(b, j, a)),
                Contract("qk", a, "q1", "k1"),
                Position("pj", Index.axis(j)),
                Position("pi", Index(((i, 1),), seq - queries)),
                op("seen", "le", "pj", "pi"),
                op("s", "where", "seen", "qk", float("-inf")),
                TileReduce("top", MAX, j, "s"),
                Accumulate("m", MAX, "top"),
                op("minus", "mul", -1.0, "m"),
                op("diff", "add", "s", "minus"),
                op("p", "exp", "diff"),
                TileReduce("psum", SUM, j, "p"),
                Accumulate("l", SUM, "psum", "m"),
                Load("v1", "v", at(b, j, e)),
                Contract("pv", j, "p", "v1"),
                Accumulate("o", SUM, "pv", "m"),
            ),
        ),
        op("inv", "recip", "l"),
        op("out", "mul", "o", "inv"),
        Store("y", at(b, h, i, e), "out"),
    )
    roles = (
        (b, Grid(1)),
        (h, Grid(sym("T_h"))),
        (i, Grid(sym("T_i"))),
        (j, LoopRole(sym("T_j"))),
        (a, Whole()),
        (e, Whole()),
    )
    shape = (groups, per, queries, d)
    sgraph = SGraph(
        "grouped_attention",
        (Tensor("q", shape, dtype), Tensor("k", (groups, seq, d), dtype), Tensor("v", (groups, seq, d), dtype)),
        (),
        (Tensor("y", shape, dtype),),
        (Kernel("grouped_kernel", roles, body),),
    )

    def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
        s = np.einsum("bhia,bja->bhij", q, k)
        s = np.where(np.arange(seq)[None, :] <= np.arange(queries)[:, None] + seq - queries, s, -np.inf)
        return (np.einsum("bhij,bje->bhie", softmax(s), v),)

    return Sample(sgraph, reference, ({},), ({"T_h": 4, "T_i": 4, "T_j": 16}, {"T_h": 1, "T_i": 8, "T_j": 64}))


def heads_projection(dtype: DType = F32, m: int = 6, heads: int = 3, d: int = 8, k: int = 24) -> Sample:
    """sum over heads and elements of a projection: operands whose dimensions must be rearranged for the product.

    y[m, n] = sum_d (sum_h x[m, h, d]) * w[d, n], with a maximum over (m, d) that keeps the axes from being packed.
    """
    am, ah, ad, an = Axis("m", m), Axis("h", heads), Axis("d", d), Axis("n", k)
    body = (
        Load("x1", "x", at(am, ah, ad)),
        Load("w1", "w", at(ad, an)),
        Contract("p", ad, "x1", "w1"),
        TileReduce("y1", SUM, ah, "p"),
        Store("y", at(am, an), "y1"),
    )
    roles = ((am, Grid(sym("T_m"))), (an, Grid(sym("T_n"))), (ah, Whole()), (ad, Whole()))
    sgraph = SGraph(
        "heads_projection",
        (Tensor("x", (m, heads, d), dtype), Tensor("w", (d, k), dtype)),
        (),
        (Tensor("y", (m, k), dtype),),
        (Kernel("heads_kernel", roles, body),),
    )
    return Sample(sgraph, lambda x, w: (x.sum(1) @ w,), ({},), ({"T_m": 4, "T_n": 16},))


def batched_loop(dtype: DType = F32, b: int = 3, m: int = 10, k: int = 24, n: int = 12) -> Sample:
    """A sum over a batch axis that is walked one element at a time: y[m, n] = sum_b sum_k x[b, m, k] * w[b, k, n]."""
    ab, am, ak, an = Axis("b", b), Axis("m", m), Axis("k", k), Axis("n", n)
    body = (
        Loop(
            ab,
            (
                Loop(
                    ak,
                    (
                        Load("x1", "x", at(ab, am, ak)),
                        Load("w1", "w", at(ab, ak, an)),
                        Contract("p", ak, "x1", "w1"),
                        Accumulate("inner", SUM, "p"),
                    ),
                ),
                TileReduce("each", SUM, ab, "inner"),
                Accumulate("acc", SUM, "each"),
            ),
        ),
        Store("y", at(am, an), "acc"),
    )
    roles = ((am, Grid(sym("T_m"))), (an, Grid(sym("T_n"))), (ab, LoopRole(1)), (ak, LoopRole(sym("T_k"))))
    sgraph = SGraph(
        "batched_loop",
        (Tensor("x", (b, m, k), dtype), Tensor("w", (b, k, n), dtype)),
        (),
        (Tensor("y", (m, n), dtype),),
        (Kernel("batched_kernel", roles, body),),
    )
    return Sample(sgraph, lambda x, w: (np.einsum("bmk,bkn->mn", x, w),), ({},), ({"T_m": 16, "T_n": 16, "T_k": 16},))


def functions(dtype: DType = F32, n: int = 61) -> Sample:
    """One output per pointwise operation, on values where they are defined."""
    an = Axis("n", n)
    unary = ("tanh", "atan", "erf", "abs", "sign", "floor", "round", "sin", "cos")
    body: list[Stmt] = [Load("x1", "x", at(an)), Load("i1", "ids", at(an)), Load("b1", "flags", at(an))]
    for name in unary:
        body.append(op(f"v_{name}", name, "x1"))
    body += [
        op("v_half", "mul", "x1", 0.5),
        op("v_square", "pow", "v_half", 2.0),
        op("v_cube", "pow", "v_half", 3.0),
        op("size", "abs", "x1"),
        op("above", "add", "size", 1.0),
        op("v_log", "log", "above"),
        op("v_pow", "pow", "above", "v_half"),
        op("v_recip", "recip", "above"),
        op("small", "lt", "x1", 0.0),
        op("nan", "isnan", "x1"),
        op("both", "and", "small", "b1"),
        op("either", "or", "both", "nan"),
        op("neither", "not", "either"),
        op("v_chosen", "where", "neither", "x1", -1.0),
        op("v_bits", "bitand", "i1", 6.0),
        op("twice", "mul", "i1", 2.0),
        op("same", "eq", "twice", 4.0),
        op("v_mixed", "where", "same", "x1", "twice"),
        op("clipped", "maximum", "x1", 0.0),
        op("v_relu6", "minimum", "clipped", 1.5),
    ]
    names = [s.dst for s in body if isinstance(s, Pointwise) and s.dst.startswith("v_")]
    body += [Store(name[2:] + "_out", at(an), name) for name in names]
    outputs = tuple(Tensor(name[2:] + "_out", (n,), F32) for name in names)
    sgraph = SGraph(
        "functions",
        (Tensor("x", (n,), dtype), Tensor("ids", (n,), DType.INT64), Tensor("flags", (n,), DType.BOOL)),
        (),
        outputs,
        (Kernel("functions_kernel", ((an, Grid(sym("T_n"))),), tuple(body)),),
    )

    def reference(x: np.ndarray, ids: np.ndarray, flags: np.ndarray) -> tuple[np.ndarray, ...]:
        from math import erf

        half, above = 0.5 * x, np.abs(x) + 1
        chosen = np.where(~(((x < 0) & (flags != 0)) | np.isnan(x)), x, -1.0)
        return (
            np.tanh(x), np.arctan(x), np.vectorize(erf)(x), np.abs(x), np.sign(x), np.floor(x), np.round(x), np.sin(x),
            np.cos(x), half, half**2, half**3, np.log(above), above**half, 1 / above, chosen, ids.astype(np.int64) & 6,
            np.where(2 * ids == 4, x, 2 * ids), np.clip(np.maximum(x, 0), None, 1.5),
        )  # fmt: skip

    def special(arrays: list[np.ndarray]) -> None:
        arrays[0][:8] = [0.5, 1.5, 2.5, -0.5, -1.5, 1e-3, -1e-3, 0.0]

    return Sample(sgraph, reference, ({},), ({"T_n": 32},), scale=1.5, special=special)


def causal_symbolic(dtype: DType = F32) -> Sample:
    """Causal attention over a symbolic sequence length."""
    return attention(dtype, seq=sym("seq"))


def symbolic_pointwise(dtype: DType = F32) -> Sample:
    """x + silu(y) with a symbolic number of rows, one included."""
    return add_silu(dtype, m=sym("M"))


def row_sums(dtype: DType = F32, m: int = 20, d: int = 40, n: int = 24) -> Sample:
    """A product and a row sum of one loop: the sum does not have the grid's second axis, along which one stores.

    y[m, n] = sum_d x[m, d] * w[d, n] + total[m] * total[m], total[m] = sum_d x[m, d]
    """
    am, ad, an = Axis("m", m), Axis("d", d), Axis("n", n)
    body = (
        Loop(
            ad,
            (
                Load("x1", "x", at(am, ad)),
                Load("w1", "w", at(ad, an)),
                Contract("p", ad, "x1", "w1"),
                Accumulate("acc", SUM, "p"),
                TileReduce("s", SUM, ad, "x1"),
                Accumulate("sums", SUM, "s"),
            ),
        ),
        op("squares", "mul", "sums", "sums"),
        op("out", "add", "acc", "squares"),
        Store("y", at(am, an), "out"),
        Store("total", at(am), "sums"),
    )
    roles = ((am, Grid(sym("T_m"))), (an, Grid(sym("T_n"))), (ad, LoopRole(sym("T_d"))))
    sgraph = SGraph(
        "row_sums",
        (Tensor("x", (m, d), dtype), Tensor("w", (d, n), dtype)),
        (),
        (Tensor("y", (m, n), dtype), Tensor("total", (m,), F32)),
        (Kernel("row_sums_kernel", roles, body),),
    )
    return Sample(
        sgraph,
        lambda x, w: (x @ w + x.sum(-1, keepdims=True) ** 2, x.sum(-1)),
        ({},),
        ({"T_m": 8, "T_n": 8, "T_d": 16},),
        scale=0.5,
    )


def shared_axis_attention(dtype: DType = F32, seq: int = 21, d: int = 16) -> Sample:
    """Attention whose values are read along the very axis that the scores contract: k[j, d] and v[j, d]."""
    i, j, a = Axis("i", seq), Axis("j", seq), Axis("d", d)
    body = (
        Load("q1", "q", at(i, a)),
        Loop(
            j,
            (
                Load("k1", "k", at(j, a)),
                Contract("s", a, "q1", "k1"),
                TileReduce("top", MAX, j, "s"),
                Accumulate("m", MAX, "top"),
                op("minus", "neg", "m"),
                op("diff", "add", "s", "minus"),
                op("p", "exp", "diff"),
                TileReduce("psum", SUM, j, "p"),
                Accumulate("l", SUM, "psum", "m"),
                Load("v1", "v", at(j, a)),
                Contract("pv", j, "p", "v1"),
                Accumulate("o", SUM, "pv", "m"),
            ),
        ),
        op("inv", "recip", "l"),
        op("out", "mul", "o", "inv"),
        Store("y", at(i, a), "out"),
    )
    shape = (seq, d)
    sgraph = SGraph(
        "shared_axis_attention",
        (Tensor("q", shape, dtype), Tensor("k", shape, dtype), Tensor("v", shape, dtype)),
        (),
        (Tensor("y", shape, dtype),),
        (Kernel("shared_kernel", ((i, Grid(sym("T_i"))), (j, LoopRole(sym("T_j"))), (a, Whole())), body),),
    )
    return Sample(sgraph, lambda q, k, v: (softmax(q @ k.T) @ v,), ({},), ({"T_i": 16, "T_j": 16},))


def running_state(dtype: DType = F32, n: Extent = 5, c: int = 24, d: int = 16) -> Sample:
    """What chunks n read of all up to them: y[n, c, e] = sum_d q[n, c, d] * sum_{m <= n, c} k[m, c, d] v[m, c, e]"""
    chunk, row, a, b = Axis("n", n), Axis("c", c), Axis("d", d), Axis("e", d)
    body = (
        Loop(
            chunk,
            (
                Load("k1", "k", at(chunk, row, a)),
                Load("v1", "v", at(chunk, row, b)),
                Contract("kv", row, "k1", "v1"),
                Scan("state", chunk, "kv"),
                Load("q1", "q", at(chunk, row, a)),
                Contract("out", a, "q1", "state"),
                Store("y", at(chunk, row, b), "out"),
            ),
        ),
    )
    roles = ((b, Grid(sym("T_e"))), (chunk, LoopRole(1)), (row, Whole()), (a, Whole()))
    sgraph = SGraph(
        "running_state",
        tuple(Tensor(t, (n, c, d), dtype) for t in ("q", "k", "v")),
        (),
        (Tensor("y", (n, c, d), dtype),),
        (Kernel("running_kernel", roles, body),),
    )

    def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray]:
        return (q @ np.cumsum(k.transpose(0, 2, 1) @ v, axis=0),)

    return Sample(sgraph, reference, ({},), ({"T_e": 16},))


def _recurrence(growth: np.ndarray, added: np.ndarray, how: Recurrence = SO_FAR) -> np.ndarray:
    """By place of the first axis, the state times its growth, plus what is added; or the state as it was before.

    Or the state plus its growth, or what is added where that is larger, or smaller.
    """
    way = slice(None, None, -1 if how.back else 1)
    combine = {ReduceKind.SUM: np.add, ReduceKind.MAX: np.maximum, ReduceKind.MIN: np.minimum}[how.kind]
    grow = np.add if how.kind.is_extreme else np.multiply
    by_place = growth if how.factors or how.kind.is_extreme else np.exp(growth)
    state, found, before = np.full_like(added[0], how.kind.identity), [], how.before
    for n, (new, by) in enumerate(zip(added[way], by_place[way], strict=True)):
        after = combine(grow(by, state), new) if n else new
        found.append(state if before else after)
        state = after
    return np.stack(found[way])


def decaying_state(dtype: DType = F32, n: Extent = 5, c: int = 24, d: int = 16, before: bool = False) -> Sample:
    """What chunks n read of all up to them, each less the older it is: states times exp(-|a[n]|) from each to the next.

    With `before`, they read what the chunks before them left.
    """
    sample = running_state(dtype, n, c, d)
    kernel = sample.sgraph.kernels[0]
    (loop,) = kernel.body
    assert isinstance(loop, Loop)
    chunk = loop.axis
    decay = (Load("a1", "a", at(chunk)), op("size", "abs", "a1"), op("g", "neg", "size"))
    scan = Scan("state", chunk, "kv", "g", how=Recurrence(before=before))
    inner = (*decay, *(scan if isinstance(s, Scan) else s for s in loop.body))
    name = "state_before" if before else "decaying_state"
    sgraph = replace(
        sample.sgraph,
        name=name,
        inputs=(*sample.sgraph.inputs, Tensor("a", (n,), dtype)),
        kernels=(replace(kernel, name=f"{name}_kernel", body=(replace(loop, body=inner),)),),
    )

    def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, a: np.ndarray) -> tuple[np.ndarray]:
        states = k.transpose(0, 2, 1) @ v
        return (q @ _recurrence(np.broadcast_to(-np.abs(a)[:, None, None], states.shape), states, scan.how),)

    return replace(sample, sgraph=sgraph, reference=reference)


def state_before(dtype: DType = F32) -> Sample:
    """What each chunk reads of those before it."""
    return decaying_state(dtype, before=True)


def one_by_one(dtype: DType = F32) -> Sample:
    """The recurrence of `decays`, by elements."""
    return decays(dtype, tile=1)


def decays(
    dtype: DType = F32,
    whole: bool = False,
    tile: int = 0,
    how: Recurrence = SO_FAR,
    growth: str | float = "g",
) -> Sample:
    """y[m, k] = exp(-|a[m, k]|) * y[m, k-1] + x[m, k], by tiles of the axis, by its elements or in one tile

    Or as `how` has it: -|a[m, k]| * y[m, k + 1] + x[m, k], for instance, or max(y[m, k-1] - |a[m, k]|, x[m, k]).
    """
    m, k = Axis("m", 20), Axis("k", sym("K"))
    body: tuple[Stmt, ...] = (
        Load("x1", "x", at(m, k)),
        Load("a1", "a", at(m, k)),
        op("size", "abs", "a1"),
        op("g", "neg", "size"),
        Scan("sums", k, "x1", growth, how),
        Store("y", at(m, k), "sums"),
    )
    role = Whole() if whole else LoopRole(tile or sym("T_k"))
    kernel = Kernel("decay_kernel", ((m, Grid(sym("T_m"))), (k, role)), body if whole else (Loop(k, body),))
    shape = (20, sym("K"))
    inputs = (Tensor("x", shape, dtype), Tensor("a", shape, dtype))
    name = f"decays_{tile or ('whole' if whole else 'tiled')}_{how}".replace(" ", "_")
    sgraph = SGraph(name, inputs, (), (Tensor("y", shape, dtype),), (kernel,))
    tiles = ({"T_m": 8, "T_k": 16}, {"T_m": 16, "T_k": 32}) if not (whole or tile) else ({"T_m": 8},)

    def reference(x: np.ndarray, a: np.ndarray) -> tuple[np.ndarray]:
        by = -np.abs(a.T) if isinstance(growth, str) else np.full_like(a.T, growth)
        return (_recurrence(by, x.T, how).T,)

    return Sample(sgraph, reference, ({"K": 37}, {"K": 64}, {"K": 5}), tiles)


def gates_from_the_end(dtype: DType = F32) -> Sample:
    """y[m, k] = -|a[m, k]| * y[m, k + 1] + x[m, k]"""
    return decays(dtype, how=Recurrence(back=True, factors=True))


def whole_gates_from_the_end(dtype: DType = F32) -> Sample:
    """The same in one tile."""
    return decays(dtype, whole=True, how=Recurrence(back=True, factors=True))


def decays_from_the_end(dtype: DType = F32) -> Sample:
    """y[m, k] = exp(-|a[m, k]|) * y[m, k + 1] + x[m, k]"""
    return decays(dtype, how=Recurrence(back=True))


def averages(dtype: DType = F32) -> Sample:
    """y[m, k] = 0.5 * y[m, k - 1] + x[m, k]"""
    return decays(dtype, how=Recurrence(factors=True), growth=0.5)


def gates_one_by_one(dtype: DType = F32) -> Sample:
    """What is left by what comes later, -|a[m, k + 1]| times what that is left plus x[m, k + 1], by elements"""
    return decays(dtype, tile=1, how=Recurrence(before=True, back=True, factors=True))


def largest_that_decays(dtype: DType = F32) -> Sample:
    """y[m, k] = max(y[m, k - 1] - |a[m, k]|, x[m, k])"""
    return decays(dtype, how=Recurrence(ReduceKind.MAX))


def least_that_falls(dtype: DType = F32) -> Sample:
    """y[m, k] = min(y[m, k + 1] - |a[m, k]|, x[m, k])"""
    return decays(dtype, how=Recurrence(ReduceKind.MIN, back=True))


def whole_largest_that_decays(dtype: DType = F32) -> Sample:
    """y[m, k] = max(y[m, k + 1] - 0.25, x[m, k]) in one tile"""
    return decays(dtype, whole=True, how=Recurrence(ReduceKind.MAX, back=True), growth=-0.25)


def largest_before(dtype: DType = F32) -> Sample:
    """The largest before each place, less |a[m, k]| from each place to the next, by elements; 0 where there is none"""
    sample = decays(dtype, tile=1, how=Recurrence(ReduceKind.MAX, before=True))
    kernel = sample.sgraph.kernels[0]
    (loop,) = kernel.body
    assert isinstance(loop, Loop)
    *body, store = loop.body
    assert isinstance(store, Store)
    none = (op("none", "eq", "sums", -math.inf), op("most", "where", "none", 0.0, "sums"), replace(store, src="most"))
    kernels = (replace(kernel, body=(replace(loop, body=(*body, *none)),)),)

    def reference(x: np.ndarray, a: np.ndarray) -> tuple[np.ndarray]:
        (found,) = sample.reference(x, a)
        return (np.where(np.isneginf(found), 0.0, found),)

    return replace(sample, sgraph=replace(sample.sgraph, kernels=kernels), reference=reference)


def whole_decays(dtype: DType = F32) -> Sample:
    """The same in one tile."""
    return decays(dtype, whole=True)


def sums_before(dtype: DType = F32) -> Sample:
    """y[m, k] = sum_{j < k} exp(x[m, j])"""
    sample = prefix_sums(dtype)

    def changed(s: Stmt) -> Stmt:
        return replace(s, how=Recurrence(before=True)) if isinstance(s, Scan) else s

    kernel = sample.sgraph.kernels[0]
    loop = kernel.body[0]
    assert isinstance(loop, Loop)
    kernel = replace(kernel, name="before_kernel", body=(replace(loop, body=tuple(map(changed, loop.body))),))

    def reference(x: np.ndarray) -> tuple[np.ndarray]:
        return (np.cumsum(np.exp(x), axis=1) - np.exp(x),)

    return replace(sample, sgraph=replace(sample.sgraph, name="sums_before", kernels=(kernel,)), reference=reference)


def prefix_sums(dtype: DType = F32, whole: bool = False) -> Sample:
    """y[m, k] = sum_{j <= k} exp(x[m, j]), by tiles of the summed axis or in one"""
    m, k = Axis("m", 20), Axis("k", sym("K"))
    body: tuple[Stmt, ...] = (
        Load("x1", "x", at(m, k)),
        op("p", "exp", "x1"),
        Scan("sums", k, "p"),
        Store("y", at(m, k), "sums"),
    )
    role = Whole() if whole else LoopRole(sym("T_k"))
    kernel = Kernel("prefix_kernel", ((m, Grid(sym("T_m"))), (k, role)), body if whole else (Loop(k, body),))
    shape = (20, sym("K"))
    sgraph = SGraph("prefix_sums", (Tensor("x", shape, dtype),), (), (Tensor("y", shape, dtype),), (kernel,))
    tiles = ({"T_m": 8},) if whole else ({"T_m": 8, "T_k": 16}, {"T_m": 16, "T_k": 32})
    return Sample(sgraph, lambda x: (np.cumsum(np.exp(x), axis=1),), ({"K": 37}, {"K": 64}, {"K": 5}), tiles)


def running_kinds(dtype: DType = F32, whole: bool = False, back: bool = False) -> Sample:
    """Of exp(x[m, k] / 16), the product before each place, less the largest and the least up to it, or from it on"""
    m, k = Axis("m", 20), Axis("k", sym("K"))
    body: tuple[Stmt, ...] = (
        Load("x1", "x", at(m, k)),
        op("small", "mul", "x1", 0.0625),
        op("p", "exp", "small"),
        Scan("product", k, "p", None, Recurrence(ReduceKind.PROD, before=True, back=back)),
        Scan("so_far", k, "p", None, Recurrence(ReduceKind.PROD, back=back)),
        Scan("most", k, "p", None, Recurrence(ReduceKind.MAX, back=back)),
        Scan("least", k, "p", None, Recurrence(ReduceKind.MIN, back=back)),
        op("half", "mul", "so_far", 0.5),
        op("both", "add", "product", "half"),
        op("range", "add", "most", "least"),
        op("sum", "add", "both", "range"),
        Store("y", at(m, k), "sum"),
    )
    role = Whole() if whole else LoopRole(sym("T_k"))
    kernel = Kernel("kinds_kernel", ((m, Grid(sym("T_m"))), (k, role)), body if whole else (Loop(k, body),))
    shape = (20, sym("K"))
    name = f"kinds{'_whole' * whole}{'_back' * back}"
    sgraph = SGraph(name, (Tensor("x", shape, dtype),), (), (Tensor("y", shape, dtype),), (kernel,))
    tiles = ({"T_m": 8},) if whole else ({"T_m": 8, "T_k": 16}, {"T_m": 16, "T_k": 32})

    def reference(x: np.ndarray) -> tuple[np.ndarray]:
        p = np.exp((x[:, ::-1] if back else x) / 16)
        product = np.cumprod(p, axis=1)
        before = np.concatenate((np.ones_like(p[:, :1]), product[:, :-1]), axis=1)
        found = before + product / 2 + np.maximum.accumulate(p, axis=1) + np.minimum.accumulate(p, axis=1)
        return (found[:, ::-1] if back else found,)

    return Sample(sgraph, reference, ({"K": 37}, {"K": 64}, {"K": 5}), tiles)


def whole_kinds_from_the_end(dtype: DType = F32) -> Sample:
    """The same in one tile, from the last place on."""
    return running_kinds(dtype, whole=True, back=True)


def kinds_from_the_end(dtype: DType = F32) -> Sample:
    """The same by tiles, from the last place on."""
    return running_kinds(dtype, back=True)


def weights_so_far(
    dtype: DType = F32,
    whole: bool = False,
    back: bool = False,
    tile: sympy.Symbol | int | None = None,
    decay: float = 0.0,
    before: bool = False,
) -> Sample:
    """y[m, k] = sum_{j <= k} exp(64 x[m, j] - M[m, k]) v[m, j], M the largest 64 x up to k; the first two x are -inf

    With a `decay`, each exponent is less by it for each place since; with `before`, j < k.
    """
    m, k = Axis("m", 20), Axis("k", sym("K"))
    body: tuple[Stmt, ...] = (
        Load("x1", "x", at(m, k)),
        op("wide", "mul", "x1", 64.0),
        Scan("most", k, "wide", -decay if decay else None, Recurrence(ReduceKind.MAX, back=back)),
        op("less", "mul", -1.0, "most"),
        op("below", "add", "wide", "less"),
        op("p", "exp", "below"),
        Load("v1", "v", at(m, k)),
        op("weighted", "mul", "p", "v1"),
        Scan("sums", k, "weighted", "most", Recurrence(before=before, back=back, rescaled=True)),
        Store("y", at(m, k), "sums"),
    )
    role = Whole() if whole else LoopRole(sym("T_k") if tile is None else tile)
    kernel = Kernel("weights_kernel", ((m, Grid(sym("T_m"))), (k, role)), body if whole else (Loop(k, body),))
    shape = (20, sym("K"))
    sgraph = SGraph(
        f"weights{'_whole' * whole}{'_back' * back}{'_before' * before}{'_decaying' * bool(decay)}",
        (Tensor("x", shape, dtype), Tensor("v", shape, dtype)),
        (),
        (Tensor("y", shape, dtype),),
        (kernel,),
    )
    ways = slice(None, None, -1 if back else 1)

    def reference(x: np.ndarray, v: np.ndarray) -> tuple[np.ndarray]:
        x, v = 64 * x[:, ways], v[:, ways]
        places = np.arange(x.shape[1])
        since = places[:, None] - places[None] - before
        exponents = np.where(since >= 0, x[:, None, :] - decay * since, -np.inf)
        most = exponents.max(-1, keepdims=True)
        below = exponents - np.where(np.isfinite(most), most, 0.0)
        return ((np.exp(below) * v[:, None, :]).sum(-1)[:, ways],)

    def denoted(x: np.ndarray, v: np.ndarray) -> tuple[np.ndarray]:
        """A kernel subtracts 0 while all is -inf so far, where this is -inf - -inf; but before the first place, too."""
        if before:
            return reference(x, v)
        unseen = np.isneginf(np.maximum.accumulate(x[:, ways], axis=1)[:, ways])
        return (np.where(unseen, np.nan, reference(x, v)[0]),)

    def unseen(inputs: list[np.ndarray]) -> None:
        inputs[0][:, ways][:, :2] = -np.inf

    tiles: tuple[Mapping[str, int], ...] = ({"T_m": 8, "T_k": 16}, {"T_m": 16, "T_k": 32})
    if whole or tile is not None:
        tiles = ({"T_m": 8},)
    return Sample(sgraph, reference, ({"K": 37}, {"K": 64}, {"K": 5}), tiles, special=unseen, denoted=denoted)


def weights_from_the_end(dtype: DType = F32) -> Sample:
    """The same from the last place on."""
    return weights_so_far(dtype, back=True)


def whole_weights_from_the_end(dtype: DType = F32) -> Sample:
    """The same in one tile."""
    return weights_so_far(dtype, whole=True, back=True)


def weights_one_by_one(dtype: DType = F32) -> Sample:
    """The same up to each place, by elements."""
    return weights_so_far(dtype, tile=1)


def weights_that_decay(dtype: DType = F32) -> Sample:
    """The same with less weight by exp(-3) for each place since, by elements."""
    return weights_so_far(dtype, tile=1, decay=3.0)


def weights_that_decay_before(dtype: DType = F32) -> Sample:
    """The same of the places behind each, from the last one on."""
    return weights_so_far(dtype, tile=1, back=True, decay=3.0, before=True)


def weights_before(dtype: DType = F32) -> Sample:
    """The same before each place, without a decay."""
    return weights_so_far(dtype, tile=1, before=True)


def whole_prefix_sums(dtype: DType = F32) -> Sample:
    """The same in one tile."""
    return prefix_sums(dtype, whole=True)


def elements(table: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The rows of a table at places, and zeros where there is none."""
    legal = (places >= 0) & (places < len(table))
    found = table[np.where(legal, places, 0).astype(np.int64)]
    return np.where(legal.reshape(-1, *[1] * (found.ndim - 1)), found, 0.0)


def lookups(dtype: DType = F32, m: int = 21, d: int = 40, rows: Extent = 3, shift: int = 0) -> Sample:
    """y[m, d] = 2 x[i[m] - shift, d] + v[j[d]], at places of which some are outside: by rows, and by elements"""
    am, ad = Axis("m", m), Axis("d", d)
    zero = Index.const(0)
    body = (
        Load("i1", "i", at(am)),
        Gather("x1", "x", (Index.const(-shift), Index.axis(ad)), (Place("i1", 0, add(rows, 2 * shift)),)),
        Load("j1", "j", at(ad)),
        Gather("v1", "v", (zero,), (Place("j1", 0, 4),)),
        op("twice", "add", "x1", "x1"),
        op("sum", "add", "twice", "v1"),
        Store("y", at(am, ad), "sum"),
    )
    kernel = Kernel("lookups_kernel", ((am, Grid(sym("T_m"))), (ad, Grid(sym("T_d")))), body)
    inputs = (
        Tensor("i", (m,), DType.INT64),
        Tensor("x", (rows, d), dtype),
        Tensor("j", (d,), DType.INT32),
        Tensor("v", (4,), dtype),
    )
    name = "lookups_beyond_a_table" if shift else "lookups"
    sgraph = SGraph(name, inputs, (), (Tensor("y", (m, d), dtype),), (kernel,))
    tiles = ({"T_m": 8, "T_d": 16}, {"T_m": 1, "T_d": 64})

    def reference(i: np.ndarray, x: np.ndarray, j: np.ndarray, v: np.ndarray) -> tuple[np.ndarray]:
        return (2 * elements(x, i - shift) + elements(v, j),)

    return Sample(sgraph, reference, ({},) if isinstance(rows, int) else ({"R": 2}, {"R": 5}), tiles)


def lookups_in_any_table(dtype: DType = F32) -> Sample:
    """The same in a table of a symbolic number of rows."""
    return lookups(dtype, rows=sym("R"))


def lookups_beyond_a_table(dtype: DType = F32) -> Sample:
    """The same at places of which more are outside: those of a longer tensor, of which the table is a part."""
    return lookups(dtype, rows=sym("R"), shift=1)


def looked_up_product(m: int = 21, k: int = 40, n: int = 24) -> Sample:
    """y[n, m] = sum_k w[k, n] * 2 x[i[m], k]: rows that data choose, in a product that is stored across them"""
    am, ak, an = Axis("m", m), Axis("k", k), Axis("n", n)
    body = (
        Load("i1", "i", at(am)),
        Gather("x1", "x", (Index.const(0), Index.axis(ak)), (Place("i1", 0, 3),)),
        op("twice", "add", "x1", "x1"),
        Load("w1", "w", at(ak, an)),
        Contract("p", ak, "w1", "twice"),
        Store("y", at(an, am), "p"),
    )
    kernel = Kernel("product_kernel", ((am, Grid(sym("T_m"))), (an, Grid(sym("T_n"))), (ak, Whole())), body)
    inputs = (Tensor("i", (m,), DType.INT64), Tensor("x", (3, k), F32), Tensor("w", (k, n), F32))
    sgraph = SGraph("looked_up", inputs, (), (Tensor("y", (n, m), F32),), (kernel,))

    def reference(i: np.ndarray, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray]:
        return (w.T @ (2 * elements(x, i)).T,)

    return Sample(sgraph, reference, ({},), ({"T_m": 32, "T_n": 16},))


def filtered(dtype: DType = F32, h: int = 9, n: int = 37) -> Sample:
    """y[h, n] = sum_t sum_u w[t, u] x[h + t - 1, n + u - 1], zeros around x: a filter of three by three taps."""
    ah, an, at_, au = Axis("h", h), Axis("n", n), Axis("t", 3), Axis("u", 3)
    around = Index(((ah, 1), (at_, 1)), -1), Index(((an, 1), (au, 1)), -1)
    body = (
        Load("x1", "x", around),
        Load("w1", "w", at(at_, au)),
        op("p", "mul", "x1", "w1"),
        TileReduce("rows", SUM, at_, "p"),
        TileReduce("s", SUM, au, "rows"),
        Store("y", at(ah, an), "s"),
    )
    roles = ((ah, Grid(sym("T_h"))), (an, Grid(sym("T_n"))), (at_, Whole()), (au, Whole()))
    inputs = Tensor("x", (h, n), dtype), Tensor("w", (3, 3), dtype)
    sgraph = SGraph("filtered", inputs, (), (Tensor("y", (h, n), dtype),), (Kernel("filter_kernel", roles, body),))

    def reference(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray]:
        wide = np.pad(x, 1)
        return (sum(w[t, u] * wide[t : t + h, u : u + n] for t in range(3) for u in range(3)),)

    return Sample(sgraph, reference, ({},), ({"T_h": 2, "T_n": 16}, {"T_h": 4, "T_n": 64}))


def added_rows(dtype: DType = F32, m: int = 45, d: int = 40, rows: Extent = 3, looped: bool = False) -> Sample:
    """y[v, d] = w[v, d] + 2 sum_m x[m, d] where i[m] is v, some of which is nowhere: zeros, additions, conversion"""
    am, ad, av = Axis("m", m), Axis("d", d), Axis("v", rows)
    tiles = (av, Grid(sym("T_vb"))), (ad, Grid(sym("T_db")))
    begin = Kernel("rows_begin", tiles, (Load("w1", "w", at(av, ad)), Store("sums", at(av, ad), "w1")))
    body: tuple[Stmt, ...] = (
        Load("i1", "i", at(am)),
        Load("x1", "x", at(am, ad)),
        op("twice", "add", "x1", "x1"),
        Store("sums", (Index.const(0), Index.axis(ad)), "twice", None, (Place("i1", 0, rows),)),
    )
    roles = (
        ((ad, Grid(sym("T_d"))), (am, LoopRole(sym("T_m"))))
        if looped
        else ((am, Grid(sym("T_m"))), (ad, Grid(sym("T_d"))))
    )
    rows_kernel = Kernel("rows_kernel", roles, (Loop(am, body),) if looped else body)
    ends = (av, Grid(sym("T_ve"))), (ad, Grid(sym("T_de")))
    end = Kernel("rows_end", ends, (Load("s1", "sums", at(av, ad)), Store("y", at(av, ad), "s1")))
    inputs = (Tensor("w", (rows, d), dtype), Tensor("i", (m,), DType.INT64), Tensor("x", (m, d), dtype))
    buffers = (Tensor("sums", (rows, d), F32),)
    sgraph = SGraph("added", inputs, buffers, (Tensor("y", (rows, d), dtype),), (begin, rows_kernel, end))

    def reference(w: np.ndarray, i: np.ndarray, x: np.ndarray) -> tuple[np.ndarray]:
        total = w.copy()
        legal = (i >= 0) & (i < len(w))
        np.add.at(total, i[legal].astype(int), 2 * x[legal])
        return (total,)

    small = {"T_vb": 2, "T_db": 16, "T_ve": 1, "T_de": 64}
    given = {"T_m": 8, "T_d": 16, **small}, {"T_m": 16, "T_d": 64, **small}
    return Sample(sgraph, reference, ({},) if isinstance(rows, int) else ({"R": 2}, {"R": 5}), given)


def added_in_a_loop(dtype: DType = F32) -> Sample:
    """The same to a symbolic number of rows, each of which one program alone adds to."""
    return added_rows(dtype, rows=sym("R"), looped=True)


SCANS: tuple[Callable[[DType], Sample], ...] = (
    running_state,
    decaying_state,
    state_before,
    one_by_one,
    gates_one_by_one,
    weights_one_by_one,
    largest_before,
    weights_that_decay,
    weights_that_decay_before,
    weights_before,
)

SAMPLES: tuple[Callable[[DType], Sample], ...] = (
    matmul,
    symbolic_matmul,
    split_k_matmul,
    rmsnorm_linear,
    layernorm,
    attention,
    causal_symbolic,
    split_attention,
    grouped_attention,
    gated_mlp,
    add_silu,
    symbolic_pointwise,
    moments,
    rotated,
    masked_rows,
    heads_projection,
    batched_loop,
    functions,
    row_sums,
    shared_axis_attention,
    *SCANS,
    lookups,
    lookups_in_any_table,
    lookups_beyond_a_table,
    filtered,
    added_rows,
    added_in_a_loop,
)

TILED_SCANS: tuple[Callable[[DType], Sample], ...] = (
    prefix_sums,
    whole_prefix_sums,
    decays,
    whole_decays,
    largest_that_decays,
    least_that_falls,
    whole_largest_that_decays,
    sums_before,
    gates_from_the_end,
    whole_gates_from_the_end,
    decays_from_the_end,
    averages,
    running_kinds,
    kinds_from_the_end,
    whole_kinds_from_the_end,
    weights_so_far,
    weights_from_the_end,
    whole_weights_from_the_end,
)
"""What sums up along a dimension of a tile: backends need not do that, see `TileBounds.scans`."""
