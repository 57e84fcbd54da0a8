"""Extents: how long an axis is. A Python int, or a sympy expression in positive integer symbols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import sympy

Extent: TypeAlias = "int | sympy.Expr"


def symbol(name: str) -> sympy.Symbol:
    """The positive integer symbol of that name; equal names give equal symbols."""
    return sympy.Symbol(name, integer=True, positive=True)


def normal(extent: Extent) -> Extent:
    """The extent as a Python int where it is a number, else as a sympy expression."""
    if isinstance(extent, int):
        return extent
    if extent.is_Integer:
        return int(extent)
    return extent


def is_static(extent: Extent) -> bool:
    """Whether the extent is a known number."""
    return isinstance(extent, int) or bool(extent.is_Integer)


def evaluate(extent: Extent, binding: Mapping[str, int]) -> int:
    """The extent under `binding` (symbol name to value).

    Raises:
        KeyError: a symbol of the extent is not bound.
    """
    if isinstance(extent, int):
        return extent
    missing = [s.name for s in extent.free_symbols if s.name not in binding]
    if missing:
        raise KeyError(missing[0])
    return int(extent.xreplace({s: sympy.Integer(binding[s.name]) for s in extent.free_symbols}))


def add(a: Extent, b: Extent) -> Extent:
    """a + b."""
    return normal(a + b)


def mul(a: Extent, b: Extent) -> Extent:
    """a * b, expanded, so that equal polynomials compare equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return normal(sympy.expand(a * b))


def cdiv(a: Extent, b: Extent) -> Extent:
    """ceil(a / b)."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return normal(sympy.ceiling(sympy.sympify(a) / b))


def at_most(a: Extent, b: Extent) -> bool:
    """Whether a <= b for every value of the symbols; False when that is not known."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    difference = sympy.expand(b - a)
    if difference.is_nonnegative:
        return True
    # Every symbol is at least 1: substitute s -> 1 + s' with s' >= 0 and look at the coefficients.
    shifted = sympy.expand(
        difference.xreplace(
            {s: 1 + sympy.Symbol(f"{s}'", integer=True, nonnegative=True) for s in difference.free_symbols}
        )
    )
    return bool(shifted.is_nonnegative)


def text(extent: Extent) -> str:
    """A short name of the extent that is also a legal identifier fragment."""
    raw = str(extent)
    return "".join(c if c.isalnum() else "_" for c in raw)
