"""ATen's pointwise operators, casts and constructors of constants, as formulas."""

from __future__ import annotations

from collections.abc import Mapping

from prism.frontend.torch_values import Handler, Node, Result, Value, is_truth, number
from prism.program import build
from prism.program.fold import div, op, sub, truth
from prism.program.formulas import UNARY, elu, gelu, leaky_relu, log_sigmoid, power, softplus, truncated
from prism.program.index import Index
from prism.program.nodes import Const, DType, Expr


def _unary(name: str) -> Handler:
    function = UNARY[name]
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
        quotient = truncated(quotient)
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


def _xlogy(n: Node) -> Result:
    """x * log y, 0 where x is; NaN where y is, of which y itself is one."""
    x, y = _operand(n, "self"), _operand(n, "other")
    product = op("where", op("eq", x, Const(0.0)), Const(0.0), op("mul", x, op("log", y)))
    return n.define(op("where", op("isnan", y), y, product))


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
    return n.define(leaky_relu(_operand(n, "self"), float(n["negative_slope"])))


def _softplus(n: Node) -> Result:
    x = n["self"].under(n.axes)
    return n.define(softplus(x, float(n.get("beta", 1)), float(n.get("threshold", 20))))


def _elu(n: Node) -> Result:
    x = n["self"].under(n.axes)
    return n.define(elu(x, float(n.get("alpha", 1)), float(n.get("scale", 1)), float(n.get("input_scale", 1))))


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
        return n.define(truncated(e))
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
    **{name: _unary(name) for name in UNARY},
    "log_sigmoid_forward": lambda n: (n.define(log_sigmoid(n["self"].under(n.axes))), None),
    "softplus": _softplus,
    "elu": _elu,
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
    "xlogy": _xlogy,
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
