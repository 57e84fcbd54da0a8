"""A Program in torch as its user would have written it: the baseline that is timed.

`prism.backends.eager` is the yardstick of rounding: everything but products in float32, from elementary operations. As
a baseline it is a straw man: torch has one call for a softmax, a norm, an activation or attention, and computes in half
precision without a float32 copy of each tensor. Here a definition is torch's own call wherever one computes the same,
which is found by trying it: on the inputs at hand, within a small multiple of the rounding of the type. A call may
stand for several definitions (`silu` is two nodes of an ONNX file, a norm seven); those that nobody reads then are not
run. What is recorded is a flat graph of torch's functions, without an interpreter's overhead.

What a small model takes in torch is mostly Python: `torch.ops.aten.mul.Tensor(a, b)` costs twice what `a * b` does, a
module's call more than a function's. So a graph is cleared of what changes nothing and its operators are spelled as
torch's functions.
"""

from __future__ import annotations

import inspect
import json
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import sympy
import torch
import torch.nn.functional as F
from torch import fx
from torch.export.passes import move_to_device_pass
from torch.fx import GraphModule, Node
from torch.fx.graph import CodeGen

from prism.backends.eager import POINTWISE, TorchArrays, torch_dtype
from prism.program import extents
from prism.program.evaluate import Interpreter, bind
from prism.program.nodes import Const, Definition, Expr, Map, Program, Read, Reduce, ReduceKind, walk
from prism.program.region import subprogram
from prism.program.transform import indices

Call: TypeAlias = Callable[..., torch.Tensor]
Known: TypeAlias = Mapping[str, torch.Tensor]
Step: TypeAlias = Callable[[Known], torch.Tensor]

ALIKE = 1e-4
"""By how much torch's call may differ in float32, relative to the largest result."""
DEEP = 12
"""Definitions that one call may stand for."""
PART = 16
"""Elements along a length, at least, by which calls are told apart."""

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
_REDUCTIONS: Mapping[ReduceKind, tuple[Call, ...]] = {
    ReduceKind.SUM: (torch.sum, torch.mean, partial(torch.var, correction=0)),
    ReduceKind.MAX: (torch.amax, torch.logsumexp),
    ReduceKind.MIN: (torch.amin,),
}


