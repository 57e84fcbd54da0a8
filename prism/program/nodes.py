"""The program: tensors as functions of named axes.

    program    ::= inputs, definitions in order, names of the outputs
    definition ::= name[axes] = expr
    expr       ::= Read(tensor, index per dimension)      x[m, k]
                 | Const(number)                          0.5
                 | Size(extent)                           the length of an axis, as a number
                 | Position(index)                        the value of an index, as a number: i, j, 2*d
                 | Map(op, args)                          pointwise; the ops are in ops.py
                 | Reduce(kind, axis, body)               sum_k, max_k, min_k, prod_k
                 | Steps(loop, output, index per dimension)   what a loop's steps make, the step first: a definition's
                                                          whole expression

A matmul is `Reduce(sum, k, x[m,k]*w[k,n])`; a broadcast is not mentioning an axis; a transpose is a read; a
concatenation is `where` over Positions with shifted reads, and an element that `where` does not select is not read.
Masks are `where(Position(j) <= Position(i), s, -inf)`. `Map` has no subtraction or division: they are add/neg and
mul/recip, so that a rule is written once.

Nodes are immutable; equality is structural, with the hash and the free axes computed once and what was found equal
remembered, so that shared expressions stay cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.stated import Assumption, shortest

_NO_AXES: frozenset[Axis] = frozenset()


class DType(StrEnum):
    """How a tensor's elements are stored."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def bytes(self) -> int:
        """The size of one element in bytes."""
        digits = self.value.lstrip("abcdefghijklmnopqrstuvwxyz")
        return int(digits) // 8 if digits else 1

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.value.startswith(("float", "bfloat"))

    @property
    def is_half(self) -> bool:
        """Whether they are floating-point numbers of 16 bits."""
        return self in (DType.FLOAT16, DType.BFLOAT16)

    @property
    def roundoff(self) -> float:
        """The largest relative error of one rounding to the type; 0 for types that hold no fractions."""
        return {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}.get(self.value, 0.0)


class ReduceKind(StrEnum):
    """How a reduction combines: each is associative and commutative over the reals."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    PROD = "prod"

    @property
    def identity(self) -> float:
        """The value that leaves the other operand unchanged."""
        return {"sum": 0.0, "max": float("-inf"), "min": float("inf"), "prod": 1.0}[self.value]

    @property
    def op(self) -> str:
        """The pointwise operation that combines two operands."""
        return {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}[self.value]

    @property
    def is_extreme(self) -> bool:
        """Whether it picks one of its operands: the largest or the smallest."""
        return self is ReduceKind.MAX or self is ReduceKind.MIN

    @property
    def times(self) -> ReduceKind:
        """The multiplication of the semiring that it is the addition of: (+, *), (max, +) or (min, +)."""
        assert self is not ReduceKind.PROD
        return ReduceKind.SUM if self.is_extreme else ReduceKind.PROD


class Expr:
    """A scalar expression over free axes; see the module's grammar."""

    __slots__ = ()

    @property
    def children(self) -> tuple[Expr, ...]:
        """The sub-expressions, in order."""
        return ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Remembering(Expr):
    """A node that remembers its hash, its free axes, a node that was found equal to it, and its text."""

    _hash: int = field(init=False, repr=False)
    _free: frozenset[Axis] | None = field(default=None, init=False, repr=False)
    _same: Map | Reduce | None = field(default=None, init=False, repr=False)
    _text: str | None = field(default=None, init=False, repr=False)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<{self}>"


