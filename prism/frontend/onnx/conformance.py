"""Is a loaded program the ONNX model? The program's definitions against onnx's reference runtime, node by node.

The runtime evaluates one node after another, every float type lifted to float64 where the node takes it; see
prism/program/conformance.py. What it cannot evaluate, or gets wrong, onnxruntime is asked for where it is installed. A
node that neither can run is given numbers of its result's shape and type, so that what follows is compared all the
same, and is named in the record.

A model without symbolic dimensions that is too large to run is read again at reduced extents, where its nodes take
them. What decides is counted, never timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from prism.errors import ConformanceError, PrismError
from prism.frontend.equal_nodes import Step, equal_nodes
from prism.frontend.onnx import contrib, spectra
from prism.frontend.onnx.dtypes import element_type
from prism.frontend.onnx.graph import MAIN_DOMAINS, OnnxValue
from prism.frontend.onnx.other_readers import ReferenceRuntime
from prism.frontend.state import State, claims
from prism.program import conformance, example_draws, extents
from prism.program.arrays import numpy_type
from prism.program.conformance import DOUBLE, MIXED, PRECISIONS, SINGLE, Claim, Comparison, Difference, Precision
from prism.program.coverage import Coverage, coverage, draws_within, reduced, same_form
from prism.program.evaluate import evaluate_expr
from prism.program.nodes import Conformance, DType, Program, SymbolRange

_SWITCH = "--no-check (check=False)"
_FLOATS = frozenset({TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
# The reference runtime loops over the elements of these in Python: of more elements than these they are not run.
_SLOW = frozenset({"MaxPool", "AveragePool", "LpPool", "Resize", "GridSample", "RoiAlign", "Col2Im", "ConvTranspose"})
_SLOW_ELEMENTS = 1 << 12
# Of so many numbers that are made up, the leading extents repeat the same.
_STAND_IN = 1 << 20
# Constants of so many elements stay what they are where a node is run alone.
_HELD = 1 << 12
_TOO_LARGE = "its extents are too large to run, and it takes no smaller ones"
# Attributes that say how an operator computes inside, which lifting makes moot.
_INNER_TYPES = frozenset({"stash_type", "softmax_precision"})


@dataclass(frozen=True, slots=True)
class Reading:
    """A model and the program that was made of it."""

    model: onnx.ModelProto  # its graph, functions written out
    name: str  # the file
    program: Program  # the translation
    values: Mapping[str, OnnxValue]  # what stands for each value of the graph, by its name there
    state: State  # what the reader knew of the program's tensors


def checked(reading: Reading, again: Callable[[onnx.ModelProto], Reading]) -> Program:
    """The program, once it has been compared with the model.

    Args:
        reading: the model and its program.
        again: reads another model as this one was.

    Raises:
        ConformanceError: they do not agree: a bug in prism.
    """
    return replace(reading.program, conformance=_record(reading, again))


def _record(reading: Reading, again: Callable[[onnx.ModelProto], Reading]) -> Conformance:
    sized = _coverage(reading)
    if sized:
        return _compared(reading, sized)
    smaller = _at_reduced_extents(reading, again)
    if smaller is not None and not smaller.missing:
        return smaller
    sized = _coverage(reading, partly=True)
    in_part = _with_large(reading, sized[0], _compared(reading, sized[:1]), again) if sized else None
    found = [r for r in (in_part, smaller) if r is not None and r.draws]
    return min(found, key=lambda r: bool(r.missing), default=conformance.unchecked(_TOO_LARGE))


def _coverage(reading: Reading, *, partly: bool = False) -> list[Coverage]:
    """What can be compared, at each of the extents at which the model may be run."""
    said = _claims(reading)
    same = cache(partial(_equal, reading, said))
    found = (coverage(reading.program, b, said, same, partly=partly) for b in _bindings(reading.program))
    return [c for c in found if c is not None]


def _equal(reading: Reading, said: Sequence[Claim]) -> dict[str, str]:
    """For each value of a node that is translated as an earlier one is, the earlier one's value."""
    values, steps = reading.values, []
    for node in reading.model.graph.node:
        bare = onnx.NodeProto(op_type=node.op_type, domain=node.domain, overload=node.overload)
        bare.attribute.extend(sorted(node.attribute, key=lambda a: a.name))
        unknown = tuple(i if i not in values else "" for i in node.input)
        what = (bare.SerializeToString(deterministic=True), unknown, tuple(map(bool, node.output)))
        steps.append(Step(what, tuple(values.get(i) for i in node.input), tuple(filter(None, node.output))))
    return equal_nodes(reading.program, said, steps, reading.state)


