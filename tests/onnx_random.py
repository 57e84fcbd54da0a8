"""Random ONNX graphs: some nodes of what the reader takes, with random attributes, types, versions and extents.

A graph with symbolic dimensions is drawn at two bindings of them at once, so that it is right at both: constants are
of extents that both have, and what is of others is computed from `Shape`. The oracle is onnx's reference runtime on
the graph with every float type made float64, which is what a program says: numbers, not roundings.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

Array: TypeAlias = np.ndarray[Any, Any]
T = TypeVar("T")
MOST = 600
"""Elements of a value."""
Kind: TypeAlias = int
F64, F32, F16, BF16 = TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
I64, I32, I8, U8, BOOL = TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL
FLOATS: tuple[Kind, ...] = (F64, F32, F16, BF16)
WHOLE: tuple[Kind, ...] = (I64, I32, I8, U8)
LIMITS: Mapping[Kind, tuple[int, int]] = {
    I64: (-(2**31), 2**31 - 1),
    I32: (-(2**31), 2**31 - 1),
    I8: (-128, 127),
    U8: (0, 255),
}
NUMPY: Mapping[Kind, Any] = MappingProxyType(
    {
        **{F64: np.float64, F32: np.float32, F16: np.float16, BF16: ml_dtypes.bfloat16},
        **{I64: np.int64, I32: np.int32, I8: np.int8, U8: np.uint8, BOOL: np.bool_},
    }
)
DRAWS = ("quarters", "normal", "zeros", "large", "tiny", "nan", "infinite")
"""Ways of drawing inputs."""


@dataclass(frozen=True)
class Graph:
    """A model, and what its inputs are.

    Attributes:
        seed: what it was drawn from.
        model: the model.
        inputs: for each input, its type and its dimensions: numbers, symbols, or arithmetic on symbols.
        bindings: values of the symbols at which it was drawn.
    """

    seed: int
    model: onnx.ModelProto
    inputs: Mapping[str, tuple[int, Sequence[int | str]]]
    bindings: Sequence[Mapping[str, int]]

    def arrays(self, how: str, seed: int, binding: Mapping[str, int]) -> dict[str, Array]:
        """Inputs at a binding."""
        rng = np.random.default_rng([41, seed, self.seed])
        return {n: drawn(rng, how, kind, sizes(shape, binding)) for n, (kind, shape) in self.inputs.items()}

    def __str__(self) -> str:
        return f"# seed {self.seed}\n{onnx.printer.to_text(self.model)}\n"


def sizes(shape: Sequence[int | str], binding: Mapping[str, int]) -> tuple[int, ...]:
    """The dimensions under a binding."""
    return tuple(d if isinstance(d, int) else int(eval(d, {}, dict(binding))) for d in shape)


def drawn(rng: np.random.Generator, how: str, kind: int, shape: Sequence[int]) -> Array:
    """One input, in the type that numpy has for it."""
    if kind == BOOL:
        return np.asarray(rng.random(shape) < (0.0 if how == "zeros" else 0.5))
    if kind in WHOLE:
        low, high = LIMITS[kind]
        small = np.asarray(rng.integers(max(low, -6), 7, shape))
        ends = np.asarray(rng.choice([low, high, low + 1, high - 1, 0, 1, max(-1, low)], shape))
        made = {"zeros": np.zeros(shape, np.int64), "large": ends}.get(how, small)
        return np.asarray(made).astype(NUMPY[kind])
    x = np.asarray(rng.integers(-12, 13, shape) / 4)
    match how:
        case "normal":
            x = np.asarray(rng.standard_normal(shape) * 1.5)
        case "zeros":
            x = np.asarray(rng.choice([0.0, -0.0], shape))
        case "large":
            x = np.asarray(rng.choice([60.0, -60.0, 1e3, -1e3, 1.0, 5e4, 1e-3, -0.5], shape))
        case "tiny":
            x = np.where(rng.random(shape) < 0.5, rng.choice([0.0, -0.0, 2.0**-24, -(2.0**-20), 1e-7], shape), x)
        case "nan":
            x = np.where(rng.random(shape) < 0.2, np.nan, x)
        case "infinite":
            x = np.where(rng.random(shape) < 0.2, rng.choice([np.inf, -np.inf], shape), x)
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(NUMPY[kind])


# The oracle


def lifted(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every float type made float64."""
    made = onnx.ModelProto()
    made.CopyFrom(model)

    def wide(t: onnx.TensorProto) -> None:
        if t.data_type in FLOATS:
            t.CopyFrom(numpy_helper.from_array(np.asarray(numpy_helper.to_array(t), np.float64), t.name))

    for t in made.graph.initializer:
        wide(t)
    for info in (*made.graph.input, *made.graph.output):
        if info.type.tensor_type.elem_type in FLOATS:
            info.type.tensor_type.elem_type = F64
    for node in made.graph.node:
        if node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
        for a in list(node.attribute):
            if a.type == onnx.AttributeProto.TENSOR:
                wide(a.t)
            elif a.name in ("to", "dtype", "stash_type", "softmax_precision", "output_dtype") and a.i in FLOATS:
                a.i = F64
            elif node.op_type == "Constant" and a.name in ("value_float", "value_floats"):
                value = np.asarray(a.f if a.name == "value_float" else list(a.floats), np.float64)
                a.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))
    return _of_matrices(made)


