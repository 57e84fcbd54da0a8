"""Expressions to egglog terms and a frozen e-graph back to data.

A leaf is a string that names it (`x[d16, d256]`), with the set of its axes; `Leaves` remembers which expression and
which axis a name stands for. Shared and deep sub-expressions become globals, so that a DAG is never written as a tree.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

from egglog import bindings

from prism.egraph.language import CONSTRUCTORS, REDUCTIONS, snap
from prism.errors import IllegalIRError
from prism.program.extents import is_static
from prism.program.index import Axis
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, Size, walk
from prism.sgraph.classes import EClasses, ENode, Payload

# No source text: egglog keeps the text of a span in every node.
SPAN = bindings.EgglogSpan(bindings.SrcFile("term", ""), 0, 1)

# Terms nested deeper than this are cut by a global; egglog recurses over terms.
_DEPTH = 40

Command: TypeAlias = Any  # egglog.bindings has no public type for it
Term: TypeAlias = "bindings.Lit | bindings.Var | bindings.Call"

_OPS = {constructor: op for op, constructor in CONSTRUCTORS.items()} | {c: kind for kind, c in REDUCTIONS.items()}


@dataclass(slots=True)
class Leaves:
    """What the strings in the e-graph stand for.

    Attributes:
        reads: text of a read, or of a position behind "@", or of a size, to the expression.
        axes: name to axis.
    """

    reads: dict[str, Read | Position | Size] = field(default_factory=dict)
    axes: dict[str, Axis] = field(default_factory=dict)

    def axis(self, axis: Axis) -> str:
        """The axis' name, remembered.

        Raises:
            IllegalIRError: another axis has that name.
        """
        known = self.axes.setdefault(axis.name, axis)
        if known != axis:
            raise IllegalIRError(
                f"two axes are called {axis.name}", why=f"their extents are {known.extent} and {axis.extent}"
            )
        return axis.name

    def leaf(self, text: str, expr: Read | Position | Size) -> str:
        """The leaf's text, remembered.

        Raises:
            IllegalIRError: another leaf prints the same.
        """
        if self.reads.setdefault(text, expr) != expr:
            raise IllegalIRError(f"two leaves print as {text}")
        return text


def call(name: str, *args: Term) -> bindings.Call:
    """(name args...)."""
    return bindings.Call(SPAN, name, list(args))


def text(value: str) -> bindings.Lit:
    """A string literal."""
    return bindings.Lit(SPAN, bindings.String(value))


def number(value: float) -> bindings.Lit:
    """A float literal."""
    return bindings.Lit(SPAN, bindings.Float(value))


@dataclass(slots=True)
class Encoder:
    """Writes expressions as commands of egglog; equal expressions are written once.

    Attributes:
        leaves: what the strings stand for; shared by all that goes into one e-graph.
        prefix: of the globals' names, unique in the e-graph.
    """

    leaves: Leaves
    prefix: str = "$t"
    commands: list[Command] = field(default_factory=list)
    _known_axes: set[str] = field(default_factory=set)
    _known_consts: set[float] = field(default_factory=set)
    _count: int = 0

    def roots(self, exprs: Sequence[Expr]) -> list[str]:
        """Globals that name the expressions; the commands that define them are appended to `commands`.

        Raises:
            IllegalIRError: an index is not affine, or names clash.
        """
        uses: Counter[Expr] = Counter()
        order: dict[Expr, None] = {}
        for expr in exprs:
            for e in walk(expr):
                if e not in order:
                    order[e] = None
                    uses.update(e.children)
        for axis in self._all_axes(order):
            self._length(axis)
        built: dict[Expr, tuple[Term, int]] = {}
        for e in order:
            term, depth = self._term(e, built)
            if depth > 2 and (uses[e] > 1 or depth >= _DEPTH):
                term, depth = self._let(term), 0
            built[e] = (term, depth)
        return [self._name(built[e][0]) for e in exprs]

    def _name(self, term: Term) -> str:
        if isinstance(term, bindings.Var):
            return term.name
        return self._let(term).name

    def _let(self, term: Term) -> bindings.Var:
        self._count += 1
        name = f"{self.prefix}{self._count}"
        self.commands.append(bindings.ActionCommand(bindings.Let(SPAN, name, term)))
        return bindings.Var(SPAN, name)

    def _term(self, e: Expr, built: dict[Expr, tuple[Term, int]]) -> tuple[Term, int]:
        """The term of a node whose children are built, and its depth since the last global."""
        depth = 1 + max((built[c][1] for c in e.children), default=0)
        args = [built[c][0] for c in e.children]
        match e:
            case Read(_, index):
                axes = frozenset(a for i in index for a in i.axes())
                return call("Read", text(self.leaves.leaf(str(e), e)), self._axes(axes)), 1
            case Position(index):
                return call("Pos", text(self.leaves.leaf(str(e), e)), self._axes(index.axes())), 1
            case Const(value):
                return self._const(value), 1
            case Size(extent):
                return call("Size", text(self.leaves.leaf(str(extent), e))), 1
            case Map("neg", _):
                return call("Mul", self._const(-1.0), *args), depth
            case Map(op, _) if op in CONSTRUCTORS:
                return call(CONSTRUCTORS[op], *args), depth
            case Reduce(kind, axis, _):
                return call(REDUCTIONS[kind.value], text(self.leaves.axis(axis)), *args), depth
        raise IllegalIRError(f"{e} has no term in the e-graph")

    def _axes(self, axes: frozenset[Axis]) -> bindings.Call:
        return call("set-of", *(text(self.leaves.axis(a)) for a in sorted(axes, key=lambda a: a.name)))

    def _const(self, value: float) -> bindings.Call:
        cut = snap(value) + 0.0  # no -0.0
        term = call("Const", number(cut))
        if math.isfinite(value) and cut not in self._known_consts:
            self._known_consts.add(cut)
            self.commands.append(bindings.ActionCommand(bindings.Set(SPAN, "value", [term], number(value + 0.0))))
        return term

    def _all_axes(self, order: dict[Expr, None]) -> list[Axis]:
        found: dict[Axis, None] = {}
        for e in order:
            if isinstance(e, Reduce):
                found[e.axis] = None
        return list(found)

    def _length(self, axis: Axis) -> None:
        name = self.leaves.axis(axis)
        if name in self._known_axes:
            return
        self._known_axes.add(name)
        if is_static(axis.extent):
            length: Term = self._const(float(int(axis.extent)))
        else:
            size = Size(axis.extent)
            length = call("Size", text(self.leaves.leaf(str(axis.extent), size)))
        self.commands.append(bindings.ActionCommand(bindings.Set(SPAN, "length", [text(name)], length)))


_Row: TypeAlias = tuple[str, Payload, str, tuple[Any, ...]]  # op, payload, payload as text, children
_Key: TypeAlias = tuple[int, bytes]


@dataclass(slots=True)
class Frozen:
    """A snapshot of an e-graph; e-classes are egglog's values, which go stale when the e-graph changes.

    Attributes:
        rows: e-class to its e-nodes.
        axes: e-class to the free axes of its value.
        keys: e-class to the size and digest of its least term, which do not depend on the process.
        best: e-class to the position in `rows` of the e-node of its least term.
    """

    rows: dict[Any, list[_Row]]
    axes: dict[Any, frozenset[Axis]]
    keys: dict[Any, _Key]
    best: dict[Any, int]
    _exprs: dict[Any, Expr] = field(default_factory=dict)

    def expr(self, cls: Any) -> Expr:
        """The least term of an e-class."""
        stack = [cls]
        while stack:
            top = stack[-1]
            op, payload, _, kids = self.rows[top][self.best[top]]
            missing = [k for k in kids if k not in self._exprs]
            if missing:
                stack += missing
                continue
            stack.pop()
            args = tuple(self._exprs[k] for k in kids)
            if isinstance(payload, Axis):
                self._exprs[top] = Reduce(ReduceKind(op), payload, args[0])
            elif payload is not None:
                self._exprs[top] = payload
            else:
                self._exprs[top] = Map(op, args)
        return self._exprs[cls]


def freeze(graph: bindings.EGraph, leaves: Leaves) -> Frozen:
    """A snapshot of the e-graph."""
    rows: dict[Any, list[_Row]] = defaultdict(list)
    axes: dict[Any, frozenset[Axis]] = {}
    values: dict[Any, float] = {}
    for name, table in graph.freeze().functions.items():
        if name == "axes":
            for row in table.rows:
                names = map(graph.value_to_string, graph.value_to_set(row.output))
                axes[row.inputs[0]] = frozenset(leaves.axes[n] for n in names)
        elif name == "value":
            for row in table.rows:
                values[row.inputs[0]] = graph.value_to_f64(row.output)
        else:
            reader = _reader(graph, name, leaves)
            if reader is not None:
                for row in table.rows:
                    rows[row.output].append(reader(row.inputs))
    for cls, value in values.items():
        # A constant needs no other way to be computed.
        rows[cls] = [("const", Const(value), repr(value), ())]
    keys, best = _least_terms(rows)
    return Frozen(rows, axes, keys, best)


def decode(graph: bindings.EGraph, roots: Sequence[str], leaves: Leaves, iterations: int, stopped: str) -> EClasses:
    """The e-graph as data: what is reachable from the globals `roots`.

    E-classes are numbered by their least term (its size, then a digest of its text), so that the numbers do not
    depend on the process or on the order in which rules fired.
    """
    frozen = freeze(graph, leaves)
    rows, keys = frozen.rows, frozen.keys
    start = [graph.eval_expr(bindings.Var(SPAN, name))[1] for name in roots]
    kept = _reachable(rows, start)
    order = sorted((c for c in kept if c in keys), key=lambda c: keys[c])
    ids = {cls: n for n, cls in enumerate(order)}
    nodes: dict[int, tuple[ENode, ...]] = {}
    for cls in order:
        mine = sorted(
            ((op, shown, tuple(ids[k] for k in kids)), n)
            for n, (op, _, shown, kids) in enumerate(rows[cls])
            if cls not in kids and all(k in ids for k in kids)
        )
        nodes[ids[cls]] = tuple(ENode(key[0], rows[cls][n][1], key[2]) for key, n in mine)
    found = {ids[c]: frozen.axes.get(c, frozenset()) for c in order}
    total = sum(len(n) for n in nodes.values())
    return EClasses(nodes, found, tuple(ids[c] for c in start), total, iterations, stopped)


def _reader(graph: bindings.EGraph, name: str, leaves: Leaves) -> Callable[[Sequence[Any]], _Row] | None:
    """What turns the inputs of a row of that function into an e-node; None where it is no constructor of terms."""
    match name:
        case "Read" | "Pos" | "Size":
            op = {"Read": "read", "Pos": "position", "Size": "size"}[name]

            def leaf(inputs: Sequence[Any]) -> _Row:
                shown = graph.value_to_string(inputs[0])
                return op, leaves.reads[shown], shown, ()

            return leaf
        case "Const":

            def const(inputs: Sequence[Any]) -> _Row:
                value = graph.value_to_f64(inputs[0])
                return "const", Const(value), repr(value), ()

            return const
        case _ if name in REDUCTIONS.values():

            def reduction(inputs: Sequence[Any]) -> _Row:
                shown = graph.value_to_string(inputs[0])
                return _OPS[name], leaves.axes[shown], shown, (inputs[1],)

            return reduction
        case _ if name in _OPS:
            return lambda inputs: (_OPS[name], None, "", tuple(inputs))
        case _:
            return None


def _least_terms(rows: Mapping[Any, list[_Row]]) -> tuple[dict[Any, _Key], dict[Any, int]]:
    """For each e-class the least (size, digest) of a term in it, and the position of that term's e-node.

    By Knuth's generalisation of Dijkstra's algorithm.
    """
    parents: dict[Any, list[tuple[Any, int]]] = defaultdict(list)
    waiting: dict[tuple[Any, int], int] = {}
    heap: list[tuple[_Key, int, Any, int]] = []
    keys: dict[Any, _Key] = {}
    best: dict[Any, int] = {}
    pushed = 0

    def push(cls: Any, n: int) -> None:
        nonlocal pushed
        op, _, shown, kids = rows[cls][n]
        size = 1 + sum(keys[k][0] for k in kids)
        digest = blake2b(f"{op}|{shown}|".encode() + b"".join(keys[k][1] for k in kids), digest_size=12).digest()
        pushed += 1
        heapq.heappush(heap, ((size, digest), pushed, cls, n))

    for cls, mine in rows.items():
        for n, row in enumerate(mine):
            distinct = set(row[3])
            waiting[cls, n] = len(distinct)
            for kid in distinct:
                parents[kid].append((cls, n))
            if not distinct:
                push(cls, n)
    while heap:
        key, _, cls, n = heapq.heappop(heap)
        if cls in keys:
            continue
        keys[cls] = key
        best[cls] = n
        for parent, m in parents[cls]:
            waiting[parent, m] -= 1
            if waiting[parent, m] == 0 and parent not in keys:
                push(parent, m)
    return keys, best


def _reachable(rows: Mapping[Any, list[_Row]], start: Sequence[Any]) -> set[Any]:
    kept: set[Any] = set()
    stack = list(start)
    while stack:
        cls = stack.pop()
        if cls in kept:
            continue
        kept.add(cls)
        for _, _, _, kids in rows[cls]:
            if cls not in kids:
                stack.extend(kids)
    return kept
