"""Which launches of an sGraph have to wait for which: those that touch a tensor which either of them stores."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from prism.sgraph.folding import folds
from prism.sgraph.nodes import Launch, SGraph

After: TypeAlias = "Mapping[str, Sequence[str]]"
"""For each launch, in order, the earlier launches that it waits for."""


def waits(sgraph: SGraph, folded: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """For each launch the earlier ones that it has to wait for, without those that these wait for themselves.

    Args:
        sgraph: a legal sGraph.
        folded: second stages that their splits do (the option `folded`): they are no launches then.
    """
    into = {name: fold.split for name, fold in folds(sgraph).items() if name in folded}
    members: dict[str, list[Launch]] = {}
    for launch in sgraph.launches:
        members.setdefault(into.get(launch.name, launch.name), []).append(launch)
    found: dict[str, tuple[str, ...]] = {}
    behind: dict[str, set[str]] = {}
    for name, launches in members.items():
        direct = [other for other in found if _touch(members[other], launches)]
        covered = {x for other in direct for x in behind[other]}
        found[name] = tuple(other for other in direct if other not in covered)
        behind[name] = covered | set(direct)
    return found


def apart(after: After) -> bool:
    """Whether there are two launches of which neither waits for the other, directly or not."""
    behind: dict[str, set[str]] = {}
    for n, (name, direct) in enumerate(after.items()):
        behind[name] = set(direct) | {x for other in direct for x in behind[other]}
        if len(behind[name]) < n:
            return True
    return False


def _touch(earlier: Sequence[Launch], later: Sequence[Launch]) -> bool:
    """Whether one stores what the other loads or stores."""
    (stored, loaded), (stores, loads) = _touched(earlier), _touched(later)
    return not (stored.isdisjoint(loads | stores) and loaded.isdisjoint(stores))


def _touched(launches: Sequence[Launch]) -> tuple[set[str], set[str]]:
    kernels = [k for launch in launches for k in launch.kernels]
    return {t for k in kernels for t in k.writes}, {t for k in kernels for t in k.reads}
