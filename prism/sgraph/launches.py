"""Launches: which wait for which, and independent kernels in one launch, among whom its programs are divided.

A launch of several kernels saves the others' launch overhead, fills a device that none of them fills alone, and has
what they all read come from DRAM once. Nothing of what they compute changes, so neither does the denotation. Each
program runs one kernel's body, but registers and shared memory are allotted for the most that any body needs, and all
run with the same number of warps.

Kernels may be launched together when none depends on another, directly or through a third: then they can stand next to
each other in launch order. `fusable` finds such groups, `fuse` makes an sGraph of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NoReturn, TypeAlias

from prism.errors import IllegalIRError
from prism.sgraph.folding import folds
from prism.sgraph.nodes import Kernel, Launch, SGraph

Group: TypeAlias = "tuple[str, ...]"


def fusable(sgraph: SGraph, *, sharing: bool = True) -> list[Group]:
    """Groups of kernels that can be launched together, and are not yet: disjoint, so that all of them can be fused.

    Each group is the first kernel in launch order that is in no group, with all later ones that may join it. What runs
    once, before any call, is launched by itself. `sharing` is whether a kernel only joins where it loads a tensor that
    a member loads, too, or stores to one.

    Returns:
        names of kernels, two or more a group, in launch order; `fuse` takes them one after another.
    """
    groups: list[Group] = list(sgraph.together)
    taken = {name for group in groups for name in group} | sgraph.prepared
    found: list[Group] = []
    for n, first in enumerate(sgraph.kernels):
        if first.name in taken:
            continue
        group: Group = (first.name,)
        shared = set(first.tensors)
        for other in sgraph.kernels[n + 1 :]:
            if other.name in taken or (sharing and shared.isdisjoint(other.tensors)):
                continue
            if _ordered(sgraph, [*groups, (*group, other.name)]) is not None:
                group = (*group, other.name)
                shared.update(other.tensors)
        if len(group) > 1:
            groups.append(group)
            found.append(group)
            taken.update(group)
    return found


def fuse(sgraph: SGraph, group: Iterable[str]) -> SGraph:
    """The sGraph with these kernels in one launch; others move behind or before it where they must.

    The group is two or more kernels, in any order.

    Raises:
        IllegalIRError: there is no such kernel, it is in a group already, or one depends on another.
    """
    members = set(group)
    own = tuple(k.name for k in sgraph.kernels if k.name in members)
    where = f"sGraph {sgraph.name}"
    if len(own) != len(members) or len(own) < 2:
        _fail(f"{_listed(sorted(members))} are not two or more of its kernels", where)
    for other in sgraph.together:
        if not members.isdisjoint(other):
            _fail(f"{_listed(other)} are launched together already", where)
    groups = [*sgraph.together, own]
    ordered = _ordered(sgraph, groups)
    if ordered is None:
        why = _reason(sgraph, own) or "one depends on another through a kernel that would have to run between them"
        _fail(f"{_listed(own)} cannot be launched together", where, why)
    place = {k.name: n for n, k in enumerate(ordered)}
    return replace(sgraph, kernels=ordered, together=tuple(sorted(groups, key=lambda g: place[g[0]])))


def check_together(sgraph: SGraph) -> None:
    """What `SGraph.together` says is legal: known kernels, each in one group, adjacent, and independent.

    Raises:
        IllegalIRError: it is not.
    """
    where = f"sGraph {sgraph.name}"
    place = {k.name: n for n, k in enumerate(sgraph.kernels)}
    seen: set[str] = set()
    for group in sgraph.together:
        for name in group:
            if name not in place:
                _fail(f"{name} is to be launched with others and is no kernel", where)
            if name in seen:
                _fail(f"kernel {name} is launched twice", where)
            seen.add(name)
        if len(group) < 2:
            _fail(f"the group of {group} is no group", where)
        if any(place[b] != place[a] + 1 for a, b in pairwise(group)):
            _fail(f"{_listed(group)} are launched together and are not adjacent in launch order", where)
        reason = _reason(sgraph, group)
        if reason:
            _fail(f"{_listed(group)} cannot be launched together", where, reason)


def _fail(what: str, where: str, why: str = "") -> NoReturn:
    raise IllegalIRError(
        what, where=where, why=why, fix="launch only kernels together that do not depend on each other"
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names)


def _feeds(producer: Kernel, consumer: Kernel) -> str | None:
    """A tensor that one kernel stores and the other loads, if any."""
    stored = producer.writes
    return next((t for t in consumer.reads if t in stored), None)


def _reason(sgraph: SGraph, group: Sequence[str]) -> str:
    """Why the kernels depend on each other; empty when no one directly depends on another."""
    members = [k for k in sgraph.kernels if k.name in group]
    for a in members:
        for b in members:
            tensor = _feeds(a, b)
            if tensor is not None:
                return f"{b.name} loads {tensor}, which {a.name} stores"
    return ""


def _ordered(sgraph: SGraph, groups: Sequence[Group]) -> tuple[Kernel, ...] | None:
    """The kernels with every group in one place, otherwise in the order in which they were; None where none is legal.

    Each group is taken as one node; the nodes are sorted topologically, of those that may come next the one that
    begins first.
    """
    group_of = {name: group for group in groups for name in group}
    nodes: dict[Group, list[Kernel]] = {}
    for kernel in sgraph.kernels:
        nodes.setdefault(group_of.get(kernel.name, (kernel.name,)), []).append(kernel)
    needs: dict[Group, set[Group]] = {
        node: {other for other, theirs in nodes.items() if any(_feeds(a, b) for a in theirs for b in mine)}
        for node, mine in nodes.items()
    }
    ordered: list[Kernel] = []
    left = dict(nodes)
    while left:
        ready = next((node for node in left if needs[node].isdisjoint(left)), None)
        if ready is None:
            return None
        ordered += left.pop(ready)
    return tuple(ordered)


DEPENDENT = "dependent"
"""What configurations call launches that start before the one before them has ended."""

After: TypeAlias = "Mapping[str, Sequence[str]]"
"""For each launch, in order, the earlier launches that it waits for."""


def waits(sgraph: SGraph, folded: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """For each launch the earlier ones that it has to wait for, without those that these wait for themselves.

    The second stages that are `folded` are no launches.
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
