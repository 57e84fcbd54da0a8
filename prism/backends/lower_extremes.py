"""Running maxima of which one is a positive multiple of another: one is kept, and the others are its multiples.

    m1 max= max(s);  m2 max= max(s * 0.5)      # before: two reductions of a tile in every iteration
    m1 max= max(s);  m2 = m1 * 0.5             # after

So have a softmax and one at another temperature, of the same scores, one maximum in a loop. Minima are shared alike.

No bit changes: a product with a positive number, as it is rounded, never falls where its other factor rises, so the
greatest product is that of the greatest factor; and infinities, which masks put in, stay what they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from prism.backends.lower_index import Names
from prism.backends.tile import Copy, For, Full, Pointwise, Reduce, Select, Stmt, Update
from prism.ir.kit import Holds, defined, operands, statements, with_names
from prism.program.nodes import DType

Masked: TypeAlias = Select | Pointwise
"""Selects between a value and an infinity."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """What an accumulator takes the extreme of: scale * root, with infinities where `masks`, outermost first, say."""

    scale: float
    root: str
    masks: tuple[Masked, ...]
    reduce: Reduce
    full: Full

    @property
    def shared(self) -> object:
        """Equal for those of which one is a multiple of the other."""
        return self.root, tuple(_selection(m) for m in self.masks), self.reduce.kind, self.reduce.dim, self.full.dims


def shared_extremes(body: Sequence[Stmt], names: Names) -> tuple[Stmt, ...]:
    """The body with one running extreme for those that are its positive multiples; what they took is left, unused."""
    everything = statements(body)
    counts = Counter(name for s in everything if (name := defined(s)) is not None)
    made = {name: s for s in everything if (name := defined(s)) is not None and counts[name] == 1}
    # A Full and one Update.
    updated = {s.acc for s in everything if isinstance(s, Update) and counts[s.acc] == 2}
    return _block(body, made, updated, names)


def _block(body: Sequence[Stmt], made: Mapping[str, Stmt], updated: set[str], names: Names) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for s in body:
        if not isinstance(s, For):
            out.append(s)
            continue
        loop = replace(s, body=_block(s.body, made, updated, names))
        fulls = {x.dst: x for x in out if isinstance(x, Full) and x.dst in updated}
        groups: dict[object, dict[str, _Taken]] = {}
        for u in loop.body:
            if isinstance(u, Update) and u.acc in fulls and (taken := _taken(u, fulls[u.acc], made)) is not None:
                groups.setdefault(taken.shared, {})[u.acc] = taken
        after: list[Stmt] = []
        for group in groups.values():
            if len(group) > 1 and all(_only_copied_before(loop.body, acc) for acc in group):
                base = next((acc for acc, t in group.items() if t.scale == 1.0), None)
                kept = base or names.fresh(next(iter(group)))
                out = [x for x in out if not (isinstance(x, Full) and x.dst in group)]
                out.append(replace(fulls[next(iter(group))], dst=kept))
                loop = replace(loop, body=tuple(_shared(loop.body, group, kept, names)))
                after += [_times(acc, kept, t) for acc, t in group.items() if acc != kept]
        out += [loop, *after]
    return tuple(out)


def _taken(u: Update, full: Full, made: Mapping[str, Stmt]) -> _Taken | None:
    """What an accumulator takes, if it is the extreme of a tile."""
    reduce = made.get(u.src)
    if not (isinstance(reduce, Reduce) and reduce.kind is u.kind and reduce.kind.is_extreme):
        return None
    name, scale, masks = reduce.src, 1.0, list[Masked]()
    while True:
        match made.get(name):
            case Pointwise(_, "mul", (str() as x, float() as c) | (float() as c, str() as x), _, DType.FLOAT32) if (
                0.0 < c < math.inf and scale == 1.0
            ):
                name, scale = x, c
            case Select(src=x, otherwise=o) as s if math.isinf(o):
                name = x
                masks.append(s)
            case Pointwise(_, "where", (str(), str() as x, float() as o) | (str(), float() as o, str() as x)) as s if (
                math.isinf(o)
            ):
                name = x
                masks.append(s)
            case None:
                return None
            case _:
                return _Taken(scale, name, tuple(masks), reduce, full)


def _selection(s: Masked) -> object:
    """What a mask does, whatever it does it to."""
    if isinstance(s, Select):
        return s.mask, s.otherwise
    return s.args[0], tuple(None if isinstance(a, str) else a for a in s.args[1:])


def _only_copied_before(body: Sequence[Stmt], acc: str) -> bool:
    """Whether nothing in a loop but copies, at its own level, reads the accumulator before its update."""
    for s in body:
        if isinstance(s, Update) and s.acc == acc:
            return True
        inner = s.body if isinstance(s, For) else (s,)
        if not isinstance(s, Copy) and any(acc in operands(x) for x in statements(inner)):
            return False
    return False


def _shared(body: Sequence[Stmt], group: Mapping[str, _Taken], kept: str, names: Names) -> list[Stmt]:
    """The body of a loop in which `kept` stands for all accumulators of the group."""
    now = {acc: kept if t.scale == 1.0 else names.fresh(acc) for acc, t in group.items()}
    place = next(n for n, s in enumerate(body) if isinstance(s, Update) and s.acc in group)
    last = {s.acc: n for n, s in enumerate(body) if isinstance(s, Update) and s.acc in group}
    # At the first update: what all of them were before, and what they are from then on.
    old = [(s, group[s.src]) for n, s in enumerate(body) if isinstance(s, Copy) and n < last.get(s.src, 0)]
    out: list[Stmt] = []
    for n, s in enumerate(body):
        if n == place:
            first = next(iter(group.values()))
            out += [_times(copy.dst, kept, t) for copy, t in old]
            out += _extreme(first, made := names.fresh(first.reduce.dst), names)
            out.append(Update(kept, first.reduce.kind, made))
            out += [_times(now[acc], kept, t) for acc, t in group.items() if now[acc] != kept]
        if not ((isinstance(s, Update) and s.acc in group) or any(s is copy for copy, _ in old)):
            out.append(with_names(s, now, Holds.USES))
    return out


def _extreme(of: _Taken, dst: str, names: Names) -> list[Stmt]:
    """The extreme of the root, with the masks."""
    out: list[Stmt] = []
    name = of.root
    for m in reversed(of.masks):
        masked = names.fresh(m.dst)
        if isinstance(m, Select):
            out.append(replace(m, dst=masked, src=name))
        else:
            mask, *choices = m.args
            args = (mask, *(name if isinstance(a, str) else a for a in choices))
            out.append(replace(m, dst=masked, args=args))
        name = masked
    return [*out, replace(of.reduce, dst=dst, src=name)]


def _times(dst: str, kept: str, t: _Taken) -> Stmt:
    if t.scale == 1.0:
        return Copy(dst, kept)
    return Pointwise(dst, "mul", (kept, t.scale), t.full.dims, DType.FLOAT32)
