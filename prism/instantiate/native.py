"""A Program in torch as its user would have written it: the baseline that is timed.

`prism.backends.eager` is the yardstick of rounding: everything but products in float32, from elementary operations. As
a baseline it is a straw man: torch has one call for a softmax, a norm, an activation or attention, and computes in half
precision without a float32 copy of each tensor. Here a definition is torch's own call wherever one computes the same,
which is found by trying it: on the inputs at hand, within a small multiple of the rounding of the type. What is
recorded is a flat graph of torch's operators without an interpreter's overhead, of which torch.compile makes most, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F

from prism.backends.eager import TorchArrays, torch_dtype
from prism.program.evaluate import Interpreter, bind
from prism.program.nodes import Const, Definition, Map, Program, Read, Reduce, ReduceKind, walk

Call: TypeAlias = Callable[..., torch.Tensor]
Known: TypeAlias = Mapping[str, torch.Tensor]
Step: TypeAlias = Callable[[Known], torch.Tensor]

ALIKE = 1e-4
"""By how much torch's call may differ in float32, relative to the largest result."""

# Of one tensor, with the operations that its formula has.
_ACTIVATIONS: tuple[tuple[frozenset[str], Call], ...] = (
    (frozenset({"sigmoid"}), F.silu),
    (frozenset({"erf"}), F.gelu),
    (frozenset({"tanh"}), lambda x: F.gelu(x, approximate="tanh")),
    (frozenset({"tanh"}), F.mish),
    (frozenset({"log", "exp"}), F.softplus),
    (frozenset({"exp"}), F.elu),
    (frozenset({"maximum"}), F.relu),
    (frozenset({"maximum", "minimum"}), F.hardswish),
)