def _with_large(
    reading: Reading, size: Coverage, record: Conformance, again: Callable[[onnx.ModelProto], Reading]
) -> Conformance:
    """The record with those nodes that are too large to be run: each alone, at smaller extents, if it takes them."""
    missing, elements, alone = [], record.elements, 0
    for node in reading.model.graph.node:
        if size.left.isdisjoint(node.output):
            continue
        found = _alone_at_reduced_extents(reading, node, size.binding, again)
        if found is None or not found.draws or found.missing:
            missing.append(_text(node))
        else:
            elements, alone = elements + found.elements, alone + 1
    if not size.definitions and not alone:
        return conformance.unchecked(_TOO_LARGE)
    once = replace(size, definitions=size.definitions + alone).once(reading.program)
    said = [s for s in (once, f"{alone} of them alone at smaller extents" if alone else "") if s]
    left = f"not compared, being too large: {conformance.some(missing)}" if missing else ""
    both = "; ".join(s for s in (record.missing, left) if s)
    return replace(record, elements=elements, once=", ".join(said), missing=both)


def _alone_at_reduced_extents(
    reading: Reading, node: onnx.NodeProto, binding: Mapping[str, int], again: Callable[[onnx.ModelProto], Reading]
) -> Conformance | None:
    """The comparison of one node at smaller extents; None where it takes none, or is translated otherwise there."""
    single = _single(reading, node, binding)
    if single is None:
        return None
    said = _claims(reading)
    others = {c.value for c in said} - {*node.output}
    try:
        alone = again(single)
        if not same_form(alone.program.definitions, conformance.evaluated(reading.program, said, others)):
            return None
        return _at_reduced_extents(alone, again)
    except PrismError as error:
        if isinstance(error, ConformanceError):
            raise
        return None


def _single(reading: Reading, node: onnx.NodeProto, binding: Mapping[str, int]) -> onnx.ModelProto | None:
    """A model of one node, whose operands of many elements are inputs; None where one has no type of the program's."""
    inputs, held = [], []
    for name in dict.fromkeys(filter(None, node.input)):
        value = reading.values.get(name)
        if value is None or value.carried:
            return None
        shape = tuple(extents.evaluate(e, binding) for e in value.shape)
        if value.tensor or math.prod(shape) > _HELD:
            inputs.append(helper.make_tensor_value_info(name, element_type(value.dtype), shape))
            continue
        array = value.array
        if array is None and value.formula is not None:
            array = np.broadcast_to(evaluate_expr(value.formula, {}, binding, value.axes), shape)
        if array is None:
            return None
        kind = helper.tensor_dtype_to_np_dtype(element_type(value.dtype))
        held.append(numpy_helper.from_array(np.asarray(array).astype(kind), name))
    results = [onnx.ValueInfoProto(name=o) for o in node.output if o]
    graph = helper.make_graph([node], "node", inputs, results, held)
    model = reading.model
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _at_reduced_extents(reading: Reading, again: Callable[[onnx.ModelProto], Reading]) -> Conformance | None:
    """The comparison of the model at smaller extents of its inputs, read anew; None where it takes none."""
    shapes = _fixed(reading)
    smaller = reduced(list(shapes.values()), lambda tried: _taken(reading, shapes, tried, again))
    if smaller is None:
        return None
    with _at(reading.model, dict(zip(shapes, smaller, strict=True))):
        other = again(reading.model)
        sized = _coverage(other)
        if not sized:
            return None
        record = _compared(other, sized)
    shown = ", ".join(f"{n}[{', '.join(str(e or '?') for e in s)}]" for n, s in zip(shapes, smaller, strict=True))
    note = (
        ""
        if same_form(other.program.definitions, reading.program.definitions)
        else "the program has another form there"
    )
    where = f"{shown}, {record.extents}" if record.extents else shown
    return replace(record, extents=where, missing=record.missing or note)


def _fixed(reading: Reading) -> dict[str, tuple[int, ...]]:
    """The extents of the inputs that the caller passes, by the names in the graph; 0 for symbolic ones."""
    held = {t.name for t in reading.model.graph.initializer}
    return {
        i.name: tuple(int(d.dim_value) for d in i.type.tensor_type.shape.dim)
        for i in reading.model.graph.input
        if i.name not in held
    }


