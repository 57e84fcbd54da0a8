"""Which products with a reciprocal are lowered as divisions.

Programs say `a * (1/b)`, so that a rule is written once. What is computed is `a / b`

    wherever the product has the reciprocal's axes and is all that becomes of it: one operation in place of two;
    wherever float32 does not hold the reciprocal of all that b may be (`value_bounds`): then it is right where
    the product is not, at a division for each element. A number over b counts as the reciprocal of b over the number.

What is left is a reciprocal that many elements share and that float32 holds: of the sum of a softmax, of a norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from prism.errors import IllegalIRError
from prism.ir.kit import sources
from prism.program.index import Axis
from prism.program.nodes import Const, Expr, Map
from prism.sgraph.denote import kernel_values
from prism.sgraph.nodes import Accumulate, Contract, Kernel, Operand, Pointwise, SGraph, Stmt, value_axes
from prism.sgraph.value_bounds import Divisors


@dataclass(frozen=True, slots=True)
class Quotients:
    """The divisions of a kernel."""

    # Of what is multiplied in place of a division, the value whose reciprocal it is, and a number times it.
    divisor: Mapping[str, tuple[Operand, float]]

    def of(self, s: Stmt) -> tuple[Operand, Operand, float] | None:
        """What a product divides by what times which number; None where it is no such product."""
        match s:
            case Pointwise(_, "mul", (a, b)) | Contract(_, _, a, b):
                for dividend, inverse in ((a, b), (b, a)):
                    if isinstance(inverse, str) and inverse in self.divisor:
                        return dividend, *self.divisor[inverse]
        return None


def quotients(sgraph: SGraph) -> dict[str, Quotients]:
    """By kernel, its divisions."""
    recips = [s for k in sgraph.kernels for s in k.statements() if isinstance(s, Pointwise) and s.op == "recip"]
    if not recips:
        return {k.name: Quotients({}) for k in sgraph.kernels}
    divisors = Divisors({t.name: t for t in sgraph.inputs})
    try:
        values = kernel_values(sgraph)
    except IllegalIRError:
        values = {}  # nothing is known of what it computes, so nothing is taken for granted
    return {k.name: Quotients(_divisions(k, values.get(k.name, {}), divisors)) for k in sgraph.kernels}


def _divisions(kernel: Kernel, values: Mapping[str, Expr], divisors: Divisors) -> dict[str, tuple[Operand, float]]:
    axes = value_axes(kernel)
    users: dict[str, list[Stmt]] = {}
    changing: set[str] = set()
    for s in kernel.statements():
        if isinstance(s, Accumulate):
            changing.add(s.dst)
        for name in set(sources(s)):
            users.setdefault(name, []).append(s)
    inverses: dict[str, tuple[Operand, float]] = {}
    found: dict[str, tuple[Operand, float]] = {}
    later: list[tuple[str, str]] = []
    for s in kernel.statements():
        inverse = _inverse(s, inverses)
        if inverse is None:
            continue
        assert isinstance(s, Pointwise)
        inverses[s.dst] = b, scale = inverse
        mine = users.get(s.dst, [])
        if not any(isinstance(u, Contract) or (isinstance(u, Pointwise) and u.op == "mul") for u in mine):
            continue
        alone = len(mine) == 1 and isinstance(mine[0], Pointwise) and _elementwise(mine[0], s.dst, axes)
        if alone and isinstance(mine[0], Pointwise) and _inverse(mine[0], inverses) is not None:
            later.append((s.dst, mine[0].dst))  # a number over it is the reciprocal that counts
            continue
        known = values.get(b) if isinstance(b, str) else None
        held = known is not None and divisors.invertible(known if scale == 1 else Map("mul", (Const(scale), known)))
        # The running value of an accumulator is another one by the time of the product.
        running = b in changing and b not in values
        if not running and ((alone and scale == 1) or not held):
            found[s.dst] = b, scale
    for name, product in reversed(later):
        if product not in found and inverses[name][1] == 1:
            found[name] = inverses[name]
    return found


def _inverse(s: Stmt, inverses: Mapping[str, tuple[Operand, float]]) -> tuple[Operand, float] | None:
    """The b and the c of a value that is 1/(c*b): a reciprocal, or a number over something."""
    match s:
        case Pointwise(_, "recip", (b,)):
            return b, 1.0
        case Pointwise(_, "mul", (x, y)):
            for r, c in ((x, y), (y, x)):
                if isinstance(r, str) and not isinstance(c, str) and r in inverses and c != 0 and math.isfinite(c):
                    b, scale = inverses[r]
                    return b, scale / c
    return None


def _elementwise(s: Pointwise, inverse: str, axes: Mapping[str, tuple[Axis, ...]]) -> bool:
    return s.args.count(inverse) == 1 and set(axes[s.dst]) == set(axes[inverse])
