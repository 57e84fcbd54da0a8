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

from prism.egraph.bindings import bindings
from prism.egraph.language import CONSTRUCTORS, REDUCTIONS, TOLD, TensorFacts, snap
from prism.errors import IllegalIRError
from prism.program.classes import EClasses, ENode, Key, Payload
from prism.program.extents import Extent, is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, Size, free_axes, walk
from prism.program.transform import Interned, canonical, substitute

# No source text: egglog keeps the text of a span in every node.
SPAN = bindings.EgglogSpan(bindings.SrcFile("term", ""), 0, 1)

# Terms nested deeper than this are cut by a global; egglog recurses over terms.
_DEPTH = 40

Command: TypeAlias = Any  # egglog.bindings has no public type for it
Term: TypeAlias = "bindings.Lit | bindings.Var | bindings.Call"

_OPS = {constructor: op for op, constructor in CONSTRUCTORS.items()} | {c: kind for kind, c in REDUCTIONS.items()}


@dataclass(slots=True)
class Leaves:
    """What the strings in the e-graph stand for."""

    # Text of a read, or of a position behind "@", or of a size, to the expression.
    reads: dict[str, Read | Position | Size] = field(default_factory=dict)
    axes: dict[str, Axis] = field(default_factory=dict)  # name to axis
    # Relations that the elements of a tensor are in, by its name: what is stated of it.
    facts: TensorFacts = field(default_factory=dict)

    def fork(self) -> Leaves:
        """One that starts from here and leaves this one as it is."""
        return Leaves(dict(self.reads), dict(self.axes), self.facts)

    def axis(self, axis: Axis) -> str:
        """The axis' name, remembered. Raises IllegalIRError: another axis has that name."""
        known = self.axes.setdefault(axis.name, axis)
        if known != axis:
            raise IllegalIRError(
                f"two axes are called {axis.name}", why=f"their extents are {known.extent} and {axis.extent}"
            )
        return axis.name

    def leaf(self, text: str, expr: Read | Position | Size) -> str:
        """The leaf's text, remembered. Raises IllegalIRError: another leaf prints the same."""
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
    """Writes expressions as commands of egglog, each once for an e-graph."""

    leaves: Leaves  # what the strings stand for; shared by all that goes into one e-graph
    prefix: str = "$t"  # of the globals' names, unique in the e-graph
    _interned: Interned = field(default_factory=Interned)
    _built: dict[Expr, tuple[Term, int]] = field(default_factory=dict)
    _known_axes: set[str] = field(default_factory=set)
    _known_consts: set[float] = field(default_factory=set)
    _count: int = 0

    def fork(self, leaves: Leaves, prefix: str) -> Encoder:
        """One that knows what this one wrote; this one learns nothing of it."""
        return Encoder(
            leaves, prefix, self._interned, dict(self._built), set(self._known_axes), set(self._known_consts)
        )

    def write(self, exprs: Sequence[Expr]) -> tuple[list[str], list[Command]]:
        """Globals that name the expressions, and the commands that define what was not written before.

        Raises:
            IllegalIRError: an index is not affine, or names clash.
        """
        commands: list[Command] = []
        kept = [self._interned.all(e) for e in exprs]
        uses: Counter[int] = Counter()
        order: list[Expr] = []
        seen: set[int] = set()
        for e in kept:
            self._new_nodes(e, order, seen, uses)
        for e in order:
            if isinstance(e, Reduce):
                self._length(e.axis, commands)
        for e in order:
            term, depth = self._built.get(e) or self._term(e, commands)
            if depth > 2 and (uses[id(e)] > 1 or depth >= _DEPTH):
                term, depth = self._let(term, commands), 0
            self._built[e] = term, depth
        return [self._root(e, commands) for e in kept], commands

    def _new_nodes(self, root: Expr, order: list[Expr], seen: set[int], uses: Counter[int]) -> None:
        """Append the nodes below the root that have to be written, children first, and count the uses of each."""
        stack: list[tuple[Expr, bool]] = [(root, False)]
        while stack:
            e, done = stack.pop()
            if done:
                order.append(e)
            elif id(e) not in seen:
                seen.add(id(e))
                stack.append((e, True))
                if e not in self._built:
                    for c in reversed(e.children):
                        uses[id(c)] += 1
                        stack.append((c, False))

    def _root(self, e: Expr, commands: list[Command]) -> str:
        term, _ = self._built[e]
        if not isinstance(term, bindings.Var):
            term = self._let(term, commands)
            self._built[e] = term, 0
        return term.name

    def _let(self, term: Term, commands: list[Command]) -> bindings.Var:
        self._count += 1
        name = f"{self.prefix}{self._count}"
        commands.append(bindings.ActionCommand(bindings.Let(SPAN, name, term)))
        return bindings.Var(SPAN, name)

    def _term(self, e: Expr, commands: list[Command]) -> tuple[Term, int]:
        """The term of a node whose children are built, and its depth since the last global."""
        below = [self._built[c] for c in e.children]
        depth = 1 + max((d for _, d in below), default=0)
        args = [t for t, _ in below]
        match e:
            case Read(tensor, index):
                axes = frozenset(a for i in index for a in i.axes())
                read = call("Read", text(self.leaves.leaf(str(e), e)), self._axes(axes))
                stated = self.leaves.facts.get(tensor, ())
                for fact in (*stated, *((TOLD,) if stated else ())):
                    action = (
                        bindings.Expr_(SPAN, call(fact, read))
                        if isinstance(fact, str)
                        else bindings.Set(SPAN, fact[0], [read], number(fact[1]))
                    )
                    commands.append(bindings.ActionCommand(action))
                return read, 1
            case Position(index):
                return call("Pos", text(self.leaves.leaf(str(e), e)), self._axes(index.axes())), 1
            case Const(value):
                return self._const(value, commands), 1
            case Size(extent):
                return call("Size", text(self.leaves.leaf(str(extent), e))), 1
            case Map("neg", _):
                return call("Mul", self._const(-1.0, commands), *args), depth
            case Map(op, _) if op in CONSTRUCTORS:
                return call(CONSTRUCTORS[op], *args), depth
            case Reduce(kind, axis, _):
                return call(REDUCTIONS[kind.value], text(self.leaves.axis(axis)), *args), depth
        raise IllegalIRError(f"{e} has no term in the e-graph")

    def _axes(self, axes: frozenset[Axis]) -> bindings.Call:
        return call("set-of", *(text(self.leaves.axis(a)) for a in sorted(axes, key=lambda a: a.name)))

    def _const(self, value: float, commands: list[Command]) -> bindings.Call:
        cut = snap(value) + 0.0  # no -0.0
        term = call("Const", number(cut))
        if math.isfinite(value) and cut not in self._known_consts:
            self._known_consts.add(cut)
            commands.append(bindings.ActionCommand(bindings.Set(SPAN, "value", [term], number(value + 0.0))))
        return term

    def _length(self, axis: Axis, commands: list[Command]) -> None:
        name = self.leaves.axis(axis)
        if name in self._known_axes:
            return
        self._known_axes.add(name)
        if is_static(axis.extent):
            length: Term = self._const(float(int(axis.extent)), commands)
        else:
            size = Size(axis.extent)
            length = call("Size", text(self.leaves.leaf(str(axis.extent), size)))
        commands.append(bindings.ActionCommand(bindings.Set(SPAN, "length", [text(name)], length)))


