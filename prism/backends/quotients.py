"""Which products with a reciprocal are lowered as divisions.

Programs say `a * (1/b)`, so that a rule is written once. What is computed is `a / b`

    wherever the product has the reciprocal's axes and is all that becomes of it: one operation in place of two;
    wherever float32 does not hold the reciprocal of all that b may be (prism.sgraph.divisors): then it is right where
    the product is not, at a division for each element.

What is left is a reciprocal that many elements share and that float32 holds: of the sum of a softmax, of a norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prism.errors import IllegalIRError
from prism.program.index import Axis
from prism.program.nodes import Expr
from prism.sgraph.denote import kernel_values
from prism.sgraph.divisors import Divisors
from prism.sgraph.nodes import Accumulate, Contract, Kernel, Operand, Pointwise, SGraph, Stmt, value_axes


@dataclass(frozen=True, slots=True)
class Quotients:
    """The divisions of a kernel.

    Attributes:
        divisor: of what is multiplied in place of a division, the value whose reciprocal it is.
    """

    divisor: Mapping[str, Operand]

    def of(self, s: Stmt) -> tuple[Operand, Operand] | None:
        """What a product divides by what; None where it is no such product."""
        match s:
            case Pointwise(_, "mul", (a, b)) | Contract(_, _, a, b):
                for dividend, inverse in ((a, b), (b, a)):
                    if isinstance(inverse, str) and inverse in self.divisor:
                        return dividend, self.divisor[inverse]
            case _:
                pass
        return None


def quotients(sgraph: SGraph) -> dict[str, Quotients]:
    """By kernel, its divisions."""
    recips = [s for k in sgraph.kernels for s in k.statements() if isinstance(s, Pointwise) and s.op == "recip"]
    if not recips:
        return {k.name: Quotients({}) for k in sgraph.kernels}
    divisors = Divisors({t.name: t.dtype for t in sgraph.inputs})
    try:
        values = kernel_values(sgraph)
    except IllegalIRError:
        values = {}  # nothing is known of what it computes, so nothing is taken for granted
    return {k.name: Quotients(_divisions(k, values.get(k.name, {}), divisors)) for k in sgraph.kernels}


def _divisions(kernel: Kernel, values: Mapping[str, Expr], divisors: Divisors) -> dict[str, Operand]:
    axes = value_axes(kernel)
    users: dict[str, list[Stmt]] = {}
    changing: set[str] = set()
    for s in kernel.statements():
        if isinstance(s, Accumulate):
            changing.add(s.dst)
        for name in {a for a in _operands(s) if isinstance(a, str)}:
            users.setdefault(name, []).append(s)
    found: dict[str, Operand] = {}
    for s in kernel.statements():
        if not (isinstance(s, Pointwise) and s.op == "recip"):
            continue
        (b,) = s.args
        mine = users.get(s.dst, [])
        alone = len(mine) == 1 and isinstance(mine[0], Pointwise) and _elementwise(mine[0], s.dst, axes)
        known = values.get(b) if isinstance(b, str) else None
        held = known is not None and divisors.invertible(known)
        # The running value of an accumulator is another one by the time of the product.
        running = b in changing and b not in values
        if not running and (alone or not held):
            found[s.dst] = b
    return found


def _elementwise(s: Pointwise, inverse: str, axes: Mapping[str, tuple[Axis, ...]]) -> bool:
    return s.args.count(inverse) == 1 and set(axes[s.dst]) == set(axes[inverse])


def _operands(s: Stmt) -> tuple[Operand, ...]:
    match s:
        case Pointwise(_, _, args):
            return args
        case Contract(_, _, lhs, rhs):
            return lhs, rhs
        case _:
            # Whatever else reads it is no product.
            return tuple(n for n in (getattr(s, "src", None), getattr(s, "shift", None)) if n is not None)
