"""Exact arithmetic modulo the Mersenne prime 2^61 - 1, for rules that are polynomial or rational.

Two different rational functions of degree d meet at a random point with probability at most d / 2^61 (Schwartz 1980,
Zippel 1979), and nothing is rounded: what agrees here is no accident of cancellation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

PRIME = 2**61 - 1

Array: TypeAlias = Any  # of Python integers
Mask: TypeAlias = Any


class NotRational(Exception):
    """The operation is no polynomial or rational function."""


@dataclass(frozen=True, slots=True)
class Residue:
    """Residues, and where they are defined: 1/0 is not. Same shape."""

    v: Array
    ok: Mask


def residues(values: Array) -> Residue:
    """Integers as residues."""
    v = np.asarray(values, dtype=object) % PRIME
    return Residue(v, np.ones(v.shape, dtype=bool))


def constant(value: float) -> Residue:
    """A number as it is in binary, in five dimensions. Raises NotRational: it is infinite or NaN."""
    if not np.isfinite(value):
        raise NotRational
    fraction = Fraction(value)
    found = fraction.numerator * pow(fraction.denominator, -1, PRIME) % PRIME
    return residues(np.full((1, 1, 1, 1, 1), found, dtype=object))


def pointwise(op: str, args: Sequence[Residue]) -> Residue:
    """One operation of `prism.program.ops.OPS`. Raises NotRational: it is not a field's."""
    a = args[0]
    b = args[1] if len(args) > 1 else a
    match op:
        case "add":
            return Residue((a.v + b.v) % PRIME, a.ok & b.ok)
        case "mul":
            return Residue((a.v * b.v) % PRIME, a.ok & b.ok)
        case "neg":
            return Residue(-a.v % PRIME, a.ok)
        case "recip":
            ok = a.ok & (a.v != 0)
            return Residue(_inverse(np.where(ok, a.v, 1)), ok)
        case "pow":
            return _power(a, b)
    raise NotRational


_inverse = np.frompyfunc(lambda x: pow(int(x), -1, PRIME), 1, 1)


def _power(a: Residue, b: Residue) -> Residue:
    """A small integer power."""
    if b.v.size != 1:
        raise NotRational
    n = int(b.v.reshape(())[()])
    n = n - PRIME if n > PRIME // 2 else n
    if abs(n) > 64:
        raise NotRational
    result = residues(np.ones((1, 1, 1, 1, 1), dtype=object))
    for _ in range(abs(n)):
        result = pointwise("mul", [result, a])
    return pointwise("recip", [result]) if n < 0 else result


def reduce(head: str, a: Residue, dimension: int, extent: int) -> Residue:
    """`Sum` or `Prod` along a dimension, which then has extent 1. Raises NotRational: the reduction is another one."""
    op = {"Sum": "add", "Prod": "mul"}.get(head)
    if op is None:
        raise NotRational
    shape = list(a.v.shape)
    shape[dimension] = extent
    v, ok = np.broadcast_to(a.v, shape), np.broadcast_to(a.ok, shape)
    total = Residue(np.take(v, [0], dimension), np.take(ok, [0], dimension))
    for n in range(1, extent):
        total = pointwise(op, [total, Residue(np.take(v, [n], dimension), np.take(ok, [n], dimension))])
    return total