_Row: TypeAlias = tuple[str, Payload, str, tuple[Any, ...]]  # op, payload, payload as text, children
_Key: TypeAlias = tuple[int, bytes]


@dataclass(slots=True)
class Frozen:
    """A snapshot of an e-graph; e-classes are egglog's values, which go stale when the e-graph changes."""

    rows: dict[Any, list[_Row]]  # e-class to its e-nodes
    axes: dict[Any, frozenset[Axis]]  # e-class to the free axes of its value
    keys: dict[Any, _Key]  # e-class to the size and digest of its least term, which do not depend on the process
    best: dict[Any, int]  # e-class to the position in `rows` of the e-node of its least term
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


def _cut(payload: Payload) -> Payload:
    """A constant as the e-graph carries it; anything else as it is."""
    return Const(snap(payload.value) + 0.0) if isinstance(payload, Const) else payload


@dataclass(slots=True)
class Table:
    """The e-nodes of a snapshot, for finding expressions among them: nothing is added, as an insertion would."""

    classes: dict[tuple[str, Payload, tuple[Any, ...]], Any]  # op, payload and the children's e-classes to the e-class
    _reduced: dict[tuple[str, Extent], list[Axis]] = field(init=False)

    def __post_init__(self) -> None:
        over: dict[tuple[str, Extent], set[Axis]] = defaultdict(set)
        for op, payload, _ in self.classes:
            if op in REDUCTIONS and isinstance(payload, Axis):
                over[op, payload.extent].add(payload)
        self._reduced = {key: sorted(axes, key=lambda a: a.name) for key, axes in over.items()}

    @staticmethod
    def of(rows: Mapping[Any, list[_Row]]) -> Table:
        """The table of these rows."""
        return Table({(op, _cut(payload), kids): cls for cls, mine in rows.items() for op, payload, _, kids in mine})

    def find(self, expr: Expr) -> Any:
        """The e-class that holds the expression as it is written, constants cut to their 20 bits; None for none.

        A reduction may be there over another name of its axis: canonical names are given between rounds of the rules,
        and a budget may have ended them before.
        """
        found: dict[int, Any] = {}
        for e in walk(expr):
            cls = self._among(e, found)
            if cls is None and isinstance(e, Reduce):
                cls = self._renamed(e)
            found[id(e)] = cls
        return found[id(expr)]

    def _renamed(self, e: Reduce) -> Any:
        """The e-class of a reduction over another name of its axis; None where it is under none of them."""
        free = free_axes(e.body)
        for axis in self._reduced.get((e.kind.value, e.axis.extent), ()):
            if axis not in free:
                body = canonical(substitute(e.body, {e.axis: Index.axis(axis)}))
                found: dict[int, Any] = {}
                for part in walk(body):
                    found[id(part)] = self._among(part, found)
                cls = self.classes.get((e.kind.value, axis, (found[id(body)],)))
                if cls is not None:
                    return cls
        return None

    def _among(self, e: Expr, found: Mapping[int, Any]) -> Any:
        kids = tuple([found[id(c)] for c in e.children])
        return None if None in kids else self._find(e, kids)

    def _find(self, e: Expr, kids: tuple[Any, ...]) -> Any:
        match e:
            case Map("neg", _):
                minus = self.classes.get(("const", Const(-1.0), ()))
                return self.classes.get(("mul", None, (minus, *kids)))
            case Map(op, _):
                return self.classes.get((op, None, kids))
            case Reduce(kind, axis, _):
                return self.classes.get((kind.value, axis, kids))
            case Const():
                return self.classes.get(("const", _cut(e), ()))
            case Read():
                return self.classes.get(("read", e, ()))
            case Size():
                return self.classes.get(("size", e, ()))
            case Position():
                return self.classes.get(("position", e, ()))
        return None


