"""Pairs of torch functions that users write, a twin of each: rewritten where it stays the same, or with one mistake.

Functions are Python text, twins are made in its syntax tree: constants, operators, axes, comparisons, sides of masks,
names of calls, what is left out. Torch judges, as in verdict_pairs.py: a mistake that makes no difference is none.

    python tests/verdict_mutants.py FIRST COUNT

hunts, one seed after the other, and prints what it finds.
"""

from __future__ import annotations

import ast
import copy
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import torch
from tolerant_reader import Tolerant
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from verdict_pairs import NAMES, apart, asked, draws, example

from prism.egraph.prove.matching import Matched
from prism.egraph.worker import Worker
from prism.errors import PrismError
from prism.frontend.torch import conformance, reader
from prism.program.inline import inline
from prism.program.verdict import Status, Verdict

Tensor: TypeAlias = torch.Tensor

# x, y: [3, 4], w: [4, 4], s: [3, 1], floats; p: truth values [3, 4]; n, m: whole numbers [3, 4].
PROGRAMS = """
x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.1)) @ w
(x - x.mean(-1, keepdim=True)) / torch.sqrt(((x - x.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True) + 1e-5)
(x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 0.01) * w[0] + w[1]
F.layer_norm(x, (4,), w[0], w[1], 1e-3) @ w
x / x.norm(dim=-1, keepdim=True).clamp_min(1e-3)
x / (x.abs().amax(-1, keepdim=True) + 1e-2)
(x - x.amin(-1, keepdim=True)) / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True) + 1.0)
((x @ y.mT) * 0.5).softmax(-1) @ y
torch.exp(x - x.amax(-1, keepdim=True)) / torch.exp(x - x.amax(-1, keepdim=True)).sum(-1, keepdim=True)
torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)
(torch.exp(x) @ w) / torch.exp(x).sum(-1, keepdim=True)
x.logsumexp(-1, keepdim=True) - (x * p).sum(-1, keepdim=True)
-(x.log_softmax(-1) * y.softmax(-1)).sum(-1, keepdim=True)
torch.where(p, x, -inf).softmax(-1)
torch.where(p, x, -inf).softmax(-1) @ w
torch.nan_to_num(torch.where(p, x, -inf).softmax(-1), 0.0)
torch.where(torch.isnan(x.masked_fill(~p, -inf).softmax(-1)), 0.0, x.masked_fill(~p, -inf).softmax(-1)) @ w
torch.where(p, x, -1e4).softmax(-1)
torch.where(x > 0, x, -inf).amax(-1, keepdim=True)
torch.where(x > 0, x, -inf).amax(-1, keepdim=True) - torch.where(x > 0, x, -inf).amax(-1, keepdim=True) + x
torch.where(p, x, 0.0).sum(-1, keepdim=True) / p.sum(-1, keepdim=True).clamp(min=1)
torch.where(p.any(-1, keepdim=True), torch.where(p, x, -inf).amax(-1, keepdim=True), 0.0)
torch.where(p.all(-1, keepdim=True), x, y)
torch.where(torch.arange(4) <= torch.arange(3)[:, None], x, -inf).softmax(-1) @ w
torch.where(torch.arange(4) < 3, x, -inf).logsumexp(-1, keepdim=True) * y
torch.where(torch.arange(4) - torch.arange(3)[:, None] >= 1, x, 0.0).sum(-1, keepdim=True) + y
x.tril(1).sum(-1, keepdim=True) + y.triu(-1)
F.pad(x, (1, 0))[:, :-1] * w[0] + x * w[1]
F.pad(x, (1, 1), value=-inf).unfold(-1, 3, 1).amax(-1)
F.pad(x, (1, 1)).unfold(-1, 3, 1).mean(-1)
torch.cat([-x[:, 2:], x[:, :2]], -1) * w[0] + x * w[1]
torch.cat([x[:, :2], y[:, 2:]], -1) @ w
torch.cat([x, y], -1) @ torch.cat([w, w], 0)
x.cumsum(-1) - x
x.flip(-1).cumsum(-1).flip(-1)
x.roll(1, -1) - x.roll(-1, -1)
x * torch.sigmoid(x) * y
(x @ w) * torch.sigmoid(x @ w) * (y @ w)
0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x ** 3)))
torch.log(1 + torch.exp(x)) * y
torch.where(x > 2.0, x, torch.log1p(torch.exp(x)))
torch.where(x > 0, x, 0.1 * x)
torch.where(x >= 0, x, torch.exp(x) - 1)
torch.where((x - y).abs() < 1, 0.5 * (x - y) ** 2, (x - y).abs() - 0.5)
torch.maximum(torch.minimum(x, y + 1), y - 1)
x.clamp(-1, 1) * y.clamp(min=0)
(x >= x.amax(-1, keepdim=True)).to(x.dtype) * y
((x > y) | (x == y)).to(x.dtype)
((x > 0) & (y > 0)).to(x.dtype) - ((x > 0) ^ (y > 0)).to(x.dtype)
torch.where((x > 0) & ~(y > 0), x, y)
torch.where(x != 0, y / torch.where(x != 0, x, 1.0), 0.0)
torch.where(x > 0, torch.log(torch.where(x > 0, x, 1.0)), 0.0)
torch.where(x > 0, torch.sqrt(x.clamp(min=0)), -torch.sqrt((-x).clamp(min=0)))
x.abs() * torch.sign(x) + torch.relu(-y)
(x > 0).sum(-1, keepdim=True) * y
(x > 0).to(torch.int32).sum(-1, keepdim=True) // 2 + n
(x.round() - x.floor()) * y
torch.floor(x / 2) * 2 + torch.remainder(x, 2)
torch.fmod(x, 3) + torch.trunc(x / 3) * 3
((x @ w) @ w) * s
(x * s) @ w + y
(x @ w + y @ w) / 2
((x * w[0]) @ w + w[1]) * s
(x + (x @ w[:, :1]) @ w[:1]) @ w
(x.softmax(-1) * y).sum(-1, keepdim=True) / s.abs().clamp(min=0.1)
((x - y) ** 2).mean()
(x * y).sum(-1, keepdim=True) / (x.norm(dim=-1, keepdim=True) * y.norm(dim=-1, keepdim=True)).clamp_min(1e-3)
x.amax(-1, keepdim=True) + x.amin(-1, keepdim=True) - x.mean(-1, keepdim=True)
(x + s).amax(-1, keepdim=True) - s
(x * 2 + 1).amax(0, keepdim=True) * y
(x * s.abs()).amax(-1, keepdim=True)
x.prod(-1, keepdim=True) * y
(x ** 2).sum(-1, keepdim=True) - x.sum(-1, keepdim=True) ** 2 / 4
torch.exp(x + y) * torch.exp(-y)
torch.sqrt(x * x + y * y + 1e-3)
1 / (1 + torch.exp(-x)) - torch.sigmoid(x) * y
(n - 8) * s @ w
(n.to(x.dtype) - 8.0) * s @ w
(n % 4).to(x.dtype) @ w
n // torch.where(m == 0, 1, m)
n % torch.where(m == 0, 1, m)
torch.fmod(n, torch.where(m == 0, 1, m))
torch.div(n, torch.where(m == 0, 1, m), rounding_mode="trunc")
n // 2 * 2 + n % 2
(n // 4) * 4 - n
torch.div(n, 3, rounding_mode="trunc") + torch.div(n, 3, rounding_mode="floor")
n + m - n
(n + m).to(torch.int8)
n * 2 - n - n
n.abs() - m.abs()
-n + torch.maximum(n, m) - torch.minimum(n, m)
torch.where(n > m, n, m) - torch.clamp(n, min=0)
n.to(torch.uint8).to(torch.int32) + m.to(torch.int8)
(n > m) & (m > 0) | p
(n + 1 > n) & p
(n == m).to(torch.int32) * n
n.sum(-1, keepdim=True) - m
(n.to(torch.int64) * m.to(torch.int64)).sum(-1)
(n & 3) + (n >> 1)
torch.where(p, n, -m).amax(-1, keepdim=True) * m.clamp(-1, 1)
(x.to(torch.int32) // 2).to(x.dtype) + y
torch.where(torch.isnan(x / y), 1.0, x)
torch.isinf(torch.where(p, x, inf)).to(x.dtype) * y
torch.where(torch.isnan(torch.where(p, x, -inf).amax(-1, keepdim=True)), 0.0, y)
torch.where(torch.where(p, x, -inf).amax(-1, keepdim=True) == -inf, 0.0, torch.where(p, x, -inf).softmax(-1))
torch.where(p, x, 0.0) @ w + torch.where(p, 0.0, x) @ w
torch.where(p, x @ w, y @ w)
(p.to(x.dtype) * x).sum(-1, keepdim=True) * s
torch.where(p, torch.exp(x), 0.0) / torch.where(p, torch.exp(x), 0.0).sum(-1, keepdim=True).clamp(min=1e-3)
(torch.where(p, x, -inf).amax(-1, keepdim=True) > 0).to(x.dtype) * y
(x.masked_fill(p, inf).amin(-1, keepdim=True) < y).to(x.dtype)
""".strip().splitlines()