@dataclass(frozen=True, slots=True, eq=False)
class Read(_Remembering):
    """One element of a tensor: `index` names, dimension by dimension, which."""

    tensor: str
    index: tuple[Index, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.tensor, self.index)))

    __hash__ = _Remembering.__hash__  # a class that says what is equal says it anew

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Read)
            and self._hash == other._hash
            and self.tensor == other.tensor
            and self.index == other.index
        )

    def __reduce__(self) -> tuple[object, ...]:
        # The hash of a string differs between processes, so it is computed again where the node is unpickled.
        return (Read, (self.tensor, self.index))

    def __str__(self) -> str:
        return f"{self.tensor}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A number; booleans are 0 and 1, and infinities are allowed.

    Its text has all of its digits: programs of one text are taken for one.
    """

    value: float

    def __str__(self) -> str:
        return shortest(self.value)


@dataclass(frozen=True, slots=True)
class Size(Expr):
    """The length of an axis as a number; only for extents with symbols (else use Const)."""

    extent: Extent

    def __str__(self) -> str:
        return f"size({self.extent})"


@dataclass(frozen=True, slots=True)
class Position(Expr):
    """The value of an index as a number, as masks and position encodings use it."""

    index: Index

    def __str__(self) -> str:
        return f"@({self.index})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Map(_Remembering):
    """A pointwise operation; its free axes are the union of its arguments' (broadcasting)."""

    op: str
    args: tuple[Expr, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.op, self.args)))

    __hash__ = _Remembering.__hash__

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not (isinstance(other, Map) and self._hash == other._hash and self.op == other.op):
            return False
        return _found_equal(self, other) or (self.args == other.args and _note_equal(self, other))

    def __reduce__(self) -> tuple[object, ...]:
        return (Map, (self.op, self.args))

    @property
    def children(self) -> tuple[Expr, ...]:
        """The arguments."""
        return self.args

    def __str__(self) -> str:
        return _text(self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reduce(_Remembering):
    """The reduction of `body` over the whole of `axis`, which is bound here."""

    kind: ReduceKind
    axis: Axis
    body: Expr

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.kind, self.axis, self.body)))

    __hash__ = _Remembering.__hash__

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not (
            isinstance(other, Reduce)
            and self._hash == other._hash
            and self.kind == other.kind
            and self.axis == other.axis
        ):
            return False
        return _found_equal(self, other) or (self.body == other.body and _note_equal(self, other))

    def __reduce__(self) -> tuple[object, ...]:
        return (Reduce, (self.kind, self.axis, self.body))

    @property
    def children(self) -> tuple[Expr, ...]:
        """The body."""
        return (self.body,)

    def __str__(self) -> str:
        return _text(self)


@dataclass(frozen=True, slots=True)
class State:
    """What a loop carries from one step to the next."""

    before: str  # the input of the loop's body that is the state before a step
    first: str  # the tensor that it is before the first step
    after: str  # the output of the body that it is after a step
    place: int | None = None  # where along the first dimension of `first` it is; None where it is all of that

    @property
    def origin(self) -> str:
        """What it is before the first step, as text."""
        return self.first if self.place is None else f"{self.first}[{self.place}]"


@dataclass(frozen=True, slots=True)
class Loop:
    """Steps that follow one another: each is the body, of what the step before it left and of its own slices.

    Inputs of the body that are neither states nor slices are tensors of the same name around the loop, the same in
    every step. All other names of the body are its own: no tensor around it, nor of another loop, is called so.
    """

    name: str  # an identifier, unique in the program
    body: Program  # one step
    trips: Extent  # how many steps there are, at least 1
    states: tuple[State, ...]  # what is carried
    # Inputs of the body, each with the tensor of which it is a slice: at the step along the first dimension.
    slices: tuple[tuple[str, str], ...] = ()
    reverse: bool = False  # whether the first step is at the last place
    # An element of each tensor around the loop that it reads.
    operands: tuple[Read, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = {s.before for s in self.states} | {inner for inner, _ in self.slices}
        ranks = {s.first: len(self.body.tensor(s.before).shape) + (s.place is not None) for s in self.states}
        ranks |= {outer: 1 + len(self.body.tensor(inner).shape) for inner, outer in self.slices}
        ranks |= {t.name: len(t.shape) for t in self.body.inputs if t.name not in own}
        read = tuple([Read(name, (Index.const(0),) * rank) for name, rank in ranks.items()])
        object.__setattr__(self, "operands", read)

    def __str__(self) -> str:
        """Readable lines: what is carried and sliced, then the body."""

        def declared(name: str) -> str:
            t = self.body.tensor(name)
            return f"{name}[{', '.join(map(str, t.shape))}] {t.dtype.value}"

        lines = [f"loop {self.name}: {self.trips} steps, {'last' if self.reverse else 'first'} place first"]
        lines += [
            f"  carry {declared(s.before)} = {s.after} of the step before, at first {s.origin}" for s in self.states
        ]
        lines += [f"  slice {declared(inner)} = {outer}[step]" for inner, outer in self.slices]
        lines += [f"  {d}" for d in self.body.definitions]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, eq=False)
