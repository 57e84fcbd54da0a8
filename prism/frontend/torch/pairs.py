"""Complex numbers as pairs of real ones: a program has none, and what is made of real tensors by way of them is real.

A graph is run with a `Pair` for every tensor of complex numbers, so that a trace of it has real operators alone. What
only moves elements, or adds them up, does so to both parts; products, exponentials and spectra have rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from prism.errors import UnsupportedError

Number: TypeAlias = "torch.Tensor | float"


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of complex numbers: its real and its imaginary parts, of one shape."""

    real: torch.Tensor
    imag: torch.Tensor


def has_complex(node: torch.fx.Node) -> bool:
    """Whether a node makes, or takes, complex numbers."""
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    return any(isinstance(v, torch.Tensor) and v.is_complex() for v in pytree.tree_leaves(values))


def in_pairs(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A captured graph with real operators alone, but for views of complex inputs and results as pairs.

    Raises:
        UnsupportedError: there is no rule for an operator of complex numbers.
    """
    examples = [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
    with detect_fake_mode(examples) or nullcontext():  # what rules make is as what they are given
        return make_fx(InPairs(graph).run)(*examples)


def stored_in_pairs(exported: torch.export.ExportedProgram) -> None:
    """Let what is stored of complex numbers be stored as pairs of real ones, which are viewed as complex."""
    nodes = {n.name: n for n in exported.graph.nodes}
    for spec in exported.graph_signature.input_specs:
        source = exported.state_dict if spec.target in exported.state_dict else exported.constants
        held = source.get(spec.target) if spec.target is not None else None
        if not isinstance(held, torch.Tensor) or not held.is_complex():
            continue
        node = nodes[spec.arg.name]
        users, value = list(node.users), node.meta["val"]
        source[spec.target] = torch.view_as_real(held.detach().resolve_conj()).contiguous()
        node.meta["val"] = torch.view_as_real(value)
        with exported.graph.inserting_after(node):
            viewed = exported.graph.call_function(torch.ops.aten.view_as_complex.default, (node,))
        viewed.meta["val"] = value
        for user in users:
            user.replace_input_with(node, viewed)


class InPairs(torch.fx.Interpreter):
    """Runs a graph with pairs of real tensors in place of complex ones.

    Raises:
        UnsupportedError: there is no rule for an operator of complex numbers.
    """

    def run_node(self, n: torch.fx.Node) -> Any:
        """What a node makes; complex inputs of the graph are taken apart, and complex results put together."""
        made = super().run_node(n)
        if n.op == "output":
            return pytree.tree_map_only(Pair, lambda p: torch.view_as_complex(_stacked(p)), made)
        return pytree.tree_map_only(torch.Tensor, _apart, made)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """By the operator's rule, by both parts, or as it is where nothing is complex."""
        name = str(target._schema.name).removeprefix("aten::") if isinstance(target, torch._ops.OpOverload) else ""
        if name == "_assert_tensor_metadata":  # of what was captured, and holds
            return None
        if not name:  # one of several results
            return super().call_function(target, args, kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        typed = any(isinstance(x, torch.dtype) and x.is_complex for x in leaves)
        numbers = typed or any(isinstance(x, Pair | complex) for x in leaves)
        if name in RULES and (numbers or name in MAKE):
            return RULES[name](*args, **kwargs)
        if not numbers:
            return super().call_function(target, args, kwargs)
        mixed = any(isinstance(x, complex | torch.Tensor) for x in leaves) and name not in LOOKS_UP
        if typed or mixed or name not in BY_PARTS:
            raise UnsupportedError(f"{target} of complex numbers has no translation")
        real, imag = (
            super(InPairs, self).call_function(target, *pytree.tree_map_only(Pair, part, (args, kwargs)))
            for part in (lambda p: p.real, lambda p: p.imag)
        )
        return tuple(map(Pair, real, imag)) if isinstance(real, list | tuple) else Pair(real, imag)


def _apart(x: torch.Tensor) -> torch.Tensor | Pair:
    return _as_pair(torch.view_as_real(x)) if x.is_complex() else x


def _as_pair(x: torch.Tensor) -> Pair:
    return Pair(x.select(-1, 0), x.select(-1, 1))


def _stacked(p: Pair) -> torch.Tensor:
    return torch.stack([p.real, p.imag], -1)


def _parts(x: Any) -> tuple[Number, Number | None]:
    """Both parts of a tensor or number; None for the imaginary ones of what is real."""
    return (x.real, x.imag) if isinstance(x, Pair | complex) else (x, None)


def _pair(real: Number, imag: Number) -> Pair:
    """A pair of parts that broadcast; at least one is a tensor."""
    if not isinstance(real, torch.Tensor) and isinstance(imag, torch.Tensor):
        real = torch.full_like(imag, real)
    if not isinstance(imag, torch.Tensor) and isinstance(real, torch.Tensor):
        imag = torch.full_like(real, imag)
    assert isinstance(real, torch.Tensor)
    assert isinstance(imag, torch.Tensor)
    dtype = torch.promote_types(real.dtype, imag.dtype)
    one, other = torch.broadcast_tensors(real, imag)  # type: ignore[no-untyped-call]
    return Pair(one.to(dtype), other.to(dtype))


def _multiplied(a: Any, b: Any, times: Callable[[Any, Any], Any] = lambda x, y: x * y) -> Pair:
    """The product of two, of which one is complex."""
    (ar, ai), (br, bi) = _parts(a), _parts(b)
    if bi is None:
        return _pair(times(ar, br), times(ai, br))
    if ai is None:
        return _pair(times(ar, br), times(ar, bi))
    return _pair(times(ar, br) - times(ai, bi), times(ar, bi) + times(ai, br))


def _added(a: Any, b: Any, *, alpha: float = 1, sign: int = 1) -> Pair:
    (ar, ai), (br, bi) = _parts(a), _parts(b)
    scale = sign * alpha
    return _pair(ar + scale * br, (0.0 if ai is None else ai) + scale * (0.0 if bi is None else bi))


def _divided(a: Any, b: Any) -> Pair:
    """The quotient of two, of which one is complex; by Smith's formula, which is torch's: less overflows in it."""
    (ar, ai), (br, bi) = _parts(a), _parts(b)
    if bi is None:
        return Pair(a.real / br, a.imag / br)
    if isinstance(b, complex):
        return _multiplied(a, 1 / b)
    ai = 0.0 if ai is None else ai
    turned = b.imag.abs() > b.real.abs()
    large, small = torch.where(turned, b.imag, b.real), torch.where(turned, b.real, b.imag)
    none = (large == 0) & (small == 0)  # by which torch divides part by part
    ratio = small / large
    below = large + small * ratio
    return Pair(
        torch.where(none, ar / large.abs(), torch.where(turned, ar * ratio + ai, ar + ai * ratio) / below),
        torch.where(none, ai / large.abs(), torch.where(turned, ai * ratio - ar, ai - ar * ratio) / below),
    )


def _sign(z: Pair) -> Pair:
    """On the unit circle, and 0 where it is 0."""
    size = torch.hypot(z.real, z.imag)
    size = torch.where(size == 0, 1.0, size)
    return Pair(z.real / size, z.imag / size)


def _exponential(z: Pair) -> Pair:
    size = torch.exp(z.real)
    return Pair(size * torch.cos(z.imag), size * torch.sin(z.imag))


def _chosen(condition: torch.Tensor, a: Any, b: Any) -> Pair:
    (ar, ai), (br, bi) = _parts(a), _parts(b)
    return Pair(
        torch.where(condition, ar, br),
        torch.where(condition, 0.0 if ai is None else ai, 0.0 if bi is None else bi),
    )


def _padded(z: Pair, pad: Sequence[int], value: Any = 0) -> Pair:
    real, imag = (value.real, value.imag) if isinstance(value, complex) else (value, 0)
    pads = partial(torch.constant_pad_nd, pad=pad)
    return Pair(pads(z.real, value=real), pads(z.imag, value=imag))


def _cast(x: Any, *args: Any, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """A tensor in another type, of which one of both is complex."""
    dtype = dtype or next((a for a in args if isinstance(a, torch.dtype)), None)
    if isinstance(x, Pair):
        if dtype is not None and not dtype.is_complex:
            raise UnsupportedError("a complex number as a real one has no translation")
        to = x.real.dtype if dtype is None else dtype.to_real()
        return Pair(x.real.to(to), x.imag.to(to))
    assert dtype is not None
    real = x.to(dtype.to_real())
    return Pair(real, torch.zeros_like(real))


# Spectra, as products with the numbers that their definition has

_SCALES: Mapping[int, Callable[[int], float]] = {0: lambda n: 1.0, 1: lambda n: 1 / math.sqrt(n), 2: lambda n: 1 / n}
"""What a transform over so many elements is multiplied by, by torch's number of its normalisation."""


def _wave(rows: int, columns: int, period: int, like: torch.Tensor, sign: int) -> Pair:
    """exp(sign 2 pi i r c / period), by row and column."""
    r, c = (torch.arange(n, device=like.device) for n in (rows, columns))
    turns = torch.remainder(r[:, None] * c, period).to(like.dtype) * (2 * math.pi / period)
    return Pair(torch.cos(turns), sign * torch.sin(turns))


def _over(x: Any, dim: int, wave: Pair) -> Pair:
    """Sums over a dimension, each with the numbers of a column."""

    def times(part: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return torch.matmul(part.transpose(dim, -1), numbers).transpose(dim, -1)

    return _multiplied(x, wave, times)


def _size(x: Any, dim: int) -> int:
    size = (x.real if isinstance(x, Pair) else x).shape[dim]
    if not isinstance(size, int):
        raise UnsupportedError("a transform over a dimension of free length has no translation")
    return size


def _transformed(x: Any, dims: Sequence[int], normalization: int, sign: int, halved: int | None = None) -> Pair:
    """A Fourier transform; of the dimension `halved` the first half of the results is made."""
    scale = 1.0
    for dim in reversed(dims):
        n = _size(x, dim)
        x = _over(x, dim, _wave(n, n // 2 + 1 if dim == halved else n, n, x.real if isinstance(x, Pair) else x, sign))
        scale *= _SCALES[normalization](n)
    return Pair(x.real * scale, x.imag * scale)


def _of_real(x: torch.Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Pair:
    return _transformed(x, dim, normalization, -1, dim[-1] if onesided else None)


def _of_complex(x: Pair, dim: Sequence[int], normalization: int, forward: bool) -> Pair:
    return _transformed(x, dim, normalization, -1 if forward else 1)


def _to_real(x: Pair, dim: Sequence[int], normalization: int, last_dim_size: int) -> torch.Tensor:
    """The inverse of a transform of real numbers, of which the first half is given."""
    *others, last = dim
    if others:
        x = _transformed(x, others, normalization, 1)
    n, given = last_dim_size, min(_size(x, last), last_dim_size // 2 + 1)
    wave = _wave(given, n, n, x.real, 1)
    # What is not given is the conjugate of what is, so all but the first, and that in the middle, count twice.
    place = torch.arange(given, device=x.real.device)[:, None]
    alone = (place == 0) | (2 * place == n)
    weight = torch.where(alone, 1.0, 2.0).to(x.real.dtype) * _SCALES[normalization](n)
    real, imag = x.real.narrow(last, 0, given), x.imag.narrow(last, 0, given)

    def times(part: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return torch.matmul(part.transpose(last, -1), numbers * weight).transpose(last, -1)

    return times(real, wave.real) - times(imag, wave.imag)


MAKE = frozenset({"view_as_complex", "polar", "complex", "_fft_r2c"})
"""Operators whose results are complex where their operands are real."""

RULES: Mapping[str, Callable[..., Any]] = {
    "view_as_complex": _as_pair,
    "view_as_real": _stacked,
    "polar": lambda size, angle: _pair(size * torch.cos(angle), size * torch.sin(angle)),
    "complex": _pair,
    "real": lambda z: z.real,
    "imag": lambda z: z.imag,
    **dict.fromkeys(("conj", "_conj", "conj_physical", "_conj_physical"), lambda z: Pair(z.real, -z.imag)),
    **dict.fromkeys(("resolve_conj", "resolve_neg"), lambda z: z),
    "abs": lambda z: torch.hypot(z.real, z.imag),
    "angle": lambda z: torch.atan2(z.imag, z.real),
    "mul": _multiplied,
    "add": _added,
    "sub": partial(_added, sign=-1),
    "div": _divided,
    "reciprocal": partial(_divided, 1.0),
    "sgn": _sign,
    "log": lambda z: Pair(torch.hypot(z.real, z.imag).log(), torch.atan2(z.imag, z.real)),
    "exp": _exponential,
    "where": _chosen,
    **{name: partial(_multiplied, times=getattr(torch, name)) for name in ("matmul", "mm", "bmm")},
    **dict.fromkeys(("to", "_to_copy"), _cast),
    "constant_pad_nd": _padded,
    "_fft_r2c": _of_real,
    "_fft_c2c": _of_complex,
    "_fft_c2r": _to_real,
}
"""By operator, what it does to pairs."""

LOOKS_UP = frozenset({"index", "index_select", "gather"})
"""Operators that move elements to places, which real tensors say."""

BY_PARTS = LOOKS_UP | {
    *("view", "reshape", "_unsafe_view", "flatten", "unflatten", "permute", "transpose", "t", "movedim", "unfold"),
    *("contiguous", "clone", "alias", "detach", "lift_fresh_copy", "unsqueeze", "squeeze", "expand", "expand_as"),
    *("repeat", "slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind", "cat", "stack", "flip"),
    *("roll", "neg", "sum", "mean", "cumsum", "zeros_like"),
    *("new_zeros", "copy", "slice_scatter", "select_scatter"),
}
"""Operators that do to both parts what they do to real numbers."""
