"""The torch front end: `trace(fn, example_inputs)` turns a function or module into a Program, over torch.export.

torch.export gives a graph of ATen operators without side effects. Operators that have a translation here (the tables
of pointwise, views, scatter, reduce, norms and contract) are kept whole; all others are decomposed
by torch first. Parameters, buffers and constants become inputs with weights; torch's symbolic sizes become symbols.
"""

from __future__ import annotations

import inspect
import keyword
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import sympy
import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import is_fake
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.traceback import preserve_node_meta
from torch.utils import _pytree as pytree

from prism.errors import UnsupportedError, UsageError
from prism.frontend.torch import conformance, contract, norms, pointwise, recurrent, reduce, scatter, views, windows
from prism.frontend.torch import declared as declared_operators
from prism.frontend.torch.conformance import Graph, Reading
from prism.frontend.torch.pairs import MAKE, RULES, InPairs, has_complex, stored_in_pairs
from prism.frontend.torch.values import UNINITIALISED, Builder, Handler, Node, TorchValue, constant
from prism.program import extents
from prism.program.empty import without_empty
from prism.program.evaluate import evaluate
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.integers import Interval, of_type
from prism.program.nodes import Const, Definition, DType, Program, Read, SymbolRange, walk
from prism.program.octagon import octagon
from prism.program.operators import Operator
from prism.program.views import Shape, axes_of

HANDLERS: Mapping[str, Handler] = {
    **pointwise.HANDLERS,
    **views.HANDLERS,
    **reduce.HANDLERS,
    **contract.HANDLERS,
    **norms.HANDLERS,
    **windows.HANDLERS,
    **recurrent.HANDLERS,
    **scatter.HANDLERS,
}

# The largest value of a symbol that the user gives no bound for.
_UNBOUNDED = 1 << 16

# The most elements of a tensor of whole numbers that are followed at translation.
_FOLLOWED = 256


def trace(
    fn_or_module: Callable[..., Any] | torch.nn.Module,
    example_inputs: Sequence[torch.Tensor],
    *,
    name: str | None = None,
    dynamic_shapes: Any = None,
    operators: Sequence[Operator] = (),
    check: bool = True,
) -> Program:
    """The program that a function or module computes.

    Args:
        fn_or_module: called with the example inputs as positional arguments; returns a tensor or a flat sequence of
            tensors.
        example_inputs: tensors whose shapes and data types the program is for.
        name: the program's name; that of the function or class by default.
        dynamic_shapes: as for torch.export.export: per argument (a sequence, or a mapping by parameter name), the
            dimensions that are symbolic, as {dimension: torch.export.Dim("batch", min=1, max=64)}.
        operators: what custom operators of torch mean: `mylib::softcap` is the one called `softcap`.
        check: compare the program with the function, on the examples and on adversarial inputs; see
            conformance.py.

    Raises:
        ConformanceError: the program does not compute what the function does: a bug in prism.
        UnsupportedError: it cannot be exported, or holds an operator without translation.
        UsageError: this is nothing that is called, it fails on the example inputs, or one is not a tensor.
    """
    if not callable(fn_or_module):
        raise UsageError(
            f"this is a {type(fn_or_module).__name__}",
            where="trace",
            why="it cannot be called",
            fix="give a function or a module of torch; an ONNX model is read by prism.load_onnx(path)",
        )
    for position, example in enumerate(example_inputs):
        _check_example(position, example)
    title = _identifier(name or _name_of(fn_or_module))
    parameters = _parameter_names(fn_or_module, len(example_inputs))
    declared = {op.name: op for op in operators}

    def read(examples: tuple[torch.Tensor, ...]) -> Reading:
        shapes = _by_position(dynamic_shapes, parameters)
        function, captured, exported = _export(fn_or_module, _apart(examples), shapes, title)
        _refuse_mutation(exported, title)
        translation = _Translation(exported, title, parameters, dynamic_shapes, declared)
        program = translation.program()
        apart = [n for n in captured.graph.nodes if n.op == "call_function" and not _stays(n) and not _writes(n)]
        formulas = _default_decompositions() if apart else {}
        found, state = translation.values, translation.state
        return Reading(title, function, examples, captured, exported, program, found, _origin, formulas, apart, state)

    reading = read(tuple(example_inputs))
    if not check:
        return reading.program
    return conformance.checked(reading, read if dynamic_shapes is None else None)