def native(program: Program, tensors: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """The program as a graph of torch's own operators, at the shapes of these tensors.

    Args:
        program: what is run.
        tensors: one per input of the program; they are computed with, to see which calls compute the same.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    given = {t.name: x for t, x in zip(program.inputs, tensors, strict=True)}
    binding = bind(program.inputs, {n: x.shape for n, x in given.items()})
    needed = _needed(program)
    with torch.no_grad():
        # In float32, where half precision would overflow and so tell nothing apart.
        known = {n: x.float() if x.is_floating_point() else x for n, x in given.items()}
        calls: dict[str, Step] = {}
        for d in needed:
            known[d.name] = _elementary(d, binding, torch.float32)(known)
            same = (c for c in _candidates(d, program, known) if _same(c, known, known[d.name]))
            calls[d.name] = next(same, _elementary(d, binding, torch_dtype(d.dtype)))
        known.clear()

        def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
            values = dict(zip(given, inputs, strict=True))
            for d in needed:
                values[d.name] = calls[d.name](values)
            return [values[n].contiguous() for n in program.outputs]

        return _tidy(make_fx(run)(*tensors))


def _needed(program: Program) -> list[Definition]:
    """The definitions that outputs need, in order."""
    names = set(program.outputs)
    for d in reversed(program.definitions):
        if d.name in names:
            names |= {e.tensor for e in walk(d.expr) if isinstance(e, Read)}
    return [d for d in program.definitions if d.name in names]


def _elementary(d: Definition, binding: Mapping[str, int], dtype: torch.dtype) -> Step:
    """The definition, stored in a type, from elementary operations: one alone is in that type, several in float32."""
    alone = isinstance(d.expr, Map) and sum(isinstance(e, Map) for e in walk(d.expr)) == 1

    def call(known: Known) -> torch.Tensor:
        arrays = TorchArrays(torch.device("cpu"), dtype if alone and dtype.is_floating_point else torch.float32)
        machine = Interpreter(known, binding, arrays)
        result: torch.Tensor = machine.over(machine.value(d.expr), d.axes)
        return result.to(dtype)

    return call


def _candidates(d: Definition, program: Program, known: Known) -> Iterator[Step]:
    """torch's calls that may compute the definition, by the operations that it has, the best first."""
    nodes = list(walk(d.expr))
    read = list(dict.fromkeys(e.tensor for e in nodes if isinstance(e, Read)))
    ops = {e.op for e in nodes if isinstance(e, Map)}
    kinds = {e.kind for e in nodes if isinstance(e, Reduce)}
    numbers = list(dict.fromkeys(float(e.value) for e in nodes if isinstance(e, Const)))
    main = max(read, key=lambda n: known[n].numel(), default="")
    if not main:
        return
    dims, shape = known[main].dim(), tuple(known[d.name].shape)

    def of(call: Call, *names: str) -> Step:
        return lambda tensors: call(*(tensors[n] for n in names))

    if d.view and len(read) == 1:
        if known[main].numel() == known[d.name].numel():
            yield of(lambda x: x.reshape(shape), main)
        elif dims == len(shape):
            for dim in range(dims):
                times = shape[dim] // max(known[main].shape[dim], 1)
                yield of(lambda x, dim=dim, times=times: x.repeat_interleave(times, dim), main)
    if len(read) > 1 and "where" in ops and not kinds:
        for dim in range(dims):
            for order in (read, read[::-1]):
                yield of(lambda *parts, dim=dim: torch.cat(parts, dim), *order)
    if d.view or not known[main].is_floating_point():
        return
    if len(read) == 1 and not kinds and len(ops) > 1:
        for has, activation in _ACTIVATIONS:
            if has <= ops:
                yield of(activation, main)
    if len(read) == 1 and "exp" in ops and ReduceKind.MAX in kinds:
        for dim in reversed(range(dims)):
            yield of(lambda x, dim=dim: torch.softmax(x, dim), main)
            yield of(lambda x, dim=dim: torch.log_softmax(x, dim), main)
    if kinds == {ReduceKind.SUM} and ops & {"sqrt", "pow"} and ops & {"recip", "div", "pow"}:
        yield from _norms(d, known, main, [n for n in read if n != main], numbers)
    if _product(d) is not None:
        yield from _attentions(d, program, known)
    if kinds == {ReduceKind.SUM} and "mul" in ops and len(read) == 3:
        bias = min(read, key=lambda n: known[n].dim())
        x, w = (n for n in read if n != bias)
        if known[w].dim() == 2:
            yield of(F.linear, x, w, bias)
            yield of(lambda x, w, b: F.linear(x, w.t(), b), x, w, bias)


def _product(d: Definition) -> tuple[str, str] | None:
    """The two tensors whose products a definition sums; None where it is something else."""
    body = d.expr
    if not isinstance(body, Reduce) or body.kind is not ReduceKind.SUM:
        return None
    match body.body:
        case Map("mul", (Read(a), Read(b))):
            return a, b
    return None


def _attentions(d: Definition, program: Program, known: Known) -> Iterator[Step]:
    """Attention, where the definition sums values with weights that go back to another such product.

    What lies between the two products is not looked at, but for its numbers and tensors: scale and mask are among them.
    """
    weights, values = _product(d) or ("", "")
    by_name = {x.name: x for x in program.definitions}
    numbers, name = [1.0], weights
    masks: list[str | None] = [None, ""]
    while name in by_name and (scores := _product(by_name[name])) is None:
        nodes = list(walk(by_name[name].expr))
        numbers += [float(e.value) for e in nodes if isinstance(e, Const) and math.isfinite(e.value) and e.value]
        read = list(dict.fromkeys(e.tensor for e in nodes if isinstance(e, Read)))
        name = max(read, key=lambda n: known[n].numel(), default="")
        masks += [n for n in read if n != name]
    if name not in by_name or name == weights or scores is None or known[values].dim() not in (3, 4):
        return
    queries, keys = scores
    for mask in masks:
        for scale in dict.fromkeys([*numbers, *(1 / n for n in numbers)]):
            for turned in (True, False):
                yield partial(_attention, queries, keys, values, mask, scale, turned)


def _attention(
    queries: str, keys: str, values: str, mask: str | None, scale: float, turned: bool, tensors: Known
) -> torch.Tensor:
    q, k, v = tensors[queries], tensors[keys], tensors[values]
    k = k.transpose(-1, -2) if turned else k
    given = tensors[mask] if mask else None
    if q.dim() == 4:
        return F.scaled_dot_product_attention(q, k, v, given, is_causal=mask is None, scale=scale)
    # Its fast path is for four dimensions.
    q, k, v = q[None], k[None], v[None]
    return F.scaled_dot_product_attention(q, k, v, given, is_causal=mask is None, scale=scale)[0]


def _norms(d: Definition, known: Known, main: str, others: Sequence[str], numbers: Sequence[float]) -> Iterator[Step]:
    """Layer and RMS norms over the last dimensions, with each number of the formula as epsilon."""
    x = known[main]
    orders = [tuple(others), tuple(reversed(others))] if len(others) == 2 else [tuple(others)]
    for shape in (tuple(x.shape[-trailing:]) for trailing in range(1, x.dim() + 1)):
        if any(tuple(known[n].shape) != shape for n in others):
            continue
        for eps in [n for n in numbers if 0 < n < 1e-2] or [0.0]:
            for order in orders:
                if len(order) <= 2:
                    yield partial(_layer_norm, main, order, shape, eps)
                if len(order) <= 1:
                    yield partial(_rms_norm, main, order, shape, eps)


def _layer_norm(main: str, others: Sequence[str], shape: Sequence[int], eps: float, tensors: Known) -> torch.Tensor:
    scale, bias = ([*(tensors[n] for n in others), None, None])[:2]
    return F.layer_norm(tensors[main], shape, scale, bias, eps)


def _rms_norm(main: str, others: Sequence[str], shape: Sequence[int], eps: float, tensors: Known) -> torch.Tensor:
    return F.rms_norm(tensors[main], list(shape), tensors[others[0]] if others else None, eps)


def _same(call: Step, known: Known, wanted: torch.Tensor) -> bool:
    """Whether the call gives the wanted tensor, but for rounding."""
    try:
        found = call(known)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    scale = float(wanted.abs().amax()) if wanted.numel() else 0.0
    if not math.isfinite(scale):
        return False
    return bool(torch.allclose(found, wanted, rtol=ALIKE, atol=ALIKE * scale))


def _tidy(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph without views that change nothing, without what nobody reads, and with its constants computed once."""
    aten = torch.ops.aten
    views = (aten.permute.default, aten.expand.default, aten.view.default, aten.slice.Tensor, aten.alias.default)
    constant: dict[torch.fx.Node, torch.Tensor] = {}
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        before = node.args[0] if node.args and isinstance(node.args[0], torch.fx.Node) else None
        if before is not None and node.target in views and _alike(before, node):
            node.replace_all_uses_with(before)
            continue
        if all(n in constant for n in node.all_input_nodes):
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
    return graph


def _alike(before: torch.fx.Node, after: torch.fx.Node) -> bool:
    """Whether a view has the elements of what it views, in their places."""
    a, b = before.meta.get("val"), after.meta.get("val")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.shape != b.shape:
        return False
    if after.target is torch.ops.aten.permute.default:
        order = after.args[1]
        return isinstance(order, (list, tuple)) and list(order) == list(range(a.dim()))
    return a.stride() == b.stride()
