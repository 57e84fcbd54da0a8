"""Pointwise ONNX operators: arithmetic, comparisons, casts, activations, selection.

An activation is written out in its parts (silu is `x * sigmoid(x)`), so that rules about the parts see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np

from prism.frontend import bits
from prism.frontend.onnx.dtypes import constant, dtype_of
from prism.frontend.onnx.graph import (
    MAX_ELEMENTS,
    Graph,
    Node,
    OnnxValue,
    known_elements,
    static_shape,
    whole_range,
)
from prism.program import build, integers
from prism.program.arrays import numpy_type
from prism.program.build import balanced_fold
from prism.program.fold import as_index, div, op, sub, truth
from prism.program.formulas import UNARY, elu, gelu, leaky_relu, power, quotient, softplus, trunc_quotient
from prism.program.index import Index
from prism.program.integers import Interval
from prism.program.nodes import Const, DType, Expr, Read, walk
from prism.program.operators import Operator
from prism.program.views import axes_of, broadcast_shapes, same_extent

Translator = Callable[[Graph, Node], OnnxValue]


def unary(f: Callable[[Expr], Expr], dtype: DType | None = None) -> Translator:
    """A translator of one operand."""
    return lambda graph, node: graph.pointwise(node, [node.input(0)], f, dtype)


def _by_attributes(f: Callable[[Expr, Node], Expr]) -> Translator:
    """A translator of one operand, by what the node says besides."""
    return lambda graph, node: unary(lambda x: f(x, node))(graph, node)


def binary(f: Callable[[Expr, Expr], Expr], dtype: DType | None = None) -> Translator:
    """A translator of two operands, broadcast together."""
    return lambda graph, node: graph.pointwise(node, [node.input(0), node.input(1)], f, dtype)


def named(name: str, dtype: DType | None = None) -> Translator:
    """A translator of an operator that `Map` has."""

    def translate(graph: Graph, node: Node) -> OnnxValue:
        return graph.pointwise(node, _all(node), lambda *args: op(name, *args), dtype)

    return translate


def declared(graph: Graph, node: Node, operator: Operator) -> OnnxValue:
    """A call of an operator that the user declares: its definition at the operands, broadcast together."""
    if len(node.inputs) != len(operator.parameters) or node.attributes:
        takes = ", ".join(operator.parameters)
        raise node.unsupported(f"{operator.name} takes {takes} and no attributes; it is declared at {operator.where}")
    return graph.pointwise(node, _all(node), lambda *args: operator.of(args))


def _n_ary(name: str) -> Translator:
    def f(*args: Expr) -> Expr:
        return balanced_fold(lambda a, b: op(name, a, b), args)

    return lambda graph, node: graph.pointwise(node, _all(node), f)


def _all(node: Node) -> list[OnnxValue]:
    return [node.input(place) for place in range(len(node.inputs))]


def _mean(graph: Graph, node: Node) -> OnnxValue:
    values = _all(node)

    def f(*args: Expr) -> Expr:
        total = balanced_fold(lambda a, b: op("add", a, b), args)
        return op("mul", total, Const(1.0 / len(args)))

    return graph.pointwise(node, values, f)


def _divide(graph: Graph, node: Node) -> OnnxValue:
    a, b = node.input(0), node.input(1)
    if a.dtype.is_float:
        # Of what hangs on no argument a quotient is kept as one, for what may be decided by it.
        return graph.pointwise(node, [a, b], lambda x, y: quotient(x, y) if graph.is_closed(x) else div(x, y))
    return _whole_division(graph, node, integers.quotient_bounds, Index.floordiv, integers.trunc_quotient)


def _remainder(graph: Graph, node: Node) -> OnnxValue:
    truncated = node.flag("fmod")
    if node.input(0).dtype.is_float:
        if not truncated:
            raise node.unsupported(
                "the remainder of fractions with the sign of the divisor has no translation",
                why="by infinity it is the dividend or the divisor, where the formula is not a number",
                fix="export it with fmod=1",
            )
        divisor = node.input(1)
        if graph.may_be_infinite(graph.read(divisor, axes_of(divisor.shape))):
            raise node.unsupported(
                "the remainder by what may be infinite has no translation",
                why="it is the dividend there, where the formula is not a number",
                fix="clip the divisor",
            )
        return binary(lambda a, b: sub(a, op("mul", b, trunc_quotient(a, b))))(graph, node)
    bounds = partial(integers.remainder_bounds, floor=not truncated)
    formula = integers.trunc_remainder if truncated else integers.floor_remainder
    return _whole_division(graph, node, bounds, Index.mod, formula)


def _whole_division(
    graph: Graph,
    node: Node,
    bounds: Callable[[Interval, Interval], Interval],
    of_index: Callable[[Index, int], Index],
    formula: Callable[[Expr, Expr], Expr],
) -> OnnxValue:
    """A quotient or a remainder of integers: of indices that are not negative an index again, else its formula."""
    a, b = node.input(0), node.input(1)
    over, by = graph.bounds(a), graph.bounds(b)
    if integers.is_zero(by):
        raise node.unsupported("integers are divided by 0", fix="export the model again")

    def f(x: Expr, y: Expr) -> Expr:
        index = as_index(x)
        if isinstance(y, Const) and y.value > 0 and index is not None and over.low >= 0:
            return build.position(of_index(index, int(y.value)))
        return formula(x, y)

    return graph.pointwise(node, [a, b], f, bounds=bounds(over, by))


def _bitwise(name: str, graph: Graph, node: Node) -> OnnxValue:
    x, y = node.input(0), node.input(1)
    over, beside = graph.bounds(x), graph.bounds(y)
    if max(over.largest, beside.largest) > bits.EXACT:
        raise node.unsupported("the bits of numbers that float64 does not hold have no translation")
    found = bits.within(name, over, beside, x.dtype)
    return graph.pointwise(node, [x, y], lambda a, b: bits.bitwise(name, a, b), bounds=found)


def _shifted(graph: Graph, node: Node) -> OnnxValue:
    x, by = node.input(0), node.input(1)
    direction = node.attributes["direction"]
    if direction not in ("LEFT", "RIGHT"):
        raise node.unsupported(f"the direction {direction!r} is neither LEFT nor RIGHT")
    over, right = graph.bounds(by), direction == "RIGHT"
    within = bits.shifted_within(isinstance(by.formula, Const), x.dtype, right=right)
    return graph.pointwise(node, [x, by], lambda a, b: bits.shifted(a, b, over, x.dtype, right=right), bounds=within)


def _power(graph: Graph, node: Node) -> OnnxValue:
    base, exponent = node.input(0), node.input(1)
    if not base.dtype.is_float:
        range_ = graph.bounds(exponent)
        if not range_.whole or range_.low < 0:
            raise node.unsupported(
                "an integer to a power that may be negative or a fraction has no translation",
                why="how it is rounded is not part of the formula",
                fix="cast the base to a floating-point type",
            )
    return graph.pointwise(node, [base, exponent], power)


def _clip(graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    limits: list[tuple[str, OnnxValue]] = []
    for place, (attribute, name) in enumerate((("min", "maximum"), ("max", "minimum")), 1):
        limit = node.optional(place)
        if node.version < 11 and abs(node.number(attribute)) < _LARGEST:
            limit = constant(np.array(node.number(attribute)), x.dtype, node.label)
        if limit is not None and not _says_nothing(limit, x.dtype, name):
            limits.append((name, limit))

    def f(value: Expr, *operands: Expr) -> Expr:
        for (name, _), operand in zip(limits, operands, strict=True):
            value = op(name, value, operand)
        return value

    return graph.pointwise(node, [x, *(v for _, v in limits)], f)


_LARGEST = float(np.finfo(np.float32).max)
"""What the limits of Clip were before version 11 where none was meant."""


def _says_nothing(limit: OnnxValue, dtype: DType, name: str) -> bool:
    """Whether a lower limit (`maximum`) of integers is the least of their type, or an upper one the greatest."""
    known = None if dtype.is_float else known_elements(limit)
    if known is None or known.size != 1 or not isinstance(known.ravel()[0], int):
        return False
    low, high = whole_range(dtype)
    return int(known.ravel()[0]) == (low if name == "maximum" else high)


def _cast(graph: Graph, node: Node) -> OnnxValue:
    x = node.input(0)
    target = node.optional(1)
    to = target.dtype if target is not None else dtype_of(node.integer("to"), node.where)
    return cast(graph, node, x, to)


def cast(graph: Graph, node: Node, x: OnnxValue, to: DType) -> OnnxValue:
    """The value stored as another type: over the reals nothing changes between floats, nor from integers to floats.

    Raises:
        UnsupportedError: an integer type whose wrapping of the operand's values no formula says, or a rounding.
    """
    if graph.is_rounding(x.tensor, to):
        raise node.unsupported(
            f"rounding to {x.dtype.value} has no translation",
            why=f"a cast to {x.dtype.value} that is taken back at once rounds, and a formula does not",
            fix="leave out both casts if rounding is not meant",
        )
    if to == DType.BOOL and x.dtype != DType.BOOL:
        return graph.pointwise(node, [x], lambda a: truth(a), to)
    if to.is_float or not x.dtype.is_float:
        return _retyped(graph, node, x, to)
    over = graph.bounds(x)
    _, bounds = integers.from_fraction(Const(0.0), over)
    return graph.pointwise(node, [x], lambda a: integers.from_fraction(a, over)[0], to, bounds)


def _retyped(graph: Graph, node: Node, x: OnnxValue, to: DType) -> OnnxValue:
    """The same numbers; between floats that is a view, from integers and booleans an operator of its own."""
    axes, same = axes_of(x.shape), to == x.dtype
    view = same or (to.is_float and x.dtype.is_float)
    value = graph.define(node, axes, graph.read(x, axes), to, view=view, bounds=graph.bounds(x))
    known = None if x.array is None or not view or x.array.size > MAX_ELEMENTS else x.array
    if known is None or not np.can_cast(known.dtype, numpy_type(to)):
        return value
    # What is widened is known as it was: converters to float16 widen the scales that a Resize reads.
    return replace(value, array=known.astype(numpy_type(to)))


def _where(graph: Graph, node: Node) -> OnnxValue:
    condition, then, otherwise = node.input(0), node.input(1), node.input(2)
    return graph.pointwise(node, [condition, then, otherwise], lambda *args: op("where", *args), then.dtype)


def _p_relu(graph: Graph, node: Node) -> OnnxValue:
    x, slope = node.input(0), node.input(1)
    shape = broadcast_shapes(x.shape, slope.shape, where=node.where)
    if len(shape) != x.rank or not all(same_extent(a, b) for a, b in zip(shape, x.shape, strict=True)):
        raise node.shape_error(f"a slope of shape {list(slope.shape)} does not broadcast to {list(x.shape)}")
    return binary(leaky_relu)(graph, node)


def _celu(graph: Graph, node: Node) -> OnnxValue:
    alpha = node.number("alpha")
    if alpha == 0.0:
        raise node.faulty("alpha is 0", why="the operator divides by it", fix="use Relu, the limit")
    return unary(lambda x: elu(x, alpha, input_scale=1.0 / alpha))(graph, node)


def _gelu(graph: Graph, node: Node) -> OnnxValue:
    kind = node.attributes.get("approximate", "none")
    if kind not in ("none", "tanh"):
        raise node.unsupported(f"the Gelu approximation {kind!r} is not known", fix="use 'none' or 'tanh'")
    return unary(lambda x: gelu(x, kind))(graph, node)


def _hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    line = op("add", op("mul", Const(alpha), x), Const(beta))
    return op("maximum", Const(0.0), op("minimum", Const(1.0), line))


def _is_infinite(graph: Graph, node: Node) -> OnnxValue:
    signs = [s for s in ("negative", "positive") if node.flag(f"detect_{s}")]

    def f(x: Expr) -> Expr:
        if not signs:
            return Const(0.0)
        size = op("abs", x) if len(signs) > 1 else x if signs == ["positive"] else op("neg", x)
        return op("eq", size, Const(math.inf))

    return unary(f, BOOL)(graph, node)


def _sign(graph: Graph, node: Node) -> OnnxValue:
    """The sign; NaN stays NaN here, of which `sign` is 0."""
    if not node.input(0).dtype.is_float:
        return named("sign")(graph, node)
    return unary(lambda x: op("where", op("isnan", x), x, op("sign", x)))(graph, node)


def _decided(translate: Translator, graph: Graph, node: Node) -> OnnxValue:
    """A translator of what cuts numbers to whole ones, or compares them, where no rounding turns that.

    Weights of extents that are known are decided by as the model rounds (`prism.cost.constant_folding`).
    """
    made = translate(graph, node)
    given = [v for v in node.inputs if v is not None and v.dtype.is_float]
    if not given or (node.op in _CASTS and (made.dtype.is_float or len(given) > 1)):
        return made
    axes = axes_of(made.shape)
    operands = [graph.read(v, axes) for v in given]
    folds = static_shape(made.shape) is not None and any(isinstance(e, Read) for o in operands for e in walk(o))
    if not folds and graph.may_turn(operands, given[0].dtype, quotients=node.op != "Mod"):
        raise node.unsupported(
            f"what {node.op} makes of positions has no translation",
            why="rounding decides it, and a formula does not round as the model does",
            fix="compute it in whole numbers, or export it as a constant",
        )
    return made


_CASTS = frozenset({"Cast", "CastLike"})
_DECIDING = frozenset(
    {"Floor", "Ceil", "Round", "Sign", "Mod", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
)
"""Operators whose results jump where their operands do not."""

BOOL = DType.BOOL
_UNARY = (
    "Neg", "Abs", "Exp", "Log", "Sqrt", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh",
    "Acosh", "Atanh", "Erf", "Sigmoid", "Floor", "Ceil", "Round", "Reciprocal", "Relu", "Mish",
)  # fmt: skip
_TRANSLATORS: Mapping[str, Translator] = MappingProxyType(
    {
        **{name: unary(UNARY[name.lower()]) for name in _UNARY},
        "Add": named("add"),
        "Mul": named("mul"),
        **{name: named(name.lower(), BOOL) for name in ("And", "Or", "Not")},
        "BitwiseAnd": partial(_bitwise, "and"),
        "BitwiseOr": partial(_bitwise, "or"),
        "BitwiseXor": partial(_bitwise, "xor"),
        "BitwiseNot": lambda graph, node: unary(lambda x: bits.inverted(x, node.input(0).dtype))(graph, node),
        "BitShift": _shifted,
        "Sign": _sign,
        "Sub": binary(sub),
        "Div": _divide,
        "Mod": _remainder,
        "Pow": _power,
        "Equal": named("eq", BOOL),
        "Less": named("lt", BOOL),
        "LessOrEqual": named("le", BOOL),
        "Greater": binary(lambda a, b: op("lt", b, a), BOOL),
        "GreaterOrEqual": binary(lambda a, b: op("le", b, a), BOOL),
        "IsInf": _is_infinite,
        "IsNaN": named("isnan", BOOL),
        "Xor": binary(lambda a, b: op("not", op("eq", a, b)), BOOL),
        "Max": _n_ary("maximum"),
        "Min": _n_ary("minimum"),
        "Sum": _n_ary("add"),
        "Mean": _mean,
        "Clip": _clip,
        "Cast": _cast,
        "CastLike": _cast,
        "Where": _where,
        "LeakyRelu": _by_attributes(lambda x, node: leaky_relu(x, node.number("alpha"))),
        "PRelu": _p_relu,
        "Elu": _by_attributes(lambda x, node: elu(x, node.number("alpha"))),
        "Selu": _by_attributes(lambda x, node: elu(x, node.number("alpha"), node.number("gamma"))),
        "Celu": _celu,
        "Swish": _by_attributes(lambda x, n: op("mul", x, op("sigmoid", op("mul", Const(n.number("alpha")), x)))),
        "Gelu": _gelu,
        "Softplus": unary(lambda x: softplus(x, threshold=math.inf)),
        "Softsign": unary(lambda x: div(x, op("add", Const(1.0), op("abs", x)))),
        "HardSigmoid": _by_attributes(lambda x, n: _hard_sigmoid(x, n.number("alpha"), n.number("beta"))),
        "HardSwish": unary(lambda x: op("mul", x, _hard_sigmoid(x, 1.0 / 6.0, 0.5))),
    }
)
TRANSLATORS: Mapping[str, Translator] = MappingProxyType(
    {name: partial(_decided, f) if name in _DECIDING | _CASTS else f for name, f in _TRANSLATORS.items()}
)
