"""Names of bound axes: what rules cannot do, done between their rounds.

A rule that pulls a factor out of `sum_d64_1` may leave a body in which `d64` is free no longer, so that the canonical
name of the bound axis is now `d64`; and a factor that mentions `d64_1` cannot be pushed under that sum, though under
another name it could. Both are found in a snapshot of the e-graph: a sum is written once more, from its least term,
over the axis' other name.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from prism.egraph.language import REDUCTIONS
from prism.egraph.terms import Frozen
from prism.program.index import Axis, Index
from prism.program.nodes import Expr, Reduce, ReduceKind, free_axes
from prism.program.transform import canonical, least_instance, substitute

# Of one call; more are left to the next.
MAX_RENAMED = 64


@dataclass(slots=True)
class Renamer:
    """Finds reductions that want another name for their axis, each once.

    Attributes:
        done: (kind, axis, new axis, digest of the body) of what was renamed.
    """

    done: set[tuple[str, Axis, Axis, bytes]] = field(default_factory=set)

    def fork(self) -> Renamer:
        """One that starts from here and leaves this one as it is."""
        return Renamer(set(self.done))

    def pairs(self, frozen: Frozen) -> list[tuple[Expr, Expr]]:
        """(reduction, the same reduction over another axis), in an order that does not depend on the process."""
        wanted: dict[tuple[Any, ...], tuple[str, Axis, Axis, Any]] = {}

        def want(kind: str, axis: Axis, new: Axis, body: Any) -> None:
            key = (kind, axis, new, frozen.keys[body][1])
            if new != axis and key not in self.done:
                order = (frozen.keys[body], kind, axis.name, new.name)
                wanted[order] = (kind, axis, new, body)

        reductions: dict[Any, list[tuple[str, Axis, Any]]] = defaultdict(list)
        for cls, rows in frozen.rows.items():
            for op, payload, _, kids in rows:
                if op in REDUCTIONS and isinstance(payload, Axis) and kids[0] in frozen.keys:
                    reductions[cls].append((op, payload, kids[0]))
        for cls, mine in reductions.items():
            for kind, axis, body in mine:
                want(kind, axis, least_instance(axis.extent, frozen.axes.get(cls, frozenset())), body)
        for outer in reductions.values():
            for kind, axis, body in outer:
                if kind != "sum":
                    continue
                for op, _, _, kids in frozen.rows[body]:
                    if op == "mul":
                        for u, b in (kids, kids[::-1]):
                            self._captured(frozen, reductions.get(u, []), axis, u, b, want)
        made: list[tuple[Expr, Expr]] = []
        for order in sorted(wanted)[:MAX_RENAMED]:
            kind, axis, new, body = wanted[order]
            self.done.add((kind, axis, new, frozen.keys[body][1]))
            term = frozen.expr(body)
            # The least term may mention axes that its value does not depend on.
            if new in free_axes(term):
                continue
            renamed = substitute(term, {axis: Index.axis(new)})
            kept = Reduce(ReduceKind(kind), new, canonical(renamed))
            made.append((Reduce(ReduceKind(kind), axis, term), kept))
        return made

    @staticmethod
    def _captured(frozen: Frozen, inner: list[tuple[str, Axis, Any]], outer: Axis, u: Any, b: Any, want: Any) -> None:
        """Ask for sums in u whose axis a factor b beside them mentions to be named apart from it."""
        beside = frozen.axes.get(b, frozenset())
        for kind, axis, body in inner:
            if kind == "sum" and axis in beside and axis != outer:
                taken = beside | frozen.axes.get(u, frozenset()) | frozen.axes.get(body, frozenset()) | {outer}
                want(kind, axis, least_instance(axis.extent, taken), body)
