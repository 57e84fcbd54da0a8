"""Rewriting expressions under binders: substitution without capture, canonical names, inlining.

Canonical names. An axis is called after its extent and an instance number: `d4096`, `d4096_1`, `seq`. A bound axis
takes, from the outside in, the least instance that is not free in its reduction; a free axis the least not yet taken,
in the order of the output's dimensions. Two programs that were written apart so meet in one e-graph wherever they
differ by the names of axes alone, and a rewrite that moves a term out of a reduction over `k` needs only to ask
whether `k` is one of its free axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from prism.program.build import size
from prism.program.extents import Extent, is_static, text
from prism.program.index import Axis, Index
from prism.program.nodes import (
    Const,
    Definition,
    Expr,
    Map,
    Position,
    Read,
    Reduce,
    ReduceKind,
    Steps,
    free_axes,
    label,
    walk,
)

_Names: TypeAlias = frozenset[tuple[Axis, Axis]]  # axis, its new name
_NO_NAMES: _Names = frozenset()


@dataclass(slots=True)
class Numbering:
    """A number for every expression, the same for equal ones: each object is looked at once, and never all below it."""

    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _of: dict[int, int] = field(default_factory=dict)
    _alive: list[Expr] = field(default_factory=list)  # an id is only good while its object lives

    def of(self, expr: Expr) -> int:
        """The expression's number."""
        known = self._of.get(id(expr))
        if known is None:
            key = (*label(expr), *[self.of(c) for c in expr.children])
            known = self._of[id(expr)] = self._numbers.setdefault(key, len(self._numbers))
            self._alive.append(expr)
        return known


def with_children(node: Expr, children: Iterable[Expr]) -> Expr:
    """The node on other operands; the node itself where they are its own objects: nothing is built anew."""
    new = tuple(children)
    match node:
        case Map(op, args) if not all(x is y for x, y in zip(new, args, strict=True)):
            return Map(op, new)
        case Reduce(kind, axis, body) if new[0] is not body:
            return Reduce(kind, axis, new[0])
    return node


def substitute(expr: Expr, mapping: Mapping[Axis, Index]) -> Expr:
    """`expr` with free axes replaced by indices; bound axes are renamed where an index would be captured.

    Parts that mention no axis of the mapping are the same objects in the result; parts that are one object stay one.
    """
    return _Substitution(mapping).of(expr) if mapping else expr


def element_at(definition: Definition, index: Sequence[Index]) -> Expr:
    """The element of a definition at an index."""
    return substitute(definition.expr, dict(zip(definition.axes, index, strict=True)))


@dataclass(slots=True)
class _Substitution:
    """A substitution at work."""

    mapping: Mapping[Axis, Index]  # of free axes
    # Done, by the identity of the node; nodes stay alive through the expression or through `done`.
    memo: dict[int, Expr] = field(default_factory=dict)
    # The substitutions under binders that shadow or capture, by their mapping.
    inside: dict[frozenset[tuple[Axis, Index]], _Substitution] = field(default_factory=dict)
    indices: dict[Index, Index] = field(default_factory=dict)  # done, by the index

    def of(self, e: Expr) -> Expr:
        if free_axes(e).isdisjoint(self.mapping):
            return e
        done = self.memo.get(id(e))
        if done is None:
            done = self.memo[id(e)] = self._new(e)
        return done

    def _new(self, e: Expr) -> Expr:
        match e:
            case Map(op, args):
                return Map(op, tuple([self.of(a) for a in args]))
            case Reduce(kind, axis, body):
                return self._reduce(kind, axis, body)
            case _:
                return reindexed(e, self._index)

    def _index(self, index: Index) -> Index:
        done = self.indices.get(index)
        if done is None:
            done = self.indices[index] = index.substitute(self.mapping)
        return done

    def _reduce(self, kind: ReduceKind, axis: Axis, body: Expr) -> Expr:
        free = free_axes(body)
        inner = {a: i for a, i in self.mapping.items() if a in free and a != axis}
        arriving = frozenset(x for i in inner.values() for x in i.axes())
        if axis in arriving:
            fresh = _fresh(axis, arriving | free)
            return Reduce(kind, fresh, self._under({**inner, axis: Index.axis(fresh)}).of(body))
        if axis in self.mapping:
            return Reduce(kind, axis, self._under(inner).of(body))
        return Reduce(kind, axis, self.of(body))

    def _under(self, mapping: dict[Axis, Index]) -> _Substitution:
        key = frozenset(mapping.items())
        known = self.inside.get(key)
        if known is None:
            known = self.inside[key] = _Substitution(mapping)
        return known


