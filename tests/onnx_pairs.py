"""Pairs of ONNX graphs: a random one, and a twin of it that is rewritten rightly, or changed a little.

A twin is made of the graph's nodes: operators by others that say the same, factors and terms moved, transposes and
reshapes on a detour, weights scaled, split and merged, functions written out, versions converted; or with one
attribute, constant, operand, operator or type another. onnx's reference runtime judges all pairs alike, in float64.

    python tests/onnx_pairs.py FIRST COUNT [right|wrong] [-v]

hunts, one seed after the other, and prints what it finds; with -v the right twins that are not proved, too.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx_random
from onnx import NodeProto, helper, inliner, numpy_helper, shape_inference, version_converter
from onnx_random import BOOL, F32, F64, FLOATS, I8, I32, I64, LIMITS, NUMPY, U8, WHOLE, Array, Graph, Oracle, sizes

from prism.api.proving import verdict_on
from prism.egraph.worker import Worker
from prism.errors import PrismError, UnsupportedError
from prism.frontend.onnx.reader import from_model
from prism.program.evaluate import bind
from prism.program.nodes import Program
from prism.program.verdict import Status, Verdict

T = TypeVar("T")
BINDINGS: Sequence[Mapping[str, int]] = tuple({"n": n, "m": m} for n, m in ((3, 4), (1, 1), (6, 2), (2, 5)))
DRAWS = ("quarters", "normal", "zeros", "tiny", "large")
IN_SINGLE = frozenset({"Erf", "Gelu", "Selu", "Mish", "HardSwish", "RMSNormalization", "DequantizeLinear"})
"""Functions whose constants the reference runtime has in float32."""


PARTIAL = frozenset({"Div", "Reciprocal", "Log", "Sqrt", "Pow", "Mod", "LogSoftmax", "ReduceLogSum", "LpNormalization"})
"""Operators that make infinities or NaN of numbers for another reason than that float64 does not hold them."""
VANISHING = frozenset({"Exp", "Sigmoid", "Softmax", "Softplus", "Elu", "Swish", "Mish"})


class Nothing(Exception):
    """A change does not fit here."""


@dataclass(frozen=True)
class Pair:
    """Two models of the same inputs.

    Attributes:
        seed: what they were drawn from.
        graph: the first, and what its inputs are.
        twin: the second.
        how: what was changed.
        right: whether the change is meant to change nothing.
    """

    seed: int
    graph: Graph
    twin: onnx.ModelProto
    how: Sequence[str]
    right: bool

    def __str__(self) -> str:
        texts = map(onnx.printer.to_text, (self.graph.model, self.twin))
        return f"# seed {self.seed}, {'right' if self.right else 'wrong'}: {', '.join(self.how)}\n" + "\n".join(texts)


class Twin:
    """A model that is being changed.

    Args:
        graph: what it is a copy of.
        rng: draws.
    """

    def __init__(self, graph: Graph, rng: np.random.Generator) -> None:
        self.rng = rng
        self.original = graph
        self.model = inliner.inline_local_functions(graph.model)
        self.opset = next(o.version for o in self.model.opset_import if not o.domain)
        self.fresh = 0
        self.look()

    def look(self) -> None:
        """What values of the model are now."""
        graph = self.original
        self.values: list[dict[str, Array]] = []
        for binding in graph.bindings:
            self.values.append(Oracle(self.model).values(graph.arrays("quarters", 0, binding)))
        inferred = shape_inference.infer_shapes(self.model)
        infos = [*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output]
        self.kinds: dict[str, int] = {i.name: i.type.tensor_type.elem_type for i in infos}
        self.kinds |= {t.name: t.data_type for t in self.model.graph.initializer}
        self.stored = {t.name: t for t in self.model.graph.initializer}
        self.constants = {n: numpy_helper.to_array(t) for n, t in self.stored.items()}
        for node in self.nodes:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        self.constants = {n: c for n, c in self.constants.items() if n not in graph.inputs}
        self.made = {o: node for node in self.nodes for o in node.output if o}

    @property
    def nodes(self) -> list[NodeProto]:
        return list(self.model.graph.node)

    def pick(self, options: Iterable[T]) -> T:
        given = list(options)
        if not given:
            raise Nothing
        return given[int(self.rng.integers(len(given)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def need(self, *truths: object) -> None:
        if not all(truths):
            raise Nothing

    def kind(self, name: str) -> int:
        self.need(name in self.kinds)
        return self.kinds[name]

    def is_float(self, name: str) -> bool:
        return self.kind(name) in FLOATS

    def shape(self, name: str) -> tuple[int, ...]:
        """The extents, of a value that has the same at all sizes."""
        shapes = {tuple(map(int, v[name].shape)) for v in self.values}
        self.need(len(shapes) == 1)
        return shapes.pop()

    def rank(self, name: str) -> int:
        return self.values[0][name].ndim

    def alike(self, a: str, b: str) -> bool:
        """Whether two values have the same type and extents."""
        return self.kind(a) == self.kind(b) and all(v[a].shape == v[b].shape for v in self.values)

    def name(self) -> str:
        self.fresh += 1
        return f"t{self.fresh}"

    def constant(self, array: Any, kind: int) -> str:
        name = self.name()
        self.kinds[name] = kind
        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(array).astype(NUMPY[kind]), name))
        return name

    def like(self, number: float, name: str) -> str:
        """A number of the type of a value."""
        return self.constant(number, self.kind(name))

    def put(self, node: NodeProto, nodes: Sequence[NodeProto]) -> None:
        """Other nodes in a node's place."""
        all_ = self.nodes
        at = next(n for n, other in enumerate(all_) if other is node)
        del self.model.graph.node[:]
        self.model.graph.node.extend([*all_[:at], *nodes, *all_[at + 1 :]])

    def attribute(self, node: NodeProto, name: str, default: Any = None) -> Any:
        return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


