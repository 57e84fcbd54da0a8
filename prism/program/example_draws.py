"""The inputs that a program is compared on, as it is read, with the function or model that it was read from.

Each draw is another way of being unlike the ordinary: ties and halves tell roundings and orders apart, small numbers
show an eps that others drown, extremes show how a narrow type wraps. Every draw mixes what it can: few are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from prism.program.arrays import numpy_type
from prism.program.integers import of_type
from prism.program.nodes import DType

# A prime: large tensors repeat a block of that many numbers, which then falls differently on every row.
_BLOCK = 65537

_TIES = np.array([-2.5, -2.0, -1.5, -1.0, -0.5, -0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.5, 2.0, 2.5])


def _some(rng: np.random.Generator, many: int, odd: tuple[float, ...]) -> np.ndarray:
    x = rng.standard_normal(many)
    chosen = rng.random(many) < 0.1
    x[chosen] = rng.choice(np.array(odd), int(chosen.sum()))
    return x


def _mixed(rng: np.random.Generator, many: int) -> np.ndarray:
    kinds = np.stack([rng.standard_normal(many), rng.choice(_TIES, many), 1e-2 * rng.standard_normal(many)])
    return kinds[rng.integers(3, size=many), np.arange(many)]


_FLOATS: Mapping[str, Callable[[np.random.Generator, int], np.ndarray]] = MappingProxyType(
    {
        "mixed": _mixed,
        "ties": lambda rng, many: rng.choice(_TIES, many),
        "small": lambda rng, many: 1e-3 * rng.standard_normal(many),
        "large": lambda rng, many: 50.0 * rng.standard_normal(many),
        "zeros": lambda rng, many: np.zeros(many),
        "not finite": lambda rng, many: _some(rng, many, (np.inf, -np.inf, np.nan)),
    }
)
DRAWS: tuple[str, ...] = tuple(_FLOATS)
"""The draws by name, the most telling first."""


def draw(
    name: str,
    shape: tuple[int, ...],
    dtype: DType,
    seed: tuple[int, ...],
    within: tuple[int, int] | None = None,
    among: Sequence[float] = (),
) -> np.ndarray:
    """One input.

    Args:
        name: one of DRAWS.
        shape: its shape.
        dtype: its type; floats come as float64, many as float32.
        seed: of the generator: the same seed, name and shape give the same numbers.
        within: the numbers that an integer may be, both included; all of its type, in turns, by default.
        among: numbers that some floats of ties and halves are, such as what a program compares with.
    """
    rng = np.random.default_rng([DRAWS.index(name), *seed])
    size = int(np.prod(shape, dtype=np.int64))
    many = min(size, _BLOCK)
    x = _FLOATS[name](rng, many) if dtype.is_float else _integers(name, rng, many, dtype, within)
    if dtype.is_float and among and name in ("mixed", "ties"):
        chosen = rng.random(many) < 0.25
        x[chosen] = rng.choice(np.array(among), int(chosen.sum()))
    if many == size:
        return x.reshape(shape)
    if dtype.is_float:
        x = x.astype(np.float32)  # half of what a large one takes
    made = np.empty(size, dtype=x.dtype)
    for start in range(0, size, many):
        made[start : start + many] = x[: size - start]
    return made.reshape(shape)


def _integers(
    name: str, rng: np.random.Generator, many: int, dtype: DType, within: tuple[int, int] | None
) -> np.ndarray:
    held = of_type(dtype)
    low, high = int(held.low), int(held.high)
    if dtype is DType.BOOL:
        share = {"zeros": 0.0, "small": 0.1, "large": 0.9}.get(name, 0.5)
        return rng.random(many) < share
    if within is not None:
        low, high = max(low, within[0]), min(high, within[1])
    elif name in ("mixed", "ties", "small"):
        low, high = max(low, -4), min(high, 4)
    kind = numpy_type(dtype)
    match name:
        case "zeros":
            return np.full(many, min(max(0, low), high), dtype=kind)
        case "large":  # the same in all inputs, so that sums and products of them pass the bounds
            return np.resize(np.array([high, low, high - 1, low + 1, 1, -1, 0]).clip(low, high), many).astype(kind)
        case _:
            return rng.integers(low, high, size=many, endpoint=True).astype(kind)
