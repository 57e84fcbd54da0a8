"""Two lists of expressions cut into the pieces that they have in common.

A value that is put together from parts (a concatenation, a range of a sum taken by itself, a padded border, one tap of
a convolution after the other) equals another when the two are equal on every common piece. What cuts: comparisons of a
position with a constant, ranges in which the other side reads a dimension, and strides with which it does. A reduction
is cut into the combination of its parts, an output into several; the comparisons then have constant answers, and the
rules, which do not know of ranges, see none. Only static extents are cut, and every step is an equality of programs.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from prism.program.build import const, position
from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, free_axes, walk
from prism.program.ops import COMPARISONS
from prism.program.transform import canonical, least_instance, rebuilt, substitute, with_children

# An axis, or an output, is cut into at most so many pieces.
MAX_PIECES = 16
ROUNDS = 4

_Place: TypeAlias = tuple[str, int]  # tensor, dimension


def common_refinement(a: Sequence[Expr], b: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
    """The expressions of both, cut alike; those of one position are equal when all of their pieces are.

    Both have canonical axes, each candidate over the free axes of the reference at its position.
    """
    left, right = [simplified(e) for e in a], [simplified(e) for e in b]
    for reads in (False, True):
        for _ in range(ROUNDS):
            before = left, right
            if reads:
                left, right = _strides(left, right)
            left, right = _ranges(left, right, reads)
            left, right = _outputs(left, right)
            if (left, right) == before:
                break
    named = [_named(x, y) for x, y in zip(left, right, strict=True)]
    return [x for x, _ in named], [y for _, y in named]


def _named(x: Expr, y: Expr) -> tuple[Expr, Expr]:
    """Both with canonical names for their free axes, as outputs have them."""
    axes = sorted(free_axes(x) | free_axes(y), key=lambda s: s.name)
    apart = {s: Index.axis(Axis(f"{s.name}!", s.extent)) for s in axes}
    taken: list[Axis] = []
    for s in axes:
        taken.append(least_instance(s.extent, taken))
    names = {Axis(f"{s.name}!", s.extent): Index.axis(t) for s, t in zip(axes, taken, strict=True)}
    one, other = (canonical(substitute(substitute(e, apart), names)) for e in (x, y))
    return one, other


# Comparisons


def bounds(index: Index) -> tuple[int, int] | None:
    """The least and the largest value of an affine index; None where they are not known numbers."""
    match index.ends():
        case (int(low), int(high)):
            return low, high
    return None


def place(e: Expr) -> Index | None:
    """The index whose value an expression is."""
    match e:
        case Position(index):
            return index
        case Const(value) if math.isfinite(value) and value.is_integer():
            return Index.const(int(value))
    return None


def margin(e: Map) -> Index | None:
    """The index that is at least 0 (for eq: exactly 0) where the comparison holds."""
    p, q = (place(x) for x in e.args)
    if p is None or q is None:
        return None
    return q + p.scaled(-1) + (-1 if e.op == "lt" else 0)


def simplified(expr: Expr) -> Expr:
    """Comparisons of positions with one answer as constants, choices by a constant made, the others in one form."""
    return rebuilt([expr], _simplified)[0]


def _simplified(e: Expr) -> Expr:
    match e:
        case Map(op, args):
            return _compared(e) if op in COMPARISONS else _map(e, op, args)
        case Reduce(ReduceKind.MAX | ReduceKind.MIN, _, Const()):
            return e.body
    return e


def _map(e: Map, op: str, args: tuple[Expr, ...]) -> Expr:
    match op, args:
        case "where", (Const(p), a, b):
            return a if p != 0 else b
        case "where", (Map("not", (p,)), a, b):
            return Map("where", (p, b, a))
        case ("maximum", (x, Const(c))) | ("maximum", (Const(c), x)) if c == -math.inf:
            return x
        case ("minimum", (x, Const(c))) | ("minimum", (Const(c), x)) if c == math.inf:
            return x
        case "not", (Const(p),):
            return const(1.0 if p == 0 else 0.0)
        case "and" | "or", (Const(p), Const(q)):
            return const(float((p != 0 and q != 0) if op == "and" else (p != 0 or q != 0)))
        case ("and", (Const(c), _)) | ("and", (_, Const(c))) if c == 0:
            return const(0.0)
        case ("or", (Const(c), _)) | ("or", (_, Const(c))) if c != 0:
            return const(1.0)
        case ("and", (Const(), Map("lt" | "le" | "eq" | "and" | "or" | "not") as kept)) | (
            "and",
            (Map("lt" | "le" | "eq" | "and" | "or" | "not") as kept, Const()),
        ):
            return kept
    return e


def _compared(e: Map) -> Expr:
    d = margin(e)
    if d is None:
        return e
    known = bounds(d)
    if known is None:
        if e.op == "eq":
            return e
        return const(1.0) if d.never_negative else const(0.0) if (d.scaled(-1) + (-1)).never_negative else e
    low, high = known
    if e.op == "eq":
        return const(0.0) if low > 0 or high < 0 else const(1.0) if low == high else e
    if low >= 0 or high < 0:
        return const(1.0 if low >= 0 else 0.0)
    # Negative terms to the left, so that `0 <= i - j` and `j < i + 1` are both `j <= i`.
    below = Index(tuple((x, -c) for x, c in d.terms if c < 0), max(0, -int(d.offset)))
    above = Index(tuple((x, c) for x, c in d.terms if c > 0), max(0, int(d.offset)))
    return Map("le", (position(below), position(above)))


# Where to cut


def _about(axis: Axis, expr: Expr) -> Iterator[Expr]:
    """The nodes of which the axis is free, each once."""
    seen: set[int] = set()
    stack = [expr]
    while stack:
        e = stack.pop()
        if id(e) not in seen and axis in free_axes(e):
            seen.add(id(e))
            yield e
            stack.extend(e.children)


def thresholds(axis: Axis, expr: Expr) -> set[int]:
    """Values of the axis at which a comparison with a constant changes its answer."""
    found: set[int] = set()
    for e in _about(axis, expr):
        if isinstance(e, Map) and e.op in COMPARISONS:
            d = margin(e)
            rest = None if d is None else Index(tuple(t for t in d.terms if t[0] != axis), d.offset)
            known = None if rest is None else bounds(rest)
            c = dict(d.terms).get(axis) if d is not None else None
            if known is None or c is None or not is_static(c):
                continue
            if e.op == "eq" and known[0] == known[1]:
                at = -known[0] // int(c)
                found |= {at, at + 1} if at * int(c) == -known[0] else set()
            elif e.op != "eq":
                # The same border whatever the other axes are, or there is none.
                low, high = (_border(int(c), offset) for offset in known)
                found |= {low} if low == high else set()
    return found


def _border(c: int, offset: int) -> int:
    """The first value of an axis at which c * axis + offset >= 0 changes its answer."""
    return -(offset // c) if c > 0 else offset // -c + 1


@dataclass(slots=True)
class _Reads:
    """How dimensions of tensors are read: ranges by a plain axis or a constant, strides, residues by stride."""

    ranges: dict[_Place, set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    strides: dict[_Place, set[int]] = field(default_factory=lambda: defaultdict(set))
    residues: dict[_Place, set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))

    @staticmethod
    def of(exprs: Sequence[Expr]) -> _Reads:
        """Those of some expressions."""
        found = _Reads()
        for e in {id(x): x for expr in exprs for x in walk(expr)}.values():
            if isinstance(e, Read):
                for d, index in enumerate(e.index):
                    known = bounds(index)
                    if known is None:
                        continue
                    if not index.terms or (len(index.terms) == 1 and index.terms[0][1] == 1):
                        found.ranges[e.tensor, d].add((known[0], known[1] + 1))
                    found.strides[e.tensor, d] |= {int(c) for _, c in index.terms if c > 0}
                    common = math.gcd(*(int(c) for _, c in index.terms))
                    if common > 1:
                        found.residues[e.tensor, d].add((common, int(index.offset) % common))
        return found


def _cuts(axis: Axis, expr: Expr, reads: _Reads | None) -> list[int]:
    """Where an axis is cut, in order; nowhere when that would be too often."""
    if not is_static(axis.extent):
        return []
    found = thresholds(axis, expr)
    if reads is not None:
        for e in _about(axis, expr):
            if isinstance(e, Read):
                for d, index in enumerate(e.index):
                    found |= _ends(axis, index, reads.ranges[e.tensor, d])
                    found |= _alone(axis, index, reads.residues[e.tensor, d])
    inside = sorted(t for t in found if 0 < t < int(axis.extent))
    return inside if len(inside) < MAX_PIECES else []


# Between the name of an axis and of its part. Free axes keep the names of their parts while bound ones are named anew,
# by their extents: were it one mark, a bound axis could get the name of a free axis that its body mentions.
_FREE, _BOUND = ":", "."


def _ends(axis: Axis, index: Index, ranges: set[tuple[int, int]]) -> set[int]:
    """Where the axis, as a digit of an index, comes to an end of a range that is read elsewhere."""
    step = dict(index.terms).get(axis)
    rest = bounds(Index(tuple(t for t in index.terms if t[0] != axis), index.offset))
    if step is None or not is_static(step) or rest is None or not 0 <= rest[1] - rest[0] < int(step):
        return set()
    return {(end - rest[0]) // int(step) for pair in ranges for end in pair if (end - rest[0]) % int(step) == 0}


def _alone(axis: Axis, index: Index, residues: set[tuple[int, int]]) -> set[int]:
    """Where the axis, as the last digit of an index, has a digit that is read alone elsewhere."""
    if dict(index.terms).get(axis) != 1 or not is_static(index.offset):
        return set()
    others = [c for a, c in index.terms if a != axis]
    found: set[int] = set()
    for stride, residue in residues:
        if int(axis.extent) <= stride and others and all(is_static(c) and int(c) % stride == 0 for c in others):
            at = (residue - int(index.offset)) % stride
            found |= {at, at + 1}
    return found


def _parts(axis: Axis, cuts: Sequence[int], mark: str) -> list[tuple[Axis, Index]]:
    """Axes of the parts between the cuts, and what the whole axis is on each."""
    ends = [0, *cuts, int(axis.extent)]
    made = []
    for start, stop in itertools.pairwise(ends):
        part = Axis(f"{axis.name}{mark}{start}", stop - start)
        made.append((part, Index.axis(part) + start))
    return made


# Cutting


def _ranges(a: Sequence[Expr], b: Sequence[Expr], by_reads: bool) -> tuple[list[Expr], list[Expr]]:
    """Reductions cut into their parts."""
    reads = _Reads.of([*a, *b]) if by_reads else None
    return [canonical(_cut(e, reads)) for e in a], [canonical(_cut(e, reads)) for e in b]


def _cut(e: Expr, reads: _Reads | None) -> Expr:
    def parts(r: Reduce, cut: _Same) -> Expr | None:
        cuts = _cuts(r.axis, r.body, reads)
        if not cuts:
            return None
        made = []
        for part, whole in _parts(r.axis, cuts, _BOUND):
            inner = cut(simplified(substitute(r.body, {r.axis: whole})))
            made.append(inner if part.extent == 1 else Reduce(r.kind, part, inner))
        new = made[0]
        for p in made[1:]:
            new = Map(r.kind.op, (new, p))
        return new

    return _by_reductions(e, parts)


_Same: TypeAlias = Callable[[Expr], Expr]


def _by_reductions(expr: Expr, change: Callable[[Reduce, _Same], Expr | None]) -> Expr:
    """The expression with its reductions changed, from the outermost on.

    `change` says what becomes of a reduction, given what does the same to a body; None where only its body changes.
    """
    done: dict[int, tuple[Expr, Expr]] = {}

    def same(e: Expr) -> Expr:
        known = done.get(id(e))
        if known is not None:
            return known[1]
        new = change(e, same) if isinstance(e, Reduce) else None
        if new is None:
            new = with_children(e, map(same, e.children))
        done[id(e)] = e, new
        return new

    return same(expr)


def _outputs(a: Sequence[Expr], b: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
    """Outputs cut into their parts."""
    left: list[Expr] = []
    right: list[Expr] = []
    for x, y in zip(a, b, strict=True):
        choices: list[list[tuple[Axis, Index]]] = []
        cut: list[Axis] = []
        many = 1
        for axis in sorted(free_axes(x) | free_axes(y), key=lambda s: s.name):
            cuts = _cuts(axis, Map("add", (x, y)), None)
            if cuts and many * (len(cuts) + 1) <= MAX_PIECES:
                many *= len(cuts) + 1
                cut.append(axis)
                choices.append(_parts(axis, cuts, _FREE))
        for chosen in itertools.product(*choices):
            mapping = {axis: whole for axis, (_, whole) in zip(cut, chosen, strict=True)}
            left.append(canonical(simplified(substitute(x, mapping))))
            right.append(canonical(simplified(substitute(y, mapping))))
    return left, right


def _strides(a: Sequence[Expr], b: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
    """Axes split in two where the same dimension is elsewhere read with a stride that falls within them."""
    strides = _Reads.of([*a, *b]).strides
    left: list[Expr] = []
    right: list[Expr] = []
    for x, y in zip(a, b, strict=True):
        mapping: dict[Axis, Index] = {}
        for axis in sorted(free_axes(x) | free_axes(y), key=lambda s: s.name):
            factor = _factor(axis, Map("add", (x, y)), strides)
            if factor:
                mapping[axis] = _halves(axis, factor, _FREE)[2]
        left.append(canonical(_split(substitute(x, mapping), strides)))
        right.append(canonical(_split(substitute(y, mapping), strides)))
    return left, right


def _factor(axis: Axis, expr: Expr, strides: Mapping[_Place, set[int]]) -> int:
    """The least factor by which to split the axis; 0 for none."""
    if not is_static(axis.extent):
        return 0
    found: set[int] = set()
    for e in _about(axis, expr):
        if isinstance(e, Read):
            for d, index in enumerate(e.index):
                c = dict(index.terms).get(axis)
                if c is not None and is_static(c) and int(c) > 0:
                    found |= {s // int(c) for s in strides.get((e.tensor, d), ()) if s % int(c) == 0}
    return min((f for f in found if 1 < f < int(axis.extent) and int(axis.extent) % f == 0), default=0)


def _halves(axis: Axis, factor: int, mark: str) -> tuple[Axis, Axis, Index]:
    high, low = Axis(f"{axis.name}{mark}q", int(axis.extent) // factor), Axis(f"{axis.name}{mark}r", factor)
    return high, low, Index.axis(high).scaled(factor) + Index.axis(low)


def _split(e: Expr, strides: Mapping[_Place, set[int]]) -> Expr:
    def halves(r: Reduce, split: _Same) -> Expr | None:
        factor = _factor(r.axis, r.body, strides)
        if not factor:
            return None
        high, low, whole = _halves(r.axis, factor, _BOUND)
        return Reduce(r.kind, high, Reduce(r.kind, low, split(substitute(r.body, {r.axis: whole}))))

    return _by_reductions(e, halves)