def _taken(
    reading: Reading,
    names: Iterable[str],
    shapes: Sequence[tuple[int, ...]],
    again: Callable[[onnx.ModelProto], Reading],
) -> bool:
    """Whether the model takes inputs of other extents."""
    try:
        with _at(reading.model, dict(zip(names, shapes, strict=True))):
            again(reading.model)
    except PrismError:
        return False
    return True


def _bindings(program: Program) -> list[dict[str, int]]:
    """Values of the symbols to compare at, the first that the model takes: small, different ones if it can be."""
    if not program.ranges:
        return [{}]

    small = (SymbolRange.sizes(program.ranges, program.ranges, base, stride) for base, stride in ((3, 2), (8, 0)))
    return [*small, dict(program.hints)]


def _compared(reading: Reading, sized: Sequence[Coverage]) -> Conformance:
    with ReferenceRuntime() as reference:
        return _compared_with(_Runtime(reading, reference), sized)


def _compared_with(runtime: _Runtime, sized: Sequence[Coverage]) -> Conformance:
    reading = runtime.reading
    program = reading.program
    claims = _claims(reading)
    for size in sized:
        draws, binding, precision = conformance.Draws("onnx"), size.binding, size.precision
        for seed, (name, _) in enumerate(draws_within([size], example=False)):
            compared = Comparison(
                program, claims, binding, lenient=name == "not finite", second=runtime.second, taken=size.taken
            )
            why = ""
            for inputs, last in _inputs(reading, name, seed, binding):
                try:
                    values, loose = runtime.run(inputs, size, last)
                except _NotRunError as error:  # an index out of range, a division by zero
                    why = str(error)
                    continue
                found = compared.difference(inputs, values, loose, precision, runtime.undefined)
                if found is not None:
                    raise _error(reading, found, name, seed)
                why = ""
                break
            draws.add(name, compared, why)
        if draws.done:
            break
    shown = ", ".join(f"{s}={n}" for s, n in binding.items())
    missing = f"not compared: {', '.join(runtime.missing)}" if runtime.missing else ""
    against = f"onnx.reference {onnx.__version__} in {precision.dtype}"
    record = draws.record(against, shown, missing, none="the model could not be run")
    return replace(record, once=size.once(program))


def _error(reading: Reading, found: Difference, name: str, seed: int) -> PrismError:
    return found.error(reading.name, "onnx.reference", f"on the inputs drawn as {name!r} (seed {seed})", _SWITCH)


def _claims(reading: Reading) -> list[Claim]:
    graph, values = reading.model.graph, reading.values
    made = ((o, _text(node), values[o]) for node in graph.node for o in node.output if o in values)
    return claims(reading.program, made, ((o.name, f"output {o.name!r}") for o in graph.output))


def _text(node: onnx.NodeProto) -> str:
    label = node.name or next((o for o in node.output if o), "")
    return f"node {label!r} ({node.op_type})"


def _inputs(
    reading: Reading, name: str, seed: int, binding: Mapping[str, int]
) -> Iterator[tuple[dict[str, np.ndarray], bool]]:
    """The inputs of a draw; again with integers of a narrower range where the model did not take them."""
    given = reading.program.arguments
    whole = any(not t.dtype.is_float and t.dtype is not DType.BOOL for t in given)
    attempts: tuple[tuple[int, int] | None, ...] = (None, (-2, 2), (0, 3), (0, 1), (0, 0)) if whole else (None,)
    among = conformance.thresholds(reading.program)
    for n, within in enumerate(attempts):
        yield (
            {
                t.name: example_draws.draw(
                    name,
                    tuple(extents.evaluate(e, binding) for e in t.shape),
                    t.dtype,
                    (seed, place),
                    None if t.dtype.is_float else within,
                    among,
                )
                for place, t in enumerate(given)
            },
            n == len(attempts) - 1,
        )


# onnx's own values


class _NotRunError(Exception):
    """The inputs are none that the model takes."""


