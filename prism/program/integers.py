"""Integers and truth values as their types store them: bounds of expressions, wrapping, exact division.

A program computes over the reals, and its evaluators in float64. An integer type holds whole numbers modulo a power of
two, so what a front end defines in one passes through `stored`: a value whose bounds fit the type is kept as it is, one
that may leave it is wrapped by a formula, and one that float64 could not wrap exactly is refused.

What is taken for granted: an input of type int64 holds numbers within ±2^31, as positions, tokens and counts are, what
is computed of such in int64 stays within 64 bits, and a number with a fraction that is cast to an integer type lies
within ±2^31 before, beyond which libraries differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from prism.errors import UnsupportedError
from prism.program.extents import Extent
from prism.program.fold import div, op, sub, truth
from prism.program.formulas import truncated
from prism.program.index import Axis, FloorDiv, Index, Mod
from prism.program.lookup import lookup
from prism.program.nodes import (
    Const,
    DType,
    Expr,
    Map,
    Position,
    Program,
    Read,
    Reduce,
    ReduceKind,
    Size,
    SymbolRange,
    walk,
)
from prism.program.ops import OPS
from prism.program.stated import Assumption

EXACT = 2.0**53
"""Up to here float64 holds every whole number."""

INT64_ASSUMED = "the elements of int64 inputs are at least -2^31 and below 2^31"
"""The assumption of `of_type`, for those who list what a result rests on."""

INT64_ENOUGH = "what is computed in int64 stays within 64 bits"
"""The assumption of `stored` where INT64_ASSUMED does not see to it: products of three inputs, sums of two products."""

PLACES_ASSUMED = "places that data give lie in what is looked up"
"""The assumption of `prism.program.lookup`: runtimes refuse other places, or read anything; programs have 0 there."""

CAST = 2.0**31
CAST_ASSUMED = "fractions that are cast to integers are above -2^31 and below 2^31"
"""The assumption of `from_fraction`, and the bound that it speaks of."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of a value, inclusive."""

    low: float  # no value is below
    high: float  # no value is above
    whole: bool  # whether every value is a whole number

    def within(self, other: Interval) -> bool:
        """Whether every value lies in the other's bounds."""
        return other.low <= self.low and self.high <= other.high

    def hull(self, other: Interval) -> Interval:
        """Bounds of a value that is either of two."""
        return Interval(min(self.low, other.low), max(self.high, other.high), self.whole and other.whole)

    @property
    def largest(self) -> float:
        """No value's magnitude is above."""
        return max(abs(self.low), abs(self.high))

    @property
    def exact(self) -> bool:
        """Whether float64 holds all of its whole numbers."""
        return self.whole and self.largest <= EXACT

    def __str__(self) -> str:
        return f"[{self.low:g}, {self.high:g}]"


REAL = Interval(-math.inf, math.inf, whole=False)
"""Nothing is known."""

_ASSUMED = Interval(-(2.0**31), 2.0**31 - 1, whole=True)

_BITS: Mapping[DType, int] = MappingProxyType(
    {DType.INT64: 64, DType.INT32: 32, DType.INT16: 16, DType.INT8: 8, DType.UINT8: 8, DType.BOOL: 1}
)


def range_of(dtype: DType) -> Interval:
    """Every number that the type can hold."""
    bits = _BITS.get(dtype)
    if bits is None:
        return REAL
    if dtype in (DType.BOOL, DType.UINT8):
        return Interval(0.0, 2.0**bits - 1, whole=True)
    # the largest float64 that is below 2^63
    return Interval(-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - (1 if bits < 53 else 1024), whole=True)


def of_type(dtype: DType) -> Interval:
    """What a tensor of the type, of which nothing else is known, is taken to hold: for int64, INT64_ASSUMED."""
    return _ASSUMED if dtype is DType.INT64 else range_of(dtype)


def assumptions(program: Program) -> tuple[str, ...]:
    """What the program's formulas take for granted of its inputs, or of its source, in words; none for most.

    Numbers of int64 inputs matter where something of an integer type, computed of them, could leave its type; as
    indices and in comparisons they do not. Fractions matter where nothing bounds one that is cast.
    """
    assumed: list[str] = []
    if any(t.dtype is DType.INT64 for t in program.arguments):
        _, leaves = _by_definition(program, range_of(DType.INT64))
        assumed += [INT64_ASSUMED] * bool(leaves)
    cast, leaves = _by_definition(program, _ASSUMED)
    assumed += [INT64_ENOUGH] * (DType.INT64 in leaves)
    return (*assumed, *([CAST_ASSUMED] * cast), *([PLACES_ASSUMED] * _may_miss(program)), *program.granted)


