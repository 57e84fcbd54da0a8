"""From definitions to formulas: each output written down to the program's inputs, all indices affine.

A producer is instantiated under its consumer's index expressions, from the outputs backwards. A reshape leaves `a//n`
and `a%n` behind; the axis `a` is then split into `n*hi + lo` wherever it is bound (or, for an output, free), which
removes them, because `(n*hi + lo)//n = hi`.

Reductions over short axes along which a choice is made are written out, element by element (`unrolled`):

    sum_i x[2*j + i] * where(i < 1, low[j], high[j])     i in [0, 2)
    ->  x[2*j]*low[j] + x[2*j + 1]*high[j]

Where pieces lie side by side along a short axis, as codes in a byte do, no tile is of one piece alone: every program
would compute each piece for all positions and choose. Written out there is nothing to choose, and what the pieces have
in common is computed once. So are those of something that a few elements are appended to or stand before, as a sink is:

    max_j where(j < n, s[j], z)                          j in [0, n + 1)
    ->  maximum(max_j s[j], z)                           j in [0, n)

Where what is appended holds reductions of its own (a class token's scores), it stays in the loop.

Reductions that read from the end, as what is flipped, summed and flipped back, go along the axis:

    sum_r where(r <= N-1 - i, x[N-1 - r], 0)
    ->  sum_r where(i <= r, x[r], 0)

A place that is another axis' own, which a choice is for, is apart from the others, as one's own weight beside those of
the places before is:

    max_j where(j < i, a[j], where(j == i, b[j], -inf))
    ->  maximum(max_j where(j < i, a[j], -inf), b[i])

And choices that their other operand makes anyway are none, as of a running product that is moved on by a place and
begins with 1:

    where(i < 1, 1, prod_r where(r < i, x[r], 1))
    ->  prod_r where(r < i, x[r], 1)

What runs along an axis of another length than its places have is made as long, so that one loop goes along both, as
sums of what comes before are that begin with 0 and end with all of it (`_as_long`):

    sum_r where(r < i, x[r], 0)                          r in [0, n), i in [0, n + 1)
    ->  sum_r where(r < i, where(r < n, x[r], 0), 0)     r in [0, n + 1)
    sum_r where(i < r, x[r], 0)                          r in [0, n + 1), i in [0, n)
    ->  sum_r where(i <= r, x[r + 1], 0)                 r in [0, n)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import TypeAlias

from prism.errors import UnsupportedError
from prism.program import fold
from prism.program.blocks import by_blocks, own_block
from prism.program.build import op, position, size
from prism.program.extents import Extent, add, at_most, cdiv, is_static, mul, normal
from prism.program.index import Axis, FloorDiv, Index, Mod
from prism.program.integers import Interval, floor_quotient, range_of
from prism.program.lookup import looked_up
from prism.program.nodes import (
    Const,
    Definition,
    Expr,
    Formula,
    Map,
    Position,
    Program,
    Read,
    Reduce,
    ReduceKind,
    free_axes,
    walk,
)
from prism.program.of_looked_up import of_looked_up
from prism.program.ops import COMPARISONS
from prism.program.prefix import UpTo
from prism.program.sign_analysis import Facts
from prism.program.slid import along_places
from prism.program.transform import (
    canonical,
    element_at,
    flat,
    indices,
    least_instance,
    rebuilt,
    reindexed,
    replaced,
    substitute,
)

RENAMINGS = 24
"""Ways to name an output's axes that are looked at."""
_Inner: TypeAlias = Callable[[str], Definition | None]


def inline(
    program: Program, outputs: tuple[str, ...] | None = None, keep: Container[str] = frozenset()
) -> tuple[Formula, ...]:
    """The program's outputs as formulas over its inputs.

    Args:
        program: the program.
        outputs: the definitions to write out; the program's outputs by default.
        keep: definitions that are read as they are, not instantiated: materialised tensors.

    Raises:
        UnsupportedError: an index cannot be made affine by splitting axes, or operators follow one another in too long
            a chain for one formula.
    """

    def definition(name: str) -> Definition | None:
        return program.definition(name) if name in program.order and name not in keep else None

    def bounds(name: str) -> Interval:
        return range_of(program.tensor(name).dtype)

    try:
        return tuple(_formula(program.definition(name), definition, bounds) for name in outputs or program.outputs)
    except RecursionError:
        raise UnsupportedError(
            f"the {len(program.definitions):,} definitions are too deep for one formula",
            where=program.name,
            why="each operator stands within the one that reads it, and some hundreds do so at most",
            fix="split the model, and take its parts one by one",
        ) from None


