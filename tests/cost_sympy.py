"""Counts as sympy expressions: a second way to say what they come to, for tests of the first."""

from __future__ import annotations

import sympy

from prism.cost.counts import Factor, Polynomial, power_of_two_above
from prism.cost.trip_counts import Bound, Visited
from prism.sgraph.nodes import Tile


def as_sympy(p: Polynomial, exact: bool = True) -> sympy.Expr:
    """A count as a sympy expression; with `exact` false a lower bound without roundings."""
    return sympy.Add(*(sympy.Mul(m.coefficient, *(_factor(f, exact) for f in m.factors)) for m in p.terms))


def _factor(f: Factor | Visited, exact: bool) -> sympy.Expr:
    if isinstance(f, Visited):
        return _share(f, exact)
    n = sympy.sympify(f.extent)
    ceil = sympy.ceiling if exact else (lambda e: e)
    if f.kind == "size":
        return n
    if f.kind == "parts":
        assert f.parts is not None
        return f.parts
    if f.tile is None:
        if f.kind == "tiles":
            return sympy.Integer(1)
        return power_of_two_above(n) if exact else n
    tiles = ceil(n / f.tile)
    if f.parts is not None:
        share = ceil(tiles / f.parts)
        return share if f.kind == "share" else share * f.parts * f.tile
    return tiles if f.kind == "tiles" else tiles * f.tile


def _share(v: Visited, exact: bool) -> sympy.Expr:
    """Rounding by averages; with `exact` false without any."""
    ceil = sympy.ceiling if exact else (lambda e: e)
    tiles = ceil(sympy.sympify(v.extent) / v.tile)
    found: list[sympy.Expr] = [tiles, sympy.Integer(0)]
    for b in v.bounds:
        found[b.slope > 0] = _mean(b, v.tile, tiles, exact)
    return sympy.Max(0, found[0] - found[1]) / tiles


def _mean(b: Bound, tile: Tile, tiles: sympy.Expr, exact: bool) -> sympy.Expr:
    """The mean of a bound's line, between 0 and `tiles`; a rounding counts with its average, half a tile."""
    ceil = sympy.ceiling if exact else (lambda e: e)
    u = sympy.sympify(b.offset)
    step, count = sympy.Integer(0), sympy.Integer(1)
    for n, t in enumerate(b.terms):
        c = sympy.sympify(t.coefficient)
        places = ceil(sympy.sympify(t.extent) / t.tile)
        u += c * (t.tile - 1) if t.above else 0
        if n == 0:
            step, count = c * t.tile, places
        else:
            u += c * t.tile * (places - 1) / 2
    rising = not b.terms or b.terms[0].above
    divisor = abs(b.slope) * tile
    if b.slope > 0:
        u, step, rising = abs(b.slope) - 1 - u - divisor, -step, not rising
    if not rising:
        u, step = u + step * (count - 1), -step
    last = u + step * (count - 1)
    # Between the ends the line is straight: the mean of its clamped values from two areas.
    half = (divisor + 1) / sympy.Integer(2) if exact else divisor if b.slope > 0 else sympy.Integer(1)
    low, high = (u + half) / divisor, (last + half) / divisor
    middle = sympy.Min(sympy.Max((low + high) / 2, 0), tiles)
    if step == 0:
        return middle

    def area(x: sympy.Expr) -> sympy.Expr:
        inside = sympy.Min(sympy.Max(x, 0), tiles)
        return inside**2 / 2 + tiles * sympy.Max(x - tiles, 0)

    # With one place there is no area; its own value is the mean.
    width = sympy.Max(high - low, sympy.Rational(1, 10**9))
    return sympy.Piecewise(((area(high) - area(low)) / width, high > low), (middle, True))
