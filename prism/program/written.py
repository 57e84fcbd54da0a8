"""Tensors that are written piece by piece, each time as a copy with one more piece, as all of their pieces at once.

    y1[p, i] = where(p == 0, f(0)[i], 0)
    y2[p, i] = where(p == 1, f(1)[i], y1[p, i])
    y3[p, i] = where(p == 2, f(2)[i], y2[p, i])
    ->  y3[p, i] = where(p < 1, f(0)[i], where(p < 2, f(1)[i], where(p < 3, f(2)[i], 0)))

That is what `y[n] = ...` in a loop is in torch's graph. As a concatenation it is what a stack is, to all that reads one
(`recurrences.py`, `rolled.py`), and what reads a copy at places of one piece reads the piece.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from prism.program.build import position
from prism.program.extents import is_static
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Definition, Expr, Map, Position, Program, Read, walk
from prism.program.refinement import bounds
from prism.program.rolled import live_definitions
from prism.program.transform import rebuilt, substitute


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some places of a tensor along one of its axes."""

    start: int  # the first
    end: int  # the one after the last
    expr: Expr  # the values, over the tensor's axes


@dataclass(frozen=True, slots=True)
class _Written:
    """A copy."""

    definition: Definition  # of it
    dimension: int  # along which the pieces are
    pieces: tuple[_Piece, ...]  # all of its places, first to last
    copies: int  # how many copies it has taken


@dataclass(slots=True)
class _Copies:
    """The copies that were found so far."""

    program: Program  # what they are of
    made: dict[str, Definition] = field(default_factory=dict)  # its definitions up to here, by name, as they are now
    known: dict[str, _Written] = field(default_factory=dict)  # those that are copies

    def reads(self, expr: Expr) -> Expr:
        """The expression with reads of copies as reads of the pieces, where they are of one."""
        if not any(isinstance(e, Read) and e.tensor in self.known for e in walk(expr)):
            return expr
        return rebuilt([expr], lambda e: self._of_piece(e) or e)[0]

    def _of_piece(self, e: Expr) -> Expr | None:
        written = self.known.get(e.tensor) if isinstance(e, Read) else None
        ends = bounds(e.index[written.dimension]) if isinstance(e, Read) and written is not None else None
        if written is None or ends is None or not isinstance(e, Read):
            return None
        whole = written.definition
        for p in written.pieces:
            if p.start <= ends[0] and ends[1] < p.end and self._alike(p.expr, whole):
                return substitute(p.expr, dict(zip(whole.axes, e.index, strict=True)))
        return None

    def _alike(self, e: Expr, d: Definition) -> bool:
        """Whether it is a number, or stored elsewhere as it is in the definition."""
        return isinstance(e, Const) or (isinstance(e, Read) and self.program.tensor(e.tensor).dtype == d.dtype)

    def written(self, d: Definition) -> _Written | None:
        """The definition as a copy with one more piece; None where it has no pieces."""
        for n, axis in enumerate(d.axes):
            if is_static(axis.extent):
                pieces, before = self._pieces(d, n, d.expr, 0, int(axis.extent))
                if len(pieces) > 1:
                    # What is the same under another name writes nothing.
                    return _Written(d, n, tuple(pieces), before + (not isinstance(d.expr, Read)))
        return None

    def _pieces(self, d: Definition, dimension: int, expr: Expr, low: int, high: int) -> tuple[list[_Piece], int]:
        """The pieces of an expression from a place up to another, and how many copies what it reads has taken."""
        if low >= high:
            return [], 0
        match expr:
            case Map("where", (asked, inside, outside)) if (span := _span(asked, d.axes[dimension])) is not None:
                start, end = (min(max(x, low), high) for x in span)
                parts = [(outside, low, start), (inside, start, end), (outside, end, high)]
                found = [self._pieces(d, dimension, *part) for part in parts]
                return [p for pieces, _ in found for p in pieces], max(many for _, many in found)
            case Read(name, index) if index == tuple(map(Index.axis, d.axes)) and name in self.made:
                before, known = self.made[name], self.known.get(name)
                mapping = {a: Index.axis(b) for a, b in zip(before.axes, d.axes, strict=True)}
                if known is not None and known.dimension == dimension and before.dtype == d.dtype:
                    seen = [p for p in known.pieces if p.start < high and p.end > low]
                    return [
                        _Piece(max(low, p.start), min(high, p.end), substitute(p.expr, mapping)) for p in seen
                    ], known.copies
                past = isinstance(before.expr, Read) and before.expr.tensor in self.known
                if (past or isinstance(before.expr, Const)) and before.dtype == d.dtype:
                    return self._pieces(d, dimension, substitute(before.expr, mapping), low, high)
        return [_Piece(low, high, expr)], 0


def pieces_at_once(program: Program) -> Program:
    """The same program, in which copies with one more piece are concatenations; itself where there are none."""
    copies = _Copies(program)
    for d in program.definitions:
        expr = copies.reads(d.expr)
        now = d if expr is d.expr else replace(d, expr=expr, view=d.view and isinstance(expr, Read))
        written = copies.written(now)
        if written is not None:
            copies.known[d.name] = written
            now = now if written.copies == 1 else replace(now, expr=_together(written), view=False)
        copies.made[d.name] = now
    if all(w.copies == 1 for w in copies.known.values()):
        return program
    return replace(program, definitions=live_definitions(tuple(copies.made.values()), program))


def _span(asked: Expr, axis: Axis) -> tuple[int, int] | None:
    """The places along the axis at which a comparison holds; None where it asks something else."""
    match asked:
        case Map("lt" | "le" | "eq" as name, (Position(a), Position(b))):
            pass
        case Map("lt" | "le" | "eq" as name, (Position(a), Const(c))) if c.is_integer():
            b = Index.const(int(c))
        case Map("lt" | "le" | "eq" as name, (Const(c), Position(b))) if c.is_integer():
            a = Index.const(int(c))
        case _:
            return None
    if a.as_axis() == axis and not b.terms and is_static(b.offset):
        at = int(b.offset)
        return {"lt": (0, at), "le": (0, at + 1), "eq": (at, at + 1)}[name]
    if b.as_axis() == axis and not a.terms and is_static(a.offset):
        at = int(a.offset)
        return {"lt": (at + 1, int(axis.extent)), "le": (at, int(axis.extent)), "eq": (at, at + 1)}[name]
    return None


def _together(written: _Written) -> Expr:
    """The pieces as a concatenation."""
    axis = written.definition.axes[written.dimension]
    expr = written.pieces[-1].expr
    for before, after in reversed(list(pairwise(written.pieces))):
        expr = op("where", op("lt", position(axis), position(Index.const(after.start))), before.expr, expr)
    return expr
