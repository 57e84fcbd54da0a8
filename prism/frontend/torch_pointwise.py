"""ATen's pointwise operators, casts and constructors of constants, as formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from prism.frontend.torch_fold import div, op, sub, truth
from prism.frontend.torch_values import Handler, Node, Result, Value, is_truth, number
from prism.program import build
from prism.program.index import Index
from prism.program.nodes import Const, DType, Expr

_LN2 = math.log(2.0)


def sigmoid(x: Expr) -> Expr:
    """The logistic function, 1 / (1 + exp(-x))."""
    return op("sigmoid", x)


def gelu(x: Expr, approximate: str) -> Expr:
    """x times the normal distribution function, or its tanh approximation."""
    half = op("mul", Const(0.5), x)
    if approximate == "tanh":
        cube = op("mul", op("mul", x, x), x)
        inner = op("mul", Const(math.sqrt(2 / math.pi)), op("add", x, op("mul", Const(0.044715), cube)))
        return op("mul", half, op("add", Const(1.0), op("tanh", inner)))
    return op("mul", half, op("add", Const(1.0), op("erf", op("mul", x, Const(math.sqrt(0.5))))))


def power(x: Expr, y: Expr) -> Expr:
    """x ** y: small whole powers are products, halves are square roots."""
    match y:
        case Const(n) if n in (2.0, 3.0, 4.0):
            result = op("mul", x, x)
            return result if n == 2 else op("mul", result, x if n == 3 else result)
        case Const(1.0):
            return x
        case Const(0.0):
            return Const(1.0)
        case Const(0.5):
            return op("sqrt", x)
        case Const(n) if n in (-1.0, -2.0, -0.5):
            return op("recip", power(x, Const(-n)))
    return op("pow", x, y)


def _truncated(x: Expr) -> Expr:
    return op("mul", op("sign", x), op("floor", op("abs", x)))


def _softplus(n: Node, x: Expr) -> Expr:
    beta, threshold = Const(float(n.get("beta", 1))), Const(float(n.get("threshold", 20)))
    scaled = op("mul", beta, x)
    # log(1 + exp(z)) = max(z, 0) + log(1 + exp(-|z|)), which does not overflow
    soft = op("add", op("maximum", scaled, Const(0.0)), op("log", op("add", Const(1.0), _small(scaled))))
    return op("where", op("lt", threshold, scaled), x, div(soft, beta))


def _small(z: Expr) -> Expr:
    return op("exp", op("neg", op("abs", z)))


def _log_sigmoid(x: Expr) -> Expr:
    return sub(op("minimum", x, Const(0.0)), op("log", op("add", Const(1.0), _small(x))))


def _elu(n: Node, x: Expr) -> Expr:
    alpha, scale = Const(float(n.get("alpha", 1))), Const(float(n.get("scale", 1)))
    inner = Const(float(n.get("input_scale", 1)))
    # exp is only wanted where its argument is not positive; the minimum keeps it from overflowing elsewhere
    low = op("mul", alpha, op("add", op("exp", op("mul", inner, op("minimum", x, Const(0.0)))), Const(-1.0)))
    return op("mul", scale, op("where", op("lt", Const(0.0), x), x, low))


def _hard_sigmoid(x: Expr) -> Expr:
    shifted = op("minimum", op("maximum", op("add", x, Const(3.0)), Const(0.0)), Const(6.0))
    return op("mul", shifted, Const(1 / 6))


_SAME_NAME = ("neg", "exp", "log", "sqrt", "sin", "cos", "tanh", "erf", "sigmoid", "abs", "sign", "floor", "round")

_UNARY: Mapping[str, Callable[[Expr], Expr]] = {
    **{name: partial(op, name) for name in _SAME_NAME},
    "isnan": partial(op, "isnan"),
    "rsqrt": lambda x: op("recip", op("sqrt", x)),
    "reciprocal": lambda x: op("recip", x),
    "relu": lambda x: op("maximum", x, Const(0.0)),
    "relu6": lambda x: op("minimum", op("maximum", x, Const(0.0)), Const(6.0)),
    "silu": lambda x: op("mul", x, sigmoid(x)),
    "mish": lambda x: op("mul", x, op("tanh", op("neg", _log_sigmoid(op("neg", x))))),
    "square": lambda x: op("mul", x, x),
    "exp2": lambda x: op("exp", op("mul", x, Const(_LN2))),
    "log2": lambda x: op("mul", op("log", x), Const(1 / _LN2)),
    "log10": lambda x: op("mul", op("log", x), Const(1 / math.log(10.0))),
    "log1p": lambda x: op("log", op("add", Const(1.0), x)),
    "expm1": lambda x: op("add", op("exp", x), Const(-1.0)),
    "tan": lambda x: div(op("sin", x), op("cos", x)),
    "ceil": lambda x: op("neg", op("floor", op("neg", x))),
    "trunc": _truncated,
    "hardsigmoid": _hard_sigmoid,
    "hardswish": lambda x: op("mul", x, _hard_sigmoid(x)),
    "log_sigmoid": _log_sigmoid,
    "isinf": lambda x: op("eq", op("abs", x), Const(math.inf)),
}


def _unary(name: str) -> Handler:
    function = _UNARY[name]
    return lambda n: n.define(function(n["self"].under(n.axes)))


def _operand(n: Node, argument: str) -> Expr:
    return number(n[argument], n.axes)


def _truth(n: Node, argument: str) -> Expr:
    e = _operand(n, argument)
    return e if is_truth(n[argument]) else truth(e)


def _add(n: Node) -> Result:
    return n.define(op("add", _operand(n, "self"), op("mul", number(n.get("alpha", 1), n.axes), _operand(n, "other"))))


def _sub(n: Node) -> Result:
    return n.define(sub(_operand(n, "self"), op("mul", number(n.get("alpha", 1), n.axes), _operand(n, "other"))))


def _rsub(n: Node) -> Result:
    return n.define(sub(_operand(n, "other"), op("mul", number(n.get("alpha", 1), n.axes), _operand(n, "self"))))


def _div(n: Node) -> Result:
    quotient = div(_operand(n, "self"), _operand(n, "other"))
    mode = n.get("rounding_mode")
    if mode == "floor":
        quotient = op("floor", quotient)
    elif mode == "trunc":
        quotient = _truncated(quotient)
    return n.define(quotient)


def _floor_divide(n: Node) -> Result:
    return n.define(op("floor", div(_operand(n, "self"), _operand(n, "other"))))


def _remainder(n: Node) -> Result:
    a, b = _operand(n, "self"), _operand(n, "other")
    return n.define(sub(a, op("mul", b, op("floor", div(a, b)))))


def _binary(name: str) -> Handler:
    return lambda n: n.define(op(name, _operand(n, "self"), _operand(n, "other")))


def _pow(n: Node) -> Result:
    base, exponent = ("self", "exponent") if "exponent" in n.args else ("self", "other")
    return n.define(power(_operand(n, base), _operand(n, exponent)))


def _compare(name: str, *, swapped: bool = False, negated: bool = False) -> Handler:
    def handle(n: Node) -> Result:
        a, b = _operand(n, "self"), _operand(n, "other")
        result = op(name, b, a) if swapped else op(name, a, b)
        return n.define(op("not", result) if negated else result)

    return handle


def _shifted_right(n: Node) -> Result:
    """x >> s = floor(x / 2^s), of negative numbers too: the sign is shifted in."""
    if n.dtype.is_float or n.dtype is DType.BOOL:
        raise n.unsupported("it shifts numbers that are no integers")
    match n["other"]:
        case int(places) if 0 <= places < 8 * n.dtype.bytes:
            return n.define(op("floor", op("mul", _operand(n, "self"), Const(2.0**-places))))
        case Value(tensor=""):
            return n.define(op("floor", op("mul", _operand(n, "self"), op("pow", Const(0.5), _operand(n, "other")))))
    raise n.unsupported("by how much it shifts depends on data", "shift by a number, or by an arange")


def _low_bits(n: Node) -> Result:
    """x & (2^b - 1) = x modulo 2^b, of negative numbers too: they are stored as complements."""
    mask = n["other"]
    if not isinstance(mask, int) or mask < 0 or mask & (mask + 1) or n.dtype.is_float:
        raise n.unsupported("only on truth values, or with a mask of low bits, is it a formula", "use % and //")
    x, modulus = _operand(n, "self"), float(mask + 1)
    return n.define(sub(x, op("mul", Const(modulus), op("floor", op("mul", x, Const(1 / modulus))))))


def _logical(name: str) -> Handler:
    def handle(n: Node) -> Result:
        bits = n.operator.startswith(("aten.bitwise", "aten.__")) and n.dtype is not DType.BOOL
        if bits and name == "and":
            return _low_bits(n)
        if bits:
            raise n.unsupported("only on truth values is it a logical operation")
        if name == "not":
            return n.define(op("not", _truth(n, "self")))
        a, b = _truth(n, "self"), _truth(n, "other")
        if name == "xor":
            return n.define(op("not", op("eq", a, b)))
        return n.define(op(name, a, b))

    return handle


def _where(n: Node) -> Result:
    if "self" not in n.args:
        raise n.unsupported("where with one argument gives positions that depend on the data")
    return n.define(op("where", _truth(n, "condition"), _operand(n, "self"), _operand(n, "other")))


def _masked_fill(n: Node) -> Result:
    return n.define(op("where", _truth(n, "mask"), _operand(n, "value"), _operand(n, "self")))


def _clamp(n: Node) -> Result:
    x = _operand(n, "self")
    low, high = n.get("min"), n.get("max")
    if n.operator.startswith("aten.hardtanh"):
        low, high = n["min_val"], n["max_val"]
    if low is not None:
        x = op("maximum", x, number(low, n.axes))
    if high is not None:
        x = op("minimum", x, number(high, n.axes))
    return n.define(x)


def _leaky_relu(n: Node) -> Result:
    x = _operand(n, "self")
    return n.define(op("where", op("lt", Const(0.0), x), x, op("mul", Const(float(n["negative_slope"])), x)))


def _gelu(n: Node) -> Result:
    return n.define(gelu(_operand(n, "self"), n["approximate"]))


def _addcmul(n: Node) -> Result:
    product = op("mul", _operand(n, "tensor1"), _operand(n, "tensor2"))
    return n.define(op("add", _operand(n, "self"), op("mul", number(n["value"], n.axes), product)))


def _addcdiv(n: Node) -> Result:
    quotient = div(_operand(n, "tensor1"), _operand(n, "tensor2"))
    return n.define(op("add", _operand(n, "self"), op("mul", number(n["value"], n.axes), quotient)))


def _lerp(n: Node) -> Result:
    start, end = _operand(n, "self"), _operand(n, "end")
    return n.define(op("add", start, op("mul", _operand(n, "weight"), sub(end, start))))


# Casts


def _cast(n: Node) -> Result:
    x: Value = n["self"]
    if x.dtype is n.dtype:
        return x
    e = x.under(n.axes)
    if n.dtype is DType.BOOL:
        return n.define(truth(e))
    if x.dtype.is_float and not n.dtype.is_float:
        return n.define(_truncated(e))
    if x.dtype is DType.BOOL and not x.tensor:
        # a mask as numbers: keep it a choice between numbers, which folds when it is compared again
        return n.define(op("where", e, Const(1.0), Const(0.0)))
    return n.define(e)


def _same(n: Node) -> Result:
    value: Value = n["self"]
    return value


def _dropout(n: Node) -> Result:
    if n["train"] and n["p"] != 0:
        raise n.unsupported("it is random", "call .eval() on the module before tracing it")
    value: Value = n["input"]
    return value


# Constants


def _filled(value: float) -> Handler:
    return lambda n: n.define(Const(value))


def _full(n: Node) -> Result:
    value = n["fill_value"] if "fill_value" in n.args else n["s"]
    if isinstance(value, Value):
        return n.define(value.under(n.axes))
    return n.define(number(value, n.axes))


def _arange(n: Node) -> Result:
    start, step = n.get("start", 0), n.get("step", 1)
    (axis,) = n.axes
    whole = not isinstance(start, float) and not isinstance(step, float)
    if whole:
        return n.define(build.position(Index.axis(axis).scaled(step) + Index.const(start)))
    position = build.position(axis)
    return n.define(op("add", number(start, n.axes), op("mul", number(step, n.axes), position)))


def _eye(n: Node) -> Result:
    row, column = n.axes
    same = op("eq", build.position(column), build.position(row))
    return n.define(op("where", same, Const(1.0), Const(0.0)))


def _triangle(lower: bool) -> Handler:
    def handle(n: Node) -> Result:
        axes = n.axes
        row, column = build.position(axes[-2]), build.position(axes[-1])
        limit = op("add", row, Const(float(n["diagonal"])))
        kept = op("le", column, limit) if lower else op("le", limit, column)
        return n.define(op("where", kept, n["self"].under(axes), Const(0.0)))

    return handle


HANDLERS: Mapping[str, Handler] = {
    **{name: _unary(name) for name in _UNARY},
    "log_sigmoid_forward": lambda n: (n.define(_log_sigmoid(n["self"].under(n.axes))), None),
    "softplus": lambda n: n.define(_softplus(n, n["self"].under(n.axes))),
    "elu": lambda n: n.define(_elu(n, n["self"].under(n.axes))),
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "mul": _binary("mul"),
    "div": _div,
    "true_divide": _div,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "maximum": _binary("maximum"),
    "minimum": _binary("minimum"),
    "pow": _pow,
    "eq": _compare("eq"),
    "ne": _compare("eq", negated=True),
    "lt": _compare("lt"),
    "le": _compare("le"),
    "gt": _compare("lt", swapped=True),
    "ge": _compare("le", swapped=True),
    "logical_and": _logical("and"),
    "logical_or": _logical("or"),
    "logical_xor": _logical("xor"),
    "logical_not": _logical("not"),
    "bitwise_and": _logical("and"),
    "__and__": _logical("and"),
    "bitwise_right_shift": _shifted_right,
    "__rshift__": _shifted_right,
    "bitwise_or": _logical("or"),
    "bitwise_xor": _logical("xor"),
    "bitwise_not": _logical("not"),
    "where": _where,
    "masked_fill": _masked_fill,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "hardtanh": _clamp,
    "leaky_relu": _leaky_relu,
    "gelu": _gelu,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "lerp": _lerp,
    "_to_copy": _cast,
    "to": _cast,
    "type_as": _cast,
    "clone": _same,
    "contiguous": _same,
    "alias": _same,
    "detach": _same,
    "lift_fresh_copy": _same,
    "lift_fresh": _same,
    "dropout": _dropout,
    "full": _full,
    "full_like": _full,
    "new_full": _full,
    "scalar_tensor": _full,
    "ones": _filled(1.0),
    "ones_like": _filled(1.0),
    "new_ones": _filled(1.0),
    "zeros": _filled(0.0),
    "zeros_like": _filled(0.0),
    "new_zeros": _filled(0.0),
    "arange": _arange,
    "eye": _eye,
    "tril": _triangle(lower=True),
    "triu": _triangle(lower=False),
}