def aligned(formulas: Sequence[Formula]) -> tuple[Formula, ...]:
    """The formulas with axes of equal extents named so that later ones have most in common with earlier ones.

    Names tell axes apart by their extents, in the order of an output's dimensions: of x[n, n], the column that the sum
    over rows is left with would be called as the row of what has both. Under its own name it reads x as that does.
    """
    seen: set[Expr] = set()
    named: dict[Extent, dict[Axis, None]] = {}
    found: list[Formula] = []
    for f in formulas:
        found.append(_most_shared(f, named, seen))
        if len(formulas) > 1:
            seen |= _reads(found[-1])
        for axis in _free(found[-1]):
            named.setdefault(axis.extent, {})[axis] = None
    # And those before with later ones, which may have more axes to be named as.
    for n, f in enumerate(found) if len(found) > 1 else ():
        others = set().union(*(_reads(g) for m, g in enumerate(found) if m != n))
        found[n] = _most_shared(f, named, others)
    return tuple(found)


def named_as(f: Formula, others: Sequence[Formula]) -> Formula:
    """The formula under the names of axes of the others with which it reads most of what these do."""
    named: dict[Extent, dict[Axis, None]] = {}
    for axis in (a for g in others for a in _free(g)):
        named.setdefault(axis.extent, {})[axis] = None
    return _most_shared(f, named, set().union(*map(_reads, others)))


def _most_shared(f: Formula, named: Mapping[Extent, Mapping[Axis, None]], others: Collection[Expr]) -> Formula:
    """The formula under the names with which it reads most of what others do; as it is, where none reads more."""
    ways = list(_renamings(f, named))
    return f if len(ways) == 1 else max(ways, key=lambda g: len(_reads(g).intersection(others)))


def _reads(f: Formula) -> set[Expr]:
    return {e for e in walk(f.expr) if isinstance(e, Read)}


def _free(f: Formula) -> list[Axis]:
    """The axes of the formula's index, in order."""
    return list(dict.fromkeys(a for i in f.index for a in sorted(i.axes(), key=str)))


def _renamings(f: Formula, named: Mapping[Extent, Mapping[Axis, None]]) -> Iterator[Formula]:
    """The formula as it is, then under other names that axes of the same extents have elsewhere; a few of them."""
    yield f
    own = _free(f)
    among = [list(dict.fromkeys((a, *named.get(a.extent, ())))) for a in own]
    for names in itertools.islice(itertools.product(*among), RENAMINGS):
        if len(set(names)) == len(names) and list(names) != own:
            yield _named(f, dict(zip(own, names, strict=True)))


def _named(f: Formula, names: Mapping[Axis, Axis]) -> Formula:
    """The formula with its free axes renamed, all at once."""
    # They are set apart first, so that renaming a to b while b is renamed to c cannot confuse the two.
    apart = {a: Index.axis(Axis(f"{a.name}!", a.extent)) for a in names}
    back = {Axis(f"{a.name}!", a.extent): Index.axis(b) for a, b in names.items()}
    expr = canonical(substitute(substitute(f.expr, apart), back))
    return Formula(f.tensor, tuple(i.substitute(apart).substitute(back) for i in f.index), expr)


def _formula(definition: Definition, inner: _Inner, bounds: Callable[[str], Interval]) -> Formula:
    written = of_looked_up(_expand(definition.expr, inner, {}), bounds)
    index, expr = _affine(definition, written)
    blocks = by_blocks(written)
    if blocks is not written:
        own_index, apart = _affine(definition, blocks)
        own = own_block(apart)
        if own is not None:
            index, expr = own_index, own
    expr = unrolled(expr)
    renamed: dict[Axis, Axis] = {}
    taken: list[Axis] = []
    for i in index:
        for atom, _ in sorted(i.terms, key=lambda t: float(t[1]) if is_static(t[1]) else math.inf, reverse=True):
            assert isinstance(atom, Axis)
            name = least_instance(atom.extent, taken)
            taken.append(name)
            renamed[atom] = name
    return _named(Formula(definition.tensor, index, expr), renamed)