@dataclass(slots=True)
class _Runtime:
    """Runs the nodes of a model one after another."""

    reading: Reading  # the model
    reference: ReferenceRuntime  # where nodes run that may end the process
    missing: list[str] = field(default_factory=list)  # the nodes that could not be run, as the user knows them
    # Where the values of the last run are not defined, or not the model's.
    undefined: dict[str, Any] = field(default_factory=dict)
    _evaluators: dict[int, ReferenceEvaluator] = field(default_factory=dict)
    _known: dict[str, np.ndarray] = field(default_factory=dict)
    _binding: Mapping[str, int] = field(default_factory=dict)

    def run(
        self, inputs: Mapping[str, np.ndarray], size: Coverage, last: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, Precision]]:
        """The values of all nodes by name, and the precision of those that could not be computed in the lifted type.

        Raises:
            _NotRunError: a node does not take its inputs; others might do. Not for the last inputs that there are.
        """
        graph, values = self.reading.model.graph, self.reading.values
        lifted, taken = np.dtype(size.precision.dtype), size.taken
        known = self._known = {}
        binding = self._binding = size.binding
        self.undefined = {}
        for t in graph.initializer:
            array = values[t.name].array
            known[t.name] = _lift(numpy_helper.to_array(t) if array is None else array, lifted)
        for i in graph.input:
            if i.name not in known:
                known[i.name] = _lift(inputs[values[i.name].tensor], lifted)
        loose: dict[str, Precision] = {}
        results: dict[str, np.ndarray] = {}
        with np.errstate(all="ignore"):
            for place, node in enumerate(graph.node):
                if not taken.isdisjoint(node.output):
                    self._take(node, size, results, lifted)
                    continue
                made = self._made(place, node, known, lifted, loose)
                nowhere = None if made is None else _undefined(node, known)
                if nowhere is not None:
                    self.undefined[node.output[0]] = nowhere
                if made is None and not last:
                    raise _NotRunError(f"{_text(node)} does not take them")
                if made is None and _text(node) not in self.missing:
                    self.missing.append(_text(node))
                for label in node.output:
                    if not label:
                        continue
                    if made is not None and label in made:
                        known[label] = results[label] = made[label]
                    elif label in values:
                        known[label] = results[label] = self._stand_in(values[label], binding, lifted)
                        self.undefined[label] = np.True_
        return results, loose

    def _take(
        self, node: onnx.NodeProto, size: Coverage, results: dict[str, np.ndarray], lifted: np.dtype[Any]
    ) -> None:
        """Numbers for the results of a node that is not run."""
        for label in filter(None, node.output):
            if label in size.same:
                results[label] = self._known[size.same[label]]
            elif label in self.reading.values:
                results[label] = self._stand_in(self.reading.values[label], size.binding, lifted)
            else:
                continue
            self._known[label] = results[label]

    def _made(
        self,
        place: int,
        node: onnx.NodeProto,
        known: Mapping[str, np.ndarray],
        lifted: np.dtype[Any],
        loose: dict[str, Precision],
    ) -> dict[str, np.ndarray] | None:
        """The results of a node; None where it cannot be run."""
        given = {i: known[i] for i in node.input if i}
        if not _defined(node, given):
            return None
        if node.op_type == "Attention" and len(node.input) > 3 and node.input[3]:
            # Its causal mask has as many rows as the mask that is passed, which may have one for all queries.
            mask, queries = given[node.input[3]], given[node.input[0]].shape[-2]
            if mask.ndim > 1 and mask.shape[-2] == 1:
                given[node.input[3]] = np.broadcast_to(mask, (*mask.shape[:-2], queries, mask.shape[-1])).copy()
        slow = node.op_type in _SLOW and sum(a.size for a in given.values()) > _SLOW_ELEMENTS
        slow = slow or _misread(node, given)
        made = None if slow else self._evaluated(place, node, given)
        if made is not None and self._shaped(made):
            if _rounds_inside(self.reading.model, node) and lifted == _WIDE:
                loose.update(dict.fromkeys(made, MIXED))
            return {label: _lift(a, lifted) for label, a in made.items()}
        precision = self._precision((*node.output, *given))
        if made is None and not slow:
            made = self._evaluated(-place - 1, node, {i: self._typed(i, a) for i, a in given.items()})
        if made is None or not self._shaped(made):  # before version 13, its Unsqueeze goes by the order of the axes
            other = self._elsewhere(node, given)
            if other is not None and (made is None or self._shaped(other[0])):
                made, precision = other
        if made is None:
            return None
        loose.update(dict.fromkeys(made, precision))
        return {label: _lift(a, lifted) for label, a in made.items()}

    def _elsewhere(
        self, node: onnx.NodeProto, given: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], Precision] | None:
        """A node's results by onnxruntime, and how precise they are; None where it cannot run it.

        What is of half precision is computed in float32, where it can be: it has few kernels of half precision, whose
        rounding would excuse almost anything.
        """
        precision = self._precision((*node.output, *given))
        if precision.relative > SINGLE.relative:
            made = self._stock(node, {i: _lift(a, _NARROW) for i, a in given.items()}, lift=True)
            if made is not None:
                return made, SINGLE
        made = self._stock(node, {i: self._typed(i, a) for i, a in given.items()}, lift=False)
        return None if made is None else (made, precision)

    def _stock(
        self, node: onnx.NodeProto, given: Mapping[str, np.ndarray], *, lift: bool
    ) -> dict[str, np.ndarray] | None:
        """A node's results by onnxruntime; of one that onnx does not know, in a process of its own."""
        model = self.reading.model
        if node.domain in MAIN_DOMAINS:
            return _onnxruntime(model, node, given, lift=lift)
        made = self.reference.run(_alone(model, node, given, lift=lift).SerializeToString(), given)
        return None if made is None else dict(zip([o for o in node.output if o], made, strict=True))

    def _precision(self, names: Iterable[str]) -> Precision:
        """That of what is computed of these values."""
        types = [self.reading.values[v].dtype for v in names if v in self.reading.values]
        return max((PRECISIONS[t] for t in types if t.is_float), key=lambda p: p.relative, default=DOUBLE)

    def second(self, value: str) -> tuple[np.ndarray, Precision] | None:
        """What onnxruntime says a value is, where its node was run last; None where it cannot tell."""
        node = next((n for n in self.reading.model.graph.node if value in n.output), None)
        if node is None:
            return None
        found = self._elsewhere(node, {i: self._known[i] for i in node.input if i})
        if found is None or value not in found[0]:
            return None
        return _lift(found[0][value], _WIDE), found[1]

    def _shaped(self, made: Mapping[str, np.ndarray]) -> bool:
        """Whether results have the shapes that the program gives them."""
        values = {label: self.reading.values[label] for label in made if label in self.reading.values}
        shapes = {label: tuple(extents.evaluate(e, self._binding) for e in v.shape) for label, v in values.items()}
        return all(made[label].shape == shape for label, shape in shapes.items())

    def _evaluated(
        self, key: int, node: onnx.NodeProto, given: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray] | None:
        try:
            if key not in self._evaluators:
                self._evaluators[key] = ReferenceEvaluator(_alone(self.reading.model, node, given, lift=key >= 0))
            made = self._evaluators[key].run(None, dict(given))
        except Exception:  # whatever an operator raises for types or numbers that it does not take
            return None
        wanted = [o for o in node.output if o]
        return {label: np.asarray(a) for label, a in zip(wanted, made, strict=True) if a is not None}

    def _typed(self, name: str, array: np.ndarray) -> np.ndarray:
        """A value in the model's own type."""
        value = self.reading.values.get(name)
        if value is None or not value.dtype.is_float:
            return array
        return array.astype(numpy_type(value.dtype))

    def _stand_in(self, value: OnnxValue, binding: Mapping[str, int], lifted: np.dtype[Any]) -> np.ndarray:
        """Numbers of a value's shape and type, for one that could not be computed; what it is where no data go in.

        What reads a formula has it written into itself, so that other numbers would look like a misreading there.
        """
        shape = tuple(extents.evaluate(e, binding) for e in value.shape)
        if not value.tensor and value.formula is not None:
            made = evaluate_expr(value.formula, {}, binding, value.axes)
            kind = lifted if value.dtype.is_float else numpy_type(value.dtype)
            return np.broadcast_to(made, shape).astype(kind)
        within = None if value.dtype.is_float else (0, 0)
        own = shape
        while math.prod(own) > _STAND_IN and len(own) > 1:
            own = own[1:]
        return np.broadcast_to(_lift(example_draws.draw("mixed", own, value.dtype, (0,), within), lifted), shape)