def _fresh(axis: Axis, taken: Iterable[Axis]) -> Axis:
    names = {a.name for a in taken}
    n = 1
    while f"{axis.name}~{n}" in names:
        n += 1
    return Axis(f"{axis.name}~{n}", axis.extent)


def axis_class(extent: Extent) -> str:
    """The name that all axes of one extent share."""
    return f"d{extent}" if is_static(extent) else text(extent)


def instance(extent: Extent, number: int) -> Axis:
    """The canonical axis of that extent and instance number."""
    base = axis_class(extent)
    return Axis(base if number == 0 else f"{base}_{number}", extent)


def least_instance(extent: Extent, taken: Iterable[Axis]) -> Axis:
    """The canonical axis of that extent with the least instance number that is not taken."""
    names = {a.name for a in taken}
    number = 0
    while True:
        axis = instance(extent, number)
        if axis.name not in names:
            return axis
        number += 1


def flat(e: Expr, op: str, most: float = math.inf) -> list[Expr]:
    """The operands of nested sums, products or maxima; some are such themselves where there are more than `most`."""
    parts = [e]
    while True:
        further = [inner for part in parts for inner in _apart(part, op)]
        if len(further) == len(parts) or len(further) > most:
            return parts
        parts = further


def _apart(e: Expr, op: str) -> Sequence[Expr]:
    if isinstance(e, Map) and e.op == op:
        return e.args
    if op == "mul" and isinstance(e, Map) and e.op == "neg":
        return Const(-1.0), e.args[0]
    return (e,)


def nested(e: Reduce) -> list[Reduce]:
    """The reduction and those of its kind right inside it, outermost first: they are one over several axes."""
    found = [e]
    while isinstance(found[-1].body, Reduce) and found[-1].body.kind is e.kind:
        found.append(found[-1].body)
    return found


def indices(node: object) -> tuple[Index, ...]:
    """The indices that a node has of its own."""
    match node:
        case Read(_, index) | Steps(_, _, index):
            return index
        case Position(i):
            return (i,)
        case _:
            return ()


def reindexed(e: Expr, change: Callable[[Index], Index]) -> Expr:
    """The node with its own indices changed."""
    match e:
        case Read(tensor, index):
            return Read(tensor, tuple([change(i) for i in index]))
        case Position(i):
            return Position(change(i))
        case Steps(loop, output, index):
            return Steps(loop, output, tuple([change(i) for i in index]))
        case _:
            return e


def rebuilt(exprs: Sequence[Expr], change: Callable[[Expr], Expr]) -> list[Expr]:
    """The expressions with every node changed, operands first: `change` sees a node that has its new operands.

    A node whose operands are its own objects is handed over as it is, so what is left alone is not built anew. Parts
    that are one object are changed once, and stay one object, in all of the expressions.
    """
    done: dict[int, Expr] = {}
    for expr in exprs:
        for e in walk(expr, done):
            done[id(e)] = change(with_children(e, [done[id(c)] for c in e.children]))
    return [done[id(e)] for e in exprs]


