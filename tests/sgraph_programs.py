"""Small programs for the generator's tests, and an e-graph without rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prism.cost.device import device
from prism.generate.enumerate import Task
from prism.program.build import add, const, div, mean, mul, op, position, read, recip, reduce, sub
from prism.program.classes import EClasses, ENode
from prism.program.index import Axis
from prism.program.inline import inline
from prism.program.nodes import (
    Const,
    Definition,
    DType,
    Expr,
    Map,
    Position,
    Program,
    Read,
    Reduce,
    Size,
    Tensor,
    free_axes,
)

PLAIN = replace(device("sm_90"), name="plain", bandwidth_bytes_s=4e12, multiply_adds_s=3e13, library=False)
"""A device of round numbers that is large enough for every test and has no library."""


def classes_of(exprs: Sequence[Expr]) -> EClasses:
    """The e-graph of the expressions themselves, one e-node an e-class."""
    ids: dict[ENode, int] = {}
    axes: dict[int, frozenset[Axis]] = {}

    def visit(e: Expr) -> int:
        match e:
            case Read() | Const() | Size() | Position():
                node = ENode(type(e).__name__.lower(), e, ())
            case Map("neg", (a,)):
                node = ENode("mul", None, (visit(Const(-1.0)), visit(a)))
            case Map(name, args):
                node = ENode(name, None, tuple(visit(a) for a in args))
            case Reduce(kind, axis, body):
                node = ENode(kind.value, axis, (visit(body),))
            case _:
                raise AssertionError(e)
        if node not in ids:
            ids[node] = len(ids)
            axes[ids[node]] = free_axes(e)
        return ids[node]

    roots = tuple(visit(e) for e in exprs)
    return EClasses({i: (n,) for n, i in ids.items()}, axes, roots, len(ids), 0, "saturated")


def task(p: Program) -> Task:
    """The program as a generation task over the e-graph without rules."""
    formulas = inline(p)
    return Task(p.name, p.inputs, formulas, classes_of([f.expr for f in formulas]), p.hints, PLAIN)


def program(
    name: str, inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[tuple[Axis, ...], Expr]]
) -> Program:
    """A program in float32 whose definitions are its outputs."""
    return Program(
        name,
        tuple(Tensor(n, s, DType.FLOAT32) for n, s in inputs.items()),
        tuple(Definition(n, axes, e, DType.FLOAT32) for n, (axes, e) in outputs.items()),
        tuple(outputs),
    )


M, K, N, F, R = Axis("m", 6), Axis("k", 24), Axis("n", 10), Axis("f", 12), Axis("r", 3)
B, H, Q, J, D, E = Axis("b", 2), Axis("h", 3), Axis("i", 9), Axis("j", 9), Axis("d", 4), Axis("e", 4)


def norm_linear() -> Program:
    """A mean square, a gain and a matrix product, the division already past the product."""
    scale = recip(op("sqrt", add(mean(K, mul(read("x", M, K), read("x", M, K))), const(1e-6))))
    y = mul(scale, reduce("sum", K, mul(mul(read("x", M, K), read("g", K)), read("w", K, N))))
    return program("norm_linear", {"x": (6, 24), "g": (24,), "w": (24, 10)}, {"y": ((M, N), y)})


def attention(causal: bool = True) -> Program:
    """Scaled, masked, the division past the value product."""
    s = mul(reduce("sum", D, mul(read("q", B, H, Q, D), read("k", B, H, J, D))), const(0.5))
    if causal:
        s = op("where", op("le", position(J), position(Q)), s, const(float("-inf")))
    p = op("exp", sub(s, reduce("max", J, s)))
    o = div(reduce("sum", J, mul(p, read("v", B, H, J, E))), reduce("sum", J, p))
    shape = (2, 3, 9, 4)
    return program("attention", {"q": shape, "k": shape, "v": shape}, {"o": ((B, H, Q, E), o)})


def decode() -> Program:
    """One query against 64 keys: nothing to spread over programs but the keys."""
    t = Axis("t", 64)
    s = reduce("sum", D, mul(read("q", D), read("k", t, D)))
    p = op("exp", sub(s, reduce("max", t, s)))
    o = div(reduce("sum", t, mul(p, read("v", t, E))), reduce("sum", t, p))
    return program("decode", {"q": (4,), "k": (64, 4), "v": (64, 4)}, {"o": ((E,), o)})


def gated() -> Program:
    """Two products of one input, gated, and a third product."""
    a = reduce("sum", K, mul(read("x", M, K), read("w1", K, F)))
    b = reduce("sum", K, mul(read("x", M, K), read("w3", K, F)))
    h = mul(mul(a, op("sigmoid", a)), b)
    y = reduce("sum", F, mul(h, read("w2", F, N)))
    return program("gated", {"x": (6, 24), "w1": (24, 12), "w3": (24, 12), "w2": (12, 10)}, {"y": ((M, N), y)})


def low_rank() -> Program:
    """A matrix product plus a scaled product of rank 3."""
    low = reduce("sum", R, mul(reduce("sum", K, mul(read("x", M, K), read("a", K, R))), read("b", R, N)))
    y = add(reduce("sum", K, mul(read("x", M, K), read("w", K, N))), mul(const(2.0), low))
    return program("low_rank", {"x": (6, 24), "w": (24, 10), "a": (24, 3), "b": (3, 10)}, {"y": ((M, N), y)})


def layer_norm() -> Program:
    """Two reductions, one after the other, over an axis of the output."""
    mu = mean(K, read("x", M, K))
    var = mean(K, mul(sub(read("x", M, K), mu), sub(read("x", M, K), mu)))
    y = mul(sub(read("x", M, K), mu), recip(op("sqrt", add(var, const(1e-5)))), read("g", K))
    return program("layer_norm", {"x": (6, 24), "g": (24,)}, {"y": ((M, K), y)})


def two_outputs() -> Program:
    """A sum of two inputs, and its mean square: outputs of different ranks."""
    h = add(read("x", M, K), read("r", M, K))
    return program("two_outputs", {"x": (6, 24), "r": (6, 24)}, {"h": ((M, K), h), "s": ((M,), mean(K, mul(h, h)))})


ALL = (norm_linear, attention, decode, gated, low_rank, layer_norm, two_outputs)