def _affine(definition: Definition, expr: Expr) -> tuple[tuple[Index, ...], Expr]:
    """Where the elements of an expression are, and the expression, its axes split until no index divides one."""
    free = [(a, Index.axis(a)) for a in definition.axes]
    index = tuple(i for _, i in free)
    for _ in range(64):
        axis_cut = _first_divided(expr)
        if axis_cut is None:
            break
        axis, cut = axis_cut
        high = Axis(f"{axis.name}.q", normal(cdiv(axis.extent, cut)))
        low = Axis(f"{axis.name}.r", cut)
        if mul(high.extent, low.extent) != axis.extent and (axis in free_axes(expr) or not is_static(high.extent)):
            raise UnsupportedError(
                f"an axis of extent {axis.extent} is cut by {cut}, which does not divide it",
                where=definition.origin or definition.name,
                why="a reshape across dimensions that do not factor has no affine index",
                fix="split the model at this reshape",
            )
        replacement = Index.axis(high).scaled(cut) + Index.axis(low)
        expr = _split(expr, axis, high, low, replacement)
        index = tuple(i.substitute({axis: replacement}) for i in index)
    else:
        raise UnsupportedError("the indices do not become affine", where=definition.origin or definition.name)
    if not all(i.is_affine() for i in (*_indices(expr), *index)):
        raise UnsupportedError(
            "the indices do not become affine",
            where=definition.origin or definition.name,
            why="a reshape mixes dimensions that have no common factors",
            fix="split the model at this reshape",
        )
    return index, expr


def _expand(expr: Expr, inner: _Inner, memo: dict[Read, Expr]) -> Expr:
    """`expr` with reads of definitions replaced by their instantiated expressions."""

    def instance(e: Expr) -> Expr:
        if not isinstance(e, Read):
            return e
        if e not in memo:
            d = inner(e.tensor)
            if d is None:
                return e
            body = element_at(d, e.index)
            memo[e] = _expand(body, inner, memo)
        return memo[e]

    return replaced([expr], instance)[0]


def _indices(expr: Expr) -> Iterator[Index]:
    return (i for e in walk(expr) for i in indices(e))


def _first_divided(expr: Expr) -> tuple[Axis, Extent] | None:
    """An axis that a `//` or `%` still divides, and the factor to cut it by; None when all indices are affine."""
    for index in _indices(expr):
        found = _cut(index)
        if found is not None:
            return found
    return None


def _cut(index: Index) -> tuple[Axis, Extent] | None:
    for atom, _ in index.terms:
        match atom:
            case FloorDiv(value, divisor) | Mod(value, divisor):
                deeper = _cut(value)
                if deeper is not None:
                    return deeper
                for inner, coefficient in value.terms:
                    if not isinstance(inner, Axis):
                        continue
                    if is_static(divisor) and is_static(coefficient):
                        cut: Extent = int(divisor) // _gcd(int(divisor), int(coefficient))
                    else:
                        cut = divisor if coefficient == 1 else normal(divisor / coefficient)
                    if cut != 1 and not (at_most(inner.extent, cut)):
                        return inner, cut
            case Axis():
                pass
    return None


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def _split(expr: Expr, axis: Axis, high: Axis, low: Axis, replacement: Index) -> Expr:
    """`expr` with `axis` split into (high, low), bound or free; a bound one is padded with what counts for nothing.

    What is looked up along it at a place that data give is looked up along both: at the place's quotient and remainder.
    """
    more = mul(high.extent, low.extent) != axis.extent
    here = position(replacement)

    def halved(e: Expr) -> Expr:
        match e:
            case Reduce(ReduceKind.SUM, bound, Map("where", (Map("eq", sides), element, Const(0.0)))) if (
                bound == axis and not more and here in sides and _says(place := sides[sides[0] == here], {high, low})
            ):
                upper = floor_quotient(place, size(low.extent))
                rest = fold.sub(place, fold.op("mul", size(low.extent), upper))
                return looked_up(high, upper, looked_up(low, rest, element))
            case Reduce(kind, bound, body) if bound == axis:
                if more:
                    there = op("lt", here, size(axis.extent))
                    body = op("where", there, body, Const(kind.identity))
                return Reduce(kind, high, Reduce(kind, low, body))
            case _:
                return reindexed(e, lambda i: i.substitute({axis: replacement}))

    return rebuilt([expr], halved)[0]