class Writer:
    """Nodes that are to stand in a node's place."""

    def __init__(self, twin: Twin, node: NodeProto) -> None:
        self.twin, self.node = twin, node
        self.nodes: list[NodeProto] = []

    def __call__(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        name = out or self.twin.name()
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def last(self, op: str, *inputs: str, **attributes: Any) -> None:
        self(op, *inputs, out=self.node.output[0], **attributes)

    def same(self, *inputs: str, out: str = "") -> str:
        """The node itself on other operands."""
        copy = NodeProto()
        copy.CopyFrom(self.node)
        copy.ClearField("input")
        copy.ClearField("output")
        copy.input.extend(inputs)
        name = out or self.twin.name()
        copy.output.append(name)
        self.nodes.append(copy)
        return name


# Right


def rewritten(t: Twin, node: NodeProto, w: Writer) -> str:
    """One node written otherwise: what was done."""
    inputs = list(node.input)
    t.need(node.op_type != "Constant", len(node.output) == 1, inputs)
    ways = [*BY_OPERATOR.get(node.op_type, ()), *ANYWHERE]
    way = t.pick(ways)
    way(t, node, w)
    t.need(w.nodes)
    t.put(node, w.nodes)
    return f"{node.op_type} {way.__name__.strip('_')}"


def _swapped(t: Twin, n: NodeProto, w: Writer) -> None:
    t.need(len(n.input) >= 2)
    w.last(n.op_type, *reversed(n.input))


def _sub_as_add(t: Twin, n: NodeProto, w: Writer) -> None:
    a, b = n.input
    t.need(t.kind(b) != U8)
    w.last("Add", a, w("Neg", b))


def _add_as_sub(t: Twin, n: NodeProto, w: Writer) -> None:
    a, b = n.input
    t.need(t.kind(b) != U8)
    w.last("Sub", a, w("Neg", b))


def _neg_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    if t.chance(0.5):
        w.last("Mul", n.input[0], t.like(-1, n.input[0]))
    else:
        w.last("Sub", t.like(0, n.input[0]), n.input[0])


def _div_as_mul(t: Twin, n: NodeProto, w: Writer) -> None:
    a, b = n.input
    t.need(t.is_float(a))
    w.last("Mul", a, w("Reciprocal", b))


def _reciprocal_as_div(t: Twin, n: NodeProto, w: Writer) -> None:
    w.last("Div", t.like(1, n.input[0]), n.input[0])


def _sqrt_as_pow(t: Twin, n: NodeProto, w: Writer) -> None:
    w.last("Pow", n.input[0], t.like(0.5, n.input[0]))


def _abs_as_max(t: Twin, n: NodeProto, w: Writer) -> None:
    a = n.input[0]
    t.need(t.is_float(a))
    w.last("Max", a, w("Neg", a))


def _relu_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    a = n.input[0]
    match t.pick(range(3)):
        case 0:
            w.last("Max", a, t.like(0, a))
        case 1:
            w.last("Mul", t.like(0.5, a), w("Add", a, w("Abs", a)))
        case _:
            t.need(t.opset >= 9)
            w.last("Where", w("Greater", a, t.like(0, a)), a, t.like(0, a))


def _sigmoid_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    a, one = n.input[0], t.like(1, n.input[0])
    if t.chance(0.5):
        w.last("Div", one, w("Add", one, w("Exp", w("Neg", a))))
    else:
        half = t.like(0.5, a)
        w.last("Add", half, w("Mul", half, w("Tanh", w("Mul", half, a))))


def _tanh_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    a, two = n.input[0], t.like(2, n.input[0])
    w.last("Sub", w("Mul", two, w("Sigmoid", w("Mul", two, a))), t.like(1, a))


def _softplus_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    w.last("Log", w("Add", t.like(1, n.input[0]), w("Exp", n.input[0])))


def _leaky_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    a, alpha = n.input[0], float(t.attribute(n, "alpha", 0.01))
    t.need(t.opset >= 9)
    w.last(
        "Where",
        w("GreaterOrEqual" if t.opset >= 12 else "Greater", a, t.like(0, a)),
        a,
        w("Mul", a, t.constant(alpha, t.kind(a))),
    )


def _compared_backwards(t: Twin, n: NodeProto, w: Writer) -> None:
    a, b = n.input
    back = {"Less": "Greater", "Greater": "Less", "LessOrEqual": "GreaterOrEqual", "GreaterOrEqual": "LessOrEqual"}
    w.last(back[n.op_type], b, a)


def _not_compared(t: Twin, n: NodeProto, w: Writer) -> None:
    other = {"Less": "GreaterOrEqual", "Greater": "LessOrEqual", "LessOrEqual": "Greater", "GreaterOrEqual": "Less"}
    t.need(t.opset >= 12)
    w.last("Not", w(other[n.op_type], *n.input))


def _or_equal(t: Twin, n: NodeProto, w: Writer) -> None:
    w.last("Or", w(n.op_type.removesuffix("OrEqual"), *n.input), w("Equal", *n.input))


def _de_morgan(t: Twin, n: NodeProto, w: Writer) -> None:
    a, b = n.input
    w.last("Not", w({"And": "Or", "Or": "And"}[n.op_type], w("Not", a), w("Not", b)))


def _xor_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    a, b = n.input
    w.last("Or", w("And", a, w("Not", b)), w("And", w("Not", a), b))


def _where_turned(t: Twin, n: NodeProto, w: Writer) -> None:
    p, a, b = n.input
    w.last("Where", w("Not", p), b, a)


def _where_of_where(t: Twin, n: NodeProto, w: Writer) -> None:
    p, a, b = n.input
    w.last("Where", p, w("Where", p, a, b), b)


def _where_as_product(t: Twin, n: NodeProto, w: Writer) -> None:
    p, a, b = n.input
    t.need(t.kind(a) != BOOL, all(np.isfinite(np.asarray(t.constants.get(x, 0.0), np.float64)).all() for x in (a, b)))
    q = w("Cast", p, to=t.kind(a))
    one = t.like(1, a)
    w.last("Add", w("Mul", q, a), w("Mul", w("Sub", one, q), b))


def _extreme_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    t.need(len(n.input) == 2)
    a, b = n.input
    if t.chance(0.5) and t.opset >= 9:
        w.last("Where", w({"Max": "Greater", "Min": "Less"}[n.op_type], a, b), a, b)
    else:
        t.need(t.is_float(a))
        w.last("Neg", w({"Max": "Min", "Min": "Max"}[n.op_type], w("Neg", a), w("Neg", b)))


def _clip_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    t.need(t.opset >= 12, len(n.input) == 3, n.input[1])
    a, low, high = n.input
    w.last("Min", w("Max", a, low), high)


def _summed_one_by_one(t: Twin, n: NodeProto, w: Writer) -> None:
    t.need(len(n.input) >= 2)
    *first, last = n.input
    total = first[0]
    for a in first[1:]:
        total = w("Add", total, a)
    if n.op_type == "Sum":
        w.last("Add", last, total)
    else:
        w.last("Div", w("Add", last, total), t.like(len(n.input), last))


def _inner(t: Twin, name: str, *ops: str) -> NodeProto:
    node = t.made.get(name)
    t.need(node is not None)
    assert node is not None
    t.need(node.op_type in ops)
    return node


def _distributed(t: Twin, n: NodeProto, w: Writer) -> None:
    a, b = n.input
    for x, y, first in ((a, b, True), (b, a, False)):
        if x in t.made and t.made[x].op_type in ("Add", "Sub") and (n.op_type == "Mul" or t.rank(x) >= 2):
            inner = t.made[x]
            if n.op_type == "MatMul":  # terms that are broadcast do not have the product's dimensions
                t.need(all(t.alike(x, i) for i in inner.input))
            parts = [w(n.op_type, *((i, y) if first else (y, i))) for i in inner.input]
            w.last(inner.op_type, *parts)
            return
    raise Nothing


def _factored(t: Twin, n: NodeProto, w: Writer) -> None:
    one, other = (_inner(t, i, "Mul") for i in n.input)
    common = [i for i in one.input if i in other.input]
    c = t.pick(common)
    rest = []
    for node in (one, other):
        left = list(node.input)
        left.remove(c)
        rest.append(left[0])
    w.last("Mul", w(n.op_type, *rest), c)


def _associated(t: Twin, n: NodeProto, w: Writer) -> None:
    a, b = n.input
    inner = _inner(t, a, n.op_type)
    c, d = inner.input
    if n.op_type == "MatMul":
        t.need(min(map(t.rank, (c, d, b))) >= 2)
    w.last(n.op_type, c, w(n.op_type, d, b))


def _reduced_apart(t: Twin, n: NodeProto, w: Writer) -> None:
    inner = _inner(t, n.input[0], "Add", "Sub")
    t.need(all(t.alike(n.input[0], i) for i in inner.input), t.is_float(n.input[0]))
    w.last(inner.op_type, *(w.same(i, *n.input[1:]) for i in inner.input))


def _as(op: str, w: Writer, *inputs: str, out: str = "") -> str:
    """The node with another operator, its attributes and other operands kept."""
    name = w.same(*inputs, *w.node.input[1:], out=out)
    w.nodes[-1].op_type = op
    return name


def _axes_as(t: Twin, n: NodeProto, op: str) -> None:
    """That both operators take their axes in the same way."""
    t.need(not (13 <= t.opset < 18 and "ReduceSum" in (op, n.op_type) and op != n.op_type))


def _reduction_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    a, out = n.input[0], n.output[0]
    t.need(t.is_float(a))
    noop = t.attribute(n, "noop_with_empty_axes", 0)
    t.need(not noop)
    match n.op_type:
        case "ReduceMean":
            _axes_as(t, n, "ReduceSum")
            inside, outside = (int(np.prod(t.shape(x))) for x in (a, out))
            t.need(outside)
            total = _as("ReduceSum", w, a)
            w.last("Div", total, t.like(inside / outside, a))
        case "ReduceSumSquare":
            _axes_as(t, n, "ReduceSum")
            _as("ReduceSum", w, w("Mul", a, a), out=out)
        case "ReduceL2":
            w.last("Sqrt", _as("ReduceSumSquare", w, a))
        case "ReduceL1":
            _axes_as(t, n, "ReduceSum")
            _as("ReduceSum", w, w("Abs", a), out=out)
        case "ReduceLogSumExp":
            _axes_as(t, n, "ReduceSum")
            w.last("Log", _as("ReduceSum", w, w("Exp", a)))
        case "ReduceLogSum":
            _axes_as(t, n, "ReduceSum")
            w.last("Log", _as("ReduceSum", w, a))
        case "ReduceMax" | "ReduceMin":
            other = {"ReduceMax": "ReduceMin", "ReduceMin": "ReduceMax"}[n.op_type]
            w.last("Neg", _as(other, w, w("Neg", a)))
        case "ReduceSum":
            two = t.like(2, a)
            w.last("Div", w.same(w("Mul", a, two), *n.input[1:]), two)
        case _:
            raise Nothing


def _softmax_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    t.need(t.opset >= 13)
    a, axis = n.input[0], int(t.attribute(n, "axis", -1))
    axes: dict[str, Any] = {"axes": [axis]} if t.opset < 18 else {}
    given = [t.constant([axis], I64)] if t.opset >= 18 else []
    if n.op_type == "LogSoftmax":
        w.last("Log", w("Softmax", a, axis=axis))
        return
    x = a if t.chance(0.5) else w("Sub", a, w("ReduceMax", a, *given, keepdims=1, **axes))
    e = w("Exp", x)
    w.last("Div", e, w("ReduceSum", e, t.constant([axis], I64), keepdims=1))


def _pow_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    a, p = n.input
    t.need(t.is_float(a), p in t.constants, t.constants[p].size == 1, t.rank(p) <= t.rank(a))
    match float(t.constants[p].reshape(-1)[0]):
        case 2.0:
            w.last("Mul", a, a)
        case 3.0:
            w.last("Mul", a, w("Mul", a, a))
        case 1.0:
            w.last("Identity", a)
        case 0.5:
            w.last("Sqrt", a)
        case -1.0:
            w.last("Reciprocal", a)
        case _:
            raise Nothing


def _exp_apart(t: Twin, n: NodeProto, w: Writer) -> None:
    inner = _inner(t, n.input[0], "Add", "Sub", "Neg")
    if inner.op_type == "Neg":
        w.last("Reciprocal", w("Exp", inner.input[0]))
        return
    a, b = inner.input
    w.last({"Add": "Mul", "Sub": "Div"}[inner.op_type], w("Exp", a), w("Exp", b))


def _gemm_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    a, b = (
        w("Transpose", x) if t.attribute(n, flag, 0) else x
        for x, flag in ((n.input[0], "transA"), (n.input[1], "transB"))
    )
    alpha, beta = (float(t.attribute(n, x, 1.0)) for x in ("alpha", "beta"))
    t.need(t.is_float(n.input[0]))
    made = w("Mul", w("MatMul", a, b), t.like(alpha, n.input[0]))
    if len(n.input) == 3 and n.input[2] and beta:
        made = w("Add", w("Mul", n.input[2], t.like(beta, n.input[0])), made)
    w.last("Identity", made)


def _matmul_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    a, b = n.input
    t.need(t.rank(a) == t.rank(b) == 2, t.is_float(a))
    match t.pick(range(3)):
        case 0:
            w.last("Transpose", w("MatMul", w("Transpose", b), w("Transpose", a)))
        case 1:
            t.need(t.opset >= 11)
            w.last("Gemm", a, b)
        case _:
            t.need(t.opset >= 12)
            w.last("Einsum", a, b, equation="ij,jk->ik")


def _weight_changed(t: Twin, n: NodeProto, w: Writer) -> None:
    """A stored factor of a product scaled, split along its columns or its rows."""
    a, b = n.input
    t.need(b in t.constants, t.rank(b) == 2, t.is_float(b), t.rank(a) >= 2, t.opset >= 13)
    array, kind = t.constants[b], t.kind(b)
    k, m = array.shape
    match t.pick(range(4)):
        case 0:
            w.last("Mul", w("MatMul", a, t.constant(array * NUMPY[kind](0.5), kind)), t.like(2, a))
        case 1:
            t.need(m >= 2)
            cut = int(t.rng.integers(1, m))
            parts = [w("MatMul", a, t.constant(p, kind)) for p in (array[:, :cut], array[:, cut:])]
            w.last("Concat", *parts, axis=-1)
        case 2:
            t.need(k >= 2)
            cut = int(t.rng.integers(1, k))
            far, axis = t.constant([2**31], I64), t.constant([-1], I64)
            ends = ((t.constant([0], I64), t.constant([cut], I64)), (t.constant([cut], I64), far))
            slices = [w("Slice", a, *e, axis) for e in ends]
            products = [
                w("MatMul", s, t.constant(p, kind)) for s, p in zip(slices, (array[:cut], array[cut:]), strict=True)
            ]
            w.last("Add", *products)
        case _:
            order = t.rng.permutation(m)
            turned = w("MatMul", a, t.constant(array[:, order], kind))
            w.last("Gather", turned, t.constant(np.argsort(order), I64), axis=t.rank(n.output[0]) - 1)


def _transposed_before(t: Twin, n: NodeProto, w: Writer) -> None:
    inner = t.made.get(n.input[0])
    t.need(inner is not None)
    assert inner is not None
    unary = ("Neg", "Abs", "Exp", "Sigmoid", "Tanh", "Relu", "Sqrt", "Log", "Cast", "Floor", "Sin", "Not", "Erf")
    t.need(inner.op_type in (*unary, "Add", "Mul", "Sub", "Div", "Max", "Min"))
    t.need(all(t.rank(i) == t.rank(n.input[0]) for i in inner.input))
    copy = NodeProto()
    copy.CopyFrom(inner)
    del copy.input[:]
    copy.input.extend([w.same(i) for i in inner.input])
    del copy.output[:]
    copy.output.append(n.output[0])
    w.nodes.append(copy)


def _slice_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    """A split as slices is of several results; a slice of one step by an einsum is too much: as a lookup."""
    t.need(t.opset >= 11, len(n.input) >= 4, all(i in t.constants for i in n.input[1:] if i))
    axes = t.constants[n.input[3]]
    t.need(axes.size == 1)
    axis = int(axes[0])
    size = t.shape(n.input[0])[axis]
    start, end = (int(t.constants[n.input[i]].reshape(-1)[0]) for i in (1, 2))
    step = int(t.constants[n.input[4]].reshape(-1)[0]) if len(n.input) == 5 else 1
    places = np.arange(size)[slice(start, None if step < 0 and end < -size else end, step)]
    t.need(places.size)
    w.last("Gather", n.input[0], t.constant(places, I64), axis=axis)


def _gather_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    a, i = n.input
    t.need(i in t.constants, t.constants[i].ndim == 1, t.constants[i].size, t.opset >= 13)
    axis = int(t.attribute(n, "axis", 0))
    size = t.shape(a)[axis]
    parts = []
    for place in t.constants[i]:
        p = int(place) % size
        parts.append(w("Slice", a, t.constant([p], I64), t.constant([p + 1], I64), t.constant([axis], I64)))
    w.last("Concat", *parts, axis=axis)


def _concat_flipped(t: Twin, n: NodeProto, w: Writer) -> None:
    """The parts the other way round, and the result turned."""
    t.need(len(n.input) == 2, t.opset >= 13)
    axis = int(t.attribute(n, "axis"))
    a, b = n.input
    first, second = (t.shape(x)[axis] for x in (a, b))
    both = w("Concat", b, a, axis=axis)
    order = [*range(second, first + second), *range(second)]
    t.need(order)
    w.last("Gather", both, t.constant(order, I64), axis=axis)


def _layer_norm_otherwise(t: Twin, n: NodeProto, w: Writer) -> None:
    t.need(t.opset >= 18, int(t.attribute(n, "axis", -1)) in (-1, t.rank(n.input[0]) - 1))
    a, *given = n.input
    axes = t.constant([-1], I64)
    eps = t.like(float(t.attribute(n, "epsilon", 1e-5)), a)
    t.need(t.kind(a) in (F32, F64))  # others round it
    d = w("Sub", a, w("ReduceMean", a, axes))
    v = w("ReduceMean", w("Mul", d, d), axes)
    made = w("Mul", w("Div", d, w("Sqrt", w("Add", v, eps))), given[0])
    w.last("Add", made, given[1]) if len(given) == 2 else w.last("Identity", made)


# What any node's first operand or result may go through


def _operand_detour(t: Twin, n: NodeProto, w: Writer) -> None:
    at = int(t.rng.integers(len(n.input)))
    a = n.input[at]
    t.need(a, a not in t.constants, a in t.kinds)
    inputs = list(n.input)
    inputs[at] = _detour(t, w, a)
    w.same(*inputs, out=n.output[0])


def _result_detour(t: Twin, n: NodeProto, w: Writer) -> None:
    made = w.same(*n.input)
    t.kinds[made] = t.kind(n.output[0])
    for v in t.values:
        v[made] = v[n.output[0]]
    w.last("Identity", _detour(t, w, made))


def _detour(t: Twin, w: Writer, a: str) -> str:
    kind, rank = t.kind(a), t.rank(a)
    match t.pick(range(9)):
        case 0:
            t.need(rank >= 2)
            perm = [int(d) for d in t.rng.permutation(rank)]
            return w("Transpose", w("Transpose", a, perm=perm), perm=[int(d) for d in np.argsort(perm)])
        case 1:
            t.need(rank)
            flat = w("Reshape", a, t.constant([-1], I64))
            return w("Reshape", flat, w("Shape", a))
        case 2:
            t.need(kind != BOOL)
            return w("Add", a, t.like(0, a)) if t.chance(0.5) else w("Sub", a, t.like(0, a))
        case 3:
            t.need(kind != BOOL)
            return w("Mul", a, t.like(1, a)) if t.chance(0.5) else w("Div", a, t.like(1, a))
        case 4:
            t.need(kind not in (BOOL, U8))
            return w("Neg", w("Neg", a))
        case 5:
            if kind == BOOL:
                return w("Not", w("Not", a))
            wide = F64 if kind in FLOATS else I64
            return w("Cast", w("Cast", a, to=wide), to=kind)
        case 6:
            t.need(rank, t.opset >= 13)
            axis = int(t.rng.integers(rank))
            sizes_ = {v[a].shape[axis] for v in t.values}
            cut = int(t.rng.integers(0, min(sizes_) + 1)) if len(sizes_) == 1 else 1
            t.need(0 < cut < min(sizes_))
            low = w("Slice", a, t.constant([0], I64), t.constant([cut], I64), t.constant([axis], I64))
            high = w("Slice", a, t.constant([cut], I64), t.constant([2**31], I64), t.constant([axis], I64))
            return w("Concat", low, high, axis=axis)
        case 7:
            t.need(t.opset >= 13)
            return w("Squeeze", w("Unsqueeze", a, t.constant([0], I64)), t.constant([0], I64))
        case _:
            t.need(kind in FLOATS, t.opset >= 13)
            c = t.like(t.pick((0.5, 2.0, -1.0)), a)
            return w("Div", w("Mul", a, c), c)


ANYWHERE = (_operand_detour, _result_detour)
_COMPARED = (_compared_backwards, _not_compared)
BY_OPERATOR: Mapping[str, Sequence[Callable[[Twin, NodeProto, Writer], None]]] = {
    "Add": (_swapped, _add_as_sub, _associated, _factored, _factored),
    "Sub": (_sub_as_add, _factored),
    "Mul": (_swapped, _associated, _distributed, _distributed),
    "Div": (_div_as_mul,),
    "Neg": (_neg_otherwise,),
    **dict.fromkeys(("And", "Or"), (_swapped, _de_morgan)),
    "Xor": (_swapped, _xor_otherwise),
    "Equal": (_swapped,),
    **dict.fromkeys(("Max", "Min"), (_swapped, _extreme_otherwise)),
    **dict.fromkeys(("Sum", "Mean"), (_swapped, _summed_one_by_one)),
    **dict.fromkeys(("Less", "Greater"), _COMPARED),
    **dict.fromkeys(("LessOrEqual", "GreaterOrEqual"), (*_COMPARED, _or_equal)),
    "Reciprocal": (_reciprocal_as_div,),
    "Sqrt": (_sqrt_as_pow,),
    "Abs": (_abs_as_max,),
    "Relu": (_relu_otherwise,),
    "Sigmoid": (_sigmoid_otherwise,),
    "Tanh": (_tanh_otherwise,),
    "Softplus": (_softplus_otherwise,),
    "LeakyRelu": (_leaky_otherwise,),
    "Where": (_where_turned, _where_of_where, _where_as_product),
    "Clip": (_clip_otherwise,),
    "MatMul": (_distributed, _associated, _matmul_otherwise, _weight_changed, _weight_changed),
    "Gemm": (_gemm_otherwise,),
    "Pow": (_pow_otherwise,),
    "Exp": (_exp_apart,),
    **dict.fromkeys(("Softmax", "LogSoftmax"), (_softmax_otherwise,)),
    **dict.fromkeys(("ReduceSum", "ReduceMean"), (_reduced_apart, _reduction_otherwise)),
    **dict.fromkeys(
        ("ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceLogSum", "ReduceMax", "ReduceMin"),
        (_reduction_otherwise,),
    ),
    "Transpose": (_transposed_before,),
    "Slice": (_slice_otherwise,),
    "Gather": (_gather_otherwise,),
    "Concat": (_concat_flipped,),
    "LayerNormalization": (_layer_norm_otherwise,),
}


# Right, of whole models


def _renamed(t: Twin) -> onnx.ModelProto:
    names = {n for node in t.nodes for n in (*node.input, *node.output) if n} - t.original.inputs.keys()
    names |= {i.name for i in t.model.graph.initializer} - t.original.inputs.keys()
    names -= {i.name for i in t.model.graph.input}
    order = t.rng.permutation(len(names))
    to = {n: f"value_{order[i]}" for i, n in enumerate(sorted(names))}
    for node in t.nodes:
        for field in (node.input, node.output):
            for n, name in enumerate(field):
                field[n] = to.get(name, name)
    for info in (*t.model.graph.output, *t.model.graph.initializer):
        info.name = to.get(info.name, info.name)
    del t.model.graph.value_info[:]
    return t.model


def _constants_as_nodes(t: Twin) -> onnx.ModelProto:
    inputs = {i.name for i in t.model.graph.input}
    moved = [i for i in t.model.graph.initializer if i.name not in inputs]
    t.need(moved)
    nodes = [helper.make_node("Constant", [], [i.name], value=i) for i in moved]
    rest = [i for i in t.model.graph.initializer if i.name in inputs]
    all_ = t.nodes
    del t.model.graph.initializer[:], t.model.graph.node[:]
    t.model.graph.initializer.extend(rest)
    t.model.graph.node.extend([*nodes, *all_])
    return t.model


def _functions_written_out(t: Twin) -> onnx.ModelProto:
    return inliner.inline_selected_functions(t.model, [], exclude=True, inline_schema_functions=True)


def _converted(t: Twin) -> onnx.ModelProto:
    t.need(t.opset >= 13)
    return version_converter.convert_version(t.model, int(t.pick(range(max(13, t.opset - 3), 27))))


def _optimised(t: Twin) -> onnx.ModelProto:
    """What onnxruntime's basic level saves."""
    import tempfile
    from pathlib import Path

    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "m.onnx")
        ort.InferenceSession(t.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def _simplified(t: Twin) -> onnx.ModelProto:
    import onnxsim

    made: onnx.ModelProto = onnxsim.simplify(t.model)[0]
    return made


def _folded(t: Twin) -> onnx.ModelProto:
    """What is computed of constants alone, stored."""
    inputs = {i.name for i in t.model.graph.input}
    known = {i.name for i in t.model.graph.initializer} - inputs
    kept, stored = [], []
    results = {o.name for o in t.model.graph.output}
    for node in t.nodes:
        if all(not i or i in known for i in node.input) and node.op_type != "Constant" and not results & {*node.output}:
            known |= {*node.output}
            stored += [o for o in node.output if o]
        else:
            known |= {*node.output} if node.op_type == "Constant" else set()
            kept.append(node)
    t.need(stored)
    arrays = [numpy_helper.from_array(t.values[0][n].astype(NUMPY[t.kind(n)]), n) for n in stored]
    del t.model.graph.node[:]
    t.model.graph.node.extend(kept)
    t.model.graph.initializer.extend(arrays)
    return t.model


def _reordered(t: Twin) -> onnx.ModelProto:
    """The nodes in another order."""
    left, done, order = t.nodes, set[str](), []
    made = {o for n in left for o in n.output}
    while left:
        node = t.pick([n for n in left if all(i in done or i not in made for i in n.input)])
        left.remove(node)
        order.append(node)
        done |= {*node.output}
    del t.model.graph.node[:]
    t.model.graph.node.extend(order)
    return t.model


WHOLES = (
    _renamed,
    _constants_as_nodes,
    _functions_written_out,
    _converted,
    _optimised,
    _simplified,
    _folded,
    _reordered,
)


# Wrong

_SIMILAR = """
Add Sub Mul; Sub Add; Mul Add Div; Div Mul; Max Min; Min Max; Sum Mean Max; Mean Sum; Less LessOrEqual Greater;
LessOrEqual Less; Greater GreaterOrEqual Less; GreaterOrEqual Greater; Equal LessOrEqual; And Or Xor;
Or Xor And; Xor Or; Exp Sigmoid Softplus; Sigmoid Tanh HardSigmoid; Tanh Sigmoid Softsign;
Relu Abs LeakyRelu Elu Softplus; Abs Neg Relu; Neg Abs; Floor Round Ceil; Ceil Floor Round; Round Floor;
Sqrt Abs; Sin Cos; Cos Sin; Erf Tanh; Gelu Relu Swish; Softmax LogSoftmax; LogSoftmax Softmax;
ReduceSum ReduceMean ReduceMax ReduceL1; ReduceMean ReduceSum; ReduceMax ReduceMin ReduceMean;
ReduceMin ReduceMax; ReduceProd ReduceSum; ReduceL1 ReduceSum ReduceL2; ReduceL2 ReduceL1;
ReduceSumSquare ReduceL2; ReduceLogSumExp ReduceMax ReduceLogSum; Elu Selu Relu; LeakyRelu Elu Relu;
Softplus Relu; Mish Swish; HardSwish Swish; Identity Neg; IsNaN Not; LayerNormalization RMSNormalization;
Not Identity; Sign Identity; Reciprocal Neg
"""
_SLIPS: Mapping[str, Sequence[str]] = {line.split()[0]: line.split()[1:] for line in _SIMILAR.split(";")}


def damaged(t: Twin, node: NodeProto) -> str:
    """One small mistake in a node: what it is."""
    way = t.pick((_slip, _slip, _other_attribute, _other_attribute, _operands_swapped, _other_operand, _other_constant,
                  _other_constant, _other_type, _left_out, _more, _rounded))  # fmt: skip
    said = way(t, node)
    return f"{node.op_type} {way.__name__.strip('_')} {said}"


def _slip(t: Twin, n: NodeProto) -> str:
    n.op_type = t.pick(_SLIPS.get(n.op_type, ()))
    return ""


def _other_attribute(t: Twin, n: NodeProto) -> str:
    a = t.pick(a for a in n.attribute if a.name not in ("equation", "value", "to"))
    match a.type:
        case onnx.AttributeProto.FLOAT:
            a.f = float(t.pick((a.f * 1.01, a.f + 1, -a.f, a.f * 10, a.f + 1e-6)))
        case onnx.AttributeProto.INT:
            a.i = t.pick((1 - a.i, a.i + 1, a.i - 1))
        case onnx.AttributeProto.INTS if len(a.ints) >= 1:
            values = [int(i) for i in a.ints]
            t.need(n.op_type != "Unsqueeze")  # the reference runtime goes by the order of the axes
            if t.chance(0.6):
                values = [values[i] for i in t.rng.permutation(len(values))]
            else:
                at = int(t.rng.integers(len(values)))
                values[at] += t.pick((1, -1))
            del a.ints[:]
            a.ints.extend(values)
        case _:
            raise Nothing
    return str(a.name)


def _operands_swapped(t: Twin, n: NodeProto) -> str:
    t.need(len(n.input) >= 2)
    i, j = (int(d) for d in t.rng.permutation(len(n.input))[:2])
    n.input[i], n.input[j] = n.input[j], n.input[i]
    return f"{i} {j}"


def _other_operand(t: Twin, n: NodeProto) -> str:
    at = int(t.rng.integers(len(n.input)))
    a = n.input[at]
    before = {o for node in t.nodes[: t.nodes.index(n)] for o in node.output}
    names = [b for b in (*before, *t.original.inputs) if b and b != a and b in t.kinds and a and t.alike(a, b)]
    n.input[at] = t.pick(sorted(names))
    return str(n.input[at])


def _other_constant(t: Twin, n: NodeProto) -> str:
    t.need(not n.op_type.endswith("Loss"))  # a label that is no class has no meaning
    name = t.pick(i for i in n.input if i in t.constants and t.constants[i].size)
    kind, array = t.kind(name), np.array(t.constants[name])
    at = tuple(int(t.rng.integers(s)) for s in array.shape)
    v = array[at]
    with np.errstate(all="ignore"):
        if kind in FLOATS:
            new = t.pick((v + 1, -v, v * NUMPY[kind](1.01), v + NUMPY[kind](1e-3), 0, v * NUMPY[kind](2)))
        elif kind == BOOL:
            new = not v
        else:
            new = np.clip(int(v) + t.pick((1, -1)), *LIMITS[kind])
        array[at] = new
    if kind in FLOATS and t.chance(0.2):
        array = np.flip(array)
    changed = t.constant(array, kind)
    for i, a in enumerate(n.input):
        if a == name:
            n.input[i] = changed
    return f"{v} to {new}"


def _other_type(t: Twin, n: NodeProto) -> str:
    a = t.pick(a for a in n.attribute if a.name == "to")
    a.i = t.pick((*WHOLE, BOOL, F32))
    return str(a.i)


def _left_out(t: Twin, n: NodeProto) -> str:
    a = t.pick(i for i in n.input if i and i in t.kinds and t.alike(i, n.output[0]))
    n.op_type = "Identity"
    del n.input[:], n.attribute[:]
    n.input.append(a)
    return str(a)


def _more(t: Twin, n: NodeProto) -> str:
    """Something else done to the result."""
    w = Writer(t, n)
    made = w.same(*n.input)
    kind = t.kind(n.output[0])
    t.need(len(n.output) == 1)
    like = n.output[0]
    if kind == BOOL:
        w.last("Not", made)
        said = "not"
    else:
        said = t.pick(("add", "sub", "mul", "abs", "floor", "cut", "flip", "far"))
        match said:
            case "add":
                w.last("Add", made, t.like(1e-3 if kind in FLOATS else 1, like))
            case "sub":
                w.last("Sub", made, t.like(1, like))
            case "mul":
                w.last("Mul", made, t.like(1.0625 if kind in FLOATS else 2, like))
            case "abs":
                w.last("Abs", made)
            case "floor":
                w.last("Floor", made)
            case "cut":
                t.need(t.opset >= 12)
                w.last("Max", made, t.like(t.pick((0, -5, -100)) if kind != U8 else 1, like))
            case "far":
                t.need(t.opset >= 12)
                w.last("Min", made, t.like(100, like))
            case _:
                t.need(t.rank(like), t.opset >= 13)
                axis = int(t.rng.integers(t.rank(like)))
                given = (t.constant([x], I64) for x in (-1, -(2**31), axis, -1))
                w.last("Slice", made, *given)
    t.put(n, w.nodes)
    return said


def _rounded(t: Twin, n: NodeProto) -> str:
    """A value through a whole type of few bits."""
    w = Writer(t, n)
    t.need(len(n.output) == 1)
    kind = t.kind(n.output[0])
    t.need(kind != BOOL)
    narrow = t.pick([k for k in (I8, U8, I32) if k != kind])
    w.last("Cast", w("Cast", w.same(*n.input), to=narrow), to=kind)
    t.put(n, w.nodes)
    return str(narrow)


# Drawing


def pair(seed: int, right: bool | None = None, most: int = 7) -> Pair | None:
    """The pair of a seed, where one comes of it; where it is not said, every other one is wrong."""
    rng = np.random.default_rng([53, seed])
    right = bool(seed % 2) if right is None else right
    graph = onnx_random.graph(seed + 500_000, None if seed % 4 == 0 else False, 2, most)
    if graph is None:
        return None
    how: list[str] = []
    try:
        twin = Twin(graph, rng)
        wanted = int(rng.integers(1, 4)) if right else 1
        if not right and rng.random() < 0.2:  # behind a right rewriting
            _step(twin, True, how)
        for _ in range(12):
            if wanted:
                wanted -= _step(twin, right, how)
        if right and (wanted or rng.random() < 0.3):
            whole = twin.pick(WHOLES)
            twin.model = whole(twin)
            twin.look()
            how.append(whole.__name__.strip("_"))
            wanted = 0
    except Nothing:
        return None
    except Exception:  # whatever optimisers and converters raise
        return None
    if wanted or not _sound(twin):
        return None
    return Pair(seed, graph, twin.model, how, right)


def _step(t: Twin, right: bool, how: list[str]) -> bool:
    """One change, where it leaves a model."""
    before = onnx.ModelProto()
    before.CopyFrom(t.model)
    try:
        node = t.pick(t.nodes)
        if not right and t.chance(0.8):  # less often where shapes are computed
            node = t.pick(n for n in t.nodes if n.op_type != "Constant" and t.kinds.get(n.output[0]) != I64)
        said = rewritten(t, node, Writer(t, node)) if right else damaged(t, node)
        t.look()
        if not _sound(t):
            raise Nothing
    except Exception:  # whatever an operator raises for what it does not take
        t.model = before
        t.look()
        return False
    how.append(said)
    return True


def _sound(t: Twin) -> bool:
    """Whether onnx takes the model, and its outputs are of the same types."""
    try:
        del t.model.graph.value_info[:]
        inferred = shape_inference.infer_shapes(t.model, check_type=True, strict_mode=True)
    except shape_inference.InferenceError:
        return False
    ours = [o.type.tensor_type.elem_type for o in t.original.model.graph.output]
    return ours == [o.type.tensor_type.elem_type for o in inferred.graph.output]


# The judge


@dataclass(frozen=True)
class Judgement:
    """What onnx's runtime says of a pair.

    Attributes:
        differ: where the first has a value and the second another one; nothing where they agree.
        compared: on how many draws.
    """

    differ: str
    compared: int


class Judge:
    """onnx's reference runtime on both models."""

    def __init__(self, p: Pair) -> None:
        self.pair = p
        self.oracles = Oracle(p.graph.model), Oracle(p.twin)
        ops = {n.op_type for o in self.oracles for n in o.model.graph.node}
        self.single = bool(ops & IN_SINGLE)

    def run(self, inputs: Mapping[str, Array], plain: bool = True) -> tuple[list[Array], list[Array]] | None:
        """The outputs of both; None where the first has none that says anything."""
        try:
            ours = self.oracles[0].values(inputs)
        except Exception:  # onnx's reference raises what numpy does
            return None
        if not self.oracles[0].defined(ours) or (plain and not self.plain(ours)):
            return None
        theirs = self.oracles[1].values(inputs)
        if plain and self.overflown(theirs, self.oracles[1].model):
            return None
        return tuple([v[n] for n in o.outputs] for v, o in zip((ours, theirs), self.oracles, strict=True))  # type: ignore[return-value]

    def plain(self, values: Mapping[str, Array]) -> bool:
        """Whether the first has a value all along, and one that float64 holds."""
        model = self.oracles[0].model
        if any(v.dtype.kind == "f" and np.isnan(v).any() for v in values.values()):
            return False
        for node in model.graph.node:
            made = values[node.output[0]]
            infinite = made.dtype.kind == "f" and not np.isfinite(made).all()
            if node.op_type in PARTIAL and infinite and _finite(values[i] for i in node.input if i):
                return False
        return not self.overflown(values, model)

    def overflown(self, values: Mapping[str, Array], model: onnx.ModelProto) -> bool:
        """Whether float64 does not hold a number on the way, or a whole number is larger than is taken for granted."""
        for v in values.values():
            if v.dtype.kind == "f" and ((v != 0) & np.isfinite(v) & ((np.abs(v) < 1e-150) | (np.abs(v) > 1e150))).any():
                return True
            if v.dtype == np.int64 and (np.abs(v) > 2**31).any():
                return True
        for node in model.graph.node:
            made = values[node.output[0]]
            if node.op_type == "Exp" and (np.isinf(made) & np.isfinite(values[node.input[0]])).any():
                return True
            if made.dtype.kind != "f" or not _finite(values[i] for i in node.input if i):
                continue
            if node.op_type not in PARTIAL and not np.isfinite(made).all():
                return True
            if node.op_type in VANISHING and (made == 0).any():
                return True
        return False

    def apart(self, ours: Sequence[Array], theirs: Sequence[Array], scale: float = 1.0) -> str:
        for n, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if a.shape != b.shape:
                return f"output {n} has shape {a.shape} and not {b.shape}"
            x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
            with np.errstate(all="ignore"):
                same = (x == y) | np.isnan(x)
                if a.dtype.kind == "f":
                    largest = np.abs(x[np.isfinite(x)]).max(initial=1e-30)
                    slack = scale * (4e-6 if self.single else 2e-7)
                    same |= np.isfinite(x) & (np.abs(x - y) <= slack * (np.abs(x) + largest) + scale * 1e-12)
            if not same.all():
                at = tuple(int(i) for i in np.argwhere(~same)[0])
                return f"output {n} at {list(at)} is {x[at]:.9g} and not {y[at]:.9g}"
        return ""

    def differ(self, inputs: Mapping[str, Array], plain: bool = True) -> str | None:
        """How the two differ there; None where nothing is said."""
        made = self.run(inputs, plain)
        if made is None:
            return None
        told = self.apart(*made)
        if told and plain:
            rng = np.random.default_rng(5)
            for _ in range(3):  # and around it, too: else rounding decides
                moved = {n: a * (1 + 1e-9 * rng.uniform(-1, 1, a.shape)) if a.dtype.kind == "f" else a
                         for n, a in ((n, onnx_random.wide(a)) for n, a in inputs.items())}  # fmt: skip
                again = self.run(moved, plain)
                if again is None or not self.apart(*again):
                    return None
                if self.apart(again[0], made[0], 100.0) or self.apart(again[1], made[1], 100.0):
                    return None
        return told

    def judge(self, programs: Sequence[Program] = (), many: int = 3) -> Judgement:
        """Whether the two are apart at inputs that both programs take."""
        compared = 0
        graph = self.pair.graph
        symbolic = any(isinstance(d, str) for _, shape in graph.inputs.values() for d in shape)
        for binding in BINDINGS if symbolic else [{}]:
            shapes = {n: sizes(shape, binding) for n, (_, shape) in graph.inputs.items()}
            if not all(taken(p, shapes) for p in programs[:1]):
                continue
            for how in DRAWS:
                for seed in range(many):
                    inputs = graph.arrays(how, seed, binding)
                    try:
                        told = self.differ(inputs)
                    except Exception as error:
                        told = f"the second raises {type(error).__name__} {error}"
                    if told:
                        return Judgement(f"{dict(binding)} {how} {seed}: {told}", compared)
                    compared += told is not None
        return Judgement("", compared)


def _finite(arrays: Iterable[Array]) -> bool:
    return all(bool(np.isfinite(a).all()) for a in arrays if a.dtype.kind == "f")


def taken(program: Program, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a program takes inputs of these shapes."""
    bound = bind([t for t in program.inputs if t.name in shapes], shapes)
    return all(r.low <= bound[s] <= r.high for s, r in program.ranges.items() if s in bound)


def read(p: Pair) -> tuple[Program, Program] | None:
    """Both, where prism takes them."""
    try:
        one = from_model(p.graph.model, "one.onnx", None, check=False)
        return one, from_model(p.twin, "other.onnx", None, check=False)
    except PrismError:
        return None


def wrong(p: Pair, programs: Sequence[Program], verdict: Verdict, many: int = 3) -> str:
    """What is wrong with a verdict; nothing where it stands."""
    judge = Judge(p)
    match verdict.status:
        case Status.PROVED:
            found = judge.judge(programs, many)
            return f"proved, but {found.differ}" if found.differ else ""
        case Status.REFUTED if verdict.counterexample:
            kinds = {n: kind for n, (kind, _) in p.graph.inputs.items()}
            arrays = {n: np.asarray(a) for n, a in verdict.counterexample.items() if n in kinds}
            inputs = {n: a if kinds[n] in FLOATS else a.astype(NUMPY[kinds[n]]) for n, a in arrays.items()}
            try:
                made = judge.run(inputs, plain=False)
            except Exception:
                return ""
            if made is None:  # another output's whole numbers by 0, or places outside
                return ""
            exact = judge.apart(*made, 1e-6)
            return "" if exact else f"refuted, but they are the same there: {verdict.reason}"
        case Status.REFUTED if p.right:
            return f"refuted, and it was right: {verdict.reason}"
    return ""


def asked(programs: tuple[Program, Program], worker: Worker) -> Verdict:
    """The verdict as `prism prove` has it."""
    return verdict_on(*programs, worker)


def hunt(seeds: Iterable[int], worker: Worker, counts: Counter[str], right: bool | None = None) -> Iterator[str]:
    """What is wrong with the verdicts on the pairs of these seeds."""
    for seed in seeds:
        p = pair(seed, right)
        both = None if p is None else read(p)
        if p is None or both is None:
            counts["not drawn" if p is None else "not read"] += 1
            continue
        try:
            verdict = asked(both, worker)
        except UnsupportedError:  # a reshape of some part has no affine index
            counts["not comparable"] += 1
            continue
        except PrismError as error:
            yield f"{p}\n{error}"
            continue
        counts[f"{'right' if p.right else 'wrong'} {verdict.status.value}"] += 1
        told = wrong(p, both, verdict)
        if told:
            yield f"{p}\n{verdict}\n{told}"
        elif p.right and verdict.status is Status.UNKNOWN and "-v" in sys.argv:
            yield f"UNKNOWN {p}\n{verdict}"


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:3])
    kind = {"right": True, "wrong": False}.get(sys.argv[3] if len(sys.argv) > 3 else "")
    seen: Counter[str] = Counter()
    with Worker() as running:
        for told_ in hunt(range(first, first + count), running, seen, kind):
            print(told_, "\n", flush=True)
    print(dict(seen.most_common()))
