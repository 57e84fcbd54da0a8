"""Random pairs of torch programs, a twin of the first each, and what torch itself says of them.

A twin is the program rewritten by algebra, some of which does not hold at zeros, infinities, ties or at an integer
type's limits, or with one small damage. The judge runs both in torch, in float64, on inputs that are finite and
otherwise nasty; what a proof assumes of a reference without a value is its own to say, so draws are told apart by
whether the reference ran into inf - inf, 0 * inf, 1/0 or a function's domain.

    python tests/verdict_pairs.py FIRST COUNT [forms] [blind]

hunts, one seed after the other, and prints what it finds.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from tolerant_reader import Tolerant
from torch.nn import functional as F

from prism.api.second_opinion import with_opinion
from prism.egraph.prove import equality as prove
from prism.egraph.prove.equality import examine
from prism.egraph.prove.matching import Matched
from prism.egraph.prove.refutation import Attempt
from prism.egraph.worker import Worker
from prism.errors import PrismError
from prism.frontend.torch import reader
from prism.program.inline import inline
from prism.program.verdict import Status, Verdict

Tensor: TypeAlias = torch.Tensor
T = TypeVar("T")
INF = math.inf
ROWS, COLUMNS = 3, 4
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)

# Terms


@dataclass(frozen=True, slots=False)
class Term:
    """A tensor program as a tree.

    Attributes:
        op: a key of OPS, "input" or "const".
        args: the operands.
        par: what else the operator takes: an axis, a number, a type, an input's name.
    """

    op: str
    args: tuple[Term, ...] = ()
    par: Any = None

    @cached_property
    def like(self) -> Tensor:
        """A value of it, for its shape and type."""
        return run(self, SAMPLE, Record(instead=1))

    @property
    def kind(self) -> str:
        """b, i or f."""
        t = self.like.dtype
        return "b" if t == torch.bool else "f" if t.is_floating_point else "i"

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self.like.shape)

    def __str__(self) -> str:
        if self.op in ("input", "const"):
            return str(self.par)
        inside = ", ".join([*map(str, self.args), *([] if self.par is None else [str(self.par)])])
        return f"{self.op}({inside})"


@dataclass
class Record:
    """What happened while a program ran.

    Attributes:
        undefined: an operation left its domain, made NaN of infinities, or a whole number of what is none or too large.
        overflown: a number became infinite because float64 does not hold it.
        instead: what whole numbers divided by 0 are; None raises.
        border: rounding may have decided a comparison or where something is cut.
        jitter: of the last places of what is rounded.
    """

    undefined: bool = False
    overflown: bool = False
    border: bool = False
    instead: int | None = None
    jitter: torch.Generator | None = None


def _pad(a: Tensor, value: float) -> Tensor:
    return F.pad(a, (1, 0), value=value)[..., :-1]


def _halves(a: Tensor, b: Tensor) -> Tensor:
    n = a.shape[-1] // 2
    return torch.cat([a[..., :n], b[..., n:]], -1) if n else a


def _causal(a: Tensor) -> Tensor:
    keep = torch.arange(a.shape[-1])[None, :] <= torch.arange(a.shape[0])[:, None]
    return torch.where(keep, a, -INF)


def _strict(a: Tensor) -> Tensor:
    keep = torch.arange(a.shape[-1])[None, :] < torch.arange(a.shape[0])[:, None]
    return torch.where(keep, a, -INF)


OPS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        **{"add": torch.add, "sub": torch.sub, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum},
        **{"neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "div": torch.div, "recip": torch.reciprocal},
        **{"exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sigmoid": torch.sigmoid},
        **{"tanh": torch.tanh, "relu": torch.relu, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round},
        **{"trunc": torch.trunc, "square": torch.square, "pow": lambda a, p: a**p, "log1p": torch.log1p},
        **{"where": torch.where, "clamp": lambda a, p: a.clamp(*p), "sin": torch.sin, "cos": torch.cos},
        **{"masked": lambda p, a: torch.where(p, a, -INF), "masked+": lambda p, a: torch.where(p, a, INF)},
        **{"zeroed": lambda p, a: torch.where(p, a, 0.0), "causal": _causal, "strict": _strict},
        **{"sum": lambda a, d: a.sum(d, keepdim=True), "mean": lambda a, d: a.mean(d, keepdim=True)},
        **{"amax": lambda a, d: a.amax(d, keepdim=True), "amin": lambda a, d: a.amin(d, keepdim=True)},
        **{"prod": lambda a, d: a.prod(d, keepdim=True), "cumsum": lambda a, d: a.cumsum(d)},
        **{"softmax": lambda a, d: a.softmax(d), "logsoftmax": lambda a, d: a.log_softmax(d)},
        **{"logsumexp": lambda a, d: a.logsumexp(d, keepdim=True), "matmul": torch.matmul},
        **{"any": lambda a, d: a.any(d, keepdim=True), "all": lambda a, d: a.all(d, keepdim=True)},
        **{"flip": lambda a, d: a.flip(d), "roll": lambda a, d: a.roll(1, d), "pad": _pad, "halves": _halves},
        **{"T": lambda a: a.mT, "expand": lambda a: a.expand(ROWS, COLUMNS)},
        **{"lt": torch.lt, "le": torch.le, "eq": torch.eq, "ne": torch.ne, "gt": torch.gt, "ge": torch.ge},
        **{"and": torch.logical_and, "or": torch.logical_or, "not": torch.logical_not, "xor": torch.logical_xor},
        **{"isnan": torch.isnan, "isinf": torch.isinf, "to": lambda a, t: a.to(t)},
        **{"fdiv": lambda a, b: torch.div(a, b, rounding_mode="floor"), "mod": torch.remainder},
        **{"tdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "fmod": torch.fmod},
        "nan_to_num": lambda a: a.nan_to_num(0.0, INF, -INF),
        "outer": lambda a: a @ a.mT,
    }
)

# Where infinities and NaN are made of numbers for another reason than that float64 does not hold them.
_PARTIAL = frozenset(
    ["div", "recip", "log", "log1p", "sqrt", "rsqrt", "pow", "mod", "fmod", "fdiv", "tdiv", "logsoftmax"]
)
_ROUNDED = _PARTIAL | frozenset(
    [
        "exp",
        "sigmoid",
        "tanh",
        "sin",
        "cos",
        "softmax",
        "logsumexp",
        "mean",
        "sum",
        "cumsum",
        "matmul",
        "prod",
        "mul",
        "add",
        "sub",
    ]
)
_DIVIDING = ("mod", "fmod", "fdiv", "tdiv")
_INFINITE = frozenset(["masked", "masked+", "causal", "strict", "softmax"])


def run(term: Term, inputs: Mapping[str, Tensor], record: Record, known: dict[int, Tensor] | None = None) -> Tensor:
    """The value of a program, and a record of what went wrong on the way."""
    done: dict[int, Tensor] = {} if known is None else known
    if id(term) not in done:
        done[id(term)] = _run(term, inputs, record, done)
    return done[id(term)]


def _run(term: Term, inputs: Mapping[str, Tensor], record: Record, done: dict[int, Tensor]) -> Tensor:
    match term.op:
        case "input":
            return inputs[term.par]
        case "const":
            return torch.tensor(term.par, dtype=torch.float64)
    args = [run(a, inputs, record, done) for a in term.args]
    if term.op in _DIVIDING and not args[0].is_floating_point() and bool((args[1] == 0).any()):
        if record.instead is None:
            raise ZeroDivisionError
        by = torch.where(args[1] == 0, 1, args[1])
        return torch.where(args[1] == 0, record.instead, OPS[term.op](args[0], by)).to(by.dtype)
    if term.op in _DIVIDING and args[0].dtype in (torch.int8, torch.int32, torch.int64):
        beyond = (args[0] == torch.iinfo(args[0].dtype).min) & (args[1] == -1)
        if bool(beyond.any()):  # there is no such quotient, and torch ends the process over it
            record.overflown = True
            args = [args[0], torch.where(beyond, 1, args[1]).to(args[1].dtype)]
    if term.op == "to" and term.par not in (torch.bool, torch.float64) and args[0].is_floating_point():
        record.undefined |= not bool((args[0].abs() < 2.0**31).all())  # what comes of it is nowhere said
    value = OPS[term.op](*args) if term.par is None else OPS[term.op](*args, term.par)
    if args and args[0].is_floating_point():
        record.border |= _near(term.op, args)
    if value.is_floating_point():
        value = value.double()
        if record.jitter is not None and term.op in _ROUNDED:
            value = value * (1 + 1e-13 * torch.randn(value.shape, generator=record.jitter, dtype=torch.float64))
        finite = all(bool(torch.isfinite(a).all()) for a in args if a.is_floating_point())
        if not torch.isfinite(value).all() and term.op not in _INFINITE:
            if finite and term.op not in _PARTIAL:
                record.overflown = True
            elif finite or bool(torch.isnan(value).any()):
                record.undefined = True
        if term.op in ("softmax", "logsoftmax") and torch.isnan(value).any():
            record.undefined = True
        if finite and bool((torch.isfinite(value) & (value.abs() > 1e150)).any()):
            record.overflown = True
        lost = term.op in ("exp", "softmax", "sigmoid") and bool(((value == 0) & torch.isfinite(args[0])).any())
        record.overflown |= lost or bool(((value != 0) & (value.abs() < 1e-150)).any())
    return value


def _near(op: str, args: Sequence[Tensor]) -> bool:
    """Whether two numbers that are compared, or a number and where it is cut, are apart by a rounding error."""
    if op in ("lt", "le", "gt", "ge", "eq", "ne"):
        a, b = args
    elif op in ("floor", "ceil", "trunc", "round", "to"):
        a, b = 2 * args[0], (2 * args[0]).round()
    else:
        return False
    return bool(((a != b) & ((a - b).abs() < 1e-9 * (a.abs() + b.abs() + 1e-3))).any())


def called(term: Term, names: Sequence[str]) -> Callable[..., Tensor]:
    """The program as a function of tensors, for the tracer."""

    def value(t: Term, inputs: Mapping[str, Tensor], done: dict[int, Tensor]) -> Tensor:
        if t.op == "input":
            return inputs[t.par]
        if t.op == "const":
            return torch.full((), t.par, dtype=torch.float64)
        if id(t) not in done:
            args = [value(a, inputs, done) for a in t.args]
            done[id(t)] = OPS[t.op](*args) if t.par is None else OPS[t.op](*args, t.par)
        return done[id(t)]

    return lambda *xs: value(term, dict(zip(names, xs, strict=True)), {}).clone()


X, Y, W, S = (Term("input", (), n) for n in "xyws")
P, N, M = (Term("input", (), n) for n in "pnm")
FLOATS = {"x": (ROWS, COLUMNS), "y": (ROWS, COLUMNS), "w": (COLUMNS, COLUMNS), "s": (ROWS, 1)}
NAMES = (*FLOATS, "p", "n", "m")


def const(c: float) -> Term:
    return Term("const", (), float(c))


def example(dtype: torch.dtype) -> dict[str, Tensor]:
    """Inputs by their names; whole numbers of the type."""
    found = {n: torch.linspace(0.3, 1.7, math.prod(s), dtype=torch.float64).reshape(s) for n, s in FLOATS.items()}
    found["p"] = torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) % 3 > 0
    found["n"] = (torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) % 5).to(dtype)
    found["m"] = (torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) % 4 + 1).to(dtype)
    return found


SAMPLE = example(torch.int32)

# Programs

_FLOAT1 = [
    "neg",
    "abs",
    "sign",
    "exp",
    "sigmoid",
    "tanh",
    "relu",
    "floor",
    "ceil",
    "round",
    "trunc",
    "square",
    "sqrt",
    "log",
    "recip",
    "rsqrt",
    "causal",
    "strict",
    "sin",
]
_REDUCED = ["sum", "mean", "amax", "amin", "prod", "logsumexp"]


class Maker:
    """Draws programs."""

    def __init__(self, rng: np.random.Generator, dtype: torch.dtype) -> None:
        self.rng = rng
        self.dtype = dtype

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def number(self) -> Term:
        return const(self.pick((-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 1e-6)))

    def float(self, depth: int) -> Term:
        """A float tensor that broadcasts to [ROWS, COLUMNS]."""
        if depth <= 0:
            return self.pick((X, X, X, Y, Y, S, self.number()))
        again = depth - 1
        match self.pick(
            ("1", "1", "2", "2", "2", "where", "reduce", "reduce", "soft", "mask", "view", "whole", "mm", "pow")
        ):
            case "1":
                return Term(self.pick(_FLOAT1), (self.float(again),)) if self.rng.random() < 0.8 else X
            case "2":
                op = self.pick(["add", "sub", "mul", "mul", "div", "max", "min"])
                return Term(op, (self.float(again), self.float(again - 1)))
            case "where":
                return Term("where", (self.bool(again), self.float(again - 1), self.float(again - 1)))
            case "reduce":
                return Term(self.pick(_REDUCED), (self.wide(again),), self.pick((-1, -1, 0)))
            case "soft":
                return Term(
                    self.pick(["softmax", "softmax", "logsoftmax", "cumsum"]),
                    (self.wide(again),),
                    self.pick((-1, -1, 0)),
                )
            case "mask":
                return Term(self.pick(("masked", "masked", "masked+", "zeroed")), (self.bool(again), self.float(again)))
            case "view":
                if self.rng.random() < 0.3:
                    return Term("halves", (self.wide(again), self.wide(again - 1)))
                if self.rng.random() < 0.3:
                    return Term("pad", (self.wide(again),), self.pick((0.0, 1.0, -INF)))
                return Term(self.pick(("flip", "roll")), (self.wide(again),), self.pick((-1, 0)))
            case "whole":
                return Term(
                    "to", (self.integer(again) if self.rng.random() < 0.6 else self.bool(again),), torch.float64
                )
            case "mm":
                return Term("matmul", (self.wide(again), W))
            case _:
                return Term("pow", (self.float(again),), self.pick((2, 3, 0.5, -1, -2, 1.5, 0)))

    def wide(self, depth: int) -> Term:
        """A float tensor of [ROWS, COLUMNS]."""
        t = self.float(depth)
        return (
            t if t.shape == (ROWS, COLUMNS) else Term("add", (t, X)) if self.rng.random() < 0.7 else Term("mul", (t, Y))
        )

    def bool(self, depth: int) -> Term:
        """Truth values."""
        match self.pick(("p", "cmp", "cmp", "cmp", "logic", "is", "int")):
            case "cmp":
                return Term(
                    self.pick(["lt", "le", "eq", "ne", "gt", "ge"]), (self.float(depth - 1), self.float(depth - 2))
                )
            case "int" if depth > 0:
                return Term(self.pick(["lt", "le", "eq", "gt"]), (self.integer(depth - 1), self.integer(depth - 2)))
            case "logic" if depth > 0:
                if self.rng.random() < 0.3:
                    return Term("not", (self.bool(depth - 1),))
                return Term(self.pick(("and", "or", "xor")), (self.bool(depth - 1), self.bool(depth - 1)))
            case "is" if depth > 1:
                return Term(self.pick(("isnan", "isinf")), (self.float(depth - 1),))
        return P

    def integer(self, depth: int) -> Term:
        """Whole numbers of the maker's type."""
        if depth <= 0:
            return self.pick((N, N, M))
        again = depth - 1
        match self.pick(("2", "2", "2", "div", "float", "bool", "where", "reduce", "1")):
            case "2":
                return Term(self.pick(["add", "sub", "mul", "max", "min"]), (self.integer(again), self.integer(again)))
            case "div":
                return Term(self.pick(["fdiv", "mod", "tdiv", "fmod"]), (self.integer(again), self.pick((M, M, N))))
            case "float":
                return Term("to", (self.float(again - 1),), self.dtype)
            case "bool":
                return Term("to", (self.bool(again),), self.dtype)
            case "where":
                return Term("where", (self.bool(again - 1), self.integer(again), self.integer(again - 1)))
            case "reduce":
                return Term("to", (Term(self.pick(("sum", "amax", "cumsum")), (self.integer(0),), -1),), self.dtype)
            case _:
                return Term(self.pick(("neg", "abs")), (self.integer(again),))