def _says(place: Expr, axes: Collection[Axis]) -> bool:
    """Whether it is a number that data give, and none of the axes."""
    return free_axes(place).isdisjoint(axes) and any(isinstance(e, Read) for e in walk(place))


LONGEST = 4
"""Of the axes that are written out; each element is a term of its own."""


def unrolled(expr: Expr) -> Expr:
    """The expression with reductions written out: over short axes that alone decide a choice, and appended elements.

    And with sums along what windows slide over as those of all that they see (`slid`).
    """

    def written(e: Expr) -> Expr:
        if isinstance(e, Map) and e.op == "where":
            return _made_anyway(e)
        if isinstance(e, Map) and e.op in COMPARISONS:
            folded = fold.op(e.op, *e.args)  # what is read at the place before is of the places before
            return e if folded == e else folded
        if not isinstance(e, Reduce):
            return e
        seen = along_places(e)
        if seen is not None:
            return seen
        if _backwards(e.axis, e.body):
            turned = Index.axis(e.axis).scaled(-1) + (int(e.axis.extent) - 1)
            e = Reduce(e.kind, e.axis, refolded(substitute(e.body, {e.axis: turned})))
        if _decides(e.axis, e.body):
            return _combined(e.kind, [_at(e.body, e.axis, n) for n in range(int(e.axis.extent))])
        own = _own_place(e)
        if own is not None:
            return own
        ends = _ends(e.axis, e.body)
        if ends is None:
            border = _joint(e.axis, e.body)
            parts = [] if border is None else [(0, border), (border, int(e.axis.extent))]
            return _combined(e.kind, [written(_part(e, *part)) for part in parts]) if parts else _as_long(e)
        first, last = ends
        few = [n for n in range(int(e.axis.extent)) if not first <= n < last]
        return _combined(e.kind, [_as_long(_part(e, first, last)), *(_at(e.body, e.axis, n) for n in few)])

    return decided(rebuilt([expr], written)[0])


def _as_long(e: Expr) -> Expr:
    """What runs along its axis, as a reduction over one as long as that of its places; anything else as it is."""
    match e:
        case Reduce(kind, bound, Map("where", (Map("le" | "lt" as op_name, (Position(m), Position(n))), f, outside))):
            pass
        case _:
            return e
    if outside != Const(kind.identity) or bound not in free_axes(f):
        return e
    for back, (own, end) in enumerate(((m, n), (n, m))):
        axis = (end + Index.const(mul(-1, end.offset))).as_axis()
        if axis is None or axis == bound or axis in free_axes(f) or own.terms != Index.axis(bound).terms:
            continue
        more = add(bound.extent, mul(-1, axis.extent))
        last = add(end.offset, mul(-1, own.offset))
        if not (is_static(more) and is_static(last)):
            return e
        if is_static(axis.extent) and 2 * int(bound.extent) < int(axis.extent):
            return e  # few places are few terms
        # Places up to axis + last count, or from there on. Moved, they are those up to the axis, or before it.
        last = int(last) + (op_name == "lt") * (1 if back else -1)
        before = (last == 1 and more <= 0) if back else last < 0
        move = last + before * (-1 if back else 1)
        covered = move >= more if back else move <= 0
        if not covered or (more == 0 and own.offset == end.offset == 0):
            return e
        along = Axis(f"{bound.name}.along", axis.extent)
        term, ends = substitute(f, {bound: Index.axis(along) + move}), add(bound.extent, -move)
        if move < 0:
            term = op("where", op("lt", position(Index.axis(along)), Const(float(-move))), outside, term)
        if more < move:
            term = op("where", op("lt", position(Index.axis(along)), size(ends)), term, outside)
        compare, sides = UpTo(axis, bool(before), bool(back)).compare(along, axis)
        mask = op(compare, *(position(Index.axis(a)) for a in sides))
        return Reduce(kind, along, op("where", mask, term, outside))
    return e