class Steps(Expr):
    """One element of what a loop's steps make: of the body's `output` at step index[0], at the rest of the index."""

    loop: Loop
    output: str
    index: tuple[Index, ...]

    def __hash__(self) -> int:
        return hash((self.loop.name, self.output, self.index))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Steps) or (self.output, self.index) != (other.output, other.index):
            return False
        return self.loop is other.loop or self.loop == other.loop

    @property
    def children(self) -> tuple[Expr, ...]:
        """What the loop reads around it, an element of each tensor: what depends on what follows from these."""
        return self.loop.operands

    def __str__(self) -> str:
        return f"{self.loop.name}.{self.output}[{', '.join(map(str, self.index))}]"


# Two objects that were found equal remember it, as a union-find: of what is shared below them, a comparison then sees
# every pair once, where it would otherwise go through both as trees.


def _first_equal(e: Map | Reduce) -> Map | Reduce:
    """The one object that stands for all that were found equal to this one."""
    while (towards := e._same) is not None:
        if towards._same is not None:
            object.__setattr__(e, "_same", towards._same)  # or what is compared with thousands is far from its first
        e = towards
    return e


def _found_equal(a: Map | Reduce, b: Map | Reduce) -> bool:
    return (a._same is not None or b._same is not None) and _first_equal(a) is _first_equal(b)


def _note_equal(a: Map | Reduce, b: Map | Reduce) -> bool:
    first, second = _first_equal(a), _first_equal(b)
    if first is not second:
        object.__setattr__(first, "_same", second)
    return True


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array: its shape (elements per dimension, outermost first) and how it is stored."""

    name: str  # as reads name it
    shape: tuple[Extent, ...]  # elements per dimension
    dtype: DType  # how each is stored
    # Of an input, what all of its elements are, as the user says: programs are for such inputs alone.
    stated: Assumption | None = None
    # Of an input, whether the model fixes its values: what hangs on such alone is computed once, at load.
    weight: bool = False

    @property
    def declared(self) -> str:
        """Its name, shape and type, and what is stated of it."""
        said = f", {self.stated}" if self.stated is not None else ""
        return f"{self.name}[{', '.join(map(str, self.shape))}] {self.dtype.value}{said}"


@dataclass(frozen=True, slots=True)
class Definition:
    """`name[axes] = expr`: one operator of the model."""

    name: str  # the tensor that is defined
    axes: tuple[Axis, ...]  # one axis per dimension, outermost first; an extent may be 1
    expr: Expr  # its free axes are among `axes`. Its reads name inputs and earlier definitions.
    dtype: DType  # how the tensor is stored when it is materialised
    origin: str = ""  # the node of the model it came from, as the user knows it
    view: bool = False  # whether it is only a re-indexing (transpose, reshape, slice, expand), which needs no kernel

    @property
    def tensor(self) -> Tensor:
        """The defined tensor's declaration."""
        return Tensor(self.name, tuple(a.extent for a in self.axes), self.dtype)

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(f'{a}:{a.extent}' for a in self.axes)}] = {self.expr}"


GUESSED = 8
"""How many times as small as a guessed hint a call may as well be: 128 tokens, where 1,024 are guessed."""