# Twins


def algebra(t: Term, k: Maker) -> Iterator[Term]:
    """Other ways to write a term, right or nearly so."""
    a, b, c = (*t.args, *([X] * 3))[:3]
    other = k.float(int(k.rng.integers(0, 3))) if t.kind == "f" else k.integer(1) if t.kind == "i" else k.bool(1)
    one, two, half = const(1), const(2), const(0.5)

    def u(op: str, *args: Term, par: Any = None) -> Term:
        return Term(op, args, par)

    match t.kind:
        case "f":
            yield u("add", t, u("sub", other, other))
            yield u("add", t, u("mul", const(0), other))
            yield u("mul", t, u("div", other, other))
            yield u("div", u("mul", t, other), other)
            yield u("mul", u("div", t, other), other)
            yield u("sub", u("add", t, other), other)
            yield u("add", u("sub", t, other), other)
            yield u("log", u("exp", t))
            yield u("exp", u("log", t))
            yield u("max", t, u("min", t, other))
            yield u("min", u("max", t, other), t)
            yield u("where", k.bool(1), t, t)
            yield u("where", u("isnan", other), t, t)
            yield u("where", u("eq", other, other), t, const(5))
            yield u("where", u("lt", t, other), u("min", t, other), t)
            yield u("mul", u("sqrt", t), u("sqrt", t))
            yield u("mul", u("sign", t), u("abs", t))
            yield u("recip", u("recip", t))
            yield u("mul", half, u("add", t, t))
            yield u("sub", u("relu", t), u("relu", u("neg", t)))
            yield u("pow", t, par=1)
            yield u("mul", t, u("add", u("square", u("sin", other)), u("square", u("cos", other))))
            yield u("where", u("gt", t, const(0)), t, u("min", t, const(0)))
            yield u("to", u("to", t, par=torch.int64), par=torch.float64)
            yield u("neg", u("neg", t))
            yield u("mul", t, u("to", u("eq", other, other), par=torch.float64))
            yield u("mul", t, u("pow", other, par=0))
            yield u("nan_to_num", t)
            if t.shape == (ROWS, COLUMNS):
                yield u("flip", u("flip", t, par=-1), par=-1)
                yield u("mul", u("softmax", t, par=-1), u("div", t, u("softmax", t, par=-1)))
                yield u("sub", u("add", t, u("amax", t, par=-1)), u("amax", t, par=-1))
                yield u("max", t, u("amin", t, par=-1))
                yield u("min", t, u("amax", t, par=-1))
                yield u("mul", t, u("sum", u("softmax", other if other.shape == t.shape else t, par=-1), par=-1))
                yield u("add", t, u("mul", const(0), u("amax", u("masked", k.bool(1), t), par=-1)))
        case "i":
            yield u("sub", u("add", t, other), other)
            yield u("fdiv", u("mul", t, M), M)
            yield u("add", u("mul", u("fdiv", t, M), M), u("mod", t, M))
            yield u("add", u("mul", u("tdiv", t, M), M), u("fmod", t, M))
            yield u("neg", u("neg", t))
            yield u("mul", u("sign", t), u("abs", t))
            yield u("to", u("to", t, par=torch.float64), par=t.like.dtype)
            yield u("to", u("to", t, par=torch.int8), par=t.like.dtype)
            yield u("to", u("to", t, par=torch.uint8), par=t.like.dtype)
            yield u("to", u("to", t, par=torch.int32), par=t.like.dtype)
            yield u("max", t, u("min", t, other))
            yield u("fdiv", u("add", t, t), N)
            yield u("sub", t, u("sub", other, other))
            yield u("mul", t, u("fdiv", M, M))
        case "b":
            yield u("not", u("not", t))
            yield u("ne", u("to", t, par=torch.int32), Term("to", (Term("xor", (t, t)),), torch.int32))
            yield u("gt", u("to", t, par=torch.float64), const(0))
            yield u("and", t, u("or", t, other))
            yield u("or", u("and", t, other), u("and", t, u("not", other)))
            yield u("xor", u("xor", t, other), other)
            yield u("where", other, t, t)
            yield u("and", t, u("not", u("isnan", u("to", other, par=torch.float64))))
            yield u("gt", u("add", t, t), Term("to", (Term("xor", (t, t)),), torch.int32))
            yield u("and", t, u("le", N, u("max", N, M)))
            yield u("or", t, u("lt", u("add", N, M), N))
    match t.op:
        case "add" | "mul" | "max" | "min" | "and" | "or" | "eq":
            yield u(t.op, b, a)
            if a.op == t.op:
                yield u(t.op, a.args[0], u(t.op, a.args[1], b))
        case "sub":
            yield u("add", a, u("neg", b))
            yield u("neg", u("sub", b, a))
        case "div":
            yield u("mul", a, u("recip", b))
            yield u("recip", u("div", b, a))
        case "neg" if t.kind == "f":
            yield u("mul", const(-1), a)
        case "abs":
            yield u("max", a, u("neg", a))
            if t.kind == "f":
                yield u("mul", a, u("sign", a))
                yield u("sqrt", u("square", a))
                yield u("where", u("lt", a, const(0)), u("neg", a), a)
        case "relu":
            yield u("max", a, const(0))
            yield u("where", u("gt", a, const(0)), a, const(0))
            yield u("where", u("lt", a, const(0)), const(0), a)
            yield u("mul", a, u("to", u("gt", a, const(0)), par=torch.float64))
            yield u("mul", half, u("add", a, u("abs", a)))
        case "square":
            yield u("mul", u("abs", a), u("abs", a))
            yield u("pow", a, par=2)
            yield u("exp", u("mul", two, u("log", a)))
            yield u("exp", u("mul", two, u("log", u("abs", a))))
        case "sqrt":
            yield u("exp", u("mul", half, u("log", a)))
            yield u("pow", a, par=0.5)
            yield u("mul", a, u("rsqrt", a))
        case "rsqrt":
            yield u("div", u("sqrt", a), a)
            yield u("recip", u("sqrt", a))
        case "sigmoid":
            yield u("recip", u("add", one, u("exp", u("neg", a))))
            yield u("div", u("exp", a), u("add", one, u("exp", a)))
            yield u("sub", one, u("sigmoid", u("neg", a)))
        case "tanh":
            yield u("sub", u("mul", two, u("sigmoid", u("mul", two, a))), one)
        case "floor":
            yield u("neg", u("ceil", u("neg", a)))
            yield u("to", u("to", a, par=torch.int64), par=torch.float64)
            yield u("sub", u("floor", u("add", a, one)), one)
            yield u("round", u("sub", a, half))
        case "trunc":
            yield u("to", u("to", a, par=torch.int64), par=torch.float64)
            yield u("mul", u("sign", a), u("floor", u("abs", a)))
        case "round":
            yield u("floor", u("add", a, half))
            yield u("neg", u("round", u("neg", a)))
        case "sign":
            yield u("div", a, u("abs", a))
            if a.kind == "f":
                yield u(
                    "sub",
                    u("to", u("gt", a, const(0)), par=torch.float64),
                    u("to", u("lt", a, const(0)), par=torch.float64),
                )
        case "exp" if a.op in ("add", "sub"):
            d = u("exp", a.args[0]), u("exp", a.args[1])
            yield u("mul" if a.op == "add" else "div", *d)
        case "log" if a.op in ("mul", "div"):
            d = u("log", a.args[0]), u("log", a.args[1])
            yield u("add" if a.op == "mul" else "sub", *d)
        case "where":
            yield u("where", u("not", a), c, b)
            if t.kind == "f":
                q = u("to", a, par=torch.float64)
                yield u("add", u("mul", q, b), u("mul", u("sub", one, q), c))
                yield u("add", c, u("mul", q, u("sub", b, c)))
                yield u("add", u("zeroed", a, b), u("zeroed", u("not", a), c))
            yield u("where", u("and", a, k.bool(1)), b, u("where", a, b, c))
        case "masked":
            yield u("add", b, u("masked", a, const(0)))
            yield u("log", u("zeroed", a, u("exp", b)))
            yield u("min", b, u("where", a, const(INF), const(-INF)))
        case "zeroed":
            yield u("mul", u("to", a, par=torch.float64), b)
            yield u("exp", u("masked", a, u("log", b)))
        case "sum":
            if t.kind == "f":
                yield u("mul", u("mean", a, par=t.par), const(a.shape[t.par]))
                yield u("sum", u("flip", a, par=t.par), par=t.par)
                yield u("add", u("sum", u("sub", a, other), par=t.par), u("sum", u("expand", other), par=t.par))
                if a.op == "mul":
                    yield u("mul", a.args[0], u("sum", u("expand", a.args[1]), par=t.par))
                    yield u("mul", u("sum", u("expand", a.args[0]), par=t.par), a.args[1])
                if a.op in ("add", "sub"):
                    yield u(a.op, *(u("sum", u("expand", v), par=t.par) for v in a.args))
        case "mean":
            yield u("div", u("sum", a, par=t.par), const(a.shape[t.par]))
        case "amax" | "amin" as name if t.kind == "f":
            twin = "amin" if name == "amax" else "amax"
            yield u("neg", u(twin, u("neg", a), par=t.par))
            yield u("log", u(name, u("exp", a), par=t.par))
            yield u("mul", half, u(name, u("mul", two, a), par=t.par))
            yield u("sub", u(name, u("add", a, S), par=t.par), S)
            if a.op in ("add", "mul"):
                yield u(a.op, a.args[0], u(name, u("expand", a.args[1]), par=t.par))
                yield u(a.op, u(name, u("expand", a.args[0]), par=t.par), a.args[1])
            if a.op in ("max", "min"):
                yield u(a.op, *(u(name, u("expand", v), par=t.par) for v in a.args))
        case "prod":
            yield u("exp", u("sum", u("log", a), par=t.par))
            if a.op in ("mul", "div"):
                yield u(a.op, *(u("prod", u("expand", v), par=t.par) for v in a.args))
        case "softmax":
            e = u("exp", a)
            yield u("div", e, u("sum", e, par=t.par))
            z = u("exp", u("sub", a, u("amax", a, par=t.par)))
            yield u("div", z, u("sum", z, par=t.par))
            yield u("exp", u("logsoftmax", a, par=t.par))
            yield u("exp", u("sub", a, u("logsumexp", a, par=t.par)))
            yield u("softmax", u("add", a, S), par=t.par)
            yield u("softmax", u("add", a, u("amax", a, par=-1)), par=t.par)
            yield u("softmax", u("sub", a, u("sum", a, par=-1)), par=t.par)
            yield u("nan_to_num", t)
            yield u("where", u("isnan", t), const(0), t)
            yield u("where", u("eq", u("amax", a, par=t.par), const(-INF)), const(0), t)
            yield u("min", t, one)
            yield u("max", t, const(0))
        case "logsoftmax":
            yield u("log", u("softmax", a, par=t.par))
            yield u("sub", a, u("logsumexp", a, par=t.par))
        case "logsumexp":
            yield u("log", u("sum", u("exp", a), par=t.par))
            m = u("amax", a, par=t.par)
            yield u("add", m, u("log", u("sum", u("exp", u("sub", a, m)), par=t.par)))
        case "cumsum" if t.kind == "f":
            yield u("flip", u("cumsum", u("flip", a, par=t.par), par=t.par), par=t.par)
            yield u(
                "sub",
                u("add", u("sum", a, par=t.par), a),
                u("flip", u("cumsum", u("flip", a, par=t.par), par=t.par), par=t.par),
            )
        case "matmul":
            if a.op == "mul":
                yield u("mul", a.args[0], u("matmul", u("expand", a.args[1]), b))
                yield u("mul", u("matmul", u("expand", a.args[0]), b), a.args[1])
            if a.op in ("add", "sub"):
                yield u(a.op, *(u("matmul", u("expand", v), b) for v in a.args))
            if a.op in ("zeroed", "where"):
                yield u(a.op, a.args[0], *(u("matmul", u("expand", v), b) for v in a.args[1:]))
            yield u("mul", u("matmul", u("div", a, S), b), S)
        case "pow" if t.par in (2, 3):
            yield u("mul", a, u("pow", a, par=t.par - 1))
        case "pow" if t.par in (-1, -2):
            yield u("recip", u("pow", a, par=-t.par))
        case "lt":
            yield u("not", u("ge", a, b))
            yield u("gt", b, a)
            yield u("lt", u("sub", a, b), u("sub", a, a))
            if a.kind == b.kind == "f":
                yield u("lt", u("exp", a), u("exp", b))
                yield u("lt", u("mul", a, a), u("mul", b, a))
        case "le":
            yield u("not", u("lt", b, a))
            yield u("or", u("lt", a, b), u("eq", a, b))
        case "gt" | "ge":
            yield u({"gt": "lt", "ge": "le"}[t.op], b, a)
            yield u("not", u({"gt": "le", "ge": "lt"}[t.op], a, b))
        case "ne":
            yield u("not", u("eq", a, b))
        case "and":
            yield u("not", u("or", u("not", a), u("not", b)))
            yield u("to", u("mul", u("to", a, par=torch.int32), u("to", b, par=torch.int32)), par=torch.bool)
        case "or":
            yield u("to", u("add", u("to", a, par=torch.int32), u("to", b, par=torch.int32)), par=torch.bool)
        case "isnan":
            yield u("ne", a, a)
            yield u("isnan", u("mul", two, a))
            yield u("isnan", u("sub", a, a))
        case "fdiv":
            yield u("to", u("floor", u("div", a, b)), par=t.like.dtype)
            yield u("tdiv", a, b)
        case "tdiv":
            yield u("to", u("div", a, b), par=t.like.dtype)
            yield u("fdiv", a, b)
        case "mod":
            yield u("sub", a, u("mul", u("fdiv", a, b), b))
            yield u("fmod", a, b)
        case "to" if t.kind == "f" and a.kind == "i" and a.op in ("add", "sub", "mul", "max"):
            yield u(a.op, *(u("to", v, par=torch.float64) for v in a.args))
        case "to" if t.kind == "f" and a.kind == "b":
            yield u("where", a, one, const(0))
        case "to" if t.kind == "i" and a.kind == "f":
            yield u("to", u("trunc", a), par=t.par)
            yield u("to", u("floor", a), par=t.par)


_SLIPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        words[0]: tuple(words[1:])
        for words in map(
            str.split,
            [
                "lt le gt",
                "le lt",
                "gt ge",
                "ge gt",
                "eq le ne",
                "max min",
                "min max",
                "amax amin",
                "amin amax",
                "sum mean",
                "mean sum",
                "add sub",
                "sub add",
                "mul div",
                "floor trunc ceil round",
                "trunc floor round",
                "round floor",
                "fdiv tdiv",
                "tdiv fdiv",
                "mod fmod",
                "fmod mod",
                "and or",
                "or xor",
                "xor or",
                "causal strict",
                "strict causal",
                "masked zeroed masked+",
                "zeroed masked",
                "softmax logsoftmax",
                "relu abs",
                "isnan isinf",
                "isinf isnan",
                "flip roll",
                "sin tanh",
                "sqrt abs",
                "square abs",
            ],
        )
    }
)


def damage(t: Term, k: Maker) -> Iterator[Term]:
    """Small mistakes."""
    for slip in _SLIPS.get(t.op, ()):
        yield Term(slip, t.args, t.par)
    if t.par in (-1, 0) and t.op not in ("pow", "const"):
        yield Term(t.op, t.args, -1 - t.par)
    if t.op == "const":
        yield from (const(c) for c in (-t.par, t.par + 1, t.par * (1 + 1e-4), t.par + 1e-9) if c != t.par)
    if t.op in ("sub", "div", "lt", "le", "fdiv", "mod") or (t.op == "halves"):
        yield Term(t.op, (t.args[1], t.args[0]))
    if t.op == "where":
        yield Term("where", (t.args[0], t.args[2], t.args[1]))
    if t.op == "to" and t.kind == "i":
        yield from (Term("to", (Term("to", t.args, d),), t.par) for d in INTEGERS if d != t.par)
    if t.kind == "f" and t.op != "const":
        yield Term("add", (t, const(1e-6)))
        yield Term("neg", (t,))
        yield Term("to", (Term("to", (t,), torch.int64),), torch.float64)
    if t.op == "pow":
        yield Term("pow", t.args, t.par + 1)
    if t.op == "input":
        yield from (v for v in (X, Y, N, M) if v.par != t.par and v.kind == t.kind and v.shape == t.shape)