def _own_place(e: Reduce) -> Expr | None:
    """The reduction with another axis' own place apart, where one of its choices is for that place alone."""
    for x in walk(e.body):
        match x:
            case Map("where", (Map("eq", (Position(one), Position(two))), _, other)):
                for own, place in ((one, two), (two, one)):
                    axis = place.as_axis()
                    if own.as_axis() != e.axis or axis in (None, e.axis) or axis.extent != e.axis.extent:
                        continue
                    there = {e.axis: place}
                    rest = rebuilt([e.body], partial(_instead, of=x, new=other))[0]
                    if _is_nothing(e.kind, decided(substitute(rest, there))):
                        here = decided(substitute(e.body, there))
                        return fold.op(e.kind.op, Reduce(e.kind, e.axis, rest), here)
    return None


def _instead(e: Expr, of: Expr, new: Expr) -> Expr:
    return new if e == of else e


def _is_nothing(kind: ReduceKind, e: Expr) -> bool:
    """Whether a term makes no difference to a reduction, of finite inputs."""
    if e == Const(kind.identity):
        return True
    factors = flat(e, "mul") if kind is ReduceKind.SUM else []
    facts = Facts()

    def vanishes(x: Expr) -> bool:
        """Whether it is the exponential of -inf."""
        terms = flat(x.args[0], "add") if isinstance(x, Map) and x.op == "exp" else []
        return Const(-math.inf) in terms and all(t == Const(-math.inf) or facts.finite(t) for t in terms)

    return any(map(vanishes, factors)) and all(vanishes(x) or facts.finite(x) for x in factors)


def _backwards(axis: Axis, body: Expr) -> bool:
    """Whether what is read along the axis is read from the end."""
    if not is_static(axis.extent):
        return False

    def slopes(body: Expr, axis: Axis) -> list[bool]:
        """Of each read along the axis, whether it is from the end."""
        terms = (t for e in walk(body) if isinstance(e, Read) for i in e.index for t in i.terms)
        return [is_static(c) and int(c) < 0 for a, c in terms if a == axis]

    if not any(slopes(body, axis)):
        return False
    # What reductions inside have the same name for is another axis.
    own = Axis(f"{axis.name}.own", axis.extent)
    return all(found := slopes(substitute(body, {axis: Index.axis(own)}), own)) and bool(found)


def refolded(expr: Expr) -> Expr:
    """The expression with its comparisons of positions in one spelling."""

    def compared(e: Expr) -> Expr:
        return fold.op(e.op, *e.args) if isinstance(e, Map) and e.op in COMPARISONS else e

    return rebuilt([expr], compared)[0]


def _made_anyway(e: Map) -> Expr:
    """The other operand of a choice where it is also the one for the first places of an axis: nothing to choose."""
    match e.args:
        case Map("lt", (Position(index), Const() | Position(Index(())) as end)), few, rest:
            pass
        case Map("le", (Const() | Position(Index(())) as end, Position(index))), rest, few:
            pass
        case _:
            return e
    border, axis = end.value if isinstance(end, Const) else end.index.offset, index.as_axis()
    if isinstance(border, float):
        if not border.is_integer():
            return e
        border = int(border)
    if axis is None or not is_static(axis.extent) or not is_static(border) or not 0 < border < int(axis.extent):
        return e
    first = int(border)
    if any(axis in i.axes() for x in walk(rest) if isinstance(x, Read) for i in x.index):
        return e  # what is read at the first places may not be there
    places = {axis: Index.axis(Axis(f"{axis.name}.first", first))}
    same = decided(refolded(substitute(rest, places))) == decided(substitute(few, places))
    return refolded(rest) if same else e


def _combined(kind: ReduceKind, terms: Sequence[Expr]) -> Expr:
    return reduce(partial(fold.op, kind.op), terms)


def _part(e: Reduce, first: int, last: int) -> Reduce:
    """The reduction along a part of its axis."""
    along = Axis(f"{e.axis.name}.{first}", last - first)
    return Reduce(e.kind, along, decided(substitute(e.body, {e.axis: Index.axis(along) + first})))


def _joint(axis: Axis, body: Expr) -> int | None:
    """Where what is a reduction, such as a product, is followed by what is none, or the other way round.

    Keys that are a product with a part put after it, `sum_d q[d]*where(d < 64, sum_r c[r]*u[d, r], k[d - 64])`, are one
    sum of the product alone, whose two sums may change places, and one of the part; as one sum they are neither.
    A factor that is one tensor after another is multiplied as the two: each is then an operand where it lies.
    """
    if not is_static(axis.extent):
        return None
    factors = flat(body, "mul") if isinstance(body, Map) and body.op == "mul" else []
    for e in walk(body):
        match e:
            case Map("where", (Map("lt", (Position(index), Const(border))), below, above)) if index == Index.axis(axis):
                inner = [(x for x in walk(part) if isinstance(x, Reduce)) for part in (below, above)]
                below_made, above_made = (any(axis in free_axes(x) for x in xs) for xs in inner)
                few = min(border, int(axis.extent) - border) <= LONGEST
                made = below_made or above_made or (e in factors and _are_apart(axis, below, above))
                if made and not few and border == int(border):
                    return int(border)
            case _:
                pass
    return None


