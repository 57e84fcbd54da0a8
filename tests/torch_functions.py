"""Random torch functions, as Python that can be read: a graph of some calls with random arguments, types and extents.

Two vocabularies: `MASKED` is of what kernels mask (pads, shifts, slices, comparisons, casts, reductions over padded or
partly masked axes, scalars), `WIDE` is of all that the reader takes, with arguments that users leave out or write down.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch.nn import functional as F

Tensor: TypeAlias = torch.Tensor
Fn: TypeAlias = Callable[..., Any]
T = TypeVar("T")
SCOPE = {"torch": torch, "F": F, "inf": math.inf, "nan": math.nan}
MOST = 4000
"""Elements of a value."""


@dataclass(frozen=True)
class Function:
    """A function of tensors.

    Attributes:
        seed: what it was drawn from.
        lines: assignments, one a line.
        result: the names that are returned.
        inputs: an example for each argument.
    """

    seed: int
    lines: tuple[str, ...]
    result: tuple[str, ...]
    inputs: Mapping[str, Tensor]

    @property
    def source(self) -> str:
        """Its text."""
        body = [*self.lines, f"return {', '.join(self.result)}"]
        return f"def f({', '.join(self.inputs)}):\n" + textwrap.indent("\n".join(body), "    ") + "\n"

    @cached_property
    def call(self) -> Fn:
        """The function itself."""
        scope: dict[str, Any] = dict(SCOPE)
        exec(self.source, scope)
        made: Fn = scope["f"]
        return made

    def __str__(self) -> str:
        given = ", ".join(f"{n}: {_type(t)}{list(t.shape)}" for n, t in self.inputs.items())
        return f"# seed {self.seed}: {given}\n{self.source}"


def _type(t: Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


class Maker:
    """Draws a function.

    Args:
        seed: decides all.
        floats: types of the float inputs.
        extents: to choose from.
        rank: of the largest input.
    """

    def __init__(
        self, seed: int, floats: Sequence[torch.dtype], extents: Sequence[int], rank: int = 2, special: bool = True
    ) -> None:
        self.seed = seed
        self.rng = np.random.default_rng([19, seed])
        self.dtype = self.pick(floats)
        self.integer = self.pick((torch.int64, torch.int32, torch.int32, torch.int8, torch.uint8))
        self.special = special
        m, n, k = (self.pick(extents) for _ in range(3))
        shapes = {"x": (m, n), "y": (m, n), "w": (n, k), "v": (n,), "s": (), "b": (m, n), "i": (m, n), "c": (m, 1)}
        if rank == 3:
            shapes |= {"x": (m, n, k), "w": (m, k, n)}
        self.inputs: dict[str, Tensor] = {}
        for name, shape in shapes.items():
            self.inputs[name] = self.drawn(name, shape)
        self.values = dict(self.inputs)
        self.lines: list[str] = []

    def drawn(self, name: str, shape: tuple[int, ...]) -> Tensor:
        match name:
            case "b":
                return torch.tensor(self.rng.random(shape) < 0.5)
            case "i":
                return torch.tensor(self.rng.integers(0, 6, shape)).to(self.integer)
        # halves and quarters: many results are exact in every type, and comparisons have ties
        return torch.tensor(self.rng.integers(-12, 13, shape) / 4).to(self.dtype)

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def among(self, low: int, high: int) -> int:
        """A whole number, the ends included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def value(self, wanted: Callable[[Tensor], bool] = lambda t: True) -> str:
        """A name of a value, late ones more often."""
        names = [n for n, t in self.values.items() if wanted(t)]
        if not names:
            return "x"
        return self.pick(names[-2:] if self.chance(0.7) else names)

    def of(self, name: str) -> Tensor:
        return self.values[name]

    def float(self) -> str:
        return self.value(lambda t: t.is_floating_point())

    def truth(self) -> str:
        return self.value(lambda t: t.dtype is torch.bool)

    def whole(self) -> str:
        return self.value(lambda t: not t.is_floating_point() and t.dtype is not torch.bool)

    def wide(self) -> str:
        return self.value(lambda t: t.dim() >= 1)

    def dim(self, name: str) -> int:
        r = self.of(name).dim()
        return self.among(-r, r - 1) if r else self.pick((-1, 0))

    def number(self) -> str:
        if self.special:
            return self.pick(("0.0", "1.0", "-1.0", "0.5", "2.0", "-inf", "inf", "-0.25", "3.0", "0.0"))
        return self.pick(("0.0", "1.0", "-1.0", "0.5", "2.0", "-0.25", "3.0"))

    def axis(self, name: str, keep: bool = True) -> str:
        """Arguments that say which axes are reduced."""
        r = self.of(name).dim()
        if r == 0 or self.chance(0.1):
            return ""
        d = self.dim(name)
        if r > 1 and self.chance(0.1):
            d2 = self.dim(name)
            text = f"({d}, {d2})" if d % r != d2 % r else f"({d},)"
        else:
            text = str(d)
        return text + (self.pick((", keepdim=True", ", keepdim=True", ", keepdim=False", "")) if keep else "")

    def step(self, vocabulary: Mapping[str, Callable[[Maker], str]], names: Sequence[str]) -> None:
        """One more line, if what is drawn can be computed."""
        text = vocabulary[self.pick(names)](self)
        try:
            with torch.no_grad():
                made = eval(text, dict(SCOPE), dict(self.values))
        except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError, ZeroDivisionError):
            return
        if not isinstance(made, torch.Tensor) or made.numel() > MOST or made.dim() > 4 or made.is_complex():
            return
        if not made.numel() and not any(0 in t.shape for t in self.inputs.values()):
            return
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.values[name] = made

    def done(self) -> Function | None:
        """The function: its last value, another one at times, and what they need."""
        if not self.lines:
            return None
        results = [f"t{len(self.lines) - 1}"]
        if len(self.lines) > 2 and self.chance(0.25):
            results.append(f"t{self.among(0, len(self.lines) - 2)}")
        needed, kept = set(results), list[str]()
        for line in reversed(self.lines):
            name, _, text = line.partition(" = ")
            if name in needed:
                kept.append(line)
                needed |= {n for n in self.values if n in _words(text)}
        inputs = {n: t for n, t in self.inputs.items() if n in needed}
        return Function(self.seed, tuple(reversed(kept)), tuple(results), inputs) if inputs else None


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())