SCOPE: Mapping[str, Any] = MappingProxyType({"torch": torch, "F": F, "inf": float("inf")})


@dataclass(frozen=True)
class Pair:
    """A function and a twin.

    Attributes:
        seed: what it was drawn from.
        dtype: of the whole numbers.
        reference, candidate: expressions.
        how: what was done.
    """

    seed: int
    dtype: torch.dtype
    reference: str
    candidate: str
    how: str

    @cached_property
    def functions(self) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
        """Both as functions of all inputs."""
        return function(self.reference), function(self.candidate)

    def __str__(self) -> str:
        return f"seed {self.seed} ({self.how}, {self.dtype})\n  {self.reference}\n  {self.candidate}"


def function(text: str) -> Callable[..., Tensor]:
    """An expression as a function of all inputs."""
    made: Callable[..., Tensor] = eval(f"lambda {', '.join(NAMES)}: ({text}).clone()", dict(SCOPE))
    return made


# Twins

_OTHER_CALLS = {
    word: tuple(others)
    for word, *others in map(
        str.split,
        """
        sum mean
        mean sum
        amax amin
        amin amax
        maximum minimum
        minimum maximum
        floor trunc ceil round
        trunc floor
        round floor
        softmax log_softmax
        log_softmax softmax
        tril triu
        triu tril
        relu abs
        abs relu neg
        isnan isinf
        isinf isnan
        fmod remainder
        remainder fmod
        any all
        all any
        sqrt rsqrt
        exp expm1
        log1p log
        flip cumsum
        sigmoid tanh
        tanh sigmoid
        clamp_min clamp_max
        sign floor
        """.strip().splitlines(),
    )
}
_OTHER_OPERATORS: Mapping[type[ast.AST], Sequence[Any]] = MappingProxyType(
    {
        ast.Add: (ast.Sub,),
        ast.Sub: (ast.Add,),
        ast.Mult: (ast.Div, ast.Add),
        ast.Div: (ast.Mult, ast.FloorDiv),
        ast.FloorDiv: (ast.Div, ast.Mod),
        ast.Mod: (ast.FloorDiv,),
        ast.BitAnd: (ast.BitOr,),
        ast.BitOr: (ast.BitAnd, ast.BitXor),
        ast.BitXor: (ast.BitOr,),
        ast.Lt: (ast.LtE, ast.Gt),
        ast.LtE: (ast.Lt, ast.GtE),
        ast.Gt: (ast.GtE, ast.Lt),
        ast.GtE: (ast.Gt, ast.Eq),
        ast.Eq: (ast.NotEq, ast.GtE),
        ast.NotEq: (ast.Eq, ast.Gt),
        ast.RShift: (ast.LShift,),
    }
)