def places(t: Term, at: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Term]]:
    """Every place of a term."""
    yield at, t
    for n, a in enumerate(t.args):
        yield from places(a, (*at, n))


def put(t: Term, at: tuple[int, ...], new: Term) -> Term:
    """The term with another one at a place."""
    if not at:
        return new
    return Term(t.op, tuple(put(a, at[1:], new) if n == at[0] else a for n, a in enumerate(t.args)), t.par)


@dataclass(frozen=True)
class Pair:
    """Two programs of one shape and type."""

    seed: int
    dtype: torch.dtype
    reference: Term
    candidate: Term
    how: str

    def __str__(self) -> str:
        return f"seed {self.seed} ({self.how}, {self.dtype})\n  {self.reference}\n  {self.candidate}"


def pair(seed: int) -> Pair | None:
    """The pair of a seed, where one comes of it."""
    rng = np.random.default_rng([13, seed])
    dtype = INTEGERS[int(rng.integers(4))]
    k = Maker(rng, dtype)
    depth = int(rng.integers(1, 5))
    kind = rng.choice(("float", "float", "float", "float", "integer", "bool"))
    try:
        term = {"float": k.float, "integer": k.integer, "bool": k.bool}[kind](depth)
        twin, how = term, ("algebra", "algebra", "damage")[int(rng.integers(3))]
        steps = int(rng.integers(1, 3)) if how == "algebra" else 1
        for _ in range(20):
            at, there = k.pick(list(places(twin)))
            options = list((damage if how == "damage" else algebra)(there, k))
            if not options:
                continue
            new = k.pick(options)
            if new.kind != there.kind or new.like.dtype != there.like.dtype or new == there:
                continue
            whole = put(twin, at, new)
            if whole.like.dtype != twin.like.dtype:
                continue
            twin, steps = whole, steps - 1
            if not steps:
                break
        if twin == term or len(twin.shape) > 2:
            return None
        if twin.shape != term.shape:
            term, twin = (Term("expand", (t,)) for t in (term, twin))
        if rng.random() < 0.4:
            term, twin = twin, term
        assert term.like.dtype == twin.like.dtype
    except (RuntimeError, AssertionError, IndexError, TypeError):
        return None
    return Pair(seed, dtype, term, twin, how)