def _of_matrices(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each Softmax of before version 13, which takes its operand for a matrix, on a matrix."""
    if model.opset_import[0].version >= 13:
        return model
    nodes: list[onnx.NodeProto] = []
    for n in model.graph.node:
        if n.op_type in ("Softmax", "LogSoftmax"):
            x, y = n.input[0], n.output[0]
            axis = next((a.i for a in n.attribute), 1)
            nodes += [
                helper.make_node("Shape", [x], [f"{y}_shape"]),
                helper.make_node("Flatten", [x], [f"{y}_flat"], axis=axis),
                helper.make_node(n.op_type, [f"{y}_flat"], [f"{y}_soft"], axis=1),
                helper.make_node("Reshape", [f"{y}_soft", f"{y}_shape"], [y]),
            ]
        else:
            nodes.append(n)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def wide(array: Array) -> Array:
    """Floats of any type in float64, others as they are."""
    return array.astype(np.float64) if array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16 else array


class Erf(OpRun):
    """The error function in the operand's own type: the runtime's own is of float32."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype),)


class Oracle:
    """onnx's reference runtime on a model with its floats made float64 and its functions written out.

    Args:
        model: the model.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = lifted(inliner.inline_local_functions(model))
        self.outputs = [o.name for o in self.model.graph.output]
        del self.model.graph.output[:]
        made = dict.fromkeys([*self.outputs, *(o for n in self.model.graph.node for o in n.output if o)])
        self.model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
        self.evaluator = ReferenceEvaluator(self.model, new_ops=[Erf])

    def values(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """What every value of the model is."""
        given = {n: wide(a) for n, a in inputs.items()}
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = self.evaluator.run(None, given)
        made = zip([o.name for o in self.model.graph.output], found, strict=True)
        constants = {t.name: numpy_helper.to_array(t) for t in self.model.graph.initializer}
        return {**given, **constants, **{n: np.asarray(a) for n, a in made}}

    def defined(self, values: Mapping[str, Array]) -> bool:
        """Whether the operators' texts say what comes out: not of whole numbers of what has none, nor by 0."""
        for node in self.model.graph.node:
            given = [values[i] for i in node.input if i]
            made = values[node.output[0]]
            if node.op_type in ("Cast", "CastLike") and made.dtype.kind in "iu" and given[0].dtype.kind == "f":
                with np.errstate(all="ignore"):
                    if not (np.abs(given[0]) < 2.0**31).all():
                        return False
            if node.op_type in ("Div", "Mod") and given[1].dtype.kind in "iu" and (given[1] == 0).any():
                return False
        return True


def onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array] | None:
    """The outputs by onnxruntime, in the model's own types; None where it cannot run it."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for m in (model, lifted(model)):
        try:
            session = ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
            given = {n: a if m is model else wide(a) for n, a in inputs.items()}
            return [np.asarray(a) for a in session.run(None, given)]
        except Exception:  # no kernel for these types, or numbers that it does not take
            continue
    return None


# Drawing


@dataclass(frozen=True)
class Value:
    """A value while a graph is drawn.

    Attributes:
        kind: its type.
        arrays: what it is at each binding, floats in float64.
        shape: whether it is whole numbers that are computed from shapes and constants alone.
    """

    kind: int
    arrays: tuple[Array, ...]
    shape: bool = False

    @property
    def rank(self) -> int:
        return self.arrays[0].ndim

    @property
    def extents(self) -> tuple[int | None, ...]:
        """Its extents, None where they depend on the binding."""
        all_ = zip(*(a.shape for a in self.arrays), strict=True)
        return tuple(e[0] if len(set(e)) == 1 else None for e in all_)


class Maker:
    """Draws a graph.

    Args:
        seed: decides all.
        dynamic: whether dimensions are symbolic.
    """

    def __init__(self, seed: int, dynamic: bool) -> None:
        self.seed = seed
        self.rng = np.random.default_rng([31, seed])
        self.opset = self.pick((7, 9, 11, 12, 13, 15, 17, 18, 18, 20, 21, 22, 23, 24, 25, 26))
        self.float_kind = self.pick((F32, F32, F32, F64, F16, BF16))
        self.whole_kind = self.pick((I64, I32, I32, I8, U8))
        self.values: dict[str, Value] = {}
        self.inputs: dict[str, tuple[int, Sequence[int | str]]] = {}
        self.constants: dict[str, Array] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.count = 0
        self.dynamic = dynamic
        extents = (1, 2, 3, 4, 5, 6)
        a, b, c = (self.pick(extents) for _ in range(3))
        self.bindings: list[dict[str, int]] = [{}]
        names: list[int | str] = [a, b, c]
        if dynamic:
            self.bindings = [{"n": 3, "m": 4}, {"n": 6, "m": 2}]
            rows: Sequence[int | str] = ("n", "n", "2*n", "n + 1", a)
            columns: Sequence[int | str] = ("m", "n", b, "n*m", b)
            names = [self.pick(rows), self.pick(columns), c]
            if not any(isinstance(d, str) for d in names):
                names[0] = "n"
        p, q, r = names
        k = self.float_kind
        self.given("x", k, (p, q))
        self.given("y", k, self.pick(((p, q), (q,), (p, 1), (), (1, q))))
        self.given("z", k, self.pick(((2, p, q), (p, q, r), (r, 2, q), (q, r), (2, r, p, q))))
        self.given("i", self.whole_kind, self.pick(((p, q), (q,), (), (p, q))))
        self.given("b", BOOL, self.pick(((p, q), (q,), (p, 1))))
        if self.chance(0.2):
            self.given("t", self.pick(FLOATS), (p, q))

    def given(self, name: str, kind: int, shape: Sequence[int | str]) -> None:
        self.inputs[name] = kind, shape
        arrays = []
        for binding in self.bindings:
            rng = np.random.default_rng([7, len(self.inputs), self.seed])
            arrays.append(wide(drawn(rng, "quarters", kind, sizes(shape, binding))))
        self.values[name] = Value(kind, tuple(arrays))

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def among(self, low: int, high: int) -> int:
        """A whole number, the ends included."""
        return int(self.rng.integers(low, high + 1)) if high > low else low

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def value(self, wanted: Callable[[Value], bool] = lambda v: True) -> str:
        """A name of a value, late ones more often."""
        names = [n for n, v in self.values.items() if n not in self.constants and not v.shape and wanted(v)]
        if not names:
            raise _NoneError
        return self.pick(names[-3:] if self.chance(0.7) else names)

    def float(self, least: int = 0, most: int = 5) -> str:
        return self.value(lambda v: v.kind in FLOATS and least <= v.rank <= most)

    def wide(self, least: int = 1) -> str:
        return self.value(lambda v: v.rank >= least)

    def whole(self) -> str:
        return self.value(lambda v: v.kind in WHOLE)

    def truth(self) -> str:
        return self.value(lambda v: v.kind == BOOL)

    def like(self, name: str) -> str:
        """A value of the same type, of the same shape more often; a constant at times."""
        v = self.of(name)
        if self.chance(0.25):
            return self.numbers(v.kind, self.pick(((), (1,), tuple(1 if e is None else e for e in v.extents))))
        shapes = [a.shape for a in v.arrays]
        if self.chance(0.5):
            return self.value(lambda o: o.kind == v.kind and [a.shape for a in o.arrays] == shapes)
        return self.value(lambda o: o.kind == v.kind)

    def of(self, name: str) -> Value:
        return self.values[name]

    def dim(self, name: str) -> int:
        r = self.of(name).rank
        if not r:
            raise _NoneError
        return self.among(-r, r - 1)

    def constant(self, array: Any, kind: int) -> str:
        """A constant of the model: an initialiser, or now and then a node."""
        stored = np.asarray(array).astype(NUMPY[kind])
        name = f"c{len(self.constants)}"
        self.constants[name] = stored
        array = wide(stored)
        self.values[name] = Value(kind, (array,) * len(self.bindings), shape=kind in WHOLE)
        return name

    def listed(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64), I64)

    def numbers(self, kind: int, shape: Sequence[int]) -> str:
        """Constant numbers of a type."""
        if kind == BOOL:
            return self.constant(self.rng.random(shape) < 0.5, kind)
        if kind in WHOLE:
            low, high = LIMITS[kind]
            return self.constant(self.rng.choice([0, 1, 2, 3, -1, -3, 7, 100], shape).clip(low, high), kind)
        special = self.chance(0.1)
        of = [0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -0.25, *([np.inf, -np.inf, -1e4] if special else [])]
        return self.constant(self.rng.choice(of, shape), kind)

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, /, **attributes: Any) -> str:
        """One more node, whose first result is returned; `shape` says that it is computed from shapes alone.

        Raises:
            _NoneError: onnx does not take it.
        """
        shape = bool(attributes.pop("shape", False))
        names = [f"v{self.count + n}" for n in range(outputs)]
        inputs = list(inputs)
        while inputs and not inputs[-1]:
            inputs.pop()
        try:
            proto = helper.make_node(op, inputs, names, **attributes)
        except (ValueError, TypeError) as error:
            raise _NoneError from error
        made = [self._evaluated(proto, n) for n in range(len(self.bindings))]
        kinds = self._kinds(proto)
        for place, name in enumerate(names):
            arrays = tuple(m[place] for m in made)
            ranks = {a.ndim for a in arrays}
            if len(ranks) > 1 or any(a.size > MOST or a.ndim > 5 for a in arrays):
                raise _NoneError
            if any(not a.size for a in arrays) and not self.chance(0.05):
                raise _NoneError
            self.values[name] = Value(kinds[place], arrays, shape)
        self.count += outputs
        self.nodes.append(proto)
        return names[0]

    def _evaluated(self, proto: onnx.NodeProto, at: int) -> list[Array]:
        given = {i: self.values[i].arrays[at] for i in proto.input if i}
        graph = helper.make_graph(
            [proto],
            "g",
            [helper.make_tensor_value_info(i, self.values[i].kind, a.shape) for i, a in given.items()],
            [onnx.ValueInfoProto(name=o) for o in proto.output],
        )
        try:
            values = Oracle(self._model(graph)).values(given)
            found = [values[o] for o in proto.output]
        except Exception as error:  # whatever an operator raises for what it does not take
            raise _NoneError from error
        if any(a.dtype.kind not in "fiub" for a in found):
            raise _NoneError
        return found

    def _kinds(self, proto: onnx.NodeProto) -> list[int]:
        graph = helper.make_graph(
            [proto],
            "g",
            [
                helper.make_tensor_value_info(i, self.values[i].kind, self.values[i].arrays[0].shape)
                for i in dict.fromkeys(proto.input)
                if i
            ],
            [onnx.ValueInfoProto(name=o) for o in proto.output],
        )
        try:
            inferred = shape_inference.infer_shapes(self._model(graph), check_type=True, strict_mode=True)
        except shape_inference.InferenceError as error:
            raise _NoneError from error
        kinds = [o.type.tensor_type.elem_type for o in inferred.graph.output]
        if any(k not in NUMPY for k in kinds):
            raise _NoneError
        return kinds

    def _model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        opset = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opset, ir_version=4 if self.opset < 9 else 10)

    def step(self, vocabulary: Mapping[str, Callable[[Maker], object]], names: Sequence[str]) -> None:
        """Some more nodes, if what is drawn is legal."""
        before = len(self.nodes), dict(self.values), dict(self.constants), self.count
        try:
            vocabulary[self.pick(names)](self)
        except _NoneError:
            del self.nodes[before[0] :]
            _, self.values, self.constants, self.count = before

    def done(self) -> Graph | None:
        """The graph: its last value, another one at times, and what they need."""
        made = [o for n in self.nodes for o in n.output]
        if not made:
            return None
        results = [made[-1]]
        if len(made) > 2 and self.chance(0.3):
            results.append(made[self.among(0, len(made) - 2)])
        if self.chance(0.5):  # and whatever nothing reads
            read = {i for n in self.nodes for i in n.input}
            results += [o for o in made if o not in read][-3:]
        if self.chance(0.02):
            results.append(self.pick(tuple(self.inputs)))
        needed, kept = set(results), list[onnx.NodeProto]()
        for node in reversed(self.nodes):
            if needed & set(node.output):
                kept.append(node)
                needed |= {i for i in node.input if i}
        kept.reverse()
        inputs = {n: i for n, i in self.inputs.items() if n in needed}
        if not inputs:
            return None
        constants = {n: c for n, c in self.constants.items() if n in needed}
        stored = {n for n in constants if self.opset < 9 or self.chance(0.8)}
        kept = [
            *(helper.make_node("Constant", [], [n], value=numpy_helper.from_array(constants[n])) for n in constants
              if n not in stored),
            *kept,
        ]  # fmt: skip
        infos = [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()]
        if self.chance(0.1):  # defaults, which callers may pass
            infos += [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(c.dtype), c.shape)
                for n, c in constants.items()
                if n in stored
            ]
        graph = helper.make_graph(
            kept,
            "g",
            infos,
            [helper.make_tensor_value_info(r, self.values[r].kind, None) for r in dict.fromkeys(results)],
            [numpy_helper.from_array(c, n) for n, c in constants.items() if n in stored],
        )
        model = self._model(graph)
        if self.opset >= 15 and self.chance(0.15):
            model = self._with_function(model)
        return Graph(self.seed, model, inputs, self.bindings)

    def _with_function(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The model with a run of its nodes in a function."""
        nodes = [n for n in model.graph.node if n.op_type != "Constant"]
        first = self.among(0, len(nodes) - 1)
        inner = nodes[first : first + self.among(1, 4)]
        made = {o for n in inner for o in n.output if o}
        reads = list(dict.fromkeys(i for n in inner for i in n.input if i and i not in made))
        outside = [n for n in model.graph.node if n not in inner]
        asked = {i for n in outside for i in n.input} | {o.name for o in model.graph.output}
        out = [o for n in inner for o in n.output if o in asked]
        if not out or not reads:
            return model
        inside = {n: f"in_{n}" for n in (*reads, *made)}
        body = []
        for n in inner:
            copy = onnx.NodeProto()
            copy.CopyFrom(n)
            copy.ClearField("input")
            copy.ClearField("output")
            copy.input.extend(inside.get(i, "") for i in n.input)
            copy.output.extend(inside[o] for o in n.output)
            body.append(copy)
        function = helper.make_function(
            "own", "Part", [inside[r] for r in reads], [inside[o] for o in out], body,
            [helper.make_opsetid("", self.opset)],
        )  # fmt: skip
        result = onnx.ModelProto()
        result.CopyFrom(model)
        del result.graph.node[:]
        call = helper.make_node("Part", reads, out, domain="own")
        result.graph.node.extend(
            [
                *(n for n in model.graph.node if n.op_type == "Constant"),
                *nodes[:first],
                call,
                *nodes[first + len(inner) :],
            ]
        )
        result.functions.append(function)
        result.opset_import.append(helper.make_opsetid("own", 1))
        return result


