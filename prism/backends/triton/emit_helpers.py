"""Pointwise operations that Triton lacks, or has only where its interpreter does not follow: as jit functions.

Each is emitted only into modules that use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

TANH = '''
@triton.jit
def tanh(x):
    """A series near 0, where 2 * sigmoid(2x) - 1 cancels."""
    s = x * x
    series = x * (1.0 + s * (-1.0 / 3.0 + s * (2.0 / 15.0 + s * (-17.0 / 315.0 + s * (62.0 / 2835.0)))))
    return tl.where(tl.abs(x) < 0.25, series, 2.0 * tl.sigmoid(2.0 * x) - 1.0)
'''

ATAN = '''
@triton.jit
def arctangent(x):
    """A polynomial up to 1, and beyond it what 1/x leaves of a right angle."""
    a = tl.abs(x)
    t = tl.where(a > 1.0, 1.0 / a, a)
    z = t * t
    p = ((0.002920691855 * z - 0.01636792719) * z + 0.04321185872) * z - 0.07552213967
    p = (((p * z + 0.1066600457) * z - 0.1421105564) * z + 0.199937731) * z - 0.3333315253
    angle = p * z * t + t
    angle = tl.where(a > 1.0, 1.57079637 - (angle + 4.37113883e-8), angle)
    return tl.where(x < 0.0, -angle, angle)
'''

ROUND = '''
@triton.jit
def round_half_even(x):
    """The nearest integer; of two equally near ones the even one."""
    below = tl.floor(x)
    rest = x - below
    odd = tl.floor(below * 0.5) * 2.0 != below
    return tl.where((rest > 0.5) | ((rest == 0.5) & odd), below + 1.0, below)
'''

POWER = '''
@triton.jit
def power(x, y):
    """x to the y: a negative base that is finite needs an integer exponent, and gives NaN without one."""
    base = tl.abs(x)
    size = tl.where((y == 0.0) | (base == 1.0), 1.0, tl.exp2(y * tl.log2(base)))
    whole = tl.floor(y) == y
    odd = tl.floor(y * 0.5) * 2.0 != y
    minus = (x < 0.0) | (1.0 / x < 0.0)  # that of -0, too
    signed = tl.where(whole & odd, -size, tl.where(whole | (base == 0.0) | (base == float("inf")), size, float("nan")))
    return tl.where((y == 0.0) | (x == 1.0), 1.0, tl.where(minus, signed, size))
'''

SIGN = '''
@triton.jit
def sign(x):
    """-1, 0 or 1; 0 of NaN."""
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, 0.0))
'''

MULTIPLY = '''
@triton.jit
def multiply(a, b):
    """Combines the factors of a product over an axis."""
    return a * b
'''

LARGER = '''
@triton.jit
def larger(a, b):
    """Combines the elements of a maximum over an axis; NaN wins, which it does not in tl.max."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
'''

SMALLER = '''
@triton.jit
def smaller(a, b):
    """Combines the elements of a minimum over an axis; NaN wins, which it does not in tl.min."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
'''


def _recurrence(name: str, what: str, grown: str, both: str, combined: str) -> str:
    """A scan of pairs: what a stretch makes of what comes before it, and what it combines itself."""
    carried = combined.format(grown.format("value", "next_growth"), "next_value")
    return f'''
@triton.jit
def {name}_of_two(growth, value, next_growth, next_value):
    """Combines two stretches of a recurrence."""
    return growth {both} next_growth, {carried}


@triton.jit
def {name}(growth, value, axis: tl.constexpr, reverse: tl.constexpr = False):
    """At each place, {what}."""
    _, found = tl.associative_scan((growth, value), axis, {name}_of_two, reverse)
    return found
'''


def _before(name: str, combined: str, nothing: str) -> str:
    """What is combined before each place: a scan of pairs, of all places of a stretch and of all but the last."""
    whole, but_last = (combined.format("whole", other) for other in ("next_whole", "next_but_last"))
    return f'''
@triton.jit
def {name}_of_two(whole, but_last, next_whole, next_but_last):
    """Combines the {name}s of two stretches, of all their places and of all but the last."""
    return {whole}, {but_last}


@triton.jit
def {name}_before(value, axis: tl.constexpr, reverse: tl.constexpr = False):
    """At each place, the {name} of what is before it."""
    nothing = tl.full(value.shape, {nothing}, value.dtype)
    _, before = tl.associative_scan((value, nothing), axis, {name}_of_two, reverse)
    return before
'''


_LARGER = "tl.maximum({}, {}, propagate_nan=tl.PropagateNan.ALL)"
_SMALLER = "tl.minimum({}, {}, propagate_nan=tl.PropagateNan.ALL)"
RECURRENCE = _recurrence(
    "recurrence", "the result of the place before times the growth, plus the value", "{} * {}", "*", "{} + {}"
)
GROWING_MAXIMUM = _recurrence(
    "growing_maximum",
    "the larger of the result of the place before plus the growth, and the value",
    "{} + {}",
    "+",
    _LARGER,
)
GROWING_MINIMUM = _recurrence(
    "growing_minimum",
    "the smaller of the result of the place before plus the growth, and the value",
    "{} + {}",
    "+",
    _SMALLER,
)
PRODUCT_BEFORE = _before("product", "{} * {}", "1")
MAXIMUM_BEFORE = _before("maximum", _LARGER, 'float("-inf")')
MINIMUM_BEFORE = _before("minimum", _SMALLER, 'float("inf")')

HELPERS: Mapping[str, str] = MappingProxyType(
    {
        "tanh": TANH,
        "arctangent": ATAN,
        "round_half_even": ROUND,
        "power": POWER,
        "sign": SIGN,
        "multiply": MULTIPLY,
        "larger": LARGER,
        "smaller": SMALLER,
        "recurrence": RECURRENCE,
        "growing_maximum": GROWING_MAXIMUM,
        "growing_minimum": GROWING_MINIMUM,
        "product_before": PRODUCT_BEFORE,
        "maximum_before": MAXIMUM_BEFORE,
        "minimum_before": MINIMUM_BEFORE,
    }
)
"""By name: the source of each helper, a docstring for what it is."""
