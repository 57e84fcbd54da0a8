"""The specification of legal programs, executable: what every producer guarantees and every consumer may assume.

names        the program, its tensors and its symbols have identifiers; no tensor is named twice
order        a definition reads inputs and earlier definitions, with one index per dimension
scope        an expression's free axes are axes of its definition; a name means one axis throughout a scope
extents      at least 1, but for tensors without elements: inputs and constant outputs that nothing reads
symbols      each has a range, 1 <= low <= hint <= high
operations   known ones, with their number of operands; truth values where truth values are expected
bounds       every index is within its dimension, except under a branch of `where`, which guards it
views        a view is a single read
loops        a step is a legal program without loops or weights; what it reads is there around the loop, with the
             shapes and types that it declares, states are as they were, and its names are its own; what the steps make
             is a definition of its own
weights      arrays of the shapes of the inputs that they are for
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable, Iterator, Mapping

from prism.errors import IllegalIRError
from prism.program.empty import is_empty
from prism.program.extents import Extent, at_most, is_static
from prism.program.index import Axis, FloorDiv, Index, Mod
from prism.program.nodes import (
    Const,
    Definition,
    DType,
    Expr,
    Loop,
    Map,
    Position,
    Program,
    Read,
    Reduce,
    ReduceKind,
    Size,
    Steps,
    Tensor,
    free_axes,
)
from prism.program.ops import OPS


def check(program: Program) -> None:
    """Check a program against the specification.

    Raises:
        IllegalIRError: it breaks a clause; `where` names the program and the definition, `what` the clause.
    """
    _name(program.name, "the program", program.name)
    tensors: dict[str, Tensor] = {}
    for t in program.inputs:
        at = f"{program.name}, input {t.name}"
        _declare(t, tensors, at)
        for extent in t.shape:
            _extent(extent, program, at, least=0)
    loops: dict[str, Loop] = {}
    for d in program.definitions:
        if isinstance(d.expr, Steps):
            _loop(d.expr.loop, program, tensors, loops)
        _definition(d, program, tensors)
    _own_names(loops.values(), tensors, program.name)
    if not program.outputs:
        raise IllegalIRError("the program has no outputs", where=program.name)
    defined = {d.name for d in program.definitions}
    for name in program.outputs:
        if name not in defined:
            raise IllegalIRError(f"output {name} is not a definition", where=program.name)
    _ranges_and_weights(program)


def _name(name: str, what: str, at: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise IllegalIRError(f"{what} is named {name!r}, which is not an identifier", where=at)


def _declare(tensor: Tensor, tensors: dict[str, Tensor], at: str) -> None:
    _name(tensor.name, "a tensor", at)
    if tensor.name in tensors:
        raise IllegalIRError(f"the name {tensor.name} is taken twice", where=at)
    tensors[tensor.name] = tensor


def _extent(extent: Extent, program: Program, at: str, least: int = 1) -> None:
    if is_static(extent):
        if not isinstance(extent, int):
            raise IllegalIRError(f"extent {extent} is a sympy number, not an int", where=at)
        if extent < least:
            raise IllegalIRError(f"extent {extent} is less than {least}", where=at)
        return
    for s in extent.free_symbols:  # type: ignore[union-attr]
        if s.name not in program.ranges:
            raise IllegalIRError(f"symbol {s.name} has no range", where=at)
        if not (s.is_integer and s.is_positive):
            raise IllegalIRError(f"symbol {s.name} is not declared a positive integer", where=at)


def _ranges_and_weights(program: Program) -> None:
    for name, r in program.ranges.items():
        _name(name, "a symbol", program.name)
        if not 1 <= r.low <= r.hint <= r.high:
            raise IllegalIRError(
                f"symbol {name} has range [{r.low}, {r.high}] and hint {r.hint}",
                where=program.name,
                why="1 <= low <= hint <= high must hold",
            )
    inputs = {t.name: t for t in program.inputs}
    for name, array in program.weights.items():
        if name not in inputs:
            raise IllegalIRError(f"there is a weight for {name}, which is not an input", where=program.name)
        shape = tuple(getattr(array, "shape", ()))
        if shape != inputs[name].shape:
            raise IllegalIRError(
                f"the weight for {name} has shape {list(shape)}, its input {list(inputs[name].shape)}",
                where=program.name,
            )


def _definition(d: Definition, program: Program, tensors: dict[str, Tensor]) -> None:
    at = f"{program.name}, definition {d.name}"
    names = [a.name for a in d.axes]
    if len(set(names)) != len(names):
        raise IllegalIRError("two dimensions have axes of one name", where=at)
    for a in d.axes:
        _extent(a.extent, program, at, least=0 if isinstance(d.expr, Const) else 1)
    for a in free_axes(d.expr):
        if a not in d.axes:
            raise IllegalIRError(f"axis {a.name} of extent {a.extent} is free and is not a dimension", where=at)
    if d.view and not isinstance(d.expr, Read):
        raise IllegalIRError("a view must be a single read", where=at)
    if isinstance(d.expr, Steps):
        _steps(d, d.expr, at)
        _declare(d.tensor, tensors, at)
        return
    _Checker(program, tensors, at).visit(d.expr, {a.name: a for a in d.axes}, guarded=False)
    _declare(d.tensor, tensors, at)


def _steps(d: Definition, expr: Steps, at: str) -> None:
    """What the steps of a loop make, as it is."""
    loop = expr.loop
    if expr.output not in loop.body.outputs:
        raise IllegalIRError(f"{expr.output} is no output of a step of {loop.name}", where=at)
    made = loop.body.tensor(expr.output)
    if (d.tensor.shape, d.dtype) != ((loop.trips, *made.shape), made.dtype) or expr.index != tuple(
        map(Index.axis, d.axes)
    ):
        raise IllegalIRError(f"it is not {expr.output} of all steps of {loop.name}", where=at)


def _loop(loop: Loop, program: Program, tensors: Mapping[str, Tensor], loops: dict[str, Loop]) -> None:
    """The loop, where none of its outputs was defined before."""
    at = f"{program.name}, loop {loop.name}"
    if loop.name in loops:
        if loops[loop.name] is not loop and loops[loop.name] != loop:
            raise IllegalIRError("two loops have one name", where=at)
        return
    loops[loop.name] = loop
    _name(loop.name, "a loop", at)
    _extent(loop.trips, program, at)
    check(loop.body)
    if loop.body.loops or loop.body.weights:
        raise IllegalIRError("a step holds a loop, or weights", where=at)
    if any(program.ranges.get(name) != r for name, r in loop.body.ranges.items()):
        raise IllegalIRError("a symbol has another range in a step", where=at)
    inner = {t.name: t for t in loop.body.inputs}
    own = [*(s.before for s in loop.states), *(name for name, _ in loop.slices)]
    if len(set(own)) != len(own) or not set(own) <= inner.keys():
        raise IllegalIRError("a state or a slice is no input of a step, or is two", where=at)
    wanted = [(outer, (loop.trips, *inner[name].shape), inner[name].dtype) for name, outer in loop.slices]
    wanted += [(s.first, inner[s.before].shape, inner[s.before].dtype) for s in loop.states if s.place is None]
    wanted += [(name, t.shape, t.dtype) for name, t in inner.items() if name not in own]
    for name, shape, dtype in wanted:
        found = tensors.get(name)
        if found is None or (found.shape, found.dtype) != (shape, dtype):
            raise IllegalIRError(f"it reads {name} as {dtype.value}{list(shape)}, which it is not there", where=at)
    for s in loop.states:
        if s.place is not None:
            held = tensors.get(s.first)
            inside = held is not None and bool(held.shape) and s.place >= 0 and at_most(s.place + 1, held.shape[0])
            if (
                not inside
                or held is None
                or (held.shape[1:], held.dtype) != (inner[s.before].shape, inner[s.before].dtype)
            ):
                raise IllegalIRError(f"{s.origin} is no state {s.before}", where=at)
        after = loop.body.tensor(s.after) if s.after in loop.body.outputs else None
        if after is None or (after.shape, after.dtype) != (inner[s.before].shape, inner[s.before].dtype):
            raise IllegalIRError(f"state {s.before} is another after a step", where=at)


def _own_names(loops: Iterable[Loop], tensors: Mapping[str, Tensor], name: str) -> None:
    """What steps make and are given by name is called like nothing around them, nor in another loop."""
    taken = set(tensors)
    for loop in loops:
        own = {s.before for s in loop.states} | {inner for inner, _ in loop.slices} | loop.body.order.keys()
        if not taken.isdisjoint(own):
            at = f"{name}, loop {loop.name}"
            raise IllegalIRError(f"the name {min(taken & own)} is taken twice", where=at)
        taken |= own


class _Checker:
    """Checks one definition's expression, each distinct node once per scope."""

    def __init__(self, program: Program, tensors: Mapping[str, Tensor], at: str) -> None:
        self._program = program
        self._tensors = tensors
        self._at = at
        self._seen: set[tuple[int, bool, tuple[Axis, ...]]] = set()

    def visit(self, e: Expr, scope: Mapping[str, Axis], guarded: bool) -> None:
        """Check `e` under the axes of `scope`, by name; `guarded` under a branch of `where`."""
        key = (id(e), guarded, tuple(scope.values()))
        if key in self._seen:
            return
        self._seen.add(key)
        match e:
            case Read(tensor, index):
                self._read(tensor, index, guarded)
                for i in index:
                    self._index(i, scope)
            case Position(index):
                self._index(index, scope)
            case Const(value):
                if math.isnan(value):
                    raise self._illegal("a constant is NaN")
            case Size(extent):
                if is_static(extent):
                    raise self._illegal(f"the size of the known extent {extent} must be a constant")
                _extent(extent, self._program, self._at)
            case Map(op, args):
                self._map(op, args)
                for n, a in enumerate(args):
                    self.visit(a, scope, guarded or (op == "where" and n > 0))
            case Reduce(kind, axis, body):
                if not isinstance(kind, ReduceKind):
                    raise self._illegal(f"there is no reduction {kind!r}")
                _extent(axis.extent, self._program, self._at)
                outer = scope.get(axis.name)
                if outer is not None and outer != axis:
                    raise self._illegal(
                        f"axis {axis.name} is bound with extent {axis.extent} where it means extent {outer.extent}"
                    )
                self.visit(body, {**scope, axis.name: axis}, guarded)
            case Steps():
                raise self._illegal("what a loop's steps make is part of an expression")
            case _:
                raise self._illegal(f"{e!r} is not an expression")

    def _illegal(self, what: str) -> IllegalIRError:
        return IllegalIRError(what, where=self._at)

    def _map(self, op: str, args: tuple[Expr, ...]) -> None:
        known = OPS.get(op)
        if known is None:
            raise self._illegal(f"there is no operation {op!r}")
        if known.arity != len(args):
            raise self._illegal(f"{op} takes {known.arity} operands and has {len(args)}")
        truths = args[:1] if op == "where" else args if op in ("and", "or", "not") else ()
        for a in truths:
            if not self._is_truth(a):
                raise self._illegal(f"{op} is given a number where it takes a truth value: {str(a)[:80]}")

    def _is_truth(self, e: Expr) -> bool:
        match e:
            case Map("where", (_, a, b)):
                return self._is_truth(a) and self._is_truth(b)
            case Map(op, _):
                return op in OPS and OPS[op].boolean
            case Const(value):
                return value in (0.0, 1.0)
            case Read(tensor, _):
                return tensor in self._tensors and self._tensors[tensor].dtype is DType.BOOL
            case Reduce(ReduceKind.MAX | ReduceKind.MIN, _, body):
                return self._is_truth(body)  # any, all
            case _:
                return False

    def _read(self, tensor: str, index: tuple[Index, ...], guarded: bool) -> None:
        if tensor not in self._tensors:
            raise self._illegal(f"{tensor} is read and is neither an input nor an earlier definition")
        shape = self._tensors[tensor].shape
        if is_empty(shape):
            raise self._illegal(f"{tensor} is read and has no elements")
        if len(shape) != len(index):
            raise self._illegal(f"{tensor} has {len(shape)} dimensions and is read with {len(index)} indices")
        if guarded:
            return
        for d, (i, extent) in enumerate(zip(index, shape, strict=True)):
            if surely_outside(i, extent):
                raise self._illegal(f"index {i} leaves dimension {d} of {tensor}, of extent {extent}")

    def _index(self, index: Index, scope: Mapping[str, Axis]) -> None:
        for a in _axes_in(index):
            if scope.get(a.name) != a:
                raise self._illegal(f"axis {a.name} of extent {a.extent} is not in scope")
        for divisor in _divisors(index):
            _extent(divisor, self._program, self._at)


def _axes_in(index: Index) -> Iterator[Axis]:
    yield from sorted(index.axes(), key=lambda a: a.name)


def _divisors(index: Index) -> Iterator[Extent]:
    for atom, _ in index.terms:
        match atom:
            case FloorDiv(value, divisor) | Mod(value, divisor):
                yield divisor
                yield from _divisors(value)


def surely_outside(index: Index, extent: Extent) -> bool:
    """Whether some assignment of the axes takes the index out of [0, extent), where that is decidable."""
    ends = index.ends()  # bounds of what is not affine are not attained in general
    return ends is not None and (at_most(ends[0], -1) or at_most(extent, ends[1]))