def _may_miss(program: Program) -> bool:
    """Whether an element is looked up at a place that may lie outside of what it is looked up in."""
    of: dict[str, Interval] = {t.name: of_type(t.dtype) for t in program.inputs}
    for d in program.definitions:
        for chosen in filter(None, map(lookup, walk(d.expr))):
            place = interval(chosen.place, of.__getitem__, program.ranges)
            fewest, _ = _extent(chosen.axis.extent, program.ranges)
            if not place.within(Interval(0.0, fewest - 1.0, whole=True)):
                return True
        if not d.dtype.is_float:
            bounds = interval(d.expr, of.__getitem__, program.ranges)
            of[d.name] = bounds if bounds.within(range_of(d.dtype)) else range_of(d.dtype)
        else:
            of[d.name] = REAL
    return False


def legal_places(program: Program) -> dict[str, Assumption]:
    """What PLACES_ASSUMED says of inputs whose elements are looked up as they are, by name."""
    found: dict[str, Assumption] = {}
    read = {t.name: t.name for t in program.arguments if not t.dtype.is_float and t.stated is None}
    for d in program.definitions:
        for chosen in filter(None, map(lookup, walk(d.expr))):
            if isinstance(chosen.place, Read) and chosen.place.tensor in read:
                fewest, _ = _extent(chosen.axis.extent, program.ranges)
                name, inside = read[chosen.place.tensor], Assumption(0.0, fewest - 1.0)
                found[name] = found.get(name, Assumption()).both(inside)
        if isinstance(d.expr, Read) and d.expr.tensor in read:
            read[d.name] = read[d.expr.tensor]
    return found


def _by_definition(program: Program, int64: Interval) -> tuple[bool, frozenset[DType]]:
    """Whether a fraction without known bounds is cast, and the integer types that a value of theirs may leave."""
    floats = {t.name for t in (*program.inputs, *(d.tensor for d in program.definitions)) if t.dtype.is_float}
    of = {t.name: int64 if t.dtype is DType.INT64 else range_of(t.dtype) for t in program.inputs}
    cast, leaves = False, set[DType]()
    for d in program.definitions:
        found: dict[int, Interval] = {}
        loose: set[int] = set()  # of no known bounds, as a fraction above which it stands
        for e in walk(d.expr):
            bounds = bounds_of(e, [found[id(c)] for c in e.children], of.__getitem__, program.ranges)
            known = e.tensor in floats if isinstance(e, Read) else not loose.isdisjoint(map(id, e.children))
            if known and bounds.largest > EXACT:
                loose.add(id(e))
            found[id(e)] = bounds
        own, bounds = range_of(d.dtype), found[id(d.expr)]
        if not d.dtype.is_float:
            cast |= any(id(e) in loose and _is_cast(e) for e in walk(d.expr)) or id(d.expr) in loose
            if id(d.expr) not in loose and not bounds.within(own):
                leaves.add(d.dtype)
        cut_off = d.dtype is DType.INT64 and id(d.expr) in loose  # by CAST_ASSUMED
        of[d.name] = bounds if bounds.within(own) else _ASSUMED if cut_off else own
    return cast, frozenset(leaves)


def _is_cast(e: Expr) -> bool:
    """Whether this is the whole part of a fraction, as a cast has it."""
    match e:
        case Map("mul", (Map("sign", (a,)), Map("floor", (Map("abs", (b,)),)))):
            return a == b
    return False


# Bounds


def interval(
    expr: Expr,
    of: Callable[[str], Interval],
    ranges: Mapping[str, SymbolRange] = MappingProxyType({}),
    known: Mapping[Expr, Interval] = MappingProxyType({}),
) -> Interval:
    """Bounds of an expression's values, operator by operator.

    `of` has the bounds of what is read; an extent without a range is at least 1. `known` are bounds of sub-expressions
    of which more is known than their operators say, such as casts and remainders.
    """
    found: dict[int, Interval] = {}
    for e in walk(expr):
        given = known.get(e) if known else None
        found[id(e)] = bounds_of(e, [found[id(c)] for c in e.children], of, ranges) if given is None else given
    return found[id(expr)]


