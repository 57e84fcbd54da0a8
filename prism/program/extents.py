"""Extents: how long an axis is. A Python int, or a sympy expression in positive integer symbols."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

from prism.program.deferred import Deferred

if TYPE_CHECKING:
    import sympy
else:
    sympy = Deferred("sympy")

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
    """The extent under `binding` (symbol name to value). Raises KeyError: a symbol of the extent is not bound."""
    if isinstance(extent, int):
        return extent
    missing = [s.name for s in extent.free_symbols if s.name not in binding]
    if missing:
        raise KeyError(missing[0])
    return int(extent.xreplace({s: sympy.Integer(binding[s.name]) for s in extent.free_symbols}))


def told(extents: Iterable[Extent]) -> set[sympy.Symbol]:
    """The symbols that follow from the values of these extents, one after another: `n` from `2*n + m` and `m`."""
    known: set[sympy.Symbol] = set()
    left = [e for e in map(sympy.sympify, extents) if not is_static(e)]
    while True:
        solved = [e for e in left if _is_solved(e, known)]
        if not solved:
            return known
        known = known.union(*(e.free_symbols for e in solved))
        left = [e for e in left if e not in solved]


def _is_solved(extent: sympy.Expr, known: set[sympy.Symbol]) -> bool:
    unknown = extent.free_symbols - known
    return not unknown or (len(unknown) == 1 and extent.is_polynomial(*unknown) and sympy.degree(extent, *unknown) == 1)


def most_elements(shapes: Iterable[Sequence[Extent]], binding: Mapping[str, int]) -> int:
    """How many elements the largest of these tensors has, of those whose symbols are all bound."""
    most = 0
    for shape in shapes:
        with suppress(KeyError):
            most = max(most, math.prod(evaluate(e, binding) for e in shape))
    return most


def add(a: Extent, b: Extent) -> Extent:
    """a + b."""
    return normal(a + b)


def mul(a: Extent, b: Extent) -> Extent:
    """a * b, expanded, so that equal polynomials compare equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return normal(sympy.expand(a * b))


def product(extents: Iterable[Extent]) -> Extent:
    """The number of elements of a shape."""
    return reduce(mul, extents, 1)


def strides_of(shape: Sequence[Extent]) -> tuple[Extent, ...]:
    """How many elements lie between neighbours along each dimension of a tensor of that shape as it is stored."""
    return tuple(reversed([*itertools.accumulate(reversed(shape[1:]), mul, initial=1)]))[: len(shape)]


def cdiv(a: Extent, b: Extent) -> Extent:
    """ceil(a / b)."""
    if isinstance(b, int):
        return floordiv(add(a, b - 1), b)
    return normal(sympy.ceiling(sympy.sympify(a) / b))


def floordiv(a: Extent, b: Extent) -> Extent:
    """floor(a / b), in one way of several.

    floor((n + 2)/3) is ceiling(n/3), ceiling((n - 3)/4) is floor(n/4), and floor((floor(n/2) - 1)/3) floor((n - 2)/6).
    """
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    above = sympy.expand(a)
    within = [e for e in sympy.Add.make_args(above) if isinstance(e, sympy.floor | sympy.ceiling)]
    if isinstance(b, int) and b > 0 and len(within) == 1:
        top, bottom = sympy.fraction(sympy.together(within[0].args[0]))
        if bottom.is_Integer:
            up = bottom - 1 if isinstance(within[0], sympy.ceiling) else 0
            return floordiv(top + up + (above - within[0]) * bottom, b * int(bottom))
    constant = above.as_coeff_Add()[0]
    if isinstance(b, int) and constant.is_Integer and constant % b == b - 1:
        return normal(sympy.ceiling((above - b + 1) / b))
    found = sympy.floor(above / b)
    turned = {f: -sympy.ceiling(-f.args[0]) for f in found.atoms(sympy.floor) if f.args[0].could_extract_minus_sign()}
    return normal(found.xreplace(turned))


def exact_quotient(a: Extent, b: Extent) -> Extent | None:
    """a / b where b divides a for every value of the symbols: a polynomial of whole coefficients; None otherwise."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    top, bottom = sympy.sympify(a), sympy.sympify(b)
    names = {e: sympy.Dummy() for e in (top + bottom).atoms(sympy.floor, sympy.ceiling)}  # whole numbers like symbols
    # In n/2 + 1/2 the denominator is in the terms: (n + 1)/2 has one.
    top, bottom = sympy.fraction(sympy.cancel(sympy.together(top.xreplace(names) / bottom.xreplace(names))))
    if not bottom.is_Integer:
        return None
    found = sympy.expand(top / bottom)
    whole = all(term.as_coeff_Mul()[0].is_Integer for term in sympy.Add.make_args(found))
    return normal(found.xreplace({dummy: e for e, dummy in names.items()})) if whole else None


def at_most(a: Extent, b: Extent) -> bool:
    """Whether a <= b for every value of the symbols; False when that is not known."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    difference = sympy.expand(b - a)
    if _not_negative(difference):
        return True
    bound = _without_rounding(difference)
    return bound != difference and _not_negative(bound)