def baseline(spec: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """What a user of torch runs, and on which tensors; on the device that these are on.

    Args:
        spec: of a contender: `program`, the file of a pickled program, or `exported`, that of the function that it was
            traced from, with the places of the inputs that the function takes.
        tensors: one per input of the program.
    """
    # Both files were written by the parent, in a folder of its own; nothing else is ever unpickled.
    if spec.get("exported"):
        takes = [tensors[n] for n in spec["inputs"]]
        graph = exported(Path(spec["exported"]), takes)
    else:
        takes = list(tensors)
        file = Path(spec["program"])
        graph = native(pickle.loads(file.read_bytes()), takes, file.with_suffix(".calls"))
    # The function and not the module, whose call looks for hooks first.
    return graph.forward, takes


def native(program: Program, tensors: Sequence[torch.Tensor], found: Path | None = None) -> GraphModule:
    """The program as a graph of torch's own functions, at the shapes of these tensors and on their device.

    Parts of the tensors are computed with, to see which calls compute the same: where lengths are symbols, the first
    few elements along each, of what may be many millions. `found` is a file that keeps which calls do, for processes
    that ask the same again: of large tensors, that costs many times what the program does.
    """
    with torch.no_grad(), one_thread():
        part = _part(program, tensors)
        try:
            return _native(program, tensors, part, found)
        except TimeoutError:  # which on all of the tensors it would be once more
            raise
        except Exception:  # whatever torch or the interpreter says of lengths that the program does not take
            if part is tensors:
                raise
            return _native(program, tensors, tensors, None)


def _native(
    program: Program, tensors: Sequence[torch.Tensor], part: Sequence[torch.Tensor], found: Path | None
) -> GraphModule:
    """The graph, by what is seen on parts of the tensors, or on all of them, where these are the parts."""
    names = [t.name for t in program.inputs]
    needed = subprogram(program, program.name, program.outputs).definitions
    calls = _calls(program, needed, dict(zip(names, part, strict=True)), found)

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        values = dict(zip(names, inputs, strict=True))
        for d in needed:
            # Where the type is the same already, this is a view that changes nothing.
            values[d.name] = calls[d.name](values).to(torch_dtype(d.dtype))
        return [values[n].contiguous() for n in program.outputs]

    # Recorded without computing: that is done once, to see which of torch's functions give the same.
    recorded = _recorded(run, tensors)
    return as_written(recorded, part, None if part is tensors else _recorded(run, part))


def _recorded(run: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> GraphModule:
    """The operators that a function calls of such tensors."""
    from torch.fx.experimental.proxy_tensor import make_fx

    graph: GraphModule = make_fx(run, tracing_mode="fake", pre_dispatch=True)(*tensors)
    return graph


def _part(program: Program, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The first elements of the tensors along the lengths that are symbols; the tensors where that leaves nothing out.

    What is the same on them is the same on all, as positions and lengths are compared with no number, as a window's,
    that is as large as they are long, or with one that is larger than all.
    """
    shapes = {t.name: x.shape for t, x in zip(program.inputs, tensors, strict=True)}
    binding = bind(program.inputs, shapes)
    numbers = {n for d in program.definitions for n in _integers(d)}
    least = max([PART, *(2 * n for n in numbers if n < max(binding.values(), default=0))])
    short: dict[str, int] = {}
    for name, n in sorted(binding.items()):
        # What divides a length, as heads do, divides the shorter one; and no two that differ become the same.
        unit = math.gcd(n, PART)
        length = unit * -(-least // unit)
        while any(v == length and binding[k] != n for k, v in short.items()):
            length += unit
        short[name] = min(length, n)
    if short == binding:
        return tensors
    return [
        x[tuple(slice(extents.evaluate(e, short)) for e in t.shape)].contiguous()
        for t, x in zip(program.inputs, tensors, strict=True)
    ]


def _integers(d: Definition) -> Iterator[int]:
    """The whole numbers that a definition has beside its coordinates and the lengths that are known."""
    nodes = list(walk(d.expr))
    lengths = {a.extent for a in (*d.axes, *(e.axis for e in nodes if isinstance(e, Reduce)))}
    found = [e for e in lengths if not extents.is_static(e)]
    for e in nodes:
        if isinstance(e, Const) and math.isfinite(e.value) and float(e.value).is_integer():
            yield abs(int(e.value))
        for i in indices(e):
            found += i.extents()
    yield from (abs(int(n)) for extent in found for n in sympy.sympify(extent).atoms(sympy.Integer))


def _calls(
    program: Program, needed: Sequence[Definition], given: Mapping[str, torch.Tensor], found: Path | None
) -> dict[str, Step]:
    """What computes each definition, seen on these inputs, or read from the file that says which of them do."""
    earlier: dict[str, int | None] = json.loads(found.read_text()) if found is not None and found.exists() else {}
    # In float32, where half precision would overflow and so tell nothing apart.
    known = {n: x.float() if x.is_floating_point() else x for n, x in given.items()}
    # The same without elements: a call that gives another shape is told by them.
    shapes = {n: x.to("meta") for n, x in known.items()}
    calls: dict[str, Step] = {}
    places: dict[str, int | None] = {}
    for d in needed:
        shapes[d.name] = torch.empty(_shape(d, program, known), dtype=torch.float32, device="meta")
        if earlier:
            place = earlier[d.name]
        else:
            known[d.name] = _elementary(d, program, torch.float32)(known)
            tried = enumerate(_candidates(d, program, shapes))
            place = next((n for n, c in tried if _same(c, known, shapes, d.name)), None)
        places[d.name] = place
        if place is None:
            calls[d.name] = _elementary(d, program, torch_dtype(d.dtype))
        else:
            calls[d.name] = next(islice(_candidates(d, program, shapes), place, None))
    if found is not None and not earlier:
        found.write_text(json.dumps(places))
    return calls


def _sizes(program: Program, tensors: Known) -> dict[str, int]:
    """The value of every symbol, where the tensors have the program's inputs among them."""
    return bind(program.inputs, {t.name: tensors[t.name].shape for t in program.inputs})


def _shape(d: Definition, program: Program, tensors: Known) -> list[int]:
    """The definition's shape where the inputs are these."""
    sizes = _sizes(program, tensors)
    return [extents.evaluate(a.extent, sizes) for a in d.axes]


def _elementary(d: Definition, program: Program, dtype: torch.dtype) -> Step:
    """The definition, stored in a type, from elementary operations: one alone is in that type, several in float32."""
    alone = isinstance(d.expr, Map) and sum(isinstance(e, Map) for e in walk(d.expr)) == 1

    def call(known: Known) -> torch.Tensor:
        device = next((t.device for t in known.values()), torch.device("cpu"))
        arrays = TorchArrays(device, dtype if alone and dtype.is_floating_point else torch.float32)
        machine = Interpreter(known, _sizes(program, known), arrays)
        result: torch.Tensor = machine.over(machine.value(d.expr), d.axes)
        return result.to(dtype)

    return call


@dataclass(frozen=True, slots=True)
class _Cone:
    """A definition with some of those that it rests on, as one formula."""

    leaves: tuple[str, ...]  # the tensors that it is of, in order
    ops: frozenset[str]  # the pointwise operations in it
    kinds: frozenset[ReduceKind]  # the reductions in it
    numbers: tuple[float, ...]  # the constants in it
    definitions: int  # how many it holds


def _cones(d: Definition, program: Program) -> list[_Cone]:
    """The definition alone, then with ever more of those before it, the latest first."""
    place = {x.name: n for n, x in enumerate(program.definitions)}
    found: list[_Cone] = []
    inside: list[Definition] = [d]
    while True:
        nodes = [e for x in inside for e in walk(x.expr)]
        names = {x.name for x in inside}
        leaves = tuple(dict.fromkeys(e.tensor for e in nodes if isinstance(e, Read) and e.tensor not in names))
        found.append(
            _Cone(
                leaves,
                frozenset(e.op for e in nodes if isinstance(e, Map)),
                frozenset(e.kind for e in nodes if isinstance(e, Reduce)),
                tuple(dict.fromkeys(float(e.value) for e in nodes if isinstance(e, Const))),
                len(inside),
            )
        )
        further = [n for n in leaves if n in place]
        if not further or len(inside) == DEEP:
            return found
        inside.append(program.definitions[max(place[n] for n in further)])


def _candidates(d: Definition, program: Program, known: Known) -> Iterator[Step]:
    """torch's calls that may compute the definition, by the operations that it has, the best first."""
    cones = _cones(d, program)
    yield from _attentions(d, program, known)
    if known[d.name].is_floating_point() and not d.view:
        for cone in reversed(cones):
            yield from _fused(cone, d, known)
    alone = cones[0]
    if len(alone.leaves) > 1 and "where" in alone.ops and not alone.kinds:
        for dim in range(known[alone.leaves[0]].dim()):
            for order in (alone.leaves, alone.leaves[::-1]):
                yield _of(lambda *parts, dim=dim: torch.cat(parts, dim), *order)
    if d.view and len(alone.leaves) == 1:
        yield from _views(d, program, known, alone.leaves[0])
    scores = _product(d.expr)
    if scores is not None:
        a, b = scores
        for x, y in ((a, b), (b, a)):
            yield _of(torch.matmul, x, y)
            yield _of(lambda x, y: torch.matmul(x, y.transpose(-1, -2)), x, y)
            yield _of(lambda x, y: torch.matmul(x.transpose(-1, -2), y), x, y)
    if not any(isinstance(e, Reduce) for e in walk(d.expr)):
        direct = _direct(d.expr)
        if direct is not None:
            yield direct


def _of(call: Call, *names: str) -> Step:
    """The call on tensors of these names."""
    return lambda tensors: call(*(tensors[n] for n in names))


def _views(d: Definition, program: Program, known: Known, main: str) -> Iterator[Step]:
    """The elements of a tensor in another shape."""
    if known[main].numel() == known[d.name].numel():
        yield lambda tensors: tensors[main].reshape(_shape(d, program, tensors))
    elif known[main].dim() == len(d.axes):
        for dim in range(len(d.axes)):
            yield partial(_repeated, d, program, main, dim)


def _repeated(d: Definition, program: Program, main: str, dim: int, tensors: Known) -> torch.Tensor:
    x = tensors[main]
    return x.repeat_interleave(_shape(d, program, tensors)[dim] // max(x.shape[dim], 1), dim)


def _fused(cone: _Cone, d: Definition, known: Known) -> Iterator[Step]:
    """torch's calls for what has several operations."""
    leaves, ops, kinds = cone.leaves, cone.ops, cone.kinds
    floating = [n for n in leaves if known[n].is_floating_point()]
    if not leaves or len(floating) < len(leaves):
        return
    dims = known[leaves[0]].dim()
    if len(leaves) == 1 and not kinds:
        for has, activation in _ACTIVATIONS:
            if has <= ops:
                yield _of(activation, leaves[0])
        if ops == {"sqrt", "recip"}:
            yield _of(torch.rsqrt, leaves[0])
    if len(leaves) == 1 and kinds:
        # A small number that is added would not be missed.
        share = known[d.name].numel() / max(known[leaves[0]].numel(), 1)
        plain = all(math.isclose(n, share, rel_tol=1e-3) or n == 2 for n in cone.numbers)
        for dim in reversed(range(dims)):
            if "exp" in ops and ReduceKind.MAX in kinds:
                yield _of(lambda x, dim=dim: torch.softmax(x, dim), *leaves)
                yield _of(lambda x, dim=dim: torch.log_softmax(x, dim), *leaves)
            for call in (c for kind in kinds if plain for c in _REDUCTIONS.get(kind, ())):
                yield _of(partial(call, dim=dim, keepdim=known[d.name].dim() == dims), *leaves)
    if kinds == {ReduceKind.SUM} and ops & {"sqrt", "pow"} and ops & {"recip", "div", "pow"} and len(leaves) <= 3:
        main = max(leaves, key=lambda n: known[n].numel())
        yield from _norms(cone, known, main, [n for n in leaves if n != main])
    if kinds == {ReduceKind.SUM} and "mul" in ops and len(leaves) == 3 and cone.definitions <= 2:
        bias = min(leaves, key=lambda n: known[n].dim())
        x, w = (n for n in leaves if n != bias)
        if known[w].dim() == 2:
            yield _of(F.linear, x, w, bias)
            yield _of(lambda x, w, b: F.linear(x, w.t(), b), x, w, bias)


def _direct(e: Expr) -> Step | None:
    """A pointwise formula on tensors as they are, whatever their indices, as torch broadcasts; None for any other."""
    match e:
        case Const(value):
            return lambda known, value=float(value): value  # type: ignore[misc]
        case Read(name):
            return lambda known: known[name]
        case Map("add", (a, Map("neg", (b,)))):
            return _applied("sub", (a, b))
        case Map("mul", (a, Map("recip", (b,)))):
            return _applied("div", (a, b))
        case Map("maximum", (a, Const(value))) if float(value) == 0.0:
            inner = _direct(a)
            return None if inner is None else lambda known: F.relu(inner(known))
        case Map("where", (p, a, b)):
            return _applied("where", (p, a, b))
        case Map(op, args):
            return _applied(op, args)
    return None


def _applied(op: str, args: Sequence[Expr]) -> Step | None:
    """An operation on what `_direct` makes of its arguments."""
    steps = [_direct(a) for a in args]
    call: Call | None = torch.where if op == "where" else POINTWISE.get(op)
    if call is None or any(s is None for s in steps):
        return None
    return lambda known: call(*(s(known) for s in steps if s is not None))


def _product(e: Expr) -> tuple[str, str] | None:
    """The two tensors whose products a formula sums, once; None where it is something else."""
    found = [x for x in walk(e) if isinstance(x, Reduce)]
    if len(found) != 1 or found[0].kind is not ReduceKind.SUM:
        return None
    match found[0].body:
        case Map("mul", (Read(a), Read(b))):
            return a, b
    return None


def _attentions(d: Definition, program: Program, known: Known) -> Iterator[Step]:
    """Attention, where the definition sums values with weights that go back to another such product.

    What lies between the two products is not looked at, but for its numbers and tensors: scale and mask are among them.
    """
    weights, values = _product(d.expr) or ("", "")
    by_name = {x.name: x for x in program.definitions}
    numbers, name = [1.0], weights
    masks: list[str | None] = [None, ""]
    softened, scores = False, None
    while name in by_name and scores is None:
        nodes = list(walk(by_name[name].expr))
        numbers += [float(e.value) for e in nodes if isinstance(e, Const) and math.isfinite(e.value) and e.value]
        softened |= any(isinstance(e, Map) and e.op == "exp" for e in nodes)
        scores = _product(by_name[name].expr)
        read = list(dict.fromkeys(e.tensor for e in nodes if isinstance(e, Read)))
        of = max(read, key=lambda n: known[n].numel(), default="")
        masks += [n for n in read if n not in (of, *(scores or ()))]
        name = name if scores is not None else of
    if name == weights or scores is None or not softened or known[values].dim() not in (3, 4):
        return
    queries, keys = scores
    # Heads that were repeated before: torch repeats them itself, in half of the time.
    repeated = [
        (k, v)
        for k in _viewed(keys, by_name)
        for v in _viewed(values, by_name)
        if known[k].dim() == known[v].dim() == known[queries].dim()
        and known[k].shape[-3] == known[v].shape[-3] < known[queries].shape[-3]
    ]
    for k, v in (*repeated, (keys, values)):
        for mask in dict.fromkeys(masks):
            for scale in dict.fromkeys([*numbers, *(1 / n for n in numbers)]):
                for turned in (True, False):
                    yield partial(_attention, queries, k, v, mask, scale, turned)


def _viewed(name: str, definitions: Mapping[str, Definition]) -> list[str]:
    """The tensors that it is a view of, the first one first."""
    found: list[str] = []
    while name in definitions and definitions[name].view:
        read = {e.tensor for e in walk(definitions[name].expr) if isinstance(e, Read)}
        if len(read) != 1:
            break
        (name,) = read
        found.insert(0, name)
    return found


def _attention(
    queries: str, keys: str, values: str, mask: str | None, scale: float, turned: bool, tensors: Known
) -> torch.Tensor:
    q, k, v = tensors[queries], tensors[keys], tensors[values]
    k = k.transpose(-1, -2) if turned else k
    given = tensors[mask] if mask else None
    # Its fast path is for four dimensions.
    q, k, v = (x if x.dim() == 4 else x[None] for x in (q, k, v))
    grouped = k.shape[1] != q.shape[1]
    found = F.scaled_dot_product_attention(q, k, v, given, is_causal=mask is None, scale=scale, enable_gqa=grouped)
    return found if tensors[queries].dim() == 4 else found[0]


def _norms(cone: _Cone, known: Known, main: str, others: Sequence[str]) -> Iterator[Step]:
    """Layer and RMS norms over the last dimensions, with each number of the formula as epsilon."""
    x = known[main]
    orders = [tuple(others), tuple(reversed(others))] if len(others) == 2 else [tuple(others)]
    for dims in range(1, x.dim() + 1):
        if any(known[n].shape != x.shape[-dims:] for n in others):
            continue
        for eps in [n for n in cone.numbers if 0 < n < 1e-2] or [0.0]:
            for order in orders:
                if len(order) <= 2:
                    yield partial(_layer_norm, main, order, dims, eps)
                if len(order) <= 1 and cone.definitions == 1:
                    yield partial(_rms_norm, main, order, dims, eps)


def _layer_norm(main: str, others: Sequence[str], dims: int, eps: float, tensors: Known) -> torch.Tensor:
    x, (scale, bias) = tensors[main], ([*(tensors[n] for n in others), None, None])[:2]
    return F.layer_norm(x, x.shape[-dims:], scale, bias, eps)


def _rms_norm(main: str, others: Sequence[str], dims: int, eps: float, tensors: Known) -> torch.Tensor:
    """Written out where the type can hold squares: torch's call takes 1.5 to 6 times as long on CPUs."""
    x, scale = tensors[main], next((tensors[n] for n in others), None)
    if x.dtype == torch.float16:
        return F.rms_norm(x, x.shape[-dims:], scale, eps)
    normed = x * torch.rsqrt(x.pow(2).mean(tuple(range(-dims, 0)), keepdim=True) + eps)
    return normed if scale is None else normed * scale


def _same(call: Step, known: Known, shapes: Known, name: str) -> bool:
    """Whether the call gives that tensor, but for rounding: first whether it gives one of its shape and type."""
    wanted = known[name]
    try:
        made: Any = call(shapes)
        if not isinstance(made, torch.Tensor) or made.shape != wanted.shape or made.dtype != wanted.dtype:
            return False
        found = call(known)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
        return False
    if not wanted.is_floating_point():
        return torch.equal(found, wanted)
    if not wanted.numel():
        return True
    # Not `allclose`, which takes ten times as long over large tensors. NaN is no less than anything.
    least, most = map(float, wanted.aminmax())
    scale = max(-least, most)
    return math.isfinite(scale) and bool((found - wanted).abs_().amax() <= ALIKE * scale)


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


def as_written(graph: GraphModule, tensors: Sequence[torch.Tensor], like: GraphModule | None = None) -> GraphModule:
    """The graph by torch's functions, without views that change nothing and what nobody reads; constants computed once.

    A function takes an operator's place where it gives the same on the tensors; `like` has the same operators for
    these, where the graph is for larger ones.

    Raises:
        ValueError: it has others.
    """
    _compute_constants(graph)
    seen = graph if like is None else like
    if like is not None:
        _compute_constants(like)
    found = _Reader(seen)
    with torch.no_grad(), one_thread():
        found.run(*tensors)
    pairs = list(zip(seen.graph.nodes, graph.graph.nodes, strict=True))
    if any(a.op != b.op or (a.op == "call_function" and a.target != b.target) for a, b in pairs):
        raise ValueError("larger tensors take other operators")
    node_of = dict(pairs)
    for node, function in found.functions.items():
        at = node_of[node]
        at.op, at.target = ("call_method", function.__name__) if _is_method(function) else (at.op, function)
    for node, before in found.same.items():
        node_of[node].replace_all_uses_with(node_of[found.same.get(before, before)])
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


class _Reader(fx.Interpreter):
    """Runs a graph and looks at every value."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.functions: dict[Node, Callable[..., Any]] = {}  # torch's function for an operator
        self.same: dict[Node, Node] = {}  # for a view, the node before it that has its elements in its places
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
    return found.dtype == value.dtype and (
        torch.equal(found, value) or torch.allclose(found, value, rtol=0.0, atol=0.0, equal_nan=True)
    )


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
