"""Pointwise operations that fold what needs no tensor: numbers, positions, and the masks that are made of them.

A causal mask written as `torch.tril(torch.ones(n, n)) == 0`, as a comparison of two aranges or as their difference
compared with 0 arrives here as one thing: a comparison of positions with only positive terms on either side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from prism.program import build
from prism.program.arrays import NUMPY
from prism.program.extents import Extent, at_most
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Reduce, Size
from prism.program.ops import OPS
from prism.program.views import compare_extents


def op(name: str, *args: Expr) -> Expr:
    """A pointwise operation, folded where its value does not depend on a tensor's elements."""
    if all(isinstance(a, Const) for a in args):
        return _number(name, args)
    match name, args:
        case "where", (p, a, b):
            return _where(p, a, b)
        case "not", (a,):
            return _not(a)
        case "isnan", (Position() | Size(),):
            return Const(0.0)
        case (("and" | "or"), (a, b)):
            return _connective(name, a, b)
        case (("eq" | "lt" | "le"), (a, b)):
            compared = _compare(name, a, b)
            if compared is not None:
                return compared
        case "neg", (a,):
            i = as_index(a)
            if i is not None:
                return build.position(i.scaled(-1))
        case "add", (a, b):
            i, j = as_index(a), as_index(b)
            if i is not None and j is not None:
                return build.position(i + j)
            if a == Const(0.0):
                return b
            if b == Const(0.0):
                return a
        case (("maximum" | "minimum"), (a, b)):
            i, j = as_index(a), as_index(b)
            if i is not None and j is not None:
                for less, more in ((i, j), (j, i)):
                    if (more + less.scaled(-1)).never_negative:
                        return build.position(more if name == "maximum" else less)
        case "mul", (a, b):
            for one, other in ((a, b), (b, a)):
                if one == Const(1.0):
                    return other
                i, j = as_index(one), as_index(other)
                if i is not None and not i.terms and j is not None:
                    return build.position(j.scaled(i.offset))
    chosen = _through_choice(name, args)
    return chosen if chosen is not None else Map(name, args)


def node(e: Expr) -> Expr:
    """A node whose operands are folded, folded itself."""
    match e:
        case Map(name, args):
            return op(name, *args)
        case Reduce(kind, axis, body):
            return build.reduce(kind, axis, body)
        case Position(index):
            return build.position(index)
    return e


def chosen(shape: Sequence[int], at: Sequence[Index], element: Callable[[tuple[int, ...]], Expr]) -> Expr:
    """What stands at each place of a shape, which has some: one after another, each where the indices are there."""
    *others, last = np.ndindex(*shape)
    expr = element(last)
    for place in reversed(others):
        test: Expr = Const(1.0)
        for index, n, extent in zip(at, place, shape, strict=True):
            if extent != 1:
                test = op("and", test, op("eq", build.position(index), Const(float(n))))
        expr = op("where", test, element(place), expr)
    return expr


def in_a_row(elements: Sequence[Expr], starts: Sequence[Extent], axis: Axis) -> Expr:
    """What stands along an axis: one element after another, each from a place on."""

    def choose(part: int, before: Expr, after: Expr) -> Expr:
        return op("where", op("lt", build.position(axis), build.position(Index.const(starts[part]))), before, after)

    return build.balanced_select(len(elements), elements.__getitem__, choose)


def as_index(e: Expr) -> Index | None:
    """The index whose value an expression is, when it is one: a whole number, an extent or a position."""
    match e:
        case Position(index):
            return index
        case Size(extent):
            return Index.const(extent)
        case Const(value) if value.is_integer():
            return Index.const(int(value))
    return None


def as_extent(e: Expr) -> Extent | None:
    """The number that an expression is for every element, when it is a whole one known at translation."""
    index = as_index(e)
    return None if index is None or index.terms else index.offset


def sub(a: Expr, b: Expr) -> Expr:
    """The difference a - b."""
    return op("add", a, op("neg", b))


def div(a: Expr, b: Expr) -> Expr:
    """The quotient a / b; of two numbers it is rounded once."""
    match a, b:
        case Const(x), Const(y) if y != 0:
            return Const(x / y)
    return op("mul", a, op("recip", b))


def truth(e: Expr) -> Expr:
    """A number as a truth value: whether it is not 0. What masks make of each other is told by what they choose by."""
    match e:
        case Map("mul" | "minimum", (a, b)) if _is_mask(a) and _is_mask(b):
            return op("and", truth(a), truth(b))
        case Map("maximum", (a, b)) if _is_mask(a) and _is_mask(b):
            return op("or", truth(a), truth(b))
        case Map(name, _) if OPS[name].boolean:
            return e
    return op("not", op("eq", e, Const(0.0)))


