"""Loads of every other element, in pairs as they lie in memory, and products over what such pairs hold.

    low  = tl.load(x + 2 * j)          pairs = tl.load(x + tl.arange(0, 2 * N))
    high = tl.load(x + 2 * j + 1)      low, high = tl.split(tl.reshape(pairs, (N, 2)))

A thread cannot load with a stride but element by element, and a single element of 2 bytes is no asynchronous copy.
Pairs are read as they lie in memory, along a dimension of twice the length, so that a thread has as many bytes at once
as anywhere; where it is not clear how, along one more of length 2, which is all that a thread has at once then. What is
read is the same: both loads have the same masks.

    total = tl.dot(low, a) + tl.dot(high, b)      total = tl.dot(pair, a and b in turn)

Two codes in a byte are multiplied by neighbours. As two products they need the halves of the pair, which no instruction
takes out of shared memory; as one, over both halves in turn, the pair is an operand as it lies there, and the codes of
a byte are neighbours in a register, too.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from prism.backends import tile
from prism.backends.passes.small_integers import written
from prism.backends.tile_rewrite import names_beside, value_dims
from prism.ir.kit import defined, operands, statements
from prism.program.extents import is_static
from prism.program.nodes import DType, ReduceKind


@dataclass(frozen=True, slots=True)
class Turns:
    """Two loads of every other element as one, in turn along a dimension."""

    low: tile.Load  # of the even elements
    high: tile.Load  # of the odd ones
    lanes: tile.Offsets  # the places along the dimension
    inside: Mapping[str, tile.InBounds]  # by name, the masks along that dimension
    split: bool = True  # whether something other than products of both needs the halves


@dataclass(frozen=True, slots=True)
class Word:
    """Two codes of one integer in the halves of a word: floats side by side, by one mask and one base.

    word = (x >> low | x << (16 - high)) & masks | bases
    """

    whole: str  # the integer, x, of at most 16 bits and not negative
    low: int  # where the code begins that goes to the lower half
    high: int  # where the one begins that goes to the upper half
    mask: int  # of the word
    base: int  # of the word, see `Bits`
    offset: int  # what is subtracted from both
    dtype: DType  # the type of both
    parts: tuple[str, ...]  # the values that are not computed on their own


@dataclass(frozen=True, slots=True)
class Both:
    """Two products whose sum is one, over the elements of both in turn."""

    total: str  # the sum
    first: str  # the product that goes away; what is left stands in the other's place
    turns: Turns  # the operand that is a pair of loads
    low: str  # what the even elements are multiplied by
    high: str  # what the odd ones are
    left: bool  # whether the pair is the left operand
    precision: tile.Precision  # of both
    word: Word | None = None  # both `low` and `high`, where they are codes of one integer


def pairs(program: tile.TileProgram) -> dict[str, tuple[tile.Load, tile.Load]]:
    """Two loads of every other element, one of the even and one of the odd ones: by the name of the first, the two."""
    lanes = frozenset(s.dst for s in statements(program.body) if isinstance(s, tile.Offsets))
    found: dict[str, tuple[tile.Load, tile.Load]] = {}
    blocks = [program.body, *(s.body for s in statements(program.body) if hasattr(s, "body"))]
    for block in blocks:
        _pair_up(block, lanes, found)
    return found


def _pair_up(block: Sequence[tile.Stmt], lanes: frozenset[str], found: dict[str, tuple[tile.Load, tile.Load]]) -> None:
    waiting: list[tile.Load] = []
    for s in block:
        if not isinstance(s, tile.Load) or not _strided(s, lanes):
            continue
        for other in waiting:
            order = _order(other, s)
            if order is not None:
                found[other.dst] = order
                waiting.remove(other)
                break
        else:
            waiting.append(s)


def _strided(s: tile.Load, lanes: frozenset[str]) -> bool:
    """Whether the nearest neighbours of the tile are two elements apart."""
    steps = [c for name, c in s.offset.terms if name in lanes]
    return bool(s.dims) and all(is_static(c) for c in steps) and min((abs(int(c)) for c in steps), default=0) == 2


def _order(a: tile.Load, b: tile.Load) -> tuple[tile.Load, tile.Load] | None:
    """The two, the lower first, where they are alike but for one element."""
    alike = (a.tensor, a.offset.terms, a.offset.wide, a.masks, a.dims, a.dtype)
    if alike != (b.tensor, b.offset.terms, b.offset.wide, b.masks, b.dims, b.dtype):
        return None
    apart = b.offset.offset - a.offset.offset
    return (a, b) if apart == 1 else (b, a) if apart == -1 else None


def in_turn(program: tile.TileProgram, found: Mapping[str, tuple[tile.Load, tile.Load]]) -> dict[str, Turns]:
    """The pairs of which it is clear where each element and mask goes, by either load."""
    dims = value_dims(program)
    turns = {low.dst: _turns(program, low, high, dims) for low, high in found.values()}
    return {s.dst: t for t in turns.values() if t is not None for s in (t.low, t.high)}


def products(program: tile.TileProgram, found: Mapping[str, Turns]) -> tuple[tile.TileProgram, dict[str, Both]]:
    """The products that are one, by the name of the second; in the program they are added to each other first."""
    stored = {t.name: t.dtype for t in program.tensors}
    turns = {
        name: t
        for name, t in found.items()
        if t.low.dtype.is_half and stored[t.low.tensor] is t.low.dtype and len(t.low.dims) == 2
    }
    if not turns:
        return program, {}
    program = _apart(program, turns)
    dims = value_dims(program)
    made: dict[str, Both] = {}
    uses = Counter(name for s in statements(program.body) for name in operands(s))

    def within(block: Sequence[tile.Stmt]) -> tuple[tile.Stmt, ...]:
        inner = [replace(s, body=within(s.body)) if isinstance(s, tile.For | tile.Within) else s for s in block]
        return tuple(_added(inner, turns, uses, dims, made))

    program = replace(program, body=within(program.body))
    merged = Counter(b.turns.low.dst for b in made.values())

    defined_as = {s.dst: s for s in statements(program.body) if isinstance(s, tile.Cast | tile.Pointwise)}

    def whole(b: Both) -> Both:
        t = b.turns
        split = uses[t.low.dst] + uses[t.high.dst] > 2 * merged[t.low.dst]
        return replace(b, turns=replace(t, split=split), word=_word(b.low, b.high, defined_as, uses))

    return program, {name: whole(b) for name, b in made.items()}


def _apart(program: tile.TileProgram, turns: Mapping[str, Turns]) -> tile.TileProgram:
    """The program with what pairs add to one accumulator added up first: Triton adds it in place all the same."""
    names = names_beside(program)

    def within(block: Sequence[tile.Stmt]) -> tuple[tile.Stmt, ...]:
        made = [replace(s, body=within(s.body)) if isinstance(s, tile.For | tile.Within) else s for s in block]
        added = [s for s in made if isinstance(s, tile.Dot) and s.add == s.dst]
        for a, b in itertools.combinations(added, 2):
            if a.dst == b.dst and a in made and b in made and _both("", a, b, turns) is not None:
                first, last, total = (names.fresh(f"{a.dst}_{part}") for part in ("even", "odd", "terms"))
                dims = value_dims(program)[a.dst]
                made[made.index(b)] = replace(b, dst=last, add=None)
                made[made.index(a)] = replace(a, dst=first, add=None)
                at = next(n for n, s in enumerate(made) if defined(s) == last) + 1
                both = tile.Pointwise(total, "add", (first, last), dims, DType.FLOAT32)
                made[at:at] = [both, tile.Update(a.dst, ReduceKind.SUM, total)]
        return tuple(made)

    return replace(program, body=within(program.body))


def _word(low: str, high: str, defined_as: Mapping[str, tile.Stmt], uses: Mapping[str, int]) -> Word | None:
    """Two values as the halves of a word, where both are codes of one integer and nothing else uses them."""
    match defined_as.get(low), defined_as.get(high):
        case tile.Cast(_, a, dtype, tuple() as first), tile.Cast(_, b, other, tuple() as second) if dtype is other:
            bits, more = written(dtype, first), written(dtype, second)
            parts = (low, a, high, b)
            if dtype.bytes != 2 or bits is None or bits != more or bits.least or any(uses[x] != 1 for x in parts):
                return None
        case _:
            return None
    codes = []
    for part, among in ((a, first), (b, second)):
        match defined_as.get(part):
            case tile.Pointwise(_, "bits", (str() as x, int() as mask)):
                codes.append((x, 0, mask))
            case tile.Pointwise(_, "shift", (str() as x, int() as n)):
                codes.append((x, n, (1 << among[1].bit_length()) - 1))
            case _:
                return None
    (x, low_at, low_mask), (y, high_at, high_mask) = codes
    # Of a shifted integer, that the code is not negative says that the integer is not.
    if x != y or not (low_at or high_at) or low_mask >> (16 - high_at):
        return None
    mask, base = low_mask | high_mask << 16, bits.base | bits.base << 16
    return Word(x, low_at, high_at, mask, base, bits.offset, dtype, parts)


def _added(
    block: list[tile.Stmt],
    turns: Mapping[str, Turns],
    uses: Mapping[str, int],
    dims: Mapping[str, tile.Dims],
    made: dict[str, Both],
) -> list[tile.Stmt]:
    """The block with sums of several terms, two of which are one product, beginning with these; `made` gets them."""
    sums = {s.dst: s for s in block if isinstance(s, tile.Pointwise) and s.op == "add"}
    dots = {s.dst: s for s in block if isinstance(s, tile.Dot) and s.add is None and uses[s.dst] == 1}
    inner = {a for s in sums.values() for a in s.args if a in sums and uses[str(a)] == 1}

    def terms(a: tile.Operand, whole: bool = False) -> list[tile.Operand]:
        return [x for b in sums[str(a)].args for x in terms(b)] if whole or a in inner else [a]

    def parts(a: tile.Operand, whole: bool = False) -> list[str]:
        return [*(x for b in sums[str(a)].args for x in parts(b)), str(a)] if whole or a in inner else []

    new: dict[str, list[tile.Stmt]] = {}
    for total, s in sums.items():
        if total in inner:
            continue
        given = terms(total, whole=True)
        products = sorted((a for a in given if a in dots), key=list(dots).index)
        for first, last in itertools.combinations(map(str, products), 2):
            names = parts(total, whole=True)
            both = _both(names[0], dots[first], dots[last], turns)
            if both is None or not _undisturbed(block, both, last, names):
                continue
            made[last] = both
            rest = [a for a in given if a not in (first, last)]
            chain: list[tile.Stmt] = [tile.Pointwise(names[0], "add", (first, last), dims[first], s.dtype)]
            have = {*dims[first]}
            for a, before, name in zip(rest, names[:-1], names[1:], strict=True):
                have |= {*(dims.get(a, ()) if isinstance(a, str) else ())}
                chain.append(tile.Pointwise(name, "add", (before, a), tuple(d for d in s.dims if d in have), s.dtype))
            new |= {name: [] for name in names[:-1]}
            new[total] = chain
            break
    return [x for s in block for x in new.get(defined(s) or "", [s])]


def _turns(program: tile.TileProgram, low: tile.Load, high: tile.Load, dims: Mapping[str, tile.Dims]) -> Turns | None:
    """The two as one, if it is clear where each of their elements and masks goes."""
    made = {s.dst: s for s in statements(program.body) if isinstance(s, tile.Offsets | tile.InBounds)}
    steps = [(made.get(name), step) for name, step in low.offset.terms]
    lanes = [s for s, step in steps if isinstance(s, tile.Offsets) and step == 2]
    if len(lanes) != 1 or len(program.dim(lanes[0].dim).axes) > 1:
        return None
    along, itself = lanes[0].dim, tile.Affine(((lanes[0].dst, 1),))
    if sum(along in dims.get(name, ()) for name, _ in low.offset.terms) > 1:
        return None
    masks = {m: made.get(m) for m in low.masks if along in dims[m]}
    inside = {m: s for m, s in masks.items() if isinstance(s, tile.InBounds) and s.index == itself and s.low is None}
    return Turns(low, high, lanes[0], inside) if len(inside) == len(masks) else None


def _both(total: str, a: tile.Dot, b: tile.Dot, turns: Mapping[str, Turns]) -> Both | None:
    """The sum of two products as one, where one operand of each is half of a pair, on the same side."""
    for left in (True, False):
        halves = (a.lhs, b.lhs) if left else (a.rhs, b.rhs)
        pair = turns.get(halves[0])
        if pair is None or {*halves} != {pair.low.dst, pair.high.dst} or a.precision is not b.precision:
            continue
        if pair.lanes.dim != pair.low.dims[1 if left else 0]:
            continue
        others = {halves[0]: a.rhs if left else a.lhs, halves[1]: b.rhs if left else b.lhs}
        return Both(total, a.dst, pair, others[pair.low.dst], others[pair.high.dst], left, a.precision)
    return None


def _undisturbed(block: Sequence[tile.Stmt], both: Both, last: str, sums: Sequence[str]) -> bool:
    """Whether nothing changes from the first product or sum to the last: operands may be written on the spot."""
    places = [n for n, s in enumerate(block) if defined(s) in (both.first, last, *sums)]
    between = block[min(places) : max(places)]
    return not any(isinstance(s, tile.Update | tile.Store | tile.For | tile.Within) for s in between)
