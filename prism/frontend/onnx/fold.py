"""Shape folding: integer tensors whose elements are known at translation, computed as extents.

Exporters compute the target of a reshape with `Shape, Gather, Mul, Concat` on symbolic dimensions. Those are followed
here element by element, on numpy object arrays of extents; nothing of them is left in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from types import MappingProxyType

import numpy as np

from prism.frontend.onnx.dtypes import dtype_of
from prism.frontend.onnx.graph import MAX_ELEMENTS, Node, known_elements, whole_range
from prism.program.extents import Extent, add, exact_quotient, floordiv, is_static, mul
from prism.program.nodes import DType
from prism.program.views import Elements, compare_extents, resolve_shape


class _NotFolded(Exception):
    """The result depends on data, or on the value of a symbol in a way that no extent says."""


def fold(node: Node) -> tuple[Elements, ...] | None:
    """The elements of the node's results, when they are integers or booleans that its operands determine."""
    rule = _RULES.get(node.op)
    if rule is None:
        return None
    try:
        results = rule(node)
    except (_NotFolded, ArithmeticError, IndexError, ValueError, TypeError):
        return None  # malformed operands are reported by the translator, which knows what they should be
    if any(r.size > MAX_ELEMENTS for r in results):
        return None
    dtype = folded_dtype(node)
    try:
        return tuple(_map(lambda e: _wrapped(e, dtype), r) for r in results)
    except _NotFolded:
        return None


def _wrapped(element: Extent, dtype: DType) -> Extent:
    """What the type stores of a whole number: the number modulo a power of two; extents are taken to fit."""
    if is_static(element):
        low, high = whole_range(dtype)
        return (int(element) - low) % (high - low + 1) + low
    if dtype not in (DType.INT64, DType.INT32):
        raise _NotFolded
    return element


def folded_dtype(node: Node) -> DType:
    """How the elements that `fold` found are stored."""
    match node.op:
        case "Shape" | "Size":
            return DType.INT64
        case "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "Not" | "And" | "Or":
            return DType.BOOL
        case "Cast":
            return dtype_of(node.integer("to"), node.where)
        case "CastLike" | "Where":
            return node.input(1).dtype
        case _:
            return node.input(0).dtype


def _operands(node: Node) -> list[Elements]:
    return [_known(node, place) for place in range(len(node.inputs))]


def _known(node: Node, place: int) -> Elements:
    value = node.optional(place)
    found = None if value is None or value.dtype.is_float else known_elements(value)
    if found is None:
        raise _NotFolded
    return found


def _numbers(node: Node, place: int) -> list[int]:
    known = _known(node, place)
    found = known.ravel().tolist()
    if known.ndim > 1 or not all(is_static(e) for e in found):
        raise _NotFolded  # no list: refused by the translator
    return [int(e) for e in found]


def _listed(node: Node, name: str, place: int) -> list[int] | None:
    """Numbers that are an attribute in old versions of the operator and an operand in new ones."""
    if name in node.attributes:
        return [int(e) for e in node.attributes[name]]
    return _numbers(node, place) if node.optional(place) is not None else None


def _array(values: Sequence[Extent]) -> Elements:
    result = np.empty(len(values), dtype=object)
    result[:] = list(values)
    return result


def _scalar(value: Extent) -> Elements:
    result = np.empty((), dtype=object)
    result[()] = value
    return result


def _one(f: Callable[[Node], Elements]) -> Callable[[Node], tuple[Elements, ...]]:
    return lambda node: (np.asarray(f(node), dtype=object),)


def _elementwise(f: Callable[..., Extent]) -> Callable[[Node], tuple[Elements, ...]]:
    def rule(node: Node) -> tuple[Elements, ...]:
        operands = np.broadcast_arrays(*_operands(node))
        result = np.empty(operands[0].shape, dtype=object)
        for place in np.ndindex(result.shape):
            result[place] = f(*(o[place] for o in operands))
        return (result,)

    return rule


def _compare(name: str, a: Extent, b: Extent) -> int:
    known = compare_extents(name, a, b)
    if known is None:
        raise _NotFolded
    return int(known)


_LT, _LE, _EQ = partial(_compare, "lt"), partial(_compare, "le"), partial(_compare, "eq")


def _negated(f: Callable[[Extent, Extent], int]) -> Callable[[Extent, Extent], int]:
    return lambda a, b: 1 - f(a, b)


def _divide(a: Extent, b: Extent) -> Extent:
    """The quotient a / b towards zero, as ONNX divides integers."""
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            raise _NotFolded
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    exact = exact_quotient(a, b)
    if exact is not None:
        return exact
    if _LE(0, a) and _LT(0, b):
        return floordiv(a, b)
    raise _NotFolded


def _modulo(node: Node) -> Elements:
    truncated = node.flag("fmod")

    def f(a: Extent, b: Extent) -> Extent:
        if isinstance(a, int) and isinstance(b, int) and b != 0:
            return a - b * int(_divide(a, b)) if truncated else a % b
        if _LE(0, a) and _LT(0, b):
            return add(a, mul(mul(-1, b), floordiv(a, b)))
        raise _NotFolded

    return _elementwise(f)(node)[0]


def _n_ary(f: Callable[[Extent, Extent], Extent]) -> Callable[..., Extent]:
    return lambda *args: reduce(f, args)


def _truth(a: Extent) -> int:
    return 1 - _EQ(a, 0)


def _shape(node: Node) -> Elements:
    shape = node.input(0).shape
    return _array(shape[slice(node.attributes.get("start"), node.attributes.get("end"))])