class _NoneError(Exception):
    """Nothing of the kind can be drawn here."""


# What is drawn

_UNARY = str.split(
    "Abs Neg Exp Log Sqrt Reciprocal Sigmoid Tanh Sin Cos Tan Floor Ceil Round Sign Erf Relu LeakyRelu Elu Selu Celu"
    " HardSigmoid HardSwish Softplus Softsign Mish Gelu Swish IsNaN Identity Neg Abs Relu"
)


def _unary(k: Maker) -> None:
    op = k.pick(_UNARY)
    attributes: dict[str, Any] = {}
    if op in ("LeakyRelu", "Elu", "Celu", "Selu", "Swish", "HardSigmoid") and k.chance(0.6):
        attributes["alpha"] = k.pick((0.5, 1.0, 0.01, 2.0, -0.5))
    if op == "HardSigmoid" and k.chance(0.5):
        attributes["beta"] = k.pick((0.0, 0.5, 1.0))
    if op == "Gelu" and k.chance(0.5):
        attributes["approximate"] = k.pick(("tanh", "none"))
    k.node(op, [k.value() if k.chance(0.2) else k.float()], **attributes)


def _clip(k: Maker) -> None:
    a = k.value(lambda v: v.kind != BOOL)
    if k.opset < 11:
        limits = {n: k.pick((-1.0, 0.0, 0.5, 6.0)) for n in ("min", "max") if k.chance(0.6)}
        k.node("Clip", [k.float()], **limits)
        return
    low, high = (k.numbers(k.of(a).kind, ()) if k.chance(0.6) else "" for _ in range(2))
    k.node("Clip", [a, low, high])


