"""Common pointwise functions as formulas: what `silu` is, to the front end and to operators that users declare.

A function that rounds badly as textbooks write it is written so that it does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from prism.program.fold import div, op, sub
from prism.program.nodes import Const, Expr, Map
from prism.program.ops import OPS

_LN2 = math.log(2.0)


def sigmoid(x: Expr) -> Expr:
    """The logistic function, 1 / (1 + exp(-x))."""
    return op("sigmoid", x)


def gelu(x: Expr, approximate: str = "none") -> Expr:
    """x times the normal distribution function, or its tanh approximation."""
    half = op("mul", Const(0.5), x)
    if approximate == "tanh":
        cube = op("mul", op("mul", x, x), x)
        inner = op("mul", Const(math.sqrt(2 / math.pi)), op("add", x, op("mul", Const(0.044715), cube)))
        return op("mul", half, op("add", Const(1.0), op("tanh", inner)))
    return op("mul", half, op("add", Const(1.0), op("erf", op("mul", x, Const(math.sqrt(0.5))))))


LARGEST_POWER = 8
"""Whole powers up to which they are products: one operation for each doubling, where `pow` takes tens."""


def power(x: Expr, y: Expr) -> Expr:
    """x ** y: small whole powers are products, halves are square roots."""
    match y:
        case Const(n) if n.is_integer() and 2 <= n <= LARGEST_POWER:
            half = power(x, Const(float(n // 2)))
            squared = op("mul", half, half)
            return op("mul", squared, x) if n % 2 else squared
        case Const(1.0):
            return x
        case Const(0.0):
            return Const(1.0)
        case Const(0.5):
            return op("sqrt", x)
        case Const(n) if n == -0.5 or (n.is_integer() and -LARGEST_POWER <= n < 0):
            return op("recip", power(x, Const(-n)))
    return op("pow", x, y)


def quotient(a: Expr, b: Expr) -> Expr:
    """a / b for a rounding that follows: never a product with a rounded number 1/b, as 49 * (1/49) is."""
    if isinstance(b, Const) and math.frexp(b.value)[0] not in (0.5, -0.5):
        return Map("mul", (a, Map("recip", (b,))))
    return div(a, b)


def trunc_quotient(a: Expr, b: Expr) -> Expr:
    """a / b rounded towards 0."""
    return op("mul", op("mul", op("sign", a), op("sign", b)), op("floor", quotient(op("abs", a), op("abs", b))))


def rounded_to(x: Expr, decimals: int) -> Expr:
    """x rounded to decimals, half to even; negative ones count from the point to the left."""
    power_of_ten = Const(10.0 ** abs(decimals))
    if decimals < 0:
        return op("mul", op("round", quotient(x, power_of_ten)), power_of_ten)
    return quotient(op("round", op("mul", x, power_of_ten)), power_of_ten)


def truncated(x: Expr) -> Expr:
    """x rounded towards 0."""
    return op("mul", op("sign", x), op("floor", op("abs", x)))


def softplus(x: Expr, beta: float = 1.0, threshold: float = 20.0) -> Expr:
    """log(1 + exp(beta*x)) / beta, and x itself where beta*x is above the threshold."""
    scaled = op("mul", Const(beta), x)
    # log(1 + exp(z)) = max(z, 0) + log(1 + exp(-|z|)), which does not overflow
    soft = op("add", op("maximum", scaled, Const(0.0)), op("log", op("add", Const(1.0), _small(scaled))))
    soft = div(soft, Const(beta))
    return soft if threshold == math.inf else op("where", op("lt", Const(threshold), scaled), x, soft)


def _small(z: Expr) -> Expr:
    return op("exp", op("neg", op("abs", z)))


def log_sigmoid(x: Expr) -> Expr:
    """log(sigmoid(x)), without overflow."""
    return sub(op("minimum", x, Const(0.0)), op("log", op("add", Const(1.0), _small(x))))


def log_add_exp(a: Expr, b: Expr, *, may_be_infinite: Callable[[Expr], bool]) -> Expr:
    """log(exp(a) + exp(b)), as the log-sum-exp of a row of two; the larger where that is infinite, if it may be."""
    highest = op("maximum", a, b)
    total = op("add", op("exp", sub(a, highest)), op("exp", sub(b, highest)))
    return or_infinite(highest, total, may_be_infinite)


def or_infinite(highest: Expr, total: Expr, may_be_infinite: Callable[[Expr], bool]) -> Expr:
    """highest + log total, of exponentials below the highest; the highest itself where it is infinite, if it may be."""
    value = op("add", highest, op("log", total))
    if not may_be_infinite(highest):
        return value
    return op("where", op("eq", op("abs", highest), Const(math.inf)), highest, value)


def elu(x: Expr, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Expr:
    """scale * (x where x > 0, else alpha * (exp(input_scale*x) - 1))."""
    # exp is only wanted where its argument is not positive; the minimum keeps it from overflowing elsewhere
    low = op("exp", op("mul", Const(input_scale), op("minimum", x, Const(0.0))))
    low = op("mul", Const(alpha), op("add", low, Const(-1.0)))
    return op("mul", Const(scale), op("where", op("lt", Const(0.0), x), x, low))


def leaky_relu(x: Expr, negative_slope: Expr | float = 0.01) -> Expr:
    """x where x > 0, else negative_slope * x."""
    slope = Const(negative_slope) if isinstance(negative_slope, float) else negative_slope
    return op("where", op("lt", Const(0.0), x), x, op("mul", slope, x))


def hard_sigmoid(x: Expr) -> Expr:
    """min(max(x + 3, 0), 6) / 6."""
    shifted = op("minimum", op("maximum", op("add", x, Const(3.0)), Const(0.0)), Const(6.0))
    return op("mul", shifted, Const(1 / 6))


def cosh(x: Expr) -> Expr:
    """(exp(x) + exp(-x)) / 2."""
    return op("mul", Const(0.5), op("add", op("exp", x), op("exp", op("neg", x))))


def asinh(x: Expr) -> Expr:
    """The logarithm of |x| + sqrt(x * x + 1), which does not cancel, with the sign of x."""
    size = op("abs", x)
    root = op("sqrt", op("add", op("mul", x, x), Const(1.0)))
    return op("mul", op("sign", x), op("log", op("add", size, root)))


def acosh(x: Expr) -> Expr:
    """log(x + sqrt(x - 1) * sqrt(x + 1)): not defined below 1."""
    below, above = op("add", x, Const(-1.0)), op("add", x, Const(1.0))
    return op("log", op("add", x, op("mul", op("sqrt", below), op("sqrt", above))))


def negative(x: Expr) -> Expr:
    """Whether x has a minus: 1 / -0 is less than 0, and -0 is not."""
    return op("or", op("lt", x, Const(0.0)), op("lt", op("recip", x), Const(0.0)))


def atan2(y: Expr, x: Expr) -> Expr:
    """The angle of (x, y), atan of a quotient of at most 1, put in its octant."""
    tall, wide = op("abs", y), op("abs", x)
    same = op("where", op("eq", tall, Const(0.0)), Const(0.0), Const(1.0))
    below_one = div(op("minimum", tall, wide), op("maximum", tall, wide))
    angle = op("atan", op("where", op("eq", tall, wide), same, below_one))
    angle = op("where", op("lt", wide, tall), sub(Const(math.pi / 2), angle), angle)
    angle = op("where", negative(x), sub(Const(math.pi), angle), angle)
    return op("where", negative(y), op("neg", angle), angle)


def atanh(x: Expr) -> Expr:
    """Half of log(1 + x) - log(1 - x)."""
    above, below = op("add", Const(1.0), x), op("add", Const(1.0), op("neg", x))
    return op("mul", Const(0.5), op("add", op("log", above), op("neg", op("log", below))))


def asin(x: Expr) -> Expr:
    """2 atan(x / (1 + sqrt((1 - x) * (1 + x)))): not defined beyond 1."""
    above, below = op("add", Const(1.0), x), op("add", Const(1.0), op("neg", x))
    return op("mul", Const(2.0), op("atan", div(x, op("add", Const(1.0), op("sqrt", op("mul", below, above))))))


def acos(x: Expr) -> Expr:
    """2 atan(sqrt(1 - x) / sqrt(1 + x)), which does not cancel near 1: not defined beyond it."""
    above, below = op("add", Const(1.0), x), op("add", Const(1.0), op("neg", x))
    return op("mul", Const(2.0), op("atan", div(op("sqrt", below), op("sqrt", above))))


_SAME_NAME = tuple(name for name, o in OPS.items() if o.arity == 1 and not o.boolean and name != "recip")

UNARY: Mapping[str, Callable[[Expr], Expr]] = {
    **{name: partial(op, name) for name in _SAME_NAME},
    "isnan": partial(op, "isnan"),
    "rsqrt": lambda x: op("recip", op("sqrt", x)),
    "reciprocal": lambda x: op("recip", x),
    "relu": lambda x: op("maximum", x, Const(0.0)),
    "relu6": lambda x: op("minimum", op("maximum", x, Const(0.0)), Const(6.0)),
    "silu": lambda x: op("mul", x, sigmoid(x)),
    "mish": lambda x: op("mul", x, op("tanh", op("neg", log_sigmoid(op("neg", x))))),
    "square": lambda x: op("mul", x, x),
    "exp2": lambda x: op("exp", op("mul", x, Const(_LN2))),
    "log10": lambda x: op("mul", op("log", x), Const(1 / math.log(10.0))),
    "log1p": lambda x: op("log", op("add", Const(1.0), x)),
    "expm1": lambda x: op("add", op("exp", x), Const(-1.0)),
    "tan": lambda x: div(op("sin", x), op("cos", x)),
    "cosh": cosh,
    # exp(x) - exp(-x) would cancel around 0, where tanh is exact to its last places.
    "sinh": lambda x: op("mul", op("tanh", x), cosh(x)),
    "asin": asin,
    "acos": acos,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
    "erfc": lambda x: op("add", Const(1.0), op("neg", op("erf", x))),
    "ceil": lambda x: op("neg", op("floor", op("neg", x))),
    "trunc": truncated,
    "hardsigmoid": hard_sigmoid,
    "hardswish": lambda x: op("mul", x, hard_sigmoid(x)),
    "log_sigmoid": log_sigmoid,
    "isinf": lambda x: op("eq", op("abs", x), Const(math.inf)),
    "signbit": negative,
}
"""torch's functions of one argument, by their names in ATen."""