def _not_negative(size: sympy.Expr) -> bool:
    if size.is_nonnegative:
        return True
    # Every symbol is at least 1: substitute s -> 1 + s' with s' >= 0 and look at the coefficients.
    above = {s: 1 + sympy.Symbol(f"{s}'", integer=True, nonnegative=True) for s in size.free_symbols}
    return bool(sympy.expand(size.xreplace(above)).is_nonnegative)


def _without_rounding(size: sympy.Expr) -> sympy.Expr:
    """What a size is at least: floor(n/8), as any rounded quotient, lies between (n - 7)/8 and n/8."""
    for rounded in sorted(size.atoms(sympy.floor, sympy.ceiling), key=str):
        times, (inner,) = size.coeff(rounded), rounded.args
        whole = sympy.fraction(sympy.together(inner))[1]
        rest = sympy.expand(size - times * rounded)
        if not (times.is_Rational and whole.is_Integer) or rest.has(rounded):
            continue
        gap = 1 - 1 / whole
        least = inner - gap if isinstance(rounded, sympy.floor) else inner
        size = sympy.expand(rest + times * (least if times > 0 else least + gap))
    return size


def text(extent: Extent) -> str:
    """A short name of the extent that is also a legal identifier fragment."""
    raw = str(extent)
    return "".join(c if c.isalnum() else "_" for c in raw)


LARGEST = 2**80
"""No number in an extent, or in an index, is larger; element counts of any memory are far smaller."""
LONGEST = 4000
"""Characters of the longest extent that is read."""
_HIGHEST = 8
_TERMS = 200


class ExtentError(ValueError):
    """What was read is no extent, or one that nobody has."""


def from_text(source: str) -> Extent:
    """The extent that `str` wrote; what it takes is bounded, whatever the text says, and nothing in it is run.

    Raises:
        ExtentError: it is none, or larger than any.
    """
    if len(source) > LONGEST:
        raise ExtentError(f"an extent of {len(source):,} characters")
    try:
        return _of(ast.parse(source.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        why = str(error) if isinstance(error, ExtentError) else "it cannot be read"
        raise ExtentError(f"{source[:80]!r} is no extent: {why}") from error


def _of(tree: ast.expr) -> Extent:
    match tree:
        case ast.Constant(int() as value) if type(value) is int:
            return made("sum", [value])
        case ast.Name(name):
            return symbol(name)
        case ast.UnaryOp(ast.USub(), inner):
            return made("product", [-1, _of(inner)])
        case ast.BinOp(a, ast.Add(), b):
            return made("sum", [_of(a), _of(b)])
        case ast.BinOp(a, ast.Sub(), b):
            return made("sum", [_of(a), made("product", [-1, _of(b)])])
        case ast.BinOp(a, ast.Mult(), b):
            return made("product", [_of(a), _of(b)])
        case ast.BinOp(a, ast.Div(), b):
            return made("product", [_of(a), made("power", [_of(b), -1])])
        case ast.BinOp(a, ast.Pow(), b):
            return made("power", [_of(a), _of(b)])
        case ast.Call(ast.Name("floor" | "ceiling" as name), [inner], []):
            return made(name, [_of(inner)])
    raise ExtentError("it has more than whole numbers, names, + - * / **, floor and ceiling")


# What sympy calls them.
_MAKERS = {"sum": "Add", "product": "Mul", "power": "Pow", "floor": "floor", "ceiling": "ceiling", "ratio": "Rational"}


KINDS = frozenset(_MAKERS)
"""What `made` makes."""


def made(kind: str, args: Sequence[Extent]) -> Extent:
    """A sum, product, power, floor, ceiling or ratio, as it is read; each is checked before it is worked out.

    Raises:
        ExtentError: it is none, or larger than any.
    """
    numbers = [sympy.sympify(a) for a in args if isinstance(a, int | sympy.Expr) and not isinstance(a, bool)]
    if kind not in _MAKERS or len(numbers) != len(args):
        raise ExtentError("it is not made of extents")
    if kind in ("power", "ratio") and len(args) != 2:
        raise ExtentError(f"a {kind} of {len(args)}")
    if kind == "power" and not (numbers[1].is_Integer and abs(int(numbers[1])) <= _HIGHEST):
        raise ExtentError(f"a power higher than {_HIGHEST}")
    if kind == "ratio" and not all(n.is_Integer for n in numbers):
        raise ExtentError("a ratio of more than numbers")
    if (kind == "power" and numbers[0].is_zero) or (kind == "ratio" and numbers[1].is_zero):
        raise ExtentError("a division by 0")
    # Products of sums are multiplied out later.
    terms = [len(sympy.Add.make_args(n)) for n in numbers]
    if kind == "product" and math.prod(terms) > _TERMS:
        raise ExtentError(f"more than {_TERMS} terms")
    if kind == "power" and terms[0] ** abs(int(numbers[1])) > _TERMS:
        raise ExtentError(f"more than {_TERMS} terms")
    found = getattr(sympy, _MAKERS[kind])(*numbers)
    if not isinstance(found, sympy.Expr) or found.has(sympy.nan, sympy.zoo, sympy.oo):
        raise ExtentError("it is no number")
    if any(abs(n) > LARGEST for n in found.atoms(sympy.Integer)):
        raise ExtentError("a number larger than any extent")
    return normal(found)