def _lift(array: np.ndarray, lifted: np.dtype[Any]) -> np.ndarray:
    """Floats of any type, those of ml_dtypes included, in the lifted one."""
    found = np.asarray(array)
    if found.dtype.kind == "f" or found.dtype.name == "bfloat16":
        return found.astype(lifted, copy=False)
    return found


def _defined(node: onnx.NodeProto, given: Mapping[str, np.ndarray]) -> bool:
    """Whether the text defines the node for these inputs; where it does not, runtimes do as they like."""
    attributes = {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT}
    match node.op_type:
        case "Gather" | "GatherElements":
            data, places = given[node.input[0]], given[node.input[1]]
            many = data.shape[attributes.get("axis", 0)]
            return bool(((places >= -many) & (places < many)).all())
        case "OneHot":  # fractions are cut off first, says the text, and no runtime does it
            places = given[node.input[0]]
            return bool((places == np.trunc(places)).all())
        case "DynamicQuantizeLinear":  # of zeros its formula divides zeros by zero
            return bool(np.any(given[node.input[0]]))
        case "NegativeLogLikelihoodLoss" | "SoftmaxCrossEntropyLoss":
            scores, labels = given[node.input[0]], given[node.input[1]]
            legal = (labels >= 0) & (labels < scores.shape[1])
            return bool((legal | (labels == attributes.get("ignore_index", -1 << 63))).all())
        case _:
            return True