def _u(*forms: str) -> Callable[[Maker], str]:
    return lambda k: k.pick(forms).format(k.float())


def _b(*forms: str) -> Callable[[Maker], str]:
    return lambda k: k.pick(forms).format(k.float(), k.float() if k.chance(0.8) else k.number())


def _pad(k: Maker) -> str:
    a = k.wide()
    r = k.of(a).dim()
    widths = [k.among(-1, 3) for _ in range(2 * k.among(1, r))] if r else [0, 0]
    value = "" if k.chance(0.3) else f", value={k.number() if k.of(a).is_floating_point() else k.among(0, 2)}"
    return f"F.pad({a}, {tuple(widths)}{value})"


def _slice(k: Maker) -> str:
    a = k.wide()
    parts = []
    for n in k.of(a).shape:
        match k.among(0, 6):
            case 0:
                parts.append(str(k.among(-n, n - 1)) if n else ":")
            case 1:
                parts.append(f"{k.among(0, max(n - 1, 0))}:")
            case 2:
                parts.append(f":{k.among(1, n + 1)}")
            case 3:
                parts.append(f"{k.among(0, 1)}::{k.among(2, 3)}")
            case 4:
                parts.append(f":-{k.among(1, 2)}")
            case _:
                parts.append(":")
    return f"{a}[{', '.join(parts)}]"


def _cast(k: Maker) -> str:
    to = ("bool", "int32", "float16", "bfloat16", "float32", "int64", "int8", "uint8")
    return f"{k.value()}.to(torch.{k.pick(to)})"


def _where(k: Maker) -> str:
    a, b = (k.float() if k.chance(0.6) else k.number() for _ in range(2))
    return f"torch.where({_condition(k)}, {a}, {b})"


def _condition(k: Maker) -> str:
    if k.chance(0.5):
        return k.truth()
    return f"({k.value()} {k.pick(('>', '>=', '<', '<=', '==', '!='))} {k.pick((k.float(), '0', '0.5', '1'))})"


def _places(k: Maker) -> str:
    """A mask by places."""
    a = k.wide()
    n = k.of(a).shape[-1] if k.of(a).dim() else 1
    compare = k.pick(("<", ">=", "==", "<="))
    return f"torch.where(torch.arange({n}) {compare} {k.among(0, max(n - 1, 0))}, {a}, {k.number()})"