def bounds_of(
    e: Expr, parts: Sequence[Interval], of: Callable[[str], Interval], ranges: Mapping[str, SymbolRange]
) -> Interval:
    """Bounds of one node's values, given those of its children; see `interval`."""
    match e:
        case Const(value):
            return Interval(value, value, whole=value.is_integer())
        case Size(extent):
            return Interval(*_extent(extent, ranges), whole=True)
        case Position(index):
            return Interval(*_index(index, ranges), whole=True)
        case Read(tensor, _):
            return of(tensor)
        case Reduce(kind, axis, _):
            # One term of a lookup counts, and the others are 0.
            return parts[0] if lookup(e) is not None else _reduced(kind, parts[0], _extent(axis.extent, ranges))
        case Map("mul", (a, b)) if a == b:
            return Interval(0.0, times(parts[0].largest, parts[0].largest), parts[0].whole)
        case Map("where", (p, a, b)):
            return image("where", [parts[0], bounds_where(p, a, parts[1]), bounds_where(p, b, parts[2], holds=False)])
        case Map(name, _):
            return image(name, parts)
    return REAL


def bounds_where(p: Expr, e: Expr, known: Interval, *, holds: bool = True) -> Interval:
    """Bounds of a value where a condition holds, or where it does not: a comparison of it with a number says more."""
    low, high = known.low, known.high
    match p:
        case Map("not", (q,)):
            return bounds_where(q, e, known, holds=not holds)
        case Map("lt" | "le", (Const(c), x)) if x == e:
            low, high = (max(low, c), high) if holds else (low, min(high, c))
        case Map("lt" | "le", (x, Const(c))) if x == e:
            low, high = (low, min(high, c)) if holds else (max(low, c), high)
    return Interval(low, high, known.whole) if low <= high else known


def image(name: str, of: Sequence[Interval]) -> Interval:
    """Bounds of a pointwise function's values over the reals, given those of its arguments."""
    a, whole = of[0], all(x.whole for x in of)
    match name:
        case "lt" | "le" if a.low > of[1].high or (name == "lt" and a.low == of[1].high):
            return Interval(0.0, 0.0, whole=True)
        case "where" if a.low == a.high == 0:
            return of[2]
        case "where":
            return of[1].hull(of[2])
        case "neg":
            return Interval(-a.high, -a.low, whole)
        case "abs":
            return Interval(max(0.0, a.low, -a.high), a.largest, whole)
        case "sign":
            return Interval(_step(a.low), _step(a.high), whole=True)
        case "floor" | "round":
            f = math.floor if name == "floor" else round
            return Interval(_rounded(f, a.low), _rounded(f, a.high), whole=True)
        case "maximum":
            return Interval(max(a.low, of[1].low), max(a.high, of[1].high), whole)
        case "minimum":
            return Interval(min(a.low, of[1].low), min(a.high, of[1].high), whole)
        case "add":
            return _outward(a.low + of[1].low, a.high + of[1].high, whole)
        case "mul":
            ends = [times(x, y) for x in (a.low, a.high) for y in (of[1].low, of[1].high)]
            return _outward(min(ends), max(ends), whole)
        case "recip" if a.low >= 0 or a.high < 0:
            return Interval(1 / a.high if a.high else 0.0, 1 / a.low if a.low else math.inf, whole=False)
        case "pow":
            return _power(a, of[1])
        case "bitand":
            return _common_bits(a, of[1])
        case "log" | "log2" if a.high > 0:
            base = math.e if name == "log" else 2.0
            low, high = (math.log(x, base) if x > 0 else -math.inf for x in (a.low, a.high))
            return Interval(low, high, whole=False)
        case "exp":
            low, high = (math.exp(x) if x < 700 else math.inf for x in (a.low, a.high))
            return Interval(low, high, whole=False)
        case "sqrt":
            return Interval(math.sqrt(max(a.low, 0.0)), math.sqrt(max(a.high, 0.0)), whole=False)
    return Interval(*OPS[name].bounds, whole=OPS[name].boolean)


def _common_bits(a: Interval, b: Interval) -> Interval:
    """Bounds of the bits that two whole numbers have in common: no more than one has that is not negative."""
    tops = [x.high for x in (a, b) if x.low >= 0]
    if tops:
        return Interval(0.0, min(tops), whole=True)
    largest = max(a.largest, b.largest)
    low = -(2.0 ** math.ceil(math.log2(largest))) if 1 <= largest < math.inf else -largest
    return Interval(low, max(a.high, b.high, 0.0), whole=True)


def _step(x: float) -> float:
    return 1.0 if x > 0 else 0.0 if x == 0 else -1.0


def _power(base: Interval, exponent: Interval) -> Interval:
    if exponent.low < 0:
        return REAL
    top = _raised(max(base.largest, 1.0), exponent.high)
    even = exponent.low == exponent.high and exponent.low % 2 == 0
    return Interval(0.0 if base.low >= 0 or even else -top, top, base.whole and exponent.whole)