@dataclass(frozen=True, slots=True)
class SymbolRange:
    """The values a symbolic extent may take, inclusive, and the one that costs are quoted at."""

    low: int  # the least
    high: int  # the largest
    hint: int  # the one that costs are quoted at
    open: bool = False  # nothing says how large it may be: `high` is as far as one thinks, and no caller is held to it
    guessed: bool = False  # whether nothing says the hint either: no example, and no user

    def nearest(self, value: int) -> int:
        """The number, or the end of the range that is nearest to it."""
        return min(max(value, self.low), self.high)

    @staticmethod
    def sizes(names: Iterable[str], ranges: Mapping[str, SymbolRange], base: int, stride: int) -> dict[str, int]:
        """Values of symbols from a base on, each so much more than the one before, as far as their ranges allow it."""
        found = {name: base + stride * n for n, name in enumerate(names)}
        return {name: ranges[name].nearest(n) if name in ranges else n for name, n in found.items()}


@dataclass(frozen=True, slots=True)
class Conformance:
    """What a program was compared with as it was read: that it is the function or model that it came from."""

    against: str = ""  # the runtime that said what the values are
    draws: tuple[str, ...] = ()  # the inputs that it was compared on, by name; "example" are the user's own
    extents: str = ""  # the shapes of the inputs, as text, where they are not the program's own or are symbolic
    elements: int = 0  # how many elements were evaluated
    skipped: tuple[str, ...] = ()  # draws that the model does not take or gives no defined result for, and why
    missing: str = ""  # why there was no comparison, or what it leaves out; empty when nothing is
    once: str = ""  # that of operators that are equal one was compared, as text; empty where all were

    def __str__(self) -> str:
        if not self.draws:
            return f"not compared with the model: {self.missing}"
        where = f" at {self.extents}" if self.extents else ""
        rest = "".join(f"; {said}" for said in (self.once, self.missing) if said)
        return f"compared with {self.against} on {len(self.draws)} inputs ({', '.join(self.draws)}){where}{rest}"


