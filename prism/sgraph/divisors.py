"""Where a product with a reciprocal is as good as a division, in float32.

`a * (1/b)` rounds once more than `a / b`, which no gate minds; but where b is subnormal its reciprocal is infinite, and
where it is huge the reciprocal is subnormal, so that digits are lost, or all of it. Then `a / b` is right and
`a * (1/b)` is not, be it ever so equal over the reals. What has a bound on both sides has no such values: the sum of
exponentials below their own maximum is at least 1, a norm over an epsilon at least that, and a square root of whatever
float32 holds is between 2**-75 and 2**64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prism.program.index import Index
from prism.program.nodes import Const, Expr, Map, Reduce, ReduceKind, Size, Tensor, free_axes, walk
from prism.program.transform import canonical, substitute
from prism.sgraph.value_bounds import Bounds, flat, negated

LEAST, MOST = 2.0**-126, 2.0**126
"""Between them the reciprocal of a float32 number is a normal one."""
LARGEST_ROOT = 2.0**64
"""The square root of float32's largest number."""
LONGEST = 2.0**63
"""What no extent exceeds."""


@dataclass(slots=True)
class Divisors:
    """Tells divisors whose reciprocal float32 holds.

    Attributes:
        tensors: those that are read, by name.
    """

    tensors: Mapping[str, Tensor]
    _bounds: Bounds = field(init=False)
    _known: dict[int, tuple[Expr, tuple[float, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._bounds = Bounds(self.tensors)

    def invertible(self, e: Expr) -> bool:
        """Whether a product with 1/e is as good as a division by e, whatever the value; 0 and infinity are."""
        if isinstance(e, Map) and e.op == "sqrt":
            return True
        low, high = self.range(e)
        return (low >= LEAST and high <= MOST) or (low >= -MOST and high <= -LEAST)

    def range(self, e: Expr) -> tuple[float, float]:
        """Bounds on the value where it is finite, as float32 computes it."""
        for x in walk(e, self._known):
            low, high = self._range(x)
            least, most = self._bounds.of(x)
            self._known[id(x)] = x, (max(low, least), min(high, most))
        return self._known[id(e)][1]

    def _range(self, e: Expr) -> tuple[float, float]:
        match e:
            case Size():
                return 1.0, LONGEST
            case Map("sqrt", (a,)):
                return math.sqrt(max(self.range(a)[0], 0.0)), LARGEST_ROOT
            case Map("add", _):
                return self._folded([self.range(t) for t in flat(e, "add")], lambda x, y: x + y)
            case Map("maximum", (a, b)):
                return self._folded([self.range(a), self.range(b)], max)
            case Map("minimum", (a, b)):
                return self._folded([self.range(a), self.range(b)], min)
            case Map("where", (_, a, b)):
                (x, y), (u, v) = self.range(a), self.range(b)
                return min(x, u), max(y, v)
            case Map("mul", (Const(c), a)) | Map("mul", (a, Const(c))) if c > 0:
                low, high = self.range(a)
                return c * low, c * high
            case Reduce(ReduceKind.SUM, axis, body):
                low, high = self.range(body)
                count = float(axis.extent) if isinstance(axis.extent, int) else LONGEST
                least = 1.0 if _reaches_one(e) else low if low >= 0 else -math.inf
                return least, high * count if high >= 0 else high
            case _:
                return -math.inf, math.inf

    @staticmethod
    def _folded(of: list[tuple[float, float]], op: Callable[[float, float], float]) -> tuple[float, float]:
        low, high = of[0]
        for x, y in of[1:]:
            low, high = op(low, x), op(high, y)
        return (low if low == low else -math.inf), (high if high == high else math.inf)


def _reaches_one(e: Reduce) -> bool:
    """Whether it is a sum of exp(a - m) where m is the maximum of a over the same axis: one term is exp(0)."""
    match e.body:
        case Map("exp", (Map("add", (a, other)),)):
            for value, minus in ((a, other), (other, a)):
                m = negated(minus)
                if isinstance(m, Reduce) and m.kind is ReduceKind.MAX and m.axis.extent == e.axis.extent:
                    along = substitute(m.body, {m.axis: Index.axis(e.axis)})
                    if e.axis not in free_axes(m) and canonical(along) == canonical(value):
                        return True
    return False
