"""Vectors that loops load one trip before they are needed: scales of a group, a norm's weights.

    for g in range(first, stop):                next_g = first
        scale = tl.load(at(g))                  ahead = tl.load(at(next_g), mask=next_g < stop)
        ...                                     for g in range(first, stop):
                                                    scale = ahead
                                                    next_g_2 = g + 1
                                                    ahead = tl.load(at(next_g_2), mask=next_g_2 < stop)
                                                    ...

Triton pipelines loads of a loop by asynchronous copies, of which each thread's are 4 bytes at least, and in a loop with
a matrix product only what feeds it. Anything else is loaded where it stands, and each trip waits for it: for memory,
or for a cache. A vector is a register or two a thread, so that the next trip's can wait there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from prism.backends import tile
from prism.backends.lower_index import Names
from prism.backends.passes.predicates import base
from prism.backends.tile_rewrite import accumulators, renamed
from prism.cost.pipelining import goes_ahead
from prism.ir.kit import defined, operands, statements
from prism.program.extents import is_static


@dataclass(frozen=True, slots=True)
class Ahead:
    """A load that a loop does one trip ahead."""

    load: tile.Load  # as it stands in the loop
    needs: tuple[tile.Stmt, ...]  # the integers of the loop's body that its address and its masks are made of, in order


def trip(ahead: Sequence[Ahead], loop: tile.For, index: str, names: Names) -> list[tile.Stmt]:
    """The loads of the trip at `index`, in order, after what they need; they load nothing where the loop has ended."""
    inside = tile.InBounds(names.fresh(f"more_{base(loop)}"), tile.Affine(((index, 1),)), loop.stop, None, ())
    given = {loop.index: index}
    made: list[tile.Stmt] = [inside]
    for s in (s for a in ahead for s in a.needs):
        name = defined(s) or ""
        if name not in given:
            given[name] = names.fresh(name)
            made.append(renamed(s, given))
    for load in (renamed(a.load, given) for a in ahead):
        assert isinstance(load, tile.Load)
        made.append(replace(load, masks=(*load.masks, inside.dst)))
    return made


def loads_ahead(program: tile.TileProgram, apart: Collection[str]) -> dict[str, list[Ahead]]:
    """By the index of a loop, what it loads one trip ahead, but for loads that are dealt with apart."""
    found: dict[str, list[Ahead]] = {}
    changing = accumulators(program.body)
    stored = {t.name: t.dtype for t in program.tensors}
    for loop in (s for s in statements(program.body) if isinstance(s, tile.For)):
        everything = statements(loop.body)
        multiplies = any(isinstance(s, tile.Dot | tile.For) for s in everything)
        places = _places(everything)
        lanes = {s.dst for s in statements(program.body) if isinstance(s, tile.Offsets)}
        for s in (s for s in loop.body if isinstance(s, tile.Load) and s.dst not in {*apart, *places}):
            unit = any(name in lanes and is_static(c) and abs(int(c)) == 1 for name, c in s.offset.terms)
            needs = _needs(s, loop)
            mentioned = {
                *operands(s),
                *tile.integers(s),
                *(n for x in needs or () for n in (*operands(x), *tile.integers(x))),
            }
            if needs is None or loop.index not in mentioned or not changing.isdisjoint(mentioned):
                continue
            if goes_ahead(len(s.dims), unit, stored[s.tensor].bytes, multiplies):
                found.setdefault(loop.index, []).append(Ahead(s, needs))
    return found


def _places(body: Sequence[tile.Stmt]) -> set[str]:
    """The values of a loop that addresses are made of."""
    made = {name: s for s in body if (name := defined(s)) is not None}
    left = [n for s in body for n in _addressed(s)]
    found: set[str] = set()
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += operands(made[name]) if name in made else ()
    return found


def _addressed(s: tile.Stmt) -> Iterator[str]:
    match s:
        case tile.Load() | tile.InBounds() | tile.IndexValue():
            yield from operands(s)
        case tile.Store(offset=offset, masks=masks):
            yield from (*(name for name, _ in offset.terms), *masks)


def _needs(load: tile.Load, loop: tile.For) -> tuple[tile.Stmt, ...] | None:
    """The integers of the loop's body that a load's address and masks are made of; None where more is needed."""
    inside = {name: s for s in statements(loop.body) if (name := defined(s)) is not None}
    own = {
        name: s
        for s in loop.body
        if isinstance(s, tile.Scalar | tile.Offsets | tile.InBounds | tile.IndexValue) and (name := s.dst)
    }
    left = [*operands(load), *tile.integers(load)]
    needed: set[str] = set()
    while left:
        name = left.pop()
        if name in needed or name not in inside:
            continue
        if name not in own:
            return None
        needed.add(name)
        left += [*operands(own[name]), *tile.integers(own[name])]
    return tuple(s for name, s in own.items() if name in needed)
