"""Values of expressions with bounds on their rounding errors: is one really infinite, or undefined, or only in float64?

The interpreter (prism/program/evaluate.py) over the arithmetic of running_error.py: an overflow, or the root of what
rounding made negative, is *undetermined*, while inf - inf, 0*inf and 1/0 are what they are over the extended reals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from prism.egraph import running_error as floats
from prism.egraph.language import REDUCTIONS
from prism.egraph.running_error import Num
from prism.program.arrays import NUMPY
from prism.program.evaluate import Interpreter
from prism.program.nodes import Expr, ReduceKind
from prism.program.prefix import Recurrence

Array: TypeAlias = Any  # a Num, a numpy array of integers, or a number

_INVERSES = {"sub": ("add", "neg"), "div": ("mul", "recip")}


@dataclass(frozen=True, slots=True)
class TrackedArrays:
    """Arrays of numbers with error bounds; see prism.program.arrays.Arrays."""

    poles: float = np.inf  # what 1/0 is: infinite, as a processor has it, or undefined

    def arange(self, n: int) -> Array:
        """See Arrays."""
        return NUMPY.arange(n)

    def number(self, array: Array) -> Num:
        """See Arrays."""
        return _num(array)

    def transpose(self, array: Num, order: Sequence[int]) -> Num:
        """See Arrays."""
        return Num(np.transpose(array.v, order), np.transpose(array.e, order))

    def reshape(self, array: Array, shape: Sequence[int]) -> Array:
        """See Arrays."""
        if not isinstance(array, Num):
            return NUMPY.reshape(array, shape)
        return Num(np.reshape(array.v, tuple(shape)), np.reshape(array.e, tuple(shape)))

    def broadcast(self, array: Num, shape: Sequence[int]) -> Num:
        """See Arrays."""
        made = _num(array)
        return Num(np.broadcast_to(made.v, tuple(shape)), np.broadcast_to(made.e, tuple(shape)))

    def strided(
        self, array: Array, shape: Sequence[int], first: Sequence[int], steps: Sequence[Sequence[int]]
    ) -> Num | None:
        """See Arrays: inputs are what they are."""
        a = _num(array)
        v, e = (NUMPY.strided(x, shape, first, steps) for x in (a.v, a.e))
        return None if v is None else Num(v, e)

    def gather(self, array: Array, indices: Sequence[Array], valid: Array | None) -> Num:
        """See Arrays."""
        a = _num(array)
        return Num(NUMPY.gather(a.v, indices, valid), NUMPY.gather(a.e, indices, valid))

    def pointwise(self, op: str, args: Sequence[Array]) -> Num:
        """See Arrays."""
        nums = [_num(a) for a in args]
        if op in _INVERSES:
            outer, inner = _INVERSES[op]
            return self.pointwise(outer, [nums[0], self.pointwise(inner, [nums[1]])])
        made = floats.pointwise(op, nums)
        if op in ("recip", "pow") and self.poles != np.inf:
            pole = (nums[0].v == 0) & (nums[0].e == 0) & np.isinf(made.v)
            made = Num(np.where(pole, self.poles, made.v), made.e)
        return made

    def reduce(self, kind: ReduceKind, array: Num, dims: Sequence[int]) -> Num:
        """See Arrays."""
        a = array
        for d in sorted(dims, reverse=True):
            a = self._reduced(kind, a, d)
        return a

    def _reduced(self, kind: ReduceKind, a: Num, dim: int) -> Num:
        extent = a.v.shape[dim]
        v, e = a.v, a.e
        if kind is ReduceKind.PROD or extent == 0:
            whole = (
                floats.reduce(REDUCTIONS[kind], a, dim, extent) if extent else floats.exactly(np.full_like(v, np.nan))
            )
            return Num(np.take(whole.v, 0, dim), np.take(whole.e, 0, dim))
        if kind is ReduceKind.SUM:
            total = np.sum(v, axis=dim)
            size = np.sum(np.abs(v), axis=dim)
            exact = floats.short(v).all(axis=dim) & (size < 2.0**32)
            error = np.sum(e, axis=dim) + np.where(exact, 0.0, extent * floats.U * size)
            # Infinite where no overflow made it so: with an infinite term.
            genuine = ~np.isfinite(v).all(axis=dim)
            known = (e < np.inf).all(axis=dim)
            error = np.where(np.isfinite(total), error, np.where(genuine & known, 0.0, np.inf))
            return Num(total, np.where(known, error, np.inf))
        pick = np.max if kind is ReduceKind.MAX else np.min
        return Num(pick(v, axis=dim), np.max(e, axis=dim))

    def carried(self, how: Recurrence, dim: int, array: Num, factor: Num | None = None) -> Num:
        """See Arrays: one place after another."""
        op = how.kind.op
        places = range(array.v.shape[dim])
        made: list[Num] = []
        for n in reversed(places) if how.back else places:
            new, last = _place(array, dim, n), made[-1] if made else None
            if last is not None:
                grown = last
                if factor is not None:
                    grown = floats.pointwise(how.kind.times.op, [_place(factor, dim, n), last])
                new = floats.pointwise(op, [grown, new])
            made.append(new)
        if how.before:
            made = [floats.exactly(np.full_like(made[0].v, how.kind.identity)), *made[:-1]]
        made = made[::-1] if how.back else made
        return Num(np.stack([m.v for m in made], dim), np.stack([m.e for m in made], dim))

    def matmul(self, a: Num, b: Num) -> Num:
        """See Arrays."""
        product = floats.pointwise("mul", [_at(a, -1), _at(b, -3)])
        return self._reduced(ReduceKind.SUM, product, product.v.ndim - 2)

    def all_finite(self, array: Array) -> bool:
        """See Arrays."""
        return bool(np.isfinite(_num(array).v).all())

    def stack(self, arrays: Sequence[Num]) -> Num:
        """See Arrays."""
        return Num(np.stack([a.v for a in arrays]), np.stack([a.e for a in arrays]))


def _place(array: Num, dim: int, n: int) -> Num:
    return Num(np.take(array.v, n, dim), np.take(array.e, n, dim))


def _num(array: Array) -> Num:
    return array if isinstance(array, Num) else floats.exactly(array)


def _at(a: Num, place: int) -> Num:
    """The numbers with a dimension of extent 1 more."""
    return Num(np.expand_dims(a.v, place), np.expand_dims(a.e, place))


def tracked(
    expr: Expr, tensors: Mapping[str, np.ndarray], binding: Mapping[str, int], *, poles: float = np.inf
) -> float | None:
    """The value of an expression without free axes; None where rounding or overflow leaves open what it is.

    Only whether it is finite, infinite or undefined is certain; a finite value is rounded.
    """
    found = bounded(expr, tensors, binding, poles=poles)
    return None if found is None else found[0]


def bounded(
    expr: Expr, tensors: Mapping[str, np.ndarray], binding: Mapping[str, int], *, poles: float = np.inf
) -> tuple[float, float] | None:
    """The value of an expression without free axes, and by how much rounding may have moved it; see `tracked`."""
    with np.errstate(all="ignore"):
        machine = Interpreter(dict(tensors), binding, TrackedArrays(poles))
        found = _num(machine.over(machine.value(expr), ()))
    return (float(found.v), float(found.e)) if bool(found.known.all()) else None
