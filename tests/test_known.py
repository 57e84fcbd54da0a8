"""What is said of values holds in float32: of subnormal numbers, of what underflows, of what was rounded."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
import pytest

from prism.program.arrays import NUMPY
from prism.program.integers import REAL, Interval
from prism.program.known import Known, computed, constant, reduced, stored
from prism.program.nodes import DType, ReduceKind
from prism.program.ops import OPS, ROUNDED

X = stored(REAL)
EDGES = np.array(
    [0.0, 1e-45, -1e-45, 3e-39, 2e-38, -1e-30, 0.3, -1.0, 1.5, 127.5, -200.0, 16777216.0, 1e19, -3e38], np.float32
)
NUMBERS = (0.0, 1.0, -1.0, 0.01, 1 / 255, 127.49999999, 1e-40, 1e-60, 1e-6, 255.0, -128.0, 2.0**24 + 1, 0.5)
OPERATIONS = sorted(set(OPS) - {"pow", "log", "bitand", "isnan", "and", "or", "not"})


class Drawn:
    """Values of a random program, each with what is known of it and what float32 makes of it at the edges."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.values: list[tuple[Known, np.ndarray]] = [(X, EDGES), (X, self.rng.permutation(EDGES))]
        self.fine = np.ones(EDGES.shape, bool)  # where nothing overflowed
        for _ in range(12):
            self.step()

    def operand(self) -> tuple[Hashable, Known, np.ndarray]:
        if self.rng.random() < 0.35:
            number = float(self.rng.choice(NUMBERS))
            return number, constant(number), np.full(EDGES.shape, number, np.float32)
        n = int(self.rng.integers(len(self.values)))
        return n, *self.values[n]

    def step(self) -> None:
        op = str(self.rng.choice(OPERATIONS))
        names, known, arrays = zip(*(self.operand() for _ in range(OPS[op].arity)), strict=True)
        with np.errstate(all="ignore"):
            made = np.asarray(NUMPY.pointwise(op, arrays), np.float32)
        if op == "recip":  # of what is 0 it is a pole, of what is so small that it is none, an overflow
            self.fine &= ~(np.isinf(made) & (arrays[0] != 0))
        elif op in ROUNDED:
            self.fine &= ~(np.isinf(made) & np.all(np.isfinite(arrays), 0))
        self.values.append((computed(op, known, names), made))


@pytest.mark.parametrize("seed", range(8))
def test_what_is_known_holds_in_float32(seed: int) -> None:
    numbers = 0
    for n in range(150):
        drawn = Drawn(1000 * seed + n)
        for known, values in drawn.values:
            made = values[drawn.fine]
            held = made[~np.isnan(made)]
            if known.number:
                numbers += 1
                assert held.size == made.size
            if known.nonzero:
                assert np.all(held != 0)
            low, high = float(known.bounds.low), float(known.bounds.high)
            assert all(low <= v <= high for v in held.tolist())
            assert not known.bounds.whole or np.all(held == np.round(held))
    assert numbers > 1000


def share(of: Known, how: Callable[[Known], Known]) -> Known:
    """x over what is made of its row's largest."""
    return computed("mul", [X, computed("recip", [how(of)], ["d"])], ["x", "i"])


def test_a_divisor_is_not_zero_where_float32_has_none() -> None:
    """Over the reals 0.01*top is 0 where top is; in float32 wherever top is small enough."""
    top = reduced(ReduceKind.MAX, computed("abs", [X], ["x"]))
    small = computed("mul", [top, constant(0.01)], ["top", 0.01])

    def asked(of: Known, name: str) -> Known:
        return computed("eq", [of, constant(0.0)], [name, 0.0])

    def guarded(by: Known) -> Known:
        return computed("where", [by, constant(1.0), small], ["asked", 1.0, "small"])

    assert not share(top, lambda t: t).number
    assert not share(top, lambda t: guarded(asked(t, "top"))).number
    assert share(top, lambda _: guarded(asked(small, "small"))).number
    assert share(top, lambda t: computed("maximum", [t, constant(1e-6)], ["top", 1e-6])).number
    assert not share(top, lambda t: computed("maximum", [t, constant(1e-60)], ["top", 1e-60])).number
    tiny = constant(1e-30)
    assert not computed("mul", [tiny, tiny], ["a", "b"]).nonzero


def test_a_byte_is_none_where_rounding_leaves_its_range() -> None:
    inside = Known(Interval(-1.0, 1.0, whole=False), number=True)

    def level(by: float) -> DType | None:
        return computed("round", [computed("mul", [inside, constant(by)], ["x", by])], ["y"]).byte

    assert level(127.0) is DType.INT8
    assert level(127.49999999) is None  # 127.5 in float32, which is rounded to 128
    assert not constant(float("inf")).number