# The judge

_SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.0, -2.0, 2.5, 3.0, -3.0)


def draws(dtype: torch.dtype, seed: int, count: int) -> Iterator[dict[str, Tensor]]:
    """Finite inputs: zeros of both signs, ties, halves, rows of one sign, whole numbers at the type's limits."""
    rng = np.random.default_rng([17, seed])
    info = torch.iinfo(dtype)
    # int64 inputs are assumed within 2^31
    low, high = max(info.min, -(2**31)), min(info.max, 2**31 - 1)
    for n in range(count):
        found: dict[str, Tensor] = {}
        for name, shape in FLOATS.items():
            kind = n % 12 if n < 24 else int(rng.integers(12))
            if name != "x" and rng.random() < 0.5:
                kind = int(rng.integers(12))
            a = rng.standard_normal(shape)
            match kind:
                case 0 | 1:
                    a = rng.choice(_SPECIAL, shape)
                case 2:
                    a = np.zeros(shape) if rng.random() < 0.5 else np.full(shape, -0.0)
                case 3:
                    a = -np.abs(a) - 0.1
                case 4:
                    a = np.abs(a) + 0.1
                case 5:
                    a = np.full(shape, rng.choice(_SPECIAL))
                case 6:
                    a[rng.integers(shape[0])] = rng.choice(_SPECIAL)
                case 7:
                    a = a * 20
                case 8:
                    a = a * 1e-4
                case 9:
                    a = rng.integers(-4, 5, shape) / 2.0
                case 10:
                    a = rng.choice((-1000.0, 0.0, 1000.0, 1e-9), shape)
                case 11 if rng.random() < 0.3:
                    a = rng.choice((-3e9, 1e10, 0.0, 300.0), shape)
            found[name] = torch.tensor(a, dtype=torch.float64)
        found["p"] = torch.tensor(rng.random((ROWS, COLUMNS)) < rng.choice((0.0, 0.5, 0.5, 1.0)))
        for name in "nm":
            ends = rng.choice([low, low + 1, high, high - 1, 0, 1, high // 2, low // 2], (ROWS, COLUMNS))
            near = rng.integers(max(low, -4), 5, (ROWS, COLUMNS))
            whole = np.where(rng.random((ROWS, COLUMNS)) < rng.choice((0.0, 0.5, 1.0)), ends, near)
            found[name] = torch.tensor(whole).to(dtype)
        yield found


def _together(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return a.expand_as(a + b), b.expand_as(a + b)


def apart(a: Tensor, b: Tensor) -> bool:
    """Whether two results differ by more than rounding, or one alone is a number."""
    a, b = _together(a, b)
    if not a.is_floating_point():
        return bool((a != b).any())
    finite = torch.isfinite(a)
    both = finite & torch.isfinite(b)
    if bool((finite & ~both).any()):
        return True
    if bool((torch.isinf(a) & (a != b)).any()):
        return True
    size = torch.maximum(a.abs(), b.abs())[both]
    scale = a[finite].abs().max() if finite.any() else torch.tensor(0.0)
    return bool(((a - b)[both].abs() > 1e-7 * size + 1e-9 * scale + 1e-11).any())


@dataclass(frozen=True)
class Judgement:
    """What torch says.

    Attributes:
        differ: inputs at which the reference is defined all along, and the candidate differs from it.
        at_all: inputs at which both differ although the reference left a domain on the way, or has no value.
        compared: on how many inputs that counts.
    """

    differ: Mapping[str, Tensor] | None
    at_all: Mapping[str, Tensor] | None
    compared: int


def judge(made: Pair, count: int = 150) -> Judgement:
    """Run both on inputs that are nasty."""
    compared = 0
    undefined = None
    for inputs in draws(made.dtype, made.seed, count):
        one, other = Record(), Record()
        try:
            a = run(made.reference, inputs, one)
        except ZeroDivisionError:
            continue
        try:
            b = run(made.candidate, inputs, other)
        except ZeroDivisionError:
            if any(apart(a, run(made.candidate, inputs, Record(instead=n))) for n in (1, 77)):
                return Judgement(inputs, undefined, compared)
            continue
        beyond = any(v.abs().max() > 2**31 for v in inputs.values() if v.is_floating_point())
        if (
            one.overflown
            or other.overflown
            or one.border
            or other.border
            or (beyond and _casts(made))
            or _unsure(made, inputs, a)
        ):
            continue
        compared += 1
        alone = a.is_floating_point() and bool((torch.isnan(a) & ~torch.isnan(b)).any())
        if (alone or apart(a, b)) and not _unsure(made, inputs, b, made.candidate):
            if not one.undefined and not alone:
                return Judgement(inputs, undefined, compared)
            undefined = undefined or inputs
    return Judgement(None, undefined, compared)


def _casts(p: Pair) -> bool:
    """Whether a number is cast to an integer type, which is assumed to hold it."""
    return any(t.op == "to" and t.kind == "i" for s in (p.reference, p.candidate) for _, t in places(s))


def _unsure(made: Pair, inputs: Mapping[str, Tensor], value: Tensor, term: Term | None = None) -> bool:
    """Whether rounding decides the value: it changes with the last places of what is computed on the way."""
    jitter = torch.Generator().manual_seed(made.seed)
    again = [run(term or made.reference, inputs, Record(jitter=jitter, instead=1)) for _ in range(6)]
    return any(apart(value, other) for other in again)


# The prover


def matched(pairs: Sequence[Pair]) -> dict[int, Matched]:
    """What the prover compares, of pairs of one type and by their places, without those that the reader refuses."""
    inputs = example(pairs[0].dtype)
    terms = [t for p in pairs for t in (p.reference, p.candidate)]

    def every(*xs: Tensor) -> tuple[Tensor, ...]:
        return tuple(called(t, NAMES)(*xs) for t in terms)

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


def asked(both: Matched, worker: Worker, opinion: bool = True) -> Verdict:
    """The verdict, as `prism.prove` gives it but for what a reader assumes."""
    found = examine(both, worker=worker)
    return with_opinion(replace(found, parts=((found, both),))) if opinion else found.verdict


def used(p: Pair) -> list[str]:
    """The inputs that either program reads."""
    read = {t.par for s in (p.reference, p.candidate) for _, t in places(s) if t.op == "input"}
    return [n for n in NAMES if n in read]


def wrong(p: Pair, verdict: Verdict, count: int = 150) -> str:
    """What torch holds against a verdict; empty where nothing."""
    if verdict.status is Status.UNKNOWN:
        return "" if "a bug in prism" not in verdict.reason else f"a bug by its own words: {verdict.reason}"
    if verdict.status is Status.REFUTED:
        return _refuted(p, verdict)
    told = judge(p, count)
    if told.differ is not None:
        return f"proved, but at {shown(p, told.differ)}"
    if told.at_all is not None and not verdict.assumptions:
        return f"proved without an assumption, but at {shown(p, told.at_all)}"
    return ""


def _refuted(p: Pair, verdict: Verdict) -> str:
    inputs = {}
    for n, v in example(p.dtype).items():
        drawn = np.asarray(verdict.counterexample.get(n, np.zeros(v.shape)))
        full = np.zeros(tuple(v.shape))
        full[tuple(slice(0, s) for s in drawn.shape)] = drawn
        inputs[n] = torch.tensor(full).to(v.dtype)
    other = Record()
    try:
        a, b = _together(run(p.reference, inputs, Record()), run(p.candidate, inputs, other))
    except ZeroDivisionError:
        return ""
    if other.undefined:
        return ""
    same = bool(((a == b) | (torch.isnan(a) & torch.isnan(b)) if a.is_floating_point() else a == b).all())
    return f"refuted, but torch has the same: {verdict.reason}" if same else ""


def shown(p: Pair, inputs: Mapping[str, Tensor]) -> str:
    lines = [f"  {n} = {inputs[n].tolist()}" for n in used(p)]
    for t in (p.reference, p.candidate):
        try:
            lines.append(f"  {run(t, inputs, Record()).tolist()}")
        except ZeroDivisionError:
            lines.append("  a whole number divided by 0")
    return "\n".join(lines)


def main(first: int, count: int, how: str = "whole") -> None:
    """Hunt: with the whole prover, by normal forms alone ("forms"), or without what would refute before ("blind")."""
    warnings.simplefilter("ignore")
    if "forms" in how:
        setattr(prove, "_in_one_class", lambda *_: Verdict(Status.UNKNOWN, ""))  # noqa: B010
    if "blind" in how:
        setattr(prove, "refute", lambda *_, **__: Attempt(None, 1))  # noqa: B010
    counts: Counter[str] = Counter()
    with Worker() as worker:
        for start in range(first, first + count, TOGETHER):
            for p, both in gathered(range(start, start + TOGETHER)):
                try:
                    verdict = asked(both, worker, "blind" not in how)
                except PrismError as error:
                    print(p, error.one_line(), sep="\n  ", flush=True)
                    counts["ERROR"] += 1
                    continue
                counts[f"{verdict.status.value} {p.how}"] += 1
                told = wrong(p, verdict)
                if told:
                    print(p, f"  {verdict}", told, sep="\n", flush=True)
                    counts["WRONG"] += 1
            print(start + TOGETHER, dict(counts), flush=True)


TOGETHER = 100


def gathered(seeds: range) -> Iterator[tuple[Pair, Matched]]:
    """The pairs of seeds, traced together by their types."""
    of: dict[torch.dtype, list[Pair]] = {}
    for p in map(pair, seeds):
        if p is not None:
            of.setdefault(p.dtype, []).append(p)
    for pairs in of.values():
        yield from ((pairs[n], both) for n, both in matched(pairs).items())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), " ".join(sys.argv[3:]))
