"""Recorded graphs of torch's operators as a user would have written them: a function of tensors, called as it is.

What a small model takes in torch is mostly Python. `torch.ops.aten.mul.Tensor(a, b)` costs twice what `a * b` does, a
module's call more than a function's, and an exported module looks at every argument first. So a graph is cleared of
what changes nothing, its operators are spelled as torch's functions, and its `forward` is what is timed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export.passes import move_to_device_pass
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.graph import CodeGen

_ATEN = torch.ops.aten
_VIEWS = frozenset(
    {
        _ATEN.permute.default,
        _ATEN.transpose.int,
        _ATEN.t.default,
        _ATEN.expand.default,
        _ATEN.view.default,
        _ATEN.reshape.default,
        _ATEN.select.int,
        _ATEN.unsqueeze.default,
        _ATEN.squeeze.dim,
        _ATEN.slice.Tensor,
        _ATEN.contiguous.default,
        _ATEN.to.dtype,
        _ATEN.alias.default,
    }
)
"""What may be a view of its first argument."""


@contextmanager
def one_thread() -> Iterator[None]:
    """What is run to see what it gives needs no core of its own: on all of them it stalls where one is taken."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def exported(path: Path, tensors: Sequence[torch.Tensor]) -> GraphModule:
    """What `torch.export.save` wrote as a function of tensors, on the device of those it is called with."""
    program = torch.export.load(path)
    device = tensors[0].device if tensors else torch.device("cpu")
    if device.type != "cpu":
        program = move_to_device_pass(program, device)
    module = program.module()
    graph = module.graph
    for node in list(graph.nodes):
        if node.op == "call_module" and not node.users:
            graph.erase_node(node)  # the guards on arguments
    graph.set_codegen(CodeGen())
    return as_written(GraphModule(module, graph), tensors)


def as_written(graph: GraphModule, tensors: Sequence[torch.Tensor]) -> GraphModule:
    """The graph by torch's functions, without views that change nothing and what nobody reads; constants computed once.

    Args:
        graph: of torch's operators.
        tensors: what it is called with: a function takes an operator's place where it gives the same on them.
    """
    _compute_constants(graph)
    found = _Reader(graph)
    with torch.no_grad(), one_thread():
        found.run(*tensors)
    for node, function in found.functions.items():
        node.op, node.target = ("call_method", function.__name__) if _is_method(function) else (node.op, function)
    for node, before in found.same.items():
        node.replace_all_uses_with(found.same.get(before, before))
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


class _Reader(Interpreter):
    """Runs a graph and looks at every value.

    Attributes:
        functions: torch's function for an operator.
        same: for a view, the node before it that has its elements in its places.
    """

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.functions: dict[Node, Callable[..., Any]] = {}
        self.same: dict[Node, Node] = {}
        self._places: dict[Node, tuple[object, ...]] = {}
        self._tried: dict[tuple[object, ...], Callable[..., Any] | None] = {}

    def run_node(self, n: Node) -> Any:
        """The node's value."""
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            self._places[n] = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            kind = (n.target, *(_kind(a) for a in (*args, *kwargs.items())))
            if kind not in self._tried:
                self._tried[kind] = next((f for f in _functions(n.target) if _gives(f, args, kwargs, value)), None)
            function = self._tried[kind]
            if function is not None:
                self.functions[n] = function
            at = n
            while at.target in _VIEWS and at.args and isinstance(at.args[0], Node):
                at = at.args[0]
                if self._places.get(at) == self._places.get(n):
                    self.same[n] = at
        return value


def _kind(argument: Any) -> object:
    """What tells arguments apart that a function may take differently: types, and the number of dimensions."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.dim()
    if isinstance(argument, Sequence) and not isinstance(argument, str):
        return type(argument), *(_kind(a) for a in argument)
    return type(argument), str(argument)


def _functions(operator: torch._ops.OpOverload) -> list[Callable[..., Any]]:
    """torch's functions of an operator's name."""
    if operator._schema.is_mutable:
        return []
    name = operator._schema.name.rpartition("::")[2]
    found = [getattr(place, name, None) for place in (torch, torch._C._nn, torch.Tensor)]
    return [f for f in found if callable(f) and not inspect.isclass(f)]


def _is_method(function: Callable[..., Any]) -> bool:
    """Whether it is a tensor's method, which is called as one."""
    return getattr(torch.Tensor, function.__name__, None) is function


def _gives(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], value: Any) -> bool:
    """Whether the function takes these arguments and gives this tensor."""
    try:
        found = function(*args, **kwargs)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    if not isinstance(found, torch.Tensor) or not isinstance(value, torch.Tensor):
        return False
    return found.dtype == value.dtype and torch.allclose(found, value, rtol=0.0, atol=0.0, equal_nan=True)


def _compute_constants(graph: GraphModule) -> None:
    """What depends on no input becomes an attribute."""
    constant: dict[Node, torch.Tensor] = {}
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and all(n in constant for n in node.all_input_nodes):
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: constant[n])
            value = node.target(*args, **kwargs)
            if isinstance(value, torch.Tensor):
                constant[node] = value
    for n, (node, value) in enumerate(constant.items()):
        if any(user not in constant for user in node.users):
            graph.register_buffer(f"constant_{n}", value)
            with graph.graph.inserting_before(node):
                node.replace_all_uses_with(graph.graph.get_attr(f"constant_{n}"))
    graph.graph.eliminate_dead_code()
    graph.recompile()