def _are_apart(axis: Axis, below: Expr, above: Expr) -> bool:
    """Whether both are read along the axis, of tensors that the other does not read."""
    along = [{r.tensor for r in walk(part) if isinstance(r, Read) and axis in free_axes(r)} for part in (below, above)]
    return all(along) and along[0].isdisjoint(along[1])


def _ends(axis: Axis, body: Expr) -> tuple[int, int] | None:
    """The part of an axis besides a few elements that another operand of a choice is for; None where there are none.

    That operand holds no reduction, so that to write it out is next to nothing.
    """
    if not is_static(axis.extent):
        return None
    extent = int(axis.extent)
    for e in walk(body):
        match e:
            case Map("where", (Map("lt", (Position(index), Const(border))), below, above)) if index == Index.axis(axis):
                count = min(border, extent - border)
                few, first, last = (below, border, extent) if count == border else (above, 0, border)
                if not (0 < count <= LONGEST < extent - count) or border != int(border):
                    continue
                if not any(isinstance(x, Reduce) for x in walk(few)):
                    return int(first), int(last)
    return None


def _decides(axis: Axis, body: Expr) -> bool:
    """Whether the axis is short, and the predicate of some choice in the body depends on nothing else."""
    if not is_static(axis.extent) or int(axis.extent) > LONGEST:
        return False
    return any(isinstance(e, Map) and e.op == "where" and _only(axis, e.args[0]) for e in walk(body))


def _only(axis: Axis, predicate: Expr) -> bool:
    """Whether the predicate is made of numbers and positions along this axis."""
    nodes = list(walk(predicate))
    if not all(isinstance(e, Map | Position | Const) for e in nodes):
        return False
    positions = [e for e in nodes if isinstance(e, Position)]
    return any(e.index.terms for e in positions) and all(set(e.index.axes()) <= {axis} for e in positions)


def _at(body: Expr, axis: Axis, place: int) -> Expr:
    """The body at one place of the axis; what that decides is decided."""
    return decided(substitute(body, {axis: Index.const(place)}))


def decided(expr: Expr) -> Expr:
    """The expression with what is known of positions: numbers where they are, and comparisons that always hold."""
    done: dict[int, Expr] = {}
    for e in walk(expr):
        match e:
            case Map("lt", (Position(index), Const(border))) if index.terms and _always(index, border) is not None:
                done[id(e)] = Const(float(bool(_always(index, border))))
            case Map("lt" | "le" as name, (Position(index), Position(end))) if (
                known := _always(index + end.scaled(-1), 0.0 if name == "lt" else 0.5)
            ) is not None:
                done[id(e)] = Const(float(known))
            case Map("eq", (Position(index), Const(border))) if index.terms and (
                _always(index, border) or _always(index, border + 1.0) is False
            ):
                done[id(e)] = Const(0.0)
            case Map("eq", (Position(index), Position(end))) if not (index + end.scaled(-1)).terms:
                done[id(e)] = Const(float(index == end))
            case Map(name, args):
                made = tuple([done[id(a)] for a in args])
                done[id(e)] = e if all(x is y for x, y in zip(made, args, strict=True)) else fold.op(name, *made)
            case Position(index):
                done[id(e)] = position(index) if not index.terms else e
            case Reduce(kind, bound, inner):
                kept = done[id(inner)]
                none = kept == Const(kind.identity)
                done[id(e)] = kept if none else e if kept is inner else Reduce(kind, bound, kept)
            case _:
                done[id(e)] = e
    return done[id(expr)]


def _always(index: Index, border: float) -> bool | None:
    """Whether a position is always below the border, or never; None where it depends."""
    ends = index.ends()
    if ends is None or not all(map(is_static, ends)):
        return None
    return True if int(ends[1]) < border else False if int(ends[0]) >= border else None