def _reduce(k: Maker) -> str:
    a = k.value(lambda t: t.is_floating_point() or t.dtype is torch.bool) if k.chance(0.8) else k.value()
    name = k.pick(("sum", "mean", "amax", "amin", "prod", "any", "all", "sum", "amax", "logsumexp"))
    if name in ("mean", "logsumexp", "prod"):
        a = k.float()
    if name in ("prod", "any", "all"):
        r = k.of(a).dim()
        return f"{a}.{name}({k.dim(a)}, keepdim={k.chance(0.5)})" if r else f"{a}.{name}()"
    if name == "logsumexp":
        return f"{a}.logsumexp({k.dim(a)}, keepdim={k.chance(0.5)})"
    return f"{a}.{name}({k.axis(a)})"


def _product(k: Maker) -> str:
    a, b = k.pick((("x", "w"), (k.wide(), k.wide()), (k.wide(), f"{k.wide()}.mT"), (k.wide(), "v")))
    return f"{a} @ {b}"


def _scan(k: Maker) -> str:
    a = k.float()
    return f"{a}.{k.pick(('softmax', 'cumsum', 'log_softmax', 'softmax'))}({k.dim(a)})"


def _join(k: Maker) -> str:
    a = k.wide()
    shape, dtype = k.of(a).shape, k.of(a).dtype
    b = k.value(lambda t: t.shape == shape and t.dtype == dtype)
    c = k.value(lambda t: t.dim() == len(shape) and t.dtype == dtype)
    return k.pick((f"torch.cat([{a}, {b}], {k.dim(a)})", f"torch.stack([{a}, {b}])", f"torch.cat([{a}, {c}], -1)"))


def _move(k: Maker) -> str:
    a = k.wide()
    d = k.dim(a)
    return k.pick(
        (
            f"{a}.flip({d})",
            f"{a}.roll({k.among(-2, 2)}, {d})",
            f"{a}.mT",
            f"{a}.unsqueeze({d})",
            f"{a}.squeeze({d})",
            f"{a}.reshape(-1)",
            f"{a}.diagonal()",
            f"F.pad({a}, (1, 0))[..., :-1]",
            f"F.pad({a}, (0, 1), value={k.number()})[..., 1:]",
            f"{a}.tril({k.among(-1, 1)})",
            f"{a}.triu({k.among(-1, 1)})",
            f"{a}.unfold(-1, {k.among(1, 2)}, 1)",
        )
    )


MASKED: Mapping[str, Callable[[Maker], str]] = MappingProxyType(
    {
        "pad": _pad,
        "slice": _slice,
        "cast": _cast,
        "where": _where,
        "places": _places,
        "fill": lambda k: f"{k.float()}.masked_fill({_condition(k)}, {k.number()})",
        "compare": _condition,
        "logic": lambda k: k.pick((f"~{k.truth()}", f"{k.truth()} & {k.truth()}", f"{k.truth()} | {_condition(k)}")),
        "reduce": _reduce,
        "product": _product,
        "scan": _scan,
        "join": _join,
        "move": _move,
        "exp": _u("{}.exp()", "torch.sigmoid({})", "torch.tanh({})", "F.gelu({})", "F.silu({})"),
        "partial": _u("{}.log()", "{}.sqrt()", "{}.reciprocal()", "{}.rsqrt()", "1 / {}"),
        "simple": _u("-{}", "{}.abs()", "F.relu({})", "{}.square()", "{}.floor()", "{}.sign()", "{} * 0.5", "{} + 1"),
        "tests": _u("torch.isnan({})", "torch.isinf({})", "{}.nan_to_num(0.0, 1.0, -1.0)"),
        "pair": _b("{} + {}", "{} - {}", "{} * {}", "{} / {}"),
        "bounds": lambda k: f"torch.{k.pick(('maximum', 'minimum'))}({k.float()}, {k.float()})",
        "scalar": lambda k: f"{k.float()} {k.pick(('*', '+', '/', '-'))} s",
    }
)
OFTEN = ("pad", "pad", "slice", "cast", "where", "places", "fill", "reduce", "reduce", "move", "pair", "compare")


