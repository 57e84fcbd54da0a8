"""Torch functions and modules that run by prism's kernels: `prism.compile`, and the backend `prism` of `torch.compile`.

Dynamo captures the graphs of a function, AOTAutograd makes of each a forward and, where something is trained, a
backward graph of functional operators. In these, connected operators that prism translates are *islands*
(`CapabilityBasedPartitioner` finds them), and each is optimized when it is first called, on what it is called with:
searched, proved, tuned, checked and timed as by `prism.optimize`. An island that nothing is better for, and whatever is
no island, runs as it did; one with an operator that nothing will do for is halved until that is alone. Sizes that vary
are given values: an island has kernels for up to `MOST` sets of shapes. Where the time is limited, the islands of a
graph share it by how many operators they have.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from numbers import Real
from time import monotonic
from typing import Any, TypeAlias

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.convert_frame import compile_lock
from torch._functorch.aot_autograd import make_boxed_func
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.split_module import split_module
from torch.utils._python_dispatch import _disable_current_modes

from prism.api.loading import trace
from prism.api.optimizing import optimize, refused_outputs
from prism.api.options import ProgramOptions
from prism.api.time_limit import LEAST_S, MORE_TIME, here
from prism.backends.protocol import load_function
from prism.errors import PrismError, UsageError
from prism.frontend.torch.pairs import has_complex, in_pairs
from prism.instantiate.lock import program_hash
from prism.process.deadline import NEVER, Deadline
from prism.program.nodes import Program
from prism.program.returned import Computed, computed

LOG = logging.getLogger("prism.compile")

MOST = 8
"""Sets of shapes that an island has kernels for; at further ones it runs as it did."""

OPTIONS = ("target", "budget", "trials", "seed", "rules", "baselines", "anew", "seconds")
"""Options of `prism.optimize` that a compilation takes."""

_POOLS = (f"{kind}_pool{d}d" for kind in ("max", "avg") for d in (1, 2, 3))
LEFT = frozenset({"convolution", *(name for pool in _POOLS for name in (pool, f"{pool}_with_indices"))})
"""ATen's operators that stay on a CPU although they are read: torch's kernels for windows are faster there than what is
made of them, and one in an island would lose what the rest of it gains."""

ORDERED = 8
"""The longest row whose order is in an island on a CPU: n * n comparisons lose to torch's sort there, and with them
what else is in the island. A router of 8 experts gained as one, one of 64 lost what the rest had gained (measured)."""

CASTS = frozenset({"aten::_to_copy", "prims::convert_element_type"})
"""Operators that change a tensor's type."""

_ATEN = torch.ops.aten
INSTEAD: Mapping[Any, Any] = {
    _ATEN.empty_like.default: _ATEN.zeros_like.default,
    _ATEN.new_empty.default: _ATEN.new_zeros.default,
    _ATEN.view.default: _ATEN.reshape.default,
}
"""What ATen's operators are in a graph. Memory that nothing was written to is filled: whole numbers of any size may be
in it, for which an island that is given them would have no kernels. A view copies where it has to: torch captures it
for the strides that it expects, and some of its kernels, as a batch norm's in eval mode on a CPU, leave other ones."""

UNKNOWN = 4
"""What a size that data say is taken for when an operator is asked about: whether it is read depends on no size."""

AFTER = "after"
"""The argument by which a node hangs on one that it does not read, while a graph is divided."""

Key: TypeAlias = tuple[Any, ...]
"""What an island is called with: numbers, and shapes, types, devices and strides of tensors."""
Call: TypeAlias = Callable[..., Any]


def compile(model: Any = None, *, fullgraph: bool = False, dynamic: bool | None = None, **options: Any) -> Any:
    """A torch function or module that runs by prism's kernels where these are faster, and as it did elsewhere.

    `torch.compile(model, backend="prism", options=...)` is the same. What is called for the first time is optimized
    then, which takes as long as `prism.optimize` does, island by island. Gradients are computed by kernels, too. The
    log of `prism.compile` tells what became of each island.

    Args:
        model: a function or a module; without one, a decorator is returned.
        fullgraph: as `torch.compile` takes it.
        dynamic: as `torch.compile` takes it.
        options: of `prism.optimize`: target, budget, trials, seed, rules, baselines, anew, seconds. The time is that
            of each graph's kernels: of one that runs forward, and of the one that runs backward.

    Raises:
        UsageError: there is no such option, one's value is none, or this is nothing that is called.
    """
    _check(options, "compile")
    if model is None:
        return lambda found: compile(found, fullgraph=fullgraph, dynamic=dynamic, **options)
    if not callable(model):
        raise UsageError(f"this is a {type(model).__name__}", where="compile", fix="give a function or a module")
    return torch.compile(model, backend=backend, fullgraph=fullgraph, dynamic=dynamic, options=options)


