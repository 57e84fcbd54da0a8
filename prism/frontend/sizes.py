"""What symbolic sizes have to be for a model to mean what was read: their ranges are narrowed, or it is refused."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

import sympy

from prism.program.extents import Extent, at_most, is_static
from prism.program.nodes import SymbolRange


def not_negative(difference: Extent, ranges: MutableMapping[str, SymbolRange]) -> bool:
    """See to it that a number is not negative: it never is, or sizes where it would be are none of the program's.

    Args:
        difference: the number.
        ranges: of the symbols, which are narrowed.

    Returns:
        Whether that could be said: it is a number, or grows with the one symbol in it.
    """
    match difference:
        case sympy.floor(args=(inner,)) | sympy.ceiling(args=(inner,)):
            difference = inner  # not negative where this is not
    if at_most(0, difference):
        return True
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