def _binary(k: Maker) -> None:
    a = k.value(lambda v: v.kind != BOOL)
    b = k.like(a)
    if k.chance(0.3):
        a, b = b, a
    op = k.pick(("Add", "Sub", "Mul", "Div", "Add", "Sub", "Mul", "Div", "Pow", "Mod", "PRelu"))
    k.node(op, [a, b], **({"fmod": k.pick((0, 1, 1))} if op == "Mod" and k.chance(0.6) else {}))


def _several(k: Maker) -> None:
    a = k.value(lambda v: v.kind != BOOL)
    k.node(k.pick(("Min", "Max", "Sum", "Mean")), [a, *(k.like(a) for _ in range(k.among(0, 2)))])


def _compare(k: Maker) -> None:
    a = k.value(lambda v: v.kind != BOOL)
    k.node(k.pick(("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual")), [a, k.like(a)])


def _logic(k: Maker) -> None:
    if k.chance(0.3):
        k.node("Not", [k.truth()])
    else:
        k.node(k.pick(("And", "Or", "Xor")), [k.truth(), k.truth()])


def _where(k: Maker) -> None:
    a = k.value()
    b = k.like(a)
    k.node("Where", [k.truth(), *((a, b) if k.chance(0.5) else (b, a))])


def _cast(k: Maker) -> None:
    if k.opset >= 15 and k.chance(0.2):
        k.node("CastLike", [k.value(), k.value()])
    else:
        k.node("Cast", [k.value()], to=k.pick((*FLOATS, F32, *WHOLE, I64, BOOL)))