def table(graph: bindings.EGraph, leaves: Leaves) -> Table:
    """The e-nodes of the e-graph."""
    return Table.of(_snapshot(graph, leaves)[0])


def freeze(graph: bindings.EGraph, leaves: Leaves) -> Frozen:
    """A snapshot of the e-graph."""
    rows, axes = _snapshot(graph, leaves)
    keys, best = _least_terms(rows)
    return Frozen(rows, axes, keys, best)


def _snapshot(graph: bindings.EGraph, leaves: Leaves) -> tuple[dict[Any, list[_Row]], dict[Any, frozenset[Axis]]]:
    """The rows and the axes of each e-class."""
    rows: dict[Any, list[_Row]] = defaultdict(list)
    axes: dict[Any, frozenset[Axis]] = {}
    values: dict[Any, float] = {}
    sets: dict[Any, frozenset[Axis]] = {}
    for name, function in graph.freeze().functions.items():
        if name == "axes":
            for row in function.rows:
                known = sets.get(row.output)
                if known is None:
                    names = map(graph.value_to_string, graph.value_to_set(row.output))
                    known = sets[row.output] = frozenset(leaves.axes[n] for n in names)
                axes[row.inputs[0]] = known
        elif name == "value":
            for row in function.rows:
                values[row.inputs[0]] = graph.value_to_f64(row.output)
        else:
            reader = _reader(graph, name, leaves)
            if reader is not None:
                for row in function.rows:
                    rows[row.output].append(reader(row.inputs))
    for cls, value in values.items():
        # A constant needs no other way to be computed.
        rows[cls] = [("const", Const(value), repr(value), ())]
    return rows, axes


def decode(frozen: Frozen, start: Sequence[Any], iterations: int, stopped: str) -> EClasses:
    """The snapshot as data: what is reachable from the e-classes `start`.

    E-classes are numbered by their least term (its size, then a digest of its text), so that the numbers do not
    depend on the process or on the order in which rules fired.
    """
    rows, keys = frozen.rows, frozen.keys
    kept = _reachable(rows, start)
    order = sorted((c for c in kept if c in keys), key=lambda c: keys[c])
    ids = {cls: n for n, cls in enumerate(order)}
    nodes: dict[int, tuple[ENode, ...]] = {}
    along: dict[Key, int] = {}
    for cls in order:
        usable = [n for n, row in enumerate(rows[cls]) if cls not in row[3] and all(k in ids for k in row[3])]
        # What does not depend on an axis is not computed along it.
        fitting = [n for n in usable if _along(rows[cls][n], frozen) <= frozen.axes.get(cls, frozenset())]
        mine = sorted(
            ((op, shown, tuple(ids[k] for k in kids)), n)
            for n in fitting or usable
            for op, _, shown, kids in (rows[cls][n],)
        )
        nodes[ids[cls]] = tuple(ENode(key[0], rows[cls][n][1], key[2]) for key, n in mine)
        for op, payload, _, kids in (rows[cls][n] for n in usable if fitting and n not in fitting):
            along[op, payload, tuple(ids[k] for k in kids)] = ids[cls]
    found = {ids[c]: frozen.axes.get(c, frozenset()) for c in order}
    total = sum(len(n) for n in nodes.values())
    return EClasses(nodes, found, tuple(ids[c] for c in start), total, iterations, stopped, along)


def _along(row: _Row, frozen: Frozen) -> frozenset[Axis]:
    """The axes that an e-node's value is computed along."""
    _, payload, _, kids = row
    found = frozenset(a for k in kids for a in frozen.axes.get(k, frozenset()))
    return found - {payload} if isinstance(payload, Axis) else found


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
