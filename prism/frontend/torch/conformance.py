"""Is a traced program the torch function? The program's definitions against torch's own values, node by node.

The graph that torch.export captured runs in eager, every float type lifted to float64, so that what torch computes and
what the program says differ by nothing but a wrong translation; see prism/program/conformance.py. Beside that the
function itself is called once on the example inputs, and the captured graph must give the same.

What is too large to run in float64 runs in float32, and what is too large to run at all is traced again at reduced
extents, where the function takes them. What decides is counted, never timed.
"""

from __future__ import annotations

import io
import logging
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export.graph_signature import ExportGraphSignature, InputKind
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from prism.errors import ConformanceError, PrismError, RuleError, UnsupportedError
from prism.frontend.equal_nodes import Step, equal_nodes
from prism.frontend.state import State, claims
from prism.frontend.torch.values import UNINITIALISED, TorchValue
from prism.program import conformance, example_draws, extents
from prism.program.conformance import DOUBLE, PRECISIONS, Claim, Comparison, Difference, Precision
from prism.program.coverage import Coverage, can_be_called, coverage, draws_within, reduced, same_form
from prism.program.evaluate import bind
from prism.program.nodes import Conformance, DType, Program, SymbolRange

_SWITCH = "check=False"


@dataclass(frozen=True, slots=True)
class Graph:
    """What is read of an exported program: its graph, and what the graph's inputs are."""

    graph: torch.fx.Graph  # operators on the inputs
    graph_signature: ExportGraphSignature  # which inputs are the function's, and which are tensors that it holds
    range_constraints: Mapping[Any, Any]  # bounds of symbolic sizes
    state_dict: Mapping[str, Any]  # parameters and buffers by name
    constants: Mapping[str, Any]  # other tensors that it holds, by name

    @classmethod
    def of(cls, exported: torch.export.ExportedProgram, graph: torch.fx.Graph | None = None) -> Graph:
        """That of an exported program; with another graph of the same inputs, if one is given."""
        return cls(
            graph or exported.graph,
            exported.graph_signature,
            exported.range_constraints,
            exported.state_dict,
            exported.constants,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """A function as it was captured, and the program that was made of it."""

    title: str  # the program's name
    function: Callable[..., Any]  # what was traced
    examples: tuple[torch.Tensor, ...]  # the example inputs
    captured: torch.export.ExportedProgram  # torch's graph of the function, as torch.export gives it
    exported: Graph  # the graph that was translated: the same, partly decomposed
    program: Program  # the translation
    values: Mapping[torch.fx.Node, Any]  # what stands for each node of the translated graph
    origin: Callable[[torch.fx.Node], str]  # a node as the user knows it
    # torch's decompositions, by operator: of those of the captured graph that have no translation.
    formulas: Mapping[Any, Callable[..., Any]]
    apart: Sequence[torch.fx.Node]  # the nodes of the captured graph that were decomposed
    state: State  # what the reader knew of the program's tensors


def checked(reading: Reading, again: Callable[[tuple[torch.Tensor, ...]], Reading] | None) -> Program:
    """The program, once it has been compared with the function.

    `again` reads the function at other examples; None where its extents are symbolic.

    Raises:
        ConformanceError: they do not agree: a bug in prism.
        RuleError: an operator is declared to be something else than it computes.
    """
    sizes = _coverage(reading)
    record = _compared(reading, sizes) if sizes else _at_reduced_extents(reading, again)
    if not record.draws and not sizes:
        in_part = [c for c in _coverage(reading, partly=True) if c.definitions]
        record = _compared(reading, in_part) if in_part else record
    return replace(reading.program, conformance=record)


def _has_values(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "meta" and not isinstance(tensor, FakeTensor)


def _holds_nan(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and bool(tensor.isnan().any())


# How much of it is run


def _bindings(reading: Reading) -> list[dict[str, int]]:
    """The extents at which the program is compared: those of the examples, and small ones of its symbols."""
    given = reading.program.arguments
    shapes = {t.name: tuple(e.shape) for t, e in zip(given, reading.examples, strict=True)}
    found = [bind(given, shapes)]
    ranges = reading.program.ranges
    if ranges:
        found.append(SymbolRange.sizes(ranges, ranges, 3, 2))
    return found


def _coverage(reading: Reading, *, partly: bool = False) -> list[Coverage]:
    """What can be compared at each of the extents; nothing where the symbols given do not determine one."""
    said = _claims(reading)
    values = {n: v for n, v in reading.values.items() if isinstance(v, TorchValue)}
    steps = _steps(reading.exported.graph, values)
    same = cache(lambda: equal_nodes(reading.program, said, steps, reading.state))
    found = []
    for binding in _bindings(reading):
        with suppress(KeyError):
            found.append(coverage(reading.program, binding, said, same, partly=partly))
    return [c for c in found if c is not None]


def _steps(graph: torch.fx.Graph, values: Mapping[torch.fx.Node, TorchValue]) -> list[Step]:
    """The operators of a graph, each with the picks from its results."""
    found = []
    for node in graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        operands: dict[torch.fx.Node, int] = {}

        def told(given: Any, operands: dict[torch.fx.Node, int] = operands) -> Any:
            if isinstance(given, torch.fx.Node) and isinstance(given.meta.get("val"), torch.Tensor):
                return f"operand {operands.setdefault(given, len(operands))} {_told(given)}"
            return str(given)

        picks = [u for u in node.users if u.target is operator.getitem]
        given = str(pytree.tree_map(told, (node.args, node.kwargs)))
        what = (str(node.target), given, _told(node), tuple(str(p.args[1]) for p in picks))
        found.append(Step(what, tuple(values.get(n) for n in operands), (node.name, *(p.name for p in picks))))
    return found


def _told(node: torch.fx.Node) -> str:
    tensors = [t for t in pytree.tree_leaves(node.meta.get("val")) if isinstance(t, torch.Tensor)]
    return str([(t.dtype, [*t.shape], [*t.stride()]) for t in tensors])


def _at_reduced_extents(reading: Reading, again: Callable[[tuple[torch.Tensor, ...]], Reading] | None) -> Conformance:
    """The comparison of the function at smaller examples, read anew."""
    too_large = "its extents are too large to run, and "
    if again is None:
        return conformance.unchecked(too_large + "symbolic ones give no smaller")
    smaller = _smaller(reading)
    if smaller is None:
        return conformance.unchecked(too_large + "the function takes no smaller ones")
    try:
        other = again(smaller)
    except PrismError as error:
        return conformance.unchecked(f"{too_large}at smaller ones: {error.what}")
    sizes = _coverage(other)
    if not sizes:
        return conformance.unchecked(too_large + "the smaller ones that the function takes are as well")
    record = _compared(other, sizes)
    shown = ", ".join(f"{t.name}{list(e.shape)}" for t, e in zip(other.program.arguments, smaller, strict=True))
    same = same_form(other.program.definitions, reading.program.definitions)
    note = "" if same else "the program has another form there"
    return replace(record, extents=shown, missing=record.missing or note)


@contextmanager
def quietly() -> Iterator[None]:
    """Hold back what torch prints of its own accord.

    Its deprecations are of no use to whoever traces, what it cannot capture becomes an error of ours, and what is tried
    at other shapes may fail.
    """
    loggers = [logging.getLogger(n) for n in list(logging.root.manager.loggerDict) if n.split(".")[0] == "torch"]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for handler in handlers:
            handler.addFilter(_nothing)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(_nothing)


def _nothing(_: logging.LogRecord) -> bool:
    return False


def _smaller(reading: Reading) -> tuple[torch.Tensor, ...] | None:
    """Examples of reduced extents that the function takes."""
    shapes = [tuple(int(n) for n in e.shape) for e in reading.examples]
    with quietly():
        found = reduced(shapes, lambda tried: _takes(reading, tried))
    if found is None:
        return None
    made = []
    for shape, example in zip(found, reading.examples, strict=True):
        if _has_values(example):
            # the example's own corner: what is legal as an index or a count there is legal here, mostly
            made.append(example.detach()[tuple(slice(0, k) for k in shape)].clone())
        else:
            made.append(torch.empty(shape, dtype=example.dtype, device=example.device))
    return tuple(made)


def _takes(reading: Reading, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the function can be called at these shapes."""
    try:
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
            given = [
                torch.empty(s, dtype=e.dtype, device=_device(e.device))
                for s, e in zip(shapes, reading.examples, strict=True)
            ]
            reading.function(*given)
    except Exception:  # whatever torch or the function raises: it does not take them
        return False
    return True


# The comparison


def _compared(reading: Reading, sizes: Sequence[Coverage]) -> Conformance:
    program = reading.program
    claims = _claims(reading)
    given = program.arguments
    shapes = {t.name: tuple(e.shape) for t, e in zip(given, reading.examples, strict=True)}
    draws = conformance.Draws("torch")
    own = [c for c in sizes[:1] if c.binding == bind(given, shapes)]
    example = bool(own) and all(_has_values(e) for e in reading.examples)
    exact = example and (own[0].precision is DOUBLE or all(e.element_size() >= 4 for e in reading.examples))
    if exact and can_be_called(program, own[0].binding):
        _compare_function(reading)
    for seed, (name, at) in enumerate(draws_within(sizes, example)):
        size, binding, precision = sizes[at], sizes[at].binding, sizes[at].precision
        undefined = name == "example" and any(map(_holds_nan, reading.examples))
        lenient = undefined or name == "not finite"
        compared = Comparison(program, claims, binding, lenient=lenient, taken=size.taken)
        why = ""
        for inputs in _inputs(reading, name, seed, binding, precision):
            try:
                run = _Run(reading, inputs, size)
                _compare_decompositions(reading, inputs, size, name)
            except PrismError:
                raise
            except _UndefinedError as undefined:
                why = str(undefined)
                break
            except Exception as error:  # an index out of range, a division by zero: what torch itself refuses
                why = (str(error).strip().splitlines() or [type(error).__name__])[0]
                continue
            compared.moved = run.moved
            found = compared.difference(inputs, run.values, run.loose, precision, run.undefined)
            if found is not None:
                raise _error(reading, found, run, name, seed)
            why = ""
            break
        draws.add(name, compared, why)
    against = f"torch {torch.__version__} in {sizes[0].precision.dtype}"
    left = dict.fromkeys(c.node for c in claims if c.value in sizes[0].left)
    missing = f"not compared, being too large: {conformance.some(list(left))}" if left else ""
    if left and reading.apart:
        missing += ", nor torch's decompositions with its operators"
    record = draws.record(against, missing=missing, none="there are no values to run it on")
    return replace(record, once=sizes[0].once(program))


def _error(reading: Reading, found: Difference, run: _Run, name: str, seed: int) -> PrismError:
    on = "on the example inputs" if name == "example" else f"on the inputs drawn as {name!r} (seed {seed})"
    if run.declared.get(found.node):
        return RuleError(
            f"the declaration of {run.declared[found.node]} is not what the operator computes",
            where=f"{reading.title}, {found.node}",
            why=f"{found.what.format(against='torch')}, {on}",
            fix="correct the declaration in the rule file, or the operator",
        )
    return found.error(reading.title, "torch", on, _SWITCH)


def _claims(reading: Reading) -> list[Claim]:
    def made() -> Iterator[tuple[str, str, TorchValue]]:
        for node, value in reading.values.items():
            if isinstance(value, TorchValue) and node.op != "placeholder":
                chosen = node.op == "call_function" and node.target is operator.getitem
                by: Any = node.args[0] if chosen else node
                yield node.name, reading.origin(by), value

    return claims(reading.program, made(), ((n.name, f"the output {n.name}") for n in _flat(reading.exported)))


def _flat(exported: Graph) -> list[torch.fx.Node]:
    output = next(n for n in exported.graph.nodes if n.op == "output")
    return [n for n in pytree.tree_leaves(output.args[0]) if isinstance(n, torch.fx.Node)]


def _inputs(
    reading: Reading, name: str, seed: int, binding: Mapping[str, int], precision: Precision
) -> Iterator[dict[str, np.ndarray]]:
    """The inputs of a draw; again with integers of a narrower range where the function did not take them."""
    given = reading.program.arguments
    if name == "example":
        yield {t.name: _array(e, widen=precision is DOUBLE) for t, e in zip(given, reading.examples, strict=True)}
        return
    shapes = [tuple(extents.evaluate(e, binding) for e in t.shape) for t in given]
    among = conformance.thresholds(reading.program)
    for attempt in range(5):
        made = {}
        for n, (t, shape, example) in enumerate(zip(given, shapes, reading.examples, strict=True)):
            within = None if t.dtype.is_float else _within(example, attempt)
            drawn = example_draws.draw(name, shape, t.dtype, (seed, n), within, among)
            # What torch is given, to the last bit: a view of an input is that input.
            made[t.name] = drawn.astype(np.float32) if t.dtype.is_float and precision is not DOUBLE else drawn
        yield made
        if all(t.dtype.is_float or t.dtype is DType.BOOL for t in given):
            return


def _within_rows(places: torch.Tensor, rows: int) -> None:
    """Raises IndexError: a place is none of so many rows. torch counts by places, in memory, without a look at them."""
    if bool(((places < 0) | (places >= rows)).any()):
        raise IndexError(f"places from {int(places.min())} to {int(places.max())} of {rows} rows")


def _within(example: torch.Tensor, attempt: int) -> tuple[int, int] | None:
    """The integers to draw from at each attempt: any, as large as the example's, its own range, and less."""
    low, high = 0, 3
    if _has_values(example) and example.numel():
        low, high = int(example.min()), int(example.max())
    most = max(abs(low), abs(high))
    return (None, (-most, most), (low, high), (0, 1), (0, 0))[attempt]


def _array(tensor: torch.Tensor, widen: bool = False) -> np.ndarray:
    held = tensor.detach()
    if held.dtype is torch.bfloat16:
        held = held.float()
    if widen and held.is_floating_point():
        held = held.double()
    return np.asarray(held.cpu().numpy())


# torch's own values


class _UndefinedError(Exception):
    """The inputs make torch do what has no defined result."""


@contextmanager
def _comparable(dtype: torch.dtype) -> Iterator[None]:
    """Numbers are of that type where nothing says so, and what is written to one place twice is written in order.

    On several threads `index_put` leaves one of both there, now this one and now that.
    """
    before, in_order = torch.get_default_dtype(), torch.get_deterministic_debug_mode()
    torch.set_default_dtype(dtype)
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(in_order)
        torch.set_default_dtype(before)


def _device(device: torch.device) -> torch.device:
    return torch.device("cpu") if device.type == "meta" else device


class _Run:
    """The translated graph in eager on some inputs, floats lifted to one type.

    Args:
        reading: what was read.
        inputs: arrays by the program's names.
        size: what floats are lifted to, and which values are not computed.
        visit: is given each node of the *captured* graph, which then is what is run, its arguments and its result.
    """

    def __init__(
        self,
        reading: Reading,
        inputs: Mapping[str, np.ndarray],
        size: Coverage,
        visit: Callable[[torch.fx.Node, Any, Any, Any], None] | None = None,
    ) -> None:
        self.values: dict[str, np.ndarray] = {}  # by node name
        self.loose: dict[str, Precision] = {}  # the precision of those that could not be computed in that type
        self.undefined: dict[str, np.ndarray] = {}  # where the values of a node are not defined
        # Nodes that call operators of the user's own, as the user knows them, and those operators' names.
        self.declared: dict[str, str] = {}
        self._lifted = torch.float64 if size.precision is DOUBLE else torch.float32
        self._size = size
        self._known: dict[torch.fx.Node, Any] = {}
        self._visit = visit
        with torch.no_grad(), _comparable(self._lifted):
            self._run(reading, inputs, reading.exported if visit is None else Graph.of(reading.captured))

    def _run(self, reading: Reading, inputs: Mapping[str, np.ndarray], exported: Graph) -> None:
        same, left = self._size.same, self._size.left
        if self._visit is not None and same:
            same = equal_nodes(reading.program, (), _steps(exported.graph, {}), reading.state)
        by_name = {n.name: n for n in exported.graph.nodes} if same else {}
        specs = iter(exported.graph_signature.input_specs)
        names = iter([t.name for t in reading.program.arguments])
        examples = iter(reading.examples)
        for node in exported.graph.nodes:
            if node.op == "placeholder":
                spec = next(specs)
                if spec.kind is InputKind.USER_INPUT:
                    device = _device(next(examples).device)
                    tensor = torch.from_numpy(np.asarray(inputs[next(names)], order="C")).to(device)
                else:
                    assert spec.target is not None
                    state = exported.state_dict
                    tensor = (state if spec.target in state else exported.constants)[spec.target].detach()
                self._known[node] = self._lift(tensor)
            elif node.name in same:
                self._known[node] = self._known[by_name[same[node.name]]]
            elif node.name in left:
                self._known[node] = pytree.tree_map(self._stand_in, node.meta.get("val"))
            elif node.op == "call_function" and not _asserts(node):
                self._known[node] = self._call(node)
                if reading.origin(node) and _declared(node):
                    self.declared[reading.origin(node)] = _declared(node)
        for node, value in self._known.items():
            if isinstance(value, torch.Tensor):
                self.values[node.name] = _array(value)

    def _lift(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.to(self._lifted)
        return value

    def _stand_in(self, of: Any) -> Any:
        """Numbers for a result that is not computed: one, everywhere."""
        return self._lift(torch.ones((), dtype=of.dtype).expand(of.shape)) if isinstance(of, torch.Tensor) else of

    def _call(self, node: torch.fx.Node) -> Any:
        args, kwargs = pytree.tree_map(self._argument, (node.args, node.kwargs))
        target: Any = node.target
        if not isinstance(target, torch._ops.OpOverload):  # arithmetic on sizes, getitem
            return target(*args, **kwargs)
        self._note_undefined(node, args, kwargs)
        if str(target._schema.name).removeprefix("aten::") in UNINITIALISED:
            return torch.zeros_like(self._lift(target(*args, **kwargs)))
        if str(target._schema.name) == "aten::embedding_dense_backward":
            _within_rows(*args[1:3])
        if str(target) != "aten.view.dtype":
            try:
                args, kwargs = _explicit(node, args, kwargs)
                kwargs = self._lifted_types(kwargs)
                made = pytree.tree_map(self._lift, target(*args, **kwargs))
                self._note_ties(node, args, kwargs, made)
                if self._visit is not None:
                    self._visit(node, args, kwargs, made)
                return made
            except (RuntimeError, TypeError, NotImplementedError) as error:
                if isinstance(error, IndexError):
                    raise
        return self._native(node)

    def moved(self, value: str, step: float, seed: int) -> np.ndarray | None:
        """What the node gives where its operands are off by up to so much, relative; None where it cannot be asked."""
        node = next(n for n in self._known if n.name == value)
        whole, path = node, list[Any]()
        while whole.target is operator.getitem and isinstance(whole.args[0], torch.fx.Node):
            path.append(whole.args[1])
            whole = whole.args[0]
        if not isinstance(whole.target, torch._ops.OpOverload) or value in self.loose:
            return None
        rng = np.random.default_rng(seed)

        def shaken(given: Any) -> Any:
            known = self._argument(given)
            if isinstance(known, torch.Tensor) and known.is_floating_point():
                return known * (1 + step * torch.from_numpy(rng.uniform(-1.0, 1.0, tuple(known.shape))).to(known))
            return known

        with torch.no_grad(), _comparable(self._lifted):
            args, kwargs = _explicit(whole, *pytree.tree_map(shaken, (whole.args, whole.kwargs)))
            made = whole.target(*args, **self._lifted_types(kwargs))
        for index in reversed(path):
            made = made[index]
        return _array(made)

    def _native(self, node: torch.fx.Node) -> Any:
        """The node in its own types, where it takes no others."""
        args, kwargs = pytree.tree_map(self._native_argument, (node.args, node.kwargs))
        target: Any = node.target
        result = target(*args, **kwargs)
        meta = node.meta.get("val")
        dtypes = [m.dtype for m in pytree.tree_leaves(meta) if isinstance(m, torch.Tensor) and m.is_floating_point()]
        dtypes += [
            a.dtype for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor) and a.is_floating_point()
        ]
        if dtypes:
            worst = max((PRECISIONS[DType(str(d).removeprefix("torch."))] for d in dtypes), key=lambda p: p.relative)
            self.loose[node.name] = worst
            for user in node.users:
                if user.op == "call_function" and not isinstance(user.target, torch._ops.OpOverload):
                    self.loose[user.name] = worst
        return pytree.tree_map(self._lift, result)

    def _argument(self, given: Any) -> Any:
        match given:
            case torch.fx.Node():
                return self._known[given]
            case torch.dtype():
                return self._lifted if given.is_floating_point else given
            case torch.device():
                return _device(given)
        return given

    def _native_argument(self, given: Any) -> Any:
        match given:
            case torch.fx.Node():
                value, meta = self._known[given], given.meta.get("val")
                if isinstance(value, torch.Tensor) and isinstance(meta, torch.Tensor):
                    return value.to(meta.dtype)
                return value
            case torch.device():
                return _device(given)
        return given

    def _lifted_types(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {k: self._argument(v) for k, v in kwargs.items()}

    def _note_ties(self, node: torch.fx.Node, args: Any, kwargs: Any, made: Any) -> None:
        """Which of equal elements comes first is not said of a sort that is not stable."""
        target: Any = node.target
        places = [u.name for u in node.users if u.target is operator.getitem and u.args[1] == 1]
        if target._schema.name not in ("aten::topk", "aten::sort") or not places:
            return
        given = dict(zip((a.name for a in target._schema.arguments), args, strict=False)) | kwargs
        x, dim = given["self"], given.get("dim", -1)
        if not given.get("stable") and x.numel() and x.dim():
            descending = given.get("descending", given.get("largest", "k" in given))
            tied = _tied(x, dim, descending).narrow(dim, 0, made[1].shape[dim])
            self.undefined |= dict.fromkeys(places, _array(tied))

    def _note_undefined(self, node: torch.fx.Node, args: Any, kwargs: Any) -> None:
        """A float beyond an integer type is converted to anything."""
        meta = node.meta.get("val")
        if not isinstance(meta, torch.Tensor) or meta.is_floating_point() or meta.dtype is torch.bool:
            return
        for a in pytree.tree_leaves((args, kwargs)):
            if not isinstance(a, torch.Tensor) or not a.is_floating_point():
                continue
            beyond = ~(a.abs() < 2.0**31)
            if a.shape == meta.shape:
                self.undefined[node.name] = _array(beyond)
            elif bool(beyond.any()):
                raise _UndefinedError(f"{node.target} of what {meta.dtype} does not hold is not defined")


def _tied(x: torch.Tensor, dim: int, descending: bool) -> torch.Tensor:
    """For each place of a row in its order, whether another element of the row is equal, or one is not a number."""
    ordered = x.sort(dim, descending=descending).values
    behind = ordered.shape[dim] - 1
    one, other = ordered.narrow(dim, 0, behind), ordered.narrow(dim, 1, behind)
    found = x.isnan().any(dim, keepdim=True).expand_as(x).clone()
    for first in (0, 1):
        found.narrow(dim, first, behind).logical_or_(one == other)
    return found


def _explicit(node: torch.fx.Node, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with those made explicit that depend on the type of a tensor, by default or by rounding."""
    if node.target is torch.ops.aten.topk.default:  # in any order: in theirs, which is the default
        return args[:4], {name: given for name, given in kwargs.items() if name != "sorted"}
    first = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], torch.fx.Node) else None
    if not isinstance(first, torch.Tensor) or not first.is_floating_point():
        return args, kwargs
    target: Any = node.target
    match str(target._schema.name).removeprefix("aten::"):
        case "nan_to_num":
            limits = torch.finfo(first.dtype)
            given = [*args, *[None] * (4 - len(args))]
            x, nan, high, low = (
                kwargs.get(k, g) for k, g in zip(("self", "nan", "posinf", "neginf"), given, strict=True)
            )
            return (x, nan, limits.max if high is None else high, limits.min if low is None else low), {}
        case "rms_norm" | "_fused_rms_norm":
            given = [*args, *[None] * (4 - len(args))]
            names = ("input", "normalized_shape", "weight", "eps")
            x, shape, weight, eps = (kwargs.get(k, g) for k, g in zip(names, given, strict=True))
            # half precision is computed in float32
            wide = torch.promote_types(first.dtype, torch.float32)
            return (x, shape, weight, torch.finfo(wide).eps if eps is None else eps), {}
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge" if target._overloadname == "Scalar" and len(args) == 2:
            # torch compares with the number as the tensor's own type holds it
            x, number = args
            if isinstance(number, (bool, int, float)):
                return (x, torch.tensor(number, dtype=first.dtype).item()), kwargs
    return args, kwargs


def _asserts(node: torch.fx.Node) -> bool:
    return "_assert" in str(node.target) or "sym_constrain" in str(node.target)


def _declared(node: torch.fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and target.namespace not in ("aten", "prims", "prim"):
        return str(target)
    return ""


# What torch takes an operator apart into


class _Decomposed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators are computed by what torch takes them apart into."""

    def __init__(self, formulas: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._formulas = formulas

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """By its decomposition, in which others are decomposed."""
        if func in self._formulas:
            with self:
                found = self._formulas[func](*args, **(kwargs or {}))
            if found is not NotImplemented:
                return found
        return func(*args, **(kwargs or {}))


def _largest(operands: Iterable[Any]) -> float:
    """The largest finite magnitude in tensors of floating-point numbers; 0 without any."""
    held = (o for o in operands if isinstance(o, torch.Tensor) and o.is_floating_point() and o.numel())
    return max((float(o.nan_to_num(0.0, 0.0, 0.0).abs().max()) for o in held), default=0.0)


def _compare_decompositions(reading: Reading, inputs: Mapping[str, np.ndarray], size: Coverage, name: str) -> None:
    """Compare the operators that were decomposed with their decompositions, which are not all right.

    Raises:
        UnsupportedError: one computes something else.
    """
    apart = set(reading.apart)
    if not apart or name == "not finite" or size.left:
        return

    def visit(node: torch.fx.Node, args: Any, kwargs: Any, made: Any) -> None:
        if node not in apart:
            return
        largest = _largest(pytree.tree_leaves((args, kwargs)))
        # Products of its numbers may overflow in one order and not in another: of a deep network's gradients, drawn
        # statistics multiply up.
        if largest**2 > torch.finfo(torch.float32).max:
            return
        try:
            with _Decomposed(reading.formulas):
                found = node.target(*args, **kwargs)  # type: ignore[operator]
        except Exception:  # it takes no such types
            return
        # A result that is not asked for is None, and its decomposition may have one all the same.
        both = zip(pytree.tree_leaves(made), pytree.tree_leaves(found), strict=True)
        asked = [(m, f) for m, f in both if isinstance(m, torch.Tensor)]
        expected, given = [m for m, _ in asked], [f for _, f in asked]
        differing = _unequal(expected, given, torch.float32, largest)
        if differing is not None:
            raise UnsupportedError(
                f"{node.target} has no translation",
                where=f"{reading.title}, {reading.origin(node)}",
                why=f"torch's decomposition of it computes something else: {differing} on the inputs drawn as {name!r}",
                fix="rewrite this part with supported operations, or keep it outside the traced function",
            )

    _Run(reading, inputs, size, visit)


# The function itself


def _compare_function(reading: Reading) -> None:
    """Compare what the function gives for the examples with what torch's graph of it gives, in their own types."""
    with torch.no_grad():
        try:
            expected = _called(reading)
            changing = _unequal(expected, _called(reading))
            module = reading.captured.module()
            found = [t for t in pytree.tree_leaves(module(*_detached(reading))) if isinstance(t, torch.Tensor)]
        except Exception:  # it cannot be called on these inputs: nothing to hold the graph to
            return
        differing = _unequal(expected, found)
    if changing is not None:
        raise UnsupportedError(
            "the function gives another result when it is called again",
            where=reading.title,
            why=f"{changing}, on the example inputs: it changes what it depends on, or draws numbers",
            fix="make it depend on nothing but its arguments, and bind what it holds at a fixed value",
        )
    if differing is None:
        return
    raise ConformanceError(
        "internal error: the graph that torch.export captured is not the function",
        where=reading.title,
        why=f"{differing}, on the example inputs",
        fix="make sure that the function depends on nothing but its arguments; if so, please report it with this line; "
        f"{_SWITCH} goes on with the graph",
    )


def _detached(reading: Reading) -> list[torch.Tensor]:
    """The examples; as the graph writes to none of them, they need no copies."""
    return [e.detach() for e in reading.examples]


def _called(reading: Reading) -> list[torch.Tensor]:
    result = reading.function(*_detached(reading))
    return [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def _unequal(
    expected: Sequence[torch.Tensor],
    found: Sequence[torch.Tensor],
    precision: torch.dtype | None = None,
    operands: float = 0.0,
) -> str | None:
    """How two lists of results differ beyond rounding; None when they do not.

    Args:
        expected: the function's results.
        found: the others.
        precision: what was rounded to on the way, if not to the type of the results.
        operands: the largest magnitude of what they were made of in the type of the results: what is left where such
            numbers cancel out, as of equal ones their mean, is rounding.
    """
    if len(expected) != len(found):
        return f"the function gives {len(expected)} tensors, the graph {len(found)}"
    for n, (a, b) in enumerate(zip(expected, found, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {n} is {a.dtype} {list(a.shape)}, in the graph {b.dtype} {list(b.shape)}"
        if a.is_complex():
            a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
        if torch.equal(a, b) or not a.is_floating_point():
            if not torch.equal(a, b):
                return f"output {n} differs in {int((a != b).sum())} of {a.numel()} elements"
            continue
        x, y = a.double(), b.double()
        finite = x[torch.isfinite(x)].abs()
        largest = float(finite.max()) if finite.numel() else 0.0
        allowed = math.sqrt(torch.finfo(precision or a.dtype).eps) * largest
        allowed += math.sqrt(torch.finfo(a.dtype).eps) * operands
        same = (x == y) | (x.isnan() & y.isnan()) | ((x - y).abs() <= allowed)
        if not bool(same.all()):
            return f"output {n} differs in {int((~same).sum())} of {a.numel()} elements"
    return None