def _undefined(node: onnx.NodeProto, known: Mapping[str, np.ndarray]) -> Any:
    """Where a node's first result is not defined by its operator, None for nowhere: whole numbers of no quotient."""
    match node.op_type:
        case "Div" | "Mod":
            divisor = known[node.input[1]]
            return divisor == 0 if divisor.dtype.kind in "iu" else None
        case "QuantizeLinear":
            x, scale = (known[i].astype(np.float64) for i in node.input[:2])
            attributes = {a.name: a.i for a in node.attribute}
            axis = attributes.get("axis", 1)
            if scale.ndim == 1 and scale.size > 1:
                scale = scale.reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])
            elif scale.ndim == x.ndim and attributes.get("block_size"):
                scale = np.repeat(scale, attributes["block_size"], axis)[tuple(slice(e) for e in x.shape)]
            return ~(np.abs(x / scale) < _LARGEST_LEVEL)
        case "Hardmax":  # what is not a number is the largest to one runtime and never to the other
            none = np.isnan(known[node.input[0]])
            first = next((a.i for a in node.attribute if a.name == "axis"), 0) % max(1, none.ndim)
            return np.broadcast_to(none.any(tuple(range(first, none.ndim)), keepdims=True), none.shape)
        case "QLinearMatMul" | "QLinearConv":
            scales = [known[node.input[place]] for place in (1, 4, 6)]
            defined = all(np.all(np.isfinite(s) & (s != 0)) for s in scales)
            return None if defined else np.True_
        case "Attention" | "MultiHeadAttention" if node.domain == contrib.DOMAIN:
            return _emptied(node, known)
    return None


def _emptied(node: onnx.NodeProto, known: Mapping[str, np.ndarray]) -> Any:
    """The queries all of whose keys are masked: what is left of their scores is how -10000 + score is rounded."""
    operands = [known[i] if i else None for i in node.input] + [None] * 8
    x, key, before = operands[0], operands[1 if node.op_type == "MultiHeadAttention" else 0], operands[6]
    mask = operands[4]
    if node.op_type == "Attention":
        mask, before = operands[3], operands[4]
    if mask is None or x is None or key is None:
        return None
    past = 0 if before is None else before.shape[-2]
    at = np.arange(past + key.shape[-2 if key.ndim == 4 else 1])
    if mask.ndim == 1:
        ends = mask.reshape(-1, x.shape[0], 1, 1)
        kept = at < ends[0]
        if len(ends) > 1:
            kept &= at >= ends[1]
    else:
        kept = (mask[:, None] if mask.ndim == 2 else mask) > 0
    if next((a.i for a in node.attribute if a.name == "unidirectional"), 0):
        kept = kept & (at <= np.arange(x.shape[1])[:, None] + past)
    return ~kept.any(-1, keepdims=True)


_LARGEST_LEVEL = 2.0**31
"""From here on what a quotient is saturated to is wrapped first in some runtimes."""


