"""What symbolic sizes have to be for a model to mean what was read: their ranges are narrowed, or it is refused."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

import sympy

from prism.program.extents import Extent, add, at_most, is_static, normal
from prism.program.nodes import SymbolRange


def not_negative(difference: Extent, ranges: MutableMapping[str, SymbolRange]) -> bool:
    """See to it that a number is not negative: it never is, or sizes where it would be are none of the program's.

    The ranges of symbols are narrowed.

    Returns:
        Whether that could be said: it is a number, or grows with the one symbol in it.
    """
    if at_most(0, difference):
        return True
    inside = _within_rounding(difference)
    if inside is not None:
        return not_negative(inside, ranges)
    if is_static(difference) or len(difference.free_symbols) != 1:  # type: ignore[union-attr]
        return False
    (s,) = difference.free_symbols  # type: ignore[union-attr]
    difference = sympy.fraction(sympy.together(difference))[0]  # what it is divided by is a positive number
    match sympy.Poly(difference, s).all_coeffs() if difference.is_polynomial(s) else []:
        case [sympy.Integer() as factor, sympy.Integer() as rest] if factor > 0:
            least = -(int(rest) // int(factor))
        case _:
            return False
    known = ranges[s.name]
    if least > known.high:
        return False
    ranges[s.name] = replace(known, low=max(known.low, least), hint=max(known.hint, least))
    return True


def _within_rounding(size: Extent) -> Extent | None:
    """For k*floor(x) + c what is not negative for the same values: x less the least that floor(x) may be."""
    rounded = sympy.sympify(size).atoms(sympy.floor, sympy.ceiling)
    outermost = [r for r in rounded if not any(other.args[0].has(r) for other in rounded)]
    if len(outermost) != 1:
        return None
    (whole,) = outermost
    times, (inner,) = size.coeff(whole), whole.args  # type: ignore[union-attr]
    rest = sympy.expand(size - times * whole)
    if not (times.is_Rational and times > 0 and rest.is_Rational):
        return None
    if isinstance(whole, sympy.ceiling):  # which is floor(x + 1 - 1/d) for whole numbers over d
        inner = inner + 1 - 1 / sympy.fraction(sympy.together(inner))[1]
    return normal(sympy.expand(inner - sympy.ceiling(-rest / times)))


def equated(one: Extent, other: Extent) -> tuple[sympy.Symbol, Extent] | None:
    """What a symbol has to be for two sizes to be equal.

    They are not the same for all values of the symbols.

    Returns:
        The symbol, and what it is: a size, too. None where no symbol stands alone on a side once common factors and
        terms are left out.

    Raises:
        ValueError: they are equal for no sizes at all.
    """
    if at_most(add(one, 1), other) or at_most(add(other, 1), one):
        raise ValueError(f"{one} and {other} are never equal")
    top, bottom = sympy.fraction(sympy.cancel(sympy.sympify(one) / other))
    difference = sympy.expand(top - bottom)
    # Of two symbols the later name is the one that goes, so that which side is which does not matter.
    for s in sorted(difference.free_symbols, key=str, reverse=True):
        factor = difference.coeff(s)
        rest = normal(sympy.expand(s - difference / factor)) if factor in (1, -1) else s
        if (is_static(rest) or s not in rest.free_symbols) and at_most(1, rest):  # type: ignore[union-attr]
            return s, rest
    return None