def _cast(node: Node) -> Elements:
    to, found = folded_dtype(node), _known(node, 0)
    if to.is_float:
        raise _NotFolded
    return _map(_truth, found) if to == DType.BOOL else found


def _map(f: Callable[[Extent], Extent], elements: Elements) -> Elements:
    result = np.empty(elements.shape, dtype=object)
    for place in np.ndindex(elements.shape):
        result[place] = f(elements[place])
    return result


def _gather(node: Node) -> Elements:
    indices = np.array(_numbers(node, 1), dtype=np.int64).reshape(_known(node, 1).shape)
    return np.asarray(np.take(_known(node, 0), indices, axis=node.integer("axis")), dtype=object)


def _concat(node: Node) -> Elements:
    return np.concatenate(_operands(node), axis=node.integer("axis"))


def _slice(node: Node) -> Elements:
    data, starts, ends = _known(node, 0), _listed(node, "starts", 1), _listed(node, "ends", 2)
    axes = _listed(node, "axes", 3)
    if starts is None or ends is None:
        raise _NotFolded
    axes = list(range(len(starts))) if axes is None else axes
    steps = _numbers(node, 4) if node.optional(4) is not None else [1] * len(starts)
    index = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 0 and end >= 2**31 - 1:
            raise _NotFolded  # refused by the translator
        below = step < 0 and end < -data.shape[axis]
        index[axis] = slice(start, None if below else end, step)
    return data[tuple(index)]


def _unsqueeze(node: Node) -> Elements:
    data, axes = _known(node, 0), _listed(node, "axes", 1)
    return np.expand_dims(data, tuple(axes or ()))


def _squeeze(node: Node) -> Elements:
    data, axes = _known(node, 0), _listed(node, "axes", 1)
    return np.squeeze(data, None if axes is None else tuple(axes))


def _reshape(node: Node) -> Elements:
    data = _known(node, 0)
    keep = node.flag("allowzero")
    requested = [data.shape[d] if e == 0 and not keep else e for d, e in enumerate(_numbers(node, 1))]
    return data.reshape([int(e) for e in resolve_shape(data.shape, requested, node.where)])


def _expand(node: Node) -> Elements:
    data, shape = _known(node, 0), _numbers(node, 1)
    if int(np.prod(shape)) > MAX_ELEMENTS:
        raise _NotFolded
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(shape)))


def _range(node: Node) -> Elements:
    start, limit, step = (_numbers(node, place)[0] for place in range(3))
    if len(range(start, limit, step)) > MAX_ELEMENTS:
        raise _NotFolded
    return _array(list(range(start, limit, step)))


def _split(node: Node) -> tuple[Elements, ...]:
    data, axis = _known(node, 0), node.integer("axis")
    sizes = _listed(node, "split", 1)
    if sizes is not None:
        return tuple(np.split(data, np.cumsum(sizes)[:-1], axis))
    parts = node.integer("num_outputs") or len(node.outputs)
    each = -(-data.shape[axis] // parts)
    return tuple(np.split(data, [each * n for n in range(1, parts)], axis))


def _reduction(f: Callable[[Extent, Extent], Extent], start: Extent, node: Node) -> Elements:
    data = _known(node, 0)
    axes, noop = _listed(node, "axes", 1), node.flag("noop_with_empty_axes")
    if data.ndim != 1 or not set(axes or ()) <= {0, -1}:
        raise _NotFolded
    if not axes and noop:
        return data
    total = reduce(f, data.tolist(), start)
    return _array([total]) if node.flag("keepdims") else _scalar(total)


_RULES: Mapping[str, Callable[[Node], tuple[Elements, ...]]] = MappingProxyType(
    {
        "Shape": _one(_shape),
        "Size": _one(lambda node: _scalar(reduce(mul, node.input(0).shape, 1))),
        "Identity": _one(lambda n: _known(n, 0)),
        "Cast": _one(_cast),
        "CastLike": _one(_cast),
        "Gather": _one(_gather),
        "Concat": _one(_concat),
        "Slice": _one(_slice),
        "Unsqueeze": _one(_unsqueeze),
        "Squeeze": _one(_squeeze),
        "Reshape": _one(_reshape),
        "Expand": _one(_expand),
        "Transpose": _one(lambda node: np.transpose(_known(node, 0), node.attributes.get("perm"))),
        "Range": _one(_range),
        "Split": _split,
        "ReduceProd": _one(partial(_reduction, mul, 1)),
        "ReduceSum": _one(partial(_reduction, add, 0)),
        "Add": _elementwise(add),
        "Sub": _elementwise(lambda a, b: add(a, mul(-1, b))),
        "Mul": _elementwise(mul),
        "Div": _elementwise(_divide),
        "Mod": _one(_modulo),
        "Neg": _elementwise(lambda a: mul(-1, a)),
        "Abs": _elementwise(lambda a: a if _LE(0, a) else mul(-1, a)),
        "Min": _elementwise(_n_ary(lambda a, b: a if _LE(a, b) else b)),
        "Max": _elementwise(_n_ary(lambda a, b: b if _LE(a, b) else a)),
        "Equal": _elementwise(_EQ),
        "Less": _elementwise(_LT),
        "LessOrEqual": _elementwise(_LE),
        "Greater": _elementwise(_negated(_LE)),
        "GreaterOrEqual": _elementwise(_negated(_LT)),
        "Not": _elementwise(lambda a: 1 - _truth(a)),
        "And": _elementwise(lambda a, b: _truth(a) * _truth(b)),
        "Or": _elementwise(lambda a, b: max(_truth(a), _truth(b))),
        "Where": _elementwise(lambda c, a, b: a if _truth(c) else b),
    }
)