def masked(seed: int, least: int = 2, most: int = 7) -> Function | None:
    """A function around pads and masks."""
    k = Maker(
        seed,
        (torch.float32, torch.float32, torch.float32, torch.float16, torch.bfloat16),
        (1, 2, 3, 5, 7, 17, 33),
    )
    names = (*MASKED, *OFTEN)
    for _ in range(k.among(least, most)):
        k.step(MASKED, names)
    return k.done()


# All that the reader takes

_TYPES = ("bool", "int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


def _dtype(k: Maker, p: float = 0.3) -> str:
    return f", dtype=torch.{k.pick(_TYPES)}" if k.chance(p) else ""


def _scalar(k: Maker) -> str:
    return k.pick(("2", "-1", "0", "3", "0.5", "-1.5", "2.0", "True", "1e-3", "-7", "300"))


def _any2(k: Maker) -> tuple[str, str]:
    a = k.value()
    return a, k.value() if k.chance(0.7) else _scalar(k)


def _arithmetic(k: Maker) -> str:
    a, b = _any2(k)
    if k.chance(0.1):
        a, b = b, a
    return k.pick(
        (
            *(f"{a} {op} {b}" for op in ("+", "-", "*", "/", "//", "%", "**", "&", "|", "^", ">", "<=", "==", "!=")),
            f"torch.div({a}, {b}, rounding_mode={k.pick(('None', repr('floor'), repr('trunc')))})",
            f"torch.{k.pick(('fmod', 'remainder', 'maximum', 'minimum', 'floor_divide', 'true_divide'))}({a}, {b})",
            f"torch.add({a}, {b}, alpha={k.pick((2, -1, 3))})",
            f"torch.sub({a}, {b}, alpha={k.pick((2, -1, 3))})",
            f"torch.rsub({a}, {b})",
            f"torch.{k.pick(('logical_and', 'logical_or', 'logical_xor', 'heaviside', 'xlogy', 'isclose'))}({a}, {b})",
            f"torch.{k.pick(('eq', 'ne', 'lt', 'ge', 'bitwise_and', 'bitwise_or', 'logaddexp', 'pow'))}({a}, {b})",
            f"torch.addcmul({a}, {k.value()}, {k.value()}, value={k.pick((1, 2, -1))})",
            f"torch.lerp({k.float()}, {k.float()}, {k.pick(('0.3', '2', k.float()))})",
            f"torch.where({k.truth()}, {a}, {b})",
        )
    )


_UNARY = str.split(
    "abs neg sign floor ceil trunc round square relu exp sqrt reciprocal rsqrt sigmoid tanh sin cos log log1p expm1 erf"
    " exp2 log2 log10 isnan isinf isfinite logical_not bitwise_not sgn frac positive nan_to_num clone isneginf isposinf"
    " deg2rad rad2deg sinc"
)
_ACTIVATIONS = str.split(
    "relu6 gelu silu mish softplus elu selu celu leaky_relu hardsigmoid hardswish hardshrink softshrink tanhshrink"
    " logsigmoid softsign hardtanh"
)


def _unary(k: Maker) -> str:
    a = k.value()
    return k.pick(
        (
            f"torch.{k.pick(_UNARY)}({a})",
            f"torch.{k.pick(_UNARY)}({a})",
            f"F.{k.pick(_ACTIVATIONS)}({k.float()})",
            f"F.gelu({k.float()}, approximate='tanh')",
            f"F.softplus({k.float()}, beta={k.pick((1, 2, 0.5))}, threshold={k.pick((20, 1))})",
            f"F.elu({k.float()}, alpha={k.pick((0.5, 2.0))})",
            f"F.leaky_relu({k.float()}, {k.pick((0.2, -0.5))})",
            f"F.threshold({k.float()}, {k.pick((0.5, 0))}, {k.pick((20, -1.5))})",
            f"F.hardtanh({k.float()}, {k.pick((-0.5, 0))}, {k.pick((1, 2))})",
            f"torch.round({k.float()}, decimals={k.among(-1, 2)})",
            f"torch.nan_to_num({k.float()}, nan=1.5, posinf={k.pick((2, 'None'))}, neginf=-3)",
            f"torch.logit({k.float()}, eps=0.1)",
            f"{a}.to(torch.{k.pick(_TYPES)})",
            f"{a}.to(torch.{k.pick(_TYPES)})",
            f"{a}.{k.pick(('float', 'half', 'int', 'long', 'bool', 'double', 'byte', 'char'))}()",
            f"{a}.type_as({k.value()})",
            f"{a}.clamp({k.pick(('-1', '0.5', '0', 'None'))}, {k.pick(('2', '1.5', '-2', '3'))})",
            f"{a}.clamp(min={k.pick(('-1', '0.5', k.value()))})",
            f"{a}.clamp(max={k.pick(('1', '0.5', k.value()))})",
            f"{a}.masked_fill({k.truth()}, {_scalar(k)})",
            f"{a}.pow({k.pick(('2', '3', '0', '-1', '0.5', '1.5', '-2', '1'))})",
        )
    )


def _reduction(k: Maker) -> str:
    a = k.value()
    keep = k.pick(("", ", keepdim=True", ", keepdim=False"))
    d = k.dim(a)
    dims = k.pick((str(d), f"({d},)", f"[{d}, {k.dim(a)}]", "()")) if k.chance(0.5) else str(d)
    last = f"{{}}({k.axis(a)})"
    return k.pick(
        (
            f"{a}.{k.pick(('sum', 'mean', 'amax', 'amin', 'nansum', 'nanmean'))}({dims}{keep}"
            + (_dtype(k, 0.2) if k.chance(0.5) else "")
            + ")",
            f"{a}.sum({dims}{keep}{_dtype(k)})",
            f"{a}.{k.pick(('sum', 'mean', 'prod'))}({_dtype(k)[2:]})",
            f"{a}.prod({d}{keep}{_dtype(k)})",
            f"{a}.{k.pick(('any', 'all'))}({dims}{keep})",
            f"{a}.{k.pick(('any', 'all', 'amax', 'amin', 'max', 'min', 'norm', 'std', 'var'))}()",
            f"{a}.{k.pick(('max', 'min'))}({d}{keep})[0]",
            f"{a}.{k.pick(('argmax', 'argmin', 'median'))}({d})",
            f"{a}.{k.pick(('cumsum', 'cumsum', 'cumprod', 'logcumsumexp'))}({d})",
            f"{a}.cumsum({d}{_dtype(k)})",
            f"{a}.{k.pick(('softmax', 'log_softmax'))}({d}{_dtype(k)})",
            f"F.softmin({a}, {d})",
            f"{a}.logsumexp({dims}{keep})",
            f"{a}.{k.pick(('std', 'var'))}({d}, correction={k.among(0, 2)}{keep})",
            f"{a}.{k.pick(('std', 'var'))}({d}, unbiased={k.chance(0.5)}{keep})",
            f"torch.var_mean({a}, {d}{keep})[{k.among(0, 1)}]",
            f"torch.linalg.vector_norm({a}, {k.pick((1, 2, 0, 'inf', '-inf', 3, 0.5))}, dim={dims}{keep})",
            f"{a}.norm({k.pick((1, 2, 'inf', repr('fro')))}, dim={d}{keep})",
            f"torch.count_nonzero({a}, {d})",
            f"torch.{k.pick(('diff', 'trapezoid'))}({a}, dim={d})",
            f"torch.diff({a}, n={k.among(0, 2)}, dim={d})",
            last.format(f"{a}.{k.pick(('sum', 'mean', 'amax'))}"),
        )
    )


def _view(k: Maker) -> str:
    a = k.wide()
    t = k.of(a)
    d, e, r = k.dim(a), k.dim(a), t.dim()
    n = t.shape[d] if r else 1
    order = k.rng.permutation(r).tolist()
    half = [n // 2, n - n // 2]
    return k.pick(
        (
            f"{a}.transpose({d}, {e})",
            f"{a}.permute({tuple(order)})",
            f"{a}.unsqueeze({k.among(-r - 1, r)})",
            f"{a}.squeeze()",
            f"{a}.squeeze({d})",
            f"{a}.flatten({k.pick(('', str(d), f'{d}, -1'))})",
            f"{a}.reshape({k.pick(('-1', f'{t.numel()}', '1, -1', '-1, 1', f'-1, {n}', f'{n}, -1'))})",
            f"{a}.unflatten({d}, ({k.pick((f'-1, {n}', '1, -1', '-1, 1', '2, -1'))}))",
            f"{a}.expand({k.among(1, 3)}, {', '.join(['-1'] * r)})",
            f"{a}.expand_as({k.value()})",
            f"torch.broadcast_to({a}, {tuple(k.of(k.value()).shape)})",
            f"{a}.repeat({', '.join(str(k.among(1, 2)) for _ in range(r + k.among(0, 1)))})",
            f"{a}.tile({', '.join(str(k.among(1, 2)) for _ in range(k.among(1, 3)))})",
            f"{a}.repeat_interleave({k.among(1, 3)}, {d})",
            f"{a}.flip({d})",
            f"{a}.flip({d}, {e})",
            f"{a}.roll({k.among(-3, 3)}, {d})",
            f"{a}.roll({k.among(-3, 3)})",
            f"{a}.select({d}, {k.among(-max(n, 1), max(n - 1, 0))})",
            f"{a}.narrow({d}, {k.among(0, max(n - 1, 0))}, {k.among(1, 2)})",
            f"{a}.split({half}, {d})[{k.among(0, 1)}]",
            f"{a}.split({k.among(1, 3)}, {d})[{k.among(-1, 0)}]",
            f"{a}.chunk({k.among(1, 3)}, {d})[{k.among(-1, 1)}]",
            f"{a}.unbind({d})[{k.among(-1, 0)}]",
            f"{a}.unfold({d}, {k.among(1, 3)}, {k.among(1, 2)})",
            f"{a}.diagonal({k.among(-1, 1)})",
            f"torch.diag_embed({a}, {k.among(-1, 1)})",
            f"torch.diag({a}, {k.among(-1, 1)})",
            f"{a}.{k.pick(('tril', 'triu'))}({k.among(-1, 2)})",
            f"{a}.movedim({d}, {e})",
            f"{a}.rot90({k.among(-1, 3)})",
            f"{a}.{k.pick(('T', 'mT', 'H'))}",
            f"{a}.index_select({d}, torch.tensor([{k.among(0, max(n - 1, 0))}, 0]))",
            f"{a}[{k.pick(('...', ':'))}, {k.pick(('None', '-1', '0', '1:', '::2', ':-1'))}]",
            f"{a}[torch.tensor([0, -1, 0])]",
            f"F.pad({a}, ({k.among(-1, 2)}, {k.among(-1, 2)}), mode={k.pick(('constant', 'reflect', 'replicate'))!r})",
            _pad(k),
            _slice(k),
        )
    )


def _several(k: Maker) -> str:
    a, b = k.value(), k.value()
    w = k.wide()
    d = k.dim(a)
    shape = k.of(a).shape
    same = k.value(lambda t: t.shape == shape)
    return k.pick(
        (
            f"torch.cat([{a}, {b}], {d})",
            f"torch.cat([{a}, {same}, {a}], {d})",
            f"torch.stack([{a}, {same}], {d})",
            f"torch.{k.pick(('hstack', 'vstack', 'dstack', 'column_stack'))}([{a}, {same}])",
            f"{a} @ {b}",
            f"{a} @ {w}.mT",
            f"torch.{k.pick(('matmul', 'outer', 'dot', 'mm', 'mv', 'bmm', 'inner', 'kron'))}({a}, {b})",
            f"torch.addmm({k.value()}, {a}, {b}, beta={k.pick((0, 1, 2, 0.5))}, alpha={k.pick((1, 3))})",
            f"torch.baddbmm({k.value()}, {a}, {b}, beta={k.pick((0, 2))})",
            f"torch.einsum({k.pick(('ij,ij->i', 'ij,kj->ik', 'ij->ji', 'ij,j->i', '...j,...j->...'))!r}"
            f", {a}{'' if k.chance(0.1) else f', {same}'})",
            f"torch.tensordot({a}, {b}, dims={k.among(0, 2)})",
            f"F.linear({a}, {w}{k.pick(('', ', v'))})",
            f"F.layer_norm({w}, ({(*k.of(w).shape, 1)[k.of(w).dim() - 1]},), eps={k.pick((1e-5, 0.1))})",
            f"F.rms_norm({w}, ({(*k.of(w).shape, 1)[k.of(w).dim() - 1]},){k.pick(('', ', eps=0.5', ', v'))})",
            f"F.normalize({w}, p={k.pick((1, 2, 3))}, dim={k.dim(w)})",
            f"F.group_norm({w}, {k.among(1, 2)})",
            f"F.cosine_similarity({a}, {same}, dim={d})",
            f"F.{k.pick(('mse_loss', 'l1_loss', 'smooth_l1_loss', 'huber_loss', 'kl_div'))}"
            f"({a}, {same}, reduction={k.pick(('mean', 'sum', 'none'))!r})",
            f"F.scaled_dot_product_attention({a}, {same}, {same}{k.pick(('', ', is_causal=True', ', scale=0.3'))})",
            f"F.one_hot(i.long(), {k.pick((6, 7))})",
            f"F.glu({w}, {k.dim(w)})",
            f"F.avg_pool1d({w}, {k.among(1, 2)}, stride={k.among(1, 2)})",
            f"F.conv1d({w}[None], {w}[:, None, :2], groups={k.of(w).shape[0] if k.of(w).dim() else 1})",
            f"torch.gather({w}, {k.dim(w)}, torch.zeros_like({w}, dtype=torch.int64))",
            f"torch.take_along_dim({w}, {w}.long() * 0, {k.dim(w)})",
            f"torch.meshgrid({a}, {b}, indexing={k.pick(('ij', 'xy'))!r})[{k.among(0, 1)}]",
            f"torch.cdist({w}, {w})",
        )
    )


def _created(k: Maker) -> str:
    a = k.value()
    d = _dtype(k, 0.5)
    n = k.of(a).shape[-1] if k.of(a).dim() else 3
    return k.pick(
        (
            f"torch.{k.pick(('zeros_like', 'ones_like'))}({a}{d})",
            f"torch.full_like({a}, {_scalar(k)}{d})",
            f"{a}.new_full(({n},), {_scalar(k)}{d})",
            f"torch.full(({n},), {_scalar(k)}{d})",
            f"torch.arange({n}{d}) * {a}",
            f"torch.arange({k.among(-2, 1)}, {k.pick((n, n + 0.5))}, {k.pick((1, 2, 0.5))}{d})",
            f"torch.eye({n}{d})",
            f"torch.linspace({k.among(-1, 1)}, 3, {n})",
            f"torch.tensor({k.pick(('2.7', '[1, -1]', '[[0.5], [2]]', 'True', '-3'))}{d}) + {a}",
            f"torch.ones({n}, {n}, dtype=torch.bool).tril()",
        )
    )


WIDE: Mapping[str, Callable[[Maker], str]] = MappingProxyType(
    {
        "arithmetic": _arithmetic,
        "unary": _unary,
        "reduction": _reduction,
        "view": _view,
        "several": _several,
        "created": _created,
    }
)


NAMED: Mapping[str, tuple[str | None, ...]] = MappingProxyType(
    dict.fromkeys("xybi", ("M", "N")) | {"c": ("M", None), "w": ("N", None), "v": ("N",), "s": ()}
)
"""What the extents of the inputs of a function of any sizes are called."""


def sized(seed: int, least: int = 1, most: int = 6) -> Function | None:
    """A function whose inputs have dimensions that may be of other sizes, and none of 1 that may be another."""
    k = Maker(seed, (torch.float64,), (3, 4, 5, 6, 7), special=False)
    for _ in range(k.among(least, most)):
        k.step(WIDE, (*WIDE, "view"))
    return k.done()


def at_sizes(f: Function, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Other inputs, of these sizes."""
    rng = np.random.default_rng([23, f.seed, *sizes.values()])
    made = {}
    for name, t in f.inputs.items():
        shape = [n if s is None else sizes[s] for s, n in zip(NAMED[name], t.shape, strict=True)]
        small = rng.integers(0, 6, shape) if not t.is_floating_point() else rng.integers(-12, 13, shape) / 4
        made[name] = torch.tensor(small % 2 if t.dtype is torch.bool else small).to(t.dtype)
    return made


def wide(seed: int, least: int = 3, most: int = 9) -> Function | None:
    """A function of whatever the reader takes."""
    k = Maker(
        seed,
        (torch.float32, torch.float64, torch.float16, torch.bfloat16),
        (1, 2, 3, 4, 5, 6, 7) if seed % 8 else (0, 1, 2, 3),
        rank=2 if seed % 3 else 3,
    )
    names = ("arithmetic", "arithmetic", "unary", "unary", "reduction", "reduction", "view", "view", "view", *WIDE)
    for _ in range(k.among(least, most)):
        k.step(WIDE, names)
    return k.done()
