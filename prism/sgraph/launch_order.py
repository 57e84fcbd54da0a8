"""Which launches of an sGraph have to wait for which: those that touch a tensor which either of them stores.

And which may start before the one before them has ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from prism.sgraph.folding import folds
from prism.sgraph.nodes import Launch, SGraph

DEPENDENT = "dependent"
"""What configurations call launches that start before the one before them has ended."""

After: TypeAlias = "Mapping[str, Sequence[str]]"
"""For each launch, in order, the earlier launches that it waits for."""


def waits(sgraph: SGraph, folded: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """For each launch the earlier ones that it has to wait for, without those that these wait for themselves.

    Args:
        sgraph: a legal sGraph.
        folded: second stages that their splits do (the option `folded`): they are no launches then.
    """
    if sgraph.repeats:
        # A step's launches come back, under windows of other names: each waits for the one before it.
        names = [x.name for x in sgraph.launches if x.name not in folded]
        return {name: tuple(names[max(n - 1, 0) : n]) for n, name in enumerate(names)}
    into = {name: fold.split for name, fold in folds(sgraph).items() if name in folded}
    members: dict[str, list[Launch]] = {}
    for launch in sgraph.launches:
        members.setdefault(into.get(launch.name, launch.name), []).append(launch)
    touching: dict[str, set[str]] = {}
    stored: dict[str, list[str]] = {}
    loaded: dict[str, list[str]] = {}
    for name, launches in members.items():
        stores, loads = _touched(launches)
        touching[name] = {x for t in (*stores, *loads) for x in stored.get(t, ())}
        touching[name] |= {x for t in stores for x in loaded.get(t, ())}
        for t in stores:
            stored.setdefault(t, []).append(name)
        for t in loads:
            loaded.setdefault(t, []).append(name)
    places = {name: n for n, name in enumerate(members)}
    earlier = behind(touching)
    found: dict[str, tuple[str, ...]] = {}
    for name, direct in touching.items():
        covered = Earlier()
        for x in direct:
            covered = covered.union(earlier[x])
        found[name] = tuple(x for x in sorted(direct, key=places.__getitem__) if places[x] not in covered)
    return found


def behind(after: Mapping[str, Collection[str]]) -> dict[str, Earlier]:
    """For each launch all that it waits for, directly or not, by their places in the order."""
    places = {name: n for n, name in enumerate(after)}
    found: dict[str, Earlier] = {}
    for name, direct in after.items():
        own = Earlier()
        for x in direct:
            own = own.union(found[x]).union(Earlier(0, 1 << places[x]))
        found[name] = own
    return found


@dataclass(frozen=True, slots=True)
class Earlier:
    """A set of places: all below `whole`, and of those from there on the ones whose bits are set.

    In long programs a launch waits for nearly all that were long before, or for few: so a set is short.
    """

    whole: int = 0
    bits: int = 0

    def __contains__(self, place: int) -> bool:
        return place < self.whole or bool(self.bits >> (place - self.whole) & 1)

    def union(self, other: Earlier) -> Earlier:
        """What is in either."""
        whole = max(self.whole, other.whole)
        bits = (self.bits >> (whole - self.whole)) | (other.bits >> (whole - other.whole))
        ones = (~bits & (bits + 1)).bit_length() - 1
        return Earlier(whole + ones, bits >> ones)


def apart(after: After) -> bool:
    """Whether there are two launches of which neither waits for the other, directly or not."""
    # In an order of all launches each waits for the one before it: there is none between them to wait for instead.
    return any(earlier not in after[later] for earlier, later in itertools.pairwise(after))


def overlapping(sgraph: SGraph) -> tuple[str, ...]:
    """The launches that may start before the one before them has ended.

    All but the first, and but second stages that their splits may do.
    """
    seconds = folds(sgraph)
    return tuple(x.name for x in sgraph.launches[1:] if x.name not in seconds)


def _touched(launches: Sequence[Launch]) -> tuple[set[str], set[str]]:
    kernels = [k for launch in launches for k in launch.kernels]
    return {t for k in kernels for t in k.writes}, {t for k in kernels for t in k.reads}