def _reduced(kind: ReduceKind, body: Interval, extent: tuple[float, float]) -> Interval:
    match kind:
        case ReduceKind.SUM:
            ends = [times(x, n) for x in (body.low, body.high) for n in extent]
            low, high = min(ends), max(ends)
            return _outward(low, high, body.whole)
        case ReduceKind.PROD:
            top = _raised(max(body.largest, 1.0), extent[1])
            return Interval(0.0 if body.low >= 0 else -top, top, body.whole)
    return body


def times(x: float, y: float) -> float:
    """The product, 0 where one of them is, whatever the other."""
    return 0.0 if x == 0 or y == 0 else x * y


def _raised(x: float, y: float) -> float:
    try:
        return float(x**y)
    except OverflowError:
        return math.inf


def _rounded(f: Callable[[float], int], x: float) -> float:
    return float(f(x)) if math.isfinite(x) else x


def _outward(low: float, high: float, whole: bool) -> Interval:
    """Bounds that float64 computed: beyond the whole numbers that it holds, they are moved apart by a rounding."""
    if low != low or high != high:
        return REAL
    if abs(low) > EXACT:
        low = math.nextafter(low, -math.inf)
    if abs(high) > EXACT:
        high = math.nextafter(high, math.inf)
    return Interval(low, high, whole)


def _extent(extent: Extent, ranges: Mapping[str, SymbolRange]) -> tuple[float, float]:
    """Bounds of an extent over its symbols' ranges."""
    if isinstance(extent, int):
        return float(extent), float(extent)
    import sympy  # takes as long to load as all else, and extents that are numbers do not need it

    match extent:
        case sympy.Rational():  # a whole number, or a factor within a floor
            return float(extent), float(extent)
        case sympy.Symbol():
            given = ranges.get(extent.name)
            return (float(given.low), float(given.high)) if given is not None else (1.0, math.inf)
        case sympy.Add():
            parts = [_extent(a, ranges) for a in extent.args]
            return sum(p[0] for p in parts), sum(p[1] for p in parts)
        case sympy.Mul():
            low, high = 1.0, 1.0
            for a in extent.args:
                ends = [times(x, y) for x in (low, high) for y in _extent(a, ranges)]
                low, high = min(ends), max(ends)
            return low, high
        case sympy.Pow(args=(base, power)) if power.is_Integer and power > 0:
            low, high = _extent(base, ranges)
            top = _raised(max(abs(low), abs(high)), float(power))
            return (_raised(low, float(power)) if low >= 0 else -top), top
        case sympy.Pow(args=(base, power)) if power == -1:
            low, high = _extent(base, ranges)
            return (1 / high, 1 / low) if low > 0 else (-math.inf, math.inf)
        case sympy.floor(args=(value,)) | sympy.ceiling(args=(value,)):
            f = math.floor if isinstance(extent, sympy.floor) else math.ceil
            low, high = _extent(value, ranges)
            return _rounded(f, low), _rounded(f, high)
    return -math.inf, math.inf


def _index(index: Index, ranges: Mapping[str, SymbolRange]) -> tuple[float, float]:
    """Bounds of an index over its axes."""
    low, high = _extent(index.offset, ranges)
    for atom, coefficient in index.terms:
        match atom:
            case Axis(_, extent):
                ends = (0.0, _extent(extent, ranges)[1] - 1)
            case FloorDiv(value, _):
                inner = _index(value, ranges)
                ends = (min(0.0, inner[0]), max(0.0, inner[1]))
            case Mod(_, divisor):
                ends = (0.0, _extent(divisor, ranges)[1] - 1)
        products = [times(x, c) for x in ends for c in _extent(coefficient, ranges)]
        low, high = low + min(products), high + max(products)
    return low, high


# What a type stores


