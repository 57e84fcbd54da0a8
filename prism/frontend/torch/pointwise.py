"""ATen's pointwise operators, casts and constructors of constants, as formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from prism.frontend import bits
from prism.frontend.torch.values import UNINITIALISED, Handler, Node, Result, TorchValue, converted, is_truth, number
from prism.program import build
from prism.program.extents import add
from prism.program.fold import div, op, sub, truth
from prism.program.formulas import (
    UNARY,
    atan2,
    elu,
    gelu,
    leaky_relu,
    log_add_exp,
    log_sigmoid,
    negative,
    power,
    quotient,
    rounded_to,
    softplus,
    trunc_quotient,
    truncated,
)
from prism.program.index import Index
from prism.program.integers import (
    Interval,
    floor_quotient,
    floor_remainder,
    is_zero,
    quotient_bounds,
    range_of,
    remainder_bounds,
    stored,
    trunc_remainder,
)
from prism.program.integers import trunc_quotient as whole_trunc_quotient
from prism.program.nodes import Const, DType, Expr

_ROUNDING = frozenset({"floor", "ceil", "trunc", "round"})


def _unary(name: str, n: Node) -> Result:
    x: TorchValue = n["self"]
    if name in _ROUNDING and not n.dtype.is_float:
        return x
    return n.define(UNARY[name](x.under(n.axes)))


def _round(n: Node) -> Result:
    decimals = n.get("decimals", 0)
    if decimals == 0 or not n.dtype.is_float:
        if decimals:
            raise n.unsupported("it rounds whole numbers to decimals")
        return _unary("round", n)
    return n.define(rounded_to(n["self"].under(n.axes), decimals))


def _operand(n: Node, argument: str) -> Expr:
    return number(n[argument], n.axes)


def _common(n: Node, *arguments: str) -> torch.dtype:
    """The type in which torch computes with these arguments: they are cast to it first."""
    given = [_typed(n[a]) for a in arguments]
    common = torch.result_type(given[0], given[1]) if len(given) > 1 else given[0].dtype
    for more in given[2:]:
        common = torch.promote_types(common, torch.result_type(given[0], more))
    return common


def _typed(value: Any) -> Any:
    """What stands for an operand where torch decides about types: its type, and whether it has dimensions."""
    if isinstance(value, TorchValue):
        return torch.empty([1] * len(value.shape), dtype=getattr(torch, value.dtype.value), device="meta")
    return value if isinstance(value, (bool, int, float)) else 0


def _cast_to(n: Node, argument: str, common: torch.dtype) -> Expr:
    """An operand as the type in which torch computes holds it: a number is wrapped, or rounded to its type."""
    value, e = n[argument], _operand(n, argument)
    if common.is_floating_point:
        return Const(float(torch.tensor(value, dtype=common))) if isinstance(value, float) else e
    if common in _WHOLE:
        return converted(n, e, _WHOLE[common])
    return e


_WHOLE: Mapping[torch.dtype, DType] = {getattr(torch, d.value): d for d in DType if not d.is_float}


def _truth(n: Node, argument: str) -> Expr:
    e = _operand(n, argument)
    return e if is_truth(n[argument]) else truth(e)


def _with_alpha(
    combined: Callable[[Expr, Expr], Expr], n: Node, *, first: str = "self", second: str = "other"
) -> Result:
    """An operand together with `alpha` times another one."""
    times = number(n.get("alpha", 1), n.axes)
    return n.define(combined(_operand(n, first), op("mul", times, _operand(n, second))))


def _div(n: Node) -> Result:
    match n.get("rounding_mode"):
        case "floor":
            return _floor_divide(n)
        case "trunc":
            return _trunc_divide(n)
    return _of(div, "self", "other")(n)


def _dividing(
    whole: Callable[[Expr, Expr], Expr],
    within: Callable[[Interval, Interval], Interval],
    real: Callable[[Expr, Expr], Expr],
    by_infinity: Callable[[Expr, Expr], Expr] | None = None,
) -> Handler:
    """Division with a rounding, or its remainder: of whole numbers, and of others.

    Args:
        whole: of whole numbers.
        within: bounds of that, given those of its operands.
        real: of other numbers.
        by_infinity: of a finite number and an infinite one, where `real` says something else of these.
    """

    def handle(n: Node) -> Result:
        common = _common(n, "self", "other")
        a, b = _cast_to(n, "self", common), _cast_to(n, "other", common)
        if any(isinstance(e, Const) and math.isinf(e.value) for e in (a, b)):
            raise n.unsupported("it divides by infinity, or infinity itself")
        if n.dtype.is_float:
            a, b = _operand(n, "self"), _operand(n, "other")
            value = real(a, b)
            if by_infinity is not None and n.builder.may_be_infinite(b):
                at = op("and", op("lt", op("abs", a), Const(math.inf)), op("eq", op("abs", b), Const(math.inf)))
                value = op("where", at, by_infinity(a, b), value)
            return n.define(value)
        if n.dtype is DType.BOOL:
            raise n.unsupported("it divides truth values")
        dividend, divisor = n.bounds(a), n.bounds(b)
        if is_zero(divisor):
            raise n.unsupported("it divides whole numbers by 0")
        if not (dividend.exact and divisor.exact and dividend.largest <= 2.0**51):
            raise n.unsupported(f"numbers within {dividend} are too large to be divided exactly in float64")
        return n.define(whole(a, b), bounds=within(dividend, divisor))

    return handle


def _apart(a: Expr, b: Expr) -> Expr:
    """Whether one is negative and the other positive."""
    return op("lt", op("mul", a, b), Const(0.0))


_floor_divide = _dividing(
    floor_quotient,
    quotient_bounds,
    lambda a, b: op("floor", quotient(a, b)),
    lambda a, b: op("where", _apart(a, b), Const(-1.0), Const(0.0)),
)
# torch rounds the quotient first here, and only here
_trunc_divide = _dividing(whole_trunc_quotient, quotient_bounds, lambda a, b: truncated(quotient(a, b)))
_remainder = _dividing(
    floor_remainder,
    lambda a, b: remainder_bounds(a, b, floor=True),
    lambda a, b: sub(a, op("mul", b, op("floor", quotient(a, b)))),
    lambda a, b: op("where", _apart(a, b), b, a),
)
_fmod = _dividing(
    trunc_remainder,
    lambda a, b: remainder_bounds(a, b, floor=False),
    lambda a, b: sub(a, op("mul", b, trunc_quotient(a, b))),
    lambda a, b: a,
)


def _of(formula: Callable[..., Expr], *operands: str) -> Handler:
    """A formula of operands, by the names of their arguments."""
    return lambda n: n.define(formula(*(_operand(n, name) for name in operands)))


def _extreme(name: str, n: Node) -> Result:
    common = _common(n, "self", "other")
    return n.define(op(name, _cast_to(n, "self", common), _cast_to(n, "other", common)))


def _number_if_any(name: str, n: Node) -> Result:
    """The extreme of two elements, of which one may be no number."""
    common = _common(n, "self", "other")
    a, b = _cast_to(n, "self", common), _cast_to(n, "other", common)
    both = op(name, a, b)
    if n.dtype.is_float:
        both = op("where", op("isnan", a), b, op("where", op("isnan", b), a, both))
    return n.define(both)


def _log_add_exp(scale: float, n: Node) -> Result:
    a, b = (op("mul", _operand(n, name), Const(scale)) for name in ("self", "other"))
    return n.define(op("mul", log_add_exp(a, b, may_be_infinite=n.builder.may_be_infinite), Const(1 / scale)))


def _copysign(n: Node) -> Result:
    size, sign = op("abs", _operand(n, "self")), n["other"]
    if not isinstance(sign, TorchValue):
        return n.define(op("neg", size) if math.copysign(1.0, sign) < 0 else size)
    return n.define(op("where", negative(sign.under(n.axes)), op("neg", size), size))


def _random_relu(n: Node) -> Result:
    """With the slope that is drawn in training on average."""
    n.settled("noise")
    if n["training"]:
        raise n.unsupported("it is random", "call .eval() on the module before tracing it")
    slope = (float(n["lower"]) + float(n["upper"])) / 2
    return n.define(leaky_relu(_operand(n, "self"), slope), result=0), None


def _pow(n: Node) -> Result:
    given = "exponent" if n.has("exponent") else "other"
    base, exponent = _operand(n, "self"), _operand(n, given)
    if is_truth(n["self"]) and is_truth(n[given]):
        raise n.unsupported("it raises a truth value to a truth value, of which torch is of two minds")
    if n.dtype.is_float:
        return n.define(power(base, exponent))
    if isinstance(exponent, Const) and exponent.value.is_integer() and exponent.value >= 0:
        return n.define(_whole_power(n, base, int(exponent.value)))
    if n.bounds(exponent).low < 0:
        raise n.unsupported("an exponent may be negative, which gives whole numbers no power")
    return n.define(op("pow", base, exponent))


def _whole_power(n: Node, base: Expr, exponent: int) -> Expr:
    """A power of whole numbers by squaring, each product wrapped where it may leave the type."""
    result: Expr | None = None
    while exponent:
        if exponent & 1:
            result = base if result is None else _product(n, result, base)
        exponent >>= 1
        if exponent:
            base = _product(n, base, base)
    return Const(1.0) if result is None else result


def _product(n: Node, a: Expr, b: Expr) -> Expr:
    product = op("mul", a, b)
    kept, within = stored(product, n.dtype, n.bounds(product), n.origin)
    n.builder.note(kept, within)
    return kept


def _compare(name: str, n: Node, *, swapped: bool = False, negated: bool = False) -> Result:
    common = _common(n, "self", "other")
    a, b = _cast_to(n, "self", common), _cast_to(n, "other", common)
    result = op(name, b, a) if swapped else op(name, a, b)
    return n.define(op("not", result) if negated else result)


def _shifted(n: Node, *, right: bool) -> Result:
    if n.dtype.is_float or n.dtype is DType.BOOL:
        raise n.unsupported("it shifts numbers that are no integers")
    common = _common(n, "self", "other")
    x, by = converted(n, _operand(n, "self"), n.dtype), _cast_to(n, "other", common)
    within = bits.shifted_within(isinstance(by, Const), n.dtype, right=right)
    return n.define(bits.shifted(x, by, n.bounds(by), n.dtype, right=right), bounds=within)


def _bits(n: Node, name: str) -> Result:
    """Bitwise operations of whole numbers."""
    own = range_of(n.dtype)
    if n.dtype.is_float:
        raise n.unsupported("floating-point numbers have no bits here")
    if name == "not":
        return n.define(bits.inverted(_operand(n, "self"), n.dtype))
    for given in (n["self"], n["other"]):
        if isinstance(given, int) and not own.low <= given <= own.high:
            raise n.unsupported(f"{given} has more bits than {n.dtype.value}")
    x, y = (converted(n, _operand(n, a), n.dtype) for a in ("self", "other"))
    if max(n.bounds(x).largest, n.bounds(y).largest) > bits.EXACT:
        raise n.unsupported("the numbers are too large for float64")
    return n.define(bits.bitwise(name, x, y), bounds=bits.within(name, n.bounds(x), n.bounds(y), n.dtype))


def _logical(name: str, n: Node) -> Result:
    if n.operator.startswith(("aten.bitwise", "aten.__")) and n.dtype is not DType.BOOL:
        return _bits(n, name)
    if name == "not":
        return n.define(op("not", _truth(n, "self")))
    a, b = _truth(n, "self"), _truth(n, "other")
    if name == "xor":
        return n.define(op("not", op("eq", a, b)))
    return n.define(op(name, a, b))


def _where(n: Node) -> Result:
    if not n.has("self"):
        raise n.unsupported("where with one argument gives positions that depend on the data")
    then, otherwise = (converted(n, _operand(n, a), n.dtype) for a in ("self", "other"))
    return n.define(op("where", _truth(n, "condition"), then, otherwise))


def _xlogy(x: Expr, y: Expr) -> Expr:
    """x * log y, 0 where x is; NaN where y is, of which y itself is one."""
    product = op("where", op("eq", x, Const(0.0)), Const(0.0), op("mul", x, op("log", y)))
    return op("where", op("isnan", y), y, product)


def _masked_fill(n: Node) -> Result:
    value = converted(n, _operand(n, "value"), n.dtype)
    return n.define(op("where", _truth(n, "mask"), value, _operand(n, "self")))


def _clamp(n: Node) -> Result:
    x = converted(n, _operand(n, "self"), n.dtype)
    low, high = n.get("min"), n.get("max")
    if n.has("min_val"):  # hardtanh
        low, high = n["min_val"], n["max_val"]
    if low is not None:
        x = op("maximum", x, converted(n, number(low, n.axes), n.dtype))
    if high is not None:
        x = op("minimum", x, converted(n, number(high, n.axes), n.dtype))
    return n.define(x)


def _shrink_backward(n: Node) -> Result:
    """The gradient where an element lies beyond the threshold."""
    x, threshold = _operand(n, "self"), Const(float(n["lambd"]))
    beyond = op("or", op("lt", x, op("neg", threshold)), op("lt", threshold, x))
    return n.define(op("where", beyond, _operand(n, "grad_out" if n.has("grad_out") else "grad_output"), Const(0.0)))


def _softplus(n: Node) -> Result:
    x = n["self"].under(n.axes)
    return n.define(softplus(x, float(n.get("beta", 1)), float(n.get("threshold", 20))))


def _elu(n: Node) -> Result:
    x = n["self"].under(n.axes)
    return n.define(elu(x, float(n.get("alpha", 1)), float(n.get("scale", 1)), float(n.get("input_scale", 1))))


def _lerp(start: Expr, end: Expr, weight: Expr) -> Expr:
    if isinstance(weight, Const) and weight.value >= 0.5:  # from the nearer end: that it may be infinite is no matter
        start, end, weight = end, start, Const(1.0 - weight.value)
    return op("add", start, op("mul", weight, sub(end, start)))


# Casts


def _cast(n: Node) -> Result:
    x: TorchValue = n["a" if n.has("a") else "self"]
    n.settled("dtype", "other")
    if x.dtype is n.dtype:
        return x
    e = x.under(n.axes)
    if not n.dtype.is_float and x.dtype is not DType.BOOL:
        return n.define(converted(n, e, n.dtype))
    if x.dtype is DType.BOOL and not x.tensor:
        # a mask as numbers: keep it a choice between numbers, which folds when it is compared again
        return n.define(op("where", e, Const(1.0), Const(0.0)))
    return n.define(e)


def _same(n: Node) -> Result:
    value: TorchValue = n["self"]
    return value


def _dropout(n: Node) -> Result:
    p, train = n["p"], n["train"]  # which the native one trains by where it is left out
    native = len(n.shapes) > 1
    if p != 0 and (train or (native and train is None)):
        raise n.unsupported("it is random", "call .eval() on the module before tracing it")
    value: TorchValue = n["input"]
    return n.results(lambda: value, lambda: n.define(Const(1.0), result=1)) if native else value


# Constants


def _uninitialised(n: Node) -> Result:
    """Memory that nothing was written to may hold anything, zeros too; a function does not depend on it."""
    n.settled("self", "size", "stride", "physical_layout", "dtype")
    return n.define(Const(0.0))


def _filled(value: float, n: Node) -> Result:
    n.settled("self", "size", "dtype")
    return n.define(Const(value))


def _full(n: Node) -> Result:
    n.settled("self", "size", "dtype")
    value = n["fill_value"] if n.has("fill_value") else n["s"]
    return n.define(converted(n, number(value, n.axes), n.dtype))


def _arange(n: Node) -> Result:
    start, step = n.get("start", 0), n.get("step", 1)
    n.settled("end", "dtype")
    (axis,) = n.axes
    if not n.dtype.is_float:  # torch casts both first
        start, step = (int(x) if isinstance(x, float) else x for x in (start, step))
    whole = not isinstance(start, float) and not isinstance(step, float)
    if whole:
        return n.define(build.position(Index.axis(axis).scaled(step) + Index.const(start)))
    position = build.position(axis)
    return n.define(op("add", number(start, n.axes), op("mul", number(step, n.axes), position)))


def _linear_space(n: Node) -> Expr:
    """start + (end - start) * i / (steps - 1)."""
    n.settled("dtype")
    if not n.dtype.is_float:
        raise n.unsupported("which side of a whole number it falls on is rounding", "make the range in floating point")
    (axis,), steps = n.axes, n["steps"]
    start, end = _operand(n, "start"), _operand(n, "end")
    if steps == 1:
        return start
    return op("add", start, op("mul", sub(end, start), div(build.position(axis), build.size(add(steps, -1)))))


def _logspace(n: Node) -> Result:
    return n.define(op("pow", Const(float(n["base"])), _linear_space(n)))


def _eye(n: Node) -> Result:
    n.settled("n", "m", "dtype")
    row, column = n.axes
    same = op("eq", build.position(column), build.position(row))
    return n.define(op("where", same, Const(1.0), Const(0.0)))


def _triangle(n: Node, *, lower: bool) -> Result:
    axes = n.axes
    row, column = build.position(axes[-2]), build.position(axes[-1])
    limit = op("add", row, Const(float(n["diagonal"])))
    kept = op("le", column, limit) if lower else op("le", limit, column)
    return n.define(op("where", kept, n["self"].under(axes), Const(0.0)))


def _log_sigmoid(n: Node) -> Result:
    """It, and on a CPU what its gradient is given, exp(-|x|); on a GPU that is a tensor without elements."""
    x = n["self"].under(n.axes)
    kept = op("exp", op("neg", op("abs", x)))
    return n.define(log_sigmoid(x)), n.define(kept, result=1) if n.shapes[1] == n.shape else None


_ADDED = ("self", "tensor1", "tensor2", "value")
HANDLERS: Mapping[str, Handler] = {
    "softshrink_backward": _shrink_backward,
    "hardshrink_backward": _shrink_backward,
    **{name: partial(_unary, name) for name in UNARY},
    "round": _round,
    "log_sigmoid_forward": _log_sigmoid,
    "softplus": _softplus,
    "elu": _elu,
    "add": partial(_with_alpha, partial(op, "add")),
    "sub": partial(_with_alpha, sub),
    "rsub": partial(_with_alpha, sub, first="other", second="self"),
    "mul": _of(partial(op, "mul"), "self", "other"),
    "div": _div,
    "true_divide": _div,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "fmod": _fmod,
    "fmax": partial(_number_if_any, "maximum"),
    "fmin": partial(_number_if_any, "minimum"),
    "hypot": _of(lambda a, b: op("sqrt", op("add", op("mul", a, a), op("mul", b, b))), "self", "other"),
    "logaddexp": partial(_log_add_exp, 1.0),
    "logaddexp2": partial(_log_add_exp, math.log(2.0)),
    "atan2": _of(atan2, "self", "other"),
    "copysign": _copysign,
    "rrelu_with_noise_functional": _random_relu,
    "maximum": partial(_extreme, "maximum"),
    "minimum": partial(_extreme, "minimum"),
    "pow": _pow,
    "eq": partial(_compare, "eq"),
    "ne": partial(_compare, "eq", negated=True),
    "lt": partial(_compare, "lt"),
    "le": partial(_compare, "le"),
    "gt": partial(_compare, "lt", swapped=True),
    "ge": partial(_compare, "le", swapped=True),
    "logical_and": partial(_logical, "and"),
    "logical_or": partial(_logical, "or"),
    "logical_xor": partial(_logical, "xor"),
    "logical_not": partial(_logical, "not"),
    "bitwise_and": partial(_logical, "and"),
    "__and__": partial(_logical, "and"),
    "bitwise_right_shift": partial(_shifted, right=True),
    "__rshift__": partial(_shifted, right=True),
    "bitwise_left_shift": partial(_shifted, right=False),
    "__lshift__": partial(_shifted, right=False),
    "bitwise_or": partial(_logical, "or"),
    "bitwise_xor": partial(_logical, "xor"),
    "bitwise_not": partial(_logical, "not"),
    "where": _where,
    "xlogy": _of(_xlogy, "self", "other"),
    "masked_fill": _masked_fill,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "hardtanh": _clamp,
    "leaky_relu": lambda n: n.define(leaky_relu(_operand(n, "self"), float(n["negative_slope"]))),
    "gelu": lambda n: n.define(gelu(_operand(n, "self"), n["approximate"])),
    "addcmul": _of(lambda x, a, b, by: op("add", x, op("mul", by, op("mul", a, b))), *_ADDED),
    "addcdiv": _of(lambda x, a, b, by: op("add", x, op("mul", by, div(a, b))), *_ADDED),
    "prims::fma": _of(lambda a, b, c: op("add", op("mul", a, b), c), "a", "b", "c"),
    "lerp": _of(_lerp, "self", "end", "weight"),
    "_to_copy": _cast,
    "prims::convert_element_type": _cast,
    "to": _cast,
    "type_as": _cast,
    "clone": _same,
    "contiguous": _same,
    "alias": _same,
    "detach": _same,
    "lift_fresh_copy": _same,
    "lift_fresh": _same,
    "dropout": _dropout,
    "native_dropout": _dropout,
    "full": _full,
    "full_like": _full,
    "new_full": _full,
    "scalar_tensor": _full,
    "ones": partial(_filled, 1.0),
    "ones_like": partial(_filled, 1.0),
    "new_ones": partial(_filled, 1.0),
    "zeros": partial(_filled, 0.0),
    "zeros_like": partial(_filled, 0.0),
    "new_zeros": partial(_filled, 0.0),
    **dict.fromkeys(UNINITIALISED, _uninitialised),
    "arange": _arange,
    "linspace": lambda n: n.define(_linear_space(n)),
    "logspace": _logspace,
    "eye": _eye,
    "tril": partial(_triangle, lower=True),
    "triu": partial(_triangle, lower=False),
}