def replaced(exprs: Sequence[Expr], leaf: Callable[[Expr], Expr]) -> list[Expr]:
    """The expressions with their leaves (numbers, positions, reads) replaced; what is left alone is not built anew."""
    return rebuilt(exprs, lambda e: e if isinstance(e, Map | Reduce) else leaf(e))


def with_tensors(exprs: Sequence[Expr], name: Callable[[str], str]) -> list[Expr]:
    """The expressions with what they read under other names."""

    def read(e: Expr) -> Expr:
        return Read(name(e.tensor), e.index) if isinstance(e, Read) else e

    return replaced(exprs, read)


def canonical(expr: Expr) -> Expr:
    """`expr` with every bound axis given its canonical name; free axes keep theirs, which must be canonical.

    A reduction over an axis that its body does not mention is written without it.
    """
    return Canonical().of(expr)


@dataclass(slots=True)
class Canonical:
    """Gives canonical names to bound axes; what was done is remembered, so parts that are one object are done once."""

    # (node, result) by the identity of the node and the names of those of its free axes that have new ones. The nodes
    # are kept, so that no identity is used again.
    memo: dict[tuple[int, _Names], tuple[Expr, Expr]] = field(default_factory=dict)
    indices: dict[tuple[Index, _Names], Index] = field(default_factory=dict)  # indices under new names

    def of(self, expr: Expr) -> Expr:
        """`canonical(expr)`."""
        return self._visit(expr, {})

    def _visit(self, e: Expr, env: Mapping[Axis, Axis]) -> Expr:
        """The node under the new names of the binders around it."""
        free = free_axes(e)
        names: _Names = frozenset([(a, env[a]) for a in free if a in env]) if env else _NO_NAMES
        if not names and not isinstance(e, Map | Reduce):
            return e
        known = self.memo.get((id(e), names))
        if known is not None:
            return known[1]
        done = self._new(e, env, names)
        self.memo[id(e), names] = e, done
        return done

    def _new(self, e: Expr, env: Mapping[Axis, Axis], names: _Names) -> Expr:
        match e:
            case Map(_, args):
                return with_children(e, [self._visit(a, env) for a in args])
            case Reduce(kind, axis, body) if axis not in free_axes(body):
                return self._visit(_repeated(kind, axis, body), env)
            case Reduce(kind, axis, body):
                renamed = dict(names)
                name = least_instance(axis.extent, [renamed.get(a, a) for a in free_axes(e)])
                if name != axis:
                    renamed[axis] = name
                inner = self._visit(body, renamed)
                return e if inner is body and name == axis else Reduce(kind, name, inner)
            case _:
                return reindexed(e, lambda i: self._index(i, names))

    def _index(self, index: Index, names: _Names) -> Index:
        done = self.indices.get((index, names))
        if done is None:
            done = self.indices[index, names] = index.substitute({a: Index.axis(b) for a, b in names})
        return done


def _repeated(kind: ReduceKind, axis: Axis, body: Expr) -> Expr:
    """The reduction of a body that does not mention the axis: as many equal values as the axis is long."""
    match kind:
        case ReduceKind.SUM:
            return Map("mul", (body, size(axis.extent)))
        case ReduceKind.PROD:
            return Map("pow", (body, size(axis.extent)))
        case _:
            return body


def rename_free(expr: Expr, names: Mapping[Axis, Axis]) -> Expr:
    """`expr` with free axes renamed."""
    return substitute(expr, {a: Index.axis(b) for a, b in names.items() if a != b})


@dataclass(slots=True)
class Interned:
    """Keeps one object for each expression, so that equal ones are found equal, and done, by identity.

    Comparing equal expressions that are two objects costs as much as writing them out as trees.
    """

    nodes: dict[Expr, Expr] = field(default_factory=dict)

    def node(self, e: Expr) -> Expr:
        """The one object for a node whose children are such objects."""
        return self.nodes.setdefault(e, e)

    def all(self, expr: Expr) -> Expr:
        """The one object for an expression of any make."""
        return rebuilt([expr], self.node)[0]