def backend(
    graph: torch.fx.GraphModule,
    examples: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Call:
    """The backend of `torch.compile(..., backend="prism")`.

    Args:
        graph: what Dynamo captured.
        examples: what it is called with.
        mode: none is known.
        options: of `prism.optimize`: see `OPTIONS`.

    Raises:
        UsageError: there is no such mode or option, or one's value is none.
    """
    if mode is not None:
        raise UsageError(f"there is no mode {mode!r}", where="torch.compile", fix="leave out mode, or pass options")
    kernels = Kernels(_check(options or {}, "torch.compile"))

    def compiled(captured: torch.fx.GraphModule, inputs: Sequence[Any]) -> Call:
        return make_boxed_func(Graph(captured, kernels))  # type: ignore[no-any-return]

    stages = aot_autograd(fw_compiler=compiled, bw_compiler=compiled, inference_compiler=compiled)
    run: Call = stages(graph, examples)
    return run


def _check(options: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    for name in options:
        if name not in OPTIONS:
            raise UsageError(f"there is no option {name!r}", where=where, fix=f"options are {', '.join(OPTIONS)}")
    ProgramOptions(**options)
    if not isinstance(options.get("seconds", 0.0), Real | None):
        raise UsageError(
            f"seconds is {options['seconds']!r}", where=where, fix="give a number of seconds, as in seconds=60"
        )
    if options.get("target") not in (None, "cpu", "cuda"):
        raise UsageError(
            f"target is {options['target']!r}", where=where, why="kernels are called here", fix="give cpu or cuda"
        )
    return options


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an island at one set of shapes."""

    call: Call | None  # the kernels; None where it runs as it did
    speedup: float = 0.0  # over the best baseline, as an optimization's report has it; 0.0 without kernels
    why: str = ""  # it runs as it did, or empty
    # The places of results that kernels do not give, as whole numbers that may be large: these are computed as they
    # were.
    apart: frozenset[int] = frozenset()
    in_part: bool = False  # whether fewer operators may have kernels

    def __str__(self) -> str:
        return f"run as they did: {self.why}" if self.call is None else f"take 1/{self.speedup:.2f} of the time"


@dataclass(slots=True)
class Kernels:
    """What the islands of one compilation share: options, and kernels of programs that were met before."""

    options: Mapping[str, Any]  # of `prism.optimize`
    # By target and the program's hash: the layers of a model are one program.
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def of(self, function: Call, tensors: Sequence[torch.Tensor], time: Deadline = NEVER) -> Outcome:
        """The kernels of a function at these tensors, made now, by that time, unless its program has been met."""
        lie = sorted({t.device.type for t in tensors} or {"cpu"})
        target = "cuda" if "cuda" in lie else lie[0]
        asked = self.options.get("target") or target
        if target not in ("cpu", "cuda") or asked != target:
            return Outcome(
                None, why=f"tensors are on {target}, and kernels for {'cpu or cuda' if asked == target else asked}"
            )
        try:
            program = trace(function, tensors, name="island")
            apart = _apart(program)
            if apart:

                def rest(*given: torch.Tensor) -> tuple[Any, ...]:
                    return tuple(r for place, r in enumerate(function(*given)) if place not in apart)

                program = trace(rest, tensors, name="island")
        except PrismError as error:
            return Outcome(None, why=error.one_line(), in_part=error.in_part)
        key = f"{target} {program_hash(program)}"
        if key not in self.outcomes:
            self.outcomes[key] = self._made(program, {**self.options, "target": target, "seconds": time})
        return replace(self.outcomes[key], apart=apart)

    def _made(self, program: Program, options: Mapping[str, Any]) -> Outcome:
        try:
            result = optimize(program, **options)
        except PrismError as error:
            return Outcome(None, why=error.one_line(), in_part=error.in_part)
        return Outcome(load_function(result.source), result.report.speedup or 0.0)


def _apart(program: Program) -> frozenset[int]:
    """The places of results that kernels do not give; none where they give none of them, which is refused."""
    left, returned = computed(program)
    refused = refused_outputs(left)
    if len(refused) == len(left.outputs):
        return frozenset()
    return frozenset(
        place for place, r in enumerate(returned) if isinstance(r, Computed) and left.outputs[r.place] in refused
    )


@dataclass(slots=True)
class Time:
    """What the kernels of a graph may take to be made: it passes while they are, and not while the graph runs."""

    given: float = math.inf  # in all, seconds; infinite where there is no limit
    left: float = math.inf  # of it, seconds
    # The operators of each island that has not had its turn, by what it computes: equal ones have one turn.
    due: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def passes(self) -> Iterator[None]:
        """What is done within takes of it."""
        begun = monotonic()
        try:
            yield
        finally:
            self.left = max(0.0, self.left - (monotonic() - begun))

    def turn(self, kind: str, operators: int) -> Deadline | None:
        """When the kernels of an island of so many operators are made by; None where it has no time.

        It has the share of the time that is left which its operators are of those that have had no turn, but as much as
        kernels take at least, if that is left: of little time nothing comes. One that is equal to another has its.
        """
        if self.left <= 0.0 and kind in self.due:
            return None
        own = self.due.pop(kind, operators)
        if not math.isfinite(self.given):
            return NEVER
        share = self.left * own / (own + sum(self.due.values()))
        return Deadline(monotonic() + min(self.left, max(share, here(LEAST_S))), self.given)


class Graph:
    """A captured graph. Its islands are looked for when it is first called, outside of Dynamo's own tracing.

    What was captured is of functional operators, with the values' shapes in `meta["val"]`.
    """

    def __init__(self, captured: torch.fx.GraphModule, kernels: Kernels) -> None:
        self.captured = captured
        self.kernels = kernels
        self.complex = any(map(has_complex, captured.graph.nodes))
        given = kernels.options.get("seconds")
        self.time = Time() if given is None else Time(given, given)
        self.divided: torch.fx.GraphModule | None = None
        self.subclasses = False  # whether it is called with tensors of classes of their own, for which it was captured

    def __call__(self, *args: Any) -> Any:
        """What the graph computes."""
        if self.divided is None:
            with compile_lock:  # as Dynamo: nobody else captures or divides meanwhile, and kernels are timed alone
                if self.divided is None:
                    self.subclasses = any(map(_is_subclass, args))
                    with self.time.passes():
                        self.divided = self._divided()
        if self.subclasses:
            args = tuple(map(_plain, args))
        if self.complex:  # whose parts are looked at
            args = tuple(a.resolve_conj() if isinstance(a, torch.Tensor) else a for a in args)
        return self.divided(*args)

    @torch._dynamo.disable(recursive=True)  # type: ignore[untyped-decorator]
    def _divided(self) -> torch.fx.GraphModule:
        if self.complex:
            try:
                with torch.no_grad():
                    self.captured = in_pairs(self.captured)
            except Exception as error:  # of a wide range of types
                LOG.info("complex numbers stay as they are: %s", str(error).partition("\n")[0])
        _without_states(self.captured)
        for node in _operators(self.captured):
            node.target = INSTEAD.get(node.target, node.target)
        # The same seed gives the same numbers: what draws some hangs on what drew before it, until islands are divided.
        for before, node in pairwise(filter(_draws, _operators(self.captured))):
            node.kwargs = {**node.kwargs, AFTER: before}
        with torch.no_grad():
            fused = CapabilityBasedPartitioner(self.captured, Readable()).partition_and_fuse()
        for node in _operators(fused):
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != AFTER}
        fused.recompile()
        kinds = torch._ops.OpOverload | torch._ops.HigherOrderOperator  # not what sizes are computed with
        stay = [str(n.target) for n in _operators(fused) if isinstance(n.target, kinds)]
        if stay:
            LOG.info("%d operators stay as they are, of %s", len(stay), ", ".join(dict.fromkeys(stay)))
        for name, child in list(fused.named_children()):
            if isinstance(child, torch.fx.GraphModule) and name.startswith("fused_"):
                setattr(fused, name, Island(child, self.kernels, self.time))
        return fused


def _is_subclass(value: Any) -> bool:
    """Whether a value is of a class that says nothing of how tensors are computed with, as an image's may be."""
    plain = torch.Tensor.__torch_dispatch__
    return type(value) not in (torch.Tensor, torch.nn.Parameter) and getattr(value, "__torch_dispatch__", 0) is plain


def _plain(value: Any) -> Any:
    """The tensor that a subclass is; torch looks at what runs at the first call, and refuses others."""
    if not _is_subclass(value):
        return value
    with _disable_current_modes():
        return value.as_subclass(torch.Tensor)


def _draws(node: torch.fx.Node) -> bool:
    """Whether a node may draw random numbers; what holds graphs of its own may."""
    if isinstance(node.target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded in node.target.tags and _dropout(node) != 0.0
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def _without_states(graph: torch.fx.GraphModule) -> None:
    """Let run by itself what a checkpoint runs with a state of the generator, where it draws no random numbers."""
    for node in _operators(graph):
        keeps = node.target is run_and_save_rng_state
        if not keeps and node.target is not run_with_rng_state:
            continue
        target, *args = node.args if keeps else node.args[1:]
        with graph.graph.inserting_before(node):
            alone = graph.graph.call_function(target, tuple(args), node.kwargs)  # type: ignore[arg-type]
            if _draws(alone):
                graph.graph.erase_node(alone)
            elif keeps:  # two results, of which the second is the operator's
                states = torch.get_rng_state if _on_cpu(alone) else torch.cuda.get_rng_state
                made = graph.graph.call_function(states), alone
                for user in list(node.users):
                    own = made[int(user.args[1])]  # type: ignore[arg-type]
                    own.meta = dict(user.meta)
                    user.replace_all_uses_with(own)
                    graph.graph.erase_node(user)
                graph.graph.erase_node(node)
            else:
                values = {int(u.args[1]): u.meta["val"] for u in node.users if u.target is operator.getitem}  # type: ignore[arg-type]
                alone.meta = (
                    {"val": tuple(values.get(n) for n in range(max(values) + 1))} if values else dict(node.meta)
                )
                node.replace_all_uses_with(alone)
                graph.graph.erase_node(node)
    graph.recompile()


def _dropout(node: torch.fx.Node) -> Any:
    """The share that an attention drops; None of what is none."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for place, a in enumerate(node.target._schema.arguments):
        if a.name == "dropout_p":
            return node.args[place] if place < len(node.args) else node.kwargs.get(a.name, a.default_value)
    return None


class Readable(OperatorSupportBase):
    """Whether an island may hold a node: a graph of it alone is read as a program."""

    def __init__(self) -> None:
        self.known: dict[str, bool] = {}

    def is_node_supported(self, submodules: Any, node: torch.fx.Node) -> bool:
        """Whether it is read; nodes that differ in names alone are asked about once."""
        if node.op != "call_function":
            return False
        if node.target is operator.getitem:  # an island is called with tensors and numbers, not with several at once
            return isinstance(node.args[0], torch.fx.Node) and self.is_node_supported(submodules, node.args[0])
        if _is_rounding(node) or _in_float64(node):  # which is seen from more than the node
            return False
        if any(_is_data(n.meta.get("val")) for n in node.all_input_nodes):
            return False
        described = str((node.target, *torch.fx.map_arg((node.args, node.kwargs), _described), _used(node)))
        if described not in self.known:
            self.known[described] = self._is_read(node)
        return self.known[described]

    def _is_read(self, node: torch.fx.Node) -> bool:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
            return False
        if _on_cpu(node) and (target._schema.name.partition("::")[2] in LEFT or _orders_long_rows(node)):
            return False
        if _draws(node):
            return False
        examples: list[torch.Tensor] = []
        alone = torch.fx.Graph()

        def operand(given: torch.fx.Node) -> Any:
            value = given.meta.get("val")
            if not isinstance(value, torch.Tensor):
                return _number(value)
            examples.append(_narrowed(torch.empty(list(map(_number, value.shape)), dtype=value.dtype, device="meta")))
            return alone.placeholder(f"x{len(examples)}")

        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), operand)
        made = alone.call_function(target, args, kwargs)
        results = node.meta.get("val")
        if isinstance(results, (tuple, list)):
            alone.output(tuple(alone.call_function(operator.getitem, (made, n)) for n in _used(node)))
            if not _is_as_told(node):
                return False
        else:
            alone.output(made)
        try:
            trace(torch.fx.GraphModule({}, alone), examples, name="node", check=False)
        except PrismError:
            return False
        except Exception:
            LOG.exception("a bug in prism: %s stays as it is", target)
            return False
        return True


def _is_as_told(node: torch.fx.Node) -> bool:
    """Whether results have the types that their metadata say.

    torch's are wrong of what norms keep of operands of two types, as under autocast, on a CPU: float32, where kernels
    that go by them would give what the operator's gradient does not take.
    """
    values = [n.meta.get("val") for n in node.all_input_nodes]
    floats = {v.dtype for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()}
    if len(floats) < 2:
        return True

    def zeros(given: torch.fx.Node) -> Any:
        value = given.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return _number(value)
        return torch.zeros(list(map(_number, value.shape)), dtype=value.dtype, device=value.device)

    assert callable(node.target)
    try:
        made = node.target(*torch.fx.map_arg(node.args, zeros), **torch.fx.map_arg(node.kwargs, zeros))
    except RuntimeError:  # an operand, as what another norm kept, is of another type than is said
        return False
    return all(made[n].dtype == node.meta["val"][n].dtype for n in _used(node))


def _operators(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The nodes that compute, but for those of graphs within."""
    return [n for n in graph.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]


def _computed(graph: torch.fx.Graph) -> str:
    """What a graph computes, whatever its nodes are called: equal of two graphs that differ in nothing else."""
    number = {node: f"%{n}" for n, node in enumerate(graph.nodes)}
    lines = ((n.target if n.op == "call_function" else n.op, n.args, n.kwargs) for n in graph.nodes)
    return "\n".join(str((t, *torch.fx.map_arg(rest, number.__getitem__))) for t, *rest in lines)


def _described(operand: torch.fx.Node) -> Any:
    """What an operand is, as far as it matters to whether its operator is read."""
    value = operand.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return str(_number(value))
    return str((tuple(map(_number, value.shape)), value.dtype))


def _is_rounding(node: torch.fx.Node) -> bool:
    """Whether a node casts to a wider type what was cast to a narrower one, and no more than looked at in between."""

    def resolution(n: torch.fx.Node) -> float | None:
        value = n.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return None
        return torch.finfo(value.dtype).eps

    narrow = resolution(node.all_input_nodes[0]) if node.all_input_nodes else None
    wide = resolution(node)
    if narrow is None or wide is None or wide >= narrow or _name(node) not in CASTS:
        return False
    before = node.all_input_nodes[0]
    while _name(before) in CASTS or getattr(before.target, "is_view", False):
        before = before.all_input_nodes[0]
        finer = resolution(before)
        if finer is not None and finer < narrow:
            return True
    return False


def _results(graph: torch.fx.GraphModule, places: frozenset[int]) -> torch.fx.GraphModule:
    """A graph of some of the results, and of no more than it takes to compute them."""
    part = torch.fx.Graph()
    copied: dict[torch.fx.Node, torch.fx.Node] = {}
    results = part.graph_copy(graph.graph, copied)
    assert isinstance(results, tuple)
    part.output(tuple(r for place, r in enumerate(results) if place in places))
    part.eliminate_dead_code()
    return torch.fx.GraphModule(graph, part)


def _in_float64(node: torch.fx.Node) -> bool:
    """Whether a node computes in float64, which kernels do not; a number of that type besides others does not count.

    Dynamo makes such a tensor of a number of Python's that is another at the next call, and torch rounds it to the type
    that it computes in.
    """
    made = node.meta.get("val")
    results = made if isinstance(made, (tuple, list)) else (made,)
    operands = (n.meta.get("val") for n in node.all_input_nodes)
    return any(
        isinstance(v, torch.Tensor) and v.dtype == torch.float64
        for v in (*results, *(o for o in operands if isinstance(o, torch.Tensor) and o.dim() > 0))
    )


def _narrowed(tensor: torch.Tensor) -> torch.Tensor:
    """A number in the type that kernels compute in; anything else as it is."""
    return tensor.float() if tensor.dtype == torch.float64 and tensor.dim() == 0 else tensor


def _name(node: torch.fx.Node) -> str:
    return node.target._schema.name if isinstance(node.target, torch._ops.OpOverload) else ""


def _on_cpu(node: torch.fx.Node) -> bool:
    """Whether the node's operands lie on the CPU."""
    values = (n.meta.get("val") for n in node.all_input_nodes)
    return any(isinstance(v, torch.Tensor) and v.device.type == "cpu" for v in values)


def _orders_long_rows(node: torch.fx.Node) -> bool:
    """Whether it is an order, or the beginning of one, of rows longer than `ORDERED`."""
    target: Any = node.target
    if target._schema.name not in ("aten::topk", "aten::sort"):
        return False
    given = dict(zip((a.name for a in target._schema.arguments), node.args, strict=False)) | node.kwargs
    shape = given["self"].meta["val"].shape
    return len(shape) > 0 and _number(shape[given.get("dim", -1)]) > ORDERED and given.get("k") != 1


def _used(node: torch.fx.Node) -> list[int]:
    """The places of the results of several that something reads."""
    return sorted({int(u.args[1]) for u in node.users if u.target is operator.getitem})  # type: ignore[arg-type]


def _number(size: Any) -> Any:
    """A size; of a symbolic one what it was at the call that was captured, and some size where data will say it."""
    if not isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
        return size
    return UNKNOWN if size.node.hint is None else size.node.hint


def _is_data(value: Any) -> bool:
    """Whether a number is data, which is another one at each call, and so no island would have kernels for it."""
    return isinstance(value, torch.SymFloat) and value.node.hint is None


@dataclass(frozen=True, slots=True)
class Layout:
    """How a result of an island lies in memory: what follows was captured for that."""

    shape: tuple[int, ...]  # its lengths
    stride: tuple[int, ...]  # in elements
    # Whose memory it is: the place of a tensor among those that the island is called with, and then of one among its
    # results; its own where it is a view of none.
    base: int
    offset: int  # in elements, from where the base begins

    def viewed(self, base: torch.Tensor) -> torch.Tensor:
        """The result as a view of its base."""
        return base.as_strided(self.shape, self.stride, base.storage_offset() + self.offset)

    def laid(self, computed: torch.Tensor) -> torch.Tensor:
        """A result with memory of its own, once it is computed."""
        if computed.stride() == self.stride:
            return computed
        # Along a stride of 0 all elements are one, which is written once.
        once = [(1 if by == 0 else many) for many, by in zip(self.shape, self.stride, strict=True)]
        made = torch.empty_strided(once, self.stride, dtype=computed.dtype, device=computed.device)
        made.copy_(computed[tuple(slice(many) for many in once)])
        return made.as_strided(self.shape, self.stride)


def layouts(function: Call, tensors: Sequence[torch.Tensor]) -> tuple[Layout, ...]:
    """How the results of a function lie in memory, which is not run."""
    with FakeTensorMode():
        # Each in memory of its own: of those that lie in one now another call may have two.
        known = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in tensors]
        results = function(*known)
    known += results if isinstance(results, (tuple, list)) else (results,)
    memory = [k.untyped_storage()._cdata for k in known]
    found = []
    for place, result in enumerate(known[len(tensors) :], len(tensors)):
        bases = [n for n in range(len(tensors)) if memory[n] == memory[place]] or _largest(
            {n: k for n, k in enumerate(known) if memory[n] == memory[place] and _holds(k, result)}
        )
        base = next(iter(bases), place)
        offset = result.storage_offset() - known[base].storage_offset()
        found.append(Layout(tuple(result.shape), result.stride(), base, int(offset)))
    return tuple(found)


def _largest(views: Mapping[int, torch.Tensor]) -> list[int]:
    """The views of one memory that are part of no larger one."""
    return [n for n, own in views.items() if all(_holds(own, other) for other in views.values() if _holds(other, own))]


def _holds(whole: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether all that a tensor views are elements of another: two parts of something else lie apart."""
    first = view.storage_offset() - whole.storage_offset()
    last = first + sum(by * (many - 1) for by, many in zip(view.stride(), view.shape, strict=True))
    together = 1
    for by, many in sorted(zip(whole.stride(), whole.shape, strict=True)):
        if many != 1 and by != together:
            return False  # there are places between its elements
        together *= many
    return first >= 0 and last < together


class Island(torch.nn.Module):
    """Connected operators of a graph, by prism's kernels where these are better.

    The islands of a compilation share `kernels`, those of one graph `time`.
    """

    def __init__(self, operators: torch.fx.GraphModule, kernels: Kernels, time: Time | None = None) -> None:
        super().__init__()
        self.operators = operators
        self.kernels = kernels
        self.time = time or Time()
        self.count = len(_operators(operators))
        self.kind = _computed(operators.graph)
        self.time.due[self.kind] = self.count
        self.outcomes: dict[Key, tuple[Outcome, tuple[Layout, ...]]] = {}
        self.apart: dict[frozenset[int], torch.fx.GraphModule] = {}
        self.halves: torch.fx.GraphModule | None = None
        (last,) = (node for node in operators.graph.nodes if node.op == "output")
        self.several = isinstance(last.args[0], (tuple, list))

    def forward(self, *given: Any) -> Any:
        """What the operators compute."""
        key = tuple((g.shape, g.dtype, g.device, g.stride()) if isinstance(g, torch.Tensor) else g for g in given)
        if key not in self.outcomes:
            with compile_lock:
                if key not in self.outcomes:
                    if len(self.outcomes) >= MOST:
                        return self.operators(*given)
                    with self.time.passes():
                        self.outcomes[key] = self._made(given)
        outcome, lie = self.outcomes[key]
        if outcome.call is None:
            return (self.halves if outcome.in_part and self.halves else self.operators)(*given)
        tensors = [g for g in given if isinstance(g, torch.Tensor)]
        first = len(tensors)
        found = outcome.call(*map(_narrowed, tensors))
        made = iter(found if isinstance(found, tuple) else (found,))
        apart = iter(self.apart[outcome.apart](*given) if outcome.apart else ())
        for place, layout in enumerate(lie, first):
            computed = next(apart if place - first in outcome.apart else made)
            tensors.append(layout.laid(computed) if layout.base == place else computed)
        for place, layout in enumerate(lie, first):
            if layout.base != place and place - first not in outcome.apart:
                tensors[place] = layout.viewed(tensors[layout.base])
        return tuple(tensors[first:]) if self.several else tensors[first]

    @torch._dynamo.disable(recursive=True)  # type: ignore[untyped-decorator]
    def _made(self, given: Sequence[Any]) -> tuple[Outcome, tuple[Layout, ...]]:
        def function(*tensors: torch.Tensor) -> Any:
            rest = iter(tensors)
            return self.operators(*(next(rest) if isinstance(g, torch.Tensor) else g for g in given))

        with torch.no_grad():
            # Parameters would be taken for what the function itself holds.
            tensors = [g.detach() for g in given if isinstance(g, torch.Tensor)]
            lie: tuple[Layout, ...] = ()
            time = self.time.turn(self.kind, self.count)
            try:
                if time is None:
                    outcome = Outcome(None, why=f"the {self.time.given:g} s of this graph are over; {MORE_TIME}")
                else:
                    outcome = self.kernels.of(function, [_narrowed(t) for t in tensors], time)
                if outcome.call is not None:
                    lie = layouts(function, tensors)
            except Exception as error:  # whoever trains a model is not to lose it by this
                LOG.exception("a bug in prism")
                outcome = Outcome(None, why=f"a bug in prism: {error}")
            if outcome.call is not None and outcome.apart:
                self.apart[outcome.apart] = _results(self.operators, outcome.apart)
            if outcome.in_part and self.count > 1:
                self.halves = self.halves or self._halved()
                LOG.info("%d operators are halved: %s", self.count, outcome.why)
            else:
                LOG.info("%d operators %s", self.count, outcome)
            return outcome, lie

    def _halved(self) -> torch.fx.GraphModule:
        """The operators as two islands, the second of which may read what the first makes."""
        late = set(_operators(self.operators)[self.count // 2 :])

        def half(node: torch.fx.Node) -> int:
            return int((node.args[0] if node.target is operator.getitem else node) in late)

        made: torch.fx.GraphModule = split_module(self.operators, self.operators, half)
        for name, child in list(made.named_children()):
            if isinstance(child, torch.fx.GraphModule):
                setattr(made, name, Island(child, self.kernels, self.time))
        return made
