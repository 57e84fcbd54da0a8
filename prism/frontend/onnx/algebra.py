"""Smart constructors of pointwise expressions: fold constants, and turn masks built from numbers back into predicates.

Exporters write a causal mask as arithmetic on constants: a lower triangle of ones, compared with 0, selected against
-inf. With `Trilu` a `where` over Positions, `apply` pushes each such operation into the branches of the `where`, so
that what is left is the predicate itself: `j <= i`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from prism.program import build
from prism.program.extents import Extent, add, at_most, is_static, normal
from prism.program.index import Index
from prism.program.nodes import Const, Expr, Map, Position, Size
from prism.program.ops import OPS
from prism.program.views import same_extent

_NUMERIC: Mapping[str, Callable[..., float]] = MappingProxyType(
    {
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
        "neg": lambda a: -a,
        "recip": lambda a: math.copysign(math.inf, a) if a == 0 else 1.0 / a,
        "exp": math.exp,
        "log": math.log,
        "sqrt": math.sqrt,
        "sin": math.sin,
        "cos": math.cos,
        "tanh": math.tanh,
        "atan": math.atan,
        "erf": math.erf,
        "sigmoid": lambda a: 1.0 / (1.0 + math.exp(-a)),
        "abs": abs,
        "sign": lambda a: math.copysign(1.0, a) if a != 0 else 0.0,
        "floor": lambda a: float(math.floor(a)),
        "round": lambda a: float(round(a)),
        "maximum": max,
        "minimum": min,
        "pow": lambda a, b: a**b,
        "bitand": lambda a, b: float(int(a) & int(b)),
        "lt": lambda a, b: float(a < b),
        "le": lambda a, b: float(a <= b),
        "eq": lambda a, b: float(a == b),
        "and": lambda a, b: float(a != 0 and b != 0),
        "or": lambda a, b: float(a != 0 or b != 0),
        "not": lambda a: float(a == 0),
        "isnan": lambda a: float(math.isnan(a)),
    }
)

TRUE, FALSE = Const(1.0), Const(0.0)


def apply(name: str, *args: Expr) -> Expr:
    """The pointwise operation on the arguments, folded where they are constants, positions or constant masks."""
    if name == "where":
        return _where(*args)
    folded: Expr | None = _fold(name, args)
    if folded is not None:
        return folded
    if name in ("add", "mul", "neg"):
        index = _integral(name, args)
        if index is not None:
            return index_value(index)
    pushed = _push(name, args)
    if pushed is not None:
        return pushed
    return _logical(name, args) or Map(name, args)


def _fold(name: str, args: tuple[Expr, ...]) -> Const | None:
    values = [a.value for a in args if isinstance(a, Const)]
    if len(values) != len(args):
        return None
    try:
        result = _NUMERIC[name](*values)
    except (ValueError, OverflowError, ZeroDivisionError):
        return None  # outside the function's domain: left to run-time arithmetic
    return None if isinstance(result, complex) else Const(float(result))


def index_value(index: Index) -> Expr:
    """The value of an index as a number, in its simplest form."""
    if index.terms:
        return Position(index)
    offset = index.offset
    return Const(float(int(offset))) if is_static(offset) else Position(index)


def as_index(expr: Expr) -> Index | None:
    """The index whose value `expr` is, when it is one: an integer, an extent or a position."""
    match expr:
        case Position(index):
            return index
        case Size(extent):
            return Index.const(extent)
        case Const(value) if math.isfinite(value) and value == math.floor(value):
            return Index.const(int(value))
        case _:
            return None


def as_extent(expr: Expr) -> Extent | None:
    """The number that `expr` is for every element, when it is an integer known at translation."""
    index = as_index(expr)
    return None if index is None or index.terms else index.offset


def _integral(name: str, args: tuple[Expr, ...]) -> Index | None:
    if not any(isinstance(a, Position | Size) for a in args):
        return None
    indices = [as_index(a) for a in args]
    match name, indices:
        case "neg", [Index() as a]:
            return a.scaled(-1)
        case "add", [Index() as a, Index() as b]:
            return a + b
        case "mul", [Index() as a, Index() as b] if not b.terms:
            return a.scaled(b.offset)
        case "mul", [Index() as a, Index() as b] if not a.terms:
            return b.scaled(a.offset)
        case _:
            return None


def _push(name: str, args: tuple[Expr, ...]) -> Expr | None:
    """f(where(p, a, b), c) = where(p, f(a, c), f(b, c)) for constants a, b, c."""
    chosen: tuple[int, Expr, Expr, Expr] | None = None
    for place, arg in enumerate(args):
        match arg:
            case Map("where", (test, Const() as a, Const() as b)) if chosen is None:
                chosen = (place, test, a, b)
            case Const():
                pass
            case _:
                return None
    if chosen is None:
        return None
    place, predicate, then, otherwise = chosen
    yes, no = (_fold(name, (*args[:place], branch, *args[place + 1 :])) for branch in (then, otherwise))
    if yes is None or no is None:
        return None
    if OPS[name].boolean:
        return as_predicate(Map("where", (predicate, yes, no)))
    return _where(predicate, yes, no)


def as_predicate(expr: Expr) -> Expr:
    """`expr`, whose values are 0 and 1, without a `where` that only restates its condition."""
    match expr:
        case Map("where", (predicate, Const(1.0), Const(0.0))):
            return predicate
        case Map("where", (predicate, Const(0.0), Const(1.0))):
            return apply("not", predicate)
        case Map("where", (_, Const(a), Const(b))) if a == b:
            return Const(a)
        case _:
            return expr


def _logical(name: str, args: tuple[Expr, ...]) -> Expr | None:
    match name, args:
        case "not", (Map("not", (a,)),):
            return a
        case "not", (Map("lt", (a, b)),) if as_index(a) and as_index(b):
            return apply("le", b, a)
        case "not", (Map("le", (a, b)),) if as_index(a) and as_index(b):
            return apply("lt", b, a)
        case "and", (Const(v), a) | (a, Const(v)):
            return a if v != 0 else FALSE
        case "or", (Const(v), a) | (a, Const(v)):
            return a if v == 0 else TRUE
        case "isnan", (Position() | Size(),):
            return FALSE
        case "lt" | "le" | "eq", (Position() | Size() as a, Position() | Size() | Const() as b):
            return _compare(name, a, b)
        case "lt" | "le" | "eq", (Const() as a, Position() | Size() as b):
            return _compare(name, a, b)
        case _:
            return None


def _compare(name: str, a: Expr, b: Expr) -> Expr | None:
    """The comparison of two extents, decided where it holds, or fails, for every value of the symbols."""
    left, right = as_extent(a), as_extent(b)
    if left is None or right is None:
        return None
    known = compare_extents(name, left, right)
    return None if known is None else Const(float(known))


def compare_extents(name: str, a: Extent, b: Extent) -> bool | None:
    """Whether a < b (lt), a <= b (le) or a = b (eq) for every value of the symbols; None when that depends."""
    match name:
        case "lt":
            return True if at_most(add(a, 1), b) else False if at_most(b, a) else None
        case "le":
            return True if at_most(a, b) else False if at_most(add(b, 1), a) else None
        case _:
            if same_extent(a, b):
                return True
            return False if at_most(add(a, 1), b) or at_most(add(b, 1), a) else None


def _where(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    match condition:
        case Const(value):
            return then if value != 0 else otherwise
        case Map("not", (inner,)):
            return _where(inner, otherwise, then)
    if then == otherwise:
        return then
    return Map("where", (condition, then, otherwise))


def sub(a: Expr, b: Expr) -> Expr:
    """The difference a - b."""
    return apply("add", a, apply("neg", b))


def recip(a: Expr) -> Expr:
    """The reciprocal 1 / a."""
    return apply("recip", a)


def div(a: Expr, b: Expr) -> Expr:
    """The quotient a / b, for floating-point operands."""
    match a, b:
        case Const(x), Const(y) if y != 0:
            return Const(x / y)  # rounded once
        case Const(1.0), _:
            return recip(b)
        case _:
            return apply("mul", a, recip(b))


def power(a: Expr, exponent: Expr) -> Expr:
    """The power a ** exponent: products, square roots and reciprocals where the exponent is such a constant."""
    if isinstance(exponent, Const) and not isinstance(a, Const):
        match exponent.value:
            case 0.0:
                return TRUE
            case 0.5:
                return apply("sqrt", a)
            case -0.5:
                return recip(apply("sqrt", a))
            case value if value == math.floor(value) and 1 <= abs(value) <= 4:
                product = build.mul(*[a] * int(abs(value)))
                return product if value > 0 else recip(product)
    return apply("pow", a, exponent)


def number(extent: Extent) -> Expr:
    """An extent as a number."""
    extent = normal(extent)
    if isinstance(extent, int):
        return Const(float(extent))
    # Size is for lengths, which are positive; any other integer expression is the value of a constant index.
    return Size(extent) if extent.is_positive else Position(Index.const(extent))
