"""Points of a search space as a table, and the tables of a launch's kernels joined into one.

Kernels of one launch have the same warps and stages, and symbols of their own: all combinations of their points are too
many. Of each kernel those are combined that are fastest alone, and those that add least to a launch that keeps the
device busy anyway, for every value of what it shares with others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from prism.cost.gpu import LIBRARY_STAGES

Ints: TypeAlias = npt.NDArray[np.int64]

# A kernel's grid of points is thinned beyond this, so that it is evaluated in well under a second.
MAX_POINTS = 400_000
# The points of a launch of several kernels, and how many of each kernel's are combined, by either measure.
MAX_JOINED = 200_000
MOST_OF_EACH = 32


class KernelTimes(Protocol):
    """The model of one kernel."""

    def seconds(self, binding: Mapping[str, Any], warps: Any, stages: Any) -> Any:
        """Seconds of a launch of it alone."""

    def share(self, binding: Mapping[str, Any], warps: Any, stages: Any) -> Any:
        """Seconds that it adds to a launch that keeps the device busy."""


@dataclass(frozen=True, slots=True)
class PointSpace:
    """The feasible points of a kernel or a launch."""

    names: tuple[str, ...]  # the symbols, then "warps", then "stages"
    values: tuple[tuple[int, ...], ...]  # the domain of each, ascending
    points: Ints  # feasible points, a row each in lexicographic order, a column per name

    def column(self, name: str) -> Ints:
        """One coordinate of all points."""
        return self.points[:, self.names.index(name)]

    def binding(self) -> dict[str, Any]:
        """Symbol name to the column of its values."""
        return {n: self.points[:, i] for i, n in enumerate(self.names[:-2])}

    def columns(self, names: Sequence[str]) -> Ints:
        """Some coordinates of all points, a column each."""
        return self.points[:, [self.names.index(n) for n in names]]

    def with_absence(self, shared: Collection[str]) -> PointSpace:
        """The points, and for every value of what others share one more, of no stages: the launch is no kernel there.

        Several launches have the `shared` names; others are at the least values.
        """
        rows = self.points[:0]
        if len(self.points):
            _, first = np.unique(self.columns([n for n in shared if n in self.names]), axis=0, return_index=True)
            rows = self.points[first]
            rows[:, -2:] = (self.points[:, -2].min(), LIBRARY_STAGES)
        values = (*self.values[:-1], (LIBRARY_STAGES, *self.values[-1]))
        return PointSpace(self.names, values, _sorted(np.concatenate([self.points, rows])))

    def flagged(self, name: str, chosen: npt.NDArray[np.bool_]) -> PointSpace:
        """The points with one column more, 1 where something is chosen, before warps and stages."""
        points = np.concatenate([self.points[:, :-2], chosen[:, None], self.points[:, -2:]], axis=1)
        values = (*self.values[:-2], (0, 1), *self.values[-2:])
        return PointSpace((*self.names[:-2], name, *self.names[-2:]), values, _sorted(points))


def _sorted(points: Ints) -> Ints:
    """Rows in lexicographic order."""
    return points[np.lexsort(points.T[::-1])]


def natural_join(members: Sequence[PointSpace], models: Sequence[KernelTimes], outside: Sequence[str]) -> PointSpace:
    """The points of a launch: for each kernel one of its own, alike in warps, stages and symbols that they share.

    `members` are the points of each kernel, `models` their models, in step. Whatever the values of symbols `outside`,
    which other launches have, too, points are left.
    """
    scores = [_scores(m, space) for m, space in zip(models, members, strict=True)]
    shared = [
        [n for n in space.names if n in outside or any(n in m.names for m in members if m is not space)]
        for space in members
    ]
    most = MOST_OF_EACH
    while True:
        few = [_best(*each, most) for each in zip(members, shared, scores, strict=True)]
        # With one of each there is nothing left to leave out.
        table = _product(few, MAX_JOINED if most > 1 else None)
        if table is not None:
            return table
        most //= 2


def _product(spaces: Sequence[PointSpace], limit: int | None) -> PointSpace | None:
    """The combinations of points that agree where they share a name; None where they are more than `limit`."""
    table = spaces[0]
    for space in spaces[1:]:
        found = _join(table, space, limit)
        if found is None:
            return None
        table = found
    return PointSpace(table.names, table.values, _sorted(table.points))


def _scores(model: KernelTimes, space: PointSpace) -> tuple[npt.NDArray[np.float64], ...]:
    """Seconds of every point alone, and its part of a launch that fills the device."""
    given = (space.binding(), space.column("warps"), space.column("stages"))
    shape = (len(space.points),)
    return tuple(
        np.broadcast_to(np.asarray(s, dtype=np.float64), shape) for s in (model.seconds(*given), model.share(*given))
    )


def _best(space: PointSpace, shared: Sequence[str], scores: Sequence[npt.NDArray[np.float64]], most: int) -> PointSpace:
    """For each assignment of the shared names, the `most` best points by each score."""
    _, group = np.unique(space.columns(shared), axis=0, return_inverse=True)
    group = group.reshape(-1)
    keep = np.zeros(len(space.points), dtype=bool)
    for score in scores:
        order = np.lexsort((np.arange(len(group)), score, group))
        ordered = group[order]
        place = np.arange(len(group)) - np.searchsorted(ordered, ordered)
        keep[order[(place < most) & np.isfinite(score[order])]] = True
    return PointSpace(space.names, space.values, space.points[keep])


def _join(a: PointSpace, b: PointSpace, limit: int | None) -> PointSpace | None:
    """The pairs of points that agree where both have a name; None where they are more than `limit`."""
    common = [n for n in a.names if n in b.names]
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, at in enumerate(map(tuple, b.columns(common).tolist())):
        rows.setdefault(at, []).append(row)
    partners = [rows.get(at, []) for at in map(tuple, a.columns(common).tolist())]
    if limit is not None and sum(map(len, partners)) > limit:
        return None
    left = np.repeat(np.arange(len(a.points)), [len(p) for p in partners])
    right = np.array([r for p in partners for r in p], dtype=np.int64)
    own = [n for n in b.names if n not in a.names]
    points = np.concatenate(
        [a.columns(a.names[:-2])[left], b.columns(own)[right], a.columns(a.names[-2:])[left]], axis=1
    )
    domains = dict(zip(b.names, b.values, strict=True))
    mine = [tuple(v for v in vs if v in domains.get(n, vs)) for n, vs in zip(a.names, a.values, strict=True)]
    values = (*mine[:-2], *(domains[n] for n in own), *mine[-2:])
    return PointSpace((*a.names[:-2], *own, *a.names[-2:]), values, points)