_REDUCTIONS = str.split(
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum"
    " ReduceLogSumExp ReduceSum ReduceMean ReduceMax"
)


def _reduce(k: Maker) -> None:
    op, a = k.pick(_REDUCTIONS), k.value()
    attributes: dict[str, Any] = {"keepdims": k.among(0, 1)} if k.chance(0.7) else {}
    axes = [k.dim(a)] if k.of(a).rank and k.chance(0.8) else []
    if axes and k.of(a).rank > 1 and k.chance(0.25):
        r = k.of(a).rank
        axes = [int(d) for d in k.rng.permutation(r)[:2]]
        axes = [d - r if k.chance(0.5) else d for d in axes]
    inputs = [a]
    if k.opset >= 18 or (op == "ReduceSum" and k.opset >= 13):
        if axes or k.chance(0.3):
            inputs.append(k.listed(*axes))
        if k.chance(0.3):
            attributes["noop_with_empty_axes"] = k.among(0, 1)
    elif axes:
        attributes["axes"] = axes
    k.node(op, inputs, **attributes)


def _product(k: Maker) -> None:
    a = k.wide()
    kind = k.of(a).kind
    match k.among(0, 3):
        case 0 | 1:
            b = k.value(lambda v: v.kind == kind and v.rank >= 1)
            if k.chance(0.5):
                e = k.of(a).extents[-1]
                if e is None:
                    raise _NoneError
                b = k.numbers(kind, k.pick(((e, 3), (e,), (2, e, 3), (e, 1))))
            elif k.chance(0.6):
                b = _turned(k, a)
            k.node("MatMul", [a, b])
        case 2:
            a = k.value(lambda v: v.rank == 2 and v.kind in (*FLOATS, I32, I64))
            kind = k.of(a).kind
            b = k.value(lambda v: v.rank == 2 and v.kind == kind)
            attributes: dict[str, Any] = {n: k.among(0, 1) for n in ("transA", "transB") if k.chance(0.7)}
            attributes |= {n: k.pick((0.0, 1.0, 0.5, 2.0, -1.0)) for n in ("alpha", "beta") if k.chance(0.4)}
            c = "" if k.chance(0.4) else k.value(lambda v: v.kind == kind and v.rank <= 2)
            if not c and k.opset < 11:
                c = k.numbers(kind, (1,))
            k.node("Gemm", [a, b, c], **attributes)
        case _:
            one = ("ij->ji", "ij->i", "ij->", "ii->i", "...ij->...ji", "ij", "...j->...", "ii", "i...->...")
            two = (
                "ij,ij->i",
                "ij,kj->ik",
                "ij,j->i",
                "...j,...j->...",
                "ij,jk",
                "ij,jk->ik",
                "i,j->ij",
                "bij,bkj->bik",
            )
            if k.chance(0.4):
                k.node("Einsum", [a], equation=k.pick(one))
            else:
                b = k.value(lambda v: v.kind == kind and v.rank >= 1)
                k.node("Einsum", [a, a if k.chance(0.3) else b], equation=k.pick(two))


def _turned(k: Maker, a: str) -> str:
    r = k.of(a).rank
    if r < 2:
        raise _NoneError
    return k.node("Transpose", [a], perm=[*range(r - 2), r - 1, r - 2])


def _axes(k: Maker, op: str, a: str, axes: Sequence[int]) -> None:
    if k.opset >= 13:
        k.node(op, [a, k.listed(*axes)])
    else:
        k.node(op, [a], axes=list(axes))


def _view(k: Maker) -> None:
    a = k.wide()
    v = k.of(a)
    r, e = v.rank, v.extents
    match k.pick(("transpose", "squeeze", "unsqueeze", "flatten", "expand", "tile", "trilu", "identity", "reshape")):
        case "transpose":
            if k.chance(0.3):
                k.node("Transpose", [a])
            else:
                k.node("Transpose", [a], perm=[int(d) for d in k.rng.permutation(r)])
        case "squeeze":
            ones = [d for d in range(r) if e[d] == 1]
            if not ones or k.chance(0.2):
                k.node("Squeeze", [a])
            else:
                _axes(k, "Squeeze", a, [d - r if k.chance(0.5) and k.opset >= 11 else d for d in ones[:1]])
        case "unsqueeze":
            axes = [int(d) for d in k.rng.permutation(r + 2)[:2]] if k.chance(0.3) else [k.among(0, r)]
            full = r + len(axes)
            # before version 13, the reference goes by the order of the axes
            axes = [d - full if k.chance(0.4) else d for d in axes] if k.opset >= 13 else sorted(axes)
            _axes(k, "Unsqueeze", a, axes)
        case "flatten":
            k.node("Flatten", [a], **({"axis": k.among(-r if k.opset >= 11 else 0, r)} if k.chance(0.8) else {}))
        case "expand":
            shape = [k.pick((1, 2, 3) if x == 1 else (1, x or 1)) for x in e]
            if k.chance(0.4):
                shape = [k.among(1, 3), *shape]
            k.node("Expand", [a, k.listed(*shape)])
        case "tile":
            k.node("Tile", [a, k.listed(*(k.pick((1, 1, 2, 3)) for _ in range(r)))])
        case "trilu":
            given = [a, k.constant(k.among(-2, 2), I64)] if k.chance(0.6) else [a]
            k.node("Trilu", given, **({"upper": k.among(0, 1)} if k.chance(0.7) else {}))
        case "identity":
            k.node(k.pick(("Identity", "Dropout")), [a])
        case _:
            _reshape(k, a)