def _check_example(position: int, example: torch.Tensor) -> None:
    """An example is a tensor as a program takes them, and what is assumed of int64 inputs holds for it."""
    if not isinstance(example, torch.Tensor):
        raise UsageError(
            f"example input {position} is a {type(example).__name__}",
            where="trace",
            why="only tensors vary between calls",
            fix="bind other arguments beforehand, for example with functools.partial",
        )
    if example.layout is not torch.strided or example.is_quantized or example.is_nested:
        raise UnsupportedError(
            f"example input {position} is no dense tensor",
            where="trace",
            why="a program reads every element of its inputs by its place",
            fix="pass x.to_dense(), or x.dequantize()",
        )
    if example.dtype != torch.int64 or not example.numel() or example.is_meta or is_fake(example):
        return
    assumed = of_type(DType.INT64)
    if not (assumed.low <= int(example.min()) and int(example.max()) <= assumed.high):
        raise UnsupportedError(
            f"example input {position} has elements of {int(example.min())} to {int(example.max())}",
            where="trace",
            why="int64 inputs are taken for positions, tokens or counts, within ±2^31",
            fix="pass numbers of that size as floating point",
        )


def _apart(examples: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The examples, none twice: torch.export takes one tensor in two places for one input."""
    seen: set[int] = set()
    made = []
    for example in examples:
        made.append(torch.empty_like(example) if id(example) in seen else example)
        seen.add(id(example))
    return tuple(made)


class Positional(torch.nn.Module):
    """A function or module as a module that takes its tensors by position."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Call the function."""
        return self.function(*tensors)


class Differentiating(Positional):
    """The same, called where gradients are recorded, as what differentiates has to be; its results have none."""

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Call the function."""
        with torch.enable_grad():
            made = self.function(*tensors)
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, made)


def _name_of(fn: Callable[..., Any] | torch.nn.Module) -> str:
    return getattr(fn, "__name__", "") or getattr(getattr(fn, "func", None), "__name__", "") or type(fn).__name__


def _identifier(text: str) -> str:
    cleaned = re.sub(r"\W", "_", text).strip("_") or "program"
    return cleaned if cleaned.isidentifier() and not keyword.iskeyword(cleaned) else f"p_{cleaned}"


def _parameter_names(fn: Callable[..., Any] | torch.nn.Module, many: int) -> list[str]:
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        given = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        given = []
    names = [p.name for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:many]
    return names + [f"input{i}" for i in range(len(names), many)]


def _by_position(dynamic_shapes: Any, parameters: Sequence[str]) -> Any:
    if dynamic_shapes is None:
        return None
    if isinstance(dynamic_shapes, Mapping):
        dynamic_shapes = [dynamic_shapes.get(name) for name in parameters]
    return (tuple(d or None for d in dynamic_shapes),)


def _export(
    fn: Callable[..., Any], examples: tuple[torch.Tensor, ...], shapes: Any, title: str
) -> tuple[Callable[..., Any], torch.export.ExportedProgram, Graph]:
    """What is called, and torch's graph of it: as it is captured, and with what has no translation decomposed.

    What is called records no gradients, but where it differentiates.
    """
    try:
        with torch.no_grad(), conformance.quietly():
            exported = _captured(fn, examples, shapes)
            if not any(map(_records, exported[1].graph.nodes)):
                return fn, *_apart_where_needed(*exported, examples, shapes)
    except Exception as error:  # torch.export raises a wide range of types
        own = _failure(fn, examples)
        if own is None or _failure(Differentiating(fn), examples) is not None:
            raise _not_captured(own or error, title, of_function=own is not None) from error
    differentiating = Differentiating(fn)
    try:
        with torch.enable_grad(), conformance.quietly():
            exported = _captured(differentiating, examples, shapes)
            return differentiating, *_apart_where_needed(*exported, examples, shapes)
    except Exception as error:
        raise _not_captured(error, title) from error


def _not_captured(error: Exception, title: str, of_function: bool = False) -> UsageError | UnsupportedError:
    if of_function:
        return UsageError(
            "the function fails on the example inputs",
            where=title,
            why=_first_line(error),
            fix="give inputs that it takes: it is called with them in this order",
        )
    return UnsupportedError(
        "torch.export cannot capture it",
        where=title,
        why=_first_line(error),
        fix="make the function free of data-dependent control flow and of side effects",
    )


def _records(node: torch.fx.Node) -> bool:
    """Whether what is within it records gradients, and nothing else does: torch takes nothing apart there."""
    return node.target is torch.ops.higher_order.wrap_with_set_grad_enabled and bool(node.args[0])


def _apart_where_needed(
    fn: Callable[..., Any], exported: torch.export.ExportedProgram, examples: tuple[torch.Tensor, ...], shapes: Any
) -> tuple[torch.export.ExportedProgram, Graph]:
    """The graph as it was captured, and with what has no translation decomposed."""
    if all(map(_stays, exported.graph.nodes)):
        return exported, Graph.of(exported)
    known = _assumed(exported)
    graph = _retraced(exported)
    if _assumed(exported) != known:
        # A decomposition asked how sizes compare: symbols have become numbers, or the graph is for some alone.
        exported, graph = torch.export.export(Positional(fn), examples, dynamic_shapes=shapes), None
    if graph is not None:
        return exported, Graph.of(exported, graph)
    # torch goes through all of its operators, some hundred times as many as a graph has: 0.4 s.
    functional = exported.run_decompositions(dict(_default_decompositions()))
    # Complex numbers are read as pairs where nothing writes, as nothing does now.
    graph = _retraced(functional) if any(map(has_complex, functional.graph.nodes)) else None
    return exported, Graph.of(functional, graph)


def _captured(
    fn: Callable[..., Any], examples: tuple[torch.Tensor, ...], shapes: Any
) -> tuple[Callable[..., Any], torch.export.ExportedProgram]:
    """What torch captures of a function, and the function of which it did.

    Of the operators that differentiation calls by itself torch.export takes some numbers for tensors of no values. What
    they are all called with is then written down first, which has no symbols: where the shapes have some, torch's error
    stands. Values are none there either, so that what depends on them is still refused.
    """
    try:
        exported = torch.export.export(Positional(fn), examples, dynamic_shapes=shapes)
        stored_in_pairs(exported)
        return fn, exported
    except RuntimeError:
        given = fn.function if isinstance(fn, Differentiating) else fn
        if shapes is not None or isinstance(given, torch.nn.Module):
            raise
        written = make_fx(fn, tracing_mode="fake")(*examples)
        return written, torch.export.export(Positional(written), examples)


def _failure(fn: Callable[..., Any], examples: tuple[torch.Tensor, ...]) -> Exception | None:
    """What a function raises when it is called by itself."""
    try:
        with torch.no_grad(), conformance.quietly():
            fn(*_apart(examples))
    except Exception as error:
        return error
    return None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]


def _assumed(exported: torch.export.ExportedProgram) -> tuple[list[str], int]:
    """The sizes of the inputs as torch knows them now, and how much it has taken for granted of their symbols."""
    values = [n.meta["val"] for n in exported.graph.nodes if n.op == "placeholder"]
    sizes: list[Any] = [s for t in values if isinstance(t, torch.Tensor) for s in t.shape]
    env = next((s.node.shape_env for s in sizes if isinstance(s, torch.SymInt)), None)
    return [str(s) for s in sizes], 0 if env is None else len(env.guards)


def _retraced(exported: torch.export.ExportedProgram) -> torch.fx.Graph | None:
    """The graph with what has no translation decomposed by tracing it again, or None where something is left.

    Nothing that writes is traced, which takes torch's functionalisation, and no size that depends on data.
    """
    if any(_writes(n) or free_unbacked_symbols(n.meta.get("val")) for n in exported.graph.nodes):
        return None
    examples = [n.meta["val"] for n in exported.graph.nodes if n.op == "placeholder"]
    table = dict(_default_decompositions())
    interpreter = torch.fx.Interpreter(exported.graph_module)
    while True:
        try:
            with preserve_node_meta():
                graph = make_fx(interpreter.run, decomposition_table=table, pre_dispatch=True)(*examples).graph
        except Exception:  # of a wide range of types; whether the function can be read, torch's own way says
            return None
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
            graph.erase_node(node)  # of what was captured, and holds
        graph.eliminate_dead_code()
        left = [n for n in graph.nodes if not _stays(n)]
        if not left:
            return graph
        by_pairs = [n for n in left if has_complex(n)]
        if by_pairs:
            left = [n for n in left if n.users and not (_name(n.target) in RULES and n in by_pairs)]
        composite = {n.target: n.target.decompose for n in left if n.target not in table and _is_composite(n.target)}
        if by_pairs and not composite:
            if isinstance(interpreter, InPairs):  # an input, or a result, is complex
                return None
            interpreter = InPairs(torch.fx.GraphModule(exported.graph_module, graph))
            continue
        if not composite or any(n.op == "get_attr" or not n.users or _writes(n) for n in left):
            return None
        table |= composite


def _is_followed(node: torch.fx.Node, value: TorchValue) -> bool:
    """Whether it is few whole numbers, which are computed here where they are known."""
    meta = node.meta["val"]
    whole = value.dtype is not DType.BOOL and not value.dtype.is_float
    return whole and all(isinstance(e, int) for e in meta.shape) and meta.numel() <= _FOLLOWED


def _writes(node: torch.fx.Node) -> bool:
    """Whether an operator changes what it is given."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _is_composite(target: Any) -> bool:
    """Whether torch itself computes an operator by others."""
    if not isinstance(target, OpOverload):
        return False
    name = str(target.name())  # type: ignore[no-untyped-call]
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def _default_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """torch's decompositions of what has no translation."""
    composite = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    return _decompositions(len(composite))


@cache
def _decompositions(composite: int) -> dict[Any, Callable[..., Any]]:
    """torch's decompositions of what has no translation. torch goes through all of its operators to list them: 0.1 s.

    So many `composite` operators are registered that torch takes apart: more, when a library adds its own.
    """
    table = torch.export.default_decompositions()
    exported = {overload: table[overload] for overload in table if _key(overload) not in HANDLERS}
    # What torch.export leaves whole, as backends have kernels for it: interpolation, samples at places.
    left = {o: f for o, f in decomposition_table.items() if isinstance(o, OpOverload) and _key(o) not in HANDLERS}
    kept = {o for o in left if o._schema.is_mutable or torch.Tag.nondeterministic_seeded in o.tags}
    formulas = {o: f for o, f in (left | exported).items() if o not in kept and _name(o) not in MAKE}
    aten = torch.ops.aten
    formulas |= dict.fromkeys((aten.nll_loss_backward.default, aten.nll_loss2d_backward.default), _of_targets)
    return {o: _of_fractions(f) if _interpolates(o) else f for o, f in formulas.items()}


def _interpolates(overload: Any) -> bool:
    """Whether an operator weighs neighbours, which torch's own kernels do with rounded weights for whole numbers."""
    return re.match(r"_?upsample_\w*(linear|cubic)", _name(overload)) is not None


def _of_fractions(formula: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that is for floating-point numbers alone."""

    def decomposed(x: torch.Tensor, *args: Any, **options: Any) -> Any:
        return formula(x, *args, **options) if x.is_floating_point() else NotImplemented

    return decomposed


def _of_targets(
    grad_output: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """The gradient of `nll_loss`: 0 but at targets, where torch's decomposition has 0 times what may be NaN."""
    mean, dim = 1, min(x.dim() - 1, 1)
    targets = target.unsqueeze(dim)
    counts = targets != ignore_index
    chosen = torch.zeros_like(x, dtype=torch.bool).scatter(dim, torch.where(counts, targets, 0), True)
    scale = grad_output / total_weight if reduction == mean else grad_output
    scale = scale.unsqueeze(dim) if 0 < scale.dim() < x.dim() else scale
    if weight is not None:
        scale = scale * weight.reshape([-1] + [1] * (x.dim() - dim - 1))
    return torch.where(chosen & counts, -scale, 0.0)


def _stays(node: torch.fx.Node) -> bool:
    """Whether a node is translated as it was captured: decomposing would neither replace nor remove it."""
    if node.op in ("placeholder", "output"):
        return True
    if node.op != "call_function" or not node.users or has_complex(node):
        return False
    if node.target is operator.getitem or isinstance(node.meta.get("val"), (int, torch.SymInt)):
        return True
    return _key(node.target) in HANDLERS and not _writes(node) and not recurrent.left(node)


def _refuse_mutation(exported: Graph, title: str) -> None:
    """A program has results, and changes nothing that it is given."""
    for spec in exported.graph_signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            raise UnsupportedError(
                f"it changes {spec.target or 'an input'} in place",
                where=title,
                why="a program only computes results",
                fix="call .eval() on the module before tracing it, as normalisations and dropout want it; "
                "else return the new value, and change the tensor outside the traced function",
            )


def _key(overload: Any) -> str:
    """The operator's name in HANDLERS: ATen's without its overload; of others, with their namespace."""
    name = _name(overload)
    return name if name and (overload.namespace == "aten" or name in HANDLERS) else ""


def _name(overload: Any) -> str:
    """An operator's name, ATen's without its namespace; of anything else nothing."""
    return str(overload._schema.name).removeprefix("aten::") if isinstance(overload, OpOverload) else ""


class _Translation:
    """One exported graph on its way to a Program."""

    def __init__(
        self,
        exported: Graph,
        title: str,
        parameters: Sequence[str],
        dynamic: Any,
        declared: Mapping[str, Operator],
    ) -> None:
        self._exported = exported
        self._title = title
        self._parameters = parameters
        self._dynamic = dynamic
        self._declared = declared
        self._builder = Builder()
        self._values: dict[torch.fx.Node, Any] = {}
        self._known: dict[torch.fx.Node, torch.Tensor] = {}
        self._weights = self._builder.weights
        self._constants: dict[torch.fx.Node, torch.Tensor] = {}
        self._symbols: dict[sympy.Symbol, sympy.Symbol] = {}
        self._ranges = self._builder.ranges

    @property
    def values(self) -> Mapping[torch.fx.Node, Any]:
        """What stands for each node, once the graph is translated."""
        return self._values

    @property
    def state(self) -> Builder:
        """What is known of the program's tensors."""
        return self._builder

    def program(self) -> Program:
        """Translate the whole graph."""
        graph = self._exported.graph
        self._name_symbols()
        for node in graph.nodes:
            match node.op:
                case "placeholder":
                    self._placeholder(node)
                case "call_function":
                    self._call(node)
                case "output":
                    outputs = self._outputs(node)
                case _:
                    raise UnsupportedError(
                        f"a {node.op} node has no translation",
                        where=_origin(node),
                        why="the graph has a sub-graph, as control flow makes",
                        fix="write it without torch.cond, torch.while_loop and the like",
                    )
        read, needed = set(outputs), list[Definition]()
        for d in reversed(self._builder.definitions):  # what torch has run leaves its operands to nobody
            if d.name in read:
                needed.append(d)
                read |= {e.tensor for e in walk(d.expr) if isinstance(e, Read)}
        inputs = (
            *(t for t in self._builder.inputs if t.name not in self._weights),
            *(t for t in self._builder.inputs if t.name in self._weights and t.name in read),
        )
        weights = {name: w for name, w in self._weights.items() if name in read}
        needed.reverse()
        settled = (self._builder.granted.get(name, ()) for name in ("", *(d.name for d in needed)))
        granted = tuple(dict.fromkeys(chain.from_iterable(settled)))
        made = Program(self._title, inputs, tuple(needed), outputs, self._ranges, weights, granted=granted)
        return without_empty(made)

    # Symbols and shapes

    def _name_symbols(self) -> None:
        """A symbol for each of torch's, named as the user's Dim where there is one."""
        specs = list(self._exported.graph_signature.input_specs)
        nodes = [n for n in self._exported.graph.nodes if n.op == "placeholder"]
        users = [n for n, s in zip(nodes, specs, strict=True) if s.kind == InputKind.USER_INPUT]
        dynamic = self._dynamic or [None] * len(users)
        if isinstance(dynamic, Mapping):
            dynamic = [dynamic.get(name) for name in self._parameters]
        for node, name, given in zip(users, self._parameters, dynamic, strict=False):
            value = node.meta["val"]
            if not isinstance(value, torch.Tensor):
                continue
            sizes: Sequence[Any] = value.shape  # ints and SymInts
            for d, size in enumerate(sizes):
                if isinstance(size, int):
                    continue
                expr = size.node.expr
                dim = given.get(d) if isinstance(given, Mapping) else given[d] if given is not None else None
                label = getattr(dim, "__name__", "") if not isinstance(dim, (str, int)) else str(dim)
                if isinstance(expr, sympy.Symbol) and expr not in self._symbols:
                    wanted = label if label.isidentifier() else f"{name}_{d}"
                    self._symbol(expr, wanted, int(size.node.hint))

    def _symbol(self, theirs: sympy.Symbol, wanted: str, hint: int) -> None:
        taken, label, n = {s.name for s in self._symbols.values()}, wanted, 1
        while label in taken:
            label, n = f"{wanted}_{n}", n + 1
        self._symbols[theirs] = extents.symbol(label)
        given = self._exported.range_constraints.get(theirs)
        low = max(1, int(given.lower)) if given is not None else 1
        bound = given is not None and sympy.sympify(given.upper).is_Integer
        high = int(given.upper) if given is not None and bound else _UNBOUNDED
        self._ranges[label] = SymbolRange(low, max(high, hint), hint, open=not bound)

    def _extent(self, size: int | torch.SymInt, where: str) -> Extent:
        if isinstance(size, int):
            return size
        return self._converted(size.node.expr, where)

    def _converted(self, expr: sympy.Expr, where: str) -> Extent:
        foreign = [s for s in expr.free_symbols if s not in self._symbols]
        own_function = any(type(f).__module__.startswith("torch") for f in expr.atoms(sympy.Function))
        if foreign or own_function:
            raise UnsupportedError(
                f"the size {expr} has no translation",
                where=where,
                why="it is not a polynomial of the inputs' symbolic sizes",
                fix="give this dimension a fixed size",
            )
        return extents.normal(sympy.expand(expr.xreplace(self._symbols)))

    def _shape(self, tensor: torch.Tensor, where: str) -> Shape:
        return tuple(self._extent(size, where) for size in tensor.shape)

    # Nodes

    def _placeholder(self, node: torch.fx.Node) -> None:
        position = len(self._values)
        spec = self._exported.graph_signature.input_specs[position]
        value = node.meta["val"]
        if spec.kind == InputKind.USER_INPUT:
            users = [s for s in self._exported.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
            name = self._parameters[users.index(spec)]
            shape = self._shape(value, name)
            self._values[node] = self._builder.input(name, shape, _dtype(value.dtype, name))
            return
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR) or spec.target is None:
            raise UnsupportedError(f"an input of kind {spec.kind} has no translation", where=node.name)
        target = spec.target
        source = self._exported.state_dict if target in self._exported.state_dict else self._exported.constants
        tensor = source[target].detach()
        if tensor.is_meta:
            raise UnsupportedError(
                "a constant on the meta device has no values", where=target, fix="make it on the CPU"
            )
        self._constants[node] = tensor
        dtype = _dtype(tensor.dtype, target)
        if tensor.numel() == 0:
            raise UnsupportedError(f"shape {list(tensor.shape)} has no elements", where=target, fix="leave it out")
        if tensor.numel() == 1 and spec.kind == InputKind.CONSTANT_TENSOR:
            ones = tuple(Axis(f"i{d}", 1) for d in range(tensor.dim()))
            number = TorchValue(tuple(tensor.shape), dtype, axes=ones, formula=constant(tensor.item(), target))
            whole = dtype in (DType.INT64, DType.INT32)
            self._values[node] = self._knowing(node, number, tensor) if whole else number
            return
        name = target.removeprefix("function.")
        self._values[node] = self._held(node, name, tensor, dtype, told=spec.kind != InputKind.PARAMETER)

    def _held(
        self, node: torch.fx.Node, name: str, tensor: torch.Tensor, dtype: DType, *, told: bool = True
    ) -> TorchValue:
        """What holds a tensor that is known: a formula of positions where these tell it (and may), else a weight."""
        followed = dtype in (DType.INT64, DType.INT32) and tensor.numel() <= _FOLLOWED
        held = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
        mask = octagon(held) if told else None
        if mask is not None:
            axes = axes_of(tuple(tensor.shape))
            formula = mask.at([Index.axis(a) for a in axes])
            value = TorchValue(tuple(tensor.shape), dtype, axes=axes, formula=formula)
        else:
            whole = dtype is DType.INT64 or (told and np.isfinite(held).all() and (held == np.floor(held)).all())
            bounds = Interval(float(tensor.min()), float(tensor.max()), whole=True) if whole else None
            value = self._builder.input(name, tuple(tensor.shape), dtype, bounds)
            self._weights[value.tensor] = held
        return self._knowing(node, value, tensor) if followed else value

    def _call(self, node: torch.fx.Node) -> None:
        target, origin = node.target, _origin(node)
        meta = node.meta.get("val")
        if target is operator.getitem:
            source, position = node.args
            assert isinstance(source, torch.fx.Node)
            assert isinstance(position, int)
            several = self._values[source]
            part = several if isinstance(several, TorchValue) else several[position]  # of the results one alone is made
            if source in self._known and isinstance(part, TorchValue) and _is_followed(node, part):
                part = self._knowing(node, part, self._known[source][position])
            self._values[node] = part
            return
        if isinstance(meta, (int, torch.SymInt)) and not isinstance(meta, bool):
            self._values[node] = self._extent(meta, origin)
            return
        if meta is None or "_assert" in str(target) or "sym_constrain" in str(target):
            return
        handler = HANDLERS.get(_key(target)) or declared_operators.handler(target, self._declared)
        if handler is None:
            written = node.meta.get("original_aten") if str(target).startswith("prims.") else None
            raise UnsupportedError(
                f"{written or target} has no translation",
                where=origin,
                why=_why_not(target),
                fix=declared_operators.how(target)
                or "rewrite this part with supported operations, or keep it outside the traced function",
            )
        many = list(meta) if isinstance(meta, (list, tuple)) else [meta]
        results = [m for m in many if isinstance(m, torch.Tensor)]
        shapes = [self._shape(m, origin) for m in results]
        dtypes = [_dtype(m.dtype, origin) for m in results]
        wanted = frozenset(int(u.args[1]) for u in node.users if u.target is operator.getitem)  # type: ignore[arg-type]
        arguments = self._arguments(node, origin)
        call = Node(self._builder, node.name, str(target), origin, arguments, shapes, dtypes, wanted or frozenset((0,)))
        try:
            made = handler(call)
        except UnsupportedError as error:
            if error.where:
                raise
            raise error.at(origin) from None
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise call.unsupported(f"this form of it is not known ({type(error).__name__}: {error})") from error
        _refuse_unread(call, target)
        if isinstance(made, TorchValue) and (turned := _may_turn(call, made)) is not None:
            held = self._as_run(node, call)
            if not (turned is DType.FLOAT64 and self._says(made, held)):
                made = self._held(node, node.name, held, call.dtype)
        self._values[node] = made
        if isinstance(made, TorchValue) and _is_followed(node, made) and (held := self._computed(node)) is not None:
            self._values[node] = self._knowing(node, made, held)
        elif isinstance(made, tuple) and (held := self._computed(node)) is not None:
            self._known[node] = held

    def _computed(self, node: torch.fx.Node) -> Any:
        """What torch computes where all operands are known; None where some are not, or it is another each time."""
        target = node.target
        assert isinstance(target, OpOverload)
        if any(n not in self._known for n in node.all_input_nodes):
            return None
        if torch.Tag.nondeterministic_seeded in target.tags or _key(target) in UNINITIALISED:
            return None
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: self._known[n])
        try:
            return target(*args, **{**kwargs, **({"device": "cpu"} if "device" in kwargs else {})})
        except (RuntimeError, NotImplementedError):  # what torch does not take, the function does not either
            return None

    def _says(self, made: TorchValue, held: torch.Tensor) -> bool:
        """Whether a formula that hangs on no argument has these values, evaluated in float64 as torch has it."""
        state, axes = self._builder, axes_of(made.shape)
        own = Definition(state.numbered("decided"), axes, made.at([Index.axis(a) for a in axes]), made.dtype)
        closed = (*(d for d in state.definitions if state.hangs_on_none(d.name)), own)
        weights = tuple(t for t in state.inputs if t.name in self._weights)
        found = evaluate(Program("", weights, closed, (own.name,), {}, self._weights), {})[own.name]
        return np.array_equal(found, held.cpu().numpy())

    def _as_run(self, node: torch.fx.Node, call: Node) -> torch.Tensor:
        """What torch computes of what hangs on no argument. Raises UnsupportedError: its sizes are not known."""
        if not all(isinstance(e, int) for e in node.meta["val"].shape):
            raise call.unsupported(
                "rounding decides what it makes of positions, and a formula does not round as torch does",
                "compute it in whole numbers, or give the sizes that it hangs on",
            )
        device = node.meta["val"].device
        if device.type == "meta" or (device.type == "cuda" and not torch.cuda.is_available()):
            device = torch.device("cpu")
        found: dict[torch.fx.Node, Any] = {}
        needed, waiting = {node}, [node]
        while waiting:
            for n in self._operands_to_run(waiting.pop()):
                if n not in needed:
                    needed.add(n)
                    waiting.append(n)
        for n in self._exported.graph.nodes:
            if n not in needed:
                continue
            meta = n.meta.get("val")
            if n in self._constants:
                found[n] = self._constants[n].to(device)
            elif n is not node and self._hangs_on_arguments(n):  # whose shape and type alone are asked for
                found[n] = torch.zeros(meta.shape, dtype=meta.dtype, device=device)
            else:
                args, kwargs = torch.fx.map_arg((n.args, n.kwargs), found.__getitem__)
                found[n] = n.target(*args, **{**kwargs, **({"device": device} if "device" in kwargs else {})})
        result: torch.Tensor = found[node].detach()
        return result

    def _operands_to_run(self, node: torch.fx.Node) -> Sequence[torch.fx.Node]:
        return () if self._hangs_on_arguments(node) else node.all_input_nodes

    def _hangs_on_arguments(self, node: torch.fx.Node) -> bool:
        value = self._values.get(node)
        return isinstance(value, TorchValue) and bool(value.tensor) and not self._builder.hangs_on_none(value.tensor)

    def _knowing(self, node: torch.fx.Node, value: TorchValue, held: torch.Tensor) -> TorchValue:
        self._known[node] = held
        return replace(value, elements=held.detach().cpu().numpy())

    def _arguments(self, node: torch.fx.Node, origin: str) -> dict[str, Any]:
        """Every argument of the operator's schema by name, with what stands for each node."""
        bound: dict[str, Any] = {}
        assert isinstance(node.target, torch._ops.OpOverload)
        for position, argument in enumerate(node.target._schema.arguments):
            if position < len(node.args) and not argument.kwarg_only:
                given: Any = node.args[position]
            elif argument.name in node.kwargs:
                given = node.kwargs[argument.name]
            else:
                given = argument.default_value
            bound[argument.name] = self._argument(given, origin)
        return bound

    def _argument(self, given: Any, origin: str) -> Any:
        if isinstance(given, torch.fx.Node):
            return self._values[given]
        if isinstance(given, (list, tuple)):
            return [self._argument(g, origin) for g in given]
        if isinstance(given, torch.SymInt):
            return self._extent(given, origin)
        return given

    def _outputs(self, node: torch.fx.Node) -> tuple[str, ...]:
        defined = {d.name for d in self._builder.definitions}
        names = []
        for position, result in enumerate(_flat(node.args[0])):
            value = self._values.get(result) if isinstance(result, torch.fx.Node) else None
            if not isinstance(value, TorchValue):
                raise UnsupportedError(
                    f"output {position} is not a tensor", where=self._title, fix="return tensors alone"
                )
            if _key(result.target) in UNINITIALISED:
                raise UnsupportedError(
                    f"output {position} is memory that nothing was written to",
                    where=self._title,
                    why="it may hold anything",
                    fix="return what the function computes",
                )
            if value.tensor not in defined or value.tensor in names:
                axes = tuple(Axis(f"i{d}", e) for d, e in enumerate(value.shape))
                expr = value.at([Index.axis(a) for a in axes])
                view = isinstance(expr, Read)
                value = self._builder.materialise(f"out{position}", axes, expr, value.dtype, "the output", view=view)
            names.append(value.tensor)
        if not names:
            raise UnsupportedError("it returns no tensors", where=self._title, fix="return what it computes")
        return tuple(names)


_STEPS = frozenset({"floor", "ceil", "round", "trunc", "frac", "sign", "floor_divide", "remainder", "fmod"})
"""Operators whose results are floats and jump where their operands do not; those of whole numbers, from floats, do."""


def _may_turn(call: Node, made: TorchValue) -> DType | None:
    """The type in which a rounding may turn what an operator makes of positions, sizes and constants; None: in none."""
    name = call.operator.partition(".")[2].partition(".")[0]
    divides = name == "div" and call.get("rounding_mode") is not None
    if isinstance(made.formula, Const) or (made.dtype.is_float and name not in _STEPS and not divides):
        return None
    given = call.values()
    floats = [v for v in given if isinstance(v, TorchValue) and v.dtype.is_float]
    if not floats:
        return None
    dtype = max((v.dtype for v in floats), key=lambda d: -d.roundoff)
    numbers = [torch.tensor(v, dtype=getattr(torch, dtype.value)).item() for v in given if isinstance(v, float)]
    operands = [v.at([Index.axis(a) for a in axes_of(v.shape)]) for v in given if isinstance(v, TorchValue)]
    return dtype if call.builder.may_turn([*operands, *map(Const, numbers)], dtype) else None


_WITHOUT_MEANING = frozenset(
    {"layout", "device", "pin_memory", "memory_format", "non_blocking", "copy", "implicit", "requires_grad", "names"}
    | {"sparse_grad", "cudnn_enable", "cudnn_enabled", "benchmark", "deterministic", "allow_tf32"}
)
"""Arguments that say where a tensor lies and how it is computed, never what its elements are."""


def _refuse_unread(call: Node, target: Any) -> None:
    """Arguments that the handler did not ask for are at their defaults, or this node has no translation."""
    defaults = {a.name: a.default_value for a in target._schema.arguments if a.has_default_value()}
    for argument in call.unread():
        given = call[argument]
        if argument in _WITHOUT_MEANING or (argument in defaults and _same(given, defaults[argument])):
            continue
        said = "a tensor" if isinstance(given, TorchValue) else given
        raise call.unsupported(f"its argument {argument} is {said}, which is not translated")


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _flat(results: Any) -> Iterator[Any]:
    if isinstance(results, (list, tuple)):
        for r in results:
            yield from _flat(r)
    else:
        yield results


def _why_not(target: Any) -> str:
    key = _key(target)
    if key in ("nonzero", "masked_scatter"):
        return "which element is read or written depends on data"
    if _interpolates(target):
        return "what is between whole numbers is rounded, as its weights are"
    if key == "_local_scalar_dense":
        return "a number is taken out of a tensor, as .item() does"
    if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
        return "it is random"
    if key in ("mode", "unique"):
        return "it orders elements, which is not a formula of sums and extremes"
    return ""


def _dtype(dtype: torch.dtype, where: str) -> DType:
    text = str(dtype).removeprefix("torch.")
    try:
        return DType(text)
    except ValueError:
        raise UnsupportedError(
            f"data type {text} is not supported", where=where, fix=f"use one of {', '.join(d.value for d in DType)}"
        ) from None


def _origin(node: torch.fx.Node) -> str:
    """The node as the user knows it: operator, name and, where torch recorded it, file and line."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [(f, line) for f, line in frames if f != __file__]
    place = f" at {own[-1][0].rsplit('/', 1)[-1]}:{own[-1][1]}" if own else ""
    return f"{node.target} ({node.name}){place}"