def stored(expr: Expr, dtype: DType, bounds: Interval, where: str = "") -> tuple[Expr, Interval]:
    """The value as its type stores it, and the bounds of that.

    Args:
        expr: the value, over the reals.
        dtype: the type.
        bounds: those of the value, from `interval` or from one who knows better.
        where: the node as the user knows it, for the error.

    Raises:
        UnsupportedError: an integer type is to hold what may have a fraction, or numbers too large to be wrapped; of
            int64 none are (INT64_ENOUGH).
    """
    if dtype.is_float:
        return expr, bounds
    own = range_of(dtype)
    if dtype is DType.BOOL:
        # What reads nothing is put where it is used, which takes truth values; a tensor is one by its type.
        number = not bounds.whole or not bounds.within(own) or not any(isinstance(e, Read) for e in walk(expr))
        return (truth(expr), own) if number else (expr, bounds)
    if not bounds.whole:
        raise UnsupportedError(
            f"a result of type {dtype.value} is not known to be a whole number",
            where=where,
            why="how it is rounded is not part of the formula",
            fix="compute in a floating-point type, and round and cast the result",
        )
    if bounds.within(own):
        return expr, bounds
    if dtype is DType.INT64:
        return expr, own
    if bounds.largest > EXACT:
        raise UnsupportedError(
            f"a result of type {dtype.value} may lie anywhere within {bounds}",
            where=where,
            why="it may overflow, and wrapping numbers of that size is not exact in float64",
            fix="compute it in a floating-point type, or from narrower integers",
        )
    return wrapped(expr, dtype), own


def wrapped(expr: Expr, dtype: DType) -> Expr:
    """A whole number modulo 2^bits, in the range of an integer type."""
    modulus, low = 2.0 ** _BITS[dtype], range_of(dtype).low
    turns = op("floor", op("mul", sub(expr, Const(low)), Const(1 / modulus)))
    return sub(expr, op("mul", Const(modulus), turns))


def from_fraction(expr: Expr, bounds: Interval) -> tuple[Expr, Interval]:
    """A number cast to whole numbers: rounded towards 0, and its bounds (where they are not known, CAST_ASSUMED)."""
    if bounds.whole:
        whole, cut = expr, bounds
    else:
        whole = truncated(expr)
        cut = Interval(_rounded(math.trunc, bounds.low), _rounded(math.trunc, bounds.high), whole=True)
    if cut.largest > EXACT:
        cut = Interval(max(cut.low, _ASSUMED.low), min(cut.high, _ASSUMED.high), whole=True)
    return whole, cut


# Division of whole numbers


def floor_quotient(a: Expr, b: Expr) -> Expr:
    """floor(a / b) of whole numbers, b not 0: exact however a / b is rounded, also as a product with 1/b.

    Halfway between two multiples of 1/b no rounding reaches a whole number.
    """
    if isinstance(b, Const) and b.value > 0 and math.frexp(b.value)[0] == 0.5:
        return op("floor", div(a, b))
    return op("floor", div(op("add", a, op("mul", Const(0.5), op("sign", b))), b))


def floor_remainder(a: Expr, b: Expr) -> Expr:
    """a - b * floor(a / b) of whole numbers, b not 0: of the sign of b."""
    return sub(a, op("mul", b, floor_quotient(a, b)))


def trunc_quotient(a: Expr, b: Expr) -> Expr:
    """a / b of whole numbers, b not 0, rounded towards 0: exact however a / b is rounded."""
    size = floor_quotient(op("abs", a), op("abs", b))
    return op("mul", op("mul", op("sign", a), op("sign", b)), size)


def trunc_remainder(a: Expr, b: Expr) -> Expr:
    """a - b * trunc(a / b) of whole numbers, b not 0: of the sign of a."""
    return sub(a, op("mul", b, trunc_quotient(a, b)))


def quotient_bounds(a: Interval, b: Interval) -> Interval:
    """Bounds of the quotients of whole numbers by others that are not 0, rounded either way."""
    if b.low > 0 or b.high < 0:
        # `+ 0.0` keeps a zero's sign out of the bounds
        ends = [x / y + 0.0 for x in (a.low, a.high) for y in (b.low, b.high) if math.isfinite(x)]
        if len(ends) == 4:
            return Interval(_rounded(math.floor, min(ends)), _rounded(math.ceil, max(ends)), whole=True)
    if b.low >= 0:  # not 0, so at least 1
        return Interval(min(a.low, 0.0), max(a.high, 0.0), whole=True)
    return Interval(-a.largest, a.largest, whole=True)


def remainder_bounds(a: Interval, b: Interval, *, floor: bool) -> Interval:
    """Bounds of the remainders of whole numbers by others that are not 0."""
    most = max(b.largest - 1, 0.0)
    if not floor:  # of the sign of a, and no larger
        return Interval(-min(most, -a.low) if a.low < 0 else 0.0, min(most, a.high) if a.high > 0 else 0.0, whole=True)
    if b.low >= 0 and a.low >= 0:
        return Interval(0.0, min(most, a.high), whole=True)
    return Interval(b.low + 1 if b.low < 0 else 0.0, b.high - 1 if b.high > 0 else 0.0, whole=True)


def is_zero(bounds: Interval) -> bool:
    """Whether the value is 0 for certain."""
    return bounds.low == bounds.high == 0
