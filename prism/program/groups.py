"""Rows that some read whole and others by groups: all read them by groups, so that one kernel has both.

A row's norm is sum_n x[n]^2 over n in [0, 4096), and the scale of a group of 128 is max_c |x[128*g + c]| over c. No
tile is over both [4096] and [32, 128], so each would read x. As sum_g sum_c x[128*g + c]^2, and with what is stored at
[128*g + c], they are over the same places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Expr, Formula, Read, Reduce, walk
from prism.program.products import work
from prism.program.transform import canonical, least_instance, rebuilt, substitute

_Place: TypeAlias = tuple[str, int]
"""A tensor and one of its dimensions."""
_Cut: TypeAlias = tuple[int, int]
"""How many groups a row has, and how many places each."""


def by_groups(formulas: Sequence[Formula]) -> tuple[Formula, ...]:
    """The formulas with axes in groups along dimensions that others read by these: what is stored, and reductions."""
    groups = _Groups([f.expr for f in formulas])
    if not groups.cuts:
        return tuple(formulas)
    made = rebuilt(groups.exprs, groups.reduced)
    kept = (f if e is f.expr else Formula(f.tensor, f.index, canonical(e)) for f, e in zip(formulas, made, strict=True))
    return tuple(map(groups.stored, kept))


class _Groups:
    """By which groups expressions read dimensions of tensors, where all that read by groups do alike."""

    def __init__(self, exprs: Sequence[Expr]) -> None:
        self.exprs = exprs  # the expressions
        met: dict[_Place, set[_Cut | None]] = {}
        for r in dict.fromkeys(e for x in exprs for e in walk(x) if isinstance(e, Read)):
            for n, i in enumerate(r.index):
                if i.terms and i.as_axis() is None:
                    met.setdefault((r.tensor, n), set()).add(_cut(i))
        # Of each such dimension.
        self.cuts = {place: cut for place, (cut, *more) in met.items() if cut is not None and not more}
        self._depths = {a for p in work(*exprs).products for a in p.depth} if self.cuts else set()

    def stored(self, f: Formula) -> Formula:
        """The formula with its axes in groups."""
        taken = {a for i in f.index for a in i.axes()}
        for axis in [a for i in f.index if (a := i.as_axis()) is not None]:
            cut = self._of(axis, f.expr)
            if cut is not None:
                groups = least_instance(cut[0], taken)
                within = least_instance(cut[1], {*taken, groups})
                taken |= {groups, within}
                place = {axis: _place(groups, within)}
                f = Formula(f.tensor, tuple(i.substitute(place) for i in f.index), canonical(substitute(f.expr, place)))
        return f

    def reduced(self, e: Expr) -> Expr:
        """The reduction with its axis in groups; anything else as it is."""
        cut = self._of(e.axis, e.body) if isinstance(e, Reduce) else None
        if not isinstance(e, Reduce) or cut is None:
            return e
        groups, within = Axis(f"{e.axis.name}.group", cut[0]), Axis(f"{e.axis.name}.within", cut[1])
        return Reduce(e.kind, groups, Reduce(e.kind, within, substitute(e.body, {e.axis: _place(groups, within)})))

    def _of(self, axis: Axis, body: Expr) -> _Cut | None:
        """The groups in which others read all that is read along an axis; None where nothing is."""
        met = {self.cuts[place] for place in _along(axis, body) if place in self.cuts}
        cut = met.pop() if len(met) == 1 and axis not in self._depths else None
        return cut if cut is not None and cut[0] * cut[1] == axis.extent else None


def _cut(index: Index) -> _Cut | None:
    """The groups of an index 128*g + c."""
    if index.offset != 0 or len(index.terms) != 2:
        return None
    for (one, slope), (other, size) in (index.terms, index.terms[::-1]):
        if not isinstance(one, Axis) or not isinstance(other, Axis) or slope != 1 or size != one.extent:
            continue
        if is_static(one.extent) and is_static(other.extent):
            return int(other.extent), int(one.extent)
    return None


def _place(groups: Axis, within: Axis) -> Index:
    return Index.axis(groups).scaled(within.extent) + Index.axis(within)


def _along(axis: Axis, body: Expr) -> Iterator[_Place]:
    """The dimensions that are read along an axis, from its first place."""
    for r in walk(body):
        if isinstance(r, Read):
            yield from ((r.tensor, n) for n, i in enumerate(r.index) if i.as_axis() == axis)
