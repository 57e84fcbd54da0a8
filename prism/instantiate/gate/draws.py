"""The inputs that kernels are checked on: ordinary ones, and those that expose what ordinary ones hide.

Positive inputs hide sign errors, flat softmax inputs hide a dropped rescale, large extents hide 1/n against 1/(n-1):
so each draw is a different way of being unlike the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from prism.program.extents import evaluate
from prism.program.integers import Interval, interval
from prism.program.lookup import place_along
from prism.program.nodes import DType, Expr, Program, Read, Tensor, walk

DISTINCT = 262_139
"""Numbers that a tensor has at most of a draw: drawing is half of a case of large weights. A prime, so that no stride
or tile of a kernel goes round with them."""
Draw = Callable[[np.random.Generator, tuple[int, ...], DType], np.ndarray]
Made = Callable[[np.ndarray], np.ndarray]
"""What is made of numbers that were drawn, element by element."""


def _drawn_as(dtype: DType) -> type[np.floating[Any]]:
    """What numbers are drawn as: in single precision in half of the time, which is most of a case of large weights."""
    return np.float64 if dtype is DType.FLOAT64 else np.float32


def _some_of(draw: Callable[..., Any], shape: tuple[int, ...], dtype: DType, *, made: Made = np.asarray) -> np.ndarray:
    """What is made of a distribution's numbers, which come again in a large tensor, in other places of each row."""
    most = DISTINCT - (bool(shape) and shape[-1] % DISTINCT == 0)
    return np.resize(made(draw(min(math.prod(shape), most), _drawn_as(dtype))), shape)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, *, made: Made = np.asarray) -> np.ndarray:
    return _some_of(rng.standard_normal, shape, dtype, made=made)


def _made(made: Made) -> Draw:
    """What draws what is made of normal numbers."""
    return partial(_normal, made=made)


