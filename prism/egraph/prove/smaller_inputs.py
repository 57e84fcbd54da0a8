"""Smaller inputs that still show a difference: few elements that are not 0, and those small integers if possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from prism.program.integers import of_type
from prism.program.nodes import DType

# Evaluations that are spent on one counterexample.
TRIES = 250
# Elements of one tensor that are written out.
SHOWN = 6

_VALUES = (1.0, -1.0, 2.0, -2.0, 0.5)


def shrink(
    inputs: Mapping[str, np.ndarray],
    differs: Callable[[Mapping[str, np.ndarray]], bool],
    tries: int = TRIES,
    dtypes: Mapping[str, DType] = MappingProxyType({}),
) -> dict[str, np.ndarray]:
    """Inputs at which `differs` still holds, made smaller as long as `tries` lasts.

    Whole tensors go first, then ever smaller runs of their elements (Zeller and Hildebrandt's delta debugging), then
    each element that is left is tried at a few plain numbers. `differs` holds at the inputs, float64 arrays; it is
    called `tries` times at most. `dtypes` are the inputs', which they stay of; float32 where it is not said.
    """
    now = {name: np.array(a, dtype=np.float64) for name, a in inputs.items()}
    left = tries

    def attempt(name: str, where: np.ndarray, value: float) -> bool:
        nonlocal left
        flat = now[name].reshape(-1)
        if left <= 0 or (flat[where] == value).all() or not _holds(dtypes.get(name, DType.FLOAT32), value):
            return False
        left -= 1
        changed = now[name].copy()
        changed.reshape(-1)[where] = value
        if not differs({**now, name: changed}):
            return False
        now[name] = changed
        return True

    for name in now:
        every = np.arange(now[name].size)
        attempt(name, every, 0.0) or attempt(name, every, 1.0)
    for name in now:
        rest = np.flatnonzero(now[name])
        length = (len(rest) + 1) // 2
        while length >= 1 and len(rest) and left > 0:
            for start in range(0, len(rest), length):
                attempt(name, rest[start : start + length], 0.0)
            rest = np.flatnonzero(now[name])
            length = length // 2 if length > 1 else 0
    for name in now:
        for at in np.flatnonzero(now[name])[: 4 * SHOWN]:
            value = now[name].reshape(-1)[at]
            if value not in _VALUES:
                plain = [*_VALUES, float(np.round(value)), float(np.round(value, 1))]
                any(attempt(name, np.array([at]), v) for v in plain if v != 0.0)
    return now


def _holds(dtype: DType, value: float) -> bool:
    """Whether a number is one of the type."""
    if dtype.is_float:
        return True
    held = of_type(dtype)
    return value.is_integer() and held.low <= value <= held.high


def _plain(a: np.ndarray) -> bool:
    """Whether the array is one number throughout."""
    return bool(a.size and (a == a.reshape(-1)[0]).all())


def written(inputs: Mapping[str, np.ndarray]) -> str:
    """The inputs as text: each tensor by its elements that are not 0, or by the one number that it holds throughout."""
    parts = []
    zero = [name for name, a in inputs.items() if not a.any()]
    for name, a in inputs.items():
        if name in zero:
            continue
        if _plain(a) and a.size > 1:
            parts.append(f"{name} = {a.reshape(-1)[0]:g} throughout")
            continue
        places = np.argwhere(a)
        some = [f"{name}[{', '.join(map(str, p))}] = {a[tuple(p)]:.6g}" for p in places[:SHOWN]]
        more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        parts.append(", ".join(some) + more)
    if len(zero) == len(inputs):
        return "all inputs are 0"
    others = ["all else 0"] if zero or any(a.size > np.count_nonzero(a) for a in inputs.values()) else []
    return ", ".join(parts + others)