def _misread(node: onnx.NodeProto, given: Mapping[str, np.ndarray]) -> bool:
    """Whether the reference runtime is known to compute something else than the operator says."""
    operand = given.get(node.input[0]) if node.input else None
    match node.op_type:
        case "GlobalMaxPool":  # of two spatial dimensions alone
            return operand is not None and operand.ndim != 4
        case "MaxPool":  # whole numbers are padded with 0
            return operand is not None and operand.dtype.kind in "iu"
        case "LRN":  # the last of the channels nearby is left out
            return True
        case "ReverseSequence":  # lengths beyond the sequence, which the operator has not
            lengths = given.get(node.input[1])
            axis = next((a.i for a in node.attribute if a.name == "time_axis"), 0)
            return operand is None or lengths is None or not ((lengths >= 1) & (lengths <= operand.shape[axis])).all()
        case "TensorScatter":  # negative places, which the operator has not, count from the end
            starts = given.get(node.input[2]) if len(node.input) > 2 else None
            return starts is not None and bool((starts < 0).any())
        case "QLinearMatMul" | "QLinearConv":  # the zero point is added before it is rounded, which decides ties
            return True
    return False


def _rounds_inside(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Whether the reference runtime or the program may compute with constants that are rounded to float32.

    The former does in operators that it expands, and defaults of attributes are rounded in some and not in others; a
    Fourier transform's are a weight of the program.
    """
    if node.op_type in ("Erf", *spectra.TRANSLATORS):
        return True
    version = next((o.version for o in model.opset_import if o.domain == node.domain), 0)
    if not onnx.defs.has(node.op_type, version, node.domain):
        return False
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    floats = any(a.type == onnx.defs.OpSchema.AttrType.FLOAT for a in schema.attributes.values())
    expanded: Any = schema  # whose stubs lack these two
    return bool(floats or expanded.has_function or expanded.has_context_dependent_function)


def _alone(
    model: onnx.ModelProto, node: onnx.NodeProto, given: Mapping[str, np.ndarray], *, lift: bool
) -> onnx.ModelProto:
    """A model of one node."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    opsets = list(model.opset_import)
    if node.op_type == "BatchNormalization" and node.domain in MAIN_DOMAINS and sum(map(bool, node.output)) == 1:
        # Before version 14 the result alone says that nothing is trained, which the reference runtime does not see: it
        # mixes the batch's own mean and variance in. The last version says it by default, and is the same otherwise.
        opsets = [helper.make_opsetid("", max(15, *(o.version for o in opsets if o.domain in MAIN_DOMAINS)))]
        kept = [a for a in node.attribute if a.name in ("epsilon", "training_mode")]
        del copy.attribute[:], copy.output[1:]
        copy.attribute.extend(kept)
    if lift:
        kind = helper.np_dtype_to_tensor_dtype(next((a.dtype for a in given.values() if a.dtype.kind == "f"), _WIDE))
        for a in copy.attribute:
            if a.type == onnx.AttributeProto.INT and a.name in ("to", "dtype", "output_dtype") and a.i in _FLOATS:
                a.i = kind
            if a.type == onnx.AttributeProto.INT and a.name in _INNER_TYPES and a.i in _FLOATS:
                a.i = kind
    graph = helper.make_graph(
        [copy],
        "node",
        [helper.make_tensor_value_info(i, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for i, a in given.items()],
        [onnx.ValueInfoProto(name=o) for o in node.output if o],
    )
    return helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)


_WIDE = np.dtype(np.float64)
_NARROW = np.dtype(np.float32)


def _onnxruntime(
    model: onnx.ModelProto, node: onnx.NodeProto, given: Mapping[str, np.ndarray], *, lift: bool
) -> dict[str, np.ndarray] | None:
    """The results of a node by onnxruntime; None where it is not installed or cannot run it.

    Args:
        model: where it stands.
        node: the node.
        given: its inputs.
        lift: whether they are of another floating-point type than the node's own, and it is made of theirs.
    """
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        data = _alone(model, node, given, lift=lift).SerializeToString()
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        wanted = [o for o in node.output if o]
        return dict(zip(wanted, session.run(wanted, dict(given)), strict=True))
    except Exception:  # no kernel for these types, or numbers that it does not take
        return None


@contextmanager
def _at(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """The model with other extents of its inputs, and without what it states of its outputs' shapes."""
    graph = model.graph
    inputs = [(i, onnx.TypeProto.FromString(i.type.SerializeToString())) for i in graph.input]
    outputs = [(o, onnx.TypeProto.FromString(o.type.SerializeToString())) for o in graph.output]
    try:
        for i in graph.input:
            for d, n in zip(i.type.tensor_type.shape.dim, shapes.get(i.name, ()), strict=False):
                if d.HasField("dim_value"):
                    d.dim_value = n
        for o in graph.output:
            o.type.tensor_type.ClearField("shape")
        yield
    finally:
        for i, before in (*inputs, *outputs):
            i.type.CopyFrom(before)