@dataclass(frozen=True)
class Program:
    """A tensor program in index notation.

    Attributes:
        name: a legal Python identifier; the emitted launcher is called so.
        inputs: what the caller passes, in order; constants of the model that are arrays are inputs too (see `weights`).
        definitions: in an order in which each reads only inputs and earlier ones. One per operator of the model.
        outputs: names of definitions, in order.
        ranges: for each symbol that an extent mentions, its range.
        weights: values of those inputs that the model itself fixes (numpy arrays, in the inputs' dtype where numpy
            has it; bfloat16 as float32). Search and the proofs of what it finds are for all values; a comparison of two
            programs is for these.
        source: what it was read from: the path of an ONNX file, or the function that was traced; None when that is not
            known. Only timing looks at it, to run what the user would run.
        places: of the outputs of its source, which are its own; None where all are, in order.
        conformance: what the program was compared with when it was read; None for one that no reader made, or where
            the comparison was switched off.
        granted: what its source leaves open and the definitions settle, in words, for those who list what a result
            rests on.
    """

    name: str
    inputs: tuple[Tensor, ...]
    definitions: tuple[Definition, ...]
    outputs: tuple[str, ...]
    ranges: Mapping[str, SymbolRange] = field(default_factory=dict)
    weights: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    source: Path | Callable[..., object] | None = field(default=None, compare=False, repr=False)
    conformance: Conformance | None = field(default=None, compare=False, repr=False)
    places: tuple[int, ...] | None = field(default=None, compare=False, repr=False)
    granted: tuple[str, ...] = field(default=(), compare=False, repr=False)
    _inputs: Mapping[str, Tensor] | None = field(default=None, init=False, compare=False, repr=False)
    _order: Mapping[str, int] | None = field(default=None, init=False, compare=False, repr=False)
    _input_order: Mapping[str, int] | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Stated once, by `weights`; parts and forms of the program that leave the values out keep it.
        if any(t.name in self.weights and not t.weight for t in self.inputs):
            told = (replace(t, weight=True) if t.name in self.weights else t for t in self.inputs)
            object.__setattr__(self, "inputs", tuple(told))

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The inputs that the caller passes: those that are no weights, in order."""
        return tuple(t for t in self.inputs if t.name not in self.weights)

    def tensor(self, name: str) -> Tensor:
        """The declaration of an input or a defined tensor. Raises KeyError: there is none of that name."""
        known = self._inputs
        if known is None:
            known = {t.name: t for t in reversed(self.inputs)}
            object.__setattr__(self, "_inputs", known)
        return known[name] if name in known else self.definition(name).tensor

    def definition(self, name: str) -> Definition:
        """The definition of that name. Raises KeyError: there is none."""
        return self.definitions[self.order[name]]

    @property
    def order(self) -> Mapping[str, int]:
        """The place of each definition among them, by name."""
        known = self._order
        if known is None:
            known = {d.name: n for n, d in reversed(list(enumerate(self.definitions)))}
            object.__setattr__(self, "_order", known)
        return known

    @property
    def input_order(self) -> Mapping[str, int]:
        """The place of each input among them, by name."""
        known = self._input_order
        if known is None:
            known = {t.name: n for n, t in reversed(list(enumerate(self.inputs)))}
            object.__setattr__(self, "_input_order", known)
        return known

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops, each once, in order."""
        found = {d.expr.loop.name: d.expr.loop for d in self.definitions if isinstance(d.expr, Steps)}
        return tuple(found.values())

    @property
    def operator_count(self) -> int:
        """How many kernels run when every operator is a kernel of its own (views need none), a step's counted once."""
        own = sum(not d.view and not isinstance(d.expr, Steps) for d in self.definitions)
        return own + sum(loop.body.operator_count for loop in self.loops)

    @property
    def hints(self) -> dict[str, int]:
        """The value of every symbol at which costs are quoted."""
        return {name: r.hint for name, r in self.ranges.items()}

    @property
    def guesses(self) -> dict[str, int]:
        """The hints, but a fraction of those that are guesses, as calls may as well be so small."""
        return {name: max(r.low, r.hint // GUESSED) if r.guessed else r.hint for name, r in self.ranges.items()}

    def over(self, ranges: Mapping[str, SymbolRange]) -> Program:
        """The program with other ranges of its symbols, which are the same in the steps of its loops."""
        loops = {
            loop.name: replace(loop, body=loop.body.over({n: ranges[n] for n in loop.body.ranges}))
            for loop in self.loops
        }
        made = (
            replace(d, expr=replace(d.expr, loop=loops[d.expr.loop.name])) if isinstance(d.expr, Steps) else d
            for d in self.definitions
        )
        return replace(self, definitions=tuple(made), ranges=ranges)

    def __str__(self) -> str:
        lines = [f"program {self.name}"]
        lines += [f"  input {t.declared}" for t in self.inputs]
        told: set[str] = set()
        for d in self.definitions:
            if isinstance(d.expr, Steps) and d.expr.loop.name not in told:
                told.add(d.expr.loop.name)
                lines += [f"  {line}" for line in str(d.expr.loop).splitlines()]
            lines.append(f"  {d}")
        lines.append(f"  return {', '.join(self.outputs)}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Formula:
    """One output, inlined down to the program's inputs: `tensor[index] = expr`, all indices affine.

    `index` says where each element goes, dimension by dimension; over the free axes it is a bijection onto the
    tensor's elements (an output of shape [seq, h*64] may be stored at [s, 64*h + d]).
    """

    tensor: Tensor
    index: tuple[Index, ...]
    expr: Expr


def free_axes(expr: Expr) -> frozenset[Axis]:
    """The axes that the value of `expr` depends on; remembered in its nodes."""
    match expr:
        case Map() | Reduce() | Read():
            known = expr._free
            if known is None:
                known = _free_axes(expr)
                object.__setattr__(expr, "_free", known)
            return known
        case Position(index):
            return index.axes()
        case Steps(_, _, index):
            return _NO_AXES.union(*(i.axes() for i in index))
        case _:
            return _NO_AXES


def _free_axes(expr: Read | Map | Reduce) -> frozenset[Axis]:
    match expr:
        case Read(_, index):
            parts = [i.axes() for i in index]
        case Map(_, args):
            parts = [free_axes(a) for a in args]
        case Reduce(_, axis, body):
            within = free_axes(body)
            return within - {axis} if axis in within else within
    largest = max(parts, key=len, default=_NO_AXES)
    # Equal sets are mostly one object: arguments of one pointwise operation share their axes.
    if all(p is largest or p <= largest for p in parts):
        return largest
    return largest.union(*parts)


def label(e: Expr) -> tuple[object, ...]:
    """What the node is apart from its operands."""
    match e:
        case Map(op, _):
            return (op,)
        case Reduce(kind, axis, _):
            return kind, axis
        case _:
            return (e,)


def walk(expr: Expr, known: Container[int] = ()) -> Iterator[Expr]:
    """Each distinct node once (by identity), children before parents; not what is known, by identity, nor below it."""
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(expr, False)]
    while stack:
        e, done = stack.pop()
        if done:
            yield e
            continue
        if id(e) in seen or id(e) in known:
            continue
        seen.add(id(e))
        stack.append((e, True))
        stack.extend((c, False) for c in reversed(e.children))


_INFIX = {"add": " + ", "mul": "*", "le": " <= ", "lt": " < ", "eq": " == ", "and": " and ", "or": " or "}
_TREE_NODES = 400
_TREE_LENGTH = 20_000
"""What an expression's text may be, in nodes at first and then in characters, before what it shares gets names."""
_KEPT_LENGTH = 2000
"""Texts up to this are remembered, as expressions are sorted by them."""


def _text(expr: Map | Reduce) -> str:
    """The expression as a tree; one that would be too long, with names for what it holds more than once.

    `(s0*s0) where s0 = (x[m] + x[m])`: equal expressions have equal texts, whichever of their parts are one object.
    """
    if expr._text is not None:
        return expr._text
    try:
        text = _tree(expr, [_TREE_NODES])
    except _TooLargeError:
        text = _shared_text(expr)
    if len(text) <= _KEPT_LENGTH:
        object.__setattr__(expr, "_text", text)
    return text


class _TooLargeError(Exception):
    """An expression has more nodes than are written out."""


def _tree(e: Expr, left: list[int]) -> str:
    left[0] -= 1
    if left[0] < 0:
        raise _TooLargeError
    return _written(e, [_tree(c, left) for c in e.children])


def _written(e: Expr, children: Sequence[str]) -> str:
    """A node's text, given that of its children."""
    match e:
        case Map(op, _) if op in _INFIX:
            return f"({_INFIX[op].join(children)})"
        case Map(op, _):
            return f"{op}({', '.join(children)})"
        case Reduce(kind, axis, _):
            return f"{kind.value}_{axis}[{children[0]}]"
        case _:
            return str(e)


def _shared_text(expr: Expr) -> str:
    place: dict[tuple[object, ...], int] = {}  # of each distinct node, by what it is and the places of its children
    by_object: dict[int, int] = {}
    nodes: list[tuple[Expr, tuple[int, ...]]] = []
    length: list[int] = []
    uses: list[int] = []
    for e in walk(expr):
        below = tuple([by_object[id(c)] for c in e.children])
        key = (*label(e), *below)
        if key not in place:
            place[key] = len(nodes)
            nodes.append((e, below))
            length.append(len(_written(e, ["" for _ in below])) + sum(length[n] + 2 for n in below))
            uses.append(0)
            for n in below:
                uses[n] += 1
        by_object[id(e)] = place[key]
    named = [u > 1 and bool(below) for u, (_, below) in zip(uses, nodes, strict=True)]
    if length[-1] <= _TREE_LENGTH:
        named = [False] * len(nodes)
    texts: list[str] = []
    where: list[str] = []
    for (e, below), name in zip(nodes, named, strict=True):
        text = _written(e, [texts[n] for n in below])
        if name:
            where.append(f"s{len(where)} = {text}")
            text = f"s{len(where) - 1}"
        texts.append(text)
    return f"{texts[-1]} where {', '.join(where)}" if where else texts[-1]