def _outlier_channel(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    x = _normal(rng, shape, dtype)
    if x.ndim:
        x[..., int(rng.integers(shape[-1]))] *= 100.0
    return x


def _subnormals(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    # Half of float16's numbers below 6.1e-5 are, and of the other types' those below 1.2e-38.
    scale = 1e-6 if dtype is DType.FLOAT16 else 1e-40
    return _normal(rng, shape, dtype, made=lambda x: scale * x)


def _equal_rows(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    row = _normal(rng, shape[-1:], dtype)
    return np.broadcast_to(row, shape).copy()


def _some(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, odd: tuple[float, ...]) -> np.ndarray:
    """Ordinary numbers but for one element of each kind, in rows of their own where there are so many."""
    x = _normal(rng, shape, dtype)
    rows = x.reshape(-1, shape[-1]) if x.ndim else x.reshape(1, 1)
    for n, row in enumerate(rng.permutation(len(rows))[: len(odd)]):
        rows[row, int(rng.integers(rows.shape[1]))] = odd[n]
    return x


def _masked_row(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    x = _normal(rng, shape, dtype)
    rows = x.reshape(-1, shape[-1]) if x.ndim else x.reshape(1, 1)
    rows[int(rng.integers(len(rows)))] = -np.inf
    return x


DRAWS: Mapping[str, Draw] = MappingProxyType(
    {
        "normal": _normal,
        "log-normal": _made(np.exp),
        "positive": lambda rng, shape, dtype: _some_of(rng.random, shape, dtype, made=lambda x: 0.5 + x),
        "large": _made(lambda x: 1e3 * x),
        "small": _made(lambda x: 1e-3 * x),
        "large mean": _made(lambda x: 1e3 + x),
        "outlier channel": _outlier_channel,
        "subnormals": _subnormals,
        "equal rows": _equal_rows,
        "masked row": _masked_row,
        "zeros": _made(lambda x: np.copysign(0.0, x)),
        "infinities": lambda rng, shape, dtype: _some(rng, shape, dtype, (np.inf, -np.inf)),
        "not a number": lambda rng, shape, dtype: _some(rng, shape, dtype, (np.nan,)),
    }
)
"""By name, how an input is drawn: `normal` is the ordinary one, and after `positive` come the adversarial ones."""

ORDINARY = ("normal", "log-normal", "positive")
"""Draws that strike all inputs at once."""
PATTERN_ONLY = frozenset({"subnormals"})
"""Draws where only what is finite is compared: a GPU may flush subnormal results to zero."""


def struck_sets(program: Program, kind: str) -> tuple[tuple[str, ...], ...]:
    """Which inputs a draw strikes, one tuple a case; the others stay ordinary.

    A program's inputs rarely all misbehave at once, and two that do may hide each other. The first input is mostly what
    is normalised, so what is hard on means and squares strikes it alone, and all others alone. What is not finite
    strikes one input: an additive mask mostly comes last. Inputs that the program holds as weights, and those that are
    no floating-point numbers, keep out.
    """
    names = [t.name for t in program.arguments if t.dtype.is_float]
    if kind in ORDINARY or kind == "zeros" or len(names) <= 1:
        return (tuple(names),)
    first, rest = (names[0],), tuple(names[1:])
    match kind:
        case "large" | "large mean":
            return (first, rest)
        case "small" | "equal rows" | "not a number":
            return (rest[:1],)
        case "masked row":
            tables = [t.name for t in program.inputs if t.name in names and len(t.shape) > 1]
            return (((tables or names)[-1],),)
        case _:
            return (first,)


def mask(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A boolean array of both values, with one row (along the last dimension) all false and one all true."""
    drawn = rng.random(shape) < 0.5
    if drawn.ndim >= 2 and drawn.size:
        rows = drawn.reshape(-1, shape[-1])
        rows[0] = False
        if len(rows) > 1:
            rows[-1] = True
    return drawn


def draw_inputs(
    program: Program,
    kind: str,
    binding: Mapping[str, int],
    seed: int,
    struck: Sequence[str] | None = None,
    drawn: dict[tuple[object, ...], Any] | None = None,
) -> dict[str, Any]:
    """Torch tensors for the program's inputs, rounded to their data types.

    Inputs that the program holds as weights keep their values. `struck` are those that are drawn in that way; by
    default those of the kind's first case. What was `drawn` already is used again where it is the same.
    """
    import torch

    memory = {} if drawn is None else drawn
    hit = struck_sets(program, kind)[0] if struck is None else struck
    found: dict[str, Any] = {}
    most = _largest_places(program, binding)
    for n, t in enumerate(program.inputs):
        shape = tuple(evaluate(e, binding) for e in t.shape)
        way = kind if t.name in hit else "normal"
        key = (t.name, way, shape, seed)
        if key not in memory:
            # Each input from a generator of its own, so that it does not depend on how the others are drawn.
            rng = np.random.default_rng((seed, n))
            values = _values(program, t, way, rng, shape, most)
            # A copy where it may not be written, of which torch warns.
            made = torch.as_tensor(np.require(values, requirements=["C", "W"])).to(getattr(torch, t.dtype.value))
            memory[key] = as_stated(t, made.reshape(shape))
        found[t.name] = memory[key]
    return found


def as_stated(t: Tensor, drawn: Any) -> Any:
    """A torch tensor for an input, with numbers that are as stated of it in the place of those that are not."""
    import torch

    if t.stated is None or t.dtype is DType.BOOL:
        return drawn
    for _ in range(2):  # what is in the set may be none of the type's numbers, as the least above 0 is not
        values = drawn.to(torch.float64).numpy()
        if t.stated.holds(values).all():
            break
        drawn = torch.as_tensor(t.stated.nearest(values, whole=not t.dtype.is_float)).to(drawn.dtype)
    outside = torch.as_tensor(~t.stated.holds(drawn.to(torch.float64).numpy()))
    return torch.where(outside, torch.full_like(drawn, t.stated.member), drawn)


def _largest_places(program: Program, binding: Mapping[str, int]) -> dict[str, int]:
    """For inputs that say where other tensors are read, numbers up to which all places lie inside of them."""
    whole = [t.name for t in program.inputs if not t.dtype.is_float and t.dtype is not DType.BOOL]
    if not whole:
        return {}
    made = {d.name: d.expr for d in program.definitions}
    found: dict[str, int] = {}
    for d in program.definitions:
        for axis, place in filter(None, map(place_along, walk(d.expr))):
            below = _inputs_of(place, made)
            last = evaluate(axis.extent, binding) - 1
            most = last
            while most > 1 and _highest(place, made, most) > last:
                most //= 2
            for name in below.intersection(whole):
                found[name] = min(found.get(name, most), most)
    return found


def _inputs_of(e: Expr, made: Mapping[str, Expr]) -> set[str]:
    """The tensors that are no definitions and go into an expression."""
    found: set[str] = set()
    todo = [e]
    while todo:
        for x in walk(todo.pop()):
            if isinstance(x, Read) and x.tensor not in found:
                found.add(x.tensor)
                todo += [made[x.tensor]] if x.tensor in made else []
    return found - made.keys()


def _highest(e: Expr, made: Mapping[str, Expr], most: int) -> float:
    """A bound of the expression where all inputs are from 0 to `most`."""
    known: dict[str, Interval] = {}

    def of(name: str) -> Interval:
        if name not in known:
            known[name] = interval(made[name], of) if name in made else Interval(0.0, float(most), whole=True)
        return known[name]

    return interval(e, of).high


def _values(
    program: Program,
    t: Tensor,
    way: str,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    most: Mapping[str, int],
) -> np.ndarray:
    if t.name in program.weights:
        return np.asarray(program.weights[t.name])
    if t.dtype is DType.BOOL:
        return mask(rng, shape)
    if not t.dtype.is_float:
        # Positions and identifiers: so small that they are legal wherever they index something.
        return rng.integers(0, most.get(t.name, 1) + 1, shape)
    return DRAWS[way](rng, shape, t.dtype) if 0 not in shape else np.zeros(shape)