def _parsed(text: str, **places: ast.expr) -> ast.expr:
    """An expression with others in place of names."""

    class Filled(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return copy.deepcopy(places.get(node.id, node))

    made: ast.expr = Filled().visit(ast.parse(text, mode="eval").body)
    return made


def mistakes(e: ast.expr) -> Iterator[ast.expr]:
    """The expression with something wrong at its top."""
    match e:
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            for other in (value + 1, -value, value - 1, value * (1 + 1e-4), value * 10, 0, -1 - value):
                if other != value and (isinstance(value, float) or other == int(other)):
                    yield ast.Constant(type(value)(other))
        case ast.Constant("trunc" | "floor" as mode):
            yield ast.Constant("floor" if mode == "trunc" else "trunc")
        case ast.BinOp(left, op, right):
            yield from (ast.BinOp(left, other(), right) for other in _OTHER_OPERATORS.get(type(op), ()))
            yield left
            yield right
            yield ast.BinOp(right, op, left)
        case ast.Compare(left, [op], [right]):
            yield from (ast.Compare(left, [other()], [right]) for other in _OTHER_OPERATORS[type(op)])
            yield ast.Compare(right, [op], [left])
        case ast.UnaryOp(_, operand):
            yield operand
        case ast.Call(ast.Attribute(of, "where"), [a, b, c]):
            yield ast.Call(ast.Attribute(of, "where"), [a, c, b], [])
            yield b
            yield c
            yield _parsed("torch.where(~(a), b, c)", a=a, b=b, c=c)
        case ast.Call(ast.Attribute(of, name), args, keywords):
            yield from (ast.Call(ast.Attribute(of, n), args, keywords) for n in _OTHER_CALLS.get(name, ()))
            if len(args) == 2 and not isinstance(args[1], ast.Constant):
                yield ast.Call(ast.Attribute(of, name), args[::-1], keywords)
            if keywords and name not in ("amax", "amin", "sum", "mean", "any", "all"):
                yield ast.Call(ast.Attribute(of, name), args, keywords[:-1])
        case ast.Name("x" | "y" | "n" | "m" | "inf" as name):
            others = {"x": ("y", "-x", "x.abs()"), "y": ("x",), "n": ("m",), "m": ("n",), "inf": ("1e4", "-inf")}
            yield from (_parsed(other) for other in others[name])
    if isinstance(e, ast.BinOp | ast.Call):
        for text in ("(a) + 1e-6", "-(a)", "(a) * 1.0001", "(a) + 1", "(a).to(torch.int32)", "torch.nan_to_num(a)"):
            yield _parsed(text, a=e)


def rewrites(e: ast.expr) -> Iterator[ast.expr]:
    """The expression in other words: the same wherever both are defined, mostly."""
    match e:
        case ast.BinOp(a, ast.Add() | ast.Mult() | ast.BitAnd() | ast.BitOr() as op, b):
            yield ast.BinOp(b, op, a)
            match a:
                case ast.BinOp(c, inner, d) if type(inner) is type(op):
                    yield ast.BinOp(c, op, ast.BinOp(d, op, b))
            if isinstance(op, ast.Mult):
                match a, b:
                    case (ast.BinOp(c, ast.Add() | ast.Sub() as sign, d), f) | (
                        f,
                        ast.BinOp(c, ast.Add() | ast.Sub() as sign, d),
                    ):
                        yield ast.BinOp(ast.BinOp(c, op, f), sign, ast.BinOp(d, op, f))
                yield _parsed("-((-(a)) * b)", a=a, b=b)
        case ast.BinOp(a, ast.Sub(), b):
            yield _parsed("a + (-(b))", a=a, b=b)
            yield _parsed("-(b - a)", a=a, b=b)
        case ast.BinOp(a, ast.Div(), b):
            yield _parsed("a * (1 / b)", a=a, b=b)
            yield _parsed("-(a) / -(b)", a=a, b=b)
            yield _parsed("(2 * a) / (2 * b)", a=a, b=b)
        case ast.BinOp(a, ast.MatMult(), b):
            yield _parsed("((2 * a) @ b) / 2", a=a, b=b)
            yield _parsed("(b.mT @ (a).mT).mT", a=a, b=b)
            yield _parsed("((a).unsqueeze(-1) * b).sum(-2)", a=a, b=b)
            yield _parsed("(a)[:, :2] @ (b)[:2] + (a)[:, 2:] @ (b)[2:]", a=a, b=b)
            match a:
                case ast.BinOp(c, ast.Add() | ast.Sub() as sign, d):
                    yield ast.BinOp(ast.BinOp(c, ast.MatMult(), b), sign, ast.BinOp(d, ast.MatMult(), b))
        case ast.BinOp(a, ast.Pow(), ast.Constant(2)):
            yield _parsed("(a) * (a)", a=a)
            yield _parsed("(a).abs() * (a).abs()", a=a)
        case ast.BinOp(a, ast.FloorDiv(), b):
            yield _parsed("torch.div(a, b, rounding_mode='floor')", a=a, b=b)
            yield _parsed("(a - torch.remainder(a, b)) // b", a=a, b=b)
            yield _parsed("torch.div(a, b, rounding_mode='trunc')", a=a, b=b)
        case ast.BinOp(a, ast.Mod(), b):
            yield _parsed("a - (a // b) * b", a=a, b=b)
            yield _parsed("(a + b) % b", a=a, b=b)
            yield _parsed("torch.fmod(torch.fmod(a, b) + b, b)", a=a, b=b)
        case ast.Compare(a, [op], [b]):
            flipped: Mapping[type[ast.AST], str] = {ast.Lt: ">", ast.LtE: ">=", ast.Gt: "<", ast.GtE: "<="}
            negated = {ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.Eq: "!=", ast.NotEq: "=="}
            if type(op) in flipped:
                yield _parsed(f"b {flipped[type(op)]} a", a=a, b=b)
                yield _parsed(f"(a - b) {negated[type(op)]} 0", a=a, b=b)
                yield _parsed(f"~(a - (b) {negated[type(op)]} 0)", a=a, b=b)
            yield _parsed(f"~(a {negated[type(op)]} b)", a=a, b=b)
        case ast.Call(ast.Attribute(_, "where"), [a, b, c]):
            yield _parsed("torch.where(~(a), c, b)", a=a, b=b, c=c)
            yield _parsed("torch.where(a, torch.where(a, b, c + 1), c)", a=a, b=b, c=c)
            yield _parsed("(a) * (b) + ~(a) * (c)", a=a, b=b, c=c)
        case ast.Call(ast.Attribute(a, "softmax"), _, _):
            yield _parsed("(a + s).softmax(-1)", a=a)
            yield _parsed("torch.exp(a) / torch.exp(a).sum(-1, keepdim=True)", a=a)
            yield _parsed("torch.exp(a - (a).logsumexp(-1, keepdim=True))", a=a)
            yield _parsed("torch.exp((a).log_softmax(-1))", a=a)
            yield _parsed("torch.nan_to_num((a).softmax(-1))", a=a)
        case ast.Call(ast.Attribute(a, "mean"), [ast.Constant(-1) | ast.UnaryOp()], _):
            yield _parsed("(a).sum(-1, keepdim=True) / 4", a=a)
            yield _parsed("((a) / 4).sum(-1, keepdim=True)", a=a)
        case ast.Call(ast.Attribute(a, "sum" | "amax" | "amin" as name), [ast.Constant(-1) | ast.UnaryOp()], _):
            yield _parsed(f"(a).flip(-1).{name}(-1, keepdim=True)", a=a)
            yield _parsed(f"(2 * (a)).{name}(-1, keepdim=True) / 2", a=a)
            yield _parsed(f"((a) + s).{name}(-1, keepdim=True) - {'4 * ' if name == 'sum' else ''}s", a=a)
        case ast.Call(ast.Attribute(_, "sqrt"), [a], _):
            yield _parsed("(a) * torch.rsqrt(a)", a=a)
            yield _parsed("(a) ** 0.5", a=a)
        case ast.Call(ast.Attribute(_, "rsqrt"), [a], _):
            yield _parsed("1 / torch.sqrt(a)", a=a)
            yield _parsed("2 / torch.sqrt(4 * (a))", a=a)
        case ast.Call(ast.Attribute(_, "sigmoid"), [a], _):
            yield _parsed("1 / (1 + torch.exp(-(a)))", a=a)
            yield _parsed("1 - torch.sigmoid(-(a))", a=a)
    if isinstance(e, ast.BinOp | ast.Call):
        for text in (
            "-(-(a))",
            "(a + a) / 2",
            "(a) + y - y",
            "torch.where(p, a, a)",
            "(a) + 0 * x",
            "(a) * (s / s)",
            "(a) - (x - x)",
            "torch.maximum(a, a)",
            "(a) + n - n",
        ):
            yield _parsed(text, a=e)


def changed(tree: ast.expr, rng: np.random.Generator, ways: Callable[[ast.expr], Iterator[ast.expr]]) -> ast.expr:
    """A tree with one place changed."""
    sites = [n for n in ast.walk(tree) if isinstance(n, ast.expr) and next(ways(n), None) is not None]
    if not sites:
        return tree
    site = sites[int(rng.integers(len(sites)))]
    options = list(ways(site))
    new = options[int(rng.integers(len(options)))]

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return copy.deepcopy(new) if node is site else super().visit(node)

    made: ast.expr = Put().visit(tree)  # type: ignore[assignment]
    return made


def pair(seed: int) -> Pair | None:
    """The pair of a seed, where one comes of it."""
    rng = np.random.default_rng([23, seed])
    dtype = (torch.int64, torch.int32, torch.int8, torch.uint8)[int(rng.integers(4))]
    text = PROGRAMS[seed % len(PROGRAMS)]
    one, other = (ast.parse(text, mode="eval").body for _ in range(2))
    how = ("mistake", "rewritten", "rewritten", "both")[int(rng.integers(4))]
    for _ in range(int(rng.integers(1, 4)) if how != "mistake" else 0):
        other = changed(ast.parse(ast.unparse(other), mode="eval").body, rng, rewrites)
    if how != "rewritten":
        other = changed(ast.parse(ast.unparse(other), mode="eval").body, rng, mistakes)
    texts = [ast.unparse(one), ast.unparse(other)]
    if texts[0] == texts[1]:
        return None
    if rng.random() < 0.4:
        texts.reverse()
    made = Pair(seed, dtype, texts[0], texts[1], how)
    inputs = example(dtype)
    try:
        a, b = (f(*inputs.values()) for f in made.functions)
    except (RuntimeError, TypeError, IndexError, ZeroDivisionError, AttributeError):
        return None  # not all that can be written can be computed
    if a.dtype != b.dtype or a.shape != b.shape:
        return None
    return made


# The judge


class Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what happens while a function runs.

    Args:
        jitter: moves the last places of what is computed.

    Attributes:
        undefined: an operation made infinities of numbers, NaN of what is none, or a whole number of neither.
        border: rounding may have decided a comparison, or where something is cut.
    """

    def __init__(self, jitter: torch.Generator | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.jitter = jitter
        self.undefined = False
        self.border = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _DIVIDING:
            over, by = (torch.as_tensor(v) for v in args[:2])
            if not over.is_floating_point() and not by.is_floating_point():
                least = torch.iinfo(torch.result_type(over, by)).min
                if bool(((over == least) & (by == -1)).any()):
                    raise RuntimeError("the quotient overflows")  # processors end the process there
        made = func(*args, **(kwargs or {}))
        given = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
        if not isinstance(made, torch.Tensor):
            return made
        cut = name == "_to_copy" and not made.is_floating_point()
        numbers = all(bool(torch.isfinite(a).all()) for a in given)
        if cut and made.dtype is not torch.bool and given:
            self.undefined |= not numbers or bool((given[0].abs() > 100).any())
        if made.is_floating_point() and name not in _MASKING:
            known = not any(bool(torch.isnan(a).any()) for a in given)
            self.undefined |= numbers and not bool(torch.isfinite(made).all())
            self.undefined |= known and bool(torch.isnan(made).any())
            if self.jitter is not None and given and name not in _EXACT:
                made = made * (1 + 1e-13 * torch.randn(made.shape, generator=self.jitter, dtype=torch.float64))
        if name in ("lt", "le", "gt", "ge", "eq", "ne") and given:
            a, b = (torch.as_tensor(v, dtype=torch.float64) for v in args[:2])
            self.border |= bool(((a != b) & ((a - b).abs() < 1e-9 * (a.abs() + b.abs() + 1e-3))).any())
        if given and (cut or name in ("floor", "ceil", "trunc", "round", "floor_divide", "remainder", "fmod")):
            twice = 2 * given[0]
            self.border |= bool(((twice != twice.round()) & ((twice - twice.round()).abs() < 1e-9)).any())
        return made


_DIVIDING = frozenset(["div", "floor_divide", "remainder", "fmod"])
_MASKING = frozenset(["where", "masked_fill", "full", "scalar_tensor", "lift_fresh", "lift_fresh_copy", "clone", "pad"])
_MASKING |= frozenset(["constant_pad_nd", "copy", "copy_", "fill", "_to_copy", "empty", "detach", "view", "expand"])
_EXACT = _MASKING.union(
    ["neg", "abs", "amax", "amin", "maximum", "minimum", "clamp", "floor", "ceil", "trunc", "round", "sign", "flip"],
    ["cat", "slice", "select", "unsqueeze", "squeeze", "transpose", "permute", "t", "unfold", "roll", "tril", "triu"],
    ["nan_to_num", "relu", "alias", "lift", "_unsafe_view", "clamp_min", "clamp_max", "reshape", "arange"],
)


def run(
    f: Callable[..., Tensor], inputs: Mapping[str, Tensor], jitter: torch.Generator | None = None
) -> tuple[Tensor, Watched]:
    """The value, and what happened on the way."""
    with Watched(jitter) as watched:
        value = f(*inputs.values())
    return value, watched


@dataclass(frozen=True)
class Judgement:
    """What torch says.

    Attributes:
        differ: inputs at which the reference is defined all along, and the candidate differs from it.
        compared: on how many inputs that counts.
    """

    differ: Mapping[str, Tensor] | None
    compared: int


def judge(made: Pair, count: int = 60) -> Judgement:
    """Run both on inputs that are nasty."""
    compared = 0
    for inputs in draws(made.dtype, made.seed, count):
        # the exponential of more is not told from infinity
        if any(v.is_floating_point() and v.abs().max() > 100 for v in inputs.values()):
            continue
        try:
            a, one = run(made.functions[0], inputs)
            b, other = run(made.functions[1], inputs)
        except RuntimeError:
            continue  # whole numbers divided by 0, or the least of them by -1
        if one.border or other.border or one.undefined:
            continue
        compared += 1
        alone = a.is_floating_point() and bool((torch.isnan(a) & ~torch.isnan(b)).any())
        if (alone or apart(a, b)) and not _unsure(made, inputs, (a, b)):
            return Judgement(inputs, compared)
    return Judgement(None, compared)


def _unsure(made: Pair, inputs: Mapping[str, Tensor], values: Sequence[Tensor]) -> bool:
    """Whether rounding decides a value: it changes with the last places of what is computed on the way."""
    jitter = torch.Generator().manual_seed(made.seed)
    again = [(v, run(f, inputs, jitter)[0]) for f, v in zip(made.functions, values, strict=True) for _ in range(4)]
    return any(apart(value, other) for value, other in again)


def matched(pairs: Sequence[Pair]) -> dict[int, Matched]:
    """What the prover compares, of pairs of one type and by their places, without those that the reader refuses."""
    inputs = example(pairs[0].dtype)
    functions = [f for p in pairs for f in p.functions]

    def every(*xs: Tensor) -> tuple[Tensor, ...]:
        return tuple(f(*xs) for f in functions)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        *_, exported = reader._export(every, tuple(inputs[n] for n in NAMES), None, "pairs")
    translation = Tolerant(exported, "pairs", list(NAMES), None, {})
    program = translation.program()
    formulas = dict(zip(translation.names, inline(program), strict=True))
    found: dict[int, Matched] = {}
    for n in range(len(pairs)):
        one, other = (formulas.get(2 * n + side) for side in (0, 1))
        if one is not None and other is not None:
            sides = tuple(replace(f, tensor=replace(f.tensor, name="y")) for f in (one, other))
            found[n] = Matched((sides[0],), (sides[1],), program.inputs, {}, {})
    return found


def _captured(p: Pair) -> bool:
    """Whether torch captures both: what it deprecates, such as uint8 for truth values, it does not."""
    with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings(), conformance.quietly():
        warnings.simplefilter("ignore")
        try:
            for f in p.functions:
                f(*example(p.dtype).values())
        except RuntimeError:
            return False
    return True


def gathered(seeds: range) -> Iterator[tuple[Pair, Matched]]:
    """The pairs of seeds, traced together by their types."""
    of: dict[torch.dtype, list[Pair]] = {}
    for p in map(pair, seeds):
        if p is not None and _captured(p):
            of.setdefault(p.dtype, []).append(p)
    for pairs in of.values():
        yield from ((pairs[n], both) for n, both in matched(pairs).items())


def wrong(p: Pair, verdict: Verdict, count: int = 60) -> str:
    """What torch holds against a verdict; empty where nothing."""
    match verdict.status:
        case Status.UNKNOWN:
            return f"a bug by its own words: {verdict.reason}" if "a bug in prism" in verdict.reason else ""
        case Status.REFUTED:
            return _refuted(p, verdict)
    told = judge(p, count)
    if told.differ is None:
        return ""
    lines = [f"  {n} = {v.tolist()}" for n, v in told.differ.items() if n in p.reference + p.candidate]
    values = [f"  {f(*told.differ.values()).tolist()}" for f in p.functions]
    return "\n".join(["proved, but at", *lines, *values])


def _refuted(p: Pair, verdict: Verdict) -> str:
    inputs = {}
    for n, v in example(p.dtype).items():
        drawn = np.asarray(verdict.counterexample.get(n, np.zeros(v.shape)))
        full = np.zeros(tuple(v.shape))
        full[tuple(slice(0, s) for s in drawn.shape)] = drawn
        inputs[n] = torch.tensor(full).to(v.dtype)
    try:
        (a, _), (b, other) = (run(f, inputs) for f in p.functions)
    except RuntimeError:
        return ""
    if other.undefined:
        return ""
    same = bool(((a == b) | (torch.isnan(a) & torch.isnan(b)) if a.is_floating_point() else a == b).all())
    return f"refuted, but torch has the same: {verdict.reason} {verdict.counterexample}" if same else ""


def main(first: int, count: int) -> None:
    """Hunt."""
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    with Worker() as worker:
        for start in range(first, first + count, TOGETHER):
            for p, both in gathered(range(start, min(start + TOGETHER, first + count))):
                try:
                    verdict = asked(both, worker)
                except PrismError as error:
                    print(p, error.one_line(), sep="\n  ", flush=True)
                    counts["ERROR"] += 1
                    continue
                counts[f"{verdict.status.value} {p.how}"] += 1
                told = wrong(p, verdict)
                if told:
                    print(p, f"  {verdict}", told, sep="\n", flush=True)
                    counts["WRONG"] += 1
                elif verdict and p.how == "mistake":
                    print("proved although a mistake was put in:", p, f"  {verdict}", sep="\n", flush=True)
                elif verdict.status is Status.UNKNOWN and judge(p, 20).differ is None:
                    counts["unknown, and nothing differs"] += 1
            print(start + TOGETHER, dict(counts), flush=True)


TOGETHER = 120

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