def _is_mask(e: Expr) -> bool:
    """Whether a number is 0 or 1 by how it is written."""
    match e:
        case Map("where", (_, a, b)):
            return {a, b} <= {Const(0.0), Const(1.0)}
        case Map("mul" | "minimum" | "maximum", (a, b)):
            return _is_mask(a) and _is_mask(b)
        case Map(name, _):
            return OPS[name].boolean
    return False


def _number(name: str, args: tuple[Expr, ...]) -> Expr:
    import numpy as np

    with np.errstate(all="ignore"):
        value = float(NUMPY.pointwise(name, [a.value for a in args if isinstance(a, Const)]))
    # The specification has no NaN constant; the operation is kept, and makes it when it runs.
    return Const(value) if value == value else Map(name, args)


def _where(p: Expr, a: Expr, b: Expr) -> Expr:
    match p:
        case Const(value):
            return a if value != 0 else b
        case Map("not", (q,)) | Map("where", (q, Const(0.0), Const(1.0))):
            return _where(q, b, a)
        case Map("where", (q, Const(1.0), Const(0.0))):
            return _where(q, a, b)
    if isinstance(a, Const) and not isinstance(b, Const) and (kept := _opposite(p)) is not None:
        p, a, b = kept, b, a  # one spelling: what is masked out comes last
    return a if a == b else Map("where", (p, a, b))


def _opposite(p: Expr) -> Expr | None:
    """Where a comparison of two positions does not hold, as one that does."""
    match p:
        case Map("where", (q, Const(1.0), Const(0.0))):
            return _opposite(q)
        case Map("le" | "lt" as name, (Position() as a, Position() as b)):
            return _compare("lt" if name == "le" else "le", b, a)
    return None


def _not(a: Expr) -> Expr:
    match a:
        case Map("not", (b,)):
            return b
        case Map("lt" | "le" as name, (b, c)) if as_index(b) is not None and as_index(c) is not None:
            return Map("le" if name == "lt" else "lt", (c, b))
    return Map("not", (a,))


def _connective(name: str, a: Expr, b: Expr) -> Expr:
    absorbing = Const(0.0 if name == "and" else 1.0)
    for one, other in ((a, b), (b, a)):
        if one == absorbing:
            return absorbing
        if isinstance(one, Const):
            return other
    return a if a == b else Map(name, (a, b))


def _compare(name: str, a: Expr, b: Expr) -> Expr | None:
    """A comparison of positions, its terms moved to the side where they are positive."""
    i, j = as_index(a), as_index(b)
    if i is None or j is None:
        return None
    difference = i + j.scaled(-1)
    if not difference.terms and (known := compare_extents(name, difference.offset, 0)) is not None:
        return Const(float(known))
    left = Index(tuple((t, c) for t, c in difference.terms if at_most(0, c)), 0)
    right = Index(tuple((t, -c) for t, c in difference.terms if not at_most(0, c)), 0)
    if at_most(0, difference.offset):
        left = left + Index.const(difference.offset)
    else:
        right = right + Index.const(-difference.offset)
    # Among integers, one spelling: bounds by numbers are half-open (a <= i, i < b), relations of positions are `<=`
    # where a number is in them, and i < j for i + 1 <= j.
    if name == "le" and not right.terms and isinstance(right.offset, int):
        name, right = "lt", right + 1
    elif name == "lt" and not left.terms and isinstance(left.offset, int):
        name, left = "le", left + 1
    elif name == "le" and left.terms and right.terms and (left.offset, right.offset) == (1, 0):
        name, left = "lt", left + (-1)
    elif name == "lt" and left.terms and right.terms:
        if isinstance(right.offset, int) and right.offset > 0:
            name, right = "le", right + (-1)
        elif right.offset == 0 and isinstance(left.offset, int) and left.offset > 0:
            name, left = "le", left + 1
    return Map(name, (build.position(left), build.position(right)))


def _through_choice(name: str, args: tuple[Expr, ...]) -> Expr | None:
    """op(where(p, c1, c2), c) with numbers c: the operation done on the numbers, as a choice of p again."""
    maps = [a for a in args if isinstance(a, Map) and a.op == "where"]
    choices = [a for a in maps if all(isinstance(x, Const) for x in a.args[1:])]
    if len(choices) != 1 or not all(isinstance(a, Const) or a is choices[0] for a in args):
        return None
    p = choices[0].args[0]
    then, otherwise = (op(name, *(a.args[n] if isinstance(a, Map) else a for a in args)) for n in (1, 2))
    if OPS[name].boolean and then == Const(1.0) and otherwise == Const(0.0):
        return p
    if OPS[name].boolean and then == Const(0.0) and otherwise == Const(1.0):
        return _not(p)
    return _where(p, then, otherwise)