def _reshape(k: Maker, a: str) -> None:
    v = k.of(a)
    e = v.extents
    many = k.pick((0, 1, 2, 3, 4))
    match many:
        case 0:
            shape = [-1]
        case 1:
            shape = [0] * (v.rank - 1) + [-1] if v.rank else [1]
        case 2:
            d = k.among(0, v.rank - 1)
            n = e[d]
            factors = [f for f in (1, 2, 3, 4) if n and n % f == 0] or [1]
            f = k.pick(factors)
            shape = [0 if j < d else x if x is not None else -1 for j, x in enumerate(e)]
            shape[d : d + 1] = k.pick(([f, n // f], [n // f, f], [f, -1], [-1, f])) if n else [0 if d == 0 else -1, 1]
        case 3:
            d = k.among(0, max(0, v.rank - 2))
            shape = [0] * d + [-1] + [x if x is not None else -1 for x in e[d + 2 :]]
        case _:
            shape = [k.pick((2, 3, -1, 1, 0, 6)) for _ in range(k.among(1, 3))]
    allow = {"allowzero": k.among(0, 1)} if k.opset >= 14 and k.chance(0.1) else {}
    k.node("Reshape", [a, k.listed(*shape)], **allow)


def _slice(k: Maker) -> None:
    a = k.wide()
    v = k.of(a)
    axes = [int(d) for d in k.rng.permutation(v.rank)[: k.among(1, min(2, v.rank))]]
    far = 2**31 - 1 if k.chance(0.5) else 2**63 - 1
    starts, ends, steps = [], [], []
    for d in axes:
        n = v.extents[d] or 2
        step = k.pick((1, 1, 1, 2, 3, -1, -1, -2)) if k.opset >= 10 else 1
        if step > 0:
            starts.append(k.pick((0, 0, 1, -n, -1, -2, k.among(0, n), -far, k.among(-n - 2, n + 2))))
            ends.append(k.pick((far, n, n - 1, -1, n + 3, far, k.among(-n - 2, n + 2), 2)))
        else:
            starts.append(k.pick((-1, n - 1, far, n, k.among(-n, n))))
            ends.append(k.pick((-far, -n - 1, 0, -n, k.among(-n - 2, n))))
        steps.append(step)
    named = [d - v.rank if k.chance(0.5) and k.opset >= 10 else d for d in axes]
    if k.opset < 10:
        k.node("Slice", [a], starts=starts, ends=ends, axes=named)
        return
    given = [a, k.listed(*starts), k.listed(*ends)]
    if steps != [1] * len(steps) or k.chance(0.3):
        given += [k.listed(*named), k.listed(*steps)]
    elif named != list(range(len(named))) or k.chance(0.5):
        given.append(k.listed(*named))
    k.node("Slice", given)


def _split(k: Maker) -> None:
    a = k.wide()
    d = k.dim(a)
    if k.opset < 11:
        d %= k.of(a).rank
    n = k.of(a).extents[d] or 2
    parts = k.among(1, 3)
    sizes = [max(n // parts, 1)] * (parts - 1)
    sizes.append(n - sum(sizes))
    attributes = {"axis": d} if d or k.chance(0.5) else {}
    if k.chance(0.5):
        if k.opset >= 13:
            k.node("Split", [a, k.listed(*sizes)], parts, **attributes)
        else:
            k.node("Split", [a], parts, split=sizes, **attributes)
    elif k.opset >= 18:
        k.node("Split", [a], parts, num_outputs=parts, **attributes)
    else:
        k.node("Split", [a], parts, **attributes)


def _concat(k: Maker) -> None:
    a = k.wide()
    v = k.of(a)
    d = k.dim(a)
    if k.opset < 11:
        d %= v.rank
    others = [k.value(lambda o: o.kind == v.kind and o.rank == v.rank) for _ in range(k.among(0, 2))]
    if k.chance(0.6):
        others = [k.value(lambda o: o.kind == v.kind and o.arrays[0].shape == v.arrays[0].shape)]
    k.node("Concat", [a, *others] if k.chance(0.5) else [*others, a], axis=d)


def _gather(k: Maker) -> None:
    a = k.wide()
    v = k.of(a)
    d = k.dim(a)
    n = v.extents[d] or 1
    shape = k.pick(((), (1,), (3,), (2, 2)))
    low = -n if k.opset >= 11 else 0
    places = k.rng.integers(low, n, shape)
    kind = k.pick((I64, I32))
    match k.among(0, 4):
        case 0:
            if k.opset < 11:
                raise _NoneError
            shape = tuple(1 if e is None else e for e in v.extents)
            k.node("GatherElements", [a, k.constant(k.rng.integers(low, n, shape), kind)], axis=d)
        case 1:
            k.node("Gather", [a, k.constant(k.rng.integers(0, 1, shape), kind)])
        case 2:
            k.node("Gather", [a, k.constant(np.arange(n), kind)], axis=d)
        case _:
            k.node("Gather", [a, k.constant(places, kind)], axis=d)


def _norm(k: Maker) -> None:
    a = k.float(1)
    v = k.of(a)
    d = k.dim(a)
    eps = {"epsilon": k.pick((1e-5, 0.1, 1e-3))} if k.chance(0.6) else {}
    op = k.pick(
        str.split(
            "Softmax LogSoftmax LayerNormalization RMSNormalization BatchNormalization InstanceNormalization"
            " GroupNormalization LpNormalization CumSum Softmax"
        )
    )

    def parameter(extents: Sequence[int | None]) -> str:
        if any(e is None for e in extents):
            raise _NoneError
        return k.numbers(v.kind, [e or 0 for e in extents])

    match op:
        case "Softmax" | "LogSoftmax":
            d = d % v.rank if k.opset < 11 else d
            k.node(op, [a], **({"axis": d} if k.chance(0.8) else {}))
        case "LayerNormalization":
            d = k.pick((-1, d))
            over = v.extents[d % v.rank :]
            bias = [parameter(over)] if k.chance(0.5) else []
            results = k.pick((1, 1, 1, 2, 3))
            k.node(op, [a, parameter(over), *bias], results, **eps, **({"axis": d} if d != -1 or k.chance(0.5) else {}))
        case "RMSNormalization":
            k.node(op, [a, parameter(v.extents[d % v.rank :])], axis=d, **eps)
        case "BatchNormalization":
            if v.rank < 2 or k.opset < 14:  # before, the reference always trains
                raise _NoneError
            c = v.extents[1:2]
            variance = k.constant(np.abs(k.constants[parameter(c)].astype(np.float64)) + 0.5, v.kind)
            k.node(op, [a, parameter(c), parameter(c), parameter(c), variance], **eps)
        case "InstanceNormalization":
            a = k.float(3)
            v = k.of(a)
            c = v.extents[1:2]
            k.node(op, [a, parameter(c), parameter(c)], **eps)
        case "GroupNormalization":
            a = k.float(3)
            v = k.of(a)
            groups = k.pick([g for g in (1, 2, 3) if v.extents[1] and v.extents[1] % g == 0] or [1])
            c = v.extents[1:2] if k.opset >= 21 else (groups,)
            k.node(op, [a, parameter(c), parameter(c)], num_groups=groups, **eps)
        case "LpNormalization":
            k.node(op, [a], **({"axis": d} if k.chance(0.6) else {}))  # of p = 1 the reference takes signed sums
        case _:
            a = k.value(lambda v: v.rank >= 1 and v.kind != BOOL)
            flags = {n: k.among(0, 1) for n in ("exclusive", "reverse") if k.chance(0.5)}
            k.node(op, [a, k.constant(k.dim(a), I64 if k.chance(0.5) else I32)], **flags)


def _attention(k: Maker) -> None:
    kind = k.pick(FLOATS)
    if k.opset < 23 or k.chance(0.3):  # written out
        a = k.float(2)
        b = k.like(a)
        scores = k.node("MatMul", [a, _turned(k, b)])
        if k.chance(0.5):
            scores = k.node("Mul", [scores, k.constant(0.5, k.of(scores).kind)])
        if k.chance(0.5):
            scores = k.node("Where", [k.truth(), scores, k.constant(-np.inf, k.of(scores).kind)])
        k.node("MatMul", [k.node("Softmax", [scores], axis=-1), b])
        return
    a = k.value(lambda v: v.rank == 3 and v.kind in FLOATS)
    kind, last = k.of(a).kind, k.of(a).extents[2]
    if last is None:
        raise _NoneError
    if k.chance(0.3):
        heads = k.pick([h for h in (1, 2, 3) if last % (2 * h) == 0] or [0])
        if not heads or k.of(a).extents[1] is None:
            raise _NoneError
        size, many = last // heads, k.of(a).extents[1] or 0
        caches = [k.numbers(kind, (k.of(a).extents[0] or 1, many, size // 2)) for _ in range(2)]
        k.node("RotaryEmbedding", [a, *caches], num_heads=heads, interleaved=k.among(0, 1))
        return
    heads = k.pick([h for h in (1, 2, 3) if last % h == 0])
    shape = k.of(a).arrays[0].shape
    b = k.value(lambda v: v.kind == kind and v.rank == 3 and v.arrays[0].shape == shape)
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": heads}
    attributes |= {"is_causal": k.among(0, 1)} if k.chance(0.6) else {}
    attributes |= {"scale": k.pick((0.3, 1.0))} if k.chance(0.4) else {}
    attributes |= {"softcap": k.pick((2.0, 0.0))} if k.chance(0.2) else {}
    # with a row for every query: the reference's causal mask has as many rows as the one that is passed
    rows = shape[1]
    mask = [k.value(lambda v: v.rank == 2 and v.kind in (BOOL, kind) and v.extents[0] == rows)] if k.chance(0.3) else []
    k.node("Attention", [a, b, k.pick((a, b)), *mask], **attributes)


def _lookup(k: Maker) -> None:
    """What chooses by data: losses, lookups, quantised weights."""
    if k.chance(0.5):
        q = k.value(lambda v: v.kind in (I8, U8, I32) and v.rank >= 1)
        d = k.dim(q)
        n = k.of(q).extents[d]
        scale = k.constant(0.25, F32)
        given = [q, scale]
        if n is not None and k.opset >= 13 and k.chance(0.5):
            given = [q, k.constant(np.arange(1, n + 1) / 4, F32)]
            if k.chance(0.6) and k.of(q).kind != I32:
                given.append(k.constant(np.arange(n), k.of(q).kind))
            k.node("DequantizeLinear", given, axis=d)
            return
        if k.chance(0.5) and k.of(q).kind != I32:
            given.append(k.constant(3, k.of(q).kind))
        k.node("DequantizeLinear", given)
        return
    a = k.float(2, 3)
    e = [n or 0 for n in k.of(a).extents]
    if 0 in e:
        raise _NoneError
    labels = k.constant(k.rng.integers(0, e[1], (e[0], *e[2:])), I64)
    weight = [k.numbers(k.of(a).kind, (e[1],))] if k.chance(0.4) else []
    attributes: dict[str, Any] = {"reduction": k.pick(("none", "sum", "mean"))} if k.chance(0.7) else {}
    if k.chance(0.3):
        attributes["ignore_index"] = k.among(0, 2)
    op = k.pick(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"))
    k.node(op, [a, labels, *weight], k.among(1, 2) if op[0] == "S" else 1, **attributes)


def _shapes(k: Maker) -> None:
    """What is computed of shapes, and what is made with it."""
    a = k.wide()
    v = k.of(a)
    r = v.rank
    shape = k.node("Shape", [a], shape=True)

    def at(d: int) -> str:
        return k.node("Gather", [shape, k.constant(np.int64(d), I64)], shape=True)

    def listed(name: str) -> str:
        return _unsqueezed(k, name)

    d = k.among(0, r - 1)
    n = at(d)
    match k.pick(("merge", "expand", "fill", "range", "mask", "half", "split", "last", "size", "tile", "mean", "same")):
        case "merge":
            other = at(k.dim(a))
            merged = k.node(k.pick(("Mul", "Mul", "Add", "Div")), [n, other], shape=True)
            target = k.node("Concat", [listed(merged), k.listed(-1)], shape=True, axis=0)
            k.node("Reshape", [a, target])
        case "expand":
            b = k.value()
            k.node("Expand", [b, shape])
        case "fill":
            filled = {"value": numpy_helper.from_array(np.array([k.among(0, 2)], NUMPY[v.kind]))}
            made = k.node("ConstantOfShape", [shape], **(filled if k.chance(0.8) else {}))
            if k.of(made).kind == v.kind and v.kind != BOOL:
                k.node("Add", [a, made])
        case "range":
            line = _line(k, n)
            if v.kind != BOOL:
                kind = v.kind
                moved = k.node("Cast", [line], to=kind)
                if d < r - 1:
                    moved = k.node("Reshape", [moved, k.listed(-1, *[1] * (r - 1 - d))])
                k.node(k.pick(("Add", "Mul", "Sub")), [a, moved])
        case "mask":
            m = at(r - 1)
            rows = k.node("Reshape", [_line(k, at(max(r - 2, 0))), k.listed(-1, 1)], shape=True)
            op = k.pick(("Less", "Greater", "Equal"))
            if k.opset < 9:
                raise _NoneError
            mask = k.node(op, [_line(k, m), rows])
            k.node("Where", [mask, a, k.numbers(v.kind, ())])
        case "half":
            two = k.constant(np.int64(k.pick((2, 2, 3))), I64)
            half = k.node(k.pick(("Div", "Sub")), [n, two], shape=True)
            if k.opset < 10:
                raise _NoneError
            zero, far = k.listed(0), k.listed(2**63 - 1)
            start, end = (zero, listed(half)) if k.chance(0.5) else (listed(half), far)
            k.node("Slice", [a, start, end, k.listed(d)])
        case "split":
            f = k.pick((1, 2, 3))
            wanted = [k.listed(0) if j < d else listed(at(j)) for j in range(r)]
            two = k.constant(np.int64(f), I64)
            part = listed(k.node("Div", [n, two], shape=True))
            ways = ([k.listed(f), part], [k.listed(-1), k.listed(f)], [k.listed(f), k.listed(-1)])
            wanted[d : d + 1] = k.pick(ways)
            k.node("Reshape", [a, k.node("Concat", wanted, shape=True, axis=0)])
        case "last":
            one = k.constant(np.int64(1), I64)
            if k.opset < 10:
                raise _NoneError
            last = listed(k.node("Sub", [n, one], shape=True))
            k.node("Slice", [a, *((last, listed(n)) if k.chance(0.5) else (k.listed(0), last)), k.listed(d)])
        case "size":
            size = k.node("Size", [a], shape=True)
            b = k.float()
            k.node(k.pick(("Div", "Mul")), [b, k.node("Cast", [size], to=k.of(b).kind)])
        case "tile":
            b = k.wide()
            k.node(
                "Tile",
                [b, k.node("Concat", [listed(n), *(k.listed(1) for _ in range(k.of(b).rank - 1))], shape=True, axis=0)],
            )
        case "mean":
            total = k.node("ReduceSum", [a], **({} if k.opset >= 13 else {"axes": [d]}))
            kind = k.of(total).kind
            k.node(k.pick(("Div", "Mul", "Sub")), [total, k.node("Cast", [n], to=kind)])
        case _:
            b = k.value()
            k.node("Reshape", [b, shape])


def _unsqueezed(k: Maker, name: str) -> str:
    if k.opset >= 13:
        return k.node("Unsqueeze", [name, k.listed(0)], shape=True)
    return k.node("Unsqueeze", [name], shape=True, axes=[0])


def _line(k: Maker, limit: str) -> str:
    start = k.constant(np.int64(k.pick((0, 0, 0, 1, -1))), I64)
    step = k.constant(np.int64(k.pick((1, 1, 1, 2))), I64)
    return k.node("Range", [start, limit, step], shape=True)


VOCABULARY: Mapping[str, Callable[[Maker], object]] = MappingProxyType(
    {
        "unary": _unary, "clip": _clip, "binary": _binary, "several": _several, "compare": _compare, "logic": _logic,
        "where": _where, "cast": _cast, "reduce": _reduce, "product": _product, "view": _view, "slice": _slice,
        "split": _split, "concat": _concat, "gather": _gather, "norm": _norm, "attention": _attention,
        "lookup": _lookup, "shapes": _shapes,
    }
)  # fmt: skip
OFTEN = ("unary", "binary", "binary", "reduce", "reduce", "view", "view", "view", "slice", "cast", "norm", "product")


def graph(seed: int, dynamic: bool | None = None, least: int = 3, most: int = 25) -> Graph | None:
    """A graph; where it is not said, one in three has symbolic dimensions."""
    k = Maker(seed, seed % 3 == 0 if dynamic is None else dynamic)
    names = (*VOCABULARY, *OFTEN, *(("shapes",) * 8 if k.dynamic else ()))
    many = k.among(least, most)
    for _ in range(2 * many):
        if len(k.nodes) < many:
            k.step(VOCABULARY, names)
    return k.done()
