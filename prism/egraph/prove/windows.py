"""Maxima over windows: of what masks hide places of, and of windows of windows.

A maximum counts nothing twice, so it is one over a set of places, and which set is all that counts: max_i max_j of
f(i + s*j), each where some comparisons hold, is max_k f(k) over the k for which there is such a pair. Whether there is
one is told by eliminating j from what it has to satisfy (Fourier and Motzkin), where that is exact over the integers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from prism.program.build import const, neg, position
from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Reduce, ReduceKind, Steps, walk
from prism.program.refinement import margin
from prism.program.transform import indices, substitute

# Comparisons of one maximum beyond which none are eliminated.
_MOST = 16


@dataclass(frozen=True, slots=True)
class Windows:
    """The maximum over `axes` of `core` where every one of `guards` is at least 0; -inf where none is."""

    axes: tuple[Axis, ...]  # what it is over
    guards: tuple[Index, ...]  # affine in them and in others
    core: Expr  # reads no `-inf` of the masks

    @property
    def expr(self) -> Expr:
        """It as an expression."""
        body = self.core
        for d in self.guards:
            body = Map("where", (Map("le", (const(0.0), position(d))), body, Const(-math.inf)))
        for a in reversed(self.axes):
            body = Reduce(ReduceKind.MAX, a, body)
        return body

    @property
    def never_empty(self) -> bool:
        """Whether some place is known to be left, wherever the others are."""
        guards: list[Index] | None = list(self.guards)
        for a in self.axes:
            if guards is None or not is_static(a.extent) or not all(map(_static, guards)):
                return False
            guards = _without(a, [*guards, *_range(a)])
        return guards is not None and all(d.never_negative for d in guards)

    def plain(self) -> Windows:
        """It over as few axes as may be, without guards that say nothing."""
        now = replace(self, guards=_needed(self.guards))
        while True:
            pairs = itertools.permutations(now.axes, 2)
            made = next((m for fine, coarse in pairs if (m := now._in_one(fine, coarse)) is not None), None)
            if made is None:
                return now
            now = made

    def _in_one(self, fine: Axis, coarse: Axis) -> Windows | None:
        """Two of the axes as one: None where the places of the core do not depend on fine + s*coarse alone."""
        step = _step(self.core, fine, coarse)
        if step is None or not all(_static(d) for d in self.guards):
            return None
        both = Axis(f"{fine.name}+{coarse.name}", int(fine.extent) + step * (int(coarse.extent) - 1))
        k, j = Index.axis(both), Index.axis(coarse)
        inside = {fine: k + j.scaled(-step)}
        kept = [d.substitute(inside) for d in self.guards]
        kept += [inside[fine], inside[fine].scaled(-1) + (int(fine.extent) - 1)]
        guards = _without(coarse, [*kept, *_range(coarse)])
        if guards is None:
            return None
        axes = [both if a == fine else a for a in self.axes if a != coarse]
        core = substitute(self.core, {fine: k, coarse: Index.const(0)})
        return Windows(tuple(axes), _needed(guards), core)


def windows(e: Reduce, hidden: float = -math.inf) -> Windows | None:
    """A maximum as one over the places that masks leave, with `hidden` at the others; None where a name is bound twice.

    What it is where the masks leave none is another question where `hidden` is a number.
    """
    axes: list[Axis] = []
    guards: list[Index] = []
    core: Expr = e
    while True:
        match core:
            case Reduce(ReduceKind.MAX, axis, body):
                if axis in axes or any(axis in d.axes() for d in guards):
                    return None
                axes.append(axis)
                core = body
                continue
            case Map("neg", (Map("where", (p, a, b)),)):
                core = Map("where", (p, neg(a), neg(b)))
                continue
            case Map("where", (Map("le" | "lt") as p, a, b)):
                d = margin(p)
                first, second = (_is(x, hidden) for x in (a, b))
                if d is not None and d.is_affine() and first != second:
                    guards.append(d.scaled(-1) + (-1) if first else d)
                    core = b if first else a
                    continue
            case Map("where", (Map("and", (p, q)), a, b)) if _is(b, hidden):
                core = Map("where", (p, Map("where", (q, a, b)), b))
                continue
        return Windows(tuple(axes), tuple(guards), core)


def _is(e: Expr, number: float) -> bool:
    match e:
        case Const(c):
            return c == number
        case Map("neg", (Const(c),)):
            return -c == number
    return False


def _range(axis: Axis) -> list[Index]:
    i = Index.axis(axis)
    return [i, i.scaled(-1) + (int(axis.extent) - 1)]


def _static(d: Index) -> bool:
    return is_static(d.offset) and all(is_static(c) for _, c in d.terms)


def _needed(guards: Iterable[Index]) -> tuple[Index, ...]:
    """The guards that others, and ranges of axes, do not imply; each divided by what its terms have in common."""
    every: dict[Index, None] = {}
    for d in guards:
        if _static(d) and d.terms:
            common = math.gcd(*(int(c) for _, c in d.terms))
            d = Index(tuple((a, int(c) // common) for a, c in d.terms), int(d.offset) // common)
        if not d.never_negative:
            every[d] = None
    kept: list[Index] = sorted(every, key=str)
    for d in list(kept):
        if any((d + other.scaled(-1)).never_negative for other in kept if other != d):
            kept.remove(d)
    return tuple(kept)


def _without(axis: Axis, guards: Sequence[Index]) -> list[Index] | None:
    """What says that some whole number for the axis satisfies all of them; None where that takes more than these."""
    lower = [d for d in guards if d.slope(axis) > 0]
    upper = [d for d in guards if d.slope(axis) < 0]
    kept = [d for d in guards if axis not in d.axes()]
    if len(lower) * len(upper) > _MOST or len(lower) + len(upper) + len(kept) < len(guards):
        return None
    for a, b in itertools.product(lower, upper):
        m, n = a.slope(axis), -b.slope(axis)
        real = a.scaled(n) + b.scaled(m)
        # Between two ends there is a whole number if one of them is whole, or they are far enough apart.
        if m > 1 and n > 1 and not (real + -(m - 1) * (n - 1)).never_negative:
            return None
        kept.append(real)
    return kept


def _step(core: Expr, fine: Axis, coarse: Axis) -> int | None:
    """The s for which an expression depends on fine + s*coarse alone; None of others."""
    steps: set[int] = set()
    if not is_static(fine.extent) or not is_static(coarse.extent):
        return None
    for x in walk(core):
        if isinstance(x, Reduce | Steps):
            return None
        for index in indices(x):
            other = {a for atom, _ in index.terms if not isinstance(atom, Axis) for a in Index(((atom, 1),)).axes()}
            if other & {fine, coarse} or not _static(index):
                return None
            one, many = index.slope(fine), index.slope(coarse)
            if one or many:
                steps.add(many // one if one and many % one == 0 else 0)
    (step,) = steps if len(steps) == 1 else (0,)
    return step if 1 <= step <= int(fine.extent) else None


__all__ = ["Windows", "windows"]
